//! `vault`: the PKI secrets engine of HashiCorp Vault and OpenBao.
//!
//! # Behaviour of these servers
//! - The role determines almost everything: organization, usages and key type come from the role and never from the
//!   CSR, so each kind of certificate has a role. If this node may read its roles ([`Signer::probe`]), a role that
//!   cannot issue the certificate is reported before a key is generated. `sign-verbatim`, which lets the node certify
//!   anything, is used only with `verbatim: true`.
//! - The CN becomes a DNS name of the certificate unless the request forbids it, which it always does. A CN that is
//!   also a requested name comes from the CSR.
//! - A 200 response may state in `warnings` that something was not done as requested; these are logged.
//! - Statuses are not specific. An unknown role is a 400, an unknown issuer or an empty mount a 500, a mount that
//!   does not exist a 403 for a client without rights; a refused login is a 400. A 403 may mean an invalid token, a
//!   policy without the path, or a policy that does not allow a parameter: `sys/capabilities-self` tells which. Only
//!   an invalid token from a login causes a second login, once.
//! - Earlier requests cannot be looked up: a certificate that was signed and lost is signed again, for the same key.
//! - A revocation list is created at each revocation, or with `auto_rebuild` periodically and then not at a
//!   revocation; `vault::setup` prints settings with which a revocation is published within 15 minutes. An engine
//!   with disabled lists (`config/crl disable=true`) publishes empty ones, freshly signed.
//! - A standby may redirect to the active node. Only addresses under `alsoAllow` are followed.
//!
//! # Credentials
//! A token from a login serves all certificates of a run, is stored in the state directory during the run, and is
//! revoked when everything that was requested in the run is installed; see `vault::session`. A token from a file is
//! read again for each use, and is never renewed or revoked: that is its owner's task.

mod api;
mod auth;
mod config;
mod role;
mod session;
mod setup;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

use super::per_certificate::names_with;
use super::server::{SignerServer, signing};
use super::{
    Answer, Caps, FailureClass, NodeIdentity, Rejection, Request, RequestedCertificate, Signer,
    SignerError, SignerKind, Site, printable,
};
use crate::http::{Call, HttpResponse, encode};
use crate::kube::names::{Authority, CertName};
use crate::x509::ExtendedUsage;

use api::{VaultApi, VaultEnvelope, segments};
pub(crate) use auth::role_id_fault;
pub use auth::{AppRole, VaultAuth};
use auth::{CertificateLogin, JwtLogin, KubernetesLogin};
pub use config::Config;
use config::{CAPS, SignPaths};
use role::VaultRole;
use session::{Session, Standing, allows};

/// Advice if the server lacks something.
const SET_UP: &str =
    "set the server up, and name its roles, as printed by `nodepki config signer-setup vault`";

/// Requests certificates from a PKI engine.
pub struct Vault {
    /// The server and its namespace. Errors name no mount: it may differ between authorities.
    api: VaultApi,
    label: String,
    config: Config,
    identity: NodeIdentity,
    session: Session,
    /// The server's report about the roles, by certificate.
    learned: RefCell<BTreeMap<CertName, RoleState>>,
    /// The keys of requests whose certificates are not installed yet: the token is needed for them.
    open: RefCell<BTreeSet<String>>,
}

impl Vault {
    fn new(config: &Config, site: &Site<'_>) -> Result<Self, SignerError> {
        let url = &config.endpoint.url;
        let server = format!("vault:{}", url.as_str().trim_end_matches('/'));
        let server = below(server, [config.namespace.as_deref()]);
        let label = below(
            server.clone(),
            [Some(config.mount.as_str()), config.issuer.as_deref()],
        );
        let api = VaultApi {
            server: SignerServer::new(server, config.endpoint.clone(), site)?,
            namespace: config.namespace.clone(),
        };
        let session = Session::new(
            api.clone(),
            config.auth.clone(),
            Rc::clone(&site.login_memory),
            site.clock,
        );
        Ok(Vault {
            api,
            label,
            config: config.clone(),
            identity: site.identity.clone(),
            session,
            learned: RefCell::default(),
            open: RefCell::default(),
        })
    }

    /// Returns the server, whose errors name mount and issuer of an authority.
    fn api_of(&self, authority: Authority) -> VaultApi {
        let (mount, issuer) = self.config.issuer_place(authority, &self.identity);
        let label = below(
            self.api.label().to_owned(),
            [Some(mount.as_str()), issuer.as_deref()],
        );
        VaultApi {
            server: self.api.server.labelled(label),
            namespace: self.api.namespace.clone(),
        }
    }

    fn place(&self, api: &VaultApi, name: CertName) -> Result<SignPaths, SignerError> {
        self.config.place(name, &self.identity).ok_or_else(|| {
            SignerError::config(
                format!("{}: `role` has no entry for {name}", api.label()),
                format!("add {name} or default to `role`"),
            )
        })
    }

    async fn sign(&self, request: &Request) -> Result<Answer, SignerError> {
        let doing = signing(request);
        let api = self.api_of(request.name().authority());
        let place = self.place(&api, request.name())?;
        let (mut token, is_replaceable) = self.session.token(&doing).await?;
        let mut response = self.post(&api, &doing, &place, request, &token).await?;
        if response.status == 403 {
            let standing = self.session.standing(&doing, &token, &place.policy).await?;
            if standing == Standing::Unknown
                && is_replaceable
                && let Some(another) = self.session.another(&doing, &token, &response).await?
            {
                token = another;
                response = self.post(&api, &doing, &place, request, &token).await?;
            }
            if response.status == 403 {
                let error = api.refusal(&doing, &response);
                return Err(self.forbidden(error, standing, request.name(), &place));
            }
        }
        issued(&api, &doing, request, &response)
    }

    async fn post(
        &self,
        api: &VaultApi,
        doing: &str,
        place: &SignPaths,
        request: &Request,
        token: &Zeroizing<String>,
    ) -> Result<HttpResponse, SignerError> {
        let profile = &request.wanted.profile;
        let csr = request.csr.to_pem();
        let ttl = format!("{}s", profile.lifetime.as_secs());
        let body = if self.config.verbatim {
            let usages: Vec<&str> = profile
                .usages
                .iter()
                .map(|usage| match usage {
                    ExtendedUsage::ServerAuth => "ServerAuth",
                    ExtendedUsage::ClientAuth => "ClientAuth",
                })
                .collect();
            // An elliptic-curve key must not have keyEncipherment (RFC 8813, section 3).
            let key_usages: &[&str] = if profile.key.is_rsa() {
                &["DigitalSignature", "KeyEncipherment"]
            } else {
                &["DigitalSignature"]
            };
            json!({
                "csr": csr,
                "ttl": ttl,
                "key_usage": key_usages,
                "ext_key_usage": usages,
            })
        } else {
            // The server would add the common name to the DNS names.
            let mut body = json!({"csr": csr, "ttl": ttl, "exclude_cn_from_sans": true});
            // The CSR of a pod has no subject.
            if request.name() == CertName::PodClient
                && let Some(body) = body.as_object_mut()
            {
                let common_name = json!(profile.subject.common_name);
                body.insert("common_name".to_owned(), common_name);
            }
            body
        };
        let call = Call::post(format!("/v1/{}", place.sign)).json(&body);
        api.exchange(doing, call, Some(token.clone())).await
    }

    fn forbidden(
        &self,
        mut error: SignerError,
        standing: Standing,
        name: CertName,
        place: &SignPaths,
    ) -> SignerError {
        error.advice = match (standing, &self.config.auth) {
            (Standing::Denied, _) => format!(
                "allow {} (update) in the policy of this node's token, as `nodepki config signer-setup vault` prints it; the token itself is good",
                place.policy
            ),
            (Standing::Allowed, _) => format!(
                "the policy of this node's token allows {}, but not with these parameters: allow {} there",
                place.policy,
                setup::parameters(name, self.config.verbatim).join(", ")
            ),
            (Standing::Unknown, VaultAuth::TokenFile(file)) => format!(
                "put a new token into {}: the server rejects this credential for every path; it has expired or was revoked",
                self.api.server.shown_secret(file)
            ),
            (Standing::Unknown, _) => format!(
                "allow {} (update) in the policy that this node gets by a login",
                place.policy
            ),
        };
        error
    }

    /// Learns what the server allows this node, and the content of its roles.
    async fn learn(&self) -> Result<(), SignerError> {
        let doing = "reading its roles";
        let places: Vec<(CertName, SignPaths)> = names_with([&self.config.role])
            .into_iter()
            .filter_map(|name| Some((name, self.config.place(name, &self.identity)?)))
            .collect();
        let paths: BTreeSet<String> = places
            .iter()
            .flat_map(|(_, place)| [Some(place.policy.clone()), place.role.clone()])
            .flatten()
            .collect();
        let paths: Vec<String> = paths.into_iter().collect();
        let (mut token, is_replaceable) = self.session.token(doing).await?;
        let mut told = self.session.capabilities(doing, &token, &paths).await?;
        // The token may be one that an earlier run has stored and that was revoked since.
        if let Err(response) = &told
            && is_replaceable
            && let Some(another) = self.session.another(doing, &token, response).await?
        {
            token = another;
            told = self.session.capabilities(doing, &token, &paths).await?;
        }
        // A token without the default policy cannot query its capabilities. The signing request will show them.
        let Ok(told) = told else {
            return self.session.look_up(&token).await;
        };
        let may: BTreeMap<&String, Vec<String>> = paths.iter().zip(told).collect();
        let allowed = |path: &String, what| may.get(path).is_some_and(|may| allows(may, what));
        let readable: BTreeSet<&String> = places
            .iter()
            .filter(|(_, place)| allowed(&place.policy, "update"))
            .filter_map(|(_, place)| place.role.as_ref())
            .filter(|path| allowed(path, "read"))
            .collect();
        let token = &token;
        let read = readable
            .into_iter()
            .map(|path| async move { Ok((path, self.role(doing, path, token).await?)) });
        let roles: BTreeMap<_, _> = try_join_all(read).await?.into_iter().collect();
        let mut learned = BTreeMap::new();
        for (name, place) in &places {
            if !allowed(&place.policy, "update") {
                let denied = VaultObstacle::Denied(place.policy.clone());
                learned.insert(*name, RoleState::Obstacle(denied));
                continue;
            }
            let role = place.role.as_ref().and_then(|path| roles.get(path));
            learned.extend(role.cloned().flatten().map(|role| (*name, role)));
        }
        self.learned.replace(learned);
        Ok(())
    }

    /// Returns the obstacle to a certificate that a probe found, or the one that it shares with all others of its
    /// authority, or with all certificates: then one setting is wrong, and the message is the same for each.
    fn obstacle(&self, name: CertName) -> Option<(VaultApi, String, String)> {
        let learned = self.learned.borrow();
        let Some(RoleState::Obstacle(own)) = learned.get(&name) else {
            return None;
        };
        let shared = |authority: Option<Authority>| {
            let names = names_with([&self.config.role]).into_iter().filter(|other| {
                authority.is_none_or(|one| one == other.authority())
                    && self.config.place(*other, &self.identity).is_some()
            });
            let obstacles = names.map(|other| match learned.get(&other) {
                Some(RoleState::Obstacle(obstacle)) if obstacle.is_like(own) => Some(obstacle),
                _ => None,
            });
            let obstacles: Vec<&VaultObstacle> = obstacles.collect::<Option<_>>()?;
            (obstacles.len() > 1).then_some(obstacles)
        };
        let authority = name.authority();
        let (reason, advice) = match (shared(None), shared(Some(authority))) {
            (Some(all), _) => {
                let (reason, advice) = VaultObstacle::shared(&all);
                return Some((self.api.clone(), reason, advice));
            }
            (None, Some(all)) => VaultObstacle::shared(&all),
            (None, None) => (own.to_string(), SET_UP.to_owned()),
        };
        Some((self.api_of(authority), reason, advice))
    }

    /// Reads a role; `None` if the response has an unknown form.
    async fn role(
        &self,
        doing: &str,
        path: &str,
        token: &Zeroizing<String>,
    ) -> Result<Option<RoleState>, SignerError> {
        let call = Call::get(format!("/v1/{}", segments(path)));
        let response = self.api.exchange(doing, call, Some(token.clone())).await?;
        match response.status {
            200 => {
                let answer = response.json::<VaultEnvelope<VaultRole>>().ok();
                let role = answer.and_then(|answer| answer.data).map(Rc::new);
                Ok(role.map(|role| RoleState::Role(path.to_owned(), role)))
            }
            404 => Ok(Some(RoleState::Obstacle(if api::has_no_mount(&response) {
                let (mount, _) = path.split_once("/roles/").unwrap_or((path, ""));
                VaultObstacle::NoMount(mount.to_owned())
            } else {
                VaultObstacle::NoRole(path.to_owned())
            }))),
            _ => Err(self.api.refusal(doing, &response)),
        }
    }

    /// Reads a path that does not require authentication.
    async fn public(
        &self,
        api: &VaultApi,
        doing: &str,
        path: &str,
    ) -> Result<HttpResponse, SignerError> {
        let call = Call::get(format!("/v1/{path}"));
        let response = api.exchange(doing, call, None).await?;
        if response.status == 403 {
            let mut error = api.refusal(doing, &response);
            error.class = FailureClass::Config;
            error.precludes_signing = api::is_refusal(&response);
            error.advice = "check `mount` and `namespace`: this path is public in a PKI engine, and the server does not report missing mounts to unauthenticated clients".to_owned();
            return Err(error);
        }
        Ok(response)
    }

    fn issuer_path(&self, authority: Authority) -> String {
        let mount = segments(&self.config.mount_of(authority, &self.identity));
        let issuer = self.config.issuer_of(authority, &self.identity);
        format!(
            "{mount}/issuer/{}",
            encode(issuer.as_deref().unwrap_or("default"))
        )
    }
}

#[async_trait(?Send)]
impl Signer for Vault {
    fn kind(&self) -> SignerKind {
        SignerKind::Vault
    }

    fn label(&self) -> String {
        self.label.clone()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    async fn probe(&self) -> Result<(), SignerError> {
        self.learn().await
    }

    fn probe_uses_up(&self) -> Option<String> {
        self.session.wrapped_credential().map(|file| {
            format!("the wrapping token in {file} can be used once, and the first login unwraps it")
        })
    }

    async fn inspect_credential(&self) -> Result<(), SignerError> {
        self.session.inspect_wrapped().await
    }

    async fn leave(&self) -> Result<(), SignerError> {
        self.session.leave().await
    }

    fn preflight(&self, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        let api = self.api_of(wanted.name.authority());
        CAPS.carries(api.label(), wanted)?;
        let reject =
            |reason: String, advice: String| Rejection::new(api.label(), wanted, reason, advice);
        if self.config.place(wanted.name, &self.identity).is_none() {
            return Err(reject(
                "`role` has no entry for it".to_owned(),
                format!("add {} or default to `role`", wanted.name),
            ));
        }
        if let Some((api, reason, advice)) = self.obstacle(wanted.name) {
            return Err(Rejection::new(api.label(), wanted, reason, advice));
        }
        match self.learned.borrow().get(&wanted.name) {
            Some(RoleState::Role(path, role)) if !self.config.verbatim => {
                let obstacles = role.obstacles(wanted);
                if obstacles.is_empty() {
                    return Ok(());
                }
                let reason = format!("role {path}: {}", obstacles.join("; "));
                Err(reject(reason, SET_UP.to_owned()))
            }
            _ => Ok(()),
        }
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        #[derive(Deserialize)]
        struct VaultIssuer {
            #[serde(default)]
            certificate: String,
            #[serde(default)]
            ca_chain: Vec<String>,
        }
        let doing = format!("reading the certificate of authority {authority}");
        let api = self.api_of(authority);
        let path = format!("{}/json", self.issuer_path(authority));
        let response = self.public(&api, &doing, &path).await?;
        let answer: VaultEnvelope<VaultIssuer> = api.read(&doing, &response).map_err(|error| {
            let is_setting = error.class == FailureClass::Config;
            SignerError {
                precludes_signing: is_setting && api::is_refusal(&response),
                ..error
            }
        })?;
        let Some(issuer) = answer.data else {
            return Err(api.invalid_response(
                &doing,
                &response,
                "it does not contain a certificate",
            ));
        };
        // The chain begins with the issuer itself.
        let chain = if issuer.ca_chain.is_empty() {
            vec![issuer.certificate]
        } else {
            issuer.ca_chain
        };
        Ok(Some(chain.join("\n").into_bytes()))
    }

    async fn crl(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let doing = format!("reading the revocation list of authority {authority}");
        let api = self.api_of(authority);
        let path = format!("{}/crl/pem", self.issuer_path(authority));
        let response = self.public(&api, &doing, &path).await?;
        match response.status {
            200 => Ok(Some(response.body)),
            // The response of some servers for an engine without an issuer.
            204 => Ok(None),
            _ => Err(api.refusal(&doing, &response)),
        }
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        self.open.borrow_mut().insert(request.key());
        self.sign(request).await
    }

    /// Ends the session with the last certificate of the run. An unsigned one keeps it for the next run.
    async fn settled(&self, key: &str) -> Result<(), SignerError> {
        self.open.borrow_mut().remove(key);
        if !self.open.borrow().is_empty() {
            return Ok(());
        }
        self.session.end().await
    }
}

/// Why a role cannot be used, with the path.
#[derive(Clone, Debug, thiserror::Error)]
enum VaultObstacle {
    #[error("the policy of its token does not allow {0} (update)")]
    Denied(String),
    #[error("there is no mount {0}")]
    NoMount(String),
    #[error("there is no role {0}")]
    NoRole(String),
}

impl VaultObstacle {
    fn is_like(&self, other: &VaultObstacle) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Returns reason and advice for obstacles that are alike.
    fn shared(all: &[&VaultObstacle]) -> (String, String) {
        let paths: BTreeSet<&str> = all.iter().map(|one| one.path()).collect();
        let first = all.first().map_or("", |one| one.path());
        let (reason, settings) = match all.first() {
            Some(VaultObstacle::NoMount(_)) => {
                let paths: Vec<&str> = paths.iter().copied().collect();
                let reason = format!("there is no mount {}", paths.join(", "));
                return (reason, "correct `mount` or `namespace`".to_owned());
            }
            Some(VaultObstacle::NoRole(_)) => (
                format!("there is none of its roles, such as {first}"),
                "`role` or `mount`",
            ),
            _ => (
                format!(
                    "the policy of its token allows none of its paths, such as {first} (update)"
                ),
                "`mount`, `issuer`, `role` or `namespace`",
            ),
        };
        let only = all.first().filter(|_| paths.len() == 1);
        (
            only.map_or(reason, |only| only.to_string()),
            format!("correct {settings}, or {SET_UP}"),
        )
    }

    fn path(&self) -> &str {
        match self {
            VaultObstacle::Denied(path)
            | VaultObstacle::NoMount(path)
            | VaultObstacle::NoRole(path) => path,
        }
    }
}

/// The state of a certificate's role, found by a probe.
#[derive(Clone)]
enum RoleState {
    /// The role cannot be used.
    Obstacle(VaultObstacle),
    /// The role at this path.
    Role(String, Rc<VaultRole>),
}

fn issued(
    api: &VaultApi,
    doing: &str,
    request: &Request,
    response: &HttpResponse,
) -> Result<Answer, SignerError> {
    #[derive(Deserialize)]
    struct VaultSignResponse {
        #[serde(default)]
        certificate: String,
        #[serde(default)]
        issuing_ca: String,
        #[serde(default)]
        ca_chain: Vec<String>,
    }
    // 204 has no content. A proxy may return it.
    if response.status == 204 {
        return Err(api.invalid_response(doing, response, "it does not contain a certificate"));
    }
    let answer: VaultEnvelope<VaultSignResponse> = api.read(doing, response)?;
    for warning in answer.warnings.iter().flatten() {
        tracing::warn!(
            signer = api.label(),
            certificate = request.name().as_str(),
            "the server reports: {}",
            printable(warning, 500)
        );
    }
    let Some(signed) = answer.data.filter(|signed| !signed.certificate.is_empty()) else {
        return Err(api.invalid_response(doing, response, "it does not contain a certificate"));
    };
    let mut chain = vec![signed.certificate];
    if signed.ca_chain.is_empty() {
        chain.push(signed.issuing_ca)
    } else {
        chain.extend(signed.ca_chain)
    }
    Ok(Answer::Issued(chain.join("\n").into_bytes()))
}

/// Appends the parts of a path to a label.
fn below<const N: usize>(label: String, parts: [Option<&str>; N]) -> String {
    let parts = parts.into_iter().flatten();
    parts.fold(label, |label, part| format!("{label}/{part}"))
}
