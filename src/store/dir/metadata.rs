//! Metadata of files, from one statx(2), which also returns the immutable attribute.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
use time::OffsetDateTime;

use crate::store::error::PathObstacle;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
}

/// Metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last change of the contents.
    pub modified: OffsetDateTime,
    /// Number of hard links.
    pub links: u64,
    /// The device. Device and inode together identify a file.
    pub device: u64,
    /// The inode. A replaced file has a new one.
    pub inode: u64,
    /// True after `chattr +i` or `chattr +a`.
    pub immutable: bool,
}

pub(in crate::store) fn stat_open(fd: impl AsFd) -> Result<Metadata, Errno> {
    stat_at(fd.as_fd(), OsStr::new(""), AtFlags::EMPTY_PATH)
}

pub(in crate::store) fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

pub(in crate::store) fn errno_from(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

pub(super) fn stat(dir: impl AsFd, name: &OsStr) -> Result<Metadata, Errno> {
    stat_at(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
}

fn stat_at(dir: BorrowedFd<'_>, name: &OsStr, flags: AtFlags) -> Result<Metadata, Errno> {
    let found = statx(dir, name, flags, StatxFlags::BASIC_STATS).map_err(errno_from)?;
    let kind = match rustix::fs::FileType::from_raw_mode(found.stx_mode.into()) {
        rustix::fs::FileType::RegularFile => FileKind::File,
        rustix::fs::FileType::Directory => FileKind::Directory,
        rustix::fs::FileType::Symlink => FileKind::Symlink,
        rustix::fs::FileType::Fifo => FileKind::Fifo,
        rustix::fs::FileType::Socket => FileKind::Socket,
        _ => FileKind::Device,
    };
    let immutable = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    Ok(Metadata {
        kind,
        mode: u32::from(found.stx_mode) & 0o7777,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: found.stx_size,
        modified: OffsetDateTime::from_unix_timestamp_nanos(
            i128::from(found.stx_mtime.tv_sec) * 1_000_000_000
                + i128::from(found.stx_mtime.tv_nsec),
        )
        .unwrap_or(OffsetDateTime::UNIX_EPOCH),
        links: found.stx_nlink.into(),
        device: u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor),
        inode: found.stx_ino,
        immutable: found.stx_attributes.intersects(immutable),
    })
}

/// Returns true if both describe the same file.
pub(in crate::store) fn is_same(metadata: &Metadata, found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = rustix::fs::major(found.dev()) as u64;
    let device = device << 32 | u64::from(rustix::fs::minor(found.dev()));
    (metadata.device, metadata.inode) == (device, found.ino())
}

pub(in crate::store) fn obstacle_of_kind(kind: FileKind) -> Option<PathObstacle> {
    match kind {
        FileKind::File => None,
        FileKind::Directory => Some(PathObstacle::Directory),
        FileKind::Symlink => Some(PathObstacle::Symlink(PathBuf::from("?"))),
        FileKind::Fifo => Some(PathObstacle::Fifo),
        FileKind::Socket => Some(PathObstacle::Socket),
        FileKind::Device => Some(PathObstacle::Device),
    }
}
