//! The protocol by which one command changes a CA, or the service-account key, on all nodes of a cluster.
//!
//! Pure. A ConfigMap holds one [`AuthorityRotation`] for each [`RotationSubject`]. Every node carries out the step of its phase and
//! writes a [`NodeProof`] to its own Node. A leader writes the next phase once every node that counts has proven the
//! present one.
//!
//! | phase | each node | trusts | issuing CA |
//! | --- | --- | --- | --- |
//! | `trust` | adds the new CA to the trusted ones | old, new | old |
//! | `activate` | has all certificates reissued under the new CA | new, old | new |
//! | `retire`, `done` | removes the old CA | new | new |
//! | `revert` | has all certificates reissued under the old CA | old, new | old |
//! | `withdraw`, `undone` | removes the new CA | old | old |
//!
//! `trust`, `activate` and `retire` lead to `done`. [`RotationCommand::Undo`] leads from `trust` to `withdraw`, and from
//! `activate` through `revert` to `withdraw` and `undone`. No phase occurs twice in one rotation.
//!
//! | function | decides |
//! | --- | --- |
//! | [`decide_phase`] | what the leader does |
//! | [`decide_node`] | what a node does |
//! | [`apply_command`] | what a command changes, or why it is refused |
//!
//! # What the caller ensures
//!
//! - The ConfigMap is written only if its resourceVersion is the one that was read. A list of proofs may be outdated: a
//!   proof names its phase, and a phase occurs once.
//! - A node reads the ConfigMap from a quorum of etcd (without `resourceVersion` in the request), never an older version
//!   after a newer one. It may act later on what it has read.
//! - A node records the [`BegunPhase`] in the same commit as the first change of a step, and its proof describes what its
//!   components have loaded.
//! - A node that starts reads the ConfigMap and its own Node before its components serve, and serves only after
//!   [`NodeAction::Serve`]. A joining node reads the ConfigMap again after its Node is registered, since a list of proofs
//!   from before does not contain it. A node that was restored from a backup has proven more than its files contain.
//!   If the API cannot be reached, as after a power failure of all nodes, a node that has neither joined nor been restored
//!   can serve with its files.
//! - A node whose Node is deleted does not count any more, and is not waited for.
//! - A node that does not serve writes no proof ([`NodeDecision::reports`]): otherwise the next start could not detect that
//!   the leader may still act on the proof from before.
//!
//! `tests/model` runs these functions in every order of steps and faults, within bounds. Clusters that violate one of these
//! rules run there too, and the model checker must find the consequence.
//!
//! A CA that is renewed with the same key takes the same steps: its certificates are under both CAs.
//!
//! # The service-account key
//!
//! It takes the same phases: `sa.pub` contains the trusted public keys, and tokens are "under" the public key that verifies
//! them. Tokens cannot be issued again by their signer, so a key is removed only when the last token under it has
//! expired: once every node has proven `activate`, or `revert`, the leader writes a [`TokenWait`]. A node that changes its
//! signing key names each change ([`NodeProof::switched`]), and a change that the wait does not know begins it again: a node
//! that has joined with the former key, or was restored from a backup, may have signed tokens with it until then.

mod command;
mod leader;
mod node;
mod subject;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

pub use command::{CommandEffect, RefusedCommand, RotationCommand, RotationStart, apply_command};
pub use leader::{HeldNode, HeldNodes, HoldReason, LeaderDecision, LeaderHold, decide_phase};
pub use node::{NodeAction, NodeDecision, NodeSituation, NodeStep, decide_node};
pub use subject::RotationSubject;

/// Version of the documents that this program reads and writes.
const DOCUMENT_VERSION: u32 = 1;

/// A change of one authority's CA, or of the service-account key, on all nodes of a cluster, as the ConfigMap contains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityRotation {
    /// Version of the format.
    pub version: RotationVersion,
    /// Name of this rotation, unique among all rotations of the subject.
    pub id: String,
    /// The CA or key pair that changes.
    #[serde(rename = "authority")]
    pub subject: RotationSubject,
    /// CA or key that is replaced.
    pub old: RotatedCa,
    /// CA or key that replaces it.
    pub new: RotatedCa,
    /// Present phase.
    pub phase: RotationPhase,
    /// True to write no further phase and to begin no step.
    #[serde(default)]
    pub paused: bool,
    /// Phases that do not begin until [`RotationCommand::Resume`].
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub hold_before: BTreeSet<RotationPhase>,
    /// Names of the nodes that do not count. They take the steps too, if they can.
    #[serde(default)]
    pub excluded: BTreeSet<String>,
    /// Longest lifetime of a token in seconds, for the service-account key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_lifetime: Option<u64>,
    /// Wait for the tokens of the former key, in the phases `activate` and `revert`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_wait: Option<TokenWait>,
}

/// A wait until no token of the former key is valid any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenWait {
    /// End of the wait, by the leader's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    /// The [`NodeProof::switched`] of the nodes when the wait began, by node.
    pub switches: BTreeMap<String, String>,
}

/// One of the two CAs of a rotation, or of the two service-account keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RotatedCa {
    /// SHA-256 of the certificate or of the public key (SubjectPublicKeyInfo), in hexadecimal. The reader verifies it against
    /// `certificate`.
    pub sha256: String,
    /// The certificate in PEM, for nodes that do not have it: the new CA on every node, the old one on a node that joins. Of
    /// the service-account key, the public key in PEM.
    pub certificate: String,
}

/// Version of [`AuthorityRotation`] and [`NodeProof`]. Documents of other versions are rejected when they are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct RotationVersion;

/// A document whose version this program does not know.
#[derive(Debug, thiserror::Error)]
#[error(
    "version {0} of a CA rotation is not supported (this nodepki supports version {DOCUMENT_VERSION}; install the same release on every node)"
)]
pub struct UnsupportedRotationVersion(u32);

impl TryFrom<u32> for RotationVersion {
    type Error = UnsupportedRotationVersion;

    fn try_from(version: u32) -> Result<Self, Self::Error> {
        match version {
            DOCUMENT_VERSION => Ok(RotationVersion),
            other => Err(UnsupportedRotationVersion(other)),
        }
    }
}

impl From<RotationVersion> for u32 {
    fn from(RotationVersion: RotationVersion) -> u32 {
        DOCUMENT_VERSION
    }
}

words! {
    /// Phase of a rotation.
    #[derive(Hash, PartialOrd, Ord)]
    pub enum RotationPhase: Serialize, Deserialize {
        /// Nodes add the new CA to the trusted ones.
        Trust = "trust",
        /// Nodes have their certificates reissued under the new CA.
        Activate = "activate",
        /// Nodes remove the old CA.
        Retire = "retire",
        /// The new CA has replaced the old one.
        Done = "done",
        /// Nodes have their certificates reissued under the old CA.
        Revert = "revert",
        /// Nodes remove the new CA.
        Withdraw = "withdraw",
        /// The old CA is in place again.
        Undone = "undone",
    }
}

impl RotationPhase {
    /// Returns the phase that follows without a command; `None` at the end of a rotation.
    pub const fn successor(self) -> Option<Self> {
        match self {
            RotationPhase::Trust => Some(RotationPhase::Activate),
            RotationPhase::Activate => Some(RotationPhase::Retire),
            RotationPhase::Retire => Some(RotationPhase::Done),
            RotationPhase::Revert => Some(RotationPhase::Withdraw),
            RotationPhase::Withdraw => Some(RotationPhase::Undone),
            RotationPhase::Done | RotationPhase::Undone => None,
        }
    }

    /// Returns whether the rotation has ended.
    pub const fn is_end(self) -> bool {
        self.successor().is_none()
    }

    /// Returns whether nodes trust both CAs in this phase.
    pub const fn trusts_both(self) -> bool {
        matches!(
            self,
            RotationPhase::Trust | RotationPhase::Activate | RotationPhase::Revert
        )
    }

    /// Returns whether one rotation can have been in this phase and is in `later` now.
    pub fn precedes(self, later: Self) -> bool {
        let undone = match self {
            RotationPhase::Trust => Some(RotationPhase::Withdraw),
            RotationPhase::Activate => Some(RotationPhase::Revert),
            _ => None,
        };
        let next = self.successor().into_iter().chain(undone);
        next.into_iter()
            .any(|next| next == later || next.precedes(later))
    }
}

/// What one node trusts, and which CAs its certificates are under, as its Node contains it.
///
/// All fields describe both the files and what the components have loaded. Of the service-account key, the public keys in
/// `sa.pub` are trusted, and tokens are under the public key of `sa.key`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeProof {
    /// Version of the format.
    pub version: RotationVersion,
    /// Latest phase whose step the node has begun; `None` before its first rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<BegunPhase>,
    /// SHA-256 of the CA certificates that every file and every component trusts, in hexadecimal.
    pub trusted_by_all: BTreeSet<String>,
    /// SHA-256 of the CA certificates that at least one file or component trusts, in hexadecimal.
    pub trusted_by_any: BTreeSet<String>,
    /// SHA-256 of the CA certificates under which every certificate verifies that the node serves or presents.
    pub certificates_under: BTreeSet<String>,
    /// Components that may still use former files, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<String>,
    /// Name of the node's last change of its signing key, unique on the node; `None` if it has never changed it. Only of the
    /// service-account key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switched: Option<String>,
    /// Public key with which the new service-account key is encrypted for this node, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealing_key: Option<String>,
    /// Last failure of a step, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A phase of one rotation. Recorded on the node, in the commit that begins the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BegunPhase {
    /// The rotation's id.
    pub rotation: String,
    /// The phase.
    pub phase: RotationPhase,
}

/// The nodes that use an authority, by name, each with its proof. A node without a readable proof has `None`.
pub type NodeProofs = BTreeMap<String, Option<NodeProof>>;

/// Desired state of a node in one phase.
struct PhaseTarget<'a> {
    trusted: Vec<&'a RotatedCa>,
    removed: Option<&'a RotatedCa>,
    issuing: &'a RotatedCa,
}

/// A requirement of a phase that a node does not meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum UnmetRequirement {
    /// A component may still use former files; the sentence of the proof.
    RestartDue(String),
    /// Not every file and component trusts the CA with this SHA-256.
    NotTrusted(String),
    /// Not every certificate is under the CA with this SHA-256.
    NotUnder(String),
    /// A file or component still trusts the CA with this SHA-256.
    StillTrusted(String),
}

impl fmt::Display for UnmetRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnmetRequirement::RestartDue(sentence) => write!(f, "a restart is due: {sentence}"),
            UnmetRequirement::NotTrusted(sha256) => {
                write!(f, "not everything there trusts {}", shortened(sha256))
            }
            UnmetRequirement::NotUnder(sha256) => write!(
                f,
                "not everything there is signed under {}",
                shortened(sha256)
            ),
            UnmetRequirement::StillTrusted(sha256) => {
                write!(f, "{} is still trusted there", shortened(sha256))
            }
        }
    }
}

/// Returns the form of a SHA-256 for messages.
fn shortened(sha256: &str) -> String {
    format!("sha256:{}…", sha256.get(..16).unwrap_or(sha256))
}

impl AuthorityRotation {
    /// Returns a rotation in its first phase, which counts every node.
    pub fn new(
        id: impl Into<String>,
        subject: impl Into<RotationSubject>,
        [old, new]: [RotatedCa; 2],
    ) -> Self {
        AuthorityRotation {
            version: RotationVersion,
            id: id.into(),
            subject: subject.into(),
            old,
            new,
            phase: RotationPhase::Trust,
            paused: false,
            hold_before: BTreeSet::new(),
            excluded: BTreeSet::new(),
            token_lifetime: None,
            token_wait: None,
        }
    }

    /// Returns this rotation in another phase.
    #[must_use]
    pub fn in_phase(&self, phase: RotationPhase) -> Self {
        AuthorityRotation {
            phase,
            token_wait: None,
            ..self.clone()
        }
    }

    /// Returns this rotation with a wait for tokens.
    #[must_use]
    pub fn waiting(&self, wait: TokenWait) -> Self {
        AuthorityRotation {
            token_wait: Some(wait),
            ..self.clone()
        }
    }

    /// Returns the present phase as a node records it.
    pub fn begun(&self) -> BegunPhase {
        BegunPhase {
            rotation: self.id.clone(),
            phase: self.phase,
        }
    }

    /// Returns the CA under which certificates are to be in the present phase.
    pub fn issuing(&self) -> &RotatedCa {
        self.target(self.phase).issuing
    }

    /// Returns the CAs that nodes trust once the present phase is proven; the issuing one is first.
    pub fn trusted(&self) -> Vec<&RotatedCa> {
        self.target(self.phase).trusted
    }

    /// Returns the CA that nodes trust no longer once the present phase is proven.
    pub fn removed(&self) -> Option<&RotatedCa> {
        self.target(self.phase).removed
    }

    /// Returns the nodes that count, each with its proof.
    fn counted<'a>(
        &self,
        proofs: &'a NodeProofs,
    ) -> impl Iterator<Item = (&'a String, Option<&'a NodeProof>)> {
        let nodes = proofs.iter();
        nodes
            .filter(|(node, _)| !self.excluded.contains(*node))
            .map(|(node, proof)| (node, proof.as_ref()))
    }

    /// Returns whether a node has begun the step of the present phase.
    fn is_begun(&self, proof: &NodeProof) -> bool {
        proof.begun == Some(self.begun())
    }

    fn target(&self, phase: RotationPhase) -> PhaseTarget<'_> {
        let (old, new) = (&self.old, &self.new);
        match phase {
            RotationPhase::Trust | RotationPhase::Revert => PhaseTarget {
                trusted: vec![old, new],
                removed: None,
                issuing: old,
            },
            RotationPhase::Activate => PhaseTarget {
                trusted: vec![new, old],
                removed: None,
                issuing: new,
            },
            RotationPhase::Retire | RotationPhase::Done => PhaseTarget {
                trusted: vec![new],
                removed: Some(old),
                issuing: new,
            },
            RotationPhase::Withdraw | RotationPhase::Undone => PhaseTarget {
                trusted: vec![old],
                removed: Some(new),
                issuing: old,
            },
        }
    }

    /// Returns the requirements of a phase that a node does not meet. An empty result and a begun step prove the phase.
    ///
    /// After the end of a rotation, only the removal is required: an administrator may have changed the CA again.
    fn unmet(&self, phase: RotationPhase, proof: &NodeProof) -> Vec<UnmetRequirement> {
        let target = self.target(phase);
        let mut unmet = if phase.is_end() {
            restarts_due(proof)
        } else {
            unsettled(proof, &target.trusted, target.issuing)
        };
        let still_trusted = target
            .removed
            .filter(|removed| proof.trusted_by_any.contains(&removed.sha256));
        unmet.extend(still_trusted.map(|ca| UnmetRequirement::StillTrusted(ca.sha256.clone())));
        unmet
    }
}

fn restarts_due(proof: &NodeProof) -> Vec<UnmetRequirement> {
    let restarts = proof.restarts.iter().cloned();
    restarts.map(UnmetRequirement::RestartDue).collect()
}

/// Returns what prevents that a node trusts these CAs and has all certificates under the issuing one.
fn unsettled(
    proof: &NodeProof,
    trusted: &[&RotatedCa],
    issuing: &RotatedCa,
) -> Vec<UnmetRequirement> {
    let mut unmet = restarts_due(proof);
    let lacking = trusted
        .iter()
        .filter(|ca| !proof.trusted_by_all.contains(&ca.sha256));
    unmet.extend(lacking.map(|ca| UnmetRequirement::NotTrusted(ca.sha256.clone())));
    if !proof.certificates_under.contains(&issuing.sha256) {
        unmet.push(UnmetRequirement::NotUnder(issuing.sha256.clone()));
    }
    unmet
}

#[cfg(test)]
mod tests;
