//! Certificate signing requests (PKCS#10, RFC 2986).

use rcgen::string::{Ia5String, PrintableString};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose,
    KeyUsagePurpose, SanType,
};
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::FromDer;

use super::certificate::Certificate;
use super::key::{KeyError, KeyType, PrivateKey, PublicKey};
use super::pem::{encode_pem, pem_blocks};
use super::profile::{ExtendedUsage, Profile, Subject, Tolerance};
use super::signature::signature_is_valid;
use super::strict::address;
use super::verify::{CertDifference, FoundNames, compare_names, compare_subject};
use crate::text::printable;

/// A certificate signing request with a valid signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csr {
    der: Vec<u8>,
    public_key: PublicKey,
}

/// Whether a request contains key usage and extended key usage. Most signers treat them as a hint; some (Puppet) refuse such
/// a request; kubeadm never sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageExtensions {
    /// The extension request contains keyUsage and extendedKeyUsage.
    Requested,
    /// The extension request contains only subjectAltName.
    Omitted,
}

/// The reason why a request could not be created or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CsrError {
    #[error("{0:?} cannot be a DNS name in a certificate: it is not ASCII")]
    DnsName(String),
    #[error("more than one organization is required, which kubeadm's table never contains")]
    Organizations,
    #[error("the request could not be encoded: {0}")]
    Encoding(String),
    #[error("it does not contain a CERTIFICATE REQUEST block")]
    NoRequest,
    #[error("not a PKCS#10 request: {0}")]
    Damaged(String),
    #[error("the request's public key is unreadable")]
    Key(#[from] KeyError),
    #[error("the request's own signature does not verify")]
    Signature,
}

impl Csr {
    /// Creates and signs the request for `profile`.
    pub fn create(
        profile: &Profile,
        key: &PrivateKey,
        usages: UsageExtensions,
    ) -> Result<Self, CsrError> {
        let mut params = leaf_params(profile, key.key_type())?;
        if usages == UsageExtensions::Omitted {
            params.key_usages.clear();
            params.extended_key_usages.clear();
        }
        let request = params
            .serialize_request(key)
            .map_err(|error| CsrError::Encoding(error.to_string()))?;
        Ok(Csr {
            der: request.der().to_vec(),
            public_key: key.public_key().clone(),
        })
    }

    /// Reads the first request in PEM text and verifies its signature.
    pub fn from_pem(text: &[u8]) -> Result<Self, CsrError> {
        let blocks = pem_blocks(text).map_err(CsrError::Damaged)?;
        let block = blocks
            .iter()
            .find(|block| {
                matches!(
                    block.tag(),
                    "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST"
                )
            })
            .ok_or(CsrError::NoRequest)?;
        Self::from_der(block.contents())
    }

    /// Reads a DER request and verifies its signature.
    pub fn from_der(der: &[u8]) -> Result<Self, CsrError> {
        let parsed = parse(der)?;
        let public_key =
            PublicKey::from_spki_der(parsed.certification_request_info.subject_pki.raw)?;
        let signed = signature_is_valid(
            &public_key,
            &parsed.signature_algorithm,
            parsed.certification_request_info.raw,
            &parsed.signature_value.data,
        );
        if !signed {
            return Err(CsrError::Signature);
        }
        Ok(Csr {
            der: der.to_vec(),
            public_key,
        })
    }

    /// Returns the DER bytes.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the SHA-256 of the DER bytes.
    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(&self.der).into()
    }

    /// Returns a `CERTIFICATE REQUEST` PEM block.
    pub fn to_pem(&self) -> String {
        encode_pem("CERTIFICATE REQUEST", &self.der)
    }

    /// Returns the public key to be certified.
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Returns true if it contains key usage or extended key usage.
    pub(crate) fn has_usage_extensions(&self) -> bool {
        parse(&self.der).is_ok_and(|parsed| {
            parsed.requested_extensions().is_some_and(|mut all| {
                all.any(|one| {
                    matches!(
                        one,
                        ParsedExtension::KeyUsage(_) | ParsedExtension::ExtendedKeyUsage(_)
                    )
                })
            })
        })
    }

    /// Returns true if subject and names are those of `profile`.
    pub(crate) fn matches(&self, profile: &Profile) -> bool {
        self.differences(profile).is_empty()
    }

    /// Returns how subject and names differ from `profile`: after the configuration has changed, and for a request of another
    /// tool.
    pub(crate) fn differences(&self, profile: &Profile) -> Vec<CertDifference> {
        let mut found = Vec::new();
        let Ok(parsed) = parse(&self.der) else {
            return vec![CertDifference::SubjectAttribute("unreadable".to_owned())];
        };
        let subject = parsed.certification_request_info.subject.as_raw();
        match super::certificate::DistinguishedName::from_der(subject) {
            Ok(subject) => compare_subject(&subject, profile, Tolerance::default(), &mut found),
            Err(why) => found.push(CertDifference::SubjectAttribute(why)),
        }
        let (mut dns, mut ips, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for extension in parsed.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else {
                continue;
            };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(name) => dns.push((*name).to_owned()),
                    GeneralName::IPAddress(bytes) => match address(bytes) {
                        Some(ip) => ips.push(ip),
                        None => others.push(printable(&name.to_string())),
                    },
                    other => others.push(printable(&other.to_string())),
                }
            }
        }
        let names = FoundNames {
            dns: &dns,
            ips: &ips,
            others: &others,
        };
        compare_names(&names, profile, Tolerance::default(), &mut found);
        found
    }

    /// Returns true if subject and subject alternative names are those of `certificate`, byte for byte. RFC 7030, 4.2.2,
    /// requires this of a request for re-enrollment. It is false if the signer reorders or re-encodes names.
    pub fn has_names_of(&self, certificate: &Certificate) -> bool {
        let Ok(request) = parse(&self.der) else {
            return false;
        };
        let Ok((_, certificate)) = X509Certificate::from_der(certificate.der()) else {
            return false;
        };
        let info = &request.certification_request_info;
        let requested = info
            .iter_attributes()
            .filter_map(|attribute| match attribute.parsed_attribute() {
                ParsedCriAttribute::ExtensionRequest(request) => Some(&request.extensions),
                _ => None,
            })
            .flatten();
        info.subject.as_raw() == certificate.subject().as_raw()
            && alternative_names(requested) == alternative_names(certificate.extensions())
    }
}

fn alternative_names<'a>(
    extensions: impl IntoIterator<Item = &'a X509Extension<'a>>,
) -> Option<&'a [u8]> {
    extensions
        .into_iter()
        .find(|extension| extension.oid == OID_X509_EXT_SUBJECT_ALT_NAME)
        .map(|extension| extension.value)
}

fn parse(der: &[u8]) -> Result<X509CertificationRequest<'_>, CsrError> {
    match X509CertificationRequest::from_der(der) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err(CsrError::Damaged("bytes follow the request".to_owned())),
        Err(error) => Err(CsrError::Damaged(error.to_string())),
    }
}

/// Converts a profile for rcgen, for a key of this type. The issuer sets validity, serial and basic constraints.
pub(super) fn leaf_params(profile: &Profile, key: &KeyType) -> Result<CertificateParams, CsrError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name(&profile.subject)?;
    for name in &profile.sans.dns {
        let name =
            Ia5String::try_from(name.as_str()).map_err(|_| CsrError::DnsName(name.clone()))?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    params
        .subject_alt_names
        .extend(profile.sans.ips.iter().copied().map(SanType::IpAddress));
    params.key_usages = key_usages(key);
    params.extended_key_usages = profile
        .usages
        .iter()
        .map(|usage| match usage {
            ExtendedUsage::ServerAuth => ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedUsage::ClientAuth => ExtendedKeyUsagePurpose::ClientAuth,
        })
        .collect();
    Ok(params)
}

/// Returns the key usages of a TLS key. Key encipherment is the key exchange by RSA encryption: RFC 8813 forbids it for EC
/// keys. kubeadm sets it for keys of any type (kubernetes PR 142037 changes that).
pub(super) fn key_usages(key: &KeyType) -> Vec<KeyUsagePurpose> {
    let mut usages = vec![KeyUsagePurpose::DigitalSignature];
    if key.is_rsa() {
        usages.push(KeyUsagePurpose::KeyEncipherment);
    }
    usages
}

pub(super) fn distinguished_name(subject: &Subject) -> Result<DistinguishedName, CsrError> {
    let mut name = DistinguishedName::new();
    match subject.organizations.as_slice() {
        [] => {}
        [organization] => name.push(DnType::OrganizationName, directory_string(organization)),
        _ => return Err(CsrError::Organizations),
    }
    name.push(DnType::CommonName, directory_string(&subject.common_name));
    Ok(name)
}

/// Encodes a PrintableString if the characters allow it, otherwise a UTF8String, like Go's encoding/asn1.
fn directory_string(value: &str) -> DnValue {
    match PrintableString::try_from(value) {
        Ok(printable) => DnValue::PrintableString(printable),
        Err(_) => DnValue::Utf8String(value.to_owned()),
    }
}

#[cfg(test)]
mod tests;
