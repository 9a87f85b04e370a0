//! A Kubernetes API server: where it is, who we are there, and the few calls that are made of it.
//!
//! Objects go in and come out as JSON; what they mean is the callers' matter. What went wrong comes in types
//! ([`Error`]): the API server's own refusals as the [`Status`] that it sent, everything else as what it is.
//!
//! The server and the credential are either given by key ([`Access::Direct`]) or stand in a kubeconfig
//! ([`Access::Kubeconfig`]). Tokens, certificates and the kubeconfig itself are read anew for every exchange: a
//! token that was rotated on disk is the one that is sent, and after a 401 nothing has to be reset. A kubeconfig is
//! followed as far as a tool without a shell, a user or a browser can; what it cannot (`exec`, passwords, another
//! user's identity, a server to be believed blindly) is an error and never left out in silence.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::http::{
    self, Call, Client, Endpoint, Files, Identity, Method, Response, Url, encode, printable,
};
use crate::kube::kubeconfig::{Kubeconfig, resolve_path};
use crate::spec::KUBECONFIG_DIR;
use crate::store;
use crate::yaml::schema::{NO_CREDENTIALS, SecretFile};

const JSON: &str = "application/json";
/// What whoever answers says of a refusal, in bytes: it may be anybody.
const SAID_LIMIT: usize = 2000;

/// A kind of object and where the API has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Empty for the core group.
    pub group: &'static str,
    /// `v1`.
    pub version: &'static str,
    /// As in paths: `certificatesigningrequests`.
    pub plural: &'static str,
    /// As in objects: `CertificateSigningRequest`.
    pub kind: &'static str,
}

/// ConfigMaps.
pub const CONFIG_MAP: Resource = Resource {
    group: "",
    version: "v1",
    plural: "configmaps",
    kind: "ConfigMap",
};

/// Secrets.
pub const SECRET: Resource = Resource {
    group: "",
    version: "v1",
    plural: "secrets",
    kind: "Secret",
};

impl Resource {
    /// As in objects: `certificates.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut path = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        if let Some(namespace) = namespace {
            path.push_str(&format!("/namespaces/{}", encode(namespace)));
        }
        path.push_str(&format!("/{}", self.plural));
        if let Some(name) = name {
            path.push_str(&format!("/{}", encode(name)));
        }
        path
    }
}

/// Where an API server is and who we are there. All of it comes from configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// By key.
    Direct {
        /// The server, and the client certificate if that is who we are.
        endpoint: Box<Endpoint>,
        /// A bootstrap token or a ServiceAccount's.
        token: Option<Token>,
    },
    /// By the current context of a kubeconfig.
    Kubeconfig {
        /// The file.
        file: SecretFile,
        /// For one exchange.
        timeout: Duration,
    },
}

/// A bearer token.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    /// Read anew for every exchange.
    File(SecretFile),
    /// In memory.
    Held(Zeroizing<String>),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::File(file) => f.debug_tuple("File").field(file).finish(),
            Token::Held(_) => f.write_str("Held"),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::Direct { endpoint, .. } => {
                f.write_str(endpoint.url.as_str().trim_end_matches('/'))
            }
            Access::Kubeconfig { file, .. } => file.fmt(f),
        }
    }
}

/// What to do about an [`Error::Unread`] with this source.
pub(crate) fn unread_advice(source: &io::Error) -> &'static str {
    match store::is_access_refusal(source) {
        true => "then run again",
        false => "put it there, readable for the user that nodepki runs as",
    }
}

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There was no exchange, or half of one.
    #[error(transparent)]
    Http(#[from] http::Error),
    /// The API server said no.
    #[error(transparent)]
    Refused(#[from] Box<Status>),
    /// What answered is no API server, or not in its right mind.
    #[error("the answer (HTTP {status}, {bytes} bytes) is unusable: {why}")]
    Unusable {
        /// HTTP status.
        status: u16,
        /// Size of the body.
        bytes: usize,
        /// What is wrong with it.
        why: String,
    },
    /// Nothing was sent: kubeconfig, token or certificate cannot be read.
    #[error("{file} cannot be read: {source}")]
    Unread {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// Nothing was sent: kubeconfig or token cannot be used.
    #[error("{file} {why}")]
    Local {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: String,
        /// What to do now.
        advice: &'static str,
    },
}

/// An API server's refusal (`kind: Status`), or what some proxy in front of it said instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("HTTP {code} {reason}: {message}")]
pub struct Status {
    /// HTTP status.
    pub code: u16,
    /// `NotFound`, `AlreadyExists`, `Forbidden`, …; empty when no `Status` came.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The object that it is about.
    pub name: String,
    /// When to try again, from the header or from `details`.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// The object does not exist, while its API does.
    pub fn is_not_found(&self, name: &str) -> bool {
        self.code == 404 && self.reason == "NotFound" && self.name == name
    }

    /// An object of that name exists.
    pub fn is_already_exists(&self) -> bool {
        self.code == 409 && self.reason == "AlreadyExists"
    }

    /// The object was changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.code == 409 && self.reason == "Conflict"
    }

    /// What the authorizer of the API server says, in `responsewriters.Forbidden`; any other 403 comes from admission:
    /// a judgement of this object and not of who sent it.
    pub fn is_unauthorized_user(&self) -> bool {
        let said = |words| self.message.contains(words);
        self.code == 403 && (self.reason != "Forbidden" || said("User \"") && said("\" cannot "))
    }

    fn of(response: &Response) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Body {
            kind: String,
            reason: String,
            message: String,
            details: Option<Details>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Details {
            name: String,
            retry_after_seconds: u32,
        }
        let header = response.retry_after;
        match response.json::<Body>() {
            Ok(body) if body.kind == "Status" => {
                let details = body.details.unwrap_or_default();
                let seconds = u64::from(details.retry_after_seconds);
                Status {
                    code: response.status,
                    reason: printable(&body.reason, SAID_LIMIT),
                    message: printable(&body.message, SAID_LIMIT),
                    name: details.name,
                    retry_after: header
                        .or_else(|| (seconds > 0).then(|| Duration::from_secs(seconds))),
                }
            }
            _ => Status {
                code: response.status,
                message: printable(&response.text(), SAID_LIMIT),
                retry_after: header,
                ..Status::default()
            },
        }
    }
}

/// An API server.
pub struct Api {
    access: Access,
    files: Rc<dyn Files>,
    credentials: Option<PathBuf>,
    clock: fn() -> OffsetDateTime,
    provisional: bool,
    /// The last one made: it remembers what it has warned of.
    client: RefCell<Option<Client>>,
}

impl Api {
    /// Reads and sends nothing. `credentials` is where systemd put the unit's.
    ///
    /// # Errors
    /// An address or a path that cannot be used.
    pub fn new(
        access: Access,
        files: Rc<dyn Files>,
        credentials: Option<PathBuf>,
        clock: fn() -> OffsetDateTime,
    ) -> Result<Self, Error> {
        if let Access::Direct { endpoint, .. } = &access {
            Client::new(Endpoint::clone(endpoint), Rc::clone(&files), clock)?;
        }
        Ok(Api {
            access,
            files,
            credentials,
            clock,
            provisional: false,
            client: RefCell::default(),
        })
    }

    /// The same API server, whoever answers in its place; nothing secret is sent. See [`Client::provisional`].
    #[must_use]
    pub fn provisional(self) -> Self {
        Api {
            provisional: true,
            ..self
        }
    }

    /// An object; `None` when there is none of that name, which is not the same as an API server that does not know
    /// the kind.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn read(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, Error> {
        let path = resource.path(namespace, Some(name));
        match self.send(resource, Call::get(path)).await {
            Err(Error::Refused(status)) if status.is_not_found(name) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Makes an object and gives it as the API server took it.
    ///
    /// # Errors
    /// See [`Error`]; an object of that name is a [`Status::is_already_exists`].
    pub async fn create(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        object: &Value,
    ) -> Result<Value, Error> {
        let path = resource.path(namespace, None);
        self.send(resource, Call::new(Method::POST, path).json(object))
            .await
    }

    /// Replaces the whole of an object and gives it as the API server took it. With a `resourceVersion` in it the API
    /// server refuses when somebody else was faster ([`Status::is_conflict`]).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn replace(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
        object: &Value,
    ) -> Result<Value, Error> {
        let path = resource.path(namespace, Some(name));
        self.send(resource, Call::put(path).json(object)).await
    }

    /// Removes an object; `false` when there was none.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<bool, Error> {
        let path = resource.path(namespace, Some(name));
        let call = Call::new(Method::DELETE, path).accept(JSON);
        match self.exchange(call).await {
            Ok(_) => Ok(true),
            Err(Error::Refused(status)) if status.is_not_found(name) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// JSON that is no object of the API: `/openid/v1/jwks`, `/version`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn document(&self, path: &str) -> Result<Value, Error> {
        // A key set has a media type of its own.
        let response = self.exchange(Call::get(path).accept("*/*")).await?;
        json(&response)
    }

    /// Text that is not an object of the API: the metrics of a node's kubelet.
    ///
    /// # Errors
    /// See [`Error`]; more than `limit` bytes are an error of the exchange.
    pub async fn text(&self, path: &str, limit: usize) -> Result<String, Error> {
        let call = Call::get(path).accept("text/plain").limit(limit);
        Ok(self.exchange(call).await?.text().into_owned())
    }

    async fn send(&self, resource: &Resource, call: Call<'_>) -> Result<Value, Error> {
        let response = self.exchange(call.accept(JSON)).await?;
        let object = json(&response)?;
        match object.get("kind").and_then(Value::as_str) {
            Some(kind) if kind == resource.kind => Ok(object),
            _ => Err(unusable(&response, format!("it is no {}", resource.kind))),
        }
    }

    async fn exchange(&self, mut call: Call<'_>) -> Result<Response, Error> {
        let (client, token) = self.connection()?;
        if let Some(token) = token {
            call = call.bearer(token);
        }
        let response = match self.provisional {
            true => client.provisional().send(call).await?,
            false => client.send(call).await?,
        };
        match response.is_success() {
            true => Ok(response),
            false => Err(Box::new(Status::of(&response)).into()),
        }
    }

    /// As the files are now.
    fn connection(&self) -> Result<(Client, Option<Zeroizing<String>>), Error> {
        match &self.access {
            Access::Direct { endpoint, token } => {
                let token = match token {
                    Some(Token::File(file)) => Some(self.token(&self.files, file)?),
                    Some(Token::Held(token)) => Some(token.clone()),
                    None => None,
                };
                Ok((self.client(Endpoint::clone(endpoint), &self.files)?, token))
            }
            Access::Kubeconfig { file, timeout } => self.context(file, *timeout),
        }
    }

    fn client(&self, endpoint: Endpoint, files: &Rc<dyn Files>) -> Result<Client, Error> {
        let mut kept = self.client.borrow_mut();
        match kept.as_ref() {
            Some(client) if *client.endpoint() == endpoint => Ok(client.clone()),
            _ => {
                let client = Client::new(endpoint, Rc::clone(files), self.clock)?;
                Ok(kept.insert(client).clone())
            }
        }
    }

    /// The current context of a kubeconfig.
    fn context(
        &self,
        file: &SecretFile,
        timeout: Duration,
    ) -> Result<(Client, Option<Zeroizing<String>>), Error> {
        let wrong = |why: String, advice| Error::Local {
            file: format!("the kubeconfig {}", self.files.shown_secret(file)),
            why,
            advice,
        };
        const MEND: &str = "make it as `kubectl config view --raw --minify --flatten` prints it";
        let path = self.path(file)?;
        let read = self.files.read(&path);
        let bytes = read.map_err(|source| unread(&self.files, file, source))?;
        let files = match self.files.named_in(&path) {
            Ok(Some(files)) => files,
            Ok(None) => Rc::clone(&self.files),
            Err(error) => return Err(unread(&self.files, file, error)),
        };
        let text =
            std::str::from_utf8(&bytes).map_err(|_| wrong("is not UTF-8 text".to_owned(), MEND))?;
        let mut current = Kubeconfig::parse(text)
            .and_then(|kubeconfig| kubeconfig.current())
            .map_err(|error| wrong(format!("cannot be used: {error}"), MEND))?;
        // The node's own keep the mode that an administrator gave them; `doctor` reports it.
        if current.has_secret() && !is_of_node(&path) {
            let read = self.files.read_secret(&path);
            read.map_err(|source| unread(&self.files, file, source))?;
        }
        if !current.beyond.is_empty() {
            return Err(wrong(
                format!(
                    "has {}, which nodepki does not follow",
                    current.beyond.join(", ")
                ),
                "use one with certificate-authority-data and a token, a tokenFile or a client certificate",
            ));
        }
        let beside = |name: &str| resolve_path(&path, name);
        let address = |field: &str, text: &str| {
            Url::parse(text).map_err(|error| {
                // Without the text: there may be a password in it.
                wrong(format!("has a {field} that is no address: {error}"), MEND)
            })
        };
        let server = current
            .server
            .as_deref()
            .ok_or_else(|| wrong("names no server".to_owned(), MEND))?;
        let mut endpoint = Endpoint::new(address("server", server)?);
        endpoint.timeout = timeout;
        endpoint.tls.server_name = current.server_name.take();
        endpoint.tls.ca_pem = current.authority.take();
        if endpoint.tls.ca_pem.is_none() {
            endpoint.tls.ca_file = current.authority_file.as_deref().map(beside);
        }
        endpoint.proxy = match &current.proxy {
            Some(proxy) => Some(address("proxy-url", proxy)?),
            None => None,
        };
        let certificate = match (current.certificate.take(), &current.certificate_file) {
            (Some(pem), _) => Some(Zeroizing::new(pem)),
            (None, Some(name)) => {
                let path = beside(name);
                let read = files.read(&path);
                Some(read.map_err(|source| unread(&files, &SecretFile::Path(path), source))?)
            }
            (None, None) => None,
        };
        let key = match (current.key.take(), &current.key_file) {
            (Some(pem), _) => Some(pem),
            (None, Some(name)) => {
                let path = beside(name);
                let read = files.read_secret(&path);
                Some(read.map_err(|source| unread(&files, &SecretFile::Path(path), source))?)
            }
            (None, None) => None,
        };
        let token = match &current.token_file {
            Some(name) => Some(self.token(&files, &SecretFile::Path(beside(name)))?),
            None => current.token.take(),
        };
        let mut client = self.client(endpoint, &files)?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => {
                client = client.with_identity(Identity {
                    chain_pem: certificate.to_vec(),
                    key_pem: key,
                });
            }
            (None, None) => {}
            _ => {
                return Err(wrong(
                    "has half of a client certificate: certificate or key alone".to_owned(),
                    MEND,
                ));
            }
        }
        Ok((client, token))
    }

    fn path(&self, file: &SecretFile) -> Result<PathBuf, Error> {
        file.path(self.credentials.as_deref())
            .ok_or_else(|| Error::Local {
                file: file.to_string(),
                why: format!("cannot be read: {NO_CREDENTIALS}"),
                advice: "add LoadCredential= to the unit, or name a path",
            })
    }

    fn token(&self, files: &Rc<dyn Files>, file: &SecretFile) -> Result<Zeroizing<String>, Error> {
        let read = files.read_secret(&self.path(file)?);
        let bytes = read.map_err(|source| unread(files, file, source))?;
        let text = std::str::from_utf8(&bytes).map(str::trim);
        // The text is a secret even where it is not a token.
        match text {
            Ok(token) if !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic()) => {
                Ok(Zeroizing::new(token.to_owned()))
            }
            _ => Err(Error::Local {
                file: files.shown_secret(file),
                why: "holds no token".to_owned(),
                advice: "write the token alone into it, on one line",
            }),
        }
    }
}

/// Whether a kubeconfig is one of the node's components.
pub(crate) fn is_of_node(kubeconfig: &Path) -> bool {
    kubeconfig.parent() == Some(Path::new(KUBECONFIG_DIR))
}

fn unread(files: &Rc<dyn Files>, file: &SecretFile, source: io::Error) -> Error {
    Error::Unread {
        file: files.shown_secret(file),
        source,
    }
}

fn json(response: &Response) -> Result<Value, Error> {
    response
        .json()
        .map_err(|error| unusable(response, format!("it is no JSON ({error})")))
}

fn unusable(response: &Response, why: String) -> Error {
    Error::Unusable {
        status: response.status,
        bytes: response.body.len(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSR: Resource = Resource {
        group: "certificates.k8s.io",
        version: "v1",
        plural: "certificatesigningrequests",
        kind: "CertificateSigningRequest",
    };

    #[test]
    fn paths_are_the_apis() {
        assert_eq!(
            CSR.path(None, Some("a/../b")),
            "/apis/certificates.k8s.io/v1/certificatesigningrequests/a%2F..%2Fb"
        );
        assert_eq!(
            SECRET.path(Some("kube-system"), None),
            "/api/v1/namespaces/kube-system/secrets"
        );
        assert_eq!(
            (SECRET.api_version(), CSR.api_version()),
            ("v1".to_owned(), "certificates.k8s.io/v1".to_owned())
        );
    }

    #[test]
    fn rbac_and_admission_are_told_apart() {
        for (message, expected) in [
            (
                "certificatesigningrequests.certificates.k8s.io is forbidden: User \"nodepki:cp1\" cannot create resource \"certificatesigningrequests\" in API group \"certificates.k8s.io\" at the cluster scope",
                true,
            ),
            (
                "certificatesigningrequests.certificates.k8s.io \"x\" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
                false,
            ),
            (
                "certificaterequests.cert-manager.io \"x\" is forbidden: exceeded quota: few, requested: count/certificaterequests.cert-manager.io=1, used: 1, limited: 1",
                false,
            ),
        ] {
            let status = Status {
                code: 403,
                reason: "Forbidden".to_owned(),
                message: message.to_owned(),
                ..Status::default()
            };
            assert_eq!(status.is_unauthorized_user(), expected, "{message}");
        }
        // Some proxy's.
        let status = Status {
            code: 403,
            message: "<html>no".to_owned(),
            ..Status::default()
        };
        assert!(status.is_unauthorized_user());
    }
}
