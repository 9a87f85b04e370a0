//! The key policy of the cluster, read once by each run that may issue certificates.

use super::configuration::{configuration_timeout, no_answer};
use super::known::KnownConfiguration;
use super::{LoadInputs, cluster};
use crate::agent::Failure;
use crate::agent::join::JoinedCluster;
use crate::store::NodeRoot;

impl KnownConfiguration {
    /// Reads the policy with the node's own kubeconfig, or before kubeadm has set up the node with what the cluster gives a
    /// joining node. The first node of a cluster has none to ask.
    ///
    /// A cluster that cannot be read is a warning here. With `clusterPolicy.required` the run refuses to issue.
    pub(super) async fn learn_policy(
        &mut self,
        root: &NodeRoot,
        inputs: &LoadInputs,
        joined: Option<&JoinedCluster>,
    ) {
        let settings = &self.settings.cluster_policy;
        if !settings.enabled || self.is_first_of_cluster() {
            return;
        }
        let joined = joined.filter(|_| self.kubeadm_follows());
        let policy = &self.cluster_policy;
        let read = async {
            let own;
            let api = match joined {
                Some(joined) => joined.api().await?,
                None => {
                    own = cluster(root, settings.kubeconfig.as_path())?;
                    &own
                }
            };
            let read = policy.fetch(api).await;
            read.map_err(|error| Failure::of_cluster("reading the key policy", error))
        };
        let time = configuration_timeout(inputs.wait.unwrap_or(self.settings.wait));
        let read = if settings.required && !policy.was_read() && joined.is_some() {
            // Discovery has its own deadline.
            read.await
        } else {
            let read = tokio::time::timeout(time, read).await;
            read.unwrap_or_else(|_| Err(no_answer(time)))
        };
        self.cluster_policy.learn(read);
    }

    /// Returns whether the cluster does not exist before kubeadm has set up this node.
    pub(super) fn is_first_of_cluster(&self) -> bool {
        self.kubeadm_follows() && self.documents.join().is_none() && !self.is_worker()
    }
}
