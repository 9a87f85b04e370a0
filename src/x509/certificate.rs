//! One parsed certificate: owned facts, no borrowed parser types.

use std::fmt;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};

use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::oid::Oid;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::FromDer;

use super::der::{Reader, oid_text};
use super::key::{KeyError, PublicKey, encode_pem, hex};
use super::strict::{self, AlternativeNames, Extensions, KeyUsages};

/// A distinguished name: attributes in order, and the DER by which issuers are matched.
#[derive(Clone)]
pub struct Name {
    der: Vec<u8>,
    attributes: Vec<(String, String)>,
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for Name {}

/// Abbreviation of an attribute type, such as `CN`; types without one in dotted form.
pub(super) fn attribute_kind(oid: &[u8]) -> String {
    let known = Oid::new(oid.into());
    oid2abbrev(&known, oid_registry()).map_or_else(|_| oid_text(oid), str::to_owned)
}

impl Name {
    /// Reads a DER `Name`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn from_der(der: &[u8]) -> Result<Self, String> {
        let attributes = strict::attributes(der)?
            .into_iter()
            .map(|attribute| (attribute_kind(attribute.oid), attribute.value))
            .collect();
        Ok(Name {
            der: der.to_vec(),
            attributes,
        })
    }

    /// The DER `Name`.
    pub(super) fn der(&self) -> &[u8] {
        &self.der
    }

    /// Attributes as (type, value): `("CN", "kubernetes")`. Unknown types are object identifiers.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes
            .iter()
            .map(|(kind, value)| (kind.as_str(), value.as_str()))
    }

    /// All values of one attribute type.
    pub fn values<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.attributes()
            .filter(move |(found, _)| *found == kind)
            .map(|(_, value)| value)
    }
}

impl fmt::Display for Name {
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

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns true for a character that changes how a terminal shows others, or that a reader does not see: controls,
/// marks of direction, characters without width, annotations and tags.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A certificate comes from outside: nothing hidden in it reaches a terminal or a log.
pub(super) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if is_hidden(c) {
                c.escape_default().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

/// The blocks of PEM text. What is wrong with it quotes the text's own labels.
pub(super) fn pem_blocks(text: &[u8]) -> Result<Vec<pem::Pem>, String> {
    pem::parse_many(text).map_err(|error| printable(&error.to_string()))
}

/// A parsed X.509 certificate, which Go's `crypto/x509` can parse as well.
#[derive(Clone)]
pub struct Certificate {
    der: Vec<u8>,
    /// The signed part of `der`.
    tbs: Range<usize>,
    /// Content of the AlgorithmIdentifier of the signature.
    signature_algorithm: Vec<u8>,
    signature: Vec<u8>,
    version: u8,
    subject: Name,
    issuer: Name,
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

/// Why bytes are not a certificate that Go's `crypto/x509` can parse.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CertificateError {
    #[error("not a DER certificate: {0}")]
    Damaged(String),
    #[error("the certificate's {field} is not valid: {problem}")]
    Field {
        field: &'static str,
        problem: String,
    },
    #[error("the certificate's extension {name} is not valid: {problem}")]
    Extension {
        name: &'static str,
        problem: &'static str,
    },
    #[error("the certificate's public key is unreadable")]
    Key(#[source] KeyError),
}

/// Names of the extended key usages, in the order in which they are listed. Go: `extKeyUsageOIDs`.
const KNOWN_USAGES: [(&[u8], &str); 7] = [
    (strict::usage::ANY, "any"),
    (strict::usage::SERVER_AUTH, "server auth"),
    (strict::usage::CLIENT_AUTH, "client auth"),
    (strict::usage::CODE_SIGNING, "code signing"),
    (strict::usage::EMAIL_PROTECTION, "email protection"),
    (strict::usage::TIME_STAMPING, "time stamping"),
    (strict::usage::OCSP_SIGNING, "OCSP signing"),
];

impl Certificate {
    /// Parses one DER certificate with the rules of Go's `crypto/x509`; bytes after it are an error.
    ///
    /// # Errors
    /// When Go does not parse it, or its extensions can be read in two ways.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let parsed = strict::parse(der)?;
        let name = |field, der| {
            Name::from_der(der).map_err(|problem| CertificateError::Field { field, problem })
        };
        let usages = parsed.extensions.extended_usages.as_ref();
        let names = parsed.extensions.names.as_ref();
        // The signed part follows the header of the certificate.
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
            extended_usages: usages.map(|usages| usage_names(usages)),
            other_names: names.map(other_names).unwrap_or_default(),
            extensions: parsed.extensions,
        })
    }

    /// The DER bytes.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// One `CERTIFICATE` PEM block.
    pub fn to_pem(&self) -> String {
        encode_pem("CERTIFICATE", &self.der)
    }

    /// Subject.
    pub fn subject(&self) -> &Name {
        &self.subject
    }

    /// Issuer.
    pub fn issuer(&self) -> &Name {
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

    /// Other subject alternative names, in words.
    pub fn other_names(&self) -> &[String] {
        &self.other_names
    }

    /// Extended key usages by name, object identifiers where there is none; `None` without the extension.
    pub fn extended_usages(&self) -> Option<&[String]> {
        self.extended_usages.as_deref()
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

    /// The signed part, DER.
    pub(super) fn tbs(&self) -> &[u8] {
        self.der.get(self.tbs.clone()).unwrap_or_default()
    }

    /// Content of the AlgorithmIdentifier of the signature, DER.
    pub(super) fn signature_algorithm(&self) -> &[u8] {
        &self.signature_algorithm
    }

    /// The signature over [`Self::tbs`].
    pub(super) fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// Why Go refuses every signature of this key.
    pub(super) fn unusable_key(&self) -> Option<&'static str> {
        self.unusable_key
    }

    /// basicConstraints says CA:TRUE.
    pub fn is_ca(&self) -> bool {
        let constraints = self.extensions.basic_constraints;
        constraints.is_some_and(|constraints| constraints.ca)
    }

    /// keyUsage allows it to sign certificates, or says nothing.
    pub fn may_sign(&self) -> bool {
        self.key_usage().is_none_or(|usage| usage.cert_sign)
    }

    /// pathLenConstraint, where there is one.
    pub fn path_len(&self) -> Option<u32> {
        let path_len = self.extensions.basic_constraints?.path_len?;
        Some(u32::try_from(path_len).unwrap_or(u32::MAX))
    }

    /// Issuer and subject are the same name.
    pub fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// Signed with its own key: a root. A cross certificate with the same name on both sides is none.
    pub fn is_self_signed(&self) -> bool {
        super::verify::signed_by(self, self)
    }

    /// True when `self` carries `issuer`'s name as its issuer. Says nothing about the signature.
    pub fn names_issuer(&self, issuer: &Certificate) -> bool {
        self.issuer.der == issuer.subject.der
    }

    /// Signed with MD5 or SHA-1, which Go refuses since 1.18.
    pub fn weak_signature(&self) -> Option<&'static str> {
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
        let oid = Reader::new(&self.signature_algorithm).oid()?;
        let found = WEAK.iter().find(|(weak, _)| *weak == oid);
        found.map(|(_, name)| *name)
    }

    /// SHA-256 over the DER certificate.
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(&self.der).into()
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({}, serial {})", self.subject, self.serial)
    }
}

fn usage_names(usages: &[Vec<u8>]) -> Vec<String> {
    let known = KNOWN_USAGES
        .iter()
        .filter(|(oid, _)| usages.iter().any(|usage| usage == oid))
        .map(|(_, name)| (*name).to_owned());
    let others = usages
        .iter()
        .filter(|usage| !KNOWN_USAGES.iter().any(|(oid, _)| oid == usage))
        .map(|usage| oid_text(usage));
    known.chain(others).collect()
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

/// The public key, and the validity in seconds since 1970, of a certificate that a server shows: Go need not be able to
/// parse it.
pub fn shown_certificate(der: &[u8]) -> Option<(PublicKey, RangeInclusive<i64>)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let key = PublicKey::from_spki_der(parsed.public_key().raw).ok()?;
    let validity = parsed.validity();
    Some((
        key,
        validity.not_before.timestamp()..=validity.not_after.timestamp(),
    ))
}

pub(super) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_pem_is_quoted_without_its_controls() {
        let text = b"-----BEGIN a\x1b[2J-----\nAAAA\n-----END b-----\n";
        let why = crate::x509::TrustBundle::from_answer(text).unwrap_err();
        assert!(!why.to_string().contains('\u{1b}'), "{why}");
    }

    #[test]
    fn names_cannot_turn_a_line_around() {
        assert_eq!(printable("a\u{1b}[2J\u{202e}b"), "a\\u{1b}[2J\\u{202e}b");
    }
}
