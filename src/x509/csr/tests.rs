use std::time::Duration;

use super::*;
use crate::x509::der_encoding::sequence;
use crate::x509::{KeyAlgorithm, Sans};

fn profile(dns: &str) -> Profile {
    Profile {
        subject: Subject::new("node", &["nodes"]),
        sans: Sans {
            dns: vec![dns.to_owned()],
            ips: vec![
                "192.0.2.11".parse().unwrap(),
                "2001:db8::1".parse().unwrap(),
            ],
        },
        usages: vec![ExtendedUsage::ServerAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: Duration::from_secs(86_400),
    }
}

fn key() -> PrivateKey {
    PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn create(profile: &Profile) -> Result<Csr, String> {
    Csr::create(profile, &key(), UsageExtensions::Requested).map_err(|error| error.to_string())
}

fn read(text: &str) -> String {
    Csr::from_pem(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn refuses_profile_that_a_certificate_cannot_have() {
    assert_eq!(
        create(&profile("näme")).unwrap_err(),
        "\"näme\" cannot be a DNS name in a certificate: it is not ASCII"
    );
    let mut many = profile("node");
    many.subject.organizations.push("second".to_owned());
    assert_eq!(
        create(&many).unwrap_err(),
        "more than one organization is required, which kubeadm's table never contains"
    );
}

#[test]
fn reports_text_that_is_not_a_request() {
    assert_eq!(
        read("text"),
        "it does not contain a CERTIFICATE REQUEST block"
    );
    let error = read(&encode_pem("CERTIFICATE REQUEST", &[5, 0]));
    assert!(error.starts_with("not a PKCS#10 request: "), "{error}");
    let mut longer = create(&profile("node")).unwrap().der().to_vec();
    longer.push(0);
    assert_eq!(
        read(&encode_pem("CERTIFICATE REQUEST", &longer)),
        "not a PKCS#10 request: bytes follow the request"
    );
}

#[test]
fn reports_damaged_signature_and_key() {
    let csr = create(&profile("node")).unwrap();
    let mut forged = csr.der().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(
        Csr::from_der(&forged).unwrap_err().to_string(),
        "the request's own signature does not verify"
    );
    // An RSA key without content.
    let oid = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
    let empty = sequence(&[&sequence(&[&oid, &[5, 0]]), &[3, 1, 0]]);
    let info = sequence(&[&[2, 1, 0], &sequence(&[]), &empty, &[0xa0, 0]]);
    let algorithm = sequence(&[&[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]]);
    let without_key = sequence(&[&info, &algorithm, &[3, 2, 0, 1]]);
    assert_eq!(
        Csr::from_der(&without_key).unwrap_err().to_string(),
        "the request's public key is unreadable"
    );
}

#[test]
fn reads_both_labels_and_finds_usage_extensions() {
    let csr = create(&profile("node")).unwrap();
    let old = csr.to_pem().replace("CERTIFICATE", "NEW CERTIFICATE");
    assert_eq!(Csr::from_pem(old.as_bytes()).unwrap(), csr);
    assert!(csr.has_usage_extensions());
    let bare = Csr::create(&profile("node"), &key(), UsageExtensions::Omitted).unwrap();
    assert!(!bare.has_usage_extensions());
    assert_eq!(bare.differences(&profile("node")), []);
}

#[test]
fn names_differences_of_subject_and_names() {
    let csr = create(&profile("node")).unwrap();
    assert_eq!(csr.differences(&profile("node")), []);
    type Change = fn(&mut Profile);
    let changes: [(Change, &[&str], &[&str]); 5] = [
        (
            |profile| profile.subject.common_name.push('2'),
            &["expected CN \"node2\", found \"node\""],
            &["expected CN \"node\", found \"node2\""],
        ),
        (
            |profile| profile.subject.organizations.clear(),
            &["unexpected O \"nodes\": Kubernetes would treat it as membership of that group"],
            &["O \"nodes\" is missing"],
        ),
        (
            |profile| profile.sans.ips.truncate(1),
            &["unexpected SAN IP:2001:db8::1"],
            &["SAN IP:2001:db8::1 is missing"],
        ),
        (
            |profile| profile.sans.dns = vec!["other".to_owned()],
            &["SAN DNS:other is missing", "unexpected SAN DNS:node"],
            &["SAN DNS:node is missing", "unexpected SAN DNS:other"],
        ),
        (|profile| profile.sans.ips.reverse(), &[], &[]),
    ];
    for (change, lacks, has_more) in changes {
        let mut changed = profile("node");
        change(&mut changed);
        let texts = |csr: &Csr, wanted: &Profile| -> Vec<String> {
            let found = csr.differences(wanted);
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(&csr, &changed), lacks);
        assert_eq!(
            texts(&create(&changed).unwrap(), &profile("node")),
            has_more
        );
    }
}

#[test]
fn requests_key_encipherment_only_for_rsa_keys() {
    let rsa = KeyType::Known(KeyAlgorithm::Rsa2048);
    assert_eq!(
        key_usages(&rsa),
        [
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment
        ]
    );
    let ec = KeyType::Known(KeyAlgorithm::EcdsaP256);
    assert_eq!(key_usages(&ec), [KeyUsagePurpose::DigitalSignature]);
}

#[test]
fn compares_request_with_names_of_certificate() {
    let authority = key();
    let now = time::macros::datetime!(2026-06-01 12:00 UTC);
    let lifetime = Duration::from_secs(86_400);
    let authority =
        crate::x509::CertificateAuthority::self_signed("ca", authority, now, lifetime).unwrap();
    let csr = create(&profile("node")).unwrap();
    let issued = |profile: &Profile| authority.issue(key().public_key(), profile, now).unwrap();
    assert!(csr.has_names_of(&issued(&profile("node"))));
    assert!(!csr.has_names_of(&issued(&profile("other"))));
    let mut renamed = profile("node");
    renamed.subject.common_name.push('2');
    assert!(!csr.has_names_of(&issued(&renamed)));
}
