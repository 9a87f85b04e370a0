//! The watch of the cluster's key policy within the daemon: it runs beside the rotation loop.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use tokio::sync::Notify;

use crate::agent::Failure;
use crate::agent::cluster_policy::ClusterPolicyWatch;
use crate::config::ClusterPolicySettings;
use crate::store::NodeRoot;

/// The watch of the configuration in force; off until the first one.
#[derive(Default)]
pub(super) struct PolicyService {
    settings: RefCell<ClusterPolicySettings>,
    watch: RefCell<Option<Rc<ClusterPolicyWatch>>>,
    replaced: Notify,
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
        let watch = ClusterPolicyWatch::new(root, settings)?;
        self.watch.replace(watch.map(Rc::new));
        self.settings.replace(settings.clone());
        self.replaced.notify_one();
        Ok(())
    }

    /// Watches with the configuration in force, until it is dropped.
    pub(super) async fn run(&self) -> Infallible {
        loop {
            let watch = self.watch.borrow().clone();
            let follow = async {
                match &watch {
                    Some(watch) => watch.run().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.replaced.notified() => {}
                never = follow => match never {},
            }
        }
    }
}
