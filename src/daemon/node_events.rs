//! Events about the Node, which `kubectl describe node` prints: certificates that a step did not issue, and a key policy that
//! is not known. They are written beside the rotation loop, which never waits for the cluster.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::rc::Rc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use tokio::sync::Notify;

use crate::agent::load::{self, Loaded};
use crate::agent::{RowAction, RunReport};
use crate::cluster::api::{Api, ApiError, NODE};
use crate::cluster::event::{self, EVENT, EVENT_NAMESPACE};
use crate::spec::assess::joined;
use crate::store::NodeRoot;
use crate::text::hex;

/// Events that are to be written.
#[derive(Default)]
pub(super) struct NodeEvents {
    target: RefCell<Option<Rc<Target>>>,
    /// By name: of what lasts, only the last message is written.
    unwritten: RefCell<BTreeMap<String, Value>>,
    added: Notify,
}

/// The cluster that is written to.
struct Target {
    api: Api,
    kubeconfig: PathBuf,
}

impl NodeEvents {
    /// Has the Events about a step written, if the configuration of the step says so.
    ///
    /// A kubeconfig that cannot be used is reported; the rotation goes on, and the next step tries again.
    pub(super) fn report(
        &self,
        root: &NodeRoot,
        loaded: &Loaded,
        report: &RunReport,
        now: OffsetDateTime,
    ) {
        let settings = &loaded.settings.node_events;
        if !settings.enabled {
            return;
        }
        let kubeconfig = settings.kubeconfig.clone();
        let api = match load::cluster(root, kubeconfig.as_path()) {
            Ok(api) => api,
            Err(failure) => {
                tracing::warn!("nodeEvents: {failure}");
                return;
            }
        };
        self.target
            .replace(Some(Rc::new(Target { api, kubeconfig })));
        let setup = &loaded.setup;
        let doubt = setup.plan.policy_doubts.rules.as_deref();
        let events = events(setup.identity.node.as_str(), report, doubt, now);
        self.unwritten.borrow_mut().extend(events);
        self.added.notify_one();
    }

    /// Writes Events, until it is dropped. A failure is not retried: the next step reports what lasts.
    pub(super) async fn run(&self) -> Infallible {
        loop {
            self.added.notified().await;
            let Some(target) = self.target.borrow().clone() else {
                continue;
            };
            for (name, event) in self.unwritten.take() {
                if let Err(error) = write(&target.api, &name, &event).await {
                    let kubeconfig = target.kubeconfig.display();
                    tracing::warn!(
                        "nodeEvents: no Event about the Node was written with {kubeconfig}: {error}"
                    );
                }
            }
        }
    }
}

/// Creates an Event, or brings the present one up to date.
async fn write(api: &Api, name: &str, event: &Value) -> Result<(), ApiError> {
    let created = api.create(&EVENT, Some(EVENT_NAMESPACE), event).await;
    match created {
        Err(ApiError::Refused(status)) if status.is_already_exists() => {
            let present = json!({
                "message": event.get("message"),
                "lastTimestamp": event.get("lastTimestamp"),
            });
            let namespace = Some(EVENT_NAMESPACE);
            api.merge(&EVENT, namespace, name, &present).await?;
        }
        created => {
            created?;
        }
    }
    Ok(())
}

/// Returns the Events about a step, by name: one for each certificate and reason, however often steps report it.
fn events(
    node: &str,
    report: &RunReport,
    policy_doubt: Option<&str>,
    now: OffsetDateTime,
) -> BTreeMap<String, Value> {
    let rows = report.rows.iter().filter_map(|row| {
        let reason = match row.action {
            RowAction::Refused | RowAction::Denied | RowAction::Failed => {
                "CertificateGenerationFailed"
            }
            RowAction::RolledBack => "ComponentRolledBack",
            RowAction::Pending => "CertificatePending",
            _ => return None,
        };
        let message = format!("{}: {}: {}", row.name, row.action, joined(&row.reasons));
        Some((reason, row.name.as_str(), message))
    });
    let policy = policy_doubt.map(|why| ("KeyPolicyUnknown", "", why.to_owned()));
    rows.chain(policy)
        .map(|(reason, certificate, message)| {
            let digest = hex(&Sha256::digest(format!("{node}/{reason}/{certificate}")));
            let name = format!("nodepki-node-{}", digest.get(..16).unwrap_or(&digest));
            // The kubelet's Events have the name in place of the UID too.
            let about = (node, node);
            let event = event::warning(&name, &NODE, about, reason, &message, now);
            (name, event)
        })
        .collect()
}
