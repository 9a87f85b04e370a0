//! The state of the modelled cluster, in a compact form, and its translation into the documents of the protocol.

use std::collections::BTreeSet;

use nodepki::kube::names::Authority;
use nodepki::spec::authority_rotation::{
    AuthorityRotation, BegunPhase, NodeProof, NodeProofs, RotatedCa, RotationPhase,
    RotationSubject, RotationVersion, TokenWait,
};
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

/// Names of the nodes, in the order of [`State::nodes`]. Nodes are interchangeable: a name is valid in one state only.
const NODE_NAMES: [&str; 3] = ["cp-1", "cp-2", "cp-3"];

/// The time of every decision. Only its relation to the end of a wait matters.
pub(crate) const NOW: OffsetDateTime = datetime!(2026-11-24 12:00 UTC);
/// Lifetime of tokens in seconds.
pub(crate) const TOKEN_LIFETIME: u64 = 3600;

/// One of the two CA certificates, or of the two service-account keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Ca {
    First,
    Second,
}

impl Ca {
    const ALL: [Ca; 2] = [Ca::First, Ca::Second];

    pub(crate) fn other(self) -> Ca {
        match self {
            Ca::First => Ca::Second,
            Ca::Second => Ca::First,
        }
    }

    fn sha256(self) -> String {
        format!("{self:?}")
    }

    pub(crate) fn of_sha256(sha256: &str) -> Ca {
        let mut all = Ca::ALL.into_iter();
        all.find(|ca| ca.sha256() == sha256)
            .expect("the protocol names only CAs of the rotation")
    }

    pub(crate) fn rotated(self) -> RotatedCa {
        RotatedCa {
            sha256: self.sha256(),
            certificate: String::new(),
        }
    }
}

/// A set of CA certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CaSet(u8);

impl CaSet {
    pub(crate) const BOTH: CaSet = CaSet(3);

    pub(crate) fn of(ca: Ca) -> CaSet {
        CaSet(1 << ca as u8)
    }

    pub(crate) fn contains(self, ca: Ca) -> bool {
        self.0 & CaSet::of(ca).0 != 0
    }

    pub(crate) fn with(self, ca: Ca) -> CaSet {
        CaSet(self.0 | CaSet::of(ca).0)
    }

    pub(crate) fn without(self, ca: Ca) -> CaSet {
        CaSet(self.0 & !CaSet::of(ca).0)
    }

    pub(crate) fn is_within(self, other: CaSet) -> bool {
        self.0 & !other.0 == 0
    }

    pub(crate) fn and(self, other: CaSet) -> CaSet {
        CaSet(self.0 | other.0)
    }

    fn fingerprints(self) -> BTreeSet<String> {
        let members = Ca::ALL.into_iter().filter(|ca| self.contains(*ca));
        members.map(Ca::sha256).collect()
    }
}

/// What a node trusts, and the CAs of its certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Files {
    pub(crate) trusted: CaSet,
    /// Both while some of the certificates are reissued.
    pub(crate) issuers: CaSet,
}

impl Files {
    pub(crate) fn only(ca: Ca) -> Files {
        Files {
            trusted: CaSet::of(ca),
            issuers: CaSet::of(ca),
        }
    }
}

/// Number of a rotation, which is its id, and a phase.
pub(crate) type Begun = (u8, RotationPhase);

/// The wait for the tokens of the former key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Wait {
    /// A CA is rotated, or a node has read the rotation: no node depends on the wait.
    #[default]
    None,
    /// It has not begun.
    Due,
    /// Tokens of the former key may be valid.
    Pending,
    /// The lifetime of a token has passed since it began.
    Over,
}

/// The rotation in the ConfigMap, without the excluded nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Document {
    pub(crate) number: u8,
    pub(crate) old: Ca,
    pub(crate) phase: RotationPhase,
    pub(crate) is_paused: bool,
    pub(crate) wait: Wait,
}

impl Document {
    /// Returns the CA in place, at the end of a rotation.
    pub(crate) fn remaining(self) -> Ca {
        if self.phase == RotationPhase::Done {
            self.old.other()
        } else {
            self.old
        }
    }

    /// Returns the rotation as a node depends on it.
    pub(crate) fn for_node(self) -> Document {
        Document {
            wait: Wait::None,
            ..self
        }
    }

    /// Returns the files of a node that has ended the step of this phase.
    pub(crate) fn files(self) -> Files {
        let new = self.old.other();
        match self.phase {
            RotationPhase::Trust | RotationPhase::Revert => Files {
                trusted: CaSet::BOTH,
                issuers: CaSet::of(self.old),
            },
            RotationPhase::Activate => Files {
                trusted: CaSet::BOTH,
                issuers: CaSet::of(new),
            },
            RotationPhase::Retire | RotationPhase::Done => Files::only(new),
            RotationPhase::Withdraw | RotationPhase::Undone => Files::only(self.old),
        }
    }

    pub(crate) fn rotation(self, excluded: BTreeSet<String>) -> AuthorityRotation {
        AuthorityRotation {
            version: RotationVersion,
            id: self.number.to_string(),
            subject: match self.wait {
                Wait::None => Authority::Ca.into(),
                _ => RotationSubject::ServiceAccount,
            },
            old: self.old.rotated(),
            new: self.old.other().rotated(),
            phase: self.phase,
            paused: self.is_paused,
            // Permits less than a pause.
            hold_before: Default::default(),
            excluded,
            token_lifetime: (self.wait != Wait::None).then_some(TOKEN_LIFETIME),
            token_wait: self.token_wait(),
        }
    }

    fn token_wait(self) -> Option<TokenWait> {
        let until = match self.wait {
            Wait::None | Wait::Due => return None,
            Wait::Pending => NOW + Duration::SECOND,
            Wait::Over => NOW,
        };
        Some(TokenWait {
            until,
            switches: Default::default(),
        })
    }

    pub(crate) fn of(rotation: &AuthorityRotation) -> Document {
        Document {
            number: rotation.id.parse().expect("ids of the model are numbers"),
            old: Ca::of_sha256(&rotation.old.sha256),
            phase: rotation.phase,
            is_paused: rotation.paused,
            wait: match (rotation.token_lifetime, &rotation.token_wait) {
                (None, _) => Wait::None,
                (Some(_), None) => Wait::Due,
                (Some(_), Some(wait)) if NOW < wait.until => Wait::Pending,
                (Some(_), Some(_)) => Wait::Over,
            },
        }
    }
}

/// The proof of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Proof {
    pub(crate) begun: Option<Begun>,
    by_all: CaSet,
    by_any: CaSet,
    under: CaSet,
    is_restart_due: bool,
}

impl Proof {
    pub(crate) fn of(disk: Files, loaded: Files, begun: Option<Begun>) -> Proof {
        Proof {
            begun,
            by_all: CaSet(disk.trusted.0 & loaded.trusted.0),
            by_any: CaSet(disk.trusted.0 | loaded.trusted.0),
            under: if disk.issuers == loaded.issuers && disk.issuers != CaSet::BOTH {
                disk.issuers
            } else {
                CaSet::default()
            },
            is_restart_due: disk != loaded,
        }
    }

    pub(crate) fn document(self) -> NodeProof {
        NodeProof {
            version: RotationVersion,
            begun: self.begun.map(|(number, phase)| BegunPhase {
                rotation: number.to_string(),
                phase,
            }),
            trusted_by_all: self.by_all.fingerprints(),
            trusted_by_any: self.by_any.fingerprints(),
            certificates_under: self.under.fingerprints(),
            restarts: if self.is_restart_due {
                vec!["kube-apiserver".to_owned()]
            } else {
                Vec::new()
            },
            switched: None,
            sealing_key: None,
            failure: None,
        }
    }
}

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Life {
    /// Not part of the cluster yet.
    Absent,
    /// Has files, and is not registered yet.
    Joining,
    Down,
    /// Runs, and its components do not.
    Starting,
    Serving,
}

/// What a leader has listed of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Listed {
    /// The leader has no list, or the node was not registered.
    No,
    Node(Option<Proof>),
}

/// A node, with all that the ConfigMap and the leaders hold of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) life: Life,
    pub(crate) disk: Files,
    /// What the components have loaded; equal to `disk` while they do not run.
    pub(crate) loaded: Files,
    pub(crate) begun: Option<Begun>,
    /// The ConfigMap as this node has read it since it started.
    pub(crate) read: Option<Option<Document>>,
    /// The Node exists in the API.
    pub(crate) is_registered: bool,
    /// The proof in the Node.
    pub(crate) published: Option<Proof>,
    pub(crate) is_excluded: bool,
    /// An earlier state of the disk.
    pub(crate) backup: Option<(Files, Option<Begun>)>,
    pub(crate) listed: [Listed; 2],
}

impl Node {
    pub(crate) fn counts(&self) -> bool {
        self.is_registered && !self.is_excluded
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.life, Life::Starting | Life::Serving)
    }

    pub(crate) fn own(&self) -> Proof {
        Proof::of(self.disk, self.loaded, self.begun)
    }
}

/// The phase or the wait that a leader is about to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PendingWrite {
    pub(crate) number: u8,
    pub(crate) phase: RotationPhase,
    /// The wait begins, in the present phase.
    pub(crate) begins_wait: bool,
    /// The ConfigMap was written since this leader read it: its resourceVersion is another one.
    pub(crate) is_outdated: bool,
}

/// A process that considers itself the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Leader {
    pub(crate) has_list: bool,
    pub(crate) pending: Option<PendingWrite>,
}

/// How often each event can happen from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Budget {
    pub(crate) starts: u8,
    pub(crate) pauses: u8,
    pub(crate) undos: u8,
    pub(crate) exclusions: u8,
    pub(crate) crashes: u8,
    /// Each backup can be restored once.
    pub(crate) backups: u8,
    /// Signers that fail after a part of the certificates.
    pub(crate) partial_reissues: u8,
    /// Components that do not become ready with new files.
    pub(crate) rollbacks: u8,
    /// Writes that are applied and reported as failed.
    pub(crate) lost_answers: u8,
}

/// A violation that shows in a step, not in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Breach {
    /// A leader wrote a phase that is not the successor of the present one.
    WrongPhaseWritten,
    /// A node stopped trusting a CA that another serving node still uses.
    RemovedCaInUse,
}

/// The cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) nodes: Vec<Node>,
    pub(crate) document: Option<Document>,
    pub(crate) leaders: [Leader; 2],
    /// Keys with valid tokens; empty if a CA is rotated.
    pub(crate) tokens: CaSet,
    pub(crate) budget: Budget,
    pub(crate) breach: Option<Breach>,
}

impl State {
    /// Returns the representative of all states that differ only in the names of nodes and of leaders.
    pub(crate) fn canonical(mut self) -> State {
        self.nodes.sort_unstable();
        if self.leaders[0] == Leader::default() && self.leaders[1] == Leader::default() {
            return self;
        }
        let mut swapped = self.clone();
        swapped.leaders.swap(0, 1);
        for node in &mut swapped.nodes {
            node.listed.swap(0, 1);
        }
        swapped.nodes.sort_unstable();
        let order = |state: &State| (state.leaders, state.nodes.clone());
        if order(&swapped) < order(&self) {
            swapped
        } else {
            self
        }
    }

    /// Returns the registered nodes with what `proof` returns of them.
    pub(crate) fn proofs(&self, proof: impl Fn(&Node) -> Listed) -> Vec<(usize, Option<Proof>)> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .filter_map(|(index, node)| match proof(node) {
                Listed::No => None,
                Listed::Node(proof) => Some((index, proof)),
            })
            .collect()
    }

    /// Returns the indices of the excluded nodes.
    pub(crate) fn excluded(&self) -> Vec<usize> {
        let nodes = 0..self.nodes.len();
        nodes
            .filter(|index| self.nodes[*index].is_excluded)
            .collect()
    }
}

pub(crate) fn names(nodes: &[usize]) -> BTreeSet<String> {
    nodes
        .iter()
        .map(|index| NODE_NAMES[*index].to_owned())
        .collect()
}

pub(crate) fn indices(names: &BTreeSet<String>) -> Vec<usize> {
    let nodes = 0..NODE_NAMES.len();
    nodes
        .filter(|index| names.contains(NODE_NAMES[*index]))
        .collect()
}

pub(crate) fn documents(proofs: &[(usize, Option<Proof>)]) -> NodeProofs {
    let proofs = proofs.iter();
    proofs
        .map(|(index, proof)| (NODE_NAMES[*index].to_owned(), proof.map(Proof::document)))
        .collect()
}
