//! A client of the Kubernetes API server, with the few calls that nodepki makes.
//!
//! Objects are passed as JSON; callers know their meaning. Failures are typed ([`ApiError`]): a refusal by the API server is
//! the [`ApiStatus`] that it sent.
//!
//! Server and credential are configured either separately ([`ApiAccess::Direct`]) or by a kubeconfig
//! ([`ApiAccess::Kubeconfig`]). Tokens, certificates and the kubeconfig itself are read again for every exchange: a token
//! that was rotated on disk is sent at once, and after a 401 nothing needs to be reset. A kubeconfig is followed as far
//! as a program without a shell, a user or a browser can. Anything else (`exec`, passwords, impersonation,
//! `insecure-skip-tls-verify`) is an error and is never ignored silently.

mod context;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::http::{
    self, Call, Client, Endpoint, Files, HttpResponse, HttpStream, Method, Opened, encode,
    printable,
};
use crate::kube::csr_object::CSR_GROUP;
use crate::kube::rbac;
use crate::store;
use crate::yaml::schema::{NO_CREDENTIALS, SecretFile};

use context::KubeconfigContext;
pub(crate) use context::is_of_node;

pub(super) const JSON: &str = "application/json";
/// Maximum size of an object in bytes. etcd accepts objects of 1.5 MiB, which are 2 MiB as JSON.
const MAX_OBJECT_BYTES: usize = 4 << 20;
/// Maximum length in bytes of a server's message that is shown: any server may have sent it.
pub(super) const MAX_MESSAGE_LENGTH: usize = 2000;

/// A kind of object and its path in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Empty for the core group.
    pub group: &'static str,
    /// `v1`.
    pub version: &'static str,
    /// The name in paths: `certificatesigningrequests`.
    pub plural: &'static str,
    /// The name in objects: `CertificateSigningRequest`.
    pub kind: &'static str,
}

/// ConfigMaps.
pub(crate) const CONFIG_MAP: Resource = Resource::new("", "v1", "configmaps", "ConfigMap");

/// Nodes.
pub(crate) const NODE: Resource = Resource::new("", "v1", "nodes", "Node");

/// Secrets.
pub const SECRET: Resource = Resource::new("", "v1", "secrets", "Secret");

/// Pods.
pub(crate) const POD: Resource = Resource::new("", "v1", "pods", "Pod");

/// Roles.
pub(crate) const ROLE: Resource = Resource::new(rbac::GROUP, "v1", "roles", "Role");

/// RoleBindings.
pub(crate) const ROLE_BINDING: Resource =
    Resource::new(rbac::GROUP, "v1", "rolebindings", "RoleBinding");

/// CertificateSigningRequests.
pub(crate) const CSR: Resource = Resource {
    group: CSR_GROUP,
    version: "v1",
    plural: "certificatesigningrequests",
    kind: "CertificateSigningRequest",
};

impl Resource {
    /// Creates a kind of object.
    pub(crate) const fn new(
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        kind: &'static str,
    ) -> Resource {
        Resource {
            group,
            version,
            plural,
            kind,
        }
    }

    /// Returns the value of `apiVersion`: `certificates.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    pub(super) fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
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

/// The address of an API server and the credential for it, from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiAccess {
    /// Configured separately.
    Direct {
        /// The server, with the client certificate if that is the credential.
        endpoint: Box<Endpoint>,
        /// A bootstrap token or the token of a ServiceAccount.
        token: Option<BearerToken>,
    },
    /// The current context of a kubeconfig.
    Kubeconfig {
        /// The file.
        file: SecretFile,
        /// Time limit of one exchange.
        timeout: Duration,
    },
}

/// A bearer token.
#[derive(Clone, PartialEq, Eq)]
pub enum BearerToken {
    /// Read again for every exchange.
    File(SecretFile),
    /// In memory.
    Held(Zeroizing<String>),
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BearerToken::File(file) => f.debug_tuple("File").field(file).finish(),
            BearerToken::Held(_) => f.write_str("Held"),
        }
    }
}

impl fmt::Display for ApiAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiAccess::Direct { endpoint, .. } => {
                f.write_str(endpoint.url.as_str().trim_end_matches('/'))
            }
            ApiAccess::Kubeconfig { file, .. } => file.fmt(f),
        }
    }
}

/// Returns what to do about an [`ApiError::Unread`] with this source.
pub(crate) fn unread_advice(source: &io::Error) -> &'static str {
    if store::is_access_refusal(source) {
        "then run again"
    } else {
        "put it there, readable for the user that nodepki runs as"
    }
}

/// A failed call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] http::HttpError),
    /// The API server refused the request.
    #[error(transparent)]
    Refused(#[from] Box<ApiStatus>),
    /// The response is not a valid Kubernetes API response.
    #[error("the answer (HTTP {status}, {bytes} bytes) is unusable: {why}")]
    Unusable {
        /// HTTP status.
        status: u16,
        /// Size of the body.
        bytes: usize,
        /// The fault.
        why: String,
    },
    /// The request was not sent: kubeconfig, token or certificate cannot be read.
    #[error("{file} cannot be read: {source}")]
    Unread {
        /// The file.
        file: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The request was not sent: kubeconfig or token is not valid.
    #[error("{file} {why}")]
    Local {
        /// The file.
        file: String,
        /// The fault.
        why: String,
        /// The required action.
        advice: &'static str,
    },
}

/// A refusal by an API server (`kind: Status`), or by a proxy in front of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("HTTP {code} {reason}: {message}")]
pub struct ApiStatus {
    /// HTTP status.
    pub code: u16,
    /// `NotFound`, `AlreadyExists`, `Forbidden`, …; empty if the response is not a `ApiStatus`.
    pub reason: String,
    /// The message for the user.
    pub message: String,
    /// The name of the object.
    pub name: String,
    /// How long to wait before trying again, from the header or from `details`.
    pub retry_after: Option<Duration>,
}

impl ApiStatus {
    /// Returns true if the object does not exist although its API does.
    pub(crate) fn is_not_found(&self, name: &str) -> bool {
        self.code == 404 && self.reason == "NotFound" && self.name == name
    }

    /// Returns true if the API server does not serve that kind of object.
    pub(crate) fn is_unknown_kind(&self) -> bool {
        self.code == 404 && self.name.is_empty()
    }

    /// Returns true if an object of that name exists.
    pub(crate) fn is_already_exists(&self) -> bool {
        self.code == 409 && self.reason == "AlreadyExists"
    }

    /// Returns true if a resourceVersion or a `continue` token is too old: list again from the start.
    pub(crate) fn is_expired(&self) -> bool {
        self.code == 410
    }

    /// Returns true if the object was changed since it was read.
    pub(crate) fn is_conflict(&self) -> bool {
        self.code == 409 && self.reason == "Conflict"
    }

    /// Returns true if the authorizer refused the user. Any other 403 comes from admission, which refuses the object.
    ///
    /// Only the message distinguishes the two: the authorizer's is that of `responsewriters.Forbidden` in
    /// k8s.io/apiserver.
    pub(crate) fn is_unauthorized_user(&self) -> bool {
        let contains = |words| self.message.contains(words);
        let is_by_authorizer = contains("User \"") && contains("\" cannot ");
        self.code == 403 && (self.reason != "Forbidden" || is_by_authorizer)
    }

    fn of(response: &HttpResponse) -> Self {
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
                ApiStatus {
                    code: response.status,
                    reason: printable(&body.reason, MAX_MESSAGE_LENGTH),
                    message: printable(&body.message, MAX_MESSAGE_LENGTH),
                    name: details.name,
                    retry_after: header
                        .or_else(|| (seconds > 0).then(|| Duration::from_secs(seconds))),
                }
            }
            _ => ApiStatus {
                code: response.status,
                message: printable(&response.text(), MAX_MESSAGE_LENGTH),
                retry_after: header,
                ..ApiStatus::default()
            },
        }
    }
}

/// A client of an API server.
pub struct Api {
    access: ApiAccess,
    files: Rc<dyn Files>,
    credentials: Option<PathBuf>,
    clock: fn() -> OffsetDateTime,
    provisional: bool,
    /// The last client, which remembers the warnings that it has logged.
    client: RefCell<Option<Client>>,
}

impl Api {
    /// Returns a client. Reads and sends nothing. `credentials` is systemd's directory with the unit's credentials.
    ///
    /// # Errors
    /// If an address or a path is not valid.
    pub fn new(
        access: ApiAccess,
        files: Rc<dyn Files>,
        credentials: Option<PathBuf>,
        clock: fn() -> OffsetDateTime,
    ) -> Result<Self, ApiError> {
        if let ApiAccess::Direct { endpoint, .. } = &access {
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

    /// Returns a client that accepts any server and sends no secrets. See [`Client::provisional`].
    #[must_use]
    pub fn provisional(self) -> Self {
        Api {
            provisional: true,
            ..self
        }
    }

    /// Returns an object; `None` if none of that name exists. An API server without that kind is an error.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn read(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, ApiError> {
        let path = resource.path(namespace, Some(name));
        match self.send(resource, Call::get(path)).await {
            Err(ApiError::Refused(status)) if status.is_not_found(name) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Creates an object and returns it as the API server stored it.
    ///
    /// # Errors
    /// See [`ApiError`]; an existing object of that name is a `ApiStatus::is_already_exists`.
    pub async fn create(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        object: &Value,
    ) -> Result<Value, ApiError> {
        let path = resource.path(namespace, None);
        self.send(resource, Call::new(Method::POST, path).json(object))
            .await
    }

    /// Replaces an object completely and returns it as the API server stored it. With a `resourceVersion` in it, the API
    /// server refuses if another client has changed the object (`ApiStatus::is_conflict`).
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn replace(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
        object: &Value,
    ) -> Result<Value, ApiError> {
        let path = resource.path(namespace, Some(name));
        self.send(resource, Call::put(path).json(object)).await
    }

    /// Changes the fields of an object that `patch` contains, `null` removes one (RFC 7396). Returns the object as the API
    /// server stored it.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn merge(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let path = resource.path(namespace, Some(name));
        let body = patch.to_string().into_bytes();
        let call = Call::new(Method::PATCH, path).body("application/merge-patch+json", body);
        self.send(resource, call).await
    }

    /// As [`Api::replace`], for a subresource: `status`, or `approval` of a CertificateSigningRequest.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn replace_subresource(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
        subresource: &str,
        object: &Value,
    ) -> Result<Value, ApiError> {
        let path = format!("{}/{subresource}", resource.path(namespace, Some(name)));
        self.send(resource, Call::put(path).json(object)).await
    }

    /// Deletes an object; returns false if it does not exist.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn delete(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<bool, ApiError> {
        let path = resource.path(namespace, Some(name));
        self.end(name, Call::new(Method::DELETE, path)).await
    }

    /// As [`Api::delete`], of an object as it was read: the API server refuses if another client has changed or replaced it
    /// (`ApiStatus::is_conflict`).
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn delete_unchanged(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
        object: &Value,
    ) -> Result<bool, ApiError> {
        let path = resource.path(namespace, Some(name));
        let call = Call::new(Method::DELETE, path).json(&unchanged(object));
        self.end(name, call).await
    }

    async fn end(&self, name: &str, call: Call<'_>) -> Result<bool, ApiError> {
        let call = call.accept(JSON).limit(MAX_OBJECT_BYTES);
        match self.exchange(call).await {
            Ok(_) => Ok(true),
            Err(ApiError::Refused(status)) if status.is_not_found(name) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns JSON that is not an API object: `/openid/v1/jwks`, `/version`.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn document(&self, path: &str) -> Result<Value, ApiError> {
        // A key set has a different media type.
        let response = self.exchange(Call::get(path).accept("*/*")).await?;
        json(&response)
    }

    /// Returns text that is not an API object: the metrics of a node's kubelet.
    ///
    /// # Errors
    /// See [`ApiError`]; a response of more than `limit` bytes is [`ApiError::Http`].
    pub async fn text(&self, path: &str, limit: usize) -> Result<String, ApiError> {
        let call = Call::get(path).accept("text/plain").limit(limit);
        Ok(self.exchange(call).await?.text().into_owned())
    }

    async fn send(&self, resource: &Resource, call: Call<'_>) -> Result<Value, ApiError> {
        let call = call.accept(JSON).limit(MAX_OBJECT_BYTES);
        let response = self.exchange(call).await?;
        let object = json(&response)?;
        match object.get("kind").and_then(Value::as_str) {
            Some(kind) if kind == resource.kind => Ok(object),
            _ => Err(unusable(
                &response,
                format!("it is not a {}", resource.kind),
            )),
        }
    }

    pub(super) async fn exchange(&self, call: Call<'_>) -> Result<HttpResponse, ApiError> {
        let (client, call) = self.prepare(call)?;
        let response = if self.provisional {
            client.provisional().send(call).await?
        } else {
            client.send(call).await?
        };
        if response.is_success() {
            Ok(response)
        } else {
            Err(Box::new(ApiStatus::of(&response)).into())
        }
    }

    /// Opens a response without an end.
    pub(super) async fn open(&self, call: Call<'_>) -> Result<HttpStream, ApiError> {
        let (client, call) = self.prepare(call)?;
        match client.open(call).await? {
            Opened::Stream(stream) => Ok(stream),
            Opened::Response(response) => Err(Box::new(ApiStatus::of(&response)).into()),
        }
    }

    fn prepare<'a>(&self, call: Call<'a>) -> Result<(Client, Call<'a>), ApiError> {
        let (client, token) = self.connection()?;
        Ok(match token {
            Some(token) => (client, call.bearer(token)),
            None => (client, call),
        })
    }

    /// Returns the client and the token according to the present files.
    fn connection(&self) -> Result<(Client, Option<Zeroizing<String>>), ApiError> {
        match &self.access {
            ApiAccess::Direct { endpoint, token } => {
                let token = match token {
                    Some(BearerToken::File(file)) => Some(self.token(&self.files, file)?),
                    Some(BearerToken::Held(token)) => Some(token.clone()),
                    None => None,
                };
                Ok((self.client(Endpoint::clone(endpoint), &self.files)?, token))
            }
            ApiAccess::Kubeconfig { file, timeout } => self.context(file, *timeout),
        }
    }

    fn client(&self, endpoint: Endpoint, files: &Rc<dyn Files>) -> Result<Client, ApiError> {
        let mut kept = self.client.borrow_mut();
        match kept.as_ref() {
            Some(client) if *client.endpoint() == endpoint => Ok(client.clone()),
            _ => {
                let client = Client::new(endpoint, Rc::clone(files), self.clock)?;
                Ok(kept.insert(client).clone())
            }
        }
    }

    /// Returns the client and the token for the current context of a kubeconfig.
    fn context(
        &self,
        file: &SecretFile,
        timeout: Duration,
    ) -> Result<(Client, Option<Zeroizing<String>>), ApiError> {
        let mut context = KubeconfigContext::read(&self.files, file, self.path(file)?)?;
        let endpoint = context.endpoint(timeout)?;
        let identity = context.identity()?;
        let token = match context.token_file() {
            Some(path) => Some(self.token(&context.files, &SecretFile::Path(path))?),
            None => context.token(),
        };
        let client = self.client(endpoint, &context.files)?;
        let client = match identity {
            Some(identity) => client.with_identity(identity),
            None => client,
        };
        Ok((client, token))
    }

    fn path(&self, file: &SecretFile) -> Result<PathBuf, ApiError> {
        file.path(self.credentials.as_deref())
            .ok_or_else(|| ApiError::Local {
                file: file.to_string(),
                why: format!("cannot be read: {NO_CREDENTIALS}"),
                advice: "add LoadCredential= to the unit, or configure a path",
            })
    }

    fn token(
        &self,
        files: &Rc<dyn Files>,
        file: &SecretFile,
    ) -> Result<Zeroizing<String>, ApiError> {
        let read = files.read_secret(&self.path(file)?);
        let bytes = read.map_err(|source| unread(files, file, source))?;
        let text = std::str::from_utf8(&bytes).map(str::trim);
        // The text may be a secret even if it is not a token.
        match text {
            Ok(token) if !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic()) => {
                Ok(Zeroizing::new(token.to_owned()))
            }
            _ => Err(ApiError::Local {
                file: files.shown_secret(file),
                why: "does not contain a token".to_owned(),
                advice: "write only the token into it, on one line",
            }),
        }
    }
}

fn unread(files: &Rc<dyn Files>, file: &SecretFile, source: io::Error) -> ApiError {
    ApiError::Unread {
        file: files.shown_secret(file),
        source,
    }
}

fn json(response: &HttpResponse) -> Result<Value, ApiError> {
    super::json::object(&response.body)
        .map_err(|error| unusable(response, format!("it is not valid JSON ({error})")))
}

fn unusable(response: &HttpResponse, why: String) -> ApiError {
    ApiError::Unusable {
        status: response.status,
        bytes: response.body.len(),
        why,
    }
}

/// Returns the options of a deletion that requires an object as it was read.
fn unchanged(object: &Value) -> Value {
    let of_object = |field: &str| object.get("metadata").and_then(|found| found.get(field));
    json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {
            "uid": of_object("uid"),
            "resourceVersion": of_object("resourceVersion"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_paths_of_the_api() {
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
    fn deletes_object_only_as_it_was_read() {
        let object = json!({"metadata": {"name": "s", "uid": "u1", "resourceVersion": "7"}});
        let expected = json!({"uid": "u1", "resourceVersion": "7"});
        assert_eq!(unchanged(&object)["preconditions"], expected);
    }

    #[test]
    fn distinguishes_refusals_by_authorizer_and_admission() {
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
            let status = ApiStatus {
                code: 403,
                reason: "Forbidden".to_owned(),
                message: message.to_owned(),
                ..ApiStatus::default()
            };
            assert_eq!(status.is_unauthorized_user(), expected, "{message}");
        }
        // From a proxy.
        let status = ApiStatus {
            code: 403,
            message: "<html>no".to_owned(),
            ..ApiStatus::default()
        };
        assert!(status.is_unauthorized_user());
    }
}
