//! Parses certificates with the rules of Go's `crypto/x509` (`parser.go`, Go 1.26), which all Kubernetes components use.
//!
//! A certificate that Go refuses is an error here, and the content of a certificate is what Go reads. Some rules are
//! stricter than Go's and follow RFC 5280, so that two verifiers cannot read a certificate differently: no bytes follow the
//! last known field of a structure, general names have the form that their tag requires, times end in `Z`, and EC keys are
//! on a curve of 256 bits or more.

use std::fmt;
use std::net::IpAddr;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ECDSA_P521_SHA512_ASN1, ParsedPublicKey,
    VerificationAlgorithm,
};
use time::{Date, Month, OffsetDateTime, Time};
use x509_parser::der_parser::oid::Oid;
use x509_parser::objects::{oid_registry, oid2abbrev};

use super::der::{DerReader, Element, oid_text, tag};
use super::key::KeyError;
use super::profile::ExtendedUsage;
use super::text::printable;

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
pub(super) struct Parsed<'a> {
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
///
/// # Errors
/// The problem, in words.
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
        let critical = match extension.peek(tag::BOOLEAN) {
            true => extension
                .boolean()
                .ok_or_else(|| wrong("critical is not a BOOLEAN"))?,
            false => false,
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

/// The content of the extensions.
#[derive(Clone, Debug, Default)]
pub(super) struct Extensions {
    pub(super) key_usage: Option<KeyUsages>,
    pub(super) basic_constraints: Option<BasicConstraints>,
    pub(super) names: Option<AlternativeNames>,
    /// At least one if present.
    pub(super) extended_usages: Option<Vec<KeyPurpose>>,
    pub(super) name_constraints: Option<NameConstraints>,
    pub(super) subject_key_id: Vec<u8>,
    pub(super) authority_key_id: Vec<u8>,
    pub(super) policies: Policies,
    /// First critical extension that Go does not handle, in dotted form.
    pub(super) unhandled_critical: Option<String>,
}

/// keyUsage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyUsages {
    pub(super) digital_signature: bool,
    pub(super) key_encipherment: bool,
    pub(super) cert_sign: bool,
}

/// basicConstraints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BasicConstraints {
    pub(super) ca: bool,
    pub(super) path_len: Option<u64>,
}

/// subjectAltName, by kind in the order of the certificate.
#[derive(Clone, Debug, Default)]
pub(super) struct AlternativeNames {
    /// Content of the extension.
    pub(super) der: Vec<u8>,
    pub(super) dns: Vec<String>,
    pub(super) ips: Vec<IpAddr>,
    pub(super) emails: Vec<String>,
    /// URI and its host, without a port.
    pub(super) uris: Vec<(String, Option<String>)>,
    /// Kinds that Go does not read, in words.
    pub(super) others: Vec<String>,
}

/// nameConstraints.
#[derive(Clone, Debug, Default)]
pub(super) struct NameConstraints {
    pub(super) permitted: Subtrees,
    pub(super) excluded: Subtrees,
}

/// The subtrees of one side of nameConstraints, by kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Subtrees {
    pub(super) dns: Vec<String>,
    /// Address and mask, of the same length.
    pub(super) ips: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) emails: Vec<String>,
    pub(super) uris: Vec<String>,
}

/// certificatePolicies, policyMappings, policyConstraints and inhibitAnyPolicy. Policies are contents of OBJECT
/// IDENTIFIERs.
#[derive(Clone, Debug, Default)]
pub(super) struct Policies {
    pub(super) policies: Vec<Vec<u8>>,
    /// Issuer's and subject's policy.
    pub(super) mappings: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) require_explicit: Option<u64>,
    pub(super) inhibit_mapping: Option<u64>,
    pub(super) inhibit_any: Option<u64>,
}

/// An extended key usage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the displayed name is the documentation")]
pub enum KeyPurpose {
    Any,
    ServerAuth,
    ClientAuth,
    CodeSigning,
    EmailProtection,
    TimeStamping,
    OcspSigning,
    /// Any other one, as an object identifier in dotted form.
    Other(String),
}

impl KeyPurpose {
    /// Go: `extKeyUsageOIDs`.
    fn from_oid(oid: &[u8]) -> Self {
        match oid {
            [0x55, 0x1d, 37, 0] => KeyPurpose::Any,
            [0x2b, 6, 1, 5, 5, 7, 3, 1] => KeyPurpose::ServerAuth,
            [0x2b, 6, 1, 5, 5, 7, 3, 2] => KeyPurpose::ClientAuth,
            [0x2b, 6, 1, 5, 5, 7, 3, 3] => KeyPurpose::CodeSigning,
            [0x2b, 6, 1, 5, 5, 7, 3, 4] => KeyPurpose::EmailProtection,
            [0x2b, 6, 1, 5, 5, 7, 3, 8] => KeyPurpose::TimeStamping,
            [0x2b, 6, 1, 5, 5, 7, 3, 9] => KeyPurpose::OcspSigning,
            other => KeyPurpose::Other(oid_text(other)),
        }
    }
}

impl fmt::Display for KeyPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            KeyPurpose::Any => "any",
            KeyPurpose::ServerAuth => "server auth",
            KeyPurpose::ClientAuth => "client auth",
            KeyPurpose::CodeSigning => "code signing",
            KeyPurpose::EmailProtection => "email protection",
            KeyPurpose::TimeStamping => "time stamping",
            KeyPurpose::OcspSigning => "OCSP signing",
            KeyPurpose::Other(oid) => oid,
        })
    }
}

impl From<ExtendedUsage> for KeyPurpose {
    fn from(usage: ExtendedUsage) -> Self {
        match usage {
            ExtendedUsage::ServerAuth => KeyPurpose::ServerAuth,
            ExtendedUsage::ClientAuth => KeyPurpose::ClientAuth,
        }
    }
}

/// One attribute of a distinguished name: the content of its type, and its value as Go decodes it.
pub(super) struct Attribute<'a> {
    pub(super) oid: &'a [u8],
    pub(super) value: String,
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
pub(super) fn parse(der: &[u8]) -> Result<Parsed<'_>> {
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
    if serial.first().is_some_and(|first| first & 0x80 != 0) {
        return Err(field("serial number", "it is negative"));
    }
    let signature_algorithm = body
        .read(tag::SEQUENCE)
        .ok_or_else(|| field("signature algorithm", NOT_DER))?
        .rest();
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
    let unusable_key = public_key(spki.content)?;
    let mut extensions = Extensions::default();
    if version > 1 {
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
    Ok(Parsed {
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

/// Parses a distinguished name. Go: `parseName`.
///
/// # Errors
/// The problem, in words.
pub(super) fn attributes(der: &[u8]) -> std::result::Result<Vec<Attribute<'_>>, String> {
    let damaged = || NOT_DER.to_owned();
    let mut input = DerReader::new(der);
    let mut sets = input.read(tag::SEQUENCE).ok_or_else(damaged)?;
    input.end().ok_or_else(damaged)?;
    let mut found = Vec::new();
    while !sets.is_empty() {
        let mut set = sets.read(tag::SET).ok_or_else(damaged)?;
        while !set.is_empty() {
            let mut attribute = set.read(tag::SEQUENCE).ok_or_else(damaged)?;
            let oid = attribute
                .oid()
                .ok_or("the type of an attribute is not an object identifier")?;
            let value = attribute.any().ok_or_else(damaged)?;
            attribute.end().ok_or_else(damaged)?;
            let value = string(value).ok_or_else(|| {
                format!(
                    "the value of attribute {} is not a valid string of its type (tag 0x{:02x})",
                    oid_text(oid),
                    value.tag
                )
            })?;
            found.push(Attribute { oid, value });
        }
    }
    Ok(found)
}

/// Decodes a string of a distinguished name. Go: `parseASN1String`.
fn string(value: Element<'_>) -> Option<String> {
    let bytes = value.content;
    let ascii = |allowed: fn(u8) -> bool| {
        bytes
            .iter()
            .all(|byte| allowed(*byte))
            .then(|| bytes.iter().copied().map(char::from).collect())
    };
    match value.tag {
        tag::UTF8_STRING => std::str::from_utf8(bytes).ok().map(str::to_owned),
        tag::PRINTABLE_STRING => ascii(is_printable),
        tag::IA5_STRING => ascii(|byte| byte.is_ascii()),
        tag::NUMERIC_STRING => ascii(|byte| byte.is_ascii_digit() || byte == b' '),
        // Decoded as Latin-1, whose characters are the first 256 of Unicode.
        tag::T61_STRING => ascii(|_| true),
        tag::BMP_STRING => {
            let bytes = bytes.strip_suffix(&[0, 0]).unwrap_or(bytes);
            bytes
                .chunks(2)
                .map(|pair| {
                    let point = u16::from_be_bytes(pair.try_into().ok()?);
                    let reserved = matches!(point, 0xfffe | 0xffff | 0xfdd0..=0xfdef);
                    char::from_u32(point.into()).filter(|_| !reserved)
                })
                .collect()
        }
        _ => None,
    }
}

/// Go: `isPrintable`, which accepts `*` and `&` in addition to the standard.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)
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

const OID_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
const OID_EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const OID_DSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1];
const OID_X25519: &[u8] = &[0x2b, 0x65, 0x6e];
const OID_ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const OID_P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const OID_P384: &[u8] = &[0x2b, 0x81, 4, 0, 34];
const OID_P521: &[u8] = &[0x2b, 0x81, 4, 0, 35];
const NULL: &[u8] = &[5, 0];

/// Verifies the content of a SubjectPublicKeyInfo. Returns the reason if its key cannot verify signatures. Go:
/// `parsePublicKey`.
pub(super) fn public_key(content: &[u8]) -> Result<Option<&'static str>> {
    let wrong = |problem: &str| field("public key", problem);
    let mut reader = DerReader::new(content);
    let identifier = reader
        .read(tag::SEQUENCE)
        .ok_or_else(|| wrong(NOT_DER))?
        .rest();
    let (oid, parameters) = algorithm(identifier).ok_or_else(|| wrong(NOT_DER))?;
    let (key, unused) = reader
        .bits()
        .ok_or_else(|| wrong("it is not a BIT STRING"))?;
    reader.end().ok_or_else(|| wrong(NOT_DER))?;
    if unused != 0 {
        return Err(wrong("its last byte is not complete"));
    }
    match oid {
        OID_RSA => {
            // RFC 3279, 2.3.1
            if parameters != NULL {
                return Err(wrong("the parameters of an RSA key are not NULL"));
            }
            rsa_key(key)
        }
        OID_EC => ec_key(parameters, key),
        OID_ED25519 | OID_X25519 => {
            // RFC 8410, 3
            if !parameters.is_empty() {
                return Err(wrong(
                    "it has parameters, which its algorithm does not allow",
                ));
            }
            if key.len() != 32 {
                return Err(wrong("it does not have 32 bytes"));
            }
            Ok(None)
        }
        OID_DSA => dsa_key(parameters, key),
        // Go accepts the certificate, but cannot use the key.
        _ => Ok(Some("its algorithm is unknown to Go")),
    }
}

fn ec_key(parameters: &[u8], point: &[u8]) -> Result<Option<&'static str>> {
    let wrong = |problem: &str| field("public key", problem);
    let curve: &'static dyn VerificationAlgorithm = match DerReader::new(parameters).oid() {
        Some(OID_P256) => &ECDSA_P256_SHA256_ASN1,
        Some(OID_P384) => &ECDSA_P384_SHA384_ASN1,
        Some(OID_P521) => &ECDSA_P521_SHA512_ASN1,
        Some(other) => {
            return Err(wrong(&format!(
                "its curve {} is not P-256, P-384 or P-521",
                oid_text(other)
            )));
        }
        None => return Err(wrong("it does not name its curve")),
    };
    // Go does not support compressed points.
    if point.first() != Some(&4) || ParsedPublicKey::new(curve, point).is_err() {
        return Err(wrong("it is not an uncompressed point of its curve"));
    }
    Ok(None)
}

fn dsa_key(parameters: &[u8], key: &[u8]) -> Result<Option<&'static str>> {
    let wrong = |problem: &str| field("public key", problem);
    let mut numbers = DerReader::new(parameters)
        .read(tag::SEQUENCE)
        .ok_or_else(|| wrong("the parameters of a DSA key are not DER"))?;
    let found = [
        DerReader::new(key).integer(),
        numbers.integer(),
        numbers.integer(),
        numbers.integer(),
    ];
    let is_valid = |number: &Option<&[u8]>| number.is_some_and(is_positive);
    match found.iter().all(is_valid) {
        true => Ok(Some("Go does not verify DSA")),
        false => Err(wrong("a number of the DSA key is not positive")),
    }
}

fn is_positive(number: &[u8]) -> bool {
    number.first().is_some_and(|first| first & 0x80 == 0) && number.iter().any(|byte| *byte != 0)
}

/// Go: `parsePublicKey`, and `checkPublicKey` of `crypto/internal/fips140/rsa` for unusable keys.
fn rsa_key(pkcs1: &[u8]) -> Result<Option<&'static str>> {
    let wrong = |problem: &str| field("public key", problem);
    let mut reader = DerReader::new(pkcs1);
    let mut numbers = reader
        .read(tag::SEQUENCE)
        .ok_or_else(|| wrong("it is not an RSAPublicKey"))?;
    reader
        .end()
        .ok_or_else(|| wrong("bytes follow the RSAPublicKey"))?;
    let modulus = numbers
        .integer()
        .filter(|number| is_positive(number))
        .ok_or_else(|| wrong("its RSA modulus is not a positive INTEGER"))?;
    let exponent = numbers
        .unsigned()
        .filter(|number| *number > 0)
        .ok_or_else(|| wrong("its RSA exponent is not a positive INTEGER of 63 bits"))?;
    numbers
        .end()
        .ok_or_else(|| wrong("numbers follow the RSA exponent"))?;
    Ok(if modulus.last().is_some_and(|last| last & 1 == 0) {
        Some("its RSA modulus is even")
    } else if exponent < 3 || exponent & 1 == 0 || exponent > (1 << 31) - 1 {
        Some("its RSA exponent is even, smaller than 3 or larger than 2147483647")
    } else {
        None
    })
}

fn all_extensions(mut explicit: DerReader<'_>) -> Result<Extensions> {
    let wrong = || field("extensions", NOT_DER);
    let mut list = explicit.read(tag::SEQUENCE).ok_or_else(wrong)?;
    explicit.end().ok_or_else(wrong)?;
    let mut seen: Vec<&[u8]> = Vec::new();
    let mut extensions = Extensions::default();
    while !list.is_empty() {
        let mut extension = list.read(tag::SEQUENCE).ok_or_else(wrong)?;
        let oid = extension
            .oid()
            .ok_or_else(|| field("extensions", "one has no object identifier"))?;
        let critical = match extension.peek(tag::BOOLEAN) {
            // Some CAs write the default value, false.
            true => extension.boolean().ok_or_else(|| {
                field(
                    "extensions",
                    format!("{}: critical is not a BOOLEAN", oid_text(oid)),
                )
            })?,
            false => false,
        };
        let value = extension.read(tag::OCTET_STRING).ok_or_else(wrong)?;
        extension.end().ok_or_else(wrong)?;
        if seen.contains(&oid) {
            return Err(field(
                "extensions",
                format!("{} occurs twice", oid_text(oid)),
            ));
        }
        if seen.len() >= MAX_EXTENSIONS {
            return Err(field(
                "extensions",
                format!("there are more than {MAX_EXTENSIONS}"),
            ));
        }
        seen.push(oid);
        extensions.add(oid, critical, value)?;
    }
    Ok(extensions)
}

/// Parses the value of the extension subjectAltName.
///
/// # Errors
/// The problem, in words.
pub(super) fn alternative_names(
    value: DerReader<'_>,
) -> std::result::Result<AlternativeNames, &'static str> {
    let mut extensions = Extensions::default();
    extensions.alternative_names(value)?;
    Ok(extensions.names.unwrap_or_default())
}

/// Largest number of extensions in one certificate; usual certificates have about ten.
const MAX_EXTENSIONS: usize = 64;

impl Extensions {
    /// Go: `processExtensions`.
    fn add(&mut self, oid: &[u8], critical: bool, value: DerReader<'_>) -> Result<()> {
        let (name, handled) = match oid {
            [0x55, 0x1d, 14] => ("subjectKeyIdentifier", self.subject_key(critical, value)),
            [0x55, 0x1d, 15] => ("keyUsage", self.usage(value)),
            [0x55, 0x1d, 17] => ("subjectAltName", self.alternative_names(value)),
            [0x55, 0x1d, 19] => ("basicConstraints", self.basic(value)),
            [0x55, 0x1d, 30] => ("nameConstraints", self.constraints(value)),
            [0x55, 0x1d, 31] => ("cRLDistributionPoints", distribution_points(value)),
            [0x55, 0x1d, 32] => ("certificatePolicies", self.certificate_policies(value)),
            [0x55, 0x1d, 33] => ("policyMappings", self.policy_mappings(value)),
            [0x55, 0x1d, 35] => (
                "authorityKeyIdentifier",
                self.authority_key(critical, value),
            ),
            [0x55, 0x1d, 36] => ("policyConstraints", self.policy_constraints(value)),
            [0x55, 0x1d, 37] => ("extendedKeyUsage", self.extended(value)),
            [0x55, 0x1d, 54] => ("inhibitAnyPolicy", self.inhibit_any_policy(value)),
            // 1.3.6.1.5.5.7.1.1
            [0x2b, 6, 1, 5, 5, 7, 1, 1] => ("authorityInfoAccess", authority_info(critical, value)),
            _ => ("", Ok(false)),
        };
        let handled = handled.map_err(|problem| CertificateError::Extension { name, problem })?;
        if critical && !handled && self.unhandled_critical.is_none() {
            self.unhandled_critical = Some(oid_text(oid));
        }
        Ok(())
    }

    /// Go: `processExtensions`, case 14.
    fn subject_key(&mut self, critical: bool, mut value: DerReader<'_>) -> Handled {
        if critical {
            return Err(CRITICAL);
        }
        let id = value
            .element(tag::OCTET_STRING)
            .ok_or("it is not an OCTET STRING")?;
        value.end().ok_or(TRAILING)?;
        self.subject_key_id = id.content.to_vec();
        Ok(true)
    }

    /// Go: `parseAuthorityKeyIdentifier`.
    fn authority_key(&mut self, critical: bool, mut value: DerReader<'_>) -> Handled {
        if critical {
            return Err(CRITICAL);
        }
        let mut fields = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        value.end().ok_or(TRAILING)?;
        if let Some(id) = fields.optional(tag::context(0)).ok_or(NOT_DER)? {
            self.authority_key_id = id.rest().to_vec();
        }
        // authorityCertIssuer and authorityCertSerialNumber
        for known in [tag::constructed(1), tag::context(2)] {
            fields.optional(known).ok_or(NOT_DER)?;
        }
        fields.end().ok_or(TRAILING)?;
        Ok(true)
    }

    /// Go: `parseKeyUsageExtension`. Go treats an extension without usages as absent; here it allows no usage.
    fn usage(&mut self, mut value: DerReader<'_>) -> Handled {
        let (bytes, _) = value
            .bits()
            .ok_or("it is not a BIT STRING with clear padding")?;
        value.end().ok_or(TRAILING)?;
        let has = |bit: u8| bytes.first().is_some_and(|byte| byte & (0x80 >> bit) != 0);
        self.key_usage = Some(KeyUsages {
            digital_signature: has(0),
            key_encipherment: has(2),
            cert_sign: has(5),
        });
        Ok(true)
    }

    /// Go: `parseBasicConstraintsExtension`.
    fn basic(&mut self, mut value: DerReader<'_>) -> Handled {
        let mut fields = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        value.end().ok_or(TRAILING)?;
        let ca = match fields.peek(tag::BOOLEAN) {
            true => fields.boolean().ok_or("cA is not a BOOLEAN")?,
            false => false,
        };
        let path_len =
            match fields.peek(tag::INTEGER) {
                true => Some(fields.unsigned().ok_or(
                    "pathLenConstraint is negative, too large or not in its shortest form",
                )?),
                false => None,
            };
        fields.end().ok_or(TRAILING)?;
        self.basic_constraints = Some(BasicConstraints { ca, path_len });
        Ok(true)
    }

    /// Go: `parseSANExtension`. Go ignores names with a tag of the wrong form, such as a constructed dNSName.
    fn alternative_names(&mut self, mut value: DerReader<'_>) -> Handled {
        let whole = value.rest();
        let mut list = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        value.end().ok_or(TRAILING)?;
        let mut names = AlternativeNames {
            der: whole.to_vec(),
            ..AlternativeNames::default()
        };
        while !list.is_empty() {
            let name = list.any().ok_or(NOT_DER)?;
            match name.tag {
                0x81 => names
                    .emails
                    .push(ia5(name.content).ok_or("an rfc822Name is not ASCII")?),
                0x82 => names
                    .dns
                    .push(ia5(name.content).ok_or("a dNSName is not ASCII")?),
                0x86 => {
                    let uri =
                        ia5(name.content).ok_or("a uniformResourceIdentifier is not ASCII")?;
                    let host = uri_host(&uri)
                        .ok_or("a uniformResourceIdentifier is not a valid absolute URI")?;
                    names.uris.push((uri, host));
                }
                0x87 => names
                    .ips
                    .push(address(name.content).ok_or("an iPAddress does not have 4 or 16 bytes")?),
                0xa0 => names.others.push("otherName".to_owned()),
                0xa3 => names.others.push("x400Address".to_owned()),
                0xa4 => names.others.push(directory_name(name.content)?),
                0xa5 => names.others.push("ediPartyName".to_owned()),
                0x88 => names
                    .others
                    .push(format!("registeredID:{}", oid_text(name.content))),
                _ => return Err("a name has a tag that no kind of name has"),
            }
        }
        // Go treats a critical extension without a known name as unhandled.
        let handled = !(names.dns.is_empty()
            && names.emails.is_empty()
            && names.ips.is_empty()
            && names.uris.is_empty());
        self.names = Some(names);
        Ok(handled)
    }

    /// Go: `parseExtKeyUsageExtension`. Go treats an empty list as no restriction; RFC 5280, 4.2.1.12, requires an entry.
    fn extended(&mut self, mut value: DerReader<'_>) -> Handled {
        let mut list = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        value.end().ok_or(TRAILING)?;
        let mut usages = Vec::new();
        while !list.is_empty() {
            let oid = list.oid().ok_or("a usage is not an object identifier")?;
            usages.push(KeyPurpose::from_oid(oid));
        }
        if usages.is_empty() {
            return Err("it contains no usage");
        }
        self.extended_usages = Some(usages);
        Ok(true)
    }

    /// Go: `parseNameConstraintsExtension`.
    fn constraints(&mut self, mut value: DerReader<'_>) -> Handled {
        let mut sides = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        value.end().ok_or(TRAILING)?;
        let permitted = sides.optional(tag::constructed(0)).ok_or(NOT_DER)?;
        let excluded = sides.optional(tag::constructed(1)).ok_or(NOT_DER)?;
        sides.end().ok_or(TRAILING)?;
        let empty = |side: &Option<DerReader<'_>>| side.is_none_or(|side| side.is_empty());
        if empty(&permitted) && empty(&excluded) {
            return Err("it constrains nothing");
        }
        let mut handled = true;
        let mut constraints = NameConstraints::default();
        for (side, subtrees) in [
            (permitted, &mut constraints.permitted),
            (excluded, &mut constraints.excluded),
        ] {
            if let Some(side) = side {
                handled &= subtrees.read(side)?;
            }
        }
        self.name_constraints = Some(constraints);
        Ok(handled)
    }

    /// Go: `parseCertificatePoliciesExtension`.
    fn certificate_policies(&mut self, mut value: DerReader<'_>) -> Handled {
        let mut list = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        value.end().ok_or(TRAILING)?;
        let mut seen = std::collections::BTreeSet::new();
        while !list.is_empty() {
            let mut information = list.read(tag::SEQUENCE).ok_or(NOT_DER)?;
            let policy = policy_oid(&mut information)?;
            if !information.is_empty() {
                information.read(tag::SEQUENCE).ok_or(NOT_DER)?;
            }
            information.end().ok_or(TRAILING)?;
            if !seen.insert(policy.clone()) {
                return Err("a policy occurs twice");
            }
            self.policies.policies.push(policy);
        }
        Ok(true)
    }

    /// Go: `processExtensions`, case 33.
    fn policy_mappings(&mut self, mut value: DerReader<'_>) -> Handled {
        let mut list = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        value.end().ok_or(TRAILING)?;
        while !list.is_empty() {
            let mut mapping = list.read(tag::SEQUENCE).ok_or(NOT_DER)?;
            let pair = (policy_oid(&mut mapping)?, policy_oid(&mut mapping)?);
            mapping.end().ok_or(TRAILING)?;
            self.policies.mappings.push(pair);
        }
        Ok(true)
    }

    /// Go: `processExtensions`, case 36. Go ignores negative numbers.
    fn policy_constraints(&mut self, mut value: DerReader<'_>) -> Handled {
        const NOT_A_NUMBER: &str = "a number is negative, too large or not in its shortest form";
        let mut fields = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        value.end().ok_or(TRAILING)?;
        let mut number = |tag| match fields.peek(tag) {
            true => fields.unsigned_with_tag(tag).map(Some).ok_or(NOT_A_NUMBER),
            false => Ok(None),
        };
        self.policies.require_explicit = number(tag::context(0))?;
        self.policies.inhibit_mapping = number(tag::context(1))?;
        fields.end().ok_or(TRAILING)?;
        Ok(true)
    }

    /// Go: `processExtensions`, case 54.
    fn inhibit_any_policy(&mut self, mut value: DerReader<'_>) -> Handled {
        let number = value
            .unsigned()
            .ok_or("it is not a small INTEGER in its shortest form")?;
        value.end().ok_or(TRAILING)?;
        self.policies.inhibit_any = Some(number);
        Ok(true)
    }
}

/// True if Go handles the extension when it is critical; the error is the problem with it.
type Handled = std::result::Result<bool, &'static str>;

const TRAILING: &str = "bytes follow its last field";
const CRITICAL: &str = "it is marked critical, which RFC 5280 forbids";

/// Go: `newOIDFromDER`.
fn policy_oid(reader: &mut DerReader<'_>) -> std::result::Result<Vec<u8>, &'static str> {
    const WRONG: &str = "a policy is not an object identifier";
    let content = reader.element(tag::OID).ok_or(WRONG)?.content;
    let mut starts = true;
    for byte in content {
        if starts && *byte == 0x80 {
            return Err(WRONG);
        }
        starts = byte & 0x80 == 0;
    }
    match content.is_empty() || !starts {
        true => Err(WRONG),
        false => Ok(content.to_vec()),
    }
}

impl Subtrees {
    fn read(&mut self, mut list: DerReader<'_>) -> Handled {
        let mut handled = true;
        while !list.is_empty() {
            let mut subtree = list.read(tag::SEQUENCE).ok_or(NOT_DER)?;
            let base = subtree.any().ok_or(NOT_DER)?;
            // minimum and maximum
            for number in [0, 1] {
                subtree.optional(tag::context(number)).ok_or(NOT_DER)?;
            }
            subtree.end().ok_or(TRAILING)?;
            let text = || ia5(base.content).ok_or("a constraint is not ASCII");
            let domain = |text: String| match is_domain(&text, true) {
                true => Ok(text),
                false => Err("a constraint is not a domain name"),
            };
            match base.tag {
                0x82 => self.dns.push(domain(text()?)?),
                0x87 => self.ips.push(network(base.content)?),
                0x81 => {
                    let constraint = text()?;
                    match constraint.contains('@') {
                        true if mailbox(&constraint).is_none() => {
                            return Err("an rfc822Name constraint is not a mailbox");
                        }
                        true => self.emails.push(constraint),
                        false => self.emails.push(domain(constraint)?),
                    }
                }
                0x86 => {
                    let constraint = domain(text()?)?;
                    if constraint.parse::<IpAddr>().is_ok() {
                        return Err("a URI constraint is an IP address");
                    }
                    self.uris.push(constraint);
                }
                0xa0 | 0xa3..=0xa5 | 0x88 => handled = false,
                _ => return Err("a constraint has a tag that no kind of name has"),
            }
        }
        Ok(handled)
    }
}

/// Splits an iPAddress constraint into address and mask.
fn network(content: &[u8]) -> std::result::Result<(Vec<u8>, Vec<u8>), &'static str> {
    if !matches!(content.len(), 8 | 32) {
        return Err("an iPAddress constraint does not have 8 or 32 bytes");
    }
    let (address, mask) = content.split_at(content.len() / 2);
    // Go: isValidIPMask
    let bits = mask
        .iter()
        .fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    let width = 8 * mask.len() as u32;
    let ones = bits.count_ones();
    let expected = match ones {
        0 => 0,
        _ => (u128::MAX << (128 - ones)) >> (128 - width),
    };
    match bits == expected {
        true => Ok((address.to_vec(), mask.to_vec())),
        false => Err("the mask of an iPAddress constraint has gaps"),
    }
}

/// Go: `processExtensions`, case 31.
fn distribution_points(mut value: DerReader<'_>) -> Handled {
    let mut list = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
    value.end().ok_or(TRAILING)?;
    while !list.is_empty() {
        let mut point = list.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        if let Some(mut name) = point.optional(tag::constructed(0)).ok_or(NOT_DER)? {
            let mut full = name
                .read(tag::constructed(0))
                .ok_or("a distribution point has no fullName")?;
            name.end().ok_or(TRAILING)?;
            while !full.is_empty() {
                full.any().ok_or(NOT_DER)?;
            }
        }
        // reasons and cRLIssuer
        for known in [tag::context(1), tag::constructed(2)] {
            point.optional(known).ok_or(NOT_DER)?;
        }
        point.end().ok_or(TRAILING)?;
    }
    Ok(true)
}

/// Go: `processExtensions`, authorityInfoAccess.
fn authority_info(critical: bool, mut value: DerReader<'_>) -> Handled {
    if critical {
        return Err(CRITICAL);
    }
    let mut list = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
    value.end().ok_or(TRAILING)?;
    while !list.is_empty() {
        let mut access = list.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        access
            .oid()
            .ok_or("an access method is not an object identifier")?;
        access.any().ok_or("an access method has no location")?;
        access.end().ok_or(TRAILING)?;
    }
    Ok(true)
}

/// Parses the content of an iPAddress.
pub(super) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

fn ia5(content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    text.is_ascii().then(|| text.to_owned())
}

/// Returns the abbreviation of an attribute type, such as `CN`, or its object identifier in dotted form.
pub(super) fn attribute_kind(oid: &[u8]) -> String {
    let known = Oid::new(oid.into());
    oid2abbrev(&known, oid_registry()).map_or_else(|_| oid_text(oid), str::to_owned)
}

/// Returns a directoryName in words.
fn directory_name(content: &[u8]) -> std::result::Result<String, &'static str> {
    let attributes = attributes(content).map_err(|_| "a directoryName is not a valid name")?;
    let parts: Vec<_> = attributes
        .iter()
        .map(|attribute| format!("{}={}", attribute_kind(attribute.oid), attribute.value))
        .collect();
    Ok(format!("directoryName:{}", printable(&parts.join(", "))))
}

/// Go: `domainNameValid`.
pub(super) fn is_domain(name: &str, constraint: bool) -> bool {
    if name.is_empty() {
        return true;
    }
    let labels = match constraint {
        true => name.strip_prefix('.').unwrap_or(name),
        false => name,
    };
    labels
        .split('.')
        .all(|label| !label.is_empty() && label.bytes().all(|byte| (33..=126).contains(&byte)))
}

/// Splits a mailbox into its local part and its domain. Go: `parseRFC2821Mailbox`, without quotes and escapes.
pub(super) fn mailbox(text: &str) -> Option<(&str, &str)> {
    let (local, domain) = text.split_once('@')?;
    let atom = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte);
    let valid = |part: &str| !part.is_empty() && part.bytes().all(atom);
    (local.split('.').all(valid) && !domain.is_empty() && is_domain(domain, false))
        .then_some((local, domain))
}

/// Verifies an absolute URI (RFC 3986) and returns its host without the port. Go's `url.Parse` accepts more: user names,
/// relative references, unescaped characters.
fn uri_host(uri: &str) -> Option<Option<String>> {
    let (scheme, rest) = uri.split_once(':')?;
    let mut letters = scheme.bytes();
    if !letters.next()?.is_ascii_alphabetic()
        || !letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    {
        return None;
    }
    let unescaped = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte);
    let (authority, path) = match rest.strip_prefix("//") {
        None => (None, rest),
        Some(rest) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            (Some(authority), path)
        }
    };
    if path.matches('#').count() > 1 {
        return None;
    }
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        let valid = match byte {
            b'%' => bytes.next()?.is_ascii_hexdigit() && bytes.next()?.is_ascii_hexdigit(),
            b':' | b'@' | b'/' | b'?' | b'#' => true,
            other => unescaped(other),
        };
        if !valid {
            return None;
        }
    }
    let Some(authority) = authority else {
        return Some(None);
    };
    if !is_domain(authority, false) {
        return None;
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (format!("[{address}]"), port)
        }
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            let (host, port) = authority.split_at(end);
            if !host.bytes().all(unescaped) {
                return None;
            }
            (host.to_ascii_lowercase(), port)
        }
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => "",
        None => return None,
        Some(digits) => digits,
    };
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((!host.is_empty()).then_some(host))
}

#[cfg(test)]
mod tests;
