//! An open directory. Every name in it is a single component, and symbolic links are not followed.
//!
//! Both the store and the file-drop signer write through [`Dir`].

mod file_system;
mod metadata;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, PosixFadviseAdvice, ResolveFlag, posix_fadvise, readlinkat};
use nix::sys::signal::kill;
use nix::sys::stat::Mode;
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, fstatfs, statfs};
use nix::unistd::{Pid, UnlinkatFlags};
use rustix::fs::{RenameFlags, renameat_with};
use zeroize::Zeroizing;

use super::calls::{
    fchmod, fsync, linkat, mkdirat, openat, openat2, renameat, symlinkat, uninterrupted, unlinkat,
};
use super::error::{PathObstacle, StoreError};
use crate::kube::names::NodePath;

use file_system::{is_volatile, upper_layer};
use metadata::stat;
pub use metadata::{FileKind, Metadata};
pub(super) use metadata::{errno_from, errno_of, is_same, obstacle_of_kind, stat_open};

/// Prefix of temporary names.
///
/// Each target has one fixed temporary name, not a random one: the next attempt replaces what a crash left behind, so
/// no number of crashes fills the disk. Only the holder of the lock writes, so two writers never use the same name.
/// [`Dir::write_unlocked`] and [`Dir::write_new`] add their process to the name, and first remove what ended processes left
/// behind for the same target. Directories are created without the lock, and creation begins again if it meets another one.
const TEMPORARY_PREFIX: &str = ".nodepki-new.";
/// Suffix of temporary names: node_exporter reads every file whose name ends with .prom, hidden ones too.
const TEMPORARY_SUFFIX: &str = "~";
/// How often the creation of a directory begins again because other processes create it too.
const MAX_CREATIONS: u32 = 100;

/// Contents and metadata of a file.
pub struct FileContent {
    /// The contents; zeroized when dropped, since they may be a key.
    pub bytes: Zeroizing<Vec<u8>>,
    /// When the file was opened.
    pub metadata: Metadata,
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("bytes", &self.bytes.len())
            .field("metadata", &self.metadata)
            .finish()
    }
}

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    /// The `/` of the node.
    root: NodePath,
}

impl Dir {
    pub(super) fn new(fd: OwnedFd, path: PathBuf, root: NodePath) -> Dir {
        Dir { fd, path, root }
    }

    /// Returns the `/` of the node, for a directory below this one.
    pub(super) fn root(&self) -> NodePath {
        self.root.clone()
    }

    /// Returns the target of a symbolic link for messages: an absolute one as a path on this machine.
    fn shown_target(&self, target: PathBuf) -> PathBuf {
        if target.is_absolute() {
            self.root.join(target).shown()
        } else {
            target
        }
    }

    /// Returns the path on this machine, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the metadata of `name`, a symbolic link not followed; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::BadPath`] for more than one component, and errors of the system.
    pub fn metadata(&self, name: impl AsRef<OsStr>) -> Result<Option<Metadata>, StoreError> {
        let name = single(name.as_ref())?;
        match stat(&self.fd, name) {
            Ok(metadata) => Ok(Some(metadata)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("look at", name, errno)),
        }
    }

    /// Reads a regular file of at most `limit` bytes, a symbolic link not followed; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`] for anything but a regular file and for a larger one, and errors of the system.
    pub fn read(
        &self,
        name: impl AsRef<OsStr>,
        limit: u64,
    ) -> Result<Option<FileContent>, StoreError> {
        let name = single(name.as_ref())?;
        // Verified before it is opened: opening a device has effects (a watchdog starts, a tape rewinds).
        if let Some(obstacle) = self.obstacle(name)? {
            return Err(obstacle);
        }
        match openat(&self.fd, name, READ | OFlag::O_NOFOLLOW, Mode::empty()) {
            Ok(fd) => read_open(fd, &self.path.join(name), limit).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("read", name, errno)),
        }
    }

    /// As [`Dir::read`], from the disk: the pages of the file that are already written are dropped from the page cache
    /// first.
    pub(crate) fn read_uncached(
        &self,
        name: impl AsRef<OsStr>,
        limit: u64,
    ) -> Result<Option<FileContent>, StoreError> {
        let name = single(name.as_ref())?;
        if let Ok(fd) = openat(&self.fd, name, READ | OFlag::O_NOFOLLOW, Mode::empty()) {
            // The call is advisory: a file system that ignores it reads from memory.
            let _ = posix_fadvise(&fd, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
        self.read(name, limit)
    }

    /// Returns true if the directory is on a file system in memory or of the kernel (tmpfs, ramfs, proc, sysfs and the
    /// like), or on an overlay whose writable layer is.
    pub(crate) fn is_volatile(&self) -> Result<bool, StoreError> {
        let failed = |errno| StoreError::io("examine the file system of", &self.path, errno);
        let found = fstatfs(&self.fd).map_err(failed)?;
        if found.filesystem_type() != OVERLAYFS_SUPER_MAGIC {
            return Ok(is_volatile(found.filesystem_type()));
        }
        let metadata = self.own_metadata()?;
        let device = (metadata.device >> 32, metadata.device & 0xffff_ffff);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")
            .map_err(|error| StoreError::io("read", "/proc/self/mountinfo", errno_of(&error)))?;
        let Some(upper) = upper_layer(&mounts, device) else {
            return Ok(false);
        };
        // In a container the layer is often not visible; it then counts as a disk.
        Ok(statfs(upper.as_str()).is_ok_and(|found| is_volatile(found.filesystem_type())))
    }

    /// Returns true if this directory is one of `others`, which are pairs of device and inode, or is below one.
    pub(crate) fn is_below(&self, others: &[(u64, u64)]) -> Result<bool, StoreError> {
        let failed = |errno| StoreError::io("examine the directories above", &self.path, errno);
        let mut fd = openat(&self.fd, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        let mut before = None;
        loop {
            let metadata = stat_open(&fd).map_err(failed)?;
            let id = (metadata.device, metadata.inode);
            if others.contains(&id) {
                return Ok(true);
            }
            // The parent of the root is the root.
            if before == Some(id) {
                return Ok(false);
            }
            before = Some(id);
            fd = openat(&fd, "..", DIRECTORY, Mode::empty()).map_err(failed)?;
        }
    }

    /// Returns device and inode of the directory.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn id(&self) -> Result<(u64, u64), StoreError> {
        let metadata = self.own_metadata()?;
        Ok((metadata.device, metadata.inode))
    }

    /// Returns the names in this directory, sorted, without temporary files of nodepki.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn list(&self) -> Result<Vec<OsString>, StoreError> {
        Ok(self
            .names()?
            .into_iter()
            .filter(|name| !is_temporary_name(name))
            .collect())
    }

    /// Returns the first names that the file system lists, in no order, without temporary files of nodepki: `limit` + 1
    /// names if there are more than `limit`.
    pub(crate) fn list_at_most(&self, limit: usize) -> Result<Vec<OsString>, StoreError> {
        self.scan(|name| !is_temporary_name(name), limit.saturating_add(1))
    }

    /// Returns the names of temporary files of nodepki, sorted. A running commit has some, and a crash leaves some behind.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn temporary_files(&self) -> Result<Vec<OsString>, StoreError> {
        let mut names = self.names()?;
        names.retain(|name| is_temporary_name(name));
        Ok(names)
    }

    /// Replaces or creates a file atomically. Returns false if the file already has these contents and this mode.
    ///
    /// Every reader sees the complete old file or the complete new one. The umask does not apply. The file and its name
    /// are on the disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`] if `name` exists and is not a regular file, and errors of the system.
    pub fn write_atomic(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        mode: u32,
    ) -> Result<bool, StoreError> {
        let temp = temporary_name(name.as_ref());
        self.write_by(&temp, name.as_ref(), bytes, mode)
    }

    /// As [`Dir::write_atomic`], while another process may write the same file or recover: neither uses or removes the
    /// temporary file of this process.
    pub(crate) fn write_unlocked(
        &self,
        name: &str,
        bytes: &[u8],
        mode: u32,
    ) -> Result<bool, StoreError> {
        let temp = self.own_temporary_name(name.as_ref());
        self.write_by(&temp, name.as_ref(), bytes, mode)
    }

    fn write_by(
        &self,
        temp: &OsStr,
        name: &OsStr,
        bytes: &[u8],
        mode: u32,
    ) -> Result<bool, StoreError> {
        let name = single(name)?;
        if let Some(metadata) = self.metadata(name)? {
            if let Some(obstacle) = self.obstacle_of(name, &metadata) {
                return Err(obstacle);
            }
            if metadata.mode == mode
                && metadata.size == bytes.len() as u64
                && self
                    .read(name, metadata.size)?
                    .is_some_and(|found| found.bytes.as_slice() == bytes)
            {
                return Ok(false);
            }
        }
        self.replace_by(temp, name, bytes, mode, true)?;
        Ok(true)
    }

    /// Creates a file (0600) that does not exist yet. On success the complete file and its name are on the disk; otherwise
    /// the file does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`] if `name` exists already, and errors of the system.
    pub fn write_new(&self, name: impl AsRef<OsStr>, bytes: &[u8]) -> Result<(), StoreError> {
        let name = single(name.as_ref())?;
        let temp = self.own_temporary_name(name);
        let written = (|| {
            let file = self.create(&temp, bytes)?;
            fsync(&file).map_err(|errno| self.error("write", &temp, errno))?;
            if self.rename_new(&temp, name)? {
                Ok(())
            } else {
                Err(StoreError::obstacle(
                    self.path.join(name),
                    PathObstacle::Differs,
                ))
            }
        })();
        if written.is_err() {
            let _ = self.unlink(&temp);
        }
        written?;
        self.sync()
    }

    /// Removes a file; returns false if it does not exist.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> Result<bool, StoreError> {
        let name = single(name.as_ref())?;
        self.unlink(name)
    }

    // ---- for the store only ----

    /// Returns true if something is mounted over `name`: a bind mount of a single file, even from the same file system.
    ///
    /// rename(2) and unlink(2) fail there with EBUSY. The device number does not show such a mount; openat2(2) with
    /// RESOLVE_NO_XDEV does.
    pub(crate) fn is_mount_point(&self, name: &OsStr) -> Result<bool, StoreError> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_XDEV);
        match openat2(&self.fd, single(name)?, how) {
            Ok(_) | Err(Errno::ENOENT) => Ok(false),
            Err(Errno::EXDEV) => Ok(true),
            Err(errno) => Err(self.error("look at", name, errno)),
        }
    }

    /// Returns the target of a symbolic link; `None` for anything else.
    pub(super) fn read_link(&self, name: &OsStr) -> Result<Option<(Metadata, String)>, StoreError> {
        let name = single(name)?;
        let Some(metadata) = self.metadata(name)? else {
            return Ok(None);
        };
        if metadata.kind != FileKind::Symlink {
            return Ok(None);
        }
        let target = readlinkat(&self.fd, name).map_err(|errno| self.error("read", name, errno))?;
        Ok(Some((metadata, target.to_string_lossy().into_owned())))
    }

    /// Creates a symbolic link. An existing one of that temporary name is replaced.
    pub(super) fn create_link(&self, name: &OsStr, target: &str) -> Result<(), StoreError> {
        self.unlink(name)?;
        symlinkat(target, &self.fd, name).map_err(|errno| self.error("create", name, errno))
    }

    /// Returns every name except `.` and `..`, sorted.
    pub(super) fn names(&self) -> Result<Vec<OsString>, StoreError> {
        let mut names = self.scan(|_| true, usize::MAX)?;
        names.sort();
        Ok(names)
    }

    /// Returns the first `limit` names that `accepts` accepts, without `.` and `..`.
    fn scan(
        &self,
        accepts: impl Fn(&OsStr) -> bool,
        limit: usize,
    ) -> Result<Vec<OsString>, StoreError> {
        let scan = || -> Result<Vec<OsString>, Errno> {
            let mut dir = nix::dir::Dir::openat(
                &self.fd,
                ".",
                OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
                Mode::empty(),
            )?;
            let mut names = Vec::new();
            for entry in dir.iter() {
                use std::os::unix::ffi::OsStrExt;
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." || !accepts(name) {
                    continue;
                }
                if names.len() == limit {
                    break;
                }
                names.push(name.to_owned());
            }
            Ok(names)
        };
        scan().map_err(|errno| StoreError::io("list", &self.path, errno))
    }

    /// Writes a file and renames it; with `sync`, file and name are on the disk when this returns.
    pub(super) fn replace(
        &self,
        name: &OsStr,
        bytes: &[u8],
        mode: u32,
        sync: bool,
    ) -> Result<(), StoreError> {
        self.replace_by(&temporary_name(name), name, bytes, mode, sync)
    }

    fn replace_by(
        &self,
        temp: &OsStr,
        name: &OsStr,
        bytes: &[u8],
        mode: u32,
        sync: bool,
    ) -> Result<(), StoreError> {
        let result = (|| {
            let file = self.create(temp, bytes)?;
            fchmod(&file, Mode::from_bits_truncate(mode))
                .map_err(|e| self.error("set the mode of", temp, e))?;
            if sync {
                fsync(&file).map_err(|e| self.error("write", temp, e))?;
            }
            self.rename(temp, name)
        })();
        if result.is_err() {
            let _ = self.unlink(temp);
        }
        result?;
        if sync { self.sync() } else { Ok(()) }
    }

    /// Creates a file of mode 0600 and writes it. An existing file of that temporary name is replaced.
    pub(super) fn create(&self, name: &OsStr, bytes: &[u8]) -> Result<File, StoreError> {
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let fd = match openat(&self.fd, name, flags, mode) {
            Err(Errno::EEXIST) if is_temporary_name(name) => {
                self.unlink(name)?;
                openat(&self.fd, name, flags, mode)
            }
            other => other,
        }
        .map_err(|errno| self.error("create", name, errno))?;
        let mut file = File::from(fd);
        file.write_all(bytes).map_err(|source| {
            let _ = self.unlink(name);
            self.error("write", name, errno_of(&source))
        })?;
        Ok(file)
    }

    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> Result<(), StoreError> {
        renameat(&self.fd, from, &self.fd, to).map_err(|errno| self.error("replace", to, errno))
    }

    pub(super) fn rename_into(
        &self,
        from: &OsStr,
        dir: &Dir,
        to: &OsStr,
    ) -> Result<(), StoreError> {
        renameat(&self.fd, from, &dir.fd, to).map_err(|errno| self.error("move", from, errno))
    }

    /// Gives a file a second name, so its contents survive the first.
    pub(super) fn link(&self, from: &OsStr, to: &OsStr) -> Result<(), StoreError> {
        linkat(&self.fd, from, to).map_err(|errno| self.error("keep a copy as", to, errno))
    }

    pub(super) fn unlink(&self, name: &OsStr) -> Result<bool, StoreError> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.error("remove", name, errno)),
        }
    }

    /// Returns the temporary name of a target of this process. Removes the temporary files of the same target that ended
    /// processes left behind: recovery does not know every directory.
    fn own_temporary_name(&self, name: &OsStr) -> OsString {
        let is_of_target = |temp: &&OsString| {
            process_in(temp).is_some_and(|process| **temp == temporary_name_of(name, process))
        };
        let names = self.names().unwrap_or_default();
        for temp in names.iter().filter(is_of_target) {
            if !is_of_running_process(temp) {
                let _ = self.unlink(temp);
            }
        }
        temporary_name_of(name, std::process::id())
    }

    /// Renames a file unless the new name exists; returns false if it does.
    fn rename_new(&self, from: &OsStr, to: &OsStr) -> Result<bool, StoreError> {
        let rename = || {
            renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE).map_err(errno_from)
        };
        match uninterrupted(rename) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            // File systems without RENAME_NOREPLACE, such as NFS.
            Err(Errno::EINVAL) if self.metadata(to)?.is_none() => {
                self.rename(from, to).map(|()| true)
            }
            Err(errno) => Err(self.error("create", to, errno)),
        }
    }

    /// Opens a directory; a missing one is created with exactly this mode. Returns true if it was created.
    pub(super) fn make_dir(&self, name: &OsStr, mode: u32) -> Result<(Dir, bool), StoreError> {
        let made = match self.open_dir(name)? {
            Some(dir) => return Ok((dir, false)),
            None if mode == 0o700 => match mkdirat(&self.fd, name, Mode::S_IRWXU) {
                Ok(()) => true,
                Err(Errno::EEXIST) => false,
                Err(errno) => return Err(self.error("create", name, errno)),
            },
            None => self.make_dir_with_mode(name, mode)?,
        };
        match self.open_dir(name)? {
            Some(dir) => Ok((dir, made)),
            None => Err(self.error("open", name, Errno::ENOENT)),
        }
    }

    /// Creates a directory that has its name only when it has its mode: later runs leave the mode of an existing one
    /// unchanged. Returns false if another process created it.
    fn make_dir_with_mode(&self, name: &OsStr, mode: u32) -> Result<bool, StoreError> {
        let temp = &temporary_name(name);
        for _ in 0..MAX_CREATIONS {
            match mkdirat(&self.fd, temp.as_os_str(), Mode::S_IRWXU) {
                Ok(()) => {}
                // From an interrupted run, or from a process that creates it at the same time, which begins again.
                Err(Errno::EEXIST) => match self.remove_empty_dir(temp) {
                    Err(error) if !is_absence(&error) => return Err(error),
                    _ => continue,
                },
                Err(errno) => return Err(self.error("create", name, errno)),
            }
            let made = self.finish_dir(temp, name, mode);
            // Before a file is created in it: the directory under the temporary name is empty after a power cut, too.
            if let Ok(true) = made {
                self.sync()?;
                return made;
            }
            let _ = self.remove_empty_dir(temp);
            match made {
                Err(error) if is_absence(&error) && self.metadata(name)?.is_none() => {}
                Err(error) if is_absence(&error) => return Ok(false),
                made => return made,
            }
        }
        Err(self.error("create", name, Errno::EBUSY))
    }

    /// Sets the mode of a new directory and renames it.
    fn finish_dir(&self, temp: &OsStr, name: &OsStr, mode: u32) -> Result<bool, StoreError> {
        let dir = self.open_dir(temp)?;
        let dir = dir.ok_or_else(|| self.error("open", temp, Errno::ENOENT))?;
        dir.set_mode(mode)?;
        dir.sync()?;
        self.rename_new(temp, name)
    }

    pub(super) fn open_dir(&self, name: &OsStr) -> Result<Option<Dir>, StoreError> {
        match openat(&self.fd, name, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty()) {
            Ok(fd) => Ok(Some(Dir::new(fd, self.path.join(name), self.root()))),
            Err(Errno::ENOENT) => Ok(None),
            Err(Errno::ENOTDIR | Errno::ELOOP) => Err(StoreError::obstacle(
                self.path.join(name),
                PathObstacle::NotADirectory,
            )),
            Err(errno) => Err(self.error("open", name, errno)),
        }
    }

    /// Removes a directory of nodepki with its files; returns false if it does not exist.
    pub(super) fn remove_dir(&self, name: &OsStr) -> Result<bool, StoreError> {
        let Some(dir) = self.open_dir(name)? else {
            return Ok(false);
        };
        for file in dir.names()? {
            dir.unlink(&file)?;
        }
        self.remove_empty_dir(name)?;
        Ok(true)
    }

    pub(super) fn remove_empty_dir(&self, name: &OsStr) -> Result<(), StoreError> {
        unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir)
            .map_err(|errno| self.error("remove", name, errno))
    }

    pub(super) fn sync(&self) -> Result<(), StoreError> {
        fsync(&self.fd).map_err(|errno| StoreError::io("write", &self.path, errno))
    }

    pub(super) fn own_metadata(&self) -> Result<Metadata, StoreError> {
        stat_open(&self.fd).map_err(|errno| StoreError::io("look at", &self.path, errno))
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<(), StoreError> {
        fchmod(&self.fd, Mode::from_bits_truncate(mode))
            .map_err(|e| StoreError::io("set the mode of", &self.path, e))
    }

    /// Returns the error for `name` if it cannot be read or replaced as a file.
    fn obstacle(&self, name: &OsStr) -> Result<Option<StoreError>, StoreError> {
        Ok(self
            .metadata(name)?
            .and_then(|metadata| self.obstacle_of(name, &metadata)))
    }

    pub(super) fn obstacle_of(&self, name: &OsStr, metadata: &Metadata) -> Option<StoreError> {
        let why = match metadata.kind {
            FileKind::File => return None,
            FileKind::Symlink => PathObstacle::Symlink(
                readlinkat(&self.fd, name)
                    .map(|target| self.shown_target(target.into()))
                    .unwrap_or_else(|_| PathBuf::from("?")),
            ),
            other => obstacle_of_kind(other)?,
        };
        Some(StoreError::obstacle(self.path.join(name), why))
    }

    pub(super) fn error(&self, action: &'static str, name: &OsStr, errno: Errno) -> StoreError {
        // A message names the target, not its temporary name.
        let target = |name| {
            let name = str::strip_prefix(name, TEMPORARY_PREFIX)?;
            let name = str::strip_suffix(name, TEMPORARY_SUFFIX)?;
            name.split(TEMPORARY_SUFFIX).next()
        };
        let name = match name.to_str().and_then(target) {
            Some(target) => OsStr::new(target),
            None => name,
        };
        StoreError::io(action, self.path.join(name), errno)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opening neither waits for the writer of a pipe nor takes over a terminal.
pub(super) const READ: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_NOCTTY)
    .union(OFlag::O_CLOEXEC);
pub(super) const DIRECTORY: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);

/// Returns true for the error about a file that does not exist.
fn is_absence(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Io {
            source: Errno::ENOENT,
            ..
        }
    )
}

/// Returns the temporary name of a target.
pub(super) fn temporary_name(name: &OsStr) -> OsString {
    let mut temp = OsString::from(TEMPORARY_PREFIX);
    temp.push(name);
    temp.push(TEMPORARY_SUFFIX);
    temp
}

/// Returns the temporary name of a target of a process, as `.nodepki-new.NAME~PROCESS~`.
fn temporary_name_of(name: &OsStr, process: impl fmt::Display) -> OsString {
    let mut temp = temporary_name(name);
    temp.push(format!("{process}{TEMPORARY_SUFFIX}"));
    temp
}

/// Returns the process in a temporary name.
fn process_in(temp: &OsStr) -> Option<i32> {
    let name = temp.to_str()?.strip_suffix(TEMPORARY_SUFFIX)?;
    let process = name.rsplit_once(TEMPORARY_SUFFIX)?.1.parse().ok()?;
    (process > 0).then_some(process)
}

/// Returns whether a temporary name is that of a process that runs.
pub(super) fn is_of_running_process(name: &OsStr) -> bool {
    let is_running = |process| kill(Pid::from_raw(process), None) != Err(Errno::ESRCH);
    process_in(name).is_some_and(is_running)
}

pub(super) fn is_temporary_name(name: &OsStr) -> bool {
    name.as_encoded_bytes()
        .starts_with(TEMPORARY_PREFIX.as_bytes())
}

/// Reads an open file, if it is a regular file within the limit.
pub(super) fn read_open(fd: OwnedFd, path: &Path, limit: u64) -> Result<FileContent, StoreError> {
    let metadata = stat_open(&fd).map_err(|errno| StoreError::io("look at", path, errno))?;
    if let Some(why) = obstacle_of_kind(metadata.kind) {
        return Err(StoreError::obstacle(path, why));
    }
    let too_large = |size| StoreError::obstacle(path, PathObstacle::TooLarge { size, limit });
    if metadata.size > limit {
        return Err(too_large(metadata.size));
    }
    // Capacity for all bytes and one more: a growing buffer would leave copies of a key in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(
        usize::try_from(metadata.size).unwrap_or(0) + 1,
    ));
    File::from(fd)
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| StoreError::io("read", path, errno_of(&source)))?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(FileContent { bytes, metadata })
}

/// Refuses a name that is not exactly one component, such as `..` or `a/b`.
pub(super) fn single(name: &OsStr) -> Result<&OsStr, StoreError> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(StoreError::bad_path(name, "the name of one file")),
    }
}
