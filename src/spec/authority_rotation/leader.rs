//! What the leader does: write the next phase, or hold.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use time::{Duration, OffsetDateTime};

use super::{
    AuthorityRotation, BegunPhase, NodeProof, NodeProofs, RotationPhase, TokenWait,
    UnmetRequirement,
};
use crate::text::rfc3339;

/// What the leader does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderDecision {
    /// Write this phase, unless the rotation has changed since it was read.
    Advance(RotationPhase),
    /// Write this wait, unless the rotation has changed since it was read.
    Wait(TokenWait),
    /// Write nothing, for this reason.
    Hold(LeaderHold),
}

/// Why the leader writes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LeaderHold {
    /// The rotation has ended.
    Ended,
    /// An administrator has paused the rotation.
    Paused,
    /// The phase that follows waits for [`RotationCommand::Resume`](super::RotationCommand::Resume). Every node has proven
    /// the present one.
    Requested(RotationPhase),
    /// Tokens of the former key may be valid until then. Every node has proven the phase.
    Tokens(#[serde(with = "time::serde::rfc3339")] OffsetDateTime),
    /// No node counts: all are excluded, or the list is empty.
    NoNodes,
    /// These nodes have not proven the phase.
    Unproven(HeldNodes),
}

/// Nodes that have not proven what is required, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldNodes(pub Vec<HeldNode>);

/// A node that has not proven what is required.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldNode {
    /// The node's name.
    pub node: String,
    /// Reason why its proof is insufficient.
    pub reason: HoldReason,
    /// Last failure that the node has reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Why a node has not proven what is required.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HoldReason {
    /// The Node contains no proof, or an unreadable one.
    NoReport,
    /// The proof is not of the rotation with this id.
    OtherRotation {
        /// Id of the rotation in question.
        expected: String,
        /// What the proof is of; `None` before the node's first rotation.
        found: Option<BegunPhase>,
    },
    /// The node has not begun the step of the present phase. Its last one is this.
    OtherPhase(RotationPhase),
    /// The node has begun the step and does not meet these requirements.
    Unmet(Vec<UnmetRequirement>),
}

/// Returns what the leader does, given the nodes that use the authority and their proofs. The proofs may be outdated.
pub fn decide_phase(
    rotation: &AuthorityRotation,
    proofs: &NodeProofs,
    now: OffsetDateTime,
) -> LeaderDecision {
    let Some(next) = rotation.phase.successor() else {
        return LeaderDecision::Hold(LeaderHold::Ended);
    };
    if rotation.paused {
        return LeaderDecision::Hold(LeaderHold::Paused);
    }
    if rotation.counted(proofs).next().is_none() {
        return LeaderDecision::Hold(LeaderHold::NoNodes);
    }
    let nodes = rotation.counted(proofs);
    let held: Vec<HeldNode> = nodes
        .filter_map(|(node, proof)| {
            let reason = unproven(rotation, proof)?;
            Some(HeldNode::new(node, reason, proof))
        })
        .collect();
    if held.is_empty()
        && let Some(decision) = wait_for_tokens(rotation, proofs, now)
    {
        return decision;
    }
    match held.is_empty() {
        true if rotation.hold_before.contains(&next) => {
            LeaderDecision::Hold(LeaderHold::Requested(next))
        }
        true => LeaderDecision::Advance(next),
        false => LeaderDecision::Hold(LeaderHold::Unproven(HeldNodes(held))),
    }
}

/// Returns what the leader does about the tokens of the former key, before a phase that removes it; `None` if all have
/// expired. Every node has proven the present phase.
fn wait_for_tokens(
    rotation: &AuthorityRotation,
    proofs: &NodeProofs,
    now: OffsetDateTime,
) -> Option<LeaderDecision> {
    let lifetime = rotation.token_lifetime?;
    if !matches!(
        rotation.phase,
        RotationPhase::Activate | RotationPhase::Revert
    ) {
        return None;
    }
    let switches = rotation.counted(proofs).filter_map(|(node, proof)| {
        let switched = proof?.switched.clone()?;
        Some((node.clone(), switched))
    });
    let switches: BTreeMap<String, String> = switches.collect();
    let is_known = |wait: &TokenWait| {
        let mut switches = switches.iter();
        switches.all(|(node, switched)| wait.switches.get(node) == Some(switched))
    };
    match &rotation.token_wait {
        Some(wait) if is_known(wait) => {
            let hold = LeaderHold::Tokens(wait.until);
            (now < wait.until).then_some(LeaderDecision::Hold(hold))
        }
        _ => {
            let lifetime = i64::try_from(lifetime).unwrap_or(i64::MAX);
            Some(LeaderDecision::Wait(TokenWait {
                until: now.saturating_add(Duration::seconds(lifetime)),
                switches,
            }))
        }
    }
}

/// Returns why a proof does not prove the present phase.
pub(super) fn unproven(
    rotation: &AuthorityRotation,
    proof: Option<&NodeProof>,
) -> Option<HoldReason> {
    let Some(proof) = proof else {
        return Some(HoldReason::NoReport);
    };
    match &proof.begun {
        Some(begun) if begun.rotation == rotation.id => {
            if begun.phase != rotation.phase {
                return Some(HoldReason::OtherPhase(begun.phase));
            }
        }
        other => {
            return Some(HoldReason::OtherRotation {
                expected: rotation.id.clone(),
                found: other.clone(),
            });
        }
    }
    let unmet = rotation.unmet(rotation.phase, proof);
    (!unmet.is_empty()).then_some(HoldReason::Unmet(unmet))
}

impl AuthorityRotation {
    /// Returns whether a proof proves the present phase.
    pub fn is_proven(&self, proof: Option<&NodeProof>) -> bool {
        unproven(self, proof).is_none()
    }
}

impl HeldNode {
    pub(super) fn new(node: &str, reason: HoldReason, proof: Option<&NodeProof>) -> Self {
        HeldNode {
            node: node.to_owned(),
            reason,
            failure: proof.and_then(|proof| proof.failure.clone()),
        }
    }
}

impl fmt::Display for LeaderHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaderHold::Ended => f.write_str("the rotation has ended"),
            LeaderHold::Paused => f.write_str("the rotation is paused"),
            LeaderHold::Requested(phase) => write!(
                f,
                "every node has proven the phase, and {phase} is held until nodepki authority resume"
            ),
            LeaderHold::Tokens(until) => write!(
                f,
                "every node signs with the other key, and tokens of the former one may be valid until {}",
                rfc3339(*until)
            ),
            LeaderHold::NoNodes => f.write_str("no node counts: every node is excluded, or is not labelled as a control-plane node"),
            LeaderHold::Unproven(nodes) => nodes.fmt(f),
        }
    }
}

impl fmt::Display for HeldNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{node}")?;
        }
        Ok(())
    }
}

impl fmt::Display for HeldNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.reason)?;
        match &self.failure {
            Some(failure) => write!(f, " (last failure: {failure})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldReason::NoReport => f.write_str(
                "no readable report on its Node (verify that nodepki.service runs there, in the same release)",
            ),
            HoldReason::OtherRotation { found: None, .. } => {
                f.write_str("has not begun this rotation")
            }
            HoldReason::OtherRotation {
                expected,
                found: Some(found),
            } => write!(
                f,
                "reports phase {} of rotation {}, not of {expected}",
                found.phase, found.rotation
            ),
            HoldReason::OtherPhase(phase) => {
                write!(f, "reports phase {phase} and has not begun the present one")
            }
            HoldReason::Unmet(unmet) => {
                for (index, one) in unmet.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{one}")?;
                }
                Ok(())
            }
        }
    }
}
