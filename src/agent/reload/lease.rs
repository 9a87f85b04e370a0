//! The Lease `kube-system/nodepki-reload`, which a node holds while it restarts components.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::cluster::api;
use crate::cluster::lease::{LeaseHolder, LeaseLock};

pub(super) use crate::cluster::lease::{LEASE, NAMESPACE, holder, renewed};

/// Name of the Lease.
pub(super) const LEASE_NAME: &str = "nodepki-reload";
/// Interval between two reads of a Lease that another node holds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Longest lease duration of another holder for which this node waits until it expires.
const MAX_AWAITED_DURATION: Duration = Duration::from_secs(600);

/// Access to the Lease for this node.
pub(super) struct RestartLease(pub(super) LeaseLock);

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
        let mut waits = false;
        loop {
            match self.0.attempt().await.map_err(LeaseUnavailable::Unknown)? {
                LeaseHolder::This => return Ok(()),
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

    /// Renews the Lease as long as this future is polled. Sets `lost` once another node holds the Lease, or could.
    pub(super) async fn keep(&self, lost: &Cell<bool>) {
        let duration = self.0.duration();
        let mut renewed = Instant::now();
        loop {
            sleep(duration / 3).await;
            let began = Instant::now();
            match self.0.renew().await {
                Ok(true) => renewed = began,
                Ok(false) => lost.set(true),
                // The API server itself may be restarting.
                Err(_) if renewed.elapsed() < duration => {}
                Err(_) => lost.set(true),
            }
        }
    }

    /// Releases the Lease, so the next node does not wait until it expires.
    pub(super) async fn release(&self) {
        self.0.release().await;
    }
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
