//! `cfssl`: the API of Cloudflare's CFSSL, `cfssl serve` (one CA) and `multirootca` (several, told apart by label).
//!
//! # What it must be given
//! `url`, the `profile` of each certificate (the server's default profile where there is none), and one of `auth`
//! (signed requests, `authsign`), a client certificate under `tls` (`serve -mutual-tls-ca`), or a network that only
//! nodes are in. With `label`, one signer serves all three authorities of a `multirootca`; its sections are named with
//! letters, digits and `_` only, so that the label of `etcd-ca` is `etcd_ca` unless configured. `serve` has one CA and
//! ignores labels. For the server's side, `nodepki config signer-setup cfssl` prints profiles, sections and commands.
//!
//! # Habits of these servers
//! - Subject and names come from the CSR, usages and lifetime from the profile alone. A `hosts` or `subject` in a
//!   request would replace what the CSR says (an empty `hosts` removes every name), so neither is ever sent.
//! - A profile that does not exist is not an error: `serve` signs with its default profile, and `info` describes that
//!   one, of `multirootca` too; only a `serve` with remote signers says so. [`Signer::probe`] therefore asks about a
//!   profile that surely does not exist as well; one that looks the same in every respect is refused, since a slip of the
//!   pen cannot be told from it.
//! - Whether a profile takes requests from this node is found out by a request without a CSR, which each server judges
//!   up to the point where it would sign. Those have `?probe` in the server's log.
//! - Nearly every refusal is a 400 with JSON under `text/plain`, a wrong key included: `refusal` goes by the text.
//!   `multirootca` says `bad request` both for an unknown label and for whatever goes wrong when it signs.
//! - Organizations and IP addresses are beyond `name_whitelist`: whoever holds the key of a client profile can have a
//!   certificate for `system:masters`.
//! - The answer is the leaf alone; the CA comes from `info`. `crl` makes a new list whenever it is asked, and exists only
//!   where `serve` has a database. There is neither pending nor looking up: what was signed and lost is signed again.

mod refusal;
mod setup;

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

use super::per_certificate::PerCertificate;
use super::server::{Server, signing};
use super::{
    About, Answer, Caps, Carry, Class, Configured, Identity, Kind, Lookup, Part, Rejection,
    Renewal, Request, Resubmit, Signer, SignerError, Site, Ticket, Wanted, endpoint,
};
use crate::http::{Call, Endpoint};
use crate::kube::names::{Authority, CertName};
use crate::x509::{ExtendedUsage, KeyType, TrustBundle, UsageExtensions, rfc3339};
use crate::yaml::schema::{Form, Key, SecretFile, key, required, section};
use crate::yaml::{Map, format_duration, parse_duration};

use refusal::{Envelope, Meaning, Refused};

const API: &str = "/api/v1/cfssl";

/// A profile that nobody has.
const NO_PROFILE: &str = "nodepki asks what an unknown profile is";

/// A CFSSL and how to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the server is.
    pub endpoint: Endpoint,
    /// Profile of each certificate; the server's default profile where nothing is said.
    pub profile: Option<PerCertificate>,
    /// Label of each certificate's CA, `{authority}` with `_` for `-`; `{authority}` where nothing is said.
    pub label: Option<PerCertificate>,
    /// The key that requests are signed with, in hexadecimal; they are not signed without.
    pub key_file: Option<SecretFile>,
}

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("url", Form::Url, "https://HOST[:PORT] of CFSSL."),
    key("profile", Form::PerCertificate, "Signing profile; the server's default profile where there is none."),
    key("label", Form::PerCertificate, "Section of multirootca; default {authority}, which has _ for - here. `cfssl serve` ignores it."),
    key("auth.keyFile", Form::Secret, "File with the profile's auth_key in hex: requests are signed with it (authsign)."),
];

const CAPS: Caps = Caps {
    organization: Carry::Yes,
    colon_common_name: Carry::Yes,
    ip_sans: Carry::Yes,
    own_name_san: false,
    usage_extensions: UsageExtensions::Requested,
    pends: false,
    lookup: Lookup::None,
    resubmit: Resubmit::Duplicates,
    renewal: Renewal::Submit,
    crl: Carry::AsConfigured,
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "cfssl",
        signs_with: "CFSSL, `cfssl serve` or `multirootca`",
        authentication: "signed requests (auth key), TLS certificate",
        caps: CAPS,
        keys: &[KEYS, endpoint::KEYS],
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let url = required(map, "url", "with https://HOST:8888");
        if let Some(field) = &url
            && let Some(text) = field.node().text()
            && text.trim_end_matches('/').ends_with(API)
        {
            field.error(
                "holds the path of the API, which is added to it",
                format!("end it before {API}"),
            );
        }
        let endpoint = endpoint::read(map, url);
        let per_certificate = |name| map.get(name).and_then(|field| PerCertificate::read(&field));
        let (profile, label) = (per_certificate("profile"), per_certificate("label"));
        let key_file = match section(map, "auth") {
            None => None,
            Some(keys) => {
                let file = required(&keys, "keyFile", "with the file that holds the auth_key");
                let file = file.and_then(|field| SecretFile::read(&field));
                keys.finish();
                Some(file?)
            }
        };
        Some(Config {
            endpoint: endpoint?,
            profile,
            label,
            key_file,
        })
    }

    fn redacted(&self) -> Value {
        let mut keys = JsonMap::new();
        keys.insert("url".to_owned(), json!(self.endpoint.url.as_str()));
        for (name, texts) in [("profile", &self.profile), ("label", &self.label)] {
            if let Some(texts) = texts {
                keys.insert(name.to_owned(), texts.redacted());
            }
        }
        if let Some(file) = &self.key_file {
            keys.insert("auth".to_owned(), json!({"keyFile": file.to_string()}));
        }
        endpoint::redacted(&self.endpoint, &mut keys);
        Value::Object(keys)
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let server = Server::new(self.title(), self.endpoint.clone(), site)?;
        Ok(Box::new(Cfssl {
            server,
            config: self.clone(),
            identity: site.identity.clone(),
            learned: RefCell::default(),
        }))
    }

    fn setup(parts: &[Part<'_, Self>], identity: &Identity) -> Option<String> {
        Some(setup::print(parts, identity))
    }
}

impl Config {
    fn title(&self) -> String {
        let url = self.endpoint.url.as_str().trim_end_matches('/');
        match self.label.as_ref().and_then(|label| label.default.as_ref()) {
            Some(label) => format!("cfssl:{url}/{label}"),
            None => format!("cfssl:{url}"),
        }
    }

    fn place(&self, name: CertName, identity: &Identity) -> Place {
        let section = name.authority().as_str().replace('-', "_");
        let configured = self.label.as_ref().and_then(|label| {
            let text = label.named.get(&name).or(label.default.as_ref())?;
            let text = PerCertificate::all(text.replace("{authority}", &section));
            text.of_name(name, identity)
        });
        Place {
            label: configured.unwrap_or(section),
            profile: self
                .profile
                .as_ref()
                .and_then(|profile| profile.of_name(name, identity)),
        }
    }
}

/// Where a certificate is signed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    label: String,
    /// `None` is the server's default profile.
    profile: Option<String>,
}

impl Place {
    /// What CFSSL does when it does not know a profile.
    fn fallback(&self) -> Self {
        Place {
            label: self.label.clone(),
            profile: Some(NO_PROFILE.to_owned()),
        }
    }

    /// In the fields that every request has; nothing that is not said.
    fn fields(&self) -> JsonMap<String, Value> {
        let mut fields = JsonMap::new();
        fields.insert("label".to_owned(), json!(self.label));
        if let Some(profile) = &self.profile {
            fields.insert("profile".to_owned(), json!(profile));
        }
        fields
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.profile.as_deref() {
            Some(NO_PROFILE) => f.write_str("an unknown profile")?,
            Some(profile) => write!(f, "profile {profile:?}")?,
            None => f.write_str("the default profile")?,
        }
        write!(f, " (label {:?})", self.label)
    }
}

/// Asks a CFSSL.
pub struct Cfssl {
    server: Server,
    config: Config,
    identity: Identity,
    /// What the server told of the places that certificates are signed at.
    learned: RefCell<BTreeMap<Place, Described<Facts>>>,
}

/// The answer to `info`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Info {
    certificate: String,
    /// `null` for a profile without any.
    usages: Option<Vec<String>>,
    #[serde(default)]
    expiry: String,
}

/// What a server has to say of a place.
enum Described<T> {
    As(T),
    /// It is a `multirootca` without that section.
    NoLabel,
    /// It is a `multirootca`, or a `serve` with remote signers: others do not say so.
    NoProfile,
}

impl<T> Described<T> {
    fn known(&self) -> Option<&T> {
        match self {
            Described::As(known) => Some(known),
            Described::NoLabel | Described::NoProfile => None,
        }
    }
}

impl Info {
    fn usages(&self) -> &[String] {
        self.usages.as_deref().unwrap_or_default()
    }
}

/// What became of a request that could not be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// But for the missing CSR it would have been.
    Signs,
    /// There is no such profile.
    NoProfile,
    /// The profile has a key, and the request was not signed with it.
    WantsKey,
    /// The request was signed, and the profile has no key.
    HasNoKey,
    /// Not with this key, or not from this address.
    KeptOut,
    /// Something else.
    Unclear,
}

struct Facts {
    info: Info,
    trial: Trial,
    /// The profile is the default one by intention, or differs from the one that takes the place of an unknown one.
    exists: bool,
}

#[derive(Deserialize)]
struct Signed {
    certificate: String,
}

/// A request with proof that its sender has the profile's key.
#[derive(Serialize)]
struct Authenticated {
    token: String,
    request: String,
}

impl Cfssl {
    fn place(&self, name: CertName) -> Place {
        self.config.place(name, &self.identity)
    }

    /// One exchange: what was asked for, or a refusal in the server's own form.
    async fn ask<T: DeserializeOwned>(
        &self,
        doing: &str,
        call: Call<'_>,
    ) -> Result<Result<T, Refused>, SignerError> {
        let response = self.server.exchange(doing, call).await?;
        let envelope = match response.json::<Envelope>() {
            Ok(envelope) => envelope,
            Err(_) if !response.is_success() => return Ok(Err(Refused::unworded(response))),
            Err(error) => {
                return Err(self.server.garbage(doing, &response, &error.to_string()));
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
            Err(error) => Err(self.server.garbage(doing, &response, &error.to_string())),
        }
    }

    async fn describe(&self, place: &Place) -> Result<Described<Info>, SignerError> {
        let doing = format!("asking about {place}");
        let call = Call::post(format!("{API}/info")).json(&place.fields());
        match self.ask(&doing, call).await.map_err(harmless)? {
            Ok(info) => Ok(Described::As(info)),
            Err(refused) => match refused.meaning() {
                Meaning::UnknownLabel => Ok(Described::NoLabel),
                Meaning::UnknownProfile => Ok(Described::NoProfile),
                _ => Err(self.judge(&doing, &refused, place)),
            },
        }
    }

    /// A request with the fields of `place` and `csr`, signed where there is a key for it.
    fn order(&self, place: &Place, csr: &str, query: &str) -> Result<Call<'static>, SignerError> {
        let mut fields = place.fields();
        if !csr.is_empty() {
            fields.insert("certificate_request".to_owned(), json!(csr));
        }
        let request = Value::Object(fields).to_string().into_bytes();
        let Some(file) = &self.config.key_file else {
            let call = Call::post(format!("{API}/sign{query}"));
            return Ok(call.body("application/json", request));
        };
        let key = unhex(&self.server.secret(file)?).ok_or_else(|| {
            SignerError::config(
                format!(
                    "{}: {} holds something else than pairs of hexadecimal digits",
                    self.server.label(),
                    self.server.shown_secret(file)
                ),
                "put the key there as CFSSL's auth_keys has it, without env: or file: before it",
            )
        })?;
        let token = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &request);
        let authenticated = Authenticated {
            token: STANDARD.encode(token),
            request: STANDARD.encode(&request),
        };
        Ok(Call::post(format!("{API}/authsign{query}")).json(&authenticated))
    }

    /// Tries whether requests from this node are taken, with one that cannot be signed.
    async fn try_out(&self, place: &Place) -> Result<(Trial, Option<SignerError>), SignerError> {
        let doing = format!("trying {place}");
        // `sign` looks at the request before the profile, and wants something there.
        let csr = if self.config.key_file.is_some() {
            ""
        } else {
            "-"
        };
        let order = self.order(place, csr, "?probe")?;
        let refused = match self.ask::<Value>(&doing, order).await.map_err(harmless)? {
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
            // A remote CFSSL was asked, and its refusal is in other words.
            Meaning::Behind | Meaning::Unspecified if refused.status() == 400 => Trial::Unclear,
            _ => return Err(self.judge(&doing, &refused, place)),
        };
        Ok((trial, None))
    }

    /// Everything that keeps a profile from giving what is wanted, with what to do about it.
    fn obstacles(
        &self,
        wanted: &Wanted,
        place: &Place,
        described: &Described<Facts>,
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
            Described::As(facts) if facts.trial == Trial::NoProfile => return vec![no_profile()],
            Described::NoProfile => return vec![no_profile()],
            Described::NoLabel => {
                say(
                    format!("its CFSSL has no CA with the label {:?}", place.label),
                    "write the name of the section in its roots file under `label` (letters, digits and _ only)",
                );
                return found;
            }
            Described::As(facts) => facts,
        };
        if !facts.exists {
            say(
                format!(
                    "its CFSSL treats {place} like one that does not exist: with its default profile ({}; {})",
                    listed(facts.info.usages()),
                    facts.info.expiry
                ),
                "correct the name under `profile`, or leave it out where the default profile is meant; a profile that does exist needs something of its own, another expiry for example",
            );
        }
        match facts.trial {
            Trial::WantsKey => say(
                format!("{place} takes only requests that are signed with its auth_key"),
                "put that key into a file and name the file under `auth.keyFile`",
            ),
            Trial::HasNoKey => say(
                format!("{place} has no auth_key, and takes no signed requests"),
                "give the profile an auth_key in CFSSL's signing configuration; or, with cfssl serve, remove `auth` here",
            ),
            // A key may be about to change; whoever signs says more about it.
            Trial::Signs | Trial::NoProfile | Trial::KeptOut | Trial::Unclear => {}
        }
        found.extend(usage_obstacles(wanted, place, &facts.info));
        found
    }

    /// Lifetimes are the profile's affair; where they are not what is wanted, the log says so.
    fn compare_lifetime(&self, request: &Request, info: &Info) {
        let (name, wanted) = (request.name(), request.wanted.profile.lifetime);
        let Ok(given) = parse_duration(&info.expiry) else {
            return;
        };
        if given < wanted {
            tracing::info!(
                certificate = %name,
                "{} signs it for {} where {} is wanted; the expiry of its profile decides",
                self.server.label(),
                format_duration(given),
                format_duration(wanted)
            );
        }
        let end = TrustBundle::from_answer(info.certificate.as_bytes())
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
    fn kind(&self) -> Kind {
        Kind::Cfssl
    }

    fn label(&self) -> String {
        self.server.label().to_owned()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    async fn probe(&self) -> Result<(), SignerError> {
        let places: BTreeSet<Place> = CertName::ALL
            .into_iter()
            .map(|name| self.place(name))
            .collect();
        let fallbacks: BTreeSet<Place> = places
            .iter()
            .filter(|place| place.profile.is_some())
            .map(Place::fallback)
            .collect();
        let asked: Vec<Place> = places.iter().chain(&fallbacks).cloned().collect();
        let described = try_join_all(asked.iter().map(|place| self.describe(place))).await?;
        let described: BTreeMap<&Place, Described<Info>> = asked.iter().zip(described).collect();
        let info = |place: &Place| described.get(place).and_then(Described::known);
        // Only those that look like the fallback need it as a comparison.
        let alike = |place: &Place| {
            place.profile.is_some()
                && info(place).is_some()
                && info(place) == info(&place.fallback())
        };
        let tried: BTreeSet<Place> = places
            .iter()
            .filter(|place| info(place).is_some())
            .flat_map(|place| {
                let comparison = alike(place).then(|| place.fallback());
                [Some(place.clone()), comparison].into_iter().flatten()
            })
            .collect();
        let trials = try_join_all(tried.iter().map(|place| self.try_out(place))).await?;
        let mut kept_out = None;
        let mut trial_of = BTreeMap::new();
        for (place, (trial, error)) in tried.into_iter().zip(trials) {
            trial_of.insert(place, trial);
            kept_out = kept_out.or(error);
        }
        // A key that opens some places and not others is told when one of the others is to sign.
        if let Some(error) = kept_out
            && !trial_of.values().any(|trial| *trial == Trial::Signs)
        {
            return Err(error);
        }
        let facts = |place: &Place, info: &Info| {
            let trial = trial_of.get(place).copied().unwrap_or(Trial::Unclear);
            Facts {
                info: info.clone(),
                trial,
                exists: !alike(place) || trial_of.get(&place.fallback()) != Some(&trial),
            }
        };
        let learned = places
            .iter()
            .filter_map(|place| {
                let learned = match described.get(place)? {
                    Described::As(info) => Described::As(facts(place, info)),
                    Described::NoLabel => Described::NoLabel,
                    Described::NoProfile => Described::NoProfile,
                };
                Some((place.clone(), learned))
            })
            .collect();
        self.learned.replace(learned);
        Ok(())
    }

    fn preflight(&self, wanted: &Wanted) -> Result<(), Rejection> {
        CAPS.carries(self.server.label(), wanted)?;
        let place = self.place(wanted.name);
        let learned = self.learned.borrow();
        let Some(described) = learned.get(&place) else {
            return Ok(());
        };
        let (reasons, advice): (Vec<_>, Vec<_>) = self
            .obstacles(wanted, &place, described)
            .into_iter()
            .unzip();
        match advice.into_iter().next() {
            None => Ok(()),
            Some(advice) => Err(Rejection {
                signer: self.label(),
                name: wanted.name,
                reason: reasons.join("; "),
                advice,
            }),
        }
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let Some(name) = name_under(authority) else {
            return Ok(None);
        };
        let place = self.place(name);
        match self.describe(&place).await? {
            Described::As(info) => Ok(Some(info.certificate.into_bytes())),
            // The preflight says it of each certificate.
            Described::NoLabel | Described::NoProfile => Ok(None),
        }
    }

    /// Of the one CA of a `serve`; whose it is the signature tells.
    async fn crl(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let Some(name) = name_under(authority) else {
            return Ok(None);
        };
        let doing = format!("asking for the revocation list of authority {authority}");
        let call = Call::get(format!("{API}/crl"));
        let text = match self.ask::<String>(&doing, call).await? {
            Ok(text) => text,
            // Without a database, and in multirootca, there is no such path.
            Err(refused) if refused.status() == 404 => return Ok(None),
            Err(refused) => return Err(self.judge(&doing, &refused, &self.place(name))),
        };
        STANDARD.decode(&text).map(Some).map_err(|error| {
            SignerError::permanent(
                format!("{}: {doing} failed: {error}", self.server.label()),
                "check that the address is the signer's and not another program's",
            )
        })
    }

    async fn recover(
        &self,
        _request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        Ok(None)
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let place = self.place(request.name());
        let doing = signing(request);
        let call = self.order(&place, &request.csr.to_pem(), "")?;
        let signed = match self.ask::<Signed>(&doing, call).await? {
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
        if let Some(Described::As(facts)) = self.learned.borrow().get(&place) {
            self.compare_lifetime(request, &facts.info);
            chain.push('\n');
            chain.push_str(&facts.info.certificate);
        }
        Ok(Answer::Issued(chain.into_bytes()))
    }

    async fn poll(&self, _request: &Request, _ticket: &Ticket) -> Result<Answer, SignerError> {
        Ok(Answer::Gone)
    }
}

/// Any certificate of an authority stands for it.
fn name_under(authority: Authority) -> Option<CertName> {
    let mut names = CertName::ALL.into_iter();
    names.find(|name| name.authority() == authority)
}

/// Nothing is created by asking, whatever the method.
fn harmless(mut error: SignerError) -> SignerError {
    if error.class == Class::Ambiguous {
        error.class = Class::Transient;
    }
    error
}

/// The extended key usages by CFSSL's names for them.
const EXTENDED: [&str; 13] = [
    "any",
    "server auth",
    "client auth",
    "code signing",
    "email protection",
    "s/mime",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "timestamping",
    "ocsp signing",
    "microsoft sgc",
    "netscape sgc",
];

/// The key usages, likewise.
const PLAIN: [&str; 10] = [
    "signing",
    "digital signature",
    "content commitment",
    "key encipherment",
    "key agreement",
    "data encipherment",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
];

/// What the verification would refuse in a certificate of this profile, by the same rules.
fn usage_obstacles(wanted: &Wanted, place: &Place, info: &Info) -> Option<(String, String)> {
    let known = |names: &'static [&str]| {
        info.usages()
            .iter()
            .map(String::as_str)
            .filter(move |usage| names.contains(usage))
            .collect::<Vec<_>>()
    };
    let (extended, plain) = (known(&EXTENDED), known(&PLAIN));
    let has = |names: &[&str]| plain.iter().any(|usage| names.contains(usage));
    let mut wrong = Vec::new();
    if extended.is_empty() && plain.is_empty() {
        wrong.push("has no usages, and CFSSL signs nothing without".to_owned());
    } else {
        let profile = &wanted.profile;
        for usage in &profile.usages {
            if !extended.contains(&usage.to_string().as_str()) {
                wrong.push(format!("does not give {usage}"));
            }
        }
        for usage in &extended {
            let is = |one: &ExtendedUsage| one.to_string() == *usage;
            let tolerated = wanted.tolerance.extra_usages
                && [ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth]
                    .iter()
                    .any(is);
            if !profile.usages.iter().any(is) && !tolerated {
                wrong.push(format!("gives {usage}, which is not wanted"));
            }
        }
        if !plain.is_empty() {
            if !has(&["signing", "digital signature"]) {
                wrong.push("does not give digital signature".to_owned());
            }
            if !has(&["key encipherment"]) && KeyType::Known(profile.key).is_rsa() {
                wrong.push("does not give key encipherment, which an RSA key needs".to_owned());
            }
            if has(&["cert sign"]) {
                wrong.push("gives cert sign, which makes it a CA's".to_owned());
            }
        }
    }
    if wrong.is_empty() {
        return None;
    }
    let usages: Vec<String> = wanted
        .profile
        .usages
        .iter()
        .map(ToString::to_string)
        .collect();
    let needed = usages.join(", ");
    Some((
        format!("{place} {}", wrong.join(", ")),
        format!(
            "name a profile under `profile.{}` that has the usages digital signature, key encipherment, {needed}",
            wanted.name
        ),
    ))
}

fn listed(usages: &[String]) -> String {
    match usages {
        [] => "no usages".to_owned(),
        usages => usages.join(", "),
    }
}

fn unhex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for at in (0..text.len()).step_by(2) {
        bytes.push(u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?);
    }
    Some(bytes)
}
