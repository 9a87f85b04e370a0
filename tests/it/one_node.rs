//! `status`, `doctor` and `plan` agree on what is on a node: its role, the directories of its certificates, and
//! kubeconfigs that name files.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::node::{INIT, JOIN, Node, Ran};

const KUBEADM_FILE: &str = "/run/kubeadm/kubeadm.yaml";
const KUBELET_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";

fn status(node: &Node) -> Value {
    let ran = node.run(&["status", "--output", "json"]);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.said()))
}

fn certificate<'s>(status: &'s Value, name: &str) -> &'s Value {
    let rows = status["certificates"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == name);
    row.unwrap_or_else(|| panic!("status has no row for {name}: {status:#}"))
}

fn files(row: &Value) -> Vec<&str> {
    let files = row["files"].as_array().unwrap();
    files
        .iter()
        .map(|file| file["path"].as_str().unwrap())
        .collect()
}

fn doctor(node: &Node) -> Ran {
    node.run(&["doctor"])
}

/// Returns a bootstrapped first node whose kubelet and certificates are in other directories than usual.
fn moved() -> Node {
    let config = INIT
        .replace(
            "nodeRegistration: {name: cp1}",
            "nodeRegistration: {name: cp1, kubeletExtraArgs: [{name: cert-dir, value: /srv/kubelet}]}",
        )
        .replace(
            "kubernetesVersion:",
            "certificatesDir: /srv/pki\nkubernetesVersion:",
        );
    let node = Node::of(&config);
    node.write(KUBEADM_FILE, &config);
    node.settings("kubelet: {serving: true}\n");
    for file in ["ca.crt", "etcd/ca.crt", "front-proxy-ca.crt"] {
        let pem = fs::read(node.ca().join(file)).unwrap();
        node.write(format!("/srv/pki/{file}"), pem);
    }
    fs::remove_dir_all(node.path("/etc/kubernetes/pki")).unwrap();
    node.ask().done();
    node
}

#[test]
fn status_and_doctor_find_certificates_where_configuration_has_them() {
    let node = moved();
    let found = status(&node);
    assert_eq!(found["certificatesDir"], "/srv/pki");
    let serving = certificate(&found, "kubelet-serving");
    assert_eq!(serving["state"], "ok");
    let expected = ["/srv/kubelet/kubelet.crt", "/srv/kubelet/kubelet.key"];
    assert_eq!(files(serving), expected);
    let apiserver = certificate(&found, "apiserver");
    assert_eq!(
        files(apiserver),
        ["/srv/pki/apiserver.crt", "/srv/pki/apiserver.key"]
    );
    doctor(&node)
        .says_not("missing-")
        .says_not("/etc/kubernetes/pki");
}

#[test]
fn status_finds_kubelet_where_kubeadm_started_it() {
    let node = moved();
    node.remove(KUBEADM_FILE);
    node.remove("/var/lib/nodepki/node.json");
    // By default it would be in /var/lib/kubelet/pki.
    let usual = status(&node);
    assert_eq!(certificate(&usual, "kubelet-serving")["state"], "missing");
    node.write(
        KUBELET_FLAGS,
        "KUBELET_KUBEADM_ARGS=\"--cert-dir=/srv/kubelet --node-labels=\"\n",
    );
    let found = status(&node);
    assert_eq!(certificate(&found, "kubelet-serving")["state"], "ok");
    // The plan of a node without a kubeadm file follows the same flags.
    let config = node.outside("config.yaml");
    let planned = node.run(&["plan", "--config", config.to_str().unwrap()]);
    planned.row_says("kubelet-serving", "keep");
}

#[test]
fn reads_files_relative_to_kubeconfig_everywhere() {
    let node = Node::bootstrapped();
    let conf = node.read("/etc/kubernetes/kubelet.conf");
    let (pair, text) = by_file(&conf);
    node.write_secret("/etc/kubernetes/kubelet-pair.pem", pair);
    node.write_secret("/etc/kubernetes/kubelet.conf", text);
    let found = status(&node);
    let row = certificate(&found, "kubelet.conf");
    assert_eq!(row["state"], "ok", "{row:#}");
    assert_eq!(
        files(row),
        [
            "/etc/kubernetes/kubelet.conf",
            "/etc/kubernetes/kubelet-pair.pem"
        ]
    );
    doctor(&node).says_not("kubelet-file-missing");
    node.plan().row_says("kubelet.conf", "keep");
}

/// Takes certificate and key out of a kubeconfig, which then names their file by a relative path.
fn by_file(conf: &str) -> (String, String) {
    let mut pair = String::new();
    let lines = conf.lines().map(|line| {
        let Some((field, data)) = line.trim().split_once("-data: ") else {
            return line.to_owned();
        };
        if !field.starts_with("client-") {
            return line.to_owned();
        }
        let decoded = crate::signing::openssl(&["base64", "-d", "-A"], data.as_bytes());
        pair.push_str(&String::from_utf8(decoded).unwrap());
        format!("    {field}: kubelet-pair.pem")
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(pair.matches("BEGIN").count(), 2, "{conf}");
    (pair, text)
}

#[test]
fn worker_is_a_worker_for_status_doctor_and_plan() {
    let (worker, _) = JOIN.split_once("controlPlane:").unwrap();
    let node = Node::of(worker);
    node.write(KUBEADM_FILE, worker);
    fs::remove_dir_all(node.path("/etc/kubernetes/pki/etcd")).unwrap();
    node.remove("/etc/kubernetes/pki/front-proxy-ca.crt");
    node.ask().done();
    // The file of another installation, and the CA that a network plug-in reads etcd with.
    node.write("/etc/kubernetes/pki/sa.pub", "");
    let etcd_ca = fs::read(node.ca().join("etcd/ca.crt")).unwrap();
    node.write("/etc/kubernetes/pki/etcd/ca.crt", etcd_ca);
    let found = status(&node);
    assert_eq!(found["role"], "worker");
    doctor(&node).says_not("sa-missing").says_not("missing-");
    let config = node.outside("config.yaml");
    let planned = node.run(&["plan", "--config", config.to_str().unwrap()]);
    planned
        .row_says("kubelet.conf", "keep")
        .says_not("apiserver");
}

#[test]
fn kubelet_store_in_other_directory_is_followed() {
    let config = INIT.replace(
        "nodeRegistration: {name: cp1}",
        "nodeRegistration: {name: cp1, kubeletExtraArgs: [{name: cert-dir, value: /srv/kubelet}]}",
    );
    let node = Node::of(&config);
    node.write(KUBEADM_FILE, &config);
    node.bootstrap().done();
    let (pair, _) = by_file(&node.read("/etc/kubernetes/kubelet.conf"));
    let dated = "kubelet-client-2026-03-01-00-00-00.pem";
    node.write_secret(format!("/srv/kubelet/{dated}"), pair);
    let link = node.path("/srv/kubelet/kubelet-client-current.pem");
    symlink(dated, link).unwrap();
    // plan and doctor look at the same link.
    node.plan().says("/srv/kubelet/kubelet-client-current.pem");
    doctor(&node).says("/srv/kubelet/kubelet-client-current.pem");
}
