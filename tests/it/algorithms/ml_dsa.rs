//! ML-DSA keys and CAs, alone and mixed with ECDSA: handshakes with OpenSSL 3.5, and in `go` with components and clients
//! that Go 1.27 built.

use std::process::Stdio;

use super::*;
use crate::time::wait_until;

/// CA and leaf.
const PAIRS: [(KeyAlgorithm, KeyAlgorithm); 4] = [
    (KeyAlgorithm::EcdsaP256, KeyAlgorithm::MlDsa65),
    (KeyAlgorithm::MlDsa65, KeyAlgorithm::EcdsaP256),
    (KeyAlgorithm::MlDsa87, KeyAlgorithm::MlDsa44),
    (KeyAlgorithm::MlDsa44, KeyAlgorithm::MlDsa87),
];

/// Returns a call of Debian's OpenSSL 3.5 that sees the files of a node.
fn openssl(node: &Node) -> Command {
    let dir = node.outside("").display().to_string();
    let mut command = Command::new(bin("in-trixie"));
    command.args(["--bind", &dir, &dir, "--", "openssl"]);
    command
}

/// Options of OpenSSL for a server that answers requests, of clients with certificates only.
const MUTUAL: [&str; 4] = ["-www", "-Verify", "2", "-verify_return_error"];

/// Starts OpenSSL with the certificate of an API server.
fn start_openssl(node: &Node, port: u16, more: &[&str]) -> Server {
    let pki = |name: &str| node.path(format!("{PKI}/{name}"));
    let mut command = openssl(node);
    command.args(["s_server", "-accept", &format!("127.0.0.1:{port}")]);
    command.arg("-tls1_3");
    command.arg("-cert").arg(pki("apiserver.crt"));
    command.arg("-key").arg(pki("apiserver.key"));
    command.arg("-CAfile").arg(pki("ca.crt"));
    command.args(more);
    let mut server = Server::start(command, &node.outside("s_server.log"));
    server.wait_for_port(port);
    server
}

#[test]
fn openssl_completes_handshakes_with_mixed_chains() {
    for (ca, leaf) in PAIRS {
        let authorities = authorities_of(ca);
        let node = bootstrapped(authorities.path(), leaf);
        assert_algorithms(&node, ca, leaf);
        let port = free_port();
        let _server = start_openssl(&node, port, &MUTUAL);
        assert_openssl_connects(&node, port, ca, leaf);
    }
}

/// OpenSSL leaves the choice of the key exchange to the client.
#[test]
fn signer_with_ml_dsa_chain_is_reached_over_post_quantum_key_exchange() {
    let algorithm = KeyAlgorithm::MlDsa65;
    let authorities = authorities_of(algorithm);
    let node = bootstrapped(authorities.path(), algorithm);
    let port = free_port();
    let _server = start_openssl(&node, port, &["-rev", "-groups", "X25519:X25519MLKEM768"]);
    write_secret(node.outside("auth.key"), "0123456789abcdef");
    let auth = node.outside("auth.key").display().to_string();
    let ca = node.path(format!("{PKI}/ca.crt")).display().to_string();
    let signer = format!(
        "{{cfssl: {{url: 'https://localhost:{port}', profile: p, auth: {{keyFile: '{auth}'}}, tls: {{caFile: '{ca}'}}}}}}"
    );
    node.write_settings(&format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nsigners: {{corp: {signer}}}\nauthorities: {{ca: {{signer: corp}}, front-proxy-ca: {{signer: corp}}, etcd-ca: {{signer: corp}}}}\n"
    ));
    let mut preflight = node.configured(["preflight", "--wait", "0s"]);
    let mut run = preflight
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let log = node.outside("s_server.log");
    let handshake = || {
        let log = fs::read_to_string(&log).unwrap();
        let lines = log.lines().map(str::to_owned);
        lines
            .into_iter()
            .find(|line| line.starts_with("Peer Temp Key: "))
    };
    wait_until("OpenSSL has logged the handshake", || handshake().is_some());
    run.kill().unwrap();
    run.wait().unwrap();
    assert_eq!(handshake().unwrap(), "Peer Temp Key: X25519MLKEM768");
}

/// Asserts that OpenSSL as a client with certificate completes a handshake with the API server of a node.
#[track_caller]
fn assert_openssl_connects(node: &Node, port: u16, ca: KeyAlgorithm, leaf: KeyAlgorithm) {
    let mut client = openssl(node);
    client.args(["s_client", "-connect", &format!("127.0.0.1:{port}")]);
    client.args([
        "-brief",
        "-verify_return_error",
        "-verify_hostname",
        "localhost",
    ]);
    client
        .arg("-CAfile")
        .arg(node.path(format!("{PKI}/ca.crt")));
    client.arg("-cert").arg(node.outside("client.crt"));
    client.arg("-key").arg(node.outside("client.key"));
    let ran = Ran::of(&mut client);
    let said = ran.done().said();
    assert!(
        said.contains("Verification: OK"),
        "{leaf} under {ca}: {said}"
    );
    if leaf.family() == KeyFamily::MlDsa {
        let name = leaf.as_str().replace('-', "").to_lowercase();
        assert!(said.contains(&name), "{leaf} under {ca}: {said}");
    }
}

mod go {
    use super::*;

    /// Runs kubectl as the administrator.
    fn kubectl(plane: &ControlPlane, words: &[&str]) -> Ran {
        let mut command = Command::new(bin("kubectl-go1.27"));
        let kubeconfig = plane.node.path("/etc/kubernetes/super-admin.conf");
        command.arg("--kubeconfig").arg(kubeconfig);
        command.args(["--server", &plane.url("")]).args(words);
        Ran::of(&mut command)
    }

    fn start(node: Node) -> ControlPlane {
        let (etcd_port, api_port) = (free_port(), free_port());
        let etcd = start_etcd(&node, &bin("etcd-3.7-go1.27"), etcd_port);
        let api = start_api(&node, &bin("kube-apiserver-go1.27"), api_port, etcd_port);
        let mut plane = ControlPlane {
            node,
            etcd_port,
            api_port,
            api,
            _etcd: etcd,
        };
        let kubeconfig = plane.node.path("/etc/kubernetes/super-admin.conf");
        let url = plane.url("");
        plane.api.wait_until(|| {
            let mut command = Command::new(bin("kubectl-go1.27"));
            command.arg("--kubeconfig").arg(&kubeconfig);
            command.args(["--server", &url, "get", "--raw", "/readyz"]);
            command.output().unwrap().stdout == b"ok"
        });
        plane
    }

    #[test]
    fn control_plane_serves_with_mixed_chains() {
        for (ca, leaf) in PAIRS {
            let pair = format!("{leaf} under {ca}");
            let authorities = authorities_of(ca);
            let node = bootstrapped(authorities.path(), leaf);
            assert_algorithms(&node, ca, leaf);
            let begin = Instant::now();
            let plane = start(node);
            // The API server stores an object in etcd and returns it.
            kubectl(&plane, &["create", "namespace", "stored"]).done();
            let stored = kubectl(&plane, &["get", "namespace", "stored", "-o", "name"]);
            assert_eq!(stored.done().stdout.trim(), "namespace/stored", "{pair}");
            // The certificate authenticates the administrator.
            let who = kubectl(
                &plane,
                &[
                    "auth",
                    "whoami",
                    "-o",
                    "jsonpath={.status.userInfo.username}",
                ],
            );
            assert_eq!(who.done().stdout, "kubernetes-super-admin", "{pair}");
            assert_etcd_requires_certificate(&plane, &pair);
            assert_openssl_connects(&plane.node, plane.api_port, ca, leaf);
            println!("{pair}: served after {:.1?}", begin.elapsed());
        }
    }

    /// etcd accepts its health-check client, and no client without a certificate.
    fn assert_etcd_requires_certificate(plane: &ControlPlane, pair: &str) {
        let pki = |name: &str| plane.node.path(format!("{PKI}/etcd/{name}"));
        let etcdctl = || {
            let mut command = Command::new(bin("etcdctl-3.7-go1.27"));
            command.arg(format!("--endpoints=https://127.0.0.1:{}", plane.etcd_port));
            command.arg(format!("--cacert={}", pki("ca.crt").display()));
            command
        };
        let anonymous = Ran::of(etcdctl().args(["endpoint", "health"]));
        assert_ne!(anonymous.code, Some(0), "{pair}: {}", anonymous.said());
        let mut client = etcdctl();
        client.arg(format!(
            "--cert={}",
            pki("healthcheck-client.crt").display()
        ));
        client.arg(format!("--key={}", pki("healthcheck-client.key").display()));
        Ran::of(client.args(["endpoint", "health"]))
            .done()
            .says("is healthy");
    }

    /// Go 1.27 does not announce ML-DSA for signatures of certificates (go.dev/issue/82536), which OpenSSL respects.
    #[test]
    fn go_completes_handshakes_with_openssl_unless_the_ca_has_ml_dsa() {
        for (ca, leaf) in PAIRS {
            let authorities = authorities_of(ca);
            let node = bootstrapped(authorities.path(), leaf);
            let port = free_port();
            let _server = start_openssl(&node, port, &MUTUAL);
            let mut dial = Command::new(bin("handshake-go1.27"));
            dial.arg(node.outside("client.crt"))
                .arg(node.outside("client.key"));
            dial.arg(node.path(format!("{PKI}/ca.crt")));
            dial.args([&format!("127.0.0.1:{port}"), "localhost"]);
            let ran = Ran::of(&mut dial);
            if ca.family() == KeyFamily::MlDsa {
                ran.ended(1).says("handshake failure");
                continue;
            }
            ran.done().says("TLS 1.3 X25519MLKEM768");
            let key = match leaf.family() {
                KeyFamily::MlDsa => "*mldsa.PublicKey",
                _ => "*ecdsa.PublicKey",
            };
            assert!(
                ran.stdout.contains(key),
                "{leaf} under {ca}: {}",
                ran.said()
            );
        }
    }
}
