//! The real surroundings of the daemon: signals, the alarm, watched files, the service manager.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::alarm::{self, Alarm};
use super::notify;
use super::watch::{FileWatch, WatchedFiles};
use super::{Notification, Surroundings, Wake};
use crate::process::confine::{Rights, confine};
use crate::store::NodeRoot;

/// Time after which a step counts as stuck: the watchdog is no longer notified.
const MAX_STEP_DURATION: Duration = Duration::from_secs(60 * 60);
/// Wait after a failure of the alarm.
const ALARM_RETRY_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct System {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    alarm: Alarm,
    watch: FileWatch,
    /// Interval between two watchdog notifications, if the service manager expects them.
    watchdog_interval: Option<Duration>,
}

impl System {
    pub(super) fn new() -> io::Result<Self> {
        Ok(System {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            alarm: Alarm::new()?,
            watch: FileWatch::new(),
            watchdog_interval: notify::watchdog_timeout().map(|limit| limit / 2),
        })
    }
}

impl Surroundings for System {
    fn watch(&mut self, watched: WatchedFiles) {
        self.watch.start(watched);
    }

    fn accept_contents(&mut self) {
        self.watch.accept_contents();
    }

    fn accept_own_writes(&mut self, root: &NodeRoot, written: &[PathBuf]) {
        self.watch.accept_own_writes(root, written);
    }

    async fn sleep(&mut self, until: Option<OffsetDateTime>) -> Wake {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Wake::Stop,
            _ = self.interrupt.recv() => Wake::Stop,
            _ = self.hangup.recv() => Wake::Reload,
            files = self.watch.changed() => Wake::Files(files),
            fired = self.alarm.until(until) => {
                if let Err(error) = fired {
                    // Avoids a busy loop.
                    tracing::error!("the timer failed: {error}; trying again in one minute");
                    tokio::time::sleep(ALARM_RETRY_INTERVAL).await;
                }
                Wake::Time
            }
            never = keep_watchdog(self.watchdog_interval, None) => never,
        }
    }

    async fn stopped(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            never = keep_watchdog(self.watchdog_interval, Some(MAX_STEP_DURATION)) => never,
        }
    }

    fn uptime(&self) -> Duration {
        alarm::uptime()
    }

    fn notify(&self, what: Notification<'_>) {
        notify::notify(&what);
    }

    fn confine(&self, reach: &Rights) {
        confine(reach);
    }
}

/// Notifies the watchdog at each interval until `limit` has passed. Never returns.
async fn keep_watchdog<T>(interval: Option<Duration>, limit: Option<Duration>) -> T {
    let Some(interval) = interval else {
        return std::future::pending().await;
    };
    let began = Instant::now();
    loop {
        if limit.is_none_or(|limit| began.elapsed() < limit) {
            notify::notify(&Notification::Watchdog);
        }
        tokio::time::sleep(interval).await;
    }
}
