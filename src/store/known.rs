//! The paths that the journal and the staging record may name. The state directory may belong to an untrusted system:
//! recovery does nothing that a commit of this program cannot have decided.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::desired::PLAIN_BITS;
use super::dir::is_temporary_name;
use super::error::StoreError;
use super::journal::{JOURNAL, Journal, JournalEntry};
use super::lock::LOCK_FILE;
use super::staging::STAGING;
use super::{Dir, NodeRoot, STATE_DIR};
use crate::kube::paths::{KUBELET_PKI_DIR, KUBERNETES_DIR};

/// The directories of kubeadm, of the kubelet and of nodepki.
const DIRECTORIES: [&str; 3] = [KUBERNETES_DIR, KUBELET_PKI_DIR, STATE_DIR];
/// Files in the state directory that no commit writes.
const OWN_FILES: [&str; 3] = [JOURNAL.name, STAGING.name, LOCK_FILE];

/// The directories in which an interrupted run can have left unfinished work.
#[derive(Clone, Debug)]
pub struct KnownDirectories(BTreeSet<PathBuf>);

impl Default for KnownDirectories {
    /// Returns those that need no configuration: kubeadm's, the kubelet's and the state directory.
    fn default() -> Self {
        KnownDirectories(DIRECTORIES.iter().map(PathBuf::from).collect())
    }
}

impl KnownDirectories {
    /// Adds the directories of these files, which the configuration names.
    #[must_use]
    pub fn with_files<'a>(mut self, files: impl IntoIterator<Item = &'a Path>) -> Self {
        let directories = files.into_iter().filter_map(Path::parent);
        self.0.extend(directories.map(Path::to_owned));
        self
    }

    /// Adds a directory that the configuration names.
    #[must_use]
    pub(crate) fn with_directory(mut self, directory: &Path) -> Self {
        self.0.insert(directory.to_owned());
        self
    }

    /// Returns whether a directory is one of these or below one.
    pub(crate) fn has_directory(&self, path: &Path) -> bool {
        is_plain(path) && self.0.iter().any(|known| path.starts_with(known))
    }

    fn has_file(&self, path: &Path) -> bool {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return false;
        };
        if is_temporary_name(name) || !is_plain(path) {
            return false;
        }
        if parent.starts_with(STATE_DIR) {
            return parent == Path::new(STATE_DIR) && !OWN_FILES.iter().any(|own| name == *own);
        }
        self.has_directory(parent)
    }

    /// Refuses a journal that no commit can have written.
    pub(super) fn check_journal(
        &self,
        root: &NodeRoot,
        state: &Dir,
        journal: &Journal,
    ) -> Result<(), StoreError> {
        let refuse = |why| Err(implausible(state, JOURNAL.name, why));
        let entries = journal.entries.iter();
        let kept = journal.kept.iter().map(|kept| &kept.path);
        for path in entries.clone().map(|entry| &entry.path).chain(kept) {
            if !self.has_file(path) {
                return refuse(format!(
                    "it names {}, which is not in a directory of Kubernetes' PKI by this configuration",
                    root.on_this_machine(path).display()
                ));
            }
        }
        match entries.into_iter().find(|entry| !has_plain_mode(entry)) {
            Some(entry) => refuse(format!(
                "it gives {} the mode {:04o}, which is not the mode of a certificate or key",
                root.on_this_machine(&entry.path).display(),
                entry.mode
            )),
            None => Ok(()),
        }
    }

    /// Refuses a record of staged files that no commit can have written.
    pub(super) fn check_staging(
        &self,
        root: &NodeRoot,
        state: &Dir,
        directories: &[PathBuf],
    ) -> Result<(), StoreError> {
        match directories.iter().find(|path| !self.has_directory(path)) {
            Some(path) => Err(implausible(
                state,
                STAGING.name,
                format!(
                    "it names {}, which is not a directory of Kubernetes' PKI by this configuration",
                    root.on_this_machine(path).display()
                ),
            )),
            None => Ok(()),
        }
    }
}

fn has_plain_mode(entry: &JournalEntry) -> bool {
    entry.content.is_none() || entry.mode & !PLAIN_BITS == 0
}

/// Returns true for an absolute path without `..`.
fn is_plain(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && components.all(|component| matches!(component, Component::Normal(_)))
}

fn implausible(state: &Dir, name: &str, why: String) -> StoreError {
    StoreError::Implausible {
        path: state.path().join(name),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_paths_of_the_pki() {
        let known = KnownDirectories::default().with_files([Path::new("/opt/pki/ca.crt")]);
        for path in [
            "/etc/kubernetes/admin.conf",
            "/etc/kubernetes/pki/etcd/server.key",
            "/etc/kubernetes/manifests/etcd.yaml",
            "/var/lib/kubelet/pki/kubelet-client-current.pem",
            "/var/lib/nodepki/issued.json",
            "/opt/pki/apiserver.crt",
            "/opt/pki/etcd/ca.crt",
        ] {
            assert!(known.has_file(Path::new(path)), "{path}");
        }
        for path in [
            "/etc/passwd",
            "/etc/kubernetes",
            "/etc/kubernetes/../cron.d/x",
            "/etc/kubernetes2/admin.conf",
            "/opt/x",
            "/opt/pki2/x",
            "etc/kubernetes/admin.conf",
            "/var/lib/kubelet/config.yaml",
            "/var/lib/nodepki/journal.json",
            "/var/lib/nodepki/staging.json",
            "/var/lib/nodepki/lock",
            "/var/lib/nodepki/pending/apiserver/key.pem",
            "/etc/kubernetes/pki/.nodepki-new.ca.crt~",
            "/",
            "",
        ] {
            assert!(!known.has_file(Path::new(path)), "{path}");
        }
        assert!(known.has_directory(Path::new("/etc/kubernetes/pki")));
        assert!(!known.has_directory(Path::new("/etc/kubernetes/../../root")));
        assert!(!known.has_directory(Path::new("/etc")));
    }
}
