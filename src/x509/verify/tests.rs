use std::time::Duration;

use rcgen::{CertificateParams, DnType, Issuer, KeyUsagePurpose};
use time::macros::datetime;

use super::*;
use crate::x509::csr::leaf_params;
use crate::x509::{CertificateAuthority, Csr, PrivateKey, Sans, Subject, UsageExtensions};

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);
const YEAR: Duration = Duration::from_secs(365 * 86400);

fn authority(name: &str) -> CertificateAuthority {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    CertificateAuthority::self_signed(name, key, NOW, 10 * YEAR).unwrap()
}

fn etcd_server() -> Profile {
    Profile {
        subject: Subject::new("cp1", &[]),
        sans: Sans {
            dns: vec!["cp1".to_owned(), "localhost".to_owned()],
            ips: vec!["192.0.2.11".parse().unwrap(), "::1".parse().unwrap()],
        },
        usages: vec![ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: YEAR,
    }
}

struct Issued {
    authority: CertificateAuthority,
    key: PrivateKey,
}

impl Issued {
    fn new() -> Self {
        Issued {
            authority: authority("etcd-ca"),
            key: PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap(),
        }
    }

    /// Returns the differences of a certificate issued for `asked` from the etcd server's profile.
    fn differences(&self, asked: &Profile, now: OffsetDateTime) -> Vec<String> {
        self.tolerated(asked, &etcd_server(), Tolerance::default(), now)
    }

    /// Returns the differences of a certificate issued for `asked` from the profile `wanted`.
    fn tolerated(
        &self,
        asked: &Profile,
        wanted: &Profile,
        tolerance: Tolerance,
        now: OffsetDateTime,
    ) -> Vec<String> {
        let leaf = self
            .authority
            .issue(self.key.public_key(), asked, NOW)
            .unwrap();
        let chain = Chain::from_response(leaf.der(), self.key.public_key()).unwrap();
        satisfies(
            &chain,
            wanted,
            tolerance,
            self.key.public_key(),
            self.authority.bundle(),
            now,
        )
        .iter()
        .map(ToString::to_string)
        .collect()
    }
}

#[test]
fn accepts_certificate_that_matches_profile() {
    assert_eq!(Issued::new().differences(&etcd_server(), NOW), [""; 0]);
}

#[test]
fn reports_all_differences() {
    let mut asked = etcd_server();
    asked.subject.common_name = "cp2".to_owned();
    asked.subject.organizations = vec!["system:masters".to_owned()];
    asked.sans.dns = vec!["cp1".to_owned(), "*.example".to_owned()];
    asked.sans.ips = vec!["192.0.2.12".parse().unwrap(), "::1".parse().unwrap()];
    asked.usages = vec![ExtendedUsage::ServerAuth];
    assert_eq!(
        Issued::new().differences(&asked, NOW),
        [
            "expected CN \"cp1\", found \"cp2\"",
            "unexpected O \"system:masters\": Kubernetes would treat it as membership of that group",
            "SAN DNS:localhost is missing",
            "SAN IP:192.0.2.11 is missing",
            "unexpected SAN DNS:*.example",
            "unexpected SAN IP:192.0.2.12",
            "extended key usage client auth is missing",
        ]
    );
}

#[test]
fn tolerates_only_additional_tls_usages() {
    let issued = Issued::new();
    let usages = |usages: &[ExtendedUsage]| Profile {
        usages: usages.to_vec(),
        ..etcd_server()
    };
    let both = usages(&[ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth]);
    let server = usages(&[ExtendedUsage::ServerAuth]);
    let extra = Tolerance {
        extra_usages: true,
        ..Tolerance::default()
    };
    assert_eq!(
        issued.tolerated(&both, &server, Tolerance::default(), NOW),
        ["unexpected extended key usage client auth"]
    );
    assert_eq!(issued.tolerated(&both, &server, extra, NOW), [""; 0]);
    assert_eq!(
        issued.tolerated(&server, &both, extra, NOW),
        ["extended key usage client auth is missing"]
    );
    let mut other = both;
    other.subject.common_name = "cp2".to_owned();
    other.sans.dns.push("cp2".to_owned());
    assert_eq!(
        issued.tolerated(&other, &server, extra, NOW),
        [
            "expected CN \"cp1\", found \"cp2\"",
            "unexpected SAN DNS:cp2"
        ]
    );
}

#[test]
fn tolerates_only_common_name_as_dns_name() {
    let issued = Issued::new();
    let mut wanted = etcd_server();
    wanted.subject.common_name = "etcd-server.cp1".to_owned();
    let mut asked = wanted.clone();
    asked.sans.dns.push("etcd-server.cp1".to_owned());
    let own = Tolerance {
        common_name_as_dns: true,
        ..Tolerance::default()
    };
    assert_eq!(
        issued.tolerated(&asked, &wanted, Tolerance::default(), NOW),
        ["unexpected SAN DNS:etcd-server.cp1"]
    );
    assert_eq!(issued.tolerated(&asked, &wanted, own, NOW), [""; 0]);
    // The name is tolerated, but not required.
    assert_eq!(issued.tolerated(&wanted, &wanted, own, NOW), [""; 0]);
    asked.sans.dns.push("etcd-server.cp2".to_owned());
    assert_eq!(
        issued.tolerated(&asked, &wanted, own, NOW),
        ["unexpected SAN DNS:etcd-server.cp2"]
    );
}

#[test]
fn distinguishes_validity_from_path() {
    let issued = Issued::new();
    assert_eq!(
        issued.differences(&etcd_server(), NOW + 2 * YEAR),
        ["it expired at 2027-06-01T12:00:00Z"]
    );
    assert_eq!(
        issued.differences(&etcd_server(), NOW - YEAR),
        [
            "it is not valid before 2026-06-01T11:55:00Z",
            "authority's certificate CN=etcd-ca is not valid before 2026-06-01T11:55:00Z"
        ]
    );
}

#[test]
fn refuses_other_authority_of_same_name() {
    let issued = Issued::new();
    let leaf = issued
        .authority
        .issue(issued.key.public_key(), &etcd_server(), NOW)
        .unwrap();
    let chain = Chain::from_response(leaf.der(), issued.key.public_key()).unwrap();
    let other = authority("etcd-ca");
    let differences = satisfies(
        &chain,
        &etcd_server(),
        Tolerance::default(),
        issued.key.public_key(),
        other.bundle(),
        NOW,
    );
    assert_eq!(
        differences
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        [
            "no path from it to the trusted CN=etcd-ca: its issuer has this name and another key (the signer's CA is not the one in the CA file)"
        ]
    );
}

#[test]
fn reports_path_to_other_than_first_certificate() {
    let issued = Issued::new();
    let other = authority("old-etcd-ca");
    let leaf = issued
        .authority
        .issue(issued.key.public_key(), &etcd_server(), NOW)
        .unwrap();
    let chain = Chain::from_response(leaf.der(), issued.key.public_key()).unwrap();
    let pem = other.bundle().to_pem() + &issued.authority.bundle().to_pem();
    let second = TrustBundle::from_pem(pem.as_bytes()).unwrap();
    let differences = satisfies(
        &chain,
        &etcd_server(),
        Tolerance::default(),
        issued.key.public_key(),
        &second,
        NOW,
    );
    assert!(
        matches!(
            differences.as_slice(),
            [CertDifference::NotUnderFirst { .. }]
        ),
        "{differences:?}"
    );
}

#[test]
fn refuses_certificate_for_other_key() {
    let issued = Issued::new();
    let leaf = issued
        .authority
        .issue(issued.key.public_key(), &etcd_server(), NOW)
        .unwrap();
    let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let error = Chain::from_response(leaf.to_pem().as_bytes(), other.public_key())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the certificate is for another key: it certifies sha256:"),
        "{error}"
    );
}

#[test]
fn refuses_reversed_chain() {
    let issued = Issued::new();
    let leaf = issued
        .authority
        .issue(issued.key.public_key(), &etcd_server(), NOW)
        .unwrap();
    let reversed = issued.authority.bundle().to_pem() + &leaf.to_pem();
    let error = Chain::from_response(reversed.as_bytes(), issued.key.public_key())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "the chain is reversed or out of order: its first certificate is CN=etcd-ca, the leaf must come first"
    );
}

#[test]
fn compares_request_with_profile() {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP521).unwrap();
    let csr = Csr::create(&etcd_server(), &key, UsageExtensions::Requested).unwrap();
    let again = Csr::from_pem(csr.to_pem().as_bytes()).unwrap();
    assert_eq!(again, csr);
    assert!(again.matches(&etcd_server()));
    let mut other = etcd_server();
    other.sans.dns.pop();
    assert!(!again.matches(&other));
    let mut forged = csr.der().to_vec();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    assert!(Csr::from_der(&forged).is_err());
}

#[test]
fn accepts_only_pinned_certificates_and_cas_below_them() {
    let (one, two) = (authority("one"), authority("two"));
    let pem = one.bundle().to_pem() + &two.bundle().to_pem();
    let both = TrustBundle::from_pem(pem.as_bytes()).unwrap();
    assert!(both.require_pins(&[]).is_ok());
    assert!(
        both.require_pins(&[one.public_key().sha256(), two.public_key().sha256()])
            .is_ok()
    );
    let error = both
        .require_pins(&[one.public_key().sha256()])
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(
            "it contains a certificate that is neither pinned nor issued by a pinned one"
        ),
        "{error}"
    );
}

/// Issues a certificate that no [`CertificateAuthority`] would issue, for `key` with the key of `issuer`.
fn issued_by(
    (issuer, issuer_key): (&Certificate, &PrivateKey),
    key: &PrivateKey,
    change: impl FnOnce(&mut CertificateParams),
) -> Certificate {
    let mut params = leaf_params(&etcd_server(), key.key_type()).unwrap();
    params.not_before = NOW - YEAR;
    params.not_after = NOW + YEAR;
    change(&mut params);
    let issuer = Issuer::from_ca_cert_der(&issuer.der().into(), issuer_key).unwrap();
    let made = params.signed_by(key.public_key(), &issuer).unwrap();
    Certificate::from_der(made.der()).unwrap()
}

/// An authority whose key the test has.
fn root() -> (TrustBundle, PrivateKey) {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let own = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
    let root = CertificateAuthority::self_signed("etcd-ca", key, NOW - YEAR, 10 * YEAR).unwrap();
    (root.bundle().clone(), own)
}

fn texts(differences: &[CertDifference]) -> Vec<String> {
    differences.iter().map(ToString::to_string).collect()
}

#[test]
fn reports_subject_attribute_that_kubeadm_does_not_set() {
    let (trust, root_key) = root();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let leaf = issued_by((trust.first(), &root_key), &key, |params| {
        params
            .distinguished_name
            .push(DnType::OrganizationalUnitName, "infra\u{1b}[2J");
    });
    let chain = Chain::from_response(leaf.der(), key.public_key()).unwrap();
    let wanted = etcd_server();
    let differences = satisfies(
        &chain,
        &wanted,
        Tolerance::default(),
        key.public_key(),
        &trust,
        NOW,
    );
    assert_eq!(
        texts(&differences),
        ["unexpected subject attribute OU=infra\\u{1b}[2J"]
    );
    assert!(!is_for_names(&chain, &wanted, Tolerance::default()));
}

#[test]
fn tolerates_no_attribute_that_identifies_a_user() {
    let (trust, root_key) = root();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let tolerance = Tolerance {
        unread_attributes: true,
        ..Tolerance::default()
    };
    let differences = |oid: &[u64]| {
        let leaf = issued_by((trust.first(), &root_key), &key, |params| {
            let kind = DnType::CustomDnType(oid.to_vec());
            params.distinguished_name.push(kind, "1000");
        });
        let chain = Chain::from_response(leaf.der(), key.public_key()).unwrap();
        let wanted = etcd_server();
        let own = key.public_key();
        texts(&satisfies(&chain, &wanted, tolerance, own, &trust, NOW))
    };
    assert_eq!(differences(&[2, 5, 4, 5]), [""; 0]);
    // kube-apiserver reads the UID of the user from it.
    assert_eq!(
        differences(&[1, 3, 6, 1, 4, 1, 57683, 2]),
        ["unexpected subject attribute 1.3.6.1.4.1.57683.2=1000"]
    );
}

#[test]
fn reports_issuer_that_is_not_a_ca_or_is_damaged() {
    let (trust, root_key) = root();
    let [middle_key, key] =
        [(), ()].map(|()| PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap());
    let named = |name: &'static str| {
        move |params: &mut CertificateParams| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
        }
    };
    let middle = issued_by((trust.first(), &root_key), &middle_key, named("middle"));
    let leaf = issued_by((&middle, &middle_key), &key, |_| ());
    let read = |middle: &str| {
        let text = leaf.to_pem() + middle;
        let chain = Chain::from_response(text.as_bytes(), key.public_key()).unwrap();
        assert!(!verifies(&chain, &trust, NOW));
        texts(&path_differences(&chain, &trust, NOW))
    };
    assert_eq!(
        read(&middle.to_pem()),
        [
            "the chain to its authority does not verify: an issuer in it is not a CA certificate: CN=middle"
        ]
    );
    assert_eq!(
        read(""),
        ["no path from it to the trusted CN=etcd-ca: its issuer is CN=middle"]
    );
    let damaged = read("-----BEGIN CERTIFICATE-----\nBQA=\n-----END CERTIFICATE-----\n");
    assert!(
        damaged.len() == 1
            && damaged[0].starts_with(
                "no path from it to the authority, and another certificate of its chain is damaged: "
            ),
        "{damaged:?}"
    );
}

#[test]
fn accepts_certificate_until_the_last_second_of_every_validity() {
    let (trust, root_key) = root();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let leaf = issued_by((trust.first(), &root_key), &key, |_| ());
    let chain = Chain::from_response(leaf.der(), key.public_key()).unwrap();
    let second = Duration::from_secs(1);
    let is_valid = |now| {
        let wanted = etcd_server();
        let found = satisfies(
            &chain,
            &wanted,
            Tolerance::default(),
            key.public_key(),
            &trust,
            now,
        );
        assert_eq!(verifies(&chain, &trust, now), found.is_empty(), "{found:?}");
        found.is_empty()
    };
    assert!(is_valid(leaf.not_before()) && is_valid(leaf.not_after()));
    assert!(!is_valid(leaf.not_before() - second) && !is_valid(leaf.not_after() + second));
    let (root, issuer) = (trust.first(), |now| {
        issuer_validity("its", trust.first(), now)
    });
    assert!(issuer(root.not_before()).is_none() && issuer(root.not_after()).is_none());
    assert!(issuer(root.not_before() - second).is_some());
    assert!(issuer(root.not_after() + second).is_some());
}

#[test]
fn compares_key_usage_of_present_extension_only() {
    let (trust, root_key) = root();
    for (algorithm, usages, expected) in [
        (KeyAlgorithm::EcdsaP256, &[][..], &[][..]),
        (
            KeyAlgorithm::EcdsaP256,
            &[KeyUsagePurpose::DigitalSignature],
            &[],
        ),
        (
            KeyAlgorithm::EcdsaP256,
            &[KeyUsagePurpose::KeyEncipherment],
            &["key usage digital signature is missing"],
        ),
        (
            KeyAlgorithm::Rsa2048,
            &[KeyUsagePurpose::DigitalSignature],
            &["key usage key encipherment is missing"],
        ),
        (
            KeyAlgorithm::MlDsa65,
            &[KeyUsagePurpose::DigitalSignature],
            &[],
        ),
        (
            KeyAlgorithm::MlDsa44,
            &[
                KeyUsagePurpose::DigitalSignature,
                KeyUsagePurpose::KeyEncipherment,
            ],
            &[
                "its key usage includes encryption, which is forbidden for an ML-DSA key (RFC 9881, 3)",
            ],
        ),
        (
            KeyAlgorithm::MlDsa65,
            &[
                KeyUsagePurpose::DigitalSignature,
                KeyUsagePurpose::DataEncipherment,
            ],
            &[
                "its key usage includes encryption, which is forbidden for an ML-DSA key (RFC 9881, 3)",
            ],
        ),
        (
            KeyAlgorithm::MlDsa87,
            &[
                KeyUsagePurpose::DigitalSignature,
                KeyUsagePurpose::KeyAgreement,
            ],
            &[
                "its key usage includes encryption, which is forbidden for an ML-DSA key (RFC 9881, 3)",
            ],
        ),
    ] {
        let key = PrivateKey::generate(algorithm).unwrap();
        let leaf = issued_by((trust.first(), &root_key), &key, |params| {
            params.key_usages = usages.to_vec();
        });
        let both = [ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth];
        assert_eq!(
            texts(&usage_differences(&leaf, &both)),
            expected,
            "{usages:?}"
        );
    }
}

#[test]
fn states_fault_of_path_and_gives_it_a_code() {
    let cn = || "CN=root".to_owned();
    for (fault, code, text) in [
        (
            PathFault::UnsupportedAlgorithm(cn()),
            "UnsupportedAlgorithm",
            "the signature algorithm of CN=root is not supported",
        ),
        (
            PathFault::IssuerNotACa(cn()),
            "IssuerNotACa",
            "an issuer in it is not a CA certificate: CN=root",
        ),
        (
            PathFault::IssuerMayNotSign(cn()),
            "IssuerMayNotSign",
            "the key usage of CN=root does not allow it to sign certificates",
        ),
        (
            PathFault::UnusableIssuerKey {
                subject: cn(),
                why: "too short",
            },
            "UnusableIssuerKey",
            "the key of CN=root cannot verify signatures: too short",
        ),
        (
            PathFault::UnknownCriticalExtension {
                subject: cn(),
                oid: "2.5.29.99".to_owned(),
            },
            "UnknownCriticalExtension",
            "CN=root has the critical extension 2.5.29.99, which Kubernetes components do not know",
        ),
        (
            PathFault::ValidityDisjoint(cn()),
            "ValidityDisjoint",
            "CN=root is not valid while the certificate is",
        ),
        (
            PathFault::TooManyIntermediates,
            "TooManyIntermediates",
            "it has more than 6 intermediate certificates",
        ),
        (
            PathFault::UsageForbidden(cn()),
            "UsageForbidden",
            "CN=root does not allow the extended key usage",
        ),
        (
            PathFault::Policies,
            "Policies",
            "its certificate policies are not valid",
        ),
        (
            PathFault::TooManyCandidates,
            "TooManyCandidates",
            "too many certificates have the name of an issuer: remove those that do not lead to the authority",
        ),
        (
            PathFault::UnsupportedCriticalExtension,
            "UnsupportedCriticalExtension",
            "a certificate in it has a critical extension that is not supported",
        ),
        (PathFault::Webpki(webpki::Error::BadDer), "Webpki", "BadDer"),
    ] {
        let difference = CertDifference::Path(fault);
        assert_eq!(difference.code(), code);
        let expected = format!("the chain to its authority does not verify: {text}");
        assert_eq!(difference.to_string(), expected);
    }
}
