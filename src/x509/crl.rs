//! Certificate revocation lists (RFC 5280, 5): reading, verification and lookup.

use std::collections::BTreeMap;
use std::fmt;

use time::{Duration, OffsetDateTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{DistributionPointName, ParsedExtension, X509Extension};
use x509_parser::oid_registry::{
    OID_X509_EXT_DELTA_CRL_INDICATOR, OID_X509_EXT_INVALIDITY_DATE,
    OID_X509_EXT_ISSUER_DISTRIBUTION_POINT, OID_X509_EXT_REASON_CODE,
};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::certificate::{Certificate, DistinguishedName};
use super::chain::{Chain, TrustBundle};
use super::pem::{encode_pem, pem_blocks};
use super::signature::{MAX_SIGNATURE_CHECKS, signature_is_valid};
use super::strict;
use crate::text::{hex, rfc3339};

/// The reason why bytes are not a revocation list, or why a list must not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CrlError {
    #[error("it does not contain a revocation list (neither PEM nor DER)")]
    Absent,
    #[error("a revocation list in it is damaged: {0}")]
    Damaged(String),
    #[error(
        "the list of {issuer} has the critical extension {extension}, which nodepki does not support"
    )]
    Extension { issuer: String, extension: String },
    #[error(
        "the list of {issuer} is a delta list, which contains only the changes since another list"
    )]
    Delta { issuer: String },
    #[error(
        "the list of {issuer} is one of several parts, and none of those given covers {subject}"
    )]
    OtherPart { issuer: String, subject: String },
    #[error("no list is from {issuer}, which issued {subject}")]
    NotAbout { issuer: String, subject: String },
    #[error("the list of {issuer} was not issued by a certificate of the authority")]
    ForeignIssuer { issuer: String },
    #[error("the list of {issuer} has an invalid signature")]
    Signature { issuer: String },
    #[error("its size of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge { bytes: usize, limit: u64 },
    #[error("the list of {issuer} is dated in the future: it was issued at {this_update}")]
    Future { issuer: String, this_update: String },
    #[error("the list of {issuer} is stale: a newer one was due at {next_update}")]
    Stale { issuer: String, next_update: String },
    #[error(
        "the list of {issuer} was issued at {this_update}, before the one in place ({in_place}): the server returned an old list"
    )]
    Older {
        issuer: String,
        this_update: String,
        in_place: String,
    },
}

/// Largest accepted lead of a server's clock. Lists are rarely backdated, and certificates not by every signer.
pub const MAX_CLOCK_LEAD: Duration = Duration::minutes(5);

const PEM_BEGIN: &[u8] = b"-----BEGIN X509 CRL-----";

/// A revocation list.
#[derive(Clone, PartialEq, Eq)]
pub struct RevocationList {
    der: Vec<u8>,
    issuer: DistinguishedName,
    this_update: OffsetDateTime,
    next_update: Option<OffsetDateTime>,
    /// The names in its issuing distribution point. The list does not cover certificates that do not name one of them.
    distribution_points: Vec<String>,
    /// Serial numbers in the form of [`Certificate::serial`], with their revocation times.
    revoked: BTreeMap<String, OffsetDateTime>,
}

impl fmt::Debug for RevocationList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RevocationList({}, {} revoked)",
            self.issuer,
            self.revoked.len()
        )
    }
}

impl RevocationList {
    /// Reads PEM with any number of lists, or one list in DER. Nothing is verified.
    ///
    /// # Errors
    /// No list, a damaged one, or one with critical extensions that restrict its scope (delta and indirect lists, lists by
    /// reason).
    pub fn read_all(bytes: &[u8]) -> Result<Vec<Self>, CrlError> {
        if bytes.first() == Some(&0x30) {
            return Ok(vec![Self::from_der(bytes)?]);
        }
        let blocks = pem_blocks(bytes).map_err(CrlError::Damaged)?;
        let lists = blocks
            .iter()
            .filter(|block| block.tag() == "X509 CRL")
            .map(|block| Self::from_der(block.contents()))
            .collect::<Result<Vec<_>, _>>()?;
        let begun = bytes
            .windows(PEM_BEGIN.len())
            .filter(|window| *window == PEM_BEGIN)
            .count();
        match lists.len() {
            complete if complete < begun => Err(CrlError::Damaged("it is truncated".to_owned())),
            0 => Err(CrlError::Absent),
            _ => Ok(lists),
        }
    }

    fn from_der(der: &[u8]) -> Result<Self, CrlError> {
        let damaged = |why: &dyn fmt::Display| CrlError::Damaged(why.to_string());
        strict::check_revocation_list(der).map_err(|problem| damaged(&problem))?;
        let (rest, parsed) =
            CertificateRevocationList::from_der(der).map_err(|error| damaged(&error))?;
        if !rest.is_empty() {
            return Err(damaged(&"bytes follow it"));
        }
        let issuer = DistinguishedName::from_der(parsed.issuer().as_raw())
            .map_err(|error| damaged(&error))?;
        let distribution_points = read_scope(&parsed, &issuer)?;
        let instant = |time: x509_parser::time::ASN1Time| {
            OffsetDateTime::from_unix_timestamp(time.timestamp()).map_err(|error| damaged(&error))
        };
        let mut revoked = BTreeMap::new();
        for entry in parsed.iter_revoked_certificates() {
            // An entry of an indirect list names another issuer (RFC 5280, 5.3.3).
            let unknown = |one: &&X509Extension<'_>| {
                one.critical
                    && one.oid != OID_X509_EXT_REASON_CODE
                    && one.oid != OID_X509_EXT_INVALIDITY_DATE
            };
            if let Some(extension) = entry.extensions().iter().find(unknown) {
                return Err(CrlError::Extension {
                    issuer: issuer.to_string(),
                    extension: extension.oid.to_id_string(),
                });
            }
            revoked.insert(hex(entry.raw_serial()), instant(entry.revocation_date)?);
        }
        Ok(RevocationList {
            der: der.to_vec(),
            issuer,
            this_update: instant(parsed.last_update())?,
            next_update: parsed.next_update().map(instant).transpose()?,
            distribution_points,
            revoked,
        })
    }

    /// Returns the issuer of the list and of its certificates.
    pub fn issuer(&self) -> &DistinguishedName {
        &self.issuer
    }

    /// Returns the time of issue.
    pub(crate) fn this_update(&self) -> OffsetDateTime {
        self.this_update
    }

    /// Returns the time at which a newer list is due at the latest, if the list contains it.
    pub(crate) fn next_update(&self) -> Option<OffsetDateTime> {
        self.next_update
    }

    /// Returns the number of revoked certificates.
    pub fn len(&self) -> usize {
        self.revoked.len()
    }

    /// Returns true if no certificate is revoked.
    pub fn is_empty(&self) -> bool {
        self.revoked.is_empty()
    }

    /// Returns an `X509 CRL` PEM block.
    pub fn to_pem(&self) -> String {
        encode_pem("X509 CRL", &self.der)
    }

    /// Returns the DER bytes.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the time at which a certificate of the list's issuer was revoked; `None` for all others.
    pub fn revokes(&self, certificate: &Certificate) -> Option<OffsetDateTime> {
        (self.issuer == *certificate.issuer())
            .then(|| self.revoked.get(certificate.serial()).copied())
            .flatten()
    }

    /// Returns true if the list covers a certificate of its issuer. A list with a distribution point can be one of several
    /// parts, and covers the certificates that name this point (RFC 5280, 6.3.3 b 2 i).
    fn covers(&self, certificate: &Certificate) -> bool {
        let is_own = |name: &String| self.distribution_points.contains(name);
        self.distribution_points.is_empty()
            || distribution_points_of(certificate).iter().any(is_own)
    }

    /// Verifies that one of `issuers` signed the list. Their key usage need not include cRLSign, which kubeadm's CA
    /// certificates lack.
    fn verify(&self, issuers: &[&Certificate]) -> Result<(), CrlError> {
        let issuer = || self.issuer.to_string();
        let mut named = issuers
            .iter()
            .filter(|certificate| *certificate.subject() == self.issuer)
            .peekable();
        if named.peek().is_none() {
            return Err(CrlError::ForeignIssuer { issuer: issuer() });
        }
        let (_, parsed) = CertificateRevocationList::from_der(&self.der)
            .map_err(|error| CrlError::Damaged(error.to_string()))?;
        let signed = named.any(|certificate| {
            signature_is_valid(
                certificate.public_key(),
                &parsed.signature_algorithm,
                parsed.tbs_cert_list.as_ref(),
                &parsed.signature_value.data,
            )
        });
        if signed {
            Ok(())
        } else {
            Err(CrlError::Signature { issuer: issuer() })
        }
    }
}

/// Properties of a publisher's lists that their content does not state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListScope {
    /// Nothing: a list with a distribution point can be one of several parts.
    #[default]
    AsStated,
    /// The publisher has one list for each issuer. It covers certificates without a distribution point too, whatever
    /// distribution point it names.
    AllOfIssuer,
}

/// The lists of one authority, each signed by one of its certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityCrls(Vec<RevocationList>);

impl AuthorityCrls {
    /// Selects and verifies the lists of an authority. `chains` contain its intermediates; those that lead to `trust` may
    /// sign lists too. The list for the leaves of `chains`, if any, is first, as etcd reads only that one. Lists of other
    /// authorities, which a server may return in the same file, are dropped.
    ///
    /// # Errors
    /// No list of this authority, or one with an invalid signature.
    pub fn verified(
        lists: Vec<RevocationList>,
        trust: &TrustBundle,
        chains: &[&Chain],
    ) -> Result<Self, CrlError> {
        let issuers = issuers(trust, chains);
        let mut accepted = Vec::new();
        let mut foreign = None;
        for list in lists {
            match list.verify(&issuers) {
                Ok(()) => accepted.push(list),
                Err(error @ CrlError::ForeignIssuer { .. }) => foreign = foreign.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        if accepted.is_empty() {
            return Err(foreign.unwrap_or(CrlError::Absent));
        }
        let covers_leaves = |list: &RevocationList| {
            chains
                .iter()
                .any(|chain| *chain.leaf().issuer() == list.issuer)
        };
        accepted.sort_by_key(|list| !covers_leaves(list));
        Ok(AuthorityCrls(accepted))
    }

    /// Returns the lists.
    pub fn lists(&self) -> &[RevocationList] {
        &self.0
    }

    /// Returns the revoked certificate of `chain`, leaf or intermediate, with the time of its revocation.
    pub fn revokes(&self, chain: &Chain) -> Option<(String, OffsetDateTime)> {
        std::iter::once(chain.leaf())
            .chain(chain.intermediates())
            .find_map(|certificate| {
                let since = self.0.iter().find_map(|list| list.revokes(certificate))?;
                Some((
                    format!(
                        "{} (serial {})",
                        certificate.subject(),
                        certificate.serial()
                    ),
                    since,
                ))
            })
    }

    /// Returns the reason why these lists do not cover the leaf of `chain`, if they do not.
    pub fn gap(&self, chain: &Chain) -> Option<CrlError> {
        self.gap_in(ListScope::AsStated, chain)
    }

    /// As [`AuthorityCrls::gap`], for lists whose publisher may have only one for each issuer.
    pub fn gap_in(&self, scope: ListScope, chain: &Chain) -> Option<CrlError> {
        let leaf = chain.leaf();
        let mut of_issuer = self
            .0
            .iter()
            .filter(|list| list.issuer == *leaf.issuer())
            .peekable();
        let (issuer, subject) = (leaf.issuer().to_string(), leaf.subject().to_string());
        if of_issuer.peek().is_none() {
            return Some(CrlError::NotAbout { issuer, subject });
        }
        let covered = of_issuer.any(|list| match scope {
            ListScope::AsStated => list.covers(leaf),
            ListScope::AllOfIssuer => list.covers(leaf) || distribution_points_of(leaf).is_empty(),
        });
        (!covered).then_some(CrlError::OtherPart { issuer, subject })
    }

    /// Returns the reason why these lists must not replace `in_place` at this time, if there is one.
    pub fn reason_not_to_install(
        &self,
        in_place: Option<&AuthorityCrls>,
        now: OffsetDateTime,
    ) -> Option<CrlError> {
        self.0.iter().find_map(|list| {
            let issuer = list.issuer.to_string();
            if list.this_update > now + MAX_CLOCK_LEAD {
                return Some(CrlError::Future {
                    issuer,
                    this_update: rfc3339(list.this_update),
                });
            }
            let older = in_place
                .into_iter()
                .flat_map(AuthorityCrls::lists)
                .find(|other| other.issuer == list.issuer && other.this_update > list.this_update);
            if let Some(newer) = older {
                return Some(CrlError::Older {
                    issuer,
                    this_update: rfc3339(list.this_update),
                    in_place: rfc3339(newer.this_update),
                });
            }
            let due = list.next_update.filter(|due| *due < now)?;
            Some(CrlError::Stale {
                issuer,
                next_update: rfc3339(due),
            })
        })
    }

    /// Returns the time at which a newer list is due at the latest.
    pub(crate) fn next_update(&self) -> Option<OffsetDateTime> {
        self.0.iter().filter_map(RevocationList::next_update).min()
    }

    /// Encodes all lists as PEM, with the one for the authority's leaves first.
    pub fn to_pem(&self) -> String {
        self.0.iter().map(RevocationList::to_pem).collect()
    }

    /// Returns the first list in DER.
    pub(crate) fn first_der(&self) -> &[u8] {
        self.0.first().map_or(&[], RevocationList::der)
    }
}

/// Returns the names of the list's distribution point.
///
/// # Errors
/// A list that does not cover all leaves of its issuer, apart from its distribution point.
fn read_scope(
    parsed: &CertificateRevocationList<'_>,
    issuer: &DistinguishedName,
) -> Result<Vec<String>, CrlError> {
    let is_delta = |one: &X509Extension<'_>| one.oid == OID_X509_EXT_DELTA_CRL_INDICATOR;
    // RFC 5280, 5.2.4, requires it to be critical; the check does not depend on that.
    if parsed.extensions().iter().any(is_delta) {
        return Err(CrlError::Delta {
            issuer: issuer.to_string(),
        });
    }
    let is_restricting = |extension: &&X509Extension<'_>| match extension.parsed_extension() {
        ParsedExtension::IssuingDistributionPoint(point) => {
            point.only_contains_ca_certs
                || point.only_some_reasons.is_some()
                || point.indirect_crl
                || point.only_contains_attribute_certs
                // A name relative to the issuer, or none: which certificates the list covers is not known.
                || point.distribution_point.is_some()
                    && full_names(point.distribution_point.as_ref()).is_empty()
        }
        // A damaged one may restrict the list in any way.
        _ => extension.critical || extension.oid == OID_X509_EXT_ISSUER_DISTRIBUTION_POINT,
    };
    if let Some(extension) = parsed.extensions().iter().find(is_restricting) {
        return Err(CrlError::Extension {
            issuer: issuer.to_string(),
            extension: extension.oid.to_id_string(),
        });
    }
    let mut names = Vec::new();
    for extension in parsed.extensions() {
        // RFC 5280, 5.2.5. step-ca sets it.
        if let ParsedExtension::IssuingDistributionPoint(point) = extension.parsed_extension() {
            names.extend(full_names(point.distribution_point.as_ref()));
        }
    }
    Ok(names)
}

/// Returns the full names of a distribution point.
fn full_names(point: Option<&DistributionPointName<'_>>) -> Vec<String> {
    match point {
        Some(DistributionPointName::FullName(names)) => {
            names.iter().map(ToString::to_string).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the distribution points that a certificate names.
fn distribution_points_of(certificate: &Certificate) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate.der()) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    for extension in parsed.extensions() {
        if let ParsedExtension::CRLDistributionPoints(points) = extension.parsed_extension() {
            let points = points.points.iter();
            names.extend(points.flat_map(|one| full_names(one.distribution_point.as_ref())));
        }
    }
    names
}

/// Returns the authority's certificates and the intermediates that lead to them. Each known certificate is compared once
/// with each remaining intermediate.
fn issuers<'a>(trust: &'a TrustBundle, chains: &[&'a Chain]) -> Vec<&'a Certificate> {
    let mut known: Vec<&Certificate> = trust.certificates().iter().collect();
    let mut rest: Vec<&Certificate> = Vec::new();
    for intermediate in chains.iter().flat_map(|chain| chain.intermediates()) {
        if intermediate.is_ca() && !rest.contains(&intermediate) {
            rest.push(intermediate);
        }
    }
    let mut budget = MAX_SIGNATURE_CHECKS;
    let mut next = 0;
    while let Some(issuer) = known.get(next).copied() {
        next += 1;
        let (issued, left): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|candidate| candidate.is_signed_by_within(issuer, &mut budget));
        known.extend(issued);
        rest = left;
    }
    known
}

#[cfg(test)]
mod tests;
