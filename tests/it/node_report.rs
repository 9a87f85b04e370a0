//! `nodeReport` and `cluster status`, with the real kube-apiserver.

use serde_json::{Value, json};

use crate::rotation_cluster::Daemon;
use crate::servers::cluster::{Authorities, Cluster, INIT, settings_with_idle_signer};
use crate::time::wait_until;

const ANNOTATION: &str = "nodepki.io/certificates";

#[test]
fn shows_certificates_of_all_nodes() {
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    // kubelet.conf may change its own Node without a further right.
    let settings = settings_with_idle_signer("nodeReport: {enabled: true}");
    node.write("/etc/nodepki/config.yaml", &settings);
    node.write("/run/kubeadm/kubeadm.yaml", INIT);
    let admin = cluster.admin();
    let hostile = json!({"version": "1", "reported": "2026-11-01T00:00:00Z", "certificates":
        [{"name": "\u{1b}[2Japiserver", "state": "ok"}]});
    let expired = json!({"version": "1", "reported": "2026-11-01T00:00:00Z", "certificates":
        [{"name": "kubelet.conf", "authority": "ca", "state": "ok", "notAfter": "2026-11-02T00:00:00Z"}]});
    for (name, annotations) in [
        (node.name(), json!({})),
        ("w1", json!({})),
        ("w2", json!({(ANNOTATION): hostile.to_string()})),
        ("w3", json!({(ANNOTATION): expired.to_string()})),
    ] {
        let metadata = json!({"name": name, "annotations": annotations});
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
        // The kubelet may have registered the first one.
        assert!([201, 409].contains(&admin.post("/api/v1/nodes", &object).0));
    }
    let path = format!("/api/v1/nodes/{}", node.name());
    let report = || {
        let (_, found) = admin.get(&path);
        let text = found["metadata"]["annotations"][ANNOTATION].as_str();
        text.map(|text| serde_json::from_str::<Value>(text).unwrap())
    };
    let mut daemon = Daemon::start(node);
    wait_until("the report is in the Node", || report().is_some());
    let reported = report().unwrap();
    let certificates = reported["certificates"].as_array().unwrap();
    let of = |name: &str| {
        let found = certificates.iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {reported}"))
    };
    assert_eq!(of("apiserver")["authority"], "ca");
    assert_eq!(of("etcd-ca")["state"], "ok");
    assert!(of("apiserver")["notAfter"].as_str() > of("apiserver")["renewal"].as_str());
    assert!(reported.to_string().len() < 4096, "{reported}");

    let shown = node.nodepki(&["cluster", "status"]);
    shown
        .done()
        .row_says(node.name(), "apiserver")
        .row_says("w1", "-")
        .says("it has not reported; if it runs nodepki, add `nodeReport: {enabled: true}` to its /etc/nodepki/config.yaml")
        .row_says("w2", "-")
        .says("its annotation nodepki.io/certificates cannot be used: it contains a word")
        .row_says("w3", "expired")
        .says("1 not ok")
        .says("2 without a report");
    let printed = node.nodepki(&["cluster", "status", "-o", "json"]);
    let document = crate::documents::verify("cluster-status", printed.done());
    let shown = document["nodes"][0]["certificates"].as_array().unwrap();
    assert_eq!(shown.len(), certificates.len());
    for (shown, reported) in shown.iter().zip(certificates) {
        let mut expected = reported.clone();
        expected["reportedState"] = reported["state"].clone();
        assert_eq!(*shown, expected);
    }
    let ended = &document["nodes"][3]["certificates"][0];
    let states = [&ended["state"], &ended["reportedState"]];
    assert_eq!(states, ["expired", "ok"], "{document}");
    assert_eq!(document["counts"]["notReported"], 2);
    let page = node.nodepki(&["cluster", "status", "-o", "prometheus"]);
    page.done()
        .says("nodepki_node_reported{node=\"w1\"} 0")
        .says("nodepki_certificate_not_after_timestamp_seconds{node=\"w3\",certificate_name=\"kubelet.conf\",authority=\"ca\"} 1793577600");

    // A report that is lost is written again: by each run, and by the daemon.
    daemon.stop();
    let without = json!({"metadata": {"annotations": {(ANNOTATION): null}}});
    assert_eq!(admin.patch(&path, &without).0, 200);
    node.nodepki(&["renew"]).done();
    assert!(report().is_some());
    assert_eq!(admin.patch(&path, &without).0, 200);
    let mut daemon = Daemon::start(node);
    wait_until("the report is in the Node again", || report().is_some());
    daemon.stop();
}
