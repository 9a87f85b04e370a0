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
use crate::x509::{TrustBundle, verifies};
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

/// Finds the provisioner and compares it with the configuration. Creates nothing.
pub(super) async fn look(
    server: &SignerServer,
    name: &str,
    auth: &StepCaAuth,
    credential: Option<&Credential>,
    now: OffsetDateTime,
) -> Result<ProvisionerInfo, SignerError> {
    let listed = find(server, name).await?;
    let label = server.label();
    let fits = match auth {
        StepCaAuth::X5c(_) => listed.kind == "X5C",
        StepCaAuth::Jwk(_) => listed.kind == "JWK",
        StepCaAuth::Token(_) => true,
    };
    if !fits {
        let wanted = match auth {
            StepCaAuth::X5c(_) => "auth.x5c needs one of type X5C",
            _ => "auth.jwk needs one of type JWK",
        };
        return Err(SignerError::config(
            format!(
                "{label}: the provisioner {name} is of type {}, and {wanted}",
                printable(&listed.kind, 64)
            ),
            "name another provisioner, or configure the authentication of its type",
        ));
    }
    let kid = listed
        .key
        .as_ref()
        .and_then(|key| key.get("kid")?.as_str())
        .map(str::to_owned);
    match credential {
        Some(Credential::Jwk { key, kid: ours }) => {
            let listed_key = listed.key.unwrap_or_default();
            let members = key.public_key().jwk_members().unwrap_or_default();
            let same = members
                .iter()
                .all(|(name, value)| listed_key.get(name).and_then(Value::as_str) == Some(value));
            if !same {
                return Err(SignerError::config(
                    format!(
                        "{label}: the key in auth.jwk.keyFile is not the one of the provisioner {name} (kid {})",
                        printable(kid.as_deref().unwrap_or("unknown"), 128)
                    ),
                    "put that provisioner's private key there, or name the provisioner that the key belongs to",
                ));
            }
            if let (Some(ours), Some(theirs)) = (ours, &kid)
                && ours != theirs
            {
                return Err(SignerError::config(
                    format!(
                        "{label}: the provisioner {name} has the key id {}, but {ours} is configured",
                        printable(theirs, 128)
                    ),
                    "correct or remove auth.jwk.kid, or the kid in auth.jwk.keyFile",
                ));
            }
        }
        Some(Credential::X5c { chain, .. }) => {
            let roots = listed
                .roots
                .and_then(|text| STANDARD.decode(text).ok())
                .and_then(|pem| TrustBundle::from_pem(&pem).ok());
            // Unreadable roots are left to the server.
            if let Some(roots) = roots
                && !verifies(chain, &roots, now)
            {
                return Err(SignerError::config(
                    format!(
                        "{label}: the certificate in auth.x5c ({}, issued by {}) does not lead to the roots of the \
                         provisioner {name} ({roots})",
                        chain.leaf().subject(),
                        chain.leaf().issuer()
                    ),
                    "use a certificate that they issued, with its intermediates in the same file",
                ));
            }
        }
        None => {}
    }
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
