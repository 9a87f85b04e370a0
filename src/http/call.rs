//! Requests and responses, in the form that callers use.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::HttpError;
use crate::text::is_hidden;

/// Default size limit of a response body in bytes: more than any response of a signer.
const DEFAULT_BODY_LIMIT: usize = 1024 * 1024;

/// A request to be sent. [`super::Client::send`] reports errors in it.
pub struct Call<'a> {
    pub(super) method: Method,
    path: Cow<'a, str>,
    headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    secrets: Vec<(Cow<'a, str>, Zeroizing<String>)>,
    /// May contain secrets, for example of a login.
    body: Option<Zeroizing<Vec<u8>>>,
    fault: Option<String>,
    pub(super) timeout: Option<Duration>,
    pub(super) limit: usize,
}

impl<'a> Call<'a> {
    /// Returns a request to `path`, with its query, below the endpoint's URL. Use [`encode`] for foreign values in it.
    pub fn new(method: Method, path: impl Into<Cow<'a, str>>) -> Self {
        Call {
            method,
            path: path.into(),
            headers: Vec::new(),
            secrets: Vec::new(),
            body: None,
            fault: None,
            timeout: None,
            limit: DEFAULT_BODY_LIMIT,
        }
    }

    /// Returns the method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Returns a GET request.
    pub fn get(path: impl Into<Cow<'a, str>>) -> Self {
        Self::new(Method::GET, path)
    }

    /// Returns a POST request.
    pub fn post(path: impl Into<Cow<'a, str>>) -> Self {
        Self::new(Method::POST, path)
    }

    /// Returns a PUT request.
    pub fn put(path: impl Into<Cow<'a, str>>) -> Self {
        Self::new(Method::PUT, path)
    }

    /// Adds a header without secrets.
    #[must_use]
    pub fn header(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds a header with a secret. It is sent to the configured origins only.
    #[must_use]
    pub fn secret(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Zeroizing<String>>,
    ) -> Self {
        self.secrets.push((name.into(), value.into()));
        self
    }

    /// Adds a bearer token (RFC 6750).
    #[must_use]
    pub fn bearer(self, token: impl Into<Zeroizing<String>>) -> Self {
        let token: Zeroizing<String> = token.into();
        self.secret(AUTHORIZATION.as_str(), format!("Bearer {}", *token))
    }

    /// Adds user name and password in UTF-8 (RFC 7617).
    #[must_use]
    pub fn basic(mut self, user: &str, password: impl Into<Zeroizing<String>>) -> Self {
        if user.contains(':') {
            self.fault = Some("the user name contains a colon".to_owned());
        }
        let password: Zeroizing<String> = password.into();
        let pair = Zeroizing::new(format!("{user}:{}", *password));
        let value = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
        self.secret(AUTHORIZATION.as_str(), value)
    }

    /// Sets the body and its media type.
    #[must_use]
    pub fn body(
        self,
        content_type: impl Into<Cow<'a, str>>,
        bytes: impl Into<Zeroizing<Vec<u8>>>,
    ) -> Self {
        let mut call = self.header(CONTENT_TYPE.as_str(), content_type);
        call.body = Some(bytes.into());
        call
    }

    /// Sets a body of `application/json`.
    #[must_use]
    pub fn json(self, value: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => self.body("application/json", bytes),
            Err(error) => Call {
                fault: Some(format!("the body cannot be written as JSON: {error}")),
                ..self
            },
        }
    }

    /// Sets the requested media type.
    #[must_use]
    pub fn accept(self, media_type: impl Into<Cow<'a, str>>) -> Self {
        self.header(ACCEPT.as_str(), media_type)
    }

    /// Sets the time limit from the DNS query to the last byte, instead of that of the endpoint.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Call {
            timeout: Some(timeout),
            ..self
        }
    }

    /// Sets the maximum size of the response body in bytes, instead of 1 MiB.
    #[must_use]
    pub fn limit(self, bytes: usize) -> Self {
        Call {
            limit: bytes,
            ..self
        }
    }

    /// Returns the URL of the request. A path cannot lead out of the endpoint's base path.
    pub(super) fn url(&self, base: &Url) -> Result<Url, HttpError> {
        let (path, query) = match self.path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (&*self.path, None),
        };
        let segments = || path.split(['/', '\\']);
        let dots = |segment: &str| {
            matches!(
                segment.to_ascii_lowercase().replace("%2e", ".").as_str(),
                "." | ".."
            )
        };
        let printable = self.path.chars().all(|c| c.is_ascii_graphic());
        if !path.starts_with('/') || self.path.contains('#') || !printable || segments().any(dots) {
            return Err(self.invalid("the path is not valid"));
        }
        if let Some(fault) = &self.fault {
            return Err(self.invalid(fault));
        }
        let mut url = base.clone();
        url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
        url.set_query(query);
        Ok(url)
    }

    /// Adds headers and body to the request; headers with secrets only if `with_secrets` is set.
    pub(super) fn fill(
        &self,
        mut request: reqwest::RequestBuilder,
        with_secrets: bool,
    ) -> Result<reqwest::RequestBuilder, HttpError> {
        for (name, value) in &self.headers {
            if !with_secrets && name.eq_ignore_ascii_case(AUTHORIZATION.as_str()) {
                continue;
            }
            let (name, value) = self.parsed(name, value)?;
            request = request.header(name, value);
        }
        for (name, value) in self.secrets.iter().filter(|_| with_secrets) {
            let (name, mut value) = self.parsed(name, value)?;
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        if let Some(body) = &self.body {
            request = request.body(body.to_vec());
        }
        Ok(request)
    }

    /// Returns the body if it is JSON.
    #[cfg(feature = "fuzzing")]
    pub(super) fn object(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(self.body.as_deref()?).ok()
    }

    fn parsed(&self, name: &str, value: &str) -> Result<(HeaderName, HeaderValue), HttpError> {
        let parsed_name = HeaderName::from_bytes(name.as_bytes());
        let parsed_value = HeaderValue::from_str(value);
        match (parsed_name, parsed_value) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            _ => Err(self.invalid(&format!(
                "the value of the header {name} contains characters that are not allowed (a line break?)"
            ))),
        }
    }

    fn invalid(&self, what: &str) -> HttpError {
        let path = self.path.split('?').next().unwrap_or_default();
        HttpError::local(
            format!("{} {path:?} cannot be sent: {what}", self.method),
            "correct the value in the configuration or in the file that it was read from",
        )
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |f: &mut dyn Iterator<Item = &Cow<'_, str>>| {
            f.map(ToString::to_string).collect::<Vec<_>>()
        };
        f.debug_struct("Call")
            .field("method", &self.method)
            .field("path", &self.path.split('?').next().unwrap_or_default())
            .field(
                "headers",
                &names(&mut self.headers.iter().map(|(name, _)| name)),
            )
            .field(
                "secrets",
                &names(&mut self.secrets.iter().map(|(name, _)| name)),
            )
            .finish_non_exhaustive()
    }
}

/// A response with any status.
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The complete body.
    pub body: Vec<u8>,
    /// `Retry-After` as a duration, at most one year.
    pub retry_after: Option<Duration>,
    /// `Date`: the server's clock.
    pub date: Option<OffsetDateTime>,
    pub(super) headers: HeaderMap,
}

impl HttpResponse {
    /// Returns the first header of that name, in any case; `None` if it is not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns true for a status 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Parses the body as JSON, whatever its media type is.
    ///
    /// # Errors
    /// If it is not valid JSON, or not of this type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// Returns the body as text.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }
}

/// Omits body and headers: the response to a login contains a token.
impl fmt::Debug for HttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("bytes", &self.body.len())
            .field("retry_after", &self.retry_after)
            .finish_non_exhaustive()
    }
}

/// Returns foreign text for a terminal or a log: at most `limit` bytes, control and bidirectional formatting characters
/// escaped.
pub fn printable(text: &str, limit: usize) -> String {
    let mut shown = String::new();
    for character in text.trim().chars() {
        if is_hidden(character) && character != '\n' {
            shown.extend(character.escape_default());
        } else if character == '\n' {
            shown.push_str(" | ");
        } else {
            shown.push(character);
        }
        if shown.len() > limit {
            shown.push('…');
            break;
        }
    }
    shown
}

/// Percent-encodes a value as one segment of a path or one value of a query (RFC 3986, section 2.3).
pub fn encode(value: &str) -> String {
    use fmt::Write as _;
    value.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_characters_of_foreign_text() {
        assert_eq!(
            printable("a\x1b[2Jb\r\nc\u{202e}", 100),
            "a\\u{1b}[2Jb\\r | c\\u{202e}"
        );
        assert_eq!(printable("abcdef", 3), "abcd…");
    }

    #[test]
    fn refuses_path_outside_base() {
        let base = Url::parse("https://h:8200/v1/").unwrap();
        for (path, expected) in [
            ("/pki/sign/x?a=b", Some("https://h:8200/v1/pki/sign/x?a=b")),
            ("/a%2F..%2Fb", Some("https://h:8200/v1/a%2F..%2Fb")),
            ("/", Some("https://h:8200/v1/")),
            ("pki", None),
            ("/../sys", None),
            ("/a/%2E%2e/b", None),
            ("/a\\..\\b", None),
            ("/a#b", None),
            ("/a b", None),
            ("/a\r\nb", None),
        ] {
            assert_eq!(
                Call::get(path).url(&base).ok().as_ref().map(Url::as_str),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn encodes_value_as_one_segment() {
        assert_eq!(encode("system:node/..ä"), "system%3Anode%2F..%C3%A4");
    }

    #[test]
    fn omits_secrets_from_debug_output() {
        let call = Call::post("/login?code=hidden")
            .bearer("hidden".to_owned())
            .basic("me", "hidden".to_owned())
            .secret("X-Vault-Token", "hidden".to_owned())
            .json(&serde_json::json!({"secret_id": "hidden"}));
        let shown = format!("{call:?}");
        assert!(
            shown.contains("/login") && !shown.contains("hidden"),
            "{shown}"
        );
    }
}
