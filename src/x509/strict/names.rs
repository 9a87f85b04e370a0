//! Names in certificates: distinguished names, and the forms of subjectAltName and nameConstraints.

use std::net::IpAddr;

use x509_parser::der_parser::oid::Oid;
use x509_parser::objects::{oid_registry, oid2abbrev};

use super::NOT_DER;
use crate::text::printable;
use crate::x509::der::{DerReader, Element, oid_text, tag};

/// One attribute of a distinguished name: the content of its type, and its value as Go decodes it.
pub(in crate::x509) struct Attribute<'a> {
    pub(in crate::x509) oid: &'a [u8],
    pub(in crate::x509) value: String,
    /// True if its relative distinguished name has no other attribute.
    pub(in crate::x509) is_alone: bool,
    /// True for the first attribute of a relative distinguished name.
    is_first: bool,
}

/// A distinguished name for comparisons by RFC 5280, 7.1: of each relative distinguished name, in order, types and values.
pub(in crate::x509) type CanonicalName = Vec<Vec<(Vec<u8>, String)>>;

/// Converts a distinguished name for comparisons. Like OpenSSL (`X509_NAME_canon`), letters outside ASCII keep their case.
pub(in crate::x509) fn canonical_name(der: &[u8]) -> Result<CanonicalName, String> {
    let mut name = CanonicalName::new();
    for attribute in attributes(der)? {
        let words: Vec<&str> = attribute.value.split_ascii_whitespace().collect();
        let value = words.join(" ").to_ascii_lowercase();
        let entry = (attribute.oid.to_vec(), value);
        match name.last_mut() {
            Some(set) if !attribute.is_first => set.push(entry),
            _ => name.push(vec![entry]),
        }
    }
    // The elements of a SET have no order.
    name.iter_mut().for_each(|set| set.sort());
    Ok(name)
}

/// Parses a distinguished name. Go: `parseName`.
pub(in crate::x509) fn attributes(der: &[u8]) -> Result<Vec<Attribute<'_>>, String> {
    let damaged = || NOT_DER.to_owned();
    let mut input = DerReader::new(der);
    let mut sets = input.read(tag::SEQUENCE).ok_or_else(damaged)?;
    input.end().ok_or_else(damaged)?;
    let mut found = Vec::new();
    while !sets.is_empty() {
        let mut set = sets.read(tag::SET).ok_or_else(damaged)?;
        let first = found.len();
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
            found.push(Attribute {
                oid,
                value,
                is_alone: false,
                is_first: found.len() == first,
            });
        }
        if let Some([attribute]) = found.get_mut(first..) {
            attribute.is_alone = true;
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

/// Parses the content of an iPAddress.
pub(in crate::x509) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

pub(super) fn ia5(content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    text.is_ascii().then(|| text.to_owned())
}

/// Returns the abbreviation of an attribute type, such as `CN`, or its object identifier in dotted form.
pub(in crate::x509) fn attribute_kind(oid: &[u8]) -> String {
    let known = Oid::new(oid.into());
    oid2abbrev(&known, oid_registry()).map_or_else(|_| oid_text(oid), str::to_owned)
}

/// Returns a directoryName in words.
pub(super) fn directory_name(content: &[u8]) -> Result<String, &'static str> {
    let attributes = attributes(content).map_err(|_| "a directoryName is not a valid name")?;
    let parts: Vec<_> = attributes
        .iter()
        .map(|attribute| format!("{}={}", attribute_kind(attribute.oid), attribute.value))
        .collect();
    Ok(format!("directoryName:{}", printable(&parts.join(", "))))
}

/// Go: `domainNameValid`.
pub(in crate::x509) fn is_domain(name: &str, constraint: bool) -> bool {
    if name.is_empty() {
        return true;
    }
    let labels = if constraint {
        name.strip_prefix('.').unwrap_or(name)
    } else {
        name
    };
    labels
        .split('.')
        .all(|label| !label.is_empty() && label.bytes().all(|byte| (33..=126).contains(&byte)))
}

/// Splits a mailbox into its local part and its domain. Go: `parseRFC2821Mailbox`, without quotes and escapes.
pub(in crate::x509) fn mailbox(text: &str) -> Option<(&str, &str)> {
    let (local, domain) = text.split_once('@')?;
    let atom = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte);
    let valid = |part: &str| !part.is_empty() && part.bytes().all(atom);
    (local.split('.').all(valid) && !domain.is_empty() && is_domain(domain, false))
        .then_some((local, domain))
}

/// Verifies an absolute URI (RFC 3986) and returns its host without the port. Go's `url.Parse` accepts more: user names,
/// relative references, unescaped characters.
pub(super) fn uri_host(uri: &str) -> Option<Option<String>> {
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
    // A fragment does not contain the character that begins it (RFC 3986, section 3.5).
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
    // Like Go, which refuses a certificate whose URI has another host (`parseSANExtension`).
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
