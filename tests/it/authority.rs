//! Changes a CA with the real binary: OpenSSL and the real kubeadm judge what is trusted, issued and refused in each
//! phase. The same change also runs on a real cluster while its clients are served.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::{Authority, CertName};
use nodepki::text::hex;
use nodepki::x509::{
    Certificate, CertificateAuthority, KeyAlgorithm, PrivateKey, TrustBundle, certificates_of,
    verifies,
};
use serde_json::Value;

use crate::kubeadm;
use crate::node::{INIT, JOIN, Node, Ran, SHARED_FILES, copy_authorities};
#[cfg(feature = "failpoints")]
use crate::sample::sampled;
use crate::signing::{now, openssl, write_secret};

const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
const RESTART_RECORD: &str = "/var/lib/nodepki/restarts.json";
/// The kubeconfigs of a first control-plane node.
pub(crate) const KUBECONFIGS: [CertName; 5] = [
    CertName::AdminConf,
    CertName::SuperAdminConf,
    CertName::KubeletConf,
    CertName::ControllerManagerConf,
    CertName::SchedulerConf,
];

fn bundle_path(authority: Authority) -> String {
    format!("/etc/kubernetes/pki/{}.crt", authority.base_name())
}

/// Returns a self-signed CA with kubeadm's name for `authority`.
pub(crate) fn self_signed(authority: Authority, key: PrivateKey) -> CertificateAuthority {
    CertificateAuthority::self_signed(authority.common_name(), key, now(), CA_LIFETIME).unwrap()
}

pub(crate) fn new_key() -> PrivateKey {
    PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

/// Creates a CA in `new/` outside the node's root, in kubeadm's layout, and returns the path of its certificate.
pub(crate) fn new_authority(node: &Node, authority: Authority, key: PrivateKey) -> PathBuf {
    let pem = key.to_pem();
    let base = node.outside("new").join(authority.base_name());
    fs::create_dir_all(base.parent().unwrap()).unwrap();
    write_secret(base.with_extension("key"), pem.as_bytes());
    let certificate = base.with_extension("crt");
    let bundle = self_signed(authority, key).bundle().to_pem();
    fs::write(&certificate, bundle).unwrap();
    certificate
}

/// Gives the local signer the new CA.
fn give_signer_new_authority(node: &Node, authority: Authority) {
    copy_authorities([authority], &node.outside("new"), &node.ca());
}

/// `nodepki authority STEP AUTHORITY …` with the local signer.
fn step(node: &Node, step: &str, authority: Authority, more: &[&str]) -> Ran {
    Ran::of(&mut node.with_local(&["authority", step, authority.as_str()], more))
}

fn stage(node: &Node, authority: Authority, certificate: &Path) -> Ran {
    let file = certificate.to_str().unwrap();
    step(node, "stage", authority, &["--certificate", file])
}

fn report(node: &Node, authority: Authority) -> Value {
    let ran = Ran::of(&mut node.with_local(
        &["-o", "json", "authority", "status", authority.as_str()],
        &[],
    ));
    ran.done_or_temporary();
    serde_json::from_str(&ran.stdout).unwrap()
}

fn phase(node: &Node, authority: Authority) -> String {
    let report = report(node, authority);
    report["authorities"][0]["phase"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Removes the record of due restarts, as a reload would: below another root no component runs.
fn clear_due_restarts(node: &Node) {
    let _ = fs::remove_file(node.path(RESTART_RECORD));
}

/// Returns the components whose restart is recorded.
fn due_restarts(node: &Node) -> BTreeSet<String> {
    let Ok(text) = fs::read_to_string(node.path(RESTART_RECORD)) else {
        return BTreeSet::new();
    };
    let record: Value = serde_json::from_str(&text).unwrap();
    let restarts = record["restarts"].as_array().unwrap().iter();
    restarts
        .map(|restart| restart["component"].as_str().unwrap().to_owned())
        .collect()
}

fn certificates(path: &Path) -> Vec<Certificate> {
    certificates_of(&fs::read(path).unwrap()).unwrap()
}

fn bundle(node: &Node, authority: Authority) -> Vec<Certificate> {
    certificates(&node.path(bundle_path(authority)))
}

/// Returns the CA certificates that a kubeconfig trusts.
pub(crate) fn trusted_in(kubeconfig: &str) -> Vec<Certificate> {
    let current = Kubeconfig::parse(kubeconfig).unwrap().current().unwrap();
    certificates_of(&current.authority.unwrap()).unwrap()
}

fn trusted_by(node: &Node, name: CertName) -> Vec<Certificate> {
    trusted_in(&node.read(format!("/etc/kubernetes/{name}")))
}

/// Asserts that exactly these CA certificates, in this order, are trusted: in the bundle, and for `ca` in the kubeconfigs.
#[track_caller]
fn assert_trusted(node: &Node, authority: Authority, expected: &[&Certificate]) {
    let expected: Vec<Certificate> = expected.iter().copied().cloned().collect();
    assert_eq!(bundle(node, authority), expected);
    if authority == Authority::Ca {
        for name in KUBECONFIGS {
            assert_eq!(trusted_by(node, name), expected, "{name}");
        }
    }
}

fn names_of(authority: Authority) -> Vec<CertName> {
    let names = CertName::KUBEADM.into_iter();
    names.filter(|name| name.authority() == authority).collect()
}

/// Verifies every leaf of the authority with OpenSSL under `certificate` alone.
fn assert_leaves_under(node: &Node, authority: Authority, certificate: &Path) {
    let scratch = tempfile::tempdir().unwrap();
    for name in names_of(authority) {
        let file = scratch.path().join(name.as_str());
        fs::write(&file, node.leaf(name).unwrap().0.to_pem()).unwrap();
        let (ca, file) = (certificate.to_str().unwrap(), file.to_str().unwrap());
        openssl(&["verify", "-CAfile", ca, file], b"");
    }
}

/// Asserts that `bootstrap` and `plan` have nothing to do, that `doctor` has no other `findings`, and that kubeadm
/// accepts the node.
fn assert_nothing_to_do(node: &Node, findings: &BTreeSet<String>) {
    let before = node.etc();
    node.bootstrap().done();
    node.plan().done();
    before.unchanged(&node.etc());
    let plan = node.plan();
    for word in ["issue", "rewrite"] {
        assert!(!plan.stdout.contains(word), "{}", plan.said());
    }
    node.assert_sound(&CertName::KUBEADM);
    assert_eq!(*findings, doctor_findings(node), "doctor");
    kubeadm::accepts_external_ca(&node.path("/etc/kubernetes"), INIT);
}

/// Returns the findings of `doctor`, without the informational ones, by id.
fn doctor_findings(node: &Node) -> BTreeSet<String> {
    let ran = Ran::of(&mut node.with_local(&["-o", "json", "doctor"], &[]));
    let diagnosis: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.said()));
    let findings = diagnosis["findings"].as_array().unwrap().iter();
    findings
        .filter(|finding| finding["severity"] != "info")
        .map(|finding| format!("{} {}", finding["id"], finding["severity"]))
        .collect()
}

#[test]
fn changes_each_authority_in_three_steps() {
    for (authority, expected) in [
        (
            Authority::Ca,
            &["kube-controller-manager", "kube-scheduler", "kubelet"][..],
        ),
        (Authority::EtcdCa, &["etcd", "kube-apiserver"]),
        (Authority::FrontProxyCa, &[]),
    ] {
        let node = Node::bootstrapped();
        let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
        let findings = doctor_findings(&node);
        let old = node.ca().join(authority.base_name()).with_extension("crt");
        let old_certificate = certificates(&old).remove(0);
        let old = {
            let kept = node.outside("old.crt");
            fs::copy(old, &kept).unwrap();
            kept
        };
        let new = new_authority(&node, authority, new_key());
        let new_certificate = certificates(&new).remove(0);
        let file = new.to_str().unwrap();

        // Nothing is staged.
        step(&node, "activate", authority, &["--all-nodes-staged"])
            .ended(65)
            .says("authority stage");
        step(&node, "retire", authority, &["--all-nodes-activated"])
            .done()
            .says("nothing to do");
        let before = node.snapshot();
        step(
            &node,
            "stage",
            authority,
            &["--certificate", file, "--dry-run"],
        )
        .done()
        .says("nothing was changed")
        .says(&hex(&new_certificate.fingerprint()));
        before.unchanged(&node.snapshot());

        // Below another root the restarts cannot be verified.
        stage(&node, authority, &new).ended(75).says("staged");
        assert_trusted(&node, authority, &[&old_certificate, &new_certificate]);
        assert_eq!(due_restarts(&node), expected);

        assert_leaves_under(&node, authority, &old);
        assert_nothing_to_do(&node, &findings);
        let staged = node.etc();
        stage(&node, authority, &new)
            .ended(75)
            .says("nothing to do");
        staged.unchanged(&node.etc());
        step(&node, "retire", authority, &["--all-nodes-activated"])
            .ended(65)
            .says("is not activated yet");

        step(&node, "activate", authority, &["--all-nodes-staged"])
            .ended(65)
            .says("`nodepki renew` on the node performs it");
        clear_due_restarts(&node);
        step(&node, "activate", authority, &[])
            .ended(65)
            .says("--peer-report")
            .says("--all-nodes-staged");
        // The signer still has the old CA.
        step(&node, "activate", authority, &["--all-nodes-staged"])
            .ended(65)
            .says("as proof that it signs for");
        staged.unchanged(&node.etc());
        assert_eq!(phase(&node, authority), "staged");

        give_signer_new_authority(&node, authority);
        let activated = step(&node, "activate", authority, &["--all-nodes-staged"]);
        activated
            .done_or_temporary()
            .says("has signed a certificate like");
        assert_trusted(&node, authority, &[&new_certificate, &old_certificate]);

        assert_leaves_under(&node, authority, &new);
        assert_nothing_to_do(&node, &findings);
        assert_eq!(phase(&node, authority), "activated");
        let before = node.etc();
        step(&node, "activate", authority, &["--all-nodes-staged"]).says("nothing to do");
        before.unchanged(&node.etc());

        if authority == Authority::Ca {
            step(&node, "retire", authority, &["--all-nodes-activated"])
                .ended(65)
                .says("kube-controller-manager was not restarted since");
        }
        clear_due_restarts(&node);
        step(&node, "retire", authority, &[])
            .ended(65)
            .says("--all-nodes-activated");
        step(
            &node,
            "stage",
            authority,
            &["--undo", "--no-node-activated"],
        )
        .ended(65)
        .says("is already activated as the");
        step(&node, "retire", authority, &["--all-nodes-activated"]).ended(75);
        assert_trusted(&node, authority, &[&new_certificate]);
        assert_eq!(due_restarts(&node), expected);
        clear_due_restarts(&node);
        assert_nothing_to_do(&node, &findings);
        assert_eq!(phase(&node, authority), "settled");
        stage(&node, authority, &new).done().says("nothing to do");
    }
}

#[test]
fn removes_staged_ca_on_undo() {
    let node = Node::bootstrapped();
    let before = node.etc();
    let new = new_authority(&node, Authority::Ca, new_key());
    stage(&node, Authority::Ca, &new).ended(75);
    step(&node, "stage", Authority::Ca, &["--undo"])
        .ended(65)
        .says("--no-node-activated");
    step(
        &node,
        "stage",
        Authority::Ca,
        &["--undo", "--no-node-activated"],
    )
    .ended(75);
    assert_eq!(before.content(), node.etc().content());
    assert_eq!(phase(&node, Authority::Ca), "settled");
    clear_due_restarts(&node);
    step(&node, "stage", Authority::Ca, &["--undo"])
        .done()
        .says("nothing to do");
}

#[test]
fn requires_reports_that_show_other_nodes_ready() {
    let authority = Authority::EtcdCa;
    let (first, second) = (Node::bootstrapped(), Node::of(JOIN));
    fs::remove_dir_all(second.ca()).unwrap();
    kubeadm::copy_tree(&first.outside(""), &second.outside("first"));
    fs::rename(second.outside("first/ca"), second.ca()).unwrap();
    for file in SHARED_FILES {
        let path = format!("/etc/kubernetes/pki/{file}");
        second.write(&path, fs::read(first.path(&path)).unwrap());
    }
    second.bootstrap().done();
    let new = new_authority(&first, authority, new_key());
    stage(&first, authority, &new).ended(75);
    clear_due_restarts(&first);

    let write = |name: &str| {
        let file = first.outside(name);
        fs::write(&file, report(&second, authority).to_string()).unwrap();
        file.display().to_string()
    };
    let behind = write("behind.json");
    let activate = |file: &str| {
        let more = ["--peer-report", file, "--all-nodes-staged"];
        step(&first, "activate", authority, &more)
    };
    activate(&behind)
        .ended(65)
        .says("cp2 does not meet the requirement")
        .says("not all files there trust CN=etcd-ca");
    stage(&second, authority, &new).ended(75);
    activate(&write("waiting.json"))
        .ended(65)
        .says("restarts are due there");
    clear_due_restarts(&second);
    let ready = write("ready.json");
    give_signer_new_authority(&first, authority);
    activate(&ready).ended(75).says("cp2 meets the requirement");
    step(&first, "retire", authority, &["--all-nodes-activated"])
        .ended(65)
        .says("it is not verified yet that the replaced files are in effect (etcd-");
    clear_due_restarts(&first);
    let retire = ["--peer-report", &ready, "--all-nodes-activated"];
    step(&first, "retire", authority, &retire)
        .ended(65)
        .says("are not under CN=etcd-ca");
    let garbage = first.outside("garbage.json");
    fs::write(&garbage, "{}").unwrap();
    activate(garbage.to_str().unwrap())
        .ended(65)
        .says("is not a valid report");
}

#[test]
fn keeps_leaves_when_new_ca_certificate_has_the_old_key() {
    let node = Node::bootstrapped();
    let key = fs::read(node.ca().join("ca.key")).unwrap();
    let key = PrivateKey::from_pem(&key).unwrap();
    let new = new_authority(&node, Authority::Ca, key);
    let leaves = || CertName::KUBEADM.map(|name| node.leaf(name).unwrap().0.to_pem());
    let before = leaves();
    stage(&node, Authority::Ca, &new)
        .ended(75)
        .says("the new certificate has name and key of the CA in place");
    clear_due_restarts(&node);
    // Neither a peer nor the signer is asked.
    step(&node, "activate", Authority::Ca, &[]).done();
    step(&node, "retire", Authority::Ca, &[]).ended(75);
    assert_eq!(bundle(&node, Authority::Ca), certificates(&new));
    assert_eq!(leaves(), before);
    assert_leaves_under(&node, Authority::Ca, &new);
}

#[test]
#[cfg(feature = "failpoints")]
fn reports_activation_as_pending_while_certificates_are_under_old_ca() {
    let node = Node::bootstrapped();
    let authority = Authority::FrontProxyCa;
    let old = certificates(&node.path(bundle_path(authority)));
    let new = new_authority(&node, authority, new_key());
    stage(&node, authority, &new);
    clear_due_restarts(&node);
    give_signer_new_authority(&node, authority);
    // The signer answers the test request, which has another slot, and is unreachable afterwards.
    let activate = || {
        let step = ["authority", "activate", authority.as_str()];
        node.configured([&step[..], &["--all-nodes-staged", "--wait", "0s"]].concat())
    };
    let before = node.leaf(CertName::FrontProxyClient).unwrap().0.to_pem();
    // A second run does not repeat the checks that precede the requests.
    let killed = Ran::of(activate().env("NODEPKI_FAILPOINT", "authority:ordered"));
    assert_eq!(killed.signal, Some(9), "{}", killed.said());
    for how in ["retry", "pending", "unreachable"] {
        node.signer_does("front-proxy-client", how);
        if how == "unreachable" {
            node.signer_does("all", how);
        }
        let ran = Ran::of(&mut activate());
        assert!(matches!(ran.code, Some(69 | 75)), "{how}: {}", ran.said());
        ran.says("not issued by the new CA yet: front-proxy-client")
            .says_not("\nissued by the new CA")
            .says_not("omit --dry-run");
        assert!(!ran.stdout.starts_with("issued by"), "{}", ran.said());
        assert_eq!(
            node.leaf(CertName::FrontProxyClient).unwrap().0.to_pem(),
            before
        );
    }
    // The next step is refused too.
    step(&node, "retire", authority, &["--all-nodes-activated"]).ended(65);
    node.signer_behaves();
    let ran = Ran::of(&mut activate());
    ran.says("issued by the new CA: front-proxy-client");
    ran.done_or_temporary();
    assert_ne!(certificates(&node.path(bundle_path(authority))), old);
    assert_leaves_under(&node, authority, &new);
}

#[test]
fn requires_administrator_to_change_other_file_that_etcd_verifies_with() {
    let (node, authority) = (Node::bootstrapped(), Authority::EtcdCa);
    let clients = "/etc/kubernetes/pki/etcd/clients.crt";
    let pod = format!("{{spec: {{containers: [{{command: [--trusted-ca-file={clients}]}}]}}}}");
    node.write("/etc/kubernetes/manifests/etcd.yaml", pod);
    let old = node.read(bundle_path(authority));
    node.write(clients, &old);
    let new = new_authority(&node, authority, new_key());
    stage(&node, authority, &new).ended(75);
    clear_due_restarts(&node);
    give_signer_new_authority(&node, authority);
    let activate = || step(&node, "activate", authority, &["--all-nodes-staged"]);
    activate()
        .ended(65)
        .says("etcd (--trusted-ca-file) reads its CA from")
        .says("add it there and restart the component");
    let new = fs::read_to_string(new).unwrap();
    node.write(clients, format!("{old}{new}"));
    activate().done_or_temporary();
    clear_due_restarts(&node);
    let retire = || step(&node, "retire", authority, &["--all-nodes-activated"]);
    retire()
        .ended(65)
        .says("remove it there and restart the component");
    assert_eq!(phase(&node, authority), "activated");
    node.write(clients, new);
    retire().ended(75);
    assert_eq!(phase(&node, authority), "settled");
}

#[test]
fn keeps_certificate_of_staged_ca_until_activation_unless_it_is_needed_now() {
    let (node, authority) = (Node::bootstrapped(), Authority::EtcdCa);
    let new = new_authority(&node, authority, new_key());
    stage(&node, authority, &new).ended(75);
    clear_due_restarts(&node);
    give_signer_new_authority(&node, authority);
    let is_under_new = |name| {
        let trust = TrustBundle::from_pem(&fs::read(&new).unwrap()).unwrap();
        verifies(&node.leaf(name).unwrap().0, &trust, now())
    };
    let renew = |more: &[&str]| Ran::of(&mut node.with_local(&["renew"], more));
    let names = names_of(authority);
    // The certificates in place are valid.
    for name in &names {
        for _ in 0..2 {
            renew(&["--name", name.as_str(), "--force"])
                .ended(75)
                .says("the certificate was issued under the staged CA")
                .says("installed by `nodepki authority activate etcd-ca`");
        }
        assert!(!is_under_new(*name), "{name}");
    }
    let keys = node.pending_keys();
    assert!(
        keys.keys()
            .eq(&names.iter().copied().collect::<BTreeSet<_>>())
    );
    // A certificate that other nodes may refuse is better than none.
    let absent = CertName::EtcdHealthcheckClient;
    for end in ["crt", "key"] {
        let file = format!("/etc/kubernetes/pki/etcd/healthcheck-client.{end}");
        fs::remove_file(node.path(file)).unwrap();
    }
    renew(&[]).done_or_temporary();
    assert!(is_under_new(absent));
    renew(&[])
        .done_or_temporary()
        .row_says(absent.as_str(), "but kubeadm uses only the first");

    step(&node, "activate", authority, &["--all-nodes-staged"]).done_or_temporary();
    assert_leaves_under(&node, authority, &new);
    for (name, key) in &keys {
        let installed = node.leaf(*name).unwrap().1.public_key().sha256();
        assert_eq!(hex(&installed), *key, "{name}");
    }
    assert!(node.pending_keys().is_empty());
}

#[test]
fn refuses_to_stage_unusable_ca_and_changes_nothing() {
    let node = Node::bootstrapped();
    let ca = Authority::Ca;
    let before = node.etc();
    // Without pins the answer of a signer is not trusted.
    step(&node, "stage", ca, &[])
        .ended(78)
        .says("--certificate FILE")
        .says("authorities.ca.trust.sha256");
    step(&node, "stage", ca, &["--certificate", "/nowhere.crt"])
        .ended(64)
        .says("the file does not exist");
    let leaf = node.path("/etc/kubernetes/pki/apiserver.crt");
    stage(&node, ca, &leaf)
        .ended(65)
        .says("is not a CA certificate");

    // The components of this Kubernetes release cannot verify its signatures.
    let key = PrivateKey::generate(KeyAlgorithm::MlDsa44).unwrap();
    let post_quantum = new_authority(&node, ca, key);
    stage(&node, ca, &post_quantum)
        .ended(65)
        .says("ML-DSA-44 keys need components that are built with Go 1.27")
        .says("state with --components-verify");
    let file = post_quantum.to_str().unwrap();
    let stated = ["--certificate", file, "--components-verify", "--dry-run"];
    step(&node, "stage", ca, &stated).done();
    let new = new_authority(&node, ca, new_key());

    // kube-controller-manager signs with ca.crt.
    const MANIFEST: &str = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
    let manifest = |file: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command:\n    - kube-controller-manager\n    - --cluster-signing-cert-file={file}\n    - --cluster-signing-key-file=/etc/kubernetes/pki/ca.key\n"
        )
    };
    node.write(MANIFEST, manifest("/etc/kubernetes/pki/ca.crt"));
    let refused = stage(&node, ca, &new);
    refused
        .ended(65)
        .says("rejects a file with two certificates");
    // The commands in the message solve the problem.
    let said = refused.stderr.clone();
    let commands = said.split("separate file for the flag: ").nth(1).unwrap();
    let commands = commands.split("; then set").next().unwrap();
    let root = node.root().display().to_string();
    let commands = commands
        .replace(" /etc", &format!(" {root}/etc"))
        .replace("> /etc", &format!("> {root}/etc"));
    crate::signing::run_program("sh", &["-euc", &commands], b"");
    assert_eq!(
        node.read(MANIFEST),
        manifest("/etc/kubernetes/pki/ca-signing.crt")
    );
    node.remove(MANIFEST);
    node.remove("/etc/kubernetes/pki/ca-signing.crt");
    fs::remove_dir(node.path("/etc/kubernetes/manifests")).unwrap();
    assert_eq!(before.content(), node.etc().content());
}

#[test]
fn stages_the_ca_of_the_signer_if_it_is_pinned() {
    let node = Node::new();
    let ca = Authority::Ca;
    let pin = |path: &Path| {
        let key = certificates(path).remove(0);
        format!("sha256:{}", hex(&key.public_key().sha256()))
    };
    let old = pin(&node.ca().join("ca.crt"));
    let new = new_authority(&node, ca, new_key());
    let settings = |pins: &str| {
        node.settings("");
        let pinned = format!("{{ca: {{signer: s, trust: {{sha256: [{pins}]}}}}");
        node.edit_settings("{ca: {signer: s}", &pinned);
    };
    settings(&format!("'{old}'"));
    node.ask().done();
    let stage = || Ran::of(&mut node.configured(["authority", "stage", "ca", "--wait", "0s"]));
    stage().done().says("nothing to do");
    give_signer_new_authority(&node, ca);
    let before = node.etc();
    stage()
        .ended(65)
        .says("add the new CA to authorities.ca.trust.sha256 next to the old one");
    before.unchanged(&node.etc());
    settings(&format!("'{old}', '{}'", pin(&new)));
    let earlier = node.exchanges().len();
    stage()
        .ended(75)
        .says("verify both with the owner of the CA");
    // No login precedes: it could use up a credential of one use.
    let exchanges = node.exchanges();
    let verbs: Vec<&str> = exchanges
        .iter()
        .skip(earlier)
        .map(|(verb, ..)| verb.as_str())
        .collect();
    assert_eq!(verbs, ["trust"]);
    assert_eq!(bundle(&node, ca).len(), 2);
    node.ask().done();
}

#[test]
fn keeps_edits_in_administrators_kubeconfigs() {
    let node = Node::bootstrapped();
    let extra = certificates(&new_authority(&node, Authority::FrontProxyCa, new_key())).remove(0);
    let path = "/etc/kubernetes/admin.conf";
    let text = node.read(path);
    let mut document = Kubeconfig::parse(&text).unwrap();
    let own = bundle(&node, Authority::Ca).remove(0);
    document
        .set_authority(&format!("{}{}", own.to_pem(), extra.to_pem()))
        .unwrap();
    let edited = document
        .to_yaml()
        .replace("kind: Config", "kind: Config\npreferences: {colors: true}");
    node.write(path, edited);
    // This kubeconfig names the bundle by file and needs no change.
    let path = "/etc/kubernetes/super-admin.conf";
    let text = node.read(path);
    let lines = text.lines().map(|line| match line.trim_start() {
        data if data.starts_with("certificate-authority-data") => {
            "    certificate-authority: /etc/kubernetes/pki/ca.crt".to_owned()
        }
        _ => line.to_owned(),
    });
    let by_file = lines.collect::<Vec<_>>().join("\n");
    node.write(path, &by_file);
    let new = new_authority(&node, Authority::Ca, new_key());
    stage(&node, Authority::Ca, &new).ended(75);
    let new_certificate = certificates(&new).remove(0);
    assert_eq!(
        trusted_by(&node, CertName::AdminConf),
        [own, new_certificate, extra]
    );
    assert!(
        node.read("/etc/kubernetes/admin.conf")
            .contains("colors: true")
    );
    assert_eq!(node.read(path), by_file);
    clear_due_restarts(&node);
    let report = report(&node, Authority::Ca);
    assert_eq!(report["authorities"][0]["missing"], serde_json::json!([]));
}

#[test]
fn changes_nothing_in_a_dry_run_of_any_step() {
    let (node, authority) = (Node::bootstrapped(), Authority::Ca);
    let new = new_authority(&node, authority, new_key());
    let dry_run = |name: &str, more: &[&str], words: &str| {
        let before = node.snapshot();
        step(&node, name, authority, &[&["--dry-run"], more].concat())
            .done()
            .says(words)
            .says("nothing was changed (to apply the change, omit --dry-run)");
        before.unchanged(&node.snapshot());
    };
    stage(&node, authority, &new).ended(75);
    clear_due_restarts(&node);
    dry_run(
        "stage",
        &["--undo", "--no-node-activated"],
        "ca.crt contains",
    );
    give_signer_new_authority(&node, authority);
    let words = "issued by the new CA: apiserver, ";
    dry_run("activate", &["--all-nodes-staged"], words);
    step(&node, "activate", authority, &["--all-nodes-staged"]).ended(75);
    clear_due_restarts(&node);
    dry_run("retire", &["--all-nodes-activated"], "ca.crt contains");
    // A step that is refused is refused in a dry run too.
    step(&node, "retire", authority, &["--dry-run"]).ended(65);
}

#[test]
fn reads_new_ca_in_every_encoding_and_refuses_a_third_one() {
    let made = Node::bootstrapped();
    let authority = Authority::Ca;
    let new = new_authority(&made, authority, new_key());
    let old_certificate = bundle(&made, authority).remove(0);
    let new_certificate = certificates(&new).remove(0);
    let pem = fs::read_to_string(&new).unwrap();
    let der = openssl(
        &["x509", "-in", new.to_str().unwrap(), "-outform", "DER"],
        b"",
    );
    let text = format!("The new CA:\r\n{}", pem.replace('\n', "\r\n"));
    for form in [der, text.into_bytes(), pem.repeat(2).into_bytes()] {
        let node = made.copied();
        let file = node.outside("form");
        fs::write(&file, form).unwrap();
        stage(&node, authority, &file).ended(75);
        assert_eq!(
            bundle(&node, authority),
            [old_certificate.clone(), new_certificate.clone()]
        );
    }

    stage(&made, authority, &new).ended(75);
    clear_due_restarts(&made);
    let before = made.snapshot();
    let third = new_authority(&made, authority, new_key());
    stage(&made, authority, &third)
        .ended(65)
        .says("is in progress since")
        .says("authority stage ca --undo");
    before.unchanged(&made.snapshot());

    // A CA file that nodepki does not manage is not changed.
    let path = "/etc/kubernetes/admin.conf";
    let elsewhere = made.read(path).lines().fold(String::new(), |text, line| {
        let other = line.contains("certificate-authority-data");
        let by_file = "    certificate-authority: pki/other.crt";
        text + if other { by_file } else { line } + "\n"
    });
    made.write(path, elsewhere);
    made.write("/etc/kubernetes/pki/other.crt", old_certificate.to_pem());
    step(&made, "activate", authority, &["--all-nodes-staged"])
        .ended(65)
        .says("pki/other.crt, which lacks")
        .says("add it there");
}

#[test]
fn writes_kubelet_conf_by_file_with_both_staged_cas() {
    let node = Node::new();
    node.settings("kubelet: {clientCertificate: file}\n");
    node.ask().done();
    let new = new_authority(&node, Authority::Ca, new_key());
    let stage = [
        "authority",
        "stage",
        "ca",
        "--certificate",
        new.to_str().unwrap(),
    ];
    Ran::of(&mut node.configured(stage)).ended(75);
    let both = trusted_by(&node, CertName::KubeletConf);
    assert_eq!(both.len(), 2);
    node.remove("/etc/kubernetes/kubelet.conf");
    node.ask().done();
    assert_eq!(trusted_by(&node, CertName::KubeletConf), both);
}

#[test]
fn removes_crls_of_the_retired_ca() {
    const PEM: &str = "/etc/kubernetes/pki/etcd/crl.pem";
    const DER: &str = "/etc/kubernetes/pki/etcd/crl.der";
    let (node, authority) = (Node::bootstrapped(), Authority::EtcdCa);
    let list = |ca: &Path| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("index.txt"), "").unwrap();
        // A CRL number makes the list version 2, the only one that Go parses.
        fs::write(dir.path().join("crlnumber"), "01\n").unwrap();
        let config = dir.path().join("ca.cnf");
        let lines = format!(
            "[ca]\ndefault_ca = d\n[d]\ndatabase = {0}/index.txt\ncrlnumber = {0}/crlnumber\ndefault_md = sha256\n",
            dir.path().display()
        );
        fs::write(&config, lines).unwrap();
        let (cert, key) = (ca.with_extension("crt"), ca.with_extension("key"));
        let mut arguments = vec!["ca", "-gencrl", "-crldays", "1", "-config"];
        arguments.push(config.to_str().unwrap());
        arguments.extend(["-cert", cert.to_str().unwrap()]);
        arguments.extend(["-keyfile", key.to_str().unwrap()]);
        String::from_utf8(openssl(&arguments, b"")).unwrap()
    };
    let new = new_authority(&node, authority, new_key());
    let (of_old, of_new) = (list(&node.ca().join("etcd/ca")), list(&new));
    stage(&node, authority, &new).ended(75);
    clear_due_restarts(&node);
    give_signer_new_authority(&node, authority);
    step(&node, "activate", authority, &["--all-nodes-staged"]).ended(75);
    clear_due_restarts(&node);
    let retire = |node: &Node| step(node, "retire", authority, &["--all-nodes-activated"]);

    let both = node.copied();
    both.write(PEM, format!("{of_old}{of_new}"));
    both.write(DER, "the first of them");
    retire(&both)
        .ended(75)
        .says("the revocation lists of the old CA are removed from");
    assert_eq!(both.read(PEM).trim(), of_new.trim());
    let der = both.path(DER);
    let arguments = ["crl", "-inform", "DER", "-in", der.to_str().unwrap()];
    assert_eq!(openssl(&arguments, b""), of_new.as_bytes());

    node.write(PEM, &of_old);
    node.write(DER, "the first of them");
    let manifest = "/etc/kubernetes/manifests/etcd.yaml";
    node.write(manifest, format!("- --client-crl-file={PEM}\n"));
    let before = node.snapshot();
    retire(&node)
        .ended(65)
        .says("etcd does not start without the file");
    before.unchanged(&node.snapshot());
    node.remove(manifest);
    retire(&node).ended(75);
    assert!(!node.path(PEM).exists() && !node.path(DER).exists());
}

#[cfg(feature = "failpoints")]
#[test]
fn completes_a_killed_step_in_the_next_run() {
    let authority = Authority::Ca;
    let made = Node::bootstrapped();
    let new = new_authority(&made, authority, new_key());
    let file = new.to_str().unwrap().to_owned();
    let kill = |node: &Node, step: &str, more: &[&str], at: &str| {
        let mut command = node.with_local(&["authority", step, authority.as_str()], more);
        let ran = Ran::of(command.env("NODEPKI_FAILPOINT", at));
        assert_eq!(ran.signal, Some(9), "{at}: {}", ran.said());
    };
    let finish = |node: &Node| {
        stage(node, authority, &new);
        clear_due_restarts(node);
        assert_eq!(bundle(node, authority).len(), 2);
        node.assert_sound(&CertName::KUBEADM);
    };
    let moments = [
        "commit:staged-one:3",
        "commit:journalled",
        "finish:rename-one:4",
        "authority:committed",
    ];
    for at in sampled(3, moments) {
        let node = made.copied();
        kill(&node, "stage", &["--certificate", &file], at);
        finish(&node);
        for name in KUBECONFIGS {
            assert_eq!(trusted_by(&node, name).len(), 2, "{at} {name}");
        }
    }
    let staged = made.copied();
    finish(&staged);
    give_signer_new_authority(&staged, authority);
    let activating = ["--all-nodes-staged"];
    let moments = [
        "authority:proven",
        "authority:committed",
        "authority:ordered",
        "request:submitting:4",
        "run:before-commit",
        "run:committed",
    ];
    for at in sampled(1, moments) {
        let node = staged.copied();
        kill(&node, "activate", &activating, at);
        let ran = step(&node, "activate", authority, &activating);
        ran.done_or_temporary();
        assert_leaves_under(&node, authority, &new);
        assert_eq!(phase(&node, authority), "activated", "{at}");
    }
}

mod on_a_cluster {
    //! The same steps on a control plane that serves clients.

    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use serde_json::json;

    use super::*;
    use crate::join_control_plane::{by_token, worker_configuration};
    use crate::runbook::run_ca_change_block;
    use crate::servers::cluster::{self, Authorities, Caller, Cluster, ClusterNode};
    use crate::servers::static_pods::StaticPods;
    use crate::time::{let_pass, wait_until};

    const NAMESPACE: &str = "/api/v1/namespaces/default";
    const ROOT_CA: &str = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt";

    /// `nodepki authority STEP AUTHORITY …` on the node.
    fn on(node: &ClusterNode, step: &str, authority: Authority, more: &[&str]) -> Ran {
        let common = [
            "--kubeadm-config",
            "/etc/kubeadm.yaml",
            "--signer",
            "local:/var/signer",
        ];
        node.nodepki(&[&["authority", step, authority.as_str()], &common[..], more].concat())
    }

    /// Creates a CA in `/var/new` of the node.
    fn make_new_authority(node: &ClusterNode, authority: Authority) {
        let key = new_key();
        let base = format!("/var/new/{}", authority.base_name());
        node.write_secret(&format!("{base}.key"), key.to_pem().as_str());
        let bundle = self_signed(authority, key).bundle().to_pem();
        node.write(&format!("{base}.crt"), &bundle);
    }

    /// Sets up the local signer of a node with the CAs of the cluster.
    fn set_up_signer(node: &ClusterNode, cluster: &Cluster) {
        let signer = node.path("/var/signer");
        copy_authorities(Authority::ALL, &cluster.authorities(), &signer);
    }

    /// Waits until the published CA certificates satisfy `condition`.
    fn wait_for_root_ca(
        caller: impl Fn() -> Value,
        what: &str,
        condition: impl Fn(&[Certificate]) -> bool,
    ) {
        wait_until(what, || {
            let map = caller();
            let text = map["data"]["ca.crt"].as_str().unwrap_or_default();
            certificates_of(text.as_bytes()).is_ok_and(|all| condition(&all))
        });
    }

    /// Waits until kube-controller-manager publishes exactly one ClusterTrustBundle for API servers, which satisfies `condition`.
    fn wait_for_trust_bundle(
        user: &Caller<'_>,
        what: &str,
        condition: impl Fn(&[Certificate]) -> bool,
    ) {
        const BUNDLES: &str = "/apis/certificates.k8s.io/v1/clustertrustbundles?fieldSelector=spec.signerName=kubernetes.io/kube-apiserver-serving";
        wait_until(what, || {
            let (_, list) = user.get(BUNDLES);
            let [bundle] = list["items"].as_array().map_or(&[][..], Vec::as_slice) else {
                return false;
            };
            let text = bundle["spec"]["trustBundle"].as_str().unwrap_or_default();
            certificates_of(text.as_bytes()).is_ok_and(|all| condition(&all))
        });
    }

    fn give_signer_new_ca(node: &ClusterNode, authority: Authority) {
        let (new, signer) = (node.path("/var/new"), node.path("/var/signer"));
        copy_authorities([authority], &new, &signer);
    }

    /// Number of restarts of each component.
    fn restarts(pods: &StaticPods) -> [usize; 4] {
        [
            "kube-controller-manager",
            "kube-scheduler",
            "kube-apiserver",
            "etcd",
        ]
        .map(|name| pods.restarts(name))
    }

    fn status_of(caller: &Caller<'_>) -> u16 {
        caller.get(NAMESPACE).0
    }

    /// Returns whether etcd accepts this client and serves a certificate that the client's CA file verifies.
    fn etcd_accepts(node: &ClusterNode, files: &str) -> bool {
        let of = |name: &str| format!("{files}/{name}");
        let curl = node.run(
            "curl",
            &[
                "--silent",
                "--fail",
                "--cacert",
                &of("ca.crt"),
                "--cert",
                &of("client.crt"),
                "--key",
                &of("client.key"),
                "https://127.0.0.1:2379/health",
            ],
        );
        curl.code == Some(0)
    }

    /// Copies the present files of an etcd client.
    fn copy_etcd_client(node: &ClusterNode, files: &str) {
        for (from, to) in [
            ("ca.crt", "ca.crt"),
            ("healthcheck-client.crt", "client.crt"),
            ("healthcheck-client.key", "client.key"),
        ] {
            let text = fs::read_to_string(node.pki("etcd").join(from)).unwrap();
            node.write(&format!("{files}/{to}"), &text);
        }
    }

    #[test]
    fn changes_ca_and_etcd_ca_while_clients_are_served() {
        let cluster = Cluster::start(Authorities::External);
        let node = cluster.first();
        node.write("/etc/kubeadm.yaml", cluster::INIT);
        set_up_signer(node, &cluster);
        for authority in Authority::ALL {
            make_new_authority(node, authority);
        }
        let pods = StaticPods::of(node);
        change_ca(&cluster, node, &pods);
        change_etcd_ca(&cluster, node, &pods);
    }

    struct SetOnDrop<'a>(&'a AtomicBool);

    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Runs a block of the documentation that calls `kubeadm token`, which needs a default route.
    fn with_default_route(node: &ClusterNode, block: usize) -> Ran {
        let route = |device| {
            node.run("ip", &["route", "replace", "default", "dev", device])
                .done();
        };
        route("eth0");
        let ran = run_ca_change_block(node, block);
        route("lo");
        ran
    }

    fn change_ca(cluster: &Cluster, node: &ClusterNode, pods: &StaticPods) {
        let ca = Authority::Ca;
        // Each step restarts the components that need it.
        on(node, "stage", ca, &["--certificate", "/var/new/ca.crt"])
            .done()
            .says("kube-controller-manager in effect: was restarted for ca")
            .says("kubelet not here: is not run by systemd here");
        assert_eq!(restarts(pods), [1, 1, 0, 0]);
        let new_certificate = certificates(&node.path("/var/new/ca.crt")).remove(0);
        let published = || cluster.admin().get(ROOT_CA).1;
        wait_for_root_ca(published, "kube-root-ca.crt contains both CAs", |all| {
            all.contains(&new_certificate)
        });
        let admin = &cluster.admin();
        wait_for_trust_bundle(admin, "the ClusterTrustBundle contains both CAs", |all| {
            all.len() == 2 && all.contains(&new_certificate)
        });

        // The documentation requires these commands after this step.
        on(node, "activate", ca, &["--dry-run"])
            .says("cluster-info in kube-public does not contain")
            .says("ca-change.md, On the cluster");
        let admin = cluster.admin();
        let deployments = "/apis/apps/v1/namespaces/default/deployments";
        let labels = json!({"app": "old"});
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "old"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "old", "image": "old"}]},
                },
            },
        });
        assert_eq!(admin.post(deployments, &deployment).0, 201);
        run_ca_change_block(node, 0).done();
        wait_until("every ConfigMap has the new CA", || {
            let ran = run_ca_change_block(node, 1);
            ran.done();
            !ran.said().contains("does not hold")
        });
        run_ca_change_block(node, 2).done();
        let (_, restarted) = admin.get(&format!("{deployments}/old"));
        let template = restarted["spec"]["template"]["metadata"].to_string();
        assert!(
            template.contains("kubectl.kubernetes.io/restartedAt"),
            "{template}"
        );

        let staged = cluster.admin();
        assert_eq!(status_of(&staged), 200);
        give_signer_new_ca(node, ca);
        let (stop, asked, failed) = (
            AtomicBool::new(false),
            AtomicUsize::new(0),
            Mutex::new(Vec::<String>::new()),
        );
        thread::scope(|scope| {
            // A panic below stops the client too.
            let end = SetOnDrop(&stop);
            // A client with a certificate of the old CA that trusts both CAs.
            let client = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    asked.fetch_add(1, Ordering::Relaxed);
                    let (status, said) = staged.get(NAMESPACE);
                    if status != 200 {
                        failed.lock().unwrap().push(format!("{status}: {said}"));
                    }
                }
            });
            // The API server lists this node alone, so no confirmation for other nodes is needed.
            on(node, "activate", ca, &[])
                .done()
                .says_not("does not hold")
                .says("ca-change.md, On the cluster")
                .says("kube-apiserver serves serial");
            assert_eq!(restarts(pods), [2, 2, 0, 0]);
            let_pass(Duration::from_secs(2));
            let renewed = cluster.admin();
            assert_eq!(status_of(&renewed), 200);
            drop(end);
            client.join().unwrap();
        });
        assert!(asked.into_inner() > 10);
        assert_eq!(failed.into_inner().unwrap(), Vec::<String>::new());

        let served = node.run(
            "curl",
            &[
                "--silent",
                "--fail",
                "--cacert",
                "/var/new/ca.crt",
                &format!("https://{}:6443/readyz", node.address()),
            ],
        );
        served.done();
        on(node, "retire", ca, &[])
            .done()
            .says("ca-change.md, On the cluster");
        assert_eq!(restarts(pods), [3, 3, 0, 0]);
        let renewed = cluster.admin();
        assert_eq!(status_of(&renewed), 200);
        with_default_route(node, 3).done().says("kubeadm join ");
        let info = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
        let (_, info) = renewed.get(info);
        let info = Kubeconfig::parse(info["data"]["kubeconfig"].as_str().unwrap()).unwrap();
        let trusted = info.to_join().unwrap().authority.unwrap();
        let trusted = certificates_of(&trusted).unwrap();
        assert_eq!(trusted, std::slice::from_ref(&new_certificate));
        wait_until("the API server rejects clients of the old CA", || {
            status_of(&staged) == 401
        });
        // kube-controller-manager works with its renewed certificate.
        let published = || renewed.get(ROOT_CA).1;
        wait_for_root_ca(
            published,
            "kube-root-ca.crt contains the new CA alone",
            |all| all == [new_certificate.clone()],
        );
        wait_for_trust_bundle(
            &renewed,
            "the ClusterTrustBundle contains the new CA alone",
            |all| all == [new_certificate.clone()],
        );
    }

    fn change_etcd_ca(cluster: &Cluster, node: &ClusterNode, pods: &StaticPods) {
        let etcd = Authority::EtcdCa;
        let file = "/var/new/etcd/ca.crt";
        on(node, "stage", etcd, &["--certificate", file]).done();
        assert_eq!(restarts(pods), [3, 3, 1, 1]);
        copy_etcd_client(node, "/var/staged");
        assert!(etcd_accepts(node, "/var/staged"));
        give_signer_new_ca(node, etcd);
        on(node, "activate", etcd, &[]).done();
        copy_etcd_client(node, "/var/activated");
        for files in ["/var/staged", "/var/activated"] {
            assert!(etcd_accepts(node, files), "{files}");
        }
        let admin = cluster.admin();
        assert_eq!(status_of(&admin), 200);
        on(node, "retire", etcd, &[]).done();
        assert_eq!(restarts(pods), [3, 3, 2, 2]);
        assert!(etcd_accepts(node, "/var/activated"));
        assert!(!etcd_accepts(node, "/var/staged"));
        assert_eq!(status_of(&admin), 200);
    }

    /// Copies the report of a node to the first node and returns its path there.
    fn copy_report(node: &ClusterNode, first: &ClusterNode) -> String {
        let ran = node.nodepki(&["-o", "json", "authority", "status", "ca"]);
        ran.done();
        let file = format!("/var/{}.json", node.name());
        first.write(&file, &ran.stdout);
        file
    }

    #[test]
    fn accepts_reports_of_a_worker_in_every_step() {
        const SETTINGS: &str = "/etc/nodepki/config.yaml";
        let ca = Authority::Ca;
        let init = cluster::INIT.replace(
            "encryptionAlgorithm:",
            "clusterName: prod\nencryptionAlgorithm:",
        );
        let cluster = Cluster::made_of(&init, Authorities::External);
        let first = cluster.first();
        first.write("/etc/kubeadm.yaml", &init);
        let worker = cluster.add_node("w1", "192.0.2.31");
        for node in [first, &worker] {
            set_up_signer(node, &cluster);
        }
        make_new_authority(first, ca);
        for file in ["ca.crt", "ca.key"] {
            let text = fs::read_to_string(first.path("/var/new").join(file)).unwrap();
            worker.write_secret(&format!("/var/new/{file}"), &text);
        }
        let _pods = StaticPods::of(first);

        // The worker joins with a token and reads the cluster's name.
        let admin = cluster.admin();
        let registered = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "w1"}});
        assert_eq!(admin.post("/api/v1/nodes", &registered).0, 201);
        worker.write(
            SETTINGS,
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nsigners: {own: {local: {directory: /var/signer}}}\nauthorities: {ca: {signer: own}}\nreload: {hooks: [{on: [kubelet], command: [/bin/sh, -c, 'test ! -e /var/broken']}]}\n",
        );
        let config = worker_configuration(&worker, &by_token(&cluster));
        worker.write_secret("/run/kubeadm/kubeadm-join-config.yaml", &config);
        worker.nodepki(&["bootstrap"]).done();
        fs::remove_file(worker.path("/run/kubeadm/kubeadm-join-config.yaml")).unwrap();

        on(first, "stage", ca, &["--certificate", "/var/new/ca.crt"]).done();
        let new_certificate = certificates(&first.path("/var/new/ca.crt")).remove(0);
        let published = || cluster.admin().get(ROOT_CA).1;
        wait_for_root_ca(published, "kube-root-ca.crt contains both CAs", |all| {
            all.contains(&new_certificate)
        });
        give_signer_new_ca(first, ca);
        let by_report = |step: &str| {
            let file = copy_report(&worker, first);
            on(first, step, ca, &["--peer-report", &file])
        };
        on(first, "activate", ca, &[])
            .ended(65)
            .says("the progress of w1 is unknown");
        by_report("activate")
            .ended(65)
            .says("w1 does not meet the requirement")
            .says("not all files there trust");
        let take = |step: &str, more: &[&str]| {
            worker.nodepki(&[&["authority", step, "ca"], more].concat())
        };
        // Its kubelet does not become ready: the CA certificates in its two files are rolled back together.
        let files = || {
            let files = ["/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/kubelet.conf"];
            files.map(|file| fs::read_to_string(worker.path(file)).unwrap())
        };
        let before = files();
        worker.write("/var/broken", "");
        take("stage", &["--certificate", "/var/new/ca.crt"])
            .ended(65)
            .says("kubelet rolled back: did not become ready with the new ca")
            .says_not("kube-controller-manager waits");
        assert!(before == files());
        by_report("activate")
            .ended(65)
            .says("not all files there trust");
        fs::remove_file(worker.path("/var/broken")).unwrap();
        take("stage", &["--certificate", "/var/new/ca.crt"])
            .done()
            .says("kubelet in effect: was restarted for ca");
        by_report("activate")
            .done()
            .says("w1 meets the requirement");

        by_report("retire")
            .ended(65)
            .says("kubelet.conf is not under");
        give_signer_new_ca(&worker, ca);
        take("activate", &["--all-nodes-staged"]).done();
        by_report("retire").done().says("w1 meets the requirement");
        take("retire", &["--all-nodes-activated"]).done();
        let left = certificates(&worker.pki("ca.crt"));
        assert_eq!(left, std::slice::from_ref(&new_certificate));
    }
}
