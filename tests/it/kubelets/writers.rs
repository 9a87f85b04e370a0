//! Other writers of the same objects, a history that the API server has forgotten, and a cluster in which nothing happens.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodepki::kube::names::CertName;
use serde_json::{Value, json};

use super::answers::with_remote_signer;
use super::{
    CSRS, Wanted, certificate, decided, events_about, kubelet_of, prepared, put_node, reason_of,
    serving, token,
};
use crate::rotation_cluster::Daemon;
use crate::servers::bin;
use crate::servers::cluster::{Cluster, ClusterNode, INIT};
use crate::servers::remote_signer::Mode;
use crate::time::{let_pass, wait_until};

/// User of `nodepki.conf`.
const DAEMON_USER: &str = "nodepki:cp1";
const AUDIT_LOG: &str = "/var/tmp/audit.log";
/// How long nothing happens.
const IDLE: Duration = Duration::from_secs(25);

/// Starts the API server again with an audit log of the daemon's requests and these flags.
fn audit(node: &ClusterNode, flags: &[&str]) {
    let policy = format!(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {{level: Metadata, users: ['{DAEMON_USER}']}}\n- {{level: None}}\n"
    );
    node.write("/var/tmp/audit.yaml", &policy);
    let log = format!("--audit-log-path={AUDIT_LOG}");
    let mut all = vec!["--audit-policy-file=/var/tmp/audit.yaml", &log];
    all.extend(flags);
    node.stop("kube-apiserver");
    node.start_with("kube-apiserver", &all);
}

/// Returns the daemon's requests since the start of the API server: verb, resource with subresource, and status.
fn requests(node: &ClusterNode) -> Vec<String> {
    let log = fs::read_to_string(node.path(AUDIT_LOG)).unwrap_or_default();
    let events = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    events
        .map(|event: Value| {
            let text = |pointer: &str| {
                event
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let mut resource = text("/objectRef/resource").to_owned();
            if !text("/objectRef/subresource").is_empty() {
                resource = format!("{resource}/{}", text("/objectRef/subresource"));
            }
            let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
            format!("{} {resource} {code}", text("/verb"))
        })
        .collect()
}

/// Adds an annotation, as any controller may.
fn touch(cluster: &Cluster, name: &str) {
    let change = json!({"metadata": {"annotations": {"example.com/seen": "yes"}}});
    let (status, body) = cluster.admin().patch(&format!("{CSRS}/{name}"), &change);
    assert_eq!(status, 200, "{body}");
}

#[test]
fn judges_again_after_conflict_with_another_writer() {
    let (cluster, signer) = &with_remote_signer();
    let node = cluster.first();
    audit(node, &[]);
    let daemon = &Daemon::start(node);
    let w1 = &kubelet_of(cluster, "w1");
    let hold = || signer.behave_for(CertName::KubeletServing, Mode::Waits);
    let is_asked = |count| signer.met().get(&Mode::Waits) == Some(&count);
    let conflicts = || {
        let all = requests(node).into_iter();
        all.filter(|line| line == "update certificatesigningrequests/status 409")
            .count()
    };

    // The object changes while the signer works: the certificate is written into the changed object.
    hold();
    let (name, _, _) = serving("w1", &[], &["192.0.2.21"]).create(w1);
    wait_until("the signer has the request", || is_asked(1));
    touch(cluster, &name);
    signer.behave(Mode::Signs);
    let issued = decided(cluster, &name, daemon);
    certificate(&issued);
    assert_eq!(issued["metadata"]["annotations"]["example.com/seen"], "yes");
    assert_eq!(conflicts(), 1, "{:#?}", requests(node));

    // So does the Node: the request is judged again before the certificate would be written.
    hold();
    let (name, _, _) = serving("w1", &[], &["192.0.2.21"]).create(w1);
    wait_until("the signer has the request", || is_asked(2));
    touch(cluster, &name);
    put_node(cluster, "w1", &[("InternalIP", "192.0.2.99")], true);
    put_node(cluster, "w2", &[("InternalIP", "192.0.2.21")], true);
    signer.behave(Mode::Signs);
    let failed = decided(cluster, &name, daemon);
    assert_eq!(
        reason_of(&failed, "Failed"),
        Some("SanOfOtherNode"),
        "{failed}"
    );
    assert_eq!(conflicts(), 1, "{:#?}", requests(node));
    repeat_event_that_is_not_accepted(cluster);
}

/// Has the API server answer Events with an internal error for a while: their admission depends on a webhook that is down.
fn repeat_event_that_is_not_accepted(cluster: &Cluster) {
    const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let (admin, node) = (&cluster.admin(), cluster.first());
    let webhook = json!({"kind": "ValidatingWebhookConfiguration",
        "apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "down"},
        "webhooks": [{"name": "down.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "timeoutSeconds": 1, "failurePolicy": "Fail", "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                       "resources": ["events"]}]}]});
    let (status, body) = admin.post(WEBHOOKS, &webhook);
    assert_eq!(status, 201, "{body}");
    let event = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"generateName": "test-"},
        "involvedObject": {"kind": "Node", "name": "w1", "namespace": "default"}});
    wait_until("the webhook is in force", || {
        admin.post("/api/v1/namespaces/default/events", &event).0 == 500
    });
    put_node(cluster, "tired", &[("InternalIP", "192.0.2.23")], false);
    let (name, _, _) = Wanted::client("tired").create(&token(cluster));
    wait_until("the Event is not accepted", || {
        requests(node)
            .iter()
            .any(|line| line == "create events 500")
    });
    assert!(events_about(cluster, &name).is_empty());
    let (status, body) = admin.delete(&format!("{WEBHOOKS}/down"));
    assert_eq!(status, 200, "{body}");
    wait_until("the Event is sent again", || {
        events_about(cluster, &name) == ["NodeExists"]
    });
}

/// Removes the history of etcd up to now.
fn compact(node: &ClusterNode) {
    let etcdctl = bin("etcdctl-3.7");
    let run = |arguments: &[&str]| {
        let tls = [
            "--endpoints=https://127.0.0.1:2379",
            "--cacert=/etc/kubernetes/pki/etcd/ca.crt",
            "--cert=/etc/kubernetes/pki/etcd/healthcheck-client.crt",
            "--key=/etc/kubernetes/pki/etcd/healthcheck-client.key",
        ];
        node.run(etcdctl.to_str().unwrap(), &[&tls[..], arguments].concat())
    };
    let status = run(&["endpoint", "status", "--write-out=json"]);
    let status: Value = serde_json::from_str(&status.done().stdout).unwrap();
    let revision = status[0]["Status"]["header"]["revision"].as_u64().unwrap();
    run(&["compact", &revision.to_string()]).done();
}

#[test]
fn lists_again_after_history_is_compacted() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    // Watches read etcd itself, which has no event that it has compacted.
    audit(node, &["--watch-cache=false"]);
    let daemon = &mut Daemon::start(node);
    let (name, _, _) = Wanted::client("first").create(&token(cluster));
    certificate(&decided(cluster, &name, daemon));
    let lists = || {
        let all = requests(node).into_iter();
        all.filter(|line| line == "list certificatesigningrequests 200")
            .count()
    };
    let before = lists();
    let (_, list) = cluster.admin().get(CSRS);
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();

    // Less than the duration of the Lease: the daemon must not start over for that reason.
    daemon.signal(Signal::SIGSTOP);
    node.run("ss", &["--kill", "dst", "192.0.2.11", "dport", "=", "6443"])
        .done();
    let (name, _, _) = Wanted::client("second").create(&token(cluster));
    // A compaction keeps the last revision.
    touch(cluster, &name);
    compact(node);
    daemon.signal(Signal::SIGCONT);
    certificate(&decided(cluster, &name, daemon));
    let said = daemon.said();
    assert!(!said.contains("stops signing"), "{said}");
    // The watch from the version that the daemon had seen begins with status 200; its first event is this error.
    let watch = format!("{CSRS}?watch=true&timeoutSeconds=5&resourceVersion={version}");
    let (_, event) = cluster.admin().get(&watch);
    assert_eq!(event["object"]["code"], 410, "{event}");
    assert!(lists() > before, "{:#?}", requests(node));
}

#[test]
fn sends_nothing_but_the_lease_while_nothing_happens() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    audit(node, &[]);
    let daemon = &Daemon::start(node);
    let (name, _, _) = Wanted::client("w1").create(&token(cluster));
    certificate(&decided(cluster, &name, daemon));
    // The last reads after the certificate was written.
    let_pass(Duration::from_secs(3));
    let before = requests(node).len();
    let_pass(IDLE);
    let all = requests(node);
    let meanwhile = &all[before..];
    let others: Vec<&String> = meanwhile
        .iter()
        .filter(|line| !["get leases 200", "update leases 200"].contains(&line.as_str()))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    // A read and a write each 2.5 seconds.
    let expected = 2 * IDLE.as_millis() / 2500;
    let count = meanwhile.len() as u128;
    assert!(count > 0 && count <= expected + 2, "{count}");
}
