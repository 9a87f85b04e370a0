//! The files of a node as they were found: the observed state.

use std::fmt;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;

use super::kubelet_store::ObservedKubeletStore;
use super::reason::CertReason;
use super::still_serves;
use crate::kube::kubeconfig::{
    ClientRefusal, CurrentContext, Kubeconfig, KubeconfigError, resolve_path,
};
use crate::x509::{
    Chain, KeyAlgorithm, KeyType, PrivateKey, PublicKey, TrustBundle, wide_encoding,
};

/// A file as it was found.
#[derive(Clone, Debug)]
pub enum Observed<T> {
    /// No such file.
    Absent,
    /// Empty or white space only: the result of a failed write, or of the kubelet's creation of a missing hostPath file.
    Empty,
    /// The file exists, but its content is invalid; contains the reason.
    Unreadable(String),
    /// The parsed content.
    Present(T),
}

impl<T> Observed<T> {
    /// Parses the bytes of a file; `None` is an absent file.
    pub fn read<E: fmt::Display>(
        bytes: Option<&[u8]>,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Self {
        match bytes {
            None => Observed::Absent,
            Some(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => Observed::Empty,
            Some(bytes) => match parse(bytes) {
                Ok(value) => Observed::Present(value),
                Err(error) => Observed::Unreadable(error.to_string()),
            },
        }
    }

    /// Returns the value, if there is one.
    pub(crate) fn present(&self) -> Option<&T> {
        match self {
            Observed::Present(value) => Some(value),
            _ => None,
        }
    }

    /// Applies a function to the value, if there is one.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Observed<U> {
        match self {
            Observed::Absent => Observed::Absent,
            Observed::Empty => Observed::Empty,
            Observed::Unreadable(why) => Observed::Unreadable(why),
            Observed::Present(value) => Observed::Present(change(value)),
        }
    }

    /// Returns the problem, unless a value is present.
    pub fn fault(&self) -> Option<ObservedFault> {
        match self {
            Observed::Absent => Some(ObservedFault::Absent),
            Observed::Empty => Some(ObservedFault::Empty),
            Observed::Unreadable(why) => Some(ObservedFault::Unreadable(why.clone())),
            Observed::Present(_) => None,
        }
    }

    /// Returns the problem in words, unless a value is present.
    pub fn trouble(&self) -> Option<String> {
        self.fault().map(|fault| fault.to_string())
    }
}

/// The reason why a file has no usable content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum ObservedFault {
    #[error("is absent")]
    Absent,
    #[error("is empty")]
    Empty,
    #[error("is unreadable: {0}")]
    Unreadable(String),
}

/// A certificate and its key as found, in a pair of files or in a kubeconfig.
#[derive(Clone)]
pub struct ObservedCert {
    /// The chain.
    pub chain: Observed<Chain>,
    /// The key.
    pub key: Observed<PrivateKey>,
    /// True if the key has the PEM form that kubeadm writes.
    pub key_form_is_ours: bool,
    /// Mode of the file with the key, if it is world-readable.
    pub exposed: Option<u32>,
    /// The revocation, if a revocation list contains the certificate.
    pub revoked: Option<CertReason>,
    /// For a kubeconfig, the rest of it.
    pub kubeconfig: Option<ObservedKubeconfig>,
    /// For the kubelet's client certificate, the kubelet's store.
    pub store: Option<ObservedKubeletStore>,
}

impl ObservedCert {
    /// Creates a certificate of which nothing else is known.
    pub fn new(chain: Observed<Chain>, key: Observed<PrivateKey>) -> ObservedCert {
        ObservedCert {
            chain,
            key,
            key_form_is_ours: true,
            exposed: None,
            revoked: None,
            kubeconfig: None,
            store: None,
        }
    }

    /// Returns the files with certificate and key, if a kubeconfig names them.
    pub fn named_pair(&self) -> Option<&[PathBuf; 2]> {
        self.kubeconfig.as_ref()?.pair.as_deref()
    }

    /// Returns true if the kubelet itself requested the certificate from the cluster.
    pub(crate) fn is_of_kubelet(&self) -> bool {
        let store = self.store.as_ref();
        store.is_some_and(|store| store.in_place && store.requested_by_kubelet)
    }

    /// Returns true if the certificate is usable and not revoked, so a failure to replace it does not make the node worse.
    pub fn still_serves(&self, trust: Option<&TrustBundle>, now: OffsetDateTime) -> bool {
        let (Some(chain), Some(key), Some(trust)) =
            (self.chain.present(), self.key.present(), trust)
        else {
            return false;
        };
        self.revoked.is_none() && still_serves(chain, key.public_key(), trust, now)
    }

    /// Returns true if a new certificate may keep the key: it is of this type, belongs to the certificate, and is neither
    /// readable by other users nor revoked.
    pub(super) fn has_good_key(&self, algorithm: KeyAlgorithm) -> bool {
        let (Some(chain), Some(key)) = (self.chain.present(), self.key.present()) else {
            return false;
        };
        chain.leaf().public_key() == key.public_key()
            && *key.key_type() == KeyType::Known(algorithm)
            && self.exposed.is_none()
            && self.revoked.is_none()
    }

    /// Returns true if the kubelet chose the key algorithm. client-go generates an ECDSA key on P-256 for each request
    /// (`certificate_manager.go`, `generateCSR`), so a key of another algorithm would be replaced by the next request.
    pub(super) fn has_key_of_kubelet(&self, key: &PublicKey) -> bool {
        self.is_of_kubelet() && *key.key_type() == KeyType::Known(KeyAlgorithm::EcdsaP256)
    }
}

/// A kubeconfig apart from its certificate and key.
#[derive(Clone)]
pub struct ObservedKubeconfig {
    /// The document; a repair keeps the rest of its content.
    pub document: Kubeconfig,
    /// `server` of the current context.
    pub server: Option<String>,
    /// Its CA data.
    pub authority: Option<Vec<u8>>,
    /// The file with its CA certificates, if it contains no CA data; absolute.
    pub authority_file: Option<PathBuf>,
    /// The file with the token, if the kubeconfig contains no token; absolute.
    pub token_file: Option<PathBuf>,
    /// The reasons why the components that use it refuse it.
    pub refusals: Vec<ClientRefusal>,
    /// True if the certificate is not embedded, as with the kubelet's own rotation.
    pub by_file: bool,
    /// `client-certificate` and `client-key`, absolute, if neither is embedded.
    pub pair: Option<Box<[PathBuf; 2]>>,
}

impl ObservedKubeconfig {
    /// Returns the files, other than certificate and key, without which client-go refuses the kubeconfig. Such a file is
    /// reported with [`ObservedKubeconfig::lacks`].
    pub fn required_files(&self) -> [Option<PathBuf>; 2] {
        let authority_file = self.authority_file.clone();
        [
            authority_file.filter(|_| self.authority.is_none()),
            self.token_file.clone(),
        ]
    }

    /// Adds the refusal of a file that cannot be read, or, for a token, has no content. `here` is its path in messages.
    pub fn lacks(&mut self, file: &Path, here: String) {
        self.refusals
            .push(if self.token_file.as_deref() == Some(file) {
                ClientRefusal::TokenFile(here)
            } else {
                ClientRefusal::AuthorityFile(here)
            });
    }

    /// Returns the refusals of fields that a new version of the file corrects, or of all others.
    pub fn refusals(&self, is_corrected: bool) -> impl Iterator<Item = ClientRefusal> + '_ {
        let refusals = self.refusals.iter().cloned();
        refusals.filter(move |refusal| refusal.is_corrected() == is_corrected)
    }
}

/// Reads the kubeconfig at `path`. `None` results in an absent certificate, blank text in an empty one. If the current
/// context names files ([`ObservedCert::named_pair`]), certificate and key are absent; the caller reads the files.
///
/// # Errors
/// The file exists and cannot be repaired; replacing it would lose its content.
pub fn read_kubeconfig(path: &Path, text: Option<&[u8]>) -> Result<ObservedCert, KubeconfigError> {
    let text = match text {
        None => return Ok(ObservedCert::new(Observed::Absent, Observed::Absent)),
        Some(text) if text.iter().all(u8::is_ascii_whitespace) => {
            return Ok(ObservedCert::new(Observed::Empty, Observed::Empty));
        }
        Some(text) => utf_8(text).map_err(KubeconfigError::NotYaml)?,
    };
    let document = Kubeconfig::parse(text)?;
    let CurrentContext {
        server,
        authority,
        certificate,
        key,
        certificate_file,
        key_file,
        authority_file,
        token,
        token_file,
        ..
    } = document.current()?;
    let absolute = |reference: String| resolve_path(path, &reference);
    let by_file = certificate.is_none();
    let pair = certificate_file.zip(key_file).filter(|_| by_file);
    let key = key.filter(|_| pair.is_none());
    Ok(ObservedCert {
        key_form_is_ours: key.as_deref().is_none_or(|key| is_our_form(key)),
        kubeconfig: Some(ObservedKubeconfig {
            refusals: document.client_refusals(),
            document,
            server,
            authority,
            authority_file: authority_file.map(absolute),
            token_file: token_file.filter(|_| token.is_none()).map(absolute),
            by_file,
            pair: pair.map(|(certificate, key)| Box::new([certificate, key].map(absolute))),
        }),
        ..ObservedCert::new(
            Observed::read(certificate.as_deref(), Chain::from_pem),
            Observed::read(key.as_deref().map(Vec::as_slice), PrivateKey::from_pem),
        )
    })
}

/// Returns the text of a kubeconfig, or why it is none.
fn utf_8(bytes: &[u8]) -> Result<&str, String> {
    match (wide_encoding(bytes), std::str::from_utf8(bytes)) {
        (Some(encoding), _) => Err(format!(
            "it is not UTF-8 text (iconv -f {encoding} -t UTF-8 OLD > NEW converts it)"
        )),
        (None, text) => text.map_err(|_| "it is not UTF-8 text".to_owned()),
    }
}

/// Returns true for PKCS#1 and SEC1 PEM, which kubeadm writes. Some components of Kubernetes cannot read PKCS#8.
pub fn is_our_form(key_pem: &[u8]) -> bool {
    !key_pem
        .windows(PKCS8_HEADER.len())
        .any(|window| window == PKCS8_HEADER)
}

const PKCS8_HEADER: &[u8] = b"-----BEGIN PRIVATE KEY-----";
