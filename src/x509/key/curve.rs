//! The elliptic curves of the keys that nodepki generates.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING,
    EcdsaSigningAlgorithm,
};
use pkcs8::der::asn1::ObjectIdentifier;
use zeroize::Zeroizing;

use super::KeyAlgorithm;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Curve {
    P256,
    P384,
    P521,
}

impl Curve {
    const ALL: [Curve; 3] = [Curve::P256, Curve::P384, Curve::P521];

    pub(super) fn of(algorithm: KeyAlgorithm) -> Option<Self> {
        Curve::ALL
            .into_iter()
            .find(|curve| curve.algorithm() == algorithm)
    }

    pub(super) fn from_oid(oid: ObjectIdentifier) -> Option<Self> {
        Curve::ALL.into_iter().find(|curve| curve.oid() == oid)
    }

    pub(super) const fn algorithm(self) -> KeyAlgorithm {
        match self {
            Curve::P256 => KeyAlgorithm::EcdsaP256,
            Curve::P384 => KeyAlgorithm::EcdsaP384,
            Curve::P521 => KeyAlgorithm::EcdsaP521,
        }
    }

    // RFC 5480, 2.1.1.1
    pub(super) const fn oid(self) -> ObjectIdentifier {
        match self {
            Curve::P256 => ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7"),
            Curve::P384 => ObjectIdentifier::new_unwrap("1.3.132.0.34"),
            Curve::P521 => ObjectIdentifier::new_unwrap("1.3.132.0.35"),
        }
    }

    pub(super) fn signing(self) -> &'static EcdsaSigningAlgorithm {
        match self {
            Curve::P256 => &ECDSA_P256_SHA256_ASN1_SIGNING,
            Curve::P384 => &ECDSA_P384_SHA384_ASN1_SIGNING,
            Curve::P521 => &ECDSA_P521_SHA512_ASN1_SIGNING,
        }
    }

    /// Pads a scalar on the left to the length of the field (RFC 5915, 3), as some writers drop leading zeros.
    pub(super) fn pad(self, scalar: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let length = match self {
            Curve::P256 => 32,
            Curve::P384 => 48,
            Curve::P521 => 66,
        };
        let missing = usize::checked_sub(length, scalar.len())?;
        let mut padded = Zeroizing::new(vec![0; missing]);
        padded.extend_from_slice(scalar);
        Some(padded)
    }
}
