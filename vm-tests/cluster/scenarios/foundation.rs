//! Three control-plane nodes and a worker.

use crate::cluster::node::{Node, Role};
use crate::cluster::{Cluster, Signer};
use crate::machine::Machine;

pub(crate) fn first_node(cluster: &mut Cluster) {
    cluster.first("cp1");
    remove_super_admin(cluster.node("cp1"));
}

/// Removes super-admin.conf, as `nodepki doctor` advises after kubeadm init.
pub(super) fn remove_super_admin(node: &mut Node) {
    node.done(
        "kubectl --kubeconfig /etc/kubernetes/admin.conf get nodes && rm /etc/kubernetes/super-admin.conf
         umask 077
         printf '%s\\n' 'apiVersion: nodepki.io/v1alpha1' 'kind: NodePKIConfiguration' 'certificates: {omit: [super-admin.conf]}' >/etc/nodepki/config.d/40-super-admin.yaml",
    );
}

pub(crate) fn join(cluster: &mut Cluster) {
    for name in ["cp2", "cp3"] {
        join_after_cut(cluster, name, Role::ControlPlane);
    }
}

/// Joins the only further control-plane node of a smaller cluster.
pub(crate) fn join_one(cluster: &mut Cluster) {
    cluster.join("cp2", Role::ControlPlane);
}

pub(crate) fn worker(cluster: &mut Cluster) {
    join_after_cut(cluster, "w1", Role::Worker);
}

/// Cuts the power in the middle of the node's bootstrap.
fn join_after_cut(cluster: &mut Cluster, name: &'static str, role: Role) {
    cluster.boot_to_join_without_signer(name, role);
    match cluster.spec.signer {
        // At the power cut its requests wait for the signer.
        Signer::Directory => {
            let waits = "systemctl is-active -q containerd && ls /srv/nodepki/outbox/*.csr";
            cluster.node(name).machine.until(waits);
            cluster.node(name).machine.cut();
            cluster.set_signer_away(false);
        }
        // At the power cut the wrapping token, which can be used once, has just been used.
        Signer::OpenBao => {
            let repeats = "systemctl is-active -q containerd && [ $(systemctl show -P NRestarts nodepki-bootstrap) -gt 0 ]";
            cluster.node(name).machine.until(repeats);
            cluster.set_signer_away(false);
            let node = cluster.node(name);
            // The file exists before it is used, without the secret_id.
            let used = "grep -q secret_id /var/lib/nodepki/signers/vault/secret-id";
            node.machine.until(used);
            node.machine.cut();
        }
    }
    let node = cluster.node(name);
    node.boot();
    node.wait_until_joined();
    cluster.say(&format!(
        "{name} has joined after a power cut in its bootstrap"
    ));
}
