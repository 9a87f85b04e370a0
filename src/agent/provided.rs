//! Material that a cluster provides to a joining node: CA certificates, the service-account pair, and files at configured
//! paths.
//!
//! It adds what is missing on the node. A file that exists and differs stops the run, since one of both belongs to another
//! cluster. Only a CA certificate that the cluster itself changes is replaced ([`ProvidedBundle::supersedes`]).

use std::collections::BTreeMap;
use std::fmt;

use zeroize::Zeroizing;

use crate::kube::names::{Authority, NodePath};
use crate::store::Mode;
use crate::x509::{Certificate, PrivateKey, PublicKey, TrustBundle};

/// All provided material; empty for a node that does not join.
#[derive(Default)]
pub struct Provided {
    /// CA certificates.
    pub bundles: BTreeMap<Authority, ProvidedBundle>,
    /// Keys for service-account tokens.
    pub service_account: Option<ServiceAccount>,
    /// Other files.
    pub files: Vec<ProvidedFile>,
}

/// The CA certificates of an authority.
pub struct ProvidedBundle {
    /// Source of the certificates.
    pub from: String,
    /// The certificates.
    pub bundle: TrustBundle,
    /// Both CAs of a change in the cluster: a file that contains only these is replaced. Empty if the cluster does not change
    /// this CA.
    pub supersedes: Vec<Certificate>,
}

impl ProvidedBundle {
    /// Returns certificates that replace no file.
    pub fn new(from: String, bundle: TrustBundle) -> Self {
        ProvidedBundle {
            from,
            bundle,
            supersedes: Vec::new(),
        }
    }

    /// Returns whether these certificates are replaced.
    pub(super) fn replaces(&self, found: &TrustBundle) -> bool {
        let mut certificates = found.certificates().iter();
        *found != self.bundle && certificates.all(|one| self.supersedes.contains(one))
    }
}

/// The service-account keys of a cluster.
pub struct ServiceAccount {
    /// Source of the keys.
    pub from: String,
    /// Key that signs tokens.
    pub key: PrivateKey,
    /// Keys that verify tokens, including that of `key`; several while the cluster changes its key.
    pub public: Vec<PublicKey>,
}

/// A provided file and its path on the node.
pub struct ProvidedFile {
    /// Name in messages: `etcd.external.caFile`.
    pub what: String,
    /// Source of the file.
    pub from: String,
    /// Path on the node.
    pub path: NodePath,
    /// Content, in PEM.
    pub bytes: Zeroizing<Vec<u8>>,
    /// Permissions of a new file.
    pub mode: Mode,
    /// Only nodepki writes this path, so an existing file is replaced.
    pub ours: bool,
    /// The file may not be available again, so it is installed even if nothing else can be done.
    pub may_vanish: bool,
}

/// Omits the content.
impl fmt::Debug for ProvidedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} for {}", self.what, self.from, self.path)
    }
}
