//! A transaction: the changes of one commit, their directories, and what exists there now.
//!
//! A commit builds it from the desired files, recovery from the journal. Nothing here writes, except that
//! [`Transaction::open_or_create`] creates missing directories.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::desired::{DesiredContents, DesiredFile, DesiredState};
use super::dir::{Dir, Metadata, single};
use super::error::{PathObstacle, StoreError, StoreNote};
use super::journal::{KeptFile, MAX_JOURNAL_SIZE, identity_of_link};
use super::key_backup::KeyBackup;
use super::pending::Slot;
use super::target::ExistingTarget;
use super::trust::lets_others_create;
use super::{NodeRoot, READ_LIMIT, STATE_DIR, sha256, sync};

/// The result of a commit. Paths are those on the node.
#[derive(Debug, Default)]
pub struct Committed {
    /// Files that were created or replaced.
    pub written: Vec<PathBuf>,
    /// Files that were removed.
    pub removed: Vec<PathBuf>,
    /// Files that were in the desired state already and were not touched.
    pub unchanged: Vec<PathBuf>,
    /// Remarks for the report.
    pub notes: Vec<StoreNote>,
}

#[derive(Default)]
pub(super) struct Transaction {
    pub(super) directories: Vec<TargetDirectory>,
    /// Every name that was located, to find two paths to one file.
    located: Vec<TargetName>,
    /// Paths without extension; the index is the number of the group.
    groups: Vec<PathBuf>,
    /// Files in one group in spite of different names: the first member and another one.
    pub(super) pairs: Vec<[PathBuf; 2]>,
    pub(super) changes: Vec<FileChange>,
    /// Files in the desired state.
    pub(super) kept: Vec<KeptFile>,
    pub(super) slots: Vec<Slot>,
    /// Backup of the removed files.
    pub(super) backup: Option<KeyBackup>,
    /// Whether the record of staged files may exist.
    pub(super) recorded_staging: bool,
    /// Directories that were created, the outermost first.
    pub(super) created: Vec<PathBuf>,
    /// Files that are written and not synced yet, with the path for messages.
    pub(super) staged: Vec<(PathBuf, File)>,
    pub(super) operations: Vec<FileOperation>,
    pub(super) outcome: Committed,
}

/// A directory that files are written to.
pub(super) struct TargetDirectory {
    /// On the node.
    pub(super) path: PathBuf,
    /// `None` while it is missing.
    pub(super) dir: Option<Dir>,
    /// Device and inode: two paths may lead to one directory.
    id: Option<(u64, u64)>,
    immutable: bool,
    /// Whether users other than root and the running one can create files in it.
    others_create: bool,
}

/// A name in one of the transaction's directories.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TargetName {
    /// Index into [`Transaction::directories`].
    pub(super) directory: usize,
    pub(super) name: OsString,
}

/// A file that is created, replaced or removed.
pub(super) struct FileChange {
    /// On the node.
    pub(super) path: PathBuf,
    pub(super) name: TargetName,
    pub(super) group: usize,
    pub(super) private: bool,
    pub(super) new: Replacement,
    pub(super) found: Option<ExistingTarget>,
}

/// The object at a path after the commit.
pub(super) enum Replacement {
    File(StagedFile),
    /// Target of a symbolic link.
    Link(String),
    Nothing,
}

impl Replacement {
    fn is_nothing(&self) -> bool {
        matches!(self, Replacement::Nothing)
    }
}

/// A file that replaces another one or is created.
pub(super) struct StagedFile {
    pub(super) bytes: Zeroizing<Vec<u8>>,
    /// Permission bits.
    pub(super) mode: u32,
    /// Group; `None` for that of the replaced file, or of the process.
    pub(super) group: Option<u32>,
}

/// A rename or an unlink, done after the point of commit.
pub(super) struct FileOperation {
    pub(super) name: TargetName,
    pub(super) group: usize,
    pub(super) removes: bool,
}

impl FileChange {
    /// Returns the operation that completes the change.
    pub(super) fn operation(&self) -> FileOperation {
        FileOperation {
            name: self.name.clone(),
            group: self.group,
            removes: self.new.is_nothing(),
        }
    }
}

impl Transaction {
    /// Compares a desired file with what exists at its path, and adds the change if they differ.
    pub(super) fn add(&mut self, root: &NodeRoot, desired: DesiredFile) -> Result<(), StoreError> {
        let DesiredFile { path, state } = desired;
        let name = self.locate_once(root, &path)?;
        match state {
            DesiredState::File(contents) => self.add_file(path, name, contents),
            DesiredState::Absent { sha256 } => self.add_removal(path, name, &sha256),
            DesiredState::Link { target, over } => {
                self.add_link(path, name, target, over.as_deref())
            }
        }
    }

    fn add_file(
        &mut self,
        path: PathBuf,
        name: TargetName,
        desired: DesiredContents,
    ) -> Result<(), StoreError> {
        let DesiredContents {
            bytes,
            mode,
            overwrite,
        } = desired;
        let group = self.group(&path);
        let private = mode.is_private();
        let Some(found) = self.inspect(&name)? else {
            self.changes.push(FileChange {
                path,
                name,
                group,
                private,
                new: Replacement::File(StagedFile {
                    bytes,
                    mode: mode.bits(),
                    group: mode.group(),
                }),
                found: None,
            });
            return Ok(());
        };
        let same_contents = found.bytes == bytes;
        // The kubelet creates an empty file for a missing hostPath (`FileOrCreate`), which is not a file of another origin.
        if !same_contents && !overwrite && !found.bytes.is_empty() {
            return Err(StoreError::obstacle(found.path, PathObstacle::Differs));
        }
        let bits = mode.replacing(&found.metadata);
        let same_mode = bits == found.metadata.mode;
        let is_tightened = found.metadata.mode & !bits != 0;
        // An empty file has exposed nothing.
        if is_tightened && found.metadata.size > 0 {
            self.outcome.notes.push(StoreNote::Tightened {
                path: found.path.clone(),
                from: found.metadata.mode,
                to: bits,
            });
        }
        let same_group = mode.group().is_none_or(|group| group == found.metadata.gid);
        if same_contents && same_mode && same_group {
            // In the journal too: after a crash, a group is left as a whole if another process has replaced one of its
            // files.
            self.kept.push(KeptFile {
                sha256: sha256(&found.bytes),
                path,
                group,
            });
            return Ok(());
        }
        found.prepare_replacement(&mut self.outcome.notes)?;
        self.changes.push(FileChange {
            path,
            name,
            group,
            private,
            new: Replacement::File(StagedFile {
                bytes,
                mode: bits,
                group: mode.group(),
            }),
            found: Some(found),
        });
        Ok(())
    }

    fn add_removal(
        &mut self,
        path: PathBuf,
        name: TargetName,
        expected: &str,
    ) -> Result<(), StoreError> {
        let group = self.group(&path);
        let Some(found) = self.inspect(&name)? else {
            return Ok(());
        };
        if sha256(&found.bytes) != expected {
            return Err(StoreError::obstacle(found.path, PathObstacle::Changed));
        }
        found.prepare_replacement(&mut self.outcome.notes)?;
        self.changes.push(FileChange {
            path,
            name,
            group,
            private: true,
            new: Replacement::Nothing,
            found: Some(found),
        });
        Ok(())
    }

    fn add_link(
        &mut self,
        path: PathBuf,
        name: TargetName,
        target: String,
        over: Option<&str>,
    ) -> Result<(), StoreError> {
        let group = self.group(&path.with_file_name(single(OsStr::new(&target))?));
        let found = self.inspect_link(&name)?;
        if let Some(found) = &found {
            let identity = found.identity();
            if identity == identity_of_link(&target) {
                self.kept.push(KeptFile {
                    path,
                    group,
                    sha256: identity,
                });
                return Ok(());
            }
            if found.link.is_none() && over != Some(identity.as_str()) {
                let why = over.map_or(PathObstacle::Differs, |_| PathObstacle::Changed);
                return Err(StoreError::obstacle(&found.path, why));
            }
            found.prepare_replacement(&mut self.outcome.notes)?;
        }
        self.changes.push(FileChange {
            path,
            name,
            group,
            private: false,
            new: Replacement::Link(target),
            found,
        });
        Ok(())
    }

    /// Sorts the changes by group, removals after replacements and private files first, and lists the unchanged files.
    pub(super) fn order(&mut self) {
        self.changes
            .sort_by_key(|change| (change.group, change.new.is_nothing(), !change.private));
        self.outcome.unchanged = self.kept.iter().map(|kept| kept.path.clone()).collect();
    }

    /// Refuses directories that cannot be written to, and directories in which anyone could have created the file or
    /// could replace it later.
    pub(super) fn verify_directories(&mut self, root: &NodeRoot) -> Result<(), StoreError> {
        for change in &self.changes {
            if let Some(directory) = self.directories.get(change.name.directory)
                && directory.immutable
            {
                let path = root.on_this_machine(&directory.path);
                return Err(StoreError::obstacle(path, PathObstacle::Immutable));
            }
        }
        let replacements = || {
            let changes = self.changes.iter();
            changes.filter(|change| !change.new.is_nothing())
        };
        let mut written: Vec<usize> = replacements().map(|change| change.name.directory).collect();
        written.sort_unstable();
        written.dedup();
        let mut notes = Vec::new();
        for directory in written
            .into_iter()
            .filter_map(|at| self.directories.get(at))
        {
            for message in root.require_guarded(&directory.path)? {
                let note = StoreNote::Exposed { message };
                if !self.outcome.notes.contains(&note) && !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
        for change in replacements() {
            let Some(found) = &change.found else {
                continue;
            };
            let others_create = self.others_create(&change.name);
            if found.metadata.size > 0 && found.inherited_metadata(others_create).is_none() {
                notes.push(StoreNote::OwnerReset {
                    path: found.path.clone(),
                    owner: found.metadata.uid,
                });
            }
        }
        self.outcome.notes.append(&mut notes);
        Ok(())
    }

    /// Returns the directory and the name of a path on the node.
    pub(super) fn locate(
        &mut self,
        root: &NodeRoot,
        path: &Path,
    ) -> Result<TargetName, StoreError> {
        let bad_path = || StoreError::bad_path(path, "the absolute path of a file");
        let parent = path.parent().ok_or_else(bad_path)?;
        let name = path.file_name().ok_or_else(bad_path)?.to_owned();
        let mut known = self.directories.iter();
        if let Some(directory) = known.position(|known| known.path == parent) {
            return Ok(TargetName { directory, name });
        }
        let (dir, name) = root.parent(path)?;
        let metadata = dir.as_ref().map(Dir::own_metadata).transpose()?;
        let id = metadata.as_ref().map(|found| (found.device, found.inode));
        let mut known = self.directories.iter();
        if let Some(directory) = known.position(|known| known.id.is_some() && known.id == id) {
            return Ok(TargetName { directory, name });
        }
        self.directories.push(TargetDirectory {
            path: parent.to_owned(),
            dir,
            id,
            immutable: metadata.as_ref().is_some_and(|found| found.immutable),
            others_create: metadata.as_ref().is_some_and(lets_others_create),
        });
        Ok(TargetName {
            directory: self.directories.len() - 1,
            name,
        })
    }

    /// As [`Transaction::locate`]; refuses a second path to the same file.
    fn locate_once(&mut self, root: &NodeRoot, path: &Path) -> Result<TargetName, StoreError> {
        let refuse = |what| Err(StoreError::bad_path(path, what));
        if path.to_str().is_none() {
            return refuse("a path in UTF-8");
        }
        let name = self.locate(root, path)?;
        if self.located.contains(&name) {
            return refuse("a second path to a file of the same commit");
        }
        self.located.push(name.clone());
        Ok(name)
    }

    /// Reads the file at a name; `None` if it does not exist.
    pub(super) fn inspect(&self, name: &TargetName) -> Result<Option<ExistingTarget>, StoreError> {
        match self.dir(name) {
            Some(dir) => ExistingTarget::read(dir, &name.name, self.limit(name)),
            None => Ok(None),
        }
    }

    /// Reads the symbolic link or the file at a name; `None` if neither exists.
    pub(super) fn inspect_link(
        &self,
        name: &TargetName,
    ) -> Result<Option<ExistingTarget>, StoreError> {
        match self.dir(name) {
            Some(dir) => ExistingTarget::read_link(dir, &name.name, self.limit(name)),
            None => Ok(None),
        }
    }

    /// Returns the size limit in bytes for the file at a name: records of nodepki may contain several files.
    fn limit(&self, name: &TargetName) -> u64 {
        let directory = self.directories.get(name.directory);
        if directory.is_some_and(|directory| directory.path == Path::new(STATE_DIR)) {
            MAX_JOURNAL_SIZE
        } else {
            READ_LIMIT
        }
    }

    /// Returns the directory of a name; `None` if it does not exist.
    pub(super) fn dir(&self, name: &TargetName) -> Option<&Dir> {
        let directory = self.directories.get(name.directory)?;
        directory.dir.as_ref()
    }

    /// Returns true if users other than root and the running one can create files next to the name.
    pub(super) fn others_create(&self, name: &TargetName) -> bool {
        let directory = self.directories.get(name.directory);
        directory.is_some_and(|directory| directory.others_create)
    }

    /// Returns the directory of a name. A missing directory is created.
    pub(super) fn open_or_create(
        &mut self,
        root: &NodeRoot,
        name: &TargetName,
    ) -> Result<&Dir, StoreError> {
        let missing = |path: &Path| StoreError::bad_path(path, "a directory");
        let directory = self
            .directories
            .get_mut(name.directory)
            .ok_or_else(|| missing(Path::new("")))?;
        if directory.dir.is_none() {
            directory.dir = Some(root.make_dirs(&directory.path, 0o755, &mut self.created)?);
        }
        directory
            .dir
            .as_ref()
            .ok_or_else(|| missing(&directory.path))
    }

    /// Waits until the staged files, and the names of the created directories, are on the disk.
    pub(super) fn sync_staged(&mut self, root: &NodeRoot) -> Result<(), StoreError> {
        let staged = std::mem::take(&mut self.staged);
        let files: Vec<BorrowedFd<'_>> = staged.iter().map(|(_, file)| file.as_fd()).collect();
        sync::all(&files).map_err(|(index, errno)| {
            let path = staged.get(index).map_or(root.path(), |(path, _)| path);
            StoreError::io("write", path, errno)
        })?;
        for path in &self.created {
            root.sync_parent(path)?;
        }
        Ok(())
    }

    /// Returns the number of the group that a path belongs to.
    fn group(&mut self, path: &Path) -> usize {
        let pair = self.pairs.iter().find(|[_, other]| other == path);
        let stem = pair.map_or(path, |[first, _]| first).with_extension("");
        if let Some(known) = self.groups.iter().position(|group| *group == stem) {
            return known;
        }
        self.groups.push(stem);
        self.groups.len() - 1
    }
}

/// Returns the metadata that a staged file inherits from the target it replaces.
pub(super) fn inherited(found: Option<&ExistingTarget>, others_create: bool) -> Option<&Metadata> {
    found.and_then(|found| found.inherited_metadata(others_create))
}

#[cfg(test)]
mod tests {
    use super::super::desired::Mode;
    use super::*;

    fn file(path: &str, mode: Mode) -> DesiredFile {
        let contents = DesiredContents {
            bytes: Zeroizing::new(b"new".to_vec()),
            mode,
            overwrite: true,
        };
        DesiredFile {
            path: path.into(),
            state: DesiredState::File(contents),
        }
    }

    #[test]
    fn replaces_key_before_certificate_of_another_name_in_one_group() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let [certificate, key] = ["/etc/kubernetes/a/tls.crt", "/etc/kubernetes/b/key.pem"];
        let mut transaction = Transaction {
            pairs: vec![[certificate.into(), key.into()]],
            ..Transaction::default()
        };
        for desired in [
            file(certificate, Mode::Public),
            file("/etc/kubernetes/b/ca.crt", Mode::Public),
            file(key, Mode::GroupPrivate(1)),
        ] {
            transaction.add(&root, desired).unwrap();
        }
        transaction.order();
        let changes = transaction.changes.iter();
        let found: Vec<_> = changes
            .map(|change| (change.group, change.path.to_str().unwrap()))
            .collect();
        assert_eq!(
            found,
            [(0, key), (0, certificate), (1, "/etc/kubernetes/b/ca.crt")]
        );
    }
}
