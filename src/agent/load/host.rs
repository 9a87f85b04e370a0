//! Facts of the host: its name and its addresses.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::agent::Failure;
use crate::kube::kubeadm::HostFacts;
use crate::store::NodeRoot;

/// Host name and default address. A root of another machine has no addresses.
pub(super) fn host_facts(root: &NodeRoot) -> Result<HostFacts, Failure> {
    let is_this_machine = root.is_this_machine();
    let hostname = if is_this_machine {
        nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .unwrap_or_default()
    } else {
        let content = root.read("/etc/hostname")?;
        let bytes = content
            .map(|content| content.bytes.to_vec())
            .unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    };
    Ok(HostFacts {
        hostname,
        default_route_addresses: if is_this_machine {
            default_route_addresses()
        } else {
            Vec::new()
        },
        loopback_interface_addresses: addresses_of(root, |interface| interface == "lo"),
        ..HostFacts::default()
    })
}

/// Returns the addresses of this machine; none if the root is another machine's.
pub(super) fn interfaces(root: &NodeRoot) -> Vec<IpAddr> {
    addresses_of(root, |_| true)
}

/// As [`interfaces`], of the interfaces with certain names.
fn addresses_of(root: &NodeRoot, is_wanted: impl Fn(&str) -> bool) -> Vec<IpAddr> {
    if !root.is_this_machine() {
        return Vec::new();
    }
    let found = nix::ifaddrs::getifaddrs().into_iter().flatten();
    found
        .filter(|interface| is_wanted(&interface.interface_name))
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| Some(IpAddr::V6(address.as_sockaddr_in6()?.ip())))
        })
        .filter(|address| !address.is_loopback())
        .collect()
}

/// Source addresses of the default routes, at most one of each family. Connecting a UDP socket sends no packet; it only
/// consults the routing table.
fn default_route_addresses() -> Vec<IpAddr> {
    let source = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from.parse::<SocketAddr>().ok()?).ok()?;
        socket.connect(to.parse::<SocketAddr>().ok()?).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    // Documentation addresses (RFC 5737, RFC 3849): they use the default route and belong to no host.
    let v4 = source("0.0.0.0:0", "192.0.2.1:9");
    let v6 = source("[::]:0", "[2001:db8::1]:9");
    v4.into_iter().chain(v6).collect()
}
