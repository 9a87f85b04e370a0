//! Clusters of the real kubeadm, kubelet, containerd and control plane, on nodes that boot with nodepki's package and
//! the user data of `cloud-init/`.
//!
//! ```text
//! cargo test --locked --test vm -- cluster [WORD...]    the scenarios or clusters with one of these names
//! ```
//!
//! CLUSTER/SCENARIO selects the scenario of one cluster, if several have a scenario of that name.
//!
//! Without a word the shorter scenarios run, with `all` every one. Scenarios run one after the other on the same
//! cluster; each leaves it working, and [`checks`] then verifies all nodes. A chosen scenario includes the foundation
//! scenarios of its cluster.
//!
//! `tests/run cluster` builds the inputs and passes their paths: NODEPKI_VM_IMAGE (vm-tests/image/build),
//! NODEPKI_CLUSTER_NODE (vm-tests/cluster/node/build), NODEPKI_VM_PACKAGE (the .deb) and NODEPKI_TEST_SERVERS (Kubernetes'
//! programs and OpenBao). The program runs in its own namespaces: network, mounts and processes end with it.
//!
//! Four nodes use about 100 inotify instances of the host's root user, and Linux allows 128 by default: two parallel runs
//! need a larger `fs.inotify.max_user_instances`, without which containerd or the kubelet fails ("too many open files").

mod authority;
mod checks;
mod load;
mod network;
mod node;
mod openbao;
mod runbook;
mod scenarios;
mod site;
mod user_data;

use std::fs;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use authority::{CertificateAuthorities, KeyKind};
use network::{LoadBalancer, address};
use node::{Node, Role};
use openbao::OpenBao;
use site::Site;
use user_data::Secrets;

use crate::bench::Tally;
use crate::machine::{MAX_WAIT, Machine};
use crate::system::run as output_of;
use crate::time::within;

/// Variable that marks the process inside the namespaces.
const INSIDE_VARIABLE: &str = "NODEPKI_CLUSTER_INSIDE";

/// Variable that keeps the nodes running after the scenarios, for inspection.
const HOLD_VARIABLE: &str = "NODEPKI_CLUSTER_HOLD";

/// The kind of signer of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signer {
    /// A folder on each node, which an outside machine reads.
    Directory,
    /// An OpenBao server with an AppRole for each node.
    OpenBao,
}

/// A cluster and its scenarios.
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    /// Version of Kubernetes.
    pub(crate) version: &'static str,
    pub(crate) signer: Signer,
    /// Kinds of the CAs' keys, in the order of [`authority::AUTHORITIES`].
    pub(crate) authority_keys: [KeyKind; 3],
    /// `encryptionAlgorithm` of the ClusterConfiguration.
    pub(crate) algorithm: KeyKind,
    /// Whether nodes, pods and services also have IPv6 addresses, provided that the kernel supports IPv6.
    pub(crate) is_dual_stack: bool,
    pub(crate) scenarios: &'static [Scenario],
}

/// Condition under which a scenario runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Whenever its cluster runs: other scenarios need it.
    Foundation,
    /// Without a word and with `all`.
    Always,
    /// With `all` only.
    All,
}

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) when: When,
    /// Description in the table.
    pub(crate) shows: &'static str,
    pub(crate) run: fn(&mut Cluster),
}

impl Scenario {
    fn is_named(&self, spec: &Spec, word: &str) -> bool {
        word == self.name || word.split_once('/') == Some((spec.name, self.name))
    }
}

/// A running cluster. Its nodes are killed when it is dropped.
pub(crate) struct Cluster<'a> {
    pub(crate) spec: &'static Spec,
    pub(crate) site: &'a Site,
    /// In the order of joining. Declared before the authorities, so nodes end first.
    pub(crate) nodes: Vec<Node>,
    pub(crate) authorities: CertificateAuthorities,
    /// The server of a cluster with [`Signer::OpenBao`].
    pub(crate) openbao: Option<OpenBao>,
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    tally: Arc<Tally>,
    _balancer: LoadBalancer,
}

impl<'a> Cluster<'a> {
    fn new(spec: &'static Spec, site: &'a Site) -> Self {
        site.make_images(spec.version);
        let authorities = CertificateAuthorities::start(
            site.path(&format!("authorities-{}", spec.name)),
            spec.authority_keys,
        );
        let openbao = match spec.signer {
            Signer::Directory => None,
            Signer::OpenBao => Some(OpenBao::start(site, spec.name)),
        };
        if spec.is_dual_stack && !network::has_ipv6() {
            println!(
                "    {}: the cluster is single-stack: the kernel has no IPv6 (/proc/net/if_inet6 is missing)",
                spec.name
            );
        }
        Cluster {
            spec,
            site,
            nodes: Vec::new(),
            authorities,
            openbao,
            requests: 0,
            failures: 0,
            tally: Arc::default(),
            _balancer: LoadBalancer::start(&site.root()),
        }
    }

    /// Boots the first control-plane node and waits until kubeadm has initialised the cluster.
    pub(crate) fn first(&mut self, name: &'static str) {
        let user_data = user_data::first(self, self.spec.version, name);
        self.boot(name, Role::ControlPlane, user_data);
        self.node(name).wait_until_joined();
        self.say(&format!("{name} has run kubeadm init"));
    }

    /// Boots a further node without waiting for it.
    pub(crate) fn boot_to_join(&mut self, name: &'static str, role: Role) {
        let secrets = self.secrets();
        let user_data = user_data::join(self, name, role, &secrets);
        self.boot(name, role, user_data);
    }

    /// As [`Cluster::boot_to_join`], while the signer does not answer.
    pub(crate) fn boot_to_join_without_signer(&mut self, name: &'static str, role: Role) {
        let secrets = self.secrets();
        let user_data = user_data::join(self, name, role, &secrets);
        self.set_signer_away(true);
        self.boot(name, role, user_data);
    }

    /// Stops or resumes answering requests.
    pub(crate) fn set_signer_away(&self, is_away: bool) {
        match &self.openbao {
            Some(openbao) => openbao.set_sealed(is_away),
            None => self.authorities.set_away(is_away),
        }
    }

    /// Returns the number of certificates issued so far.
    pub(crate) fn signed(&self) -> u64 {
        match &self.openbao {
            Some(openbao) => openbao.signed(),
            None => self.authorities.signed(),
        }
    }

    pub(crate) fn is_dual_stack(&self) -> bool {
        self.spec.is_dual_stack && network::has_ipv6()
    }

    pub(crate) fn join(&mut self, name: &'static str, role: Role) {
        self.boot_to_join(name, role);
        self.node(name).wait_until_joined();
        self.say(&format!("{name} has joined"));
    }

    /// As [`Cluster::first`] for a node that kubeadm creates; the outside machine takes over its CAs.
    pub(crate) fn first_by_kubeadm(&mut self, name: &'static str) {
        let user_data = user_data::first_by_kubeadm(self, name);
        self.boot(name, Role::ControlPlane, user_data);
        let node = self.node(name);
        node.wait_until_joined();
        let pki = node.machine.path("/etc/kubernetes/pki");
        self.authorities.take_over(&pki);
        self.say(&format!("kubeadm init has created {name} and its CAs"));
    }

    pub(crate) fn join_by_kubeadm(&mut self, name: &'static str, role: Role) {
        let node = &mut self.nodes[0];
        let token = node.done("kubeadm token create --ttl 1h 2>/dev/null");
        let upload = "kubeadm init phase upload-certs --upload-certs 2>/dev/null | tail -n 1";
        let secrets = Secrets {
            token: token.trim().to_owned(),
            certificate_key: node.done(upload).trim().to_owned(),
        };
        let user_data = user_data::join_by_kubeadm(self, role, &secrets);
        self.boot(name, role, user_data);
        self.node(name).wait_until_joined();
        self.say(&format!("kubeadm has joined {name}"));
    }

    fn boot(&mut self, name: &'static str, role: Role, user_data: String) {
        self.boot_with(self.spec.version, name, role, user_data);
    }

    /// Boots a node with kubeadm and kubelet of another version.
    pub(crate) fn boot_with(
        &mut self,
        version: &str,
        name: &'static str,
        role: Role,
        user_data: String,
    ) {
        let node = Node::new(
            self.site,
            self.tally.clone(),
            (name, role),
            (version, self.is_dual_stack()),
            user_data,
        );
        if let Some(openbao) = &self.openbao {
            let root = openbao.root_certificate();
            node.machine.put(openbao::ROOT_FILE, &root);
        }
        self.authorities.serve(&node.requests());
        self.nodes.push(node);
        self.node(name).boot();
    }

    /// Values that a joining node needs: the certificate key of the first node's user data, and a new token.
    pub(crate) fn secrets(&mut self) -> Secrets {
        let node = &mut self.nodes[0];
        let mut printed = |command: &str| node.done(command).trim().to_owned();
        Secrets {
            token: printed("kubeadm token create --ttl 1h 2>/dev/null"),
            certificate_key: printed("cat /etc/nodepki/certificate-key"),
        }
    }

    /// Ends a machine permanently, and removes its etcd member and its Node object.
    pub(crate) fn lose(&mut self, name: &'static str) {
        self.switch_off(name);
        let etcdctl = "etcdctl --cacert /etc/kubernetes/pki/etcd/ca.crt --cert /etc/kubernetes/pki/etcd/peer.crt \
                       --key /etc/kubernetes/pki/etcd/peer.key";
        let at = self.nodes[0].name;
        let exec = format!("exec --namespace kube-system etcd-{at} -- {etcdctl}");
        let members = self.kubectl(at, &format!("{exec} member list")).unwrap();
        for member in members.lines() {
            let fields: Vec<_> = member.split(", ").collect();
            if fields[2] == name {
                self.kubectl(at, &format!("{exec} member remove {}", fields[0]))
                    .unwrap();
            }
        }
        self.kubectl(at, &format!("delete node {name}")).unwrap();
    }

    /// Ends a machine; its name can be used again.
    pub(crate) fn switch_off(&mut self, name: &'static str) {
        self.nodes.retain(|node| node.name != name);
    }

    /// Runs a command on several nodes at the same time, and then another one until it succeeds on each. Status 75 is not a
    /// failure: the Lease belongs to another node, or the signer has not answered yet.
    pub(crate) fn finish(&mut self, names: &[&str], first: &str, again: &str) {
        thread::scope(|scope| {
            for node in &mut self.nodes {
                if names.contains(&node.name) {
                    scope.spawn(|| {
                        let ran = node.machine.run(first);
                        let name = node.name;
                        assert!([0, 75].contains(&ran.status), "{name}: {first}: {ran:?}");
                        if ran.status != 0 || first != again {
                            node.machine.until(again);
                        }
                    });
                }
            }
        });
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut Node {
        let found = self.nodes.iter_mut().find(|node| node.name == name);
        found.unwrap_or_else(|| panic!("the cluster has no node {name}"))
    }

    /// Returns the names of the nodes with a role.
    pub(crate) fn names(&self, role: Role) -> Vec<&'static str> {
        let nodes = self.nodes.iter().filter(|node| node.role == role);
        nodes.map(|node| node.name).collect()
    }

    /// Runs kubectl on this machine as the administrator, against the API server of a control-plane node.
    pub(crate) fn kubectl(&self, at: &str, arguments: &str) -> Result<String, String> {
        let mut command = self.kubectl_command(at);
        let output = command.args(arguments.split_whitespace()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(text),
            false => Err(format!(
                "kubectl {arguments} at {at}: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }

    pub(crate) fn kubectl_command(&self, at: &str) -> Command {
        let mut command = Command::new(self.site.program("kubectl", site::CURRENT));
        command
            .arg(format!("--kubeconfig={}", self.admin_conf().display()))
            .arg(format!("--server=https://{}:6443", address(at)))
            .arg("--request-timeout=20s")
            .env("HOME", self.site.path("home"));
        command
    }

    /// Returns the admin.conf of the first node.
    pub(crate) fn admin_conf(&self) -> PathBuf {
        self.nodes[0].machine.path("/etc/kubernetes/admin.conf")
    }

    /// Waits until a condition holds; its error says what is missing.
    pub(crate) fn until(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Self) -> Result<(), String>,
    ) {
        if let Err(missing) = within(MAX_WAIT, || condition(self)) {
            panic!("{what}: not in time: {missing}");
        }
    }

    pub(crate) fn say(&self, what: &str) {
        println!("    {}: {what}", self.spec.name);
    }

    /// Prints the last lines of the nodes' consoles and journals after a failure.
    fn print_logs(&mut self) {
        for node in &mut self.nodes {
            let log = fs::read(node.machine.dir().join("log")).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<_> = log.lines().collect();
            println!(
                "--- {}: the last lines of its console\n{}",
                node.name,
                lines[lines.len().saturating_sub(10)..].join("\n")
            );
            let said = catch_unwind(AssertUnwindSafe(|| {
                node.machine
                    .run(
                        "journalctl --no-pager -n 40 -t nodepki -t kubeadm; journalctl --no-pager -n 15 -u kubelet -p warning;
                         tail -n 20 /var/log/cloud-init-output.log",
                    )
                    .said
            }));
            println!("{}", said.unwrap_or_default());
        }
    }
}

/// Runs the chosen scenarios in new namespaces.
pub(crate) fn run(words: &[String]) -> ExitCode {
    if std::env::var_os(INSIDE_VARIABLE).is_none() {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "--propagation=private", "--"]);
        command.arg(std::env::current_exe().unwrap()).arg("cluster");
        let error = command.args(words).env(INSIDE_VARIABLE, "yes").exec();
        eprintln!("unshare: {error}; `tests/run cluster` installs it");
        return ExitCode::FAILURE;
    }
    let has = |name: &str| words.iter().any(|word| word == name);
    for word in words.iter().filter(|word| *word != "all") {
        let known = scenarios::ALL.iter().any(|spec| {
            let mut scenarios = spec.scenarios.iter();
            spec.name == word || scenarios.any(|one| one.is_named(spec, word))
        });
        if !known {
            eprintln!("{word} is neither a cluster nor a scenario");
            return ExitCode::FAILURE;
        }
    }
    let wanted = |spec: &Spec, scenario: &Scenario| {
        has("all")
            || has(spec.name)
            || words.iter().any(|word| scenario.is_named(spec, word))
            || (words.is_empty() && scenario.when == When::Always)
    };
    let begin = Instant::now();
    let site = Site::open();
    let mut rows = Vec::new();
    let mut left_out = Vec::new();
    for spec in scenarios::ALL {
        let is_run = spec.scenarios.iter().any(|one| wanted(spec, one));
        let (chosen, others): (Vec<_>, Vec<_>) = spec
            .scenarios
            .iter()
            .partition(|one| wanted(spec, one) || (is_run && one.when == When::Foundation));
        left_out.extend(
            others
                .iter()
                .map(|scenario| format!("{}/{}", spec.name, scenario.name)),
        );
        if is_run {
            rows.extend(run_cluster(spec, &site, &chosen));
        }
    }
    if !left_out.is_empty() {
        println!(
            "LEFT OUT, `tests/run cluster all` has them: {}",
            left_out.join(", ")
        );
    }
    println!("\n{HEADER}");
    for row in &rows {
        println!("{row}");
    }
    println!("{:.0} s", begin.elapsed().as_secs_f32());
    match rows.iter().all(|row| row.starts_with("ok")) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

const HEADER: &str =
    "      cluster    scenario              nodes boots cuts requests failed     time  shows";

/// Runs the scenarios of one cluster from its first node on. After a failure the remaining ones are not run and fail.
fn run_cluster(spec: &'static Spec, site: &Site, chosen: &[&Scenario]) -> Vec<String> {
    let mut cluster = Cluster::new(spec, site);
    let mut rows = Vec::new();
    let mut good = true;
    for scenario in chosen {
        let (boots, cuts) = (cluster.tally.boots(), cluster.tally.cuts());
        (cluster.requests, cluster.failures) = (0, 0);
        let begin = Instant::now();
        if good {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                (scenario.run)(&mut cluster);
                checks::check(&mut cluster);
            }));
            good = ran.is_ok();
            if !good {
                cluster.print_logs();
            }
        }
        let row = format!(
            "{:4}  {:10} {:21} {:5} {:5} {:4} {:8} {:6} {:6.1} s  {}",
            if good { "ok" } else { "FAIL" },
            spec.name,
            scenario.name,
            cluster.nodes.len(),
            cluster.tally.boots() - boots,
            cluster.tally.cuts() - cuts,
            cluster.requests,
            cluster.failures,
            begin.elapsed().as_secs_f32(),
            scenario.shows,
        );
        println!("{row}");
        rows.push(row);
    }
    if std::env::var_os(HOLD_VARIABLE).is_some() {
        for node in &cluster.nodes {
            let socket = node.machine.shared().join("shell");
            println!(
                "    {}: socat - UNIX-CONNECT:{}",
                node.name,
                socket.display()
            );
        }
        println!("    {HOLD_VARIABLE} is set: the cluster runs until this program is ended");
        loop {
            thread::park();
        }
    }
    rows
}

/// Runs a program on this machine that must succeed.
fn shell(command: &str) -> String {
    output_of(Command::new("bash").args(["-euo", "pipefail", "-c", command]))
}
