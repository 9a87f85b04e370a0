//! The only TLS client: HTTP/1.1 to a server from the configuration, trusted as the configuration says.
//!
//! Owns the trust in the server (certificates, pins, the system's CAs if configured), the client certificate, the
//! deadline, the redirects that may be followed, the size limit of a response, and the classification of failures
//! ([`HttpErrorKind`]). Paths, bodies and status codes have a meaning for the callers only.
//!
//! Guarantees for every caller:
//!
//! - No server is trusted by default.
//! - The environment is ignored: no `*_PROXY`, no `SSL_CERT_FILE`.
//! - A connection carries one exchange, so a failure shows whether the server can have received the request
//!   ([`HttpErrorKind::Lost`]) or not ([`HttpErrorKind::Unreachable`]).
//! - Files are read again for each exchange, so rotation on disk needs no notification.
//! - No request is retried.
//! - Secrets are sent to the configured origins only and never appear in messages.
//!
//! `resolve` encapsulates DNS, `trust` encapsulates rustls.

mod call;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod resolve;
mod served;
mod service;
mod stream;
mod trust;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{DATE, HOST, LOCATION, RETRY_AFTER};
use reqwest::redirect::Policy;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use tokio::time::Instant;
use zeroize::Zeroizing;

pub use call::{Call, HttpResponse, encode, printable};
pub use error::{HttpError, HttpErrorKind};
pub use reqwest::{Method, Url};
pub use resolve::addresses;
pub use served::presented_certificate;
pub use service::Service;
pub use stream::{HttpStream, Line, Opened};

use crate::yaml::schema::SecretFile;
use trust::ConnectionLog;

/// Time limit for DNS, TCP, CONNECT and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for finding out whether a port speaks TLS.
const TLS_PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time within which another process that replaces the client certificate has replaced its key too.
const PAIR_REPLACEMENT_TIME: Duration = Duration::from_secs(1);
/// Default time limit of an exchange, from the DNS query to the last byte.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of redirects; a longer chain counts as a loop.
const MAX_REDIRECTS: usize = 3;
/// Difference between the clocks that is logged: with a larger one, certificates issued a minute ago are not valid yet.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);
/// Upper bound for a server's `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Gives a client read access to files of the node. Used again for every exchange.
pub trait Files {
    /// Returns the contents of the file at the absolute `path`.
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>>;

    /// Returns the contents of the file at the absolute `path`, which is a secret.
    ///
    /// # Errors
    /// [`NotPrivate`](crate::store::StoreError::NotPrivate) for a file that other users can read or change, and errors of the
    /// system.
    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>>;

    /// Returns the path of the file on this machine, for messages.
    fn shown(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }

    /// Returns access to the files that the document at the absolute path `document` may name; `None` if it is the same as
    /// this one.
    ///
    /// # Errors
    /// If the document cannot be found.
    fn named_in(&self, _document: &Path) -> io::Result<Option<Rc<dyn Files>>> {
        Ok(None)
    }
}

impl dyn Files {
    /// Returns the path or credential of a secret on this machine, for messages.
    pub fn shown_secret(&self, file: &SecretFile) -> String {
        match file {
            SecretFile::Path(path) => self.shown(path).display().to_string(),
            SecretFile::Credential(_) => file.to_string(),
        }
    }
}

/// The address of a server and the rules for trusting it, from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `https://host[:port][/base]`. `http://` for loopback addresses only.
    pub url: Url,
    /// Trust in the server, and the client certificate.
    pub tls: Tls,
    /// `http://host:port` of a proxy with CONNECT. The proxy resolves the server's name.
    pub proxy: Option<Url>,
    /// Time limit of an exchange, from the DNS query to the last byte.
    pub timeout: Duration,
    /// Further origins that a 307 or 308 may lead to and that receive secrets too: the other nodes of a Vault cluster.
    pub also: Vec<Url>,
    /// Service whose servers take the place of host and port of `url`, as long as one of them is reachable.
    pub service: Option<Service>,
}

impl Endpoint {
    /// Returns an endpoint without any trust.
    pub fn new(url: Url) -> Self {
        Endpoint {
            url,
            tls: Tls::default(),
            proxy: None,
            timeout: DEFAULT_TIMEOUT,
            also: Vec::new(),
            service: None,
        }
    }
}

/// Trust in a server, and the client certificate.
///
/// With anchors (file, PEM, system store) a server must chain to one of them. With pins in addition, the chain must also
/// contain a pinned certificate. With pins alone, the server's certificate must be pinned, or chain to a pinned CA
/// certificate that the server sends. Name and validity are verified in every case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file of the CA certificates to trust. A server certificate in it is trusted without a CA.
    pub ca_file: Option<PathBuf>,
    /// The same in PEM, for kubeconfigs with embedded data.
    pub ca_pem: Option<Vec<u8>>,
    /// SHA-256 of a SubjectPublicKeyInfo, or of a whole certificate, in DER.
    pub sha256: Vec<[u8; 32]>,
    /// Trust the CAs of the operating system as well.
    pub system_roots: bool,
    /// The name that the server's certificate must contain, if it is not the host of the URL.
    pub server_name: Option<String>,
    /// PEM file of the client certificate and its intermediates.
    pub certificate: Option<PathBuf>,
    /// PEM file of its key.
    pub key: Option<PathBuf>,
}

impl Tls {
    /// Returns true if neither a CA nor a pin is configured.
    pub fn trusts_nothing(&self) -> bool {
        self.ca_file.is_none()
            && self.ca_pem.is_none()
            && self.sha256.is_empty()
            && !self.system_roots
    }
}

/// A client certificate in memory: for a renewal that authenticates with the certificate to be renewed.
#[derive(Clone)]
pub struct ClientIdentity {
    /// Leaf first.
    pub chain_pem: Vec<u8>,
    /// PKCS#1, SEC1 or PKCS#8.
    pub key_pem: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Whether the server is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verification {
    Configured,
    /// Any server is accepted, and no secret is sent.
    Provisional,
}

/// A client of one [`Endpoint`].
#[derive(Clone)]
pub struct Client {
    endpoint: Endpoint,
    files: Rc<dyn Files>,
    clock: fn() -> OffsetDateTime,
    identity: Option<ClientIdentity>,
    verification: Verification,
    /// Shared with the clients made from this one, as the next one.
    skew_reported: Rc<Cell<bool>>,
    /// The server of the service that was last reachable.
    located: Rc<RefCell<Option<Url>>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .field("verification", &self.verification)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Returns a client of `endpoint`. Reads and sends nothing.
    ///
    /// # Errors
    /// [`HttpErrorKind::Local`] if the endpoint is not valid. An endpoint without any trust is not refused here but by
    /// [`Client::send`]: see [`Client::provisional`] and [`Client::trusting`].
    pub fn new(
        endpoint: Endpoint,
        files: Rc<dyn Files>,
        clock: fn() -> OffsetDateTime,
    ) -> Result<Client, HttpError> {
        for url in [&endpoint.url].into_iter().chain(&endpoint.also) {
            check_url(url)?;
        }
        if let Some(proxy) = &endpoint.proxy {
            check_proxy(proxy)?;
        }
        let tls = &endpoint.tls;
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err(HttpError::local(
                format!(
                    "the client certificate for {} is incomplete",
                    origin(&endpoint.url)
                ),
                "set both the certificate and the key file, or neither",
            ));
        }
        for path in [&tls.ca_file, &tls.certificate, &tls.key]
            .into_iter()
            .flatten()
        {
            if !path.is_absolute() {
                return Err(HttpError::local(
                    format!(
                        "{}, configured for {}, is not an absolute path",
                        files.shown(path).display(),
                        origin(&endpoint.url)
                    ),
                    "write an absolute path",
                ));
            }
        }
        if let Some(name) = &tls.server_name {
            trust::server_name(name)?;
        }
        Ok(Client {
            endpoint,
            files,
            clock,
            identity: None,
            verification: Verification::Configured,
            skew_reported: Rc::default(),
            located: Rc::default(),
        })
    }

    /// Returns the endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns scheme, host and port of the endpoint, for messages.
    pub fn origin(&self) -> String {
        origin(&self.endpoint.url)
    }

    /// Returns a client that uses this client certificate instead of the configured one.
    #[must_use]
    pub fn with_identity(&self, identity: ClientIdentity) -> Client {
        Client {
            identity: Some(identity),
            ..self.clone()
        }
    }

    /// Returns a client that trusts these CA certificates instead of the configured ones. Configured pins still apply.
    #[must_use]
    pub fn trusting(&self, ca_pem: Vec<u8>) -> Client {
        let mut client = self.clone();
        client.verification = Verification::Configured;
        client.endpoint.tls.ca_file = None;
        client.endpoint.tls.ca_pem = Some(ca_pem);
        client.endpoint.tls.system_roots = false;
        client
    }

    /// Returns a client that accepts any server. Only for data that a fingerprint verifies afterwards: neither secrets nor
    /// the client certificate are sent.
    #[must_use]
    pub fn provisional(&self) -> Client {
        Client {
            identity: None,
            verification: Verification::Provisional,
            ..self.clone()
        }
    }

    /// Sends a request and returns the response, whatever its status is. Follows redirects within the configured origins.
    ///
    /// # Errors
    /// See [`HttpErrorKind`].
    pub async fn send(&self, call: Call<'_>) -> Result<HttpResponse, HttpError> {
        let deadline = Instant::now() + call.timeout.unwrap_or(self.endpoint.timeout);
        let base = self.base(deadline).await;
        let mut url = call.url(&base).map_err(|error| error.at(&origin(&base)))?;
        for _ in 0..=MAX_REDIRECTS {
            let exchanged = self.exchange(&call, &url, deadline).await;
            let response = exchanged.inspect_err(|_| drop(self.located.take()))?;
            tracing::debug!(
                method = %call.method,
                origin = origin(&url),
                path = url.path(),
                status = response.status,
                "HTTP exchange"
            );
            match redirect(&url, &response) {
                None => return Ok(response),
                Some(target) => url = self.follow(&base, &url, &response, target)?,
            }
        }
        Err(HttpError::new(
            HttpErrorKind::Redirected { to: origin(&url) },
            format!(
                "{} redirects more than {MAX_REDIRECTS} times",
                self.origin()
            ),
            "find out why the servers redirect to each other",
        ))
    }

    /// Sends a request whose response has no end, such as a watch. The time limit applies until the header of the
    /// response arrives. Follows no redirect. A response that is not a success is returned complete.
    ///
    /// # Errors
    /// See [`HttpErrorKind`].
    pub async fn open(&self, call: Call<'_>) -> Result<Opened, HttpError> {
        let deadline = Instant::now() + call.timeout.unwrap_or(self.endpoint.timeout);
        let url = call
            .url(&self.endpoint.url)
            .map_err(|error| error.at(&self.origin()))?;
        let log = Arc::new(ConnectionLog::new(origin(&url)));
        let answer = self.answer(&call, &url, &log, deadline).await?;
        if answer.status().is_success() {
            Ok(Opened::Stream(HttpStream::new(
                answer,
                Arc::clone(&log),
                self.route(&url),
            )))
        } else {
            self.receive(&call, &url, &log, answer, deadline)
                .await
                .map(Opened::Response)
        }
    }

    /// Returns `target` if the redirect may be followed.
    fn follow(
        &self,
        base: &Url,
        from: &Url,
        response: &HttpResponse,
        target: Url,
    ) -> Result<Url, HttpError> {
        let allowed = [base]
            .into_iter()
            .chain(&self.endpoint.also)
            .any(|known| known.origin() == target.origin());
        // Only these two keep method and body (RFC 9110, sections 15.4.8 and 15.4.9).
        if allowed && matches!(response.status, 307 | 308) {
            return Ok(target);
        }
        let (shown_target, advice) = if allowed {
            (
                format!("{}{}", origin(&target), target.path()),
                "if that is the right address, configure it",
            )
        } else {
            (
                origin(&target),
                "if that server may receive the same secrets, add it to the configuration",
            )
        };
        Err(HttpError::new(
            HttpErrorKind::Redirected {
                to: origin(&target),
            },
            format!(
                "{} redirects to {shown_target} with status {}, which is not allowed",
                origin(from),
                response.status,
            ),
            advice,
        ))
    }

    /// Sends one request over one connection.
    async fn exchange(
        &self,
        call: &Call<'_>,
        url: &Url,
        deadline: Instant,
    ) -> Result<HttpResponse, HttpError> {
        let log = Arc::new(ConnectionLog::new(origin(url)));
        let result = match self.answer(call, url, &log, deadline).await {
            Ok(answer) => self.receive(call, url, &log, answer, deadline).await,
            Err(error) => Err(error),
        };
        let needs_tls = url.scheme() == "http"
            && match &result {
                Ok(response) => error::refuses_plain(response),
                // A server that expects TLS often closes the connection before its answer is read.
                Err(error) if *error.kind() == HttpErrorKind::Lost => self.speaks_tls(url).await,
                Err(_) => false,
            };
        if needs_tls {
            return Err(error::needs_tls(&origin(url)));
        }
        result
    }

    /// Returns whether the server of an `http://` address presents a certificate. Sends no secret.
    async fn speaks_tls(&self, url: &Url) -> bool {
        let (mut url, port) = (url.clone(), url.port_or_known_default());
        if url.set_scheme("https").is_err() || url.set_port(port).is_err() {
            return false;
        }
        let mut client = self.provisional();
        client.endpoint.proxy = None;
        let log = Arc::new(ConnectionLog::new(origin(&url)));
        let call = Call::get("/");
        let deadline = Instant::now() + TLS_PROBE_TIMEOUT;
        let _ = client.answer(&call, &url, &log, deadline).await;
        log.server_certificate().is_some()
    }

    /// Sends one request and returns the response with its body unread.
    async fn answer(
        &self,
        call: &Call<'_>,
        url: &Url,
        log: &Arc<ConnectionLog>,
        deadline: Instant,
    ) -> Result<reqwest::Response, HttpError> {
        #[cfg(feature = "fuzzing")]
        if let Some(response) = fuzz::response(self, call, url) {
            return response;
        }
        let mut request = self.request(call, url, log);
        let is_mixed = request.as_ref().is_err_and(HttpError::is_mixed_pair);
        if is_mixed && self.identity.is_none() {
            tokio::time::sleep(PAIR_REPLACEMENT_TIME).await;
            request = self.request(call, url, log);
        }
        let request = request.map_err(|error| error.at(log.origin()))?;
        match tokio::time::timeout_at(deadline, request.send()).await {
            Ok(sent) => sent.map_err(|cause| self.failed(url, log, cause)),
            Err(_) => Err(error::timed_out(log, &self.route(url))),
        }
    }

    /// Builds the request. Reports every error that is known before a connection is made.
    fn request(
        &self,
        call: &Call<'_>,
        url: &Url,
        log: &Arc<ConnectionLog>,
    ) -> Result<reqwest::RequestBuilder, HttpError> {
        let proxy = self.proxy(url);
        let mut url = url.clone();
        let authority = authority(&url);
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .http1_only()
            // On a connection that is used again, a failure would not show whether the server has received the request.
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_TIMEOUT)
            .connector_layer(trust::ConnectionWatch(Arc::clone(log)))
            .dns_resolver(resolve::Resolver::for_host(
                url.host_str().unwrap_or_default(),
                log,
            ))
            .user_agent(concat!("nodepki/", env!("CARGO_PKG_VERSION")));
        if let Some(proxy) = &proxy {
            let proxy = reqwest::Proxy::all(proxy.clone()).map_err(|cause| {
                HttpError::local("the proxy is not valid", "correct its address").caused_by(cause)
            })?;
            builder = builder
                .proxy(proxy)
                .dns_resolver(resolve::Resolver::as_asked(log));
        }
        builder = builder.tls_backend_preconfigured(self.tls(&url, log)?);
        // The handshake uses the host of the URL; the resolver above still resolves the real name.
        if let (Some(name), None, "https") = (&self.endpoint.tls.server_name, &proxy, url.scheme())
            && name.parse::<IpAddr>().is_err()
        {
            let _ = url.set_host(Some(name));
        }
        let client = builder.build().map_err(|cause| {
            HttpError::local(
                "cannot initialise the HTTP library",
                "report this as a bug of nodepki",
            )
            .caused_by(cause)
        })?;
        let request = client
            .request(call.method.clone(), url)
            .header(HOST, authority);
        call.fill(request, self.verification == Verification::Configured)
    }

    fn tls(&self, url: &Url, log: &Arc<ConnectionLog>) -> Result<rustls::ClientConfig, HttpError> {
        let tls = &self.endpoint.tls;
        let files = &*self.files;
        if url.scheme() == "http" {
            return trust::ServerTrust::None.config(None, self.clock, log);
        }
        if self.verification == Verification::Provisional {
            return trust::ServerTrust::Any.config(None, self.clock, log);
        }
        let trust = trust::ServerTrust::read(tls, files)?;
        let identity = match (&self.identity, &tls.certificate, &tls.key) {
            (Some(identity), _, _) => Some(trust::certified_key(
                &identity.chain_pem,
                &identity.key_pem,
                "the client certificate",
                "its key",
            )?),
            (None, Some(certificate), Some(key)) => Some(trust::certified_key(
                &trust::read(files, certificate, "client certificate")?,
                &trust::read_secret(files, key, "key of the client certificate")?,
                &format!(
                    "the client certificate {}",
                    files.shown(certificate).display()
                ),
                &format!("the key {}", files.shown(key).display()),
            )?),
            _ => None,
        };
        trust.config(identity, self.clock, log)
    }

    /// Returns the proxy for a URL. A proxy cannot reach loopback addresses of this machine.
    fn proxy(&self, url: &Url) -> Option<Url> {
        self.endpoint
            .proxy
            .clone()
            .filter(|_| url.scheme() == "https")
    }

    /// Returns the origin of a URL and the proxy on the way, for messages.
    fn route(&self, url: &Url) -> String {
        match self.proxy(url) {
            Some(proxy) => format!("{} through the proxy {}", origin(url), origin(&proxy)),
            None => origin(url),
        }
    }

    fn failed(&self, url: &Url, log: &ConnectionLog, cause: reqwest::Error) -> HttpError {
        error::classify(log, &self.route(url), cause.without_url())
    }

    async fn receive(
        &self,
        call: &Call<'_>,
        url: &Url,
        log: &ConnectionLog,
        mut answer: reqwest::Response,
        deadline: Instant,
    ) -> Result<HttpResponse, HttpError> {
        let status = answer.status().as_u16();
        let too_large = || {
            HttpError::new(
                HttpErrorKind::TooLarge,
                format!(
                    "the response of {} with status {status} is larger than the limit of {} bytes",
                    origin(url),
                    call.limit
                ),
                "check the address",
            )
        };
        // Of an error page, the status matters and the rest of the body may be dropped or missing.
        let is_error_page = !answer.status().is_success();
        let announced = answer.content_length();
        if !is_error_page && announced.is_some_and(|length| length > call.limit as u64) {
            return Err(too_large());
        }
        let now = (self.clock)();
        let headers = answer.headers().clone();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let date = text(DATE).and_then(http_date);
        if let Some(date) = date {
            self.compare_clocks(url, date, now);
        }
        // A date in it is by the clock of the server.
        let retry_after =
            text(RETRY_AFTER).and_then(|value| retry_after(value, date.unwrap_or(now)));
        let mut body = Vec::new();
        loop {
            let chunk = match tokio::time::timeout_at(deadline, answer.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => break,
                _ if is_error_page => break,
                Ok(Err(cause)) => return Err(self.failed(url, log, cause)),
                Err(_) => return Err(error::timed_out(log, &self.route(url))),
            };
            if body.len() + chunk.len() > call.limit {
                if is_error_page {
                    break;
                }
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(HttpResponse {
            status,
            body,
            retry_after,
            date,
            headers,
        })
    }

    fn compare_clocks(&self, url: &Url, theirs: OffsetDateTime, ours: OffsetDateTime) {
        let skew = (ours - theirs).unsigned_abs();
        if skew <= MAX_CLOCK_SKEW || self.skew_reported.replace(true) {
            return;
        }
        let direction = if ours > theirs { "ahead of" } else { "behind" };
        tracing::warn!(
            origin = origin(url),
            seconds = skew.as_secs(),
            "the clock of this machine is {} s {direction} the clock of {}; correct the wrong one (timedatectl status)",
            skew.as_secs(),
            origin(url)
        );
    }
}

/// Returns scheme, host and port.
fn origin(url: &Url) -> String {
    format!("{}://{}", url.scheme(), authority(url))
}

fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn check_url(url: &Url) -> Result<(), HttpError> {
    let wrong = |what: &str, advice: &str| {
        Err(HttpError::local(
            format!("{} {what}", origin(url)),
            advice.to_owned(),
        ))
    };
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none() {
        return wrong("is not an https:// address", "write https://HOST[:PORT]");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return wrong(
            "contains a user name or a password",
            "configure secrets as files, not in addresses",
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return wrong(
            "contains a query or a fragment",
            "remove the part from ? or # on",
        );
    }
    if url.scheme() == "http" && !is_loopback(url) {
        return wrong(
            "is not encrypted",
            "use https://; http:// is allowed for loopback addresses only",
        );
    }
    Ok(())
}

fn check_proxy(proxy: &Url) -> Result<(), HttpError> {
    let bare = proxy.username().is_empty() && proxy.password().is_none();
    if proxy.scheme() == "http" && proxy.host_str().is_some() && bare {
        return Ok(());
    }
    Err(HttpError::local(
        format!("the proxy {} is not valid", origin(proxy)),
        "write http://HOST:PORT, without user name and password",
    ))
}

/// Returns whether the host is this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Returns the target of a redirect.
fn redirect(from: &Url, response: &HttpResponse) -> Option<Url> {
    matches!(response.status, 301 | 302 | 303 | 307 | 308)
        .then(|| response.header(LOCATION.as_str()))
        .flatten()
        .and_then(|location| from.join(location).ok())
}

fn http_date(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc2822).ok()
}

/// Parses `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date by the server's clock.
fn retry_after(text: &str, server_now: OffsetDateTime) -> Option<Duration> {
    let after = match text.trim().parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => (http_date(text)? - server_now)
            .try_into()
            .unwrap_or(Duration::ZERO),
    };
    Some(after.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_retry_after_as_seconds_or_date() {
        let now = http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        for (text, expected) in [
            ("120", Some(120)),
            ("Sun, 06 Nov 1994 08:51:37 GMT", Some(120)),
            ("Sun, 06 Nov 1994 08:40:00 GMT", Some(0)),
            ("99999999999999", Some(MAX_RETRY_AFTER.as_secs())),
            ("-5", None),
            ("soon", None),
        ] {
            assert_eq!(
                retry_after(text, now),
                expected.map(Duration::from_secs),
                "{text}"
            );
        }
    }

    #[test]
    fn recognises_loopback_addresses() {
        for (text, expected) in [
            ("http://127.0.0.1:8200", true),
            ("http://127.9.9.9", true),
            ("http://[::1]:80/x", true),
            ("http://localhost:1", true),
            ("http://localhost.example.com", false),
            ("http://10.0.0.1", false),
            ("http://[::ffff:10.0.0.1]", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(text).unwrap()), expected, "{text}");
        }
    }
}
