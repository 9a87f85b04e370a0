//! The settings of one node, and the InitConfiguration or JoinConfiguration that contains them.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::address::{HostPort, NodeName, is_global_unicast, parse_ip};
use super::fields::{ApiVersion, Misplaced, extra_args, filled, misplaced, report, warn};
use super::join::{self, JoinDiscovery};
use super::shapes::{self, Shape, unused};
use crate::kube::kubeadm_certs::CertificateKey;
use crate::kube::paths::cleaned;
use crate::yaml::schema::section;
use crate::yaml::{FieldPosition, Map, Node, NodeKind};

pub(super) const DEFAULT_BIND_PORT: u16 = 6443;
pub(super) const ADDRESS_FIX: &str =
    "write the node's own address, or remove the field to use that of the default route";

/// Keys that are often written at the top of an InitConfiguration or JoinConfiguration, by the place where they belong.
const MISPLACED_IN_NODE: &[Misplaced] = &[
    (
        "nodeRegistration",
        &["name", "criSocket", "taints", "kubeletExtraArgs"],
    ),
    ("localAPIEndpoint", &["advertiseAddress", "bindPort"]),
    (
        "ClusterConfiguration",
        &[
            "apiServer",
            "certificatesDir",
            "clusterName",
            "controlPlaneEndpoint",
            "encryptionAlgorithm",
            "etcd",
            "kubernetesVersion",
            "networking",
        ],
    ),
];
/// As [`MISPLACED_IN_NODE`], for a JoinConfiguration only.
const MISPLACED_IN_JOIN: &[Misplaced] = &[
    ("controlPlane", &["localAPIEndpoint", "certificateKey"]),
    ("discovery.bootstrapToken", &["token"]),
    ("discovery", &["bootstrapToken"]),
];

words! {
    /// The part of a node in its cluster.
    pub enum KubeadmRole: Serialize, Deserialize {
        /// The first control-plane node.
        Init = "init",
        /// A further control-plane node.
        Join = "join",
        /// A node without a control plane.
        Worker = "worker",
        /// A member of an external etcd, without a control plane and without a kubelet in the cluster. No document of kubeadm
        /// says so: [`Overrides::role`](super::Overrides::role) does.
        Etcd = "etcd",
    }
}

impl KubeadmRole {
    /// Returns true for a node with a kube-apiserver.
    pub const fn has_control_plane(self) -> bool {
        matches!(self, KubeadmRole::Init | KubeadmRole::Join)
    }
}

/// The settings of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its part in the cluster.
    pub role: KubeadmRole,
    /// Name of the Node object, also used in certificates.
    pub name: NodeName,
    /// Address of its API server; `None` exactly for a worker.
    pub advertise_address: Option<IpAddr>,
    /// Port of its API server.
    pub bind_port: u16,
    /// The kubelet's `hostname-override`, if it differs from the name.
    pub hostname_override: Option<String>,
    /// Addresses that the kubelet registers, as far as they are known: `node-ip`, or else that of the API server and
    /// that of the default route.
    pub kubelet_addresses: Vec<IpAddr>,
    /// The kubelet's `cert-dir`.
    pub kubelet_cert_dir: Option<PathBuf>,
    /// URL of the API server in a worker's kubelet.conf, from that file or from the discovery of the cluster. `None`: the
    /// URL of `join_endpoint`.
    pub server: Option<String>,
    /// `discovery.bootstrapToken.apiServerEndpoint` of a joining node. For a worker without that field, it is the
    /// `controlPlaneEndpoint`; always present for a worker without `server`.
    pub join_endpoint: Option<HostPort>,
    /// How a joining node finds its cluster; present exactly if a JoinConfiguration is.
    pub join: Option<JoinDiscovery>,
}

/// An InitConfiguration or JoinConfiguration.
#[derive(Debug)]
pub(super) struct NodeDocument {
    pub(super) document: FieldPosition,
    pub(super) name: LocatedText,
    /// `None` for a worker.
    pub(super) api_endpoint: Option<ApiEndpoint>,
    pub(super) kubelet: KubeletArguments,
    pub(super) join_endpoint: Option<HostPort>,
    pub(super) join: Option<JoinDiscovery>,
    /// `certificateKey` of an InitConfiguration, with its position.
    pub(super) upload_key: Option<(CertificateKey, FieldPosition)>,
}

/// The arguments in `nodeRegistration.kubeletExtraArgs` that nodepki uses; the last of several with one name counts.
#[derive(Debug, Default)]
pub(super) struct KubeletArguments {
    pub(super) hostname_override: LocatedText,
    pub(super) node_ips: Vec<IpAddr>,
    /// Whether the first of `node-ip`, which may be `::`, is of IPv6.
    pub(super) prefers_ipv6: bool,
    pub(super) cert_dir: Option<PathBuf>,
}

/// `localAPIEndpoint`.
#[derive(Debug, Default)]
pub(super) struct ApiEndpoint {
    /// `None` if absent, invalid or unspecified.
    pub(super) address: Option<IpAddr>,
    /// Whether the address is `::`.
    pub(super) prefers_ipv6: bool,
    /// Position of a loopback address, which stands for an address of the interface `lo`.
    pub(super) on_loopback: Option<FieldPosition>,
    /// True if the address was refused: its absence is not a second fault.
    pub(super) is_invalid: bool,
    pub(super) bind_port: u16,
}

type LocatedText = Option<(String, FieldPosition)>;

/// Reads an InitConfiguration.
pub(super) fn read_init(map: &Map<'_>, api: ApiVersion, document: FieldPosition) -> NodeDocument {
    mark_unused(map, api);
    misplaced(map, MISPLACED_IN_NODE);
    join::check_bootstrap_tokens(map);
    let (name, kubelet, _) = read_registration(map, api);
    let upload_key = read_upload_key(map);
    NodeDocument {
        document,
        name,
        api_endpoint: Some(read_api_endpoint(map)),
        kubelet,
        join_endpoint: None,
        join: None,
        upload_key,
    }
}

/// Marks the fields of both documents that nodepki does not use.
fn mark_unused(map: &Map<'_>, api: ApiVersion) {
    unused(
        map,
        &[("skipPhases", shapes::TEXTS), ("patches", shapes::PATCHES)],
    );
    if api == ApiVersion::V1beta4 {
        unused(
            map,
            &[("dryRun", Shape::Boolean), ("timeouts", shapes::TIMEOUTS)],
        );
    }
}

/// Reads `certificateKey`. kubeadm validates it; a run that does not upload works with any value.
fn read_upload_key(map: &Map<'_>) -> Option<(CertificateKey, FieldPosition)> {
    let field = map.get("certificateKey")?;
    let text = field.scalar_secret();
    if text.as_ref().is_some_and(|text| text.is_empty()) {
        return None;
    }
    let key = text.and_then(|text| text.parse().ok());
    if key.is_none() {
        field.refused_by_validation(
            "is not a certificate key",
            "write the 64 hexadecimal digits that `nodepki certs key` prints, or remove the field",
        );
    }
    Some((key?, field.spot()))
}

/// Reads a JoinConfiguration.
pub(super) fn read_join(map: &Map<'_>, api: ApiVersion, document: FieldPosition) -> NodeDocument {
    mark_unused(map, api);
    misplaced(map, MISPLACED_IN_JOIN);
    misplaced(map, MISPLACED_IN_NODE);
    let (name, kubelet, ignores_all_errors) = read_registration(map, api);
    let control_plane = section(map, "controlPlane");
    let (mut join, join_endpoint) = join::read(map, control_plane.as_ref(), api);
    join.ignores_all_errors = ignores_all_errors;
    let api_endpoint = control_plane.map(|control_plane| {
        let endpoint = read_api_endpoint(&control_plane);
        control_plane.finish();
        endpoint
    });
    NodeDocument {
        document,
        name,
        api_endpoint,
        kubelet,
        join_endpoint,
        join: Some(join),
        upload_key: None,
    }
}

/// Returns whether the list of ignored preflight errors contains `all`, and reports other names beside it, with which
/// `kubeadm init` and `kubeadm join` refuse the file (`ValidateIgnorePreflightErrors`).
fn ignores_all_errors(registration: &Map<'_>) -> bool {
    let Some(field) = registration.get("ignorePreflightErrors") else {
        return false;
    };
    let NodeKind::Seq(items) = &field.node().kind else {
        return false;
    };
    let is_all = |item: &Node| {
        let text = item.text().unwrap_or_default();
        text.eq_ignore_ascii_case("all")
    };
    let has_all = items.iter().any(is_all);
    if has_all && !items.iter().all(is_all) {
        field.refused_by_validation(
            "contains all and other names, which kubeadm refuses",
            "remove the other names",
        );
    }
    has_all
}

/// Reads the node's name, the kubelet's arguments and whether kubeadm ignores all preflight errors.
fn read_registration(map: &Map<'_>, api: ApiVersion) -> (LocatedText, KubeletArguments, bool) {
    let mut kubelet = KubeletArguments::default();
    let Some(registration) = section(map, "nodeRegistration") else {
        return (None, kubelet, false);
    };
    let ignores_all_errors = ignores_all_errors(&registration);
    unused(
        &registration,
        &[
            ("criSocket", Shape::Text),
            ("taints", Shape::List(&Shape::Any)),
            ("ignorePreflightErrors", shapes::TEXTS),
            ("imagePullPolicy", shapes::PULL_POLICY),
        ],
    );
    if api == ApiVersion::V1beta4 {
        unused(&registration, &[("imagePullSerial", Shape::Boolean)]);
    }
    let name = filled(registration.get("name")).and_then(|(field, text)| {
        // A number that is not a name in quotes either.
        if field.node().kind_name() != "text"
            && let Err(refusal) = text.parse::<NodeName>()
        {
            report(&field, refusal);
            return None;
        }
        Some((text, field.spot()))
    });
    for (name, value, spot) in extra_args(registration.get("kubeletExtraArgs"), api) {
        match name.as_str() {
            "hostname-override" => kubelet.hostname_override = Some((value, spot)),
            "cert-dir" => {
                let path = Path::new(&value);
                kubelet.cert_dir = path.is_absolute().then(|| cleaned(path));
            }
            // 0.0.0.0 and :: only select an IP family (`nodeutil.GetNodeHostIPs`).
            "node-ip" => {
                let ips = value.split(',').filter_map(|ip| ip.trim().parse().ok());
                let ips: Vec<IpAddr> = ips.collect();
                kubelet.prefers_ipv6 = ips.first().is_some_and(IpAddr::is_ipv6);
                kubelet.node_ips = ips.into_iter().filter(|ip| !ip.is_unspecified()).collect();
            }
            _ => {}
        }
    }
    registration.finish();
    (name, kubelet, ignores_all_errors)
}

fn read_api_endpoint(map: &Map<'_>) -> ApiEndpoint {
    let mut endpoint = ApiEndpoint {
        bind_port: DEFAULT_BIND_PORT,
        ..ApiEndpoint::default()
    };
    let Some(local) = section(map, "localAPIEndpoint") else {
        return endpoint;
    };
    if let Some((field, text)) = filled(local.get("advertiseAddress")) {
        match parse_ip(&text) {
            // It only selects the IP family (`ResolveBindAddress` of apimachinery).
            Some((ip, _)) if ip.is_unspecified() => endpoint.prefers_ipv6 = ip.is_ipv6(),
            Some((ip, note)) if is_global_unicast(ip) => {
                warn(&field, note);
                endpoint.address = Some(ip);
            }
            // `SetAPIEndpointDynamicDefaults` of kubeadm.
            Some((ip, _)) if ip.is_loopback() => endpoint.on_loopback = Some(field.spot()),
            Some((ip, _)) => {
                endpoint.is_invalid = true;
                field.error(
                    format!("{ip} is a link-local, multicast or broadcast address, which other nodes cannot reach"),
                    ADDRESS_FIX,
                );
            }
            None => {
                endpoint.is_invalid = true;
                field.error(format!("{text:?} is not an IP address"), ADDRESS_FIX);
            }
        }
    }
    if let Some(field) = local.get("bindPort")
        && let Some(number) = field.integer()
    {
        match u16::try_from(number) {
            // The default of kubeadm replaces it (`SetDefaults_APIEndpoint`).
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
