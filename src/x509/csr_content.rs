//! The strict reading of a certificate signing request that another party made (PKCS#10, RFC 2986).
//!
//! A signer copies from such a request what it chooses to, so a request is refused if two readers could understand it
//! differently or if it asks for anything but a subject, a key, DNS names and IP addresses: text around the PEM block, BER
//! instead of DER, unknown attributes, extensions other than subjectAltName.

use super::blocks;
use super::certificate::DistinguishedName;
use super::csr::{Csr, CsrError};
use super::der::{DerReader, Element, oid_text, tag};
use super::key::PublicKey;
use super::pem::encode_pem;
use super::profile::Sans;
use super::signature::has_signature_of;
use super::strict;

/// Label of the PEM block. Go's `ParseCSR` in Kubernetes accepts no other (`pkg/apis/certificates/helpers.go`).
const CSR_LABEL: &str = "CERTIFICATE REQUEST";
/// Content of the OID of an extension request, 1.2.840.113549.1.9.14 (RFC 2985, 5.4.2).
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];
/// Content of the OID of subjectAltName, 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];

/// Everything that a request asks for. Its signature may be invalid; [`CsrContent::into_csr`] requires a valid one.
#[derive(Clone, Debug)]
pub struct CsrContent {
    der: Vec<u8>,
    subject: DistinguishedName,
    public_key: PublicKey,
    unusable_key: Option<&'static str>,
    sans: Option<Sans>,
    is_signed: bool,
}

/// The reason why a request is refused before its content is judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CsrContentError {
    #[error("the request is not exactly one PEM block of type CERTIFICATE REQUEST")]
    NotOneBlock,
    #[error("the request is not valid DER: {0}")]
    Damaged(String),
    #[error("the request's subject {0}")]
    Subject(&'static str),
    #[error("the request's public key is not usable: {0}")]
    Key(String),
    #[error("the request contains attribute {0}, which is not an extension request")]
    Attribute(String),
    #[error("the request asks for extension {0}, which is not subjectAltName")]
    Extension(String),
    #[error(
        "the request's subjectAltName contains {0}, which is neither a DNS name nor an IP address"
    )]
    NameKind(String),
}

impl CsrContent {
    /// Reads a text that consists of one PEM block, surrounded by nothing but white space.
    ///
    /// # Errors
    /// Any other text, and content that a reader could ignore or understand differently.
    pub fn from_pem(text: &[u8]) -> Result<CsrContent, CsrContentError> {
        let mut blocks = blocks::decode_all(text);
        let (Some(block), true) = (blocks.pop(), blocks.is_empty()) else {
            return Err(CsrContentError::NotOneBlock);
        };
        let canonical = encode_pem(CSR_LABEL, &block.content);
        if block.has_headers || !is_same_but_white_space(text, canonical.as_bytes()) {
            return Err(CsrContentError::NotOneBlock);
        }
        read(&block.content)
    }

    /// Reads a request in DER.
    ///
    /// # Errors
    /// Content that a reader could ignore or understand differently.
    pub fn from_der(der: &[u8]) -> Result<CsrContent, CsrContentError> {
        read(der)
    }

    /// Returns the subject.
    pub fn subject(&self) -> &DistinguishedName {
        &self.subject
    }

    /// Returns the key to be certified.
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Returns the reason why Go refuses every signature of the key, if it does.
    pub fn unusable_key(&self) -> Option<&'static str> {
        self.unusable_key
    }

    /// Returns the names that subjectAltName asks for; `None` without the extension.
    pub fn sans(&self) -> Option<&Sans> {
        self.sans.as_ref()
    }

    /// Returns true if the request's own signature verifies, with an algorithm that is still secure.
    pub fn is_signed(&self) -> bool {
        self.is_signed
    }

    /// Returns the request for a signer.
    ///
    /// # Errors
    /// A request whose signature does not verify.
    pub fn into_csr(self) -> Result<Csr, CsrError> {
        if self.is_signed {
            Csr::from_der(&self.der)
        } else {
            Err(CsrError::Signature)
        }
    }
}

fn is_same_but_white_space(one: &[u8], other: &[u8]) -> bool {
    let dark = |text: &'static [u8], byte: &u8| !text.contains(byte);
    let one = one.iter().filter(|byte| dark(b" \t\r\n", byte));
    let other = other.iter().filter(|byte| dark(b" \t\r\n", byte));
    one.eq(other)
}

fn damaged(what: &str) -> CsrContentError {
    CsrContentError::Damaged(what.to_owned())
}

/// Reads a `CertificationRequest`.
fn read(der: &[u8]) -> Result<CsrContent, CsrContentError> {
    let mut input = DerReader::new(der);
    let mut outer = input
        .read(tag::SEQUENCE)
        .filter(|_| input.is_empty())
        .ok_or_else(|| damaged("it is not one SEQUENCE with a minimal length"))?;
    let parts = (|| {
        let info = outer.element(tag::SEQUENCE)?;
        let algorithm = outer.read(tag::SEQUENCE)?.rest();
        let (signature, unused) = outer.bits()?;
        outer.end()?;
        (unused == 0).then_some((info, algorithm, signature))
    })();
    let (info, algorithm, signature) =
        parts.ok_or_else(|| damaged("it does not consist of request, algorithm and signature"))?;
    let mut content = read_info(info)?;
    content.is_signed = has_signature_of(&content.public_key, algorithm, info.whole, signature);
    content.der = der.to_vec();
    Ok(content)
}

/// Reads a `CertificationRequestInfo`.
fn read_info(info: Element<'_>) -> Result<CsrContent, CsrContentError> {
    let mut body = DerReader::new(info.content);
    let parts = (|| {
        let version = body.unsigned()?;
        let subject = body.element(tag::SEQUENCE)?;
        let spki = body.element(tag::SEQUENCE)?;
        let attributes = body.optional(tag::constructed(0))?;
        body.end()?;
        (version == 0).then_some((subject, spki, attributes))
    })();
    let (subject, spki, attributes) = parts
        .ok_or_else(|| damaged("it does not consist of version 0, subject, key and attributes"))?;
    let name = DistinguishedName::from_der(subject.whole)
        .map_err(|problem| CsrContentError::Damaged(format!("subject: {problem}")))?;
    require_plain_name(subject.content).map_err(CsrContentError::Subject)?;
    let unusable_key = strict::public_key(spki.content)
        .map_err(|error| CsrContentError::Key(error.to_string()))?;
    let public_key = PublicKey::from_spki_der(spki.whole)
        .map_err(|error| CsrContentError::Key(error.to_string()))?;
    Ok(CsrContent {
        der: Vec::new(),
        subject: name,
        public_key,
        unusable_key,
        sans: attributes.map(read_attributes).transpose()?.flatten(),
        is_signed: false,
    })
}

/// Refuses a subject that readers show or order in different ways: a relative name with several attributes, and a value
/// in another encoding than those of RFC 5280 (4.1.2.4) for new names, UTF8String and PrintableString.
fn require_plain_name(name: &[u8]) -> Result<(), &'static str> {
    const DAMAGED: &str = "is not a sequence of names";
    let mut name = DerReader::new(name);
    while !name.is_empty() {
        let mut relative = name.read(tag::SET).ok_or(DAMAGED)?;
        let mut attribute = relative.read(tag::SEQUENCE).ok_or(DAMAGED)?;
        if !relative.is_empty() {
            return Err("contains a relative name with several attributes");
        }
        attribute.oid().ok_or(DAMAGED)?;
        if !attribute.peek(tag::UTF8_STRING) && !attribute.peek(tag::PRINTABLE_STRING) {
            return Err("contains a text that is neither a UTF8String nor a PrintableString");
        }
    }
    Ok(())
}

/// Returns the names in the only attribute, an extension request with one value.
fn read_attributes(mut attributes: DerReader<'_>) -> Result<Option<Sans>, CsrContentError> {
    let wrong = || damaged("its attributes are not valid");
    if attributes.is_empty() {
        return Ok(None);
    }
    let mut attribute = attributes.read(tag::SEQUENCE).ok_or_else(wrong)?;
    let oid = attribute.oid().ok_or_else(wrong)?;
    if oid != EXTENSION_REQUEST {
        return Err(CsrContentError::Attribute(oid_text(oid)));
    }
    let mut values = attribute.read(tag::SET).ok_or_else(wrong)?;
    attribute.end().ok_or_else(wrong)?;
    let mut extensions = values.read(tag::SEQUENCE).ok_or_else(wrong)?;
    values.end().ok_or_else(wrong)?;
    let mut sans = None;
    while !extensions.is_empty() {
        let mut extension = extensions.read(tag::SEQUENCE).ok_or_else(wrong)?;
        let oid = extension.oid().ok_or_else(wrong)?;
        if oid != SUBJECT_ALT_NAME {
            return Err(CsrContentError::Extension(oid_text(oid)));
        }
        if extension.peek(tag::BOOLEAN) {
            extension.boolean().ok_or_else(wrong)?;
        }
        let value = extension.read(tag::OCTET_STRING).ok_or_else(wrong)?;
        extension.end().ok_or_else(wrong)?;
        if sans.replace(read_names(value)?).is_some() {
            return Err(damaged("it asks for subjectAltName twice"));
        }
    }
    // A second attribute is refused by its type; a second extension request would be read by some signers only.
    match attributes.read(tag::SEQUENCE) {
        None if attributes.is_empty() => Ok(sans),
        Some(mut second) => {
            let oid = second.oid().ok_or_else(wrong)?;
            Err(CsrContentError::Attribute(oid_text(oid)))
        }
        None => Err(wrong()),
    }
}

fn read_names(value: DerReader<'_>) -> Result<Sans, CsrContentError> {
    let names = strict::alternative_names(value)
        .map_err(|problem| CsrContentError::Damaged(format!("subjectAltName: {problem}")))?;
    let email = names.emails.first().map(|_| "an e-mail address");
    let uri = names.uris.first().map(|_| "a URI");
    let other = names.others.first().map(String::as_str);
    if let Some(kind) = email.or(uri).or(other) {
        return Err(CsrContentError::NameKind(kind.to_owned()));
    }
    Ok(Sans {
        dns: names.dns,
        ips: names.ips,
    })
}

#[cfg(test)]
mod tests;
