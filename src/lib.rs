//! nodepki gives a Kubernetes control-plane node its PKI without a CA private key ever being on the node.

pub mod failpoint;
pub mod names;
pub mod store;
