//! `vault` against a real OpenBao, set up by the output of `config signer-setup vault` and in other ways.

mod boot;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nodepki::http::Method;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, FailureClass, Request, Signer, SignerKind};
use nodepki::x509::{RevocationList, TrustBundle, UsageExtensions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{Action, Gateway, Issuer, Rule};
use crate::log::logged;
use crate::node::{INIT, Node, Ran};
use crate::rig::{Front, Rig};
use crate::servers::kubernetes::kubernetes;
use crate::servers::vault::{Bao, Space, put, text};
use crate::signer_bad::verdict;
pub(crate) use crate::signer_setup::print_setup;
use crate::signing::{
    HEAD, contains, crl_text, fails, issued, open, openssl, request, request_for, run,
    settings_with_etcd, wanted, write_secret, x509_text,
};
use crate::time::{eventually, let_pass};

/// A namespace that the printed script has set up; front-proxy-ca is an intermediate.
pub(crate) struct VaultRig {
    dir: TempDir,
    space: Space<'static>,
}

impl VaultRig {
    pub(crate) fn new() -> Self {
        Self::set_up_for(str::to_owned)
    }

    /// Sets the server up by the output for changed settings.
    fn set_up_for(change: impl Fn(&str) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rig = VaultRig {
            dir,
            space: Bao::shared().space(),
        };
        let space = &rig.space;
        for name in ["role-id", "secret-id"] {
            put(rig.dir.path(), name, "not yet delivered");
        }
        space.apply(&printed(rig.dir.path(), &change(&rig.settings())));
        fs::create_dir(rig.dir.path().join("etcd")).unwrap();
        for authority in Authority::ALL {
            let mount = format!("pki/{authority}");
            let name = authority.common_name();
            let pem = match authority {
                Authority::FrontProxyCa => space.intermediate_ca(&mount, name, "pki/above"),
                _ => space.root_ca(&mount, name),
            };
            let file = rig.dir.path().join(authority.base_name());
            fs::write(file.with_extension("crt"), pem).unwrap();
        }
        let app = "auth/approle/role/nodepki-kubernetes-cp1";
        let role_id = space.read(&format!("{app}/role-id"));
        let secret_id = space.write(&format!("{app}/secret-id"), json!({}));
        for (file, value) in [
            ("role-id", &role_id["data"]["role_id"]),
            ("secret-id", &secret_id["data"]["secret_id"]),
        ] {
            put(rig.dir.path(), file, &text(value));
        }
        rig
    }

    /// Returns the keys of a signer, with the server at `url` and trusted by `tls`.
    fn signer(&self, url: &str, tls: &str) -> String {
        let dir = self.dir.path().display();
        format!(
            "{{vault: {{address: \"{url}\", namespace: {}, mount: \"pki/{{authority}}\", \
             auth: {{appRole: {{roleIDFile: {dir}/role-id, secretIDFile: {dir}/secret-id}}}}, tls: {tls}}}}}",
            self.space.namespace
        )
    }

    fn tls(&self) -> String {
        format!("{{caFile: {}}}", self.space.bao.ca_file().display())
    }
}

impl Rig for VaultRig {
    fn kind(&self) -> SignerKind {
        SignerKind::Vault
    }

    fn settings(&self) -> String {
        let signer = self.signer(&self.space.bao.url(), &self.tls());
        format!("{HEAD}signers: {{v: {signer}}}\n")
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    fn sent(&self) -> Vec<String> {
        Authority::ALL
            .into_iter()
            .flat_map(|authority| self.space.certified(&format!("pki/{authority}")))
            .collect()
    }

    fn front(&self) -> Option<Front> {
        let direct = self.signer(&self.space.bao.url(), &self.tls());
        let fronted = self.signer("ADDRESS", "TLS");
        Some(Front {
            upstream: self.space.bao.upstream(),
            submit: ("POST", "/sign/"),
            settings: Box::new(move |url, tls| {
                let fronted = fronted.replace("ADDRESS", url).replace("TLS", tls);
                settings_with_etcd(&direct, &fronted)
            }),
            exceptions: &[],
        })
    }
}

/// Returns what `config signer-setup vault` prints for the first node of a cluster.
fn printed(dir: &Path, settings: &str) -> String {
    let ran = print_setup(dir, settings, INIT, &["vault"]);
    ran.done();
    ran.stdout
}

/// A namespace with an engine `pki` that a test configures, and signers that use it.
struct Lab {
    dir: TempDir,
    space: Space<'static>,
    /// PEM.
    ca: String,
}

impl Lab {
    fn new() -> Self {
        let space = Bao::shared().space();
        space.engine("pki");
        let ca = space.root_ca("pki", "etcd-ca");
        Lab {
            dir: tempfile::tempdir().unwrap(),
            space,
            ca,
        }
    }

    /// Adds a role `any` for a server with any name, and opens a signer with an unrestricted token.
    fn open_handed() -> (Self, Rc<dyn Signer>) {
        let lab = Lab::new();
        lab.role("any", json!({}));
        let signer = lab.with_token("role: any", &lab.space.any_token());
        (lab, signer)
    }

    /// Writes a role for an etcd server with any name, with more or other keys.
    fn role(&self, name: &str, more: Value) {
        let mut role = json!({"allow_any_name": true, "enforce_hostnames": false, "key_type": "any", "max_ttl": "8760h"});
        for (key, value) in more.as_object().unwrap() {
            role[key] = value.clone();
        }
        self.space.write(&format!("pki/roles/{name}"), role);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn configuration(&self, url: &str, ca: &Path, more: &str, auth: &str) -> String {
        let mount = if more.contains("mount:") {
            ""
        } else {
            "mount: pki, "
        };
        let namespace = match self.space.namespace.as_str() {
            _ if more.contains("namespace:") => String::new(),
            "" => String::new(),
            namespace => format!("namespace: {namespace}, "),
        };
        let tls = if more.contains("tls:") {
            String::new()
        } else {
            format!(", tls: {{caFile: {}}}", ca.display())
        };
        format!(
            "{HEAD}signers: {{s: {{vault: {{address: \"{url}\", {namespace}{mount}{more}{comma}auth: {auth}{tls}}}}}}}\n",
            comma = if more.is_empty() { "" } else { ", " }
        )
    }

    /// Opens a signer as in a new process.
    fn signer(&self, more: &str, auth: &str) -> Rc<dyn Signer> {
        self.signer_at(&self.space.bao.url(), &self.space.bao.ca_file(), more, auth)
    }

    fn signer_at(&self, url: &str, ca: &Path, more: &str, auth: &str) -> Rc<dyn Signer> {
        open(
            &self.configuration(url, ca, more, auth),
            Authority::EtcdCa,
            &self.path("memory"),
        )
    }

    fn through(&self, gateway: &Gateway, more: &str, auth: &str) -> Rc<dyn Signer> {
        self.signer_at(&gateway.url(), &gateway.ca_file(), more, auth)
    }

    fn with_token(&self, more: &str, token: &str) -> Rc<dyn Signer> {
        let auth = self.token_file(token);
        self.signer(more, &auth)
    }

    fn token_file(&self, token: &str) -> String {
        let file = put(self.dir.path(), "token", token);
        format!("{{tokenFile: {}}}", file.display())
    }

    /// Opens a lab with a role `any` and an AppRole whose secret_id is delivered; returns the `auth` keys too.
    fn with_app_role(role: Value) -> (Self, String) {
        let (lab, _) = Lab::open_handed();
        let app = lab.app_role(role);
        lab.secret_id();
        (lab, format!("{{appRole: {{{app}}}}}"))
    }

    /// As [`Lab::with_app_role`], with a wrapped secret_id and more keys; returns the wrapping token too.
    fn with_wrapped_secret_id(more: &str) -> (Self, String, String) {
        let (lab, _) = Lab::open_handed();
        let app = lab.app_role(json!({}));
        let token = lab.wrapped_secret_id();
        (
            lab,
            format!("{{appRole: {{{app}, wrapped: true{more}}}}}"),
            token,
        )
    }

    /// Writes a policy `any`.
    fn any_policy(&self) {
        let policy = "path \"*\" { capabilities = [\"read\", \"update\"] }";
        self.space
            .write("sys/policies/acl/any", json!({ "policy": policy }));
    }

    /// Makes an AppRole with unrestricted tokens; returns its keys.
    fn app_role(&self, more: Value) -> String {
        let policy =
            json!({"policy": "path \"*\" { capabilities = [\"read\", \"update\", \"sudo\"] }"});
        self.space.write("sys/policies/acl/app", policy);
        let _ = self.space.send(
            Method::POST,
            "sys/auth/approle",
            Some(self.space.bao.root_token()),
            Some(&json!({"type": "approle"})),
            &[],
        );
        let mut role = json!({"token_policies": ["app"], "token_ttl": "1h"});
        for (key, value) in more.as_object().unwrap() {
            role[key] = value.clone();
        }
        self.space.write("auth/approle/role/cp1", role);
        let id = self.space.read("auth/approle/role/cp1/role-id");
        format!(
            "roleID: {}, secretIDFile: {}",
            text(&id["data"]["role_id"]),
            self.path("secret-id").display()
        )
    }

    fn secret_id(&self) {
        let made = self
            .space
            .write("auth/approle/role/cp1/secret-id", json!({}));
        put(
            self.dir.path(),
            "secret-id",
            &text(&made["data"]["secret_id"]),
        );
    }

    fn wrapped_secret_id(&self) -> String {
        let token = self
            .space
            .wrapped("auth/approle/role/cp1/secret-id", &json!({}));
        put(self.dir.path(), "secret-id", &token);
        token
    }

    /// Returns a file of the signer's state directory.
    fn stored(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path("memory").join(name)).ok()
    }

    fn gateway(&self) -> Gateway {
        Gateway::to(Some(self.space.bao.upstream()))
    }

    /// Verifies an answer with this lab's CA.
    fn verdict(&self, request: &Request, bytes: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etcd")).unwrap();
        let file = dir.path().join(request.wanted.authority.base_name());
        fs::write(file.with_extension("crt"), &self.ca).unwrap();
        verdict(request, bytes, dir.path())
    }

    /// Revokes the first certificate of an answer.
    fn revoke(&self, answer: &[u8]) {
        let leaf = String::from_utf8(openssl(&["x509"], answer)).unwrap();
        self.space
            .write("pki/revoke", json!({ "certificate": leaf }));
    }

    /// Returns a verified certificate.
    fn signs(&self, signer: &dyn Signer, name: CertName) -> Vec<u8> {
        let request = request(name);
        let bytes = issued(run(signer.submit(&request)));
        assert_eq!(self.verdict(&request, &bytes), "", "{name}");
        bytes
    }
}

/// Opens a signer of a gateway that responds without a server.
fn without_server(gateway: &Gateway, dir: &Path, auth: &str) -> Rc<dyn Signer> {
    let settings = format!(
        "{HEAD}signers: {{s: {{vault: {{address: \"{}\", mount: pki, role: any, auth: {auth}, tls: {{caFile: {}}}}}}}}}\n",
        gateway.url(),
        gateway.ca_file().display()
    );
    open(&settings, Authority::EtcdCa, &dir.join("memory"))
}

fn etcd_server() -> Request {
    request(CertName::EtcdServer)
}

/// Returns the paths of all requests through a gateway.
fn paths(gateway: &Gateway) -> Vec<String> {
    gateway
        .requests()
        .into_iter()
        .map(|request| request.path)
        .collect()
}

fn count(gateway: &Gateway, part: &str) -> usize {
    paths(gateway)
        .iter()
        .filter(|path| path.contains(part))
        .count()
}

// ---- config signer-setup ----

/// A real shell runs the printed script and the commands in its comments against a new server.
#[test]
fn grants_exactly_what_a_node_needs_by_signer_setup() {
    let bao = Bao::start();
    let node = Node::new();
    let (role_id, secret_id) = (node.outside("role-id"), node.outside("secret-id"));
    let settings = format!(
        "{HEAD}signers:\n  v:\n    vault:\n      address: {}\n      mount: \"k8s-{{authority}}\"\n      \
         auth: {{appRole: {{role: nodepki-kubernetes-cp1, roleIDFile: {}, secretIDFile: {}, wrapped: true}}}}\n      \
         tls: {{caFile: {}}}\n",
        bao.url(),
        role_id.display(),
        secret_id.display(),
        bao.ca_file().display()
    );
    fs::write(node.outside("config.yaml"), &settings).unwrap();
    let script = printed(&node.outside(""), &settings);
    let ran = |script: &str| {
        let mut shell = Command::new("sh");
        bao.authorize(shell.args(["-eu", "-c", script]));
        Ran::of(&mut shell)
    };
    let shell = |script: &str| ran(script).done().stdout.clone();
    ran(&script)
        .ended(75)
        .says("there is no CA yet: for each engine, run one of its two commands")
        .says("\nk8s-ca: one of\n")
        .says(" write k8s-ca/root/generate/internal common_name=kubernetes key_type=ec ")
        .says(" write k8s-etcd-ca/issuers/import/bundle pem_bundle=@ca-and-key.pem");
    for authority in Authority::ALL {
        let make = commented(&script, &format!("k8s-{authority}/root/generate/internal"));
        shell(&make);
        let answer = bao.root().read(&format!("k8s-{authority}/cert/ca"));
        let file = format!("/etc/kubernetes/pki/{}.crt", authority.base_name());
        node.write(file, text(&answer["data"]["certificate"]));
    }
    // A second run changes nothing.
    shell(&script);
    for (part, file) in [("/role-id", &role_id), ("/secret-id", &secret_id)] {
        let command = commented(&script, part);
        let (_, destination) = command.split_once("# into ").unwrap();
        assert_eq!(destination.trim(), file.display().to_string());
        write_secret(file, shell(&command));
    }

    Ran::of(&mut node.ask_command("1s")).done();
    node.assert_sound(&CertName::KUBEADM);
    for (name, subject) in [
        (
            CertName::AdminConf,
            "O=kubeadm:cluster-admins,CN=kubernetes-admin",
        ),
        (CertName::KubeletConf, "O=system:nodes,CN=system:node:cp1"),
        (CertName::SchedulerConf, "CN=system:kube-scheduler"),
        (CertName::Apiserver, "CN=kube-apiserver"),
    ] {
        let (chain, _) = node.leaf(name).unwrap();
        let shown = openssl(
            &[
                "x509",
                "-noout",
                "-subject",
                "-nameopt",
                "sep_comma_plus,dn_rev",
            ],
            chain.to_pem().as_bytes(),
        );
        let shown = String::from_utf8(shown).unwrap();
        let (mut shown, mut wanted): (Vec<&str>, Vec<&str>) = (
            shown
                .trim()
                .trim_start_matches("subject=")
                .split(',')
                .collect(),
            subject.split(',').collect(),
        );
        shown.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(shown, wanted);
    }
    let before = node.snapshot();
    node.ask().done();
    before.unchanged(&node.snapshot());
    // The run has ended its session and stored the unwrapped secret_id, which it may need again.
    let memory = "/var/lib/nodepki/signers/v";
    assert!(!node.path(memory).join("token").exists());
    assert_eq!(node.mode(format!("{memory}/secret-id")), 0o600);

    assert_stolen_state_grants_nothing_else(&bao, &node, &role_id);
}

/// Returns the command with this part from the comments of a script, or from what it prints.
pub(crate) fn commented(script: &str, part: &str) -> String {
    script
        .lines()
        .filter_map(|line| {
            let printed = line.strip_prefix("printf '  %s %s\\n' \"$VAULT\" '");
            let printed = printed.and_then(|line| line.strip_suffix('\''));
            printed.or_else(|| line.strip_prefix("#   \"$VAULT\" "))
        })
        .find(|line| line.contains(part))
        .map(|line| format!("\"$VAULT\" {line}"))
        .unwrap_or_else(|| panic!("no {part} in:\n{script}"))
}

/// Asserts what a thief of everything on the node can do.
fn assert_stolen_state_grants_nothing_else(bao: &Bao, node: &Node, role_id: &Path) {
    let root = bao.root();
    let secret = node.read("/var/lib/nodepki/signers/v/secret-id");
    let secret: Value = serde_json::from_str(&secret).unwrap();
    let (status, login) = root.send(
        Method::POST,
        "auth/approle/login",
        None,
        Some(&json!({"role_id": fs::read_to_string(role_id).unwrap().trim(), "secret_id": secret["secret_id"]})),
        &[],
    );
    assert_eq!(status, 200, "{login}");
    assert_eq!(login["auth"]["policies"], json!(["nodepki-kubernetes-cp1"]));
    let token = text(&login["auth"]["client_token"]);
    let csr = |name: CertName, change: &dyn Fn(&mut nodepki::signer::RequestedCertificate)| {
        let mut wanted = wanted(name);
        change(&mut wanted);
        request_for(wanted, UsageExtensions::Requested)
            .0
            .csr
            .to_pem()
    };
    let same = |name| csr(name, &|_| {});
    let sign = |role: &str, csr: &str| {
        root.as_token(
            &token,
            &format!("k8s-ca/{role}"),
            json!({"csr": csr, "ttl": "1h", "exclude_cn_from_sans": true}),
        )
    };
    assert_eq!(sign("sign/admin-conf", &same(CertName::AdminConf)).0, 200);

    // Other paths of the engines.
    let admin = same(CertName::AdminConf);
    for path in [
        "sign-verbatim",
        "sign-verbatim/admin-conf",
        "sign/another",
        "issuer/default/sign/admin-conf",
        "issuer/default/sign-verbatim",
        "issuer/default/issue/admin-conf",
        "issue/admin-conf",
        "roles/admin-conf",
        "root/sign-intermediate",
        "root/sign-self-issued",
        "intermediate/generate/internal",
        "revoke",
        "issuers/import/bundle",
        "config/issuers",
        "config/urls",
    ] {
        let (status, answer) = sign(path, &admin);
        assert_eq!(status, 403, "{path}: {answer}");
    }
    for path in [
        "auth/approle/role/nodepki-kubernetes-cp1",
        "auth/approle/role/nodepki-kubernetes-cp1/secret-id",
        "auth/token/create",
        "sys/policies/acl/nodepki-kubernetes-cp1",
        "sys/mounts/other",
        "cubbyhole/x",
    ] {
        let (status, answer) = root.as_token(&token, path, json!({"policy": "", "type": "pki"}));
        assert_eq!(status, 403, "{path}: {answer}");
    }
    // Parameters that override the role.
    for (parameter, value) in [
        ("alt_names", json!("evil.example.com")),
        ("ip_sans", json!("192.0.2.66")),
        ("uri_sans", json!("spiffe://evil")),
        ("not_after", json!("9999-12-31T23:59:59Z")),
        ("not_before", json!("2001-01-01T00:00:00Z")),
        ("serial_number", json!("1")),
        ("user_ids", json!("root")),
        ("common_name", json!("kubernetes-super-admin")),
        ("exclude_cn_from_sans", json!(false)),
    ] {
        let mut body = json!({"csr": admin, "exclude_cn_from_sans": true});
        body[parameter] = value;
        let (status, answer) = root.as_token(&token, "k8s-ca/sign/admin-conf", body);
        assert_eq!(status, 403, "{parameter}: {answer}");
    }
    // Names of other components and nodes.
    for (role, name, common_name) in [
        ("admin-conf", CertName::AdminConf, "kubernetes-super-admin"),
        ("super-admin-conf", CertName::AdminConf, "kubernetes-admin"),
        (
            "admin-conf",
            CertName::AdminConf,
            "mallory@kubernetes-admin",
        ),
        ("kubelet-conf-cp1", CertName::KubeletConf, "system:node:cp2"),
        (
            "scheduler-conf",
            CertName::AdminConf,
            "system:kube-controller-manager",
        ),
        ("apiserver-cp1", CertName::Apiserver, "*.kubernetes"),
        ("apiserver-cp1", CertName::Apiserver, "a.kubernetes"),
    ] {
        let csr = csr(name, &|wanted| {
            wanted.profile.subject.common_name = common_name.to_owned();
        });
        let (status, answer) = sign(&format!("sign/{role}"), &csr);
        assert_eq!(status, 400, "{role} {common_name}: {answer}");
        assert!(
            answer.to_string().contains("not allowed by this role"),
            "{answer}"
        );
    }
    for name in [
        "evil.example.com",
        "localhost",
        "localdomain",
        "*.kubernetes",
    ] {
        let csr = csr(CertName::Apiserver, &|wanted| {
            wanted.profile.sans.dns.push(name.to_owned());
        });
        let (status, answer) = sign("sign/apiserver-cp1", &csr);
        assert_eq!(status, 400, "{name}: {answer}");
    }
    // The role decides on group, names and usages.
    let greedy = csr(CertName::AdminConf, &|wanted| {
        wanted.profile.subject.organizations = vec!["system:masters".to_owned()];
        wanted.profile.sans = crate::signing::wanted(CertName::Apiserver).profile.sans;
        wanted.profile.usages = crate::signing::wanted(CertName::EtcdServer).profile.usages;
    });
    let (status, answer) = sign("sign/admin-conf", &greedy);
    assert_eq!(status, 200, "{answer}");
    let shown = x509_text(text(&answer["data"]["certificate"]).as_bytes());
    assert!(shown.contains("kubeadm:cluster-admins"), "{shown}");
    for word in [
        "system:masters",
        "Alternative Name",
        "Server Authentication",
    ] {
        assert!(!shown.contains(word), "{word}: {shown}");
    }
    // A longer lifetime.
    let (_, answer) = root.as_token(
        &token,
        "k8s-ca/sign/admin-conf",
        json!({"csr": admin, "ttl": "80000h"}),
    );
    let year = text(&answer["warnings"][0]);
    assert!(year.contains("maxTTL"), "{year}");
    assert_eq!(
        root.as_token(&token, "auth/token/revoke-self", json!({})).0,
        204
    );
}

/// With pins in place of CA files, and with lists of a root and of an intermediate.
#[test]
fn fetches_authorities_and_crls_from_server() {
    let rig = VaultRig::new();
    let node = Node::new();
    let mut authorities = String::new();
    for authority in Authority::ALL {
        let file = format!("{}.crt", authority.base_name());
        node.remove(format!("/etc/kubernetes/pki/{file}"));
        let pem = fs::read(rig.authorities().join(file)).unwrap();
        let root = TrustBundle::from_pem(&pem).unwrap();
        let pin = nodepki::text::hex(&root.first().public_key().sha256());
        authorities.push_str(&format!(
            "  {authority}: {{signer: v, trust: {{sha256: [{pin}]}}}}\n"
        ));
    }
    let settings = format!("{}authorities:\n{authorities}", rig.settings());
    fs::write(node.outside("config.yaml"), settings).unwrap();
    Ran::of(&mut node.ask_command("1s")).done();
    node.assert_sound(&CertName::KUBEADM);

    let crl = || {
        Ran::of(node.command(["crl", "--wait", "0s"]).args([
            "--config",
            node.outside("config.yaml").to_str().unwrap(),
            "--kubeadm-config",
            node.outside("kubeadm.yaml").to_str().unwrap(),
        ]))
    };
    crl().done();
    for (authority, mount, base) in [
        (CertName::EtcdPeer, "pki/etcd-ca", "etcd/"),
        (
            CertName::FrontProxyClient,
            "pki/front-proxy-ca",
            "front-proxy-",
        ),
    ] {
        let list = format!("/etc/kubernetes/pki/{base}crl.pem");
        let shown = |list: &str| {
            let pem = node.read(list);
            let ca = node.path(format!("/etc/kubernetes/pki/{base}ca.crt"));
            let arguments = ["crl", "-noout", "-text", "-CAfile", ca.to_str().unwrap()];
            String::from_utf8(openssl(&arguments, pem.as_bytes())).unwrap()
        };
        assert!(shown(&list).contains("No Revoked"));
        let (chain, _) = node.leaf(authority).unwrap();
        let leaf = chain.leaf().to_pem();
        rig.space
            .write(&format!("{mount}/revoke"), json!({ "certificate": leaf }));
        // With the printed settings the server does this within 15 minutes.
        rig.space.read(&format!("{mount}/crl/rotate"));
        crl().done();
        let serial = chain.leaf().serial().to_uppercase();
        assert!(shown(&list).contains(&serial), "{}", shown(&list));
    }
}

#[test]
fn signs_registered_certificates_by_roles_of_printed_setup() {
    let mapped = "role: {default: \"{certificate}-{node}\", policy-webhook: \"webhooks-{node}\"}, ";
    for (role, name_of_role) in [("", "policy-webhook-cp1"), (mapped, "webhooks-cp1")] {
        let registered = |settings: &str| {
            let settings = settings.replace("mount: ", &format!("{role}mount: "));
            format!("{settings}{}", crate::registered::registrations())
        };
        let rig = VaultRig::set_up_for(registered);
        let settings = registered(&rig.settings());
        let node = Node::new();
        for authority in Authority::ALL {
            let file = format!("{}.crt", authority.base_name());
            let pem = fs::read(rig.dir.path().join(&file)).unwrap();
            node.write(format!("/etc/kubernetes/pki/{file}"), pem);
        }
        node.write_settings(&settings);
        let ran = node.ask();
        ran.done();
        for name in [
            "aggregated-apiserver",
            "kms-plugin-client",
            "konnectivity-server",
            "policy-webhook",
        ] {
            ran.row_says(name, "issued");
        }
        node.assert_bootstrap_changes_nothing();
        let role = rig.space.read(&format!("pki/ca/roles/{name_of_role}"));
        let names = role["data"]["allowed_domains"].to_string();
        assert!(names.contains("policy-webhook.policy.svc"), "{role}");

        // The role of another certificate does not sign this one.
        let wrong = "{default: \"{certificate}-{node}\", policy-webhook: konnectivity-server-cp1}";
        let settings = settings.replace(mapped, "");
        node.write_settings(&settings.replace("mount: ", &format!("role: {wrong}, mount: ")));
        node.remove("/etc/kubernetes/policy-webhook/tls.crt");
        let before = node.etc();
        let ran = node.ask();
        assert_ne!(ran.code, Some(0), "{}", ran.said());
        ran.says("policy-webhook").says("konnectivity-server-cp1");
        before.unchanged(&node.etc());
    }
}

#[test]
fn names_wrong_setting_of_all_certificates_once() {
    let rig = VaultRig::new();
    let node = Node::new();
    for authority in Authority::ALL {
        let file = format!("{}.crt", authority.base_name());
        let pem = fs::read(rig.dir.path().join(&file)).unwrap();
        node.write(format!("/etc/kubernetes/pki/{file}"), pem);
    }
    let settings = rig.settings();
    let any = put(rig.dir.path(), "any-token", &rig.space.any_token());
    let (app, _) = settings.split_once("auth: {appRole").unwrap();
    let any = format!(
        "{app}auth: {{tokenFile: {}}}, tls: {}}}}}}}\n",
        any.display(),
        rig.tls()
    );
    let denied = "the policy of its token allows none of its paths, such as ";
    let (mount, role) = ("mount: ", "role: \"nope-{certificate}\", mount: ");
    for (settings, good, wrong, words, times) in [
        (&settings, "pki/{authority}", "pkj/{authority}", denied, 1),
        (
            &any,
            "pki/{authority}",
            "pkj/{authority}",
            "there is no mount pkj/ca, pkj/etcd-ca, pkj/front-proxy-ca; correct `mount`",
            1,
        ),
        (
            &any,
            "pki/{authority}",
            "pkj",
            "there is no mount pkj; correct `mount`",
            1,
        ),
        (&settings, mount, role, denied, 1),
        (
            &any,
            mount,
            role,
            "there is none of its roles, such as pki/ca/roles/nope-",
            1,
        ),
        (&settings, mount, "issuer: nope, mount: ", denied, 1),
        (
            &settings,
            "namespace: ",
            "namespace: x",
            "; correct `namespace`",
            1,
        ),
        // A probe does not read the issuer, and each authority has another one.
        (
            &any,
            mount,
            "issuer: nope, mount: ",
            "; correct `issuer`",
            3,
        ),
    ] {
        node.write_settings(&settings.replace(good, wrong));
        let ran = node.ask();
        ran.ended(78);
        assert_eq!(ran.said().matches(words).count(), times, "{}", ran.said());
        let (errors, _) = ran.stderr.split_once("next: ").unwrap_or((&ran.stderr, ""));
        assert!(!errors.contains("{authority}"), "{errors}");
    }
}

/// A preflight looks a wrapping token up and leaves it to the run.
#[test]
fn preflight_finds_used_wrapping_token_and_uses_none() {
    let (lab, auth, token) = Lab::with_wrapped_secret_id(", role: cp1");
    let node = Node::new();
    node.write_settings(&lab.configuration(
        &lab.space.bao.url(),
        &lab.space.bao.ca_file(),
        "role: any",
        &auth,
    ));
    let preflight = || Ran::of(&mut node.configured(["preflight"]));
    for _ in 0..2 {
        preflight()
            .says("no login was tried: the wrapping token in ")
            .says("is known only after a login");
    }
    assert!(!node.path("/var/lib/nodepki").exists());
    let thief = lab.space.as_token(&token, "sys/wrapping/unwrap", json!({}));
    assert_eq!(thief.0, 200);
    preflight()
        .ended(77)
        .says("SECURITY: ")
        .says("looking the wrapping token up failed: the wrapping token in ");
}

/// A token that the server does not know ends a preflight as it ends a bootstrap.
#[test]
fn preflight_names_file_of_rejected_token() {
    let (lab, _) = Lab::open_handed();
    let (url, ca) = (lab.space.bao.url(), lab.space.bao.ca_file());
    let auth = lab.token_file("s.dead");
    let node = Node::new();
    node.write_settings(&lab.configuration(&url, &ca, "role: any", &auth));
    for command in ["preflight", "bootstrap"] {
        Ran::of(&mut node.configured([command, "--wait", "0s"]))
            .ended(77)
            .says(&format!(
                "put a new token into {}: the server does not know this one",
                lab.path("token").display()
            ));
    }
}

/// Faults that end a bootstrap are found without the login that would use up the credential, with the same exit status.
#[test]
fn preflight_with_one_time_credential_ends_as_bootstrap() {
    let (lab, auth, _) = Lab::with_wrapped_secret_id(", role: cp1");
    lab.space.engine("without-ca");
    let role = json!({"allow_any_name": true, "key_type": "any", "max_ttl": "8760h"});
    lab.space.write("without-ca/roles/any", role);
    let (before, rest) = auth.split_once("roleID: ").unwrap();
    let (role_id, rest) = rest.split_once(',').unwrap();
    let file = put(lab.dir.path(), "role-id", role_id);
    let auth = format!("{before}roleIDFile: {},{rest}", file.display());
    let (url, ca) = (lab.space.bao.url(), lab.space.bao.ca_file());
    let secret = lab.path("secret-id").display().to_string();
    for (mount, role_id, exchanged, expected) in [
        ("nowhere", role_id, false, "mount"),
        ("without-ca", role_id, false, "put the CA into that mount"),
        ("pki", "", false, "role-id cannot be read: it is empty"),
        (
            "pki",
            "cp1 cp2",
            false,
            "role-id contains more than a role_id",
        ),
        (
            "pki",
            role_id,
            true,
            "role-id contains a token, not a role_id",
        ),
    ] {
        let node = Node::new();
        for authority in Authority::ALL {
            let path = format!("/etc/kubernetes/pki/{}.crt", authority.base_name());
            node.write(path, &lab.ca);
        }
        let more = format!("mount: {mount}, role: any");
        node.write_settings(&lab.configuration(&url, &ca, &more, &auth));
        let token = lab.wrapped_secret_id();
        fs::write(&file, if exchanged { &token } else { role_id }).unwrap();
        if exchanged {
            write_secret(&secret, role_id);
        }
        let run = |command: &str| Ran::of(&mut node.configured([command, "--wait", "0s"]));
        let preflight = run("preflight");
        preflight.ended(78).says(expected);
        assert!(!node.path("/var/lib/nodepki").exists(), "{mount}");
        if exchanged {
            preflight.says(&format!("belongs into {secret}"));
        }
        run("bootstrap").ended(78).says(expected);
    }
}

#[test]
fn prints_role_for_each_certificate_and_node() {
    let dir = tempfile::tempdir().unwrap();
    let settings = |role: &str| {
        format!(
            "{HEAD}signers: {{v: {{vault: {{address: \"https://v:8200\", namespace: a/b, mount: pki, issuer: \"{{cluster}}\", {role}\
             auth: {{tokenFile: /t}}, tls: {{systemRoots: true}}}}}}, d: {{directory: {{path: /srv}}}}}}\n\
             authorities: {{ca: {{signer: v}}, etcd-ca: {{signer: v}}, front-proxy-ca: {{signer: d}}}}\n"
        )
    };
    let script = printed(dir.path(), &settings("role: control-plane, "));
    contains(
        &script,
        &[
            "put pki/roles/control-plane-apiserver-cp1 -",
            "put pki/roles/control-plane-scheduler-conf -",
            "#         kubelet.conf: control-plane-kubelet-conf-cp1",
            "path \"pki/issuer/kubernetes/sign/control-plane-scheduler-conf\" {",
            "\"issuer_ref\": \"kubernetes\"",
            "export VAULT_NAMESPACE=a/b BAO_NAMESPACE=a/b",
            "token create -orphan -no-default-policy -policy=nodepki-kubernetes-cp1",
        ],
    );
    assert!(!script.contains("front-proxy"), "{script}");
    // A configuration without `role` uses the printed role names.
    let script = printed(dir.path(), &settings(""));
    for name in ["apiserver: apiserver-cp1", "admin.conf: admin-conf"] {
        assert!(script.contains(&format!("#         {name}\n")), "{script}");
    }
    let script = printed(dir.path(), &settings("verbatim: true, "));
    contains(
        &script,
        &[
            "path \"pki/issuer/kubernetes/sign-verbatim\" {",
            "any group of the cluster included",
        ],
    );

    let settings = settings("");
    print_setup(dir.path(), &settings, INIT, &["vault", "--name", "d"])
        .ended(78)
        .says("signer d of kind vault");
    print_setup(dir.path(), &settings, INIT, &["valt"])
        .ended(64)
        .says("did you mean vault?");
    print_setup(dir.path(), &settings, INIT, &["directory"])
        .ended(64)
        .says("need no setup on a server");
}

// ---- signing ----

#[test]
fn keeps_common_name_out_of_alternative_names() {
    let (lab, signer) = Lab::open_handed();
    let text = x509_text(&lab.signs(signer.as_ref(), CertName::EtcdServer));
    contains(&text, &["DNS:cp1, DNS:localhost, IP Address:192.0.2.11"]);
    lab.role("client", json!({"server_flag": false}));
    let signer = lab.with_token("role: client", &lab.space.any_token());
    let text = x509_text(&lab.signs(signer.as_ref(), CertName::FrontProxyClient));
    assert!(!text.contains("Alternative"), "{text}");
}

#[test]
fn uses_configured_issuer_for_signing_trust_and_crl() {
    let lab = Lab::new();
    lab.role("any", json!({}));
    let other = lab.space.root_ca("pki", "other");
    let token = lab.space.any_token();
    for (more, ca) in [("role: any, issuer: other", &other), ("role: any", &lab.ca)] {
        let signer = lab.with_token(more, &token);
        let trusted = TrustBundle::from_pem(ca.as_bytes()).unwrap();
        let offered = run(signer.trust(Authority::EtcdCa)).unwrap().unwrap();
        assert_eq!(TrustBundle::from_response(&offered).unwrap(), trusted);
        let bytes = issued(run(signer.submit(&etcd_server())));
        let file = lab.path("ca.pem");
        fs::write(&file, ca).unwrap();
        let file = file.to_str().unwrap();
        openssl(&["verify", "-CAfile", file, "/dev/stdin"], &bytes);

        let crl = || {
            let list = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
            assert_eq!(RevocationList::read_all(&list).unwrap().len(), 1);
            let verified = ["crl", "-noout", "-text", "-CAfile", file];
            String::from_utf8(openssl(&verified, &list)).unwrap()
        };
        contains(&crl(), &["No Revoked"]);
        lab.revoke(&bytes);
        contains(&crl(), &["Serial Number"]);
    }
}

/// The response does not differ from that of an engine without revocations.
#[test]
fn receives_empty_crl_if_engine_has_crls_disabled() {
    let (lab, signer) = Lab::open_handed();
    lab.revoke(&lab.signs(signer.as_ref(), CertName::EtcdServer));
    let crl = || crl_text(&run(signer.crl(Authority::EtcdCa)).unwrap().unwrap());
    assert!(!crl().contains("No Revoked"));
    lab.space.write("pki/config/crl", json!({"disable": true}));
    assert!(crl().contains("No Revoked"));
}

#[test]
fn signs_request_as_it_is_with_verbatim() {
    let lab = Lab::new();
    let signer = lab.with_token("verbatim: true", &lab.space.any_token());
    run(signer.probe()).unwrap();
    for name in [
        CertName::AdminConf,
        CertName::KubeletConf,
        CertName::EtcdServer,
        CertName::Apiserver,
    ] {
        signer.preflight(&wanted(name)).unwrap();
        lab.signs(signer.as_ref(), name);
    }
    // With a role the lifetime is that of the role.
    lab.role("short", json!({"max_ttl": "1h"}));
    let signer = lab.with_token("verbatim: true, role: short", &lab.space.any_token());
    let (bytes, log) = logged(|| issued(run(signer.submit(&etcd_server()))));
    assert!(log.contains("maxTTL"), "{log}");
    assert!(!bytes.is_empty());
}

#[test]
fn logs_warnings_of_server() {
    let lab = Lab::new();
    lab.role("short", json!({"max_ttl": "1h"}));
    let signer = lab.with_token("role: short", &lab.space.any_token());
    let (_, log) = logged(|| lab.signs(signer.as_ref(), CertName::EtcdServer));
    contains(
        &log,
        &[
            "WARN",
            "vault:https://",
            "etcd-server",
            "so maxTTL is being used",
        ],
    );
}

// ---- preflight ----

/// The server refuses each of these requests or issues another certificate.
#[test]
fn rejects_unsuitable_role_before_making_key() {
    let lab = Lab::new();
    let token = lab.space.any_token();
    let client = || json!({"server_flag": false, "organization": ["kubeadm:cluster-admins"]});
    let with = |mut role: Value, key: &str, value: Value| {
        role[key] = value;
        role
    };
    let cases = [
        (
            CertName::AdminConf,
            with(client(), "organization", json!([])),
            "organization",
        ),
        (
            CertName::AdminConf,
            with(client(), "organization", json!(["system:masters"])),
            "system:masters",
        ),
        (
            CertName::AdminConf,
            with(client(), "ou", json!(["it"])),
            "adds [it] to the subject (ou)",
        ),
        (
            CertName::AdminConf,
            with(client(), "server_flag", json!(true)),
            "adds the usage server auth",
        ),
        (
            CertName::AdminConf,
            with(client(), "key_type", json!("rsa")),
            "key_type",
        ),
        (
            CertName::AdminConf,
            with(client(), "use_csr_common_name", json!(false)),
            "use_csr_common_name",
        ),
        (
            CertName::AdminConf,
            with(client(), "allow_any_name", json!(false)),
            "kubernetes-admin",
        ),
        (
            CertName::EtcdServer,
            json!({"client_flag": false}),
            "leaves out the usage client auth",
        ),
        (
            CertName::EtcdServer,
            json!({"use_csr_sans": false}),
            "use_csr_sans",
        ),
        (
            CertName::EtcdServer,
            json!({"allow_ip_sans": false}),
            "allow_ip_sans",
        ),
        (
            CertName::EtcdServer,
            json!({"allow_any_name": false, "allowed_domains": ["cp2"], "allow_bare_domains": true}),
            "cp1",
        ),
        (
            CertName::KubeletConf,
            json!({"server_flag": false, "organization": ["system:nodes"], "enforce_hostnames": true}),
            "enforce_hostnames",
        ),
    ];
    for (at, (name, role, words)) in cases.into_iter().enumerate() {
        lab.role(&format!("r{at}"), role);
        let signer = lab.with_token(&format!("role: r{at}"), &token);
        // Without a probe the role is unknown.
        signer.preflight(&wanted(name)).unwrap();
        run(signer.probe()).unwrap();
        let message = signer.preflight(&wanted(name)).unwrap_err().to_string();
        contains(
            &message,
            &[
                words,
                "vault:https://",
                name.as_str(),
                &format!("pki/roles/r{at}"),
                "signer-setup",
            ],
        );
        let request = request(name);
        match run(signer.submit(&request)) {
            Ok(Answer::Issued(bytes)) => assert_ne!(lab.verdict(&request, &bytes), "", "{message}"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert_eq!(error.class, FailureClass::Permanent, "{message}: {error}"),
        }
    }
    for (name, role) in [
        (CertName::AdminConf, client()),
        (
            CertName::EtcdServer,
            json!({"client_flag": false, "ext_key_usage": ["ClientAuth"]}),
        ),
        (
            CertName::EtcdServer,
            json!({"allow_any_name": false, "allowed_domains": ["CP1"], "allow_bare_domains": true}),
        ),
    ] {
        lab.role("good", role);
        let signer = lab.with_token("role: good", &token);
        run(signer.probe()).unwrap();
        signer.preflight(&wanted(name)).unwrap();
        lab.signs(signer.as_ref(), name);
    }
}

#[test]
fn reads_all_roles_at_the_same_time() {
    const DELAY: Duration = Duration::from_secs(2);
    let rig = VaultRig::new();
    let gateway = Gateway::to(Some(rig.space.bao.upstream()));
    gateway.rule(Rule::on("GET", "/roles/").then(Action::Delay(DELAY)));
    let signer = rig.signer(&gateway.url(), &gateway.trusted());
    let settings = format!("{HEAD}signers: {{v: {signer}}}\n");
    let signer = open(&settings, Authority::Ca, &rig.dir.path().join("memory"));
    run(signer.probe()).unwrap();
    assert_eq!(count(&gateway, "/roles/"), CertName::KUBEADM.len());
    assert!(gateway.most_delayed() > 1);
}

#[test]
fn rejects_forbidden_role_before_making_key() {
    let lab = Lab::new();
    lab.role("any", json!({}));
    let token = lab.space.token(
        "path \"pki/sign/any\" { capabilities = [\"update\"] }\n\
         path \"pki/roles/missing\" { capabilities = [\"read\"] }\n\
         path \"pki/sign/missing\" { capabilities = [\"update\"] }",
    );
    let roles = "role: {default: other, etcd-server: any, etcd-peer: missing}";
    let signer = lab.with_token(roles, &token);
    run(signer.probe()).unwrap();
    signer.preflight(&wanted(CertName::EtcdServer)).unwrap();
    for (name, words) in [
        (
            CertName::AdminConf,
            "the policy of its token does not allow pki/sign/other (update)",
        ),
        (CertName::EtcdPeer, "there is no role pki/roles/missing"),
    ] {
        let message = signer.preflight(&wanted(name)).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
    let signer = lab.with_token("role: {etcd-server: any}", &token);
    let message = signer
        .preflight(&wanted(CertName::EtcdPeer))
        .unwrap_err()
        .to_string();
    assert!(message.contains("`role` has no entry for it"), "{message}");
    fails(
        run(signer.submit(&request(CertName::EtcdPeer))),
        FailureClass::Config,
        &["etcd-peer"],
    );
}

// ---- errors of the real server ----

#[test]
fn names_wrong_setting_in_error_of_server() {
    let (lab, signer) = Lab::open_handed();
    let token = lab.space.any_token();
    let submit = |signer: &dyn Signer| run(signer.submit(&etcd_server()));
    let context = ["vault:https://", "etcd-server", "etcd-ca"];
    fails(
        submit(lab.with_token("role: nope", &token).as_ref()),
        FailureClass::Config,
        &[
            "unknown role: nope",
            "signer-setup",
            context[0],
            context[1],
            context[2],
        ],
    );
    fails(
        submit(lab.with_token("role: any, issuer: nope", &token).as_ref()),
        FailureClass::Config,
        &["unable to find PKI issuer", "correct `issuer`"],
    );
    fails(
        submit(lab.with_token("mount: nope, role: any", &token).as_ref()),
        FailureClass::Config,
        &["no handler for route", "`mount`"],
    );
    fails(
        submit(
            lab.with_token("namespace: nope, role: any", &token)
                .as_ref(),
        ),
        FailureClass::Config,
        &["namespace not found", "`namespace`"],
    );
    lab.space.engine("empty");
    lab.space.write(
        "empty/roles/any",
        json!({"allow_any_name": true, "key_type": "any"}),
    );
    let empty = lab.with_token("mount: empty, role: any", &token);
    fails(
        submit(empty.as_ref()),
        FailureClass::Config,
        &["no default issuer", "put the CA into"],
    );
    fails(
        run(empty.trust(Authority::EtcdCa)),
        FailureClass::Config,
        &["no default issuer", "authority etcd-ca"],
    );
    fails(
        run(lab
            .with_token("mount: nope, role: any", &token)
            .trust(Authority::EtcdCa)),
        FailureClass::Config,
        &["`mount`"],
    );
    let mut long = wanted(CertName::EtcdServer);
    long.profile.lifetime = Duration::from_secs(20 * 365 * 24 * 60 * 60);
    lab.role("long", json!({"max_ttl": "200000h"}));
    fails(
        run(lab
            .with_token("role: long", &token)
            .submit(&request_for(long, UsageExtensions::Requested).0)),
        FailureClass::Permanent,
        &["beyond the expiration of the CA", "leaf_not_after_behavior"],
    );
    // The server signs nevertheless.
    lab.signs(signer.as_ref(), CertName::EtcdServer);
}

#[test]
fn tells_causes_of_403_apart() {
    let (lab, _) = Lab::open_handed();
    let submit = |signer: &dyn Signer| run(signer.submit(&etcd_server()));
    let denied = lab
        .space
        .token("path \"pki/sign/else\" { capabilities = [\"update\"] }");
    fails(
        submit(lab.with_token("role: any", &denied).as_ref()),
        FailureClass::Auth,
        &[
            "allow pki/sign/any (update)",
            "the token itself is good",
            "etcd-server",
        ],
    );
    let narrow = lab.space.token(
        "path \"pki/sign/any\" { capabilities = [\"update\"] allowed_parameters = { \"csr\" = [] } }",
    );
    fails(
        submit(lab.with_token("role: any", &narrow).as_ref()),
        FailureClass::Auth,
        &[
            "not with these parameters",
            "csr, ttl, exclude_cn_from_sans",
        ],
    );
    let signer = lab.with_token("role: any", "s.dead");
    fails(
        run(signer.probe()),
        FailureClass::Auth,
        &[
            "looking its token up failed: HTTP 403: permission denied",
            "put a new token into",
        ],
    );
    fails(
        submit(signer.as_ref()),
        FailureClass::Auth,
        &["put a new token into", "expired or was revoked"],
    );
    // The file is read for each request.
    put(lab.dir.path(), "token", &lab.space.any_token());
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    fs::remove_file(lab.path("token")).unwrap();
    fails(
        submit(signer.as_ref()),
        FailureClass::Config,
        &["cannot be read"],
    );
}

/// Such a token cannot look itself up.
#[test]
fn signs_with_token_without_default_policy() {
    let (lab, _) = Lab::open_handed();
    let policy = "path \"pki/sign/any\" { capabilities = [\"update\"] }";
    lab.space
        .write("sys/policies/acl/narrow", json!({ "policy": policy }));
    let made = lab.space.write(
        "auth/token/create",
        json!({"policies": ["narrow"], "no_default_policy": true}),
    );
    let signer = lab.with_token("role: any", &text(&made["auth"]["client_token"]));
    run(signer.probe()).unwrap();
    lab.signs(signer.as_ref(), CertName::EtcdServer);
}

#[test]
fn reports_sealed_server_as_transient() {
    let bao = Bao::start();
    bao.root().engine("pki");
    let lab = tempfile::tempdir().unwrap();
    let token = put(lab.path(), "token", "whatever");
    let signer = open(
        &format!(
            "{HEAD}signers: {{s: {{vault: {{address: \"{}\", mount: pki, auth: {{tokenFile: {}}}, tls: {{caFile: {}}}}}}}}}\n",
            bao.url(),
            token.display(),
            bao.ca_file().display()
        ),
        Authority::EtcdCa,
        &lab.path().join("memory"),
    );
    bao.root().write("sys/seal", json!({}));
    let words = &["HTTP 503", "is sealed", "unseal it"];
    fails(run(signer.probe()), FailureClass::Transient, words);
    fails(
        run(signer.submit(&etcd_server())),
        FailureClass::Transient,
        words,
    );
    fails(
        run(signer.trust(Authority::EtcdCa)),
        FailureClass::Transient,
        words,
    );
}

/// The address of an API server in place of that of the signer.
#[test]
fn recognises_kubernetes_api_server() {
    let lab = Lab::new();
    let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":403}"#;
    for code in [401, 403, 404] {
        let gateway = Gateway::to(None);
        gateway.rule(Rule::on("*", "/").then(Action::body(code, status)));
        let auth = lab.token_file("any");
        let signer = lab.through(&gateway, "role: any", &auth);
        fails(
            run(signer.probe()),
            FailureClass::Config,
            &[
                "a Kubernetes API server has this address",
                "correct the address or its port",
            ],
        );
    }
}

/// Older servers leave out the chain if it is the CA itself.
#[test]
fn accepts_answer_without_chain() {
    let (lab, _) = Lab::open_handed();
    let gateway = lab.gateway();
    let auth = lab.token_file(&lab.space.any_token());
    let signer = lab.through(&gateway, "role: any", &auth);
    let unchained = Action::change_json(|body| {
        body["data"].as_object_mut().unwrap().remove("ca_chain");
    });
    gateway.rule(Rule::on("POST", "/sign/").then(unchained));
    lab.signs(signer.as_ref(), CertName::EtcdServer);
}

#[test]
fn sends_namespace_always_and_token_only_where_needed() {
    let (lab, _) = Lab::open_handed();
    let gateway = lab.gateway();
    let token = lab.space.any_token();
    let auth = lab.token_file(&token);
    let signer = lab.through(&gateway, "role: any", &auth);
    let (_, log) = logged(|| {
        run(signer.probe()).unwrap();
        run(signer.trust(Authority::EtcdCa)).unwrap();
        run(signer.crl(Authority::EtcdCa)).unwrap();
        lab.signs(signer.as_ref(), CertName::EtcdServer);
        run(signer.settled(&etcd_server().key())).unwrap();
    });
    for request in gateway.requests() {
        assert_eq!(request.header("x-vault-request"), Some("true"));
        assert_eq!(
            request.header("x-vault-namespace"),
            Some(lab.space.namespace.as_str())
        );
        let public = request.method == "GET" && request.path.contains("/issuer/");
        assert_eq!(
            request.header("x-vault-token").is_none(),
            public,
            "{}",
            request.path
        );
        assert!(!request.path.contains(&token));
    }
    assert!(!log.contains(&token));
    // A token from a file is not revoked.
    assert!(lab.space.is_alive(&token));
}

/// With a real standby and a header that keeps it from forwarding.
#[test]
fn follows_standby_to_configured_addresses_only() {
    let (active, standby) = Bao::cluster();
    let root = active.root();
    root.engine("pki");
    let ca = root.root_ca("pki", "etcd-ca");
    let role = json!({"allow_any_name": true, "enforce_hostnames": false, "key_type": "any", "max_ttl": "8760h"});
    root.write("pki/roles/any", role);
    let dir = tempfile::tempdir().unwrap();
    let token = put(dir.path(), "token", &root.any_token());
    let between = Gateway::to(Some(
        standby
            .upstream()
            .adding("X-Vault-No-Request-Forwarding", "true"),
    ));
    let trusted = dir.path().join("ca.pem");
    let both = [between.ca_pem(), fs::read(active.ca_file()).unwrap()];
    fs::write(&trusted, both.concat()).unwrap();
    let signer = |also: &str| {
        let settings = format!(
            "{HEAD}signers: {{s: {{vault: {{address: \"{}\", {also}mount: pki, role: any, \
             auth: {{tokenFile: {}}}, tls: {{caFile: {}}}}}}}}}\n",
            between.url(),
            token.display(),
            trusted.display()
        );
        open(&settings, Authority::EtcdCa, &dir.path().join("memory"))
    };
    let request = etcd_server();
    fails(
        run(signer("").submit(&request)),
        FailureClass::Config,
        &["307", &active.url(), "add it to the configuration"],
    );
    let certified = root.certified("pki").len();
    let also = format!("alsoAllow: [\"{}\"], ", active.url());
    let signer = signer(&also);
    run(signer.probe()).unwrap();
    let bytes = issued(run(signer.submit(&request)));
    assert_eq!(root.certified("pki").len(), certified + 1);
    fs::create_dir(dir.path().join("etcd")).unwrap();
    fs::write(dir.path().join("etcd/ca.crt"), ca).unwrap();
    assert_eq!(verdict(&request, &bytes, dir.path()), "");
}

// ---- sessions ----

#[test]
fn logs_in_once_and_revokes_token_after_last_certificate() {
    let (lab, auth) = Lab::with_app_role(json!({}));
    let gateway = lab.gateway();
    let signer = lab.through(&gateway, "role: any", &auth);
    let (server, peer) = (etcd_server(), request(CertName::EtcdPeer));
    run(async {
        let both = futures_util::future::join(signer.submit(&server), signer.submit(&peer));
        let (one, two) = both.await;
        one.unwrap();
        two.unwrap();
    });
    assert_eq!(count(&gateway, "/login"), 1);
    let stored: Value = serde_json::from_str(&lab.stored("token").unwrap()).unwrap();
    let token = text(&stored["token"]);
    run(signer.settled(&server.key())).unwrap();
    assert!(lab.space.is_alive(&token));
    run(signer.settled(&peer.key())).unwrap();
    assert!(!lab.space.is_alive(&token));
    assert_eq!(lab.stored("token"), None);
    assert_eq!(count(&gateway, "revoke-self"), 1);
    // The next run logs in again.
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    assert_eq!(count(&gateway, "/login"), 2);
}

#[test]
fn keeps_session_until_every_certificate_is_signed() {
    let (lab, auth) = Lab::with_app_role(json!({"secret_id_num_uses": 1}));
    let roles = "role: {default: any, etcd-peer: nope}";
    let signer = lab.signer(roles, &auth);
    let (server, peer) = (etcd_server(), request(CertName::EtcdPeer));
    run(signer.submit(&server)).unwrap();
    fails(
        run(signer.submit(&peer)),
        FailureClass::Config,
        &["unknown role"],
    );
    run(signer.settled(&server.key())).unwrap();
    assert!(lab.stored("token").is_some());
    // In another process, when the secret_id is used up.
    let signer = lab.signer("role: any", &auth);
    run(signer.probe()).unwrap();
    run(signer.submit(&peer)).unwrap();
    run(signer.settled(&peer.key())).unwrap();
    assert_eq!(lab.stored("token"), None);
    fails(
        run(lab.signer("role: any", &auth).submit(&peer)),
        FailureClass::Auth,
        &["invalid role or secret ID", "used up", "etcd-peer"],
    );
}

#[test]
fn replaces_revoked_token_with_one_login() {
    let (lab, auth) = Lab::with_app_role(json!({}));
    let gateway = lab.gateway();
    let signer = lab.through(&gateway, "role: any", &auth);
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    let stored: Value = serde_json::from_str(&lab.stored("token").unwrap()).unwrap();
    lab.space
        .write("auth/token/revoke", json!({"token": stored["token"]}));
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    assert_eq!(count(&gateway, "/login"), 2);
    // A denial by policy does not cause another login.
    lab.space.write(
        "sys/policies/acl/app",
        json!({"policy": "path \"pki/x\" { capabilities = [\"read\"] }"}),
    );
    fails(
        run(signer.submit(&etcd_server())),
        FailureClass::Auth,
        &["allow pki/sign/any (update)"],
    );
    assert_eq!(count(&gateway, "/login"), 2);
    // The stored token of another configuration is not used.
    let mut stored: Value = serde_json::from_str(&lab.stored("token").unwrap()).unwrap();
    stored["origin"] = json!("elsewhere");
    write_secret(lab.path("memory/token"), stored.to_string());
    let signer = lab.through(&gateway, "role: any", &auth);
    let _ = run(signer.submit(&etcd_server()));
    assert_eq!(count(&gateway, "/login"), 3);
}

#[test]
fn replaces_expired_token_without_using_it() {
    let (lab, auth) = Lab::with_app_role(json!({"token_ttl": "6s"}));
    let gateway = lab.gateway();
    let signer = lab.through(&gateway, "role: any", &auth);
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    let_pass(Duration::from_secs(2));
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    let counts = (count(&gateway, "/login"), count(&gateway, "/sign/"));
    assert_eq!(counts, (2, 2), "{:?}", paths(&gateway));
}

#[test]
fn logs_in_once_if_token_cannot_query_its_rights() {
    let (lab, auth) = Lab::with_app_role(json!({
        "secret_id_num_uses": 1,
        "token_no_default_policy": true,
        "token_policies": ["narrow"],
    }));
    let policy = "path \"pki/sign/any\" { capabilities = [\"update\"] }";
    lab.space
        .write("sys/policies/acl/narrow", json!({ "policy": policy }));
    let gateway = lab.gateway();
    let signer = lab.through(&gateway, "role: any", &auth);
    run(signer.probe()).unwrap();
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    assert_eq!(count(&gateway, "/login"), 1);
}

/// The secret_id is used up, and the token may not query its rights.
#[test]
fn keeps_token_if_server_refuses_second_login() {
    let dir = tempfile::tempdir().unwrap();
    let secret_id = dir.path().join("secret-id");
    write_secret(&secret_id, "6a4dcc5f-1b2c-4d3e-8f90-0123456789ab");
    let auth = format!(
        "{{appRole: {{roleID: cp1, secretIDFile: {}}}}}",
        secret_id.display()
    );
    let gateway = Gateway::to(None);
    let login = json!({"auth": {"client_token": "s.first", "lease_duration": 3600}});
    let by_policy = json!({"errors": ["1 error occurred:\n\t* permission denied\n\n"]});
    let used_up = || Action::body(400, r#"{"errors": ["invalid secret id"]}"#);
    let set_up = |sign: Action| {
        gateway.behave();
        for (path, times, action) in [
            ("/login", 1, Action::body(200, login.to_string())),
            ("/login", usize::MAX, used_up()),
            (
                "/capabilities-self",
                usize::MAX,
                Action::body(403, by_policy.to_string()),
            ),
            ("/sign/any", usize::MAX, sign),
        ] {
            gateway.rule(Rule::on("POST", path).times(times).then(action));
        }
    };
    set_up(Action::body(200, r#"{"data": {"certificate": "c"}}"#));
    let open = || without_server(&gateway, dir.path(), &auth);
    run(open().submit(&etcd_server())).unwrap();
    // The next run continues with the token, as does every request in it.
    let signer = open();
    run(signer.probe()).unwrap();
    run(signer.submit(&etcd_server())).unwrap();
    // The run that has logged in.
    fs::remove_dir_all(dir.path().join("memory")).unwrap();
    set_up(Action::body(403, by_policy.to_string()));
    let signer = open();
    run(signer.probe()).unwrap();
    fails(
        run(signer.submit(&etcd_server())),
        FailureClass::Auth,
        &["allow pki/sign/any (update)"],
    );
    // The server does not know the token any more.
    gateway.behave();
    let unknown = Action::body(403, r#"{"errors": ["permission denied"]}"#);
    gateway.rule(Rule::on("POST", "/login").then(used_up()));
    gateway.rule(Rule::on("POST", "/").then(unknown));
    fails(
        run(signer.submit(&etcd_server())),
        FailureClass::Auth,
        &["invalid secret id"],
    );
}

/// The response to the only login that the secret_id allows is lost.
#[test]
fn requests_new_secret_id_after_lost_login() {
    let (lab, auth) = Lab::with_app_role(json!({"secret_id_num_uses": 1}));
    let gateway = lab.gateway();
    let lost = Rule::on("POST", "/login").times(1);
    gateway.rule(lost.then(Action::DropAfterForward));
    let signer = lab.through(&gateway, "role: any", &auth);
    let submit = || run(signer.submit(&etcd_server()));
    let parts = ["logging in for signing etcd-server"];
    fails(submit(), FailureClass::Ambiguous, &parts);
    fails(submit(), FailureClass::Auth, &["deliver a new secret_id"]);
    assert_eq!(count(&gateway, "/sign/"), 0);
}

#[test]
fn classifies_failed_login() {
    let (lab, auth) = Lab::with_app_role(json!({}));
    let gateway = lab.gateway();
    for (status, class) in [
        (400, FailureClass::Auth),
        (403, FailureClass::Auth),
        (404, FailureClass::Config),
        (429, FailureClass::Transient),
        (500, FailureClass::Transient),
        (503, FailureClass::Transient),
        (200, FailureClass::Permanent),
    ] {
        gateway.behave();
        let action = Action::body(status, "{}");
        gateway.rule(Rule::on("POST", "/login").then(action));
        let signer = lab.through(&gateway, "role: any", &auth);
        fails(
            run(signer.submit(&etcd_server())),
            class,
            &["logging in", "etcd-server"],
        );
    }
    gateway.behave();
    put(lab.dir.path(), "secret-id", &lab.space.any_token());
    fails(
        run(lab.through(&gateway, "role: any", &auth).probe()),
        FailureClass::Config,
        &[
            "secret-id contains a token, not a secret_id",
            "set auth.appRole.wrapped: true if it is a wrapping token",
        ],
    );
    lab.secret_id();
    let auth = auth.replace("appRole: {", "appRole: {mount: elsewhere, ");
    let signer = lab.through(&gateway, "role: any", &auth);
    fails(run(signer.probe()), FailureClass::Auth, &["auth/elsewhere"]);
    assert_eq!(count(&gateway, "/sign/"), 0);
}

// ---- wrapping ----

#[test]
fn unwraps_secret_id_once_and_stores_it_before_login() {
    let (lab, auth, _) = Lab::with_wrapped_secret_id(", role: cp1");
    let gateway = lab.gateway();
    // The first run is interrupted between unwrapping and login.
    gateway.rule(Rule::on("POST", "/login").times(1).then(Action::DropBefore));
    let signer = lab.through(&gateway, "role: any", &auth);
    assert!(run(signer.submit(&etcd_server())).is_err());
    assert!(lab.stored("secret-id").unwrap().contains("secret_id"));
    for _ in 0..2 {
        let signer = lab.through(&gateway, "role: any", &auth);
        lab.signs(signer.as_ref(), CertName::EtcdServer);
        run(signer.settled(&etcd_server().key())).unwrap();
    }
    assert_eq!(count(&gateway, "wrapping/lookup"), 1);
    assert_eq!(count(&gateway, "wrapping/unwrap"), 1);
    // A new wrapping token replaces the stored secret_id.
    let before = lab.stored("secret-id");
    lab.wrapped_secret_id();
    let signer = lab.through(&gateway, "role: any", &auth);
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    assert_eq!(count(&gateway, "wrapping/unwrap"), 2);
    assert_ne!(lab.stored("secret-id"), before);
}

#[test]
fn removes_stored_credentials_of_another_login_method() {
    let (lab, signer) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    lab.wrapped_secret_id();
    let auth = format!("{{appRole: {{{app}, wrapped: true}}}}");
    run(lab.signer("role: any", &auth).submit(&etcd_server())).unwrap();
    assert!(lab.stored("token").is_some() && lab.stored("secret-id").is_some());
    run(signer.submit(&etcd_server())).unwrap();
    run(signer.settled(&etcd_server().key())).unwrap();
    assert_eq!(lab.stored("token"), None);
    assert_eq!(lab.stored("secret-id"), None);
}

#[test]
fn reports_used_wrapping_token_as_security_event() {
    let (lab, auth, token) = Lab::with_wrapped_secret_id("");
    let thief = lab.space.as_token(&token, "sys/wrapping/unwrap", json!({}));
    assert_eq!(thief.0, 200);
    let gateway = lab.gateway();
    let signer = lab.through(&gateway, "role: any", &auth);
    let (result, log) = logged(|| run(signer.probe()));
    let message = result.as_ref().unwrap_err().to_string();
    assert!(
        !message.contains(&token) && !log.contains(&token),
        "{message}"
    );
    fails(
        result,
        FailureClass::Auth,
        &[
            "SECURITY",
            "used already or has expired",
            "another process has unwrapped",
            "audit log",
        ],
    );
    assert_eq!(count(&gateway, "wrapping/unwrap"), 0);
    assert_eq!(count(&gateway, "/login"), 0);
}

#[test]
fn refuses_wrapping_token_of_another_path() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    lab.space.write("auth/approle/role/cp2", json!({}));
    let gateway = lab.gateway();
    for (path, keys) in [
        ("sys/wrapping/wrap", "wrapped: true"),
        (
            "auth/approle/role/cp2/secret-id",
            "wrapped: true, role: cp1",
        ),
        (
            "auth/approle/role/cp1/secret-id",
            "wrapped: true, mount: other",
        ),
    ] {
        let token = lab.space.wrapped(path, &json!({"secret_id": "planted"}));
        put(lab.dir.path(), "secret-id", &token);
        let auth = format!("{{appRole: {{{app}, {keys}}}}}");
        let signer = lab.through(&gateway, "role: any", &auth);
        fails(
            run(signer.probe()),
            FailureClass::Auth,
            &["SECURITY", path, "was not unwrapped", "find out who"],
        );
    }
    assert_eq!(count(&gateway, "wrapping/unwrap"), 0);
    assert_eq!(lab.stored("secret-id"), None);
}

/// The server has unwrapped the secret_id, and the response is lost.
#[test]
fn tells_interrupted_unwrapping_from_theft() {
    let (lab, auth, _) = Lab::with_wrapped_secret_id("");
    let gateway = lab.gateway();
    gateway.rule(
        Rule::on("POST", "wrapping/unwrap")
            .times(1)
            .then(Action::DropAfterForward),
    );
    let signer = lab.through(&gateway, "role: any", &auth);
    fails(
        run(signer.probe()),
        FailureClass::Ambiguous,
        &["logging in"],
    );
    let error = run(lab.through(&gateway, "role: any", &auth).probe()).unwrap_err();
    assert_eq!(error.class, FailureClass::Auth);
    let message = error.to_string();
    contains(
        &message,
        &["an interrupted earlier run may have unwrapped it"],
    );
    assert!(!message.contains("SECURITY"), "{message}");
}

/// The server has not unwrapped the secret_id.
#[test]
fn reports_theft_after_refused_unwrapping() {
    let (lab, auth, token) = Lab::with_wrapped_secret_id("");
    let gateway = lab.gateway();
    let refused = Rule::on("POST", "wrapping/unwrap").times(1);
    let limited = Action::body(429, r#"{"errors": ["rate limit quota exceeded"]}"#);
    gateway.rule(refused.then(limited));
    let signer = lab.through(&gateway, "role: any", &auth);
    fails(
        run(signer.probe()),
        FailureClass::Transient,
        &["logging in"],
    );
    assert_eq!(lab.stored("secret-id"), None);
    let thief = lab.space.as_token(&token, "sys/wrapping/unwrap", json!({}));
    assert_eq!(thief.0, 200);
    fails(
        run(lab.through(&gateway, "role: any", &auth).probe()),
        FailureClass::Auth,
        &["SECURITY", "another process has unwrapped"],
    );
}

/// A proxy may refuse after the server has unwrapped the secret_id.
#[test]
fn forgets_unwrapping_only_if_server_refused_it() {
    let gateway = Gateway::to(None);
    let wrapped = json!({"data": {"creation_path": "auth/approle/role/cp1/secret-id"}});
    for (status, body, class, is_recorded) in [
        (429, r#"{"errors": []}"#, FailureClass::Transient, false),
        (
            503,
            r#"{"errors": ["Vault is sealed"]}"#,
            FailureClass::Transient,
            false,
        ),
        (503, "upstream connect error", FailureClass::Ambiguous, true),
        (429, "", FailureClass::Ambiguous, true),
        (520, "", FailureClass::Ambiguous, true),
        (500, r#"{"errors": []}"#, FailureClass::Ambiguous, true),
        (403, "<html>", FailureClass::Auth, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let secret_id = dir.path().join("secret-id");
        write_secret(&secret_id, "s.wrapping");
        let auth = format!(
            "{{appRole: {{roleID: cp1, secretIDFile: {}, wrapped: true}}}}",
            secret_id.display()
        );
        gateway.behave();
        for (path, action) in [
            ("/lookup", Action::body(200, wrapped.to_string())),
            ("/unwrap", Action::body(status, body)),
        ] {
            gateway.rule(Rule::on("POST", path).then(action));
        }
        let signer = without_server(&gateway, dir.path(), &auth);
        let error = run(signer.probe()).unwrap_err();
        assert_eq!(error.class, class, "{error}");
        assert!(!error.to_string().contains("SECURITY"), "{error}");
        let recorded = dir.path().join("memory/secret-id").exists();
        assert_eq!(recorded, is_recorded, "{error}");
    }
}

#[test]
fn exits_with_77_after_security_event() {
    let (lab, auth, token) = Lab::with_wrapped_secret_id("");
    lab.space.as_token(&token, "sys/wrapping/unwrap", json!({}));
    let node = Node::new();
    let settings = lab.configuration(
        &lab.space.bao.url(),
        &lab.space.bao.ca_file(),
        "role: any",
        &auth,
    );
    fs::write(node.outside("config.yaml"), settings).unwrap();
    let before = node.etc();
    node.ask()
        .ended(77)
        .says("SECURITY")
        .says("another process has unwrapped");
    before.unchanged(&node.etc());
}

// ---- other login methods ----

#[test]
fn logs_in_with_tls_certificate() {
    let (lab, _) = Lab::open_handed();
    let issuer = Issuer::new("fleet");
    let pair = issuer.client("cp1.fleet.example.com");
    let space = &lab.space;
    space.write("sys/auth/fleet", json!({"type": "cert"}));
    lab.any_policy();
    space.write(
        "auth/fleet/certs/nodes",
        json!({"certificate": String::from_utf8(issuer.pem()).unwrap(), "allowed_common_names": "*.fleet.example.com", "token_policies": "any"}),
    );
    fs::write(lab.path("tls.pem"), [pair.chain_pem, pair.key_pem].concat()).unwrap();
    let tls = |file: &str| {
        format!(
            "role: any, tls: {{caFile: {}, certificate: {file}, key: {file}}}",
            space.bao.ca_file().display()
        )
    };
    let file = lab.path("tls.pem").display().to_string();
    for auth in [
        "{certificate: {mount: fleet}}",
        "{certificate: {mount: fleet, role: nodes}}",
    ] {
        let signer = lab.signer(&tls(&file), auth);
        run(signer.probe()).unwrap();
        lab.signs(signer.as_ref(), CertName::EtcdServer);
        run(signer.settled(&etcd_server().key())).unwrap();
    }
    let stranger = Issuer::new("stranger").client("cp1.fleet.example.com");
    fs::write(
        lab.path("tls.pem"),
        [stranger.chain_pem, stranger.key_pem].concat(),
    )
    .unwrap();
    fails(
        run(lab
            .signer(&tls(&file), "{certificate: {mount: fleet}}")
            .submit(&etcd_server())),
        FailureClass::Auth,
        &["auth/fleet", "etcd-server"],
    );
}

/// The server sends the token to a real API server for review.
#[test]
fn logs_in_with_service_account_token() {
    let (lab, _) = Lab::open_handed();
    let cluster = kubernetes();
    let corner = cluster.corner();
    let (node, reviewer) = (format!("node-{corner}"), format!("reviewer-{corner}"));
    let (token, reviewer_token) = (
        cluster.service_account_token(&node),
        cluster.service_account_token(&reviewer),
    );
    cluster.admin().create(
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        &json!({"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": reviewer},
            "subjects": [{"kind": "ServiceAccount", "name": reviewer, "namespace": "default"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"}}),
    );
    let space = &lab.space;
    space.write("sys/auth/management", json!({"type": "kubernetes"}));
    lab.any_policy();
    space.write(
        "auth/management/config",
        json!({"kubernetes_host": cluster.url(), "disable_local_ca_jwt": true,
               "kubernetes_ca_cert": fs::read_to_string(cluster.ca_file()).unwrap(),
               "token_reviewer_jwt": reviewer_token}),
    );
    space.write(
        "auth/management/role/node",
        json!({"bound_service_account_names": [node], "bound_service_account_namespaces": ["default"], "token_policies": ["any"]}),
    );
    let file = put(lab.dir.path(), "service-account", &token);
    let auth = format!(
        "{{kubernetes: {{mount: management, role: node, file: {}}}}}",
        file.display()
    );
    let signer = lab.signer("role: any", &auth);
    // Until the API server has read the binding of the reviewer.
    eventually(|| run(signer.probe()));
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    run(signer.settled(&etcd_server().key())).unwrap();
    put(lab.dir.path(), "service-account", &reviewer_token);
    fails(
        run(signer.submit(&etcd_server())),
        FailureClass::Auth,
        &[
            "auth/management",
            "audience, subject and time",
            "etcd-server",
        ],
    );
}

#[test]
fn logs_in_with_json_web_token() {
    let (lab, _) = Lab::open_handed();
    let space = &lab.space;
    let key = openssl(
        &[
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:2048",
        ],
        b"",
    );
    let public = String::from_utf8(openssl(&["pkey", "-pubout"], &key)).unwrap();
    fs::write(lab.path("key.pem"), &key).unwrap();
    let jwt = |subject: &str| {
        let until = time::OffsetDateTime::now_utc().unix_timestamp() + 300;
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!(
            "{}.{}",
            part(json!({"alg": "RS256", "typ": "JWT"})),
            part(json!({"sub": subject, "aud": "vault", "exp": until, "iat": until - 300}))
        );
        let file = lab.path("key.pem");
        let signature = openssl(
            &["dgst", "-sha256", "-sign", file.to_str().unwrap()],
            signed.as_bytes(),
        );
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(&signature))
    };
    lab.any_policy();
    for mount in ["jwt", "oidc/nodes"] {
        space.write(&format!("sys/auth/{mount}"), json!({"type": "jwt"}));
        space.write(
            &format!("auth/{mount}/config"),
            json!({"jwt_validation_pubkeys": [public], "default_role": "node"}),
        );
        space.write(
            &format!("auth/{mount}/role/node"),
            json!({"role_type": "jwt", "user_claim": "sub", "bound_subject": "cp1", "bound_audiences": ["vault"], "token_policies": ["any"]}),
        );
        let file = put(lab.dir.path(), "jwt", &jwt("cp1"));
        for role in ["", "role: node, "] {
            let auth = format!(
                "{{jwt: {{mount: {mount}, {role}file: {}}}}}",
                file.display()
            );
            let signer = lab.signer("role: any", &auth);
            lab.signs(signer.as_ref(), CertName::EtcdServer);
            run(signer.settled(&etcd_server().key())).unwrap();
        }
        put(lab.dir.path(), "jwt", &jwt("mallory"));
        let signer = lab.signer(
            "role: any",
            &format!("{{jwt: {{mount: {mount}, file: {}}}}}", file.display()),
        );
        fails(
            run(signer.submit(&etcd_server())),
            FailureClass::Auth,
            &[&format!("auth/{mount}"), "audience, subject and time"],
        );
    }
}
