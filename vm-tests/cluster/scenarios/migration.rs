//! A cluster that kubeadm created with its own CAs: their keys leave the nodes, return, and leave again.

use std::fs;

use super::{foundation, rotation};
use crate::cluster::node::Role;
use crate::cluster::{Cluster, user_data};
use crate::machine::Machine;

const BACKUP: &str = "/mnt/usb/ca-keys";
const PASSPHRASE: &str = "/root/passphrase";

pub(crate) fn to_external(cluster: &mut Cluster) {
    cluster.first_by_kubeadm("cp1");
    cluster.join_by_kubeadm("cp2", Role::ControlPlane);
    cluster.join_by_kubeadm("w1", Role::Worker);
    for index in 0..cluster.nodes.len() {
        let script = user_data::directory_script(cluster);
        let node = &mut cluster.nodes[index];
        fs::write(node.machine.shared().join("signer"), script).unwrap();
        node.done("bash /run/tests/signer");
    }
    for name in cluster.names(Role::ControlPlane) {
        migrate(cluster, name);
    }
    foundation::remove_super_admin(cluster.node("cp1"));
    rotation::renew_everywhere(cluster);
}

pub(crate) fn to_internal_and_back(cluster: &mut Cluster) {
    let node = cluster.node("cp1");
    node.done(&format!(
        "nodepki migrate to-internal --backup {BACKUP} --passphrase-file {PASSPHRASE} --apply"
    ));
    // As the note of this command asks.
    node.done(&edit_signer(
        "s#(--cluster-signing-cert-file)=$#\\1=/etc/kubernetes/pki/ca.crt#; s#(--cluster-signing-key-file)=$#\\1=/etc/kubernetes/pki/ca.key#",
    ));
    let restarted = "export KUBECONFIG=/etc/kubernetes/admin.conf
         pod=pod/kube-controller-manager-cp1
         kubectl --namespace kube-system get $pod -o yaml | grep -e --cluster-signing-key-file=/etc/kubernetes/pki/ca.key &&
         kubectl --namespace kube-system wait --for=condition=Ready --timeout=1s $pod";
    node.machine.until(restarted);
    let serial = "openssl x509 -in /etc/kubernetes/pki/apiserver.crt -noout -serial";
    let before = node.done(serial);
    // kubeadm signs with the restored keys.
    node.done("kubeadm certs renew apiserver 2>&1");
    assert_ne!(node.done(serial), before);
    node.done(&format!("rm {BACKUP}"));
    migrate(cluster, "cp1");
}

fn migrate(cluster: &mut Cluster, name: &str) {
    let node = cluster.node(name);
    // The message of the first report asks for this change.
    let report = node.machine.run("nodepki migrate to-external");
    assert_eq!(report.status, 65, "{report:?}");
    assert!(report.said.contains("cluster-signing"), "{}", report.said);
    node.done(&edit_signer(
        "s/(--cluster-signing-(cert|key)-file)=.*/\\1=/",
    ));
    node.done(&format!(
        "test -e {PASSPHRASE} || (umask 077; openssl rand -base64 24 >{PASSPHRASE})"
    ));
    let apply = format!(
        "nodepki migrate to-external --apply --backup {BACKUP} --passphrase-file {PASSPHRASE}"
    );
    let ran = node.machine.run(&apply);
    assert!([0, 75].contains(&ran.status), "{name}: {ran:?}");
    if ran.status == 75 {
        node.machine.until(&apply);
    }
    cluster.say(&format!("{name} has no CA keys"));
}

/// The command that edits the flags of kube-controller-manager with a script of `sed -E`.
fn edit_signer(script: &str) -> String {
    format!("sed -i -E '{script}' /etc/kubernetes/manifests/kube-controller-manager.yaml")
}
