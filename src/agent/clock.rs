//! Waits for a plausible clock: a node without a battery-backed clock boots in 1970, before every certificate is valid.

use std::time::Duration;

use time::OffsetDateTime;

use super::{Clock, Event, Failure, Progress};
use crate::text::rfc3339;
use crate::x509::TrustBundle;

/// Time of this release, in seconds since the epoch; a correct clock never shows an earlier time.
const RELEASED: i64 = 1_795_132_800; // 2026-11-20

/// The reaction to a clock that shows an impossible time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPolicy {
    /// Longest wait for time synchronization.
    pub max_wait: Duration,
    /// Continue without waiting.
    pub allow_unsynced: bool,
}

/// The earliest possible time, and the reason.
pub struct Floor {
    /// A correct clock never shows an earlier time.
    pub at: OffsetDateTime,
    /// Why an earlier time is impossible, as a clause.
    pub because: String,
}

/// Result of the wait for a plausible clock.
pub(super) enum SettledClock {
    /// The clock was plausible from the start.
    AtOnce,
    /// The clock has been synchronized.
    Caught,
    /// The clock is still behind, and [`ClockPolicy::allow_unsynced`] is set. Nothing is judged by an earlier time than
    /// this one; with a note for the report.
    Behind(OffsetDateTime, String),
}

/// Returns the latest of: the time of this release, and the beginnings of validity of the CA certificates on disk.
pub fn floor<'a>(trust: impl Iterator<Item = &'a TrustBundle>) -> Floor {
    // Reproducible builds set SOURCE_DATE_EPOCH to the time of the source.
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

/// Waits until the clock is plausible, unless the policy allows to continue.
///
/// # Errors
/// Pending, if the clock is still behind after [`ClockPolicy::max_wait`].
pub(super) async fn wait_for(
    floor: &Floor,
    policy: &ClockPolicy,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<SettledClock, Failure> {
    let began = tokio::time::Instant::now();
    let mut waited = false;
    loop {
        let now = clock();
        if now >= floor.at {
            return Ok(if waited {
                SettledClock::Caught
            } else {
                SettledClock::AtOnce
            });
        }
        let behind = format!(
            "the clock shows {}, which cannot be right: {} ({})",
            rfc3339(now),
            floor.because,
            rfc3339(floor.at)
        );
        if policy.allow_unsynced {
            let note = format!("{behind}; continued because of --allow-unsynced");
            return Ok(SettledClock::Behind(floor.at, note));
        }
        if began.elapsed() >= policy.max_wait {
            return Err(Failure::pending(format!(
                "{behind}; waited {} s for time synchronization: start chrony or systemd-timesyncd (timedatectl status), or set the clock, and run again; --allow-unsynced continues regardless",
                began.elapsed().as_secs()
            )));
        }
        if !waited {
            progress.event(Event::ClockBehind(behind));
        }
        waited = true;
        tokio::time::sleep(Duration::from_secs(1).min(policy.max_wait)).await;
    }
}
