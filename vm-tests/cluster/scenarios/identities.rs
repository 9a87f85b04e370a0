//! Contents of certificates compared with kubeadm's, and verification by clients of both IP families.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::cluster::load;
use crate::cluster::network::{ENDPOINT, FIRST_SERVICES, address, address_ipv6};
use crate::cluster::node::Role;
use crate::system::run;

/// The certificates of kubeadm, relative to `pki`.
const CERTIFICATES: [&str; 7] = [
    "apiserver.crt",
    "apiserver-kubelet-client.crt",
    "apiserver-etcd-client.crt",
    "front-proxy-client.crt",
    "etcd/server.crt",
    "etcd/peer.crt",
    "etcd/healthcheck-client.crt",
];

/// Compares each control-plane node's certificates with those that kubeadm creates for the same configuration, and calls
/// each API server over IPv6, from outside and from pods.
pub(crate) fn as_kubeadm(cluster: &mut Cluster) {
    for name in cluster.names(Role::ControlPlane) {
        let dir = created_by_kubeadm(cluster, name);
        for certificate in CERTIFICATES {
            let path = format!("/etc/kubernetes/pki/{certificate}");
            let installed = content(&cluster.node(name).machine.path(&path));
            let expected = content(&dir.join(certificate));
            assert_eq!(
                installed, expected,
                "{name}: {certificate} differs from kubeadm's"
            );
        }
        let names = content(&dir.join("apiserver.crt"));
        let services = &FIRST_SERVICES[..if cluster.is_dual_stack() { 2 } else { 1 }];
        for service in services {
            let service = service.replace("::", ":0:0:0:0:0:0:").to_uppercase();
            let found = names.iter().any(|one| one.ends_with(&service));
            assert!(found, "{name}: apiserver.crt: no {service} in {names:?}");
        }
    }
    cluster.say(&format!(
        "subjects, names and usages of {} certificates of each control-plane node are those of kubeadm",
        CERTIFICATES.len()
    ));
    service_account(cluster);
    if cluster.is_dual_stack() {
        over_ipv6(cluster);
        from_pods(cluster);
    }
}

/// Returns the folder of the certificates that the real kubeadm creates for a node with its own CAs.
fn created_by_kubeadm(cluster: &Cluster, name: &'static str) -> std::path::PathBuf {
    let dir = cluster
        .site
        .path(&format!("kubeadm-{}-{name}", cluster.spec.name));
    fs::create_dir_all(&dir).unwrap();
    let stored = "get configmap kubeadm-config --namespace kube-system -o jsonpath={.data.ClusterConfiguration}";
    let stored = cluster.kubectl(name, stored).unwrap();
    assert!(
        stored.contains("certificatesDir: /etc/kubernetes/pki\n"),
        "{stored}"
    );
    let configuration = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nnodeRegistration: {{name: {name}}}\n\
         localAPIEndpoint: {{advertiseAddress: {}}}\n---\n{}",
        address(name),
        stored.replace("/etc/kubernetes/pki", dir.to_str().unwrap())
    );
    let file = dir.join("kubeadm.yaml");
    fs::write(&file, configuration).unwrap();
    let kubeadm = cluster.site.program("kubeadm", cluster.spec.version);
    run(Command::new(kubeadm)
        .args(["init", "phase", "certs", "all", "--config"])
        .arg(&file));
    dir
}

/// Subject, names and usages of a certificate as a set.
fn content(certificate: &Path) -> BTreeSet<String> {
    let extensions = "subjectAltName,keyUsage,extendedKeyUsage";
    let text = run(Command::new("openssl")
        .args(["x509", "-noout", "-subject", "-ext", extensions, "-in"])
        .arg(certificate));
    text.lines()
        .flat_map(|line| line.split(", "))
        .map(|part| part.trim().to_owned())
        .collect()
}

/// Asserts that tokens are signed with a key of the cluster's algorithm, and that each API server accepts them.
fn service_account(cluster: &mut Cluster) {
    let servers = cluster.names(Role::ControlPlane);
    load::start_workload(cluster, Duration::ZERO);
    for made_at in &servers {
        let token = cluster.kubectl(made_at, "create token work").unwrap();
        let (header, _) = token.split_once('.').unwrap();
        let header = BASE64_URL_SAFE_NO_PAD.decode(header).unwrap();
        let header: Value = serde_json::from_slice(&header).unwrap();
        let expected = match cluster.spec.algorithm.0 {
            "ECDSA-P256" => "ES256",
            "ECDSA-P384" => "ES384",
            _ => "RS256",
        };
        assert_eq!(header["alg"], expected, "{made_at}");
    }
}

/// Calls each API server by its IPv6 address under its endpoint name.
fn over_ipv6(cluster: &mut Cluster) {
    for name in cluster.names(Role::ControlPlane) {
        let mut command = cluster.kubectl_command(name);
        command.arg(format!("--server=https://[{}]:6443", address_ipv6(name)));
        command.arg(format!("--tls-server-name={}", ENDPOINT.1));
        assert_eq!(run(command.args(["get", "--raw", "/readyz"])), "ok");
    }
    cluster.say("each API server is verified over IPv6");
}

/// Calls the API servers through a service with an IPv6 address, from the workload's pod on each node.
fn from_pods(cluster: &mut Cluster) {
    let servers = cluster.names(Role::ControlPlane);
    let endpoints: Vec<_> = servers
        .iter()
        .map(|name| format!("{{addresses: [\"{}\"]}}", address_ipv6(name)))
        .collect();
    let manifest = cluster.site.path("kubernetes-ipv6.yaml");
    let text = SERVICE
        .replace("ADDRESS", FIRST_SERVICES[1])
        .replace("ENDPOINTS", &endpoints.join(", "));
    fs::write(&manifest, text).unwrap();
    let first = servers[0];
    cluster
        .kubectl(first, &format!("apply -f {}", manifest.display()))
        .unwrap();
    let pods = "get pods -l app=work -o jsonpath={.items[*].metadata.name}";
    let pods = cluster.kubectl(first, pods).unwrap();
    let pods: Vec<_> = pods.split_whitespace().map(str::to_owned).collect();
    let script = format!(
        "KUBERNETES_SERVICE_HOST={} kubectl get --raw '/api/v1/namespaces/default/pods?limit=1'",
        FIRST_SERVICES[1]
    );
    for pod in &pods {
        cluster.until("a pod reaches the API servers over IPv6", |cluster| {
            let mut command = cluster.kubectl_command(first);
            command.args(["exec", pod, "--", "sh", "-c", &script]);
            let output = command.output().unwrap();
            match output.status.success() {
                true => Ok(()),
                false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            }
        });
    }
    cluster.say(&format!(
        "{} pods verify an API server over IPv6 by {}",
        pods.len(),
        FIRST_SERVICES[1]
    ));
}

const SERVICE: &str = "\
apiVersion: v1
kind: Service
metadata: {name: kubernetes-ipv6, namespace: default}
spec: {clusterIP: \"ADDRESS\", ipFamilies: [IPv6], ports: [{port: 443, targetPort: 6443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes-ipv6, namespace: default, labels: {kubernetes.io/service-name: kubernetes-ipv6}}
addressType: IPv6
ports: [{name: \"\", port: 6443, protocol: TCP}]
endpoints: [ENDPOINTS]
";
