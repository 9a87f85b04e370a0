//! Reads from the cluster's API what concerns a CA change: the nodes, and the ConfigMaps that publish CA certificates.
//!
//! The timeout is short, since a step does not depend on an answer.

use std::time::Duration;

use serde_json::Value;

use super::RUNBOOK;
use super::judge::named;
use super::objects;
use super::report::Nodes;
use crate::agent::Failure;
use crate::cluster::api::{Api, ApiError, CONFIG_MAP};
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::{
    AUTHENTICATION_CONFIG_MAP, Authority, CLIENT_CA_FILE, FRONT_PROXY_CA_FILE, SYSTEM_NAMESPACE,
};
use crate::x509::{Certificate, certificates_of};

const TIMEOUT: Duration = Duration::from_secs(5);

/// ConfigMaps that publish the CA certificates of an authority to programs that cannot read a node's files.
static PUBLISHED: [(Authority, PublishedCa); 4] = [
    (
        Authority::Ca,
        PublishedCa {
            namespace: "kube-public",
            name: "cluster-info",
            key: "kubeconfig",
            explain: || format!("new nodes learn the CA from it; {RUNBOOK}"),
            is_required: false,
        },
    ),
    (
        Authority::Ca,
        PublishedCa {
            namespace: SYSTEM_NAMESPACE,
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
            namespace: SYSTEM_NAMESPACE,
            name: AUTHENTICATION_CONFIG_MAP,
            key: CLIENT_CA_FILE,
            explain: || {
                "kube-apiserver publishes it within a minute after its file changes".to_owned()
            },
            is_required: false,
        },
    ),
    (
        Authority::FrontProxyCa,
        PublishedCa {
            namespace: SYSTEM_NAMESPACE,
            name: AUTHENTICATION_CONFIG_MAP,
            key: FRONT_PROXY_CA_FILE,
            explain: || {
                "extension API servers verify the front proxy with it, and kube-apiserver publishes it within a minute after its file changes".to_owned()
            },
            is_required: true,
        },
    ),
];

/// An entry of a ConfigMap that contains CA certificates.
struct PublishedCa {
    namespace: &'static str,
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
    let nodes = objects::list_proofs(api, authority.into())
        .await
        .map_err(|error| Failure::of_cluster("listing the nodes", error))?;
    let mut view = ClusterView {
        nodes: Nodes::Listed(nodes.into_keys().collect()),
        lacking: Vec::new(),
        notes: Vec::new(),
    };
    let Some(new) = new else {
        return Ok(view);
    };
    for published in published(authority) {
        // Absent or unreadable with this kubeconfig.
        let Ok(Some(message)) = published.lack(api, new).await else {
            continue;
        };
        if published.is_required {
            view.lacking.push(message)
        } else {
            view.notes.push(message)
        }
    }
    Ok(view)
}

/// Returns the ConfigMaps that lack the new CA and need it before the next step, in sentences.
///
/// # Errors
/// One of them cannot be read. An absent one lacks nothing.
pub(super) async fn lacking(
    api: &Api,
    authority: Authority,
    new: &Certificate,
) -> Result<Vec<String>, ApiError> {
    let mut lacking = Vec::new();
    for published in published(authority).filter(|one| one.is_required) {
        lacking.extend(published.lack(api, new).await?);
    }
    Ok(lacking)
}

fn published(authority: Authority) -> impl Iterator<Item = &'static PublishedCa> {
    let of_authority = PUBLISHED.iter().filter(move |(of, _)| *of == authority);
    of_authority.map(|(_, published)| published)
}

impl PublishedCa {
    /// Returns a sentence if the ConfigMap exists without the new CA.
    async fn lack(&self, api: &Api, new: &Certificate) -> Result<Option<String>, ApiError> {
        let PublishedCa {
            namespace, name, ..
        } = self;
        let found = api.read(&CONFIG_MAP, Some(namespace), name).await?;
        let lacks = found.is_some_and(|object| !contains(&object, self.key, new));
        let place = match *namespace {
            SYSTEM_NAMESPACE => String::new(),
            other => format!(" in {other}"),
        };
        Ok(lacks.then(|| {
            format!(
                "{name}{place} does not contain {}: {}",
                named(new),
                (self.explain)()
            )
        }))
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
