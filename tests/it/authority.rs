//! A CA is changed by the real binary: what is trusted, issued and refused in each phase, judged by OpenSSL and by the
//! real kubeadm; and on a real cluster that serves meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{Certificate, CertificateAuthority, KeyAlgorithm, PrivateKey, certificates_of};
use serde_json::Value;

use crate::kubeadm;
use crate::node::{INIT, JOIN, Node, Ran};
use crate::signing::{now, openssl, write_secret};

const YEAR: Duration = Duration::from_secs(365 * 86_400);
const RESTARTS: &str = "/var/lib/nodepki/restarts.json";
const KUBECONFIGS: [CertName; 5] = [
    CertName::AdminConf,
    CertName::SuperAdminConf,
    CertName::KubeletConf,
    CertName::ControllerManagerConf,
    CertName::SchedulerConf,
];

fn bundle_path(authority: Authority) -> String {
    format!("/etc/kubernetes/pki/{}.crt", authority.base_name())
}

/// A new CA in `new/` beside the node, in kubeadm's layout: its certificate's path.
fn new_authority(node: &Node, authority: Authority, key: Option<PrivateKey>) -> PathBuf {
    let key = key.unwrap_or_else(|| PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap());
    let pem = key.to_pem();
    let name = authority.common_name();
    let made = CertificateAuthority::self_signed(name, key, now(), 10 * YEAR).unwrap();
    let base = node.outside("new").join(authority.base_name());
    fs::create_dir_all(base.parent().unwrap()).unwrap();
    write_secret(base.with_extension("key"), pem.as_bytes());
    let certificate = base.with_extension("crt");
    fs::write(&certificate, made.bundle().to_pem()).unwrap();
    certificate
}

/// From now on the local signer has the new CA.
fn signer_changes(node: &Node, authority: Authority) {
    for extension in ["crt", "key"] {
        let file = format!("{}.{extension}", authority.base_name());
        fs::copy(node.outside("new").join(&file), node.ca().join(&file)).unwrap();
    }
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
    assert!(matches!(ran.code, Some(0 | 75)), "{}", ran.said());
    serde_json::from_str(&ran.stdout).unwrap()
}

fn phase(node: &Node, authority: Authority) -> String {
    let report = report(node, authority);
    report["authorities"][0]["phase"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// What the reload would do: below a root of its own nothing runs.
fn restarted(node: &Node) {
    let _ = fs::remove_file(node.path(RESTARTS));
}

/// The components whose restart is recorded.
fn due(node: &Node) -> BTreeSet<String> {
    let Ok(text) = fs::read_to_string(node.path(RESTARTS)) else {
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

fn trusted_by(node: &Node, name: CertName) -> Vec<Certificate> {
    let text = node.read(format!("/etc/kubernetes/{name}"));
    let current = Kubeconfig::parse(&text).unwrap().current().unwrap();
    certificates_of(&current.authority.unwrap()).unwrap()
}

fn names_of(authority: Authority) -> Vec<CertName> {
    let names = CertName::KUBEADM.into_iter();
    names.filter(|name| name.authority() == authority).collect()
}

/// OpenSSL verifies every leaf of the authority under this one certificate.
fn leads_to(node: &Node, authority: Authority, certificate: &Path) {
    let scratch = tempfile::tempdir().unwrap();
    for name in names_of(authority) {
        let file = scratch.path().join(name.as_str());
        fs::write(&file, node.leaf(name).unwrap().0.to_pem()).unwrap();
        let (ca, file) = (certificate.to_str().unwrap(), file.to_str().unwrap());
        openssl(&["verify", "-CAfile", ca, file], b"");
    }
}

/// Nothing that looks after the node sees anything to do or anything wrong, and kubeadm would go on.
fn at_ease(node: &Node, findings: &BTreeSet<String>) {
    let before = node.etc();
    node.bootstrap().done();
    node.plan().done();
    before.unchanged(&node.etc());
    let plan = node.plan();
    for word in ["issue", "rewrite"] {
        assert!(!plan.stdout.contains(word), "{}", plan.said());
    }
    node.assert_sound(&CertName::KUBEADM);
    assert_eq!(*findings, ill(node), "doctor");
    kubeadm::accepts_external_ca(&node.path("/etc/kubernetes"), INIT);
}

/// What doctor finds wrong, by id.
fn ill(node: &Node) -> BTreeSet<String> {
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
fn each_authority_is_changed_in_three_steps() {
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
        let findings = ill(&node);
        let old = node.ca().join(authority.base_name()).with_extension("crt");
        let was = certificates(&old).remove(0);
        let old = {
            let kept = node.outside("old.crt");
            fs::copy(old, &kept).unwrap();
            kept
        };
        let new = new_authority(&node, authority, None);
        let comes = certificates(&new).remove(0);
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
        .says(&nodepki::x509::hex(&comes.fingerprint()));
        before.unchanged(&node.snapshot());

        // Below a root of its own nothing can be proven, whatever it is.
        stage(&node, authority, &new).ended(75).says("staged");
        assert_eq!(bundle(&node, authority), [was.clone(), comes.clone()]);
        assert_eq!(due(&node), expected);
        let kubeconfigs = || KUBECONFIGS.iter().filter(|_| authority == Authority::Ca);
        for name in kubeconfigs() {
            assert_eq!(
                trusted_by(&node, *name),
                [was.clone(), comes.clone()],
                "{name}"
            );
        }
        leads_to(&node, authority, &old);
        at_ease(&node, &findings);
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
            .says("`nodepki renew` on the node itself carries out what is due");
        restarted(&node);
        step(&node, "activate", authority, &[])
            .ended(65)
            .says("--peer-report")
            .says("--all-nodes-staged");
        // The signer has the old CA still.
        step(&node, "activate", authority, &["--all-nodes-staged"])
            .ended(65)
            .says("to prove that it signs for");
        staged.unchanged(&node.etc());
        assert_eq!(phase(&node, authority), "staged");

        signer_changes(&node, authority);
        let activated = step(&node, "activate", authority, &["--all-nodes-staged"]);
        assert!(
            matches!(activated.code, Some(0 | 75)),
            "{}",
            activated.said()
        );
        activated.says("has signed a certificate like");
        assert_eq!(bundle(&node, authority), [comes.clone(), was.clone()]);
        for name in kubeconfigs() {
            assert_eq!(
                trusted_by(&node, *name),
                [comes.clone(), was.clone()],
                "{name}"
            );
        }
        leads_to(&node, authority, &new);
        at_ease(&node, &findings);
        assert_eq!(phase(&node, authority), "activated");
        let before = node.etc();
        step(&node, "activate", authority, &["--all-nodes-staged"]).says("nothing to do");
        before.unchanged(&node.etc());

        if authority == Authority::Ca {
            step(&node, "retire", authority, &["--all-nodes-activated"])
                .ended(65)
                .says("kube-controller-manager was not restarted since");
        }
        restarted(&node);
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
        .says("since it was activated");
        step(&node, "retire", authority, &["--all-nodes-activated"]).ended(75);
        assert_eq!(bundle(&node, authority), std::slice::from_ref(&comes));
        for name in kubeconfigs() {
            assert_eq!(
                trusted_by(&node, *name),
                std::slice::from_ref(&comes),
                "{name}"
            );
        }
        assert_eq!(due(&node), expected);
        restarted(&node);
        at_ease(&node, &findings);
        assert_eq!(phase(&node, authority), "settled");
        stage(&node, authority, &new).done().says("nothing to do");
    }
}

#[test]
fn a_staged_ca_is_taken_out_again() {
    let node = Node::bootstrapped();
    let before = node.etc();
    let new = new_authority(&node, Authority::Ca, None);
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
    restarted(&node);
    step(&node, "stage", Authority::Ca, &["--undo"])
        .done()
        .says("nothing to do");
}

#[test]
fn the_reports_of_other_nodes_are_read_and_weighed() {
    let authority = Authority::EtcdCa;
    let (first, second) = (Node::bootstrapped(), Node::of(JOIN));
    fs::remove_dir_all(second.ca()).unwrap();
    kubeadm::copy_tree(&first.outside(""), &second.outside("first"));
    fs::rename(second.outside("first/ca"), second.ca()).unwrap();
    for file in [
        "ca.crt",
        "etcd/ca.crt",
        "front-proxy-ca.crt",
        "sa.key",
        "sa.pub",
    ] {
        let path = format!("/etc/kubernetes/pki/{file}");
        second.write(&path, fs::read(first.path(&path)).unwrap());
    }
    second.bootstrap().done();
    let new = new_authority(&first, authority, None);
    stage(&first, authority, &new).ended(75);
    restarted(&first);

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
        .says("cp2 is not as far")
        .says("it does not trust CN=etcd-ca");
    stage(&second, authority, &new).ended(75);
    activate(&write("waiting.json"))
        .ended(65)
        .says("restarts are due there");
    restarted(&second);
    let ready = write("ready.json");
    signer_changes(&first, authority);
    activate(&ready).ended(75).says("cp2 is as far");
    step(&first, "retire", authority, &["--all-nodes-activated"])
        .ended(65)
        .says("nobody has looked yet whether what was replaced is in effect (etcd-");
    restarted(&first);
    let retire = ["--peer-report", &ready, "--all-nodes-activated"];
    step(&first, "retire", authority, &retire)
        .ended(65)
        .says("are not under CN=etcd-ca");
    let garbage = first.outside("garbage.json");
    fs::write(&garbage, "{}").unwrap();
    activate(garbage.to_str().unwrap())
        .ended(65)
        .says("is not what a node reports");
}

#[test]
fn a_renewed_ca_certificate_needs_no_new_leaf() {
    let node = Node::bootstrapped();
    let key = fs::read(node.ca().join("ca.key")).unwrap();
    let key = PrivateKey::from_pem(&key).unwrap();
    let new = new_authority(&node, Authority::Ca, Some(key));
    let leaves = || CertName::KUBEADM.map(|name| node.leaf(name).unwrap().0.to_pem());
    let before = leaves();
    stage(&node, Authority::Ca, &new)
        .ended(75)
        .says("its certificate is renewed");
    restarted(&node);
    // Nobody is asked, neither a peer nor the signer.
    step(&node, "activate", Authority::Ca, &[]).done();
    step(&node, "retire", Authority::Ca, &[]).ended(75);
    assert_eq!(bundle(&node, Authority::Ca), certificates(&new));
    assert_eq!(leaves(), before);
    leads_to(&node, Authority::Ca, &new);
}

#[test]
#[cfg(feature = "failpoints")]
fn reports_activation_as_pending_while_certificates_are_under_old_ca() {
    let node = Node::bootstrapped();
    let authority = Authority::FrontProxyCa;
    let old = certificates(&node.path(bundle_path(authority)));
    let new = new_authority(&node, authority, None);
    stage(&node, authority, &new);
    restarted(&node);
    signer_changes(&node, authority);
    // The signer passes the rehearsal, whose request has another slot, and is away afterwards.
    let activate = || {
        let mut command = node.command([
            "authority",
            "activate",
            authority.as_str(),
            "--all-nodes-staged",
            "--wait",
            "0s",
        ]);
        command
            .arg("--config")
            .arg(node.outside("config.yaml"))
            .arg("--kubeadm-config")
            .arg(node.outside("kubeadm.yaml"));
        command
    };
    let before = node.leaf(CertName::FrontProxyClient).unwrap().0.to_pem();
    // Everything that is proven before the certificates are asked for is behind it in a second run.
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
            .says_not("without --dry-run it is done");
        assert!(!ran.stdout.starts_with("issued by"), "{}", ran.said());
        assert_eq!(
            node.leaf(CertName::FrontProxyClient).unwrap().0.to_pem(),
            before
        );
    }
    // The step after it refuses, too.
    step(&node, "retire", authority, &["--all-nodes-activated"]).ended(65);
    node.signer_behaves();
    let ran = Ran::of(&mut activate());
    ran.says("issued by the new CA: front-proxy-client");
    assert!(matches!(ran.code, Some(0 | 75)), "{}", ran.said());
    assert_ne!(certificates(&node.path(bundle_path(authority))), old);
    leads_to(&node, authority, &new);
}

#[test]
fn what_cannot_be_staged_is_said_and_nothing_is_changed() {
    let node = Node::bootstrapped();
    let ca = Authority::Ca;
    let new = new_authority(&node, ca, None);
    let before = node.etc();
    // Without pins nothing that a signer says is believed.
    step(&node, "stage", ca, &[])
        .ended(78)
        .says("--certificate FILE")
        .says("authorities.ca.trust.sha256");
    step(&node, "stage", ca, &["--certificate", "/nowhere.crt"])
        .ended(64)
        .says("there is no such file");
    let leaf = node.path("/etc/kubernetes/pki/apiserver.crt");
    stage(&node, ca, &leaf)
        .ended(65)
        .says("is not a CA certificate");

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
        .says("takes no file with two certificates");
    // What it says is to be done does it.
    let said = refused.stderr.clone();
    let commands = said.split("of its own first: ").nth(1).unwrap();
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
fn the_signer_is_believed_under_pins() {
    let node = Node::new();
    let ca = Authority::Ca;
    let pin = |path: &Path| {
        let key = certificates(path).remove(0);
        format!("sha256:{}", nodepki::x509::hex(&key.public_key().sha256()))
    };
    let old = pin(&node.ca().join("ca.crt"));
    let new = new_authority(&node, ca, None);
    let settings = |pins: &str| {
        node.settings("");
        let path = node.outside("config.yaml");
        let text = fs::read_to_string(&path).unwrap();
        let text = text.replacen(
            "{ca: {signer: s}",
            &format!("{{ca: {{signer: s, trust: {{sha256: [{pins}]}}}}"),
            1,
        );
        fs::write(path, text).unwrap();
    };
    settings(&format!("'{old}'"));
    node.ask().done();
    let stage = || {
        let mut command = node.command(["authority", "stage", "ca", "--wait", "0s"]);
        command.arg("--config").arg(node.outside("config.yaml"));
        command
            .arg("--kubeadm-config")
            .arg(node.outside("kubeadm.yaml"));
        Ran::of(&mut command)
    };
    stage().done().says("nothing to do");
    signer_changes(&node, ca);
    let before = node.etc();
    stage()
        .ended(65)
        .says("authorities.ca.trust.sha256 must have the new CA beside the old one");
    before.unchanged(&node.etc());
    settings(&format!("'{old}', '{}'", pin(&new)));
    stage().ended(75).says("compare them with the CA's owner");
    assert_eq!(bundle(&node, ca).len(), 2);
    node.ask().done();
}

#[test]
fn kubeconfigs_of_people_keep_what_is_theirs() {
    let node = Node::bootstrapped();
    let extra = certificates(&new_authority(&node, Authority::FrontProxyCa, None)).remove(0);
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
    // This one follows the bundle by itself.
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
    let new = new_authority(&node, Authority::Ca, None);
    stage(&node, Authority::Ca, &new).ended(75);
    let comes = certificates(&new).remove(0);
    assert_eq!(trusted_by(&node, CertName::AdminConf), [own, comes, extra]);
    assert!(
        node.read("/etc/kubernetes/admin.conf")
            .contains("colors: true")
    );
    assert_eq!(node.read(path), by_file);
    restarted(&node);
    let report = report(&node, Authority::Ca);
    assert_eq!(report["authorities"][0]["missing"], serde_json::json!([]));
}

#[test]
fn a_look_at_any_step_changes_nothing() {
    let (node, authority) = (Node::bootstrapped(), Authority::Ca);
    let new = new_authority(&node, authority, None);
    let looks = |name: &str, more: &[&str], words: &str| {
        let before = node.snapshot();
        step(&node, name, authority, &[&["--dry-run"], more].concat())
            .done()
            .says(words)
            .says("nothing was changed; without --dry-run it is done");
        before.unchanged(&node.snapshot());
    };
    stage(&node, authority, &new).ended(75);
    restarted(&node);
    looks("stage", &["--undo", "--no-node-activated"], "ca.crt holds");
    signer_changes(&node, authority);
    let words = "issued by the new CA: apiserver, ";
    looks("activate", &["--all-nodes-staged"], words);
    step(&node, "activate", authority, &["--all-nodes-staged"]).ended(75);
    restarted(&node);
    looks("retire", &["--all-nodes-activated"], "ca.crt holds");
    // A step that is not allowed is not allowed to be looked at either.
    step(&node, "retire", authority, &["--dry-run"]).ended(65);
}

#[test]
fn a_new_ca_is_read_in_every_form_and_is_the_only_one() {
    let made = Node::bootstrapped();
    let authority = Authority::Ca;
    let new = new_authority(&made, authority, None);
    let was = bundle(&made, authority).remove(0);
    let comes = certificates(&new).remove(0);
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
        assert_eq!(bundle(&node, authority), [was.clone(), comes.clone()]);
    }

    stage(&made, authority, &new).ended(75);
    restarted(&made);
    let before = made.snapshot();
    let third = new_authority(&made, authority, None);
    stage(&made, authority, &third)
        .ended(65)
        .says("is under way since")
        .says("authority stage ca --undo");
    before.unchanged(&made.snapshot());

    // What is somebody else's file is somebody else's to write.
    let path = "/etc/kubernetes/admin.conf";
    let elsewhere = made.read(path).lines().fold(String::new(), |text, line| {
        let other = line.contains("certificate-authority-data");
        let by_file = "    certificate-authority: pki/other.crt";
        text + if other { by_file } else { line } + "\n"
    });
    made.write(path, elsewhere);
    made.write("/etc/kubernetes/pki/other.crt", was.to_pem());
    step(&made, "activate", authority, &["--all-nodes-staged"])
        .ended(65)
        .says("pki/other.crt, which lacks")
        .says("add it there");
}

#[test]
fn a_kubelet_conf_by_file_that_is_written_anew_trusts_both() {
    let node = Node::new();
    node.settings("kubelet: {clientCertificate: file}\n");
    node.ask().done();
    let new = new_authority(&node, Authority::Ca, None);
    let mut command = node.command(["authority", "stage", "ca", "--certificate"]);
    command.arg(&new);
    for (option, file) in [
        ("--config", "config.yaml"),
        ("--kubeadm-config", "kubeadm.yaml"),
    ] {
        command.arg(option).arg(node.outside(file));
    }
    Ran::of(&mut command).ended(75);
    let both = trusted_by(&node, CertName::KubeletConf);
    assert_eq!(both.len(), 2);
    node.remove("/etc/kubernetes/kubelet.conf");
    node.ask().done();
    assert_eq!(trusted_by(&node, CertName::KubeletConf), both);
}

#[test]
fn revocation_lists_of_the_old_ca_go_with_it() {
    const PEM: &str = "/etc/kubernetes/pki/etcd/crl.pem";
    const DER: &str = "/etc/kubernetes/pki/etcd/crl.der";
    let (node, authority) = (Node::bootstrapped(), Authority::EtcdCa);
    let list = |ca: &Path| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("index.txt"), "").unwrap();
        // With a number the list is of version 2, the only one that Go parses.
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
    let new = new_authority(&node, authority, None);
    let (of_old, of_new) = (list(&node.ca().join("etcd/ca")), list(&new));
    stage(&node, authority, &new).ended(75);
    restarted(&node);
    signer_changes(&node, authority);
    step(&node, "activate", authority, &["--all-nodes-staged"]).ended(75);
    restarted(&node);
    let retire = |node: &Node| step(node, "retire", authority, &["--all-nodes-activated"]);

    let both = node.copied();
    both.write(PEM, format!("{of_old}{of_new}"));
    both.write(DER, "the first of them");
    retire(&both)
        .ended(75)
        .says("loses the revocation lists of the old CA");
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
fn a_step_that_is_killed_anywhere_is_finished_by_the_next_one() {
    let authority = Authority::Ca;
    let made = Node::bootstrapped();
    let new = new_authority(&made, authority, None);
    let file = new.to_str().unwrap().to_owned();
    let kill = |node: &Node, step: &str, more: &[&str], at: &str| {
        let mut command = node.with_local(&["authority", step, authority.as_str()], more);
        let ran = Ran::of(command.env("NODEPKI_FAILPOINT", at));
        assert_eq!(ran.signal, Some(9), "{at}: {}", ran.said());
    };
    let finish = |node: &Node| {
        stage(node, authority, &new);
        restarted(node);
        assert_eq!(bundle(node, authority).len(), 2);
        node.assert_sound(&CertName::KUBEADM);
    };
    for at in [
        "commit:staged-one:3",
        "commit:journalled",
        "finish:rename-one:4",
        "authority:committed",
    ] {
        let node = made.copied();
        kill(&node, "stage", &["--certificate", &file], at);
        finish(&node);
        for name in KUBECONFIGS {
            assert_eq!(trusted_by(&node, name).len(), 2, "{at} {name}");
        }
    }
    let staged = made.copied();
    finish(&staged);
    signer_changes(&staged, authority);
    let activating = ["--all-nodes-staged"];
    for at in [
        "authority:proven",
        "authority:committed",
        "authority:ordered",
        "request:submitting:4",
        "run:before-commit",
        "run:committed",
    ] {
        let node = staged.copied();
        kill(&node, "activate", &activating, at);
        let ran = step(&node, "activate", authority, &activating);
        assert!(matches!(ran.code, Some(0 | 75)), "{at}: {}", ran.said());
        leads_to(&node, authority, &new);
        assert_eq!(phase(&node, authority), "activated", "{at}");
    }
}

mod on_a_cluster {
    //! The whole of it while the control plane serves.

    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use serde_json::json;

    use super::*;
    use crate::join_control_plane::{by_token, worker_configuration};
    use crate::runbook::run_block;
    use crate::servers::cluster::{self, Authorities, Caller, Cluster, ClusterNode, wait_until};
    use crate::servers::static_pods::StaticPods;

    const NAMESPACE: &str = "/api/v1/namespaces/default";

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

    fn make_new(node: &ClusterNode, authority: Authority) {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let base = format!("/var/new/{}", authority.base_name());
        node.write_secret(&format!("{base}.key"), key.to_pem().as_str());
        let name = authority.common_name();
        let made = CertificateAuthority::self_signed(name, key, now(), 10 * YEAR).unwrap();
        node.write(&format!("{base}.crt"), &made.bundle().to_pem());
    }

    fn signer_has_new(node: &ClusterNode, authority: Authority) {
        for extension in ["crt", "key"] {
            let file = format!("{}.{extension}", authority.base_name());
            let (new, signer) = (format!("/var/new/{file}"), format!("/var/signer/{file}"));
            fs::copy(node.path(&new), node.path(&signer)).unwrap();
        }
    }

    /// How often each was started anew.
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

    /// Whether etcd takes this client, and shows a certificate that the client's CA file vouches for.
    fn etcd_takes(node: &ClusterNode, files: &str) -> bool {
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

    /// What a client of etcd has now.
    fn keep_etcd_client(node: &ClusterNode, files: &str) {
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
    fn ca_and_etcd_ca_are_changed_while_clients_are_served() {
        let cluster = Cluster::start(Authorities::External);
        let node = cluster.first();
        node.write("/etc/kubeadm.yaml", cluster::INIT);
        fs::create_dir_all(node.path("/var/signer/etcd")).unwrap();
        for authority in Authority::ALL {
            for extension in ["crt", "key"] {
                let file = format!("{}.{extension}", authority.base_name());
                let to = node.path("/var/signer").join(&file);
                fs::copy(cluster.authorities().join(&file), to).unwrap();
            }
            make_new(node, authority);
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

    /// Runs a block of the runbook with `kubeadm token`, which looks for the address of the default route.
    fn with_default_route(node: &ClusterNode, block: usize) -> Ran {
        let route = |device| {
            node.run("ip", &["route", "replace", "default", "dev", device])
                .done();
        };
        route("eth0");
        let ran = run_block(node, 8, block);
        route("lo");
        ran
    }

    fn change_ca(cluster: &Cluster, node: &ClusterNode, pods: &StaticPods) {
        let ca = Authority::Ca;
        // Each step carries out the restarts that it takes.
        on(node, "stage", ca, &["--certificate", "/var/new/ca.crt"])
            .done()
            .says("kube-controller-manager in effect: was restarted for ca")
            .says("kubelet not here: is not run by systemd here");
        assert_eq!(restarts(pods), [1, 1, 0, 0]);
        let comes = certificates(&node.path("/var/new/ca.crt")).remove(0);
        let published = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt";
        wait_until("kube-root-ca.crt has both", || {
            let (_, map) = cluster.admin().get(published);
            let text = map["data"]["ca.crt"].as_str().unwrap_or_default();
            certificates_of(text.as_bytes()).is_ok_and(|all| all.contains(&comes))
        });

        // What the runbook has done after this step.
        on(node, "activate", ca, &["--dry-run"])
            .says("cluster-info in kube-public does not hold")
            .says("runbook.md, section 8");
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
        run_block(node, 8, 0).done();
        wait_until("every ConfigMap has the new CA", || {
            let ran = run_block(node, 8, 1);
            ran.done();
            !ran.said().contains("does not hold")
        });
        run_block(node, 8, 2).done();
        let (_, restarted) = admin.get(&format!("{deployments}/old"));
        let template = restarted["spec"]["template"]["metadata"].to_string();
        assert!(
            template.contains("kubectl.kubernetes.io/restartedAt"),
            "{template}"
        );

        let staged = cluster.admin();
        assert_eq!(status_of(&staged), 200);
        signer_has_new(node, ca);
        let (stop, asked, failed) = (
            AtomicBool::new(false),
            AtomicUsize::new(0),
            Mutex::new(Vec::<String>::new()),
        );
        thread::scope(|scope| {
            // A failure below ends the client too.
            let end = SetOnDrop(&stop);
            // Somebody whose certificate the old CA has signed, and who trusts both.
            let client = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    asked.fetch_add(1, Ordering::Relaxed);
                    let (status, said) = staged.get(NAMESPACE);
                    if status != 200 {
                        failed.lock().unwrap().push(format!("{status}: {said}"));
                    }
                }
            });
            // The API lists this node alone, so that nobody has to say anything.
            on(node, "activate", ca, &[])
                .done()
                .says_not("does not hold")
                .says("runbook.md, section 8")
                .says("kube-apiserver serves serial");
            assert_eq!(restarts(pods), [2, 2, 0, 0]);
            thread::sleep(Duration::from_secs(2));
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
            .says("runbook.md, section 8");
        assert_eq!(restarts(pods), [3, 3, 0, 0]);
        let renewed = cluster.admin();
        assert_eq!(status_of(&renewed), 200);
        with_default_route(node, 3).done().says("kubeadm join ");
        let info = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
        let (_, info) = renewed.get(info);
        let info = Kubeconfig::parse(info["data"]["kubeconfig"].as_str().unwrap()).unwrap();
        let believed = info.to_join().unwrap().authority.unwrap();
        let believed = certificates_of(&believed).unwrap();
        assert_eq!(believed, std::slice::from_ref(&comes));
        wait_until("the old CA's clients are nobody", || {
            status_of(&staged) == 401
        });
        // Both are at work, with what they have now.
        wait_until("kube-controller-manager publishes the new CA alone", || {
            let (_, map) = renewed.get(published);
            let text = map["data"]["ca.crt"].as_str().unwrap_or_default();
            certificates_of(text.as_bytes()).is_ok_and(|all| all == [comes.clone()])
        });
    }

    fn change_etcd_ca(cluster: &Cluster, node: &ClusterNode, pods: &StaticPods) {
        let etcd = Authority::EtcdCa;
        let file = "/var/new/etcd/ca.crt";
        on(node, "stage", etcd, &["--certificate", file]).done();
        assert_eq!(restarts(pods), [3, 3, 1, 1]);
        keep_etcd_client(node, "/var/staged");
        assert!(etcd_takes(node, "/var/staged"));
        signer_has_new(node, etcd);
        on(node, "activate", etcd, &[]).done();
        keep_etcd_client(node, "/var/activated");
        for files in ["/var/staged", "/var/activated"] {
            assert!(etcd_takes(node, files), "{files}");
        }
        let admin = cluster.admin();
        assert_eq!(status_of(&admin), 200);
        on(node, "retire", etcd, &[]).done();
        assert_eq!(restarts(pods), [3, 3, 2, 2]);
        assert!(etcd_takes(node, "/var/activated"));
        assert!(!etcd_takes(node, "/var/staged"));
        assert_eq!(status_of(&admin), 200);
    }

    /// The report of a node as the first node finds it.
    fn reported(node: &ClusterNode, first: &ClusterNode) -> String {
        let ran = node.nodepki(&["-o", "json", "authority", "status", "ca"]);
        ran.done();
        let file = format!("/var/{}.json", node.name());
        first.write(&file, &ran.stdout);
        file
    }

    #[test]
    fn takes_reports_of_a_worker_in_every_step() {
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
            fs::create_dir_all(node.path("/var/signer/etcd")).unwrap();
            for authority in Authority::ALL {
                for extension in ["crt", "key"] {
                    let file = format!("{}.{extension}", authority.base_name());
                    let to = node.path("/var/signer").join(&file);
                    fs::copy(cluster.authorities().join(&file), to).unwrap();
                }
            }
        }
        make_new(first, ca);
        for file in ["ca.crt", "ca.key"] {
            let text = fs::read_to_string(first.path("/var/new").join(file)).unwrap();
            worker.write_secret(&format!("/var/new/{file}"), &text);
        }
        let _pods = StaticPods::of(first);

        // The worker joins, and learns the cluster's name by its token.
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
        let comes = certificates(&first.path("/var/new/ca.crt")).remove(0);
        let published = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt";
        wait_until("kube-root-ca.crt has both", || {
            let (_, map) = cluster.admin().get(published);
            let text = map["data"]["ca.crt"].as_str().unwrap_or_default();
            certificates_of(text.as_bytes()).is_ok_and(|all| all.contains(&comes))
        });
        signer_has_new(first, ca);
        let by_report = |step: &str| {
            let file = reported(&worker, first);
            on(first, step, ca, &["--peer-report", &file])
        };
        on(first, "activate", ca, &[])
            .ended(65)
            .says("nothing is known of w1");
        by_report("activate")
            .ended(65)
            .says("w1 is not as far")
            .says("does not trust");
        let take = |step: &str, more: &[&str]| {
            worker.nodepki(&[&["authority", step, "ca"], more].concat())
        };
        // Its kubelet does not come back: the CA certificates in its two files are rolled back together.
        let files = || {
            let files = ["/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/kubelet.conf"];
            files.map(|file| fs::read_to_string(worker.path(file)).unwrap())
        };
        let before = files();
        worker.write("/var/broken", "");
        take("stage", &["--certificate", "/var/new/ca.crt"])
            .ended(65)
            .says("kubelet rolled back: did not come back with the new ca")
            .says_not("kube-controller-manager waits");
        assert!(before == files());
        by_report("activate").ended(65).says("does not trust");
        fs::remove_file(worker.path("/var/broken")).unwrap();
        take("stage", &["--certificate", "/var/new/ca.crt"])
            .done()
            .says("kubelet in effect: was restarted for ca");
        by_report("activate").done().says("w1 is as far");

        by_report("retire")
            .ended(65)
            .says("kubelet.conf is not under");
        signer_has_new(&worker, ca);
        take("activate", &["--all-nodes-staged"]).done();
        by_report("retire").done().says("w1 is as far");
        take("retire", &["--all-nodes-activated"]).done();
        let left = certificates(&worker.pki("ca.crt"));
        assert_eq!(left, std::slice::from_ref(&comes));
    }
}
