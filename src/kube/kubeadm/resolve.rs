//! Combines the documents with the facts of the host into a cluster and a node.
//!
//! Owns the rules that involve several documents or the host. Each step of [`resolve`] is a separate function that
//! returns its value and adds its faults.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::address::{HostPort, NodeName, is_global_unicast};
use super::cluster::{ClusterConfig, Etcd};
use super::documents::Documents;
use super::join::Discovery;
use super::node::{
    ADDRESS_FIX, DEFAULT_BIND_PORT, KubeadmRole, KubeletArguments, NodeConfig, NodeDocument,
};
use crate::yaml::{Faults, FieldPosition};

/// X.520's upper bound for a common name, in bytes.
const MAX_COMMON_NAME_BYTES: usize = 64;

const FETCH_CLUSTER: &str = "bootstrap reads it from the cluster unless kubeadm.fromCluster is never; otherwise set kubeadm.clusterConfiguration in the nodepki \
    configuration, or add --kubeadm-config FILE, with the output of this command on a control-plane node: kubectl -n kube-system get cm kubeadm-config -o jsonpath='{.data.ClusterConfiguration}'";
const NAME_KUBEADM_FILE: &str =
    "name the file given to kubeadm under kubeadm.files or with --kubeadm-config FILE";

/// Facts about the node that no document contains.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// The host name from the kernel or `/etc/hostname`.
    pub hostname: String,
    /// Addresses of the interfaces with the default routes, at most one of each family.
    pub default_route_addresses: Vec<IpAddr>,
    /// Addresses of the interface `lo`.
    pub loopback_interface_addresses: Vec<IpAddr>,
    /// The node as its existing files describe it.
    pub running: Option<ExistingNode>,
    /// URL of the API server for a worker's kubelet.conf, from the discovery of the cluster.
    pub joined_server: Option<String>,
    /// The node as an earlier run recorded it with its requests. Used if no document describes the node.
    pub kept: Option<NodeConfig>,
}

impl HostFacts {
    /// Returns the address that replaces an unspecified one, as `ResolveBindAddress` of apimachinery chooses it: for `::`
    /// rather one of IPv6, otherwise one of IPv4.
    fn default_route_address(&self, prefers_ipv6: bool) -> Option<IpAddr> {
        let routed = self.default_route_addresses.iter().copied();
        let routed = routed.filter(|ip| is_global_unicast(*ip));
        routed.min_by_key(|ip| ip.is_ipv6() != prefers_ipv6)
    }

    /// Returns the address that replaces a loopback address, as `ChooseBindAddressForInterface` of apimachinery chooses it.
    fn loopback_interface_address(&self) -> Option<IpAddr> {
        let all = self.loopback_interface_addresses.iter().copied();
        all.filter(|ip| is_global_unicast(*ip))
            .min_by_key(IpAddr::is_ipv6)
    }
}

/// A node that was set up before, as its own files describe it. kubeadm uses the same files once it has run.
#[derive(Clone, Debug)]
pub struct ExistingNode {
    /// Used if no document states the role.
    pub role: KubeadmRole,
    /// Its name in the cluster.
    pub name: Option<NodeName>,
    /// Address and port of its API server.
    pub endpoint: Option<SocketAddr>,
    /// URL of the API server that its kubelet uses. `None` if documents describe the node and kubeadm has not run yet: they
    /// may still be corrected.
    pub server: Option<String>,
    /// The kubelet's `--cert-dir`, as kubeadm wrote it for the kubelet.
    pub kubelet_cert_dir: Option<PathBuf>,
    /// True if the node serves, or if nothing else describes it: these values then precede the host's name and
    /// address. False if an interrupted run left the files before kubeadm ran: the host's name and address precede.
    pub settled: bool,
}

/// Settings and command-line options that override the documents.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Node name, instead of `nodeRegistration.name`.
    pub node_name: Option<NodeName>,
    /// Role, instead of that of the documents.
    pub role: Option<KubeadmRole>,
}

/// The outcome of [`resolve`].
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The cluster; `None` only for a worker whose configuration has none.
    pub cluster: Option<ClusterConfig>,
    /// The node.
    pub node: NodeConfig,
    /// Warnings of all documents.
    pub warnings: Faults,
}

/// Combines the documents with the facts of the host.
///
/// # Errors
/// All faults of [`load`](super::load) and of the rules that involve several documents, warnings included, in reading
/// order.
pub fn resolve(
    loaded: &Documents,
    host: &HostFacts,
    overrides: &Overrides,
) -> Result<Resolved, Faults> {
    if let Some(recorded) = host.kept.as_ref().filter(|_| !loaded.describes_node()) {
        return resolve_recorded(loaded, recorded, overrides);
    }
    let inputs = ResolveInputs::new(loaded, host, overrides);
    let mut faults = loaded.faults.clone();
    inputs.check_single_node_document(&mut faults);
    let role = inputs.role(&mut faults);
    inputs.check_joinable_cluster(role, &mut faults);
    inputs.check_etcd_member(role, &mut faults);
    let name = inputs.name(&mut faults);
    if let Some((name, spot)) = &name {
        warn_of_long_name(role, name, spot, &mut faults);
        warn_of_local_name(name, spot, &mut faults);
    }
    let name = name.map(|(name, _)| name);
    let hostname_override = inputs.hostname_override(name.as_ref(), &mut faults);
    let advertise_address = inputs.advertise_address(role, &mut faults);
    let server = inputs.server(role);
    let join_endpoint = inputs.join_endpoint(role, server.is_some(), &mut faults);
    let kubelet = inputs.node.map(|node| &node.kubelet);
    let node = name.map(|name| NodeConfig {
        role,
        name,
        advertise_address,
        bind_port: inputs.bind_port(),
        hostname_override,
        kubelet_addresses: kubelet_addresses(
            kubelet,
            advertise_address,
            host.default_route_address(kubelet.is_some_and(|kubelet| kubelet.prefers_ipv6)),
        ),
        kubelet_cert_dir: kubelet
            .and_then(|kubelet| kubelet.cert_dir.clone())
            .or_else(|| host.running.as_ref()?.kubelet_cert_dir.clone()),
        server,
        join_endpoint,
        join: inputs.node.and_then(|node| node.join.clone()),
    });
    let cluster = match role {
        KubeadmRole::Worker => loaded.cluster().cloned(),
        KubeadmRole::Init | KubeadmRole::Join | KubeadmRole::Etcd => {
            Some(loaded.cluster().cloned().unwrap_or_default())
        }
    };
    inputs.check_families(advertise_address, cluster.as_ref(), &mut faults);
    let (node, warnings) = faults.outcome(node)?;
    match node {
        Some(node) => Ok(Resolved {
            cluster,
            node,
            warnings,
        }),
        // `ResolveInputs::name` has reported the missing name.
        None => Err(warnings),
    }
}

/// Returns the node of an earlier run, in the cluster that the documents describe.
fn resolve_recorded(
    loaded: &Documents,
    recorded: &NodeConfig,
    overrides: &Overrides,
) -> Result<Resolved, Faults> {
    let mut faults = loaded.faults.clone();
    let name = overrides.node_name.as_ref().unwrap_or(&recorded.name);
    let name_spot = FieldPosition::whole("node name");
    warn_of_long_name(recorded.role, name, &name_spot, &mut faults);
    if recorded.role != KubeadmRole::Worker && loaded.cluster().is_none() && !loaded.incomplete {
        faults.push(
            FieldPosition::whole("kubeadm configuration")
                .error("no ClusterConfiguration was found", NAME_KUBEADM_FILE),
        );
    }
    let node = NodeConfig {
        name: name.clone(),
        ..recorded.clone()
    };
    let (node, warnings) = faults.outcome(node)?;
    Ok(Resolved {
        cluster: loaded.cluster().cloned(),
        node,
        warnings,
    })
}

/// The inputs of the steps of [`resolve`].
struct ResolveInputs<'a> {
    loaded: &'a Documents,
    host: &'a HostFacts,
    overrides: &'a Overrides,
    /// The JoinConfiguration, or else the InitConfiguration.
    node: Option<&'a NodeDocument>,
    running: Option<&'a ExistingNode>,
    /// `running`, if its values precede the host's.
    settled: Option<&'a ExistingNode>,
}

impl<'a> ResolveInputs<'a> {
    fn new(loaded: &'a Documents, host: &'a HostFacts, overrides: &'a Overrides) -> Self {
        let running = host.running.as_ref();
        ResolveInputs {
            loaded,
            host,
            overrides,
            node: loaded.join.as_ref().or(loaded.init.as_ref()),
            running,
            settled: running.filter(|running| running.settled),
        }
    }

    /// Returns the document that faults about the whole configuration refer to.
    fn main_document(&self) -> Option<&'a FieldPosition> {
        let node = self.node.map(|node| &node.document);
        node.or(self.loaded.cluster.as_ref().map(|input| &input.document))
    }

    /// Reports an InitConfiguration next to a JoinConfiguration.
    ///
    /// In two files this is a warning: `kubeadm join` reads its own file only, and Cluster API may give a joining node the
    /// first node's file too, for the ClusterConfiguration in it.
    fn check_single_node_document(&self, faults: &mut Faults) {
        let (Some(init), Some(join)) = (&self.loaded.init, &self.loaded.join) else {
            return;
        };
        let message = format!(
            "a JoinConfiguration and an InitConfiguration (at {}) are both given",
            init.document.place
        );
        let fix =
            "keep the InitConfiguration on the first node and the JoinConfiguration on every other";
        faults.push(if init.document.place.file == join.document.place.file {
            join.document.error(message, fix)
        } else {
            let message =
                format!("{message}; the node joins, and the InitConfiguration is ignored");
            join.document.warning(message, fix)
        });
    }

    /// Warns if the API server would not start: its address must have the family of the first service network
    /// (`validatePublicIPServiceClusterIPRangeIPFamilies` of kube-apiserver).
    fn check_families(
        &self,
        advertise_address: Option<IpAddr>,
        cluster: Option<&ClusterConfig>,
        faults: &mut Faults,
    ) {
        let (Some(address), Some(cluster)) = (advertise_address, cluster) else {
            return;
        };
        let Some(services) = cluster.service_subnets.first() else {
            return;
        };
        if services.network().is_ipv4() == address.is_ipv4() {
            return;
        }
        let spot = match &self.loaded.cluster {
            Some(document) => document.document.clone(),
            None => FieldPosition::whole("kubeadm configuration"),
        };
        faults.push(spot.warning(
            format!(
                "the API server's address {address} and the first network of the services, {services}, have different IP families: kube-apiserver does not start"
            ),
            "set localAPIEndpoint.advertiseAddress and networking.serviceSubnet to one family; for two families, write the one of the address first",
        ));
    }

    /// Returns the role of the override, or else from the documents, or else that of the settled node, or else that of a first node.
    fn role(&self, faults: &mut Faults) -> KubeadmRole {
        if let Some(role) = self.overrides.role.or_else(|| self.loaded.role()) {
            return role;
        }
        if let Some(running) = self.settled {
            return running.role;
        }
        if self.loaded.cluster().is_none() && !self.loaded.incomplete {
            let (source, empty) = match &self.loaded.empty_file {
                Some(file) => (file.as_str(), "the file is empty: "),
                None => ("kubeadm configuration", ""),
            };
            faults.push(FieldPosition::whole(source).error(
                format!("{empty}no InitConfiguration, ClusterConfiguration or JoinConfiguration was found"),
                NAME_KUBEADM_FILE,
            ));
        }
        KubeadmRole::Init
    }

    /// Verifies that a joining control-plane node knows the cluster's configuration, and that the cluster has a
    /// `controlPlaneEndpoint`.
    fn check_joinable_cluster(&self, role: KubeadmRole, faults: &mut Faults) {
        let Some(node) = self.node else { return };
        if role != KubeadmRole::Join || self.loaded.incomplete {
            return;
        }
        match &self.loaded.cluster {
            None => faults.push(node.document.error(
                "this JoinConfiguration is for a control-plane node, but the ClusterConfiguration that defines its certificates is missing",
                FETCH_CLUSTER,
            )),
            Some(input)
                if input.cluster.control_plane_endpoint.is_none() && !input.endpoint_written =>
            {
                faults.push(input.document.error(
                    "a further control-plane node can join only a cluster with a controlPlaneEndpoint, and none is set",
                    "set controlPlaneEndpoint to the name or address of the load balancer, in the cluster's kubeadm-config too",
                ));
            }
            Some(_) => {}
        }
    }

    /// Verifies that the documents of an etcd member are those of `kubeadm init phase etcd local`: an InitConfiguration and a
    /// ClusterConfiguration with a local etcd.
    fn check_etcd_member(&self, role: KubeadmRole, faults: &mut Faults) {
        if role != KubeadmRole::Etcd {
            return;
        }
        if let Some(join) = &self.loaded.join {
            faults.push(join.document.error(
                "the role of this node is etcd, but a JoinConfiguration describes a node that joins a cluster",
                "give the InitConfiguration of the etcd member, or remove the setting role",
            ));
        }
        if let Some(input) = &self.loaded.cluster
            && matches!(input.cluster.etcd, Etcd::External { .. })
        {
            faults.push(input.document.error(
                "the role of this node is etcd, but etcd.external describes the etcd of a control-plane node",
                "write etcd.local, as for kubeadm init phase etcd local, or remove the setting role",
            ));
        }
    }

    /// Returns the node's name and its origin. In this order: the override, `nodeRegistration.name`, the settled node,
    /// the host name, and, on a host without a name, the node of an interrupted run.
    fn name(&self, faults: &mut Faults) -> Option<(NodeName, FieldPosition)> {
        let written = self.node.and_then(|node| node.name.as_ref());
        if let Some(name) = &self.overrides.node_name {
            if let Some((text, spot)) = written
                && text.parse::<NodeName>().ok().as_ref() != Some(name)
            {
                faults.push(spot.warning(
                    format!("is {text:?}, but the node name is set to \"{name}\" elsewhere; kubeadm will use {text:?}"),
                    "make both the same",
                ));
            }
            return Some((name.clone(), FieldPosition::whole("node name")));
        }
        let (text, spot) = match (written, self.existing_name()) {
            (Some((text, spot)), _) => (text.as_str(), spot.clone()),
            (None, Some(name)) => return Some((name.clone(), FieldPosition::whole("node name"))),
            (None, None) => (
                self.host.hostname.as_str(),
                FieldPosition::whole("host name"),
            ),
        };
        match text.parse::<NodeName>() {
            Ok(name) => Some((name, spot)),
            // The unreadable document may contain the node's name.
            Err(_) if written.is_none() && self.loaded.incomplete => None,
            Err(refusal) => {
                faults.push(spot.error(refusal.message, refusal.fix));
                None
            }
        }
    }

    /// Returns the name of the existing node, if it precedes the host name.
    fn existing_name(&self) -> Option<&'a NodeName> {
        let running = self
            .running
            .filter(|running| running.settled || self.host.hostname.is_empty());
        running?.name.as_ref()
    }

    /// Returns the kubelet's `hostname-override` if it differs from the node's name, with a warning.
    fn hostname_override(&self, name: Option<&NodeName>, faults: &mut Faults) -> Option<String> {
        let (text, spot) = self.node?.kubelet.hostname_override.as_ref()?;
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

    /// Returns the address of the node's API server; `None` for a worker.
    fn advertise_address(&self, role: KubeadmRole, faults: &mut Faults) -> Option<IpAddr> {
        if role == KubeadmRole::Worker {
            return None;
        }
        let api = self.node.and_then(|node| node.api_endpoint.as_ref());
        if let Some(spot) = api.and_then(|api| api.on_loopback.as_ref()) {
            let existing = self.running.and_then(|running| running.endpoint);
            let existing = existing.map(|endpoint| endpoint.ip());
            let found = self.host.loopback_interface_address().or(existing);
            if found.is_none() {
                faults.push(spot.error(
                    "a loopback address stands for an address of the interface lo, which has none that other nodes can reach",
                    ADDRESS_FIX,
                ));
            }
            return found;
        }
        let written = api.and_then(|api| api.address);
        if let Some(address) = written.or_else(|| self.assumed_address()) {
            return Some(address);
        }
        if self.settled.is_some() && self.node.is_none() {
            faults.push(FieldPosition::whole("this node").error(
                "neither the manifest of kube-apiserver nor controller-manager.conf contains the address of the node's API server",
                "write an InitConfiguration with nodeRegistration.name and localAPIEndpoint.advertiseAddress, and name it with --kubeadm-config FILE",
            ));
        } else if !api.is_some_and(|api| api.is_invalid)
            && let Some(document) = self.main_document()
        {
            faults.push(document.error(
                "no advertiseAddress is set (0.0.0.0 and :: do not count), and the node has no default route to take one from",
                match role {
                    KubeadmRole::Join => "set controlPlane.localAPIEndpoint.advertiseAddress to the node's own address",
                    KubeadmRole::Init | KubeadmRole::Worker | KubeadmRole::Etcd => "set localAPIEndpoint.advertiseAddress in an InitConfiguration to the node's own address",
                },
            ));
        }
        None
    }

    /// Returns the address to use if the documents contain none: that of the existing node or of the default route.
    fn assumed_address(&self) -> Option<IpAddr> {
        let api = self.node.and_then(|node| node.api_endpoint.as_ref());
        let prefers_ipv6 = api.is_some_and(|api| api.prefers_ipv6);
        let route = self.host.default_route_address(prefers_ipv6);
        let existing = self.running.and_then(|running| running.endpoint);
        let existing = existing.map(|endpoint| endpoint.ip());
        match self.settled {
            // Without a kubeadm file a settled node keeps its address: the default route may have another one.
            Some(_) => existing.or(route.filter(|_| self.node.is_some())),
            None => route.or(existing),
        }
    }

    fn bind_port(&self) -> u16 {
        match self.node.and_then(|node| node.api_endpoint.as_ref()) {
            Some(api) => api.bind_port,
            None => self
                .running
                .and_then(|running| running.endpoint)
                .map_or(DEFAULT_BIND_PORT, |endpoint| endpoint.port()),
        }
    }

    /// Returns the API server of a worker's kubelet, if the node itself contains it or the discovery found it.
    fn server(&self, role: KubeadmRole) -> Option<String> {
        if role != KubeadmRole::Worker {
            return None;
        }
        let existing = self.running.and_then(|running| running.server.clone());
        existing.or_else(|| self.host.joined_server.clone())
    }

    /// Returns the API server that the node joins through; a worker without one is an error, unless its kubelet's `is_known`.
    fn join_endpoint(
        &self,
        role: KubeadmRole,
        is_known: bool,
        faults: &mut Faults,
    ) -> Option<HostPort> {
        let written = self.node.and_then(|node| node.join_endpoint.clone());
        if written.is_some() || role != KubeadmRole::Worker {
            return written;
        }
        let cluster = self.loaded.cluster();
        let endpoint = cluster.and_then(|cluster| cluster.control_plane_endpoint.clone());
        if endpoint.is_none()
            && !is_known
            && !faults.has_errors()
            && let Some(document) = self.main_document()
        {
            let join = self.node.and_then(|node| node.join.as_ref());
            faults.push(match join.and_then(|join| join.discovery.as_ref()) {
                Some(Discovery::File(_)) => document.error(
                    "the API server that this worker connects to is not known yet: bootstrap reads it from discovery.file",
                    "run `nodepki bootstrap`, or give the ClusterConfiguration with its controlPlaneEndpoint",
                ),
                Some(Discovery::Token { .. }) | None => document.error(
                    "the API server that this worker connects to is not configured",
                    "set discovery.bootstrapToken.apiServerEndpoint, or give the ClusterConfiguration with its controlPlaneEndpoint",
                ),
            });
        }
        endpoint
    }
}

/// Warns of a name that every machine has: two nodes with it would share an identity, and no other machine can reach it.
fn warn_of_local_name(name: &NodeName, spot: &FieldPosition, faults: &mut Faults) {
    let first = name.as_str().split('.').next().unwrap_or_default();
    let is_local = first.trim_end_matches(|c: char| c.is_ascii_digit()) == "localhost"
        || name.as_str().ends_with(".localhost");
    if is_local {
        faults.push(spot.warning(
            format!("the node name \"{name}\" is the name of every machine for itself: each node needs a name of its own"),
            "set nodeRegistration.name, or the host name (hostnamectl set-hostname NAME), before the node joins the cluster",
        ));
    }
}

/// Warns of a name that makes a common name too long: the name itself is that of etcd's certificates and, after
/// `system:node:`, that of the kubelet's.
fn warn_of_long_name(
    role: KubeadmRole,
    name: &NodeName,
    spot: &FieldPosition,
    faults: &mut Faults,
) {
    if role == KubeadmRole::Etcd {
        if name.as_str().len() > MAX_COMMON_NAME_BYTES {
            faults.push(spot.warning(
                format!("the common name in etcd-server and etcd-peer is longer than the {MAX_COMMON_NAME_BYTES} bytes that X.520 allows; many signers refuse it"),
                "use a shorter node name",
            ));
        }
        return;
    }
    let kubelet_name_bytes = format!("system:node:{name}").len();
    if kubelet_name_bytes <= MAX_COMMON_NAME_BYTES {
        return;
    }
    let has_etcd = role != KubeadmRole::Worker;
    let certificates = if has_etcd && name.as_str().len() > MAX_COMMON_NAME_BYTES {
        "kubelet.conf, etcd-server and etcd-peer"
    } else {
        "kubelet.conf"
    };
    faults.push(spot.warning(
        format!(
            "the common name in {certificates} is longer than the {MAX_COMMON_NAME_BYTES} bytes that X.520 allows (system:node:… has {kubelet_name_bytes}); many signers refuse it"
        ),
        "use a shorter node name, at most 52 bytes",
    ));
}

/// Returns the addresses that the kubelet registers: `node-ip`, or else those of the API server and the default route.
fn kubelet_addresses(
    kubelet: Option<&KubeletArguments>,
    advertise_address: Option<IpAddr>,
    default_route_address: Option<IpAddr>,
) -> Vec<IpAddr> {
    match kubelet {
        Some(kubelet) if !kubelet.node_ips.is_empty() => kubelet.node_ips.clone(),
        _ => {
            let routed = default_route_address.filter(|ip| Some(*ip) != advertise_address);
            advertise_address.into_iter().chain(routed).collect()
        }
    }
}

#[cfg(test)]
mod tests;
