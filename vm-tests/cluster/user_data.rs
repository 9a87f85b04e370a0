//! The texts of `cloud-init/` with the edits that their README asks for.

use super::authority::AUTHORITIES;
use super::network::{
    ENDPOINT, FIRST_SERVICES, POD_SUBNETS, SERVICE_SUBNETS, address, address_ipv6,
};
use super::node::Role;
use super::openbao::OpenBao;
use super::{Cluster, Signer};

const FIRST: &str = include_str!("../../cloud-init/user-data-first.yaml");
const JOIN: &str = include_str!("../../cloud-init/user-data-join.yaml");
const DIRECTORY: &str = include_str!("../../cloud-init/signers/directory.yaml");
const VAULT: &str = include_str!("../../cloud-init/signers/vault.yaml");

const KUBEADM: &str = "/etc/nodepki/kubeadm.yaml";

/// Begin of the command that writes the script for kubeadm.
const KUBEADM_SCRIPT: &str = "    put /var/lib/cloud/scripts/per-boot/50-kubeadm";

/// A node's own addresses of each family, in the syntax of cloud-init's templates.
const OWN_ADDRESSES: [&str; 2] = [
    "{{ ds.meta_data.local_ipv4 }}",
    "{{ ds.meta_data.local_ipv6 }}",
];

/// Preflight checks that fail here: control groups and kernel are the host's. `HTTPProxyCIDR`: kubeadm before 1.35 writes
/// an IPv4 address in brackets, which newer releases of Go do not parse.
const IGNORED: &str = "ignorePreflightErrors: [SystemVerification, HTTPProxyCIDR]";

/// Values for a joining node in addition to the signer.
pub(crate) struct Secrets {
    pub(crate) token: String,
    pub(crate) certificate_key: String,
}

/// Returns the user data of the first control-plane node.
pub(crate) fn first(cluster: &Cluster, version: &str, name: &str) -> String {
    let text = first_flow(cluster, version, name);
    let kubeadm = written(&text, KUBEADM);
    with_signer(&text, cluster, name, &kubeadm)
}

/// Returns the user data of a first node that kubeadm creates with its own CAs.
pub(crate) fn first_by_kubeadm(cluster: &Cluster, name: &str) -> String {
    let mut text = first_flow(cluster, cluster.spec.version, name);
    let init = "kubeadm init --config /etc/nodepki/kubeadm.yaml";
    leave_to_kubeadm(&mut text, init, init);
    cut(
        &mut text,
        "    if [ ! -e /etc/nodepki/certificate-key ]",
        "    systemctl enable --now nodepki-renew.timer",
    );
    text
}

/// Removes the commands that run kubeadm: the node gets its PKI only.
pub(crate) fn bootstrap_only(mut user_data: String) -> String {
    cut(
        &mut user_data,
        KUBEADM_SCRIPT,
        "    systemctl enable --now --no-block nodepki-bootstrap.service",
    );
    user_data
}

fn first_flow(cluster: &Cluster, version: &str, name: &str) -> String {
    let spec = cluster.spec;
    let mut text = FIRST.to_owned();
    let addresses = [address(name), address_ipv6(name)];
    replace(
        &mut text,
        "name: cp1",
        &format!("name: {name}{}", registration(cluster, &addresses)),
    );
    replace(&mut text, "192.0.2.11", &address(name));
    replace(&mut text, "api.prod.example.com", ENDPOINT.1);
    replace(
        &mut text,
        "kubernetesVersion: v1.37.2",
        &format!("kubernetesVersion: {version}"),
    );
    // Control groups, kernel parameters, swap and the file system are the host's.
    replace(
        &mut text,
        "    encryptionAlgorithm: ECDSA-P256\n",
        &format!(
            "    encryptionAlgorithm: {}
{}    ---
    apiVersion: kubelet.config.k8s.io/v1beta1
    kind: KubeletConfiguration
    cgroupDriver: cgroupfs
    failCgroupV1: false
    failSwapOn: false
    evictionHard: {{memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}}
    imageGCHighThresholdPercent: 100
    ---
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    kind: KubeProxyConfiguration
    mode: nftables
    conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
",
            spec.algorithm.0,
            if cluster.is_dual_stack() { dual_stack() } else { String::new() }
        ),
    );
    text
}

/// Returns the lines that follow the name in `nodeRegistration`.
fn registration(cluster: &Cluster, addresses: &[impl AsRef<str>; 2]) -> String {
    let mut text = format!("\n      {IGNORED}");
    if cluster.is_dual_stack() {
        let [ipv4, ipv6] = addresses.each_ref().map(AsRef::as_ref);
        text.push_str(&format!(
            "\n      kubeletExtraArgs: [{{name: node-ip, value: \"{ipv4},{ipv6}\"}}]"
        ));
    }
    text
}

/// Returns the dual-stack lines of the ClusterConfiguration. kubeadm adds only the first service address of the first
/// family to apiserver.crt.
fn dual_stack() -> String {
    format!(
        "    networking: {{podSubnet: \"{POD_SUBNETS}\", serviceSubnet: \"{SERVICE_SUBNETS}\"}}
    apiServer: {{certSANs: [\"{}\"]}}
    # The subnets of the pods are the nodes' own.
    controllerManager: {{extraArgs: [{{name: allocate-node-cidrs, value: \"false\"}}]}}
",
        FIRST_SERVICES[1]
    )
}

/// Returns the user data of a further node.
pub(crate) fn join(cluster: &Cluster, name: &str, role: Role, secrets: &Secrets) -> String {
    let text = join_flow(cluster, role, secrets);
    // `config signer-setup` runs outside the node, with the rendered template and the configuration of the cluster.
    let first = first_flow(cluster, cluster.spec.version, cluster.nodes[0].name);
    let first = written(&first, KUBEADM);
    let mut documents = first.split("---\n");
    let configuration = documents.find(|one| one.contains("kind: ClusterConfiguration"));
    let kubeadm = written(&text, KUBEADM)
        .replace("{{ v1.local_hostname }}", name)
        .replace(OWN_ADDRESSES[0], &address(name))
        .replace(OWN_ADDRESSES[1], &address_ipv6(name))
        + "---\n"
        + configuration.unwrap();
    with_signer(&text, cluster, name, &kubeadm)
}

/// Returns the user data of a node that kubeadm joins with the CA keys.
pub(crate) fn join_by_kubeadm(cluster: &Cluster, role: Role, secrets: &Secrets) -> String {
    let mut text = join_flow(cluster, role, secrets);
    leave_to_kubeadm(
        &mut text,
        "kubeadm join --config /var/lib/nodepki/kubeadm-join.yaml",
        "kubeadm join --config /etc/nodepki/kubeadm.yaml",
    );
    if role == Role::ControlPlane {
        replace(
            &mut text,
            "# No certificateKey here: kubeadm would fetch whatever CA keys there are.",
            &format!("certificateKey: {}", secrets.certificate_key),
        );
    }
    text
}

/// Removes all units of nodepki from the boot except its timer.
fn leave_to_kubeadm(text: &mut String, command: &str, instead: &str) {
    cut(
        text,
        "    until systemctl start nodepki-bootstrap.service",
        "    if [ ! -e /etc/kubernetes/kubeadm.done",
    );
    replace(text, command, instead);
    replace(
        text,
        "    systemctl enable --now --no-block nodepki-bootstrap.service\n",
        "",
    );
    cut(
        text,
        "    put /etc/nodepki/config.d/20-node.yaml",
        KUBEADM_SCRIPT,
    );
    *text = text.replace(KUBEADM, "/root/kubeadm.yaml");
}

/// The user data of a worker without nodepki, which joins by the command that `kubeadm token create` prints.
pub(crate) fn plain_worker(cluster: &Cluster, token: &str) -> String {
    format!(
        "#cloud-config
bootcmd:
  - [cloud-init-per, instance, purge, dpkg, --purge, nodepki]
runcmd:
  - |
    kubeadm join {}:6443 --token {token} --discovery-token-ca-cert-hash sha256:{} \\
      --ignore-preflight-errors SystemVerification,HTTPProxyCIDR && touch /root/joined
",
        ENDPOINT.1,
        cluster.authorities.pin("ca")
    )
}

fn join_flow(cluster: &Cluster, role: Role, secrets: &Secrets) -> String {
    let mut text = JOIN.to_owned();
    replace(&mut text, "abcdef.0123456789abcdef", &secrets.token);
    replace(&mut text, "api.prod.example.com", ENDPOINT.1);
    replace(
        &mut text,
        "4f3c1c2a9d0b7e6f5a4b3c2d1e0f99887766554433221100ffeeddccbbaa9988",
        &cluster.authorities.pin("ca"),
    );
    let host_name = "name: \"{{ v1.local_hostname }}\"";
    replace(
        &mut text,
        host_name,
        &format!("{host_name}{}", registration(cluster, &OWN_ADDRESSES)),
    );
    if role == Role::Worker {
        cut(&mut text, "    controlPlane:\n", "    EOF\n");
        cut(&mut text, "    join:\n", "    EOF\n");
        cut(
            &mut text,
            "    put /etc/nodepki/certificate-key",
            KUBEADM_SCRIPT,
        );
    } else {
        replace(
            &mut text,
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            &secrets.certificate_key,
        );
    }
    text
}

/// Adds the part of the signer. `kubeadm` is the node's configuration as its administrator knows it.
fn with_signer(text: &str, cluster: &Cluster, name: &str, kubeadm: &str) -> String {
    let signer = match cluster.spec.signer {
        Signer::Directory => directory(cluster),
        Signer::OpenBao => vault(cluster, name, kubeadm),
    };
    // The README joins the two parts in this way; the marker of a template must be the first line.
    let (_, commands) = signer.split_once("\nbootcmd:\n").unwrap();
    format!("{text}{commands}")
}

/// Returns the script that the part of a directory signer runs on the node at each boot.
pub(crate) fn directory_script(cluster: &Cluster) -> String {
    let signer = directory(cluster);
    let (_, script) = signer.split_once("\nbootcmd:\n  - |\n").unwrap();
    script
        .lines()
        .map(|line| line.strip_prefix("    ").unwrap_or_default().to_owned() + "\n")
        .collect()
}

fn vault(cluster: &Cluster, name: &str, kubeadm: &str) -> String {
    let mut signer = VAULT.to_owned();
    replace(
        &mut signer,
        "https://vault.example.com:8200",
        &OpenBao::url(),
    );
    replace(
        &mut signer,
        "role: nodepki-prod-cp1",
        &format!("role: nodepki-prod-{name}"),
    );
    for (authority, _) in AUTHORITIES {
        let begin = format!("      {authority}:");
        let line = signer.lines().find(|line| line.starts_with(&begin));
        let (before, _) = line.unwrap().split_once("sha256: [\"").unwrap();
        let pinned = format!(
            "{before}sha256: [\"{}\"]}}}}",
            cluster.authorities.pin(authority)
        );
        let line = line.unwrap().to_owned();
        replace(&mut signer, &line, &pinned);
    }
    let settings = written(&signer, "/etc/nodepki/config.d/30-signer.yaml");
    let openbao = cluster.openbao.as_ref().unwrap();
    let credential = openbao.enroll(name, &cluster.authorities, &settings, kubeadm);
    replace(
        &mut signer,
        "5b7a2f0e-7f7b-4ab9-9a43-9b5a4f3d5a11",
        &credential.role_id,
    );
    replace(
        &mut signer,
        "hvs.CAESIJexamplewrappingtoken",
        &credential.wrapping_token,
    );
    signer
}

fn directory(cluster: &Cluster) -> String {
    let mut signer = DIRECTORY.to_owned();
    for (authority, _) in AUTHORITIES {
        let certificate = cluster.authorities.certificate(authority);
        replace(
            &mut signer,
            &format!(
                "-----BEGIN CERTIFICATE-----\n    (of {authority})\n    -----END CERTIFICATE-----"
            ),
            &certificate.trim().replace('\n', "\n    "),
        );
    }
    signer
}

/// Returns the text that `put` writes to a file.
fn written(text: &str, path: &str) -> String {
    let begin = format!("    put {path} <<'EOF'\n");
    let (_, rest) = text.split_once(&begin).unwrap();
    let (file, _) = rest.split_once("    EOF\n").unwrap();
    file.lines()
        .map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n")
        .collect()
}

/// Replaces the only occurrence of `old`.
fn replace(text: &mut String, old: &str, new: &str) {
    assert_eq!(text.matches(old).count(), 1, "{old:?} in:\n{text}");
    *text = text.replace(old, new);
}

/// Removes the text from `begin` up to the next `end`, which stays.
fn cut(text: &mut String, begin: &str, end: &str) {
    assert_eq!(text.matches(begin).count(), 1, "{begin:?} in:\n{text}");
    let from = text.find(begin).unwrap();
    let length = text[from..].find(end).unwrap();
    text.replace_range(from..from + length, "");
}
