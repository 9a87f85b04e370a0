//! Every supported release of Kubernetes: its kubeadm accepts the files of nodepki, and its kubelet works with them.

use crate::cluster::node::Role;
use crate::cluster::site::{CURRENT, FORMER, OLDEST};
use crate::cluster::{Cluster, user_data};
use crate::machine::{Machine, PKI_SUMS};

const VERSIONS: [&str; 7] = [
    OLDEST, "v1.32.4", "v1.33.4", "v1.34.2", "v1.35.1", FORMER, CURRENT,
];

/// Commands on a first node that has its PKI and no cluster; no image is pulled.
const INIT: &str = "
    set -e
    sed -i 's/^nodeRegistration:/&\\n  imagePullPolicy: Never/' /etc/nodepki/kubeadm.yaml
    config='--config /etc/nodepki/kubeadm.yaml'
    kubeadm init phase preflight $config 2>&1
    kubeadm init phase certs all $config 2>&1
    kubeadm init phase kubeconfig all $config 2>&1
    kubeadm certs check-expiration $config 2>&1";

const JOIN: &str = "
    sed -i 's/^nodeRegistration:/&\\n  imagePullPolicy: Never/' /var/lib/nodepki/kubeadm-join.yaml
    kubeadm join phase preflight --config /var/lib/nodepki/kubeadm-join.yaml 2>&1";

/// Runs the nodes in a cluster of the current release.
pub(crate) fn all(cluster: &mut Cluster) {
    for version in VERSIONS {
        let first = user_data::first(cluster, version, "cp4");
        assert_accepts(cluster, version, first, INIT);
        let secrets = cluster.secrets();
        let join = user_data::join(cluster, "cp4", Role::ControlPlane, &secrets);
        assert_accepts(cluster, version, join, JOIN);

        let worker = user_data::join(cluster, "w2", Role::Worker, &secrets);
        cluster.boot_with(version, "w2", Role::Worker, worker);
        cluster.node("w2").wait_until_joined();
        cluster.until("w2 is Ready", |cluster| {
            let wait = "wait node/w2 --for=condition=Ready --timeout=10s";
            cluster.kubectl("cp1", wait).map(drop)
        });
        let kubelet = "get node w2 -o jsonpath={.status.nodeInfo.kubeletVersion}";
        assert_eq!(cluster.kubectl("cp1", kubelet).unwrap(), version);
        cluster.node("w2").done("nodepki doctor");
        cluster.lose("w2");
        cluster.say(&format!(
            "{version}: init preflight, certs, kubeconfig, check-expiration and join preflight accept all and change no byte; kubeadm join and the kubelet of a worker: Ready"
        ));
    }
}

/// Asserts that kubeadm's commands succeed on a machine that has its PKI, and change no file of it.
fn assert_accepts(cluster: &mut Cluster, version: &str, user_data: String, commands: &str) {
    let user_data = user_data::bootstrap_only(user_data);
    cluster.boot_with(version, "cp4", Role::ControlPlane, user_data);
    let node = cluster.node("cp4");
    let ready = "systemctl is-active -q nodepki-bootstrap.service containerd.service";
    node.machine.until(ready);
    let before = node.done(PKI_SUMS);
    node.done(commands);
    assert_eq!(node.done(PKI_SUMS), before, "{version}");
    cluster.switch_off("cp4");
}
