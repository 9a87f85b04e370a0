//! The block `authorityRotation`: CA changes that are ordered for the whole cluster.

use std::path::PathBuf;

use crate::yaml::settings::settings;

settings! {
    /// CA changes of the whole cluster.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct RotationSettings {
        /// The daemon takes part in CA changes that `nodepki authority rotate` starts.
        "enabled" => pub enabled: bool;
        /// Kubeconfig that may get, list and watch the ConfigMap of the rotation and get and patch the own Node, and on a
        /// control-plane node has the further rights in ca-change.md; by default /etc/kubernetes/admin.conf, on a worker
        /// /etc/kubernetes/kubelet.conf.
        "kubeconfig" => pub kubeconfig: Option<PathBuf>;
    }
}
