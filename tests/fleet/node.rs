//! A node: its files, its clock, the real daemon on it, and what happens to it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use nodepki::agent::authority::rotate::Follower;
use nodepki::agent::load::{self, LoadInputs, Loaded};
use nodepki::agent::{Event, Failure, Progress, Scope, rotation};
use nodepki::config::CommandLineSettings;
use nodepki::daemon::{self, FileRole, Notification, Surroundings, Wake, WatchedFiles};
use nodepki::kube::names::Authority;
use nodepki::process::confine::Rights;
use nodepki::signer::{self, Signer};
use nodepki::store::NodeRoot;
use nodepki::x509::{KeyAlgorithm, PrivateKey};
use tempfile::TempDir;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::chance::Chance;
use crate::judge::{NodeView, SLOTS, SlotFiles};
use crate::plan::{ClusterPlan, Damage, HOUR, NodeEvent, NodePlan, Reconfiguration};
use crate::signer::{SigningService, SimulatedSigner};
use crate::statistics::Statistics;
use crate::world::World;

/// After the date of the release, which is the earliest time that nodepki accepts.
pub(crate) const START: OffsetDateTime = datetime!(2027-01-01 00:00 UTC);
/// Number of events of a node that a failure shows.
const SHOWN_EVENTS: usize = 25;
const PKI: &str = "etc/kubernetes/pki";
const STATE: &str = "var/lib/nodepki";
/// A file that a person has put next to the certificates.
pub(crate) const PERSONS_FILE: (&str, &str) =
    ("etc/kubernetes/pki/README", "ask the platform team\n");

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

tokio::task_local! {
    /// The node on which the code runs.
    pub(crate) static HERE: Rc<SimulatedNode>;
}

/// Starts the time of a simulation.
pub(crate) fn begin() {
    BEGAN.set(Some(Instant::now()));
}

/// Returns the time since the start of the simulation.
pub(crate) fn elapsed() -> Duration {
    BEGAN.get().unwrap().elapsed()
}

pub(crate) fn true_time() -> OffsetDateTime {
    START + elapsed()
}

/// Waits until a time since the start of the simulation.
pub(crate) async fn wait_until(at: Duration) {
    sleep_until(BEGAN.get().unwrap() + at).await;
}

/// Returns the time that the clock of the node shows.
pub(crate) fn clock() -> OffsetDateTime {
    HERE.with(|node| true_time() + time::Duration::seconds(node.clock_error.get()))
}

fn jitter() -> f64 {
    HERE.with(|node| node.jitter.borrow_mut().fraction())
}

pub(crate) struct SimulatedNode {
    pub(crate) index: usize,
    pub(crate) plan: NodePlan,
    dir: TempDir,
    /// In seconds.
    pub(crate) clock_error: Cell<i64>,
    pub(crate) is_partitioned: Cell<bool>,
    pub(crate) is_on: Cell<bool>,
    /// The state directory cannot be used.
    pub(crate) is_store_faulty: Cell<bool>,
    /// `ca.crt` is absent.
    pub(crate) is_ca_absent: Cell<bool>,
    turned_on: Notify,
    wakes: RefCell<VecDeque<Wake>>,
    bell: Notify,
    /// How often the process is polled until it is killed.
    kill_after: Cell<Option<u32>>,
    jitter: RefCell<Chance>,
    configuration: RefCell<NodeConfiguration>,
    pub(crate) view: RefCell<NodeView>,
    events: RefCell<VecDeque<String>>,
    pub(crate) digest: Cell<u64>,
}

/// What a person has changed in the configuration.
#[derive(Default)]
struct NodeConfiguration {
    names: u32,
    other_algorithm: bool,
    at_once: bool,
}

impl SimulatedNode {
    pub(crate) fn new(
        index: usize,
        plan: NodePlan,
        service: &SigningService,
        chance: Chance,
    ) -> Self {
        let shared_memory = Path::new("/dev/shm");
        let dir = if shared_memory.is_dir() {
            TempDir::new_in(shared_memory)
        } else {
            TempDir::new()
        };
        let node = SimulatedNode {
            index,
            plan,
            dir: dir.unwrap(),
            clock_error: Cell::new(0),
            is_partitioned: Cell::new(false),
            is_on: Cell::new(true),
            is_store_faulty: Cell::new(false),
            is_ca_absent: Cell::new(false),
            turned_on: Notify::new(),
            wakes: RefCell::default(),
            bell: Notify::new(),
            kill_after: Cell::new(None),
            jitter: RefCell::new(chance),
            configuration: RefCell::default(),
            view: RefCell::default(),
            events: RefCell::default(),
            digest: Cell::new(0),
        };
        for authority in Authority::ALL {
            let pem = &service.authority((authority, 0)).certificate_pem;
            node.write(&format!("{PKI}/{}.crt", authority.base_name()), pem);
        }
        let pair = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        node.write(&format!("{PKI}/sa.key"), &pair.to_pem());
        node.write(&format!("{PKI}/sa.pub"), &pair.public_key().to_pem());
        node.write(PERSONS_FILE.0, PERSONS_FILE.1);
        node.configure(&service.plan);
        node
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.root().join(file)
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Records an event for the report of a failure.
    pub(crate) fn note(&self, what: impl std::fmt::Display) {
        // The name of the directory is random.
        let what = what
            .to_string()
            .replace(&*self.root().to_string_lossy(), "");
        let line = format!("{} {what}", nodepki::text::rfc3339(true_time()));
        // Keys are random, and with them every fingerprint in a message.
        let is_digit = |letter: char| letter.is_ascii_hexdigit();
        let words = line.split(|letter| !is_digit(letter));
        let repeated = words.filter(|word| word.len() < 16);
        let mut digest = Chance::new(self.digest.get()).of(repeated.collect::<Vec<_>>());
        self.digest.set(digest.below(u64::MAX));
        let mut events = self.events.borrow_mut();
        if events.len() == SHOWN_EVENTS {
            events.pop_front();
        }
        events.push_back(line);
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.events.borrow().iter().cloned().collect()
    }

    pub(crate) fn wake(&self, wake: Wake) {
        self.wakes.borrow_mut().push_back(wake);
        self.bell.notify_one();
    }

    /// Writes the configuration files.
    fn configure(&self, cluster: &ClusterPlan) {
        let changed = self.configuration.borrow();
        let names: Vec<String> = (0..changed.names)
            .map(|number| format!("extra{number}.example.com"))
            .collect();
        let kubeadm = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {{advertiseAddress: 192.0.2.{}}}\nnodeRegistration: {{name: {}}}\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nclusterName: {}\nkubernetesVersion: v1.36.2\ncontrolPlaneEndpoint: api.{}.example.com:6443\nencryptionAlgorithm: {}\ncertificateValidityPeriod: {}h\napiServer: {{certSANs: [{}]}}\n",
            self.index + 1,
            self.plan.name,
            cluster.name,
            cluster.name,
            if changed.other_algorithm {
                "ECDSA-P384"
            } else {
                "ECDSA-P256"
            },
            cluster.lifetime.as_secs() / 3600,
            names.join(", ")
        );
        fs::write(self.dir.path().join("kubeadm.yaml"), kubeadm).unwrap();
        let window = if cluster.has_window {
            ", window: \"Sun 02:00-05:00\""
        } else {
            ""
        };
        let settings = format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nrotation: {{rekey: {}, onPolicyChange: {}{window}}}\n",
            !cluster.keeps_keys,
            if changed.at_once {
                "now"
            } else {
                "nextRenewal"
            }
        );
        self.write("etc/nodepki/config.yaml", &settings);
    }

    /// Loads the configuration, with the simulated signer for every authority.
    pub(crate) fn read(self: &Rc<Self>, service: &Rc<SigningService>) -> Result<Loaded, Failure> {
        let inputs = LoadInputs {
            stand_ins: CommandLineSettings {
                kubeadm_configs: vec![self.dir.path().join("kubeadm.yaml").into()],
                signer: Some(signer::Config::Embedded(signer::embedded::Config)),
                node_name: None,
            },
            ..LoadInputs::default()
        };
        let root = self.open()?;
        let mut loaded = load::load(&root, &inputs, clock())?;
        let signer: Rc<dyn Signer> = Rc::new(SimulatedSigner {
            service: Rc::clone(service),
            node: Rc::clone(self),
        });
        for authority in Authority::ALL {
            let signer = ("simulated".to_owned(), Rc::clone(&signer));
            loaded.setup.signers.insert(authority, signer);
        }
        loaded.setup.jitter = jitter;
        Ok(loaded)
    }

    /// As [`SimulatedNode::read`], for a command of a person, which does not wait for another run.
    pub(crate) fn read_for_person(
        self: &Rc<Self>,
        service: &Rc<SigningService>,
    ) -> Result<Loaded, Failure> {
        let mut loaded = self.read(service)?;
        loaded.setup.lock_wait = Duration::ZERO;
        loaded.setup.wait = Duration::from_secs(10);
        loaded.setup.clock.max_wait = Duration::ZERO;
        Ok(loaded)
    }

    pub(crate) fn open(&self) -> Result<NodeRoot, Failure> {
        Ok(NodeRoot::open(self.root())?)
    }

    /// Returns whether the files are those of a node that a person works on.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_on.get()
            && !self.is_store_faulty.get()
            && !self.is_ca_absent.get()
            && self.clock_error.get() == 0
    }
}

/// Counts the certificates that are installed.
pub(crate) struct Listener<'a>(pub(crate) &'a Statistics);

impl Progress for Listener<'_> {
    fn event(&self, event: Event) {
        if let Event::Installed { .. } = event {
            Statistics::add(&self.0.installed, 1);
        }
    }
}

/// The surroundings of the daemon on a simulated node.
struct SimulatedSurroundings {
    world: Rc<World>,
    node: Rc<SimulatedNode>,
}

impl Surroundings for SimulatedSurroundings {
    fn watch(&mut self, _watched: WatchedFiles) {}

    fn accept_contents(&mut self) {}

    fn accept_own_writes(&mut self, _root: &NodeRoot, _written: &[PathBuf]) {
        Statistics::add(&self.world.statistics.steps, 1);
        self.world.examine(&self.node);
    }

    async fn sleep(&mut self, until: Option<OffsetDateTime>) -> Wake {
        self.world.examine(&self.node);
        loop {
            if let Some(wake) = self.node.wakes.borrow_mut().pop_front() {
                return wake;
            }
            let left = until.map(|until| Duration::try_from(until - clock()).unwrap_or_default());
            let alarm = async {
                match left {
                    Some(left) => sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.node.bell.notified() => {}
                () = alarm => return Wake::Time,
            }
        }
    }

    async fn stopped(&mut self) {
        let is_stopping = || {
            let wakes = self.node.wakes.borrow();
            wakes.iter().any(|wake| matches!(wake, Wake::Stop))
        };
        while !is_stopping() {
            self.node.bell.notified().await;
        }
    }

    fn uptime(&self) -> Duration {
        elapsed()
    }

    fn notify(&self, what: Notification<'_>) {
        match what {
            Notification::Status(status) => self.node.note(status),
            Notification::Ready | Notification::Reloading | Notification::Stopping => {
                self.node.note(format_args!("{what:?}"));
            }
            Notification::Watchdog => {}
        }
    }

    fn confine(&self, _reach: &Rights) {}
}

/// A process that is killed at an await point: `None`.
struct Mortal<F> {
    process: Pin<Box<F>>,
    node: Rc<SimulatedNode>,
}

impl<F: Future> Future for Mortal<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.node.kill_after.get() {
            Some(0) => {
                self.node.kill_after.set(None);
                return Poll::Ready(None);
            }
            Some(left) => self.node.kill_after.set(Some(left - 1)),
            None => {}
        }
        self.process.as_mut().poll(context).map(Some)
    }
}

/// Runs the daemon whenever the node is on.
pub(crate) async fn live(world: Rc<World>, node: Rc<SimulatedNode>) {
    wait_until(node.plan.boot).await;
    let service = world.service(&node);
    loop {
        while !node.is_on.get() {
            node.turned_on.notified().await;
        }
        node.wakes.borrow_mut().clear();
        let Ok(root) = node.open() else {
            panic!("the root of a node disappeared");
        };
        let surroundings = SimulatedSurroundings {
            world: Rc::clone(&world),
            node: Rc::clone(&node),
        };
        let listener = Listener(&world.statistics);
        let read = async || node.read(&service);
        let daemon = daemon::run_in(surroundings, &root, None, clock, &listener, read);
        let process = Mortal {
            process: Box::pin(daemon),
            node: Rc::clone(&node),
        };
        match process.await {
            None => node.note("the daemon was killed"),
            Some(Ok(())) => node.note("the daemon has stopped"),
            Some(Err(failure)) => node.note(format_args!("the daemon has failed: {failure}")),
        }
        world.examine(&node);
        // RestartSec= of the unit.
        sleep(Duration::from_secs(30)).await;
    }
}

/// Lets the events of the plan happen.
pub(crate) async fn happen(world: Rc<World>, node: Rc<SimulatedNode>) {
    for (at, event) in node.plan.events.clone() {
        wait_until(at).await;
        node.note(format_args!("event: {event:?}"));
        world.statistics.fault(kind(&event));
        apply(&world, &node, event).await;
        world.examine(&node);
    }
}

fn kind(event: &NodeEvent) -> &'static str {
    match event {
        NodeEvent::Off(_) => "node off",
        NodeEvent::Kill(_) => "kill",
        NodeEvent::ClockStep(..0, _) => "clock behind",
        NodeEvent::ClockStep(..) => "clock ahead",
        NodeEvent::Partition(_) => "partition",
        NodeEvent::StoreFault(_) => "state directory unusable",
        NodeEvent::Damage(..) => "files damaged",
        NodeEvent::CaAbsent(_) => "CA absent",
        NodeEvent::Reconfigure(_) => "configuration changed",
        NodeEvent::FaultySettings(_) => "faulty settings",
        NodeEvent::ManualRenewal => "manual renewal",
    }
}

async fn apply(world: &Rc<World>, node: &Rc<SimulatedNode>, event: NodeEvent) {
    let service = world.service(node);
    match event {
        NodeEvent::Off(lasts) => {
            node.is_on.set(false);
            node.wake(Wake::Stop);
            sleep(lasts).await;
            node.is_on.set(true);
            node.turned_on.notify_one();
        }
        NodeEvent::Kill(polls) => node.kill_after.set(Some(polls)),
        NodeEvent::ClockStep(by, lasts) => {
            node.clock_error.set(by);
            node.wake(Wake::Time);
            sleep(lasts).await;
            node.clock_error.set(0);
            node.wake(Wake::Time);
        }
        NodeEvent::Partition(lasts) => {
            node.is_partitioned.set(true);
            sleep(lasts).await;
            node.is_partitioned.set(false);
        }
        NodeEvent::StoreFault(lasts) => store_fault(node, lasts).await,
        NodeEvent::Damage(damage, slot) => {
            service.release_queued(node.index);
            let place = &SLOTS[slot % SLOTS.len()];
            damage_slot(node, damage, place);
            node.wake(Wake::Files(FileRole::Pki));
            if let SlotFiles::Kubeconfig(_) = place.files {
                // nodepki does not replace a kubeconfig that it cannot read, and tells a person to move it away.
                sleep(HOUR * 4).await;
                if node.view.borrow().damaged.contains_key(place.name) {
                    damage_slot(node, Damage::Removed, place);
                    node.wake(Wake::Files(FileRole::Pki));
                }
            }
        }
        NodeEvent::CaAbsent(lasts) => {
            let (file, away) = (
                node.path("etc/kubernetes/pki/ca.crt"),
                node.root().join("ca.away"),
            );
            node.is_ca_absent.set(true);
            fs::rename(&file, &away).unwrap();
            node.wake(Wake::Files(FileRole::Pki));
            sleep(lasts).await;
            if file.exists() {
                world.violation(
                    node,
                    "ca.crt was created although no file or pin confirms it",
                );
            }
            fs::rename(&away, &file).unwrap();
            node.is_ca_absent.set(false);
            node.wake(Wake::Files(FileRole::Pki));
        }
        NodeEvent::Reconfigure(change) => {
            service.release_queued(node.index);
            {
                let mut changed = node.configuration.borrow_mut();
                match change {
                    Reconfiguration::Name => changed.names += 1,
                    Reconfiguration::Algorithm => changed.other_algorithm ^= true,
                    Reconfiguration::AlgorithmNow => {
                        changed.other_algorithm ^= true;
                        changed.at_once = true;
                    }
                }
            }
            node.configure(&service.plan);
            node.wake(Wake::Files(FileRole::Configuration));
        }
        NodeEvent::FaultySettings(lasts) => {
            node.write("etc/nodepki/config.yaml", "kind: [\n");
            node.wake(Wake::Files(FileRole::Configuration));
            sleep(lasts).await;
            node.configure(&service.plan);
            node.wake(Wake::Files(FileRole::Configuration));
        }
        NodeEvent::ManualRenewal => manual_renewal(world, node, &service).await,
    }
}

/// Puts a file in the place of the state directory, and restores the directory after a time.
async fn store_fault(node: &Rc<SimulatedNode>, lasts: Duration) {
    let (state, away) = (node.path(STATE), node.path("var/lib/nodepki.away"));
    if !state.is_dir() {
        return;
    }
    node.is_store_faulty.set(true);
    fs::rename(&state, &away).unwrap();
    fs::write(&state, "").unwrap();
    sleep(lasts).await;
    fs::remove_file(&state).unwrap();
    fs::rename(&away, &state).unwrap();
    node.is_store_faulty.set(false);
}

fn damage_slot(node: &Rc<SimulatedNode>, damage: Damage, slot: &crate::judge::SlotPlace) {
    let (certificate, key) = match slot.files {
        SlotFiles::Pair(certificate, key) => (certificate, Some(key)),
        SlotFiles::Kubeconfig(file) => (file, None),
    };
    let path = node.path(certificate);
    let Ok(text) = fs::read(&path) else {
        return;
    };
    match (damage, key) {
        (Damage::Removed, _) => fs::remove_file(&path).unwrap(),
        (Damage::OtherKey, Some(key)) => {
            let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
            fs::write(node.path(key), other.to_pem().as_bytes()).unwrap();
        }
        (Damage::Truncated | Damage::OtherKey, _) => {
            fs::write(&path, &text[..truncated_length(&text)]).unwrap();
        }
    }
    let mut view = node.view.borrow_mut();
    view.damaged.insert(slot.name, elapsed());
}

/// Returns how much of a file remains. The length of a certificate is random: a cut in the middle of a kubeconfig would leave
/// valid Base64 or not, and a seed would not repeat.
fn truncated_length(text: &[u8]) -> usize {
    const FIELD: &[u8] = b"client-certificate-data: ";
    let mut windows = text.windows(FIELD.len());
    match windows.position(|window| window == FIELD) {
        // Base64 of 100 letters is valid, of 101 it is not.
        Some(at) => at + FIELD.len() + 100 + elapsed().as_secs() as usize % 2,
        None => text.len() / 2,
    }
}

/// Renews everything, while the daemon runs.
async fn manual_renewal(world: &World, node: &Rc<SimulatedNode>, service: &Rc<SigningService>) {
    service.release_queued(node.index);
    let ended = async {
        let (root, loaded) = (node.open()?, node.read_for_person(service)?);
        let listener = Listener(&world.statistics);
        let mut follower = Follower::default();
        rotation::step(&root, &loaded, &Scope::All, &mut follower, clock, &listener).await
    };
    match ended.await {
        Ok(step) => {
            let rows = step.report.rows.iter();
            let failed = rows.filter(|row| row.code.is_some()).count();
            node.note(format_args!("manual renewal: {failed} certificates failed"));
        }
        Err(failure) => node.note(format_args!("manual renewal: {failure}")),
    }
    node.wake(Wake::Files(FileRole::Pki));
}

/// Restarts the components of the node some time after their files were replaced, which is what nodepki does on the root of a
/// real node.
pub(crate) async fn restart_components(world: Rc<World>, node: Rc<SimulatedNode>, chance: Chance) {
    let record = node.path("var/lib/nodepki/restarts.json");
    let due = Rc::clone(&node.view.borrow().restart_due);
    for number in 0.. {
        due.notified().await;
        let mut chance = chance.of(number);
        sleep(HOUR.mul_f64(30.0 * chance.fraction().powi(3))).await;
        while !node.is_on.get() || node.is_store_faulty.get() || is_locked(&node) {
            sleep(HOUR / 4).await;
        }
        if record.exists() {
            fs::remove_file(&record).unwrap();
        }
        world.components_restarted(&node);
        node.note("the components were restarted");
        node.wake(Wake::Files(FileRole::Pki));
    }
}

fn is_locked(node: &SimulatedNode) -> bool {
    match node.open() {
        Ok(root) => root.lock(Duration::ZERO, "components").is_err(),
        Err(_) => true,
    }
}
