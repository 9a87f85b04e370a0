//! The content of a SubjectPublicKeyInfo. Go: `parsePublicKey`.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ECDSA_P521_SHA512_ASN1, ParsedPublicKey,
    VerificationAlgorithm,
};

use super::{NOT_DER, Result, algorithm, field};
use crate::x509::der::{DerReader, oid_text, tag};
use crate::x509::key::ml_dsa;
use crate::x509::memory::Memory;

pub(super) const OID_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
pub(super) const OID_EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const OID_DSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1];
const OID_X25519: &[u8] = &[0x2b, 0x65, 0x6e];
pub(super) const OID_ED25519: &[u8] = &[0x2b, 0x65, 0x70];
pub(super) const OID_P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const OID_P384: &[u8] = &[0x2b, 0x81, 4, 0, 34];
const OID_P521: &[u8] = &[0x2b, 0x81, 4, 0, 35];
const NULL: &[u8] = &[5, 0];
const NO_PARAMETERS: &str = "it has parameters, which its algorithm does not allow";

/// Verifies the content of a SubjectPublicKeyInfo. Returns the reason if its key cannot verify signatures. Go:
/// `parsePublicKey`.
pub(in crate::x509) fn public_key(content: &[u8]) -> Result<Option<&'static str>> {
    let wrong = |problem: &str| field("public key", problem);
    let mut reader = DerReader::new(content);
    let identifier = reader
        .read(tag::SEQUENCE)
        .ok_or_else(|| wrong(NOT_DER))?
        .rest();
    let (oid, parameters) = algorithm(identifier).ok_or_else(|| wrong(NOT_DER))?;
    let (key, unused) = reader
        .bits()
        .ok_or_else(|| wrong("it is not a BIT STRING"))?;
    reader.end().ok_or_else(|| wrong(NOT_DER))?;
    if unused != 0 {
        return Err(wrong("its last byte is not complete"));
    }
    match oid {
        OID_RSA => {
            // RFC 3279, 2.3.1
            if parameters != NULL {
                return Err(wrong("the parameters of an RSA key are not NULL"));
            }
            rsa_key(key)
        }
        OID_EC => ec_key(parameters, key),
        OID_ED25519 | OID_X25519 => {
            // RFC 8410, 3
            if !parameters.is_empty() {
                return Err(wrong(NO_PARAMETERS));
            }
            if key.len() != 32 {
                return Err(wrong("it does not have 32 bytes"));
            }
            Ok(None)
        }
        OID_DSA => dsa_key(parameters, key),
        other => match ml_dsa::public_key_bytes(other) {
            Some(bytes) => ml_dsa_key(parameters, key, bytes),
            // Go accepts the certificate, but cannot use the key.
            None => Ok(Some("its algorithm is unknown to Go")),
        },
    }
}

/// RFC 9881, 2 and 4. Go since 1.27.
fn ml_dsa_key(parameters: &[u8], key: &[u8], bytes: usize) -> Result<Option<&'static str>> {
    let wrong = |problem: &str| field("public key", problem);
    if !parameters.is_empty() {
        return Err(wrong(NO_PARAMETERS));
    }
    if key.len() != bytes {
        return Err(wrong(&format!("it does not have {bytes} bytes")));
    }
    Ok(None)
}

/// Points that are on their curves.
static POINTS: Memory = Memory::new();

fn ec_key(parameters: &[u8], point: &[u8]) -> Result<Option<&'static str>> {
    let wrong = |problem: &str| field("public key", problem);
    let curve: &'static dyn VerificationAlgorithm = match DerReader::new(parameters).oid() {
        Some(OID_P256) => &ECDSA_P256_SHA256_ASN1,
        Some(OID_P384) => &ECDSA_P384_SHA384_ASN1,
        Some(OID_P521) => &ECDSA_P521_SHA512_ASN1,
        Some(other) => {
            return Err(wrong(&format!(
                "its curve {} is not P-256, P-384 or P-521",
                oid_text(other)
            )));
        }
        None => return Err(wrong("it does not name its curve")),
    };
    let is_on_curve = POINTS.verify_once(&[parameters, point], || {
        ParsedPublicKey::new(curve, point).map(drop)
    });
    // Go does not support compressed points.
    if point.first() != Some(&4) || is_on_curve.is_err() {
        return Err(wrong("it is not an uncompressed point of its curve"));
    }
    Ok(None)
}

fn dsa_key(parameters: &[u8], key: &[u8]) -> Result<Option<&'static str>> {
    let wrong = |problem: &str| field("public key", problem);
    let mut numbers = DerReader::new(parameters)
        .read(tag::SEQUENCE)
        .ok_or_else(|| wrong("the parameters of a DSA key are not DER"))?;
    let found = [
        DerReader::new(key).integer(),
        numbers.integer(),
        numbers.integer(),
        numbers.integer(),
    ];
    let is_valid = |number: &Option<&[u8]>| number.is_some_and(is_positive);
    if found.iter().all(is_valid) {
        Ok(Some("Go does not verify DSA"))
    } else {
        Err(wrong("a number of the DSA key is not positive"))
    }
}

fn is_positive(number: &[u8]) -> bool {
    number.first().is_some_and(|first| first & 0x80 == 0) && number.iter().any(|byte| *byte != 0)
}

/// Go: `parsePublicKey`, and `checkPublicKey` of `crypto/internal/fips140/rsa` for unusable keys.
fn rsa_key(pkcs1: &[u8]) -> Result<Option<&'static str>> {
    let wrong = |problem: &str| field("public key", problem);
    let mut reader = DerReader::new(pkcs1);
    let mut numbers = reader
        .read(tag::SEQUENCE)
        .ok_or_else(|| wrong("it is not an RSAPublicKey"))?;
    reader
        .end()
        .ok_or_else(|| wrong("bytes follow the RSAPublicKey"))?;
    let modulus = numbers
        .integer()
        .filter(|number| is_positive(number))
        .ok_or_else(|| wrong("its RSA modulus is not a positive INTEGER"))?;
    let exponent = numbers
        .unsigned()
        .filter(|number| *number > 0)
        .ok_or_else(|| wrong("its RSA exponent is not a positive INTEGER of 63 bits"))?;
    numbers
        .end()
        .ok_or_else(|| wrong("numbers follow the RSA exponent"))?;
    Ok(if modulus.last().is_some_and(|last| last & 1 == 0) {
        Some("its RSA modulus is even")
    } else if exponent < 3 || exponent & 1 == 0 || exponent > (1 << 31) - 1 {
        Some("its RSA exponent is even, smaller than 3 or larger than 2147483647")
    } else {
        None
    })
}
