//! A test of the random source, the key generation and the signatures of this machine.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rcgen::SigningKey;
use rustls_pki_types::alg_id::ECDSA_SHA256;

use super::key::{KeyAlgorithm, KeyError, PrivateKey};
use super::signature::has_signature_of;

const MESSAGE: &[u8] = b"nodepki self-test";
/// Bytes of one random value.
const RANDOM_BYTES: usize = 32;

/// A failed part of the self-test.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum SelfTestError {
    #[error("the random source fails")]
    RandomSource,
    #[error("the random source returned the same {RANDOM_BYTES} bytes twice")]
    RepeatedBytes,
    #[error("key generation: {0}")]
    Key(#[from] KeyError),
    #[error("key generation returned the same key twice")]
    RepeatedKey,
    #[error("signing fails")]
    Signing,
    #[error("the signature of a message does not verify, or verifies another message too")]
    Signature,
}

/// Generates two keys, signs with one of them and verifies the signature. Takes less than a millisecond: ECDSA-P256 stands
/// for all algorithms, as the search for the primes of an RSA key takes much longer.
///
/// # Errors
/// The first part that fails. No key of this process can be trusted then.
pub fn self_test() -> Result<(), SelfTestError> {
    let random = SystemRandom::new();
    let mut values = [[0_u8; RANDOM_BYTES]; 2];
    for value in &mut values {
        random
            .fill(value)
            .map_err(|_| SelfTestError::RandomSource)?;
    }
    distinct(&values)?;
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256)?;
    let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256)?;
    if key.public_key() == other.public_key() {
        return Err(SelfTestError::RepeatedKey);
    }
    let signature = key.sign(MESSAGE).map_err(|_| SelfTestError::Signing)?;
    require_signature(&key, &signature)
}

fn distinct(values: &[[u8; RANDOM_BYTES]; 2]) -> Result<(), SelfTestError> {
    if values[0] == values[1] {
        Err(SelfTestError::RepeatedBytes)
    } else {
        Ok(())
    }
}

fn require_signature(key: &PrivateKey, signature: &[u8]) -> Result<(), SelfTestError> {
    let verifies = |message| {
        let public = key.public_key();
        has_signature_of(public, ECDSA_SHA256.as_ref(), message, signature)
    };
    if verifies(MESSAGE) && !verifies(b"another message") {
        Ok(())
    } else {
        Err(SelfTestError::Signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_on_working_machine() {
        self_test().unwrap();
    }

    #[test]
    fn detects_repeated_bytes_and_wrong_signature() {
        assert_eq!(
            distinct(&[[7; RANDOM_BYTES]; 2]).unwrap_err().to_string(),
            "the random source returned the same 32 bytes twice"
        );
        let [key, other] =
            [(), ()].map(|()| PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap());
        let signature = other.sign(MESSAGE).unwrap();
        assert!(require_signature(&other, &signature).is_ok());
        assert_eq!(
            require_signature(&key, &signature).unwrap_err().to_string(),
            "the signature of a message does not verify, or verifies another message too"
        );
        assert!(require_signature(&key, &[]).is_err());
    }
}
