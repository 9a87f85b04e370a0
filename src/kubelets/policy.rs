//! The configured policy for requests of kubelets.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::kube::csr_object::{CsrRequester, KubeletCertificate};
use crate::kube::kubeadm::{InvalidValue, IpNet, is_dns_subdomain};
use crate::kube::names::{JOINING_NODES_GROUP, TOKEN_USER_PREFIX};
use crate::x509::KeyAlgorithm;

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What nodepki does with requests of kubelets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletPolicy {
    /// True to sign approved requests that satisfy the rules. Nothing is approved or denied without it.
    pub sign: bool,
    /// True to approve requests for serving certificates.
    pub approve_serving: bool,
    /// True to approve requests for client certificates.
    pub approve_client: bool,
    /// True to sign PodCertificateRequests for client certificates of pods.
    pub sign_pods: bool,
    /// Longest lifetime of a certificate, which a kubelet may shorten.
    pub lifetime: Duration,
    /// Longest lifetime of a certificate that a bootstrap token requests, if [`KubeletPolicy::lifetime`] is not shorter.
    pub token_lifetime: Duration,
    /// Key types of which certificates are signed.
    pub keys: Vec<KeyAlgorithm>,
    /// DNS names that a serving certificate may contain in addition to the Node's name.
    pub names: Vec<NodeNamePattern>,
    /// Domains of a cloud. A serving certificate may contain a name directly below one that the Node reports, if its first
    /// label is the Node's name or is made of one of its addresses.
    pub domains: Vec<String>,
    /// Networks that contain all addresses of kubelets; empty for any private address.
    pub networks: Vec<IpNet>,
    /// Groups of the bootstrap tokens that may join nodes.
    pub token_groups: Vec<String>,
    /// Names of the nodes that a group of tokens may join; a group that is missing may join any.
    pub node_names: BTreeMap<String, Vec<NodeNameRange>>,
    /// Largest number of nodes for which one bootstrap token gets client certificates within an hour.
    pub nodes_per_token: u32,
    /// Names of nodes for which no certificate is signed.
    pub revoked: Vec<String>,
    /// Largest number of requests to the signer per second.
    pub requests_per_second: u32,
    /// Name of the Lease in `kube-system` that selects the node that signs.
    pub lease: String,
}

impl Default for KubeletPolicy {
    fn default() -> Self {
        KubeletPolicy {
            sign: false,
            approve_serving: false,
            approve_client: false,
            sign_pods: false,
            lifetime: YEAR,
            token_lifetime: WEEK,
            keys: KeyAlgorithm::ALL.to_vec(),
            names: Vec::new(),
            domains: Vec::new(),
            networks: Vec::new(),
            token_groups: vec![JOINING_NODES_GROUP.to_owned()],
            node_names: BTreeMap::new(),
            nodes_per_token: 1000,
            revoked: Vec::new(),
            requests_per_second: 50,
            lease: "nodepki-kubelets".to_owned(),
        }
    }
}

impl KubeletPolicy {
    /// Returns the certificates that are signed, if any are.
    pub fn certificates(&self) -> &'static [KubeletCertificate] {
        if self.sign_pods {
            &KubeletCertificate::ALL
        } else {
            &KubeletCertificate::OWN
        }
    }

    /// Returns the longest lifetime of a certificate for this requester.
    pub(super) fn longest_lifetime(&self, requester: &CsrRequester) -> Duration {
        if requester.username.starts_with(TOKEN_USER_PREFIX) {
            self.lifetime.min(self.token_lifetime)
        } else {
            self.lifetime
        }
    }
}

/// A DNS name with the placeholder `{node}`, as in `{node}.nodes.example.com`.
///
/// Without the placeholder, each node could have the name of any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNamePattern(String);

const NODE_PLACEHOLDER: &str = "{node}";

impl NodeNamePattern {
    /// Returns the name for a node.
    pub fn of(&self, node: &str) -> String {
        self.0.replace(NODE_PLACEHOLDER, node)
    }

    /// Returns the node to which the pattern gives a name, if it gives it to any.
    pub(super) fn node_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        let (before, after) = self.0.split_once(NODE_PLACEHOLDER)?;
        let node = name.strip_prefix(before)?.strip_suffix(after)?;
        is_dns_subdomain(node).then_some(node)
    }

    /// Returns the number of bytes that are the same for all nodes.
    pub(super) fn fixed_len(&self) -> usize {
        self.0.len() - NODE_PLACEHOLDER.len()
    }
}

impl fmt::Display for NodeNamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeNamePattern {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let pattern = NodeNamePattern(text.to_owned());
        let message = if text.matches(NODE_PLACEHOLDER).count() != 1 {
            "does not contain {node} exactly once, so it would allow one name for every node"
        } else if !is_dns_subdomain(&pattern.of("node")) {
            "does not become a DNS name in lower case when {node} is replaced"
        } else {
            return Ok(pattern);
        };
        Err(InvalidValue {
            message: format!("{text:?} {message}"),
            fix: "write a name such as {node}.nodes.example.com".to_owned(),
        })
    }
}

/// Names of nodes, with at most one `*` in each label for any part of it, as in `worker-*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNameRange(String);

impl NodeNameRange {
    /// Returns true if a node may have this name.
    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.split('.').count() == name.split('.').count()
            && self.0.split('.').zip(name.split('.')).all(matches_label)
    }
}

fn matches_label((pattern, label): (&str, &str)) -> bool {
    match pattern.split_once('*') {
        None => pattern == label,
        Some((before, after)) => label
            .strip_prefix(before)
            .is_some_and(|rest| rest.ends_with(after)),
    }
}

impl fmt::Display for NodeNameRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeNameRange {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let has_one_each = text.split('.').all(|label| label.matches('*').count() <= 1);
        if has_one_each && is_dns_subdomain(&text.replace('*', "0")) {
            return Ok(NodeNameRange(text.to_owned()));
        }
        Err(InvalidValue {
            message: format!("{text:?} is not a pattern of node names in lower case"),
            fix: "write a name with at most one * in each label, as in worker-*".to_owned(),
        })
    }
}
