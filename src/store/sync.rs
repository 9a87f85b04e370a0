//! Syncs many files for the price of few.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::calls::fsync;

/// Calls fsync(2) on every file. On failure returns the index of the file, with the errno.
pub(super) fn all(files: &[BorrowedFd<'_>]) -> Result<(), (usize, Errno)> {
    // Starts writing all files before waiting for the first, so one transaction of the file system contains all of
    // them. That halves the time on ext4; threads do not, and syncfs(2) would wait for the files of every container.
    if files.len() > 1 {
        for file in files {
            let _ = posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
    }
    for (index, file) in files.iter().enumerate() {
        fsync(file.as_fd()).map_err(|errno| (index, errno))?;
    }
    Ok(())
}
