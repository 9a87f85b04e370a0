//! Renewed certificates take effect on a real control plane: the two components that do not reload their kubeconfigs
//! are restarted once each, and the result is verified. Restarts are postponed or rolled back when required.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nodepki::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};
use serde_json::{Value, json};

use crate::join_control_plane::post_to_etcd;
use crate::node::{NODEPKI, Ran};
use crate::rotation_cluster::Daemon;
use crate::servers::bin;
use crate::servers::cluster::{Authorities, Cluster, ClusterNode, INIT};
use crate::servers::static_pods::{Start, StaticPods};
use crate::signing::now;
use crate::time::wait_until;

pub(crate) const CONTROLLERS: &str = "kube-controller-manager";
pub(crate) const SCHEDULER: &str = "kube-scheduler";
pub(crate) const RESTART_RECORD: &str = "/var/lib/nodepki/restarts.json";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// A control plane whose static pods restart when their manifests change.
pub(crate) struct Plane {
    pub(crate) cluster: Cluster,
    pods: StaticPods,
    signer: &'static str,
}

impl Plane {
    /// Starts a control plane whose settings have the lines `signer` for signers and authorities.
    pub(crate) fn of(authorities: Authorities, signer: &'static str) -> Self {
        let cluster = Cluster::start(authorities);
        let node = cluster.first();
        node.write("/run/kubeadm/kubeadm.yaml", INIT);
        let pods = StaticPods::of(node);
        let plane = Plane {
            cluster,
            pods,
            signer,
        };
        plane.configure("");
        plane
    }

    /// Starts a control plane with its CA keys.
    fn with_own_authorities() -> Self {
        let signer = "signers: {own: {local: {directory: /etc/kubernetes/pki}}}\n";
        Self::of(Authorities::Internal, signer)
    }

    pub(crate) fn node(&self) -> &ClusterNode {
        self.cluster.first()
    }

    /// Writes the settings, with further keys of the block `reload`.
    pub(crate) fn configure(&self, reload: &str) {
        let text = format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n{}reload:\n  lease: {{duration: 10s}}\n{reload}",
            self.signer
        );
        self.node().write("/etc/nodepki/config.yaml", &text);
    }

    /// Removes the cool-down of recent certificates from the record.
    fn end_cool_down(&self) {
        let _ = fs::remove_file(self.node().path("/var/lib/nodepki/issued.json"));
    }

    fn renew(&self, arguments: &[&str]) -> Ran {
        if !arguments.is_empty() {
            self.end_cool_down();
        }
        let common = ["renew", "--clock-wait", "0s"];
        self.node().nodepki(&[&common[..], arguments].concat())
    }

    /// Runs `renew` and kills it once the new files and the record are on disk.
    fn renew_killed(&self, name: &str) {
        self.end_cool_down();
        let mut command = self.node().command("env");
        command.args(["NODEPKI_FAILPOINT=run:committed", NODEPKI, "--root", "/"]);
        command.args(["renew", "--clock-wait", "0s", "--name", name]);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{}", Ran::from(output).said());
        assert!(self.node().path(RESTART_RECORD).exists());
    }

    /// Returns every start of a static pod.
    pub(crate) fn starts(&self) -> Vec<Start> {
        self.pods.starts()
    }

    /// Number of restarts of the controllers, the scheduler, the API server and etcd.
    pub(crate) fn restarts(&self) -> [usize; 4] {
        [CONTROLLERS, SCHEDULER, "kube-apiserver", "etcd"].map(|name| self.pods.restarts(name))
    }

    fn conf(&self) -> String {
        fs::read_to_string(self.node().path("/etc/kubernetes/scheduler.conf")).unwrap()
    }

    /// Configures a hook that restarts kube-controller-manager and gives the Lease to `holder`, or to none.
    fn lose_lease_during_restart(&self, holder: &str) {
        const HOOK: &str = "/etc/nodepki/restart";
        self.configure(&format!(
            "  timeout: 20s\n  hooks: [{{on: [{CONTROLLERS}], command: [{HOOK}]}}]\n"
        ));
        let patch = json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": 3600}});
        // The Lease is renewed every third of its 10 seconds.
        let script = format!(
            "#!/bin/sh\nset -e\n\
             echo \"# $(date +%s%N)\" >>/etc/kubernetes/manifests/{CONTROLLERS}.yaml\n\
             {} --kubeconfig=/etc/kubernetes/super-admin.conf --cache-dir=/var/tmp/kubectl --namespace=kube-system \
             patch lease nodepki-reload --type=merge --patch='{patch}'\n\
             sleep 5\n",
            bin("kubectl").display()
        );
        self.node().write(HOOK, &script);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.node().path(HOOK), mode).unwrap();
    }

    fn lease(&self) -> Value {
        let (status, lease) = self
            .cluster
            .admin()
            .get(&format!("{LEASES}/nodepki-reload"));
        assert_eq!(status, 200, "{lease}");
        lease
    }
}

#[test]
fn restarts_non_reloading_components_once_and_only_when_safe() {
    let plane = Plane::with_own_authorities();

    // All certificates are renewed, two components restart, and the served certificates are verified.
    let ran = plane.renew(&["--all"]);
    ran.done();
    for component in [CONTROLLERS, SCHEDULER] {
        ran.row_says(component, "in effect")
            .row_says(component, "a new process serves at 127.0.0.1:102");
    }
    ran.row_says("kubelet", "is not run by systemd here");
    ran.says("kube-apiserver serves serial ")
        .says(" at 192.0.2.11:6443")
        .says("etcd serves serial ")
        .says(" at 127.0.0.1:2379 and 192.0.2.11:2379")
        .says(" at 192.0.2.11:2380");
    assert_eq!(plane.restarts(), [1, 1, 0, 0]);
    assert_eq!(plane.pods.crashes(), []);
    assert!(!plane.node().path(RESTART_RECORD).exists());
    let shown = plane.node().nodepki(&["audit", "show", "-o", "json"]);
    let log: Value = serde_json::from_str(&shown.done().stdout).unwrap();
    let entries = log["items"].as_array().unwrap().iter();
    let in_use: BTreeSet<&str> = entries
        .filter(|entry| entry["event"] == "in-use")
        .map(|entry| entry["certificate"].as_str().unwrap())
        .collect();
    let proven = [
        "apiserver",
        "controller-manager.conf",
        "etcd-peer",
        "etcd-server",
        "scheduler.conf",
    ];
    assert_eq!(in_use, BTreeSet::from(proven));
    assert_eq!(plane.lease()["spec"]["holderIdentity"], "");
    plane.renew(&[]).done();
    assert_eq!(plane.pods.starts().len(), 2);

    // Another node holds the Lease.
    plane.configure("  timeout: 3s\n");
    let mut lease = plane.lease();
    lease["spec"]["holderIdentity"] = json!("cp2");
    lease["spec"]["leaseDurationSeconds"] = json!(3600);
    let path = format!("{LEASES}/nodepki-reload");
    assert_eq!(plane.cluster.admin().put(&path, &lease).0, 200);
    let ran = plane.renew(&["--name", "scheduler.conf"]);
    ran.ended(75)
        .row_says(SCHEDULER, "waits")
        .row_says(SCHEDULER, "node cp2 holds the Lease");
    assert_eq!(plane.restarts(), [1, 1, 0, 0]);
    assert_eq!(plane.lease()["spec"]["holderIdentity"], "cp2");
    // The other node has vanished: its Lease expires by our own clock, whatever its timestamp is.
    let mut lease = plane.lease();
    lease["spec"]["leaseDurationSeconds"] = json!(2);
    assert_eq!(plane.cluster.admin().put(&path, &lease).0, 200);
    plane.configure("  timeout: 60s\n");
    plane.renew(&[]).done().row_says(SCHEDULER, "in effect");
    assert_eq!(plane.restarts(), [1, 2, 0, 0]);

    // Killed between the commit and the restart: the next run completes it.
    plane.renew_killed("controller-manager.conf");
    plane
        .node()
        .nodepki(&["needs-renewal"])
        .ended(0)
        .says("controller-manager.conf was replaced and has not taken effect");
    plane.renew(&[]).done().row_says(CONTROLLERS, "in effect");
    assert_eq!(plane.restarts(), [2, 2, 0, 0]);

    // The kubelet has created an empty file for a pod.
    let conf = plane.node().path("/etc/kubernetes/scheduler.conf");
    fs::write(&conf, "").unwrap();
    plane.renew(&[]).done().row_says(SCHEDULER, "in effect");
    assert_eq!(plane.restarts(), [2, 3, 0, 0]);
    assert!(!plane.conf().is_empty());

    // The component does not become ready with the new kubeconfig.
    plane.configure("  timeout: 25s\n");
    let good = plane.conf();
    plane.renew_killed("scheduler.conf");
    let server = "https://192.0.2.11:6443";
    let broken = plane.conf().replace(server, "https://192.0.2.11:1");
    assert_ne!(broken, plane.conf());
    fs::write(&conf, broken).unwrap();
    let ran = plane.renew(&["--name", "admin.conf"]);
    ran.ended(65)
        .row_says(SCHEDULER, "rolled back")
        .row_says(
            SCHEDULER,
            "did not become ready with the new scheduler.conf",
        )
        .row_says(SCHEDULER, "with the old files it is ready")
        .row_says(SCHEDULER, "run `nodepki renew --name scheduler.conf`");
    assert_eq!(plane.conf(), good);
    assert_eq!(plane.restarts(), [2, 5, 0, 0]);
    // The failure persists and is reported each time.
    plane.renew(&[]).ended(65);
    assert_eq!(plane.restarts(), [2, 5, 0, 0]);
    plane.renew(&["--name", "scheduler.conf"]).done();
    assert_eq!(plane.restarts(), [2, 6, 0, 0]);
    assert_ne!(plane.conf(), good);

    // Without an API server, certificates of reloading components are renewed and the others wait.
    let manifest = plane
        .node()
        .path("/etc/kubernetes/manifests/kube-apiserver.yaml");
    let away = plane.node().path("/etc/kubernetes/kube-apiserver.yaml");
    fs::rename(&manifest, &away).unwrap();
    wait_until("kube-apiserver is gone", || {
        !plane.node().is_ready("kube-apiserver")
    });
    let ran = plane.renew(&["--name", "scheduler.conf,etcd-server"]);
    ran.ended(75)
        .row_says(SCHEDULER, "waits to be restarted for scheduler.conf")
        .says("etcd serves serial ");
    fs::rename(&away, &manifest).unwrap();
    wait_until("kube-apiserver is back", || {
        plane.node().is_ready("kube-apiserver")
    });
    plane.renew(&[]).done().row_says(SCHEDULER, "in effect");
    assert_eq!(plane.restarts()[..2], [2, 7]);

    // An unreachable member: etcd has lost its quorum, and nothing is changed.
    let url = "https://127.0.0.1:2379/v3/cluster/member/add";
    let member = r#"{"peerURLs": ["https://192.0.2.99:2380"]}"#;
    post_to_etcd(plane.node(), url, member).done();
    let ran = plane.renew(&["--name", "scheduler.conf"]);
    ran.ended(75)
        .row_says(SCHEDULER, "nothing was restarted, since ");
    assert_eq!(plane.restarts()[..2], [2, 7]);
}

#[test]
fn takes_lost_lease_again_before_next_component() {
    let plane = Plane::with_own_authorities();
    plane.lose_lease_during_restart("");
    plane
        .renew(&["--all"])
        .done()
        .row_says(CONTROLLERS, "was restarted for")
        .row_says(SCHEDULER, "was restarted for");
    assert_eq!(plane.restarts(), [1, 1, 0, 0]);
    assert_eq!(plane.lease()["spec"]["holderIdentity"], "");

    plane.lose_lease_during_restart("cp2");
    plane
        .renew(&["--all"])
        .ended(75)
        .row_says(CONTROLLERS, "was restarted for")
        .row_says(
            SCHEDULER,
            "was not restarted, since node cp2 holds the Lease kube-system/nodepki-reload",
        );
    assert_eq!(plane.restarts(), [2, 1, 0, 0]);
    assert_eq!(plane.lease()["spec"]["holderIdentity"], "cp2");
}

#[test]
fn keeps_new_kubeconfig_if_former_one_has_expired() {
    let plane = Plane::with_own_authorities();
    plane.configure("  timeout: 5s\n");
    let former = with_expired_certificate(&plane.conf());
    plane.renew_killed("scheduler.conf");
    let record = plane.node().path(RESTART_RECORD);
    let mut recorded: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let contents = &mut recorded["restarts"][0]["previous"][0]["contents"];
    assert!(contents.is_string(), "{recorded}");
    *contents = json!(BASE64_STANDARD.encode(&former));
    fs::write(&record, recorded.to_string()).unwrap();
    let conf = plane.node().path("/etc/kubernetes/scheduler.conf");
    let broken = plane
        .conf()
        .replace("https://192.0.2.11:6443", "https://192.0.2.11:1");
    fs::write(&conf, &broken).unwrap();

    plane
        .renew(&["--name", "admin.conf"])
        .ended(75)
        .row_says(SCHEDULER, "failed")
        .row_says(SCHEDULER, "the new files are kept")
        .row_says(
            SCHEDULER,
            "the certificate of the former /etc/kubernetes/scheduler.conf expired at ",
        );
    assert_eq!(plane.conf(), broken);
}

/// Replaces the client certificate of a kubeconfig by one that ended a year ago.
fn with_expired_certificate(kubeconfig: &str) -> String {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let year = Duration::from_secs(365 * 86_400);
    let begin = now() - 2 * year;
    let expired = CertificateAuthority::self_signed("expired", key, begin, year).unwrap();
    let pem = BASE64_STANDARD.encode(expired.bundle().to_pem());
    let lines = kubeconfig
        .lines()
        .map(|line| match line.split_once("client-certificate-data:") {
            Some((before, _)) => format!("{before}client-certificate-data: {pem}\n"),
            None => format!("{line}\n"),
        });
    lines.collect()
}

#[test]
fn manual_commands_succeed_while_daemon_waits_for_lease_of_another_node() {
    const NEW: &str = "/etc/nodepki/new.crt";
    let plane = Plane::with_own_authorities();
    let node = plane.node();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "nodepki-reload", "namespace": "kube-system"},
        "spec": {"holderIdentity": "cp2", "leaseDurationSeconds": 3600},
    });
    assert_eq!(plane.cluster.admin().post(LEASES, &lease).0, 201);
    plane.renew_killed("scheduler.conf");
    plane.configure("  timeout: 10m\n");
    let mut daemon = Daemon::start(node);
    wait_until("the daemon waits for the Lease", || {
        daemon
            .said()
            .contains("waiting until it is released or expires")
    });

    let path = node.path("/etc/kubernetes/admin.conf");
    fs::remove_file(&path).unwrap();
    node.nodepki(&["bootstrap", "--clock-wait", "0s"])
        .done()
        .row_says("admin.conf", "issued");
    // A step of a CA change succeeds, and its restarts wait for the same Lease.
    plane.configure("  timeout: 3s\n");
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let year = Duration::from_secs(365 * 86_400);
    let new = CertificateAuthority::self_signed("front-proxy-ca", key, now(), year).unwrap();
    node.write(NEW, &new.bundle().to_pem());
    let stage = ["authority", "stage", "front-proxy-ca", "--certificate", NEW];
    let ran = node.nodepki(&[&["-o", "json"][..], &stage].concat());
    ran.ended(75);
    let outcome: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(outcome["applied"], true, "{}", ran.said());
    let reloads = outcome["reloads"].to_string();
    assert!(reloads.contains("node cp2 holds the Lease"), "{reloads}");
    // Neither command waited for the daemon, which waits ten minutes.
    let said = daemon.said();
    assert_eq!(
        said.matches("node cp2 holds the Lease").count(),
        1,
        "{said}"
    );
    daemon.is_running();
    assert_eq!(plane.restarts(), [0; 4]);

    // Once the Lease is free, the daemon restarts every component that is due.
    let mut lease = plane.lease();
    lease["spec"]["holderIdentity"] = json!("");
    let path = format!("{LEASES}/nodepki-reload");
    assert_eq!(plane.cluster.admin().put(&path, &lease).0, 200);
    wait_until("the daemon restarts the scheduler", || {
        plane.restarts()[1] == 1 && plane.lease()["spec"]["holderIdentity"] == ""
    });
    assert_eq!(plane.pods.crashes(), []);
    daemon.stop();
}
