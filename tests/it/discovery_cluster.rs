//! Discovery of a cluster that the real kubeadm made, whose kube-controller-manager signs `cluster-info` and removes
//! tokens. nodepki accepts what kubeadm accepts, with listed exceptions, and changes nothing on the node if it refuses.
//!
//! A cluster has one `cluster-info`, so these tests share a cluster of their own and run one after another.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use nodepki::text::hex;
use serde_json::{Value, json};

use crate::gateway::Issuer;
use crate::node::{Ran, Snapshot};
use crate::servers::SharedServer;
use crate::servers::cluster::{Authorities, Cluster, ClusterNode, ENDPOINT, INIT, TOKEN};
use crate::time::wait_until;

const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
const JOIN: &str = "/run/kubeadm/kubeadm-join-config.yaml";

/// A cluster whose certificates are uploaded with the key.
struct Shared {
    cluster: Cluster,
    key: String,
}

fn shared() -> MutexGuard<'static, Shared> {
    static SHARED: SharedServer<Mutex<Shared>> = SharedServer::new();
    let start = || {
        let cluster = Cluster::start(Authorities::Internal);
        let upload = ["init", "phase", "upload-certs", "--upload-certs"];
        let uploaded = cluster.first().kubeadm(&upload, Some(INIT));
        let key = |line: &&str| line.len() == 64 && line.bytes().all(|b| b.is_ascii_hexdigit());
        let key = uploaded.done().stdout.lines().find(key).unwrap().to_owned();
        Mutex::new(Shared { cluster, key })
    };
    SHARED
        .get(start)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Returns the JoinConfiguration of a control-plane node with this discovery.
    fn joining(&self, node: &ClusterNode, discovery: &str) -> String {
        format!(
            "apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {discovery}
nodeRegistration: {{name: {}, criSocket: 'unix:///run/containerd/containerd.sock'}}
timeouts: {{discovery: 3s}}
controlPlane:
  localAPIEndpoint: {{advertiseAddress: {}}}
  certificateKey: '{}'
",
            node.name(),
            node.address(),
            self.key
        )
    }

    fn nodepki(&self, node: &ClusterNode, discovery: &str) -> Ran {
        node.write(JOIN, &self.joining(node, discovery));
        node.nodepki(&[
            "certs",
            "download",
            "--kubeadm-config",
            JOIN,
            "--wait",
            "3s",
        ])
    }

    fn kubeadm(&self, node: &ClusterNode, discovery: &str) -> Ran {
        let phase = ["join", "phase", "control-plane-prepare", "download-certs"];
        node.kubeadm(&phase, Some(&self.joining(node, discovery)))
    }

    /// Asserts that nodepki refuses with these parts and changes nothing on the node, and optionally that kubeadm refuses
    /// too.
    #[track_caller]
    fn refused(&self, node: &ClusterNode, discovery: &str, code: i32, words: &str, by_both: bool) {
        node.write(JOIN, &self.joining(node, discovery));
        let before = Snapshot::of(node.dir());
        let ran = self.nodepki(node, discovery);
        ran.ended(code).says(words).says_not("0123456789abcde");
        let after = Snapshot::of(node.dir());
        assert_eq!(before.content(), after.content());
        let ran = self.kubeadm(node, discovery);
        assert_eq!(ran.code != Some(0), by_both, "{}", ran.said());
        empty(node);
    }

    fn cluster_info(&self) -> Value {
        let (status, info) = self.cluster.admin().get(CLUSTER_INFO);
        assert_eq!(status, 200, "{info}");
        info["data"].clone()
    }

    fn publish(&self, data: &Value) {
        let change = json!({ "data": data });
        let (status, body) = self.cluster.admin().patch(CLUSTER_INFO, &change);
        assert_eq!(status, 200, "{body}");
    }

    /// Changes the kubeconfig and waits for the new signature of [`TOKEN`].
    fn publish_signed(&self, kubeconfig: &str) {
        let before = self.cluster_info()["jws-kubeconfig-abcdef"].clone();
        self.publish(&json!({ "kubeconfig": kubeconfig }));
        wait_until("cluster-info is signed again", || {
            let now = self.cluster_info()["jws-kubeconfig-abcdef"].clone();
            now.is_string() && now != before
        });
    }

    fn at(&self, endpoint: &str, token: &str, pins: &[&str]) -> String {
        format!(
            "{{bootstrapToken: {{token: {token}, apiServerEndpoint: '{endpoint}', caCertHashes: {pins:?}}}}}"
        )
    }
}

/// Asserts what a download has written.
fn empty(node: &ClusterNode) {
    let dir = node.path("/etc/kubernetes");
    fs::remove_dir_all(&dir).unwrap();
    fs::create_dir(dir).unwrap();
}

#[test]
fn discovers_cluster_like_kubeadm() {
    let shared = shared();
    let pin = shared.cluster.ca_pin();
    let node = shared.cluster.add_node("cp20", "192.0.2.20");
    let info = shared.cluster_info();
    node.write("/etc/cluster.conf", info["kubeconfig"].as_str().unwrap());
    let admin = fs::read_to_string(shared.cluster.first().path("/etc/kubernetes/admin.conf"));
    node.write_secret("/etc/admin.conf", &admin.unwrap());
    let unsafe_skip = format!(
        "{{bootstrapToken: {{token: {TOKEN}, apiServerEndpoint: '{ENDPOINT}', unsafeSkipCAVerification: true}}}}"
    );
    let elsewhere = "cluster-info names https://api.prod.example.com:6443 as the API server";
    for (discovery, note) in [
        (shared.at(ENDPOINT, TOKEN, &[&pin]), ""),
        (
            shared.at("192.0.2.11:6443", TOKEN, &[&pin.to_uppercase()]),
            elsewhere,
        ),
        (shared.at("[2001:db8::100]:6443", TOKEN, &[&pin]), elsewhere),
        (
            unsafe_skip,
            "is trusted because of the token's signature alone",
        ),
        (
            format!("{{file: {{kubeConfigPath: /etc/cluster.conf}}, tlsBootstrapToken: {TOKEN}}}"),
            "",
        ),
        ("{file: {kubeConfigPath: /etc/admin.conf}}".to_owned(), ""),
    ] {
        let ran = shared.nodepki(&node, &discovery);
        ran.done().says(note);
        let ours = fs::read(node.path("/etc/kubernetes/pki/sa.key")).unwrap();
        empty(&node);
        shared.kubeadm(&node, &discovery).done();
        let kubeadms = fs::read(node.path("/etc/kubernetes/pki/sa.key")).unwrap();
        assert_eq!(ours, kubeadms);
        empty(&node);
    }
}

#[test]
fn names_wrong_token_and_pin() {
    let shared = shared();
    let pin = shared.cluster.ca_pin();
    let node = shared.cluster.add_node("cp21", "192.0.2.21");
    let other = format!("sha256:{}", "0".repeat(64));
    let short_lived = "expire.0123456789abcdef";
    let first = shared.cluster.first();
    let config = INIT.replace(TOKEN, short_lived).replace("24h0m0s", "20s");
    let create = [
        "token",
        "create",
        "--kubeconfig=/etc/kubernetes/super-admin.conf",
    ];
    first.kubeadm(&create, Some(&config)).done();
    let signed = || shared.cluster_info()["jws-kubeconfig-expire"].is_string();
    wait_until("the token has its signature", signed);
    shared
        .nodepki(&node, &shared.at(ENDPOINT, short_lived, &[&pin]))
        .done();
    empty(&node);
    wait_until("the token has expired", || !signed());
    for (endpoint, token, pin, code, words) in [
        (
            ENDPOINT,
            short_lived,
            &pin,
            69,
            "has no signature for token expire: the token has expired",
        ),
        (
            ENDPOINT,
            "zzzzzz.0123456789abcdef",
            &pin,
            69,
            "has no signature for token zzzzzz",
        ),
        (
            ENDPOINT,
            "abcdef.0123456789abcdex",
            &pin,
            77,
            "the secret of token abcdef is not the one",
        ),
        (
            ENDPOINT,
            TOKEN,
            &other,
            65,
            "none of its CA certificates is pinned",
        ),
        ("192.0.2.11:9", TOKEN, &pin, 69, "https://192.0.2.11:9"),
    ] {
        let discovery = shared.at(endpoint, token, &[pin]);
        shared.refused(&node, &discovery, code, words, true);
    }
    shared.refused(
        &node,
        &shared.at(ENDPOINT, TOKEN, &[]),
        78,
        "no caCertHashes are set",
        true,
    );
}

#[test]
fn accepts_second_ca_of_cluster_like_kubeadm() {
    let shared = shared();
    let pin = shared.cluster.ca_pin();
    let node = shared.cluster.add_node("cp22", "192.0.2.22");
    let genuine = shared.cluster_info()["kubeconfig"]
        .as_str()
        .unwrap()
        .to_owned();
    let ca = fs::read(shared.cluster.first().path("/etc/kubernetes/pki/ca.crt")).unwrap();
    let next = Issuer::new("next");
    let both = STANDARD.encode([&*ca, &next.pem()].concat());
    shared.publish_signed(&genuine.replace(&STANDARD.encode(&ca), &both));
    let discovery = shared.at(ENDPOINT, TOKEN, &[&pin]);
    let note = "cluster-info also contains CN=next (public key sha256:";
    shared.nodepki(&node, &discovery).done().says(note);
    empty(&node);
    // The API server does not have a certificate of this CA yet.
    let next = format!("sha256:{}", hex(&next.certificate().public_key().sha256()));
    let discovery = shared.at(ENDPOINT, TOKEN, &[&next]);
    let words =
        "does not have a certificate of a pinned CA, and cluster-info also contains CN=kubernetes";
    shared.refused(&node, &discovery, 75, words, false);
    let discovery = shared.at(ENDPOINT, TOKEN, &[&pin, &next]);
    shared.nodepki(&node, &discovery).done();
    shared.publish_signed(&genuine);
}

#[test]
fn refuses_cluster_info_without_valid_signature() {
    let shared = shared();
    let node = shared.cluster.add_node("cp23", "192.0.2.23");
    let discovery = shared.at(ENDPOINT, TOKEN, &[&shared.cluster.ca_pin()]);
    let genuine = shared.cluster_info();
    let kubeconfig = genuine["kubeconfig"].as_str().unwrap();
    let jws = genuine["jws-kubeconfig-abcdef"].as_str().unwrap();
    let (_, signature) = jws.split_once("..").unwrap();
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","kid":"zzzzzz"}"#);
    let first = shared.cluster.first();
    // kube-controller-manager would sign again.
    first.stop("kube-controller-manager");
    for (change, code, words) in [
        (
            json!({"kubeconfig": kubeconfig.replace("api.prod", "api.evil")}),
            77,
            "cluster-info was changed and not signed again",
        ),
        (
            json!({"kubeconfig": kubeconfig[..300]}),
            65,
            "its signature does not match the secret of token abcdef",
        ),
        (
            json!({"jws-kubeconfig-abcdef": format!("{header}..{signature}")}),
            65,
            "has an unexpected header",
        ),
        (
            json!({"jws-kubeconfig-abcdef": jws[..50]}),
            65,
            "its signature for token abcdef is damaged",
        ),
    ] {
        shared.publish(&change);
        shared.refused(&node, &discovery, code, words, true);
        shared.publish(&genuine);
    }
    first.start("kube-controller-manager");
    // The previous process has not released its lease.
    shared.publish(&json!({"jws-kubeconfig-abcdef": null}));
    wait_until("cluster-info is signed again", || {
        shared.cluster_info()["jws-kubeconfig-abcdef"].is_string()
    });
}
