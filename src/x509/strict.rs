//! Parses certificates with the rules of Go's `crypto/x509` (`parser.go`, Go 1.26), which all Kubernetes components use.
//!
//! A certificate that Go refuses is an error here, and the content of a certificate is what Go reads. Some rules are
//! stricter than Go's and follow RFC 5280, so two verifiers cannot read a certificate differently: no bytes follow the
//! last known field of a structure, general names have the form that their tag requires, times end in `Z`, and EC keys are
//! on a curve of 256 bits or more.

mod extensions;
mod names;
mod public_key;

use time::{Date, Month, OffsetDateTime, Time};

use super::der::{DerReader, Element, oid_text, tag};
use super::key::KeyError;
use crate::text::printable;

use extensions::{MAX_EXTENSIONS, all_extensions};

pub use extensions::KeyPurpose;
pub(super) use extensions::{
    AlternativeNames, Extensions, KeyUsages, NameConstraints, Subtrees, alternative_names,
};
pub(super) use names::{
    CanonicalName, address, attribute_kind, attributes, canonical_name, is_domain, mailbox,
};
pub(super) use public_key::public_key;

/// The reason why bytes are not a certificate that Go's `crypto/x509` can parse.
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

/// The fields of a certificate; byte strings are DER.
pub(super) struct CertificateFields<'a> {
    /// `tbsCertificate`, the signed bytes.
    pub(super) tbs: &'a [u8],
    /// Content of the AlgorithmIdentifier.
    pub(super) signature_algorithm: &'a [u8],
    pub(super) signature: &'a [u8],
    /// 1, 2 or 3.
    pub(super) version: u8,
    /// Content of the INTEGER.
    pub(super) serial: &'a [u8],
    pub(super) issuer: &'a [u8],
    pub(super) not_before: OffsetDateTime,
    pub(super) not_after: OffsetDateTime,
    pub(super) subject: &'a [u8],
    pub(super) spki: &'a [u8],
    /// The reason why Go refuses all signatures of this key although it parses the key, if it does.
    pub(super) unusable_key: Option<&'static str>,
    pub(super) extensions: Extensions,
}

/// Verifies that Go parses a DER certificate revocation list. etcd parses it at each handshake. Go:
/// `ParseRevocationList`.
pub(super) fn check_revocation_list(der: &[u8]) -> std::result::Result<(), String> {
    let not_der = || NOT_DER.to_owned();
    let mut input = DerReader::new(der);
    let mut outer = input.read(tag::SEQUENCE).ok_or_else(not_der)?;
    input.end().ok_or("bytes follow it")?;
    let mut list = outer.read(tag::SEQUENCE).ok_or_else(not_der)?;
    let outer_algorithm = outer.read(tag::SEQUENCE).ok_or_else(not_der)?.rest();
    outer.bits().ok_or("its signature is not a BIT STRING")?;
    outer.end().ok_or("bytes follow its signature")?;
    if list.unsigned() != Some(1) {
        return Err(
            "its version is not 2, the only one that Go and etcd 3.6 support (set crlnumber in OpenSSL's configuration, so that the CA numbers its lists)"
                .to_owned(),
        );
    }
    let inner_algorithm = list.read(tag::SEQUENCE).ok_or_else(not_der)?.rest();
    if inner_algorithm != outer_algorithm || algorithm(inner_algorithm).is_none() {
        return Err("its signature algorithms differ or are not DER".to_owned());
    }
    let issuer = list.element(tag::SEQUENCE).ok_or_else(not_der)?;
    attributes(issuer.whole).map_err(|problem| format!("its issuer is not valid: {problem}"))?;
    let instant =
        |list: &mut DerReader<'_>| time(list).map(drop).map_err(|error| error.to_string());
    instant(&mut list)?;
    let is_time =
        |list: &DerReader<'_>| list.peek(tag::UTC_TIME) || list.peek(tag::GENERALIZED_TIME);
    // nextUpdate: required by RFC 5280, section 5.1.2.5, and optional for Go.
    if is_time(&list) {
        instant(&mut list)?;
    }
    if let Some(mut entries) = list.optional(tag::SEQUENCE).ok_or_else(not_der)? {
        while !entries.is_empty() {
            let mut entry = entries.read(tag::SEQUENCE).ok_or_else(not_der)?;
            entry
                .integer()
                .ok_or("a serial number is not in its shortest form")?;
            instant(&mut entry)?;
            if let Some(extensions) = entry.optional(tag::SEQUENCE).ok_or_else(not_der)? {
                check_list_extensions(extensions)?;
            }
            entry.end().ok_or("bytes follow an entry")?;
        }
    }
    if let Some(mut explicit) = list.optional(tag::constructed(0)).ok_or_else(not_der)? {
        let extensions = explicit.read(tag::SEQUENCE).ok_or_else(not_der)?;
        explicit.end().ok_or("bytes follow its extensions")?;
        check_list_extensions(extensions)?;
    }
    list.end()
        .ok_or_else(|| "bytes follow its extensions".to_owned())
}

/// Verifies the extensions of a revocation list or of one of its entries.
fn check_list_extensions(mut extensions: DerReader<'_>) -> std::result::Result<(), String> {
    let not_der = || NOT_DER.to_owned();
    let mut seen: Vec<&[u8]> = Vec::new();
    while !extensions.is_empty() {
        let mut extension = extensions.read(tag::SEQUENCE).ok_or_else(not_der)?;
        let oid = extension
            .oid()
            .ok_or("an extension has no object identifier")?;
        let wrong =
            |problem: &str| format!("its extension {} is not valid: {problem}", oid_text(oid));
        let critical = if extension.peek(tag::BOOLEAN) {
            extension
                .boolean()
                .ok_or_else(|| wrong("critical is not a BOOLEAN"))?
        } else {
            false
        };
        let mut value = extension.read(tag::OCTET_STRING).ok_or_else(not_der)?;
        extension.end().ok_or_else(not_der)?;
        if seen.contains(&oid) || seen.len() >= MAX_EXTENSIONS {
            return Err(wrong("it occurs twice, or there are too many"));
        }
        seen.push(oid);
        match oid {
            // cRLNumber
            [0x55, 0x1d, 20] => {
                value
                    .integer()
                    .ok_or_else(|| wrong("it is not an INTEGER"))?;
            }
            // reasonCode
            [0x55, 0x1d, 21] => {
                let code = value.element(tag::ENUMERATED);
                code.filter(|code| matches!(code.content, [0..=0x7f]))
                    .ok_or_else(|| wrong("it is not a small ENUMERATED"))?;
            }
            [0x55, 0x1d, 35] => {
                Extensions::default()
                    .authority_key(critical, value)
                    .map_err(wrong)?;
            }
            _ => {}
        }
    }
    Ok(())
}

type Result<T> = std::result::Result<T, CertificateError>;

fn damaged(what: &str) -> CertificateError {
    CertificateError::Damaged(what.to_owned())
}

fn field(field: &'static str, problem: impl Into<String>) -> CertificateError {
    CertificateError::Field {
        field,
        problem: problem.into(),
    }
}

const NOT_DER: &str = "it is not DER";

/// Parses one certificate. Go: `parseCertificate`.
///
/// # Errors
/// A certificate that Go refuses, or that two verifiers could read differently.
pub(super) fn parse(der: &[u8]) -> Result<CertificateFields<'_>> {
    let SignedParts {
        tbs,
        algorithm: outer_algorithm,
        signature,
    } = envelope(der)?;
    let mut body = DerReader::new(tbs.content);
    let version = version(&mut body)?;
    let serial = body
        .integer()
        .ok_or_else(|| field("serial number", "it is not an INTEGER in its shortest form"))?;
    // Go refuses it since 1.23 (`x509negativeserial`).
    if serial.first().is_some_and(|first| first & 0x80 != 0) {
        return Err(field("serial number", "it is negative"));
    }
    let signature_algorithm = body
        .read(tag::SEQUENCE)
        .ok_or_else(|| field("signature algorithm", NOT_DER))?
        .rest();
    // The outer one is not signed: RFC 5280, section 4.1.1.2, requires the same in both places.
    if signature_algorithm != outer_algorithm {
        return Err(field(
            "signature algorithm",
            "the signed one and the one next to the signature differ",
        ));
    }
    algorithm(signature_algorithm).ok_or_else(|| field("signature algorithm", NOT_DER))?;
    let issuer = name_element(&mut body, "issuer")?;
    let (not_before, not_after) = validity(&mut body)?;
    let subject = name_element(&mut body, "subject")?;
    let spki = body
        .element(tag::SEQUENCE)
        .ok_or_else(|| field("public key", NOT_DER))?;
    // As in Go, a certificate is read although its key can verify nothing: only its use fails.
    let unusable_key = public_key(spki.content)?;
    let mut extensions = Extensions::default();
    if version > 1 {
        // RFC 5280, section 4.1.2.8: only versions 2 and 3 have them.
        for number in [1, 2] {
            body.optional(tag::context(number))
                .ok_or_else(|| field("unique identifier", NOT_DER))?;
        }
    }
    if version == 3 {
        let found = body
            .optional(tag::constructed(3))
            .ok_or_else(|| field("extensions", NOT_DER))?;
        if let Some(found) = found {
            extensions = all_extensions(found)?;
        }
    }
    body.end()
        .ok_or_else(|| damaged("unknown fields follow the known ones of its version"))?;
    Ok(CertificateFields {
        tbs: tbs.whole,
        signature_algorithm,
        signature,
        version,
        serial,
        issuer,
        not_before,
        not_after,
        subject,
        spki: spki.whole,
        unusable_key,
        extensions,
    })
}

/// The three parts of a certificate.
struct SignedParts<'a> {
    tbs: Element<'a>,
    /// Content of the AlgorithmIdentifier.
    algorithm: &'a [u8],
    signature: &'a [u8],
}

fn envelope(der: &[u8]) -> Result<SignedParts<'_>> {
    let mut input = DerReader::new(der);
    let mut outer = input
        .read(tag::SEQUENCE)
        .ok_or_else(|| damaged("it is not a SEQUENCE with a minimal length"))?;
    input
        .end()
        .ok_or_else(|| damaged("bytes follow the certificate"))?;
    let tbs = outer
        .element(tag::SEQUENCE)
        .ok_or_else(|| damaged("it has no tbsCertificate"))?;
    let algorithm = outer
        .read(tag::SEQUENCE)
        .ok_or_else(|| damaged("it has no signatureAlgorithm"))?
        .rest();
    let (signature, unused) = outer
        .bits()
        .ok_or_else(|| field("signature", "it is not a BIT STRING"))?;
    if unused != 0 {
        return Err(field("signature", "its last byte is not complete"));
    }
    outer
        .end()
        .ok_or_else(|| damaged("bytes follow the signature"))?;
    Ok(SignedParts {
        tbs,
        algorithm,
        signature,
    })
}

fn version(body: &mut DerReader<'_>) -> Result<u8> {
    let wrong = || field("version", "it is not 1, 2 or 3");
    match body.optional(tag::constructed(0)).ok_or_else(wrong)? {
        None => Ok(1),
        Some(mut explicit) => {
            let number = explicit.unsigned().ok_or_else(wrong)?;
            explicit.end().ok_or_else(wrong)?;
            match number {
                0 => Ok(1),
                1 => Ok(2),
                2 => Ok(3),
                _ => Err(wrong()),
            }
        }
    }
}

/// Splits an AlgorithmIdentifier's content into the identifier and the parameters. Go: `parseAI`.
fn algorithm(content: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut reader = DerReader::new(content);
    let oid = reader.oid()?;
    let parameters = reader.rest();
    if !reader.is_empty() {
        reader.any()?;
    }
    reader.end()?;
    Some((oid, parameters))
}

fn name_element<'a>(body: &mut DerReader<'a>, what: &'static str) -> Result<&'a [u8]> {
    let name = body
        .element(tag::SEQUENCE)
        .ok_or_else(|| field(what, NOT_DER))?;
    attributes(name.whole).map_err(|problem| field(what, problem))?;
    Ok(name.whole)
}

fn validity(body: &mut DerReader<'_>) -> Result<(OffsetDateTime, OffsetDateTime)> {
    let wrong = || field("validity", NOT_DER);
    let mut pair = body.read(tag::SEQUENCE).ok_or_else(wrong)?;
    let (from, to) = (time(&mut pair)?, time(&mut pair)?);
    pair.end().ok_or_else(wrong)?;
    Ok((from, to))
}

/// Parses a UTCTime or a GeneralizedTime with seconds and `Z` (RFC 5280, 4.1.2.5). Unlike other verifiers, Go's `parseTime`
/// also accepts a UTCTime without seconds and offsets from UTC.
fn time(reader: &mut DerReader<'_>) -> Result<OffsetDateTime> {
    let element = reader.any().ok_or_else(|| field("validity", NOT_DER))?;
    let read = || {
        let digits = element.content.strip_suffix(b"Z")?;
        let digits: Vec<u8> = digits
            .iter()
            .map(|byte| byte.is_ascii_digit().then(|| byte - b'0'))
            .collect::<Option<_>>()?;
        let pairs: Vec<u8> = digits
            .chunks(2)
            .map(|pair| match pair {
                [tens, ones] => Some(tens * 10 + ones),
                _ => None,
            })
            .collect::<Option<_>>()?;
        let (year, rest) = match (element.tag, pairs.as_slice()) {
            (tag::UTC_TIME, [year, rest @ ..]) if *year >= 50 => (1900 + i32::from(*year), rest),
            (tag::UTC_TIME, [year, rest @ ..]) => (2000 + i32::from(*year), rest),
            (tag::GENERALIZED_TIME, [century, year, rest @ ..]) => {
                (i32::from(*century) * 100 + i32::from(*year), rest)
            }
            _ => return None,
        };
        let [month, day, hour, minute, second] = *rest else {
            return None;
        };
        let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, day).ok()?;
        let time = Time::from_hms(hour, minute, second).ok()?;
        Some(OffsetDateTime::new_utc(date, time))
    };
    read().ok_or_else(|| {
        field(
            "validity",
            format!(
                "{:?} is not a time of the form YYMMDDHHMMSSZ or YYYYMMDDHHMMSSZ",
                printable(&String::from_utf8_lossy(element.content))
            ),
        )
    })
}

#[cfg(test)]
mod tests;
