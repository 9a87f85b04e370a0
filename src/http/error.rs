//! Errors of an exchange, classified by whether the server can have received the request.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use rustls::{AlertDescription as Alert, InvalidMessage};

use super::HttpResponse;
use super::resolve::ResolveError;
use super::trust::ConnectionLog;

/// The kind of failure of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HttpErrorKind {
    /// The request was not sent: no address, no connection, no TLS session, or no tunnel through the proxy.
    Unreachable,
    /// The request was sent, completely or in part, and no complete response arrived. The server may have executed it.
    Lost,
    /// The request was not sent: the server does not satisfy the configured trust.
    Untrusted,
    /// No request was executed: the address has `https://` for a port without TLS, or `http://` for one with TLS.
    OtherScheme,
    /// The server refused the client certificate, or requires one. It did not execute the request.
    Refused,
    /// The response is larger than the caller's limit.
    TooLarge,
    /// The server redirects to an address that is not allowed. Nothing was sent to it.
    Redirected {
        /// Scheme, host and port of that address.
        to: String,
    },
    /// The request was not sent: a file or a value on this machine is missing or not valid.
    Local,
}

/// A failed exchange. The message contains the problem and the server; [`HttpError::advice`] returns what to do.
pub struct HttpError {
    kind: HttpErrorKind,
    detail: String,
    advice: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl HttpError {
    pub(super) fn new(
        kind: HttpErrorKind,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        HttpError {
            kind,
            detail: detail.into(),
            advice: advice.into(),
            source: None,
        }
    }

    pub(super) fn local(detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(HttpErrorKind::Local, detail, advice)
    }

    pub(super) fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Adds the server that no request was sent to.
    pub(super) fn at(mut self, origin: &str) -> Self {
        self.detail = format!("no request was sent to {origin}: {}", self.detail);
        self
    }

    /// Returns whether the client certificate and the key are not a pair.
    pub(super) fn is_mixed_pair(&self) -> bool {
        let source = self.source.as_deref();
        let error = source.and_then(|source| source.downcast_ref());
        matches!(error, Some(rustls::Error::InconsistentKeys(_)))
    }

    /// Returns what is known about the request.
    pub fn kind(&self) -> &HttpErrorKind {
        &self.kind
    }

    /// Returns what to do now.
    pub fn advice(&self) -> &str {
        &self.advice
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// Like `Display`, with kind and advice: the causes contain nothing else that a user needs.
impl fmt::Debug for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}; {}", self.kind, self.detail, self.advice)
    }
}

impl StdError for HttpError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

/// Returns the error for a passed deadline.
pub(super) fn timed_out(log: &ConnectionLog, route: &str) -> HttpError {
    if log.connected() {
        lost(log, route, "no answer within the time allowed")
    } else if let Some(resolving) = log.resolving() {
        unresolved(route, &format!("{resolving} within the time allowed"))
    } else {
        unreachable(log, route, "no connection within the time allowed")
    }
}

/// Classifies an error of the HTTP library by the observations of the connection.
pub(super) fn classify(log: &ConnectionLog, route: &str, cause: reqwest::Error) -> HttpError {
    let error = if let Some(error) = resolve_error(&cause) {
        unresolved(route, &error.to_string())
    } else if let Some(verdict) = log.verdict() {
        HttpError::new(HttpErrorKind::Untrusted, &verdict.detail, verdict.advice)
    } else {
        match tls_error(&cause) {
            Some(rustls::Error::AlertReceived(alert)) if refuses(*alert, log) => {
                refused(log, route, *alert)
            }
            Some(rustls::Error::AlertReceived(Alert::UnrecognisedName)) => HttpError::new(
                HttpErrorKind::Untrusted,
                format!("{route} is not a server of that name"),
                "use the name that its certificate is for, as the address or as the server name",
            ),
            Some(error @ rustls::Error::InvalidCertificate(_)) => HttpError::new(
                HttpErrorKind::Untrusted,
                format!("{route} does not prove possession of its certificate's key: {error}"),
                "find out which program serves this address",
            ),
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType))
                if !log.connected() =>
            {
                HttpError::new(
                    HttpErrorKind::OtherScheme,
                    format!("{route} cannot be used: this port does not speak TLS"),
                    "correct the address or its port; write http:// for a server without TLS on this machine",
                )
            }
            _ if log.connected() && is_other_protocol(&cause) => HttpError::new(
                HttpErrorKind::Lost,
                format!(
                    "the answer of {route} is not HTTP/1.1: {}{}",
                    innermost_cause(&cause),
                    presented(log)
                ),
                "correct the address or its port if another service has it; otherwise check the server and the proxies before it",
            ),
            _ if log.connected() => lost(log, route, &innermost_cause(&cause)),
            _ if cause.is_timeout() => match log.resolving() {
                Some(resolving) => unresolved(route, &format!("{resolving} in time")),
                None => unreachable(log, route, "no connection in time"),
            },
            _ => unreachable(log, route, &innermost_cause(&cause)),
        }
    };
    error.caused_by(cause)
}

/// Returns the error for a request without TLS to a port with TLS.
pub(super) fn needs_tls(origin: &str) -> HttpError {
    HttpError::new(
        HttpErrorKind::OtherScheme,
        format!("{origin} cannot be used: this port speaks TLS"),
        "write https://",
    )
}

/// Returns whether a server refused a request because it was sent without TLS.
pub(super) fn refuses_plain(response: &HttpResponse) -> bool {
    // The servers of Go and nginx, which answer without TLS.
    let texts = [
        "Client sent an HTTP request to an HTTPS server",
        "The plain HTTP request was sent to HTTPS port",
    ];
    response.status == 400 && texts.iter().any(|text| response.text().contains(text))
}

/// Returns the error of a failed name resolution: neither the server nor the route to it is known to be at fault.
fn unresolved(route: &str, why: &str) -> HttpError {
    HttpError::new(
        HttpErrorKind::Unreachable,
        format!("{route}: {why}"),
        "check the name, and that the name servers in /etc/resolv.conf resolve it; or add the name to /etc/hosts",
    )
}

fn unreachable(log: &ConnectionLog, route: &str, why: &str) -> HttpError {
    // Without the addresses of one family, a server may be unreachable.
    let unresolved = log.unresolved();
    let unresolved = unresolved.map_or_else(String::new, |note| format!(" ({note})"));
    HttpError::new(
        HttpErrorKind::Unreachable,
        format!("{route} cannot be reached: {why}{unresolved}"),
        "check the address, the name servers, the route and the firewall, and that the server runs",
    )
}

fn lost(log: &ConnectionLog, route: &str, why: &str) -> HttpError {
    let hint = if log.requested_certificate() {
        "; the server requested a client certificate and may have refused it by closing the connection"
    } else {
        ""
    };
    HttpError::new(
        HttpErrorKind::Lost,
        format!("a request was sent to {route} and the answer was lost: {why}{hint}"),
        "the server may have executed the request: check its log before repeating the request manually",
    )
}

fn refused(log: &ConnectionLog, route: &str, alert: Alert) -> HttpError {
    let (detail, advice) = match log.client_certificate() {
        Some(certificate) => (
            format!("{route} refuses our client certificate ({certificate}): TLS alert {alert:?}"),
            "check that it is valid and that the server trusts its issuer",
        ),
        None => (
            format!(
                "{route} requires a client certificate, and none is configured: TLS alert {alert:?}{}",
                presented(log)
            ),
            "configure a client certificate and its key, if this is the right server; otherwise correct the address",
        ),
    };
    HttpError::new(HttpErrorKind::Refused, detail, advice)
}

/// Returns which server has answered; empty without TLS.
fn presented(log: &ConnectionLog) -> String {
    let certificate = log.server_certificate();
    certificate.map_or_else(String::new, |one| {
        format!("; the server's certificate is {one}")
    })
}

/// Returns true if the server has answered in another protocol, such as HTTP/2.
fn is_other_protocol(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref().is_some_and(hyper::Error::is_parse) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Returns true if an alert is about the client certificate.
fn refuses(alert: Alert, log: &ConnectionLog) -> bool {
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
        // The alert of TLS 1.2 for a missing certificate.
        Alert::HandshakeFailure => log.requested_certificate(),
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
        // `source` of an I/O error skips the error inside it.
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

/// Returns the innermost cause, without the layers of the library around it.
fn innermost_cause(error: &(dyn StdError + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    match innermost.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the server closed the connection early".to_owned()
        }
        _ => innermost.to_string(),
    }
}
