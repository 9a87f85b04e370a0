//! Stand-in for the X.509 module: the key algorithms only.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A kind of key pair, spelled as kubeadm's `encryptionAlgorithm` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the serialized name is the documentation")]
pub enum KeyAlgorithm {
    #[serde(rename = "RSA-2048")]
    Rsa2048,
    #[serde(rename = "RSA-3072")]
    Rsa3072,
    #[serde(rename = "RSA-4096")]
    Rsa4096,
    #[serde(rename = "ECDSA-P256")]
    EcdsaP256,
    #[serde(rename = "ECDSA-P384")]
    EcdsaP384,
    #[serde(rename = "ECDSA-P521")]
    EcdsaP521,
}

impl KeyAlgorithm {
    const ALL: [KeyAlgorithm; 6] = [
        KeyAlgorithm::Rsa2048,
        KeyAlgorithm::Rsa3072,
        KeyAlgorithm::Rsa4096,
        KeyAlgorithm::EcdsaP256,
        KeyAlgorithm::EcdsaP384,
        KeyAlgorithm::EcdsaP521,
    ];
}

impl fmt::Display for KeyAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            KeyAlgorithm::Rsa2048 => "RSA-2048",
            KeyAlgorithm::Rsa3072 => "RSA-3072",
            KeyAlgorithm::Rsa4096 => "RSA-4096",
            KeyAlgorithm::EcdsaP256 => "ECDSA-P256",
            KeyAlgorithm::EcdsaP384 => "ECDSA-P384",
            KeyAlgorithm::EcdsaP521 => "ECDSA-P521",
        })
    }
}

impl FromStr for KeyAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        KeyAlgorithm::ALL
            .into_iter()
            .find(|known| known.to_string() == name)
            .ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// A key algorithm outside the closed set.
#[derive(Debug, thiserror::Error)]
#[error("unknown key algorithm {0:?}")]
pub struct UnknownAlgorithm(String);
