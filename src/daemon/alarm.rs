//! A moment of the wall clock to sleep until, and a clock that nobody sets.
//!
//! One timer of the kernel (timerfd_create(2)) does both halves: it fires at its moment, also when that passed while the
//! machine slept, and it fires when somebody sets the clock. Between the two the process is not woken.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use time::OffsetDateTime;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Later than any certificate ends, and early enough for the kernel's nanoseconds.
const NEVER: i64 = 8_000_000_000;

pub(super) struct Alarm {
    timer: TimerFd,
    ready: AsyncFd<OwnedFd>,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_REALTIME, flags)?;
        let ready = readable(timer.as_fd())?;
        Ok(Alarm { timer, ready })
    }

    /// Returns at that moment, and as soon as the clock is set.
    pub(super) async fn until(&self, at: Option<OffsetDateTime>) -> io::Result<()> {
        let at = at.map_or(TimeSpec::new(NEVER, 0), |at| {
            // A moment of zero would disarm the timer.
            let seconds = at.unix_timestamp().clamp(1, NEVER);
            TimeSpec::new(seconds, at.nanosecond().into())
        });
        let flags =
            TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        self.timer.set(Expiration::OneShot(at), flags)?;
        loop {
            let mut guard = self.ready.readable().await?;
            // A clock that was set is ECANCELED, which counts as fired.
            match self.timer.wait() {
                Err(Errno::EAGAIN) => guard.clear_ready(),
                result => {
                    guard.clear_ready();
                    return Ok(result?);
                }
            }
        }
    }
}

/// How long the machine has run, asleep or not.
pub(super) fn ran() -> Duration {
    let read = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    read.map(Duration::from).unwrap_or_default()
}

/// To wait until there is something to read from a descriptor of the kernel's.
#[allow(
    deprecated,
    reason = "what took its place is unsafe; a descriptor that is owned stays what it is"
)]
pub(super) fn readable(descriptor: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor.try_clone_to_owned()?, Interest::READABLE)
}
