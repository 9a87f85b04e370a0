//! A CA certificate that another process replaced: nodepki issues nothing under it, the finding names the cause, and the
//! old certificate can be restored from a kubeconfig.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use nodepki::kube::names::{Authority, CertName};
use nodepki::text::hex;
use nodepki::x509::{CertificateAuthority, PrivateKey, certificates_of};
use serde_json::Value;

use crate::kubeadm;
use crate::node::{EVERYTHING, INIT, Node, Ran};
use crate::signing::now;

const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn path(authority: Authority) -> String {
    format!("/etc/kubernetes/pki/{}.crt", authority.base_name())
}

/// Returns a complete node of which one authority was then replaced on disk and at the signer, and the old CA files.
fn replaced(authority: Authority) -> (Node, tempfile::TempDir) {
    let node = Node::bootstrapped();
    let old = tempfile::tempdir().unwrap();
    kubeadm::copy_tree(&node.ca(), old.path());
    node.replace_authority(authority, now(), YEAR);
    (node, old)
}

fn run(node: &Node, command: &[&str], more: &[&str]) -> Ran {
    Ran::of(&mut node.with_local(command, more))
}

/// Returns the errors and warnings of doctor, and its whole output.
fn doctor(node: &Node) -> (BTreeSet<String>, Ran) {
    let ran = run(node, &["-o", "json", "doctor"], &[]);
    let diagnosis: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.said()));
    let findings = diagnosis["findings"].as_array().unwrap().iter();
    let findings = findings
        .filter(|finding| finding["severity"] != "info")
        .map(|finding| {
            let [severity, id] = ["severity", "id"].map(|field| finding[field].as_str().unwrap());
            format!("{severity} {id}")
        })
        .collect();
    (findings, ran)
}

#[test]
fn refuses_to_issue_under_replaced_ca() {
    for authority in Authority::ALL {
        let (node, old) = replaced(authority);
        let before = node.etc();
        let words = format!("{} was replaced; certificates", path(authority));
        for command in [
            &["bootstrap", "--clock-wait", "0s"][..],
            &["plan"],
            &["renew", "--clock-wait", "0s"],
            &["renew", "--clock-wait", "0s", "--all"],
            &["renew", "--dry-run"],
        ] {
            run(&node, command, &[]).ended(65).says(&words);
            before.unchanged(&node.etc());
        }
        run(&node, &["needs-renewal"], &[]).ended(255);
        let requests = node.outside("requests");
        let export = ["csr", "export", requests.to_str().unwrap()];
        run(&node, &export, &[]).ended(65).says(&words);
        node.run(&["status"]).says(&words);
        before.unchanged(&node.etc());

        let (findings, ran) = doctor(&node);
        assert_eq!(
            findings,
            BTreeSet::from(["error ca-replaced".to_owned()]),
            "{authority}\n{}",
            ran.said()
        );
        ran.ended(65).says(&words);

        // Certificates of other authorities are issued.
        let other = match authority {
            Authority::EtcdCa => "scheduler.conf",
            _ => "etcd-peer",
        };
        run(
            &node,
            &["renew", "--clock-wait", "0s", "--force", "--name", other],
            &[],
        )
        .done();

        // With the old file restored, there are no findings.
        let file = format!("{}.crt", authority.base_name());
        fs::copy(old.path().join(&file), node.path(path(authority))).unwrap();
        assert_eq!(doctor(&node).0, BTreeSet::new(), "{authority}");
    }
}

#[test]
fn restores_old_ca_from_kubeconfig() {
    let (node, old) = replaced(Authority::Ca);
    let was = fs::read(old.path().join("ca.crt")).unwrap();
    let print = hex(&certificates_of(&was).unwrap()[0].fingerprint());
    let ran = run(&node, &["plan"], &[]);
    ran.says(&format!(
        "/etc/kubernetes/pki/ca.crt was replaced; certificates and kubeconfigs belong to sha256:{print} (certificate fingerprint of CN=kubernetes in "
    ));
    let said = ran.said();
    let command = said.split('`').nth(1).unwrap();
    let shell = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(shell.status.success(), "{command}: {shell:?}");
    assert_eq!(fs::read(node.path(path(Authority::Ca))).unwrap(), was);
    assert!(!node.path("/etc/kubernetes/pki/ca.crt.old").exists());
    kubeadm::copy_tree(old.path(), &node.ca());
    run(&node, &["renew", "--clock-wait", "0s"], &[]).done();
    assert_eq!(doctor(&node).0, BTreeSet::new());
    node.assert_sound(&EVERYTHING);
}

#[test]
fn issues_under_replaced_ca_that_is_pinned() {
    for authority in Authority::ALL {
        let (node, _old) = replaced(authority);
        node.pin_authority(authority);
        let config = node.outside("config.yaml");
        let pinned = ["--config", config.to_str().unwrap()];
        // Under the pin the finding is that the certificates belong to another CA.
        run(&node, &["doctor"], &pinned).says_not("ca-replaced");
        run(&node, &["bootstrap", "--clock-wait", "0s"], &pinned).done();
        node.assert_sound(&EVERYTHING);
        assert_eq!(doctor(&node).0, BTreeSet::new(), "{authority}");
    }
}

#[test]
fn refuses_unpinned_ca_of_signer_when_ca_file_is_gone() {
    let (node, _old) = replaced(Authority::Ca);
    node.remove(path(Authority::Ca));
    let before = node.etc();
    for command in ["bootstrap", "renew"] {
        run(&node, &[command, "--clock-wait", "0s"], &[]).ended(65);
        before.unchanged(&node.etc());
    }
}

#[test]
fn accepts_ca_certificate_renewed_with_same_key() {
    let node = Node::bootstrapped();
    let key = PrivateKey::from_pem(&fs::read(node.ca().join("ca.key")).unwrap()).unwrap();
    let renewed = CertificateAuthority::self_signed("kubernetes", key, now(), 20 * YEAR).unwrap();
    let pem = renewed.bundle().to_pem();
    fs::write(node.ca().join("ca.crt"), &pem).unwrap();
    node.write(path(Authority::Ca), &pem);
    let (findings, ran) = doctor(&node);
    assert!(!findings.contains("error ca-replaced"), "{}", ran.said());
    let keys: Vec<String> = EVERYTHING.map(|name| node.key_in_place(name)).into();
    run(&node, &["renew", "--clock-wait", "0s"], &[])
        .done()
        .row_says("scheduler.conf", "rewritten");
    assert_eq!(keys, EVERYTHING.map(|name| node.key_in_place(name)));
    node.assert_sound(&EVERYTHING);
}

#[test]
fn repairs_one_kubeconfig_of_another_cluster() {
    let node = Node::bootstrapped();
    let other = Node::bootstrapped();
    let file = "/etc/kubernetes/scheduler.conf";
    node.write(file, other.read(file));
    let (findings, ran) = doctor(&node);
    assert!(!findings.contains("error ca-replaced"), "{}", ran.said());
    node.bootstrap().done().row_says("scheduler.conf", "issued");
    node.assert_sound(&EVERYTHING);
}

#[test]
fn distinguishes_certificates_of_one_key() {
    let node = Node::bootstrapped();
    let key = PrivateKey::from_pem(&fs::read(node.ca().join("ca.key")).unwrap()).unwrap();
    let long_ago = now() - 3 * YEAR;
    let expired = CertificateAuthority::self_signed("kubernetes", key, long_ago, YEAR).unwrap();
    let valid = certificates_of(&fs::read(node.path(path(Authority::Ca))).unwrap()).unwrap();
    node.write(path(Authority::Ca), expired.bundle().to_pem());
    let [valid, expired] = [&valid[0], expired.bundle().first()].map(|one| hex(&one.fingerprint()));
    let (findings, ran) = doctor(&node);
    ran.ended(65);
    assert!(findings.contains("error expired"), "{}", ran.said());
    for print in [&valid, &expired] {
        ran.says(&format!("certificate sha256:{print}"));
    }
    ran.says_not("does not trust the API server");
    let plan = node.plan();
    plan.ended(65).says(&format!("certificate sha256:{valid}"));
    let said = plan.said();
    let command = said.split('`').nth(1).unwrap();
    assert!(
        Command::new("sh")
            .args(["-c", command])
            .status()
            .unwrap()
            .success()
    );
    node.bootstrap().done();
    node.assert_sound(&EVERYTHING);
}

#[test]
fn finds_authorities_that_were_exchanged() {
    let node = Node::bootstrapped();
    let [own, front] = [Authority::Ca, Authority::FrontProxyCa].map(|name| node.read(path(name)));
    node.write(path(Authority::Ca), &front);
    node.write(path(Authority::FrontProxyCa), &own);
    let (findings, ran) = doctor(&node);
    assert_eq!(findings, BTreeSet::from(["error ca-replaced".to_owned()]));
    let file = node.path(path(Authority::Ca));
    ran.says(&format!("CN=front-proxy-ca in {}", file.display()));
}

#[test]
fn gives_no_advice_on_ca_whose_certificate_replaced_another_one() {
    let node = Node::bootstrapped();
    let front = node.read(path(Authority::FrontProxyCa));
    node.write(path(Authority::Ca), &front);
    for command in [
        &["plan"][..],
        &["renew", "--clock-wait", "0s"],
        &["preflight"],
    ] {
        let ran = run(&node, command, &[]);
        assert!(!ran.has("also accepts certificates of"), "{}", ran.said());
    }
    run(&node, &["plan"], &[])
        .ended(65)
        .says("/ca.crt was replaced; certificates");
}

#[test]
fn makes_first_node_without_evidence_of_another_ca() {
    let node = Node::of(INIT);
    node.replace_authority(Authority::Ca, now(), YEAR);
    node.bootstrap().done();
    // One kubeconfig that a kubelet left behind is not sufficient evidence.
    let other = Node::new();
    let file = "/etc/kubernetes/kubelet.conf";
    other.write(file, node.read(file));
    other.bootstrap().done();
    other.assert_sound(&[CertName::KubeletConf]);
}
