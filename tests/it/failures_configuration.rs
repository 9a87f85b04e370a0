//! Faulty configurations: every fault is reported in one run with file, line, field and fix, and no file changes. Each fault
//! is a unit test of its reader; `mistakes` follows the messages.

use std::fs;

use nodepki::kube::names::CertName;

use crate::node::{INIT, JOIN, Node, Ran};

/// `config check` with the local signer.
fn check(node: &Node) -> Ran {
    Ran::of(&mut node.with_local(&["config", "check"], &[]))
}

#[test]
fn accepts_unknown_field_with_warning_as_kubeadm_init_does() {
    let node = Node::of(&format!("{INIT}certSANs: [a.example.com]\n"));
    let words = "kubeadm.yaml:11:1: certSANs: unknown";
    check(&node).ended(78).says(words);
    node.bootstrap().done().says(words);
}

#[test]
fn tells_joining_node_where_to_find_the_cluster_configuration() {
    let node = Node::of(JOIN.split("---\n").next().unwrap());
    check(&node)
        .done()
        .says("bootstrap and plan read the ClusterConfiguration from the cluster");
    let never = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nkubeadm: {fromCluster: never}\n";
    node.write("/etc/nodepki/config.yaml", never);
    for ran in [check(&node), node.bootstrap()] {
        ran.ended(78)
            .says("kubectl -n kube-system get cm kubeadm-config");
    }
}

#[test]
fn needs_no_network_for_version_channel() {
    let node = Node::of(&INIT.replace("v1.37.2", "stable-1"));
    check(&node).done();
    node.bootstrap().done();
    let subject = node.subject(CertName::ApiserverKubeletClient);
    assert!(subject.contains("kubeadm:cluster-admins"), "{subject}");
}

#[test]
fn verifies_files_of_external_etcd_and_creates_none() {
    let files =
        "caFile: /etc/etcd/ca.crt, certFile: /etc/etcd/client.crt, keyFile: /etc/etcd/client.key";
    let node = Node::of(&format!(
        "{INIT}etcd: {{external: {{endpoints: ['https://e1:2379'], {files}}}}}\n"
    ));
    node.bootstrap()
        .done()
        .says(&node.here("note: etcd.external.caFile @/etc/etcd/ca.crt: is absent; provide it before kube-apiserver starts"))
        .says(&node.here("etcd.external.certFile @/etc/etcd/client.crt"))
        .says_not("etcd-server");
    assert!(!node.path("/etc/kubernetes/pki/etcd/server.crt").exists());
    assert!(!node.path("/etc/etcd").exists());
}

#[test]
fn uses_another_certificates_directory_everywhere() {
    let node = Node::of(&format!("{INIT}certificatesDir: /srv/pki\n"));
    fs::create_dir_all(node.path("/srv")).unwrap();
    fs::rename(node.path("/etc/kubernetes/pki"), node.path("/srv/pki")).unwrap();
    node.bootstrap().done();
    for file in ["apiserver.crt", "etcd/server.key", "sa.pub"] {
        assert!(node.path("/srv/pki").join(file).is_file(), "{file}");
    }
    assert!(!node.path("/etc/kubernetes/pki").exists());
}

#[test]
fn never_prints_secrets_of_the_configuration() {
    let token = "abcdef.0123456789abcdef";
    let key = "e6a2eb8581237ab72a4f494f30285ec12a9694d750b9785706a83bfcbbbd2204";
    let password = "hunter2hunter2";
    let secret = format!(
        "{}---\n{}",
        JOIN.replace("{name: cp2}", "{name: cp_2}").replace(
            "controlPlane: {",
            &format!("controlPlane: {{certificateKey: {key}, ")
        ),
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nbootstrapTokens: [{token: abcdef.0123456789abcdef}]\n"
    );
    let node = Node::of(&secret);
    node.settings(&format!(
        "kubeadm: {{files: [{}]}}\nnonsense: {password}\n",
        node.outside("kubeadm.yaml").display()
    ));
    let sources = [
        "--config",
        node.outside("config.yaml").to_str().unwrap(),
        "--kubeadm-config",
        node.outside("kubeadm.yaml").to_str().unwrap(),
    ]
    .map(str::to_owned);
    let runs: [&[&str]; 6] = [
        &["bootstrap"],
        &["plan"],
        &["config", "check"],
        &["config", "show"],
        &["bootstrap", "--log", "json"],
        &["config", "check", "-o", "json"],
    ];
    for faulty in [true, false] {
        if !faulty {
            node.configure(
                secret
                    .replace("cp_2", "cp2")
                    .split("---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration")
                    .next()
                    .unwrap(),
            );
            // Values from the cluster are not waited for.
            node.settings("wait: 1s\n");
        }
        for command in runs {
            let ran = Ran::of(node.command(command).arg("-vv").args(&sources));
            if faulty {
                ran.ended(78);
            }
            for secret in [token, key, "0123456789abcdef", password] {
                ran.says_not(secret);
            }
        }
    }
    // The secrets of a plug-in signer.
    node.edit_settings(
        "exec: {",
        &format!("exec: {{env: {{VAULT_TOKEN: {password}}}, params: {{password: {password}}}, "),
    );
    for command in runs {
        Ran::of(node.command(command).arg("-vv").args(&sources)).says_not(password);
    }
}

#[test]
fn reports_all_faults_of_all_files_at_once() {
    let node = Node::of(
        &INIT
            .replace("192.0.2.11", "127.0.0.1")
            .replace("cp1", "cp_1")
            .replace("v1.37.2", "1.x")
            .replace("api.example.com:6443", "'https://api'"),
    );
    node.settings("wait: soon\nunknown: 1\n");
    let before = node.snapshot();
    let check = || Ran::of(&mut node.configured(["config", "check"]));
    // A run with several faults ends with their number.
    let faults = |ran: &Ran| -> Vec<String> {
        let lines = ran.ended(78).stderr.lines().map(str::to_owned);
        lines
            .filter(|line| !line.contains(" faults; next: "))
            .collect()
    };
    let checked = check();
    let found = faults(&checked);
    let fields = [
        "config.yaml:5:7: wait",
        "config.yaml:6:1: unknown",
        "localAPIEndpoint.advertiseAddress",
        "nodeRegistration.name",
        "kubernetesVersion",
        "controlPlaneEndpoint",
    ];
    assert_eq!(found.len(), fields.len(), "{found:?}");
    for field in fields {
        checked.says(field);
    }
    assert!(found.iter().all(|line| line.starts_with("nodepki: ")));
    before.unchanged(&node.snapshot());
    // A run reports the same faults of the kubeadm configuration.
    node.settings("");
    let before = node.snapshot();
    assert_eq!(faults(&check()), faults(&node.ask()));
    before.unchanged(&node.snapshot());
}
