//! The report on the certificates of this node, in an annotation of its Node, for `nodepki cluster status`.

use std::path::PathBuf;

use time::OffsetDateTime;

use super::load::{self, Loaded};
use super::{Failure, RunSetup};
use crate::cluster::api::Api;
use crate::cluster::node;
use crate::node::NodeState;
use crate::node::status::{self, NodeRole};
use crate::node::summary::{ANNOTATION, NodeSummary};
use crate::store::NodeRoot;

/// A report, and the cluster that it is for.
pub struct NodeReport {
    api: Api,
    kubeconfig: PathBuf,
    node: String,
    summary: NodeSummary,
}

/// Writes the report on the present state of the node, if the configuration wants one.
///
/// # Errors
/// See [`NodeReport::of`] and [`NodeReport::write`]; nothing else depends on it.
pub async fn write(root: &NodeRoot, loaded: &Loaded, now: OffsetDateTime) -> Result<(), Failure> {
    if let Some(report) = NodeReport::of(root, loaded, now)? {
        report.write().await?;
    }
    Ok(())
}

impl NodeReport {
    /// Returns the report on the present state of the node; `None` if the configuration wants none.
    ///
    /// # Errors
    /// A kubeconfig that cannot be used.
    pub fn of(
        root: &NodeRoot,
        loaded: &Loaded,
        now: OffsetDateTime,
    ) -> Result<Option<NodeReport>, Failure> {
        let settings = &loaded.settings.node_report;
        if !settings.enabled {
            return Ok(None);
        }
        Ok(Some(NodeReport {
            api: load::cluster(root, settings.kubeconfig.as_path())?,
            kubeconfig: settings.kubeconfig.clone(),
            node: loaded.setup.identity.node.clone(),
            summary: summary(root, &loaded.setup, now),
        }))
    }

    /// Writes the annotation, unless it says the same. Returns false if there is no such Node.
    ///
    /// # Errors
    /// Errors of the API server.
    pub async fn write(&self) -> Result<bool, Failure> {
        let text = self.summary.to_text();
        let is_current = |present: &str| self.summary.is_in(present);
        node::annotate(&self.api, &self.node, ANNOTATION, &text, is_current)
            .await
            .map_err(|error| {
                let (node, kubeconfig) = (&self.node, self.kubeconfig.display());
                let doing = format!("getting and patching Node {node} with {kubeconfig}");
                Failure::of_cluster(doing, error)
            })
    }
}

fn summary(root: &NodeRoot, setup: &RunSetup, now: OffsetDateTime) -> NodeSummary {
    let state = NodeState::new(root, setup.plan.layout.clone());
    let mut status = status::collect(
        &state,
        Some(NodeRole::from(&setup.plan)),
        Some(&setup.plan),
        now,
    );
    // Without it, neither a renewal nor a verdict is known.
    let survey = setup.survey_of(&state, now).ok();
    if let Some(survey) = &survey {
        status.judge_keys(&survey.key_uses());
    }
    let certs = survey.iter().flat_map(|survey| &survey.certs);
    let due: Vec<_> = certs.map(|cert| (cert.spec.name(), cert.due)).collect();
    NodeSummary::of(&status, |name| due.iter().find(|(one, _)| *one == name)?.1)
}
