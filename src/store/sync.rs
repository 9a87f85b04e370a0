//! Getting many files onto the disk in few of its transactions.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::unistd::fsync;

/// fsync(2) of every file; the index of the first that failed, with its errno.
pub(super) fn all(files: &[BorrowedFd<'_>]) -> Result<(), (usize, Errno)> {
    for (index, file) in files.iter().enumerate() {
        fsync(file.as_fd()).map_err(|errno| (index, errno))?;
    }
    Ok(())
}
