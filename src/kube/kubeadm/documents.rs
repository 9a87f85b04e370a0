//! The documents of a kubeadm configuration, field by field: what is read, what is ignored and what is refused.
//!
//! Owns the rules of a single document. What several of them and the host say together is the business of `resolve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{
    Api, ApiEndpoint, Cluster, ClusterInput, DEFAULT_BIND_PORT, Endpoint, Etcd, IpNet,
    KubeletArguments, Loaded, NodeInput, Refusal, San, TEN_YEARS, Version, YEAR, is_dns_subdomain,
    is_global_unicast, join, parse_ip,
};
use crate::x509::KeyAlgorithm;
use crate::yaml::{
    self, Fault, Field, Map, Node as Tree, Severity, Spot, Walk, format_duration, parse_duration,
};

/// kubeadm's `MinimumAddressesInServiceSubnet`.
const MIN_SERVICE_ADDRESSES: u128 = 10;
/// kubeadm's and kube-apiserver's largest service network: a /12 for IPv4, a /108 for IPv6.
const MAX_SERVICE_BITS: u8 = 20;
/// Many signers refuse more names in one certificate.
const MANY_SANS: usize = 100;

pub(super) fn kind_of(document: &Tree) -> Option<&str> {
    document.get("kind").and_then(Tree::text)
}

impl Loaded {
    pub(super) fn read_text(&mut self, file: &str, text: &str) {
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

    pub(super) fn read_document(&mut self, document: &Tree) {
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

pub(super) fn endpoint(field: &Field<'_>, text: &str) -> Option<Endpoint> {
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

pub(super) fn absolute(field: &Field<'_>, text: &str) -> Option<PathBuf> {
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
pub(super) fn filled(field: Option<Field<'_>>) -> Option<(Field<'_>, String)> {
    let field = field?;
    let text = field.string()?;
    (!text.is_empty()).then_some((field, text))
}

pub(super) fn section<'a>(map: &Map<'a>, key: &str) -> Option<Map<'a>> {
    map.get(key)?.map()
}
