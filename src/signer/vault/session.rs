//! The node's session with the server: one token at a time, from a file or from a login.
//!
//! A token from a login is stored in the signer's memory until the run has settled: an interrupted run, or one whose
//! certificates are not all issued, continues with it, because a `secret_id` of one use allows no second login. A
//! wrapped `secret_id` is unwrapped once and stored before it is used.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use super::api::{VaultApi, is_refusal, rejects_token, said, segments};
use super::{AppRole, CertificateLogin, JwtLogin, KubernetesLogin, VaultAuth};
use crate::http::{Call, HttpResponse};
use crate::signer::{FailureClass, Memory, SignerError};
use crate::text::hex;

/// Names under which data is stored.
const TOKEN_FILE: &str = "token";
const SECRET_ID_FILE: &str = "secret-id";

/// A token is not used during its last seconds.
const EXPIRY_MARGIN_SECONDS: i64 = 5;

pub(super) struct Session {
    api: VaultApi,
    auth: VaultAuth,
    /// Credential with which a stored token must have been obtained.
    origin: String,
    memory: Rc<dyn Memory>,
    clock: fn() -> OffsetDateTime,
    /// Locked during a login, so concurrent requests cause only one.
    token: Mutex<Option<VaultToken>>,
    /// Whether this process has logged in; otherwise the token is that of an earlier run.
    has_logged_in: Cell<bool>,
}

/// A token from a login.
#[derive(Clone, Serialize, Deserialize)]
struct VaultToken {
    origin: String,
    token: Secret,
    /// Unix time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    until: Option<i64>,
}

/// State of a wrapping token.
#[derive(Serialize, Deserialize)]
struct Unwrapped {
    /// SHA-256 of the wrapping token.
    wrapping: String,
    /// `None` from just before it is unwrapped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    secret_id: Option<Secret>,
}

#[derive(Clone)]
struct Secret(Zeroizing<String>);

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Secret(Zeroizing::new(text)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Rights of a token, as reported by the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The server refuses to report the token's rights: it is invalid, or has not even the default policy.
    Unknown,
    /// The operation is allowed.
    Allowed,
    /// The operation is not allowed.
    Denied,
}

impl Session {
    pub(super) fn new(
        api: VaultApi,
        auth: VaultAuth,
        memory: Rc<dyn Memory>,
        clock: fn() -> OffsetDateTime,
    ) -> Self {
        let origin = format!(
            "{} {} {}",
            api.server.client().origin(),
            api.namespace.as_deref().unwrap_or_default(),
            auth.describe()
        );
        Session {
            api,
            auth,
            origin,
            memory,
            clock,
            token: Mutex::new(None),
            has_logged_in: Cell::new(false),
        }
    }

    /// Returns the current token, and whether a new one can be obtained without intervention. Logs in if there is none;
    /// a second login would change nothing, and the credential may be of one use.
    pub(super) async fn token(
        &self,
        doing: &str,
    ) -> Result<(Zeroizing<String>, bool), SignerError> {
        if let VaultAuth::TokenFile(file) = &self.auth {
            return Ok((self.api.server.secret(file)?, false));
        }
        let mut held = self.token.lock().await;
        if held.is_none() {
            *held = self.remembered();
        }
        let now = (self.clock)().unix_timestamp();
        if let Some(token) = held.as_ref()
            && token
                .until
                .is_none_or(|until| now.saturating_add(EXPIRY_MARGIN_SECONDS) < until)
        {
            return Ok((token.token.0.clone(), true));
        }
        Ok((self.log_in(doing, &mut held).await?, false))
    }

    /// Returns a token other than `refused`, to which the server gave this response. `None` if there is none and `refused` may
    /// be good: its policies may not allow the request, and the credential may be used up.
    pub(super) async fn another(
        &self,
        doing: &str,
        refused: &str,
        response: &HttpResponse,
    ) -> Result<Option<Zeroizing<String>>, SignerError> {
        let mut held = self.token.lock().await;
        if let Some(token) = held.as_ref()
            && token.token.0.as_str() != refused
        {
            return Ok(Some(token.token.0.clone()));
        }
        match self.log_in(doing, &mut held).await {
            Err(error) if !error.class.passes() && !rejects_token(response) => {
                tracing::info!("{error}");
                Ok(None)
            }
            token => token.map(Some),
        }
    }

    /// Ends the session. A token from a login is revoked.
    pub(super) async fn end(&self) -> Result<(), SignerError> {
        let mut held = self.token.lock().await;
        let token = held.take().or_else(|| self.remembered());
        // Tokens of other configurations are revoked too, since no later run would use them.
        let mut forgotten = self.memory.forget(TOKEN_FILE);
        if !matches!(&self.auth, VaultAuth::AppRole(app) if app.wrapped) {
            forgotten = forgotten.and(self.memory.forget(SECRET_ID_FILE));
        }
        let Some(token) = token else {
            return forgotten.map_err(|error| self.memory_failure("its token", &error));
        };
        self.revoke(token).await?;
        forgotten.map_err(|error| self.memory_failure("its token", &error))
    }

    /// Revokes the token of a login of this process. The token of an earlier run is kept for the next one.
    pub(super) async fn leave(&self) -> Result<(), SignerError> {
        let mut held = self.token.lock().await;
        match held.take() {
            Some(token) if self.has_logged_in.replace(false) => self.revoke(token).await,
            _ => Ok(()),
        }
    }

    async fn revoke(&self, token: VaultToken) -> Result<(), SignerError> {
        let doing = "revoking its own token";
        let call = Call::post("/v1/auth/token/revoke-self");
        let response = self.api.exchange(doing, call, Some(token.token.0)).await?;
        match response.status {
            // 403: it is invalid already. 400: batch tokens expire without revocation.
            200 | 204 | 400 | 403 => Ok(()),
            _ => Err(self.api.refusal(doing, &response)),
        }
    }

    /// Returns the file of a wrapped `secret_id` that was not unwrapped yet, for messages.
    pub(super) fn wrapped_credential(&self) -> Option<String> {
        let VaultAuth::AppRole(app) = &self.auth else {
            return None;
        };
        if !app.wrapped || self.remembered().is_some() {
            return None;
        }
        // Without the file a login fails before it uses anything up.
        let given = self.api.server.secret(&app.secret_id_file).ok()?;
        let wrapping = hex(&Sha256::digest(given.as_bytes()));
        let is_unwrapped = self.unwrapped(&wrapping).ok().flatten().is_some();
        (!is_unwrapped).then(|| self.api.server.shown_secret(&app.secret_id_file))
    }

    /// Returns the recorded state of a wrapping token with this SHA-256.
    fn unwrapped(&self, wrapping: &str) -> Result<Option<Unwrapped>, SignerError> {
        let recorded = self.memory.recall(SECRET_ID_FILE);
        let recorded = recorded.map_err(|error| self.memory_failure("its secret_id", &error))?;
        Ok(recorded
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .filter(|unwrapped: &Unwrapped| unwrapped.wrapping == wrapping))
    }

    /// Returns the capabilities of a token, path by path, in the order of `paths`; or the response if the server refuses to
    /// report them.
    pub(super) async fn capabilities(
        &self,
        doing: &str,
        token: &Zeroizing<String>,
        paths: &[String],
    ) -> Result<Result<Vec<Vec<String>>, HttpResponse>, SignerError> {
        let call =
            Call::post("/v1/sys/capabilities-self").json(&serde_json::json!({"paths": paths}));
        let response = self.api.exchange(doing, call, Some(token.clone())).await?;
        if response.status == 403 {
            return Ok(Err(response));
        }
        let answer: super::api::VaultEnvelope<serde_json::Map<String, serde_json::Value>> =
            self.api.read(doing, &response)?;
        let data = answer.data.unwrap_or_default();
        let of = |path: &String| -> Vec<String> {
            let listed = data.get(path).and_then(|list| list.as_array());
            listed
                .into_iter()
                .flatten()
                .filter_map(|one| Some(one.as_str()?.to_owned()))
                .collect()
        };
        Ok(Ok(paths.iter().map(of).collect()))
    }

    /// Returns an error if the server does not know the token in the file: it has expired, was revoked, or is of another
    /// server. A token whose policies do not allow the query is accepted.
    pub(super) async fn look_up(&self, token: &Zeroizing<String>) -> Result<(), SignerError> {
        let VaultAuth::TokenFile(_) = &self.auth else {
            return Ok(());
        };
        let doing = "looking its token up";
        let call = Call::get("/v1/auth/token/lookup-self");
        let response = self.api.exchange(doing, call, Some(token.clone())).await?;
        if !rejects_token(&response) {
            return Ok(());
        }
        let mut error = self.api.refusal(doing, &response);
        error.class = FailureClass::Auth;
        error.advice = format!(
            "{}: the server does not know this one; it has expired or was revoked",
            self.auth.advice(&self.api.server)
        );
        Err(error)
    }

    /// Determines why a path may have been refused to a token.
    pub(super) async fn standing(
        &self,
        doing: &str,
        token: &Zeroizing<String>,
        path: &str,
    ) -> Result<Standing, SignerError> {
        let asked = self.capabilities(doing, token, &[path.to_owned()]).await?;
        Ok(match asked.as_deref() {
            Err(_) => Standing::Unknown,
            Ok([may, ..]) if allows(may, "update") => Standing::Allowed,
            Ok(_) => Standing::Denied,
        })
    }

    fn remembered(&self) -> Option<VaultToken> {
        let bytes = self.memory.recall(TOKEN_FILE).ok()??;
        let token: VaultToken = serde_json::from_slice(&bytes).ok()?;
        (token.origin == self.origin).then_some(token)
    }

    /// Replaces the token that is held, which is kept if the login fails.
    async fn log_in(
        &self,
        doing: &str,
        held: &mut Option<VaultToken>,
    ) -> Result<Zeroizing<String>, SignerError> {
        let doing = format!("logging in for {doing}");
        let response = match &self.auth {
            VaultAuth::TokenFile(file) => return self.api.server.secret(file),
            VaultAuth::AppRole(app) => {
                #[derive(Serialize)]
                struct AppRoleBody<'a> {
                    role_id: &'a str,
                    secret_id: &'a str,
                }
                let role_id = self.role_id(app)?;
                let secret_id = self.secret_id(&doing, app).await?;
                let body = AppRoleBody {
                    role_id: &role_id,
                    secret_id: &secret_id,
                };
                self.post_login(&doing, &app.mount, &body).await?
            }
            VaultAuth::Certificate(CertificateLogin { mount, role }) => {
                #[derive(Serialize)]
                struct CertificateBody<'a> {
                    #[serde(skip_serializing_if = "Option::is_none")]
                    name: Option<&'a str>,
                }
                let body = CertificateBody {
                    name: role.as_deref(),
                };
                self.post_login(&doing, mount, &body).await?
            }
            VaultAuth::Jwt(JwtLogin { mount, role, file })
            | VaultAuth::Kubernetes(KubernetesLogin { mount, role, file }) => {
                #[derive(Serialize)]
                struct TokenBody<'a> {
                    #[serde(skip_serializing_if = "Option::is_none")]
                    role: Option<&'a str>,
                    jwt: &'a str,
                }
                let jwt = self.api.server.secret(file)?;
                let body = TokenBody {
                    role: role.as_deref(),
                    jwt: &jwt,
                };
                self.post_login(&doing, mount, &body).await?
            }
        };
        let token = self.logged_in(&doing, response)?;
        // Stored before it is used: after a crash a second login may be impossible.
        self.keep(TOKEN_FILE, &token)
            .map_err(|error| self.memory_failure("its token", &error))?;
        let value = token.token.0.clone();
        *held = Some(token);
        self.has_logged_in.set(true);
        Ok(value)
    }

    async fn post_login(
        &self,
        doing: &str,
        mount: &str,
        body: &impl Serialize,
    ) -> Result<HttpResponse, SignerError> {
        let call = Call::post(format!("/v1/auth/{}/login", segments(mount))).json(body);
        self.api.exchange(doing, call, None).await
    }

    fn logged_in(&self, doing: &str, response: HttpResponse) -> Result<VaultToken, SignerError> {
        #[derive(Deserialize)]
        struct LoginAnswer {
            auth: Option<Granted>,
        }
        #[derive(Deserialize)]
        struct Granted {
            client_token: Secret,
            #[serde(default)]
            lease_duration: i64,
        }
        // A login is refused with 400 and 403 alike, always because of the credential.
        if matches!(response.status, 400 | 401 | 403) {
            let mut error = self.api.refusal(doing, &response);
            error.class = FailureClass::Auth;
            error.advice = self.auth.advice(&self.api.server);
            return Err(error);
        }
        let answer = self.api.read::<LoginAnswer>(doing, &response);
        let body = Zeroizing::new(response.body);
        drop(body);
        let Some(granted) = answer?.auth else {
            return Err(self.api.server.failed(
                FailureClass::Permanent,
                doing,
                "the response does not contain a token",
                "check that `auth` names a login method's mount, and that no multi-factor rule applies to it",
            ));
        };
        let until = (granted.lease_duration > 0).then(|| {
            (self.clock)()
                .unix_timestamp()
                .saturating_add(granted.lease_duration)
        });
        Ok(VaultToken {
            origin: self.origin.clone(),
            token: granted.client_token,
            until,
        })
    }

    /// Returns the role_id. A wrong one is reported before the secret_id, which may be of one use, is sent.
    fn role_id(&self, app: &AppRole) -> Result<Zeroizing<String>, SignerError> {
        let server = &self.api.server;
        let text = match (&app.role_id, &app.role_id_file) {
            (_, Some(file)) => server.public(file)?,
            (text, None) => Zeroizing::new(text.clone().unwrap_or_default()),
        };
        let Some(fault) = super::role_id_fault(&text) else {
            return Ok(text);
        };
        let place = app.role_id_place(server);
        Err(SignerError::config(
            format!("{}: {place} {fault}", self.api.label()),
            format!(
                "write only the role_id there; the secret_id, or the token that wraps it, belongs into {}",
                server.shown_secret(&app.secret_id_file)
            ),
        ))
    }

    async fn secret_id(
        &self,
        doing: &str,
        app: &AppRole,
    ) -> Result<Zeroizing<String>, SignerError> {
        let given = self.api.server.secret(&app.secret_id_file)?;
        self.require_secret_id(app, &given)?;
        if !app.wrapped {
            return Ok(given);
        }
        let wrapping = hex(&Sha256::digest(given.as_bytes()));
        let interrupted = match self.unwrapped(&wrapping)? {
            Some(Unwrapped {
                secret_id: Some(secret_id),
                ..
            }) => return Ok(secret_id.0),
            Some(_) => true,
            None => false,
        };
        self.inspect(doing, app, &given, interrupted).await?;
        let mut unwrapped = Unwrapped {
            wrapping,
            secret_id: None,
        };
        let unkept = |error: std::io::Error| self.memory_failure("its secret_id", &error);
        self.keep(SECRET_ID_FILE, &unwrapped).map_err(unkept)?;
        let secret_id = match self.unwrap(doing, app, &given, interrupted).await {
            // The server has not processed the call.
            Err(error) if error.class == FailureClass::Transient && !interrupted => {
                self.memory.forget(SECRET_ID_FILE).map_err(unkept)?;
                return Err(error);
            }
            unwrapped => unwrapped?,
        };
        unwrapped.secret_id = Some(secret_id.clone());
        self.keep(SECRET_ID_FILE, &unwrapped).map_err(unkept)?;
        Ok(secret_id.0)
    }

    /// Refuses a credential that cannot be one. It is not sent.
    fn require_secret_id(&self, app: &AppRole, given: &str) -> Result<(), SignerError> {
        match app.secret_id_fault(given) {
            None => Ok(()),
            Some((fault, advice)) => Err(SignerError::config(
                format!(
                    "{}: {} {fault}",
                    self.api.label(),
                    self.api.server.shown_secret(&app.secret_id_file)
                ),
                advice,
            )),
        }
    }

    /// Verifies the role_id, and looks a wrapping token up that was not unwrapped yet.
    pub(super) async fn inspect_wrapped(&self) -> Result<(), SignerError> {
        let VaultAuth::AppRole(app) = &self.auth else {
            return Ok(());
        };
        self.role_id(app)?;
        let given = self.api.server.secret(&app.secret_id_file)?;
        self.require_secret_id(app, &given)?;
        let doing = "looking the wrapping token up";
        self.inspect(doing, app, &given, false).await
    }

    /// Verifies that the wrapping token contains what it should: only the server can have stored a `secret_id` of
    /// this method under that path.
    async fn inspect(
        &self,
        doing: &str,
        app: &AppRole,
        given: &Zeroizing<String>,
        interrupted: bool,
    ) -> Result<(), SignerError> {
        #[derive(Serialize)]
        struct Lookup<'a> {
            token: &'a str,
        }
        #[derive(Deserialize)]
        struct WrappingInfo {
            creation_path: String,
        }
        let call = Call::post("/v1/sys/wrapping/lookup").json(&Lookup { token: given });
        let response = self.api.exchange(doing, call, None).await?;
        if is_used_up(&response) {
            return Err(self.used_up(doing, app, &response, interrupted));
        }
        let info: super::api::VaultEnvelope<WrappingInfo> = self.api.read(doing, &response)?;
        let path = info.data.map(|info| info.creation_path).unwrap_or_default();
        if app.made(&path) {
            return Ok(());
        }
        Err(SignerError::new(
            FailureClass::Auth,
            format!(
                "SECURITY: {}: {doing} failed: the wrapping token in {} was made by {:?}, not by {}: it does not contain this node's secret_id, and was not unwrapped",
                self.api.label(),
                self.api.server.shown_secret(&app.secret_id_file),
                crate::signer::printable(&path, 200),
                app.expected()
            ),
            "find out who wrote it, then deliver a new wrapped secret_id",
        ))
    }

    async fn unwrap(
        &self,
        doing: &str,
        app: &AppRole,
        given: &Zeroizing<String>,
        interrupted: bool,
    ) -> Result<Secret, SignerError> {
        #[derive(Deserialize)]
        struct Content {
            secret_id: Secret,
        }
        let call = Call::post("/v1/sys/wrapping/unwrap");
        let response = self.api.exchange(doing, call, Some(given.clone())).await?;
        if is_used_up(&response) {
            return Err(self.used_up(doing, app, &response, interrupted));
        }
        let content = self
            .api
            .read::<super::api::VaultEnvelope<Content>>(doing, &response)
            .map_err(|mut error| {
                // The first unwrapping uses up the token, and whether it took place is unknown.
                if error.class == FailureClass::Transient && !excludes_unwrapping(&response) {
                    error.class = FailureClass::Ambiguous;
                }
                error
            });
        drop(Zeroizing::new(response.body));
        match content?.data {
            Some(content) => Ok(content.secret_id),
            None => Err(self.api.server.failed(
                FailureClass::Permanent,
                doing,
                format!(
                    "the wrapping token in {} does not contain a secret_id",
                    self.api.server.shown_secret(&app.secret_id_file)
                ),
                "deliver a new wrapped secret_id",
            )),
        }
    }

    /// Another process may have obtained this node's credential.
    fn used_up(
        &self,
        doing: &str,
        app: &AppRole,
        response: &HttpResponse,
        interrupted: bool,
    ) -> SignerError {
        let (head, advice) = if interrupted {
            (
                "",
                "an interrupted earlier run may have unwrapped it; destroy the secret_id by its accessor nevertheless, and deliver a new one",
            )
        } else {
            (
                "SECURITY: ",
                "unless it has expired, another process has unwrapped this node's secret_id: destroy it by its accessor, check the server's audit log, and deliver a new one",
            )
        };
        SignerError::new(
            FailureClass::Auth,
            format!(
                "{head}{}: {doing} failed: the wrapping token in {} was used already or has expired (HTTP {}: {})",
                self.api.label(),
                self.api.server.shown_secret(&app.secret_id_file),
                response.status,
                crate::signer::printable(&said(response), 200)
            ),
            advice,
        )
    }

    fn keep(&self, name: &str, value: &impl Serialize) -> std::io::Result<()> {
        let bytes = Zeroizing::new(serde_json::to_vec(value)?);
        self.memory.keep(name, &bytes)
    }

    fn memory_failure(&self, what: &str, error: &std::io::Error) -> SignerError {
        SignerError::config(
            format!(
                "{}: {what} cannot be kept in the state directory: {error}",
                self.api.label()
            ),
            format!(
                "make {} writable for the user that nodepki runs as",
                self.memory.state_dir()
            ),
        )
        .marked_by(error)
    }
}

/// Returns whether the server itself refused a wrapping token. A proxy knows nothing about it.
fn is_used_up(response: &HttpResponse) -> bool {
    matches!(response.status, 400 | 403) && is_refusal(response)
}

/// Returns whether a refused call has certainly not unwrapped anything: the server itself refused it before it began. A proxy
/// may respond after it has passed the call on.
fn excludes_unwrapping(response: &HttpResponse) -> bool {
    matches!(response.status, 412 | 429 | 472 | 473 | 503) && is_refusal(response)
}

/// Returns whether capabilities reported by capabilities-self include an operation.
pub(super) fn allows(capabilities: &[String], what: &str) -> bool {
    capabilities.iter().any(|one| one == what || one == "root")
}
