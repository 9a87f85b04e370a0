//! `policy check`: keys and certificates on disk against the key policy.

use std::fs;
use std::os::unix::fs::symlink;

use nodepki::kube::names::CertName;
use nodepki::store::{AuditEvent, AuditRecord, Durability, NodeRoot};
use nodepki::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};
use serde_json::{Value, json};

use crate::node::{Node, Ran};
use crate::openssl::facts_of_cert;
use crate::signing::{HEAD, now};

fn check(node: &Node, settings: &str) -> Ran {
    node.write_settings(&format!("{HEAD}{settings}"));
    Ran::of(&mut node.configured(["policy", "check"]))
}

#[test]
fn compares_every_key_with_policy() {
    let node = Node::bootstrapped();
    check(&node, "")
        .done()
        .says("12 compliant, 4 without a policy");
    let warned = check(&node, "kubelets: {approveServing: true}\n");
    let warnings = warned.done().stderr.matches("kubelets.approveServing");
    assert_eq!(warnings.count(), 1, "{}", warned.said());

    // The CAs and the keys of this node are ECDSA-P256.
    let ran = check(
        &node,
        "pki:\n  categories: [{category: SignerCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}]\n",
    );
    ran.ended(65)
        .says(
            "ca                        SignerCertificate   RSA-4096      ECDSA-P256  not compliant",
        )
        .says("3 not compliant, 12 compliant, 1 without a policy; next: nodepki plan shows what a renewal changes");
    Ran::of(&mut node.configured(["doctor"]))
        .says("key-policy")
        .says("the key of ca is ECDSA-P256, and the policy requires RSA-4096");
}

#[test]
fn every_run_and_doctor_advise_on_keys() {
    // Each renewal makes the keys anew.
    let node = Node::bootstrapped();
    let defaults = |size: u32, lifetime: &str| {
        format!(
            "pki:\n  defaults: {{lifetime: {lifetime}, key: {{algorithm: RSA, rsa: {{keySize: {size}}}}}}}\n"
        )
    };
    let words = "large RSA keys for certificates of at most 30 days";
    for (size, lifetime, warns) in [
        (4096, "720h", true),
        (4096, "721h", false),
        (2048, "720h", false),
    ] {
        node.write_settings(&format!("{HEAD}{}", defaults(size, lifetime)));
        for command in [&["config", "check"][..], &["plan"], &["doctor"]] {
            let said = Ran::of(&mut node.configured(command)).said();
            assert_eq!(
                said.contains(words),
                warns,
                "{command:?} {size} {lifetime}: {said}"
            );
        }
    }

    // A chain is as strong as its weakest key.
    node.write_settings(&format!("{HEAD}{}", override_for("apiserver", P384)));
    let config = node.outside("config.yaml");
    let config = ["--config", config.to_str().unwrap()];
    Ran::of(&mut node.with_local(&["renew", "apiserver", "--force"], &config)).done();
    Ran::of(&mut node.configured(["doctor"]))
        .done()
        .says("key-strength")
        .says(
            "the ECDSA-P256 key of ca is weaker than those of apiserver, and limits their strength",
        );
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

/// Returns the row of a key in the document of `policy check`.
fn row_of(report: &Value, name: &str) -> Value {
    let rows = report["keys"].as_array().unwrap();
    let found = rows.iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {report}")).clone()
}

/// `policy check` with these settings: the exit status and the document.
fn report(node: &Node, settings: &str, code: i32) -> Value {
    node.write_settings(&format!("{HEAD}{settings}"));
    let ran = Ran::of(&mut node.configured(["policy", "check", "-o", "json"]));
    ran.ended(code);
    serde_json::from_str(&ran.stdout).unwrap()
}

fn override_for(name: &str, key: &str) -> String {
    format!("pki:\n  overrides: [{{certificateName: {name}, certificate: {{key: {key}}}}}]\n")
}

const P256: &str = "{algorithm: ECDSA, ecdsa: {curve: P256}}";
const P384: &str = "{algorithm: ECDSA, ecdsa: {curve: P384}}";
const RSA_2048: &str = "{algorithm: RSA, rsa: {keySize: 2048}}";

/// A node whose kubelet uses a certificate that nodepki has not installed.
fn with_rotating_kubelet() -> Node {
    let node = Node::bootstrapped();
    let (chain, key) = node.leaf(CertName::KubeletConf).unwrap();
    let pki = "/var/lib/kubelet/pki";
    let pem = format!("{}{}", chain.to_pem(), *key.to_pem());
    node.write_secret(format!("{pki}/kubelet-client-2026-11-21-10-00-00.pem"), pem);
    let link = format!("{pki}/kubelet-client-current.pem");
    symlink("kubelet-client-2026-11-21-10-00-00.pem", node.path(&link)).unwrap();
    let conf = "/etc/kubernetes/kubelet.conf";
    let lines = node.read(conf);
    let lines = lines.lines().map(|line| {
        let field = line.trim_start().split(':').next().unwrap_or_default();
        match field.strip_suffix("-data") {
            Some(field @ ("client-certificate" | "client-key")) => {
                format!("    {field}: {link}\n")
            }
            _ => format!("{line}\n"),
        }
    });
    let text: String = lines.collect();
    node.write_secret(conf, text);
    node.remove("/var/lib/nodepki/issued.json");
    node
}

#[test]
fn key_that_kubelet_chose_does_not_comply_with_override() {
    let node = with_rotating_kubelet();
    let judged = |settings: &str, code| report(&node, settings, code);
    // kubeadm's algorithm is not the kubelet's.
    let row = row_of(&judged("", 0), "kubelet.conf");
    assert_eq!(row["verdict"], "chosen by kubelet", "{row}");
    assert_eq!(row.get("required"), None);
    let row = row_of(
        &judged(&override_for("kubelet.conf", P256), 0),
        "kubelet.conf",
    );
    assert_eq!(row["verdict"], "compliant");
    for settings in [
        override_for("kubelet.conf", RSA_2048),
        format!(
            "pki: {{categories: [{{category: ClientCertificate, certificate: {{key: {RSA_2048}}}}}]}}\n"
        ),
        format!("pki: {{defaults: {{key: {RSA_2048}}}}}\n"),
    ] {
        let report = judged(&settings, 65);
        assert_eq!(report["verdict"], "not compliant");
        let row = row_of(&report, "kubelet.conf");
        assert_eq!(row["verdict"], "not compliant", "{settings}");
        let why = row["differences"][0].as_str().unwrap();
        assert!(why.contains("the kubelet, which generates this key itself, chose ECDSA-P256"));
    }
    Ran::of(&mut node.configured(["doctor"]))
        .says("the key of kubelet.conf is ECDSA-P256, and the policy requires RSA-2048");
}

#[test]
fn policy_of_cluster_that_was_never_read_leaves_every_key_unknown() {
    let node = Node::bootstrapped();
    let settings = "clusterPolicy: {enabled: true}\n";
    let judged = report(&node, settings, 75);
    assert_eq!(judged["verdict"], "unknown");
    assert_eq!(judged["counts"].get("compliant"), None);
    for row in judged["keys"].as_array().unwrap() {
        assert_eq!(row["verdict"], "unknown", "{row}");
        let why = row["unknown"][0].as_str().unwrap();
        assert!(why.contains("was not read yet"), "{why}");
    }
    Ran::of(&mut node.configured(["doctor"]))
        .says("key-policy-unknown")
        .says("was not read yet");
    // The daemon has read that there is none, or a document that is not valid.
    let file = "/var/lib/nodepki/cluster-policy.json";
    for (record, code) in [
        (r#"{"version":1}"#, 0),
        (r#"{"version":1,"refused":"spec: wrong"}"#, 75),
        ("damaged", 75),
    ] {
        node.write_secret(file, record);
        report(&node, settings, code);
    }
}

#[test]
fn certificates_of_a_year_do_not_comply_with_shorter_lifetime() {
    let node = Node::bootstrapped();
    let lifetime = |hours: u32| format!("pki: {{defaults: {{lifetime: {hours}h}}}}\n");
    report(&node, &lifetime(8760), 0);
    let judged = report(&node, &lifetime(720), 65);
    let row = row_of(&judged, "apiserver");
    assert_eq!(row["requiredLifetime"], "720h");
    assert_eq!(row["verdict"], "not compliant");
    assert!(row["replacedAt"].is_string(), "{row}");
    // Neither the pair nor a CA has a lifetime of the policy.
    for name in ["ca", "sa"] {
        assert_eq!(row_of(&judged, name)["verdict"], "no policy");
    }
    Ran::of(&mut node.configured(["doctor"]))
        .says("key-policy")
        .says("apiserver: its certificate is valid for")
        .says("the key policy permits 720h");
}

/// Each way in which a key cannot be compared: the row names it, and the command never ends with 0.
#[test]
fn keys_that_were_not_read_are_unknown() {
    type Damage = fn(&Node);
    let cases: [(&str, &str, Damage); 6] = [
        ("apiserver", "its files do not exist", |node| {
            node.remove("/etc/kubernetes/pki/apiserver.crt");
            node.remove("/etc/kubernetes/pki/apiserver.key");
        }),
        ("apiserver", "its private key is absent", |node| {
            node.remove("/etc/kubernetes/pki/apiserver.key");
        }),
        ("etcd-peer", "its private key is unreadable", |node| {
            node.write_secret("/etc/kubernetes/pki/etcd/peer.key", "no key");
        }),
        ("front-proxy-client", "its file is empty", |node| {
            node.write("/etc/kubernetes/pki/front-proxy-client.crt", "");
        }),
        ("admin.conf", "it is unreadable", |node| {
            node.write_secret("/etc/kubernetes/admin.conf", "no kubeconfig");
        }),
        (
            "apiserver",
            "its private key belongs to another certificate",
            |node| {
                let other = node.read("/etc/kubernetes/pki/apiserver-kubelet-client.key");
                node.write_secret("/etc/kubernetes/pki/apiserver.key", other);
            },
        ),
    ];
    for (name, why, damage) in cases {
        let node = Node::bootstrapped();
        damage(&node);
        let judged = report(&node, "", 75);
        assert_eq!(judged["verdict"], "unknown");
        let row = row_of(&judged, name);
        assert_eq!(row["verdict"], "unknown", "{name}: {row}");
        let found = row["unknown"][0].as_str().unwrap();
        assert!(found.contains(why), "{name}: {found}");
    }
}

#[test]
fn every_ca_certificate_of_a_file_is_compared() {
    let node = Node::bootstrapped();
    let path = "/etc/kubernetes/pki/ca.crt";
    let policy = override_for("ca", P256);
    report(&node, &policy, 0);
    let key = PrivateKey::generate(KeyAlgorithm::Rsa2048).unwrap();
    let year = std::time::Duration::from_secs(365 * 86_400);
    let old = CertificateAuthority::self_signed("old-ca", key, now(), year).unwrap();
    let text = format!("{}{}", node.read(path), old.bundle().to_pem());
    node.write(path, text);
    let row = row_of(&report(&node, &policy, 65), "ca");
    assert_eq!(
        row["differences"][0],
        "the key of CN=old-ca is RSA-2048, and the key policy requires ECDSA-P256"
    );
}

#[test]
fn keys_that_nodepki_does_not_manage_are_compared() {
    let authority = |name: &str| {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let year = std::time::Duration::from_secs(365 * 86_400);
        CertificateAuthority::self_signed(name, key, now(), year).unwrap()
    };
    // The etcd client CA of `capi secrets`, of which a node has the certificate.
    let node = Node::bootstrapped();
    let etcd = node.read("/etc/kubernetes/pki/etcd/ca.crt");
    let clients = authority("nodepki-etcd-client-ca").bundle().to_pem();
    node.write(
        "/etc/kubernetes/pki/etcd/clients.crt",
        format!("{clients}# etcd CA\n{etcd}"),
    );
    let row = row_of(
        &report(&node, &override_for("etcd-client-ca", P384), 65),
        "etcd-client-ca",
    );
    assert_eq!(row["category"], "SignerCertificate");
    assert_eq!(row["found"], "ECDSA-P256");
    let judged = report(&node, &override_for("etcd-client-ca", P256), 0);
    assert_eq!(judged["warnings"], json!([]));
    node.write("/etc/kubernetes/pki/etcd/clients.crt", "damaged");
    report(&node, &override_for("etcd-client-ca", P256), 75);

    // An override that no key of the node matches is named.
    let node = Node::bootstrapped();
    let judged = report(&node, &override_for("etcd-client-ca", P256), 0);
    let warning = judged["warnings"][0].as_str().unwrap();
    assert!(
        warning.ends_with("keys that this node does not have: etcd-client-ca"),
        "{warning}"
    );

    // The serving certificate that the kubelet requested.
    let serving = authority("system:node:n");
    node.write(
        "/var/lib/kubelet/pki/kubelet-server-current.pem",
        serving.bundle().to_pem(),
    );
    let policy = override_for("kubelet-serving", P384);
    let row = row_of(&report(&node, &policy, 65), "kubelet-serving");
    assert_eq!(row["verdict"], "not compliant");
}

/// The certificates that nodepki has signed for the kubelets of other nodes are in its issuance log.
#[test]
fn keys_of_kubelets_that_node_signed_for_are_compared() {
    let node = Node::bootstrapped();
    let root = NodeRoot::open(node.root()).unwrap();
    let signed = |certificate: &str, key: Option<&str>, days: i64| AuditRecord {
        certificate: Some(certificate.to_owned()),
        node: Some("worker-1".to_owned()),
        action: Some("issued".to_owned()),
        not_after: Some(now() + time::Duration::days(days)),
        key: key.map(str::to_owned),
        ..AuditRecord::of(AuditEvent::KubeletRequest)
    };
    let log = |records: &[AuditRecord]| {
        let written = root.append_audit(records, now(), Durability::Synced);
        written.map(drop).unwrap();
    };
    let sign = "kubelets: {sign: true}\n";
    let row = |policy: &str, name: &str| {
        node.write_settings(&format!("{HEAD}{sign}{policy}"));
        let ran = Ran::of(&mut node.configured(["policy", "check", "-o", "json"]));
        row_of(&serde_json::from_str(&ran.stdout).unwrap(), name)
    };
    let verdict = |policy: &str, name: &str| row(policy, name)["verdict"].clone();
    log(&[
        signed("kubelet.conf", Some("ECDSA-P256"), 300),
        signed("kubelet-serving", Some("RSA-2048"), 300),
        // Expired.
        signed("kubelet.conf", Some("RSA-2048"), -1),
    ]);
    let (client, serving) = ("kubelets/kubelet.conf", "kubelets/kubelet-serving");
    assert_eq!(
        verdict(&override_for("kubelet.conf", P256), client),
        "compliant"
    );
    assert_eq!(
        verdict(&override_for("kubelet.conf", P384), client),
        "not compliant"
    );
    assert_eq!(
        verdict(&override_for("kubelet-serving", P256), serving),
        "not compliant"
    );
    let short =
        "pki: {overrides: [{certificateName: kubelet.conf, certificate: {lifetime: 720h}}]}\n";
    assert_eq!(verdict(short, client), "not compliant");
    // An entry of a release that did not record the key.
    log(&[signed("kubelet.conf", None, 300)]);
    let unknown = row(&override_for("kubelet.conf", P256), client);
    assert_eq!(unknown["verdict"], "unknown");
    assert!(
        unknown["unknown"][0]
            .as_str()
            .unwrap()
            .contains("issuance log")
    );
}
