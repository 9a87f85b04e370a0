//! Chains (leaf first, without the root) and trust bundles, read from any form that a signer may return.

use std::fmt;

use super::blocks;
use super::certificate::Certificate;
use super::content::{content_instead_of_pem, wide_encoding};
use super::der::{DerReader, MAX_BER_DEPTH, tag};
use super::key::PublicKey;
use super::pem::pem_blocks;
use super::signature::MAX_SIGNATURE_CHECKS;
use super::strict::CertificateError;
use crate::text::hex;

/// Largest response of a signer, in bytes.
pub const MAX_RESPONSE_BYTES: usize = 512 * 1024;

/// Largest number of certificates in a signer's response or a certificate file.
pub const MAX_RESPONSE_CERTIFICATES: usize = 128;

/// Largest number of certificates in a trust bundle. A `ca.crt` contains one, and a few while a CA is being replaced.
pub const MAX_BUNDLE_CERTIFICATES: usize = 64;

/// Largest total size of a trust bundle's subjects, in bytes. A server lists them when it requests a client certificate, in a
/// message that Go limits to 64 KiB (`maxHandshake` in `crypto/tls/common.go`).
pub const MAX_BUNDLE_SUBJECT_BYTES: usize = 32 * 1024;

/// Largest chain that is installed, in bytes of DER: a quarter of Go's limit in a handshake. As PEM in a kubeconfig it is far
/// below the largest file that nodepki reads.
pub const MAX_CHAIN_BYTES: usize = 64 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const REMOVE_BYTE_ORDER_MARK: &str =
    r"remove the byte order mark: sed -i '1s/^\xEF\xBB\xBF//' FILE";
/// `openssl x509` would write one certificate only, and OpenSSL does not find those that begin within a line.
const REWRITE_CERTIFICATES: &str = r"rewrite the file: sed 's/^[[:space:]]*//; /-----/!{/^[A-Za-z-]*: /d}; s/\(.\)-----BEGIN/\1\n-----BEGIN/g' FILE | openssl crl2pkcs7 -nocrl -certfile /dev/stdin | openssl pkcs7 -print_certs -out NEW";

/// A leaf and certificates that may lead to its authority, without the root. Only [`super::along_path`] reduces them to
/// the verified path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    leaf: Certificate,
    intermediates: Vec<Certificate>,
    /// The problem of the first certificate in a response that could not be read.
    damaged: Option<String>,
}

/// The reason why bytes are not a usable chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum ChainError {
    #[error("it does not contain a certificate (neither PEM, DER nor PKCS#7)")]
    NoCertificate,
    #[error("it contains {0}")]
    OtherContent(&'static str),
    #[error("its size of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge { bytes: usize, limit: usize },
    #[error("it contains {count} certificates, more than the limit of {limit}")]
    TooMany { count: usize, limit: usize },
    #[error(
        "Kubernetes components read only {read} of its {count} certificates: each must be labelled CERTIFICATE, start at the beginning of a line and have no headers ({fix})"
    )]
    NotReadByGo {
        read: usize,
        count: usize,
        fix: &'static str,
    },
    #[error("a certificate in it is damaged: {0}")]
    Damaged(#[from] CertificateError),
    #[error("the PEM text is damaged: {0}")]
    Pem(String),
    #[error(
        "the certificate is for another key: it certifies sha256:{found} ({subject}) instead of sha256:{wanted}"
    )]
    OtherKey {
        wanted: String,
        found: String,
        subject: String,
    },
    #[error(
        "the chain is reversed or out of order: its first certificate is {first}, the leaf must come first"
    )]
    LeafNotFirst { first: String },
}

impl Chain {
    /// Reads a certificate file: PEM with the leaf first. Go must be able to parse each certificate, since a client parses
    /// all that a server presents.
    pub fn from_pem(text: &[u8]) -> Result<Self, ChainError> {
        let mut certificates = pem_certificates(text)?.into_iter();
        let leaf = certificates.next().ok_or_else(|| no_certificate(text))?;
        Ok(Chain {
            leaf,
            intermediates: certificates.collect(),
            damaged: None,
        })
    }

    /// Reads the chain for `key` from a signer's response: PEM, DER, or PKCS#7 in either, with or without a byte order mark,
    /// roots, or unrelated certificates. PEM must have the leaf first; a PKCS#7 certificate set has no order. All other
    /// certificates that Go can parse become intermediates, except roots. [`super::along_path`] selects those that lead to
    /// the authority.
    pub fn from_response(answer: &[u8], key: &PublicKey) -> Result<Self, ChainError> {
        let (certificates, ordered) = certificates_in(answer)?;
        let mut damaged = None;
        let mut first_is_damaged = false;
        let mut rest = Vec::new();
        for (at, certificate) in certificates.into_iter().enumerate() {
            match certificate {
                Ok(certificate) if rest.contains(&certificate) => {}
                Ok(certificate) => rest.push(certificate),
                Err(error) => {
                    first_is_damaged |= at == 0;
                    damaged = damaged.or(Some(error));
                }
            }
        }
        let position = position_of_leaf(&rest, key);
        let is_essential = position.is_none() || (ordered && first_is_damaged);
        let damaged = match damaged {
            Some(error) if is_essential => return Err(error.into()),
            other => other,
        };
        let first = rest.first().ok_or(ChainError::NoCertificate)?;
        let Some(position) = position else {
            return Err(ChainError::OtherKey {
                wanted: hex(&key.sha256()),
                found: hex(&first.public_key().sha256()),
                subject: first.subject().to_string(),
            });
        };
        if ordered && first.public_key() != key {
            return Err(ChainError::LeafNotFirst {
                first: first.subject().to_string(),
            });
        }
        let leaf = rest.remove(if ordered { 0 } else { position });
        // A path ends before its root, which is trusted by the name and key in `ca.crt`.
        rest.retain(|other| !(other.is_self_issued() && other.is_self_signed()));
        Ok(Chain {
            leaf,
            intermediates: rest,
            damaged: damaged.map(|error| error.to_string()),
        })
    }

    /// Returns the same leaf with other intermediates.
    pub(super) fn with_intermediates(self, intermediates: Vec<Certificate>) -> Self {
        Chain {
            leaf: self.leaf,
            intermediates,
            damaged: None,
        }
    }

    /// Verifies that the chain is small enough to be installed.
    ///
    /// # Errors
    /// [`ChainError::TooLarge`].
    pub fn check_size(&self) -> Result<(), ChainError> {
        let bytes = self.certificates().map(|one| one.der().len()).sum();
        if bytes > MAX_CHAIN_BYTES {
            Err(ChainError::TooLarge {
                bytes,
                limit: MAX_CHAIN_BYTES,
            })
        } else {
            Ok(())
        }
    }

    /// Returns the size of the certificate message of TLS 1.3 (RFC 8446, 4.4.2) with all certificates, in bytes.
    pub(super) fn handshake_size(&self) -> usize {
        // Lengths: one byte for the context and three for the list; three and two bytes for each certificate.
        self.certificates()
            .map(|one| one.der().len() + 5)
            .sum::<usize>()
            + 4
    }

    fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        std::iter::once(&self.leaf).chain(&self.intermediates)
    }

    /// Returns the leaf.
    pub fn leaf(&self) -> &Certificate {
        &self.leaf
    }

    /// Returns the intermediates; the one nearest to the leaf is first.
    pub fn intermediates(&self) -> &[Certificate] {
        &self.intermediates
    }

    /// Returns the problem of the first certificate in a response that could not be read, and that may be the missing
    /// issuer.
    pub(super) fn damaged(&self) -> Option<&str> {
        self.damaged.as_deref()
    }

    /// Encodes PEM, leaf first: the content of a `.crt` file.
    pub fn to_pem(&self) -> String {
        self.certificates().map(Certificate::to_pem).collect()
    }
}

/// The CA certificates of one authority: the content of its `ca.crt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustBundle {
    certificates: Vec<Certificate>,
}

/// The reason why a `ca.crt` is not a usable trust bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum TrustError {
    #[error("it does not contain a certificate")]
    Empty,
    #[error("it contains {count} certificates, more than the limit of {limit} for a trust bundle")]
    TooMany { count: usize, limit: usize },
    #[error(
        "the subjects of its certificates have {bytes} bytes, more than the {limit} that fit into a TLS handshake"
    )]
    LargeSubjects { bytes: usize, limit: usize },
    #[error(transparent)]
    Unreadable(#[from] ChainError),
    #[error(
        "its first certificate ({0}) is not a CA certificate, and kubeadm uses the first one as the CA"
    )]
    NotACa(String),
    #[error(
        "it contains a certificate that is neither pinned nor issued by a pinned one; found {found}"
    )]
    NotPinned { found: String },
}

impl TrustBundle {
    /// Reads a `ca.crt`: PEM with one or more certificates. Text between the blocks is ignored.
    pub fn from_pem(text: &[u8]) -> Result<Self, TrustError> {
        let certificates = pem_certificates(text)?;
        if certificates.is_empty()
            && let Some(found) = content_instead_of_pem(text)
        {
            return Err(ChainError::OtherContent(found).into());
        }
        Self::from_certificates(certificates)
    }

    /// Reads a signer's response in any form that a chain may have.
    pub fn from_response(answer: &[u8]) -> Result<Self, TrustError> {
        Self::from_certificates(certificates_of(answer)?)
    }

    /// Creates a bundle of these certificates, in this order.
    pub(crate) fn from_certificates(certificates: Vec<Certificate>) -> Result<Self, TrustError> {
        let first = certificates.first().ok_or(TrustError::Empty)?;
        if certificates.len() > MAX_BUNDLE_CERTIFICATES {
            return Err(TrustError::TooMany {
                count: certificates.len(),
                limit: MAX_BUNDLE_CERTIFICATES,
            });
        }
        let subjects = certificates.iter().map(|one| one.subject().der().len());
        let bytes = subjects.sum();
        if bytes > MAX_BUNDLE_SUBJECT_BYTES {
            return Err(TrustError::LargeSubjects {
                bytes,
                limit: MAX_BUNDLE_SUBJECT_BYTES,
            });
        }
        if !first.is_ca() {
            return Err(TrustError::NotACa(first.subject().to_string()));
        }
        Ok(TrustBundle { certificates })
    }

    /// Verifies that each certificate is pinned by the SHA-256 of its public key (kubeadm's pin format), or is a CA
    /// certificate below a pinned one. Without pins, every bundle is accepted.
    pub(crate) fn require_pins(&self, pins: &[[u8; 32]]) -> Result<(), TrustError> {
        if pins.is_empty() || self.unpinned(pins).is_empty() {
            return Ok(());
        }
        let found: Vec<_> = self
            .certificates
            .iter()
            .map(|certificate| {
                format!(
                    "public key sha256:{} ({})",
                    hex(&certificate.public_key().sha256()),
                    certificate.subject()
                )
            })
            .collect();
        Err(TrustError::NotPinned {
            found: found.join(", "),
        })
    }

    /// Returns the certificates that are neither pinned nor CA certificates below a pinned one. A leaf below a pinned one is
    /// the identity of a component; as an anchor it would let that component impersonate servers.
    ///
    /// At most `MAX_SIGNATURE_CHECKS` signatures are verified; any certificates left then are returned as well.
    pub fn unpinned(&self, pins: &[[u8; 32]]) -> Vec<&Certificate> {
        let (mut known, mut strangers): (Vec<_>, Vec<_>) = self
            .certificates
            .iter()
            .partition(|certificate| pins.contains(&certificate.public_key().sha256()));
        let mut budget = MAX_SIGNATURE_CHECKS;
        let mut next = 0;
        // Each known certificate is compared once with each stranger.
        while let Some(issuer) = known.get(next).copied() {
            next += 1;
            let (issued, left): (Vec<_>, Vec<_>) = strangers.into_iter().partition(|stranger| {
                stranger.is_ca() && stranger.is_signed_by_within(issuer, &mut budget)
            });
            known.extend(issued);
            strangers = left;
        }
        strangers
    }

    /// Returns true if one of the `offered` certificates has the key of a certificate of this bundle, or was issued by one.
    /// At most `MAX_SIGNATURE_CHECKS` signatures are verified.
    pub fn accepts(&self, offered: &TrustBundle) -> bool {
        let pairs = || {
            let offered = offered.certificates.iter();
            offered.flat_map(|one| self.certificates.iter().map(move |own| (one, own)))
        };
        let mut budget = MAX_SIGNATURE_CHECKS;
        pairs().any(|(one, own)| one.public_key() == own.public_key())
            || pairs().any(|(one, own)| one.is_signed_by_within(own, &mut budget))
    }

    /// Returns a bundle of only the first certificate, the one that kubeadm reads from the file.
    pub(crate) fn first_alone(&self) -> TrustBundle {
        TrustBundle {
            certificates: vec![self.first().clone()],
        }
    }

    /// Returns all certificates, at least one.
    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// Returns the first certificate, which kubeadm uses as the CA.
    pub fn first(&self) -> &Certificate {
        // The constructor refuses an empty bundle.
        #[allow(clippy::indexing_slicing, reason = "never empty")]
        &self.certificates[0]
    }

    /// Encodes PEM of all certificates, in order.
    pub fn to_pem(&self) -> String {
        self.certificates.iter().map(Certificate::to_pem).collect()
    }

    /// Encodes PEM for the CA data of a kubeconfig: the first certificate, the only one that kubeadm writes, and all other
    /// roots. While a CA is being changed there are two roots, and a client with one of them could not verify all servers.
    pub(crate) fn roots_to_pem(&self) -> String {
        let others = self.certificates.iter().skip(1);
        let roots =
            others.filter(|certificate| certificate.is_ca() && certificate.is_self_signed());
        std::iter::once(self.first())
            .chain(roots)
            .map(Certificate::to_pem)
            .collect()
    }
}

/// Displays for each certificate the subject and the beginnings of two SHA-256 digests. The first digest distinguishes
/// certificates of one key; the second is the pin.
impl fmt::Display for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self
            .certificates
            .iter()
            .map(|certificate| {
                let print = hex(&certificate.fingerprint());
                let pin = hex(&certificate.public_key().sha256());
                format!(
                    "{} (certificate sha256:{}, key sha256:{})",
                    certificate.subject(),
                    print.get(..16).unwrap_or(&print),
                    pin.get(..16).unwrap_or(&pin)
                )
            })
            .collect();
        f.write_str(&names.join(", "))
    }
}

/// Returns the position of the certificate of `key`; of several, that of the one that was issued last.
fn position_of_leaf(certificates: &[Certificate], key: &PublicKey) -> Option<usize> {
    let for_key = certificates
        .iter()
        .enumerate()
        .filter(|(_, certificate)| certificate.public_key() == key);
    let last = for_key.rev().max_by_key(|(_, one)| one.not_before());
    last.map(|(position, _)| position)
}

fn is_certificate(label: &str) -> bool {
    matches!(
        label,
        "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE"
    )
}

fn check_count(count: usize) -> Result<(), ChainError> {
    if count > MAX_RESPONSE_CERTIFICATES {
        Err(ChainError::TooMany {
            count,
            limit: MAX_RESPONSE_CERTIFICATES,
        })
    } else {
        Ok(())
    }
}

/// Reads the certificates of a file. Go must find all of them as well: `ParseCertsPEM` in `k8s.io/client-go/util/cert`
/// ignores blocks with headers or other labels.
fn pem_certificates(text: &[u8]) -> Result<Vec<Certificate>, ChainError> {
    require_narrow(text)?;
    let found = pem_blocks(text).map_err(ChainError::Pem)?;
    let all: Vec<_> = found
        .iter()
        .filter(|block| is_certificate(block.tag()))
        .map(pem::Pem::contents)
        .collect();
    check_count(all.len())?;
    let go = blocks::decode_all(text);
    let go: Vec<_> = go
        .iter()
        .filter(|block| block.label == "CERTIFICATE" && !block.has_headers)
        .map(|block| block.content.as_slice())
        .collect();
    if all != go {
        return Err(ChainError::NotReadByGo {
            read: go.len(),
            count: all.len(),
            fix: if text.starts_with(BYTE_ORDER_MARK) {
                REMOVE_BYTE_ORDER_MARK
            } else {
                REWRITE_CERTIFICATES
            },
        });
    }
    all.into_iter()
        .map(|der| Ok(Certificate::from_der(der)?))
        .collect()
}

/// Returns all certificates of a signer's response, in any form that [`Chain::from_response`] accepts and in the same order.
///
/// # Errors
/// A damaged certificate, or none.
pub fn certificates_of(answer: &[u8]) -> Result<Vec<Certificate>, ChainError> {
    let (certificates, _) = certificates_in(answer)?;
    Ok(certificates.into_iter().collect::<Result<_, _>>()?)
}

type ParsedCertificate = Result<Certificate, CertificateError>;

/// Returns all certificates of a response, and true if their order is significant.
fn certificates_in(answer: &[u8]) -> Result<(Vec<ParsedCertificate>, bool), ChainError> {
    if answer.len() > MAX_RESPONSE_BYTES {
        return Err(ChainError::TooLarge {
            bytes: answer.len(),
            limit: MAX_RESPONSE_BYTES,
        });
    }
    require_narrow(answer)?;
    let answer = answer.strip_prefix(BYTE_ORDER_MARK).unwrap_or(answer);
    // A certificate and a ContentInfo both begin with SEQUENCE; text does not.
    if answer.first() == Some(&0x30) {
        return match pkcs7_certificates(answer) {
            Some(ders) => Ok((parse_all(&ders)?, false)),
            None => Ok((parse_all(&[answer])?, true)),
        };
    }
    let blocks = pem_blocks(answer).map_err(ChainError::Pem)?;
    if let Some(block) = blocks
        .iter()
        .find(|block| matches!(block.tag(), "PKCS7" | "CMS"))
    {
        let ders = pkcs7_certificates(block.contents()).ok_or(ChainError::NoCertificate)?;
        return Ok((parse_all(&ders)?, false));
    }
    let ders: Vec<_> = blocks
        .iter()
        .filter(|block| is_certificate(block.tag()))
        .map(pem::Pem::contents)
        .collect();
    if ders.is_empty() {
        return Err(no_certificate(answer));
    }
    Ok((parse_all(&ders)?, true))
}

/// Refuses UTF-16, in which no PEM is found.
fn require_narrow(text: &[u8]) -> Result<(), ChainError> {
    match wide_encoding(text) {
        Some(_) => Err(no_certificate(text)),
        None => Ok(()),
    }
}

/// Returns the error for a text without certificates.
fn no_certificate(text: &[u8]) -> ChainError {
    content_instead_of_pem(text).map_or(ChainError::NoCertificate, ChainError::OtherContent)
}

fn parse_all(ders: &[&[u8]]) -> Result<Vec<ParsedCertificate>, ChainError> {
    check_count(ders.len())?;
    Ok(ders.iter().map(|der| Certificate::from_der(der)).collect())
}

/// Returns the certificates of a SignedData (RFC 5652, 5.1), duplicates included; `None` for any other content. Its own
/// encoding is BER, that of the certificates DER.
pub(super) fn pkcs7_certificates(der: &[u8]) -> Option<Vec<&[u8]>> {
    /// id-signedData, 1.2.840.113549.1.7.2.
    const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2];
    let mut info = DerReader::new(der).read_ber(tag::SEQUENCE)?;
    if info.oid()? != SIGNED_DATA {
        return None;
    }
    let mut content = info.read_ber(tag::constructed(0))?;
    let mut signed = content.read_ber(tag::SEQUENCE)?;
    signed.integer()?;
    signed.read_ber(tag::SET)?;
    signed.read_ber(tag::SEQUENCE)?;
    let mut set = signed.read_ber(tag::constructed(0))?;
    let mut found = Vec::new();
    while !set.is_empty() {
        let choice = set.any_ber(MAX_BER_DEPTH)?;
        // The other choices are attribute certificates and obsolete formats.
        if choice.tag == tag::SEQUENCE {
            found.push(choice.whole);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests;
