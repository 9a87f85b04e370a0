//! The public list of step-ca's provisioners, and its comparison with the configuration.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use time::OffsetDateTime;

use super::super::server::SignerServer;
use super::super::{SignerError, printable};
use super::token::{Credential, StepCaAuth};
use crate::http::encode;
use crate::x509::{Chain, PrivateKey, TrustBundle, verifies};
use crate::yaml::parse_duration;

/// Maximum number of pages of a hundred. A server has a few; one with more pages is not a step-ca.
const MAX_PAGES: usize = 50;

/// Result of [`look`].
#[derive(Clone, Debug, Default)]
pub(super) struct ProvisionerInfo {
    /// Id of a JWK provisioner's key.
    pub(super) kid: Option<String>,
    /// Without a template, step-ca's default template issues.
    pub(super) has_template: bool,
    /// The provisioner's own `maxTLSCertDuration`; that of the whole authority is not published.
    pub(super) longest: Option<Duration>,
    /// The provisioner's own `disableRenewal`.
    pub(super) never_renews: bool,
}

#[derive(Deserialize)]
struct Page {
    provisioners: Vec<Value>,
    #[serde(default, rename = "nextCursor")]
    next: String,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    key: Option<Value>,
    /// Base64 of PEM.
    roots: Option<String>,
    claims: Option<ProvisionerClaims>,
    options: Option<Options>,
}

#[derive(Default, Deserialize)]
struct ProvisionerClaims {
    #[serde(rename = "maxTLSCertDuration")]
    longest: Option<String>,
    #[serde(default, rename = "disableRenewal")]
    never_renews: bool,
}

#[derive(Deserialize)]
struct Options {
    x509: Option<X509>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct X509 {
    #[serde(default)]
    template: String,
    #[serde(default)]
    template_file: String,
}

impl Listed {
    fn kid(&self) -> Option<&str> {
        self.key.as_ref()?.get("kid")?.as_str()
    }

    /// Returns the problem and its solution if `auth` needs another type.
    fn type_mismatch(&self, auth: &StepCaAuth) -> Option<(String, &'static str)> {
        let (fits, wanted) = match auth {
            StepCaAuth::X5c(_) => (self.kind == "X5C", "auth.x5c needs one of type X5C"),
            StepCaAuth::Jwk(_) => (self.kind == "JWK", "auth.jwk needs one of type JWK"),
            StepCaAuth::Token(_) => return None,
        };
        (!fits).then(|| {
            let kind = printable(&self.kind, 64);
            (
                format!(
                    "the provisioner {} is of type {kind}, and {wanted}",
                    self.name
                ),
                "name another provisioner, or configure the authentication of its type",
            )
        })
    }

    /// Returns the problem and its solution if this provisioner does not accept the credential.
    fn credential_mismatch(
        &self,
        credential: &Credential,
        now: OffsetDateTime,
    ) -> Option<(String, &'static str)> {
        match credential {
            Credential::Jwk { key, kid } => self.key_mismatch(key, kid.as_deref()),
            Credential::X5c { chain, .. } => self.roots_mismatch(chain, now),
        }
    }

    fn key_mismatch(&self, key: &PrivateKey, ours: Option<&str>) -> Option<(String, &'static str)> {
        let name = &self.name;
        let listed = |member: &str| self.key.as_ref()?.get(member)?.as_str();
        let members = key.public_key().jwk_members().unwrap_or_default();
        let is_same = members
            .iter()
            .all(|(name, value)| listed(name) == Some(value));
        if !is_same {
            let kid = printable(self.kid().unwrap_or("unknown"), 128);
            return Some((
                format!(
                    "the key in auth.jwk.keyFile is not the one of the provisioner {name} (kid {kid})"
                ),
                "put that provisioner's private key there, or name the provisioner that the key belongs to",
            ));
        }
        let (ours, theirs) = (ours?, self.kid()?);
        (ours != theirs).then(|| {
            let theirs = printable(theirs, 128);
            (
                format!("the provisioner {name} has the key id {theirs}, but {ours} is configured"),
                "correct or remove auth.jwk.kid, or the kid in auth.jwk.keyFile",
            )
        })
    }

    fn roots_mismatch(&self, chain: &Chain, now: OffsetDateTime) -> Option<(String, &'static str)> {
        // Unreadable roots are left to the server.
        let pem = STANDARD.decode(self.roots.as_ref()?).ok()?;
        let roots = TrustBundle::from_pem(&pem).ok()?;
        (!verifies(chain, &roots, now)).then(|| {
            (
                format!(
                    "the certificate in auth.x5c ({}, issued by {}) does not lead to the roots of the provisioner {} ({roots})",
                    chain.leaf().subject(),
                    chain.leaf().issuer(),
                    self.name
                ),
                "use a certificate that they issued, with its intermediates in the same file",
            )
        })
    }
}

/// Returns the provisioner, once it matches the configuration. Creates nothing.
pub(super) async fn verified(
    server: &SignerServer,
    name: &str,
    auth: &StepCaAuth,
    credential: Option<&Credential>,
    now: OffsetDateTime,
) -> Result<ProvisionerInfo, SignerError> {
    let listed = find(server, name).await?;
    let mismatch = listed
        .type_mismatch(auth)
        .or_else(|| listed.credential_mismatch(credential?, now));
    if let Some((problem, advice)) = mismatch {
        let what = format!("{}: {problem}", server.label());
        return Err(SignerError::config(what, advice));
    }
    let kid = listed.kid().map(str::to_owned);
    let claims = listed.claims.unwrap_or_default();
    let template = listed.options.and_then(|options| options.x509);
    Ok(ProvisionerInfo {
        kid,
        has_template: template
            .is_some_and(|x509| !x509.template.is_empty() || !x509.template_file.is_empty()),
        longest: claims.longest.and_then(|text| parse_duration(&text).ok()),
        never_renews: claims.never_renews,
    })
}

async fn find(server: &SignerServer, name: &str) -> Result<Listed, SignerError> {
    let doing = "requesting its provisioners";
    let mut others = Vec::new();
    let mut cursor = String::new();
    for _ in 0..MAX_PAGES {
        let path = format!("/1.0/provisioners?limit=100&cursor={}", encode(&cursor));
        let (page, response): (Page, _) = super::fetch(server, doing, &path).await?;
        for one in page.provisioners {
            if one.get("name").and_then(Value::as_str) != Some(name) {
                others.extend(one.get("name").and_then(Value::as_str).map(str::to_owned));
                continue;
            }
            return serde_json::from_value(one)
                .map_err(|error| server.invalid_response(doing, &response, &error.to_string()));
        }
        if page.next.is_empty() || page.next == cursor {
            break;
        }
        cursor = page.next;
    }
    Err(SignerError::config(
        format!(
            "{}: the server has no provisioner {name}; it has {}",
            server.label(),
            printable(&others.join(", "), 256)
        ),
        "correct `provisioner`, or have it added as `nodepki config signer-setup stepCA` describes",
    ))
}
