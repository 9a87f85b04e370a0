//! The daemon is killed between the request to the signer and its answer: the signer has one request, and the certificate
//! arrives.

use super::answers::with_remote_signer;
use super::{
    Wanted, answer, certificate, configure, decided, kubelet_of, prepared, serving, stems, token,
};
use crate::rotation_cluster::Daemon;
use crate::servers::cluster::INIT;
use crate::time::wait_until;

const FAILPOINT: &str = "NODEPKI_FAILPOINT";

#[test]
fn adopts_request_of_killed_daemon_at_directory() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    node.nodepki(&["renew"]).done();
    let drop = node.path("/var/lib/drop");
    configure(node, "drop", ", drop: {directory: {path: /var/lib/drop}}");
    for (failpoint, sent, worker) in [
        ("kubelets:submitting", 0, "w1"),
        // The first call asks whether the signer has the request, the second one submits it, the third one polls.
        ("kubelets:answered", 0, "w2"),
        ("kubelets:answered:2", 1, "w3"),
        ("kubelets:answered:3", 1, "w4"),
    ] {
        let mut daemon = Daemon::start_with(node, &[(FAILPOINT, failpoint)]);
        let wanted = Wanted::client(worker);
        let (name, uid, _) = wanted.create(&token(cluster));
        let outbox = || stems(&drop.join("outbox"), "csr");
        let stem = format!("kubelet.conf.{uid}");
        daemon.wait_for_end();
        assert_eq!(outbox().len(), sent, "{failpoint}");
        let record = format!("/var/lib/nodepki/kubelets/{uid}.json");
        let is_recorded = node.path(&record).exists();
        assert!(sent == 0 || is_recorded, "{failpoint}");

        daemon.replace();
        wait_until("the signer has the request", || outbox() == [stem.clone()]);
        answer(cluster, &drop, &stem, &wanted);
        certificate(&decided(cluster, &name, &daemon));
        wait_until("nothing is left", || {
            outbox().is_empty() && !node.path(&record).exists()
        });
        daemon.stop();
    }
}

#[test]
fn repeats_request_of_killed_daemon_to_plugin_under_one_id() {
    let (cluster, signer) = &with_remote_signer();
    let node = cluster.first();
    for (number, failpoint) in [
        "kubelets:submitting",
        "kubelets:answered",
        "kubelets:answered:2",
    ]
    .into_iter()
    .enumerate()
    {
        let mut daemon = Daemon::start_with(node, &[(FAILPOINT, failpoint)]);
        let (name, _, _) = serving("w1", &[], &["192.0.2.21"]).create(&kubelet_of(cluster, "w1"));
        daemon.wait_for_end();
        daemon.replace();
        certificate(&decided(cluster, &name, &daemon));
        assert_eq!(signer.signed(), number + 1, "{failpoint}");
        daemon.stop();
    }
}
