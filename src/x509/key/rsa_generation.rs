//! Generation of RSA keys.
//!
//! graviola's big numbers are verified assembly, which needs some 0.7 of the CPU time of Go's generator. It runs on
//! processors with AVX2 and ADX (since 2014), or Arm's cryptography extension; the `rsa` crate generates on all others.

use graviola::signing::rsa::{KeySize, SigningKey};
use rsa::pkcs1::EncodeRsaPrivateKey;
use zeroize::Zeroizing;

use super::KeyError;

/// Longer than the PKCS#1 form of a key of 4,096 bits: nine numbers that together have 4.5 times the bits of the modulus.
const MAX_PKCS1_BYTES: usize = 4096;

/// Generates a key and returns it as PKCS#1 `RSAPrivateKey`.
pub(super) fn generate(bits: usize) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    if graviola::util::is_cpu_supported() {
        by_graviola(bits)
    } else {
        by_rsa_crate(bits)
    }
}

fn by_graviola(bits: usize) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let failed = |error| KeyError::Generation(format!("graviola: {error}"));
    let size = KeySize::try_from(bits).map_err(failed)?;
    let key = SigningKey::generate(size).map_err(failed)?;
    let mut buffer = Zeroizing::new(vec![0; MAX_PKCS1_BYTES]);
    let der = key.to_pkcs1_der(&mut buffer).map_err(failed)?;
    Ok(Zeroizing::new(der.to_vec()))
}

pub(super) fn by_rsa_crate(bits: usize) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let failed = |error: &dyn std::fmt::Display| KeyError::Generation(format!("rsa: {error}"));
    let key = rsa::PrivateKey::new(&mut getrandom::SysRng, bits).map_err(|error| failed(&error))?;
    let der = key.to_pkcs1_der().map_err(|error| failed(&error))?;
    Ok(Zeroizing::new(der.as_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use rsa::traits::{PrivateKeyParts, PublicKeyParts};
    use rsa::{BoxedUint, pkcs1::DecodeRsaPrivateKey};

    use super::*;
    use crate::x509::PrivateKey;

    /// FIPS 186-5, A.1.1, A.1.2 and A.1.3: the primes have the two highest bits set, differ in their first 100 bits, and the
    /// private exponent is longer than half of the modulus.
    fn assert_conforms(der: &[u8], bits: u32) {
        let key = rsa::PrivateKey::from_pkcs1_der(der).unwrap();
        let half = bits / 2;
        assert_eq!(key.n().bit_width(), bits);
        assert_eq!(*key.e(), BoxedUint::from(65_537_u32));
        assert!(key.d().bit_width() > half);
        let [p, q] = key.primes() else {
            panic!("{} primes", key.primes().len())
        };
        for prime in [p, q] {
            assert_eq!(prime.bit_width(), half);
            assert!(bool::from(prime.bit(half - 2)));
        }
        let (more, less) = if p > q { (p, q) } else { (q, p) };
        assert!(more.wrapping_sub(less.as_ref()).bit_width() > half - 100);
    }

    #[test]
    fn generates_conforming_keys_on_every_processor() {
        for generator in [by_graviola, by_rsa_crate] {
            for bits in [2048, 3072] {
                let der = generator(bits as usize).unwrap();
                assert_conforms(&der, bits);
                PrivateKey::from_rsa_der(der).unwrap();
            }
        }
    }

    #[test]
    fn has_room_for_longest_key() {
        let der = by_graviola(4096).unwrap();
        assert_conforms(&der, 4096);
    }
}
