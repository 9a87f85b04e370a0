//! The Lease of the node that signs. Its duration bounds how long no node signs after the leader has vanished.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::cluster::lease::{LeaseHolder, LeaseLock, NAMESPACE};
use crate::process::jitter::random_fraction;

/// Interval between two reads of the Lease by a follower. Together with the duration of the Lease, 10 s, a follower takes
/// over within 15 s.
const READ_INTERVAL: Duration = Duration::from_secs(3);
/// Longest delay after a failed read.
const MAX_READ_DELAY: Duration = Duration::from_secs(30);

/// Waits until this node holds the Lease.
pub(super) async fn acquire(lock: &LeaseLock) {
    let mut failures = 0u32;
    let mut known_holder = None;
    loop {
        let wait = match timeout(lock.duration(), lock.attempt()).await {
            Ok(Ok(LeaseHolder::This)) => return,
            Ok(Ok(LeaseHolder::Another { holder, left })) => {
                failures = 0;
                if known_holder.as_ref() != Some(&holder) {
                    tracing::info!("node {holder} signs the requests of kubelets");
                    known_holder = Some(holder);
                }
                left.min(READ_INTERVAL)
            }
            failed => {
                failures += 1;
                let why = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => "no response in time".to_owned(),
                };
                if failures == 3 {
                    tracing::warn!(
                        "the Lease for the requests of kubelets in {NAMESPACE} cannot be taken: {why} (see nodepki config signer-setup kubelets)"
                    );
                }
                READ_INTERVAL
                    .saturating_mul(2u32.saturating_pow((failures - 1).min(8)))
                    .min(MAX_READ_DELAY)
            }
        };
        sleep(wait.mul_f64(0.9 + random_fraction() / 10.0)).await;
    }
}

/// The time for which this node holds the Lease. Nothing is written after it.
pub(super) struct Tenure {
    duration: Duration,
    /// Start of the last successful renewal.
    renewed: Cell<Instant>,
    lost: Cell<bool>,
}

impl Tenure {
    /// Begins with a Lease that was just taken.
    pub(super) fn begin(duration: Duration) -> Tenure {
        Tenure {
            duration,
            renewed: Cell::new(Instant::now()),
            lost: Cell::new(false),
        }
    }

    /// Returns true as long as no other node can hold the Lease, with a margin for a request under way.
    pub(super) fn lasts(&self) -> bool {
        !self.lost.get() && self.renewed.get().elapsed() < self.margin()
    }

    /// Renews the Lease until it is lost; returns why.
    pub(super) async fn keep(&self, lock: &LeaseLock) -> String {
        let interval = self.duration / 4;
        let mut last_error = "it was not renewed in time".to_owned();
        loop {
            sleep(interval).await;
            let began = Instant::now();
            let left = (self.renewed.get() + self.margin()).saturating_duration_since(began);
            match timeout(left, lock.renew()).await {
                Ok(Ok(true)) => self.renewed.set(began),
                Ok(Ok(false)) => {
                    self.lost.set(true);
                    return "another node holds the Lease".to_owned();
                }
                // The API server itself may be restarting.
                Ok(Err(error)) => {
                    last_error = format!("the Lease cannot be renewed: {error}");
                }
                Err(_) => {}
            }
            if !self.lasts() {
                self.lost.set(true);
                return last_error;
            }
        }
    }

    /// Time without a renewal after which this node stops: earlier than another node takes over.
    fn margin(&self) -> Duration {
        self.duration.mul_f64(0.7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tenure_ends_before_another_node_may_take_over() {
        let duration = Duration::from_secs(10);
        let tenure = Tenure::begin(duration);
        tokio::time::advance(Duration::from_millis(6900)).await;
        assert!(tenure.lasts());
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(!tenure.lasts());
        tenure.renewed.set(Instant::now());
        assert!(tenure.lasts());
        tenure.lost.set(true);
        assert!(!tenure.lasts());
    }
}
