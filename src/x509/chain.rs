//! Chains (leaf first, no root) and trust bundles, read from whatever form they come in.

use std::fmt;

use cms::cert::CertificateChoices;
use cms::content_info::ContentInfo;
use cms::signed_data::SignedData;

use super::certificate::{Certificate, CertificateError, pem_blocks};
use super::key::{PublicKey, hex};

/// A leaf and the intermediates that lead from it towards its authority, in order, without the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    leaf: Certificate,
    intermediates: Vec<Certificate>,
}

/// Why bytes are not a usable chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum ChainError {
    #[error("there is no certificate in it (neither PEM, DER nor PKCS#7)")]
    NoCertificate,
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
    /// Reads a certificate file: PEM with the leaf first.
    pub fn from_pem(text: &[u8]) -> Result<Self, ChainError> {
        let mut certificates = pem_certificates(text)?.into_iter();
        let leaf = certificates.next().ok_or(ChainError::NoCertificate)?;
        Ok(Chain {
            leaf,
            intermediates: certificates.collect(),
        })
    }

    /// Makes the chain for `key` from a signer's answer: PEM, DER, or PKCS#7 in either; with or without a byte
    /// order mark, roots, or certificates that have nothing to do with it. PEM must have the leaf first; a
    /// PKCS#7 certificate set has no order.
    pub fn from_answer(answer: &[u8], key: &PublicKey) -> Result<Self, ChainError> {
        let (certificates, ordered) = certificates_in(answer)?;
        let mut rest = certificates;
        let first = rest.first().ok_or(ChainError::NoCertificate)?;
        let Some(position) = rest
            .iter()
            .position(|certificate| certificate.public_key() == key)
        else {
            return Err(ChainError::OtherKey {
                wanted: hex(&key.sha256()),
                found: hex(&first.public_key().sha256()),
                subject: first.subject().to_string(),
            });
        };
        if ordered && position != 0 {
            return Err(ChainError::LeafNotFirst {
                first: first.subject().to_string(),
            });
        }
        let leaf = rest.remove(position);
        let mut intermediates: Vec<Certificate> = Vec::new();
        loop {
            let last = intermediates.last().unwrap_or(&leaf);
            let next = rest
                .iter()
                .position(|candidate| last.names_issuer(candidate) && !candidate.is_self_issued());
            match next {
                Some(position) => intermediates.push(rest.remove(position)),
                None => break,
            }
        }
        Ok(Chain {
            leaf,
            intermediates,
        })
    }

    /// The leaf.
    pub fn leaf(&self) -> &Certificate {
        &self.leaf
    }

    /// The intermediates, nearest to the leaf first.
    pub fn intermediates(&self) -> &[Certificate] {
        &self.intermediates
    }

    /// PEM, leaf first: the content of a `.crt` file.
    pub fn to_pem(&self) -> String {
        std::iter::once(&self.leaf)
            .chain(&self.intermediates)
            .map(Certificate::to_pem)
            .collect()
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
        Self::from_certificates(certificates_in(answer)?.0)
    }

    /// A bundle of these, in this order.
    pub fn from_certificates(certificates: Vec<Certificate>) -> Result<Self, TrustError> {
        let first = certificates.first().ok_or(TrustError::Empty)?;
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
    /// it is somebody's identity; as an anchor it would make that somebody the server.)
    pub fn strangers(&self, pins: &[[u8; 32]]) -> Vec<&Certificate> {
        let (mut known, mut strangers): (Vec<_>, Vec<_>) = self
            .certificates
            .iter()
            .partition(|certificate| pins.contains(&certificate.public_key().sha256()));
        while let Some(position) = strangers.iter().position(|stranger| {
            let issued = |issuer: &&Certificate| super::verify::signed_by(stranger, issuer);
            stranger.is_ca() && known.iter().any(issued)
        }) {
            known.push(strangers.remove(position));
        }
        strangers
    }

    /// Whether one of the `offered` certificates has the key of one of these, or was issued by one of these.
    pub fn vouches_for(&self, offered: &TrustBundle) -> bool {
        offered.certificates.iter().any(|certificate| {
            self.certificates.iter().any(|one| {
                one.public_key() == certificate.public_key()
                    || super::verify::signed_by(certificate, one)
            })
        })
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

fn pem_certificates(text: &[u8]) -> Result<Vec<Certificate>, ChainError> {
    let blocks = pem_blocks(text).map_err(ChainError::Pem)?;
    blocks
        .iter()
        .filter(|block| {
            matches!(
                block.tag(),
                "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE"
            )
        })
        .map(|block| Ok(Certificate::from_der(block.contents())?))
        .collect()
}

/// All certificates of a signer's answer, in any form that [`Chain::from_answer`] takes, in the order that they have
/// there.
pub fn certificates_of(answer: &[u8]) -> Result<Vec<Certificate>, ChainError> {
    certificates_in(answer).map(|(certificates, _)| certificates)
}

/// All certificates of an answer, and whether their order means something.
fn certificates_in(answer: &[u8]) -> Result<(Vec<Certificate>, bool), ChainError> {
    let answer = answer.strip_prefix(b"\xef\xbb\xbf").unwrap_or(answer);
    // A DER certificate and a DER ContentInfo both open with SEQUENCE; no text does.
    if answer.first() == Some(&0x30) {
        return match pkcs7_certificates(answer) {
            Some(certificates) => Ok((certificates?, false)),
            None => Ok((vec![Certificate::from_der(answer)?], true)),
        };
    }
    let blocks = pem_blocks(answer).map_err(ChainError::Pem)?;
    if let Some(block) = blocks
        .iter()
        .find(|block| matches!(block.tag(), "PKCS7" | "CMS"))
    {
        let certificates =
            pkcs7_certificates(block.contents()).ok_or(ChainError::NoCertificate)??;
        return Ok((certificates, false));
    }
    let certificates = pem_certificates(answer)?;
    if certificates.is_empty() {
        return Err(ChainError::NoCertificate);
    }
    Ok((certificates, true))
}

/// The certificates of a degenerate SignedData (RFC 5652, 5.1); `None` when it is no such thing.
fn pkcs7_certificates(der: &[u8]) -> Option<Result<Vec<Certificate>, ChainError>> {
    use cms::cert::x509::der::{Decode, Encode};
    let info = ContentInfo::from_der(der).ok()?;
    let signed: SignedData = info.content.decode_as().ok()?;
    let choices = signed.certificates?.0;
    let ders = choices.iter().filter_map(|choice| match choice {
        CertificateChoices::Certificate(certificate) => certificate.to_der().ok(),
        CertificateChoices::Other(_) => None,
    });
    Some(ders.map(|der| Ok(Certificate::from_der(&der)?)).collect())
}
