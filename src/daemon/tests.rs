//! Weeks of a daemon's life in virtual time, on a real root, with a signer that does as it is told.

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
use crate::config::StandIns;
use crate::kube::names::{Authority, CertName};
use crate::signer::{
    self, Answer, Caps, Class, Kind, Rejection, Request, Signer, SignerError, Ticket, Wanted,
};
use crate::x509::{CertificateAuthority, Chain, KeyAlgorithm, PrivateKey};

const START: OffsetDateTime = datetime!(2027-01-01 00:00 UTC);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

thread_local! {
    /// When the runtime of this test began.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// How wrong the clock is, in seconds.
    static WRONG_BY: Cell<i64> = const { Cell::new(0) };
}

/// How long the test has run, in virtual time.
fn passed() -> Duration {
    let now = Instant::now();
    if BEGAN.get().is_none() {
        BEGAN.set(Some(now));
    }
    now - BEGAN.get().unwrap()
}

fn clock() -> OffsetDateTime {
    START + passed() + time::Duration::seconds(WRONG_BY.get())
}

/// What the signer does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Signs,
    /// Cannot be reached.
    Away,
    /// Takes half a minute to say nothing.
    Stalls,
    WrongKey,
    WrongNames,
    Denies,
    Pends,
}

struct Scripted {
    authorities: BTreeMap<Authority, CertificateAuthority>,
    caps: Caps,
    /// From that time of the test on.
    script: RefCell<Vec<(Duration, How)>>,
    /// Who ignores the script.
    spared: Vec<CertName>,
    asked: RefCell<Vec<(Duration, CertName)>>,
}

impl Scripted {
    fn how(&self, name: CertName) -> How {
        let now = passed();
        let script = self.script.borrow();
        let past = script.iter().rev().find(|(from, _)| *from <= now);
        match past {
            Some((_, how)) if !self.spared.contains(&name) => *how,
            _ => How::Signs,
        }
    }

    fn issued(&self, request: &Request, how: How) -> Answer {
        let mut profile = request.wanted.profile.clone();
        let mut key = request.csr.public_key().clone();
        if how == How::WrongKey {
            key = PrivateKey::generate(KeyAlgorithm::EcdsaP256)
                .unwrap()
                .public_key()
                .clone();
        }
        if how == How::WrongNames {
            profile.subject.common_name = "somebody-else".to_owned();
        }
        let authority = &self.authorities[&request.wanted.authority];
        let made = authority.issue(&key, &profile, clock()).unwrap();
        Answer::Issued(made.to_pem().into_bytes())
    }
}

#[async_trait(?Send)]
impl Signer for Scripted {
    fn kind(&self) -> Kind {
        Kind::Exec
    }

    fn label(&self) -> String {
        "scripted".to_owned()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn preflight(&self, _wanted: &Wanted) -> Result<(), Rejection> {
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
        match self.how(request.wanted.name) {
            How::Denies => Ok(Some(Answer::Denied {
                reason: "not on a Friday".to_owned(),
            })),
            How::Away => Err(SignerError::new(Class::Transient, "nobody answers", "wait")),
            _ => Ok(None),
        }
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let name = request.wanted.name;
        self.asked.borrow_mut().push((passed(), name));
        match self.how(name) {
            How::Away => Err(SignerError::new(Class::Transient, "nobody answers", "wait")),
            How::Stalls => {
                tokio::time::sleep(MINUTE / 2).await;
                Err(SignerError::new(Class::Ambiguous, "no answer came", "wait"))
            }
            How::Denies => Ok(Answer::Denied {
                reason: "not on a Friday".to_owned(),
            }),
            How::Pends => Ok(Answer::Pending {
                ticket: Ticket::try_from("7".to_owned()).unwrap(),
                after: None,
                note: "an officer must approve".to_owned(),
            }),
            how => Ok(self.issued(request, how)),
        }
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        match self.how(request.wanted.name) {
            How::Pends => Ok(Answer::Pending {
                ticket: ticket.clone(),
                after: None,
                note: "an officer must approve".to_owned(),
            }),
            _ => self.submit(request).await,
        }
    }
}

/// What happens in the test's surroundings.
enum Happens {
    Files(Matter),
    Reload,
    ClockGoesBack(Duration),
    /// Somebody deletes a file of the node.
    Deletes(&'static str),
    Stop,
    /// As soon as the signer has every request and has decided about none.
    StopOncePending,
}

struct World {
    listener: Rc<Listener>,
    root: PathBuf,
    happens: Vec<(Duration, Happens)>,
    told: Rc<RefCell<Vec<(Duration, String)>>>,
    /// Everything has to be valid from the first sleep on.
    checked: bool,
}

impl Surroundings for World {
    fn watch(&mut self, _watched: Watched) {}

    fn own(&mut self, _root: &Root, _written: &[PathBuf]) {}

    async fn sleep(&mut self, until: Option<OffsetDateTime>) -> Wake {
        if self.checked {
            for name in PAIRS {
                let (chain, _) = pair(&self.root, name);
                let ends = chain.leaf().not_after();
                assert!(
                    ends > clock(),
                    "{name} has ended at {ends}, it is {}",
                    clock()
                );
            }
        }
        let (at, _) = self.happens.first().expect("a test ends with Stop");
        let happens = at.saturating_sub(passed());
        let alarm = until.map(|until| Duration::try_from(until - clock()).unwrap_or_default());
        if alarm.is_some_and(|alarm| alarm < happens) {
            tokio::time::sleep(alarm.unwrap()).await;
            return Wake::Time;
        }
        tokio::time::sleep(happens).await;
        match self.happens.remove(0).1 {
            Happens::Files(matter) => Wake::Files(matter),
            Happens::Reload => Wake::Reload,
            Happens::ClockGoesBack(by) => {
                WRONG_BY.set(WRONG_BY.get() - by.as_secs() as i64);
                Wake::Time
            }
            Happens::Deletes(file) => {
                fs::remove_file(self.root.join(file)).unwrap();
                Wake::Files(Matter::Pki)
            }
            Happens::Stop | Happens::StopOncePending => Wake::Stop,
        }
    }

    /// Waits for no moment: virtual time would go there while a key is being made.
    async fn stopped(&mut self) {
        if !matches!(self.happens.first(), Some((_, Happens::StopOncePending))) {
            return std::future::pending().await;
        }
        while self.listener.pending.get() < CertName::ALL.len() {
            self.listener.stirred.notified().await;
        }
    }

    fn ran(&self) -> Duration {
        passed()
    }

    fn confine(&self, _reach: &Reach) {}

    fn tell(&self, what: Tell<'_>) {
        let text = match what {
            Tell::Ready => "READY".to_owned(),
            Tell::Status(text) => text.to_owned(),
            Tell::Reloading => "RELOADING".to_owned(),
            Tell::Stopping => "STOPPING".to_owned(),
            Tell::Alive => return,
        };
        eprintln!("{:?} {text}", passed());
        self.told.borrow_mut().push((passed(), text));
    }
}

/// Counts the requests that wait.
#[derive(Default)]
struct Listener {
    pending: Cell<usize>,
    stirred: Notify,
}

impl Progress for Listener {
    fn event(&self, event: Event) {
        if let Event::Waiting(..) = event {
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

/// A node whose certificates live for a day, its authorities, and what is to happen to it.
struct Life {
    dir: TempDir,
    signer: Rc<Scripted>,
    told: Rc<RefCell<Vec<(Duration, String)>>>,
}

impl Life {
    fn new(script: &[(Duration, How)], spared: &[CertName]) -> Self {
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
        let kubeadm = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.11}\nnodeRegistration: {name: cp1}\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.2\nencryptionAlgorithm: ECDSA-P256\ncertificateValidityPeriod: 24h\n";
        fs::write(dir.path().join("kubeadm.yaml"), kubeadm).unwrap();
        // Signers that are told nothing else sign.
        let signer = Scripted {
            authorities,
            caps: Caps::everything(),
            script: RefCell::new(script.to_vec()),
            spared: spared.to_vec(),
            asked: RefCell::default(),
        };
        Life {
            dir,
            signer: Rc::new(signer),
            told: Rc::default(),
        }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Lives through what happens, the last of which must be [`Happens::Stop`].
    fn lives(&self, happens: Vec<(Duration, Happens)>, checked: bool, broken: bool) {
        BEGAN.set(None);
        WRONG_BY.set(0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let root = Root::open(self.root()).unwrap();
        let reads = Cell::new(0);
        let read = async || {
            reads.set(reads.get() + 1);
            if broken && reads.get() > 1 {
                return Err(Failure::new(
                    ExitCode::Configuration,
                    "config.yaml:3:1: unknown key",
                ));
            }
            let inputs = Inputs {
                stand_ins: StandIns {
                    kubeadm_configs: vec![self.dir.path().join("kubeadm.yaml").into()],
                    signer: Some(signer::Config::Embedded(signer::embedded::Config)),
                    node_name: None,
                },
                ..Inputs::default()
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
            surroundings: World {
                listener: Rc::clone(&listener),
                root: self.root(),
                happens,
                told: Rc::clone(&self.told),
                checked,
            },
        };
        runtime.block_on(daemon.run(read)).unwrap();
    }

    /// What was told at a time of the test, and not before.
    fn told(&self, words: &str) -> Vec<Duration> {
        let told = self.told.borrow();
        told.iter()
            .filter(|(_, text)| text.contains(words))
            .map(|(at, _)| *at)
            .collect()
    }

    /// How often certificates were asked for.
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
fn two_weeks_with_a_signer_that_fails_stalls_lies_and_comes_back() {
    let faults = [
        How::Away,
        How::Stalls,
        How::WrongKey,
        How::WrongNames,
        How::Denies,
        How::Pends,
        // An odd number, since a renewal comes in every second shift.
        How::Away,
    ];
    // A certificate is due with some eight and a half hours left, so every fault meets some renewals, and each of them
    // has less than two hours to come about: the longest time between two tries.
    let script: Vec<_> = (1..42)
        .zip(faults.into_iter().cycle())
        .flat_map(|(shift, fault)| {
            [
                (shift * 9 * HOUR, fault),
                (shift * 9 * HOUR + 7 * HOUR, How::Signs),
            ]
        })
        .collect();
    let life = Life::new(&script, &[]);
    life.lives(vec![(15 * DAY, Happens::Stop)], true, false);
    // Renewed some one and a half times a day, and asked for not much more often than that.
    let asked = life.asked(CertName::Apiserver);
    assert!((20..400).contains(&asked), "{asked}");
    let sleeps = life.told.borrow().len();
    assert!(sleeps < 1500, "{sleeps}");
    for words in [
        "nobody answers",
        "no answer came",
        "not on a Friday",
        "an officer must approve",
    ] {
        assert!(!life.told(words).is_empty(), "{words}");
    }
    assert_eq!(life.told("STOPPING"), [15 * DAY]);
}

#[test]
fn nothing_wakes_the_daemon_between_two_renewals() {
    let life = Life::new(&[], &[]);
    life.lives(vec![(20 * HOUR, Happens::Stop)], true, false);
    let told = life.told.borrow();
    let sleeps = told
        .iter()
        .filter(|(_, text)| text.starts_with("everything is in place"))
        .count();
    // After the first step and after the one renewal of the day; the cool-down may add a look.
    assert!((2..=4).contains(&sleeps), "{told:?}");
}

#[test]
fn a_failed_certificate_holds_up_no_other() {
    let script = [(10 * HOUR, How::Away)];
    let all = CertName::ALL
        .into_iter()
        .filter(|name| *name != CertName::EtcdPeer);
    let life = Life::new(&script, &all.collect::<Vec<_>>());
    life.lives(vec![(22 * HOUR, Happens::Stop)], true, false);
    let (peer, _) = pair(&life.root(), "etcd/peer");
    let (server, _) = pair(&life.root(), "etcd/server");
    assert!(peer.leaf().not_after() <= START + DAY + HOUR);
    assert!(server.leaf().not_after() > START + DAY + 10 * HOUR);
    assert!(!life.told("etcd-peer failed").is_empty());
}

#[test]
fn a_signer_that_is_away_from_the_start_is_asked_ever_more_slowly() {
    let life = Life::new(&[(Duration::ZERO, How::Away)], &[]);
    life.lives(vec![(DAY, Happens::Stop)], false, false);
    let told = life.told.borrow();
    let tries = told
        .iter()
        .filter(|(_, text)| text.contains("next at"))
        .count();
    // Some 300 s on average, once the first minutes are over.
    assert!((150..500).contains(&tries), "{tries}");
}

#[test]
fn a_stop_in_the_middle_of_a_request_keeps_its_key() {
    let life = Life::new(&[(Duration::ZERO, How::Pends)], &[]);
    // The run itself would wait for the officer, for half a minute.
    life.lives(vec![(HOUR, Happens::StopOncePending)], false, false);
    let stopped = life.told("STOPPING");
    assert!(stopped[0] < MINUTE / 2, "{stopped:?}");
    let slot = life
        .root()
        .join("var/lib/nodepki/pending/apiserver/key.pem");
    let waiting = PrivateKey::from_pem(&fs::read(slot).unwrap()).unwrap();
    life.signer.script.borrow_mut().clear();
    life.lives(vec![(HOUR, Happens::Stop)], true, false);
    let (_, key) = pair(&life.root(), "apiserver");
    assert_eq!(key.public_key(), waiting.public_key());
}

#[test]
fn what_others_delete_is_made_again_at_once() {
    let life = Life::new(&[], &[]);
    let at = 2 * HOUR;
    life.lives(
        vec![
            (at, Happens::Deletes("etc/kubernetes/pki/apiserver.crt")),
            (3 * HOUR, Happens::Stop),
        ],
        false,
        false,
    );
    let asked = life.signer.asked.borrow();
    let again = asked
        .iter()
        .rfind(|(_, name)| *name == CertName::Apiserver)
        .unwrap();
    assert_eq!(again.0, at);
    drop(asked);
    pair(&life.root(), "apiserver");
}

#[test]
fn a_broken_configuration_is_told_and_the_old_one_goes_on() {
    let life = Life::new(&[], &[]);
    life.lives(
        vec![(HOUR, Happens::Reload), (3 * DAY, Happens::Stop)],
        true,
        true,
    );
    assert_eq!(life.told("RELOADING"), [HOUR]);
    assert_eq!(life.told("READY"), [Duration::ZERO, HOUR]);
    assert_eq!(life.told("config.yaml:3:1: unknown key"), [HOUR]);
    assert!(life.asked(CertName::Apiserver) > 3, "renewals go on");
}

#[test]
fn a_new_configuration_is_followed_at_once() {
    let life = Life::new(&[], &[]);
    life.lives(
        vec![
            (HOUR, Happens::Files(Matter::Configuration)),
            (2 * HOUR, Happens::Stop),
        ],
        true,
        false,
    );
    assert_eq!(life.told("RELOADING"), [HOUR]);
    assert_eq!(life.told("READY"), [Duration::ZERO, HOUR]);
}

#[test]
fn by_a_clock_that_went_back_nothing_is_renewed() {
    let life = Life::new(&[], &[]);
    let at = 12 * HOUR;
    life.lives(
        vec![
            (at, Happens::ClockGoesBack(20 * HOUR)),
            (at + HOUR / 2, Happens::Stop),
        ],
        false,
        false,
    );
    assert_eq!(life.told("the clock went back by 20h"), [at]);
    assert_eq!(life.asked(CertName::Apiserver), 1);
}
