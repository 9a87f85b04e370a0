//! The coordination of rotations of the whole cluster within the daemon: it runs beside the rotation loop.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;

use tokio::sync::Notify;

use super::part::DaemonPart;
use crate::agent::authority::coordinate::{CoordinationSettings, Coordinator};
use crate::agent::load::Loaded;
use crate::agent::{Clock, Failure};
use crate::spec::authority_rotation::{NodeProof, RotationSubject};
use crate::store::NodeRoot;

#[derive(Default)]
pub(super) struct RotationService {
    settings: RefCell<Option<CoordinationSettings>>,
    coordinator: DaemonPart<Coordinator>,
    demanded: Rc<Notify>,
}

impl RotationService {
    /// Replaces the configuration. A coordination of the same configuration continues.
    ///
    /// # Errors
    /// A configuration that cannot be used; the former one stays in force.
    pub(super) fn put_in_force(
        &self,
        root: &NodeRoot,
        loaded: &Loaded,
        clock: Clock,
    ) -> Result<(), Failure> {
        let settings = CoordinationSettings::of(loaded);
        if *self.settings.borrow() == settings {
            return Ok(());
        }
        let coordinator = match settings.clone() {
            Some(settings) => {
                let demanded = Rc::clone(&self.demanded);
                Some(Coordinator::new(root, settings, demanded, clock)?)
            }
            None => None,
        };
        self.coordinator.replace(coordinator);
        self.settings.replace(settings);
        Ok(())
    }

    /// Returns true if the state of this node is to be published.
    pub(super) fn is_on(&self) -> bool {
        self.settings.borrow().is_some()
    }

    /// Publishes the state of this node.
    pub(super) fn publish(&self, proofs: BTreeMap<RotationSubject, NodeProof>) {
        if let Some(coordinator) = self.coordinator.current() {
            coordinator.publish(proofs);
        }
    }

    /// Resolves when the cluster demands something else.
    pub(super) async fn demanded(&self) {
        self.demanded.notified().await;
    }

    /// Coordinates with the configuration in force, until it is dropped.
    pub(super) async fn run(&self) -> Infallible {
        let coordinate = async |coordinator: &Coordinator| coordinator.run().await;
        self.coordinator.run(coordinate, async |_| ()).await
    }

    /// Releases the Lease of the leader.
    pub(super) async fn release(&self) {
        if let Some(coordinator) = self.coordinator.current() {
            coordinator.release().await;
        }
    }
}
