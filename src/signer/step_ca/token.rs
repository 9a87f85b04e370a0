//! One-time tokens: created with a certificate (X5C) or a provisioner's key (JWK), or read from files.
//!
//! A token allows one certificate, by name: its claims repeat subject and alternative names of the request. A token
//! that is created here is bound to the request itself (`cnf`) and is useless for any other. step-ca marks a token as
//! used as soon as it knows the provisioner, before any other check.

use std::collections::BTreeSet;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Map as JsonMap, Value, json};
use sha2::{Digest, Sha256};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

use super::super::per_certificate::PerCertificate;
use super::super::server::SignerServer;
use super::super::shell::quoted;
use super::super::{
    FailureClass, NodeIdentity, Request, RequestedCertificate, SignerError, printable,
};
use crate::text::{hex, rfc3339};
use crate::x509::{Chain, ExtendedUsage, PrivateKey};
use crate::yaml::Field;
use crate::yaml::schema::{SecretFile, ValueForm};
use crate::yaml::settings::{one_of, settings};

/// Clock difference that step-ca accepts.
pub(super) const CLOCK_TOLERANCE: Duration = Duration::minutes(1);

/// Lifetime of a token. It is sent immediately; the rest is for different clocks.
const TOKEN_LIFETIME: Duration = Duration::minutes(5);

one_of! {
    /// How this node authenticates.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum StepCaAuth ("ways to authenticate") {
        /// Tokens signed with the key of a certificate that the provisioner trusts.
        "x5c" => X5c(X5cKeys),
        /// Tokens signed with the provisioner's own key.
        "jwk" => Jwk(JwkKeys),
        /// Tokens from files.
        "token" => Token(TokenKeys),
    }
}

settings! {
    /// Certificate of an X5C provisioner.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct X5cKeys {
        /// PEM file with the certificate that authorizes this node, and its intermediates.
        "certificate" => pub certificate: SecretFile,
            required "the PEM file of the certificate", form ValueForm::Public;
        /// PEM file with its key.
        "key" => pub key: SecretFile, required "the PEM file of its key";
    }
}

settings! {
    /// Key of a JWK provisioner.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct JwkKeys {
        /// File with the provisioner's private key: a JSON Web Key or PEM, not encrypted.
        "keyFile" => pub key_file: SecretFile, required "the file of the provisioner's private key";
        /// Id of that key; by default from the file or the server.
        "kid" => pub kid: Option<String>;
    }
}

settings! {
    /// One-time tokens.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TokenKeys {
        /// File with a one-time token for the certificate.
        "file" => pub file: PerCertificate,
            required "/run/nodepki/tokens/{certificate}", read read_token_files;
    }
}

fn read_token_files(field: &Field<'_>) -> Option<PerCertificate> {
    let files = PerCertificate::read(field)?;
    for text in files.named.values().chain(&files.default) {
        if let Err((what, _)) = SecretFile::parse(text) {
            // The text may be the token itself.
            field.error(
                what,
                "put each token into a file of mode 0600 and name that file",
            );
        }
    }
    if let Some(default) = &files.default
        && !default.contains("{certificate}")
    {
        field.error(
            "names one file for several certificates, and a token is valid for one",
            "write {certificate} into the path, or name a file for each certificate",
        );
    }
    Some(files)
}

impl StepCaAuth {
    /// Returns the file with the token for a certificate; `None` if none is configured or tokens are created here.
    pub(super) fn token_file(
        &self,
        wanted: &RequestedCertificate,
        identity: &NodeIdentity,
    ) -> Option<SecretFile> {
        match self {
            StepCaAuth::Token(TokenKeys { file }) => {
                SecretFile::parse(&file.of(wanted, identity)?).ok()
            }
            _ => None,
        }
    }
}

/// Key material that signs tokens, read again for each one.
pub(super) enum Credential {
    X5c {
        chain: Box<Chain>,
        key: PrivateKey,
    },
    Jwk {
        key: PrivateKey,
        kid: Option<String>,
    },
}

impl Credential {
    /// Reads the key material; `None` if tokens are read from files.
    pub(super) fn read(
        server: &SignerServer,
        auth: &StepCaAuth,
        now: OffsetDateTime,
    ) -> Result<Option<Self>, SignerError> {
        match auth {
            StepCaAuth::X5c(X5cKeys { certificate, key }) => {
                x5c(server, certificate, key, now).map(Some)
            }
            StepCaAuth::Jwk(JwkKeys { key_file, kid }) => {
                let text = server.secret(key_file)?;
                let shown = server.shown_secret(key_file);
                let (key, own) = PrivateKey::from_jwk_or_pem(&text).map_err(|error| {
                    SignerError::config(
                        format!("{}: {shown} is not a key that can sign tokens: {error}", server.label()),
                        format!(
                            "put the provisioner's private key there as a plain JSON Web Key, readable for root alone: \
                             step crypto jwe decrypt < ENCRYPTED > {shown}"
                        ),
                    )
                })?;
                let kid = kid.clone().or(own);
                Ok(Some(Credential::Jwk { key, kid }))
            }
            StepCaAuth::Token(_) => Ok(None),
        }
    }

    /// Returns the latest end of a certificate that it authorizes: a certificate obtained with an X5C token does not
    /// outlive the X5C certificate.
    pub(super) fn not_after(&self) -> Option<OffsetDateTime> {
        match self {
            Credential::X5c { chain, .. } => Some(chain.leaf().not_after()),
            Credential::Jwk { .. } => None,
        }
    }
}

fn x5c(
    server: &SignerServer,
    certificate: &SecretFile,
    key: &SecretFile,
    now: OffsetDateTime,
) -> Result<Credential, SignerError> {
    let label = server.label();
    let unusable = |file: &SecretFile, why: String| {
        let [file, certificate, key] = [file, certificate, key].map(|one| server.shown_secret(one));
        SignerError::config(
            format!("{label}: {file} cannot be used for X5C tokens: {why}"),
            format!(
                "put a certificate with client authentication that the provisioner's roots issued into {certificate}, and its key into {key}"
            ),
        )
    };
    let pem = server.public(certificate)?;
    let chain = Chain::from_pem(pem.as_bytes())
        .map_err(|error| unusable(certificate, error.to_string()))?;
    let pem = server.secret(key)?;
    let private =
        PrivateKey::from_pem(pem.as_bytes()).map_err(|error| unusable(key, error.to_string()))?;
    let leaf = chain.leaf();
    if leaf.public_key() != private.public_key() {
        let why = format!(
            "it is not the key of the certificate in {}",
            server.shown_secret(certificate)
        );
        return Err(unusable(key, why));
    }
    if !leaf.allows(ExtendedUsage::ClientAuth) {
        let why = format!("{} has no extended key usage client auth", leaf.subject());
        return Err(unusable(certificate, why));
    }
    if now > leaf.not_after() || now < leaf.not_before() {
        let (what, when) = if now > leaf.not_after() {
            ("expired at", leaf.not_after())
        } else {
            ("is not valid before", leaf.not_before())
        };
        return Err(SignerError::new(
            FailureClass::Auth,
            format!(
                "{label}: {certificate} ({}) {what} {}, so no token that it signs is taken",
                leaf.subject(),
                rfc3339(when)
            ),
            format!(
                "have a new one issued for this node and put it and its key into {certificate} and {key}, \
                     or set the clock"
            ),
        ));
    }
    Ok(Credential::X5c {
        chain: Box::new(chain),
        key: private,
    })
}

/// Properties of a token besides the request.
pub(super) struct Terms<'a> {
    pub(super) provisioner: &'a str,
    /// `https://NAME/1.0/sign`.
    pub(super) audience: &'a str,
    /// Id from the server's list.
    pub(super) kid: Option<&'a str>,
    pub(super) root_sha256: Option<[u8; 32]>,
}

/// Creates a token for one submission of `request`.
pub(super) fn mint(
    credential: &Credential,
    terms: &Terms<'_>,
    request: &Request,
) -> Result<Zeroizing<String>, SignerError> {
    let failed = |what: &str| {
        SignerError::permanent(
            format!("no token could be made for {}: {what}", request.name()),
            "try again, and report it if it persists",
        )
    };
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|_| failed("the random generator failed"))?;
    let (header, key, audience) = match credential {
        Credential::X5c { chain, key } => {
            let intermediates = chain.intermediates().iter();
            let chain: Vec<String> = std::iter::once(chain.leaf())
                .chain(intermediates.filter(|one| !one.is_self_issued()))
                .map(|one| STANDARD.encode(one.der()))
                .collect();
            let header = json!({"alg": key.jws_algorithm(), "typ": "JWT", "x5c": chain});
            let fragment = format!("{}#x5c/{}", terms.audience, terms.provisioner);
            // Escaped in the same way as by the server.
            let audience = crate::http::Url::parse(&fragment).map_or(fragment, String::from);
            (header, key, audience)
        }
        Credential::Jwk { key, kid } => {
            let kid = kid
                .clone()
                .or_else(|| terms.kid.map(str::to_owned))
                .or_else(|| key.public_key().jwk_thumbprint());
            let header = json!({"alg": key.jws_algorithm(), "typ": "JWT", "kid": kid});
            (header, key, terms.audience.to_owned())
        }
    };
    let profile = &request.wanted.profile;
    let now = request.now.unix_timestamp();
    let mut claims = json!({
        "iss": terms.provisioner,
        "aud": audience,
        "sub": profile.subject.common_name,
        "sans": sans(&request.wanted),
        // A token from before the server's start is refused, and these are whole seconds.
        "iat": now + 1,
        "nbf": now,
        "exp": now + TOKEN_LIFETIME.whole_seconds(),
        "jti": hex(&random),
        // Binds the token to this CSR: the server refuses it with another one.
        "cnf": {"x5rt#S256": URL_SAFE_NO_PAD.encode(Sha256::digest(request.csr.der()))},
        "k8s": kubernetes(&request.wanted),
    });
    if let (Some(root), Some(claims)) = (terms.root_sha256, claims.as_object_mut()) {
        claims.insert("sha".to_owned(), json!(hex(&root)));
    }
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let mut token = Zeroizing::new(format!("{}.{}", part(&header), part(&claims)));
    let signature = key
        .sign_jws(token.as_bytes())
        .map_err(|error| failed(&error.to_string()))?;
    token.push('.');
    token.push_str(&URL_SAFE_NO_PAD.encode(signature));
    Ok(token)
}

/// Returns the claim for the template: organizations, and usages by the template's names.
fn kubernetes(wanted: &RequestedCertificate) -> Value {
    let usages = wanted.profile.usages.iter();
    let usages: Vec<&str> = usages.map(|usage| usage.rfc_name()).collect();
    let mut claim = JsonMap::new();
    if !wanted.profile.subject.organizations.is_empty() {
        let organizations = &wanted.profile.subject.organizations;
        claim.insert("o".to_owned(), json!(organizations));
    }
    claim.insert("eku".to_owned(), json!(usages));
    Value::Object(claim)
}

fn sans(wanted: &RequestedCertificate) -> Vec<String> {
    let sans = &wanted.profile.sans;
    let ips = sans.ips.iter().map(ToString::to_string);
    sans.dns.iter().cloned().chain(ips).collect()
}

/// Returns the command that creates a token for a certificate.
pub(super) fn command(provisioner: &str, wanted: &RequestedCertificate) -> String {
    let mut command = format!(
        "step ca token {} --provisioner {}",
        quoted(&wanted.profile.subject.common_name),
        quoted(provisioner)
    );
    for san in sans(wanted) {
        command.push_str(" --san ");
        command.push_str(&quoted(&san));
    }
    format!(
        "echo {} > k8s.json; {command} --set-file k8s.json",
        quoted(&json!({"k8s": kubernetes(wanted)}).to_string())
    )
}

/// The claims that can be checked before a token is used.
#[derive(Deserialize)]
struct TokenClaims {
    iss: Option<String>,
    sub: Option<String>,
    #[serde(default)]
    sans: Vec<String>,
    nbf: Option<f64>,
    exp: Option<f64>,
}

/// Returns why a token from a file would be wasted; `None` if it may be sent.
pub(super) fn obstacle(
    token: &str,
    provisioner: &str,
    wanted: &RequestedCertificate,
    now: OffsetDateTime,
) -> Option<String> {
    let claims = match claims_of(token) {
        Ok(claims) => claims,
        Err(why) => return Some(why.to_owned()),
    };
    if let Some(why) = out_of_time(&claims, now) {
        return Some(why);
    }
    if let Some(other) = claims.iss.as_deref().filter(|iss| *iss != provisioner) {
        return Some(format!(
            "it is the provisioner {}'s, and {provisioner} is configured",
            printable(other, 128)
        ));
    }
    let subject = claims.sub.unwrap_or_default();
    if subject != wanted.profile.subject.common_name {
        return Some(format!(
            "it is for {}, not for {}",
            printable(&subject, 128),
            wanted.profile.subject.common_name
        ));
    }
    names_differ(&claims.sans, &subject, wanted)
}

fn claims_of(token: &str) -> Result<TokenClaims, &'static str> {
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("it is not a token (three parts separated by dots)");
    };
    let decoded = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('='));
    let claims = decoded
        .ok()
        .and_then(|json| serde_json::from_slice(&json).ok());
    claims.ok_or("its claims cannot be read")
}

fn out_of_time(claims: &TokenClaims, now: OffsetDateTime) -> Option<String> {
    let instant = |seconds: Option<f64>| {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "`as` saturates, and a value out of range is not a valid time"
        )]
        let seconds = seconds? as i64;
        OffsetDateTime::from_unix_timestamp(seconds).ok()
    };
    if let Some(end) = instant(claims.exp).filter(|end| now - *end > CLOCK_TOLERANCE) {
        return Some(format!("it expired at {}", rfc3339(end)));
    }
    if let Some(begin) = instant(claims.nbf).filter(|begin| *begin - now > CLOCK_TOLERANCE) {
        return Some(format!(
            "it is not valid before {}, by this machine's clock",
            rfc3339(begin)
        ));
    }
    None
}

/// step-ca compares the names of each type, and only if the request contains names of that type.
fn names_differ(given: &[String], subject: &str, wanted: &RequestedCertificate) -> Option<String> {
    let given: Vec<&str> = match given {
        [] => vec![subject],
        given => given.iter().map(String::as_str).collect(),
    };
    let ip = |text: &&str| text.parse::<IpAddr>().ok();
    let ips: BTreeSet<IpAddr> = given.iter().filter_map(ip).collect();
    let dns: BTreeSet<&str> = given
        .iter()
        .filter(|text| ip(text).is_none())
        .copied()
        .collect();
    let profile = &wanted.profile.sans;
    let wanted_ips: BTreeSet<IpAddr> = profile.ips.iter().copied().collect();
    let wanted_dns: BTreeSet<&str> = profile.dns.iter().map(String::as_str).collect();
    let differ = (!wanted_ips.is_empty() && wanted_ips != ips)
        || (!wanted_dns.is_empty() && wanted_dns != dns);
    differ.then(|| {
        format!(
            "it is for the names [{}] instead of [{}]",
            printable(&given.join(", "), 512),
            sans(wanted).join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_any_time_in_a_token() {
        let now = OffsetDateTime::UNIX_EPOCH;
        for (claims, begins_or_ends) in [
            (r#"{"exp":253402300799}"#, None),
            (r#"{"nbf":-62135596800}"#, None),
            (r#"{"exp":1e300,"nbf":-1e300}"#, None),
            (r#"{"exp":-377705116800}"#, Some("expired")),
            (r#"{"nbf":253402300799}"#, Some("not valid before")),
        ] {
            let token = format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims));
            let claims = claims_of(&token).unwrap();
            let why = out_of_time(&claims, now);
            match begins_or_ends {
                Some(words) => assert!(why.unwrap().contains(words), "{token}"),
                None => assert_eq!(why, None),
            }
        }
    }
}
