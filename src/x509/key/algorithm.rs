//! The names of key algorithms.

use std::fmt;
use std::str::FromStr;

words! {
    /// The key algorithms that nodepki generates; within a family, the weakest is first. The names are those of kubeadm's
    /// `encryptionAlgorithm`. kubeadm does not offer P-521; its name is formed by analogy. No release of kubeadm offers
    /// ML-DSA yet; the names are those of kubernetes PR 142037.
    #[derive(PartialOrd, Ord, Hash)]
    #[allow(missing_docs, reason = "the serialized name is the documentation")]
    pub enum KeyAlgorithm: Serialize, Deserialize {
        Rsa2048 = "RSA-2048",
        Rsa3072 = "RSA-3072",
        Rsa4096 = "RSA-4096",
        EcdsaP256 = "ECDSA-P256",
        EcdsaP384 = "ECDSA-P384",
        EcdsaP521 = "ECDSA-P521",
        MlDsa44 = "ML-DSA-44",
        MlDsa65 = "ML-DSA-65",
        MlDsa87 = "ML-DSA-87",
    }
}

/// A family of key algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFamily {
    /// RSA with PKCS#1 v1.5 signatures.
    Rsa,
    /// ECDSA on a NIST curve.
    Ecdsa,
    /// ML-DSA (FIPS 204).
    MlDsa,
}

impl KeyAlgorithm {
    /// Returns the family of the algorithm.
    pub const fn family(self) -> KeyFamily {
        match self {
            KeyAlgorithm::Rsa2048 | KeyAlgorithm::Rsa3072 | KeyAlgorithm::Rsa4096 => KeyFamily::Rsa,
            KeyAlgorithm::EcdsaP256 | KeyAlgorithm::EcdsaP384 | KeyAlgorithm::EcdsaP521 => {
                KeyFamily::Ecdsa
            }
            KeyAlgorithm::MlDsa44 | KeyAlgorithm::MlDsa65 | KeyAlgorithm::MlDsa87 => {
                KeyFamily::MlDsa
            }
        }
    }

    /// Returns true for RSA of any length.
    pub(crate) fn is_rsa(self) -> bool {
        self.family() == KeyFamily::Rsa
    }

    /// Returns true for ML-DSA with any parameter set.
    pub(crate) fn is_ml_dsa(self) -> bool {
        self.family() == KeyFamily::MlDsa
    }

    pub(crate) const fn rsa_bits(self) -> Option<usize> {
        match self {
            KeyAlgorithm::Rsa2048 => Some(2048),
            KeyAlgorithm::Rsa3072 => Some(3072),
            KeyAlgorithm::Rsa4096 => Some(4096),
            _ => None,
        }
    }
}

impl FromStr for KeyAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        KeyAlgorithm::ALL
            .into_iter()
            .find(|known| known.as_str() == name)
            .ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// The name of an unsupported key algorithm.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown key algorithm {0:?}; use RSA-2048, RSA-3072, RSA-4096, ECDSA-P256, ECDSA-P384, ECDSA-P521, ML-DSA-44, ML-DSA-65 or ML-DSA-87 (case-sensitive)"
)]
pub struct UnknownAlgorithm(String);

/// The algorithm of an existing key, supported or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// An algorithm that nodepki generates.
    Known(KeyAlgorithm),
    /// RSA with another modulus length in bits.
    Rsa(usize),
    /// Any other algorithm, by name or object identifier.
    Other(String),
}

impl KeyType {
    /// Returns true for RSA of any length.
    pub(crate) fn is_rsa(&self) -> bool {
        match self {
            KeyType::Known(known) => known.is_rsa(),
            KeyType::Rsa(_) => true,
            KeyType::Other(_) => false,
        }
    }

    /// Returns true for ML-DSA with any parameter set.
    pub(crate) fn is_ml_dsa(&self) -> bool {
        matches!(self, KeyType::Known(known) if known.is_ml_dsa())
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyType::Known(known) => known.fmt(f),
            KeyType::Rsa(bits) => write!(f, "RSA-{bits}"),
            KeyType::Other(name) => f.write_str(name),
        }
    }
}

pub(super) fn rsa_type_of(bits: usize) -> KeyType {
    KeyAlgorithm::ALL
        .into_iter()
        .find(|known| known.rsa_bits() == Some(bits))
        .map_or(KeyType::Rsa(bits), KeyType::Known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_exactly() {
        for algorithm in KeyAlgorithm::ALL {
            assert_eq!(
                algorithm.as_str().parse::<KeyAlgorithm>().unwrap(),
                algorithm
            );
        }
        let error = "rsa-2048".parse::<KeyAlgorithm>().unwrap_err().to_string();
        assert!(
            error.starts_with("unknown key algorithm \"rsa-2048\"; use RSA-2048, RSA-3072"),
            "{error}"
        );
    }

    #[test]
    fn displays_every_type_by_name() {
        assert_eq!(rsa_type_of(3072).to_string(), "RSA-3072");
        assert_eq!(rsa_type_of(1024), KeyType::Rsa(1024));
        assert_eq!(rsa_type_of(1024).to_string(), "RSA-1024");
        assert_eq!(KeyType::Other("Ed25519".to_owned()).to_string(), "Ed25519");
        assert!(rsa_type_of(2048).is_rsa() && rsa_type_of(1024).is_rsa());
        let others = [
            KeyType::Known(KeyAlgorithm::EcdsaP256),
            KeyType::Other("Ed25519".to_owned()),
        ];
        assert!(others.iter().all(|other| !other.is_rsa()));
    }
}
