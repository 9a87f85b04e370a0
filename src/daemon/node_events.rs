//! Events about the Node, which `kubectl describe node` prints: certificates that a step did not issue, and a key policy that
//! is not known. They are written beside the rotation loop, which never waits for the cluster.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use tokio::sync::Notify;

use crate::agent::load::{self, Loaded};
use crate::agent::{Failure, RowAction, RunReport};
use crate::cluster::api::{Api, ApiError, Resource};
use crate::cluster::event::{self, EVENT, EVENT_NAMESPACE};
use crate::config::NodeEventSettings;
use crate::spec::assess::joined;
use crate::store::NodeRoot;
use crate::text::hex;

const NODE: Resource = Resource {
    group: "",
    version: "v1",
    plural: "nodes",
    kind: "Node",
};

/// Events that are to be written with the configuration in force.
#[derive(Default)]
pub(super) struct NodeEvents {
    settings: RefCell<NodeEventSettings>,
    api: RefCell<Option<Rc<Api>>>,
    /// By name: of what lasts, only the last message is written.
    unwritten: RefCell<BTreeMap<String, Value>>,
    added: Notify,
}

impl NodeEvents {
    /// Replaces the configuration.
    ///
    /// # Errors
    /// A kubeconfig that cannot be used; the former configuration stays in force.
    pub(super) fn put_in_force(
        &self,
        root: &NodeRoot,
        settings: &NodeEventSettings,
    ) -> Result<(), Failure> {
        if *self.settings.borrow() == *settings {
            return Ok(());
        }
        let api = if settings.enabled {
            Some(load::cluster(root, settings.kubeconfig.as_path())?)
        } else {
            None
        };
        self.api.replace(api.map(Rc::new));
        self.settings.replace(settings.clone());
        Ok(())
    }

    /// Has the Events about a step written, unless the configuration is off.
    pub(super) fn report(&self, loaded: &Loaded, report: &RunReport, now: OffsetDateTime) {
        if self.api.borrow().is_none() {
            return;
        }
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
            let Some(api) = self.api.borrow().clone() else {
                continue;
            };
            for (name, event) in self.unwritten.take() {
                if let Err(error) = write(&api, &name, &event).await {
                    tracing::info!("no Event about the Node was written: {error}");
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
