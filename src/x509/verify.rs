//! The check that stands between a signer's answer and the disk.
//!
//! [`satisfies`] compares a chain with the wish and returns every difference. Paths are built by webpki
//! (RFC 5280, 6.1, with name constraints and path lengths); added are the rules by which Go and kubeadm are
//! stricter or simpler: an anchor's own validity and path length count, and kubeadm only ever looks at the first
//! certificate of `ca.crt`.

use std::net::IpAddr;
use std::time::Duration;

use rustls_pki_types::{
    AlgorithmIdentifier, CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime,
};
use time::OffsetDateTime;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::x509::AlgorithmIdentifier as ParsedAlgorithm;

use super::certificate::Certificate;
use super::chain::{Chain, TrustBundle};
use super::key::{KeyAlgorithm, KeyType, PublicKey, hex};
use super::{ExtendedUsage, Profile, Tolerance};

/// One way in which a certificate is not what was wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum Difference {
    #[error("it is for another key: certificate sha256:{found}, key sha256:{wanted}")]
    PublicKey { wanted: String, found: String },
    #[error("key is {found}, wanted {wanted}")]
    KeyAlgorithm { wanted: KeyAlgorithm, found: String },
    #[error("CN is {found:?}, wanted {wanted:?}")]
    CommonName { wanted: String, found: String },
    #[error("O {0:?} is missing")]
    OrganizationMissing(String),
    #[error("O {0:?} is not wanted: Kubernetes would read it as membership of that group")]
    OrganizationExtra(String),
    #[error("subject attribute {0} is not wanted")]
    SubjectAttribute(String),
    #[error("SAN DNS:{0} is missing")]
    DnsMissing(String),
    #[error("SAN DNS:{0} is not wanted")]
    DnsExtra(String),
    #[error("SAN IP:{0} is missing")]
    IpMissing(IpAddr),
    #[error("SAN IP:{0} is not wanted")]
    IpExtra(IpAddr),
    #[error("SAN {0} is not wanted")]
    SanExtra(String),
    #[error("extended key usage {0} is missing")]
    UsageMissing(ExtendedUsage),
    #[error("extended key usage {0} is not wanted")]
    UsageExtra(String),
    #[error("key usage {0} is missing")]
    KeyUsageMissing(&'static str),
    #[error("key usage certificate sign is not wanted on a leaf")]
    CertSign,
    #[error("it is a CA certificate, a leaf is wanted")]
    IsCa,
    #[error("it expired at {0}")]
    Expired(String),
    #[error("it is not valid before {0}")]
    NotYetValid(String),
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
    #[error("no path from it to the trusted {anchors}: its issuer is {issuer}")]
    UntrustedIssuer { issuer: String, anchors: String },
    #[error("a name constraint of its authority forbids its names")]
    NameConstraint,
    #[error("a path length constraint of its authority forbids the chain")]
    PathLength,
    #[error(
        "it is an X.509 v1 certificate: whoever signed it dropped all extensions of the request"
    )]
    NoExtensions,
    #[error("the chain to its authority does not verify: {0}")]
    Path(String),
    #[error(
        "it verifies under {anchor}, but kubeadm only looks at the first certificate of the bundle, {first}: put the issuing root first"
    )]
    NotUnderFirst { anchor: String, first: String },
}

/// Every difference between the wish and `chain`, in a fixed order, without what is tolerated; empty means it may be
/// installed.
///
/// `key` is the public key of the private key that the certificate will stand beside.
pub fn satisfies(
    chain: &Chain,
    profile: &Profile,
    tolerance: Tolerance,
    key: &PublicKey,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> Vec<Difference> {
    let leaf = chain.leaf();
    let mut found = Vec::new();
    compare_key(leaf, profile, key, &mut found);
    compare_subject(leaf, profile, &mut found);
    compare_sans(leaf, profile, tolerance, &mut found);
    compare_usages(leaf, profile, tolerance, &mut found);
    if now > leaf.not_after() {
        found.push(Difference::Expired(rfc3339(leaf.not_after())));
    }
    if now < leaf.not_before() {
        found.push(Difference::NotYetValid(rfc3339(leaf.not_before())));
    }
    found.extend(path_differences(chain, trust, now));
    found
}

/// True when subject and names are the wanted ones, whatever else differs.
pub fn is_for_names(chain: &Chain, profile: &Profile, tolerance: Tolerance) -> bool {
    let mut found = Vec::new();
    compare_subject(chain.leaf(), profile, &mut found);
    compare_sans(chain.leaf(), profile, tolerance, &mut found);
    found.is_empty()
}

/// What keeps `chain` from leading to `trust` at this time, whatever is in the leaf and its own validity aside.
pub fn path_differences(
    chain: &Chain,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> Vec<Difference> {
    let mut found = Vec::new();
    if chain.leaf().is_ca() {
        found.push(Difference::IsCa);
    }
    compare_path(chain, trust, now, &mut found);
    found
}

/// True when `chain` leads to `trust` and every certificate in it is valid now; names and usages do not count.
pub fn verifies(chain: &Chain, trust: &TrustBundle, now: OffsetDateTime) -> bool {
    let leaf = chain.leaf();
    let differences = path_differences(chain, trust, now);
    let kubeadm_only =
        |difference: &Difference| matches!(difference, Difference::NotUnderFirst { .. });
    differences.iter().all(kubeadm_only) && now >= leaf.not_before() && now <= leaf.not_after()
}

fn compare_key(
    leaf: &Certificate,
    profile: &Profile,
    key: &PublicKey,
    found: &mut Vec<Difference>,
) {
    if leaf.public_key() != key {
        found.push(Difference::PublicKey {
            wanted: hex(&key.sha256()),
            found: hex(&leaf.public_key().sha256()),
        });
    }
    if *leaf.public_key().key_type() != KeyType::Known(profile.key) {
        found.push(Difference::KeyAlgorithm {
            wanted: profile.key,
            found: leaf.public_key().key_type().to_string(),
        });
    }
}

/// Subjects are compared as sets of (type, value): signers reorder and re-encode them freely.
fn compare_subject(leaf: &Certificate, profile: &Profile, found: &mut Vec<Difference>) {
    let subject = leaf.subject();
    let names: Vec<_> = subject.values("CN").collect();
    if names != [profile.subject.common_name.as_str()] {
        found.push(Difference::CommonName {
            wanted: profile.subject.common_name.clone(),
            found: names.join(", "),
        });
    }
    let wanted = &profile.subject.organizations;
    for organization in wanted {
        if !subject.values("O").any(|value| value == organization) {
            found.push(Difference::OrganizationMissing(organization.clone()));
        }
    }
    for (kind, value) in subject.attributes() {
        match kind {
            "CN" => {}
            "O" if wanted.iter().any(|organization| organization == value) => {}
            "O" => found.push(Difference::OrganizationExtra(value.to_owned())),
            _ => found.push(Difference::SubjectAttribute(format!("{kind}={value}"))),
        }
    }
}

fn compare_sans(
    leaf: &Certificate,
    profile: &Profile,
    tolerance: Tolerance,
    found: &mut Vec<Difference>,
) {
    let own_name = |name: &String| tolerance.own_name && *name == profile.subject.common_name;
    let (wanted_dns, wanted_ips) = (&profile.sans.dns, &profile.sans.ips);
    let missing_dns = wanted_dns
        .iter()
        .filter(|name| !leaf.dns_names().contains(name));
    found.extend(missing_dns.cloned().map(Difference::DnsMissing));
    let missing_ips = wanted_ips
        .iter()
        .filter(|ip| !leaf.ip_addresses().contains(ip));
    found.extend(missing_ips.copied().map(Difference::IpMissing));
    let extra_dns = leaf
        .dns_names()
        .iter()
        .filter(|name| !wanted_dns.contains(name) && !own_name(name));
    found.extend(extra_dns.cloned().map(Difference::DnsExtra));
    let extra_ips = leaf
        .ip_addresses()
        .iter()
        .filter(|ip| !wanted_ips.contains(ip));
    found.extend(extra_ips.copied().map(Difference::IpExtra));
    found.extend(leaf.other_names().iter().cloned().map(Difference::SanExtra));
}

fn compare_usages(
    leaf: &Certificate,
    profile: &Profile,
    tolerance: Tolerance,
    found: &mut Vec<Difference>,
) {
    let has = leaf.extended_usages().unwrap_or_default();
    for usage in &profile.usages {
        if !has.contains(&usage.to_string()) {
            found.push(Difference::UsageMissing(*usage));
        }
    }
    let tolerated: &[ExtendedUsage] = if tolerance.extra_usages {
        &[ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth]
    } else {
        &[]
    };
    for usage in has {
        let mut allowed = profile.usages.iter().chain(tolerated);
        if !allowed.any(|allowed| allowed.to_string() == *usage) {
            found.push(Difference::UsageExtra(usage.clone()));
        }
    }
    // Without the extension every usage is allowed (RFC 5280, 4.2.1.3).
    if let Some(usage) = leaf.key_usage() {
        if !usage.digital_signature {
            found.push(Difference::KeyUsageMissing("digital signature"));
        }
        // TLS key exchange by RSA encryption is the only use of it, so an EC key does without.
        if !usage.key_encipherment && leaf.public_key().key_type().is_rsa() {
            found.push(Difference::KeyUsageMissing("key encipherment"));
        }
        if usage.cert_sign {
            found.push(Difference::CertSign);
        }
    }
}

fn compare_path(
    chain: &Chain,
    trust: &TrustBundle,
    now: OffsetDateTime,
    found: &mut Vec<Difference>,
) {
    let certificates = || std::iter::once(chain.leaf()).chain(chain.intermediates());
    let weak: Vec<_> = certificates()
        .filter_map(|certificate| {
            let algorithm = certificate.weak_signature()?;
            Some(Difference::WeakSignature {
                subject: certificate.subject().to_string(),
                algorithm,
            })
        })
        .collect();
    let refused = !weak.is_empty() || chain.leaf().is_ca();
    found.extend(weak);
    if refused {
        // The path builder would only repeat it in other words.
        return;
    }
    match path(chain, trust.certificates(), now) {
        Err(difference) => found.push(difference),
        Ok(used) => {
            found.extend(issuer_differences(&used, now));
            let first = trust.first();
            // A path that ends there already needs no second look.
            if let Some(anchor) = used.anchor
                && anchor.der() != first.der()
                && path(chain, std::slice::from_ref(first), now).is_err()
            {
                found.push(Difference::NotUnderFirst {
                    anchor: anchor.subject().to_string(),
                    first: first.subject().to_string(),
                });
            }
        }
    }
}

/// A verified path, by our own certificates.
struct Path<'a> {
    intermediates: Vec<&'a Certificate>,
    anchor: Option<&'a Certificate>,
}

fn path<'a>(
    chain: &'a Chain,
    anchors: &'a [Certificate],
    now: OffsetDateTime,
) -> Result<Path<'a>, Difference> {
    let leaf = chain.leaf();
    let untrusted = || Difference::UntrustedIssuer {
        issuer: leaf.issuer().to_string(),
        anchors: anchors
            .iter()
            .map(|anchor| anchor.subject().to_string())
            .collect::<Vec<_>>()
            .join(" or "),
    };
    let anchor_ders: Vec<CertificateDer<'_>> =
        anchors.iter().map(|anchor| anchor.der().into()).collect();
    let trust_anchors: Vec<TrustAnchor<'_>> = anchor_ders
        .iter()
        .filter_map(|der| webpki::anchor_from_trusted_cert(der).ok())
        .collect();
    let intermediates: Vec<CertificateDer<'_>> = chain
        .intermediates()
        .iter()
        .map(|certificate| certificate.der().into())
        .collect();
    let leaf_der: CertificateDer<'_> = leaf.der().into();
    let end_entity = EndEntityCert::try_from(&leaf_der).map_err(|error| match error {
        webpki::Error::UnsupportedCertVersion => Difference::NoExtensions,
        other => Difference::Path(other.to_string()),
    })?;
    // The leaf's own validity is reported on its own; the path is built at the nearest moment it is valid.
    let moment = now.clamp(leaf.not_before(), leaf.not_after().max(leaf.not_before()));
    let moment = UnixTime::since_unix_epoch(Duration::from_secs(
        moment.unix_timestamp().try_into().unwrap_or(0),
    ));

    let mut verified = None;
    for usage in usages_to_check(leaf) {
        let result = end_entity.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &trust_anchors,
            &intermediates,
            moment,
            usage,
            None,
            None,
        );
        match result {
            Ok(path) => verified = Some(path),
            Err(error) => {
                return Err(refusal(error).unwrap_or_else(untrusted));
            }
        }
    }
    let verified = verified.ok_or_else(untrusted)?;
    let used: Vec<&Certificate> = verified
        .intermediate_certificates()
        .filter_map(|used| {
            chain
                .intermediates()
                .iter()
                .find(|certificate| certificate.der() == used.der().as_ref())
        })
        .collect();
    let last = used.last().copied().unwrap_or(leaf);
    let anchor = anchors.iter().find(|anchor| {
        verified.anchor().subject_public_key_info.as_ref() == spki_content(anchor)
            && last.names_issuer(anchor)
    });
    // webpki takes an anchor as name and key only; Go also honours its path length.
    if let Some(limit) = anchor.and_then(Certificate::path_len) {
        let below = used
            .iter()
            .filter(|certificate| !certificate.is_self_issued())
            .count();
        if below > limit as usize {
            return Err(Difference::PathLength);
        }
    }
    Ok(Path {
        intermediates: used,
        anchor,
    })
}

/// A failed path in words; `None` when no authority's key fits, which the caller names better.
fn refusal(error: webpki::Error) -> Option<Difference> {
    use webpki::Error;
    let path = |why: &str| Some(Difference::Path(why.to_owned()));
    match error {
        Error::UnknownIssuer
        | Error::InvalidSignatureForPublicKey
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => None,
        Error::NameConstraintViolation => Some(Difference::NameConstraint),
        Error::PathLenConstraintViolated => Some(Difference::PathLength),
        Error::CertExpired { .. } => path("an intermediate certificate has expired"),
        Error::CertNotValidYet { .. } => path("an intermediate certificate is not valid yet"),
        Error::RequiredEkuNotFoundContext(_) => {
            path("an intermediate certificate does not allow the extended key usage")
        }
        Error::EndEntityUsedAsCa => path("an issuer in it is not a CA certificate"),
        Error::UnsupportedCriticalExtension => {
            path("it has a critical extension that nobody here understands")
        }
        Error::UnsupportedSignatureAlgorithmContext(_) => {
            path("a signature algorithm in it is not supported")
        }
        other => path(&format!("{other:?}")),
    }
}

/// webpki hands out the content of the SubjectPublicKeyInfo SEQUENCE, without tag and length.
fn spki_content(certificate: &Certificate) -> &[u8] {
    let der = certificate.public_key().spki_der();
    let header = match der.get(1) {
        Some(length) if *length < 0x80 => 2,
        Some(length) => 2 + usize::from(length & 0x7f),
        None => 0,
    };
    der.get(header..).unwrap_or_default()
}

/// Intermediates may restrict extended usages, so the path is checked for each that the leaf has.
fn usages_to_check(leaf: &Certificate) -> Vec<KeyUsage> {
    let has = |usage: ExtendedUsage| {
        leaf.extended_usages()
            .is_none_or(|usages| usages.contains(&usage.to_string()))
    };
    let mut usages = Vec::new();
    if has(ExtendedUsage::ServerAuth) {
        usages.push(KeyUsage::server_auth());
    }
    if has(ExtendedUsage::ClientAuth) {
        usages.push(KeyUsage::client_auth());
    }
    if usages.is_empty() {
        // Neither: the missing usages are reported already, this only fails the path in the same words.
        usages.push(KeyUsage::client_auth());
    }
    usages
}

fn issuer_differences(path: &Path<'_>, now: OffsetDateTime) -> Vec<Difference> {
    let intermediates = path
        .intermediates
        .iter()
        .map(|certificate| ("intermediate", *certificate));
    let anchor = path.anchor.map(|certificate| ("authority's", certificate));
    let mut found = Vec::new();
    for (whose, certificate) in intermediates.chain(anchor) {
        let subject = certificate.subject().to_string();
        if now > certificate.not_after() {
            found.push(Difference::IssuerExpired {
                whose,
                subject,
                at: rfc3339(certificate.not_after()),
            });
        } else if now < certificate.not_before() {
            found.push(Difference::IssuerNotYetValid {
                whose,
                subject,
                at: rfc3339(certificate.not_before()),
            });
        }
    }
    found
}

/// True when `issuer`'s key made the signature of `certificate`, whatever the extensions say.
pub(super) fn signed_by(certificate: &Certificate, issuer: &Certificate) -> bool {
    use x509_parser::prelude::FromDer;
    let Ok((_, parsed)) = x509_parser::certificate::X509Certificate::from_der(certificate.der())
    else {
        return false;
    };
    certificate.names_issuer(issuer)
        && signature_is_valid(
            issuer.public_key(),
            &parsed.signature_algorithm,
            parsed.tbs_certificate.as_ref(),
            &parsed.signature_value.data,
        )
}

pub(super) fn signature_is_valid(
    key: &PublicKey,
    algorithm: &ParsedAlgorithm<'_>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    use rcgen::PublicKeyData;
    let oid = algorithm.algorithm.as_bytes();
    let names_oid = |identifier: &AlgorithmIdentifier| {
        // An OBJECT IDENTIFIER: tag, short length, content.
        identifier.as_ref().get(2..2 + oid.len()) == Some(oid)
    };
    let spki = spki_algorithm(key);
    webpki::ALL_VERIFICATION_ALGS.iter().copied().any(
        |candidate: &dyn SignatureVerificationAlgorithm| {
            names_oid(&candidate.signature_alg_id())
                && candidate.public_key_alg_id().as_ref() == spki
                && candidate
                    .verify_signature(key.der_bytes(), message, signature)
                    .is_ok()
        },
    )
}

/// The content of the AlgorithmIdentifier inside a SubjectPublicKeyInfo, as pki-types spells it.
fn spki_algorithm(key: &PublicKey) -> &'static [u8] {
    use rustls_pki_types::alg_id;
    match key.key_type() {
        KeyType::Known(KeyAlgorithm::EcdsaP256) => alg_id::ECDSA_P256.as_ref(),
        KeyType::Known(KeyAlgorithm::EcdsaP384) => alg_id::ECDSA_P384.as_ref(),
        KeyType::Known(KeyAlgorithm::EcdsaP521) => alg_id::ECDSA_P521.as_ref(),
        _ => alg_id::RSA_ENCRYPTION.as_ref(),
    }
}

/// A moment as messages show it: RFC 3339, whole seconds.
pub fn rfc3339(time: OffsetDateTime) -> String {
    let whole = time.replace_nanosecond(0).unwrap_or(time);
    whole
        .format(&time::format_description::well_known::Rfc3339)
        .unwrap_or_else(|_| time.to_string())
}

#[cfg(test)]
mod tests;
