//! The Lease `kube-system/nodepki-reload`, which a node holds while it restarts components.
//!
//! It follows client-go's leader election: a node takes the Lease if it is free or abandoned, and if two try, the API
//! server accepts one (`resourceVersion`). A Lease is abandoned if it has not changed for the holder's duration *as
//! observed by this node*, so that clocks of different nodes are never compared. [`decide`] decides without I/O.

use std::cell::Cell;
use std::time::Duration;

use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};
use tokio::time::{Instant, sleep};

use crate::agent::Clock;
use crate::cluster::api::{self, Api, Resource};

pub(super) const LEASE: Resource = Resource {
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    kind: "Lease",
};
pub(super) const NAMESPACE: &str = "kube-system";
const LEASE_NAME: &str = "nodepki-reload";
/// Interval between two reads of a Lease that another node holds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Longest lease duration of another holder for which this node waits until it expires.
const MAX_AWAITED_DURATION: Duration = Duration::from_secs(600);

/// Access to the Lease for this node.
pub(super) struct RestartLease {
    pub(super) api: Api,
    pub(super) node: String,
    pub(super) duration: Duration,
    pub(super) clock: Clock,
}

/// Why this node does not have the Lease.
pub(super) enum LeaseUnavailable {
    /// The node of this name holds the Lease.
    Held(String),
    /// The Lease could not be read or written.
    Unknown(api::ApiError),
}

impl RestartLease {
    /// Takes the Lease; waits at most `limit`, or until a vanished holder is detected.
    pub(super) async fn take(&self, limit: Duration) -> Result<(), LeaseUnavailable> {
        let began = Instant::now();
        let mut give_up = began + limit;
        let mut seen = None;
        let mut waits = false;
        loop {
            let found = self.read().await.map_err(LeaseUnavailable::Unknown)?;
            let wall = (self.clock)();
            let now = Instant::now();
            match decide(
                found.as_ref(),
                &self.node,
                self.duration,
                &mut seen,
                now,
                wall,
            ) {
                LeaseStep::Write(lease) => match self.write(&lease, found.is_some()).await {
                    Ok(()) => return Ok(()),
                    Err(api::ApiError::Refused(status))
                        if status.is_conflict() || status.is_already_exists() => {}
                    Err(error) => return Err(LeaseUnavailable::Unknown(error)),
                },
                LeaseStep::Wait { holder, left } => {
                    if !std::mem::replace(&mut waits, true) {
                        tracing::info!(
                            "node {holder} holds the Lease {NAMESPACE}/{LEASE_NAME}: waiting until it is released or expires"
                        );
                    }
                    give_up = give_up.max(began + max_wait(limit, left));
                    if Instant::now() + left.min(POLL_INTERVAL) > give_up {
                        return Err(LeaseUnavailable::Held(holder));
                    }
                    sleep(left.min(POLL_INTERVAL)).await;
                }
            }
        }
    }

    /// Renews the Lease as long as this future is polled. Sets `lost` once another node holds the Lease, or could.
    pub(super) async fn keep(&self, lost: &Cell<bool>) {
        let mut renewed = Instant::now();
        loop {
            sleep(self.duration / 3).await;
            let began = Instant::now();
            match self.renew().await {
                Ok(true) => renewed = began,
                Ok(false) => lost.set(true),
                // The API server itself may be restarting.
                Err(_) if renewed.elapsed() < self.duration => {}
                Err(_) => lost.set(true),
            }
        }
    }

    async fn renew(&self) -> Result<bool, api::ApiError> {
        let Some(mut lease) = self.read().await? else {
            return Ok(false);
        };
        if holder(&lease) != self.node {
            return Ok(false);
        }
        if let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("renewTime".to_owned(), json!(micro_time((self.clock)())));
        }
        self.write(&lease, true).await.map(|()| true)
    }

    /// Releases the Lease, so that the next node does not wait until it expires.
    pub(super) async fn release(&self) {
        let Ok(Some(mut lease)) = self.read().await else {
            return;
        };
        if holder(&lease) != self.node {
            return;
        }
        if let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("holderIdentity".to_owned(), json!(""));
            spec.insert("renewTime".to_owned(), json!(micro_time((self.clock)())));
        }
        let _ = self.write(&lease, true).await;
    }

    async fn read(&self) -> Result<Option<Value>, api::ApiError> {
        self.api.read(&LEASE, Some(NAMESPACE), LEASE_NAME).await
    }

    async fn write(&self, lease: &Value, exists: bool) -> Result<(), api::ApiError> {
        let written = match exists {
            true => {
                self.api
                    .replace(&LEASE, Some(NAMESPACE), LEASE_NAME, lease)
                    .await
            }
            false => self.api.create(&LEASE, Some(NAMESPACE), lease).await,
        };
        written.map(drop)
    }
}

/// Returns the total wait: at least until the Lease would expire, since a shorter wait never detects a vanished holder.
fn max_wait(limit: Duration, left: Duration) -> Duration {
    match left <= MAX_AWAITED_DURATION {
        true => limit.max(left + POLL_INTERVAL),
        false => limit,
    }
}

/// The next step for a Lease.
#[derive(Debug, PartialEq)]
enum LeaseStep {
    /// Take the Lease by writing this object.
    Write(Value),
    /// Another node holds the Lease for at least `left`.
    Wait { holder: String, left: Duration },
}

/// Decides what to do. `seen` is the last observed change of the `spec`, with the time of the observation.
fn decide(
    found: Option<&Value>,
    node: &str,
    duration: Duration,
    seen: &mut Option<(Value, Instant)>,
    now: Instant,
    wall: OffsetDateTime,
) -> LeaseStep {
    let mut lease = found.cloned().unwrap_or_else(|| {
        json!({
            "apiVersion": LEASE.api_version(),
            "kind": LEASE.kind,
            "metadata": {"name": LEASE_NAME, "namespace": NAMESPACE},
        })
    });
    let holder = holder(&lease).to_owned();
    let spec = lease.get("spec").cloned().unwrap_or_else(|| json!({}));
    if !holder.is_empty() && holder != node {
        let since = match seen {
            Some((known, since)) if *known == spec => *since,
            _ => {
                *seen = Some((spec.clone(), now));
                now
            }
        };
        let theirs = spec.get("leaseDurationSeconds").and_then(Value::as_u64);
        let theirs = theirs.map_or(duration, Duration::from_secs);
        let left = (since + theirs).saturating_duration_since(now);
        if !left.is_zero() {
            return LeaseStep::Wait { holder, left };
        }
    }
    let transitions = spec.get("leaseTransitions").and_then(Value::as_u64);
    let transitions = transitions.map_or(0, |count| count + u64::from(holder != node));
    let time = micro_time(wall);
    if let Some(lease) = lease.as_object_mut() {
        let spec = json!({
            "holderIdentity": node,
            "leaseDurationSeconds": duration.as_secs(),
            "acquireTime": time,
            "renewTime": time,
            "leaseTransitions": transitions,
        });
        lease.insert("spec".to_owned(), spec);
    }
    LeaseStep::Write(lease)
}

/// Returns the holder; empty if there is none.
pub(super) fn holder(lease: &Value) -> &str {
    let holder = lease.pointer("/spec/holderIdentity");
    holder.and_then(Value::as_str).unwrap_or_default()
}

/// Returns the time of the last renewal.
pub(super) fn renewed(lease: &Value) -> Option<OffsetDateTime> {
    let renewed = lease.pointer("/spec/renewTime")?.as_str()?;
    OffsetDateTime::parse(renewed, &Rfc3339).ok()
}

/// Formats a `metav1.MicroTime`; its parser accepts no other format.
fn micro_time(time: OffsetDateTime) -> String {
    let format =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    time.to_offset(UtcOffset::UTC)
        .format(&format)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const WALL: OffsetDateTime = datetime!(2026-11-21 12:00:00.5 UTC);
    const DURATION: Duration = Duration::from_secs(60);

    fn lease(holder: &str, renewed: &str) -> Value {
        json!({"metadata": {"resourceVersion": "7"}, "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 3}})
    }

    #[track_caller]
    fn taken(step: LeaseStep) -> Value {
        match step {
            LeaseStep::Write(lease) => lease,
            LeaseStep::Wait { holder, left } => panic!("{holder}'s for {left:?}"),
        }
    }

    #[test]
    fn takes_free_lease() {
        let mut seen = None;
        let now = Instant::now();
        let made = taken(decide(None, "cp1", DURATION, &mut seen, now, WALL));
        assert_eq!(
            made,
            json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "nodepki-reload", "namespace": "kube-system"},
                "spec": {
                    "holderIdentity": "cp1",
                    "leaseDurationSeconds": 60,
                    "acquireTime": "2026-11-21T12:00:00.500000Z",
                    "renewTime": "2026-11-21T12:00:00.500000Z",
                    "leaseTransitions": 0,
                },
            })
        );
        // A released Lease, and one of this node from a killed run.
        for (holder, transitions) in [("", 4), ("cp1", 3)] {
            let found = lease(holder, "x");
            let made = taken(decide(Some(&found), "cp1", DURATION, &mut seen, now, WALL));
            assert_eq!(made["metadata"]["resourceVersion"], "7");
            assert_eq!(made["spec"]["leaseTransitions"], transitions);
        }
    }

    #[test]
    fn takes_lease_that_has_not_changed_for_its_duration() {
        let mut seen = None;
        // Times of the other node's clock are ignored; only changes count.
        let found = lease("cp2", "1999-01-01T00:00:00.000000Z");
        let begin = Instant::now();
        let step = |found: &Value, seen: &mut _, after| {
            let now = begin + Duration::from_secs(after);
            decide(Some(found), "cp1", DURATION, seen, now, WALL)
        };
        let waits = |left| LeaseStep::Wait {
            holder: "cp2".to_owned(),
            left: Duration::from_secs(left),
        };
        assert_eq!(step(&found, &mut seen, 0), waits(15));
        assert_eq!(step(&found, &mut seen, 10), waits(5));
        let renewed = lease("cp2", "1999-01-01T00:00:10.000000Z");
        assert_eq!(step(&renewed, &mut seen, 10), waits(15));
        let taken = taken(step(&renewed, &mut seen, 25));
        assert_eq!(taken["spec"]["holderIdentity"], "cp1");
        assert_eq!(taken["spec"]["leaseTransitions"], 4);
    }

    #[test]
    fn waits_for_expiry_even_with_short_limit() {
        let seconds = Duration::from_secs;
        assert_eq!(max_wait(seconds(120), seconds(60)), seconds(120));
        assert_eq!(max_wait(seconds(3), seconds(60)), seconds(61));
        assert_eq!(max_wait(seconds(3), seconds(3600)), seconds(3));
    }
}
