//! The real kube-apiserver calls an admission webhook that serves with a registered certificate, before and after it is
//! renewed: the static pod is restarted, or a hook makes the running process read the new pair.

use std::fs;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::Signal;
use nodepki::kube::names::Authority;
use nodepki::x509::certificates_of;
use serde_json::{Value, json};

use crate::rotation_cluster::Daemon;
use crate::servers::Server;
use crate::servers::cluster::{Authorities, Cluster, ClusterNode, INIT};
use crate::time::wait_until;

const MANIFEST: &str = "/etc/kubernetes/manifests/policy-webhook.yaml";
const DIR: &str = "/etc/kubernetes/policy-webhook";
const ADDRESS: &str = "192.0.2.11:9443";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// An admission webhook that refuses objects whose names begin with `denied`. It reads certificate and key when it starts
/// and on SIGHUP, and writes its process ID.
const WEBHOOK: &str = r#"
import http.server, json, os, signal, ssl, sys

directory, pid_file = sys.argv[1:]

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        allowed = not request["name"].startswith("denied")
        response = {"uid": request["uid"], "allowed": allowed}
        if not allowed:
            response["status"] = {"message": "refused by the policy webhook"}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

def load(*_):
    context.load_cert_chain(f"{directory}/tls.crt", f"{directory}/tls.key")

load()
signal.signal(signal.SIGHUP, load)
server = http.server.ThreadingHTTPServer(("", 9443), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
with open(pid_file, "w") as file:
    file.write(str(os.getpid()))
server.serve_forever()
"#;

fn configure(node: &ClusterNode, sans: &str, more: &str) {
    let text = format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         signers: {{own: {{local: {{directory: /etc/kubernetes/pki}}}}}}\n\
         certificates:\n  registered:\n    policy-webhook:\n      authority: ca\n      category: ServingCertificate\n      \
         sans: [{sans}]\n      certificate: {DIR}/tls.crt\n      key: {DIR}/tls.key\n      caFiles: {{ca: {DIR}/ca.crt, front-proxy-ca: {DIR}/front-proxy-ca.crt}}\n{more}"
    );
    node.write("/etc/nodepki/config.yaml", &text);
}

/// Starts the webhook and waits until it accepts connections.
fn start_webhook(node: &ClusterNode) -> Server {
    let mut python = node.command("python3");
    python.args(["-c", WEBHOOK, DIR, "/run/policy-webhook.pid"]);
    let mut server = Server::start(python, &node.dir().join("policy-webhook.log"));
    let probe = "exec 3<>/dev/tcp/192.0.2.11/9443";
    server.wait_until(|| node.run("bash", &["-c", probe]).code == Some(0));
    server
}

/// Returns the certificate that the webhook serves, in PEM.
fn served(node: &ClusterNode) -> String {
    let script =
        format!("openssl s_client -connect {ADDRESS} </dev/null 2>/dev/null | openssl x509");
    let ran = node.run("bash", &["-c", &script]);
    ran.done().stdout.trim().to_owned()
}

fn on_disk(node: &ClusterNode) -> String {
    let text = fs::read_to_string(node.path(&format!("{DIR}/tls.crt"))).unwrap();
    text.trim().to_owned()
}

/// Removes the record by which a recent certificate is not issued again.
fn end_cool_down(node: &ClusterNode) {
    fs::remove_file(node.path("/var/lib/nodepki/issued.json")).unwrap();
}

fn configuration(node: &ClusterNode) -> Value {
    let ca = fs::read(node.path(&format!("{DIR}/ca.crt"))).unwrap();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "policy"},
        "webhooks": [{
            "name": "policy.example.com",
            "clientConfig": {
                "url": format!("https://{ADDRESS}/validate"),
                "caBundle": BASE64_STANDARD.encode(ca),
            },
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["configmaps"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 5,
        }],
    })
}

/// Asserts that kube-apiserver asks the webhook: it accepts one object and refuses the other.
fn assert_calls_webhook(cluster: &Cluster, name: &str) {
    let object =
        |name: String| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let admin = cluster.admin();
    let (status, found) = admin.post(CONFIG_MAPS, &object(format!("denied-{name}")));
    assert_ne!(status, 201, "{found}");
    assert!(
        found.to_string().contains("refused by the policy webhook"),
        "{found}"
    );
    let (status, found) = admin.post(CONFIG_MAPS, &object(name.to_owned()));
    assert_eq!(status, 201, "{found}");
}

#[test]
fn apiserver_calls_webhook_with_registered_certificate_before_and_after_renewal() {
    let cluster = Cluster::start(Authorities::Internal);
    let node = cluster.first();
    node.write("/run/kubeadm/kubeadm.yaml", INIT);
    configure(
        node,
        "\"{node}\", \"{address}\"",
        "      reload: {pod: policy-webhook}\n",
    );
    node.nodepki(&["bootstrap", "--clock-wait", "0s"])
        .done()
        .row_says("policy-webhook", "issued");
    node.write(
        MANIFEST,
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: policy-webhook\nspec:\n  containers:\n  - command: [policy-webhook]\n",
    );
    let webhook = start_webhook(node);
    assert_eq!(served(node), on_disk(node));
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let (status, made) = cluster.admin().post(path, &configuration(node));
    assert_eq!(status, 201, "{made}");
    wait_until("kube-apiserver asks the webhook", || {
        let probe =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "denied-probe"}});
        let (status, found) = cluster.admin().post(CONFIG_MAPS, &probe);
        if status == 201 {
            cluster
                .admin()
                .delete(&format!("{CONFIG_MAPS}/denied-probe"));
        }
        found.to_string().contains("refused by the policy webhook")
    });
    assert_calls_webhook(&cluster, "before");

    // The kubelet restarts the static pod once its manifest has changed.
    let before = on_disk(node);
    end_cool_down(node);
    let renew = ["renew", "--clock-wait", "0s", "--name", "policy-webhook"];
    node.nodepki(&renew)
        .done()
        .says("static pod policy-webhook")
        .says("is restarted by the kubelet for policy-webhook");
    let manifest = fs::read_to_string(node.path(MANIFEST)).unwrap();
    assert!(manifest.contains("nodepki.io/restarted-at"), "{manifest}");
    assert_ne!(on_disk(node), before);
    assert_eq!(served(node), before);
    drop(webhook);
    let webhook = start_webhook(node);
    assert_eq!(served(node), on_disk(node));
    assert_calls_webhook(&cluster, "restarted");
    // A manifest that cannot be annotated is reported until the pod is restarted.
    node.write(MANIFEST, "apiVersion: v1\nkind: Pod\nmetadata: {name: policy-webhook}\nspec:\n  containers:\n  - command: [policy-webhook]\n");
    end_cool_down(node);
    node.nodepki(&renew)
        .ended(75)
        .says("was not restarted for policy-webhook");
    node.nodepki(&["renew"]).ended(75);
    node.write(MANIFEST, &manifest);
    node.nodepki(&["renew"])
        .done()
        .says("is restarted by the kubelet");
    assert_ne!(fs::read_to_string(node.path(MANIFEST)).unwrap(), manifest);
    node.nodepki(&["renew"]).done().says_not("static pod");

    // A change of the CA that the webhook has a copy of restarts it too.
    let before = fs::read_to_string(node.path(MANIFEST)).unwrap();
    let authority = Authority::FrontProxyCa;
    let new = crate::authority::self_signed(authority, crate::authority::new_key());
    node.write("/etc/nodepki/new.crt", &new.bundle().to_pem());
    let stage = [
        "authority",
        "stage",
        "front-proxy-ca",
        "--certificate",
        "/etc/nodepki/new.crt",
    ];
    node.nodepki(&stage)
        .done()
        .says("front-proxy-ca.crt contains the same certificates");
    let copy = fs::read(node.path(&format!("{DIR}/front-proxy-ca.crt"))).unwrap();
    assert_eq!(certificates_of(&copy).unwrap().len(), 2);
    let after = fs::read_to_string(node.path(MANIFEST)).unwrap();
    assert_ne!(after, before);
    assert!(after.contains("nodepki.io/restarted-at"), "{after}");

    // A node without the pod has nothing to restart.
    fs::remove_file(node.path(MANIFEST)).unwrap();
    end_cool_down(node);
    node.nodepki(&renew).done().says("does not run here");

    // The daemon issues a certificate with a new name, and a hook makes the running process read it.
    drop(webhook);
    let mut webhook = start_webhook(node);
    let hook = "reload:\n  hooks:\n  - on: [policy-webhook]\n    command: [/bin/sh, -c, 'kill -HUP \"$(cat /run/policy-webhook.pid)\"']\n";
    configure(
        node,
        "\"{node}\", \"{address}\", policy-webhook.policy.svc",
        hook,
    );
    let before = on_disk(node);
    end_cool_down(node);
    let mut daemon = Daemon::start(node);
    wait_until("the webhook serves the new certificate", || {
        on_disk(node) != before && served(node) == on_disk(node)
    });
    daemon.is_running();
    daemon.stop();
    assert!(webhook.ended().is_none());
    assert_calls_webhook(&cluster, "reloaded");
    webhook.signal(Signal::SIGTERM);
}
