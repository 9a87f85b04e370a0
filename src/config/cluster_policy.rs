//! The block `clusterPolicy`: the key policy that the cluster contains.

use std::path::PathBuf;

use crate::kube::paths::ADMIN_CONF;
use crate::yaml::settings::settings;

settings! {
    /// The object `pkis.config.openshift.io/cluster`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ClusterPolicySettings: Default {
        /// Each run reads, and the daemon watches, the key policy pkis.config.openshift.io/cluster, which takes precedence over `pki`.
        "enabled" => pub enabled: bool = false;
        /// Issue nothing until the policy was read once; the first node of a cluster is exempt.
        "required" => pub required: bool = false;
        /// Kubeconfig that may get, list and watch the object; a joining node uses the credential of its discovery.
        "kubeconfig" => pub kubeconfig: PathBuf = ADMIN_CONF.into();
    }
}
