//! `nodepki certs` in a real cluster: it downloads what the real kubeadm has uploaded, and the reverse.
//!
//! A cluster has one Secret `kubeadm-certs`, so these tests share clusters of their own and run one after another.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::node::{Node, Ran, Snapshot};
use crate::servers::SharedServer;
use crate::servers::cluster::{
    AUTHORITY_KEYS, Authorities, Cluster, ClusterNode, ENDPOINT, INIT, TOKEN,
};
use crate::time::wait_until;

const PKI: &str = "/etc/kubernetes/pki";
const ADMIN: &str = "/etc/nodepki/admin.conf";
const KEY: &str = "/etc/nodepki/certificate-key";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const SHARED: &str = "/api/v1/namespaces/kube-system/secrets/kubeadm-certs";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system";
/// The files of a control-plane node with etcd.
const PUBLIC: [(&str, u32); 5] = [
    ("ca.crt", 0o644),
    ("front-proxy-ca.crt", 0o644),
    ("etcd/ca.crt", 0o644),
    ("sa.key", 0o600),
    ("sa.pub", 0o644),
];

fn turn(
    cluster: &'static SharedServer<Mutex<Cluster>>,
    authorities: Authorities,
) -> MutexGuard<'static, Cluster> {
    cluster
        .get(|| Mutex::new(Cluster::start(authorities)))
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn internal() -> MutexGuard<'static, Cluster> {
    static CLUSTER: SharedServer<Mutex<Cluster>> = SharedServer::new();
    turn(&CLUSTER, Authorities::Internal)
}

fn external() -> MutexGuard<'static, Cluster> {
    static CLUSTER: SharedServer<Mutex<Cluster>> = SharedServer::new();
    turn(&CLUSTER, Authorities::External)
}

/// Returns a node that has only the administrator's kubeconfig and the certificate key.
fn joining(cluster: &Cluster, name: &str, address: &str, key: &str) -> ClusterNode {
    let node = cluster.add_node(name, address);
    let admin = cluster.first().path("/etc/kubernetes/super-admin.conf");
    node.write_secret(ADMIN, &fs::read_to_string(admin).unwrap());
    node.write_secret(KEY, key);
    node
}

fn kubeadm_uploads(cluster: &Cluster, config: &str) -> String {
    let ran = cluster.first().kubeadm(
        &["init", "phase", "upload-certs", "--upload-certs"],
        Some(config),
    );
    ran.done();
    key_in(&ran)
}

/// Returns the line of 64 digits that kubeadm and nodepki print.
fn key_in(ran: &Ran) -> String {
    let mut keys = ran
        .stdout
        .lines()
        .filter(|line| line.len() == 64 && line.bytes().all(|b| b.is_ascii_hexdigit()));
    let key = keys
        .next()
        .unwrap_or_else(|| panic!("no key in:\n{}", ran.said()));
    key.to_owned()
}

fn download(node: &ClusterNode, more: &[&str]) -> Ran {
    let arguments = [
        "certs",
        "download",
        "--kubeconfig",
        ADMIN,
        "--certificate-key-file",
        KEY,
    ];
    node.nodepki(&[arguments.as_slice(), more].concat())
}

#[track_caller]
fn has_the_files_of(cluster: &Cluster, node: &ClusterNode, files: &[(&str, u32)]) {
    for (file, mode) in files {
        let path = format!("{PKI}/{file}");
        let there = node.path(&path);
        assert_eq!(
            fs::read(&there).unwrap_or_default(),
            fs::read(cluster.first().path(&path)).unwrap(),
            "{file}"
        );
        let found = fs::metadata(&there).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found, *mode, "{file}: {found:o}");
    }
}

fn everything() -> Vec<(&'static str, u32)> {
    let keys = AUTHORITY_KEYS.map(|key| (key, 0o600));
    [PUBLIC.as_slice(), &keys].concat()
}

#[track_caller]
fn has_no_authority_key(node: &ClusterNode) {
    for key in AUTHORITY_KEYS {
        assert!(!node.path(&format!("{PKI}/{key}")).exists(), "{key}");
    }
}

fn join_configuration(cluster: &Cluster, node: &ClusterNode, key: &str) -> String {
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {{bootstrapToken: {{token: {TOKEN}, apiServerEndpoint: '{ENDPOINT}', caCertHashes: ['{}']}}}}
nodeRegistration: {{name: {}, criSocket: 'unix:///run/containerd/containerd.sock'}}
controlPlane: {{localAPIEndpoint: {{advertiseAddress: {}}}, certificateKey: {key}}}
",
        cluster.ca_pin(),
        node.name(),
        node.address(),
    )
}

fn kubeadm_downloads(cluster: &Cluster, node: &ClusterNode, key: &str) -> Ran {
    node.kubeadm(
        &["join", "phase", "control-plane-prepare", "download-certs"],
        Some(&join_configuration(cluster, node, key)),
    )
}

#[test]
fn downloads_upload_of_kubeadm_without_ca_keys() {
    let cluster = internal();
    // kubeadm accepts nodepki's key.
    let key = key_in(&cluster.first().nodepki(&["certs", "key"]));
    let given = format!("certificateKey: {key}\nbootstrapTokens:");
    let config = INIT.replace("bootstrapTokens:", &given);
    assert_eq!(kubeadm_uploads(&cluster, &config), key);
    let node = joining(&cluster, "down1", "192.0.2.21", &key);
    let ran = download(&node, &[]);
    ran.done()
        .row_says("etcd-ca.crt", "written")
        .says("CA private keys, which were not written to this node: ca.key, front-proxy-ca.key, etcd-ca.key")
        .says_not(&key);
    has_the_files_of(&cluster, &node, &PUBLIC);
    has_no_authority_key(&node);

    let before = Snapshot::of(node.dir());
    let again = download(&node, &["-o", "json"]);
    again.done().says_not(&key);
    before.unchanged(&Snapshot::of(node.dir()));
    let report: Value = serde_json::from_str(&again.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), PUBLIC.len());
    assert!(rows.iter().all(|row| row["action"] == "kept"), "{report:#}");
    assert_eq!(report["written"], json!([]));

    download(&node, &["--with-ca-keys", "-vv"])
        .done()
        .row_says("ca.crt", "kept")
        .row_says("front-proxy-ca.key", "written")
        .says_not("were not written to this node")
        .says_not("PRIVATE KEY")
        .says_not(&key);
    has_the_files_of(&cluster, &node, &everything());
}

#[test]
fn downloads_with_join_configuration_alone() {
    let cluster = internal();
    let key = kubeadm_uploads(&cluster, INIT);
    let node = cluster.add_node("down2", "192.0.2.22");
    node.write("/etc/join.yaml", &join_configuration(&cluster, &node, &key));
    let ran = node.nodepki(&["certs", "download", "--kubeadm-config", "/etc/join.yaml"]);
    ran.done().row_says("sa.key", "written").says_not(&key);
    has_the_files_of(&cluster, &node, &PUBLIC);
    has_no_authority_key(&node);
}

#[test]
fn downloads_files_of_external_etcd_to_configured_paths() {
    let cluster = internal();
    let first = cluster.first();
    let source = first.path(PKI);
    let at = "/etc/etcd-client";
    for (from, to) in [
        ("etcd/ca.crt", "ca.crt"),
        ("apiserver-etcd-client.crt", "client.crt"),
        ("apiserver-etcd-client.key", "client.key"),
    ] {
        let text = fs::read_to_string(source.join(from)).unwrap();
        first.write(&format!("{at}/{to}"), &text);
    }
    let etcd = format!(
        "etcd: {{external: {{endpoints: ['https://192.0.2.11:2379'], caFile: {at}/ca.crt, certFile: {at}/client.crt, keyFile: {at}/client.key}}}}\n"
    );
    let config = format!("{INIT}{etcd}");
    let admin = cluster.admin();
    let path = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
    let (_, before) = admin.get(path);
    first
        .kubeadm(
            &["init", "phase", "upload-config", "kubeadm"],
            Some(&config),
        )
        .done();
    let restore = || {
        let (status, _) = admin.patch(path, &json!({"data": before["data"]}));
        assert_eq!(status, 200);
    };

    let key = kubeadm_uploads(&cluster, &config);
    let node = joining(&cluster, "down3", "192.0.2.23", &key);
    let ran = download(&node, &[]);
    // The real kubeadm does the same with nodepki's upload.
    let uploaded = first.nodepki(&["certs", "upload"]);
    let kubeadms = cluster.add_node("down4", "192.0.2.24");
    let by_kubeadm = kubeadm_downloads(&cluster, &kubeadms, &key_in(&uploaded));
    restore();

    ran.done().row_says("external-etcd.key", "written");
    uploaded.done().row_says("external-etcd-ca.crt", "uploaded");
    by_kubeadm.done();
    for (file, mode) in [
        ("ca.crt", 0o644),
        ("client.crt", 0o644),
        ("client.key", 0o600),
    ] {
        for node in [&node, &kubeadms] {
            let path = format!("{at}/{file}");
            assert_eq!(
                fs::read(node.path(&path)).unwrap(),
                fs::read(first.path(&path)).unwrap()
            );
            let found = fs::metadata(node.path(&path)).unwrap().permissions().mode() & 0o7777;
            assert_eq!(found, mode, "{file} on {}", node.name());
        }
    }
    assert!(!node.path(PKI).join("etcd/ca.crt").exists());
}

/// Returns the objects without what differs between two uploads: times, versions, values, and the token's name.
fn shape(object: &Value) -> Value {
    let mut object = object.clone();
    let metadata = object["metadata"].as_object_mut().unwrap();
    for key in [
        "creationTimestamp",
        "managedFields",
        "resourceVersion",
        "uid",
    ] {
        metadata.remove(key);
    }
    if let Some(owner) = metadata.get_mut("ownerReferences") {
        let name = owner[0]["name"].as_str().unwrap().to_owned();
        assert!(is_token_name(&name), "{name}");
        assert_eq!(owner[0]["uid"].as_str().unwrap().len(), 36);
        owner[0]["name"] = json!("");
        owner[0]["uid"] = json!("");
    }
    if metadata["name"].as_str().is_some_and(is_token_name) {
        metadata["name"] = json!("");
    }
    if let Some(data) = object.get_mut("data").and_then(Value::as_object_mut) {
        for value in data.values_mut() {
            *value = json!(decoded(value).len());
        }
    }
    object
}

fn is_token_name(name: &str) -> bool {
    name.strip_prefix("bootstrap-token-").is_some_and(|id| {
        id.len() == 6
            && id
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    })
}

fn decoded(value: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap()
}

/// Returns the Secret, its token, the Role and the RoleBinding.
fn objects(cluster: &Cluster) -> [Value; 4] {
    let admin = cluster.admin();
    let read = |path: &str| {
        let (status, object) = admin.get(path);
        assert_eq!(status, 200, "{path}: {object}");
        object
    };
    let secret = read(SHARED);
    let owner = secret["metadata"]["ownerReferences"][0]["name"].as_str();
    let token = read(&format!("{SECRETS}/{}", owner.unwrap()));
    let name = "kubeadm:kubeadm-certs";
    [
        secret,
        token,
        read(&format!("{RBAC}/roles/{name}")),
        read(&format!("{RBAC}/rolebindings/{name}")),
    ]
}

#[test]
fn uploads_for_real_kubeadm() {
    let cluster = internal();
    let first = cluster.first();
    kubeadm_uploads(&cluster, INIT);
    let theirs = objects(&cluster);
    let admin = cluster.admin();
    for path in [
        SHARED.to_owned(),
        format!("{RBAC}/roles/kubeadm:kubeadm-certs"),
        format!("{RBAC}/rolebindings/kubeadm:kubeadm-certs"),
    ] {
        assert_eq!(admin.delete(&path).0, 200, "{path}");
    }

    let ran = first.nodepki(&["certs", "upload"]);
    ran.done().row_says("etcd-ca.key", "uploaded");
    let key = key_in(&ran);
    let ours = objects(&cluster);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(shape(ours), shape(theirs));
    }
    let [_, token, ..] = &ours;
    assert_eq!(
        decoded(&token["data"]["description"]),
        decoded(&theirs[1]["data"]["description"])
    );
    let expires = String::from_utf8(decoded(&token["data"]["expiration"])).unwrap();
    let expires = OffsetDateTime::parse(&expires, &Rfc3339).unwrap();
    let left = expires - OffsetDateTime::now_utc();
    assert!((7140..=7200).contains(&left.whole_seconds()), "{left}");

    let node = cluster.add_node("up1", "192.0.2.31");
    kubeadm_downloads(&cluster, &node, &key).done();
    has_the_files_of(&cluster, &node, &everything());

    // A new upload has a new key and a new token; the old key is no longer valid.
    let again = first.nodepki(&[
        "certs",
        "upload",
        "--certificate-key-out",
        "/etc/nodepki/new-key",
        "-o",
        "json",
    ]);
    again.done();
    let written = fs::read_to_string(first.path("/etc/nodepki/new-key")).unwrap();
    let mode = fs::metadata(first.path("/etc/nodepki/new-key")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o7777, 0o600);
    again.says_not(written.trim());
    assert_ne!(written.trim(), key);
    let [secret, ..] = objects(&cluster);
    assert_ne!(
        secret["metadata"]["ownerReferences"],
        ours[0]["metadata"]["ownerReferences"]
    );
    assert_eq!(secret["metadata"]["uid"], ours[0]["metadata"]["uid"]);
    kubeadm_downloads(&cluster, &node, &key)
        .ended(1)
        .says("cipher: message authentication failed");
    kubeadm_downloads(&cluster, &node, written.trim()).done();

    // A given key is used and not printed.
    first.write_secret("/etc/nodepki/given", &key);
    let ran = first.nodepki(&[
        "-vv",
        "certs",
        "upload",
        "--certificate-key-file",
        "/etc/nodepki/given",
    ]);
    ran.done().says_not(&key).says_not("PRIVATE KEY");
    kubeadm_downloads(&cluster, &node, &key).done();
}

#[test]
fn uploads_secret_that_expires_with_its_token() {
    let cluster = internal();
    cluster.first().nodepki(&["certs", "upload"]).done();
    let [_, token, ..] = objects(&cluster);
    let path = format!("{SECRETS}/{}", token["metadata"]["name"].as_str().unwrap());
    let soon = OffsetDateTime::now_utc() + std::time::Duration::from_secs(1);
    let soon = soon
        .replace_nanosecond(0)
        .unwrap()
        .format(&Rfc3339)
        .unwrap();
    let admin = cluster.admin();
    let (status, _) = admin.patch(
        &path,
        &json!({"data": {"expiration": BASE64_STANDARD.encode(soon)}}),
    );
    assert_eq!(status, 200);
    wait_until("the token is removed", || admin.get(&path).0 == 404);
    wait_until("the upload is removed", || admin.get(SHARED).0 == 404);

    let node = joining(&cluster, "late", "192.0.2.32", &"0".repeat(64));
    let before = Snapshot::of(node.dir());
    download(&node, &[])
        .ended(69)
        .says(
            "the Secret kube-system/kubeadm-certs does not exist: no upload was made, or it has expired",
        )
        .says("kubeadm init phase upload-certs --upload-certs");
    before.unchanged(&Snapshot::of(node.dir()));
}

/// The expiration of the token that owns the uploaded Secret.
fn expiration(cluster: &Cluster) -> OffsetDateTime {
    let [_, token, ..] = objects(cluster);
    let text = String::from_utf8(decoded(&token["data"]["expiration"])).unwrap();
    OffsetDateTime::parse(&text, &Rfc3339).unwrap()
}

#[test]
fn limits_lifetime_of_upload() {
    let cluster = internal();
    let first = cluster.first();
    for (ttl, message) in [
        ("0s", "use a lifetime from 1s to 168h"),
        ("169h", "use a lifetime from 1s to 168h"),
        ("2", "unit"),
    ] {
        let ran = first.nodepki(&["certs", "upload", "--ttl", ttl]);
        ran.ended(64).says(message);
    }
    let before = OffsetDateTime::now_utc();
    first
        .nodepki(&["certs", "upload", "--ttl", "30h"])
        .done()
        .says("is removed by the cluster after ")
        .says("can be decrypted with the certificate key at any time");
    let lifetime = expiration(&cluster) - before;
    assert!(
        (lifetime.whole_seconds() - 30 * 60 * 60).abs() < 60,
        "{lifetime}"
    );
}

#[test]
fn uploads_with_key_of_init_configuration() {
    let cluster = internal();
    let key = "0123456789abcdef".repeat(4);
    let first = cluster.first();
    first.write_secret(
        "/etc/init.yaml",
        &format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\ncertificateKey: {key}\n"
        ),
    );
    let kubeadm_config = ["--kubeadm-config", "/etc/init.yaml"];
    let upload = ["certs", "upload"];
    first
        .nodepki(&[upload.as_slice(), &kubeadm_config].concat())
        .done()
        .says("encrypted with the certificate key of ")
        .says("init.yaml:3:17: certificateKey")
        .says_not(&key);
    let node = joining(&cluster, "preset", "192.0.2.41", &key);
    download(&node, &["--with-ca-keys"]).done();
    has_the_files_of(&cluster, &node, &everything());

    // The key of the command line and a new key have precedence.
    first.write_secret("/etc/other-key", &"f".repeat(64));
    let given = ["--certificate-key-file", "/etc/other-key"];
    first
        .nodepki(&[upload.as_slice(), &kubeadm_config, &given].concat())
        .done()
        .says_not("certificate key of ");
    let node = joining(&cluster, "given", "192.0.2.42", &"f".repeat(64));
    download(&node, &[]).done();
    let new = ["--certificate-key-out", "/etc/new-key"];
    first
        .nodepki(&[upload.as_slice(), &kubeadm_config, &new].concat())
        .done();
    let new = fs::read_to_string(first.path("/etc/new-key")).unwrap();
    assert_ne!(new.trim(), key);

    first.write_secret(
        "/etc/init.yaml",
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\ncertificateKey: abc\n",
    );
    first
        .nodepki(&["config", "check", "--kubeadm-config", "/etc/init.yaml"])
        .says("certificateKey: is not a certificate key (write the 64 hexadecimal digits")
        .says("nodepki certs key");
}

#[test]
fn removes_upload_on_request() {
    let cluster = internal();
    let (first, admin) = (cluster.first(), cluster.admin());
    first.nodepki(&["certs", "upload"]).done();
    let [_, token, ..] = objects(&cluster);
    let token = token["metadata"]["name"].as_str().unwrap().to_owned();
    first
        .nodepki(&["certs", "expire", "--if-expired"])
        .done()
        .says("the Secret kube-system/kubeadm-certs remains until ");
    let document = |arguments: &[&str]| -> Value {
        let ran = first.nodepki(&[&["certs", "expire", "-o", "json"], arguments].concat());
        serde_json::from_str(&ran.done().stdout).unwrap()
    };
    let remains = document(&["--if-expired"]);
    assert_eq!(remains["kind"], "CertsExpiry");
    assert_eq!(remains["state"], "remains");
    assert!(OffsetDateTime::parse(remains["until"].as_str().unwrap(), &Rfc3339).is_ok());
    assert_eq!(admin.get(SHARED).0, 200);

    first.nodepki(&["certs", "expire"]).done().says(&format!(
        "removed the Secret kube-system/kubeadm-certs and its token {token}"
    ));
    assert_eq!(admin.get(SHARED).0, 404);
    assert_eq!(admin.get(&format!("{SECRETS}/{token}")).0, 404);
    first
        .nodepki(&["certs", "expire"])
        .done()
        .says("the Secret kube-system/kubeadm-certs does not exist");
    assert_eq!(document(&[])["state"], "absent");

    first
        .nodepki(&["certs", "upload", "--ttl", "48h"])
        .done()
        .says("the Secret lives for 48h, longer than the token of `kubeadm token create` (24h)");
    let removed = document(&[]);
    assert_eq!(removed["state"], "removed");
    assert_eq!(removed["tokens"].as_array().unwrap().len(), 1);

    first.nodepki(&["certs", "upload"]).done();
    let [_, token, ..] = objects(&cluster);
    let token = token["metadata"]["name"].as_str().unwrap().to_owned();
    // Of a token with a time, kube-controller-manager would remove the Secret itself.
    let endless = json!({"data": {"expiration": null}});
    let (status, _) = admin.patch(&format!("{SECRETS}/{token}"), &endless);
    assert_eq!(status, 200);
    assert_eq!(document(&["--if-expired"])["state"], "removed");
    assert_eq!(admin.get(SHARED).0, 404);
}

#[test]
fn reports_upload_that_no_controller_removes() {
    const MANIFEST: &str = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
    let cluster = internal();
    let first = cluster.first();
    let manifest = |controllers: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: kube-controller-manager}}\nspec:\n  containers:\n  - command: [kube-controller-manager, '--controllers={controllers}']\n"
        )
    };
    let kept = fs::read(first.path(MANIFEST)).ok();
    first.write(MANIFEST, &manifest("*,bootstrapsigner"));
    first
        .nodepki(&["certs", "upload"])
        .done()
        .says("is not removed after ")
        .says("does not name tokencleaner; run `nodepki certs expire`");
    let found = first.nodepki(&["doctor"]);
    found.says("controller-manager-token-cleaner");
    first.write(MANIFEST, &manifest("*,bootstrapsigner,tokencleaner"));
    first
        .nodepki(&["certs", "upload"])
        .done()
        .says("is removed by the cluster after ");
    let found = first.nodepki(&["doctor"]);
    found.says_not("controller-manager-token-cleaner");
    match kept {
        Some(bytes) => fs::write(first.path(MANIFEST), bytes).unwrap(),
        None => fs::remove_file(first.path(MANIFEST)).unwrap(),
    }
}

#[test]
fn changes_nothing_for_faulty_upload() {
    let cluster = internal();
    let key = kubeadm_uploads(&cluster, INIT);
    let admin = cluster.admin();
    let (_, secret) = admin.get(SHARED);
    let node = joining(&cluster, "bad1", "192.0.2.33", &key);
    let before = Snapshot::of(node.dir());
    let value = |name: &str| decoded(&secret["data"][name]);
    let mut tampered = value("sa.key");
    *tampered.last_mut().unwrap() ^= 1;
    let truncated = value("sa.pub")[..20].to_vec();
    for (name, value, words) in [
        (
            "sa.key",
            Some(tampered),
            "has entries that cannot be decrypted: sa.key, while the same certificate key decrypts ca.crt,",
        ),
        (
            "sa.pub",
            Some(truncated),
            "sa.pub in the Secret kube-system/kubeadm-certs is truncated: it has 20 bytes",
        ),
        (
            "sa.key",
            Some(Vec::new()),
            "has no contents for sa.key, which the node that uploaded did not have",
        ),
        (
            "etcd-ca.crt",
            None,
            "has no etcd-ca.crt, which the node that uploaded did not have",
        ),
    ] {
        let change = value.map(|value| BASE64_STANDARD.encode(value));
        let (status, _) = admin.patch(SHARED, &json!({"data": {name: change}}));
        assert_eq!(status, 200, "{name}");
        let ran = download(&node, &[]);
        ran.ended(65)
            .says(words)
            .says("kubeadm init phase upload-certs --upload-certs")
            .says_not(&key);
        before.unchanged(&Snapshot::of(node.dir()));
        let (status, _) = admin.patch(SHARED, &json!({"data": {name: secret["data"][name]}}));
        assert_eq!(status, 200, "{name}");
    }

    // Entries that are not needed may be damaged.
    let change = json!({"data": {"ca.key": BASE64_STANDARD.encode("damaged")}});
    assert_eq!(admin.patch(SHARED, &change).0, 200);
    let other = "ab".repeat(32);
    node.write_secret(KEY, &other);
    let before = Snapshot::of(node.dir());
    download(&node, &[])
        .ended(65)
        .says("the certificate key does not decrypt any entry of the Secret kube-system/kubeadm-certs")
        .says_not(&other);
    before.unchanged(&Snapshot::of(node.dir()));
    node.write_secret(KEY, &key);
    download(&node, &[])
        .done()
        .says("that are not needed here: ca.key");
    download(&node, &["--with-ca-keys"])
        .ended(65)
        .says("ca.key in the Secret kube-system/kubeadm-certs is truncated");
    has_no_authority_key(&node);
}

#[test]
fn does_not_overwrite_files_of_another_cluster() {
    let cluster = internal();
    let key = kubeadm_uploads(&cluster, INIT);
    let node = joining(&cluster, "other", "192.0.2.34", &key);
    let pki = |file: &str| format!("{PKI}/{file}");
    let read = |file: &str| fs::read_to_string(cluster.first().path(&pki(file))).unwrap();
    // The same certificate in another encoding, one of another authority, and text that is not a certificate.
    node.write(
        &pki("ca.crt"),
        &format!("a comment\n{}\n\n", read("ca.crt")),
    );
    node.write(&pki("front-proxy-ca.crt"), &read("etcd/ca.crt"));
    node.write(&pki("sa.key"), &read("apiserver.key"));
    node.write(&pki("sa.pub"), "damaged");
    let before = Snapshot::of(node.dir());
    let ran = download(&node, &[]);
    ran.ended(65)
        .says("/etc/kubernetes/pki/front-proxy-ca.crt is not the front-proxy-ca.crt that the cluster shares: it contains certificate sha256:")
        .says("(CN=etcd-ca), the Secret kube-system/kubeadm-certs contains certificate sha256:")
        .says("/etc/kubernetes/pki/sa.key is not the sa.key that the cluster shares: it contains public key sha256:")
        .says("/etc/kubernetes/pki/sa.pub is not the sa.pub that the cluster shares: it contains neither a key nor a certificate")
        .says("run again with --replace")
        .says_not("pki/ca.crt")
        .says_not("etcd/ca.crt is");
    before.unchanged(&Snapshot::of(node.dir()));

    download(&node, &["--replace"])
        .done()
        .row_says("ca.crt", "kept")
        .row_says("sa.key", "replaced")
        .row_says("etcd-ca.crt", "written");
    let replaced: Vec<_> = PUBLIC
        .into_iter()
        .filter(|(file, _)| *file != "ca.crt")
        .collect();
    for (file, _) in &replaced {
        assert_eq!(
            fs::read_to_string(node.path(&pki(file))).unwrap(),
            read(file),
            "{file}"
        );
    }
    assert!(
        fs::read_to_string(node.path(&pki("ca.crt")))
            .unwrap()
            .starts_with("a comment")
    );
}

#[test]
fn sends_nothing_if_file_is_missing_or_wrong() {
    let cluster = internal();
    let first = cluster.first();
    let admin = cluster.admin();
    let names = || {
        let (_, list) = admin.get(SECRETS);
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|item| {
                (
                    item["metadata"]["name"].clone(),
                    item["metadata"]["resourceVersion"].clone(),
                )
            })
            .collect::<Vec<_>>()
    };
    let before = names();
    let aside = |file: &str| {
        let path = first.path(&format!("{PKI}/{file}"));
        (fs::read(&path).unwrap(), path)
    };
    let (key, key_path) = aside("sa.key");
    let (authority, authority_path) = aside("front-proxy-ca.crt");
    fs::remove_file(&key_path).unwrap();
    fs::write(&authority_path, "damaged").unwrap();
    let out = "/etc/nodepki/never-used";
    let ran = first.nodepki(&["certs", "upload", "--certificate-key-out", out]);
    fs::write(&key_path, key).unwrap();
    fs::write(&authority_path, authority).unwrap();
    ran.ended(65)
        .says("/etc/kubernetes/pki/sa.key is missing or empty, and every control-plane node needs it")
        .says("/etc/kubernetes/pki/front-proxy-ca.crt does not match its name: it does not contain a certificate");
    assert!(!first.path(out).exists());
    assert_eq!(names(), before);
    // The same with a credential without permission.
    first
        .nodepki(&[
            "certs",
            "upload",
            "--kubeconfig",
            "/etc/kubernetes/kubelet.conf",
        ])
        .ended(77)
        .says("creating the Secret kube-system/bootstrap-token-");
    assert_eq!(names(), before);
}

#[test]
fn stops_upload_at_first_failure() {
    let cluster = internal();
    let first = cluster.first();
    let admin = cluster.admin();
    let name = "secrets-only";
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}]);
    let group = "system:bootstrappers:kubeadm:default-node-token";
    for (plural, object) in [
        ("roles", json!({"metadata": {"name": name}, "rules": rules})),
        (
            "rolebindings",
            json!({
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
            }),
        ),
    ] {
        assert_eq!(admin.post(&format!("{RBAC}/{plural}"), &object).0, 201);
    }
    first.write_secret(
        "/etc/nodepki/secrets-only.conf",
        &format!(
            "apiVersion: v1
kind: Config
current-context: it
clusters: [{{name: it, cluster: {{server: 'https://{ENDPOINT}', certificate-authority: {PKI}/ca.crt}}}}]
users: [{{name: it, user: {{token: {TOKEN}}}}}]
contexts: [{{name: it, context: {{cluster: it, user: it}}}}]
"
        ),
    );
    let conf = "/etc/nodepki/secrets-only.conf";
    let out = "/etc/nodepki/of-no-use";
    let ran = first.nodepki(&[
        "certs",
        "upload",
        "--kubeconfig",
        conf,
        "--certificate-key-out",
        out,
    ]);
    for plural in ["roles", "rolebindings"] {
        assert_eq!(admin.delete(&format!("{RBAC}/{plural}/{name}")).0, 200);
    }
    ran.ended(77)
        .says("writing the Role kube-system/kubeadm:kubeadm-certs");
    assert!(!first.path(out).exists());
    wait_until("the upload is removed", || admin.get(SHARED).0 == 404);
}

#[test]
fn uploads_everything_else_without_ca_keys() {
    let cluster = external();
    let first = cluster.first();
    // kubeadm does not share them.
    first
        .kubeadm(
            &["init", "phase", "upload-certs", "--upload-certs"],
            Some(INIT),
        )
        .ended(1);
    let ran = first.nodepki(&["certs", "upload"]);
    ran.done()
        .row_says("ca.key", "left empty")
        .says("for files that do not exist: ca.key, etcd-ca.key, front-proxy-ca.key");
    let key = key_in(&ran);
    let [secret, ..] = objects(&cluster);
    let empty: Vec<_> = secret["data"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, value)| value.as_str() == Some(""))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(empty, ["ca.key", "etcd-ca.key", "front-proxy-ca.key"]);

    let node = joining(&cluster, "ext1", "192.0.2.21", &key);
    download(&node, &["--with-ca-keys"])
        .ended(65)
        .says("with external authorities, CA private keys are unavailable");
    download(&node, &[])
        .done()
        .says_not("were not written to this node");
    has_the_files_of(&cluster, &node, &PUBLIC);
    let kubeadms = cluster.add_node("ext2", "192.0.2.22");
    kubeadm_downloads(&cluster, &kubeadms, &key).done();
    has_the_files_of(&cluster, &kubeadms, &PUBLIC);
    has_no_authority_key(&kubeadms);
}

#[test]
fn excludes_ca_keys_on_request() {
    let cluster = internal();
    let ran = cluster
        .first()
        .nodepki(&["certs", "upload", "--without-ca-keys"]);
    ran.done()
        .row_says("ca.key", "left empty")
        .row_says("ca.crt", "uploaded");
    let node = cluster.add_node("up2", "192.0.2.35");
    kubeadm_downloads(&cluster, &node, &key_in(&ran)).done();
    has_the_files_of(&cluster, &node, &PUBLIC);
    has_no_authority_key(&node);
}

/// Invalid input is refused without a cluster.
#[test]
fn keeps_certificate_key_out_of_output() {
    let node = Node::new();
    let made = node.run(&["certs", "key"]);
    made.done();
    let key = key_in(&made);
    assert_eq!(made.stdout, format!("{key}\n"));
    assert_ne!(key, key_in(&node.run(&["certs", "key"])));

    node.run(&["certs", "key", "--out", "@/etc/nodepki/key"])
        .done()
        .says("certificate key written to ");
    assert_eq!(node.mode("/etc/nodepki/key"), 0o600);
    let written = node.read("/etc/nodepki/key");
    assert_eq!(written.trim().len(), 64);
    let before = node.snapshot();
    node.run(&["certs", "key", "--out", "@/etc/nodepki/key"])
        .ended(65)
        .says("exists, and its content may be in use")
        .says_not(written.trim());
    before.unchanged(&node.snapshot());

    node.write_secret("/etc/short", "abcdef");
    let before = node.snapshot();
    let with = |more: &[&str]| {
        let arguments = ["certs", "download", "--kubeconfig", "/etc/admin.conf"];
        node.run(&[arguments.as_slice(), more].concat())
    };
    // All users can read argv. The key is not repeated in the message.
    with(&["--certificate-key-file", &key])
        .ended(64)
        .says("takes the name of a file, and was given a certificate key")
        .says_not(&key);
    with(&["--certificate-key-file", "credential:a/b"])
        .ended(64)
        .says("is not the name of a credential");
    with(&["--certificate-key-file", "credential:key"])
        .ended(78)
        .says("systemd gave this run no credentials");
    with(&["--certificate-key-file", "@/etc/short"])
        .ended(78)
        .says("this one has 6 characters")
        .says_not("abcdef");
    with(&["--certificate-key-fd", "97"])
        .ended(78)
        .says("the certificate key in file descriptor 97:");
    node.run(&["certs", "upload", "-o", "json"])
        .ended(64)
        .says("--certificate-key-out FILE");
    before.unchanged(&node.snapshot());
}

#[test]
fn reads_certificate_key_from_descriptor_and_credential() {
    let cluster = internal();
    let key = kubeadm_uploads(&cluster, INIT);
    let node = joining(&cluster, "fd", "192.0.2.36", "not this one");
    let mut command = node.command(crate::node::NODEPKI);
    command
        .args(["--root", "/", "certs", "download", "--kubeconfig", ADMIN])
        .args(["--certificate-key-fd", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{key}").unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    ran.done().row_says("sa.key", "written").says_not(&key);
    has_the_files_of(&cluster, &node, &PUBLIC);

    node.write("/run/credentials/certificate-key", &key.to_uppercase());
    let mut command = node.command(crate::node::NODEPKI);
    command
        .args(["--root", "/", "certs", "download", "--kubeconfig", ADMIN])
        .args(["--certificate-key-file", "credential:certificate-key"])
        .env("CREDENTIALS_DIRECTORY", "/run/credentials");
    Ran::of(&mut command).done().row_says("sa.key", "kept");
}
