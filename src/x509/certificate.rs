//! A parsed certificate that owns its content.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};

use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::der::DerReader;
use super::key::PublicKey;
use super::pem::encode_pem;
use super::profile::ExtendedUsage;
use super::signature::has_signature_of;
use super::strict::{
    self, AlternativeNames, CertificateError, Extensions, KeyPurpose, KeyUsages, attribute_kind,
};
use crate::text::{hex, printable};

/// A distinguished name. Equality is that of the DER, as in the comparison of issuers.
#[derive(Clone)]
pub struct DistinguishedName {
    der: Vec<u8>,
    attributes: Vec<NameAttribute>,
}

/// An attribute of a distinguished name.
#[derive(Clone)]
pub(super) struct NameAttribute {
    /// Abbreviation of the type, such as `CN`, or else its object identifier.
    pub(super) kind: String,
    pub(super) value: String,
    /// True if its relative distinguished name has no other attribute.
    pub(super) is_alone: bool,
}

impl PartialEq for DistinguishedName {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for DistinguishedName {}

impl DistinguishedName {
    /// Parses a DER `Name`.
    pub(super) fn from_der(der: &[u8]) -> Result<Self, String> {
        let attributes = strict::attributes(der)?
            .into_iter()
            .map(|attribute| NameAttribute {
                kind: attribute_kind(attribute.oid),
                value: attribute.value,
                is_alone: attribute.is_alone,
            })
            .collect();
        Ok(DistinguishedName {
            der: der.to_vec(),
            attributes,
        })
    }

    /// Returns the DER `Name`.
    pub(super) fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the attributes as (type, value), such as `("CN", "kubernetes")`. Unknown types are object identifiers.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes
            .iter()
            .map(|attribute| (attribute.kind.as_str(), attribute.value.as_str()))
    }

    /// Returns the attributes with their place in the name.
    pub(super) fn name_attributes(&self) -> &[NameAttribute] {
        &self.attributes
    }

    /// Returns all values of one attribute type.
    pub fn values<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.attributes()
            .filter(move |(found, _)| *found == kind)
            .map(|(_, value)| value)
    }
}

impl fmt::Display for DistinguishedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.attributes.is_empty() {
            return f.write_str("(empty subject)");
        }
        let parts: Vec<_> = self
            .attributes()
            .map(|(kind, value)| format!("{kind}={}", printable(value)))
            .collect();
        f.write_str(&parts.join(", "))
    }
}

impl fmt::Debug for DistinguishedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An X.509 certificate that Go's `crypto/x509` can parse as well.
#[derive(Clone)]
pub struct Certificate {
    der: Vec<u8>,
    /// The signed part of `der`.
    tbs: Range<usize>,
    /// Content of the AlgorithmIdentifier of the signature.
    signature_algorithm: Vec<u8>,
    signature: Vec<u8>,
    version: u8,
    subject: DistinguishedName,
    issuer: DistinguishedName,
    serial: String,
    not_before: OffsetDateTime,
    not_after: OffsetDateTime,
    public_key: PublicKey,
    unusable_key: Option<&'static str>,
    extended_usages: Option<Vec<String>>,
    other_names: Vec<String>,
    extensions: Extensions,
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for Certificate {}

impl Certificate {
    /// Parses one DER certificate with the rules of Go's `crypto/x509`; bytes after it are an error.
    ///
    /// # Errors
    /// A certificate that Go does not parse, or whose extensions are ambiguous.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let parsed = strict::parse(der)?;
        let name = |field, der| {
            DistinguishedName::from_der(der)
                .map_err(|problem| CertificateError::Field { field, problem })
        };
        let purposes = parsed.extensions.extended_usages.as_deref();
        let names = parsed.extensions.names.as_ref();
        // The signed part follows the header of the outer SEQUENCE.
        let start = match der.get(1) {
            Some(length) if *length >= 0x80 => 2 + usize::from(length & 0x7f),
            _ => 2,
        };
        Ok(Certificate {
            der: der.to_vec(),
            tbs: start..start + parsed.tbs.len(),
            signature_algorithm: parsed.signature_algorithm.to_vec(),
            signature: parsed.signature.to_vec(),
            version: parsed.version,
            subject: name("subject", parsed.subject)?,
            issuer: name("issuer", parsed.issuer)?,
            serial: hex(parsed.serial),
            not_before: parsed.not_before,
            not_after: parsed.not_after,
            public_key: PublicKey::from_spki_der(parsed.spki).map_err(CertificateError::Key)?,
            unusable_key: parsed.unusable_key,
            extended_usages: purposes.map(|purposes| {
                let sorted = sorted(purposes).into_iter();
                sorted.map(ToString::to_string).collect()
            }),
            other_names: names.map(other_names).unwrap_or_default(),
            extensions: parsed.extensions,
        })
    }

    /// Returns the authority key identifier; empty if the certificate has none.
    pub fn authority_key_id(&self) -> &[u8] {
        &self.extensions.authority_key_id
    }

    /// Returns the DER bytes.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns a `CERTIFICATE` PEM block.
    pub fn to_pem(&self) -> String {
        encode_pem("CERTIFICATE", &self.der)
    }

    /// Subject.
    pub fn subject(&self) -> &DistinguishedName {
        &self.subject
    }

    /// Issuer.
    pub fn issuer(&self) -> &DistinguishedName {
        &self.issuer
    }

    /// Serial number, lower-case hexadecimal.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Start of validity.
    pub fn not_before(&self) -> OffsetDateTime {
        self.not_before
    }

    /// End of validity, inclusive.
    pub fn not_after(&self) -> OffsetDateTime {
        self.not_after
    }

    /// Subject public key.
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// DNS names, in order.
    pub fn dns_names(&self) -> &[String] {
        self.names().map_or(&[], |names| &names.dns)
    }

    /// IP addresses, in order.
    pub fn ip_addresses(&self) -> &[IpAddr] {
        self.names().map_or(&[], |names| &names.ips)
    }

    pub(super) fn names(&self) -> Option<&AlternativeNames> {
        self.extensions.names.as_ref()
    }

    /// Returns the other subject alternative names, in words.
    pub(crate) fn other_names(&self) -> &[String] {
        &self.other_names
    }

    /// Returns the extended key usages by name or object identifier; `None` without the extension.
    pub fn extended_usages(&self) -> Option<&[String]> {
        self.extended_usages.as_deref()
    }

    /// Returns true if the extended key usages allow this one: it is listed, or any is, or there is no list. Go:
    /// `checkChainForKeyUsage`.
    pub fn allows(&self, usage: ExtendedUsage) -> bool {
        let usage = KeyPurpose::from(usage);
        self.purposes()
            .is_none_or(|found| found.contains(&usage) || found.contains(&KeyPurpose::Any))
    }

    /// Returns the extended key usages; `None` without the extension.
    pub(crate) fn purposes(&self) -> Option<&[KeyPurpose]> {
        self.extensions.extended_usages.as_deref()
    }

    /// Extended key usages in a fixed order; none without the extension.
    pub(super) fn sorted_purposes(&self) -> Vec<&KeyPurpose> {
        sorted(self.purposes().unwrap_or_default())
    }

    pub(super) fn key_usage(&self) -> Option<KeyUsages> {
        self.extensions.key_usage
    }

    pub(super) fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Version, 1 to 3.
    pub(super) fn version(&self) -> u8 {
        self.version
    }

    /// Returns the signed part, DER.
    pub(super) fn tbs(&self) -> &[u8] {
        self.der.get(self.tbs.clone()).unwrap_or_default()
    }

    /// Content of the AlgorithmIdentifier of the signature, DER.
    pub(super) fn signature_algorithm(&self) -> &[u8] {
        &self.signature_algorithm
    }

    /// Returns the signature over [`Self::tbs`].
    pub(super) fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// Returns the reason why Go refuses every signature of this key, if it does.
    pub(super) fn unusable_key(&self) -> Option<&'static str> {
        self.unusable_key
    }

    /// Returns true if basicConstraints contains CA:TRUE.
    pub fn is_ca(&self) -> bool {
        let constraints = self.extensions.basic_constraints;
        constraints.is_some_and(|constraints| constraints.ca)
    }

    /// Returns true if keyUsage is absent or allows signing certificates.
    pub(crate) fn may_sign(&self) -> bool {
        self.key_usage().is_none_or(|usage| usage.cert_sign)
    }

    /// Returns true if issuer and subject are the same name.
    pub fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// Returns true for a root, which its own key signed. A cross certificate may be self-issued, but it is not self-signed.
    pub(crate) fn is_self_signed(&self) -> bool {
        self.is_signed_by(self)
    }

    /// Returns true if `issuer`'s key made the signature, whatever the extensions of either.
    pub(super) fn is_signed_by(&self, issuer: &Certificate) -> bool {
        self.names_issuer(issuer)
            && has_signature_of(
                issuer.public_key(),
                self.signature_algorithm(),
                self.tbs(),
                self.signature(),
            )
    }

    /// Like [`Self::is_signed_by`], within a budget of signature checks.
    pub(super) fn is_signed_by_within(&self, issuer: &Certificate, budget: &mut usize) -> bool {
        if *budget == 0 || !self.names_issuer(issuer) {
            return false;
        }
        *budget -= 1;
        self.is_signed_by(issuer)
    }

    /// Returns true if its issuer is the subject of `issuer`, without verifying the signature.
    pub(crate) fn names_issuer(&self, issuer: &Certificate) -> bool {
        self.issuer.der == issuer.subject.der
    }

    /// Returns the signature algorithm if it uses MD5 or SHA-1, which Go refuses since 1.18.
    pub(crate) fn weak_signature(&self) -> Option<&'static str> {
        const WEAK: [(&[u8], &str); 4] = [
            (
                &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4],
                "md5WithRSAEncryption",
            ),
            (
                &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5],
                "sha1WithRSAEncryption",
            ),
            (&[0x2b, 0x0e, 3, 2, 29], "sha1WithRSASignature"),
            (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1], "ecdsa-with-SHA1"),
        ];
        let oid = DerReader::new(&self.signature_algorithm).oid()?;
        let found = WEAK.iter().find(|(weak, _)| *weak == oid);
        found.map(|(_, name)| *name)
    }

    /// Returns the SHA-256 digest of the DER certificate.
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(&self.der).into()
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({}, serial {})", self.subject, self.serial)
    }
}

/// Sorts usages: known ones in the order of [`KeyPurpose`], then others in the given order.
fn sorted(purposes: &[KeyPurpose]) -> Vec<&KeyPurpose> {
    let is_other = |purpose: &&KeyPurpose| matches!(purpose, KeyPurpose::Other(_));
    let known: BTreeSet<&KeyPurpose> = purposes.iter().filter(|one| !is_other(one)).collect();
    let others = purposes.iter().filter(is_other);
    known.into_iter().chain(others).collect()
}

fn other_names(names: &AlternativeNames) -> Vec<String> {
    let uris = names
        .uris
        .iter()
        .map(|(uri, _)| format!("URI:{}", printable(uri)));
    let emails = names
        .emails
        .iter()
        .map(|email| format!("email:{}", printable(email)));
    uris.chain(emails)
        .chain(names.others.iter().cloned())
        .collect()
}

/// Returns the public key of a certificate that a server presented, and its validity in seconds since 1970. Go need not be
/// able to parse the certificate.
pub fn presented_certificate(der: &[u8]) -> Option<(PublicKey, RangeInclusive<i64>)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let key = PublicKey::from_spki_der(parsed.public_key().raw).ok()?;
    let validity = parsed.validity();
    Some((
        key,
        validity.not_before.timestamp()..=validity.not_after.timestamp(),
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::macros::datetime;

    use crate::x509::{
        CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Subject,
        TrustBundle,
    };

    #[test]
    fn compares_names_and_reads_extensions_of_leaf_and_root() {
        let now = datetime!(2026-06-01 12:00 UTC);
        let year = Duration::from_secs(365 * 86_400);
        let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let authority = |name| CertificateAuthority::self_signed(name, key(), now, year).unwrap();
        let (one, other) = (authority("one"), authority("other"));
        let profile = Profile::of_tests(
            Subject::new("node", &[]),
            &[ExtendedUsage::ClientAuth],
            year,
        );
        let leaf = one.issue(key().public_key(), &profile, now).unwrap();
        let root = one.bundle().first();
        assert!(root.is_self_issued() && !leaf.is_self_issued());
        assert!(leaf.issuer() == root.subject() && leaf.subject() != root.subject());
        assert!(leaf.issuer() != other.bundle().first().subject());
        assert_eq!(format!("{:?}", leaf.issuer()), "CN=one");
        assert_eq!(
            format!("{leaf:?}"),
            format!("Certificate(CN=node, serial {})", leaf.serial())
        );
        assert_eq!(leaf.authority_key_id().len(), 20);
        assert!(root.authority_key_id().is_empty());
        assert_eq!(leaf.extended_usages().unwrap(), ["client auth"]);
        assert!(root.extended_usages().is_none());
    }

    #[test]
    fn escapes_control_characters_of_damaged_pem() {
        let text = b"-----BEGIN a\x1b[2J-----\nAAAA\n-----END b-----\n";
        let why = TrustBundle::from_response(text).unwrap_err();
        assert!(!why.to_string().contains('\u{1b}'), "{why}");
    }
}
