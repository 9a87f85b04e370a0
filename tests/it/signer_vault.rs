//! Vault: a real OpenBao, with what `nodepki config signer-setup vault` prints and with what people make of it instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use nodepki::config::Settings;
use nodepki::http::Method;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, Class, Kind, Request, Signer, SignerError};
use nodepki::x509::{RevocationList, TrustBundle, UsageExtensions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{Action, Answer as HttpAnswer, Gateway, Rule};
use crate::log::logged;
use crate::node::{INIT, NODEPKI, Node, Ran};
use crate::rig::{Front, Rig};
use crate::servers::kubernetes::kubernetes;
use crate::servers::vault::{Bao, Space, put, text};
use crate::signer_bad::verdict;
use crate::signing::{
    opened_with_memory, openssl, request, request_for, run, wanted, write_secret,
};

const HEAD: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";

/// A namespace set up by the printed script; front-proxy-ca is an intermediate.
pub(crate) struct VaultRig {
    dir: TempDir,
    space: Space<'static>,
}

impl VaultRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rig = VaultRig {
            dir,
            space: Bao::shared().space(),
        };
        let space = &rig.space;
        for name in ["role-id", "secret-id"] {
            put(rig.dir.path(), name, "not there yet");
        }
        space.apply(&printed(rig.dir.path(), &rig.settings()));
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
        put(
            rig.dir.path(),
            "role-id",
            &text(&role_id["data"]["role_id"]),
        );
        let secret_id = space.write(&format!("{app}/secret-id"), json!({}));
        put(
            rig.dir.path(),
            "secret-id",
            &text(&secret_id["data"]["secret_id"]),
        );
        rig
    }

    /// Under `signers`, with the server there and believed by these keys.
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
    fn kind(&self) -> Kind {
        Kind::Vault
    }

    fn settings(&self) -> String {
        let signer = self.signer(&self.space.bao.url(), &self.tls());
        format!("{HEAD}signers: {{v: {signer}}}\n")
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().to_owned()
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
                format!(
                    "{HEAD}authorities: {{ca: {{signer: v}}, front-proxy-ca: {{signer: v}}, etcd-ca: {{signer: g}}}}\n\
                     signers:\n  v: {direct}\n  g: {fronted}\n"
                )
            }),
            exceptions: &[],
        })
    }
}

/// What `config signer-setup vault` prints for the first node of a cluster.
fn printed(dir: &Path, settings: &str) -> String {
    let ran = print_setup(dir, settings, INIT, &["vault"]);
    ran.done();
    ran.stdout
}

pub(crate) fn print_setup(dir: &Path, settings: &str, kubeadm: &str, arguments: &[&str]) -> Ran {
    fs::write(dir.join("setup.yaml"), settings).unwrap();
    fs::write(dir.join("kubeadm.yaml"), kubeadm).unwrap();
    Ran::of(
        Command::new(NODEPKI)
            .args(["config", "signer-setup"])
            .args(arguments)
            .arg("--config")
            .arg(dir.join("setup.yaml"))
            .arg("--kubeadm-config")
            .arg(dir.join("kubeadm.yaml")),
    )
}

/// A namespace with an engine `pki` and what a test makes of it, and signers of it.
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

    /// With a role `any` that lets a server with any name be certified, and a token that may do anything.
    fn open_handed() -> (Self, Rc<dyn Signer>) {
        let lab = Lab::new();
        lab.role("any", json!({}));
        let signer = lab.with_token("role: any", &lab.space.any_token());
        (lab, signer)
    }

    /// What is said on top of a role for an etcd server with any name.
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
        let tls = match more.contains("tls:") {
            true => String::new(),
            false => format!(", tls: {{caFile: {}}}", ca.display()),
        };
        format!(
            "{HEAD}signers: {{s: {{vault: {{address: \"{url}\", {namespace}{mount}{more}{comma}auth: {auth}{tls}}}}}}}\n",
            comma = if more.is_empty() { "" } else { ", " }
        )
    }

    /// A signer as in a new process.
    fn signer(&self, more: &str, auth: &str) -> Rc<dyn Signer> {
        self.signer_at(&self.space.bao.url(), &self.space.bao.ca_file(), more, auth)
    }

    fn signer_at(&self, url: &str, ca: &Path, more: &str, auth: &str) -> Rc<dyn Signer> {
        open(
            &self.path("memory"),
            &self.configuration(url, ca, more, auth),
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

    /// An AppRole whose tokens may do anything, and the keys for it.
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

    /// What a signer remembers.
    fn remembers(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path("memory").join(name)).ok()
    }

    fn gateway(&self) -> Gateway {
        Gateway::to(Some(self.space.bao.upstream()))
    }

    /// The answer is what was asked for, under this lab's CA.
    fn verdict(&self, request: &Request, bytes: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etcd")).unwrap();
        let file = dir.path().join(request.wanted.authority.base_name());
        fs::write(file.with_extension("crt"), &self.ca).unwrap();
        verdict(request, bytes, dir.path())
    }

    fn signs(&self, signer: &dyn Signer, name: CertName) -> Vec<u8> {
        let request = request(name);
        let bytes = issued(run(signer.submit(&request)).unwrap());
        assert_eq!(self.verdict(&request, &bytes), "", "{name}");
        bytes
    }
}

fn open(memory: &Path, settings: &str) -> Rc<dyn Signer> {
    let (settings, faults) = Settings::from_fragments(&[("lab.yaml", settings)])
        .unwrap_or_else(|faults| panic!("{faults}\n{settings}"));
    assert!(faults.is_empty(), "{faults}");
    let (_, config) = settings.signer_of(Authority::EtcdCa).unwrap();
    fs::create_dir_all(memory).unwrap();
    opened_with_memory(config, memory).into()
}

fn issued(answer: Answer) -> Vec<u8> {
    match answer {
        Answer::Issued(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T, SignerError>, class: Class, words: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.class, class, "{error}");
    for word in words {
        assert!(
            error.to_string().contains(word),
            "{word:?} is not in: {error}"
        );
    }
}

fn x509_text(pem: &[u8]) -> String {
    String::from_utf8(openssl(&["x509", "-noout", "-text"], pem)).unwrap()
}

fn etcd_server() -> Request {
    request(CertName::EtcdServer)
}

/// The paths of everything that went through a gateway.
fn asked(gateway: &Gateway) -> Vec<String> {
    gateway
        .requests()
        .into_iter()
        .map(|request| request.path)
        .collect()
}

fn count(gateway: &Gateway, part: &str) -> usize {
    asked(gateway)
        .iter()
        .filter(|path| path.contains(part))
        .count()
}

// ---- the printed set-up ----

/// A fresh server, the script as it is printed in a real shell with the server's own program, the commands in its
/// comments, and a node.
#[test]
fn what_is_printed_is_enough_for_a_whole_node_and_for_nothing_else() {
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
    let shell = |script: &str| {
        let mut shell = Command::new("sh");
        bao.authorize(shell.args(["-eu", "-c", script]));
        Ran::of(&mut shell).done().stdout.clone()
    };
    // Once is enough, and twice does no harm.
    shell(&script);
    shell(&script);
    for authority in Authority::ALL {
        let make = commented(&script, &format!("k8s-{authority}/root/generate/internal"));
        shell(&make);
        let answer = bao.root().read(&format!("k8s-{authority}/cert/ca"));
        let file = format!("/etc/kubernetes/pki/{}.crt", authority.base_name());
        node.write(file, text(&answer["data"]["certificate"]));
    }
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
    Ran::of(&mut node.ask_command("0s")).done();
    before.unchanged(&node.snapshot());
    // The run has ended its session, and keeps what it may need again: the secret_id, unwrapped.
    let memory = "/var/lib/nodepki/signers/v";
    assert!(!node.path(memory).join("token").exists());
    assert_eq!(node.mode(format!("{memory}/secret-id")), 0o600);

    nothing_else(&bao, &node, &role_id);
}

/// The command in the comments that has this part.
pub(crate) fn commented(script: &str, part: &str) -> String {
    script
        .lines()
        .filter_map(|line| line.strip_prefix("#   \"$VAULT\""))
        .find(|line| line.contains(part))
        .map(|line| format!("\"$VAULT\"{line}"))
        .unwrap_or_else(|| panic!("no {part} in the comments of:\n{script}"))
}

/// What somebody can do who has taken everything that the node knows.
fn nothing_else(bao: &Bao, node: &Node, role_id: &Path) {
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
    let csr = |name: CertName, change: &dyn Fn(&mut nodepki::signer::Wanted)| {
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

    // Other doors of the engines.
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
    // Parameters that reach past the role.
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
    // Names that are somebody else's.
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
    // A group and names that are asked for and not given, usages that come from the role.
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
    // More time than is wanted.
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

/// A node that has pins and no CA files, a revocation, and lists under a root and under an intermediate.
#[test]
fn authorities_and_revocation_lists_come_from_the_server() {
    let rig = VaultRig::new();
    let node = Node::new();
    let mut authorities = String::new();
    for authority in Authority::ALL {
        let file = format!("{}.crt", authority.base_name());
        node.remove(format!("/etc/kubernetes/pki/{file}"));
        let pem = fs::read(rig.authorities().join(file)).unwrap();
        let root = TrustBundle::from_pem(&pem).unwrap();
        let pin = nodepki::x509::hex(&root.first().public_key().sha256());
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
        // What the printed settings have the server do within 15 minutes.
        rig.space.read(&format!("{mount}/crl/rotate"));
        crl().done();
        let serial = chain.leaf().serial().to_uppercase();
        assert!(shown(&list).contains(&serial), "{}", shown(&list));
    }
}

#[test]
fn the_setup_gives_each_wish_a_role_of_its_own_and_each_node_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let settings = |role: &str| {
        format!(
            "{HEAD}signers: {{v: {{vault: {{address: \"https://v:8200\", namespace: a/b, mount: pki, issuer: \"{{cluster}}\", {role}\
             auth: {{tokenFile: /t}}}}}}, d: {{directory: {{path: /srv}}}}}}\n\
             authorities: {{ca: {{signer: v}}, etcd-ca: {{signer: v}}, front-proxy-ca: {{signer: d}}}}\n"
        )
    };
    let script = printed(dir.path(), &settings("role: control-plane, "));
    for part in [
        "write pki/roles/control-plane-apiserver-cp1 -",
        "write pki/roles/control-plane-scheduler-conf -",
        "#         kubelet.conf: control-plane-kubelet-conf-cp1",
        "path \"pki/issuer/kubernetes/sign/control-plane-scheduler-conf\" {",
        "\"issuer_ref\": \"kubernetes\"",
        "export VAULT_NAMESPACE=a/b BAO_NAMESPACE=a/b",
        "token create -orphan -no-default-policy -policy=nodepki-kubernetes-cp1",
    ] {
        assert!(script.contains(part), "{part}\n{script}");
    }
    assert!(!script.contains("front-proxy"), "{script}");
    // The roles that a configuration without `role` uses are the ones that are printed for it.
    let script = printed(dir.path(), &settings(""));
    for name in ["apiserver: apiserver-cp1", "admin.conf: admin-conf"] {
        assert!(script.contains(&format!("#         {name}\n")), "{script}");
    }
    let script = printed(dir.path(), &settings("verbatim: true, "));
    assert!(
        script.contains("path \"pki/issuer/kubernetes/sign-verbatim\" {"),
        "{script}"
    );
    assert!(
        script.contains("any group of the cluster included"),
        "{script}"
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
        .says("nothing set up");
}

// ---- what the server makes of a request ----

#[test]
fn the_common_name_is_no_alternative_name_unless_it_is_wanted() {
    let (lab, signer) = Lab::open_handed();
    let text = x509_text(&lab.signs(signer.as_ref(), CertName::EtcdServer));
    assert!(
        text.contains("DNS:cp1, DNS:localhost, IP Address:192.0.2.11"),
        "{text}"
    );
    lab.role("client", json!({"server_flag": false}));
    let signer = lab.with_token("role: client", &lab.space.any_token());
    let text = x509_text(&lab.signs(signer.as_ref(), CertName::FrontProxyClient));
    assert!(!text.contains("Alternative"), "{text}");
}

#[test]
fn an_issuer_by_name_signs_and_says_what_it_trusts_and_revoked() {
    let lab = Lab::new();
    lab.role("any", json!({}));
    let other = lab.space.root_ca("pki", "other");
    let token = lab.space.any_token();
    for (more, ca) in [("role: any, issuer: other", &other), ("role: any", &lab.ca)] {
        let signer = lab.with_token(more, &token);
        let trusted = TrustBundle::from_pem(ca.as_bytes()).unwrap();
        let offered = run(signer.trust(Authority::EtcdCa)).unwrap().unwrap();
        assert_eq!(TrustBundle::from_answer(&offered).unwrap(), trusted);
        let request = etcd_server();
        let bytes = issued(run(signer.submit(&request)).unwrap());
        let file = lab.path("ca.pem");
        fs::write(&file, ca).unwrap();
        let file = file.to_str().unwrap();
        openssl(&["verify", "-CAfile", file, "/dev/stdin"], &bytes);

        let before = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
        let shown = String::from_utf8(openssl(
            &["crl", "-noout", "-text", "-CAfile", file],
            &before,
        ))
        .unwrap();
        assert!(shown.contains("No Revoked"), "{shown}");
        lab.space
            .write("pki/revoke", json!({"certificate": first_pem(&bytes)}));
        let after = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
        assert_eq!(RevocationList::read_all(&after).unwrap().len(), 1);
        let shown = String::from_utf8(openssl(
            &["crl", "-noout", "-text", "-CAfile", file],
            &after,
        ))
        .unwrap();
        assert!(shown.contains("Serial Number"), "{shown}");
    }
}

fn first_pem(bytes: &[u8]) -> String {
    String::from_utf8(openssl(&["x509"], bytes)).unwrap()
}

/// Nothing tells it from one that has revoked nothing.
#[test]
fn an_engine_with_its_lists_switched_off_publishes_empty_ones() {
    let (lab, signer) = Lab::open_handed();
    let bytes = lab.signs(signer.as_ref(), CertName::EtcdServer);
    lab.space
        .write("pki/revoke", json!({"certificate": first_pem(&bytes)}));
    let list = || run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
    let revoked = |list: &[u8]| {
        let shown = openssl(&["crl", "-noout", "-text"], list);
        !String::from_utf8(shown).unwrap().contains("No Revoked")
    };
    assert!(revoked(&list()));
    lab.space.write("pki/config/crl", json!({"disable": true}));
    assert!(!revoked(&list()));
}

#[test]
fn sign_verbatim_certifies_what_the_request_says() {
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
    // With a role it takes the times from there.
    lab.role("short", json!({"max_ttl": "1h"}));
    let signer = lab.with_token("verbatim: true, role: short", &lab.space.any_token());
    let (bytes, log) = logged(|| issued(run(signer.submit(&etcd_server())).unwrap()));
    assert!(log.contains("maxTTL"), "{log}");
    assert!(!bytes.is_empty());
}

#[test]
fn what_the_server_warns_of_is_in_the_log() {
    let lab = Lab::new();
    lab.role("short", json!({"max_ttl": "1h"}));
    let signer = lab.with_token("role: short", &lab.space.any_token());
    let (_, log) = logged(|| lab.signs(signer.as_ref(), CertName::EtcdServer));
    for word in [
        "WARN",
        "vault:https://",
        "etcd-server",
        "so maxTTL is being used",
    ] {
        assert!(log.contains(word), "{word}: {log}");
    }
}

// ---- preflight: roles that cannot give what is wanted ----

/// Each of these roles is told before a key is made, and rightly so: the server's answer is none or another one.
#[test]
fn a_role_that_will_not_do_is_named_before_a_key_is_made() {
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
        // Without a look at the server everything may be possible.
        signer.preflight(&wanted(name)).unwrap();
        run(signer.probe()).unwrap();
        let message = signer.preflight(&wanted(name)).unwrap_err().to_string();
        for part in [
            words,
            "vault:https://",
            name.as_str(),
            &format!("pki/roles/r{at}"),
            "signer-setup",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
        let request = request(name);
        match run(signer.submit(&request)) {
            Ok(Answer::Issued(bytes)) => assert_ne!(lab.verdict(&request, &bytes), "", "{message}"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert_eq!(error.class, Class::Permanent, "{message}: {error}"),
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
fn what_the_policy_forbids_is_told_before_a_key_is_made() {
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
            "does not allow pki/sign/other (update)",
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
    assert!(message.contains("`role` says nothing of it"), "{message}");
    fails(
        run(signer.submit(&request(CertName::EtcdPeer))),
        Class::Config,
        &["etcd-peer"],
    );
}

// ---- refusals of the real server ----

#[test]
fn what_a_refusal_means() {
    let (lab, signer) = Lab::open_handed();
    let token = lab.space.any_token();
    let submit = |signer: &dyn Signer| run(signer.submit(&etcd_server()));
    let context = ["vault:https://", "etcd-server", "etcd-ca"];
    fails(
        submit(lab.with_token("role: nope", &token).as_ref()),
        Class::Config,
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
        Class::Config,
        &["unable to find PKI issuer", "correct `issuer`"],
    );
    fails(
        submit(lab.with_token("mount: nope, role: any", &token).as_ref()),
        Class::Config,
        &["no handler for route", "`mount`"],
    );
    fails(
        submit(
            lab.with_token("namespace: nope, role: any", &token)
                .as_ref(),
        ),
        Class::Config,
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
        Class::Config,
        &["no default issuer", "put the CA into"],
    );
    fails(
        run(empty.trust(Authority::EtcdCa)),
        Class::Config,
        &["no default issuer", "authority etcd-ca"],
    );
    fails(
        run(lab
            .with_token("mount: nope, role: any", &token)
            .trust(Authority::EtcdCa)),
        Class::Config,
        &["`mount`"],
    );
    let mut long = wanted(CertName::EtcdServer);
    long.profile.lifetime = Duration::from_secs(20 * 365 * 24 * 60 * 60);
    lab.role("long", json!({"max_ttl": "200000h"}));
    fails(
        run(lab
            .with_token("role: long", &token)
            .submit(&request_for(long, UsageExtensions::Requested).0)),
        Class::Permanent,
        &["beyond the expiration of the CA", "leaf_not_after_behavior"],
    );
    // The real server was never in the way.
    lab.signs(signer.as_ref(), CertName::EtcdServer);
}

#[test]
fn a_403_is_told_apart() {
    let (lab, _) = Lab::open_handed();
    let submit = |signer: &dyn Signer| run(signer.submit(&etcd_server()));
    let denied = lab
        .space
        .token("path \"pki/sign/else\" { capabilities = [\"update\"] }");
    fails(
        submit(lab.with_token("role: any", &denied).as_ref()),
        Class::Auth,
        &[
            "pki/sign/any allowed (update)",
            "the token itself is good",
            "etcd-server",
        ],
    );
    let narrow = lab.space.token(
        "path \"pki/sign/any\" { capabilities = [\"update\"] allowed_parameters = { \"csr\" = [] } }",
    );
    fails(
        submit(lab.with_token("role: any", &narrow).as_ref()),
        Class::Auth,
        &[
            "not with these parameters",
            "csr, ttl, exclude_cn_from_sans",
        ],
    );
    let signer = lab.with_token("role: any", "s.dead");
    fails(
        submit(signer.as_ref()),
        Class::Auth,
        &["put a new token into", "expired or was revoked"],
    );
    // The file is read anew each time.
    put(lab.dir.path(), "token", &lab.space.any_token());
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    fs::remove_file(lab.path("token")).unwrap();
    fails(submit(signer.as_ref()), Class::Config, &["cannot be read"]);
}

/// A hardened token cannot ask about itself; it signs all the same.
#[test]
fn a_token_without_the_default_policy_serves() {
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
fn a_sealed_server_is_waited_for() {
    let bao = Bao::start();
    bao.root().engine("pki");
    let lab = tempfile::tempdir().unwrap();
    let token = put(lab.path(), "token", "whatever");
    let signer = open(
        &lab.path().join("memory"),
        &format!(
            "{HEAD}signers: {{s: {{vault: {{address: \"{}\", mount: pki, auth: {{tokenFile: {}}}, tls: {{caFile: {}}}}}}}}}\n",
            bao.url(),
            token.display(),
            bao.ca_file().display()
        ),
    );
    bao.root().write("sys/seal", json!({}));
    let words = &["HTTP 503", "is sealed", "unseal it"];
    fails(run(signer.probe()), Class::Transient, words);
    fails(run(signer.submit(&etcd_server())), Class::Transient, words);
    fails(
        run(signer.trust(Authority::EtcdCa)),
        Class::Transient,
        words,
    );
}

/// Answers that this server does not give on demand, as its relatives give them.
#[test]
fn recorded_answers() {
    let (lab, _) = Lab::open_handed();
    let gateway = lab.gateway();
    let auth = lab.token_file(&lab.space.any_token());
    let signer = lab.through(&gateway, "role: any", &auth);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/signers/vault");
    let recorded = |name: &str| fs::read(dir.join(name)).unwrap();
    for (status, body, class, words) in [
        (412, "412.json", Class::Transient, "has not caught up"),
        (429, "429.json", Class::Transient, "quota"),
        (472, "empty.json", Class::Transient, "disaster-recovery"),
        (473, "empty.json", Class::Transient, "performance standby"),
        (501, "empty.json", Class::Transient, "initialise"),
        (502, "bad-gateway.html", Class::Transient, "HTTP 502"),
        (
            400,
            "missing-token.json",
            Class::Auth,
            "missing client token",
        ),
        (400, "empty.json", Class::Permanent, "HTTP 400"),
        (204, "empty.json", Class::Permanent, "holds no certificate"),
        (
            200,
            "warnings-only.json",
            Class::Permanent,
            "holds no certificate",
        ),
    ] {
        gateway.behave();
        let action = Action::Status(status, Vec::new(), recorded(body));
        gateway.rule(Rule::on("POST", "/sign/").then(action));
        fails(
            run(signer.submit(&etcd_server())),
            class,
            &[words, "etcd-server"],
        );
    }
    gateway.behave();
    gateway.rule(Rule::on("GET", "/crl/").then(Action::Status(204, Vec::new(), Vec::new())));
    assert_eq!(run(signer.crl(Authority::EtcdCa)).unwrap(), None);
    // Older servers leave the chain out where it is the CA itself.
    gateway.behave();
    gateway.rule(
        Rule::on("POST", "/sign/").then(Action::Replace(Box::new(|answer| {
            let mut body: Value = serde_json::from_slice(&answer.body).unwrap();
            body["data"].as_object_mut().unwrap().remove("ca_chain");
            HttpAnswer {
                body: serde_json::to_vec(&body).unwrap(),
                ..answer
            }
        }))),
    );
    lab.signs(signer.as_ref(), CertName::EtcdServer);
}

#[test]
fn every_request_names_its_namespace_and_shows_its_token_to_nobody_else() {
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
        run(signer.settled(&etcd_server())).unwrap();
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
    // The token is its owner's.
    assert!(lab.space.is_alive(&token));
}

/// A real standby, to which a proxy between says that it must not forward by itself.
#[test]
fn a_standby_is_followed_to_the_addresses_that_are_named() {
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
    let believed = dir.path().join("ca.pem");
    let both = [between.ca_pem(), fs::read(active.ca_file()).unwrap()];
    fs::write(&believed, both.concat()).unwrap();
    let signer = |also: &str| {
        let settings = format!(
            "{HEAD}signers: {{s: {{vault: {{address: \"{}\", {also}mount: pki, role: any, \
             auth: {{tokenFile: {}}}, tls: {{caFile: {}}}}}}}}}\n",
            between.url(),
            token.display(),
            believed.display()
        );
        open(&dir.path().join("memory"), &settings)
    };
    let request = etcd_server();
    fails(
        run(signer("").submit(&request)),
        Class::Config,
        &["307", &active.url(), "name it in the configuration"],
    );
    let certified = root.certified("pki").len();
    let also = format!("alsoAllow: [\"{}\"], ", active.url());
    let signer = signer(&also);
    run(signer.probe()).unwrap();
    let bytes = issued(run(signer.submit(&request)).unwrap());
    assert_eq!(root.certified("pki").len(), certified + 1);
    fs::create_dir(dir.path().join("etcd")).unwrap();
    fs::write(dir.path().join("etcd/ca.crt"), ca).unwrap();
    assert_eq!(verdict(&request, &bytes, dir.path()), "");
}

// ---- sessions ----

#[test]
fn one_login_serves_a_run_and_is_ended_with_its_last_certificate() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    lab.secret_id();
    let gateway = lab.gateway();
    let signer = lab.through(&gateway, "role: any", &format!("{{appRole: {{{app}}}}}"));
    let (server, peer) = (etcd_server(), request(CertName::EtcdPeer));
    run(async {
        let both = futures_util::future::join(signer.submit(&server), signer.submit(&peer));
        let (one, two) = both.await;
        one.unwrap();
        two.unwrap();
    });
    assert_eq!(count(&gateway, "/login"), 1);
    let kept: Value = serde_json::from_str(&lab.remembers("token").unwrap()).unwrap();
    let token = text(&kept["token"]);
    run(signer.settled(&server)).unwrap();
    assert!(lab.space.is_alive(&token));
    run(signer.settled(&peer)).unwrap();
    assert!(!lab.space.is_alive(&token));
    assert_eq!(lab.remembers("token"), None);
    assert_eq!(count(&gateway, "revoke-self"), 1);
    // The next run logs in again.
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    assert_eq!(count(&gateway, "/login"), 2);
}

#[test]
fn a_certificate_that_was_not_signed_keeps_the_session_for_the_next_run() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({"secret_id_num_uses": 1}));
    lab.secret_id();
    let auth = format!("{{appRole: {{{app}}}}}");
    let roles = "role: {default: any, etcd-peer: nope}";
    let signer = lab.signer(roles, &auth);
    let (server, peer) = (etcd_server(), request(CertName::EtcdPeer));
    run(signer.submit(&server)).unwrap();
    fails(run(signer.submit(&peer)), Class::Config, &["unknown role"]);
    run(signer.settled(&server)).unwrap();
    assert!(lab.remembers("token").is_some());
    // Another process, and the secret_id is used up.
    let signer = lab.signer("role: any", &auth);
    run(signer.probe()).unwrap();
    run(signer.submit(&peer)).unwrap();
    run(signer.settled(&peer)).unwrap();
    assert_eq!(lab.remembers("token"), None);
    fails(
        run(lab.signer("role: any", &auth).submit(&peer)),
        Class::Auth,
        &["invalid role or secret ID", "used up", "etcd-peer"],
    );
}

#[test]
fn a_dead_token_is_replaced_by_one_login_and_no_more() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    lab.secret_id();
    let auth = format!("{{appRole: {{{app}}}}}");
    let gateway = lab.gateway();
    let signer = lab.through(&gateway, "role: any", &auth);
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    let kept: Value = serde_json::from_str(&lab.remembers("token").unwrap()).unwrap();
    lab.space
        .write("auth/token/revoke", json!({"token": kept["token"]}));
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    assert_eq!(count(&gateway, "/login"), 2);
    // A policy that does not allow it is no reason to log in again.
    lab.space.write(
        "sys/policies/acl/app",
        json!({"policy": "path \"pki/x\" { capabilities = [\"read\"] }"}),
    );
    fails(
        run(signer.submit(&etcd_server())),
        Class::Auth,
        &["pki/sign/any allowed (update)"],
    );
    assert_eq!(count(&gateway, "/login"), 2);
    // A remembered token of another configuration is not used.
    let mut kept: Value = serde_json::from_str(&lab.remembers("token").unwrap()).unwrap();
    kept["origin"] = json!("elsewhere");
    write_secret(lab.path("memory/token"), kept.to_string());
    let signer = lab.through(&gateway, "role: any", &auth);
    let _ = run(signer.submit(&etcd_server()));
    assert_eq!(count(&gateway, "/login"), 3);
}

#[test]
fn a_token_that_has_expired_is_not_tried() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({"token_ttl": "6s"}));
    lab.secret_id();
    let gateway = lab.gateway();
    let signer = lab.through(&gateway, "role: any", &format!("{{appRole: {{{app}}}}}"));
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    std::thread::sleep(Duration::from_secs(2));
    gateway.behave();
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    let paths = asked(&gateway);
    let (login, sign) = (
        paths.iter().filter(|path| path.contains("/login")).count(),
        paths.iter().filter(|path| path.contains("/sign/")).count(),
    );
    assert_eq!((login, sign), (2, 2), "{paths:?}");
}

/// The answer to the one login that a secret_id allows is lost: the next try is told what to do.
#[test]
fn a_lost_login_is_unclear_and_then_refused() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({"secret_id_num_uses": 1}));
    lab.secret_id();
    let gateway = lab.gateway();
    gateway.rule(
        Rule::on("POST", "/login")
            .times(1)
            .then(Action::DropAfterForward),
    );
    let signer = lab.through(&gateway, "role: any", &format!("{{appRole: {{{app}}}}}"));
    fails(
        run(signer.submit(&etcd_server())),
        Class::Ambiguous,
        &["logging in for signing etcd-server"],
    );
    fails(
        run(signer.submit(&etcd_server())),
        Class::Auth,
        &["deliver a new secret_id"],
    );
    assert_eq!(count(&gateway, "/sign/"), 0);
}

#[test]
fn a_login_that_fails_is_no_refused_certificate() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    lab.secret_id();
    let gateway = lab.gateway();
    let auth = format!("{{appRole: {{{app}}}}}");
    for (status, class) in [
        (400, Class::Auth),
        (403, Class::Auth),
        (404, Class::Config),
        (429, Class::Transient),
        (500, Class::Transient),
        (503, Class::Transient),
        (200, Class::Permanent),
    ] {
        gateway.behave();
        let action = Action::Status(status, Vec::new(), b"{}".to_vec());
        gateway.rule(Rule::on("POST", "/login").then(action));
        let signer = lab.through(&gateway, "role: any", &auth);
        fails(
            run(signer.submit(&etcd_server())),
            class,
            &["logging in", "etcd-server"],
        );
    }
    gateway.behave();
    let auth = auth.replace("appRole: {", "appRole: {mount: elsewhere, ");
    let signer = lab.through(&gateway, "role: any", &auth);
    fails(run(signer.probe()), Class::Auth, &["auth/elsewhere"]);
    assert_eq!(count(&gateway, "/sign/"), 0);
}

// ---- wrapping ----

#[test]
fn a_wrapped_secret_id_is_unwrapped_once_and_kept_before_the_login() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    lab.wrapped_secret_id();
    let auth = format!("{{appRole: {{{app}, wrapped: true, role: cp1}}}}");
    let gateway = lab.gateway();
    // The first run dies between unwrapping and login.
    gateway.rule(Rule::on("POST", "/login").times(1).then(Action::DropBefore));
    let signer = lab.through(&gateway, "role: any", &auth);
    assert!(run(signer.submit(&etcd_server())).is_err());
    assert!(lab.remembers("secret-id").unwrap().contains("secret_id"));
    for _ in 0..2 {
        let signer = lab.through(&gateway, "role: any", &auth);
        lab.signs(signer.as_ref(), CertName::EtcdServer);
        run(signer.settled(&etcd_server())).unwrap();
    }
    assert_eq!(count(&gateway, "wrapping/lookup"), 1);
    assert_eq!(count(&gateway, "wrapping/unwrap"), 1);
    // A new one takes the place of the old.
    let before = lab.remembers("secret-id");
    lab.wrapped_secret_id();
    let signer = lab.through(&gateway, "role: any", &auth);
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    assert_eq!(count(&gateway, "wrapping/unwrap"), 2);
    assert_ne!(lab.remembers("secret-id"), before);
}

/// Neither stays in the state directory for good.
#[test]
fn what_another_way_to_log_in_left_behind_is_forgotten() {
    let (lab, signer) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    lab.wrapped_secret_id();
    let auth = format!("{{appRole: {{{app}, wrapped: true}}}}");
    run(lab.signer("role: any", &auth).submit(&etcd_server())).unwrap();
    assert!(lab.remembers("token").is_some() && lab.remembers("secret-id").is_some());
    run(signer.submit(&etcd_server())).unwrap();
    run(signer.settled(&etcd_server())).unwrap();
    assert_eq!(lab.remembers("token"), None);
    assert_eq!(lab.remembers("secret-id"), None);
}

#[test]
fn a_wrapping_token_that_somebody_else_used_is_a_security_event() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    let token = lab.wrapped_secret_id();
    let thief = lab.space.as_token(&token, "sys/wrapping/unwrap", json!({}));
    assert_eq!(thief.0, 200);
    let gateway = lab.gateway();
    let signer = lab.through(
        &gateway,
        "role: any",
        &format!("{{appRole: {{{app}, wrapped: true}}}}"),
    );
    let (result, log) = logged(|| run(signer.probe()));
    let message = result.as_ref().unwrap_err().to_string();
    assert!(
        !message.contains(&token) && !log.contains(&token),
        "{message}"
    );
    fails(
        result,
        Class::Auth,
        &[
            "SECURITY",
            "used already or has expired",
            "somebody else has unwrapped",
            "audit log",
        ],
    );
    assert_eq!(count(&gateway, "wrapping/unwrap"), 0);
    assert_eq!(count(&gateway, "/login"), 0);
}

#[test]
fn a_wrapping_token_of_something_else_is_not_even_unwrapped() {
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
            Class::Auth,
            &["SECURITY", path, "was not unwrapped", "find out who"],
        );
    }
    assert_eq!(count(&gateway, "wrapping/unwrap"), 0);
    assert_eq!(lab.remembers("secret-id"), None);
}

/// The server has unwrapped, and the answer is lost: nobody else is to blame.
#[test]
fn an_unwrapping_that_was_interrupted_is_not_called_theft() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    lab.wrapped_secret_id();
    let gateway = lab.gateway();
    gateway.rule(
        Rule::on("POST", "wrapping/unwrap")
            .times(1)
            .then(Action::DropAfterForward),
    );
    let auth = format!("{{appRole: {{{app}, wrapped: true}}}}");
    let signer = lab.through(&gateway, "role: any", &auth);
    fails(run(signer.probe()), Class::Ambiguous, &["logging in"]);
    let error = run(lab.through(&gateway, "role: any", &auth).probe()).unwrap_err();
    assert_eq!(error.class, Class::Auth);
    let message = error.to_string();
    assert!(
        message.contains("an earlier run began to unwrap it"),
        "{message}"
    );
    assert!(!message.contains("SECURITY"), "{message}");
}

/// Through the program: nothing is made or installed, and the exit status says so.
#[test]
fn a_security_event_ends_a_run_with_77() {
    let (lab, _) = Lab::open_handed();
    let app = lab.app_role(json!({}));
    let token = lab.wrapped_secret_id();
    lab.space.as_token(&token, "sys/wrapping/unwrap", json!({}));
    let node = Node::new();
    let settings = lab.configuration(
        &lab.space.bao.url(),
        &lab.space.bao.ca_file(),
        "role: any",
        &format!("{{appRole: {{{app}, wrapped: true}}}}"),
    );
    fs::write(node.outside("config.yaml"), settings).unwrap();
    let before = node.etc();
    node.ask().ended(77).says("SECURITY").says("somebody else");
    before.unchanged(&node.etc());
}

// ---- the other ways in ----

#[test]
fn a_tls_certificate_logs_in() {
    let (lab, _) = Lab::open_handed();
    let issuer = crate::gateway::Issuer::new("fleet");
    let pair = issuer.client("cp1.fleet.example.com");
    let space = &lab.space;
    space.write("sys/auth/fleet", json!({"type": "cert"}));
    space.write(
        "sys/policies/acl/any",
        json!({"policy": "path \"*\" { capabilities = [\"read\", \"update\"] }"}),
    );
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
        run(signer.settled(&etcd_server())).unwrap();
    }
    let stranger = crate::gateway::Issuer::new("stranger").client("cp1.fleet.example.com");
    fs::write(
        lab.path("tls.pem"),
        [stranger.chain_pem, stranger.key_pem].concat(),
    )
    .unwrap();
    fails(
        run(lab
            .signer(&tls(&file), "{certificate: {mount: fleet}}")
            .submit(&etcd_server())),
        Class::Auth,
        &["auth/fleet", "etcd-server"],
    );
}

/// The server asks a real API server who the token's owner is.
#[test]
fn a_service_account_token_logs_in() {
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
    space.write(
        "sys/policies/acl/any",
        json!({"policy": "path \"*\" { capabilities = [\"read\", \"update\"] }"}),
    );
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
    let begin = std::time::Instant::now();
    // Until the API server has seen the binding of the reviewer.
    while run(signer.probe()).is_err() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    lab.signs(signer.as_ref(), CertName::EtcdServer);
    run(signer.settled(&etcd_server())).unwrap();
    put(lab.dir.path(), "service-account", &reviewer_token);
    fails(
        run(signer.submit(&etcd_server())),
        Class::Auth,
        &[
            "auth/management",
            "audience, subject and time",
            "etcd-server",
        ],
    );
}

#[test]
fn a_json_web_token_logs_in() {
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
        let part = |value: Value| base64url(value.to_string().as_bytes());
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
        format!("{signed}.{}", base64url(&signature))
    };
    space.write(
        "sys/policies/acl/any",
        json!({"policy": "path \"*\" { capabilities = [\"read\", \"update\"] }"}),
    );
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
            run(signer.settled(&etcd_server())).unwrap();
        }
        put(lab.dir.path(), "jwt", &jwt("mallory"));
        let signer = lab.signer(
            "role: any",
            &format!("{{jwt: {{mount: {mount}, file: {}}}}}", file.display()),
        );
        fails(
            run(signer.submit(&etcd_server())),
            Class::Auth,
            &[&format!("auth/{mount}"), "audience, subject and time"],
        );
    }
}

fn base64url(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

// ---- configuration ----

#[test]
fn a_configuration_that_cannot_be_meant_is_refused_with_the_fix() {
    for (keys, words) in [
        ("mount: pki, auth: {tokenFile: /t}", "has no address"),
        (
            "address: \"https://v\", auth: {tokenFile: /t}",
            "has no mount",
        ),
        ("address: \"https://v\", mount: pki", "has no auth"),
        (
            "address: \"https://v\", mount: pki, auth: {}",
            "0 ways to log in",
        ),
        (
            "address: \"https://v\", mount: pki, auth: {tokenFile: /t, jwt: {file: /j}}",
            "2 ways to log in",
        ),
        (
            "address: \"https://v\", mount: pki, auth: {tokenFile: s.secret}",
            "credential:NAME",
        ),
        (
            "address: \"https://v\", mount: \"a/../b\", auth: {tokenFile: /t}",
            "is not a path",
        ),
        (
            "address: \"https://v\", mount: \"pki-{certificate}\", auth: {tokenFile: /t}",
            "placeholder",
        ),
        (
            "address: \"https://v\", mount: pki, auth: {certificate: {}}",
            "tls.certificate",
        ),
        (
            "address: \"https://v\", mount: pki, auth: {appRole: {secretIDFile: /s}}",
            "exactly one of roleID and roleIDFile",
        ),
        (
            "address: \"https://v\", mount: pki, auth: {appRole: {roleID: x, roleIDFile: /r, secretIDFile: /s}}",
            "exactly one of roleID and roleIDFile",
        ),
        (
            "address: \"https://v\", mount: pki, auth: {appRole: {roleID: x}}",
            "secretIDFile",
        ),
    ] {
        let text = format!("{HEAD}signers: {{s: {{vault: {{{keys}}}}}}}\n");
        let faults = Settings::from_fragments(&[("c.yaml", text)])
            .unwrap_err()
            .to_string();
        assert!(faults.contains(words), "{words}: {faults}");
        assert!(!faults.contains("s.secret"), "{faults}");
    }
}
