//! The blocks `clusterPolicy`, `nodeEvents`, `nodeReport` and `authorityRotation`: what the daemon reads from its cluster and
//! writes to it.

use std::path::PathBuf;

use crate::kube::paths::{ADMIN_CONF, KUBELET_CONF};
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
