//! `kubernetes` against a real API server, with people who approve and sign.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::config::Settings;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, Class, Kind, Request, Signer, SignerError, Ticket, Wanted};
use nodepki::x509::{Csr, ExtendedUsage, PrivateKey, UsageExtensions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{Action, Answer as Reply, Gateway, Rule, Upstream};
use crate::node::{NODEPKI, Node, Ran};
use crate::rig::{Denial, Front, Rig};
use crate::servers::kubernetes::{
    CSRS, Kubernetes, NODES, add_condition, condition, kubernetes, sign,
};
use crate::signer_bad::verdict;
use crate::signer_contract::settings;
use crate::signing::{opened_with_memory, openssl, request, run, wanted, write_secret};

/// Its own signer names on the shared cluster, and a bootstrap token.
pub(crate) struct KubernetesRig {
    cluster: &'static Kubernetes,
    dir: TempDir,
    corner: usize,
    /// Of the signer's configuration.
    access: String,
    signer_name: String,
    /// The signer answers with leaf and intermediate.
    chained: bool,
    authorities: PathBuf,
}

impl KubernetesRig {
    pub(crate) fn new() -> Self {
        let cluster = kubernetes();
        let dir = tempfile::tempdir().unwrap();
        let corner = cluster.corner();
        write_secret(dir.path().join("token"), "abcdef.0123456789abcdef\n");
        KubernetesRig {
            access: direct(
                &cluster.url(),
                &cluster.ca_file(),
                &format!("tokenFile: {}", dir.path().join("token").display()),
            ),
            signer_name: format!("pki.example.com/{{authority}}.r{corner}"),
            authorities: cluster.authorities(),
            cluster,
            dir,
            corner,
            chained: false,
        }
    }

    fn served(mut self, signer_name: &str) -> Self {
        self.signer_name = signer_name.to_owned();
        self
    }

    fn reached(mut self, access: String) -> Self {
        self.access = access;
        self
    }

    /// Through a gateway.
    fn behind(self, gateway: &Gateway) -> Self {
        let access = direct(
            &gateway.url(),
            &gateway.ca_file(),
            &format!("tokenFile: {}", self.token_file().display()),
        );
        self.reached(access)
    }

    fn token_file(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    fn keys(&self) -> String {
        format!("{}, signerName: \"{}\"", self.access, self.signer_name)
    }

    /// In a new process.
    fn signer(&self) -> Rc<dyn Signer> {
        self.open(Authority::Ca)
    }

    /// The requests of this rig.
    fn objects(&self) -> Vec<Value> {
        let end = format!(".r{}", self.corner);
        let mut all = self.cluster.admin().list(CSRS);
        all.retain(|object| {
            object["spec"]["signerName"]
                .as_str()
                .unwrap()
                .ends_with(&end)
        });
        all
    }

    fn only(&self) -> Value {
        let mut objects = self.objects();
        assert_eq!(objects.len(), 1, "{objects:?}");
        objects.remove(0)
    }

    fn approve_only(&self) {
        let approver = self.cluster.person("approver", &[]);
        for object in self.objects() {
            if conditions(&object).is_empty() {
                let yes = condition("Approved", "Reviewed", "looks good");
                approver.decide(name_of(&object), yes);
            }
        }
    }

    fn sign_approved(&self) {
        let signer = self.cluster.person("signer", &[]);
        for object in self.objects() {
            let approved = conditions(&object).contains(&"Approved".to_owned());
            if approved && object["status"]["certificate"].is_null() {
                signer.answer(&path_of(&object), |object| {
                    let pem = self.signed(object);
                    object["status"]["certificate"] = json!(BASE64.encode(pem));
                });
            }
        }
    }

    /// As the signer's policy is: the extensions of the CSR must be those of the request, as cert-manager has it.
    fn signed(&self, object: &Value) -> String {
        let spec = &object["spec"];
        assert_same_usages(spec);
        let name = spec["signerName"].as_str().unwrap();
        let path = name.split_once('/').unwrap().1;
        let authority = Authority::ALL
            .into_iter()
            .find(|one| path.split('.').any(|part| part == one.as_str()))
            .unwrap_or(Authority::Ca);
        sign(
            &self.authorities(),
            authority,
            spec["request"].as_str().unwrap(),
            &spec["usages"],
            Duration::from_secs(spec["expirationSeconds"].as_u64().unwrap_or(7_776_000)),
            self.chained,
        )
    }
}

/// Keys for a server and a credential.
pub(crate) fn direct(url: &str, ca: &Path, credential: &str) -> String {
    format!(
        "server: {url}, tls: {{caFile: {}}}, {credential}",
        ca.display()
    )
}

pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn path_of(object: &Value) -> String {
    format!("{CSRS}/{}", name_of(object))
}

fn conditions(object: &Value) -> Vec<String> {
    let all = object["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    all.iter()
        .map(|one| one["type"].as_str().unwrap().to_owned())
        .collect()
}

/// cert-manager: with either extension in the CSR both are compared, the extended usages in order.
pub(crate) fn assert_same_usages(spec: &Value) {
    let pem = BASE64.decode(spec["request"].as_str().unwrap()).unwrap();
    let text = String::from_utf8(openssl(&["req", "-noout", "-text"], &pem)).unwrap();
    let usages: Vec<&str> = spec["usages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one.as_str().unwrap())
        .collect();
    assert_eq!(&usages[..2], ["digital signature", "key encipherment"]);
    assert!(
        text.contains("Digital Signature, Key Encipherment"),
        "{text}"
    );
    let extended: Vec<&str> = usages[2..]
        .iter()
        .map(|usage| match *usage {
            "server auth" => "TLS Web Server Authentication",
            "client auth" => "TLS Web Client Authentication",
            other => panic!("{other}"),
        })
        .collect();
    assert!(
        text.contains(&format!(" {}\n", extended.join(", "))),
        "{text}"
    );
}

impl Rig for KubernetesRig {
    fn kind(&self) -> Kind {
        Kind::Kubernetes
    }

    fn settings(&self) -> String {
        settings(&format!("kubernetes: {{{}}}", self.keys()))
    }

    fn authorities(&self) -> PathBuf {
        self.authorities.clone()
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    fn approve(&self) {
        self.approve_only();
        self.sign_approved();
    }

    fn deny(&self, request: &Request) -> Option<Denial> {
        let ticket = pending(run(self.signer().submit(request))).0;
        let no = condition("Denied", "Policy", "not on a Friday");
        self.cluster
            .person("approver", &[])
            .decide(ticket.as_str(), no);
        Some(Denial {
            signer: self.open(request.wanted.authority),
            ticket: Some(ticket),
            reason: "not on a Friday",
        })
    }

    fn front(&self) -> Option<Front> {
        Some(front(
            "kubernetes",
            self.keys(),
            "/certificatesigningrequests",
        ))
    }

    /// A line is a key, so that a second request for one shows.
    fn sent(&self) -> Vec<String> {
        let mut sent: Vec<String> = self
            .objects()
            .iter()
            .map(|object| object["spec"]["request"].as_str().unwrap().to_owned())
            .collect();
        sent.sort();
        sent
    }
}

/// The signer with `keys` for all authorities, that of etcd-ca at another address.
pub(crate) fn front(kind: &'static str, keys: String, path: &'static str) -> Front {
    let cluster = kubernetes();
    let ca = fs::read(cluster.ca_file()).unwrap();
    let (url, tls) = (
        cluster.url(),
        format!("{{caFile: {}}}", cluster.ca_file().display()),
    );
    Front {
        upstream: Upstream::tls(("127.0.0.1", cluster.port()), &ca, "localhost"),
        submit: ("POST", path),
        settings: Box::new(move |address, believed| {
            let fronted = keys.replace(&url, address).replace(&tls, believed);
            settings(&format!("{kind}: {{{keys}}}"))
                .replace("etcd-ca: {signer: s}", "etcd-ca: {signer: g}")
                .replace(
                    "signers: {",
                    &format!("signers: {{g: {{{kind}: {{{fronted}}}}}, "),
                )
        }),
        exceptions: &[],
    }
}

pub(crate) fn pending(answer: Result<Answer, SignerError>) -> (Ticket, String) {
    match answer {
        Ok(Answer::Pending { ticket, note, .. }) => (ticket, note),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn issued(answer: Result<Answer, SignerError>) -> Vec<u8> {
    match answer {
        Ok(Answer::Issued(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn denied(answer: Result<Answer, SignerError>) -> String {
    match answer {
        Ok(Answer::Denied { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// A wish for a certificate of the API's own clients, with another lifetime.
fn short_lived(name: CertName, lifetime: Duration) -> Wanted {
    let mut wanted = wanted(name);
    wanted.profile.lifetime = lifetime;
    wanted
}

fn request_of(wanted: Wanted) -> Request {
    crate::signing::request_for(wanted, UsageExtensions::Requested).0
}

/// Polls until the answer is another than "pending".
fn settled_answer(
    signer: &dyn Signer,
    request: &Request,
    ticket: &Ticket,
) -> Result<Answer, SignerError> {
    let begin = Instant::now();
    loop {
        match run(signer.poll(request, ticket)) {
            Ok(Answer::Pending { note, .. }) => {
                assert!(begin.elapsed() < Duration::from_secs(30), "{note}");
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

/// Seconds that OpenSSL gives a certificate from now on.
fn remaining(pem: &[u8]) -> i64 {
    let shown = openssl(&["x509", "-noout", "-enddate", "-dateopt", "iso_8601"], pem);
    let shown = String::from_utf8(shown).unwrap();
    let date = shown
        .trim()
        .trim_start_matches("notAfter=")
        .replace(' ', "T");
    let end =
        time::OffsetDateTime::parse(&date, &time::format_description::well_known::Rfc3339).unwrap();
    (end - time::OffsetDateTime::now_utc()).whole_seconds()
}

// ---- who asks ----

#[test]
fn every_credential_gets_a_certificate_and_none_can_approve_or_sign() {
    let cluster = kubernetes();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (certificate, key) = cluster.pair("cp1", &[NODES], false);
    let token = cluster.service_account_token("nodepki");
    let ca = fs::read_to_string(cluster.ca_file()).unwrap();
    file("ca.crt", &ca);
    file("token", "abcdef.0123456789abcdef");
    let with_files = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters: [{{name: c, cluster: {{server: 'https://localhost:{}', tls-server-name: kubernetes, certificate-authority: ca.crt}}}}]\n\
         contexts: [{{name: here, context: {{cluster: c, user: u}}}}]\n\
         users: [{{name: u, user: {{tokenFile: token, token: not-this-one}}}}]\n",
        cluster.port()
    );
    let url = cluster.url();
    let direct = |credential: String| direct(&url, &cluster.ca_file(), &credential);
    let mutual = format!(
        "server: {url}, tls: {{caFile: {}, certificate: {}, key: {}}}",
        cluster.ca_file().display(),
        file("node.crt", &certificate),
        file("node.key", &key)
    );
    for (access, user, person) in [
        (
            direct("tokenFile: ".to_owned() + &file("bootstrap", "abcdef.0123456789abcdef\n")),
            "system:bootstrap:abcdef",
            cluster.bearer("abcdef.0123456789abcdef"),
        ),
        (
            direct("tokenFile: ".to_owned() + &file("account", &token)),
            "system:serviceaccount:default:nodepki",
            cluster.bearer(&token),
        ),
        (mutual, "cp1", cluster.person("cp1", &[NODES])),
        (
            format!(
                "kubeconfig: {}",
                file("node.conf", &cluster.kubeconfig_of("cp1", &[NODES]))
            ),
            "cp1",
            cluster.person("cp1", &[NODES]),
        ),
        (
            format!("kubeconfig: {}", file("files.conf", &with_files)),
            "system:bootstrap:abcdef",
            cluster.bearer("abcdef.0123456789abcdef"),
        ),
    ] {
        let rig = KubernetesRig::new().reached(access);
        let signer = rig.signer();
        run(signer.probe()).unwrap_or_else(|error| panic!("{}: {error}", rig.access));
        let request = request(CertName::EtcdServer);
        let (ticket, _) = pending(run(signer.submit(&request)));
        let object = rig.only();
        assert_eq!(object["spec"]["username"], user);
        // The same credential, used as a thief would.
        let mut forged = object.clone();
        add_condition(&mut forged, condition("Approved", "Me", "please"));
        let path = path_of(&object);
        assert_eq!(
            person.put(&format!("{path}/approval"), &forged).0,
            403,
            "{user}"
        );
        let mut forged = object.clone();
        forged["status"]["certificate"] = json!(BASE64.encode(rig.signed(&object)));
        assert_eq!(
            person.put(&format!("{path}/status"), &forged).0,
            403,
            "{user}"
        );
        let (status, _) = person.send(nodepki::http::Call::new(
            nodepki::http::Method::DELETE,
            path,
        ));
        assert_eq!(status, 403, "{user}");
        rig.approve();
        let bytes = issued(run(signer.poll(&request, &ticket)));
        assert_eq!(verdict(&request, &bytes, &rig.authorities()), "", "{user}");
    }
}

#[test]
fn a_token_is_read_anew_and_a_refused_one_can_be_replaced() {
    let rig = KubernetesRig::new();
    write_secret(rig.token_file(), "abcdef.ffffffffffffffff");
    let signer = rig.signer();
    let request = request(CertName::Apiserver);
    for error in [
        run(signer.probe()).unwrap_err(),
        run(signer.submit(&request)).unwrap_err(),
    ] {
        assert_eq!(error.class, Class::Auth, "{error}");
        for part in [&rig.cluster.url(), "401", "token"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(!error.to_string().contains("ffffffffffffffff"), "{error}");
    }
    fs::remove_file(rig.token_file()).unwrap();
    let error = run(signer.submit(&request)).unwrap_err();
    assert_eq!(error.class, Class::Config, "{error}");
    assert!(
        error
            .to_string()
            .contains(rig.token_file().to_str().unwrap()),
        "{error}"
    );
    write_secret(rig.token_file(), "abcdef.0123456789abcdef");
    run(signer.probe()).unwrap();
    pending(run(signer.submit(&request)));
}

#[test]
fn without_the_right_to_ask_the_probe_says_which_role_is_missing() {
    let cluster = kubernetes();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("stranger.conf");
    write_secret(&kubeconfig, cluster.kubeconfig_of("stranger", &[]));
    let rig = KubernetesRig::new().reached(format!("kubeconfig: {}", kubeconfig.display()));
    let signer = rig.signer();
    let error = run(signer.probe()).unwrap_err();
    assert_eq!(error.class, Class::Auth, "{error}");
    for part in [
        "user stranger may not create",
        "system:node-bootstrapper",
        "stranger.conf",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // RBAC's 403, which heals once the role is bound.
    let error = run(signer.submit(&request(CertName::EtcdPeer))).unwrap_err();
    assert_eq!(error.class, Class::Auth, "{error}");
    for part in [
        "etcd-peer",
        "etcd-ca",
        "cannot create resource",
        "system:node-bootstrapper",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn kubeconfigs_that_need_more_than_files_are_refused() {
    let cluster = kubernetes();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.conf");
    let rig = KubernetesRig::new().reached(format!("kubeconfig: {}", path.display()));
    let signer = rig.signer();
    let base = |cluster_keys: &str, user: &str| {
        format!(
            "current-context: a\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{{cluster_keys}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        )
    };
    let server = format!("server: '{}'", cluster.url());
    let ca = BASE64.encode(fs::read(cluster.ca_file()).unwrap());
    let trusted = format!("{server}, certificate-authority-data: {ca}");
    for (text, part) in [
        (
            base(&trusted, "exec: {command: aws}"),
            "has exec, which nodepki does not follow",
        ),
        (
            base(&trusted, "auth-provider: {name: oidc}"),
            "auth-provider",
        ),
        (
            base(&trusted, "username: me, password: secret-word"),
            "username, password",
        ),
        (base(&trusted, "token: abc, as: admin"), "has as"),
        (
            base(
                &format!("{server}, insecure-skip-tls-verify: true"),
                "token: abc",
            ),
            "insecure-skip-tls-verify",
        ),
        (
            base("certificate-authority-data: ''", "token: abc"),
            "names no server",
        ),
        (
            base("server: 'https://me:secret-word@h:99999'", "token: abc"),
            "has a server that is no address",
        ),
        (
            base(&trusted, "client-certificate-data: QQ=="),
            "half of a client certificate",
        ),
        (base(&trusted, "tokenFile: gone"), "cannot be read"),
        (base(&server, "token: abc"), "which server"),
        ("a: [".to_owned(), "cannot be used"),
        ("current-context: b".to_owned(), "\"b\""),
    ] {
        fs::write(&path, &text).unwrap();
        let error = run(signer.submit(&request(CertName::Apiserver))).unwrap_err();
        assert_eq!(error.class, Class::Config, "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
        assert!(!error.to_string().contains("secret-word"), "{error}");
    }
    fs::remove_file(&path).unwrap();
    let error = run(signer.probe()).unwrap_err();
    assert!(error.to_string().contains("odd.conf"), "{error}");
}

#[test]
fn a_node_that_could_approve_itself_is_told_so() {
    let cluster = kubernetes();
    let rig = KubernetesRig::new();
    let kubeconfig = rig.scratch().join("admin.conf");
    write_secret(
        &kubeconfig,
        cluster.kubeconfig_of("me", &["system:masters"]),
    );
    let rig = rig.reached(format!("kubeconfig: {}", kubeconfig.display()));
    let node = node(&rig);
    let ran = Ran::of(&mut node.ask_command("0s"));
    assert_eq!(ran.code, Some(75), "{}", ran.said());
    assert!(
        ran.said().contains("may approve its own requests"),
        "{}",
        ran.said()
    );
    let rig = KubernetesRig::new();
    let node = self::node(&rig);
    let ran = Ran::of(&mut node.ask_command("0s"));
    assert_eq!(ran.code, Some(75), "{}", ran.said());
    assert!(!ran.said().contains("may approve"), "{}", ran.said());
}

/// What `config signer-setup` prints for the signers of a rig.
fn printed(rig: &dyn Rig) -> Vec<Value> {
    let node = Node::new();
    fs::write(node.outside("config.yaml"), rig.settings()).unwrap();
    let mut command = Command::new(NODEPKI);
    command
        .args(["config", "signer-setup", rig.kind().as_str(), "--config"])
        .arg(node.outside("config.yaml"))
        .arg("--kubeadm-config")
        .arg(node.outside("kubeadm.yaml"));
    let ran = Ran::of(&mut command);
    ran.done();
    let documents = nodepki::yaml::parse("setup", &ran.stdout).unwrap();
    let mut objects: Vec<Value> = documents.iter().map(nodepki::yaml::to_json).collect();
    objects.retain(|object| !object.is_null());
    objects
}

/// The same, made at the API by an administrator.
pub(crate) fn set_up(rig: &dyn Rig, namespaced: bool) -> Vec<Value> {
    let objects = printed(rig);
    let admin = kubernetes().admin();
    for object in &objects {
        let kind = object["kind"].as_str().unwrap();
        let path = match (kind, object["metadata"]["namespace"].as_str()) {
            ("Namespace", _) => "/api/v1/namespaces".to_owned(),
            (kind, Some(namespace)) => format!(
                "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{}s",
                kind.to_ascii_lowercase()
            ),
            (kind, None) => format!(
                "/apis/rbac.authorization.k8s.io/v1/{}s",
                kind.to_ascii_lowercase()
            ),
        };
        assert_eq!(
            namespaced,
            object["metadata"]["namespace"].is_string() || kind == "Namespace"
        );
        let yaml = nodepki::yaml::to_string(object).unwrap();
        let call = nodepki::http::Call::post(path).body("application/yaml", yaml.into_bytes());
        let (status, body) = admin.send(call);
        assert_eq!(status, 201, "{body}");
    }
    objects
}

#[test]
fn what_signer_setup_prints_is_enough_and_goes_no_further() {
    let cluster = kubernetes();
    let rig = KubernetesRig::new();
    let objects = set_up(&rig, false);
    let kinds: Vec<&str> = objects
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["ClusterRoleBinding", "ClusterRole", "ClusterRole"]);
    let admin = cluster.admin();
    for (user, role) in [
        ("setup-approver", "nodepki-approver-kubernetes"),
        ("setup-signer", "nodepki-signer-kubernetes"),
    ] {
        let binding = json!({"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": user},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}});
        admin.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            &binding,
        );
    }
    // A node with nothing but the printed group.
    let kubeconfig = rig.scratch().join("node.conf");
    let node = cluster.kubeconfig_of("set-up-node", &["system:bootstrappers:nodepki"]);
    write_secret(&kubeconfig, node);
    let rig = rig.reached(format!("kubeconfig: {}", kubeconfig.display()));
    let begin = Instant::now();
    while run(rig.signer().probe()).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    let (approver, signer) = (
        cluster.person("setup-approver", &[]),
        cluster.person("setup-signer", &[]),
    );
    while approver.get(CSRS).0 != 200 || signer.get(CSRS).0 != 200 {
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
    let yes = condition("Approved", "Reviewed", "");
    // Neither does the other's work.
    let path = format!("{CSRS}/{}", ticket.as_str());
    let (_, mut object) = signer.get(&path);
    add_condition(&mut object, yes.clone());
    assert_eq!(signer.put(&format!("{path}/approval"), &object).0, 403);
    approver.decide(ticket.as_str(), yes.clone());
    assert_eq!(approver.put(&format!("{path}/status"), &object).0, 403);
    signer.answer(&path, |object| {
        let pem = rig.signed(object);
        object["status"]["certificate"] = json!(BASE64.encode(pem));
    });
    let bytes = issued(run(rig.signer().poll(&request, &ticket)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    // Nor for another signer name.
    let other = KubernetesRig::new();
    let (ticket, _) = pending(run(other.signer().submit(&request)));
    let path = format!("{CSRS}/{}", ticket.as_str());
    let (_, mut object) = approver.get(&path);
    add_condition(&mut object, yes);
    let (status, body) = approver.put(&format!("{path}/approval"), &object);
    assert_eq!(status, 403, "{body}");
    assert!(
        body["message"]
            .as_str()
            .unwrap()
            .contains("not permitted to approve requests with signerName")
    );
}

#[test]
fn an_issuer_in_a_namespace_is_one_that_the_node_may_name() {
    let rig = KubernetesRig::new().served("issuers.cert-manager.io/pki.{authority}");
    let objects = printed(&rig);
    let kinds: Vec<&str> = objects
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[3..], ["RoleBinding", "Role"]);
    let role = objects.last().unwrap();
    assert_eq!(role["metadata"]["namespace"], "pki");
    assert_eq!(
        role["rules"],
        json!([{
            "apiGroups": ["cert-manager.io"],
            "resources": ["signers"],
            "resourceNames": ["ca", "etcd-ca", "front-proxy-ca"],
            "verbs": ["reference"],
        }])
    );
}

// ---- what is asked ----

#[test]
fn a_request_says_all_that_is_wanted() {
    let rig = KubernetesRig::new();
    let request = request(CertName::EtcdServer);
    let (ticket, note) = pending(run(rig.signer().submit(&request)));
    let object = rig.only();
    assert_eq!(ticket.as_str(), name_of(&object));
    assert!(name_of(&object).starts_with("nodepki-cp1-etcd-server-"));
    let spec = &object["spec"];
    assert_eq!(
        spec["signerName"],
        format!("pki.example.com/etcd-ca.r{}", rig.corner)
    );
    assert_eq!(
        spec["usages"],
        json!([
            "digital signature",
            "key encipherment",
            "server auth",
            "client auth"
        ])
    );
    assert_eq!(spec["expirationSeconds"], 365 * 24 * 60 * 60);
    let pem = BASE64.decode(spec["request"].as_str().unwrap()).unwrap();
    assert_eq!(Csr::from_pem(&pem).unwrap().der(), request.csr.der());
    assert!(pem.starts_with(b"-----BEGIN CERTIFICATE REQUEST-----"));
    for (key, value) in [
        ("certificate", "etcd-server"),
        ("authority", "etcd-ca"),
        ("node", "cp1"),
        ("cluster", "kubernetes"),
    ] {
        assert_eq!(
            object["metadata"]["annotations"][format!("nodepki.io/{key}")],
            value
        );
    }
    for part in [
        ticket.as_str(),
        "waits for approval",
        "kubectl certificate approve",
        "pki.example.com/etcd-ca",
    ] {
        assert!(note.contains(part), "{note}");
    }
    rig.approve_only();
    let (_, note) = pending(run(rig.signer().poll(&request, &ticket)));
    for part in [
        "is approved (Reviewed: looks good)",
        "for the signer pki.example.com/etcd-ca",
        "controller runs",
    ] {
        assert!(note.contains(part), "{note}");
    }
}

#[test]
fn the_lifetime_is_asked_for_and_honoured() {
    let rig = KubernetesRig::new();
    let hour = Duration::from_secs(3600);
    for (name, most) in [(CertName::Apiserver, 3600), (CertName::EtcdServer, 3600)] {
        let request = request_of(short_lived(name, hour));
        let signer = rig.signer();
        let (ticket, _) = pending(run(signer.submit(&request)));
        rig.approve();
        let left = remaining(&issued(run(signer.poll(&request, &ticket))));
        assert!((most - 120..=most).contains(&left), "{name}: {left}");
    }
    // kube-controller-manager's own.
    let own = KubernetesRig::new().served("kubernetes.io/kube-apiserver-client");
    let request = request_of(short_lived(CertName::AdminConf, hour));
    let bytes = from_manager(&own, &request);
    let left = remaining(&bytes);
    assert!((3400..=3600).contains(&left), "{left}");
    // The least that the API takes, and what is below it.
    let shortest = short_lived(CertName::Apiserver, Duration::from_secs(600));
    pending(run(rig.signer().submit(&request_of(shortest))));
    let shorter = short_lived(CertName::Apiserver, Duration::from_secs(599));
    let rejection = rig.signer().preflight(&shorter).unwrap_err().to_string();
    for part in ["10m", "9m59s", "requestLifetime: false"] {
        assert!(rejection.contains(part), "{rejection}");
    }
    let error = run(rig.signer().submit(&request_of(shorter.clone()))).unwrap_err();
    assert_eq!(error.class, Class::Permanent, "{error}");
    assert!(error.to_string().contains("422"), "{error}");
    // Left to the signer.
    let mut silent = KubernetesRig::new();
    silent.access.push_str(", requestLifetime: false");
    silent.signer().preflight(&shorter).unwrap();
    pending(run(silent.signer().submit(&request_of(shorter))));
    assert_eq!(silent.only()["spec"]["expirationSeconds"], Value::Null);
}

/// Approved by a person, signed by kube-controller-manager.
fn from_manager(rig: &KubernetesRig, request: &Request) -> Vec<u8> {
    let signer = rig.signer();
    signer.preflight(&request.wanted).unwrap();
    let (ticket, _) = pending(run(signer.submit(request)));
    let yes = condition("Approved", "Reviewed", "");
    rig.cluster
        .person("approver", &[])
        .decide(ticket.as_str(), yes);
    issued(settled_answer(signer.as_ref(), request, &ticket))
}

#[test]
fn leaf_and_intermediate_make_a_chain() {
    let mut rig = KubernetesRig::new();
    rig.chained = true;
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    rig.approve();
    let bytes = issued(run(rig.signer().poll(&request, &ticket)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    let chain = nodepki::x509::Chain::from_answer(&bytes, request.csr.public_key()).unwrap();
    assert_eq!(chain.intermediates().len(), 1);
    // OpenSSL builds the same.
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("chain.pem"), chain.to_pem()).unwrap();
    openssl(
        &[
            "verify",
            "-x509_strict",
            "-CAfile",
            rig.authorities().join("etcd/ca.crt").to_str().unwrap(),
            "-untrusted",
            dir.path().join("chain.pem").to_str().unwrap(),
            dir.path().join("chain.pem").to_str().unwrap(),
        ],
        b"",
    );
}

#[test]
fn cert_managers_names_bring_its_annotation_and_usages() {
    for (signer_name, issuer) in [
        (
            "clusterissuers.cert-manager.io/{authority}.my",
            "ClusterIssuer etcd-ca.my.r",
        ),
        (
            "issuers.cert-manager.io/pki.{authority}",
            "Issuer pki/etcd-ca.r",
        ),
    ] {
        let rig = KubernetesRig::new();
        let name = format!("{signer_name}.r{}", rig.corner);
        let rig = rig.served(&name);
        let request = request(CertName::EtcdServer);
        let (ticket, note) = pending(run(rig.signer().submit(&request)));
        assert!(
            note.contains("cert-manager does not do by itself"),
            "{note}"
        );
        let object = rig.only();
        assert_eq!(
            object["metadata"]["annotations"]["experimental.cert-manager.io/request-duration"],
            "8760h"
        );
        assert_same_usages(&object["spec"]);
        rig.approve_only();
        let (_, note) = pending(run(rig.signer().poll(&request, &ticket)));
        for part in [
            issuer,
            "ExperimentalCertificateSigningRequestControllers=true",
        ] {
            assert!(note.contains(part), "{note}");
        }
        rig.approve();
        let bytes = issued(run(rig.signer().poll(&request, &ticket)));
        assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    }
    let rig = KubernetesRig::new();
    pending(run(rig.signer().submit(&request(CertName::EtcdServer))));
    let annotations = rig.only()["metadata"]["annotations"].to_string();
    assert!(!annotations.contains("cert-manager"), "{annotations}");
}

/// The real controllers of cert-manager, and only an approver beside them.
#[test]
fn cert_manager_itself_signs() {
    let mut rig = KubernetesRig::new();
    let (corner, namespace) = (rig.corner, format!("real-{}", rig.corner));
    rig.cluster.new_namespace(&namespace);
    let _controllers = rig
        .cluster
        .start_cert_manager(&namespace, &format!("r{corner}"));
    rig = rig.served(&format!(
        "issuers.cert-manager.io/{namespace}.k8s-{{authority}}.r{corner}"
    ));
    let token = rig.cluster.new_bootstrap_token(
        "nodepk",
        "0123456789abcdef",
        "system:bootstrappers:nodepki",
    );
    write_secret(rig.token_file(), &token);

    // Without the right to name the Issuer.
    let refused = request(CertName::EtcdPeer);
    let signer = rig.signer();
    let (ticket, _) = pending(run(signer.submit(&refused)));
    rig.approve_only();
    let error = settled_answer(signer.as_ref(), &refused, &ticket).unwrap_err();
    assert_eq!(error.class, Class::Permanent, "{error}");
    for part in [
        "DeniedReference",
        "Requester may not reference Namespaced Issuer",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }

    // With it, as printed.
    let admin = rig.cluster.admin();
    for object in &printed(&rig)[3..] {
        let kind = object["kind"].as_str().unwrap().to_ascii_lowercase();
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        admin.create(&format!("{rbac}/namespaces/{namespace}/{kind}s"), object);
    }
    let allowed = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "spec": {"resourceAttributes": {"namespace": namespace, "verb": "reference", "group": "cert-manager.io",
                                        "resource": "signers", "name": format!("k8s-etcd-ca.r{corner}")}}});
    let person = rig.cluster.bearer(&token);
    let begin = Instant::now();
    while person.create(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        &allowed,
    )["status"]["allowed"]
        != true
    {
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
    let short = request_of(short_lived(CertName::EtcdServer, Duration::from_secs(7200)));
    let (ticket, _) = pending(run(signer.submit(&short)));
    rig.approve_only();
    let bytes = issued(settled_answer(signer.as_ref(), &short, &ticket));
    assert_eq!(verdict(&short, &bytes, &rig.authorities()), "");
    let left = remaining(&bytes);
    assert!((7000..=7200).contains(&left), "{left}");

    let node = node(&rig);
    let ran = Ran::of(&mut node.ask_command("0s"));
    assert_eq!(ran.code, Some(75), "{}", ran.said());
    rig.approve_only();
    Ran::of(&mut node.ask_command("20s")).done();
    node.assert_sound(&CertName::KUBEADM);
}

// ---- Kubernetes' own signers ----

#[test]
fn kubernetes_own_signers_are_offered_only_what_they_sign() {
    let opened = |name: &str| KubernetesRig::new().served(name).signer();
    let masters = || {
        let mut wanted = wanted(CertName::AdminConf);
        wanted.name = CertName::SuperAdminConf;
        wanted.profile.subject.organizations = vec!["system:masters".to_owned()];
        wanted
    };
    let clients = opened("kubernetes.io/kube-apiserver-client");
    let kubelets = opened("kubernetes.io/kube-apiserver-client-kubelet");
    let servers = opened("kubernetes.io/kubelet-serving");
    for signer in [&clients, &kubelets] {
        signer.preflight(&wanted(CertName::KubeletConf)).unwrap();
    }
    clients.preflight(&wanted(CertName::AdminConf)).unwrap();
    servers
        .preflight(&wanted(CertName::KubeletServing))
        .unwrap();
    for (signer, wanted, part) in [
        (
            &clients,
            wanted(CertName::Apiserver),
            "for client auth alone, and not for server auth",
        ),
        (&clients, masters(), "refuses system:masters"),
        (&clients, wanted(CertName::EtcdServer), "not with etcd-ca"),
        (
            &clients,
            wanted(CertName::FrontProxyClient),
            "not with front-proxy-ca",
        ),
        (
            &kubelets,
            wanted(CertName::KubeletServing),
            "for client auth alone, and not for server auth",
        ),
        (
            &kubelets,
            wanted(CertName::AdminConf),
            "CN=system:node:… alone, and not for O=kubeadm:cluster-admins",
        ),
        (
            &servers,
            wanted(CertName::KubeletConf),
            "it wants a subject alternative name",
        ),
        (&servers, wanted(CertName::Apiserver), "O=system:nodes"),
    ] {
        let rejection = signer.preflight(&wanted).unwrap_err().to_string();
        for part in [part, "kubernetes.io/", wanted.name.as_str()] {
            assert!(rejection.contains(part), "{rejection}");
        }
    }
}

#[test]
fn kubernetes_own_signers_sign() {
    let rig = KubernetesRig::new().served("kubernetes.io/kube-apiserver-client");
    let request = request(CertName::AdminConf);
    let bytes = from_manager(&rig, &request);
    assert_signed_by_cluster(&rig, &request, &bytes);
    let text = String::from_utf8(openssl(
        &[
            "x509",
            "-noout",
            "-subject",
            "-ext",
            "extendedKeyUsage,keyUsage,basicConstraints",
        ],
        &bytes,
    ))
    .unwrap();
    for part in [
        "O = kubeadm:cluster-admins, CN = kubernetes-admin",
        "TLS Web Client Authentication",
        "CA:FALSE",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // Approved by kube-controller-manager itself.
    let rig = KubernetesRig::new().served("kubernetes.io/kube-apiserver-client-kubelet");
    let mut wanted = wanted(CertName::KubeletConf);
    wanted.profile.subject.common_name = format!("system:node:n{}", rig.corner);
    let request = request_of(wanted);
    let signer = rig.signer();
    signer.preflight(&request.wanted).unwrap();
    let (ticket, note) = pending(run(signer.submit(&request)));
    assert!(note.contains("nodeclient"), "{note}");
    let bytes = issued(settled_answer(signer.as_ref(), &request, &ticket));
    assert_signed_by_cluster(&rig, &request, &bytes);
}

/// A node whose `ca` is the CA of the API server that it asks: what kube-controller-manager signs comes from there, the
/// rest from somebody else who has that CA.
#[test]
fn a_node_of_the_cluster_itself_mixes_kubernetes_own_signers_with_another() {
    let mut rig = KubernetesRig::new();
    let authorities = rig.scratch().join("authorities");
    fs::create_dir_all(authorities.join("etcd")).unwrap();
    for file in [
        "etcd/ca.crt",
        "etcd/ca.key",
        "front-proxy-ca.crt",
        "front-proxy-ca.key",
    ] {
        fs::copy(rig.authorities().join(file), authorities.join(file)).unwrap();
    }
    fs::copy(rig.cluster.ca_file(), authorities.join("ca.crt")).unwrap();
    fs::copy(
        rig.cluster.ca_file().with_extension("key"),
        authorities.join("ca.key"),
    )
    .unwrap();
    rig.authorities = authorities;
    let mut signers = format!("{{default: \"{}\"", rig.signer_name);
    let clients = [
        "apiserver-kubelet-client",
        "admin.conf",
        "controller-manager.conf",
        "scheduler.conf",
    ];
    for name in clients {
        signers.push_str(&format!(", {name}: kubernetes.io/kube-apiserver-client"));
    }
    signers.push_str(", kubelet.conf: kubernetes.io/kube-apiserver-client-kubelet}");
    let text = rig
        .settings()
        .replace(&format!("\"{}\"", rig.signer_name), &signers);
    let node = node(&rig);
    fs::write(node.outside("config.yaml"), text).unwrap();
    let host = format!("cp1-{}", rig.corner);
    node.configure(&crate::node::INIT.replace("cp1", &host));
    let ran = Ran::of(&mut node.ask_command("0s"));
    assert_eq!(ran.code, Some(75), "{}", ran.said());
    let approver = rig.cluster.person("approver", &[]);
    let mut approved = 0;
    for object in rig.cluster.admin().list(CSRS) {
        let built_in = object["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client";
        if built_in && name_of(&object).starts_with(&format!("nodepki-{host}-")) {
            approver.decide(name_of(&object), condition("Approved", "Reviewed", ""));
            approved += 1;
        }
    }
    assert_eq!(approved, clients.len());
    rig.approve();
    Ran::of(&mut node.ask_command("20s")).done();
    node.assert_sound(&CertName::KUBEADM);
    let before = node.snapshot();
    Ran::of(&mut node.ask_command("0s")).done();
    before.unchanged(&node.snapshot());
}

/// By the CA of the cluster, and so by none of the three that the node trusts.
fn assert_signed_by_cluster(rig: &KubernetesRig, request: &Request, bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("etcd")).unwrap();
    fs::copy(rig.cluster.ca_file(), dir.path().join("ca.crt")).unwrap();
    assert_eq!(verdict(request, bytes, dir.path()), "");
    assert!(!verdict(request, bytes, &rig.authorities()).is_empty());
}

#[test]
fn admission_says_never_and_a_signer_says_failed() {
    // Around the preflight, which would have stopped both.
    let rig = KubernetesRig::new().served("kubernetes.io/kube-apiserver-client");
    let mut masters = wanted(CertName::AdminConf);
    masters.profile.subject.organizations = vec!["system:masters".to_owned()];
    let error = run(rig.signer().submit(&request_of(masters))).unwrap_err();
    assert_eq!(error.class, Class::Permanent, "{error}");
    for part in [
        "403",
        "system:masters group is not allowed",
        "admin.conf",
        "another signer",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let mut serving = wanted(CertName::Apiserver);
    serving.profile.usages = vec![ExtendedUsage::ServerAuth];
    let request = request_of(serving);
    let signer = rig.signer();
    let (ticket, _) = pending(run(signer.submit(&request)));
    let yes = condition("Approved", "Reviewed", "");
    rig.cluster
        .person("approver", &[])
        .decide(ticket.as_str(), yes);
    let error = settled_answer(signer.as_ref(), &request, &ticket).unwrap_err();
    assert_eq!(error.class, Class::Permanent, "{error}");
    for part in [
        "SignerValidationFailure",
        "invalid usage for client certificate: server auth",
        ticket.as_str(),
        "kubectl delete certificatesigningrequest",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let (_, object) = rig
        .cluster
        .admin()
        .get(&format!("{CSRS}/{}", ticket.as_str()));
    assert_eq!(conditions(&object), ["Approved", "Failed"]);
}

// ---- once and no more ----

#[test]
fn what_is_there_is_adopted() {
    let rig = KubernetesRig::new();
    let request = request(CertName::EtcdServer);
    let (first, _) = pending(run(rig.signer().submit(&request)));
    let (again, _) = pending(run(rig.signer().submit(&request.again(
        2,
        crate::signing::now(),
        None,
    ))));
    assert_eq!(first, again);
    rig.only();
    rig.approve();
    // Issued meanwhile: the same 409, another answer.
    let bytes = issued(run(rig.signer().submit(&request)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    let found = run(rig.signer().recover(&request, None)).unwrap();
    assert_eq!(found, Some(Answer::Issued(bytes)));
    rig.only();
}

#[test]
fn a_name_that_somebody_sits_on_is_left_to_them() {
    // Another request under the name, and the same request by somebody else.
    for same in [false, true] {
        let rig = KubernetesRig::new();
        let request = request(CertName::EtcdServer);
        // Learned as a thief would, from an earlier run of ours.
        let (ticket, _) = pending(run(rig.signer().submit(&request)));
        let mut theirs = rig.only();
        let admin = rig.cluster.admin();
        admin.delete(&path_of(&theirs));
        theirs["metadata"] = json!({"name": ticket.as_str()});
        theirs["status"] = json!({});
        if !same {
            let other = crate::signing::request(CertName::EtcdServer);
            theirs["spec"]["request"] = json!(BASE64.encode(other.csr.to_pem()));
        }
        let thief = rig.cluster.person("thief", &[NODES]);
        thief.create(CSRS, &theirs);

        let (ours, _) = pending(run(rig.signer().submit(&request)));
        assert_ne!(ours, ticket);
        assert_eq!(rig.objects().len(), 2);
        // Found again by other processes, under the name that only this node knows.
        assert_eq!(pending(run(rig.signer().submit(&request))).0, ours);
        assert_eq!(
            pending(run(rig.signer().recover(&request, None)).map(Option::unwrap)).0,
            ours
        );
        assert_eq!(rig.objects().len(), 2);
        assert_eq!(
            run(rig.signer().poll(&request, &ticket)).unwrap(),
            Answer::Gone
        );
        rig.approve();
        let bytes = issued(run(rig.signer().poll(&request, &ours)));
        assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
        // Another node knows another salt.
        let elsewhere = tempfile::tempdir().unwrap();
        let (settings, _) = Settings::from_fragments(&[("s", rig.settings())]).unwrap();
        let (_, config) = settings.signer_of(Authority::Ca).unwrap();
        let other = opened_with_memory(config, elsewhere.path());
        let other = pending(run(other.submit(&request))).0;
        assert!(other != ours && other != ticket);
    }
}

#[test]
fn what_was_collected_is_asked_for_again_with_the_same_key() {
    let rig = KubernetesRig::new();
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    rig.cluster.admin().delete(&path_of(&rig.only()));
    assert_eq!(
        run(rig.signer().poll(&request, &ticket)).unwrap(),
        Answer::Gone
    );
    assert_eq!(run(rig.signer().recover(&request, None)).unwrap(), None);
    assert!(rig.objects().is_empty());
    let (again, _) = pending(run(rig.signer().submit(&request)));
    assert_eq!(again, ticket);

    // The same by the whole program.
    let rig = KubernetesRig::new();
    let node = node(&rig);
    assert_eq!(Ran::of(&mut node.ask_command("0s")).code, Some(75));
    let sent = rig.sent();
    for object in rig.objects() {
        rig.cluster.admin().delete(&path_of(&object));
    }
    assert_eq!(Ran::of(&mut node.ask_command("0s")).code, Some(75));
    assert_eq!(rig.sent(), sent);
    rig.approve();
    Ran::of(&mut node.ask_command("0s")).done();
    node.assert_sound(&CertName::KUBEADM);
}

#[test]
fn the_cluster_cleans_up_behind_its_decisions() {
    let rig = KubernetesRig::new();
    let (old, fresh, refused) = (
        request(CertName::EtcdServer),
        request(CertName::EtcdPeer),
        request(CertName::Apiserver),
    );
    let file = |request: &Request| pending(run(rig.signer().submit(request))).0;
    let (old_ticket, fresh_ticket, refused_ticket) = (file(&old), file(&fresh), file(&refused));
    let approver = rig.cluster.person("approver", &[]);
    let hours_ago = (crate::signing::now() - Duration::from_secs(2 * 3600))
        .replace_nanosecond(0)
        .unwrap();
    let hours_ago = hours_ago
        .format(&time::format_description::well_known::Rfc3339)
        .unwrap();
    let mut yes = condition("Approved", "Reviewed", "");
    let mut no = condition("Denied", "Policy", "not on a Friday");
    for decision in [&mut yes, &mut no] {
        decision["lastUpdateTime"] = json!(hours_ago);
        decision["lastTransitionTime"] = json!(hours_ago);
    }
    approver.decide(old_ticket.as_str(), yes);
    approver.decide(refused_ticket.as_str(), no);
    denied(run(rig.signer().poll(&refused, &refused_ticket)));
    rig.sign_approved();
    assert_eq!(rig.objects().len(), 3);
    let mut cleaner = rig.cluster.start_cleaner();
    cleaner.wait_until(Duration::from_secs(60), || rig.objects().len() == 1);
    // Signed and never fetched; pending for a while; denied.
    assert_eq!(
        run(rig.signer().poll(&old, &old_ticket)).unwrap(),
        Answer::Gone
    );
    pending(run(rig.signer().poll(&fresh, &fresh_ticket)));
    let reason = denied(run(rig.signer().poll(&refused, &refused_ticket)));
    assert!(reason.contains("not on a Friday"), "{reason}");
}

#[test]
fn a_denied_request_is_never_made_again() {
    let rig = KubernetesRig::new();
    let request = request(CertName::Apiserver);
    let denial = rig.deny(&request).unwrap();
    let reason = denied(run(denial
        .signer
        .poll(&request, denial.ticket.as_ref().unwrap())));
    for part in [
        "Policy: not on a Friday",
        "CertificateSigningRequest nodepki-cp1-apiserver-",
        "/var/lib/nodepki/pending/apiserver",
    ] {
        assert!(reason.contains(part), "{reason}");
    }
    rig.cluster.admin().delete(&path_of(&rig.only()));
    for _ in 0..2 {
        assert_eq!(denied(run(rig.signer().submit(&request))), reason);
        let found = run(rig.signer().recover(&request, None)).map(Option::unwrap);
        assert_eq!(denied(found), reason);
        assert_eq!(
            denied(run(rig
                .signer()
                .poll(&request, denial.ticket.as_ref().unwrap()))),
            reason
        );
    }
    assert!(rig.objects().is_empty());
    // Another key is another request.
    pending(run(rig
        .signer()
        .submit(&crate::signing::request(CertName::Apiserver))));
}

#[test]
fn a_denial_outlives_the_program() {
    let rig = KubernetesRig::new();
    let node = node(&rig);
    assert_eq!(Ran::of(&mut node.ask_command("0s")).code, Some(75));
    let approver = rig.cluster.person("approver", &[]);
    for object in rig.objects() {
        if name_of(&object).contains("-etcd-peer-") {
            approver.decide(
                name_of(&object),
                condition("Denied", "Policy", "not on a Friday"),
            );
        }
    }
    let first = Ran::of(&mut node.ask_command("0s"));
    assert_ne!(first.code, Some(0));
    for part in ["etcd-peer", "not on a Friday"] {
        assert!(first.said().contains(part), "{}", first.said());
    }
    for object in rig.objects() {
        if name_of(&object).contains("-etcd-peer-") {
            rig.cluster.admin().delete(&path_of(&object));
        }
    }
    let sent = rig.sent();
    let again = Ran::of(&mut node.ask_command("0s"));
    assert_eq!(again.code, first.code, "{}", again.said());
    assert!(again.said().contains("not on a Friday"), "{}", again.said());
    assert_eq!(rig.sent(), sent);
}

/// A node whose authorities are those of the rig.
fn node(rig: &KubernetesRig) -> Node {
    let node = Node::new();
    for authority in Authority::ALL {
        let file = format!("{}.crt", authority.base_name());
        let pem = fs::read(rig.authorities().join(&file)).unwrap();
        node.write(format!("/etc/kubernetes/pki/{file}"), &pem);
    }
    fs::write(node.outside("config.yaml"), rig.settings()).unwrap();
    node
}

#[test]
fn a_certificate_for_another_key_is_not_installed() {
    let rig = KubernetesRig::new();
    let node = node(&rig);
    assert_eq!(Ran::of(&mut node.ask_command("0s")).code, Some(75));
    rig.approve_only();
    let signer = rig.cluster.person("signer", &[]);
    let key = PrivateKey::generate(nodepki::x509::KeyAlgorithm::EcdsaP256).unwrap();
    for object in rig.objects() {
        if name_of(&object).contains("-etcd-server-") {
            let wanted = wanted(CertName::EtcdServer);
            let other = Csr::create(&wanted.profile, &key, UsageExtensions::Requested).unwrap();
            let mut forged = object.clone();
            forged["spec"]["request"] = json!(BASE64.encode(other.to_pem()));
            let pem = rig.signed(&forged);
            signer.answer(&path_of(&object), |object| {
                object["status"]["certificate"] = json!(BASE64.encode(&pem));
            });
        }
    }
    rig.sign_approved();
    let ran = Ran::of(&mut node.ask_command("0s"));
    assert_eq!(ran.code, Some(65), "{}", ran.said());
    assert!(ran.said().contains("etcd-server"), "{}", ran.said());
    assert!(node.leaf(CertName::EtcdServer).is_none());
}

// ---- what goes wrong on the way ----

pub(crate) fn gateway() -> Gateway {
    let cluster = kubernetes();
    let ca = fs::read(cluster.ca_file()).unwrap();
    Gateway::to(Some(Upstream::tls(
        ("127.0.0.1", cluster.port()),
        &ca,
        "localhost",
    )))
}

/// An answer in `tests/golden/signers/kubernetes`, whose name has its status.
fn recorded(file: &str, headers: Vec<(&'static str, String)>) -> Action {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/signers/kubernetes");
    let code = file.split(['-', '.']).nth(1).unwrap().parse().unwrap();
    Action::Status(code, headers, fs::read(dir.join(file)).unwrap())
}

/// What the real server does not say on demand, or only to other requests.
#[test]
fn refusals_are_what_they_mean_and_not_what_their_number_says() {
    let gateway = gateway();
    let rig = KubernetesRig::new().behind(&gateway);
    let signer = rig.signer();
    let request = request(CertName::EtcdServer);
    let later = Some(Duration::from_secs(7));
    let answers = [
        (
            "create-400-base64.json",
            Class::Permanent,
            None,
            "illegal base64",
        ),
        (
            "create-401.json",
            Class::Auth,
            None,
            "token or a client certificate",
        ),
        (
            "create-403-rbac.json",
            Class::Auth,
            None,
            "system:node-bootstrapper",
        ),
        (
            "create-403-webhook.json",
            Class::Permanent,
            None,
            "no names outside example.com",
        ),
        (
            "create-403-policy.json",
            Class::Permanent,
            None,
            "another signer",
        ),
        (
            "create-403-not-ready.json",
            Class::Transient,
            None,
            "not yet ready",
        ),
        (
            "create-403-quota.json",
            Class::Transient,
            None,
            "exceeded quota",
        ),
        ("create-403-proxy.html", Class::Auth, None, "by the proxy"),
        (
            "create-404-no-resource.json",
            Class::Config,
            None,
            "is an API server's",
        ),
        (
            "create-409-conflict.json",
            Class::Transient,
            None,
            "has been modified",
        ),
        ("create-413.json", Class::Permanent, None, "too large"),
        (
            "create-422.json",
            Class::Permanent,
            None,
            "Unsupported value",
        ),
        (
            "create-429-flow.txt",
            Class::Transient,
            None,
            "try again later",
        ),
        (
            "create-429-details.json",
            Class::Transient,
            later,
            "too many requests",
        ),
        (
            "create-500-webhook.json",
            Class::Transient,
            None,
            "failed calling webhook",
        ),
        ("create-503.json", Class::Transient, None, "shutting down"),
        (
            "create-504-timeout.json",
            Class::Transient,
            later,
            "did not complete",
        ),
    ];
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/signers/kubernetes");
    let files = fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().file_name());
    let recordings = files.filter(|name| name.to_str().unwrap().starts_with("create-"));
    assert_eq!(recordings.count(), answers.len());
    for (file, class, after, part) in answers {
        gateway.behave();
        gateway.rule(Rule::on("POST", CSRS).then(recorded(file, Vec::new())));
        let error = run(signer.submit(&request)).unwrap_err();
        assert_eq!(error.class, class, "{file}: {error}");
        assert_eq!(error.retry_after, after, "{file}: {error}");
        let code = &file["create-".len()..][..3];
        for part in [
            "kubernetes:https://127.0.0.1",
            "etcd-server",
            "etcd-ca",
            code,
            part,
        ] {
            assert!(error.to_string().contains(part), "{file}: {part}: {error}");
        }
    }
    gateway.behave();
    let retry = vec![("Retry-After", "30".to_owned())];
    gateway.rule(Rule::on("*", CSRS).then(recorded("create-429-details.json", retry)));
    let error = run(signer.recover(&request, None)).unwrap_err();
    assert_eq!(error.retry_after, Some(Duration::from_secs(30)), "{error}");
    assert!(rig.objects().is_empty());
}

#[test]
fn a_missing_api_is_not_a_missing_request() {
    let cluster = kubernetes();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("admin.conf");
    let text = cluster.kubeconfig_of("me", &["system:masters"]);
    write_secret(
        &kubeconfig,
        text.replace(&cluster.url(), &format!("{}/elsewhere", cluster.url())),
    );
    let rig = KubernetesRig::new().reached(format!("kubeconfig: {}", kubeconfig.display()));
    let request = request(CertName::Apiserver);
    for error in [
        run(rig.signer().submit(&request)).unwrap_err(),
        run(rig.signer().recover(&request, None)).unwrap_err(),
    ] {
        assert_eq!(error.class, Class::Config, "{error}");
        for part in ["404", "is an API server's"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

#[test]
fn a_lost_answer_is_found_again() {
    let gateway = gateway();
    let rig = KubernetesRig::new().behind(&gateway);
    let request = request(CertName::EtcdServer);
    for action in [Action::DropAfterForward, Action::HalfBody] {
        gateway.behave();
        gateway.rule(Rule::on("POST", CSRS).times(1).then(action));
        let error = run(rig.signer().submit(&request)).unwrap_err();
        assert_eq!(error.class, Class::Ambiguous, "{error}");
        assert!(error.to_string().contains("etcd-server"), "{error}");
        let found = run(rig.signer().recover(&request, None)).map(Option::unwrap);
        let (ticket, _) = pending(found);
        assert_eq!(pending(run(rig.signer().submit(&request))).0, ticket);
        rig.only();
        // Nothing is created by asking.
        gateway.behave();
        gateway.rule(
            Rule::on("GET", CSRS)
                .times(1)
                .then(Action::DropAfterForward),
        );
        let error = run(rig.signer().poll(&request, &ticket)).unwrap_err();
        assert_eq!(error.class, Class::Transient, "{error}");
        rig.cluster.admin().delete(&path_of(&rig.only()));
    }
    // By the whole program, which loses every first answer and asks for nothing twice.
    gateway.behave();
    gateway.rule(
        Rule::on("POST", CSRS)
            .times(12)
            .then(Action::DropAfterForward),
    );
    let node = node(&rig);
    let ran = Ran::of(&mut node.ask_command("5s"));
    assert_eq!(ran.code, Some(75), "{}", ran.said());
    assert_eq!(rig.objects().len(), 12);
    rig.approve();
    Ran::of(&mut node.ask_command("1s")).done();
    assert_eq!(rig.objects().len(), 12);
    node.assert_sound(&CertName::KUBEADM);
}

#[test]
fn answers_that_make_no_sense_are_refused() {
    let gateway = gateway();
    let rig = KubernetesRig::new().behind(&gateway);
    let signer = rig.signer();
    let request = request(CertName::EtcdServer);
    let changed = |field: &'static str, value: Value| {
        Action::Replace(Box::new(move |mut reply: Reply| {
            let mut object: Value = serde_json::from_slice(&reply.body).unwrap();
            *object.pointer_mut(field).unwrap() = value.clone();
            reply.body = object.to_string().into_bytes();
            reply
        }))
    };
    for (action, class, part) in [
        (
            Action::Status(200, Vec::new(), b"<html>log in</html>".to_vec()),
            Class::Permanent,
            "no JSON",
        ),
        (
            Action::Status(200, Vec::new(), b"{}".to_vec()),
            Class::Permanent,
            "no CertificateSigningRequest",
        ),
        (
            Action::Status(201, Vec::new(), Vec::new()),
            Class::Permanent,
            "no JSON",
        ),
        (Action::Huge, Class::Permanent, "bytes"),
        (Action::Garbage, Class::Ambiguous, "127.0.0.1"),
        (
            Action::Redirect(307, "https://127.0.0.2:1/".to_owned()),
            Class::Config,
            "127.0.0.2",
        ),
        (
            changed("/spec/usages", json!(["any"])),
            Class::Permanent,
            "changed what it asks for",
        ),
        (
            changed("/status", json!({"certificate": "%%"})),
            Class::Permanent,
            "no base64",
        ),
    ] {
        gateway.behave();
        gateway.rule(Rule::on("POST", CSRS).times(1).then(action));
        let error = run(signer.submit(&request)).unwrap_err();
        assert_eq!(error.class, class, "{part}: {error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
        for object in rig.objects() {
            rig.cluster.admin().delete(&path_of(&object));
        }
    }
    let token = fs::read_to_string(rig.token_file()).unwrap();
    let token = format!("Bearer {}", token.trim());
    for request in gateway.requests() {
        assert_eq!(request.header("authorization"), Some(token.as_str()));
    }
}

#[test]
fn an_api_server_that_cannot_say_who_asks_is_asked_all_the_same() {
    let gateway = gateway();
    gateway.rule(Rule::on("POST", "/selfsubject").then(Action::Status(
        404,
        Vec::new(),
        b"404 page not found".to_vec(),
    )));
    let rig = KubernetesRig::new().behind(&gateway);
    let signer = rig.signer();
    run(signer.probe()).unwrap();
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(signer.submit(&request)));
    assert_eq!(pending(run(signer.submit(&request))).0, ticket);
    rig.only();
    gateway.behave();
    gateway.rule(Rule::on("POST", "/selfsubject").then(Action::Status(
        503,
        Vec::new(),
        Vec::new(),
    )));
    assert_eq!(run(signer.probe()).unwrap_err().class, Class::Transient);
}

#[test]
fn exit_codes_are_those_of_the_causes() {
    let cluster = kubernetes();
    let of = |access: String, signer_name: &str| {
        let rig = KubernetesRig::new().reached(access).served(signer_name);
        Ran::of(&mut node(&rig).ask_command("0s"))
    };
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    let credential = format!("tokenFile: {}", token.display());
    let good = direct(&cluster.url(), &cluster.ca_file(), &credential);
    let name = "pki.example.com/{authority}";
    write_secret(&token, "abcdef.ffffffffffffffff");
    let ran = of(good.clone(), name);
    assert_eq!(ran.code, Some(77), "{}", ran.said());
    write_secret(&token, "abcdef.0123456789abcdef");
    let nobody = format!("https://127.0.0.1:{}", crate::servers::free_port());
    let ran = of(direct(&nobody, &cluster.ca_file(), &credential), name);
    assert_eq!(ran.code, Some(69), "{}", ran.said());
    let stranger = cluster.authorities().join("ca.crt");
    let ran = of(direct(&cluster.url(), &stranger, &credential), name);
    assert_eq!(ran.code, Some(78), "{}", ran.said());
    // Refused before a key is made.
    let ran = of(good, "kubernetes.io/kube-apiserver-client");
    assert_eq!(ran.code, Some(78), "{}", ran.said());
    for part in [
        "etcd-server",
        "super-admin.conf",
        "system:masters",
        "front-proxy-client",
    ] {
        assert!(ran.said().contains(part), "{}", ran.said());
    }
}

#[test]
fn a_credential_of_the_unit_is_a_token_like_any_other() {
    let rig = KubernetesRig::new();
    let access = direct(
        &rig.cluster.url(),
        &rig.cluster.ca_file(),
        "tokenFile: 'credential:join'",
    );
    let rig = rig.reached(access);
    let credentials = tempfile::tempdir().unwrap();
    fs::write(credentials.path().join("join"), "abcdef.0123456789abcdef").unwrap();
    let node = node(&rig);
    let ran = Ran::of(&mut node.ask_command("0s"));
    assert_eq!(ran.code, Some(78), "{}", ran.said());
    assert!(ran.said().contains("LoadCredential="), "{}", ran.said());
    let mut command = node.ask_command("0s");
    command.env("CREDENTIALS_DIRECTORY", credentials.path());
    let ran = Ran::of(&mut command);
    assert_eq!(ran.code, Some(75), "{}", ran.said());
    assert_eq!(rig.objects().len(), CertName::KUBEADM.len());
    assert!(!ran.said().contains("0123456789abcdef"), "{}", ran.said());
}

// ---- configuration ----

#[test]
fn shown_keys_read_back_the_same() {
    for kind in ["kubernetes", "certManager"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden/signers")
            .join(kind);
        for file in ["keys.yaml", "keys-kubeconfig.yaml"] {
            let keys = fs::read_to_string(dir.join(file)).unwrap();
            let head = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nauthorities: {ca: {signer: k}}\n";
            let fragments = [(file, keys), ("authorities.yaml", head.to_owned())];
            let (settings, faults) =
                Settings::from_fragments(&fragments).unwrap_or_else(|faults| panic!("{faults}"));
            assert!(faults.is_empty(), "{faults}");
            let (_, config) = settings.signer_of(Authority::Ca).unwrap();
            let shown = json!({"signers": {"k": config.redacted()}}).to_string();
            let shown = format!(
                "{head}{}",
                nodepki::yaml::to_string(&serde_json::from_str::<Value>(&shown).unwrap()).unwrap()
            );
            let (again, _) = Settings::from_fragments(&[("shown", shown)]).unwrap();
            assert_eq!(
                again.signer_of(Authority::Ca).unwrap().1,
                config,
                "{kind} {file}"
            );
        }
    }
}

#[test]
fn faults_name_the_field_and_the_right_form() {
    let good = "server: https://h:6443, tls: {caFile: /ca}, tokenFile: /t";
    for (keys, parts) in [
        (
            format!("{good}, signerName: cert-manager.io/my-ca"),
            ["signerName", "clusterissuers.cert-manager.io/my-ca"],
        ),
        (
            format!("{good}, signerName: 'etcd'"),
            ["signerName", "DOMAIN/NAME"],
        ),
        (
            good.to_owned(),
            ["signerName", "pki.example.com/{authority}"],
        ),
        (
            format!(
                "{good}, signerName: {{default: a.b/c, apiserver: 'kubernetes.io/legacy-unknown'}}"
            ),
            ["signerName", "legacy-unknown"],
        ),
        (
            "server: https://h:6443, tls: {caFile: /ca}, signerName: a.b/c".to_owned(),
            ["has no credential", "tokenFile"],
        ),
        (
            "server: https://h:6443, tokenFile: /t, signerName: a.b/c".to_owned(),
            ["which API server is the right one", "tls.caFile"],
        ),
        (
            "tokenFile: /t, signerName: a.b/c".to_owned(),
            ["neither server nor kubeconfig", "https://HOST:6443"],
        ),
        (
            "kubeconfig: /k, tokenFile: /t, signerName: a.b/c".to_owned(),
            ["stands beside kubeconfig", "remove tokenFile"],
        ),
        (
            "kubeconfig: k, signerName: a.b/c".to_owned(),
            ["neither an absolute path nor credential:NAME", "kubeconfig"],
        ),
        (
            format!("{good}, signerName: a.b/c, signername: x"),
            ["unknown key", "signerName"],
        ),
    ] {
        let text = settings(&format!("kubernetes: {{{keys}}}"));
        let faults = match Settings::from_fragments(&[("c", text)]) {
            Ok((_, faults)) => faults,
            Err(faults) => faults,
        };
        assert!(faults.has_errors(), "{keys}");
        for part in parts {
            assert!(faults.to_string().contains(part), "{keys}: {faults}");
        }
    }
}

#[test]
fn a_signer_name_that_becomes_wrong_with_this_node_is_said_before_a_key_is_made() {
    let rig = KubernetesRig::new().served("pki.example.com/{cluster}");
    let text = rig.settings();
    let (settings, _) = Settings::from_fragments(&[("c", text)]).unwrap();
    assert!(settings.signer_of(Authority::Ca).is_some());
    rig.signer()
        .preflight(&wanted(CertName::Apiserver))
        .unwrap();
    let mut rig = KubernetesRig::new();
    rig.access
        .push_str(", signerName: {apiserver: pki.example.com/x}");
    let text = rig
        .settings()
        .replace(&format!(", signerName: \"{}\"", rig.signer_name), "");
    let (settings, faults) = Settings::from_fragments(&[("c", text)]).unwrap();
    assert!(faults.is_empty(), "{faults}");
    let (_, config) = settings.signer_of(Authority::Ca).unwrap();
    let signer = opened_with_memory(config, rig.scratch());
    signer.preflight(&wanted(CertName::Apiserver)).unwrap();
    let rejection = signer
        .preflight(&wanted(CertName::EtcdPeer))
        .unwrap_err()
        .to_string();
    for part in ["etcd-peer", "no signerName", "etcd-ca"] {
        assert!(rejection.contains(part), "{rejection}");
    }
}

#[test]
fn refuses_polled_request_that_another_user_created() {
    let rig = KubernetesRig::new();
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    let mut theirs = rig.only();
    let admin = rig.cluster.admin();
    admin.delete(&path_of(&theirs));
    theirs["metadata"] = json!({"name": ticket.as_str()});
    theirs["status"] = json!({});
    rig.cluster.person("thief", &[NODES]).create(CSRS, &theirs);
    // Approved and signed for the thief: the node does not take it.
    rig.approve();
    let polled = run(rig.signer().poll(&request, &ticket)).unwrap();
    assert_eq!(polled, Answer::Gone);
    let found = run(rig.signer().recover(&request, None)).unwrap();
    assert_eq!(found, None);
}

/// A bootstrap token lives for a day, and a signature may take longer.
#[test]
fn polls_own_request_with_new_credential() {
    let mut rig = KubernetesRig::new();
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    let group = "system:bootstrappers:nodepki";
    let secret = "fedcba9876543210";
    let token = rig.cluster.new_bootstrap_token("fedcb9", secret, group);
    write_secret(rig.token_file(), format!("{token}\n"));
    assert_eq!(pending(run(rig.signer().poll(&request, &ticket))).0, ticket);
    let recovered = run(rig.signer().recover(&request, None)).map(Option::unwrap);
    assert_eq!(pending(recovered).0, ticket);
    // Without what this node remembers of it, the creator decides.
    rig.dir = {
        let fresh = tempfile::tempdir().unwrap();
        write_secret(fresh.path().join("token"), format!("{token}\n"));
        fresh
    };
    let token_file = rig.token_file();
    rig.access = direct(
        &rig.cluster.url(),
        &rig.cluster.ca_file(),
        &format!("tokenFile: {}", token_file.display()),
    );
    let polled = run(rig.signer().poll(&request, &ticket)).unwrap();
    assert_eq!(polled, Answer::Gone);
}

#[test]
fn denied_and_failed_win_over_certificate() {
    let gateway = gateway();
    let rig = KubernetesRig::new().behind(&gateway);
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    rig.approve();
    let object = rig.only();
    assert!(object["status"]["certificate"].is_string(), "{object}");
    for (kind, words) in [("Failed", "it was revoked"), ("Denied", "not on a Friday")] {
        for status in ["True", ""] {
            gateway.behave();
            let condition =
                json!({"type": kind, "status": status, "reason": "R", "message": words});
            let changed = move |mut reply: Reply| {
                let mut object: Value = serde_json::from_slice(&reply.body).unwrap();
                let conditions = object["status"]["conditions"].as_array_mut().unwrap();
                conditions.push(condition.clone());
                reply.body = object.to_string().into_bytes();
                reply
            };
            gateway.rule(Rule::on("GET", CSRS).then(Action::Replace(Box::new(changed))));
            match (kind, run(rig.signer().poll(&request, &ticket))) {
                ("Failed", Err(error)) => {
                    assert_eq!(error.class, Class::Permanent, "{error}");
                    assert!(error.to_string().contains(words), "{error}");
                }
                ("Denied", Ok(Answer::Denied { reason })) => {
                    assert!(reason.contains(words), "{reason}");
                }
                (_, other) => panic!("{kind}: {other:?}"),
            }
        }
    }
}
