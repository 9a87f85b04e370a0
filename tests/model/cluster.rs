//! The cluster as a model for the checker: every event that can happen in a state, and the properties.

use std::collections::HashSet;
use std::sync::Mutex;

use nodepki::spec::authority_rotation::RotationPhase;
use stateright::{Model, Property};

use crate::decisions::{self, AdminCommand, ModelAction, StepChange};
use crate::state::{
    Breach, Budget, Ca, CaSet, Document, Files, Leader, Life, Listed, Node, PendingWrite, Proof,
    State, Wait,
};

/// Name of the property: nodes accept each other.
pub(crate) const ACCEPT: &str = "counted nodes accept each other's certificates";
/// Name of the property: no CA is removed while a node uses it.
pub(crate) const KEEP: &str = "no node removes a CA that another one uses";
/// Name of the property: phases follow each other.
pub(crate) const FORWARD: &str = "a rotation goes backward only by undo";
/// Name of the property: rotations end.
pub(crate) const END: &str = "a rotation ends once faults and commands have ended";

/// Name of the property: tokens are accepted.
pub(crate) const TOKENS: &str = "counted nodes accept every token until it expires";

/// A rule of the protocol that the modelled cluster violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// The leader advances although the proof of one node is missing.
    AdvancesWithoutOneProof,
    /// The leader counts proofs of the same phase of an earlier rotation, and so does the start of a rotation.
    CountsProofsOfEarlierRotation,
    /// The leader looks at the CAs in a proof, not at its phase.
    CountsProofsOfOtherPhases,
    /// Nodes report the content of their files instead of what is loaded.
    ReportsFilesInsteadOfLoaded,
    /// The leader writes the phase whatever the ConfigMap's resourceVersion is.
    WritesWithoutComparing,
    /// A joining node serves without reading the rotation after its Node is registered.
    JoinsWithoutReadingAgain,
    /// A rotation starts whatever the nodes have reported.
    StartsWithoutProofs,
    /// A node that starts serves at once.
    ServesWithoutReading,
    /// A node reports before it serves.
    ReportsBeforeServing,
    /// A node that catches up records the phase before it meets its requirements.
    RecordsWhileCatchingUp,
    /// A node can read an older version of the ConfigMap.
    ReadsOlderVersion,
    /// The leader does not wait for the tokens of the former key.
    RemovesKeyWithoutWaiting,
}

/// The modelled cluster.
pub(crate) struct Cluster {
    pub(crate) members: usize,
    pub(crate) joiners: usize,
    pub(crate) leaders: usize,
    /// A leader lists the proofs in one event and reads the rotation in a later one.
    pub(crate) has_outdated_lists: bool,
    /// The service-account key is rotated in place of a CA.
    pub(crate) has_tokens: bool,
    pub(crate) budget: Budget,
    pub(crate) defect: Option<Defect>,
    /// States from which the fair schedule is known to end.
    pub(crate) ending: Mutex<HashSet<u64>>,
}

/// An event. Nodes and leaders are indices in the state before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Command(AdminCommand),
    /// A leader lists the Nodes.
    List(usize),
    /// A leader reads the ConfigMap and decides.
    Decide(usize),
    /// A leader writes the ConfigMap.
    Write(usize),
    /// As `Write`, and the leader does not learn the result.
    WriteWithoutAnswer(usize),
    /// A node reads the ConfigMap.
    Read(usize),
    /// A node reads the ConfigMap as it was in the first phase of the rotation.
    ReadOlder(usize),
    /// A node does what the protocol decides.
    Act(usize),
    /// A node writes its proof to its Node.
    Publish(usize),
    /// A node takes the trusted CAs and its certificates for a join.
    Prepare(usize),
    /// The kubelet of a joining node creates its Node.
    Register(usize),
    Crash(usize),
    PowerOn(usize),
    /// The lifetime of a token passes.
    Expire,
    /// As `Act`, and the signer fails after a part of the certificates.
    ReissuePartly(usize),
    /// A component does not become ready with new files, and the former ones are restored.
    RollBack(usize),
    /// The disk of a node is copied.
    BackUp(usize),
    /// The disk of a node that is down is replaced by the backup.
    Restore(usize),
}

impl Cluster {
    fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn commands(&self, state: &State) -> Vec<AdminCommand> {
        let mut commands = Vec::new();
        let budget = &state.budget;
        if budget.starts > 0 {
            commands.push(AdminCommand::Start {
                keeps_exclusions: false,
            });
            if !state.excluded().is_empty() {
                commands.push(AdminCommand::Start {
                    keeps_exclusions: true,
                });
            }
        }
        if budget.pauses > 0 {
            commands.push(AdminCommand::Pause);
        }
        if state.document.is_some_and(|document| document.is_paused) {
            commands.push(AdminCommand::Resume);
        }
        if budget.undos > 0 {
            commands.push(AdminCommand::Undo);
        }
        if budget.exclusions > 0 {
            let nodes = state.nodes.iter().enumerate();
            let counted = nodes.filter(|(_, node)| node.counts());
            commands.extend(counted.map(|(index, _)| AdminCommand::Exclude(index)));
        }
        commands
    }

    fn command(&self, state: &State, command: AdminCommand) -> Option<State> {
        let present = state.document;
        let forges_proofs =
            self.is(Defect::StartsWithoutProofs) || self.is(Defect::CountsProofsOfEarlierRotation);
        let proofs = match command {
            AdminCommand::Start { .. } if forges_proofs => {
                let ca = present.map_or(Ca::First, Document::remaining);
                let begun = present.map(|ended| (ended.number, ended.phase));
                let proof = Proof::of(Files::only(ca), Files::only(ca), begun);
                state.proofs(|node| {
                    if node.is_registered {
                        Listed::Node(Some(proof))
                    } else {
                        Listed::No
                    }
                })
            }
            _ => state.proofs(in_api),
        };
        let (document, excluded) =
            decisions::command(command, self.has_tokens, present, state.excluded(), proofs)?;
        let mut next = state.clone();
        let budget = &mut next.budget;
        match command {
            AdminCommand::Start { .. } => budget.starts -= 1,
            AdminCommand::Pause => budget.pauses -= 1,
            AdminCommand::Undo => budget.undos -= 1,
            AdminCommand::Exclude(_) => budget.exclusions -= 1,
            AdminCommand::Resume => {}
        }
        write(&mut next, document);
        for (index, node) in next.nodes.iter_mut().enumerate() {
            node.is_excluded = excluded.contains(&index);
        }
        Some(next)
    }

    fn list(&self, state: &State, leader: usize) -> State {
        let mut next = state.clone();
        for node in &mut next.nodes {
            node.listed[leader] = in_api(node);
        }
        next.leaders[leader].has_list = true;
        next
    }

    fn decide(&self, state: &State, leader: usize) -> Option<State> {
        let mut document = state.document?;
        if self.is(Defect::RemovesKeyWithoutWaiting) {
            document.wait = Wait::Over;
        }
        let mut proofs = if self.has_outdated_lists {
            state.proofs(|node| node.listed[leader])
        } else {
            state.proofs(in_api)
        };
        for (_, proof) in &mut proofs {
            let begun = proof.as_mut().and_then(|proof| proof.begun.as_mut());
            match (self.defect, begun) {
                (Some(Defect::CountsProofsOfEarlierRotation), Some(begun)) => {
                    begun.0 = document.number;
                }
                (Some(Defect::CountsProofsOfOtherPhases), Some(begun)) => {
                    *begun = (document.number, document.phase);
                }
                _ => {}
            }
        }
        let excluded = state.excluded();
        let mut written = decisions::leader(document, excluded.clone(), proofs.clone());
        if self.is(Defect::AdvancesWithoutOneProof) {
            for ignored in 0..proofs.len() {
                let mut others = proofs.clone();
                others.remove(ignored);
                written = written.or(decisions::leader(document, excluded.clone(), others));
            }
        }
        let written = written?;
        let mut next = state.clone();
        clear(&mut next, leader);
        next.leaders[leader].pending = Some(PendingWrite {
            number: document.number,
            phase: written.phase,
            begins_wait: written.begins_wait,
            is_outdated: false,
        });
        Some(next)
    }

    fn write(&self, state: &State, leader: usize, is_answered: bool) -> Option<State> {
        let pending = state.leaders[leader].pending?;
        let present = state.document?;
        let mut next = state.clone();
        clear(&mut next, leader);
        if pending.is_outdated && !self.is(Defect::WritesWithoutComparing) {
            return is_answered.then_some(next);
        }
        let is_expected = if pending.begins_wait {
            present.phase == pending.phase
        } else {
            present.phase.successor() == Some(pending.phase)
        };
        let is_successor = present.number == pending.number && is_expected;
        if !is_successor {
            next.breach = Some(Breach::WrongPhaseWritten);
        }
        let document = Document {
            number: pending.number,
            phase: pending.phase,
            wait: match (self.has_tokens, pending.begins_wait) {
                (false, _) => Wait::None,
                (true, true) => Wait::Pending,
                (true, false) => Wait::Due,
            },
            ..present
        };
        write(&mut next, document);
        if !is_answered {
            next.budget.lost_answers -= 1;
            next.leaders[leader].pending = Some(PendingWrite {
                is_outdated: true,
                ..pending
            });
        }
        Some(next)
    }

    fn decision(&self, node: &Node) -> Option<decisions::ModelDecision> {
        let is_serving = node.life == Life::Serving;
        let read = node.read.filter(|_| node.is_up() && node.is_registered)?;
        Some(decisions::node(
            read,
            node.own(),
            node.published,
            is_serving,
        ))
    }

    fn act(&self, state: &State, index: usize) -> Option<State> {
        let node = &state.nodes[index];
        let action = self.decision(node)?.action;
        let mut next = state.clone();
        let changed = &mut next.nodes[index];
        let begun = node.read.flatten().map(|read| (read.number, read.phase));
        match action {
            ModelAction::Nothing => return None,
            ModelAction::Serve => changed.life = Life::Serving,
            ModelAction::Record => changed.begun = begun,
            ModelAction::Restart => changed.loaded = node.disk,
            ModelAction::Change { part, records } => {
                let trusted = node.disk.trusted;
                match part {
                    StepChange::Trust(ca) => changed.disk.trusted = trusted.with(ca),
                    StepChange::Reissue(ca) => changed.disk.issuers = CaSet::of(ca),
                    StepChange::Remove(ca) => changed.disk.trusted = trusted.without(ca),
                }
                if records || self.is(Defect::RecordsWhileCatchingUp) {
                    changed.begun = begun;
                }
            }
        }
        if node.life == Life::Starting {
            changed.loaded = changed.disk;
        }
        if let ModelAction::Change {
            part: StepChange::Remove(removed),
            ..
        } = action
            && node.counts()
            && node.life == Life::Serving
        {
            let mut others = state.nodes.iter();
            let uses = |other: &Node| {
                other.disk.issuers.contains(removed) || other.loaded.issuers.contains(removed)
            };
            if others.any(|other| other.life == Life::Serving && other.counts() && uses(other)) {
                next.breach = Some(Breach::RemovedCaInUse);
            }
        }
        Some(next)
    }

    fn publish(&self, state: &State, index: usize) -> Option<State> {
        let node = &state.nodes[index];
        let reports = if self.is(Defect::ReportsBeforeServing) {
            node.is_up() && node.is_registered
        } else {
            self.decision(node)?.reports
        };
        let proof = if self.is(Defect::ReportsFilesInsteadOfLoaded) {
            Proof::of(node.disk, node.disk, node.begun)
        } else {
            node.own()
        };
        if !reports || node.published == Some(proof) {
            return None;
        }
        let mut next = state.clone();
        next.nodes[index].published = Some(proof);
        Some(next)
    }

    fn change_node(&self, state: &State, event: Event) -> State {
        let mut next = state.clone();
        match event {
            Event::Read(index) => {
                next.nodes[index].read = Some(state.document.map(Document::for_node));
            }
            Event::ReadOlder(index) => {
                let first = |document| Document {
                    phase: RotationPhase::Trust,
                    ..document
                };
                next.nodes[index].read = Some(state.document.map(Document::for_node).map(first));
            }
            Event::Prepare(index) => {
                let node = &mut next.nodes[index];
                node.disk = state
                    .document
                    .map_or(Files::only(Ca::First), Document::files);
                node.loaded = node.disk;
                node.begun = state.document.map(|read| (read.number, read.phase));
                node.read = Some(state.document.map(Document::for_node));
                node.life = Life::Joining;
            }
            Event::Register(index) => {
                let node = &mut next.nodes[index];
                node.is_registered = true;
                node.life = Life::Starting;
                if !self.is(Defect::JoinsWithoutReadingAgain) {
                    node.read = None;
                }
            }
            Event::Crash(index) => {
                let node = &mut next.nodes[index];
                node.life = Life::Down;
                node.loaded = node.disk;
                node.read = None;
                next.budget.crashes -= 1;
            }
            Event::PowerOn(index) => {
                next.nodes[index].life = if self.is(Defect::ServesWithoutReading) {
                    Life::Serving
                } else {
                    Life::Starting
                };
            }
            Event::RollBack(index) => {
                let node = &mut next.nodes[index];
                node.disk = node.loaded;
                next.budget.rollbacks -= 1;
            }
            Event::BackUp(index) => {
                let node = &mut next.nodes[index];
                node.backup = Some((node.disk, node.begun));
                next.budget.backups -= 1;
            }
            Event::Restore(index) => {
                let node = &mut next.nodes[index];
                if let Some((files, begun)) = node.backup.take() {
                    (node.disk, node.loaded, node.begun) = (files, files, begun);
                }
            }
            _ => {}
        }
        next
    }

    /// Returns the state after an event, with nodes in their order; `None` if it cannot happen or changes nothing.
    pub(crate) fn step(&self, state: &State, event: Event) -> Option<State> {
        let mut next = match event {
            Event::Expire => self.expire(state)?,
            _ => self.take(state, event)?,
        };
        if self.has_tokens {
            next.tokens = next.tokens.and(signing(&next));
        }
        Some(next)
    }

    fn expire(&self, state: &State) -> Option<State> {
        let mut next = state.clone();
        next.tokens = signing(state);
        if let Some(document) = &mut next.document
            && document.wait == Wait::Pending
        {
            document.wait = Wait::Over;
        }
        (self.has_tokens && next != *state).then_some(next)
    }

    fn take(&self, state: &State, event: Event) -> Option<State> {
        let node = |index: usize| &state.nodes[index];
        match event {
            Event::Command(command) => self.command(state, command),
            Event::List(leader) => self.has_outdated_lists.then(|| self.list(state, leader)),
            Event::Decide(leader) => {
                let is_listed = !self.has_outdated_lists || state.leaders[leader].has_list;
                self.decide(state, leader).filter(|_| is_listed)
            }
            Event::Write(leader) => self.write(state, leader, true),
            Event::WriteWithoutAnswer(leader) => self.write(state, leader, false),
            Event::Act(index) => self.act(state, index),
            Event::ReissuePartly(index) => {
                let mut next = self.act(state, index)?;
                let disk = &mut next.nodes[index].disk;
                if disk.issuers.is_within(node(index).disk.issuers) {
                    return None;
                }
                disk.issuers = CaSet::BOTH;
                if node(index).life == Life::Starting {
                    next.nodes[index].loaded = next.nodes[index].disk;
                }
                next.budget.partial_reissues -= 1;
                Some(next)
            }
            Event::Publish(index) => self.publish(state, index),
            Event::Read(index) => {
                let is_news = node(index).read != Some(state.document.map(Document::for_node));
                (node(index).is_up() && is_news).then(|| self.change_node(state, event))
            }
            Event::Register(index) => {
                (node(index).life == Life::Joining).then(|| self.change_node(state, event))
            }
            Event::PowerOn(index) => {
                (node(index).life == Life::Down).then(|| self.change_node(state, event))
            }
            Event::ReadOlder(_)
            | Event::Prepare(_)
            | Event::Crash(_)
            | Event::RollBack(_)
            | Event::BackUp(_)
            | Event::Restore(_) => Some(self.change_node(state, event)),
            Event::Expire => None,
        }
    }
}

/// Returns the keys with which counted nodes sign tokens.
fn signing(state: &State) -> CaSet {
    let nodes = state.nodes.iter();
    let serving = nodes.filter(|node| node.life == Life::Serving && node.counts());
    serving.fold(CaSet::default(), |keys, node| keys.and(node.loaded.issuers))
}

fn accept_tokens(state: &State) -> bool {
    let mut nodes = state.nodes.iter();
    nodes.all(|node| {
        let verifies = node.life == Life::Serving && node.counts();
        !verifies || state.tokens.is_within(node.loaded.trusted)
    })
}

fn accept_each_other(state: &State) -> bool {
    let is_serving = |node: &&Node| node.life == Life::Serving && node.counts();
    let serving = || state.nodes.iter().filter(is_serving);
    serving()
        .all(|server| serving().all(|peer| server.loaded.issuers.is_within(peer.loaded.trusted)))
}

/// Returns what the API has of a node.
fn in_api(node: &Node) -> Listed {
    if node.is_registered {
        Listed::Node(node.published)
    } else {
        Listed::No
    }
}

/// Writes the ConfigMap, which changes its resourceVersion.
fn write(state: &mut State, document: Document) {
    state.document = Some(document);
    for leader in &mut state.leaders {
        if let Some(pending) = &mut leader.pending {
            pending.is_outdated = true;
        }
    }
}

fn clear(state: &mut State, leader: usize) {
    state.leaders[leader] = Leader::default();
    for node in &mut state.nodes {
        node.listed[leader] = Listed::No;
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let files = Files::only(Ca::First);
        let absent = Node {
            life: Life::Absent,
            disk: files,
            loaded: files,
            begun: None,
            read: None,
            is_registered: false,
            published: None,
            is_excluded: false,
            backup: None,
            listed: [Listed::No; 2],
        };
        let member = Node {
            life: Life::Serving,
            read: Some(None),
            is_registered: true,
            published: Some(absent.own()),
            ..absent
        };
        let mut nodes = vec![member; self.members];
        nodes.resize(self.members + self.joiners, absent);
        let state = State {
            nodes,
            document: None,
            leaders: [Leader::default(); 2],
            tokens: if self.has_tokens {
                CaSet::of(Ca::First)
            } else {
                CaSet::default()
            },
            budget: self.budget,
            breach: None,
        };
        vec![state.canonical()]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        events.extend(self.commands(state).into_iter().map(Event::Command));
        if self.has_tokens {
            events.push(Event::Expire);
        }
        for leader in 0..self.leaders {
            events.extend([
                Event::List(leader),
                Event::Decide(leader),
                Event::Write(leader),
            ]);
            if state.budget.lost_answers > 0 {
                events.push(Event::WriteWithoutAnswer(leader));
            }
        }
        for (index, node) in state.nodes.iter().enumerate() {
            match node.life {
                Life::Absent => events.push(Event::Prepare(index)),
                Life::Joining => events.push(Event::Register(index)),
                Life::Down => {
                    events.push(Event::PowerOn(index));
                    if node.backup.is_some() {
                        events.push(Event::Restore(index));
                    }
                }
                Life::Starting | Life::Serving => {
                    events.extend([Event::Read(index), Event::Act(index), Event::Publish(index)]);
                    if self.is(Defect::ReadsOlderVersion) {
                        events.push(Event::ReadOlder(index));
                    }
                    if state.budget.crashes > 0 {
                        events.push(Event::Crash(index));
                    }
                    if state.budget.partial_reissues > 0 {
                        events.push(Event::ReissuePartly(index));
                    }
                    if state.budget.rollbacks > 0 && node.disk != node.loaded {
                        events.push(Event::RollBack(index));
                    }
                    if state.budget.backups > 0 {
                        events.push(Event::BackUp(index));
                    }
                }
            }
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        self.step(state, event).map(State::canonical)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(ACCEPT, |_, state| accept_each_other(state)),
            Property::<Self>::always(KEEP, |_, state| {
                state.breach != Some(Breach::RemovedCaInUse)
            }),
            Property::<Self>::always(FORWARD, |_, state| {
                state.breach != Some(Breach::WrongPhaseWritten)
            }),
            Property::<Self>::always(TOKENS, |_, state| accept_tokens(state)),
            Property::<Self>::always(END, |cluster, state| cluster.ends(state)),
            Property::<Self>::sometimes("a rotation is done", |_, state| {
                state
                    .document
                    .is_some_and(|document| document.phase == RotationPhase::Done)
            }),
        ]
    }
}
