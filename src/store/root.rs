//! The root below which every path is taken, and everything that only reads.
//!
//! openat2(2) with RESOLVE_IN_ROOT resolves `..`, absolute links and all as if after chroot(2), so a rescue system
//! never reaches its own `/etc` through a link of the mounted one.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::dir::{self, Content, DIRECTORY, Dir, Metadata, READ, unfinished};
use super::error::{Error, Obstacle};
use super::mounts;
use super::{READ_LIMIT, STATE_DIR};
use crate::kube::names::NodePath;
use crate::process::machine;

/// What [`Root::resolve`] gives for a path on a mount of this machine.
const FOREIGN: Errno = Errno::EXDEV;
/// Symbolic links that are followed in one path, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

/// A directory that is taken for the root of a node.
#[derive(Clone, Debug)]
pub struct Root(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fd: OwnedFd,
    path: PathBuf,
    /// See [`Root::machine_fault`].
    machine_fault: Mutex<Option<String>>,
}

impl Root {
    /// Opens a directory as the root; `/` is one as well.
    ///
    /// # Errors
    /// [`Error::NoOpenat2`] on an old kernel, and what the system says.
    pub fn open(path: impl AsRef<Path>) -> Result<Root, Error> {
        let path = path.as_ref();
        let fd = nix::fcntl::open(
            path,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .map_err(|errno| match errno {
            Errno::ENOTDIR => Error::obstacle(path, Obstacle::NotADirectory),
            errno => Error::io("open the root", path, errno),
        })?;
        let root = Root(Arc::new(Inner {
            fd,
            path: path.to_owned(),
            machine_fault: Mutex::default(),
        }));
        match root.resolve(Path::new("/"), OFlag::O_PATH | OFlag::O_CLOEXEC) {
            Ok(_) => Ok(root),
            Err(Errno::ENOSYS | Errno::EPERM) => Err(Error::NoOpenat2 {
                path: path.to_owned(),
            }),
            Err(errno) => Err(Error::io("open the root", path, errno)),
        }
    }

    /// A directory of this root as a root of its own; `None` when there is nothing.
    ///
    /// # Errors
    /// [`Error::Unsafe`] for anything but a directory, and what the system says.
    pub fn below(&self, path: impl AsRef<Path>) -> Result<Option<Root>, Error> {
        let path = path.as_ref();
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match self.resolve(path, flags) {
            Ok(fd) => Ok(Some(Root(Arc::new(Inner {
                fd,
                path: self.on_this_machine(path),
                machine_fault: Mutex::default(),
            })))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("open", path, errno)),
        }
    }

    /// The first read that failed because of a fault of this machine (see [`machine`]), in this root or in a clone of it.
    ///
    /// For callers that show a file as unreadable, or take it for absent, and go on: their conclusions may be wrong.
    pub fn machine_fault(&self) -> Option<String> {
        let fault = self.0.machine_fault.lock();
        fault.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets what [`Root::machine_fault`] returns, before everything is read again.
    pub fn forget_machine_fault(&self) {
        let fault = self.0.machine_fault.lock();
        *fault.unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn noted<T>(&self, found: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &found
            && machine::is_fault(error)
        {
            let fault = self.0.machine_fault.lock();
            let mut fault = fault.unwrap_or_else(PoisonError::into_inner);
            fault.get_or_insert_with(|| error.to_string());
        }
        found
    }

    /// The path of the root on this machine.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether this root is `/`, so that the node is this machine.
    pub fn is_this_machine(&self) -> bool {
        self.0.path == Path::new("/")
    }

    /// Returns the path inside this root of an absolute path on this machine that leads through the root directory;
    /// `None` if it does not.
    ///
    /// The links on the way to the root directory are followed, those behind it are left to the root.
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
        let mut left = components(path);
        let mut current = PathBuf::from("/");
        let mut links = 0;
        loop {
            if is_root(&current) {
                let rest = left.iter().rev();
                return Some(rest.fold(PathBuf::from("/"), |path, part| path.join(part)));
            }
            let component = left.pop()?;
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
                    left.extend(components(&target));
                }
                Err(_) => current = next,
            }
        }
    }

    /// The path on this machine of a path on the node, for messages and for the commands in them.
    pub fn on_this_machine(&self, path: impl AsRef<Path>) -> PathBuf {
        self.node_path(path.as_ref()).shown()
    }

    /// The path on the node, displayed as [`Root::on_this_machine`].
    pub fn node_path(&self, path: impl Into<NodePath>) -> NodePath {
        path.into().below(&self.0.path)
    }

    /// Reads a regular file of at most 1 MiB, links followed inside the root; `None` when there is nothing.
    ///
    /// # Errors
    /// [`Error::Unsafe`] for anything but a regular file, and what the system says.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Option<Content>, Error> {
        let path = path.as_ref();
        let here = self.on_this_machine(path);
        // Before it is opened: opening a device has effects (a watchdog starts, a tape rewinds).
        let found = self.resolve(path, OFlag::O_PATH | OFlag::O_CLOEXEC);
        let found = found.and_then(|file| dir::stat_open(&file));
        if let Ok(found) = &found
            && let Some(obstacle) = dir::obstacle_of_kind(found.kind)
        {
            return Err(Error::obstacle(here, obstacle));
        }
        self.noted(match found.and_then(|_| self.resolve(path, READ)) {
            Ok(fd) => dir::read_open(fd, &here, READ_LIMIT).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("read", path, errno)),
        })
    }

    /// Waits until everything on the file system of a file is on the disk, the file and its name included.
    ///
    /// # Errors
    /// What the system says.
    pub fn sync_around(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let failed = |errno| self.error("write", path, errno);
        let file = self.resolve(path, READ).map_err(failed)?;
        rustix::fs::syncfs(file).map_err(|errno| failed(dir::errno_from(errno)))
    }

    /// What stands at a path, a link in the last place not followed; `None` when there is nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Option<Metadata>, Error> {
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

    /// Where the symbolic link at a path leads, as it stands in the link; `None` for nothing and for anything else.
    ///
    /// # Errors
    /// What the system says.
    pub fn link(&self, path: impl AsRef<Path>) -> Result<Option<PathBuf>, Error> {
        let (dir, name) = self.parent(path.as_ref())?;
        let found = dir.map(|dir| dir.read_link(&name)).transpose()?.flatten();
        Ok(found.map(|(_, target)| PathBuf::from(target)))
    }

    /// The names in a directory, sorted; `None` when there is no such directory.
    ///
    /// # Errors
    /// What the system says.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Option<Vec<OsString>>, Error> {
        let names = self.dir(path)?.map(|dir| dir.list()).transpose();
        self.noted(names)
    }

    /// Opens a directory; `None` when there is nothing.
    ///
    /// # Errors
    /// [`Error::Unsafe`] for anything but a directory, and what the system says.
    pub fn dir(&self, path: impl AsRef<Path>) -> Result<Option<Dir>, Error> {
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

    /// Opens a directory, made with exactly `mode` (its missing parents with 0755) when there is none.
    ///
    /// # Errors
    /// [`Error::Unsafe`] where anything but a directory is in the way, and what the system says.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> Result<Dir, Error> {
        let mut made = Vec::new();
        let dir = self.make_dirs(path.as_ref(), mode, &mut made)?;
        for path in made {
            self.sync_parent(&path)?;
        }
        Ok(dir)
    }

    /// Whether files of these sizes could be written now: permission, read-only and immutable places, room, and what
    /// stands at the paths; the state directory is always looked at too. Changes nothing.
    ///
    /// # Errors
    /// Everything that is in the way, not only the first.
    pub fn preflight<'a>(
        &self,
        files: impl IntoIterator<Item = (&'a Path, u64)>,
    ) -> Result<(), Vec<Error>> {
        let mut errors = Vec::new();
        let mut needs: Vec<Need> = Vec::new();
        let mut places: HashMap<PathBuf, Option<usize>> = HashMap::new();
        let mut journal = 0;
        let mut check = |path: &Path, bytes: u64, errors: &mut Vec<Error>| {
            let (parent, name) = match split(path) {
                Ok(split) => split,
                Err(error) => return errors.push(error),
            };
            let need = match places.get(parent) {
                Some(known) => *known,
                None => {
                    let found = self.probe(parent, &mut needs).unwrap_or_else(|error| {
                        errors.push(error);
                        None
                    });
                    places.insert(parent.to_owned(), found);
                    errors.extend(self.require_guarded(parent).err());
                    found
                }
            };
            if let Some(need) = need.and_then(|index| needs.get_mut(index)) {
                need.bytes += bytes.next_multiple_of(need.block);
                need.files += 1;
            }
            match self.replaceable(parent, name) {
                Ok(()) => {}
                Err(error) => errors.push(error),
            }
        };
        for (path, bytes) in files {
            check(path, bytes, &mut errors);
            // The journal holds every file once more, in base64.
            journal += bytes.div_ceil(3) * 4 + 1024;
        }
        check(
            &Path::new(STATE_DIR).join("journal.json"),
            journal,
            &mut errors,
        );
        for need in needs {
            if let Err(error) = need.met() {
                errors.push(error);
            }
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors)
        }
    }

    // ---- for the store only ----

    /// Refuses a path on a mount of this machine, as [`Root::dir`] does; if the path does not exist, the part that does
    /// is examined.
    pub(super) fn require_own(&self, path: &Path) -> Result<(), Error> {
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
    pub(super) fn top(&self, flags: OFlag) -> Result<Dir, Error> {
        openat(&self.0.fd, ".", flags, Mode::empty())
            .map(|fd| Dir::new(fd, self.path().to_owned(), self.node_path("/")))
            .map_err(|errno| Error::io("open", self.path(), errno))
    }

    /// The directory and the name of a file that is to be written.
    pub(super) fn parent(&self, path: &Path) -> Result<(Option<Dir>, OsString), Error> {
        let (parent, name) = split(path)?;
        Ok((self.dir(parent)?, name.to_owned()))
    }

    /// Makes what is missing of a directory's path. What was made is added to `made`, outermost first.
    pub(super) fn make_dirs(
        &self,
        path: &Path,
        mode: u32,
        made: &mut Vec<PathBuf>,
    ) -> Result<Dir, Error> {
        if let Some(dir) = self.dir(path)? {
            return Ok(dir);
        }
        let (parent, name) = split(path)?;
        let parent = self.make_dirs(parent, 0o755, made)?;
        let (dir, new) = match parent.make_dir(name, mode) {
            // openat2 found nothing there, yet there is something: a link that leads nowhere.
            Err(Error::Unsafe { path, .. }) => {
                return Err(Error::obstacle(path, Obstacle::Dangling));
            }
            other => other?,
        };
        if new {
            made.push(path.to_owned());
        }
        Ok(dir)
    }

    /// Takes directories away again that a failed commit made; one that is not empty stays.
    pub(super) fn unmake_dirs(&self, made: &[PathBuf]) {
        for path in made.iter().rev() {
            if let Ok((Some(parent), name)) = self.parent(path) {
                let _ = parent.remove_empty_dir(&name);
            }
        }
    }

    pub(super) fn sync_parent(&self, path: &Path) -> Result<(), Error> {
        match self.parent(path)? {
            (Some(parent), _) => parent.sync(),
            (None, _) => Ok(()),
        }
    }

    /// Opens a path inside the root. A path on a mount of this machine is [`FOREIGN`].
    fn resolve(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        let inside = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        if self.is_this_machine() {
            return self.open_at(path, flags, inside);
        }
        match self.open_at(path, flags, inside | ResolveFlag::RESOLVE_NO_XDEV) {
            Err(Errno::EXDEV) => {}
            other => return other,
        }
        // Looked at before it is opened: opening a device can have effects.
        let looked_at = OFlag::O_PATH | OFlag::O_CLOEXEC | (flags & OFlag::O_NOFOLLOW);
        let file = self.open_at(path, looked_at, inside)?;
        match mounts::foreign(&self.0.fd, &file) {
            Ok(None) => self.open_at(path, flags, inside),
            Ok(Some(_)) => Err(FOREIGN),
            Err(error) => Err(dir::errno_of(&error)),
        }
    }

    fn open_at(&self, path: &Path, flags: OFlag, resolve: ResolveFlag) -> Result<OwnedFd, Errno> {
        let how = OpenHow::new().flags(flags).resolve(resolve);
        // EAGAIN: something was renamed elsewhere while `..` was being resolved (openat2(2)).
        let mut tries = 0;
        loop {
            match openat2(&self.0.fd, path, how) {
                Err(Errno::EAGAIN) if tries < 100 => tries += 1,
                other => return other,
            }
        }
    }

    fn error(&self, action: &'static str, path: &Path, errno: Errno) -> Error {
        let here = self.on_this_machine(path);
        match errno {
            Errno::ELOOP => Error::obstacle(here, Obstacle::Loop),
            FOREIGN => Error::obstacle(here, Obstacle::ThisMachine(self.foreign(path))),
            Errno::ENOTDIR => {
                // Name the component that is to blame, not the whole path.
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
                Error::obstacle(self.on_this_machine(prefix), Obstacle::NotADirectory)
            }
            errno => Error::io(action, here, errno),
        }
    }

    /// Refuses a directory on a mount of this machine that is visible below another root.
    pub(super) fn verify_mount(&self, dir: &Dir) -> Result<(), Error> {
        if self.is_this_machine() {
            return Ok(());
        }
        match mounts::foreign(&self.0.fd, dir) {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(Error::obstacle(dir.path(), Obstacle::ThisMachine(why))),
            Err(error) => Err(Error::io("look at", dir.path(), dir::errno_of(&error))),
        }
    }

    /// Why a path is not part of the root, for messages.
    fn foreign(&self, path: &Path) -> String {
        let inside = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let file = self.open_at(path, OFlag::O_PATH | OFlag::O_CLOEXEC, inside);
        let found = file.map(|file| mounts::foreign(&self.0.fd, file));
        let reason = found.ok().and_then(Result::ok).flatten();
        reason.unwrap_or_else(|| "it is a mount point".to_owned())
    }

    /// Whether the file at this name may be replaced; its directory may be missing.
    fn replaceable(&self, parent: &Path, name: &OsStr) -> Result<(), Error> {
        let Some(dir) = self.dir(parent)? else {
            return Ok(());
        };
        let Some(metadata) = dir.metadata(name)? else {
            return Ok(());
        };
        match dir.obstacle_of(name, &metadata) {
            Some(error) => Err(error),
            None if metadata.immutable => {
                Err(Error::obstacle(dir.path().join(name), Obstacle::Immutable))
            }
            None if dir.is_mount_point(name)? => {
                let path = dir.path().join(name);
                Err(Error::obstacle(&path, Obstacle::MountPoint(path.clone())))
            }
            None => Ok(()),
        }
    }

    /// Finds the nearest directory that exists, makes a nameless file in it, and returns the index of its file system
    /// in `needs`.
    fn probe(&self, path: &Path, needs: &mut Vec<Need>) -> Result<Option<usize>, Error> {
        let mut existing = path;
        let dir = loop {
            match self.dir(existing)? {
                Some(dir) => break dir,
                None => {
                    let (parent, name) = split(existing)?;
                    // A link that leads nowhere is no directory, and none can be made in its place.
                    if let Some(parent) = self.dir(parent)?
                        && parent.metadata(name)?.is_some()
                    {
                        let path = parent.path().join(name);
                        return Err(Error::obstacle(path, Obstacle::Dangling));
                    }
                    existing = parent;
                }
            }
        };
        if dir.own_metadata()?.immutable {
            return Err(Error::obstacle(dir.path(), Obstacle::Immutable));
        }
        let create = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        match openat(
            &dir,
            ".",
            create | OFlag::O_TMPFILE,
            Mode::S_IRUSR | Mode::S_IWUSR,
        ) {
            // File systems without nameless files: NFS, FUSE, old overlayfs.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT) => {
                let name = unfinished(OsStr::new("probe"));
                dir.create(&name, b"")?;
                unlinkat(&dir, name.as_os_str(), UnlinkatFlags::NoRemoveDir)
                    .map_err(|errno| Error::io("remove", dir.path().join(&name), errno))?;
            }
            other => {
                other.map_err(|errno| Error::io("create a file in", dir.path(), errno))?;
            }
        }
        let found = rustix::fs::fstatvfs(&dir).map_err(|errno| {
            Error::io("measure the room in", dir.path(), dir::errno_from(errno))
        })?;
        if let Some(known) = needs
            .iter()
            .position(|need| need.file_system == found.f_fsid && need.file_system != 0)
        {
            return Ok(Some(known));
        }
        needs.push(Need {
            file_system: found.f_fsid,
            path: dir.path().to_owned(),
            block: found.f_frsize.max(512),
            available: found.f_bavail.saturating_mul(found.f_frsize),
            // Some file systems (btrfs) have no fixed number of inodes and say 0.
            inodes: if found.f_files == 0 {
                u64::MAX
            } else {
                found.f_favail
            },
            bytes: 0,
            files: 0,
        });
        Ok(Some(needs.len() - 1))
    }
}

/// What is needed on one file system.
struct Need {
    file_system: u64,
    path: PathBuf,
    block: u64,
    available: u64,
    inodes: u64,
    bytes: u64,
    files: u64,
}

impl Need {
    fn met(self) -> Result<(), Error> {
        // Directory blocks, tickets and the record of issue times come on top.
        let needed = self.bytes + 8 * self.block;
        let files = self.files + 4;
        if self.available >= needed && self.inodes >= files {
            return Ok(());
        }
        Err(Error::TooLittleSpace {
            path: self.path,
            available: self.available,
            inodes: self.inodes,
            needed,
            files,
        })
    }
}

/// The directory and the name of an absolute path.
fn split(path: &Path) -> Result<(&Path, &OsStr), Error> {
    match (path.is_absolute(), path.parent(), path.file_name()) {
        (true, Some(parent), Some(name)) => Ok((parent, name)),
        _ => Err(Error::BadPath {
            path: path.to_owned(),
            what: "the absolute path of a file",
        }),
    }
}
