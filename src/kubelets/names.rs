//! The rules about the names and addresses of a serving certificate.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::judge::Violation;
use super::requester::quoted;
use super::{KubeletPolicy, RequestContext, RequestReason};
use crate::kube::csr_object::NodeObject;
use crate::kube::kubeadm::{Host, is_dns_subdomain, is_global_unicast, parse_ip};
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
    let last = lower.rsplit('.').next().unwrap_or_default();
    // RFC 6761, 6.3; the other name is that of many /etc/hosts.
    if last == "localhost" || lower == "localhost.localdomain" {
        return Err(special(&lower));
    }
    Ok(Host::Dns(lower))
}

fn ip_address(ip: IpAddr) -> Result<Host, Violation> {
    if ip != ip.to_canonical() {
        return Err(Violation::proven(
            RequestReason::SanNotValid,
            format!("{ip} is an IPv4 address in the form of IPv6"),
        ));
    }
    // 0.0.0.0/8 means this network (RFC 1122, 3.2.1.3), and Linux connects 0.0.0.0 to itself.
    let is_this_network = matches!(ip, IpAddr::V4(v4) if v4.octets().first() == Some(&0));
    if !is_global_unicast(ip) || is_this_network {
        return Err(special(&ip.to_string()));
    }
    Ok(Host::Ip(ip))
}

fn special(name: &str) -> Violation {
    Violation::proven(
        RequestReason::SanSpecial,
        format!(
            "{name} is not an address of one node: it is loopback, link-local, multicast, unspecified or broadcast"
        ),
    )
}

fn verify_name(
    host: &Host,
    node: &NodeObject,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
) -> Result<(), Violation> {
    if context.reserved.is_of_service(host) {
        return Err(Violation::proven(
            RequestReason::SanOfService,
            format!("{host} belongs to a service or a pod"),
        ));
    }
    let is_own = node.has_address(host);
    if context.reserved.is_of_api_server(host) && !(is_own && node.is_control_plane) {
        let message = format!("{host} belongs to the API server");
        // kubeadm labels a control-plane node after its kubelet has started.
        return Err(match is_own {
            true => Violation::early(
                RequestReason::SanOfApiServer,
                format!(
                    "{message}, and Node {} is not labelled as a control-plane node",
                    node.name
                ),
            ),
            false => Violation::proven(RequestReason::SanOfApiServer, message),
        });
    }
    let mut others = context.nodes.owners(host).filter(|name| *name != node.name);
    if let Some(other) = others.next() {
        let is_name_of_other = matches!(host, Host::Dns(name) if context.nodes.get(name).is_some());
        return Err(match is_own && !is_name_of_other {
            // A node can write addresses of another one into its own status, which must not deny the other's request.
            true => Violation::doubt(
                RequestReason::SanClaimedTwice,
                format!(
                    "{host} is an address of both Node {} and Node {other}: delete the Node that no longer exists, or find out which one reports it wrongly",
                    node.name
                ),
            ),
            false => Violation::proven(
                RequestReason::SanOfOtherNode,
                format!("{host} belongs to Node {other}"),
            ),
        });
    }
    verify_membership(host, is_own, node, policy)
}

/// Verifies that the Node has the name or address, or that the configuration allows it.
fn verify_membership(
    host: &Host,
    is_own: bool,
    node: &NodeObject,
    policy: &KubeletPolicy,
) -> Result<(), Violation> {
    let is_inside = |ip: &IpAddr| policy.networks.iter().any(|net| net.contains(*ip));
    match host {
        Host::Ip(ip) if !policy.networks.is_empty() && !is_inside(ip) => Err(Violation::proven(
            RequestReason::SanOutsideNetworks,
            format!("{ip} is not in one of the networks of kubelets.networks"),
        )),
        _ if is_own => Ok(()),
        Host::Dns(name)
            if policy
                .names
                .iter()
                .any(|pattern| pattern.of(&node.name) == *name) =>
        {
            Ok(())
        }
        _ => Err(Violation::early(
            RequestReason::SanNotOfNode,
            format!("{host} is not an address of Node {}", node.name),
        )),
    }
}
