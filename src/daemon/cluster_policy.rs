//! The watch of the cluster's key policy within the daemon: it runs beside the rotation loop.

use std::cell::RefCell;
use std::convert::Infallible;

use super::part::DaemonPart;
use crate::agent::Failure;
use crate::agent::cluster_policy::ClusterPolicyWatch;
use crate::config::ClusterPolicySettings;
use crate::store::NodeRoot;

#[derive(Default)]
pub(super) struct PolicyService {
    settings: RefCell<ClusterPolicySettings>,
    watch: DaemonPart<ClusterPolicyWatch>,
}

impl PolicyService {
    /// Replaces the configuration. A watch of the same configuration continues.
    ///
    /// # Errors
    /// A configuration that cannot be used; the former one stays in force.
    pub(super) fn put_in_force(
        &self,
        root: &NodeRoot,
        settings: &ClusterPolicySettings,
    ) -> Result<(), Failure> {
        if *self.settings.borrow() == *settings {
            return Ok(());
        }
        self.watch.replace(ClusterPolicyWatch::new(root, settings)?);
        self.settings.replace(settings.clone());
        Ok(())
    }

    /// Watches with the configuration in force, until it is dropped.
    pub(super) async fn run(&self) -> Infallible {
        let watch = async |watch: &ClusterPolicyWatch| watch.run().await;
        self.watch.run(watch, async |_| ()).await
    }
}
