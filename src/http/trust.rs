//! Configures rustls: trust in the server, the client certificate, the clock; and records what happens in a connection.
//!
//! Nothing is cached: reading a few certificates costs less than the handshake that follows, and cannot return stale
//! data.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ResolvesClientCert, Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use tower_layer::Layer;
use tower_service::Service;
use zeroize::Zeroizing;

use super::{Files, HttpError, HttpErrorKind, Tls};
use crate::store;
use crate::text::{hex, rfc3339};
use crate::x509::{Certificate, content_instead_of_pem, presented_certificate};

/// CA files of Debian, Fedora (both with their derivatives) and SUSE.
const SYSTEM_CA_FILES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

type Anchor = CertificateDer<'static>;

/// Observations of one connection, from which the error messages are made.
#[derive(Default)]
pub(super) struct ConnectionLog {
    origin: String,
    connected: AtomicBool,
    requested_certificate: AtomicBool,
    client_certificate: OnceLock<String>,
    /// Subject and issuer of the server's certificate.
    server_certificate: OnceLock<String>,
    verdict: OnceLock<DistrustReason>,
    /// The message for a timeout of the name resolution under way.
    resolving: Mutex<Option<String>>,
    /// The incomplete part of a name resolution.
    unresolved: OnceLock<String>,
}

/// Why a server is not trusted.
pub(super) struct DistrustReason {
    pub(super) detail: String,
    pub(super) advice: &'static str,
}

impl ConnectionLog {
    pub(super) fn new(origin: String) -> Self {
        ConnectionLog {
            origin,
            ..ConnectionLog::default()
        }
    }

    /// Records the message for a timeout of the name resolution, or `None` at its end.
    pub(super) fn set_resolving(&self, message: Option<String>) {
        if let Ok(mut resolving) = self.resolving.lock() {
            *resolving = message;
        }
    }

    /// Returns the message for a timeout of the name resolution under way.
    pub(super) fn resolving(&self) -> Option<String> {
        self.resolving.lock().ok()?.clone()
    }

    /// Records that one address family is unknown.
    pub(super) fn set_unresolved(&self, note: String) {
        let _ = self.unresolved.set(note);
    }

    /// Returns the incomplete part of the name resolution.
    pub(super) fn unresolved(&self) -> Option<&str> {
        self.unresolved.get().map(String::as_str)
    }

    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns true if the handshake is complete, so the request may have been sent.
    pub(super) fn connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Returns true if the server requested a client certificate.
    pub(super) fn requested_certificate(&self) -> bool {
        self.requested_certificate.load(Ordering::Relaxed)
    }

    /// Returns a description of the client certificate that was sent.
    pub(super) fn client_certificate(&self) -> Option<&str> {
        self.client_certificate.get().map(String::as_str)
    }

    /// Returns subject and issuer of the server's certificate.
    pub(super) fn server_certificate(&self) -> Option<&str> {
        self.server_certificate.get().map(String::as_str)
    }

    pub(super) fn verdict(&self) -> Option<&DistrustReason> {
        self.verdict.get()
    }
}

/// Records in the log when a connection is established.
#[derive(Clone)]
pub(super) struct ConnectionWatch(pub(super) Arc<ConnectionLog>);

impl<S> Layer<S> for ConnectionWatch {
    type Service = WatchedStream<S>;

    fn layer(&self, inner: S) -> WatchedStream<S> {
        WatchedStream {
            inner,
            log: Arc::clone(&self.0),
        }
    }
}

#[derive(Clone)]
pub(super) struct WatchedStream<S> {
    inner: S,
    log: Arc<ConnectionLog>,
}

impl<S, R> Service<R> for WatchedStream<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let connecting = self.inner.call(request);
        let log = Arc::clone(&self.log);
        Box::pin(async move {
            let connection = connecting.await;
            log.connected.store(connection.is_ok(), Ordering::Relaxed);
            connection
        })
    }
}

/// Which server certificates are trusted.
#[derive(Clone, Debug)]
pub(super) enum ServerTrust {
    /// None, since TLS is not used.
    None,
    /// Any certificate whose key the server possesses.
    Any,
    /// According to the configuration.
    Configured(ConfiguredTrust),
}

#[derive(Clone, Debug)]
pub(super) struct ConfiguredTrust {
    anchors: Vec<Anchor>,
    store: Arc<RootCertStore>,
    /// Sources of the anchors, for messages.
    sources: Vec<String>,
    pins: Vec<[u8; 32]>,
    name: Option<ServerName<'static>>,
}

impl ServerTrust {
    /// Reads the configured CA files.
    pub(super) fn read(tls: &Tls, files: &dyn Files) -> Result<Self, HttpError> {
        if tls.trusts_nothing() {
            return Err(HttpError::local(
                "neither a CA nor a pin is configured for the server",
                "configure the CA that issued its certificate, or a SHA-256 pin of it; the system's CAs are used \
                 only if configured",
            ));
        }
        let mut trust = ConfiguredTrust {
            anchors: Vec::new(),
            store: Arc::new(RootCertStore::empty()),
            sources: Vec::new(),
            pins: tls.sha256.clone(),
            name: tls.server_name.as_deref().map(server_name).transpose()?,
        };
        let mut store = RootCertStore::empty();
        if let Some(path) = &tls.ca_file {
            let source = format!("the CA file {}", files.shown(path).display());
            let pem = read(files, path, "CA file")?;
            trust.add(&mut store, &pem, source)?;
        }
        if let Some(pem) = &tls.ca_pem {
            trust.add(
                &mut store,
                pem,
                "the CA certificates in the configuration".to_owned(),
            )?;
        }
        if tls.system_roots {
            trust.add_system(&mut store, files)?;
        }
        trust.store = Arc::new(store);
        Ok(ServerTrust::Configured(trust))
    }

    /// Returns the TLS configuration of one connection.
    pub(super) fn config(
        self,
        identity: Option<Arc<CertifiedKey>>,
        clock: fn() -> OffsetDateTime,
        log: &Arc<ConnectionLog>,
    ) -> Result<ClientConfig, HttpError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Verifier {
            trust: self,
            provider: Arc::clone(&provider),
            log: Arc::clone(log),
        };
        let mut config =
            ClientConfig::builder_with_details(provider, Arc::new(VerificationClock(clock)))
                .with_safe_default_protocol_versions()
                .map_err(|cause| {
                    HttpError::local("cannot initialise TLS", "report this as a bug of nodepki")
                        .caused_by(cause)
                })?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
                .with_client_cert_resolver(Arc::new(ClientCertificate {
                    identity,
                    log: Arc::clone(log),
                }));
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

impl ConfiguredTrust {
    fn add(
        &mut self,
        store: &mut RootCertStore,
        pem: &[u8],
        source: String,
    ) -> Result<(), HttpError> {
        let certificates = certificates(pem, &source)?;
        for certificate in &certificates {
            // A certificate that is not a CA's can be the server's own, and is compared as a whole.
            let _ = store.add(certificate.clone());
        }
        self.anchors.extend(certificates);
        self.sources.push(source);
        Ok(())
    }

    fn add_system(
        &mut self,
        store: &mut RootCertStore,
        files: &dyn Files,
    ) -> Result<(), HttpError> {
        for path in SYSTEM_CA_FILES {
            match files.read(Path::new(path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(Path::new(path), "system's CA file", error)),
                Ok(pem) => return self.add(store, &pem, format!("the system's CAs in {path}")),
            }
        }
        Err(HttpError::local(
            format!(
                "the system has no CA file: neither {}",
                SYSTEM_CA_FILES.join(" nor ")
            ),
            "install the package ca-certificates, or configure a CA file",
        ))
    }

    /// Verifies a server certificate by the rules of [`Tls`].
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
        provider: &CryptoProvider,
    ) -> Result<(), TrustFault> {
        let name = self.name.as_ref().unwrap_or(name);
        let parsed = ParsedCertificate::try_from(leaf)?;
        let chains_to = |store: &RootCertStore| {
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                store,
                others,
                now,
                provider.signature_verification_algorithms.all,
            )
        };
        let is_known = self.anchors.iter().any(|anchor| anchor == leaf);
        let is_pinned = self.is_pinned(leaf);
        if !self.anchors.is_empty() && !is_known {
            chains_to(&self.store)?;
        }
        if !self.pins.is_empty() && !is_pinned {
            // A pinned certificate counts only if it signed the chain: any server can send it.
            let mut outcome = Err(TrustFault::Unpinned);
            for pinned in others.iter().chain(&self.anchors) {
                if outcome.is_err() && self.is_pinned(pinned) {
                    let mut store = RootCertStore::empty();
                    store.add(pinned.clone().into_owned())?;
                    outcome = chains_to(&store).map_err(TrustFault::Tls);
                }
            }
            outcome?;
        }
        if is_known || is_pinned {
            // No path was built, so the validity has not been verified yet.
            within_validity(leaf, now)?;
        }
        verify_server_name(&parsed, name)?;
        Ok(())
    }

    fn is_pinned(&self, der: &CertificateDer<'_>) -> bool {
        self.pins.contains(&Sha256::digest(der).into())
            || presented_certificate(der).is_some_and(|(key, _)| self.pins.contains(&key.sha256()))
    }
}

/// Why a chain is not trusted.
enum TrustFault {
    Unpinned,
    Tls(rustls::Error),
}

impl From<rustls::Error> for TrustFault {
    fn from(error: rustls::Error) -> Self {
        TrustFault::Tls(error)
    }
}

fn within_validity(der: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let (_, validity) = presented_certificate(der).ok_or(CertificateError::BadEncoding)?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if seconds > *validity.end() {
        Err(CertificateError::Expired.into())
    } else if seconds < *validity.start() {
        Err(CertificateError::NotValidYet.into())
    } else {
        Ok(())
    }
}

#[derive(Debug)]
struct Verifier {
    trust: ServerTrust,
    provider: Arc<CryptoProvider>,
    log: Arc<ConnectionLog>,
}

impl fmt::Debug for ConnectionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionLog").finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Ok(certificate) = Certificate::from_der(leaf) {
            let (subject, issuer) = (certificate.subject(), certificate.issuer());
            let presented = format!("{subject}, issued by {issuer}");
            let _ = self.log.server_certificate.set(presented);
        }
        let configured = match &self.trust {
            ServerTrust::Any => return Ok(ServerCertVerified::assertion()),
            ServerTrust::None => return Err(CertificateError::UnknownIssuer.into()),
            ServerTrust::Configured(trust) => trust,
        };
        configured
            .verify(leaf, others, name, now, &self.provider)
            .map(|()| ServerCertVerified::assertion())
            .map_err(|fault| {
                let verdict = configured.explain(&fault, leaf, others, name, now, &self.log.origin);
                let _ = self.log.verdict.set(verdict);
                match fault {
                    TrustFault::Tls(error) => error,
                    TrustFault::Unpinned => CertificateError::ApplicationVerificationFailure.into(),
                }
            })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl ConfiguredTrust {
    fn explain(
        &self,
        fault: &TrustFault,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
        origin: &str,
    ) -> DistrustReason {
        let certificate = Certificate::from_der(leaf).ok();
        let subject = certificate.as_ref().map_or_else(
            || "unreadable".to_owned(),
            |certificate| certificate.subject().to_string(),
        );
        let (why, advice) = match (fault, &certificate) {
            (TrustFault::Unpinned, _) => (
                format!(
                    "no certificate of its chain is pinned: expected {}, found {}",
                    self.pins
                        .iter()
                        .map(sha256)
                        .collect::<Vec<_>>()
                        .join(" or "),
                    describe_chain(leaf, others)
                ),
                if self.anchors.is_empty() {
                    "find out whether the server's certificate was changed intentionally, then change the pin; a pinned \
                     CA counts only if the server sends its certificate or a CA file contains it"
                } else {
                    "find out whether the server's certificate was changed intentionally, then change the pin"
                },
            ),
            (TrustFault::Tls(rustls::Error::InvalidCertificate(error)), Some(certificate)) => {
                self.explain_invalid(error, certificate, name, now)
            }
            (TrustFault::Tls(error), _) => {
                (error.to_string(), "have the server's certificate reissued")
            }
        };
        DistrustReason {
            detail: format!("the certificate of {origin} ({subject}) is not trusted: {why}"),
            advice,
        }
    }

    fn explain_invalid(
        &self,
        error: &CertificateError,
        certificate: &Certificate,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> (String, &'static str) {
        use CertificateError as E;
        match error {
            E::Expired
            | E::ExpiredContext { .. }
            | E::NotValidYet
            | E::NotValidYetContext { .. } => {
                let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
                let now = OffsetDateTime::from_unix_timestamp(seconds)
                    .unwrap_or(OffsetDateTime::UNIX_EPOCH);
                (
                    format!(
                        "a certificate of its chain is not valid at this machine's time, {}; its own validity is \
                         {} to {}",
                        rfc3339(now),
                        rfc3339(certificate.not_before()),
                        rfc3339(certificate.not_after())
                    ),
                    "check this machine's clock, then have the certificate renewed",
                )
            }
            E::NotValidForName | E::NotValidForNameContext { .. } => {
                let expected = self.name.as_ref().unwrap_or(name).to_str();
                (
                    format!("it is for {} and not for {expected}", names_of(certificate)),
                    "use one of its names as the address, or configure that name as the server name",
                )
            }
            // `BadSignature` if the issuer has the name of a trusted CA and another key: every cluster has a "kubernetes".
            E::UnknownIssuer | E::BadSignature => (
                format!(
                    "it is issued by {}{}, and not below {}",
                    certificate.issuer(),
                    if matches!(error, E::BadSignature) {
                        " (another CA of that name)"
                    } else {
                        ""
                    },
                    if self.sources.is_empty() {
                        "a pinned certificate".to_owned()
                    } else {
                        self.sources.join(" or ")
                    }
                ),
                "configure the CA that issued it, if this is the right server; otherwise correct the address",
            ),
            // Go accepts one, rustls-webpki does not (`CaUsedAsEndEntity`).
            E::Other(_) if certificate.is_ca() => (
                "it is a CA certificate, which cannot be a server's own".to_owned(),
                "give the server a certificate with CA:FALSE, issued by a CA",
            ),
            E::Other(other) => (
                other.0.to_string(),
                "have the server's certificate reissued",
            ),
            other => (other.to_string(), "have the server's certificate reissued"),
        }
    }
}

/// Lists the DNS names and IP addresses of a certificate, for messages.
fn names_of(certificate: &Certificate) -> String {
    let ips = certificate.ip_addresses().iter().map(ToString::to_string);
    let names = certificate.dns_names().iter().cloned().chain(ips);
    let names: Vec<_> = names
        .map(|name| name.escape_default().to_string())
        .collect();
    if names.is_empty() {
        "no name".to_owned()
    } else {
        names.join(", ")
    }
}

/// Describes the chain that a server presents, with the pins that would match.
fn describe_chain(leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> String {
    [leaf]
        .into_iter()
        .chain(others)
        .map(|der| match Certificate::from_der(der) {
            Ok(certificate) => format!(
                "{} with key {}",
                certificate.subject(),
                sha256(&certificate.public_key().sha256())
            ),
            Err(_) => format!("certificate {}", sha256(&Sha256::digest(der).into())),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

fn sha256(digest: &[u8; 32]) -> String {
    format!("sha256:{}", hex(digest))
}

#[derive(Debug)]
struct ClientCertificate {
    identity: Option<Arc<CertifiedKey>>,
    log: Arc<ConnectionLog>,
}

impl ResolvesClientCert for ClientCertificate {
    /// Returns the client certificate, whatever issuers the server accepts: a refusal with a reason is better than none.
    fn resolve(
        &self,
        _acceptable: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.log
            .requested_certificate
            .store(true, Ordering::Relaxed);
        let identity = self.identity.clone()?;
        if let Some(leaf) = identity.cert.first()
            && let Ok(certificate) = Certificate::from_der(leaf)
        {
            let _ = self.log.client_certificate.set(format!(
                "{}, issued by {}, valid until {}",
                certificate.subject(),
                certificate.issuer(),
                rfc3339(certificate.not_after())
            ));
        }
        Some(identity)
    }

    fn has_certs(&self) -> bool {
        self.identity.is_some()
    }
}

#[derive(Debug)]
struct VerificationClock(fn() -> OffsetDateTime);

impl TimeProvider for VerificationClock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from((self.0)().unix_timestamp()).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            seconds,
        )))
    }
}

/// Parses a DNS name or an IP address.
pub(super) fn server_name(name: &str) -> Result<ServerName<'static>, HttpError> {
    ServerName::try_from(name.to_owned()).map_err(|cause| {
        HttpError::local(
            format!("the server name {name:?} is not a DNS name or an IP address"),
            "write a DNS name or an IP address",
        )
        .caused_by(cause)
    })
}

/// Reads a file of the endpoint; `what` is its purpose, for messages.
pub(super) fn read(
    files: &dyn Files,
    path: &Path,
    what: &str,
) -> Result<Zeroizing<Vec<u8>>, HttpError> {
    files
        .read(path)
        .map_err(|error| unreadable(&files.shown(path), what, error))
}

/// As [`read`], for a file with a secret.
pub(super) fn read_secret(
    files: &dyn Files,
    path: &Path,
    what: &str,
) -> Result<Zeroizing<Vec<u8>>, HttpError> {
    files
        .read_secret(path)
        .map_err(|error| unreadable(path, what, error))
}

fn unreadable(path: &Path, what: &str, error: io::Error) -> HttpError {
    let detail = format!("the {what} {} cannot be read: {error}", path.display());
    let advice = if store::is_access_refusal(&error) {
        "then run again"
    } else {
        "put the file there, or correct the configuration"
    };
    HttpError::local(detail, advice).caused_by(error)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<Anchor>, HttpError> {
    let wrong = |why: String| {
        HttpError::local(
            format!("{what}: {why}"),
            "write one or more certificates in PEM",
        )
    };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(error.to_string()))?;
    if certificates.is_empty() {
        let found = content_instead_of_pem(pem);
        return Err(wrong(found.map_or_else(
            || "it does not contain a certificate".to_owned(),
            |found| format!("it contains {found}"),
        )));
    }
    Ok(certificates)
}

/// Parses a client certificate and its key, and verifies that they are a pair.
pub(super) fn certified_key(
    chain_pem: &[u8],
    key_pem: &[u8],
    chain_name: &str,
    key_name: &str,
) -> Result<Arc<CertifiedKey>, HttpError> {
    let chain = certificates(chain_pem, chain_name)?;
    // The parser's own message can quote a line of the key.
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|_| {
        HttpError::local(
            format!("{key_name} does not contain a private key without a password"),
            "write a PKCS#8, PKCS#1 or SEC1 key in PEM",
        )
    })?;
    let provider = aws_lc_rs::default_provider();
    CertifiedKey::from_der(chain, key, &provider)
        .map(Arc::new)
        .map_err(|cause| {
            let detail = match cause {
                rustls::Error::InconsistentKeys(_) => {
                    format!("{chain_name} and {key_name} are not a pair")
                }
                _ => format!("{key_name} cannot be used with {chain_name}: {cause}"),
            };
            HttpError::new(
                HttpErrorKind::Local,
                detail,
                "install a certificate together with the key that it was issued for",
            )
            .caused_by(cause)
        })
}
