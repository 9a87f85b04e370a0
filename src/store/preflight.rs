//! Verifies in advance that files can be written.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::UnlinkatFlags;

use super::calls::{openat, unlinkat};
use super::dir::{errno_from, temporary_name};
use super::error::{PathObstacle, StoreError};
use super::journal::JOURNAL;
use super::root::split;
use super::{NodeRoot, STATE_DIR};

/// Bytes of metadata for one entry of the journal, in addition to the contents.
const JOURNAL_ENTRY_SIZE: u64 = 1024;
/// Blocks for directory entries and the record of issue times.
const SPARE_BLOCKS: u64 = 8;
/// Files in addition to those that are written, such as state files.
const SPARE_FILES: u64 = 4;
/// Files of a pending request: its directory, key, CSR, ticket and answer. None is larger than a block.
const FILES_OF_REQUEST: u64 = 5;

impl NodeRoot {
    /// Verifies that files of these sizes could be written now, and so many new requests be recorded: permissions,
    /// read-only and immutable directories, space, and what exists at the paths. The state directory is always included.
    /// Changes nothing.
    ///
    /// # Errors
    /// All obstacles, not only the first.
    pub fn preflight<'a>(
        &self,
        files: impl IntoIterator<Item = (&'a Path, u64)>,
        requests: usize,
    ) -> Result<(), Vec<StoreError>> {
        let mut preflight = Preflight::new(self);
        let mut journal_size = 0;
        for (path, bytes) in files {
            preflight.add(path, bytes);
            // The journal contains every file once more, in base64.
            journal_size += bytes.div_ceil(3) * 4 + JOURNAL_ENTRY_SIZE;
        }
        preflight.add(&JOURNAL.path(), journal_size);
        preflight.add_state_files(requests as u64 * FILES_OF_REQUEST);
        preflight.result()
    }
}

/// Collects the obstacles to writing a set of files.
struct Preflight<'a> {
    root: &'a NodeRoot,
    errors: Vec<StoreError>,
    needs: Vec<SpaceNeed>,
    /// The index of each directory's file system in `needs`; `None` if the directory cannot be written to.
    directories: HashMap<PathBuf, Option<usize>>,
}

impl<'a> Preflight<'a> {
    fn new(root: &'a NodeRoot) -> Self {
        Preflight {
            root,
            errors: Vec::new(),
            needs: Vec::new(),
            directories: HashMap::new(),
        }
    }

    fn add(&mut self, path: &Path, bytes: u64) {
        let (parent, name) = match split(path) {
            Ok(split) => split,
            Err(error) => return self.errors.push(error),
        };
        let need = match self.directories.get(parent) {
            Some(known) => *known,
            None => {
                let need = self.probe(parent);
                let need = need.map_err(|error| self.errors.push(error)).ok();
                self.directories.insert(parent.to_owned(), need);
                self.errors.extend(self.root.require_guarded(parent).err());
                need
            }
        };
        if let Some(need) = need.and_then(|index| self.needs.get_mut(index)) {
            need.bytes += bytes.next_multiple_of(need.block);
            need.files += 1;
        }
        self.errors
            .extend(self.root.require_replaceable(parent, name).err());
    }

    /// Adds files of one block in the state directory, whose file system is known by now.
    fn add_state_files(&mut self, files: u64) {
        let state = self
            .directories
            .get(Path::new(STATE_DIR))
            .copied()
            .flatten();
        if let Some(need) = state.and_then(|index| self.needs.get_mut(index)) {
            need.bytes += files * need.block;
            need.files += files;
        }
    }

    fn result(self) -> Result<(), Vec<StoreError>> {
        let mut errors = self.errors;
        errors.extend(
            self.needs
                .into_iter()
                .filter_map(|need| need.verify().err()),
        );
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors)
        }
    }

    /// Creates a file without a name in the nearest existing directory, and returns the index of its file system in
    /// `needs`.
    fn probe(&mut self, path: &Path) -> Result<usize, StoreError> {
        let dir = self.root.nearest_dir(path)?;
        if dir.own_metadata()?.immutable {
            return Err(StoreError::obstacle(dir.path(), PathObstacle::Immutable));
        }
        let create = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        match openat(
            &dir,
            ".",
            create | OFlag::O_TMPFILE,
            Mode::S_IRUSR | Mode::S_IWUSR,
        ) {
            // File systems without O_TMPFILE: NFS, FUSE, old overlayfs.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT) => {
                let name = temporary_name(OsStr::new("probe"));
                dir.create(&name, b"")?;
                unlinkat(&dir, name.as_os_str(), UnlinkatFlags::NoRemoveDir)
                    .map_err(|errno| StoreError::io("remove", dir.path().join(&name), errno))?;
            }
            other => {
                other.map_err(|errno| StoreError::io("create a file in", dir.path(), errno))?;
            }
        }
        let found = rustix::fs::fstatvfs(&dir).map_err(|errno| {
            StoreError::io("measure the room in", dir.path(), errno_from(errno))
        })?;
        let mut known = self.needs.iter();
        if let Some(known) =
            known.position(|need| need.file_system == found.f_fsid && need.file_system != 0)
        {
            return Ok(known);
        }
        self.needs.push(SpaceNeed {
            file_system: found.f_fsid,
            path: dir.path().to_owned(),
            block: found.f_frsize.max(512),
            available: found.f_bavail.saturating_mul(found.f_frsize),
            // File systems without a fixed number of inodes (btrfs) report 0.
            inodes: if found.f_files == 0 {
                u64::MAX
            } else {
                found.f_favail
            },
            bytes: 0,
            files: 0,
        });
        Ok(self.needs.len() - 1)
    }
}

/// Space that is needed on one file system, and space that is available.
struct SpaceNeed {
    file_system: u64,
    path: PathBuf,
    block: u64,
    available: u64,
    inodes: u64,
    bytes: u64,
    files: u64,
}

impl SpaceNeed {
    fn verify(self) -> Result<(), StoreError> {
        let needed = self.bytes + SPARE_BLOCKS * self.block;
        let files = self.files + SPARE_FILES;
        if self.available >= needed && self.inodes >= files {
            return Ok(());
        }
        Err(StoreError::TooLittleSpace {
            path: self.path,
            available: self.available,
            inodes: self.inodes,
            needed,
            files,
        })
    }
}
