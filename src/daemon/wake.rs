//! Decides what the daemon does next, and when.
//!
//! Pure: the inputs are the events, the time and the time since boot; the result is the next action or the time until
//! which to sleep. To add an action with a schedule of its own: a field with its time, a variant of [`NextAction`], and its
//! place in [`Agenda::next`].

use std::time::Duration;

use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::agent::authority::rotate;
use crate::agent::report::ReportRow;
use crate::agent::{ExitCode, Failure, RunReport};
use crate::spec::assess::joined;
use crate::spec::schedule::{self, CertLife};
use crate::text::rfc3339;
use crate::yaml::format_duration;

/// Largest backward clock step that is accepted immediately.
const MAX_TRUSTED_ROLLBACK: Duration = Duration::from_secs(5 * 60);
/// How long a larger backward step must persist before the new time is trusted.
const ROLLBACK_GRACE: Duration = Duration::from_secs(60 * 60);
/// First wait after a failure, if no valid certificate is in place.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Longest wait after a failure, if no valid certificate is in place.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10 * 60);
/// Minimum time between two rotation steps.
const MIN_STEP_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two attempts while another run holds the lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Edits by another process within this window back off exponentially.
const EXTERNAL_EDIT_WINDOW: Duration = Duration::from_secs(10 * 60);
/// Share of the interval between two CRL fetches by which each node fetches earlier or later.
const CRL_REFRESH_JITTER: f64 = 0.1;

words! {
    /// The reason for a rotation step.
    pub enum StepReason {
        /// The daemon has just started.
        Start = "start",
        /// A renewal is due, or may be retried.
        Due = "due",
        /// Another process changed files.
        Files = "files changed",
        /// The configuration was read again.
        Reload = "configuration read",
        /// The clock was set.
        Clock = "clock set",
        /// A new revocation list is installed.
        Lists = "new revocation list",
        /// The cluster demands another phase of a CA change.
        Rotation = "CA change of the cluster",
    }
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Take a rotation step.
    Step(StepReason),
    /// Fetch the signers' revocation lists.
    Lists,
    /// Sleep until that time; `None`: until an event occurs.
    Sleep(Option<OffsetDateTime>),
}

/// The result of a step, as far as the next one depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepResult {
    /// When the next renewal is due or may be retried.
    pub next: Option<OffsetDateTime>,
    /// The first end of validity among the open certificates, or among all if none is open; `None` if one of them is not
    /// valid, or nothing is known.
    pub ends: Option<OffsetDateTime>,
    /// The work that the step could not complete.
    pub open: Option<OpenIssue>,
}

/// Work that a step could not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenIssue {
    /// Some or all certificates were not renewed.
    Trouble {
        /// Which certificates, and why.
        what: String,
        /// Whether the signer, the policy or the configuration must be changed by an administrator first.
        person: bool,
    },
    /// Every certificate is installed, but a component still uses an old one: which, and why.
    Restart(String),
    /// A step of a CA change of the cluster failed: which, and why.
    Rotation(String),
    /// Another run holds the lock: the process.
    Busy(String),
}

impl StepResult {
    /// Returns the result according to the report of a step.
    pub fn of(report: &RunReport, next: Option<OffsetDateTime>) -> Self {
        let leaves = || report.rows.iter().filter(|row| row.authority.is_some());
        let open: Vec<_> = leaves()
            .filter(|row| row.code.is_some() || row.is_overdue())
            .chain(report.rows.iter().filter(|row| row.is_refused_pair()))
            .collect();
        let ends = |rows: &[&ReportRow]| {
            let ends = rows.iter().map(|row| row.not_after);
            ends.reduce(|a, b| a.zip(b).map(|(a, b)| a.min(b)))
                .flatten()
        };
        let Some(first) = open.first() else {
            let ends = ends(&leaves().collect::<Vec<_>>());
            let stuck = report.rows.iter().find(|row| row.code.is_some());
            return StepResult {
                next,
                ends,
                open: stuck.map(|row| {
                    let why = joined(&row.reasons);
                    let what = format!("{} {}: {why}", row.name, row.action);
                    if rotate::is_row(row) {
                        OpenIssue::Rotation(what)
                    } else {
                        OpenIssue::Restart(what)
                    }
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
            .map_or_else(|| "unknown reason".to_owned(), ToString::to_string);
        StepResult {
            next,
            ends: ends(&open),
            open: Some(OpenIssue::Trouble {
                what: format!("{names} {}: {why}", first.action),
                person: open
                    .iter()
                    .all(|row| row.code.is_some_and(needs_administrator)),
            }),
        }
    }

    /// Returns the result of a step that was not taken, since `holder` holds the lock.
    pub fn busy(holder: String) -> Self {
        StepResult {
            next: None,
            ends: None,
            open: Some(OpenIssue::Busy(holder)),
        }
    }

    /// Returns the result of a step that failed as a whole.
    pub fn failed(failure: &Failure) -> Self {
        StepResult {
            next: None,
            ends: None,
            open: Some(OpenIssue::Trouble {
                what: failure.one_line(),
                person: needs_administrator(failure.code),
            }),
        }
    }
}

/// Returns true unless another attempt can succeed without a change by an administrator.
fn needs_administrator(code: ExitCode) -> bool {
    !matches!(
        code,
        ExitCode::Done | ExitCode::Pending | ExitCode::Unreachable
    )
}

/// The result of fetching the revocation lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListRefresh {
    /// Whether a signer publishes lists.
    pub exist: bool,
    /// Whether a new list was installed.
    pub changed: bool,
}

/// The schedule of the daemon.
#[derive(Clone, Debug)]
pub struct Agenda {
    node: String,
    step: Option<(OffsetDateTime, StepReason)>,
    lists: Option<OffsetDateTime>,
    /// Interval between two fetches of the revocation lists; `None` if no signer publishes any.
    lists_interval: Option<Duration>,
    /// Number of consecutive steps with [`OpenIssue::Trouble`].
    failures: u32,
    /// See [`StepResult::ends`]; kept across steps that failed as a whole.
    ends: Option<OffsetDateTime>,
    /// The last time, with the time since boot at that moment.
    last_time: (OffsetDateTime, Duration),
    rollback: Option<ClockRollback>,
    /// Number of edits by other processes within the window after the first, and the time since boot of the last one.
    edits: Option<(u32, Duration)>,
    waits_for_lock: bool,
    status: String,
}

/// A backward step of the clock that is not trusted.
#[derive(Clone, Debug)]
struct ClockRollback {
    /// The expected time when the step was noticed.
    expected: OffsetDateTime,
    /// The time since boot when the step was noticed.
    since: Duration,
}

impl Agenda {
    /// Returns the schedule of a starting daemon: the first step is due immediately, and so are the revocation lists if
    /// they have an interval, which means that a signer may publish some.
    pub fn new(
        node: &str,
        lists_interval: Option<Duration>,
        now: OffsetDateTime,
        uptime: Duration,
    ) -> Self {
        Agenda {
            node: node.to_owned(),
            step: Some((now, StepReason::Start)),
            lists: lists_interval.map(|_| now),
            lists_interval,
            failures: 0,
            ends: None,
            last_time: (now, uptime),
            rollback: None,
            edits: None,
            waits_for_lock: false,
            status: "starting".to_owned(),
        }
    }

    /// Returns the next action. `uptime` is the time since boot including suspend, which is never set.
    pub fn next(&mut self, now: OffsetDateTime, uptime: Duration) -> NextAction {
        self.check_clock(now, uptime);
        if let Some(rollback) = &self.rollback {
            let left = (rollback.since + ROLLBACK_GRACE).saturating_sub(uptime);
            return NextAction::Sleep(Some(now + left));
        }
        match self.step {
            Some((at, reason)) if at <= now => return NextAction::Step(reason),
            _ => {}
        }
        if self.lists.is_some_and(|at| at <= now) {
            return NextAction::Lists;
        }
        let step = self.step.map(|(at, _)| at);
        NextAction::Sleep(step.into_iter().chain(self.lists).min())
    }

    /// Returns the status as a sentence, for `systemctl status` and the log.
    pub fn status(&self) -> &str {
        &self.status
    }

    /// Returns true while the clock has gone back and is not trusted.
    pub(crate) fn distrusts_clock(&self) -> bool {
        self.rollback.is_some()
    }

    /// Returns true if the next step waits for another run to release the lock.
    pub(crate) fn waits_for_lock(&self) -> bool {
        self.waits_for_lock
    }

    /// Plans the next step after one has ended.
    pub fn stepped(&mut self, ended: StepResult, now: OffsetDateTime) {
        self.waits_for_lock = matches!(ended.open, Some(OpenIssue::Busy(_)));
        let at = match ended.open {
            None | Some(OpenIssue::Restart(_) | OpenIssue::Rotation(_)) => {
                self.failures = 0;
                self.ends = ended.ends;
                let what = match ended.open {
                    Some(OpenIssue::Restart(what)) => {
                        format!("every certificate is installed, but not in effect: {what}")
                    }
                    Some(OpenIssue::Rotation(what)) => {
                        format!("every certificate is in effect, but a CA change waits: {what}")
                    }
                    _ => "everything is in place".to_owned(),
                };
                self.status = match ended.next {
                    Some(at) => format!("{what}; next at {}", rfc3339(at)),
                    None => format!("{what}; no renewal is planned"),
                };
                ended.next
            }
            Some(OpenIssue::Busy(holder)) => {
                self.status =
                    format!("another run holds the lock: {holder}; waiting until it ends");
                Some(now + LOCK_RETRY_INTERVAL)
            }
            Some(OpenIssue::Trouble { what, person }) => {
                self.failures = self.failures.saturating_add(1);
                if ended.next.is_some() {
                    self.ends = ended.ends;
                }
                let at = self.retry_at(ended.next, person, now);
                let action = if person {
                    "needs manual action"
                } else {
                    "is retried automatically"
                };
                let validity = match self.ends {
                    Some(ends) if ends > now => {
                        format!("the present certificates are valid until {}", rfc3339(ends))
                    }
                    _ => "not every certificate is valid".to_owned(),
                };
                let next = rfc3339(at);
                self.status = format!("{what}; this {action}, next at {next}; {validity}");
                Some(at)
            }
        };
        self.step = at.map(|at| (at.max(now + MIN_STEP_INTERVAL), StepReason::Due));
    }

    /// Plans the next fetch of the revocation lists after one has ended.
    pub(crate) fn lists_refreshed(&mut self, refresh: ListRefresh, now: OffsetDateTime) {
        let jitter = CRL_REFRESH_JITTER * (2.0 * self.fraction(0) - 1.0);
        let interval = self.lists_interval.filter(|_| refresh.exist);
        self.lists = interval.map(|interval| now + interval.mul_f64(1.0 + jitter));
        if refresh.changed {
            self.step_by(now, StepReason::Lists);
        }
    }

    /// Plans a step after another process has changed files: immediately after the first edit, later and later after
    /// repeated ones.
    pub(crate) fn files_changed(&mut self, now: OffsetDateTime, uptime: Duration) {
        let repeated = match self.edits {
            Some((count, last)) if uptime.saturating_sub(last) < EXTERNAL_EDIT_WINDOW => {
                count.saturating_add(1)
            }
            _ => 0,
        };
        self.edits = Some((repeated, uptime));
        let wait = match repeated {
            0 => Duration::ZERO,
            repeated => doubled(MIN_STEP_INTERVAL, repeated).min(EXTERNAL_EDIT_WINDOW),
        };
        self.step_by(now + wait, StepReason::Files);
    }

    /// Plans a step for a CA change of the cluster.
    pub(crate) fn rotation_changed(&mut self, now: OffsetDateTime) {
        self.step_by(now, StepReason::Rotation);
    }

    /// Starts over with a new configuration. The administrator who orders a reload has seen the clock, so it is trusted.
    pub(crate) fn reloaded(
        &mut self,
        node: &str,
        lists_interval: Option<Duration>,
        now: OffsetDateTime,
        uptime: Duration,
    ) {
        self.node = node.to_owned();
        self.failures = 0;
        self.rollback = None;
        self.last_time = (now, uptime);
        self.lists = lists_interval.map(|_| now);
        self.lists_interval = lists_interval;
        self.step = Some((now, StepReason::Reload));
    }

    /// Reports that the new configuration is faulty.
    pub(crate) fn kept_configuration(&mut self, what: &str) {
        self.status =
            format!("the new configuration is faulty and the previous one stays in force: {what}");
    }

    /// Plans a step at `at`, unless an earlier one is planned.
    fn step_by(&mut self, at: OffsetDateTime, reason: StepReason) {
        if self.step.is_none_or(|(planned, _)| at < planned) {
            self.step = Some((at, reason));
        }
    }

    /// Returns the time of the next attempt. Each failure waits longer than the one before, and each node differently, so
    /// nodes that boot together do not keep sending requests together. While the present certificates are valid,
    /// their remaining lifetime allows a longer wait.
    fn retry_at(
        &self,
        next: Option<OffsetDateTime>,
        person: bool,
        now: OffsetDateTime,
    ) -> OffsetDateTime {
        let delay = if person {
            MAX_RETRY_DELAY.mul_f64(0.5 + self.fraction(self.failures) / 2.0)
        } else {
            doubled(MIN_RETRY_DELAY, self.failures.saturating_sub(1))
                .min(MAX_RETRY_DELAY)
                .mul_f64(self.fraction(self.failures))
        };
        let delayed = now + delay;
        match self.ends.filter(|ends| *ends > now) {
            Some(ends) => {
                let life = CertLife {
                    issued_at: now,
                    not_after: ends,
                };
                let by_lifetime = schedule::retry_at(Some(&life), &self.node, now);
                next.unwrap_or(by_lifetime).max(delayed.min(by_lifetime))
            }
            None => next.unwrap_or(now).max(delayed),
        }
    }

    /// Compares the clock with the time since boot, and starts or ends the distrust of a backward step.
    fn check_clock(&mut self, now: OffsetDateTime, uptime: Duration) {
        let (last, last_uptime) = self.last_time;
        let expected = match &self.rollback {
            Some(rollback) => rollback.expected + uptime.saturating_sub(rollback.since),
            None => last + uptime.saturating_sub(last_uptime),
        };
        self.last_time = (now, uptime);
        let back_by = Duration::try_from(expected - now).unwrap_or_default();
        let is_trusted = back_by <= MAX_TRUSTED_ROLLBACK;
        match &self.rollback {
            None if !is_trusted => {
                self.status = format!(
                    "the clock was set back by {} to {}: renewals are suspended until it has caught up, for at most one hour; correct it (timedatectl status), or confirm its time with systemctl reload nodepki",
                    format_duration(Duration::from_secs(back_by.as_secs())),
                    rfc3339(now)
                );
                self.rollback = Some(ClockRollback {
                    expected,
                    since: uptime,
                });
            }
            Some(rollback)
                if is_trusted || uptime.saturating_sub(rollback.since) >= ROLLBACK_GRACE =>
            {
                self.rollback = None;
                self.step = Some((now, StepReason::Clock));
                self.lists = self.lists.map(|_| now);
            }
            _ => {}
        }
    }

    /// Returns a number from 0 to 1 that is evenly distributed over nodes, and different for each `number`.
    fn fraction(&self, number: u32) -> f64 {
        let digest = Sha256::new()
            .chain_update(self.node.as_bytes())
            .chain_update(number.to_be_bytes())
            .finalize();
        let [a, b, c, d, ..] = <[u8; 32]>::from(digest);
        f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
    }
}

/// Returns `first`, doubled that many times.
fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(2u32.saturating_pow(times.min(16)))
}

#[cfg(test)]
mod tests;
