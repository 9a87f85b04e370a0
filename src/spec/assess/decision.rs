//! The decision on one certificate: what is done now, with which key, and when it is assessed again.
//!
//! A bootstrap replaces what differs from the spec. A renewal follows the schedule as well, does nothing under an authority
//! or for a component that an administrator must examine first, and may keep the key.

use time::OffsetDateTime;

use super::renewal::schedule_action;
use super::{
    Action, Age, CertRefusal, ObservedCert, RenewalCause, RenewalRules, assess,
    rotation_after_kubelet,
};
use crate::spec::CertSpec;
use crate::spec::schedule::Rotation;
use crate::x509::TrustBundle;

/// What a run does about a certificate.
#[derive(Debug, PartialEq, Eq)]
pub struct CertDecision {
    /// The present action.
    pub action: Action,
    /// Time of the next assessment; `None` if there is something to do now.
    pub next: Option<OffsetDateTime>,
    /// True if a failure fails the run: the certificate is unusable or soon will be, or a command requested its renewal.
    pub urgent: bool,
    /// True if a command requested the renewal, but the certificate was just renewed.
    pub deferred: bool,
    /// True if it is replaced only for its age, so a certificate that expires no later would not help.
    pub for_age: bool,
    /// True if a new certificate keeps the key.
    pub keep_key: bool,
}

impl CertDecision {
    /// Returns the decision to take an action now, with a new key.
    pub fn now(action: Action) -> CertDecision {
        CertDecision {
            action,
            next: None,
            urgent: true,
            deferred: false,
            for_age: false,
            keep_key: false,
        }
    }

    /// Returns whether files of the certificate are written.
    pub fn writes(&self) -> bool {
        matches!(self.action, Action::Issue { .. } | Action::Rewrite { .. })
    }
}

/// A certificate, with everything that decides about it.
pub struct CertCase<'a> {
    /// Desired state.
    pub spec: &'a CertSpec,
    /// Observed state.
    pub found: &'a ObservedCert,
    /// Its age; `None` if it is absent.
    pub age: Option<&'a Age>,
    /// The bundle of its authority, if that is known.
    pub trust: Option<&'a TrustBundle>,
    /// Why nothing is done about it, whatever its files contain.
    pub refused: Option<CertRefusal>,
    /// Why it is not replaced as long as it serves.
    pub held: Option<&'a CertRefusal>,
}

/// The purpose of a run.
#[derive(Clone, Copy)]
pub enum DecisionMode<'a> {
    /// Everything that the node lacks is created.
    Bootstrap,
    /// Certificates that are due are renewed.
    Renewal {
        /// The configured rotation.
        rotation: &'a Rotation,
        /// This node's name.
        node: &'a str,
        /// The reason of this run.
        demand: RenewalCause,
        /// The signer refuses a request with another key.
        same_key_only: bool,
    },
}

/// Decides what is done about a certificate at `now`.
pub fn decide(case: CertCase<'_>, mode: DecisionMode<'_>, now: OffsetDateTime) -> CertDecision {
    let CertCase {
        spec, found, trust, ..
    } = case;
    let action = match case.refused {
        Some(reason) => Action::Refuse { reason },
        None => assess(spec, found, trust, now),
    };
    let DecisionMode::Renewal {
        rotation,
        node,
        demand,
        same_key_only,
    } = mode
    else {
        return CertDecision::now(action);
    };
    let serves = found.still_serves(trust, now);
    let after_kubelet = found
        .is_of_kubelet()
        .then(|| rotation_after_kubelet(rotation));
    let authorities = trust.iter().flat_map(|trust| trust.certificates());
    let rules = RenewalRules {
        rotation: after_kubelet.as_ref().unwrap_or(rotation),
        node,
        demand,
        authority_ends: authorities.map(|authority| authority.not_after()).max(),
    };
    let mut decision = schedule_action(action, case.age.filter(|_| serves), rules, now);
    // A change of the CA waits for this certificate, however long the old one is valid.
    decision.urgent |= demand == RenewalCause::AuthorityChanged;
    // `--force` is for keys that may be compromised.
    decision.keep_key = demand != RenewalCause::Forced
        && (!rotation.rekey || same_key_only)
        && found.has_good_key(spec.requested.profile.key);
    if let Some(reason) = case.held
        && serves
        && decision.writes()
    {
        let reason = reason.clone();
        decision.action = Action::Refuse { reason };
    }
    decision
}

#[cfg(test)]
mod tests;
