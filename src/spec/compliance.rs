//! Whether the keys of a node comply with its key policy.
//!
//! Pure. [`judge`] compares one key with the algorithm that the policy requires; [`warnings`] compares keys with each other
//! and with their lifetimes. A deviation is only reported: when a key is replaced is decided by [`schedule`](super::schedule).

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};
use time::{Date, Month, OffsetDateTime};

use super::policy::{Category, KeyOwner};
use crate::kube::names::Authority;
use crate::x509::{KeyAlgorithm, KeyType};

/// Longest lifetime of a short-lived certificate: OpenShift's serving and client certificates live for at most 30 days.
const SHORT_LIFETIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The security strength of RSA-2048, in bits (NIST SP 800-57 Part 1, table 2).
const LEGACY_STRENGTH: u16 = 112;

/// A key pair, and what is required of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// Its owner.
    pub owner: KeyOwner,
    /// The algorithm of the policy; `None` for a key that nodepki does not create, if no policy names it.
    pub required: Option<KeyAlgorithm>,
    /// The key on disk.
    pub found: FoundKey,
    /// Lifetime that is requested for its certificate; `None` for a key that no renewal replaces.
    pub lifetime: Option<Duration>,
    /// End of validity of its certificate.
    pub not_after: Option<OffsetDateTime>,
    /// When a renewal replaces the key by one of the required algorithm, if it waits for that.
    pub replaced_at: Option<OffsetDateTime>,
}

/// A key on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundKey {
    /// A key of nodepki or of another program.
    Key(KeyType),
    /// A key that the kubelet generated for a request to the cluster. client-go offers one algorithm, ECDSA-P256.
    OfKubelet(KeyType),
    /// The files do not exist.
    Absent,
    /// The file cannot be read; other commands report the cause.
    Unreadable,
}

impl FoundKey {
    fn key_type(&self) -> Option<&KeyType> {
        match self {
            FoundKey::Key(key) | FoundKey::OfKubelet(key) => Some(key),
            FoundKey::Absent | FoundKey::Unreadable => None,
        }
    }
}

/// The judgement of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyVerdict {
    /// The key has the required algorithm.
    Compliant,
    /// No policy requires an algorithm.
    NotRequired,
    /// The kubelet chose the algorithm; no policy can change it.
    ChosenByKubelet,
    /// The key has another algorithm.
    NotCompliant,
    /// The files do not exist.
    Absent,
    /// The key cannot be read.
    Unreadable,
}

impl KeyVerdict {
    /// Returns the text in tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            KeyVerdict::Compliant => "compliant",
            KeyVerdict::NotRequired => "no policy",
            KeyVerdict::ChosenByKubelet => "chosen by kubelet",
            KeyVerdict::NotCompliant => "not compliant",
            KeyVerdict::Absent => "absent",
            KeyVerdict::Unreadable => "unreadable",
        }
    }

    /// Returns whether the verdict proves neither compliance nor the absence of a key.
    pub const fn is_violation(self) -> bool {
        matches!(self, KeyVerdict::NotCompliant | KeyVerdict::Unreadable)
    }
}

impl fmt::Display for KeyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for KeyVerdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Judges one key.
pub fn judge(key: &KeyUse) -> KeyVerdict {
    let (found, is_of_kubelet) = match &key.found {
        FoundKey::Key(found) => (found, false),
        FoundKey::OfKubelet(found) => (found, true),
        FoundKey::Absent => return KeyVerdict::Absent,
        FoundKey::Unreadable => return KeyVerdict::Unreadable,
    };
    match key.required {
        None => KeyVerdict::NotRequired,
        Some(required) if *found == KeyType::Known(required) => KeyVerdict::Compliant,
        Some(_) if is_of_kubelet => KeyVerdict::ChosenByKubelet,
        Some(_) => KeyVerdict::NotCompliant,
    }
}

/// Returns what a policy of algorithms alone does not show: certificates whose key is stronger than that of their CA, keys
/// of 112 bits whose certificates are valid after 2030, and large RSA keys of short-lived certificates.
pub fn warnings(keys: &[KeyUse]) -> Vec<String> {
    weaker_authorities(keys)
        .into_iter()
        .chain(legacy_after_2030(keys))
        .chain(large_keys_of_short_lived(keys))
        .collect()
}

/// A large RSA key is generated anew for each renewal, within seconds, and slows down each handshake.
fn large_keys_of_short_lived(keys: &[KeyUse]) -> Option<String> {
    let is_large = |key: &&KeyUse| {
        let found = key.found.key_type();
        matches!(
            found,
            Some(KeyType::Known(
                KeyAlgorithm::Rsa3072 | KeyAlgorithm::Rsa4096
            ))
        )
    };
    let found: Vec<String> = keys
        .iter()
        .filter(|key| {
            key.lifetime
                .is_some_and(|lifetime| lifetime <= SHORT_LIFETIME)
        })
        .filter(is_large)
        .map(|key| key.owner.to_string())
        .collect();
    (!found.is_empty()).then(|| {
        format!(
            "large RSA keys for certificates of at most {} days, which are generated again for each renewal (use ECDSA P256 or P384): {}",
            SHORT_LIFETIME.as_secs() / (24 * 60 * 60),
            found.join(", ")
        )
    })
}

/// A chain is as strong as its weakest key.
fn weaker_authorities(keys: &[KeyUse]) -> Vec<String> {
    let key_of = |authority: Authority| {
        keys.iter()
            .find(|key| key.owner == KeyOwner::Authority(authority))?
            .found
            .key_type()
    };
    let weaker = |authority: Authority| {
        let signing = key_of(authority)?;
        let stronger: Vec<String> = keys
            .iter()
            .filter(|key| key.owner.authority() == Some(authority))
            .filter(|key| {
                let found = key.found.key_type().and_then(strength);
                found > strength(signing)
            })
            .map(|key| key.owner.to_string())
            .collect();
        (!stronger.is_empty()).then(|| {
            format!(
                "the {signing} key of {authority} is weaker than those of {}, and limits their strength",
                stronger.join(", ")
            )
        })
    };
    Authority::ALL.into_iter().filter_map(weaker).collect()
}

/// NIST SP 800-57 Part 1, table 4: 112 bits are acceptable until the end of 2030.
fn legacy_after_2030(keys: &[KeyUse]) -> Option<String> {
    let end = Date::from_calendar_date(2031, Month::January, 1)
        .ok()?
        .midnight()
        .assume_utc();
    let found: Vec<String> = keys
        .iter()
        .filter(|key| key.not_after.is_some_and(|not_after| not_after >= end))
        .filter(|key| key.found.key_type().and_then(strength) == Some(LEGACY_STRENGTH))
        .map(|key| key.owner.to_string())
        .collect();
    (!found.is_empty()).then(|| {
        format!(
            "valid after 2030 with a key of {LEGACY_STRENGTH} bits of security, which NIST SP 800-57 accepts until then: {}",
            found.join(", ")
        )
    })
}

/// Returns the security strength of a key in bits (NIST SP 800-57 Part 1, table 2; RSA-4096 by the formula of FIPS 140
/// IG 7.5; ML-DSA by the security category in FIPS 204, table 1). `None` for algorithms that nodepki does not generate.
fn strength(key: &KeyType) -> Option<u16> {
    let KeyType::Known(algorithm) = key else {
        return None;
    };
    Some(match algorithm {
        KeyAlgorithm::Rsa2048 => LEGACY_STRENGTH,
        KeyAlgorithm::Rsa3072 | KeyAlgorithm::EcdsaP256 | KeyAlgorithm::MlDsa44 => 128,
        KeyAlgorithm::Rsa4096 => 152,
        KeyAlgorithm::EcdsaP384 | KeyAlgorithm::MlDsa65 => 192,
        KeyAlgorithm::EcdsaP521 | KeyAlgorithm::MlDsa87 => 256,
    })
}

impl Category {
    /// Returns the name in a policy, such as `SignerCertificate`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Category::Signer => "SignerCertificate",
            Category::Serving => "ServingCertificate",
            Category::Client => "ClientCertificate",
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::kube::names::CertName;

    fn key(owner: KeyOwner, required: KeyAlgorithm, found: KeyAlgorithm) -> KeyUse {
        KeyUse {
            owner,
            required: Some(required),
            found: FoundKey::Key(KeyType::Known(found)),
            lifetime: None,
            not_after: Some(datetime!(2028-01-01 0:00 UTC)),
            replaced_at: None,
        }
    }

    const CA: KeyOwner = KeyOwner::Authority(Authority::Ca);
    const APISERVER: KeyOwner = KeyOwner::Leaf(CertName::Apiserver);

    #[test]
    fn judges_algorithm_by_policy() {
        use KeyAlgorithm::{EcdsaP256, Rsa2048, Rsa4096};
        for (required, found, wanted) in [
            (
                Rsa4096,
                FoundKey::Key(KeyType::Known(Rsa4096)),
                KeyVerdict::Compliant,
            ),
            (
                Rsa4096,
                FoundKey::Key(KeyType::Known(Rsa2048)),
                KeyVerdict::NotCompliant,
            ),
            // Stronger is another algorithm too.
            (
                Rsa2048,
                FoundKey::Key(KeyType::Known(Rsa4096)),
                KeyVerdict::NotCompliant,
            ),
            (
                Rsa2048,
                FoundKey::Key(KeyType::Rsa(1024)),
                KeyVerdict::NotCompliant,
            ),
            (
                Rsa2048,
                FoundKey::OfKubelet(KeyType::Known(EcdsaP256)),
                KeyVerdict::ChosenByKubelet,
            ),
            (
                EcdsaP256,
                FoundKey::OfKubelet(KeyType::Known(EcdsaP256)),
                KeyVerdict::Compliant,
            ),
            (Rsa2048, FoundKey::Absent, KeyVerdict::Absent),
            (Rsa2048, FoundKey::Unreadable, KeyVerdict::Unreadable),
        ] {
            let key = KeyUse {
                owner: APISERVER,
                required: Some(required),
                found,
                lifetime: None,
                not_after: None,
                replaced_at: None,
            };
            assert_eq!(judge(&key), wanted, "{key:?}");
        }
        let mut of_other_company = key(CA, Rsa4096, Rsa2048);
        of_other_company.required = None;
        assert_eq!(judge(&of_other_company), KeyVerdict::NotRequired);
    }

    #[test]
    fn verdict_is_displayed_as_in_json() {
        for (verdict, is_violation) in [
            (KeyVerdict::Compliant, false),
            (KeyVerdict::NotRequired, false),
            (KeyVerdict::ChosenByKubelet, false),
            (KeyVerdict::NotCompliant, true),
            (KeyVerdict::Absent, false),
            (KeyVerdict::Unreadable, true),
        ] {
            assert_eq!(
                format!("{verdict:>17}"),
                format!("{:>17}", verdict.as_str())
            );
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.as_str());
            assert_eq!(verdict.is_violation(), is_violation, "{verdict}");
        }
    }

    #[test]
    fn warns_of_authority_weaker_than_its_certificates() {
        use KeyAlgorithm::{EcdsaP256, EcdsaP384, Rsa2048};
        let keys = [
            key(CA, Rsa2048, Rsa2048),
            key(APISERVER, EcdsaP256, EcdsaP256),
            key(KeyOwner::Leaf(CertName::EtcdServer), EcdsaP384, EcdsaP384),
        ];
        assert_eq!(
            warnings(&keys),
            ["the RSA-2048 key of ca is weaker than those of apiserver, and limits their strength"]
        );
        assert!(warnings(&keys[1..]).is_empty());
    }

    #[test]
    fn warns_of_large_rsa_key_of_short_lived_certificate() {
        use KeyAlgorithm::{EcdsaP384, Rsa2048, Rsa4096};
        for (lifetime, algorithm, expected) in [
            (Some(SHORT_LIFETIME), Rsa4096, 1),
            (Some(SHORT_LIFETIME * 2), Rsa4096, 0),
            (None, Rsa4096, 0),
            (Some(SHORT_LIFETIME), Rsa2048, 0),
            (Some(SHORT_LIFETIME), EcdsaP384, 0),
        ] {
            let mut key = key(APISERVER, algorithm, algorithm);
            key.lifetime = lifetime;
            let found = warnings(&[key]);
            assert_eq!(found.len(), expected, "{lifetime:?} {algorithm}: {found:?}");
        }
    }

    #[test]
    fn warns_of_weak_key_that_is_valid_after_2030() {
        use KeyAlgorithm::{EcdsaP256, Rsa2048};
        let mut keys = [
            key(CA, Rsa2048, Rsa2048),
            key(APISERVER, EcdsaP256, Rsa2048),
        ];
        assert!(warnings(&keys).is_empty());
        keys[0].not_after = Some(datetime!(2036-01-01 0:00 UTC));
        let found = warnings(&keys);
        assert!(found[0].ends_with("accepts until then: ca"), "{found:?}");
    }
}
