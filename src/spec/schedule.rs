//! The time at which a certificate is renewed: by the elapsed share of its lifetime, in maintenance windows, at a time that
//! differs between nodes.
//!
//! Pure: the time and the node's name are arguments. All times are UTC. [`due`] decides by age alone;
//! [`assess`](super::assess) compares with the configuration.

mod window;

use std::time::Duration;

use sha2::{Digest, Sha256};
use time::{Duration as Span, OffsetDateTime};

use crate::text::rfc3339;
use crate::yaml::format_duration;

pub use window::{Window, WindowError};

/// Share of the lifetime, before its end, in which a renewal is urgent and waits for no window.
const URGENT_SHARE: f64 = 0.1;
/// Largest share of the lifetime that `min_remaining` can make urgent. Without this limit, a short-lived certificate would
/// be urgent from its first day.
const MAX_URGENT_SHARE: f64 = 0.25;
/// Share of the lifetime, before its end, in which a renewal waits for no other node either.
const LAST_CHANCE_SHARE: f64 = 0.02;
/// Longest such time: components and load balancers notice a new certificate within minutes, and an administrator has until
/// then to complete a CA change.
const MAX_LAST_CHANCE: Span = Span::days(1);
/// Share of the lifetime before which no certificate is due, whatever the configuration.
const EARLIEST_SHARE: f64 = 0.5;
/// Share of a window over which the waiting nodes are spread. The rest remains for retries.
const WINDOW_SPREAD: f64 = 0.5;
/// Longest time after a renewal in which a certificate is not renewed again.
const MAX_RENEWAL_COOLDOWN: Span = Span::hours(1);
/// Share of the lifetime after a renewal in which a certificate is not renewed again.
const RENEWAL_COOLDOWN_SHARE: f64 = 0.25;
/// Longest period of attempts, as a share of the remaining lifetime.
const RETRY_SHARE: f64 = 0.375;
/// Shortest period of attempts.
const MIN_RETRY_PERIOD: Span = Span::seconds(5);
/// Longest period of attempts. With periods much shorter than an outage, the attempts of many nodes coincide after it:
/// `tests/bench/fleet.rs` measures ten thousand nodes.
const MAX_RETRY_PERIOD: Span = Span::hours(3);

/// A percentage from 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    /// 0 %.
    pub const ZERO: Percent = Percent(0);

    /// Returns `None` above 100.
    pub const fn new(percent: u8) -> Option<Self> {
        match percent {
            0..=100 => Some(Percent(percent)),
            _ => None,
        }
    }

    /// Parses `66%`, with or without a space.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_suffix('%')?.trim_end();
        let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        Percent::new(digits.parse().ok().filter(|_| all_digits)?)
    }

    fn share(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl std::fmt::Display for Percent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// When a certificate has to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAt {
    /// Once this share of its lifetime has elapsed.
    Share(Percent),
    /// This long before its expiry.
    Before(Duration),
}

impl std::fmt::Display for RenewAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RenewAt::Share(percent) => percent.fmt(f),
            RenewAt::Before(before) => f.write_str(&format_duration(*before)),
        }
    }
}

words! {
    /// When a changed key policy takes effect for a certificate that is usable.
    #[derive(Default)]
    pub enum OnPolicyChange {
        /// At the next run.
        Now = "now",
        /// When the certificate is renewed for another reason. OpenShift's proposal for a PKI policy excludes an automatic
        /// rotation for the sake of new parameters, as each renewal of a kubeconfig restarts a component.
        #[default]
        NextRenewal = "nextRenewal",
    }
}

/// The configured rules of rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// When a certificate is due.
    pub renew_at: RenewAt,
    /// Share of the lifetime by which nodes renew earlier at most; the amount differs between nodes.
    pub jitter: Percent,
    /// A certificate is due at the latest when this time is left.
    pub min_remaining: Duration,
    /// Windows in which renewals happen; without any, they happen at any time.
    pub windows: Vec<Window>,
    /// True to generate a new key for each renewal.
    pub rekey: bool,
    /// When a changed key algorithm takes effect.
    pub on_policy_change: OnPolicyChange,
}

impl Default for Rotation {
    fn default() -> Self {
        Rotation {
            renew_at: RenewAt::Share(Percent(66)),
            jitter: Percent(10),
            min_remaining: Duration::from_secs(3600),
            windows: Vec::new(),
            rekey: true,
            on_policy_change: OnPolicyChange::NextRenewal,
        }
    }
}

impl Rotation {
    /// Returns why `renewAt` has no effect for a certificate with this lifetime: nothing is renewed before half of it.
    pub fn without_effect(&self, lifetime: Duration) -> Option<String> {
        let half = lifetime.mul_f64(EARLIEST_SHARE);
        let is_early = match self.renew_at {
            RenewAt::Share(percent) => percent.share() < EARLIEST_SHARE,
            RenewAt::Before(before) => before > half,
        };
        is_early.then(|| {
            format!(
                "rotation.renewAt: {} has no effect: no certificate is renewed before half of its lifetime (use 50% or more, or at most {})",
                self.renew_at,
                format_duration(half)
            )
        })
    }
}

/// The lifetime of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertLife {
    /// Time of issue, which may differ from `not_before`.
    pub issued_at: OffsetDateTime,
    /// The end of its validity.
    pub not_after: OffsetDateTime,
}

impl CertLife {
    /// Returns the length of the lifetime, which is never negative.
    pub fn length(&self) -> Span {
        (self.not_after - self.issued_at).max(Span::ZERO)
    }

    /// Returns the time from which a renewal is urgent.
    fn urgent_from(&self, rotation: &Rotation) -> OffsetDateTime {
        let length = self.length();
        let floor = span(rotation.min_remaining).min(part(length, MAX_URGENT_SHARE));
        self.not_after - part(length, URGENT_SHARE).max(floor)
    }

    /// Returns true if the expiry is so near that a renewal does not wait for a window.
    pub(crate) fn is_urgent(&self, rotation: &Rotation, now: OffsetDateTime) -> bool {
        now >= self.urgent_from(rotation)
    }

    /// Returns true if the expiry is so near that a certificate is replaced even by one that other nodes may not trust yet.
    pub(crate) fn is_about_to_end(&self, now: OffsetDateTime) -> bool {
        now >= self.not_after - part(self.length(), LAST_CHANCE_SHARE).min(MAX_LAST_CHANCE)
    }

    /// Returns the time until which a certificate that was just renewed is not renewed again: the reason for another
    /// renewal existed before, and the renewal did not resolve it.
    pub(crate) fn cools_until(&self) -> OffsetDateTime {
        self.issued_at + part(self.length(), RENEWAL_COOLDOWN_SHARE).min(MAX_RENEWAL_COOLDOWN)
    }
}

/// The result of judging a certificate by its age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DueState {
    /// It is not due yet.
    Later {
        /// The time at which it will be due.
        at: OffsetDateTime,
    },
    /// It is due, but waits for a window.
    Waits {
        /// This node's time in the window.
        at: OffsetDateTime,
        /// The rule by which it is due.
        due: Due,
    },
    /// It is due now.
    Now {
        /// The rule by which it is due.
        due: Due,
        /// True if the expiry is so near that a failure must be reported.
        urgent: bool,
        /// The reason why it does not wait for a configured window.
        no_window: Option<NoWindow>,
    },
}

/// When a certificate is due, and by which rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("due since {}: {rule}", rfc3339(*at))]
pub struct Due {
    /// Time at which it is due.
    pub at: OffsetDateTime,
    /// The rule.
    pub rule: DueRule,
}

/// The rule that determines when a certificate is due.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DueRule {
    /// No certificate is due earlier.
    #[error("half of its life of {} is over, the earliest possible time", length_in_words(*life))]
    HalfOver {
        /// Its lifetime.
        life: Span,
    },
    /// `rotation.minRemaining`.
    #[error("no more than {} of its life of {} is left", length_in_words(*left), length_in_words(*life))]
    LittleLeft {
        /// The rest.
        left: Span,
        /// Its lifetime.
        life: Span,
    },
    /// `rotation.renewAt`, as a share of the lifetime.
    #[error("{percent} % of its life of {} is over", length_in_words(*life))]
    ShareOver {
        /// The share.
        percent: i64,
        /// Its lifetime.
        life: Span,
    },
    /// `rotation.renewAt`, as a time before the expiry.
    #[error("it ends within {}", length_in_words(*left))]
    EndsSoon {
        /// The rest of its lifetime.
        left: Span,
    },
}

/// The reason why a renewal does not wait for a configured window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWindow {
    /// The next one opens too late.
    #[error(
        "the next window opens at {}, too late for a certificate that expires at {}: it is renewed outside of the windows",
        rfc3339(*opens),
        rfc3339(*not_after)
    )]
    WindowTooLate {
        /// Time at which it opens.
        opens: OffsetDateTime,
        /// Expiry of the certificate.
        not_after: OffsetDateTime,
    },
    /// None ever opens.
    #[error("no window ever opens: it is renewed outside of the windows")]
    WindowNeverOpens,
}

codes!(NoWindow {
    WindowTooLate,
    WindowNeverOpens
});

/// Returns the time at which a certificate is due on this node, with the rule.
pub fn due_at(life: &CertLife, rotation: &Rotation, node: &str) -> Due {
    let length = life.length();
    let jitter = part(
        length,
        rotation.jitter.share() * place_of(node, Purpose::Due),
    );
    let by_rule = match rotation.renew_at {
        RenewAt::Share(percent) => life.issued_at + part(length, percent.share()),
        RenewAt::Before(before) => back(life.not_after, before),
    };
    let by_floor = back(life.not_after, rotation.min_remaining);
    let half = life.issued_at + part(length, EARLIEST_SHARE);
    let at = by_rule.min(by_floor) - jitter;
    if at < half {
        let rule = DueRule::HalfOver { life: length };
        return Due { at: half, rule };
    }
    let left = life.not_after - at;
    let rule = match rotation.renew_at {
        _ if by_floor < by_rule => DueRule::LittleLeft { left, life: length },
        RenewAt::Share(_) => DueRule::ShareOver {
            percent: ((at - life.issued_at) / length * 100.0).round() as i64,
            life: length,
        },
        RenewAt::Before(_) => DueRule::EndsSoon { left },
    };
    Due { at, rule }
}

/// Decides by age whether a certificate is renewed.
pub fn due(life: &CertLife, rotation: &Rotation, node: &str, now: OffsetDateTime) -> DueState {
    let due = due_at(life, rotation, node);
    if now < due.at {
        return DueState::Later { at: due.at };
    }
    match in_window(life, rotation, node, now) {
        Wait::Until { turn, .. } => DueState::Waits { at: turn, due },
        Wait::No(no_window) => DueState::Now {
            due,
            urgent: life.is_urgent(rotation, now),
            no_window,
        },
    }
}

/// The result of looking for a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A window is open, none is configured, or none opens in time. Contains the reason of the last case.
    No(Option<NoWindow>),
    /// Wait for a window.
    Until {
        /// Time at which it opens.
        opens: OffsetDateTime,
        /// This node's time, which differs between nodes so that a fleet does not send all requests when the window opens.
        turn: OffsetDateTime,
    },
}

/// Returns the window in which to renew a certificate that is usable.
pub(crate) fn in_window(
    life: &CertLife,
    rotation: &Rotation,
    node: &str,
    now: OffsetDateTime,
) -> Wait {
    let windows = &rotation.windows;
    if windows.is_empty() || windows.iter().any(|window| window.is_open(now)) {
        return Wait::No(None);
    }
    let next = windows
        .iter()
        .filter_map(|window| Some((window.next(now)?, window.length())))
        .min();
    let urgent_from = life.urgent_from(rotation);
    match next {
        Some((opens, length)) if opens < urgent_from => Wait::Until {
            opens,
            turn: (opens + part(length, WINDOW_SPREAD * place_of(node, Purpose::Due)))
                .min(urgent_from),
        },
        Some((opens, _)) => Wait::No(Some(NoWindow::WindowTooLate {
            opens,
            not_after: life.not_after,
        })),
        None => Wait::No(Some(NoWindow::WindowNeverOpens)),
    }
}

/// Returns the time of the next attempt after a failure. A node tries at times of its own with a constant period, which
/// halves several times towards the expiry: after an outage of any length, the attempts of a fleet are spread evenly over
/// a period.
pub fn retry_at(life: Option<&CertLife>, node: &str, now: OffsetDateTime) -> OffsetDateTime {
    let left = life.map_or(Span::ZERO, |life| life.not_after - now);
    let longest = part(left, RETRY_SHARE).max(MIN_RETRY_PERIOD);
    let mut period = MAX_RETRY_PERIOD;
    while period > longest {
        period /= 2;
    }
    let earliest = now + MIN_RETRY_PERIOD / 2;
    let elapsed: Span = earliest - OffsetDateTime::UNIX_EPOCH;
    let wait = (place_of(node, Purpose::Retry) - elapsed / period).rem_euclid(1.0);
    earliest + part(period, wait)
}

/// What a node's place is for. The places are independent: otherwise the retries of nodes that are due early would coincide
/// with the first attempts of nodes that are due late.
#[derive(Clone, Copy)]
enum Purpose {
    Due,
    Retry,
}

/// Returns a number from 0 to 1 for a node and a purpose. It is constant, and evenly distributed over nodes: more evenly
/// than at random over nodes whose names differ in their last number only, as in a fleet.
fn place_of(node: &str, purpose: Purpose) -> f64 {
    // Multiples of these, modulo 1, are evenly distributed in every part of the sequence (Weyl's criterion).
    let (label, step) = match purpose {
        Purpose::Due => ("", 2_f64.sqrt()),
        Purpose::Retry => ("retry", 3_f64.sqrt()),
    };
    let (name, number) = without_last_number(node);
    let digest = Sha256::new().chain_update(name).chain_update(label);
    let [a, b, c, d, ..] = <[u8; 32]>::from(digest.finalize());
    let start = f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX);
    (start + f64::from(number) * step).fract()
}

/// Removes the last number of the host name, and returns it; 0 without one.
fn without_last_number(node: &str) -> (String, u32) {
    let host = node.split('.').next().unwrap_or(node);
    let is_digit = |c: char| c.is_ascii_digit();
    let Some(end) = host.rfind(is_digit).map(|last| last + 1) else {
        return (node.to_owned(), 0);
    };
    let begin = host[..end].trim_end_matches(is_digit).len();
    // Numbers that differ in their leading digits only are as good as names.
    let begin = begin.max(end.saturating_sub(9));
    let number = host[begin..end].parse().unwrap_or_default();
    (format!("{}{}", &node[..begin], &node[end..]), number)
}

fn part(length: Span, share: f64) -> Span {
    Span::saturating_seconds_f64(length.as_seconds_f64() * share)
}

fn span(duration: Duration) -> Span {
    Span::try_from(duration).unwrap_or(Span::MAX)
}

/// Returns the time `by` before `from`, or the Unix epoch if it is not representable.
fn back(from: OffsetDateTime, by: Duration) -> OffsetDateTime {
    from.checked_sub(span(by))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Returns the length in words, to the second below an hour and to the minute from there on.
pub(crate) fn length_in_words(length: Span) -> String {
    let seconds = length.as_seconds_f64().max(0.0).round() as u64;
    let seconds = match seconds {
        0..3600 => seconds,
        _ => (seconds + 30) / 60 * 60,
    };
    format_duration(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests;
