//! JSON Web Keys (RFC 7517), their thumbprints (RFC 7638), and JSON Web Signatures (RFC 7518, 3; RFC 9964 for ML-DSA).

use std::borrow::Cow;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use p256::pkcs8::der::asn1::UintRef;
use p256::pkcs8::der::{Decode, Encode};
use rsa::pkcs1::RsaPrivateKeyRef;
use sec1::EcPrivateKey;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{Curve, KeyAlgorithm, KeyError, KeySigner, KeyType, PrivateKey, PublicKey};
use crate::text::printable;

/// The reason why a text is not a usable private key. It never contains key material.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum JwkError {
    #[error("it is neither a JSON Web Key nor a PEM private key")]
    NotAKey,
    #[error("it is an encrypted key (a JWE), which nodepki cannot decrypt")]
    Encrypted,
    #[error("it is a public key; the private one is needed")]
    Public,
    #[error(
        "a JSON Web Key of type {0} is not supported; use RSA, or EC with P-256, P-384 or P-521"
    )]
    Unsupported(String),
    #[error("the JSON Web Key is damaged: {0}")]
    Damaged(&'static str),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The members of a JSON Web Key, borrowed from its text so that the secret ones are not copied.
#[derive(Deserialize)]
struct Jwk<'a> {
    #[serde(borrow)]
    kty: Option<Cow<'a, str>>,
    #[serde(borrow)]
    kid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    crv: Option<Cow<'a, str>>,
    #[serde(borrow)]
    ciphertext: Option<Cow<'a, str>>,
    #[serde(borrow)]
    d: Option<Cow<'a, str>>,
    #[serde(borrow)]
    x: Option<Cow<'a, str>>,
    #[serde(borrow)]
    y: Option<Cow<'a, str>>,
    #[serde(borrow)]
    n: Option<Cow<'a, str>>,
    #[serde(borrow)]
    e: Option<Cow<'a, str>>,
    #[serde(borrow)]
    p: Option<Cow<'a, str>>,
    #[serde(borrow)]
    q: Option<Cow<'a, str>>,
    #[serde(borrow)]
    dp: Option<Cow<'a, str>>,
    #[serde(borrow)]
    dq: Option<Cow<'a, str>>,
    #[serde(borrow)]
    qi: Option<Cow<'a, str>>,
}

impl PrivateKey {
    /// Reads a private key from a JSON Web Key or PEM. Also returns the key id of a JSON Web Key, if it has one.
    pub(crate) fn from_jwk_or_pem(text: &str) -> Result<(Self, Option<String>), JwkError> {
        let text = text.trim();
        if text.contains("-----BEGIN ") {
            return Ok((Self::from_pem(text.as_bytes())?, None));
        }
        // The compact form of RFC 7516, 3.1; its header is a JSON object.
        if text.starts_with("eyJ") && text.split('.').count() == 5 {
            return Err(JwkError::Encrypted);
        }
        let jwk: Jwk<'_> = serde_json::from_str(text).map_err(|_| JwkError::NotAKey)?;
        if jwk.ciphertext.is_some() {
            return Err(JwkError::Encrypted);
        }
        let key = match jwk.kty.as_deref() {
            None => return Err(JwkError::NotAKey),
            Some("EC") => read_ec(&jwk)?,
            Some("RSA") => read_rsa(&jwk)?,
            Some(other) => {
                return Err(JwkError::Unsupported(printable(other)));
            }
        };
        Ok((key, jwk.kid.map(Cow::into_owned)))
    }

    /// Returns the `alg` of signatures by this key (RFC 7518, 3.1).
    pub fn jws_algorithm(&self) -> &'static str {
        match self.key_type() {
            KeyType::Known(KeyAlgorithm::EcdsaP256) => "ES256",
            KeyType::Known(KeyAlgorithm::EcdsaP384) => "ES384",
            KeyType::Known(KeyAlgorithm::EcdsaP521) => "ES512",
            KeyType::Known(algorithm) if algorithm.is_ml_dsa() => algorithm.as_str(),
            _ => "RS256",
        }
    }

    /// Signs with the algorithm of [`PrivateKey::jws_algorithm`]. An ECDSA signature is both numbers in full length, one
    /// after the other.
    pub fn sign_jws(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let fixed = match self.key_type() {
            KeyType::Known(KeyAlgorithm::EcdsaP256) => &ECDSA_P256_SHA256_FIXED_SIGNING,
            KeyType::Known(KeyAlgorithm::EcdsaP384) => &ECDSA_P384_SHA384_FIXED_SIGNING,
            KeyType::Known(KeyAlgorithm::EcdsaP521) => &ECDSA_P521_SHA512_FIXED_SIGNING,
            _ => {
                debug_assert!(!matches!(*self.signer, KeySigner::Ecdsa(_)));
                return rcgen::SigningKey::sign(self, message).map_err(|_| KeyError::Signing);
            }
        };
        let parts = EcPrivateKey::from_der(&self.der).map_err(|_| KeyError::Signing)?;
        let public = parts.public_key.ok_or(KeyError::Signing)?;
        let pair = EcdsaKeyPair::from_private_key_and_public_key(fixed, parts.private_key, public)
            .map_err(|_| KeyError::Signing)?;
        let signature = pair
            .sign(&SystemRandom::new(), message)
            .map_err(|_| KeyError::Signing)?;
        Ok(signature.as_ref().to_vec())
    }
}

impl PublicKey {
    /// Returns the members that identify this key, in the order of RFC 7638; `None` for unsupported types.
    pub fn jwk_members(&self) -> Option<Vec<(&'static str, String)>> {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let curve = match self.key_type {
            KeyType::Known(KeyAlgorithm::EcdsaP256) => "P-256",
            KeyType::Known(KeyAlgorithm::EcdsaP384) => "P-384",
            KeyType::Known(KeyAlgorithm::EcdsaP521) => "P-521",
            KeyType::Known(algorithm) if algorithm.is_ml_dsa() => {
                return Some(vec![
                    ("alg", algorithm.as_str().to_owned()),
                    ("kty", "AKP".to_owned()),
                    ("pub", encode(&self.raw)),
                ]);
            }
            KeyType::Known(_) | KeyType::Rsa(_) => {
                let key = rsa::pkcs1::RsaPublicKeyRef::try_from(self.raw.as_slice()).ok()?;
                return Some(vec![
                    ("e", encode(key.public_exponent.as_bytes())),
                    ("kty", "RSA".to_owned()),
                    ("n", encode(key.modulus.as_bytes())),
                ]);
            }
            KeyType::Other(_) => return None,
        };
        // SEC1, 2.3.3: the byte 4, then both coordinates in full length.
        let point = self.raw.strip_prefix(&[4])?;
        let (x, y) = point.split_at_checked(point.len() / 2)?;
        Some(vec![
            ("crv", curve.to_owned()),
            ("kty", "EC".to_owned()),
            ("x", encode(x)),
            ("y", encode(y)),
        ])
    }

    /// Returns the thumbprint of RFC 7638 with SHA-256, in base64url.
    pub(crate) fn jwk_thumbprint(&self) -> Option<String> {
        let members: Vec<String> = self
            .jwk_members()?
            .iter()
            // Neither the names nor base64url contain characters to escape.
            .map(|(name, value)| format!("\"{name}\":\"{value}\""))
            .collect();
        let canonical = format!("{{{}}}", members.join(","));
        Some(URL_SAFE_NO_PAD.encode(Sha256::digest(canonical)))
    }
}

fn read_ec(jwk: &Jwk<'_>) -> Result<PrivateKey, JwkError> {
    let curve = match jwk.crv.as_deref() {
        Some("P-256") => Curve::P256,
        Some("P-384") => Curve::P384,
        Some("P-521") => Curve::P521,
        other => {
            let named = other.map_or_else(String::new, |name| format!(" {}", printable(name)));
            return Err(JwkError::Unsupported(format!("EC{named}")));
        }
    };
    let scalar = bytes(jwk.d.as_deref())?.ok_or(JwkError::Public)?;
    let point = match (bytes(jwk.x.as_deref())?, bytes(jwk.y.as_deref())?) {
        (Some(x), Some(y)) => {
            let damaged = JwkError::Damaged("x or y is too long for its curve");
            let (Some(x), Some(y)) = (curve.pad(&x), curve.pad(&y)) else {
                return Err(damaged);
            };
            Some([&[4][..], &x, &y].concat())
        }
        _ => None,
    };
    Ok(PrivateKey::from_ec_scalar(
        curve,
        &scalar,
        point.as_deref(),
    )?)
}

fn read_rsa(jwk: &Jwk<'_>) -> Result<PrivateKey, JwkError> {
    let d = bytes(jwk.d.as_deref())?.ok_or(JwkError::Public)?;
    let part = |text: &Option<Cow<'_, str>>| {
        bytes(text.as_deref())?.ok_or(JwkError::Damaged(
            "one of n, e, p, q, dp, dq, qi is missing",
        ))
    };
    let (n, e, p, q) = (part(&jwk.n)?, part(&jwk.e)?, part(&jwk.p)?, part(&jwk.q)?);
    let (dp, dq, qi) = (part(&jwk.dp)?, part(&jwk.dq)?, part(&jwk.qi)?);
    fn number(bytes: &[u8]) -> Result<UintRef<'_>, JwkError> {
        UintRef::new(bytes).map_err(|_| JwkError::Damaged("one of its numbers is not valid"))
    }
    let key = RsaPrivateKeyRef {
        modulus: number(&n)?,
        public_exponent: number(&e)?,
        private_exponent: number(&d)?,
        prime1: number(&p)?,
        prime2: number(&q)?,
        exponent1: number(&dp)?,
        exponent2: number(&dq)?,
        coefficient: number(&qi)?,
        other_prime_infos: None,
    };
    let der = key
        .to_der()
        .map_err(|_| JwkError::Damaged("its numbers cannot be encoded"))?;
    Ok(PrivateKey::from_rsa_der(Zeroizing::new(der))?)
}

fn bytes(text: Option<&str>) -> Result<Option<Zeroizing<Vec<u8>>>, JwkError> {
    text.map(|text| {
        URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map(Zeroizing::new)
            .map_err(|_| JwkError::Damaged("a part of it is not base64url"))
    })
    .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7517, A.2.
    const EC_KEY: &str = r#"{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM","d":"870MB6gfuTJ4HtUnUvYMyJpr5eUZNP4Bk43bVdj3eAE","use":"enc","kid":"1"}"#;

    /// RFC 7638, 3.1.
    const RSA_N: &str = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";

    #[test]
    fn reads_ec_key_and_signs() {
        let (key, kid) = PrivateKey::from_jwk_or_pem(EC_KEY).unwrap();
        assert_eq!(kid.as_deref(), Some("1"));
        assert_eq!(key.jws_algorithm(), "ES256");
        let members = key.public_key().jwk_members().unwrap();
        assert_eq!(
            members[2],
            (
                "x",
                "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4".to_owned()
            )
        );
        let signature = key.sign_jws(b"message").unwrap();
        assert_eq!(signature.len(), 64);
        let verifier = aws_lc_rs::signature::UnparsedPublicKey::new(
            &aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED,
            &key.public_key().raw,
        );
        verifier.verify(b"message", &signature).unwrap();
        // The coordinates are optional, and PEM is accepted too.
        let bare =
            r#"{"kty":"EC","crv":"P-256","d":"870MB6gfuTJ4HtUnUvYMyJpr5eUZNP4Bk43bVdj3eAE"}"#;
        let (same, _) = PrivateKey::from_jwk_or_pem(bare).unwrap();
        assert_eq!(same.public_key(), key.public_key());
        let (same, kid) = PrivateKey::from_jwk_or_pem(&key.to_pem()).unwrap();
        assert_eq!((same.public_key(), kid), (key.public_key(), None));
    }

    #[test]
    fn signs_with_each_algorithm() {
        for (algorithm, alg, length) in [
            (KeyAlgorithm::EcdsaP384, "ES384", 96),
            (KeyAlgorithm::EcdsaP521, "ES512", 132),
            (KeyAlgorithm::Rsa2048, "RS256", 256),
        ] {
            let key = PrivateKey::generate(algorithm).unwrap();
            assert_eq!(key.jws_algorithm(), alg);
            assert_eq!(key.sign_jws(b"x").unwrap().len(), length, "{algorithm}");
        }
    }

    #[test]
    fn reads_rsa_key() {
        let key = PrivateKey::generate(KeyAlgorithm::Rsa2048).unwrap();
        let parts = RsaPrivateKeyRef::try_from(key.der.as_slice()).unwrap();
        let text = |number: &UintRef<'_>| URL_SAFE_NO_PAD.encode(number.as_bytes());
        let jwk = serde_json::json!({
            "kty": "RSA", "n": text(&parts.modulus), "e": text(&parts.public_exponent),
            "d": text(&parts.private_exponent), "p": text(&parts.prime1), "q": text(&parts.prime2),
            "dp": text(&parts.exponent1), "dq": text(&parts.exponent2), "qi": text(&parts.coefficient),
        });
        let (again, _) = PrivateKey::from_jwk_or_pem(&jwk.to_string()).unwrap();
        assert_eq!(again.public_key(), key.public_key());
        assert_eq!(again.to_pem(), key.to_pem());
    }

    #[test]
    fn computes_thumbprint_of_rfc_example() {
        let raw = rsa::pkcs1::RsaPublicKeyRef {
            modulus: UintRef::new(&URL_SAFE_NO_PAD.decode(RSA_N).unwrap()).unwrap(),
            public_exponent: UintRef::new(&[1, 0, 1]).unwrap(),
        }
        .to_der()
        .unwrap();
        let key = PublicKey::from_rsa_pkcs1(&raw, KeyType::Known(KeyAlgorithm::Rsa2048)).unwrap();
        assert_eq!(
            key.jwk_thumbprint().as_deref(),
            Some("NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs")
        );
    }

    #[test]
    fn reports_text_that_is_not_a_private_key() {
        let jwe = "eyJhbGciOiJQQkVTMi1IUzI1NitBMTI4S1cifQ.a.b.c.d";
        for (text, words) in [
            (
                jwe,
                "it is an encrypted key (a JWE), which nodepki cannot decrypt",
            ),
            (
                r#"{"protected":"x","ciphertext":"y"}"#,
                "it is an encrypted key (a JWE)",
            ),
            (
                r#"{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}"#,
                "it is a public key; the private one is needed",
            ),
            (
                r#"{"kty":"OKP","crv":"Ed25519","d":"AA"}"#,
                "a JSON Web Key of type OKP is not supported",
            ),
            (r#"{"kty":"EC","crv":"secp256k1","d":"AA"}"#, "EC secp256k1"),
            (
                r#"{"kty":"EC","crv":"P-256","d":"!"}"#,
                "the JSON Web Key is damaged: a part of it is not base64url",
            ),
            (r#"{"kty":"EC","crv":"P-256","d":"AA"}"#, "out of range"),
            (r#"{"kty":"RSA","d":"AA"}"#, "missing"),
            (
                "secret text",
                "it is neither a JSON Web Key nor a PEM private key",
            ),
        ] {
            let error = PrivateKey::from_jwk_or_pem(text).err().unwrap().to_string();
            assert!(error.contains(words), "{text}: {error}");
            assert!(!error.contains("secret text"), "{error}");
        }
    }
}
