//! Hundreds of renewals, seconds apart: nothing grows with their number, and no request fails.
//!
//! The signer grants a lifetime of seconds, so every certificate that a component reads again is renewed after half of
//! it. The faults of the ten renewals are spread over the run. Before each of them the signer grants
//! [`FAULT_LIFETIME`]: no certificate of a few seconds survives an outage of as many. kube-controller-manager and
//! kube-scheduler must be restarted for a new certificate, so theirs live for [`RESTARTED_LIFETIME`].
//!
//! The daemon is killed in the first half only. The process that runs through the second half shows whether memory,
//! descriptors and watches grow.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nodepki::kube::names::CertName;
use time::OffsetDateTime;

use super::measured::Measured;
use super::{
    Daemon, LEAD_TIME, Load, RENEWED, RESTART_RECORD, ROUNDS, Round, SOCKET, Scene, Watched,
    assert_controllers_work, assert_everything_verifies, kubeadm_configuration, met, settings,
};
use crate::servers::cluster::{Authorities, Cluster, ClusterNode};
use crate::servers::remote_signer::{Mode, RemoteSigner};
use crate::servers::static_pods::{StaticPods, Why};
use crate::time::{let_pass, within};

/// Number of renewals if `NODEPKI_SOAK_ROTATIONS` is not set.
const DEFAULT_ROTATIONS: usize = 30;
/// Usual lifetime if `NODEPKI_SOAK_LIFETIME` is not set. On a busy machine a step may take longer than the half of it.
const DEFAULT_LIFETIME: u64 = 5;
/// Other lifetimes in seconds. Each is rounded up to a full second when it is granted.
const FAULT_LIFETIME: u64 = 40;
const RESTART_LIFETIME: u64 = 24;
const RESTARTED_LIFETIME: u64 = 900;
const LAST_LIFETIME: u64 = 300;
/// Requested lifetime in seconds. A signer may grant less, down to a quarter.
const REQUESTED_LIFETIME: u64 = 12;
/// How long before the renewal of a component's certificate the others get a longer lifetime.
const RESTART_LEAD: Duration = Duration::from_secs(5);
/// No fault is prepared this long before such a renewal.
const FAULT_DISTANCE: Duration = Duration::from_secs(75);
/// Upper bound for the duration of one renewal besides the lifetime, and for that of the faults together.
const ROTATION_LIMIT: Duration = Duration::from_secs(3);
const FAULT_LIMIT: Duration = Duration::from_secs(900);
/// Number of kills, besides those while a component restarts.
const KILLS: usize = 10;

/// The certificates whose components must be restarted.
const RESTARTED: [CertName; 2] = [CertName::ControllerManagerConf, CertName::SchedulerConf];

/// Returns the certificates that their components read again.
fn reloaded() -> impl Iterator<Item = CertName> {
    RENEWED.into_iter().filter(|name| !RESTARTED.contains(name))
}

/// Returns the value of a variable of the environment.
fn number<T: FromStr>(variable: &str, default: T) -> T {
    std::env::var(variable).map_or(default, |text| {
        let number = text.parse().ok();
        number.unwrap_or_else(|| panic!("{variable}={text} is not a number"))
    })
}

#[test]
fn nothing_grows_through_many_renewals() {
    let rotations = number("NODEPKI_SOAK_ROTATIONS", DEFAULT_ROTATIONS);
    let lifetime = number("NODEPKI_SOAK_LIFETIME", DEFAULT_LIFETIME);
    let init = kubeadm_configuration();
    let cluster = &Cluster::made_of(&init, Authorities::External);
    let node = cluster.first();
    let pods = StaticPods::of(node);
    let signer = RemoteSigner::start(&node.path(SOCKET), &cluster.authorities());
    let granted = Granted::new(2 * FAULT_LIFETIME);
    let granting = granted.clone();
    signer.grant(move |name| granting.lifetime(name));
    configure(node);
    let load = Load::start(cluster, node, "0.4");
    node.nodepki(&["renew", "--all"]).done();

    let mut watched = Watched::default();
    let mut measured = Measured::default();
    let mut daemon = Daemon::start(node);
    let mut director = Director::new(rotations, lifetime, granted);
    let begin = Instant::now();
    let limit = (ROTATION_LIMIT + Duration::from_secs(lifetime))
        * u32::try_from(rotations).unwrap()
        + FAULT_LIMIT;
    let done = within(limit, || {
        watched.look(node);
        director.direct(&signer, &watched, &pods, &mut daemon, node);
        daemon.is_running();
        measured.measure(renewals(&watched), daemon.id(), node);
        director.is_done(&watched).then_some(()).ok_or(())
    });
    assert!(
        done.is_ok(),
        "only {} renewals:\n{}\n{}",
        renewals(&watched),
        watched.table(),
        daemon.said()
    );
    let took = begin.elapsed();
    assert_controllers_work(cluster);
    daemon.stop();
    watched.look(node);
    // Clients may not have read the last certificates yet.
    let_pass(Duration::from_secs(1));
    let seen = load.end();

    print!("{}", watched.table());
    println!(
        "{rotations} renewals in {took:.0?}, {:.2} s each; {} kills of the daemon",
        took.as_secs_f64() / rotations as f64,
        director.kills
    );
    seen.print();
    println!("signer: {:?}", signer.met());
    print!("{}", measured.table());
    seen.assert_nothing_failed(rotations / 3 + 3);
    println!("{}", watched.delays(&seen));
    for Round { mode, .. } in &ROUNDS {
        let met = *mode == Mode::Gone || signer.met().contains_key(mode);
        assert!(met, "no request met {mode:?}");
    }
    assert!(director.kills >= KILLS);
    assert_restarts(&pods, &watched, director.kills);
    measured.assert_nothing_grew();
    assert_everything_verifies(node);
}

fn configure(node: &ClusterNode) {
    let kubeadm = format!(
        "{}certificateValidityPeriod: {REQUESTED_LIFETIME}s\n",
        kubeadm_configuration()
    );
    node.write("/etc/nodepki/kubeadm.yaml", &kubeadm);
    let settings = settings("{files: [/etc/nodepki/kubeadm.yaml]}");
    let brief = settings.replace("minRemaining: 5s", "minRemaining: 1s");
    assert_ne!(brief, settings);
    node.write("/etc/nodepki/config.yaml", &brief);
}

/// Smallest number of renewals of a certificate that its component reads again.
fn renewals(watched: &Watched) -> usize {
    let each = reloaded().map(|name| watched.0.get(&name).map_or(0, |seen| seen.len() - 1));
    each.min().unwrap()
}

/// The lifetimes that the signer grants.
#[derive(Clone)]
struct Granted {
    seconds: Arc<AtomicU64>,
    ends: Arc<Mutex<BTreeMap<CertName, OffsetDateTime>>>,
}

impl Granted {
    fn new(seconds: u64) -> Self {
        Granted {
            seconds: Arc::new(AtomicU64::new(seconds)),
            ends: Arc::default(),
        }
    }

    fn set(&self, seconds: u64) {
        self.seconds.store(seconds, Ordering::SeqCst);
    }

    fn lifetime(&self, name: CertName) -> Duration {
        let seconds = if RESTARTED.contains(&name) {
            RESTARTED_LIFETIME
        } else {
            self.seconds.load(Ordering::SeqCst)
        };
        let now = OffsetDateTime::now_utc();
        let mut ends = self.ends.lock().unwrap();
        // A certificate that ends before the one in place is refused.
        let earliest = ends
            .get(&name)
            .map_or(now, |end| *end + Duration::from_secs(1));
        let end = earliest.max(now + Duration::from_secs(seconds));
        let full_second = end.replace_nanosecond(0).unwrap() + Duration::from_secs(1);
        ends.insert(name, full_second);
        (full_second - now).try_into().unwrap()
    }
}

/// Spreads the faults and kills over the run.
struct Director {
    rotations: usize,
    /// Usual lifetime in seconds.
    lifetime: u64,
    granted: Granted,
    phase: Phase,
    /// Number of rounds that have begun.
    rounds: usize,
    kills: usize,
    /// Number of kills of [`KILLS`] that have happened.
    planned_kills: usize,
    /// The number of requests above which the daemon is killed.
    kill_above: Option<usize>,
}

enum Phase {
    /// Certificates are renewed every few seconds.
    Steady,
    /// Waits until every certificate has a longer lifetime, for the fault of this round or for restarts.
    Prepares(Option<usize>),
    /// Waits until the components are restarted; contains the numbers of their renewals and starts before.
    Restarts([usize; 2], usize),
    Fault(Scene),
    /// Certificates with [`LAST_LIFETIME`] are being issued.
    Ends,
}

impl Director {
    fn new(rotations: usize, lifetime: u64, granted: Granted) -> Self {
        Director {
            rotations,
            lifetime,
            granted,
            phase: Phase::Steady,
            rounds: 0,
            kills: 0,
            planned_kills: 0,
            kill_above: None,
        }
    }

    fn is_done(&self, watched: &Watched) -> bool {
        let last = Duration::from_secs(LAST_LIFETIME / 2);
        matches!(self.phase, Phase::Ends) && reloaded().all(|name| lives(watched, name) > last)
    }

    fn direct(
        &mut self,
        signer: &RemoteSigner,
        watched: &Watched,
        pods: &StaticPods,
        daemon: &mut Daemon<'_>,
        node: &ClusterNode,
    ) {
        let now = OffsetDateTime::now_utc();
        let next_restart = RESTARTED
            .map(|name| watched.due(name))
            .into_iter()
            .min()
            .unwrap();
        match &self.phase {
            Phase::Steady => {
                self.kill(signer, renewals(watched), daemon);
                self.leave_steady(renewals(watched), next_restart - now);
            }
            Phase::Prepares(None) if are_long(watched, RESTART_LIFETIME) => {
                let counts = RESTARTED.map(|name| watched.0[&name].len());
                self.phase = Phase::Restarts(counts, pods.starts().len());
            }
            Phase::Prepares(Some(round)) if are_long(watched, FAULT_LIFETIME) => {
                self.begin_fault(&ROUNDS[*round], signer, watched);
            }
            Phase::Prepares(_) | Phase::Ends => {}
            Phase::Restarts(before, starts) => {
                let is_first_half = renewals(watched) < self.rotations / 2;
                let renewed = RESTARTED.map(|name| watched.0[&name].len());
                if is_first_half && pods.starts().len() > *starts {
                    self.phase = Phase::Restarts(*before, usize::MAX);
                    self.kill_now(daemon);
                } else if renewed.iter().zip(before).all(|(now, before)| now > before)
                    && !node.path(RESTART_RECORD).exists()
                {
                    self.steady();
                }
            }
            Phase::Fault(scene) if scene.is_over(signer, watched) => {
                signer.behave(Mode::Signs);
                self.steady();
            }
            Phase::Fault(_) => {}
        }
    }

    fn steady(&mut self) {
        self.granted.set(self.lifetime);
        self.phase = Phase::Steady;
    }

    fn leave_steady(&mut self, renewals: usize, until_restart: time::Duration) {
        self.granted.set(self.lifetime);
        let next_round = (self.rounds + 1) * self.rotations / (ROUNDS.len() + 1);
        if until_restart < RESTART_LEAD {
            self.granted.set(RESTART_LIFETIME);
            self.phase = Phase::Prepares(None);
        } else if self.rounds < ROUNDS.len() && renewals >= next_round {
            if until_restart > FAULT_DISTANCE {
                let round = self.rounds;
                self.rounds += 1;
                if ROUNDS[round].mode != Mode::Signs {
                    self.granted.set(FAULT_LIFETIME);
                    self.phase = Phase::Prepares(Some(round));
                }
            }
        } else if self.rounds == ROUNDS.len() && renewals >= self.rotations {
            self.granted.set(LAST_LIFETIME);
            self.phase = Phase::Ends;
        }
    }

    /// Sets the fault shortly before the certificates are due.
    fn begin_fault(&mut self, round: &Round, signer: &RemoteSigner, watched: &Watched) {
        let due = round
            .only
            .map_or_else(|| watched.most_due(), |name| watched.due(name));
        let begin = OffsetDateTime::now_utc();
        if !(begin..=begin + LEAD_TIME).contains(&due) {
            return;
        }
        match round.only {
            None => signer.behave(round.mode),
            Some(name) => signer.behave_for(name, round.mode),
        }
        self.phase = Phase::Fault(Scene {
            mode: round.mode,
            before: met(signer, round.mode),
            only: round.only,
            begin,
            end: Instant::now() + Duration::from_secs(round.seconds),
        });
    }

    /// Kills the daemon at times in the first half: immediately, or while the signer processes a request.
    fn kill(&mut self, signer: &RemoteSigner, renewals: usize, daemon: &mut Daemon<'_>) {
        let asked: usize = signer.met().values().sum();
        if let Some(above) = self.kill_above {
            if asked > above {
                self.kill_above = None;
                self.kill_now(daemon);
            }
            return;
        }
        let next = (self.planned_kills + 1) * self.rotations / (2 * KILLS + 2);
        if self.planned_kills == KILLS || renewals < next {
            return;
        }
        self.planned_kills += 1;
        match self.planned_kills % 2 {
            0 => self.kill_now(daemon),
            _ => self.kill_above = Some(asked),
        }
    }

    fn kill_now(&mut self, daemon: &mut Daemon<'_>) {
        daemon.kill();
        self.kills += 1;
    }
}

fn lives(watched: &Watched, name: CertName) -> Duration {
    let issued = watched.0[&name].last().unwrap();
    Duration::try_from(issued.not_after - issued.at).unwrap_or_default()
}

/// Returns whether every certificate that its component reads again has at least this lifetime in seconds.
fn are_long(watched: &Watched, seconds: u64) -> bool {
    reloaded()
        .all(|name| lives(watched, name) + Duration::from_secs(2) > Duration::from_secs(seconds))
}

/// Asserts that a component was restarted only if it does not read its certificate again, and once for each new one. A
/// daemon that is killed meanwhile may restart the component once more.
fn assert_restarts(pods: &StaticPods, watched: &Watched, kills: usize) {
    let starts = pods.starts();
    let components = ["kube-controller-manager", "kube-scheduler"];
    for (component, name) in components.into_iter().zip(RESTARTED) {
        let renewed = watched.0[&name].len() - 1;
        let restarts = pods.restarts(component);
        println!("{component}: {renewed} renewals, {restarts} restarts");
        assert!((renewed..=renewed + kills).contains(&restarts));
    }
    let unexpected = |start: &&super::Start| {
        !components.contains(&&*start.component) || start.why != Why::Changed
    };
    let unexpected: Vec<_> = starts.iter().filter(unexpected).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
}
