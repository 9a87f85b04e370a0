//! Limits the rate of requests to the signer: a token bucket of one second.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Spaces events so that there are at most `per_second` in each second, after a burst of as many.
pub(super) struct Pace {
    interval: Duration,
    burst: u32,
    /// When the bucket will be full.
    full_at: Cell<Instant>,
}

impl Pace {
    pub(super) fn new(per_second: u32, now: Instant) -> Pace {
        let burst = per_second.max(1);
        Pace {
            interval: Duration::from_secs(1) / burst,
            burst,
            full_at: Cell::new(now),
        }
    }

    /// Waits until the next event is allowed. A caller that is dropped while it waits has used its turn.
    pub(super) async fn turn(&self) {
        sleep_until(self.reserve(Instant::now())).await;
    }

    /// Returns when the next event is allowed.
    fn reserve(&self, now: Instant) -> Instant {
        let full_at = self.full_at.get().max(now) + self.interval;
        self.full_at.set(full_at);
        let capacity = self.interval * self.burst;
        now.max(full_at.checked_sub(capacity).unwrap_or(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_burst_and_then_the_rate() {
        let start = Instant::now();
        let pace = Pace::new(4, start);
        let millis = |pace: &Pace, now| (pace.reserve(now) - start).as_millis();
        let first: Vec<_> = (0..6).map(|_| millis(&pace, start)).collect();
        assert_eq!(first, [0, 0, 0, 0, 250, 500]);
        // Idle time fills the bucket, and no more than that.
        let later = start + Duration::from_secs(60);
        let second: Vec<_> = (0..5).map(|_| millis(&pace, later)).collect();
        assert_eq!(second, [60_000, 60_000, 60_000, 60_000, 60_250]);
    }
}
