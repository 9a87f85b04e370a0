//! A running control plane whose certificates live for one minute: the daemon keeps it serving, whatever its signer
//! does and however often the daemon is killed.
//!
//! Everything is real except the kubelet, which [`StaticPods`] replaces, and the signer, which misbehaves on purpose.
//! `tests/fixtures/load.py` counts on the node what the clients observe; no request may fail. [`thousand`] renews a
//! thousand times, and measures what could grow.

mod measured;
#[cfg(feature = "failpoints")]
mod open_connections;
mod thousand;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nodepki::kube::names::CertName;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::node::NODEPKI;
use crate::servers::Server;
use crate::servers::cluster::{Authorities, Cluster, ClusterNode, INIT};
use crate::servers::remote_signer::{Mode, PLUGIN, RemoteSigner};
use crate::servers::static_pods::{Start, StaticPods, Why};
use crate::time::{eventually, let_pass, patience, wait_until, within};

/// Lifetime of a certificate. It is renewed after half of that; the other half is left for an outage, a retry, a
/// signature and the restart of two components, in a test that shares two cores with others.
const LIFETIME: Duration = Duration::from_secs(60);
const RENEWALS: usize = 10;
/// Maximum duration of all renewals together.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// How long before a due time a scene begins.
const LEAD_TIME: Duration = Duration::from_secs(1);

const LOAD_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/load.py");
const SOCKET: &str = "/run/signer.sock";
const ISSUE_RECORD: &str = "/var/lib/nodepki/issued.json";
const RESTART_RECORD: &str = "/var/lib/nodepki/restarts.json";

/// The behaviour of the signer when a round of renewals is due, and its duration; afterwards the signer signs again.
struct Round {
    mode: Mode,
    /// The only certificate to which it applies, if any.
    only: Option<CertName>,
    seconds: u64,
}

const fn round(mode: Mode, only: Option<CertName>, seconds: u64) -> Round {
    Round {
        mode,
        only,
        seconds,
    }
}

const ROUNDS: [Round; RENEWALS] = [
    round(Mode::Signs, None, 0),
    round(Mode::Fails, None, 4),
    round(Mode::Lies("wrong-key"), None, 3),
    round(Mode::Lies("extra-san"), Some(CertName::Apiserver), 5),
    round(Mode::Stalls, None, 5),
    round(Mode::Gone, None, 5),
    round(Mode::Fails, Some(CertName::EtcdPeer), 5),
    round(Mode::Lies("expired"), None, 3),
    round(Mode::Lies("other-authority"), None, 3),
    round(Mode::Signs, None, 0),
];

/// The certificates that the daemon renews on a first control-plane node.
const RENEWED: [CertName; 11] = [
    CertName::Apiserver,
    CertName::ApiserverKubeletClient,
    CertName::ApiserverEtcdClient,
    CertName::FrontProxyClient,
    CertName::EtcdServer,
    CertName::EtcdPeer,
    CertName::EtcdHealthcheckClient,
    CertName::AdminConf,
    CertName::SuperAdminConf,
    CertName::ControllerManagerConf,
    CertName::SchedulerConf,
];

/// The certificates that are served, with their ports.
const SERVED: [(CertName, &str); 3] = [
    (CertName::Apiserver, "6443"),
    (CertName::EtcdServer, "2379"),
    (CertName::EtcdPeer, "2380"),
];

/// Settings without a kubelet.
fn settings(kubeadm: &str) -> String {
    format!(
        "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
kubeadm: {kubeadm}
authorities: {{ca: {{signer: remote}}, etcd-ca: {{signer: remote}}, front-proxy-ca: {{signer: remote}}}}
signers: {{remote: {{exec: {{command: /bin/bash, args: ['{PLUGIN}', {SOCKET}], timeout: 10s}}}}}}
rotation: {{renewAt: 50%, jitter: 0%, minRemaining: 5s}}
wait: 5s
reload: {{timeout: 15s, hooks: [{{on: [kubelet], command: [/bin/true]}}]}}
"
    )
}

/// Configures short lifetimes. `kubeadm` names the kubeadm files of the node.
fn configure(node: &ClusterNode, kubeadm: &str) {
    let life = LIFETIME.as_secs();
    let short_lived = format!(
        "{}certificateValidityPeriod: {life}s\n",
        kubeadm_configuration()
    );
    node.write("/etc/nodepki/kubeadm.yaml", &short_lived);
    node.write("/etc/nodepki/config.yaml", &settings(kubeadm));
}

/// Returns the kubeadm configuration of the cluster. A killed controller is replaced within seconds.
fn kubeadm_configuration() -> String {
    let leases = "{name: leader-elect-lease-duration, value: 6s}, {name: leader-elect-renew-deadline, value: 4s}, \
                  {name: leader-elect-retry-period, value: 1s}";
    format!(
        "{INIT}controllerManager: {{extraArgs: [{leases}]}}\nscheduler: {{extraArgs: [{leases}]}}\n"
    )
}

#[test]
fn serves_without_failure_through_ten_renewals() {
    let init = kubeadm_configuration();
    let cluster = &Cluster::made_of(&init, Authorities::External);
    let node = cluster.first();
    let pods = StaticPods::of(node);
    let signer = RemoteSigner::start(&node.path(SOCKET), &cluster.authorities());
    configure(node, "{files: [/etc/nodepki/kubeadm.yaml]}");
    let load = Load::start(cluster, node, "0.15");
    node.nodepki(&["renew", "--all"]).done();

    let mut watched = Watched::default();
    let mut daemon = Daemon::start(node);
    let begin = Instant::now();
    let mut director = Director::new();
    let done = within(TIME_LIMIT, || {
        watched.look(node);
        director.direct(&signer, &watched, &pods, &mut daemon);
        daemon.is_running();
        let is_done = watched.renewals() >= RENEWALS && director.round >= ROUNDS.len();
        is_done.then_some(()).ok_or(())
    });
    assert!(
        done.is_ok(),
        "only {} renewals:\n{}\n{}",
        watched.renewals(),
        watched.table(),
        daemon.said()
    );
    let took = begin.elapsed();
    signer.behave(Mode::Signs);
    thread::scope(|scope| {
        let working = scope.spawn(|| assert_controllers_work(cluster));
        let unproven = node.path(RESTART_RECORD);
        eventually(|| {
            watched.look(node);
            daemon.is_running();
            let is_done = working.is_finished() && !unproven.exists();
            is_done.then_some(()).ok_or_else(|| daemon.said())
        });
    });
    daemon.stop();
    watched.look(node);
    // Clients may not have read the last certificates yet.
    let_pass(Duration::from_secs(1));
    let seen = load.end();

    print!("{}", watched.table());
    println!("{} kills of the daemon, in {took:.0?}", director.kills);
    seen.print();
    seen.assert_nothing_failed(3);
    println!("signer: {:?}", signer.met());
    for Round { mode, .. } in ROUNDS {
        let met = mode == Mode::Gone || signer.met().contains_key(&mode);
        assert!(met, "no request met {mode:?}");
    }
    assert!(director.kills >= 3);
    println!("{}", watched.delays(&seen));
    assert_only_non_reloading_restarted(&pods);
    assert_everything_verifies(node);
    assert_kubeadm_reads_certificates(node);
}

/// Sets the signer's behaviour and kills the daemon at moments that depend on the observed state.
struct Director {
    round: usize,
    scene: Option<Scene>,
    kills: usize,
    /// Latest time of the next kill; it happens earlier when the signer has a request or a component restarts.
    next_kill: Kill,
}

enum Kill {
    /// While the signer processes a request.
    Asked(usize),
    /// While the daemon waits for a component that it has restarted.
    Restarted(usize),
    /// At an arbitrary moment.
    At(Instant),
}

impl Director {
    fn new() -> Self {
        Director {
            round: 0,
            scene: None,
            kills: 0,
            next_kill: Kill::Asked(0),
        }
    }

    fn direct(
        &mut self,
        signer: &RemoteSigner,
        watched: &Watched,
        pods: &StaticPods,
        daemon: &mut Daemon,
    ) {
        self.scene(signer, watched);
        let asked: usize = signer.met().values().sum();
        let restarted = pods.starts().len();
        let now = Instant::now();
        let is_time = match self.next_kill {
            Kill::Asked(before) => asked > before && watched.renewals() > 0,
            Kill::Restarted(before) => restarted > before,
            Kill::At(moment) => moment <= now,
        };
        if !is_time {
            return;
        }
        daemon.kill();
        self.kills += 1;
        // Forty seconds are longer than a round, and not a multiple of one.
        let later = now + Duration::from_secs(40);
        self.next_kill = match self.kills % 3 {
            0 => Kill::Asked(asked + 20),
            1 => Kill::At(later),
            _ => Kill::Restarted(restarted),
        };
    }

    /// Starts the next scene shortly before a round is due.
    fn scene(&mut self, signer: &RemoteSigner, watched: &Watched) {
        if let Some(scene) = &self.scene {
            if scene.is_over(signer, watched) {
                signer.behave(Mode::Signs);
                self.scene = None;
            }
            return;
        }
        let Round {
            mode,
            only,
            seconds,
        } = ROUNDS[self.round % ROUNDS.len()];
        let due = only.map_or_else(|| watched.most_due(), |name| watched.due(name));
        let begin = OffsetDateTime::now_utc();
        if watched.rounds() < self.round || !(begin..=begin + LEAD_TIME).contains(&due) {
            return;
        }
        self.round += 1;
        match only {
            _ if mode == Mode::Signs => return,
            None => signer.behave(mode),
            Some(name) => signer.behave_for(name, mode),
        }
        self.scene = Some(Scene {
            mode,
            before: met(signer, mode),
            only,
            begin,
            end: Instant::now() + Duration::from_secs(seconds),
        });
    }
}

/// A period in which the signer misbehaves.
struct Scene {
    mode: Mode,
    /// Number of requests that had met this behaviour before.
    before: usize,
    only: Option<CertName>,
    begin: OffsetDateTime,
    end: Instant,
}

impl Scene {
    /// Returns whether the scene can end: a daemon that is starting or waits for a component may send its request later.
    fn is_over(&self, signer: &RemoteSigner, watched: &Watched) -> bool {
        let now = Instant::now();
        let was_met = self.mode == Mode::Gone || met(signer, self.mode) > self.before;
        let is_seen = was_met && self.others_were_renewed(watched);
        assert!(
            is_seen || now < self.end + patience(),
            "{:?} for {:?} was met: {was_met}, and others were not renewed meanwhile:\n{}",
            self.mode,
            self.only,
            watched.table()
        );
        is_seen && self.end <= now
    }

    /// Returns whether the other certificates that were due were renewed while one could not be obtained.
    fn others_were_renewed(&self, watched: &Watched) -> bool {
        if self.only.is_none() {
            return true;
        }
        let is_overdue = |name: &&CertName| watched.due(**name) < self.begin + LEAD_TIME;
        RENEWED.iter().filter(is_overdue).count() <= 1
    }
}

fn met(signer: &RemoteSigner, mode: Mode) -> usize {
    signer.met().get(&mode).copied().unwrap_or_default()
}

/// The daemon on a node.
pub(crate) struct Daemon<'a> {
    node: &'a ClusterNode,
    process: Server,
    /// Number of starts so far.
    starts: usize,
}

impl<'a> Daemon<'a> {
    pub(crate) fn start(node: &'a ClusterNode) -> Self {
        Self::start_with(node, &[])
    }

    /// Starts the daemon with these variables in its environment.
    pub(crate) fn start_with(node: &'a ClusterNode, variables: &[(&str, &str)]) -> Self {
        Daemon {
            node,
            process: Self::run(node, 1, variables),
            starts: 1,
        }
    }

    fn run(node: &ClusterNode, start: usize, variables: &[(&str, &str)]) -> Server {
        // A benchmark runs the program of a release.
        let program = std::env::var("NODEPKI_BENCH_PROGRAM");
        let mut command = node.command(program.as_deref().unwrap_or(NODEPKI));
        command.args(["--root", "/", "--verbose", "daemon"]);
        command.envs(variables.iter().copied());
        Server::start(command, &node.dir().join(format!("nodepki-{start}.log")))
    }

    /// Kills the daemon with SIGKILL, and starts it again.
    pub(crate) fn kill(&mut self) {
        self.process.signal(Signal::SIGKILL);
        self.replace();
    }

    /// Waits until the daemon is dead.
    pub(crate) fn wait_for_end(&mut self) {
        wait_until("the daemon is dead", || self.process.ended().is_some());
    }

    /// Waits until the daemon is dead, and starts another one.
    pub(crate) fn replace(&mut self) {
        self.wait_for_end();
        self.starts += 1;
        self.process = Self::run(self.node, self.starts, &[]);
    }

    /// Returns the process ID.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    pub(crate) fn is_running(&mut self) {
        if let Some(status) = self.process.ended() {
            panic!("the daemon ended with {status}:\n{}", self.said());
        }
    }

    pub(crate) fn said(&self) -> String {
        self.process.said()
    }

    /// Has the daemon reload its configuration.
    pub(crate) fn reload(&mut self) {
        self.process.signal(Signal::SIGHUP);
    }

    /// Stops the daemon with SIGTERM.
    pub(crate) fn stop(&mut self) {
        self.process.signal(Signal::SIGTERM);
        wait_until("the daemon has ended", || self.process.ended().is_some());
        let status = self.process.ended().unwrap();
        assert!(status.success(), "{status}:\n{}", self.said());
    }
}

/// All contents of `issued.json` observed since the start, by certificate.
#[derive(Default)]
struct Watched(BTreeMap<CertName, Vec<Issued>>);

#[derive(Deserialize)]
struct Record {
    certificates: BTreeMap<CertName, Issued>,
}

#[derive(Deserialize, Clone)]
#[serde(rename_all = "snake_case")]
struct Issued {
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    not_after: OffsetDateTime,
    sha256: String,
}

impl Issued {
    /// When this certificate is due by the settings of this test.
    fn due(&self) -> OffsetDateTime {
        self.at + (self.not_after - self.at) / 2
    }
}

impl Watched {
    fn look(&mut self, node: &ClusterNode) {
        let text = fs::read_to_string(node.path(ISSUE_RECORD)).unwrap();
        let record: Record = serde_json::from_str(&text).unwrap();
        for (name, issued) in record.certificates {
            let seen = self.0.entry(name).or_default();
            if seen.last().is_none_or(|last| last.sha256 != issued.sha256) {
                seen.push(issued);
            }
        }
    }

    /// Smallest number of renewals of a certificate.
    fn renewals(&self) -> usize {
        let each = self.0.iter().filter(|(name, _)| RENEWED.contains(name));
        each.map(|(_, seen)| seen.len() - 1).min().unwrap_or(0)
    }

    /// Median number of renewals: a certificate that could not be obtained for a while falls behind.
    fn rounds(&self) -> usize {
        let mut each: Vec<_> = RENEWED
            .iter()
            .map(|name| self.0.get(name).map_or(0, |seen| seen.len() - 1))
            .collect();
        each.sort_unstable();
        each[each.len() / 2]
    }

    fn due(&self, name: CertName) -> OffsetDateTime {
        self.0[&name].last().unwrap().due()
    }

    /// When the largest number of certificates is due together: outages and kills shift single ones.
    fn most_due(&self) -> OffsetDateTime {
        let mut due = RENEWED.map(|name| self.due(name));
        due.sort_unstable();
        let together = |first: &OffsetDateTime| {
            let group = due
                .iter()
                .filter(|due| (*first..=*first + LEAD_TIME).contains(*due));
            group.count()
        };
        // max_by_key returns the last of equal groups, which is the earliest here.
        due.into_iter().rev().max_by_key(together).unwrap()
    }

    fn table(&self) -> String {
        let mut table = String::new();
        for (name, seen) in &self.0 {
            let left = seen.windows(2).map(|pair| pair[0].not_after - pair[1].at);
            let least = left.min().unwrap_or_default().as_seconds_f64();
            table += &format!(
                "{name}: {} renewals, the latest {least:.1} s before the end\n",
                seen.len() - 1
            );
        }
        table
    }

    /// Delays from due to installed, and from due to served.
    fn delays(&self, seen: &Seen) -> String {
        let mut installed = Vec::new();
        for renewals in self.0.values() {
            let pairs = renewals.windows(2);
            installed.extend(pairs.map(|pair| (pair[1].at - pair[0].due()).as_seconds_f64()));
        }
        let mut text = format!("from due to installed: {}\n", spread(installed));
        for (name, port) in SERVED {
            let mut delays = Vec::new();
            for pair in self.0[&name].windows(2) {
                let first = seen.served[port]
                    .iter()
                    .find(|(_, of)| *of == pair[1].sha256);
                let (at, _) = first.unwrap_or_else(|| panic!("no {name} was served on :{port}"));
                delays.push(at - unix(pair[0].due()));
            }
            text += &format!("from due to served on :{port}: {}\n", spread(delays));
        }
        text
    }
}

fn unix(time: OffsetDateTime) -> f64 {
    time.unix_timestamp_nanos() as f64 / 1e9
}

fn spread(mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    format!(
        "{} times, median {:.1} s, longest {:.1} s",
        seconds.len(),
        seconds[seconds.len() / 2],
        seconds.last().unwrap()
    )
}

/// The clients on a node.
struct Load {
    process: Server,
    result: PathBuf,
}

/// The result of the clients; see `load.py`.
#[derive(Deserialize)]
struct Seen {
    seconds: f64,
    clients: BTreeMap<String, Client>,
    /// Times of lease renewals, by component.
    leases: BTreeMap<String, Vec<f64>>,
    /// From when on each certificate was served, by port.
    served: BTreeMap<String, Vec<(f64, String)>>,
    written: u64,
    watched: u64,
    torn: Vec<f64>,
}

#[derive(Deserialize)]
struct Client {
    requests: u64,
    failures: Vec<(f64, String)>,
    median: f64,
    slowest: f64,
}

impl Load {
    /// Starts the clients, each of which waits for `interval` seconds between two requests.
    fn start(cluster: &Cluster, node: &ClusterNode, interval: &str) -> Self {
        let admin = cluster.admin();
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "spec": {"expirationSeconds": 14400}});
        let mut token = Value::Null;
        wait_until("there is a service account", || {
            let (status, made) = admin.post(path, &request);
            token = made["status"]["token"].clone();
            status == 201
        });
        // The owner of the token may only watch.
        let watcher = json!({"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": "load"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]});
        // kubeadm's last step, which gives admin.conf its rights.
        let administrators = json!({"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": "kubeadm:cluster-admins"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "Group", "name": "kubeadm:cluster-admins",
                "apiGroup": "rbac.authorization.k8s.io"}]});
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        let counter = json!({"kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": format!("counter-{}", node.name())}, "data": {"count": "0"}});
        for (path, object) in [
            (bindings, watcher),
            (bindings, administrators),
            ("/api/v1/namespaces/default/configmaps", counter),
        ] {
            let (status, made) = admin.post(path, &object);
            assert!(status == 201 || status == 409, "{made}");
        }
        node.write("/run/load/token", token.as_str().unwrap());
        let mut python = node.command("python3");
        python.args([LOAD_SCRIPT, "/run/load/token", "/run/load/result", interval]);
        Load {
            process: Server::start(python, &node.dir().join("load.log")),
            result: node.path("/run/load/result"),
        }
    }

    fn end(mut self) -> Seen {
        self.process.signal(Signal::SIGTERM);
        wait_until("the clients have ended", || self.process.ended().is_some());
        let result = fs::read(&self.result).unwrap_or_else(|_| panic!("{}", self.process.said()));
        serde_json::from_slice(&result).unwrap()
    }
}

impl Seen {
    fn print(&self) {
        let mut requests = 0;
        for (name, client) in &self.clients {
            println!(
                "{name}: {} requests, {} failures, median {:.0} ms, slowest {:.0} ms",
                client.requests,
                client.failures.len(),
                client.median * 1e3,
                client.slowest * 1e3
            );
            requests += client.requests;
        }
        println!(
            "{requests} requests in {:.0} s, {:.0} a second; {} of {} writes seen by the watch; {} moments between two files of a pair",
            self.seconds,
            requests as f64 / self.seconds,
            self.watched,
            self.written,
            self.torn.len()
        );
        for (component, renewals) in &self.leases {
            println!(
                "{component}: its lease was renewed {} times, the longest pause is {:.1} s",
                renewals.len(),
                longest_pause(renewals)
            );
        }
    }

    /// Asserts that no request failed, and that clients met at most `torn` moments between the two files of a pair.
    fn assert_nothing_failed(&self, torn: usize) {
        for (name, client) in &self.clients {
            assert!(
                client.failures.is_empty(),
                "{name}: {} failures: {:?}",
                client.failures.len(),
                &client.failures[..client.failures.len().min(10)]
            );
        }
        assert!(self.torn.len() <= torn, "{:?}", self.torn);
        assert_eq!(self.watched, self.written);
        assert!(self.written > 100);
        for (component, renewals) in &self.leases {
            let pause = longest_pause(renewals);
            assert!(pause < 30.0, "{component} had no leader for {pause:.0} s");
        }
    }
}

fn longest_pause(moments: &[f64]) -> f64 {
    let pauses = moments.windows(2).map(|pair| pair[1] - pair[0]);
    pauses.fold(0.0, f64::max)
}

/// Asserts that components which reload their certificates were not restarted. Two renewals may share a restart if the
/// daemon was killed between them.
fn assert_only_non_reloading_restarted(pods: &StaticPods) {
    let starts = pods.starts();
    for component in ["kube-controller-manager", "kube-scheduler"] {
        let of = |start: &&Start| start.component == component && start.why == Why::Changed;
        let restarts = starts.iter().filter(of);
        let took: Vec<_> = restarts
            .map(|start| (start.not_ready - start.at).as_secs_f64())
            .collect();
        assert!(
            took.len() > RENEWALS * 2 / 3,
            "{component}: {} restarts",
            took.len()
        );
        println!("{component}: not ready for {}", spread(took));
    }
    for start in &starts {
        let may = ["kube-controller-manager", "kube-scheduler"];
        assert!(may.contains(&&*start.component), "{start:?}");
        if start.why != Why::Changed {
            println!("{}: restarted: {:?}", start.component, start.why);
        }
    }
}

/// Verifies all certificates with OpenSSL on the node.
fn assert_everything_verifies(node: &ClusterNode) {
    let under = |authority: &str, files: &[String]| {
        let authority = node.pki(authority);
        let mut openssl = std::process::Command::new("openssl");
        openssl
            .args(["verify", "-CAfile"])
            .arg(authority)
            .args(files);
        crate::node::Ran::of(&mut openssl).done();
    };
    let scratch = tempfile::tempdir().unwrap();
    for name in RENEWED {
        let authority = format!("{}.crt", name.authority().base_name());
        let file = if name.is_kubeconfig() {
            let text = fs::read_to_string(node.path(&format!("/etc/kubernetes/{name}"))).unwrap();
            let current = nodepki::kube::kubeconfig::Kubeconfig::parse(&text).unwrap();
            let current = current.current().unwrap();
            let file = scratch.path().join(name.as_str());
            fs::write(&file, current.certificate.unwrap()).unwrap();
            file
        } else {
            node.pki(name.base_name()).with_extension("crt")
        };
        under(&authority, &[file.display().to_string()]);
    }
}

/// Asserts that the real kubeadm reports the certificates.
fn assert_kubeadm_reads_certificates(node: &ClusterNode) {
    let config = &kubeadm_configuration();
    let table = node.kubeadm(&["certs", "check-expiration"], Some(config));
    table.done().says_not("MISSING");
    print!("{}", table.stdout);
    let json = ["certs", "check-expiration", "--output", "json"];
    let document = node.kubeadm(&json, Some(config));
    let document: Value = serde_json::from_str(&document.done().stdout).unwrap();
    assert_eq!(document["kind"], "CertificateExpirationInfo");
    let rows = document["certificates"].as_array().unwrap();
    assert_eq!(rows.len(), RENEWED.len());
    for row in rows {
        let name = row["name"].as_str().unwrap();
        assert_eq!(row["externallyManaged"], json!(true), "{name}");
        let left = row["residualTime"].as_i64().unwrap();
        let life = LIFETIME.as_secs().try_into().unwrap();
        assert!((1..=life).contains(&left), "{name}: {left} s");
        assert!(table.stdout.contains(name), "{name}");
    }
}

/// Asserts that kube-controller-manager fills a namespace and that kube-scheduler evaluates a Pod.
fn assert_controllers_work(cluster: &Cluster) {
    let admin = cluster.first().caller("/etc/kubernetes/admin.conf");
    let namespace = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "later"}});
    assert_eq!(admin.post("/api/v1/namespaces", &namespace).0, 201);
    wait_until("kube-controller-manager has filled the namespace", || {
        admin
            .get("/api/v1/namespaces/later/serviceaccounts/default")
            .0
            == 200
    });
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "nowhere"},
        "spec": {"containers": [{"name": "one", "image": "none"}]}});
    assert_eq!(admin.post("/api/v1/namespaces/later/pods", &pod).0, 201);
    wait_until("kube-scheduler has looked at the Pod", || {
        let (_, pod) = admin.get("/api/v1/namespaces/later/pods/nowhere");
        pod["status"]["conditions"][0]["type"] == "PodScheduled"
    });
}
