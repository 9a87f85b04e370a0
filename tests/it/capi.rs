//! `nodepki capi` against a real API server as the management cluster, judged by Cluster API's own code.

mod conditions;
mod control_plane;
mod rotation;
mod stacked;
mod sync;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{
    CertificateAuthority, Chain, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject,
};
use serde_json::{Value, json};

use crate::cloud_init::parsed;
use crate::node::{NODEPKI, Node, Ran, Snapshot};
use crate::servers::bin;
use crate::servers::kubernetes::{Kubernetes, kubernetes};
use crate::signing::{now, openssl, write_secret};

const ENDPOINT: &str = "api.prod.example.com:6443";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Result of [`Management::cluster_api_says`] without CA keys: only the first node joins the present Cluster API.
pub(crate) const WITHOUT_CA_KEYS: [&str; 4] = [
    "init ok",
    "join for certificate: ca: missing key data",
    "kubeconfig ok",
    "etcd ok",
];

/// A namespace of the management cluster, and a machine with a signer.
pub(crate) struct Management {
    pub(crate) node: Node,
    pub(crate) cluster: &'static Kubernetes,
    pub(crate) namespace: String,
}

impl Management {
    pub(crate) fn new() -> Self {
        Self::in_cluster(kubernetes())
    }

    fn in_cluster(cluster: &'static Kubernetes) -> Self {
        let namespace = format!("capi-{}", cluster.corner());
        let object =
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": namespace}});
        cluster.admin().create("/api/v1/namespaces", &object);
        let node = Node::new();
        let kubeconfig = cluster.kubeconfig_of("capi", &["system:masters"]);
        write_secret(node.outside("management.conf"), kubeconfig);
        Management {
            node,
            cluster,
            namespace,
        }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.node.outside("management.conf")
    }

    fn directory(&self) -> PathBuf {
        let directory = format!("/var/lib/nodepki/capi/{}/prod", self.namespace);
        self.node.path(directory)
    }

    fn command(&self, verb: &str, more: &[&str]) -> Command {
        let mut command = self.node.command(["capi", verb, "prod", "--namespace"]);
        command.arg(&self.namespace).args(more);
        command
    }

    /// Creates the objects that `--rights` prints, and a kubeconfig `ACCOUNT.conf` with the identity of the ServiceAccount.
    pub(crate) fn grant(&self, mut rights: Command, account: &str) -> Vec<Value> {
        let namespace = &self.namespace;
        let objects = parsed(&Ran::of(&mut rights).done().stdout);
        let admin = self.cluster.admin();
        for object in &objects {
            let kind = object["kind"].as_str().unwrap();
            let path = match kind {
                "ServiceAccount" => format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
                _ => format!("{RBAC}/namespaces/{namespace}/{}s", kind.to_lowercase()),
            };
            admin.create(&path, object);
        }
        // RBAC binds the ServiceAccount by the name of its user.
        let user = format!("system:serviceaccount:{namespace}:{account}");
        let kubeconfig = self.cluster.kubeconfig_of(&user, &[]);
        write_secret(self.node.outside(&format!("{account}.conf")), kubeconfig);
        objects
    }

    /// Returns `capi secrets` with the logging signer and the authorities' certificates.
    fn secrets(&self, more: &[&str]) -> Command {
        let mut command = self.command("secrets", &["--wait", "0s", "--clock-wait", "0s"]);
        command
            .arg("--config")
            .arg(self.node.outside("config.yaml"))
            .arg("--ca-dir")
            .arg(self.node.ca())
            .args(["--endpoint", ENDPOINT])
            .args(more);
        command
    }

    pub(crate) fn apply(&self, more: &[&str]) -> Ran {
        let mut command = self.secrets(&["--apply", "--kubeconfig"]);
        Ran::of(command.arg(self.kubeconfig()).args(more))
    }

    pub(crate) fn check(&self, more: &[&str]) -> Ran {
        let mut command = self.command("check", &["--kubeconfig"]);
        Ran::of(command.arg(self.kubeconfig()).args(more))
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets", self.namespace)
    }

    /// Returns the existing Secrets by the part of their name after `prod-`.
    fn there(&self) -> Vec<(String, Value)> {
        let secrets = self.cluster.admin().list(&self.path());
        let mut named: Vec<_> = secrets
            .into_iter()
            .map(|secret| {
                let name = secret["metadata"]["name"].as_str().unwrap();
                (name.strip_prefix("prod-").unwrap().to_owned(), secret)
            })
            .collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        named
    }

    fn names(&self) -> Vec<String> {
        self.there().into_iter().map(|(name, _)| name).collect()
    }

    pub(crate) fn secret(&self, purpose: &str) -> Value {
        let (status, secret) = self
            .cluster
            .admin()
            .get(&format!("{}/prod-{purpose}", self.path()));
        assert_eq!(status, 200, "{secret}");
        secret
    }

    pub(crate) fn data(&self, purpose: &str, key: &str) -> Vec<u8> {
        let secret = self.secret(purpose);
        let text = secret["data"][key].as_str();
        BASE64
            .decode(text.unwrap_or_else(|| panic!("{secret}")))
            .unwrap()
    }

    /// Returns the resource version of each Secret by name.
    pub(crate) fn versions(&self) -> Vec<(String, String)> {
        let version = |secret: Value| secret["metadata"]["resourceVersion"].to_string();
        self.there()
            .into_iter()
            .map(|(name, secret)| (name, version(secret)))
            .collect()
    }

    /// Creates a Secret without nodepki.
    pub(crate) fn make(&self, purpose: &str, data: Value, metadata: Value) {
        let mut object =
            json!({"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "stringData": data});
        object["metadata"]["name"] = json!(format!("prod-{purpose}"));
        self.create(&object);
    }

    /// Creates an object among the Secrets.
    pub(crate) fn create(&self, object: &Value) {
        self.cluster.admin().create(&self.path(), object);
    }

    pub(crate) fn remove(&self, purpose: &str) {
        self.cluster
            .admin()
            .delete(&format!("{}/prod-{purpose}", self.path()));
    }

    /// Returns what Cluster API's own code reads from the Secrets, one line for each use.
    pub(crate) fn cluster_api_says(&self) -> Vec<String> {
        let output = Command::new(bin("cluster-api"))
            .arg("secrets")
            .arg(self.kubeconfig())
            .args([&self.namespace, "prod"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn authority(&self, authority: Authority) -> String {
        self.node.authority(authority).bundle().to_pem()
    }

    /// Asserts that OpenSSL verifies a certificate under an authority, and that the key belongs to it.
    fn verified(&self, authority: Authority, certificate: &[u8], key: &[u8]) {
        let dir = tempfile::tempdir().unwrap();
        let leaf = dir.path().join("leaf.crt");
        fs::write(&leaf, certificate).unwrap();
        let ca = self
            .node
            .ca()
            .join(authority.base_name())
            .with_extension("crt");
        let (ca, leaf) = (ca.to_str().unwrap(), leaf.to_str().unwrap());
        openssl(
            &["verify", "-purpose", "sslclient", "-CAfile", ca, leaf],
            b"",
        );
        let of_certificate = openssl(&["x509", "-in", leaf, "-noout", "-pubkey"], b"");
        assert_eq!(openssl(&["pkey", "-pubout"], key), of_certificate);
    }
}

fn client(authority: &CertificateAuthority, at: time::OffsetDateTime) -> (Chain, PrivateKey) {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let profile = Profile {
        subject: Subject {
            common_name: "kube-apiserver-etcd-client".to_owned(),
            organizations: Vec::new(),
        },
        sans: Sans::default(),
        usages: vec![ExtendedUsage::ClientAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: 30 * DAY,
    };
    let leaf = authority.issue(key.public_key(), &profile, at).unwrap();
    (Chain::from_pem(leaf.to_pem().as_bytes()).unwrap(), key)
}

#[test]
fn creates_secrets_that_cluster_api_accepts() {
    let management = Management::new();
    let ran = management.apply(&[]);
    ran.done();
    for purpose in ["ca", "etcd", "proxy", "apiserver-etcd-client", "kubeconfig"] {
        ran.row_says(&format!("prod-{purpose}"), "created");
    }
    ran.says_not("PRIVATE KEY");
    assert_eq!(
        management.names(),
        ["apiserver-etcd-client", "ca", "etcd", "kubeconfig", "proxy"]
    );
    for (name, secret) in management.there() {
        let labels = &secret["metadata"]["labels"];
        assert_eq!(labels["cluster.x-k8s.io/cluster-name"], "prod", "{name}");
        // Cluster API would renew a Secret of its own type with the CA key.
        let wanted = match name.as_str() {
            "kubeconfig" => "Opaque",
            _ => "cluster.x-k8s.io/secret",
        };
        assert_eq!(secret["type"], wanted, "{name}");
    }
    for (purpose, authority) in [
        ("ca", Authority::Ca),
        ("etcd", Authority::EtcdCa),
        ("proxy", Authority::FrontProxyCa),
    ] {
        let secret = management.secret(purpose);
        assert_eq!(secret["data"].as_object().unwrap().len(), 1, "{purpose}");
        let found = management.data(purpose, "tls.crt");
        assert_eq!(found, management.authority(authority).into_bytes());
    }
    let etcd = |key| management.data("apiserver-etcd-client", key);
    management.verified(Authority::EtcdCa, &etcd("tls.crt"), &etcd("tls.key"));
    let kubeconfig = String::from_utf8(management.data("kubeconfig", "value")).unwrap();
    let current = Kubeconfig::parse(&kubeconfig).unwrap().current().unwrap();
    assert_eq!(current.server, Some(format!("https://{ENDPOINT}")));
    // Cluster API reads the entry of this name.
    assert_eq!(current.cluster, "prod");
    assert_eq!(
        current.authority.unwrap(),
        management.authority(Authority::Ca).into_bytes()
    );
    management.verified(
        Authority::Ca,
        &current.certificate.unwrap(),
        &current.key.unwrap(),
    );
    assert_eq!(management.cluster_api_says(), WITHOUT_CA_KEYS);
    management
        .check(&[])
        .done()
        .says("ExternalCAsReady                 True    Ready");
    management.apply(&["--placeholder-keys"]).done();
    assert_eq!(
        management.cluster_api_says(),
        ["init ok", "join ok", "kubeconfig ok", "etcd ok"]
    );
    assert!(management.secret("etcd")["data"]["tls.key"].is_null());
    management
        .check(&[])
        .done()
        .says("prod-ca")
        .says("tls.key does not contain a private key");
}

#[test]
fn changes_nothing_in_second_run() {
    let management = Management::new();
    management.apply(&["--format", "both"]).done();
    let (versions, directory) = (management.versions(), Snapshot::of(&management.directory()));
    assert_eq!(versions.len(), 6);
    let exchanges = management.node.exchanges().len();
    let ran = management.apply(&["--format", "both"]);
    ran.done();
    for (name, _) in &versions {
        ran.row_says(&format!("prod-{name}"), "kept");
    }
    assert_eq!(management.versions(), versions);
    assert_eq!(management.node.exchanges().len(), exchanges);
    directory.unchanged(&Snapshot::of(&management.directory()));
    // The same Secrets in a file and on standard output.
    let file = management.node.outside("secrets.yaml");
    let out = ["--format", "both", "--out", file.to_str().unwrap()];
    Ran::of(&mut management.secrets(&out))
        .done()
        .says_not("PRIVATE");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&file).unwrap());
    assert_eq!(mode & 0o7777, 0o600);
    let printed = Ran::of(&mut management.secrets(&["--show-secrets", "--format", "both"]));
    assert_eq!(printed.done().stdout, fs::read_to_string(&file).unwrap());
    let from_file = ["--format", "both", "--from-file", file.to_str().unwrap()];
    Ran::of(&mut management.command("check", &from_file)).done();
    let mut piped = management.command("check", &["--format", "both", "--from-file", "-"]);
    Ran::of(piped.stdin(fs::File::open(&file).unwrap())).done();
    directory.unchanged(&Snapshot::of(&management.directory()));
    // The API server accepts the file unchanged.
    let admin = management.cluster.admin();
    for document in printed
        .stdout
        .split("---\n")
        .filter(|text| !text.is_empty())
    {
        let name = document
            .lines()
            .find_map(|line| line.trim().strip_prefix("name: "))
            .unwrap();
        let path = format!(
            "{}/{}?fieldValidation=Strict",
            management.path(),
            name.trim_matches('"')
        );
        let put =
            nodepki::http::Call::put(path).body("application/yaml", document.as_bytes().to_vec());
        assert_eq!(admin.send(put).0, 200, "{name}");
    }
    management
        .apply(&["--format", "both"])
        .done()
        .says_not("replaced");
}

#[test]
fn writes_format_of_proposal_on_request() {
    let management = Management::new();
    management.apply(&["--format", "proposal"]).done();
    assert_eq!(
        management.names(),
        [
            "admin",
            "apiserver-etcd-client",
            "ca",
            "etcd",
            "kubeconfig",
            "proxy"
        ]
    );
    for purpose in ["ca", "etcd", "proxy"] {
        let secret = management.secret(purpose);
        assert_eq!(secret["type"], "Opaque");
        let keys: Vec<_> = secret["data"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        assert_eq!(keys, ["ca.crt"], "{purpose}");
    }
    let admin = |key| management.data("admin", key);
    management.verified(Authority::Ca, &admin("tls.crt"), &admin("tls.key"));
    management.check(&["--format", "proposal"]).done();
    management
        .check(&[])
        .ended(65)
        .says("The following CA certificates are invalid or could not be parsed: prod-ca, prod-etcd, prod-proxy.")
        .says("it has no tls.crt");
    assert_eq!(
        management.cluster_api_says()[0],
        format!(
            "init failed to read keypair from certificate {}/prod-ca: missing data for key tls.crt",
            management.namespace
        )
    );
    // With an external etcd nodepki does not manage its Secrets.
    let management = Management::new();
    management.apply(&["--external-etcd"]).done();
    assert_eq!(management.names(), ["ca", "kubeconfig", "proxy"]);
    management.check(&["--external-etcd"]).done();
    management
        .check(&[])
        .ended(75)
        .says("prod-etcd")
        .says("prod-apiserver-etcd-client");
}

#[test]
fn waits_for_pending_signer() {
    let management = Management::new();
    management.node.signer_does("admin.conf", "pending");
    for _ in 0..2 {
        let ran = management.apply(&[]);
        ran.ended(75)
            .says("an officer must approve")
            .says("no Secret was created");
        assert_eq!(management.names(), [""; 0]);
        let printed = Ran::of(&mut management.secrets(&["--show-secrets"]));
        printed.ended(75);
        assert_eq!(printed.stdout, "");
    }
    let waiting = management.node.keys_seen();
    management.node.signer_behaves();
    management.apply(&[]).done();
    assert_eq!(management.node.keys_seen(), waiting);
    assert_eq!(waiting["admin.conf"].len(), 1);
    management.check(&[]).done();
}

#[test]
fn reissues_expired_and_changed_certificates() {
    let management = Management::new();
    management.apply(&[]).done();
    let etcd = management.node.authority(Authority::EtcdCa);
    let (chain, key) = client(&etcd, now() - 31 * DAY);
    let base = management
        .directory()
        .join("etc/kubernetes/pki/apiserver-etcd-client");
    fs::write(base.with_extension("crt"), chain.to_pem()).unwrap();
    write_secret(base.with_extension("key"), key.to_pem().as_bytes());
    let ran = management.apply(&[]);
    ran.done()
        .row_says("apiserver-etcd-client", "it expired at")
        .row_says("prod-apiserver-etcd-client", "replaced")
        .row_says("prod-kubeconfig", "kept");
    let found = |key| management.data("apiserver-etcd-client", key);
    management.verified(Authority::EtcdCa, &found("tls.crt"), &found("tls.key"));

    // A kubeadm configuration with another address and another key algorithm.
    let asked = management.node.submissions();
    let mut moved = management.command(
        "secrets",
        &[
            "--wait",
            "0s",
            "--clock-wait",
            "0s",
            "--apply",
            "--kubeconfig",
        ],
    );
    moved
        .arg(management.kubeconfig())
        .arg("--config")
        .arg(management.node.outside("config.yaml"))
        .arg("--kubeadm-config")
        .arg(management.node.outside("kubeadm.yaml"));
    let ran = Ran::of(&mut moved);
    ran.done().row_says("prod-kubeconfig", "replaced");
    assert_ne!(management.node.submissions(), asked);
    let kubeconfig = String::from_utf8(management.data("kubeconfig", "value")).unwrap();
    let current = Kubeconfig::parse(&kubeconfig).unwrap().current().unwrap();
    assert_eq!(
        current.server.as_deref(),
        Some("https://api.example.com:6443")
    );
    // Another address alone does not need a signature.
    let asked = management.node.submissions();
    let mut back = Ran::of(moved.args(["--endpoint", ENDPOINT]));
    back.done().row_says("prod-kubeconfig", "replaced");
    back = Ran::of(&mut moved);
    back.done().row_says("prod-kubeconfig", "kept");
    assert_eq!(management.node.submissions(), asked);
}

#[test]
fn leaves_foreign_secret_unchanged() {
    let management = Management::new();
    let foreign = CertificateAuthority::self_signed(
        "front-proxy-ca",
        PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap(),
        now(),
        365 * DAY,
    )
    .unwrap();
    management.make(
        "proxy",
        json!({"tls.crt": foreign.bundle().to_pem(), "tls.key": "precious"}),
        json!({}),
    );
    management.make("etcd", json!({"tls.crt": "garbage"}), json!({}));
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "cp", "uid": "1", "controller": true});
    management.make(
        "kubeconfig",
        json!({"value": "x"}),
        json!({"ownerReferences": [owner]}),
    );
    management.make(
        "ca",
        json!({"tls.crt": management.authority(Authority::Ca)}),
        json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}}),
    );
    let (stranger, key) = client(&foreign, now());
    management.make(
        "apiserver-etcd-client",
        json!({"tls.crt": stranger.to_pem(), "tls.key": *key.to_pem()}),
        json!({"annotations": {"why": "kept"}, "labels": {"team": "kept"}}),
    );
    let before = management.versions();
    management
        .apply(&[])
        .ended(65)
        .says("prod-proxy in")
        .says("it contains another CA, CN=front-proxy-ca")
        .says("prod-etcd in")
        .says("its certificate is unreadable")
        .says("it is owned by ConfigMap/cp")
        .says("it is managed by Helm")
        .says("its certificate does not belong to this cluster")
        .says("--replace")
        .says_not("precious");
    assert_eq!(management.versions(), before);

    management.apply(&["--replace"]).done();
    management
        .check(&[])
        .done()
        .says("tls.key does not contain a private key");
    // A foreign Secret is kept nevertheless.
    assert_eq!(management.data("proxy", "tls.key"), b"precious");
    let metadata = &management.secret("apiserver-etcd-client")["metadata"];
    assert_eq!(
        (&metadata["annotations"]["why"], &metadata["labels"]["team"]),
        (&json!("kept"), &json!("kept"))
    );
    assert_eq!(
        management.secret("kubeconfig")["metadata"]["ownerReferences"][0]["name"],
        "cp"
    );
}

#[test]
fn accepts_valid_foreign_secret() {
    let management = Management::new();
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "cp", "uid": "1", "controller": true});
    management.make(
        "ca",
        json!({"tls.crt": management.authority(Authority::Ca)}),
        json!({"ownerReferences": [owner], "labels": {"cluster.x-k8s.io/cluster-name": "prod"}}),
    );
    let before = management.versions();
    management.apply(&[]).done().row_says("prod-ca", "kept");
    assert_eq!(management.versions()[1], before[0]);
}

#[test]
fn names_refusal_of_management_cluster() {
    let mut management = Management::new();
    let nobody = management.cluster.kubeconfig_of("nobody", &["nobodies"]);
    let admin = fs::read_to_string(management.kubeconfig()).unwrap();
    write_secret(management.kubeconfig(), nobody);
    let namespace = management.namespace.clone();
    let ran = management.apply(&[]);
    ran.ended(77).says("prod-ca").says(&namespace);
    management.check(&[]).ended(77).says("prod-ca");
    write_secret(management.kubeconfig(), admin);
    management.namespace = "absent".to_owned();
    management
        .apply(&[])
        .ended(65)
        .says("prod-ca in absent: the namespace does not exist (create it");
}

#[test]
fn renews_secret_adopted_by_cluster_api() {
    let management = Management::new();
    management.apply(&[]).done();
    let certificate = String::from_utf8(management.data("apiserver-etcd-client", "tls.crt"));
    management.remove("apiserver-etcd-client");
    let owner = json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane", "name": "prod", "uid": "2", "controller": true});
    management.make(
        "apiserver-etcd-client",
        json!({"tls.crt": certificate.unwrap()}),
        json!({"ownerReferences": [owner], "labels": {"app.kubernetes.io/managed-by": "nodepki"}}),
    );
    management
        .apply(&[])
        .done()
        .row_says("prod-apiserver-etcd-client", "tls.key differs");
}

#[test]
fn reports_conditions_of_proposal() {
    let management = Management::new();
    let missing = management.check(&["-o", "json"]);
    missing.ended(75);
    let findings: Value = serde_json::from_str(&missing.stdout).unwrap();
    assert_eq!(
        findings["conditions"],
        json!([
            {"type": "ExternalCAsReady", "status": "False", "reason": "MissingSecret",
             "message": "The following required CA Secrets are missing: prod-ca, prod-etcd, prod-proxy."},
            {"type": "ExternalClientCertificatesReady", "status": "False", "reason": "MissingSecret",
             "message": "The following required client certificate Secrets are missing: prod-apiserver-etcd-client, prod-kubeconfig."},
        ])
    );
    management.apply(&[]).done();
    management.check(&[]).done();
    let other = client(&management.node.authority(Authority::Ca), now());
    let etcd = management.node.authority(Authority::EtcdCa);
    let ended = client(&etcd, now() - 31 * DAY);
    let good = client(&etcd, now());
    let spoilt = |purpose: &str, data: Value, message: &str, evidence: &str| {
        let kept = management.secret(purpose);
        management.remove(purpose);
        management.make(purpose, data, json!({}));
        management.check(&[]).ended(65).says(message).says(evidence);
        management.remove(purpose);
        let mut again = kept;
        again["metadata"] =
            json!({"name": format!("prod-{purpose}"), "labels": again["metadata"]["labels"]});
        management
            .cluster
            .admin()
            .create(&management.path(), &again);
    };
    spoilt(
        "etcd",
        json!({"tls.crt": "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"}),
        "The following CA certificates are invalid or could not be parsed: prod-etcd.",
        "tls.crt is unreadable: a certificate in it is damaged",
    );
    let client_message = "The following client certificates are invalid or could not be parsed: prod-apiserver-etcd-client.";
    for (pair, evidence) in [
        (&other, "no path from it to the trusted CN=etcd-ca"),
        (&ended, "it expired at"),
    ] {
        spoilt(
            "apiserver-etcd-client",
            json!({"tls.crt": pair.0.to_pem(), "tls.key": *pair.1.to_pem()}),
            client_message,
            evidence,
        );
    }
    spoilt(
        "apiserver-etcd-client",
        json!({"tls.crt": good.0.to_pem(), "tls.key": *other.1.to_pem()}),
        client_message,
        "the private key does not belong to the certificate",
    );
    management.check(&[]).done();
}

/// The API server of the cluster with this CA accepts the administrator of the kubeconfig.
#[test]
fn creates_kubeconfig_of_administrator() {
    let management = Management::new();
    let ca = management.node.outside("ca");
    let own = management.cluster.ca_file();
    for extension in ["crt", "key"] {
        fs::copy(
            own.with_extension(extension),
            ca.join("ca").with_extension(extension),
        )
        .unwrap();
    }
    let server = management.cluster.url();
    let mut command = management.command("secrets", &["--clock-wait", "0s", "--endpoint"]);
    command
        .arg(server.strip_prefix("https://").unwrap())
        .arg("--signer")
        .arg(format!("local:{}", ca.display()))
        .args(["--apply", "--kubeconfig"])
        .arg(management.kubeconfig());
    Ran::of(&mut command).done();
    let file = management.node.outside("workload.conf");
    fs::write(&file, management.data("kubeconfig", "value")).unwrap();
    let who = who_am_i(&file);
    assert_eq!(who["username"], "kubernetes-admin");
    assert!(
        who["groups"]
            .as_array()
            .unwrap()
            .contains(&json!("kubeadm:cluster-admins"))
    );
}

fn who_am_i(kubeconfig: &Path) -> Value {
    use nodepki::cluster::api::{Api, ApiAccess, Resource};
    use nodepki::yaml::schema::SecretFile;
    let access = ApiAccess::Kubeconfig {
        file: SecretFile::Path(kubeconfig.to_owned()),
        timeout: Duration::from_secs(30),
    };
    let files = std::rc::Rc::new(crate::signing::PlainFiles);
    let api = Api::new(access, files, None, now).unwrap();
    let review = Resource {
        group: "authentication.k8s.io",
        version: "v1",
        plural: "selfsubjectreviews",
        kind: "SelfSubjectReview",
    };
    let object = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let answer = crate::signing::run(api.create(&review, None, &object)).unwrap();
    answer["status"]["userInfo"].clone()
}

#[test]
fn prints_keys_only_when_told() {
    let management = Management::new();
    let arguments = management.secrets(&[]);
    let line: Vec<String> = arguments
        .get_args()
        .map(|argument| format!("'{}'", argument.to_str().unwrap()))
        .collect();
    let on_terminal = |more: &str| {
        let line = format!("{NODEPKI} {} {more}", line.join(" "));
        Ran::of(Command::new("script").args(["-qec", &line, "/dev/null"]))
    };
    let refused = on_terminal("");
    refused
        .ended(64)
        .says("--show-secrets prints it")
        .says_not("tls.key");
    let refused = Ran::of(&mut management.secrets(&[]));
    refused.ended(64).says_not("tls.key");
    assert_eq!(management.node.exchanges(), []);
    on_terminal("--show-secrets").done().says("tls.key: ");
}

#[test]
fn reports_missing_and_wrong_settings_first() {
    let management = Management::new();
    let usage = |arguments: &[&str], words: &str| {
        management.node.run(arguments).ended(64).says(words);
    };
    usage(&["capi", "secrets", "Prod"], "is not a valid cluster name");
    usage(
        &["capi", "secrets", "prod", "--namespace", "a.b"],
        "is not a valid namespace",
    );
    usage(&["capi", "secrets", "prod"], "add --endpoint HOST:PORT");
    usage(
        &["capi", "secrets", "prod", "--endpoint", "https://x"],
        "--endpoint",
    );
    usage(&["capi", "secrets", "prod", "--apply"], "--kubeconfig");
    usage(&["capi", "check", "prod"], "--from-file");
    management
        .node
        .run(&["capi", "check", "prod", "--from-file", "/nowhere.yaml"])
        .ended(78)
        .says("/nowhere.yaml");
    // A CA certificate from a signer needs a pin. Paths in messages are those of this machine.
    let mut command = management.command(
        "secrets",
        &[
            "--show-secrets",
            "--endpoint",
            ENDPOINT,
            "--clock-wait",
            "0s",
            "--config",
        ],
    );
    command.arg(management.node.outside("config.yaml"));
    Ran::of(&mut command)
        .ended(78)
        .says(&format!("below {}: ", management.directory().display()))
        .says("no file or pin confirms that it is the right one");
    // The CA differs from that of the last run.
    management.apply(&[]).done();
    let before = management.versions();
    management
        .node
        .replace_authority(Authority::EtcdCa, now(), 365 * DAY);
    management.apply(&[]).ended(65).says("etcd-ca");
    assert_eq!(management.versions(), before);
    assert!(
        management.node.leaf(CertName::AdminConf).is_none(),
        "the machine's own files are none of its business"
    );
}
