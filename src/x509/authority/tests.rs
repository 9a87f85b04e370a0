use time::macros::datetime;

use super::*;
use crate::x509::{ExtendedUsage, Sans};

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn key() -> PrivateKey {
    PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn profile(dns: &str) -> Profile {
    Profile {
        subject: Subject::new("node", &[]),
        sans: Sans {
            dns: vec![dns.to_owned()],
            ips: Vec::new(),
        },
        usages: vec![ExtendedUsage::ServerAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: YEAR,
    }
}

fn read(certificate: &str, key: &str) -> Result<CertificateAuthority, String> {
    CertificateAuthority::from_pem(certificate.as_bytes(), key.as_bytes())
        .map_err(|error| error.to_string())
}

#[test]
fn reads_certificate_with_its_key_only() {
    let authority = CertificateAuthority::self_signed("ca", key(), NOW, YEAR).unwrap();
    let certificate = authority.bundle().to_pem();
    let own = authority.key.to_pem();
    let again = read(&certificate, &own).unwrap();
    assert_eq!(again.public_key(), authority.public_key());
    assert_eq!(
        read(&certificate, &key().to_pem()).unwrap_err(),
        "its private key does not belong to its certificate (CN=ca)"
    );
    assert_eq!(
        read("", &own).unwrap_err(),
        "its certificate is unusable: it does not contain a certificate"
    );
    assert_eq!(
        read(&certificate, "").unwrap_err(),
        "its private key is unusable: it does not contain a PEM private key"
    );
    let short = PrivateKey::of_rsa_bits(1024);
    let refusal = read(&certificate, &short.to_pem()).unwrap_err();
    assert!(
        refusal.contains("only keys of 2048 to 8192 bits"),
        "{refusal}"
    );
}

#[test]
fn refuses_names_that_a_certificate_cannot_have() {
    let error = CertificateAuthority::self_signed("cä", key(), NOW, YEAR).unwrap_err();
    let reason = "cannot be a DNS name in a certificate: it is not ASCII";
    assert_eq!(
        error.to_string(),
        format!("the certificate could not be created: \"cä\" {reason}")
    );
    let authority = CertificateAuthority::self_signed("ca", key(), NOW, YEAR).unwrap();
    let error = authority
        .issue(key().public_key(), &profile("näme"), NOW)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the certificate could not be created: \"näme\" {reason}")
    );
}

#[test]
fn issues_positive_serials_and_backdated_validity() {
    let authority = CertificateAuthority::self_signed("ca", key(), NOW, YEAR).unwrap();
    let mut serials = std::collections::BTreeSet::new();
    for _ in 0..64 {
        let leaf = authority
            .issue(key().public_key(), &profile("node"), NOW)
            .unwrap();
        // Positive in two's complement, in at most 8 bytes.
        assert!(leaf.serial().len() <= 16, "{}", leaf.serial());
        assert!(serials.insert(leaf.serial().to_owned()));
        assert_eq!(leaf.not_before(), NOW - BACKDATE);
        assert_eq!(leaf.not_after(), NOW + YEAR);
    }
}
