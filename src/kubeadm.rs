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
mod duration;
mod join;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub use address::{
    Endpoint, Host, IpNet, NodeName, Note, Refusal, San, is_dns_subdomain, is_global_unicast,
    join_host_port, parse_ip,
};
pub use duration::{format_duration, parse_duration};
pub use join::{BootstrapToken, Discovery, DiscoveryFile, Join, NoToken};

use crate::x509::KeyAlgorithm;
use crate::yaml::{self, Fault, Faults, Field, Map, Node as Tree, Severity, Spot, Walk};

const DEFAULT_BIND_PORT: u16 = 6443;
const HOUR: u64 = 3600;
const YEAR: Duration = Duration::from_secs(8760 * HOUR);
const TEN_YEARS: Duration = Duration::from_secs(87600 * HOUR);
/// kubeadm's `MinimumAddressesInServiceSubnet`.
const MIN_SERVICE_ADDRESSES: u128 = 10;
/// kubeadm's and kube-apiserver's largest service network: a /12 for IPv4, a /108 for IPv6.
const MAX_SERVICE_BITS: u8 = 20;
/// Many signers refuse more names in one certificate.
const MANY_SANS: usize = 100;
/// X.520's upper bound for a common name.
const COMMON_NAME_LIMIT: usize = 64;

const FETCH_CLUSTER: &str = "bootstrap asks the cluster for it, unless kubeadm.fromCluster is never; otherwise set kubeadm.clusterConfiguration in the nodepki \
    configuration, or add --kubeadm-config FILE, with what this prints on a control-plane node: kubectl -n kube-system get cm kubeadm-config -o jsonpath='{.data.ClusterConfiguration}'";

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

    /// True when a JoinConfiguration makes the node a further control-plane node.
    pub fn joins_control_plane(&self) -> bool {
        let join = self.join.as_ref();
        join.is_some_and(|join| join.control_plane.is_some())
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
    hostname_override: Located,
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

fn kind_of(document: &Tree) -> Option<&str> {
    document.get("kind").and_then(Tree::text)
}

impl Loaded {
    fn read_text(&mut self, file: &str, text: &str) {
        match yaml::parse(file, text) {
            Ok(documents) => {
                for document in &documents {
                    self.read_document(document);
                }
            }
            Err(faults) => {
                self.incomplete = true;
                self.faults.extend(faults);
            }
        }
    }

    fn read_document(&mut self, document: &Tree) {
        let spot = Spot {
            place: document.place.clone(),
            field: String::new(),
        };
        let (Some(api_version), Some(kind)) = (
            document.get("apiVersion").and_then(Tree::text),
            document.get("kind").and_then(Tree::text),
        ) else {
            self.refuse(spot.error(
                "a document without apiVersion and kind",
                "begin it with apiVersion: kubeadm.k8s.io/v1beta4 and kind: ClusterConfiguration, InitConfiguration or JoinConfiguration",
            ));
            return;
        };
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        match (group, kind) {
            ("kubeadm.k8s.io", _) => self.read_kubeadm(document, spot, version, kind),
            ("kubelet.config.k8s.io", "KubeletConfiguration")
            | ("kubeproxy.config.k8s.io", "KubeProxyConfiguration") => {}
            ("config.openshift.io", "PKI") => self.policies.push(document.clone()),
            ("", "ConfigMap") => self.read_config_map(document, spot),
            _ => self.refuse(spot.error(
                format!("{api_version} {kind} is not a kubeadm configuration document"),
                "move it to another file; kubeadm refuses it as well",
            )),
        }
    }

    /// The ConfigMap as `kubectl get cm kubeadm-config -o yaml` prints it.
    fn read_config_map(&mut self, document: &Tree, spot: Spot) {
        let name = document
            .get("metadata")
            .and_then(|metadata| metadata.get("name"))
            .and_then(Tree::text);
        let text = document
            .get("data")
            .and_then(|data| data.get("ClusterConfiguration"))
            .and_then(Tree::text);
        match (name, text) {
            (Some("kubeadm-config"), Some(text)) => {
                let file = format!("{}#data.ClusterConfiguration", spot.place.file);
                self.read_text(&file, text);
            }
            _ => self.refuse(spot.error(
                "v1 ConfigMap is not a kubeadm configuration document",
                "only the ConfigMap kubeadm-config with data.ClusterConfiguration is read; move this one to another file",
            )),
        }
    }

    fn read_kubeadm(&mut self, document: &Tree, spot: Spot, version: &str, kind: &str) {
        let known = matches!(
            kind,
            "ClusterConfiguration" | "InitConfiguration" | "JoinConfiguration"
        );
        let api = match version {
            "v1beta4" => Api::V1beta4,
            "v1beta3" => Api::V1beta3,
            other => {
                self.refuse(spot.error(old_api(other, kind), migrate_with(other)));
                return;
            }
        };
        if !known {
            // ResetConfiguration and UpgradeConfiguration concern other commands.
            if !matches!(kind, "ResetConfiguration" | "UpgradeConfiguration") {
                self.faults.push(spot.warning(
                    format!(
                        "kubeadm.k8s.io/{version} {kind} is not a kind of kubeadm and is ignored"
                    ),
                    "use ClusterConfiguration, InitConfiguration or JoinConfiguration",
                ));
            }
            return;
        }
        if api == Api::V1beta3 {
            self.faults.push(spot.warning(
                format!("kubeadm.k8s.io/v1beta3 is deprecated (kind {kind})"),
                "run kubeadm config migrate --old-config OLD --new-config NEW",
            ));
        }
        let earlier = match kind {
            "ClusterConfiguration" => self.cluster.as_ref().map(|c| &c.document),
            "InitConfiguration" => self.init.as_ref().map(|n| &n.document),
            _ => self.join.as_ref().map(|n| &n.document),
        };
        if let Some(earlier) = earlier {
            let message = format!("kind {kind} is given twice, first at {}", earlier.place);
            self.faults
                .push(spot.error(message, "keep one of the two documents"));
            return;
        }
        document.duplicates(Severity::Warning, &mut self.faults);
        let merged = match self.base.take_if(|_| kind == "ClusterConfiguration") {
            Some(base) => self.over(base, document, &spot),
            None => None,
        };
        let document = merged.as_ref().unwrap_or(document);
        let walk = Walk::new(false);
        if let Some(map) = Field::root(&walk, document).map() {
            map.ignore(&["apiVersion", "kind"]);
            match kind {
                "ClusterConfiguration" => {
                    self.cluster = Some(ClusterInput {
                        cluster: read_cluster(&map, api),
                        endpoint_written: document
                            .get("controlPlaneEndpoint")
                            .and_then(Tree::text)
                            .is_some_and(|text| !text.is_empty()),
                        document: spot,
                    });
                    self.cluster_document = Some(document.clone());
                }
                "InitConfiguration" => self.init = Some(read_init(&map, api, spot)),
                _ => {
                    self.join = Some(read_join(&map, api, spot));
                    self.join_document = Some(document.clone());
                }
            }
            map.finish();
        }
        self.faults.extend(walk.into_faults());
    }

    /// A document laid over the cluster's own.
    fn over(&mut self, mut base: Tree, document: &Tree, spot: &Spot) -> Option<Tree> {
        let version = |document: &Tree| {
            document
                .get("apiVersion")
                .and_then(Tree::text)
                .map(str::to_owned)
        };
        if version(&base) != version(document) {
            self.faults.push(spot.error(
                format!("is {}, the cluster's own ClusterConfiguration is {}: the two cannot be merged", version(document).unwrap_or_default(), version(&base).unwrap_or_default()),
                "bring this one to the same version with kubeadm config migrate --old-config OLD --new-config NEW",
            ));
            return None;
        }
        base.overlay(document.clone());
        Some(base)
    }

    fn refuse(&mut self, fault: Fault) {
        self.incomplete = true;
        self.faults.push(fault);
    }
}

fn old_api(version: &str, kind: &str) -> String {
    match last_reader(version) {
        Some(_) => format!(
            "kubeadm.k8s.io/{version} (kind {kind}) is an old API that kubeadm 1.31 and later refuse"
        ),
        None => format!("kubeadm.k8s.io/{version} (kind {kind}) is not known to this release"),
    }
}

fn migrate_with(version: &str) -> String {
    match last_reader(version) {
        Some(release) => {
            format!(
                "run kubeadm config migrate --old-config OLD --new-config NEW with kubeadm {release}"
            )
        }
        None => "use kubeadm.k8s.io/v1beta4".to_owned(),
    }
}

/// The last kubeadm that reads and migrates an old API, as kubeadm itself advises.
fn last_reader(version: &str) -> Option<&'static str> {
    match version {
        "v1alpha1" => Some("v1.11"),
        "v1alpha2" => Some("v1.12"),
        "v1alpha3" => Some("v1.13"),
        "v1beta1" => Some("v1.15"),
        "v1beta2" => Some("v1.22"),
        _ => None,
    }
}

fn read_cluster(map: &Map<'_>, api: Api) -> Cluster {
    let mut cluster = Cluster::default();
    map.ignore(&["dns", "imageRepository"]);

    if let Some(field) = map.get("kubernetesVersion")
        && let Some(text) = field.string()
    {
        cluster.kubernetes_version = read_version(&field, &text);
    }
    if let Some(name) = filled(map.get("clusterName")) {
        cluster.cluster_name = name.1;
    }
    if let Some((field, text)) = filled(map.get("controlPlaneEndpoint")) {
        cluster.control_plane_endpoint = endpoint(&field, &text);
    }
    if let Some((field, text)) = filled(map.get("certificatesDir"))
        && let Some(path) = absolute(&field, &text)
    {
        cluster.certificates_dir = path;
    }
    if let Some(networking) = section(map, "networking") {
        networking.ignore(&["podSubnet"]);
        if let Some((field, text)) = filled(networking.get("serviceSubnet"))
            && let Some(subnets) = service_subnets(&field, &text)
        {
            cluster.service_subnets = subnets;
        }
        if let Some((field, text)) = filled(networking.get("dnsDomain")) {
            if is_dns_subdomain(&text) {
                cluster.dns_domain = text;
            } else {
                field.error(
                    format!("{text:?} is not a DNS domain"),
                    "use small letters, digits, - and ., as in cluster.local",
                );
            }
        }
        networking.finish();
    }
    if let Some(apiserver) = section(map, "apiServer") {
        apiserver.ignore(&["extraVolumes"]);
        apiserver.ignore(match api {
            Api::V1beta3 => &["timeoutForControlPlane"],
            Api::V1beta4 => &["extraEnvs"],
        });
        cluster.apiserver_cert_sans = sans(apiserver.get("certSANs"), true);
        extra_args(apiserver.get("extraArgs"), api);
        apiserver.finish();
    }
    for component in ["controllerManager", "scheduler"] {
        if let Some(component) = section(map, component) {
            component.ignore(&["extraVolumes"]);
            if api == Api::V1beta4 {
                component.ignore(&["extraEnvs"]);
            }
            extra_args(component.get("extraArgs"), api);
            component.finish();
        }
    }
    if let Some(etcd) = section(map, "etcd") {
        cluster.etcd = read_etcd(&etcd, api);
        etcd.finish();
    }
    read_algorithm(map, api, &mut cluster);
    if api == Api::V1beta4 {
        map.ignore(&["proxy"]);
        read_periods(map, &mut cluster);
    }
    cluster
}

fn read_version(field: &Field<'_>, text: &str) -> Option<Version> {
    // `ci/v1.37.0-alpha.1` names a build; `stable-1`, `ci/latest-1.36` would have to be looked up online.
    let bare = text
        .strip_prefix("ci/")
        .or_else(|| text.strip_prefix("release/"))
        .unwrap_or(text);
    let channel = ["stable", "latest"].iter().any(|channel| {
        bare.strip_prefix(channel).is_some_and(|rest| {
            rest.is_empty()
                || rest.strip_prefix('-').is_some_and(|rest| {
                    !rest.is_empty()
                        && rest.split('.').count() <= 2
                        && rest.split('.').all(|part| {
                            !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
                        })
                })
        })
    });
    if text.is_empty() || channel {
        return None;
    }
    bare.parse().map_err(|refusal| report(field, refusal)).ok()
}

fn read_algorithm(map: &Map<'_>, api: Api, cluster: &mut Cluster) {
    let mut chosen = None;
    if api == Api::V1beta4
        && let Some((field, text)) = filled(map.get("encryptionAlgorithm"))
    {
        match text.parse::<KeyAlgorithm>() {
            Ok(algorithm) if algorithm != KeyAlgorithm::EcdsaP521 => {
                cluster.key_algorithm = algorithm;
                chosen = Some(field);
            }
            _ => field.error(
                format!("{text:?} is not an encryption algorithm of kubeadm"),
                "use RSA-2048, RSA-3072, RSA-4096, ECDSA-P256 or ECDSA-P384, in exactly this spelling",
            ),
        }
    }
    if let Some(gates) = section(map, "featureGates") {
        for (name, field) in gates.named() {
            let Some(enabled) = field.boolean() else {
                continue;
            };
            if name == "PublicKeysECDSA" {
                cluster.key_algorithm = match enabled {
                    true => KeyAlgorithm::EcdsaP256,
                    false => KeyAlgorithm::Rsa2048,
                };
                if let Some(chosen) = &chosen {
                    chosen.warning(
                        format!(
                            "has no effect: the feature gate PublicKeysECDSA makes it {}",
                            cluster.key_algorithm
                        ),
                        "remove featureGates.PublicKeysECDSA",
                    );
                }
            }
        }
    }
    if cluster.key_algorithm == KeyAlgorithm::EcdsaP384
        && let Some(version) = &cluster.kubernetes_version
        && !version.at_least(1, 34)
        && let Some(chosen) = &chosen
    {
        chosen.warning(
            format!("ECDSA-P384 is known to kubeadm from 1.34 on, this cluster is {version}: kubeadm will refuse this file"),
            "use ECDSA-P256, or upgrade first",
        );
    }
}

fn read_periods(map: &Map<'_>, cluster: &mut Cluster) {
    let leaf = period(map, "certificateValidityPeriod", YEAR, "a year");
    let authority = period(map, "caCertificateValidityPeriod", TEN_YEARS, "ten years");
    if let Some((_, period)) = &leaf {
        cluster.certificate_validity = *period;
    }
    if let Some((_, period)) = &authority {
        cluster.ca_validity = *period;
    }
    if cluster.certificate_validity > cluster.ca_validity
        && let Some((field, _)) = leaf.or(authority)
    {
        field.warning(
            "leaf certificates would be valid for longer than the authorities that sign them",
            "make caCertificateValidityPeriod the longer one",
        );
    }
}

fn period<'a>(
    map: &Map<'a>,
    key: &str,
    usual: Duration,
    words: &str,
) -> Option<(Field<'a>, Duration)> {
    let (field, text) = filled(map.get(key))?;
    match parse_duration(&text) {
        Ok(period) if period.is_zero() => {
            field.error(
                "a validity of zero",
                format!("use a period such as {}", format_duration(usual)),
            );
            None
        }
        Ok(period) => {
            if period > usual {
                field.warning(format!("is longer than {words}"), "shorten it");
            }
            Some((field, period))
        }
        Err(message) => {
            field.error(
                message,
                format!(
                    "use hours, minutes and seconds, as in {}",
                    format_duration(usual)
                ),
            );
            None
        }
    }
}

fn read_etcd(map: &Map<'_>, api: Api) -> Etcd {
    let local = map.get("local");
    let external = map.get("external");
    if local.is_some()
        && let Some(external) = &external
    {
        external.error(
            "etcd.local and etcd.external exclude each other",
            "remove one of the two",
        );
    }
    let mut etcd = Etcd::default();
    if let Some(local) = local.and_then(|field| field.map()) {
        local.ignore(&["dataDir", "imageRepository", "imageTag"]);
        if api == Api::V1beta4 {
            local.ignore(&["extraEnvs"]);
        }
        extra_args(local.get("extraArgs"), api);
        etcd = Etcd::Local {
            server_cert_sans: sans(local.get("serverCertSANs"), false),
            peer_cert_sans: sans(local.get("peerCertSANs"), false),
        };
        local.finish();
    }
    if let Some(external) = external.and_then(|field| field.map()) {
        external.ignore(&["httpEndpoints"]);
        etcd = read_external_etcd(&external);
        external.finish();
    }
    etcd
}

fn read_external_etcd(map: &Map<'_>) -> Etcd {
    let file = |key| filled(map.get(key)).and_then(|(field, text)| absolute(&field, &text));
    let (ca_file, cert_file, key_file) = (file("caFile"), file("certFile"), file("keyFile"));
    let given = |key: &str| {
        map.field()
            .node()
            .get(key)
            .and_then(Tree::text)
            .is_some_and(|text| !text.is_empty())
    };
    if given("certFile") != given("keyFile") {
        map.field().error(
            "certFile and keyFile belong together, only one is given",
            "give both or none",
        );
    } else if given("certFile") && !given("caFile") {
        map.field().error(
            "certFile and keyFile are given without caFile",
            "give the CA that signed etcd's certificates as caFile",
        );
    }
    let plain_allowed = !(given("caFile") || given("certFile") || given("keyFile"));
    let mut endpoints = Vec::new();
    match map.get("endpoints").map(|field| field.list()) {
        Some(Some(items)) => {
            for item in items {
                let Some(text) = item.string() else { continue };
                let rest = match text.split_once("://") {
                    Some(("https", rest)) => Some(rest),
                    Some(("http", rest)) if plain_allowed => Some(rest),
                    _ => None,
                };
                if rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/')) {
                    endpoints.push(text);
                } else {
                    item.error(
                        format!(
                            "{text:?} is not an {} URL",
                            if plain_allowed {
                                "http or https"
                            } else {
                                "https"
                            }
                        ),
                        "write it as https://HOST:2379",
                    );
                }
            }
        }
        Some(None) => {}
        None => map
            .field()
            .warning("no endpoints", "list the URLs of the etcd members"),
    }
    Etcd::External {
        endpoints,
        ca_file,
        cert_file,
        key_file,
    }
}

fn service_subnets(field: &Field<'_>, text: &str) -> Option<Vec<IpNet>> {
    let mut subnets = Vec::new();
    for part in text.split(',') {
        let (subnet, note) = IpNet::parse(part)
            .map_err(|refusal| report(field, refusal))
            .ok()?;
        if let Some(note) = note {
            field.warning(note.message, note.fix);
        }
        let size = subnet.size();
        if size < MIN_SERVICE_ADDRESSES {
            field.error(
                format!(
                    "{part} has {size} addresses, kubeadm wants at least {MIN_SERVICE_ADDRESSES}"
                ),
                "use a larger network, as in 10.96.0.0/12",
            );
            return None;
        }
        if subnet.host_bits() > MAX_SERVICE_BITS {
            let longest = subnet.prefix_len() + subnet.host_bits() - MAX_SERVICE_BITS;
            field.error(
                format!("{part} is larger than kube-apiserver can use"),
                format!("use a prefix of /{longest} or longer"),
            );
            return None;
        }
        subnets.push(subnet);
    }
    let families: Vec<bool> = subnets
        .iter()
        .map(|subnet| subnet.network().is_ipv4())
        .collect();
    match families.as_slice() {
        [_] | [true, false] | [false, true] => Some(subnets),
        [_, _] => {
            field.error(
                "both networks are of the same IP family",
                "give one IPv4 and one IPv6 network, or only one",
            );
            None
        }
        _ => {
            field.error(
                format!("{} networks, at most two are possible", subnets.len()),
                "give one IPv4 and one IPv6 network, or only one",
            );
            None
        }
    }
}

fn read_init(map: &Map<'_>, api: Api, document: Spot) -> NodeInput {
    map.ignore(&["bootstrapTokens", "certificateKey", "skipPhases", "patches"]);
    if api == Api::V1beta4 {
        map.ignore(&["dryRun", "timeouts"]);
    }
    let (name, kubelet) = read_registration(map, api);
    NodeInput {
        document,
        name,
        control_plane: Some(api_endpoint(map)),
        kubelet,
        join_endpoint: None,
        join: None,
    }
}

fn read_join(map: &Map<'_>, api: Api, document: Spot) -> NodeInput {
    map.ignore(&["skipPhases", "patches"]);
    if api == Api::V1beta4 {
        map.ignore(&["dryRun", "timeouts"]);
    }
    let (name, kubelet) = read_registration(map, api);
    let control_plane = section(map, "controlPlane");
    let (join, join_endpoint) = join::read(map, control_plane.as_ref(), api);
    let control_plane = control_plane.map(|control_plane| {
        let endpoint = api_endpoint(&control_plane);
        control_plane.finish();
        endpoint
    });
    NodeInput {
        document,
        name,
        control_plane,
        kubelet,
        join_endpoint,
        join: Some(join),
    }
}

type Located = Option<(String, Spot)>;

/// Node name and what is said to the kubelet.
fn read_registration(map: &Map<'_>, api: Api) -> (Located, KubeletArguments) {
    let mut kubelet = KubeletArguments::default();
    let Some(registration) = section(map, "nodeRegistration") else {
        return (None, kubelet);
    };
    registration.ignore(&[
        "criSocket",
        "taints",
        "ignorePreflightErrors",
        "imagePullPolicy",
    ]);
    if api == Api::V1beta4 {
        registration.ignore(&["imagePullSerial"]);
    }
    let name = filled(registration.get("name")).map(|(field, text)| (text, field.spot()));
    for (name, value, spot) in extra_args(registration.get("kubeletExtraArgs"), api) {
        match name.as_str() {
            "hostname-override" => kubelet.hostname_override = Some((value, spot)),
            "cert-dir" => {
                kubelet.cert_dir = Some(PathBuf::from(value)).filter(|path| path.is_absolute());
            }
            // 0.0.0.0 and :: only choose a family (`nodeutil.GetNodeHostIPs`).
            "node-ip" => {
                let ips = value.split(',').filter_map(|ip| ip.trim().parse().ok());
                kubelet.node_ips = ips.filter(|ip: &IpAddr| !ip.is_unspecified()).collect();
            }
            _ => {}
        }
    }
    registration.finish();
    (name, kubelet)
}

fn api_endpoint(map: &Map<'_>) -> ApiEndpoint {
    let mut endpoint = ApiEndpoint {
        bind_port: DEFAULT_BIND_PORT,
        ..ApiEndpoint::default()
    };
    let Some(local) = section(map, "localAPIEndpoint") else {
        return endpoint;
    };
    if let Some((field, text)) = filled(local.get("advertiseAddress")) {
        match parse_ip(&text) {
            Some((ip, _)) if ip.is_unspecified() => {}
            Some((ip, note)) if is_global_unicast(ip) => {
                if let Some(note) = note {
                    field.warning(note.message, note.fix);
                }
                endpoint.address = Some(ip);
            }
            Some((ip, _)) => {
                endpoint.broken = true;
                field.error(
                    format!("{ip} is a loopback, link-local, multicast or broadcast address, other nodes cannot reach it"),
                    "write the node's own address, or leave it out to take that of the default route",
                );
            }
            None => {
                endpoint.broken = true;
                field.error(
                    format!("{text:?} is not an IP address"),
                    "write the node's own address, or leave it out to take that of the default route",
                );
            }
        }
    }
    if let Some(field) = local.get("bindPort")
        && let Some(number) = field.integer()
    {
        match u16::try_from(number) {
            Ok(0) => {}
            Ok(port) => endpoint.bind_port = port,
            Err(_) => field.error(
                format!("port {number} is out of range"),
                "use a port from 1 to 65535",
            ),
        }
    }
    local.finish();
    endpoint
}

/// Extra arguments: a map in v1beta3, a list of name and value in v1beta4.
fn extra_args(field: Option<Field<'_>>, api: Api) -> Vec<(String, String, Spot)> {
    let Some(field) = field else {
        return Vec::new();
    };
    let mut args = Vec::new();
    match (api, &field.node().kind) {
        (Api::V1beta3, yaml::Kind::Seq(_)) => field.error(
            "is a list, but kubeadm.k8s.io/v1beta3 has a map here",
            "write `name: value` lines, or change the document to v1beta4",
        ),
        (Api::V1beta4, yaml::Kind::Map(_)) => field.error(
            "is a map, but kubeadm.k8s.io/v1beta4 has a list here",
            "write `- name: NAME` and `value: VALUE`, or change the document to v1beta3",
        ),
        (Api::V1beta3, _) => {
            for (name, value) in field.map().map(|map| map.named()).unwrap_or_default() {
                if let Some(text) = value.string() {
                    args.push((name, text, value.spot()));
                }
            }
        }
        (Api::V1beta4, _) => {
            for item in field.list().unwrap_or_default() {
                let Some(map) = item.map() else { continue };
                let name = map.get("name").and_then(|field| field.string());
                let value = map
                    .get("value")
                    .and_then(|field| field.string().map(|text| (field.spot(), text)));
                map.finish();
                match name.filter(|name| !name.is_empty()) {
                    Some(name) => {
                        let (spot, text) = value.unwrap_or_else(|| (item.spot(), String::new()));
                        args.push((name, text, spot));
                    }
                    None => item.error(
                        "an argument without a name",
                        "write `- name: NAME` and `value: VALUE`",
                    ),
                }
            }
        }
    }
    args
}

/// A list of SANs. kubeadm lower-cases those of the API server and refuses capitals in those of etcd.
fn sans(field: Option<Field<'_>>, capitals_fine: bool) -> Vec<San> {
    let Some(field) = field else {
        return Vec::new();
    };
    let mut sans = Vec::new();
    for item in field.list().unwrap_or_default() {
        let Some(text) = item.string() else { continue };
        match San::parse(&text) {
            Ok((san, notes)) => {
                for note in notes {
                    item.warning(note.message, note.fix);
                }
                if let San::Dns(name) = &san
                    && !capitals_fine
                    && *name != text
                {
                    item.warning(
                        format!("{text:?} is read as {name:?}; kubeadm refuses capitals here"),
                        "write it in small letters",
                    );
                }
                sans.push(san);
            }
            Err(refusal) => report(&item, refusal),
        }
    }
    if sans.len() > MANY_SANS {
        field.warning(
            format!(
                "{} names in one certificate, many signers refuse more than {MANY_SANS}",
                sans.len()
            ),
            "use a wildcard or fewer names",
        );
    }
    sans
}

fn endpoint(field: &Field<'_>, text: &str) -> Option<Endpoint> {
    match Endpoint::parse(text) {
        Ok((endpoint, notes)) => {
            for note in notes {
                field.warning(note.message, note.fix);
            }
            Some(endpoint)
        }
        Err(refusal) => {
            report(field, refusal);
            None
        }
    }
}

fn absolute(field: &Field<'_>, text: &str) -> Option<PathBuf> {
    if text.starts_with('/') {
        return Some(PathBuf::from(text));
    }
    field.error(
        format!("{text:?} is not an absolute path"),
        "begin it with /",
    );
    None
}

fn report(field: &Field<'_>, refusal: Refusal) {
    field.error(refusal.message, refusal.fix);
}

/// A text field that is there and not empty; kubeadm treats an empty one as absent.
fn filled(field: Option<Field<'_>>) -> Option<(Field<'_>, String)> {
    let field = field?;
    let text = field.string()?;
    (!text.is_empty()).then_some((field, text))
}

fn section<'a>(map: &Map<'a>, key: &str) -> Option<Map<'a>> {
    map.get(key)?.map()
}

/// Joins the documents with what the host knows.
///
/// # Errors
/// All faults of [`load`] and of the rules that join several documents, warnings included, in reading order.
pub fn resolve(
    loaded: &Loaded,
    host: &HostFacts,
    overrides: &Overrides,
) -> Result<Resolved, Faults> {
    let mut faults = loaded.faults.clone();
    let cluster = loaded.cluster();
    let running = host.running.as_ref();
    let settled = running.filter(|running| running.settled);
    if let (Some(init), Some(join)) = (&loaded.init, &loaded.join) {
        let message = format!(
            "a JoinConfiguration and an InitConfiguration (at {}) are both given",
            init.document.place
        );
        let keep =
            "keep the InitConfiguration on the first node and the JoinConfiguration on every other";
        // `kubeadm join` reads the one file and none of the other, which Cluster API may give a joining node for the
        // ClusterConfiguration in it.
        faults.push(if init.document.place.file == join.document.place.file {
            join.document.error(message, keep)
        } else {
            let message = format!("{message}; the node joins, and the other is not used");
            join.document.warning(message, keep)
        });
    }
    let (role, input) = match (&loaded.init, &loaded.join) {
        (_, Some(join)) if join.control_plane.is_some() => (Role::Join, Some(join)),
        (_, Some(join)) => (Role::Worker, Some(join)),
        (Some(init), None) => (Role::Init, Some(init)),
        (None, None) if settled.is_some() => (settled.map_or(Role::Init, |node| node.role), None),
        (None, None) => {
            if cluster.is_none() && !loaded.incomplete {
                faults.push(Spot::whole("kubeadm configuration").error(
                    "no InitConfiguration, ClusterConfiguration or JoinConfiguration was found",
                    "name the file given to kubeadm under kubeadm.files or with --kubeadm-config FILE",
                ));
            }
            (Role::Init, None)
        }
    };
    if role == Role::Join && input.is_some() && !loaded.incomplete {
        require_cluster(loaded, input, &mut faults);
    }
    let name = node_name(input, loaded.incomplete, host, overrides, &mut faults);
    if let Some((name, spot)) = &name {
        long_name(role, name, spot, &mut faults);
    }
    let hostname_override =
        hostname_override(input, name.as_ref().map(|(name, _)| name), &mut faults);
    let document = input
        .map(|input| &input.document)
        .or(loaded.cluster.as_ref().map(|cluster| &cluster.document));
    let api = input.and_then(|input| input.control_plane.as_ref());
    let advertise_address = match role {
        Role::Worker => None,
        Role::Init | Role::Join => {
            let route = host.default_route_address;
            let route = route.filter(|ip| is_global_unicast(*ip));
            let own = running.and_then(|running| running.endpoint.map(|endpoint| endpoint.ip()));
            // A settled node without a kubeadm file keeps its address: that of the default route may be another one.
            let assumed = match settled {
                Some(_) => own.or(route.filter(|_| input.is_some())),
                None => route.or(own),
            };
            let address = api.and_then(|api| api.address).or(assumed);
            if address.is_none() && settled.is_some() && input.is_none() {
                faults.push(Spot::whole("this node").error(
                    "neither the manifest of its kube-apiserver nor controller-manager.conf says which address its API server has",
                    "write an InitConfiguration with nodeRegistration.name and localAPIEndpoint.advertiseAddress, and name it with --kubeadm-config FILE",
                ));
            } else if address.is_none()
                && !api.is_some_and(|api| api.broken)
                && let Some(document) = document
            {
                faults.push(document.error(
                    "no advertiseAddress is given (0.0.0.0 and :: are none) and no default route is known to take one from",
                    match role {
                        Role::Join => "set controlPlane.localAPIEndpoint.advertiseAddress to the node's own address",
                        _ => "set localAPIEndpoint.advertiseAddress in an InitConfiguration to the node's own address",
                    },
                ));
            }
            address
        }
    };
    let mut join_endpoint = input.and_then(|input| input.join_endpoint.clone());
    if role == Role::Worker && join_endpoint.is_none() {
        join_endpoint = settled.and_then(|running| running.server.clone());
    }
    if role == Role::Worker && join_endpoint.is_none() {
        join_endpoint = cluster.and_then(|cluster| cluster.control_plane_endpoint.clone());
        if join_endpoint.is_none()
            && !faults.has_errors()
            && let Some(document) = document
        {
            faults.push(document.error(
                "nothing says which API server this worker connects to",
                "set discovery.bootstrapToken.apiServerEndpoint, or give the ClusterConfiguration with its controlPlaneEndpoint",
            ));
        }
    }
    let kubelet = input.map(|input| &input.kubelet);
    let mut kubelet_addresses = kubelet.map_or_else(Vec::new, |kubelet| kubelet.node_ips.clone());
    if kubelet_addresses.is_empty() {
        kubelet_addresses.extend(advertise_address);
        let routed = host.default_route_address;
        kubelet_addresses.extend(routed.filter(|ip| Some(*ip) != advertise_address));
    }
    let node = name.map(|(name, _)| Node {
        role,
        name,
        advertise_address,
        bind_port: match api {
            Some(api) => api.bind_port,
            None => running
                .and_then(|running| running.endpoint)
                .map_or(DEFAULT_BIND_PORT, |endpoint| endpoint.port()),
        },
        hostname_override,
        kubelet_addresses,
        kubelet_cert_dir: kubelet.and_then(|kubelet| kubelet.cert_dir.clone()),
        join_endpoint,
        join: input.and_then(|input| input.join.clone()),
    });
    let cluster = match role {
        Role::Worker => cluster.cloned(),
        _ => Some(cluster.cloned().unwrap_or_default()),
    };
    let (node, warnings) = faults.outcome(node)?;
    match node {
        Some(node) => Ok(Resolved {
            cluster,
            node,
            warnings,
        }),
        // A node without a name has left an error above.
        None => Err(warnings),
    }
}

/// A control-plane node joins only a cluster whose configuration is known and has a shared endpoint.
fn require_cluster(loaded: &Loaded, input: Option<&NodeInput>, faults: &mut Faults) {
    match (&loaded.cluster, input) {
        (None, Some(input)) => faults.push(input.document.error(
            "this JoinConfiguration is for a control-plane node, but no ClusterConfiguration says what is in its certificates",
            FETCH_CLUSTER,
        )),
        (Some(cluster), _) if cluster.cluster.control_plane_endpoint.is_none() && !cluster.endpoint_written => {
            faults.push(cluster.document.error(
                "a further control-plane node can join only a cluster with a controlPlaneEndpoint, and there is none",
                "set controlPlaneEndpoint to the name or address of the load balancer, in the cluster's kubeadm-config too",
            ));
        }
        _ => {}
    }
}

fn node_name(
    input: Option<&NodeInput>,
    incomplete: bool,
    host: &HostFacts,
    overrides: &Overrides,
    faults: &mut Faults,
) -> Option<(NodeName, Spot)> {
    let given = input.and_then(|input| input.name.as_ref());
    if let Some(name) = &overrides.node_name {
        if let Some((text, spot)) = given
            && text.parse::<NodeName>().ok().as_ref() != Some(name)
        {
            faults.push(spot.warning(
                format!("is {text:?}, but the node name is set to \"{name}\" elsewhere; kubeadm will use this one"),
                "make both the same",
            ));
        }
        return Some((name.clone(), Spot::whole("node name")));
    }
    let running = host.running.as_ref();
    let own = running.and_then(|running| running.name.as_ref().filter(|_| running.settled));
    let own = own.or(running
        .and_then(|running| running.name.as_ref())
        .filter(|_| host.hostname.is_empty()));
    let (text, spot) = match (given, own) {
        (Some((text, spot)), _) => (text.as_str(), spot.clone()),
        (None, Some(own)) => return Some((own.clone(), Spot::whole("node name"))),
        (None, None) => (host.hostname.as_str(), Spot::whole("host name")),
    };
    match text.parse::<NodeName>() {
        Ok(name) => Some((name, spot)),
        // The document that could not be read may well have named the node.
        Err(_) if given.is_none() && incomplete => None,
        Err(refusal) => {
            faults.push(spot.error(refusal.message, refusal.fix));
            None
        }
    }
}

/// The node's name is the common name of etcd's certificates and, behind `system:node:`, of the kubelet's.
fn long_name(role: Role, name: &NodeName, spot: &Spot, faults: &mut Faults) {
    let longest = format!("system:node:{name}");
    if longest.len() > COMMON_NAME_LIMIT {
        let holders = match role {
            Role::Worker => "kubelet.conf",
            _ if name.as_str().len() > COMMON_NAME_LIMIT => {
                "kubelet.conf, etcd-server and etcd-peer"
            }
            _ => "kubelet.conf",
        };
        faults.push(spot.warning(
            format!(
                "the common name in {holders} is longer than the {COMMON_NAME_LIMIT} bytes that X.520 allows (system:node:… has {}), many signers refuse it",
                longest.len()
            ),
            "use a shorter node name, at most 52 bytes",
        ));
    }
}

fn hostname_override(
    input: Option<&NodeInput>,
    name: Option<&NodeName>,
    faults: &mut Faults,
) -> Option<String> {
    let (text, spot) = input?.kubelet.hostname_override.as_ref()?;
    let name = name?;
    let lower = text.trim().to_lowercase();
    if lower == name.as_str() {
        return None;
    }
    faults.push(spot.warning(
        format!("hostname-override {lower:?} differs from the node name \"{name}\": the Node object gets one name, the certificates the other"),
        "set nodeRegistration.name to the same name and remove hostname-override",
    ));
    Some(lower)
}

#[cfg(test)]
mod tests;
