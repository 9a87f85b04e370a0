//! nodepki gives a Kubernetes control-plane node its PKI without a CA private key ever being on the node.

pub mod kubeadm;
pub mod names;
pub mod policy;
pub mod settings;
pub mod x509;
pub mod yaml;
