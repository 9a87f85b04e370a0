//! The cluster-wide settings, and the ClusterConfiguration that contains them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::address::{HostPort, IpNet, San, is_dns_subdomain};
use super::fields::{
    ApiVersion, Misplaced, UpperCase, absolute, endpoint, extra_args, filled, misplaced, report,
    sans, warn, warn_of_placeholder,
};
use super::shapes::{self, Shape, unused};
use super::version::KubernetesVersion;
use crate::kube::components::Component;
use crate::kube::manifest::HostMount;
use crate::kube::paths::CERTIFICATES_DIR;
use crate::x509::KeyAlgorithm;
use crate::yaml::schema::{duration_fix, section};
use crate::yaml::{self, Field, Map, Node, format_duration, parse_duration};

const HOUR: u64 = 3600;
/// kubeadm's default validity of leaf certificates, and the longest without a warning.
pub(crate) const YEAR: Duration = Duration::from_secs(8760 * HOUR);
const TEN_YEARS: Duration = Duration::from_secs(87600 * HOUR);
/// kubeadm's `MinimumAddressesInServiceSubnet`.
const MIN_SERVICE_ADDRESSES: u128 = 10;
/// Host bits of the largest service network that kubeadm and kube-apiserver accept: a /12 for IPv4, a /108 for IPv6.
const MAX_SERVICE_HOST_BITS: u8 = 20;

/// Keys that are often written at the top of a ClusterConfiguration, by the place where they belong.
const MISPLACED_IN_CLUSTER: &[Misplaced] = &[
    ("apiServer", &["certSANs"]),
    ("networking", &["podSubnet", "serviceSubnet", "dnsDomain"]),
    (
        "InitConfiguration",
        &[
            "localAPIEndpoint",
            "nodeRegistration",
            "certificateKey",
            "bootstrapTokens",
        ],
    ),
];

/// The settings that all nodes of a cluster share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// `None` if absent or a label such as `stable-1`.
    pub kubernetes_version: Option<KubernetesVersion>,
    /// Name of the cluster and of the contexts in kubeconfigs.
    pub cluster_name: String,
    /// Host and port that clients outside the node connect to.
    pub control_plane_endpoint: Option<HostPort>,
    /// One or two networks; address 1 of the first is in the API server's certificate.
    pub service_subnets: Vec<IpNet>,
    /// The networks of pods; they are in no certificate.
    pub pod_subnets: Vec<IpNet>,
    /// The cluster's DNS domain.
    pub dns_domain: String,
    /// Absolute path of the PKI directory.
    pub certificates_dir: PathBuf,
    /// `apiServer.certSANs`, in the order written.
    pub apiserver_cert_sans: Vec<San>,
    /// `controllerManager.extraVolumes`.
    pub controller_manager_volumes: Vec<HostMount>,
    /// `scheduler.extraVolumes`.
    pub scheduler_volumes: Vec<HostMount>,
    /// Location of etcd.
    pub etcd: Etcd,
    /// Feature gate `ControlPlaneKubeletLocalMode`, if it is set.
    pub kubelet_local_mode: Option<bool>,
    /// `encryptionAlgorithm`, or the algorithm that the feature gate `PublicKeysECDSA` selects.
    pub key_algorithm: KeyAlgorithm,
    /// Validity of leaf certificates.
    pub certificate_validity: Duration,
    /// Validity of CA certificates.
    pub ca_validity: Duration,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig {
            kubernetes_version: None,
            cluster_name: "kubernetes".to_owned(),
            control_plane_endpoint: None,
            service_subnets: IpNet::parse("10.96.0.0/12")
                .map(|(net, _)| net)
                .into_iter()
                .collect(),
            pod_subnets: Vec::new(),
            dns_domain: "cluster.local".to_owned(),
            certificates_dir: PathBuf::from(CERTIFICATES_DIR),
            apiserver_cert_sans: Vec::new(),
            controller_manager_volumes: Vec::new(),
            scheduler_volumes: Vec::new(),
            etcd: Etcd::default(),
            kubelet_local_mode: None,
            key_algorithm: KeyAlgorithm::Rsa2048,
            certificate_validity: YEAR,
            ca_validity: TEN_YEARS,
        }
    }
}

impl ClusterConfig {
    /// Returns whether the manifest that kubeadm writes for kube-controller-manager or kube-scheduler mounts a directory of the
    /// node at the same path (`getHostPathVolumesForTheControlPlane`); false for other components.
    pub fn mounts_directory(&self, component: Component, directory: &Path) -> bool {
        match component {
            Component::KubeControllerManager => {
                directory.starts_with(&self.certificates_dir)
                    || HostMount::any_shows(&self.controller_manager_volumes, directory)
            }
            Component::KubeScheduler => HostMount::any_shows(&self.scheduler_volumes, directory),
            _ => false,
        }
    }
}

/// Location of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Etcd {
    /// A static pod on each control-plane node.
    Local {
        /// Further names for etcd's server certificate, in the order written.
        server_cert_sans: Vec<San>,
        /// Further names for etcd's peer certificate, in the order written.
        peer_cert_sans: Vec<San>,
    },
    /// Outside the cluster; kubeadm makes no certificates for it.
    External {
        /// URLs of the members.
        endpoints: Vec<String>,
        /// CA bundle with which the API server verifies etcd.
        ca_file: Option<PathBuf>,
        /// The API server's client certificate; present exactly if `key_file` is.
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

/// Reads a ClusterConfiguration.
pub(super) fn read_cluster(map: &Map<'_>, api: ApiVersion) -> ClusterConfig {
    let mut cluster = ClusterConfig::default();
    unused(
        map,
        &[("dns", shapes::DNS), ("imageRepository", Shape::Text)],
    );
    misplaced(map, MISPLACED_IN_CLUSTER);
    let fix = "write clusterName for the name of the cluster; that of the node is nodeRegistration.name in the InitConfiguration";
    map.belong_elsewhere([("name", fix.to_owned())]);

    if let Some(field) = map.get("kubernetesVersion")
        && let Some(text) = field.string()
    {
        cluster.kubernetes_version = read_version(&field, &text);
    }
    if let Some((field, text)) = filled(map.get("clusterName")) {
        warn_of_placeholder(&field, &text);
        cluster.cluster_name = text;
    }
    if let Some((field, text)) = filled(map.get("controlPlaneEndpoint")) {
        cluster.control_plane_endpoint = endpoint(&field, &text);
    }
    if let Some((field, text)) = filled(map.get("certificatesDir"))
        && let Some(path) = absolute(&field, &text)
    {
        cluster.certificates_dir = path;
    }
    read_networking(map, &mut cluster);
    if let Some(apiserver) = section(map, "apiServer") {
        unused(&apiserver, &[("extraVolumes", shapes::VOLUMES)]);
        let other = match api {
            // v1beta4 has `timeouts` in InitConfiguration and JoinConfiguration instead.
            ApiVersion::V1beta3 => ("timeoutForControlPlane", Shape::Duration),
            ApiVersion::V1beta4 => ("extraEnvs", Shape::Any),
        };
        unused(&apiserver, &[other]);
        cluster.apiserver_cert_sans = sans(apiserver.get("certSANs"), UpperCase::Accepted);
        extra_args(apiserver.get("extraArgs"), api);
        apiserver.finish();
    }
    let controller_manager = &mut cluster.controller_manager_volumes;
    for (component, volumes) in [
        ("controllerManager", controller_manager),
        ("scheduler", &mut cluster.scheduler_volumes),
    ] {
        if let Some(component) = section(map, component) {
            unused(&component, &[("extraVolumes", shapes::VOLUMES)]);
            *volumes = extra_volumes(component.get("extraVolumes"));
            if api == ApiVersion::V1beta4 {
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
    if api == ApiVersion::V1beta4 {
        unused(map, &[("proxy", shapes::PROXY)]);
        read_validity_periods(map, &mut cluster);
    }
    cluster
}

/// Returns the entries of `extraVolumes` that have both paths; kubeadm reports the others.
fn extra_volumes(field: Option<Field<'_>>) -> Vec<HostMount> {
    let list = field.map(|field| yaml::to_json(field.node()));
    let entries = list.as_ref().and_then(Value::as_array);
    let entries = entries.into_iter().flatten();
    entries
        .filter_map(|entry| {
            let path = |name: &str| entry.get(name).and_then(Value::as_str).map(PathBuf::from);
            Some(HostMount {
                host: path("hostPath")?,
                container: path("mountPath")?,
            })
        })
        .collect()
}

/// Returns the networks of pods. Reports those that kubeadm refuses (`ValidateIPNetFromString`,
/// `ValidatePodSubnetNodeMask`), and another order of IP families than that of the services.
fn pod_subnets(
    field: &Field<'_>,
    text: &str,
    services: &[IpNet],
    sets_node_mask: bool,
) -> Vec<IpNet> {
    let mut subnets = Vec::new();
    for part in text.split(',') {
        match IpNet::parse(part) {
            Ok((network, _)) => {
                subnets.push(network);
                // The defaults of kube-controller-manager (`--node-cidr-mask-size-ipv4` and `-ipv6`).
                let node_prefix = if network.network().is_ipv4() { 24 } else { 64 };
                if network.prefix_len() > node_prefix && !sets_node_mask {
                    field.refused_by_validation(
                        format!("{part} is smaller than the network of one node, a /{node_prefix}"),
                        format!("use a network with a prefix of at most /{node_prefix}"),
                    );
                    return subnets;
                }
            }
            Err(error) => {
                field.error(error.message, error.fix);
                return subnets;
            }
        }
    }
    let families = |networks: &[IpNet]| -> Vec<bool> {
        networks.iter().map(|one| one.network().is_ipv4()).collect()
    };
    let (services, families) = (families(services), families(&subnets));
    if !matches!(families[..], [_] | [true, false] | [false, true]) {
        field.refused_by_validation(
            "kubeadm accepts one network, or one of each IP family",
            "set one IPv4 and one IPv6 network, or only one",
        );
        return subnets;
    }
    if families != services {
        let named = |families: &[bool]| {
            let names = families.iter().map(|v4| if *v4 { "IPv4" } else { "IPv6" });
            names.collect::<Vec<_>>().join(",")
        };
        field.warning(
            format!(
                "is {}, but networking.serviceSubnet is {}: pods and services must have the same IP families in the same order",
                named(&families),
                named(&services)
            ),
            "change one of both, before the cluster is created",
        );
    }
    subnets
}

fn read_networking(map: &Map<'_>, cluster: &mut ClusterConfig) {
    let Some(networking) = section(map, "networking") else {
        return;
    };
    if let Some((field, text)) = filled(networking.get("serviceSubnet"))
        && let Some(subnets) = service_subnets(&field, &text)
    {
        cluster.service_subnets = subnets;
    }
    if let Some((field, text)) = filled(networking.get("podSubnet")) {
        let sets_node_mask = map.get("controllerManager").is_some_and(|component| {
            let arguments = component.node().get("extraArgs").map(yaml::to_json);
            arguments.is_some_and(|arguments| arguments.to_string().contains("node-cidr-mask-size"))
        });
        cluster.pod_subnets = pod_subnets(&field, &text, &cluster.service_subnets, sets_node_mask);
    }
    if let Some((field, text)) = filled(networking.get("dnsDomain")) {
        if is_dns_subdomain(&text) {
            cluster.dns_domain = text;
        } else {
            field.error(
                format!("{text:?} is not a DNS domain"),
                "use lower-case letters, digits, - and ., as in cluster.local",
            );
        }
    }
    networking.finish();
}

/// Returns the version, or `None` for a label: nodepki does not resolve labels, as this requires a request to the network.
fn read_version(field: &Field<'_>, text: &str) -> Option<KubernetesVersion> {
    // `ci/v1.37.0-alpha.1` names a build.
    let bare = text
        .strip_prefix("ci/")
        .or_else(|| text.strip_prefix("release/"))
        .unwrap_or(text);
    if text.is_empty() || is_version_label(bare) {
        return None;
    }
    let version = bare.parse().map_err(|refusal| report(field, refusal)).ok();
    if field.walk().is_strict()
        && let Some(old) = version
            .as_ref()
            .filter(|it: &&KubernetesVersion| !it.at_least(1, 30))
    {
        field.warning(
            format!("kubeadm 1.31 and later refuse to deploy Kubernetes {old}"),
            "write the version of the cluster, such as v1.37.2, or remove it",
        );
    }
    version
}

/// Returns true for `stable`, `stable-1`, `latest-1.36` and the like.
fn is_version_label(text: &str) -> bool {
    let Some(rest) = ["stable", "latest"]
        .iter()
        .find_map(|channel| text.strip_prefix(channel))
    else {
        return false;
    };
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    rest.is_empty()
        || rest.strip_prefix('-').is_some_and(|release| {
            release.split('.').count() <= 2 && release.split('.').all(is_number)
        })
}

fn read_algorithm(map: &Map<'_>, api: ApiVersion, cluster: &mut ClusterConfig) {
    let mut chosen = None;
    if api == ApiVersion::V1beta4
        && let Some((field, text)) = filled(map.get("encryptionAlgorithm"))
    {
        match text.parse::<KeyAlgorithm>() {
            Ok(algorithm) if algorithm != KeyAlgorithm::EcdsaP521 && !algorithm.is_ml_dsa() => {
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
            let enabled = field.boolean();
            if name == "ControlPlaneKubeletLocalMode" {
                cluster.kubelet_local_mode = enabled;
            }
            match (name.as_str(), enabled) {
                ("RootlessControlPlane", _) | ("PublicKeysECDSA", None) => {}
                ("NodeLocalCRISocket", _) => {
                    let fix = "remove it; kubeadm 1.37 always does what it enabled";
                    warn_of_removed_gate(&field, cluster, fix);
                }
                ("PublicKeysECDSA", Some(enabled)) => {
                    apply_ecdsa_gate(&field, enabled, chosen.as_ref(), cluster);
                }
                // Another release of kubeadm may have it.
                _ if field.walk().is_strict() => field.warning(
                    "kubeadm 1.37 does not have this feature gate, and a kubeadm without it refuses the file",
                    "remove it, unless `kubeadm init --help` on the node lists it",
                ),
                _ => {}
            }
        }
    }
    if cluster.key_algorithm == KeyAlgorithm::EcdsaP384
        && let Some(version) = &cluster.kubernetes_version
        && !version.at_least(1, 34)
        && let Some(chosen) = &chosen
    {
        chosen.warning(
            format!("kubeadm 1.34 and later accept ECDSA-P384; that of this cluster, {version}, refuses the file"),
            "use ECDSA-P256, or upgrade first",
        );
    }
}

/// Sets the algorithm that the feature gate `PublicKeysECDSA` selects; kubeadm lets it override `chosen`, the field
/// `encryptionAlgorithm`. What the warnings advise changes no key.
fn apply_ecdsa_gate(
    gate: &Field<'_>,
    enabled: bool,
    chosen: Option<&Field<'_>>,
    cluster: &mut ClusterConfig,
) {
    let written = chosen.map(|_| cluster.key_algorithm);
    let effective = if enabled {
        KeyAlgorithm::EcdsaP256
    } else {
        KeyAlgorithm::Rsa2048
    };
    cluster.key_algorithm = effective;
    let fix = match written {
        Some(written) if written == effective => {
            "remove it; encryptionAlgorithm says the same".to_owned()
        }
        None if !enabled => "remove it; RSA-2048 is the default".to_owned(),
        _ => format!("write encryptionAlgorithm: {effective} instead"),
    };
    warn_of_removed_gate(gate, cluster, &fix);
    if let Some(chosen) = chosen.filter(|_| written != Some(effective)) {
        chosen.warning(
            format!("has no effect: the feature gate PublicKeysECDSA makes it {effective}"),
            format!("write {effective}, and remove featureGates.PublicKeysECDSA"),
        );
    }
}

/// Warns of a gate that kubeadm 1.37 removed, if the cluster has that release; a strict reading warns if its version is unknown
/// too.
fn warn_of_removed_gate(field: &Field<'_>, cluster: &ClusterConfig, fix: &str) {
    let is_removed = match &cluster.kubernetes_version {
        Some(version) => version.at_least(1, 37),
        None => field.walk().is_strict(),
    };
    if is_removed {
        field.warning(
            "kubeadm 1.37 and later do not have this feature gate, and refuse the file",
            fix,
        );
    }
}

fn read_validity_periods(map: &Map<'_>, cluster: &mut ClusterConfig) {
    let leaf = validity_period(map, "certificateValidityPeriod", YEAR, "a year");
    let authority = validity_period(map, "caCertificateValidityPeriod", TEN_YEARS, "ten years");
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
            "leaf certificates would be valid for longer than the CA certificates",
            "make caCertificateValidityPeriod longer",
        );
    }
}

/// Reads a validity period; above `kubeadm_default`, named `default_name` in the message, it adds a warning.
fn validity_period<'a>(
    map: &Map<'a>,
    key: &str,
    kubeadm_default: Duration,
    default_name: &str,
) -> Option<(Field<'a>, Duration)> {
    let (field, text) = filled(map.get(key))?;
    match parse_duration(&text) {
        Ok(period) if period.is_zero() => {
            field.error(
                "must be longer than zero",
                format!("use a period such as {}", format_duration(kubeadm_default)),
            );
            None
        }
        Ok(period) => {
            if period > kubeadm_default {
                field.warning(format!("is longer than {default_name}"), "shorten it");
            }
            Some((field, period))
        }
        Err(message) => {
            let fix = if text.bytes().all(|b| b.is_ascii_digit()) {
                // A number of seconds, as elsewhere, would end a certificate within hours.
                format!("write {text}h for hours; units are h, m and s")
            } else {
                duration_fix(&text, &format_duration(kubeadm_default))
            };
            field.error(message, fix);
            None
        }
    }
}

fn read_etcd(map: &Map<'_>, api: ApiVersion) -> Etcd {
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
        unused(
            &local,
            &[
                ("dataDir", Shape::Path),
                ("imageRepository", Shape::Text),
                ("imageTag", Shape::Text),
            ],
        );
        if api == ApiVersion::V1beta4 {
            local.ignore(&["extraEnvs"]);
        }
        extra_args(local.get("extraArgs"), api);
        etcd = Etcd::Local {
            server_cert_sans: sans(local.get("serverCertSANs"), UpperCase::Refused),
            peer_cert_sans: sans(local.get("peerCertSANs"), UpperCase::Refused),
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
            .and_then(Node::text)
            .is_some_and(|text| !text.is_empty())
    };
    if given("certFile") != given("keyFile") {
        map.field().error(
            "only one of certFile and keyFile is set",
            "set both or neither",
        );
    } else if given("certFile") && !given("caFile") {
        map.field().error(
            "certFile and keyFile are set without caFile",
            "set caFile to the CA certificate of etcd",
        );
    }
    let allows_http = !(given("caFile") || given("certFile") || given("keyFile"));
    let endpoints = match map.get("endpoints") {
        Some(field) => read_etcd_endpoints(&field, allows_http),
        None => {
            map.field()
                .refused_by_validation("no endpoints are set", "list the URLs of the etcd members");
            Vec::new()
        }
    };
    Etcd::External {
        endpoints,
        ca_file,
        cert_file,
        key_file,
    }
}

fn read_etcd_endpoints(field: &Field<'_>, allows_http: bool) -> Vec<String> {
    let mut endpoints = Vec::new();
    let items = field.list();
    if items.as_ref().is_some_and(Vec::is_empty) {
        field.refused_by_validation("is empty", "list the URLs of the etcd members");
    }
    for item in items.unwrap_or_default() {
        let Some(text) = item.string() else { continue };
        let rest = match text.split_once("://") {
            Some(("https", rest)) => Some(rest),
            Some(("http", rest)) if allows_http => Some(rest),
            _ => None,
        };
        if rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/')) {
            endpoints.push(text);
        } else {
            let schemes = if allows_http {
                "http or https"
            } else {
                "https"
            };
            let rest = text
                .split_once("://")
                .map_or(text.as_str(), |(_, rest)| rest);
            item.error(
                format!("{text:?} is not an {schemes} URL"),
                if rest.is_empty() || rest.starts_with('/') {
                    "write it as https://HOST:2379".to_owned()
                } else {
                    format!("write https://{rest}")
                },
            );
        }
    }
    endpoints
}

fn service_subnets(field: &Field<'_>, text: &str) -> Option<Vec<IpNet>> {
    let mut subnets = Vec::new();
    for part in text.split(',') {
        let (subnet, note) = IpNet::parse(part)
            .map_err(|refusal| report(field, refusal))
            .ok()?;
        warn(field, note);
        let size = subnet.size();
        if size < MIN_SERVICE_ADDRESSES {
            field.error(
                format!(
                    "{part} has {size} addresses, but kubeadm requires at least {MIN_SERVICE_ADDRESSES}"
                ),
                "use a larger network, as in 10.96.0.0/12",
            );
            return None;
        }
        if subnet.host_bits() > MAX_SERVICE_HOST_BITS {
            let shortest_prefix = subnet.prefix_len() + subnet.host_bits() - MAX_SERVICE_HOST_BITS;
            field.error(
                format!("{part} is larger than kube-apiserver supports"),
                format!("use a prefix of /{shortest_prefix} or longer"),
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
                "both networks have the same IP family",
                "set one IPv4 and one IPv6 network, or only one",
            );
            None
        }
        _ => {
            field.error(
                format!(
                    "{} networks are given, but at most two are allowed",
                    subnets.len()
                ),
                "set one IPv4 and one IPv6 network, or only one",
            );
            None
        }
    }
}
