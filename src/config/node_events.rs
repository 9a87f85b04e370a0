//! The block `nodeEvents`: Events about the Node.

use std::path::PathBuf;

use crate::kube::paths::KUBELET_CONF;
use crate::yaml::settings::settings;

settings! {
    /// Events about the Node.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NodeEventSettings: Default {
        /// The daemon writes an Event about the Node for each certificate that was not issued or waits for its signer.
        "enabled" => pub enabled: bool = false;
        /// Kubeconfig that may create and patch Events in the namespace `default`.
        "kubeconfig" => pub kubeconfig: PathBuf = KUBELET_CONF.into();
    }
}
