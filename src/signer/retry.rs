//! Delays between attempts and between polls. Pure: jitter is an argument.

use std::time::Duration;

use super::FailureClass;

/// Longest delay that a signer may request; a mistyped `Retry-After` beyond it would block a node.
pub(crate) const MAX_REQUESTED_DELAY: Duration = Duration::from_secs(60 * 60);

/// Number of submissions for one certificate that are as close together as [`delay`] permits, over all runs.
const PROMPT_SUBMISSIONS: u32 = 8;
/// Shortest time between two further ones. A signer may issue a certificate for each of them, although its answer is lost,
/// or wait for an approval of each. With the prompt ones, there are at most 20 within an hour.
const SUBMISSION_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// After this time without a submission, the next ones are prompt again.
pub(crate) const SUBMISSION_MEMORY: Duration = Duration::from_secs(60 * 60);

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the delay after the `attempt`th consecutive failure (from 1), or `None` to give up. `random` is uniform in
/// [0, 1). The number of attempts is limited by the caller's deadline, not here.
pub fn delay(
    class: FailureClass,
    attempt: u32,
    retry_after: Option<Duration>,
    random: f64,
) -> Option<Duration> {
    let delay = match class {
        // Full jitter, so nodes that boot together do not send requests together.
        FailureClass::Transient | FailureClass::Ambiguous => {
            doubled(Duration::from_secs(1), attempt, 5 * MINUTE).mul_f64(fraction(random))
        }
        // Half jitter: an immediate second attempt with a refused credential is useless.
        FailureClass::Auth => doubled(Duration::from_secs(30), attempt, 10 * MINUTE)
            .mul_f64(0.5 + fraction(random) / 2.0),
        FailureClass::Config => 5 * MINUTE,
        FailureClass::Permanent => return None,
    };
    Some(match retry_after {
        // The signer's value is the earliest time; the jitter is added to spread its clients.
        Some(wish) => wish.min(MAX_REQUESTED_DELAY) + delay.min(wish.min(MAX_REQUESTED_DELAY) / 10),
        None => delay,
    })
}

/// Returns the delay before the `poll`th poll (from 0) of a pending request. A restart begins again with the short
/// delays. A delay requested by the signer takes precedence.
pub fn poll_delay(poll: u32, after: Option<Duration>) -> Duration {
    match after {
        Some(wish) => wish.clamp(Duration::from_secs(1), MAX_REQUESTED_DELAY),
        None => match poll {
            0..=2 => Duration::from_secs(5),
            3..=5 => Duration::from_secs(30),
            6..=9 => 2 * MINUTE,
            _ => 5 * MINUTE,
        },
    }
}

/// Returns how long to wait until the next submission for a certificate, if there were `count` without success, the last one
/// `since_last` ago.
pub fn submission_delay(count: u32, since_last: Duration) -> Duration {
    match count {
        0..PROMPT_SUBMISSIONS => Duration::ZERO,
        _ => SUBMISSION_INTERVAL.saturating_sub(since_last),
    }
}

fn doubled(first: Duration, attempt: u32, most: Duration) -> Duration {
    let factor = 2u32.saturating_pow(attempt.saturating_sub(1).min(16));
    first.saturating_mul(factor).min(most)
}

fn fraction(random: f64) -> f64 {
    if random.is_finite() {
        random.clamp(0.0, 1.0)
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_grows_to_maximum() {
        let seconds = |class, attempt| delay(class, attempt, None, 1.0).unwrap().as_secs();
        assert_eq!(
            [1, 2, 3, 9, 10, 4_000_000_000]
                .map(|attempt| seconds(FailureClass::Transient, attempt)),
            [1, 2, 4, 256, 300, 300]
        );
        assert_eq!(
            [1, 2, 6, 99].map(|attempt| seconds(FailureClass::Auth, attempt)),
            [30, 60, 600, 600]
        );
        assert_eq!(seconds(FailureClass::Config, 1), 300);
        assert_eq!(delay(FailureClass::Permanent, 1, Some(MINUTE), 0.5), None);
    }

    #[test]
    fn jitter_never_shortens_requested_delay() {
        assert_eq!(
            delay(FailureClass::Transient, 5, None, 0.0),
            Some(Duration::ZERO)
        );
        assert_eq!(
            delay(FailureClass::Auth, 1, None, 0.0),
            Some(Duration::from_secs(15))
        );
        assert_eq!(
            delay(FailureClass::Transient, 1, Some(MINUTE), 0.0),
            Some(MINUTE)
        );
        assert_eq!(
            delay(FailureClass::Transient, 9, Some(MINUTE), 1.0),
            Some(Duration::from_secs(66))
        );
        assert!(
            delay(FailureClass::Transient, 1, Some(Duration::MAX), f64::NAN).unwrap()
                < 2 * 60 * MINUTE
        );
    }

    #[test]
    fn limits_submissions_within_an_hour() {
        let second = Duration::from_secs(1);
        let (mut at, mut last, mut times) = (Duration::ZERO, Duration::ZERO, Vec::new());
        while at < 3 * SUBMISSION_MEMORY {
            at += second;
            if submission_delay(times.len() as u32, at - last).is_zero() {
                times.push(at);
                last = at;
            }
        }
        let within = |from: &Duration| {
            let hour = *from..*from + SUBMISSION_MEMORY;
            times.iter().filter(|at| hour.contains(*at)).count()
        };
        assert_eq!(times.iter().map(within).max(), Some(19));
        assert_eq!(
            times.last(),
            Some(&(PROMPT_SUBMISSIONS * second + 35 * 5 * MINUTE))
        );
    }

    #[test]
    fn poll_delay_grows_in_steps() {
        let waits: Vec<u64> = (0..12)
            .map(|poll| poll_delay(poll, None).as_secs())
            .collect();
        assert_eq!(waits, [5, 5, 5, 30, 30, 30, 120, 120, 120, 120, 300, 300]);
        assert_eq!(poll_delay(0, Some(Duration::ZERO)).as_secs(), 1);
        assert_eq!(poll_delay(0, Some(Duration::MAX)), MAX_REQUESTED_DELAY);
    }
}
