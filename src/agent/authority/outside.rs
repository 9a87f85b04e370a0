//! What uses the old CA outside of the nodes' files, by name: nodepki does not change it.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cluster::api::{Api, ApiError, CONFIG_MAP, POD, Resource};
use crate::kube::names::SYSTEM_NAMESPACE;
use crate::x509::{Certificate, certificates_of};

/// ConfigMap with which Pods verify the API server, in every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";
const CA_BUNDLE: &str = "caBundle";

/// Kinds of objects with a `caBundle`: their servers may have a certificate of the cluster CA.
static WITH_BUNDLE: [Resource; 4] = [
    Resource::new("apiregistration.k8s.io", "v1", "apiservices", "APIService"),
    Resource::new(
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
    ),
    Resource::new(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
    ),
    Resource::new(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
    ),
];
static REPLICA_SET: Resource = Resource::new("apps", "v1", "replicasets", "ReplicaSet");

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(flatten)]
    fields: BTreeMap<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    owner_references: Vec<Owner>,
}

#[derive(Clone, Deserialize)]
struct Owner {
    kind: String,
    name: String,
}

/// Returns a sentence for each object that trusts `old` without `new`, and one on the workloads that were started before
/// Pods could trust `new`.
pub(super) async fn outside(
    api: &Api,
    old: &Certificate,
    new: &Certificate,
) -> Result<Vec<String>, ApiError> {
    let mut sentences = Vec::new();
    for resource in &WITH_BUNDLE {
        for object in api.list_all::<Object>(resource).await? {
            let mut bundles = Vec::new();
            object
                .fields
                .values()
                .for_each(|field| collect(field, &mut bundles));
            if bundles.iter().any(|bundle| lacks(bundle, old, new)) {
                sentences.push(format!(
                    "{} {} trusts the old CA in {CA_BUNDLE}: add the new one",
                    resource.kind, object.metadata.name
                ));
            }
        }
    }
    let since = match api
        .read(&CONFIG_MAP, Some(SYSTEM_NAMESPACE), ROOT_CA)
        .await?
    {
        Some(map) if contains(&map, new) => written(&map),
        _ => None,
    };
    let workloads = older_workloads(api, since).await?;
    if !workloads.is_empty() {
        let when = match since {
            Some(_) => format!("since {ROOT_CA} contains the new CA"),
            None => format!("once {ROOT_CA} contains the new CA"),
        };
        sentences.push(format!(
            "restart, {when}, those of these workloads that read it only at their start: {}",
            workloads.into_iter().collect::<Vec<_>>().join(", ")
        ));
    }
    Ok(sentences)
}

/// Collects the values of every field `caBundle`.
fn collect(value: &Value, bundles: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == CA_BUNDLE => bundles.push(text.to_owned()),
                    _ => collect(value, bundles),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, bundles)),
        _ => {}
    }
}

/// Returns whether a bundle, in base64, contains the old CA and not the new one.
fn lacks(bundle: &str, old: &Certificate, new: &Certificate) -> bool {
    let found = BASE64.decode(bundle).unwrap_or_default();
    let found = certificates_of(&found).unwrap_or_default();
    found.contains(old) && !found.contains(new)
}

fn contains(map: &Value, new: &Certificate) -> bool {
    let text = map.pointer("/data/ca.crt").and_then(Value::as_str);
    let found = certificates_of(text.unwrap_or_default().as_bytes());
    found.is_ok_and(|found| found.contains(new))
}

/// Returns when an object was last written.
fn written(object: &Value) -> Option<OffsetDateTime> {
    let managed = object.pointer("/metadata/managedFields")?.as_array()?;
    let times = managed.iter().filter_map(|one| one.get("time")?.as_str());
    times
        .filter_map(|time| OffsetDateTime::parse(time, &Rfc3339).ok())
        .max()
}

/// Returns the workloads with Pods that mount the token of a service account, and with it the CA, and that were started
/// before `since`; all of them without it.
async fn older_workloads(
    api: &Api,
    since: Option<OffsetDateTime>,
) -> Result<BTreeSet<String>, ApiError> {
    let replica_sets: Vec<Object> = api.list_all(&REPLICA_SET).await?;
    let owners: BTreeMap<(String, String), Owner> = replica_sets
        .into_iter()
        .filter_map(|set| {
            let Metadata {
                name,
                namespace,
                mut owner_references,
            } = set.metadata;
            Some(((namespace, name), owner_references.pop()?))
        })
        .collect();
    let mut workloads = BTreeSet::new();
    for pod in api.list_all::<Object>(&POD).await? {
        if !mounts_root_ca(&pod)
            || started(&pod)
                .zip(since)
                .is_some_and(|(at, since)| at >= since)
        {
            continue;
        }
        let Metadata {
            name,
            namespace,
            owner_references,
        } = pod.metadata;
        let owner = owner_references.into_iter().next();
        // A Deployment owns its Pods through a ReplicaSet.
        let owner = owner.map(|owner| {
            let deployment = owners.get(&(namespace.clone(), owner.name.clone()));
            match deployment {
                Some(deployment) if owner.kind == REPLICA_SET.kind => deployment.clone(),
                _ => owner,
            }
        });
        workloads.insert(match owner {
            Some(Owner { kind, name }) => format!("{kind} {namespace}/{name}"),
            None => format!("Pod {namespace}/{name}"),
        });
    }
    Ok(workloads)
}

/// Returns whether a Pod has the projected volume with `kube-root-ca.crt`.
fn mounts_root_ca(pod: &Object) -> bool {
    let volumes = pod.fields.get("spec").and_then(|spec| spec.get("volumes"));
    let volumes = volumes.and_then(Value::as_array).into_iter().flatten();
    let mut sources = volumes
        .filter_map(|volume| volume.pointer("/projected/sources")?.as_array())
        .flatten();
    sources.any(|source| source.pointer("/configMap/name").and_then(Value::as_str) == Some(ROOT_CA))
}

fn started(pod: &Object) -> Option<OffsetDateTime> {
    let time = pod.fields.get("status")?.get("startTime")?.as_str()?;
    OffsetDateTime::parse(time, &Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};

    fn ca(name: &str) -> Certificate {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let year = std::time::Duration::from_secs(365 * 24 * 3600);
        let ca = CertificateAuthority::self_signed(name, key, OffsetDateTime::now_utc(), year);
        ca.unwrap().bundle().first().clone()
    }

    #[test]
    fn finds_bundles_at_any_depth() {
        let (old, new) = (ca("old"), ca("new"));
        let bundle = |all: &[&Certificate]| {
            BASE64.encode(all.iter().map(|one| one.to_pem()).collect::<String>())
        };
        let value =
            json!({"webhooks": [{"clientConfig": {"caBundle": bundle(&[&old])}}], "caBundle": 1});
        let mut bundles = Vec::new();
        collect(&value, &mut bundles);
        assert_eq!(bundles.len(), 1);
        assert!(lacks(&bundles[0], &old, &new));
        assert!(!lacks(&bundle(&[&old, &new]), &old, &new));
        assert!(!lacks(&bundle(&[&new]), &old, &new));
        assert!(!lacks("%", &old, &new));
    }

    #[test]
    fn recognizes_pods_with_root_ca_and_when_they_started() {
        let pod = |volumes: Value| -> Object {
            let pod = json!({"metadata": {"name": "a"}, "spec": {"volumes": volumes},
                "status": {"startTime": "2026-11-24T03:00:00Z"}});
            serde_json::from_value(pod).unwrap()
        };
        let projected = |name: &str| json!([{"projected": {"sources": [{"serviceAccountToken": {}}, {"configMap": {"name": name}}]}}]);
        assert!(mounts_root_ca(&pod(projected(ROOT_CA))));
        assert!(!mounts_root_ca(&pod(projected("other"))));
        assert!(!mounts_root_ca(&pod(Value::Null)));
        let expected = time::macros::datetime!(2026-11-24 3:00 UTC);
        assert_eq!(started(&pod(Value::Null)), Some(expected));
        let map = json!({"metadata": {"managedFields": [
            {"time": "2026-11-24T02:00:00Z"}, {"time": "2026-11-24T03:00:00Z"}, {}]}});
        assert_eq!(written(&map), Some(expected));
    }
}
