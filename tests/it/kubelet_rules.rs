//! Signing for kubelets, apart from the cluster: nodepki.conf, its rights, and the hostile requests as other programs read
//! them.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nodepki::kube::csr_object::CsrObject;
use nodepki::kube::kubeadm::{ClusterConfig, HostPort, San};
use nodepki::kube::names::CertName;
use nodepki::kubelets::{
    IssuanceIndex, KubeletDecision, KubeletPolicy, NodeBindings, NodeIndex, RequestContext,
    ReservedNames, judge,
};
use nodepki::x509::Sans;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::der_encoding;
use crate::node::{EVERYTHING, INIT, Node, Ran};
use crate::signer_setup::print_setup;
use crate::signing::{HEAD, openssl};

#[path = "../fixtures/kubelet_requests.rs"]
pub(crate) mod requests;

use requests::Outcome;

const SIGN: &str = "kubelets: {sign: true, approveServing: true}\n";
const CONF: &str = "/etc/kubernetes/nodepki.conf";

#[test]
fn bootstrap_issues_identity_of_kubelet_signer() {
    let node = Node::new();
    node.settings(SIGN);
    node.ask().done().says("nodepki.conf");
    node.assert_sound(&EVERYTHING);
    assert_eq!(
        node.subject(CertName::NodepkiConf),
        "O=nodepki:kubelet-signers, CN=nodepki:cp1"
    );
    assert_eq!(node.mode(CONF), 0o600);
    assert!(
        node.read(CONF).contains("server: https://192.0.2.11:6443"),
        "the daemon uses the API server of its own node"
    );
    node.assert_bootstrap_changes_nothing();
    node.run(&["status"]).says("nodepki.conf");
    // kubeadm does not know the file.
    node.run(&["status", "--kubeadm"]).says_not("nodepki.conf");
    node.settings("");
    node.ask().done().says_not("nodepki.conf");
}

#[test]
fn node_without_kubelet_signing_gets_no_identity_for_it() {
    let node = Node::new();
    node.ask().done().says_not("nodepki.conf");
    assert!(!node.path(CONF).exists());
}

#[test]
fn prints_rights_of_kubelet_signer() {
    let dir = tempfile::tempdir().unwrap();
    let signer = "signers: {a: {local: {directory: /srv/ca}}}\n";
    let settings = format!("{HEAD}{signer}kubelets: {{sign: true, lease: chosen}}\n");
    let ran = print_setup(dir.path(), &settings, INIT, &["kubelets"]);
    ran.done().says("nodepki:kubelet-signers").says("chosen");
    let objects =
        ran.stdout.matches("\nkind: ").count() + ran.stdout.matches("\n\"kind\": ").count();
    assert_eq!(objects, 8, "{}", ran.stdout);
    for forbidden in [
        "secrets",
        "\"*\"",
        "'*'",
        "- '*'",
        "system:masters",
        "delete",
        "patch",
    ] {
        assert!(
            !ran.stdout.contains(forbidden),
            "{forbidden}: {}",
            ran.stdout
        );
    }
    print_setup(dir.path(), &settings, INIT, &["kubelets", "--name", "a"])
        .ended(64)
        .says("--name selects a signer");
    let without = format!("{HEAD}{signer}");
    print_setup(dir.path(), &without, INIT, &["kubelets"])
        .done()
        .says("kubelets.sign is not set");
}

#[test]
fn config_check_refuses_signer_that_cannot_sign_for_kubelets() {
    let node = Node::new();
    let text = format!("{HEAD}{SIGN}signers: {{lab: {{embedded: {{}}}}}}\n");
    node.write_settings(&text);
    Ran::of(&mut node.configured(["config", "check"]))
        .ended(78)
        .says("kubelets.sign: signer lab of authority ca cannot sign for kubelets")
        .says("configure another kind of signer for authority ca");
}

#[test]
fn every_command_names_kind_that_cannot_sign_for_kubelets() {
    let node = Node::new();
    let text = format!(
        "{HEAD}{SIGN}authorities: {{ca: {{signer: p}}, etcd-ca: {{signer: l}}, front-proxy-ca: {{signer: l}}}}\n\
         signers: {{p: {{puppet: {{url: \"https://puppet:8140\", tls: {{caFile: /ca.pem}}}}}}, l: {{local: {{directory: /srv/ca}}}}}}\n"
    );
    node.write_settings(&text);
    for command in [&["config", "check"][..], &["plan"], &["doctor"]] {
        Ran::of(&mut node.configured(command.iter().copied()))
            .says("kubelets.sign: signer p of authority ca cannot sign for kubelets")
            .says("Puppet certifies neither an organization");
    }
}

/// A request that is refused because nobody can read it would prove nothing about the rules.
#[test]
fn openssl_verifies_hostile_requests() {
    let mut verified = 0;
    for case in requests::all() {
        // OpenSSL refuses what Go refuses, and reads one of two equal extensions.
        if case.refused_by_api_server && case.name != "ECDSA on secp256k1" {
            continue;
        }
        // To OpenSSL, PEM headers mean that the block is encrypted.
        if case.name == "PEM headers" {
            continue;
        }
        let text = openssl(&["req", "-noout", "-verify", "-text"], &case.pem);
        assert!(
            String::from_utf8_lossy(&text).contains("Certificate Request:"),
            "{}",
            case.name
        );
        verified += 1;
    }
    assert!(verified >= 40, "{verified}");
}

/// Before the Nodes are known, a rule about them must not be satisfied by their absence. Only a token depends on it.
#[test]
fn approves_no_hostile_request_without_nodes() {
    let policy = KubeletPolicy {
        sign: true,
        approve_serving: true,
        approve_client: true,
        ..KubeletPolicy::default()
    };
    let now = OffsetDateTime::now_utc();
    let cluster = ClusterConfig {
        control_plane_endpoint: Some(HostPort::parse("api.example.com:6443").unwrap().0),
        apiserver_cert_sans: vec![San::parse("*.apps.example.com").unwrap().0],
        ..ClusterConfig::default()
    };
    let context = RequestContext {
        nodes: &NodeIndex::default(),
        reserved: &ReservedNames::new(&cluster, &Sans::default()),
        bindings: &NodeBindings::default(),
        issued: &IssuanceIndex::default(),
    };
    for case in requests::all() {
        if case.reason == "NodeExists" {
            continue;
        }
        let object = json!({
            "metadata": {
                "name": "csr",
                "uid": "1",
                "resourceVersion": "1",
                "creationTimestamp": now.format(&Rfc3339).unwrap(),
            },
            "spec": {
                "request": BASE64_STANDARD.encode(&case.pem),
                "signerName": case.signer_name,
                "usages": case.usages,
                "username": case.sender.user,
                "groups": case.sender.groups,
            },
        });
        let request = CsrObject::from_json(&object).unwrap().unwrap();
        let decision = judge(&request, context, &policy, now);
        let name = case.name;
        match (decision, case.outcome) {
            (KubeletDecision::Wait { .. }, _) => {}
            (KubeletDecision::Deny(finding), Outcome::Denied) => {
                assert_eq!(finding.reason.as_str(), case.reason, "{name}");
            }
            (decision, _) => panic!("{name}: {decision:?}"),
        }
    }
}

#[test]
fn json_schema_describes_kubelets() {
    let schema: Value = nodepki::config::Settings::schema();
    let kubelets = &schema["properties"]["kubelets"]["properties"];
    assert_eq!(kubelets["requestsPerSecond"]["type"], "integer");
    assert_eq!(kubelets["keys"]["type"], "array");
}
