//! The rules about the names and addresses of a serving certificate.
//!
//! A kubelet writes the status of its Node. What another Node reports therefore refuses nothing permanently, and a DNS name
//! in the status authorizes nothing: a Node has its own name, what a pattern of the configuration makes of it, and what a
//! cloud's DNS makes of its name or of an address. The addresses themselves are limited by `kubelets.networks`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::addresses::{is_ipv4_as_ipv6, is_never_of_node, is_private, translated};
use super::judge::Violation;
use super::requester::quoted;
use super::{KubeletPolicy, RequestContext, RequestReason};
use crate::kube::csr_object::NodeObject;
use crate::kube::kubeadm::{Host, is_dns_subdomain, parse_ip};
use crate::x509::Sans;

/// Verifies each name and address. A proven violation takes precedence over a rule that may be satisfied later.
pub(super) fn verify_names(
    sans: &Sans,
    node: &NodeObject,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
) -> Result<(), Violation> {
    let names = sans.dns.iter().map(|name| dns_name(name));
    let addresses = sans.ips.iter().map(|ip| ip_address(*ip));
    let mut seen = BTreeSet::new();
    let mut first = None;
    for host in names.chain(addresses) {
        let host = host?;
        if let Err(violation) = verify_name(&host, node, context, policy) {
            if matches!(violation, Violation::Proven(_)) {
                return Err(violation);
            }
            first = first.or(Some(violation));
        }
        if !seen.insert(host.clone()) {
            return Err(Violation::proven(
                RequestReason::SanDuplicate,
                format!("{host} occurs twice among the subject alternative names"),
            ));
        }
    }
    first.map_or(Ok(()), Err)
}

/// Returns a DNS name in lower case.
fn dns_name(name: &str) -> Result<Host, Violation> {
    let lower = name.to_ascii_lowercase();
    if !is_dns_subdomain(&lower) || parse_ip(&lower).is_some() {
        return Err(Violation::proven(
            RequestReason::SanNotValid,
            format!("{:?} is not a valid DNS name", quoted(name)),
        ));
    }
    if is_local_name(&lower) {
        return Err(special(&lower));
    }
    Ok(Host::Dns(lower))
}

/// Returns true for a name that means the machine on which it is resolved (RFC 6761, 6.3, and many `/etc/hosts`).
pub(super) fn is_local_name(name: &str) -> bool {
    const LOCAL_NAMES: [&str; 8] = [
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost4.localdomain4",
        "localhost6",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
    ];
    LOCAL_NAMES.contains(&name) || name.ends_with(".localhost")
}

fn ip_address(ip: IpAddr) -> Result<Host, Violation> {
    if is_ipv4_as_ipv6(ip) {
        return Err(Violation::proven(
            RequestReason::SanNotValid,
            format!("{ip} is an IPv4 address in the form of IPv6"),
        ));
    }
    if is_never_of_node(ip) || translated(ip).into_iter().any(is_never_of_node) {
        return Err(special(&ip.to_string()));
    }
    Ok(Host::Ip(ip))
}

fn special(name: &str) -> Violation {
    Violation::proven(
        RequestReason::SanSpecial,
        format!(
            "{name} is not an address of one node: it is loopback, link-local, multicast, unspecified, broadcast or a service of the cloud"
        ),
    )
}

/// Why a Node has a name or an address.
enum Claim {
    /// It is the name of the Node itself.
    OwnName,
    /// The Node reports the address.
    Reported,
    /// The configuration gives the name to the Node.
    Given,
    /// Nothing shows it; the reason why.
    None(String),
}

fn verify_name(
    host: &Host,
    node: &NodeObject,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
) -> Result<(), Violation> {
    let in_cloud_name = match host {
        Host::Dns(name) => address_in_cloud_name(name, node, policy),
        Host::Ip(_) => None,
    };
    let claim = match in_cloud_name {
        Some(ip) => {
            verify_name(&ip_address(ip)?, node, context, policy)?;
            Claim::Given
        }
        None => claim(host, node, context, policy)?,
    };
    verify_not_reserved(host, &claim, node, context)?;
    if let Host::Ip(ip) = host {
        verify_network(*ip, policy)?;
    }
    verify_only_owner(host, &claim, node, context)?;
    match claim {
        Claim::None(why) => Err(Violation::early(RequestReason::SanNotOfNode, why)),
        _ => Ok(()),
    }
}

/// Returns why the Node has the name or the address. The name of another node is refused.
fn claim(
    host: &Host,
    node: &NodeObject,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
) -> Result<Claim, Violation> {
    let name = match host {
        Host::Ip(_) if node.addresses.contains(host) => return Ok(Claim::Reported),
        Host::Ip(ip) => {
            return Ok(Claim::None(format!(
                "{ip} is not an address of Node {}",
                node.name
            )));
        }
        Host::Dns(name) => name,
    };
    if *name == node.name {
        return Ok(Claim::OwnName);
    }
    let nodes = nodes_given(name, policy);
    let is_other = |other: &&str| context.nodes.get(other).is_some() && *other != node.name;
    if nodes.contains(&node.name.as_str()) {
        return match nodes.iter().copied().find(is_other) {
            None => Ok(Claim::Given),
            Some(other) => Err(given_twice(host, node, other)),
        };
    }
    if let Some(other) = nodes.first() {
        return Err(of_other(host, other));
    }
    let Some(label) = label_of_cloud_name(name, policy) else {
        return Ok(Claim::None(if node.addresses.contains(host) {
            format!(
                "{name} is only in the status of Node {}, which its kubelet writes: kubelets.names or kubelets.domains must give it to the Node",
                node.name
            )
        } else {
            format!("{name} is not a name of Node {}", node.name)
        }));
    };
    match label == node.name {
        true if node.addresses.contains(host) => Ok(Claim::Given),
        false if context.nodes.get(label).is_some() => Err(of_other(host, label)),
        _ => Ok(Claim::None(format!(
            "{name} is not a name of Node {}: it must be in its status, and its first label must be the Node's name or made of one of its addresses",
            node.name
        ))),
    }
}

/// Returns the nodes to which patterns give a name. Of several patterns that match, the longest decides: with
/// `{node}.example.com` and `{node}.nodes.example.com`, `w1.nodes.example.com` belongs to `w1`, and not to `w1.nodes`.
pub(super) fn nodes_given<'a>(name: &'a str, policy: &KubeletPolicy) -> Vec<&'a str> {
    let matching = policy.names.iter();
    let matching: Vec<_> = matching
        .filter_map(|pattern| Some((pattern.fixed_len(), pattern.node_of(name)?)))
        .collect();
    let longest = matching.iter().map(|(length, _)| *length).max();
    let decisive = matching.into_iter();
    decisive
        .filter(|(length, _)| Some(*length) == longest)
        .map(|(_, node)| node)
        .collect()
}

/// Returns the first label of a name directly below one of the configured domains.
fn label_of_cloud_name<'a>(name: &'a str, policy: &KubeletPolicy) -> Option<&'a str> {
    let (label, domain) = name.split_once('.')?;
    let is_of_cloud = policy.domains.iter().any(|one| one == domain);
    is_of_cloud.then_some(label)
}

/// Returns the address of which a cloud makes a name that the Node reports: `ip-192-0-2-21` and `ec2-192-0-2-21` below a
/// configured domain. The Node has the name if it has the address.
fn address_in_cloud_name(name: &str, node: &NodeObject, policy: &KubeletPolicy) -> Option<IpAddr> {
    if !node.addresses.contains(&Host::Dns(name.to_owned())) || name == node.name {
        return None;
    }
    let label = label_of_cloud_name(name, policy)?;
    let digits = label
        .strip_prefix("ip-")
        .or_else(|| label.strip_prefix("ec2-"))?;
    let address: Ipv4Addr = digits.replace('-', ".").parse().ok()?;
    Some(IpAddr::V4(address))
}

/// Refuses what belongs to the cluster. A translated address belongs to whom the address in it belongs.
fn verify_not_reserved(
    host: &Host,
    claim: &Claim,
    node: &NodeObject,
    context: RequestContext<'_>,
) -> Result<(), Violation> {
    let reserved = context.reserved;
    let forms = forms(host);
    if forms.iter().any(|form| reserved.is_of_service(form)) {
        return Err(Violation::proven(
            RequestReason::SanOfService,
            format!("{host} belongs to a service or a pod"),
        ));
    }
    let is_claimed = !matches!(claim, Claim::None(_));
    let is_certified = forms.iter().any(|form| reserved.is_certified(form));
    if is_certified && !(is_claimed && node.is_control_plane) {
        let message =
            format!("{host} belongs to the API server or another component of the control plane");
        // kubeadm labels a control-plane node after its kubelet has started.
        return Err(if is_claimed {
            Violation::early(
                RequestReason::SanOfApiServer,
                format!(
                    "{message}, and Node {} is not labelled as a control-plane node",
                    node.name
                ),
            )
        } else {
            Violation::proven(RequestReason::SanOfApiServer, message)
        });
    }
    let registered = match (host, claim) {
        (Host::Dns(_), Claim::OwnName) | (Host::Ip(_), _) => None,
        (Host::Dns(name), _) => reserved.node_of_pattern(name),
    };
    match registered {
        Some(other) => Err(Violation::proven(
            RequestReason::SanOfApiServer,
            format!("{host} belongs to a registered certificate of node {other}"),
        )),
        None => Ok(()),
    }
}

/// Returns the host, and the addresses to which packets for it are forwarded.
fn forms(host: &Host) -> Vec<Host> {
    let inner = match host {
        Host::Ip(ip) => translated(*ip),
        Host::Dns(_) => Vec::new(),
    };
    let inner = inner.into_iter().map(Host::Ip);
    [host.clone()].into_iter().chain(inner).collect()
}

/// Verifies that the configuration allows the address. Without networks, it allows private ones that are not translated.
fn verify_network(ip: IpAddr, policy: &KubeletPolicy) -> Result<(), Violation> {
    let why = match policy.networks.as_slice() {
        [] if is_private(ip) && translated(ip).is_empty() => return Ok(()),
        [] => "is a public or translated address, which must be in a network of kubelets.networks",
        networks if networks.iter().any(|net| net.contains(ip)) => return Ok(()),
        _ => "is not in one of the networks of kubelets.networks",
    };
    Err(Violation::proven(
        RequestReason::SanOutsideNetworks,
        format!("{ip} {why}"),
    ))
}

/// Verifies that no other Node has the name, or reports the address. Each kubelet writes its own addresses, so a report
/// of another one is a doubt about both. The label of control-plane nodes is not the kubelet's, so their report counts
/// more.
fn verify_only_owner(
    host: &Host,
    claim: &Claim,
    node: &NodeObject,
    context: RequestContext<'_>,
) -> Result<(), Violation> {
    if let (Host::Dns(name), Claim::Given | Claim::None(_)) = (host, claim)
        && context.nodes.get(name).is_some()
    {
        return Err(of_other(host, name));
    }
    let Host::Ip(ip) = host else {
        return Ok(());
    };
    let counts = |name: &str| {
        let other = context.nodes.get(name);
        !node.is_control_plane || other.is_some_and(|other| other.is_control_plane)
    };
    for form in forms(host) {
        let mut others = context.nodes.owners(&form);
        let other = others.find(|name| *name != node.name && counts(name));
        let Some(other) = other else { continue };
        return Err(match claim {
            Claim::None(_) => Violation::early(
                RequestReason::SanOfOtherNode,
                format!(
                    "{ip} is an address of Node {other}, and not of Node {}",
                    node.name
                ),
            ),
            _ => given_twice(host, node, other),
        });
    }
    Ok(())
}

fn of_other(host: &Host, other: &str) -> Violation {
    Violation::proven(
        RequestReason::SanOfOtherNode,
        format!("{host} belongs to node {other}"),
    )
}

fn given_twice(host: &Host, node: &NodeObject, other: &str) -> Violation {
    Violation::doubt(
        RequestReason::SanClaimedTwice,
        format!(
            "Node {other} claims {host} as well, which Node {} requests: delete the Node that no longer exists, or find out which one reports it wrongly",
            node.name
        ),
    )
}
