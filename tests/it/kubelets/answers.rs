//! A signer that is wrong or down, requests that end while they wait for it, and the decisions of an administrator.

use std::time::{Duration, Instant};

use nodepki::kube::names::CertName;

use super::{
    CSRS, KubeletCertificate, Wanted, all_requests, certificate, configure, decided, events_about,
    kubelet_of, prepared, put_node, reason_of, refusal, serving, stems, token,
};
use crate::rotation_cluster::Daemon;
use crate::servers::cluster::{Cluster, ClusterNode, INIT};
use crate::servers::remote_signer::{Mode, PLUGIN, RemoteSigner};
use crate::time::{let_pass, wait_until};

/// The socket of the signer on the node.
const SOCKET: &str = "/run/signer.sock";
/// The state of requests that were sent to the signer.
const RECORDS: &str = "/var/lib/nodepki/kubelets";

/// Starts a cluster whose daemon is to sign with a signer outside of it, with `nodepki.conf` and a ready node `w1`. No
/// component but the daemon approves or changes requests.
pub(super) fn with_remote_signer() -> (Cluster, RemoteSigner) {
    let cluster = prepared(INIT, "corp", "");
    let node = cluster.first();
    node.stop("kube-controller-manager");
    node.nodepki(&["renew"]).done();
    let signer = RemoteSigner::start(&node.path(SOCKET), &cluster.authorities());
    let plugin =
        format!(", remote: {{exec: {{command: /bin/bash, args: ['{PLUGIN}', {SOCKET}]}}}}");
    configure(node, "remote", &plugin);
    let own = [("InternalIP", "192.0.2.21"), ("Hostname", "w1")];
    put_node(&cluster, "w1", &own, true);
    (cluster, signer)
}

/// Wrong answers to a request for a serving certificate, with a part of the difference.
const WRONG_SERVING: [(&str, &str); 12] = [
    ("wrong-key", "another key"),
    ("missing-san", "DNS"),
    ("extra-san", "evil.example.com"),
    ("missing-eku", "usage"),
    ("missing-o", "O"),
    ("extra-o", "system:masters"),
    ("ca", "CA"),
    ("expired", "2021"),
    ("future", "valid"),
    ("other-authority", "trust"),
    ("other-slot", "CN"),
    ("life:864000", "lifetime"),
];
/// The same to a request for a client certificate.
const WRONG_CLIENT: [(&str, &str); 4] = [
    ("extra-o", "system:masters"),
    ("extra-san", "evil.example.com"),
    ("other-slot", "CN"),
    ("garbage", "does not contain a certificate"),
];

#[test]
fn writes_no_certificate_that_differs_from_the_request() {
    let (cluster, signer) = &with_remote_signer();
    let node = cluster.first();
    let daemon = &Daemon::start(node);
    let (w1, token) = (&kubelet_of(cluster, "w1"), &token(cluster));
    let own = serving("w1", &["w1"], &["192.0.2.21"]);
    let client = Wanted::client("new");
    let cases = [
        (KubeletCertificate::Serving, &own, w1, &WRONG_SERVING[..]),
        (
            KubeletCertificate::Client,
            &client,
            token,
            &WRONG_CLIENT[..],
        ),
    ];
    for (certificate, wanted, user, answers) in cases {
        for (behaviour, words) in answers {
            signer.behave_for(certificate.cert_name(), Mode::Lies(behaviour));
            let (name, _, _) = wanted.create(user);
            let object = decided(cluster, &name, daemon);
            assert_eq!(
                refusal(&object),
                "CertificateNotAccepted",
                "{behaviour}: {object}"
            );
            let conditions = object["status"]["conditions"].as_array().unwrap();
            let message = conditions.last().unwrap()["message"].as_str().unwrap();
            println!("{certificate} {behaviour}: {message}");
            assert!(message.contains(words), "{behaviour}: {message}");
        }
    }
    signer.behave_for(CertName::KubeletServing, Mode::Lies("denied"));
    let (name, _, _) = own.create(w1);
    let object = decided(cluster, &name, daemon);
    assert_eq!(refusal(&object), "DeniedBySigner", "{object}");
    assert!(object.to_string().contains("not on a Friday"), "{object}");

    signer.behave(Mode::Signs);
    let (name, _, _) = own.create(w1);
    certificate(&decided(cluster, &name, daemon));
    wait_until("no request is left", || {
        stems(&node.path(RECORDS), "json").is_empty()
    });
}

/// Returns the number of calls to the signer by the metrics of the daemon.
fn signer_calls(node: &ClusterNode) -> usize {
    let page = node.run("curl", &["--silent", "http://127.0.0.1:9465/metrics"]);
    let lines = page.stdout.lines();
    let calls = lines
        .filter(|line| line.starts_with("nodepki_signer_request_duration_seconds_count{"))
        .filter(|line| line.contains("signer=\"remote\""));
    calls
        .map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap())
        .sum()
}

#[test]
fn serves_all_requests_after_an_outage_of_the_signer() {
    const NODES: usize = 12;
    let (cluster, signer) = &with_remote_signer();
    let node = cluster.first();
    let daemon = &Daemon::start(node);
    let token = &token(cluster);
    // The first request probes the signer; nothing is recorded before.
    let (first, _, _) = Wanted::client("n").create(token);
    certificate(&decided(cluster, &first, daemon));
    signer.behave(Mode::Gone);
    let before = signer_calls(node);
    let began = Instant::now();
    let names: Vec<String> = (0..NODES)
        .map(|number| Wanted::client(&format!("n{number}")).create(token).0)
        .collect();
    wait_until("an Event names the outage", || {
        events_about(cluster, &names[0]) == ["SignerUnavailable"]
    });
    let_pass(Duration::from_secs(5));
    for object in all_requests(cluster) {
        if object["metadata"]["name"] == first.as_str() {
            continue;
        }
        assert_eq!(
            reason_of(&object, "Approved"),
            Some("ApprovedByRules"),
            "{object}"
        );
        assert_eq!(reason_of(&object, "Failed"), None, "{object}");
        assert!(object["status"]["certificate"].is_null(), "{object}");
    }
    let tries = signer_calls(node) - before;
    let lasted = began.elapsed();
    println!("{tries} tries for {NODES} requests during an outage of {lasted:.0?}");
    // The wait doubles after each failure, and half of it is random; a try is two calls, since the first may have been
    // received.
    let doublings = lasted.as_secs().max(1).ilog2() as usize;
    assert!(
        (NODES..=NODES * 2 * (doublings + 5)).contains(&tries),
        "{tries} in {lasted:?}"
    );
    // A restart during the outage loses nothing.
    assert_eq!(stems(&node.path(RECORDS), "json").len(), NODES);

    signer.behave(Mode::Signs);
    for name in &names {
        certificate(&decided(cluster, name, daemon));
    }
    assert_eq!(signer.signed(), NODES + 1, "one request for each node");
}

#[test]
fn removes_request_from_signer_when_its_object_is_deleted() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    node.nodepki(&["renew"]).done();
    let drop = node.path("/var/lib/drop");
    configure(node, "drop", ", drop: {directory: {path: /var/lib/drop}}");
    let daemon = &mut Some(Daemon::start(node));
    let token = &token(cluster);
    let outbox = || stems(&drop.join("outbox"), "csr");
    let delete = |name: &str| {
        let (status, body) = cluster.admin().delete(&format!("{CSRS}/{name}"));
        assert_eq!(status, 200, "{body}");
    };
    let is_clear = || outbox().is_empty() && stems(&node.path(RECORDS), "json").is_empty();

    let (name, uid, _) = Wanted::client("w1").create(token);
    let stem = format!("kubelet.conf.{uid}");
    wait_until("the signer has the request", || outbox() == [stem.clone()]);
    delete(&name);
    wait_until("the request is removed", is_clear);

    // Deleted while no daemon runs.
    let (name, uid, _) = Wanted::client("w1").create(token);
    let stem = format!("kubelet.conf.{uid}");
    wait_until("the signer has the request", || outbox() == [stem.clone()]);
    daemon.take().unwrap().stop();
    delete(&name);
    *daemon = Some(Daemon::start(node));
    wait_until("the request is removed", is_clear);
}

#[test]
fn administrator_decides_what_the_rules_leave_open() {
    let (cluster, _signer) = &with_remote_signer();
    let node = cluster.first();
    let daemon = &Daemon::start(node);
    let token = &token(cluster);
    put_node(cluster, "tired", &[("InternalIP", "192.0.2.23")], false);
    let waiting = || {
        let (name, _, _) = Wanted::client("tired").create(token);
        wait_until("an Event reports the doubt", || {
            events_about(cluster, &name) == ["NodeExists"]
        });
        name
    };
    let (first, second) = (waiting(), waiting());
    let listed = node.nodepki(&["kubelets", "list"]);
    listed
        .done()
        .says(&first)
        .says("NodeExists")
        .says("nodepki kubelets approve");

    node.nodepki(&["kubelets", "approve", &first])
        .done()
        .says("approved");
    certificate(&decided(cluster, &first, daemon));
    let why = "this machine was sold";
    node.nodepki(&["kubelets", "deny", &second, "--reason", why])
        .done()
        .says("denied");
    let denied = decided(cluster, &second, daemon);
    assert_eq!(
        reason_of(&denied, "Denied"),
        Some("DeniedByAdministrator"),
        "{denied}"
    );
    assert!(denied.to_string().contains(why), "{denied}");
    node.nodepki(&["kubelets", "approve", &second])
        .ended(65)
        .says("already denied");

    // So does the second certificate for a node that does not exist.
    let (name, _, _) = Wanted::client("unborn").create(token);
    certificate(&decided(cluster, &name, daemon));
    let (name, _, _) = Wanted::client("unborn").create(token);
    wait_until("an Event reports the doubt", || {
        events_about(cluster, &name) == ["NodeNameTaken"]
    });
    node.nodepki(&["kubelets", "approve", &name]).done();
    certificate(&decided(cluster, &name, daemon));

    // An approval replaces no rule about names and addresses.
    let w1 = &kubelet_of(cluster, "w1");
    let (name, _, _) = serving("w1", &[], &["198.51.100.7"]).create(w1);
    wait_until("an Event reports the doubt", || {
        events_about(cluster, &name) == ["SanNotOfNode"]
    });
    node.nodepki(&["kubelets", "approve", &name])
        .ended(65)
        .says("nodepki would not sign it")
        .says("SanNotOfNode: 198.51.100.7");
    node.nodepki(&["kubelets", "deny", "no-such-request"])
        .ended(65)
        .says("no request of a kubelet has this name");
}
