//! Host names, IP addresses, subject alternative names, networks and endpoints that kubeadm accepts, in canonical form.
//!
//! Go reads `010.0.0.7` as decimal, other tools as octal. It is accepted with a note, as the certificate will contain
//! the canonical address. IPv4 addresses written as IPv6 (`::ffff:10.1.2.3`) become IPv4.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::Serialize;

use crate::yaml::unrendered;

/// A warning about a value that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueNote {
    /// How the value was interpreted.
    pub message: String,
    /// The correction.
    pub fix: String,
}

/// The reason why a value is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({fix})")]
pub struct InvalidValue {
    /// The problem.
    pub message: String,
    /// The correction.
    pub fix: String,
}

fn refuse<T>(message: impl Into<String>, fix: impl Into<String>) -> Result<T, InvalidValue> {
    Err(InvalidValue {
        message: message.into(),
        fix: fix.into(),
    })
}

/// A DNS name or an IP address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A lower-case DNS-1123 subdomain.
    Dns(String),
    /// An IP address.
    Ip(IpAddr),
}

/// One subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum San {
    /// A lower-case DNS name, or a wildcard `*.name`.
    Dns(String),
    /// An IP address.
    Ip(IpAddr),
}

impl San {
    /// Parses a SAN that kubeadm accepts; upper case becomes lower case.
    ///
    /// # Errors
    /// Every text that kubeadm's validation refuses, with what to write instead.
    pub fn parse(text: &str) -> Result<(San, Vec<ValueNote>), InvalidValue> {
        if let Some((ip, note)) = parse_ip(text) {
            return Ok((San::Ip(ip), note.into_iter().collect()));
        }
        let name = text.to_ascii_lowercase();
        let base = name.strip_prefix("*.").unwrap_or(&name);
        if is_dns_subdomain(base) && name.len() <= MAX_DNS_NAME_BYTES {
            return Ok((San::Dns(name), Vec::new()));
        }
        let message = if text.is_empty() {
            "an empty name is not a subject alternative name".to_owned()
        } else {
            format!("{text:?} is not an IP address, a DNS name or a wildcard DNS name")
        };
        refuse(message, san_fix(text))
    }
}

/// Returns what to write instead of a text that is neither a DNS name nor an IP address.
fn san_fix(text: &str) -> String {
    if text.is_empty() {
        return "remove the empty entry".to_owned();
    }
    if let Some(fix) = unrendered(text) {
        return fix.to_owned();
    }
    if IpNet::parse(text).is_ok() {
        return "a certificate cannot contain a network; list each address".to_owned();
    }
    if is_list(text) {
        return "write each name as an entry of its own".to_owned();
    }
    if let Some(host) = host_in(text) {
        let before = text.trim().trim_end_matches('.');
        return match () {
            () if text.contains("://") => format!("write only the host of the URL: {host}"),
            () if text.starts_with('[') => {
                format!("write the IPv6 address without brackets and port: {host}")
            }
            () if text.contains('%') => format!(
                "remove the zone: {host}; a link-local address does not belong in a certificate"
            ),
            () if text.contains('/') => format!("write only the host: {host}"),
            () if before.contains(':') => format!("remove the port: {host}"),
            () if text.ends_with('.') => format!("remove the dot at the end: {host}"),
            () => format!("write {host}"),
        };
    }
    if let Some(character) = text.chars().find(|c| !c.is_ascii()) {
        return if character.is_alphanumeric() {
            "write the ASCII form, which begins with xn--".to_owned()
        } else {
            format!(
                "remove or replace the character U+{:04X}, which is not ASCII",
                u32::from(character)
            )
        };
    }
    if text.contains('_') {
        return "kubeadm refuses underscores; use a name with - instead".to_owned();
    }
    if text.contains('*') {
        return "use * only as the whole first label, as in *.example.com".to_owned();
    }
    if text.len() > MAX_DNS_NAME_BYTES {
        return format!("use a name of at most {MAX_DNS_NAME_BYTES} characters");
    }
    "use lower-case letters, digits, - and ., beginning and ending with a letter or digit"
        .to_owned()
}

/// Returns whether the text seems to be several names or endpoints.
fn is_list(text: &str) -> bool {
    let text = text.trim();
    text.contains([',', ';']) || text.contains(char::is_whitespace)
}

/// Returns host and port of a URL, or of a text with a path, as written.
fn authority_in(text: &str) -> &str {
    let text = text.trim();
    let rest = match text.split_once("://") {
        Some((_, rest)) => rest,
        None => text.strip_prefix("//").unwrap_or(text),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = rest.get(..end).unwrap_or_default();
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
}

/// Returns the name for a certificate that a text contains, as in a URL or with a port.
fn host_in(text: &str) -> Option<San> {
    let authority = authority_in(text);
    let (host, _) = split_host_port(authority)?;
    let (host, _zone) = host.split_once('%').unwrap_or((host, ""));
    let host = host.strip_suffix('.').unwrap_or(host);
    // Without this condition, a text that is refused would be parsed again and again.
    (host != text)
        .then(|| San::parse(host).ok())
        .flatten()
        .map(|(san, _)| san)
}

impl fmt::Display for San {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            San::Dns(name) => f.write_str(name),
            San::Ip(ip) => ip.fmt(f),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Dns(name) => f.write_str(name),
            Host::Ip(ip) => ip.fmt(f),
        }
    }
}

/// Host and optional port, as in `controlPlaneEndpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The host.
    pub host: Host,
    /// The port, if written.
    pub port: Option<u16>,
}

impl HostPort {
    /// Parses `host`, `host:port`, `[v6]:port`, a bare IPv6 address and, unlike kubeadm, `[v6]` without a port.
    /// Upper-case letters, which kubeadm refuses, become lower case with a note.
    ///
    /// # Errors
    /// URLs, ports out of range and hosts that are neither a name nor an address.
    pub fn parse(text: &str) -> Result<(HostPort, Vec<ValueNote>), InvalidValue> {
        let (host_text, port) = split_host_port(text).ok_or_else(|| HostPort::refusal(text))?;
        let port = match port {
            "" => None,
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => match digits.parse::<u16>() {
                Ok(port) if port > 0 => Some(port),
                _ => {
                    return refuse(
                        format!("port {digits} is out of range"),
                        "use a port from 1 to 65535",
                    );
                }
            },
            _ => return Err(HostPort::refusal(text)),
        };
        let (host, read_as) = match parse_ip(host_text) {
            Some((ip, note)) => (Host::Ip(ip), note.map(|note| note.message)),
            None => {
                let name = host_text.to_ascii_lowercase();
                if !is_dns_subdomain(&name) {
                    return Err(HostPort::refusal(text));
                }
                let note = (name != host_text).then(|| {
                    format!(
                        "{host_text:?} is read as {name:?}; kubeadm refuses upper-case letters here"
                    )
                });
                (Host::Dns(name), note)
            }
        };
        let endpoint = HostPort { host, port };
        let mut notes = Vec::new();
        if text.starts_with('[') && text.ends_with(']') {
            notes.push(ValueNote {
                message: format!(
                    "{text:?} has no port; nodepki accepts this, but kubeadm refuses it"
                ),
                fix: format!("write {} or {}", endpoint.host, endpoint.authority(6443)),
            });
        }
        notes.extend(read_as.map(|message| ValueNote {
            message,
            fix: format!("write {}", endpoint.written()),
        }));
        Ok((endpoint, notes))
    }

    fn refusal(text: &str) -> InvalidValue {
        InvalidValue {
            message: format!("{text:?} is not a host name or IP address with an optional port"),
            fix: endpoint_fix(text),
        }
    }

    /// Returns the endpoint in the form that kubeadm accepts.
    fn written(&self) -> String {
        match self.port {
            Some(port) => join_host_port(&self.host, port),
            None => self.host.to_string(),
        }
    }

    /// Returns `host:port`, IPv6 in brackets, with the given port if none was written.
    pub fn authority(&self, default_port: u16) -> String {
        join_host_port(&self.host, self.port.unwrap_or(default_port))
    }
}

/// Returns what to write instead of a text that is not an endpoint.
fn endpoint_fix(text: &str) -> String {
    if let Some(fix) = unrendered(text) {
        return fix.to_owned();
    }
    if is_list(text) {
        return "write one host, that of the load balancer for all API servers".to_owned();
    }
    let Some(endpoint) = endpoint_in(text) else {
        return "write host or host:port, as in api.example.com:6443".to_owned();
    };
    let written = endpoint.written();
    let scheme = text.trim().split_once("://").map(|(scheme, _)| scheme);
    match (scheme, endpoint.port) {
        (Some(_), Some(_)) => format!("write only host and port of the URL: {written}"),
        // kubeadm's default is 6443, that of a URL another one.
        (Some(scheme), None) => {
            let port = match scheme.to_ascii_lowercase().as_str() {
                "https" => 443,
                "http" => 80,
                _ => 6443,
            };
            format!(
                "write host and port: {}, or the port in use",
                endpoint.authority(port)
            )
        }
        (None, _) => format!("write {written}"),
    }
}

/// Returns the endpoint that a text contains, as in a URL; `None` if kubeadm refuses it in any form.
fn endpoint_in(text: &str) -> Option<HostPort> {
    let authority = authority_in(text);
    let (host, port) = match authority.rsplit_once(':') {
        // An IPv6 address with a port, without brackets.
        Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => (host, port),
        _ => split_host_port(authority)?,
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let candidate = match (host.contains(':'), port) {
        (_, "") => host,
        (true, port) => format!("[{host}]:{port}"),
        (false, port) => format!("{host}:{port}"),
    };
    // Without this condition, a text that is refused would be parsed again and again.
    let parsed = (candidate != text).then(|| HostPort::parse(&candidate).ok());
    parsed.flatten().map(|(endpoint, _)| endpoint)
}

/// Splits an endpoint into host and port; without a port, the latter is empty. `None` if a bracket is not closed or the
/// text after it is not a port.
fn split_host_port(text: &str) -> Option<(&str, &str)> {
    match text.strip_prefix('[') {
        Some(inner) => {
            let (host, rest) = inner.split_once(']')?;
            if rest.is_empty() {
                return Some((host, ""));
            }
            Some((host, rest.strip_prefix(':')?))
        }
        None => match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => Some((host, port)),
            _ => Some((text, "")),
        },
    }
}

/// Returns `host:port`, IPv6 in brackets.
pub(crate) fn join_host_port(host: &Host, port: u16) -> String {
    match host {
        Host::Ip(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        other => format!("{other}:{port}"),
    }
}

/// A network. Its host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpNet {
    address: IpAddr,
    prefix: u8,
}

impl IpNet {
    /// Parses CIDR notation. As in Kubernetes, host bits are cleared.
    ///
    /// # Errors
    /// Every text that is not `address/prefix`.
    pub fn parse(text: &str) -> Result<(IpNet, Option<ValueNote>), InvalidValue> {
        let refused = || {
            refuse(
                format!("{text:?} is not a network in CIDR notation"),
                match (unrendered(text), text.contains(char::is_whitespace)) {
                    (Some(fix), _) => fix,
                    (None, true) => "remove the space",
                    (None, false) => "write ADDRESS/PREFIX, as in 10.96.0.0/12",
                },
            )
        };
        let Some((address, prefix)) = text.split_once('/') else {
            return refused();
        };
        let Some((address, note)) = parse_ip(address) else {
            return refused();
        };
        let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
        // Go allows leading zeros, and no sign.
        let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
        match prefix.parse::<u8>() {
            Ok(prefix) if is_number && prefix <= bits => {
                let address = match address {
                    IpAddr::V4(v4) => {
                        let mask = u32::MAX.checked_shl(u32::from(32 - prefix)).unwrap_or(0);
                        IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
                    }
                    IpAddr::V6(v6) => {
                        let mask = u128::MAX.checked_shl(u32::from(128 - prefix)).unwrap_or(0);
                        IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
                    }
                };
                Ok((IpNet { address, prefix }, note))
            }
            _ => refused(),
        }
    }

    /// Returns the network address.
    pub fn network(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of the prefix in bits.
    pub(crate) fn prefix_len(&self) -> u8 {
        self.prefix
    }

    /// Returns the number of host bits.
    pub(crate) fn host_bits(&self) -> u8 {
        (if self.address.is_ipv4() { 32 } else { 128 }) - self.prefix
    }

    /// Returns the number of addresses, at most `u128::MAX`.
    pub fn size(&self) -> u128 {
        1_u128
            .checked_shl(u32::from(self.host_bits()))
            .unwrap_or(u128::MAX)
    }

    /// Returns true if the address is in the network.
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        match (self.address, ip.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => {
                let differing = u32::from(net) ^ u32::from(ip);
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(net), IpAddr::V6(ip)) => {
                let differing = u128::from(net) ^ u128::from(ip);
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }

    /// Returns the address at an offset from the network address. Address 1 of a service network is the API server.
    pub fn nth(&self, index: u32) -> Option<IpAddr> {
        if u128::from(index) >= self.size() {
            return None;
        }
        match self.address {
            IpAddr::V4(v4) => u32::from(v4)
                .checked_add(index)
                .map(|n| IpAddr::V4(n.into())),
            IpAddr::V6(v6) => u128::from(v6)
                .checked_add(u128::from(index))
                .map(|n| IpAddr::V6(n.into())),
        }
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The name of a node: a lower-case DNS-1123 subdomain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NodeName(String);

impl NodeName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

as_text!(NodeName: Display);

impl FromStr for NodeName {
    type Err = InvalidValue;

    /// Trims the text and converts it to lower case, like the kubelet. The result must be a DNS-1123 subdomain.
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let name = text.trim().to_lowercase();
        if is_dns_subdomain(&name) {
            return Ok(NodeName(name));
        }
        let message = if name.is_empty() {
            "a node name must not be empty".to_owned()
        } else {
            format!(
                "{name:?} is not a valid node name: only lower-case letters, digits, - and . are allowed, beginning and ending with a letter or digit"
            )
        };
        let fix = "set nodeRegistration.name in the kubeadm configuration to a valid name";
        refuse(message, unrendered(text).unwrap_or(fix))
    }
}

/// Parses an IP address like Go's sloppy parser, with a note if octets have leading zeros.
pub(crate) fn parse_ip(text: &str) -> Option<(IpAddr, Option<ValueNote>)> {
    let (ip, sloppy) = match text.rsplit_once(':') {
        None => {
            let (v4, sloppy) = parse_ipv4(text)?;
            (IpAddr::V4(v4), sloppy)
        }
        Some((head, tail)) if tail.contains('.') => {
            let (v4, sloppy) = parse_ipv4(tail)?;
            let v6: Ipv6Addr = format!("{head}:{v4}").parse().ok()?;
            (IpAddr::V6(v6), sloppy)
        }
        Some(_) => (IpAddr::V6(text.parse().ok()?), false),
    };
    let ip = ip.to_canonical();
    let note = sloppy.then(|| ValueNote {
        message: format!(
            "{text:?} has leading zeros and is read as decimal, {ip}; some tools read it as octal"
        ),
        fix: format!("write {ip}"),
    });
    Some((ip, note))
}

/// Returns the address, and true if an octet has leading zeros.
fn parse_ipv4(text: &str) -> Option<(Ipv4Addr, bool)> {
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    let mut sloppy = false;
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        sloppy |= part.len() > 1 && part.starts_with('0');
        *octet = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
    }
    parts
        .next()
        .is_none()
        .then(|| (Ipv4Addr::from(octets), sloppy))
}

/// Go's `IsGlobalUnicast`, kubeadm's condition for the address of an API server. Private addresses satisfy it.
pub(crate) fn is_global_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            !(v4.is_broadcast()
                || v4.is_unspecified()
                || v4.is_loopback()
                || v4.is_multicast()
                || v4.is_link_local())
        }
        IpAddr::V6(v6) => {
            !(v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_multicast()
                || v6.is_unicast_link_local())
        }
    }
}

/// Longest DNS-1123 subdomain, in bytes.
const MAX_DNS_NAME_BYTES: usize = 253;

/// Returns true for a DNS-1123 subdomain. As in Kubernetes, a single label may exceed 63 bytes.
pub(crate) fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= MAX_DNS_NAME_BYTES
        && name.split('.').all(|label| {
            let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            let bytes = label.as_bytes();
            bytes.first().is_some_and(edge)
                && bytes.last().is_some_and(edge)
                && bytes.iter().all(|b| edge(b) || *b == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn san(text: &str) -> String {
        match San::parse(text) {
            Ok((san, notes)) => {
                let mut line = san.to_string();
                for note in notes {
                    line.push_str(&format!(" | {} ({})", note.message, note.fix));
                }
                line
            }
            Err(refusal) => format!("! {refusal}"),
        }
    }

    #[test]
    fn network_contains_addresses_with_its_prefix() {
        for (network, inside, outside) in [
            (
                "10.96.0.0/12",
                "10.96.0.0 10.111.255.255 ::ffff:10.96.0.1",
                "10.95.255.255 10.112.0.0 ::a60:1",
            ),
            ("192.0.2.1/32", "192.0.2.1", "192.0.2.0 192.0.2.2"),
            ("0.0.0.0/0", "0.0.0.0 255.255.255.255", "::1"),
            (
                "2001:db8::/64",
                "2001:db8:: 2001:db8::ffff:ffff:ffff:ffff",
                "2001:db8:0:1:: 192.0.2.1",
            ),
        ] {
            let (parsed, _) = IpNet::parse(network).unwrap();
            for ip in inside.split(' ') {
                assert!(parsed.contains(ip.parse().unwrap()), "{ip} in {network}");
            }
            for ip in outside.split(' ') {
                assert!(!parsed.contains(ip.parse().unwrap()), "{ip} in {network}");
            }
        }
    }

    #[test]
    fn parses_sans_that_kubeadm_accepts() {
        let label = "a".repeat(64);
        let long = format!("{label}.example.com");
        let cases = [
            ("ALPHA.example.com", "alpha.example.com"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("::FFFF:0a01:0203", "10.1.2.3"),
            (
                "010.000.000.007",
                "10.0.0.7 | \"010.000.000.007\" has leading zeros and is read as decimal, 10.0.0.7; \
                 some tools read it as octal (write 10.0.0.7)",
            ),
            ("2001:DB8:0:0::5", "2001:db8::5"),
            ("*.apps.example.com", "*.apps.example.com"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("localhost", "localhost"),
            ("1.2.3", "1.2.3"),
            ("256.1.1.1", "256.1.1.1"),
            (&long, &long),
        ];
        for (text, want) in cases {
            assert_eq!(san(text), want);
        }
    }

    #[test]
    fn refuses_sans_that_kubeadm_refuses() {
        let cases = [
            (
                "host_underscore.example.com",
                "kubeadm refuses underscores; use a name with - instead",
            ),
            ("trailing.dot.", "remove the dot at the end: trailing.dot"),
            (
                "-bad-",
                "use lower-case letters, digits, - and ., beginning and ending with a letter or digit",
            ),
            (
                "b\u{fc}cher.example",
                "write the ASCII form, which begins with xn--",
            ),
            (
                "10.0.0.0/24",
                "a certificate cannot contain a network; list each address",
            ),
            (
                "*.*.x",
                "use * only as the whole first label, as in *.example.com",
            ),
            (
                "*",
                "use * only as the whole first label, as in *.example.com",
            ),
            (
                "foo.*.com",
                "use * only as the whole first label, as in *.example.com",
            ),
            (
                "fe80::1%eth0",
                "remove the zone: fe80::1; a link-local address does not belong in a certificate",
            ),
            ("10.0.0.1:6443", "remove the port: 10.0.0.1"),
            (
                "[2001:db8::1]",
                "write the IPv6 address without brackets and port: 2001:db8::1",
            ),
            (
                "https://x.example",
                "write only the host of the URL: x.example",
            ),
        ];
        for (text, fix) in cases {
            assert_eq!(
                san(text),
                format!(
                    "! {text:?} is not an IP address, a DNS name or a wildcard DNS name ({fix})"
                )
            );
        }
        assert_eq!(
            san(""),
            "! an empty name is not a subject alternative name (remove the empty entry)"
        );
        let limit = [
            "a".repeat(63),
            "b".repeat(63),
            "c".repeat(63),
            "d".repeat(62),
        ]
        .join(".");
        assert!(San::parse(&limit).is_err());
    }

    #[test]
    fn parses_endpoints() {
        let parsed = |text: &str| {
            let (endpoint, notes) = HostPort::parse(text).unwrap();
            (endpoint.authority(6443), notes.len())
        };
        for (text, want, notes) in [
            ("api.example.com", "api.example.com:6443", 0),
            ("api.example.com:8443", "api.example.com:8443", 0),
            ("api.example.com:", "api.example.com:6443", 0),
            ("203.0.113.7", "203.0.113.7:6443", 0),
            ("203.0.113.7:8443", "203.0.113.7:8443", 0),
            ("2001:db8::1", "[2001:db8::1]:6443", 0),
            ("[2001:db8::1]:8443", "[2001:db8::1]:8443", 0),
            ("[2001:db8::1]", "[2001:db8::1]:6443", 1),
            ("API.Example.com:1", "api.example.com:1", 1),
        ] {
            assert_eq!(parsed(text), (want.to_owned(), notes), "{text}");
        }
        let notes = HostPort::parse("API.x").unwrap().1;
        assert_eq!(
            notes[0].message,
            "\"API.x\" is read as \"api.x\"; kubeadm refuses upper-case letters here"
        );
        let notes = HostPort::parse("[::2]").unwrap().1;
        assert_eq!(
            notes[0].message,
            "\"[::2]\" has no port; nodepki accepts this, but kubeadm refuses it"
        );
        assert_eq!(notes[0].fix, "write ::2 or [::2]:6443");
        for (text, want) in [
            (
                "api:99999",
                "port 99999 is out of range (use a port from 1 to 65535)",
            ),
            (
                "api:0",
                "port 0 is out of range (use a port from 1 to 65535)",
            ),
            (
                "https://api.example.com:6443",
                "\"https://api.example.com:6443\" is not a host name or IP address with an optional port \
                 (write only host and port of the URL: api.example.com:6443)",
            ),
            (
                "a_b",
                "\"a_b\" is not a host name or IP address with an optional port \
                 (write host or host:port, as in api.example.com:6443)",
            ),
        ] {
            assert_eq!(HostPort::parse(text).unwrap_err().to_string(), want);
        }
        for text in [
            "",
            ":6443",
            "[::1",
            "[::1]x",
            "fe80::1%eth0",
            "api:http",
            "api:+80",
            "a:b:c",
        ] {
            assert!(HostPort::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parses_networks() {
        let nth = |text: &str| IpNet::parse(text).unwrap().0.nth(1).unwrap().to_string();
        assert_eq!(nth("10.96.0.0/12"), "10.96.0.1");
        assert_eq!(nth("10.96.3.4/12"), "10.96.0.1");
        assert_eq!(nth("10.96.0.0/012"), "10.96.0.1");
        assert_eq!(nth("fd00:10:96::/112"), "fd00:10:96::1");
        assert_eq!(nth("0.0.0.0/0"), "0.0.0.1");
        assert_eq!(IpNet::parse("10.0.0.1/32").unwrap().0.nth(1), None);
        assert_eq!(
            IpNet::parse("10.96.3.4/30").unwrap().0.to_string(),
            "10.96.3.4/30"
        );
        for text in [
            "10.96.0.0",
            "10.96.0.0/33",
            "x/8",
            "fd00::/129",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "",
        ] {
            assert!(IpNet::parse(text).is_err(), "{text}");
        }
        assert_eq!(
            IpNet::parse("x").unwrap_err().to_string(),
            "\"x\" is not a network in CIDR notation (write ADDRESS/PREFIX, as in 10.96.0.0/12)"
        );
    }

    #[test]
    fn parses_node_names() {
        assert_eq!(
            " CP-1.Example.COM ".parse::<NodeName>().unwrap().as_str(),
            "cp-1.example.com"
        );
        assert_eq!(
            "192.0.2.11".parse::<NodeName>().unwrap().as_str(),
            "192.0.2.11"
        );
        assert_eq!(
            "bad_name!".parse::<NodeName>().unwrap_err().to_string(),
            "\"bad_name!\" is not a valid node name: only lower-case letters, digits, - and . are allowed, beginning \
             and ending with a letter or digit (set nodeRegistration.name in the kubeadm configuration to a \
             valid name)"
        );
        assert!(" ".parse::<NodeName>().is_err());
    }
}
