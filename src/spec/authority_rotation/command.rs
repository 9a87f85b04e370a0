//! What a command of the administrator changes.

use std::collections::BTreeSet;

use super::leader::{HeldNode, HeldNodes, HoldReason, unproven};
use super::{
    AuthorityRotation, NodeProof, NodeProofs, RotatedCa, RotationPhase, RotationSubject, unsettled,
};

/// Lifetime in seconds to which kube-apiserver extends the tokens of Pods (`ExpirationExtensionSeconds` in
/// `pkg/serviceaccount/claims.go`).
const DEFAULT_TOKEN_LIFETIME: u64 = 365 * 24 * 3600;

/// A command of the administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationCommand {
    /// Start a rotation.
    Start(Box<RotationStart>),
    /// Write no further phase and begin no step.
    Pause,
    /// Continue after a pause, and let the next phase begin if it is held.
    Resume,
    /// Return to the old CA. Ends a pause.
    Undo,
    /// Continue without these nodes.
    Exclude(BTreeSet<String>),
}

/// Parameters of a new rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotationStart {
    /// Name of the rotation, unique among all rotations of the subject.
    pub id: String,
    /// The CA or key pair that changes.
    pub subject: RotationSubject,
    /// CA or key in place.
    pub old: RotatedCa,
    /// CA or key that replaces it.
    pub new: RotatedCa,
    /// Phases that do not begin until [`RotationCommand::Resume`].
    pub hold_before: BTreeSet<RotationPhase>,
    /// Names of the nodes that do not count.
    pub excluded: BTreeSet<String>,
    /// Longest lifetime of a token in seconds, for the service-account key. `None`: that of the rotation in progress, or a
    /// year.
    pub token_lifetime: Option<u64>,
}

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedCommand {
    /// Pause, resume, undo or exclude without a rotation in progress.
    #[error("no rotation is in progress (nodepki authority watch shows the last one)")]
    NotInProgress,
    /// Start during another rotation.
    #[error(
        "rotation {id} of {subject} is in phase {phase} (wait for its end, or undo it before phase retire)"
    )]
    InProgress {
        /// The rotation in progress.
        id: String,
        /// What it changes.
        subject: RotationSubject,
        /// Its phase.
        phase: RotationPhase,
    },
    /// Repeated start that holds a phase too late.
    #[error(
        "rotation {id} is in phase {phase} and cannot be held before {held} (omit --hold-before {held})"
    )]
    HeldTooLate {
        /// The rotation in progress.
        id: String,
        /// Its phase.
        phase: RotationPhase,
        /// The phase that was to be held.
        held: RotationPhase,
    },
    /// Repeated start with another lifetime of tokens.
    #[error(
        "the token lifetime of rotation {0} cannot be changed while it is in progress (omit --token-lifetime, or undo the rotation and start another one)"
    )]
    OtherTokenLifetime(String),
    /// Undo after the retirement of the old CA has begun.
    #[error(
        "rotation {id} is in phase retire, and nodes may not trust the old one any more (wait for its end, then start another rotation)"
    )]
    RetirementBegun {
        /// The rotation.
        id: String,
    },
    /// Start with the CA in place.
    #[error("the new CA is the CA in place (name the certificate of another one)")]
    SameCa,
    /// Start with the id of an earlier rotation, whose proofs would count.
    #[error("an earlier rotation has the id {0} (choose another one)")]
    ReusedId(String),
    /// Start without a node that counts.
    #[error("no node counts: every node is excluded, or is not labelled as a control-plane node")]
    NoNodes,
    /// Start while nodes do not use the CA in place.
    #[error(
        "these nodes are not ready for a rotation: {0} (correct them, or exclude them from this rotation)"
    )]
    NotReady(HeldNodes),
    /// Names that no node has.
    #[error("the cluster has no node {} (kubectl get nodes lists the names)", .0.join(", "))]
    UnknownNodes(Vec<String>),
}

/// What a command does to a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEffect {
    /// This rotation is to be written, unless the one in the cluster has changed since it was read.
    Change(AuthorityRotation),
    /// Nothing: the rotation in the cluster is as the command makes it, as when the command is repeated.
    None(AuthorityRotation),
}

impl CommandEffect {
    /// Returns the rotation to be written, if the command has an effect.
    pub fn changed(self) -> Option<AuthorityRotation> {
        match self {
            CommandEffect::Change(rotation) => Some(rotation),
            CommandEffect::None(_) => None,
        }
    }
}

/// Returns the effect of a command.
///
/// # Errors
/// The command is refused.
pub fn apply_command(
    command: &RotationCommand,
    present: Option<&AuthorityRotation>,
    proofs: &NodeProofs,
) -> Result<CommandEffect, RefusedCommand> {
    if let RotationCommand::Start(start) = command {
        return self::start(start, present, proofs);
    }
    let present = present.ok_or(RefusedCommand::NotInProgress)?;
    if present.phase == RotationPhase::Undone && *command == RotationCommand::Undo {
        return Ok(CommandEffect::None(present.clone()));
    }
    if present.phase.is_end() {
        return Err(RefusedCommand::NotInProgress);
    }
    let mut rotation = present.clone();
    match command {
        RotationCommand::Start(_) => {}
        RotationCommand::Pause => rotation.paused = true,
        RotationCommand::Resume => {
            rotation.paused = false;
            let next = rotation.phase.successor();
            rotation.hold_before.retain(|held| Some(*held) != next);
        }
        RotationCommand::Undo => undo(&mut rotation)?,
        RotationCommand::Exclude(nodes) => {
            require_known(nodes, proofs)?;
            exclude(&mut rotation, nodes, proofs)?;
        }
    }
    Ok(effect(rotation, present))
}

fn effect(rotation: AuthorityRotation, present: &AuthorityRotation) -> CommandEffect {
    if rotation == *present {
        CommandEffect::None(rotation)
    } else {
        CommandEffect::Change(rotation)
    }
}

fn exclude(
    rotation: &mut AuthorityRotation,
    nodes: &BTreeSet<String>,
    proofs: &NodeProofs,
) -> Result<(), RefusedCommand> {
    rotation.excluded.extend(nodes.iter().cloned());
    if rotation.counted(proofs).next().is_none() {
        return Err(RefusedCommand::NoNodes);
    }
    Ok(())
}

fn undo(rotation: &mut AuthorityRotation) -> Result<(), RefusedCommand> {
    rotation.phase = match rotation.phase {
        // No node has begun to use the new CA.
        RotationPhase::Trust => RotationPhase::Withdraw,
        RotationPhase::Activate => RotationPhase::Revert,
        RotationPhase::Revert | RotationPhase::Withdraw | RotationPhase::Undone => return Ok(()),
        RotationPhase::Retire | RotationPhase::Done => {
            return Err(RefusedCommand::RetirementBegun {
                id: rotation.id.clone(),
            });
        }
    };
    rotation.paused = false;
    rotation.hold_before.clear();
    rotation.token_wait = None;
    Ok(())
}

fn start(
    start: &RotationStart,
    present: Option<&AuthorityRotation>,
    proofs: &NodeProofs,
) -> Result<CommandEffect, RefusedCommand> {
    if start.old.sha256 == start.new.sha256 {
        return Err(RefusedCommand::SameCa);
    }
    if let Some(present) = present.filter(|rotation| !rotation.phase.is_end()) {
        let is_undone =
            RotationPhase::Revert.precedes(present.phase) || present.phase == RotationPhase::Revert;
        let is_same = present.old.sha256 == start.old.sha256
            && present.new.sha256 == start.new.sha256
            && !is_undone;
        return if is_same {
            repeat(start, present, proofs)
        } else {
            Err(RefusedCommand::InProgress {
                id: present.id.clone(),
                subject: present.subject,
                phase: present.phase,
            })
        };
    }
    if present.is_some_and(|ended| ended.id == start.id) {
        return Err(RefusedCommand::ReusedId(start.id.clone()));
    }
    require_known(&start.excluded, proofs)?;
    let pair = [&start.old, &start.new].map(RotatedCa::clone);
    let rotation = AuthorityRotation {
        hold_before: start.hold_before.clone(),
        excluded: start.excluded.clone(),
        token_lifetime: match start.subject {
            RotationSubject::Authority(_) => None,
            RotationSubject::ServiceAccount => {
                Some(start.token_lifetime.unwrap_or(DEFAULT_TOKEN_LIFETIME))
            }
        },
        ..AuthorityRotation::new(&start.id, start.subject, pair)
    };
    require_ready(&rotation, present, proofs)?;
    Ok(CommandEffect::Change(rotation))
}

/// Adds the options of a repeated start to the rotation in progress.
fn repeat(
    start: &RotationStart,
    present: &AuthorityRotation,
    proofs: &NodeProofs,
) -> Result<CommandEffect, RefusedCommand> {
    let mut rotation = present.clone();
    let added: BTreeSet<String> = &start.excluded - &present.excluded;
    if !added.is_empty() {
        require_known(&added, proofs)?;
        exclude(&mut rotation, &added, proofs)?;
    }
    for held in &start.hold_before - &present.hold_before {
        if !present.phase.precedes(held) {
            return Err(RefusedCommand::HeldTooLate {
                id: present.id.clone(),
                phase: present.phase,
                held,
            });
        }
        rotation.hold_before.insert(held);
    }
    if start.token_lifetime.is_some() && start.token_lifetime != present.token_lifetime {
        return Err(RefusedCommand::OtherTokenLifetime(present.id.clone()));
    }
    Ok(effect(rotation, present))
}

fn require_known(names: &BTreeSet<String>, proofs: &NodeProofs) -> Result<(), RefusedCommand> {
    let unknown: Vec<String> = names
        .iter()
        .filter(|name| !proofs.contains_key(*name))
        .cloned()
        .collect();
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(RefusedCommand::UnknownNodes(unknown))
    }
}

/// Verifies that every node that counts has ended the earlier rotation and uses the CA in place. A node that was excluded
/// from the earlier rotation may still act on what it has read then.
fn require_ready(
    rotation: &AuthorityRotation,
    earlier: Option<&AuthorityRotation>,
    proofs: &NodeProofs,
) -> Result<(), RefusedCommand> {
    let mut nodes = rotation.counted(proofs).peekable();
    if nodes.peek().is_none() {
        return Err(RefusedCommand::NoNodes);
    }
    let held: Vec<HeldNode> = nodes
        .filter_map(|(node, proof)| {
            let reason = unready(rotation, earlier, proof)?;
            Some(HeldNode::new(node, reason, proof))
        })
        .collect();
    if held.is_empty() {
        Ok(())
    } else {
        Err(RefusedCommand::NotReady(HeldNodes(held)))
    }
}

fn unready(
    rotation: &AuthorityRotation,
    earlier: Option<&AuthorityRotation>,
    proof: Option<&NodeProof>,
) -> Option<HoldReason> {
    let Some(proof) = proof else {
        return Some(HoldReason::NoReport);
    };
    if let Some(reason) = earlier.and_then(|earlier| unproven(earlier, Some(proof))) {
        return Some(reason);
    }
    let unmet = unsettled(proof, &[&rotation.old], &rotation.old);
    (!unmet.is_empty()).then_some(HoldReason::Unmet(unmet))
}
