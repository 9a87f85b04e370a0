//! Faulty configurations: every fault is reported in one run with file, line, field and fix, and no file changes.

use std::fs;

use nodepki::kube::names::CertName;

use crate::node::{EVERYTHING, INIT, JOIN, Node, Ran};

/// Asserts that `config check` and `bootstrap` refuse with `words`, and that neither changes a file.
fn assert_refused(node: &Node, words: &[&str]) -> Ran {
    let before = node.snapshot();
    let checked = Ran::of(&mut node.with_local(&["config", "check"], &[]));
    let ran = node.bootstrap();
    for ran in [&checked, &ran] {
        ran.ended(78);
        for words in words {
            ran.says(words);
        }
        for line in ran.stderr.lines() {
            assert!(line.starts_with("nodepki: "), "{line}");
        }
    }
    // A run with several faults ends with their number.
    let messages = |ran: &Ran| -> Vec<String> {
        let lines = ran.stderr.lines();
        let lines = lines.filter(|line| !line.contains(" faults; next: "));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(messages(&checked), messages(&ran));
    before.unchanged(&node.snapshot());
    ran
}

/// Asserts that both accept the configuration, with `words` as warnings.
fn assert_accepted(node: &Node, words: &[&str]) -> Ran {
    let checked = Ran::of(&mut node.with_local(&["config", "check"], &[]));
    let ran = node.bootstrap();
    for ran in [&checked, &ran] {
        ran.done();
        for words in words {
            ran.says(words);
        }
    }
    ran
}

#[test]
fn names_old_api_versions_and_how_to_migrate() {
    for (version, release) in [
        ("v1beta2", "v1.22"),
        ("v1beta1", "v1.15"),
        ("v1alpha3", "v1.13"),
    ] {
        let node = Node::of(&INIT.replace("v1beta4", version));
        assert_refused(
            &node,
            &[
                &format!(
                    "kubeadm.yaml:1:1: kubeadm.k8s.io/{version} (kind InitConfiguration) is an old API that kubeadm 1.31 and later refuse"
                ),
                &format!(
                    "run kubeadm config migrate --old-config OLD --new-config NEW with kubeadm {release}"
                ),
            ],
        );
    }
    let node = Node::of(&INIT.replace("v1beta4", "v1beta9"));
    assert_refused(
        &node,
        &[
            "kubeadm.k8s.io/v1beta9 (kind ClusterConfiguration) is not supported by this release of nodepki",
            "use kubeadm.k8s.io/v1beta4",
        ],
    );
}

#[test]
fn names_arguments_in_the_form_of_another_api_version() {
    let node = Node::of(&format!("{INIT}apiServer:\n  extraArgs: {{v: '2'}}\n"));
    assert_refused(
        &node,
        &[
            "kubeadm.yaml:12:14: ",
            "apiServer.extraArgs: is a map, but kubeadm.k8s.io/v1beta4 requires a list",
            "write `- name: NAME` and `value: VALUE`, or change the document to v1beta3",
        ],
    );
    let old = INIT
        .replace("v1beta4", "v1beta3")
        .replace("encryptionAlgorithm: ECDSA-P256\n", "");
    let node = Node::of(&format!(
        "{old}scheduler:\n  extraArgs: [{{name: v, value: '2'}}]\n"
    ));
    assert_refused(
        &node,
        &["scheduler.extraArgs: is a list, but kubeadm.k8s.io/v1beta3 requires a map"],
    );
    // kubeadm config validate refuses an unknown field; kubeadm init warns of it.
    let node = Node::of(&format!("{INIT}certSANs: [a.example.com]\n"));
    let words = "kubeadm.yaml:11:1: certSANs: unknown";
    Ran::of(&mut node.with_local(&["config", "check"], &[]))
        .ended(78)
        .says(words);
    node.bootstrap().done().says(words);
}

#[test]
fn tells_joining_node_where_to_find_the_cluster_configuration() {
    let alone = JOIN.split("---\n").next().unwrap();
    let node = Node::of(alone);
    Ran::of(&mut node.with_local(&["config", "check"], &[]))
        .done()
        .says("bootstrap and plan read the ClusterConfiguration from the cluster");
    let never = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nkubeadm: {fromCluster: never}\n";
    node.write("/etc/nodepki/config.yaml", never);
    assert_refused(
        &node,
        &[
            "kubeadm.yaml:1:1: this JoinConfiguration is for a control-plane node, but the ClusterConfiguration that defines its certificates is missing",
            "kubectl -n kube-system get cm kubeadm-config",
        ],
    );
    // The ConfigMap as kubectl prints it is accepted.
    let cluster = JOIN.split("---\n").nth(1).unwrap().replace('\n', "\n    ");
    let map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kubeadm-config}}\ndata:\n  ClusterConfiguration: |\n    {cluster}\n"
    );
    node.configure(&format!("{alone}---\n{map}"));
    Ran::of(&mut node.with_local(&["config", "check"], &[])).done();
}

#[test]
fn refuses_version_channel_without_looking_it_up() {
    for version in ["stable-1", "ci/latest", "latest-1.36"] {
        let node = Node::of(&INIT.replace("v1.36.2", version));
        // No network is used or waited for.
        Ran::of(&mut node.with_local(&["config", "check"], &[])).done();
        node.bootstrap().done();
        let (chain, _) = node.leaf(CertName::ApiserverKubeletClient).unwrap();
        assert!(
            chain
                .leaf()
                .subject()
                .to_string()
                .contains("kubeadm:cluster-admins")
        );
    }
    let node = Node::of(&INIT.replace("v1.36.2", "v1.36"));
    assert_refused(
        &node,
        &[
            "kubernetesVersion: \"v1.36\" is not a Kubernetes version",
            "write it in full, such as v1.36.2, or remove it",
        ],
    );
}

#[test]
fn converts_names_to_lower_case_with_a_note() {
    let capitals = INIT.replace("api.example.com", "API.Example.com")
        + "etcd: {local: {serverCertSANs: [ETCD.Example.com]}}\napiServer: {certSANs: [K8S.Example.com]}\n";
    let node = Node::of(&capitals);
    assert_accepted(
        &node,
        &[
            "controlPlaneEndpoint",
            "etcd.local.serverCertSANs[0]: \"ETCD.Example.com\" is read as \"etcd.example.com\"; kubeadm refuses upper-case letters here",
        ],
    );
    let names = |name| node.leaf(name).unwrap().0.leaf().dns_names().to_vec();
    assert!(names(CertName::EtcdServer).contains(&"etcd.example.com".to_owned()));
    for name in ["api.example.com", "k8s.example.com"] {
        assert!(names(CertName::Apiserver).contains(&name.to_owned()));
    }
}

#[test]
fn refuses_names_that_cannot_be_sans_and_canonicalises_others() {
    let with_sans = |sans: &str| Node::of(&format!("{INIT}apiServer:\n  certSANs: [{sans}]\n"));
    let node = with_sans("'*.example.com', 010.0.0.1");
    assert_accepted(&node, &["apiServer.certSANs[1]", "10.0.0.1"]);
    let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
    assert!(
        chain
            .leaf()
            .dns_names()
            .contains(&"*.example.com".to_owned())
    );
    assert!(
        chain
            .leaf()
            .ip_addresses()
            .contains(&"10.0.0.1".parse().unwrap())
    );
    for bad in [
        "'https://api.example.com'",
        "10.0.0.0/24",
        "'a_b.example.com'",
        "'a.*.example.com'",
    ] {
        assert_refused(
            &with_sans(bad),
            &["kubeadm.yaml:12:14: ", "apiServer.certSANs[0]"],
        );
    }
}

#[test]
fn removes_duplicate_names_and_warns_of_long_ones() {
    let name = "n".repeat(60);
    let mut many = String::from("a.example.com, a.example.com, 192.0.2.11");
    for index in 0..120 {
        many.push_str(&format!(", n{index}.example.com"));
    }
    let node = Node::of(&format!(
        "{}apiServer:\n  certSANs: [{many}]\n",
        INIT.replace("cp1", &name)
    ));
    assert_accepted(
        &node,
        &[
            "the common name in kubelet.conf is longer than the 64 bytes that X.520 allows (system:node:… has 72); many signers refuse it",
            "use a shorter node name, at most 52 bytes",
            "names in one certificate; many signers refuse more than 100",
        ],
    );
    let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
    let count = |name: &str| {
        chain
            .leaf()
            .dns_names()
            .iter()
            .filter(|found| *found == name)
            .count()
    };
    assert_eq!(count("a.example.com"), 1);
}

#[test]
fn refuses_joining_node_without_shared_endpoint() {
    let node = Node::of(&JOIN.replace("controlPlaneEndpoint: api.example.com:6443\n", ""));
    assert_refused(
        &node,
        &[
            "a further control-plane node can join only a cluster with a controlPlaneEndpoint, and none is set",
            "set controlPlaneEndpoint to the name or address of the load balancer, in the cluster's kubeadm-config too",
        ],
    );
}

#[test]
fn warns_of_algorithm_that_the_nodes_kubeadm_refuses() {
    let node = Node::of(&INIT.replace("P256", "P384").replace("v1.36.2", "v1.33.1"));
    assert_accepted(
        &node,
        &[
            "kubeadm 1.34 and later accept ECDSA-P384; that of this cluster, v1.33.1, refuses the file",
        ],
    );
    node.assert_sound(&EVERYTHING);
    let node = Node::of(&INIT.replace("ECDSA-P256", "Ed25519"));
    assert_refused(
        &node,
        &[
            "encryptionAlgorithm: \"Ed25519\" is not an encryption algorithm of kubeadm",
            "use RSA-2048, RSA-3072, RSA-4096, ECDSA-P256 or ECDSA-P384, in exactly this spelling",
        ],
    );
}

#[test]
fn verifies_files_of_external_etcd_and_creates_none() {
    let external = |files: &str| {
        format!("{INIT}etcd:\n  external:\n    endpoints: [https://e1:2379]\n{files}")
    };
    let node = Node::of(&external(
        "    caFile: /etc/etcd/ca.crt\n    certFile: /etc/etcd/client.crt\n    keyFile: /etc/etcd/client.key\n",
    ));
    let ran = node.bootstrap();
    ran.done()
        .says(&node.here("note: etcd.external.caFile @/etc/etcd/ca.crt: is absent; provide it before kube-apiserver starts"))
        .says(&node.here("etcd.external.certFile @/etc/etcd/client.crt"))
        .says_not("etcd-server");
    assert!(!node.path("/etc/kubernetes/pki/etcd/server.crt").exists());
    assert!(!node.path("/etc/etcd").exists());
    let node = Node::of(&external("    certFile: /etc/etcd/client.crt\n"));
    assert_refused(
        &node,
        &["etcd.external: only one of certFile and keyFile is set"],
    );
    let node = Node::of(&format!(
        "{INIT}etcd: {{local: {{}}, external: {{endpoints: ['http://e1:2379']}}}}\n"
    ));
    assert_refused(
        &node,
        &[
            "etcd.local and etcd.external exclude each other",
            "remove one of the two",
        ],
    );
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
    let node = Node::of(&format!("{INIT}certificatesDir: pki\n"));
    assert_refused(
        &node,
        &[
            "certificatesDir: \"pki\" is not an absolute path",
            "begin it with /",
        ],
    );
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
fn accepts_and_refuses_forms_of_yaml() {
    // A byte order mark, CRLF line ends and empty documents.
    let node = Node::of(
        &format!("\u{feff}---\n{}---\n", INIT.replace("---\n", "---\n---\n")).replace('\n', "\r\n"),
    );
    assert_accepted(&node, &[]);
    for (text, words) in [
        (
            INIT.replace("localAPIEndpoint:", "\tlocalAPIEndpoint:"),
            &[
                "kubeadm.yaml:3:1: not valid YAML",
                "(indent with spaces, YAML does not allow tabs)",
            ][..],
        ),
        (
            format!("{INIT}---\n{}", INIT.split("---\n").nth(1).unwrap()),
            &[
                "kubeadm.yaml:12:1: kind ClusterConfiguration is given twice, first at ",
                "kubeadm.yaml:6:1",
                "keep one of the two documents",
            ],
        ),
        (
            INIT.replace("nodeRegistration: {name: cp1}", "nodeRegistration: [cp1]"),
            &["kubeadm.yaml:4:19: ", "nodeRegistration"],
        ),
        (
            "- a\n- b\n".to_owned(),
            &["kubeadm.yaml:1:1: the document does not contain apiVersion and kind"],
        ),
        (
            format!("{INIT}---\napiVersion: v1\nkind: Secret\n"),
            &[
                "kubeadm.yaml:12:1: v1 Secret is not a kubeadm configuration document",
                "move it to another file; kubeadm refuses it as well",
            ],
        ),
    ] {
        assert_refused(&Node::of(&text), words);
    }
    let anchored = INIT.replace(
        "controlPlaneEndpoint: api.example.com:6443",
        "controlPlaneEndpoint: &e api.example.com:6443\nclusterName: *e",
    );
    let ran = Node::of(&anchored).bootstrap();
    assert!(
        ran.code == Some(0) || ran.stderr.contains("kubeadm.yaml:12:"),
        "{}",
        ran.said()
    );
    assert_refused(
        &Node::of("---\n"),
        &[
            "no InitConfiguration, ClusterConfiguration or JoinConfiguration was found",
            "name the file given to kubeadm under kubeadm.files or with --kubeadm-config FILE",
        ],
    );
}

#[test]
fn reports_all_faults_of_all_files_at_once() {
    let node = Node::of(
        &INIT
            .replace("192.0.2.11", "127.0.0.1")
            .replace("cp1", "cp_1")
            .replace("v1.36.2", "1.x")
            .replace("api.example.com:6443", "'https://api'"),
    );
    node.settings("wait: soon\nunknown: 1\n");
    let before = node.snapshot();
    let ran = Ran::of(&mut node.configured(["config", "check"]));
    ran.ended(78);
    for field in [
        "config.yaml:5:7: wait",
        "config.yaml:6:1: unknown",
        "localAPIEndpoint.advertiseAddress",
        "nodeRegistration.name",
        "kubernetesVersion",
        "controlPlaneEndpoint",
    ] {
        ran.says(field);
    }
    assert_eq!(ran.stderr.lines().count(), 6, "{}", ran.stderr);
    before.unchanged(&node.snapshot());
}

#[test]
fn names_missing_files_and_signers() {
    let node = Node::new();
    let before = node.snapshot();
    fs::remove_file(node.outside("kubeadm.yaml")).unwrap();
    node.bootstrap()
        .ended(78)
        .says("kubeadm.yaml: does not exist, neither below ")
        .says(" nor on this machine");
    node.run(&["bootstrap"]).ended(78).says(&node.here("there is no kubeadm configuration: none of @/run/kubeadm/kubeadm.yaml, @/run/kubeadm/kubeadm-join-config.yaml exists; name the file that kubeadm is given with --kubeadm-config FILE or under kubeadm.files"));
    node.configure(INIT);
    let kubeadm = node.outside("kubeadm.yaml").display().to_string();
    node.run(&["bootstrap", "--kubeadm-config", &kubeadm])
        .ended(78)
        .says("authority ca has no signer; name one under authorities.ca.signer or with --signer");
    for (signer, words) in [
        ("vault:x", "configure it under signers"),
        ("lokal:x", "embedded, local:DIR, directory:DIR or exec:PATH"),
        ("exec:sign", "absolute"),
        ("local:", "path"),
    ] {
        node.run(&[
            "bootstrap",
            "--kubeadm-config",
            &kubeadm,
            "--signer",
            signer,
        ])
        .ended(64)
        .says(words);
    }
    node.run(&[
        "bootstrap",
        "--kubeadm-config",
        &kubeadm,
        "--signer",
        "exec:/nowhere/sign",
    ])
    .ended(78)
    .says("the command /nowhere/sign does not exist");
    node.run(&[
        "bootstrap",
        "--kubeadm-config",
        &kubeadm,
        "--signer",
        "local:/nowhere",
    ])
    .ended(78)
    .says("/nowhere/ca.crt");
    node.run(&["bootstrap", "--node-name", "Not A Name"])
        .ended(64)
        .says("--node-name \"Not A Name\"");
    node.run(&["bootstrap", "--wait", "soon"])
        .ended(64)
        .says("--wait");
    // These runs may only open the state directory.
    let after = node.snapshot();
    let after = after.content();
    let beyond = after
        .into_iter()
        .filter(|(path, ..)| !path.starts_with(node.path("/var")));
    assert_eq!(before.content(), beyond.collect::<Vec<_>>());
}
