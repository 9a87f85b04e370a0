//! `cfssl`: the API of Cloudflare's CFSSL, `cfssl serve` (one CA) and `multirootca` (several, selected by label).
//!
//! # Settings
//! `url`, the `profile` of each certificate (by default the server's default profile), and one of `auth` (signed
//! requests, `authsign`), a client certificate under `tls` (`serve -mutual-tls-ca`), or a network that only nodes can
//! access. With `label`, one signer serves all three authorities of a `multirootca`; its sections are named with
//! letters, digits and `_` only, so the label of `etcd-ca` is `etcd_ca` unless configured. `serve` has one CA
//! and ignores labels. `nodepki config signer-setup cfssl` prints profiles, sections and commands for the server.
//!
//! # Behaviour of these servers
//! - Subject and names come from the CSR, usages and lifetime only from the profile. A `hosts` or `subject` in a
//!   request would replace the content of the CSR (an empty `hosts` removes every name), so neither is ever sent.
//! - An unknown profile is not an error: `serve` signs with its default profile, and `info` describes the default
//!   profile, also for `multirootca`; only a `serve` with remote signers reports it. [`Signer::probe`] therefore also
//!   asks about a profile that does not exist. A profile that resembles it in every respect is refused, since a
//!   misspelt name looks the same.
//! - A request without a CSR tests whether a profile accepts requests from this node; each server processes it up to
//!   the point of signing. These requests have `?probe` in the server's log.
//! - Nearly every refusal is a 400 with JSON under `text/plain`, a wrong key included: `refusal` interprets the text.
//!   `multirootca` responds with `bad request` to an unknown label and to every failure of signing.
//! - `name_whitelist` does not cover organizations and IP addresses: a holder of the key of a client profile can
//!   obtain a certificate for `system:masters`.
//! - The response contains only the leaf; the CA comes from `info`. `crl` creates a new list for each request, and
//!   exists only if `serve` has a database. Requests are never pending and cannot be looked up: a certificate that
//!   was signed and lost is signed again.

mod profiles;
mod refusal;
mod setup;
mod usages;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use async_trait::async_trait;
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map as JsonMap, Value, json};
use zeroize::Zeroizing;

use super::per_certificate::{PerCertificate, names_with};
use super::server::{SignerServer, signing};
use super::{
    About, Answer, Caps, Carry, Configured, FailureClass, NodeIdentity, Part, Rejection, Renewal,
    Request, RequestLookup, RequestedCertificate, Resubmit, Signer, SignerError, SignerKind,
    SignerObstacle, Site, endpoint,
};
use crate::http::{Call, Endpoint};
use crate::kube::names::{Authority, CertName};
use crate::text::rfc3339;
use crate::x509::{TrustBundle, UsageExtensions};
use crate::yaml::schema::SecretFile;
use crate::yaml::settings::{SettingsBlock, settings};
use crate::yaml::{Map, format_duration, parse_duration};

use profiles::{
    Description, InfoResponse, ProfileFacts, Trial, conclude, places_to_describe, places_to_try,
};
use refusal::{CfsslEnvelope, Meaning, Refused};
use usages::usage_obstacles;

const API_PATH: &str = "/api/v1/cfssl";

/// Name of a profile that does not exist.
const UNKNOWN_PROFILE: &str = "nodepki asks what an unknown profile is";

settings! {
    /// A CFSSL server and the credential for it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Config {
        /// `https://HOST[:PORT]` of CFSSL.
        "url" => pub endpoint: Endpoint, required "with https://HOST:8888", flat endpoint;
        /// Signing profile; by default the server's default profile.
        "profile" => pub profile: Option<PerCertificate>;
        /// Section of multirootca; by default {authority}, in which _ replaces -. `cfssl serve` ignores it.
        "label" => pub label: Option<PerCertificate>;
        /// Signing of requests.
        "auth" => pub auth: Option<CfsslAuth>;
    }
}

settings! {
    /// The key with which requests are signed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CfsslAuth {
        /// File with the profile's auth_key in hex, with which requests are signed (authsign).
        "keyFile" => pub key_file: SecretFile, required "with the file that holds the auth_key";
    }
}

const CAPS: Caps = Caps {
    organization: Carry::Yes,
    colon_common_name: Carry::Yes,
    ip_sans: Carry::Yes,
    ml_dsa: Carry::No,
    own_name_san: false,
    usage_extensions: UsageExtensions::Requested,
    pends: false,
    lookup: RequestLookup::None,
    resubmit: Resubmit::Duplicates,
    renewal: Renewal::Submit,
    crl: Carry::AsConfigured,
    other_nodes: Carry::AsConfigured,
    empty_csr: Carry::No,
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "cfssl",
        signs_with: "CFSSL, `cfssl serve` or `multirootca`",
        authentication: "signed requests (auth key), TLS certificate",
        caps: CAPS,
        keys: Config::KEYS,
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let config = Self::read_keys(map);
        endpoint::refuse_path(API_PATH, map, "url");
        if let Some(Config { endpoint, .. }) = &config {
            endpoint::require_trust(
                endpoint,
                map,
                false,
                "add tls.caFile: with the server's CA, or tls.sha256: with a pin of it",
            );
        }
        config
    }

    fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
        let of = |text: &Option<PerCertificate>, key| {
            text.as_ref()?
                .for_this_node_only(key, &PerCertificate::OF_KUBELETS)
        };
        of(&self.label, "label").or_else(|| of(&self.profile, "profile"))
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let server = SignerServer::new(self.title(), self.endpoint.clone(), site)?;
        Ok(Box::new(Cfssl {
            server,
            config: self.clone(),
            identity: site.identity.clone(),
            learned: RefCell::default(),
        }))
    }

    fn setup(parts: &[Part<'_, Self>], identity: &NodeIdentity) -> Option<String> {
        Some(setup::print(parts, identity))
    }
}

impl Config {
    /// Returns the file with the key that signs requests.
    fn key_file(&self) -> Option<&SecretFile> {
        self.auth.as_ref().map(|auth| &auth.key_file)
    }

    fn title(&self) -> String {
        let url = self.endpoint.url.as_str().trim_end_matches('/');
        match self.label.as_ref().and_then(|label| label.default.as_ref()) {
            Some(label) => format!("cfssl:{url}/{label}"),
            None => format!("cfssl:{url}"),
        }
    }

    fn place(&self, name: CertName, identity: &NodeIdentity) -> CaProfile {
        let section = name.authority().as_str().replace('-', "_");
        let configured = self.label.as_ref().and_then(|label| {
            let text = label.named.get(&name).or(label.default.as_ref())?;
            let text = PerCertificate::all(text.replace("{authority}", &section));
            text.of_name(name, identity)
        });
        CaProfile {
            label: configured.unwrap_or(section),
            profile: self
                .profile
                .as_ref()
                .and_then(|profile| profile.of_name(name, identity)),
        }
    }
}

/// Label and profile with which a certificate is signed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CaProfile {
    label: String,
    /// `None` is the server's default profile.
    profile: Option<String>,
}

impl CaProfile {
    /// Returns an unknown profile of the same CA, for which CFSSL uses its default profile.
    fn fallback(&self) -> Self {
        CaProfile {
            label: self.label.clone(),
            profile: Some(UNKNOWN_PROFILE.to_owned()),
        }
    }

    /// Returns the place in the fields common to all requests, without defaults.
    fn fields(&self) -> JsonMap<String, Value> {
        let mut fields = JsonMap::new();
        fields.insert("label".to_owned(), json!(self.label));
        if let Some(profile) = &self.profile {
            fields.insert("profile".to_owned(), json!(profile));
        }
        fields
    }
}

impl fmt::Display for CaProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.profile.as_deref() {
            Some(UNKNOWN_PROFILE) => f.write_str("an unknown profile")?,
            Some(profile) => write!(f, "profile {profile:?}")?,
            None => f.write_str("the default profile")?,
        }
        write!(f, " (label {:?})", self.label)
    }
}

/// Requests certificates from a CFSSL.
pub struct Cfssl {
    server: SignerServer,
    config: Config,
    identity: NodeIdentity,
    /// The server's description of each place.
    learned: RefCell<BTreeMap<CaProfile, Description<ProfileFacts>>>,
}

#[derive(Deserialize)]
struct CfsslSignResponse {
    certificate: String,
}

/// A request that is authenticated with the profile's key.
#[derive(Serialize)]
struct Authenticated {
    token: String,
    request: String,
}

impl Cfssl {
    fn place(&self, name: CertName) -> CaProfile {
        self.config.place(name, &self.identity)
    }

    /// Performs one exchange. Returns the result, or a refusal in the server's own form.
    async fn ask<T: DeserializeOwned>(
        &self,
        doing: &str,
        call: Call<'_>,
    ) -> Result<Result<T, Refused>, SignerError> {
        let response = self.server.exchange(doing, call).await?;
        let envelope = match response.json::<CfsslEnvelope>() {
            Ok(envelope) => envelope,
            Err(_) if !response.is_success() => return Ok(Err(Refused::unworded(response))),
            Err(error) => {
                return Err(self
                    .server
                    .invalid_response(doing, &response, &error.to_string()));
            }
        };
        if !response.is_success() || !envelope.success {
            return Ok(Err(Refused::worded(response, envelope)));
        }
        for message in envelope.messages.iter().flatten() {
            tracing::warn!("{}: {doing}: {message}", self.server.label());
        }
        match serde_json::from_value(envelope.result) {
            Ok(result) => Ok(Ok(result)),
            Err(error) => Err(self
                .server
                .invalid_response(doing, &response, &error.to_string())),
        }
    }

    async fn describe(&self, place: &CaProfile) -> Result<Description<InfoResponse>, SignerError> {
        let doing = format!("asking about {place}");
        let call = Call::post(format!("{API_PATH}/info")).json(&place.fields());
        match self.ask(&doing, call).await.map_err(as_transient)? {
            Ok(info) => Ok(Description::As(info)),
            Err(refused) => match refused.meaning() {
                Meaning::UnknownLabel => Ok(Description::NoLabel),
                Meaning::UnknownProfile => Ok(Description::NoProfile),
                _ => Err(self.judge(&doing, &refused, place)),
            },
        }
    }

    /// Builds a request with the fields of `place` and `csr`, signed if a key is configured.
    fn order(
        &self,
        place: &CaProfile,
        csr: &str,
        query: &str,
    ) -> Result<Call<'static>, SignerError> {
        let mut fields = place.fields();
        if !csr.is_empty() {
            fields.insert("certificate_request".to_owned(), json!(csr));
        }
        let request = Value::Object(fields).to_string().into_bytes();
        let Some(file) = self.config.key_file() else {
            let call = Call::post(format!("{API_PATH}/sign{query}"));
            return Ok(call.body("application/json", request));
        };
        let key = unhex(&self.server.secret(file)?).ok_or_else(|| {
            SignerError::config(
                format!(
                    "{}: {} contains something other than pairs of hexadecimal digits",
                    self.server.label(),
                    self.server.shown_secret(file)
                ),
                "write the key there as in CFSSL's auth_keys, without the prefix env: or file:",
            )
        })?;
        let token = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &request);
        let authenticated = Authenticated {
            token: STANDARD.encode(token),
            request: STANDARD.encode(&request),
        };
        Ok(Call::post(format!("{API_PATH}/authsign{query}")).json(&authenticated))
    }

    /// Tests whether the server accepts requests from this node, with a request that cannot be signed.
    async fn try_out(
        &self,
        place: &CaProfile,
    ) -> Result<(Trial, Option<SignerError>), SignerError> {
        let doing = format!("trying {place}");
        // `sign` checks the request before the profile, and requires a non-empty one.
        let csr = if self.config.auth.is_some() { "" } else { "-" };
        let order = self.order(place, csr, "?probe")?;
        let refused = match self
            .ask::<Value>(&doing, order)
            .await
            .map_err(as_transient)?
        {
            Ok(_) => return Ok((Trial::Unclear, None)),
            Err(refused) => refused,
        };
        let trial = match refused.meaning() {
            Meaning::NoRequest => Trial::Signs,
            Meaning::UnknownProfile => Trial::NoProfile,
            Meaning::WantsKey => Trial::WantsKey,
            Meaning::HasNoKey => Trial::HasNoKey,
            Meaning::WrongKey | Meaning::WrongAddress => {
                return Ok((Trial::KeptOut, Some(self.judge(&doing, &refused, place))));
            }
            // A remote CFSSL was asked, which words its refusal differently.
            Meaning::Behind | Meaning::Unspecified if refused.status() == 400 => Trial::Unclear,
            _ => return Err(self.judge(&doing, &refused, place)),
        };
        Ok((trial, None))
    }

    /// Returns everything that prevents a profile from issuing the certificate, each with the required action.
    fn obstacles(
        &self,
        wanted: &RequestedCertificate,
        place: &CaProfile,
        described: &Description<ProfileFacts>,
    ) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut say = |reason: String, advice: &str| found.push((reason, advice.to_owned()));
        let no_profile = || {
            (
                format!("its CFSSL has no {place}"),
                "correct the name under `profile`, or add the profile to CFSSL's signing configuration".to_owned(),
            )
        };
        let facts = match described {
            Description::As(facts) if facts.trial == Trial::NoProfile => return vec![no_profile()],
            Description::NoProfile => return vec![no_profile()],
            Description::NoLabel => {
                say(
                    format!("its CFSSL has no CA with the label {:?}", place.label),
                    "write the name of the section in its roots file under `label` (letters, digits and _ only)",
                );
                return found;
            }
            Description::As(facts) => facts,
        };
        if !facts.exists {
            say(
                format!(
                    "its CFSSL treats {place} like an unknown one, with its default profile ({}; {})",
                    listed(facts.info.usages()),
                    facts.info.expiry
                ),
                "correct the name under `profile`, or remove it to use the default profile; an existing profile must differ in something, such as its expiry",
            );
        }
        match facts.trial {
            Trial::WantsKey => say(
                format!("{place} accepts only requests that are signed with its auth_key"),
                "put that key into a file and name the file under `auth.keyFile`",
            ),
            Trial::HasNoKey => say(
                format!("{place} has no auth_key, and does not accept signed requests"),
                "give the profile an auth_key in CFSSL's signing configuration; or, with cfssl serve, remove `auth` here",
            ),
            // The key may be about to change; the refusal of the signing request is more specific.
            Trial::Signs | Trial::NoProfile | Trial::KeptOut | Trial::Unclear => {}
        }
        found.extend(usage_obstacles(wanted, place, &facts.info));
        found
    }

    /// Logs a lifetime that differs from the requested one. The profile determines it.
    fn compare_lifetime(&self, request: &Request, info: &InfoResponse) {
        let (name, wanted) = (request.name(), request.wanted.profile.lifetime);
        let Ok(given) = parse_duration(&info.expiry) else {
            return;
        };
        if given < wanted {
            tracing::info!(
                certificate = %name,
                "{} signs it for {} and {} is requested; the expiry of its profile decides",
                self.server.label(),
                format_duration(given),
                format_duration(wanted)
            );
        }
        let end = TrustBundle::from_response(info.certificate.as_bytes())
            .map(|bundle| bundle.first().not_after());
        if let Ok(end) = end
            && request.now + given > end
        {
            tracing::warn!(
                certificate = %name,
                "{} signs it for longer than its CA is valid, which is until {}; renew the CA before that",
                self.server.label(),
                rfc3339(end)
            );
        }
    }
}

#[async_trait(?Send)]
impl Signer for Cfssl {
    fn kind(&self) -> SignerKind {
        SignerKind::Cfssl
    }

    fn label(&self) -> String {
        self.server.label().to_owned()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    async fn probe(&self) -> Result<(), SignerError> {
        let names = names_with([&self.config.label, &self.config.profile]).into_iter();
        let places: BTreeSet<CaProfile> = names.map(|name| self.place(name)).collect();
        let described = places_to_describe(&places);
        let descriptions = described.iter().map(|place| self.describe(place));
        let descriptions = try_join_all(descriptions).await?;
        let descriptions = described.into_iter().zip(descriptions).collect();
        let tried = places_to_try(&places, &descriptions);
        let trials = try_join_all(tried.iter().map(|place| self.try_out(place))).await?;
        let (trials, errors): (Vec<_>, Vec<_>) = trials.into_iter().unzip();
        let trials: BTreeMap<CaProfile, Trial> = tried.into_iter().zip(trials).collect();
        // A key that is accepted for some places only is reported when another place is to sign.
        if let Some(error) = errors.into_iter().flatten().next()
            && !trials.values().any(|trial| *trial == Trial::Signs)
        {
            return Err(error);
        }
        self.learned
            .replace(conclude(&places, &descriptions, &trials));
        Ok(())
    }

    fn preflight(&self, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        CAPS.carries(self.server.label(), wanted)?;
        let place = self.place(wanted.name);
        let learned = self.learned.borrow();
        let Some(described) = learned.get(&place) else {
            return Ok(());
        };
        let obstacles = self.obstacles(wanted, &place, described);
        let (reasons, advice): (Vec<_>, Vec<_>) = obstacles.into_iter().unzip();
        match advice.into_iter().next() {
            None => Ok(()),
            Some(advice) => {
                let reason = reasons.join("; ");
                Err(Rejection::new(self.server.label(), wanted, reason, advice))
            }
        }
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let Some(name) = name_under(authority) else {
            return Ok(None);
        };
        let place = self.place(name);
        match self.describe(&place).await? {
            Description::As(info) => Ok(Some(info.certificate.into_bytes())),
            // The preflight reports this for each certificate.
            Description::NoLabel | Description::NoProfile => Ok(None),
        }
    }

    /// Returns the list of the one CA of a `serve`; its signature identifies the authority.
    async fn crl(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let Some(name) = name_under(authority) else {
            return Ok(None);
        };
        let doing = format!("requesting the revocation list of authority {authority}");
        let call = Call::get(format!("{API_PATH}/crl"));
        let text = match self.ask::<String>(&doing, call).await? {
            Ok(text) => text,
            // The path does not exist without a database and in multirootca.
            Err(refused) if refused.status() == 404 => return Ok(None),
            Err(refused) => return Err(self.judge(&doing, &refused, &self.place(name))),
        };
        STANDARD.decode(&text).map(Some).map_err(|error| {
            let advice = "check that the address is the signer's";
            self.server
                .failed(FailureClass::Permanent, &doing, error, advice)
        })
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let place = self.place(request.name());
        let doing = signing(request);
        let call = self.order(&place, &request.csr.to_pem(), "")?;
        let signed = match self.ask::<CfsslSignResponse>(&doing, call).await? {
            Ok(signed) => signed,
            Err(refused) if refused.meaning() == Meaning::NotOnWhitelist => {
                return Ok(Answer::Denied {
                    reason: format!(
                        "the name_whitelist of {place} does not have all its names ({})",
                        refused.said()
                    ),
                });
            }
            Err(refused) => return Err(self.judge(&doing, &refused, &place)),
        };
        let mut chain = signed.certificate;
        if let Some(Description::As(facts)) = self.learned.borrow().get(&place) {
            self.compare_lifetime(request, &facts.info);
            chain.push('\n');
            chain.push_str(&facts.info.certificate);
        }
        Ok(Answer::Issued(chain.into_bytes()))
    }
}

/// Returns a certificate of an authority, which represents the authority.
fn name_under(authority: Authority) -> Option<CertName> {
    let mut names = CertName::ALL.into_iter();
    names.find(|name| name.authority() == authority)
}

/// Marks a failure as transient: a query creates nothing, whatever the HTTP method.
fn as_transient(mut error: SignerError) -> SignerError {
    if error.class == FailureClass::Ambiguous {
        error.class = FailureClass::Transient;
    }
    error
}

fn listed(usages: &[String]) -> String {
    match usages {
        [] => "no usages".to_owned(),
        usages => usages.join(", "),
    }
}

fn unhex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; text.len() / 2]);
    base16ct::mixed::decode(text, &mut bytes).ok()?;
    Some(bytes)
}
