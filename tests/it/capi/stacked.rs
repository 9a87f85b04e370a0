//! Control planes with stacked etcd, managed by Cluster API's controllers.

use std::fs;
use std::path::Path;
use std::process::Command;

use nodepki::kube::names::Authority;
use nodepki::x509::{CertificateAuthority, TrustBundle};
use serde_json::json;

use super::client;
use super::control_plane::ControlPlane;
use crate::node::{NODEPKI, Ran};
use crate::signing::{now, write_secret};

/// The controllers create the machines, connect to etcd with certificates of the etcd client CA, and remove members.
#[test]
fn manages_three_nodes_with_stacked_etcd() {
    let mut plane = ControlPlane::start(
        "stacked",
        &["--placeholder-keys", "--etcd-client-ca"],
        3,
        |_| {},
    );
    plane.run_until("a ready control plane of three nodes", |plane| {
        plane.object()["status"]["readyReplicas"] == 3
            && plane.condition("EtcdClusterHealthy") == "True"
    });
    let names = plane.machine_names();
    assert_eq!(names.len(), 3);
    for name in &names {
        let machine = plane.machine(name);
        assert!(
            machine
                .etcdctl(&["endpoint", "health"])
                .contains("is healthy")
        );
        assert_eq!(started_members(&plane, name), 3);
        let etcd_ca = plane.management.authority(Authority::EtcdCa);
        assert_eq!(
            fs::read_to_string(machine.pki("etcd/ca.crt")).unwrap(),
            etcd_ca
        );
        let clients = TrustBundle::from_pem(&fs::read(machine.pki("etcd/clients.crt")).unwrap());
        assert_eq!(clients.unwrap().certificates().len(), 2);
        for key in ["ca.key", "front-proxy-ca.key", "etcd/ca.key"] {
            assert!(!machine.pki(key).exists(), "{key}");
        }
    }
    assert_client_authority_is_for_clients_only(&plane, &names[0]);
    // A second run keeps the authority without the option.
    let versions = plane.management.versions();
    plane.apply_secrets(&["--placeholder-keys"]).done();
    assert_eq!(plane.management.versions(), versions);
    plane
        .management
        .check(&[])
        .done()
        .says("tls.key is the private key of the etcd client CA");
    // The controllers remove the members of machines that they delete.
    plane.edit(|object| object["spec"]["replicas"] = json!(1));
    plane.run_until("the removal of two members", |plane| {
        let machines = plane.machines();
        machines.len() == 1 && {
            let name = machines[0]["metadata"]["name"].as_str().unwrap();
            started_members(plane, name) == 1
        }
    });
}

fn started_members(plane: &ControlPlane, name: &str) -> usize {
    let members = plane.machine(name).etcdctl(&["member", "list"]);
    members.matches(", started,").count()
}

/// A certificate of the etcd client CA is accepted from clients, and neither from peers nor as that of a server.
fn assert_client_authority_is_for_clients_only(plane: &ControlPlane, name: &str) {
    let data = |key| plane.management.data("etcd", key);
    let authority = CertificateAuthority::from_pem(&data("tls.crt"), &data("tls.key")).unwrap();
    let (chain, key) = client(&authority, now());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("client.crt"), chain.to_pem()).unwrap();
    write_secret(dir.path().join("client.key"), key.to_pem().as_bytes());
    let machine = plane.machine(name);
    let get = |url: &str, certificate: &Path, key: &Path| {
        Ran::of(
            Command::new("curl")
                .args(["--silent", "--show-error", "--fail", "--cacert"])
                .arg(machine.pki("etcd/ca.crt"))
                .arg("--cert")
                .arg(certificate)
                .arg("--key")
                .arg(key)
                .arg(url),
        )
    };
    let (certificate, key) = (dir.path().join("client.crt"), dir.path().join("client.key"));
    get(&machine.client_url("/health"), &certificate, &key)
        .done()
        .says("true");
    // With TLS 1.2 the server's refusal is part of the handshake.
    let handshake = |certificate: &Path, key: &Path| {
        Ran::of(
            Command::new("openssl")
                .args(["s_client", "-tls1_2", "-connect", &machine.peer_address()])
                .arg("-CAfile")
                .arg(machine.pki("etcd/ca.crt"))
                .arg("-cert")
                .arg(certificate)
                .arg("-key")
                .arg(key),
        )
    };
    handshake(&machine.pki("etcd/peer.crt"), &machine.pki("etcd/peer.key")).done();
    let refused = handshake(&certificate, &key);
    refused.ended(1).says("alert");
}

/// Every verifier refuses another usage of the CA, and an authority below it; its creation is recorded.
#[test]
fn etcd_client_ca_is_for_clients_only_and_recorded() {
    let management = super::Management::new();
    management.apply(&["--etcd-client-ca"]).done();
    let file = management.directory().join("etcd-client-ca.pem");
    let shown = Ran::of(
        Command::new("openssl")
            .args([
                "x509",
                "-noout",
                "-ext",
                "basicConstraints,extendedKeyUsage",
                "-in",
            ])
            .arg(&file),
    );
    shown
        .done()
        .says("CA:TRUE, pathlen:0")
        .says("TLS Web Client Authentication")
        .says_not("TLS Web Server Authentication");
    let expires = |seconds: &str| {
        let mut command = Command::new("openssl");
        command.args(["x509", "-noout", "-checkend", seconds, "-in"]);
        Ran::of(command.arg(&file))
    };
    expires("31000000").done();
    expires("32000000").ended(1);
    let mut log = Command::new(NODEPKI);
    log.arg("--root").arg(management.directory());
    Ran::of(log.args(["audit", "show", "-o", "json"]))
        .done()
        .says("etcd-client-ca")
        .says("self-signed");
}

/// `capi check` would call the Secrets of `both` invalid, and no controller would use the key in those of `proposal`.
#[test]
fn refuses_etcd_client_ca_in_formats_that_do_not_use_it() {
    let management = super::Management::new();
    for format in ["both", "proposal"] {
        management
            .apply(&["--etcd-client-ca", "--format", format])
            .ended(64)
            .says("--etcd-client-ca is for --format current only");
    }
    assert_eq!(management.names(), Vec::<String>::new());
    management.apply(&["--etcd-client-ca"]).done();
    management.check(&[]).done();
    // Later runs keep the CA without the option.
    let versions = management.versions();
    management
        .apply(&["--format", "both"])
        .ended(64)
        .says("has an etcd client CA, which is for --format current only");
    assert_eq!(management.versions(), versions);
}

/// The key in CLUSTER-etcd is not replaced by another one, nor left without its certificate.
#[test]
fn keeps_etcd_client_ca_that_state_directory_lacks() {
    let management = super::Management::new();
    management.apply(&["--etcd-client-ca"]).done();
    assert_eq!(
        management.cluster_api_says()[3],
        "etcd the etcd CA's key would be used"
    );
    let versions = management.versions();
    management.apply(&[]).done();
    let file = management.directory().join("etcd-client-ca.pem");
    let kept = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    management
        .apply(&[])
        .ended(65)
        .says("prod-etcd")
        .says("restore etcd-client-ca.pem in the state directory");
    management
        .apply(&["--etcd-client-ca", "--replace"])
        .ended(65)
        .says("its tls.key is not the key of the etcd client CA in the state directory");
    assert_eq!(management.versions(), versions);
    write_secret(&file, &kept);
    management.apply(&[]).done();
    assert_eq!(management.versions(), versions);
    // The key of a CA that was internal before is never replaced either.
    let other = super::Management::new();
    let etcd = other.node.authority(Authority::EtcdCa);
    let key = fs::read_to_string(other.node.ca().join("etcd/ca.key")).unwrap();
    other.make(
        "etcd",
        json!({"tls.crt": etcd.bundle().to_pem(), "tls.key": key}),
        json!({}),
    );
    other
        .apply(&["--etcd-client-ca", "--replace"])
        .ended(65)
        .says("store the key elsewhere");
    assert_eq!(other.data("etcd", "tls.key"), key.into_bytes());
}
