//! The verification of a signer's response before it is written to disk.
//!
//! [`satisfies`] compares a chain with its profile and returns every difference. `path.rs` builds paths like Go and confirms
//! them with webpki. This module adds kubeadm's rule that only the first certificate of `ca.crt` is trusted.

use std::net::IpAddr;

use time::OffsetDateTime;

use super::certificate::{Certificate, DistinguishedName, NameAttribute};
use super::chain::{Chain, TrustBundle};
use super::key::{KeyAlgorithm, KeyType, PublicKey};
use super::path::{self, Path, PathRefusal};
use super::profile::{ExtendedUsage, Profile, Tolerance};
use super::strict::KeyPurpose;
use crate::text::{hex, printable, rfc3339};

/// One difference between a certificate and its requirements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CertDifference {
    #[error("it is for another key: certificate sha256:{found}, key sha256:{wanted}")]
    PublicKey { wanted: String, found: String },
    #[error("expected key {wanted}, found {found}")]
    KeyAlgorithm { wanted: KeyAlgorithm, found: String },
    #[error("expected CN {wanted:?}, found {found:?}")]
    CommonName { wanted: String, found: String },
    #[error("O {0:?} is missing")]
    OrganizationMissing(String),
    #[error("unexpected O {0:?}: Kubernetes would treat it as membership of that group")]
    OrganizationExtra(String),
    #[error("unexpected subject attribute {0}")]
    SubjectAttribute(String),
    #[error("SAN DNS:{0} is missing")]
    DnsMissing(String),
    #[error("unexpected SAN DNS:{0}")]
    DnsExtra(String),
    #[error("SAN IP:{0} is missing")]
    IpMissing(IpAddr),
    #[error("unexpected SAN IP:{0}")]
    IpExtra(IpAddr),
    #[error("unexpected SAN {0}")]
    SanExtra(String),
    #[error("extended key usage {0} is missing")]
    UsageMissing(ExtendedUsage),
    #[error("unexpected extended key usage {0}")]
    UsageExtra(KeyPurpose),
    #[error("key usage {0} is missing")]
    KeyUsageMissing(&'static str),
    #[error(
        "its key usage includes encryption, which is forbidden for an ML-DSA key (RFC 9881, 3)"
    )]
    EncryptionUsage,
    #[error("unexpected key usage certificate sign on a leaf")]
    CertSign,
    #[error("it is a CA certificate, but a leaf certificate is required")]
    IsCa,
    #[error("it expired at {0}")]
    Expired(String),
    #[error("it is not valid before {0}")]
    NotYetValid(String),
    #[error(
        "its lifetime is {lives} instead of the requested {asked}: at most {longest} is accepted (limit the lifetime at the signer, request more with certificateValidityPeriod, or accept it with authorities.X.maxLifetime)"
    )]
    LivesTooLong {
        lives: String,
        asked: String,
        longest: String,
    },
    #[error(
        "its lifetime is {lives} instead of the requested {asked}: it would expire before it can be renewed (correct the signer's profile)"
    )]
    LivesTooShort { lives: String, asked: String },
    #[error("{whose} certificate {subject} expired at {at}")]
    IssuerExpired {
        whose: &'static str,
        subject: String,
        at: String,
    },
    #[error("{whose} certificate {subject} is not valid before {at}")]
    IssuerNotYetValid {
        whose: &'static str,
        subject: String,
        at: String,
    },
    #[error("{subject} is signed with {algorithm}, which Kubernetes components refuse")]
    WeakSignature {
        subject: String,
        algorithm: &'static str,
    },
    #[error(
        "no path from it to the trusted {anchors}: {}",
        untrusted_issuer(issuer, anchors)
    )]
    UntrustedIssuer { issuer: String, anchors: String },
    #[error(
        "no path from it to the authority, and another certificate of its chain is damaged: {0}"
    )]
    DamagedIssuer(String),
    #[error(
        "its chain has {bytes} bytes in a TLS handshake, more than the {limit} that Go accepts: remove certificates that do not lead to the authority"
    )]
    HandshakeSize { bytes: usize, limit: usize },
    #[error("a name constraint of its authority forbids its names")]
    NameConstraint,
    #[error("a path length constraint of its authority forbids the chain")]
    PathLength,
    #[error("it is an X.509 v1 certificate: the signer dropped all extensions of the request")]
    NoExtensions,
    #[error("the chain to its authority does not verify: {0}")]
    Path(PathFault),
    #[error(
        "it verifies under {anchor}, but kubeadm uses only the first certificate of the bundle, {first}: unless the CA is being changed, put the issuing root first"
    )]
    NotUnderFirst { anchor: String, first: String },
}

codes!(CertDifference {
    PublicKey, KeyAlgorithm, CommonName, OrganizationMissing, OrganizationExtra, SubjectAttribute, DnsMissing, DnsExtra,
    IpMissing, IpExtra, SanExtra, UsageMissing, UsageExtra, KeyUsageMissing, EncryptionUsage, CertSign, IsCa, Expired,
    NotYetValid, LivesTooLong, LivesTooShort, IssuerExpired, IssuerNotYetValid, WeakSignature, UntrustedIssuer,
    DamagedIssuer, HandshakeSize, NameConstraint, PathLength, NoExtensions, NotUnderFirst;
    Path
});

/// Separates the names of several trusted certificates.
const OR: &str = " or ";

/// The reason why a path to the authority exists but is not valid. Certificates are given by their subject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum PathFault {
    #[error("the signature algorithm of {0} is not supported")]
    UnsupportedAlgorithm(String),
    #[error("an issuer in it is not a CA certificate: {0}")]
    IssuerNotACa(String),
    #[error("the key usage of {0} does not allow it to sign certificates")]
    IssuerMayNotSign(String),
    #[error("the key of {subject} cannot verify signatures: {why}")]
    UnusableIssuerKey { subject: String, why: &'static str },
    #[error("{subject} has the critical extension {oid}, which Kubernetes components do not know")]
    UnknownCriticalExtension { subject: String, oid: String },
    #[error("{0} is not valid while the certificate is")]
    ValidityDisjoint(String),
    #[error(
        "it has more than {} intermediate certificates",
        path::MAX_INTERMEDIATES
    )]
    TooManyIntermediates,
    #[error("{0} does not allow the extended key usage")]
    UsageForbidden(String),
    #[error("its certificate policies are not valid")]
    Policies,
    #[error(
        "too many certificates have the name of an issuer: remove those that do not lead to the authority"
    )]
    TooManyCandidates,
    #[error("a certificate in it has a critical extension that is not supported")]
    UnsupportedCriticalExtension,
    /// Any other refusal of webpki, by its name there.
    #[error("{0}")]
    Webpki(webpki::Error),
}

codes!(PathFault {
    UnsupportedAlgorithm,
    IssuerNotACa,
    IssuerMayNotSign,
    UnusableIssuerKey,
    UnknownCriticalExtension,
    ValidityDisjoint,
    TooManyIntermediates,
    UsageForbidden,
    Policies,
    TooManyCandidates,
    UnsupportedCriticalExtension,
    Webpki
});

/// Returns every difference between `chain` and its profile that `tolerance` does not accept, in a fixed order. If there are
/// none, the chain may be installed.
///
/// `key` is the public half of the private key that belongs to the certificate.
pub fn satisfies(
    chain: &Chain,
    profile: &Profile,
    tolerance: Tolerance,
    key: &PublicKey,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> Vec<CertDifference> {
    let leaf = chain.leaf();
    let mut found = Vec::new();
    compare_key(leaf, profile, key, &mut found);
    compare_subject(leaf.subject(), profile, tolerance, &mut found);
    compare_names(&names_of(leaf), profile, tolerance, &mut found);
    compare_usages(leaf, profile, tolerance, &mut found);
    if now > leaf.not_after() {
        found.push(CertDifference::Expired(rfc3339(leaf.not_after())));
    }
    if now < leaf.not_before() {
        found.push(CertDifference::NotYetValid(rfc3339(leaf.not_before())));
    }
    found.extend(path_differences(chain, trust, now));
    found
}

/// Returns true if subject and names are those of the profile, whatever else differs. Unread attributes count as well: the
/// request for an exchange must have the subject of the certificate (RFC 7030, 4.2.2).
pub fn is_for_names(chain: &Chain, profile: &Profile, tolerance: Tolerance) -> bool {
    let mut found = Vec::new();
    let exact = Tolerance {
        unread_attributes: false,
        ..tolerance
    };
    let leaf = chain.leaf();
    compare_subject(leaf.subject(), profile, exact, &mut found);
    compare_names(&names_of(leaf), profile, tolerance, &mut found);
    found.is_empty()
}

/// Returns the reasons why `chain` does not lead to `trust` at this time, whatever the content and validity of the leaf.
pub fn path_differences(
    chain: &Chain,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> Vec<CertDifference> {
    let mut found = Vec::new();
    if chain.leaf().is_ca() {
        found.push(CertDifference::IsCa);
    }
    compare_path(chain, trust, now, &mut found);
    found
}

/// Returns the usages that a leaf lacks, and whether it is a CA certificate. Additional usages are ignored.
pub fn usage_differences(leaf: &Certificate, usages: &[ExtendedUsage]) -> Vec<CertDifference> {
    let mut found = Vec::new();
    if leaf.is_ca() {
        found.push(CertDifference::IsCa);
    }
    compare_extended_usages(leaf, usages, &mut found);
    compare_key_usage(leaf, &mut found);
    found
}

/// Returns true if `chain` leads to `trust` and each certificate in it is valid now, whatever its names and usages.
pub fn verifies(chain: &Chain, trust: &TrustBundle, now: OffsetDateTime) -> bool {
    let leaf = chain.leaf();
    let differences = path_differences(chain, trust, now);
    let is_kubeadm_rule =
        |difference: &CertDifference| matches!(difference, CertDifference::NotUnderFirst { .. });
    differences.iter().all(is_kubeadm_rule) && now >= leaf.not_before() && now <= leaf.not_after()
}

fn compare_key(
    leaf: &Certificate,
    profile: &Profile,
    key: &PublicKey,
    found: &mut Vec<CertDifference>,
) {
    if leaf.public_key() != key {
        found.push(CertDifference::PublicKey {
            wanted: hex(&key.sha256()),
            found: hex(&leaf.public_key().sha256()),
        });
    }
    found.extend(algorithm_difference(leaf.public_key(), profile.key));
}

/// Returns the difference of a key that is not of this algorithm.
pub fn algorithm_difference(key: &PublicKey, wanted: KeyAlgorithm) -> Option<CertDifference> {
    (*key.key_type() != KeyType::Known(wanted)).then(|| CertDifference::KeyAlgorithm {
        wanted,
        found: key.key_type().to_string(),
    })
}

/// Types of the attributes that CAs add to each subject by their policy and that no component of Kubernetes reads. The
/// authenticator of kube-apiserver reads CN, O and the UID attribute 1.3.6.1.4.1.57683.2
/// (`apiserver/pkg/authentication/request/x509`), etcd and the front proxy read CN.
const UNREAD_ATTRIBUTES: [&str; 8] = [
    "C",
    "ST",
    "L",
    "OU",
    "streetAddress",
    "postalCode",
    "DC",
    "serialNumber",
];

/// Returns the types of the attributes in a subject that [`Tolerance::unread_attributes`] accepts, each once.
pub fn unread_attributes(leaf: &Certificate) -> Vec<&str> {
    let mut kinds: Vec<&str> = Vec::new();
    for attribute in leaf.subject().name_attributes() {
        if is_unread(attribute) && !kinds.contains(&attribute.kind.as_str()) {
            kinds.push(&attribute.kind);
        }
    }
    kinds
}

/// Returns true for an attribute that no component reads, in a relative distinguished name of its own.
fn is_unread(attribute: &NameAttribute) -> bool {
    attribute.is_alone && UNREAD_ATTRIBUTES.contains(&attribute.kind.as_str())
}

/// Compares subjects as sets of (type, value), since signers reorder and re-encode the attributes.
pub(super) fn compare_subject(
    subject: &DistinguishedName,
    profile: &Profile,
    tolerance: Tolerance,
    found: &mut Vec<CertDifference>,
) {
    let names: Vec<_> = subject.values("CN").collect();
    if names != [profile.subject.common_name.as_str()] {
        found.push(CertDifference::CommonName {
            wanted: profile.subject.common_name.clone(),
            found: names.join(", "),
        });
    }
    let wanted = &profile.subject.organizations;
    for organization in wanted {
        if !subject.values("O").any(|value| value == organization) {
            found.push(CertDifference::OrganizationMissing(organization.clone()));
        }
    }
    for attribute in subject.name_attributes() {
        let NameAttribute { kind, value, .. } = attribute;
        match kind.as_str() {
            "CN" => {}
            "O" if wanted.contains(value) => {}
            "O" => found.push(CertDifference::OrganizationExtra(value.to_owned())),
            _ if tolerance.unread_attributes && is_unread(attribute) => {}
            _ => {
                let attribute = format!("{kind}={}", printable(value));
                found.push(CertDifference::SubjectAttribute(attribute));
            }
        }
    }
}

/// The names in subjectAltName.
pub(super) struct FoundNames<'a> {
    pub(super) dns: &'a [String],
    pub(super) ips: &'a [IpAddr],
    pub(super) others: &'a [String],
}

fn names_of(leaf: &Certificate) -> FoundNames<'_> {
    FoundNames {
        dns: leaf.dns_names(),
        ips: leaf.ip_addresses(),
        others: leaf.other_names(),
    }
}

pub(super) fn compare_names(
    names: &FoundNames<'_>,
    profile: &Profile,
    tolerance: Tolerance,
    found: &mut Vec<CertDifference>,
) {
    let own_name =
        |name: &String| tolerance.common_name_as_dns && *name == profile.subject.common_name;
    let (wanted_dns, wanted_ips) = (&profile.sans.dns, &profile.sans.ips);
    let missing_dns = wanted_dns.iter().filter(|name| !names.dns.contains(name));
    found.extend(missing_dns.cloned().map(CertDifference::DnsMissing));
    let missing_ips = wanted_ips.iter().filter(|ip| !names.ips.contains(ip));
    found.extend(missing_ips.copied().map(CertDifference::IpMissing));
    let extra_dns = names
        .dns
        .iter()
        .filter(|name| !wanted_dns.contains(name) && !own_name(name));
    found.extend(extra_dns.map(|name| CertDifference::DnsExtra(printable(name))));
    let extra_ips = names.ips.iter().filter(|ip| !wanted_ips.contains(ip));
    found.extend(extra_ips.copied().map(CertDifference::IpExtra));
    found.extend(names.others.iter().cloned().map(CertDifference::SanExtra));
}

fn compare_usages(
    leaf: &Certificate,
    profile: &Profile,
    tolerance: Tolerance,
    found: &mut Vec<CertDifference>,
) {
    compare_extended_usages(leaf, &profile.usages, found);
    let tolerated: &[ExtendedUsage] = if tolerance.extra_usages {
        &[ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth]
    } else {
        &[]
    };
    let allowed = profile.usages.iter().chain(tolerated);
    let allowed: Vec<KeyPurpose> = allowed.copied().map(KeyPurpose::from).collect();
    for purpose in leaf.sorted_purposes() {
        if !allowed.contains(purpose) {
            found.push(CertDifference::UsageExtra(purpose.clone()));
        }
    }
    compare_key_usage(leaf, found);
}

fn compare_extended_usages(
    leaf: &Certificate,
    wanted: &[ExtendedUsage],
    found: &mut Vec<CertDifference>,
) {
    let has = leaf.purposes().unwrap_or_default();
    let missing = wanted
        .iter()
        .filter(|usage| !has.contains(&KeyPurpose::from(**usage)));
    found.extend(missing.copied().map(CertDifference::UsageMissing));
}

fn compare_key_usage(leaf: &Certificate, found: &mut Vec<CertDifference>) {
    // Without the extension, every usage is allowed (RFC 5280, 4.2.1.3).
    if let Some(usage) = leaf.key_usage() {
        if !usage.digital_signature {
            found.push(CertDifference::KeyUsageMissing("digital signature"));
        }
        // Its only use is TLS key exchange by RSA encryption, so no other key needs it.
        let key = leaf.public_key().key_type();
        if !usage.key_encipherment && key.is_rsa() {
            found.push(CertDifference::KeyUsageMissing("key encipherment"));
        }
        if (usage.key_encipherment || usage.other_encryption) && key.is_ml_dsa() {
            found.push(CertDifference::EncryptionUsage);
        }
        if usage.cert_sign {
            found.push(CertDifference::CertSign);
        }
    }
}

fn compare_path(
    chain: &Chain,
    trust: &TrustBundle,
    now: OffsetDateTime,
    found: &mut Vec<CertDifference>,
) {
    let bytes = chain.handshake_size();
    if bytes > GO_CERTIFICATE_MESSAGE_LIMIT {
        found.push(CertDifference::HandshakeSize {
            bytes,
            limit: GO_CERTIFICATE_MESSAGE_LIMIT,
        });
    }
    let weak = chain.leaf().weak_signature();
    if let Some(algorithm) = weak {
        found.push(CertDifference::WeakSignature {
            subject: chain.leaf().subject().to_string(),
            algorithm,
        });
    }
    if weak.is_some() || chain.leaf().is_ca() {
        // The path builder would report the same problem again.
        return;
    }
    match path(chain, trust.certificates(), now) {
        Err(difference) => found.push(difference),
        Ok(used) => {
            found.extend(issuer_differences(&used, now));
            let first = trust.first();
            // A path that already ends at the first certificate needs no second search.
            if used.anchor != first && path(chain, std::slice::from_ref(first), now).is_err() {
                found.push(CertDifference::NotUnderFirst {
                    anchor: used.anchor.subject().to_string(),
                    first: first.subject().to_string(),
                });
            }
        }
    }
}

/// Go's `maxHandshakeCertificateMsg` (`crypto/tls/common.go`): largest certificate message that Go reads, in bytes.
pub(super) const GO_CERTIFICATE_MESSAGE_LIMIT: usize = 262_144;

fn path<'a>(
    chain: &'a Chain,
    anchors: &'a [Certificate],
    now: OffsetDateTime,
) -> Result<Path<'a>, CertDifference> {
    let moment = moment(chain.leaf(), now);
    let limit = path::GO_CANDIDATE_LIMIT;
    path::build(chain.leaf(), chain.intermediates(), anchors, moment, limit).map_err(|refusal| {
        match (refusal, chain.damaged()) {
            (PathRefusal::NoIssuer, Some(why)) => CertDifference::DamagedIssuer(why.to_owned()),
            (refusal, _) => difference(refusal, chain.leaf(), anchors, now),
        }
    })
}

/// Returns the time nearest to `now` at which the leaf is valid. The path is built for this time, since the validity of the
/// leaf is reported separately.
fn moment(leaf: &Certificate, now: OffsetDateTime) -> OffsetDateTime {
    now.clamp(leaf.not_before(), leaf.not_after().max(leaf.not_before()))
}

/// Reduces `chain` to the certificates of its path to `trust`, which are then written to disk. A chain without a path is
/// returned unchanged; [`satisfies`] reports the reason.
pub fn along_path(chain: Chain, trust: &TrustBundle, now: OffsetDateTime) -> Chain {
    // Nothing can be omitted.
    if chain.intermediates().is_empty() && chain.damaged().is_none() {
        return chain;
    }
    let (leaf, limit) = (chain.leaf(), path::ANSWER_CANDIDATE_LIMIT);
    let found = |anchors| {
        let path = path::build(
            leaf,
            chain.intermediates(),
            anchors,
            moment(leaf, now),
            limit,
        );
        let path = path.ok()?;
        Some(path.intermediates.into_iter().cloned().collect::<Vec<_>>())
    };
    // A path to the first certificate satisfies kubeadm as well.
    match found(std::slice::from_ref(trust.first())).or_else(|| found(trust.certificates())) {
        Some(intermediates) => chain.with_intermediates(intermediates),
        None => chain,
    }
}

fn untrusted_issuer(issuer: &str, anchors: &str) -> String {
    if anchors.split(OR).any(|anchor| anchor == issuer) {
        "its issuer has this name and another key (the signer's CA is not the one in the CA file)"
            .to_owned()
    } else {
        format!("its issuer is {issuer}")
    }
}

/// Converts the reason for a missing path.
fn difference(
    refusal: PathRefusal<'_>,
    leaf: &Certificate,
    anchors: &[Certificate],
    now: OffsetDateTime,
) -> CertDifference {
    match refusal {
        PathRefusal::NoIssuer => CertDifference::UntrustedIssuer {
            issuer: leaf.issuer().to_string(),
            anchors: anchors
                .iter()
                .map(|anchor| anchor.subject().to_string())
                .collect::<Vec<_>>()
                .join(OR),
        },
        PathRefusal::Time(issuer, is_anchor) => {
            let whose = if is_anchor {
                "authority's"
            } else {
                "intermediate"
            };
            issuer_validity(whose, issuer, now).unwrap_or_else(|| {
                CertDifference::Path(PathFault::ValidityDisjoint(issuer.subject().to_string()))
            })
        }
        PathRefusal::Difference(difference) => difference,
    }
}

fn issuer_differences(path: &Path<'_>, now: OffsetDateTime) -> Vec<CertDifference> {
    let intermediates = path
        .intermediates
        .iter()
        .map(|certificate| ("intermediate", *certificate));
    intermediates
        .chain([("authority's", path.anchor)])
        .filter_map(|(whose, certificate)| issuer_validity(whose, certificate, now))
        .collect()
}

/// Returns the problem with an issuer's validity at this time, if any.
fn issuer_validity(
    whose: &'static str,
    issuer: &Certificate,
    now: OffsetDateTime,
) -> Option<CertDifference> {
    let subject = issuer.subject().to_string();
    if now > issuer.not_after() {
        Some(CertDifference::IssuerExpired {
            whose,
            subject,
            at: rfc3339(issuer.not_after()),
        })
    } else if now < issuer.not_before() {
        Some(CertDifference::IssuerNotYetValid {
            whose,
            subject,
            at: rfc3339(issuer.not_before()),
        })
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
