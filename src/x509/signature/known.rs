//! webpki's signature algorithms, with a memory of the signatures that this process has found valid.
//!
//! A run verifies the same certificate several times: in its survey, while it builds the path, and once more in webpki. A
//! digest of everything that the result depends on takes far less time than a verification.

use std::sync::LazyLock;

use rustls_pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

use crate::x509::memory::Memory;

/// webpki's algorithms. Each verifies a valid signature once.
pub(in crate::x509) static ALGORITHMS: LazyLock<Vec<&'static dyn SignatureVerificationAlgorithm>> =
    LazyLock::new(|| {
        static REMEMBERING: LazyLock<Vec<Remembering>> = LazyLock::new(|| {
            let all = webpki::ALL_VERIFICATION_ALGS.iter();
            all.map(|algorithm| Remembering(*algorithm)).collect()
        });
        let all = REMEMBERING.iter();
        all.map(|one| one as &dyn SignatureVerificationAlgorithm)
            .collect()
    });

static VALID: Memory = Memory::new();

#[derive(Debug)]
struct Remembering(&'static dyn SignatureVerificationAlgorithm);

impl SignatureVerificationAlgorithm for Remembering {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let (key, signed) = (self.public_key_alg_id(), self.signature_alg_id());
        let parts = [
            key.as_ref(),
            signed.as_ref(),
            public_key,
            message,
            signature,
        ];
        VALID.verify_once(&parts, || {
            self.0.verify_signature(public_key, message, signature)
        })
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.0.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.0.signature_alg_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::{KeyAlgorithm, PrivateKey};

    #[test]
    fn distinguishes_keys_messages_and_signatures() {
        use rcgen::{PublicKeyData, SigningKey};
        let key = |_| PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let [own, other] = [(); 2].map(key);
        let signed = |key: &PrivateKey, message: &[u8]| key.sign(message).unwrap();
        let signature = signed(&own, b"message");
        let is_valid = |key: &PrivateKey, message: &[u8], signature: &[u8]| {
            let key = key.public_key();
            let mut all = ALGORITHMS.iter();
            all.any(|one| {
                one.verify_signature(key.der_bytes(), message, signature)
                    .is_ok()
            })
        };
        for _ in 0..2 {
            assert!(is_valid(&own, b"message", &signature));
            assert!(!is_valid(&other, b"message", &signature));
            assert!(!is_valid(&own, b"messag", &signature));
            assert!(!is_valid(&own, b"message", &signed(&own, b"other")));
            // The same bytes with another border between message and signature.
            assert!(!is_valid(&own, b"messag", &[b"e", &signature[..]].concat()));
        }
    }
}
