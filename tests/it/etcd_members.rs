//! An external etcd with certificates of nodepki: three members with the role `etcd`, as in kubeadm's guide to an external
//! etcd, and a control-plane node whose kube-apiserver uses them with a client certificate of its own. The servers are real.

use std::fs;
use std::path::{Path, PathBuf};

use nodepki::kube::names::{Authority, CertName};
use serde_json::Value;
use tempfile::TempDir;

use crate::join_control_plane::post_to_etcd;
use crate::node::{INIT, Ran};
use crate::pages;
use crate::rotation_cluster::Daemon;
use crate::running::running;
use crate::servers::Server;
use crate::servers::cluster::{ClusterNode, cluster};
use crate::servers::remote_signer::{PLUGIN, RemoteSigner};
use crate::servers::static_pods::StaticPods;
use crate::signer_directory::sign_by_hand;
use crate::signing::{openssl, write_authorities};
use crate::time::wait_until;

const SETTINGS: &str = "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
signers: {offline: {directory: {path: /var/lib/nodepki/offline}}}
";
const MEMBERS: [(&str, &str); 3] = [
    ("etcd1", "192.0.2.61"),
    ("etcd2", "192.0.2.62"),
    ("etcd3", "192.0.2.63"),
];
const LEAVES: [&str; 3] = ["etcd/server", "etcd/peer", "etcd/healthcheck-client"];

/// Returns the blocks of the section about an external etcd in a language.
fn blocks(language: &str) -> Vec<String> {
    let section = pages::section("docs/joining.md", "## External etcd");
    pages::blocks(&section, language)
}

/// The configuration of the page for the first member, or the same for another one.
fn member_configuration(node: &ClusterNode) -> String {
    let [(name, address), ..] = MEMBERS;
    let block = &blocks("yaml")[0];
    let lines = block.lines().map(|line| {
        let own = line.replace(name, node.name());
        let own = own.replace(address, &node.address().to_string());
        match line {
            line if line.contains("name: initial-cluster,") => line.to_owned(),
            // Without a version, kubeadm looks for the latest one.
            "kind: ClusterConfiguration" => format!("{line}\nkubernetesVersion: v1.37.2"),
            _ => own,
        }
    });
    lines.map(|line| line + "\n").collect()
}

/// The configuration of a control-plane node; the files of etcd are not at kubeadm's own paths.
fn control_plane_configuration(node: &ClusterNode) -> String {
    let endpoints = MEMBERS.map(|(_, address)| format!("'https://{address}:2379'"));
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration: {{name: {}}}
localAPIEndpoint: {{advertiseAddress: {}}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.2
encryptionAlgorithm: ECDSA-P256
etcd:
  external:
    endpoints: [{}]
    caFile: /etc/etcd-client/ca.crt
    certFile: /etc/etcd-client/kube-apiserver.crt
    keyFile: /etc/etcd-client/kube-apiserver.key
",
        node.name(),
        node.address(),
        endpoints.join(", ")
    )
}

fn with_directory(config: &str, directory: &str) -> String {
    config.replacen(
        "etcd:\n",
        &format!("certificatesDir: {directory}\netcd:\n"),
        1,
    )
}

/// The three authorities, as files that no node has.
fn make_authorities(node: &ClusterNode) -> PathBuf {
    let config = with_directory(&member_configuration(node), "/var/tmp/authorities");
    for authority in Authority::ALL {
        let phase = ["init", "phase", "certs", authority.as_str()];
        node.kubeadm(&phase, Some(&config)).done();
    }
    let outside = node.dir().with_file_name("authorities-of-etcd");
    fs::rename(node.path("/var/tmp/authorities"), &outside).unwrap();
    outside
}

fn copy_certificate(authorities: &Path, authority: Authority, node: &ClusterNode, to: &str) {
    let to = node.path(to);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let from = authorities.join(format!("{}.crt", authority.base_name()));
    fs::copy(from, to).unwrap();
}

/// Runs a command; signs the requests that it leaves, and runs it again.
fn signed(node: &ClusterNode, command: &[&str], authorities: &Path) -> Ran {
    let run = || node.nodepki(command);
    run().ended(75).says("pending");
    let drop = node.path("/var/lib/nodepki/offline");
    for name in CertName::KUBEADM {
        if drop.join(format!("outbox/{name}.csr")).exists() {
            sign_by_hand(&drop, authorities, name);
        }
    }
    let ran = run();
    ran.done();
    ran
}

/// Subject, key and extensions of a certificate. OpenSSL prints extensions in their order in the certificate.
fn profile(certificate: &Path) -> Vec<String> {
    let path = certificate.to_str().unwrap();
    let text = openssl(
        &[
            "x509",
            "-in",
            path,
            "-noout",
            "-subject",
            "-ext",
            "subjectAltName,keyUsage,extendedKeyUsage",
        ],
        b"",
    );
    let text = String::from_utf8(text).unwrap();
    let mut lines: Vec<String> = text
        .replace(":\n    ", ": ")
        .lines()
        .map(|line| line.replace(": critical", ":").trim().to_owned())
        .collect();
    lines.sort();
    lines
}

/// Asserts that kubeadm issues certificates with the same subjects, names and usages.
fn assert_same_as_kubeadm(node: &ClusterNode, authorities: &Path) {
    let directory = "/var/tmp/kubeadm";
    let config = with_directory(&member_configuration(node), directory);
    for suffix in ["crt", "key"] {
        let to = node.path(&format!("{directory}/etcd/ca.{suffix}"));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(authorities.join(format!("etcd/ca.{suffix}")), to).unwrap();
    }
    for name in ["etcd-server", "etcd-peer", "etcd-healthcheck-client"] {
        node.kubeadm(&["init", "phase", "certs", name], Some(&config))
            .done();
    }
    for leaf in LEAVES {
        let of_kubeadm = profile(&node.path(&format!("{directory}/{leaf}.crt")));
        assert_eq!(
            profile(&node.pki(&format!("{leaf}.crt"))),
            of_kubeadm,
            "{leaf}"
        );
    }
    fs::remove_dir_all(node.path(directory)).unwrap();
}

fn bootstrap_member(node: &ClusterNode, authorities: &Path) {
    node.write("/run/kubeadm/kubeadm.yaml", &member_configuration(node));
    node.write(
        "/etc/nodepki/config.yaml",
        &format!("{SETTINGS}role: etcd\n"),
    );
    copy_certificate(
        authorities,
        Authority::EtcdCa,
        node,
        "/etc/kubernetes/pki/etcd/ca.crt",
    );
    let block = &blocks("sh")[0];
    let commands: Vec<&str> = block.lines().collect();
    let [first, second, etcd] = commands[..] else {
        panic!("{commands:?}");
    };
    assert_eq!((first, second), ("nodepki preflight", "nodepki bootstrap"));
    node.nodepki(&["preflight"])
        .done()
        .says(&format!("node {}", node.name()))
        .says("3 certificates");
    signed(node, &["bootstrap", "--wait", "0s"], authorities).says(etcd);
    let files = fs::read_dir(node.path("/etc/kubernetes")).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["pki"], "kubeconfigs");
    let files = fs::read_dir(node.pki("")).unwrap().count();
    assert_eq!(files, 1, "files outside of pki/etcd");
    let config = member_configuration(node);
    node.kubeadm(&["init", "phase", "etcd", "local"], Some(&config))
        .done();
}

fn launch_etcd(node: &ClusterNode) -> Server {
    let manifest = node.path("/etc/kubernetes/manifests/etcd.yaml");
    node.launch("etcd", &fs::read_to_string(manifest).unwrap(), &[])
}

fn serial(file: &Path) -> String {
    let path = file.to_str().unwrap();
    let text = openssl(&["x509", "-in", path, "-noout", "-serial"], b"");
    String::from_utf8(text).unwrap()
}

fn findings(node: &ClusterNode) -> Vec<String> {
    let ran = node.nodepki(&["doctor", "-o", "json"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|finding| finding["severity"] != "info")
        .map(|finding| format!("{} {}", finding["id"], finding["evidence"]))
        .collect()
}

#[test]
fn serves_kube_apiserver_from_etcd_members_with_own_certificates() {
    let cluster = cluster();
    let members = MEMBERS.map(|(name, address)| cluster.add_node(name, address));
    let [first, second, third] = &members;
    let authorities = make_authorities(first);

    for node in &members {
        bootstrap_member(node, &authorities);
        assert_same_as_kubeadm(node, &authorities);
    }
    let mut servers: Vec<Server> = members.iter().map(launch_etcd).collect();
    for (node, server) in members.iter().zip(&mut servers) {
        server.wait_until(|| node.is_ready("etcd"));
    }
    let url = format!("https://{}:2379/v3/cluster/member/list", second.address());
    let list = post_to_etcd(first, &url, "{}");
    let list: Value = serde_json::from_str(&list.done().stdout).unwrap();
    assert_eq!(list["members"].as_array().unwrap().len(), 3);

    for node in &members {
        let ran = node.nodepki(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&ran.done().stdout).unwrap();
        assert_eq!(status["role"], "etcd");
        assert_eq!(status["certificates"].as_array().unwrap().len(), 3);
        assert_eq!(status["authorities"][0]["name"], "etcd-ca");
        assert_eq!(findings(node), [""; 0]);
        node.nodepki(&["needs-renewal"]).ended(1);
    }
    assert_renews(first, &authorities);
    assert_known_without_configuration(second, &authorities);
    assert_role_is_kept(second);
    assert_daemon_renews(third, &authorities);

    let node = cluster.add_node("cpe", "192.0.2.64");
    assert_control_plane_uses_etcd(&node, &authorities);
}

#[test]
fn refuses_role_of_member_on_control_plane_node() {
    let node = running(INIT);
    node.settings("role: etcd\n");
    for command in ["plan", "renew"] {
        let mut run = node.command([command]);
        Ran::of(run.arg("--config").arg(node.outside("config.yaml")))
            .ended(65)
            .says("role is etcd, but ")
            .says("kube-apiserver.yaml runs kube-apiserver on this node (remove the setting");
    }
}

#[test]
fn restarts_etcd_of_member_for_new_ca_without_lease_only_on_request() {
    let cluster = cluster();
    let node = cluster.add_node("etcd9", "192.0.2.69");
    let (authorities, new) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write_authorities(authorities.path());
    write_authorities(new.path());
    let socket = "/run/signer.sock";
    let _signer = RemoteSigner::start(&node.path(socket), authorities.path());
    let settings = format!(
        "apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
role: etcd
signers: {{remote: {{exec: {{command: /bin/bash, args: ['{PLUGIN}', {socket}]}}}}}}
"
    );
    node.write("/etc/nodepki/config.yaml", &settings);
    let config = member_configuration(&node);
    let others = MEMBERS.map(|(name, address)| format!("{name}=https://{address}:2380"));
    let config = config.replace(&others.join(","), "etcd9=https://192.0.2.69:2380");
    node.write("/run/kubeadm/kubeadm.yaml", &config);
    copy_certificate(
        authorities.path(),
        Authority::EtcdCa,
        &node,
        "/etc/kubernetes/pki/etcd/ca.crt",
    );
    node.nodepki(&["bootstrap"]).done();
    node.kubeadm(&["init", "phase", "etcd", "local"], Some(&config))
        .done();
    node.start("etcd");
    let pods = StaticPods::of(&node);
    let is_served = || {
        let url = "https://192.0.2.69:2379/v3/cluster/member/list";
        post_to_etcd(&node, url, "{}").done();
    };
    is_served();

    let file = "/var/tmp/new-ca.crt";
    copy_certificate(new.path(), Authority::EtcdCa, &node, file);
    let step =
        |step: &str, more: &[&str]| node.nodepki(&[&["authority", step, "etcd-ca"], more].concat());
    node.nodepki(&["authority", "stage", "ca", "--certificate", file])
        .ended(78);
    step("stage", &["--certificate", file])
        .ended(75)
        .row_says("etcd", "set reload.coordinateWithLease: false");
    assert_eq!(pods.restarts("etcd"), 0);
    let alone = format!("{settings}reload: {{coordinateWithLease: false}}\n");
    node.write("/etc/nodepki/config.yaml", &alone);
    node.nodepki(&["renew", "--clock-wait", "0s"])
        .done()
        .row_says(
            "etcd",
            "a new process serves at 127.0.0.1:2379 and is healthy",
        );
    assert_eq!(pods.restarts("etcd"), 1);
    for suffix in ["crt", "key"] {
        let name = format!("etcd/ca.{suffix}");
        fs::copy(new.path().join(&name), authorities.path().join(&name)).unwrap();
    }
    step("activate", &["--all-nodes-staged"]).done();
    is_served();
    step("retire", &["--all-nodes-activated"]).done();
    assert_eq!(pods.restarts("etcd"), 2);
    is_served();
    assert_eq!(findings(&node), [""; 0]);
}

/// Renews all certificates of a member; its etcd serves them without a restart.
fn assert_renews(node: &ClusterNode, authorities: &Path) {
    let server = node.pki("etcd/server.crt");
    let before = serial(&server);
    fs::remove_file(node.path("/var/lib/nodepki/issued.json")).unwrap();
    let ran = signed(
        node,
        &["renew", "--all", "--wait", "0s", "--clock-wait", "0s"],
        authorities,
    );
    ran.says("etcd serves serial ")
        .says(&format!(" at 127.0.0.1:2379 and {}:2379", node.address()))
        .says(&format!(" at {}:2380", node.address()));
    assert_ne!(serial(&server), before);
    assert!(!node.path("/var/lib/nodepki/restarts.json").exists());
}

/// Asserts that a member needs neither kubeadm's file, which a reboot removes, nor the setting, to be recognized.
fn assert_known_without_configuration(node: &ClusterNode, authorities: &Path) {
    fs::remove_file(node.path("/run/kubeadm/kubeadm.yaml")).unwrap();
    fs::remove_file(node.path("/var/lib/nodepki/issued.json")).unwrap();
    let renewal = [
        "renew",
        "--name",
        "etcd-peer",
        "--wait",
        "0s",
        "--clock-wait",
        "0s",
    ];
    signed(node, &renewal, authorities).says(&format!(" at {}:2380", node.address()));
    node.write("/etc/nodepki/config.yaml", SETTINGS);
    let ran = node.nodepki(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&ran.done().stdout).unwrap();
    assert_eq!(status["role"], "etcd");
    let names = ["etcd-server", "etcd-peer", "etcd-healthcheck-client"];
    let plan = node.nodepki(&["plan"]);
    for name in names {
        plan.done().row_says(name, "keep");
    }
    plan.says_not("apiserver").says_not("kubeadm init");
}

/// Asserts that a member does not become a control-plane node because the setting is absent.
fn assert_role_is_kept(node: &ClusterNode) {
    node.write("/run/kubeadm/kubeadm.yaml", &member_configuration(node));
    node.nodepki(&["bootstrap", "--wait", "0s"])
        .ended(65)
        .says("this node is an etcd member")
        .says("set role: etcd");
}

/// The daemon replaces all certificates of a member for a new key algorithm, and verifies that etcd serves them.
fn assert_daemon_renews(node: &ClusterNode, authorities: &Path) {
    let socket = "/run/signer.sock";
    let _signer = RemoteSigner::start(&node.path(socket), authorities);
    let settings = format!(
        "apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
role: etcd
signers: {{remote: {{exec: {{command: /bin/bash, args: ['{PLUGIN}', {socket}]}}}}}}
pki: {{defaults: {{key: {{algorithm: ECDSA, ecdsa: {{curve: P384}}}}}}}}
rotation: {{onPolicyChange: now}}
"
    );
    node.write("/etc/nodepki/config.yaml", &settings);
    fs::remove_file(node.path("/var/lib/nodepki/issued.json")).unwrap();
    let files = LEAVES.map(|leaf| node.pki(&format!("{leaf}.crt")));
    let before = files.each_ref().map(|file| serial(file));
    let mut daemon = Daemon::start(node);
    wait_until("the daemon has renewed everything", || {
        let is_new = |(file, before): (&PathBuf, &String)| serial(file) != *before;
        files.iter().zip(&before).all(is_new)
            && !node.path("/var/lib/nodepki/restarts.json").exists()
    });
    daemon.stop();
    let status = node.nodepki(&["status"]);
    for name in ["etcd-server", "etcd-peer", "etcd-healthcheck-client"] {
        status
            .done()
            .row_says(name, "in-use")
            .row_says(name, "P384");
    }
}

fn assert_control_plane_uses_etcd(node: &ClusterNode, authorities: &Path) {
    let config = control_plane_configuration(node);
    node.write("/run/kubeadm/kubeadm.yaml", &config);
    let settings = format!("{SETTINGS}{}", blocks("yaml")[2]);
    node.write("/etc/nodepki/config.yaml", &settings);
    for (authority, to) in [
        (Authority::Ca, "/etc/kubernetes/pki/ca.crt"),
        (
            Authority::FrontProxyCa,
            "/etc/kubernetes/pki/front-proxy-ca.crt",
        ),
        (Authority::EtcdCa, "/etc/etcd-client/ca.crt"),
    ] {
        copy_certificate(authorities, authority, node, to);
    }
    signed(node, &["bootstrap", "--wait", "0s"], authorities);
    assert!(!node.pki("etcd").exists() && !node.pki("apiserver-etcd-client.crt").exists());
    node.kubeadm(
        &["init", "phase", "control-plane", "apiserver"],
        Some(&config),
    )
    .done();
    node.start("kube-apiserver");
    let admin = node.caller("/etc/kubernetes/super-admin.conf");
    wait_until("kube-apiserver reads etcd", || {
        admin.get("/api/v1/namespaces/kube-system").0 == 200
    });
    // The test does not end `kubeadm init`, which would make admin.conf sufficient.
    let found = findings(node);
    assert!(
        found.iter().all(|one| one.contains("super-admin-left")),
        "{found:?}"
    );
    let status = node.nodepki(&["status"]);
    status.done().row_says("apiserver-etcd-client", "ok");
    status.says_not("etcd-server");

    // kube-apiserver reads the new pair for its next connection.
    let certificate = node.path("/etc/etcd-client/kube-apiserver.crt");
    let before = serial(&certificate);
    fs::remove_file(node.path("/var/lib/nodepki/issued.json")).unwrap();
    let renewal = [
        "renew",
        "--name",
        "apiserver-etcd-client",
        "--wait",
        "0s",
        "--clock-wait",
        "0s",
    ];
    signed(node, &renewal, authorities);
    assert_ne!(serial(&certificate), before);
    assert_eq!(admin.get("/api/v1/namespaces/kube-system").0, 200);
}
