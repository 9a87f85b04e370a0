//! The signer of kubelets' requests within the daemon: it runs beside the rotation loop, with the configuration in force.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use tokio::sync::Notify;

use super::metrics::Metrics;
use crate::agent::kubelet_requests::KubeletSigner;
use crate::agent::load::Loaded;
use crate::agent::{Clock, Failure};
use crate::kube::names::Authority;
use crate::store::NodeRoot;

/// The signer of the configuration in force; off until the first one.
#[derive(Default)]
pub(super) struct KubeletService {
    signer: RefCell<Option<Rc<KubeletSigner>>>,
    replaced: Notify,
}

impl KubeletService {
    /// Replaces the configuration.
    ///
    /// # Errors
    /// A configuration that cannot be used; the former one stays in force.
    pub(super) fn put_in_force(
        &self,
        root: &NodeRoot,
        loaded: &Loaded,
        metrics: &Metrics,
        clock: Clock,
    ) -> Result<(), Failure> {
        let signer = if loaded.settings.kubelets.sign {
            let name = loaded.setup.signers.get(&Authority::Ca);
            let name = name.map_or("", |(name, _)| name);
            let observer = Rc::new(metrics.kubelet_recorder(name));
            KubeletSigner::new(root, loaded, clock, observer)?
        } else {
            None
        };
        let former = self.signer.replace(signer.map(Rc::new));
        if former.is_some() || self.signer.borrow().is_some() {
            self.replaced.notify_one();
        }
        Ok(())
    }

    /// Signs with the configuration in force, until it is dropped.
    pub(super) async fn run(&self) -> Infallible {
        loop {
            let signer = self.signer.borrow().clone();
            let serve = async {
                match &signer {
                    Some(signer) => signer.run().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.replaced.notified() => {}
                never = serve => match never {},
            }
            if let Some(signer) = signer {
                signer.release().await;
            }
        }
    }

    /// Lets another node take over at once.
    pub(super) async fn release(&self) {
        let signer = self.signer.borrow().clone();
        if let Some(signer) = signer {
            signer.release().await;
        }
    }
}
