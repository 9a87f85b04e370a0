//! `est` against the server of libest, with a gateway for what it does not do on demand. `signer_globalsign` has the other
//! server.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{
    Answer, CurrentCertificate, FailureClass, Request, RequestedCertificate, Signer, SignerError,
    SignerKind, Ticket,
};
use nodepki::text::hex;
use nodepki::x509::{Chain, UsageExtensions, certificates_of};
use tempfile::TempDir;

use crate::gateway::{Action, Answer as Passed, Gateway, Options, Rule};
use crate::log::logged;
use crate::node::{INIT, Node, Ran};
use crate::rig::{Denial, Front, Rig, complete, node};
use crate::servers::est::{Est, PASSWORD, USER, like, with_authority};
use crate::signer_bad::verdict;
use crate::signer_setup::print_setup;
use crate::signing::{
    HEAD, contains, current, denied, issued, openssl, rejects, request, request_for, run, settings,
    wanted, write_authorities, write_secret, x509_text,
};

const ENROLL: &str = "/simpleenroll";

// ---- rigs ----

/// A server of libest for each authority, each trusted and authenticated to in another way. One asks the client to wait.
pub(crate) struct EstRig {
    dir: TempDir,
    servers: [Est; 3],
    /// Gateways and servers that have denied a request.
    deniers: RefCell<Vec<(Gateway, Est)>>,
}

impl EstRig {
    pub(crate) fn new() -> Self {
        Self::with([&[], &[], &["-n", "-m", "3"]])
    }

    /// Starts the servers of ca, etcd-ca and front-proxy-ca with options.
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

    /// Returns settings with the server of etcd-ca at another address and another signer for front-proxy-ca.
    fn settings_with(&self, url: &str, tls: &str, proxy: &str) -> String {
        let [ca, etcd, _] = &self.servers;
        settings_of(&[
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

    /// Returns settings by address and `tls` keys of the server of etcd-ca, on which alone the end of a run depends.
    fn behind(&self) -> impl Fn(&str, &str) -> String + 'static {
        let proxy = format!("local: {{directory: {}}}", self.dir.path().display());
        let all = self.settings_with("@url@", "@tls@", &proxy);
        move |url, tls| all.replace("@url@", url).replace("@tls@", tls)
    }
}

impl EstRig {
    /// Returns a node whose signer of etcd-ca uses the gateway.
    fn node_behind(&self, gateway: &Gateway) -> Node {
        let node = node(self);
        let settings = self.behind()(&gateway.url(), &gateway.trusted());
        fs::write(node.outside("config.yaml"), settings).unwrap();
        node
    }
}

impl Rig for EstRig {
    fn kind(&self) -> SignerKind {
        SignerKind::Est
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

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// EST does not define a denial: a request that is refused after it was accepted counts as denied.
    fn deny(&self, request: &Request) -> Option<Denial> {
        let base = self.dir.path().join(request.wanted.authority.base_name());
        let server = Est::libest(like(&base), &["-m", "3"], &[]);
        let gateway = Gateway::to(Some(server.upstream()));
        let said = b"request rejected by the registration authority".to_vec();
        let refused = Rule::on("POST", ENROLL).after(1);
        gateway.rule(refused.then(Action::body(400, said)));
        let signer = open(&through(&gateway, &server));
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

/// Returns a configuration with a signer for each authority.
pub(crate) fn settings_of([ca, etcd, proxy]: &[String; 3]) -> String {
    format!(
        "{HEAD}authorities:\n  ca: {{signer: ca}}\n  etcd-ca: {{signer: etcd}}\n  front-proxy-ca: {{signer: proxy}}\n\
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

/// Returns the keys for a server.
pub(crate) fn direct(server: &Est) -> String {
    format!(
        "url: '{}', tls: {{caFile: {}}}, {}",
        server.url(),
        server.ca_file().display(),
        basic(&server.password_file())
    )
}

/// Returns the keys for a server behind a gateway.
pub(crate) fn through(gateway: &Gateway, server: &Est) -> String {
    format!(
        "url: '{}', tls: {{caFile: {}}}, {}",
        gateway.url(),
        gateway.ca_file().display(),
        basic(&server.password_file())
    )
}

/// Opens a signer with these keys and no state.
pub(crate) fn open(keys: &str) -> Rc<dyn Signer> {
    let memory = tempfile::tempdir().unwrap().keep();
    let settings = settings(&format!("est: {{{keys}}}"));
    crate::signing::open(&settings, Authority::Ca, &memory)
}

/// Returns the ticket of a pending answer and the time to wait.
#[track_caller]
pub(crate) fn pending(answer: Result<Answer, SignerError>) -> (Ticket, Option<Duration>) {
    match answer {
        Ok(Answer::Pending { ticket, after, .. }) => (ticket, after),
        other => panic!("{other:?}"),
    }
}

/// As `signing::fails`, and the message does not contain the password.
#[track_caller]
pub(crate) fn fails<T: std::fmt::Debug>(
    result: Result<T, SignerError>,
    class: FailureClass,
    parts: &[&str],
) {
    let message = crate::signing::fails(result, class, parts);
    assert!(!message.contains(PASSWORD), "{message}");
}

/// Obtains a certificate to exchange in a renewal.
pub(crate) fn obtained(signer: &dyn Signer, wanted: RequestedCertificate) -> CurrentCertificate {
    let (request, key) = request_for(wanted, UsageExtensions::Requested);
    current(&issued(run(signer.submit(&request))), &key)
}

/// Returns a server of libest, and a gateway in front of it.
fn behind_gateway(options: &[&str]) -> (Est, Gateway) {
    let server = Est::libest(with_authority("est root"), options, &[]);
    let gateway = Gateway::to(Some(server.upstream()));
    (server, gateway)
}

/// Returns a desired certificate with another common name.
pub(crate) fn called(name: CertName, common_name: &str) -> RequestedCertificate {
    let mut wanted = wanted(name);
    wanted.profile.subject.common_name = common_name.to_owned();
    wanted
}

// ---- config signer-setup ----

#[test]
fn issues_with_profiles_of_signer_setup() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    let signer = "est: {url: 'https://est.test', label: 'k8s-{authority}', tls: {systemRoots: true}, \
                  auth: {basic: {user: cp1, passwordFile: /p}}}";
    let settings = settings_of(&[signer, signer, signer].map(str::to_owned));
    let printed = print_setup(dir.path(), &settings, INIT, &["est"]);
    printed
        .done()
        .says("label k8s-etcd-ca (user cp1)")
        .says("admin.conf: O=kubeadm:cluster-admins, CN=kubernetes-admin; no alternative names; client auth;");
    for (authority, label, names) in [
        // Certificates with different usages, which are copied from the request.
        (
            Authority::Ca,
            "est-ca-k8s-ca",
            &[CertName::Apiserver, CertName::KubeletConf][..],
        ),
        (
            Authority::FrontProxyCa,
            "est-proxy-k8s-front-proxy-ca",
            &[CertName::FrontProxyClient],
        ),
    ] {
        let server = like(&dir.path().join(authority.base_name()));
        let script = server.path().join("setup.sh");
        fs::write(&script, &printed.stdout).unwrap();
        let apply = || {
            let mut command = Command::new("sh");
            Ran::of(command.arg(&script).current_dir(server.path()))
        };
        apply().done();
        let place = server.path().join(label);
        for file in ["ca.pem", "ca.key"] {
            fs::copy(server.path().join(file), place.join(file)).unwrap();
        }
        let profile = place.join("ca.cnf");
        let text = fs::read_to_string(&profile).unwrap();
        let is_fixed = text.contains("\nextendedKeyUsage = clientAuth\n");
        assert_eq!(is_fixed, authority == Authority::FrontProxyCa, "{text}");
        // A second run keeps a file that an administrator has changed.
        let changed = text.clone() + "# changed\n";
        fs::write(&profile, &changed).unwrap();
        apply().done().says("ca.cnf exists");
        assert_eq!(fs::read_to_string(&profile).unwrap(), changed);
        // The command of the script's header, by hand.
        let by_hand = request(names[0]);
        fs::write(place.join("request.csr"), by_hand.csr.to_pem()).unwrap();
        let command = printed
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("#   openssl ca "));
        let command = command
            .unwrap()
            .replace("DIRECTORY/", "")
            .replace("REQUEST", "request");
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("openssl ca {command}"));
        Ran::of(shell.current_dir(&place)).done();
        let bytes = fs::read(place.join("CERTIFICATE.crt")).unwrap();
        assert_eq!(verdict(&by_hand, &bytes, dir.path()), "");
        let variables = [("EST_OPENSSL_CACONFIG", profile.to_str().unwrap())];
        let server = Est::libest(server, &[], &variables);
        let signer = open(&direct(&server));
        for name in names {
            let request = request(*name);
            let bytes = issued(run(signer.submit(&request)));
            assert_eq!(verdict(&request, &bytes, dir.path()), "", "{name}");
        }
        let record = fs::read_to_string(place.join("index.txt")).unwrap();
        assert_eq!(record.lines().count(), names.len() + 1, "{record}");
    }
}

// ---- trust in the server ----

#[test]
fn trusts_server_by_root_fingerprint() {
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
    contains(
        &subject,
        &[
            "O = system:nodes, CN = system:node:cp1",
            "TLS Web Client Authentication",
        ],
    );

    // The fingerprint of the key works too.
    let ca = Chain::from_pem(&offered).unwrap();
    let key = hex(&ca.leaf().public_key().sha256());
    let signer = open(&keys.replace(&fingerprint(&server.ca_file()), &key));
    run(signer.probe()).unwrap();
}

#[test]
fn rejects_server_with_another_root() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let signer = open(&format!(
        "url: '{}', rootSHA256: '{}', {}",
        server.url(),
        "ab".repeat(32),
        basic(&server.password_file())
    ));
    let found = fingerprint(&server.ca_file());
    fails(
        run(signer.probe()),
        FailureClass::Config,
        &[
            "est:https://127.0.0.1",
            "ababab",
            "CN=est root",
            &found,
            "rootSHA256",
        ],
    );
    fails(
        run(signer.submit(&request(CertName::Apiserver))),
        FailureClass::Config,
        &["rootSHA256"],
    );
    assert!(server.posts().is_empty());
}

/// A server in between can copy the public root certificate.
#[test]
fn sends_no_secret_to_server_with_copied_root() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let gateway = Gateway::start(Options {
        upstream: Some(server.upstream()),
        // It would accept a client certificate.
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
    let submitted = run(signer.submit(&request(CertName::Apiserver)));
    for result in [run(signer.probe()), submitted.map(drop)] {
        fails(result, FailureClass::Config, &["127.0.0.1"]);
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
fn sends_password_only_where_needed() {
    let (server, gateway) = behind_gateway(&[]);
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
    fails(
        run(distrustful.submit(&request(CertName::Apiserver))),
        FailureClass::Config,
        &["127.0.0.1"],
    );
    assert_eq!(gateway.requests().len(), before);
}

// ---- credentials ----

#[test]
fn names_missing_or_wrong_credential_after_401() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let anonymous = format!(
        "url: '{}', tls: {{caFile: {}}}",
        server.url(),
        server.ca_file().display()
    );
    let request = request(CertName::Apiserver);
    let parts = [
        "apiserver",
        "authority ca",
        "HTTP 401",
        "auth.basic",
        "tls.certificate",
    ];
    let result = run(open(&anonymous).submit(&request));
    fails(result, FailureClass::Auth, &parts);

    let wrong = server.ca_file().with_file_name("wrong");
    write_secret(&wrong, "not the password");
    let file = wrong.to_str().unwrap();
    let signer = open(&format!("{anonymous}, {}", basic(&wrong)));
    let parts = ["HTTP 401", "unable to authorize", USER, file];
    let message = crate::signing::fails(run(signer.submit(&request)), FailureClass::Auth, &parts);
    assert!(!message.contains("not the password"), "{message}");
    // Either of two credentials may be the wrong one.
    let gateway = Gateway::to(None);
    gateway.rule(Rule::on("*", "/").then(Action::body(401, "no")));
    let client = server.client("stranger").display().to_string();
    let both = open(&format!(
        "url: '{}', tls: {{caFile: {}, certificate: {client}, key: {client}}}, {}",
        gateway.url(),
        gateway.ca_file().display(),
        basic(&wrong)
    ));
    let parts = ["HTTP 401", USER, file, client.as_str()];
    fails(run(both.submit(&request)), FailureClass::Auth, &parts);
    // The file is read for each request.
    write_secret(&wrong, PASSWORD);
    issued(run(signer.submit(&request)));
    fs::remove_file(&wrong).unwrap();
    fails(run(signer.submit(&request)), FailureClass::Config, &[file]);
}

#[test]
fn authenticates_with_client_certificate_alone() {
    let server = Est::libest(with_authority("est root"), &["-n"], &[]);
    let request = request(CertName::AdminConf);
    fails(
        run(open(&direct(&server)).submit(&request)),
        FailureClass::Auth,
        &["admin.conf", "HTTP 401"],
    );
    let signer = open(&format!(
        "url: '{}', tls: {{caFile: {}, certificate: {client}, key: {client}}}",
        server.url(),
        server.ca_file().display(),
        client = server.client("cp1").display()
    ));
    let leaf = issued(run(signer.submit(&request)));
    assert!(x509_text(&leaf).contains("O = kubeadm:cluster-admins, CN = kubernetes-admin"));
}

// ---- /csrattrs ----

#[test]
fn rejects_channel_binding_before_making_key() {
    let server = Est::libest(with_authority("est root"), &["-t"], &[]);
    let signer = open(&direct(&server));
    run(signer.probe()).unwrap();
    let request = request(CertName::Apiserver);
    let parts = ["challengePassword", "/csrattrs", "est:https"];
    rejects(signer.as_ref(), &request.wanted, &parts);
    fails(
        run(signer.submit(&request)),
        FailureClass::Auth,
        &["Proof of Possession", "TLS 1.3"],
    );
}

#[test]
fn accepts_server_without_readable_csrattrs() {
    let (server, gateway) = behind_gateway(&[]);
    let csrattrs = |action| gateway.only(Rule::on("GET", "/csrattrs").then(action));
    for status in [204, 400, 403, 404, 405, 501] {
        csrattrs(Action::status(status));
        let signer = open(&through(&gateway, &server));
        run(signer.probe()).unwrap();
        signer.preflight(&wanted(CertName::Apiserver)).unwrap();
    }
    for garbage in ["<html>no</html>", "AAAA"] {
        csrattrs(Action::body(200, garbage));
        let signer = open(&through(&gateway, &server));
        let (probed, log) = logged(|| run(signer.probe()));
        probed.unwrap();
        contains(&log, &["/csrattrs is unreadable"]);
        signer.preflight(&wanted(CertName::Apiserver)).unwrap();
    }
    for (status, class) in [(401, FailureClass::Auth), (503, FailureClass::Transient)] {
        csrattrs(Action::status(status));
        let probed = run(open(&through(&gateway, &server)).probe());
        fails(probed, class, &["requesting its CSR attributes"]);
    }
}

// ---- labels ----

#[test]
fn names_unknown_label() {
    let server = Est::libest(with_authority("est root"), &[], &[]);
    let signer = open(&format!("{}, label: etcd", direct(&server)));
    assert!(
        signer.label().ends_with("/.well-known/est/etcd"),
        "{}",
        signer.label()
    );
    let submitted = run(signer.submit(&request(CertName::EtcdServer)));
    for result in [run(signer.probe()), submitted.map(drop)] {
        let parts = ["HTTP 404", "label", "/.well-known/est/etcd"];
        fails(result, FailureClass::Config, &parts);
    }
    assert!(server.posts().is_empty());
}

/// A probe of several labels requests none; the CA of an authority shows that its label does not exist.
#[test]
fn preflight_ends_as_bootstrap_for_unknown_label() {
    let rig = EstRig::new();
    let node = node(&rig);
    let url = format!("url: '{}'", rig.etcd().url());
    node.edit_settings(&url, &format!("label: 'nope-{{authority}}', {url}"));
    for command in ["preflight", "bootstrap"] {
        Ran::of(&mut node.configured([command, "--wait", "0s"]))
            .ended(78)
            .says("HTTP 404")
            .says("/.well-known/est/nope-etcd-ca");
    }
    assert!(rig.etcd().posts().is_empty());
}

// ---- chains ----

#[test]
fn completes_chain_from_cacerts_in_any_order() {
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
    // The server certificate is issued by the intermediate, which the server does not send.
    let keys = direct(&server);
    let signer = open(&keys);
    run(signer.probe()).unwrap();
    let trust = run(signer.trust(Authority::Ca)).unwrap().unwrap();
    assert_eq!(trust, fs::read(root.path().join("ca.pem")).unwrap());

    let request = request(CertName::Apiserver);
    let answer = issued(run(signer.submit(&request)));
    let chain = Chain::from_response(&answer, request.csr.public_key()).unwrap();
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

    // The whole chain in one response, root first.
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
    let chain = Chain::from_response(&answer, request.csr.public_key()).unwrap();
    assert_eq!(chain.intermediates().len(), 1);
}

/// Makes an authority under the one in `root`, in a directory of its own.
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

pub(crate) fn squeezed(body: &[u8]) -> Vec<u8> {
    body.iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect()
}

#[test]
fn reads_response_in_every_encoding() {
    let (server, gateway) = behind_gateway(&[]);
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
        gateway.only(
            Rule::on("*", "/").then(Action::Replace(Box::new(move |answer| {
                let is_csrattrs = answer
                    .headers
                    .iter()
                    .any(|(_, value)| value.contains("csrattrs"));
                let body = if is_csrattrs {
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
        Chain::from_response(&answer, request.csr.public_key()).unwrap();
    }
    // HTTP/1.0 without a length; the connection is closed with close_notify or without.
    let request = request(CertName::EtcdServer);
    let answer = issued(run(open(&direct(&server)).submit(&request)));
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
        if notify {
            let answer = issued(answer);
            Chain::from_response(&answer, request.csr.public_key()).unwrap();
        } else {
            // Without close_notify the response may be truncated.
            fails(answer, FailureClass::Ambiguous, &["etcd-server"]);
        }
    }
}

// ---- waiting ----

#[test]
fn polls_with_same_bytes_and_limits_wait() {
    let (server, gateway) = behind_gateway(&["-m", "3"]);
    let keys = through(&gateway, &server);
    let request = request(CertName::EtcdPeer);
    let (ticket, note) = crate::signing::pending(run(open(&keys).submit(&request)));
    let parts = [
        "est:https",
        "requests a delay of 1h",
        "limited to 10m",
        "longestWait",
    ];
    contains(&note, &parts);
    let signer = open(&format!("{keys}, longestWait: 2h"));
    let answer = issued(run(signer.poll(&request, &ticket)));
    contains(&x509_text(&answer), &["IP Address:192.0.2.11"]);
    let mut posts = gateway.requests();
    posts.retain(|one| one.method == "POST");
    assert_eq!(posts.len(), 2);
    assert_eq!(posts[0].body, posts[1].body);
    let der = STANDARD.decode(squeezed(&posts[0].body)).unwrap();
    assert_eq!(der, request.csr.der());
    // The next request to this server waits again: for an hour, which is within 2h.
    let (_, after) = pending(run(signer.submit(&request)));
    assert_eq!(after, Some(Duration::from_secs(3600)));
    let (_, after) = pending(run(open(&keys).submit(&self::request(CertName::EtcdServer))));
    assert_eq!(after, Some(Duration::from_secs(600)));
}

#[test]
fn treats_refusal_after_wait_as_denial() {
    let (server, gateway) = behind_gateway(&["-m", "3"]);
    let signer = open(&through(&gateway, &server));
    let request = request(CertName::EtcdPeer);
    let enroll = || Rule::on("POST", ENROLL);
    // A refusal of the first request concerns its content.
    gateway.only(enroll().times(1).then(Action::body(400, "no")));
    let parts = ["etcd-peer", "HTTP 400: no"];
    fails(
        run(signer.submit(&request)),
        FailureClass::Permanent,
        &parts,
    );
    let (ticket, _) = pending(run(signer.submit(&request)));
    for (status, class) in [
        (401, FailureClass::Auth),
        (403, FailureClass::Auth),
        (404, FailureClass::Config),
        (501, FailureClass::Config),
        (503, FailureClass::Transient),
    ] {
        gateway.only(enroll().then(Action::status(status)));
        let polled = run(signer.poll(&request, &ticket));
        fails(polled, class, &["etcd-peer"]);
    }
    gateway.only(enroll().then(Action::body(400, "no")));
    let reason = denied(run(signer.poll(&request, &ticket)));
    contains(&reason, &["HTTP 400: no"]);
    // The next run finds the denial too, also if the response to a poll was lost.
    let again = run(signer.recover(&request, Some(&ticket))).unwrap();
    assert!(matches!(again, Some(Answer::Denied { .. })), "{again:?}");
}

// ---- renewal ----

#[test]
fn does_not_exchange_certificate_without_client_auth() {
    let server = Est::libest(with_authority("est root"), &["-o"], &[]);
    let signer = open(&direct(&server));
    let old = obtained(signer.as_ref(), wanted(CertName::Apiserver));
    let before = server.posts().len();
    fails(
        run(signer.renew(&request(CertName::Apiserver), &old)),
        FailureClass::Permanent,
        &["apiserver", "for servers only"],
    );
    assert_eq!(server.posts().len(), before);
    let both = obtained(signer.as_ref(), wanted(CertName::EtcdServer));
    let next = request(CertName::EtcdServer);
    let answer = issued(run(signer.renew(&next, &both)));
    assert!(x509_text(&answer).contains("DNS:cp1, DNS:localhost"));
    assert!(server.posts().pop().unwrap().contains("/simplereenroll"));
}

/// `openssl ca` orders the subject by its policy; RFC 7030 then requires a CSR with that order.
#[test]
fn does_not_exchange_certificate_with_reordered_subject() {
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
    let signer = open(&direct(&server));
    let old = obtained(signer.as_ref(), wanted(CertName::AdminConf));
    assert!(
        x509_text(&old.chain_pem).contains("CN = kubernetes-admin, O = kubeadm:cluster-admins")
    );
    let before = server.posts().len();
    let next = request(CertName::AdminConf);
    let parts = [
        "admin.conf",
        "differently",
        "CN=kubernetes-admin, O=kubeadm:cluster-admins",
    ];
    fails(
        run(signer.renew(&next, &old)),
        FailureClass::Permanent,
        &parts,
    );
    assert_eq!(server.posts().len(), before);
    // A subject without O has only one order.
    let old = obtained(signer.as_ref(), wanted(CertName::EtcdServer));
    issued(run(signer.renew(&request(CertName::EtcdServer), &old)));
}

#[test]
fn continues_waiting_renewal_as_renewal() {
    let server = Est::libest(with_authority("est root"), &["-m", "3"], &[]);
    let signer = open(&direct(&server));
    let (first, key) = request_for(wanted(CertName::EtcdServer), UsageExtensions::Requested);
    let (ticket, _) = pending(run(signer.submit(&first)));
    let answer = issued(run(signer.poll(&first, &ticket)));
    let current = current(&answer, &key);
    let next = request(CertName::EtcdServer);
    let (ticket, after) = pending(run(signer.renew(&next, &current)));
    assert_eq!((ticket.as_str(), after.is_some()), ("simplereenroll", true));
    let posts = server.posts().len();
    // The ticket alone tells that the request must be sent again.
    assert_eq!(run(signer.poll(&next, &ticket)).unwrap(), Answer::Gone);
    assert_eq!(server.posts().len(), posts);
    let answer = issued(run(signer.renew(&next, &current)));
    assert!(Chain::from_response(&answer, next.csr.public_key()).is_ok());
    assert!(server.posts().pop().unwrap().contains("/simplereenroll"));
}

// ---- the whole node ----

/// libest exchanges every certificate that has the usage client auth.
#[test]
fn renews_node_by_exchange_where_possible() {
    let rig = EstRig::new();
    let node = node(&rig);
    complete(&node, &rig);
    node.change_keys("ECDSA-P384");
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
    // Each certificate once, and that of the API server twice.
    let of_ca = CertName::KUBEADM
        .iter()
        .filter(|name| name.authority() == Authority::Ca);
    assert_eq!(enrolled.count(), of_ca.count() + 1, "{servers_only:#?}");
}

/// A refused renewal is followed by a first request; a refusal of that one ends the attempt.
#[test]
fn sends_nothing_after_refused_poll() {
    let rig = EstRig::new();
    let gateway = Gateway::to(Some(rig.etcd().upstream()));
    let node = rig.node_behind(&gateway);
    complete(&node, &rig);
    node.change_keys("ECDSA-P384");
    let refused = |status| Action::status(status);
    let waiting = Action::Status(202, vec![("Retry-After", "3600".to_owned())], Vec::new());
    gateway.rule(Rule::on("POST", "/simplereenroll").then(refused(403)));
    gateway.rule(Rule::on("POST", ENROLL).then(waiting));
    node.ask();
    gateway.only(Rule::on("POST", ENROLL).then(refused(401)));
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
fn rejects_key_algorithm_before_making_key() {
    let rig = EstRig::new();
    let gateway = Gateway::to(Some(rig.etcd().upstream()));
    let p384 = "MBQwEgYHKoZIzj0CATEHBgUrgQQAIg==";
    gateway.rule(Rule::on("GET", "/csrattrs").then(Action::body(200, p384)));
    rig.node_behind(&gateway)
        .ask()
        .ended(78)
        .says("etcd-server")
        .says("ECDSA-P384")
        .says("/csrattrs");
    assert!(rig.sent().is_empty());
}

#[test]
fn refuses_certificate_of_another_key_after_wait() {
    let rig = EstRig::with([&[], &["-m", "3"], &[]]);
    let gateway = Gateway::to(Some(rig.etcd().upstream()));
    let other = request(CertName::EtcdServer);
    run_post(rig.etcd(), &other);
    let body = run_post(rig.etcd(), &other);
    let late = Rule::on("POST", ENROLL).after(4);
    gateway.rule(late.then(Action::Replace(Box::new(move |answer| Passed {
        body: body.clone(),
        ..answer
    }))));
    let node = rig.node_behind(&gateway);
    node.ask().ended(75).says("longestWait");
    let ran = node.ask();
    ran.ended(65).says("another key").says("etcd");
    assert!(node.leaf(CertName::EtcdServer).is_none());
}

// ---- curl, independent of nodepki ----

pub(crate) fn run_get(server: &Est, path: &str) -> Vec<u8> {
    curl(server, &[&format!("{}{path}", server.url())], None)
}

/// Returns the body of the server's response to a request sent by curl.
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

pub(crate) fn curl(server: &Est, arguments: &[&str], body: Option<&[u8]>) -> Vec<u8> {
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
