//! What the rules use of the cluster: its Nodes by name and by address, and the names that no kubelet may have.

use std::collections::{BTreeMap, BTreeSet};

use crate::kube::csr_object::NodeObject;
use crate::kube::kubeadm::{ClusterConfig, Host, IpNet};
use crate::x509::Sans;

/// The Nodes of a cluster, by name and by address.
#[derive(Clone, Debug, Default)]
pub struct NodeIndex {
    nodes: BTreeMap<String, NodeObject>,
    /// The names of the Nodes with an address, in status or as their name.
    owners: BTreeMap<Host, BTreeSet<String>>,
}

impl NodeIndex {
    /// Adds or replaces a Node. Returns true if something changed that a rule depends on; a heartbeat does not.
    pub fn insert(&mut self, node: NodeObject) -> bool {
        let is_same = self
            .nodes
            .get(&node.name)
            .is_some_and(|known| has_same_facts(known, &node));
        if !is_same {
            self.remove(&node.name);
            for address in addresses_of(&node) {
                let owners = self.owners.entry(address).or_default();
                owners.insert(node.name.clone());
            }
        }
        self.nodes.insert(node.name.clone(), node);
        !is_same
    }

    /// Removes a Node. Returns true if it was known.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(node) = self.nodes.remove(name) else {
            return false;
        };
        for address in addresses_of(&node) {
            if let Some(owners) = self.owners.get_mut(&address) {
                owners.remove(name);
                if owners.is_empty() {
                    self.owners.remove(&address);
                }
            }
        }
        true
    }

    /// Returns the Node of this name.
    pub fn get(&self, name: &str) -> Option<&NodeObject> {
        self.nodes.get(name)
    }

    /// Returns the names of the Nodes that have this name or address.
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

fn addresses_of(node: &NodeObject) -> impl Iterator<Item = Host> {
    let own = Host::Dns(node.name.to_ascii_lowercase());
    node.addresses.iter().cloned().chain([own])
}

/// Names and addresses that belong to the API server, to services or to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedNames {
    service_subnets: Vec<IpNet>,
    dns_domain: String,
    api_server: BTreeSet<Host>,
}

impl ReservedNames {
    /// Collects the names of a cluster. `api_server` contains the names of the API server's own certificate, among them
    /// the shared endpoint and this node's name and address.
    pub fn new(cluster: &ClusterConfig, api_server: &Sans) -> ReservedNames {
        let names = api_server.dns.iter().map(|name| Host::Dns(name.clone()));
        let ips = api_server.ips.iter().map(|ip| Host::Ip(*ip));
        let endpoint = cluster.control_plane_endpoint.iter();
        let endpoint = endpoint.map(|endpoint| endpoint.host.clone());
        ReservedNames {
            service_subnets: cluster.service_subnets.clone(),
            dns_domain: cluster.dns_domain.to_ascii_lowercase(),
            api_server: names.chain(ips).chain(endpoint).collect(),
        }
    }

    /// Returns true for the address or a DNS name of a service or a pod. Names are in lower case.
    ///
    /// The form `NAME.NAMESPACE`, which pods can resolve too, is not recognizable. It is refused as any other name that is
    /// not an address of the Node.
    pub(super) fn is_of_service(&self, address: &Host) -> bool {
        match address {
            Host::Ip(ip) => self.service_subnets.iter().any(|net| net.contains(*ip)),
            Host::Dns(name) => {
                let ends_in = |zone: &str| {
                    name == zone
                        || name
                            .strip_suffix(zone)
                            .is_some_and(|rest| rest.ends_with('.'))
                };
                let in_cluster = |kind: &str| match self.dns_domain.as_str() {
                    "" => false,
                    domain => ends_in(&format!("{kind}.{domain}")),
                };
                matches!(name.as_str(), "kubernetes" | "kubernetes.default")
                    || ends_in("svc")
                    || in_cluster("svc")
                    || in_cluster("pod")
            }
        }
    }

    /// Returns true for a name or an address at which an API server is reached.
    pub(super) fn is_of_api_server(&self, address: &Host) -> bool {
        self.api_server.contains(address)
    }
}
