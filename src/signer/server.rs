//! HTTP exchanges with a signer's server, and the meaning of their failures.
//!
//! Transport failures and HTTP statuses become [`SignerError`]s that name the signer, the operation and the required
//! action. A signer with more specific knowledge of a status or text interprets the [`HttpResponse`] and leaves the rest
//! to [`SignerServer::refusal`].

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Deserialize;
use zeroize::Zeroizing;

use super::{FailureClass, Request, SignerError, Site, printable};
use crate::http::{
    self, Call, Client, ClientIdentity, Endpoint, Files, HttpErrorKind, HttpResponse, Method,
};
use crate::kube::names::NodePath;
use crate::store;
use crate::yaml::schema::{NO_CREDENTIALS, SecretFile};

/// Bytes of a quotation from the server in a message.
pub(super) const MAX_QUOTED: usize = 512;

/// A server, with access to the files that contain its credentials.
#[derive(Clone)]
pub(super) struct SignerServer {
    label: String,
    client: Client,
    files: Rc<dyn Files>,
    credentials: Option<PathBuf>,
    /// The state directory, for messages.
    state_dir: NodePath,
}

impl SignerServer {
    /// Creates a server without sending anything. `label` is `Signer::label`.
    pub(super) fn new(
        label: String,
        endpoint: Endpoint,
        site: &Site<'_>,
    ) -> Result<Self, SignerError> {
        let client = Client::new(endpoint, Rc::clone(&site.files), site.clock)
            .map_err(|error| failure(&label, "opening it", &Method::GET, error))?;
        Ok(SignerServer {
            label,
            client,
            files: Rc::clone(&site.files),
            credentials: site.credentials.clone(),
            state_dir: site.memory.state_dir(),
        })
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Returns the state directory, for messages.
    pub(super) fn state_dir(&self) -> &NodePath {
        &self.state_dir
    }

    /// Returns a file that the configuration names, for messages.
    pub(super) fn shown(&self, file: &Path) -> PathBuf {
        self.files.shown(file)
    }

    /// Returns a file with a secret, for messages.
    pub(super) fn shown_secret(&self, file: &SecretFile) -> String {
        self.files.shown_secret(file)
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the server without verification, to fetch what is then verified against a pin.
    pub(super) fn provisional(&self) -> Self {
        self.through(self.client.provisional())
    }

    /// Returns the server, verified by the roots in `pem`.
    pub(super) fn trusting(&self, pem: Vec<u8>) -> Self {
        self.through(self.client.trusting(pem))
    }

    /// Returns the server with another label in its errors.
    pub(super) fn labelled(&self, label: String) -> Self {
        SignerServer {
            label,
            ..self.clone()
        }
    }

    /// Returns the server with another client.
    fn through(&self, client: Client) -> Self {
        SignerServer {
            client,
            ..self.clone()
        }
    }

    /// Returns the server, with the certificate that is being renewed as the client certificate.
    pub(super) fn renewing(&self, current: &super::CurrentCertificate) -> Self {
        self.through(self.client.with_identity(ClientIdentity {
            chain_pem: current.chain_pem.clone(),
            key_pem: current.key_pem.clone(),
        }))
    }

    /// Performs one exchange, whatever the status of the response. `doing` completes the sentence "corp failed at …".
    pub(super) async fn exchange(
        &self,
        doing: &str,
        call: Call<'_>,
    ) -> Result<HttpResponse, SignerError> {
        let method = call.method().clone();
        let response = self
            .client
            .send(call)
            .await
            .map_err(|error| failure(&self.label, doing, &method, error))?;
        if is_of_kubernetes(&response) {
            let status = response.status;
            let what = format!("a Kubernetes API server has this address (HTTP {status})");
            let advice = "correct the address or its port: they are not those of the signer";
            return Err(self
                .failed(FailureClass::Config, doing, what, advice)
                .during(doing));
        }
        Ok(response)
    }

    /// Returns the error for a refusal. `said` is the server's own text.
    pub(super) fn refusal(&self, doing: &str, response: &HttpResponse, said: &str) -> SignerError {
        let status = response.status;
        let (class, advice) = match status {
            300..=399 => (
                FailureClass::Config,
                "verify the address that it redirects to, then configure it",
            ),
            401 => (
                FailureClass::Auth,
                "renew the configured credential, or its file",
            ),
            403 => (
                FailureClass::Auth,
                "ask the signer's owner to allow this for the node's credential",
            ),
            404 | 405 | 410 | 501 => (
                FailureClass::Config,
                "check the address and the names in its configuration against the server's",
            ),
            408 | 425 | 429 | 500..=599 => (
                FailureClass::Transient,
                "check the server's log if this persists",
            ),
            _ => (
                FailureClass::Permanent,
                "correct what the server names, there or in the configuration, and run again",
            ),
        };
        self.failed(class, doing, answered(status, said), advice)
            .during(doing)
            .retry_after(response.retry_after)
    }

    /// Returns the error for a response that violates the protocol.
    pub(super) fn invalid_response(
        &self,
        doing: &str,
        response: &HttpResponse,
        why: &str,
    ) -> SignerError {
        let (status, bytes) = (response.status, response.body.len());
        let what = format!("the response (HTTP {status}, {bytes} bytes) is unusable: {why}");
        let advice = "check that the address is the signer's";
        self.failed(FailureClass::Permanent, doing, what, advice)
            .during(doing)
    }

    /// Returns the error for an operation. Only its text contains `doing`: see [`SignerError::during`].
    pub(super) fn failed(
        &self,
        class: FailureClass,
        doing: &str,
        what: impl Display,
        advice: impl Into<String>,
    ) -> SignerError {
        failed(&self.label, class, doing, what, advice)
    }

    /// Reads a secret from its file, which must be private, without surrounding white space. The file is read again
    /// each time.
    pub(super) fn secret(&self, file: &SecretFile) -> Result<Zeroizing<String>, SignerError> {
        self.text(file, |path| self.files.read_secret(path))
    }

    /// As [`SignerServer::secret`], for a file that every user may read.
    pub(super) fn public(&self, file: &SecretFile) -> Result<Zeroizing<String>, SignerError> {
        self.text(file, |path| self.files.read(path))
    }

    fn text(
        &self,
        file: &SecretFile,
        read: impl FnOnce(&Path) -> io::Result<Zeroizing<Vec<u8>>>,
    ) -> Result<Zeroizing<String>, SignerError> {
        let unreadable = |why: String| {
            let file = self.shown_secret(file);
            SignerError::config(
                format!("{}: {file} cannot be read: {why}", self.label),
                "write the credential there, readable for the user that nodepki runs as",
            )
        };
        let path = file
            .path(self.credentials.as_deref())
            .ok_or_else(|| unreadable(format!("{NO_CREDENTIALS} (no $CREDENTIALS_DIRECTORY)")))?;
        let bytes = read(&path).map_err(|error| {
            if store::is_access_refusal(&error) {
                let file = self.shown_secret(file);
                SignerError::permanent(format!("{}: {file}: {error}", self.label), "then run again")
            } else {
                unreadable(error.to_string()).marked_by(&error)
            }
        })?;
        let text =
            std::str::from_utf8(&bytes).map_err(|_| unreadable("it is not UTF-8 text".into()))?;
        match text.trim() {
            "" => Err(unreadable("it is empty".into())),
            secret => Ok(Zeroizing::new(secret.to_owned())),
        }
    }
}

/// Returns whether a Kubernetes API server refused a request. Another status can be temporary, as that of a proxy before the
/// signer.
fn is_of_kubernetes(response: &HttpResponse) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        kind: String,
        api_version: String,
    }
    matches!(response.status, 401 | 403 | 404 | 405)
        && response
            .json()
            .is_ok_and(|found: Status| found.kind == "Status" && found.api_version == "v1")
}

/// Returns "signing apiserver for authority ca", for messages about one request.
pub(super) fn signing(request: &Request) -> String {
    format!(
        "signing {} for authority {}",
        request.name(),
        request.wanted.authority
    )
}

/// Returns "HTTP 403: the server's own text", safe for a terminal.
pub(super) fn answered(status: u16, said: &str) -> String {
    match printable(said, MAX_QUOTED).as_str() {
        "" => format!("HTTP {status}"),
        said => format!("HTTP {status}: {said}"),
    }
}

/// Returns the error for an exchange without a response.
pub(super) fn failure(
    label: &str,
    doing: &str,
    method: &Method,
    error: http::HttpError,
) -> SignerError {
    let class = match error.kind() {
        HttpErrorKind::Unreachable => FailureClass::Transient,
        // A query creates nothing.
        HttpErrorKind::Lost if *method == Method::GET => FailureClass::Transient,
        HttpErrorKind::Lost => FailureClass::Ambiguous,
        HttpErrorKind::Refused => FailureClass::Auth,
        HttpErrorKind::TooLarge => FailureClass::Permanent,
        _ => FailureClass::Config,
    };
    failed(label, class, doing, &error, error.advice())
        .during(doing)
        .caused_by(error)
}

/// As [`SignerServer::failed`], for the signer with this label.
pub(super) fn failed(
    label: &str,
    class: FailureClass,
    doing: &str,
    what: impl Display,
    advice: impl Into<String>,
) -> SignerError {
    SignerError::new(class, format!("{label}: {doing} failed: {what}"), advice)
}
