//! Registered certificates of a konnectivity server, an admission webhook, an aggregated API server and an encryption
//! provider: planned, issued, reported, renewed and removed like kubeadm's.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nodepki::kube::names::Authority;
use nodepki::x509::{Chain, PrivateKey, certificates_of};
use serde_json::{Value, json};

use crate::node::{Node, Ran};
use crate::signing::{HEAD, openssl};

/// The settings of the four components.
const EXAMPLES: &str = include_str!("../../packaging/examples/registered-certificates.yaml");
const NAMES: [&str; 4] = [
    "aggregated-apiserver",
    "kms-plugin-client",
    "konnectivity-server",
    "policy-webhook",
];
/// Files of the webhook, whose names differ in more than the extension.
const WEBHOOK_CERTIFICATE: &str = "/etc/kubernetes/policy-webhook/tls.crt";
const WEBHOOK_KEY: &str = "/etc/kubernetes/policy-webhook/private/server.pem";
const WEBHOOK_CA: &str = "/etc/kubernetes/policy-webhook/ca.crt";
const FRONT_PROXY_COPY: &str = "/etc/kubernetes/aggregated-apiserver/front-proxy-ca.crt";

/// Numeric ID of the webhook's group in the examples. The tests run as root, which can give files to any group.
const WEBHOOK_GROUP: u32 = 65532;

/// Returns the block `certificates` of the examples.
pub(crate) fn registrations() -> String {
    let (_, block) = EXAMPLES.split_once("\ncertificates:\n").unwrap();
    format!("certificates:\n{block}")
}

/// Returns a first node with the registrations, on which nothing has run yet.
fn registered() -> Node {
    let node = Node::new();
    node.settings(&registrations());
    node
}

fn bootstrapped() -> Node {
    let node = registered();
    node.ask().done();
    node
}

fn configured(node: &Node, arguments: &[&str]) -> Ran {
    Ran::of(&mut node.configured(arguments))
}

/// Runs a command that reads the files on disk only.
fn status(node: &Node, arguments: &[&str]) -> Ran {
    let config = node.outside("config.yaml");
    node.run(&[arguments, &["--config", config.to_str().unwrap()]].concat())
}

/// Removes the record by which a recent certificate is not issued again.
fn end_cool_down(node: &Node) {
    fs::remove_file(node.path("/var/lib/nodepki/issued.json")).unwrap();
}

fn document(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.said()))
}

/// Returns the settings with one part of the registrations replaced.
fn reconfigure(node: &Node, from: &str, to: &str) {
    let text = registrations();
    assert_eq!(text.matches(from).count(), 1, "{from} in {text}");
    node.settings(&text.replace(from, to));
}

fn row<'j>(rows: &'j Value, name: &str) -> &'j Value {
    let mut rows = rows.as_array().unwrap().iter();
    rows.find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no row for {name}"))
}

/// Returns the serial number of every certificate, by name.
fn serials(node: &Node) -> Vec<(String, String)> {
    let status = document(status(node, &["status", "-o", "json"]).done());
    let rows = status["certificates"].as_array().unwrap().iter();
    rows.map(|row| {
        let serial = row["certificate"]["serial"].as_str().unwrap();
        (row["name"].as_str().unwrap().to_owned(), serial.to_owned())
    })
    .collect()
}

/// Returns the names whose certificates differ.
fn changed(before: &[(String, String)], after: &[(String, String)]) -> Vec<String> {
    let pairs = before.iter().zip(after);
    pairs
        .filter(|(before, after)| before != after)
        .map(|(before, _)| before.0.clone())
        .collect()
}

/// The comment of the example says where to put the file, and nodepki reads it there.
#[test]
fn example_names_a_folder_that_is_read() {
    let comment: Vec<&str> = EXAMPLES
        .lines()
        .take_while(|line| line.starts_with('#'))
        .collect();
    let comment = comment.join(" ");
    let (_, folder) = comment.split_once("put this file into ").unwrap();
    let folder = folder
        .split_whitespace()
        .next()
        .unwrap()
        .trim_end_matches('.');
    let node = Node::new();
    node.write("/etc/nodepki/config.yaml", HEAD);
    node.write(format!("{folder}/registered-certificates.yaml"), EXAMPLES);
    Ran::of(&mut node.command(["config", "show"]))
        .done()
        .says("konnectivity-server");
}

#[test]
fn plans_and_bootstraps_certificates_of_four_components() {
    let node = registered();
    let plan = document(&configured(&node, &["plan", "-o", "json"]));
    let webhook = row(&plan["rows"], "policy-webhook");
    assert_eq!(webhook["action"], "issue", "{webhook}");
    assert_eq!(webhook["description"], "Admission webhook of the policies.");
    assert_eq!(webhook["authority"], "ca");
    let paths = [WEBHOOK_CERTIFICATE, WEBHOOK_KEY];
    assert_eq!(webhook["paths"], json!(paths));
    let konnectivity = row(&plan["rows"], "konnectivity-server");
    assert_eq!(
        konnectivity["usages"],
        json!(["server auth", "client auth"])
    );
    let sans = konnectivity["sans"].to_string();
    assert!(
        sans.contains("DNS:cp1") && sans.contains("IP:192.0.2.11"),
        "{sans}"
    );

    let ran = node.ask();
    ran.done();
    for name in NAMES {
        ran.row_says(name, "issued");
    }
    let ca = node.path("/etc/kubernetes/pki/ca.crt");
    let certificate = node.path(WEBHOOK_CERTIFICATE);
    let (ca, leaf) = (ca.to_str().unwrap(), certificate.to_str().unwrap());
    openssl(
        &["verify", "-purpose", "sslserver", "-CAfile", ca, leaf],
        b"",
    );
    let chain = Chain::from_pem(node.read(WEBHOOK_CERTIFICATE).as_bytes()).unwrap();
    let key = PrivateKey::from_pem(node.read(WEBHOOK_KEY).as_bytes()).unwrap();
    assert_eq!(chain.leaf().public_key(), key.public_key());
    let found = fs::metadata(node.path(WEBHOOK_KEY)).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o777), (WEBHOOK_GROUP, 0o640));
    assert_eq!(node.mode(WEBHOOK_CERTIFICATE), 0o644);
    assert_eq!(
        node.read(WEBHOOK_CA),
        node.read("/etc/kubernetes/pki/ca.crt")
    );
    assert_eq!(
        node.read(FRONT_PROXY_COPY),
        node.read("/etc/kubernetes/pki/front-proxy-ca.crt")
    );
    assert_eq!(node.mode(FRONT_PROXY_COPY), 0o644);
    node.assert_bootstrap_changes_nothing();
    configured(&node, &["needs-renewal"]).ended(1);
}

#[test]
fn status_doctor_metrics_and_policy_cover_registered_certificates() {
    let node = bootstrapped();
    let shown = document(status(&node, &["status", "-o", "json"]).done());
    for name in NAMES {
        let row = row(&shown["certificates"], name);
        assert_eq!(row["state"], "ok", "{row}");
        assert!(row["description"].is_string(), "{row}");
    }
    let metrics = status(&node, &["status", "-o", "prometheus"]);
    for name in NAMES {
        metrics.done().says(&format!("\"{name}\""));
    }
    let policy = document(configured(&node, &["-o", "json", "policy", "check"]).done());
    let text = policy.to_string();
    assert!(text.contains("policy-webhook"), "{policy}");
    let doctor = configured(&node, &["doctor"]);
    doctor.says_not("unregistered-certificate");
    for name in NAMES {
        doctor.says_not(&format!("{name}: "));
    }
    // A damaged pair is reported like one of kubeadm's.
    node.write_secret(WEBHOOK_KEY, node.read("/etc/kubernetes/pki/apiserver.key"));
    configured(&node, &["doctor"])
        .says("torn-pair")
        .says("policy-webhook");
    node.ask().done().row_says("policy-webhook", "issued");
    node.assert_bootstrap_changes_nothing();
}

#[test]
fn renews_registered_certificates_by_name_and_with_all() {
    let node = bootstrapped();
    end_cool_down(&node);
    let before = serials(&node);
    let renew = |arguments: &[&str]| {
        configured(
            &node,
            &[&["renew", "--clock-wait", "0s"], arguments].concat(),
        )
    };
    renew(&["--name", "policy-webhook"])
        .done()
        .row_says("policy-webhook", "rekeyed");
    assert_eq!(changed(&before, &serials(&node)), ["policy-webhook"]);
    let found = fs::metadata(node.path(WEBHOOK_KEY)).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o777), (WEBHOOK_GROUP, 0o640));

    renew(&["--name", "policy-webhok"])
        .ended(64)
        .says("did you mean policy-webhook?");
    renew(&["--name", "sidecar"])
        .ended(64)
        .says("policy-webhook");

    end_cool_down(&node);
    let before = serials(&node);
    renew(&["--all"]).done();
    let all: Vec<String> = before.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(changed(&before, &serials(&node)), all);
}

#[test]
fn issues_again_after_change_of_names_subject_or_files() {
    let node = bootstrapped();
    end_cool_down(&node);
    let before = serials(&node);
    reconfigure(
        &node,
        "policy-webhook.policy.svc,",
        "policy-webhook.policy.svc, policy-webhook.policy.svc.cluster.local,",
    );
    configured(&node, &["needs-renewal"]).ended(0);
    configured(&node, &["renew", "--clock-wait", "0s"])
        .done()
        .row_says("policy-webhook", "policy-webhook.policy.svc.cluster.local");
    assert_eq!(changed(&before, &serials(&node)), ["policy-webhook"]);

    end_cool_down(&node);
    let before = serials(&node);
    reconfigure(
        &node,
        "commonName: policy-webhook.{node}",
        "commonName: hook.{node}",
    );
    configured(&node, &["renew", "--clock-wait", "0s"]).done();
    assert_eq!(changed(&before, &serials(&node)), ["policy-webhook"]);
    let chain = Chain::from_pem(node.read(WEBHOOK_CERTIFICATE).as_bytes()).unwrap();
    assert_eq!(chain.leaf().subject().to_string(), "CN=hook.cp1");

    // A lost or outdated copy of CA certificates is written again, and nothing else.
    let before = serials(&node);
    node.remove(WEBHOOK_CA);
    node.write(FRONT_PROXY_COPY, node.read("/etc/kubernetes/pki/ca.crt"));
    let plan = configured(&node, &["plan"]);
    plan.done()
        .row_says("ca", "policy-webhook")
        .row_says("front-proxy-ca", "aggregated-apiserver");
    configured(&node, &["renew", "--clock-wait", "0s"]).done();
    assert_eq!(
        node.read(WEBHOOK_CA),
        node.read("/etc/kubernetes/pki/ca.crt")
    );
    assert_eq!(
        node.read(FRONT_PROXY_COPY),
        node.read("/etc/kubernetes/pki/front-proxy-ca.crt")
    );
    assert_eq!(changed(&before, &serials(&node)), [""; 0]);
}

#[test]
fn keeps_files_of_removed_registration_and_says_so() {
    let node = bootstrapped();
    let text = registrations();
    let (removed, _) = text.split_once("    policy-webhook:\n").unwrap();
    node.settings(removed);
    let before = node.etc();
    let words = "policy-webhook is not registered in the configuration";
    status(&node, &["status"]).done().says(words);
    configured(&node, &["doctor"])
        .says("unregistered-certificate")
        .says(words)
        .says("register it again under certificates.registered");
    node.ask().done();
    configured(&node, &["renew", "--name", "policy-webhook"])
        .ended(64)
        .says("policy-webhook");
    assert!(node.path(WEBHOOK_CERTIFICATE).exists());
    assert!(node.path(WEBHOOK_KEY).exists());
    before.unchanged(&node.etc());
    // Registered again, the certificate is still accepted.
    node.settings(&text);
    node.ask().done().row_says("policy-webhook", "kept");
}

#[test]
fn refuses_conflicts_with_place_and_fix() {
    let node = registered();
    let refuse = |from: &str, to: &str, words: &[&str]| {
        reconfigure(&node, from, to);
        let ran = node.ask();
        ran.ended(78);
        for words in words {
            ran.says(words);
        }
        assert!(!node.path("/etc/kubernetes/pki/apiserver.crt").exists());
    };
    refuse(
        "    policy-webhook:\n",
        "    apiserver:\n",
        &[
            "config.yaml:",
            "certificates.registered",
            "\"apiserver\" is a name of Kubernetes or nodepki",
            "choose another name",
        ],
    );
    refuse(
        WEBHOOK_KEY,
        "/etc/kubernetes/pki/apiserver.key",
        &[
            "certificates.registered.policy-webhook.key: /etc/kubernetes/pki/apiserver.key is a file of apiserver (name another file)",
        ],
    );
    refuse(
        WEBHOOK_CA,
        FRONT_PROXY_COPY,
        &[
            "certificates.registered.policy-webhook.caFiles.ca",
            "is a file of aggregated-apiserver",
        ],
    );
    refuse(
        WEBHOOK_CERTIFICATE,
        "/etc/ssl/webhook.crt",
        &[
            "certificates.registered.policy-webhook.certificate",
            "is not below /etc/kubernetes",
        ],
    );
    refuse(
        "      pod: policy-webhook\n",
        "      pod: kube-apiserver\n",
        &["config.yaml:", "reload.pod", "is a component of Kubernetes"],
    );
}

#[test]
fn changes_of_ca_reach_copies_of_registered_components() {
    let node = bootstrapped();
    let authority = Authority::FrontProxyCa;
    let key = crate::authority::new_key();
    let base = node.outside("front-proxy-ca");
    crate::signing::write_secret(base.with_extension("key"), key.to_pem().as_bytes());
    let new = base.with_extension("crt");
    fs::write(
        &new,
        crate::authority::self_signed(authority, key)
            .bundle()
            .to_pem(),
    )
    .unwrap();
    let step = |step: &str, more: &[&str]| {
        let arguments = [&["authority", step, "front-proxy-ca"], more].concat();
        let _ = fs::remove_file(node.path("/var/lib/nodepki/restarts.json"));
        configured(&node, &arguments)
    };
    let copied = || {
        let read = |path: &str| certificates_of(node.read(path).as_bytes()).unwrap();
        assert_eq!(
            read(FRONT_PROXY_COPY),
            read("/etc/kubernetes/pki/front-proxy-ca.crt")
        );
        read(FRONT_PROXY_COPY).len()
    };
    step("stage", &["--certificate", new.to_str().unwrap()])
        .done_or_temporary()
        .says(FRONT_PROXY_COPY);
    assert_eq!(copied(), 2);
    // A component that would reject clients under the new CA prevents the next step.
    let both = node.read(FRONT_PROXY_COPY);
    let old = fs::read_to_string(node.ca().join("front-proxy-ca.crt")).unwrap();
    node.write(FRONT_PROXY_COPY, &old);
    step("activate", &["--all-nodes-staged"])
        .ended(65)
        .says(FRONT_PROXY_COPY)
        .says("does not trust");
    node.write(FRONT_PROXY_COPY, both);

    for extension in ["crt", "key"] {
        let from = base.with_extension(extension);
        fs::copy(
            from,
            node.ca().join("front-proxy-ca").with_extension(extension),
        )
        .unwrap();
    }
    step("activate", &["--all-nodes-staged"]).done_or_temporary();
    assert_eq!(copied(), 2);
    step("retire", &["--all-nodes-activated"]).done_or_temporary();
    assert_eq!(copied(), 1);
    assert_eq!(
        certificates_of(node.read(FRONT_PROXY_COPY).as_bytes()).unwrap(),
        certificates_of(&fs::read(&new).unwrap()).unwrap()
    );
}

#[test]
fn names_registered_certificate_that_waits_for_its_signer() {
    let node = registered();
    node.signer_does("policy-webhook", "pending");
    node.ask().ended(75).row_says("policy-webhook", "pending");
    let request = "/var/lib/nodepki/pending/policy-webhook/request.csr";
    assert!(node.path(request).exists());
    let doctor = configured(&node, &["doctor"]);
    doctor.says_not("stray-files").says_not(request);
    let mut lines = doctor.stdout.lines();
    let waiting = lines.find(|line| line.contains(" wait for ")).unwrap();
    assert!(waiting.contains("policy-webhook"), "{waiting}");
    // A request next to kubeadm's files is still reported.
    node.write("/etc/kubernetes/pki/old.csr", "");
    configured(&node, &["doctor"])
        .says("stray-files")
        .says("old.csr");
    node.signer_behaves();
    node.ask().done().row_says("policy-webhook", "issued");
}

#[test]
fn exports_registered_requests_and_imports_their_certificates() {
    let node = registered();
    let bundle = node.outside("requests");
    let bundle = bundle.to_str().unwrap();
    configured(&node, &["csr", "export", bundle]).done();
    let csr = node.outside("requests/pki/policy-webhook.csr");
    let text = openssl(
        &[
            "req",
            "-noout",
            "-text",
            "-verify",
            "-in",
            csr.to_str().unwrap(),
        ],
        b"",
    );
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("DNS:policy-webhook.policy.svc"), "{text}");
    node.sign_bundle(bundle.as_ref());
    configured(&node, &["csr", "import", bundle])
        .done()
        .row_says("policy-webhook", "issued");
    let chain = Chain::from_pem(node.read(WEBHOOK_CERTIFICATE).as_bytes()).unwrap();
    assert!(
        chain
            .leaf()
            .dns_names()
            .contains(&"policy-webhook.policy.svc".to_owned())
    );
}

#[test]
fn recognizes_answer_for_another_registered_request() {
    let node = Node::new();
    let drop = node.outside("drop");
    node.write_settings(&format!(
        "{HEAD}signers: {{d: {{directory: {{path: {}}}}}}}\n{}",
        drop.display(),
        registrations()
    ));
    node.ask().ended(75).row_says("policy-webhook", "pending");
    let [csr, ca, key] = [
        drop.join("outbox/policy-webhook.csr"),
        node.ca().join("ca.crt"),
        node.ca().join("ca.key"),
    ]
    .map(|path| path.to_str().unwrap().to_owned());
    let sign = ["x509", "-req", "-in", &csr, "-CA", &ca, "-CAkey", &key];
    let pem = openssl(&[&sign[..], &["-copy_extensions", "copyall"]].concat(), b"");
    fs::create_dir_all(drop.join("inbox")).unwrap();
    fs::write(drop.join("inbox/konnectivity-server.crt"), pem).unwrap();
    node.ask()
        .says("it is policy-webhook's certificate; rename it to inbox/policy-webhook.crt");
}

#[cfg(feature = "failpoints")]
#[test]
fn completes_pairs_after_a_kill_while_files_are_put_in_place() {
    let pair_of = |node: &Node| {
        let chain = fs::read(node.path(WEBHOOK_CERTIFICATE)).ok()?;
        let key = fs::read(node.path(WEBHOOK_KEY)).ok()?;
        let chain = Chain::from_pem(&chain).unwrap();
        let key = PrivateKey::from_pem(&key).unwrap();
        Some(chain.leaf().public_key() == key.public_key())
    };
    let killed = |node: &Node, command: &[&str], failpoint: &str| {
        let mut command = node.configured(command);
        let ran = Ran::of(command.env("NODEPKI_FAILPOINT", failpoint));
        assert_eq!(ran.signal, Some(9), "{failpoint}: {}", ran.said());
    };
    let bootstrap = ["bootstrap", "--wait", "0s", "--clock-wait", "0s"];
    let points = [
        "run:before-commit",
        "commit:staged",
        "commit:journalled",
        "finish:rename-one:3",
    ];
    let new = registered();
    let complete = bootstrapped();
    let finished = |node: &Node, failpoint: &str| {
        node.ask().done();
        assert_eq!(pair_of(node), Some(true), "{failpoint}");
        let found = fs::metadata(node.path(WEBHOOK_KEY)).unwrap();
        assert_eq!(
            (found.gid(), found.mode() & 0o777),
            (WEBHOOK_GROUP, 0o640),
            "{failpoint}"
        );
        assert_eq!(
            node.read(WEBHOOK_CA),
            node.read("/etc/kubernetes/pki/ca.crt")
        );
        assert_eq!(
            crate::store::leftovers(&node.root()),
            [""; 0].map(std::path::PathBuf::from)
        );
        node.assert_bootstrap_changes_nothing();
    };
    for failpoint in points {
        let node = new.copied();
        node.settings(&registrations());
        killed(&node, &bootstrap, failpoint);
        finished(&node, failpoint);

        let node = complete.copied();
        end_cool_down(&node);
        reconfigure(
            &node,
            "commonName: policy-webhook.{node}",
            "commonName: hook.{node}",
        );
        let failpoint = failpoint.replace(":3", ":1");
        killed(&node, &["renew", "--clock-wait", "0s"], &failpoint);
        let is_repairable = node.path("/var/lib/nodepki/journal.json").exists();
        assert!(pair_of(&node) == Some(true) || is_repairable, "{failpoint}");
        finished(&node, &failpoint);
    }
}

#[test]
fn accepts_packaged_examples_without_warnings() {
    let node = registered();
    configured(&node, &["config", "check", "--strict"]).done();
}
