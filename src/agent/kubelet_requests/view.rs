//! What the watches have shown of the cluster: unfinished and approved requests, Nodes, and to which Node a name belongs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::process::SIGNER_REFUSALS;
use super::queue::{RequestQueue, WakeTopic, Work};
use crate::cluster::watch::WatchChange;
use crate::kube::csr_object::{CsrObject, KubeletCertificate, NodeObject};
use crate::kube::kubeadm::Host;
use crate::kube::pod_request::PodRequest;
use crate::kubelets::{
    ApprovedRequest, ISSUANCE_WINDOW, IssuanceIndex, IssuanceProgress, NodeBindings, NodeIndex,
    PodIssuance, RequestedIdentity,
};
use crate::x509::Chain;

/// Number of waiting requests of a user that are judged again after one of its nodes was registered.
const WOKEN_PER_NODE: usize = 2;

/// The state of the cluster.
#[derive(Default)]
pub(super) struct View {
    pub(super) queue: RequestQueue,
    pub(super) nodes: NodeIndex,
    pub(super) bindings: NodeBindings,
    pub(super) issued: IssuanceIndex,
    pub(super) pods: PodIssuance,
    /// UIDs in the lists under way.
    listed_uids: BTreeMap<KubeletCertificate, BTreeSet<String>>,
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
    pub(super) fn node(&mut self, change: WatchChange<NodeParts>, now: OffsetDateTime) {
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
                gone.iter().for_each(|name| self.remove_node(name, now));
                let nodes = &self.nodes;
                self.bindings.see_all(|name| nodes.get(name).is_some(), now);
                self.has_nodes = true;
            }
            WatchChange::Deleted(node) => {
                let known = self.nodes.get(&node.metadata.name);
                if known.is_some_and(|known| known.uid == node.metadata.uid) {
                    self.remove_node(&node.metadata.name, now);
                }
            }
        }
    }

    /// Takes in the present state of a Node.
    pub(super) fn put_node(&mut self, node: NodeObject) {
        self.bindings.see(&node);
        let before = self.nodes.get(&node.name).cloned();
        let (name, addresses) = (node.name.clone(), node.addresses.clone());
        if !self.nodes.insert(node) {
            return;
        }
        if before.is_none() {
            let users = self.issued.of_node(&name).map(|issued| issued.user.clone());
            let users: BTreeSet<String> = users.collect();
            for user in users {
                let topic = WakeTopic::Limit(user);
                self.queue.wake_waiting(topic, WOKEN_PER_NODE);
            }
        }
        let former = before.map(|node| node.addresses).unwrap_or_default();
        self.wake_for_node(&name, &former, &addresses);
    }

    /// Removes a Node that does not exist.
    pub(super) fn remove_node(&mut self, name: &str, now: OffsetDateTime) {
        self.bindings.see_none(name, now);
        let former = self.nodes.get(name).map(|node| node.addresses.clone());
        if self.nodes.remove(name) {
            self.wake_for_node(name, &former.unwrap_or_default(), &[]);
        }
    }

    /// Takes in the stored bindings, which an administrator may have changed.
    pub(super) fn put_bindings(&mut self, object: &Value) {
        for name in self.bindings.store(Some(object)) {
            let topic = WakeTopic::Node(Host::Dns(name));
            self.queue.wake_waiting(topic, usize::MAX);
        }
    }

    /// Wakes the requests that a change of a Node concerns: of this name, or for an address that it has or had.
    fn wake_for_node(&mut self, name: &str, former: &[Host], present: &[Host]) {
        let lost = former.iter().filter(|host| !present.contains(host));
        let gained = present.iter().filter(|host| !former.contains(host));
        let own = Host::Dns(name.to_owned());
        let hosts: BTreeSet<&Host> = lost.chain(gained).chain([&own]).collect();
        for host in hosts {
            let topic = WakeTopic::Node(host.clone());
            self.queue.wake_waiting(topic, usize::MAX);
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
                self.listed_uids.insert(certificate, BTreeSet::new());
            }
            WatchChange::Listed => {
                self.queue.listed(certificate);
                let uids = self.listed_uids.remove(&certificate);
                self.issued.retain(certificate, &uids.unwrap_or_default());
                self.listed.insert(certificate);
            }
            WatchChange::Present(object) => {
                if let Ok(Some(request)) = CsrObject::from_json(&object) {
                    if let Some(uids) = self.listed_uids.get_mut(&certificate) {
                        uids.insert(request.uid.clone());
                    }
                    self.remember_issued(&request, &object);
                    self.queue.observe((&request).into(), now);
                }
            }
            WatchChange::Deleted(object) => {
                if let Ok(Some(request)) = CsrObject::from_json(&object) {
                    self.put_issued(&request.uid, None);
                    self.queue.deleted(&request.uid);
                }
            }
        }
    }

    /// Takes in a change of the requests for pods.
    pub(super) fn pod_request(&mut self, change: WatchChange<Value>, now: Instant) {
        match change {
            WatchChange::Listing => self.queue.listing(KubeletCertificate::Pod),
            WatchChange::Listed => self.queue.listed(KubeletCertificate::Pod),
            WatchChange::Present(object) => {
                if let Ok(Some(request)) = PodRequest::from_json(&object) {
                    self.queue.observe((&request).into(), now);
                }
            }
            WatchChange::Deleted(object) => {
                if let Ok(Some(request)) = PodRequest::from_json(&object) {
                    self.queue.deleted(&request.uid);
                }
            }
        }
    }

    /// Returns true once the Nodes and all requests of kubelets for themselves are known: their limits depend on them.
    pub(super) fn is_complete(&self) -> bool {
        self.has_nodes && self.listed.len() == KubeletCertificate::OWN.len()
    }

    /// Returns the next request to be processed; none before the Nodes and the issued requests are known.
    pub(super) fn take(&mut self, now: Instant) -> Option<Work> {
        if self.is_complete() {
            self.queue.take(now)
        } else {
            None
        }
    }

    /// Returns when the next wait ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.next_due()
    }

    /// Takes in the present state of a request for the limits.
    pub(super) fn remember_issued(&mut self, request: &CsrObject, object: &Value) {
        let progress = progress_of(request, object);
        let known = self.issued.get(&request.uid);
        if known.map(|known| known.progress) == progress {
            return;
        }
        let identity = match known {
            Some(known) => Some(known.identity.clone()),
            None => RequestedIdentity::of(request),
        };
        let node = identity.as_ref().map(|identity| identity.node.clone());
        let present = progress
            .zip(identity)
            .map(|(progress, identity)| ApprovedRequest {
                uid: request.uid.clone(),
                name: request.name.clone(),
                created: request.created,
                certificate: request.certificate,
                user: request.requester.username.clone(),
                identity,
                progress,
            });
        self.put_issued(&request.uid, present);
        // The later request is signed once the ones before it have failed.
        let abandoned = node.map(|node| self.issued.abandoned_for(request, &node));
        let abandoned = abandoned.unwrap_or_default();
        abandoned.iter().for_each(|uid| self.queue.wake(uid));
    }

    fn put_issued(&mut self, uid: &str, present: Option<ApprovedRequest>) {
        let known = self.issued.remove(uid);
        if let Some(present) = present {
            self.issued.insert(present);
        }
        if let Some(known) = known {
            let topic = WakeTopic::Repeated(known.identity);
            self.queue.wake_waiting(topic, usize::MAX);
        }
    }
}

/// Returns what has followed the approval of a request; `None` without one, and if a rule refused the request.
fn progress_of(request: &CsrObject, object: &Value) -> Option<IssuanceProgress> {
    let created = request.created;
    if request.is_issued {
        let leaf = leaf_of(object);
        let unknown = created + ISSUANCE_WINDOW;
        return Some(IssuanceProgress::Issued {
            since: leaf.map_or(created, |(since, _)| since.max(created)),
            until: leaf.map_or(unknown, |(_, until)| until),
        });
    }
    match request.condition("Failed") {
        Some(failed) if SIGNER_REFUSALS.contains(&failed.reason.as_str()) => {
            Some(IssuanceProgress::Refused)
        }
        Some(_) => None,
        None => request
            .condition("Approved")
            .map(|_| IssuanceProgress::Approved),
    }
}

/// Returns the validity of the certificate of an issued request.
fn leaf_of(object: &Value) -> Option<(OffsetDateTime, OffsetDateTime)> {
    let chain = Chain::from_pem(&certificate_of(object)?).ok()?;
    Some((chain.leaf().not_before(), chain.leaf().not_after()))
}

/// Returns the certificate of an issued request, in PEM.
pub(super) fn certificate_of(object: &Value) -> Option<Vec<u8>> {
    use base64::Engine as _;
    let text = object.pointer("/status/certificate")?.as_str()?;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use serde_json::json;

    use super::super::queue::{RequestWait, WorkResult};
    use super::*;
    use crate::x509::{Csr, KeyAlgorithm, PrivateKey, Profile, Sans, Subject, UsageExtensions};

    const CLIENT: KubeletCertificate = KubeletCertificate::Client;

    /// Returns an approved request of `w1`, with a key of its own.
    fn approved(name: &str, created: &str) -> Value {
        let algorithm = KeyAlgorithm::EcdsaP256;
        let key = PrivateKey::generate(algorithm).unwrap();
        let profile = Profile {
            subject: Subject::new("system:node:w1", &["system:nodes"]),
            sans: Sans::default(),
            usages: Vec::new(),
            key: algorithm,
            lifetime: ISSUANCE_WINDOW,
        };
        let csr = Csr::create(&profile, &key, UsageExtensions::Omitted).unwrap();
        json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": created},
            "spec": {
                "signerName": CLIENT.signer_name(),
                "request": BASE64_STANDARD.encode(csr.to_pem()),
                "username": "system:node:w1",
            },
            "status": {"conditions": [{"type": "Approved", "status": "True"}]},
        })
    }

    #[test]
    fn later_request_ends_wait_of_those_that_its_kubelet_abandoned() {
        let (mut view, now) = (View::default(), Instant::now());
        let mut processed = |name, created| {
            let object = approved(name, created);
            view.request(CLIENT, WatchChange::Present(object), now);
            let mut names = Vec::new();
            while let Some(work) = view.queue.take(now) {
                let result = WorkResult::Wait {
                    wait: RequestWait::default(),
                    attempts: work.attempts,
                };
                view.queue.ended(&work, result, now);
                names.push(work.name);
            }
            names
        };
        for (name, created, expected) in [
            ("csr-1", "2026-11-23T04:00:00Z", vec!["csr-1"]),
            ("csr-2", "2026-11-23T04:14:59Z", vec!["csr-2"]),
            ("csr-3", "2026-11-23T04:15:00Z", vec!["csr-1", "csr-3"]),
        ] {
            assert_eq!(processed(name, created), expected);
        }
    }
}
