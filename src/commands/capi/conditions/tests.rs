use std::time::Duration;

use zeroize::Zeroizing;

use super::*;
use crate::commands::capi::secrets::{SecretMaterial, SecretSpec};
use crate::kube::kubeconfig::Credentials;
use crate::x509::{CertificateAuthority, ExtendedUsage, KeyAlgorithm, Profile, Subject};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

fn target() -> ClusterTarget {
    ClusterTarget::new("prod", "team-a").unwrap()
}

fn authority(name: &str) -> CertificateAuthority {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    CertificateAuthority::self_signed(name, key, now(), 3650 * DAY).unwrap()
}

fn client(authority: &CertificateAuthority, usage: ExtendedUsage) -> (Chain, PrivateKey) {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let profile = Profile::of_tests(Subject::new("test-client", &[]), &[usage], 365 * DAY);
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

/// The valid Secrets of a cluster, and its authorities.
struct Cluster {
    ca: CertificateAuthority,
    etcd: CertificateAuthority,
    secrets: Vec<SecretSpec>,
    format: Format,
}

impl Cluster {
    fn new(format: Format) -> Self {
        let [ca, etcd, proxy] = ["kubernetes", "etcd-ca", "front-proxy-ca"].map(authority);
        let admin = client(&ca, ExtendedUsage::ClientAuth);
        let bundles = [
            (Authority::Ca, &ca),
            (Authority::EtcdCa, &etcd),
            (Authority::FrontProxyCa, &proxy),
        ];
        let material = SecretMaterial {
            authorities: bundles
                .map(|(name, authority)| (name, authority.bundle().clone()))
                .into(),
            etcd_client: Some(client(&etcd, ExtendedUsage::ClientAuth)),
            kubeconfig: kubeconfig("https://api.example.com:6443", ca.bundle(), &admin),
            admin,
        };
        Cluster {
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

/// Returns status, reason and message of both conditions.
fn conditions(findings: &Findings) -> [(&str, &str, &str); 2] {
    let condition = |at: usize| {
        let condition = &findings.conditions[at];
        (
            condition.status,
            condition.reason,
            condition.message.as_str(),
        )
    };
    [condition(0), condition(1)]
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
fn reports_issued_secrets_ready_in_every_format() {
    for format in [Format::Current, Format::Proposal, Format::Both] {
        let findings = Cluster::new(format).judged();
        assert_eq!(conditions(&findings), [READY, READY], "{findings:?}");
        assert!(!findings.any(SecretState::Invalid) && !findings.any(SecretState::Missing));
        assert!(
            findings
                .evidence
                .iter()
                .all(|evidence| evidence.notes.is_empty())
        );
    }
    // A format does not accept the entries of another one.
    let mut cluster = Cluster::new(Format::Current);
    cluster.format = Format::Proposal;
    let findings = cluster.judged();
    assert_eq!(
        conditions(&findings)[0],
        (
            "False",
            "InvalidCertificate",
            "The following CA certificates are invalid or could not be parsed: prod-ca, prod-etcd, prod-proxy."
        )
    );
    assert_eq!(faults(&findings, "prod-ca"), ["it has no ca.crt"]);
    assert_eq!(
        conditions(&findings)[1],
        (
            "False",
            "MissingSecret",
            "The following required client certificate Secrets are missing: prod-admin."
        )
    );
}

#[test]
fn names_conditions_as_proposal_does() {
    let kinds = Cluster::new(Format::Current)
        .judged()
        .conditions
        .map(|condition| condition.kind);
    assert_eq!(
        kinds,
        ["ExternalCAsReady", "ExternalClientCertificatesReady"]
    );
}

#[test]
fn reports_missing_secret_before_invalid_one() {
    let mut cluster = Cluster::new(Format::Current);
    cluster
        .without(Purpose::Etcd)
        .without(Purpose::Proxy)
        .put(Purpose::Ca, "tls.crt", "x");
    let findings = cluster.judged();
    assert_eq!(
        conditions(&findings)[0],
        (
            "False",
            "MissingSecret",
            "The following required CA Secrets are missing: prod-etcd, prod-proxy."
        )
    );
    // Without its authority, a client's Secret is judged without its issuer.
    assert_eq!(conditions(&findings)[1], READY);
    let note = "its issuer was not verified, since prod-etcd is missing or invalid";
    assert!(
        findings
            .evidence
            .iter()
            .any(|evidence| evidence.notes.contains(&note.to_owned()))
    );
    assert!(findings.any(SecretState::Missing) && findings.any(SecretState::Invalid));
    assert_eq!(
        faults(&findings, "prod-ca"),
        ["tls.crt is unreadable: it does not contain a certificate"]
    );
}

#[test]
fn rejects_authority_with_unusable_certificate_or_key() {
    let invalid = |cluster: &Cluster, fault: &str| {
        let findings = cluster.judged();
        assert_eq!(
            conditions(&findings)[0].2,
            "The following CA certificates are invalid or could not be parsed: prod-proxy."
        );
        let found = faults(&findings, "prod-proxy");
        assert!(found.len() == 1 && found[0].contains(fault), "{found:?}");
    };
    let mut cluster = Cluster::new(Format::Current);
    let leaf = client(&cluster.ca, ExtendedUsage::ClientAuth).0.to_pem();
    invalid(
        cluster.put(Purpose::Proxy, "tls.crt", leaf),
        "is not a CA certificate",
    );
    invalid(
        cluster.put(Purpose::Proxy, "tls.crt", " \n"),
        "it does not contain a certificate",
    );
    let garbage = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n";
    invalid(
        cluster.put(Purpose::Proxy, "tls.crt", garbage),
        "is damaged",
    );

    let mut cluster = Cluster::new(Format::Current);
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    invalid(
        cluster.put(Purpose::Proxy, "tls.key", key.to_pem().as_bytes()),
        "tls.key does not belong to the CA certificate",
    );
    // The CA's own key defeats the purpose, but is not a fault.
    let own = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let own_pem = own.to_pem();
    let made = CertificateAuthority::self_signed("front-proxy-ca", own, now(), 365 * DAY).unwrap();
    cluster.put(Purpose::Proxy, "tls.crt", made.bundle().to_pem());
    cluster.put(Purpose::Proxy, "tls.key", own_pem.as_bytes());
    let findings = cluster.judged();
    assert_eq!(conditions(&findings), [READY, READY]);
    let note = &findings.evidence[2].notes[0];
    assert!(
        note.starts_with("tls.key is the private key of the authority"),
        "{note}"
    );

    let mut cluster = Cluster::new(Format::Both);
    let other = authority("front-proxy-ca").bundle().to_pem();
    invalid(
        cluster.put(Purpose::Proxy, "ca.crt", other),
        "ca.crt and tls.crt differ",
    );
}

#[test]
fn rejects_expired_and_not_yet_valid_certificates() {
    let cluster = Cluster::new(Format::Both);
    let findings = cluster.judged_at(now() + 366 * DAY);
    assert_eq!(conditions(&findings)[0], READY);
    assert_eq!(
        conditions(&findings)[1].2,
        "The following client certificates are invalid or could not be parsed: prod-apiserver-etcd-client, prod-kubeconfig, prod-admin."
    );
    assert_eq!(
        faults(&findings, "prod-admin"),
        ["it expired at 2028-01-15T08:00:00Z"]
    );
    let findings = cluster.judged_at(now() + 3651 * DAY);
    assert_eq!(
        conditions(&findings)[0].2,
        "The following CA certificates are invalid or could not be parsed: prod-ca, prod-etcd, prod-proxy."
    );
    let findings = cluster.judged_at(now() - DAY);
    assert!(faults(&findings, "prod-ca")[0].starts_with("it is not valid before"));
}

#[test]
fn rejects_client_with_wrong_issuer_usage_or_key() {
    let invalid = |cluster: &Cluster, secret: &str, fault: &str| {
        let findings = cluster.judged();
        assert_eq!(
            conditions(&findings)[1].2,
            format!(
                "The following client certificates are invalid or could not be parsed: {secret}."
            )
        );
        let found = faults(&findings, secret);
        assert!(found.iter().any(|found| found.contains(fault)), "{found:?}");
        assert_eq!(conditions(&findings)[0], READY);
    };
    let etcd = "prod-apiserver-etcd-client";
    let mut cluster = Cluster::new(Format::Current);
    let foreign = client(&cluster.ca, ExtendedUsage::ClientAuth);
    invalid(
        cluster.put_pair(Purpose::EtcdClient, &foreign),
        etcd,
        "no path from it to the trusted",
    );
    let server = client(&cluster.etcd, ExtendedUsage::ServerAuth);
    invalid(
        cluster.put_pair(Purpose::EtcdClient, &server),
        etcd,
        "client auth is missing",
    );
    let good = client(&cluster.etcd, ExtendedUsage::ClientAuth);
    cluster.put_pair(Purpose::EtcdClient, &good);
    assert_eq!(conditions(&cluster.judged())[1], READY);
    let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    invalid(
        cluster.put(Purpose::EtcdClient, "tls.key", other.to_pem().as_bytes()),
        etcd,
        "the private key does not belong to the certificate",
    );
    invalid(
        cluster.put(Purpose::EtcdClient, "tls.key", "nothing"),
        etcd,
        "tls.key is unreadable",
    );
}

#[test]
fn rejects_kubeconfig_of_another_cluster() {
    let invalid = |cluster: &Cluster, fault: &str| {
        let findings = cluster.judged();
        let found = faults(&findings, "prod-kubeconfig");
        assert!(found.iter().any(|found| found.contains(fault)), "{found:?}");
        assert_eq!(conditions(&findings)[1].1, "InvalidCertificate");
    };
    let mut cluster = Cluster::new(Format::Current);
    let admin = client(&cluster.ca, ExtendedUsage::ClientAuth);
    let stranger = authority("kubernetes");
    let foreign = kubeconfig("https://api.example.com:6443", stranger.bundle(), &admin);
    invalid(
        cluster.put(Purpose::Kubeconfig, "value", foreign.to_vec()),
        "the kubeconfig trusts CN=kubernetes",
    );
    let nowhere = kubeconfig("", cluster.ca.bundle(), &admin);
    invalid(
        cluster.put(Purpose::Kubeconfig, "value", nowhere.to_vec()),
        "does not name a server",
    );
    invalid(
        cluster.put(Purpose::Kubeconfig, "value", "{}"),
        "current-context is empty",
    );
    invalid(
        cluster.put(Purpose::Kubeconfig, "value", [0xff, 0xfe]),
        "it is not UTF-8 text",
    );
}

#[test]
fn skips_secrets_of_external_etcd() {
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

#[test]
fn notes_change_of_ca_that_is_not_complete() {
    let mut cluster = Cluster::new(Format::Current);
    let new = authority("kubernetes");
    let both = format!("{}{}", cluster.ca.bundle().to_pem(), new.bundle().to_pem());
    cluster.put(Purpose::Ca, "tls.crt", both.clone());
    let notes = |cluster: &Cluster| {
        let findings = cluster.judged();
        assert_eq!(conditions(&findings), [READY, READY], "{findings:?}");
        [0, 4].map(|at: usize| findings.evidence[at].notes.join("\n"))
    };
    let [ca, kubeconfig_notes] = notes(&cluster);
    assert!(ca.contains("it contains 2 CA certificates"), "{ca}");
    assert!(
        kubeconfig_notes.starts_with("the kubeconfig trusts CN=kubernetes"),
        "{kubeconfig_notes}"
    );
    let admin = client(&cluster.ca, ExtendedUsage::ClientAuth);
    let staged = TrustBundle::from_pem(both.as_bytes()).unwrap();
    let staged = kubeconfig("https://api.example.com:6443", &staged, &admin);
    cluster.put(Purpose::Kubeconfig, "value", staged.to_vec());
    let [_, kubeconfig_notes] = notes(&cluster);
    assert_eq!(kubeconfig_notes, "");
    // The etcd client CA is not a part of a change.
    let mut cluster = Cluster::new(Format::Current);
    let clients = authority("nodepki-etcd-client-ca");
    let both = format!(
        "{}{}",
        clients.bundle().to_pem(),
        cluster.etcd.bundle().to_pem()
    );
    cluster.put(Purpose::Etcd, "tls.crt", both);
    assert_eq!(cluster.judged().evidence[1].notes, [""; 0]);
}
