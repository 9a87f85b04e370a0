//! ML-DSA keys (FIPS 204) in the forms of RFC 9881: a private key is its seed of 32 bytes.

use aws_lc_rs::signature::{
    KeyPair as _, ML_DSA_44_SIGNING, ML_DSA_65_SIGNING, ML_DSA_87_SIGNING, PqdsaKeyPair,
    PqdsaSigningAlgorithm,
};
use pkcs8::der::Encode;
use pkcs8::der::asn1::{ObjectIdentifier, OctetStringRef};
use pkcs8::{AlgorithmIdentifierRef, PrivateKeyInfoRef};
use zeroize::Zeroizing;

use super::{KeyAlgorithm, KeyError, KeySigner, KeyType, PrivateKey, PublicKey};

const SEED_BYTES: usize = 32;
/// The CHOICE `seed [0] IMPLICIT OCTET STRING (SIZE (32))` of RFC 9881, 6: context tag and length.
const SEED_HEADER: [u8; 2] = [0x80, SEED_BYTES as u8];

/// A parameter set of ML-DSA.
#[derive(Clone, Copy)]
pub(super) struct ParameterSet {
    pub(super) algorithm: KeyAlgorithm,
    pub(super) oid: ObjectIdentifier,
    /// Length of a raw public key.
    public_key_bytes: usize,
    signing: &'static PqdsaSigningAlgorithm,
}

/// FIPS 204, table 2, and RFC 9881, 2.
const PARAMETER_SETS: [ParameterSet; 3] = [
    ParameterSet {
        algorithm: KeyAlgorithm::MlDsa44,
        oid: ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.3.17"),
        public_key_bytes: 1312,
        signing: &ML_DSA_44_SIGNING,
    },
    ParameterSet {
        algorithm: KeyAlgorithm::MlDsa65,
        oid: ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.3.18"),
        public_key_bytes: 1952,
        signing: &ML_DSA_65_SIGNING,
    },
    ParameterSet {
        algorithm: KeyAlgorithm::MlDsa87,
        oid: ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.3.19"),
        public_key_bytes: 2592,
        signing: &ML_DSA_87_SIGNING,
    },
];

impl ParameterSet {
    pub(super) fn of(algorithm: KeyAlgorithm) -> Option<Self> {
        let mut sets = PARAMETER_SETS.into_iter();
        sets.find(|set| set.algorithm == algorithm)
    }

    pub(super) fn from_oid(oid: ObjectIdentifier) -> Option<Self> {
        PARAMETER_SETS.into_iter().find(|set| set.oid == oid)
    }

    /// Returns the AlgorithmIdentifier, whose parameters must be absent (RFC 9881, 2).
    fn identifier(self) -> AlgorithmIdentifierRef<'static> {
        AlgorithmIdentifierRef {
            oid: self.oid,
            parameters: None,
        }
    }

    pub(super) fn generate(self) -> Result<PrivateKey, KeyError> {
        let mut seed = Zeroizing::new([0; SEED_BYTES]);
        getrandom::fill(&mut *seed).map_err(|error| KeyError::Generation(error.to_string()))?;
        self.key_of(&*seed)
    }

    /// Reads the content of the OCTET STRING in a PKCS#8 key. Only the seed alone is accepted: Go reads no other form.
    pub(super) fn read(self, content: &[u8]) -> Result<PrivateKey, KeyError> {
        match content.strip_prefix(&SEED_HEADER) {
            Some(seed) if seed.len() == SEED_BYTES => self.key_of(seed),
            _ => Err(KeyError::NotSeed(self.algorithm)),
        }
    }

    fn key_of(self, seed: &[u8]) -> Result<PrivateKey, KeyError> {
        let unusable = || KeyError::Damaged("not an ML-DSA seed");
        let pair = PqdsaKeyPair::from_seed(self.signing, seed).map_err(|_| unusable())?;
        let content = Zeroizing::new([&SEED_HEADER, seed].concat());
        let content = OctetStringRef::new(&content).map_err(|_| unusable())?;
        let info = PrivateKeyInfoRef::new(self.identifier(), content);
        let der = Zeroizing::new(info.to_der().map_err(|_| unusable())?);
        let public = PublicKey::from_parts(
            self.identifier(),
            pair.public_key().as_ref(),
            KeyType::Known(self.algorithm),
        )?;
        Ok(PrivateKey::new(der, KeySigner::MlDsa(pair), public))
    }
}

/// Returns the length of a raw public key of this algorithm, from the content of its object identifier.
pub(in crate::x509) fn public_key_bytes(oid: &[u8]) -> Option<usize> {
    let mut sets = PARAMETER_SETS.iter();
    let set = sets.find(|set| set.oid.as_bytes() == oid)?;
    Some(set.public_key_bytes)
}

/// Signs with the empty context, as certificates do (RFC 9881, 3).
pub(super) fn sign(pair: &PqdsaKeyPair, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
    let mut signature = vec![0; pair.algorithm().signature_len()];
    let length = pair
        .sign(message, &mut signature)
        .map_err(|_| rcgen::Error::RemoteKeyError)?;
    signature.truncate(length);
    Ok(signature)
}

#[cfg(test)]
mod tests {
    use rcgen::SigningKey as _;
    use rustls_pki_types::alg_id;

    use super::*;
    use crate::x509::pem::encode_pem;
    use crate::x509::signature::has_signature_of;

    #[test]
    fn signs_with_each_parameter_set() {
        let algorithms = [alg_id::ML_DSA_44, alg_id::ML_DSA_65, alg_id::ML_DSA_87];
        for (set, algorithm) in PARAMETER_SETS.into_iter().zip(algorithms) {
            let key = set.generate().unwrap();
            assert_eq!(key.public_key().raw.len(), set.public_key_bytes);
            let signature = key.sign(b"message").unwrap();
            let verifies = |message: &[u8]| {
                has_signature_of(key.public_key(), algorithm.as_ref(), message, &signature)
            };
            assert!(verifies(b"message") && !verifies(b"another"));
        }
    }

    /// The example of RFC 9881, appendix C.1.1.1: the seed 00 01 … 1f.
    #[test]
    fn reads_and_writes_seed_as_in_rfc_9881() {
        let text = "-----BEGIN PRIVATE KEY-----\nMDQCAQAwCwYJYIZIAWUDBAMRBCKAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZ\nGhscHR4f\n-----END PRIVATE KEY-----\n";
        let key = PrivateKey::from_pem(text.as_bytes()).unwrap();
        assert_eq!(*key.key_type(), KeyType::Known(KeyAlgorithm::MlDsa44));
        assert_eq!(*key.to_pem(), text);
    }

    #[test]
    fn refuses_keys_that_are_not_a_seed_alone() {
        for content in [
            &[][..],
            // Both forms, and the expanded form.
            &[0x30, 0x82],
            &[0x04, 0x82],
            &[&SEED_HEADER[..], &[1; 31]].concat(),
            &[&SEED_HEADER[..], &[1; 33]].concat(),
        ] {
            for set in PARAMETER_SETS {
                let info =
                    PrivateKeyInfoRef::new(set.identifier(), OctetStringRef::new(content).unwrap());
                let pem = encode_pem("PRIVATE KEY", &info.to_der().unwrap());
                let error = PrivateKey::from_pem(pem.as_bytes())
                    .unwrap_err()
                    .to_string();
                let words = format!(
                    "the {} private key is not in the form of a seed alone, the only one that Go reads; convert it: openssl pkey",
                    set.algorithm
                );
                assert!(error.starts_with(&words), "{error}");
            }
        }
    }

    #[test]
    fn keeps_seed_through_encryption() {
        let key = PARAMETER_SETS[1].generate().unwrap();
        let encrypted = key.to_encrypted_pem(b"passphrase").unwrap();
        let read = PrivateKey::all_from_encrypted_pem(encrypted.as_bytes(), b"passphrase").unwrap();
        assert_eq!(read[0].to_pem(), key.to_pem());
    }
}
