//! A complete node whose kubeadm file was removed, as after its first boot: the desired state follows from the node's own
//! files and stays the same. The manifests are those of the real kubeadm; a test that asks the cluster uses a real
//! one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nodepki::kube::names::CertName;
use serde_json::Value;

use crate::kubeadm::{self, Node as Kubeadm};
use crate::node::{INIT, Node, Ran};
use crate::servers::cluster::{self, cluster};

const KUBEADM_FILE: &str = "/run/kubeadm/kubeadm.yaml";
const RECORDED_CONFIGURATION: &str = "/var/lib/nodepki/cluster-configuration.yaml";
const MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
const EXTERNAL_ETCD: &str = "etcd: {external: {endpoints: ['https://192.0.2.9:2379'], caFile: /etc/etcd/ca.crt, certFile: /etc/etcd/c.crt, keyFile: /etc/etcd/c.key}}\n";

/// Returns the first node of a cluster, with parameters for the fields that vary in these tests.
fn init(api: &str, address: &str, cluster: &str) -> String {
    format!(
        "apiVersion: kubeadm.k8s.io/{api}
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: '{address}', bindPort: 7443}}
nodeRegistration: {{name: cp1}}
---
apiVersion: kubeadm.k8s.io/{api}
kind: ClusterConfiguration
kubernetesVersion: v1.37.2
{cluster}"
    )
}

fn local(node: &Node) -> String {
    format!("local:{}", node.ca().display())
}

fn run(node: &Node, arguments: &[&str]) -> Ran {
    let signer = local(node);
    node.run(&[arguments, &["--signer", &signer]].concat())
}

fn bootstrap(node: &Node) -> Ran {
    run(node, &["bootstrap", "--clock-wait", "0s"])
}

/// Writes the manifests as the real kubeadm does for this configuration.
fn write_manifests(node: &Node, config: &str) {
    let etc = node.path("/etc/kubernetes");
    for phase in [&["control-plane", "all"][..], &["etcd", "local"]] {
        if phase == ["etcd", "local"] && config.contains("external:") {
            continue;
        }
        let command = [&["init", "phase"], phase].concat();
        Ran::from(Kubeadm::new(&etc).run(config, &command)).done();
    }
}

fn remove_kubeadm_file(node: &Node) {
    fs::remove_dir_all(node.path("/run/kubeadm")).unwrap();
}

/// Returns a node on which nodepki and kubeadm have run; its kubeadm file still exists.
fn set_up(config: &str) -> Node {
    let node = Node::of(config);
    node.write(KUBEADM_FILE, config);
    bootstrap(&node).done();
    write_manifests(&node, config);
    node
}

/// As [`set_up`], without the kubeadm file.
pub(crate) fn running(config: &str) -> Node {
    let node = set_up(config);
    remove_kubeadm_file(&node);
    node
}

/// Returns the desired state of each certificate: subject, names, key, files and action.
fn desired(ran: &Ran) -> BTreeMap<String, Value> {
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        let state = ["subject", "sans", "key", "paths", "action"].map(|field| row[field].clone());
        (
            row["name"].as_str().unwrap().to_owned(),
            state.to_vec().into(),
        )
    })
    .collect()
}

fn plan(node: &Node) -> Ran {
    let ran = run(node, &["plan", "-o", "json"]);
    ran.done();
    ran
}

#[track_caller]
fn assert_everything_kept(ran: &Ran) {
    for (name, state) in desired(ran) {
        assert_eq!(state[4], "keep", "{name}: {}", ran.said());
    }
}

#[test]
fn keeps_desired_state_after_reboot_by_files_of_the_node() {
    for (what, config) in [
        (
            "stacked",
            init(
                "v1beta4",
                "192.0.2.11",
                "encryptionAlgorithm: ECDSA-P256\napiServer: {certSANs: [a.example.com, 198.51.100.7]}\n",
            ),
        ),
        ("shared endpoint", INIT.to_owned()),
        (
            "external etcd",
            init("v1beta4", "192.0.2.11", EXTERNAL_ETCD),
        ),
        (
            "IPv6",
            init(
                "v1beta4",
                "2001:db8::11",
                "networking: {serviceSubnet: 'fd00:10::/112', podSubnet: 'fd00:20::/64'}\n",
            ),
        ),
        (
            "v1beta3",
            init(
                "v1beta3",
                "192.0.2.11",
                "clusterName: old\netcd: {local: {dataDir: /var/lib/etcd, serverCertSANs: [e.example.com]}}\n",
            ),
        ),
    ] {
        let node = Node::of(&config);
        node.write(KUBEADM_FILE, &config);
        bootstrap(&node)
            .done()
            .row_says("cluster-configuration.yaml", "written");
        // kubeadm 1.36, the last one that reads v1beta3, wrote the same manifests.
        write_manifests(&node, &config.replace("v1beta3", "v1beta4"));
        let before = plan(&node);
        assert_everything_kept(&before);
        remove_kubeadm_file(&node);
        let after = plan(&node);
        assert_eq!(desired(&before), desired(&after), "{what}");
        let snapshot = node.snapshot();
        bootstrap(&node).done();
        snapshot.unchanged(&node.snapshot());
        // kubeadm's own repairs work without a file, and so do nodepki's.
        node.remove("/etc/kubernetes/pki/apiserver.crt");
        bootstrap(&node).done().row_says("apiserver", "issued");
        assert_everything_kept(&plan(&node));
    }
}

/// Without `etcd.external`, a ClusterConfiguration that is written again describes a stacked etcd.
#[test]
fn refuses_local_etcd_for_node_with_external_one() {
    let config = init("v1beta4", "192.0.2.11", EXTERNAL_ETCD);
    let node = running(&config);
    let kept = node.read(RECORDED_CONFIGURATION);
    let rewritten = config.replace(EXTERNAL_ETCD, "");
    let (_, rewritten) = rewritten.split_once("---\n").unwrap();
    node.write(RECORDED_CONFIGURATION, rewritten);
    let snapshot = node.snapshot();
    let message = "the ClusterConfiguration has no etcd.external, but this node's API server uses etcd at https://192.0.2.9:2379";
    for ran in [run(&node, &["plan"]), bootstrap(&node)] {
        ran.ended(65)
            .says(message)
            .says("manifests/etcd.yaml does not exist");
    }
    snapshot.unchanged(&node.snapshot());
    node.write(RECORDED_CONFIGURATION, kept);
    assert_everything_kept(&plan(&node));
}

#[test]
fn recognises_joined_node_without_its_file() {
    let config = crate::node::JOIN;
    let node = Node::of(config);
    node.write("/run/kubeadm/kubeadm-join-config.yaml", config);
    let pair = nodepki::x509::PrivateKey::generate(nodepki::x509::KeyAlgorithm::Rsa2048).unwrap();
    node.write("/etc/kubernetes/pki/sa.key", pair.to_pem().as_bytes());
    // The modes of `cp` with an ordinary umask: the run that derives sa.pub also corrects them.
    node.set_mode("/etc/kubernetes/pki/sa.key", 0o644);
    bootstrap(&node).done();
    assert_eq!(node.mode("/etc/kubernetes/pki/sa.key"), 0o600);
    // `kubeadm join` would need the cluster; `init` writes the same files and also requires those of a first node.
    let admin = node.read("/etc/kubernetes/admin.conf");
    node.write("/etc/kubernetes/super-admin.conf", admin);
    write_manifests(
        &node,
        &INIT
            .replace("192.0.2.11", "192.0.2.12")
            .replace("cp1", "cp2"),
    );
    node.remove("/etc/kubernetes/super-admin.conf");
    let before = desired(&plan(&node));
    remove_kubeadm_file(&node);
    let after = plan(&node);
    assert_eq!(before, desired(&after));
    assert_everything_kept(&after);
    assert!(!desired(&after).contains_key("super-admin.conf"));
    after.says_not("FileAvailable");
    // A new pair would invalidate the tokens of the other nodes.
    node.remove("/etc/kubernetes/pki/sa.key");
    node.remove("/etc/kubernetes/pki/sa.pub");
    let snapshot = node.etc();
    bootstrap(&node).ended(65).says("sa.key is absent");
    snapshot.unchanged(&node.etc());
}

#[test]
fn reads_other_certificates_directory_from_record_and_compares_it_with_the_manifest() {
    kubeadm::binary();
    let config = init(
        "v1beta4",
        "192.0.2.11",
        "certificatesDir: /etc/kubernetes/elsewhere\n",
    );
    let node = Node::of(&config);
    let (from, to) = ["pki", "elsewhere"]
        .map(|name| node.path("/etc/kubernetes").join(name))
        .into();
    fs::rename(from, to).unwrap();
    node.write(KUBEADM_FILE, &config);
    bootstrap(&node).done();
    write_manifests(&node, &config);
    remove_kubeadm_file(&node);
    let ran = plan(&node);
    assert_everything_kept(&ran);
    assert!(!node.path("/etc/kubernetes/pki").exists());
    ran.says_not("certificatesDir");
    let manifest = node.read(MANIFEST);
    node.write(
        MANIFEST,
        manifest.replace(
            "--tls-cert-file=/etc/kubernetes/elsewhere/",
            "--tls-cert-file=/etc/other/",
        ),
    );
    plan(&node)
        .says(&node.here("kube-apiserver serves @/etc/other/apiserver.crt"))
        .says("certificatesDir");
}

#[test]
fn records_only_the_cluster_configuration() {
    let secrets = "bootstrapTokens: [{token: abcdef.0123456789abcdef}]\ncertificateKey: '1111111111111111111111111111111111111111111111111111111111111111'\n";
    let config = INIT.replacen(
        "kind: InitConfiguration\n",
        &format!("kind: InitConfiguration\n{secrets}"),
        1,
    );
    let node = running(&config);
    let kept = node.read(RECORDED_CONFIGURATION);
    assert!(kept.contains("kind: ClusterConfiguration"), "{kept}");
    for secret in ["0123456789abcdef", "11111111", "InitConfiguration", "cp1"] {
        assert!(!kept.contains(secret), "{secret} in {kept}");
    }
    assert_eq!(node.mode(RECORDED_CONFIGURATION), 0o600);
    // kubeadm accepts the recorded file too.
    let etc = node.path("/etc/kubernetes");
    Ran::from(Kubeadm::new(&etc).run(&kept, &["config", "validate"])).done();
}

#[test]
fn records_key_policy_of_the_kubeadm_file() {
    let policy = "---\napiVersion: config.openshift.io/v1\nkind: PKI\nmetadata: {name: cluster}\nspec: {defaults: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}\n";
    let node = Node::of(INIT);
    node.write(KUBEADM_FILE, format!("{INIT}{policy}"));
    bootstrap(&node).done();
    let before = desired(&plan(&node));
    assert_eq!(before["apiserver"][2], "ECDSA-P384");
    remove_kubeadm_file(&node);
    assert_eq!(before, desired(&plan(&node)));
}

#[test]
fn takes_node_name_from_the_kubelets_certificate_wherever_it_is() {
    let node = running(INIT);
    node.write("/etc/hostname", "another-name\n");
    assert_everything_kept(&plan(&node));
    // The state after TLS bootstrap: the certificate in a file, behind a link.
    let (chain, key) = node.leaf(CertName::KubeletConf).unwrap();
    let pem = format!("{}{}", chain.to_pem(), &*key.to_pem());
    node.write("/var/lib/kubelet/pki/kubelet-client-2026.pem", pem);
    std::os::unix::fs::symlink(
        "/var/lib/kubelet/pki/kubelet-client-2026.pem",
        node.path("/var/lib/kubelet/pki/kubelet-client-current.pem"),
    )
    .unwrap();
    let text = node.read("/etc/kubernetes/kubelet.conf");
    let by_file: Vec<String> = text
        .lines()
        .map(|line| match line.trim().split(':').next() {
            Some(field @ ("client-certificate-data" | "client-key-data")) => {
                let indent = &line[..line.len() - line.trim_start().len()];
                let name = field.trim_end_matches("-data");
                format!("{indent}{name}: /var/lib/kubelet/pki/kubelet-client-current.pem")
            }
            _ => line.to_owned(),
        })
        .collect();
    node.write("/etc/kubernetes/kubelet.conf", by_file.join("\n"));
    assert_eq!(desired(&plan(&node))["etcd-server"][0], "CN=cp1");
    // Without a kubelet certificate the name is that of the etcd member, and only then the host name.
    node.remove("/etc/kubernetes/kubelet.conf");
    assert_eq!(desired(&plan(&node))["etcd-server"][0], "CN=cp1");
    node.remove("/etc/kubernetes/manifests/etcd.yaml");
    assert_eq!(desired(&plan(&node))["etcd-server"][0], "CN=cp1");
    node.remove("/etc/kubernetes/pki/etcd/server.crt");
    let ran = run(&node, &["plan", "-o", "json"]);
    ran.ended(65).says("etcd/peer.crt says cp1");
    assert_eq!(desired(&ran)["etcd-server"][0], "CN=another-name");
}

#[test]
fn keeps_role_of_node_whose_manifests_were_moved_away() {
    let node = running(INIT);
    let before = desired(&plan(&node));
    fs::rename(
        node.path("/etc/kubernetes/manifests"),
        node.path("/etc/kubernetes/stopped"),
    )
    .unwrap();
    assert_eq!(before, desired(&plan(&node)));
    node.remove("/etc/kubernetes/controller-manager.conf");
    // Its other files show a control-plane node, whose address is not in any of them.
    run(&node, &["plan"])
        .ended(78)
        .says("neither the manifest of kube-apiserver nor controller-manager.conf contains");
}

#[test]
fn names_three_ways_out_without_recorded_configuration() {
    let node = running(INIT);
    node.remove(RECORDED_CONFIGURATION);
    node.remove("/etc/kubernetes/kubelet.conf");
    node.remove("/etc/kubernetes/admin.conf");
    let snapshot = node.snapshot();
    for command in [
        &["plan"][..],
        &["bootstrap"],
        &["csr", "export", "@/requests"],
    ] {
        run(&node, command)
            .ended(78)
            .says("--kubeadm-config FILE")
            .says(RECORDED_CONFIGURATION)
            .says("kubeadm.fromCluster")
            .says(
                "/etc/kubernetes/admin.conf does not exist and cannot be used to query the cluster",
            );
    }
    // A node that was never set up is not told to ask its cluster.
    fs::remove_dir_all(node.path("/etc/kubernetes")).unwrap();
    run(&node, &["plan"])
        .ended(78)
        .says("--kubeadm-config FILE");
    drop(snapshot);
}

#[test]
fn does_not_ask_cluster_if_settings_forbid_it() {
    let node = running(INIT);
    node.remove(RECORDED_CONFIGURATION);
    node.settings("kubeadm: {fromCluster: never}\n");
    let config = node.outside("config.yaml");
    let ran = node.run(&["plan", "--config", config.to_str().unwrap()]);
    ran.ended(78).says("kubeadm.fromCluster is never");
}

#[test]
fn refuses_new_address_until_it_is_accepted() {
    let node = set_up(INIT);
    let moved = INIT.replace("192.0.2.11", "192.0.2.99");
    node.write(KUBEADM_FILE, &moved);
    let words = "places this node's API server at 192.0.2.99:6443, but it runs at 192.0.2.11:6443";
    run(&node, &["plan"])
        .ended(65)
        .says(words)
        .says("--accept-address-change");
    let snapshot = node.snapshot();
    let refused = bootstrap(&node);
    refused
        .ended(65)
        .says(words)
        .says("--accept-address-change");
    refused
        .says("--initial-advertise-peer-urls=https://192.0.2.11:2380")
        .says("etcdctl member update");
    run(&node, &["csr", "export", "@/requests"])
        .ended(65)
        .says(words);
    snapshot.unchanged(&node.snapshot());
    let accepted = run(
        &node,
        &["bootstrap", "--clock-wait", "0s", "--accept-address-change"],
    );
    accepted.done().row_says("apiserver", "issued").says(words);
    let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
    assert!(
        chain
            .leaf()
            .ip_addresses()
            .contains(&"192.0.2.99".parse().unwrap())
    );
}

#[test]
fn takes_omitted_address_from_the_node() {
    let node = set_up(INIT);
    let open = INIT.replace("localAPIEndpoint: {advertiseAddress: 192.0.2.11}\n", "");
    node.write(KUBEADM_FILE, &open);
    assert_everything_kept(&plan(&node));
}

#[test]
fn refuses_new_node_name_and_tells_what_to_do() {
    let node = set_up(INIT);
    node.write(KUBEADM_FILE, INIT.replace("name: cp1", "name: cp7"));
    let snapshot = node.snapshot();
    let words = "names this node cp7, but it runs as cp1";
    bootstrap(&node)
        .ended(65)
        .says(words)
        .says("nodeName: cp1")
        .says("kubeadm reset");
    run(&node, &["bootstrap", "--accept-address-change"])
        .ended(65)
        .says(words);
    snapshot.unchanged(&node.snapshot());
    run(&node, &["plan"]).ended(65).says(words);
    remove_kubeadm_file(&node);
    run(&node, &["plan", "--node-name", "cp7"])
        .ended(65)
        .says(words);
}

#[test]
fn accepts_new_name_and_address_before_kubeadm_has_run() {
    let node = Node::of(INIT);
    node.write(KUBEADM_FILE, INIT);
    bootstrap(&node).done();
    node.write(
        KUBEADM_FILE,
        INIT.replace("192.0.2.11", "192.0.2.99")
            .replace("name: cp1", "name: cp7"),
    );
    bootstrap(&node)
        .done()
        .row_says("apiserver", "issued")
        .says_not("--accept-address-change");
}

#[test]
fn recognises_worker_by_its_kubelet_conf() {
    let config = crate::node::JOIN.split_once("controlPlane:").unwrap().0;
    let node = Node::of(config);
    node.write("/run/kubeadm/kubeadm-join-config.yaml", config);
    run(&node, &["bootstrap", "--clock-wait", "0s", "--wait", "1s"]).done();
    let before = desired(&plan(&node));
    remove_kubeadm_file(&node);
    let after = plan(&node);
    assert_everything_kept(&after);
    assert_eq!(before["kubelet.conf"], desired(&after)["kubelet.conf"]);
    node.remove(Path::new("/etc/kubernetes/kubelet.conf"));
    run(&node, &["plan"]).ended(78);
}

#[test]
fn takes_node_with_join_configuration_of_worker_for_a_worker() {
    let config = crate::node::JOIN.split_once("controlPlane:").unwrap().0;
    let node = Node::of(config);
    node.write("/run/kubeadm/kubeadm-join-config.yaml", config);
    run(&node, &["bootstrap", "--clock-wait", "0s", "--wait", "1s"]).done();
    // Files of a network plug-in or of an earlier installation.
    let etcd = fs::read(node.ca().join("etcd/ca.crt")).unwrap();
    node.write("/etc/kubernetes/pki/etcd/ca.crt", etcd);
    node.write("/etc/kubernetes/pki/sa.pub", "");
    let is_worker = || {
        let status = node.run(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&status.done().stdout).unwrap();
        assert_eq!(status["role"], "worker", "{status}");
        assert_eq!(status["serviceAccount"], Value::Null);
        let certificates = status["certificates"].as_array().unwrap();
        assert_eq!(certificates.len(), 1, "{status}");
        let notes = status["notes"].to_string();
        assert!(notes.contains("/pki/sa.pub"), "{notes}");
        let signer = local(&node);
        let doctor = node.run(&["doctor", "--signer", &signer]);
        doctor
            .says_not("sa.key and sa.pub")
            .says_not("sa-missing")
            .says_not("missing-certificate")
            .says_not("missing-authority");
    };
    is_worker();
    // After a reboot only the file that bootstrap left for kubeadm shows the role.
    remove_kubeadm_file(&node);
    assert!(node.path("/var/lib/nodepki/kubeadm-join.yaml").exists());
    is_worker();
    node.remove(Path::new("/var/lib/nodepki/kubeadm-join.yaml"));
    // The last run of nodepki recorded it.
    is_worker();
    node.remove(Path::new("/var/lib/nodepki/node.json"));
    let status = node.run(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&status.done().stdout).unwrap();
    assert_eq!(
        status["role"], "control-plane",
        "by its files alone: {status}"
    );
}

#[test]
fn asks_running_cluster_for_its_configuration_once() {
    let cluster = cluster();
    let node = cluster.first();
    // A copy of the node's files in a temporary root, from which the cluster can be reached.
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    kubeadm::copy_tree(
        &node.path("/etc/kubernetes"),
        &root.path().join("etc/kubernetes"),
    );
    let signer = format!("local:{}", root.path().join("etc/kubernetes/pki").display());
    let ask = |arguments: &[&str]| {
        let root = root.path().to_str().unwrap();
        let mut command = node.command(crate::node::NODEPKI);
        command
            .args(["--root", root])
            .args(arguments)
            .args(["--signer", &signer]);
        Ran::of(&mut command)
    };
    let report = ask(&["plan", "-o", "json"]);
    report.done();
    assert_eq!(
        desired(&report)["apiserver"][4],
        "keep",
        "{}",
        report.said()
    );
    assert_eq!(desired(&report)["cluster-configuration.yaml"][4], "write");
    let kept = root
        .path()
        .join("var/lib/nodepki/cluster-configuration.yaml");
    assert!(!kept.exists(), "plan writes nothing");
    ask(&["bootstrap"])
        .done()
        .row_says("cluster-configuration.yaml", "written");
    assert!(
        fs::read_to_string(&kept)
            .unwrap()
            .contains(cluster::ENDPOINT)
    );
    // Later runs do not ask the cluster, and work without it.
    for name in ["kubelet.conf", "admin.conf"] {
        let path = root.path().join("etc/kubernetes").join(name);
        let text = fs::read_to_string(&path).unwrap();
        let server = text
            .lines()
            .find(|line| line.trim().starts_with("server:"))
            .unwrap();
        fs::write(
            &path,
            text.replace(server, "    server: https://192.0.2.250:1"),
        )
        .unwrap();
    }
    let offline = ask(&["plan", "-o", "json"]);
    assert_eq!(
        desired(&offline)["apiserver"][4],
        "keep",
        "{}",
        offline.said()
    );
    fs::remove_file(kept).unwrap();
    ask(&["plan"])
        .ended(69)
        .says("--kubeadm-config FILE")
        .says("kubelet.conf");
}

#[test]
fn renews_same_certificates_without_the_file_and_refuses_new_address() {
    let node = set_up(INIT);
    let before = desired(&plan(&node));
    remove_kubeadm_file(&node);
    let all = run(
        &node,
        &["renew", "--all", "--clock-wait", "0s", "-o", "json"],
    );
    // Every certificate was issued just now.
    all.ended(75);
    for (name, state) in desired(&all) {
        let wanted = before.get(&name).unwrap_or_else(|| panic!("{name}"));
        for field in 0..4 {
            assert_eq!(state[field], wanted[field], "{name}");
        }
    }
    assert_everything_kept(&plan(&node));
    run(&node, &["needs-renewal"]).ended(1);
    let moved = INIT.replace("192.0.2.11", "192.0.2.99");
    node.write(KUBEADM_FILE, &moved);
    let etc = node.etc();
    let words = "but it runs at 192.0.2.11:6443";
    run(&node, &["renew", "--all"]).ended(65).says(words);
    run(&node, &["needs-renewal"]).ended(255).says(words);
    etc.unchanged(&node.etc());
}

#[test]
fn shows_new_address_in_a_dry_run() {
    let node = set_up(INIT);
    node.write(KUBEADM_FILE, INIT.replace("192.0.2.11", "192.0.2.99"));
    let snapshot = node.snapshot();
    let dry = ["renew", "--dry-run"];
    run(&node, &dry)
        .ended(65)
        .says("but it runs at 192.0.2.11:6443")
        .row_says("apiserver", "SAN IP:192.0.2.99 is missing");
    run(&node, &[&dry[..], &["--accept-address-change"]].concat()).done();
    snapshot.unchanged(&node.snapshot());
}

#[test]
fn refuses_recorded_configuration_without_cluster_configuration() {
    let node = running(INIT);
    let etc = node.etc();
    // The empty file of a failed write is treated as absent.
    for blank in ["", "\n"] {
        node.write(RECORDED_CONFIGURATION, blank);
        node.settings("kubeadm: {fromCluster: never}\n");
        let config = node.outside("config.yaml");
        let config = config.to_str().unwrap();
        run(&node, &["renew", "--config", config])
            .ended(78)
            .says("there is no kubeadm configuration");
    }
    node.write(RECORDED_CONFIGURATION, "kind: ConfigMap\n");
    for command in ["renew", "plan"] {
        run(&node, &[command]).ended(78).says(
            "cluster-configuration.yaml does not contain a ClusterConfiguration; put the cluster's there",
        );
    }
    run(&node, &["needs-renewal"]).ended(255);
    etc.unchanged(&node.etc());
}

#[test]
fn keeps_cluster_of_running_node_with_init_configuration_alone() {
    let node = running(INIT);
    let (init, _) = INIT.split_once("---\n").unwrap();
    node.write(KUBEADM_FILE, init);
    assert_everything_kept(&plan(&node));
    run(&node, &["needs-renewal"]).ended(1);
}

/// An empty kubeadm file, as a failed write leaves it, describes nothing: the node keeps the names of its cluster.
#[test]
fn empty_kubeadm_file_changes_nothing_on_a_running_node() {
    let node = set_up(INIT);
    let before = desired(&plan(&node));
    for text in ["", "# nothing\n", "---\n"] {
        node.write(KUBEADM_FILE, text);
        let ran = plan(&node);
        ran.says("kubeadm.yaml is empty and is ignored");
        assert_eq!(desired(&ran), before, "{text:?}");
        let snapshot = node.snapshot();
        bootstrap(&node).done();
        snapshot.unchanged(&node.snapshot());
    }
    // Nothing else says what the cluster is.
    node.remove(RECORDED_CONFIGURATION);
    node.remove("/etc/kubernetes/kubelet.conf");
    node.remove("/etc/kubernetes/admin.conf");
    run(&node, &["plan"])
        .ended(78)
        .says("--kubeadm-config FILE");
    // A node that was never set up needs the file.
    let fresh = Node::of(INIT);
    fresh.write(KUBEADM_FILE, "");
    run(&fresh, &["plan"]).ended(78).says("the file is empty");
}

/// Below another root, kubeadm is not run on this machine.
#[test]
fn next_command_below_another_root_begins_with_the_boot() {
    let node = Node::of(INIT);
    node.write(KUBEADM_FILE, INIT);
    bootstrap(&node).done().says(&format!(
        "next: nodepki doctor, then boot the node and run there: kubeadm init --config {KUBEADM_FILE}"
    ));
    // The copy of the ClusterConfiguration does not describe the node.
    node.remove(KUBEADM_FILE);
    bootstrap(&node)
        .done()
        .says("kubeadm init --config FILE, with the file that describes this node");
}
