//! Commands that read and write objects in an API server, interrupted in front of a real one.
//!
//! The server is shared by all cases, so one case runs at a time: the objects of its collections are restored before
//! it, and compared with those of an undisturbed run after the run that completes it. Cluster API's controllers do not run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::http::Call;
use nodepki::kube::names::Authority;
use nodepki::x509::{
    Csr, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject, UsageExtensions,
};
use serde_json::{Value, json};

use super::judge::{self, Reference};
use super::scenarios::{
    CERTIFICATE_KEY, COMMON, PASSPHRASE, Scenario, UNDISTURBED, bootstrap_local, daemon_local,
    first_step, has_certificate_key, kubeadm, new_node, one_request_per_slot, repeats,
};
use super::{run_sample, selected};
use crate::node::{INIT, Node, Ran};
use crate::servers::cluster::{enter, keep};
use crate::servers::kubernetes::{
    CSRS, Kubernetes, NODE_ADDRESS, Person, kubernetes_with_cluster_api,
};
use crate::servers::{Server, bin, own_dir};
use crate::signing::write_secret;
use crate::time::wait_until;

const SYSTEM_SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const SYSTEM_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles";
const SYSTEM_BINDINGS: &str =
    "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings";
const SECRETS: &str = "/api/v1/namespaces/crash/secrets";
const CLUSTERS: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/crash/clusters";
const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/crash/machines";
const CONDITIONS: &str = "/apis/nodepki.io/v1alpha1/namespaces/crash/controlplanepkis";
const NODES: &str = "/api/v1/nodes";
/// Secrets of Cluster API with a CA.
const AUTHORITIES: [(&str, Authority); 3] = [
    ("ca", Authority::Ca),
    ("etcd", Authority::EtcdCa),
    ("proxy", Authority::FrontProxyCa),
];
const CA_KEYS: &str = "/var/backups/cluster-ca-keys";

/// Objects that a scenario changes: those of a collection whose names have a prefix.
pub(super) struct Collection {
    path: &'static str,
    prefix: &'static str,
}

const fn collection(path: &'static str, prefix: &'static str) -> Collection {
    Collection { path, prefix }
}

/// The objects of `certs`. A token of an interrupted upload expires.
const UPLOAD: &[Collection] = &[
    collection(SYSTEM_SECRETS, "kubeadm-certs"),
    collection(SYSTEM_SECRETS, "bootstrap-token-"),
    collection(SYSTEM_ROLES, "kubeadm:kubeadm-certs"),
    collection(SYSTEM_BINDINGS, "kubeadm:kubeadm-certs"),
];
const CLUSTER_SECRETS: &[Collection] = &[collection(SECRETS, "prod-")];

pub(super) const SCENARIOS: [Scenario; 10] = [
    Scenario {
        name: "certs upload",
        prepare: with_shared_files,
        command: upload,
        complete: complete_upload,
        judge: can_be_downloaded,
        collections: UPLOAD,
        weight: 4,
        ..COMMON
    },
    Scenario {
        name: "certs download",
        prepare: joining,
        command: download,
        is_deterministic: true,
        collections: UPLOAD,
        weight: 4,
        ..COMMON
    },
    Scenario {
        name: "certs expire",
        prepare: with_upload,
        command: expire,
        is_deterministic: true,
        collections: UPLOAD,
        weight: 4,
        ..COMMON
    },
    Scenario {
        name: "capi secrets --apply",
        prepare: management,
        command: apply_secrets,
        judge: one_request_per_slot,
        collections: CLUSTER_SECRETS,
        ..COMMON
    },
    Scenario {
        name: "capi migrate to-external",
        prepare: with_keys_in_secrets,
        command: to_external,
        at_once: has_keys_in_secrets_or_backup,
        judge: has_keys_in_secrets_or_backup,
        collections: CLUSTER_SECRETS,
        weight: 1,
        ..COMMON
    },
    Scenario {
        name: "capi migrate to-internal",
        prepare: without_keys_in_secrets,
        command: to_internal,
        at_once: has_keys_in_secrets_or_backup,
        judge: has_keys_in_secrets_or_backup,
        is_deterministic: true,
        collections: CLUSTER_SECRETS,
        weight: 1,
        ..COMMON
    },
    Scenario {
        name: "capi check --write",
        prepare: with_cluster_object,
        command: write_conditions,
        is_deterministic: true,
        collections: &[collection(CONDITIONS, ""), collection(SECRETS, "prod-")],
        weight: 4,
        ..COMMON
    },
    Scenario {
        name: "capi sync",
        prepare: with_machine,
        command: sync,
        is_deterministic: true,
        collections: &[collection(MACHINES, ""), collection(SECRETS, "prod-")],
        weight: 4,
        ..COMMON
    },
    Scenario {
        name: "kubelets approve",
        prepare: with_kubelet_request,
        command: approve,
        complete: complete_decision,
        collections: &[collection(CSRS, "csr-")],
        weight: 4,
        ..COMMON
    },
    Scenario {
        name: "daemon, signer of kubelets",
        prepare: with_request_of_new_node,
        command: daemon,
        complete: complete_signature,
        judge: has_certificate_of_kubelet,
        is_daemon: true,
        is_done: || issued().is_some(),
        collections: &[collection(CSRS, "csr-")],
        ..COMMON
    },
];

/// Returns the server, with the definitions and the namespace of these scenarios.
fn cluster() -> &'static Kubernetes {
    static SHARED: OnceLock<&Kubernetes> = OnceLock::new();
    SHARED.get_or_init(|| {
        let cluster = kubernetes_with_cluster_api("crash");
        let admin = cluster.admin();
        let namespace =
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "crash"}});
        admin.create("/api/v1/namespaces", &namespace);
        let definition = Ran::of(&mut new_node().command(["capi", "check", "prod", "--crd"]));
        let text = definition.done().stdout.clone().into_bytes();
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let made = admin.send(Call::post(definitions).body("application/yaml", text));
        assert_eq!(made.0, 201, "{}", made.1);
        wait_until("the definitions are served", || {
            admin.get(CONDITIONS).0 == 200
        });
        cluster
    })
}

thread_local! {
    static ADMIN: Person = cluster().admin();
    /// A kubelet that joins: the API server writes the requester into a request.
    static KUBELET: Person = cluster().bearer(kubelet_token());
}

/// Returns the bootstrap token of kubelets.
fn kubelet_token() -> &'static str {
    static TOKEN: OnceLock<String> = OnceLock::new();
    TOKEN.get_or_init(|| {
        let group = "system:bootstrappers:kubeadm:default-node-token";
        cluster().new_bootstrap_token("crash0", "0123456789abcdef", group)
    })
}

/// Returns the right to use the server if the scenario has objects there.
pub(super) fn turn(collections: &[Collection]) -> Option<MutexGuard<'static, ()>> {
    /// Scenarios with objects share the server: one at a time.
    static OBJECTS: Mutex<()> = Mutex::new(());
    (!collections.is_empty()).then(|| OBJECTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Objects of collections, without the fields that the API server writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Objects(Vec<BTreeMap<String, Value>>);

/// Returns the object without the fields that the API server writes.
fn stripped(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
    ] {
        metadata.remove(field);
    }
    object
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

fn list(collection: &Collection) -> BTreeMap<String, Value> {
    let all = ADMIN.with(|admin| admin.list(collection.path));
    all.into_iter()
        .map(|object| (name_of(&object), stripped(object)))
        .filter(|(name, _)| name.starts_with(collection.prefix))
        .filter(|(name, _)| name != "bootstrap-token-crash0")
        .collect()
}

fn kind_of(path: &str) -> (&'static str, &'static str) {
    match path {
        SYSTEM_SECRETS | SECRETS => ("v1", "Secret"),
        SYSTEM_ROLES => ("rbac.authorization.k8s.io/v1", "Role"),
        SYSTEM_BINDINGS => ("rbac.authorization.k8s.io/v1", "RoleBinding"),
        MACHINES => ("cluster.x-k8s.io/v1beta2", "Machine"),
        CLUSTERS => ("cluster.x-k8s.io/v1beta2", "Cluster"),
        CONDITIONS => ("nodepki.io/v1alpha1", "ControlPlanePKI"),
        CSRS => ("certificates.k8s.io/v1", "CertificateSigningRequest"),
        other => panic!("{other}"),
    }
}

/// Creates an object with its status.
fn create(path: &str, object: &Value) {
    let (version, kind) = kind_of(path);
    let mut object = object.clone();
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    let made = match path {
        CSRS => KUBELET.with(|kubelet| kubelet.create(path, &object)),
        _ => ADMIN.with(|admin| admin.create(path, &object)),
    };
    if path == CSRS {
        return restore_decision(&object, made);
    }
    if object["status"].is_object() && object["status"] != made["status"] {
        let path = format!("{path}/{}/status", name_of(&object));
        object["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
        let (status, body) = ADMIN.with(|admin| admin.put(&path, &object));
        assert_eq!(status, 200, "{path}: {body}");
    }
}

/// Writes the conditions and the certificate of a request, each to the subresource that accepts it.
fn restore_decision(object: &Value, mut made: Value) {
    let path = format!("{CSRS}/{}", name_of(object));
    for (subresource, field) in [("approval", "conditions"), ("status", "certificate")] {
        let value = &object["status"][field];
        if value.is_null() {
            continue;
        }
        made["status"][field] = value.clone();
        let (status, body) = ADMIN.with(|admin| admin.put(&format!("{path}/{subresource}"), &made));
        assert_eq!(status, 200, "{path}: {body}");
        made = body;
    }
}

fn remove_all(collections: &[Collection]) {
    for collection in collections {
        for name in list(collection).keys() {
            ADMIN.with(|admin| admin.delete(&format!("{}/{name}", collection.path)));
        }
    }
}

impl Objects {
    /// Removes the objects of earlier scenarios.
    pub(super) fn clear(collections: &[Collection]) {
        if collections.is_empty() {
            return;
        }
        remove_all(collections);
    }

    pub(super) fn of(collections: &[Collection]) -> Self {
        Objects(collections.iter().map(list).collect())
    }

    /// Makes the server have these objects.
    pub(super) fn restore(&self, collections: &[Collection]) {
        for (collection, wanted) in collections.iter().zip(&self.0) {
            let present = list(collection);
            let keeps = |name: &String| wanted.get(name) == present.get(name);
            for name in present.keys().filter(|name| !keeps(name)) {
                ADMIN.with(|admin| admin.delete(&format!("{}/{name}", collection.path)));
            }
            for (name, object) in wanted {
                if !keeps(name) {
                    create(collection.path, object);
                }
            }
        }
    }

    /// Compares with the objects of an undisturbed run.
    ///
    /// # Errors
    /// The first object that is missing, superfluous or of another shape, and a pair that OpenSSL rejects.
    pub(super) fn judge(&self, found: &Objects, is_deterministic: bool) -> Result<(), String> {
        for (wanted, found) in self.0.iter().zip(&found.0) {
            let names = |objects: &BTreeMap<String, Value>| -> BTreeSet<String> {
                objects.keys().map(|name| without_token(name)).collect()
            };
            if names(wanted) != names(found) {
                return Err(format!(
                    "the API server has {:?}, after an undisturbed run {:?}",
                    found.keys(),
                    wanted.keys()
                ));
            }
            for (name, object) in found {
                let Some(wanted) = wanted.get(name) else {
                    continue;
                };
                if shape(object) != shape(wanted) {
                    return Err(format!(
                        "{name} has {:?}, after an undisturbed run {:?}",
                        shape(object),
                        shape(wanted)
                    ));
                }
                if is_deterministic && object["data"] != wanted["data"] {
                    return Err(format!("the data of {name} differs"));
                }
                judge_pair(object)?;
            }
        }
        Ok(())
    }
}

/// Returns the name of an object with the random part of a bootstrap token's Secret replaced.
fn without_token(name: &str) -> String {
    if name.starts_with("bootstrap-token-") {
        "bootstrap-token-*".to_owned()
    } else {
        name.to_owned()
    }
}

/// Returns the paths of all fields of an object.
fn shape(object: &Value) -> BTreeSet<String> {
    fn add(value: &Value, path: &str, shape: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    add(value, &format!("{path}.{name}"), shape);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    add(item, &format!("{path}.{index}"), shape);
                }
            }
            _ => {
                shape.insert(path.to_owned());
            }
        }
    }
    let mut found = BTreeSet::new();
    add(object, "", &mut found);
    found
}

/// Returns an error unless OpenSSL says that certificate and key of a Secret belong together.
fn judge_pair(secret: &Value) -> Result<(), String> {
    let decoded = |key: &str| {
        let text = secret["data"][key].as_str()?;
        BASE64.decode(text).ok()
    };
    match (decoded("tls.crt"), decoded("tls.key")) {
        (Some(certificate), Some(key)) if key.starts_with(b"-----BEGIN") => {
            judge::match_bytes(&name_of(secret), certificate, key)
        }
        _ => Ok(()),
    }
}

fn kubeconfig(node: &Node) {
    let text = cluster().kubeconfig_of("crash", &["system:masters"]);
    write_secret(node.outside("management.conf"), text);
}

fn with_kubeconfig(mut command: Command, node: &Node) -> Command {
    command
        .arg("--kubeconfig")
        .arg(node.outside("management.conf"));
    command
}

// certs

fn with_shared_files() -> Node {
    let node = new_node();
    Ran::of(&mut bootstrap_local(&node)).done();
    kubeconfig(&node);
    node
}

fn upload(node: &Node) -> Command {
    let mut command = node.command(["certs", "upload", "--without-ca-keys"]);
    command
        .arg("--kubeadm-config")
        .arg(node.outside("kubeadm.yaml"))
        .arg("--certificate-key-out")
        .arg(node.path(CERTIFICATE_KEY));
    with_kubeconfig(command, node)
}

/// Runs the command again. The key is written after the upload, and is never overwritten.
fn complete_upload(node: &Node) -> Result<(), String> {
    if has_certificate_key(node)? {
        repeats(upload(node), &[65])
    } else {
        repeats(upload(node), &[0])
    }
}

fn download(node: &Node) -> Command {
    let mut command = node.command(["certs", "download"]);
    command
        .arg("--kubeadm-config")
        .arg(node.outside("kubeadm.yaml"))
        .arg("--certificate-key-file")
        .arg(node.path(CERTIFICATE_KEY));
    with_kubeconfig(command, node)
}

/// Asserts that the key in the file decrypts the upload.
fn can_be_downloaded(node: &Node, _: &Reference) -> Result<(), String> {
    repeats(download(node), &[0])
}

fn with_upload() -> Node {
    let node = with_shared_files();
    Ran::of(&mut upload(&node)).done();
    node
}

/// Returns a node that has the certificate key of an upload and no certificate.
fn joining() -> Node {
    let node = with_upload();
    for file in ["ca.crt", "front-proxy-ca.crt", "sa.key", "sa.pub"] {
        node.remove(format!("/etc/kubernetes/pki/{file}"));
    }
    node
}

fn expire(node: &Node) -> Command {
    with_kubeconfig(node.command(["certs", "expire"]), node)
}

// capi

fn management() -> Node {
    furnished(new_node())
}

/// Returns the node with a kubeconfig of the server, and with the passphrase and directory for a backup.
fn furnished(node: Node) -> Node {
    kubeconfig(&node);
    write_secret(node.outside("passphrase"), format!("{PASSPHRASE}\n"));
    fs::create_dir_all(node.path(CA_KEYS).parent().unwrap()).unwrap();
    node
}

fn capi(node: &Node, words: &[&str]) -> Command {
    let mut command = node.command(["capi"]);
    command.args(words).args(["prod", "--namespace", "crash"]);
    with_kubeconfig(command, node)
}

fn apply_secrets(node: &Node) -> Command {
    let mut command = capi(node, &["secrets", "--apply"]);
    command
        .args(["--wait", "0s", "--clock-wait", "0s", "--config"])
        .arg(node.outside("config.yaml"))
        .arg("--ca-dir")
        .arg(node.ca())
        .args(["--endpoint", "api.example.com:6443"]);
    command
}

/// Returns a Secret of Cluster API with the CA and its key.
fn authority_secret(node: &Node, purpose: &str, authority: Authority) -> Value {
    let base = node.ca().join(authority.base_name());
    let read = |extension| BASE64.encode(fs::read(base.with_extension(extension)).unwrap());
    json!({
        "metadata": {
            "name": format!("prod-{purpose}"),
            "labels": {"cluster.x-k8s.io/cluster-name": "prod"},
            "annotations": {"team": "kept"},
        },
        "data": {"tls.crt": read("crt"), "tls.key": read("key")},
    })
}

fn with_keys_in_secrets() -> Node {
    // On a file system in memory, no backup is accepted.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let node = furnished(Node::below(directory, INIT));
    for (purpose, authority) in AUTHORITIES {
        create(SECRETS, &authority_secret(&node, purpose, authority));
    }
    Ran::of(&mut apply_secrets(&node)).done();
    node
}

fn migrate(node: &Node, direction: &str) -> Command {
    let mut command = capi(node, &["migrate", direction]);
    command
        .args(["--apply", "--backup"])
        .arg(node.path(CA_KEYS))
        .arg("--passphrase-file")
        .arg(node.outside("passphrase"));
    command
}

fn to_external(node: &Node) -> Command {
    let mut command = migrate(node, "to-external");
    command.arg("--config").arg(node.outside("config.yaml"));
    command
}

fn to_internal(node: &Node) -> Command {
    migrate(node, "to-internal")
}

fn without_keys_in_secrets() -> Node {
    let node = with_keys_in_secrets();
    Ran::of(&mut to_external(&node)).done();
    node
}

/// Asserts that each CA key is in its Secret or, according to OpenSSL, in the backup.
fn has_keys_in_secrets_or_backup(node: &Node, _: &Reference) -> Result<(), String> {
    let secrets = list(&CLUSTER_SECRETS[0]);
    for (purpose, authority) in AUTHORITIES {
        let secret = &secrets[&format!("prod-{purpose}")];
        let key = node.ca().join(authority.base_name()).with_extension("key");
        let wanted = fs::read(key).unwrap();
        if secret["data"]["tls.key"] == json!(BASE64.encode(&wanted)) {
            continue;
        }
        let backup = fs::read_to_string(node.path(CA_KEYS)).unwrap_or_default();
        judge::has_key_in_backup(&backup, authority, PASSPHRASE, &wanted)?;
    }
    Ok(())
}

fn create_cluster_object() {
    let object = json!({"metadata": {"name": "prod"}, "spec": {"controlPlaneRef": {
        "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "prod"}}});
    let (status, _) = ADMIN.with(|admin| admin.get(&format!("{CLUSTERS}/prod")));
    if status == 404 {
        create(CLUSTERS, &object);
    }
}

fn with_cluster_object() -> Node {
    let node = management();
    remove_all(CLUSTER_SECRETS);
    Ran::of(&mut apply_secrets(&node)).done();
    create_cluster_object();
    node
}

fn write_conditions(node: &Node) -> Command {
    capi(node, &["check", "--write"])
}

/// Returns a machine whose kube-apiserver is the server of these scenarios.
fn with_machine() -> Node {
    let node = management();
    create_cluster_object();
    remove_all(CLUSTER_SECRETS);
    let authority = fs::read(cluster().ca_file()).unwrap();
    let secret =
        json!({"metadata": {"name": "prod-ca"}, "data": {"tls.crt": BASE64.encode(authority)}});
    create(SECRETS, &secret);
    let reference =
        |group: &str, kind: &str| json!({"apiGroup": group, "kind": kind, "name": "prod"});
    let machine = json!({
        "metadata": {"name": "prod-1", "labels": {
            "cluster.x-k8s.io/cluster-name": "prod", "cluster.x-k8s.io/control-plane": ""}},
        "spec": {
            "clusterName": "prod",
            "bootstrap": {"dataSecretName": "prod-1"},
            "infrastructureRef": reference("infrastructure.cluster.x-k8s.io", "TestMachine"),
        },
        "status": {
            "nodeRef": {"name": "prod-1"},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        },
    });
    create(MACHINES, &machine);
    node
}

fn sync(node: &Node) -> Command {
    let mut command = capi(node, &["sync"]);
    command.arg("--api-port").arg(cluster().port().to_string());
    command
}

// kubelets

/// Creates the request of a kubelet with a bootstrap token for a name that a Node has, which an administrator decides.
fn with_kubelet_request() -> Node {
    let node = new_node();
    kubeconfig(&node);
    let object = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "w1"}});
    if ADMIN.with(|admin| admin.get(&format!("{NODES}/w1"))).0 == 404 {
        ADMIN.with(|admin| admin.create(NODES, &object));
    }
    request_of_kubelet("w1");
    node.settings(SIGNS_FOR_KUBELETS);
    node
}

const SIGNS_FOR_KUBELETS: &str =
    "kubelets: {sign: true, approveServing: true, approveClient: true, lifetime: 2h}\n";

/// Creates the request of a kubelet for its client certificate.
fn request_of_kubelet(name: &str) {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let profile = Profile {
        subject: Subject {
            common_name: format!("system:node:{name}"),
            organizations: vec!["system:nodes".to_owned()],
        },
        sans: Sans::default(),
        usages: vec![ExtendedUsage::ClientAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: Duration::from_secs(3600),
    };
    let csr = Csr::create(&profile, &key, UsageExtensions::Omitted).unwrap();
    let request = json!({
        "metadata": {"name": "csr-1"},
        "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "request": BASE64.encode(csr.to_pem()),
            "usages": ["digital signature", "client auth"],
            "expirationSeconds": 3600,
        },
    });
    create(CSRS, &request);
}

fn approve(node: &Node) -> Command {
    with_kubeconfig(node.configured(["kubelets", "approve", "csr-1"]), node)
}

/// Runs the command again, unless the request has its decision.
fn complete_decision(node: &Node) -> Result<(), String> {
    let decided = ADMIN.with(|admin| admin.get(&format!("{CSRS}/csr-1"))).1;
    if decided["status"]["conditions"].is_array() {
        Ok(())
    } else {
        repeats(approve(node), &[0])
    }
}

/// Returns a control-plane node of the server, with the rights to sign, and the request of a kubelet whose Node does not
/// exist: the rules approve it.
fn with_request_of_new_node() -> Node {
    let node = new_node();
    let address = format!("advertiseAddress: {NODE_ADDRESS}");
    let endpoint = format!("{address}, bindPort: {}", cluster().port());
    node.configure(&kubeadm().replace(&address, &endpoint));
    let authority = cluster().ca_file();
    for extension in ["crt", "key"] {
        let from = authority.with_extension(extension);
        fs::copy(from, node.ca().join("ca").with_extension(extension)).unwrap();
    }
    let certificate = fs::read(authority).unwrap();
    node.write("/etc/kubernetes/pki/ca.crt", certificate);
    node.settings(SIGNS_FOR_KUBELETS);
    grant(&node);
    let settings = fs::read_to_string(node.outside("config.yaml")).unwrap();
    let header = settings.lines().take(2).collect::<Vec<_>>().join("\n");
    node.write(
        "/etc/nodepki/config.yaml",
        format!("{header}\n{SIGNS_FOR_KUBELETS}"),
    );
    Ran::of(&mut bootstrap_local(&node)).done();
    request_of_kubelet("w2");
    node
}

/// Gives the signing nodes the rights that nodepki prints.
fn grant(node: &Node) {
    kubeconfig(node);
    let rights = Ran::of(&mut node.configured(["config", "signer-setup", "kubelets"]));
    let manifest = node.outside("rights.yaml");
    fs::write(&manifest, &rights.done().stdout).unwrap();
    let mut kubectl = Command::new(bin("kubectl"));
    kubectl.args(["apply", "-f"]).arg(manifest);
    kubectl.arg("--cache-dir").arg(node.outside("kubectl"));
    Ran::of(&mut with_kubeconfig(kubectl, node)).done();
    fs::remove_dir_all(node.outside("kubectl")).unwrap();
}

/// Network of a node, in which the API server has the node's address: a loopback address is refused in its place.
struct Network {
    keeper: Server,
    _relays: [Server; 2],
}

fn network() -> &'static Network {
    static SHARED: OnceLock<Network> = OnceLock::new();
    SHARED.get_or_init(|| {
        let dir = own_dir("crash-network");
        let address = format!("ip address add {NODE_ADDRESS}/32 dev lo");
        let keeper = keep(&dir, "network", &address);
        let socket = dir.join("relay");
        let port = cluster().port();
        let addresses = [
            format!("{NODE_ADDRESS}:{port}"),
            socket.display().to_string(),
            format!("127.0.0.1:{port}"),
        ];
        let [inside, between, outside] = addresses.each_ref().map(String::as_str);
        let relay = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/relay.py");
        let mut command = Command::new("python3");
        command.args([relay, between, outside]);
        let mut outer = Server::start(command, &dir.join("outer.log"));
        outer.wait_until(|| socket.exists());
        let process = keeper.id().to_string();
        let command = enter(&process, &["python3", relay, inside, between]);
        let mut inner = Server::start(command, &dir.join("inner.log"));
        let connection = format!(": </dev/tcp/{NODE_ADDRESS}/{port}");
        inner.wait_until(|| {
            let mut connect = enter(&process, &["bash", "-c", &connection]);
            connect.output().unwrap().status.success()
        });
        Network {
            keeper,
            _relays: [outer, inner],
        }
    })
}

fn daemon(node: &Node) -> Command {
    let daemon = daemon_local(node);
    let mut command = enter(&network().keeper.id().to_string(), &[]);
    command.arg(daemon.get_program()).args(daemon.get_args());
    for (name, value) in daemon.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Returns the certificate of the kubelet's request.
fn issued() -> Option<Vec<u8>> {
    let request = ADMIN.with(|admin| admin.get(&format!("{CSRS}/csr-1"))).1;
    let certificate = request["status"]["certificate"].as_str()?;
    Some(BASE64.decode(certificate).unwrap())
}

/// Runs the daemon again, as its service manager does.
fn complete_signature(node: &Node) -> Result<(), String> {
    let ran = first_step(node, daemon(node), || issued().is_some(), UNDISTURBED);
    if ran.code == Some(0) && issued().is_some() {
        Ok(())
    } else {
        Err(format!("{:?}:\n{}", ran.code, ran.said()))
    }
}

/// Asserts that OpenSSL accepts the certificate.
fn has_certificate_of_kubelet(_: &Node, _: &Reference) -> Result<(), String> {
    let certificate = issued().ok_or("the request has no certificate")?;
    let authority = fs::read(cluster().ca_file()).unwrap();
    judge::verify_client(&certificate, &authority)
}

#[test]
fn completes_after_sampled_kills_errors_and_power_cuts() {
    run_sample(selected(SCENARIOS.iter()));
}
