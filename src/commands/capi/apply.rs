//! Writes the desired Secrets to a management cluster: reads all of them, decides about all of them, then writes.
//!
//! A Secret with another owner, with another CA, or with unreadable content is replaced only with `--replace`. Labels,
//! annotations and data entries that nodepki does not manage are kept even then, since one of them may be the only copy
//! of a key.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::etcd_clients::{client_authority, is_predecessor_key, without_client_authority};
use super::migrate;
use super::secrets::{
    CLUSTER_LABEL, ClusterTarget, MANAGED_BY_LABEL, MANAGED_BY_NODEPKI, Object, Purpose, SecretSpec,
};
use crate::agent::{Failure, ReportRow, RowAction, RowReason};
use crate::cluster::api::{self, Api, SECRET};
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::Authority;
use crate::x509::{CertDifference, Chain, PrivateKey, TrustBundle, path_differences};

/// Reads the Secrets of a workload cluster.
///
/// # Errors
/// Errors of the API server, except for a Secret that does not exist.
pub(super) async fn read(
    api: &Api,
    target: &ClusterTarget,
    purposes: impl Iterator<Item = Purpose>,
) -> Result<BTreeMap<Purpose, Object>, Failure> {
    let mut found = BTreeMap::new();
    for purpose in purposes {
        let name = target.name(purpose);
        let object = api.read(&SECRET, Some(target.namespace()), &name).await;
        let object = object.map_err(|error| failed("reading", target.namespace(), &name, error))?;
        found.extend(object.map(|object| (purpose, Object(object))));
    }
    Ok(found)
}

/// Creates or updates the Secrets, and returns a row for each.
///
/// # Errors
/// A Secret must not be replaced, before anything is written; errors of the API server.
pub(super) async fn apply(
    api: &Api,
    secrets: &[SecretSpec],
    trust: &BTreeMap<Authority, TrustBundle>,
    replace: bool,
    now: OffsetDateTime,
) -> Result<Vec<ReportRow>, Failure> {
    let Some(first) = secrets.first() else {
        return Ok(Vec::new());
    };
    let purposes = secrets.iter().map(|secret| secret.purpose);
    let mut found = read(api, &first.target, purposes).await?;
    let mut refusals = Vec::new();
    let mut changes = Vec::new();
    for secret in secrets {
        let trusted = trust.get(&secret.purpose.authority());
        match decide(secret, found.remove(&secret.purpose), trusted, replace, now) {
            Ok(change) => changes.push((secret, change)),
            Err(Refusal { why, remedy }) => refusals.push(format!(
                "Secret {} in {}: {why} ({remedy})",
                secret.name(),
                secret.target.namespace()
            )),
        }
    }
    Failure::require_none(refusals)?;
    let mut rows = Vec::new();
    for (secret, change) in changes {
        let (name, namespace) = (secret.name(), secret.target.namespace());
        let (action, reasons) = match change {
            SecretChange::None { notes } => (RowAction::Kept, notes),
            SecretChange::Create(object) => {
                let created = api.create(&SECRET, Some(namespace), &object.0).await;
                created
                    .map(Object)
                    .map_err(|error| failed("creating", namespace, &name, error))?;
                (RowAction::Created, Vec::new())
            }
            SecretChange::Update { object, reasons } => {
                // The object has the resourceVersion that was read: a later change by another client is a conflict.
                let updated = api
                    .replace(&SECRET, Some(namespace), &name, &object.0)
                    .await;
                updated
                    .map(Object)
                    .map_err(|error| failed("replacing", namespace, &name, error))?;
                (RowAction::Replaced, reasons)
            }
        };
        rows.push(ReportRow {
            name,
            authority: Some(secret.purpose.authority().to_string()),
            action,
            reasons: reasons.into_iter().map(RowReason::Secret).collect(),
            ..ReportRow::default()
        });
    }
    Ok(rows)
}

/// Returns the failure of a request for a Secret.
pub(super) fn failed(doing: &str, namespace: &str, name: &str, error: api::ApiError) -> Failure {
    let doing = format!("{doing} the Secret {name} in {namespace}");
    if let api::ApiError::Refused(status) = &error
        && (status.is_conflict() || status.is_already_exists())
    {
        let message = format!("{doing}: another client changed it at the same time; run again");
        return Failure::pending(message);
    }
    namespace_missing(&doing, namespace, &error)
        .unwrap_or_else(|| Failure::of_cluster(doing, error))
}

/// Returns the failure if the namespace of an object does not exist.
pub(super) fn namespace_missing(
    doing: &str,
    namespace: &str,
    error: &api::ApiError,
) -> Option<Failure> {
    let api::ApiError::Refused(status) = error else {
        return None;
    };
    status.is_not_found(namespace).then(|| {
        let message = format!(
            "{doing}: the namespace does not exist (create it with kubectl create namespace {namespace}, or correct --namespace)"
        );
        Failure::refused(message)
    })
}

/// The change for one Secret.
enum SecretChange {
    None {
        notes: Vec<String>,
    },
    Create(Object),
    Update {
        object: Object,
        reasons: Vec<String>,
    },
}

/// The reason why a Secret must not be written, and what to do.
struct Refusal {
    why: String,
    remedy: &'static str,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Refusal {
            why,
            remedy: "find out what uses it; --replace replaces it",
        }
    }
}

/// Decides what to write for one Secret; the error is the reason why it must not be replaced.
fn decide(
    secret: &SecretSpec,
    found: Option<Object>,
    trust: Option<&TrustBundle>,
    replace: bool,
    now: OffsetDateTime,
) -> Result<SecretChange, Refusal> {
    let Some(mut found) = found else {
        return Ok(SecretChange::Create(secret.object()));
    };
    let differing = secret.data.iter().filter(|(key, bytes)| {
        let present = found.data(key);
        // A placeholder never replaces an existing entry; another private key is refused below.
        let stays = secret.purpose.is_authority()
            && **key == "tls.key"
            && present
                .as_ref()
                .is_some_and(|present| !is_of_predecessor(secret, present));
        !stays && present.as_ref() != Some(*bytes)
    });
    let differing: Vec<_> = differing.collect();
    // A different managed-by label alone is not a reason to write: another program may manage the Secret.
    let unlabelled = found.label(CLUSTER_LABEL) != Some(secret.target.cluster());
    let unlabelled = unlabelled.then(|| format!("label {CLUSTER_LABEL} is missing or differs"));
    let mut reasons: Vec<String> = differing
        .iter()
        .map(|(key, _)| format!("{key} differs"))
        .chain(unlabelled)
        .collect();
    let mut notes = Vec::new();
    if found.kind() != secret.kind {
        notes.push(format!(
            "its type is {}, not {}: KubeadmControlPlane adopts Secrets of type cluster.x-k8s.io/secret (the type is immutable: to change it, delete the Secret and create it again)",
            found.kind(),
            secret.kind
        ));
    }
    if reasons.is_empty() {
        return Ok(SecretChange::None { notes });
    }
    require_same_key(secret, &found)?;
    if !replace {
        require_replaceable(secret.purpose, &found, trust, now)?;
    }
    reasons.append(&mut notes);
    let data = differing
        .into_iter()
        .map(|(key, bytes)| ((*key).to_owned(), Value::String(BASE64.encode(bytes))))
        .collect::<Vec<_>>();
    if let Some(entries) = map_at(&mut found.0, &["data"]) {
        entries.extend(data);
    }
    if let Some(entries) = map_at(&mut found.0, &["metadata", "labels"]) {
        let labels = secret.labels().into_iter();
        entries.extend(labels.map(|(label, value)| (label.to_owned(), Value::from(value))));
    }
    Ok(SecretChange::Update {
        object: found,
        reasons,
    })
}

/// Returns whether a private key is that of the etcd client CA that the desired one replaces.
fn is_of_predecessor(secret: &SecretSpec, present: &[u8]) -> bool {
    let wanted = secret.data.get("tls.crt");
    let bundle = wanted.and_then(|pem| TrustBundle::from_pem(pem).ok());
    let key = PrivateKey::from_pem(present).ok();
    bundle
        .zip(key)
        .is_some_and(|(bundle, key)| is_predecessor_key(&bundle, key.public_key()))
}

/// Verifies that the certificate and the key of CLUSTER-etcd are changed together or not at all: an existing `tls.key` is
/// never replaced, since it may be the only copy of a CA's key, and the controllers sign with it under the first
/// certificate.
fn require_same_key(secret: &SecretSpec, found: &Object) -> Result<(), Refusal> {
    let (Purpose::Etcd, Some(present)) = (secret.purpose, found.data("tls.key")) else {
        return Ok(());
    };
    let why = match secret.data.get("tls.key") {
        Some(wanted) if *wanted == present => return Ok(()),
        Some(_) if is_of_predecessor(secret, &present) => return Ok(()),
        Some(_) => "its tls.key is not the key of the etcd client CA in the state directory",
        None => {
            let certificates = found.data("tls.crt");
            let bundle = certificates.and_then(|pem| TrustBundle::from_pem(&pem).ok());
            match bundle.as_ref().and_then(client_authority) {
                Some(_) => {
                    "it contains an etcd client CA that the state directory does not contain"
                }
                None => return Ok(()),
            }
        }
    };
    Err(Refusal {
        why: why.to_owned(),
        remedy: "restore etcd-client-ca.pem in the state directory, or store the key elsewhere and remove the entry tls.key from the Secret",
    })
}

/// Verifies that a Secret belongs to nodepki and this cluster; the error is the reason why not.
fn require_replaceable(
    purpose: Purpose,
    found: &Object,
    trust: Option<&TrustBundle>,
    now: OffsetDateTime,
) -> Result<(), String> {
    let mut owners = found.owners();
    let manager = found.label(MANAGED_BY_LABEL);
    // KubeadmControlPlane also adopts nodepki's Secrets if they have Cluster API's type, and is the owner of the CAs that it
    // created. Without their key, as after `capi migrate to-external`, it does not sign with them.
    let is_without_key = || purpose.is_authority() && !migrate::contains_ca_key(found);
    if manager == Some(MANAGED_BY_NODEPKI) || (trust.is_some() && is_without_key()) {
        owners.retain(|owner| !owner.starts_with("KubeadmControlPlane/"));
    }
    if !owners.is_empty() {
        return Err(format!("it is owned by {}", owners.join(", ")));
    }
    if let Some(other) = manager.filter(|manager| *manager != MANAGED_BY_NODEPKI) {
        return Err(format!(
            "it is managed by {other} according to its label {MANAGED_BY_LABEL}"
        ));
    }
    let Some(trust) = trust else { return Ok(()) };
    if purpose.is_authority() {
        let pem = found.data("tls.crt").or_else(|| found.data("ca.crt"));
        let present = pem
            .ok_or("it does not contain a certificate")
            .and_then(|pem| {
                TrustBundle::from_pem(&pem).map_err(|_| "its certificate is unreadable")
            })?;
        let present = without_client_authority(present);
        return if trust.accepts(&present) {
            Ok(())
        } else {
            Err(format!("it contains another CA, {present}, not {trust}"))
        };
    }
    let chain = match purpose {
        Purpose::Kubeconfig => found.data("value").and_then(|text| {
            let kubeconfig = Kubeconfig::parse(std::str::from_utf8(&text).ok()?).ok()?;
            kubeconfig.current().ok()?.certificate
        }),
        _ => found.data("tls.crt").map(|pem| pem.to_vec()),
    };
    let chain = chain
        .and_then(|pem| Chain::from_pem(&pem).ok())
        .ok_or("it does not contain a readable certificate")?;
    let mut differences = path_differences(&chain, trust, now).into_iter();
    let foreign =
        differences.find(|difference| matches!(difference, CertDifference::UntrustedIssuer { .. }));
    match foreign {
        Some(difference) => Err(format!(
            "its certificate does not belong to this cluster: {difference}"
        )),
        None => Ok(()),
    }
}

/// Returns the map at a path, and creates it if it does not exist.
pub(super) fn map_at<'a>(
    value: &'a mut Value,
    path: &[&str],
) -> Option<&'a mut Map<String, Value>> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let entries = value.as_object_mut()?;
    match path {
        [] => Some(entries),
        [first, rest @ ..] => map_at(entries.entry(*first).or_insert(Value::Null), rest),
    }
}

#[cfg(test)]
mod tests;
