//! Leases (`coordination.k8s.io/v1`) in `kube-system`, which one node of several holds.
//!
//! It follows client-go's leader election: a node takes a Lease if it is free or abandoned, and if two try, the API
//! server accepts one (`resourceVersion`). A Lease is abandoned if it has not changed for the holder's duration *as
//! observed by this node*, so clocks of different nodes are never compared. `decide` decides without I/O.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};
use tokio::time::Instant;

use super::api::{Api, ApiError, Resource};
pub(crate) use crate::kube::names::SYSTEM_NAMESPACE as NAMESPACE;

/// Leases.
pub(crate) const LEASE: Resource = Resource::new("coordination.k8s.io", "v1", "leases", "Lease");

/// Largest `leaseTransitions` that the API server stores.
const MAX_TRANSITIONS: u64 = i32::MAX as u64;

/// Longest time without a change after which a Lease is abandoned, whatever its duration.
const MAX_AWAITED: Duration = Duration::from_secs(24 * 3600);

/// Access to one Lease for one holder.
pub struct LeaseLock {
    api: Api,
    name: String,
    holder: String,
    duration: Duration,
    longest: Duration,
    clock: fn() -> OffsetDateTime,
    /// The last observed change of the `spec`, with the time of the observation.
    seen: RefCell<Option<(Value, Instant)>>,
}

/// The holder of a Lease after an attempt to take it.
#[derive(Debug, PartialEq, Eq)]
pub enum LeaseHolder {
    /// This holder.
    This,
    /// Another holder, for at least `left`.
    Another {
        /// Its identity.
        holder: String,
        /// Time until the Lease counts as abandoned.
        left: Duration,
    },
}

impl LeaseLock {
    /// Returns the lock `kube-system/NAME` for the identity `holder`. Sends nothing. `duration` is the time without a
    /// renewal after which other holders may take it.
    pub fn new(
        api: Api,
        name: impl Into<String>,
        holder: impl Into<String>,
        duration: Duration,
        clock: fn() -> OffsetDateTime,
    ) -> Self {
        LeaseLock {
            api,
            name: name.into(),
            holder: holder.into(),
            duration,
            longest: MAX_AWAITED,
            clock,
            seen: RefCell::default(),
        }
    }

    /// As this lock, for a Lease whose holders all have the same duration: a longer one in the object does not prevent a
    /// takeover.
    pub fn of_equal_holders(self) -> Self {
        LeaseLock {
            longest: self.duration,
            ..self
        }
    }

    /// Returns the time without a renewal after which other holders may take the Lease.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// Takes the Lease if it is free or abandoned.
    ///
    /// # Errors
    /// If the Lease cannot be read or written.
    pub async fn attempt(&self) -> Result<LeaseHolder, ApiError> {
        loop {
            let found = self.read().await?;
            let (wall, now) = ((self.clock)(), Instant::now());
            let seen = &mut self.seen.borrow_mut().take();
            let step = decide(
                found.as_ref(),
                &self.name,
                &self.holder,
                (self.duration, self.longest),
                seen,
                now,
                wall,
            );
            self.seen.replace(seen.take());
            match step {
                LeaseStep::Wait { holder, left } => {
                    return Ok(LeaseHolder::Another { holder, left });
                }
                LeaseStep::Write(lease) => match self.write(&lease, found.is_some()).await {
                    Ok(()) => return Ok(LeaseHolder::This),
                    // Another holder was faster.
                    Err(ApiError::Refused(status))
                        if status.is_conflict() || status.is_already_exists() => {}
                    Err(error) => return Err(error),
                },
            }
        }
    }

    /// Renews the Lease; returns false if another holder has it, or none.
    ///
    /// # Errors
    /// If the Lease cannot be read or written.
    pub async fn renew(&self) -> Result<bool, ApiError> {
        let Some(mut lease) = self.read().await? else {
            return Ok(false);
        };
        if holder(&lease) != self.holder {
            return Ok(false);
        }
        if let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("renewTime".to_owned(), json!(micro_time((self.clock)())));
        }
        self.write(&lease, true).await.map(|()| true)
    }

    /// Releases the Lease, so the next holder does not wait until it expires.
    pub async fn release(&self) {
        let Ok(Some(mut lease)) = self.read().await else {
            return;
        };
        if holder(&lease) != self.holder {
            return;
        }
        if let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("holderIdentity".to_owned(), json!(""));
            spec.insert("renewTime".to_owned(), json!(micro_time((self.clock)())));
        }
        let _ = self.write(&lease, true).await;
    }

    async fn read(&self) -> Result<Option<Value>, ApiError> {
        self.api.read(&LEASE, Some(NAMESPACE), &self.name).await
    }

    async fn write(&self, lease: &Value, exists: bool) -> Result<(), ApiError> {
        let (api, name) = (&self.api, self.name.as_str());
        let replace = async || api.replace(&LEASE, Some(NAMESPACE), name, lease).await;
        let written = if exists {
            replace().await
        } else {
            match api.create(&LEASE, Some(NAMESPACE), lease).await {
                // RBAC compares the name of an object for a PUT only, and a PUT creates a Lease too
                // (`pkg/registry/coordination/lease/strategy.go`, `AllowCreateOnUpdate`).
                Err(ApiError::Refused(status)) if status.is_unauthorized_user() => replace().await,
                created => created,
            }
        };
        written.map(drop)
    }
}

/// What to do about a Lease.
#[derive(Debug, PartialEq)]
enum LeaseStep {
    /// Take the Lease by writing this object.
    Write(Value),
    /// Another holder has the Lease for at least `left`.
    Wait { holder: String, left: Duration },
}

/// Decides what to do. `seen` is the last observed change of the `spec`, with the time of the observation.
fn decide(
    found: Option<&Value>,
    name: &str,
    node: &str,
    (duration, longest): (Duration, Duration),
    seen: &mut Option<(Value, Instant)>,
    now: Instant,
    wall: OffsetDateTime,
) -> LeaseStep {
    let mut lease = found.cloned().unwrap_or_else(|| {
        json!({
            "apiVersion": LEASE.api_version(),
            "kind": LEASE.kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
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
        let left = (since + awaited(&spec, duration).min(longest)).saturating_duration_since(now);
        if !left.is_zero() {
            return LeaseStep::Wait { holder, left };
        }
    }
    let transitions = spec.get("leaseTransitions").and_then(Value::as_u64);
    let transitions = transitions.map_or(0, |count| {
        count
            .saturating_add(u64::from(holder != node))
            .min(MAX_TRANSITIONS)
    });
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

/// Returns the holder's duration, or this node's if the holder's is not a positive number.
fn awaited(spec: &Value, duration: Duration) -> Duration {
    let theirs = spec.get("leaseDurationSeconds").and_then(Value::as_u64);
    let theirs = theirs.filter(|seconds| *seconds > 0);
    theirs.map_or(duration, Duration::from_secs)
}

/// Returns the holder; empty if there is none.
pub(crate) fn holder(lease: &Value) -> &str {
    let holder = lease.pointer("/spec/holderIdentity");
    holder.and_then(Value::as_str).unwrap_or_default()
}

/// Returns the time of the last renewal.
pub(crate) fn renewed(lease: &Value) -> Option<OffsetDateTime> {
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
    const NAME: &str = "nodepki-reload";
    const DURATION: Duration = Duration::from_secs(60);
    const BOTH: (Duration, Duration) = (DURATION, MAX_AWAITED);

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
        let made = taken(decide(None, NAME, "cp1", BOTH, &mut seen, now, WALL));
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
            let made = taken(decide(
                Some(&found),
                NAME,
                "cp1",
                BOTH,
                &mut seen,
                now,
                WALL,
            ));
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
            decide(Some(found), NAME, "cp1", BOTH, seen, now, WALL)
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
    fn lease_with_absurd_content_is_taken() {
        let ours = DURATION.as_secs();
        let equal = [
            ("leaseDurationSeconds", json!(u64::MAX), ours),
            ("leaseDurationSeconds", json!(i32::MAX), ours),
            ("leaseDurationSeconds", json!(ours + 1), ours),
            ("leaseDurationSeconds", json!(0), ours),
            ("leaseDurationSeconds", json!(-5), ours),
            ("leaseDurationSeconds", json!(1e300), ours),
            ("leaseDurationSeconds", json!("15"), ours),
            ("leaseDurationSeconds", json!(null), ours),
            ("leaseDurationSeconds", json!([15]), ours),
            ("leaseDurationSeconds", json!(7), 7),
            ("renewTime", json!("9999-12-31T23:59:59.000000Z"), 15),
            ("renewTime", json!("never"), 15),
            ("renewTime", json!(7), 15),
            ("leaseTransitions", json!(u64::MAX), 15),
            ("leaseTransitions", json!(i32::MAX), 15),
            ("leaseTransitions", json!(-1), 15),
        ];
        let other = [
            (
                "leaseDurationSeconds",
                json!(u64::MAX),
                MAX_AWAITED.as_secs(),
            ),
            ("leaseDurationSeconds", json!(3600), 3600),
            ("leaseDurationSeconds", json!(0), ours),
        ];
        let equal = equal.map(|case| ((DURATION, DURATION), case));
        let other = other.map(|case| (BOTH, case));
        for (durations, (field, value, expected)) in equal.into_iter().chain(other) {
            let mut found = lease("cp2", "2026-11-21T12:00:00.000000Z");
            found["spec"][field] = value.clone();
            let (mut seen, begin) = (None, Instant::now());
            let mut step = |after| {
                let now = begin + Duration::from_secs(after);
                decide(Some(&found), NAME, "cp1", durations, &mut seen, now, WALL)
            };
            let holder = "cp2".to_owned();
            let left = Duration::from_secs(expected);
            assert_eq!(step(0), LeaseStep::Wait { holder, left }, "{field} {value}");
            let transitions = taken(step(expected))["spec"]["leaseTransitions"].clone();
            assert!(transitions.as_u64().unwrap() <= MAX_TRANSITIONS, "{value}");
        }
    }
}
