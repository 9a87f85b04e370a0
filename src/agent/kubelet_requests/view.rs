//! What the watches have shown of the cluster: unfinished requests, Nodes, and issued requests of bootstrap tokens.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::queue::{RequestQueue, Work};
use crate::cluster::watch::WatchChange;
use crate::kube::csr_object::{CsrObject, KubeletCertificate, NodeObject};
use crate::kube::names::{NODE_USER_PREFIX, TOKEN_USER_PREFIX};
use crate::kubelets::{IssuedRequest, NodeIndex, SigningOrder};
use crate::x509::Chain;

/// The state of the cluster.
#[derive(Default)]
pub(super) struct View {
    pub(super) queue: RequestQueue,
    pub(super) nodes: NodeIndex,
    /// Requests that were issued or are with the signer.
    pub(super) issued: Vec<IssuedRequest>,
    /// Their UIDs.
    issued_uids: HashSet<String>,
    /// The UIDs in each list of requests under way.
    listed_requests: BTreeMap<KubeletCertificate, HashSet<String>>,
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
                self.listed_requests.insert(certificate, HashSet::new());
            }
            WatchChange::Listed => {
                self.queue.listed(certificate);
                self.listed.insert(certificate);
                // A rule must not be satisfied only because a list is not complete.
                if let Some(uids) = self.listed_requests.remove(&certificate) {
                    self.forget_where(|one| {
                        one.is_written && one.certificate == certificate && !uids.contains(&one.uid)
                    });
                }
            }
            WatchChange::Present(object) => {
                if let Ok(Some(request)) = CsrObject::from_json(&object) {
                    self.remember_issued(&request, &object);
                    self.queue.observe(&request, now);
                    if let Some(uids) = self.listed_requests.get_mut(&certificate) {
                        uids.insert(request.uid);
                    }
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
        if !request.is_issued {
            return;
        }
        if self.issued_uids.contains(&request.uid) {
            return self.issue_written(&request.uid);
        }
        let user = request.requester.username.as_str();
        if let Some((node, key)) = identity_in_certificate(object)
            && (user.starts_with(TOKEN_USER_PREFIX)
                || user.strip_prefix(NODE_USER_PREFIX) == Some(&node))
        {
            self.remember(request, node, key, true);
        }
    }

    /// Takes in that the signer gets a request of a bootstrap token, so that no other one for the same node is sent at the
    /// same time.
    pub(super) fn begin_issue(&mut self, request: &CsrObject, order: &SigningOrder) {
        let is_of_token = request.requester.username.starts_with(TOKEN_USER_PREFIX);
        if is_of_token && !self.issued_uids.contains(&request.uid) {
            let key = order.csr.public_key().sha256();
            self.remember(request, order.node.clone(), key, false);
        }
    }

    /// Takes in that the certificate of a request was written.
    pub(super) fn issue_written(&mut self, uid: &str) {
        let mut issued = self.issued.iter_mut();
        if let Some(issued) = issued.find(|one| !one.is_written && one.uid == uid) {
            issued.is_written = true;
        }
    }

    /// Takes in the end of a request. Without a certificate, its name is free again.
    pub(super) fn end_issue(&mut self, uid: &str) {
        if self.issued_uids.contains(uid) {
            self.forget_and_wake(|one| one.uid == uid && !one.is_written);
        }
    }

    fn remember(&mut self, request: &CsrObject, node: String, key: [u8; 32], is_written: bool) {
        self.issued_uids.insert(request.uid.clone());
        self.issued.push(IssuedRequest {
            uid: request.uid.clone(),
            certificate: request.certificate,
            node,
            requester: request.requester.clone(),
            created: request.created,
            key,
            is_written,
        });
    }

    fn forget_issued(&mut self, uid: &str) {
        if self.issued_uids.contains(uid) {
            self.forget_and_wake(|one| one.uid == uid);
        }
    }

    /// Forgets requests, and wakes those that may have waited for the end of a token's.
    fn forget_and_wake(&mut self, is_over: impl Fn(&IssuedRequest) -> bool) {
        let mut over = self.issued.iter().filter(|one| is_over(one));
        let frees_name = over.any(|one| one.requester.username.starts_with(TOKEN_USER_PREFIX));
        self.forget_where(is_over);
        if frees_name {
            self.queue.nodes_changed();
        }
    }

    fn forget_where(&mut self, is_over: impl Fn(&IssuedRequest) -> bool) {
        let View {
            issued,
            issued_uids,
            ..
        } = self;
        issued.retain(|one| {
            let stays = !is_over(one);
            if !stays {
                issued_uids.remove(&one.uid);
            }
            stays
        });
    }
}

/// Returns the node in the certificate of an issued request, and the SHA-256 of its key.
fn identity_in_certificate(object: &Value) -> Option<(String, [u8; 32])> {
    use base64::Engine as _;
    let text = object.pointer("/status/certificate")?.as_str()?;
    let pem = base64::engine::general_purpose::STANDARD
        .decode(text)
        .ok()?;
    let chain = Chain::from_pem(&pem).ok()?;
    let leaf = chain.leaf();
    let name = leaf.subject().values("CN").next()?;
    let node = name.strip_prefix(NODE_USER_PREFIX)?;
    Some((node.to_owned(), leaf.public_key().sha256()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::x509::{
        Csr, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject, UsageExtensions,
    };

    fn request(uid: &str) -> CsrObject {
        let object = json!({
            "metadata": {"name": uid, "uid": uid, "resourceVersion": "1", "creationTimestamp": "2026-11-23T04:00:00Z"},
            "spec": {"signerName": KubeletCertificate::Client.signer_name(), "username": "system:bootstrap:abcdef"},
        });
        CsrObject::from_json(&object).unwrap().unwrap()
    }

    fn order() -> SigningOrder {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let profile = Profile {
            subject: Subject {
                common_name: "system:node:w1".to_owned(),
                organizations: vec!["system:nodes".to_owned()],
            },
            sans: Sans::default(),
            usages: vec![ExtendedUsage::ClientAuth],
            key: KeyAlgorithm::EcdsaP256,
            lifetime: std::time::Duration::from_secs(3600),
        };
        SigningOrder {
            certificate: KubeletCertificate::Client,
            node: "w1".to_owned(),
            csr: Csr::create(&profile, &key, UsageExtensions::Omitted).unwrap(),
            profile,
        }
    }

    #[test]
    fn request_of_token_counts_from_the_signer_to_its_deletion() {
        let mut view = View::default();
        let known = |view: &View| -> Vec<(String, bool)> {
            let issued = view.issued.iter();
            issued
                .map(|one| (one.uid.clone(), one.is_written))
                .collect()
        };
        for uid in ["refused", "written"] {
            view.begin_issue(&request(uid), &order());
            view.begin_issue(&request(uid), &order());
        }
        let both = [("refused".to_owned(), false), ("written".to_owned(), false)];
        assert_eq!(known(&view), both);
        view.issue_written("written");
        view.end_issue("refused");
        view.end_issue("written");
        let written = [("written".to_owned(), true)];
        assert_eq!(known(&view), written);
        // A list under way removes nothing, and a complete one what it does not contain.
        let now = Instant::now();
        view.begin_issue(&request("next"), &order());
        view.request(KubeletCertificate::Client, WatchChange::Listing, now);
        assert_eq!(known(&view).len(), 2);
        view.request(KubeletCertificate::Client, WatchChange::Listed, now);
        assert_eq!(known(&view), [("next".to_owned(), false)]);
    }
}
