//! The desired state of a node's PKI, computed from its configuration alone, and its comparison with the observed state.
//!
//! Pure. [`node_spec`] computes the table of certificates and never reads the disk; [`assess`] compares the table with the
//! files, and [`schedule`] decides when a certificate is due. [`authority_rotation`] is the protocol by which the CA of a
//! whole cluster changes.

pub mod assess;
pub mod authority_rotation;
mod choices;
pub mod compliance;
pub mod credentials;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod layout;
pub mod policy;
pub mod registered;
mod rules;
pub mod schedule;
mod table;

pub use choices::{
    CLUSTER_ADMINS, Choices, KUBELET_SIGNERS_GROUP, KubeconfigCredentials, KubeletClientSubject,
    KubeletLayout, SYSTEM_MASTERS,
};
pub use layout::{Layout, crl_name, kubeconfig_path};
pub use rules::{node_spec, usages};
pub use table::{
    AuthorityProgress, BundleCopy, BundleSpec, CertFiles, CertSpec, ClientPairSpec, ExternalEtcd,
    KubeletStoreSpec, NodeSpec, PolicyDoubts, RequestedCertificate, ServiceAccountSpec,
};

#[cfg(test)]
pub(crate) mod tests;
