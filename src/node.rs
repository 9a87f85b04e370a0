//! The files of the node, read and judged.
//!
//! [`NodeState`] reads them, a [`NodeCert`] is a certificate with its files, [`role`] tells a control-plane node from a
//! worker, and [`status`] judges without a configuration. The comparison with the desired state is `agent::survey`.

mod cert;
mod read;
pub mod role;
pub mod static_pods;
pub mod status;
pub mod summary;

pub use cert::NodeCert;
pub use read::{NodeFile, NodeState, ServiceSign};
