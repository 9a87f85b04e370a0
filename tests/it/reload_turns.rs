//! Two control-plane nodes with a daemon each: their components restart one after the other, even if both are due at
//! the same moment.

use crate::join_control_plane::{prepare, start_components};
use crate::rotation_cluster::Daemon;
use crate::servers::cluster::{Authorities, Cluster, ClusterNode, INIT};
use crate::servers::remote_signer::{PLUGIN, RemoteSigner};
use crate::servers::static_pods::{StaticPods, Why};
use crate::time::eventually;

const SOCKET: &str = "/run/signer.sock";
const ISSUE_RECORD: &str = "/var/lib/nodepki/issued.json";
const RESTART_RECORD: &str = "/var/lib/nodepki/restarts.json";
/// The components that a renewal restarts.
const RESTARTED: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// Writes settings without a kubelet.
fn configure(node: &ClusterNode, curve: &str) {
    let settings = format!(
        "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
authorities: {{ca: {{signer: remote}}, etcd-ca: {{signer: remote}}, front-proxy-ca: {{signer: remote}}}}
signers: {{remote: {{exec: {{command: /bin/bash, args: ['{PLUGIN}', {SOCKET}], timeout: 30s}}}}}}
pki: {{defaults: {{key: {{algorithm: ECDSA, ecdsa: {{curve: {curve}}}}}}}}}
rotation: {{onPolicyChange: now}}
reload: {{hooks: [{{on: [kubelet], command: [/bin/true]}}]}}
"
    );
    node.write("/etc/nodepki/config.yaml", &settings);
    // Removes the cool-down of recent certificates from the record.
    let _ = std::fs::remove_file(node.path(ISSUE_RECORD));
}

#[test]
fn daemons_of_two_nodes_restart_components_in_turn() {
    let cluster = &Cluster::start(Authorities::External);
    let second = cluster.add_node("cp2", "192.0.2.12");
    prepare(cluster, &second);
    start_components(&second);
    let nodes = [cluster.first(), &second];
    cluster.first().write("/run/kubeadm/kubeadm.yaml", INIT);
    let pods = nodes.map(StaticPods::of);
    let _signers =
        nodes.map(|node| RemoteSigner::start(&node.path(SOCKET), &cluster.authorities()));

    // A new algorithm makes every certificate due on both nodes at once.
    nodes.iter().for_each(|node| configure(node, "P384"));
    let mut daemons = nodes.map(Daemon::start);
    wait_until_restarted(&mut daemons, &nodes, &pods, 1);
    nodes.iter().for_each(|node| configure(node, "P256"));
    daemons.iter_mut().for_each(Daemon::reload);
    wait_until_restarted(&mut daemons, &nodes, &pods, 2);
    daemons.iter_mut().for_each(Daemon::stop);

    let [first, second] = pods.map(|pods| {
        let mut starts = pods.starts();
        starts.retain(|start| start.why == Why::Changed);
        starts
    });
    for one in &first {
        for other in &second {
            let apart = one.not_ready < other.at || other.not_ready < one.at;
            assert!(apart, "at the same time: {one:?}, {other:?}");
        }
    }
}

/// Waits until the components of both nodes were restarted this often and no restart is due.
fn wait_until_restarted(
    daemons: &mut [Daemon; 2],
    nodes: &[&ClusterNode; 2],
    pods: &[StaticPods; 2],
    times: usize,
) {
    eventually(|| {
        let all_were = pods
            .iter()
            .all(|pods| RESTARTED.iter().all(|name| pods.restarts(name) >= times));
        if all_were && nodes.iter().all(|node| !node.path(RESTART_RECORD).exists()) {
            return Ok(());
        }
        daemons.iter_mut().for_each(Daemon::is_running);
        Err(daemons.each_ref().map(Daemon::said).join("\n"))
    });
    for pods in pods {
        // On a busy machine a component may lose its lease, and ends.
        let starts = pods.starts();
        assert!(
            starts
                .iter()
                .all(|start| start.why != Why::New && RESTARTED.contains(&&*start.component)),
            "{starts:?}"
        );
        assert_eq!(RESTARTED.map(|name| pods.restarts(name)), [times; 2]);
    }
}
