//! The part of a change of a CA or of the service-account key in the whole cluster that runs beside the rotation loop of
//! the daemon: follows the ConfigMap, publishes the proofs of this node, brings private keys to all control-plane nodes, and
//! leads if it holds the Lease.
//!
//! While no rotation is in progress, one watch is open, and the Node is compared every ten minutes. After the change of a CA
//! each control-plane node also reads once an hour whether kube-apiserver publishes the former one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::exchange::{Exchange, exchange};
use super::lead::{Led, lead, unpublish};
use super::objects::{self, rotations_in};
use crate::agent::load::{self, Loaded};
use crate::agent::{Clock, Failure};
use crate::cluster::api::{Api, ApiError};
use crate::cluster::lease::{LeaseHolder, LeaseLock};
use crate::cluster::watch::WatchChange;
use crate::config::RotationSettings;
use crate::kube::names::{AUTHENTICATION_CONFIG_MAP, Authority, SYSTEM_NAMESPACE};
use crate::kube::paths::{ADMIN_CONF, KUBELET_CONF};
use crate::spec::authority_rotation::{AuthorityRotation, NodeProof, RotatedCa, RotationSubject};
use crate::store::{ClusterRotations, NodeRoot, StoreError};

/// Interval of the leader's attempts, and of other nodes' attempts to become the leader.
const LEAD_INTERVAL: Duration = Duration::from_secs(2);
/// Time without a renewal after which another node may lead.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Interval at which the Node is compared while no rotation is in progress: it may have been deleted and created again.
const IDLE_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// First interval at which a replaced CA is removed from what kube-apiserver publishes; it doubles. An API server reads its
/// files once a minute, and adds the CA again until then.
const FIRST_UNPUBLISH_INTERVAL: Duration = Duration::from_secs(60);
/// Longest of these intervals: an API server that was down adds the CA when it returns.
const MAX_UNPUBLISH_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Interval at which nodes that have joined are looked for during a rotation of the service-account key.
const JOIN_INTERVAL: Duration = Duration::from_secs(60);
/// Wait after a failure, and interval of comparing the Node during a rotation.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// What this node's coordination depends on. A change starts another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinationSettings {
    settings: RotationSettings,
    node: String,
    /// Worker nodes do not lead.
    is_control_plane: bool,
}

impl CoordinationSettings {
    /// Returns `None` if the setting is off.
    pub fn of(loaded: &Loaded) -> Option<Self> {
        let settings = &loaded.settings.authority_rotation;
        let bundle = loaded.setup.plan.bundle(Authority::FrontProxyCa);
        settings.enabled.then(|| CoordinationSettings {
            settings: settings.clone(),
            node: loaded.setup.identity.node.clone(),
            is_control_plane: bundle.is_some(),
        })
    }

    fn kubeconfig(&self) -> &Path {
        let by_role = if self.is_control_plane {
            ADMIN_CONF
        } else {
            KUBELET_CONF
        };
        self.settings
            .kubeconfig
            .as_deref()
            .unwrap_or(Path::new(by_role))
    }
}

/// The coordination of this node.
pub struct Coordinator {
    root: NodeRoot,
    settings: CoordinationSettings,
    api: Api,
    lease: LeaseLock,
    clock: Clock,
    proofs: RefCell<BTreeMap<RotationSubject, NodeProof>>,
    proofs_changed: Notify,
    rotations_changed: Notify,
    keys_wanted: Notify,
    settled_changed: Notify,
    /// Passes on that the rotations have changed.
    demanded: std::rc::Rc<Notify>,
}

impl Coordinator {
    /// Returns the coordination. Sends nothing. `demanded` is notified of every change of the rotations.
    ///
    /// # Errors
    /// A kubeconfig that cannot be used.
    pub fn new(
        root: &NodeRoot,
        settings: CoordinationSettings,
        demanded: std::rc::Rc<Notify>,
        clock: Clock,
    ) -> Result<Self, Failure> {
        let api = || load::cluster(root, settings.kubeconfig());
        Ok(Coordinator {
            api: api()?,
            lease: LeaseLock::new(api()?, objects::NAME, &settings.node, LEASE_DURATION, clock)
                .of_equal_holders(),
            root: root.clone(),
            settings,
            clock,
            proofs: RefCell::default(),
            proofs_changed: Notify::new(),
            rotations_changed: Notify::new(),
            keys_wanted: Notify::new(),
            settled_changed: Notify::new(),
            demanded,
        })
    }

    /// Replaces what is published.
    pub fn publish(&self, proofs: BTreeMap<RotationSubject, NodeProof>) {
        if *self.proofs.borrow() != proofs {
            self.proofs.replace(proofs);
            self.proofs_changed.notify_one();
            self.settled_changed.notify_one();
        }
    }

    /// Coordinates until it is dropped. Failures are logged and retried.
    pub async fn run(&self) -> Infallible {
        let of_control_plane = async {
            if !self.settings.is_control_plane {
                return std::future::pending().await;
            }
            tokio::select! {
                never = self.lead() => never,
                never = self.exchange() => never,
                never = self.unpublish() => never,
            }
        };
        tokio::select! {
            never = self.follow() => never,
            never = self.keep_published() => never,
            never = of_control_plane => never,
        }
    }

    /// Releases the Lease.
    pub async fn release(&self) {
        if self.settings.is_control_plane && self.is_in_progress() {
            self.lease.release().await;
        }
    }

    async fn follow(&self) -> Infallible {
        let watch = objects::watch();
        let mut is_listed = false;
        let following = watch.run(&self.api, |change: WatchChange<Value>| match change {
            WatchChange::Listing => is_listed = false,
            WatchChange::Present(map) => {
                is_listed = true;
                self.keep(Some(&map));
            }
            WatchChange::Listed if !is_listed => self.keep(None),
            WatchChange::Listed => {}
            WatchChange::Deleted(_) => self.keep(None),
        });
        following.await
    }

    /// Replaces the record of the rotations.
    fn keep(&self, map: Option<&Value>) {
        let former = match self.root.cluster_rotations() {
            // A damaged file is written again; that of a newer nodepki is not.
            Err(StoreError::Damaged { .. }) => ClusterRotations::default(),
            Err(error) => {
                tracing::error!("{error}");
                return;
            }
            Ok(former) => former,
        };
        let record = rotations_in(map, &former);
        if record == former {
            return;
        }
        for (key, why) in &record.refused {
            tracing::error!(
                "the rotation {key} in the ConfigMap kube-system/{} is not valid and is not used: {why}",
                objects::NAME
            );
        }
        for (subject, rotation) in &record.rotations {
            if former.rotations.get(subject) != Some(rotation) {
                let paused = if rotation.paused { ", paused" } else { "" };
                tracing::info!(
                    "rotation {} of {subject}: phase {}{paused}",
                    rotation.id,
                    rotation.phase
                );
            }
        }
        if let Err(error) = self.root.keep_cluster_rotations(&record) {
            tracing::error!("the rotations of the cluster cannot be kept: {error}");
            return;
        }
        self.demanded.notify_one();
        self.rotations_changed.notify_one();
        self.keys_wanted.notify_one();
        self.proofs_changed.notify_one();
        self.settled_changed.notify_one();
    }

    fn is_in_progress(&self) -> bool {
        let record = self.root.cluster_rotations().unwrap_or_default();
        record
            .rotations
            .values()
            .any(|rotation| !rotation.phase.is_end())
    }

    async fn keep_published(&self) -> Infallible {
        let mut reported = String::new();
        loop {
            let proofs = self.proofs.borrow().clone();
            let trouble = if proofs.is_empty() {
                None
            } else {
                self.published(&proofs).await
            };
            let interval = match &trouble {
                None if !self.is_in_progress() => IDLE_INTERVAL,
                _ => RETRY_INTERVAL,
            };
            let trouble = trouble.unwrap_or_default();
            if !trouble.is_empty() && trouble != reported {
                tracing::warn!(
                    "the state of the CAs and keys is not in the Node yet: {trouble}; retrying"
                );
            }
            reported = trouble;
            tokio::select! {
                () = self.proofs_changed.notified() => {}
                () = sleep(interval) => {}
            }
        }
    }

    /// Writes the proofs to the Node; returns why that failed.
    async fn published(&self, proofs: &BTreeMap<RotationSubject, NodeProof>) -> Option<String> {
        let node = &self.settings.node;
        match objects::publish(&self.api, node, proofs).await {
            Ok(true) => None,
            Ok(false) => Some(format!("there is no Node {node}")),
            Err(error) => Some(error.to_string()),
        }
    }

    async fn lead(&self) -> Infallible {
        let mut waits = BTreeMap::new();
        let mut reported = String::new();
        loop {
            if !self.is_in_progress() {
                self.rotations_changed.notified().await;
                continue;
            }
            let mut interval = LEAD_INTERVAL;
            let trouble = match self.lease.attempt().await {
                Ok(LeaseHolder::This) => match lead(&self.api, (self.clock)()).await {
                    Ok(led) => {
                        let is_time = |led: &Led| matches!(led, Led::WaitsForTime(_));
                        if led.iter().all(|(_, led)| is_time(led)) {
                            interval = RETRY_INTERVAL;
                        }
                        for (rotation, led) in led {
                            log(&mut waits, rotation.subject, &rotation.id, led);
                        }
                        None
                    }
                    Err(error) => Some(error),
                },
                Ok(LeaseHolder::Another { .. }) => None,
                Err(error) => Some(error),
            };
            let trouble = trouble.map(|error| error.to_string()).unwrap_or_default();
            if !trouble.is_empty() && trouble != reported {
                tracing::info!("the rotation of the cluster cannot be led: {trouble}; retrying");
            }
            reported = trouble;
            tokio::select! {
                () = self.rotations_changed.notified() => {}
                () = sleep(interval) => {}
            }
        }
    }

    /// Removes the CAs of ended rotations that no node trusts any more from what kube-apiserver publishes: when the rotations
    /// or the proofs of this node have changed, and then less and less often. Several nodes do no harm: each writes only over
    /// the version that it has read.
    async fn unpublish(&self) -> Infallible {
        let mut interval = FIRST_UNPUBLISH_INTERVAL;
        let mut reported = String::new();
        loop {
            let mut trouble = String::new();
            for rotation in self.settled() {
                if let Err(error) = unpublish(&self.api, &rotation).await {
                    trouble = why_published(&error);
                }
            }
            if !trouble.is_empty() && trouble != reported {
                tracing::warn!(
                    "a replaced CA cannot be removed from the ConfigMap {SYSTEM_NAMESPACE}/{AUTHENTICATION_CONFIG_MAP}: {trouble}; retrying"
                );
            }
            reported = trouble;
            tokio::select! {
                () = self.settled_changed.notified() => interval = FIRST_UNPUBLISH_INTERVAL,
                () = sleep(interval) => interval = (2 * interval).min(MAX_UNPUBLISH_INTERVAL),
            }
        }
    }

    /// Returns the ended rotations of which this node trusts only the CA that issues.
    fn settled(&self) -> Vec<AuthorityRotation> {
        let record = self.root.cluster_rotations().unwrap_or_default();
        let proofs = self.proofs.borrow();
        let is_settled = |rotation: &AuthorityRotation| {
            let (removed, proof) = (rotation.removed(), proofs.get(&rotation.subject));
            let is_only = |removed: &RotatedCa, proof: &NodeProof| {
                let trusts = |ca: &RotatedCa| proof.trusted_by_any.contains(&ca.sha256);
                trusts(rotation.issuing()) && !trusts(removed)
            };
            let both = removed.zip(proof);
            rotation.phase.is_end() && both.is_some_and(|(removed, proof)| is_only(removed, proof))
        };
        let rotations = record.rotations.into_values();
        rotations.filter(is_settled).collect()
    }

    /// Brings the private keys of a rotation of the service-account key to this node and to others.
    async fn exchange(&self) -> Infallible {
        let mut reported = String::new();
        loop {
            let exchanged = exchange(&self.root, &self.api, &self.settings.node).await;
            let (interval, trouble) = match exchanged {
                Ok(Exchange::Over) => (None, String::new()),
                Ok(Exchange::Received) => {
                    tracing::info!("this node has received the keys of the rotation of sa");
                    self.demanded.notify_one();
                    (Some(LEAD_INTERVAL), String::new())
                }
                Ok(Exchange::Complete) => (Some(JOIN_INTERVAL), String::new()),
                Ok(Exchange::Awaited(why)) => (Some(LEAD_INTERVAL), why.unwrap_or_default()),
                Err(failure) => (Some(RETRY_INTERVAL), failure.one_line()),
            };
            if !trouble.is_empty() && trouble != reported {
                tracing::warn!("the keys of the rotation of sa: {trouble}; retrying");
            }
            reported = trouble;
            let pause = async {
                match interval {
                    Some(interval) => sleep(interval).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.keys_wanted.notified() => {}
                () = pause => {}
            }
        }
    }
}

/// Returns why a replaced CA is still published, with the right that this node lacks.
fn why_published(error: &ApiError) -> String {
    match error {
        ApiError::Refused(status) if status.is_unauthorized_user() => format!(
            "{error} (grant the user of authorityRotation.kubeconfig get and patch on it; docs/ca-change.md has the whole role)"
        ),
        _ => error.to_string(),
    }
}

/// Logs what the leader has done, and what it waits for if that is new.
fn log(
    waits: &mut BTreeMap<RotationSubject, String>,
    subject: RotationSubject,
    id: &str,
    led: Led,
) {
    match led {
        Led::Advanced(phase) => {
            waits.remove(&subject);
            tracing::info!(
                "rotation {id} of {subject}: every node has proven its phase, next is {phase}"
            );
        }
        Led::Waits(why) | Led::WaitsForTime(why) => {
            if waits.get(&subject) != Some(&why) {
                tracing::info!("rotation {id} of {subject} waits: {why}");
                waits.insert(subject, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::super::lead::tests::rotation;
    use super::super::service_account::tests::proof_with;
    use super::*;
    use crate::cluster::api::ApiStatus;
    use crate::spec::authority_rotation::RotationPhase;

    #[test]
    fn names_right_that_is_missing_to_remove_a_published_ca() {
        let refused = |code, reason: &str, message: &str| {
            why_published(&ApiError::from(Box::new(ApiStatus {
                code,
                reason: reason.to_owned(),
                message: message.to_owned(),
                ..ApiStatus::default()
            })))
        };
        assert_eq!(
            refused(403, "Forbidden", "User \"a\" cannot patch it"),
            "HTTP 403 Forbidden: User \"a\" cannot patch it (grant the user of authorityRotation.kubeconfig get and patch on it; docs/ca-change.md has the whole role)"
        );
        assert_eq!(
            refused(500, "InternalError", "no etcd"),
            "HTTP 500 InternalError: no etcd"
        );
    }

    #[test]
    fn unpublishes_ca_of_ended_rotation_once_this_node_does_not_trust_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let settings = CoordinationSettings {
            settings: RotationSettings::default(),
            node: "cp1".to_owned(),
            is_control_plane: true,
        };
        let coordinator =
            Coordinator::new(&root, settings, Default::default(), OffsetDateTime::now_utc).unwrap();
        let present = rotation(Authority::Ca);
        let proof = |trusted: &[&RotatedCa]| {
            let proof = NodeProof {
                trusted_by_any: trusted.iter().map(|ca| ca.sha256.clone()).collect(),
                ..proof_with("key")
            };
            BTreeMap::from([(present.subject, proof)])
        };
        let settled = |phase: RotationPhase| {
            let rotation = present.in_phase(phase);
            let record = ClusterRotations {
                rotations: BTreeMap::from([(rotation.subject, rotation)]),
                ..ClusterRotations::default()
            };
            root.keep_cluster_rotations(&record).unwrap();
            coordinator.settled().len()
        };
        // No proof yet.
        assert_eq!(settled(RotationPhase::Done), 0);
        // Unreadable files.
        coordinator.publish(proof(&[]));
        assert_eq!(settled(RotationPhase::Done), 0);
        coordinator.publish(proof(&[&present.new]));
        assert_eq!(settled(RotationPhase::Done), 1);
        assert_eq!(settled(RotationPhase::Retire), 0);
        assert_eq!(settled(RotationPhase::Undone), 0);
        coordinator.publish(proof(&[&present.old, &present.new]));
        assert_eq!(settled(RotationPhase::Done), 0);
        coordinator.publish(proof(&[&present.old]));
        assert_eq!(settled(RotationPhase::Undone), 1);
    }
}
