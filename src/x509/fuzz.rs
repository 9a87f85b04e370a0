//! Fuzz targets: the readers of keys, requests, certificates and revocation lists.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::borrow::Cow;
use std::sync::OnceLock;

use time::OffsetDateTime;
use time::macros::datetime;

use super::{
    Certificate, Chain, Csr, CsrContent, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile,
    PublicKey, RevocationList, Subject, Tolerance, TrustBundle, along_path, certificates_of,
    satisfies,
};
use crate::text::is_hidden;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("certificate", certificate),
    ("chain-file", chain_file),
    ("signer-response", signer_response),
    ("trust-bundle", trust_bundle),
    ("revocation-list", revocation_list),
    ("request", request),
    ("kubelet-request", kubelet_request),
    ("private-key", private_key),
    ("encrypted-key", encrypted_key),
    ("public-key", public_key),
    ("json-web-key", json_web_key),
];

/// Labels of PEM that the first byte of an input selects.
const LABELS: [&str; 8] = [
    "PRIVATE KEY",
    "EC PRIVATE KEY",
    "RSA PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY",
    "CERTIFICATE REQUEST",
    "CERTIFICATE",
    "PUBLIC KEY",
    "X509 CRL",
];

/// Returns an input for a reader of PEM. If the first byte is the number of a label, the rest is DER, which is encoded: so
/// the fuzzer changes bytes of the DER and not of its base64.
pub fn pem_of(bytes: &[u8]) -> Cow<'_, [u8]> {
    match bytes.split_first() {
        Some((first, der)) if usize::from(*first) < LABELS.len() => {
            let block = pem::Pem::new(LABELS[usize::from(*first)], der);
            Cow::Owned(pem::encode(&block).into_bytes())
        }
        _ => Cow::Borrowed(bytes),
    }
}

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

/// A key as no input has it: the verification sees the rest of the certificate first.
fn own_key() -> &'static PublicKey {
    static KEY: OnceLock<Option<PublicKey>> = OnceLock::new();
    KEY.get_or_init(|| {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).ok()?;
        Some(key.public_key().clone())
    })
    .as_ref()
    .expect("a key can be generated")
}

fn certificate(bytes: &[u8]) {
    if let Ok(found) = Certificate::from_der(bytes) {
        assert_eq!(found.der(), bytes, "a certificate keeps its bytes");
        for name in [found.subject(), found.issuer()] {
            examine_text(&name.to_string());
        }
        let _ = (found.dns_names(), found.ip_addresses(), found.is_ca());
    }
}

/// Text that reaches a terminal or a log contains no control or formatting characters.
fn examine_text(text: &str) {
    let hidden = text.chars().find(|c| is_hidden(*c));
    assert_eq!(hidden, None, "{text:?}");
}

fn chain_file(bytes: &[u8]) {
    if let Ok(chain) = Chain::from_pem(bytes) {
        let again = Chain::from_pem(chain.to_pem().as_bytes()).expect("a chain is read again");
        assert_eq!(again.to_pem(), chain.to_pem());
        judge(&chain);
    }
}

fn signer_response(bytes: &[u8]) {
    // The key of the first certificate leads past the search for the leaf.
    let keys = certificates_of(bytes).ok().and_then(|all| {
        let first = all.first()?;
        Some(first.public_key().clone())
    });
    for key in keys.iter().chain([own_key()]) {
        if let Ok(chain) = Chain::from_response(bytes, key) {
            assert_eq!(chain.leaf().public_key(), key);
            judge(&chain);
        }
    }
}

/// Returns what a server's certificate must contain.
pub(crate) fn profile() -> Profile {
    let day = std::time::Duration::from_secs(86400);
    let subject = Subject::new("kube-apiserver", &[]);
    Profile::of_tests(subject, &[ExtendedUsage::ServerAuth], day)
}

/// Verifies a chain under its own last certificate.
fn judge(chain: &Chain) {
    let last = chain.intermediates().last().unwrap_or(chain.leaf());
    let Ok(trust) = TrustBundle::from_certificates(vec![last.clone()]) else {
        return;
    };
    let profile = profile();
    let (key, tolerance) = (own_key(), Tolerance::default());
    for difference in satisfies(chain, &profile, tolerance, key, &trust, NOW) {
        examine_text(&difference.to_string());
    }
    let _ = along_path(chain.clone(), &trust, NOW);
}

fn trust_bundle(bytes: &[u8]) {
    if let Ok(found) = TrustBundle::from_pem(bytes) {
        let again = TrustBundle::from_pem(found.to_pem().as_bytes());
        assert!(again.expect("a bundle is read again").accepts(&found));
    }
    if let Err(error) = TrustBundle::from_response(bytes) {
        examine_text(&error.to_string());
    }
}

fn revocation_list(bytes: &[u8]) {
    for list in RevocationList::read_all(bytes).into_iter().flatten() {
        let again = RevocationList::read_all(list.to_pem().as_bytes());
        assert_eq!(again.expect("a list is read again").len(), 1);
        examine_text(&list.issuer().to_string());
    }
}

fn request(bytes: &[u8]) {
    let found = [Csr::from_der(bytes), Csr::from_pem(bytes)];
    for csr in found.into_iter().flatten() {
        let again = Csr::from_pem(csr.to_pem().as_bytes()).expect("a request is read again");
        assert_eq!(again.sha256(), csr.sha256());
    }
}

fn kubelet_request(bytes: &[u8]) {
    if let Ok(content) = CsrContent::from_pem(&pem_of(bytes)) {
        examine_text(&content.subject().to_string());
        let is_signed = content.is_signed();
        assert!(content.into_csr().is_err() || is_signed);
    }
}

fn private_key(bytes: &[u8]) {
    if let Ok(key) = PrivateKey::from_pem(&pem_of(bytes)) {
        let again = PrivateKey::from_pem(key.to_pem().as_bytes()).expect("a key is read again");
        assert_eq!(again.public_key(), key.public_key());
    }
}

fn encrypted_key(bytes: &[u8]) {
    let _ = PrivateKey::all_from_encrypted_pem(&pem_of(bytes), b"correct horse");
}

fn public_key(bytes: &[u8]) {
    let found = [PublicKey::from_pem(bytes), PublicKey::from_spki_der(bytes)];
    for key in found.into_iter().flatten() {
        let again = PublicKey::from_pem(key.to_pem().as_bytes());
        assert_eq!(again.expect("a key is read again"), key);
    }
}

fn json_web_key(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok((key, _)) = PrivateKey::from_jwk_or_pem(text) {
        let public = key.public_key();
        let _ = (
            key.jws_algorithm(),
            public.jwk_members(),
            public.jwk_thumbprint(),
        );
    }
}
