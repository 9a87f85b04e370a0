//! A timer for a time of the wall clock, and the time since boot.
//!
//! The timer (timerfd_create(2)) fires at its time, also if that passed while the machine was suspended, and it fires
//! when the clock is set. In between the process is not woken.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use time::OffsetDateTime;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Latest alarm, in seconds since the epoch: after the end of every certificate, and within the kernel's nanoseconds.
const MAX_ALARM_SECONDS: i64 = 8_000_000_000;

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

    /// Returns at that time, and as soon as the clock is set.
    pub(super) async fn until(&self, at: Option<OffsetDateTime>) -> io::Result<()> {
        let at = at.map_or(TimeSpec::new(MAX_ALARM_SECONDS, 0), |at| {
            // Zero would disarm the timer.
            let seconds = at.unix_timestamp().clamp(1, MAX_ALARM_SECONDS);
            TimeSpec::new(seconds, at.nanosecond().into())
        });
        let flags =
            TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        self.timer.set(Expiration::OneShot(at), flags)?;
        loop {
            let mut guard = self.ready.readable().await?;
            // ECANCELED means that the clock was set, which counts as fired.
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

/// Returns the time since boot, including suspend. It never goes back.
pub(super) fn uptime() -> Duration {
    let read = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    read.map(Duration::from).unwrap_or_default()
}

/// Returns a future-aware handle that becomes ready when the descriptor is readable.
#[allow(
    deprecated,
    reason = "its replacement is unsafe; an owned descriptor keeps its identity"
)]
pub(super) fn readable(descriptor: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor.try_clone_to_owned()?, Interest::READABLE)
}
