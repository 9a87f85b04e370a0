//! The assertions on every node after each scenario.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::network::address;
use super::node::Role;
use super::{Cluster, shell};
use crate::machine::Machine;

pub(crate) fn check(cluster: &mut Cluster) {
    ready(cluster);
    for index in 0..cluster.nodes.len() {
        let node = &mut cluster.nodes[index];
        let (name, role) = (node.name, node.role);
        no_complaints(name, &node.machine.run("nodepki doctor -o json").said);
        if role == Role::ControlPlane {
            let expiration = node.done("kubeadm certs check-expiration 2>&1");
            let missing = expiration.matches("MISSING").count()
                - expiration.matches("!MISSING! super-admin.conf").count();
            assert!(
                !expiration.contains("invalid") && missing == 0,
                "{name}: {expiration}"
            );
            for (port, certificate) in [
                (6443, "apiserver.crt"),
                (2379, "etcd/server.crt"),
                (2380, "etcd/peer.crt"),
            ] {
                let served = node.done(&format!(
                    "openssl s_client -connect {}:{port} -cert /etc/kubernetes/pki/etcd/peer.crt -key /etc/kubernetes/pki/etcd/peer.key \
                       </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256",
                    address(name)
                ));
                let installed = node.done(&format!(
                    "openssl x509 -in /etc/kubernetes/pki/{certificate} -noout -fingerprint -sha256"
                ));
                assert_eq!(
                    served, installed,
                    "{name}: port {port} serves another certificate than {certificate}"
                );
            }
            key_kinds(cluster, index);
        }
        let dir = cluster.nodes[index].machine.dir().to_owned();
        no_authority_keys(name, &dir, cluster);
    }
}

/// Waits until every API server is ready, every node is Ready and every system pod runs.
pub(crate) fn ready(cluster: &mut Cluster) {
    cluster.until("the cluster is ready", |cluster| {
        let servers = cluster.names(Role::ControlPlane);
        for name in &servers {
            cluster.kubectl(name, "get --raw /readyz")?;
        }
        let nodes = cluster.kubectl(servers[0], "get nodes -o json")?;
        let nodes: Value = serde_json::from_str(&nodes).unwrap();
        let items = nodes["items"].as_array().unwrap();
        let known: BTreeSet<_> = items
            .iter()
            .map(|node| node["metadata"]["name"].as_str().unwrap())
            .collect();
        let expected: BTreeSet<_> = cluster.nodes.iter().map(|node| node.name).collect();
        if known != expected {
            return Err(format!("nodes: {known:?}, expected {expected:?}"));
        }
        let is_ready = |object: &Value| {
            let conditions = object["status"]["conditions"].as_array();
            conditions
                .into_iter()
                .flatten()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        if let Some(node) = items.iter().find(|node| !is_ready(node)) {
            return Err(format!("{} is not Ready", node["metadata"]["name"]));
        }
        let pods = cluster.kubectl(servers[0], "get pods --all-namespaces -o json")?;
        let pods: Value = serde_json::from_str(&pods).unwrap();
        let mut pods = pods["items"].as_array().unwrap().iter();
        match pods.find(|pod| !is_ready(pod) && pod["metadata"]["deletionTimestamp"].is_null()) {
            Some(pod) => Err(format!("pod {} is not Ready", pod["metadata"]["name"])),
            None => Ok(()),
        }
    });
}

fn no_complaints(name: &str, diagnosis: &str) {
    let parsed: Value = serde_json::from_str(diagnosis)
        .unwrap_or_else(|error| panic!("{name}: {error}: {diagnosis}"));
    let findings = parsed["findings"].as_array().unwrap();
    let complaints: Vec<_> = findings
        .iter()
        .filter(|finding| finding["severity"] != "info")
        .collect();
    assert!(complaints.is_empty(), "{name}: {complaints:#?}");
}

/// Asserts that the keys of all certificates and service accounts have the cluster's algorithm, and that the signatures
/// match the kinds of the CAs' keys; verifies all chains.
fn key_kinds(cluster: &mut Cluster, index: usize) {
    let (spec, node) = (cluster.spec, &mut cluster.nodes[index]);
    let name = node.name;
    for ((authority, file, certificates), kind) in CERTIFICATES.into_iter().zip(spec.authority_keys)
    {
        for certificate in certificates.split_whitespace() {
            let (file_name, read) = match certificate.ends_with(".conf") {
                true => (
                    format!("/etc/kubernetes/{certificate}"),
                    "sed -n 's/ *client-certificate-data: //p' FILE | base64 -d",
                ),
                false => (format!("/etc/kubernetes/pki/{certificate}"), "cat FILE"),
            };
            let read = read.replace("FILE", &file_name);
            let text = node.done(&format!(
                "set -e -o pipefail; {read} | openssl verify -CAfile /etc/kubernetes/pki/{file} >/dev/null; {read} | openssl x509 -noout -text"
            ));
            let said = |key: &str| {
                let mut values = text
                    .lines()
                    .filter_map(|line| line.trim().strip_prefix(key))
                    .map(str::trim);
                values
                    .next()
                    .unwrap_or_else(|| panic!("{name}: {certificate}: {text}"))
                    .to_owned()
            };
            assert_eq!(
                said("Public-Key:"),
                spec.algorithm.public_key(),
                "{name}: the key of {certificate} is not {:?}",
                spec.algorithm
            );
            let signature = said("Signature Algorithm:");
            assert!(
                kind.has_signed(&signature),
                "{name}: {authority} has a key of kind {kind:?} and signed {certificate} with {signature}"
            );
        }
    }
    let key = node.done("openssl pkey -pubin -in /etc/kubernetes/pki/sa.pub -noout -text");
    assert!(key.contains(&spec.algorithm.public_key()), "{name}: {key}");
    let pair =
        "openssl pkey -in /etc/kubernetes/pki/sa.key -pubout | cmp - /etc/kubernetes/pki/sa.pub";
    node.done(pair);
}

/// Authority, CA file and certificates, in the order of `AUTHORITIES`.
const CERTIFICATES: [(&str, &str, &str); 3] = [
    (
        "ca",
        "ca.crt",
        "apiserver.crt apiserver-kubelet-client.crt admin.conf controller-manager.conf scheduler.conf",
    ),
    (
        "etcd-ca",
        "etcd/ca.crt",
        "etcd/server.crt etcd/peer.crt etcd/healthcheck-client.crt apiserver-etcd-client.crt",
    ),
    (
        "front-proxy-ca",
        "front-proxy-ca.crt",
        "front-proxy-client.crt",
    ),
];

/// Asserts that no private key on the node's disks has the public key of a CA, and that no file contains the private
/// number of a CA key in DER or, in any alignment, in Base64.
fn no_authority_keys(name: &str, dir: &Path, cluster: &Cluster) {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/vm-tests/cluster/authority-keys"
    );
    let keys: Vec<_> = cluster
        .authorities
        .keys()
        .iter()
        .map(|key| key.display().to_string())
        .collect();
    let found = shell(&format!(
        "python3 {script} {} {}",
        dir.display(),
        keys.join(" ")
    ));
    assert!(found.starts_with("none "), "{name}: {found}");
}
