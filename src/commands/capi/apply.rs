//! From wanted Secrets to a management cluster: read all, decide about all, then send.
//!
//! What is there stays unless it is ours to renew: a Secret of another owner, of another CA, or with nothing in it that
//! could be understood is replaced only when a person said so; labels, annotations and data entries that are not ours
//! are kept even then, since one of them may be the only copy of a key.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::secrets::{CLUSTER_LABEL, MADE_BY, MADE_BY_LABEL, Object, Purpose, Secret, Target};
use crate::agent::{ExitCode, Failure, Row};
use crate::cluster::api::{self, Api, SECRET};
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::Authority;
use crate::x509::{Chain, Difference, TrustBundle, path_differences};

/// Reads the Secrets of a cluster.
///
/// # Errors
/// What the API server says, but for a Secret that does not exist.
pub async fn read(
    api: &Api,
    target: &Target,
    purposes: impl Iterator<Item = Purpose>,
) -> Result<BTreeMap<Purpose, Object>, Failure> {
    let mut found = BTreeMap::new();
    for purpose in purposes {
        let name = target.name(purpose);
        let object = api.read(&SECRET, Some(target.namespace()), &name).await;
        let object =
            object.map_err(|error| failed("reading", target.namespace(), &name, &error))?;
        found.extend(object.map(|object| (purpose, Object(object))));
    }
    Ok(found)
}

/// Makes or renews the Secrets; a row for each.
///
/// # Errors
/// Before anything is sent, when one of them must not be touched; after that, what the API server says.
pub async fn apply(
    api: &Api,
    secrets: &[Secret],
    trust: &BTreeMap<Authority, TrustBundle>,
    replace: bool,
    now: OffsetDateTime,
) -> Result<Vec<Row>, Failure> {
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
            Err(why) => refusals.push(format!(
                "Secret {} in {}: {why}; find out whose it is, then run again with --replace if it may go",
                secret.name(),
                secret.target.namespace()
            )),
        }
    }
    if !refusals.is_empty() {
        return Err(Failure {
            code: ExitCode::Refused,
            messages: refusals,
        });
    }
    let mut rows = Vec::new();
    for (secret, change) in changes {
        let (name, namespace) = (secret.name(), secret.target.namespace());
        let (action, reasons) = match change {
            Change::None { notes } => ("kept", notes),
            Change::Create(object) => {
                let created = api.create(&SECRET, Some(namespace), &object.0).await;
                created
                    .map(Object)
                    .map_err(|error| failed("making", namespace, &name, &error))?;
                ("created", Vec::new())
            }
            Change::Update { object, reasons } => {
                let updated = api
                    .replace(&SECRET, Some(namespace), &name, &object.0)
                    .await;
                updated
                    .map(Object)
                    .map_err(|error| failed("replacing", namespace, &name, &error))?;
                ("replaced", reasons)
            }
        };
        rows.push(Row {
            name,
            authority: Some(secret.purpose.authority().to_string()),
            action,
            reasons,
            ..Row::default()
        });
    }
    Ok(rows)
}

fn failed(doing: &str, namespace: &str, name: &str, error: &api::Error) -> Failure {
    let doing = format!("{doing} the Secret {name} in {namespace}");
    if let api::Error::Refused(status) = error
        && (status.is_conflict() || status.is_already_exists())
    {
        let message = format!("{doing}: somebody else changed it at the same time; run again");
        return Failure::new(ExitCode::Pending, message);
    }
    if let api::Error::Refused(status) = error
        && status.is_not_found(namespace)
    {
        let message = format!(
            "{doing}: there is no such namespace; make it (kubectl create namespace {namespace}), or correct --namespace"
        );
        return Failure::new(ExitCode::Refused, message);
    }
    Failure::of_cluster(doing, error)
}

/// What is to be sent for one Secret.
enum Change {
    None {
        notes: Vec<String>,
    },
    Create(Object),
    Update {
        object: Object,
        reasons: Vec<String>,
    },
}

/// Decides about one Secret; the error is why it must not be touched.
fn decide(
    secret: &Secret,
    found: Option<Object>,
    trust: Option<&TrustBundle>,
    replace: bool,
    now: OffsetDateTime,
) -> Result<Change, String> {
    let Some(mut found) = found else {
        return Ok(Change::Create(secret.object()));
    };
    let differing = secret.data.iter().filter(|(key, bytes)| {
        let there = found.data(key);
        // A placeholder gives way to whatever is there.
        let stays = secret.purpose.is_authority() && **key == "tls.key" && there.is_some();
        !stays && there.as_ref() != Some(*bytes)
    });
    let differing: Vec<_> = differing.collect();
    // Who made it is worth no write, and may be somebody who keeps it.
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
            "its type is {} and not {}, which only making it anew could change; KubeadmControlPlane adopts those of cluster.x-k8s.io/secret",
            found.kind(),
            secret.kind
        ));
    }
    if reasons.is_empty() {
        return Ok(Change::None { notes });
    }
    if !replace {
        refuse(secret.purpose, &found, trust, now)?;
    }
    reasons.append(&mut notes);
    let data = differing
        .into_iter()
        .map(|(key, bytes)| ((*key).to_owned(), Value::String(BASE64.encode(bytes))))
        .collect::<Vec<_>>();
    if let Some(entries) = map(&mut found.0, &["data"]) {
        entries.extend(data);
    }
    if let Some(entries) = map(&mut found.0, &["metadata", "labels"]) {
        let labels = secret.labels().into_iter();
        entries.extend(labels.map(|(label, value)| (label.to_owned(), Value::from(value))));
    }
    Ok(Change::Update {
        object: found,
        reasons,
    })
}

/// Why a Secret is not ours to change.
fn refuse(
    purpose: Purpose,
    found: &Object,
    trust: Option<&TrustBundle>,
    now: OffsetDateTime,
) -> Result<(), String> {
    let mut owners = found.owners();
    if found.label(MADE_BY_LABEL) == Some(MADE_BY) {
        // Ours all the same: it adopts what has Cluster API's own type.
        owners.retain(|owner| !owner.starts_with("KubeadmControlPlane/"));
    }
    if !owners.is_empty() {
        return Err(format!("{} owns it", owners.join(", ")));
    }
    if let Some(other) = found.label(MADE_BY_LABEL).filter(|who| *who != MADE_BY) {
        return Err(format!("{other} keeps it, says its label {MADE_BY_LABEL}"));
    }
    let Some(trust) = trust else { return Ok(()) };
    if purpose.is_authority() {
        let pem = found.data("tls.crt").or_else(|| found.data("ca.crt"));
        let theirs = pem.ok_or("it holds no certificate").and_then(|pem| {
            TrustBundle::from_pem(&pem).map_err(|_| "its certificate cannot be read")
        })?;
        return match trust.vouches_for(&theirs) {
            true => Ok(()),
            false => Err(format!("it holds another CA, {theirs}, than {trust}")),
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
        .ok_or("it holds no certificate that can be read")?;
    let mut differences = path_differences(&chain, trust, now).into_iter();
    let foreign =
        differences.find(|difference| matches!(difference, Difference::UntrustedIssuer { .. }));
    match foreign {
        Some(difference) => Err(format!(
            "its certificate is not of this cluster: {difference}"
        )),
        None => Ok(()),
    }
}

/// The map at a path, made where there is none.
fn map<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let entries = value.as_object_mut()?;
    match path {
        [] => Some(entries),
        [first, rest @ ..] => map(entries.entry(*first).or_insert(Value::Null), rest),
    }
}
