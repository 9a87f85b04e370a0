//! What the store reports: errors that end a run, and notes that do not.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::process::machine;

/// Why the store could not do what it was asked.
///
/// Paths are those of this machine, `--root` included, so that a command in a message can be typed as it stands.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No block, inode or quota left.
    #[error("cannot {action} {path}: {source}; free some space (see `df -h` and `df -i`) and run again", path = path.display())]
    NoSpace {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's word for it.
        source: Errno,
    },
    /// Less room than the files to be written need.
    #[error("the file system of {path} has room for {available} bytes and {inodes} files, {needed} bytes and {files} files are needed; \
             free some space (see `df -h` and `df -i`) and run again", path = path.display())]
    TooLittleSpace {
        /// A directory on the file system in question.
        path: PathBuf,
        /// Bytes available without the reserve of root.
        available: u64,
        /// Inodes available.
        inodes: u64,
        /// Bytes needed, margin included.
        needed: u64,
        /// Files needed.
        files: u64,
    },
    /// A file system mounted read-only.
    #[error("cannot {action} {path}: the file system is read-only; mount it read-write (`mount -o remount,rw ...`), or name the directory in ReadWritePaths= of the systemd unit that this is run by, and run again", path = path.display())]
    ReadOnly {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {action} {path}: {source}; run as root, and look for a security policy (SELinux, AppArmor) if this is root", path = path.display())]
    Denied {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's word for it.
        source: Errno,
    },
    /// What stands at a path is not what may be read or replaced there.
    #[error("{path} {why}", path = path.display())]
    Unsafe {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: Obstacle,
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
    #[error("mode {mode:04o} lets other users get at the secret in it (chmod 600 {path})", path = path.display())]
    NotPrivate {
        /// The path.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// Another run holds the lock.
    #[error("another run of nodepki is at work ({holder}, lock {path}); wait for it to end and run again", path = path.display())]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// `pid 123: nodepki renew`, as far as the other run has said.
        holder: String,
    },
    /// A path or a name that cannot be one.
    #[error("{path:?} cannot be used as {what}")]
    BadPath {
        /// The path as given.
        path: PathBuf,
        /// What was expected.
        what: &'static str,
    },
    /// A slot that has a key already.
    #[error("{path} exists already: a request is pending for it; resume that one or set it aside", path = path.display())]
    SlotTaken {
        /// The directory of the slot.
        path: PathBuf,
    },
    /// The journal of an interrupted run cannot be read.
    #[error("the journal of an interrupted run is damaged: {path} ({why}); nothing was changed, and the files of that run may be old or new: \
             run `nodepki plan` to see whether each key fits its certificate, then move the journal away and run again", path = path.display())]
    JournalDamaged {
        /// The journal.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A state file that no run of nodepki can have written for this node.
    #[error("{path} is not a state file that nodepki wrote for this node and its configuration: {why}; nothing was changed \
             (run with the configuration of the interrupted run, or move the file away and run again)", path = path.display())]
    Implausible {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A state file of a newer nodepki.
    #[error("{path} has format version {version}, this nodepki knows {known}: run the newer nodepki once, it finishes and removes the file", path = path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// The version found.
        version: u64,
        /// The version known here.
        known: u64,
    },
    /// A state file that cannot be read, of which nothing depends but itself.
    #[error("{path} is damaged ({why}); move it away and run again", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel cannot resolve a path inside a root.
    #[error("this kernel or container refuses openat2(2), without which no path can be kept inside {path}; Linux 5.6 or newer is needed", path = path.display())]
    NoOpenat2 {
        /// The root.
        path: PathBuf,
    },
    /// Anything else the system says.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's word for it.
        source: Errno,
    },
    /// A commit after one that was not finished.
    #[error("an earlier commit is not finished ({path}); run the same command again to finish it", path = path.display())]
    RecoverFirst {
        /// The journal.
        path: PathBuf,
    },
    /// A commit that failed before its journal was written.
    #[error("{0}; nothing was changed")]
    NotCommitted(#[source] Box<Error>),
    /// A commit that failed after its journal was written.
    #[error("{0}; the new files are safe in the journal: run the same command again to finish")]
    Unfinished(#[source] Box<Error>),
}

impl Error {
    /// What a caller can do about it; the exit code follows from this.
    pub fn class(&self) -> Class {
        match self {
            Error::NoSpace { .. } | Error::TooLittleSpace { .. } => Class::NoSpace,
            Error::ReadOnly { .. } => Class::ReadOnly,
            Error::Denied { .. } => Class::Denied,
            Error::Busy { .. } => Class::Busy,
            Error::Unsafe { .. }
            | Error::Untrusted { .. }
            | Error::NotPrivate { .. }
            | Error::SlotTaken { .. }
            | Error::JournalDamaged { .. }
            | Error::Implausible { .. }
            | Error::NewerFormat { .. }
            | Error::Damaged { .. } => Class::Unsafe,
            Error::BadPath { .. } => Class::Path,
            Error::NoOpenat2 { .. } | Error::RecoverFirst { .. } | Error::Io { .. } => Class::Io,
            Error::NotCommitted(inner) | Error::Unfinished(inner) => inner.class(),
        }
    }

    /// Whether the path lies on a mount of this machine that is visible below another root.
    pub fn is_this_machine(&self) -> bool {
        matches!(
            self,
            Error::Unsafe {
                why: Obstacle::ThisMachine(_),
                ..
            }
        )
    }

    /// Whether owner or mode of a file or directory let other users get at it.
    pub fn is_access_refusal(&self) -> bool {
        matches!(self, Error::Untrusted { .. } | Error::NotPrivate { .. })
    }

    pub(super) fn io(action: &'static str, path: impl AsRef<Path>, source: Errno) -> Error {
        let path = path.as_ref().to_owned();
        match source {
            Errno::ENOSPC | Errno::EDQUOT => Error::NoSpace {
                action,
                path,
                source,
            },
            Errno::EROFS => Error::ReadOnly { action, path },
            Errno::EACCES | Errno::EPERM => Error::Denied {
                action,
                path,
                source,
            },
            _ => Error::Io {
                action,
                path,
                source,
            },
        }
    }

    pub(super) fn obstacle(path: impl AsRef<Path>, why: Obstacle) -> Error {
        Error::Unsafe {
            path: path.as_ref().to_owned(),
            why,
        }
    }
}

/// Returns true if `error`, or a cause below it, refuses a file or directory because of its owner or mode.
pub fn is_access_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    machine::causes(error)
        .filter_map(|cause| cause.downcast_ref::<Error>())
        .any(Error::is_access_refusal)
}

/// The kinds of errors between which a caller distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// No room: try again later (75).
    NoSpace,
    /// Another run at work: try again later (75).
    Busy,
    /// Read-only file system: not permitted (77).
    ReadOnly,
    /// Refused by the system: not permitted (77).
    Denied,
    /// What is on disk is not safe to use or to replace (65).
    Unsafe,
    /// A path from the configuration or the command line that cannot be used (78).
    Path,
    /// Input or output failed: a fault of the machine; trying again may help (75).
    Io,
}

/// What can stand in the way at a path, and how to remove it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// A symbolic link where a file is to be replaced.
    #[error("is a symbolic link to {}; nodepki replaces files, not what links point to: put the file itself here and run again", .0.display())]
    Symlink(PathBuf),
    /// A directory where a file belongs.
    #[error(
        "is a directory (a container runtime makes one when a hostPath file is missing); remove it with rmdir and run again"
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
    /// Something else where a directory belongs.
    #[error("is not a directory; move it away and run again")]
    NotADirectory,
    /// A symbolic link that leads nowhere, in the place of a directory.
    #[error(
        "is a symbolic link that leads nowhere inside the root; make its directory and run again"
    )]
    Dangling,
    /// A mount of this machine that is visible below another root.
    #[error(
        "belongs to this machine and not to the system below the root ({0}); unmount it there and run again"
    )]
    ThisMachine(String),
    /// Links that lead in a circle.
    #[error("leads through too many symbolic links; mend the links and run again")]
    Loop,
    /// The immutable or append-only attribute.
    #[error("is immutable; if that is not on purpose, run `chattr -i -a` on it and run again")]
    Immutable,
    /// More than any file of this kind has.
    #[error(
        "has {size} bytes, more than the {limit} that are read; it is not the file that belongs here"
    )]
    TooLarge {
        /// Bytes in the file.
        size: u64,
        /// Bytes that would be read.
        limit: u64,
    },
    /// A mount on a single file, which rename(2) and unlink(2) refuse with EBUSY.
    #[error(
        "is a mount point, which no file can replace; unmount it (umount {}), or let nodepki write to the file that is mounted there, and run again", .0.display()
    )]
    MountPoint(PathBuf),
    /// A file that was to be made only if it was missing.
    #[error(
        "exists and holds something else; it is not overwritten: compare it with the other nodes, then move it away or keep it"
    )]
    Differs,
    /// A file that was to be removed as it was.
    #[error(
        "has other contents than those that were to be removed; it was left alone: see who changed it and run again"
    )]
    Changed,
    /// A state directory of somebody else.
    #[error(
        "belongs to user {owner}, not to user {expected}; give it back with chown and run again"
    )]
    Owner {
        /// Who owns it.
        owner: u32,
        /// Who should.
        expected: u32,
    },
}

/// Something worth telling that did not stop the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Note {
    /// A private file could be read by everybody.
    #[error("{path} had mode {from:04o}, now {to:04o}", path = path.display())]
    Tightened {
        /// The file.
        path: PathBuf,
        /// Its mode before.
        from: u32,
        /// Its mode now.
        to: u32,
    },
    /// The replaced or removed file has other names, which keep the old contents.
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
    /// Something was moved out of the way, not deleted.
    #[error("{path} was set aside as {to}: {why}", path = path.display(), to = to.display())]
    SetAside {
        /// What was moved.
        path: PathBuf,
        /// Where it is now.
        to: PathBuf,
        /// Why.
        why: String,
    },
    /// A state file that can be made again.
    #[error("{path} is damaged ({why}) and is made again", path = path.display())]
    Rebuilt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An old file of ours that cannot be removed.
    #[error("{path} is not needed any more and cannot be removed ({why}); it may hold a private key: remove it", path = path.display())]
    Undeleted {
        /// What was to be removed.
        path: PathBuf,
        /// Why it is still there.
        why: String,
    },
    /// Further files in the state directory that are not listed.
    #[error("{path} contains {more} more files that are not of nodepki", path = path.display())]
    MoreStrangers {
        /// The directory.
        path: PathBuf,
        /// Number of files that are not listed.
        more: usize,
    },
    /// Something in the state directory that is not of nodepki.
    #[error("{path} is not of nodepki and is left alone", path = path.display())]
    Stranger {
        /// The path.
        path: PathBuf,
    },
}
