//! The section of `docs/kubelets.md` about workers: its commands, run unchanged on a worker of a real cluster.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nodepki::x509::{Chain, PublicKey};
use serde_json::Value;

use crate::join_control_plane::{by_token, worker_configuration};
use crate::node::{NODEPKI, Ran};
use crate::pages;
use crate::servers::cluster::{ClusterNode, cluster};
use crate::servers::remote_signer::{PLUGIN, RemoteSigner};

pub(crate) const SOCKET: &str = "/run/signer.sock";
/// Programs that the test replaces: it has neither a container runtime nor systemd.
const STAND_INS: [&str; 2] = ["kubeadm", "systemctl"];

/// Returns the blocks of the section in a language.
fn blocks(language: &str) -> Vec<String> {
    let section = pages::section("docs/kubelets.md", "## nodepki on a worker");
    pages::blocks(&section, language)
}

fn write_program(node: &ClusterNode, path: &str, text: &str) {
    node.write(path, text);
    fs::set_permissions(node.path(path), Permissions::from_mode(0o755)).unwrap();
}

/// Adds the programs of [`STAND_INS`], and a program that asks the signer behind [`SOCKET`].
pub(crate) fn add_programs(node: &ClusterNode) {
    for program in STAND_INS {
        let record = format!("#!/bin/sh\necho \"{program} $*\" >>/var/tmp/calls\n");
        write_program(node, &format!("/var/tmp/bin/{program}"), &record);
    }
    let signer = format!("#!/bin/sh\nexec /bin/bash {PLUGIN} {SOCKET} \"$@\"\n");
    write_program(node, "/etc/nodepki/corp-signer", &signer);
}

/// Runs a block of the page; the calls of [`STAND_INS`] are recorded in `/var/tmp/calls`.
pub(crate) fn run(node: &ClusterNode, block: &str) -> Ran {
    let nodepki = Path::new(NODEPKI).parent().unwrap().display();
    let script = format!("set -e\numask 022\nPATH=/var/tmp/bin:{nodepki}:$PATH\n{block}");
    node.run("sh", &["-c", &script])
}

#[test]
fn page_is_correct_on_worker_of_real_cluster() {
    let cluster = cluster();
    let node = cluster.add_node("w7", "192.0.2.71");
    add_programs(&node);
    let _signer = RemoteSigner::start(&node.path(SOCKET), &cluster.first().pki(""));
    node.write("/etc/nodepki/config.yaml", &blocks("yaml")[0]);
    let config = worker_configuration(&node, &by_token(cluster));
    node.write_secret("/etc/nodepki/join.yaml", &config);
    let [setup, examination, rotation] = &blocks("sh")[..] else {
        panic!("the page has other blocks");
    };

    let ran = run(&node, setup);
    ran.done().row_says("kubelet.conf", "issued");
    let calls = fs::read_to_string(node.path("/var/tmp/calls")).unwrap();
    assert_eq!(
        calls.lines().last(),
        Some("kubeadm join --config /var/lib/nodepki/kubeadm-join.yaml")
    );
    assert_eq!(node_files(&node), ["kubelet.conf", "pki"]);
    let files = fs::read_dir(node.pki("")).unwrap().count();
    assert_eq!(files, 1, "files besides ca.crt");
    // The cluster's encryptionAlgorithm.
    assert_eq!(key(&node).key_type().to_string(), "ECDSA-P256");

    // kubeadm has removed its configuration, and written the kubelet's.
    fs::remove_file(node.path("/etc/nodepki/join.yaml")).unwrap();
    node.write("/var/lib/kubelet/config.yaml", "rotateCertificates: true\n");
    let ran = run(&node, examination);
    ran.done().row_says("kubelet.conf", "ok");
    ran.says_not("front-proxy").says_not("etcd");
    let status = node.nodepki(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&status.done().stdout).unwrap();
    assert_eq!(status["role"], "worker");
    assert_eq!(status["certificates"].as_array().unwrap().len(), 1);
    assert_eq!(status["authorities"].as_array().unwrap().len(), 1);

    let before = key(&node);
    run(&node, rotation)
        .done()
        .row_says("kubelet", "is not run by systemd here");
    assert!(key(&node) != before);
    let calls = fs::read_to_string(node.path("/var/tmp/calls")).unwrap();
    assert!(calls.contains("systemctl enable --now nodepki-renew.timer"));
}

fn node_files(node: &ClusterNode) -> Vec<String> {
    let files = fs::read_dir(node.path("/etc/kubernetes")).unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Returns the key of the kubelet's client certificate.
fn key(node: &ClusterNode) -> PublicKey {
    let text = fs::read_to_string(node.path("/etc/kubernetes/kubelet.conf")).unwrap();
    let current = nodepki::kube::kubeconfig::Kubeconfig::parse(&text)
        .unwrap()
        .current()
        .unwrap();
    let chain = Chain::from_pem(&current.certificate.unwrap()).unwrap();
    chain.leaf().public_key().clone()
}
