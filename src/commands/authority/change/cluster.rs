//! Reads from the cluster's API what concerns a CA change: the nodes, and the ConfigMaps that publish CA certificates.
//!
//! The timeout is short, since a step does not depend on an answer.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::RUNBOOK;
use super::judge::named;
use super::report::Nodes;
use crate::agent::Failure;
use crate::cluster::api::Api;
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::Authority;
use crate::x509::{Certificate, certificates_of};

const TIMEOUT: Duration = Duration::from_secs(5);
const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";

/// ConfigMaps that publish the CA certificates of an authority to programs that cannot read a node's files.
const PUBLISHED: [(Authority, PublishedCa); 4] = [
    (
        Authority::Ca,
        PublishedCa {
            path: "/api/v1/namespaces/kube-public/configmaps/cluster-info",
            name: "cluster-info in kube-public",
            key: "kubeconfig",
            explain: || format!("new nodes learn the CA from it; {RUNBOOK}"),
            is_required: false,
        },
    ),
    (
        Authority::Ca,
        PublishedCa {
            path: "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt",
            name: "kube-root-ca.crt",
            key: "ca.crt",
            explain: || {
                "Pods verify the API server with it, and kube-controller-manager publishes it at start (restart the kube-controller-manager that is the leader)".to_owned()
            },
            is_required: true,
        },
    ),
    (
        Authority::Ca,
        PublishedCa {
            path: "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
            name: "extension-apiserver-authentication",
            key: "client-ca-file",
            explain: || {
                "kube-apiserver publishes it within a minute after its file changes".to_owned()
            },
            is_required: false,
        },
    ),
    (
        Authority::FrontProxyCa,
        PublishedCa {
            path: "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
            name: "extension-apiserver-authentication",
            key: "requestheader-client-ca-file",
            explain: || {
                "extension API servers verify the front proxy with it, and kube-apiserver publishes it within a minute after its file changes".to_owned()
            },
            is_required: true,
        },
    ),
];

/// An entry of a ConfigMap that contains CA certificates.
struct PublishedCa {
    path: &'static str,
    name: &'static str,
    key: &'static str,
    /// Returns which programs use the entry, and which one writes it.
    explain: fn() -> String,
    /// Clients lose access if the entry lacks the new CA.
    is_required: bool,
}

/// The response of the cluster's API.
#[derive(Debug)]
pub struct ClusterView {
    /// Nodes that use the authority.
    pub nodes: Nodes,
    /// ConfigMaps that lack the new CA and need it before the next step.
    pub lacking: Vec<String>,
    /// ConfigMaps that lack the new CA without blocking the next step.
    pub notes: Vec<String>,
}

impl ClusterView {
    /// Returns the view of a cluster that was not read, for this reason.
    pub fn unknown(why: impl Into<String>) -> Self {
        ClusterView {
            nodes: Nodes::Unknown(why.into()),
            lacking: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// Reads the cluster, for at most five seconds.
pub async fn view(api: &Api, authority: Authority, new: Option<&Certificate>) -> ClusterView {
    match tokio::time::timeout(TIMEOUT, read(api, authority, new)).await {
        Ok(Ok(view)) => view,
        Ok(Err(failure)) => ClusterView::unknown(failure.to_string()),
        Err(_) => ClusterView::unknown("the API server did not answer within 5 seconds"),
    }
}

async fn read(
    api: &Api,
    authority: Authority,
    new: Option<&Certificate>,
) -> Result<ClusterView, Failure> {
    let list = api
        .document("/api/v1/nodes")
        .await
        .map_err(|error| Failure::of_cluster("listing the nodes", error))?;
    let mut view = ClusterView {
        nodes: Nodes::Listed(users(&list, authority)),
        lacking: Vec::new(),
        notes: Vec::new(),
    };
    let Some(new) = new else {
        return Ok(view);
    };
    for (_, published) in PUBLISHED.iter().filter(|(of, _)| *of == authority) {
        // Absent or unreadable with this kubeconfig.
        let Ok(object) = api.document(published.path).await else {
            continue;
        };
        if !contains(&object, published.key, new) {
            let message = format!(
                "{} does not contain {}: {}",
                published.name,
                named(new),
                (published.explain)()
            );
            match published.is_required {
                true => view.lacking.push(message),
                false => view.notes.push(message),
            }
        }
    }
    Ok(view)
}

/// Returns the nodes that use an authority: all nodes for the cluster CA, control-plane nodes for the others. If no node
/// has the control-plane label, all nodes are returned.
fn users(list: &Value, authority: Authority) -> BTreeSet<String> {
    let items = list.get("items").and_then(Value::as_array);
    let names = |wanted: &dyn Fn(&Value) -> bool| {
        let items = items.into_iter().flatten();
        items
            .filter(|node| wanted(node))
            .filter_map(|node| node.pointer("/metadata/name")?.as_str())
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    let labelled = names(&|node| {
        let labels = node.pointer("/metadata/labels");
        labels.is_some_and(|labels| labels.get(CONTROL_PLANE_LABEL).is_some())
    });
    match authority {
        Authority::EtcdCa | Authority::FrontProxyCa if !labelled.is_empty() => labelled,
        _ => names(&|_| true),
    }
}

/// Returns whether the entry of a ConfigMap contains a certificate.
fn contains(object: &Value, key: &str, new: &Certificate) -> bool {
    let text = object
        .get("data")
        .and_then(|data| data.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default();
    let data = match key {
        "kubeconfig" => Kubeconfig::parse(text)
            .and_then(|document| document.to_join())
            .ok()
            .and_then(|current| current.authority)
            .unwrap_or_default(),
        _ => text.as_bytes().to_vec(),
    };
    certificates_of(&data).is_ok_and(|certificates| certificates.contains(new))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_all_nodes_for_ca_and_control_plane_for_others() {
        let label = json!({(CONTROL_PLANE_LABEL): ""});
        let list = json!({"items": [
            {"metadata": {"name": "cp1", "labels": label}},
            {"metadata": {"name": "w1", "labels": {"zone": "a"}}},
        ]});
        let names = |authority| users(&list, authority).into_iter().collect::<Vec<_>>();
        assert_eq!(names(Authority::Ca), ["cp1", "w1"]);
        assert_eq!(names(Authority::EtcdCa), ["cp1"]);
        assert_eq!(names(Authority::FrontProxyCa), ["cp1"]);
        let unlabelled = json!({"items": [{"metadata": {"name": "cp1"}}]});
        assert_eq!(users(&unlabelled, Authority::EtcdCa).len(), 1);
    }
}
