//! A step of a CA change after which a component does not become ready, on a real control plane: all of its files are
//! rolled back, and the step can be repeated.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{Certificate, PrivateKey};
use serde_json::{Value, json};

use crate::authority::{KUBECONFIGS, new_key, self_signed, trusted_in};
use crate::node::{NODEPKI, Ran};
use crate::reload::{CONTROLLERS, Plane, RESTART_RECORD, SCHEDULER};
use crate::servers::cluster::{Authorities, ClusterNode};
use crate::servers::static_pods::Why;
use crate::time::wait_until;

const NO_FILE: [&str; 0] = [];
const NEW_CA: &str = "/var/new.crt";
/// Hook that restarts the component named by its argument, and fails if [`BROKEN_COMPONENTS`] has a file of that name.
const RESTART_HOOK: &str = "/etc/nodepki/restart";
/// Copy of etcd's `ca.crt` that a hook writes.
const ETCD_CA_COPY: &str = "/var/etcd-ca.crt";
const BROKEN_COMPONENTS: &str = "/var/broken";

impl Plane {
    /// Starts a control plane without CA keys.
    fn with_external_authorities() -> Self {
        let signers = "signers: {own: {directory: {path: /var/requests}}}\nauthorities: {ca: {signer: own}, etcd-ca: {signer: own}, front-proxy-ca: {signer: own}}\n";
        let plane = Plane::of(Authorities::External, signers);
        // Long enough for a restart on a busy machine; a component with a wrong server address uses all of it.
        plane.configure("  timeout: 40s\n");
        plane
    }

    /// Configures [`RESTART_HOOK`] for these components.
    fn hook(&self, components: &[&str]) {
        let hooks = components
            .iter()
            .map(|name| format!("{{on: [{name}], command: [{RESTART_HOOK}, {name}]}}"));
        let copy = format!(
            "{{on: [etcd-ca], command: [/bin/cp, /etc/kubernetes/pki/etcd/ca.crt, {ETCD_CA_COPY}]}}"
        );
        let hooks: Vec<String> = hooks.chain([copy]).collect();
        self.configure(&format!("  hooks: [{}]\n", hooks.join(", ")));
        // The kubelet restarts a pod when any byte of its manifest changes.
        let script = format!(
            "#!/bin/sh\nif test -e {BROKEN_COMPONENTS}/$1; then exit 1; fi\necho \"# $(date +%s%N)\" >>/etc/kubernetes/manifests/$1.yaml\n"
        );
        self.node().write(RESTART_HOOK, &script);
        fs::set_permissions(
            self.node().path(RESTART_HOOK),
            fs::Permissions::from_mode(0o755),
        )
        .unwrap();
    }

    fn break_component(&self, component: &str) {
        self.node()
            .write(&format!("{BROKEN_COMPONENTS}/{component}"), "");
    }

    fn repair_component(&self, component: &str) {
        let broken = self.node().path(BROKEN_COMPONENTS).join(component);
        fs::remove_file(broken).unwrap();
    }

    /// Creates the new CA certificate, which is a renewed one if `key` is the key of the old CA.
    fn create_new_ca(&self, authority: Authority, key: PrivateKey) {
        let bundle = self_signed(authority, key).bundle().to_pem();
        self.node().write(NEW_CA, &bundle);
    }

    fn new_ca(&self) -> String {
        fs::read_to_string(self.node().path(NEW_CA)).unwrap()
    }

    fn step(&self, step: &str, authority: Authority, more: &[&str]) -> Ran {
        let words = ["authority", step, authority.as_str()];
        self.node().nodepki(&[&words, more].concat())
    }

    fn stage(&self, authority: Authority) -> Ran {
        self.step("stage", authority, &["--certificate", NEW_CA])
    }

    /// Repeats a killed step until its restarts succeed or fail: on a busy machine they can be postponed (exit status 75).
    fn stage_until_decided(&self, authority: Authority) -> Ran {
        let mut runs = (0..5).map(|_| self.stage(authority));
        runs.find(|ran| ran.code != Some(75)).unwrap()
    }

    /// Runs the step and kills it once the new files and the record are on disk.
    fn stage_killed(&self, authority: Authority) {
        self.stage_killed_at("authority:committed", authority);
    }

    fn stage_killed_at(&self, failpoint: &str, authority: Authority) {
        let mut command = self.node().command("env");
        command.args([&format!("NODEPKI_FAILPOINT={failpoint}"), NODEPKI]);
        command.args(["--root", "/", "authority", "stage", authority.as_str()]);
        let output = command.args(["--certificate", NEW_CA]).output().unwrap();
        assert!(!output.status.success(), "{}", Ran::from(output).said());
        assert!(self.node().path(RESTART_RECORD).exists());
    }

    fn renew_due(&self) -> Ran {
        self.node().nodepki(&["renew", "--clock-wait", "0s"])
    }

    /// Returns the authority's part of `authority status`.
    fn report(&self, authority: Authority) -> Value {
        let ran = self.step("status", authority, &["-o", "json"]);
        let report: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", ran.said()));
        report["authorities"][0].clone()
    }

    /// Contents of all files that a CA change writes, by name.
    fn trust_files(&self) -> BTreeMap<String, String> {
        let mut files: Vec<String> = KUBECONFIGS.map(|name| name.as_str().to_owned()).to_vec();
        files.extend(Authority::ALL.map(|authority| format!("pki/{}.crt", authority.base_name())));
        let text = |file: &String| {
            let path = self.node().path("/etc/kubernetes").join(file);
            fs::read_to_string(path).unwrap()
        };
        files
            .iter()
            .map(|file| (file.clone(), text(file)))
            .collect()
    }

    /// Names of the files that differ from `before`.
    fn changed_files(&self, before: &BTreeMap<String, String>) -> Vec<String> {
        let after = self.trust_files();
        let differ = before.iter().filter(|(file, text)| after[*file] != **text);
        differ.map(|(file, _)| file.clone()).collect()
    }

    /// Number of CA certificates that each kubeconfig trusts.
    fn trusted(&self) -> [usize; 5] {
        KUBECONFIGS.map(|name| trusted_by(self.node(), name).len())
    }
}

fn trusted_by(node: &ClusterNode, name: CertName) -> Vec<Certificate> {
    let path = node.path("/etc/kubernetes").join(name.as_str());
    trusted_in(&fs::read_to_string(path).unwrap())
}

/// Gives a component the address of an API server that does not exist.
fn point_to_missing_api_server(node: &ClusterNode, name: CertName) {
    let path = node.path("/etc/kubernetes").join(name.as_str());
    let text = fs::read_to_string(&path).unwrap();
    let broken = text.replace("https://192.0.2.11:6443", "https://192.0.2.11:1");
    assert_ne!(broken, text);
    fs::write(&path, broken).unwrap();
}

#[test]
fn rolls_back_all_files_of_staged_ca_if_one_component_fails() {
    let (plane, ca) = (Plane::with_external_authorities(), Authority::Ca);
    plane.create_new_ca(ca, new_key());
    let before = plane.trust_files();

    // The component that is restarted first does not become ready.
    plane.stage_killed(ca);
    assert_eq!(plane.trusted(), [2; 5]);
    point_to_missing_api_server(plane.node(), CertName::ControllerManagerConf);
    let ran = plane.stage_until_decided(ca);
    assert_eq!(plane.changed_files(&before), NO_FILE, "{}", ran.said());
    ran.ended(65)
        .says("kube-controller-manager rolled back: did not become ready with the new ca")
        .says("with the old files it is ready")
        .says("kube-scheduler in effect: needs no restart");
    assert_eq!(plane.restarts(), [2, 0, 0, 0]);
    let report = plane.report(ca);
    assert_eq!(report["phase"], "settled");
    assert!(
        report["missing"]
            .to_string()
            .contains("did not become ready"),
        "{report}"
    );
    // The step can be repeated.
    plane.stage(ca).done();
    assert_eq!(plane.trusted(), [2; 5]);
    let report = plane.report(ca);
    assert_eq!(
        (&report["phase"], &report["missing"]),
        (&json!("staged"), &json!([]))
    );
    assert_eq!(plane.restarts(), [3, 1, 0, 0]);
    plane
        .step("stage", ca, &["--undo", "--no-node-activated"])
        .done();
    assert_eq!(plane.changed_files(&before), NO_FILE);
    assert_eq!(plane.restarts(), [4, 2, 0, 0]);

    // The second component does not: the first runs with files that are rolled back, and is restarted once more.
    plane.hook(&[SCHEDULER]);
    plane.break_component(SCHEDULER);
    plane.stage_killed(ca);
    let ran = plane.stage_until_decided(ca);
    assert_eq!(plane.changed_files(&before), NO_FILE, "{}", ran.said());
    ran.ended(65)
        .says("kube-controller-manager waits: uses files that were rolled back")
        .says("kube-scheduler rolled back: did not become ready with the new scheduler.conf");
    assert_eq!(plane.restarts(), [5, 2, 0, 0]);
    plane
        .renew_due()
        .ended(65)
        .row_says(CONTROLLERS, "was restarted for ca");
    assert_eq!(plane.restarts(), [6, 2, 0, 0]);
    // Undo returns to the old CA.
    plane.repair_component(SCHEDULER);
    plane.step("stage", ca, &["--undo"]).done();
    assert_eq!(plane.restarts(), [6, 3, 0, 0]);
    assert_eq!(plane.changed_files(&before), NO_FILE);
    assert!(!plane.node().path(RESTART_RECORD).exists());
    plane.renew_due().done();
}

#[test]
fn rolls_back_stage_and_retire_of_etcd_ca_if_api_server_fails() {
    const API_SERVER: &str = "kube-apiserver";
    let (plane, etcd) = (Plane::with_external_authorities(), Authority::EtcdCa);
    plane.hook(&[API_SERVER]);
    let key = fs::read(plane.cluster.authorities().join("etcd/ca.key")).unwrap();
    plane.create_new_ca(etcd, PrivateKey::from_pem(&key).unwrap());
    let before = plane.trust_files();
    let left = plane.new_ca();
    let copy = || fs::read_to_string(plane.node().path(ETCD_CA_COPY)).ok();

    plane.break_component(API_SERVER);
    let ran = plane.stage(etcd);
    assert_eq!(plane.changed_files(&before), NO_FILE, "{}", ran.said());
    ran.ended(65).says("rolled back");
    assert_eq!(plane.report(etcd)["phase"], "settled");
    assert_eq!(plane.restarts(), [0, 0, 0, 1]);
    plane.repair_component(API_SERVER);
    // etcd runs with the file that was rolled back.
    plane
        .renew_due()
        .ended(65)
        .row_says("etcd", "was restarted for etcd-ca");
    assert_eq!(plane.restarts(), [0, 0, 0, 2]);
    plane.stage(etcd).done();
    assert_eq!(plane.report(etcd)["phase"], "staged");
    assert_eq!(plane.restarts(), [0, 0, 1, 3]);

    plane.step("activate", etcd, &[]).done();
    let activated = plane.trust_files();
    assert_eq!(plane.changed_files(&before), ["pki/etcd/ca.crt"]);
    plane.break_component(API_SERVER);
    let ran = plane.step("retire", etcd, &[]);
    assert_eq!(plane.changed_files(&activated), NO_FILE, "{}", ran.said());
    ran.ended(65).says("rolled back");
    assert_eq!(plane.report(etcd)["phase"], "activated");
    assert_eq!(copy().as_ref(), Some(&left));
    plane.repair_component(API_SERVER);
    plane.renew_due().ended(65);
    // The hook reads the file that was rolled back.
    assert_eq!(copy().as_ref(), Some(&activated["pki/etcd/ca.crt"]));
    plane.step("retire", etcd, &[]).done();
    assert_eq!(plane.report(etcd)["phase"], "settled");
    assert_eq!(plane.trust_files()["pki/etcd/ca.crt"], left);
    assert!(!plane.node().path(RESTART_RECORD).exists());
}

#[test]
fn restarts_etcd_while_api_server_is_stopped() {
    const PEER_KEY: &str = "/etc/kubernetes/pki/etcd/peer.key";
    let (plane, etcd) = (Plane::with_external_authorities(), Authority::EtcdCa);
    plane.create_new_ca(etcd, new_key());
    let before = plane.trust_files();

    // etcd does not start any more. The API server was stopped for it, and runs with a file that is rolled back.
    plane.configure("  timeout: 15s\n");
    let key = fs::read_to_string(plane.node().path(PEER_KEY)).unwrap();
    plane.stage_killed(etcd);
    plane.node().write(PEER_KEY, "");
    let ran = plane.stage_until_decided(etcd);
    plane.node().write(PEER_KEY, &key);
    assert_eq!(plane.changed_files(&before), NO_FILE, "{}", ran.said());
    ran.ended(65)
        .row_says("etcd", "rolled back")
        .row_says("etcd", "with the old files it is not ready either")
        .row_says(
            "kube-apiserver",
            "waits: was stopped while etcd restarted and has started again",
        );
    assert_eq!(plane.restarts(), [0, 0, 1, 2]);
    wait_until("etcd is back", || plane.node().is_ready("kube-apiserver"));
    plane.configure("");
    plane
        .renew_due()
        .ended(65)
        .row_says("kube-apiserver", "was restarted for etcd-ca");
    assert_eq!(plane.restarts(), [0, 0, 2, 2]);

    // Killed while the API server is stopped: the next run restarts both.
    plane.stage_killed_at("reload:server-stopped", etcd);
    assert_eq!(plane.restarts()[3], 2);
    wait_until("the API server is back", || {
        plane.node().is_ready("kube-apiserver")
    });
    plane.stage(etcd).done();
    assert_eq!(plane.report(etcd)["phase"], "staged");
    assert_eq!(plane.restarts(), [0, 0, 4, 3]);
    let starts = plane.starts();
    let mut changed = starts.iter().filter(|start| start.why == Why::Changed);
    let mut last = || changed.next_back().map(|start| start.component.as_str());
    assert_eq!([last(), last()], [Some("etcd"), Some("kube-apiserver")]);
}
