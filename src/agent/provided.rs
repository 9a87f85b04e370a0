//! What the cluster hands to a node that joins it: the certificates of its authorities, the service-account pair, and
//! files that lie where the configuration says.
//!
//! It fills what is missing on the node and never replaces anything: what is there and differs stops the run, since one
//! of the two belongs to another cluster.

use std::collections::BTreeMap;
use std::fmt;

use zeroize::Zeroizing;

use crate::kube::names::{Authority, NodePath};
use crate::store::Mode;
use crate::x509::{PrivateKey, PublicKey, TrustBundle};

/// Everything that was handed over; nothing for a node that does not join.
#[derive(Default)]
pub struct Provided {
    /// The authorities' certificates, each with where it comes from.
    pub bundles: BTreeMap<Authority, (String, TrustBundle)>,
    /// The keys for service-account tokens.
    pub service_account: Option<ServiceAccount>,
    /// Whatever else.
    pub files: Vec<ProvidedFile>,
}

/// The service-account keys of a cluster.
pub struct ServiceAccount {
    /// Where they come from.
    pub from: String,
    /// Signs tokens.
    pub key: PrivateKey,
    /// Verify tokens, `key`'s own among them: several while one key gives way to another.
    pub public: Vec<PublicKey>,
}

/// A file that goes to a certain place.
pub struct ProvidedFile {
    /// What it is, for people: `etcd.external.caFile`.
    pub what: String,
    /// Where it comes from.
    pub from: String,
    /// Where it goes.
    pub path: NodePath,
    /// PEM.
    pub bytes: Zeroizing<Vec<u8>>,
    /// Permission bits for a new file.
    pub mode: Mode,
    /// Nobody else writes it: another one in its place is an older one of ours.
    pub ours: bool,
    /// It may not be had again: it is put in place even when nothing else can be done.
    pub perishable: bool,
}

/// Without the contents.
impl fmt::Debug for ProvidedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} for {}", self.what, self.from, self.path)
    }
}
