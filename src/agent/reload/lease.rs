//! The Lease `kube-system/nodepki-reload`, which a node holds while it restarts components.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Run;
use crate::agent::Failure;
use crate::cluster::api::ApiError;
use crate::cluster::lease::{LeaseHolder, LeaseLock};

pub(super) use crate::cluster::lease::{LEASE, NAMESPACE, holder, renewed};

/// Name of the Lease.
const LEASE_NAME: &str = "nodepki-reload";
/// Interval between two reads of a Lease that another node holds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Longest lease duration of another holder for which this node waits until it expires.
const MAX_AWAITED_DURATION: Duration = Duration::from_secs(600);

/// Access to the Lease for this node, which knows whether the node still holds it.
pub(super) struct RestartLease {
    lock: LeaseLock,
    /// Start of the last renewal; `None` if another node, or none, holds the Lease.
    renewed: Cell<Option<Instant>>,
}

/// Why this node does not have the Lease.
pub(super) enum LeaseUnavailable {
    /// The node of this name holds the Lease.
    Held(String),
    /// The Lease could not be read or written.
    Unknown(Failure),
}

impl fmt::Display for LeaseUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseUnavailable::Held(holder) => {
                write!(f, "node {holder} holds the Lease {NAMESPACE}/{LEASE_NAME}")
            }
            LeaseUnavailable::Unknown(failure) => failure.fmt(f),
        }
    }
}

impl Run<'_> {
    /// Returns the access to the Lease. Sends nothing.
    pub(super) fn restart_lease(&self) -> Result<RestartLease, Failure> {
        let setup = self.probe.setup;
        let settings = &setup.reload.lease;
        let api = self.probe.api(&settings.kubeconfig);
        let api = api.map_err(|error| Failure::of_cluster(settings.kubeconfig.display(), error))?;
        Ok(RestartLease::of(LeaseLock::new(
            api,
            LEASE_NAME,
            &setup.node,
            settings.duration,
            self.probe.clock,
        )))
    }
}

impl RestartLease {
    fn of(lock: LeaseLock) -> Self {
        RestartLease {
            lock,
            renewed: Cell::default(),
        }
    }

    /// Takes the Lease; waits at most `limit`, or until a vanished holder is detected.
    pub(super) async fn take(&self, limit: Duration) -> Result<(), LeaseUnavailable> {
        let began = Instant::now();
        let mut give_up = began + limit;
        let mut waits = false;
        loop {
            let attempted = Instant::now();
            match self.lock.attempt().await.map_err(unknown)? {
                LeaseHolder::This => {
                    // By the time before the request: the API server may have stored the renewal at any moment since.
                    self.renewed.set(Some(attempted));
                    return Ok(());
                }
                LeaseHolder::Another { holder, left } => {
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

    /// As [`RestartLease::take`], for a Lease that was lost. The API server may have been restarted, so an error is final only
    /// after `limit`.
    pub(super) async fn take_again(&self, limit: Duration) -> Result<(), LeaseUnavailable> {
        let give_up = Instant::now() + limit;
        loop {
            match self.take(limit).await {
                Err(LeaseUnavailable::Unknown(_)) if Instant::now() < give_up => {
                    sleep(POLL_INTERVAL).await;
                }
                taken => return taken,
            }
        }
    }

    /// Returns whether another node holds the Lease, or could.
    pub(super) fn is_lost(&self) -> bool {
        let renewed = self.renewed.get();
        renewed.is_none_or(|renewed| renewed.elapsed() >= self.lock.duration())
    }

    /// Renews the Lease until `work` ends, and returns its result.
    pub(super) async fn keep_during<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            never = self.keep() => match never {},
        }
    }

    /// Renews the Lease as long as this future is polled. If this node is still the holder of an expired Lease, no other
    /// node had it meanwhile.
    async fn keep(&self) -> Infallible {
        loop {
            sleep(self.lock.duration() / 3).await;
            let began = Instant::now();
            match self.lock.renew().await {
                Ok(true) => self.renewed.set(Some(began)),
                Ok(false) => self.renewed.set(None),
                // The API server itself may be restarting.
                Err(_) => {}
            }
        }
    }

    /// Releases the Lease, so the next node does not wait until it expires.
    pub(super) async fn release(&self) {
        self.lock.release().await;
    }
}

fn unknown(error: ApiError) -> LeaseUnavailable {
    LeaseUnavailable::Unknown(Failure::of_cluster(
        format_args!("taking the Lease {NAMESPACE}/{LEASE_NAME}"),
        error,
    ))
}

/// Returns the total wait: at least until the Lease would expire, since a shorter wait never detects a vanished holder.
fn max_wait(limit: Duration, left: Duration) -> Duration {
    if left <= MAX_AWAITED_DURATION {
        limit.max(left + POLL_INTERVAL)
    } else {
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_expiry_even_with_short_limit() {
        let seconds = Duration::from_secs;
        assert_eq!(max_wait(seconds(120), seconds(60)), seconds(120));
        assert_eq!(max_wait(seconds(3), seconds(60)), seconds(61));
        assert_eq!(max_wait(seconds(3), seconds(3600)), seconds(3));
    }
}
