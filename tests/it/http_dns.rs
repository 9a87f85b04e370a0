//! Name servers that respond partly, late, wrongly or not at all, in a network namespace of their own. The first label of
//! a name selects the responses for IPv4 and IPv6, as in `ok-drop.test`.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nodepki::http::{Call, Endpoint, HttpError, HttpErrorKind, Service};
use time::OffsetDateTime;

use crate::gateway::{Action, Gateway, Issuer, Options, Rule};
use crate::http::{assert_passed, child, client, url, with_files};
use crate::signing::run;
use crate::time::eventually;

const CASES: [&str; 13] = [
    "ok-drop",
    "drop-ok",
    "drop-drop",
    "ok-fail",
    "fail-ok",
    "fail-fail",
    "ok-nx",
    "nx-ok",
    "nx-nx",
    "none-drop",
    "big-none",
    "hole-ok",
    "ok-hole",
];

/// Runs the child in a namespace with these name servers, and asserts that it passes.
fn with_name_servers(resolv: &str, what: &str) {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(
        files.path().join("hosts"),
        "127.0.0.1 localhost listed.test\n",
    )
    .unwrap();
    std::fs::write(files.path().join("resolv.conf"), resolv).unwrap();
    let mut command = with_files(files.path(), true);
    assert_passed(&child(&mut command, what, &Gateway::to(None)));
}

fn serve(address: &'static str) {
    serve_by(address, answer);
}

/// An SRV record: its name, and priority, weight, port and target.
pub(crate) type ServiceRecord = (&'static str, [u16; 3], &'static str);

/// Serves these records on port 53 of an address of loopback.
pub(crate) fn serve_records(address: &'static str, records: Vec<ServiceRecord>) {
    serve_by(address, move |query, _| {
        let question = Question::read(query);
        let name = question.labels.join(".");
        let found = records.iter().filter(|_| question.record_type == SRV);
        let found = found.filter(|(of, _, _)| *of == name);
        let records = found.map(|(_, numbers, target)| {
            let mut data: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
            for label in target.split('.') {
                data.push(u8::try_from(label.len()).unwrap());
                data.extend(label.as_bytes());
            }
            data.push(0);
            (SRV, data)
        });
        let records: Vec<(u16, Vec<u8>)> = records.collect();
        let code = if records.is_empty() { 3 } else { 0 };
        Some(question.reply(query, code, false, &records))
    });
}

fn serve_by(
    address: &'static str,
    answer: impl Fn(&[u8], bool) -> Option<Vec<u8>> + Clone + Send + 'static,
) {
    let by_tcp = answer.clone();
    let udp = UdpSocket::bind((address, 53)).unwrap();
    let tcp = TcpListener::bind((address, 53)).unwrap();
    thread::spawn(move || {
        let mut packet = [0; 512];
        while let Ok((length, client)) = udp.recv_from(&mut packet) {
            if let Some(reply) = answer(&packet[..length], false) {
                let _ = udp.send_to(&reply, client);
            }
        }
    });
    thread::spawn(move || {
        for stream in tcp.incoming() {
            let mut stream = stream.unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut packet = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut packet).unwrap();
            if let Some(reply) = by_tcp(&packet, true) {
                let length = u16::try_from(reply.len()).unwrap().to_be_bytes();
                let _ = stream.write_all(&[&length[..], &reply].concat());
            }
        }
    });
}

/// A server that receives requests and never responds.
fn swallow(address: &'static str) {
    let udp = UdpSocket::bind((address, 53)).unwrap();
    thread::spawn(move || while udp.recv_from(&mut [0; 512]).is_ok() {});
}

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// The question of a query.
struct Question {
    labels: Vec<String>,
    record_type: u16,
    /// Where it ends.
    end: usize,
}

impl Question {
    fn read(query: &[u8]) -> Self {
        let mut end = 12;
        let mut labels = Vec::new();
        while query[end] != 0 {
            let next = end + 1 + usize::from(query[end]);
            labels.push(String::from_utf8_lossy(&query[end + 1..next]).to_lowercase());
            end = next;
        }
        Question {
            labels,
            record_type: u16::from_be_bytes([query[end + 1], query[end + 2]]),
            end: end + 5,
        }
    }

    /// Returns the reply with this code and these records, type and data.
    fn reply(
        &self,
        query: &[u8],
        code: u8,
        truncated: bool,
        records: &[(u16, Vec<u8>)],
    ) -> Vec<u8> {
        let mut reply = query[..2].to_vec();
        reply.extend([0x81 | if truncated { 2 } else { 0 }, 0x80 | code]);
        let count = u8::try_from(records.len()).unwrap();
        reply.extend([0, 1, 0, count, 0, 0, 0, 0]);
        reply.extend(&query[12..self.end]);
        for (record_type, data) in records {
            reply.extend([0xc0, 12]);
            reply.extend(record_type.to_be_bytes());
            reply.extend([0, 1, 0, 0, 0, 60]);
            reply.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            reply.extend(data);
        }
        reply
    }
}

fn answer(query: &[u8], by_tcp: bool) -> Option<Vec<u8>> {
    let question = Question::read(query);
    let labels = &question.labels;
    let is_v6 = question.record_type == AAAA;
    let (v4, v6) = labels[0].split_once('-').unwrap_or(("nx", "nx"));
    let in_zone = labels[1..] == ["test"] || labels[1..] == ["second", "test"];
    let how = match (in_zone, is_v6) {
        (false, _) => "nx",
        (true, true) => v6,
        (true, false) => v4,
    };
    let (code, data): (u8, Vec<u8>) = match (how, is_v6) {
        ("drop", _) => return None,
        ("fail", _) => (2, Vec::new()),
        ("nx", _) => (3, Vec::new()),
        ("none", _) => (0, Vec::new()),
        // The address has no route, or its packets are dropped.
        ("hole", true) => (
            0,
            "2001:db8::9".parse::<Ipv6Addr>().unwrap().octets().to_vec(),
        ),
        ("hole", false) => (0, vec![198, 51, 100, 9]),
        (_, true) => (
            0,
            "::ffff:127.0.0.1"
                .parse::<Ipv6Addr>()
                .unwrap()
                .octets()
                .to_vec(),
        ),
        (_, false) => (0, vec![127, 0, 0, 1]),
    };
    let truncated = how == "big" && !by_tcp;
    let records = if data.is_empty() || truncated {
        Vec::new()
    } else {
        vec![(if is_v6 { AAAA } else { A }, data)]
    };
    Some(question.reply(query, code, truncated, &records))
}

fn signer() -> Gateway {
    let mut names: Vec<String> = CASES.iter().map(|case| format!("{case}.test")).collect();
    names.extend(["listed.test", "ok-none", "none-ok"].map(str::to_owned));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let issuer = Issuer::new("gateway-ca");
    let day = Duration::from_secs(24 * 60 * 60);
    let pair = issuer.server(&names, &[], OffsetDateTime::now_utc(), day);
    let gateway = Gateway::start(Options {
        issuer,
        pair: Some(pair),
        ..Options::default()
    });
    gateway.rule(Rule::on("*", "/").then(Action::Status(200, Vec::new(), b"ok".to_vec())));
    gateway
}

fn get_within(
    gateway: &Gateway,
    host: &str,
    timeout: Duration,
) -> (Result<u16, HttpError>, Duration) {
    let mut endpoint = Endpoint::new(url(&gateway.url_of(host)));
    endpoint.tls.ca_file = Some(gateway.ca_file());
    let started = Instant::now();
    let result = run(client(endpoint).send(Call::get("/x").timeout(timeout)));
    (result.map(|response| response.status), started.elapsed())
}

fn get(gateway: &Gateway, host: &str) -> (Result<u16, HttpError>, Duration) {
    get_within(gateway, host, Duration::from_secs(30))
}

/// Sends requests that must succeed, until one does so faster than a request that waits for a silent name server, which
/// takes 4 s on any machine. A busy machine may delay some of them.
#[track_caller]
fn reaches(gateway: &Gateway, host: &str) {
    eventually(|| {
        let (result, took) = get(gateway, host);
        let status = result.unwrap_or_else(|error| panic!("{host}: {error}"));
        assert_eq!(status, 200);
        let is_fast = took < Duration::from_secs(4);
        is_fast
            .then_some(())
            .ok_or_else(|| format!("{host} took {took:?}"))
    });
}

#[track_caller]
fn fails(gateway: &Gateway, host: &str, parts: &[&str]) {
    let (result, _) = get(gateway, host);
    let error = result.unwrap_err();
    let text = format!("{error}; {}", error.advice());
    assert_eq!(error.kind(), &HttpErrorKind::Unreachable, "{text}");
    for part in parts
        .iter()
        .chain(&["cannot be resolved", "/etc/resolv.conf"])
    {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    assert!(text.contains(&format!("the name {host} ")), "{text}");
    assert!(!text.contains("cannot be reached"), "{text}");
}

#[test]
fn asks_link_local_name_server_at_its_interface() {
    with_name_servers("nameserver fe80::53%br-0\n", "dns-link-local");
}

pub(crate) fn link_local() {
    for command in [
        "link add br-0 type veth peer name other",
        "link set br-0 up",
        "address add fe80::53/64 dev br-0 nodad",
    ] {
        let status = Command::new("ip").args(command.split(' ')).status();
        assert!(status.unwrap().success(), "{command}");
    }
    serve("fe80::53%br-0");
    let gateway = signer();
    reaches(&gateway, "ok-nx.test");
    // By TCP.
    reaches(&gateway, "big-none.test");
    let asked = "name servers asked: fe80::53%br-0";
    fails(&gateway, "drop-drop.test", &[asked]);
}

#[test]
fn connects_with_family_that_name_server_answers() {
    with_name_servers("nameserver 127.0.0.1\n", "dns-partial");
}

pub(crate) fn partial() {
    serve("127.0.0.1");
    // The kernel drops packets for other addresses.
    let route = ["route", "add", "198.51.100.0/24", "dev", "lo"];
    assert!(Command::new("ip").args(route).status().unwrap().success());
    let gateway = signer();
    reaches(&gateway, "ok-drop.test");
    reaches(&gateway, "drop-ok.test");
    reaches(&gateway, "ok-fail.test");
    reaches(&gateway, "fail-ok.test");
    reaches(&gateway, "ok-nx.test");
    reaches(&gateway, "nx-ok.test");
    reaches(&gateway, "big-none.test");
    reaches(&gateway, "listed.test");
    // If one address is unreachable, the other family is tried (RFC 8305, section 5).
    reaches(&gateway, "hole-ok.test");
    reaches(&gateway, "ok-hole.test");
    fails(
        &gateway,
        "drop-drop.test",
        &[
            "name servers asked: 127.0.0.1",
            "A: no answer",
            "AAAA: no answer",
        ],
    );
    fails(
        &gateway,
        "fail-fail.test",
        &["A: Server Failure from 127.0.0.1", "AAAA: Server Failure"],
    );
    fails(
        &gateway,
        "none-drop.test",
        &["A: no record", "AAAA: no answer"],
    );
    fails(&gateway, "nx-nx.test", &["DNS has no address for it"]);
    // A timeout during name resolution is not reported as a failure of the server.
    let (result, _) = get_within(&gateway, "drop-drop.test", Duration::from_secs(1));
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("the name drop-drop.test cannot be resolved"),
        "{error}"
    );
    assert!(error.contains("name servers asked: 127.0.0.1"), "{error}");
}

#[test]
fn asks_next_name_server_when_first_is_dead() {
    // The first has a closed port, which the kernel reports immediately.
    with_name_servers(
        "nameserver 127.0.0.9\nnameserver 127.0.0.1\n",
        "dns-refusing",
    );
    with_name_servers(
        "nameserver 127.0.0.2\nnameserver 127.0.0.1\n",
        "dns-swallowing",
    );
    with_name_servers(
        "nameserver 127.0.0.2\nnameserver 127.0.0.3\n",
        "dns-all-dead",
    );
}

pub(crate) fn refusing() {
    serve("127.0.0.1");
    let gateway = signer();
    reaches(&gateway, "ok-nx.test");
    fails(
        &gateway,
        "fail-drop.test",
        &[
            "name servers asked: 127.0.0.9, 127.0.0.1",
            "Server Failure from 127.0.0.1",
        ],
    );
}

pub(crate) fn swallowing() {
    swallow("127.0.0.2");
    serve("127.0.0.1");
    let gateway = signer();
    reaches(&gateway, "ok-nx.test");
    reaches(&gateway, "ok-drop.test");
}

pub(crate) fn all_dead() {
    swallow("127.0.0.2");
    swallow("127.0.0.3");
    fails(
        &signer(),
        "ok-ok.test",
        &[
            "name servers asked: 127.0.0.2, 127.0.0.3",
            "A: no answer",
            "AAAA: no answer",
        ],
    );
}

#[test]
fn searches_domains_by_name_not_by_family() {
    let resolv = "nameserver 127.0.0.1\nsearch first.invalid test second.test\n";
    with_name_servers(resolv, "dns-search");
}

pub(crate) fn search() {
    serve("127.0.0.1");
    let gateway = signer();
    // A name in `test` is not searched in `second.test` for the family without a record.
    reaches(&gateway, "ok-none");
    reaches(&gateway, "none-ok");
    fails(&gateway, "nx-nx", &["DNS has no address for it"]);
    fails(&gateway, "drop-drop", &["A: no answer", "AAAA: no answer"]);
}

#[test]
fn connects_to_first_reachable_server_of_service() {
    let resolv = "nameserver 127.0.0.1\nsearch other.test found.test\n";
    with_name_servers(resolv, "dns-services");
}

pub(crate) fn services() {
    let gateway = signer();
    let port = url(&gateway.url_of("listed.test")).port().unwrap();
    serve_records(
        "127.0.0.1",
        vec![
            ("_ca._tcp.found.test", [10, 0, 1], "listed.test"),
            ("_ca._tcp.found.test", [20, 0, port], "listed.test"),
            ("_any._tcp.only.test", [0, 0, port], "listed.test"),
            ("_ca._tcp.none.test", [0, 0, 1], "listed.test"),
            ("_any._tcp.none.test", [0, 0, port], "listed.test"),
        ],
    );
    let get = |domain: Option<&str>, fallback: &str| {
        let mut endpoint = Endpoint::new(url(fallback));
        endpoint.tls.ca_file = Some(gateway.ca_file());
        endpoint.service = Some(Service {
            names: &["_ca._tcp", "_any._tcp"],
            domain: domain.map(str::to_owned),
        });
        let client = client(endpoint);
        // The second call does not search again.
        let first = run(client.send(Call::get("/x")));
        first.and_then(|_| run(client.send(Call::get("/x"))))
    };
    let closed = "https://localhost:1";
    // The server of the lower priority, since the first one is not reachable; in the domains of resolv.conf by default.
    assert_eq!(get(Some("found.test"), closed).unwrap().status, 200);
    assert_eq!(get(None, closed).unwrap().status, 200);
    // The second name, if DNS knows nothing of the first one.
    assert_eq!(get(Some("only.test"), closed).unwrap().status, 200);
    // The configured address, if no server is reachable, or DNS knows none.
    let configured = gateway.url_of("listed.test");
    for domain in ["none.test", "absent.test", "-.invalid.."] {
        assert_eq!(
            get(Some(domain), &configured).unwrap().status,
            200,
            "{domain}"
        );
    }
    let error = get(Some("none.test"), closed).unwrap_err();
    assert_eq!(error.kind(), &HttpErrorKind::Unreachable, "{error}");
}
