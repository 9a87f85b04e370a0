//! The clock gate: a node without a battery boots in 1970, and every certificate would be "not yet valid".

use std::time::Duration;

use time::OffsetDateTime;

use super::{Clock, Event, ExitCode, Failure, Progress};
use crate::x509::{TrustBundle, rfc3339};

/// When this release was made; no correct clock shows less.
const RELEASED: i64 = 1_795_132_800; // 2026-11-20

/// What to do about a clock that cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPolicy {
    /// How long to wait for time synchronization.
    pub max_wait: Duration,
    /// Go on all the same.
    pub allow_unsynced: bool,
}

/// The earliest believable time, and why.
pub struct Floor {
    /// No correct clock shows less.
    pub at: OffsetDateTime,
    /// What is known to have happened by then.
    pub because: String,
}

/// What became of the wait for a believable clock.
pub(super) enum Settled {
    /// It was believable from the start.
    AtOnce,
    /// It has caught up.
    Caught,
    /// It is still behind and the run goes on as told. Nothing is judged by an earlier time than this; in words.
    Behind(OffsetDateTime, String),
}

/// The latest of: this release, and the moments at which the authorities on disk began to be valid.
pub fn floor<'a>(trust: impl Iterator<Item = &'a TrustBundle>) -> Floor {
    // A reproducible build says in SOURCE_DATE_EPOCH when its source was made.
    let built = option_env!("SOURCE_DATE_EPOCH")
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(RELEASED);
    let release = Floor {
        at: OffsetDateTime::from_unix_timestamp(built).unwrap_or(OffsetDateTime::UNIX_EPOCH),
        because: "this release of nodepki is newer".to_owned(),
    };
    trust
        .flat_map(TrustBundle::certificates)
        .fold(release, |floor, certificate| {
            if certificate.not_before() <= floor.at {
                return floor;
            }
            Floor {
                at: certificate.not_before(),
                because: format!(
                    "the CA certificate {} is not yet valid",
                    certificate.subject()
                ),
            }
        })
}

/// Returns at once when the clock is believable, or need not be; else waits for it.
///
/// # Errors
/// "Try again" when the clock is still behind after [`ClockPolicy::max_wait`].
pub(super) async fn wait_for(
    floor: &Floor,
    policy: &ClockPolicy,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Settled, Failure> {
    let began = tokio::time::Instant::now();
    let mut waited = false;
    loop {
        let now = clock();
        if now >= floor.at {
            return Ok(if waited {
                Settled::Caught
            } else {
                Settled::AtOnce
            });
        }
        let behind = format!(
            "the clock shows {}, which cannot be right: {} ({})",
            rfc3339(now),
            floor.because,
            rfc3339(floor.at)
        );
        if policy.allow_unsynced {
            let note = format!("{behind}; went on all the same, as --allow-unsynced says");
            return Ok(Settled::Behind(floor.at, note));
        }
        if began.elapsed() >= policy.max_wait {
            return Err(Failure::new(
                ExitCode::Pending,
                format!(
                    "{behind}; waited {} s for time synchronization: start chrony or systemd-timesyncd (timedatectl status), or set the clock, and run again; --allow-unsynced goes on regardless",
                    began.elapsed().as_secs()
                ),
            ));
        }
        if !waited {
            progress.event(Event::ClockBehind(behind));
        }
        waited = true;
        tokio::time::sleep(Duration::from_secs(1).min(policy.max_wait)).await;
    }
}
