//! Faults of this machine: shortage of disk, memory, descriptors or processes, and failed input or output.
//!
//! Such a fault does not depend on the request. A run with one ends with exit code 75, so its unit retries, whatever
//! exit code the same step has for a missing or a malformed file.

use std::error::Error;
use std::io;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;

/// Number of socket pairs that [`require_descriptors`] opens: more descriptors than an event loop with signals needs.
const SPARE_SOCKET_PAIRS: usize = 5;

/// Returns an error unless some file descriptors are left. tokio panics if it cannot create a socket pair for signals.
pub(crate) fn require_descriptors() -> io::Result<()> {
    let pairs: Result<Vec<_>, _> = (0..SPARE_SOCKET_PAIRS)
        .map(|_| UnixStream::pair())
        .collect();
    pairs.map(drop)
}

/// Returns true if `error`, or a cause below it, is a fault of this machine.
pub(crate) fn is_fault(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|cause| {
        let errno = match cause.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::OutOfMemory => return true,
            Some(error) => error.raw_os_error().map(Errno::from_raw),
            None => cause.downcast_ref::<Errno>().copied(),
        };
        errno.is_some_and(is_fault_errno)
    })
}

/// Returns `error` and every cause below it.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error: &'a (dyn Error + 'static) = *error;
        // `source` of an I/O error returns the source of the inner error, and thus skips the inner error.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        match inner {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

/// Returns true for an errno that a file name, the contents of a file or a peer cannot cause.
fn is_fault_errno(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EIO
            | Errno::EREMOTEIO
            | Errno::EUCLEAN
            | Errno::EBADMSG
            | Errno::ESTALE
            | Errno::EMFILE
            | Errno::ENFILE
            | Errno::ENOMEM
            | Errno::ENOBUFS
            | Errno::ENOLCK
            | Errno::EAGAIN
            | Errno::EINTR
            | Errno::EBUSY
            | Errno::ENOSPC
            | Errno::EDQUOT
            | Errno::EFBIG
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_machine_fault_among_causes() {
        let raw = || io::Error::from_raw_os_error(Errno::EMFILE as i32);
        assert!(is_fault(&raw()));
        assert!(is_fault(&Errno::EIO));
        assert!(is_fault(&io::Error::other(raw())));
        assert!(is_fault(&io::Error::other(Errno::ENOSPC)));
    }

    #[test]
    fn ignores_faults_of_files_and_peers() {
        for errno in [
            Errno::ENOENT,
            Errno::EACCES,
            Errno::EISDIR,
            Errno::ECONNREFUSED,
            Errno::EROFS,
        ] {
            let raw = io::Error::from_raw_os_error(errno as i32);
            assert!(!is_fault(&raw) && !is_fault(&errno), "{errno}");
        }
        assert!(!is_fault(&io::Error::other("does not exist")));
    }
}
