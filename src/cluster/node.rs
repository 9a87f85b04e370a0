//! The Nodes of a cluster, with their annotations.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::api::{Api, ApiError, NODE};
use crate::kube::names::CONTROL_PLANE_LABEL;

/// A Node.
#[derive(Deserialize)]
pub struct ListedNode {
    metadata: ListedMetadata,
}

#[derive(Deserialize)]
struct ListedMetadata {
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl ListedNode {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Returns whether kubeadm has labelled it as a control-plane node.
    pub fn is_control_plane(&self) -> bool {
        self.metadata.labels.contains_key(CONTROL_PLANE_LABEL)
    }

    /// Returns the annotation with this key.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key).map(String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn new(name: &str, labels: &[&str], annotation: Option<(&str, &str)>) -> Self {
        let labels = labels
            .iter()
            .map(|label| ((*label).to_owned(), String::new()));
        let annotation = annotation.map(|(key, text)| (key.to_owned(), text.to_owned()));
        ListedNode {
            metadata: ListedMetadata {
                name: name.to_owned(),
                labels: labels.collect(),
                annotations: annotation.into_iter().collect(),
            },
        }
    }
}

/// Lists all Nodes.
///
/// # Errors
/// See [`ApiError`].
pub async fn list(api: &Api) -> Result<Vec<ListedNode>, ApiError> {
    api.list_all(&NODE).await
}

/// Writes an annotation of a Node, unless `is_current` says that the present one has the same meaning. Returns false if there
/// is no such Node.
///
/// # Errors
/// See [`ApiError`].
pub async fn annotate(
    api: &Api,
    node: &str,
    key: &str,
    text: &str,
    is_current: impl Fn(&str) -> bool,
) -> Result<bool, ApiError> {
    let Some(found) = api.read(&NODE, None, node).await? else {
        return Ok(false);
    };
    let annotations = found.pointer("/metadata/annotations");
    let present = annotations
        .and_then(|all| all.get(key))
        .and_then(Value::as_str);
    if !present.is_some_and(is_current) {
        // Only this key: the kubelet and controllers write other parts of the Node.
        let patch = json!({"metadata": {"annotations": {(key): text}}});
        api.merge(&NODE, None, node, &patch).await?;
    }
    Ok(true)
}
