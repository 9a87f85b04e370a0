//! Limits the rate of requests to the signer, a token bucket of one second, the age of what a probe of it has learned, and
//! the number of reports.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::Mutex;
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
        Pace::with_burst(burst, Duration::from_secs(1) / burst, now)
    }

    /// Allows `burst` events, and then one in each interval.
    fn with_burst(burst: u32, interval: Duration, now: Instant) -> Pace {
        Pace {
            interval,
            burst,
            full_at: Cell::new(now),
        }
    }

    /// Waits until the next event is allowed. A caller that is dropped while it waits has used its turn.
    pub(super) async fn turn(&self) {
        sleep_until(self.reserve(Instant::now())).await;
    }

    /// Returns true and counts the event if it is allowed now.
    fn try_turn(&self, now: Instant) -> bool {
        let before = self.full_at.get();
        let is_allowed = self.reserve(now) <= now;
        if !is_allowed {
            self.full_at.set(before);
        }
        is_allowed
    }

    /// Returns when the next event is allowed.
    fn reserve(&self, now: Instant) -> Instant {
        let full_at = self.full_at.get().max(now) + self.interval;
        self.full_at.set(full_at);
        let capacity = self.interval * self.burst;
        now.max(full_at.checked_sub(capacity).unwrap_or(now))
    }
}

/// When the signer was probed. Requests that need a probe at the same time wait for one.
#[derive(Default)]
pub(super) struct ProbeTime(Mutex<Option<Instant>>);

impl ProbeTime {
    /// Probes unless the last success is newer than `age`. Returns true if it did.
    pub(super) async fn renew<E>(
        &self,
        age: Duration,
        probe: impl Future<Output = Result<(), E>>,
    ) -> Result<bool, E> {
        let mut last = self.0.lock().await;
        if last.is_some_and(|at| at.elapsed() < age) {
            return Ok(false);
        }
        probe.await?;
        *last = Some(Instant::now());
        Ok(true)
    }

    /// Has the next request probe, once no other one does.
    pub(super) fn forget(&self) {
        if let Ok(mut last) = self.0.try_lock() {
            *last = None;
        }
    }
}

/// Number of reports about the requests of one user, and interval between further ones.
const USER_REPORTS: (u32, Duration) = (20, Duration::from_secs(60));
/// The same about all requests.
const ALL_REPORTS: (u32, Duration) = (200, Duration::from_millis(500));
/// Number of users that are remembered.
const MAX_USERS: usize = 1000;

/// Limits the number of Events and log lines about requests that wait, so the requests of one user neither fill etcd
/// nor hide the reports about others.
pub(super) struct ReportLimit {
    all: Pace,
    by_user: RefCell<BTreeMap<String, Pace>>,
}

impl ReportLimit {
    pub(super) fn new(now: Instant) -> ReportLimit {
        let (burst, interval) = ALL_REPORTS;
        ReportLimit {
            all: Pace::with_burst(burst, interval, now),
            by_user: RefCell::default(),
        }
    }

    /// Returns true and counts the report if it is allowed now.
    pub(super) fn allows(&self, user: &str, now: Instant) -> bool {
        let mut users = self.by_user.borrow_mut();
        if users.len() >= MAX_USERS {
            users.retain(|_, pace| pace.full_at.get() > now);
        }
        let (burst, interval) = USER_REPORTS;
        let of_user = users
            .entry(user.to_owned())
            .or_insert_with(|| Pace::with_burst(burst, interval, now));
        of_user.try_turn(now) && self.all.try_turn(now)
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

    #[tokio::test(start_paused = true)]
    async fn probes_once_for_simultaneous_requests_and_again_later() {
        let (time, count) = (ProbeTime::default(), Cell::new(0));
        let probe = |result: Result<(), ()>| {
            let count = &count;
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                count.set(count.get() + 1);
                result
            }
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(time.renew(hour, probe(Err(()))).await, Err(()));
        let both = tokio::join!(
            time.renew(hour, probe(Ok(()))),
            time.renew(hour, probe(Ok(())))
        );
        assert_eq!((both, count.get()), ((Ok(true), Ok(false)), 2));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(time.renew(hour, probe(Ok(()))).await, Ok(false));
        let minute = Duration::from_secs(60);
        assert_eq!(time.renew(minute, probe(Ok(()))).await, Ok(true));
        time.forget();
        assert_eq!(time.renew(hour, probe(Ok(()))).await, Ok(true));
    }

    #[test]
    fn limits_reports_of_each_user_and_of_all() {
        let start = Instant::now();
        let limit = ReportLimit::new(start);
        let count = |user: &str, now| (0..1000).filter(|_| limit.allows(user, now)).count();
        assert_eq!(count("evil", start), 20);
        assert_eq!(count("honest", start), 20);
        let later = start + 2 * USER_REPORTS.1;
        assert_eq!(count("evil", later), 2);
        let many = (0..100).map(|user| count(&format!("user-{user}"), later));
        assert_eq!(many.sum::<usize>(), 198);
    }
}
