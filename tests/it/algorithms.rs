//! Key algorithms of CAs and leaves on a real kube-apiserver and a real etcd: nodepki bootstraps the node, the API server
//! serves, etcd accepts it, and clients with certificates of the same algorithm are authenticated.
//!
//! `tests/run unit` runs some pairs, in which CA and leaf differ. `tests/run bench algorithms` runs all 36 pairs of RSA and
//! ECDSA, and measures generation and handshakes; it prints the table of `docs/algorithms.md`. `tests/run ml-dsa` runs
//! components that can use ML-DSA.

mod ml_dsa;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::CertName;
use nodepki::x509::{KeyAlgorithm, KeyFamily, KeyType, PrivateKey, TrustBundle};
use serde_json::Value;

use crate::node::{INIT, Node, Ran};
use crate::package_budget::daemon::authorities::make_authorities;
use crate::servers::{Server, bin, free_port};
use crate::signing::write_secret;

const PKI: &str = "/etc/kubernetes/pki";

/// A control plane whose certificates nodepki has issued.
struct ControlPlane {
    node: Node,
    etcd_port: u16,
    api_port: u16,
    api: Server,
    _etcd: Server,
}

impl ControlPlane {
    /// Starts etcd and kube-apiserver with leaves of this algorithm, under the CAs in a directory.
    fn start(authorities: &Path, leaf: KeyAlgorithm) -> ControlPlane {
        let node = bootstrapped(authorities, leaf);
        let (etcd_port, api_port) = (free_port(), free_port());
        let etcd = start_etcd(&node, &bin("etcd"), etcd_port);
        let api = start_api(&node, &bin("kube-apiserver"), api_port, etcd_port);
        let mut started = ControlPlane {
            node,
            etcd_port,
            api_port,
            api,
            _etcd: etcd,
        };
        started.wait_until_ready();
        started
    }

    fn wait_until_ready(&mut self) {
        let words = curl(&self.node, &self.url("/readyz"), &[]);
        self.api.wait_until(|| {
            let output = Command::new(&words[0]).args(&words[1..]).output().unwrap();
            output.status.success() && output.stdout == b"ok"
        });
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.api_port)
    }

    /// Sends a request as the administrator, and returns the body.
    fn send(&self, path: &str, more: &[&str]) -> String {
        run(&curl(&self.node, &self.url(path), more))
    }

    /// Returns the CPU time of kube-apiserver so far, in seconds.
    fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.api.id())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        // utime and stime (proc_pid_stat(5)), in the ticks of sysconf(_SC_CLK_TCK), which Linux fixes to 100.
        let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
        (ticks(11) + ticks(12)) / 100.0
    }
}

/// Returns a node with leaves of this algorithm, under the CAs in a directory.
fn bootstrapped(authorities: &Path, leaf: KeyAlgorithm) -> Node {
    let node = Node::of(&format!(
        "{INIT}apiServer: {{certSANs: [127.0.0.1, localhost]}}\n"
    ));
    for name in ["ca.crt", "front-proxy-ca.crt", "etcd/ca.crt"] {
        let here = node.path(format!("{PKI}/{name}"));
        fs::copy(authorities.join(name), here).unwrap();
    }
    let key = match leaf.to_string().split_once('-').unwrap() {
        ("RSA", bits) => format!("{{algorithm: RSA, rsa: {{keySize: {bits}}}}}"),
        ("ML", _) => format!("{{algorithm: MLDSA, mldsa: {{parameterSet: {leaf}}}}}"),
        (_, curve) => format!("{{algorithm: ECDSA, ecdsa: {{curve: {curve}}}}}"),
    };
    let tokens = match leaf.family() {
        KeyFamily::MlDsa => "{algorithm: ECDSA, ecdsa: {curve: P256}}".to_owned(),
        _ => key.clone(),
    };
    node.write_settings(&format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\npki: {{defaults: {{key: {key}}}, overrides: [{{certificateName: sa, certificate: {{key: {tokens}}}}}]}}\n"
    ));
    let mut bootstrap = node.configured(["bootstrap", "--wait", "0s", "--clock-wait", "0s"]);
    bootstrap.arg("--signer");
    bootstrap.arg(format!("local:{}", authorities.display()));
    Ran::of(&mut bootstrap).done();
    write_client(&node);
    node
}

/// Writes the administrator's certificate and key to files.
fn write_client(node: &Node) {
    let text = node.read("/etc/kubernetes/super-admin.conf");
    let current = Kubeconfig::parse(&text).unwrap().current().unwrap();
    fs::write(node.outside("client.crt"), current.certificate.unwrap()).unwrap();
    write_secret(node.outside("client.key"), current.key.unwrap().as_slice());
}

/// Returns a call of curl as the administrator, which verifies the server by `ca.crt`.
fn curl(node: &Node, url: &str, more: &[&str]) -> Vec<String> {
    let file = |path: PathBuf| path.display().to_string();
    let mut words: Vec<String> = [
        "curl",
        "--silent",
        "--show-error",
        "--fail",
        "--max-time",
        "20",
    ]
    .map(str::to_owned)
    .to_vec();
    for (option, path) in [
        ("--cacert", node.path(format!("{PKI}/ca.crt"))),
        ("--cert", node.outside("client.crt")),
        ("--key", node.outside("client.key")),
    ] {
        words.extend([option.to_owned(), file(path)]);
    }
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words.push(url.to_owned());
    words
}

#[track_caller]
fn run(words: &[String]) -> String {
    let ran = Ran::of(Command::new(&words[0]).args(&words[1..]));
    ran.done().stdout.clone()
}

fn start_etcd(node: &Node, program: &Path, port: u16) -> Server {
    let peer = free_port();
    let url = |port: u16| format!("https://127.0.0.1:{port}");
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(node.outside("etcd-data"));
    for (flag, value) in [
        ("listen-client-urls", url(port)),
        ("advertise-client-urls", url(port)),
        ("listen-peer-urls", url(peer)),
        ("initial-advertise-peer-urls", url(peer)),
        ("initial-cluster", format!("default={}", url(peer))),
    ] {
        command.arg(format!("--{flag}={value}"));
    }
    for (flag, name) in [
        ("cert-file", "etcd/server.crt"),
        ("key-file", "etcd/server.key"),
        ("trusted-ca-file", "etcd/ca.crt"),
        ("peer-cert-file", "etcd/peer.crt"),
        ("peer-key-file", "etcd/peer.key"),
        ("peer-trusted-ca-file", "etcd/ca.crt"),
    ] {
        let path = node.path(format!("{PKI}/{name}"));
        command.arg(format!("--{flag}={}", path.display()));
    }
    command.args([
        "--client-cert-auth",
        "--peer-client-cert-auth",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]);
    let mut etcd = Server::start(command, &node.outside("etcd.log"));
    etcd.wait_for_port(port);
    etcd
}

fn start_api(node: &Node, program: &Path, port: u16, etcd: u16) -> Server {
    let mut command = Command::new(program);
    for (flag, name) in [
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
        ("client-ca-file", "ca.crt"),
        ("etcd-cafile", "etcd/ca.crt"),
        ("etcd-certfile", "apiserver-etcd-client.crt"),
        ("etcd-keyfile", "apiserver-etcd-client.key"),
        ("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        ("kubelet-client-key", "apiserver-kubelet-client.key"),
        ("proxy-client-cert-file", "front-proxy-client.crt"),
        ("proxy-client-key-file", "front-proxy-client.key"),
        ("requestheader-client-ca-file", "front-proxy-ca.crt"),
        ("service-account-key-file", "sa.pub"),
        ("service-account-signing-key-file", "sa.key"),
    ] {
        let path = node.path(format!("{PKI}/{name}"));
        command.arg(format!("--{flag}={}", path.display()));
    }
    command
        .arg(format!("--etcd-servers=https://127.0.0.1:{etcd}"))
        .arg(format!("--secure-port={port}"))
        .arg(format!("--cert-dir={}", node.outside("certs").display()))
        .args([
            "--bind-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
        ]);
    Server::start(command, &node.outside("api.log"))
}

/// Creates CAs of an algorithm, which no node sees.
fn authorities_of(algorithm: KeyAlgorithm) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    make_authorities(dir.path(), algorithm);
    dir
}

#[track_caller]
fn assert_algorithms(node: &Node, ca: KeyAlgorithm, leaf: KeyAlgorithm) {
    let bundle = fs::read(node.path(format!("{PKI}/ca.crt"))).unwrap();
    let bundle = TrustBundle::from_pem(&bundle).unwrap();
    let found = bundle.first().public_key().key_type();
    assert_eq!(*found, KeyType::Known(ca), "{leaf} under {ca}");
    for name in [
        CertName::Apiserver,
        CertName::ApiserverEtcdClient,
        CertName::EtcdServer,
        CertName::EtcdPeer,
        CertName::SuperAdminConf,
    ] {
        let (chain, _) = node.leaf(name).unwrap();
        let found = chain.leaf().public_key().key_type();
        assert_eq!(*found, KeyType::Known(leaf), "{leaf} under {ca}: {name}");
    }
}

/// Asserts that a control plane with leaves of this algorithm serves under these CAs.
fn assert_serves(authorities: &Path, ca: KeyAlgorithm, leaf: KeyAlgorithm) {
    let pair = format!("{leaf} under {ca}");
    let plane = ControlPlane::start(authorities, leaf);
    let node = &plane.node;
    assert_algorithms(node, ca, leaf);
    // The API server stores an object in etcd and returns it.
    let namespace = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "stored"}}"#;
    let header = "Content-Type: application/json";
    plane.send(
        "/api/v1/namespaces",
        &["--data", namespace, "--header", header],
    );
    let stored = plane.send("/api/v1/namespaces/stored", &[]);
    let stored: Value = serde_json::from_str(&stored).unwrap();
    assert_eq!(stored["status"]["phase"], "Active", "{pair}: {stored}");
    // A client that knows only TLS 1.2.
    assert_eq!(plane.send("/readyz", &["--tls-max", "1.2"]), "ok", "{pair}");
    // The certificate authenticates the administrator.
    let review = r#"{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}"#;
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let who = plane.send(path, &["--data", review, "--header", header]);
    let who: Value = serde_json::from_str(&who).unwrap();
    assert_eq!(
        who["status"]["userInfo"]["username"], "kubernetes-super-admin",
        "{pair}"
    );
    // etcd accepts its health-check client, and no client without a certificate.
    let health = format!("https://127.0.0.1:{}/health", plane.etcd_port);
    let ca_file = node.path(format!("{PKI}/etcd/ca.crt"));
    let mut words = vec!["curl", "--silent", "--max-time", "20", "--cacert"];
    let ca_file = ca_file.display().to_string();
    words.extend([ca_file.as_str(), health.as_str()]);
    let anonymous = Ran::of(Command::new(words[0]).args(&words[1..]));
    assert_ne!(anonymous.code, Some(0), "{pair}: {}", anonymous.said());
    let client = node.path(format!("{PKI}/etcd/healthcheck-client.crt"));
    let mut checked = Command::new(words[0]);
    checked.args(&words[1..]).arg("--cert").arg(&client);
    checked.arg("--key").arg(client.with_extension("key"));
    Ran::of(&mut checked).done().says("\"health\":\"true\"");
}

#[test]
fn control_plane_serves_with_leaf_and_ca_of_different_algorithms() {
    for (ca, leaf) in [
        (KeyAlgorithm::Rsa2048, KeyAlgorithm::EcdsaP256),
        (KeyAlgorithm::EcdsaP384, KeyAlgorithm::Rsa2048),
        (KeyAlgorithm::Rsa3072, KeyAlgorithm::EcdsaP521),
        (KeyAlgorithm::EcdsaP521, KeyAlgorithm::EcdsaP384),
    ] {
        assert_serves(authorities_of(ca).path(), ca, leaf);
    }
}

mod bench {
    use super::*;

    /// Duration of one measurement of handshakes.
    const MEASURED_SECONDS: u64 = 6;
    /// Number of keys whose generation is measured.
    const KEYS: usize = 15;

    /// Returns the algorithms that components of every Kubernetes release can use.
    fn of_all_releases() -> Vec<KeyAlgorithm> {
        let mut algorithms = KeyAlgorithm::ALL.to_vec();
        algorithms.retain(|algorithm| algorithm.family() != KeyFamily::MlDsa);
        algorithms
    }

    #[test]
    fn control_plane_serves_with_every_pair() {
        bin("kube-apiserver");
        for ca in of_all_releases() {
            let authorities = authorities_of(ca);
            for leaf in of_all_releases() {
                let begin = Instant::now();
                assert_serves(authorities.path(), ca, leaf);
                println!("{leaf} under {ca}: served after {:.1?}", begin.elapsed());
            }
        }
    }

    /// What an algorithm costs.
    struct Cost {
        algorithm: KeyAlgorithm,
        /// Median and maximum time to generate a key, in milliseconds.
        generation: (f64, f64),
        /// CPU time of kube-apiserver for one handshake with client certificate, in milliseconds.
        handshake: f64,
        /// Handshakes per second of one client on this machine.
        per_second: f64,
        /// Size of the certificate in DER, in bytes.
        bytes: usize,
    }

    #[test]
    fn generation_and_handshakes_are_measured() {
        bin("kube-apiserver");
        let authorities = authorities_of(KeyAlgorithm::EcdsaP256);
        let algorithms = of_all_releases().into_iter();
        let costs: Vec<Cost> = algorithms
            .map(|algorithm| cost(algorithm, authorities.path()))
            .collect();
        let reference = costs
            .iter()
            .find(|cost| cost.algorithm == KeyAlgorithm::EcdsaP256)
            .unwrap();
        println!(
            "| key | generation: median, maximum | relative | CPU of a handshake | relative | handshakes/s | certificate |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        for cost in &costs {
            println!(
                "| {} | {:.2} ms, {:.2} ms | {:.0} | {:.2} ms | {:.1} | {:.0} | {} B |",
                cost.algorithm,
                cost.generation.0,
                cost.generation.1,
                cost.generation.0 / reference.generation.0,
                cost.handshake,
                cost.handshake / reference.handshake,
                cost.per_second,
                cost.bytes
            );
            assert!(cost.handshake > 0.0 && cost.per_second > 1.0);
        }
    }

    fn cost(algorithm: KeyAlgorithm, authorities: &Path) -> Cost {
        let plane = ControlPlane::start(authorities, algorithm);
        // The controllers inside the API server settle.
        crate::time::let_pass(Duration::from_secs(10));
        let idle = plane.cpu_seconds();
        crate::time::let_pass(Duration::from_secs(MEASURED_SECONDS));
        let idle = plane.cpu_seconds() - idle;
        let before = plane.cpu_seconds();
        let (connections, seconds) = handshakes(&plane);
        let used = plane.cpu_seconds() - before - idle;
        let (chain, _) = plane.node.leaf(CertName::Apiserver).unwrap();
        Cost {
            algorithm,
            generation: generation(algorithm),
            handshake: used / connections * 1e3,
            per_second: connections / seconds,
            bytes: chain.leaf().der().len(),
        }
    }

    fn generation(algorithm: KeyAlgorithm) -> (f64, f64) {
        let mut times: Vec<f64> = (0..KEYS)
            .map(|_| {
                let begin = Instant::now();
                PrivateKey::generate(algorithm).unwrap();
                begin.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        (times[KEYS / 2], times[KEYS - 1])
    }

    /// Returns the number of full handshakes that OpenSSL completed with client certificate, and the elapsed seconds.
    fn handshakes(plane: &ControlPlane) -> (f64, f64) {
        let node = &plane.node;
        let mut openssl = Command::new("openssl");
        openssl.args(["s_time", "-new", "-verify", "5", "-time"]);
        openssl.arg(MEASURED_SECONDS.to_string());
        openssl
            .arg("-connect")
            .arg(format!("127.0.0.1:{}", plane.api_port));
        openssl
            .arg("-CAfile")
            .arg(node.path(format!("{PKI}/ca.crt")));
        openssl.arg("-cert").arg(node.outside("client.crt"));
        openssl.arg("-key").arg(node.outside("client.key"));
        let ran = Ran::of(&mut openssl);
        let line = ran.done().stdout.lines();
        let line = line
            .rev()
            .find(|line| line.contains("real seconds"))
            .unwrap();
        let number = |word: &str| word.parse::<f64>().unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        (number(words[0]), number(words[3]))
    }
}
