use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::kube::components::Component;
use crate::x509::KeyAlgorithm;
use crate::yaml::Faults;

/// The InitConfiguration of the golden cases.
const INIT: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint:\n  advertiseAddress: 192.0.2.11\nnodeRegistration:\n  name: cp1\n";
const CLUSTER: &str =
    "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.37.2\n";
const JOIN: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration:\n  name: cp2\ndiscovery:\n  bootstrapToken:\n    token: abcdef.0123456789abcdef\n    apiServerEndpoint: api.prod.example.com:8443\n    caCertHashes:\n    - sha256:0000000000000000000000000000000000000000000000000000000000000000\ncontrolPlane:\n  localAPIEndpoint:\n    advertiseAddress: 192.0.2.12\n  certificateKey: '0000000000000000000000000000000000000000000000000000000000000000'\n";
const WORKER: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration:\n  name: w1\ndiscovery:\n  bootstrapToken:\n    token: abcdef.0123456789abcdef\n    apiServerEndpoint: api.prod.example.com:8443\n    unsafeSkipCAVerification: true\n";

fn host() -> HostFacts {
    HostFacts {
        hostname: "Host-1".to_owned(),
        default_route_addresses: ["192.0.2.99", "2001:db8::99"]
            .map(|ip| ip.parse().unwrap())
            .into(),
        ..HostFacts::default()
    }
}

fn run(text: &str) -> Result<Resolved, Faults> {
    resolve(&load(&[("k.yaml", text)]), &host(), &Overrides::default())
}

fn init_with(cluster: &str) -> Result<Resolved, Faults> {
    run(&format!("{INIT}---\n{CLUSTER}{cluster}"))
}

/// Returns the cluster of a configuration that must be accepted without a warning.
fn without_warnings(cluster: &str) -> ClusterConfig {
    let resolved = init_with(cluster).unwrap();
    assert_eq!(texts(&resolved.warnings), [""; 0]);
    resolved.cluster.unwrap()
}

fn texts(faults: &Faults) -> Vec<String> {
    faults.iter().map(ToString::to_string).collect()
}

/// Returns the warnings of a ClusterConfiguration, whose extra lines begin in line 11.
fn warnings(cluster: &str) -> Vec<String> {
    texts(&init_with(cluster).unwrap().warnings)
}

fn errors(cluster: &str) -> String {
    init_with(cluster).unwrap_err().to_string()
}

#[test]
fn omits_text_that_is_not_a_bootstrap_token_from_error() {
    let error = "ABCDEF.0123456789abcdef".parse::<BootstrapToken>();
    assert_eq!(error.unwrap_err().to_string(), "not a bootstrap token");
}

#[test]
fn accepts_configurations_that_kubeadm_accepts() {
    let v1beta3 = |text: &str| text.replace("v1beta4", "v1beta3");
    let cases = [
        ("mixed-versions", format!("{INIT}---\n{}", v1beta3(CLUSTER)), 1),
        ("san1-00", format!("{INIT}---\n{CLUSTER}apiServer:\n  certSANs:\n  - ALPHA.example.com\n"), 0),
        ("umask-077", format!("{INIT}---\n{CLUSTER}encryptionAlgorithm: ECDSA-P256\n"), 0),
        ("v1beta3-stacked", format!("{}---\n{}", v1beta3(INIT), v1beta3(CLUSTER)), 2),
        ("v1beta4-adv-any", format!("{}---\n{CLUSTER}", INIT.replace("192.0.2.11", "0.0.0.0")), 0),
        ("v1beta4-alg-RSA-4096", format!("{INIT}---\n{CLUSTER}encryptionAlgorithm: RSA-4096\n"), 0),
        ("v1beta4-certsans-valid", format!("{INIT}---\n{CLUSTER}apiServer:\n  certSANs:\n  - zeta.example.com\n  - alpha.example.com\n  - alpha.example.com\n  - '*.apps.example.com'\n  - 192.0.2.11\n  - 10.0.0.5\n  - 10.0.0.5\n  - 2001:DB8::5\n  - 2001:db8:0:0::5\n  - localhost\n  - 127.0.0.1\n  - kubernetes\n  - cp1\n  - xn--bcher-kva.example\netcd:\n  local:\n    serverCertSANs:\n    - etcd.example.com\n    - 192.0.2.99\n    - '*.etcd.example.com'\n    peerCertSANs:\n    - peer.example.com\n    - 2001:db8::99\n"), 0),
        ("v1beta4-cpe-dns-port", format!("{INIT}---\n{CLUSTER}controlPlaneEndpoint: api.prod.example.com:8443\n"), 0),
        ("v1beta4-cpe-ip", format!("{INIT}---\n{CLUSTER}controlPlaneEndpoint: 203.0.113.7\n"), 0),
        ("v1beta4-ds-v4first", format!("{INIT}---\n{CLUSTER}networking:\n  serviceSubnet: 10.96.0.0/16,fd00:10:96::/112\n  podSubnet: 10.244.0.0/16,fd00:10:244::/56\n"), 0),
        ("v1beta4-dupfield", format!("{INIT}---\n{CLUSTER}kubernetesVersion: v1.36.1\n"), 1),
        ("v1beta4-external-etcd", format!("{INIT}---\n{CLUSTER}etcd:\n  external:\n    endpoints:\n    - https://192.0.2.21:2379\n    - https://192.0.2.22:2379\n    caFile: /etc/kubernetes/pki/ext-etcd/ca.crt\n    certFile: /etc/kubernetes/pki/ext-etcd/client.crt\n    keyFile: /etc/kubernetes/pki/ext-etcd/client.key\n"), 0),
        ("v1beta4-names", format!("{}---\n{CLUSTER}clusterName: prod-eu\nnetworking:\n  dnsDomain: k8s.corp.example\n  serviceSubnet: 172.20.0.0/14\n", INIT.replace("cp1", "CP-1.Example.COM")), 0),
        ("v1beta4-nokubeversion", format!("{INIT}---\n{}", CLUSTER.replace("kubernetesVersion: v1.37.2\n", "")), 0),
        ("v1beta4-stacked", format!("{INIT}---\n{CLUSTER}"), 0),
        ("v1beta4-unknownfield", format!("{INIT}---\n{CLUSTER}bogusField: 1\n"), 1),
        ("json", r#"{"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "clusterName": "x"}"#.to_owned(), 0),
    ];
    for (name, text, warnings) in cases {
        match run(&text) {
            Ok(resolved) => assert_eq!(
                resolved.warnings.iter().count(),
                warnings,
                "{name}: {:?}",
                texts(&resolved.warnings)
            ),
            Err(faults) => panic!("{name}: {faults}"),
        }
    }
}

#[test]
fn refuses_configurations_that_kubeadm_refuses() {
    let v1beta2 = format!("{INIT}---\n{CLUSTER}").replace("v1beta4", "v1beta2");
    let cases = [
        (
            "san1-03",
            format!(
                "{INIT}---\n{CLUSTER}apiServer:\n  certSANs:\n  - host_underscore.example.com\n"
            ),
            1,
        ),
        (
            "san1-07",
            format!("{INIT}---\n{CLUSTER}apiServer:\n  certSANs:\n  - 10.0.0.0/24\n"),
            1,
        ),
        ("v1beta2", v1beta2, 2),
        (
            "v1beta4-alg-Ed25519",
            format!("{INIT}---\n{CLUSTER}encryptionAlgorithm: Ed25519\n"),
            1,
        ),
        (
            "v1beta4-certsans",
            format!(
                "{INIT}---\n{CLUSTER}apiServer:\n  certSANs:\n  - zeta.example.com\n  - alpha.example.com\n  - ALPHA.example.com\n  - alpha.example.com\n  - '*.apps.example.com'\n  - 192.0.2.11\n  - 10.0.0.5\n  - 10.0.0.5\n  - 2001:DB8::5\n  - 2001:db8:0:0::5\n  - ::ffff:10.1.2.3\n  - 010.000.000.007\n  - host_underscore.example.com\n  - trailing.dot.\n  - localhost\n  - 127.0.0.1\n  - kubernetes\n  - cp1\n  - -bad-\n  - aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.example.com\n  - xn--bcher-kva.example\n  - \"b\\xFCcher.example\"\n  - 10.0.0.0/24\n  - https://x.example\n  - ''\n"
            ),
            7,
        ),
        ("v1beta4-join-only", JOIN.to_owned(), 1),
        (
            "v1beta4-local-and-external",
            format!(
                "{INIT}---\n{CLUSTER}etcd:\n  local:\n    dataDir: /var/lib/etcd\n  external:\n    endpoints:\n    - https://192.0.2.21:2379\n"
            ),
            1,
        ),
        (
            "v1beta4-nodename-bad",
            format!("{}---\n{CLUSTER}", INIT.replace("cp1", "bad_name!")),
            1,
        ),
        (
            "v1beta4-svc30",
            format!("{INIT}---\n{CLUSTER}networking:\n  serviceSubnet: 10.96.0.0/30\n"),
            1,
        ),
        ("empty", String::new(), 1),
        (
            "foreign",
            format!(
                "{INIT}---\n{CLUSTER}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n"
            ),
            1,
        ),
    ];
    for (name, text, count) in cases {
        match run(&text) {
            Ok(_) => panic!("{name} was accepted"),
            Err(faults) => assert_eq!(faults.errors().count(), count, "{name}: {faults}"),
        }
    }
}

#[test]
fn gives_stacked_first_node_kubeadm_defaults() {
    let resolved = run(&format!("{INIT}---\n{CLUSTER}")).unwrap();
    assert_eq!(
        resolved.node,
        NodeConfig {
            role: KubeadmRole::Init,
            name: "cp1".parse().unwrap(),
            advertise_address: Some("192.0.2.11".parse().unwrap()),
            bind_port: 6443,
            hostname_override: None,
            kubelet_addresses: ["192.0.2.11", "192.0.2.99"]
                .map(|ip| ip.parse().unwrap())
                .into(),
            kubelet_cert_dir: None,
            server: None,
            join_endpoint: None,
            join: None,
        }
    );
    let cluster = resolved.cluster.unwrap();
    let version = cluster.kubernetes_version.clone().unwrap();
    assert_eq!(version.to_string(), "v1.37.2");
    assert_eq!(
        cluster,
        ClusterConfig {
            kubernetes_version: Some(version),
            ..ClusterConfig::default()
        }
    );
    assert_eq!(
        cluster.service_subnets[0].nth(1).unwrap().to_string(),
        "10.96.0.1"
    );
    assert_eq!(
        cluster.certificates_dir,
        PathBuf::from("/etc/kubernetes/pki")
    );
    assert_eq!(
        cluster.certificate_validity,
        Duration::from_secs(8760 * 3600)
    );
    assert_eq!(cluster.ca_validity, Duration::from_secs(87600 * 3600));
}

#[test]
fn accepts_either_document_alone() {
    let resolved = run(CLUSTER).unwrap();
    assert_eq!(resolved.node.name.as_str(), "host-1");
    assert_eq!(
        resolved.node.advertise_address.unwrap().to_string(),
        "192.0.2.99"
    );
    let resolved = run(INIT).unwrap();
    assert_eq!(resolved.cluster, Some(ClusterConfig::default()));
}

#[test]
fn takes_joining_node_from_join_configuration() {
    // Here kubeadm ignores the JoinConfiguration and uses the host's name and address.
    let cluster = format!("{CLUSTER}controlPlaneEndpoint: api.prod.example.com:8443\n");
    let resolved = resolve(
        &load(&[("join.yaml", JOIN), ("cluster.yaml", &cluster)]),
        &host(),
        &Overrides::default(),
    )
    .unwrap();
    assert_eq!(resolved.node.role, KubeadmRole::Join);
    assert_eq!(resolved.node.name.as_str(), "cp2");
    assert_eq!(
        resolved.node.advertise_address.unwrap().to_string(),
        "192.0.2.12"
    );
    assert_eq!(
        resolved.node.join_endpoint.unwrap().authority(6443),
        "api.prod.example.com:8443"
    );
    assert!(resolved.cluster.unwrap().control_plane_endpoint.is_some());
}

#[test]
fn requires_cluster_and_endpoint_for_joining_control_plane() {
    assert_eq!(
        run(JOIN).unwrap_err().to_string(),
        "k.yaml:1:1: this JoinConfiguration is for a control-plane node, but the ClusterConfiguration that defines its certificates is missing \
         (bootstrap reads it from the cluster unless kubeadm.fromCluster is never; otherwise set kubeadm.clusterConfiguration in the nodepki \
         configuration, or add --kubeadm-config FILE, with the output of this command on a \
         control-plane node: kubectl -n kube-system get cm kubeadm-config -o jsonpath='{.data.ClusterConfiguration}')"
    );
    assert_eq!(
        run(&format!("{JOIN}---\n{CLUSTER}"))
            .unwrap_err()
            .to_string(),
        "k.yaml:16:1: a further control-plane node can join only a cluster with a controlPlaneEndpoint, and none is set \
         (set controlPlaneEndpoint to the name or address of the load balancer, in the cluster's kubeadm-config too)"
    );
    let refused = run(&format!("{JOIN}---\n{CLUSTER}controlPlaneEndpoint: a_b\n")).unwrap_err();
    assert_eq!(refused.errors().count(), 1, "{refused}");
}

#[test]
fn requires_name_and_endpoint_for_worker() {
    let resolved = run(WORKER).unwrap();
    assert_eq!(resolved.node.role, KubeadmRole::Worker);
    assert_eq!(resolved.node.name.as_str(), "w1");
    assert_eq!(resolved.node.advertise_address, None);
    assert_eq!(resolved.cluster, None);
    assert_eq!(
        resolved.node.join_endpoint.unwrap().authority(6443),
        "api.prod.example.com:8443"
    );
    let bare = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n";
    let cluster = format!("{bare}---\n{CLUSTER}controlPlaneEndpoint: lb.example.com\n");
    assert_eq!(
        run(&cluster)
            .unwrap()
            .node
            .join_endpoint
            .unwrap()
            .authority(6443),
        "lb.example.com:6443"
    );
    assert_eq!(
        run(bare).unwrap_err().to_string(),
        "k.yaml:1:1: the API server that this worker connects to is not configured \
         (set discovery.bootstrapToken.apiServerEndpoint, or give the ClusterConfiguration with its controlPlaneEndpoint)"
    );
}

/// Cluster API's proposal gives a joining node both files, since the ClusterConfiguration is in that of the first node.
#[test]
fn accepts_first_nodes_file_on_joining_node() {
    let first = format!("{INIT}---\n{CLUSTER}controlPlaneEndpoint: x\n");
    let resolve =
        |sources: &[(&str, &str)]| resolve(&load(sources), &host(), &Overrides::default());
    let sources = [("init.yaml", first.as_str()), ("join.yaml", JOIN)];
    for sources in [sources, [sources[1], sources[0]]] {
        let resolved = resolve(&sources).unwrap();
        assert_eq!(resolved.node.role, KubeadmRole::Join);
        assert_eq!(resolved.node.name.as_str(), "cp2");
        assert!(resolved.cluster.is_some());
        assert_eq!(
            texts(&resolved.warnings),
            [
                "join.yaml:1:1: a JoinConfiguration and an InitConfiguration (at init.yaml:1:1) are both given; the node joins, \
                 and the InitConfiguration is ignored (keep the InitConfiguration on the first node and the JoinConfiguration on every other)"
            ]
        );
    }
    // An InitConfiguration without a ClusterConfiguration means kubeadm's defaults, except on a joining node.
    let loaded = load(&[("init.yaml", INIT), ("join.yaml", JOIN)]);
    assert_eq!(loaded.cluster_document(), None);
}

#[test]
fn refuses_conflicting_documents() {
    let cases = [
        (
            format!("{INIT}---\n{JOIN}---\n{CLUSTER}controlPlaneEndpoint: x\n"),
            "k.yaml:8:1: a JoinConfiguration and an InitConfiguration (at k.yaml:1:1) are both given \
             (keep the InitConfiguration on the first node and the JoinConfiguration on every other)",
        ),
        (
            format!("{INIT}---\n{CLUSTER}---\n{CLUSTER}"),
            "k.yaml:12:1: kind ClusterConfiguration is given twice, first at k.yaml:8:1 (keep one of the two documents)",
        ),
        (
            CLUSTER.replace("v1beta4", "v1beta2"),
            "k.yaml:1:1: kubeadm.k8s.io/v1beta2 (kind ClusterConfiguration) is an old API that kubeadm 1.31 and later refuse \
             (run kubeadm config migrate --old-config OLD --new-config NEW with kubeadm v1.22)",
        ),
        (
            CLUSTER.replace("v1beta4", "v1"),
            "k.yaml:1:1: kubeadm.k8s.io/v1 (kind ClusterConfiguration) is experimental, and kubeadm init and join refuse it (use kubeadm.k8s.io/v1beta4)",
        ),
        (
            String::from("---\n# nothing\n"),
            "k.yaml: the file is empty: no InitConfiguration, ClusterConfiguration or JoinConfiguration was found \
             (name the file given to kubeadm under kubeadm.files or with --kubeadm-config FILE)",
        ),
        (
            format!("{CLUSTER}---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\n"),
            "k.yaml:5:1: v1 ConfigMap is not a kubeadm configuration document \
             (only the ConfigMap kubeadm-config with data.ClusterConfiguration is read; move this one to another file)",
        ),
        (
            format!("{CLUSTER}---\napiVersion: v1\nkind: Secret\n"),
            "k.yaml:5:1: v1 Secret is not a kubeadm configuration document (move it to another file; kubeadm refuses it as well)",
        ),
        (
            String::from("clusterName: x\n"),
            "k.yaml:1:1: the document does not contain apiVersion and kind (begin it with apiVersion: kubeadm.k8s.io/v1beta4 and kind: \
             ClusterConfiguration, InitConfiguration or JoinConfiguration, or move its fields to the document to which they belong)",
        ),
    ];
    for (text, want) in cases {
        assert_eq!(run(&text).unwrap_err().to_string(), want);
    }
}

#[test]
fn ignores_documents_of_other_tools() {
    let text = format!(
        "{INIT}---\n{CLUSTER}---\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n---\n\
         apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\nkind: ResetConfiguration\n---\n\
         apiVersion: config.openshift.io/v1\nkind: PKI\nspec: {{}}\n"
    );
    let loaded = load(&[("k.yaml", &text)]);
    assert_eq!(loaded.policies().len(), 1);
    assert!(
        resolve(&loaded, &host(), &Overrides::default())
            .unwrap()
            .warnings
            .is_empty()
    );
    let text = format!("{CLUSTER}---\napiVersion: apps/v1\nkind: Deployment\n");
    assert_eq!(
        texts(&run(&text).unwrap().warnings),
        [
            "k.yaml:5:1: apps/v1 Deployment is not a kubeadm configuration document and is ignored, as kubeadm does (move it to another file)"
        ]
    );
    let text = format!("{CLUSTER}---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfig\n");
    assert_eq!(
        texts(&run(&text).unwrap().warnings),
        [
            "k.yaml:5:1: kubeadm.k8s.io/v1beta4 ClusterConfig is not a kind of kubeadm and is ignored (did you mean ClusterConfiguration?)"
        ]
    );
}

#[test]
fn reads_config_map_of_cluster() {
    let text = "apiVersion: v1\ndata:\n  ClusterConfiguration: |\n    apiVersion: kubeadm.k8s.io/v1beta4\n    kind: ClusterConfiguration\n    clusterName: from-map\n    networking:\n      serviceSubnet: x\nkind: ConfigMap\nmetadata:\n  name: kubeadm-config\n";
    assert_eq!(
        run(text).unwrap_err().to_string(),
        "k.yaml#data.ClusterConfiguration:5:18: networking.serviceSubnet: \"x\" is not a network in CIDR notation (write ADDRESS/PREFIX, as in 10.96.0.0/12)"
    );
    let fine = run(&text.replace("serviceSubnet: x", "podSubnet: 10.0.0.0/8")).unwrap();
    assert_eq!(fine.cluster.unwrap().cluster_name, "from-map");
}

#[test]
fn warns_of_v1beta3_and_of_v1beta4_fields_in_it() {
    let text = CLUSTER.replace("v1beta4", "v1beta3")
        + "encryptionAlgorithm: ECDSA-P256\ncertificateValidityPeriod: 1h\n";
    let resolved = run(&text).unwrap();
    assert_eq!(
        resolved.cluster.unwrap().key_algorithm,
        KeyAlgorithm::Rsa2048
    );
    assert_eq!(
        texts(&resolved.warnings),
        [
            "k.yaml:1:1: kubeadm.k8s.io/v1beta3 (kind ClusterConfiguration) is deprecated, and kubeadm 1.37 and later refuse it (run kubeadm config migrate --old-config OLD --new-config NEW with a kubeadm from 1.31 to 1.36)",
            "k.yaml:4:1: encryptionAlgorithm: unknown field (it has no effect; remove it)",
            "k.yaml:5:1: certificateValidityPeriod: unknown field (it has no effect; remove it)",
        ]
    );
}

#[test]
fn warns_of_unknown_and_repeated_fields() {
    assert_eq!(
        warnings("clustername: x\nclusterName: a\nclusterName: b\n"),
        [
            "k.yaml:11:1: clustername: unknown field (did you mean clusterName?)",
            "k.yaml:13:1: clusterName: is given twice, first in line 12 (the last one counts; keep one of them)",
        ]
    );
    let text = format!("{CLUSTER}clusterName: a\nclusterName: b\n");
    assert_eq!(run(&text).unwrap().cluster.unwrap().cluster_name, "b");
}

#[test]
fn refuses_extra_arguments_in_shape_of_other_version() {
    assert_eq!(
        errors(
            "apiServer:\n  extraArgs:\n    v: '2'\netcd:\n  local:\n    extraArgs: {a: b}\nscheduler:\n  extraArgs:\n  - value: x\n"
        ),
        "k.yaml:13:5: apiServer.extraArgs: is a map, but kubeadm.k8s.io/v1beta4 requires a list (write `- name: NAME` and `value: VALUE`, or change the document to v1beta3)\n\
         k.yaml:16:16: etcd.local.extraArgs: is a map, but kubeadm.k8s.io/v1beta4 requires a list (write `- name: NAME` and `value: VALUE`, or change the document to v1beta3)\n\
         k.yaml:19:5: scheduler.extraArgs[0]: the argument has no name (write `- name: NAME` and `value: VALUE`)"
    );
    let text = CLUSTER.replace("v1beta4", "v1beta3")
        + "controllerManager:\n  extraArgs:\n  - name: v\n    value: '2'\n";
    assert_eq!(
        run(&text).unwrap_err().to_string(),
        "k.yaml:6:5: controllerManager.extraArgs: is a list, but kubeadm.k8s.io/v1beta3 requires a map (write `name: value` lines, or change the document to v1beta4)"
    );
}

#[test]
fn refuses_unquoted_numbers_as_text() {
    assert_eq!(
        errors("apiServer:\n  extraArgs:\n  - name: v\n    value: 2\nclusterName: 1.10\n"),
        "k.yaml:14:12: apiServer.extraArgs[0].value: unquoted 2 is a number, must be text (write \"2\" in quotes)\n\
         k.yaml:15:14: clusterName: unquoted 1.10 is a number, must be text (write \"1.10\" in quotes)"
    );
}

#[test]
fn warns_if_hostname_override_differs_from_node_name() {
    let args = |value: &str| {
        format!(
            "{INIT}  kubeletExtraArgs:\n  - name: node-ip\n    value: 192.0.2.11\n  - name: hostname-override\n    value: {value}\n"
        )
    };
    let resolved = run(&args("Other")).unwrap();
    assert_eq!(resolved.node.hostname_override.as_deref(), Some("other"));
    assert_eq!(
        texts(&resolved.warnings),
        [
            "k.yaml:11:12: nodeRegistration.kubeletExtraArgs[1].value: hostname-override \"other\" differs from the node name \"cp1\": the Node object gets one name, the certificates the other (set nodeRegistration.name to the same name and remove hostname-override)"
        ]
    );
    let same = run(&args("CP1")).unwrap();
    assert!(same.warnings.is_empty());
    assert_eq!(same.node.hostname_override, None);
    let v1beta3 =
        INIT.replace("v1beta4", "v1beta3") + "  kubeletExtraArgs:\n    hostname-override: other\n";
    assert_eq!(
        run(&v1beta3).unwrap().node.hostname_override.as_deref(),
        Some("other")
    );
}

#[test]
fn takes_node_name_from_override_configuration_or_host() {
    assert_eq!(
        run(&INIT.replace("cp1", "' CP-1.Example.COM '"))
            .unwrap()
            .node
            .name
            .as_str(),
        "cp-1.example.com"
    );
    assert_eq!(
        run(&INIT.replace("cp1", "bad_name!"))
            .unwrap_err()
            .to_string(),
        "k.yaml:6:9: nodeRegistration.name: \"bad_name!\" is not a valid node name: only lower-case letters, digits, - and . are allowed, \
         beginning and ending with a letter or digit (set nodeRegistration.name in the kubeadm configuration to a valid name)"
    );
    let host = HostFacts {
        hostname: "my_host".to_owned(),
        ..host()
    };
    assert_eq!(
        resolve(&load(&[("k.yaml", CLUSTER)]), &host, &Overrides::default())
            .unwrap_err()
            .to_string(),
        "host name: \"my_host\" is not a valid node name: only lower-case letters, digits, - and . are allowed, \
         beginning and ending with a letter or digit (set nodeRegistration.name in the kubeadm configuration to a valid name)"
    );
    let overrides = Overrides {
        node_name: Some("n9".parse().unwrap()),
        ..Overrides::default()
    };
    let resolved = resolve(&load(&[("k.yaml", INIT)]), &host, &overrides).unwrap();
    assert_eq!(resolved.node.name.as_str(), "n9");
    assert_eq!(
        texts(&resolved.warnings),
        [
            "k.yaml:6:9: nodeRegistration.name: is \"cp1\", but the node name is set to \"n9\" elsewhere; kubeadm will use \"cp1\" (make both the same)"
        ]
    );
}

#[test]
fn warns_if_node_name_exceeds_common_name() {
    let name = |length: usize| "a".repeat(length);
    assert!(
        run(&INIT.replace("cp1", &name(52)))
            .unwrap()
            .warnings
            .is_empty()
    );
    assert_eq!(
        texts(&run(&INIT.replace("cp1", &name(53))).unwrap().warnings),
        [
            "k.yaml:6:9: nodeRegistration.name: the common name in kubelet.conf is longer than the 64 bytes that X.520 allows (system:node:… has 65); many signers refuse it (use a shorter node name, at most 52 bytes)"
        ]
    );
    let text = texts(&run(&INIT.replace("cp1", &name(65))).unwrap().warnings).join("");
    assert!(
        text.contains("in kubelet.conf, etcd-server and etcd-peer is"),
        "{text}"
    );
}

#[test]
fn reads_advertise_addresses() {
    let at = |address: &str| run(&INIT.replace("192.0.2.11", address));
    for (address, want) in [
        ("0.0.0.0", "192.0.2.99"),
        ("'::'", "2001:db8::99"),
        ("2001:db8::7", "2001:db8::7"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("010.0.0.7", "10.0.0.7"),
    ] {
        assert_eq!(
            at(address)
                .unwrap()
                .node
                .advertise_address
                .unwrap()
                .to_string(),
            want
        );
    }
    for address in ["169.254.1.1", "224.0.0.1", "255.255.255.255"] {
        assert!(
            at(address).unwrap_err().to_string().ends_with(
                "is a link-local, multicast or broadcast address, which other nodes cannot reach \
                 (write the node's own address, or remove the field to use that of the default route)"
            ),
            "{address}"
        );
    }
    assert_eq!(
        at("eth0").unwrap_err().to_string(),
        "k.yaml:4:21: localAPIEndpoint.advertiseAddress: \"eth0\" is not an IP address \
         (write the node's own address, or remove the field to use that of the default route)"
    );
    // A loopback address stands for a global unicast address of `lo`, one of IPv4 if there is one.
    for (loopback, addresses, want) in [
        (
            "127.0.0.1",
            &["169.254.1.1", "2001:db8::8", "192.0.2.8", "192.0.2.9"][..],
            Some("192.0.2.8"),
        ),
        ("'::1'", &["2001:db8::8", "192.0.2.8"], Some("192.0.2.8")),
        (
            "127.0.0.1",
            &["fe80::1", "2001:db8::8"],
            Some("2001:db8::8"),
        ),
        ("'::1'", &[], None),
    ] {
        let host = HostFacts {
            loopback_interface_addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..host()
        };
        let loaded = load(&[("k.yaml", &INIT.replace("192.0.2.11", loopback))]);
        let found = resolve(&loaded, &host, &Overrides::default());
        let found = found.map(|resolved| resolved.node.advertise_address.unwrap().to_string());
        let none = "k.yaml:4:21: localAPIEndpoint.advertiseAddress: a loopback address stands for an address of the interface lo, \
                    which has none that other nodes can reach (write the node's own address, or remove the field to use that of the default route)";
        let want = want.map_or(Err(none.to_owned()), |ip| Ok(ip.to_owned()));
        assert_eq!(
            found.map_err(|faults| faults.to_string()),
            want,
            "{loopback} {addresses:?}"
        );
    }
    let kubelet = "  kubeletExtraArgs: [{name: node-ip, value: '::'}]\n";
    let node = run(&format!("{INIT}{kubelet}")).unwrap().node;
    assert_eq!(node.kubelet_addresses[1].to_string(), "2001:db8::99");
    let nowhere = HostFacts {
        default_route_addresses: Vec::new(),
        ..host()
    };
    assert_eq!(
        resolve(
            &load(&[("k.yaml", CLUSTER)]),
            &nowhere,
            &Overrides::default()
        )
        .unwrap_err()
        .to_string(),
        "k.yaml:1:1: no advertiseAddress is set (0.0.0.0 and :: do not count), and the node has no default route to take one from \
         (set localAPIEndpoint.advertiseAddress in an InitConfiguration to the node's own address)"
    );
    let join = format!(
        "{}---\n{CLUSTER}controlPlaneEndpoint: x\n",
        JOIN.replace("192.0.2.12", "0.0.0.0")
    );
    assert_eq!(
        resolve(&load(&[("k.yaml", &join)]), &nowhere, &Overrides::default())
            .unwrap_err()
            .to_string(),
        "k.yaml:1:1: no advertiseAddress is set (0.0.0.0 and :: do not count), and the node has no default route to take one from \
         (set controlPlane.localAPIEndpoint.advertiseAddress to the node's own address)"
    );
    let broken = resolve(
        &load(&[("k.yaml", &INIT.replace("192.0.2.11", "x"))]),
        &nowhere,
        &Overrides::default(),
    );
    assert_eq!(broken.unwrap_err().errors().count(), 1);
    assert_eq!(
        run(&INIT.replace("nodeReg", "  bindPort: 8443\nnodeReg"))
            .unwrap()
            .node
            .bind_port,
        8443
    );
    assert_eq!(
        run(&INIT.replace("nodeReg", "  bindPort: 70000\nnodeReg"))
            .unwrap_err()
            .to_string(),
        "k.yaml:5:13: localAPIEndpoint.bindPort: port 70000 is out of range (use a port from 1 to 65535)"
    );
}

#[test]
fn warns_of_different_ip_families() {
    let of = |networking: &str| warnings(&format!("networking: {{{networking}}}\n"));
    for fine in [
        "serviceSubnet: 10.96.0.0/16, podSubnet: 10.244.0.0/16",
        "podSubnet: 10.244.0.0/16",
        "serviceSubnet: '10.96.0.0/16,fd00::/112', podSubnet: '10.244.0.0/16,fd01::/56'",
    ] {
        assert_eq!(of(fine), [""; 0], "{fine}");
    }
    let [api] = &of("serviceSubnet: 'fd00::/112,10.96.0.0/16'")[..] else {
        panic!("one warning expected")
    };
    assert!(
        api.contains("192.0.2.11 and the first network of the services, fd00::/112"),
        "{api}"
    );
    let [pods] = &of("serviceSubnet: 10.96.0.0/16, podSubnet: 'fd01::/56'")[..] else {
        panic!("one warning expected")
    };
    assert!(
        pods.contains("networking.podSubnet: is IPv6, but networking.serviceSubnet is IPv4"),
        "{pods}"
    );
    let refused = errors("networking: {podSubnet: 10.244.0.0}\n");
    assert!(
        refused.contains("is not a network in CIDR notation"),
        "{refused}"
    );
}

#[test]
fn reads_service_networks() {
    let subnets = |text: &str| -> String {
        let cluster = without_warnings(&format!("networking:\n  serviceSubnet: {text}\n"));
        cluster
            .service_subnets
            .iter()
            .map(IpNet::to_string)
            .collect::<Vec<_>>()
            .join(",")
    };
    assert_eq!(subnets("10.96.7.9/16"), "10.96.0.0/16");
    assert_eq!(
        subnets("10.96.0.0/16,fd00:10:96::/112"),
        "10.96.0.0/16,fd00:10:96::/112"
    );
    assert_eq!(subnets("10.96.0.0/28"), "10.96.0.0/28");
    for (text, want) in [
        (
            "10.96.0.0/30",
            "10.96.0.0/30 has 4 addresses, but kubeadm requires at least 10 (use a larger network, as in 10.96.0.0/12)",
        ),
        (
            "10.0.0.0/8",
            "10.0.0.0/8 is larger than kube-apiserver supports (use a prefix of /12 or longer)",
        ),
        (
            "fd00::/64",
            "fd00::/64 is larger than kube-apiserver supports (use a prefix of /108 or longer)",
        ),
        (
            "10.96.0.0/16,10.97.0.0/16",
            "both networks have the same IP family (set one IPv4 and one IPv6 network, or only one)",
        ),
        (
            "10.96.0.0/16,fd00::/112,10.97.0.0/16",
            "3 networks are given, but at most two are allowed (set one IPv4 and one IPv6 network, or only one)",
        ),
        (
            "10.96.0.0",
            "\"10.96.0.0\" is not a network in CIDR notation (write ADDRESS/PREFIX, as in 10.96.0.0/12)",
        ),
    ] {
        let text = errors(&format!("networking:\n  serviceSubnet: {text}\n"));
        assert_eq!(
            text,
            format!("k.yaml:12:18: networking.serviceSubnet: {want}")
        );
    }
}

#[test]
fn reads_names_and_directories() {
    let cluster = without_warnings(
        "clusterName: ''\nnetworking: {dnsDomain: ''}\ncertificatesDir: /pki\ncontrolPlaneEndpoint: ''\n",
    );
    assert_eq!(
        (cluster.cluster_name.as_str(), cluster.dns_domain.as_str()),
        ("kubernetes", "cluster.local")
    );
    assert_eq!(cluster.certificates_dir, PathBuf::from("/pki"));
    for (written, path) in [
        ("/etc/kubernetes/../ssl/./pki//", "/etc/ssl/pki"),
        ("/../pki", "/pki"),
    ] {
        let cluster = without_warnings(&format!("certificatesDir: {written}\n"));
        assert_eq!(cluster.certificates_dir.as_os_str(), path);
    }
    assert_eq!(
        errors(
            "certificatesDir: pki\nnetworking: {dnsDomain: Cluster.local}\ncontrolPlaneEndpoint: https://api:6443\n"
        ),
        "k.yaml:11:18: certificatesDir: \"pki\" is not an absolute path (begin it with /)\n\
         k.yaml:12:25: networking.dnsDomain: \"Cluster.local\" is not a DNS domain (use lower-case letters, digits, - and ., as in cluster.local)\n\
         k.yaml:13:23: controlPlaneEndpoint: \"https://api:6443\" is not a host name or IP address with an optional port (write only host and port of the URL: api:6443)"
    );
}

#[test]
fn warns_of_upper_case_that_kubeadm_refuses() {
    assert_eq!(
        warnings(
            "controlPlaneEndpoint: API.Prod.example.com:8443\netcd:\n  local:\n    serverCertSANs: [ETCD.example.com]\napiServer: {certSANs: [Fine.example.com]}\n"
        ),
        [
            "k.yaml:11:23: controlPlaneEndpoint: \"API.Prod.example.com\" is read as \"api.prod.example.com\"; kubeadm refuses upper-case letters here (write api.prod.example.com:8443)",
            "k.yaml:14:22: etcd.local.serverCertSANs[0]: \"ETCD.example.com\" is read as \"etcd.example.com\"; kubeadm refuses upper-case letters here (write it in lower case)",
        ]
    );
    assert_eq!(
        warnings("controlPlaneEndpoint: '[2001:db8::1]'\n"),
        [
            "k.yaml:11:23: controlPlaneEndpoint: \"[2001:db8::1]\" has no port; nodepki accepts this, but kubeadm refuses it (write 2001:db8::1 or [2001:db8::1]:6443)"
        ]
    );
}

#[test]
fn warns_of_many_names() {
    let names: Vec<String> = (0..101).map(|n| format!("n{n}.example.com")).collect();
    assert_eq!(
        warnings(&format!("apiServer:\n  certSANs: [{}]\n", names.join(", "))),
        [
            "k.yaml:12:13: apiServer.certSANs: 101 names in one certificate; many signers refuse more than 100 (use a wildcard or fewer names)"
        ]
    );
}

#[test]
fn refuses_documents_that_do_not_describe_an_etcd_member() {
    let overrides = Overrides {
        role: Some(KubeadmRole::Etcd),
        ..Overrides::default()
    };
    let member = |text: &str| resolve(&load(&[("k.yaml", text)]), &host(), &overrides);
    let resolved = member(INIT).unwrap();
    assert_eq!(resolved.node.role, KubeadmRole::Etcd);
    assert!(resolved.node.advertise_address.is_some());
    let external = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\netcd: {external: {endpoints: ['https://192.0.2.21:2379']}}\n";
    for (text, words) in [
        (
            format!("{INIT}---\n{external}"),
            "but etcd.external describes the etcd of a control-plane node (write etcd.local",
        ),
        (
            WORKER.to_owned(),
            "but a JoinConfiguration describes a node that joins a cluster (give the InitConfiguration",
        ),
    ] {
        let faults = member(&text).unwrap_err().to_string();
        assert!(faults.contains(words), "{faults}");
    }
}

#[test]
fn reads_external_etcd() {
    let cluster = without_warnings(
        "etcd:\n  external:\n    endpoints: ['https://192.0.2.21:2379']\n    caFile: /ca.crt\n    certFile: /c.crt\n    keyFile: /c.key\n",
    );
    assert_eq!(
        cluster.etcd,
        Etcd::External {
            endpoints: vec!["https://192.0.2.21:2379".to_owned()],
            ca_file: Some("/ca.crt".into()),
            cert_file: Some("/c.crt".into()),
            key_file: Some("/c.key".into()),
        }
    );
    assert!(matches!(
        without_warnings("etcd: {external: {endpoints: ['http://192.0.2.21:2379']}}\n").etcd,
        Etcd::External { .. }
    ));
    for (inner, want) in [
        (
            "endpoints: ['https://x:1'], caFile: /ca, certFile: /c",
            "k.yaml:11:18: etcd.external: only one of certFile and keyFile is set (set both or neither)",
        ),
        (
            "endpoints: ['https://x:1'], certFile: /c, keyFile: /k",
            "k.yaml:11:18: etcd.external: certFile and keyFile are set without caFile (set caFile to the CA certificate of etcd)",
        ),
        (
            "endpoints: ['http://x:1'], caFile: /ca",
            "k.yaml:11:31: etcd.external.endpoints[0]: \"http://x:1\" is not an https URL (write https://x:1)",
        ),
        (
            "endpoints: ['x:1']",
            "k.yaml:11:31: etcd.external.endpoints[0]: \"x:1\" is not an http or https URL (write https://x:1)",
        ),
        (
            "endpoints: ['https://x:1'], caFile: ca",
            "k.yaml:11:55: etcd.external.caFile: \"ca\" is not an absolute path (begin it with /)",
        ),
    ] {
        assert_eq!(errors(&format!("etcd: {{external: {{{inner}}}}}\n")), want);
    }
    assert_eq!(
        errors("etcd:\n  local: {}\n  external: {endpoints: []}\n"),
        "k.yaml:13:13: etcd.external: etcd.local and etcd.external exclude each other (remove one of the two)"
    );
    assert_eq!(
        warnings("etcd: {external: {}}\n"),
        ["k.yaml:11:18: etcd.external: no endpoints are set (list the URLs of the etcd members)"]
    );
}

#[test]
fn reads_key_algorithms() {
    for (text, want) in [
        ("RSA-2048", KeyAlgorithm::Rsa2048),
        ("RSA-3072", KeyAlgorithm::Rsa3072),
        ("RSA-4096", KeyAlgorithm::Rsa4096),
        ("ECDSA-P256", KeyAlgorithm::EcdsaP256),
        ("ECDSA-P384", KeyAlgorithm::EcdsaP384),
        ("''", KeyAlgorithm::Rsa2048),
    ] {
        assert_eq!(
            without_warnings(&format!("encryptionAlgorithm: {text}\n")).key_algorithm,
            want
        );
    }
    for text in ["Ed25519", "rsa-2048", "ECDSA-P521", "RSA-1024"] {
        assert_eq!(
            errors(&format!("encryptionAlgorithm: {text}\n")),
            format!(
                "k.yaml:11:22: encryptionAlgorithm: \"{text}\" is not an encryption algorithm of kubeadm (use RSA-2048, RSA-3072, RSA-4096, ECDSA-P256 or ECDSA-P384, in exactly this spelling)"
            )
        );
    }
    let gate = |on: bool, rest: &str| {
        init_with(&format!(
            "featureGates: {{PublicKeysECDSA: {on}, Other: true}}\n{rest}"
        ))
        .unwrap()
    };
    let resolved = gate(true, "encryptionAlgorithm: RSA-4096\n");
    assert_eq!(
        resolved.cluster.unwrap().key_algorithm,
        KeyAlgorithm::EcdsaP256
    );
    assert_eq!(
        texts(&resolved.warnings),
        [
            "k.yaml:11:33: featureGates.PublicKeysECDSA: kubeadm 1.37 and later do not have this feature gate, and refuse the file (write encryptionAlgorithm: ECDSA-P256 instead)",
            "k.yaml:12:22: encryptionAlgorithm: has no effect: the feature gate PublicKeysECDSA makes it ECDSA-P256 (write ECDSA-P256, and remove featureGates.PublicKeysECDSA)"
        ]
    );
    // What a warning advises changes no key.
    for (on, written, fix, further) in [
        (false, "", "remove it; RSA-2048 is the default", 0),
        (
            false,
            "encryptionAlgorithm: ECDSA-P384\n",
            "write encryptionAlgorithm: RSA-2048 instead",
            1,
        ),
        (
            true,
            "encryptionAlgorithm: ECDSA-P256\n",
            "remove it; encryptionAlgorithm says the same",
            0,
        ),
    ] {
        let resolved = gate(on, written);
        let warnings = texts(&resolved.warnings);
        assert!(warnings[0].ends_with(&format!("({fix})")), "{warnings:?}");
        assert_eq!(warnings.len(), 1 + further, "{warnings:?}");
        let want = if on {
            KeyAlgorithm::EcdsaP256
        } else {
            KeyAlgorithm::Rsa2048
        };
        assert_eq!(resolved.cluster.unwrap().key_algorithm, want);
    }
    let gates = "PublicKeysECDSA: true, RootlessControlPlane: true, NodeLocalCRISocket: true";
    let resolved = run(&format!("{CLUSTER}featureGates: {{{gates}}}\n")).unwrap();
    assert_eq!(
        resolved.cluster.unwrap().key_algorithm,
        KeyAlgorithm::EcdsaP256
    );
    assert_eq!(
        texts(&resolved.warnings),
        [
            "k.yaml:4:33: featureGates.PublicKeysECDSA: kubeadm 1.37 and later do not have this feature gate, and refuse the file (write encryptionAlgorithm: ECDSA-P256 instead)",
            "k.yaml:4:87: featureGates.NodeLocalCRISocket: kubeadm 1.37 and later do not have this feature gate, and refuse the file (remove it; kubeadm 1.37 always does what it enabled)",
        ]
    );
    let old = format!("{CLUSTER}encryptionAlgorithm: ECDSA-P384\n").replace("v1.37.2", "v1.33.4");
    assert_eq!(
        texts(&run(&old).unwrap().warnings),
        [
            "k.yaml:4:22: encryptionAlgorithm: kubeadm 1.34 and later accept ECDSA-P384; that of this cluster, v1.33.4, refuses the file (use ECDSA-P256, or upgrade first)"
        ]
    );
}

#[test]
fn reads_validity_periods() {
    let cluster = without_warnings(
        "certificateValidityPeriod: 2160h0m0s\ncaCertificateValidityPeriod: 43800h\n",
    );
    assert_eq!(
        cluster.certificate_validity,
        Duration::from_secs(2160 * 3600)
    );
    assert_eq!(cluster.ca_validity, Duration::from_secs(43800 * 3600));
    assert_eq!(
        errors("certificateValidityPeriod: 90d\ncaCertificateValidityPeriod: 0s\n"),
        "k.yaml:11:28: certificateValidityPeriod: \"90d\" has the unknown unit \"d\" (write 2160h; units are h, m and s)\n\
         k.yaml:12:30: caCertificateValidityPeriod: must be longer than zero (use a period such as 87600h)"
    );
    assert_eq!(
        warnings("certificateValidityPeriod: 9000h\ncaCertificateValidityPeriod: 8800h\n"),
        [
            "k.yaml:11:28: certificateValidityPeriod: is longer than a year (shorten it)",
            "k.yaml:11:28: certificateValidityPeriod: leaf certificates would be valid for longer than the CA certificates (make caCertificateValidityPeriod longer)",
        ]
    );
}

#[test]
fn reads_versions() {
    let version = |text: &str| {
        let text = CLUSTER.replace("v1.37.2", text);
        run(&text).map(|resolved| {
            resolved
                .cluster
                .unwrap()
                .kubernetes_version
                .map(|version| version.to_string())
        })
    };
    for (text, want) in [
        ("1.37.2", Some("v1.37.2")),
        ("v1.37.0-alpha.1.23+abc", Some("v1.37.0-alpha.1.23")),
        ("ci/v1.37.0-alpha.1", Some("v1.37.0-alpha.1")),
        ("v1.30.0", Some("v1.30.0")),
        ("stable-1", None),
        ("stable-1.36", None),
        ("stable", None),
        ("ci/latest", None),
        ("ci/latest-1.36", None),
        ("''", None),
    ] {
        assert_eq!(version(text).unwrap().as_deref(), want, "{text}");
    }
    assert_eq!(
        version("banana").unwrap_err().to_string(),
        "k.yaml:3:20: kubernetesVersion: \"banana\" is not a Kubernetes version (write it in full, such as v1.37.2, or remove it)"
    );
    for text in [
        "v1.36",
        "v1.37.2.1",
        "v01.36.2",
        "v1.36.x",
        "v1.37.2-",
        "stable-",
        "stable-x",
        "v1.36.99999999999",
    ] {
        assert!(version(text).is_err(), "{text}");
    }
    assert!(
        !"v1.33.9"
            .parse::<KubernetesVersion>()
            .unwrap()
            .at_least(1, 34)
    );
    assert!(
        "v2.0.0"
            .parse::<KubernetesVersion>()
            .unwrap()
            .at_least(1, 34)
    );
}

#[test]
fn reports_all_faults_of_all_files() {
    let faults = resolve(
        &load(&[
            ("a.yaml", format!("{INIT}bogus: 1\n").replace("cp1", "a_b")),
            (
                "b.yaml",
                format!("{CLUSTER}encryptionAlgorithm: x\ncertificatesDir: pki\n"),
            ),
            ("c.yaml", "a:\n\tb: c\n".to_owned()),
        ]),
        &HostFacts::default(),
        &Overrides::default(),
    )
    .unwrap_err();
    let places: Vec<String> = faults.iter().map(|fault| fault.place.to_string()).collect();
    assert_eq!(
        places,
        [
            "a.yaml:6:9",
            "a.yaml:7:1",
            "b.yaml:4:22",
            "b.yaml:5:18",
            "c.yaml:2:2"
        ]
    );
    assert_eq!(faults.warnings().count(), 1);
}

#[test]
fn omits_secrets_from_messages_and_debug_output() {
    let text = format!("{JOIN}bogus: x\n").replace("name: cp2", "name: a_b");
    let loaded = load(&[("k.yaml", &text)]);
    let shown = format!(
        "{loaded:?}{:?}",
        resolve(&loaded, &host(), &Overrides::default())
    );
    assert!(!shown.contains("abcdef.0123"), "{shown}");
    assert!(!shown.contains("00000000"), "{shown}");
}

#[test]
fn accepts_crlf_byte_order_marks_and_anchors() {
    let text = format!("\u{feff}{INIT}---\n{CLUSTER}").replace('\n', "\r\n");
    assert_eq!(run(&text).unwrap().node.name.as_str(), "cp1");
    let cluster = without_warnings(
        "apiServer:\n  certSANs: &names [a.example.com]\netcd:\n  local:\n    serverCertSANs: *names\n",
    );
    assert!(
        matches!(cluster.etcd, Etcd::Local { server_cert_sans, .. } if server_cert_sans.len() == 1)
    );
    let tab = run("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnetworking:\n\tdnsDomain: x\n").unwrap_err();
    assert!(tab.to_string().starts_with("k.yaml:4:"), "{tab}");
}

#[test]
fn survives_broken_text() {
    let text = format!(
        "{INIT}---\n{CLUSTER}etcd:\n  local:\n    extraArgs:\n    - name: a\n      value: b\nnetworking:\n  serviceSubnet: 10.96.0.0/12,fd00::/112\ncontrolPlaneEndpoint: '[::1]:6443'\ncertificateValidityPeriod: 1h0m\n---\n{JOIN}"
    );
    for end in 0..text.len() {
        let _ = run(&text[..end]);
        let mut bytes = text.clone().into_bytes();
        bytes[end] = b"\t:[{&*'\"-\xff"[end % 10];
        let _ = run(&String::from_utf8_lossy(&bytes));
        bytes.remove(end);
        let _ = run(&String::from_utf8_lossy(&bytes));
    }
}

const PIN: &str = "sha256:38BA71fec120ca030302aad31b05f4be388ce4b135b451f13ea2fb9c2dbc3c27";

/// Loads a worker's JoinConfiguration with this `discovery`, in flow style.
fn joining(api: &str, discovery: &str) -> Documents {
    let text = format!(
        "apiVersion: kubeadm.k8s.io/{api}\nkind: JoinConfiguration\nnodeRegistration: {{name: w1}}\ndiscovery: {discovery}\n"
    );
    load(&[("k.yaml", &text)])
}

fn token_discovery(rest: &str) -> String {
    format!(
        "{{bootstrapToken: {{apiServerEndpoint: '[2001:db8::1]:6443', token: abcdef.0123456789abcdef, {rest}}}}}"
    )
}

#[test]
fn reads_discovery_of_join_configuration() {
    for api in ["v1beta3", "v1beta4"] {
        let pinned = joining(api, &token_discovery(&format!("caCertHashes: ['{PIN}']")));
        let join = pinned.join().unwrap();
        let Some(Discovery::Token {
            token,
            endpoint,
            pins,
            unsafe_skip_ca_verification: false,
        }) = &join.discovery
        else {
            panic!("{join:?}")
        };
        assert_eq!((token.id(), token.secret()), ("abcdef", "0123456789abcdef"));
        assert_eq!(endpoint.authority(1), "[2001:db8::1]:6443");
        assert_eq!(pins[0][..3], [0x38, 0xba, 0x71]);
        assert_eq!(join.tls_bootstrap_token.as_ref(), Some(token));
        assert_eq!(
            join.ca_cert_path,
            PathBuf::from("/etc/kubernetes/pki/ca.crt")
        );
    }
    for (path, expected) in [
        ("/d.conf", DiscoveryFile::Path("/d.conf".into())),
        ("file:///d.conf", DiscoveryFile::Path("/d.conf".into())),
        (
            "HTTPS://h/d.conf",
            DiscoveryFile::Url("HTTPS://h/d.conf".to_owned()),
        ),
    ] {
        let loaded = joining(
            "v1beta4",
            &format!(
                "{{file: {{kubeConfigPath: '{path}'}}, tlsBootstrapToken: aaaaaa.bbbbbbbbbbbbbbbb}}"
            ),
        );
        let join = loaded.join().unwrap();
        assert_eq!(join.discovery, Some(Discovery::File(expected)));
        assert_eq!(join.tls_bootstrap_token.as_ref().unwrap().id(), "aaaaaa");
    }
    assert_eq!(joining("v1beta4", "{}").join().unwrap().discovery, None);
}

#[test]
fn refuses_discovery_that_kubeadm_refuses() {
    const PINLESS: &str = "unsafeSkipCAVerification: true";
    for (discovery, expected) in [
        (token_discovery(PINLESS), ""),
        (token_discovery(&format!("caCertHashes: [{PIN}]")), ""),
        (
            token_discovery("caCertHashes: []"),
            "bootstrapToken: no caCertHashes are set",
        ),
        (
            token_discovery("caCertHashes: [sha256:00]"),
            "caCertHashes[0]: \"sha256:00\" is not a pin",
        ),
        (
            token_discovery("caCertHashes: [md5:00]"),
            "caCertHashes[0]: \"md5:00\" is not a pin",
        ),
        (
            token_discovery(&format!("{PINLESS}, token: ABCDEF.0123456789abcdef")),
            "bootstrapToken.token: is not a bootstrap token",
        ),
        (
            token_discovery(&format!("{PINLESS}, token: 123456.7890123456789012")),
            "bootstrapToken.token: is a number, must be text (write it in quotes)",
        ),
        (
            token_discovery(&format!("{PINLESS}, token: ''")),
            "bootstrapToken: no token is set",
        ),
        (
            token_discovery(&format!("{PINLESS}, apiServerEndpoint: ''")),
            "bootstrapToken: no apiServerEndpoint is set",
        ),
        (
            token_discovery(&format!("{PINLESS}, apiServerEndpoint: 'https://a:6443'")),
            "bootstrapToken.apiServerEndpoint: ",
        ),
        (
            "{bootstrapToken: {}, file: {kubeConfigPath: /a}}".to_owned(),
            "discovery.file: discovery.bootstrapToken and discovery.file exclude each other",
        ),
        (
            "{file: {}}".to_owned(),
            "discovery.file: no kubeConfigPath is set",
        ),
        (
            "{file: {kubeConfigPath: 'http://u:0123456789abcdef@h/x'}}".to_owned(),
            "a URL that begins with http:// is refused",
        ),
        (
            "{file: {kubeConfigPath: 'https://u:0123456789abcdef@h/x'}}".to_owned(),
            "a URL with a user name or password is refused",
        ),
        (
            "{file: {kubeConfigPath: 'https://h/x?0123456789abcdef'}}".to_owned(),
            "",
        ),
        (
            "{file: {kubeConfigPath: a.conf}}".to_owned(),
            "\"a.conf\" is not an absolute path",
        ),
        (
            "{file: {kubeConfigPath: /a}, tlsBootstrapToken: x.0123456789abcdef}".to_owned(),
            "discovery.tlsBootstrapToken: is not a bootstrap token",
        ),
    ] {
        let loaded = joining("v1beta4", &discovery);
        let said = loaded.faults().to_string();
        assert!(
            said.contains(expected) && said.is_empty() == expected.is_empty(),
            "{discovery}\n{said}"
        );
        for secret in ["0123456789abcdef", "7890123456789012"] {
            assert!(!format!("{said}{loaded:?}").contains(secret), "{said}");
        }
    }
}

#[test]
fn requires_64_hex_digits_in_certificate_key_and_hides_it() {
    let key = "24e5af6e0db84292444d82f76323a2a619c3de07505cbac2c707e00c3fe669bf";
    for (written, fault) in [
        (key.to_owned(), None),
        (key.to_uppercase(), None),
        (key[1..].to_owned(), Some("is not a certificate key")),
        (key[..32].to_owned(), Some("is not a certificate key")),
        ("1".repeat(64), Some("is a number, must be text")),
    ] {
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ncaCertPath: /x\ncontrolPlane:\n  certificateKey: {written}\n"
        );
        let loaded = load(&[("k.yaml", &text)]);
        let said = loaded.faults().to_string();
        assert!(
            said.contains("caCertPath: \"/x\" does not end in .crt"),
            "{said}"
        );
        match fault {
            Some(fault) => assert!(
                said.contains(&format!("controlPlane.certificateKey: {fault}")),
                "{said}"
            ),
            None => assert_eq!(
                loaded
                    .join()
                    .unwrap()
                    .certificate_key
                    .as_ref()
                    .unwrap()
                    .as_str(),
                written
            ),
        }
        assert!(!format!("{said}{loaded:?}").contains(&written), "{said}");
    }
}

fn run_over(cluster: &str, file: &str) -> Result<Resolved, Faults> {
    let loaded = load_over(("kubeadm-config", cluster), &[("k.yaml", file)]);
    resolve(&loaded, &host(), &Overrides::default())
}

#[test]
fn merges_file_over_clusters_own_configuration() {
    let cluster = format!(
        "{CLUSTER}controlPlaneEndpoint: api:6443\nclusterName: theirs\nnetworking: {{dnsDomain: corp.example, serviceSubnet: 10.1.0.0/16}}\napiServer: {{certSANs: [a.example]}}\n"
    );
    let alone = run_over(&cluster, JOIN).unwrap().cluster.unwrap();
    assert_eq!(
        (alone.cluster_name.as_str(), alone.dns_domain.as_str()),
        ("theirs", "corp.example")
    );
    let file = format!(
        "{JOIN}---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nencryptionAlgorithm: ECDSA-P384\nnetworking: {{dnsDomain: ours.example}}\napiServer: {{certSANs: [b.example]}}\n"
    );
    let merged = run_over(&cluster, &file).unwrap().cluster.unwrap();
    assert_eq!(merged.cluster_name, "theirs");
    assert_eq!(merged.key_algorithm, KeyAlgorithm::EcdsaP384);
    assert_eq!(merged.dns_domain, "ours.example");
    assert_eq!(merged.service_subnets[0].to_string(), "10.1.0.0/16");
    assert_eq!(
        merged.apiserver_cert_sans,
        [San::Dns("b.example".to_owned())]
    );
}

#[test]
fn refuses_to_merge_configurations_of_two_versions() {
    let file =
        format!("{JOIN}---\napiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\n");
    let said = run_over(CLUSTER, &file).unwrap_err().to_string();
    assert!(
        said.contains("is kubeadm.k8s.io/v1beta3, but the cluster's own ClusterConfiguration is kubeadm.k8s.io/v1beta4: the two cannot be merged"),
        "{said}"
    );
}

#[test]
fn locates_faults_in_clusters_own_configuration() {
    let said = run_over(&format!("{CLUSTER}encryptionAlgorithm: DSA\n"), JOIN)
        .unwrap_err()
        .to_string();
    assert!(said.contains("kubeadm-config"), "{said}");
}

#[test]
fn returns_join_configuration_as_written() {
    let loaded = load(&[("k.yaml", JOIN)]);
    assert!(loaded.joins_control_plane());
    let document = loaded.join_document().unwrap();
    assert_eq!(document["nodeRegistration"]["name"], "cp2");
    assert!(load(&[("k.yaml", WORKER)]).join_document().is_some());
    assert!(!load(&[("k.yaml", WORKER)]).joins_control_plane());
    assert!(load(&[("k.yaml", INIT)]).join_document().is_none());
}

#[test]
fn reads_directories_that_components_mount() {
    let text = "\
certificatesDir: /srv/pki
scheduler:
  extraVolumes:
  - {name: a, hostPath: /srv/pki/scheduler, mountPath: /srv/pki/scheduler, readOnly: true, pathType: DirectoryOrCreate}
  - {name: b, hostPath: /srv/moved, mountPath: /elsewhere}
  - {name: c, hostPath: /srv/incomplete}
";
    let cluster = without_warnings(text);
    for (component, directory, expected) in [
        (Component::KubeScheduler, "/srv/pki/scheduler", true),
        (Component::KubeScheduler, "/srv/pki", false),
        (Component::KubeScheduler, "/srv/moved", false),
        (Component::KubeScheduler, "/srv/incomplete", false),
        (
            Component::KubeControllerManager,
            "/srv/pki/controller-manager",
            true,
        ),
        (Component::KubeControllerManager, "/srv", false),
        (Component::KubeApiserver, "/srv/pki", false),
    ] {
        let found = cluster.mounts_directory(component, Path::new(directory));
        assert_eq!(found, expected, "{component} {directory}");
    }
}
