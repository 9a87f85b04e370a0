//! The kubelet's own certificates: the client certificate in the kubelet's file layout, and the serving certificate.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{
    Chain, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject, TrustBundle,
};
use serde_json::json;
use time::OffsetDateTime;

use crate::kubeadm::accepts_external_ca;
use crate::node::{DAY, EVERYTHING, INIT, Node, Ran};
#[cfg(feature = "failpoints")]
use crate::sample::{self, sampled};
use crate::servers::cluster::{Authorities, Cluster, ClusterNode, ENDPOINT, TOKEN, cluster};
use crate::servers::{Server, bin};
use crate::signer_directory::sign_by_hand;
use crate::signing::openssl;
use crate::time::wait_until;

const CONF: &str = "/etc/kubernetes/kubelet.conf";
const PKI: &str = "/var/lib/kubelet/pki";
const LINK: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
const CLIENT_CERTIFICATE_IN_FILE: &str = "kubelet: {clientCertificate: file}\n";

/// Returns a complete first node with the kubelet's client certificate in a file.
fn complete_node() -> Node {
    let node = Node::new();
    node.settings(CLIENT_CERTIFICATE_IN_FILE);
    node.ask().done();
    node
}

fn dated_files(node: &Node) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(node.path(PKI))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with("-current.pem"))
        .collect();
    names.sort();
    names
}

/// Returns a client certificate for ten days, issued `days_ago` days ago, with its key, as one file.
fn pair(node: &Node, days_ago: u32) -> String {
    pair_of(node, DAY * 10, days_ago)
}

fn pair_of(node: &Node, lifetime: Duration, days_ago: u32) -> String {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let profile = Profile {
        subject: Subject {
            common_name: "system:node:cp1".to_owned(),
            organizations: vec!["system:nodes".to_owned()],
        },
        sans: Sans::default(),
        usages: vec![ExtendedUsage::ClientAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime,
    };
    let at = OffsetDateTime::now_utc() - DAY * days_ago;
    let authority = node.authority(Authority::Ca);
    let leaf = authority.issue(key.public_key(), &profile, at).unwrap();
    format!("{}{}", leaf.to_pem(), *key.to_pem())
}

/// Stores a pair as the kubelet's `fileStore` does: mode 0600, with an absolute link.
fn store_as_kubelet(node: &Node, name: &str, pem: &str) {
    let path = format!("{PKI}/{name}");
    node.write(&path, pem);
    node.set_mode(&path, 0o600);
    let _ = fs::remove_file(node.path(LINK));
    symlink(&path, node.path(LINK)).unwrap();
}

/// Asserts that kubelet.conf names the link twice, and that the link leads to a complete, valid and private pair.
#[track_caller]
fn assert_layout(node: &Node) {
    let conf = Kubeconfig::parse(&node.read(CONF)).unwrap();
    let current = conf.current().unwrap();
    assert_eq!(current.certificate_file.as_deref(), Some(LINK));
    assert_eq!(current.key_file.as_deref(), Some(LINK));
    assert!(current.certificate.is_none() && current.key.is_none());
    let authority = TrustBundle::from_pem(&current.authority.unwrap()).unwrap();
    let own = TrustBundle::from_pem(node.read("/etc/kubernetes/pki/ca.crt").as_bytes()).unwrap();
    assert_eq!(authority.first(), own.first());
    node.assert_sound(&[CertName::KubeletConf]);
    let target = fs::read_link(node.path(LINK)).unwrap();
    assert_eq!(
        node.mode(Path::new(PKI).join(target.file_name().unwrap())),
        0o600
    );
}

fn link_of(node: &Node) -> PathBuf {
    fs::read_link(node.path(LINK)).unwrap()
}

/// Returns the file to which the link leads, wherever it is on the node.
fn current(node: &Node) -> String {
    node.read(Path::new(PKI).join(link_of(node).file_name().unwrap()))
}

#[test]
fn writes_client_certificate_in_the_kubelets_layout() {
    let node = complete_node();
    assert_layout(&node);
    node.assert_sound(&EVERYTHING);
    let names = dated_files(&node);
    let [name] = &names[..] else {
        panic!("{names:?}")
    };
    // kubelet-client-2006-01-02-15-04-05.pem
    let shape: String = name
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    assert_eq!(shape, "kubelet-client-0000-00-00-00-00-00.pem");
    // A relative link works below any --root.
    assert_eq!(link_of(&node), Path::new(name));
    // The certificate, followed by the key in the kubelet's encoding.
    let pem = node.read(LINK);
    let at = |what: &str| pem.find(what).unwrap();
    assert_eq!(at("-----BEGIN CERTIFICATE-----"), 0);
    assert!(at("-----BEGIN EC PRIVATE KEY-----") > at("-----END CERTIFICATE-----"));

    let before = (node.etc(), link_of(&node));
    node.ask().done();
    before.0.unchanged(&node.etc());
    assert_eq!((dated_files(&node), link_of(&node)), (names, before.1));
    accepts_external_ca(&node.path("/etc/kubernetes"), INIT);
}

#[test]
fn follows_kubelet_that_copies_and_rotates_its_certificate() {
    let node = Node::new();
    node.settings("");
    node.ask().done();
    assert!(node.read(CONF).contains("client-certificate-data"));
    assert!(!node.path(PKI).exists());
    // The kubelet copies the certificate of kubelet.conf (`getCurrentCertificateOrBootstrap`).
    let (chain, key) = node.leaf(CertName::KubeletConf).unwrap();
    let copy = format!("{}{}", chain.to_pem(), *key.to_pem());
    store_as_kubelet(&node, "kubelet-client-2026-01-02-03-04-05.pem", &copy);
    let before = (dated_files(&node), link_of(&node), node.submissions());
    let ran = node.ask();
    ran.done();
    ran.row_says("kubelet.conf", "rewritten").row_says(
        "kubelet.conf",
        "kubelet.conf contains a certificate, while the kubelet uses",
    );
    assert_layout(&node);
    assert_eq!(
        (dated_files(&node), link_of(&node), node.submissions()),
        before
    );

    // A rotation by the kubelet is accepted.
    store_as_kubelet(
        &node,
        "kubelet-client-2026-02-02-03-04-05.pem",
        &pair(&node, 1),
    );
    let before = (node.etc(), dated_files(&node), link_of(&node));
    node.ask().done();
    before.0.unchanged(&node.etc());
    assert_eq!((dated_files(&node), link_of(&node)), (before.1, before.2));
}

#[test]
fn reissues_expired_or_lost_client_certificate() {
    let edit_kubelet_conf = |node: &Node| {
        let text = node.read(CONF);
        let edited = text
            .replace(
                "    server: ",
                "    proxy-url: http://proxy:3128\n    server: ",
            )
            .replace("kind: Config", "kind: Config\npreferences:\n  colors: true");
        assert_ne!(text, edited);
        node.write(CONF, edited);
    };
    // An expired certificate, a dangling link, a missing link, a file in its place, a torn pair.
    for case in ["expired", "dangling", "gone", "expired file", "torn"] {
        let node = complete_node();
        edit_kubelet_conf(&node);
        let first = dated_files(&node).pop().unwrap();
        let old = node.read(LINK);
        let expired = pair(&node, 20);
        match case {
            "expired" => {
                store_as_kubelet(&node, "kubelet-client-2026-01-02-03-04-05.pem", &expired)
            }
            "dangling" => node.remove(format!("{PKI}/{first}")),
            "gone" => node.remove(LINK),
            "expired file" => {
                node.remove(LINK);
                node.write(LINK, &expired);
            }
            _ => {
                let (certificate, _) = old.split_once("-----BEGIN EC").unwrap();
                let (_, key) = expired.split_once("-----BEGIN EC").unwrap();
                let torn = format!("{certificate}-----BEGIN EC{key}");
                store_as_kubelet(&node, "kubelet-client-2026-01-02-03-04-05.pem", &torn);
            }
        }
        assert!(!node.path("/etc/kubernetes/bootstrap-kubelet.conf").exists());
        let ran = node.ask();
        ran.done();
        ran.row_says("kubelet.conf", "issued");
        if case == "dangling" {
            ran.row_says("kubelet.conf", "kubelet-client-current.pem leads nowhere");
        }
        assert_layout(&node);
        for kept in ["proxy-url: http://proxy:3128", "colors: true"] {
            assert!(node.read(CONF).contains(kept), "{case}");
        }
        // The replaced file is kept, and private, and a rollback of the kubelet restores the link to it.
        if matches!(case, "expired" | "expired file") {
            let backup = dated_files(&node).into_iter().find(|name| {
                let path = format!("{PKI}/{name}");
                node.read(&path) == expired && node.mode(&path) == 0o600
            });
            let backup = backup.unwrap_or_else(|| panic!("{case}: {:?}", dated_files(&node)));
            let record = node.read("/var/lib/nodepki/restarts.json");
            let target = format!("\"target\":\"{backup}\"");
            assert!(record.contains(&target), "{case}: {record}");
        }
        let now = (node.etc(), dated_files(&node));
        node.ask().done();
        now.0.unchanged(&node.etc());
        assert_eq!(now.1, dated_files(&node), "{case}");
    }
}

#[test]
fn replaces_link_that_forms_a_loop() {
    let node = complete_node();
    let others = node.etc();
    fs::remove_file(node.path(LINK)).unwrap();
    symlink("kubelet-client-current.pem", node.path(LINK)).unwrap();
    node.plan()
        .done()
        .row_says("kubelet.conf", "issue")
        .row_says("apiserver", "keep");
    node.ask().done();
    assert_layout(&node);
    others.unchanged(&node.etc());
}

#[test]
fn leaves_rotation_to_the_kubelet_until_it_is_overdue() {
    let node = complete_node();
    let renew = || Ran::of(&mut node.configured(["renew", "--wait", "0s", "--clock-wait", "0s"]));
    // At 80 % of the lifetime nodepki would renew its own certificate; the kubelet rotates by 90 %.
    let theirs = pair(&node, 8);
    store_as_kubelet(&node, "kubelet-client-2026-02-02-03-04-05.pem", &theirs);
    renew().done().row_says("kubelet.conf", "kept");
    assert_eq!(current(&node), theirs);
    // At 96 % the kubelet has failed to rotate.
    let late = pair_of(&node, DAY * 25, 24);
    store_as_kubelet(&node, "kubelet-client-2026-02-03-03-04-05.pem", &late);
    renew().done();
    assert_ne!(current(&node), late);
    assert_layout(&node);
}

#[test]
fn restarts_kubelet_for_reissued_client_certificate() {
    let restarts = |node: &Node| {
        let text = fs::read_to_string(node.path("/var/lib/nodepki/restarts.json"));
        text.unwrap_or_default()
    };
    let node = complete_node();
    assert_eq!(restarts(&node), "");
    // kubelet.conf does not change, and a kubelet that rotates reads the other file only at its start.
    let former = link_of(&node);
    node.write(format!("{PKI}/{}", former.display()), pair(&node, 20));
    let before = node.read(CONF);
    node.ask().done();
    assert_eq!(node.read(CONF), before);
    let record = restarts(&node);
    assert!(record.contains("\"component\":\"kubelet\""), "{record}");
    assert!(record.contains("kubelet.conf"), "{record}");
    let target = format!("\"target\":\"{}\"", former.display());
    assert!(record.contains(&target), "{record}");
}

#[test]
fn replaces_valid_file_in_place_of_the_link() {
    let node = complete_node();
    let pem = node.read(LINK);
    let dated_one = dated_files(&node).pop().unwrap();
    node.remove(LINK);
    node.remove(format!("{PKI}/{dated_one}"));
    node.write(LINK, &pem);
    node.set_mode(LINK, 0o644);
    let before = node.submissions();
    let ran = node.ask();
    ran.done();
    ran.row_says("kubelet.conf", "rewritten")
        .row_says("kubelet.conf", "is not a link to a file in its directory");
    assert_layout(&node);
    assert_eq!(node.read(LINK), pem);
    assert_eq!(node.submissions(), before);

    // A file that every user can read is made private, not copied.
    let target = format!("{PKI}/{}", link_of(&node).display());
    node.set_mode(&target, 0o644);
    let names = dated_files(&node);
    let ran = node.ask();
    ran.done();
    ran.row_says("kubelet.conf", "the key is world-readable (mode 0644)");
    assert_eq!(node.mode(&target), 0o600);
    assert_eq!(dated_files(&node), names);
}

#[test]
fn moves_embedded_certificate_to_a_file_on_the_setting() {
    let node = Node::new();
    node.settings("");
    node.ask().done();
    let (chain, _) = node.leaf(CertName::KubeletConf).unwrap();
    node.settings(CLIENT_CERTIFICATE_IN_FILE);
    let before = node.submissions();
    let ran = node.ask();
    ran.done();
    ran.row_says("kubelet.conf", "rewritten");
    assert_layout(&node);
    let (now, _) = node.leaf(CertName::KubeletConf).unwrap();
    assert_eq!(now.leaf().to_pem(), chain.leaf().to_pem());
    assert_eq!(node.submissions(), before);
}

#[test]
fn keeps_the_last_two_of_its_own_files() {
    let node = complete_node();
    let theirs = "kubelet-client-2025-01-02-03-04-05.pem";
    node.write(format!("{PKI}/{theirs}"), "the kubelet's");
    let mut targets = vec![link_of(&node)];
    for _ in 0..3 {
        // The certificate that nodepki issued last has expired.
        let target = format!("{PKI}/{}", targets.last().unwrap().display());
        node.write(&target, pair(&node, 20));
        node.ask().done();
        targets.push(link_of(&node));
        let mut expected: Vec<String> = targets[targets.len() - 2..]
            .iter()
            .map(|target| target.display().to_string())
            .collect();
        expected.insert(0, theirs.to_owned());
        expected.sort();
        assert_eq!(dated_files(&node), expected);
    }
    assert_layout(&node);
}

#[cfg(feature = "failpoints")]
#[test]
fn leaves_old_or_new_certificate_when_killed_at_any_failpoint() {
    let original = Node::of(&format!(
        "{INIT}etcd: {{external: {{endpoints: ['http://192.0.2.50:2379']}}}}\n"
    ));
    original.settings(CLIENT_CERTIFICATE_IN_FILE);
    original.ask().done();
    let expired = pair(&original, 20);
    let target = link_of(&original);
    original.write(Path::new(PKI).join(&target), &expired);
    let (mut old, mut new) = (0, 0);
    for name in sampled(0, nodepki::process::failpoint::STORE) {
        for number in 1.. {
            let failpoint = format!("{name}:{number}");
            let node = original.copied();
            let ran = Ran::of(node.ask_command("0s").env("NODEPKI_FAILPOINT", &failpoint));
            if ran.signal != Some(9) {
                assert_eq!(ran.code, Some(0), "{failpoint}: {}", ran.said());
                break;
            }
            // At every moment the link leads to a complete file, and kubelet.conf names the link.
            let pem = node.read(LINK);
            let chain = Chain::from_pem(pem.as_bytes()).unwrap();
            let key = PrivateKey::from_pem(pem.as_bytes()).unwrap();
            assert_eq!(chain.leaf().public_key(), key.public_key(), "{failpoint}");
            assert!(node.read(CONF).contains(LINK), "{failpoint}");
            if pem == expired {
                old += 1
            } else {
                new += 1
            }
            node.ask().done();
            assert_layout(&node);
            assert_ne!(node.read(LINK), expired, "{failpoint}");
            assert!(
                dated_files(&node).len() <= 2,
                "{failpoint}: {:?}",
                dated_files(&node)
            );
            let left = crate::store::leftovers(&node.root());
            assert_eq!(left, [""; 0].map(PathBuf::from), "{failpoint}");
        }
    }
    assert!(
        old > 5 / sample::step() && new > 3 / sample::step(),
        "{old} before the link moved, {new} after"
    );
}

#[test]
fn issues_serving_certificate_as_the_kubelets_default_pair() {
    let configuration = INIT.replace(
        "nodeRegistration: {name: cp1}",
        "nodeRegistration: {name: cp1, kubeletExtraArgs: [{name: node-ip, value: '192.0.2.11,2001:db8::11'}]}",
    );
    assert_ne!(configuration, INIT);
    let node = Node::of(&configuration);
    // The kubelet has created a self-signed pair, which the API server cannot verify.
    let self_made = {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let pem = key.to_pem();
        let made = nodepki::x509::CertificateAuthority::self_signed(
            "cp1-ca@1700000000",
            key,
            OffsetDateTime::now_utc(),
            DAY * 365,
        )
        .unwrap();
        (made.bundle().to_pem(), pem)
    };
    let [certificate, key] = ["crt", "key"].map(|extension| format!("{PKI}/kubelet.{extension}"));
    node.write(&certificate, &self_made.0);
    node.write(&key, self_made.1.as_bytes());
    node.set_mode(&key, 0o600);

    // Without the setting the pair belongs to the kubelet.
    node.ask().done().says_not("kubelet-serving");
    node.run(&["status"]).says_not("kubelet-serving");
    assert_eq!(node.read(&certificate), self_made.0);

    node.settings("kubelet: {serving: true}\nextraSANs: {kubelet-serving: [node.example.com]}\n");
    let ran = node.ask();
    ran.done();
    ran.row_says("kubelet-serving", "issued");
    assert_eq!((node.mode(&certificate), node.mode(&key)), (0o644, 0o600));
    // A rollback of the kubelet restores both files.
    let record = node.read("/var/lib/nodepki/restarts.json");
    for path in [&certificate, &key] {
        let former = format!("{{\"path\":\"{path}\",");
        assert!(record.contains(&former), "{record}");
    }
    let pem = node.read(&certificate);
    let text = String::from_utf8(openssl(
        &[
            "x509",
            "-noout",
            "-subject",
            "-ext",
            "extendedKeyUsage,subjectAltName",
        ],
        pem.as_bytes(),
    ))
    .unwrap();
    for part in [
        "O = system:nodes, CN = system:node:cp1",
        "TLS Web Server Authentication",
        "DNS:cp1, DNS:node.example.com, IP Address:192.0.2.11, IP Address:2001:DB8:0:0:0:0:0:11",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("Client"), "{text}");
    let chain = Chain::from_pem(pem.as_bytes()).unwrap();
    let found = PrivateKey::from_pem(node.read(&key).as_bytes()).unwrap();
    assert_eq!(chain.leaf().public_key(), found.public_key());
    node.run(&["status"]).says("kubelet-serving");
    // kubeadm does not know the pair.
    node.run(&["status", "--kubeadm"])
        .says_not("kubelet-serving");
    let before = pem;
    node.ask().done();
    assert_eq!(node.read(&certificate), before);
}

/// Starts a server in place of the kubelet, with a pair of the node.
fn start_kubelet_server(node: &ClusterNode, certificate: &str, key: &str) -> Server {
    node.tells_who_came("10250", [certificate, key, "/etc/kubernetes/pki/ca.crt"])
}

/// Bootstraps a worker with these kubelet settings; the test signs by hand.
fn worker(cluster: &Cluster, name: &str, address: &str, kubelet: &str) -> ClusterNode {
    let node = cluster.add_node(name, address);
    let pin = cluster.ca_pin();
    node.write(
        "/run/kubeadm/kubeadm-join-config.yaml",
        &format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n\
             discovery: {{bootstrapToken: {{token: {TOKEN}, apiServerEndpoint: '{ENDPOINT}', caCertHashes: ['{pin}']}}}}\n\
             nodeRegistration: {{name: {name}, criSocket: 'unix:///run/containerd/containerd.sock', kubeletExtraArgs: [{{name: node-ip, value: {address}}}]}}\n"
        ),
    );
    node.write(
        "/etc/nodepki/config.yaml",
        &format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
             authorities: {{ca: {{signer: offline}}}}\nsigners: {{offline: {{directory: {{path: /var/lib/offline}}}}}}\n\
             kubelet: {kubelet}\n"
        ),
    );
    node.nodepki(&["bootstrap", "--wait", "0s"]).ended(75);
    let drop = node.path("/var/lib/offline");
    let places = [cluster.authorities(), cluster.first().pki("")];
    let has_key = |directory: &PathBuf| directory.join("ca.key").exists();
    let authorities = places.into_iter().find(has_key).unwrap();
    for name in [CertName::KubeletConf, CertName::KubeletServing] {
        if drop.join(format!("outbox/{name}.csr")).exists() {
            sign_by_hand(&drop, &authorities, name);
        }
    }
    node.nodepki(&["bootstrap", "--wait", "0s"]).done();
    node
}

/// Returns the output of the real kubelet up to the line `last`. Its container runtime accepts a connection and never
/// answers, so the kubelet waits there while another of its threads reads its certificate.
fn kubelet_output(node: &ClusterNode, last: &str) -> String {
    const RUNTIME: &str = "/run/cri.sock";
    node.write(
        "/var/lib/kubelet/config.yaml",
        &format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nrotateCertificates: true\n\
             authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: false}}, x509: {{clientCAFile: /etc/kubernetes/pki/ca.crt}}}}\n\
             authorization: {{mode: AlwaysAllow}}\ncontainerRuntimeEndpoint: unix://{RUNTIME}\nfailSwapOn: false\n\
             failCgroupV1: false\n"
        ),
    );
    let socket = node.path(RUNTIME);
    let _ = fs::remove_file(&socket);
    let _runtime = UnixListener::bind(&socket).unwrap();
    let mut kubelet = node.command(bin("kubelet").to_str().unwrap());
    kubelet.args(["--kubeconfig", CONF, "--v=3"]);
    kubelet.args(["--config", "/var/lib/kubelet/config.yaml"]);
    kubelet.arg(format!("--hostname-override={}", node.name()));
    let log = node.dir().join("kubelet.log");
    let mut kubelet = Server::start(kubelet, &log);
    let mut said = String::new();
    kubelet.wait_until(|| {
        said = fs::read_to_string(&log).unwrap();
        said.contains(last)
    });
    said
}

#[test]
fn real_kubelet_uses_and_keeps_the_files() {
    const LOADED: &str = "\"Loading cert/key pair from a file\" filePath=\"/var/lib/kubelet/pki/kubelet-client-current.pem\"";
    const CONTENT: &str = "Waiting for next certificate rotation";
    let cluster = cluster();
    let node = worker(
        cluster,
        "k1",
        "192.0.2.91",
        "{clientCertificate: file, serving: true}",
    );
    let serving = fs::read(node.path(PKI).join("kubelet.crt")).unwrap();
    let said = kubelet_output(&node, CONTENT);
    for (words, expected) in [
        (LOADED, true),
        ("Rotating certificates", false),
        ("Using self-signed cert", false),
    ] {
        assert_eq!(said.contains(words), expected, "{words}: {said}");
    }
    assert_eq!(
        fs::read(node.path(PKI).join("kubelet.crt")).unwrap(),
        serving
    );
    node.nodepki(&["bootstrap", "--wait", "0s"])
        .done()
        .row_says("kubelet.conf", "kept")
        .row_says("kubelet-serving", "kept");

    // From kubelet.conf it copies the certificate and requests another one from the cluster at once, with an ECDSA key.
    // Whether its rotation is interrupted or succeeds, nodepki keeps the pair and names its file in kubelet.conf.
    let waits = [
        ("k2", "192.0.2.92", "Rotating certificates"),
        ("k3", "192.0.2.93", CONTENT),
    ];
    for (name, address, last) in waits {
        // The settings override the cluster's own algorithm, ECDSA-P256.
        let rsa = "{}\npki: {defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}";
        let node = worker(cluster, name, address, rsa);
        kubelet_output(&node, last);
        let target = fs::read_link(node.path(LINK)).unwrap();
        assert!(target.starts_with(PKI), "{target:?}");
        let pair = fs::read(node.path(target.to_str().unwrap())).unwrap();
        node.nodepki(&["bootstrap", "--wait", "0s"])
            .done()
            .row_says("kubelet.conf", "rewritten");
        let text = fs::read_to_string(node.path(CONF)).unwrap();
        assert!(
            text.contains(LINK) && !text.contains("-data: LS0tLS1CRUdJTiBFQyB"),
            "{text}"
        );
        let said = kubelet_output(&node, CONTENT);
        assert!(said.contains(LOADED), "{said}");
        assert!(!said.contains("Rotating certificates"), "{said}");
        for command in ["bootstrap", "renew"] {
            let ran = node.nodepki(&[command, "--wait", "0s"]);
            ran.done().row_says("kubelet.conf", "kept");
            if last == CONTENT {
                ran.row_says(
                    "kubelet.conf",
                    "expected key RSA-2048, found ECDSA-P256; kept",
                );
            }
        }
        assert_eq!(fs::read_link(node.path(LINK)).unwrap(), target);
        assert_eq!(fs::read(node.path(target.to_str().unwrap())).unwrap(), pair);
    }
}

#[test]
fn cluster_accepts_client_and_serving_certificate_of_worker() {
    let cluster = &Cluster::start(Authorities::External);
    let node = worker(
        cluster,
        "w1",
        "192.0.2.41",
        "{clientCertificate: file, serving: true}",
    );

    // The API server identifies the node by the certificate at the link.
    let conf = Kubeconfig::parse(&fs::read_to_string(node.path(CONF)).unwrap()).unwrap();
    let server = conf.current().unwrap().server.unwrap();
    let own = node
        .anonymous(&server)
        .with(&["--cert", LINK, "--key", LINK]);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let (code, seen) = own.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review);
    assert_eq!(code, 201, "{seen}");
    assert_eq!(seen["status"]["userInfo"]["username"], "system:node:w1");
    let groups = seen["status"]["userInfo"]["groups"].to_string();
    assert!(groups.contains("system:nodes"), "{groups}");
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "w1"}});
    let (code, made) = own.post("/api/v1/nodes", &object);
    assert_eq!(code, 201, "{made}");
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.41"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}});
    let (code, answer) = own.patch("/api/v1/nodes/w1/status", &status);
    assert_eq!(code, 200, "{answer}");

    // With --kubelet-certificate-authority it also verifies the serving certificate.
    cluster.first().stop("kube-apiserver");
    cluster.first().start_with(
        "kube-apiserver",
        &["--kubelet-certificate-authority=/etc/kubernetes/pki/ca.crt"],
    );
    let admin = cluster.admin();
    let reached = || admin.get("/api/v1/nodes/w1/proxy/");
    {
        let [certificate, key] = ["crt", "key"].map(|end| format!("{PKI}/kubelet.{end}"));
        let _kubelet = start_kubelet_server(&node, &certificate, &key);
        let mut last = reached();
        wait_until("the API server reaches the kubelet", || {
            last = reached();
            last.0 == 200
        });
        assert_eq!(last.1, json!("CN=kube-apiserver-kubelet-client"));
    }
    // A client certificate is refused as a serving certificate, which proves the verification.
    let _kubelet = start_kubelet_server(&node, LINK, LINK);
    let (code, answer) = reached();
    assert_ne!(code, 200);
    assert!(answer.to_string().contains("x509"), "{answer}");
}
