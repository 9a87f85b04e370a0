//! `nodeEvents`: Events about the Node, with the real kube-apiserver.

use serde_json::{Value, json};

use crate::rotation_cluster::Daemon;
use crate::servers::bin;
use crate::servers::cluster::{Authorities, Cluster, INIT, settings_with_idle_signer};
use crate::time::wait_until;

#[test]
fn daemon_reports_certificates_that_are_not_issued() {
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    // A signer that answers nothing; kubelet.conf may write the Events without a further right.
    let usable = settings_with_idle_signer("nodeEvents: {enabled: true}");
    node.write("/etc/nodepki/config.yaml", &usable);
    node.write("/run/kubeadm/kubeadm.yaml", INIT);
    for end in ["crt", "key"] {
        let file = format!("/etc/kubernetes/pki/apiserver-kubelet-client.{end}");
        std::fs::remove_file(node.path(&file)).unwrap();
    }
    // A kubeconfig that cannot be used stops no daemon.
    let exposed = "/var/tmp/exposed/kubeconfig";
    node.write(exposed, "{}");
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(node.path("/var/tmp/exposed"), permissions).unwrap();
    let unusable = usable.replace(
        "enabled: true",
        &format!("enabled: true, kubeconfig: {exposed}"),
    );
    node.write("/etc/nodepki/config.yaml", &unusable);
    let mut daemon = Daemon::start(node);
    wait_until("the daemon has said why", || {
        daemon.said().contains("nodeEvents: ")
    });
    daemon.stop();
    node.write("/etc/nodepki/config.yaml", &usable);

    let admin = cluster.admin();
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name()}});
    // The kubelet may have registered it.
    assert!([201, 409].contains(&admin.post("/api/v1/nodes", &object).0));
    let mut daemon = Daemon::start(node);
    let events = || {
        let list = admin.get("/api/v1/namespaces/default/events?fieldSelector=reason%3DCertificateGenerationFailed").1;
        list["items"].as_array().cloned().unwrap_or_default()
    };
    wait_until("an Event is written", || !events().is_empty());

    let kubectl = [
        "--kubeconfig=/etc/kubernetes/super-admin.conf",
        "--cache-dir=/var/tmp/kubectl",
        "describe",
        "node",
        node.name(),
    ];
    let program = bin("kubectl");
    node.run(program.to_str().unwrap(), &kubectl)
        .done()
        .says("CertificateGenerationFailed")
        .says("nodepki")
        .says("apiserver-kubelet-client: failed: ");

    // A later step brings the Event up to date.
    let first = events();
    daemon.stop();
    let name = first[0]["metadata"]["name"].as_str().unwrap();
    let event = format!("/api/v1/namespaces/default/events/{name}");
    let outdated = json!({"message": "outdated"});
    assert_eq!(admin.patch(&event, &outdated).0, 200);
    let mut daemon = Daemon::start(node);
    wait_until("the Event is brought up to date", || {
        events()
            .iter()
            .all(|event| event["message"] == first[0]["message"])
    });
    let names = |events: &[Value]| -> Vec<Value> {
        let names = events.iter().map(|event| event["metadata"]["name"].clone());
        names.collect()
    };
    assert_eq!(names(&events()), names(&first));
    daemon.stop();
}
