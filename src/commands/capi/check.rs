//! Reads the Secrets of a workload cluster, from a management cluster or from a manifest, and judges them.

use std::collections::BTreeMap;

use serde_json::Value;
use time::OffsetDateTime;

use super::apply;
use super::conditions::{self, Findings};
use super::secrets::{ClusterTarget, Format, Object, Purpose};
use crate::agent::{Failure, load};
use crate::cluster::api::Api;
use crate::yaml;

/// Judges the Secrets in a management cluster.
///
/// # Errors
/// Errors of the API server, except for a Secret that does not exist.
pub(super) async fn check_cluster(
    api: &Api,
    target: &ClusterTarget,
    format: Format,
    external_etcd: bool,
    now: OffsetDateTime,
) -> Result<Findings, Failure> {
    let purposes = conditions::judged(format, external_etcd);
    let found = apply::read(api, target, purposes).await?;
    Ok(conditions::judge(
        target,
        format,
        external_etcd,
        &found,
        now,
    ))
}

/// Judges the Secrets of a manifest: YAML documents, or the List that `kubectl get -o yaml` prints. A Secret without a
/// namespace is taken as one of the cluster's namespace. `file` is the name for messages.
///
/// # Errors
/// The text is not valid YAML.
pub(super) fn check_manifest(
    file: &str,
    text: &str,
    target: &ClusterTarget,
    format: Format,
    external_etcd: bool,
    now: OffsetDateTime,
) -> Result<Findings, Failure> {
    let documents = yaml::parse(file, text).map_err(load::faulty)?;
    let mut found = BTreeMap::new();
    for document in &documents {
        let mut document = Object(yaml::to_json(document));
        let items = document.0.get_mut("items").map(Value::take);
        let objects = match items {
            Some(Value::Array(items)) => items.into_iter().map(Object).collect(),
            _ => vec![document],
        };
        for object in objects {
            let is_candidate = object.0.get("kind").and_then(Value::as_str) == Some("Secret")
                && object
                    .namespace()
                    .is_none_or(|namespace| namespace == target.namespace());
            let name = object.name().map(str::to_owned);
            let mut purposes = Purpose::ALL.into_iter().filter(|_| is_candidate);
            if let Some(purpose) = purposes.find(|purpose| Some(target.name(*purpose)) == name) {
                found.insert(purpose, object);
            }
        }
    }
    Ok(conditions::judge(
        target,
        format,
        external_etcd,
        &found,
        now,
    ))
}
