//! The daemon's surroundings on a machine: signals, the alarm, watched files, the service manager.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::alarm::{self, Alarm};
use super::notify;
use super::watch::{Watch, Watched};
use super::{Surroundings, Tell, Wake};
use crate::process::confine::{Reach, confine};
use crate::store::Root;

/// No step takes so long; one that does is stuck, and the service manager shall see it.
const LONGEST_STEP: Duration = Duration::from_secs(60 * 60);

pub(super) struct System {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    alarm: Alarm,
    watch: Watch,
    /// Between two signs of life, where the service manager wants them.
    watchdog: Option<Duration>,
}

impl System {
    pub(super) fn new() -> io::Result<Self> {
        Ok(System {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            alarm: Alarm::new()?,
            watch: Watch::new(),
            watchdog: notify::watchdog().map(|limit| limit / 2),
        })
    }
}

impl Surroundings for System {
    fn watch(&mut self, watched: Watched) {
        self.watch.start(watched);
    }

    fn own(&mut self, root: &Root, written: &[PathBuf]) {
        self.watch.own(root, written);
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
                    // Not to spin on a kernel that refuses.
                    tracing::error!("the alarm does not work: {error}; looking again in a minute");
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
                Wake::Time
            }
            never = signs_of_life(self.watchdog, None) => never,
        }
    }

    async fn stopped(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            never = signs_of_life(self.watchdog, Some(LONGEST_STEP)) => never,
        }
    }

    fn ran(&self) -> Duration {
        alarm::ran()
    }

    fn tell(&self, what: Tell<'_>) {
        notify::tell(&what);
    }

    fn confine(&self, reach: &Reach) {
        confine(reach);
    }
}

/// Never returns. Goes silent after `limit`.
async fn signs_of_life<T>(every: Option<Duration>, limit: Option<Duration>) -> T {
    let Some(every) = every else {
        return std::future::pending().await;
    };
    let began = Instant::now();
    loop {
        if limit.is_none_or(|limit| began.elapsed() < limit) {
            notify::tell(&Tell::Alive);
        }
        tokio::time::sleep(every).await;
    }
}
