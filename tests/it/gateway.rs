//! A TLS server, with a real server behind it or without, that misbehaves as a test configures it.
//!
//! It ends TLS with a certificate of its own authority, records each request, and responds by the first [`Rule`] that
//! matches; without one it forwards the request to the upstream. It runs in threads on a port of 127.0.0.1 until it is
//! dropped.
//!
//! ```ignore
//! let gateway = Gateway::to(Some(Upstream::tls("127.0.0.1:8200", ca_pem, "localhost")));
//! gateway.rule(Rule::on("POST", "/sign/").times(1).then(Action::DropAfterForward));
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nodepki::x509::{
    Certificate, CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans,
    Subject,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};
use tempfile::TempDir;
use time::OffsetDateTime;

/// Timeout of every exchange, so a stuck test fails.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// An authority that is valid from 2020 to 2050, for tests at other times.
pub(crate) struct Issuer(CertificateAuthority);

impl Issuer {
    pub(crate) fn new(common_name: &str) -> Self {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let start = OffsetDateTime::from_unix_timestamp(1_577_836_800).unwrap();
        let lifetime = Duration::from_secs(30 * 365 * 24 * 60 * 60);
        Issuer(CertificateAuthority::self_signed(common_name, key, start, lifetime).unwrap())
    }

    /// Returns the issuer of an existing CA.
    pub(crate) fn of(authority: CertificateAuthority) -> Self {
        Issuer(authority)
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        self.0.bundle().to_pem().into_bytes()
    }

    pub(crate) fn certificate(&self) -> &Certificate {
        self.0.bundle().first()
    }

    /// Issues a server certificate at `now`.
    pub(crate) fn server(
        &self,
        dns: &[&str],
        ips: &[IpAddr],
        now: OffsetDateTime,
        lifetime: Duration,
    ) -> Pair {
        let sans = Sans {
            dns: dns.iter().map(ToString::to_string).collect(),
            ips: ips.to_vec(),
        };
        self.pair(
            "gateway",
            sans,
            vec![ExtendedUsage::ServerAuth],
            now,
            lifetime,
        )
    }

    /// Issues a client certificate that is valid now.
    pub(crate) fn client(&self, common_name: &str) -> Pair {
        self.pair(
            common_name,
            Sans::default(),
            vec![ExtendedUsage::ClientAuth],
            OffsetDateTime::now_utc(),
            Duration::from_secs(3600),
        )
    }

    fn pair(
        &self,
        common_name: &str,
        sans: Sans,
        usages: Vec<ExtendedUsage>,
        now: OffsetDateTime,
        lifetime: Duration,
    ) -> Pair {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let profile = Profile {
            subject: Subject {
                common_name: common_name.to_owned(),
                organizations: Vec::new(),
            },
            sans,
            usages,
            key: KeyAlgorithm::EcdsaP256,
            lifetime,
        };
        let certificate = self.0.issue(key.public_key(), &profile, now).unwrap();
        Pair {
            chain_pem: certificate.to_pem().into_bytes(),
            key_pem: key.to_pem().as_bytes().to_vec(),
            certificate,
        }
    }
}

/// A certificate and its key.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) chain_pem: Vec<u8>,
    pub(crate) key_pem: Vec<u8>,
    pub(crate) certificate: Certificate,
}

/// The real server behind the gateway.
#[derive(Clone)]
pub(crate) struct Upstream {
    addr: SocketAddr,
    tls: Option<(Arc<ClientConfig>, String)>,
    /// Header lines that are added to every request.
    adds: String,
}

#[allow(dead_code, reason = "each test needs another part")]
impl Upstream {
    pub(crate) fn plain(addr: impl ToSocketAddrs) -> Self {
        Upstream {
            addr: addr.to_socket_addrs().unwrap().next().unwrap(),
            tls: None,
            adds: String::new(),
        }
    }

    /// Adds a header to every request.
    pub(crate) fn adding(mut self, name: &str, value: &str) -> Self {
        self.adds.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// Returns a TLS server with the CA and the name of its certificate.
    pub(crate) fn tls(addr: impl ToSocketAddrs, ca_pem: &[u8], server_name: &str) -> Self {
        Self::with_tls(addr, ca_pem, server_name, None)
    }

    /// As [`Upstream::tls`], with a client certificate, since that of the gateway's client ends at the gateway.
    pub(crate) fn mutual_tls(
        addr: impl ToSocketAddrs,
        ca_pem: &[u8],
        server_name: &str,
        chain_pem: &[u8],
        key_pem: &[u8],
    ) -> Self {
        Self::with_tls(addr, ca_pem, server_name, Some((chain_pem, key_pem)))
    }

    fn with_tls(
        addr: impl ToSocketAddrs,
        ca_pem: &[u8],
        server_name: &str,
        identity: Option<(&[u8], &[u8])>,
    ) -> Self {
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(store(ca_pem));
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((chain, key)) => config
                .with_client_auth_cert(
                    certificates(chain),
                    PrivateKeyDer::from_pem_slice(key).unwrap(),
                )
                .unwrap(),
        };
        Upstream {
            tls: Some((Arc::new(config), server_name.to_owned())),
            ..Self::plain(addr)
        }
    }

    fn ask(&self, request: &Recorded) -> io::Result<Answer> {
        let stream = TcpStream::connect_timeout(&self.addr, EXCHANGE_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(EXCHANGE_TIMEOUT))?;
        stream.set_write_timeout(Some(EXCHANGE_TIMEOUT))?;
        let host = match &self.tls {
            Some((_, name)) => format!("{name}:{}", self.addr.port()),
            None => self.addr.to_string(),
        };
        match &self.tls {
            None => exchange(stream, request, &host, &self.adds),
            Some((config, name)) => {
                let name = ServerName::try_from(name.clone()).unwrap();
                let connection =
                    ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
                let stream = StreamOwned::new(connection, stream);
                exchange(stream, request, &host, &self.adds)
            }
        }
    }
}

fn exchange(
    mut stream: impl Read + Write,
    request: &Recorded,
    host: &str,
    adds: &str,
) -> io::Result<Answer> {
    let mut head = format!(
        "{} {} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{adds}",
        request.method, request.path
    );
    let hops = [
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "expect",
    ];
    for (name, value) in &request.headers {
        if !hops.contains(&name.to_ascii_lowercase().as_str()) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    if !request.body.is_empty() || request.method != "GET" {
        head.push_str(&format!("Content-Length: {}\r\n", request.body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(&request.body)?;
    stream.flush()?;
    let mut reader = BufReader::new(stream);
    loop {
        let (line, headers) = read_head(&mut reader)?
            .ok_or_else(|| io::Error::other("the upstream closed without an answer"))?;
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| io::Error::other(format!("no status line: {line}")))?;
        if (100..200).contains(&status) {
            continue;
        }
        let body = if request.method == "HEAD" || matches!(status, 204 | 304) {
            Vec::new()
        } else {
            read_body(&mut reader, &headers, true)?
        };
        return Ok(Answer {
            status,
            headers,
            body,
        });
    }
}

/// A response on its way to the client. The gateway sets the length and connection headers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    fn text(status: u16, body: &str) -> Self {
        Answer {
            status,
            headers: vec![("Content-Type".to_owned(), "text/plain".to_owned())],
            body: body.as_bytes().to_vec(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes_for("close")
    }

    /// Returns the response with this value of `Connection`.
    fn bytes_for(&self, connection: &str) -> Vec<u8> {
        let mut bytes = format!("HTTP/1.1 {} Gateway\r\n", self.status).into_bytes();
        let own = [
            "connection",
            "content-length",
            "transfer-encoding",
            "keep-alive",
        ];
        for (name, value) in &self.headers {
            if !own.contains(&name.to_ascii_lowercase().as_str()) {
                bytes.extend(format!("{name}: {value}\r\n").bytes());
            }
        }
        let length = self.body.len();
        bytes.extend(
            format!("Content-Length: {length}\r\nConnection: {connection}\r\n\r\n").bytes(),
        );
        bytes.extend(&self.body);
        bytes
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) method: String,
    /// Path with the query.
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The client certificate in DER.
    pub(crate) client: Option<Vec<u8>>,
    /// The server name that the client indicated.
    pub(crate) server_name: Option<String>,
}

impl Recorded {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// The gateway's reaction to a request.
#[allow(dead_code, reason = "each test needs another part")]
pub(crate) enum Action {
    /// Forwards the request to the upstream and its response to the client.
    Forward,
    /// As [`Action::Forward`], after this time.
    Delay(Duration),
    /// Responds with status, headers and body.
    Status(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Sends half of the body of the upstream's response, or of its own without an upstream.
    HalfBody,
    /// Responds with a body of 10 MiB.
    Huge,
    /// Sends bytes that are not HTTP.
    Garbage,
    /// Forwards the request and closes the connection without a response.
    DropAfterForward,
    /// Closes the connection without forwarding the request.
    DropBefore,
    /// Sends nothing for a time, then closes the connection.
    Hang(Duration),
    /// Sends these bytes, and then one `0` in each tenth of a second without end.
    Trickle(Vec<u8>),
    /// Changes the upstream's response.
    Replace(Box<dyn Fn(Answer) -> Answer + Send + Sync>),
    /// Sends these bytes and closes the connection, with `close_notify` or without.
    Raw(Vec<u8>, bool),
    Redirect(u16, String),
}

impl Action {
    /// Responds with a status and an empty body.
    pub(crate) fn status(code: u16) -> Self {
        Self::body(code, "")
    }

    /// Responds with a status and a body.
    pub(crate) fn body(code: u16, body: impl Into<Vec<u8>>) -> Self {
        Action::Status(code, Vec::new(), body.into())
    }

    /// Responds with the upstream's response after a change.
    pub(crate) fn replace(change: impl Fn(Answer) -> Answer + Send + Sync + 'static) -> Self {
        Action::Replace(Box::new(change))
    }

    /// Responds with the upstream's response after a change of its JSON body.
    pub(crate) fn change_json(
        change: impl Fn(&mut serde_json::Value) + Send + Sync + 'static,
    ) -> Self {
        Self::replace(move |mut answer| {
            let mut body = serde_json::from_slice(&answer.body).unwrap();
            change(&mut body);
            answer.body = body.to_string().into_bytes();
            answer
        })
    }
}

/// The action for requests of a method whose path contains a text.
pub(crate) struct Rule {
    method: String,
    fragment: String,
    skip: usize,
    times: usize,
    action: Arc<Action>,
}

#[allow(dead_code, reason = "each test needs another part")]
impl Rule {
    /// Matches by method, `*` for any, and by a part of the path; a `$` at its end matches the end of the path.
    pub(crate) fn on(method: &str, fragment: &str) -> Self {
        Rule {
            method: method.to_owned(),
            fragment: fragment.to_owned(),
            skip: 0,
            times: usize::MAX,
            action: Arc::new(Action::Forward),
        }
    }

    /// Limits the number of matches.
    pub(crate) fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Skips the first matching requests.
    pub(crate) fn after(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }

    pub(crate) fn then(mut self, action: Action) -> Self {
        self.action = Arc::new(action);
        self
    }

    fn fits(&self, request: &Recorded) -> bool {
        let there = match self.fragment.strip_suffix('$') {
            Some(end) => request.path.ends_with(end),
            None => request.path.contains(&self.fragment),
        };
        there && (self.method == "*" || self.method == request.method)
    }
}

/// Options of a gateway. The default is a gateway without an upstream.
pub(crate) struct Options {
    pub(crate) upstream: Option<Upstream>,
    /// The server certificate; by default one for `localhost`, 127.0.0.1 and ::1.
    pub(crate) issuer: Issuer,
    pub(crate) pair: Option<Pair>,
    /// Certificates that are sent after those of the pair.
    pub(crate) sends: Vec<u8>,
    /// The CA of requested client certificates, and whether a certificate is required.
    pub(crate) clients: Option<(Vec<u8>, bool)>,
    pub(crate) tls12: bool,
    /// Serves without TLS.
    pub(crate) plain: bool,
    /// Keeps a connection open after a forwarded response.
    pub(crate) keep_alive: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            upstream: None,
            issuer: Issuer::new("gateway-ca"),
            pair: None,
            sends: Vec::new(),
            clients: None,
            tls12: false,
            plain: false,
            keep_alive: false,
        }
    }
}

struct Shared {
    upstream: Option<Upstream>,
    tls: Option<Arc<ServerConfig>>,
    keep_alive: bool,
    rules: Mutex<Vec<Rule>>,
    requests: Mutex<Vec<Recorded>>,
    connections: AtomicUsize,
    /// Number of requests that an [`Action::Delay`] delays, and the largest number of them at the same time.
    delayed: AtomicUsize,
    most_delayed: AtomicUsize,
    sockets: Mutex<Vec<TcpStream>>,
    stop: AtomicBool,
}

/// A running gateway.
pub(crate) struct Gateway {
    addr: SocketAddr,
    dir: TempDir,
    issuer: Issuer,
    pair: Pair,
    plain: bool,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[allow(dead_code, reason = "each test needs another part")]
impl Gateway {
    /// Starts a gateway with TLS, in front of a server or without one.
    pub(crate) fn to(upstream: Option<Upstream>) -> Self {
        Self::start(Options {
            upstream,
            ..Options::default()
        })
    }

    pub(crate) fn start(options: Options) -> Self {
        let pair = options.pair.unwrap_or_else(|| {
            options.issuer.server(
                &["localhost"],
                &["127.0.0.1", "::1"].map(|ip| ip.parse().unwrap()),
                OffsetDateTime::now_utc(),
                Duration::from_secs(24 * 60 * 60),
            )
        });
        let tls = (!options.plain)
            .then(|| server_config(&pair, &options.sends, options.clients, options.tls12));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), options.issuer.pem()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream: options.upstream,
            tls,
            keep_alive: options.keep_alive,
            rules: Mutex::default(),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            delayed: AtomicUsize::new(0),
            most_delayed: AtomicUsize::new(0),
            sockets: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Gateway {
            addr,
            dir,
            issuer: options.issuer,
            pair,
            plain: options.plain,
            shared,
            accepting: Some(accepting),
        }
    }

    /// Returns `https://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> String {
        self.url_of("127.0.0.1")
    }

    /// Returns the URL with another host.
    pub(crate) fn url_of(&self, host: &str) -> String {
        let scheme = if self.plain { "http" } else { "https" };
        format!("{scheme}://{host}:{}", self.addr.port())
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn ca_pem(&self) -> Vec<u8> {
        self.issuer.pem()
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    /// Returns the SHA-256 of the key of the server certificate.
    pub(crate) fn pin(&self) -> [u8; 32] {
        self.pair.certificate.public_key().sha256()
    }

    /// Returns the SHA-256 of the key of its authority.
    pub(crate) fn ca_pin(&self) -> [u8; 32] {
        self.issuer.certificate().public_key().sha256()
    }

    /// Returns the SHA-256 of the whole server certificate.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        self.pair.certificate.fingerprint()
    }

    /// Adds a rule. The first rule that matches and is not used up applies.
    pub(crate) fn rule(&self, rule: Rule) -> &Self {
        self.shared.rules.lock().unwrap().push(rule);
        self
    }

    /// Removes all rules, so every request is forwarded.
    pub(crate) fn behave(&self) {
        self.shared.rules.lock().unwrap().clear();
    }

    /// Replaces all rules by this one.
    pub(crate) fn only(&self, rule: Rule) {
        *self.shared.rules.lock().unwrap() = vec![rule];
    }

    /// Returns the `tls` keys of a configuration by which a client trusts this gateway and nothing else.
    pub(crate) fn trusted(&self) -> String {
        format!("{{caFile: {}}}", self.ca_file().display())
    }

    /// Returns all requests so far.
    pub(crate) fn requests(&self) -> Vec<Recorded> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Returns the largest number of requests that were delayed at the same time.
    pub(crate) fn most_delayed(&self) -> usize {
        self.shared.most_delayed.load(Ordering::SeqCst)
    }

    /// Returns the number of connections, with TLS or without.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.addr);
        for socket in self.shared.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

fn server_config(
    pair: &Pair,
    sends: &[u8],
    clients: Option<(Vec<u8>, bool)>,
    tls12: bool,
) -> Arc<ServerConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let versions = if tls12 {
        &[&rustls::version::TLS12][..]
    } else {
        rustls::ALL_VERSIONS
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some((ca, insists)) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(store(&ca)), provider);
            let verifier = if insists {
                verifier
            } else {
                verifier.allow_unauthenticated()
            };
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let mut chain = certificates(&pair.chain_pem);
    chain.extend(certificates(sends));
    let key = PrivateKeyDer::from_pem_slice(&pair.key_pem).unwrap();
    Arc::new(builder.with_single_cert(chain, key).unwrap())
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .unwrap()
}

fn store(pem: &[u8]) -> RootCertStore {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem) {
        store.add(certificate).unwrap();
    }
    store
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        shared.connections.fetch_add(1, Ordering::SeqCst);
        if let Ok(clone) = stream.try_clone() {
            shared.sockets.lock().unwrap().push(clone);
        }
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let _ = serve(stream, &shared);
        });
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(EXCHANGE_TIMEOUT))?;
    stream.set_write_timeout(Some(EXCHANGE_TIMEOUT))?;
    let socket = stream.try_clone()?;
    let result = match &shared.tls {
        None => converse(stream, shared, |_| (None, None), |_| ()),
        Some(config) => {
            let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
            converse(
                StreamOwned::new(connection, stream),
                shared,
                |stream| {
                    let chain = stream.conn.peer_certificates().unwrap_or_default();
                    (
                        chain.first().map(|leaf| leaf.to_vec()),
                        stream.conn.server_name().map(str::to_owned),
                    )
                },
                |stream| {
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                },
            )
        }
    };
    // The kernel resets a socket that is closed with unread data; the reset can overtake the last bytes sent.
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket.set_read_timeout(Some(Duration::from_secs(1)));
    let _ = io::copy(&mut socket.take(1 << 20), &mut io::sink());
    result
}

/// Reads a request and applies the rules; further requests if connections are kept open.
fn converse<S: Read + Write>(
    stream: S,
    shared: &Shared,
    hello: impl Fn(&S) -> (Option<Vec<u8>>, Option<String>),
    close: impl FnOnce(&mut S),
) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let Some((line, headers)) = read_head(&mut reader)? else {
            return Ok(());
        };
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (method, path) = (word(), word());
        let expects = |(name, value): &(String, String)| {
            name.eq_ignore_ascii_case("expect") && value.eq_ignore_ascii_case("100-continue")
        };
        if headers.iter().any(expects) {
            reader
                .get_mut()
                .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            reader.get_mut().flush()?;
        }
        let (client, server_name) = hello(reader.get_ref());
        let request = Recorded {
            method,
            path,
            body: read_body(&mut reader, &headers, false)?,
            headers,
            client,
            server_name,
        };
        shared.requests.lock().unwrap().push(request.clone());
        let action = decide(shared, &request);
        let forwarded = || match &shared.upstream {
            Some(upstream) => upstream
                .ask(&request)
                .unwrap_or_else(|error| Answer::text(502, &error.to_string())),
            None => Answer::text(
                404,
                "no rule of this gateway fits, and nothing is behind it\n",
            ),
        };
        if let Some(Action::Delay(time)) = action.as_deref() {
            let delayed = shared.delayed.fetch_add(1, Ordering::SeqCst) + 1;
            shared.most_delayed.fetch_max(delayed, Ordering::SeqCst);
            thread::sleep(*time);
            shared.delayed.fetch_sub(1, Ordering::SeqCst);
        }
        let is_forwarded = matches!(
            action.as_deref(),
            None | Some(Action::Forward | Action::Delay(_))
        );
        if is_forwarded && shared.keep_alive {
            let bytes = forwarded().bytes_for("keep-alive");
            reader.get_mut().write_all(&bytes)?;
            reader.get_mut().flush()?;
            continue;
        }
        let mut stream = reader.into_inner();
        let (bytes, notify) = match action.as_deref() {
            None | Some(Action::Forward | Action::Delay(_)) => (forwarded().bytes(), true),
            Some(Action::Replace(change)) => (change(forwarded()).bytes(), true),
            Some(Action::Status(status, headers, body)) => {
                let headers = headers
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), value.clone()))
                    .collect();
                let answer = Answer {
                    status: *status,
                    headers,
                    body: body.clone(),
                };
                (answer.bytes(), true)
            }
            Some(Action::Redirect(status, location)) => {
                let mut answer = Answer::text(*status, "elsewhere\n");
                answer
                    .headers
                    .push(("Location".to_owned(), location.clone()));
                (answer.bytes(), true)
            }
            Some(Action::HalfBody) => {
                let answer = match &shared.upstream {
                    Some(_) => forwarded(),
                    None => Answer::text(200, "the first half, and the second half\n"),
                };
                let mut bytes = answer.bytes();
                bytes.truncate(bytes.len() - answer.body.len().div_ceil(2));
                (bytes, false)
            }
            Some(Action::Huge) => {
                let mut answer = Answer::text(200, "");
                answer.body = vec![b'x'; 10 << 20];
                (answer.bytes(), true)
            }
            Some(Action::Garbage) => (b"\x16\x03\x01 this is not HTTP\r\n\r\n".to_vec(), true),
            Some(Action::Raw(bytes, notify)) => (bytes.clone(), *notify),
            Some(Action::DropBefore) => return Ok(()),
            Some(Action::DropAfterForward) => {
                forwarded();
                return Ok(());
            }
            Some(Action::Trickle(bytes)) => {
                stream.write_all(bytes)?;
                while !shared.stop.load(Ordering::SeqCst) {
                    stream.write_all(b"0")?;
                    stream.flush()?;
                    thread::sleep(Duration::from_millis(100));
                }
                return Ok(());
            }
            Some(Action::Hang(duration)) => {
                let end = Instant::now() + *duration;
                while Instant::now() < end && !shared.stop.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(10));
                }
                return Ok(());
            }
        };
        stream.write_all(&bytes)?;
        stream.flush()?;
        if notify {
            close(&mut stream);
        }
        return Ok(());
    }
}

fn decide(shared: &Shared, request: &Recorded) -> Option<Arc<Action>> {
    let mut rules = shared.rules.lock().unwrap();
    for rule in rules.iter_mut().filter(|rule| rule.fits(request)) {
        if rule.skip > 0 {
            rule.skip -= 1;
        } else if rule.times > 0 {
            rule.times -= 1;
            return Some(Arc::clone(&rule.action));
        }
    }
    None
}

type Head = (String, Vec<(String, String)>);

/// Reads the first line and the headers; `None` if the peer closed the connection without sending anything.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end() {
            "" => return Ok(Some((first.trim_end().to_owned(), headers))),
            line => {
                let (name, value) = line.split_once(':').unwrap_or((line, ""));
                headers.push((name.to_owned(), value.trim().to_owned()));
            }
        }
    }
}

/// Reads a body by chunks, by length or, for responses, until the connection closes, with `close_notify` or without.
fn read_body(
    reader: &mut impl BufRead,
    headers: &[(String, String)],
    is_answer: bool,
) -> io::Result<Vec<u8>> {
    let header = |wanted: &str| {
        headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.as_str())
    };
    let mut body = Vec::new();
    if header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(size, 16).map_err(io::Error::other)?;
            reader.by_ref().take(size).read_to_end(&mut body)?;
            // The end of line after a chunk or, after the last one, trailers up to an empty line.
            loop {
                let mut end = String::new();
                let more = reader.read_line(&mut end)? > 2;
                if size > 0 || !more {
                    break;
                }
            }
            if size == 0 {
                return Ok(body);
            }
        }
    }
    if let Some(length) = header("content-length") {
        let length: u64 = length.parse().map_err(io::Error::other)?;
        reader.take(length).read_to_end(&mut body)?;
        if body.len() as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    } else if is_answer {
        match reader.read_to_end(&mut body) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            other => drop(other?),
        }
    }
    Ok(body)
}

// ---- tests of the gateway itself ----

/// Sends a request and returns the whole response.
fn ask(gateway: &Gateway, request: &str) -> String {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store(&gateway.ca_pem()))
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(gateway.addr()).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn forwards_requests_and_responses_completely() {
    let upstream = Gateway::to(None);
    let chunked = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nX-Kept: yes\r\n\
                   Transfer-Encoding: chunked\r\n\r\n4;x=y\r\n\r\n\r\n\r\n3\r\nend\r\n0\r\nTrailer: t\r\n\r\n";
    let open_end = "HTTP/1.0 200 OK\r\n\r\nto the end";
    upstream
        .rule(Rule::on("POST", "/chunked").then(Action::Raw(chunked.into(), true)))
        .rule(Rule::on("GET", "/open").then(Action::Raw(open_end.into(), false)))
        .rule(Rule::on("GET", "/large").then(Action::Huge));
    let gateway = Gateway::to(Some(Upstream::tls(
        upstream.addr(),
        &upstream.ca_pem(),
        "localhost",
    )));
    let answer = ask(
        &gateway,
        "POST /chunked?a=b HTTP/1.1\r\nHost: x\r\nX-Mine: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert!(
        answer.contains("X-Kept: yes\r\nContent-Length: 7\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with("\r\n\r\n\r\n\r\nend"), "{answer:?}");
    let there = upstream.requests().remove(0);
    assert_eq!((&*there.method, &*there.path), ("POST", "/chunked?a=b"));
    assert_eq!(
        (&*there.body, there.header("x-mine")),
        (&b"hi"[..], Some("1"))
    );
    assert_eq!(gateway.requests()[0].body, b"hi");
    let answer = ask(&gateway, "GET /open HTTP/1.1\r\n\r\n");
    assert!(answer.ends_with("Content-Length: 10\r\nConnection: close\r\n\r\nto the end"));
    assert!(ask(&gateway, "GET /large HTTP/1.1\r\n\r\n").len() > 10 << 20);
}

#[test]
fn applies_first_matching_rule() {
    let upstream = Gateway::to(None);
    let status = |code| Action::Status(code, Vec::new(), b"0123456789".to_vec());
    upstream.rule(Rule::on("*", "/").then(status(200)));
    let gateway = Gateway::to(Some(Upstream::tls(
        upstream.addr(),
        &upstream.ca_pem(),
        "localhost",
    )));
    gateway
        .rule(Rule::on("GET", "/a").after(1).times(1).then(status(503)))
        .rule(Rule::on("GET", "/b").then(Action::DropAfterForward))
        .rule(Rule::on("GET", "/c").then(Action::DropBefore))
        .rule(Rule::on("GET", "/d").then(Action::HalfBody))
        .rule(
            Rule::on("GET", "/e").then(Action::Replace(Box::new(|mut answer| {
                answer.status += 2;
                answer.body.truncate(1);
                answer
            }))),
        );
    let get = |path: &str| ask(&gateway, &format!("GET {path} HTTP/1.1\r\n\r\n"));
    for status in ["200", "503", "200"] {
        assert!(get("/a").starts_with(&format!("HTTP/1.1 {status} ")));
    }
    let before = upstream.requests().len();
    assert_eq!(get("/b"), "");
    assert_eq!(upstream.requests().len(), before + 1);
    assert_eq!(get("/c"), "");
    assert_eq!(upstream.requests().len(), before + 1);
    assert!(get("/d").ends_with("\r\n\r\n01234"));
    let changed = get("/e");
    assert!(changed.starts_with("HTTP/1.1 202 ") && changed.ends_with("\r\n\r\n0"));
    gateway.behave();
    assert!(get("/b").ends_with("0123456789"));
}
