//! The backup that a removal of CA keys depends on, as the journal records it, and what is known of an interrupted commit.
//!
//! Recovery has no passphrase. It verifies that the backup is the file that the interrupted run had opened and compared
//! with the keys, by its digest.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::dir::FileKind;
use super::error::StoreError;
use super::journal::JOURNAL;
use super::{NodeRoot, sha256};

/// A backup file that was opened, and that contained all keys that its commit removes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyBackup {
    /// Absolute path on the node, or on the machine that ran the command.
    path: PathBuf,
    on_node: bool,
    sha256: String,
}

impl KeyBackup {
    /// Describes the backup at `path` with these contents; `on_node` tells whether `path` is a path on the node.
    pub(crate) fn new(path: impl Into<PathBuf>, on_node: bool, contents: &[u8]) -> Self {
        KeyBackup {
            path: path.into(),
            on_node,
            sha256: sha256(contents),
        }
    }

    /// Returns whether this is the backup at a path, whatever its contents are.
    pub(crate) fn is_at(&self, path: &Path, on_node: bool) -> bool {
        self.path == path && self.on_node == on_node
    }

    /// Returns the path on this machine, for messages.
    pub(crate) fn shown(&self, root: &NodeRoot) -> PathBuf {
        if self.on_node {
            root.on_this_machine(&self.path)
        } else {
            self.path.clone()
        }
    }

    /// Returns why the file is not the verified backup any more, if so.
    pub(crate) fn loss(&self, root: &NodeRoot) -> Option<String> {
        let found = if self.on_node {
            self.find_loss(root)
        } else {
            NodeRoot::open("/").and_then(|machine| self.find_loss(&machine))
        };
        found.unwrap_or_else(|error| Some(error.to_string()))
    }

    /// As [`KeyBackup::loss`], in the root that has the file.
    ///
    /// The journal may be that of an untrusted system, which could name any file of this machine: only the digest is
    /// compared, and files of the kernel, which can block and have the size 0, are not opened.
    fn find_loss(&self, root: &NodeRoot) -> Result<Option<String>, StoreError> {
        const CHANGED: &str = "it was changed after it had been verified";
        let Some(found) = root.metadata(&self.path)? else {
            return Ok(Some("it does not exist any more".to_owned()));
        };
        if found.kind == FileKind::Symlink || (found.kind == FileKind::File && found.size == 0) {
            return Ok(Some(CHANGED.to_owned()));
        }
        let content = root.read(&self.path)?;
        let is_same = content.is_some_and(|found| sha256(&found.bytes) == self.sha256);
        Ok((!is_same).then(|| CHANGED.to_owned()))
    }
}

/// The purpose of a commit that an earlier run has not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnfinishedWork {
    /// Files were written, or removed because they are not needed any more.
    Files,
    /// CA keys were removed.
    KeyRemoval {
        /// The backup that contains them.
        backup: KeyBackup,
        /// Keys that do not exist any more, on the node.
        gone: Vec<PathBuf>,
    },
}

impl UnfinishedWork {
    /// Returns what the run was doing, for a sentence with "while it".
    pub(crate) const fn doing(&self) -> &'static str {
        match self {
            UnfinishedWork::Files => "installed files",
            UnfinishedWork::KeyRemoval { .. } => "removed CA keys",
        }
    }
}

/// The part of a journal that tells its purpose. File contents are not read.
#[derive(Deserialize)]
struct JournalPurpose {
    entries: Vec<EntryPath>,
    #[serde(default)]
    backup: Option<KeyBackup>,
}

#[derive(Deserialize)]
struct EntryPath {
    path: PathBuf,
}

impl NodeRoot {
    /// Returns the purpose of the commit that [`Locked::recover`](super::Locked::recover) has to finish or to clean up;
    /// `None` if there is none. Reads only.
    ///
    /// A journal that cannot be read counts as one of [`UnfinishedWork::Files`]: recovery reports the reason.
    pub(crate) fn unfinished_work(&self) -> Result<Option<UnfinishedWork>, StoreError> {
        if !self.has_unfinished()? {
            return Ok(None);
        }
        let removal = match self.journal_purpose() {
            Some(JournalPurpose {
                entries,
                backup: Some(backup),
            }) => Some((entries, backup)),
            _ => None,
        };
        let Some((entries, backup)) = removal else {
            return Ok(Some(UnfinishedWork::Files));
        };
        let mut gone = Vec::new();
        for EntryPath { path } in entries {
            if self.metadata(&path)?.is_none() {
                gone.push(path);
            }
        }
        Ok(Some(UnfinishedWork::KeyRemoval { backup, gone }))
    }

    fn journal_purpose(&self) -> Option<JournalPurpose> {
        self.record(&JOURNAL).ok().flatten()
    }
}
