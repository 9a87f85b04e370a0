//! The extensions of a certificate. Go: `processExtensions`.

use std::fmt;
use std::net::IpAddr;

use super::names::{
    CanonicalName, address, canonical_name, directory_name, ia5, is_domain, mailbox, uri_host,
};
use super::{CertificateError, NOT_DER, Result, field};
use crate::x509::der::{DerReader, oid_text, tag};
use crate::x509::profile::ExtendedUsage;

/// The content of the extensions.
#[derive(Clone, Debug, Default)]
pub(in crate::x509) struct Extensions {
    pub(in crate::x509) key_usage: Option<KeyUsages>,
    pub(in crate::x509) basic_constraints: Option<BasicConstraints>,
    pub(in crate::x509) names: Option<AlternativeNames>,
    /// At least one if present.
    pub(in crate::x509) extended_usages: Option<Vec<KeyPurpose>>,
    pub(in crate::x509) name_constraints: Option<NameConstraints>,
    pub(in crate::x509) subject_key_id: Vec<u8>,
    pub(in crate::x509) authority_key_id: Vec<u8>,
    pub(in crate::x509) policies: Policies,
    /// First critical extension that Go does not handle, in dotted form.
    pub(in crate::x509) unhandled_critical: Option<String>,
}

/// keyUsage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::x509) struct KeyUsages {
    pub(in crate::x509) digital_signature: bool,
    pub(in crate::x509) key_encipherment: bool,
    /// Data encipherment or key agreement.
    pub(in crate::x509) other_encryption: bool,
    pub(in crate::x509) cert_sign: bool,
}

/// basicConstraints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::x509) struct BasicConstraints {
    pub(in crate::x509) ca: bool,
    pub(in crate::x509) path_len: Option<u64>,
}

/// subjectAltName, by kind in the order of the certificate.
#[derive(Clone, Debug, Default)]
pub(in crate::x509) struct AlternativeNames {
    /// Content of the extension.
    pub(in crate::x509) der: Vec<u8>,
    pub(in crate::x509) dns: Vec<String>,
    pub(in crate::x509) ips: Vec<IpAddr>,
    pub(in crate::x509) emails: Vec<String>,
    /// URI and its host, without a port.
    pub(in crate::x509) uris: Vec<(String, Option<String>)>,
    /// Kinds that Go does not read, in words.
    pub(in crate::x509) others: Vec<String>,
}

/// nameConstraints.
#[derive(Clone, Debug, Default)]
pub(in crate::x509) struct NameConstraints {
    pub(in crate::x509) permitted: Subtrees,
    pub(in crate::x509) excluded: Subtrees,
}

/// The subtrees of one side of nameConstraints, by kind.
#[derive(Clone, Debug, Default)]
pub(in crate::x509) struct Subtrees {
    pub(in crate::x509) dns: Vec<String>,
    /// Address and mask, of the same length.
    pub(in crate::x509) ips: Vec<(Vec<u8>, Vec<u8>)>,
    pub(in crate::x509) emails: Vec<String>,
    pub(in crate::x509) uris: Vec<String>,
    /// Directory names, which Go ignores; `None` for one that cannot be compared.
    pub(in crate::x509) directories: Vec<Option<CanonicalName>>,
}

/// certificatePolicies, policyMappings, policyConstraints and inhibitAnyPolicy. Policies are contents of OBJECT
/// IDENTIFIERs.
#[derive(Clone, Debug, Default)]
pub(in crate::x509) struct Policies {
    pub(in crate::x509) policies: Vec<Vec<u8>>,
    /// Issuer's and subject's policy.
    pub(in crate::x509) mappings: Vec<(Vec<u8>, Vec<u8>)>,
    pub(in crate::x509) require_explicit: Option<u64>,
    pub(in crate::x509) inhibit_mapping: Option<u64>,
    pub(in crate::x509) inhibit_any: Option<u64>,
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

pub(super) fn all_extensions(mut explicit: DerReader<'_>) -> Result<Extensions> {
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
        let critical = if extension.peek(tag::BOOLEAN) {
            // Some CAs write the default value, false.
            extension.boolean().ok_or_else(|| {
                field(
                    "extensions",
                    format!("{}: critical is not a BOOLEAN", oid_text(oid)),
                )
            })?
        } else {
            false
        };
        let value = extension.read(tag::OCTET_STRING).ok_or_else(wrong)?;
        extension.end().ok_or_else(wrong)?;
        // RFC 5280, section 4.2, and Go refuse it: two readers could take different ones.
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
pub(in crate::x509) fn alternative_names(
    value: DerReader<'_>,
) -> std::result::Result<AlternativeNames, &'static str> {
    let mut extensions = Extensions::default();
    extensions.alternative_names(value)?;
    Ok(extensions.names.unwrap_or_default())
}

/// Largest number of extensions in one certificate; usual certificates have about ten.
pub(super) const MAX_EXTENSIONS: usize = 64;

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
    pub(super) fn authority_key(&mut self, critical: bool, mut value: DerReader<'_>) -> Handled {
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
            other_encryption: has(3) || has(4),
            cert_sign: has(5),
        });
        Ok(true)
    }

    /// Go: `parseBasicConstraintsExtension`.
    fn basic(&mut self, mut value: DerReader<'_>) -> Handled {
        let mut fields = value.read(tag::SEQUENCE).ok_or(NOT_DER)?;
        value.end().ok_or(TRAILING)?;
        let ca = if fields.peek(tag::BOOLEAN) {
            fields.boolean().ok_or("cA is not a BOOLEAN")?
        } else {
            false
        };
        let path_len =
            if fields.peek(tag::INTEGER) {
                Some(fields.unsigned().ok_or(
                    "pathLenConstraint is negative, too large or not in its shortest form",
                )?)
            } else {
                None
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
        let mut number = |tag| {
            if fields.peek(tag) {
                fields.unsigned_with_tag(tag).map(Some).ok_or(NOT_A_NUMBER)
            } else {
                Ok(None)
            }
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
pub(super) const CRITICAL: &str = "it is marked critical, which RFC 5280 forbids";

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
    if content.is_empty() || !starts {
        Err(WRONG)
    } else {
        Ok(content.to_vec())
    }
}

impl Subtrees {
    fn read(&mut self, mut list: DerReader<'_>) -> Handled {
        let mut handled = true;
        while !list.is_empty() {
            let mut subtree = list.read(tag::SEQUENCE).ok_or(NOT_DER)?;
            let base = subtree.any().ok_or(NOT_DER)?;
            // minimum and maximum
            let mut is_limited = false;
            for number in [0, 1] {
                let limit = subtree.optional(tag::context(number)).ok_or(NOT_DER)?;
                is_limited |= limit.is_some();
            }
            subtree.end().ok_or(TRAILING)?;
            let text = || ia5(base.content).ok_or("a constraint is not ASCII");
            let domain = |text: String| {
                if is_domain(&text, true) {
                    Ok(text)
                } else {
                    Err("a constraint is not a domain name")
                }
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
                    // RFC 5280, section 4.2.1.10: the host of a URI constraint is a domain name.
                    if constraint.parse::<IpAddr>().is_ok() {
                        return Err("a URI constraint is an IP address");
                    }
                    self.uris.push(constraint);
                }
                0xa4 => {
                    let name = canonical_name(base.content).ok();
                    self.directories.push(name.filter(|_| !is_limited));
                    handled = false;
                }
                0xa0 | 0xa3 | 0xa5 | 0x88 => handled = false,
                _ => return Err("a constraint has a tag that no kind of name has"),
            }
        }
        Ok(handled)
    }
}

/// Splits an iPAddress constraint into address and mask.
pub(super) fn network(content: &[u8]) -> std::result::Result<(Vec<u8>, Vec<u8>), &'static str> {
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
    if bits == expected {
        Ok((address.to_vec(), mask.to_vec()))
    } else {
        Err("the mask of an iPAddress constraint has gaps")
    }
}

/// Go: `processExtensions`, case 31.
pub(super) fn distribution_points(mut value: DerReader<'_>) -> Handled {
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
