//! Calls the functions of the protocol with the documents of a state.
//!
//! The functions are pure, so each result is kept for the next equal call: the checker makes millions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;

use nodepki::kube::names::Authority;
use nodepki::spec::authority_rotation::{
    LeaderDecision, NodeAction, NodeSituation, NodeStep, RotationCommand, RotationPhase,
    RotationStart, RotationSubject, apply_command, decide_node, decide_phase,
};

use crate::state::{Ca, Document, NOW, Proof, TOKEN_LIFETIME, documents, indices, names};

/// A command, with nodes by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AdminCommand {
    /// Start a rotation to the CA that is not in place, without the excluded nodes of the last rotation or with them.
    Start {
        keeps_exclusions: bool,
    },
    Pause,
    Resume,
    Undo,
    Exclude(usize),
}

/// The action of a node, and whether it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModelDecision {
    pub(crate) action: ModelAction,
    pub(crate) reports: bool,
}

/// [`NodeAction`] with the CAs of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelAction {
    Nothing,
    Serve,
    Record,
    Restart,
    /// Change the files, and record the begun phase or not.
    Change {
        part: StepChange,
        records: bool,
    },
}

/// [`NodeStep`] with the CAs of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepChange {
    Trust(Ca),
    Reissue(Ca),
    Remove(Ca),
}

fn part(step: NodeStep, records: bool) -> ModelAction {
    let part = match step {
        NodeStep::Restart => return ModelAction::Restart,
        NodeStep::Trust(ca) => StepChange::Trust(Ca::of_sha256(&ca)),
        NodeStep::Reissue(ca) => StepChange::Reissue(Ca::of_sha256(&ca)),
        NodeStep::Remove(ca) => StepChange::Remove(Ca::of_sha256(&ca)),
    };
    ModelAction::Change { part, records }
}

type Cache<K, V> = RefCell<HashMap<K, V>>;
type Proofs = Vec<(usize, Option<Proof>)>;
type CommandKey = (AdminCommand, bool, Option<Document>, Vec<usize>, Proofs);

/// What a leader writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaderWrite {
    pub(crate) phase: RotationPhase,
    /// The wait begins, in the present phase.
    pub(crate) begins_wait: bool,
}

thread_local! {
    static LEADER: Cache<(Document, Vec<usize>, Proofs), Option<LeaderWrite>> = RefCell::default();
    static NODE: Cache<(Option<Document>, Proof, Option<Proof>, bool), ModelDecision> = RefCell::default();
    static COMMAND: Cache<CommandKey, Option<(Document, Vec<usize>)>> = RefCell::default();
}

fn cached<K: Eq + Hash + Clone, V: Clone>(
    cache: &'static std::thread::LocalKey<Cache<K, V>>,
    key: K,
    decide: impl FnOnce(&K) -> V,
) -> V {
    if let Some(known) = cache.with_borrow(|cache| cache.get(&key).cloned()) {
        return known;
    }
    let decided = decide(&key);
    cache.with_borrow_mut(|cache| cache.insert(key, decided.clone()));
    decided
}

/// Returns what a leader writes.
pub(crate) fn leader(
    document: Document,
    excluded: Vec<usize>,
    proofs: Proofs,
) -> Option<LeaderWrite> {
    cached(
        &LEADER,
        (document, excluded, proofs),
        |(document, excluded, proofs)| {
            let rotation = document.rotation(names(excluded));
            match decide_phase(&rotation, &documents(proofs), NOW) {
                LeaderDecision::Advance(phase) => Some(LeaderWrite {
                    phase,
                    begins_wait: false,
                }),
                LeaderDecision::Wait(_) => Some(LeaderWrite {
                    phase: rotation.phase,
                    begins_wait: true,
                }),
                LeaderDecision::Hold(_) => None,
            }
        },
    )
}

/// Returns what a node does.
pub(crate) fn node(
    read: Option<Document>,
    own: Proof,
    published: Option<Proof>,
    is_serving: bool,
) -> ModelDecision {
    cached(&NODE, (read, own, published, is_serving), |_| {
        let rotation = read.map(|document| document.rotation(Default::default()));
        let published = published.map(Proof::document);
        let situation = NodeSituation {
            own: &own.document(),
            published: published.as_ref(),
            is_serving,
        };
        let decision = decide_node(rotation.as_ref(), situation);
        ModelDecision {
            action: match decision.action {
                NodeAction::Idle | NodeAction::Paused | NodeAction::ReadAgain => {
                    ModelAction::Nothing
                }
                NodeAction::Serve => ModelAction::Serve,
                NodeAction::Record => ModelAction::Record,
                NodeAction::Step(step) => part(step, true),
                NodeAction::CatchUp(step) => part(step, false),
            },
            reports: decision.reports,
        }
    })
}

/// Returns the rotation and the excluded nodes that a command writes; `None` if it is refused or has no effect.
pub(crate) fn command(
    command: AdminCommand,
    has_tokens: bool,
    present: Option<Document>,
    excluded: Vec<usize>,
    proofs: Proofs,
) -> Option<(Document, Vec<usize>)> {
    let key = (command, has_tokens, present, excluded, proofs);
    cached(&COMMAND, key, |(_, _, _, excluded, proofs)| {
        let command = match command {
            AdminCommand::Start { keeps_exclusions } => {
                let old = present.map_or(Ca::First, Document::remaining);
                RotationCommand::Start(Box::new(RotationStart {
                    id: present.map_or(1, |ended| ended.number + 1).to_string(),
                    subject: if has_tokens {
                        RotationSubject::ServiceAccount
                    } else {
                        Authority::Ca.into()
                    },
                    old: old.rotated(),
                    new: old.other().rotated(),
                    hold_before: Default::default(),
                    excluded: if keeps_exclusions {
                        names(excluded)
                    } else {
                        Default::default()
                    },
                    token_lifetime: has_tokens.then_some(TOKEN_LIFETIME),
                }))
            }
            AdminCommand::Pause => RotationCommand::Pause,
            AdminCommand::Resume => RotationCommand::Resume,
            AdminCommand::Undo => RotationCommand::Undo,
            AdminCommand::Exclude(node) => RotationCommand::Exclude(names(&[node])),
        };
        let present = present.map(|document| document.rotation(names(excluded)));
        let written = apply_command(&command, present.as_ref(), &documents(proofs));
        let written = written.ok()?.changed()?;
        Some((Document::of(&written), indices(&written.excluded)))
    })
}
