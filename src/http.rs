//! The one TLS client: HTTP/1.1 to a server that configuration names, believed as far as configuration says.
//!
//! Owns: what is trusted (certificates, pins, the system's store when told so), the client certificate, the
//! deadline, the redirects that may be followed, the size of an answer, and what kind of failure a failure is
//! ([`Kind`]). Knows nothing of what is asked: paths, bodies and status codes mean something to the callers only.
//!
//! Rules that every caller gets: nothing is trusted by default; the environment is not looked at (no `*_PROXY`, no
//! `SSL_CERT_FILE`); a connection serves one exchange, so that a failure tells whether the request can have been
//! seen ([`Kind::Unreachable`]) or not ([`Kind::Lost`]); files are read anew for each exchange, so that rotation on
//! disk needs no notice; nothing is retried; secrets go to the configured origins only and never into messages.
//!
//! `resolve` hides DNS, `trust` hides rustls.

mod call;
mod error;
mod resolve;
mod served;
mod trust;

use std::cell::Cell;
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

pub use call::{Call, Response, encode, printable};
pub use error::{Error, Kind};
pub use reqwest::{Method, Url};
pub use served::served;

use crate::yaml::schema::SecretFile;
use trust::Witness;

/// DNS, TCP, CONNECT and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An exchange from the first look-up to the last byte, unless the endpoint or the call says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// A chain of redirects longer than this is a loop.
const MAX_REDIRECTS: usize = 3;
/// Clocks this far apart are worth a word: certificates that were issued a minute ago begin to look like the future.
const SKEW: Duration = Duration::from_secs(60);
/// No server's wish to be left alone is taken more seriously than this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The node's files as a client may read them; asked anew for every exchange.
pub trait Files {
    /// The content of the file at the absolute `path`.
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>>;

    /// The content of the file at the absolute `path`, which is a secret.
    ///
    /// # Errors
    /// [`NotPrivate`](crate::store::Error::NotPrivate) for a file that other users can read or change, and what the
    /// system says.
    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>>;

    /// The path of the file on this machine, for messages.
    fn shown(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }

    /// The files that the document at the absolute path `document` may name; `None` if they are the same as its own.
    ///
    /// # Errors
    /// When the document cannot be looked up.
    fn named_in(&self, _document: &Path) -> io::Result<Option<Rc<dyn Files>>> {
        Ok(None)
    }
}

impl dyn Files {
    /// The file with a secret, for messages.
    pub fn shown_secret(&self, file: &SecretFile) -> String {
        match file {
            SecretFile::Path(path) => self.shown(path).display().to_string(),
            SecretFile::Credential(_) => file.to_string(),
        }
    }
}

/// Where a server is and how it is to be believed. All of it comes from configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `https://host[:port][/base]`. `http://` for loopback addresses only.
    pub url: Url,
    /// What makes the server the right one, and who we are.
    pub tls: Tls,
    /// `http://host:port` of a proxy that knows CONNECT. It resolves the server's name.
    pub proxy: Option<Url>,
    /// From the first look-up to the last byte.
    pub timeout: Duration,
    /// Further origins that a 307 or 308 may lead to, secrets included: the other nodes of a Vault cluster.
    pub also: Vec<Url>,
}

impl Endpoint {
    /// An endpoint that trusts nothing yet.
    pub fn new(url: Url) -> Self {
        Endpoint {
            url,
            tls: Tls::default(),
            proxy: None,
            timeout: DEFAULT_TIMEOUT,
            also: Vec::new(),
        }
    }
}

/// What makes a server the right one, and who we are.
///
/// With anchors (file, PEM, system store) a server must chain to one of them. With pins besides, the chain must also
/// hold a pinned certificate. With pins alone, the server's own certificate must be pinned, or chain to a pinned CA
/// certificate that it sends along. Name and validity are checked in every case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file of the CA certificates to trust. A server certificate that stands in it is trusted as it is.
    pub ca_file: Option<PathBuf>,
    /// The same as content, as kubeconfigs have it.
    pub ca_pem: Option<Vec<u8>>,
    /// SHA-256 of a SubjectPublicKeyInfo, or of a whole certificate, in DER.
    pub sha256: Vec<[u8; 32]>,
    /// Trust the CAs of the operating system as well.
    pub system_roots: bool,
    /// The name that the server's certificate must be for, where it is not the host of the URL.
    pub server_name: Option<String>,
    /// PEM file of the client certificate and its intermediates.
    pub certificate: Option<PathBuf>,
    /// PEM file of its key.
    pub key: Option<PathBuf>,
}

impl Tls {
    /// Whether nothing is configured that would make any server the right one.
    pub fn trusts_nothing(&self) -> bool {
        self.ca_file.is_none()
            && self.ca_pem.is_none()
            && self.sha256.is_empty()
            && !self.system_roots
    }
}

/// A client certificate from memory: for renewal with the certificate that is being renewed.
#[derive(Clone)]
pub struct Identity {
    /// Leaf first.
    pub chain_pem: Vec<u8>,
    /// PKCS#1, SEC1 or PKCS#8.
    pub key_pem: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// How far the server is doubted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faith {
    Configured,
    /// Anybody may answer, and nothing secret is said.
    Provisional,
}

/// A client of one [`Endpoint`].
#[derive(Clone)]
pub struct Client {
    endpoint: Endpoint,
    files: Rc<dyn Files>,
    clock: fn() -> OffsetDateTime,
    identity: Option<Identity>,
    faith: Faith,
    /// Shared with the clients made from this one.
    skew_told: Rc<Cell<bool>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .field("faith", &self.faith)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client of `endpoint`. Reads and sends nothing.
    ///
    /// # Errors
    /// [`Kind::Local`] when the endpoint cannot be used as it is written. An endpoint that trusts nothing is not
    /// refused here but at [`Client::send`]: see [`Client::provisional`] and [`Client::trusting`].
    pub fn new(
        endpoint: Endpoint,
        files: Rc<dyn Files>,
        clock: fn() -> OffsetDateTime,
    ) -> Result<Client, Error> {
        for url in [&endpoint.url].into_iter().chain(&endpoint.also) {
            check_url(url)?;
        }
        if let Some(proxy) = &endpoint.proxy {
            check_proxy(proxy)?;
        }
        let tls = &endpoint.tls;
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err(Error::local(
                format!(
                    "the client certificate for {} is half configured",
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
                return Err(Error::local(
                    format!(
                        "{}, which is used with {}, is not an absolute path",
                        files.shown(path).display(),
                        origin(&endpoint.url)
                    ),
                    "write the whole path",
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
            faith: Faith::Configured,
            skew_told: Rc::default(),
        })
    }

    /// What it was made from.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Scheme, host and port of the endpoint, for messages.
    pub fn origin(&self) -> String {
        origin(&self.endpoint.url)
    }

    /// The same endpoint with a client certificate from memory instead of the configured one.
    #[must_use]
    pub fn with_identity(&self, identity: Identity) -> Client {
        Client {
            identity: Some(identity),
            ..self.clone()
        }
    }

    /// The same endpoint with these CA certificates instead of the configured ones. Configured pins still hold.
    #[must_use]
    pub fn trusting(&self, ca_pem: Vec<u8>) -> Client {
        let mut client = self.clone();
        client.faith = Faith::Configured;
        client.endpoint.tls.ca_file = None;
        client.endpoint.tls.ca_pem = Some(ca_pem);
        client.endpoint.tls.system_roots = false;
        client
    }

    /// The same endpoint, whoever answers. For what is judged afterwards by a fingerprint, and for nothing else:
    /// neither secrets nor the client certificate are sent.
    #[must_use]
    pub fn provisional(&self) -> Client {
        Client {
            identity: None,
            faith: Faith::Provisional,
            ..self.clone()
        }
    }

    /// One exchange: the answer with whatever status, redirects within the configured origins followed.
    ///
    /// # Errors
    /// See [`Kind`].
    pub async fn send(&self, call: Call<'_>) -> Result<Response, Error> {
        let deadline = Instant::now() + call.timeout.unwrap_or(self.endpoint.timeout);
        let mut url = call
            .url(&self.endpoint.url)
            .map_err(|error| error.at(&self.origin()))?;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.hop(&call, &url, deadline).await?;
            tracing::debug!(
                method = %call.method,
                origin = origin(&url),
                path = url.path(),
                status = response.status,
                "HTTP exchange"
            );
            match redirect(&url, &response) {
                None => return Ok(response),
                Some(target) => url = self.follow(&url, &response, target)?,
            }
        }
        Err(Error::new(
            Kind::Redirected { to: origin(&url) },
            format!(
                "{} redirects more than {MAX_REDIRECTS} times",
                self.origin()
            ),
            "find out why the servers send their clients to each other",
        ))
    }

    /// Whether `target` may be followed.
    fn follow(&self, from: &Url, response: &Response, target: Url) -> Result<Url, Error> {
        let allowed = [&self.endpoint.url]
            .into_iter()
            .chain(&self.endpoint.also)
            .any(|known| known.origin() == target.origin());
        if allowed && matches!(response.status, 307 | 308) {
            return Ok(target);
        }
        let (place, advice) = if allowed {
            (
                format!("{}{}", origin(&target), target.path()),
                "write the address that it points to into the configuration, if that is the right place",
            )
        } else {
            (
                origin(&target),
                "if that server is to be trusted with the same secrets, name it in the configuration",
            )
        };
        Err(Error::new(
            Kind::Redirected {
                to: origin(&target),
            },
            format!(
                "{} answers {} and points to {place}, which was not followed",
                origin(from),
                response.status,
            ),
            advice,
        ))
    }

    /// One connection, one request, one answer.
    async fn hop(&self, call: &Call<'_>, url: &Url, deadline: Instant) -> Result<Response, Error> {
        let witness = Arc::new(Witness::new(origin(url)));
        let sent = async {
            let request = self
                .request(call, url, &witness)
                .map_err(|error| error.at(witness.origin()))?;
            let answer = request
                .send()
                .await
                .map_err(|cause| self.failed(url, &witness, cause))?;
            self.receive(call, url, &witness, answer).await
        };
        match tokio::time::timeout_at(deadline, sent).await {
            Ok(result) => result,
            Err(_) => Err(error::timed_out(&witness, &self.route(url))),
        }
    }

    /// Everything that can be told to be wrong before a connection is made is told here.
    fn request(
        &self,
        call: &Call<'_>,
        url: &Url,
        witness: &Arc<Witness>,
    ) -> Result<reqwest::RequestBuilder, Error> {
        let proxy = self.proxy(url);
        let mut url = url.clone();
        let authority = authority(&url);
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .http1_only()
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_TIMEOUT)
            .connector_layer(trust::Watch(Arc::clone(witness)))
            .dns_resolver(resolve::Resolver::for_host(
                url.host_str().unwrap_or_default(),
                witness,
            ))
            .user_agent(concat!("nodepki/", env!("CARGO_PKG_VERSION")));
        if let Some(proxy) = &proxy {
            let proxy = reqwest::Proxy::all(proxy.clone()).map_err(|cause| {
                Error::local("the proxy cannot be used", "correct its address").caused_by(cause)
            })?;
            builder = builder
                .proxy(proxy)
                .dns_resolver(resolve::Resolver::as_asked(witness));
        }
        builder = builder.tls_backend_preconfigured(self.tls(&url, witness)?);
        // The name goes into the handshake as the URL's host; the resolver above goes on to ask for the real one.
        if let (Some(name), None, "https") = (&self.endpoint.tls.server_name, &proxy, url.scheme())
            && name.parse::<IpAddr>().is_err()
        {
            let _ = url.set_host(Some(name));
        }
        let client = builder.build().map_err(|cause| {
            Error::local(
                "the HTTP library cannot be set up",
                "report this as a fault of nodepki",
            )
            .caused_by(cause)
        })?;
        let request = client
            .request(call.method.clone(), url)
            .header(HOST, authority);
        call.fill(request, self.faith == Faith::Configured)
    }

    fn tls(&self, url: &Url, witness: &Arc<Witness>) -> Result<rustls::ClientConfig, Error> {
        let tls = &self.endpoint.tls;
        let files = &*self.files;
        if url.scheme() == "http" {
            return trust::Trust::Nobody.config(None, self.clock, witness);
        }
        if self.faith == Faith::Provisional {
            return trust::Trust::Anybody.config(None, self.clock, witness);
        }
        let trust = trust::Trust::read(tls, files)?;
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
        trust.config(identity, self.clock, witness)
    }

    /// A proxy cannot reach what is loopback here.
    fn proxy(&self, url: &Url) -> Option<Url> {
        self.endpoint
            .proxy
            .clone()
            .filter(|_| url.scheme() == "https")
    }

    /// Where a request goes, for messages.
    fn route(&self, url: &Url) -> String {
        match self.proxy(url) {
            Some(proxy) => format!("{} through the proxy {}", origin(url), origin(&proxy)),
            None => origin(url),
        }
    }

    fn failed(&self, url: &Url, witness: &Witness, cause: reqwest::Error) -> Error {
        error::classify(witness, &self.route(url), cause.without_url())
    }

    async fn receive(
        &self,
        call: &Call<'_>,
        url: &Url,
        witness: &Witness,
        mut answer: reqwest::Response,
    ) -> Result<Response, Error> {
        let status = answer.status().as_u16();
        let too_large = || {
            Error::new(
                Kind::TooLarge,
                format!(
                    "{} answers {status} with more than {} bytes, which were not read",
                    origin(url),
                    call.limit
                ),
                "check that the address is the right one",
            )
        };
        // Of a page that only says why not, the status is what counts.
        let is_page = !answer.status().is_success();
        let announced = answer.content_length();
        if !is_page && announced.is_some_and(|length| length > call.limit as u64) {
            return Err(too_large());
        }
        let now = (self.clock)();
        let headers = answer.headers().clone();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let date = text(DATE).and_then(http_date);
        if let Some(date) = date {
            self.compare_clocks(url, date, now);
        }
        let retry_after =
            text(RETRY_AFTER).and_then(|value| retry_after(value, date.unwrap_or(now)));
        let mut body = Vec::new();
        while let Some(chunk) = answer
            .chunk()
            .await
            .map_err(|cause| self.failed(url, witness, cause))?
        {
            if body.len() + chunk.len() > call.limit {
                if is_page {
                    break;
                }
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Response {
            status,
            body,
            retry_after,
            date,
            headers,
        })
    }

    fn compare_clocks(&self, url: &Url, theirs: OffsetDateTime, ours: OffsetDateTime) {
        let skew = (ours - theirs).unsigned_abs();
        if skew <= SKEW || self.skew_told.replace(true) {
            return;
        }
        let direction = if ours > theirs { "ahead of" } else { "behind" };
        tracing::warn!(
            origin = origin(url),
            seconds = skew.as_secs(),
            "this machine's clock is {} s {direction} the clock of {}; one of the two is wrong",
            skew.as_secs(),
            origin(url)
        );
    }
}

/// Scheme, host and port.
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

fn check_url(url: &Url) -> Result<(), Error> {
    let wrong = |what: &str, advice: &str| {
        Err(Error::local(
            format!("{} {what}", origin(url)),
            advice.to_owned(),
        ))
    };
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none() {
        return wrong("is no https:// address", "write https://HOST[:PORT]");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return wrong(
            "is written with a user or a password",
            "give secrets as files, not in addresses",
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return wrong("is written with a query", "leave out what follows ? or #");
    }
    if url.scheme() == "http" && !is_loopback(url) {
        return wrong(
            "is not encrypted",
            "use https://; http:// is for loopback addresses only",
        );
    }
    Ok(())
}

fn check_proxy(proxy: &Url) -> Result<(), Error> {
    let bare = proxy.username().is_empty() && proxy.password().is_none();
    if proxy.scheme() == "http" && proxy.host_str().is_some() && bare {
        return Ok(());
    }
    Err(Error::local(
        format!("the proxy {} cannot be used", origin(proxy)),
        "write http://HOST:PORT, without user and password",
    ))
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Where an answer points, when it is a redirect.
fn redirect(from: &Url, response: &Response) -> Option<Url> {
    matches!(response.status, 301 | 302 | 303 | 307 | 308)
        .then(|| response.header(LOCATION.as_str()))
        .flatten()
        .and_then(|location| from.join(location).ok())
}

fn http_date(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc2822).ok()
}

/// RFC 9110, 10.2.3: seconds, or a date by the server's own clock.
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
    fn retry_after_has_two_forms() {
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
    fn loopback_is_what_stays_on_the_machine() {
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
