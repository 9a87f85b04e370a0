//! Certificate revocation lists (RFC 5280, 5): reading, verifying, asking.

use std::collections::BTreeMap;
use std::fmt;

use time::{Duration, OffsetDateTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{DistributionPointName, ParsedExtension, X509Extension};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::certificate::{Certificate, Name, pem_blocks};
use super::chain::{Chain, TrustBundle, issued};
use super::key::{encode_pem, hex};
use super::path::MAX_SIGNATURE_CHECKS;
use super::strict;
use super::verify::{rfc3339, signature_is_valid};

/// Bytes that are no revocation list, or one that must not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CrlError {
    #[error("there is no revocation list in it (neither PEM nor DER)")]
    Absent,
    #[error("a revocation list in it is damaged: {0}")]
    Damaged(String),
    #[error(
        "the list of {issuer} has the critical extension {extension}, which nobody here understands"
    )]
    Extension { issuer: String, extension: String },
    #[error("the list of {issuer} is a delta: it has the changes since another list alone")]
    Delta { issuer: String },
    #[error(
        "the list of {issuer} is one part of several, and none of those given is about {subject}"
    )]
    OtherPart { issuer: String, subject: String },
    #[error("none of the lists is of {issuer}, which issued {subject}")]
    NotAbout { issuer: String, subject: String },
    #[error("the list of {issuer} is from none of the authority's certificates")]
    ForeignIssuer { issuer: String },
    #[error("the list of {issuer} has a signature that its key did not make")]
    Signature { issuer: String },
    #[error("it takes {bytes} bytes, more than the {limit} that nodepki reads back")]
    TooLarge { bytes: usize, limit: u64 },
    #[error("the list of {issuer} is from the future: it was made at {this_update}")]
    Future { issuer: String, this_update: String },
    #[error("the list of {issuer} is stale: a newer one was due at {next_update}")]
    Stale { issuer: String, next_update: String },
    #[error(
        "the list of {issuer} was made at {this_update}, before the one in place ({in_place}): an old list is being handed out again"
    )]
    Older {
        issuer: String,
        this_update: String,
        in_place: String,
    },
}

/// How far a server's clock may be ahead: lists, unlike certificates, are seldom dated back.
const SKEW: Duration = Duration::minutes(5);

const DELTA_INDICATOR: &str = "2.5.29.27";
const ISSUING_DISTRIBUTION_POINT: &str = "2.5.29.28";
const REASON_CODE: &str = "2.5.29.21";
const INVALIDITY_DATE: &str = "2.5.29.24";

const BEGIN: &[u8] = b"-----BEGIN X509 CRL-----";

/// One list.
#[derive(Clone, PartialEq, Eq)]
pub struct RevocationList {
    der: Vec<u8>,
    issuer: Name,
    this_update: OffsetDateTime,
    next_update: Option<OffsetDateTime>,
    /// The places of its issuing distribution point; a certificate that names other places is not covered.
    places: Vec<String>,
    /// Serial numbers as [`Certificate::serial`] writes them, and since when.
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
    /// Reads PEM with any number of lists, or one in DER. Nothing is verified.
    ///
    /// # Errors
    /// When there is none, or one that is damaged or has critical extensions that narrow it: such a list speaks of other
    /// things than leaves of its issuer (delta and indirect lists, lists by reason).
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
            .windows(BEGIN.len())
            .filter(|window| *window == BEGIN)
            .count();
        match lists.len() {
            whole if whole < begun => Err(CrlError::Damaged("it is cut off".to_owned())),
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
        let issuer = Name::from_der(parsed.issuer().as_raw()).map_err(|error| damaged(&error))?;
        let is = |extension: &X509Extension<'_>, oid: &str| extension.oid.to_id_string() == oid;
        // Critical by RFC 5280, 5.2.4; what it says does not depend on that.
        if parsed
            .extensions()
            .iter()
            .any(|one| is(one, DELTA_INDICATOR))
        {
            return Err(CrlError::Delta {
                issuer: issuer.to_string(),
            });
        }
        let mut places = Vec::new();
        for extension in parsed.extensions() {
            // The place that the list was published at (RFC 5280, 5.2.5), as step-ca names it.
            if let ParsedExtension::IssuingDistributionPoint(point) = extension.parsed_extension() {
                places.extend(place_names(point.distribution_point.as_ref()));
            }
        }
        let narrows = |extension: &&X509Extension<'_>| match extension.parsed_extension() {
            ParsedExtension::IssuingDistributionPoint(point) => {
                point.only_contains_ca_certs
                    || point.only_some_reasons.is_some()
                    || point.indirect_crl
                    || point.only_contains_attribute_certs
            }
            // Damaged, so that it may narrow the list in any way.
            _ => extension.critical || is(extension, ISSUING_DISTRIBUTION_POINT),
        };
        if let Some(extension) = parsed.extensions().iter().find(narrows) {
            return Err(CrlError::Extension {
                issuer: issuer.to_string(),
                extension: extension.oid.to_id_string(),
            });
        }
        let instant = |time: x509_parser::time::ASN1Time| {
            OffsetDateTime::from_unix_timestamp(time.timestamp()).map_err(|error| damaged(&error))
        };
        let mut revoked = BTreeMap::new();
        for entry in parsed.iter_revoked_certificates() {
            // An entry of an indirect list names another issuer (RFC 5280, 5.3.3).
            let unknown = |one: &&X509Extension<'_>| {
                one.critical && !is(one, REASON_CODE) && !is(one, INVALIDITY_DATE)
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
            places,
            revoked,
        })
    }

    /// Whose certificates it speaks of.
    pub fn issuer(&self) -> &Name {
        &self.issuer
    }

    /// When it was made.
    pub fn this_update(&self) -> OffsetDateTime {
        self.this_update
    }

    /// When a newer one is due at the latest, where it says so.
    pub fn next_update(&self) -> Option<OffsetDateTime> {
        self.next_update
    }

    /// How many certificates it revokes.
    pub fn len(&self) -> usize {
        self.revoked.len()
    }

    /// True when it revokes nothing.
    pub fn is_empty(&self) -> bool {
        self.revoked.is_empty()
    }

    /// One `X509 CRL` PEM block.
    pub fn to_pem(&self) -> String {
        encode_pem("X509 CRL", &self.der)
    }

    /// The DER bytes.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Since when a certificate of this list's issuer is revoked; `None` for all others.
    pub fn revokes(&self, certificate: &Certificate) -> Option<OffsetDateTime> {
        (self.issuer == *certificate.issuer())
            .then(|| self.revoked.get(certificate.serial()).copied())
            .flatten()
    }

    /// Whether it speaks of a certificate of its issuer: one of several parts speaks of those that name its place
    /// (RFC 5280, 6.3.3 b 2 i). A certificate that names no place belongs to every part.
    fn covers(&self, certificate: &Certificate) -> bool {
        if self.places.is_empty() {
            return true;
        }
        let named = published_at(certificate);
        named.is_empty() || named.iter().any(|place| self.places.contains(place))
    }

    /// Whether one of `issuers` made it. The bit for signing lists in their key usage is not asked for: kubeadm's own
    /// CA certificates lack it.
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
        match signed {
            true => Ok(()),
            false => Err(CrlError::Signature { issuer: issuer() }),
        }
    }
}

/// The lists of one authority, every one of them signed by a certificate of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocations(Vec<RevocationList>);

impl Revocations {
    /// Takes the lists that belong to an authority. `chains` tell its intermediates, of which those count that lead to
    /// `trust`. The list about the leaves of `chains` comes first, where there is one: it is the only one that etcd
    /// reads. Lists of other authorities, of which a server may hand out a whole file, are left out.
    ///
    /// # Errors
    /// When none belongs to it, or one that claims to is forged.
    pub fn verified(
        lists: Vec<RevocationList>,
        trust: &TrustBundle,
        chains: &[&Chain],
    ) -> Result<Self, CrlError> {
        let issuers = issuers(trust, chains);
        let mut taken = Vec::new();
        let mut foreign = None;
        for list in lists {
            match list.verify(&issuers) {
                Ok(()) => taken.push(list),
                Err(error @ CrlError::ForeignIssuer { .. }) => foreign = foreign.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        if taken.is_empty() {
            return Err(foreign.unwrap_or(CrlError::Absent));
        }
        let about_leaves = |list: &RevocationList| {
            chains
                .iter()
                .any(|chain| *chain.leaf().issuer() == list.issuer)
        };
        taken.sort_by_key(|list| !about_leaves(list));
        Ok(Revocations(taken))
    }

    /// The lists.
    pub fn lists(&self) -> &[RevocationList] {
        &self.0
    }

    /// Since when the leaf or an intermediate of `chain` is revoked, and which of them.
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

    /// What keeps these lists from telling whether the leaf of `chain` is revoked; `None` when nothing does.
    pub fn gap(&self, chain: &Chain) -> Option<CrlError> {
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
        let covered = of_issuer.any(|list| list.covers(leaf));
        (!covered).then_some(CrlError::OtherPart { issuer, subject })
    }

    /// What keeps these lists from replacing `in_place` at this time; `None` when nothing does.
    pub fn obstacle(
        &self,
        in_place: Option<&Revocations>,
        now: OffsetDateTime,
    ) -> Option<CrlError> {
        self.0.iter().find_map(|list| {
            let issuer = list.issuer.to_string();
            if list.this_update > now + SKEW {
                return Some(CrlError::Future {
                    issuer,
                    this_update: rfc3339(list.this_update),
                });
            }
            let older = in_place
                .into_iter()
                .flat_map(Revocations::lists)
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

    /// When a newer list is due at the latest.
    pub fn next_update(&self) -> Option<OffsetDateTime> {
        self.0.iter().filter_map(RevocationList::next_update).min()
    }

    /// All lists as PEM, the one about the authority's leaves first.
    pub fn to_pem(&self) -> String {
        self.0.iter().map(RevocationList::to_pem).collect()
    }

    /// The first list in DER.
    pub fn first_der(&self) -> &[u8] {
        self.0.first().map_or(&[], RevocationList::der)
    }
}

/// The full names of a distribution point.
fn place_names(point: Option<&DistributionPointName<'_>>) -> Vec<String> {
    match point {
        Some(DistributionPointName::FullName(names)) => {
            names.iter().map(ToString::to_string).collect()
        }
        _ => Vec::new(),
    }
}

/// Where the lists about a certificate are published, by its own word.
fn published_at(certificate: &Certificate) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate.der()) else {
        return Vec::new();
    };
    let mut places = Vec::new();
    for extension in parsed.extensions() {
        if let ParsedExtension::CRLDistributionPoints(points) = extension.parsed_extension() {
            let points = points.points.iter();
            places.extend(points.flat_map(|one| place_names(one.distribution_point.as_ref())));
        }
    }
    places
}

/// The authority's certificates, and the intermediates that lead to one of them. Each known certificate is compared once
/// with each intermediate that is left.
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
            .partition(|candidate| issued(candidate, issuer, &mut budget));
        known.extend(issued);
        rest = left;
    }
    known
}
