//! `stepCA`: smallstep's step-ca, through the API of its own `step` command.
//!
//! # Settings
//! Its address, a provisioner, and one way to authenticate: an X5C certificate with its key (best for nodes: one
//! certificate from the creation of the machine authorizes all of its requests), a JWK provisioner's private key, or
//! one-time tokens that were created elsewhere. `rootSHA256` is `step certificate fingerprint root_ca.crt`: the root
//! is fetched, compared, and then trusted; `tls` is the alternative. One step-ca has one root, so each authority has
//! its own signer. The provisioner needs a template, which `nodepki config signer-setup stepCA` prints, and a
//! `maxTLSCertDuration` of at least the requested lifetime; step-ca's default is 24 hours.
//!
//! # Behaviour
//! - A token is valid for one request. It is marked as used before it is checked, so a repeated request is always
//!   refused: a new token is created for each submission, and a token from a file that may have arrived is never sent
//!   again. Sent tokens are remembered between runs.
//! - 201 means signed, and is also the status of a list of roots. 401 never states a reason; 403 does, and is only
//!   sometimes a policy's denial.
//! - Without a template, organizations are dropped, usages are always both, and the common name is added to a
//!   certificate without alternative names. If the server's list of provisioners shows that there is no template,
//!   certificates that would be wrong are refused before anything is sent.
//! - A lifetime beyond the limit is refused, not shortened. With X5C it is limited by the certificate that authorizes
//!   the request, so no more than that is requested.
//! - `renew` (same key) and `rekey` (new key) are authenticated with the current certificate, in TLS: a certificate
//!   without client authentication cannot be renewed this way, and is requested with a token. Both copy names, usages
//!   and lifetime.
//! - Issued certificates cannot be looked up.

mod provisioner;
mod refusal;
mod setup;
mod submission;
mod token;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::server::{SignerServer, signing};
use super::{
    About, Answer, Caps, Carry, Configured, CurrentCertificate, FailureClass, Memory, NodeIdentity,
    Part, Rejection, Renewal, Request, RequestedCertificate, Resubmit, Signer, SignerError,
    SignerKind, SignerObstacle, Site, endpoint,
};
use crate::http::{Call, Endpoint, HttpResponse, Url};
use crate::kube::names::Authority;
use crate::text::hex;
use crate::x509::{Certificate, Chain, KeyPurpose, ListScope, PrivateKey, TrustBundle};
use crate::yaml::schema::{ValueForm, sha256};
use crate::yaml::settings::{Setting, SettingsBlock, settings};
use crate::yaml::{Field, Map, format_duration};

use provisioner::ProvisionerInfo;
use token::Credential;
pub use token::StepCaAuth;

settings! {
    /// A step-ca.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Config {
        /// Address of step-ca.
        "url" => endpoint: Endpoint, required "https://CA:9000", flat endpoint;
        /// Name of the provisioner that accepts this node's tokens.
        "provisioner" => provisioner: String, required "the provisioner's name";
        /// SHA-256 of the root certificate, as `step certificate fingerprint` prints it.
        "rootSHA256" => root_sha256: Option<[u8; 32]>, read fingerprint;
        /// How this node authenticates.
        "auth" => auth: StepCaAuth, required "{x5c: {certificate: FILE, key: FILE}}";
        /// Audience of tokens, if the host of `url` is not one of the server's dnsNames: `https://NAME/1.0/sign`.
        "audience" => audience: Option<String>, read read_audience, form ValueForm::Url;
        /// Longest lifetime to request; by default the configured one.
        "lifetime" => lifetime: Option<Duration>, read read_lifetime;
    }
}

fn read_audience(field: &Field<'_>) -> Option<Option<String>> {
    Url::read(field)?;
    field.string().map(Some)
}

fn read_lifetime(field: &Field<'_>) -> Option<Option<Duration>> {
    let lifetime = Duration::read(field)?;
    if lifetime < Duration::from_secs(60) {
        field.error(
            format!("{} is too short", format_duration(lifetime)),
            "use at least 1m",
        );
    }
    Some(Some(lifetime))
}

const CAPS: Caps = Caps {
    organization: Carry::AsConfigured,
    colon_common_name: Carry::AsConfigured,
    ml_dsa: Carry::No,
    own_name_san: true,
    renewal: Renewal::Rekey,
    crl: Carry::AsConfigured,
    other_nodes: Carry::AsConfigured,
    empty_csr: Carry::No,
    ..Caps::everything()
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "stepCA",
        signs_with: "smallstep's step-ca, one for each authority",
        authentication: "X5C certificate, JWK provisioner's key, or one-time tokens",
        caps: CAPS,
        keys: Config::KEYS,
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let config = Self::read_keys(map)?;
        endpoint::refuse_path("/1.0", map, "url");
        endpoint::refuse_second_trust(&config.endpoint.tls, map, "rootSHA256");
        endpoint::require_trust(
            &config.endpoint,
            map,
            map.get("rootSHA256").is_some(),
            "add rootSHA256: what `step certificate fingerprint root_ca.crt` prints, or tls: {caFile: FILE}",
        );
        Some(config)
    }

    fn setup(parts: &[Part<'_, Self>], identity: &NodeIdentity) -> Option<String> {
        Some(setup::print(parts, identity))
    }

    fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
        matches!(self.auth, StepCaAuth::Token(_)).then(|| {
            SignerObstacle::new(
                "each request needs a one-time token that was created for its names",
                "configure auth.x5c or auth.jwk, or remove kubelets.sign",
            )
        })
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let url = &self.endpoint.url;
        let host = match &self.endpoint.tls.server_name {
            Some(name) => name.as_str(),
            None => url.host_str().unwrap_or_default(),
        };
        let label = format!(
            "stepCA:{}/{}",
            url.origin().ascii_serialization(),
            self.provisioner
        );
        let resubmit = match self.auth {
            StepCaAuth::Token(_) => Resubmit::FreshCredential,
            _ => Resubmit::Duplicates,
        };
        Ok(Box::new(StepCa {
            server: SignerServer::new(label, self.endpoint.clone(), site)?,
            // step-ca ignores the port.
            audience: self
                .audience
                .clone()
                .unwrap_or_else(|| format!("https://{host}/1.0/sign")),
            config: self.clone(),
            caps: Caps { resubmit, ..CAPS },
            identity: site.identity.clone(),
            memory: Rc::clone(&site.memory),
            clock: site.clock,
            root: RefCell::default(),
            known: RefCell::default(),
        }))
    }
}

fn fingerprint(field: &Field<'_>) -> Option<Option<[u8; 32]>> {
    let sum = sha256(&field.written()?);
    if sum.is_none() {
        field.error(
            "is not a SHA-256 fingerprint of 64 hex digits",
            "print it with: step certificate fingerprint root_ca.crt",
        );
    }
    sum.map(Some)
}

/// Requests certificates from a step-ca.
struct StepCa {
    server: SignerServer,
    config: Config,
    audience: String,
    caps: Caps,
    identity: NodeIdentity,
    memory: Rc<dyn Memory>,
    clock: fn() -> OffsetDateTime,
    /// The root that was fetched by its fingerprint, PEM.
    root: RefCell<Option<Vec<u8>>>,
    known: RefCell<Option<ProvisionerInfo>>,
}

#[derive(Serialize)]
struct SignBody<'a> {
    csr: String,
    ott: &'a str,
    #[serde(rename = "notAfter")]
    not_after: String,
}

#[derive(Deserialize)]
struct StepCaSignResponse {
    #[serde(default)]
    crt: String,
    #[serde(default)]
    ca: String,
    #[serde(default, rename = "certChain")]
    chain: Vec<String>,
}

#[derive(Deserialize)]
struct Root {
    ca: String,
}

#[derive(Deserialize)]
struct Roots {
    crts: Vec<String>,
}

impl StepCa {
    /// Returns the verified server; with a fingerprint, the root is fetched first.
    async fn server(&self) -> Result<SignerServer, SignerError> {
        let Some(pin) = self.config.root_sha256 else {
            return Ok(self.server.clone());
        };
        let known = self.root.borrow().clone();
        let root = match known {
            Some(root) => root,
            None => {
                let root = self.fetch_root(pin).await?;
                self.root.replace(Some(root.clone()));
                root
            }
        };
        Ok(self.server.trusting(root))
    }

    async fn fetch_root(&self, pin: [u8; 32]) -> Result<Vec<u8>, SignerError> {
        let doing = "fetching the root certificate by its fingerprint";
        let unverified = self.server.provisional();
        let path = format!("/1.0/root/{}", hex(&pin));
        let response = unverified.exchange(doing, Call::get(path)).await?;
        let said = refusal::said(&response);
        let advice = "compare rootSHA256 with what `step certificate fingerprint root_ca.crt` prints for the right \
                      step-ca, and check for a proxy in between";
        if response.status == 404 && said.contains("fingerprint") {
            return Err(unverified.failed(
                FailureClass::Config,
                doing,
                format!(
                    "the server has no root certificate with the fingerprint {}",
                    hex(&pin)
                ),
                advice,
            ));
        }
        if !response.is_success() {
            return Err(unverified.refusal(doing, &response, &said));
        }
        let root: Root = response
            .json()
            .map_err(|error| unverified.invalid_response(doing, &response, &error.to_string()))?;
        let chain = Chain::from_pem(root.ca.as_bytes())
            .map_err(|error| unverified.invalid_response(doing, &response, &error.to_string()))?;
        // The answer came over a connection that was not verified.
        let found = chain.leaf().fingerprint();
        if found != pin {
            return Err(unverified.failed(
                FailureClass::Config,
                doing,
                format!(
                    "requested {}, the response is another certificate: {} ({})",
                    hex(&pin),
                    hex(&found),
                    chain.leaf().subject()
                ),
                advice,
            ));
        }
        Ok(chain.leaf().to_pem().into_bytes())
    }

    /// Returns the lifetime to request: limited by the configuration and by the certificate that authorizes the
    /// request.
    fn lifetime(&self, request: &Request, until: Option<OffsetDateTime>) -> Duration {
        let wanted = request.wanted.profile.lifetime;
        let mut lifetime = self.config.lifetime.map_or(wanted, |most| most.min(wanted));
        if let Some(until) = until {
            // The server counts from its own time.
            let left = Duration::try_from(until - request.now - token::CLOCK_TOLERANCE)
                .unwrap_or_default();
            if left < lifetime {
                tracing::info!(
                    certificate = %request.name(),
                    "requested until {} only, the end of the certificate that authorizes the request",
                    crate::text::rfc3339(until)
                );
                lifetime = left;
            }
        }
        lifetime
    }

    fn issued(
        &self,
        server: &SignerServer,
        doing: &str,
        response: &HttpResponse,
    ) -> Result<Answer, SignerError> {
        let signed: StepCaSignResponse = response
            .json()
            .map_err(|error| server.invalid_response(doing, response, &error.to_string()))?;
        let pem = match signed.chain.as_slice() {
            [] => [signed.crt, signed.ca].join("\n"),
            chain => chain.join("\n"),
        };
        if !pem.contains("-----BEGIN CERTIFICATE-----") {
            return Err(server.invalid_response(
                doing,
                response,
                "it does not contain a certificate",
            ));
        }
        Ok(Answer::Issued(pem.into_bytes()))
    }
}

/// Fetches a JSON document.
async fn fetch<T: DeserializeOwned>(
    server: &SignerServer,
    doing: &str,
    path: &str,
) -> Result<(T, HttpResponse), SignerError> {
    let response = server.exchange(doing, Call::get(path.to_owned())).await?;
    if !response.is_success() {
        return Err(server.refusal(doing, &response, &refusal::said(&response)));
    }
    match response.json() {
        Ok(document) => Ok((document, response)),
        Err(error) => Err(server.invalid_response(doing, &response, &error.to_string())),
    }
}

/// Returns whether a status comes from a proxy or load balancer in front of step-ca, which has not seen the token.
fn is_from_proxy(status: u16) -> bool {
    matches!(status, 300..=399 | 404 | 405 | 408 | 425 | 429 | 502..=504)
}

#[async_trait(?Send)]
impl Signer for StepCa {
    fn kind(&self) -> SignerKind {
        SignerKind::StepCa
    }

    fn label(&self) -> String {
        self.server.label().to_owned()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    async fn probe(&self) -> Result<(), SignerError> {
        let now = (self.clock)();
        let credential = Credential::read(&self.server, &self.config.auth, now)?;
        let server = self.server().await?;
        let doing = "checking its health";
        let (health, response): (Value, _) = fetch(&server, doing, "/1.0/health").await?;
        if health.get("status").and_then(Value::as_str) != Some("ok") {
            return Err(server.invalid_response(
                doing,
                &response,
                "it is not the health document of a step-ca",
            ));
        }
        let known = provisioner::verified(
            &server,
            &self.config.provisioner,
            &self.config.auth,
            credential.as_ref(),
            now,
        )
        .await?;
        self.known.replace(Some(known));
        Ok(())
    }

    fn preflight(&self, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        self.caps.carries(&self.label(), wanted)?;
        let name = &self.config.provisioner;
        let rejection = |reason: String, advice: String| {
            Err(Rejection::new(&self.label(), wanted, reason, advice))
        };
        if matches!(self.config.auth, StepCaAuth::Token(_))
            && self
                .config
                .auth
                .token_file(wanted, &self.identity)
                .is_none()
        {
            return rejection(
                "auth.token.file has no file with a one-time token for it".to_owned(),
                format!("add {}: FILE to it", wanted.name),
            );
        }
        let known = self.known.borrow();
        let Some(known) = known.as_ref() else {
            return Ok(());
        };
        if !known.has_template {
            let obstacles = without_template(wanted);
            if !obstacles.is_empty() {
                return rejection(
                    format!(
                        "its provisioner {name} has no certificate template, and step-ca's own {}",
                        obstacles.join(", ")
                    ),
                    format!(
                        "give the provisioner the template that `nodepki config signer-setup {}` prints",
                        self.kind()
                    ),
                );
            }
        }
        let asked = wanted.profile.lifetime;
        let asked = self.config.lifetime.map_or(asked, |most| most.min(asked));
        if let Some(longest) = known.longest.filter(|longest| asked > *longest) {
            return rejection(
                format!(
                    "{} are requested and its provisioner {name} allows at most {}",
                    format_duration(asked),
                    format_duration(longest)
                ),
                "raise claims.maxTLSCertDuration there, or set `lifetime` here".to_owned(),
            );
        }
        Ok(())
    }

    async fn trust(&self, _authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let doing = "requesting its roots";
        let server = self.server().await?;
        // The status is 201, as for a new certificate.
        let (roots, response): (Roots, _) = fetch(&server, doing, "/1.0/roots").await?;
        let bundle = TrustBundle::from_pem(roots.crts.join("\n").as_bytes())
            .map_err(|error| server.invalid_response(doing, &response, &error.to_string()))?;
        // kubeadm reads the first one only.
        let (first, rest): (Vec<_>, Vec<_>) = bundle
            .certificates()
            .iter()
            .partition(|root| Some(root.fingerprint()) == self.config.root_sha256);
        let pem: String = first
            .into_iter()
            .chain(rest)
            .map(|root| root.to_pem())
            .collect();
        Ok(Some(pem.into_bytes()))
    }

    /// A CA of step-ca has one list, in which it can name a distribution point (`crl.idpURL`); by default its certificates
    /// name none.
    fn crl_scope(&self) -> ListScope {
        ListScope::AllOfIssuer
    }

    async fn crl(&self, _authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let doing = "requesting its revocation list";
        let server = self.server().await?;
        let response = server.exchange(doing, Call::get("/1.0/crl")).await?;
        match response.status {
            // Not enabled, or not supported by the database.
            404 | 501 => Ok(None),
            200..=299 if response.body.is_empty() => {
                Err(server.invalid_response(doing, &response, "it is empty"))
            }
            200..=299 => Ok(Some(response.body)),
            _ => Err(server.refusal(doing, &response, &refusal::said(&response))),
        }
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let doing = signing(request);
        let server = self.server().await?;
        let ready = self.token(&server, request)?;
        let lifetime = self.lifetime(request, ready.until);
        let body = SignBody {
            csr: request.csr.to_pem(),
            ott: &ready.text,
            // Relative to the server's clock: an absolute time by this clock could exceed the limit.
            not_after: format!("{}s", lifetime.as_secs()),
        };
        let response = match server
            .exchange(&doing, Call::post("/1.0/sign").json(&body))
            .await
        {
            Ok(response) => response,
            Err(error) => {
                let sent = matches!(
                    error.class,
                    FailureClass::Ambiguous | FailureClass::Permanent
                );
                return Err(self.with_token_state(request, &ready, error, sent));
            }
        };
        if response.is_success() {
            return self
                .issued(&server, &doing, &response)
                .map_err(|error| self.with_token_state(request, &ready, error, true));
        }
        let sent = refusal::Sent {
            provisioner: &self.config.provisioner,
            audience: &self.audience,
            compared: self.known.borrow().is_some() && ready.file.is_none(),
            token_from_file: ready.file.is_some(),
            now: request.now,
        };
        refusal::judge(&server, &doing, &response, &sent).map_err(|error| {
            self.with_token_state(request, &ready, error, !is_from_proxy(response.status))
        })
    }

    async fn renew(
        &self,
        request: &Request,
        current: &CurrentCertificate,
    ) -> Result<Answer, SignerError> {
        let unusable = |error: String| {
            self.server.failed(
                FailureClass::Permanent,
                &format!("renewing {}", request.name()),
                format!("the current certificate cannot be used: {error}"),
                "have a new one issued",
            )
        };
        let chain =
            Chain::from_pem(&current.chain_pem).map_err(|error| unusable(error.to_string()))?;
        let key =
            PrivateKey::from_pem(&current.key_pem).map_err(|error| unusable(error.to_string()))?;
        let known = self
            .known
            .borrow()
            .as_ref()
            .is_some_and(|known| known.never_renews);
        if known || !renewable(chain.leaf(), &request.wanted) {
            return self.submit(request).await;
        }
        let doing = format!(
            "renewing {} for authority {}",
            request.name(),
            request.wanted.authority
        );
        let server = self.server().await?.renewing(current);
        let call = if key.public_key() == request.csr.public_key() {
            Call::post("/1.0/renew")
        } else {
            Call::post("/1.0/rekey").json(&json!({"csr": request.csr.to_pem()}))
        };
        let response = server.exchange(&doing, call).await?;
        if response.is_success() {
            return self.issued(&server, &doing, &response);
        }
        let name = &self.config.provisioner;
        Err(refusal::judge_renewal(&server, &doing, &response, name))
    }
}

/// Returns whether a certificate can be renewed: TLS accepts client certificates only, and the new one has the same
/// usages.
fn renewable(current: &Certificate, wanted: &RequestedCertificate) -> bool {
    let usages = wanted.profile.usages.iter().copied();
    let wanted: BTreeSet<KeyPurpose> = usages.map(KeyPurpose::from).collect();
    let found = current.purposes().unwrap_or_default();
    let found: BTreeSet<KeyPurpose> = found.iter().cloned().collect();
    found == wanted && found.contains(&KeyPurpose::ClientAuth)
}

/// Returns what step-ca's default template does to a certificate that the verification would refuse.
fn without_template(wanted: &RequestedCertificate) -> Vec<String> {
    let profile = &wanted.profile;
    let mut obstacles = Vec::new();
    if !profile.subject.organizations.is_empty() {
        obstacles.push(format!(
            "drops organizations (O={})",
            profile.subject.organizations.join(", O=")
        ));
    }
    if profile.usages.len() == 1 && !wanted.tolerance.extra_usages {
        obstacles.push("gives both server auth and client auth".to_owned());
    }
    if profile.sans.is_empty() && profile.subject.common_name.contains(':') {
        obstacles.push(format!(
            "adds URI:{} to its names",
            profile.subject.common_name
        ));
    }
    obstacles
}

#[cfg(feature = "fuzzing")]
pub(super) fn token_obstacle(
    bytes: &[u8],
    wanted: &RequestedCertificate,
    now: OffsetDateTime,
) -> Option<String> {
    token::obstacle(std::str::from_utf8(bytes).ok()?, "p", wanted, now)
}
