//! The effect of rotation on a decision: an intact certificate that is due is issued too, and one that can wait waits.
//!
//! [`assess`](super::assess) judges a certificate by its content, [`schedule_action`] by its age. A certificate that is unusable is
//! replaced immediately. All others wait for their time, and none is renewed twice in a row.

use std::time::Duration;

use time::OffsetDateTime;

use super::reason::{CertNote, CertReason, RenewalHold};
use super::{Action, CertDecision};
use crate::spec::schedule::{self, CertLife, DueState, Rotation, Wait};
use crate::x509::{Chain, TrustBundle};

/// Longest time by which signers backdate `not_before`, other than by copying it from the CA certificate.
const MAX_BACKDATE: time::Duration = time::Duration::days(1);

/// The age of a certificate, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// Its lifetime.
    pub life: CertLife,
    /// True if its time of issue was recorded when it was installed, false if it was inferred from the certificate.
    pub recorded: bool,
}

impl Age {
    /// Returns the age of a certificate that was issued at `recorded`. Without a record, the time of issue is inferred from
    /// the certificate and from the `lifetime` that was requested.
    ///
    /// A record of the future is ignored if the certificate is valid for more than `MAX_BACKDATE` already: the clock of
    /// this node was then ahead when it recorded the time, and is not behind now.
    pub fn of(
        chain: &Chain,
        recorded: Option<OffsetDateTime>,
        trust: Option<&TrustBundle>,
        lifetime: Duration,
        now: OffsetDateTime,
    ) -> Self {
        let leaf = chain.leaf();
        let (not_before, not_after) = (leaf.not_before(), leaf.not_after());
        // kubeadm copies not_before from the CA certificate, so it may precede the issue by years.
        let is_copied_from_authority = trust.is_some_and(|trust| {
            let mut authorities = trust.certificates().iter();
            authorities.any(|authority| authority.not_before() == not_before)
        });
        let was_clock_ahead = |at: &OffsetDateTime| {
            *at > now && !is_copied_from_authority && now - not_before > MAX_BACKDATE
        };
        let recorded = recorded.filter(|at| !was_clock_ahead(at));
        let inferred = || {
            if is_copied_from_authority {
                not_after
                    .checked_sub(time::Duration::try_from(lifetime).unwrap_or(time::Duration::MAX))
                    .map_or(not_before, |begin| begin.max(not_before))
            } else {
                not_before
            }
        };
        Age {
            life: CertLife {
                issued_at: recorded.unwrap_or_else(inferred),
                not_after,
            },
            recorded: recorded.is_some(),
        }
    }
}

/// The reason for which a certificate is considered for renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalCause {
    /// Rotation: only certificates that are due.
    Due,
    /// A command: also certificates that are not due, and outside of the window.
    Requested,
    /// A command with `--force`: also a certificate that was just renewed, as its key may be compromised.
    Forced,
    /// A change of its authority: also a certificate that was just renewed.
    AuthorityChanged,
}

impl RenewalCause {
    /// Returns true if a command names the certificates to renew, or all of them.
    fn is_requested(self) -> bool {
        matches!(self, RenewalCause::Requested | RenewalCause::Forced)
    }

    /// Returns the reason to renew a certificate that is not due.
    fn reason(self) -> Option<CertReason> {
        match self {
            RenewalCause::Due => None,
            RenewalCause::Requested => Some(CertReason::Requested),
            RenewalCause::Forced => Some(CertReason::Forced),
            RenewalCause::AuthorityChanged => Some(CertReason::AuthorityChanged),
        }
    }
}

/// The rules by which a certificate on this node is renewed.
#[derive(Clone, Copy)]
pub(super) struct RenewalRules<'a> {
    /// The configured rotation.
    pub(super) rotation: &'a Rotation,
    /// This node's name.
    pub(super) node: &'a str,
    /// The reason of this run.
    pub(super) demand: RenewalCause,
    /// The expiry of the authority; a certificate is unusable after it.
    pub(super) authority_ends: Option<OffsetDateTime>,
}

/// Decides when the action of [`assess`](super::assess) is taken. `serving` is the age of a certificate that is usable.
pub(super) fn schedule_action(
    action: Action,
    serving: Option<&Age>,
    rules: RenewalRules<'_>,
    now: OffsetDateTime,
) -> CertDecision {
    let rotated = |action, next, urgent| CertDecision {
        next,
        urgent,
        ..CertDecision::now(action)
    };
    let Some(Age { life, recorded }) = serving else {
        return rotated(action, None, true);
    };
    let urgent = rules.demand.is_requested() || life.is_urgent(rules.rotation, now);
    let (drift, at_renewal) = match &action {
        Action::Refuse { .. } => return rotated(action, None, urgent),
        Action::Issue { reasons } => (reasons.clone(), Vec::new()),
        Action::Keep { at_renewal, .. } => (Vec::new(), at_renewal.clone()),
        Action::Rewrite { .. } => (Vec::new(), Vec::new()),
    };
    let due = schedule::due(life, rules.rotation, rules.node, now);
    // A renewal would expire no later, until the authority is replaced. What a command requests is issued all the same.
    let authority_expiry = rules
        .authority_ends
        .filter(|end| life.not_after >= *end && rules.demand == RenewalCause::Due);
    let age = match (&due, authority_expiry) {
        (DueState::Later { .. }, _) => None,
        (DueState::Waits { .. } | DueState::Now { .. }, Some(end)) => {
            if drift.is_empty() {
                let note = CertNote::ExpiresWithAuthority {
                    authority_ends: end,
                };
                return rotated(with_note(action, note), None, urgent);
            }
            None
        }
        (DueState::Waits { due, .. } | DueState::Now { due, .. }, None) => {
            Some(CertReason::Due(due.clone()))
        }
    };
    // A certificate that differs is replaced even by one that expires no later.
    let for_age = drift.is_empty() && at_renewal.is_empty();
    let mut reasons = drift;
    reasons.extend(age.or_else(|| rules.demand.reason()));
    if reasons.is_empty() {
        let at = match due {
            DueState::Later { at } | DueState::Waits { at, .. } => Some(at),
            DueState::Now { .. } => None,
        };
        return rotated(action, at, urgent);
    }
    if let Some((until, hold)) = held_back(life, *recorded, rules, now) {
        let note = CertNote::HeldBack { reasons, hold };
        return CertDecision {
            deferred: rules.demand == RenewalCause::Requested,
            ..rotated(with_note(action, note), Some(until), urgent)
        };
    }
    // They take effect with this renewal, and are not a reason for one.
    reasons.extend(at_renewal.into_iter().map(CertReason::Differs));
    let wait = schedule::in_window(life, rules.rotation, rules.node, now);
    if let (RenewalCause::Due, Wait::No(Some(no_window))) = (rules.demand, wait) {
        reasons.push(CertReason::NoWindow(no_window));
    }
    CertDecision {
        urgent,
        for_age,
        ..CertDecision::now(Action::Issue { reasons })
    }
}

/// Returns the time until which a usable certificate is not renewed, with the reason.
fn held_back(
    life: &CertLife,
    recorded: bool,
    rules: RenewalRules<'_>,
    now: OffsetDateTime,
) -> Option<(OffsetDateTime, RenewalHold)> {
    let cools_until = life.cools_until();
    let cools = recorded && matches!(rules.demand, RenewalCause::Due | RenewalCause::Requested);
    if cools && (life.issued_at..cools_until).contains(&now) {
        let hold = RenewalHold::JustRenewed {
            age: now - life.issued_at,
            until: cools_until,
            is_requested: rules.demand == RenewalCause::Requested,
        };
        return Some((cools_until, hold));
    }
    match schedule::in_window(life, rules.rotation, rules.node, now) {
        Wait::Until { opens, turn } if rules.demand == RenewalCause::Due => {
            Some((turn, RenewalHold::WaitsForWindow { opens }))
        }
        _ => None,
    }
}

/// Returns the action for a certificate that is not issued now. A file of the wrong form is rewritten nevertheless.
fn with_note(action: Action, note: CertNote) -> Action {
    match action {
        Action::Rewrite { mut reasons } => {
            reasons.push(CertReason::Note(note));
            Action::Rewrite { reasons }
        }
        Action::Keep {
            mut notes,
            at_renewal,
        } => {
            notes.push(note);
            Action::Keep { notes, at_renewal }
        }
        Action::Issue { .. } => Action::Keep {
            notes: vec![note],
            at_renewal: Vec::new(),
        },
        refuse @ Action::Refuse { .. } => refuse,
    }
}

#[cfg(test)]
mod tests;
