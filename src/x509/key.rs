//! Private and public keys: generation, the PEM forms that kubeadm reads and writes, and signing.
//!
//! aws-lc-rs makes all signatures and all keys but those of RSA. A private key is stored as DER that is wiped on drop, and
//! `Debug` omits it.

mod algorithm;
mod curve;
mod encrypted;
mod jwk;
pub(super) mod ml_dsa;
mod rsa_generation;

use std::fmt;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::encoding::{AsBigEndian, EcPrivateKeyBin};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self, EcdsaKeyPair, KeyPair, PqdsaKeyPair, RsaKeyPair};
use p256::elliptic_curve::bigint::{CheckedSub, ConcatenatingMul};
use pkcs8::der::asn1::{AnyRef, BitStringRef, ObjectIdentifier, UintRef};
use pkcs8::der::{Decode, Encode};
use pkcs8::{AlgorithmIdentifierRef, PrivateKeyInfoRef, SubjectPublicKeyInfoRef};
use rsa::BoxedUint;
use rsa::pkcs1::RsaPrivateKeyRef;
use sec1::{EcParameters, EcPrivateKey};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use super::blocks;
use super::pem::{encode_pem, pem_blocks};
use crate::text::hex;

use algorithm::rsa_type_of;
pub use algorithm::{KeyAlgorithm, KeyFamily, KeyType, UnknownAlgorithm};
use curve::Curve;
pub use jwk::JwkError;
use ml_dsa::ParameterSet;

/// Shortest RSA key that Go accepts (`checkKeySize` in crypto/rsa).
const MIN_RSA_BITS: usize = 1024;
/// Shortest and longest RSA key with which AWS-LC signs.
const MIN_SIGNER_RSA_BITS: usize = 2048;
const MAX_RSA_BITS: usize = 8192;

/// The reason why a key could not be read, generated or used. It never contains key material.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum KeyError {
    #[error("it does not contain a PEM private key")]
    NoKey,
    #[error("it does not contain a PEM public key")]
    NoPublicKey,
    #[error("it contains {0}")]
    OtherContent(&'static str),
    #[error(
        "the private key is encrypted; Kubernetes components cannot read it, decrypt it first (openssl pkey -in KEY -out NEW)"
    )]
    Encrypted,
    #[error(
        "the private key is {0}, which kubeadm does not accept (neither RSA, ECDSA P-256, P-384 or P-521, nor ML-DSA)"
    )]
    Unsupported(String),
    #[error(
        "the private key is RSA with {bits} bits, and only keys of {least} to {MAX_RSA_BITS} bits can be used here"
    )]
    RsaLength { bits: usize, least: usize },
    #[error(
        "the {0} private key is not in the form of a seed alone, the only one that Go reads; convert it: openssl pkey -in KEY -provparam ml-dsa.output_formats=seed-only -out NEW"
    )]
    NotSeed(KeyAlgorithm),
    #[error("the private key is damaged: {0}")]
    Damaged(&'static str),
    #[error("the PEM text is damaged: {0}")]
    Pem(String),
    #[error("key generation failed: {0}")]
    Generation(String),
    #[error("signing failed")]
    Signing,
    #[error("the private key could not be encrypted")]
    Encryption,
    #[error("the private key was encrypted with another passphrase, or is damaged")]
    Passphrase,
    #[error(
        "the private key is encrypted with an unsupported scheme ({0}); encrypt it again: openssl pkey -in KEY -aes-256-cbc -out NEW"
    )]
    Scheme(String),
}

/// A private key. Clones share its memory, which is wiped when the last one is dropped.
#[derive(Clone)]
pub struct PrivateKey {
    /// PKCS#1 `RSAPrivateKey`, SEC1 `ECPrivateKey` with its named curve, or PKCS#8 with the seed of an ML-DSA key: the forms
    /// that kubeadm writes.
    der: Arc<Zeroizing<Vec<u8>>>,
    signer: Arc<KeySigner>,
    public: PublicKey,
}

enum KeySigner {
    /// Created by the first signature, since AWS-LC's check of a key takes longer than reading all files of a node.
    Rsa(OnceLock<RsaKeyPair>),
    Ecdsa(EcdsaKeyPair),
    MlDsa(PqdsaKeyPair),
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({}, redacted)", self.public.key_type)
    }
}

impl PrivateKey {
    /// Generates a key. RSA takes 30 ms to 1 s of CPU time, so it must not run on an async thread.
    pub fn generate(algorithm: KeyAlgorithm) -> Result<Self, KeyError> {
        if let Some(bits) = algorithm.rsa_bits() {
            return Self::from_rsa_der(rsa_generation::generate(bits)?);
        }
        if let Some(set) = ParameterSet::of(algorithm) {
            return set.generate();
        }
        let curve = Curve::of(algorithm).ok_or(KeyError::Damaged("no such curve"))?;
        let pair = EcdsaKeyPair::generate(curve.signing())
            .map_err(|_| KeyError::Generation("the EC key generator failed".to_owned()))?;
        let scalar: EcPrivateKeyBin<'_> = pair
            .private_key()
            .as_be_bytes()
            .map_err(|_| KeyError::Generation("the EC key has no scalar".to_owned()))?;
        Self::from_ec_scalar(curve, scalar.as_ref(), Some(pair.public_key().as_ref()))
    }

    /// Reads PKCS#1, SEC1 or PKCS#8 PEM. Like kubeadm, it uses the first private key and ignores other blocks, such as
    /// `EC PARAMETERS`, and text between the blocks. Go must find the same key first: `encoding/pem` ignores a block that it
    /// cannot decode, for example one that begins within a line.
    pub fn from_pem(text: &[u8]) -> Result<Self, KeyError> {
        let blocks = pem_blocks(text).map_err(KeyError::Pem)?;
        let first = blocks.iter().find(|block| is_private_key(block.tag()));
        let mut go = blocks::decode_all(text);
        let found_by_go = go.iter().find(|block| is_private_key(&block.label));
        let is_same =
            first.map(pem::Pem::contents) == found_by_go.map(|block| block.content.as_slice());
        go.iter_mut().for_each(|block| block.content.zeroize());
        if !is_same {
            return Err(KeyError::Damaged(
                "Go's PEM reader does not find it: BEGIN and END must be at the start of a line",
            ));
        }
        let mut keys = blocks.into_iter().filter_map(Self::from_block);
        keys.next().unwrap_or_else(|| Err(no_private_key(text)))
    }

    /// Reads all private keys of a text.
    ///
    /// # Errors
    /// A damaged key, or none.
    pub(crate) fn all_from_pem(text: &[u8]) -> Result<Vec<Self>, KeyError> {
        let blocks = pem_blocks(text).map_err(KeyError::Pem)?;
        let keys = blocks.into_iter().filter_map(Self::from_block);
        let keys: Vec<_> = keys.collect::<Result<_, _>>()?;
        if keys.is_empty() {
            Err(KeyError::NoKey)
        } else {
            Ok(keys)
        }
    }

    /// Reads a PEM block; `None` if it is not a private key.
    fn from_block(block: pem::Pem) -> Option<Result<Self, KeyError>> {
        let is_encrypted = block.headers().get("DEK-Info").is_some();
        let label = block.tag().to_owned();
        let der = Zeroizing::new(block.into_contents());
        Some(match label.as_str() {
            _ if is_encrypted => Err(KeyError::Encrypted),
            "RSA PRIVATE KEY" => Self::from_rsa_der(der),
            "EC PRIVATE KEY" => Self::from_sec1_der(&der, None),
            "PRIVATE KEY" => Self::from_pkcs8_der(&der),
            "ENCRYPTED PRIVATE KEY" => Err(KeyError::Encrypted),
            "DSA PRIVATE KEY" => Err(KeyError::Unsupported("DSA".to_owned())),
            _ => return None,
        })
    }

    fn from_pkcs8_der(der: &[u8]) -> Result<Self, KeyError> {
        let info = PrivateKeyInfoRef::from_der(der)
            .map_err(|_| KeyError::Damaged("not a PKCS#8 PrivateKeyInfo"))?;
        match info.algorithm.oid {
            OID_RSA => Self::from_rsa_der(Zeroizing::new(info.private_key.as_bytes().to_vec())),
            OID_EC => {
                let curve = info
                    .algorithm
                    .parameters_oid()
                    .ok()
                    .ok_or(KeyError::Damaged(
                        "the PKCS#8 EC key does not name its curve",
                    ))?;
                Self::from_sec1_der(info.private_key.as_bytes(), Some(curve))
            }
            OID_ED25519 => Err(KeyError::Unsupported("Ed25519".to_owned())),
            other => match ParameterSet::from_oid(other) {
                Some(set) => set.read(info.private_key.as_bytes()),
                None => Err(KeyError::Unsupported(format!("of algorithm {other}"))),
            },
        }
    }

    fn from_rsa_der(der: Zeroizing<Vec<u8>>) -> Result<Self, KeyError> {
        let damaged = || KeyError::Damaged("not a valid PKCS#1 RSAPrivateKey");
        let key = RsaPrivateKeyRef::try_from(der.as_slice()).map_err(|_| damaged())?;
        let bits = bit_length(key.modulus.as_bytes());
        require_rsa_length(bits, MIN_RSA_BITS)?;
        if !is_consistent(&key).unwrap_or(false) {
            return Err(damaged());
        }
        let public = key.public_key().to_der().map_err(|_| damaged())?;
        let public = PublicKey::from_rsa_pkcs1(&public, rsa_type_of(bits))?;
        Ok(Self::new(der, KeySigner::Rsa(OnceLock::new()), public))
    }

    fn from_sec1_der(
        der: &[u8],
        curve_outside: Option<ObjectIdentifier>,
    ) -> Result<Self, KeyError> {
        let key = EcPrivateKey::from_der(der)
            .map_err(|_| KeyError::Damaged("not a SEC1 ECPrivateKey"))?;
        let curve_oid = key
            .parameters
            .and_then(|parameters| parameters.named_curve())
            .or(curve_outside)
            .ok_or(KeyError::Damaged("the EC key does not name its curve"))?;
        let curve = Curve::from_oid(curve_oid)
            .ok_or_else(|| KeyError::Unsupported(format!("an EC key on curve {curve_oid}")))?;
        Self::from_ec_scalar(curve, key.private_key, key.public_key)
    }

    fn from_ec_scalar(
        curve: Curve,
        scalar: &[u8],
        public: Option<&[u8]>,
    ) -> Result<Self, KeyError> {
        let rejected =
            |_| KeyError::Damaged("the EC private key does not match its curve or its public key");
        let unencodable = |_| KeyError::Damaged("the EC private key cannot be encoded");
        let padded = curve.pad(scalar).ok_or(KeyError::Damaged(
            "the EC private key is too long for its curve",
        ))?;
        // The public key follows from the scalar. Parsed by itself it would be verified a second time.
        let without_public = EcPrivateKey {
            private_key: &padded,
            parameters: Some(EcParameters::NamedCurve(curve.oid())),
            public_key: None,
        };
        let without_public = Zeroizing::new(without_public.to_der().map_err(unencodable)?);
        let pair = EcdsaKeyPair::from_private_key_der(curve.signing(), &without_public)
            .map_err(|_| KeyError::Damaged("the EC private key is out of range"))?;
        if let Some(public) = public
            && public != pair.public_key().as_ref()
        {
            // It may be another encoding of the same point.
            EcdsaKeyPair::from_private_key_and_public_key(curve.signing(), &padded, public)
                .map_err(rejected)?;
        }
        let der = EcPrivateKey {
            private_key: &padded,
            parameters: Some(EcParameters::NamedCurve(curve.oid())),
            public_key: Some(pair.public_key().as_ref()),
        }
        .to_der()
        .map_err(unencodable)?;
        let public = PublicKey::from_ec_point(curve, pair.public_key().as_ref())?;
        Ok(Self::new(
            Zeroizing::new(der),
            KeySigner::Ecdsa(pair),
            public,
        ))
    }

    fn new(der: Zeroizing<Vec<u8>>, signer: KeySigner, public: PublicKey) -> Self {
        PrivateKey {
            der: Arc::new(der),
            signer: Arc::new(signer),
            public,
        }
    }

    /// Encodes PEM like kubeadm: PKCS#1 for RSA, SEC1 for ECDSA, PKCS#8 for ML-DSA only.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let label = match *self.signer {
            KeySigner::Rsa(_) => "RSA PRIVATE KEY",
            KeySigner::Ecdsa(_) => "EC PRIVATE KEY",
            KeySigner::MlDsa(_) => "PRIVATE KEY",
        };
        Zeroizing::new(encode_pem(label, &self.der))
    }

    /// Returns the public half.
    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }

    /// Returns the algorithm of the key.
    pub fn key_type(&self) -> &KeyType {
        &self.public.key_type
    }

    /// Verifies that the key is long enough to sign. Service-account keys are only read.
    pub(super) fn require_signer(&self) -> Result<(), KeyError> {
        match self.key_type() {
            KeyType::Rsa(bits) => require_rsa_length(*bits, MIN_SIGNER_RSA_BITS),
            KeyType::Known(_) | KeyType::Other(_) => Ok(()),
        }
    }

    /// Generates an RSA key of a length that nodepki only reads.
    #[cfg(test)]
    pub(crate) fn of_rsa_bits(bits: usize) -> Self {
        Self::from_rsa_der(rsa_generation::by_rsa_crate(bits).unwrap()).unwrap()
    }
}

impl rcgen::PublicKeyData for PrivateKey {
    fn der_bytes(&self) -> &[u8] {
        &self.public.raw
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        rcgen::PublicKeyData::algorithm(&self.public)
    }
}

impl rcgen::SigningKey for PrivateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let random = SystemRandom::new();
        match &*self.signer {
            KeySigner::Rsa(cell) => {
                let pair = match cell.get() {
                    Some(pair) => pair,
                    None => {
                        let pair = RsaKeyPair::from_der(&self.der)
                            .map_err(|_| rcgen::Error::RemoteKeyError)?;
                        cell.get_or_init(|| pair)
                    }
                };
                let mut out = vec![0; pair.public_modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut out)
                    .map_err(|_| rcgen::Error::RemoteKeyError)?;
                Ok(out)
            }
            KeySigner::Ecdsa(pair) => Ok(pair
                .sign(&random, message)
                .map_err(|_| rcgen::Error::RemoteKeyError)?
                .as_ref()
                .to_vec()),
            KeySigner::MlDsa(pair) => ml_dsa::sign(pair, message),
        }
    }
}

/// A public key.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    spki: Vec<u8>,
    /// The bytes inside the BIT STRING, the form that rcgen requires.
    raw: Vec<u8>,
    key_type: KeyType,
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PublicKey({}, sha256:{})",
            self.key_type,
            hex(&self.sha256())
        )
    }
}

/// Returns the error for a text without a private key.
fn no_private_key(text: &[u8]) -> KeyError {
    match text.first() {
        Some(0x30) => KeyError::OtherContent(
            "a key in DER, not in PEM (openssl pkey -inform der -in FILE -out NEW converts it)",
        ),
        _ => KeyError::NoKey,
    }
}

/// Returns the error for a text without a `PUBLIC KEY` block, the only one in which client-go looks for an RSA key.
fn no_public_key(text: &[u8], blocks: &[pem::Pem]) -> KeyError {
    let has = |label: &str| blocks.iter().any(|block| block.tag() == label);
    match text.first() {
        Some(0x30) => KeyError::OtherContent(
            "a public key in DER, not in PEM (openssl pkey -pubin -inform der -in FILE -out NEW converts it)",
        ),
        _ if has("RSA PUBLIC KEY") => KeyError::OtherContent(
            "a public key in PKCS#1, which Kubernetes components cannot read (openssl rsa -RSAPublicKey_in -in FILE -pubout -out NEW converts it)",
        ),
        _ => KeyError::NoPublicKey,
    }
}

impl PublicKey {
    /// Parses a DER `SubjectPublicKeyInfo` (RFC 5280, 4.1.2.7). Unknown algorithms are accepted.
    pub(crate) fn from_spki_der(der: &[u8]) -> Result<Self, KeyError> {
        let info = SubjectPublicKeyInfoRef::try_from(der)
            .map_err(|_| KeyError::Damaged("not a SubjectPublicKeyInfo"))?;
        let raw = info.subject_public_key.raw_bytes();
        let key_type = match info.algorithm.oid {
            OID_RSA => rsa_key_type(raw)?,
            OID_EC => match info.algorithm.parameters_oid() {
                Ok(oid) => match Curve::from_oid(oid) {
                    Some(curve) => KeyType::Known(curve.algorithm()),
                    None => KeyType::Other(format!("ECDSA on curve {oid}")),
                },
                Err(_) => KeyType::Other("ECDSA with explicit parameters".to_owned()),
            },
            OID_ED25519 => KeyType::Other("Ed25519".to_owned()),
            other => match ParameterSet::from_oid(other) {
                Some(set) => KeyType::Known(set.algorithm),
                None => KeyType::Other(format!("algorithm {other}")),
            },
        };
        Ok(PublicKey {
            spki: der.to_vec(),
            raw: raw.to_vec(),
            key_type,
        })
    }

    /// Reads a `PUBLIC KEY` PEM block, the form of `sa.pub`.
    pub fn from_pem(text: &[u8]) -> Result<Self, KeyError> {
        let blocks = pem_blocks(text).map_err(KeyError::Pem)?;
        let block = blocks
            .iter()
            .find(|block| block.tag() == "PUBLIC KEY")
            .ok_or_else(|| no_public_key(text, &blocks))?;
        Self::from_spki_der(block.contents())
    }

    /// Reads all `PUBLIC KEY` blocks. While keys change, kube-apiserver uses all keys of a file.
    ///
    /// # Errors
    /// A damaged key, or none.
    pub(crate) fn all_from_pem(text: &[u8]) -> Result<Vec<Self>, KeyError> {
        let blocks = pem_blocks(text).map_err(KeyError::Pem)?;
        let keys: Vec<_> = blocks
            .iter()
            .filter(|block| block.tag() == "PUBLIC KEY")
            .map(|block| Self::from_spki_der(block.contents()))
            .collect::<Result<_, _>>()?;
        if keys.is_empty() {
            Err(no_public_key(text, &blocks))
        } else {
            Ok(keys)
        }
    }

    /// Encodes a `PUBLIC KEY` PEM block, the form of `sa.pub`.
    pub fn to_pem(&self) -> String {
        encode_pem("PUBLIC KEY", &self.spki)
    }

    /// Returns the DER `SubjectPublicKeyInfo`.
    pub fn spki_der(&self) -> &[u8] {
        &self.spki
    }

    /// Returns the SHA-256 digest of the `SubjectPublicKeyInfo`: kubeadm's CA pin and the id of a service-account key.
    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(&self.spki).into()
    }

    /// Returns the algorithm of the key.
    pub fn key_type(&self) -> &KeyType {
        &self.key_type
    }

    fn from_rsa_pkcs1(raw: &[u8], key_type: KeyType) -> Result<Self, KeyError> {
        let algorithm = AlgorithmIdentifierRef {
            oid: OID_RSA,
            parameters: Some(AnyRef::NULL),
        };
        Self::from_parts(algorithm, raw, key_type)
    }

    fn from_ec_point(curve: Curve, raw: &[u8]) -> Result<Self, KeyError> {
        let oid = curve.oid();
        let algorithm = AlgorithmIdentifierRef {
            oid: OID_EC,
            parameters: Some((&oid).into()),
        };
        Self::from_parts(algorithm, raw, KeyType::Known(curve.algorithm()))
    }

    fn from_parts(
        algorithm: AlgorithmIdentifierRef<'_>,
        raw: &[u8],
        key_type: KeyType,
    ) -> Result<Self, KeyError> {
        let unencodable = |_| KeyError::Damaged("the public key cannot be encoded");
        let info = SubjectPublicKeyInfoRef {
            algorithm,
            subject_public_key: BitStringRef::from_bytes(raw).map_err(unencodable)?,
        };
        Ok(PublicKey {
            spki: info.to_der().map_err(unencodable)?,
            raw: raw.to_vec(),
            key_type,
        })
    }
}

impl rcgen::PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.raw
    }

    /// Returns the signature algorithm of this key. Both callers have verified that nodepki generates this type of key; for
    /// any other, the resulting certificate would fail its verification.
    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        match self.key_type {
            KeyType::Known(KeyAlgorithm::EcdsaP256) => &rcgen::PKCS_ECDSA_P256_SHA256,
            KeyType::Known(KeyAlgorithm::EcdsaP384) => &rcgen::PKCS_ECDSA_P384_SHA384,
            KeyType::Known(KeyAlgorithm::EcdsaP521) => &rcgen::PKCS_ECDSA_P521_SHA512,
            KeyType::Known(KeyAlgorithm::MlDsa44) => &rcgen::PKCS_ML_DSA_44,
            KeyType::Known(KeyAlgorithm::MlDsa65) => &rcgen::PKCS_ML_DSA_65,
            KeyType::Known(KeyAlgorithm::MlDsa87) => &rcgen::PKCS_ML_DSA_87,
            _ => &rcgen::PKCS_RSA_SHA256,
        }
    }
}

fn rsa_key_type(pkcs1: &[u8]) -> Result<KeyType, KeyError> {
    let key = rsa::pkcs1::RsaPublicKeyRef::try_from(pkcs1)
        .map_err(|_| KeyError::Damaged("not a PKCS#1 RSAPublicKey"))?;
    Ok(rsa_type_of(bit_length(key.modulus.as_bytes())))
}

fn require_rsa_length(bits: usize, least: usize) -> Result<(), KeyError> {
    if (least..=MAX_RSA_BITS).contains(&bits) {
        Ok(())
    } else {
        Err(KeyError::RsaLength { bits, least })
    }
}

fn is_private_key(label: &str) -> bool {
    matches!(
        label,
        "RSA PRIVATE KEY"
            | "EC PRIVATE KEY"
            | "PRIVATE KEY"
            | "ENCRYPTED PRIVATE KEY"
            | "DSA PRIVATE KEY"
    )
}

/// Verifies RFC 8017, 3.2: n = p·q, d inverts e modulo p-1 and q-1, and the values of the Chinese remainder theorem belong
/// to them. Go verifies all of these (`checkPrivateKey` in crypto/internal/fips140/rsa), so a component would not start with
/// another key. `None` if a number is out of range.
fn is_consistent(key: &RsaPrivateKeyRef<'_>) -> Option<bool> {
    let max_bytes = key.modulus.as_bytes().len();
    let read = |part: &UintRef<'_>| {
        let bytes = part.as_bytes();
        // Longer numbers would only slow down the divisions below.
        let bits = u32::try_from(bytes.len() * 8)
            .ok()
            .filter(|_| bytes.len() <= max_bytes)?;
        BoxedUint::from_be_slice(bytes, bits)
            .ok()
            .map(Zeroizing::new)
    };
    let (n, e, d) = (
        read(&key.modulus)?,
        read(&key.public_exponent)?,
        read(&key.private_exponent)?,
    );
    let (p, q) = (read(&key.prime1)?, read(&key.prime2)?);
    let one = BoxedUint::one();
    let product = Zeroizing::new(e.concatenating_mul(&*d));
    // Whether d inverts e modulo the order of this prime, and is this exponent there.
    let inverts = |prime: &BoxedUint, exponent: &UintRef<'_>| {
        let exponent = read(exponent)?;
        let order = Zeroizing::new(prime.checked_sub(&one).into_option()?);
        let order = order.to_nz().into_option()?;
        let is_inverse = Zeroizing::new(product.rem_vartime(&order))
            .cmp_vartime(&one)
            .is_eq();
        let reduced = Zeroizing::new(d.rem_vartime(&order));
        Some(is_inverse && reduced.cmp_vartime(&exponent).is_eq())
    };
    let coefficient = read(&key.coefficient)?;
    let inverse = Zeroizing::new(coefficient.concatenating_mul(&*q));
    let prime = p.to_nz().into_option()?;
    let has_coefficient = Zeroizing::new(inverse.rem_vartime(&prime))
        .cmp_vartime(&one)
        .is_eq();
    let modulus = Zeroizing::new(p.concatenating_mul(&*q));
    Some(
        modulus.cmp_vartime(&n).is_eq()
            && inverts(&p, &key.exponent1)?
            && inverts(&q, &key.exponent2)?
            && has_coefficient,
    )
}

fn bit_length(bytes: &[u8]) -> usize {
    let leading = bytes
        .first()
        .map_or(0, |byte| byte.leading_zeros() as usize);
    (bytes.len() * 8).saturating_sub(leading)
}

pub(super) const OID_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const OID_EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const OID_ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_each_algorithm_from_pem() {
        for algorithm in KeyAlgorithm::ALL {
            let key = PrivateKey::generate(algorithm).unwrap();
            assert_eq!(*key.key_type(), KeyType::Known(algorithm));
            let pem = key.to_pem();
            let header = match algorithm.family() {
                KeyFamily::Rsa => "RSA PRIVATE KEY",
                KeyFamily::Ecdsa => "EC PRIVATE KEY",
                KeyFamily::MlDsa => "PRIVATE KEY",
            };
            assert!(
                pem.starts_with(&format!("-----BEGIN {header}-----\n")),
                "{algorithm}"
            );
            assert!(
                pem.ends_with(&format!("-----END {header}-----\n")),
                "{algorithm}"
            );
            let again = PrivateKey::from_pem(pem.as_bytes()).unwrap();
            assert_eq!(again.public_key(), key.public_key());
            assert_eq!(again.to_pem(), pem);
            let public = PublicKey::from_pem(key.public_key().to_pem().as_bytes()).unwrap();
            assert_eq!(&public, key.public_key());
        }
    }

    #[test]
    fn rejects_rsa_key_with_inconsistent_numbers() {
        let key = PrivateKey::generate(KeyAlgorithm::Rsa2048).unwrap();
        let (mut bad, mut refused) = (0, 0);
        // Every 97th byte. Go refuses a key with wrong values of the Chinese remainder theorem, the last three numbers.
        for position in (40..key.der.len()).step_by(97) {
            let mut der = (*key.der).clone();
            der[position] ^= 0x10;
            bad += 1;
            refused += usize::from(PrivateKey::from_rsa_der(der).is_err());
        }
        assert_eq!(refused, bad);
    }

    #[test]
    fn reads_rsa_keys_of_lengths_that_are_not_generated() {
        use rcgen::SigningKey;
        for (bits, signs) in [(1024, false), (2056, true)] {
            let key = PrivateKey::of_rsa_bits(bits);
            assert_eq!(*key.key_type(), KeyType::Rsa(bits));
            let again = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
            assert_eq!(again.public_key(), key.public_key());
            let public = PublicKey::from_pem(key.public_key().to_pem().as_bytes()).unwrap();
            assert_eq!(&public, key.public_key());
            assert_eq!(key.require_signer().is_ok(), signs);
            assert_eq!(key.sign(b"message").is_ok(), signs);
        }
        let short = PrivateKey::of_rsa_bits(1024).require_signer().unwrap_err();
        assert_eq!(
            short.to_string(),
            "the private key is RSA with 1024 bits, and only keys of 2048 to 8192 bits can be used here"
        );
        for (bits, is_read) in [(1023, false), (1024, true), (8192, true), (8193, false)] {
            assert_eq!(require_rsa_length(bits, MIN_RSA_BITS).is_ok(), is_read);
        }
    }

    #[test]
    fn rejects_key_that_begins_within_a_line() {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let pem = key.to_pem();
        for prefix in ["", "text\n", "text\r\n"] {
            let text = format!("{prefix}{}", *pem);
            assert!(PrivateKey::from_pem(text.as_bytes()).is_ok(), "{prefix:?}");
        }
        let text = format!("text {}", *pem);
        assert!(matches!(
            PrivateKey::from_pem(text.as_bytes()),
            Err(KeyError::Damaged(_))
        ));
    }

    #[test]
    fn omits_key_material_from_debug_output() {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        assert_eq!(format!("{key:?}"), "PrivateKey(ECDSA-P256, redacted)");
    }

    #[test]
    fn measures_modulus_in_bits() {
        for (bytes, bits) in [
            (&[][..], 0),
            (&[1], 1),
            (&[0x80], 8),
            (&[0x80, 0], 16),
            (&[1, 0], 9),
        ] {
            assert_eq!(bit_length(bytes), bits, "{bytes:?}");
        }
    }

    #[test]
    fn names_what_is_not_a_public_key() {
        for text in [
            &b"text"[..],
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            let error = PublicKey::from_pem(text).unwrap_err();
            assert_eq!(error.to_string(), "it does not contain a PEM public key");
        }
    }

    #[test]
    fn reports_damaged_input_without_panic() {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP384)
            .unwrap()
            .to_pem();
        for cut in 0..key.len() {
            let _ = PrivateKey::from_pem(key.as_bytes().get(..cut).unwrap());
        }
        let cut = encode_pem("EC PRIVATE KEY", &[0x30, 0]);
        assert_eq!(
            PrivateKey::from_pem(cut.as_bytes())
                .unwrap_err()
                .to_string(),
            "the private key is damaged: not a SEC1 ECPrivateKey"
        );
        assert!(matches!(
            PrivateKey::from_pem(b"hello"),
            Err(KeyError::NoKey)
        ));
        let encrypted =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert!(matches!(
            PrivateKey::from_pem(encrypted.as_bytes()),
            Err(KeyError::Encrypted)
        ));
        // RFC 8410, section 10.3
        let ed25519 = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
        let error = PrivateKey::from_pem(ed25519.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("Ed25519") && error.contains("kubeadm does not accept"),
            "{error}"
        );
    }
}
