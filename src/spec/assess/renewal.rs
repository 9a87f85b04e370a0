//! What rotation makes of a decision: a sound certificate that is due is issued too, and one that can wait waits.
//!
//! [`assess`](super::assess) looks at what a certificate is, this at how old it is. One that does not serve is nobody's
//! to delay; all others have their time, and nothing is renewed twice in a row.

use std::time::Duration;

use time::OffsetDateTime;

use super::Action;
use crate::spec::schedule::{self, Due, Life, Rotation, Wait, length_in_words};
use crate::x509::{Chain, TrustBundle, rfc3339};

/// How old a certificate is, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// From when to when.
    pub life: Life,
    /// The time of its issue was recorded when it was installed, not concluded from what is in it.
    pub recorded: bool,
}

impl Age {
    /// The age of a certificate that was issued at `recorded`, or of one of which nothing was recorded and which was to
    /// live for `lifetime`.
    pub fn of(
        chain: &Chain,
        recorded: Option<OffsetDateTime>,
        trust: Option<&TrustBundle>,
        lifetime: Duration,
    ) -> Self {
        let leaf = chain.leaf();
        let (not_before, not_after) = (leaf.not_before(), leaf.not_after());
        // kubeadm copies not_before from the CA, so that it may lie years before the day of issue.
        let is_the_authoritys = trust.is_some_and(|trust| {
            let mut authorities = trust.certificates().iter();
            authorities.any(|authority| authority.not_before() == not_before)
        });
        let concluded = || match is_the_authoritys {
            true => not_after
                .checked_sub(time::Duration::try_from(lifetime).unwrap_or(time::Duration::MAX))
                .map_or(not_before, |begin| begin.max(not_before)),
            false => not_before,
        };
        Age {
            life: Life {
                issued_at: recorded.unwrap_or_else(concluded),
                not_after,
            },
            recorded: recorded.is_some(),
        }
    }
}

/// On whose wish a certificate is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Rotation's own: what is due.
    Due,
    /// An administrator's, due or not, also outside of the window.
    Asked,
    /// An administrator's, also for a certificate that was just renewed: its key may be known to others.
    Forced,
    /// A person's who changes its authority: one that was just renewed is renewed again.
    Anew,
}

/// A decision after rotation had its say.
#[derive(Debug, PartialEq, Eq)]
pub struct Rotated {
    /// What to do now.
    pub action: Action,
    /// When to look again; `None` where something is to be done now.
    pub next: Option<OffsetDateTime>,
    /// A failure must be told: it does not serve, or not for long.
    pub urgent: bool,
    /// An administrator asked for it, and it was just renewed.
    pub deferred: bool,
    /// It is replaced for its age alone, so that one that ends no later would be no help.
    pub for_age: bool,
}

/// The rules by which a certificate on this node is renewed.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// As configured.
    pub rotation: &'a Rotation,
    /// This node's name.
    pub node: &'a str,
    /// On whose wish.
    pub demand: Demand,
    /// The end of the authority, beyond which no certificate helps.
    pub authority_ends: Option<OffsetDateTime>,
}

/// Decides when what [`assess`](super::assess) decided is done. `serving` is the age of a certificate that serves.
pub fn rotate(
    action: Action,
    serving: Option<&Age>,
    rules: Rules<'_>,
    now: OffsetDateTime,
) -> Rotated {
    let as_it_is = |action, next, urgent| Rotated {
        action,
        next,
        urgent,
        deferred: false,
        for_age: false,
    };
    let Some(Age { life, recorded }) = serving else {
        return as_it_is(action, None, true);
    };
    let urgent = life.is_urgent(rules.rotation, now);
    let drift = match &action {
        Action::Refuse { .. } => return as_it_is(action, None, urgent),
        Action::Issue { reasons } => reasons.clone(),
        Action::Keep { .. } | Action::Rewrite { .. } => Vec::new(),
    };
    let due = schedule::due(life, rules.rotation, rules.node, now);
    let useless = rules
        .authority_ends
        .filter(|end| life.not_after >= *end && rules.demand == Demand::Due);
    let age = match (&due, useless) {
        (Due::Later { .. }, _) => None,
        (Due::Waits { .. } | Due::Now { .. }, Some(end)) => {
            if drift.is_empty() {
                let note = format!(
                    "it ends with its authority, at {}: a new one would end no later; replace the authority",
                    rfc3339(end)
                );
                return as_it_is(with_note(action, note), None, urgent);
            }
            None
        }
        (Due::Waits { reason, .. } | Due::Now { reason, .. }, None) => Some(reason.clone()),
    };
    let asked = match rules.demand {
        Demand::Due => None,
        Demand::Asked => Some("asked for".to_owned()),
        Demand::Forced => Some("asked for with --force".to_owned()),
        Demand::Anew => Some("its authority was changed".to_owned()),
    };
    let for_age = drift.is_empty();
    let mut reasons = drift;
    reasons.extend(age.or(asked));
    if reasons.is_empty() {
        let at = match due {
            Due::Later { at } | Due::Waits { at, .. } => Some(at),
            Due::Now { .. } => None,
        };
        return as_it_is(action, at, urgent);
    }
    if let Some((until, why)) = held(life, *recorded, rules, now) {
        let note = format!("{}; {why}", reasons.join("; "));
        return Rotated {
            deferred: rules.demand == Demand::Asked,
            ..as_it_is(with_note(action, note), Some(until), urgent)
        };
    }
    let wait = schedule::in_window(life, rules.rotation, rules.node, now);
    if let (Demand::Due, Wait::No(Some(no_window))) = (rules.demand, wait) {
        reasons.push(no_window);
    }
    Rotated {
        action: Action::Issue { reasons },
        next: None,
        urgent,
        deferred: false,
        for_age,
    }
}

/// Until when a certificate that serves is left alone, and why.
fn held(
    life: &Life,
    recorded: bool,
    rules: Rules<'_>,
    now: OffsetDateTime,
) -> Option<(OffsetDateTime, String)> {
    let cools_until = life.cools_until();
    let cools = recorded && matches!(rules.demand, Demand::Due | Demand::Asked);
    if cools && (life.issued_at..cools_until).contains(&now) {
        let now_instead = match rules.demand {
            Demand::Asked => " (--force renews it now)",
            _ => "",
        };
        let why = format!(
            "renewed {} ago, tried again after {}{now_instead}",
            length_in_words(now - life.issued_at),
            rfc3339(cools_until)
        );
        return Some((cools_until, why));
    }
    match schedule::in_window(life, rules.rotation, rules.node, now) {
        Wait::Until { opens, turn } if rules.demand == Demand::Due => Some((
            turn,
            format!("waits for the window that opens at {}", rfc3339(opens)),
        )),
        _ => None,
    }
}

/// What is not issued now is kept; a file of the wrong form is mended all the same.
fn with_note(action: Action, note: String) -> Action {
    match action {
        Action::Rewrite { mut reasons } => {
            reasons.push(note);
            Action::Rewrite { reasons }
        }
        Action::Keep { mut notes } => {
            notes.push(note);
            Action::Keep { notes }
        }
        Action::Issue { .. } => Action::Keep { notes: vec![note] },
        refuse @ Action::Refuse { .. } => refuse,
    }
}

#[cfg(test)]
mod tests;
