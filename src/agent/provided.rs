//! Material that a cluster provides to a joining node: CA certificates, the service-account pair, and files at configured
//! paths.
//!
//! It adds what is missing on the node and never replaces anything. A file that exists and differs stops the run, since
//! one of both belongs to another cluster.

use std::collections::BTreeMap;
use std::fmt;

use zeroize::Zeroizing;

use crate::kube::names::{Authority, NodePath};
use crate::store::Mode;
use crate::x509::{PrivateKey, PublicKey, TrustBundle};

/// All provided material; empty for a node that does not join.
#[derive(Default)]
pub struct Provided {
    /// CA certificates, each with its source.
    pub bundles: BTreeMap<Authority, (String, TrustBundle)>,
    /// Keys for service-account tokens.
    pub service_account: Option<ServiceAccount>,
    /// Other files.
    pub files: Vec<ProvidedFile>,
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
    /// Only nodepki writes this path, so that an existing file is replaced.
    pub ours: bool,
    /// The file may not be available again, so that it is installed even if nothing else can be done.
    pub may_vanish: bool,
}

/// Omits the content.
impl fmt::Debug for ProvidedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} for {}", self.what, self.from, self.path)
    }
}
