//! Mistakes in the kubeadm configuration. What `kubeadm config validate` refuses is an error of `config check` as well.

use std::fs;
use std::process::Command;

use super::{CHECK, Input, Mistake, SETTINGS, edited, follow_messages, node, run};
use crate::kubeadm;
use crate::node::{INIT, JOIN};

const fn refused(
    name: &'static str,
    broken: (&'static str, &'static str),
    message: &'static str,
    fix: (&'static str, &'static str),
) -> Mistake {
    Mistake::refused(Input::Kubeadm, name, broken, message, fix)
}

const fn warned(
    name: &'static str,
    broken: (&'static str, &'static str),
    message: &'static str,
    fix: (&'static str, &'static str),
) -> Mistake {
    Mistake::warned(Input::Kubeadm, name, broken, message, fix)
}

/// The place of another field of the ClusterConfiguration.
const VERSION: &str = "kubernetesVersion: v1.37.2";

/// Mistakes that kubeadm refuses as well.
#[rustfmt::skip]
const REFUSED_BY_KUBEADM: &[Mistake] = &[
    refused("separator of documents missing",
        ("---\n", ""),
        "if another document begins here, write a line with --- before it",
        ("nodeRegistration: {name: cp1}\n", "nodeRegistration: {name: cp1}\n---\n")),
    refused("name beside nodeRegistration",
        ("nodeRegistration: {name: cp1}", "nodeRegistration: {}\nname: cp1"),
        "name: unknown field (move it below nodeRegistration: nodeRegistration.name)",
        ("nodeRegistration: {}\nname: cp1", "nodeRegistration: {name: cp1}")),
    refused("field misspelt",
        ("controlPlaneEndpoint:", "controlPlaneEndpint:"),
        "did you mean controlPlaneEndpoint?",
        ("controlPlaneEndpint:", "controlPlaneEndpoint:")),
    refused("field in another case",
        ("nodeRegistration:", "noderegistration:"),
        "did you mean nodeRegistration?",
        ("noderegistration:", "nodeRegistration:")),
    refused("version of the API that does not exist",
        ("v1beta4\nkind: Init", "v1beta5\nkind: Init"),
        "kubeadm.k8s.io/v1beta5 (kind InitConfiguration) is not supported by this release of nodepki (use kubeadm.k8s.io/v1beta4)",
        ("v1beta5", "v1beta4")),
    refused("group of the API misspelt",
        ("kubeadm.k8s.io/v1beta4\nkind: Init", "kubeadm.kubernetes.io/v1beta4\nkind: Init"),
        "InitConfiguration has the apiVersion kubeadm.kubernetes.io/v1beta4 (write apiVersion: kubeadm.k8s.io/v1beta4)",
        ("kubeadm.kubernetes.io", "kubeadm.k8s.io")),
    refused("kind abbreviated",
        ("kind: ClusterConfiguration", "kind: ClusterConfig"),
        "ClusterConfig is not a kind of kubeadm and is ignored (did you mean ClusterConfiguration?)",
        ("kind: ClusterConfig\n", "kind: ClusterConfiguration\n")),
    refused("kind given twice",
        ("kind: InitConfiguration", "kind: ClusterConfiguration"),
        "kind ClusterConfiguration is given twice",
        ("kind: ClusterConfiguration", "kind: InitConfiguration")),
    refused("endpoint in the InitConfiguration",
        ("nodeRegistration:", "controlPlaneEndpoint: api.example.com:6443\nnodeRegistration:"),
        "controlPlaneEndpoint: unknown field (move it to the ClusterConfiguration)",
        ("controlPlaneEndpoint: api.example.com:6443\nnodeRegistration:", "nodeRegistration:")),
    refused("address beside localAPIEndpoint",
        ("localAPIEndpoint: {advertiseAddress: 192.0.2.11}", "advertiseAddress: 192.0.2.11"),
        "(move it below localAPIEndpoint: localAPIEndpoint.advertiseAddress)",
        ("advertiseAddress: 192.0.2.11", "localAPIEndpoint: {advertiseAddress: 192.0.2.11}")),
    refused("names beside apiServer",
        (VERSION, "certSANs: [api.example.com]"),
        "certSANs: unknown field (move it below apiServer: apiServer.certSANs)",
        ("certSANs: [api.example.com]", "apiServer: {certSANs: [api.example.com]}")),
    refused("network beside networking",
        (VERSION, "podSubnet: 10.244.0.0/16"),
        "(move it below networking: networking.podSubnet)",
        ("podSubnet: 10.244.0.0/16", "networking: {podSubnet: 10.244.0.0/16}")),
    refused("arguments in the form of an older API",
        ("{name: cp1}", "{name: cp1, kubeletExtraArgs: {node-ip: 192.0.2.11}}"),
        "is a map, but kubeadm.k8s.io/v1beta4 requires a list (write `- name: NAME` and `value: VALUE`",
        ("{node-ip: 192.0.2.11}", "[{name: node-ip, value: 192.0.2.11}]")),
    refused("network of the pods without a prefix",
        (VERSION, "networking: {podSubnet: 10.244.0.0}"),
        "is not a network in CIDR notation (write ADDRESS/PREFIX",
        ("10.244.0.0}", "10.244.0.0/16}")),
    refused("network of the pods smaller than that of a node",
        (VERSION, "networking: {podSubnet: 10.244.0.0/28}"),
        "networking.podSubnet: 10.244.0.0/28 is smaller than the network of one node, a /24 (use a network with a prefix of at most /24)",
        ("/28", "/24")),
    refused("network of the services too large",
        (VERSION, "networking: {serviceSubnet: 10.0.0.0/8}"),
        "10.0.0.0/8 is larger than kube-apiserver supports (use a prefix of /12 or longer)",
        ("10.0.0.0/8", "10.0.0.0/12")),
    refused("network of the services too small",
        (VERSION, "networking: {serviceSubnet: 10.96.0.0/30}"),
        "has 4 addresses, but kubeadm requires at least 10 (use a larger network, as in 10.96.0.0/12)",
        ("10.96.0.0/30", "10.96.0.0/12")),
    refused("two networks of one family",
        (VERSION, "networking: {serviceSubnet: '10.96.0.0/16,10.97.0.0/16'}"),
        "both networks have the same IP family (set one IPv4 and one IPv6 network, or only one)",
        (",10.97.0.0/16", "")),
    refused("domain with an upper-case letter",
        (VERSION, "networking: {dnsDomain: Cluster.local}"),
        "is not a DNS domain (use lower-case letters",
        ("Cluster.local", "cluster.local")),
    refused("name as a URL",
        (VERSION, "apiServer: {certSANs: ['https://api.example.com']}"),
        "(write only the host of the URL: api.example.com)",
        ("https://api.example.com", "api.example.com")),
    refused("wildcard as the whole name",
        (VERSION, "apiServer: {certSANs: ['*']}"),
        "(use * only as the whole first label, as in *.example.com)",
        ("'*'", "'*.example.com'")),
    refused("network as a name",
        (VERSION, "apiServer: {certSANs: [192.0.2.0/24]}"),
        "(a certificate cannot contain a network; list each address)",
        ("192.0.2.0/24", "192.0.2.1, 192.0.2.2")),
    refused("endpoint with a scheme",
        ("api.example.com:6443", "https://api.example.com:6443"),
        "(write only host and port of the URL: api.example.com:6443)",
        ("https://api.example.com:6443", "api.example.com:6443")),
    refused("several endpoints",
        ("api.example.com:6443", "'a.example.com:6443,b.example.com:6443'"),
        "(write one host, that of the load balancer for all API servers)",
        ("'a.example.com:6443,b.example.com:6443'", "api.example.com:6443")),
    refused("several names in one entry",
        (VERSION, "apiServer: {certSANs: ['a.example.com, b.example.com']}"),
        "(write each name as an entry of its own)",
        ("'a.example.com, b.example.com'", "a.example.com, b.example.com")),
    refused("dash of a word processor in a name",
        (VERSION, "apiServer: {certSANs: [api\u{2013}1.example.com]}"),
        "(remove or replace the character U+2013, which is not ASCII)",
        ("\u{2013}", "-")),
    refused("name that is too long",
        (VERSION, "apiServer: {certSANs: [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.aaaaaaaaaaaaaaaaaaaa]}"),
        "(use a name of at most 253 characters)",
        (".aaaaaaaaaaaaaaaaaaaa]", "]")),
    refused("space between two networks",
        (VERSION, "networking: {serviceSubnet: '10.96.0.0/16, fd00::/112'}"),
        "is not a network in CIDR notation (remove the space)",
        (", fd00", ",fd00")),
    refused("two networks of the pods of one family",
        (VERSION, "networking: {podSubnet: '10.244.0.0/16,10.245.0.0/16'}"),
        "kubeadm accepts one network, or one of each IP family (set one IPv4 and one IPv6 network, or only one)",
        (",10.245.0.0/16", "")),
    refused("no endpoint of etcd",
        (VERSION, "etcd: {external: {endpoints: []}}"),
        "etcd.external.endpoints: is empty (list the URLs of the etcd members)",
        ("[]", "['http://192.0.2.5:2379']")),
    refused("relative directory of etcd",
        (VERSION, "etcd: {local: {dataDir: var/lib/etcd}}"),
        "etcd.local.dataDir: \"var/lib/etcd\" is not an absolute path (begin it with /)",
        ("dataDir: var", "dataDir: /var")),
    refused("field of the proxy misspelt",
        (VERSION, "proxy: {disable: true}"),
        "proxy.disable: unknown field (did you mean disabled?)",
        ("disable:", "disabled:")),
    refused("image of DNS as a number",
        (VERSION, "dns: {imageTag: 1.12}"),
        "dns.imageTag: unquoted 1.12 is a number, must be text (write \"1.12\" in quotes)",
        ("1.12", "\"1.12\"")),
    refused("volume without a list",
        (VERSION, "apiServer: {extraVolumes: {name: a, hostPath: /a, mountPath: /a}}"),
        "apiServer.extraVolumes: is a map, must be a list (write `- item` lines below it)",
        ("{name: a, hostPath: /a, mountPath: /a}", "[{name: a, hostPath: /a, mountPath: /a}]")),
    refused("policy of images misspelt",
        ("{name: cp1}", "{name: cp1, imagePullPolicy: Missing}"),
        "nodeRegistration.imagePullPolicy: \"Missing\" is not possible here (use Always or IfNotPresent or Never)",
        ("Missing", "IfNotPresent")),
    refused("timeout without a unit",
        ("nodeRegistration:", "timeouts: {discovery: 300}\nnodeRegistration:"),
        "timeouts.discovery: unquoted 300 is a number, must be text (write 300s; units are h, m and s)",
        ("300", "300s")),
    refused("life of a bootstrap token in days",
        ("nodeRegistration:", "bootstrapTokens: [{token: abcdef.0123456789abcdef, ttl: 1d}]\nnodeRegistration:"),
        "bootstrapTokens[0].ttl: ",
        ("1d", "24h")),
    refused("usage of a bootstrap token misspelt",
        ("nodeRegistration:", "bootstrapTokens: [{token: abcdef.0123456789abcdef, usages: [sign, authentication]}]\nnodeRegistration:"),
        "bootstrapTokens[0].usages[0]: \"sign\" is not possible here (use signing or authentication)",
        ("sign,", "signing,")),
    refused("group of a bootstrap token without its prefix",
        ("nodeRegistration:", "bootstrapTokens: [{token: abcdef.0123456789abcdef, groups: [nodes]}]\nnodeRegistration:"),
        "\"nodes\" is not a group of bootstrap tokens (write system:bootstrappers:NAME",
        ("[nodes]", "['system:bootstrappers:nodes']")),
    refused("document with some fields",
        ("apiVersion: kubeadm.k8s.io/v1beta4\nkind: Init", "networking: {dnsDomain: cluster.local}\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: Init"),
        "the document does not contain apiVersion and kind",
        ("networking: {dnsDomain: cluster.local}\n---\n", "")),
    refused("document without kind",
        ("kind: InitConfiguration\n", ""),
        "(add kind: ClusterConfiguration, InitConfiguration or JoinConfiguration, or remove the document)",
        ("v1beta4\n", "v1beta4\nkind: InitConfiguration\n")),
    refused("document with an empty kind",
        ("kind: InitConfiguration\n", "kind: ''\n"),
        "(add kind: ClusterConfiguration, InitConfiguration or JoinConfiguration, or remove the document)",
        ("kind: ''\n", "kind: InitConfiguration\n")),
    refused("list as a document",
        ("apiVersion: kubeadm.k8s.io/v1beta4\nkind: Init", "- a\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: Init"),
        "(remove it: kubeadm refuses the file)",
        ("- a\n---\n", "")),
    refused("document of the core API",
        ("apiVersion: kubeadm.k8s.io/v1beta4\nkind: Init", "apiVersion: v1\nkind: Secret\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: Init"),
        "v1 Secret is not a kubeadm configuration document (move it to another file; kubeadm refuses it as well)",
        ("apiVersion: v1\nkind: Secret\n---\n", "")),
    refused("document of another API",
        ("apiVersion: kubeadm.k8s.io/v1beta4\nkind: Init", "apiVersion: apps/v1\nkind: Deployment\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: Init"),
        "(move it to another file; kubeadm config validate refuses it, and kubeadm init and join ignore it with a warning)",
        ("apiVersion: apps/v1\nkind: Deployment\n---\n", "")),
    refused("port out of range",
        ("api.example.com:6443", "api.example.com:644333"),
        "controlPlaneEndpoint: port 644333 is out of range (use a port from 1 to 65535)",
        ("644333", "6443")),
    refused("port in quotation marks",
        ("192.0.2.11}", "192.0.2.11, bindPort: \"6443\"}"),
        "localAPIEndpoint.bindPort: is text, must be a whole number (write digits without quotes)",
        ("\"6443\"", "6443")),
    refused("address with a port",
        ("advertiseAddress: 192.0.2.11", "advertiseAddress: '192.0.2.11:6443'"),
        "\"192.0.2.11:6443\" is not an IP address (write the node's own address",
        ("'192.0.2.11:6443'", "192.0.2.11")),
    refused("algorithm misspelt",
        ("ECDSA-P256", "ECDSA256"),
        "(use RSA-2048, RSA-3072, RSA-4096, ECDSA-P256 or ECDSA-P384, in exactly this spelling)",
        ("ECDSA256", "ECDSA-P256")),
    refused("validity in days",
        (VERSION, "certificateValidityPeriod: 365d"),
        "(write 8760h; units are h, m and s)",
        ("365d", "8760h")),
    refused("version as a number",
        (VERSION, "kubernetesVersion: 1.36"),
        "unquoted 1.36 is a number, must be text (write it in full, such as v1.37.2, or remove it)",
        ("kubernetesVersion: 1.36", "kubernetesVersion: v1.37.2")),
    refused("validity as a number",
        (VERSION, "certificateValidityPeriod: 8760"),
        "unquoted 8760 is a number, must be text (write 8760h for hours; units are h, m and s)",
        ("8760", "8760h")),
    refused("name of a node that is a number, but not in quotes",
        ("cp1", "1_000"),
        "unquoted 1_000 is a number, must be text (set nodeRegistration.name in the kubeadm configuration to a valid name)",
        ("1_000", "node-1000")),
    refused("name of a node as a number",
        ("cp1", "1000"),
        "unquoted 1000 is a number, must be text (write \"1000\" in quotes)",
        ("1000", "\"1000\"")),
    refused("name with an underscore",
        ("cp1", "cp_1"),
        "only lower-case letters, digits, - and . are allowed",
        ("cp_1", "cp-1")),
    refused("template that was not filled in",
        ("{name: cp1}", "{name: '{{ hostname }}'}"),
        "\"{{ hostname }}\" is not a valid node name",
        ("'{{ hostname }}'", "cp1")),
    refused("bootstrap token of another form",
        ("nodeRegistration:", "bootstrapTokens: [{token: abcdef-0123456789abcdef}]\nnodeRegistration:"),
        "bootstrapTokens[0].token: is not a bootstrap token (write the token as `kubeadm token create` prints it",
        ("abcdef-0123456789abcdef", "abcdef.0123456789abcdef")),
    refused("certificate key too short",
        ("nodeRegistration:", "certificateKey: abc\nnodeRegistration:"),
        "certificateKey: is not a certificate key (write the 64 hexadecimal digits",
        ("certificateKey: abc\n", "certificateKey: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n")),
];

/// Mistakes that kubeadm accepts, with a cluster that does not work.
#[rustfmt::skip]
const ACCEPTED_BY_KUBEADM: &[Mistake] = &[
    warned("name of the cluster that was not filled in",
        (VERSION, "clusterName: '{{ cluster }}'"),
        "clusterName: contains a placeholder that was not replaced (the template was not rendered",
        ("'{{ cluster }}'", "prod")),
    warned("directory that was not filled in",
        (VERSION, "certificatesDir: /etc/${DIR}"),
        "certificatesDir: contains a placeholder that was not replaced (write the value itself",
        ("${DIR}", "kubernetes/pki")),
    warned("name of every machine",
        ("cp1", "localhost.localdomain"),
        "the node name \"localhost.localdomain\" is the name of every machine for itself: each node needs a name of its own (set nodeRegistration.name",
        ("localhost.localdomain", "cp1")),
    warned("address and services of different families",
        ("advertiseAddress: 192.0.2.11", "advertiseAddress: '2001:db8::11'"),
        "have different IP families: kube-apiserver does not start",
        ("'2001:db8::11'", "192.0.2.11")),
    warned("pods and services of different families",
        (VERSION, "networking: {serviceSubnet: 10.96.0.0/16, podSubnet: 'fd00:10:244::/56'}"),
        "is IPv6, but networking.serviceSubnet is IPv4",
        ("'fd00:10:244::/56'", "10.244.0.0/16")),
    warned("families of pods and services in another order",
        (VERSION, "networking: {serviceSubnet: '10.96.0.0/16,fd00:1::/112', podSubnet: 'fd00:2::/56,10.244.0.0/16'}"),
        "is IPv6,IPv4, but networking.serviceSubnet is IPv4,IPv6: pods and services must have the same IP families in the same order",
        ("'fd00:2::/56,10.244.0.0/16'", "'10.244.0.0/16,fd00:2::/56'")),
    refused("etcd without a scheme",
        (VERSION, "etcd: {external: {endpoints: ['etcd.test:2379'], caFile: /a.crt, certFile: /b.crt, keyFile: /b.key}}"),
        "\"etcd.test:2379\" is not an https URL (write https://etcd.test:2379)",
        ("'etcd.test:2379'", "'https://etcd.test:2379'")),
    refused("tab for indentation",
        ("nodeRegistration: {name: cp1}", "nodeRegistration:\n\tname: cp1"),
        "indent with spaces, YAML does not allow tabs",
        ("\tname", "  name")),
];

/// Warnings of what only kubeadm refuses.
#[rustfmt::skip]
const ACCEPTED_ONLY_HERE: &[Mistake] = &[
    warned("endpoint in upper case",
        ("api.example.com:6443", "API.example.com:6443"),
        "\"API.example.com\" is read as \"api.example.com\"; kubeadm refuses upper-case letters here (write api.example.com:6443)",
        ("API.example.com", "api.example.com")),
    warned("IPv6 endpoint in brackets without a port",
        ("api.example.com:6443", "'[2001:db8::1]'"),
        "nodepki accepts this, but kubeadm refuses it (write 2001:db8::1 or [2001:db8::1]:6443)",
        ("'[2001:db8::1]'", "'[2001:db8::1]:6443'")),
    warned("name of etcd in upper case",
        (VERSION, "etcd: {local: {peerCertSANs: [ETCD.example.com]}}"),
        "kubeadm refuses upper-case letters here (write it in lower case)",
        ("ETCD", "etcd")),
    warned("version that no supported kubeadm deploys",
        (VERSION, "kubernetesVersion: v1.19.0"),
        "kubernetesVersion: kubeadm 1.31 and later refuse to deploy Kubernetes v1.19.0 (write the version of the cluster, such as v1.37.2, or remove it)",
        ("v1.19.0", "v1.37.2")),
    warned("feature gate of another release",
        (VERSION, "featureGates: {EtcdLearnerMode: true}"),
        "featureGates.EtcdLearnerMode: kubeadm 1.37 does not have this feature gate",
        ("{EtcdLearnerMode: true}", "{}")),
    warned("policy of keys beside the documents of kubeadm",
        ("apiVersion: kubeadm.k8s.io/v1beta4\nkind: Init", "apiVersion: config.openshift.io/v1\nkind: PKI\nspec: {}\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: Init"),
        "kubeadm config validate refuses the file because of this document",
        ("apiVersion: config.openshift.io/v1\nkind: PKI\nspec: {}\n---\n", "")),
    warned("ConfigMap of the cluster beside the documents of kubeadm",
        ("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kubeadm-config}\ndata: {ClusterConfiguration: '{apiVersion: kubeadm.k8s.io/v1beta4, kind: ClusterConfiguration}'}\n"),
        "kubeadm refuses the file because of this document, which only nodepki reads",
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kubeadm-config}\ndata: {ClusterConfiguration: '{apiVersion: kubeadm.k8s.io/v1beta4, kind: ClusterConfiguration}'}\n", "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n")),
];

/// Returns whether `kubeadm config validate` accepts the text, and its output.
pub(super) fn kubeadm_accepts(text: &str) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeadm.yaml");
    fs::write(&file, text).unwrap();
    let output = Command::new(kubeadm::binary())
        .args(["config", "validate", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

#[test]
fn kubeadm_configuration() {
    follow_messages(REFUSED_BY_KUBEADM);
    follow_messages(ACCEPTED_BY_KUBEADM);
    follow_messages(ACCEPTED_ONLY_HERE);
}

#[test]
fn kubeadm_refuses_the_same_files_and_accepts_their_corrections() {
    for mistake in REFUSED_BY_KUBEADM.iter().chain(ACCEPTED_ONLY_HERE) {
        let name = mistake.name;
        let (_, broken) = edited(mistake, &[mistake.broken]);
        let (is_accepted, said) = kubeadm_accepts(&broken);
        assert!(!is_accepted, "{name}: kubeadm accepts\n{broken}\n{said}");
        let (_, corrected) = edited(mistake, &[mistake.broken, mistake.fix]);
        let (is_accepted, said) = kubeadm_accepts(&corrected);
        assert!(is_accepted, "{name}: kubeadm refuses\n{corrected}\n{said}");
    }
}

/// Mistakes in the JoinConfiguration of a control-plane node.
#[rustfmt::skip]
const JOINING: &[Mistake] = &[
    refused("token of another form",
        ("abcdef.0123456789abcdef", "abcdef-0123456789abcdef"),
        "discovery.bootstrapToken.token: is not a bootstrap token (write the token as `kubeadm token create` prints it",
        ("abcdef-0123456789abcdef", "abcdef.0123456789abcdef")),
    refused("endpoint without a port",
        ("'api.example.com:6443'", "api.example.com"),
        "has no port; nodepki uses 6443, but kubeadm refuses the file (write api.example.com:6443, or the port in use)",
        ("apiServerEndpoint: api.example.com", "apiServerEndpoint: 'api.example.com:6443'")),
    refused("neither a pin nor the permission to join without",
        (", unsafeSkipCAVerification: true", ""),
        "or set unsafeSkipCAVerification: true",
        ("6443'}", "6443', unsafeSkipCAVerification: true}")),
    refused("no discovery",
        ("discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'api.example.com:6443', unsafeSkipCAVerification: true}}\n", ""),
        "has no discovery, with which kubeadm finds the cluster (add discovery.bootstrapToken or discovery.file",
        ("nodeRegistration:", "discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'api.example.com:6443', unsafeSkipCAVerification: true}}\nnodeRegistration:")),
    refused("address of a first node",
        ("controlPlane: {localAPIEndpoint: {advertiseAddress: 192.0.2.12}}", "localAPIEndpoint: {advertiseAddress: 192.0.2.12}"),
        "localAPIEndpoint: unknown field (move it below controlPlane: controlPlane.localAPIEndpoint)",
        ("localAPIEndpoint: {advertiseAddress: 192.0.2.12}", "controlPlane: {localAPIEndpoint: {advertiseAddress: 192.0.2.12}}")),
    refused("certificate key beside controlPlane",
        ("controlPlane: {", "certificateKey: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\ncontrolPlane: {"),
        "certificateKey: unknown field (move it below controlPlane: controlPlane.certificateKey)",
        ("certificateKey: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\ncontrolPlane: {", "controlPlane: {certificateKey: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef, ")),
];

/// Mistakes that `kubeadm join` refuses and `kubeadm config validate` does not.
#[rustfmt::skip]
const REFUSED_BY_JOIN: &[Mistake] = &[
    refused("all preflight errors and one more",
        ("nodeRegistration: {", "nodeRegistration: {ignorePreflightErrors: [Swap, ALL], "),
        "nodeRegistration.ignorePreflightErrors: contains all and other names, which kubeadm refuses (remove the other names)",
        ("[Swap, ALL]", "[ALL]")),
];

#[test]
fn configuration_of_joining_nodes() {
    let node = node();
    run(&node, CHECK, SETTINGS, JOIN).done();
    for mistake in JOINING.iter().chain(REFUSED_BY_JOIN) {
        let name = mistake.name;
        let broken = super::replaced(JOIN, mistake.broken, name);
        let ran = run(&node, CHECK, SETTINGS, &broken);
        assert_eq!(ran.code, Some(78), "{name}:\n{}", ran.said());
        ran.says(mistake.message);
        let corrected = super::replaced(&broken, mistake.fix, name);
        let ran = run(&node, CHECK, SETTINGS, &corrected);
        assert_eq!(ran.code, Some(0), "{name}, corrected:\n{}", ran.said());
    }
}

#[test]
fn kubeadm_refuses_the_same_files_of_joining_nodes() {
    for mistake in JOINING {
        let name = mistake.name;
        let broken = super::replaced(JOIN, mistake.broken, name);
        assert!(
            !kubeadm_accepts(&broken).0,
            "{name}: kubeadm accepts\n{broken}"
        );
        let corrected = super::replaced(&broken, mistake.fix, name);
        let (is_accepted, said) = kubeadm_accepts(&corrected);
        assert!(is_accepted, "{name}: kubeadm refuses\n{corrected}\n{said}");
    }
}

/// Lists only the fault from which the others follow.
#[test]
fn reports_missing_separator_alone() {
    let node = node();
    let ran = run(&node, CHECK, SETTINGS, &INIT.replacen("---\n", "", 1));
    ran.ended(78);
    let faults: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(
        faults.iter().all(|fault| fault.contains("is given twice")),
        "{faults:?}"
    );
}

#[test]
fn line_ends_and_encodings() {
    let node = node();
    for text in [INIT.replace('\n', "\r\n"), format!("\u{feff}{INIT}")] {
        run(&node, CHECK, SETTINGS, &text).done();
    }
    let file = node.outside("kubeadm.yaml");
    let utf_16: Vec<u8> = std::iter::once(0xfeff)
        .chain(INIT.encode_utf16())
        .flat_map(u16::to_le_bytes)
        .collect();
    let old = node.outside("OLD");
    fs::write(&old, &utf_16).unwrap();
    fs::write(&file, &utf_16).unwrap();
    let check = || crate::node::Ran::of(&mut node.configured(CHECK));
    let ran = check();
    let path = file.display().to_string();
    ran.ended(78).says(&format!(
        "nodepki: {path}: is not UTF-8 text (convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW)"
    ));
    // The command in the message.
    let convert = format!("iconv -f UTF-16 -t UTF-8 {} > {path}", old.display());
    let converted = Command::new("bash").args(["-c", &convert]).status();
    assert!(converted.unwrap().success());
    check().done();
    run(&node, CHECK, SETTINGS, "# nothing yet\n")
        .ended(78)
        .says(&format!("{path}: the file is empty: no InitConfiguration"))
        .says("(name the file given to kubeadm under kubeadm.files or with --kubeadm-config FILE)");
    run(&node, CHECK, SETTINGS, INIT).done();
}
