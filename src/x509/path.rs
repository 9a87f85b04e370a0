//! Builds the path from a certificate to a trust anchor with the rules of Go's `Certificate.Verify` (`verify.go`, Go 1.26).
//!
//! All candidates are tried, in Go's order, so a decoy with the name of the right issuer does no harm. A path is valid if Go
//! accepts it with the anchor included, and webpki (RFC 5280, 6.1) accepts exactly this path as well.

use std::collections::BTreeMap;
use std::time::Duration;

use rustls_pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter};

use super::certificate::Certificate;
use super::constraints::{constrains_only_subjects, violates_constraints};
use super::policies::policies_are_valid;
use super::profile::ExtendedUsage;
use super::signature::{ALGORITHMS, MAX_SIGNATURE_CHECKS, is_supported};
use super::strict::KeyPurpose;
use super::verify::{CertDifference, PathFault};

/// Largest number of intermediates in a path; webpki has the same limit.
pub(super) const MAX_INTERMEDIATES: usize = 6;

/// Go's `maxChainSignatureChecks`: largest number of candidates that a Go program considers.
pub(super) const GO_CANDIDATE_LIMIT: usize = 100;

/// Largest number of candidates that are considered in a signer's response, which may contain decoys.
pub(super) const ANSWER_CANDIDATE_LIMIT: usize = 1000;

/// A verified path.
#[derive(Debug)]
pub(super) struct Path<'a> {
    /// Nearest to the leaf first.
    pub(super) intermediates: Vec<&'a Certificate>,
    pub(super) anchor: &'a Certificate,
}

/// The reason why there is no path; of several, that of the longest path.
#[derive(Debug)]
pub(super) enum PathRefusal<'a> {
    /// No candidate is the issuer.
    NoIssuer,
    /// Issuer outside its validity; true if it is an anchor.
    Time(&'a Certificate, bool),
    /// Any other reason.
    Difference(CertDifference),
}

impl From<PathFault> for PathRefusal<'_> {
    fn from(fault: PathFault) -> Self {
        PathRefusal::Difference(CertDifference::Path(fault))
    }
}

/// Finds a path from `leaf` through `candidates` to one of `anchors` that is valid at `moment` for all TLS usages of the
/// leaf.
///
/// # Errors
/// No path, or none among the first `limit` candidates.
pub(super) fn build<'a>(
    leaf: &'a Certificate,
    candidates: &'a [Certificate],
    anchors: &'a [Certificate],
    moment: OffsetDateTime,
    limit: usize,
) -> Result<Path<'a>, PathRefusal<'a>> {
    if let Some(fault) = unknown_extension(leaf) {
        return Err(fault.into());
    }
    let mut builder = PathBuilder {
        candidates,
        anchors,
        moment,
        usages: usages_to_check(leaf),
        considered: 0,
        limit,
        signatures: BTreeMap::new(),
        refusal: (0, PathRefusal::NoIssuer),
    };
    let mut chain = vec![leaf];
    match builder.extend(&mut chain) {
        Some(anchor) => Ok(Path {
            intermediates: chain.split_off(1),
            anchor,
        }),
        None => Err(builder.refusal.1),
    }
}

struct PathBuilder<'a> {
    candidates: &'a [Certificate],
    anchors: &'a [Certificate],
    moment: OffsetDateTime,
    usages: Vec<ExtendedUsage>,
    considered: usize,
    limit: usize,
    /// Results of signature checks: true if the second certificate signed the first. The keys are addresses of their bytes.
    signatures: BTreeMap<(usize, usize), bool>,
    /// The reason so far, with the length of the path.
    refusal: (usize, PathRefusal<'a>),
}

impl<'a> PathBuilder<'a> {
    /// Extends `chain` to an anchor. Go: `buildChains`.
    fn extend(&mut self, chain: &mut Vec<&'a Certificate>) -> Option<&'a Certificate> {
        let child = *chain.last()?;
        for anchor in parents(child, self.anchors) {
            if self.may_follow(chain, anchor, true) {
                match self.verify(chain, anchor) {
                    Ok(()) => return Some(anchor),
                    Err(refusal) => self.refuse(chain.len() + 1, refusal),
                }
            }
        }
        for parent in parents(child, self.candidates) {
            if !self.may_follow(chain, parent, false) {
                continue;
            }
            if chain.len() > MAX_INTERMEDIATES {
                self.refuse(chain.len(), PathFault::TooManyIntermediates.into());
                continue;
            }
            chain.push(parent);
            if let Some(anchor) = self.extend(chain) {
                return Some(anchor);
            }
            chain.pop();
        }
        None
    }

    fn refuse(&mut self, length: usize, refusal: PathRefusal<'a>) {
        if length > self.refusal.0 {
            self.refusal = (length, refusal);
        }
    }

    /// Go: `considerCandidate` with `CheckSignatureFrom` and `isValid`.
    fn may_follow(
        &mut self,
        chain: &[&'a Certificate],
        parent: &'a Certificate,
        is_anchor: bool,
    ) -> bool {
        let Some(child) = chain.last().copied() else {
            return false;
        };
        if self.considered >= self.limit {
            self.refuse(usize::MAX, PathFault::TooManyCandidates.into());
            return false;
        }
        self.considered += 1;
        if chain.iter().any(|one| is_same_authority(one, parent)) {
            return false;
        }
        match self.refusal_of(chain, child, parent, is_anchor) {
            Ok(()) => true,
            Err(None) => false,
            Err(Some(refusal)) => {
                self.refuse(chain.len(), refusal);
                false
            }
        }
    }

    fn refusal_of(
        &mut self,
        chain: &[&'a Certificate],
        child: &'a Certificate,
        parent: &'a Certificate,
        is_anchor: bool,
    ) -> Result<(), Option<PathRefusal<'a>>> {
        let refused = |difference| Err(Some(PathRefusal::Difference(difference)));
        let faulty = |fault: PathFault| Err(Some(fault.into()));
        // Go verifies no signature with MD5, and since 1.18 none with SHA-1.
        if let Some(algorithm) = child.weak_signature() {
            return refused(CertDifference::WeakSignature {
                subject: subject(child),
                algorithm,
            });
        }
        if !is_supported(child.signature_algorithm()) {
            return faulty(PathFault::UnsupportedAlgorithm(subject(child)));
        }
        if let Some(why) = parent.unusable_key() {
            return faulty(PathFault::UnusableIssuerKey {
                subject: subject(parent),
                why,
            });
        }
        if !self.is_signed_by(child, parent)? {
            return Err(None);
        }
        let extensions = parent.extensions();
        let is_ca = match extensions.basic_constraints {
            Some(constraints) => constraints.ca,
            // Old roots have no extensions.
            None => is_anchor && parent.version() < 3,
        };
        if !is_ca {
            return faulty(PathFault::IssuerNotACa(subject(parent)));
        }
        if !parent.may_sign() {
            return faulty(PathFault::IssuerMayNotSign(subject(parent)));
        }
        if let Some(fault) = unknown_extension(parent) {
            return faulty(fault);
        }
        if self.moment < parent.not_before() || self.moment > parent.not_after() {
            return Err(Some(PathRefusal::Time(parent, is_anchor)));
        }
        // Unlike RFC 5280, Go counts self-issued certificates as well.
        let below = u64::try_from(chain.len() - 1).unwrap_or(u64::MAX);
        let limit = extensions
            .basic_constraints
            .and_then(|found| found.path_len);
        match limit {
            Some(limit) if below > limit => refused(CertDifference::PathLength),
            _ => Ok(()),
        }
    }

    fn is_signed_by(
        &mut self,
        child: &'a Certificate,
        parent: &'a Certificate,
    ) -> Result<bool, Option<PathRefusal<'a>>> {
        let pair = (child.der().as_ptr().addr(), parent.der().as_ptr().addr());
        if let Some(known) = self.signatures.get(&pair) {
            return Ok(*known);
        }
        if self.signatures.len() >= MAX_SIGNATURE_CHECKS {
            self.refuse(usize::MAX, PathFault::TooManyCandidates.into());
            return Err(None);
        }
        let signed = child.is_signed_by(parent);
        self.signatures.insert(pair, signed);
        Ok(signed)
    }

    /// Verifies the rules for the whole path. Go: the end of `Verify`.
    fn verify(
        &self,
        chain: &[&'a Certificate],
        anchor: &'a Certificate,
    ) -> Result<(), PathRefusal<'a>> {
        let whole: Vec<&Certificate> = chain.iter().copied().chain([anchor]).collect();
        if !policies_are_valid(&whole) {
            return Err(PathFault::Policies.into());
        }
        for usage in &self.usages {
            if let Some(one) = whole.iter().rev().find(|one| !one.allows(*usage)) {
                return Err(PathFault::UsageForbidden(subject(one)).into());
            }
        }
        if violates_constraints(&whole) {
            return Err(PathRefusal::Difference(CertDifference::NameConstraint));
        }
        match self.verify_with_webpki(chain, anchor) {
            // The last of its checks.
            Err(webpki::Error::NameConstraintViolation) if constrains_only_subjects(&whole) => {
                Ok(())
            }
            other => other.map_err(|error| PathRefusal::Difference(webpki_difference(error))),
        }
    }

    fn verify_with_webpki(
        &self,
        chain: &[&Certificate],
        anchor: &Certificate,
    ) -> Result<(), webpki::Error> {
        let (leaf, intermediates) = chain.split_first().ok_or(webpki::Error::UnknownIssuer)?;
        let anchor: CertificateDer<'_> = anchor.der().into();
        let anchors = [webpki::anchor_from_trusted_cert(&anchor)?];
        let intermediates: Vec<CertificateDer<'_>> =
            intermediates.iter().map(|one| one.der().into()).collect();
        let leaf: CertificateDer<'_> = leaf.der().into();
        let leaf = EndEntityCert::try_from(&leaf)?;
        let seconds = self.moment.unix_timestamp().try_into().unwrap_or(0);
        let moment = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        leaf.verify_for_usage(
            &ALGORITHMS,
            &anchors,
            &intermediates,
            moment,
            UsagesAreChecked,
            None,
            None,
        )?;
        Ok(())
    }
}

/// Skips the extended key usages, which [`Certificate::allows`] checks, as webpki does not support anyExtendedKeyUsage.
struct UsagesAreChecked;

impl ExtendedKeyUsageValidator for UsagesAreChecked {
    fn validate(&self, _usages: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}

fn subject(certificate: &Certificate) -> String {
    certificate.subject().to_string()
}

/// Returns the fault of a certificate with a critical extension that Kubernetes components do not know.
fn unknown_extension(certificate: &Certificate) -> Option<PathFault> {
    let oid = certificate.extensions().unhandled_critical.clone()?;
    Some(PathFault::UnknownCriticalExtension {
        subject: subject(certificate),
        oid,
    })
}

fn webpki_difference(error: webpki::Error) -> CertDifference {
    use webpki::Error;
    CertDifference::Path(match error {
        Error::UnsupportedCertVersion => return CertDifference::NoExtensions,
        Error::NameConstraintViolation => return CertDifference::NameConstraint,
        Error::PathLenConstraintViolated => return CertDifference::PathLength,
        Error::UnsupportedCriticalExtension => PathFault::UnsupportedCriticalExtension,
        Error::UnsupportedSignatureAlgorithmContext(_)
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            PathFault::UnsupportedAlgorithm("a certificate in it".to_owned())
        }
        other => PathFault::Webpki(other),
    })
}

/// Returns the certificates with the name of `child`'s issuer, the most likely first. Go: `findPotentialParents`.
fn parents<'a>(child: &Certificate, pool: &'a [Certificate]) -> Vec<&'a Certificate> {
    let wanted = &child.extensions().authority_key_id;
    let mut found: Vec<&Certificate> = Vec::new();
    for candidate in pool {
        if child.names_issuer(candidate) && !found.contains(&candidate) {
            found.push(candidate);
        }
    }
    found.sort_by_key(|candidate| {
        let has = &candidate.extensions().subject_key_id;
        match has == wanted {
            true => 0,
            false if has.is_empty() != wanted.is_empty() => 1,
            false => 2,
        }
    });
    found
}

/// Go: `alreadyInChain`.
fn is_same_authority(one: &Certificate, other: &Certificate) -> bool {
    let names = |certificate: &Certificate| certificate.names().map(|names| names.der.clone());
    one.subject() == other.subject()
        && one.public_key().spki_der() == other.public_key().spki_der()
        && names(one) == names(other)
}

/// Returns the TLS usages of the leaf. Issuers may restrict usages, so the path is verified for each.
fn usages_to_check(leaf: &Certificate) -> Vec<ExtendedUsage> {
    let has = |usage: &ExtendedUsage| {
        leaf.purposes()
            .is_none_or(|purposes| purposes.contains(&KeyPurpose::from(*usage)))
    };
    let mut usages = vec![ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth];
    usages.retain(has);
    if usages.is_empty() {
        // The missing usages are already reported; the path fails with the same message.
        usages.push(ExtendedUsage::ClientAuth);
    }
    usages
}
