//! Kubeconfigs that name the files of their certificate and key, on a real control plane: kube-controller-manager and
//! kube-scheduler use a renewed pair without a restart, and are restarted once for each change of the form. The audit log of
//! kube-apiserver names the certificate of each request.

mod releases;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nodepki::kube::names::Authority;
use nodepki::text::hex;
use nodepki::x509::{CertificateAuthority, Chain, KeyAlgorithm, PrivateKey};
use serde_json::Value;

use crate::authority::{new_authority, new_key, trusted_in};
use crate::node::{self, NODEPKI, Node, Ran, copy_authorities};
use crate::reload::{CONTROLLERS, RESTART_RECORD, SCHEDULER};
use crate::rotation_cluster::Daemon;
use crate::servers::cluster::{Authorities, Cluster, ClusterNode, INIT};
use crate::servers::static_pods::StaticPods;
use crate::signing::now;
use crate::time::wait_until;

const POLICY: &str = "/etc/kubernetes/audit.yaml";
const AUDIT_LOG: &str = "/var/tmp/audit.log";
const KUBEADM_FILE: &str = "/run/kubeadm/kubeadm.yaml";
const APISERVER: &str = "kube-apiserver";
/// What kubeadm has to add to the manifest of kube-scheduler.
const VOLUME: &str = "{name: client-credentials, hostPath: /etc/kubernetes/pki/scheduler, mountPath: /etc/kubernetes/pki/scheduler, readOnly: true, pathType: DirectoryOrCreate}";

/// A control plane whose static pods restart when their manifests change, and whose API server records the certificate of
/// each request of the two components.
pub(crate) struct Plane {
    cluster: Cluster,
    pods: StaticPods,
}

impl Plane {
    /// Starts the control plane. `goaway` makes the API server close connections at random, like one that is restarted.
    pub(crate) fn start(goaway: bool) -> Self {
        let cluster = Cluster::made_of(&configuration(""), Authorities::Internal);
        let node = cluster.first();
        let pods = StaticPods::of(node);
        node.write(KUBEADM_FILE, &configuration(""));
        let rules = "[{level: Metadata, users: ['system:kube-scheduler', 'system:kube-controller-manager']}, {level: None}]";
        let policy = format!(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: {rules}\n"
        );
        node.write(POLICY, &policy);
        let manifest = format!("/etc/kubernetes/manifests/{APISERVER}.yaml");
        let before = fs::read_to_string(node.path(&manifest)).unwrap();
        let mut flags = vec![
            format!("--audit-policy-file={POLICY}"),
            format!("--audit-log-path={AUDIT_LOG}"),
        ];
        if goaway {
            flags.push("--goaway-chance=0.02".to_owned());
        }
        let flags: String = flags.iter().map(|flag| format!("    - {flag}\n")).collect();
        let program = format!("    - {APISERVER}\n");
        let after = before.replacen(&program, &format!("{program}{flags}"), 1);
        assert_ne!(after, before);
        node.write(&manifest, &after);
        let plane = Plane { cluster, pods };
        wait_until("kube-apiserver writes the audit log", || {
            plane.pods.restarts(APISERVER) == 1 && plane.node().path(AUDIT_LOG).exists()
        });
        plane.wait_until_ready();
        plane.configure("embedded");
        plane
    }

    pub(crate) fn node(&self) -> &ClusterNode {
        self.cluster.first()
    }

    /// Writes the settings.
    pub(crate) fn configure(&self, credentials: &str) {
        let text = format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
             signers: {{own: {{local: {{directory: /etc/kubernetes/pki}}}}}}\n\
             kubeconfig: {{credentials: {credentials}}}\n\
             reload: {{lease: {{duration: 10s}}, timeout: 2m, hooks: [{{on: [kubelet], command: [/bin/true]}}]}}\n"
        );
        self.node().write("/etc/nodepki/config.yaml", &text);
    }

    /// Mounts the directory of the pair in kube-scheduler, as the messages say.
    pub(crate) fn mount(&self) {
        let before = self.restarts();
        let text = configuration(&format!(", extraVolumes: [{VOLUME}]"));
        self.node().write(KUBEADM_FILE, &text);
        let phase = ["init", "phase", "control-plane", "scheduler"];
        self.node().kubeadm(&phase, Some(&text)).done();
        wait_until("kube-scheduler has the new manifest", || {
            self.restarts()[1] == before[1] + 1
        });
        self.wait_until_ready();
    }

    /// Gives kube-controller-manager a file for signing that is not the bundle, as a CA change requires.
    fn separate_signing_certificate(&self) {
        let before = self.restarts();
        fs::copy(self.node().pki("ca.crt"), self.node().pki("ca-signing.crt")).unwrap();
        let manifest = format!("/etc/kubernetes/manifests/{CONTROLLERS}.yaml");
        let text = fs::read_to_string(self.node().path(&manifest)).unwrap();
        let flag = "--cluster-signing-cert-file=/etc/kubernetes/pki/ca";
        let changed = text.replace(&format!("{flag}.crt"), &format!("{flag}-signing.crt"));
        assert_ne!(changed, text);
        self.node().write(&manifest, &changed);
        wait_until("kube-controller-manager has the new manifest", || {
            self.restarts()[0] == before[0] + 1
        });
        self.wait_until_ready();
    }

    fn wait_until_ready(&self) {
        for component in [APISERVER, CONTROLLERS, SCHEDULER] {
            wait_until(&format!("{component} is ready"), || {
                self.node().is_ready(component)
            });
        }
    }

    pub(crate) fn renew(&self, arguments: &[&str]) -> Ran {
        // Removes the cool-down of recent certificates.
        let _ = fs::remove_file(self.node().path("/var/lib/nodepki/issued.json"));
        let common = ["renew", "--clock-wait", "0s"];
        self.node().nodepki(&[&common[..], arguments].concat())
    }

    /// Runs `renew` and kills it once the first files are on disk.
    fn renew_killed(&self) {
        let _ = fs::remove_file(self.node().path("/var/lib/nodepki/issued.json"));
        let mut killed = self.node().command("env");
        killed.args(["NODEPKI_FAILPOINT=run:committed", NODEPKI, "--root", "/"]);
        let killed = killed
            .args(["renew", "--clock-wait", "0s"])
            .output()
            .unwrap();
        assert!(!killed.status.success(), "{}", Ran::from(killed).said());
        assert!(self.node().path(RESTART_RECORD).exists());
    }

    /// Writes an address without a server to controller-manager.conf.
    fn break_controllers(&self) {
        let conf = self.conf("controller-manager");
        let broken = conf.replace("https://192.0.2.11:6443", "https://192.0.2.11:1");
        assert_ne!(broken, conf);
        self.node()
            .write("/etc/kubernetes/controller-manager.conf", &broken);
    }

    /// Number of restarts of the controllers and of the scheduler.
    pub(crate) fn restarts(&self) -> [usize; 2] {
        [CONTROLLERS, SCHEDULER].map(|name| self.pods.restarts(name))
    }

    fn conf(&self, component: &str) -> String {
        fs::read_to_string(
            self.node()
                .path(&format!("/etc/kubernetes/{component}.conf")),
        )
        .unwrap()
    }

    /// Returns the fingerprint of the certificate in the file of a component.
    pub(crate) fn fingerprint(&self, component: &str) -> String {
        let file = self.node().pki(&format!("{component}/client.crt"));
        let chain = Chain::from_pem(&fs::read(file).unwrap()).unwrap();
        hex(&chain.leaf().fingerprint())
    }

    /// Returns the fingerprints of the certificates with which a component has sent requests.
    pub(crate) fn used(&self, component: &str) -> BTreeSet<String> {
        let user = format!("system:kube-{component}");
        credentials(&self.audit_log(0), &user)
    }

    /// Returns the audit log from this byte on.
    fn audit_log(&self, from: usize) -> String {
        let log = fs::read_to_string(self.node().path(AUDIT_LOG)).unwrap();
        log[from..].to_owned()
    }
}

/// Returns the fingerprints of the certificates with which a user has sent requests, by an audit log.
fn credentials(log: &str, user: &str) -> BTreeSet<String> {
    let events = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events
        .filter(|event| event["user"]["username"] == user)
        .filter_map(|event| {
            let id = &event["user"]["extra"]["authentication.kubernetes.io/credential-id"][0];
            Some(id.as_str()?.strip_prefix("X509SHA256=")?.to_owned())
        })
        .collect()
}

/// Returns kubeadm's configuration, with further settings of the scheduler. A restarted component becomes leader soon.
fn configuration(scheduler: &str) -> String {
    let leases = "extraArgs: [{name: leader-elect-lease-duration, value: 20s}, \
                  {name: leader-elect-renew-deadline, value: 15s}, {name: leader-elect-retry-period, value: 200ms}]";
    format!("{INIT}controllerManager: {{{leases}}}\nscheduler: {{{leases}{scheduler}}}\n")
}

#[test]
fn components_use_renewed_pair_without_restart() {
    let plane = Plane::start(true);
    let node = plane.node();

    // kubeadm mounts the directory in kube-controller-manager, but not in kube-scheduler.
    plane.configure("file");
    let problem = "kubeconfig.credentials is file, but kube-scheduler does not mount the directory /etc/kubernetes/pki/scheduler";
    for command in [&["config", "check"][..], &["plan"], &["preflight"]] {
        node.nodepki(command).says(problem).says(VOLUME);
    }
    let scheduler = plane.conf("scheduler");
    let ran = plane.renew(&[]);
    ran.done()
        .row_says(CONTROLLERS, "was restarted for controller-manager.conf")
        .row_says(
            "controller-manager.conf",
            "it contains its certificate and key instead of naming",
        );
    assert_eq!(plane.restarts(), [1, 0]);
    assert_eq!(plane.conf("scheduler"), scheduler);
    plane.mount();
    node.nodepki(&["config", "check"])
        .done()
        .says_not("kube-scheduler");
    plane
        .renew(&[])
        .done()
        .row_says(SCHEDULER, "was restarted for scheduler.conf");
    assert_eq!(plane.restarts(), [1, 2]);
    plane.renew(&[]).done();
    assert_eq!(plane.restarts(), [1, 2]);
    for component in ["controller-manager", "scheduler"] {
        let conf = plane.conf(component);
        for file in ["certificate", "key"] {
            let extension = if file == "key" { "key" } else { "crt" };
            let path = format!("/etc/kubernetes/pki/{component}/client.{extension}");
            assert!(conf.contains(&format!("client-{file}: {path}\n")), "{conf}");
            assert!(!conf.contains(&format!("client-{file}-data")));
        }
        let key = node.pki(&format!("{component}/client.key"));
        assert_eq!(
            fs::metadata(key).unwrap().permissions().mode() & 0o7777,
            0o600
        );
    }
    let status = node.nodepki(&["status", "-o", "json"]);
    status.says("/etc/kubernetes/pki/scheduler/client.crt");
    node.nodepki(&["doctor"]).says_not("kubeconfig-by-file");
    // kubeadm reads embedded certificates only (`kubeConfigReadWriter`).
    let table = node.kubeadm(&["certs", "check-expiration"], Some(&configuration("")));
    table
        .ended(1)
        .says("does not have an embedded client certificate");

    // A renewal.
    for component in ["controller-manager", "scheduler"] {
        let old = plane.fingerprint(component);
        wait_until("the first pair is in use", || {
            plane.used(component).contains(&old)
        });
    }
    let confs = ["controller-manager", "scheduler"].map(|component| plane.conf(component));
    let ran = plane.renew(&["--name", "controller-manager.conf,scheduler.conf"]);
    ran.done().row_says("scheduler.conf", "rekeyed");
    for (component, conf) in ["controller-manager", "scheduler"].into_iter().zip(&confs) {
        assert_eq!(plane.conf(component), *conf);
        let new = plane.fingerprint(component);
        wait_until("the new pair is in use", || {
            plane.used(component).contains(&new)
        });
    }
    assert_eq!(plane.restarts(), [1, 2]);
    assert!(!node.path(RESTART_RECORD).exists());

    // The CA certificates are embedded in both forms, so a change of the CA restarts both.
    plane.separate_signing_certificate();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let year = Duration::from_secs(365 * 86_400);
    let new = CertificateAuthority::self_signed("new-ca", key, now(), year).unwrap();
    node.write("/etc/nodepki/new.crt", &new.bundle().to_pem());
    let new = ["--certificate", "/etc/nodepki/new.crt"];
    let stage = ["authority", "stage", "ca"];
    node.nodepki(&[&stage[..], &new].concat()).done();
    assert_eq!(plane.restarts(), [3, 3]);
    node.nodepki(&[&stage[..], &["--undo"]].concat()).done();
    assert_eq!(plane.restarts(), [4, 4]);
    assert_eq!(plane.conf("scheduler"), confs[1]);
    assert_eq!(plane.pods.crashes(), []);

    // The way back.
    plane.configure("embedded");
    plane.renew(&[]).done();
    assert_eq!(plane.restarts(), [5, 5]);
    for component in ["controller-manager", "scheduler"] {
        assert!(plane.conf(component).contains("client-key-data"));
        for file in ["client.crt", "client.key"] {
            let file = node.pki(component).join(file);
            assert!(!file.exists(), "{}", file.display());
        }
    }
}

#[test]
fn daemon_names_pair_once_manifest_mounts_it() {
    let plane = Plane::start(false);
    plane.configure("file");
    let mut daemon = Daemon::start(plane.node());
    let names_pair = |component: &str| plane.conf(component).contains("client-certificate: ");
    wait_until("the daemon changes controller-manager.conf", || {
        daemon.is_running();
        names_pair("controller-manager") && plane.restarts()[0] == 1
    });
    assert!(!names_pair("scheduler"));
    plane.mount();
    wait_until("the daemon changes scheduler.conf", || {
        daemon.is_running();
        names_pair("scheduler") && plane.restarts() == [1, 2]
    });
    daemon.stop();
}

#[test]
fn rolls_back_to_embedded_credentials() {
    let plane = Plane::start(false);
    let node = plane.node();
    plane.configure("file");
    let before = plane.conf("controller-manager");
    plane.renew_killed();
    let broken = plane.conf("controller-manager");
    assert!(broken.contains("client-certificate: "), "{broken}");
    plane.break_controllers();
    plane
        .renew(&["--name", "admin.conf"])
        .ended(65)
        .row_says(CONTROLLERS, "rolled back")
        .row_says(CONTROLLERS, "with the old files it is ready");
    assert_eq!(plane.conf("controller-manager"), before);
    assert!(!node.pki("controller-manager/client.key").exists());
    let restarts = plane.restarts();
    // It is not tried again until an administrator says so.
    plane.renew(&[]).ended(65).row_says(
        "controller-manager.conf",
        "did not become ready with the last certificate",
    );
    assert_eq!(plane.restarts(), restarts);
    plane.renew(&["--name", "controller-manager.conf"]).done();
    assert!(
        plane
            .conf("controller-manager")
            .contains("client-certificate: ")
    );
    assert_eq!(plane.restarts(), [restarts[0] + 1, restarts[1]]);

    // The former kubeconfig names a certificate that has expired since.
    plane.configure("embedded");
    plane.renew_killed();
    plane.break_controllers();
    let year = Duration::from_secs(365 * 86_400);
    let begin = now() - 2 * year;
    let expired = CertificateAuthority::self_signed("expired", new_key(), begin, year).unwrap();
    let file = "/etc/kubernetes/pki/controller-manager/client.crt";
    node.write(file, &expired.bundle().to_pem());
    let why = "the certificate of the former /etc/kubernetes/controller-manager.conf expired at ";
    plane
        .renew(&["--name", "admin.conf"])
        .ended(75)
        .row_says(CONTROLLERS, "the new files are kept")
        .row_says(CONTROLLERS, why);
    assert!(plane.conf("controller-manager").contains("client-key-data"));
}

const PAIR: [&str; 2] = [
    "/etc/kubernetes/pki/scheduler/client.crt",
    "/etc/kubernetes/pki/scheduler/client.key",
];
const SCHEDULER_CONF: &str = "/etc/kubernetes/scheduler.conf";

/// Returns kubeadm's configuration of a node that is not set up yet, with the volume and further settings.
fn with_volume(more: &str) -> String {
    format!(
        "{}scheduler: {{extraVolumes: [{VOLUME}]}}\n{more}",
        node::INIT
    )
}

/// Runs a command with the local signer.
fn locally(node: &Node, command: &[&str], more: &[&str]) -> Ran {
    let _ = fs::remove_file(node.path("/var/lib/nodepki/issued.json"));
    let config = node.outside("config.yaml");
    let config = ["--config", config.to_str().unwrap(), "--clock-wait", "0s"];
    Ran::of(&mut node.with_local(command, &[&config, more].concat()))
}

/// Returns the restarts that were recorded, and removes the record, as a reload would.
fn recorded_restarts(node: &Node) -> Vec<Value> {
    let path = node.path(RESTART_RECORD);
    let record = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    let record: Value = serde_json::from_str(&record).unwrap_or_default();
    record["restarts"].as_array().cloned().unwrap_or_default()
}

#[test]
fn installs_pair_before_kubeadm_writes_manifests() {
    let node = Node::of(&with_volume(""));
    node.settings("kubeconfig: {credentials: file}\n");
    locally(&node, &["bootstrap"], &[])
        .done()
        .says_not("warning");
    let conf = node.read(SCHEDULER_CONF);
    assert!(
        conf.contains(&format!("client-certificate: {}\n", PAIR[0])),
        "{conf}"
    );
    assert!(
        conf.contains(&format!("client-key: {}\n", PAIR[1])),
        "{conf}"
    );
    assert!(!conf.contains("client-key-data"));
    assert_eq!(PAIR.map(|path| node.mode(path)), [0o644, 0o600]);
    for complete in ["admin.conf", "super-admin.conf", "kubelet.conf"] {
        let conf = node.read(format!("/etc/kubernetes/{complete}"));
        assert!(conf.contains("client-key-data"), "{complete}");
    }
    locally(&node, &["bootstrap"], &[])
        .done()
        .row_says("scheduler.conf", "kept");

    // An open key and an own text of the kubeconfig, which the component would have to read again.
    node.set_mode(PAIR[1], 0o644);
    node.write(
        SCHEDULER_CONF,
        format!("# {}\n{conf}", "by an administrator"),
    );
    locally(&node, &["bootstrap"], &[])
        .done()
        .row_says("scheduler.conf", "the key is world-readable (mode 0644)");
    assert_eq!(PAIR.map(|path| node.mode(path)), [0o644, 0o600]);
    assert!(
        node.read(SCHEDULER_CONF)
            .starts_with("# by an administrator\n")
    );

    // The component may read the files until it is restarted.
    node.settings("");
    locally(&node, &["bootstrap"], &[])
        .done()
        .row_says("scheduler.conf", "instead of embedded certificate and key");
    assert!(node.read(SCHEDULER_CONF).contains("client-key-data"));
    assert!(PAIR.iter().all(|path| node.path(path).exists()));
    let record = node.read(RESTART_RECORD);
    assert!(record.contains(SCHEDULER), "{record}");
}

#[test]
fn requests_restart_for_pair_that_expires_before_component_reads_it() {
    for (validity, expected) in [("1h", false), ("5m", true)] {
        let node = Node::of(&with_volume(&format!(
            "certificateValidityPeriod: {validity}\n"
        )));
        node.settings("kubeconfig: {credentials: file}\n");
        locally(&node, &["bootstrap"], &[]).done();
        let before = node.read(PAIR[0]);
        locally(&node, &["renew"], &["--name", "scheduler.conf"]).done();
        assert_ne!(node.read(PAIR[0]), before);
        let restarts = recorded_restarts(&node);
        let components: Vec<_> = restarts.iter().map(|one| &one["component"]).collect();
        assert_eq!(components == [SCHEDULER], expected, "{restarts:?}");
        if expected {
            let previous = restarts[0]["previous"].as_array().unwrap();
            let paths: BTreeSet<_> = previous.iter().map(|one| one["path"].as_str()).collect();
            assert_eq!(paths.len(), 2, "{previous:?}");
        }
    }
}

#[test]
fn requests_restart_for_pair_of_ca_that_may_be_retired() {
    let node = Node::of(&with_volume(""));
    node.settings("kubeconfig: {credentials: file}\n");
    locally(&node, &["bootstrap"], &[]).done();
    let new = new_authority(&node, Authority::Ca, new_key());
    let new = ["--certificate", new.to_str().unwrap()];
    locally(&node, &["authority", "stage", "ca"], &new).ended(75);
    let restarted = |node: &Node| -> BTreeSet<String> {
        let restarts = recorded_restarts(node).into_iter();
        let names = restarts.map(|one| one["component"].as_str().unwrap().to_owned());
        names.filter(|name| *name != "kubelet").collect()
    };
    let both = BTreeSet::from([CONTROLLERS, SCHEDULER].map(str::to_owned));
    assert_eq!(restarted(&node), both);

    copy_authorities([Authority::Ca], &node.outside("new"), &node.ca());
    let before = node.read(PAIR[0]);
    locally(
        &node,
        &["authority", "activate", "ca"],
        &["--all-nodes-staged"],
    )
    .done_or_temporary();
    assert_ne!(node.read(PAIR[0]), before);
    let conf = node.read(SCHEDULER_CONF);
    assert!(conf.contains(PAIR[0]), "{conf}");
    assert_eq!(trusted_in(&conf).len(), 2);
    assert_eq!(restarted(&node), both);

    locally(
        &node,
        &["renew"],
        &["--name", "controller-manager.conf,scheduler.conf"],
    )
    .done();
    assert_eq!(restarted(&node), BTreeSet::new());
}
