use std::time::Duration;

use time::macros::datetime;

use super::*;
use crate::x509::der_encoding::{der, sequence};
use crate::x509::pem::encode_pem;
use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};

fn authority(name: &str) -> String {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let now = datetime!(2026-06-01 12:00 UTC);
    let year = Duration::from_secs(365 * 86_400);
    let authority = CertificateAuthority::self_signed(name, key, now, year).unwrap();
    authority.bundle().to_pem()
}

fn refused(text: &str) -> String {
    Chain::from_pem(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn limits_number_of_certificates() {
    let one = authority("ca");
    let most = one.repeat(MAX_RESPONSE_CERTIFICATES);
    assert_eq!(
        Chain::from_pem(most.as_bytes())
            .unwrap()
            .intermediates()
            .len(),
        MAX_RESPONSE_CERTIFICATES - 1
    );
    assert_eq!(
        refused(&format!("{most}{one}")),
        "it contains 129 certificates, more than the limit of 128"
    );
    let bundle = one.repeat(MAX_BUNDLE_CERTIFICATES);
    TrustBundle::from_pem(bundle.as_bytes()).unwrap();
    let bundle = one.repeat(MAX_BUNDLE_CERTIFICATES + 1);
    assert_eq!(
        TrustBundle::from_pem(bundle.as_bytes())
            .unwrap_err()
            .to_string(),
        "it contains 65 certificates, more than the limit of 64 for a trust bundle"
    );
}

#[test]
fn limits_size_of_subjects_in_bundle() {
    // A subject has the name, and 11 bytes around it.
    let bytes = MAX_BUNDLE_SUBJECT_BYTES / 32 + 1;
    let one = authority(&"a".repeat(bytes));
    let error = TrustBundle::from_pem(one.repeat(32).as_bytes())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the subjects of its certificates have ")
            && error.ends_with(" bytes, more than the 32768 that fit into a TLS handshake"),
        "{error}"
    );
    TrustBundle::from_pem(one.repeat(31).as_bytes()).unwrap();
}

#[test]
fn limits_size_of_response() {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let answer = vec![b'x'; MAX_RESPONSE_BYTES + 1];
    let read = |answer| Chain::from_response(answer, key.public_key()).unwrap_err();
    assert_eq!(
        read(&answer).to_string(),
        "its size of 524289 bytes exceeds the limit of 524288"
    );
    assert_eq!(
        read(&answer[1..]).to_string(),
        "it does not contain a certificate (neither PEM, DER nor PKCS#7)"
    );
}

#[test]
fn refuses_blocks_that_go_ignores() {
    let one = authority("ca");
    for other in [
        one.replace("CERTIFICATE", "X509 CERTIFICATE"),
        one.replacen("-\n", "-\nProc-Type: 4\n\n", 1),
    ] {
        assert!(
            refused(&format!("{one}{other}")).starts_with(
                "Kubernetes components read only 1 of its 2 certificates: each must be labelled CERTIFICATE"
            ),
            "{other}"
        );
    }
}

#[test]
fn reports_damaged_pem_and_certificates() {
    let one = authority("ca");
    let error = refused(&one.replacen("MII", "!!!", 1));
    assert!(error.starts_with("the PEM text is damaged: "), "{error}");
    let error = refused(&encode_pem("CERTIFICATE", &[5, 0]));
    assert!(
        error.starts_with("a certificate in it is damaged: not a DER certificate: "),
        "{error}"
    );
}

#[test]
fn measures_chain_as_a_handshake_does() {
    let one = authority("ca");
    let chain = Chain::from_pem(one.repeat(3).as_bytes()).unwrap();
    let bytes = chain.leaf().der().len();
    assert_eq!(chain.handshake_size(), 4 + 3 * (bytes + 5));
    chain.check_size().unwrap();
    let large = authority(&"a".repeat(1000));
    let of = |count| Chain::from_pem(large.repeat(count).as_bytes()).unwrap();
    let bytes = of(1).leaf().der().len();
    let most = MAX_CHAIN_BYTES / bytes;
    of(most).check_size().unwrap();
    assert_eq!(
        of(most + 1).check_size().unwrap_err().to_string(),
        format!(
            "its size of {} bytes exceeds the limit of 65536",
            (most + 1) * bytes
        )
    );
}

fn bundle(pem: &str) -> TrustBundle {
    TrustBundle::from_pem(pem.as_bytes()).unwrap()
}

#[test]
fn accepts_bundle_with_own_key_or_issued_by_own_certificate() {
    let (one, other) = (authority("one"), authority("other"));
    let both = bundle(&format!("{other}{one}"));
    assert!(bundle(&one).accepts(&bundle(&one)));
    assert!(both.accepts(&bundle(&one)) && bundle(&one).accepts(&both));
    assert!(!bundle(&one).accepts(&bundle(&other)));
    assert_eq!(both.first_alone().to_pem(), other);
    assert_eq!(both.roots_to_pem(), format!("{other}{one}"));
}

#[test]
fn reads_pkcs7_in_der_ber_and_pem() {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let public = key.public_key().clone();
    let now = datetime!(2026-06-01 12:00 UTC);
    let year = Duration::from_secs(365 * 86_400);
    let own = CertificateAuthority::self_signed("own", key, now, year).unwrap();
    let leaf = own.bundle().first().der();
    let signed_data = |version: &[u8]| {
        sequence(&[
            &der(6, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2]]),
            &der(
                0xa0,
                &[&sequence(&[
                    version,
                    &[0x31, 0],
                    &sequence(&[]),
                    // The second choice is an attribute certificate.
                    &der(0xa0, &[leaf, &[0xa2, 0]]),
                ])],
            ),
        ])
    };
    let pkcs7 = signed_data(&[2, 1, 1]);
    // OpenSSL and Java write indefinite lengths when they stream.
    let indefinite =
        |tag: u8, parts: &[&[u8]]| [&[tag, 0x80][..], &parts.concat(), &[0, 0]].concat();
    let ber = |certificate: &[u8]| {
        let content = indefinite(0xa0, &[&indefinite(0x24, &[&[4, 2, 0, 0]])]);
        let signed = indefinite(
            0x30,
            &[
                &[2, 1, 1, 0x31, 0x81, 0],
                &indefinite(0x30, &[&[6, 1, 0x2a], &content]),
                &indefinite(0xa0, &[certificate]),
                &[0x31, 0],
            ],
        );
        let kind = der(6, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2]]);
        indefinite(0x30, &[&kind, &indefinite(0xa0, &[&signed])])
    };
    let in_ber = ber(leaf);
    for answer in [
        encode_pem("PKCS7", &pkcs7).into_bytes(),
        pkcs7,
        encode_pem("CMS", &in_ber).into_bytes(),
        in_ber,
    ] {
        let chain = Chain::from_response(&answer, &public).unwrap();
        assert_eq!(chain.leaf().der(), leaf);
        assert_eq!(certificates_of(&answer).unwrap().len(), 1);
    }
    assert!(Chain::from_response(&signed_data(&[5, 0]), &public).is_err());
    let damaged = ber(&indefinite(0x30, &[leaf]));
    let refusal = certificates_of(&damaged).unwrap_err().to_string();
    assert!(
        refusal.contains("a SEQUENCE with a minimal length"),
        "{refusal}"
    );
}
