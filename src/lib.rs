//! nodepki gives a Kubernetes control-plane node its PKI without a CA private key ever being on the node.

pub mod agent;
pub mod assess;
pub mod cli;
pub mod failpoint;
pub mod kubeadm;
pub mod kubeconfig;
pub mod load;
pub mod names;
pub mod offline;
pub mod plan;
pub mod policy;
pub mod settings;
pub mod signer;
pub mod store;
pub mod x509;
pub mod yaml;
