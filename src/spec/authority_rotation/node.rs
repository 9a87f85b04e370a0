//! What a node does: one step, or nothing yet.

use super::{AuthorityRotation, NodeProof, RotatedCa};

/// The inputs of a node's decision besides the rotation.
#[derive(Clone, Copy, Debug)]
pub struct NodeSituation<'a> {
    /// The state of the node now, from its files and components.
    pub own: &'a NodeProof,
    /// The proof in its Node; `None` if there is none.
    pub published: Option<&'a NodeProof>,
    /// False from the start of the machine or of the join until [`NodeAction::Serve`].
    pub is_serving: bool,
}

/// What a node does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDecision {
    /// The action.
    pub action: NodeAction,
    /// True to write the node's state to its Node, before or after the action.
    pub reports: bool,
}

/// An action of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Nothing is required.
    Idle,
    /// The rotation is paused; the node does not begin the step.
    Paused,
    /// The rotation in hand is older than one that the node has acted on; read the ConfigMap again.
    ReadAgain,
    /// Start the components: the other nodes accept this one in its present state.
    Serve,
    /// Carry out a part of the step, and decide again. Record the begun phase in the same commit.
    Step(NodeStep),
    /// Carry out a part of what is missing before the node can serve, and decide again. Record nothing: a node that stops in
    /// between and starts again is still behind its published proof.
    CatchUp(NodeStep),
    /// Record the begun phase; the node meets its requirements already.
    Record,
}

/// A part of a node's step, named after the SHA-256 of the CA.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeStep {
    /// Restart the components that may still use former files.
    Restart,
    /// Add this CA to the trusted ones.
    Trust(String),
    /// Place this CA first, and have all certificates reissued under it.
    Reissue(String),
    /// Remove this CA from the trusted ones.
    Remove(String),
}

/// Returns what a node does, given the rotation that it has read; `None` if its authority has none.
///
/// A step that has begun completes although the rotation is paused. So does the catching up of a node that does not serve
/// yet: it interrupts nothing.
pub fn decide_node(
    rotation: Option<&AuthorityRotation>,
    situation: NodeSituation<'_>,
) -> NodeDecision {
    let NodeSituation {
        own,
        published,
        is_serving,
    } = situation;
    let action = match rotation {
        Some(rotation) => act(rotation, situation),
        None if is_serving => NodeAction::Idle,
        None => NodeAction::Serve,
    };
    NodeDecision {
        action,
        reports: is_serving && published != Some(own),
    }
}

fn act(rotation: &AuthorityRotation, situation: NodeSituation<'_>) -> NodeAction {
    let NodeSituation {
        own,
        published,
        is_serving,
    } = situation;
    if is_outdated(rotation, own) || published.is_some_and(|proof| is_outdated(rotation, proof)) {
        return NodeAction::ReadAgain;
    }
    let is_begun = rotation.is_begun(own);
    if rotation.unmet(rotation.phase, own).is_empty() {
        return match (is_begun, is_serving) {
            // Also before the node serves: files of an earlier phase are then recognized as older than its next proof.
            (false, _) => NodeAction::Record,
            (true, false) => NodeAction::Serve,
            (true, true) => NodeAction::Idle,
        };
    }
    if !is_serving && continues(rotation, own, published) {
        return NodeAction::Serve;
    }
    if rotation.paused && is_serving && !is_begun {
        return NodeAction::Paused;
    }
    match next_step(rotation, own) {
        Some(step) if is_serving => NodeAction::Step(step),
        Some(step) => NodeAction::CatchUp(step),
        None => NodeAction::Idle,
    }
}

/// Returns whether the proof is of a later phase of this rotation.
fn is_outdated(rotation: &AuthorityRotation, proof: &NodeProof) -> bool {
    let begun = proof.begun.as_ref();
    begun.is_some_and(|begun| begun.rotation == rotation.id && rotation.phase.precedes(begun.phase))
}

/// Returns whether a node that starts continues where it stopped, so all others accept it and it accepts them.
///
/// The leader waits for the proof of such a node. It does not wait for a node without a proof, or with a proof of more than
/// its files contain: on the proofs that it has listed before, it can write one more phase. Such a node serves only once it
/// meets the requirements of the present phase, with which it is accepted in the next one too.
fn continues(rotation: &AuthorityRotation, own: &NodeProof, published: Option<&NodeProof>) -> bool {
    published.is_some_and(|published| !is_behind(rotation, own, published))
}

/// Returns whether the files of a node are older than its published proof: they were restored from a backup.
fn is_behind(rotation: &AuthorityRotation, own: &NodeProof, published: &NodeProof) -> bool {
    match (&own.begun, &published.begun) {
        (own_begun, published_begun) if own_begun == published_begun => match own_begun {
            Some(begun) if begun.rotation == rotation.id => {
                rotation.unmet(begun.phase, published).is_empty()
                    && !rotation.unmet(begun.phase, own).is_empty()
            }
            // The requirements of another rotation are unknown here.
            _ => {
                own.trusted_by_all != published.trusted_by_all
                    || own.certificates_under != published.certificates_under
            }
        },
        (Some(own_begun), Some(published_begun)) if own_begun.rotation == rotation.id => {
            published_begun.rotation == rotation.id
                && !published_begun.phase.precedes(own_begun.phase)
        }
        (Some(own_begun), None) => own_begun.rotation != rotation.id,
        _ => true,
    }
}

/// Returns the first part of the step that is missing. The order keeps the node accepted by all others in between: it
/// trusts before it uses, and uses before it removes, each loaded before the next.
fn next_step(rotation: &AuthorityRotation, own: &NodeProof) -> Option<NodeStep> {
    if !own.restarts.is_empty() {
        return Some(NodeStep::Restart);
    }
    let target = rotation.target(rotation.phase);
    let is_lacking = |ca: &&&RotatedCa| !own.trusted_by_all.contains(&ca.sha256);
    if let Some(lacking) = target.trusted.iter().find(is_lacking) {
        return Some(NodeStep::Trust(lacking.sha256.clone()));
    }
    if !own.certificates_under.contains(&target.issuing.sha256) {
        return Some(NodeStep::Reissue(target.issuing.sha256.clone()));
    }
    let removed = target.removed?;
    let is_trusted = own.trusted_by_any.contains(&removed.sha256);
    is_trusted.then(|| NodeStep::Remove(removed.sha256.clone()))
}
