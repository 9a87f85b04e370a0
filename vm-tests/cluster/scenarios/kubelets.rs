//! Workers that join by `kubeadm join` without nodepki, while nodepki on the control-plane nodes signs the requests of
//! their kubelets.

use std::time::Duration;

use serde_json::Value;

use crate::cluster::network::{ENDPOINT, address};
use crate::cluster::node::Role;
use crate::cluster::{Cluster, checks, load, user_data};
use crate::machine::Machine;
use crate::time::let_pass;

const WORKER: &str = "w2";
const SETTINGS: &str = "/etc/nodepki/config.d/50-kubelets.yaml";
const SERVING: &str = "kubernetes.io/kubelet-serving";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Kubernetes' shortest lifetime of a requested certificate (`spec.expirationSeconds`).
const SHORT_LIFETIME: &str = "10m";
/// Time for which the signer is away when the kubelet requests a certificate.
const OUTAGE: Duration = Duration::from_secs(40);

pub(crate) fn plain_worker(cluster: &mut Cluster) {
    let servers = cluster.names(Role::ControlPlane);
    start_signing(cluster, &servers, "");
    request_serving_certificates(cluster);

    join_worker(cluster);
    for signer_name in [CLIENT, SERVING] {
        let requests = requests_of_worker(cluster, signer_name);
        let [request] = requests.as_slice() else {
            panic!("{signer_name}: {requests:#?}");
        };
        // kube-controller-manager approves client certificates as well.
        let reason = approval(request)["reason"].as_str().unwrap();
        let is_expected = ["ApprovedByRules", "AutoApproved"].contains(&reason);
        assert!(is_expected && (signer_name == CLIENT || reason == "ApprovedByRules"));
    }
    verify_identity(cluster);
    cluster.say(&format!("{WORKER} has joined without nodepki"));

    verify_kubelet_by_api_server(cluster, servers[0]);
    rotate(cluster, &servers);
    lose_leader(cluster, &servers);
    remove_worker(cluster, &servers);
}

/// A kubelet renews both certificates near the end of their lifetime, also if the signer is away when it requests them.
pub(crate) fn rotation_by_kubelet(cluster: &mut Cluster) {
    let servers = cluster.names(Role::ControlPlane);
    start_signing(cluster, &servers, &format!(", lifetime: {SHORT_LIFETIME}"));
    request_serving_certificates(cluster);
    join_worker(cluster);
    let before = certificates_of_worker(cluster);
    let requests = |cluster: &Cluster| {
        requests_of_worker(cluster, CLIENT).len() + requests_of_worker(cluster, SERVING).len()
    };
    let first = requests(cluster);
    cluster.authorities.set_away(true);
    cluster.until("the kubelet requests a new certificate", |cluster| {
        match requests(cluster) > first {
            true => Ok(()),
            false => Err(format!("{first} requests")),
        }
    });
    let_pass(OUTAGE);
    let during = certificates_of_worker(cluster);
    assert_eq!(during, before, "without the signer nothing changes");
    cluster.authorities.set_away(false);
    cluster.until("the kubelet uses two new certificates", |cluster| {
        let now = certificates_of_worker(cluster);
        match now[0] != before[0] && now[1] != before[1] {
            true => Ok(()),
            false => Err(format!("{now:?}")),
        }
    });
    verify_identity(cluster);
    checks::ready(cluster);
    cluster.say(&format!(
        "the kubelet of {WORKER} has renewed both certificates"
    ));
    remove_worker(cluster, &servers);
}

/// Boots a worker without nodepki, which joins.
fn join_worker(cluster: &mut Cluster) {
    let secrets = cluster.secrets();
    let user_data = user_data::plain_worker(cluster, &secrets.token);
    let version = cluster.spec.version;
    cluster.boot_with(version, WORKER, Role::Worker, user_data);
    let node = cluster.node(WORKER);
    node.machine.until("test -e /root/joined");
    node.done("! command -v nodepki");
    // A node is ready before its kubelet has a serving certificate.
    node.machine.until(&format!(
        "openssl s_client -connect {}:10250 </dev/null",
        address(WORKER)
    ));
    checks::ready(cluster);
}

fn remove_worker(cluster: &mut Cluster, servers: &[&str]) {
    cluster
        .kubectl(servers[0], &format!("delete node {WORKER}"))
        .unwrap();
    cluster.switch_off(WORKER);
    stop_signing(cluster, servers);
}

/// SHA-256 of the worker's client certificate on disk, and of the serving certificate that it presents.
fn certificates_of_worker(cluster: &mut Cluster) -> [String; 2] {
    let address = address(WORKER);
    let presented = format!("openssl s_client -connect {address}:10250 </dev/null 2>/dev/null");
    let digest = "openssl x509 -noout -fingerprint -sha256";
    let node = cluster.node(WORKER);
    [
        node.done(&format!(
            "{digest} -in /var/lib/kubelet/pki/kubelet-client-current.pem"
        )),
        node.done(&format!("{presented} | {digest}")),
    ]
}

/// Configures the control-plane nodes to sign, grants the rights, and replaces the timer by the daemon.
fn start_signing(cluster: &mut Cluster, servers: &[&str], lifetime: &str) {
    for name in servers {
        cluster.node(name).done(&format!(
            "umask 077
             printf '%s\\n' 'apiVersion: nodepki.io/v1alpha1' 'kind: NodePKIConfiguration' \
               'kubelets: {{sign: true, approveServing: true, approveClient: true{lifetime}}}' >{SETTINGS}"
        ));
    }
    cluster.finish(servers, "nodepki renew", "nodepki renew");
    cluster.node(servers[0]).done(
        "nodepki config signer-setup kubelets | kubectl --kubeconfig /etc/kubernetes/admin.conf apply -f -",
    );
    for name in servers {
        cluster.node(name).done(
            "systemctl disable --quiet --now nodepki-renew.timer
             systemctl enable --quiet nodepki.service && systemctl restart nodepki.service",
        );
    }
}

fn stop_signing(cluster: &mut Cluster, servers: &[&str]) {
    for name in servers {
        cluster.node(name).done(&format!(
            "systemctl disable --quiet --now nodepki.service && rm {SETTINGS} && rm /etc/kubernetes/nodepki.conf
             systemctl enable --quiet --now nodepki-renew.timer"
        ));
    }
}

/// Has kubelets that join from now on request their serving certificates from the cluster.
fn request_serving_certificates(cluster: &mut Cluster) {
    cluster.node("cp1").done(
        "export KUBECONFIG=/etc/kubernetes/admin.conf
         kubectl --namespace kube-system get configmap kubelet-config -o yaml | grep -q serverTLSBootstrap ||
         kubectl --namespace kube-system get configmap kubelet-config -o yaml |
           sed 's/^\\( *\\)rotateCertificates: true/&\\n\\1serverTLSBootstrap: true/' | kubectl apply -f - 2>/dev/null
         kubectl --namespace kube-system get configmap kubelet-config -o yaml | grep -q serverTLSBootstrap",
    );
}

/// The requests of the worker with a signer name, in the order of their creation.
fn requests_of_worker(cluster: &Cluster, signer_name: &str) -> Vec<Value> {
    let first = cluster.nodes[0].name;
    let listed = cluster
        .kubectl(
            first,
            "get csr --sort-by=.metadata.creationTimestamp -o json",
        )
        .unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let is_of_worker = |request: &Value| {
        let user = request["spec"]["username"].as_str().unwrap_or_default();
        request["spec"]["signerName"] == signer_name
            && (user == format!("system:node:{WORKER}") || user.starts_with("system:bootstrap:"))
    };
    let requests = listed["items"].as_array().unwrap().iter();
    requests
        .filter(|request| is_of_worker(request))
        .cloned()
        .collect()
}

fn approval(request: &Value) -> &Value {
    let conditions = request["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions
        .find(|condition| condition["type"] == "Approved")
        .unwrap_or_else(|| panic!("is not approved: {request:#}"))
}

/// Verifies with OpenSSL the client certificate on the worker's disk, and the serving certificate that it presents.
fn verify_identity(cluster: &mut Cluster) {
    let node = cluster.node(WORKER);
    let subject = node.done(
        "openssl verify -purpose sslclient -CAfile /etc/kubernetes/pki/ca.crt /var/lib/kubelet/pki/kubelet-client-current.pem >/dev/null
         openssl x509 -in /var/lib/kubelet/pki/kubelet-client-current.pem -noout -subject -nameopt RFC2253",
    );
    assert_eq!(
        subject.trim(),
        format!("subject=CN=system:node:{WORKER},O=system:nodes")
    );
    node.done(&format!(
        "openssl s_client -connect {}:10250 -CAfile /etc/kubernetes/pki/ca.crt -verify_ip {} -verify_return_error </dev/null >/dev/null 2>&1",
        address(WORKER),
        address(WORKER)
    ));
}

/// With `--kubelet-certificate-authority`, an API server executes in the worker's pods, and refuses a kubelet that signed
/// its certificate itself.
fn verify_kubelet_by_api_server(cluster: &mut Cluster, server: &'static str) {
    load::start_workload(cluster, Duration::ZERO);
    let manifest = "/etc/kubernetes/manifests/kube-apiserver.yaml";
    let flag = "--kubelet-certificate-authority=/etc/kubernetes/pki/ca.crt";
    cluster.node(server).done(&format!(
        "sed -i 's#^    - --kubelet-client-certificate=#    - {flag}\\n&#' {manifest}"
    ));
    let uses_flag = format!("pgrep -f -- 'kube-apiserver .*{flag}'");
    cluster.node(server).machine.until(&uses_flag);
    checks::ready(cluster);
    let pod_on = |cluster: &Cluster, node: &str| {
        cluster.kubectl(server, &format!("get pods -l app=work --field-selector=spec.nodeName={node} -o jsonpath={{.items[0].metadata.name}}")).unwrap()
    };
    let (there, elsewhere) = (pod_on(cluster, WORKER), pod_on(cluster, "w1"));
    cluster.until("exec and logs by the API server", |cluster| {
        cluster.kubectl(server, &format!("exec {there} -- echo there"))?;
        cluster
            .kubectl(server, &format!("logs {there} --tail=1"))
            .map(drop)
    });
    let refused = cluster.kubectl(server, &format!("exec {elsewhere} -- echo there"));
    assert!(
        refused.as_ref().is_err_and(|error| error.contains("x509")),
        "{refused:?}"
    );
    cluster
        .node(server)
        .done(&format!("sed -i '\\#^    - {flag}$#d' {manifest}"));
    cluster
        .node(server)
        .machine
        .until(&format!("! {uses_flag} && pgrep kube-apiserver"));
    checks::ready(cluster);
    cluster.say(&format!(
        "{server} executes commands on {WORKER} and verifies its certificate"
    ));
}

/// A certificate with a short lifetime, which the kubelet requests as soon as it finds none.
fn rotate(cluster: &mut Cluster, servers: &[&'static str]) {
    start_signing(cluster, servers, &format!(", lifetime: {SHORT_LIFETIME}"));
    let before = (
        requests_of_worker(cluster, CLIENT).len(),
        requests_of_worker(cluster, SERVING).len(),
    );
    // The kubelet requests new certificates when it finds none, and again near the end of their lifetime.
    cluster
        .node(WORKER)
        .done("rm /var/lib/kubelet/pki/kubelet-server-*.pem && systemctl restart kubelet");
    cluster.until("a new serving certificate", |cluster| {
        let requests = requests_of_worker(cluster, SERVING);
        match requests.last() {
            Some(last)
                if requests.len() > before.1 && last["status"]["certificate"].is_string() =>
            {
                Ok(())
            }
            _ => Err(format!("{requests:#?}")),
        }
    });
    verify_identity(cluster);
}

/// The leader loses its power while the signer is away; another node signs after its boot.
fn lose_leader(cluster: &mut Cluster, servers: &[&'static str]) {
    let read =
        "get lease --namespace kube-system nodepki-kubelets -o jsonpath={.spec.holderIdentity}";
    let holder = cluster.kubectl(servers[0], read).unwrap();
    let leader = *servers
        .iter()
        .find(|name| holder.starts_with(*name))
        .unwrap_or_else(|| panic!("{holder:?} is not a node"));
    let other = *servers.iter().find(|name| **name != leader).unwrap();
    let before = requests_of_worker(cluster, SERVING).len();
    cluster.node(leader).machine.cut();
    cluster
        .node(WORKER)
        .done("rm /var/lib/kubelet/pki/kubelet-server-*.pem && systemctl restart kubelet");
    cluster.until("a follower signs", |cluster| {
        let listed = cluster.kubectl(
            other,
            "get csr --sort-by=.metadata.creationTimestamp -o json",
        )?;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let signed = listed["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|request| {
                request["spec"]["signerName"] == SERVING
                    && request["spec"]["username"] == format!("system:node:{WORKER}")
                    && request["status"]["certificate"].is_string()
            });
        match signed.count() {
            count if count > before => Ok(()),
            count => Err(format!("{count} requests are signed")),
        }
    });
    let node = cluster.node(leader);
    node.boot();
    checks::ready(cluster);
    cluster.say(&format!(
        "{leader}, which signed, lost its power; another node signs ({})",
        ENDPOINT.1
    ));
}
