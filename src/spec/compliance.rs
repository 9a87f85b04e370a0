//! Whether the keys and certificates of a node comply with its key policy.
//!
//! Pure. [`judge`] compares one key, and the lifetime of its certificate, with what the policy requires. What was not read
//! is unknown, and never compliant. [`warnings`] compares keys with each other
//! and with the ends of their certificates. A deviation is only reported: when a key is replaced is decided by [`schedule`](super::schedule).

use std::fmt;
use std::time::Duration;

use time::{Date, Month, OffsetDateTime};

use super::policy::KeyOwner;
use super::table::CertSpec;
use crate::kube::names::Authority;
use crate::x509::{KeyAlgorithm, KeyType};
use crate::yaml::format_duration;

/// Longest lifetime of a short-lived certificate: OpenShift's serving and client certificates live for at most 30 days.
const SHORT_LIFETIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The security strength of RSA-2048, in bits (NIST SP 800-57 Part 1, table 2).
const LEGACY_STRENGTH: u16 = 112;

/// Least and greatest time by which a lifetime may exceed that of the policy, since signers backdate certificates: kubeadm
/// by 5 minutes, others by up to an hour.
const BACKDATING: [Duration; 2] = [Duration::from_secs(10 * 60), Duration::from_secs(60 * 60)];

/// A key pair, and what is required of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// Its owner.
    pub owner: KeyOwner,
    /// The algorithm of the policy; `None` for a key that nodepki does not create, if no policy names it.
    pub required: Option<KeyAlgorithm>,
    /// The longest lifetime that the policy permits; `None` if no policy names one.
    pub required_lifetime: Option<Duration>,
    /// The key on disk.
    pub found: FoundKey,
    /// Further keys to which the requirement applies, with what has them: the other certificates of an authority's file,
    /// and intermediates.
    pub others: Vec<(String, KeyType)>,
    /// Begin and end of validity of its certificate.
    pub validity: Option<[OffsetDateTime; 2]>,
    /// When a renewal replaces the certificate by one that complies, if it waits for that.
    pub replaced_at: Option<OffsetDateTime>,
    /// Why it is not known what the policy requires, or which keys there are.
    pub doubts: Vec<String>,
}

impl KeyUse {
    /// Returns the use of a key of which nothing is required.
    pub fn of(owner: KeyOwner, found: FoundKey) -> KeyUse {
        KeyUse {
            owner,
            required: None,
            required_lifetime: None,
            found,
            others: Vec::new(),
            validity: None,
            replaced_at: None,
            doubts: Vec::new(),
        }
    }

    /// Returns the length of the validity of its certificate.
    pub fn valid_for(&self) -> Option<Duration> {
        let [begin, end] = self.validity?;
        Duration::try_from(end - begin).ok()
    }
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
    /// The key was not read; contains the reason.
    Unreadable(String),
}

impl FoundKey {
    /// Returns its algorithm, if the key was read.
    pub fn key_type(&self) -> Option<&KeyType> {
        match self {
            FoundKey::Key(key) | FoundKey::OfKubelet(key) => Some(key),
            FoundKey::Absent | FoundKey::Unreadable(_) => None,
        }
    }
}

words! {
    /// The verdict on one key.
    pub enum KeyVerdict: Serialize {
        /// Everything that the policy requires was compared, and nothing differs.
        Compliant = "compliant",
        /// No policy requires anything.
        NotRequired = "no policy",
        /// The kubelet chose the algorithm; no policy requires another one.
        ChosenByKubelet = "chosen by kubelet",
        /// The key or the lifetime differs from what the policy requires.
        NotCompliant = "not compliant",
        /// The policy or the key was not read.
        Unknown = "unknown",
    }
}

impl KeyVerdict {
    /// Returns the verdict on several keys together.
    pub fn of_all(verdicts: impl Iterator<Item = KeyVerdict> + Clone) -> KeyVerdict {
        let any = |wanted| verdicts.clone().any(|verdict| verdict == wanted);
        if any(KeyVerdict::NotCompliant) {
            KeyVerdict::NotCompliant
        } else if any(KeyVerdict::Unknown) {
            KeyVerdict::Unknown
        } else if any(KeyVerdict::Compliant) {
            KeyVerdict::Compliant
        } else {
            KeyVerdict::NotRequired
        }
    }
}

/// A difference between a key and the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyDifference {
    /// The key has another algorithm.
    Key {
        /// Its algorithm.
        found: KeyType,
        /// The algorithm of the policy.
        required: KeyAlgorithm,
        /// The kubelet generated it.
        of_kubelet: bool,
    },
    /// A further key has another algorithm.
    OtherKey {
        /// What has the key.
        of: String,
        /// Its algorithm.
        found: KeyType,
        /// The algorithm of the policy.
        required: KeyAlgorithm,
    },
    /// The certificate is valid for longer.
    Lifetime {
        /// The length of its validity.
        found: Duration,
        /// The longest one of the policy.
        required: Duration,
    },
}

impl PolicyDifference {
    /// Returns what a renewal replaces to end the difference.
    pub const fn replaced(&self) -> &'static str {
        match self {
            PolicyDifference::Key { .. } | PolicyDifference::OtherKey { .. } => "the key",
            PolicyDifference::Lifetime { .. } => "the certificate",
        }
    }
}

impl fmt::Display for PolicyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyDifference::Key {
                found,
                required,
                of_kubelet: true,
            } => write!(
                f,
                "the key policy requires {required}, and the kubelet, which generates this key itself, chose {found}"
            ),
            PolicyDifference::Key { required, .. } => {
                write!(f, "the key policy requires {required}")
            }
            PolicyDifference::OtherKey {
                of,
                found,
                required,
            } => write!(
                f,
                "the key of {of} is {found}, and the key policy requires {required}"
            ),
            PolicyDifference::Lifetime { found, required } => write!(
                f,
                "its certificate is valid for {}, and the key policy permits {}",
                format_duration(*found),
                format_duration(*required)
            ),
        }
    }
}

/// The judgement of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyJudgement {
    /// The verdict.
    pub verdict: KeyVerdict,
    /// The differences from the policy.
    pub differences: Vec<PolicyDifference>,
    /// What was not compared, and why.
    pub unknown: Vec<String>,
}

/// Judges one key. It complies only if everything that the policy requires was compared with what was read.
pub fn judge(key: &KeyUse) -> KeyJudgement {
    let differences: Vec<PolicyDifference> = key_difference(key)
        .into_iter()
        .chain(other_differences(key))
        .chain(lifetime_difference(key))
        .collect();
    let unknown: Vec<String> = key
        .doubts
        .iter()
        .cloned()
        .chain(not_read(key))
        .chain(validity_not_read(key))
        .collect();
    let is_required = key.required.is_some() || key.required_lifetime.is_some();
    let verdict = match &key.found {
        _ if !differences.is_empty() => KeyVerdict::NotCompliant,
        _ if !unknown.is_empty() => KeyVerdict::Unknown,
        FoundKey::OfKubelet(_) if key.required.is_none() => KeyVerdict::ChosenByKubelet,
        _ if !is_required => KeyVerdict::NotRequired,
        _ => KeyVerdict::Compliant,
    };
    KeyJudgement {
        verdict,
        differences,
        unknown,
    }
}

fn key_difference(key: &KeyUse) -> Option<PolicyDifference> {
    let (required, found) = (key.required?, key.found.key_type()?);
    (*found != KeyType::Known(required)).then(|| PolicyDifference::Key {
        found: found.clone(),
        required,
        of_kubelet: matches!(key.found, FoundKey::OfKubelet(_)),
    })
}

fn other_differences(key: &KeyUse) -> impl Iterator<Item = PolicyDifference> {
    let required = key.required;
    key.others.iter().filter_map(move |(of, found)| {
        let required = required?;
        (*found != KeyType::Known(required)).then(|| PolicyDifference::OtherKey {
            of: of.clone(),
            found: found.clone(),
            required,
        })
    })
}

fn lifetime_difference(key: &KeyUse) -> Option<PolicyDifference> {
    let (required, found) = (key.required_lifetime?, key.valid_for()?);
    let [least, greatest] = BACKDATING;
    let backdated = (required / 10).clamp(least, greatest);
    (found > required.saturating_add(backdated))
        .then_some(PolicyDifference::Lifetime { found, required })
}

/// Returns why the key was not compared.
fn not_read(key: &KeyUse) -> Option<String> {
    match &key.found {
        FoundKey::Key(_) | FoundKey::OfKubelet(_) => None,
        FoundKey::Unreadable(why) => Some(why.clone()),
        FoundKey::Absent => (key.required.is_some() || key.required_lifetime.is_some())
            .then(|| "its files do not exist".to_owned()),
    }
}

/// Returns why the lifetime was not compared, unless the key was not read either.
fn validity_not_read(key: &KeyUse) -> Option<String> {
    let is_read = key.found.key_type().is_some();
    (is_read && key.required_lifetime.is_some() && key.valid_for().is_none())
        .then(|| "the validity of its certificate is not known".to_owned())
}

/// Returns what a policy of algorithms alone does not show: certificates whose key is stronger than that of their CA, and keys
/// of 112 bits whose certificates are valid after 2030.
pub fn warnings(keys: &[KeyUse]) -> Vec<String> {
    weaker_authorities(keys)
        .into_iter()
        .chain(legacy_after_2030(keys))
        .collect()
}

/// Returns a warning about large RSA keys that are requested for short-lived certificates: each is generated anew for each
/// renewal, within seconds, and slows down each handshake.
pub fn large_keys_of_short_lived(requested: &[CertSpec]) -> Option<String> {
    let found: Vec<&str> = requested
        .iter()
        .filter(|spec| {
            let profile = &spec.requested.profile;
            let is_large = matches!(profile.key, KeyAlgorithm::Rsa3072 | KeyAlgorithm::Rsa4096);
            is_large && profile.lifetime <= SHORT_LIFETIME
        })
        .map(|spec| spec.name().as_str())
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
        .filter(|key| key.validity.is_some_and(|[_, not_after]| not_after >= end))
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

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::kube::names::CertName;

    fn key(owner: KeyOwner, required: KeyAlgorithm, found: KeyAlgorithm) -> KeyUse {
        KeyUse {
            required: Some(required),
            validity: Some(until(datetime!(2028-01-01 0:00 UTC))),
            ..KeyUse::of(owner, FoundKey::Key(KeyType::Known(found)))
        }
    }

    /// The validity of a year.
    fn until(end: OffsetDateTime) -> [OffsetDateTime; 2] {
        [end - DAY * 365, end]
    }

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    const CA: KeyOwner = KeyOwner::Authority(Authority::Ca);
    const APISERVER: KeyOwner = KeyOwner::Leaf(CertName::Apiserver);

    #[test]
    fn judges_algorithm_by_policy() {
        use KeyAlgorithm::{EcdsaP256, Rsa2048, Rsa4096};
        let own = |found| FoundKey::Key(KeyType::Known(found));
        let of_kubelet = FoundKey::OfKubelet(KeyType::Known(EcdsaP256));
        for (required, found, wanted) in [
            (Some(Rsa4096), own(Rsa4096), KeyVerdict::Compliant),
            (Some(Rsa4096), own(Rsa2048), KeyVerdict::NotCompliant),
            // Stronger is another algorithm too.
            (Some(Rsa2048), own(Rsa4096), KeyVerdict::NotCompliant),
            (
                Some(Rsa2048),
                FoundKey::Key(KeyType::Rsa(1024)),
                KeyVerdict::NotCompliant,
            ),
            (Some(Rsa2048), of_kubelet.clone(), KeyVerdict::NotCompliant),
            (Some(EcdsaP256), of_kubelet.clone(), KeyVerdict::Compliant),
            (None, of_kubelet, KeyVerdict::ChosenByKubelet),
            (None, own(Rsa2048), KeyVerdict::NotRequired),
            (Some(Rsa2048), FoundKey::Absent, KeyVerdict::Unknown),
            (None, FoundKey::Absent, KeyVerdict::NotRequired),
            (
                Some(Rsa2048),
                FoundKey::Unreadable("it is unreadable".to_owned()),
                KeyVerdict::Unknown,
            ),
            (
                None,
                FoundKey::Unreadable("it is unreadable".to_owned()),
                KeyVerdict::Unknown,
            ),
        ] {
            let key = KeyUse {
                required,
                ..KeyUse::of(APISERVER, found)
            };
            let judgement = judge(&key);
            assert_eq!(judgement.verdict, wanted, "{key:?}");
            assert_eq!(
                judgement.unknown.is_empty(),
                wanted != KeyVerdict::Unknown,
                "{key:?}"
            );
        }
    }

    #[test]
    fn permits_lifetime_of_policy_and_backdating() {
        use KeyAlgorithm::EcdsaP256;
        const HOUR: Duration = Duration::from_secs(60 * 60);
        const MINUTE: Duration = Duration::from_secs(60);
        for (required, valid_for, complies) in [
            (30 * DAY, 30 * DAY, true),
            (30 * DAY, DAY, true),
            (30 * DAY, 30 * DAY + HOUR, true),
            (30 * DAY, 30 * DAY + 2 * HOUR, false),
            (30 * DAY, 365 * DAY, false),
            (HOUR, HOUR + 5 * MINUTE, true),
            (HOUR, 2 * HOUR, false),
        ] {
            let mut key = key(APISERVER, EcdsaP256, EcdsaP256);
            let end = datetime!(2028-01-01 0:00 UTC);
            key.required_lifetime = Some(required);
            key.validity = Some([end - valid_for, end]);
            let expected = if complies {
                KeyVerdict::Compliant
            } else {
                KeyVerdict::NotCompliant
            };
            assert_eq!(judge(&key).verdict, expected, "{required:?} {valid_for:?}");
        }
    }

    #[test]
    fn is_unknown_while_policy_or_validity_was_not_read() {
        use KeyAlgorithm::{EcdsaP256, Rsa2048};
        let verdict = |key: &KeyUse| judge(key).verdict;
        let mut doubted = key(APISERVER, EcdsaP256, EcdsaP256);
        doubted.doubts = vec!["the policy was not read".to_owned()];
        assert_eq!(verdict(&doubted), KeyVerdict::Unknown);
        doubted.required = None;
        assert_eq!(verdict(&doubted), KeyVerdict::Unknown);
        // A known difference is not hidden by what is unknown.
        doubted.required = Some(Rsa2048);
        assert_eq!(verdict(&doubted), KeyVerdict::NotCompliant);
        let mut without_end = key(APISERVER, EcdsaP256, EcdsaP256);
        without_end.required_lifetime = Some(DAY);
        without_end.validity = None;
        assert_eq!(verdict(&without_end), KeyVerdict::Unknown);
    }

    #[test]
    fn judges_every_certificate_of_authority() {
        use KeyAlgorithm::{EcdsaP384, Rsa2048};
        let mut authority = key(CA, EcdsaP384, EcdsaP384);
        authority.others = vec![("CN=old".to_owned(), KeyType::Known(Rsa2048))];
        let judgement = judge(&authority);
        assert_eq!(judgement.verdict, KeyVerdict::NotCompliant);
        assert_eq!(
            judgement.differences[0].to_string(),
            "the key of CN=old is RSA-2048, and the key policy requires ECDSA-P384"
        );
    }

    #[test]
    fn verdict_on_all_keys_is_the_worst() {
        use KeyVerdict::{ChosenByKubelet, Compliant, NotCompliant, NotRequired, Unknown};
        for (verdicts, expected) in [
            (vec![Compliant, NotRequired, ChosenByKubelet], Compliant),
            (vec![NotRequired, ChosenByKubelet], NotRequired),
            (Vec::new(), NotRequired),
            (vec![Compliant, Unknown], Unknown),
            (vec![Unknown, NotCompliant, Compliant], NotCompliant),
        ] {
            let verdict = KeyVerdict::of_all(verdicts.iter().copied());
            assert_eq!(verdict, expected, "{verdicts:?}");
        }
    }

    #[test]
    fn verdict_is_displayed_as_in_json() {
        for verdict in KeyVerdict::ALL {
            assert_eq!(
                format!("{verdict:>17}"),
                format!("{:>17}", verdict.as_str())
            );
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.as_str());
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
    fn warns_of_weak_key_that_is_valid_after_2030() {
        use KeyAlgorithm::{EcdsaP256, Rsa2048};
        let mut keys = [
            key(CA, Rsa2048, Rsa2048),
            key(APISERVER, EcdsaP256, Rsa2048),
        ];
        assert!(warnings(&keys).is_empty());
        keys[0].validity = Some(until(datetime!(2036-01-01 0:00 UTC)));
        let found = warnings(&keys);
        assert!(found[0].ends_with("accepts until then: ca"), "{found:?}");
    }
}
