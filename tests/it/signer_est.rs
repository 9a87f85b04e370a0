//! EST against libest's server and GlobalSign's, and what neither of them does on demand through the gateway.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodepki::config::Settings;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, Class, Current, Kind, Request, Signer, SignerError, Ticket, Wanted};
use nodepki::x509::{Chain, KeyAlgorithm, UsageExtensions, certificates_of, hex};
use tempfile::TempDir;
use zeroize::Zeroizing;

use crate::gateway::{Action, Answer as Passed, Gateway, Options, Rule};
use crate::log::logged;
use crate::node::{INIT, Ran};
use crate::rig::{Denial, Front, Rig};
use crate::servers::est::{Est, PASSWORD, USER, like, with_authority};
use crate::signer_bad::verdict;
use crate::signer_bootstrap::{complete, node};
use crate::signing::{
    opened_with_memory, openssl, request, request_for, run, wanted, write_authorities, write_secret,
};

const ENROLL: &str = "/simpleenroll";

// ---- rigs ----

/// libest for each authority, each of them believed and convinced in another way; some ask for patience first.
pub(crate) struct EstRig {
    dir: TempDir,
    servers: [Est; 3],
    /// Who denied something.
    deniers: RefCell<Vec<(Gateway, Est)>>,
}

impl EstRig {
    pub(crate) fn new() -> Self {
        Self::with([&[], &[], &["-n", "-m", "3"]])
    }

    /// Options of the servers of ca, etcd-ca and front-proxy-ca.
    fn with(options: [&[&str]; 3]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        let base = |authority: Authority| dir.path().join(authority.base_name());
        let [ca, etcd, proxy] = options;
        let servers = [
            Est::libest(like(&base(Authority::Ca)), ca, &[]),
            Est::libest(like(&base(Authority::EtcdCa)), etcd, &[]),
            Est::libest(like(&base(Authority::FrontProxyCa)), proxy, &[]),
        ];
        EstRig {
            dir,
            servers,
            deniers: RefCell::default(),
        }
    }

    fn etcd(&self) -> &Est {
        &self.servers[1]
    }

    /// With the server of etcd-ca elsewhere, and this signer for front-proxy-ca.
    fn settings_with(&self, url: &str, tls: &str, proxy: &str) -> String {
        let [ca, etcd, _] = &self.servers;
        settings(&[
            format!(
                "est: {{url: '{}', rootSHA256: '{}', {}}}",
                ca.url(),
                fingerprint(&ca.ca_file()),
                basic(&ca.password_file())
            ),
            format!(
                "est: {{url: '{url}', tls: {tls}, {}, longestWait: 1s}}",
                basic(&etcd.password_file())
            ),
            proxy.to_owned(),
        ])
    }

    /// Settings in which nothing but what the server of etcd-ca does decides how a run ends.
    fn behind(&self) -> impl Fn(&str, &str) -> String + 'static {
        let proxy = format!("local: {{directory: {}}}", self.dir.path().display());
        let all = self.settings_with("@url@", "@tls@", &proxy);
        move |url, tls| all.replace("@url@", url).replace("@tls@", tls)
    }
}

impl Rig for EstRig {
    fn kind(&self) -> Kind {
        Kind::Est
    }

    fn settings(&self) -> String {
        let [_, etcd, proxy] = &self.servers;
        let tls = format!("{{caFile: {}}}", etcd.ca_file().display());
        let proxy = format!(
            "est: {{url: '{}', tls: {{caFile: {}, certificate: {client}, key: {client}}}, longestWait: 1s}}",
            proxy.url(),
            proxy.ca_file().display(),
            client = proxy.client("cp1").display()
        );
        self.settings_with(&etcd.url(), &tls, &proxy)
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// EST has no word for it: what was taken and then is refused was somebody's decision.
    fn deny(&self, request: &Request) -> Option<Denial> {
        let base = self.dir.path().join(request.wanted.authority.base_name());
        let server = Est::libest(like(&base), &["-m", "3"], &[]);
        let gateway = Gateway::to(Some(server.upstream()));
        let said = b"request rejected by the registration authority".to_vec();
        let refused = Rule::on("POST", ENROLL).after(1);
        gateway.rule(refused.then(Action::Status(400, Vec::new(), said)));
        let signer: Rc<dyn Signer> = open(&through(&gateway, &server)).into();
        run(signer.probe()).unwrap();
        let (ticket, _) = pending(run(signer.submit(request)));
        self.deniers.borrow_mut().push((gateway, server));
        Some(Denial {
            signer,
            ticket: Some(ticket),
            reason: "rejected by the registration authority",
        })
    }

    fn sent(&self) -> Vec<String> {
        self.servers.iter().flat_map(Est::posts).collect()
    }

    fn front(&self) -> Option<Front> {
        Some(Front {
            upstream: self.etcd().upstream(),
            submit: ("POST", ENROLL),
            settings: Box::new(self.behind()),
            exceptions: &[],
        })
    }
}

/// GlobalSign's server for each authority, behind a label; both usages for everybody.
struct StrictRig {
    dir: TempDir,
    servers: [Est; 3],
}

impl StrictRig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        let servers = [Authority::Ca, Authority::EtcdCa, Authority::FrontProxyCa]
            .map(|authority| Est::globalsign(like(&dir.path().join(authority.base_name()))));
        StrictRig { dir, servers }
    }
}

impl Rig for StrictRig {
    fn kind(&self) -> Kind {
        Kind::Est
    }

    fn settings(&self) -> String {
        let signers = self.servers.each_ref().map(|server| {
            format!(
                "est: {{url: '{}', label: 'k8s-{{authority}}', tls: {{caFile: {}}}}}",
                server.url(),
                server.ca_file().display()
            )
        });
        settings(&signers)
            .replace("signer: ca", "allowExtraUsages: true, signer: ca")
            .replace("signer: etcd", "allowExtraUsages: true, signer: etcd")
            .replace("signer: proxy", "allowExtraUsages: true, signer: proxy")
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    fn sent(&self) -> Vec<String> {
        self.servers.iter().flat_map(Est::posts).collect()
    }
}

fn settings([ca, etcd, proxy]: &[String; 3]) -> String {
    format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         authorities:\n  ca: {{signer: ca}}\n  etcd-ca: {{signer: etcd}}\n  front-proxy-ca: {{signer: proxy}}\n\
         signers:\n  ca: {{{ca}}}\n  etcd: {{{etcd}}}\n  proxy: {{{proxy}}}\n"
    )
}

fn basic(password_file: &Path) -> String {
    format!(
        "auth: {{basic: {{user: {USER}, passwordFile: {}}}}}",
        password_file.display()
    )
}

fn fingerprint(pem_file: &Path) -> String {
    let pem = fs::read(pem_file).unwrap();
    hex(&Chain::from_pem(&pem).unwrap().leaf().fingerprint())
}

/// The server as one would configure it.
fn plainly(server: &Est) -> String {
    format!(
        "url: '{}', tls: {{caFile: {}}}, {}",
        server.url(),
        server.ca_file().display(),
        basic(&server.password_file())
    )
}

/// The same through a gateway.
fn through(gateway: &Gateway, server: &Est) -> String {
    format!(
        "url: '{}', tls: {{caFile: {}}}, {}",
        gateway.url(),
        gateway.ca_file().display(),
        basic(&server.password_file())
    )
}

/// A signer with these keys.
fn open(keys: &str) -> Box<dyn Signer> {
    let text = format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         authorities: {{ca: {{signer: s}}}}\nsigners: {{s: {{est: {{{keys}}}}}}}\n"
    );
    let (settings, faults) =
        Settings::from_fragments(&[("est.yaml", text)]).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(faults.is_empty(), "{faults}");
    let (_, config) = settings.signer_of(Authority::Ca).unwrap();
    let memory = tempfile::tempdir().unwrap().keep();
    opened_with_memory(config, &memory)
}

fn issued(answer: Result<Answer, SignerError>) -> Vec<u8> {
    match answer {
        Ok(Answer::Issued(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

fn pending(answer: Result<Answer, SignerError>) -> (Ticket, Option<Duration>) {
    match answer {
        Ok(Answer::Pending { ticket, after, .. }) => (ticket, after),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn says(error: &SignerError, class: Class, words: &[&str]) {
    let message = error.to_string();
    assert_eq!(error.class, class, "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
    assert!(!message.contains(PASSWORD), "{message}");
}

/// A wish for `name` with another common name.
fn called(name: CertName, common_name: &str) -> Wanted {
    let mut wanted = wanted(name);
    wanted.profile.subject.common_name = common_name.to_owned();
    wanted
}

fn text(pem: &[u8]) -> String {
    String::from_utf8(openssl(&["x509", "-noout", "-text"], pem)).unwrap()
}

// ---- believing the server ----

#[test]
fn a_fingerprint_is_enough_to_believe_a_server() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let keys = format!(
        "url: '{}', rootSHA256: '{}', {}",
        server.url(),
        fingerprint(&server.ca_file()),
        basic(&server.password_file())
    );
    let signer = open(&keys);
    run(signer.probe()).unwrap();
    let offered = run(signer.trust(Authority::Ca)).unwrap().unwrap();
    assert_eq!(offered, fs::read(server.ca_file()).unwrap());
    let request = request(CertName::KubeletConf);
    let leaf = issued(run(signer.submit(&request)));
    let subject = openssl(
        &["x509", "-noout", "-subject", "-ext", "extendedKeyUsage"],
        &leaf,
    );
    let subject = String::from_utf8(subject).unwrap();
    assert!(
        subject.contains("O = system:nodes, CN = system:node:cp1"),
        "{subject}"
    );
    assert!(
        subject.contains("TLS Web Client Authentication"),
        "{subject}"
    );

    // OpenSSL's colons, and the key's fingerprint.
    let ca = Chain::from_pem(&offered).unwrap();
    let key = hex(&ca.leaf().public_key().sha256());
    let signer = open(&keys.replace(&fingerprint(&server.ca_file()), &key));
    run(signer.probe()).unwrap();
}

#[test]
fn another_root_is_not_believed() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let signer = open(&format!(
        "url: '{}', rootSHA256: '{}', {}",
        server.url(),
        "ab".repeat(32),
        basic(&server.password_file())
    ));
    let error = run(signer.probe()).unwrap_err();
    let found = fingerprint(&server.ca_file());
    says(
        &error,
        Class::Config,
        &[
            "est:https://127.0.0.1",
            "ababab",
            "CN=est root",
            &found,
            "rootSHA256",
        ],
    );
    let error = run(signer.submit(&request(CertName::Apiserver))).unwrap_err();
    says(&error, Class::Config, &["rootSHA256"]);
    assert!(server.posts().is_empty());
}

/// Whoever is in between can show the right root, which anybody can have, and gets nothing for it.
#[test]
fn who_only_shows_the_right_root_sees_no_secret() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let gateway = Gateway::start(Options {
        upstream: Some(server.upstream()),
        // It would take a certificate.
        clients: Some((fs::read(server.ca_file()).unwrap(), false)),
        ..Options::default()
    });
    let client = server.client("cp1");
    let signer = open(&format!(
        "url: '{}', rootSHA256: '{}', {}, tls: {{certificate: {client}, key: {client}}}",
        gateway.url(),
        fingerprint(&server.ca_file()),
        basic(&server.password_file()),
        client = client.display()
    ));
    for error in [
        run(signer.probe()).unwrap_err(),
        run(signer.submit(&request(CertName::Apiserver))).unwrap_err(),
    ] {
        says(&error, Class::Config, &["127.0.0.1"]);
    }
    let seen = gateway.requests();
    assert!(!seen.is_empty());
    for request in seen {
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("GET", "/.well-known/est/cacerts")
        );
        assert_eq!(request.header("authorization"), None);
        assert!(request.client.is_none() && request.body.is_empty());
    }
}

#[test]
fn the_password_goes_only_where_it_is_needed() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    let signer = open(&through(&gateway, &server));
    let (_, log) = logged(|| {
        run(signer.probe()).unwrap();
        issued(run(signer.submit(&request(CertName::Apiserver))));
    });
    assert!(!log.contains("unreadable"), "{log}");
    let secret = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    assert!(!log.contains(PASSWORD) && !log.contains(&secret), "{log}");
    let seen: Vec<(String, bool)> = gateway
        .requests()
        .iter()
        .map(|one| {
            let path = one.path.rsplit('/').next().unwrap().to_owned();
            (path, one.header("authorization").is_some())
        })
        .collect();
    let wanted = [
        ("cacerts", false),
        ("csrattrs", true),
        ("simpleenroll", true),
    ];
    assert_eq!(seen, wanted.map(|(path, with)| (path.to_owned(), with)));

    let distrustful = open(&format!(
        "url: '{}', tls: {{caFile: {}}}, {}",
        gateway.url(),
        server.ca_file().display(),
        basic(&server.password_file())
    ));
    let before = gateway.requests().len();
    says(
        &run(distrustful.submit(&request(CertName::Apiserver))).unwrap_err(),
        Class::Config,
        &["127.0.0.1"],
    );
    assert_eq!(gateway.requests().len(), before);
}

// ---- who asks ----

#[test]
fn a_401_says_which_credential_is_missing_or_wrong() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let believed = format!(
        "url: '{}', tls: {{caFile: {}}}",
        server.url(),
        server.ca_file().display()
    );
    let request = request(CertName::Apiserver);
    let error = run(open(&believed).submit(&request)).unwrap_err();
    says(
        &error,
        Class::Auth,
        &[
            "apiserver",
            "authority ca",
            "HTTP 401",
            "auth.basic",
            "tls.certificate",
        ],
    );

    let wrong = server.ca_file().with_file_name("wrong");
    write_secret(&wrong, "not the password");
    let error = run(open(&format!("{believed}, {}", basic(&wrong))).submit(&request)).unwrap_err();
    says(
        &error,
        Class::Auth,
        &[
            "HTTP 401",
            "unable to authorize",
            USER,
            wrong.to_str().unwrap(),
        ],
    );
    assert!(!error.to_string().contains("not the password"));
    // The file is read anew.
    let signer = open(&format!("{believed}, {}", basic(&wrong)));
    assert!(run(signer.submit(&request)).is_err());
    write_secret(&wrong, PASSWORD);
    issued(run(signer.submit(&request)));
    fs::remove_file(&wrong).unwrap();
    let error = run(signer.submit(&request)).unwrap_err();
    says(&error, Class::Config, &[wrong.to_str().unwrap()]);
}

#[test]
fn a_client_certificate_is_enough_where_the_server_says_so() {
    let server = Est::libest(with_authority("est root"), &["-n"], &[]);
    let request = request(CertName::AdminConf);
    let error = run(open(&plainly(&server)).submit(&request)).unwrap_err();
    says(&error, Class::Auth, &["admin.conf", "HTTP 401"]);
    let signer = open(&format!(
        "url: '{}', tls: {{caFile: {}, certificate: {client}, key: {client}}}",
        server.url(),
        server.ca_file().display(),
        client = server.client("cp1").display()
    ));
    let leaf = issued(run(signer.submit(&request)));
    assert!(text(&leaf).contains("O = kubeadm:cluster-admins, CN = kubernetes-admin"));
}

#[test]
fn digest_is_not_spoken_and_that_is_said() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    let challenge = "Digest realm=\"est\", qop=\"auth\", nonce=\"1\"".to_owned();
    gateway.rule(Rule::on("POST", ENROLL).then(Action::Status(
        401,
        vec![("WWW-Authenticate", challenge)],
        Vec::new(),
    )));
    let signer = open(&through(&gateway, &server));
    let error = run(signer.submit(&request(CertName::Apiserver))).unwrap_err();
    says(
        &error,
        Class::Auth,
        &["HTTP Basic", "Digest is not supported"],
    );
}

// ---- what the server wishes ----

#[test]
fn channel_binding_is_refused_before_a_key_is_made() {
    let server = Est::libest(with_authority("est root"), &["-t"], &[]);
    let signer = open(&plainly(&server));
    run(signer.probe()).unwrap();
    let request = request(CertName::Apiserver);
    let message = signer.preflight(&request.wanted).unwrap_err().to_string();
    for word in ["apiserver", "challengePassword", "/csrattrs", "est:https"] {
        assert!(message.contains(word), "{message}");
    }
    let error = run(signer.submit(&request)).unwrap_err();
    says(&error, Class::Auth, &["Proof of Possession", "TLS 1.3"]);
}

#[test]
fn a_wished_key_that_is_not_the_planned_one_is_told() {
    let server = Est::globalsign(with_authority("est root"));
    // Labels that differ are asked when the authority is known.
    let label = "label: {default: other, etcd-server: servers}";
    let signer = open(&format!("{}, {label}", plainly(&server)));
    run(signer.probe()).unwrap();
    run(signer.trust(Authority::EtcdCa)).unwrap().unwrap();
    signer.preflight(&wanted(CertName::EtcdServer)).unwrap();
    assert!(server.said().contains("/est/servers/csrattrs"));

    let gateway = Gateway::to(Some(server.upstream()));
    let rsa = "MBwwGgYJKoZIhvcNAQEBMQ0CAgwAAgIQAAIDAQAB";
    for (body, planned, words) in [
        // SET OF key sizes, the smallest 3072.
        (
            rsa,
            KeyAlgorithm::EcdsaP256,
            Some("an RSA key of 3072 bits"),
        ),
        (rsa, KeyAlgorithm::Rsa4096, None),
        // id-ecPublicKey {secp384r1}
        (
            "MBQwEgYHKoZIzj0CATEHBgUrgQQAIg==",
            KeyAlgorithm::EcdsaP256,
            Some("ECDSA-P384"),
        ),
        (
            "MBQwEgYHKoZIzj0CATEHBgUrgQQAIg==",
            KeyAlgorithm::EcdsaP384,
            None,
        ),
        (
            "MBQwEgYHKoZIzj0CATEHBgUrgQQAIg==",
            KeyAlgorithm::Rsa2048,
            Some("RSA-2048 is planned"),
        ),
        ("MAA=", KeyAlgorithm::Rsa2048, None),
        ("", KeyAlgorithm::Rsa2048, None),
    ] {
        gateway.behave();
        let body = body.as_bytes().to_vec();
        gateway.rule(Rule::on("GET", "/csrattrs").then(Action::Status(200, Vec::new(), body)));
        let signer = open(&through(&gateway, &server));
        run(signer.probe()).unwrap();
        let mut wanted = wanted(CertName::Apiserver);
        wanted.profile.key = planned;
        let said = signer.preflight(&wanted).err().map(|one| one.to_string());
        match words {
            None => assert_eq!(said, None),
            Some(words) => assert!(said.as_ref().unwrap().contains(words), "{said:?}"),
        }
    }
}

#[test]
fn the_example_of_the_rfc_is_two_obstacles() {
    let server = Est::globalsign(with_authority("est root"));
    let gateway = Gateway::to(Some(server.upstream()));
    // The operation's name is no label of ours; this server has one of that name, so its answer is carried over.
    let example = run_get(&server, "/.well-known/est/csrattrs/csrattrs");
    gateway.rule(Rule::on("GET", "/csrattrs").then(Action::Status(200, Vec::new(), example)));
    let signer = open(&through(&gateway, &server));
    run(signer.probe()).unwrap();
    let message = signer
        .preflight(&wanted(CertName::Apiserver))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("challengePassword") && message.contains("ECDSA-P384"),
        "{message}"
    );
}

#[test]
fn a_server_without_wishes_is_as_good() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    for status in [204, 400, 403, 404, 405, 501] {
        gateway.behave();
        let none = Action::Status(status, Vec::new(), Vec::new());
        gateway.rule(Rule::on("GET", "/csrattrs").then(none));
        let signer = open(&through(&gateway, &server));
        run(signer.probe()).unwrap();
        signer.preflight(&wanted(CertName::Apiserver)).unwrap();
    }
    for garbage in ["<html>no</html>", "AAAA"] {
        gateway.behave();
        let body = garbage.as_bytes().to_vec();
        gateway.rule(Rule::on("GET", "/csrattrs").then(Action::Status(200, Vec::new(), body)));
        let signer = open(&through(&gateway, &server));
        let (probed, log) = logged(|| run(signer.probe()));
        probed.unwrap();
        assert!(log.contains("/csrattrs is unreadable"), "{log}");
        signer.preflight(&wanted(CertName::Apiserver)).unwrap();
    }
    for (status, class) in [(401, Class::Auth), (503, Class::Transient)] {
        gateway.behave();
        let no = Action::Status(status, Vec::new(), Vec::new());
        gateway.rule(Rule::on("GET", "/csrattrs").then(no));
        let error = run(open(&through(&gateway, &server)).probe()).unwrap_err();
        says(&error, class, &["asking for its wishes"]);
    }
}

// ---- labels ----

#[test]
fn a_label_that_the_server_does_not_know_is_named() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let signer = open(&format!("{}, label: etcd", plainly(&server)));
    assert!(
        signer.label().ends_with("/.well-known/est/etcd"),
        "{}",
        signer.label()
    );
    for error in [
        run(signer.probe()).unwrap_err(),
        run(signer.submit(&request(CertName::EtcdServer))).unwrap_err(),
    ] {
        says(
            &error,
            Class::Config,
            &["HTTP 404", "label", "/.well-known/est/etcd"],
        );
    }
    assert!(server.posts().is_empty());
}

#[test]
fn every_certificate_goes_to_its_label() {
    let server = Est::globalsign(with_authority("est root"));
    let signer = open(&format!(
        "{}, label: {{default: 'clients of {{authority}}', apiserver: 'servers/{{node}}'}}",
        plainly(&server)
    ));
    issued(run(signer.submit(&request(CertName::AdminConf))));
    let said = server.posts().join("\n");
    assert!(
        said.contains("/.well-known/est/clients%20of%20ca/simpleenroll"),
        "{said}"
    );
    // Two segments are more than this server knows.
    let error = run(signer.submit(&request(CertName::Apiserver))).unwrap_err();
    says(&error, Class::Config, &["/.well-known/est/servers/cp1"]);
}

// ---- chains ----

#[test]
fn intermediates_come_from_cacerts_and_order_means_nothing() {
    let root = with_authority("est root");
    let dir = intermediate(root.path());
    let bundle = root.path().join("bundle.pem");
    let files = [dir.path().join("ca.pem"), root.path().join("ca.pem")];
    let pem: Vec<u8> = files
        .iter()
        .flat_map(|file| fs::read(file).unwrap())
        .collect();
    fs::write(&bundle, pem).unwrap();
    fs::copy(&bundle, dir.path().join("bundle.pem")).unwrap();
    let inside = dir.path().join("bundle.pem");
    let inside = inside.to_str().unwrap();
    let server = Est::libest(
        dir,
        &[],
        &[("EST_TRUSTED_CERTS", inside), ("EST_CACERTS_RESP", inside)],
    );
    // The server's own certificate is the intermediate's, which it does not send along.
    let keys = plainly(&server);
    let signer = open(&keys);
    run(signer.probe()).unwrap();
    let trust = run(signer.trust(Authority::Ca)).unwrap().unwrap();
    assert_eq!(trust, fs::read(root.path().join("ca.pem")).unwrap());

    let request = request(CertName::Apiserver);
    let answer = issued(run(signer.submit(&request)));
    let chain = Chain::from_answer(&answer, request.csr.public_key()).unwrap();
    assert_eq!(chain.intermediates().len(), 1);
    let file = root.path().join("leaf.pem");
    fs::write(&file, chain.to_pem()).unwrap();
    let (ca, leaf) = (root.path().join("ca.pem"), file.to_str().unwrap());
    let verified = [
        "verify",
        "-CAfile",
        ca.to_str().unwrap(),
        "-untrusted",
        leaf,
        leaf,
    ];
    openssl(&verified, b"");

    // All of it in one answer, root first.
    let gateway = Gateway::to(Some(server.upstream()));
    let others = fs::read(&bundle).unwrap();
    gateway.rule(
        Rule::on("POST", ENROLL).then(Action::Replace(Box::new(move |answer| {
            let der = STANDARD.decode(squeezed(&answer.body)).unwrap();
            let mut all = others.clone();
            all.extend(certificates_of(&der).unwrap()[0].to_pem().into_bytes());
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("all.pem");
            fs::write(&file, all).unwrap();
            let certs = file.to_str().unwrap();
            let arguments = ["crl2pkcs7", "-nocrl", "-certfile", certs, "-outform", "DER"];
            Passed {
                body: STANDARD.encode(openssl(&arguments, b"")).into_bytes(),
                ..answer
            }
        }))),
    );
    let signer = open(&through(&gateway, &server));
    let answer = issued(run(signer.submit(&request)));
    let chain = Chain::from_answer(&answer, request.csr.public_key()).unwrap();
    assert_eq!(chain.intermediates().len(), 1);
}

/// An authority under the one in `root`, in a directory of its own.
fn intermediate(root: &Path) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let above = |name: &str| root.join(name).to_str().unwrap().to_owned();
    openssl(
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            &path("ca.key"),
            "-out",
            &path("ca.pem"),
            "-subj",
            "/CN=est issuing",
            "-days",
            "365",
            "-CA",
            &above("ca.pem"),
            "-CAkey",
            &above("ca.key"),
            "-addext",
            "basicConstraints=critical,CA:TRUE,pathlen:0",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        ],
        b"",
    );
    dir
}

fn squeezed(body: &[u8]) -> Vec<u8> {
    body.iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect()
}

#[test]
fn an_answer_is_read_in_every_wrapping() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    let der = |body: &[u8]| STANDARD.decode(squeezed(body)).unwrap();
    type Wrap = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;
    let wraps: [(&str, Wrap); 4] = [
        ("one line", Box::new(squeezed)),
        (
            "CRLF",
            Box::new(|body| {
                let lines = String::from_utf8_lossy(body).replace('\n', "\r\n");
                format!("\r\n{lines}\r\n\r\n").into_bytes()
            }),
        ),
        ("binary", Box::new(der)),
        (
            "PEM",
            Box::new(move |body| {
                openssl(&["pkcs7", "-inform", "DER", "-outform", "PEM"], &der(body))
            }),
        ),
    ];
    for (how, wrap) in wraps {
        gateway.behave();
        gateway.rule(
            Rule::on("*", "/").then(Action::Replace(Box::new(move |answer| {
                let wishes = answer
                    .headers
                    .iter()
                    .any(|(_, value)| value.contains("csrattrs"));
                let body = if wishes {
                    answer.body.clone()
                } else {
                    wrap(&answer.body)
                };
                Passed {
                    body,
                    headers: Vec::new(),
                    ..answer
                }
            }))),
        );
        let signer = open(&through(&gateway, &server));
        run(signer.probe()).unwrap_or_else(|error| panic!("{how}: {error}"));
        let request = request(CertName::EtcdServer);
        let answer = run(signer.submit(&request));
        let answer = issued(answer.map_err(|error| panic!("{how}: {error}")));
        Chain::from_answer(&answer, request.csr.public_key()).unwrap();
    }
    // HTTP/1.0, no length, closed without a word.
    let request = request(CertName::EtcdServer);
    let answer = issued(run(open(&plainly(&server)).submit(&request)));
    let certificate = STANDARD.encode(openssl(
        &[
            "crl2pkcs7",
            "-nocrl",
            "-certfile",
            "/dev/stdin",
            "-outform",
            "DER",
        ],
        &answer,
    ));
    for notify in [true, false] {
        gateway.behave();
        let raw = format!("HTTP/1.0 200 OK\r\nStatus: 200 OK\r\n\r\n{certificate}\n");
        gateway.rule(Rule::on("POST", ENROLL).then(Action::Raw(raw.into_bytes(), notify)));
        let answer = run(open(&through(&gateway, &server)).submit(&request));
        match notify {
            true => {
                let answer = issued(answer);
                Chain::from_answer(&answer, request.csr.public_key()).unwrap();
            }
            // Without an end nobody can tell whether this was all.
            false => says(&answer.unwrap_err(), Class::Ambiguous, &["etcd-server"]),
        }
    }
}

#[test]
fn a_certificate_for_another_key_is_handed_on_to_be_refused() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    let other = request(CertName::EtcdServer);
    let body = run_post(&server, &other);
    gateway.rule(Rule::on("POST", ENROLL).then(Action::Status(200, Vec::new(), body)));
    let request = request(CertName::EtcdServer);
    let answer = issued(run(open(&through(&gateway, &server)).submit(&request)));
    let said = verdict(&request, &answer, Path::new("/nonexistent"));
    assert!(said.contains("another key"), "{said}");
}

// ---- waiting ----

#[test]
fn what_waits_is_asked_for_with_the_same_bytes() {
    let server = Est::libest(with_authority("est root"), &["-m", "3"], &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    let keys = through(&gateway, &server);
    let request = request(CertName::EtcdPeer);
    let signer = open(&keys);
    let (ticket, after) = match run(signer.submit(&request)).unwrap() {
        Answer::Pending {
            ticket,
            after,
            note,
        } => {
            for word in ["est:https", "asks for 1h", "10m are given", "longestWait"] {
                assert!(note.contains(word), "{note}");
            }
            (ticket, after)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(after, Some(Duration::from_secs(600)));
    // In another process, with less patience.
    let signer = open(&format!("{keys}, longestWait: 2h"));
    let answer = issued(run(signer.poll(&request, &ticket)));
    assert!(text(&answer).contains("IP Address:192.0.2.11"));
    let posts: Vec<Vec<u8>> = gateway
        .requests()
        .into_iter()
        .filter(|one| one.method == "POST")
        .map(|one| one.body)
        .collect();
    assert_eq!(posts.len(), 2);
    assert_eq!(posts[0], posts[1]);
    let der = STANDARD.decode(squeezed(&posts[0])).unwrap();
    assert_eq!(der, request.csr.der());
    // Afterwards this server begins anew, and asks for an hour, which is within 2h.
    let (_, after) = pending(run(signer.submit(&request)));
    assert_eq!(after, Some(Duration::from_secs(3600)));
}

#[test]
fn globalsign_defers_forbids_and_fails_on_demand() {
    let server = Est::globalsign(with_authority("est root"));
    let gateway = Gateway::to(Some(server.upstream()));
    // Its label for that fails in everything else too.
    for path in ["/cacerts", "/csrattrs"] {
        let body = run_get(&server, &format!("/.well-known/est{path}"));
        gateway.rule(Rule::on("GET", path).then(Action::Status(200, Vec::new(), body)));
    }
    let signer = open(&format!(
        "{}, label: triggererrors",
        through(&gateway, &server)
    ));
    run(signer.probe()).unwrap();
    let ask = |common_name: &str| {
        let wanted = called(CertName::FrontProxyClient, common_name);
        run(signer.submit(&request_for(wanted, UsageExtensions::Requested).0))
    };
    let (ticket, after) = pending(ask("Trigger Error Deferred"));
    assert_eq!(
        (ticket.as_str(), after),
        ("simpleenroll", Some(Duration::from_secs(600)))
    );
    says(
        &ask("Trigger Error Forbidden").unwrap_err(),
        Class::Auth,
        &[
            "triggered forbidden response",
            "front-proxy-client",
            "front-proxy-ca",
        ],
    );
    says(
        &ask("Trigger Error Unknown").unwrap_err(),
        Class::Transient,
        &["HTTP 500", "internal server error"],
    );
    let direct = open(&format!("{}, label: triggererrors", plainly(&server)));
    says(
        &run(direct.probe()).unwrap_err(),
        Class::Transient,
        &["HTTP 500", "CA certificates"],
    );
}

#[test]
fn a_refusal_after_patience_is_somebodys_decision() {
    let server = Est::libest(with_authority("est root"), &["-m", "3"], &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    let signer = open(&through(&gateway, &server));
    let request = request(CertName::EtcdPeer);
    let refused = || Action::Status(400, Vec::new(), b"no".to_vec());
    // Before, the request is what is wrong.
    gateway.rule(Rule::on("POST", ENROLL).times(1).then(refused()));
    says(
        &run(signer.submit(&request)).unwrap_err(),
        Class::Permanent,
        &["etcd-peer", "HTTP 400: no"],
    );
    let (ticket, _) = pending(run(signer.submit(&request)));
    for (status, class) in [
        (401, Class::Auth),
        (403, Class::Auth),
        (404, Class::Config),
        (503, Class::Transient),
    ] {
        gateway.behave();
        let answer = Action::Status(status, Vec::new(), Vec::new());
        gateway.rule(Rule::on("POST", ENROLL).then(answer));
        says(
            &run(signer.poll(&request, &ticket)).unwrap_err(),
            class,
            &["etcd-peer"],
        );
    }
    gateway.behave();
    gateway.rule(Rule::on("POST", ENROLL).then(refused()));
    match run(signer.poll(&request, &ticket)).unwrap() {
        Answer::Denied { reason } => assert!(reason.contains("HTTP 400: no"), "{reason}"),
        other => panic!("{other:?}"),
    }
    // So it is to the next run, or when the answer to a poll was lost.
    let again = run(signer.recover(&request, Some(&ticket))).unwrap();
    assert!(matches!(again, Some(Answer::Denied { .. })), "{again:?}");
}

// ---- renewal ----

/// A certificate of the server for this wish, with its key.
fn current(signer: &dyn Signer, wanted: Wanted) -> Current {
    let (request, key) = request_for(wanted, UsageExtensions::Requested);
    let answer = issued(run(signer.submit(&request)));
    let chain = Chain::from_answer(&answer, request.csr.public_key()).unwrap();
    Current {
        chain_pem: chain.to_pem().into_bytes(),
        key_pem: Zeroizing::new(key.to_pem().as_bytes().to_vec()),
    }
}

#[test]
fn a_certificate_is_given_in_exchange_for_one_with_the_same_names() {
    let server = Est::globalsign(with_authority("est root"));
    let signer = open(&format!(
        "url: '{}', tls: {{caFile: {}}}",
        server.url(),
        server.ca_file().display()
    ));
    for name in [
        CertName::EtcdServer,
        CertName::KubeletConf,
        CertName::Apiserver,
    ] {
        let current = current(signer.as_ref(), wanted(name));
        let next = request(name);
        let answer = issued(run(signer.renew(&next, &current)));
        assert!(Chain::from_answer(&answer, next.csr.public_key()).is_ok());
        let said = server.posts().pop().unwrap();
        assert!(
            said.contains("/simplereenroll") && said.contains("\"200\""),
            "{said}"
        );
        let before = server.posts().len();
        // Other names, by the plan or by the order.
        let mut other = wanted(name);
        match other.profile.sans.dns.is_empty() {
            true => other.profile.subject.common_name.push('x'),
            false => other.profile.sans.dns.reverse(),
        }
        let other = request_for(other, UsageExtensions::Requested).0;
        let error = run(signer.renew(&other, &current)).unwrap_err();
        says(
            &error,
            Class::Permanent,
            &[
                name.as_str(),
                "in exchange",
                "RFC 7030",
                "first certificate",
            ],
        );
        assert_eq!(server.posts().len(), before);
    }
}

/// The server's own judgement of what is refused here without asking.
#[test]
fn globalsign_wants_what_is_compared_here() {
    let server = Est::globalsign(with_authority("est root"));
    let keys = format!(
        "url: '{}', tls: {{caFile: {}}}",
        server.url(),
        server.ca_file().display()
    );
    let current = current(open(&keys).as_ref(), wanted(CertName::EtcdServer));
    let file = server.ca_file().with_file_name("current.pem");
    fs::write(
        &file,
        [current.chain_pem.as_slice(), &current.key_pem].concat(),
    )
    .unwrap();
    let ask = |request: &Request| {
        let body = STANDARD.encode(request.csr.der());
        let url = format!("{}/.well-known/est/simplereenroll", server.url());
        curl(
            &server,
            &["--cert", file.to_str().unwrap(), &url],
            Some(body.as_bytes()),
        )
    };
    let mut reversed = wanted(CertName::EtcdServer);
    reversed.profile.sans.dns.reverse();
    let reversed = request_for(reversed, UsageExtensions::Requested).0;
    let said = String::from_utf8(ask(&reversed)).unwrap();
    assert!(said.contains("must be identical"), "{said}");
    let chain = Chain::from_pem(&current.chain_pem).unwrap();
    assert!(!reversed.csr.is_named_as(chain.leaf()));
    let same = request(CertName::EtcdServer);
    assert!(same.csr.is_named_as(chain.leaf()));
    assert!(certificates_of(&STANDARD.decode(squeezed(&ask(&same))).unwrap()).is_ok());
}

#[test]
fn a_certificate_for_servers_only_is_no_credential() {
    let server = Est::libest(with_authority("est root"), &["-o"], &[]);
    let signer = open(&plainly(&server));
    let old = current(signer.as_ref(), wanted(CertName::Apiserver));
    let before = server.posts().len();
    let error = run(signer.renew(&request(CertName::Apiserver), &old)).unwrap_err();
    says(&error, Class::Permanent, &["apiserver", "for servers only"]);
    assert_eq!(server.posts().len(), before);
    let both = current(signer.as_ref(), wanted(CertName::EtcdServer));
    let next = request(CertName::EtcdServer);
    let answer = issued(run(signer.renew(&next, &both)));
    assert!(text(&answer).contains("DNS:cp1, DNS:localhost"));
    assert!(server.posts().pop().unwrap().contains("/simplereenroll"));
}

/// OpenSSL's CA puts a subject in the order of its policy, and RFC 7030 then wants a request that no plan makes.
#[test]
fn a_ca_that_reorders_names_is_asked_as_for_a_first_certificate() {
    let dir = with_authority("est root");
    let at = dir.path().display();
    let conf = format!(
        "[ca]\ndefault_ca = authority\n[authority]\ndatabase = {at}/index.txt\nserial = {at}/serial\n\
         certificate = {at}/ca.pem\nprivate_key = {at}/ca.key\ndefault_days = 365\ndefault_md = sha256\n\
         policy = subject\nemail_in_dn = no\nunique_subject = no\ncopy_extensions = copy\n\
         x509_extensions = leaf\n[subject]\ncommonName = supplied\norganizationName = optional\n\
         [leaf]\nbasicConstraints = critical,CA:FALSE\n[req]\ndistinguished_name = empty\n[empty]\n"
    );
    fs::write(dir.path().join("ca.cnf"), conf).unwrap();
    let server = Est::libest(dir, &["-o"], &[]);
    let signer = open(&plainly(&server));
    let old = current(signer.as_ref(), wanted(CertName::AdminConf));
    assert!(text(&old.chain_pem).contains("CN = kubernetes-admin, O = kubeadm:cluster-admins"));
    let before = server.posts().len();
    let next = request(CertName::AdminConf);
    let error = run(signer.renew(&next, &old)).unwrap_err();
    let words = [
        "admin.conf",
        "differently",
        "CN=kubernetes-admin, O=kubeadm:cluster-admins",
    ];
    says(&error, Class::Permanent, &words);
    assert_eq!(server.posts().len(), before);
    // Where O is not in the way there is nothing to reorder.
    let old = current(signer.as_ref(), wanted(CertName::EtcdServer));
    issued(run(signer.renew(&request(CertName::EtcdServer), &old)));
}

#[test]
fn a_renewal_that_waits_goes_on_where_it_began() {
    let server = Est::libest(with_authority("est root"), &["-m", "3"], &[]);
    let signer = open(&plainly(&server));
    let (first, key) = request_for(wanted(CertName::EtcdServer), UsageExtensions::Requested);
    let (ticket, _) = pending(run(signer.submit(&first)));
    let answer = issued(run(signer.poll(&first, &ticket)));
    let chain = Chain::from_answer(&answer, first.csr.public_key()).unwrap();
    let current = Current {
        chain_pem: chain.to_pem().into_bytes(),
        key_pem: Zeroizing::new(key.to_pem().as_bytes().to_vec()),
    };
    let next = request(CertName::EtcdServer);
    let (ticket, after) = pending(run(signer.renew(&next, &current)));
    assert_eq!((ticket.as_str(), after.is_some()), ("simplereenroll", true));
    let posts = server.posts().len();
    // The ticket alone says what to do: hand it over again.
    assert_eq!(run(signer.poll(&next, &ticket)).unwrap(), Answer::Gone);
    assert_eq!(server.posts().len(), posts);
    let answer = issued(run(signer.renew(&next, &current)));
    assert!(Chain::from_answer(&answer, next.csr.public_key()).is_ok());
    assert!(server.posts().pop().unwrap().contains("/simplereenroll"));
}

// ---- the whole node ----

#[test]
fn a_strict_server_carries_a_whole_node_and_renews_it() {
    let rig = StrictRig::new();
    let node = node(&rig);
    complete(&node, &rig);
    node.assert_sound(&CertName::KUBEADM);
    let sent = rig.sent();
    assert_eq!(sent.len(), CertName::KUBEADM.len());
    assert!(
        sent.iter()
            .any(|line| line.contains("/est/k8s-etcd-ca/simpleenroll"))
    );
    Ran::of(&mut node.ask_command("0s")).done();
    assert_eq!(rig.sent(), sent);
    node.configure(&INIT.replace("ECDSA-P256", "ECDSA-P384"));
    complete(&node, &rig);
    node.assert_sound(&CertName::KUBEADM);
    let renewed = rig.sent();
    let exchanged = |line: &&String| line.contains("/simplereenroll") && line.contains("\"200\"");
    assert_eq!(
        renewed.iter().filter(exchanged).count(),
        CertName::KUBEADM.len()
    );
    for name in CertName::KUBEADM {
        let (chain, _) = node.leaf(name).unwrap();
        assert_eq!(
            chain.leaf().public_key().key_type().to_string(),
            "ECDSA-P384"
        );
    }
}

/// Both usages for everybody are a matter of the authority's owner, and not taken without being told to.
#[test]
fn more_usages_than_asked_for_are_refused_unless_allowed() {
    let rig = StrictRig::new();
    let node = node(&rig);
    let strict = rig.settings().replace("allowExtraUsages: true, ", "");
    fs::write(node.outside("config.yaml"), strict).unwrap();
    let ran = Ran::of(&mut node.ask_command("1s"));
    ran.ended(65).says("apiserver");
    assert!(node.leaf(CertName::Apiserver).is_none());
}

/// What libest would do is done by its lenient manners; certificates for servers only begin anew.
#[test]
fn the_rig_renews_by_exchange_where_that_is_possible() {
    let rig = EstRig::new();
    let node = node(&rig);
    complete(&node, &rig);
    node.configure(&INIT.replace("ECDSA-P256", "ECDSA-P384"));
    complete(&node, &rig);
    node.assert_sound(&CertName::KUBEADM);
    let sent = rig.sent();
    let count = |what: &str| sent.iter().filter(|line| line.contains(what)).count();
    assert!(
        count("/simplereenroll") >= CertName::KUBEADM.len() - 1,
        "{sent:#?}"
    );
    let servers_only = rig.servers[0].posts();
    let enrolled = servers_only.iter().filter(|line| line.contains(ENROLL));
    // All of them once, and the API server's twice.
    let of_ca = CertName::KUBEADM
        .iter()
        .filter(|name| name.authority() == Authority::Ca);
    assert_eq!(enrolled.count(), of_ca.count() + 1, "{servers_only:#?}");
}

/// What a refused renewal is followed by is a first request; what a refused look at that one is followed by is nothing.
#[test]
fn a_look_that_is_refused_sends_nothing_more() {
    let rig = EstRig::new();
    let gateway = Gateway::to(Some(rig.etcd().upstream()));
    let node = node(&rig);
    let tls = format!("{{caFile: {}}}", gateway.ca_file().display());
    fs::write(
        node.outside("config.yaml"),
        rig.behind()(&gateway.url(), &tls),
    )
    .unwrap();
    complete(&node, &rig);
    node.configure(&INIT.replace("ECDSA-P256", "ECDSA-P384"));
    let refused = |status| Action::Status(status, Vec::new(), Vec::new());
    let waiting = Action::Status(202, vec![("Retry-After", "3600".to_owned())], Vec::new());
    gateway.rule(Rule::on("POST", "/simplereenroll").then(refused(403)));
    gateway.rule(Rule::on("POST", ENROLL).then(waiting));
    node.ask();
    gateway.behave();
    gateway.rule(Rule::on("POST", ENROLL).then(refused(401)));
    let before = gateway.requests().len();
    node.ask();
    let sent = gateway.requests().split_off(before);
    let posts = sent.iter().filter(|one| one.path.contains(ENROLL)).count();
    let of_etcd = CertName::KUBEADM
        .iter()
        .filter(|name| name.authority() == Authority::EtcdCa);
    assert_eq!(posts, of_etcd.count(), "{sent:#?}");
}

#[test]
fn a_key_that_the_server_does_not_want_ends_the_run_before_it_is_made() {
    let rig = EstRig::new();
    let node = node(&rig);
    let gateway = Gateway::to(Some(rig.etcd().upstream()));
    let wish = b"MBQwEgYHKoZIzj0CATEHBgUrgQQAIg==".to_vec();
    gateway.rule(Rule::on("GET", "/csrattrs").then(Action::Status(200, Vec::new(), wish)));
    let tls = format!("{{caFile: {}}}", gateway.ca_file().display());
    let settings = rig.behind()(&gateway.url(), &tls);
    fs::write(node.outside("config.yaml"), settings).unwrap();
    let ran = Ran::of(&mut node.ask_command("0s"));
    ran.ended(78)
        .says("etcd-server")
        .says("ECDSA-P384")
        .says("/csrattrs");
    assert!(rig.sent().is_empty());
}

/// The certificate that comes after the wait is somebody else's.
#[test]
fn another_keys_certificate_after_the_wait_is_refused() {
    let rig = EstRig::with([&[], &["-m", "3"], &[]]);
    let node = node(&rig);
    let gateway = Gateway::to(Some(rig.etcd().upstream()));
    let other = request(CertName::EtcdServer);
    run_post(rig.etcd(), &other);
    let body = run_post(rig.etcd(), &other);
    let late = Rule::on("POST", ENROLL).after(4);
    gateway.rule(late.then(Action::Replace(Box::new(move |answer| Passed {
        body: body.clone(),
        ..answer
    }))));
    let tls = format!("{{caFile: {}}}", gateway.ca_file().display());
    let settings = rig.behind()(&gateway.url(), &tls);
    fs::write(node.outside("config.yaml"), settings).unwrap();
    Ran::of(&mut node.ask_command("0s"))
        .ended(75)
        .says("longestWait");
    let ran = Ran::of(&mut node.ask_command("0s"));
    ran.ended(65).says("another key").says("etcd");
    assert!(node.leaf(CertName::EtcdServer).is_none());
}

// ---- recorded answers ----

#[test]
fn recorded_refusals_are_classified() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/signers/est");
    let mut recorded: Vec<String> = fs::read_dir(&dir)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".http"))
        .collect();
    recorded.sort();
    let expected: [(&str, Option<Class>, &[&str]); 9] = [
        ("202.http", None, &[]),
        (
            "400-content-type.http",
            Some(Class::Permanent),
            &["Invalid content type used."],
        ),
        (
            "400-pkcs10.http",
            Some(Class::Permanent),
            &["Invalid or corrupted pkcs10 request."],
        ),
        ("401-challenge.http", Some(Class::Auth), &["HTTP 401", USER]),
        (
            "401-possession.http",
            Some(Class::Auth),
            &["Proof of Possession", "TLS 1.3"],
        ),
        (
            "401-wrong-password.http",
            Some(Class::Auth),
            &["unable to authorize", USER],
        ),
        (
            "403-reenroll.http",
            Some(Class::Auth),
            &["client certificate must be provided"],
        ),
        (
            "404.http",
            Some(Class::Config),
            &["label", "path specified is not recognized"],
        ),
        (
            "415.http",
            Some(Class::Permanent),
            &["missing Content-Transfer-Encoding"],
        ),
    ];
    let mut known: Vec<&str> = expected.iter().map(|(name, ..)| *name).collect();
    known.push("429.http");
    assert_eq!(recorded, known);
    let request = request(CertName::EtcdServer);
    let replay = |name: &str| {
        gateway.behave();
        let raw = fs::read(dir.join(name)).unwrap();
        gateway.rule(Rule::on("POST", ENROLL).then(Action::Raw(raw, true)));
        run(open(&through(&gateway, &server)).submit(&request))
    };
    for (name, class, words) in expected {
        let answer = replay(name);
        match class {
            None => {
                pending(answer);
            }
            Some(class) => {
                let error = answer.unwrap_err();
                says(&error, class, words);
                says(&error, class, &["etcd-server", "etcd-ca", "est:https"]);
            }
        }
    }
    says(
        &replay("429.http").unwrap_err(),
        Class::Transient,
        &["rate limit exceeded"],
    );
}

#[test]
fn a_success_that_is_none_is_not_taken_for_one() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    let request = request(CertName::EtcdServer);
    for (status, body, words) in [
        (200, "", "it is empty"),
        (200, "<html>log in</html>", "not base64"),
        (200, "AAAA", "no certificate"),
        (201, "MAA=", "200 or 202"),
        (204, "", "200 or 202"),
        // A PKCS#7 without certificates.
        (
            200,
            "MCMGCSqGSIb3DQEHAqAWMBQCAQExADALBgkqhkiG9w0BBwGgADEA",
            "certificate",
        ),
    ] {
        gateway.behave();
        let answer = Action::Status(status, Vec::new(), body.as_bytes().to_vec());
        gateway.rule(Rule::on("POST", ENROLL).then(answer));
        let error = run(open(&through(&gateway, &server)).submit(&request)).unwrap_err();
        says(
            &error,
            Class::Permanent,
            &["etcd-server", "unusable", words],
        );
    }
}

// ---- configuration ----

fn faults_of(keys: &str) -> String {
    let text = format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         authorities: {{ca: {{signer: s}}}}\nsigners: {{s: {{est: {{{keys}}}}}}}\n"
    );
    match Settings::from_fragments(&[("est.yaml", text)]) {
        Ok((_, faults)) => faults.to_string(),
        Err(faults) => faults.to_string(),
    }
}

#[test]
fn faults_name_field_and_fix() {
    let good = "url: 'https://est:8443', tls: {caFile: /ca.pem}";
    assert_eq!(faults_of(good), "");
    for (keys, words) in [
        ("tls: {caFile: /ca.pem}", "has no url"),
        (
            "url: 'https://est/.well-known/est/x', tls: {caFile: /ca.pem}",
            "leave out /.well-known/est",
        ),
        ("url: 'https://est'", "rootSHA256"),
        (
            &format!("{good}, rootSHA256: '{}'", "00".repeat(32)),
            "keep rootSHA256, or tls.caFile",
        ),
        ("url: 'https://est', rootSHA256: 'abc'", "64 hex digits"),
        (
            &format!("{good}, label: cacerts"),
            "operation of the protocol",
        ),
        (
            &format!("{good}, label: {{apiserver: a//b}}"),
            "not a label",
        ),
        (&format!("{good}, label: '{{role}}'"), "placeholder"),
        (&format!("{good}, auth: {{}}"), "has no basic"),
        (
            &format!("{good}, auth: {{basic: {{user: 'a:b', passwordFile: /p}}}}"),
            "colon",
        ),
        (
            &format!("{good}, auth: {{basic: {{user: a, passwordFile: secret}}}}"),
            "credential:NAME",
        ),
        (
            &format!("{good}, auth: {{basic: {{passwordFile: /p}}}}"),
            "has no user",
        ),
        (&format!("{good}, longestWait: 1ms"), "1s or more"),
        (&format!("{good}, longestWait: soon"), "longestWait"),
        (&format!("{good}, lable: x"), "did you mean label"),
    ] {
        let faults = faults_of(keys);
        assert!(faults.contains(words), "{keys}: {faults}");
    }
}

// ---- curl, as a second opinion ----

fn run_get(server: &Est, path: &str) -> Vec<u8> {
    curl(server, &[&format!("{}{path}", server.url())], None)
}

/// The body of the server's answer to a request that nodepki has no part in.
fn run_post(server: &Est, request: &Request) -> Vec<u8> {
    let pem = request.csr.to_pem();
    let body: String = pem
        .lines()
        .filter(|line| !line.starts_with('-'))
        .map(|line| format!("{line}\n"))
        .collect();
    let url = format!("{}/.well-known/est/simpleenroll", server.url());
    curl(
        server,
        &["--user", &format!("{USER}:{PASSWORD}"), &url],
        Some(body.as_bytes()),
    )
}

fn curl(server: &Est, arguments: &[&str], body: Option<&[u8]>) -> Vec<u8> {
    let ca = server.ca_file();
    let mut all = vec!["--silent", "--show-error", "--cacert", ca.to_str().unwrap()];
    if body.is_some() {
        all.extend([
            "--header",
            "Content-Type: application/pkcs10",
            "--header",
            "Content-Transfer-Encoding: base64",
            "--data-binary",
            "@-",
        ]);
    }
    all.extend(arguments);
    crate::signing::run_program("curl", &all, body.unwrap_or_default())
}
