//! Chains (leaf first, no root) and trust bundles, read from whatever form they come in.

use std::fmt;

use super::blocks;
use super::certificate::{Certificate, CertificateError, pem_blocks};
use super::der::{Reader, tag};
use super::key::{PublicKey, hex};
use super::path::MAX_SIGNATURE_CHECKS;

/// Largest signer's answer, in bytes.
pub const MAX_ANSWER_BYTES: usize = 512 * 1024;

/// Largest number of certificates in a signer's answer or a certificate file.
pub const MAX_ANSWER_CERTIFICATES: usize = 128;

/// Largest number of certificates in a trust bundle. A `ca.crt` has one, and a few while a CA is being replaced.
pub const MAX_BUNDLE_CERTIFICATES: usize = 64;

/// Largest sum of the subjects of a trust bundle, in bytes: a server lists them in each request for a client certificate, in a
/// message of which Go reads 64 KiB (`maxHandshake` in `crypto/tls/common.go`).
pub const MAX_BUNDLE_SUBJECT_BYTES: usize = 32 * 1024;

/// Largest chain that is installed, in bytes of DER: a quarter of what Go accepts in a handshake, and as PEM in a kubeconfig
/// far below what nodepki reads back.
pub const MAX_CHAIN_BYTES: usize = 64 * 1024;

/// A leaf and certificates that may lead from it to its authority, without the root. Only
/// [`super::along_path`] leaves exactly the verified path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    leaf: Certificate,
    intermediates: Vec<Certificate>,
    /// What is wrong with the first certificate of an answer that could not be read.
    damaged: Option<String>,
}

/// Why bytes are not a usable chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum ChainError {
    #[error("there is no certificate in it (neither PEM, DER nor PKCS#7)")]
    NoCertificate,
    #[error("it takes {bytes} bytes, more than the {limit} that are accepted")]
    TooLarge { bytes: usize, limit: usize },
    #[error("it holds {count} certificates, more than the {limit} that are accepted")]
    TooMany { count: usize, limit: usize },
    #[error(
        "Kubernetes components read only {read} of its {count} certificates: each must be called CERTIFICATE, start at the beginning of a line and have no headers (write the file anew: openssl x509 -in FILE)"
    )]
    NotReadByGo { read: usize, count: usize },
    #[error("a certificate in it is damaged: {0}")]
    Damaged(#[from] CertificateError),
    #[error("the PEM text is damaged: {0}")]
    Pem(String),
    #[error(
        "the certificate is for another key: it certifies sha256:{found} ({subject}), wanted sha256:{wanted}"
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
    /// Reads a certificate file: PEM with the leaf first. Every certificate must be one that Go can parse, for a client
    /// parses all that a server shows.
    pub fn from_pem(text: &[u8]) -> Result<Self, ChainError> {
        let mut certificates = pem_certificates(text)?.into_iter();
        let leaf = certificates.next().ok_or(ChainError::NoCertificate)?;
        Ok(Chain {
            leaf,
            intermediates: certificates.collect(),
            damaged: None,
        })
    }

    /// Makes the chain for `key` from a signer's answer: PEM, DER, or PKCS#7 in either; with or without a byte
    /// order mark, roots, or certificates that have nothing to do with it. PEM must have the leaf first; a
    /// PKCS#7 certificate set has no order. All other certificates that Go can parse become intermediates, except roots:
    /// which of them lead to the authority is for [`super::along_path`] to find out.
    pub fn from_answer(answer: &[u8], key: &PublicKey) -> Result<Self, ChainError> {
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

    /// The same leaf with other intermediates.
    pub(super) fn with_intermediates(self, intermediates: Vec<Certificate>) -> Self {
        Chain {
            leaf: self.leaf,
            intermediates,
            damaged: None,
        }
    }

    /// Succeeds when the chain is small enough to be installed.
    ///
    /// # Errors
    /// [`ChainError::TooLarge`].
    pub fn check_size(&self) -> Result<(), ChainError> {
        let bytes = self.certificates().map(|one| one.der().len()).sum();
        match bytes > MAX_CHAIN_BYTES {
            true => Err(ChainError::TooLarge {
                bytes,
                limit: MAX_CHAIN_BYTES,
            }),
            false => Ok(()),
        }
    }

    /// Size of the certificate message of TLS 1.3 (RFC 8446, 4.4.2) with all certificates, in bytes.
    pub(super) fn handshake_size(&self) -> usize {
        // A length of one byte for the context and of three for the list; of three and of two for each certificate.
        self.certificates()
            .map(|one| one.der().len() + 5)
            .sum::<usize>()
            + 4
    }

    fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        std::iter::once(&self.leaf).chain(&self.intermediates)
    }

    /// The leaf.
    pub fn leaf(&self) -> &Certificate {
        &self.leaf
    }

    /// The intermediates, nearest to the leaf first.
    pub fn intermediates(&self) -> &[Certificate] {
        &self.intermediates
    }

    /// What is wrong with the first certificate of an answer that could not be read, and that may be the missing issuer.
    pub(super) fn damaged(&self) -> Option<&str> {
        self.damaged.as_deref()
    }

    /// PEM, leaf first: the content of a `.crt` file.
    pub fn to_pem(&self) -> String {
        self.certificates().map(Certificate::to_pem).collect()
    }
}

/// The certificates that an authority's slot trusts: the content of its `ca.crt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustBundle {
    certificates: Vec<Certificate>,
}

/// Why a `ca.crt` cannot serve as a trust bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum TrustError {
    #[error("there is no certificate in it")]
    Empty,
    #[error("it holds {count} certificates, more than the {limit} that a trust bundle may have")]
    TooMany { count: usize, limit: usize },
    #[error(
        "the subjects of its certificates take {bytes} bytes, more than the {limit} that fit into a TLS handshake"
    )]
    LargeSubjects { bytes: usize, limit: usize },
    #[error(transparent)]
    Unreadable(#[from] ChainError),
    #[error(
        "its first certificate ({0}) is not a CA certificate, and kubeadm takes the first one as the CA"
    )]
    NotACa(String),
    #[error(
        "it holds a certificate that is neither pinned nor issued by a pinned one; found {found}"
    )]
    NotPinned { found: String },
}

impl TrustBundle {
    /// Reads a `ca.crt`: PEM, one certificate or several; text around the blocks is ignored.
    pub fn from_pem(text: &[u8]) -> Result<Self, TrustError> {
        Self::from_certificates(pem_certificates(text)?)
    }

    /// Reads a signer's answer in any form that a chain may have.
    pub fn from_answer(answer: &[u8]) -> Result<Self, TrustError> {
        Self::from_certificates(certificates_of(answer)?)
    }

    /// A bundle of these, in this order.
    pub fn from_certificates(certificates: Vec<Certificate>) -> Result<Self, TrustError> {
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

    /// Succeeds when every certificate is pinned by the SHA-256 of its public key (kubeadm's pin format), or is a CA
    /// certificate below one that is. No pins, no demand.
    pub fn require_pins(&self, pins: &[[u8; 32]]) -> Result<(), TrustError> {
        if pins.is_empty() || self.strangers(pins).is_empty() {
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

    /// The certificates that no pin speaks for: neither pinned nor CA certificates below a pinned one. (A leaf below
    /// it is the identity of one component; as an anchor it would make that component the server.)
    ///
    /// At most `MAX_SIGNATURE_CHECKS` signatures are checked; certificates that are left then count as strangers.
    pub fn strangers(&self, pins: &[[u8; 32]]) -> Vec<&Certificate> {
        let (mut known, mut strangers): (Vec<_>, Vec<_>) = self
            .certificates
            .iter()
            .partition(|certificate| pins.contains(&certificate.public_key().sha256()));
        let mut budget = MAX_SIGNATURE_CHECKS;
        let mut next = 0;
        // Each known certificate is compared once with each stranger.
        while let Some(issuer) = known.get(next).copied() {
            next += 1;
            let (issued, left): (Vec<_>, Vec<_>) = strangers
                .into_iter()
                .partition(|stranger| stranger.is_ca() && issued(stranger, issuer, &mut budget));
            known.extend(issued);
            strangers = left;
        }
        strangers
    }

    /// Whether one of the `offered` certificates has the key of one of these, or was issued by one of these. At most
    /// `MAX_SIGNATURE_CHECKS` signatures are checked.
    pub fn vouches_for(&self, offered: &TrustBundle) -> bool {
        let pairs = || {
            let offered = offered.certificates.iter();
            offered.flat_map(|one| self.certificates.iter().map(move |own| (one, own)))
        };
        let mut budget = MAX_SIGNATURE_CHECKS;
        pairs().any(|(one, own)| one.public_key() == own.public_key())
            || pairs().any(|(one, own)| issued(one, own, &mut budget))
    }

    /// The first certificate by itself, as kubeadm reads the file.
    pub fn first_alone(&self) -> TrustBundle {
        TrustBundle {
            certificates: vec![self.first().clone()],
        }
    }

    /// All certificates; there is at least one.
    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// The certificate that kubeadm takes as the CA: the first.
    pub fn first(&self) -> &Certificate {
        // The constructor refuses an empty bundle.
        #[allow(clippy::indexing_slicing, reason = "never empty")]
        &self.certificates[0]
    }

    /// PEM of all certificates, in order.
    pub fn to_pem(&self) -> String {
        self.certificates.iter().map(Certificate::to_pem).collect()
    }

    /// PEM for the CA data of a kubeconfig: the first certificate, which is all that kubeadm writes, and every further
    /// root. While a CA is being changed there are two, and a client that knew one of them would lose half its servers.
    pub fn roots_to_pem(&self) -> String {
        let others = self.certificates.iter().skip(1);
        let roots =
            others.filter(|certificate| certificate.is_ca() && certificate.is_self_signed());
        std::iter::once(self.first())
            .chain(roots)
            .map(Certificate::to_pem)
            .collect()
    }
}

/// Certificate by certificate: the subject, and the beginnings of two SHA-256 sums. Two certificates of one key differ in
/// the first sum, and a pin is the second one.
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

/// Returns true if `issuer` signed `certificate`, as long as the budget for signatures lasts.
pub(super) fn issued(certificate: &Certificate, issuer: &Certificate, budget: &mut usize) -> bool {
    if *budget == 0 || !certificate.names_issuer(issuer) {
        return false;
    }
    *budget -= 1;
    super::verify::signed_by(certificate, issuer)
}

/// Finds the certificate of `key`: of several the one that was issued last.
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
    match count > MAX_ANSWER_CERTIFICATES {
        true => Err(ChainError::TooMany {
            count,
            limit: MAX_ANSWER_CERTIFICATES,
        }),
        false => Ok(()),
    }
}

/// Reads the certificates of a file. All of them must be certificates to Go too (`ParseCertsPEM` in
/// `k8s.io/client-go/util/cert`, which passes over blocks with headers or other labels).
fn pem_certificates(text: &[u8]) -> Result<Vec<Certificate>, ChainError> {
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
        });
    }
    all.into_iter()
        .map(|der| Ok(Certificate::from_der(der)?))
        .collect()
}

/// All certificates of a signer's answer, in any form that [`Chain::from_answer`] takes, in the order that they have
/// there.
///
/// # Errors
/// When one of them is damaged, or there is none.
pub fn certificates_of(answer: &[u8]) -> Result<Vec<Certificate>, ChainError> {
    let (certificates, _) = certificates_in(answer)?;
    Ok(certificates.into_iter().collect::<Result<_, _>>()?)
}

type Parsed = Result<Certificate, CertificateError>;

/// All certificates of an answer, and whether their order means something.
fn certificates_in(answer: &[u8]) -> Result<(Vec<Parsed>, bool), ChainError> {
    if answer.len() > MAX_ANSWER_BYTES {
        return Err(ChainError::TooLarge {
            bytes: answer.len(),
            limit: MAX_ANSWER_BYTES,
        });
    }
    let answer = answer.strip_prefix(b"\xef\xbb\xbf").unwrap_or(answer);
    // A DER certificate and a DER ContentInfo both open with SEQUENCE; no text does.
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
        return Err(ChainError::NoCertificate);
    }
    Ok((parse_all(&ders)?, true))
}

fn parse_all(ders: &[&[u8]]) -> Result<Vec<Parsed>, ChainError> {
    check_count(ders.len())?;
    Ok(ders.iter().map(|der| Certificate::from_der(der)).collect())
}

/// The certificates of a SignedData (RFC 5652, 5.1), in any order and with duplicates; `None` for anything else.
fn pkcs7_certificates(der: &[u8]) -> Option<Vec<&[u8]>> {
    /// id-signedData, 1.2.840.113549.1.7.2.
    const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2];
    let mut info = Reader::new(der).read(tag::SEQUENCE)?;
    if info.oid()? != SIGNED_DATA {
        return None;
    }
    let mut signed = info.read(tag::constructed(0))?.read(tag::SEQUENCE)?;
    signed.integer()?;
    signed.read(tag::SET)?;
    signed.read(tag::SEQUENCE)?;
    let mut set = signed.read(tag::constructed(0))?;
    let mut found = Vec::new();
    while !set.is_empty() {
        let choice = set.any()?;
        // The other choices are attribute certificates and formats of the last century.
        if choice.tag == tag::SEQUENCE {
            found.push(choice.whole);
        }
    }
    Some(found)
}
