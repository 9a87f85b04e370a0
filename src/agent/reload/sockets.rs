//! The sockets at an address of this node: every process has its own, so they tell a new process from the one before it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The tables of sockets of this process's network namespace (`proc_pid_net(5)`), which is that of static pods. Unlike
/// `/proc/net`, they exist with `ProcSubset=pid`.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// `TCP_LISTEN` in `include/net/tcp_states.h`.
const LISTENS: &str = "0A";

/// Inode numbers of sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sockets(BTreeSet<u64>);

impl Sockets {
    /// Returns those that listen at an address now; none if they are unknown. A wildcard address stands for that of both
    /// families.
    pub(super) fn listening_at(address: SocketAddr) -> Sockets {
        Sockets::parse(lines(), address, false)
    }

    /// Returns those that listen, and those of the connections that were accepted.
    pub(super) fn open_at(address: SocketAddr) -> Sockets {
        Sockets::parse(lines(), address, true)
    }

    fn parse(
        lines: impl Iterator<Item = String>,
        address: SocketAddr,
        with_connections: bool,
    ) -> Sockets {
        let found = lines.filter_map(|line| {
            let mut fields = line.split_whitespace();
            let local = local_address(fields.nth(1)?)?;
            let is_listening = fields.nth(1)? == LISTENS;
            let inode = fields.nth(5)?.parse().ok()?;
            let is_ours = match (address.ip().is_unspecified(), local.ip().is_unspecified()) {
                (true, is_wildcard) => is_wildcard || !is_listening,
                (false, _) => local.ip() == address.ip().to_canonical(),
            };
            // The system ends a connection that no process has any more.
            let is_open = is_listening || with_connections && inode != 0;
            (is_open && is_ours && local.port() == address.port()).then_some(inode)
        });
        Sockets(found.collect())
    }

    /// Adds others.
    pub(super) fn add(&mut self, others: Sockets) {
        self.0.extend(others.0);
    }

    /// Returns whether there are none, or none are known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether one of `before` still exists.
    pub(super) fn include(&self, before: &Sockets) -> bool {
        !self.0.is_disjoint(&before.0)
    }

    /// Returns whether another process listens than the one of `before`.
    pub(super) fn have_replaced(&self, before: &Sockets) -> bool {
        let known = !self.is_empty() && !before.is_empty();
        known && !self.include(before)
    }
}

/// Parses an address of the tables: the words of the IP address in this machine's byte order, and the port.
fn local_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.rsplit_once(':')?;
    let word = |at: usize| {
        let digits = ip.get(at * 8..(at + 1) * 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = if ip.len() == 8 {
        Ipv4Addr::from(word(0)?).into()
    } else {
        let words = [word(0)?, word(1)?, word(2)?, word(3)?];
        let octets: [u8; 16] = words.concat().try_into().ok()?;
        // An IPv4 address of a socket that accepts both families.
        Ipv6Addr::from(octets).to_canonical()
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// Returns the lines of the tables that can be read.
fn lines() -> impl Iterator<Item = String> {
    let tables = TABLES.iter().filter_map(|path| File::open(path).ok());
    tables.flat_map(|table| BufReader::new(table).lines().map_while(Result::ok))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Tables of Linux 6.12 on a little-endian machine: listeners on 127.0.0.1:2379, 192.0.2.11:2379 and 127.0.0.1:2381, a
    /// connection to the first one, and one that no process has any more (`TIME_WAIT`); listeners on [::]:6443 and
    /// [2001:db8::b]:10259, and a connection from an IPv4 client to each of two addresses at port 6443.
    const TABLES: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:094B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20811 1 0000000000000000 100 0 0 10 0
   1: 0B0200C0:094B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20812 1 0000000000000000 100 0 0 10 0
   2: 0100007F:094D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20813 1 0000000000000000 100 0 0 10 0
   3: 0100007F:094B 0100007F:A1B2 01 00000000:00000000 02:000006E1 00000000     0        0 30001 2 0000000000000000 20 4 30 10 -1
   4: 0100007F:094B 0100007F:A1B4 06 00000000:00000000 03:000006E1 00000000     0        0 0 3 0000000000000000
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:192B 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20821 1 0000000000000000 100 0 0 10 0
   2: B80D012000000000000000000B000000:2813 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20822 1 0000000000000000 100 0 0 10 0
   3: 0000000000000000FFFF00000B0200C0:192B 0000000000000000FFFF0000010200C0:D431 01 00000000:00000000 02:000006E1 00000000     0        0 30002 2 0000000000000000 20 4 30 10 -1
   4: 0000000000000000FFFF0000630200C0:192B 0000000000000000FFFF0000010200C0:D432 01 00000000:00000000 02:000006E1 00000000     0        0 30003 2 0000000000000000 20 4 30 10 -1
";

    #[cfg(target_endian = "little")]
    #[test]
    fn finds_sockets_of_address() {
        let parsed = |address: &str, with_connections: bool| -> Vec<u64> {
            let lines = TABLES.lines().map(str::to_owned);
            let found = Sockets::parse(lines, address.parse().unwrap(), with_connections);
            found.0.into_iter().collect()
        };
        for (address, listening, open) in [
            ("127.0.0.1:2379", &[20811][..], &[20811, 30001][..]),
            ("192.0.2.11:2379", &[20812], &[20812]),
            ("192.0.2.11:2381", &[], &[]),
            ("0.0.0.0:6443", &[20821], &[20821, 30002, 30003]),
            ("[::]:6443", &[20821], &[20821, 30002, 30003]),
            ("192.0.2.11:6443", &[], &[30002]),
            ("[::ffff:192.0.2.11]:6443", &[], &[30002]),
            ("[2001:db8::b]:10259", &[20822], &[20822]),
        ] {
            assert_eq!(parsed(address, false), listening, "{address}");
            assert_eq!(parsed(address, true), open, "{address}");
        }
    }

    #[test]
    fn new_listener_replaces_old_one() {
        let listen = |address: &str| TcpListener::bind(address).unwrap();
        let first = listen("127.0.0.1:0");
        let address = first.local_addr().unwrap();
        // Another program may listen at the same port of another address.
        let _other = listen(&format!("127.0.0.2:{}", address.port()));
        let listening = || Sockets::listening_at(address);
        let before = listening();
        assert_eq!(before.0.len(), 1);
        let client = TcpStream::connect(address).unwrap();
        let (connection, _) = first.accept().unwrap();
        assert!(!listening().have_replaced(&before));
        drop(first);
        assert!(!listening().have_replaced(&before), "none is not a new one");
        assert!(!Sockets::open_at(address).is_empty());
        drop((connection, client));
        assert!(Sockets::open_at(address).is_empty());
        let _second = listen(&address.to_string());
        assert!(listening().have_replaced(&before));
        assert!(!listening().have_replaced(&Sockets::default()));
    }
}
