//! A burst of joining nodes, and floods of hostile requests, for `tests/run bench kubelets`: times, rate and memory with the
//! real kube-apiserver and etcd, and a signer that takes 50 ms for each certificate.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nodepki::signer::wire::SignRequest;
use nodepki::x509::{
    CertificateAuthority, Csr, ExtendedUsage, KeyAlgorithm, Profile, Sans, Subject,
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::hostile::object_of;
use super::{
    CSRS, Wanted, all_requests, certificate, configure, decided, kubelet_of, memory, prepared,
    put_node, reason_of, serving, token,
};
use crate::kubelet_rules::requests;
use crate::rotation_cluster::Daemon;
use crate::servers::cluster::{Cluster, ClusterNode, INIT};
use crate::servers::remote_signer::PLUGIN;
use crate::signing::now;
use crate::time::{let_pass, within};

const NODES: usize = 1_000;
/// Nodes join in groups, evenly spread over a minute.
const GROUPS: usize = 20;
const JOIN_TIME: Duration = Duration::from_secs(60);
const SIGNING_TIME: Duration = Duration::from_millis(50);
const HOSTILE: usize = 10_000;
/// Largest number of calls to the signer in each second (`kubelets.requestsPerSecond`).
const RATE: usize = 50;
/// Upper bound for the agent's memory in KiB.
const MAX_MEMORY: u64 = 64 << 10;
const TIME_LIMIT: Duration = Duration::from_secs(600);
const SOCKET: &str = "/run/bench.sock";
const AUDIT_LOG: &str = "/var/tmp/audit.log";

/// The signer. It ends with the process.
struct SlowSigner {
    /// When each request for a certificate arrived.
    arrivals: Arc<Mutex<Vec<Instant>>>,
}

impl SlowSigner {
    fn start(socket: &Path, authorities: &Path) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let read = |file: &str| fs::read(authorities.join(file)).unwrap();
        let authority = CertificateAuthority::from_pem(&read("ca.crt"), &read("ca.key")).unwrap();
        let authority = Arc::new(authority);
        let arrivals = Arc::<Mutex<Vec<Instant>>>::default();
        let log = Arc::clone(&arrivals);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (authority, log) = (Arc::clone(&authority), Arc::clone(&log));
                // The client may have ended.
                thread::spawn(move || drop(respond(&stream.unwrap(), &authority, &log)));
            }
        });
        SlowSigner { arrivals }
    }

    /// Returns the largest number of requests within one second.
    fn peak(&self) -> usize {
        let arrivals = self.arrivals.lock().unwrap();
        let second = Duration::from_secs(1);
        let within = |first: usize| {
            let rest = arrivals[first..].iter();
            rest.take_while(|at| **at - arrivals[first] < second)
                .count()
        };
        (0..arrivals.len()).map(within).max().unwrap_or_default()
    }
}

fn respond(
    stream: &UnixStream,
    authority: &CertificateAuthority,
    log: &Mutex<Vec<Instant>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let answer = match serde_json::from_slice::<SignRequest>(&body) {
        Ok(request) => {
            log.lock().unwrap().push(Instant::now());
            thread::sleep(SIGNING_TIME);
            sign(authority, &request)
        }
        Err(_) => {
            json!({"kind": "InfoResponse", "apiVersion": "signer.nodepki.dev/v1",
                "apiVersions": ["signer.nodepki.dev/v1"], "capabilities": {"resubmit": "idempotent"}})
        }
    };
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
        answer.len()
    );
    let mut writer = stream;
    writer.write_all(head.as_bytes())?;
    writer.write_all(answer.as_bytes())
}

fn sign(authority: &CertificateAuthority, request: &SignRequest) -> Value {
    let usage = if request.usages.iter().any(|usage| usage == "server auth") {
        ExtendedUsage::ServerAuth
    } else {
        ExtendedUsage::ClientAuth
    };
    let addresses = request.ip_addresses.iter();
    let profile = Profile {
        subject: Subject {
            common_name: request.subject.common_name.clone(),
            organizations: request.subject.organization.clone(),
        },
        sans: Sans {
            dns: request.dns_names.clone(),
            ips: addresses.map(|address| address.parse().unwrap()).collect(),
        },
        usages: vec![usage],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: Duration::from_secs(request.duration_seconds),
    };
    let csr = Csr::from_pem(request.csr_pem.as_bytes()).unwrap();
    let chain = authority.issue(csr.public_key(), &profile, now()).unwrap();
    json!({"kind": "SignResponse", "apiVersion": "signer.nodepki.dev/v1", "requestId": request.request_id,
        "result": "issued", "certificatePem": chain.to_pem()})
}

/// Starts the API server again with an audit log of all requests about CertificateSigningRequests.
fn audit(node: &ClusterNode) {
    node.write(
        "/var/tmp/audit.yaml",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
         - level: Metadata\n  verbs: [create, update]\n  resources: [{group: certificates.k8s.io}]\n- {level: None}\n",
    );
    node.stop("kube-apiserver");
    let log = format!("--audit-log-path={AUDIT_LOG}");
    node.start_with(
        "kube-apiserver",
        &["--audit-policy-file=/var/tmp/audit.yaml", &log],
    );
}

/// Returns the time from the creation of each object to the certificate in its status, by name.
fn waits(node: &ClusterNode) -> BTreeMap<String, Duration> {
    let log = fs::read_to_string(node.path(AUDIT_LOG)).unwrap();
    let (mut created, mut waits) = (BTreeMap::new(), BTreeMap::new());
    // The last line may be incomplete.
    for event in log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
    {
        let text = |pointer: &str| {
            let text = event.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_default()
        };
        let at = OffsetDateTime::parse(text("/stageTimestamp"), &Rfc3339).unwrap();
        let name = text("/objectRef/name").to_owned();
        match (text("/verb"), text("/objectRef/subresource")) {
            ("create", "") => drop(created.insert(name, at)),
            ("update", "status") if event["responseStatus"]["code"] == 200 => {
                let wait = (at - created[&name]).unsigned_abs();
                waits.insert(name, wait);
            }
            _ => {}
        }
    }
    waits
}

/// The nodes of a group.
struct Group {
    number: usize,
    names: Vec<String>,
}

impl Group {
    fn new(number: usize) -> Self {
        let names = (0..NODES / GROUPS).map(|n| format!("n{number}-{n}"));
        Group {
            number,
            names: names.collect(),
        }
    }

    fn address(&self, n: usize) -> String {
        format!("198.18.{}.{}", self.number, n + 1)
    }

    /// Creates the client requests, by a bootstrap token.
    fn begin(&self, cluster: &Cluster) {
        let objects = self.names.iter().map(|name| {
            let object = Wanted::client(name).object().0;
            (named(object, &format!("client-{name}")), Vec::new())
        });
        token(cluster).create_all(CSRS, &objects.collect::<Vec<_>>());
    }

    /// Creates the Nodes and the serving requests once the nodes have their identities.
    fn finish(&self, cluster: &Cluster) {
        wait_for("the client certificates of a group", || {
            let issued = waits(cluster.first());
            let clients = self.names.iter().map(|name| format!("client-{name}"));
            clients.into_iter().all(|name| issued.contains_key(&name))
        });
        let nodes = self.names.iter().enumerate().map(|(n, name)| {
            let addresses = json!([{"type": "InternalIP", "address": self.address(n)},
                                   {"type": "Hostname", "address": name}]);
            let object = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name},
                "status": {"addresses": addresses}});
            (object, Vec::new())
        });
        let admin = cluster.admin();
        admin.create_all("/api/v1/nodes", &nodes.collect::<Vec<_>>());
        let servers = self.names.iter().enumerate().map(|(n, name)| {
            let (dns, ip) = ([name.as_str()], self.address(n));
            let object = serving(name, &dns, &[&ip]).object().0;
            let headers = vec![
                format!("Impersonate-User: system:node:{name}"),
                "Impersonate-Group: system:nodes".to_owned(),
            ];
            (named(object, &format!("serving-{name}")), headers)
        });
        admin.create_all(CSRS, &servers.collect::<Vec<_>>());
    }
}

fn named(mut object: Value, name: &str) -> Value {
    object["metadata"] = json!({"name": name});
    object
}

fn wait_for(what: &str, mut is_done: impl FnMut() -> bool) {
    let done = within(TIME_LIMIT, || is_done().then_some(()).ok_or(()));
    assert!(done.is_ok(), "{what}");
}

#[test]
fn signs_for_thousand_nodes_and_denies_ten_thousand_requests() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    node.stop("kube-controller-manager");
    node.nodepki(&["renew"]).done();
    let signer = SlowSigner::start(&node.path(SOCKET), &cluster.authorities());
    let plugin = format!(", slow: {{exec: {{command: /bin/bash, args: ['{PLUGIN}', {SOCKET}]}}}}");
    configure(node, "slow", &plugin);
    audit(node);
    let daemon = &mut Daemon::start(node);

    let began = Instant::now();
    let groups: Vec<Group> = (0..GROUPS).map(Group::new).collect();
    let mut created = Duration::ZERO;
    thread::scope(|scope| {
        for group in &groups {
            group.begin(cluster);
            created = began.elapsed();
            scope.spawn(|| group.finish(cluster));
            let next = JOIN_TIME.mul_f64((group.number + 1) as f64 / GROUPS as f64);
            let_pass(next.saturating_sub(began.elapsed()));
        }
    });
    wait_for("all requests are served", || waits(node).len() == 2 * NODES);
    let served = began.elapsed();
    let mut waits: Vec<Duration> = waits(node).into_values().collect();
    waits.sort_unstable();
    let share = |percent: usize| waits[(waits.len() * percent / 100).min(waits.len() - 1)];
    let (peak, burst_memory) = (signer.peak(), memory(daemon));
    println!(
        "{NODES} nodes began to join within {created:.0?}, {} certificates issued after {served:.0?}",
        waits.len()
    );
    println!(
        "from creation to certificate: p50 {:.2?}, p99 {:.2?}, longest {:.2?}",
        share(50),
        share(99),
        share(100)
    );
    println!(
        "at most {peak} requests to the signer in a second; peak memory of the agent {burst_memory} KiB"
    );
    let failed = all_requests(cluster)
        .into_iter()
        .filter(|object| object["status"]["certificate"].is_null());
    assert_eq!(failed.count(), 0);
    assert!(peak <= 2 * RATE, "{peak}");
    assert!(burst_memory < MAX_MEMORY, "{burst_memory} KiB");

    deny_all(cluster, daemon);
    // A new process lists all old requests.
    daemon.stop();
    let daemon = &Daemon::start(node);
    // The token of the others has as many nodes as it may have.
    let last = named(Wanted::client("last").object().0, "last");
    let admin = cluster.admin();
    admin.create_all(CSRS, &[(last, token_headers("bbbbbb"))]);
    certificate(&decided(cluster, "last", daemon));
    let memory = memory(daemon);
    println!(
        "a new agent with {} old requests: peak memory {memory} KiB",
        2 * NODES + HOSTILE
    );
    assert!(memory < MAX_MEMORY, "{memory} KiB");
}

/// Has one node send thousands of requests for another node's address at once.
fn deny_all(cluster: &Cluster, daemon: &Daemon<'_>) {
    put_node(cluster, "w1", &[("InternalIP", "192.0.2.21")], true);
    put_node(cluster, "w2", &[("InternalIP", "192.0.2.22")], true);
    let mut cases = requests::all().into_iter();
    let stolen = cases.find(|case| case.name == "another node's address");
    let object = object_of(&stolen.unwrap(), "hostile-");
    let began = Instant::now();
    kubelet_of(cluster, "w1").flood(CSRS, &object, HOSTILE);
    let created = began.elapsed();
    let is_denied = |object: &Value| reason_of(object, "Denied").is_some();
    wait_for("all hostile requests are denied", || {
        all_requests(cluster)
            .iter()
            .filter(|object| is_denied(object))
            .count()
            == HOSTILE
    });
    let took = began.elapsed();
    let memory = memory(daemon);
    println!(
        "{HOSTILE} hostile requests created in {created:.0?}, all denied after {took:.0?}; peak memory of the agent {memory} KiB"
    );
    assert!(memory < MAX_MEMORY, "{memory} KiB");
}

/// The requests of a bootstrap token that floods the API server while the nodes of another token join: a third of them is one
/// request again and again, a third has a new key for one name, and a third has new names.
#[test]
fn bounds_burst_of_one_token_while_other_nodes_join() {
    const BURST: usize = 3_000;
    const HONEST: usize = 100;
    /// Certificates for names without a Node that one token gets (`src/kubelets/issuance.rs`).
    const UNREGISTERED: usize = 300;
    /// Requests that are processed at the same time (`src/agent/kubelet_requests.rs`). Each may have been judged before another
    /// one was approved.
    const CONCURRENT: usize = 16;
    /// Events about the requests of one user at once, and further ones for each minute of the test.
    const EVENTS: usize = 20 + 30;
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    node.stop("kube-controller-manager");
    node.nodepki(&["renew"]).done();
    let signer = SlowSigner::start(&node.path(SOCKET), &cluster.authorities());
    let plugin = format!(", slow: {{exec: {{command: /bin/bash, args: ['{PLUGIN}', {SOCKET}]}}}}");
    configure(node, "slow", &plugin);
    let daemon = &Daemon::start(node);
    let arrivals = || signer.arrivals.lock().unwrap().len();
    let issued = |prefix: &str| {
        let all = all_requests(cluster).into_iter();
        let of_prefix = all.filter(|one| {
            one["metadata"]["name"]
                .as_str()
                .unwrap()
                .starts_with(prefix)
        });
        of_prefix
            .filter(|one| one["status"]["certificate"].is_string())
            .count()
    };

    let repeated = Wanted::client("repeated").object().0;
    let third = 0..BURST / 3;
    let mut burst = Vec::new();
    for number in third {
        let keys = Wanted::client("keys").object().0;
        let names = Wanted::client(&format!("name-{number}")).object().0;
        for (kind, object) in [
            ("repeated", repeated.clone()),
            ("keys", keys),
            ("names", names),
        ] {
            let object = named(object, &format!("{kind}-{number}"));
            burst.push((object, token_headers("aaaaaa")));
        }
    }
    let honest: Vec<_> = (0..HONEST)
        .map(|number| {
            let name = format!("honest-{number}");
            let object = Wanted::client(&name).object().0;
            (named(object, &name), token_headers("bbbbbb"))
        })
        .collect();
    let began = Instant::now();
    let created = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            cluster.admin().create_all(CSRS, &burst);
            began.elapsed()
        });
        wait_for("the flood has begun", || issued("") > 10);
        cluster.admin().create_all(CSRS, &honest);
        wait_for("all honest nodes join", || issued("honest-") == HONEST);
        println!(
            "{HONEST} honest nodes have certificates after {:.0?}",
            began.elapsed()
        );
        flood.join().unwrap()
    });
    wait_for("what is repeated is answered", || {
        issued("repeated-") == BURST / 3
    });
    wait_for("the token has what it may have", || {
        arrivals() >= UNREGISTERED + HONEST
    });
    let served = began.elapsed();
    // Another node joins while the rest of the burst waits.
    let (name, _, _) = Wanted::client("last").create(&token(cluster));
    certificate(&decided(cluster, &name, daemon));
    let signed = arrivals() - HONEST - 1;
    assert!(
        (UNREGISTERED..=UNREGISTERED + CONCURRENT).contains(&signed),
        "{signed}"
    );
    assert_eq!(issued("keys-"), 1);
    let names = issued("names-");
    assert!(
        (UNREGISTERED - 2..signed).contains(&names),
        "{names} of {signed}"
    );
    let (_, events) = cluster
        .admin()
        .get("/api/v1/namespaces/default/events?limit=5000");
    let events = events["items"].as_array().unwrap().iter();
    let about =
        events.filter(|event| event["involvedObject"]["kind"] == "CertificateSigningRequest");
    let (events, memory) = (about.count(), memory(daemon));
    println!(
        "{BURST} requests of one token created in {created:.0?}: {signed} signed, all served or waiting after {served:.0?}; {events} Events, peak memory of the agent {memory} KiB"
    );
    assert!(events <= EVENTS, "{events}");
    assert!(memory < MAX_MEMORY, "{memory} KiB");
}

/// Returns the headers with which the administrator acts as a bootstrap token.
fn token_headers(id: &str) -> Vec<String> {
    vec![
        format!("Impersonate-User: system:bootstrap:{id}"),
        "Impersonate-Group: system:bootstrappers".to_owned(),
        "Impersonate-Group: system:bootstrappers:kubeadm:default-node-token".to_owned(),
    ]
}
