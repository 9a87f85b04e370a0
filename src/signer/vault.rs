//! `vault`: the PKI secrets engine of HashiCorp Vault and OpenBao.
//!
//! # What it must be given
//! `address`, `mount` (the path of a PKI engine; with `{authority}` in it one signer serves all three authorities) and
//! `auth`. For the server's side, `nodepki config signer-setup vault` prints every command that an administrator runs
//! once for a node: mounts, roles, policy, login. `vault::setup` and `vault::role` say why each line is as it is.
//!
//! # Habits of these servers
//! - The role decides almost everything: organization, usages and key type come from it and never from the CSR, so
//!   there is a role for each kind of certificate. Where this node may read its roles ([`Signer::probe`]), a role that
//!   cannot give what is wanted is told before a key is made. `sign-verbatim`, which lets the node certify anything, is
//!   used only with `verbatim: true`.
//! - The CN becomes a DNS name of the certificate unless the request says otherwise; it always does. A CN that is also
//!   a wanted name comes from the CSR.
//! - An answer of 200 may say in `warnings` that something was not done as asked; those go to the log.
//! - Statuses say little. An unknown role is a 400, an unknown issuer or an empty mount a 500, a mount that does not
//!   exist a 403 to whoever may not know; a refused login is a 400. A 403 may mean a dead token, a policy without the
//!   path, or a policy that does not know a parameter: the server is asked which (`sys/capabilities-self`). Only for a
//!   dead token that came from a login there is a second login, once.
//! - There is no looking up of earlier requests: what was signed and lost is signed again, for the same key.
//! - A revocation list is made when something is revoked, or with `auto_rebuild` from time to time and then not at a
//!   revocation; `vault::setup` prints settings with which it is fresh and a revocation shows within 15 minutes. An
//!   engine whose lists are switched off (`config/crl disable=true`) publishes empty ones, freshly signed.
//! - A standby may point to the active node. Only addresses under `alsoAllow` are followed.
//!
//! # Credentials
//! A token from a login serves all certificates of a run, is kept in the state directory until then, and is revoked when
//! everything that was asked for in the run is installed; see `vault::session`. A token from a file is read anew for each
//! use, never renewed and never revoked: it is its owner's.

mod api;
mod auth;
mod role;
mod session;
mod setup;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map as JsonMap, Value, json};
use zeroize::Zeroizing;

use super::per_certificate::{PerCertificate, of_authority, read_of_authority};
use super::server::{Server, signing};
use super::{
    About, Answer, Caps, Carry, Class, Configured, Identity, Kind, Lookup, Part, Rejection,
    Renewal, Request, Resubmit, Signer, SignerError, Site, Ticket, Wanted, endpoint, printable,
};
use crate::http::{Call, Endpoint, Response, encode};
use crate::kube::names::{Authority, CertName};
use crate::x509::{ExtendedUsage, UsageExtensions};
use crate::yaml::schema::{Form, Key, key, required};
use crate::yaml::{Field, Map};

use api::{Api, Envelope, segments};
pub use auth::{AppRole, Auth, RoleId};
use role::Role;
use session::{Session, Standing, allows};

/// A PKI engine and how to get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the server is; further addresses of the cluster are in `also`.
    pub endpoint: Endpoint,
    /// `X-Vault-Namespace`.
    pub namespace: Option<String>,
    /// Path of the engine, with placeholders.
    pub mount: String,
    /// Issuer in that mount, with placeholders; the role's own where there is none.
    pub issuer: Option<String>,
    /// Role of each certificate. `None` with `verbatim` only.
    pub role: Option<PerCertificate>,
    /// `sign-verbatim` instead of `sign`.
    pub verbatim: bool,
    /// How the node proves who it is.
    pub auth: Auth,
}

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("address", Form::Url, "https://HOST[:PORT] of Vault or OpenBao."),
    key("alsoAllow[]", Form::Url, "Further addresses of the same cluster, to which a standby may send this node."),
    key("namespace", Form::Text, "Namespace that mount and auth are in."),
    key("mount", Form::Text, "Path of the PKI engine; {authority}, {node} and {cluster} stand for those names."),
    key("issuer", Form::Text, "Name or id of an issuer in the mount, with the same placeholders; default: the role's."),
    key("role", Form::PerCertificate, "Role to sign with; default {certificate}, and {certificate}-{node} for what names the node."),
    key("verbatim", Form::Flag, "Sign with sign-verbatim, which lets this node certify anything; default false."),
    key("auth.tokenFile", Form::Secret, "File with a token that somebody else renews."),
    key("auth.appRole.mount", Form::Text, "Path of the AppRole method; default approle."),
    key("auth.appRole.role", Form::Text, "Name of the AppRole: a wrapped secret_id must have been made for it."),
    key("auth.appRole.roleID", Form::Text, "The role_id."),
    key("auth.appRole.roleIDFile", Form::Public, "File with the role_id, instead."),
    key("auth.appRole.secretIDFile", Form::Secret, "File with the secret_id, or with the token that wraps it."),
    key("auth.appRole.wrapped", Form::Flag, "The file holds a wrapping token; default false."),
    key("auth.certificate.mount", Form::Text, "Path of the TLS certificate method; default cert. The certificate is tls.certificate."),
    key("auth.certificate.role", Form::Text, "Role of that method; default: the first that fits."),
    key("auth.jwt.mount", Form::Text, "Path of the JWT method; default jwt."),
    key("auth.jwt.role", Form::Text, "Role of that method; default: the method's default role."),
    key("auth.jwt.file", Form::Secret, "File with the JSON web token."),
    key("auth.kubernetes.mount", Form::Text, "Path of the Kubernetes method; default kubernetes."),
    key("auth.kubernetes.role", Form::Text, "Role of that method."),
    key("auth.kubernetes.file", Form::Secret, "File with the service-account token."),
];

const CAPS: Caps = Caps {
    organization: Carry::AsConfigured,
    colon_common_name: Carry::AsConfigured,
    ip_sans: Carry::AsConfigured,
    own_name_san: false,
    usage_extensions: UsageExtensions::Requested,
    pends: false,
    lookup: Lookup::None,
    resubmit: Resubmit::Duplicates,
    renewal: Renewal::Submit,
    crl: Carry::Yes,
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "vault",
        signs_with: "HashiCorp Vault or OpenBao, PKI secrets engine",
        authentication: "token file, AppRole (also wrapped), TLS certificate, JWT, Kubernetes",
        caps: CAPS,
        keys: &[KEYS, endpoint::KEYS],
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let url = required(map, "address", "with https://HOST:8200");
        let endpoint = endpoint::read(map, url);
        let also: Vec<_> = map
            .get("alsoAllow")
            .and_then(|field| field.list())
            .unwrap_or_default()
            .iter()
            .filter_map(endpoint::address)
            .collect();
        let namespace = map.get("namespace").and_then(|field| path(&field));
        let mount = required(map, "mount", "with the path of a PKI engine");
        let mount = mount.and_then(|field| path_of_authority(&field));
        let issuer = map
            .get("issuer")
            .and_then(|field| path_of_authority(&field));
        let verbatim = map
            .get("verbatim")
            .and_then(|field| field.boolean())
            .unwrap_or_default();
        let role = map
            .get("role")
            .and_then(|field| PerCertificate::read(&field));
        let auth = required(
            map,
            "auth",
            "with tokenFile, appRole, certificate, jwt or kubernetes",
        );
        let auth = auth.and_then(|field| Auth::read(&field));
        let mut endpoint = endpoint?;
        if matches!(auth, Some(Auth::Certificate { .. })) && endpoint.tls.certificate.is_none() {
            map.field().error(
                "logs in with a TLS certificate and has none",
                "name it under tls.certificate and tls.key",
            );
        }
        endpoint.also = also;
        Some(Config {
            endpoint,
            namespace,
            mount: mount?,
            issuer,
            role: role.or_else(|| (!verbatim).then(default_roles)),
            verbatim,
            auth: auth?,
        })
    }

    fn redacted(&self) -> Value {
        let mut keys = JsonMap::new();
        keys.insert("address".to_owned(), json!(self.endpoint.url.as_str()));
        if !self.endpoint.also.is_empty() {
            let also: Vec<&str> = self.endpoint.also.iter().map(|url| url.as_str()).collect();
            keys.insert("alsoAllow".to_owned(), json!(also));
        }
        if let Some(namespace) = &self.namespace {
            keys.insert("namespace".to_owned(), json!(namespace));
        }
        keys.insert("mount".to_owned(), json!(self.mount));
        if let Some(issuer) = &self.issuer {
            keys.insert("issuer".to_owned(), json!(issuer));
        }
        if let Some(role) = &self.role {
            keys.insert("role".to_owned(), role.redacted());
        }
        keys.insert("verbatim".to_owned(), json!(self.verbatim));
        keys.insert("auth".to_owned(), self.auth.redacted());
        endpoint::redacted(&self.endpoint, &mut keys);
        Value::Object(keys)
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        Ok(Box::new(Vault::new(self, site)?))
    }

    fn setup(parts: &[Part<'_, Self>], identity: &Identity) -> Option<String> {
        Some(setup::print(parts, identity))
    }
}

/// What names the node has a role of the node's own.
fn default_roles() -> PerCertificate {
    let own = [
        CertName::Apiserver,
        CertName::EtcdServer,
        CertName::EtcdPeer,
        CertName::KubeletConf,
        CertName::KubeletServing,
    ];
    PerCertificate {
        default: Some("{certificate}".to_owned()),
        named: own
            .into_iter()
            .map(|name| (name, "{certificate}-{node}".to_owned()))
            .collect(),
    }
}

fn path_of_authority(field: &Field<'_>) -> Option<String> {
    read_of_authority(field).and_then(|text| checked_path(field, &text))
}

fn path(field: &Field<'_>) -> Option<String> {
    field.string().and_then(|text| checked_path(field, &text))
}

fn checked_path(field: &Field<'_>, text: &str) -> Option<String> {
    let path = text.trim_matches('/');
    let sound = path
        .split('/')
        .all(|segment| !matches!(segment, "" | "." | ".."));
    if !sound {
        field.error(
            format!("{text:?} is not a path"),
            "write it as `bao secrets list` or `vault secrets list` prints it",
        );
    }
    sound.then(|| path.to_owned())
}

/// Asks a PKI engine.
pub struct Vault {
    api: Api,
    config: Config,
    identity: Identity,
    session: Session,
    /// What the server told of the roles, by certificate.
    learned: RefCell<BTreeMap<CertName, Knowledge>>,
    /// What was asked for and is not installed yet: the token is needed for it.
    open: RefCell<BTreeSet<CertName>>,
}

/// Where a certificate is signed.
struct Place {
    /// Below `/v1/`, each segment encoded.
    sign: String,
    /// The same as policies have it.
    policy: String,
    /// The role's own path, as policies have it.
    role: Option<String>,
}

impl Config {
    fn mount_of(&self, authority: Authority, identity: &Identity) -> String {
        of_authority(&self.mount, authority, identity)
    }

    fn issuer_of(&self, authority: Authority, identity: &Identity) -> Option<String> {
        let issuer = self.issuer.as_ref()?;
        Some(of_authority(issuer, authority, identity))
    }

    /// `None` when `role` says nothing of the certificate.
    fn place(&self, name: CertName, identity: &Identity) -> Option<Place> {
        let mount = self.mount_of(name.authority(), identity);
        let role = self
            .role
            .as_ref()
            .and_then(|role| role.of_name(name, identity));
        let base = match self.issuer_of(name.authority(), identity) {
            Some(issuer) => format!("{mount}/issuer/{issuer}"),
            None => mount.clone(),
        };
        let verb = if self.verbatim {
            "sign-verbatim"
        } else {
            "sign"
        };
        let policy = match &role {
            Some(role) => format!("{base}/{verb}/{role}"),
            None if self.verbatim => format!("{base}/{verb}"),
            None => return None,
        };
        Some(Place {
            sign: segments(&policy),
            policy,
            role: role.map(|role| format!("{mount}/roles/{role}")),
        })
    }
}

impl Vault {
    fn new(config: &Config, site: &Site<'_>) -> Result<Self, SignerError> {
        let url = &config.endpoint.url;
        let mut label = format!("vault:{}", url.as_str().trim_end_matches('/'));
        for part in [
            config.namespace.as_deref(),
            Some(config.mount.as_str()),
            config.issuer.as_deref(),
        ]
        .into_iter()
        .flatten()
        {
            label.push('/');
            label.push_str(part);
        }
        let api = Api {
            server: Server::new(label, config.endpoint.clone(), site)?,
            namespace: config.namespace.clone(),
        };
        let session = Session::new(
            api.clone(),
            config.auth.clone(),
            Rc::clone(&site.memory),
            site.clock,
        );
        Ok(Vault {
            api,
            config: config.clone(),
            identity: site.identity.clone(),
            session,
            learned: RefCell::default(),
            open: RefCell::default(),
        })
    }

    fn place(&self, name: CertName) -> Result<Place, SignerError> {
        self.config.place(name, &self.identity).ok_or_else(|| {
            SignerError::config(
                format!("{}: `role` says nothing of {name}", self.api.label()),
                format!("add {name} or default to `role`"),
            )
        })
    }

    async fn sign(&self, request: &Request) -> Result<Answer, SignerError> {
        let doing = signing(request);
        let place = self.place(request.name())?;
        let mut token = self.session.token(&doing).await?;
        let mut response = self.post(&doing, &place, request, &token).await?;
        if response.status == 403 {
            let standing = self.session.standing(&doing, &token, &place.policy).await?;
            if standing == Standing::Unknown && self.session.can_log_in() {
                token = self.session.another(&doing, &token).await?;
                response = self.post(&doing, &place, request, &token).await?;
            }
            if response.status == 403 {
                return Err(self.forbidden(&doing, &response, standing, &place));
            }
        }
        self.issued(&doing, request, &response)
    }

    async fn post(
        &self,
        doing: &str,
        place: &Place,
        request: &Request,
        token: &Zeroizing<String>,
    ) -> Result<Response, SignerError> {
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
            json!({
                "csr": csr,
                "ttl": ttl,
                "key_usage": ["DigitalSignature", "KeyEncipherment"],
                "ext_key_usage": usages,
            })
        } else {
            json!({"csr": csr, "ttl": ttl, "exclude_cn_from_sans": true})
        };
        let call = Call::post(format!("/v1/{}", place.sign)).json(&body);
        self.api.exchange(doing, call, Some(token.clone())).await
    }

    fn forbidden(
        &self,
        doing: &str,
        response: &Response,
        standing: Standing,
        place: &Place,
    ) -> SignerError {
        let mut error = self.api.refusal(doing, response);
        error.advice = match (standing, &self.config.auth) {
            (Standing::Denied, _) => format!(
                "have {} allowed (update) in the policy of this node's token, as `nodepki config signer-setup vault` prints it; the token itself is good",
                place.policy
            ),
            (Standing::Allowed, _) => format!(
                "the policy of this node's token allows {}, but not with these parameters: allow {} there",
                place.policy,
                setup::parameters(self.config.verbatim).join(", ")
            ),
            (Standing::Unknown, Auth::TokenFile(file)) => format!(
                "put a new token into {}: the server takes this one for nothing at all, it has expired or was revoked",
                self.api.server.shown_secret(file)
            ),
            (Standing::Unknown, _) => format!(
                "have {} allowed (update) in the policy that a login gives this node",
                place.policy
            ),
        };
        error
    }

    fn issued(
        &self,
        doing: &str,
        request: &Request,
        response: &Response,
    ) -> Result<Answer, SignerError> {
        #[derive(Deserialize)]
        struct Signed {
            #[serde(default)]
            certificate: String,
            #[serde(default)]
            issuing_ca: String,
            #[serde(default)]
            ca_chain: Vec<String>,
        }
        // 204: taken, and nothing to say. No server has a reason to, but a proxy may.
        if response.status == 204 {
            return Err(self.api.garbage(doing, response, "it holds no certificate"));
        }
        let answer: Envelope<Signed> = self.api.read(doing, response)?;
        for warning in answer.warnings.iter().flatten() {
            tracing::warn!(
                signer = self.api.label(),
                certificate = request.name().as_str(),
                "the server says: {}",
                printable(warning, 500)
            );
        }
        let Some(signed) = answer.data.filter(|signed| !signed.certificate.is_empty()) else {
            return Err(self.api.garbage(doing, response, "it holds no certificate"));
        };
        let mut chain = vec![signed.certificate];
        match signed.ca_chain.is_empty() {
            true => chain.push(signed.issuing_ca),
            false => chain.extend(signed.ca_chain),
        }
        Ok(Answer::Issued(chain.join("\n").into_bytes()))
    }

    /// What the server lets this node do, and what it says of its roles.
    async fn learn(&self) -> Result<(), SignerError> {
        let doing = "looking at its roles";
        let places: Vec<(CertName, Place)> = CertName::ALL
            .into_iter()
            .filter_map(|name| Some((name, self.config.place(name, &self.identity)?)))
            .collect();
        let paths: BTreeSet<String> = places
            .iter()
            .flat_map(|(_, place)| [Some(place.policy.clone()), place.role.clone()])
            .flatten()
            .collect();
        let paths: Vec<String> = paths.into_iter().collect();
        let mut token = self.session.token(doing).await?;
        let mut told = self.session.capabilities(doing, &token, &paths).await?;
        if told.is_none() && self.session.can_log_in() {
            token = self.session.another(doing, &token).await?;
            told = self.session.capabilities(doing, &token, &paths).await?;
        }
        // A token without the default policy cannot be asked what it may do. Signing will tell.
        let Some(told) = told else { return Ok(()) };
        let may: BTreeMap<&String, Vec<String>> = paths.iter().zip(told).collect();
        let allowed = |path: &String, what| may.get(path).is_some_and(|may| allows(may, what));
        let mut roles: BTreeMap<&String, Option<Knowledge>> = BTreeMap::new();
        let mut learned = BTreeMap::new();
        for (name, place) in &places {
            if !allowed(&place.policy, "update") {
                let why = format!(
                    "the policy of its token does not allow {} (update)",
                    place.policy
                );
                learned.insert(*name, Knowledge::Obstacle(why));
                continue;
            }
            let Some(path) = place.role.as_ref().filter(|path| allowed(path, "read")) else {
                continue;
            };
            let known = match roles.get(path) {
                Some(known) => known.clone(),
                None => self.role(doing, path, &token).await?,
            };
            learned.extend(known.clone().map(|known| (*name, known)));
            roles.insert(path, known);
        }
        self.learned.replace(learned);
        Ok(())
    }

    /// A role as it is; nothing where the answer is of another shape than known.
    async fn role(
        &self,
        doing: &str,
        path: &str,
        token: &Zeroizing<String>,
    ) -> Result<Option<Knowledge>, SignerError> {
        let call = Call::get(format!("/v1/{}", segments(path)));
        let response = self.api.exchange(doing, call, Some(token.clone())).await?;
        match response.status {
            200 => {
                let answer = response.json::<Envelope<Role>>().ok();
                let role = answer.and_then(|answer| answer.data).map(Rc::new);
                Ok(role.map(|role| Knowledge::Role(path.to_owned(), role)))
            }
            404 => Ok(Some(Knowledge::Obstacle(format!(
                "there is no role {path}"
            )))),
            _ => Err(self.api.refusal(doing, &response)),
        }
    }

    /// What anybody may read.
    async fn public(&self, doing: &str, path: &str) -> Result<Response, SignerError> {
        let call = Call::get(format!("/v1/{path}"));
        let response = self.api.exchange(doing, call, None).await?;
        if response.status == 403 {
            let mut error = self.api.refusal(doing, &response);
            error.class = Class::Config;
            error.advice = "check `mount` and `namespace`: anybody may read that where a PKI engine is, and the server does not tell strangers what is not there".to_owned();
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
    fn kind(&self) -> Kind {
        Kind::Vault
    }

    fn label(&self) -> String {
        self.api.label().to_owned()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    async fn probe(&self) -> Result<(), SignerError> {
        self.learn().await
    }

    fn preflight(&self, wanted: &Wanted) -> Result<(), Rejection> {
        CAPS.carries(self.api.label(), wanted)?;
        let reject = |reason: String, advice: String| Rejection {
            signer: self.label(),
            name: wanted.name,
            reason,
            advice,
        };
        if self.config.place(wanted.name, &self.identity).is_none() {
            return Err(reject(
                "`role` says nothing of it".to_owned(),
                format!("add {} or default to `role`", wanted.name),
            ));
        }
        let advice = "have the server set up as `nodepki config signer-setup vault` prints it";
        match self.learned.borrow().get(&wanted.name) {
            Some(Knowledge::Obstacle(why)) => Err(reject(why.clone(), advice.to_owned())),
            Some(Knowledge::Role(path, role)) if !self.config.verbatim => {
                let obstacles = role.obstacles(wanted);
                if obstacles.is_empty() {
                    return Ok(());
                }
                let reason = format!("role {path}: {}", obstacles.join("; "));
                Err(reject(reason, advice.to_owned()))
            }
            _ => Ok(()),
        }
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        #[derive(Deserialize)]
        struct Issuer {
            #[serde(default)]
            certificate: String,
            #[serde(default)]
            ca_chain: Vec<String>,
        }
        let doing = format!("reading the certificate of authority {authority}");
        let path = format!("{}/json", self.issuer_path(authority));
        let response = self.public(&doing, &path).await?;
        let answer: Envelope<Issuer> = self.api.read(&doing, &response)?;
        let Some(issuer) = answer.data else {
            return Err(self
                .api
                .garbage(&doing, &response, "it holds no certificate"));
        };
        // The chain begins with the issuer itself.
        let chain = match issuer.ca_chain.is_empty() {
            true => vec![issuer.certificate],
            false => issuer.ca_chain,
        };
        Ok(Some(chain.join("\n").into_bytes()))
    }

    async fn crl(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let doing = format!("reading the revocation list of authority {authority}");
        let path = format!("{}/crl/pem", self.issuer_path(authority));
        let response = self.public(&doing, &path).await?;
        match response.status {
            200 => Ok(Some(response.body)),
            // What some answer for an engine without an issuer.
            204 => Ok(None),
            _ => Err(self.api.refusal(&doing, &response)),
        }
    }

    async fn recover(
        &self,
        _request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        Ok(None)
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        self.open.borrow_mut().insert(request.name());
        self.sign(request).await
    }

    async fn poll(&self, _request: &Request, _ticket: &Ticket) -> Result<Answer, SignerError> {
        Ok(Answer::Gone)
    }

    /// Ends the session with the last of the run's certificates. One that was not signed keeps it for the next run.
    async fn settled(&self, request: &Request) -> Result<(), SignerError> {
        self.open.borrow_mut().remove(&request.name());
        if !self.open.borrow().is_empty() {
            return Ok(());
        }
        self.session.end().await
    }
}

/// What a probe told of a certificate's role.
#[derive(Clone)]
enum Knowledge {
    /// It will not do, and why.
    Obstacle(String),
    /// The role at this path.
    Role(String, Rc<Role>),
}
