//! The report on the certificates of this node, in an annotation of its Node. It is written beside the rotation loop, which
//! never waits for the cluster.

use std::cell::RefCell;
use std::convert::Infallible;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::metrics;
use crate::agent::load::{self, Loaded};
use crate::cluster::api::{Api, ApiError};
use crate::cluster::node;
use crate::node::NodeState;
use crate::node::status;
use crate::node::summary::{ANNOTATION, NodeSummary};
use crate::store::NodeRoot;

/// Interval at which the Node is compared: it may have been deleted and created again.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Wait after a failure, and for a Node that does not exist yet.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The report that is to be in the cluster.
#[derive(Default)]
pub(super) struct NodeReport {
    current: RefCell<Option<Rc<Publication>>>,
    replaced: Notify,
}

struct Publication {
    api: Api,
    kubeconfig: PathBuf,
    node: String,
    summary: NodeSummary,
}

impl NodeReport {
    /// Has the state of the node written after a step, if the configuration of the step says so.
    ///
    /// A kubeconfig that cannot be used is reported; the rotation goes on, and the next step tries again.
    pub(super) fn publish(&self, root: &NodeRoot, loaded: &Loaded, now: OffsetDateTime) {
        let settings = &loaded.settings.node_report;
        let current = if settings.enabled {
            match load::cluster(root, settings.kubeconfig.as_path()) {
                Ok(api) => Some(Rc::new(Publication {
                    api,
                    kubeconfig: settings.kubeconfig.clone(),
                    node: loaded.setup.identity.node.clone(),
                    summary: summary(root, loaded, now),
                })),
                Err(failure) => {
                    tracing::warn!("nodeReport: {failure}");
                    return;
                }
            }
        } else {
            None
        };
        self.current.replace(current);
        self.replaced.notify_one();
    }

    /// Writes the report whenever it is replaced, until it is dropped. A failure is retried.
    pub(super) async fn run(&self) -> Infallible {
        loop {
            let Some(publication) = self.current.borrow().clone() else {
                self.replaced.notified().await;
                continue;
            };
            let wait = match publication.write().await {
                Ok(true) => COMPARE_INTERVAL,
                Ok(false) => RETRY_INTERVAL,
                Err(error) => {
                    let kubeconfig = publication.kubeconfig.display();
                    tracing::warn!(
                        "nodeReport: the Node was not changed with {kubeconfig}: {error}"
                    );
                    RETRY_INTERVAL
                }
            };
            tokio::select! {
                () = self.replaced.notified() => {}
                () = sleep(wait) => {}
            }
        }
    }
}

impl Publication {
    /// Writes the annotation, unless it says the same. Returns false if there is no such Node.
    async fn write(&self) -> Result<bool, ApiError> {
        let text = self.summary.to_text();
        node::annotate(&self.api, &self.node, ANNOTATION, &text, |present| {
            self.summary.is_in(present)
        })
        .await
    }
}

fn summary(root: &NodeRoot, loaded: &Loaded, now: OffsetDateTime) -> NodeSummary {
    let setup = &loaded.setup;
    let state = NodeState::new(root, setup.plan.layout.clone());
    let mut status = status::collect(&state, Some(metrics::role(setup)), now);
    // Without it, neither a renewal nor a verdict is known.
    let survey = setup.survey_of(&state, now).ok();
    if let Some(survey) = &survey {
        status.judge_keys(&survey.key_uses());
    }
    let certs = survey.iter().flat_map(|survey| &survey.certs);
    let due: Vec<_> = certs.map(|cert| (cert.spec.name(), cert.due)).collect();
    NodeSummary::of(&status, |name| due.iter().find(|(one, _)| *one == name)?.1)
}
