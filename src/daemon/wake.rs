//! What the daemon does next, and when.
//!
//! Pure: it is told what happened, what time it is and how long the machine has run, and answers with the next piece of
//! work or the moment until which to sleep. To add something that happens at a time of its own: a field with its moment,
//! a [`Next`], and its place in [`Agenda::next`].

use std::time::Duration;

use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::agent::report::Row;
use crate::agent::{ExitCode, Failure, Report};
use crate::spec::schedule::{self, Life};
use crate::x509::rfc3339;
use crate::yaml::format_duration;

/// A clock that goes back by more than this is not believed at once.
const BELIEVABLE: Duration = Duration::from_secs(5 * 60);
/// So long a clock that went back has time to come to itself; then it is believed.
const DISBELIEF: Duration = Duration::from_secs(60 * 60);
/// Where nothing serves that could be kept: the first wait after a failure, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10 * 60));
/// No two steps follow each other more closely, whatever asked for them.
const BREATH: Duration = Duration::from_secs(1);
/// While another run holds the lock.
const TURN: Duration = Duration::from_secs(5);
/// Who rewrites files as often as this is told apart from one who does it once: each further time waits longer.
const QUIET: Duration = Duration::from_secs(10 * 60);
/// Between two looks at the signers' revocation lists.
const LISTS: Duration = Duration::from_secs(5 * 60);

/// Why a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The daemon has just started.
    Start,
    /// Something is due, or may be tried again.
    Due,
    /// Somebody changed files.
    Files,
    /// The configuration was read again.
    Reload,
    /// The clock was set.
    Clock,
    /// A new revocation list is in place.
    Lists,
}

impl Why {
    /// For the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Why::Start => "start",
            Why::Due => "due",
            Why::Files => "files changed",
            Why::Reload => "configuration read",
            Why::Clock => "clock set",
            Why::Lists => "new revocation list",
        }
    }
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Take a step.
    Step(Why),
    /// Look at the signers' revocation lists.
    Lists,
    /// Nothing until then; without a moment, nothing until something happens.
    Sleep(Option<OffsetDateTime>),
}

/// What a step came to, as far as the next one depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When something will be due, or may be tried again.
    pub next: Option<OffsetDateTime>,
    /// The first end of validity among what is open, or among everything where nothing is; `None` where something does
    /// not serve, or nothing is known.
    pub ends: Option<OffsetDateTime>,
    /// What was wanted and could not be done.
    pub open: Option<Open>,
}

/// What could not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Open {
    /// Some of it, or all, in words; `person` when nobody else can mend it.
    Trouble {
        /// Which certificates, and why.
        what: String,
        /// Signer, policy or configuration have to change first.
        person: bool,
    },
    /// Every certificate is in place, and not everything that reads them has taken them up; in words.
    Restart(String),
    /// Another run is at work.
    Busy(String),
}

impl Ended {
    /// From the report of a step.
    pub fn of(report: &Report, next: Option<OffsetDateTime>) -> Self {
        let leaves = || report.rows.iter().filter(|row| row.authority.is_some());
        let open: Vec<_> = leaves()
            .filter(|row| row.code.is_some() || row.is_overdue())
            .chain(report.rows.iter().filter(|row| row.is_refused_pair()))
            .collect();
        let ends = |rows: &[&Row]| {
            let ends = rows.iter().map(|row| row.not_after);
            ends.reduce(|a, b| a.zip(b).map(|(a, b)| a.min(b)))
                .flatten()
        };
        let Some(first) = open.first() else {
            let ends = ends(&leaves().collect::<Vec<_>>());
            let stuck = report.rows.iter().find(|row| row.code.is_some());
            return Ended {
                next,
                ends,
                open: stuck.map(|row| {
                    let why = row.reasons.join("; ");
                    Open::Restart(format!("{} {}: {why}", row.name, row.action))
                }),
            };
        };
        let names: Vec<_> = open.iter().map(|row| row.name.as_str()).collect();
        let names = match &names[..] {
            [one, another, _, rest @ ..] => {
                format!("{one}, {another} and {} more", rest.len() + 1)
            }
            few => few.join(", "),
        };
        let why = first
            .reasons
            .first()
            .map_or("no reason is known", String::as_str);
        Ended {
            next,
            ends: ends(&open),
            open: Some(Open::Trouble {
                what: format!("{names} {}: {why}", first.action),
                person: open.iter().all(|row| row.code.is_some_and(needs_person)),
            }),
        }
    }

    /// From a step that was not taken, since `holder` has the lock.
    pub fn busy(holder: String) -> Self {
        Ended {
            next: None,
            ends: None,
            open: Some(Open::Busy(holder)),
        }
    }

    /// From a step that could do nothing.
    pub fn failed(failure: &Failure) -> Self {
        Ended {
            next: None,
            ends: None,
            open: Some(Open::Trouble {
                what: failure.messages.join("; "),
                person: needs_person(failure.code),
            }),
        }
    }
}

fn needs_person(code: ExitCode) -> bool {
    !matches!(
        code,
        ExitCode::Done | ExitCode::Pending | ExitCode::Unreachable
    )
}

/// What the daemon has before it.
#[derive(Clone, Debug)]
pub struct Agenda {
    node: String,
    step: Option<(OffsetDateTime, Why)>,
    lists: Option<OffsetDateTime>,
    /// Steps in a row that left something open.
    failures: u32,
    /// See [`Ended::ends`]; kept over steps that could do nothing.
    ends: Option<OffsetDateTime>,
    /// What the clock and the counter of running time showed at the last look.
    seen: (OffsetDateTime, Duration),
    held: Option<Held>,
    /// How often in a row files were changed, and when last.
    files: Option<(u32, Duration)>,
    /// Another run has the lock.
    busy: bool,
    words: String,
}

/// The clock went back, and is not believed.
#[derive(Clone, Debug)]
struct Held {
    /// What it should have shown when it was noticed.
    expected: OffsetDateTime,
    /// Running time then.
    since: Duration,
}

impl Agenda {
    /// For a daemon that starts: the first step is due at once, and a look at the revocation lists where a signer may
    /// publish some.
    pub fn new(node: &str, lists: bool, now: OffsetDateTime, ran: Duration) -> Self {
        Agenda {
            node: node.to_owned(),
            step: Some((now, Why::Start)),
            lists: lists.then_some(now),
            failures: 0,
            ends: None,
            seen: (now, ran),
            held: None,
            files: None,
            busy: false,
            words: "starting".to_owned(),
        }
    }

    /// What to do now. `ran` counts while the machine sleeps too, and nobody sets it.
    pub fn next(&mut self, now: OffsetDateTime, ran: Duration) -> Next {
        self.look_at_clock(now, ran);
        if let Some(held) = &self.held {
            return Next::Sleep(Some(now + (held.since + DISBELIEF).saturating_sub(ran)));
        }
        match self.step {
            Some((at, why)) if at <= now => return Next::Step(why),
            _ => {}
        }
        if self.lists.is_some_and(|at| at <= now) {
            return Next::Lists;
        }
        let step = self.step.map(|(at, _)| at);
        Next::Sleep(step.into_iter().chain(self.lists).min())
    }

    /// How things are, for people.
    pub fn status(&self) -> &str {
        &self.words
    }

    /// Whether the clock is not believed.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether the next step waits for another run to release the lock.
    pub fn waits_for_lock(&self) -> bool {
        self.busy
    }

    /// A step ended.
    pub fn stepped(&mut self, ended: Ended, now: OffsetDateTime) {
        self.busy = matches!(ended.open, Some(Open::Busy(_)));
        let at = match ended.open {
            None | Some(Open::Restart(_)) => {
                self.failures = 0;
                self.ends = ended.ends;
                let what = match ended.open {
                    Some(Open::Restart(what)) => {
                        format!("every certificate is in place, but not in effect: {what}")
                    }
                    _ => "everything is in place".to_owned(),
                };
                self.words = match ended.next {
                    Some(at) => format!("{what}; next at {}", rfc3339(at)),
                    None => format!("{what}, and nothing will be due"),
                };
                ended.next
            }
            Some(Open::Busy(holder)) => {
                self.words = format!("another run holds the lock: {holder}; waiting for it to end");
                Some(now + TURN)
            }
            Some(Open::Trouble { what, person }) => {
                self.failures = self.failures.saturating_add(1);
                if ended.next.is_some() {
                    self.ends = ended.ends;
                }
                let at = self.retry_at(ended.next, person, now);
                let who = if person {
                    "somebody has to see to it"
                } else {
                    "it passes by itself or is tried again"
                };
                let left = match self.ends {
                    Some(ends) if ends > now => {
                        format!("what is in place serves until {}", rfc3339(ends))
                    }
                    _ => "not everything serves".to_owned(),
                };
                self.words = format!("{what}; {who}, next at {}; {left}", rfc3339(at));
                Some(at)
            }
        };
        self.step = at.map(|at| (at.max(now + BREATH), Why::Due));
    }

    /// A look at the revocation lists ended; `again` when there are any, `new` when one was put in place.
    pub fn listed(&mut self, again: bool, new: bool, now: OffsetDateTime) {
        self.lists = again.then(|| now + LISTS.mul_f64(0.9 + self.fraction(0) / 5.0));
        if new {
            self.step_by(now, Why::Lists);
        }
    }

    /// Somebody changed files. Once is answered at once; who does it again and again is answered ever more slowly.
    pub fn files_changed(&mut self, now: OffsetDateTime, ran: Duration) {
        let again = match self.files {
            Some((times, last)) if ran.saturating_sub(last) < QUIET => times.saturating_add(1),
            _ => 0,
        };
        self.files = Some((again, ran));
        let wait = match again {
            0 => Duration::ZERO,
            again => doubled(BREATH, again).min(QUIET),
        };
        self.step_by(now + wait, Why::Files);
    }

    /// Another configuration is in force. Who orders that has seen the clock.
    pub fn reloaded(&mut self, node: &str, lists: bool, now: OffsetDateTime, ran: Duration) {
        self.node = node.to_owned();
        self.failures = 0;
        self.held = None;
        self.seen = (now, ran);
        self.lists = lists.then_some(now);
        self.step = Some((now, Why::Reload));
    }

    /// The new configuration is broken.
    pub fn kept_configuration(&mut self, what: &str) {
        self.words =
            format!("the new configuration is faulty and the one before stays in force: {what}");
    }

    fn step_by(&mut self, at: OffsetDateTime, why: Why) {
        if self.step.is_none_or(|(planned, _)| at < planned) {
            self.step = Some((at, why));
        }
    }

    /// Each failure waits longer than the one before, each node by its own amount: nodes that boot together must not ask
    /// together for ever. While something serves, its remaining life demands more.
    fn retry_at(
        &self,
        next: Option<OffsetDateTime>,
        person: bool,
        now: OffsetDateTime,
    ) -> OffsetDateTime {
        let (first, longest) = BACKOFF;
        let patience = match person {
            true => longest.mul_f64(0.5 + self.fraction(self.failures) / 2.0),
            false => doubled(first, self.failures.saturating_sub(1))
                .min(longest)
                .mul_f64(self.fraction(self.failures)),
        };
        let patient = now + patience;
        match self.ends.filter(|ends| *ends > now) {
            Some(ends) => {
                let life = Life {
                    issued_at: now,
                    not_after: ends,
                };
                let demanded = schedule::retry_at(Some(&life), &self.node, now);
                next.unwrap_or(demanded).max(patient.min(demanded))
            }
            None => next.unwrap_or(now).max(patient),
        }
    }

    fn look_at_clock(&mut self, now: OffsetDateTime, ran: Duration) {
        let (then, ran_then) = self.seen;
        let expected = match &self.held {
            Some(held) => held.expected + ran.saturating_sub(held.since),
            None => then + ran.saturating_sub(ran_then),
        };
        self.seen = (now, ran);
        let back_by = Duration::try_from(expected - now).unwrap_or_default();
        match &self.held {
            None if back_by > BELIEVABLE => {
                self.words = format!(
                    "the clock went back by {} to {}: nothing is renewed until it has caught up, for an hour at most; set it right (timedatectl status), or say that it is right with systemctl reload nodepki",
                    format_duration(Duration::from_secs(back_by.as_secs())),
                    rfc3339(now)
                );
                self.held = Some(Held {
                    expected,
                    since: ran,
                });
            }
            Some(held) if back_by <= BELIEVABLE || ran.saturating_sub(held.since) >= DISBELIEF => {
                self.held = None;
                self.step = Some((now, Why::Clock));
            }
            _ => {}
        }
    }

    /// From 0 to 1, spread evenly over nodes, another one for each number.
    fn fraction(&self, number: u32) -> f64 {
        let digest = Sha256::new()
            .chain_update(self.node.as_bytes())
            .chain_update(number.to_be_bytes())
            .finalize();
        let [a, b, c, d, ..] = <[u8; 32]>::from(digest);
        f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
    }
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(2u32.saturating_pow(times.min(16)))
}

#[cfg(test)]
mod tests;
