//! What the watches have shown of the cluster: unfinished requests, Nodes, and issued requests of bootstrap tokens.

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::queue::{RequestQueue, Work};
use crate::cluster::watch::WatchChange;
use crate::kube::csr_object::{CsrObject, KubeletCertificate, NodeObject};
use crate::kube::names::{NODE_USER_PREFIX, TOKEN_USER_PREFIX};
use crate::kubelets::{IssuedRequest, NodeIndex};
use crate::x509::Chain;

/// The state of the cluster.
#[derive(Default)]
pub(super) struct View {
    pub(super) queue: RequestQueue,
    pub(super) nodes: NodeIndex,
    /// Issued client requests of bootstrap tokens, and their UIDs in the same order.
    pub(super) issued: Vec<IssuedRequest>,
    issued_uids: Vec<String>,
    /// Names of the Nodes in the list under way.
    listed_nodes: HashSet<String>,
    has_nodes: bool,
    /// The certificates whose requests were listed completely.
    listed: BTreeSet<KubeletCertificate>,
}

/// The parts of a Node that are read. A Node has some 20 KiB, most of them names of images.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct NodeParts {
    metadata: NodeMetadataParts,
    #[serde(default)]
    status: NodeStatusParts,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeMetadataParts {
    name: String,
    uid: String,
    resource_version: String,
    creation_timestamp: Value,
    #[serde(default)]
    deletion_timestamp: Value,
    #[serde(default)]
    labels: Value,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct NodeStatusParts {
    addresses: Value,
    conditions: Value,
}

impl NodeParts {
    fn object(&self) -> Option<NodeObject> {
        let value = serde_json::to_value(self).ok()?;
        NodeObject::from_json(&value).ok()
    }
}

impl View {
    /// Takes in a change of the Nodes.
    pub(super) fn node(&mut self, change: WatchChange<NodeParts>) {
        match change {
            WatchChange::Listing => self.listed_nodes.clear(),
            WatchChange::Present(node) => {
                if let Some(node) = node.object() {
                    self.listed_nodes.insert(node.name.clone());
                    self.put_node(node);
                }
            }
            WatchChange::Listed => {
                let listed = std::mem::take(&mut self.listed_nodes);
                let names = self.nodes.names().map(str::to_owned);
                let gone: Vec<String> = names.filter(|name| !listed.contains(name)).collect();
                gone.iter().for_each(|name| self.remove_node(name));
                self.has_nodes = true;
            }
            WatchChange::Deleted(node) => {
                let known = self.nodes.get(&node.metadata.name);
                if known.is_some_and(|known| known.uid == node.metadata.uid) {
                    self.remove_node(&node.metadata.name);
                }
            }
        }
    }

    /// Takes in the present state of a Node.
    pub(super) fn put_node(&mut self, node: NodeObject) {
        if self.nodes.insert(node) {
            self.queue.nodes_changed();
        }
    }

    /// Removes a Node that does not exist.
    pub(super) fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name) {
            self.queue.nodes_changed();
        }
    }

    /// Takes in a change of the requests for `certificate`.
    pub(super) fn request(
        &mut self,
        certificate: KubeletCertificate,
        change: WatchChange<Value>,
        now: Instant,
    ) {
        match change {
            WatchChange::Listing => {
                self.queue.listing(certificate);
                if certificate == KubeletCertificate::Client {
                    self.issued.clear();
                    self.issued_uids.clear();
                }
            }
            WatchChange::Listed => {
                self.queue.listed(certificate);
                self.listed.insert(certificate);
            }
            WatchChange::Present(object) => {
                if let Ok(Some(request)) = CsrObject::from_json(&object) {
                    self.remember_issued(&request, &object);
                    self.queue.observe(&request, now);
                }
            }
            WatchChange::Deleted(object) => {
                if let Ok(Some(request)) = CsrObject::from_json(&object) {
                    self.forget_issued(&request.uid);
                    self.queue.deleted(&request);
                }
            }
        }
    }

    /// Returns true once the Nodes and all requests are known.
    pub(super) fn is_complete(&self) -> bool {
        self.has_nodes && self.listed.len() == KubeletCertificate::ALL.len()
    }

    /// Returns the next request to be processed; none before the Nodes and the issued requests are known.
    pub(super) fn take(&mut self, now: Instant) -> Option<Work> {
        match self.is_complete() {
            true => self.queue.take(now),
            false => None,
        }
    }

    /// Returns when the next wait ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.next_due()
    }

    pub(super) fn remember_issued(&mut self, request: &CsrObject, object: &Value) {
        let is_of_token = request.requester.username.starts_with(TOKEN_USER_PREFIX);
        if !request.is_issued || !is_of_token || self.issued_uids.contains(&request.uid) {
            return;
        }
        if let Some(node) = node_in_certificate(object) {
            self.issued_uids.push(request.uid.clone());
            self.issued.push(IssuedRequest {
                node,
                requester: request.requester.clone(),
            });
        }
    }

    fn forget_issued(&mut self, uid: &str) {
        if let Some(at) = self.issued_uids.iter().position(|known| known == uid) {
            self.issued_uids.swap_remove(at);
            self.issued.swap_remove(at);
        }
    }
}

/// Returns the node in the certificate of an issued request.
fn node_in_certificate(object: &Value) -> Option<String> {
    use base64::Engine as _;
    let text = object.pointer("/status/certificate")?.as_str()?;
    let pem = base64::engine::general_purpose::STANDARD
        .decode(text)
        .ok()?;
    let chain = Chain::from_pem(&pem).ok()?;
    let name = chain.leaf().subject().values("CN").next()?;
    name.strip_prefix(NODE_USER_PREFIX).map(str::to_owned)
}
