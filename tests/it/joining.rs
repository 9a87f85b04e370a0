//! `bootstrap` on a node that joins a real cluster: what it takes from the cluster, what it refuses and what it leaves
//! on the disk.
//!
//! `join_control_plane` starts the components on the result.

use std::fs;
use std::path::Path;

use nodepki::kube::kubeadm_certs::CertificateKey;
use serde_json::{Value, json};

use crate::kubeadm;
use crate::machine::openssl;
use crate::node::{Ran, SHARED_FILES, Snapshot};
use crate::servers::cluster::{
    AUTHORITY_KEYS, Authorities, Cluster, ClusterNode, ENDPOINT, INIT, TOKEN, cluster,
};

const JOIN_CONFIGURATION: &str = "/run/kubeadm/kubeadm-join-config.yaml";
const KUBEADM_CERTS: &str = "/api/v1/namespaces/kube-system/secrets/kubeadm-certs";

/// Returns a JoinConfiguration for a control-plane node; `more` are lines of its `controlPlane`.
fn join(cluster: &Cluster, node: &ClusterNode, more: &str) -> String {
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n\
         nodeRegistration: {{name: {}, criSocket: 'unix:///run/containerd/containerd.sock'}}\n\
         discovery:\n  bootstrapToken:\n    token: {TOKEN}\n    apiServerEndpoint: {ENDPOINT}\n    caCertHashes: ['{}']\n\
         controlPlane:\n  localAPIEndpoint: {{advertiseAddress: {}}}\n{more}",
        node.name(),
        cluster.ca_pin(),
        node.address()
    )
}

/// Uploads the certificates of the shared cluster with the real kubeadm, and returns the certificate key.
fn upload_with_new_key(cluster: &Cluster) -> String {
    let key = CertificateKey::generate().unwrap().to_hex();
    upload(cluster, &key);
    key.to_string()
}

fn upload(cluster: &Cluster, key: &str) {
    let config = INIT.replacen(
        "kind: InitConfiguration\n",
        &format!("kind: InitConfiguration\ncertificateKey: '{key}'\n"),
        1,
    );
    let phase = ["init", "phase", "upload-certs", "--upload-certs"];
    cluster.first().kubeadm(&phase, Some(&config)).done();
}

/// Returns the certificate key of all tests of the shared cluster: each upload invalidates the previous key.
fn shared_key() -> &'static str {
    static KEY: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    KEY.get_or_init(|| upload_with_new_key(cluster()))
}

fn with_key(key: &str) -> String {
    format!("  certificateKey: '{key}'\n")
}

/// Writes a JoinConfiguration with the certificate key of the shared cluster.
fn write_configuration(cluster: &Cluster, node: &ClusterNode) {
    let config = join(cluster, node, &with_key(shared_key()));
    node.write(JOIN_CONFIGURATION, &config);
}

/// Returns the files of a node below /etc and in the state directory.
fn snapshot(node: &ClusterNode) -> (Snapshot, Snapshot) {
    (
        Snapshot::of(&node.path("/etc")),
        Snapshot::of(&node.path("/var")),
    )
}

/// Asserts that no file of the node contains a CA key of the cluster.
fn assert_no_ca_key(cluster: &Cluster, node: &ClusterNode) {
    let keys: Vec<String> = AUTHORITY_KEYS
        .iter()
        .map(|key| {
            let pem = cluster.first().path("/etc/kubernetes/pki").join(key);
            let pem = fs::read_to_string(pem).unwrap();
            pem.lines().nth(1).unwrap().to_owned()
        })
        .collect();
    let mut seen = 0;
    each_file(node.dir(), &mut |path, bytes| {
        seen += 1;
        let text = String::from_utf8_lossy(bytes);
        for key in &keys {
            assert!(!text.contains(key), "{} contains a CA key", path.display());
        }
    });
    assert!(seen > 20, "only {seen} files were read");
}

fn each_file(dir: &Path, look: &mut dyn FnMut(&Path, &[u8])) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            each_file(&path, look);
        } else if path.is_file() {
            look(&path, &fs::read(&path).unwrap());
        }
    }
}

fn bootstrap(node: &ClusterNode) -> Ran {
    node.nodepki(&["bootstrap"])
}

#[test]
fn takes_everything_from_the_cluster_and_keeps_ca_keys_in_memory() {
    let cluster = cluster();
    let node = cluster.add_node("cp21", "192.0.2.21");
    let config = join(cluster, &node, &with_key(shared_key()));
    node.write(JOIN_CONFIGURATION, &config);
    let before = snapshot(&node);
    let planned = node.nodepki(&["plan"]);
    planned.done();
    assert_eq!(snapshot(&node), before, "plan changed a file");

    let ran = bootstrap(&node);
    ran.done()
        .row_says("apiserver", "issued")
        .row_says("kubelet.conf", "issued")
        .row_says("sa", "written")
        .says("sign in the memory of this run")
        .says("--ignore-preflight-errors=FileAvailable--etc-kubernetes-kubelet.conf")
        .says_not(shared_key())
        .says_not(TOKEN);
    assert_no_ca_key(cluster, &node);
    let first = cluster.first();
    for file in SHARED_FILES {
        let path = format!("/etc/kubernetes/pki/{file}");
        assert_eq!(
            fs::read_to_string(node.path(&path)).unwrap(),
            fs::read_to_string(first.path(&path)).unwrap(),
            "{file}"
        );
    }
    for (leaf, ca) in [
        ("apiserver", "ca"),
        ("front-proxy-client", "front-proxy-ca"),
        ("etcd/peer", "etcd/ca"),
    ] {
        let path = |name: &str| node.path(&format!("/etc/kubernetes/pki/{name}.crt"));
        openssl(&[
            "verify",
            "-CAfile",
            path(ca).to_str().unwrap(),
            path(leaf).to_str().unwrap(),
        ]);
    }

    // Nothing is missing, so the cluster is not asked: its token may have expired.
    let done = snapshot(&node);
    node.write(
        JOIN_CONFIGURATION,
        &config.replace(ENDPOINT, "192.0.2.254:6443"),
    );
    bootstrap(&node).done().row_says("apiserver", "kept");
    node.write(JOIN_CONFIGURATION, &config);
    assert_eq!(snapshot(&node).0, done.0);

    // kubeadm has run, so it is no longer the next command.
    node.write(
        "/var/lib/kubelet/config.yaml",
        "kind: KubeletConfiguration\n",
    );
    bootstrap(&node)
        .done()
        .row_says("apiserver", "kept")
        .says_not("kubeadm join");
}

#[test]
fn leaves_files_with_which_kubeadm_join_proceeds() {
    let cluster = cluster();
    let node = cluster.add_node("cp22", "192.0.2.22");
    write_configuration(cluster, &node);
    bootstrap(&node).done();
    let handover = node.path("/var/lib/nodepki/kubeadm-join.yaml");
    let text = fs::read_to_string(&handover).unwrap();
    assert!(!text.contains("certificateKey"), "{text}");
    assert!(
        text.contains("FileAvailable--etc-kubernetes-kubelet.conf"),
        "{text}"
    );
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&handover).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    let before = Snapshot::of(&node.path("/etc/kubernetes"));
    for phase in ["download-certs", "certs", "kubeconfig"] {
        let arguments = ["join", "phase", "control-plane-prepare", phase];
        node.kubeadm(&arguments, Some(&text)).done();
    }
    assert_eq!(Snapshot::of(&node.path("/etc/kubernetes")), before);
    // With the certificate key in it, kubeadm would download them itself.
    assert_no_ca_key(cluster, &node);

    let copy = tempfile::tempdir().unwrap();
    kubeadm::copy_tree(&node.path("/etc/kubernetes"), copy.path());
    let checks = node.kubeadm(&["join", "phase", "preflight"], Some(&text));
    checks.says("[WARNING FileAvailable--etc-kubernetes-kubelet.conf]");
    let unprepared = node.kubeadm(
        &["join", "phase", "preflight"],
        Some(&join(cluster, &node, "")),
    );
    unprepared.says("[ERROR FileAvailable--etc-kubernetes-kubelet.conf]");
}

#[test]
fn writes_ca_keys_where_the_settings_require_them() {
    let cluster = cluster();
    let node = cluster.add_node("cp23", "192.0.2.23");
    node.write(JOIN_CONFIGURATION, &join(cluster, &node, ""));
    node.write_secret(
        "/etc/nodepki/certificate-key",
        &format!("{}\n", shared_key()),
    );
    node.write(
        "/etc/nodepki/config.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         join: {certificateKey: /etc/nodepki/certificate-key, writeCAKeys: true}\n",
    );
    let settings = fs::read_to_string(node.path("/etc/nodepki/config.yaml")).unwrap();
    let keyless = settings.replace("certificateKey: /etc/nodepki/certificate-key, ", "");
    node.write("/etc/nodepki/config.yaml", &keyless);
    bootstrap(&node)
        .ended(78)
        .says("join.writeCAKeys requires CA private keys");
    node.write("/etc/nodepki/config.yaml", &settings);
    bootstrap(&node).done();
    for key in AUTHORITY_KEYS {
        let path = format!("/etc/kubernetes/pki/{key}");
        let found = node.path(&path);
        assert_eq!(
            fs::read(&found).unwrap(),
            fs::read(cluster.first().path(&path)).unwrap()
        );
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&found).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
    // After joining, the certificate key is not needed.
    fs::remove_file(node.path("/etc/nodepki/certificate-key")).unwrap();
    bootstrap(&node).done().row_says("apiserver", "kept");
}

#[test]
fn prefers_external_signer_to_ca_keys_of_the_cluster() {
    let cluster = cluster();
    let node = cluster.add_node("cp24", "192.0.2.24");
    write_configuration(cluster, &node);
    // A CA of another cluster: the refusal of its certificates shows that it was asked.
    let others = crate::machine::Authorities::new("ECDSA-P256");
    let ran = node.nodepki(&["bootstrap", "--signer", &others.signer()]);
    ran.ended(65).says("signs with another");
    assert!(!node.path("/etc/kubernetes/pki").exists());
}

#[test]
fn merges_given_file_into_the_configuration_of_the_cluster() {
    let cluster = cluster();
    let node = cluster.add_node("cp25", "192.0.2.25");
    let config = join(cluster, &node, &with_key(shared_key()));
    node.write(
        JOIN_CONFIGURATION,
        &format!("{config}---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\napiServer: {{certSANs: [only.here.example]}}\n"),
    );
    // The file alone is not a complete ClusterConfiguration.
    bootstrap(&node).ended(78).says("controlPlaneEndpoint");
    node.write(
        "/etc/nodepki/config.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nkubeadm: {fromCluster: merge}\n",
    );
    bootstrap(&node).done();
    let certificate = node.path("/etc/kubernetes/pki/apiserver.crt");
    let text = openssl(&[
        "x509",
        "-noout",
        "-text",
        "-in",
        certificate.to_str().unwrap(),
    ]);
    assert!(text.contains("DNS:only.here.example"), "{text}");
    assert!(text.contains("DNS:api.prod.example.com"), "{text}");
    assert!(
        !text.contains("192.0.2.100"),
        "a list replaces the cluster's: {text}"
    );
}

#[test]
fn names_what_is_missing_without_the_certificate_key() {
    let cluster = cluster();
    let node = cluster.add_node("cp26", "192.0.2.26");
    node.write(JOIN_CONFIGURATION, &join(cluster, &node, ""));
    let before = snapshot(&node);
    bootstrap(&node)
        .ended(65)
        .says("/etc/kubernetes/pki/sa.key is absent and this node belongs to a cluster")
        .says("join.certificateKey");
    assert_eq!(snapshot(&node).0, before.0);
    // `config check` does not use the network.
    node.write(
        JOIN_CONFIGURATION,
        &join(cluster, &node, "").replace(ENDPOINT, "192.0.2.254:6443"),
    );
    node.nodepki(&["config", "check"])
        .done()
        .says("from the cluster");
}

#[test]
fn refuses_and_keeps_files_that_differ_from_the_cluster() {
    let cluster = cluster();
    let node = cluster.add_node("cp27", "192.0.2.27");
    write_configuration(cluster, &node);
    let others = crate::machine::Authorities::new("ECDSA-P256");
    let foreign = fs::read_to_string(others.dir().join("etcd/ca.crt")).unwrap();
    node.write("/etc/kubernetes/pki/etcd/ca.crt", &foreign);
    let before = snapshot(&node);
    bootstrap(&node)
        .ended(65)
        .says("/etc/kubernetes/pki/etcd/ca.crt is not the etcd-ca of the cluster");
    assert_eq!(snapshot(&node).0, before.0);
    fs::remove_file(node.path("/etc/kubernetes/pki/etcd/ca.crt")).unwrap();

    // Discovery alone reveals this difference, without a certificate key.
    let foreign = fs::read_to_string(others.dir().join("ca.crt")).unwrap();
    node.write("/etc/kubernetes/pki/ca.crt", &foreign);
    node.write(JOIN_CONFIGURATION, &join(cluster, &node, ""));
    let before = snapshot(&node);
    bootstrap(&node)
        .ended(65)
        .says("/etc/kubernetes/pki/ca.crt is not the ca of the cluster");
    assert_eq!(snapshot(&node).0, before.0);
    fs::remove_file(node.path("/etc/kubernetes/pki/ca.crt")).unwrap();
    write_configuration(cluster, &node);

    let own = fs::read_to_string(others.dir().join("ca.key")).unwrap();
    node.write("/etc/kubernetes/pki/sa.key", &own);
    let before = snapshot(&node);
    bootstrap(&node).ended(65).says("sa.key");
    assert_eq!(snapshot(&node).0, before.0);
}

#[test]
fn refuses_service_account_key_that_the_cluster_does_not_publish() {
    let cluster = cluster();
    let node = cluster.add_node("cp28", "192.0.2.28");
    let first = cluster.first();
    // The key was copied by hand from another cluster.
    for file in ["ca.crt", "front-proxy-ca.crt", "etcd/ca.crt"] {
        let path = format!("/etc/kubernetes/pki/{file}");
        node.write(&path, &fs::read_to_string(first.path(&path)).unwrap());
    }
    let others = crate::machine::Authorities::new("ECDSA-P256");
    let foreign = fs::read_to_string(others.dir().join("ca.key")).unwrap();
    node.write("/etc/kubernetes/pki/sa.key", &foreign);
    node.write(JOIN_CONFIGURATION, &join(cluster, &node, ""));
    let authorities = first.path("/etc/kubernetes/pki");
    let signer = format!("local:{}", authorities.display());
    node.nodepki(&["bootstrap", "--signer", &signer])
        .ended(65)
        .says("not among those that the cluster publishes");
}

#[test]
fn changes_nothing_on_damaged_secrets() {
    // The test damages the Secret, so it needs its own cluster.
    let cluster = Cluster::start(Authorities::Internal);
    let key = upload_with_new_key(&cluster);
    let admin = cluster.admin();
    let (_, whole) = admin.get(KUBEADM_CERTS);
    let node = cluster.add_node("cp2", "192.0.2.12");
    let refused = |config: &str, words: &[&str]| {
        node.write(JOIN_CONFIGURATION, config);
        let before = snapshot(&node);
        let ran = bootstrap(&node);
        ran.ended(65).says_not(&key);
        for words in words {
            ran.says(words);
        }
        assert_eq!(snapshot(&node).0, before.0, "{words:?}");
        assert!(!node.path("/etc/kubernetes/pki").exists());
    };
    let config = join(&cluster, &node, &with_key(&key));
    let other = CertificateKey::generate().unwrap().to_hex();
    let upload = "kubeadm init phase upload-certs --upload-certs";
    refused(
        &join(&cluster, &node, &with_key(&other)),
        &["does not decrypt any entry", upload],
    );
    let put = |change: &dyn Fn(&mut Value)| {
        let mut secret = whole.clone();
        secret["metadata"]
            .as_object_mut()
            .unwrap()
            .retain(|name, _| ["name", "namespace"].contains(&name.as_str()));
        change(&mut secret["data"]);
        let (status, answer) = admin.put(KUBEADM_CERTS, &secret);
        assert_eq!(status, 200, "{answer}");
    };
    put(&|data| {
        let text = data["sa.key"].as_str().unwrap().to_owned();
        let at = text.len() / 2;
        let other = if text.as_bytes()[at] == b'A' {
            "B"
        } else {
            "A"
        };
        data["sa.key"] = json!(format!("{}{other}{}", &text[..at], &text[at + 1..]));
    });
    refused(&config, &["sa.key", upload]);
    put(&|data| data["ca.crt"] = json!("AAAA"));
    refused(&config, &["ca.crt", upload]);
    // Every entry decrypts and none is damaged; only discovery reveals the difference.
    put(&|data| {
        for end in ["crt", "key"] {
            data[format!("ca.{end}")] = data[format!("etcd-ca.{end}")].clone();
        }
    });
    refused(
        &config,
        &["ca.crt in the Secret kube-system/kubeadm-certs is not the CA of the cluster"],
    );
    put(&|data| data["sa.pub"] = json!(""));
    refused(&config, &["sa.pub", upload]);
    put(&|data| {
        data.as_object_mut().unwrap().remove("front-proxy-ca.crt");
    });
    refused(&config, &["front-proxy-ca.crt", upload]);
    // A damaged entry that this node does not need is ignored.
    put(&|data| data["something-else"] = json!("AAAA"));
    bootstrap(&node).done();
    assert_eq!(admin.delete(KUBEADM_CERTS).0, 200);
    let late = cluster.add_node("cp3", "192.0.2.13");
    late.write(JOIN_CONFIGURATION, &join(&cluster, &late, &with_key(&key)));
    bootstrap(&late).says("expired").says(upload);
    assert!(!late.path("/etc/kubernetes/pki").exists());
}

#[test]
fn discards_configuration_of_another_cluster_after_reset() {
    let cluster = cluster();
    let node = cluster.add_node("cp29", "192.0.2.29");
    write_configuration(cluster, &node);
    let kept = "/var/lib/nodepki/cluster-configuration.yaml";
    node.write(
        kept,
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
         controlPlaneEndpoint: another.example.com:6443\n",
    );
    bootstrap(&node).done();
    let admin = fs::read_to_string(node.path("/etc/kubernetes/admin.conf")).unwrap();
    assert!(admin.contains(ENDPOINT), "{admin}");
    let now = fs::read_to_string(node.path(kept)).unwrap();
    assert!(now.contains(ENDPOINT), "{now}");
}

#[test]
fn joins_worker_without_shared_control_plane_files() {
    let cluster = cluster();
    let node = cluster.add_node("w31", "192.0.2.31");
    let config = join(cluster, &node, "");
    let (worker, _) = config.split_once("controlPlane:").unwrap();
    node.write(JOIN_CONFIGURATION, worker);
    // The CA certificate as every node has it; some nodes have the key too.
    node.write(
        "/etc/nodepki/config.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         join: {certificateKey: /etc/nodepki/certificate-key}\n",
    );
    let authorities = cluster.first().path("/etc/kubernetes/pki");
    let signer = format!("local:{}", authorities.display());
    node.nodepki(&["bootstrap", "--signer", &signer])
        .done()
        .row_says("kubelet.conf", "issued");
    // A CA key of the cluster is not a signer on a worker.
    node.write_secret("/etc/nodepki/certificate-key", shared_key());
    fs::remove_file(node.path("/etc/kubernetes/kubelet.conf")).unwrap();
    bootstrap(&node).ended(78).says("has no signer");
}

/// Returns a JoinConfiguration with `endpoint` for discovery, and the signer's option.
fn worker(cluster: &Cluster, node: &ClusterNode, endpoint: &str) -> (String, String) {
    let config = join(cluster, node, "").replace(ENDPOINT, endpoint);
    let (worker, _) = config.split_once("controlPlane:").unwrap();
    let authorities = cluster.first().path("/etc/kubernetes/pki");
    (
        worker.to_owned(),
        format!("local:{}", authorities.display()),
    )
}

#[test]
fn worker_learns_name_and_key_algorithm_of_its_cluster() {
    const RECORDED_CONFIGURATION: &str = "/var/lib/nodepki/cluster-configuration.yaml";
    let init = INIT.replace(
        "encryptionAlgorithm:",
        "clusterName: prod\nencryptionAlgorithm:",
    );
    let cluster = &Cluster::made_of(&init, Authorities::Internal);
    let node = cluster.add_node("w33", "192.0.2.33");
    let (config, signer) = worker(cluster, &node, ENDPOINT);
    node.write(JOIN_CONFIGURATION, &config);
    let run = |arguments: &[&str]| node.nodepki(&[arguments, &["--signer", &signer]].concat());
    let key = || {
        let planned = run(&["plan", "-o", "json"]);
        planned.done();
        let report: Value = serde_json::from_str(&planned.stdout).unwrap();
        let mut rows = report["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["name"] == "kubelet.conf").unwrap();
        row["key"].as_str().unwrap().to_owned()
    };
    let named = || {
        let ran = run(&["-o", "json", "authority", "status", "ca"]);
        ran.done();
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        report["cluster"].clone()
    };

    run(&["bootstrap"])
        .done()
        .row_says("kubelet.conf", "issued")
        .row_says("cluster-configuration.yaml", "written")
        .says_not("is not known");
    assert_eq!(key(), "ECDSA-P256");
    assert_eq!(named(), "prod");
    let kept = fs::read_to_string(node.path(RECORDED_CONFIGURATION)).unwrap();
    assert!(kept.contains("clusterName: prod"), "{kept}");
    assert!(
        !kept.contains("apiServer") && !kept.contains("etcd"),
        "{kept}"
    );

    // Token and file were removed: the recorded values are used, and the cluster is not asked.
    fs::remove_file(node.path(JOIN_CONFIGURATION)).unwrap();
    let conf = node.path("/etc/kubernetes/kubelet.conf");
    let text = fs::read_to_string(&conf).unwrap();
    let away = text.replace(ENDPOINT, "192.0.2.250:1");
    fs::write(&conf, &away).unwrap();
    assert_eq!((key().as_str(), named()), ("ECDSA-P256", json!("prod")));

    // A worker of an earlier version has no recorded values: without its cluster it warns and proceeds.
    fs::remove_file(node.path(RECORDED_CONFIGURATION)).unwrap();
    run(&["authority", "status", "ca"])
        .done()
        .says("the ClusterConfiguration is not known")
        .says("kube-system/kubeadm-config");
    assert_eq!(named(), Value::Null);
    // With the cluster, the node's own identity may read the ConfigMap (kubeadm:nodes-kubeadm-config).
    fs::write(&conf, &text).unwrap();
    assert_eq!(named(), "prod");
    run(&["renew", "--clock-wait", "0s"]).done();
    assert!(
        fs::read_to_string(node.path(RECORDED_CONFIGURATION))
            .unwrap()
            .contains("clusterName: prod")
    );

    // The same with a JoinConfiguration whose token leads to no cluster.
    fs::remove_file(node.path(RECORDED_CONFIGURATION)).unwrap();
    let (config, _) = worker(cluster, &node, "192.0.2.250:1");
    node.write(JOIN_CONFIGURATION, &config);
    run(&["bootstrap", "--wait", "1s"])
        .done()
        .row_says("cluster-configuration.yaml", "written");
}

#[test]
fn worker_joins_without_the_right_to_read_the_cluster_configuration() {
    let cluster = cluster();
    let node = cluster.add_node("w34", "192.0.2.34");
    let (config, signer) = worker(cluster, &node, "192.0.2.250:1");
    node.write(JOIN_CONFIGURATION, &config);
    fs::create_dir_all(node.path("/etc/kubernetes/pki")).unwrap();
    fs::copy(cluster.first().pki("ca.crt"), node.pki("ca.crt")).unwrap();
    node.nodepki(&["bootstrap", "--wait", "1s", "--signer", &signer])
        .done()
        .row_says("kubelet.conf", "issued")
        .says("this worker assumes clusterName kubernetes and encryptionAlgorithm RSA-2048");
    assert!(
        !node
            .path("/var/lib/nodepki/cluster-configuration.yaml")
            .exists()
    );
    // Settings that forbid it prevent the request.
    node.write(
        "/etc/nodepki/config.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nkubeadm: {fromCluster: never}\n",
    );
    node.nodepki(&["bootstrap", "--signer", &signer])
        .done()
        .says_not("is not known");
}

#[test]
fn prints_no_secret_in_messages_and_reports() {
    let cluster = cluster();
    let node = cluster.add_node("cp32", "192.0.2.32");
    write_configuration(cluster, &node);
    let service_account = fs::read_to_string(cluster.first().pki("sa.key")).unwrap();
    let secret = service_account.lines().nth(1).unwrap();
    for arguments in [
        ["-vv", "-o", "json", "plan"],
        ["-vv", "-o", "json", "bootstrap"],
    ] {
        node.nodepki(&arguments)
            .done()
            .says("cluster-info")
            .says_not(shared_key())
            .says_not(TOKEN.split_once('.').unwrap().1)
            .says_not("PRIVATE KEY")
            .says_not(secret);
    }
}

/// Settings with a signer that is not running.
const UNREACHABLE_SIGNER: &str = "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
authorities: {ca: {signer: away}, etcd-ca: {signer: away}, front-proxy-ca: {signer: away}}
signers: {away: {cfssl: {url: 'https://127.0.0.1:9', profile: kubernetes, tls: {caFile: /etc/nodepki/ca.crt}}}}
";

#[test]
fn keeps_downloaded_files_while_the_signer_is_unreachable() {
    let cluster = Cluster::start(Authorities::Internal);
    let first = cluster.first();
    // During a change of service-account keys: tokens of both are valid.
    let others = crate::machine::Authorities::new("ECDSA-P256");
    let next = openssl(&[
        "pkey",
        "-in",
        others.dir().join("ca.key").to_str().unwrap(),
        "-pubout",
    ]);
    let current = fs::read_to_string(first.pki("sa.pub")).unwrap();
    let both = format!("{next}{current}");
    first.write("/etc/kubernetes/pki/sa.pub", &both);
    let key = upload_with_new_key(&cluster);

    let node = cluster.add_node("cp2", "192.0.2.12");
    node.write(JOIN_CONFIGURATION, &join(&cluster, &node, &with_key(&key)));
    node.write("/etc/nodepki/config.yaml", UNREACHABLE_SIGNER);
    let ca = fs::read_to_string(first.pki("ca.crt")).unwrap();
    node.write("/etc/nodepki/ca.crt", &ca);
    node.nodepki(&["bootstrap", "--wait", "3s"])
        .ended(69)
        .row_says("sa", "written")
        .says_not("next: kubeadm");
    assert!(!node.pki("apiserver.crt").exists());
    let written = fs::read_to_string(node.pki("sa.pub")).unwrap();
    assert_eq!(written, both, "the node's keys are not the cluster's");

    assert_eq!(cluster.admin().delete(KUBEADM_CERTS).0, 200);
    let config = join(&cluster, &node, &with_key(&key));
    node.write(
        JOIN_CONFIGURATION,
        &config.replace(ENDPOINT, "192.0.2.254:6443"),
    );
    let authorities = first.path("/etc/kubernetes/pki");
    let signer = format!("local:{}", authorities.display());
    fs::remove_file(node.path("/etc/nodepki/config.yaml")).unwrap();
    let ran = node.nodepki(&["bootstrap", "--signer", &signer]);
    ran.done().row_says("sa", "kept");
    ran.row_says("apiserver", "issued");
}

#[test]
fn downloads_files_of_external_etcd() {
    let cluster = Cluster::start(Authorities::Internal);
    let first = cluster.first();
    let at = "/etc/etcd-client";
    for (from, to) in [
        ("etcd/ca.crt", "ca.crt"),
        ("apiserver-etcd-client.crt", "client.crt"),
        ("apiserver-etcd-client.key", "client.key"),
    ] {
        first.write(
            &format!("{at}/{to}"),
            &fs::read_to_string(first.pki(from)).unwrap(),
        );
    }
    let key = CertificateKey::generate().unwrap().to_hex();
    let init = INIT.replacen(
        "kind: InitConfiguration\n",
        &format!("kind: InitConfiguration\ncertificateKey: '{}'\n", *key),
        1,
    );
    let config = format!(
        "{init}etcd: {{external: {{endpoints: ['https://192.0.2.11:2379'], caFile: {at}/ca.crt, certFile: {at}/client.crt, keyFile: {at}/client.key}}}}\n"
    );
    let node = cluster.add_node("cp2", "192.0.2.12");
    node.write(JOIN_CONFIGURATION, &join(&cluster, &node, &with_key(&key)));
    bootstrap(&node)
        .ended(69)
        .says("kubeadm init phase upload-certs --upload-certs");
    for phase in [
        &["init", "phase", "upload-config", "kubeadm"][..],
        &["init", "phase", "upload-certs", "--upload-certs"],
    ] {
        first.kubeadm(phase, Some(&config)).done();
    }
    // The old API version, and the new address.
    let old = join(&cluster, &node, &with_key(&key))
        .replace("v1beta4", "v1beta3")
        .replace(ENDPOINT, "'[2001:db8::100]:6443'");
    node.write(JOIN_CONFIGURATION, &old);
    // Without the key nothing shows that it belongs to the existing certificate.
    let other = fs::read_to_string(first.pki("apiserver.crt")).unwrap();
    node.write(&format!("{at}/client.crt"), &other);
    bootstrap(&node)
        .ended(65)
        .says("/etc/etcd-client/client.crt (etcd.external.certFile) differs");
    assert!(!node.pki("").exists());
    fs::remove_file(node.path(&format!("{at}/client.crt"))).unwrap();
    bootstrap(&node).done().says_not("etcd-ca");
    for (file, mode) in [
        ("ca.crt", 0o644),
        ("client.crt", 0o644),
        ("client.key", 0o600),
    ] {
        let path = format!("{at}/{file}");
        let written = node.path(&path);
        assert_eq!(
            fs::read(&written).unwrap(),
            fs::read(first.path(&path)).unwrap()
        );
        let found =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&written).unwrap().permissions());
        assert_eq!(found & 0o777, mode, "{file}");
    }
    assert!(!node.pki("etcd").exists());
    node.write(
        JOIN_CONFIGURATION,
        &old.replace("2001:db8::100", "2001:db8::ffff"),
    );
    bootstrap(&node).done();
}

#[test]
fn takes_authority_from_signer_without_discovery() {
    let cluster = cluster();
    let node = cluster.add_node("cp33", "192.0.2.33");
    let first = cluster.first();
    let config = join(cluster, &node, "");
    let (head, rest) = config.split_once("discovery:").unwrap();
    let (_, tail) = rest.split_once("controlPlane:").unwrap();
    let (_, own) = INIT.split_once("---\n").unwrap();
    node.write(
        JOIN_CONFIGURATION,
        &format!("{head}controlPlane:{tail}---\n{own}"),
    );
    for file in ["sa.key", "sa.pub"] {
        let path = format!("/etc/kubernetes/pki/{file}");
        node.write(&path, &fs::read_to_string(first.path(&path)).unwrap());
    }
    let signer = format!("local:{}", first.pki("").display());
    node.nodepki(&["bootstrap", "--signer", &signer])
        .done()
        .row_says("ca", "written");
}
