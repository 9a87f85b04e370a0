//! `kubernetes` against a real API server. The tests approve requests and sign them.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::http::{Call, Method};
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{
    Answer, FailureClass, Request, RequestedCertificate, Signer, SignerError, SignerKind, Ticket,
};
use nodepki::x509::{Csr, ExtendedUsage, PrivateKey, UsageExtensions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{Action, Gateway, Rule, Upstream};
use crate::node::{INIT, Ran};
use crate::rig::{Denial, Front, Rig, node};
use crate::servers::kubernetes::{
    CSRS, Kubernetes, NODES, add_condition, condition, kubernetes, sign,
};
use crate::signer_bad::verdict;
use crate::signer_setup::print_setup;
use crate::signing::{
    contains, denied, fails, issued, now, open, openssl, pending, recovered, rejects, request,
    request_for, run, settings, settings_with_etcd, wanted, write_secret,
};
use crate::time::{eventually, wait_until};

/// Signer names of its own on the shared cluster, and a bootstrap token.
pub(crate) struct KubernetesRig {
    cluster: &'static Kubernetes,
    dir: TempDir,
    corner: usize,
    /// Keys of the signer that say where the server is and who asks.
    access: String,
    signer_name: String,
    /// Whether the issued certificate comes with an intermediate.
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

    /// Uses a kubeconfig with this content.
    fn with_kubeconfig(self, text: impl AsRef<[u8]>) -> Self {
        let file = self.scratch().join("client.conf");
        write_secret(&file, text);
        self.reached(format!("kubeconfig: {}", file.display()))
    }

    /// Sends requests through a gateway.
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

    /// Opens the signer as in a new process.
    fn signer(&self) -> Rc<dyn Signer> {
        self.open(Authority::Ca)
    }

    /// Returns the CertificateSigningRequests of this rig.
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
        only(self.objects())
    }

    /// Sends a request, and returns its object.
    fn only_after(&self, request: &Request) -> Value {
        pending(run(self.signer().submit(request)));
        self.only()
    }

    fn delete(&self, object: &Value) {
        self.cluster.admin().delete(&path_of(object));
    }

    fn decide(&self, ticket: &Ticket, condition: Value) {
        let approver = self.cluster.person("approver", &[]);
        approver.decide(ticket.as_str(), condition);
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

    /// Signs a request. Its CSR and its spec must name the same usages, as cert-manager requires.
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

/// Returns the keys for a server and a credential.
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

/// Asserts that CSR and spec name the same usages. cert-manager compares them, the extended usages in order.
pub(crate) fn assert_same_usages(spec: &Value) {
    let pem = BASE64.decode(spec["request"].as_str().unwrap()).unwrap();
    let text = String::from_utf8(openssl(&["req", "-noout", "-text"], &pem)).unwrap();
    let usages: Vec<&str> = spec["usages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one.as_str().unwrap())
        .collect();
    let has_rsa_key = text.contains("rsaEncryption");
    let (plain, in_csr) = if has_rsa_key {
        (
            &["digital signature", "key encipherment"][..],
            "Digital Signature, Key Encipherment\n",
        )
    } else {
        (&["digital signature"][..], "Digital Signature\n")
    };
    assert_eq!(&usages[..plain.len()], plain);
    contains(&text, &[in_csr]);
    let extended: Vec<&str> = usages[plain.len()..]
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
    fn kind(&self) -> SignerKind {
        SignerKind::Kubernetes
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
        self.decide(&ticket, condition("Denied", "Policy", "not on a Friday"));
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

    fn sent(&self) -> Vec<String> {
        csrs(&self.objects())
    }
}

/// Returns the only object.
#[track_caller]
pub(crate) fn only(mut objects: Vec<Value>) -> Value {
    assert_eq!(objects.len(), 1, "{objects:?}");
    objects.remove(0)
}

/// Returns the sorted CSRs of requests, so a second request for one key shows.
pub(crate) fn csrs(objects: &[Value]) -> Vec<String> {
    let csrs = objects.iter().map(|one| one["spec"]["request"].as_str());
    let mut csrs: Vec<String> = csrs.map(|csr| csr.unwrap().to_owned()).collect();
    csrs.sort();
    csrs
}

/// Returns the front of a kind that uses the API server: the signer with `keys` for all authorities, that of etcd-ca at
/// another address.
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
        settings: Box::new(move |address, trust| {
            let fronted = keys.replace(&url, address).replace(&tls, trust);
            let signer = |keys: &str| format!("{{{kind}: {{{keys}}}}}");
            settings_with_etcd(&signer(&keys), &signer(&fronted))
        }),
        exceptions: &[],
    }
}

/// Returns a desired certificate with another lifetime.
fn short_lived(name: CertName, lifetime: Duration) -> RequestedCertificate {
    let mut wanted = wanted(name);
    wanted.profile.lifetime = lifetime;
    wanted
}

fn request_of(wanted: RequestedCertificate) -> Request {
    request_for(wanted, UsageExtensions::Requested).0
}

/// Polls until the answer is not pending.
fn settled_answer(
    signer: &dyn Signer,
    request: &Request,
    ticket: &Ticket,
) -> Result<Answer, SignerError> {
    eventually(|| match run(signer.poll(request, ticket)) {
        Ok(Answer::Pending { note, .. }) => Err(note),
        other => Ok(other),
    })
}

/// Returns the remaining seconds of a certificate, as OpenSSL reads it.
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

// ---- credentials ----

#[test]
fn accepts_every_credential_and_none_can_approve_or_sign() {
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
        // A stolen credential can neither approve, nor sign, nor delete.
        let mut forged = object.clone();
        add_condition(&mut forged, condition("Approved", "Me", "please"));
        let path = path_of(&object);
        let put = |part: &str, object: &Value| person.put(&format!("{path}/{part}"), object).0;
        assert_eq!(put("approval", &forged), 403, "{user}");
        let mut forged = object.clone();
        forged["status"]["certificate"] = json!(BASE64.encode(rig.signed(&object)));
        assert_eq!(put("status", &forged), 403, "{user}");
        let delete = Call::new(Method::DELETE, path.clone());
        assert_eq!(person.send(delete).0, 403, "{user}");
        rig.approve();
        let bytes = issued(run(signer.poll(&request, &ticket)));
        assert_eq!(verdict(&request, &bytes, &rig.authorities()), "", "{user}");
    }
}

#[test]
fn reads_token_file_for_each_request() {
    let rig = KubernetesRig::new();
    write_secret(rig.token_file(), "abcdef.ffffffffffffffff");
    let signer = rig.signer();
    let request = request(CertName::Apiserver);
    let url = rig.cluster.url();
    for result in [run(signer.probe()), run(signer.submit(&request)).map(drop)] {
        let message = fails(result, FailureClass::Auth, &[&url, "401", "token"]);
        assert!(!message.contains("ffffffffffffffff"), "{message}");
    }
    fs::remove_file(rig.token_file()).unwrap();
    let file = rig.token_file().display().to_string();
    fails(run(signer.submit(&request)), FailureClass::Config, &[&file]);
    write_secret(rig.token_file(), "abcdef.0123456789abcdef");
    run(signer.probe()).unwrap();
    pending(run(signer.submit(&request)));
}

#[test]
fn names_missing_role_of_credential() {
    let cluster = kubernetes();
    let rig = KubernetesRig::new().with_kubeconfig(cluster.kubeconfig_of("stranger", &[]));
    let signer = rig.signer();
    fails(
        run(signer.probe()),
        FailureClass::Auth,
        &[
            "user stranger may not create",
            "system:node-bootstrapper",
            "client.conf",
        ],
    );
    // A 403 of RBAC, which ends when the role is bound.
    fails(
        run(signer.submit(&request(CertName::EtcdPeer))),
        FailureClass::Auth,
        &[
            "etcd-peer",
            "etcd-ca",
            "cannot create resource",
            "system:node-bootstrapper",
        ],
    );
}

#[test]
fn refuses_kubeconfig_that_needs_more_than_files() {
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
    let insecure = format!("{server}, insecure-skip-tls-verify: true");
    let ca = BASE64.encode(fs::read(cluster.ca_file()).unwrap());
    let trusted = format!("{server}, certificate-authority-data: {ca}");
    let user = |keys| base(&trusted, keys);
    let at = |keys| base(keys, "token: abc");
    for (text, part) in [
        (
            user("exec: {command: aws}"),
            "has exec, which nodepki does not follow",
        ),
        (user("auth-provider: {name: oidc}"), "auth-provider"),
        (
            user("username: me, password: secret-word"),
            "username, password",
        ),
        (user("token: abc, as: admin"), "has as"),
        (
            user("client-certificate-data: QQ=="),
            "a client certificate without its key",
        ),
        (user("tokenFile: gone"), "cannot be read"),
        (at(&insecure), "insecure-skip-tls-verify"),
        (at("certificate-authority-data: ''"), "names no server"),
        (
            at("server: 'https://me:secret-word@h:99999'"),
            "has a server that is not a valid address",
        ),
        (at(&server), "neither a CA nor a pin is configured"),
        ("a: [".to_owned(), "cannot be used"),
        ("current-context: b".to_owned(), "\"b\""),
    ] {
        fs::write(&path, &text).unwrap();
        let result = run(signer.submit(&request(CertName::Apiserver)));
        let message = fails(result, FailureClass::Config, &[part]);
        assert!(!message.contains("secret-word"), "{message}");
    }
    fs::remove_file(&path).unwrap();
    fails(run(signer.probe()), FailureClass::Config, &["odd.conf"]);
}

#[test]
fn warns_if_node_can_approve_own_requests() {
    let cluster = kubernetes();
    let admin = cluster.kubeconfig_of("me", &["system:masters"]);
    let rig = KubernetesRig::new().with_kubeconfig(admin);
    let node = node(&rig);
    let ran = node.ask();
    ran.ended(75);
    assert!(
        ran.said().contains("may approve its own requests"),
        "{}",
        ran.said()
    );
    let rig = KubernetesRig::new();
    let node = self::node(&rig);
    let ran = node.ask();
    ran.ended(75);
    assert!(!ran.said().contains("may approve"), "{}", ran.said());
}

/// Returns the objects that `config signer-setup` prints for the signers of a rig.
fn printed(rig: &dyn Rig) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let ran = print_setup(dir.path(), &rig.settings(), INIT, &[rig.kind().as_str()]);
    ran.done();
    let documents = nodepki::yaml::parse("setup", &ran.stdout).unwrap();
    let mut objects: Vec<Value> = documents.iter().map(nodepki::yaml::to_json).collect();
    objects.retain(|object| !object.is_null());
    objects
}

/// Creates the objects that `config signer-setup` prints, as an administrator, and returns them.
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
        let call = Call::post(path).body("application/yaml", yaml.into_bytes());
        let (status, body) = admin.send(call);
        assert_eq!(status, 201, "{body}");
    }
    objects
}

#[test]
fn grants_exactly_what_is_needed_by_signer_setup() {
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
    // A node that is a member of the printed group and of no other.
    let node = cluster.kubeconfig_of("set-up-node", &["system:bootstrappers:nodepki"]);
    let rig = rig.with_kubeconfig(node);
    eventually(|| run(rig.signer().probe()));
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    let (approver, signer) = (
        cluster.person("setup-approver", &[]),
        cluster.person("setup-signer", &[]),
    );
    wait_until("the bindings are in force", || {
        approver.get(CSRS).0 == 200 && signer.get(CSRS).0 == 200
    });
    let yes = condition("Approved", "Reviewed", "");
    // The approver cannot sign, and the signer cannot approve.
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
    // The approver cannot approve for another signer name.
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
fn prints_role_to_reference_namespaced_issuer() {
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

// ---- requests ----

#[test]
fn describes_desired_certificate_in_request() {
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
        json!(["digital signature", "server auth", "client auth"])
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
    contains(
        &note,
        &[
            ticket.as_str(),
            "waits for approval",
            "kubectl certificate approve",
            "pki.example.com/etcd-ca",
        ],
    );
    rig.approve_only();
    let (_, note) = pending(run(rig.signer().poll(&request, &ticket)));
    contains(
        &note,
        &[
            "is approved (Reviewed: looks good)",
            "for the signer pki.example.com/etcd-ca",
            "controller runs",
        ],
    );
}

#[test]
fn requests_lifetime() {
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
    // kube-controller-manager's own signer honours it too.
    let own = KubernetesRig::new().served("kubernetes.io/kube-apiserver-client");
    let request = request_of(short_lived(CertName::AdminConf, hour));
    let bytes = from_manager(&own, &request);
    let left = remaining(&bytes);
    assert!((3400..=3600).contains(&left), "{left}");
    // The shortest lifetime that the API accepts, and a shorter one.
    let shortest = short_lived(CertName::Apiserver, Duration::from_secs(600));
    pending(run(rig.signer().submit(&request_of(shortest))));
    let shorter = short_lived(CertName::Apiserver, Duration::from_secs(599));
    let rejection = rig.signer().preflight(&shorter).unwrap_err().to_string();
    contains(&rejection, &["10m", "9m59s", "requestLifetime: false"]);
    fails(
        run(rig.signer().submit(&request_of(shorter.clone()))),
        FailureClass::Permanent,
        &["422"],
    );
    // The lifetime is left to the signer.
    let mut silent = KubernetesRig::new();
    silent.access.push_str(", requestLifetime: false");
    silent.signer().preflight(&shorter).unwrap();
    pending(run(silent.signer().submit(&request_of(shorter))));
    assert_eq!(silent.only()["spec"]["expirationSeconds"], Value::Null);
}

/// Returns a certificate that the test approves and kube-controller-manager signs.
fn from_manager(rig: &KubernetesRig, request: &Request) -> Vec<u8> {
    let signer = rig.signer();
    signer.preflight(&request.wanted).unwrap();
    let (ticket, _) = pending(run(signer.submit(request)));
    rig.decide(&ticket, condition("Approved", "Reviewed", ""));
    issued(settled_answer(signer.as_ref(), request, &ticket))
}

#[test]
fn builds_chain_from_leaf_and_intermediate() {
    let mut rig = KubernetesRig::new();
    rig.chained = true;
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    rig.approve();
    let bytes = issued(run(rig.signer().poll(&request, &ticket)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    let chain = nodepki::x509::Chain::from_response(&bytes, request.csr.public_key()).unwrap();
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
fn adds_configured_annotations_and_labels() {
    let rig = KubernetesRig::new();
    let plain = rig.only_after(&request(CertName::EtcdServer));
    let metadata = "annotations: {venafi.experimental.cert-manager.io/custom-fields: '[{\"name\": \"{node}\"}]', \
                    ejbca.example.com/profile: {etcd-server: servers, admin.conf: people}}, \
                    labels: {team: platform, kind: \"{certificate}\"}";
    let access = format!("{}, {metadata}", rig.access);
    let rig = KubernetesRig::new().reached(access);
    let signed = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&signed)));
    let object = rig.only();
    let annotations = &object["metadata"]["annotations"];
    assert_eq!(
        annotations["venafi.experimental.cert-manager.io/custom-fields"],
        "[{\"name\": \"cp1\"}]"
    );
    assert_eq!(annotations["ejbca.example.com/profile"], "servers");
    assert_eq!(annotations["nodepki.io/certificate"], "etcd-server");
    let labels = json!({"app.kubernetes.io/managed-by": "nodepki", "team": "platform", "kind": "etcd-server"});
    assert_eq!(object["metadata"]["labels"], labels);
    assert_ne!(name_of(&object), name_of(&plain));
    rig.approve();
    let bytes = issued(run(rig.signer().poll(&signed, &ticket)));
    assert_eq!(verdict(&signed, &bytes, &rig.authorities()), "");

    // A key without a text for a certificate is left out.
    let rig = KubernetesRig::new().reached(rig.access.clone());
    let object = rig.only_after(&request(CertName::Apiserver));
    let profile = &object["metadata"]["annotations"]["ejbca.example.com/profile"];
    assert!(profile.is_null(), "{profile}");
}

#[test]
fn refuses_label_that_the_name_of_this_node_makes_invalid() {
    let rig = KubernetesRig::new();
    let label = "x".repeat(60);
    let access = format!("{}, labels: {{node: \"{label}-{{node}}\"}}", rig.access);
    let rig = rig.reached(access);
    let rejected = rig.signer().preflight(&request(CertName::Apiserver).wanted);
    let message = rejected.unwrap_err().to_string();
    contains(
        &message,
        &["its label node is", "set labels.node to at most 63"],
    );
}

#[test]
fn adds_annotation_for_cert_manager_signer_names() {
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
        contains(&note, &["cert-manager does not do automatically"]);
        let object = rig.only();
        assert_eq!(
            object["metadata"]["annotations"]["experimental.cert-manager.io/request-duration"],
            "8760h"
        );
        assert_same_usages(&object["spec"]);
        rig.approve_only();
        let (_, note) = pending(run(rig.signer().poll(&request, &ticket)));
        contains(
            &note,
            &[
                issuer,
                "ExperimentalCertificateSigningRequestControllers=true",
            ],
        );
        rig.approve();
        let bytes = issued(run(rig.signer().poll(&request, &ticket)));
        assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    }
    let rig = KubernetesRig::new();
    pending(run(rig.signer().submit(&request(CertName::EtcdServer))));
    let annotations = rig.only()["metadata"]["annotations"].to_string();
    assert!(!annotations.contains("cert-manager"), "{annotations}");
}

/// With the real controllers of cert-manager; the test only approves.
#[test]
fn obtains_certificates_from_cert_manager() {
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

    // Without the right to reference the Issuer.
    let refused = request(CertName::EtcdPeer);
    let signer = rig.signer();
    let (ticket, _) = pending(run(signer.submit(&refused)));
    rig.approve_only();
    let error = settled_answer(signer.as_ref(), &refused, &ticket).unwrap_err();
    assert_eq!(error.class, FailureClass::Permanent, "{error}");
    contains(
        &error.to_string(),
        &[
            "DeniedReference",
            "Requester may not reference Namespaced Issuer",
        ],
    );

    // With the right that `config signer-setup` prints.
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
    wait_until("the right is in force", || {
        let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        person.create(reviews, &allowed)["status"]["allowed"] == true
    });
    let short = request_of(short_lived(CertName::EtcdServer, Duration::from_secs(7200)));
    let (ticket, _) = pending(run(signer.submit(&short)));
    rig.approve_only();
    let bytes = issued(settled_answer(signer.as_ref(), &short, &ticket));
    assert_eq!(verdict(&short, &bytes, &rig.authorities()), "");
    let left = remaining(&bytes);
    assert!((7000..=7200).contains(&left), "{left}");

    let node = node(&rig);
    let ran = node.ask();
    ran.ended(75);
    rig.approve_only();
    Ran::of(&mut node.ask_command("20s")).done();
    node.assert_sound(&CertName::KUBEADM);
}

// ---- Kubernetes' own signers ----

#[test]
fn rejects_what_kubernetes_own_signers_do_not_sign() {
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
            "only for client auth, not for server auth",
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
            "only for client auth, not for server auth",
        ),
        (
            &kubelets,
            wanted(CertName::AdminConf),
            "CN=system:node:…, not for O=kubeadm:cluster-admins",
        ),
        (
            &servers,
            wanted(CertName::KubeletConf),
            "it requires a subject alternative name",
        ),
        (&servers, wanted(CertName::Apiserver), "O=system:nodes"),
    ] {
        let rejection = signer.preflight(&wanted).unwrap_err().to_string();
        contains(&rejection, &[part, "kubernetes.io/", wanted.name.as_str()]);
    }
}

#[test]
fn obtains_certificates_from_kubernetes_own_signers() {
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
    contains(
        &text,
        &[
            "O = kubeadm:cluster-admins, CN = kubernetes-admin",
            "TLS Web Client Authentication",
            "CA:FALSE",
        ],
    );
    // kube-controller-manager approves this one itself.
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

/// A node whose `ca` is the CA of the API server: kube-controller-manager signs what its signers support, and another
/// signer with the same CA signs the rest.
#[test]
fn combines_kubernetes_own_signers_with_another() {
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
    node.configure(&INIT.replace("cp1", &host));
    let ran = node.ask();
    ran.ended(75);
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
    node.ask().done();
    before.unchanged(&node.snapshot());
}

/// Asserts that the cluster's CA has signed, which is none of the three authorities that the node trusts.
fn assert_signed_by_cluster(rig: &KubernetesRig, request: &Request, bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("etcd")).unwrap();
    fs::copy(rig.cluster.ca_file(), dir.path().join("ca.crt")).unwrap();
    assert_eq!(verdict(request, bytes, dir.path()), "");
    assert!(!verdict(request, bytes, &rig.authorities()).is_empty());
}

/// The preflight would reject both before they are sent.
#[test]
fn reports_refusal_of_admission_and_of_signer_as_permanent() {
    let rig = KubernetesRig::new().served("kubernetes.io/kube-apiserver-client");
    let mut masters = wanted(CertName::AdminConf);
    masters.profile.subject.organizations = vec!["system:masters".to_owned()];
    let result = run(rig.signer().submit(&request_of(masters)));
    let parts = [
        "403",
        "system:masters group is not allowed",
        "admin.conf",
        "another signer",
    ];
    fails(result, FailureClass::Permanent, &parts);
    let mut serving = wanted(CertName::Apiserver);
    serving.profile.usages = vec![ExtendedUsage::ServerAuth];
    let request = request_of(serving);
    let signer = rig.signer();
    let (ticket, _) = pending(run(signer.submit(&request)));
    rig.decide(&ticket, condition("Approved", "Reviewed", ""));
    fails(
        settled_answer(signer.as_ref(), &request, &ticket),
        FailureClass::Permanent,
        &[
            "SignerValidationFailure",
            "invalid usage for client certificate: server auth",
            ticket.as_str(),
            "kubectl delete certificatesigningrequest",
        ],
    );
    let path = format!("{CSRS}/{}", ticket.as_str());
    let (_, object) = rig.cluster.admin().get(&path);
    assert_eq!(conditions(&object), ["Approved", "Failed"]);
}

#[test]
fn rejects_certificate_without_signer_name_for_this_node() {
    let rig = KubernetesRig::new().served("pki.example.com/{cluster}");
    let apiserver = wanted(CertName::Apiserver);
    rig.signer().preflight(&apiserver).unwrap();
    let text = rig.settings().replace(
        "\"pki.example.com/{cluster}\"",
        "{apiserver: pki.example.com/x}",
    );
    let signer = open(&text, Authority::Ca, rig.scratch());
    signer.preflight(&apiserver).unwrap();
    let peer = wanted(CertName::EtcdPeer);
    rejects(signer.as_ref(), &peer, &["no signerName", "etcd-ca"]);
}

// ---- one object for each request ----

#[test]
fn avoids_name_that_another_user_holds() {
    // Another request under the same name, and the same request by another user.
    for same in [false, true] {
        let rig = KubernetesRig::new();
        let request = request(CertName::EtcdServer);
        // The thief has learned the name from an earlier run.
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
        // Other processes find it under a name that only this node can derive.
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
        // Another node has another salt.
        let elsewhere = tempfile::tempdir().unwrap();
        let other = open(&rig.settings(), Authority::Ca, elsewhere.path());
        let other = pending(run(other.submit(&request))).0;
        assert!(other != ours && other != ticket);
    }
}

#[test]
fn repeats_deleted_request_with_same_key() {
    let rig = KubernetesRig::new();
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    rig.delete(&rig.only());
    let polled = run(rig.signer().poll(&request, &ticket)).unwrap();
    assert_eq!(polled, Answer::Gone);
    assert_eq!(run(rig.signer().recover(&request, None)).unwrap(), None);
    assert!(rig.objects().is_empty());
    assert_eq!(pending(run(rig.signer().submit(&request))).0, ticket);

    // The same by the whole program.
    let rig = KubernetesRig::new();
    let node = node(&rig);
    node.ask().ended(75);
    let sent = rig.sent();
    for object in rig.objects() {
        rig.delete(&object);
    }
    node.ask().ended(75);
    assert_eq!(rig.sent(), sent);
    rig.approve();
    node.ask().done();
    node.assert_sound(&CertName::KUBEADM);
}

#[test]
fn handles_requests_that_csrcleaner_removed() {
    let rig = KubernetesRig::new();
    let (old, fresh, refused) = (
        request(CertName::EtcdServer),
        request(CertName::EtcdPeer),
        request(CertName::Apiserver),
    );
    let file = |request: &Request| pending(run(rig.signer().submit(request))).0;
    let (old_ticket, fresh_ticket, refused_ticket) = (file(&old), file(&fresh), file(&refused));
    let approver = rig.cluster.person("approver", &[]);
    let hours_ago = (now() - Duration::from_secs(2 * 3600))
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
    cleaner.wait_until(|| rig.objects().len() == 1);
    // The certificate was never fetched; the second request is still pending; the third was denied.
    assert_eq!(
        run(rig.signer().poll(&old, &old_ticket)).unwrap(),
        Answer::Gone
    );
    pending(run(rig.signer().poll(&fresh, &fresh_ticket)));
    let reason = denied(run(rig.signer().poll(&refused, &refused_ticket)));
    assert!(reason.contains("not on a Friday"), "{reason}");
}

#[test]
fn keeps_denial_after_request_is_deleted() {
    let rig = KubernetesRig::new();
    let request = request(CertName::Apiserver);
    let denial = rig.deny(&request).unwrap();
    let ticket = denial.ticket.unwrap();
    let reason = denied(run(denial.signer.poll(&request, &ticket)));
    contains(
        &reason,
        &[
            "Policy: not on a Friday",
            "CertificateSigningRequest nodepki-cp1-apiserver-",
            "/var/lib/nodepki/pending/apiserver",
        ],
    );
    rig.delete(&rig.only());
    for _ in 0..2 {
        let signer = rig.signer();
        assert_eq!(denied(run(signer.submit(&request))), reason);
        let found = recovered(run(signer.recover(&request, None)));
        assert_eq!(denied(found), reason);
        assert_eq!(denied(run(signer.poll(&request, &ticket))), reason);
    }
    assert!(rig.objects().is_empty());
    // Another key is another request.
    let other = crate::signing::request(CertName::Apiserver);
    pending(run(rig.signer().submit(&other)));
}

#[test]
fn keeps_denial_over_runs() {
    let rig = KubernetesRig::new();
    let node = node(&rig);
    node.ask().ended(75);
    let of_peer = |object: &Value| name_of(object).contains("-etcd-peer-");
    let mut objects = rig.objects();
    objects.retain(of_peer);
    let peer = only(objects);
    let approver = rig.cluster.person("approver", &[]);
    let no = condition("Denied", "Policy", "not on a Friday");
    approver.decide(name_of(&peer), no);
    let first = node.ask();
    assert_ne!(first.code, Some(0));
    first.says("etcd-peer").says("not on a Friday");
    rig.delete(&peer);
    let sent = rig.sent();
    node.ask()
        .ended(first.code.unwrap())
        .says("not on a Friday");
    assert_eq!(rig.sent(), sent);
}

#[test]
fn refuses_signed_certificate_of_another_key() {
    let rig = KubernetesRig::new();
    let node = node(&rig);
    node.ask().ended(75);
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
    let ran = node.ask();
    ran.ended(65);
    assert!(ran.said().contains("etcd-server"), "{}", ran.said());
    assert!(node.leaf(CertName::EtcdServer).is_none());
}

// ---- failures ----

pub(crate) fn gateway() -> Gateway {
    let cluster = kubernetes();
    let ca = fs::read(cluster.ca_file()).unwrap();
    Gateway::to(Some(Upstream::tls(
        ("127.0.0.1", cluster.port()),
        &ca,
        "localhost",
    )))
}

#[test]
fn tells_missing_api_from_missing_request() {
    let cluster = kubernetes();
    let text = cluster.kubeconfig_of("me", &["system:masters"]);
    let elsewhere = format!("{}/elsewhere", cluster.url());
    let rig = KubernetesRig::new().with_kubeconfig(text.replace(&cluster.url(), &elsewhere));
    let request = request(CertName::Apiserver);
    let parts = ["404", "is an API server's"];
    fails(
        run(rig.signer().submit(&request)),
        FailureClass::Config,
        &parts,
    );
    let found = run(rig.signer().recover(&request, None));
    fails(found, FailureClass::Config, &parts);
}

#[test]
fn reports_lost_response_to_poll_as_transient() {
    let gateway = gateway();
    let rig = KubernetesRig::new().behind(&gateway);
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    gateway.only(Rule::on("GET", CSRS).then(Action::DropAfterForward));
    let polled = run(rig.signer().poll(&request, &ticket));
    fails(polled, FailureClass::Transient, &[]);
}

#[test]
fn refuses_response_that_differs_from_request() {
    let gateway = gateway();
    let rig = KubernetesRig::new().behind(&gateway);
    let signer = rig.signer();
    let request = request(CertName::EtcdServer);
    for (field, value, part) in [
        ("/spec/usages", json!(["any"]), "changed its content"),
        ("/status", json!({"certificate": "%%"}), "is not base64"),
    ] {
        let changed = Action::change_json(move |object| {
            *object.pointer_mut(field).unwrap() = value.clone();
        });
        gateway.only(Rule::on("POST", CSRS).times(1).then(changed));
        fails(
            run(signer.submit(&request)),
            FailureClass::Permanent,
            &[part],
        );
        rig.delete(&rig.only());
    }
    let token = fs::read_to_string(rig.token_file()).unwrap();
    let token = format!("Bearer {}", token.trim());
    for request in gateway.requests() {
        assert_eq!(request.header("authorization"), Some(token.as_str()));
    }
}

#[test]
fn submits_to_api_server_without_self_subject_reviews() {
    let gateway = gateway();
    let review = || Rule::on("POST", "/selfsubject");
    gateway.only(review().then(Action::body(404, "404 page not found")));
    let rig = KubernetesRig::new().behind(&gateway);
    let signer = rig.signer();
    run(signer.probe()).unwrap();
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(signer.submit(&request)));
    assert_eq!(pending(run(signer.submit(&request))).0, ticket);
    rig.only();
    gateway.only(review().then(Action::status(503)));
    fails(run(signer.probe()), FailureClass::Transient, &[]);
}

#[test]
fn rejects_unsuitable_signer_before_making_key() {
    let rig = KubernetesRig::new().served("kubernetes.io/kube-apiserver-client");
    node(&rig)
        .ask()
        .ended(78)
        .says("etcd-server")
        .says("super-admin.conf")
        .says("system:masters")
        .says("front-proxy-client");
    assert!(rig.objects().is_empty());
}

#[test]
fn reads_token_from_systemd_credential() {
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
    let ran = node.ask();
    ran.ended(78);
    assert!(ran.said().contains("LoadCredential="), "{}", ran.said());
    let mut command = node.ask_command("0s");
    command.env("CREDENTIALS_DIRECTORY", credentials.path());
    let ran = Ran::of(&mut command);
    assert_eq!(ran.code, Some(75), "{}", ran.said());
    assert_eq!(rig.objects().len(), CertName::KUBEADM.len());
    assert!(!ran.said().contains("0123456789abcdef"), "{}", ran.said());
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
    // The certificate for the thief is not accepted.
    rig.approve();
    let polled = run(rig.signer().poll(&request, &ticket)).unwrap();
    assert_eq!(polled, Answer::Gone);
    let found = run(rig.signer().recover(&request, None)).unwrap();
    assert_eq!(found, None);
}

/// A bootstrap token is valid for a day, and a signature may take longer.
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
    // Without the state of this node, the creator of the object decides.
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
fn reports_denied_and_failed_despite_certificate() {
    let gateway = gateway();
    let rig = KubernetesRig::new().behind(&gateway);
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    rig.approve();
    let object = rig.only();
    assert!(object["status"]["certificate"].is_string(), "{object}");
    for status in ["True", ""] {
        let poll = |kind: &str, message: &str| {
            let condition =
                json!({"type": kind, "status": status, "reason": "R", "message": message});
            let changed = Action::change_json(move |object| {
                let conditions = object["status"]["conditions"].as_array_mut().unwrap();
                conditions.push(condition.clone());
            });
            gateway.only(Rule::on("GET", CSRS).then(changed));
            run(rig.signer().poll(&request, &ticket))
        };
        let failed = poll("Failed", "it was revoked");
        fails(failed, FailureClass::Permanent, &["it was revoked"]);
        let reason = denied(poll("Denied", "not on a Friday"));
        contains(&reason, &["not on a Friday"]);
    }
}
