//! The signer of kubelets' requests within the daemon: it runs beside the rotation loop, with the configuration in force.

use std::convert::Infallible;
use std::rc::Rc;

use super::metrics::Metrics;
use super::part::DaemonPart;
use crate::agent::kubelet_requests::KubeletSigner;
use crate::agent::load::Loaded;
use crate::agent::{Clock, Failure};
use crate::kube::names::Authority;
use crate::store::NodeRoot;

#[derive(Default)]
pub(super) struct KubeletService {
    signer: DaemonPart<KubeletSigner>,
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
        self.signer.replace(signer);
        Ok(())
    }

    /// Signs with the configuration in force, until it is dropped.
    pub(super) async fn run(&self) -> Infallible {
        let sign = async |signer: &KubeletSigner| signer.run().await;
        let release = async |signer: &KubeletSigner| signer.release().await;
        self.signer.run(sign, release).await
    }

    /// Lets another node take over at once.
    pub(super) async fn release(&self) {
        if let Some(signer) = self.signer.current() {
            signer.release().await;
        }
    }
}
