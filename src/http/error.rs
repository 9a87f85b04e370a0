//! What went wrong, by what can be said about the request.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use rustls::AlertDescription as Alert;

use super::resolve::ResolveError;
use super::trust::Witness;

/// What can be said about the request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Nothing was sent: no address, no connection, no TLS, no way through the proxy.
    Unreachable,
    /// The request was sent, wholly or in part, and no complete answer came. It may have been carried out.
    Lost,
    /// Nothing was sent: the server is not the one that configuration describes.
    Untrusted,
    /// The server refused our client certificate, or the lack of one. Nothing was carried out.
    Refused,
    /// The answer is larger than the caller's limit.
    TooLarge,
    /// The server points to a place that may not be followed. Nothing went there.
    Redirected {
        /// Scheme, host and port of that place.
        to: String,
    },
    /// Nothing was sent: a file or a value on this machine is missing or unusable.
    Local,
}

/// A failed exchange. The text says what and where; [`Error::advice`] what to do now.
pub struct Error {
    kind: Kind,
    detail: String,
    advice: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(super) fn new(kind: Kind, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Error {
            kind,
            detail: detail.into(),
            advice: advice.into(),
            source: None,
        }
    }

    pub(super) fn local(detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Kind::Local, detail, advice)
    }

    pub(super) fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// What was wrong before anything was sent to `origin`.
    pub(super) fn at(mut self, origin: &str) -> Self {
        self.detail = format!("{origin} is not asked: {}", self.detail);
        self
    }

    /// What can be said about the request.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// What to do now.
    pub fn advice(&self) -> &str {
        &self.advice
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// As it is displayed: the causes below hold nothing else that a person could use.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}; {}", self.kind, self.detail, self.advice)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

/// The deadline has passed.
pub(super) fn timed_out(witness: &Witness, route: &str) -> Error {
    if witness.connected() {
        lost(witness, route, "no answer within the time allowed")
    } else if let Some(resolving) = witness.resolving() {
        unresolved(route, &format!("{resolving} within the time allowed"))
    } else {
        unreachable(witness, route, "no connection within the time allowed")
    }
}

/// A failure of the HTTP library, by what the connection's witness saw.
pub(super) fn classify(witness: &Witness, route: &str, cause: reqwest::Error) -> Error {
    let error = if let Some(error) = resolve_error(&cause) {
        unresolved(route, &error.to_string())
    } else if let Some(verdict) = witness.verdict() {
        Error::new(Kind::Untrusted, &verdict.detail, verdict.advice)
    } else {
        match tls_error(&cause) {
            Some(rustls::Error::AlertReceived(alert)) if refuses(*alert, witness) => {
                refused(witness, route, *alert)
            }
            Some(rustls::Error::AlertReceived(Alert::UnrecognisedName)) => Error::new(
                Kind::Untrusted,
                format!("{route} is no server of that name"),
                "use the name that its certificate is for, as the address or as the server name",
            ),
            Some(error @ rustls::Error::InvalidCertificate(_)) => Error::new(
                Kind::Untrusted,
                format!("{route} cannot prove that its certificate is its own: {error}"),
                "find out what answers at this address",
            ),
            Some(rustls::Error::InvalidMessage(_)) if !witness.connected() => {
                unreachable(witness, route, "what answers does not speak TLS")
            }
            _ if witness.connected() => lost(witness, route, &root(&cause)),
            _ if cause.is_timeout() => match witness.resolving() {
                Some(resolving) => unresolved(route, &format!("{resolving} in time")),
                None => unreachable(witness, route, "no connection in time"),
            },
            _ => unreachable(witness, route, &root(&cause)),
        }
    };
    error.caused_by(cause)
}

/// Name resolution failed: neither the server nor the way to it is known to be at fault.
fn unresolved(route: &str, why: &str) -> Error {
    Error::new(
        Kind::Unreachable,
        format!("{route}: {why}"),
        "check the name, and that the name servers in /etc/resolv.conf answer for it; or write the name into /etc/hosts",
    )
}

fn unreachable(witness: &Witness, route: &str, why: &str) -> Error {
    // Without the addresses of one family a server may be out of reach.
    let unresolved = witness.unresolved();
    let unresolved = unresolved.map_or_else(String::new, |note| format!(" ({note})"));
    Error::new(
        Kind::Unreachable,
        format!("{route} cannot be reached: {why}{unresolved}"),
        "check the address, the name servers, the route and the firewall, and that the server runs",
    )
}

fn lost(witness: &Witness, route: &str, why: &str) -> Error {
    let asked = if witness.asked() {
        "; the server asked for a client certificate, and this may be how it refuses one"
    } else {
        ""
    };
    Error::new(
        Kind::Lost,
        format!("a request was sent to {route} and the answer was lost: {why}{asked}"),
        "the server may have carried it out: look at its log before repeating by hand",
    )
}

fn refused(witness: &Witness, route: &str, alert: Alert) -> Error {
    let (detail, advice) = match witness.ours() {
        Some(ours) => (
            format!("{route} refuses our client certificate ({ours}): TLS alert {alert:?}"),
            "check that it is valid and that the server trusts its issuer",
        ),
        None => (
            format!(
                "{route} wants a client certificate, and none is configured: TLS alert {alert:?}"
            ),
            "configure a client certificate and its key",
        ),
    };
    Error::new(Kind::Refused, detail, advice)
}

/// Whether an alert is about our certificate.
fn refuses(alert: Alert, witness: &Witness) -> bool {
    match alert {
        Alert::NoCertificate
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
        | Alert::CertificateRequired => true,
        // How TLS 1.2 says that a certificate is required.
        Alert::HandshakeFailure => witness.asked(),
        _ => false,
    }
}

fn resolve_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a ResolveError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The source of an I/O error is the source of what is in it.
        if let Some(inner) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            && let Some(found) = tls_error(inner)
        {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The innermost cause, without the layers of the library around it.
fn root(error: &(dyn StdError + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    match innermost.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the other side closed the connection early".to_owned()
        }
        _ => innermost.to_string(),
    }
}
