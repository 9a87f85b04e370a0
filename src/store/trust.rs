//! Verifies that no other user can redirect a path, or replace the file at its end.
//!
//! [`NodeRoot::dir`] and [`NodeRoot::read`] follow a path to any location inside the root. The functions here open it one
//! component at a time, from the root down, and verify every directory on the way:
//!
//! - It belongs to root or to the running user.
//! - Group and others cannot write to it, or it is sticky: in a sticky directory such as `/tmp` only the owner of an
//!   entry, the owner of the directory and root can rename or remove the entry (unlink(2), EPERM).
//! - A symbolic link on the way belongs to root or to the running user. Links are resolved here and not by the kernel,
//!   so that the directories on the way to their targets are verified too.
//!
//! A run without root privileges accepts directories that its own group can write to: on systems where each user has a
//! private group, new directories have such a mode. Below `--root` the numeric ids in the image decide.
//!
//! A path that fails is [`StoreError::Untrusted`], which contains owner, mode and the commands that correct them.
//!
//! Private keys have a second, weaker rule, [`Exposure`], since a running node must be able to renew: on some
//! distributions service accounts own directories of Kubernetes.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{getegid, geteuid};

use super::dir::{DIRECTORY, Dir, FileContent, FileKind, Metadata, single};
use super::error::{PathObstacle, StoreError};
use super::{NodeRoot, READ_LIMIT};

/// Maximum number of symbolic links in a path, as in path_resolution(7); a path with more counts as a loop.
const MAX_LINKS: usize = 40;
/// Smallest user id of a person; service accounts have smaller ones (`SYS_UID_MAX` in login.defs(5)).
const FIRST_PERSONAL_UID: u32 = 1000;
/// Write permission of the group and of others.
const SHARED_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// Open flags for a directory on the way; needs no read permission.
const TRAVERSE: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Which users other than root and the running one can replace the files of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exposure {
    /// Service accounts or the members of a group.
    Group,
    /// A person who is not an administrator, or every user.
    Anyone,
}

/// A directory on a path that other users can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// Which users.
    pub exposure: Exposure,
    /// A message with owner, mode and the commands that correct them.
    pub message: String,
}

/// The rule that a directory must satisfy.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryTrust<'a> {
    /// Users besides root and the running one that may own the directory.
    pub owners: &'a [u32],
    /// Whether other users may create entries in the directory if it is sticky.
    pub sticky: bool,
}

impl DirectoryTrust<'_> {
    /// Owned by root or the running user; sticky directories are accepted.
    pub const SYSTEM: DirectoryTrust<'static> = DirectoryTrust {
        owners: &[],
        sticky: true,
    };

    fn accepts(&self, found: &Metadata) -> bool {
        let owner = is_ours(found.uid) || self.owners.contains(&found.uid);
        owner && (!is_shared(found) || (self.sticky && found.mode & STICKY != 0))
    }
}

/// The end of a followed path.
struct PathEnd {
    /// The last existing directory, opened with `O_PATH`.
    dir: Dir,
    /// The rest of the path: empty for a directory, one name for a file, more for a missing path.
    rest: Vec<OsString>,
    /// Metadata of the first name of the rest; `None` if it does not exist.
    found: Option<Metadata>,
}

impl NodeRoot {
    /// Opens a directory that no other user can replace or change; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Untrusted`] for the first directory or link that another user controls, [`StoreError::Unsafe`] for anything
    /// but a directory, and errors of the system.
    pub fn trusted_dir(&self, path: impl AsRef<Path>) -> Result<Option<Dir>, StoreError> {
        let reached = self.follow(path.as_ref(), &mut require_trust)?;
        match reached.found {
            None if reached.rest.is_empty() => reached.dir.reopened().map(Some),
            None => Ok(None),
            Some(_) => Err(not_a_directory(&reached)),
        }
    }

    /// As [`NodeRoot::trusted_dir`]; missing directories are created with exactly `mode`, their parents with 0755.
    pub(crate) fn create_trusted_dir(
        &self,
        path: impl AsRef<Path>,
        mode: u32,
    ) -> Result<Dir, StoreError> {
        let reached = self.follow(path.as_ref(), &mut require_trust)?;
        if reached.found.is_some() {
            return Err(not_a_directory(&reached));
        }
        let mut dir = reached.dir.reopened()?;
        let last = reached.rest.len().saturating_sub(1);
        for (index, name) in reached.rest.iter().enumerate() {
            let mode = if index == last { mode } else { 0o755 };
            dir = dir.make_trusted_dir(name, mode, DirectoryTrust::SYSTEM)?;
        }
        Ok(dir)
    }

    /// Reads a regular file of at most 1 MiB that no other user can replace or write to; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Untrusted`] for the first directory, link or file that another user controls, [`StoreError::Unsafe`] for
    /// anything but a regular file, and errors of the system.
    pub(crate) fn read_trusted(
        &self,
        path: impl AsRef<Path>,
    ) -> Result<Option<FileContent>, StoreError> {
        let path = path.as_ref();
        let reached = self.follow(path, &mut require_trust)?;
        let name = match (reached.rest.as_slice(), &reached.found) {
            ([], _) => {
                return Err(StoreError::obstacle(
                    self.on_this_machine(path),
                    PathObstacle::Directory,
                ));
            }
            ([name], Some(_)) => name,
            (_, None) => return Ok(None),
            (_, Some(_)) => return Err(not_a_directory(&reached)),
        };
        reached.dir.read_trusted(name)
    }

    /// Returns the directories and links of a path, including the last directory, that other users can change. Missing
    /// parts are ignored.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn exposed(&self, path: impl AsRef<Path>) -> Result<Vec<Exposed>, StoreError> {
        let exposed = self.exposures(path.as_ref())?.into_iter();
        let exposed = exposed.map(|(exposure, error)| Exposed {
            exposure,
            message: error.to_string(),
        });
        Ok(exposed.collect())
    }

    /// Refuses a directory in which [`Exposure::Anyone`] could have created a file or can replace one. Returns the messages
    /// about service accounts and groups that can.
    ///
    /// # Errors
    /// [`StoreError::Untrusted`], and errors of the system.
    pub(super) fn require_guarded(&self, path: &Path) -> Result<Vec<String>, StoreError> {
        let mut notes = Vec::new();
        for (exposure, error) in self.exposures(path)? {
            match exposure {
                Exposure::Anyone => return Err(error),
                Exposure::Group => notes.push(error.to_string()),
            }
        }
        Ok(notes)
    }

    fn exposures(&self, path: &Path) -> Result<Vec<(Exposure, StoreError)>, StoreError> {
        let mut exposures = Vec::new();
        self.follow(path, &mut |path, found| {
            let exposure = exposure(found);
            exposures.extend(exposure.map(|exposure| (exposure, untrusted(path, found, &[]))));
            Ok(())
        })?;
        Ok(exposures)
    }

    /// Follows a path as far as it exists and calls `visit` with every directory and link on the way.
    fn follow(
        &self,
        path: &Path,
        visit: &mut dyn FnMut(&Path, &Metadata) -> Result<(), StoreError>,
    ) -> Result<PathEnd, StoreError> {
        self.require_own(path)?;
        let mut passed = vec![self.top(TRAVERSE)?];
        let mut ahead = names_reversed(path);
        let mut links = 0;
        for dir in &passed {
            visit(dir.path(), &dir.own_metadata()?)?;
        }
        while let Some(name) = ahead.pop() {
            let Some(dir) = passed.last() else { break };
            match name.as_encoded_bytes() {
                b"/" => passed.truncate(1),
                b".." if passed.len() > 1 => drop(passed.pop()),
                // Above the root is the root itself, as for the kernel.
                b"." | b".." => {}
                _ => {
                    let found = dir.metadata(&name)?;
                    match found.as_ref().map(|found| found.kind) {
                        Some(FileKind::Directory) => {
                            let next = dir.traverse(&name)?;
                            self.verify_mount(&next)?;
                            visit(next.path(), &next.own_metadata()?)?;
                            passed.push(next);
                        }
                        Some(FileKind::Symlink) => {
                            let here = dir.path().join(&name);
                            links += 1;
                            if links > MAX_LINKS {
                                return Err(StoreError::obstacle(here, PathObstacle::Loop));
                            }
                            let Some((link, target)) = dir.read_link(&name)? else {
                                // The link was replaced between the two calls.
                                return Err(dir.error("follow", &name, Errno::EAGAIN));
                            };
                            visit(&here, &link)?;
                            ahead.extend(names_reversed(Path::new(&target)));
                        }
                        _ => {
                            ahead.push(name);
                            ahead.reverse();
                            return Ok(PathEnd {
                                dir: last(passed, path)?,
                                rest: ahead,
                                found,
                            });
                        }
                    }
                }
            }
        }
        Ok(PathEnd {
            dir: last(passed, path)?,
            rest: Vec::new(),
            found: None,
        })
    }
}

impl Dir {
    /// Opens a directory in this one; `None` if it does not exist. Symbolic links are not followed.
    ///
    /// # Errors
    /// [`StoreError::Untrusted`] if `trust` does not accept it, [`StoreError::Unsafe`] for anything but a directory, and errors of
    /// the system.
    pub fn trusted_dir(
        &self,
        name: impl AsRef<OsStr>,
        trust: DirectoryTrust<'_>,
    ) -> Result<Option<Dir>, StoreError> {
        let Some(dir) = self.open_dir(single(name.as_ref())?)? else {
            return Ok(None);
        };
        dir.verify(trust)?;
        Ok(Some(dir))
    }

    /// As [`Dir::trusted_dir`]; a missing directory is created with exactly `mode`.
    pub(crate) fn make_trusted_dir(
        &self,
        name: impl AsRef<OsStr>,
        mode: u32,
        trust: DirectoryTrust<'_>,
    ) -> Result<Dir, StoreError> {
        let (dir, made) = self.make_dir(single(name.as_ref())?, mode)?;
        dir.verify(trust)?;
        if made {
            self.sync()?;
        }
        Ok(dir)
    }

    /// Reads a regular file of at most 1 MiB that only root or the running user can write to; `None` if it does not
    /// exist. Symbolic links are not followed.
    ///
    /// # Errors
    /// [`StoreError::Untrusted`] for a file that another user controls, [`StoreError::Unsafe`] for anything but a regular file,
    /// and errors of the system.
    pub(crate) fn read_trusted(
        &self,
        name: impl AsRef<OsStr>,
    ) -> Result<Option<FileContent>, StoreError> {
        let name = name.as_ref();
        let content = self.read(name, READ_LIMIT)?;
        if let Some(content) = &content {
            content.metadata.require_trust(&self.path().join(name))?;
        }
        Ok(content)
    }

    fn verify(&self, trust: DirectoryTrust<'_>) -> Result<(), StoreError> {
        let found = self.own_metadata()?;
        if trust.accepts(&found) {
            Ok(())
        } else {
            Err(untrusted(self.path(), &found, trust.owners))
        }
    }

    /// Opens a directory in this one, in order to continue from there.
    fn traverse(&self, name: &OsStr) -> Result<Dir, StoreError> {
        openat(self.as_fd(), name, TRAVERSE, Mode::empty())
            .map(|fd| Dir::new(fd, self.path().join(name), self.root()))
            .map_err(|errno| self.error("open", name, errno))
    }

    /// Opens a directory for reading that was opened with `O_PATH`.
    fn reopened(&self) -> Result<Dir, StoreError> {
        openat(self.as_fd(), ".", DIRECTORY, Mode::empty())
            .map(|fd| Dir::new(fd, self.path().to_owned(), self.root()))
            .map_err(|errno| StoreError::io("open", self.path(), errno))
    }
}

impl Metadata {
    /// Refuses a file that another user owns or can write to. `path` appears in the message.
    pub(crate) fn require_trust(&self, path: &Path) -> Result<(), StoreError> {
        if is_ours(self.uid) && !is_shared(self) {
            Ok(())
        } else {
            Err(untrusted(path, self, &[]))
        }
    }

    /// Refuses a file with a secret that users other than its owner can read or change. `path` appears in the message.
    ///
    /// The rule is that of ssh(1) for identity files (`sshkey_perm_ok`): a file of the running user has no permissions
    /// for group and others. In a file of another user the group may read, since the account of a service that
    /// provides a secret shares it with a group (Vault Agent's file sink has mode 0640); others may not.
    pub(crate) fn require_private(&self, path: &Path) -> Result<(), StoreError> {
        let allowed = if is_ours(self.uid) { 0o700 } else { 0o740 };
        match self.mode & 0o777 & !allowed {
            0 => Ok(()),
            _ => Err(StoreError::NotPrivate {
                path: path.to_owned(),
                mode: self.mode,
            }),
        }
    }

    /// Refuses a file that every user can write to. `path` appears in the message.
    pub(crate) fn require_limited_writers(&self, path: &Path) -> Result<(), StoreError> {
        match self.mode & 0o002 {
            0 => Ok(()),
            _ => Err(untrusted(path, self, &[self.uid])),
        }
    }
}

/// Returns true if users other than root and the running one can create entries in a directory.
pub(super) fn lets_others_create(directory: &Metadata) -> bool {
    !is_ours(directory.uid) || is_shared(directory)
}

/// Returns true if the replacement of a file inherits its owner, group and extended attributes.
///
/// The owner of a file in a directory that only administrators write to was chosen by one of them: kubeadm's
/// RootlessControlPlane gives keys to the account of a component. In another directory any user may have created the
/// file, and would own the new key. An empty file counts as absent: the kubelet creates such files for hostPath volumes.
pub(super) fn keeps_owner(others_create: bool, found: &Metadata) -> bool {
    found.size > 0 && (!others_create || !is_personal(found.uid))
}

fn untrusted(path: &Path, found: &Metadata, owners: &[u32]) -> StoreError {
    let expected = match geteuid().as_raw() {
        0 => "root:root".to_owned(),
        uid => uid.to_string(),
    };
    let (shown, no_follow) = (path.display(), found.kind == FileKind::Symlink);
    let mut commands = Vec::new();
    if !is_ours(found.uid) && !owners.contains(&found.uid) {
        let option = if no_follow { "-h " } else { "" };
        commands.push(format!("chown {option}{expected} {shown}"));
    }
    if is_shared(found) && !no_follow {
        commands.push(format!("chmod go-w {shown}"));
    }
    StoreError::Untrusted {
        path: path.to_owned(),
        owner: found.uid,
        group: found.gid,
        mode: found.mode,
        fix: commands.join("; "),
    }
}

fn require_trust(path: &Path, found: &Metadata) -> Result<(), StoreError> {
    let accepted = match found.kind {
        // A link has no mode, and can only be replaced, not changed.
        FileKind::Symlink => is_ours(found.uid),
        _ => DirectoryTrust::SYSTEM.accepts(found),
    };
    if accepted {
        Ok(())
    } else {
        Err(untrusted(path, found, &[]))
    }
}

fn exposure(found: &Metadata) -> Option<Exposure> {
    let owned = match found.uid {
        uid if is_ours(uid) => None,
        uid if is_personal(uid) => Some(Exposure::Anyone),
        _ => Some(Exposure::Group),
    };
    let unlocked = found.kind != FileKind::Symlink && found.mode & STICKY == 0;
    let written = match found.mode & SHARED_WRITE {
        _ if !unlocked || !is_shared(found) => None,
        mode if mode & 0o002 != 0 => Some(Exposure::Anyone),
        _ => Some(Exposure::Group),
    };
    owned.max(written)
}

/// Returns true if a user id is that of a person other than the running user, as opposed to root and service accounts.
pub(crate) fn is_personal(uid: u32) -> bool {
    !is_ours(uid) && uid >= FIRST_PERSONAL_UID
}

fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// Returns true if users other than the owner may write to it.
fn is_shared(found: &Metadata) -> bool {
    let own_group = !geteuid().is_root() && found.gid == getegid().as_raw();
    let ignored = if own_group { 0o020 } else { 0 };
    found.mode & SHARED_WRITE & !ignored != 0
}

fn not_a_directory(reached: &PathEnd) -> StoreError {
    let name = reached.rest.first().map(OsString::as_os_str);
    let path = reached.dir.path().join(name.unwrap_or_default());
    StoreError::obstacle(path, PathObstacle::NotADirectory)
}

fn last(mut passed: Vec<Dir>, path: &Path) -> Result<Dir, StoreError> {
    let bad_path = || StoreError::bad_path(path, "an absolute path");
    passed.pop().ok_or_else(bad_path)
}

/// Returns the components of a path, the first one last.
fn names_reversed(path: &Path) -> Vec<OsString> {
    let components = path.components().rev();
    components
        .map(|component| component.as_os_str().to_owned())
        .collect()
}
