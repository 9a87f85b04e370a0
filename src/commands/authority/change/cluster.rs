//! What only the cluster's API tells of a CA change: which nodes there are, and what the ConfigMaps hold that others
//! publish. Read with short patience, since a node is changed whether or not somebody answers.

use std::time::Duration;

use serde_json::Value;

use super::RUNBOOK;
use super::judge::named;
use super::report::Nodes;
use crate::agent::Failure;
use crate::cluster::api::Api;
use crate::kube::names::Authority;
use crate::x509::{Certificate, certificates_of};

const PATIENCE: Duration = Duration::from_secs(5);
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// The ConfigMaps by which a CA comes to those that read no file of a node.
const MAPS: [(Authority, Map); 4] = [
    (
        Authority::Ca,
        Map {
            path: "/api/v1/namespaces/kube-public/configmaps/cluster-info",
            name: "cluster-info in kube-public",
            key: "kubeconfig",
            who: || format!("new nodes learn the CA from it; {RUNBOOK}"),
            blocks: false,
        },
    ),
    (
        Authority::Ca,
        Map {
            path: "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt",
            name: "kube-root-ca.crt",
            key: "ca.crt",
            who: || {
                "Pods trust the API server by it, and kube-controller-manager publishes it when it starts: it must have been restarted where it leads".to_owned()
            },
            blocks: true,
        },
    ),
    (
        Authority::Ca,
        Map {
            path: "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
            name: "extension-apiserver-authentication",
            key: "client-ca-file",
            who: || "kube-apiserver publishes it within a minute of its file".to_owned(),
            blocks: false,
        },
    ),
    (
        Authority::FrontProxyCa,
        Map {
            path: "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
            name: "extension-apiserver-authentication",
            key: "requestheader-client-ca-file",
            who: || {
                "extension API servers trust the front proxy by it, and kube-apiserver publishes it within a minute of its file".to_owned()
            },
            blocks: true,
        },
    ),
];

struct Map {
    path: &'static str,
    name: &'static str,
    key: &'static str,
    who: fn() -> String,
    /// Clients would be cut off.
    blocks: bool,
}

/// What the API says.
#[derive(Debug)]
pub struct Seen {
    /// The nodes that the authority matters to.
    pub nodes: Nodes,
    /// ConfigMaps that do not have the new CA, where that cuts clients off.
    pub lacking: Vec<String>,
    /// The same, where it does not.
    pub notes: Vec<String>,
}

impl Seen {
    /// Nobody was asked, or nobody answered.
    pub fn nothing(why: impl Into<String>) -> Self {
        Seen {
            nodes: Nodes::Unknown(why.into()),
            lacking: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// Asks, for at most a few seconds.
pub async fn look(api: &Api, authority: Authority, new: Option<&Certificate>) -> Seen {
    match tokio::time::timeout(PATIENCE, ask(api, authority, new)).await {
        Ok(Ok(seen)) => seen,
        Ok(Err(failure)) => Seen::nothing(failure.to_string()),
        Err(_) => Seen::nothing("the API server did not answer within 5 seconds"),
    }
}

async fn ask(api: &Api, authority: Authority, new: Option<&Certificate>) -> Result<Seen, Failure> {
    let list = api
        .document("/api/v1/nodes")
        .await
        .map_err(|error| Failure::of_cluster("listing the nodes", &error))?;
    let mut seen = Seen {
        nodes: Nodes::Listed(concerned(&list, authority)),
        lacking: Vec::new(),
        notes: Vec::new(),
    };
    let Some(new) = new else {
        return Ok(seen);
    };
    for (_, map) in MAPS.iter().filter(|(of, _)| *of == authority) {
        // One that is not there, or not ours to read, is nobody's.
        let Ok(object) = api.document(map.path).await else {
            continue;
        };
        if !holds(&object, map.key, new) {
            let words = format!("{} does not hold {}: {}", map.name, named(new), (map.who)());
            match map.blocks {
                true => seen.lacking.push(words),
                false => seen.notes.push(words),
            }
        }
    }
    Ok(seen)
}

/// Every node has the cluster's CA; the others are the control plane's, as far as its nodes are labelled.
fn concerned(list: &Value, authority: Authority) -> std::collections::BTreeSet<String> {
    let items = list.get("items").and_then(Value::as_array);
    let names = |wanted: &dyn Fn(&Value) -> bool| {
        let items = items.into_iter().flatten();
        items
            .filter(|node| wanted(node))
            .filter_map(|node| node.pointer("/metadata/name")?.as_str())
            .map(str::to_owned)
            .collect::<std::collections::BTreeSet<_>>()
    };
    let labelled = names(&|node| {
        let labels = node.pointer("/metadata/labels");
        labels.is_some_and(|labels| labels.get(CONTROL_PLANE).is_some())
    });
    match authority {
        Authority::EtcdCa | Authority::FrontProxyCa if !labelled.is_empty() => labelled,
        _ => names(&|_| true),
    }
}

fn holds(object: &Value, key: &str, new: &Certificate) -> bool {
    let text = object
        .get("data")
        .and_then(|data| data.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default();
    let data = match key {
        "kubeconfig" => crate::kube::kubeconfig::Kubeconfig::parse(text)
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
    fn etcd_is_the_control_planes_and_the_ca_is_everybodys() {
        let label = json!({(CONTROL_PLANE): ""});
        let list = json!({"items": [
            {"metadata": {"name": "cp1", "labels": label}},
            {"metadata": {"name": "w1", "labels": {"zone": "a"}}},
        ]});
        let names = |authority| concerned(&list, authority).into_iter().collect::<Vec<_>>();
        assert_eq!(names(Authority::Ca), ["cp1", "w1"]);
        assert_eq!(names(Authority::EtcdCa), ["cp1"]);
        assert_eq!(names(Authority::FrontProxyCa), ["cp1"]);
        let unlabelled = json!({"items": [{"metadata": {"name": "cp1"}}]});
        assert_eq!(concerned(&unlabelled, Authority::EtcdCa).len(), 1);
    }
}
