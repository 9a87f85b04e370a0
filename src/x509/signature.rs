//! Verification of single signatures with webpki's algorithms.

use rustls_pki_types::{AlgorithmIdentifier, SignatureVerificationAlgorithm};
use x509_parser::x509::AlgorithmIdentifier as ParsedAlgorithm;

use super::der::{DerReader, tag};
use super::key::PublicKey;

/// Largest number of signatures that are verified in one operation.
pub(super) const MAX_SIGNATURE_CHECKS: usize = 256;

/// Returns true if webpki supports the signature algorithm in this AlgorithmIdentifier's content.
pub(super) fn is_supported(algorithm: &[u8]) -> bool {
    webpki::ALL_VERIFICATION_ALGS
        .iter()
        .any(|candidate| candidate.signature_alg_id().as_ref() == algorithm)
}

/// Verifies a signature with the algorithm of an AlgorithmIdentifier's content, parameters included.
pub(super) fn has_signature_of(
    key: &PublicKey,
    algorithm: &[u8],
    message: &[u8],
    signature: &[u8],
) -> bool {
    use rcgen::PublicKeyData;
    let spki = spki_algorithm(key);
    webpki::ALL_VERIFICATION_ALGS
        .iter()
        .filter(|candidate| {
            candidate.signature_alg_id().as_ref() == algorithm
                && Some(candidate.public_key_alg_id().as_ref()) == spki
        })
        .any(|candidate| {
            candidate
                .verify_signature(key.der_bytes(), message, signature)
                .is_ok()
        })
}

/// Verifies a signature with the algorithm of an AlgorithmIdentifier, whatever its parameters.
pub(super) fn signature_is_valid(
    key: &PublicKey,
    algorithm: &ParsedAlgorithm<'_>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    use rcgen::PublicKeyData;
    let oid = algorithm.algorithm.as_bytes();
    let names_oid = |identifier: &AlgorithmIdentifier| {
        // An OBJECT IDENTIFIER: tag, short length, content.
        identifier.as_ref().get(2..2 + oid.len()) == Some(oid)
    };
    let spki = spki_algorithm(key);
    webpki::ALL_VERIFICATION_ALGS.iter().copied().any(
        |candidate: &dyn SignatureVerificationAlgorithm| {
            names_oid(&candidate.signature_alg_id())
                && Some(candidate.public_key_alg_id().as_ref()) == spki
                && candidate
                    .verify_signature(key.der_bytes(), message, signature)
                    .is_ok()
        },
    )
}

/// Returns the content of the AlgorithmIdentifier in a SubjectPublicKeyInfo, the form that pki-types uses.
fn spki_algorithm(key: &PublicKey) -> Option<&[u8]> {
    let mut info = DerReader::new(key.spki_der()).read(tag::SEQUENCE)?;
    Some(info.read(tag::SEQUENCE)?.rest())
}
