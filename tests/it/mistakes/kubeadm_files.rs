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
const VERSION: &str = "kubernetesVersion: v1.36.2";

/// Mistakes that kubeadm refuses as well.
#[rustfmt::skip]
const REFUSED_BY_KUBEADM: &[Mistake] = &[
    refused("separator of documents missing",
        ("---\n", ""),
        "if another document begins here, write a line with --- before it",
        ("nodeRegistration: {name: cp1}\n", "nodeRegistration: {name: cp1}\n---\n")),
    refused("name beside nodeRegistration",
        ("nodeRegistration: {name: cp1}", "nodeRegistration: {}\nname: cp1"),
        "name: unknown key (move it below nodeRegistration: nodeRegistration.name)",
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
        "controlPlaneEndpoint: unknown key (move it to the ClusterConfiguration)",
        ("controlPlaneEndpoint: api.example.com:6443\nnodeRegistration:", "nodeRegistration:")),
    refused("address beside localAPIEndpoint",
        ("localAPIEndpoint: {advertiseAddress: 192.0.2.11}", "advertiseAddress: 192.0.2.11"),
        "(move it below localAPIEndpoint: localAPIEndpoint.advertiseAddress)",
        ("advertiseAddress: 192.0.2.11", "localAPIEndpoint: {advertiseAddress: 192.0.2.11}")),
    refused("names beside apiServer",
        (VERSION, "certSANs: [api.example.com]"),
        "certSANs: unknown key (move it below apiServer: apiServer.certSANs)",
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
        "(write only the host of the URL: api.example.com)",
        ("https://api.example.com:6443", "api.example.com")),
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
        "unquoted 1.36 is a number, must be text (write \"1.36\" in quotes)",
        ("kubernetesVersion: 1.36", "kubernetesVersion: \"1.36.2\"")),
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
        "\"etcd.test:2379\" is not an https URL (write it as https://HOST:2379)",
        ("'etcd.test:2379'", "'https://etcd.test:2379'")),
    refused("tab for indentation",
        ("nodeRegistration: {name: cp1}", "nodeRegistration:\n\tname: cp1"),
        "indent with spaces, YAML does not allow tabs",
        ("\tname", "  name")),
];

/// Returns whether `kubeadm config validate` accepts the text, and its output.
fn kubeadm_accepts(text: &str) -> (bool, String) {
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
}

#[test]
fn kubeadm_refuses_the_same_files_and_accepts_their_corrections() {
    for mistake in REFUSED_BY_KUBEADM {
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
        "localAPIEndpoint: unknown key (move it below controlPlane: controlPlane.localAPIEndpoint)",
        ("localAPIEndpoint: {advertiseAddress: 192.0.2.12}", "controlPlane: {localAPIEndpoint: {advertiseAddress: 192.0.2.12}}")),
    refused("certificate key beside controlPlane",
        ("controlPlane: {", "certificateKey: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\ncontrolPlane: {"),
        "certificateKey: unknown key (move it below controlPlane: controlPlane.certificateKey)",
        ("certificateKey: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\ncontrolPlane: {", "controlPlane: {certificateKey: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef, ")),
];

#[test]
fn configuration_of_joining_nodes() {
    let node = node();
    run(&node, CHECK, SETTINGS, JOIN).done();
    for mistake in JOINING {
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
