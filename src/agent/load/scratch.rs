//! Signers' storage for commands that write nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

use zeroize::Zeroizing;

use crate::kube::names::NodePath;
use crate::signer::Memory;

/// Whether what signers store lasts beyond this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignerState {
    /// In the state directory.
    #[default]
    Kept,
    /// In memory, over what earlier runs have stored.
    Discarded,
}

/// Reads what earlier runs have stored, and keeps changes in memory.
pub(super) struct ScratchMemory<M> {
    stored: M,
    /// Changed content; `None` for content that was removed.
    changes: RefCell<BTreeMap<String, Option<Zeroizing<Vec<u8>>>>>,
}

impl<M: Memory> ScratchMemory<M> {
    pub(super) fn over(stored: M) -> Self {
        ScratchMemory {
            stored,
            changes: RefCell::default(),
        }
    }

    fn change(&self, name: &str, content: Option<Zeroizing<Vec<u8>>>) {
        self.changes.borrow_mut().insert(name.to_owned(), content);
    }
}

impl<M: Memory> Memory for ScratchMemory<M> {
    fn recall(&self, name: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        match self.changes.borrow().get(name) {
            Some(changed) => Ok(changed.clone()),
            None => self.stored.recall(name),
        }
    }

    fn keep(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.change(name, Some(Zeroizing::new(bytes.to_vec())));
        Ok(())
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        self.change(name, None);
        Ok(())
    }

    fn state_dir(&self) -> NodePath {
        self.stored.state_dir()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Storage with one file that must not be changed.
    struct OneFile;

    impl Memory for OneFile {
        fn recall(&self, name: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
            Ok((name == "token").then(|| Zeroizing::new(b"stored".to_vec())))
        }

        fn keep(&self, name: &str, _: &[u8]) -> io::Result<()> {
            panic!("{name} is written")
        }

        fn forget(&self, name: &str) -> io::Result<()> {
            panic!("{name} is removed")
        }
    }

    #[test]
    fn keeps_changes_out_of_storage() {
        let memory = ScratchMemory::over(OneFile);
        let recalled = |name: &str| memory.recall(name).unwrap().map(|bytes| bytes.to_vec());
        assert_eq!(recalled("token").as_deref(), Some(&b"stored"[..]));
        memory.keep("token", b"new").unwrap();
        memory.keep("other", b"more").unwrap();
        assert_eq!(recalled("token").as_deref(), Some(&b"new"[..]));
        assert_eq!(recalled("other").as_deref(), Some(&b"more"[..]));
        memory.forget("token").unwrap();
        assert_eq!(recalled("token"), None);
    }
}
