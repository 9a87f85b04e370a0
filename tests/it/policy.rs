//! `policy check`: keys on disk against the key policy.

use std::fs;

use nodepki::kube::names::CertName;
use serde_json::Value;

use crate::node::{Node, Ran};
use crate::openssl::facts_of_cert;
use crate::signing::HEAD;

fn check(node: &Node, settings: &str) -> Ran {
    node.write_settings(&format!("{HEAD}{settings}"));
    Ran::of(&mut node.configured(["policy", "check"]))
}

#[test]
fn compares_every_key_with_policy() {
    let node = Node::bootstrapped();
    check(&node, "").done().says("12 compliant");

    // The CAs and the keys of this node are ECDSA-P256.
    let ran = check(
        &node,
        "pki:\n  categories: [{category: SignerCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}]\n",
    );
    ran.ended(65)
        .says(
            "ca                        SignerCertificate   RSA-4096      ECDSA-P256  not compliant",
        )
        .says("3 not compliant, 12 compliant; next: nodepki plan shows what a renewal changes");
    Ran::of(&mut node.configured(["doctor"]))
        .says("key-policy")
        .says("the key of ca is ECDSA-P256, and the policy requires RSA-4096");
}

#[test]
fn reports_policy_as_json() {
    let node = Node::bootstrapped();
    node.write_settings(&format!(
        "{HEAD}pki:\n  overrides: [{{certificateName: apiserver, certificate: {{key: {{algorithm: ECDSA, ecdsa: {{curve: P384}}}}}}}}]\n"
    ));
    let ran = Ran::of(&mut node.configured(["policy", "check", "-o", "json"]));
    ran.ended(65);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["kind"], "Policy");
    let row = |name: &str| {
        let rows = report["keys"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(row("apiserver")["required"], "ECDSA-P384");
    assert_eq!(row("apiserver")["found"], "ECDSA-P256");
    assert_eq!(row("apiserver")["verdict"], "not compliant");
    assert_eq!(row("etcd-server")["verdict"], "compliant");
    assert_eq!(row("ca")["verdict"], "no policy");
    assert_eq!(row("sa")["verdict"], "no policy");
}

/// `bootstrap` with the local signer and the settings.
fn bootstrap(node: &Node, settings: &str) -> Ran {
    node.write_settings(&format!("{HEAD}{settings}"));
    let settings = node.outside("config.yaml");
    Ran::of(
        node.with_local(&["bootstrap", "--clock-wait", "0s"], &["--config"])
            .arg(settings),
    )
}

#[test]
fn requests_lifetime_of_override_then_category_then_default_then_kubeadm() {
    let node = Node::new();
    let pki = "pki:\n  \
        categories: [{category: ClientCertificate, certificate: {lifetime: 720h}}]\n  \
        overrides: [{certificateName: scheduler.conf, certificate: {lifetime: 48h}}]\n";
    bootstrap(&node, pki).done();
    let hours = |name| {
        let (chain, _) = node.leaf(name).unwrap();
        let leaf = chain.leaf();
        (leaf.not_after() - leaf.not_before()).whole_hours()
    };
    // Issued certificates begin five minutes before the time of issue.
    assert_eq!(hours(CertName::Apiserver), 8760);
    assert_eq!(hours(CertName::EtcdHealthcheckClient), 720);
    assert_eq!(hours(CertName::SchedulerConf), 48);
    // A changed lifetime waits for the next renewal.
    let ran = bootstrap(&node, "pki: {defaults: {lifetime: 240h}}\n");
    ran.done().row_says("apiserver", "kept");
    assert_eq!(hours(CertName::Apiserver), 8760);
    let renewed = Ran::of(
        node.with_local(&["renew", "--force", "--name", "apiserver"], &["--config"])
            .arg(node.outside("config.yaml")),
    );
    renewed.done();
    assert_eq!(hours(CertName::Apiserver), 240);
}

#[test]
fn configuration_check_names_certificates_whose_renewal_time_has_no_effect() {
    let node = Node::bootstrapped();
    node.write_settings(&format!(
        "{HEAD}rotation: {{renewAt: 720h}}\npki:\n  overrides: [{{certificateName: scheduler.conf, certificate: {{lifetime: 48h}}}}]\n"
    ));
    Ran::of(&mut node.configured(["config", "check"]))
        .done()
        .says("scheduler.conf: rotation.renewAt: 720h has no effect")
        .says_not("apiserver");
    node.write_settings(&format!(
        "{HEAD}pki:\n  categories: [{{category: SignerCertificate, certificate: {{lifetime: 48h}}}}]\n"
    ));
    Ran::of(&mut node.configured(["config", "check"]))
        .ended(78)
        .says("pki.categories[0].certificate.lifetime: is for leaf certificates only");
}

#[test]
fn status_shows_verdict_on_each_key() {
    let node = Node::bootstrapped();
    let status = |arguments: &[&str]| {
        let mut command = node.command(["status", "--config"]);
        command.arg(node.outside("config.yaml")).args(arguments);
        Ran::of(&mut command)
    };
    node.write_settings(&format!(
        "{HEAD}kubeadm: {{files: [/etc/nodepki/kubeadm.yaml]}}\npki:\n  overrides: [{{certificateName: apiserver, certificate: {{key: {{algorithm: ECDSA, ecdsa: {{curve: P384}}}}}}}}]\n"
    ));
    let kubeadm = fs::read_to_string(node.outside("kubeadm.yaml")).unwrap();
    node.write("/etc/nodepki/kubeadm.yaml", kubeadm);
    status(&[])
        .done()
        .says("KEY POLICY")
        .says("not compliant")
        .says("the key policy requires ECDSA-P384; the next renewal, which is due at 20");
    let ran = status(&["-o", "json"]);
    let status: Value = serde_json::from_str(&ran.done().stdout).unwrap();
    let row = |list: &str, name: &str| {
        let rows = status[list].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(
        row("certificates", "apiserver")["keyPolicy"],
        "not compliant"
    );
    assert_eq!(row("certificates", "etcd-peer")["keyPolicy"], "compliant");
    assert_eq!(row("authorities", "ca")["keyPolicy"], "no policy");
    assert_eq!(status["serviceAccount"]["keyPolicy"], "no policy");
}

#[test]
fn requests_key_encipherment_for_rsa_keys_only() {
    let node = Node::new();
    let pki = "pki:\n  overrides: [{certificateName: apiserver, certificate: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}]\n";
    bootstrap(&node, pki).done();
    let usages = |file: &str| {
        let facts = facts_of_cert(&node.path(format!("/etc/kubernetes/pki/{file}.crt")));
        facts.key_usage().to_vec()
    };
    assert_eq!(usages("apiserver"), ["digitalSignature", "keyEncipherment"]);
    assert_eq!(usages("etcd/peer"), ["digitalSignature"]);
}

#[test]
fn logs_self_test_once_before_keys_are_made() {
    let node = Node::new();
    let mut command = node.with_local(&["-v", "bootstrap", "--clock-wait", "0s"], &[]);
    let ran = Ran::of(&mut command);
    ran.done();
    assert_eq!(
        ran.stderr.matches("self-test passed").count(),
        1,
        "{}",
        ran.stderr
    );
}
