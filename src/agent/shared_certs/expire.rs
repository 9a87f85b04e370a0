//! The removal of the shared certificates from the cluster, for clusters whose tokens no controller removes.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::agent::Failure;
use crate::cluster::api::{self, Api};
use crate::kube::kubeadm_certs::{NAMESPACE, SECRET_NAME};
use crate::text::rfc3339;

/// Result of [`expire`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum Expiry {
    /// The cluster contains no shared certificates.
    Absent,
    /// The Secret was removed, and these tokens that owned it.
    Removed {
        /// Names of the tokens' Secrets.
        tokens: Vec<String>,
    },
    /// The Secret remains until this time.
    Remains {
        /// Expiration of its token.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
    },
}

/// Removes the Secret with the shared certificates and the tokens that own it. With `only_expired`, the Secret remains
/// as long as one of its tokens is valid, and an object is removed only as it was read: a new upload is kept.
///
/// # Errors
/// An object cannot be read or removed.
pub async fn expire(api: &Api, only_expired: bool, now: OffsetDateTime) -> Result<Expiry, Failure> {
    let Some(secret) = read(api, SECRET_NAME).await? else {
        return Ok(Expiry::Absent);
    };
    let mut tokens = Vec::new();
    for name in owners(&secret) {
        let Some(token) = read(api, &name).await? else {
            continue;
        };
        match expiration(&token) {
            Some(until) if only_expired && now < until => return Ok(Expiry::Remains { until }),
            _ => tokens.push((name, token)),
        }
    }
    // The tokens first: if the run ends in between, the next one finds the Secret. A token that may not be removed does
    // not keep the Secret in the cluster.
    let mut refused = None;
    let secret = (SECRET_NAME.to_owned(), secret);
    for (name, object) in tokens.iter().chain([&secret]) {
        let removed = if only_expired {
            api.delete_unchanged(&api::SECRET, Some(NAMESPACE), name, object)
                .await
        } else {
            api.delete(&api::SECRET, Some(NAMESPACE), name).await
        };
        let Err(error) = removed else { continue };
        let doing = format!("removing the Secret {NAMESPACE}/{name}");
        match &error {
            api::ApiError::Refused(status) if status.is_conflict() => {
                let message = format!(
                    "{doing}: another client changed it at the same time; run nodepki certs expire --if-expired again"
                );
                return Err(Failure::pending(message));
            }
            api::ApiError::Refused(_) => {
                refused = refused.or(Some(Failure::of_cluster(doing, error)));
            }
            _ => return Err(Failure::of_cluster(doing, error)),
        }
    }
    match refused {
        Some(failure) => Err(failure),
        None => Ok(Expiry::Removed {
            tokens: tokens.into_iter().map(|(name, _)| name).collect(),
        }),
    }
}

impl std::fmt::Display for Expiry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Expiry::Absent => write!(f, "the Secret {NAMESPACE}/{SECRET_NAME} does not exist"),
            Expiry::Removed { tokens } if tokens.is_empty() => {
                write!(f, "removed the Secret {NAMESPACE}/{SECRET_NAME}")
            }
            Expiry::Removed { tokens } => write!(
                f,
                "removed the Secret {NAMESPACE}/{SECRET_NAME} and its token {}",
                tokens.join(", ")
            ),
            Expiry::Remains { until } => write!(
                f,
                "the Secret {NAMESPACE}/{SECRET_NAME} remains until {} (without --if-expired it is removed now)",
                rfc3339(*until)
            ),
        }
    }
}

async fn read(api: &Api, name: &str) -> Result<Option<Value>, Failure> {
    api.read(&api::SECRET, Some(NAMESPACE), name)
        .await
        .map_err(|error| {
            Failure::of_cluster(format!("reading the Secret {NAMESPACE}/{name}"), error)
        })
}

/// Returns the names of the Secrets that own a Secret.
fn owners(secret: &Value) -> Vec<String> {
    let owners = secret.pointer("/metadata/ownerReferences");
    let owners = owners.and_then(Value::as_array).into_iter().flatten();
    owners
        .filter(|owner| owner.get("kind").and_then(Value::as_str) == Some("Secret"))
        .filter_map(|owner| Some(owner.get("name")?.as_str()?.to_owned()))
        .collect()
}

/// Returns the expiration of a bootstrap token. A token without one never expires for kube-controller-manager; here it
/// counts as expired, since kubeadm always writes the time. For both, one that is not a time has expired.
fn expiration(token: &Value) -> Option<OffsetDateTime> {
    let encoded = token.pointer("/data/expiration")?.as_str()?;
    let text = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
    OffsetDateTime::parse(&text, &Rfc3339).ok()
}
