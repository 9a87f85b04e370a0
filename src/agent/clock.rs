//! The clock gate: a node without a battery boots in 1970, and every certificate would be "not yet valid".

use std::time::Duration;

use time::OffsetDateTime;

use super::{Clock, Event, ExitCode, Failure, Progress};
use crate::x509::TrustBundle;

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
pub(super) struct Floor {
    at: OffsetDateTime,
    because: String,
}

/// The latest of: this release, and the moments at which the authorities on disk began to be valid.
pub(super) fn floor<'a>(trust: impl Iterator<Item = &'a TrustBundle>) -> Floor {
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
                    "the CA certificate {} is not valid before",
                    certificate.subject()
                ),
            }
        })
}

/// Returns at once when the clock is believable; else waits for it. True when it had to wait.
///
/// # Errors
/// "Try again" when the clock is still behind after [`ClockPolicy::max_wait`].
pub(super) async fn wait_for(
    floor: &Floor,
    policy: &ClockPolicy,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<bool, Failure> {
    let began = tokio::time::Instant::now();
    let mut waited = false;
    loop {
        let now = clock();
        if now >= floor.at || policy.allow_unsynced {
            return Ok(waited);
        }
        let behind = format!(
            "the clock shows {now}, which cannot be right: {} ({})",
            floor.because, floor.at
        );
        if began.elapsed() >= policy.max_wait {
            return Err(Failure::new(
                ExitCode::Pending,
                format!(
                    "{behind}; waited {:.0?} for time synchronization: start chrony or systemd-timesyncd (timedatectl status), or set the clock, and run again; --allow-unsynced goes on regardless",
                    began.elapsed()
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
