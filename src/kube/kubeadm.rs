//! The kubeadm configuration of a node: v1beta3 and v1beta4 documents in any mix of files, as [`ClusterConfig`] and [`NodeConfig`].
//!
//! [`load`] reads texts into documents and checks each field that nodepki uses. [`resolve`] adds the facts of the host
//! and applies the rules that involve several documents. Both collect all faults. Pure: the caller reads the files and
//! determines the host's name and default-route address. Nothing here uses the network, so a `kubernetesVersion` of
//! `stable-1` leaves the version unknown.
//!
//! nodepki accepts and refuses the same documents as kubeadm 1.31 to 1.37, with these deliberate differences:
//! - a `JoinConfiguration` is used (kubeadm's certificate commands ignore it and use the host's name and address);
//! - upper-case letters in etcd SANs and `controlPlaneEndpoint`, and `[v6]` without a port, are accepted with a warning;
//! - a missing `advertiseAddress` without a default route is an error; kubeadm falls back to `0.0.0.0`;
//! - the ConfigMap `kubeadm-config` is read as the ClusterConfiguration in it, and a document `PKI` of OpenShift as the policy
//!   of keys, with a warning if the file contains documents for kubeadm too;
//! - a `JoinConfiguration` without `discovery` is accepted, as a node with all inputs on disk needs no discovery;
//! - an `apiServerEndpoint` without a port is accepted with a warning;
//! - a relative `kubeConfigPath`, and a URL with a password, are refused;
//! - old and future `kubernetesVersion`s are accepted, as the release of kubeadm on the node is unknown; a strict reading warns of
//!   one that none of these releases deploys;
//! - a text in quotation marks is refused if a further line of it is indented no further than its key;
//! - what kubeadm refuses only in the form of the file, a part without a document, is an error of a strict reading, and else a
//!   warning.
//!
//! The token and the certificate key of a JoinConfiguration are read into [`JoinDiscovery`], whose `Debug` output omits them.
//! Those of an InitConfiguration are not read.
//!
//! To use one more field, read it in `cluster`, `node` or `join`, and remove its name from the ignored fields there.

mod address;
mod cluster;
mod documents;
mod fields;
mod join;
mod node;
mod resolve;
mod separators;
mod shapes;
mod version;

pub use address::{Host, HostPort, InvalidValue, IpNet, NodeName, San, ValueNote};
pub(crate) use address::{is_dns_subdomain, is_global_unicast, join_host_port, parse_ip};
pub(crate) use cluster::YEAR;
pub use cluster::{ClusterConfig, Etcd};
pub use documents::{Documents, load};
pub(crate) use documents::{load_over, load_strictly};
pub use join::{BootstrapToken, Discovery, DiscoveryFile, InvalidToken, JoinDiscovery};
pub use node::{KubeadmRole, NodeConfig};
pub use resolve::{ExistingNode, HostFacts, Overrides, Resolved, resolve};
pub use version::KubernetesVersion;

#[cfg(test)]
mod tests;
