//! The fleet in virtual time: runs it, examines the nodes after each step, and changes CAs as an administrator does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use nodepki::agent::Failure;
use nodepki::agent::authority::report::{NodeReport, Peers};
use nodepki::agent::authority::{self, StepOrder, StepOutcome};
use nodepki::config::Argument;
use nodepki::daemon::{FileRole, Wake};
use nodepki::kube::names::Authority;
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::sleep;

use crate::chance::Chance;
use crate::judge::{BUNDLES, FoundSlot, SLOTS, SlotPlace, TrustPicture, certificates};
use crate::node::{
    self, HERE, Listener, PERSONS_FILE, START, SimulatedNode, clock, elapsed, true_time, wait_until,
};
use crate::plan::{DAY, HOUR, Plan, Scale, SignerFault};
use crate::sabotage::Sabotage;
use crate::signer::{CaId, IssuedLeaf, SigningService};
use crate::statistics::{Statistics, Totals};

/// A certificate must not be expired if its node had this time in a row to renew it.
const RENEWAL_MARGIN: Duration = Duration::from_secs(6 * 3600);
/// Share of a lifetime at the end of which a renewal must have been attempted: after 66 %, or in a window before 90 %.
const RENEWAL_SHARE: f64 = 0.3;
const URGENT_SHARE: f64 = 0.1;
/// Largest number of submissions for one certificate within an hour: at most 20 of the rotation
/// (`signer::retry::submission_delay`), and those of an administrator's commands, which are not limited.
const MAX_REQUESTS: usize = 30;
/// Number of steps of a CA change that a failure shows.
const SHOWN_CHANGE_STEPS: usize = 10;
/// Number of nodes from which a fleet is large enough for [`MAX_NODES_AT_ONCE_SHARE`].
const LARGE_FLEET: usize = 20;
/// Largest share of the nodes of a fleet that submit requests in the same minute. A cluster of seven nodes may, when an
/// administrator changes its CA.
const MAX_NODES_AT_ONCE_SHARE: f64 = 0.3;

pub(crate) struct World {
    seed: u64,
    pub(crate) plan: Plan,
    services: Vec<Rc<SigningService>>,
    pub(crate) nodes: Vec<Rc<SimulatedNode>>,
    pub(crate) statistics: Rc<Statistics>,
    violation: RefCell<Option<String>>,
    is_violated: Notify,
    /// The last steps of the CA change of each cluster.
    change_steps: RefCell<BTreeMap<usize, VecDeque<String>>>,
}

/// Result of a seed that violates no invariant.
pub(crate) struct Simulated {
    pub(crate) totals: Totals,
    /// Depends on every event of every node.
    pub(crate) digest: u64,
}

/// Simulates a seed. With a sabotage, nothing else happens to the nodes.
///
/// # Errors
/// The violated invariant, with the seed, the node, the time and the last events of the node.
pub(crate) fn simulate(
    seed: u64,
    scale: Scale,
    sabotage: Option<Sabotage>,
) -> Result<Simulated, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let world = runtime.block_on(async {
        node::begin();
        let world = Rc::new(World::new(seed, scale, sabotage.is_some()));
        let tasks = LocalSet::new();
        world.start(&tasks);
        if let Some(sabotage) = sabotage {
            tasks.spawn_local(sabotage.commit(Rc::clone(&world)));
        }
        let end = async {
            tokio::select! {
                biased;
                () = world.is_violated.notified() => {}
                () = wait_until(world.plan.length) => {}
            }
        };
        tasks.run_until(end).await;
        for node in &world.nodes {
            world.examine(node);
        }
        world
    });
    if let Some(violation) = world.violation.take() {
        return Err(violation);
    }
    let mut totals = world.statistics.total();
    totals.hours = scale.length.as_secs_f64() / HOUR.as_secs_f64();
    totals.node_years = world.nodes.len() as f64 * totals.hours / (365.0 * 24.0);
    let digests: Vec<u64> = world.nodes.iter().map(|node| node.digest.get()).collect();
    let digest = Chance::new(seed).of(digests).below(u64::MAX);
    Ok(Simulated { totals, digest })
}

impl World {
    /// `is_quiet`: nothing happens to the nodes, and the signers only queue requests for a time.
    fn new(seed: u64, scale: Scale, is_quiet: bool) -> World {
        let mut plan = Plan::of(seed, scale);
        if is_quiet {
            plan.nodes.iter_mut().for_each(|node| node.events.clear());
            for cluster in &mut plan.clusters {
                cluster.faults = vec![(DAY * 100..DAY * 300, SignerFault::Queues(24), None)];
            }
        }
        let chance = Chance::new(seed);
        let statistics = Rc::new(Statistics::default());
        let services: Vec<Rc<SigningService>> = plan
            .clusters
            .iter()
            .enumerate()
            .map(|(number, cluster)| {
                let chance = chance.of(("signer", number));
                let statistics = Rc::clone(&statistics);
                for (_, fault, _) in &cluster.faults {
                    statistics.fault(match fault {
                        SignerFault::Queues(_) => "signer Queues".to_owned(),
                        fault => format!("signer {fault:?}"),
                    });
                }
                Rc::new(SigningService::new(
                    cluster.clone(),
                    chance,
                    START,
                    statistics,
                ))
            })
            .collect();
        let nodes = plan
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| {
                let chance = chance.of(("jitter", index));
                let service = &services[node.cluster];
                Rc::new(SimulatedNode::new(index, node.clone(), service, chance))
            })
            .collect();
        World {
            seed,
            plan,
            services,
            nodes,
            statistics,
            violation: RefCell::default(),
            is_violated: Notify::new(),
            change_steps: RefCell::default(),
        }
    }

    fn start(self: &Rc<Self>, tasks: &LocalSet) {
        for node in &self.nodes {
            let chance = Chance::new(self.seed).of(("components", node.index));
            let scoped = |node: &Rc<SimulatedNode>| (Rc::clone(self), Rc::clone(node));
            let (world, here) = scoped(node);
            tasks.spawn_local(HERE.scope(Rc::clone(node), node::live(world, here)));
            let (world, here) = scoped(node);
            tasks.spawn_local(HERE.scope(Rc::clone(node), node::happen(world, here)));
            let (world, here) = scoped(node);
            let components = node::restart_components(world, here, chance);
            tasks.spawn_local(HERE.scope(Rc::clone(node), components));
        }
        for number in 0..self.services.len() {
            tasks.spawn_local(change_authority(Rc::clone(self), number));
        }
    }

    pub(crate) fn service(&self, node: &SimulatedNode) -> Rc<SigningService> {
        Rc::clone(&self.services[node.plan.cluster])
    }

    /// Records the first violation, which ends the simulation.
    pub(crate) fn violation(&self, node: &SimulatedNode, what: impl std::fmt::Display) {
        let mut violation = self.violation.borrow_mut();
        if violation.is_some() {
            return;
        }
        let now = nodepki::text::rfc3339(true_time());
        let mut events = node.events();
        let steps = self.change_steps.borrow();
        events.extend(steps.get(&node.plan.cluster).into_iter().flatten().cloned());
        *violation = Some(format!(
            "seed {}, node {} at {now}: {what}\n  {}",
            self.seed,
            node.plan.name,
            events.join("\n  ")
        ));
        self.is_violated.notify_one();
    }

    /// Records a step of a CA change for the report of a failure.
    fn record_change_step(&self, node: &SimulatedNode, result: &str) {
        let mut steps = self.change_steps.borrow_mut();
        let steps = steps.entry(node.plan.cluster).or_default();
        if steps.len() == SHOWN_CHANGE_STEPS {
            steps.pop_front();
        }
        let now = nodepki::text::rfc3339(true_time());
        steps.push_back(format!("{now} on {}: {result}", node.plan.name));
    }

    /// Verifies the invariants on a node, and between it and its peers.
    pub(crate) fn examine(&self, node: &Rc<SimulatedNode>) {
        let service = self.service(node);
        let mut on_disk = TrustPicture::default();
        for place in &SLOTS {
            let found = node.view.borrow_mut().find(&node.root(), place);
            self.examine_slot(node, &service, place, &found, &mut on_disk);
        }
        for (authority, file) in BUNDLES {
            if let Ok(text) = fs::read(node.path(file)) {
                let trusted = self.cas(node, file, &service, &certificates(&text));
                on_disk.trusted.insert(file, (authority, trusted));
            }
        }
        let persons = fs::read_to_string(node.path(PERSONS_FILE.0));
        if !persons.is_ok_and(|text| text == PERSONS_FILE.1) {
            self.violation(node, "the file of a person was changed or removed");
        }
        self.examine_queue(node, &service);
        self.examine_fleet(node);
        let is_new = node.view.borrow().on_disk != on_disk;
        if is_new {
            let mut view = node.view.borrow_mut();
            if view.running.trusted.is_empty() {
                view.running = on_disk.clone();
            }
            view.on_disk = on_disk;
            drop(view);
            self.examine_trust(node);
        }
        let mut view = node.view.borrow_mut();
        if !view.restart_is_due && node.path("var/lib/nodepki/restarts.json").exists() {
            view.restart_is_due = true;
            view.restart_due.notify_one();
        }
    }

    /// Returns the CAs with these fingerprints.
    fn cas(
        &self,
        node: &SimulatedNode,
        file: &str,
        service: &SigningService,
        found: &[[u8; 32]],
    ) -> BTreeSet<CaId> {
        let ids: BTreeSet<CaId> = found.iter().filter_map(|ca| service.ca_with(ca)).collect();
        if ids.len() != found.len() || ids.is_empty() {
            self.violation(
                node,
                format_args!("{file} does not contain CAs of the cluster"),
            );
        }
        ids
    }

    fn examine_slot(
        &self,
        node: &Rc<SimulatedNode>,
        service: &SigningService,
        place: &SlotPlace,
        found: &FoundSlot,
        on_disk: &mut TrustPicture,
    ) {
        let name = place.name;
        let mut view = node.view.borrow_mut();
        let before = view.seen.get(name).copied();
        let issued = found
            .leaf
            .and_then(|leaf| service.issued.borrow().get(&leaf).copied());
        let is_pair = issued.is_some_and(|issued| found.key == Some(issued.key));
        if let Some(since) = view.damaged.get(name).copied() {
            if !is_pair {
                drop(view);
                return self.examine_damaged(node, place, since);
            }
            view.damaged.remove(name);
        }
        if before.is_none() && !found.exists {
            return;
        }
        if matches!(place.files, crate::judge::SlotFiles::Kubeconfig(_)) && is_pair {
            let trusted = self.cas(node, name, service, &found.trusts);
            on_disk.trusted.insert(name, (Authority::Ca, trusted));
        }
        let Some(issued) = issued.filter(|_| is_pair) else {
            let problem = match (found.leaf, found.key) {
                (Some(_), Some(_)) => "the certificate is not for the key",
                _ => "the certificate or the key is absent or incomplete",
            };
            return self.violation(node, format_args!("{name}: {problem}"));
        };
        on_disk.issuers.insert(name, issued.ca);
        if found.leaf != before {
            let old = before.and_then(|old| service.issued.borrow().get(&old).copied());
            if let Some(worse) = worse(node.index, name, &issued, old.as_ref()) {
                self.violation(node, format_args!("{name}: {worse}"));
            }
            view.seen.extend(found.leaf.map(|leaf| (name, leaf)));
        }
        drop(view);
        self.examine_expiry(node, service, place, &issued);
        self.examine_requests(node, service, &issued);
    }

    /// Verifies that damaged files are repaired once that is possible.
    fn examine_damaged(&self, node: &SimulatedNode, place: &SlotPlace, since: Duration) {
        let free = self
            .plan
            .longest_chance(node.index, place.authority, since..elapsed());
        if free > RENEWAL_MARGIN {
            self.violation(
                node,
                format_args!(
                    "{}: the damaged files were not replaced for {free:?}",
                    place.name
                ),
            );
        }
    }

    fn examine_expiry(
        &self,
        node: &SimulatedNode,
        service: &SigningService,
        place: &SlotPlace,
        issued: &IssuedLeaf,
    ) {
        if issued.not_after > true_time() {
            return;
        }
        let share = if service.plan.has_window {
            URGENT_SHARE
        } else {
            RENEWAL_SHARE
        };
        let ends = Duration::try_from(issued.not_after - START).unwrap();
        let due = ends.saturating_sub(issued.lifetime.mul_f64(share));
        let free = self
            .plan
            .longest_chance(node.index, place.authority, due..elapsed());
        if free > RENEWAL_MARGIN {
            self.violation(
                node,
                format_args!(
                    "{} is expired since {}, although it could be renewed for {free:?}",
                    place.name, issued.not_after
                ),
            );
        }
    }

    fn examine_requests(
        &self,
        node: &SimulatedNode,
        service: &SigningService,
        issued: &IssuedLeaf,
    ) {
        let count = service.submissions(node.index, issued.name);
        let is_valid = issued.not_after > true_time() + DAY && node.clock_error.get() == 0;
        let most = self.statistics.most_requests.get();
        let most = if is_valid {
            (most.0.max(count), most.1.max(count))
        } else {
            (most.0, most.1.max(count))
        };
        self.statistics.most_requests.set(most);
        if count > MAX_REQUESTS {
            self.violation(
                node,
                format_args!("{} was requested {count} times within an hour", issued.name),
            );
        }
    }

    /// Verifies that the requests of a large fleet do not coincide.
    fn examine_fleet(&self, node: &SimulatedNode) {
        let (count, at_once) = (self.nodes.len(), self.statistics.most_nodes_at_once.get());
        if count >= LARGE_FLEET && at_once as f64 > MAX_NODES_AT_ONCE_SHARE * count as f64 {
            self.violation(
                node,
                format_args!("{at_once} of {count} nodes sent requests in the same minute"),
            );
        }
    }

    /// Verifies that the key of every queued request is kept until its certificate is installed.
    fn examine_queue(&self, node: &SimulatedNode, service: &SigningService) {
        if node.is_store_faulty.get() {
            return;
        }
        let mut lost = None;
        let mut view = node.view.borrow_mut();
        service.queue.borrow_mut().retain(|_, queued| {
            if queued.node != node.index {
                return true;
            }
            let place = SLOTS
                .iter()
                .find(|place| place.name == queued.name.as_str());
            let installed = place.map(|place| view.find(&node.root(), place));
            if installed.is_some_and(|found| found.key == Some(queued.key)) {
                return false;
            }
            let file = format!("var/lib/nodepki/pending/{}/key.pem", queued.name);
            let key = fs::read(node.path(&file)).unwrap_or_default();
            let key = nodepki::x509::PrivateKey::from_pem(&key);
            let is_kept = key.is_ok_and(|key| key.public_key().sha256() == queued.key);
            if !is_kept && !queued.may_be_discarded {
                lost = Some(queued.name);
            }
            is_kept
        });
        drop(view);
        if let Some(name) = lost {
            self.violation(
                node,
                format_args!("{name}: the key of a pending request is lost"),
            );
        }
    }

    /// Verifies that no component distrusts a certificate of its peers, or its peers one of its own.
    fn examine_trust(&self, node: &Rc<SimulatedNode>) {
        let cluster = &self.plan.clusters[node.plan.cluster];
        let pictures = |node: &SimulatedNode| {
            let view = node.view.borrow();
            [
                ("on disk", view.on_disk.clone()),
                ("in use", view.running.clone()),
            ]
        };
        for (own_state, own) in pictures(node) {
            for index in cluster.nodes.clone() {
                let peer = &self.nodes[index];
                for (state, picture) in pictures(peer) {
                    let distrust = own
                        .distrusts(&picture)
                        .map(|why| format!("{own_state}, {why} ({}, {state})", peer.plan.name))
                        .or_else(|| {
                            let why = picture.distrusts(&own)?;
                            Some(format!(
                                "at {}, {state}, {why} ({own_state})",
                                peer.plan.name
                            ))
                        });
                    if let Some(distrust) = distrust {
                        self.violation(node, distrust);
                    }
                }
            }
        }
    }

    /// Records that every component of a node has read its files.
    pub(crate) fn components_restarted(&self, node: &Rc<SimulatedNode>) {
        {
            let mut view = node.view.borrow_mut();
            view.running = view.on_disk.clone();
            view.restart_is_due = false;
        }
        self.examine_trust(node);
    }
}

/// Returns why a certificate must not have replaced the one before.
fn worse(node: usize, name: &str, issued: &IssuedLeaf, old: Option<&IssuedLeaf>) -> Option<String> {
    if issued.node != node || issued.name.as_str() != name {
        return Some(format!(
            "the certificate was issued for {} of node {}",
            issued.name, issued.node
        ));
    }
    if !issued.is_honest {
        return Some("a wrong certificate was installed".to_owned());
    }
    // A signer may grant less than before.
    let is_later = |old: &&IssuedLeaf| {
        old.not_after > issued.not_after
            && old.not_after > true_time()
            && old.lifetime <= issued.lifetime
    };
    let old = old.filter(is_later)?;
    Some(format!(
        "a certificate that is valid until {} was replaced by one that is valid until {}",
        old.not_after, issued.not_after
    ))
}

/// A step of a CA change.
#[derive(Clone, Copy, Debug)]
enum ChangeStep {
    Stage,
    Activate,
    Retire,
}

/// Changes a CA of a cluster as `docs/ca-change.md` says, if the plan has a change.
async fn change_authority(world: Rc<World>, number: usize) {
    let service = Rc::clone(&world.services[number]);
    let Some((authority, at)) = service.plan.change else {
        return;
    };
    wait_until(at).await;
    for step in [ChangeStep::Stage, ChangeStep::Activate, ChangeStep::Retire] {
        if let ChangeStep::Activate = step {
            wait_until_settled(&world, number, authority).await;
            service.switch(authority);
        }
        for index in service.plan.nodes.clone() {
            let node = &world.nodes[index];
            loop {
                let taken = HERE.scope(Rc::clone(node), take(&world, node, authority, step));
                let taken = taken.await;
                let result = match &taken {
                    Ok(outcome) => format!("{step:?} {authority}: {}", outcome.done.join("; ")),
                    Err(failure) => format!("{step:?} {authority} failed: {failure}"),
                };
                node.note(&result);
                world.record_change_step(node, &result);
                world.examine(node);
                node.wake(Wake::Files(FileRole::Pki));
                if taken.is_ok_and(|outcome| !outcome.is_incomplete) {
                    break;
                }
                sleep(HOUR * 6).await;
            }
        }
    }
    Statistics::add(&world.statistics.ca_changes, 1);
}

/// Takes a step on one node, with the reports of its peers.
async fn take(
    world: &World,
    node: &Rc<SimulatedNode>,
    authority: Authority,
    step: ChangeStep,
) -> Result<StepOutcome, Failure> {
    let service = world.service(node);
    let mut reports = Vec::new();
    for index in service.plan.nodes.clone() {
        let peer = &world.nodes[index];
        while !peer.is_usable() {
            sleep(HOUR).await;
        }
        let report = report(world, peer, authority).await?;
        reports.push((peer.plan.name.clone(), report));
    }
    let order = StepOrder {
        authority,
        dry_run: false,
        peers: Peers {
            reports,
            stated: true,
        },
        kubeconfig: None,
        rotation: None,
        components_verify: false,
    };
    let (root, loaded) = (node.open()?, node.read_for_person(&service)?);
    let listener = Listener(&world.statistics);
    service.release_queued(node.index);
    match step {
        ChangeStep::Stage => {
            let file = node.root().with_file_name("new-ca.crt");
            let ca = &service.authority((authority, 1)).certificate_pem;
            fs::write(&file, ca).unwrap();
            let file = Argument::from(file);
            authority::stage(&root, &loaded, &order, Some(&file), clock).await
        }
        ChangeStep::Activate => {
            authority::activate(&root, &loaded.setup, &order, clock, &listener).await
        }
        ChangeStep::Retire => authority::retire(&root, &loaded.setup, &order, clock).await,
    }
}

async fn report(
    world: &World,
    node: &Rc<SimulatedNode>,
    authority: Authority,
) -> Result<NodeReport, Failure> {
    let service = world.service(node);
    let report = async {
        let (root, loaded) = (node.open()?, node.read_for_person(&service)?);
        authority::status(&root, &loaded, &BTreeSet::from([authority]), clock())
    };
    HERE.scope(Rc::clone(node), report).await
}

/// Waits until the components of every node of a cluster were restarted, and both CAs are trusted.
async fn wait_until_settled(world: &Rc<World>, number: usize, authority: Authority) {
    let nodes = world.plan.clusters[number].nodes.clone();
    for index in nodes {
        let node = &world.nodes[index];
        loop {
            let report = report(world, node, authority).await;
            let is_settled = report.is_ok_and(|report| {
                let mut rows = report.authorities.iter();
                rows.all(|row| row.missing.is_empty())
            });
            if is_settled {
                break;
            }
            sleep(HOUR * 6).await;
        }
    }
}
