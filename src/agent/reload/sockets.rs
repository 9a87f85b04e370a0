//! The sockets at a port of this node: every process has its own, so they tell a new process from the one before it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};

/// The tables of sockets of this process's network namespace (`proc_pid_net(5)`), which is that of static pods. Unlike
/// `/proc/net`, they exist with `ProcSubset=pid`.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// `TCP_LISTEN` in `include/net/tcp_states.h`.
const LISTENS: &str = "0A";

/// Inode numbers of sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sockets(BTreeSet<u64>);

impl Sockets {
    /// Returns those that listen on a port now; none if they are unknown.
    pub(super) fn listening_at(port: u16) -> Sockets {
        Sockets::parse(lines(), port, false)
    }

    /// Returns those that listen, and those of the connections that were accepted.
    pub(super) fn open_at(port: u16) -> Sockets {
        Sockets::parse(lines(), port, true)
    }

    fn parse(lines: impl Iterator<Item = String>, port: u16, with_connections: bool) -> Sockets {
        let found = lines.filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (_, local) = fields.nth(1)?.rsplit_once(':')?;
            let is_listening = fields.nth(1)? == LISTENS;
            let of_port = u16::from_str_radix(local, 16) == Ok(port);
            let inode = fields.nth(5)?.parse().ok()?;
            // The system ends a connection that no process has any more.
            let is_open = is_listening || with_connections && inode != 0;
            (is_open && of_port).then_some(inode)
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

/// Returns the lines of the tables that can be read.
fn lines() -> impl Iterator<Item = String> {
    let tables = TABLES.iter().filter_map(|path| File::open(path).ok());
    tables.flat_map(|table| BufReader::new(table).lines().map_while(Result::ok))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A table of Linux 6.12: listeners on 127.0.0.1:2379 and 192.0.2.11:2379, a connection to the first one, and one that
    /// no process has any more (`TIME_WAIT`).
    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:094B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20811 1 0000000000000000 100 0 0 10 0
   1: 0B0200C0:094B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20812 1 0000000000000000 100 0 0 10 0
   2: 0100007F:094D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20813 1 0000000000000000 100 0 0 10 0
   3: 0100007F:094B 0100007F:A1B2 01 00000000:00000000 02:000006E1 00000000     0        0 30001 2 0000000000000000 20 4 30 10 -1
   4: 0100007F:094B 0100007F:A1B4 06 00000000:00000000 03:000006E1 00000000     0        0 0 3 0000000000000000
";

    fn parsed(port: u16, with_connections: bool) -> Vec<u64> {
        let lines = TABLE.lines().map(str::to_owned);
        let found = Sockets::parse(lines, port, with_connections);
        found.0.into_iter().collect()
    }

    #[test]
    fn finds_all_listeners_of_port() {
        assert_eq!(parsed(2379, false), [20811, 20812]);
        assert_eq!(parsed(2379, true), [20811, 20812, 30001]);
        assert_eq!(parsed(2381, false), [20813]);
        assert_eq!(parsed(2380, true), [0; 0]);
    }

    #[test]
    fn new_listener_replaces_old_one() {
        let listen = |address: &str| TcpListener::bind(address).unwrap();
        let first = listen("127.0.0.1:0");
        let address = first.local_addr().unwrap();
        let of_port = || Sockets::listening_at(address.port());
        let before = of_port();
        assert_eq!(before.0.len(), 1);
        let client = TcpStream::connect(address).unwrap();
        let (connection, _) = first.accept().unwrap();
        assert!(!of_port().have_replaced(&before));
        drop(first);
        assert!(!of_port().have_replaced(&before), "none is not a new one");
        assert!(!Sockets::open_at(address.port()).is_empty());
        drop((connection, client));
        assert!(Sockets::open_at(address.port()).is_empty());
        let _second = listen(&address.to_string());
        assert!(of_port().have_replaced(&before));
        assert!(!of_port().have_replaced(&Sockets::default()));
    }
}
