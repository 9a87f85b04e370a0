//! The block `nodeReport`: the certificates of this node, for `nodepki cluster status`.

use std::path::PathBuf;

use crate::kube::paths::KUBELET_CONF;
use crate::yaml::settings::settings;

settings! {
    /// Report on the certificates of this node, in the cluster.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NodeReportSettings: Default {
        /// The daemon, and each renew, writes the state of the certificates to an annotation of the Node, for nodepki cluster status.
        "enabled" => pub enabled: bool = false;
        /// Kubeconfig that may read and patch the Node.
        "kubeconfig" => pub kubeconfig: PathBuf = KUBELET_CONF.into();
    }
}
