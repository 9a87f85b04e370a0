//! The block `clusterPolicy`: the key policy that the cluster contains.

use std::path::PathBuf;

use crate::kube::paths::ADMIN_CONF;
use crate::yaml::settings::settings;

settings! {
    /// The object `pkis.config.openshift.io/cluster`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ClusterPolicySettings: Default {
        /// The daemon reads and watches the key policy pkis.config.openshift.io/cluster, which takes precedence over `pki`.
        "enabled" => pub enabled: bool = false;
        /// Kubeconfig that may list and watch the object.
        "kubeconfig" => pub kubeconfig: PathBuf = ADMIN_CONF.into();
    }
}
