use std::time::Duration;

use zeroize::Zeroizing;

use super::*;
use crate::commands::capi::cluster_api::secrets::{Material, Secret};
use crate::kube::kubeconfig::Credentials;
use crate::x509::{CertificateAuthority, ExtendedUsage, KeyAlgorithm, Profile, Sans, Subject};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

fn target() -> Target {
    Target::new("prod", "team-a").unwrap()
}

fn authority(name: &str) -> CertificateAuthority {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    CertificateAuthority::self_signed(name, key, now(), 3650 * DAY).unwrap()
}

fn client(authority: &CertificateAuthority, usage: ExtendedUsage) -> (Chain, PrivateKey) {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let profile = Profile {
        subject: Subject {
            common_name: "somebody".to_owned(),
            organizations: Vec::new(),
        },
        sans: Sans::default(),
        usages: vec![usage],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: 365 * DAY,
    };
    let leaf = authority.issue(key.public_key(), &profile, now()).unwrap();
    (Chain::from_pem(leaf.to_pem().as_bytes()).unwrap(), key)
}

fn kubeconfig(
    server: &str,
    authority: &TrustBundle,
    pair: &(Chain, PrivateKey),
) -> Zeroizing<Vec<u8>> {
    let credentials = Credentials {
        server,
        authority: &authority.to_pem(),
        certificate: &pair.0.to_pem(),
        key: &pair.1.to_pem(),
    };
    let document = Kubeconfig::new("prod", "kubernetes-admin", &credentials);
    document.to_yaml().as_bytes().to_vec().into()
}

/// The Secrets of a cluster on which all is well, and its authorities.
struct World {
    ca: CertificateAuthority,
    etcd: CertificateAuthority,
    secrets: Vec<Secret>,
    format: Format,
}

impl World {
    fn new(format: Format) -> Self {
        let [ca, etcd, proxy] = ["kubernetes", "etcd-ca", "front-proxy-ca"].map(authority);
        let admin = client(&ca, ExtendedUsage::ClientAuth);
        let bundles = [
            (Authority::Ca, &ca),
            (Authority::EtcdCa, &etcd),
            (Authority::FrontProxyCa, &proxy),
        ];
        let material = Material {
            authorities: bundles
                .map(|(name, made)| (name, made.bundle().clone()))
                .into(),
            etcd_client: Some(client(&etcd, ExtendedUsage::ClientAuth)),
            kubeconfig: kubeconfig("https://api.example.com:6443", ca.bundle(), &admin),
            admin,
        };
        World {
            secrets: material.secrets(&target(), format, false),
            ca,
            etcd,
            format,
        }
    }

    fn put(&mut self, purpose: Purpose, key: &'static str, bytes: impl Into<Vec<u8>>) -> &mut Self {
        let secret = self
            .secrets
            .iter_mut()
            .find(|secret| secret.purpose == purpose);
        secret
            .unwrap()
            .data
            .insert(key, Zeroizing::new(bytes.into()));
        self
    }

    fn put_pair(&mut self, purpose: Purpose, pair: &(Chain, PrivateKey)) -> &mut Self {
        self.put(purpose, "tls.crt", pair.0.to_pem());
        self.put(purpose, "tls.key", pair.1.to_pem().as_bytes())
    }

    fn without(&mut self, purpose: Purpose) -> &mut Self {
        self.secrets.retain(|secret| secret.purpose != purpose);
        self
    }

    fn judged_at(&self, now: OffsetDateTime) -> Findings {
        let objects = self.secrets.iter();
        let objects = objects
            .map(|secret| (secret.purpose, secret.object()))
            .collect();
        judge(&target(), self.format, false, &objects, now)
    }

    fn judged(&self) -> Findings {
        self.judged_at(now())
    }
}

fn said(findings: &Findings) -> [(&str, &str, &str); 2] {
    let said = |at: usize| {
        let condition = &findings.conditions[at];
        (
            condition.status,
            condition.reason,
            condition.message.as_str(),
        )
    };
    [said(0), said(1)]
}

const READY: (&str, &str, &str) = ("True", "Ready", "");

fn faults<'a>(findings: &'a Findings, secret: &str) -> Vec<&'a str> {
    let evidence = findings
        .evidence
        .iter()
        .find(|evidence| evidence.secret == secret);
    evidence
        .unwrap()
        .faults
        .iter()
        .map(String::as_str)
        .collect()
}

#[test]
fn what_is_made_is_ready_in_every_format() {
    for format in [Format::Current, Format::Proposal, Format::Both] {
        let findings = World::new(format).judged();
        assert_eq!(said(&findings), [READY, READY], "{findings:?}");
        assert!(!findings.has_invalid() && !findings.has_missing());
        assert!(
            findings
                .evidence
                .iter()
                .all(|evidence| evidence.notes.is_empty())
        );
    }
    // The formats do not read each other's.
    let mut world = World::new(Format::Current);
    world.format = Format::Proposal;
    let findings = world.judged();
    assert_eq!(
        said(&findings)[0],
        (
            "False",
            "InvalidCertificate",
            "The following CA certificates are invalid or could not be parsed: prod-ca, prod-etcd, prod-proxy."
        )
    );
    assert_eq!(faults(&findings, "prod-ca"), ["it has no ca.crt"]);
    assert_eq!(
        said(&findings)[1],
        (
            "False",
            "MissingSecret",
            "The following required client certificate Secrets are missing: prod-admin."
        )
    );
}

#[test]
fn the_types_are_the_proposals() {
    let kinds = World::new(Format::Current)
        .judged()
        .conditions
        .map(|condition| condition.kind);
    assert_eq!(
        kinds,
        ["ExternalCAsReady", "ExternalClientCertificatesReady"]
    );
}

#[test]
fn a_missing_secret_goes_before_an_invalid_one() {
    let mut world = World::new(Format::Current);
    world
        .without(Purpose::Etcd)
        .without(Purpose::Proxy)
        .put(Purpose::Ca, "tls.crt", "x");
    let findings = world.judged();
    assert_eq!(
        said(&findings)[0],
        (
            "False",
            "MissingSecret",
            "The following required CA Secrets are missing: prod-etcd, prod-proxy."
        )
    );
    // What has no authority to be judged by is judged by itself.
    assert_eq!(said(&findings)[1], READY);
    let note = "whether its authority signed it is not known: see prod-etcd";
    assert!(
        findings
            .evidence
            .iter()
            .any(|evidence| evidence.notes.contains(&note.to_owned()))
    );
    assert!(findings.has_missing() && findings.has_invalid());
    assert_eq!(
        faults(&findings, "prod-ca"),
        ["tls.crt is unreadable: it does not contain a certificate"]
    );
}

#[test]
fn an_authority_must_be_one() {
    let invalid = |world: &World, fault: &str| {
        let findings = world.judged();
        assert_eq!(
            said(&findings)[0].2,
            "The following CA certificates are invalid or could not be parsed: prod-proxy."
        );
        let found = faults(&findings, "prod-proxy");
        assert!(found.len() == 1 && found[0].contains(fault), "{found:?}");
    };
    let mut world = World::new(Format::Current);
    let leaf = client(&world.ca, ExtendedUsage::ClientAuth).0.to_pem();
    invalid(
        world.put(Purpose::Proxy, "tls.crt", leaf),
        "is not a CA certificate",
    );
    invalid(
        world.put(Purpose::Proxy, "tls.crt", " \n"),
        "there is no certificate in it",
    );
    let garbage = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n";
    invalid(world.put(Purpose::Proxy, "tls.crt", garbage), "is damaged");

    let mut world = World::new(Format::Current);
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    invalid(
        world.put(Purpose::Proxy, "tls.key", key.to_pem().as_bytes()),
        "tls.key is a private key of something else",
    );
    // Its own key is against the purpose, and no fault.
    let own = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let own_pem = own.to_pem();
    let made = CertificateAuthority::self_signed("front-proxy-ca", own, now(), 365 * DAY).unwrap();
    world.put(Purpose::Proxy, "tls.crt", made.bundle().to_pem());
    world.put(Purpose::Proxy, "tls.key", own_pem.as_bytes());
    let findings = world.judged();
    assert_eq!(said(&findings), [READY, READY]);
    let note = &findings.evidence[2].notes[0];
    assert!(
        note.starts_with("tls.key is the private key of the authority"),
        "{note}"
    );

    let mut world = World::new(Format::Both);
    let other = authority("front-proxy-ca").bundle().to_pem();
    invalid(
        world.put(Purpose::Proxy, "ca.crt", other),
        "ca.crt and tls.crt differ",
    );
}

#[test]
fn time_ends_everything() {
    let world = World::new(Format::Both);
    let findings = world.judged_at(now() + 366 * DAY);
    assert_eq!(said(&findings)[0], READY);
    assert_eq!(
        said(&findings)[1].2,
        "The following client certificates are invalid or could not be parsed: prod-apiserver-etcd-client, prod-kubeconfig, prod-admin."
    );
    assert_eq!(
        faults(&findings, "prod-admin"),
        ["it expired at 2028-01-15T08:00:00Z"]
    );
    let findings = world.judged_at(now() + 3651 * DAY);
    assert_eq!(
        said(&findings)[0].2,
        "The following CA certificates are invalid or could not be parsed: prod-ca, prod-etcd, prod-proxy."
    );
    let findings = world.judged_at(now() - DAY);
    assert!(faults(&findings, "prod-ca")[0].starts_with("it is not valid before"));
}

#[test]
fn a_client_must_be_of_its_authority_and_for_clients() {
    let invalid = |world: &World, secret: &str, fault: &str| {
        let findings = world.judged();
        assert_eq!(
            said(&findings)[1].2,
            format!(
                "The following client certificates are invalid or could not be parsed: {secret}."
            )
        );
        let found = faults(&findings, secret);
        assert!(found.iter().any(|found| found.contains(fault)), "{found:?}");
        assert_eq!(said(&findings)[0], READY);
    };
    let etcd = "prod-apiserver-etcd-client";
    let mut world = World::new(Format::Current);
    let foreign = client(&world.ca, ExtendedUsage::ClientAuth);
    invalid(
        world.put_pair(Purpose::EtcdClient, &foreign),
        etcd,
        "no path from it to the trusted",
    );
    let server = client(&world.etcd, ExtendedUsage::ServerAuth);
    invalid(
        world.put_pair(Purpose::EtcdClient, &server),
        etcd,
        "client auth is missing",
    );
    let good = client(&world.etcd, ExtendedUsage::ClientAuth);
    world.put_pair(Purpose::EtcdClient, &good);
    assert_eq!(said(&world.judged())[1], READY);
    let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    invalid(
        world.put(Purpose::EtcdClient, "tls.key", other.to_pem().as_bytes()),
        etcd,
        "the private key does not belong to the certificate",
    );
    invalid(
        world.put(Purpose::EtcdClient, "tls.key", "nothing"),
        etcd,
        "tls.key is unreadable",
    );
}

#[test]
fn a_kubeconfig_must_lead_to_this_cluster() {
    let invalid = |world: &World, fault: &str| {
        let findings = world.judged();
        let found = faults(&findings, "prod-kubeconfig");
        assert!(found.iter().any(|found| found.contains(fault)), "{found:?}");
        assert_eq!(said(&findings)[1].1, "InvalidCertificate");
    };
    let mut world = World::new(Format::Current);
    let admin = client(&world.ca, ExtendedUsage::ClientAuth);
    let stranger = authority("kubernetes");
    let foreign = kubeconfig("https://api.example.com:6443", stranger.bundle(), &admin);
    invalid(
        world.put(Purpose::Kubeconfig, "value", foreign.to_vec()),
        "the kubeconfig trusts CN=kubernetes",
    );
    let nowhere = kubeconfig("", world.ca.bundle(), &admin);
    invalid(
        world.put(Purpose::Kubeconfig, "value", nowhere.to_vec()),
        "names no server",
    );
    invalid(
        world.put(Purpose::Kubeconfig, "value", "{}"),
        "current-context is empty",
    );
    invalid(
        world.put(Purpose::Kubeconfig, "value", [0xff, 0xfe]),
        "it is not UTF-8 text",
    );
}

#[test]
fn an_external_etcd_is_not_looked_at() {
    let purposes: Vec<_> = judged(Format::Both, true).collect();
    assert_eq!(
        purposes,
        [
            Purpose::Ca,
            Purpose::Proxy,
            Purpose::Kubeconfig,
            Purpose::Admin
        ]
    );
}
