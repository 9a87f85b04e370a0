//! The TLS client against a gateway that misbehaves: trust, what is sent to which server, and the kinds of errors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nodepki::http::{
    Call, Client, ClientIdentity, Endpoint, Files, HttpError, HttpErrorKind, HttpResponse, Tls, Url,
};
use nodepki::text::hex;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use zeroize::Zeroizing;

use crate::gateway::{Action, Gateway, Issuer, Options, Pair, Rule};
use crate::log::logged;
use crate::signing::{PlainFiles, now, run};
use crate::time::{eventually, patience};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// [`Files`] with these files only.
struct NodeWith(BTreeMap<PathBuf, Vec<u8>>);

impl Files for NodeWith {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        let content = self.0.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Zeroizing::new(content.clone()))
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path)
    }
}

pub(crate) fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

/// Returns the gateway as an endpoint that is trusted by the file of its authority.
fn endpoint(gateway: &Gateway) -> Endpoint {
    Endpoint {
        tls: Tls {
            ca_file: Some(gateway.ca_file()),
            ..Tls::default()
        },
        ..Endpoint::new(url(&gateway.url()))
    }
}

fn pinned(gateway: &Gateway, pins: &[[u8; 32]]) -> Endpoint {
    Endpoint {
        tls: Tls {
            sha256: pins.to_vec(),
            ..Tls::default()
        },
        ..Endpoint::new(url(&gateway.url()))
    }
}

pub(crate) fn client(endpoint: Endpoint) -> Client {
    Client::new(endpoint, Rc::new(PlainFiles), OffsetDateTime::now_utc).unwrap()
}

fn get(endpoint: Endpoint) -> Result<HttpResponse, HttpError> {
    run(client(endpoint).send(Call::get("/x")))
}

/// Returns the error's kind and its text with the advice.
fn failure(result: Result<HttpResponse, HttpError>) -> (HttpErrorKind, String) {
    let error = result.unwrap_err();
    let text = format!("{error}; {}", error.advice());
    assert!(!text.contains("report this"), "{text}");
    (error.kind().clone(), text)
}

#[track_caller]
fn assert_fails(result: Result<HttpResponse, HttpError>, kind: &HttpErrorKind, parts: &[&str]) {
    let (found, text) = failure(result);
    assert_eq!(&found, kind, "{text}");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

fn answering(status: u16) -> Gateway {
    let gateway = Gateway::to(None);
    gateway.rule(Rule::on("*", "/").then(Action::body(status, "ok")));
    gateway
}

fn answering_with(options: Options) -> Gateway {
    let gateway = Gateway::start(options);
    gateway.rule(Rule::on("*", "/").then(Action::body(200, "ok")));
    gateway
}

fn raw(answer: &str, notify: bool) -> Gateway {
    let gateway = Gateway::to(None);
    gateway.rule(Rule::on("*", "/").then(Action::Raw(answer.as_bytes().to_vec(), notify)));
    gateway
}

// ---- trust ----

#[test]
fn trusts_server_by_file_by_pem_and_by_system_roots_if_configured() {
    let gateway = answering(200);
    assert_eq!(get(endpoint(&gateway)).unwrap().body, b"ok");
    let mut by_content = Endpoint::new(url(&gateway.url()));
    by_content.tls.ca_pem = Some(gateway.ca_pem());
    assert!(get(by_content).unwrap().is_success());

    let store = "/etc/pki/tls/certs/ca-bundle.crt";
    let files = NodeWith(BTreeMap::from([(store.into(), gateway.ca_pem())]));
    let mut by_system = Endpoint::new(url(&gateway.url()));
    by_system.tls.system_roots = true;
    let system = Client::new(by_system.clone(), Rc::new(files), now).unwrap();
    assert!(run(system.send(Call::get("/x"))).unwrap().is_success());

    let nothing = NodeWith(BTreeMap::new());
    let system = Client::new(by_system, Rc::new(nothing), now).unwrap();
    assert_fails(
        run(system.send(Call::get("/x"))),
        &HttpErrorKind::Local,
        &["/etc/ssl/certs/ca-certificates.crt", "ca-certificates"],
    );
}

#[test]
fn trusts_no_server_without_configuration() {
    let gateway = answering(200);
    assert_fails(
        get(Endpoint::new(url(&gateway.url()))),
        &HttpErrorKind::Local,
        &[&gateway.url(), "configure the CA", "pin"],
    );
    assert_eq!(gateway.connections(), 0);
}

#[test]
fn names_both_authorities_for_untrusted_server() {
    let gateway = answering(200);
    let other = Gateway::to(None);
    let mut endpoint = endpoint(&gateway);
    endpoint.tls.ca_file = Some(other.ca_file());
    let file = other.ca_file().display().to_string();
    assert_fails(
        get(endpoint.clone()),
        &HttpErrorKind::Untrusted,
        &[
            &gateway.url(),
            "(CN=gateway)",
            "CN=gateway-ca (another CA of that name)",
            &file,
        ],
    );
    endpoint.tls.ca_file = None;
    endpoint.tls.ca_pem = Some(Issuer::new("other-ca").pem());
    assert_fails(
        get(endpoint),
        &HttpErrorKind::Untrusted,
        &["CN=gateway-ca, and not below"],
    );
    assert!(gateway.requests().is_empty());
}

#[test]
fn rejects_certificate_of_another_name_unless_configured() {
    let issuer = Issuer::new("gateway-ca");
    let pair = issuer.server(&["vault.internal"], &[], now(), DAY);
    let gateway = answering_with(Options {
        issuer,
        pair: Some(pair),
        ..Options::default()
    });
    let mut endpoint = endpoint(&gateway);
    assert_fails(
        get(endpoint.clone()),
        &HttpErrorKind::Untrusted,
        &[
            "it is for vault.internal and not for 127.0.0.1",
            "server name",
        ],
    );
    endpoint.tls.server_name = Some("vault.internal".to_owned());
    assert!(get(endpoint).unwrap().is_success());
    // The name is used in the handshake; the request still contains the address.
    let host = gateway.addr().to_string();
    let request = &gateway.requests()[0];
    assert_eq!(request.header("Host"), Some(host.as_str()));
    assert_eq!(request.server_name.as_deref(), Some("vault.internal"));
}

#[test]
fn accepts_ip_address_as_name_of_certificate() {
    let gateway = answering(200);
    let mut endpoint = endpoint(&gateway);
    endpoint.url = url(&gateway.url_of("localhost"));
    endpoint.tls.server_name = Some("::1".to_owned());
    assert!(get(endpoint).unwrap().is_success());
}

#[test]
fn rejects_expired_certificate_and_mentions_clock() {
    let issuer = Issuer::new("gateway-ca");
    let pair = issuer.server(&[], &["127.0.0.1".parse().unwrap()], now() - 10 * DAY, DAY);
    let gateway = answering_with(Options {
        issuer,
        pair: Some(pair),
        ..Options::default()
    });
    let parts = ["not valid at this machine's time", "clock"];
    assert_fails(get(endpoint(&gateway)), &HttpErrorKind::Untrusted, &parts);
    // A certificate that is pinned itself is still checked for its dates and its name.
    let pin = pinned(&gateway, &[gateway.pin()]);
    assert_fails(get(pin.clone()), &HttpErrorKind::Untrusted, &parts);
    let back_then = || now() - 10 * DAY;
    let client = Client::new(pin, Rc::new(PlainFiles), back_then).unwrap();
    assert!(run(client.send(Call::get("/x"))).unwrap().is_success());
    let elsewhere = Endpoint {
        url: url(&gateway.url_of("localhost")),
        ..pinned(&gateway, &[gateway.pin()])
    };
    let client = Client::new(elsewhere, Rc::new(PlainFiles), back_then).unwrap();
    assert_fails(
        run(client.send(Call::get("/x"))),
        &HttpErrorKind::Untrusted,
        &["for 127.0.0.1 and not for localhost"],
    );
}

#[test]
fn trusts_server_certificate_in_ca_file() {
    let gateway = answering(200);
    let issuer = Issuer::new("other-ca");
    let pair = issuer.server(&["localhost"], &[], now(), DAY);
    let other = answering_with(Options {
        issuer,
        pair: Some(pair.clone()),
        ..Options::default()
    });
    let mut endpoint = endpoint(&gateway);
    endpoint.tls.ca_file = None;
    endpoint.tls.ca_pem = Some(pair.chain_pem);
    endpoint.url = url(&other.url_of("localhost"));
    assert!(get(endpoint.clone()).unwrap().is_success());
    endpoint.url = url(&other.url());
    assert_fails(
        get(endpoint),
        &HttpErrorKind::Untrusted,
        &["not for 127.0.0.1"],
    );
}

#[test]
fn requires_pin_in_addition_to_roots() {
    let gateway = answering(200);
    for pin in [gateway.pin(), gateway.fingerprint(), gateway.ca_pin()] {
        let mut endpoint = endpoint(&gateway);
        endpoint.tls.sha256 = vec![[7; 32], pin];
        assert!(get(endpoint).unwrap().is_success());
    }
    let mut wrong = endpoint(&gateway);
    wrong.tls.sha256 = vec![[7; 32]];
    assert_fails(
        get(wrong),
        &HttpErrorKind::Untrusted,
        &[
            &format!("expected sha256:{}", "07".repeat(32)),
            &format!("CN=gateway with key sha256:{}", hex(&gateway.pin())),
        ],
    );
    // A pin does not replace the right authority.
    let mut stranger = pinned(&gateway, &[gateway.pin()]);
    stranger.tls.ca_pem = Some(Issuer::new("stranger").pem());
    assert_fails(get(stranger), &HttpErrorKind::Untrusted, &["CN=gateway-ca"]);
    assert_eq!(gateway.requests().len(), 3);
}

/// Every server with a certificate of a trusted authority can send the pinned certificate too.
#[test]
fn rejects_chain_with_unrelated_pinned_certificate() {
    let pinned_ca = Issuer::new("pinned-ca");
    let gateway = answering_with(Options {
        sends: pinned_ca.pem(),
        ..Options::default()
    });
    let pin = pinned_ca.certificate().public_key().sha256();
    let mut with_roots = endpoint(&gateway);
    with_roots.tls.sha256 = vec![pin];
    assert_fails(get(with_roots), &HttpErrorKind::Untrusted, &["127.0.0.1"]);
    assert_fails(
        get(pinned(&gateway, &[pin])),
        &HttpErrorKind::Untrusted,
        &["a pinned certificate"],
    );
    assert!(gateway.requests().is_empty());
}

#[test]
fn trusts_server_by_pins_alone() {
    let issuer = Issuer::new("gateway-ca");
    let ca = issuer.pem();
    let gateway = answering_with(Options {
        issuer,
        sends: ca,
        ..Options::default()
    });
    for pin in [gateway.pin(), gateway.fingerprint(), gateway.ca_pin()] {
        assert!(get(pinned(&gateway, &[pin])).unwrap().is_success());
    }
    assert_fails(
        get(pinned(&gateway, &[[7; 32]])),
        &HttpErrorKind::Untrusted,
        &[&hex(&gateway.pin()), &hex(&gateway.ca_pin())],
    );
    // A pinned CA that the server does not send cannot be verified.
    let silent = answering(200);
    assert_fails(
        get(pinned(&silent, &[silent.ca_pin()])),
        &HttpErrorKind::Untrusted,
        &[&hex(&silent.ca_pin()), &hex(&silent.pin())],
    );
}

#[test]
fn names_unusable_file() {
    let gateway = answering(200);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let mut endpoint = endpoint(&gateway);
    endpoint.tls.ca_file = Some(file.clone());
    let name = file.display().to_string();
    assert_fails(
        get(endpoint.clone()),
        &HttpErrorKind::Local,
        &["CA file", &name],
    );
    std::fs::write(&file, "no certificate").unwrap();
    assert_fails(
        get(endpoint.clone()),
        &HttpErrorKind::Local,
        &["CA file", &name, "PEM"],
    );

    endpoint.tls.ca_file = Some(gateway.ca_file());
    let clients = Issuer::new("clients");
    let (one, two) = (clients.client("one"), clients.client("two"));
    let key = dir.path().join("key");
    std::fs::write(&file, &one.chain_pem).unwrap();
    std::fs::write(&key, &two.key_pem).unwrap();
    endpoint.tls.certificate = Some(file);
    endpoint.tls.key = Some(key.clone());
    let key_name = key.display().to_string();
    assert_fails(
        get(endpoint.clone()),
        &HttpErrorKind::Local,
        &[&name, &key_name, "not a pair"],
    );
    std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\nhunter2\n").unwrap();
    let (kind, text) = failure(get(endpoint));
    assert_eq!(kind, HttpErrorKind::Local);
    assert!(
        text.contains(&key_name) && !text.contains("hunter2"),
        "{text}"
    );
    assert_eq!(gateway.connections(), 0);
}

// ---- client certificates ----

fn wanting(clients: &Issuer, tls12: bool) -> Gateway {
    answering_with(Options {
        clients: Some((clients.pem(), true)),
        tls12,
        ..Options::default()
    })
}

fn write_pair(dir: &Path, pair: &Pair) {
    std::fs::write(dir.join("tls.crt"), &pair.chain_pem).unwrap();
    std::fs::write(dir.join("tls.key"), &pair.key_pem).unwrap();
}

fn with_pair(gateway: &Gateway, dir: &Path) -> Endpoint {
    let mut endpoint = endpoint(gateway);
    endpoint.tls.certificate = Some(dir.join("tls.crt"));
    endpoint.tls.key = Some(dir.join("tls.key"));
    endpoint
}

#[test]
fn uses_rotated_client_certificate_immediately() {
    let clients = Issuer::new("clients");
    let gateway = wanting(&clients, false);
    let dir = tempfile::tempdir().unwrap();
    let pairs = [clients.client("old"), clients.client("new")];
    let client = client(with_pair(&gateway, dir.path()));
    for pair in &pairs {
        write_pair(dir.path(), pair);
        assert!(run(client.send(Call::get("/x"))).unwrap().is_success());
    }
    let seen: Vec<_> = gateway
        .requests()
        .into_iter()
        .map(|request| request.client.unwrap())
        .collect();
    assert_eq!(seen, pairs.map(|pair| pair.certificate.der().to_vec()));
}

/// [`Files`] in which another process replaces the client certificate after its key: the first read is of the old one.
struct HalfReplaced(RefCell<Vec<u8>>);

impl Files for HalfReplaced {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match path.file_name() {
            Some(name) if name == "tls.crt" => {
                let new = PlainFiles.read(path)?;
                Ok(Zeroizing::new(self.0.replace(new.to_vec())))
            }
            _ => PlainFiles.read(path),
        }
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path)
    }
}

#[test]
fn reads_client_certificate_again_that_is_being_replaced() {
    let clients = Issuer::new("clients");
    let gateway = wanting(&clients, false);
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path(), &clients.client("new"));
    let files = HalfReplaced(RefCell::new(clients.client("old").chain_pem));
    let endpoint = with_pair(&gateway, dir.path());
    let client = Client::new(endpoint, Rc::new(files), OffsetDateTime::now_utc).unwrap();
    assert!(run(client.send(Call::get("/x"))).unwrap().is_success());
}

#[test]
fn prefers_client_certificate_from_memory() {
    let clients = Issuer::new("clients");
    let gateway = wanting(&clients, false);
    let pair = clients.client("renewed");
    let identity = ClientIdentity {
        chain_pem: pair.chain_pem.clone(),
        key_pem: Zeroizing::new(pair.key_pem.clone()),
    };
    assert!(!format!("{identity:?}").contains("PRIVATE"));
    let client = client(endpoint(&gateway)).with_identity(identity);
    assert!(run(client.send(Call::get("/x"))).unwrap().is_success());
    assert_eq!(
        gateway.requests()[0].client.as_deref(),
        Some(pair.certificate.der())
    );
}

#[test]
fn tells_refused_client_certificate_from_lost_response() {
    let clients = Issuer::new("clients");
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path(), &Issuer::new("strangers").client("stranger"));
    for tls12 in [false, true] {
        let gateway = wanting(&clients, tls12);
        assert_fails(
            get(with_pair(&gateway, dir.path())),
            &HttpErrorKind::Refused,
            &[&gateway.url(), "CN=stranger", "CN=strangers", "valid until"],
        );
        assert_fails(
            get(endpoint(&gateway)),
            &HttpErrorKind::Refused,
            &[
                "requires a client certificate, and none is configured",
                "; the server's certificate is CN=",
                "otherwise correct the address",
            ],
        );
        assert!(gateway.requests().is_empty());
    }
}

/// After the alert Go and OpenSSL send nothing more, and reset the connection if the request is unread.
#[test]
fn recognises_client_certificate_refused_by_openssl() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::new("server-ca");
    let pair = issuer.server(&["localhost"], &[], now(), DAY);
    write_pair(dir.path(), &pair);
    std::fs::write(dir.path().join("ca.crt"), Issuer::new("clients").pem()).unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut server = Command::new("openssl")
        .args(["s_server", "-quiet", "-www", "-verify_return_error"])
        .args(["-Verify", "1", "-CAfile", "ca.crt", "-cert", "tls.crt"])
        .args(["-key", "tls.key", "-accept", &format!("127.0.0.1:{port}")])
        .current_dir(dir.path())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually(|| TcpStream::connect(("127.0.0.1", port)));
    let mine = tempfile::tempdir().unwrap();
    write_pair(mine.path(), &Issuer::new("strangers").client("stranger"));
    let endpoint = Endpoint {
        tls: Tls {
            ca_pem: Some(issuer.pem()),
            certificate: Some(mine.path().join("tls.crt")),
            key: Some(mine.path().join("tls.key")),
            ..Tls::default()
        },
        ..Endpoint::new(url(&format!("https://localhost:{port}")))
    };
    let results: Vec<_> = (0..10).map(|_| get(endpoint.clone())).collect();
    server.kill().unwrap();
    server.wait().unwrap();
    for result in results {
        assert_fails(result, &HttpErrorKind::Refused, &["CN=stranger"]);
    }
}

// ---- redirects and secrets ----

fn secret_call() -> Call<'static> {
    Call::post("/sign?code=s3cret")
        .secret("X-Vault-Token", "s3cret".to_owned())
        .bearer("s3cret".to_owned())
        .body("text/plain", b"s3cret body".to_vec())
}

#[test]
fn follows_redirect_to_configured_origin_with_body_and_headers() {
    let standby = Gateway::to(None);
    let active = answering(200);
    let mut endpoint = endpoint(&standby);
    endpoint.tls.ca_pem = Some(active.ca_pem());
    endpoint.also = vec![url(&active.url())];
    standby
        .rule(Rule::on("*", "/sign").then(Action::Redirect(307, "/again".to_owned())))
        .rule(Rule::on("*", "/again").then(Action::Redirect(308, active.url() + "/there")));
    let response = run(client(endpoint).send(secret_call())).unwrap();
    assert_eq!(response.status, 200);
    let mut requests = standby.requests();
    requests.extend(active.requests());
    let paths: Vec<_> = requests
        .iter()
        .map(|request| request.path.as_str())
        .collect();
    assert_eq!(paths, ["/sign?code=s3cret", "/again", "/there"]);
    for request in &requests {
        assert_eq!(request.method, "POST");
        assert_eq!(request.body, b"s3cret body");
        assert_eq!(request.header("X-Vault-Token"), Some("s3cret"));
        assert_eq!(request.header("Authorization"), Some("Bearer s3cret"));
    }
}

#[test]
fn refuses_redirect_to_other_origin() {
    let foreign = answering(200);
    for status in [301, 302, 303, 307, 308] {
        let gateway = Gateway::to(None);
        gateway.rule(Rule::on("*", "/").then(Action::Redirect(
            status,
            foreign.url() + "/sign?token=s3cret",
        )));
        let mut endpoint = endpoint(&gateway);
        endpoint.tls.ca_pem = Some(foreign.ca_pem());
        let kind = HttpErrorKind::Redirected { to: foreign.url() };
        let result = run(client(endpoint).send(secret_call()));
        assert_fails(
            result,
            &kind,
            &[&gateway.url(), &status.to_string(), "which is not allowed"],
        );
    }
    assert_eq!(foreign.connections(), 0);
}

#[test]
fn refuses_redirect_that_changes_method() {
    let gateway = Gateway::to(None);
    gateway.rule(Rule::on("*", "/").then(Action::Redirect(302, "/login".to_owned())));
    let kind = HttpErrorKind::Redirected { to: gateway.url() };
    assert_fails(get(endpoint(&gateway)), &kind, &["configure it"]);
    assert_eq!(gateway.requests().len(), 1);
}

#[test]
fn stops_after_circular_redirects() {
    let gateway = Gateway::to(None);
    gateway.rule(Rule::on("*", "/").then(Action::Redirect(307, "/x".to_owned())));
    let kind = HttpErrorKind::Redirected { to: gateway.url() };
    assert_fails(get(endpoint(&gateway)), &kind, &["more than 3 times"]);
    assert_eq!(gateway.requests().len(), 4);
}

#[test]
fn sends_no_secret_with_provisional_client() {
    let clients = Issuer::new("clients");
    let gateway = answering_with(Options {
        clients: Some((clients.pem(), false)),
        ..Options::default()
    });
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path(), &clients.client("me"));
    let configured = client(with_pair(&gateway, dir.path()));
    let call = || Call::get("/cacerts").secret("X-Token", "s3cret".to_owned());
    let provisional = configured.provisional();
    run(provisional.send(call().basic("me", "s3cret".to_owned()))).unwrap();
    run(provisional.send(call().header("authorization", "Bearer s3cret"))).unwrap();
    for request in gateway.requests() {
        assert_eq!(request.client, None);
        assert!(!format!("{:?}", request.headers).contains("s3cret"));
        assert_eq!(request.header("Authorization"), None);
    }
    // The authority that was learnt this way is the only trusted one from then on.
    let stranger = configured.trusting(Issuer::new("stranger").pem());
    assert_fails(
        run(stranger.send(call())),
        &HttpErrorKind::Untrusted,
        &["CN=gateway-ca"],
    );
    let trusting = provisional.trusting(gateway.ca_pem());
    assert!(run(trusting.send(call())).unwrap().is_success());
    let last = gateway.requests().pop().unwrap();
    assert_eq!(last.header("X-Token"), Some("s3cret"));
    assert!(last.client.is_some());
}

#[test]
fn keeps_secrets_out_of_messages_and_log() {
    let gateway = Gateway::to(None);
    let foreign = Gateway::to(None);
    gateway
        .rule(Rule::on("*", "/").times(1).then(Action::DropBefore))
        .rule(Rule::on("*", "/").times(1).then(Action::Huge))
        .rule(Rule::on("*", "/").times(1).then(Action::Garbage))
        .rule(
            Rule::on("*", "/")
                .times(1)
                .then(Action::Redirect(307, foreign.url() + "/s3cret?s3cret")),
        );
    let client = client(endpoint(&gateway));
    let call = secret_call();
    let mut shown = format!("{client:?} {call:?}");
    let ((), log) = logged(|| {
        for _ in 0..4 {
            let error = run(client.send(secret_call())).unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string);
            shown += &format!("{error} {error:?} {} {source:?}", error.advice());
        }
        let response = run(client.send(secret_call())).unwrap();
        shown += &format!("{response:?}");
        let split = run(client.send(Call::get("/").bearer("s3cret\nx".to_owned()))).unwrap_err();
        shown += &format!("{split:?}");
    });
    assert!(log.contains("/sign") && log.contains("404"), "{log}");
    for text in [&shown, &log] {
        assert!(!text.contains("s3cret"), "{text}");
    }
    let base64 = "czNjcmV0";
    assert!(!shown.contains(base64) && !log.contains(base64));
}

// ---- requests that cannot be sent ----

#[test]
fn rejects_unusable_endpoint_before_connecting() {
    let refused = |change: &dyn Fn(&mut Endpoint), parts: &[&str]| {
        let mut endpoint = Endpoint::new(url("https://vault:8200"));
        change(&mut endpoint);
        let error = Client::new(endpoint, Rc::new(PlainFiles), now).unwrap_err();
        assert_eq!(error.kind(), &HttpErrorKind::Local, "{error}");
        let text = format!("{error}; {}", error.advice());
        for part in parts {
            assert!(text.contains(part), "no {part:?} in: {text}");
        }
        assert!(!text.contains("s3cret"), "{text}");
    };
    for address in [
        "http://vault:8200",
        "http://10.0.0.1",
        "http://127.0.0.1.example.com",
    ] {
        refused(
            &|endpoint| endpoint.url = url(address),
            &["not encrypted", "https://"],
        );
        refused(
            &|endpoint| endpoint.also = vec![url(address)],
            &["not encrypted"],
        );
    }
    refused(&|e| e.url = url("https://me:s3cret@vault"), &["password"]);
    refused(&|e| e.url = url("https://vault/?token=s3cret"), &["query"]);
    refused(&|e| e.url = url("ldap://vault"), &["https://"]);
    refused(
        &|e| e.proxy = Some(url("http://me:s3cret@proxy:3128")),
        &["proxy"],
    );
    refused(&|e| e.proxy = Some(url("socks5://proxy:3128")), &["proxy"]);
    refused(&|e| e.tls.key = Some("/k".into()), &["certificate"]);
    refused(
        &|e| e.tls.ca_file = Some("ca.crt".into()),
        &["ca.crt", "absolute"],
    );
    refused(&|e| e.tls.server_name = Some("a b".to_owned()), &["a b"]);
    let plain = answering_with(Options {
        plain: true,
        ..Options::default()
    });
    for host in ["127.0.0.1", "localhost"] {
        let endpoint = Endpoint::new(url(&plain.url_of(host)));
        assert!(get(endpoint).unwrap().is_success());
    }
}

#[test]
fn reports_unreached_server_as_not_sent() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut endpoint = pinned(&Gateway::to(None), &[[0; 32]]);
    let mut unreachable = |address: &str, parts: &[&str]| {
        endpoint.url = url(address);
        let call = Call::get("/x").timeout(Duration::from_secs(2));
        let result = run(client(endpoint.clone()).send(call));
        assert_fails(result, &HttpErrorKind::Unreachable, parts);
    };
    unreachable(&format!("https://{closed}"), &["onnection refused"]);
    // A server that does not respond to the handshake.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    unreachable(
        &format!("https://{}", silent.local_addr().unwrap()),
        &["within the time allowed"],
    );
}

#[test]
fn names_other_scheme_of_port() {
    let tls = answering(200);
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let without_tls = format!("https://{}", plain.local_addr().unwrap());
    let answering = thread::spawn(move || {
        let (mut stream, _) = plain.accept().unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        let _ = stream.read(&mut [0; 4096]);
    });
    let go = Gateway::start(Options {
        plain: true,
        ..Options::default()
    });
    let text = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    go.rule(Rule::on("*", "/").then(Action::Raw(text.into(), true)));
    for (address, expected) in [
        (
            without_tls,
            "this port does not speak TLS; correct the address or its port",
        ),
        (
            tls.url().replace("https://", "http://"),
            "this port speaks TLS; write https://",
        ),
        (go.url(), "this port speaks TLS; write https://"),
    ] {
        let mut endpoint = pinned(&tls, &[[0; 32]]);
        endpoint.url = url(&address);
        assert_fails(get(endpoint), &HttpErrorKind::OtherScheme, &[expected]);
    }
    answering.join().unwrap();
    assert_eq!(tls.requests().len(), 1, "the request that finds TLS");
}

// ---- lost responses ----

#[test]
fn reports_incomplete_response_as_lost() {
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345";
    let chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n";
    let headless = "HTTP/1.1 200 OK\r\nContent-";
    let open_end = "HTTP/1.0 200 OK\r\n\r\n12345";
    for (name, action) in [
        ("nothing", Action::DropBefore),
        ("half", Action::HalfBody),
        ("garbage", Action::Garbage),
        ("half with notice", Action::Raw(half.into(), true)),
        ("no last chunk", Action::Raw(chunk.into(), true)),
        ("headless", Action::Raw(headless.into(), true)),
        (
            "open end without notice",
            Action::Raw(open_end.into(), false),
        ),
    ] {
        let gateway = Gateway::to(None);
        gateway.rule(Rule::on("*", "/").then(action));
        let (kind, text) = failure(get(endpoint(&gateway)));
        assert_eq!(kind, HttpErrorKind::Lost, "{name}: {text}");
        assert!(text.contains(&gateway.url()), "{text}");
        // The client repeats nothing automatically.
        assert_eq!(gateway.requests().len(), 1, "{name}");
    }
}

#[test]
fn returns_status_of_incomplete_error_page() {
    let half = "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 100000\r\n\r\n12345";
    for (name, action) in [
        ("with notice", Action::Raw(half.into(), true)),
        ("without notice", Action::Raw(half.into(), false)),
        ("byte by byte", Action::Trickle(half.into())),
    ] {
        let gateway = Gateway::to(None);
        gateway.rule(Rule::on("*", "/").then(action));
        let call = Call::get("/x").timeout(Duration::from_secs(5));
        let response = run(client(endpoint(&gateway)).send(call)).unwrap();
        assert_eq!(response.status, 503, "{name}");
        assert!(response.body.starts_with(b"12345"), "{name}");
        assert_eq!(response.retry_after, Some(Duration::from_secs(7)), "{name}");
    }
}

/// A client of HTTP/1.1 at the port of a gRPC server.
#[test]
fn names_server_that_answers_in_another_protocol() {
    let settings = "\0\0\u{12}\u{4}\0\0\0\0\0\0";
    assert_fails(
        get(endpoint(&raw(settings, true))),
        &HttpErrorKind::Lost,
        &[
            "is not HTTP/1.1: ",
            "; the server's certificate is CN=",
            "correct the address or its port",
        ],
    );
}

#[test]
fn accepts_complete_response_without_close_notify() {
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345";
    let gateway = raw(whole, false);
    assert_eq!(get(endpoint(&gateway)).unwrap().body, b"12345");
}

/// Some EST servers respond this way, also with 202.
#[test]
fn reads_http_1_0_response_until_connection_closes() {
    let gateway = raw("HTTP/1.0 200 OK\r\nContent-Type: x/y\r\n\r\n12345", true);
    let response = get(endpoint(&gateway)).unwrap();
    assert_eq!((response.status, &*response.body), (200, &b"12345"[..]));
    assert_eq!(response.header("content-type"), Some("x/y"));
    let gateway = raw("HTTP/1.0 202 Accepted\r\nRetry-After: 3600\r\n\r\n", true);
    let response = get(endpoint(&gateway)).unwrap();
    assert_eq!((response.status, &*response.body), (202, &b""[..]));
    assert_eq!(response.retry_after, Some(Duration::from_secs(3600)));
}

#[test]
fn times_out_if_server_is_silent() {
    let gateway = Gateway::to(None);
    gateway.rule(Rule::on("*", "/").then(Action::Hang(patience())));
    let call = Call::get("/x").timeout(Duration::from_millis(500));
    let result = run(client(endpoint(&gateway)).send(call));
    assert_fails(result, &HttpErrorKind::Lost, &["within the time allowed"]);
    let endpoint = Endpoint {
        timeout: Duration::from_millis(500),
        ..endpoint(&gateway)
    };
    assert_fails(
        get(endpoint),
        &HttpErrorKind::Lost,
        &["within the time allowed"],
    );
}

/// Each byte is in time, and the response is not.
#[test]
fn times_out_if_server_sends_byte_by_byte() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for start in [
        "HTTP/1.1 200 ",
        "HTTP/1.1 200 OK\r\nX-A: ",
        "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        chunked,
    ] {
        let gateway = Gateway::to(None);
        gateway.rule(Rule::on("*", "/").then(Action::Trickle(start.into())));
        let call = Call::get("/x").timeout(Duration::from_secs(1));
        let result = run(client(endpoint(&gateway)).send(call));
        assert_fails(result, &HttpErrorKind::Lost, &["within the time allowed"]);
    }
}

/// The status of a failing proxy is reported even if its page is large.
#[test]
fn truncates_large_error_page() {
    let gateway = Gateway::to(None);
    let page = vec![b'x'; 2 << 20];
    gateway.rule(Rule::on("*", "/").then(Action::body(503, page)));
    let response = get(endpoint(&gateway)).unwrap();
    assert_eq!(response.status, 503);
    assert!(response.body.len() <= 1 << 20);
}

#[test]
fn refuses_response_over_size_limit() {
    let gateway = Gateway::to(None);
    gateway.rule(Rule::on("*", "/").then(Action::Huge));
    assert_fails(
        get(endpoint(&gateway)),
        &HttpErrorKind::TooLarge,
        &["1048576"],
    );
    // With a Content-Length and without.
    let open_end = format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(2 << 20));
    let gateway = raw(&open_end, true);
    assert_fails(
        get(endpoint(&gateway)),
        &HttpErrorKind::TooLarge,
        &["200", "1048576"],
    );
    let call = || Call::get("/x").limit(3 << 20);
    let response = run(client(endpoint(&gateway)).send(call())).unwrap();
    assert_eq!(response.body.len(), 2 << 20);
}

// ---- headers of responses ----

#[test]
fn reads_retry_after_as_seconds_and_date() {
    let date = |time: OffsetDateTime| time.format(&Rfc2822).unwrap().replace("+0000", "GMT");
    let theirs = now() + 30 * DAY;
    for (header, expected) in [
        ("120".to_owned(), 120),
        (date(theirs + Duration::from_secs(90)), 90),
    ] {
        let gateway = Gateway::to(None);
        let headers = vec![("Retry-After", header), ("Date", date(theirs))];
        gateway.rule(Rule::on("*", "/").then(Action::Status(503, headers, Vec::new())));
        let response = get(endpoint(&gateway)).unwrap();
        assert_eq!(response.status, 503);
        assert_eq!(response.retry_after, Some(Duration::from_secs(expected)));
        assert_eq!(
            response.date.map(OffsetDateTime::unix_timestamp),
            Some(theirs.unix_timestamp())
        );
    }
}

#[test]
fn reports_clock_difference_once() {
    let date = |time: OffsetDateTime| time.format(&Rfc2822).unwrap().replace("+0000", "GMT");
    let warnings = |theirs: OffsetDateTime| {
        let gateway = Gateway::to(None);
        let headers = vec![("Date", date(theirs))];
        gateway.rule(Rule::on("*", "/").then(Action::Status(200, headers, Vec::new())));
        let ((), log) = logged(|| {
            let client = client(endpoint(&gateway));
            for client in [client.clone(), client.provisional()] {
                run(client.send(Call::get("/x"))).unwrap();
            }
        });
        let warnings = log.lines().filter(|line| line.contains("WARN"));
        (warnings.collect::<Vec<_>>().join("\n"), gateway.url())
    };
    assert_eq!(warnings(now() - Duration::from_secs(30)).0, "");
    for (offset, word) in [(300, "behind"), (-300, "ahead of")] {
        let (log, url) = warnings(now() + time::Duration::seconds(offset));
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains(word) && log.contains(&url), "{log}");
    }
}

// ---- proxies ----

/// Returns a proxy that supports CONNECT only, and the requests that it received.
fn proxy(answer: &'static str) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut near = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                near.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap();
            let port = head.split([':', ' ']).nth(2).unwrap().parse().unwrap();
            seen.lock().unwrap().push(head);
            near.write_all(answer.as_bytes()).unwrap();
            if answer.contains(" 200 ") {
                let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
                let (mut from, mut to) = (far, near);
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            }
        }
    });
    (address, heads)
}

#[test]
fn sends_only_host_name_to_proxy() {
    let issuer = Issuer::new("gateway-ca");
    let pair = issuer.server(&["signer.invalid"], &[], now(), DAY);
    let gateway = answering_with(Options {
        issuer,
        pair: Some(pair),
        ..Options::default()
    });
    let (address, heads) = proxy("HTTP/1.1 200 Connected\r\n\r\n");
    let mut endpoint = endpoint(&gateway);
    // A name that only the proxy can resolve.
    endpoint.url = url(&gateway.url_of("signer.invalid"));
    endpoint.proxy = Some(url(&format!("http://localhost:{}", address.port())));
    let response = run(client(endpoint).send(secret_call())).unwrap();
    assert_eq!(response.status, 200);
    let heads = heads.lock().unwrap();
    let port = gateway.addr().port();
    assert!(heads[0].starts_with(&format!("CONNECT signer.invalid:{port} HTTP/1.1")));
    assert!(!heads[0].contains("s3cret"), "{}", heads[0]);
    assert_eq!(
        gateway.requests()[0].header("Host"),
        Some(format!("signer.invalid:{port}").as_str())
    );
}

#[test]
fn names_refusing_proxy() {
    let (address, _) = proxy("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
    let mut endpoint = endpoint(&Gateway::to(None));
    endpoint.tls = Tls {
        sha256: vec![[0; 32]],
        ..Tls::default()
    };
    endpoint.proxy = Some(url(&format!("http://{address}")));
    assert_fails(
        get(endpoint),
        &HttpErrorKind::Unreachable,
        &["through the proxy", &address.to_string()],
    );
}

// ---- tests in a process of their own ----
//
// For the environment, /etc/hosts, and the log, which the threads of other tests also write.

/// Runs this test binary in `command`, with only [`child_process`] selected.
pub(crate) fn child(command: &mut Command, what: &str, gateway: &Gateway) -> Output {
    command
        .args(["--exact", "http::child_process", "--nocapture"])
        .env("NODEPKI_TEST_CHILD", what)
        .env("GATEWAY", gateway.url_of("signer.invalid"))
        .env("GATEWAY_CA", gateway.ca_file())
        .output()
        .unwrap()
}

/// The part of a test that runs in the child; in this process it does nothing.
#[test]
fn child_process() {
    match std::env::var("NODEPKI_TEST_CHILD").as_deref() {
        Ok("environment") => in_that_environment(),
        Ok("hosts") => with_those_hosts(),
        Ok("dns") => with_that_name_server(),
        Ok("dns-partial") => crate::http_dns::partial(),
        Ok("dns-refusing") => crate::http_dns::refusing(),
        Ok("dns-swallowing") => crate::http_dns::swallowing(),
        Ok("dns-all-dead") => crate::http_dns::all_dead(),
        Ok("dns-search") => crate::http_dns::search(),
        Ok("dns-link-local") => crate::http_dns::link_local(),
        Ok("dns-services") => crate::http_dns::services(),
        Ok(other) => panic!("{other}"),
        Err(_) => return,
    }
    println!("child done");
}

#[track_caller]
pub(crate) fn assert_passed(output: &Output) {
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("child done"),
        "{output:?}"
    );
}

#[test]
fn ignores_proxy_variables_of_environment() {
    let gateway = answering(200);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .env("SSL_CERT_FILE", gateway.ca_file())
        .env("SSL_CERT_DIR", gateway.ca_file().parent().unwrap())
        .env("HTTPS_PROXY", "http://127.0.0.1:1")
        .env("https_proxy", "http://127.0.0.1:1")
        .env("ALL_PROXY", "http://127.0.0.1:1");
    assert_passed(&child(&mut command, "environment", &gateway));
}

fn in_that_environment() {
    let ca = PathBuf::from(std::env::var_os("GATEWAY_CA").unwrap());
    let address = std::env::var("GATEWAY")
        .unwrap()
        .replace("signer.invalid", "localhost");
    let mut endpoint = Endpoint::new(url(&address));
    endpoint.tls.sha256 = vec![[7; 32]];
    assert_fails(
        get(endpoint.clone()),
        &HttpErrorKind::Untrusted,
        &["localhost"],
    );
    endpoint.tls.sha256.clear();
    endpoint.tls.ca_pem = Some(Issuer::new("other").pem());
    assert_fails(
        get(endpoint.clone()),
        &HttpErrorKind::Untrusted,
        &["localhost"],
    );
    endpoint.tls.ca_pem = None;
    endpoint.tls.ca_file = Some(ca);
    assert!(get(endpoint).unwrap().is_success());
}

/// Early in a boot there is no name server.
#[test]
fn resolves_names_of_hosts_file_without_dns() {
    let issuer = Issuer::new("gateway-ca");
    let pair = issuer.server(&["signer.invalid"], &[], now(), DAY);
    let gateway = answering_with(Options {
        issuer,
        pair: Some(pair),
        ..Options::default()
    });
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("hosts"), "127.0.0.1 Signer.INVALID\n").unwrap();
    std::fs::write(files.path().join("resolv.conf"), "nameserver 192.0.2.1\n").unwrap();
    let mut command = with_files(files.path(), false);
    assert_passed(&child(&mut command, "hosts", &gateway));
}

/// Returns a command that runs this test binary with `/etc/hosts` and `/etc/resolv.conf` of `dir`, optionally without a
/// network.
pub(crate) fn with_files(dir: &Path, own_network: bool) -> Command {
    let mut command = under_files(dir, own_network);
    command.arg(std::env::current_exe().unwrap());
    command
}

/// As [`with_files`], for the program that the next argument names.
pub(crate) fn under_files(dir: &Path, own_network: bool) -> Command {
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if own_network {
        command.arg("--net");
    }
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
        .args(["--propagation", "private", "sh", "-euc"])
        .arg(
            "mount --bind \"$1/hosts\" /etc/hosts
             mount --bind \"$1/resolv.conf\" \"$(readlink -f /etc/resolv.conf)\"
             if test \"$2\" = true; then ip link set lo up; fi
             shift 2; exec \"$@\"",
        )
        .arg("sh")
        .arg(dir)
        .arg(own_network.to_string());
    command
}

fn with_those_hosts() {
    let mut endpoint = Endpoint::new(url(&std::env::var("GATEWAY").unwrap()));
    endpoint.tls.ca_file = std::env::var_os("GATEWAY_CA").map(PathBuf::from);
    assert!(get(endpoint.clone()).unwrap().is_success());
    endpoint.url = url("https://other.invalid");
    let call = Call::get("/x").timeout(Duration::from_secs(1));
    let result = run(client(endpoint).send(call));
    assert_fails(
        result,
        &HttpErrorKind::Unreachable,
        &["https://other.invalid"],
    );
}

#[test]
fn resolves_names_with_search_list() {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("hosts"), "127.0.0.1 localhost\n").unwrap();
    let resolv = "nameserver 127.0.0.1\nsearch nowhere.test example.test\n";
    std::fs::write(files.path().join("resolv.conf"), resolv).unwrap();
    let mut command = with_files(files.path(), true);
    let output = child(&mut command, "dns", &Gateway::to(None));
    assert_passed(&output);
}

fn with_that_name_server() {
    let socket = UdpSocket::bind("127.0.0.1:53").unwrap();
    thread::spawn(move || {
        let mut packet = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut packet) {
            let _ = socket.send_to(&dns_answer(&packet[..length]), client);
        }
    });
    let issuer = Issuer::new("gateway-ca");
    let pair = issuer.server(&["signer"], &[], now(), DAY);
    let gateway = answering_with(Options {
        issuer,
        pair: Some(pair),
        ..Options::default()
    });
    let mut endpoint = endpoint(&gateway);
    endpoint.url = url(&gateway.url_of("signer"));
    assert!(get(endpoint.clone()).unwrap().is_success());
    endpoint.url = url("https://other.example.test");
    assert_fails(
        get(endpoint),
        &HttpErrorKind::Unreachable,
        &["the name other.example.test cannot be resolved: DNS has no address for it"],
    );
}

/// Returns a name server (RFC 1035) that knows only `signer.example.test`, as 127.0.0.1.
fn dns_answer(query: &[u8]) -> Vec<u8> {
    let mut end = 12;
    let mut name = String::new();
    while query[end] != 0 {
        let next = end + 1 + usize::from(query[end]);
        name += &String::from_utf8_lossy(&query[end + 1..next]);
        name.push('.');
        end = next;
    }
    end += 5;
    let known = name.eq_ignore_ascii_case("signer.example.test.");
    let address = known && query[end - 3] == 1;
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, if known { 0x80 } else { 0x83 }]);
    answer.extend([0, 1, 0, u8::from(address), 0, 0, 0, 0]);
    answer.extend(&query[12..end]);
    if address {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    answer
}
