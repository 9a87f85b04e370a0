//! `docs/runbook.md`: its commands, run unchanged on nodes that are broken as the page describes. Those of
//! `docs/ca-change.md` are run by the tests of `authority`.
//!
//! A block of the page is run by a shell that sees the node under `/mnt`, and a USB stick and an offline CA under `/media`.
//! Every block has its expectation here; a new block without one fails `page_has_no_other_blocks`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::kube::names::Authority;
use nodepki::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};
use serde_json::json;
use time::OffsetDateTime;

use crate::kubeadm;
use crate::machine::openssl;

use crate::node::{EVERYTHING, INIT, NODEPKI, Node, Ran, with_mounts};
use crate::pages;
use crate::running;
use crate::servers;
use crate::servers::cluster::{self, Authorities, Cluster, ClusterNode};
use crate::time::let_pass;

const PAGE: &str = include_str!("../../docs/runbook.md");
const KEPT: &str = "/var/lib/nodepki/cluster-configuration.yaml";
const SETTINGS: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
    authorities: {ca: {signer: s}, etcd-ca: {signer: s}, front-proxy-ca: {signer: s}}\n\
    signers: {s: {local: {directory: /srv/ca}}}\n";

/// Returns the command blocks of the page, each with the number of its section.
fn blocks() -> Vec<(u32, String)> {
    let mut blocks = Vec::new();
    let (mut section, mut block) = (0, None::<String>);
    for line in PAGE.lines() {
        let code = line.trim_start();
        match (&mut block, code) {
            (None, "```sh") => block = Some(String::new()),
            (Some(_), "```") => blocks.extend(block.take().map(|block| (section, block))),
            (Some(block), _) => block.push_str(&format!("{code}\n")),
            (None, _) => {
                let heading = line
                    .strip_prefix("## ")
                    .and_then(|rest| rest.split_once('.'));
                section = heading.map_or(section, |(number, _)| number.parse().unwrap());
            }
        }
    }
    blocks
}

/// Returns a node on which everything has expired, with a USB stick and the offline CA. It has no kubeadm file, as after
/// any boot.
fn expired() -> Node {
    let node = running::running(INIT);
    node.write("/root/.keep", "");
    fs::create_dir_all(node.outside("media/usb")).unwrap();
    kubeadm::copy_tree(&node.ca(), &node.outside("media/ca"));
    // Issue every certificate again, valid for five seconds: a busy machine needs some of them to verify its own signatures.
    let kept = node.read(KEPT);
    node.write(KEPT, format!("{kept}certificateValidityPeriod: 5s\n"));
    for name in EVERYTHING {
        if name.is_kubeconfig() {
            node.remove(format!("/etc/kubernetes/{name}"))
        } else {
            for extension in ["crt", "key"] {
                let file = format!("{}.{extension}", name.base_name());
                node.remove(format!("/etc/kubernetes/pki/{file}"));
            }
        }
    }
    // Only a first node has this file.
    node.write("/etc/kubernetes/super-admin.conf", "");
    let signer = format!("local:{}", node.ca().display());
    node.run(&["bootstrap", "--signer", &signer]).done();
    node.write(KEPT, kept);
    let_pass(Duration::from_millis(6100));
    node
}

/// Writes settings to the node, with a signer that is reachable below the root.
fn configure(node: &Node) {
    node.write("/etc/nodepki/config.yaml", SETTINGS);
    node.write("/srv/ca/.keep", "");
    kubeadm::copy_tree(&node.ca(), &node.root().join("srv/ca"));
}

/// Runs the blocks of a section unchanged; each must end with its status and print its words.
fn follow(node: &Node, section: u32, expected: &[(i32, &[&str])]) {
    let blocks = blocks().into_iter().filter(|(of, _)| *of == section);
    let blocks: Vec<String> = blocks.map(|(_, block)| block).collect();
    assert_eq!(
        blocks.len(),
        expected.len(),
        "section {section}: {blocks:?}"
    );
    for (block, (code, words)) in blocks.iter().zip(expected) {
        let ran = run(node, block);
        assert_eq!(ran.code, Some(*code), "{block}{}", ran.said());
        for words in *words {
            assert!(
                ran.said().contains(words),
                "{words:?} after {block}{}",
                ran.said()
            );
        }
    }
}

fn run(node: &Node, block: &str) -> Ran {
    let mut shell = Command::new("sh");
    shell.arg("-euc").arg(format!("umask 022\n{block}"));
    let bin = Path::new(NODEPKI).parent().unwrap().display();
    let place = format!(
        "mount --bind \"$1\" /mnt; mount --bind \"$1/../media\" /media; PATH={bin}:$PATH; export PATH"
    );
    with_mounts(node, &shell, &place)
}

/// Runs the block of this number in a section unchanged, on a node of a cluster.
fn run_block(node: &ClusterNode, section: u32, number: usize) -> Ran {
    let mut blocks = blocks().into_iter().filter(|(of, _)| *of == section);
    let (_, block) = blocks.nth(number).unwrap();
    run_on_cluster(node, &block)
}

/// Runs the block of this number in the section of `docs/ca-change.md` about the cluster unchanged.
pub(crate) fn run_ca_change_block(node: &ClusterNode, number: usize) -> Ran {
    let section = pages::section("docs/ca-change.md", "## On the cluster");
    run_on_cluster(node, &pages::blocks(&section, "sh")[number])
}

fn run_on_cluster(node: &ClusterNode, block: &str) -> Ran {
    let directory = |program: &Path| program.parent().unwrap().display().to_string();
    let programs = [
        directory(Path::new(NODEPKI)),
        directory(&kubeadm::binary()),
        directory(&servers::bin("kubectl")),
        std::env::var("PATH").unwrap(),
    ];
    let mut shell = node.command("sh");
    shell
        .args(["-euc", &format!("umask 022\n{block}")])
        .env("PATH", programs.join(":"))
        .env("KUBECONFIG", "/etc/kubernetes/admin.conf");
    shell.output().unwrap().into()
}

#[test]
fn follows_upgrade_of_cluster() {
    const MAP: &str = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    kubeadm::copy_tree(&cluster.authorities(), &node.path("/var/signer"));
    node.write(
        "/etc/nodepki/config.yaml",
        &SETTINGS.replace("/srv/ca", "/var/signer"),
    );
    node.write("/run/kubeadm/kubeadm.yaml", cluster::INIT);
    node.nodepki(&["bootstrap"]).done();
    fs::remove_file(node.path("/run/kubeadm/kubeadm.yaml")).unwrap();
    // The change that kubeadm upgrade makes to the ConfigMap.
    let admin = cluster.admin();
    let (_, map) = admin.get(MAP);
    let text = map["data"]["ClusterConfiguration"].as_str().unwrap();
    let upgraded = text.replace("kubernetesVersion: v1.37.2", "kubernetesVersion: v1.37.3");
    assert_ne!(text, upgraded);
    let change = json!({"data": {"ClusterConfiguration": upgraded}});
    assert_eq!(admin.patch(MAP, &change).0, 200);

    run_block(node, 7, 0).done().says("apiserver").says("keep");
    run_block(node, 7, 1).done();
    let kept = fs::read_to_string(node.path(KEPT)).unwrap();
    assert!(kept.contains("v1.37.3"), "{kept}");
    let flags = run_block(node, 7, 2);
    flags.done().says("--cluster-signing-cert-file=");
    assert!(!flags.stdout.contains("ca.key"), "{}", flags.said());

    // Two requests that are approved and never signed: a kubelet's, and one for another signer.
    let requests = [
        ("kubelets", "kubernetes.io/kube-apiserver-client-kubelet"),
        ("others", "example.com/signer"),
    ];
    for (name, signer) in requests {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        node.write_secret("/var/tmp/key.pem", &key.to_pem());
        let subject = "/O=system:nodes/CN=system:node:cp1";
        let file = node.path("/var/tmp/key.pem");
        let file = file.to_str().unwrap();
        let made = openssl(&["req", "-new", "-key", file, "-subj", subject]);
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": BASE64.encode(made),
                "signerName": signer,
                "usages": ["digital signature", "client auth"],
            },
        });
        let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
        let (status, said) = admin.post(path, &request);
        assert_eq!(status, 201, "{said}");
    }
    let kubectl = servers::bin("kubectl");
    let arguments = ["--kubeconfig", "/etc/kubernetes/admin.conf", "certificate"];
    let approve = [&arguments[..], &["approve", "kubelets", "others"]].concat();
    node.run(kubectl.to_str().unwrap(), &approve).done();
    run_block(node, 7, 3)
        .done()
        .says("\"kubelets\" deleted")
        .says_not("others");
}

/// `doctor` ends with 0, so it has found no error.
const HEALTHY: &[(i32, &[&str])] = &[(0, &["keep"])];

#[test]
fn page_has_no_other_blocks() {
    let sections: Vec<u32> = blocks().into_iter().map(|(section, _)| section).collect();
    assert_eq!(sections, [1, 1, 2, 3, 4, 4, 4, 5, 6, 7, 7, 7, 7, 9]);
}

#[test]
fn replaces_lost_cluster_configuration() {
    let node = running::running(INIT);
    fs::create_dir_all(node.outside("media")).unwrap();
    fs::remove_dir_all(node.path("/var/lib/nodepki")).unwrap();
    let plan = node.run(&["plan"]);
    plan.says("docs/runbook.md says how to write it again");
    assert_ne!(plan.code, Some(0));
    follow(&node, 9, &[(0, &[" to keep"])]);
}

#[test]
fn renews_expired_node_with_online_signer() {
    let node = expired();
    configure(&node);
    let shown = &["expired", "apiserver", "2 errors"][..2];
    let advice: &[&str] = &[
        "error    expired",
        "nodepki --root /mnt bootstrap",
        "csr export DIR",
    ];
    follow(&node, 1, &[(0, shown), (65, advice)]);
    follow(&node, 2, &[(0, &["issue", "it expired at"])]);
    follow(&node, 3, &[(0, &["apiserver", "issued"])]);
    node.assert_sound(&EVERYTHING);
    follow(&node, 6, HEALTHY);
}

#[test]
fn renews_expired_node_offline_without_signer() {
    let node = expired();
    let snapshot = node.etc();
    follow(
        &node,
        2,
        &[(78, &["no signer is configured", "csr export DIR"])],
    );
    follow(
        &node,
        3,
        &[(78, &["authority ca has no signer", "csr export DIR"])],
    );
    snapshot.unchanged(&node.etc());
    let next = "nodepki csr import /media/usb/cp1 --root /mnt";
    follow(
        &node,
        4,
        &[
            (0, &["12 requests written", next]),
            (0, &[]),
            (0, &["apiserver", "issued"]),
        ],
    );
    node.assert_sound(&EVERYTHING);
    follow(&node, 6, HEALTHY);
}

#[test]
fn reports_dependents_of_expired_authority_and_accepts_one_with_same_key() {
    let node = Node::of(INIT);
    let now = OffsetDateTime::now_utc();
    let year = Duration::from_secs(365 * 86400);
    node.replace_authority(Authority::Ca, now, year);
    node.write("/run/kubeadm/kubeadm.yaml", INIT);
    node.bootstrap().done();
    let bootstrapped = node.run(&[
        "bootstrap",
        "--signer",
        &format!("local:{}", node.ca().display()),
    ]);
    bootstrapped.done();
    fs::remove_dir_all(node.path("/run/kubeadm")).unwrap();
    let made = |at: OffsetDateTime| {
        let key = PrivateKey::from_pem(&fs::read(node.ca().join("ca.key")).unwrap()).unwrap();
        let name = Authority::Ca.common_name();
        CertificateAuthority::self_signed(name, key, at, year)
            .unwrap()
            .bundle()
            .to_pem()
    };
    node.write("/etc/kubernetes/pki/ca.crt", made(now - 2 * year));
    node.write("/root/.keep", "");
    fs::create_dir_all(node.outside("media/usb")).unwrap();
    fs::write(node.outside("media/usb/ca.crt"), made(now)).unwrap();
    fs::write(node.ca().join("ca.crt"), made(now)).unwrap();
    kubeadm::copy_tree(&node.ca(), &node.outside("media/ca"));
    configure(&node);
    let radius: &[&str] = &[
        "ca: it expired at",
        "this affects apiserver",
        "every kubelet",
        "of the same CA key",
    ];
    follow(&node, 1, &[(0, &["expired"]), (65, radius)]);
    let refusal: &[&str] = &["the CA certificate in", "expired at"];
    follow(&node, 2, &[(65, refusal)]);
    let snapshot = node.etc();
    follow(&node, 3, &[(65, refusal)]);
    snapshot.unchanged(&node.etc());
    follow(&node, 5, &[(0, &["admin.conf"])]);
    follow(&node, 3, &[(0, &["admin.conf"])]);
    node.assert_sound(&EVERYTHING);
    follow(&node, 6, HEALTHY);
}

#[test]
fn continues_with_clock_that_cannot_be_set() {
    // The clock of the test is correct; authorities that are valid from tomorrow have the same effect as a slow clock.
    let node = Node::of(INIT);
    let tomorrow = OffsetDateTime::now_utc() + Duration::from_secs(86400);
    for authority in Authority::ALL {
        node.replace_authority(authority, tomorrow, Duration::from_secs(365 * 86400));
    }
    node.write("/run/kubeadm/kubeadm.yaml", INIT);
    let signer = format!("local:{}", node.ca().display());
    let run = |arguments: &[&str]| node.run(&[arguments, &["--signer", &signer]].concat());
    run(&["doctor"]).ended(65).says("clock-behind");
    let hint = "--allow-unsynced continues regardless";
    run(&["bootstrap", "--clock-wait", "0s"])
        .ended(75)
        .says(hint);
    // Requests contain no time.
    let bundle = node.outside("requests");
    run(&["csr", "export", bundle.to_str().unwrap()])
        .done()
        .says("12 requests");
    run(&[
        "csr",
        "import",
        bundle.to_str().unwrap(),
        "--clock-wait",
        "0s",
    ])
    .ended(65);
    run(&["bootstrap", "--allow-unsynced"])
        .done()
        .row_says("apiserver", "issued");
    node.run(&["status"]).done();
}
