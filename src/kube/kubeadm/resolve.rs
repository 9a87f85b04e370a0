//! From documents and what the host knows to a cluster and a node: the rules that join several documents.

use super::{
    DEFAULT_BIND_PORT, HostFacts, Loaded, Node, NodeInput, NodeName, Overrides, Resolved, Role,
    is_global_unicast,
};
use crate::yaml::{Faults, Spot};

/// X.520's upper bound for a common name.
const COMMON_NAME_LIMIT: usize = 64;

const FETCH_CLUSTER: &str = "bootstrap asks the cluster for it, unless kubeadm.fromCluster is never; otherwise set kubeadm.clusterConfiguration in the nodepki \
    configuration, or add --kubeadm-config FILE, with what this prints on a control-plane node: kubectl -n kube-system get cm kubeadm-config -o jsonpath='{.data.ClusterConfiguration}'";

/// Joins the documents with what the host knows.
///
/// # Errors
/// All faults of [`load`](super::load) and of the rules that join several documents, warnings included, in reading order.
pub fn resolve(
    loaded: &Loaded,
    host: &HostFacts,
    overrides: &Overrides,
) -> Result<Resolved, Faults> {
    let mut faults = loaded.faults.clone();
    let cluster = loaded.cluster();
    let running = host.running.as_ref();
    let settled = running.filter(|running| running.settled);
    if let Some(kept) = host.kept.as_ref().filter(|_| !loaded.describes_node()) {
        return as_kept(loaded, kept, overrides);
    }
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
    let input = loaded.join.as_ref().or(loaded.init.as_ref());
    let role = match (loaded.role(), settled) {
        (Some(role), _) => role,
        (None, Some(running)) => running.role,
        (None, None) => {
            if cluster.is_none() && !loaded.incomplete {
                faults.push(Spot::whole("kubeadm configuration").error(
                    "no InitConfiguration, ClusterConfiguration or JoinConfiguration was found",
                    "name the file given to kubeadm under kubeadm.files or with --kubeadm-config FILE",
                ));
            }
            Role::Init
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
        kubelet_cert_dir: kubelet
            .and_then(|kubelet| kubelet.cert_dir.clone())
            .or_else(|| running?.kubelet_cert_dir.clone()),
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

/// The node of an earlier run, in the cluster that the documents describe.
fn as_kept(loaded: &Loaded, kept: &Node, overrides: &Overrides) -> Result<Resolved, Faults> {
    let mut faults = loaded.faults.clone();
    let name = overrides.node_name.as_ref().unwrap_or(&kept.name).clone();
    long_name(kept.role, &name, &Spot::whole("node name"), &mut faults);
    if kept.role != Role::Worker && loaded.cluster.is_none() && !loaded.incomplete {
        faults.push(Spot::whole("kubeadm configuration").error(
            "no ClusterConfiguration was found",
            "name the file given to kubeadm under kubeadm.files or with --kubeadm-config FILE",
        ));
    }
    let node = Node {
        name,
        ..kept.clone()
    };
    let (node, warnings) = faults.outcome(node)?;
    Ok(Resolved {
        cluster: loaded.cluster().cloned(),
        node,
        warnings,
    })
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
