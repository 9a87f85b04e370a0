//! Errors of the store, which end a run, and notes, which do not.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;

use crate::kube::names::NodePath;
use crate::process::machine;

/// An error of the store.
///
/// Paths are those of this machine, `--root` included, so a command in a message can be copied unchanged.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No block, inode or quota is left.
    #[error("cannot {action} {path}: {source}; free some space (see `df -h` and `df -i`) and run again", path = path.display())]
    NoSpace {
        /// The failed operation: a verb, possibly with a preposition.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The errno.
        source: Errno,
    },
    /// The file system has less room than the files need.
    #[error("the file system of {path} has room for {room} are needed; free some space (see `df -h` and `df -i`) and run again", path = path.display(), room = room([(*available, *needed, "bytes"), (*inodes, *files, "files")]))]
    TooLittleSpace {
        /// A directory on the file system in question.
        path: PathBuf,
        /// Bytes available without root's reserve.
        available: u64,
        /// Inodes available.
        inodes: u64,
        /// Bytes needed, margin included.
        needed: u64,
        /// Files needed.
        files: u64,
    },
    /// A file system mounted read-only.
    #[error("cannot {action} {path}: the file system is read-only; mount it read-write (`mount -o remount,rw ...`), or add the directory to ReadWritePaths= of the systemd unit that runs nodepki, and run again", path = path.display())]
    ReadOnly {
        /// The failed operation: a verb, possibly with a preposition.
        action: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Permission denied.
    #[error("cannot {action} {path}: {source}; run as root; if nodepki runs as root, examine the security policy (SELinux, AppArmor)", path = path.display())]
    Denied {
        /// The failed operation: a verb, possibly with a preposition.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The errno.
        source: Errno,
    },
    /// The object at a path must not be read or replaced.
    #[error("{path} {why}", path = path.display())]
    Unsafe {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: PathObstacle,
    },
    /// A file or directory that another user can replace or write to.
    #[error("{path}: owned by user {owner} and group {group} with mode {mode:04o}, so that another user can change it ({fix})", path = path.display())]
    Untrusted {
        /// The path.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// Group id.
        group: u32,
        /// Permission bits.
        mode: u32,
        /// The commands that correct owner and mode.
        fix: String,
    },
    /// A file with a secret that users other than its owner can read or change.
    #[error("mode {mode:04o} lets other users read or change the secret (chmod 600 {path})", path = path.display())]
    NotPrivate {
        /// The path.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// Another run holds the lock.
    #[error("another nodepki process is running ({holder}, lock {path}); wait until it ends and run again", path = path.display())]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// The line in the lock file, for example `pid 123: nodepki renew`.
        holder: String,
    },
    /// A path or name of the wrong form.
    #[error("{path:?} cannot be used as {what}")]
    BadPath {
        /// The path as given.
        path: PathBuf,
        /// The expected object.
        what: &'static str,
    },
    /// A slot that exists already.
    #[error("{path} exists already: a request is pending; resume that request or set it aside", path = path.display())]
    SlotTaken {
        /// The directory of the slot.
        path: PathBuf,
    },
    /// A path on the command line that could mean two files.
    #[error("{path} could also mean {below}: a path on the command line is one of this machine (write {below} for the file of the node, or a path relative to the working directory for that of this machine)", path = path.display(), below = below.display())]
    Ambiguous {
        /// The path, on this machine.
        path: PathBuf,
        /// The same path below the root.
        below: PathBuf,
    },
    /// The journal of an interrupted run cannot be read.
    #[error("the journal of an interrupted run is damaged: {path} ({source}); nothing was changed, and the files of that run may be old or new: \
             run `nodepki plan` to see whether each key matches its certificate, then move the journal away and run again", path = path.display())]
    JournalDamaged {
        /// The journal.
        path: PathBuf,
        /// The damage.
        source: Damage,
    },
    /// A state file that nodepki cannot have written for this node.
    #[error("{path} is not a state file that nodepki wrote for this node and its configuration: {why}; nothing was changed \
             (run with the configuration of the interrupted run, or move the file away and run again)", path = path.display())]
    Implausible {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// A state file of a newer nodepki.
    #[error("{path} has format version {version}, but this nodepki reads versions up to {known}; {fix}", path = path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// The version found.
        version: u64,
        /// The newest version that this nodepki reads.
        known: u64,
        /// The required action.
        fix: &'static str,
    },
    /// A state file that cannot be read and that no other file depends on.
    #[error("{path} is damaged ({source}); move it away and run again", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        source: Damage,
    },
    /// The kernel cannot resolve a path inside a root.
    #[error("this kernel or container refuses openat2(2), which is needed to resolve paths inside {path}; use Linux 5.6 or newer", path = path.display())]
    NoOpenat2 {
        /// The root.
        path: PathBuf,
    },
    /// Any other errno.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// The failed operation: a verb, possibly with a preposition.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The errno.
        source: Errno,
    },
    /// A commit after an unfinished one.
    #[error("an earlier commit is not finished ({path}); run the same command again to finish it", path = path.display())]
    RecoverFirst {
        /// The journal.
        path: PathBuf,
    },
    /// A commit that failed before its journal was written.
    #[error("{0}; nothing was changed")]
    NotCommitted(#[source] Box<StoreError>),
    /// A commit that failed after its journal was written.
    #[error("{0}; the new files are safe in the journal: run the same command again to finish")]
    Unfinished(#[source] Box<StoreError>),
}

/// A fault in the content of a state file.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// Not the JSON that this nodepki writes.
    #[error(transparent)]
    Json(Arc<serde_json::Error>),
    /// The journal's contents of this file differ from their digest.
    #[error("the contents for {0} do not fit their digest")]
    WrongDigest(NodePath),
    /// A field with an invalid value.
    #[error("{field}: {source}")]
    Field {
        /// Its name in the file.
        field: &'static str,
        /// Why the value is invalid.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A required field is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
}

/// Returns the units of which there are too few, available and needed: `10 bytes, 20 bytes`.
fn room(units: [(u64, u64, &str); 2]) -> String {
    let lacking: Vec<String> = units
        .into_iter()
        .filter(|(available, needed, _)| available < needed)
        .map(|(available, needed, unit)| format!("{available} {unit}, {needed} {unit}"))
        .collect();
    lacking.join(", and for ")
}

impl StoreError {
    /// Returns the kind of error, from which the exit code follows.
    pub fn class(&self) -> ErrorClass {
        match self {
            StoreError::NoSpace { .. } | StoreError::TooLittleSpace { .. } => ErrorClass::NoSpace,
            StoreError::ReadOnly { .. } => ErrorClass::ReadOnly,
            StoreError::Denied { .. } => ErrorClass::Denied,
            StoreError::Busy { .. } => ErrorClass::Busy,
            StoreError::Unsafe { .. }
            | StoreError::Untrusted { .. }
            | StoreError::NotPrivate { .. }
            | StoreError::SlotTaken { .. }
            | StoreError::JournalDamaged { .. }
            | StoreError::Implausible { .. }
            | StoreError::NewerFormat { .. }
            | StoreError::Damaged { .. } => ErrorClass::Unsafe,
            StoreError::BadPath { .. } => ErrorClass::Path,
            StoreError::Ambiguous { .. } => ErrorClass::Argument,
            StoreError::NoOpenat2 { .. }
            | StoreError::RecoverFirst { .. }
            | StoreError::Io { .. } => ErrorClass::Io,
            StoreError::NotCommitted(inner) | StoreError::Unfinished(inner) => inner.class(),
        }
    }

    /// Returns true if the path is on a mount of this machine that is visible below another root.
    pub(crate) fn is_this_machine(&self) -> bool {
        matches!(
            self,
            StoreError::Unsafe {
                why: PathObstacle::ThisMachine(_),
                ..
            }
        )
    }

    /// Returns true if a file or directory is refused because its owner or mode gives other users access.
    pub(crate) fn is_access_refusal(&self) -> bool {
        matches!(
            self,
            StoreError::Untrusted { .. } | StoreError::NotPrivate { .. }
        )
    }

    pub(super) fn io(action: &'static str, path: impl AsRef<Path>, source: Errno) -> StoreError {
        let path = path.as_ref().to_owned();
        match source {
            Errno::ENOSPC | Errno::EDQUOT => StoreError::NoSpace {
                action,
                path,
                source,
            },
            Errno::EROFS => StoreError::ReadOnly { action, path },
            Errno::EACCES | Errno::EPERM => StoreError::Denied {
                action,
                path,
                source,
            },
            _ => StoreError::Io {
                action,
                path,
                source,
            },
        }
    }

    pub(super) fn bad_path(path: impl Into<PathBuf>, what: &'static str) -> StoreError {
        StoreError::BadPath {
            path: path.into(),
            what,
        }
    }

    pub(super) fn obstacle(path: impl AsRef<Path>, why: PathObstacle) -> StoreError {
        StoreError::Unsafe {
            path: path.as_ref().to_owned(),
            why,
        }
    }
}

/// Returns true if `error`, or a cause below it, refuses a file or directory because of its owner or mode.
pub(crate) fn is_access_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    machine::causes(error)
        .filter_map(|cause| cause.downcast_ref::<StoreError>())
        .any(StoreError::is_access_refusal)
}

/// Returns the path that is not a directory, if `error` or a cause below it is that.
pub(crate) fn not_a_directory<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a Path> {
    machine::causes(error).find_map(|cause| match cause.downcast_ref()? {
        StoreError::Unsafe {
            path,
            why: PathObstacle::NotADirectory,
        } => Some(path.as_path()),
        _ => None,
    })
}

/// Returns true if `error`, or a cause below it, is a missing permission or a read-only file system.
pub(crate) fn is_not_permitted(error: &(dyn std::error::Error + 'static)) -> bool {
    machine::causes(error).any(|cause| {
        let class = cause.downcast_ref::<StoreError>().map(StoreError::class);
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        matches!(class, Some(ErrorClass::ReadOnly | ErrorClass::Denied))
            || matches!(
                kind,
                Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
            )
    })
}

/// The kinds of errors that a caller distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// No space: try again later (75).
    NoSpace,
    /// Another run holds the lock: try again later (75).
    Busy,
    /// Read-only file system: not permitted (77).
    ReadOnly,
    /// Permission denied: not permitted (77).
    Denied,
    /// A file on disk is not safe to use or to replace (65).
    Unsafe,
    /// A path from the configuration or the command line that cannot be used (78).
    Path,
    /// A path of the command line that could mean two files (64).
    Argument,
    /// Input or output failed: a fault of the machine, which may pass (75).
    Io,
}

/// Why a path cannot be used, and how to correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathObstacle {
    /// A symbolic link where a file is to be replaced.
    #[error("is a symbolic link to {}; nodepki replaces files, not the targets of links: put the file itself here and run again", .0.display())]
    Symlink(PathBuf),
    /// A directory in place of a file.
    #[error(
        "is a directory (a container runtime creates one if a hostPath file is missing); remove it with rmdir and run again"
    )]
    Directory,
    /// A named pipe.
    #[error("is a named pipe, not a file; remove it and run again")]
    Fifo,
    /// A socket.
    #[error("is a socket, not a file; remove it and run again")]
    Socket,
    /// A device.
    #[error("is a device node, not a file; remove it and run again")]
    Device,
    /// Not a directory, in place of one.
    #[error("is not a directory; move it away and run again")]
    NotADirectory,
    /// A symbolic link to a missing path, in place of a directory.
    #[error(
        "is a symbolic link whose target does not exist inside the root; create the target directory and run again"
    )]
    Dangling,
    /// A mount of this machine that is visible below another root.
    #[error(
        "belongs to this machine, not to the system below the root ({0}); unmount it there and run again"
    )]
    ThisMachine(String),
    /// Symbolic links that form a loop.
    #[error("leads through too many symbolic links; correct the links and run again")]
    Loop,
    /// The immutable or append-only attribute.
    #[error("is immutable; if that is not intended, run `chattr -i -a` on it and run again")]
    Immutable,
    /// A file larger than any file of its kind.
    #[error("has {size} bytes, more than the limit of {limit}; put the right file in its place")]
    TooLarge {
        /// Bytes in the file.
        size: u64,
        /// Maximum number of bytes.
        limit: u64,
    },
    /// A mount on a single file, which rename(2) and unlink(2) refuse with EBUSY.
    #[error(
        "is a mount point, which cannot be replaced by a file; unmount it (umount {}), or let nodepki write to the file that is mounted there, and run again", .0.display()
    )]
    MountPoint(PathBuf),
    /// A file with other contents, where a file is created only if none exists.
    #[error(
        "exists with other contents and is not overwritten; compare it with the other nodes, then move it away or keep it"
    )]
    Differs,
    /// A file that has changed since its removal was decided.
    #[error(
        "has changed since its removal was decided, and was not removed; find out what changed it and run again"
    )]
    Changed,
    /// A state directory of another user.
    #[error(
        "belongs to user {owner}, not to user {expected}; change the owner with chown and run again"
    )]
    Owner {
        /// User id of the owner.
        owner: u32,
        /// User id of the running user.
        expected: u32,
    },
}

/// Returns the paths in one line.
fn listed(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    if paths.is_empty() {
        "none".to_owned()
    } else {
        paths.join(", ")
    }
}

/// A remark about a run that the store completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreNote {
    /// A private file was world-readable.
    #[error("{path} had mode {from:04o}, now {to:04o}", path = path.display())]
    Tightened {
        /// The file.
        path: PathBuf,
        /// Its mode before.
        from: u32,
        /// Its mode now.
        to: u32,
    },
    /// The replaced or removed file has other hard links, which keep the old contents.
    #[error("{path} had {links} hard links; the other names keep the old contents", path = path.display())]
    HardLinked {
        /// The file.
        path: PathBuf,
        /// Number of names, this one included.
        links: u64,
    },
    /// Service accounts or the members of a group can change a directory that a file is written to.
    #[error("{message}")]
    Exposed {
        /// Names the directory, its owner and mode, and the commands that correct them.
        message: String,
    },
    /// A file of another user in a directory that others can write to was replaced by one of the running user.
    #[error("{path} belonged to user {owner}; the new file does not, since other users can create files in its directory", path = path.display())]
    OwnerReset {
        /// The file.
        path: PathBuf,
        /// User id of the previous owner.
        owner: u32,
    },
    /// A file or directory was moved, not deleted.
    #[error("{path} was set aside as {to}: {why}", path = path.display(), to = to.display())]
    SetAside {
        /// The file before the move.
        path: PathBuf,
        /// The file after the move.
        to: PathBuf,
        /// Why.
        why: String,
    },
    /// An interrupted removal of CA keys is not completed.
    #[error("{} is lost, the backup of a removal of CA keys that was interrupted: {why}; keys that are kept: {} (to remove them, run nodepki migrate to-external with a new --backup)", backup.display(), listed(keys))]
    BackupLost {
        /// The backup.
        backup: PathBuf,
        /// Why it is not the backup any more.
        why: String,
        /// The CA keys that still exist.
        keys: Vec<PathBuf>,
    },
    /// CA keys were removed by a run that was interrupted before it had removed all of them.
    #[error("an interrupted run had already removed {}, after it had written them to {}", listed(keys), backup.display())]
    RemovedBefore {
        /// The keys.
        keys: Vec<PathBuf>,
        /// The backup.
        backup: PathBuf,
    },
    /// An interrupted removal of CA keys was completed.
    #[error("{} contains the removed CA keys: it has not changed since it was verified; its passphrase was not tried again", backup.display())]
    BackupUnchanged {
        /// The backup.
        backup: PathBuf,
    },
    /// A state file that can be created again.
    #[error("{path} is damaged ({why}) and is created again", path = path.display())]
    Rebuilt {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// An old file of nodepki that cannot be removed.
    #[error("{path} is no longer needed and cannot be removed ({why}); it may contain a private key: remove it", path = path.display())]
    Undeleted {
        /// The file.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// Further unknown files in the state directory.
    #[error("{path} contains {more} more files that do not belong to nodepki", path = path.display())]
    MoreUnknownFiles {
        /// The directory.
        path: PathBuf,
        /// Number of files that are not listed.
        more: usize,
    },
    /// A file in the state directory that nodepki did not create.
    #[error("{path} does not belong to nodepki and is not touched", path = path.display())]
    UnknownFile {
        /// The path.
        path: PathBuf,
    },
}
