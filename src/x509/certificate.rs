//! One parsed certificate: owned facts, no borrowed parser types.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::FromDer;

use super::key::{KeyError, PublicKey, encode_pem, hex};

/// A distinguished name: attributes in order, and the DER by which issuers are matched.
#[derive(Clone, PartialEq, Eq)]
pub struct Name {
    der: Vec<u8>,
    attributes: Vec<(String, String)>,
}

impl Name {
    pub(super) fn from_parsed(name: &x509_parser::x509::X509Name<'_>) -> Self {
        let attributes = name
            .iter_attributes()
            .map(|attribute| {
                let kind = oid2abbrev(attribute.attr_type(), oid_registry())
                    .map_or_else(|_| attribute.attr_type().to_id_string(), str::to_owned);
                let value = attribute
                    .as_str()
                    .map_or_else(|_| format!("#{}", hex(attribute.as_slice())), str::to_owned);
                (kind, value)
            })
            .collect();
        Name {
            der: name.as_raw().to_vec(),
            attributes,
        }
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

/// Whether a character changes how a terminal shows the others: controls, and marks that turn the direction.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
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

/// A parsed X.509 certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    der: Vec<u8>,
    subject: Name,
    issuer: Name,
    serial: String,
    not_before: OffsetDateTime,
    not_after: OffsetDateTime,
    public_key: PublicKey,
    signature_oid: String,
    dns_names: Vec<String>,
    ip_addresses: Vec<IpAddr>,
    other_names: Vec<String>,
    key_usage: Option<KeyUsages>,
    extended_usages: Option<Vec<String>>,
    basic_constraints: Option<(bool, Option<u32>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyUsages {
    pub(super) digital_signature: bool,
    pub(super) key_encipherment: bool,
    pub(super) cert_sign: bool,
}

/// Why bytes are not a certificate.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CertificateError {
    #[error("not a DER certificate: {0}")]
    Damaged(String),
    #[error("the certificate's public key is unreadable")]
    Key(#[source] KeyError),
    #[error("the certificate's {0} extension is damaged")]
    Extension(&'static str),
    #[error("the certificate's validity is outside the representable years")]
    Validity,
}

impl Certificate {
    /// Parses one DER certificate; bytes after it are an error.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let (rest, parsed) = X509Certificate::from_der(der)
            .map_err(|error| CertificateError::Damaged(error.to_string()))?;
        if !rest.is_empty() {
            return Err(CertificateError::Damaged(
                "bytes follow the certificate".to_owned(),
            ));
        }
        let mut certificate = Certificate {
            der: der.to_vec(),
            subject: Name::from_parsed(parsed.subject()),
            issuer: Name::from_parsed(parsed.issuer()),
            serial: hex(parsed.raw_serial()),
            not_before: instant(parsed.validity().not_before)?,
            not_after: instant(parsed.validity().not_after)?,
            public_key: PublicKey::from_spki_der(parsed.public_key().raw)
                .map_err(CertificateError::Key)?,
            signature_oid: parsed.signature_algorithm.algorithm.to_id_string(),
            dns_names: Vec::new(),
            ip_addresses: Vec::new(),
            other_names: Vec::new(),
            key_usage: None,
            extended_usages: None,
            basic_constraints: None,
        };
        for extension in parsed.extensions() {
            certificate.read_extension(extension.parsed_extension())?;
        }
        Ok(certificate)
    }

    fn read_extension(&mut self, extension: &ParsedExtension<'_>) -> Result<(), CertificateError> {
        match extension {
            ParsedExtension::SubjectAlternativeName(names) => {
                for name in &names.general_names {
                    match name {
                        GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
                        GeneralName::IPAddress(bytes) => {
                            self.ip_addresses.push(
                                address(bytes)
                                    .ok_or(CertificateError::Extension("subjectAltName"))?,
                            );
                        }
                        GeneralName::URI(uri) => {
                            self.other_names.push(format!("URI:{}", printable(uri)))
                        }
                        GeneralName::RFC822Name(mail) => {
                            self.other_names.push(format!("email:{}", printable(mail)))
                        }
                        other => self.other_names.push(printable(&other.to_string())),
                    }
                }
            }
            ParsedExtension::KeyUsage(usage) => {
                self.key_usage = Some(KeyUsages {
                    digital_signature: usage.digital_signature(),
                    key_encipherment: usage.key_encipherment(),
                    cert_sign: usage.key_cert_sign(),
                });
            }
            ParsedExtension::ExtendedKeyUsage(usage) => {
                let known = [
                    (usage.any, "any"),
                    (usage.server_auth, "server auth"),
                    (usage.client_auth, "client auth"),
                    (usage.code_signing, "code signing"),
                    (usage.email_protection, "email protection"),
                    (usage.time_stamping, "time stamping"),
                    (usage.ocsp_signing, "OCSP signing"),
                ];
                let known = known
                    .into_iter()
                    .filter(|(set, _)| *set)
                    .map(|(_, name)| name.to_owned());
                self.extended_usages = Some(
                    known
                        .chain(usage.other.iter().map(|oid| oid.to_id_string()))
                        .collect(),
                );
            }
            ParsedExtension::BasicConstraints(constraints) => {
                self.basic_constraints = Some((constraints.ca, constraints.path_len_constraint));
            }
            _ => {}
        }
        Ok(())
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
        &self.dns_names
    }

    /// IP addresses, in order.
    pub fn ip_addresses(&self) -> &[IpAddr] {
        &self.ip_addresses
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
        self.key_usage
    }

    /// basicConstraints says CA:TRUE.
    pub fn is_ca(&self) -> bool {
        matches!(self.basic_constraints, Some((true, _)))
    }

    /// keyUsage allows it to sign certificates, or says nothing.
    pub fn may_sign(&self) -> bool {
        self.key_usage.is_none_or(|usage| usage.cert_sign)
    }

    /// pathLenConstraint, where there is one.
    pub fn path_len(&self) -> Option<u32> {
        self.basic_constraints.and_then(|(_, path_len)| path_len)
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
        match self.signature_oid.as_str() {
            "1.2.840.113549.1.1.4" => Some("md5WithRSAEncryption"),
            "1.2.840.113549.1.1.5" => Some("sha1WithRSAEncryption"),
            "1.2.840.10045.4.1" => Some("ecdsa-with-SHA1"),
            _ => None,
        }
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

fn instant(time: x509_parser::time::ASN1Time) -> Result<OffsetDateTime, CertificateError> {
    OffsetDateTime::from_unix_timestamp(time.timestamp()).map_err(|_| CertificateError::Validity)
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
