//! Name servers with a link-local address, `fe80::1%eth0` (RFC 4007, section 11). hickory accepts few names of interfaces and
//! keeps none, so the zone is read here and added where a socket is used.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hickory_resolver::net::runtime::{DnsUdpSocket, RuntimeProvider, TokioRuntimeProvider};
use nix::net::if_::if_nametoindex;

type Runtime = TokioRuntimeProvider;
type Opening<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// Returns resolv.conf(5) without zones, and the zone of each name server.
pub(super) fn without_zones(text: &str) -> (String, Vec<Option<String>>) {
    let (mut rest, mut zones) = (String::new(), Vec::new());
    for line in text.lines() {
        match name_server(line) {
            Some((address, zone)) => {
                rest.push_str(&format!("nameserver {address}\n"));
                zones.push(zone.map(str::to_owned));
            }
            None => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    (rest, zones)
}

/// Returns address and zone of the name server in a line.
fn name_server(line: &str) -> Option<(IpAddr, Option<&str>)> {
    let mut words = line.split(['#', ';']).next()?.split_whitespace();
    if words.next()? != "nameserver" {
        return None;
    }
    let server = words.next()?;
    match server.split_once('%') {
        Some((address, zone)) => {
            let address: Ipv6Addr = address.parse().ok()?;
            Some((address.into(), Some(zone)))
        }
        None => Some((server.parse().ok()?, None)),
    }
}

/// Opens the sockets for a name server in a zone.
#[derive(Clone)]
pub(super) struct ZoneProvider {
    runtime: Runtime,
    /// Index of the interface; 0 without one.
    index: u32,
}

impl ZoneProvider {
    /// Returns the provider for the zone with this name or number. The server is not reachable if it does not exist.
    pub(super) fn new(zone: Option<&str>) -> ZoneProvider {
        let index = |zone: &str| zone.parse().or_else(|_| if_nametoindex(zone));
        ZoneProvider {
            runtime: Runtime::default(),
            index: zone.and_then(|zone| index(zone).ok()).unwrap_or_default(),
        }
    }
}

impl RuntimeProvider for ZoneProvider {
    type Handle = <Runtime as RuntimeProvider>::Handle;
    type Timer = <Runtime as RuntimeProvider>::Timer;
    type Udp = ZoneSocket;
    type Tcp = <Runtime as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.runtime.create_handle()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        local: Option<SocketAddr>,
        timeout: Option<Duration>,
    ) -> Opening<Self::Tcp> {
        let server = in_zone(server, self.index);
        self.runtime.connect_tcp(server, local, timeout)
    }

    fn bind_udp(&self, local: SocketAddr, server: SocketAddr) -> Opening<Self::Udp> {
        let (socket, index) = (self.runtime.bind_udp(local, server), self.index);
        Box::pin(async move {
            let socket = socket.await?;
            Ok(ZoneSocket { socket, index })
        })
    }
}

/// A socket that sends to a zone.
pub(super) struct ZoneSocket {
    socket: <Runtime as RuntimeProvider>::Udp,
    index: u32,
}

impl DnsUdpSocket for ZoneSocket {
    type Time = <Runtime as RuntimeProvider>::Timer;

    fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        DnsUdpSocket::poll_recv_from(&self.socket, context, buffer)
    }

    fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        target: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        DnsUdpSocket::poll_send_to(&self.socket, context, bytes, in_zone(target, self.index))
    }
}

fn in_zone(mut address: SocketAddr, index: u32) -> SocketAddr {
    if let SocketAddr::V6(address) = &mut address {
        address.set_scope_id(index);
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_zones_from_name_servers() {
        let text = "# nameserver fe80::9%eth9\nnameserver fe80::1%br-lan.7 ; router\n\
                    nameserver 192.0.2.1\nnameserver 192.0.2.2%eth0\nsearch a.test\n nameserver fe80::1%2\nnameserver x\n";
        let (rest, zones) = without_zones(text);
        assert_eq!(
            rest,
            "# nameserver fe80::9%eth9\nnameserver fe80::1\nnameserver 192.0.2.1\nnameserver 192.0.2.2%eth0\nsearch a.test\nnameserver fe80::1\nnameserver x\n"
        );
        let zone = |text: &str| Some(text.to_owned());
        assert_eq!(zones, [zone("br-lan.7"), None, zone("2")]);
        let indices = [None, Some("2"), Some("lo"), Some("no-such-zone")];
        let indices = indices.map(|zone| ZoneProvider::new(zone).index);
        assert_eq!(indices, [0, 2, 1, 0]);
        let address = in_zone("[fe80::1]:53".parse().unwrap(), 2);
        assert_eq!(address.to_string(), "[fe80::1%2]:53");
    }
}
