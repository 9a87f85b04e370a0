//! Runs the daemon for weeks of virtual time, on a real root, with a scripted signer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use async_trait::async_trait;
use tempfile::TempDir;
use time::macros::datetime;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::*;
use crate::agent::Event;
use crate::config::CommandLineSettings;
use crate::kube::names::{Authority, CertName};
use crate::signer::{
    self, Answer, Caps, FailureClass, Rejection, Request, RequestedCertificate, Signer,
    SignerError, SignerKind, Ticket,
};
use crate::x509::{CertificateAuthority, Chain, KeyAlgorithm, PrivateKey};

const START: OffsetDateTime = datetime!(2027-01-01 00:00 UTC);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

thread_local! {
    /// When the runtime of this test started.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Error of the clock, in seconds.
    static CLOCK_ERROR: Cell<i64> = const { Cell::new(0) };
}

/// Returns how long the test has run, in virtual time.
fn elapsed() -> Duration {
    let now = Instant::now();
    if BEGAN.get().is_none() {
        BEGAN.set(Some(now));
    }
    now - BEGAN.get().unwrap()
}

fn clock() -> OffsetDateTime {
    START + elapsed() + time::Duration::seconds(CLOCK_ERROR.get())
}

/// The behaviour of the signer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    Signs,
    /// Signs after eight seconds, also what is spared.
    SignsSlowly,
    Unreachable,
    /// Returns an error after half a minute.
    Stalls,
    WrongKey,
    WrongNames,
    Denies,
    Pends,
}

struct Scripted {
    authorities: BTreeMap<Authority, CertificateAuthority>,
    caps: Caps,
    /// Each behaviour with the time of the test from which it applies.
    script: RefCell<Vec<(Duration, Behaviour)>>,
    /// Certificates that are always signed.
    spared: Vec<CertName>,
    asked: RefCell<Vec<(Duration, CertName)>>,
}

impl Scripted {
    fn behaviour(&self, name: CertName) -> Behaviour {
        let now = elapsed();
        let script = self.script.borrow();
        let past = script.iter().rev().find(|(from, _)| *from <= now);
        match past {
            Some((_, Behaviour::SignsSlowly)) => Behaviour::SignsSlowly,
            Some((_, behaviour)) if !self.spared.contains(&name) => *behaviour,
            _ => Behaviour::Signs,
        }
    }

    fn issued(&self, request: &Request, behaviour: Behaviour) -> Answer {
        let mut profile = request.wanted.profile.clone();
        let mut key = request.csr.public_key().clone();
        if behaviour == Behaviour::WrongKey {
            key = PrivateKey::generate(KeyAlgorithm::EcdsaP256)
                .unwrap()
                .public_key()
                .clone();
        }
        if behaviour == Behaviour::WrongNames {
            profile.subject.common_name = "somebody-else".to_owned();
        }
        let authority = &self.authorities[&request.wanted.authority];
        let made = authority.issue(&key, &profile, clock()).unwrap();
        Answer::Issued(made.to_pem().into_bytes())
    }
}

#[async_trait(?Send)]
impl Signer for Scripted {
    fn kind(&self) -> SignerKind {
        SignerKind::Exec
    }

    fn label(&self) -> String {
        "scripted".to_owned()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn preflight(&self, _wanted: &RequestedCertificate) -> Result<(), Rejection> {
        Ok(())
    }

    async fn trust(&self, _authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        Ok(None)
    }

    async fn recover(
        &self,
        request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        match self.behaviour(request.wanted.name) {
            Behaviour::Denies => Ok(Some(Answer::Denied {
                reason: "not on a Friday".to_owned(),
            })),
            Behaviour::Unreachable => Err(SignerError::new(
                FailureClass::Transient,
                "the server does not answer",
                "wait",
            )),
            _ => Ok(None),
        }
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let name = request.wanted.name;
        self.asked.borrow_mut().push((elapsed(), name));
        match self.behaviour(name) {
            Behaviour::Unreachable => Err(SignerError::new(
                FailureClass::Transient,
                "the server does not answer",
                "wait",
            )),
            Behaviour::Stalls => {
                tokio::time::sleep(MINUTE / 2).await;
                Err(SignerError::new(
                    FailureClass::Ambiguous,
                    "no answer came",
                    "wait",
                ))
            }
            Behaviour::Denies => Ok(Answer::Denied {
                reason: "not on a Friday".to_owned(),
            }),
            Behaviour::Pends => Ok(Answer::Pending {
                ticket: Ticket::try_from("7".to_owned()).unwrap(),
                after: None,
                note: "an officer must approve".to_owned(),
                is_uniform: true,
            }),
            Behaviour::SignsSlowly => {
                tokio::time::sleep(Duration::from_secs(8)).await;
                Ok(self.issued(request, Behaviour::Signs))
            }
            behaviour => Ok(self.issued(request, behaviour)),
        }
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        match self.behaviour(request.wanted.name) {
            Behaviour::Pends => Ok(Answer::Pending {
                ticket: ticket.clone(),
                after: None,
                note: "an officer must approve".to_owned(),
                is_uniform: true,
            }),
            _ => self.submit(request).await,
        }
    }
}

/// An event of the test.
enum TestEvent {
    Files(FileRole),
    Reload,
    ClockGoesBack(Duration),
    /// Another process deletes a file of the node.
    Deletes(&'static str),
    Stop,
    /// Stops as soon as the signer has accepted every request and decided none.
    StopOncePending,
}

/// Surroundings that replay a list of events.
struct ScriptedSurroundings {
    listener: Rc<Listener>,
    root: PathBuf,
    events: Vec<(Duration, TestEvent)>,
    notified: Rc<RefCell<Vec<(Duration, String)>>>,
    /// Whether every certificate must be valid from the first sleep on.
    always_valid: bool,
}

impl Surroundings for ScriptedSurroundings {
    fn watch(&mut self, _watched: WatchedFiles) {}

    fn accept_contents(&mut self) {}

    fn accept_own_writes(&mut self, _root: &NodeRoot, _written: &[PathBuf]) {}

    async fn sleep(&mut self, until: Option<OffsetDateTime>) -> Wake {
        if self.always_valid {
            for name in PAIRS {
                let (chain, _) = pair(&self.root, name);
                let ends = chain.leaf().not_after();
                assert!(
                    ends > clock(),
                    "{name} ended at {ends}, the time is {}",
                    clock()
                );
            }
        }
        let (at, _) = self.events.first().expect("a test ends with Stop");
        let event = at.saturating_sub(elapsed());
        let alarm = until.map(|until| Duration::try_from(until - clock()).unwrap_or_default());
        if alarm.is_some_and(|alarm| alarm < event) {
            tokio::time::sleep(alarm.unwrap()).await;
            return Wake::Time;
        }
        tokio::time::sleep(event).await;
        match self.events.remove(0).1 {
            TestEvent::Files(role) => Wake::Files(role),
            TestEvent::Reload => Wake::Reload,
            TestEvent::ClockGoesBack(by) => {
                CLOCK_ERROR.set(CLOCK_ERROR.get() - by.as_secs() as i64);
                Wake::Time
            }
            TestEvent::Deletes(file) => {
                fs::remove_file(self.root.join(file)).unwrap();
                Wake::Files(FileRole::Pki)
            }
            TestEvent::Stop | TestEvent::StopOncePending => Wake::Stop,
        }
    }

    /// Waits for no time: virtual time would advance while a key is being generated.
    async fn stopped(&mut self) {
        if !matches!(self.events.first(), Some((_, TestEvent::StopOncePending))) {
            return std::future::pending().await;
        }
        while self.listener.pending.get() < CertName::ALL.len() {
            self.listener.stirred.notified().await;
        }
    }

    fn uptime(&self) -> Duration {
        elapsed()
    }

    fn confine(&self, _reach: &Rights) {}

    fn notify(&self, what: Notification<'_>) {
        let text = match what {
            Notification::Ready => "READY".to_owned(),
            Notification::Status(text) => text.to_owned(),
            Notification::Reloading => "RELOADING".to_owned(),
            Notification::Stopping => "STOPPING".to_owned(),
            Notification::Watchdog => return,
        };
        eprintln!("{:?} {text}", elapsed());
        self.notified.borrow_mut().push((elapsed(), text));
    }
}

/// Counts the pending requests.
#[derive(Default)]
struct Listener {
    pending: Cell<usize>,
    stirred: Notify,
}

impl Progress for Listener {
    fn event(&self, event: Event) {
        if let Event::Waiting { .. } = event {
            self.pending.set(self.pending.get() + 1);
            self.stirred.notify_one();
        }
    }
}

const PAIRS: [&str; 7] = [
    "apiserver",
    "apiserver-kubelet-client",
    "front-proxy-client",
    "etcd/server",
    "etcd/peer",
    "etcd/healthcheck-client",
    "apiserver-etcd-client",
];

fn pair(root: &Path, name: &str) -> (Chain, PrivateKey) {
    let base = root.join("etc/kubernetes/pki").join(name);
    let read = |extension| fs::read(base.with_extension(extension)).unwrap();
    (
        Chain::from_pem(&read("crt")).unwrap(),
        PrivateKey::from_pem(&read("key")).unwrap(),
    )
}

/// A node whose certificates are valid for a day, with its authorities and its signer.
struct Simulation {
    dir: TempDir,
    signer: Rc<Scripted>,
    notified: Rc<RefCell<Vec<(Duration, String)>>>,
}

impl Simulation {
    fn new(script: &[(Duration, Behaviour)], spared: &[CertName]) -> Self {
        let dir = TempDir::new_in(if Path::new("/dev/shm").is_dir() {
            "/dev/shm"
        } else {
            "/tmp"
        })
        .unwrap();
        let mut authorities = BTreeMap::new();
        for authority in Authority::ALL {
            let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
            let made =
                CertificateAuthority::self_signed(authority.common_name(), key, START, 3650 * DAY)
                    .unwrap();
            let path = dir
                .path()
                .join("root/etc/kubernetes/pki")
                .join(format!("{}.crt", authority.base_name()));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, made.bundle().to_pem()).unwrap();
            authorities.insert(authority, made);
        }
        let service_account = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let pki = dir.path().join("root/etc/kubernetes/pki");
        fs::write(pki.join("sa.key"), service_account.to_pem().as_bytes()).unwrap();
        let public = service_account.public_key().to_pem();
        fs::write(pki.join("sa.pub"), public).unwrap();
        let kubeadm = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.11}\nnodeRegistration: {name: cp1}\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.37.2\nencryptionAlgorithm: ECDSA-P256\ncertificateValidityPeriod: 24h\n";
        fs::write(dir.path().join("kubeadm.yaml"), kubeadm).unwrap();
        let signer = Scripted {
            authorities,
            caps: Caps::everything(),
            script: RefCell::new(script.to_vec()),
            spared: spared.to_vec(),
            asked: RefCell::default(),
        };
        Simulation {
            dir,
            signer: Rc::new(signer),
            notified: Rc::default(),
        }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Runs the daemon with these events, the last of which must be a stop.
    fn run(&self, events: Vec<(Duration, TestEvent)>, always_valid: bool, broken: bool) {
        BEGAN.set(None);
        CLOCK_ERROR.set(0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let root = NodeRoot::open(self.root()).unwrap();
        let reads = Cell::new(0);
        let read = async || {
            reads.set(reads.get() + 1);
            if broken && reads.get() > 1 {
                return Err(Failure::misconfigured("config.yaml:3:1: unknown field"));
            }
            let inputs = LoadInputs {
                stand_ins: CommandLineSettings {
                    kubeadm_configs: vec![self.dir.path().join("kubeadm.yaml").into()],
                    signer: Some(signer::Config::Embedded(signer::embedded::Config)),
                    node_name: None,
                },
                ..LoadInputs::default()
            };
            let mut loaded = load::load(&root, &inputs, clock())?;
            let signer: Rc<dyn Signer> = self.signer.clone();
            for authority in Authority::ALL {
                loaded
                    .setup
                    .signers
                    .insert(authority, ("s".to_owned(), Rc::clone(&signer)));
            }
            Ok(loaded)
        };
        let listener = Rc::new(Listener::default());
        let daemon = Daemon {
            root: &root,
            config: None,
            clock,
            progress: listener.as_ref(),
            surroundings: ScriptedSurroundings {
                listener: Rc::clone(&listener),
                root: self.root(),
                events,
                notified: Rc::clone(&self.notified),
                always_valid,
            },
            follower: Follower::default(),
        };
        runtime.block_on(daemon.run(read)).unwrap();
    }

    /// Returns the times of the notifications that contain `words`.
    fn notified_at(&self, words: &str) -> Vec<Duration> {
        let notified = self.notified.borrow();
        notified
            .iter()
            .filter(|(_, text)| text.contains(words))
            .map(|(at, _)| *at)
            .collect()
    }

    /// Returns how many times a certificate was requested.
    fn asked(&self, name: CertName) -> usize {
        self.signer
            .asked
            .borrow()
            .iter()
            .filter(|(_, asked)| *asked == name)
            .count()
    }
}

#[test]
fn keeps_certificates_valid_for_two_weeks_of_signer_faults() {
    let faults = [
        Behaviour::Unreachable,
        Behaviour::Stalls,
        Behaviour::WrongKey,
        Behaviour::WrongNames,
        Behaviour::Denies,
        Behaviour::Pends,
        // An odd number, since every second shift contains a renewal.
        Behaviour::Unreachable,
    ];
    // A certificate is due with some eight and a half hours left, so every fault affects some renewals. The signer
    // answers in between for little more than three hours, the longest time between two attempts.
    let script: Vec<_> = (1..42)
        .zip(faults.into_iter().cycle())
        .flat_map(|(shift, fault)| {
            [
                (shift * 9 * HOUR, fault),
                (shift * 9 * HOUR + 6 * HOUR - HOUR / 6, Behaviour::Signs),
            ]
        })
        .collect();
    let simulation = Simulation::new(&script, &[]);
    simulation.run(vec![(15 * DAY, TestEvent::Stop)], true, false);
    // Renewed about one and a half times a day, and requested not much more often than that.
    let asked = simulation.asked(CertName::Apiserver);
    assert!((20..400).contains(&asked), "{asked}");
    let sleeps = simulation.notified.borrow().len();
    assert!(sleeps < 1500, "{sleeps}");
    for words in [
        "the server does not answer",
        "no answer came",
        "not on a Friday",
        "an officer must approve",
    ] {
        assert!(!simulation.notified_at(words).is_empty(), "{words}");
    }
    assert_eq!(simulation.notified_at("STOPPING"), [15 * DAY]);
}

#[test]
fn sleeps_between_two_renewals() {
    let simulation = Simulation::new(&[], &[]);
    simulation.run(vec![(20 * HOUR, TestEvent::Stop)], true, false);
    let notified = simulation.notified.borrow();
    let sleeps = notified
        .iter()
        .filter(|(_, text)| text.starts_with("everything is in place"))
        .count();
    // After the first step and after the one renewal of the day; the cool-down may add a step.
    assert!((2..=4).contains(&sleeps), "{notified:?}");
}

#[test]
fn renews_other_certificates_when_one_fails() {
    let script = [(10 * HOUR, Behaviour::Unreachable)];
    let all = CertName::ALL
        .into_iter()
        .filter(|name| *name != CertName::EtcdPeer);
    let simulation = Simulation::new(&script, &all.collect::<Vec<_>>());
    simulation.run(vec![(22 * HOUR, TestEvent::Stop)], true, false);
    let (peer, _) = pair(&simulation.root(), "etcd/peer");
    let (server, _) = pair(&simulation.root(), "etcd/server");
    assert!(peer.leaf().not_after() <= START + DAY + HOUR);
    assert!(server.leaf().not_after() > START + DAY + 10 * HOUR);
    assert!(!simulation.notified_at("etcd-peer failed").is_empty());
}

#[test]
fn requests_certificate_immediately_that_became_due_during_a_step() {
    let late = CertName::EtcdPeer;
    let script = [
        (Duration::ZERO, Behaviour::Unreachable),
        (Duration::from_secs(3), Behaviour::Signs),
        (10 * HOUR, Behaviour::SignsSlowly),
    ];
    let others = CertName::ALL.into_iter().filter(|name| *name != late);
    let simulation = Simulation::new(&script, &others.collect::<Vec<_>>());
    simulation.run(vec![(20 * HOUR, TestEvent::Stop)], true, false);
    let asked = simulation.signer.asked.borrow();
    let renewed = |name| {
        let mut times = asked
            .iter()
            .filter(|(at, asked)| *asked == name && *at > 10 * HOUR);
        times.next().unwrap().0
    };
    let (first, second) = (renewed(CertName::EtcdServer), renewed(late));
    // It is due while the first step waits for the signer.
    assert!(
        second >= first + Duration::from_secs(8),
        "{first:?} {second:?}"
    );
    assert!(second < first + MINUTE / 2, "{first:?} {second:?}");
}

#[test]
fn backs_off_from_unreachable_signer() {
    let simulation = Simulation::new(&[(Duration::ZERO, Behaviour::Unreachable)], &[]);
    simulation.run(vec![(DAY, TestEvent::Stop)], false, false);
    let notified = simulation.notified.borrow();
    let tries = notified
        .iter()
        .filter(|(_, text)| text.contains("next at"))
        .count();
    // About 300 s on average after the first minutes.
    assert!((150..500).contains(&tries), "{tries}");
}

#[test]
fn limits_requests_for_a_certificate_within_an_hour() {
    for fault in [
        Behaviour::Unreachable,
        Behaviour::Stalls,
        Behaviour::WrongKey,
    ] {
        let simulation = Simulation::new(&[(Duration::ZERO, fault)], &[]);
        simulation.run(vec![(6 * HOUR, TestEvent::Stop)], false, false);
        let asked = simulation.signer.asked.borrow();
        let of_one = asked
            .iter()
            .filter(|(_, name)| *name == CertName::Apiserver);
        let times: Vec<Duration> = of_one.map(|(at, _)| *at).collect();
        let within = |from: &Duration| {
            let hour = *from..*from + HOUR;
            times.iter().filter(|at| hour.contains(*at)).count()
        };
        let most = times.iter().map(within).max().unwrap();
        assert!((5..=20).contains(&most), "{fault:?}: {most}");
    }
}

#[test]
fn keeps_key_of_pending_request_after_stop() {
    let simulation = Simulation::new(&[(Duration::ZERO, Behaviour::Pends)], &[]);
    // Without the stop, the step would wait half a minute for the approval.
    simulation.run(vec![(HOUR, TestEvent::StopOncePending)], false, false);
    let stopped = simulation.notified_at("STOPPING");
    assert!(stopped[0] < MINUTE / 2, "{stopped:?}");
    let slot = simulation
        .root()
        .join("var/lib/nodepki/pending/apiserver/key.pem");
    let waiting = PrivateKey::from_pem(&fs::read(slot).unwrap()).unwrap();
    simulation.signer.script.borrow_mut().clear();
    simulation.run(vec![(HOUR, TestEvent::Stop)], true, false);
    let (_, key) = pair(&simulation.root(), "apiserver");
    assert_eq!(key.public_key(), waiting.public_key());
}

#[test]
fn reissues_deleted_certificate_immediately() {
    let simulation = Simulation::new(&[], &[]);
    let at = 2 * HOUR;
    simulation.run(
        vec![
            (at, TestEvent::Deletes("etc/kubernetes/pki/apiserver.crt")),
            (3 * HOUR, TestEvent::Stop),
        ],
        false,
        false,
    );
    let asked = simulation.signer.asked.borrow();
    let again = asked
        .iter()
        .rfind(|(_, name)| *name == CertName::Apiserver)
        .unwrap();
    assert_eq!(again.0, at);
    drop(asked);
    pair(&simulation.root(), "apiserver");
}

#[test]
fn reports_faulty_configuration_and_keeps_previous_one() {
    let simulation = Simulation::new(&[], &[]);
    simulation.run(
        vec![(HOUR, TestEvent::Reload), (3 * DAY, TestEvent::Stop)],
        true,
        true,
    );
    assert_eq!(simulation.notified_at("RELOADING"), [HOUR]);
    assert_eq!(simulation.notified_at("READY"), [Duration::ZERO, HOUR]);
    assert_eq!(
        simulation.notified_at("config.yaml:3:1: unknown field"),
        [HOUR]
    );
    assert!(
        simulation.asked(CertName::Apiserver) > 3,
        "renewals continue"
    );
}

#[test]
fn applies_changed_configuration_immediately() {
    let simulation = Simulation::new(&[], &[]);
    simulation.run(
        vec![
            (HOUR, TestEvent::Files(FileRole::Configuration)),
            (2 * HOUR, TestEvent::Stop),
        ],
        true,
        false,
    );
    assert_eq!(simulation.notified_at("RELOADING"), [HOUR]);
    assert_eq!(simulation.notified_at("READY"), [Duration::ZERO, HOUR]);
}

#[test]
fn renews_nothing_after_backward_clock_step() {
    let simulation = Simulation::new(&[], &[]);
    let at = 12 * HOUR;
    simulation.run(
        vec![
            (at, TestEvent::ClockGoesBack(20 * HOUR)),
            (at + HOUR / 2, TestEvent::Stop),
        ],
        false,
        false,
    );
    assert_eq!(
        simulation.notified_at("the clock was set back by 20h"),
        [at]
    );
    assert_eq!(simulation.asked(CertName::Apiserver), 1);
}
