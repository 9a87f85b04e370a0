//! System calls on files, repeated when a signal interrupts them.
//!
//! Only file systems that wait for another machine or program return EINTR for these calls (NFS, FUSE). A run would
//! otherwise fail because of a signal that means nothing to it, such as SIGCHLD or SIGHUP.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, UnlinkatFlags};

/// Calls `call` until no signal interrupts it.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

pub(super) fn openat<P: ?Sized + NixPath>(
    dir: impl AsFd,
    name: &P,
    flags: OFlag,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    uninterrupted(|| nix::fcntl::openat(&dir, name, flags, mode))
}

pub(super) fn openat2<P: ?Sized + NixPath>(
    dir: impl AsFd,
    name: &P,
    how: OpenHow,
) -> Result<OwnedFd, Errno> {
    uninterrupted(|| nix::fcntl::openat2(&dir, name, how))
}

pub(super) fn renameat(
    from_dir: impl AsFd,
    from: &OsStr,
    to_dir: impl AsFd,
    to: &OsStr,
) -> Result<(), Errno> {
    uninterrupted(|| nix::fcntl::renameat(&from_dir, from, &to_dir, to))
}

pub(super) fn linkat(dir: impl AsFd, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    uninterrupted(|| nix::unistd::linkat(&dir, from, &dir, to, AtFlags::empty()))
}

pub(super) fn symlinkat(target: &str, dir: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    uninterrupted(|| nix::unistd::symlinkat(target, &dir, name))
}

pub(super) fn unlinkat(dir: impl AsFd, name: &OsStr, flags: UnlinkatFlags) -> Result<(), Errno> {
    uninterrupted(|| nix::unistd::unlinkat(&dir, name, flags))
}

pub(super) fn mkdirat(dir: impl AsFd, name: &OsStr, mode: Mode) -> Result<(), Errno> {
    uninterrupted(|| nix::sys::stat::mkdirat(&dir, name, mode))
}

pub(super) fn fchmod(file: impl AsFd, mode: Mode) -> Result<(), Errno> {
    uninterrupted(|| nix::sys::stat::fchmod(&file, mode))
}

pub(super) fn fchown(file: impl AsFd, owner: Option<Uid>, group: Option<Gid>) -> Result<(), Errno> {
    uninterrupted(|| nix::unistd::fchown(&file, owner, group))
}

pub(super) fn fsync(file: impl AsFd) -> Result<(), Errno> {
    uninterrupted(|| nix::unistd::fsync(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_interrupted_call() {
        let mut results = vec![Err(Errno::EIO), Ok(1), Err(Errno::EINTR), Err(Errno::EINTR)];
        assert_eq!(uninterrupted(|| results.pop().unwrap()), Ok(1));
        assert_eq!(uninterrupted(|| results.pop().unwrap()), Err(Errno::EIO));
    }
}
