//! Secrets that other users can read: files with open modes, CA keys on the node, and one CA in several places.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use nodepki::kube::names::Authority;

use crate::node::{Node, Ran, copy_authorities};
use crate::signing::openssl;

/// A port that refuses connections.
const CLOSED_PORT: &str = "127.0.0.1:9";
/// A pin that matches no key.
const PIN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Settings of one signer each, which reads the secret file SECRET before it sends a request.
const SIGNERS: &[(&str, &str)] = &[
    (
        "vault.auth.tokenFile",
        "vault: {address: 'https://CLOSED', tls: {sha256: [PIN]}, mount: pki, auth: {tokenFile: SECRET}}",
    ),
    (
        "vault.auth.appRole.secretIDFile",
        "vault: {address: 'https://CLOSED', tls: {sha256: [PIN]}, mount: pki, auth: {appRole: {roleID: r, secretIDFile: SECRET}}}",
    ),
    (
        "vault.auth.jwt.file",
        "vault: {address: 'https://CLOSED', tls: {sha256: [PIN]}, mount: pki, auth: {jwt: {role: r, file: SECRET}}}",
    ),
    (
        "vault.tls.key",
        "vault: {address: 'https://CLOSED', tls: {sha256: [PIN], certificate: /etc/corp/client.crt, key: SECRET}, mount: pki, auth: {certificate: {}}}",
    ),
    (
        "est.auth.basic.passwordFile",
        "est: {url: 'https://CLOSED', tls: {sha256: [PIN]}, auth: {basic: {user: cp1, passwordFile: SECRET}}}",
    ),
    (
        "cfssl.auth.keyFile",
        "cfssl: {url: 'https://CLOSED', tls: {sha256: [PIN]}, auth: {keyFile: SECRET}}",
    ),
    (
        "kubernetes.tokenFile",
        "kubernetes: {server: 'https://CLOSED', tls: {sha256: [PIN]}, signerName: example.com/corp, tokenFile: SECRET}",
    ),
    (
        "kubernetes.kubeconfig",
        "kubernetes: {kubeconfig: SECRET, signerName: example.com/corp}",
    ),
];

const SECRET: &str = "/etc/corp/secret";

/// Returns the content of the secret file: valid for every signer, so only its mode is wrong.
fn content(setting: &str) -> String {
    match setting {
        "kubernetes.kubeconfig" => format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://{CLOSED_PORT}'}}}}]\nusers: [{{name: u, user: {{token: abc}}}}]\n"
        ),
        _ => "00112233445566778899aabbccddeeff".to_owned(),
    }
}

/// Returns a node with a signer that reads [`SECRET`].
fn node_with(setting: &str, signer: &str) -> Node {
    let node = Node::new();
    node.write(SECRET, content(setting));
    let certificate = fs::read(node.ca().join("ca.crt")).unwrap();
    node.write("/etc/corp/client.crt", certificate);
    let signer = signer
        .replace("CLOSED", CLOSED_PORT)
        .replace("PIN", PIN)
        .replace("SECRET", SECRET);
    node.write(
        "/etc/nodepki/config.yaml",
        format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nsigners: {{corp: {{{signer}}}}}\n\
             authorities: {{ca: {{signer: corp}}, etcd-ca: {{signer: corp}}, front-proxy-ca: {{signer: corp}}}}\n"
        ),
    );
    node
}

fn on_node(node: &Node, arguments: &[&str]) -> Ran {
    let mut command = node.command(arguments);
    command
        .arg("--kubeadm-config")
        .arg(node.outside("kubeadm.yaml"));
    Ran::of(&mut command)
}

fn bootstrap(node: &Node) -> Ran {
    on_node(node, &["bootstrap", "--wait", "0s", "--clock-wait", "0s"])
}

/// Asserts that `bootstrap` refuses the file with this mode, and that the commands which only read report it.
fn assert_refuses(node: &Node, setting: &str, mode: u32) {
    node.set_mode(SECRET, mode);
    let path = node.path(SECRET).display().to_string();
    let (mode, fix) = (format!("mode {mode:04o}"), format!("chmod 600 {path}"));
    let name = format!("signers.corp.{setting}: mode");
    for ran in [
        on_node(node, &["plan"]).ended(65),
        on_node(node, &["config", "check"]).done(),
        on_node(node, &["doctor"]).ended(65),
    ] {
        ran.says(&name).says(&mode).says(&fix);
    }
    on_node(node, &["doctor", "-o", "json"]).says("\"secret-exposed\"");
    // Some signers fetch their CA certificates first, without the secret.
    let ran = bootstrap(node);
    ran.says(&mode).says(&fix);
    assert!(matches!(ran.code, Some(65 | 69)), "{}", ran.said());
}

#[test]
fn refuses_secret_that_other_users_can_read_or_change() {
    for (setting, signer) in SIGNERS {
        let node = node_with(setting, signer);
        assert_refuses(&node, setting, 0o644);
        node.set_mode(SECRET, 0o600);
        for command in ["plan", "doctor"] {
            on_node(&node, &[command]).says_not("chmod 600");
        }
        let ran = bootstrap(&node);
        assert_ne!(ran.code, Some(65), "{setting}: {}", ran.said());
    }
}

#[test]
fn refuses_each_permission_of_others() {
    let (setting, signer) = SIGNERS[0];
    let node = node_with(setting, signer);
    for mode in [0o640, 0o620, 0o604, 0o602, 0o611, 0o666, 0o777] {
        assert_refuses(&node, setting, mode);
    }
    for mode in [0o600, 0o400, 0o700] {
        node.set_mode(SECRET, mode);
        bootstrap(&node).ended(69).says_not("chmod");
    }
}

#[test]
fn accepts_secret_that_a_service_shares_with_a_group() {
    let (setting, signer) = SIGNERS[0];
    let node = node_with(setting, signer);
    chown(node.path(SECRET), Some(100), Some(100)).unwrap();
    node.set_mode(SECRET, 0o640);
    bootstrap(&node).ended(69).says_not("chmod");
    for mode in [0o644, 0o660] {
        assert_refuses(&node, setting, mode);
    }
}

#[test]
fn follows_links_to_the_secret_itself() {
    let (setting, signer) = SIGNERS[0];
    let node = node_with(setting, signer);
    node.write("/run/agent/token", "s.token");
    node.remove(SECRET);
    std::os::unix::fs::symlink("/run/agent/token", node.path(SECRET)).unwrap();
    node.set_mode("/run/agent/token", 0o644);
    bootstrap(&node).ended(65).says("mode 0644");
    node.set_mode("/run/agent/token", 0o600);
    bootstrap(&node).ended(69);
}

#[test]
fn accepts_kubeconfig_without_credentials_and_those_of_the_node() {
    let (setting, signer) = ("kubernetes.kubeconfig", SIGNERS[7].1);
    let node = node_with(setting, signer);
    node.write("/etc/corp/token", "abc");
    let by_file = content(setting).replace("token: abc", "tokenFile: /etc/corp/token");
    node.write(SECRET, by_file);
    node.set_mode("/etc/corp/token", 0o600);
    bootstrap(&node).says_not("chmod");
    node.set_mode("/etc/corp/token", 0o644);
    bootstrap(&node)
        .ended(65)
        .says("etc/corp/token")
        .says("chmod 600");
    let own = node_with(
        setting,
        &signer.replace("SECRET", "/etc/kubernetes/admin.conf"),
    );
    own.write("/etc/kubernetes/admin.conf", content(setting));
    bootstrap(&own).says_not("chmod");
}

#[test]
fn accepts_systemd_credential_with_permissions_of_the_group() {
    let node = Node::new();
    let credentials = tempfile::tempdir().unwrap();
    let token = credentials.path().join("token");
    fs::write(&token, "s.token").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o440)).unwrap();
    for named in ["credential:token", token.to_str().unwrap()] {
        let text = format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nsigners: {{corp: {{vault: {{address: 'https://{CLOSED_PORT}', \
             tls: {{sha256: ['{PIN}']}}, mount: pki, auth: {{tokenFile: '{named}'}}}}}}}}\n\
             authorities: {{ca: {{signer: corp}}, etcd-ca: {{signer: corp}}, front-proxy-ca: {{signer: corp}}}}\n"
        );
        node.write_settings(&text);
        let mut command = node.ask_command("0s");
        command.env("CREDENTIALS_DIRECTORY", credentials.path());
        Ran::of(&mut command).ended(69).says_not("chmod");
    }
}

#[test]
fn refuses_certificate_key_that_other_users_can_read() {
    let node = Node::bootstrapped();
    let key = "/etc/corp/certificate-key";
    node.write(key, "0".repeat(64));
    let path = node.path(key).display().to_string();
    let upload = |mode| {
        node.set_mode(key, mode);
        on_node(&node, &["certs", "upload", "--certificate-key-file", &path])
    };
    upload(0o644)
        .ended(65)
        .says("mode 0644")
        .says(&format!("chmod 600 {path}"));
    upload(0o600).says_not("chmod");
}

#[test]
fn refuses_to_sign_with_ca_key_that_other_users_can_read() {
    let node = Node::new();
    let key = node.ca().join("front-proxy-ca.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let fix = format!("chmod 600 {}", key.display());
    node.bootstrap().ended(65).says("mode 0640").says(&fix);
    node.plan().ended(65).says(&fix);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    node.bootstrap().done();
}

#[test]
fn reports_kubeadm_file_with_secret_that_every_user_can_read() {
    let node = Node::new();
    let file = node.outside("kubeadm.yaml");
    let init = fs::read_to_string(&file).unwrap();
    let fix = format!("chmod 600 {}", file.display());
    let set = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    set(0o644);
    node.plan().done().says_not(&fix);
    for secret in [
        "bootstrapTokens: [{token: abcdef.0123456789abcdef}]",
        "certificateKey: 0000000000000000000000000000000000000000000000000000000000000000",
    ] {
        let kind = "kind: InitConfiguration\n";
        assert!(init.contains(kind), "{init}");
        let document = init.replace(kind, &format!("{kind}{secret}\n"));
        fs::write(&file, document).unwrap();
        set(0o644);
        node.plan()
            .done()
            .says(&fix)
            .says_not("abcdef.0123456789abcdef");
        on_node(&node, &["doctor"]).ended(65).says(&fix);
        set(0o640);
        node.plan().done().says_not(&fix);
    }
}

// ---- CA keys of a local signer ----

#[test]
fn reports_ca_keys_of_local_signer_on_the_node() {
    let node = Node::bootstrapped();
    node.write(
        "/etc/nodepki/config.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nsigners: {lab: {local: {directory: /srv/ca}}}\n\
         authorities: {ca: {signer: lab}, etcd-ca: {signer: lab}, front-proxy-ca: {signer: lab}}\n",
    );
    copy_authorities(Authority::ALL, &node.ca(), &node.path("/srv/ca"));
    let words = format!(
        "signers.lab.local.directory: {} contains the private keys of ca, front-proxy-ca, etcd-ca on this node",
        node.path("/srv/ca").display()
    );
    for arguments in [&["plan"][..], &["config", "check"], &["doctor"]] {
        let ran = on_node(&node, arguments);
        ran.done()
            .says(&words)
            .says("can sign certificates for the whole cluster");
    }
    on_node(&node, &["doctor", "-o", "json"]).says("\"local-signer\"");
    // On a machine used for rescue they are outside the node.
    node.remove("/etc/nodepki/config.yaml");
    node.plan().done().says_not("private keys of");
}

// ---- One CA in several places ----

/// Words on the risks of a front-proxy CA and of an etcd CA that also issue other client certificates.
const FRONT_PROXY_RISK: &str = "with the common name front-proxy-client can act as any user";
const ETCD_RISK: &str = "can read and change everything in etcd";

/// Returns the node whose authorities are all the one of `ca`.
fn node_with_one_authority() -> Node {
    let node = Node::new();
    for authority in [Authority::EtcdCa, Authority::FrontProxyCa] {
        for extension in ["crt", "key"] {
            let file = |authority: Authority| {
                node.ca()
                    .join(format!("{}.{extension}", authority.base_name()))
            };
            fs::copy(file(Authority::Ca), file(authority)).unwrap();
        }
        let path = format!("/etc/kubernetes/pki/{}.crt", authority.base_name());
        node.write(path, fs::read(node.ca().join("ca.crt")).unwrap());
    }
    node
}

#[test]
fn reports_one_authority_in_all_three_places() {
    let node = node_with_one_authority();
    let says = |ran: &Ran| {
        let path = |name: &str| node.path(format!("/etc/kubernetes/pki/{name}.crt"));
        ran.says(&format!(
            "{} also accepts certificates of ca and etcd-ca",
            path("front-proxy-ca").display()
        ))
        .says(FRONT_PROXY_RISK)
        .says(&format!(
            "{} also accepts certificates of ca and front-proxy-ca",
            path("etcd/ca").display()
        ))
        .says(ETCD_RISK)
        .says("create a separate CA for front-proxy-ca: ");
    };
    says(node.plan().done());
    says(node.bootstrap().done());
    says(on_node(&node, &["doctor"]).ended(65));
    on_node(&node, &["doctor", "-o", "json"]).says("\"shared-authority\"");
    // `authority stage` needs a cluster.
    on_node(&node, &["doctor"])
        .says("remove the certificates under front-proxy-ca from the node, and run `nodepki bootstrap`")
        .says_not("authority stage");
    let manifest = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{command: [kube-apiserver]}]}}";
    node.write("/etc/kubernetes/manifests/kube-apiserver.yaml", manifest);
    on_node(&node, &["doctor"]).says("authority stage front-proxy-ca --certificate FILE");
    let separate = Node::bootstrapped();
    for command in ["plan", "doctor"] {
        on_node(&separate, &[command]).says_not("also accepts");
    }
}

#[test]
fn reports_one_authority_that_is_learned_from_the_signer() {
    let node = node_with_one_authority();
    for authority in Authority::ALL {
        node.remove(format!("/etc/kubernetes/pki/{}.crt", authority.base_name()));
    }
    node.plan().done().says_not("also accepts");
    node.bootstrap()
        .done()
        .says(FRONT_PROXY_RISK)
        .says(ETCD_RISK);
}

#[test]
fn reports_root_above_another_authority() {
    let node = Node::new();
    // The CA was issued by the one of the front proxy.
    let (ca, root) = (node.ca(), node.ca().join("front-proxy-ca"));
    let path = |path: &Path| path.display().to_string();
    let subject = "/CN=kubernetes";
    let request = openssl(
        &[
            "req",
            "-new",
            "-key",
            &path(&ca.join("ca.key")),
            "-subj",
            subject,
        ],
        b"",
    );
    let extensions = node.outside("extensions");
    fs::write(
        &extensions,
        "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign,digitalSignature\nsubjectKeyIdentifier=hash\n",
    )
    .unwrap();
    let (key, certificate) = (root.with_extension("key"), root.with_extension("crt"));
    let issued = openssl(
        &[
            "x509",
            "-req",
            "-days",
            "3000",
            "-CA",
            &path(&certificate),
            "-CAkey",
            &path(&key),
            "-set_serial",
            "4711",
            "-extfile",
            &path(&extensions),
        ],
        &request,
    );
    fs::write(ca.join("ca.crt"), &issued).unwrap();
    node.write("/etc/kubernetes/pki/ca.crt", &issued);
    let ran = node.plan();
    ran.done()
        .says("front-proxy-ca.crt also accepts certificates of ca:")
        .says(FRONT_PROXY_RISK)
        .says_not(ETCD_RISK);
}
