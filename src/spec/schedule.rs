//! When a certificate is renewed: by the share of its life that is over, in maintenance windows, each node at its own
//! time.
//!
//! Pure: the time and the node's name are arguments. All times are UTC. [`due`] decides about age alone; what differs
//! from the configuration is `assess`'s business, and so is what a run does about both.

mod window;

use std::time::Duration;

use sha2::{Digest, Sha256};
use time::{Duration as Span, OffsetDateTime};

use crate::x509::rfc3339;
use crate::yaml::format_duration;

pub use window::{Fault, Window};

/// Of the time that is left at the end, which no window and no patience may use up.
const MARGIN: f64 = 0.1;
/// A floor longer than this part of a life would make every certificate urgent from its first day.
const LARGEST_MARGIN: f64 = 0.25;
/// No configuration has a certificate renewed before this part of its life is over.
const EARLIEST: f64 = 0.5;
/// The part of a window over which the nodes that wait for it are spread; the rest is for those that fail at first.
const SPREAD: f64 = 0.5;
/// The longest time between two renewals of one certificate.
const HOUR: Span = Span::hours(1);
/// Between two tries: this part of what is left.
const RETRY: f64 = 0.25;
/// The shortest and the longest time between two tries. Tries that are much less than an outage apart meet each other
/// after it: `tests/bench/fleet.rs` tells what ten thousand nodes make of these numbers.
const SHORTEST_RETRY: Span = Span::seconds(5);
const LONGEST_RETRY: Span = Span::hours(2);

/// A share, from 0 to 100 in a hundred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    /// Nothing.
    pub const ZERO: Percent = Percent(0);

    /// `None` above 100.
    pub const fn new(percent: u8) -> Option<Self> {
        match percent {
            0..=100 => Some(Percent(percent)),
            _ => None,
        }
    }

    /// Reads `66%`, with or without a space.
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
    /// Once this share of its life is over.
    Share(Percent),
    /// So long before its end.
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

/// The rules of rotation, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// When a certificate is due.
    pub renew_at: RenewAt,
    /// By up to this share of its life a node renews earlier, each node by its own amount.
    pub jitter: Percent,
    /// It is due at the latest when no more than this is left.
    pub min_remaining: Duration,
    /// When renewals may happen; always, when there is none.
    pub windows: Vec<Window>,
    /// A new key for every renewal; otherwise the key stays.
    pub rekey: bool,
}

impl Default for Rotation {
    fn default() -> Self {
        Rotation {
            renew_at: RenewAt::Share(Percent(66)),
            jitter: Percent(10),
            min_remaining: Duration::from_secs(3600),
            windows: Vec::new(),
            rekey: true,
        }
    }
}

/// From when to when a certificate lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// When it was issued; `not_before` may tell something else.
    pub issued_at: OffsetDateTime,
    /// The end of its validity.
    pub not_after: OffsetDateTime,
}

impl Life {
    /// How long it is, as far as it is any time at all.
    pub fn length(&self) -> Span {
        (self.not_after - self.issued_at).max(Span::ZERO)
    }

    /// What no window and no failure may use up: beyond this moment a renewal is urgent.
    fn margin_begins(&self, rotation: &Rotation) -> OffsetDateTime {
        let length = self.length();
        let floor = span(rotation.min_remaining).min(part(length, LARGEST_MARGIN));
        self.not_after - part(length, MARGIN).max(floor)
    }

    /// Whether it ends so soon that a renewal can wait for nothing.
    pub fn is_urgent(&self, rotation: &Rotation, now: OffsetDateTime) -> bool {
        now >= self.margin_begins(rotation)
    }

    /// Until when a certificate that was just renewed is left alone: whatever speaks for another renewal spoke before it,
    /// and was not mended by it.
    pub fn cools_until(&self) -> OffsetDateTime {
        self.issued_at + part(self.length(), 0.25).min(HOUR)
    }
}

/// What follows from a certificate's age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Not yet.
    Later {
        /// When it will be.
        at: OffsetDateTime,
    },
    /// It is, and waits for a window.
    Waits {
        /// When it is this node's turn in the window.
        at: OffsetDateTime,
        /// Why it is due, in words.
        reason: String,
    },
    /// It is.
    Now {
        /// Why, in words.
        reason: String,
        /// It ends so soon that a failure must be told.
        urgent: bool,
        /// Why no window is waited for although there are some, in words.
        no_window: Option<String>,
    },
}

/// When a certificate with this life is due on this node, and why then.
pub fn due_at(life: &Life, rotation: &Rotation, node: &str) -> (OffsetDateTime, String) {
    let length = life.length();
    let words = length_in_words(length);
    let jitter = part(length, rotation.jitter.share() * share_of(node, ""));
    let by_rule = match rotation.renew_at {
        RenewAt::Share(percent) => life.issued_at + part(length, percent.share()),
        RenewAt::Before(before) => back(life.not_after, before),
    };
    let by_floor = back(life.not_after, rotation.min_remaining);
    let half = life.issued_at + part(length, EARLIEST);
    let at = by_rule.min(by_floor) - jitter;
    if at < half {
        let reason = format!("half of its life of {words} is over, and no earlier is possible");
        return (half, reason);
    }
    let reason = match rotation.renew_at {
        _ if by_floor < by_rule => format!(
            "no more than {} of its life of {words} is left",
            length_in_words(life.not_after - at)
        ),
        RenewAt::Share(_) => format!(
            "{} % of its life of {words} is over",
            ((at - life.issued_at) / length * 100.0).round()
        ),
        RenewAt::Before(_) => format!("it ends within {}", length_in_words(life.not_after - at)),
    };
    (at, reason)
}

/// Decides by age.
pub fn due(life: &Life, rotation: &Rotation, node: &str, now: OffsetDateTime) -> Due {
    let (at, why) = due_at(life, rotation, node);
    if now < at {
        return Due::Later { at };
    }
    let reason = format!("due since {}: {why}", rfc3339(at));
    match in_window(life, rotation, node, now) {
        Wait::Until { turn, .. } => Due::Waits { at: turn, reason },
        Wait::No(no_window) => Due::Now {
            reason,
            urgent: life.is_urgent(rotation, now),
            no_window,
        },
    }
}

/// Whether something that can wait has to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A window is open, there is none, or none opens in time; the last in words.
    No(Option<String>),
    /// Until a window is open.
    Until {
        /// When it opens.
        opens: OffsetDateTime,
        /// When it is this node's turn: a fleet that waits for one window must not ask all at once when it opens.
        turn: OffsetDateTime,
    },
}

/// Looks for the window in which to renew a certificate that serves.
pub fn in_window(life: &Life, rotation: &Rotation, node: &str, now: OffsetDateTime) -> Wait {
    let windows = &rotation.windows;
    if windows.is_empty() || windows.iter().any(|window| window.is_open(now)) {
        return Wait::No(None);
    }
    let next = windows
        .iter()
        .filter_map(|window| Some((window.next(now)?, window.length())))
        .min();
    let margin = life.margin_begins(rotation);
    match next {
        Some((opens, length)) if opens < margin => Wait::Until {
            opens,
            turn: (opens + part(length, SPREAD * share_of(node, ""))).min(margin),
        },
        Some((opens, _)) => Wait::No(Some(format!(
            "the next window opens at {}, too late for a certificate that ends at {}: it is renewed outside of any window",
            rfc3339(opens),
            rfc3339(life.not_after)
        ))),
        None => Wait::No(Some(
            "no window ever opens: it is renewed outside of any".to_owned(),
        )),
    }
}

/// When to try again after a failure: the nearer the end, the sooner, and each node at its own time.
pub fn retry_at(life: Option<&Life>, node: &str, now: OffsetDateTime) -> OffsetDateTime {
    let left = life.map_or(Span::ZERO, |life| life.not_after - now);
    let wait = part(left, RETRY).clamp(SHORTEST_RETRY, LONGEST_RETRY);
    // Not the share that it is due by: who is due late would be tried again early, and meet those who are due then.
    now + part(wait, 0.5 + share_of(node, "retry") / 2.0)
}

/// From 0 to 1, the same for the same name and spread evenly over all names; another one for each purpose.
fn share_of(node: &str, purpose: &str) -> f64 {
    let digest = Sha256::new().chain_update(node).chain_update(purpose);
    let [a, b, c, d, ..] = <[u8; 32]>::from(digest.finalize());
    f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
}

fn part(length: Span, share: f64) -> Span {
    Span::saturating_seconds_f64(length.as_seconds_f64() * share)
}

fn span(duration: Duration) -> Span {
    Span::try_from(duration).unwrap_or(Span::MAX)
}

/// A time so long before; the beginning of time, where there is none.
fn back(from: OffsetDateTime, by: Duration) -> OffsetDateTime {
    from.checked_sub(span(by))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// To the second, or to the minute where it is long.
pub fn length_in_words(length: Span) -> String {
    let seconds = length.as_seconds_f64().max(0.0).round() as u64;
    let seconds = match seconds {
        0..3600 => seconds,
        _ => (seconds + 30) / 60 * 60,
    };
    format_duration(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests;
