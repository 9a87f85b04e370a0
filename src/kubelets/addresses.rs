//! Kinds of IP addresses that a node may have only under conditions, or never. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::kube::kubeadm::is_global_unicast;

/// Addresses of the metadata and agent services of clouds, which every machine reaches and no machine has.
const CLOUD_SERVICES_V4: [Ipv4Addr; 3] = [
    // Azure, Alibaba Cloud, Oracle Cloud; the link-local 169.254.169.254 is refused as such.
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
];
/// The local services of EC2 over IPv6, `fd00:ec2::/32`: metadata, DNS, time.
const EC2_SERVICES_V6: [u16; 2] = [0xfd00, 0x0ec2];

/// Networks of private use, of shared use (RFC 6598), of benchmarks (RFC 2544) and of documentation: no host on the
/// Internet has an address in them (IANA IPv4 Special-Purpose Address Registry).
const PRIVATE_V4: [([u8; 4], u32); 8] = [
    ([10, 0, 0, 0], 8),
    ([172, 16, 0, 0], 12),
    ([192, 168, 0, 0], 16),
    ([100, 64, 0, 0], 10),
    ([198, 18, 0, 0], 15),
    ([192, 0, 2, 0], 24),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
];
/// The same for IPv6: unique local addresses and documentation (RFC 3849, RFC 9637).
const PRIVATE_V6: [([u16; 2], u32); 3] =
    [([0xfc00, 0], 7), ([0x2001, 0x0db8], 32), ([0x3fff, 0], 20)];

/// Returns true for an address that no certificate of a node may contain: loopback, link-local, multicast, unspecified,
/// broadcast, this network, or a service of the cloud that every machine reaches at it.
pub(super) fn is_never_of_node(ip: IpAddr) -> bool {
    let is_cloud_service = match ip {
        IpAddr::V4(v4) => CLOUD_SERVICES_V4.contains(&v4),
        IpAddr::V6(v6) => v6.segments().starts_with(&EC2_SERVICES_V6),
    };
    // 0.0.0.0/8 means this network (RFC 1122, 3.2.1.3), and Linux connects 0.0.0.0 to itself.
    let is_this_network = matches!(ip, IpAddr::V4(v4) if v4.octets().first() == Some(&0));
    !is_global_unicast(ip) || is_this_network || is_cloud_service
}

/// Returns true for an address that is in no registry of the Internet, so only the cluster's own network has it.
pub(super) fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => PRIVATE_V4.iter().any(|(network, prefix)| {
            let differing = u32::from(v4) ^ u32::from_be_bytes(*network);
            differing.leading_zeros() >= *prefix
        }),
        IpAddr::V6(v6) => PRIVATE_V6.iter().any(|([first, second], prefix)| {
            let network = Ipv6Addr::new(*first, *second, 0, 0, 0, 0, 0, 0);
            let differing = u128::from(v6) ^ u128::from(network);
            differing.leading_zeros() >= *prefix
        }),
    }
}

/// Returns true for an IPv4 address that is only written as IPv6: mapped (`::ffff:a.b.c.d`), compatible (`::a.b.c.d`) or
/// translated by a host (`::ffff:0:a.b.c.d`, RFC 2765).
pub(super) fn is_ipv4_as_ipv6(ip: IpAddr) -> bool {
    let IpAddr::V6(v6) = ip else {
        return false;
    };
    match v6.segments() {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, high, low] => high != 0 || low > 1,
        [0, 0, 0, 0, 0, 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => true,
        _ => false,
    }
}

/// Returns the IPv4 addresses to which a translator or the end of a tunnel forwards packets for an IPv6 address; none for
/// an address of its own.
///
/// The forms: NAT64 (`64:ff9b::/96`, RFC 6052, and `64:ff9b:1::/48` with each of its prefix lengths, RFC 8215), 6to4
/// (`2002::/16`, RFC 3056), Teredo (`2001::/32`, RFC 4380: server, and client with inverted bits) and ISATAP (interface
/// identifier `5efe`, RFC 5214).
pub(super) fn translated(ip: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V6(v6) = ip else {
        return Vec::new();
    };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let halves = match [a, b] {
        [0x64, 0xff9b] if [c, d, e, f] == [0; 4] => vec![(g, h)],
        // Prefixes of 48, 56, 64 and 96 bits. The octet from bit 64 on is not part of the address (RFC 6052, 2.2).
        [0x64, 0xff9b] if c == 1 => vec![
            (d, middle(e, f)),
            ((d << 8) | (e & 0xff), f),
            (middle(e, f), middle(f, g)),
            (g, h),
        ],
        [0x2002, _] => vec![(b, c)],
        [0x2001, 0] => vec![(c, d), (!g, !h)],
        _ if f == 0x5efe && e & !0x0200 == 0 => vec![(g, h)],
        _ => Vec::new(),
    };
    // An address in 0.0.0.0/8 is no destination: the prefix has another length.
    let halves = halves.into_iter().filter(|(high, _)| *high > 0xff);
    halves
        .map(|(high, low)| IpAddr::V4(((u32::from(high) << 16) | u32::from(low)).into()))
        .collect()
}

/// Returns the low octet of the first and the high octet of the second.
fn middle(first: u16, second: u16) -> u16 {
    (first << 8) | (second >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_ipv4_addresses_in_every_form_of_ipv6() {
        for (text, expected) in [
            ("64:ff9b::10.96.0.1", &["10.96.0.1"][..]),
            ("64:ff9b::a60:1", &["10.96.0.1"]),
            ("64:ff9b:1::10.96.0.1", &["10.96.0.1"]),
            ("64:ff9b:1:a60:0:100::", &["10.96.0.1", "96.0.1.0"]),
            ("64:ff9b:1:a:60:1::", &["10.96.0.1", "96.0.1.0"]),
            ("64:ff9b:1:0:a:6000:100:0", &["10.96.0.1", "1.0.0.0"]),
            ("2002:a60:1::1", &["10.96.0.1"]),
            ("2001:0:a60:1::f59f:fffe", &["10.96.0.1", "10.96.0.1"]),
            ("2001:db8::5efe:10.96.0.1", &["10.96.0.1"]),
            ("2001:db8::200:5efe:10.96.0.1", &["10.96.0.1"]),
            ("2001:db8::10.96.0.1", &[]),
            ("fd00::1", &[]),
            ("10.96.0.1", &[]),
        ] {
            let found = translated(text.parse().unwrap());
            let expected: Vec<IpAddr> = expected.iter().map(|ip| ip.parse().unwrap()).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn tells_private_addresses_from_those_of_the_internet() {
        for (text, expected) in [
            ("10.255.0.1", true),
            ("172.31.255.255", true),
            ("172.32.0.1", false),
            ("192.168.1.1", true),
            ("192.169.0.1", false),
            ("100.64.0.1", true),
            ("100.128.0.1", false),
            ("192.0.2.21", true),
            ("8.8.8.8", false),
            ("240.0.0.1", false),
            ("fd12::1", true),
            ("fec0::1", false),
            ("2001:db8::21", true),
            ("2001:db9::21", false),
            ("2600:1f18::1", false),
            ("3fff::1", true),
            ("3fff:1000::1", false),
        ] {
            assert_eq!(is_private(text.parse().unwrap()), expected, "{text}");
        }
    }
}
