//! What the rules use of the cluster: its Nodes by name and by address, and the names that no kubelet may have.

use std::collections::{BTreeMap, BTreeSet};

use time::OffsetDateTime;

use super::NodeNamePattern;
use crate::kube::csr_object::NodeObject;
use crate::kube::kubeadm::{ClusterConfig, Host, IpNet, San};
use crate::x509::Sans;

/// The Nodes of a cluster, by name and by address.
#[derive(Clone, Debug, Default)]
pub struct NodeIndex {
    nodes: BTreeMap<String, NodeObject>,
    /// The names of the Nodes with an IP address in their status, or with this name.
    owners: BTreeMap<Host, BTreeSet<String>>,
    /// When the Nodes of these names were created that do not exist any more.
    deleted: BTreeMap<String, OffsetDateTime>,
}

/// Largest number of deleted Nodes that are remembered. The one that was created first is forgotten: only a request from before
/// its creation depends on it.
const MAX_DELETED_NODES: usize = 10_000;

impl NodeIndex {
    /// Adds or replaces a Node. Returns true if something changed that a rule depends on; a heartbeat does not.
    pub fn insert(&mut self, node: NodeObject) -> bool {
        let is_same = self
            .nodes
            .get(&node.name)
            .is_some_and(|known| has_same_facts(known, &node));
        if !is_same {
            self.take(&node.name);
            for address in addresses_of(&node) {
                let owners = self.owners.entry(address).or_default();
                owners.insert(node.name.clone());
            }
        }
        self.nodes.insert(node.name.clone(), node);
        !is_same
    }

    /// Removes a Node that was deleted. Returns true if it was known.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(node) = self.take(name) else {
            return false;
        };
        self.deleted.insert(node.name, node.created);
        if self.deleted.len() > MAX_DELETED_NODES {
            let oldest = self.deleted.iter().min_by_key(|(_, created)| **created);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| self.deleted.remove(&name));
        }
        true
    }

    fn take(&mut self, name: &str) -> Option<NodeObject> {
        let node = self.nodes.remove(name)?;
        for address in addresses_of(&node) {
            if let Some(owners) = self.owners.get_mut(&address) {
                owners.remove(name);
                if owners.is_empty() {
                    self.owners.remove(&address);
                }
            }
        }
        Some(node)
    }

    /// Returns when the last Node of this name that was deleted had been created, if it is remembered.
    pub(super) fn last_deleted(&self, name: &str) -> Option<OffsetDateTime> {
        self.deleted.get(name).copied()
    }

    /// Returns the Node of this name.
    pub fn get(&self, name: &str) -> Option<&NodeObject> {
        self.nodes.get(name)
    }

    /// Returns the names of the Nodes that have this name, or report this IP address.
    pub fn owners(&self, address: &Host) -> impl Iterator<Item = &str> {
        let owners = self.owners.get(address);
        owners.into_iter().flatten().map(String::as_str)
    }

    /// Returns the names of all Nodes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }
}

fn has_same_facts(one: &NodeObject, other: &NodeObject) -> bool {
    NodeObject {
        resource_version: other.resource_version.clone(),
        ..one.clone()
    } == *other
}

/// Returns the name and the IP addresses of a Node. A DNS name in its status proves nothing: its kubelet wrote it.
fn addresses_of(node: &NodeObject) -> impl Iterator<Item = Host> {
    let own = Host::Dns(node.name.to_ascii_lowercase());
    let addresses = node.addresses.iter().cloned();
    addresses
        .filter(|address| matches!(address, Host::Ip(_)))
        .chain([own])
}

/// Namespaces of every cluster. Pods resolve a service as `NAME.NAMESPACE` too; other namespaces are not known here.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Names and addresses that belong to the control plane, to services or to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedNames {
    /// The networks of services and pods.
    networks: Vec<IpNet>,
    dns_domain: String,
    endpoint: Option<Host>,
    certified: BTreeSet<Host>,
    /// The domains of the wildcards among the certified names.
    wildcards: BTreeSet<String>,
    /// The names of registered certificates that contain the name of their node.
    patterns: Vec<NodeNamePattern>,
}

impl ReservedNames {
    /// Collects the names of a cluster. `certified` contains the names of all certificates of the control plane, among them
    /// the API server's with the shared endpoint, and this node's name and address.
    pub fn new(cluster: &ClusterConfig, certified: &Sans) -> ReservedNames {
        let endpoint = cluster.control_plane_endpoint.as_ref();
        let endpoint = endpoint.map(|endpoint| endpoint.host.clone());
        let networks = cluster.service_subnets.iter().chain(&cluster.pod_subnets);
        let mut reserved = ReservedNames {
            networks: networks.copied().collect(),
            dns_domain: cluster.dns_domain.to_ascii_lowercase(),
            certified: endpoint.iter().cloned().collect(),
            endpoint,
            ..ReservedNames::default()
        };
        for san in &cluster.apiserver_cert_sans {
            reserved.add(san);
        }
        for name in &certified.dns {
            reserved.add(&San::Dns(name.to_ascii_lowercase()));
        }
        let ips = certified.ips.iter();
        reserved.certified.extend(ips.map(|ip| Host::Ip(*ip)));
        reserved
    }

    /// Adds a name of a certificate; `*.` stands for any single label (RFC 6125, 6.4.3).
    pub fn add(&mut self, san: &San) {
        let host = match san {
            San::Ip(ip) => Host::Ip(*ip),
            San::Dns(name) => match name.strip_prefix("*.") {
                Some(domain) => {
                    self.wildcards.insert(domain.to_owned());
                    return;
                }
                None => Host::Dns(name.clone()),
            },
        };
        self.certified.insert(host);
    }

    /// Adds a name of a certificate that each node has with its own name in it.
    pub fn add_pattern(&mut self, pattern: NodeNamePattern) {
        self.patterns.push(pattern);
    }

    /// Returns true for the address or a DNS name of a service or a pod, and for every name in the cluster's domain. Names
    /// are in lower case.
    ///
    /// The form `NAME.NAMESPACE` is recognizable for the namespaces that every cluster has.
    pub(super) fn is_of_service(&self, address: &Host) -> bool {
        let name = match address {
            Host::Ip(ip) => return self.networks.iter().any(|net| net.contains(*ip)),
            Host::Dns(name) => name.as_str(),
        };
        let is_in = |domain: &str| {
            let rest = name.strip_suffix(domain);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let is_in_namespace = name.split_once('.').is_some_and(|(service, namespace)| {
            !service.is_empty() && NAMESPACES.contains(&namespace)
        });
        name == "kubernetes"
            || is_in_namespace
            || is_in("svc")
            || (!self.dns_domain.is_empty() && is_in(&self.dns_domain))
    }

    /// Returns true for the host at which all clients reach the API server.
    pub(super) fn is_endpoint(&self, address: &Host) -> bool {
        self.endpoint.as_ref() == Some(address)
    }

    /// Returns true for a name or an address in a certificate of the control plane.
    pub(super) fn is_certified(&self, address: &Host) -> bool {
        let is_under_wildcard = match address {
            Host::Dns(name) => name
                .split_once('.')
                .is_some_and(|(_, domain)| self.wildcards.contains(domain)),
            Host::Ip(_) => false,
        };
        is_under_wildcard || self.certified.contains(address)
    }

    /// Returns the node to whose registered certificate a name belongs, if one can have it.
    pub(super) fn node_of_pattern<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.patterns
            .iter()
            .find_map(|pattern| pattern.node_of(name))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::macros::datetime;

    use super::*;

    #[test]
    fn forgets_oldest_of_too_many_deleted_nodes() {
        let mut nodes = NodeIndex::default();
        let first = datetime!(2026-11-23 04:00 UTC);
        for number in 0..=MAX_DELETED_NODES {
            // The last one has the first name.
            let name = format!("w{:05}", MAX_DELETED_NODES - number);
            nodes.insert(NodeObject {
                created: first + Duration::from_secs(number as u64),
                ..node(&name)
            });
            assert!(nodes.remove(&name));
        }
        assert!(nodes.last_deleted("w00000").is_some());
        assert_eq!(nodes.last_deleted(&format!("w{MAX_DELETED_NODES}")), None);
    }

    fn node(name: &str) -> NodeObject {
        NodeObject {
            name: name.to_owned(),
            uid: String::new(),
            resource_version: String::new(),
            created: OffsetDateTime::UNIX_EPOCH,
            addresses: Vec::new(),
            has_unread_addresses: false,
            is_control_plane: false,
            is_deleting: false,
            ready: None,
        }
    }
}
