//! `kubeadm upgrade` of a whole cluster, node by node, followed by section 7 of the runbook on each.

use crate::cluster::node::Role;
use crate::cluster::{Cluster, checks, runbook, site};
use crate::machine::Machine;

/// Upgrades from the previous minor release.
pub(crate) fn to_current(cluster: &mut Cluster) {
    upgrade(cluster, site::CURRENT);
}

pub(crate) fn to_next_patch(cluster: &mut Cluster) {
    upgrade(cluster, site::NEXT);
}

fn upgrade(cluster: &mut Cluster, version: &str) {
    cluster.site.make_images(version);
    // kube-proxy changes on all nodes with the first one.
    for node in &mut cluster.nodes {
        node.done("/usr/local/sbin/load-images");
    }
    for index in 0..cluster.nodes.len() {
        // The components of the previous node may have restarted just now.
        checks::ready(cluster);
        let site = cluster.site;
        let node = &mut cluster.nodes[index];
        let (name, role) = (node.name, node.role);
        for program in ["kubeadm", "kubelet", "kubectl"] {
            let to = node.machine.shared().join(program);
            std::fs::copy(site.program(program, version), to).unwrap();
        }
        node.done("install /run/tests/kubeadm /usr/bin/kubeadm");
        // If the user data contain a ClusterConfiguration, section 7 requires changing it.
        node.done(&format!(
            "sed -i 's/^kubernetesVersion: .*/kubernetesVersion: {version}/' /etc/nodepki/kubeadm.yaml"
        ));
        node.done(&match index {
            0 => format!(
                "kubeadm upgrade apply --yes --ignore-preflight-errors=SystemVerification {version} 2>&1"
            ),
            _ => "kubeadm upgrade node --ignore-preflight-errors=SystemVerification 2>&1".to_owned(),
        });
        node.done(
            "install /run/tests/kubelet /run/tests/kubectl /usr/bin/ && systemctl restart kubelet",
        );
        cluster.until("the new kubelet is at work", |cluster| {
            let version_of_kubelet =
                format!("get node {name} -o jsonpath={{.status.nodeInfo.kubeletVersion}}");
            match cluster.kubectl(cluster.nodes[0].name, &version_of_kubelet)? {
                new if new == version => Ok(()),
                old => Err(old),
            }
        });
        let node = cluster.node(name);
        node.done(&runbook::block(7, 0));
        node.machine.until(&runbook::block(7, 1));
        if role == Role::ControlPlane {
            let flags = node.done(&runbook::block(7, 2));
            assert!(!flags.contains(".key"), "{name}: {flags}");
            // A component of the control plane may restart in the middle of it.
            node.machine.until(&runbook::block(7, 3));
        }
        cluster.say(&format!("{name} is upgraded to {version}"));
    }
}
