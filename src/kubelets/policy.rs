//! The configured policy for requests of kubelets.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::kube::kubeadm::{InvalidValue, IpNet, is_dns_subdomain};
use crate::x509::KeyAlgorithm;

/// Group of the bootstrap tokens with which kubeadm joins nodes (`cmd/kubeadm/app/constants/constants.go`,
/// `NodeBootstrapTokenAuthGroup`).
const KUBEADM_TOKEN_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
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
    /// Longest lifetime of a certificate, which a kubelet may shorten.
    pub lifetime: Duration,
    /// Key types of which certificates are signed.
    pub keys: Vec<KeyAlgorithm>,
    /// DNS names that a serving certificate may contain in addition to the Node's addresses.
    pub names: Vec<NodeNamePattern>,
    /// Networks that contain all addresses of kubelets; empty for any.
    pub networks: Vec<IpNet>,
    /// Groups of the bootstrap tokens that may join nodes.
    pub token_groups: Vec<String>,
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
            lifetime: YEAR,
            keys: KeyAlgorithm::ALL.to_vec(),
            names: Vec::new(),
            networks: Vec::new(),
            token_groups: vec![KUBEADM_TOKEN_GROUP.to_owned()],
            nodes_per_token: 1000,
            revoked: Vec::new(),
            requests_per_second: 50,
            lease: "nodepki-kubelets".to_owned(),
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
