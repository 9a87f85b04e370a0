//! The issuance log of a node: what a bootstrap and a renewal record, and what a fault of the log costs.

use std::fs;

use serde_json::Value;

use nodepki::process::failpoint;

use crate::node::{Node, Ran};

const LOG: &str = "/var/lib/nodepki/audit.jsonl";

/// Returns the entries of the log as `audit show` prints them.
fn entries(node: &Node, more: &[&str]) -> Vec<Value> {
    let shown = node.run(&[&["audit", "show", "-o", "json"], more].concat());
    let document: Value = serde_json::from_str(&shown.done().stdout).unwrap();
    document["items"].as_array().unwrap().clone()
}

fn events(entries: &[Value]) -> Vec<&str> {
    let events = entries.iter().map(|entry| entry["event"].as_str().unwrap());
    events.collect()
}

#[test]
fn records_request_answer_and_installation_of_a_certificate() {
    let node = Node::new();
    node.ask().done();
    let invocation = "0123456789abcdef0123456789abcdef";
    let mut renewal = node.configured(["renew", "apiserver", "--force", "--wait", "0s"]);
    Ran::of(renewal.env("INVOCATION_ID", invocation)).done();
    let found = entries(&node, &["--certificate", "apiserver"]);
    let expected = ["requested", "issued", "installed"];
    assert_eq!(events(&found), [expected, expected].concat());
    let [requested, issued, installed] = &found[3..] else {
        panic!("{found:?}");
    };
    let leaf = node
        .leaf(nodepki::kube::names::CertName::Apiserver)
        .unwrap()
        .0;
    let leaf = leaf.leaf();
    for entry in [issued, installed] {
        assert_eq!(entry["serial"], leaf.serial());
        assert_eq!(
            entry["issuerKeyId"],
            nodepki::text::hex(leaf.authority_key_id())
        );
        assert_eq!(entry["requestId"], requested["requestId"]);
        assert_eq!(entry["csrSha256"], requested["csrSha256"]);
    }
    assert_eq!(requested["invocation"], invocation);
    assert_ne!(requested["requestId"], found[0]["requestId"]);
    assert_eq!(requested["authority"], "ca");
    let by_serial = entries(&node, &["--serial", &leaf.serial().to_uppercase()]);
    assert_eq!(by_serial, found[3..]);
    assert_eq!(node.mode(LOG) & 0o7777, 0o600);
    node.run(&["audit", "verify"]).done();
}

#[test]
fn records_denials_and_refused_answers_once() {
    let node = Node::new();
    node.ask().done();
    node.signer_does("apiserver", "denied");
    for _ in 0..2 {
        Ran::of(&mut node.configured(["renew", "apiserver", "--force", "--wait", "0s"]));
    }
    let found = entries(&node, &["--certificate", "apiserver"]);
    let ends: Vec<&str> = events(&found)[3..].to_vec();
    assert_eq!(
        ends.iter().filter(|event| **event == "denied").count(),
        1,
        "{ends:?}"
    );
    let denied = found
        .iter()
        .find(|entry| entry["event"] == "denied")
        .unwrap();
    assert!(!denied["reason"].as_str().unwrap().is_empty());
    assert_eq!(denied["signerKind"], "exec");
}

#[test]
fn contains_no_secret() {
    let node = Node::new();
    node.ask().done();
    let log = node.read(LOG);
    assert!(!log.contains("PRIVATE KEY") && !log.contains("BEGIN"));
    for key in node.keys_in_place().values() {
        for line in key.lines().filter(|line| line.len() > 16) {
            assert!(!log.contains(line));
        }
    }
}

#[test]
fn verify_ends_with_65_for_a_changed_line_or_an_unknown_head() {
    let node = Node::new();
    let empty = node.run(&["audit", "verify"]);
    assert_eq!(empty.done().closing(), "no entries");
    node.ask().done();
    let log = node.read(LOG);
    let head = nodepki_head(&node);
    node.run(&["audit", "verify", "--head", &head])
        .done()
        .says("the log is intact");
    node.run(&["audit", "verify", "--head", &"0".repeat(64)])
        .ended(65)
        .says("no entry has the digest");
    node.run(&["audit", "verify", "--head", "abc"]).ended(64);
    let changed = log.replacen(
        "\"certificate\":\"apiserver\"",
        "\"certificate\":\"etcd-peer\"",
        1,
    );
    assert_ne!(changed, log);
    fs::write(node.path(LOG), changed).unwrap();
    let verified = node.run(&["audit", "verify"]);
    verified
        .ended(65)
        .says("audit.jsonl, line ")
        .says_not("intact");
    verified.says("was changed, or lines between them were removed");
}

#[test]
fn show_suggests_certificate_for_unknown_name() {
    let node = Node::new();
    node.ask().done();
    node.run(&["audit", "show", "--certificate", "apisrver"])
        .ended(64)
        .says("\"apisrver\" is not the name of a certificate (did you mean apiserver?)");
    node.run(&["audit", "show", "--certificate", "kubelet-serving"])
        .ended(64)
        .says("kubelet-serving: the log has no entry of it (use one of admin.conf, ");
    node.run(&["audit", "show", "--certificate", "apiserver"])
        .done()
        .says_not("did you mean");
}

fn nodepki_head(node: &Node) -> String {
    let verified = node.run(&["audit", "verify", "-o", "json"]);
    let document: Value = serde_json::from_str(&verified.done().stdout).unwrap();
    document["head"]["sha256"].as_str().unwrap().to_owned()
}

#[test]
fn full_disk_stops_no_issuance_and_the_loss_is_recorded() {
    let node = Node::new();
    let failing = Ran::of(
        node.ask_command("0s")
            .env("NODEPKI_FAILPOINT", "audit:write=ENOSPC"),
    );
    failing
        .done()
        .says("an entry could not be written")
        .says("\"event\":\"requested\"");
    assert_eq!(entries(&node, &[])[0]["lost"], 1);
    node.run(&["audit", "verify"])
        .done()
        .says("before entry 1 this number of entries could not be written: 1");
    node.assert_bootstrap_changes_nothing();
}

#[test]
fn killed_run_leaves_an_intact_chain() {
    for point in failpoint::AUDIT
        .iter()
        .filter(|point| **point != "audit:renamed")
    {
        let node = Node::new();
        let killed = Ran::of(node.ask_command("0s").env("NODEPKI_FAILPOINT", point));
        assert_eq!(killed.signal, Some(9), "{point}: {}", killed.said());
        node.run(&["audit", "verify"]).done();
        node.assert_completes();
        node.run(&["audit", "verify"]).done();
        assert!(
            events(&entries(&node, &[])).contains(&"installed"),
            "{point}"
        );
    }
}

#[test]
fn settled_node_appends_nothing() {
    let node = Node::new();
    node.ask().done();
    let log = node.read(LOG);
    node.ask().done();
    assert_eq!(node.read(LOG), log);
}
