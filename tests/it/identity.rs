//! The identity of a node: kept with pending requests, compared with every source of its name, and changed only by an
//! explicit option.

use std::fs;
use std::path::Path;

use nodepki::kube::names::CertName;
use nodepki::x509::{KeyAlgorithm, PrivateKey};

use crate::node::{INIT, JOIN, Node, Ran, Snapshot};
use crate::running::running;
use crate::signing::openssl;

const KUBEADM_FILE: &str = "/run/kubeadm/kubeadm.yaml";
const KUBEADM_JOIN_FILE: &str = "/run/kubeadm/kubeadm-join-config.yaml";
const IDENTITY_RECORD: &str = "/var/lib/nodepki/node.json";
const PENDING: &str = "/var/lib/nodepki/pending";

/// Returns a node whose host name is not its node name, and whose signer defers every answer.
fn deferred(config: &str, file: &str) -> Node {
    let node = Node::of(config);
    node.write("/etc/hostname", "debian\n");
    node.write(file, config);
    node.signer_does("all", "pending");
    node
}

/// Runs the command with the settings, and with the kubeadm files in `/run` if there are any.
fn run(node: &Node, arguments: &[&str]) -> Ran {
    let config = node.outside("config.yaml");
    let mut all = arguments.to_vec();
    all.extend(["--config", config.to_str().unwrap()]);
    if arguments[0] != "plan" && arguments[0] != "doctor" {
        all.extend(["--wait", "0s", "--clock-wait", "0s"]);
    }
    node.run(&all)
}

fn reboot(node: &Node) {
    fs::remove_dir_all(node.path("/run")).unwrap();
}

fn requested_subject(node: &Node, name: CertName) -> String {
    let pem = fs::read(node.path(PENDING).join(name.as_str()).join("request.csr")).unwrap();
    let shown = openssl(&["req", "-noout", "-subject", "-nameopt", "RFC2253"], &pem);
    String::from_utf8(shown).unwrap().trim().to_owned()
}

fn requests(node: &Node) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(node.path(PENDING))
        .unwrap()
        .map(|slot| slot.unwrap().path())
        .map(|slot| {
            let csr = fs::read(slot.join("request.csr")).unwrap();
            (slot.file_name().unwrap().to_str().unwrap().to_owned(), csr)
        })
        .collect();
    all.sort();
    all
}

fn assert_nothing_set_aside(node: &Node) {
    let aside = node.path("/var/lib/nodepki/aside");
    let found = fs::read_dir(aside).map_or(0, Iterator::count);
    assert_eq!(found, 0, "requests were set aside");
}

#[test]
fn keeps_identity_of_pending_requests_without_kubeadm_file() {
    let node = deferred(INIT, KUBEADM_FILE);
    run(&node, &["bootstrap"]).ended(75);
    assert_eq!(node.mode(IDENTITY_RECORD), 0o600);
    let before = requests(&node);
    assert_eq!(
        requested_subject(&node, CertName::KubeletConf),
        "subject=CN=system:node:cp1,O=system:nodes"
    );
    reboot(&node);
    for command in [
        &["plan"][..],
        &["bootstrap"],
        &["renew"],
        &["csr", "export", "@/requests"],
    ] {
        let ran = run(&node, command);
        // Renewal fails without sa.key, which a pending first node does not have yet.
        let is_expected = matches!(ran.code, Some(0 | 75)) || command[0] == "renew";
        assert!(is_expected, "{}", ran.said());
        ran.says_not("system:node:debian");
        assert_eq!(before, requests(&node), "{command:?}: {}", ran.said());
        assert_nothing_set_aside(&node);
    }
    run(&node, &["bootstrap"]).says("the host name is debian, and this node is cp1");
    node.signer_behaves();
    run(&node, &["bootstrap"]).done();
    let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
    assert!(
        chain
            .leaf()
            .ip_addresses()
            .contains(&"192.0.2.11".parse().unwrap())
    );
    assert!(
        node.path("/etc/kubernetes/super-admin.conf").exists(),
        "its role is first node"
    );
    node.assert_sound(&[
        CertName::KubeletConf,
        CertName::EtcdServer,
        CertName::Apiserver,
    ]);
}

/// The first answer of a slow signer arrives: some certificates are installed, the rest is pending.
#[test]
fn keeps_identity_while_one_authority_is_pending() {
    for slow in ["apiserver", "etcd-peer", "front-proxy-client"] {
        let node = deferred(INIT, KUBEADM_FILE);
        node.signer_behaves();
        node.signer_does(slow, "pending");
        run(&node, &["bootstrap"]).ended(75);
        let before = requests(&node);
        reboot(&node);
        run(&node, &["bootstrap"]).ended(75);
        assert_eq!(before, requests(&node), "{slow}");
        node.signer_behaves();
        run(&node, &["bootstrap"]).done();
        for name in [CertName::EtcdServer, CertName::EtcdPeer] {
            assert_eq!(node.subject(name), "CN=cp1", "{slow}");
        }
        // Nothing is pending any longer, and the node's own files determine its identity.
        node.write(
            IDENTITY_RECORD,
            node.read(IDENTITY_RECORD).replace("cp1", "cp9"),
        );
        run(&node, &["plan"]).done().says_not("cp9");
    }
}

#[test]
fn keeps_identity_of_offline_requests() {
    let node = deferred(INIT, KUBEADM_FILE);
    run(&node, &["csr", "export", "@/requests"]).done();
    let before = requests(&node);
    reboot(&node);
    run(&node, &["csr", "export", "@/requests"]).done();
    assert_eq!(before, requests(&node));
    assert_nothing_set_aside(&node);
    run(
        &node,
        &["csr", "export", "@/requests", "--node-name", "cp7"],
    )
    .ended(65)
    .says("made for cp1")
    .says("this run is for cp7");
}

#[cfg(feature = "failpoints")]
#[test]
fn keeps_identity_when_killed_before_first_commit() {
    for place in ["request:submitting", "request:pending", "run:before-commit"] {
        let node = deferred(INIT, KUBEADM_FILE);
        let config = node.outside("config.yaml");
        let mut first = node.command(["bootstrap", "--wait", "0s", "--clock-wait", "0s"]);
        first
            .arg("--config")
            .arg(config)
            .env("NODEPKI_FAILPOINT", place);
        assert_eq!(Ran::of(&mut first).signal, Some(9), "{place}");
        reboot(&node);
        run(&node, &["bootstrap"])
            .ended(75)
            .says_not("system:node:debian");
        assert_eq!(
            requested_subject(&node, CertName::KubeletConf),
            "subject=CN=system:node:cp1,O=system:nodes"
        );
    }
}

#[test]
fn keeps_role_of_pending_joining_node() {
    let node = deferred(JOIN, KUBEADM_JOIN_FILE);
    let pair = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    node.write("/etc/kubernetes/pki/sa.key", pair.to_pem().as_bytes());
    node.set_mode("/etc/kubernetes/pki/sa.key", 0o600);
    run(&node, &["bootstrap"]).ended(75);
    let before = requests(&node);
    reboot(&node);
    run(&node, &["bootstrap"]).ended(75);
    assert_eq!(before, requests(&node));
    node.signer_behaves();
    run(&node, &["bootstrap"]).done();
    assert!(!node.path("/etc/kubernetes/super-admin.conf").exists());
    assert_eq!(node.subject(CertName::EtcdServer), "CN=cp2");
}

#[test]
fn keeps_identity_of_pending_worker() {
    let config = JOIN
        .split_once("controlPlane:")
        .unwrap()
        .0
        .replace("cp2", "w1");
    let node = deferred(&config, KUBEADM_JOIN_FILE);
    run(&node, &["bootstrap"]).ended(75);
    let before = requests(&node);
    assert_eq!(before.len(), 1, "{before:?}");
    reboot(&node);
    run(&node, &["bootstrap"]).ended(75);
    // Only the first node of a cluster is exempt, and no document says that this is a worker.
    let file = node.outside("config.yaml");
    let settings = fs::read_to_string(&file).unwrap();
    let policy =
        "clusterPolicy: {enabled: true, required: true, kubeconfig: /etc/kubernetes/away.conf}\n";
    fs::write(&file, format!("{settings}{policy}")).unwrap();
    run(&node, &["bootstrap"])
        .ended(75)
        .says("nothing is issued, since clusterPolicy.required is true");
    fs::write(&file, settings).unwrap();
    assert_eq!(before, requests(&node));
    node.signer_behaves();
    run(&node, &["bootstrap"]).done();
    let kubelet = node.read("/etc/kubernetes/kubelet.conf");
    assert!(
        kubelet.contains("https://api.example.com:6443"),
        "{kubelet}"
    );
}

#[test]
fn refuses_other_identity_while_requests_are_pending() {
    let joining = JOIN
        .replace("cp2", "cp1")
        .replace("192.0.2.12", "192.0.2.11");
    for (config, words, option) in [
        (
            INIT.replace("cp1", "cp7"),
            ["made for cp1", "this run is for cp7"],
            "--accept-name-change",
        ),
        (
            INIT.replace("nodeRegistration: {name: cp1}\n", ""),
            ["made for cp1", "this run is for debian"],
            "--accept-name-change",
        ),
        (
            INIT.replace("192.0.2.11", "192.0.2.99"),
            [
                "an API server at 192.0.2.11:6443",
                "this run is for 192.0.2.99:6443",
            ],
            "--accept-address-change",
        ),
        (
            INIT.replace("192.0.2.11}", "192.0.2.11, bindPort: 7443}"),
            [
                "an API server at 192.0.2.11:6443",
                "this run is for 192.0.2.11:7443",
            ],
            "--accept-address-change",
        ),
        (
            joining,
            [
                "made for the first control-plane node",
                "this run is for a joining control-plane node",
            ],
            "--accept-role-change",
        ),
    ] {
        let node = deferred(INIT, KUBEADM_FILE);
        let pair = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        node.write("/etc/kubernetes/pki/sa.key", pair.to_pem().as_bytes());
        node.set_mode("/etc/kubernetes/pki/sa.key", 0o600);
        run(&node, &["bootstrap"]).ended(75);
        let before = node.read(IDENTITY_RECORD);
        node.write(KUBEADM_FILE, &config);
        let snapshot = node.snapshot();
        run(&node, &["plan"])
            .ended(65)
            .says(words[0])
            .says(words[1]);
        for command in [
            &["bootstrap"][..],
            &["renew"],
            &["csr", "export", "@/requests"],
        ] {
            run(&node, command)
                .ended(65)
                .says(words[0])
                .says(words[1])
                .says(option)
                .says(IDENTITY_RECORD);
        }
        for other in [
            "--accept-name-change",
            "--accept-address-change",
            "--accept-role-change",
        ] {
            if other != option {
                run(&node, &["bootstrap", other]).ended(65).says(words[1]);
            }
        }
        snapshot.unchanged(&node.snapshot());
        run(&node, &["bootstrap", option]).ended(75);
        assert_ne!(before, node.read(IDENTITY_RECORD), "{option}");
        // The changed identity is kept in later runs.
        let changed = requests(&node);
        reboot(&node);
        run(&node, &["bootstrap"]).ended(75);
        assert_eq!(changed, requests(&node), "{option}");
    }
}

#[test]
fn accepts_other_identity_after_reset_without_pending_requests() {
    let node = deferred(INIT, KUBEADM_FILE);
    node.signer_behaves();
    run(&node, &["bootstrap"]).done();
    for file in [
        "admin.conf",
        "super-admin.conf",
        "kubelet.conf",
        "controller-manager.conf",
        "scheduler.conf",
    ] {
        node.remove(Path::new("/etc/kubernetes").join(file));
    }
    let other = INIT
        .replace("cp1", "cp7")
        .replace("192.0.2.11", "192.0.2.99");
    node.write(KUBEADM_FILE, other);
    run(&node, &["bootstrap"]).done();
    assert!(
        node.subject(CertName::KubeletConf)
            .contains("system:node:cp7")
    );
}

/// Pending requests of a release that recorded no identity.
#[test]
fn refuses_pending_requests_of_unknown_node() {
    let node = deferred(INIT, KUBEADM_FILE);
    run(&node, &["bootstrap"]).ended(75);
    node.remove(IDENTITY_RECORD);
    let kept = fs::read(node.path(KUBEADM_FILE)).unwrap();
    reboot(&node);
    let snapshot = node.snapshot();
    run(&node, &["bootstrap"])
        .ended(65)
        .says("does not say for which node");
    snapshot.unchanged(&node.snapshot());
    node.write(KUBEADM_FILE, kept);
    run(&node, &["bootstrap"]).ended(75);
    assert!(node.path(IDENTITY_RECORD).exists());
    node.write(IDENTITY_RECORD, "{");
    run(&node, &["bootstrap"])
        .ended(65)
        .says("node.json")
        .says("is damaged");
}

/// An accepted change whose certificates are pending is completed by the unit, which passes no options.
#[test]
fn completes_accepted_changes_without_options() {
    let node = running(INIT);
    node.signer_does("all", "pending");
    let moved = INIT
        .replace("192.0.2.11", "192.0.2.99")
        .replace("cp1", "cp7");
    node.write(KUBEADM_FILE, &moved);
    run(&node, &["bootstrap", "--accept-address-change"])
        .ended(65)
        .says("names this node cp7");
    run(&node, &["bootstrap", "--accept-name-change"])
        .ended(65)
        .says("192.0.2.99:6443");
    let both = [
        "bootstrap",
        "--accept-address-change",
        "--accept-name-change",
    ];
    // The installed certificates are valid, so pending is not a failure.
    run(&node, &both);
    let before = requests(&node);
    assert!(!before.is_empty());
    reboot(&node);
    run(&node, &["bootstrap"]).says_not("64 usage");
    assert_eq!(before, requests(&node));
    node.signer_behaves();
    run(&node, &["bootstrap"]).done();
    assert!(
        node.subject(CertName::KubeletConf)
            .contains("system:node:cp7")
    );
}

/// Returns the state after a kubelet.conf was copied from another node.
fn with_foreign_kubelet_conf(kubeadm_config: &str) -> (Node, Snapshot) {
    let other = Node::of(&INIT.replace("cp1", "cp2"));
    let node = running(kubeadm_config);
    for file in ["ca.crt", "ca.key"] {
        fs::copy(node.ca().join(file), other.ca().join(file)).unwrap();
    }
    let ca = fs::read(node.ca().join("ca.crt")).unwrap();
    other.write("/etc/kubernetes/pki/ca.crt", ca);
    other.bootstrap().done();
    node.write(
        "/etc/kubernetes/kubelet.conf",
        other.read("/etc/kubernetes/kubelet.conf"),
    );
    node.write("/etc/hostname", "cp1\n");
    let snapshot = node.etc();
    (node, snapshot)
}

#[test]
fn refuses_kubelet_conf_of_another_node() {
    let (node, snapshot) = with_foreign_kubelet_conf(INIT);
    for command in [
        &["renew"][..],
        &["renew", "--all", "--accept-name-change"],
        &["bootstrap"],
        &["csr", "export", "@/requests"],
    ] {
        let ran = run(&node, command);
        ran.ended(65)
            .says("the sources of this node's name disagree");
        for source in [
            "/etc/kubernetes/kubelet.conf says cp2",
            "/etc/kubernetes/manifests/etcd.yaml says cp1",
            "/etc/kubernetes/pki/etcd/server.crt says cp1",
            "/etc/kubernetes/pki/etcd/peer.crt says cp1",
            "the host name is cp1",
            "run again with --node-name NAME",
        ] {
            ran.says(source);
        }
    }
    snapshot.unchanged(&node.etc());
    run(&node, &["renew", "--dry-run"])
        .ended(65)
        .says("disagree");
    run(&node, &["plan"]).ended(65).says("disagree");
    run(&node, &["doctor"])
        .ended(65)
        .says("kubelet-other-node")
        .says("kubelet.conf says cp2")
        .says("etcd/server.crt says cp1");
    // The name of one file needs an option; one that no source has is a mistake.
    run(&node, &["renew", "--node-name", "cp2"]).ended(65);
    let unknown = ["renew", "--node-name", "cp11", "--accept-name-change"];
    run(&node, &unknown).ended(65).says("disagree");
    run(&node, &["renew", "--node-name", "cp1"])
        .done()
        .says("/etc/kubernetes/kubelet.conf says cp2: this node is cp1");
    assert!(
        node.subject(CertName::KubeletConf)
            .contains("system:node:cp1")
    );
    run(&node, &["renew"]).done().says_not("disagree");
}

#[test]
fn refuses_etcd_certificate_of_another_node() {
    for name in ["server", "peer"] {
        let node = running(INIT);
        let other = Node::of(&INIT.replace("cp1", "cp2"));
        other.bootstrap().done();
        for extension in ["crt", "key"] {
            let file = format!("/etc/kubernetes/pki/etcd/{name}.{extension}");
            node.write(&file, other.read(&file));
        }
        let words = format!("etcd/{name}.crt says cp2");
        run(&node, &["renew"])
            .ended(65)
            .says(&words)
            .says("kubelet.conf says cp1");
        run(&node, &["renew", "--node-name", "cp1"]).done();
        run(&node, &["renew"]).done();
    }
}

#[test]
fn reports_host_name_that_alone_differs() {
    let node = running(INIT);
    node.write("/etc/hostname", "ip-192-0-2-11\n");
    run(&node, &["renew"])
        .done()
        .says("the host name is ip-192-0-2-11, and this node is cp1");
    // kubeadm writes the override whenever node name and host name differ, which explains the host name.
    node.write(
        "/var/lib/kubelet/kubeadm-flags.env",
        "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd.sock --hostname-override=cp1\"\n",
    );
    run(&node, &["renew"]).done().says_not("the host name is");
}

const EXTERNAL_ETCD: &str = "etcd: {external: {endpoints: ['https://192.0.2.9:2379'], caFile: /etc/etcd/ca.crt, certFile: /etc/etcd/c.crt, keyFile: /etc/etcd/c.key}}\n";

/// Without etcd on the node, the record is the second source of the name.
#[test]
fn refuses_kubelet_conf_of_another_node_that_contradicts_record() {
    let (node, _) = with_foreign_kubelet_conf(&format!("{INIT}{EXTERNAL_ETCD}"));
    for command in ["plan", "bootstrap", "renew"] {
        run(&node, &[command])
            .ended(65)
            .says("the sources of this node's name disagree: ")
            .says("/etc/kubernetes/kubelet.conf says cp2, ")
            .says(
                "/var/lib/nodepki/node.json says cp1, the host name is cp1; most of them say cp1",
            );
    }
    run(&node, &["renew", "--node-name", "cp1"]).done();
    assert!(
        node.subject(CertName::KubeletConf)
            .contains("system:node:cp1")
    );
    run(&node, &["renew"]).done().says_not("disagree");
}

/// Without etcd on the node, the kubelet's flags are another source of the name.
#[test]
fn refuses_kubelet_conf_that_contradicts_kubelet_flags() {
    let node = running(&format!("{INIT}{EXTERNAL_ETCD}"));
    node.write(
        "/var/lib/kubelet/kubeadm-flags.env",
        "KUBELET_KUBEADM_ARGS=\"--hostname-override=cp2 --node-ip=192.0.2.11\"\n",
    );
    run(&node, &["renew"])
        .ended(65)
        .says("disagree")
        .says("the host name is cp2");
}
