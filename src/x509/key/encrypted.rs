//! Private keys encrypted with a passphrase: PKCS#8 with PBES2 (RFC 5958, RFC 8018), the form of `openssl pkey`.

use pkcs8::der::asn1::{AnyRef, OctetStringRef};
use pkcs8::der::{Decode, Encode};
use pkcs8::pkcs5;
use pkcs8::pkcs5::pbes2::{Kdf, Parameters};
use pkcs8::{AlgorithmIdentifierRef, EncryptedPrivateKeyInfoRef, PrivateKeyInfoRef};
use zeroize::Zeroizing;

use super::{Curve, KeyError, KeySigner, KeyType, OID_EC, OID_RSA, PrivateKey};
use crate::x509::pem::{encode_pem, pem_blocks};

const LABEL: &str = "ENCRYPTED PRIVATE KEY";
/// Iterations of PBKDF2, which take half a second of CPU time. scrypt is more resistant to guessing, but less widely
/// supported.
const PBKDF2_ITERATIONS: u32 = 600_000;
/// Most work that a key from outside may demand: iterations of PBKDF2 (about ten seconds of CPU time), and bytes that scrypt
/// mixes, all of which it may hold in memory. OpenSSL writes 2048 iterations, and 16 MiB.
const MAX_PBKDF2_ITERATIONS: u32 = 10_000_000;
const MAX_SCRYPT_BYTES: u64 = 256 << 20;
/// Block length of AES in bytes; padding adds at most one block.
const AES_BLOCK_BYTES: usize = 16;

impl PrivateKey {
    /// Encodes an `ENCRYPTED PRIVATE KEY`: PBKDF2 with HMAC-SHA256, then AES-256-CBC. Takes half a second.
    pub(crate) fn to_encrypted_pem(&self, passphrase: &[u8]) -> Result<String, KeyError> {
        let (mut salt, mut iv) = ([0; 16], [0; AES_BLOCK_BYTES]);
        for random in [&mut salt, &mut iv] {
            getrandom::fill(random).map_err(|error| KeyError::Generation(error.to_string()))?;
        }
        let plain = self.to_pkcs8_der()?;
        let mut buffer = Zeroizing::new(vec![0; plain.len() + AES_BLOCK_BYTES]);
        for (to, from) in buffer.iter_mut().zip(plain.iter()) {
            *to = *from;
        }
        let mut encrypt = || {
            let scheme =
                Parameters::generate_pbkdf2_sha256_aes256cbc(PBKDF2_ITERATIONS, &salt, iv)?;
            let encrypted = scheme.encrypt_in_place(passphrase, &mut buffer, plain.len())?;
            let info = EncryptedPrivateKeyInfoRef {
                encryption_algorithm: scheme.into(),
                encrypted_data: OctetStringRef::new(encrypted)
                    .map_err(|_| pkcs5::Error::EncryptFailed)?,
            };
            info.to_der().map_err(|_| pkcs5::Error::EncryptFailed)
        };
        let der = encrypt().map_err(|_| KeyError::Encryption)?;
        Ok(encode_pem(LABEL, &der))
    }

    /// Reads all `ENCRYPTED PRIVATE KEY` blocks of a text with one passphrase. Other content is ignored.
    pub(crate) fn all_from_encrypted_pem(
        text: &[u8],
        passphrase: &[u8],
    ) -> Result<Vec<Self>, KeyError> {
        let blocks = pem_blocks(text).map_err(KeyError::Pem)?;
        let encrypted = blocks.iter().filter(|block| block.tag() == LABEL);
        encrypted
            .map(|block| Self::from_encrypted_der(block.contents(), passphrase))
            .collect()
    }

    fn from_encrypted_der(der: &[u8], passphrase: &[u8]) -> Result<Self, KeyError> {
        let info = EncryptedPrivateKeyInfoRef::from_der(der)
            .map_err(|_| KeyError::Damaged("not a PKCS#8 EncryptedPrivateKeyInfo in PBES2"))?;
        if let Some(scheme) = info.encryption_algorithm.pbes2() {
            limit_work(&scheme.kdf)?;
        }
        let mut buffer = Zeroizing::new(info.encrypted_data.as_bytes().to_vec());
        let plain = info
            .encryption_algorithm
            .decrypt_in_place(passphrase, &mut buffer)
            .map_err(|error| match error {
                pkcs5::Error::DecryptFailed => KeyError::Passphrase,
                other => KeyError::Scheme(other.to_string()),
            })?;
        // One of 256 wrong passphrases results in valid padding.
        Self::from_pkcs8_der(plain).map_err(|error| match error {
            KeyError::Damaged(_) => KeyError::Passphrase,
            other => other,
        })
    }

    fn to_pkcs8_der(&self) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let unencodable = |_| KeyError::Damaged("the private key cannot be encoded as PKCS#8");
        if let KeySigner::MlDsa(_) = *self.signer {
            return Ok((*self.der).clone());
        }
        let curve = match self.key_type() {
            KeyType::Known(algorithm) => Curve::of(*algorithm).map(Curve::oid),
            _ => None,
        };
        let (oid, parameters): (_, AnyRef<'_>) = match &curve {
            Some(curve) => (OID_EC, curve.into()),
            None => (OID_RSA, AnyRef::NULL),
        };
        let algorithm = AlgorithmIdentifierRef {
            oid,
            parameters: Some(parameters),
        };
        let key = OctetStringRef::new(&self.der).map_err(unencodable)?;
        let info = PrivateKeyInfoRef::new(algorithm, key);
        info.to_der().map(Zeroizing::new).map_err(unencodable)
    }
}

/// Refuses a key derivation that would take minutes, or more memory than a node has.
fn limit_work(kdf: &Kdf) -> Result<(), KeyError> {
    let excess = match kdf {
        Kdf::Pbkdf2(pbkdf2) if pbkdf2.iteration_count > MAX_PBKDF2_ITERATIONS => format!(
            "{} iterations of PBKDF2, at most {MAX_PBKDF2_ITERATIONS} are allowed",
            pbkdf2.iteration_count
        ),
        Kdf::Scrypt(scrypt) => {
            // RFC 7914, 5 and 6: N blocks of 128 r bytes, p times.
            let mixed = [
                scrypt.cost_parameter,
                128,
                scrypt.block_size.into(),
                scrypt.parallelization.into(),
            ];
            let bytes = mixed.into_iter().try_fold(1, u64::checked_mul);
            match bytes {
                Some(1..=MAX_SCRYPT_BYTES) => return Ok(()),
                // The decoder panics at a cost of zero.
                Some(0) => "scrypt over nothing".to_owned(),
                _ => format!("scrypt over more than {MAX_SCRYPT_BYTES} bytes"),
            }
        }
        _ => return Ok(()),
    };
    Err(KeyError::Scheme(format!(
        "its key derivation demands {excess}"
    )))
}

#[cfg(test)]
mod tests {
    use pkcs8::pkcs5::pbes2::{Pbkdf2Params, ScryptParams};

    use super::*;
    use crate::x509::KeyAlgorithm;

    /// Returns a key whose derivation has these parameters, without a valid ciphertext.
    fn demanding(kdf: Kdf) -> String {
        let scheme = Parameters::generate_pbkdf2_sha256_aes256cbc(1, &[0; 16], [0; 16]).unwrap();
        let scheme = Parameters { kdf, ..scheme };
        let info = EncryptedPrivateKeyInfoRef {
            encryption_algorithm: scheme.into(),
            encrypted_data: OctetStringRef::new(&[0; 32]).unwrap(),
        };
        encode_pem(LABEL, &info.to_der().unwrap())
    }

    #[test]
    fn refuses_key_derivation_that_takes_too_much_time_or_memory() {
        let mut pbkdf2 = Pbkdf2Params::hmac_sha256(1, &[0; 16]).unwrap();
        pbkdf2.iteration_count = u32::MAX;
        let usual = pkcs5::scrypt::Params::new(14, 8, 1).unwrap();
        let scrypt = |cost_parameter| {
            Kdf::Scrypt(ScryptParams {
                cost_parameter,
                ..ScryptParams::from_params_and_salt(usual, &[0; 16]).unwrap()
            })
        };
        for kdf in [Kdf::Pbkdf2(pbkdf2), scrypt(1 << 40), scrypt(0)] {
            let text = demanding(kdf);
            let error = PrivateKey::all_from_encrypted_pem(text.as_bytes(), b"x").unwrap_err();
            assert!(
                error.to_string().contains("its key derivation demands"),
                "{error}"
            );
        }
    }

    #[test]
    fn decrypts_each_algorithm_and_reports_wrong_passphrase() {
        for algorithm in KeyAlgorithm::ALL {
            let key = PrivateKey::generate(algorithm).unwrap();
            let pem = key.to_encrypted_pem(b"correct horse").unwrap();
            let text = format!("in front\n{pem}between\n{}", key.public_key().to_pem());
            let read =
                |passphrase: &[u8]| PrivateKey::all_from_encrypted_pem(text.as_bytes(), passphrase);
            let again = read(b"correct horse").unwrap();
            assert_eq!(again.len(), 1);
            assert_eq!(again[0].to_pem(), key.to_pem(), "{algorithm}");
            if algorithm == KeyAlgorithm::EcdsaP256 {
                for wrong in ["", "correct horse ", "battery"] {
                    let error = read(wrong.as_bytes()).unwrap_err();
                    assert!(matches!(error, KeyError::Passphrase), "{error}");
                }
                let twice = key.to_encrypted_pem(b"correct horse").unwrap();
                assert_ne!(pem, twice, "salt and IV are new each time");
            }
        }
    }

    #[test]
    fn reports_damaged_encryption_without_panic() {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let pem = key.to_encrypted_pem(b"x").unwrap();
        let der = pem::parse(&pem).unwrap().into_contents();
        for cut in 0..der.len() {
            let pem = encode_pem(LABEL, &der[..cut]);
            assert!(PrivateKey::all_from_encrypted_pem(pem.as_bytes(), b"x").is_err());
        }
        // PBES1 with MD5 and DES.
        let old = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMB8wGwYJKoZIhvcNAQUDMA4ECAECAwQFBgcIAgIIAAQA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let error = PrivateKey::all_from_encrypted_pem(old.as_bytes(), b"x").unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("the private key is encrypted with an unsupported scheme ("),
            "{error}"
        );
    }
}
