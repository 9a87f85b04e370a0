//! The desired state of a node's PKI, computed from its configuration alone, and its comparison with the observed state.
//!
//! Pure. [`node_spec`] computes the table of certificates and never reads the disk; [`assess`] compares the table with the
//! files, and [`schedule`] decides when a certificate is due.

pub mod assess;
mod choices;
pub mod compliance;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod layout;
pub mod policy;
pub mod registered;
mod rules;
pub mod schedule;
mod table;

pub use choices::{
    CLUSTER_ADMINS, Choices, KUBELET_SIGNERS_GROUP, KubeletClientSubject, KubeletLayout,
    SYSTEM_MASTERS,
};
pub use layout::{Layout, crl_name, kubeconfig_path};
pub use rules::{node_spec, usages};
pub use table::{
    BundleCopy, BundleSpec, CertFiles, CertSpec, ExternalEtcd, KubeletStoreSpec, NodeSpec,
    PolicyDoubts, RequestedCertificate, ServiceAccountSpec,
};

#[cfg(test)]
mod tests;
