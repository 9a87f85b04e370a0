//! `capi check --watch`: stores the conditions at every change of the Secrets and of the Cluster, and regularly.
//!
//! Each object has a watch of its own, which RBAC permits by name: a right to watch all Secrets of the namespace would
//! include every private key in it. A watch passes no content on; a change only causes a check, which reads the Secrets
//! again. Certificates expire without a change, so a check also runs at the earliest expiry.

use std::convert::Infallible;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;
use serde::de::IgnoredAny;
use time::OffsetDateTime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::check::JudgedSecrets;
use super::conditions::Findings;
use super::status::{CLUSTER, CONTROL_PLANE_PKI, StatusChange};
use crate::agent::{Clock, ExitCode, Failure};
use crate::cluster::api::{Api, SECRET};
use crate::cluster::watch::{self, Watch, WatchChange};
use crate::commands::options::duration;
use crate::process::jitter::random_fraction;

/// Minimum time between two checks. Several Secrets that are changed together cause one check.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Smallest and largest `--interval`.
const INTERVAL_LIMITS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(24 * 60 * 60)];

/// Maximum time between two checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval(Duration);

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let interval = duration(text)?;
        let [min, max] = INTERVAL_LIMITS;
        if interval >= min && interval <= max {
            Ok(Interval(interval))
        } else {
            Err("must be between 10s and 24h".to_owned())
        }
    }
}

/// Checks and stores the conditions until SIGTERM or SIGINT. After the first check that was stored, all failures are
/// logged and retried.
///
/// # Errors
/// The first check fails in a way that a repetition does not correct.
pub(super) async fn follow(
    api: &Api,
    judged: &JudgedSecrets,
    interval: Interval,
    clock: Clock,
) -> Result<(), Failure> {
    let unavailable = |error: io::Error| {
        Failure::pending("cannot listen for signals")
            .caused_by(error)
            .advise("run again")
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(unavailable)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(unavailable)?;
    let changed = Notify::new();
    tokio::select! {
        biased;
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        failure = check_repeatedly(api, judged, interval, clock, &changed) => Err(failure),
        never = watch_objects(api, judged, &changed) => match never {},
    }
}

/// Checks at every notification and at the latest after the interval. Returns a lasting failure of the first check.
async fn check_repeatedly(
    api: &Api,
    judged: &JudgedSecrets,
    interval: Interval,
    clock: Clock,
    changed: &Notify,
) -> Failure {
    let mut failures = 0;
    let mut reported = None;
    let mut is_stored = false;
    loop {
        let wait = match judged.store(api, clock()).await {
            Ok((findings, change)) => {
                if reported.take().is_some() {
                    tracing::info!("the conditions can be stored again");
                }
                if change == StatusChange::Written || !is_stored {
                    log(judged, &findings);
                }
                failures = 0;
                is_stored = true;
                until_next_check(interval, &findings, clock())
            }
            Err(failure) if !is_stored && is_lasting(failure.code) => return failure,
            Err(failure) => {
                let wait = watch::delay(failures, None, random_fraction());
                let text = failure.to_string();
                if reported.as_ref() == Some(&text) {
                    tracing::debug!("{text}; trying again in {wait:.0?}");
                } else {
                    tracing::warn!("{text}; trying again");
                    reported = Some(text);
                }
                failures += 1;
                wait
            }
        };
        sleep(MIN_CHECK_INTERVAL.min(wait)).await;
        tokio::select! {
            () = sleep(wait.saturating_sub(MIN_CHECK_INTERVAL)) => {}
            () = changed.notified() => {}
        }
    }
}

/// Returns whether a repetition cannot correct the failure.
fn is_lasting(code: ExitCode) -> bool {
    match code {
        ExitCode::Done | ExitCode::Pending | ExitCode::Unreachable => false,
        ExitCode::NotPermitted | ExitCode::Configuration | ExitCode::Usage | ExitCode::Refused => {
            true
        }
    }
}

/// Returns the time until the next check: the interval, or less if a certificate expires before.
fn until_next_check(interval: Interval, findings: &Findings, now: OffsetDateTime) -> Duration {
    let ends = findings.evidence.iter().filter_map(|one| one.not_after);
    let next = ends.filter(|end| *end >= now).min();
    // A certificate is valid until the end of its last second.
    let remaining = next.and_then(|end| Duration::try_from(end - now).ok());
    remaining.map_or(interval.0, |remaining| {
        interval.0.min(remaining + Duration::from_secs(1))
    })
}

fn log(judged: &JudgedSecrets, findings: &Findings) {
    let name = judged.target.cluster();
    for condition in &findings.conditions {
        let text = format!(
            "{} {name}: {} is {} ({}) {}",
            CONTROL_PLANE_PKI.kind,
            condition.kind,
            condition.status,
            condition.reason,
            condition.message
        );
        match condition.status {
            "True" => tracing::info!("{}", text.trim_end()),
            _ => tracing::warn!("{text}"),
        }
    }
}

/// The parts of a Cluster that matter for the owner reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct ClusterParts {
    metadata: ClusterMeta,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClusterMeta {
    uid: String,
    deletion_timestamp: Option<String>,
}

/// Notifies `changed` of every change.
async fn watch_objects(api: &Api, judged: &JudgedSecrets, changed: &Notify) -> Infallible {
    let namespace = Some(judged.target.namespace());
    let mut secrets: FuturesUnordered<_> = judged
        .names()
        .iter()
        .map(|name| {
            let watch = Watch::of_object(&SECRET, namespace, name);
            async move {
                watch
                    .run(api, |change: WatchChange<IgnoredAny>| match change {
                        WatchChange::Listing => {}
                        WatchChange::Present(_) | WatchChange::Listed | WatchChange::Deleted(_) => {
                            changed.notify_one();
                        }
                    })
                    .await
            }
        })
        .collect();
    let cluster = Watch::of_object(&CLUSTER, namespace, judged.target.cluster());
    // The controllers change the status of the Cluster often.
    let mut known = None;
    let cluster = cluster.run(api, |change: WatchChange<ClusterParts>| {
        let found = match change {
            WatchChange::Present(found) => Some(found),
            WatchChange::Deleted(_) => None,
            WatchChange::Listing | WatchChange::Listed => return,
        };
        if known != found {
            known = found;
            changed.notify_one();
        }
    });
    tokio::select! {
        never = cluster => never,
        Some(never) = secrets.next() => never,
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::super::conditions::{self, SecretState};
    use super::super::secrets::{ClusterTarget, Format};
    use super::*;

    #[test]
    fn checks_again_when_the_next_certificate_expires() {
        let now = datetime!(2026-11-01 10:00:00 UTC);
        let target = ClusterTarget::new("prod", "default").unwrap();
        let mut findings =
            conditions::judge(&target, Format::Current, false, &Default::default(), now);
        assert!(findings.any(SecretState::Missing));
        let interval: Interval = "10m".parse().unwrap();
        let wait = |findings: &Findings| until_next_check(interval, findings, now).as_secs();
        assert_eq!(wait(&findings), 600);
        let mut set = |index: usize, seconds: i64| {
            findings.evidence[index].not_after = Some(now + time::Duration::seconds(seconds));
            wait(&findings)
        };
        assert_eq!(set(0, 3600), 600);
        assert_eq!(set(1, 30), 31);
        // Expired before.
        assert_eq!(set(2, -30), 31);
    }

    #[test]
    fn rejects_interval_out_of_bounds() {
        for text in ["9s", "25h", "10", ""] {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
        assert_eq!("24h".parse(), Ok(Interval(Duration::from_secs(86400))));
    }
}
