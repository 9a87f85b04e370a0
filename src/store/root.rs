//! The root directory of a node: resolves paths below it and reads files.
//!
//! openat2(2) with RESOLVE_IN_ROOT resolves `..` and absolute links as if after chroot(2), so a rescue system never
//! reaches its own `/etc` through a link in the mounted system.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::Mode;

use super::READ_LIMIT;
use super::calls::{openat, openat2};
use super::dir::{self, DIRECTORY, Dir, FileContent, Metadata, READ};
use super::error::{PathObstacle, StoreError};
use super::mounts;
use crate::kube::names::NodePath;
use crate::process::machine;

/// Errno of [`NodeRoot::resolve`] for a path on a mount of this machine.
const FOREIGN_MOUNT: Errno = Errno::EXDEV;
/// Maximum number of symbolic links that are followed in one path, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

/// Maximum number of attempts if openat2(2) returns EAGAIN.
const MAX_RESOLVE_ATTEMPTS: u32 = 100;
/// Mode of the parents of a directory that is created.
const PARENT_MODE: u32 = 0o755;

/// The directory that is the root of a node.
#[derive(Clone, Debug)]
pub struct NodeRoot(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fd: OwnedFd,
    path: PathBuf,
    /// See [`NodeRoot::machine_fault`].
    machine_fault: Mutex<Option<String>>,
    /// Entries of the issuance log that could not be written since the last one that could.
    lost_audit_entries: AtomicU64,
}

impl NodeRoot {
    /// Opens a directory as the root; `/` is a root too.
    ///
    /// # Errors
    /// [`StoreError::NoOpenat2`] on an old kernel, and errors of the system.
    pub fn open(path: impl AsRef<Path>) -> Result<NodeRoot, StoreError> {
        let path = path.as_ref();
        let fd = nix::fcntl::open(
            path,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .map_err(|errno| match errno {
            Errno::ENOTDIR => StoreError::obstacle(path, PathObstacle::NotADirectory),
            errno => StoreError::io("open the root", path, errno),
        })?;
        let root = NodeRoot(Arc::new(Inner {
            fd,
            path: path.to_owned(),
            machine_fault: Mutex::default(),
            lost_audit_entries: AtomicU64::new(0),
        }));
        match root.resolve(Path::new("/"), OFlag::O_PATH | OFlag::O_CLOEXEC) {
            Ok(_) => Ok(root),
            Err(Errno::ENOSYS | Errno::EPERM) => Err(StoreError::NoOpenat2 {
                path: path.to_owned(),
            }),
            Err(errno) => Err(StoreError::io("open the root", path, errno)),
        }
    }

    /// Opens a directory of this root as a separate root; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`] for anything but a directory, and errors of the system.
    pub fn subroot(&self, path: impl AsRef<Path>) -> Result<Option<NodeRoot>, StoreError> {
        let path = path.as_ref();
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match self.resolve(path, flags) {
            Ok(fd) => Ok(Some(NodeRoot(Arc::new(Inner {
                fd,
                path: self.on_this_machine(path),
                machine_fault: Mutex::default(),
                lost_audit_entries: AtomicU64::new(0),
            })))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("open", path, errno)),
        }
    }

    /// Returns the first read that failed because of a fault of this machine (see [`machine`]), in this root or in a clone
    /// of it.
    ///
    /// For callers that report a file as unreadable, or treat it as missing, and continue: their conclusions may be wrong.
    pub(crate) fn machine_fault(&self) -> Option<String> {
        let fault = self.0.machine_fault.lock();
        fault.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Clears the value of [`NodeRoot::machine_fault`], before everything is read again.
    pub(crate) fn forget_machine_fault(&self) {
        let fault = self.0.machine_fault.lock();
        *fault.unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn lost_audit_entries(&self) -> &AtomicU64 {
        &self.0.lost_audit_entries
    }

    /// Records a fault of this machine for [`NodeRoot::machine_fault`].
    fn noted<T>(&self, found: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &found
            && machine::is_fault(error)
        {
            let fault = self.0.machine_fault.lock();
            let mut fault = fault.unwrap_or_else(PoisonError::into_inner);
            fault.get_or_insert_with(|| error.to_string());
        }
        found
    }

    /// Returns the path of the root on this machine.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns true if this root is `/`, so the node is this machine.
    pub(crate) fn is_this_machine(&self) -> bool {
        self.0.path == Path::new("/")
    }

    /// Returns the path inside this root of an absolute path on this machine that passes through the root directory;
    /// `None` if it does not.
    ///
    /// Links on the way to the root directory are followed; links below it are resolved later, inside the root.
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        let own = dir::stat_open(&self.0.fd).ok()?;
        let is_root = |path: &Path| {
            let found = std::fs::metadata(path);
            found.is_ok_and(|found| dir::is_same(&own, &found))
        };
        let components = |path: &Path| -> Vec<OsString> {
            let components = path.components().rev();
            components
                .filter(|component| {
                    matches!(component, Component::Normal(_) | Component::ParentDir)
                })
                .map(|component| component.as_os_str().to_owned())
                .collect()
        };
        let mut remaining = components(path);
        let mut current = PathBuf::from("/");
        let mut links = 0;
        loop {
            if is_root(&current) {
                let rest = remaining.iter().rev();
                return Some(rest.fold(PathBuf::from("/"), |path, part| path.join(part)));
            }
            let component = remaining.pop()?;
            if component == ".." {
                current.pop();
                continue;
            }
            let next = current.join(component);
            match std::fs::read_link(&next) {
                Ok(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return None;
                    }
                    if target.is_absolute() {
                        current = PathBuf::from("/");
                    }
                    remaining.extend(components(&target));
                }
                Err(_) => current = next,
            }
        }
    }

    /// Returns the path on this machine of a path on the node, for messages and the commands in them.
    pub fn on_this_machine(&self, path: impl AsRef<Path>) -> PathBuf {
        self.node_path(path.as_ref()).shown()
    }

    /// Returns a path on the node that is displayed as a path on this machine.
    pub fn node_path(&self, path: impl Into<NodePath>) -> NodePath {
        path.into().below(&self.0.path)
    }

    /// Reads a regular file of at most 1 MiB, following links inside the root; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`] for anything but a regular file, and errors of the system.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Option<FileContent>, StoreError> {
        self.read_at_most(path.as_ref(), READ_LIMIT)
    }

    /// As [`NodeRoot::read`], with another limit in bytes.
    pub(super) fn read_at_most(
        &self,
        path: &Path,
        limit: u64,
    ) -> Result<Option<FileContent>, StoreError> {
        let here = self.on_this_machine(path);
        // Verified before it is opened: opening a device has effects (a watchdog starts, a tape rewinds).
        let found = self.resolve(path, OFlag::O_PATH | OFlag::O_CLOEXEC);
        let found = found.and_then(|file| dir::stat_open(&file));
        if let Ok(found) = &found
            && let Some(obstacle) = dir::obstacle_of_kind(found.kind)
        {
            return Err(StoreError::obstacle(here, obstacle));
        }
        self.noted(match found.and_then(|_| self.resolve(path, READ)) {
            Ok(fd) => dir::read_open(fd, &here, limit).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("read", path, errno)),
        })
    }

    /// Waits until all data on the file system of a file is on the disk, including the file and its name.
    pub(crate) fn sync_around(&self, path: impl AsRef<Path>) -> Result<(), StoreError> {
        let path = path.as_ref();
        let failed = |errno| self.error("write", path, errno);
        let file = self.resolve(path, READ).map_err(failed)?;
        rustix::fs::syncfs(file).map_err(|errno| failed(dir::errno_from(errno)))
    }

    /// Returns the metadata of a path, a link in the last component not followed; `None` if the path does not exist.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Option<Metadata>, StoreError> {
        let path = path.as_ref();
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        self.noted(match self.resolve(path, flags) {
            Ok(fd) => dir::stat_open(&fd)
                .map(Some)
                .map_err(|errno| self.error("look at", path, errno)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("look at", path, errno)),
        })
    }

    /// Returns the target of the symbolic link at a path, unresolved; `None` if the path does not exist or is not a link.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn link(&self, path: impl AsRef<Path>) -> Result<Option<PathBuf>, StoreError> {
        let (dir, name) = self.parent(path.as_ref())?;
        let found = dir.map(|dir| dir.read_link(&name)).transpose()?.flatten();
        Ok(found.map(|(_, target)| PathBuf::from(target)))
    }

    /// Returns whether two paths are the same file of a directory, to which links may lead.
    pub fn is_same_entry(&self, one: &Path, other: &Path) -> bool {
        let entry = |path| {
            let (dir, name) = self.parent(path).ok()?;
            Some((dir?.id().ok()?, name))
        };
        one == other || entry(one).is_some_and(|found| entry(other) == Some(found))
    }

    /// Returns the names in a directory, sorted; `None` if the directory does not exist.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Option<Vec<OsString>>, StoreError> {
        let names = self.dir(path)?.map(|dir| dir.list()).transpose();
        self.noted(names)
    }

    /// Opens a directory; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`] for anything but a directory, and errors of the system.
    pub fn dir(&self, path: impl AsRef<Path>) -> Result<Option<Dir>, StoreError> {
        let path = path.as_ref();
        self.noted(match self.resolve(path, DIRECTORY) {
            Ok(fd) => Ok(Some(Dir::new(
                fd,
                self.on_this_machine(path),
                self.node_path("/"),
            ))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("open", path, errno)),
        })
    }

    /// Opens a directory. A missing one is created with exactly `mode`, its missing parents with 0755.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`] if a component is not a directory, and errors of the system.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> Result<Dir, StoreError> {
        let mut made = Vec::new();
        let dir = self.make_dirs(path.as_ref(), mode, &mut made)?;
        for path in made {
            self.sync_parent(&path)?;
        }
        Ok(dir)
    }

    // ---- for the store only ----

    /// Refuses a path on a mount of this machine, as [`NodeRoot::dir`] does. Of a missing path, the existing part is verified.
    pub(super) fn require_own(&self, path: &Path) -> Result<(), StoreError> {
        for part in path.ancestors().filter(|_| !self.is_this_machine()) {
            match self.resolve(part, OFlag::O_PATH | OFlag::O_CLOEXEC) {
                Ok(_) => break,
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(errno) => return Err(self.error("open", part, errno)),
            }
        }
        Ok(())
    }

    /// Opens the root directory itself.
    pub(super) fn top(&self, flags: OFlag) -> Result<Dir, StoreError> {
        openat(&self.0.fd, ".", flags, Mode::empty())
            .map(|fd| Dir::new(fd, self.path().to_owned(), self.node_path("/")))
            .map_err(|errno| StoreError::io("open", self.path(), errno))
    }

    /// Returns the directory and the name of a file to be written.
    pub(super) fn parent(&self, path: &Path) -> Result<(Option<Dir>, OsString), StoreError> {
        let (parent, name) = split(path)?;
        Ok((self.dir(parent)?, name.to_owned()))
    }

    /// Opens a directory. Missing parts of its path are created and added to `made`, the outermost first.
    pub(super) fn make_dirs(
        &self,
        path: &Path,
        mode: u32,
        made: &mut Vec<PathBuf>,
    ) -> Result<Dir, StoreError> {
        if let Some(dir) = self.dir(path)? {
            return Ok(dir);
        }
        let (parent, name) = split(path)?;
        let parent = self.make_dirs(parent, PARENT_MODE, made)?;
        let (dir, new) = match parent.make_dir(name, mode) {
            // The directory does not exist according to openat2(2), yet the name does: a link with a missing target.
            Err(StoreError::Unsafe { path, .. }) => {
                return Err(StoreError::obstacle(path, PathObstacle::Dangling));
            }
            other => other?,
        };
        if new {
            made.push(path.to_owned());
        }
        Ok(dir)
    }

    /// Removes the directories that a failed commit created, except for those that are not empty.
    pub(super) fn unmake_dirs(&self, made: &[PathBuf]) {
        for path in made.iter().rev() {
            if let Ok((Some(parent), name)) = self.parent(path) {
                let _ = parent.remove_empty_dir(&name);
            }
        }
    }

    pub(super) fn sync_parent(&self, path: &Path) -> Result<(), StoreError> {
        match self.parent(path)? {
            (Some(parent), _) => parent.sync(),
            (None, _) => Ok(()),
        }
    }

    /// Opens a path inside the root. A path on a mount of this machine returns [`FOREIGN_MOUNT`].
    fn resolve(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        let inside = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        if self.is_this_machine() {
            return self.open_at(path, flags, inside);
        }
        match self.open_at(path, flags, inside | ResolveFlag::RESOLVE_NO_XDEV) {
            Err(Errno::EXDEV) => {}
            other => return other,
        }
        // Verified before it is opened: opening a device can have effects.
        let path_only = OFlag::O_PATH | OFlag::O_CLOEXEC | (flags & OFlag::O_NOFOLLOW);
        let file = self.open_at(path, path_only, inside)?;
        match mounts::foreign(&self.0.fd, &file) {
            Ok(None) => self.open_at(path, flags, inside),
            Ok(Some(_)) => Err(FOREIGN_MOUNT),
            Err(error) => Err(dir::errno_of(&error)),
        }
    }

    fn open_at(&self, path: &Path, flags: OFlag, resolve: ResolveFlag) -> Result<OwnedFd, Errno> {
        let how = OpenHow::new().flags(flags).resolve(resolve);
        // EAGAIN: a rename took place while `..` was being resolved (openat2(2)).
        let mut attempts = 0;
        loop {
            match openat2(&self.0.fd, path, how) {
                Err(Errno::EAGAIN) if attempts < MAX_RESOLVE_ATTEMPTS => attempts += 1,
                other => return other,
            }
        }
    }

    fn error(&self, action: &'static str, path: &Path, errno: Errno) -> StoreError {
        let here = self.on_this_machine(path);
        match errno {
            Errno::ELOOP => StoreError::obstacle(here, PathObstacle::Loop),
            FOREIGN_MOUNT => {
                StoreError::obstacle(here, PathObstacle::ThisMachine(self.foreign_reason(path)))
            }
            Errno::ENOTDIR => {
                // Report the component that is not a directory, not the whole path.
                let mut prefix = PathBuf::new();
                for component in path.components() {
                    prefix.push(component);
                    if component != Component::RootDir
                        && matches!(
                            self.resolve(&prefix, DIRECTORY | OFlag::O_PATH),
                            Err(Errno::ENOTDIR)
                        )
                    {
                        break;
                    }
                }
                StoreError::obstacle(self.on_this_machine(prefix), PathObstacle::NotADirectory)
            }
            errno => StoreError::io(action, here, errno),
        }
    }

    /// Refuses a directory on a mount of this machine that is visible below another root.
    pub(super) fn verify_mount(&self, dir: &Dir) -> Result<(), StoreError> {
        if self.is_this_machine() {
            return Ok(());
        }
        match mounts::foreign(&self.0.fd, dir) {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(StoreError::obstacle(
                dir.path(),
                PathObstacle::ThisMachine(why),
            )),
            Err(error) => Err(StoreError::io("look at", dir.path(), dir::errno_of(&error))),
        }
    }

    /// Returns the reason why a path is not part of the root, for messages.
    fn foreign_reason(&self, path: &Path) -> String {
        let inside = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let file = self.open_at(path, OFlag::O_PATH | OFlag::O_CLOEXEC, inside);
        let found = file.map(|file| mounts::foreign(&self.0.fd, file));
        let reason = found.ok().and_then(Result::ok).flatten();
        reason.unwrap_or_else(|| "it is a mount point".to_owned())
    }

    /// Refuses a file that cannot be replaced. File and directory may be missing.
    pub(super) fn require_replaceable(
        &self,
        parent: &Path,
        name: &OsStr,
    ) -> Result<(), StoreError> {
        let Some(dir) = self.dir(parent)? else {
            return Ok(());
        };
        let Some(metadata) = dir.metadata(name)? else {
            return Ok(());
        };
        match dir.obstacle_of(name, &metadata) {
            Some(error) => Err(error),
            None if metadata.immutable => Err(StoreError::obstacle(
                dir.path().join(name),
                PathObstacle::Immutable,
            )),
            None if dir.is_mount_point(name)? => {
                let path = dir.path().join(name);
                Err(StoreError::obstacle(
                    &path,
                    PathObstacle::MountPoint(path.clone()),
                ))
            }
            None => Ok(()),
        }
    }

    /// Opens the nearest existing directory of a path.
    pub(super) fn nearest_dir(&self, path: &Path) -> Result<Dir, StoreError> {
        let mut existing = path;
        loop {
            match self.dir(existing)? {
                Some(dir) => return Ok(dir),
                None => {
                    let (parent, name) = split(existing)?;
                    // A link with a missing target is not a directory, and none can be created in its place.
                    if let Some(parent) = self.dir(parent)?
                        && parent.metadata(name)?.is_some()
                    {
                        let path = parent.path().join(name);
                        return Err(StoreError::obstacle(path, PathObstacle::Dangling));
                    }
                    existing = parent;
                }
            }
        }
    }
}

/// Returns the directory and the name of an absolute path.
pub(super) fn split(path: &Path) -> Result<(&Path, &OsStr), StoreError> {
    match (path.is_absolute(), path.parent(), path.file_name()) {
        (true, Some(parent), Some(name)) => Ok((parent, name)),
        _ => Err(StoreError::bad_path(path, "the absolute path of a file")),
    }
}
