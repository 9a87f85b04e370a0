//! The ConfigMap that binds the names of nodes to their Nodes (`kubelets::NodeBindings`). Only this module reads and writes it.
//!
//! It survives a restart and a change of the leader. The leader adds its changes to the object as it is; a conflict with
//! another writer, such as `nodepki kubelets revoke`, is resolved by the next attempt. Without the object, or while the API
//! server refuses its changes, the bindings last as long as this node is the leader.

use std::convert::Infallible;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::Signing;
use super::election::Tenure;
use crate::cluster::api::{Api, ApiError, ApiStatus, CONFIG_MAP};
use crate::cluster::watch::{Watch, WatchChange, delay};
use crate::kube::names::SYSTEM_NAMESPACE;
use crate::kubelets::KubeletPolicy;
use crate::kubelets::rbac::bindings_name;
use crate::process::jitter::random_fraction;

/// Delay before changes are written, so Nodes that join together need one write.
const WRITE_DELAY: Duration = Duration::from_secs(1);

/// How often a change that a certificate depends on is written again at once, if other writers change the object.
const MAX_CONFLICTS: usize = 5;

/// Reads the object.
pub(super) async fn read(api: &Api, policy: &KubeletPolicy) -> Result<Option<Value>, ApiError> {
    let name = bindings_name(policy);
    api.read(&CONFIG_MAP, Some(SYSTEM_NAMESPACE), &name).await
}

/// Writes the object with these data.
pub(super) async fn write(
    api: &Api,
    policy: &KubeletPolicy,
    found: Option<Value>,
    data: Map<String, Value>,
) -> Result<Value, ApiError> {
    let name = bindings_name(policy);
    let namespace = Some(SYSTEM_NAMESPACE);
    match found {
        Some(mut object) => {
            if let Some(object) = object.as_object_mut() {
                object.insert("data".to_owned(), data.into());
            }
            api.replace(&CONFIG_MAP, namespace, &name, &object).await
        }
        None => {
            let object = json!({
                "apiVersion": CONFIG_MAP.api_version(),
                "kind": CONFIG_MAP.kind,
                "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
                "data": data,
            });
            api.create(&CONFIG_MAP, namespace, &object).await
        }
    }
}

impl Signing {
    /// Reads the bindings before the Nodes are known.
    pub(super) async fn read_bindings(&self) {
        let mut failures = 0;
        loop {
            match read(&self.api, &self.policy).await {
                Ok(found) => {
                    if found.is_none() {
                        self.warn_about_bindings(None);
                    }
                    self.view.borrow_mut().bindings.store(found.as_ref());
                    return;
                }
                Err(ApiError::Refused(status)) if status.is_unauthorized_user() => {
                    return self.warn_about_bindings(Some(&status));
                }
                Err(error) => {
                    failures += 1;
                    match failures {
                        3 => tracing::warn!(
                            "no request of a kubelet is signed before the ConfigMap {SYSTEM_NAMESPACE}/{} is read: {error}; retrying",
                            bindings_name(&self.policy)
                        ),
                        _ => tracing::debug!("the bindings of Nodes cannot be read: {error}"),
                    }
                    sleep(delay(failures - 1, None, random_fraction())).await;
                }
            }
        }
    }

    /// Warns that the object does not exist, or cannot be used because of this refusal; once until a write succeeds.
    fn warn_about_bindings(&self, refusal: Option<&ApiStatus>) {
        if self.bindings_refused.replace(true) {
            return;
        }
        let set_up = "run nodepki config signer-setup kubelets | kubectl apply -f -";
        let (why, fix) = match refusal {
            None => ("it does not exist".to_owned(), set_up),
            Some(status) if status.is_unauthorized_user() => (status.to_string(), set_up),
            Some(status) => (status.to_string(), "correct what the API server reports"),
        };
        tracing::warn!(
            "the ConfigMap {SYSTEM_NAMESPACE}/{} cannot be used: {why}; until it can, a Node that is deleted and created again is recognized only while this node signs ({fix})",
            bindings_name(&self.policy)
        );
    }

    /// Follows the changes of other writers.
    pub(super) async fn follow_bindings(&self) -> Infallible {
        let name = bindings_name(&self.policy);
        let watch = Watch::of_object(&CONFIG_MAP, Some(SYSTEM_NAMESPACE), &name);
        let sink = |change: WatchChange<Value>| {
            if let WatchChange::Present(object) = change {
                self.view.borrow_mut().put_bindings(&object);
                self.changed.notify_one();
            }
        };
        watch.run(&self.api, sink).await
    }

    /// Writes the changes of the bindings.
    pub(super) async fn write_bindings(&self, tenure: &Tenure) -> Infallible {
        let mut failures = 0;
        loop {
            self.rebound.notified().await;
            sleep(WRITE_DELAY).await;
            while self.view.borrow().bindings.has_changes() {
                match self.write_bindings_once(tenure).await {
                    Ok(()) => {
                        failures = 0;
                        break;
                    }
                    Err(error) => {
                        if let ApiError::Refused(status) = &error
                            && !is_temporary(status)
                        {
                            self.warn_about_bindings(Some(status));
                        }
                        tracing::debug!("the bindings of Nodes cannot be written: {error}");
                        sleep(delay(failures, None, random_fraction())).await;
                        failures += 1;
                    }
                }
            }
        }
    }

    /// Writes the binding of a name at once, if it changed. If the object cannot be written, the change is known as long as
    /// this node is the leader.
    pub(super) async fn store_binding(&self, name: &str, tenure: &Tenure) -> Result<(), ApiError> {
        let mut conflicts = 0;
        while self.view.borrow().bindings.is_changed(name) {
            match self.write_bindings_once(tenure).await {
                // The other writer may be a request that is processed at the same time, and has written this change too.
                Err(ApiError::Refused(status))
                    if status.is_conflict() && conflicts < MAX_CONFLICTS =>
                {
                    conflicts += 1;
                }
                Err(ApiError::Refused(status)) if !is_temporary(&status) => {
                    self.warn_about_bindings(Some(&status));
                    return Ok(());
                }
                written => return written,
            }
        }
        Ok(())
    }

    async fn write_bindings_once(&self, tenure: &Tenure) -> Result<(), ApiError> {
        let Some(found) = read(&self.api, &self.policy).await? else {
            return Ok(());
        };
        let data = {
            let mut view = self.view.borrow_mut();
            view.put_bindings(&found);
            view.bindings.data(self.policy.lifetime, self.now())
        };
        if tenure.lasts() {
            let stored = write(&self.api, &self.policy, Some(found), data).await?;
            self.bindings_refused.set(false);
            self.view.borrow_mut().put_bindings(&stored);
        }
        Ok(())
    }
}

/// Returns true if a refused write may succeed soon. Any other refusal, such as that of an admission webhook, lasts until an
/// administrator corrects its cause, and must not keep nodes from joining.
pub(super) fn is_temporary(status: &ApiStatus) -> bool {
    status.is_conflict() || matches!(status.code, 429 | 503)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_only_for_temporary_refusals() {
        for (code, reason, expected) in [
            (409, "Conflict", true),
            (429, "TooManyRequests", true),
            (503, "ServiceUnavailable", true),
            // An admission plug-in or webhook, a webhook that does not answer, an immutable object, a deleted one.
            (403, "Forbidden", false),
            (500, "InternalError", false),
            (422, "Invalid", false),
            (404, "NotFound", false),
        ] {
            let status = ApiStatus {
                code,
                reason: reason.to_owned(),
                ..ApiStatus::default()
            };
            assert_eq!(is_temporary(&status), expected, "{status}");
        }
    }
}
