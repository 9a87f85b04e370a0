//! The kubeadm configuration of a node: v1beta3 and v1beta4 documents in any mix of files, as [`Cluster`] and [`Node`].
//!
//! [`load`] reads texts into documents and checks every field this program uses; [`resolve`] adds what only the host
//! knows and the rules that join several documents. Both collect faults and never stop at the first. Pure: the caller
//! reads the files and finds the host's name and default-route address. Nothing here goes online, so that a
//! `kubernetesVersion` of `stable-1` simply leaves the version unknown.
//!
//! It accepts and refuses what kubeadm 1.31 to 1.36 accepts and refuses, with these deliberate differences:
//! - a `JoinConfiguration` counts (kubeadm's certificate commands ignore it and use the host's name and address);
//! - capitals in etcd SANs and `controlPlaneEndpoint`, and `[v6]` without a port, are accepted with a warning;
//! - without an `advertiseAddress` and without a default route it is an error, never `0.0.0.0`;
//! - the `kubeadm-config` ConfigMap is read as the ClusterConfiguration it holds;
//! - a `JoinConfiguration` without `discovery` counts, as nothing has to be discovered where all inputs are on disk;
//! - an `apiServerEndpoint` without a port is accepted with a warning, a `kubeConfigPath` that is relative or an
//!   address with a password is not;
//! - old or future `kubernetesVersion`s are accepted, as it is not known which kubeadm is on the node.
//!
//! The token and the certificate key of a JoinConfiguration are read into [`Join`], which shows them to nobody; those of
//! an InitConfiguration are not read.
//!
//! To use one more field: read it in `read_cluster`, `read_registration`, `read_join` or `join` and take its name off
//! the list of ignored fields there.

mod address;
mod documents;
mod join;
mod resolve;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

pub use address::{
    Endpoint, Host, IpNet, NodeName, Note, Refusal, San, is_dns_subdomain, is_global_unicast,
    join_host_port, parse_ip,
};
pub use join::{BootstrapToken, Discovery, DiscoveryFile, Join, NoToken};
pub use resolve::resolve;

use crate::x509::KeyAlgorithm;
use crate::yaml::{self, Faults, Node as Tree, Spot};
use documents::kind_of;

const DEFAULT_BIND_PORT: u16 = 6443;
const HOUR: u64 = 3600;
const YEAR: Duration = Duration::from_secs(8760 * HOUR);
const TEN_YEARS: Duration = Duration::from_secs(87600 * HOUR);
/// What the certificates of every node of a cluster have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// `None` when absent or a label such as `stable-1`.
    pub kubernetes_version: Option<Version>,
    /// Name of cluster and contexts in kubeconfigs.
    pub cluster_name: String,
    /// What clients outside the node connect to.
    pub control_plane_endpoint: Option<Endpoint>,
    /// One or two networks; the first one's address 1 is in the API server's certificate.
    pub service_subnets: Vec<IpNet>,
    /// The cluster's DNS domain.
    pub dns_domain: String,
    /// Absolute path of the PKI directory.
    pub certificates_dir: PathBuf,
    /// `apiServer.certSANs` in the order written.
    pub apiserver_cert_sans: Vec<San>,
    /// Where etcd runs.
    pub etcd: Etcd,
    /// `encryptionAlgorithm`, or what the gate `PublicKeysECDSA` makes of it.
    pub key_algorithm: KeyAlgorithm,
    /// Validity of leaf certificates.
    pub certificate_validity: Duration,
    /// Validity of authorities' certificates.
    pub ca_validity: Duration,
}

impl Default for Cluster {
    fn default() -> Self {
        Cluster {
            kubernetes_version: None,
            cluster_name: "kubernetes".to_owned(),
            control_plane_endpoint: None,
            service_subnets: IpNet::parse("10.96.0.0/12")
                .map(|(net, _)| net)
                .into_iter()
                .collect(),
            dns_domain: "cluster.local".to_owned(),
            certificates_dir: PathBuf::from("/etc/kubernetes/pki"),
            apiserver_cert_sans: Vec::new(),
            etcd: Etcd::default(),
            key_algorithm: KeyAlgorithm::Rsa2048,
            certificate_validity: YEAR,
            ca_validity: TEN_YEARS,
        }
    }
}

/// Where etcd runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Etcd {
    /// A static pod on each control-plane node.
    Local {
        /// Further names for etcd's server certificate, in the order written.
        server_cert_sans: Vec<San>,
        /// Further names for etcd's peer certificate, in the order written.
        peer_cert_sans: Vec<San>,
    },
    /// Elsewhere; kubeadm makes no certificate for it.
    External {
        /// URLs of the members.
        endpoints: Vec<String>,
        /// CA bundle that the API server verifies etcd with.
        ca_file: Option<PathBuf>,
        /// The API server's client certificate; given exactly when `key_file` is.
        cert_file: Option<PathBuf>,
        /// The API server's client key.
        key_file: Option<PathBuf>,
    },
}

impl Default for Etcd {
    fn default() -> Self {
        Etcd::Local {
            server_cert_sans: Vec::new(),
            peer_cert_sans: Vec::new(),
        }
    }
}

/// What a node is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The first control-plane node.
    Init,
    /// A further control-plane node.
    Join,
    /// A node without a control plane.
    Worker,
}

/// What is particular to one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is to become.
    pub role: Role,
    /// Name in certificates and of the Node object.
    pub name: NodeName,
    /// Address of its API server; always there unless it is a worker.
    pub advertise_address: Option<IpAddr>,
    /// Port of its API server.
    pub bind_port: u16,
    /// kubelet's `hostname-override`, when it differs from the name.
    pub hostname_override: Option<String>,
    /// Addresses that the kubelet gives its Node object, as far as they are known: `node-ip`, or else that of the API
    /// server and that of the default route.
    pub kubelet_addresses: Vec<IpAddr>,
    /// kubelet's `cert-dir`.
    pub kubelet_cert_dir: Option<PathBuf>,
    /// `discovery.bootstrapToken.apiServerEndpoint` of a joining node; of a worker always there, from
    /// `controlPlaneEndpoint` if need be.
    pub join_endpoint: Option<Endpoint>,
    /// How a joining node finds its cluster; there exactly when a JoinConfiguration is.
    pub join: Option<Join>,
}

/// A released version of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
    /// Patch.
    pub patch: u32,
    /// Pre-release, as in `alpha.1`.
    pub pre: Option<String>,
}

impl Version {
    /// True for this minor release and later ones.
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)?;
        match &self.pre {
            Some(pre) => write!(f, "-{pre}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Version {
    type Err = Refusal;

    /// Reads `v1.36.2`, `1.36.2-alpha.1+build`.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let refusal = || Refusal {
            message: format!("{text:?} is not a Kubernetes version"),
            fix: "write it in full, as in v1.36.2, or leave it out".to_owned(),
        };
        let bare = text.strip_prefix('v').unwrap_or(text);
        let (bare, _build) = bare.split_once('+').unwrap_or((bare, ""));
        let (release, pre) = match bare.split_once('-') {
            Some((release, pre)) => (release, Some(pre)),
            None => (bare, None),
        };
        let number = |part: Option<&str>| -> Option<u32> {
            let part = part?;
            let plain =
                part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
            if plain { part.parse().ok() } else { None }
        };
        let mut parts = release.split('.');
        let version = (
            number(parts.next()),
            number(parts.next()),
            number(parts.next()),
        );
        let pre_fine = pre.is_none_or(|pre| {
            !pre.is_empty()
                && pre
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
        });
        match version {
            (Some(major), Some(minor), Some(patch)) if parts.next().is_none() && pre_fine => {
                Ok(Version {
                    major,
                    minor,
                    patch,
                    pre: pre.map(str::to_owned),
                })
            }
            _ => Err(refusal()),
        }
    }
}

/// What only the host knows.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// The host name as the kernel or `/etc/hostname` has it.
    pub hostname: String,
    /// Address of the interface with the default route.
    pub default_route_address: Option<IpAddr>,
    /// What the node already is.
    pub running: Option<Running>,
    /// The node as an earlier run recorded it with its requests. Used if no document describes the node.
    pub kept: Option<Node>,
}

/// A node that was set up before, as its own files show it: kubeadm too goes by them once it has run.
#[derive(Clone, Debug)]
pub struct Running {
    /// What it is; counts where no document says so.
    pub role: Role,
    /// Its name in the cluster.
    pub name: Option<NodeName>,
    /// Address and port of its API server.
    pub endpoint: Option<SocketAddr>,
    /// The API server that its kubelet talks to.
    pub server: Option<Endpoint>,
    /// The kubelet's `--cert-dir`, as kubeadm wrote it for the kubelet.
    pub kubelet_cert_dir: Option<PathBuf>,
    /// It serves, or nothing else says what it is: this goes before the host's name and address. Otherwise it is what
    /// a run left before kubeadm's, and goes behind them.
    pub settled: bool,
}

/// What settings or the command line say in place of the documents.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Node name that wins over `nodeRegistration.name`.
    pub node_name: Option<NodeName>,
}

/// What the documents say, every field checked.
#[derive(Debug, Default)]
pub struct Loaded {
    cluster: Option<ClusterInput>,
    init: Option<NodeInput>,
    join: Option<NodeInput>,
    policies: Vec<Tree>,
    /// The cluster's own ClusterConfiguration, until a file's is laid over it.
    base: Option<Tree>,
    /// The ClusterConfiguration in force, whatever it was merged from.
    cluster_document: Option<Tree>,
    /// The JoinConfiguration as written.
    join_document: Option<Tree>,
    /// A document could not be read, so nothing can be said about what is missing.
    incomplete: bool,
    faults: Faults,
}

impl Loaded {
    /// OpenShift `PKI` documents met on the way; the `policy` module reads them.
    pub fn policies(&self) -> &[Tree] {
        &self.policies
    }

    /// What the cluster documents say; `None` when none was given.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref().map(|input| &input.cluster)
    }

    /// The ClusterConfiguration in force, and the file it is from; that of kubeadm's defaults where an
    /// InitConfiguration stands alone.
    pub fn cluster_document(&self) -> Option<(String, serde_json::Value)> {
        if let (Some(document), Some(input)) = (&self.cluster_document, &self.cluster) {
            return Some((
                input.document.place.file.to_string(),
                yaml::to_json(document),
            ));
        }
        let init = self.init.as_ref().filter(|_| self.join.is_none())?;
        let defaults = serde_json::json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
        });
        Some((init.document.place.file.to_string(), defaults))
    }

    /// True when an InitConfiguration or JoinConfiguration says what the node is.
    pub fn describes_node(&self) -> bool {
        self.init.is_some() || self.join.is_some()
    }

    /// The role that an InitConfiguration or JoinConfiguration gives the node. A JoinConfiguration without `controlPlane`
    /// makes it a worker, and goes before an InitConfiguration.
    pub fn role(&self) -> Option<Role> {
        match (&self.init, &self.join) {
            (_, Some(join)) if join.control_plane.is_some() => Some(Role::Join),
            (_, Some(_)) => Some(Role::Worker),
            (Some(_), None) => Some(Role::Init),
            (None, None) => None,
        }
    }

    /// True when an InitConfiguration or JoinConfiguration sets `nodeRegistration.name`.
    pub fn names_node(&self) -> bool {
        let input = self.join.as_ref().or(self.init.as_ref());
        input.is_some_and(|input| input.name.is_some())
    }

    /// The kubelet's `cert-dir` in the documents.
    pub fn kubelet_cert_dir(&self) -> Option<&Path> {
        let input = self.join.as_ref().or(self.init.as_ref());
        input?.kubelet.cert_dir.as_deref()
    }

    /// True when a JoinConfiguration makes the node a further control-plane node.
    pub fn joins_control_plane(&self) -> bool {
        self.role() == Some(Role::Join)
    }

    /// The JoinConfiguration as written, secrets included.
    pub fn join_document(&self) -> Option<serde_json::Value> {
        self.join_document.as_ref().map(yaml::to_json)
    }

    /// How the cluster is found, said by the JoinConfiguration; `None` when none was given. It is what could be read:
    /// look at [`Loaded::faults`] before using it.
    pub fn join(&self) -> Option<&Join> {
        self.join.as_ref()?.join.as_ref()
    }

    /// Faults found so far.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

/// The outcome of [`resolve`].
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The cluster; `None` only for a worker whose configuration has none.
    pub cluster: Option<Cluster>,
    /// The node.
    pub node: Node,
    /// Warnings of all documents.
    pub warnings: Faults,
}

#[derive(Debug)]
struct ClusterInput {
    cluster: Cluster,
    /// `controlPlaneEndpoint` was written; when refused, its absence is no second fault.
    endpoint_written: bool,
    document: Spot,
}

/// InitConfiguration or JoinConfiguration.
#[derive(Debug)]
struct NodeInput {
    document: Spot,
    name: Option<(String, Spot)>,
    /// `None` for a worker.
    control_plane: Option<ApiEndpoint>,
    kubelet: KubeletArguments,
    join_endpoint: Option<Endpoint>,
    join: Option<Join>,
}

/// What of `nodeRegistration.kubeletExtraArgs` matters here; of several the last counts.
#[derive(Debug, Default)]
struct KubeletArguments {
    hostname_override: Option<(String, Spot)>,
    node_ips: Vec<IpAddr>,
    cert_dir: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct ApiEndpoint {
    /// Given and usable; an unspecified address counts as not given.
    address: Option<IpAddr>,
    /// Given and refused, so that its absence is no second fault.
    broken: bool,
    bind_port: u16,
}

/// The two config API versions that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Api {
    V1beta3,
    V1beta4,
}

/// Reads all documents of the given `(file name, text)` pairs.
///
/// The result also carries the faults; [`resolve`] returns them together with its own.
pub fn load<N: AsRef<str>, T: AsRef<str>>(sources: &[(N, T)]) -> Loaded {
    let mut loaded = Loaded::default();
    for (file, text) in sources {
        loaded.read_text(file.as_ref(), text.as_ref());
    }
    loaded
}

/// As [`load`], with the ClusterConfiguration of the cluster itself as `(where from, text)`: what a file says goes
/// before it, map by map; a list of a file replaces the cluster's. A `PKI` document in it counts where no file has one.
pub fn load_over<N: AsRef<str>, T: AsRef<str>>(base: (&str, &str), sources: &[(N, T)]) -> Loaded {
    let mut loaded = Loaded::default();
    let mut policies = Vec::new();
    match yaml::parse(base.0, base.1) {
        Ok(documents) => {
            for document in documents {
                match kind_of(&document) {
                    Some("ClusterConfiguration") if loaded.base.is_none() => {
                        loaded.base = Some(document);
                    }
                    Some("PKI") => policies.push(document),
                    _ => {}
                }
            }
        }
        Err(faults) => {
            loaded.incomplete = true;
            loaded.faults.extend(faults);
        }
    }
    for (file, text) in sources {
        loaded.read_text(file.as_ref(), text.as_ref());
    }
    if let Some(base) = loaded.base.take() {
        loaded.read_document(&base);
    }
    if loaded.policies.is_empty() {
        loaded.policies = policies;
    }
    loaded
}

#[cfg(test)]
mod tests;
