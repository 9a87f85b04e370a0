//! The report on the certificates of this node, in an annotation of its Node, for `nodepki cluster status`.

use std::path::PathBuf;

use time::OffsetDateTime;

use super::load::{self, Loaded};
use super::{Failure, RunSetup};
use crate::cluster::api::Api;
use crate::cluster::node;
use crate::kube::names::CertName;
use crate::node::NodeState;
use crate::node::status::{self, NodeRole};
use crate::node::summary::{ANNOTATION, NodeSummary};
use crate::spec::NodeSpec;
use crate::spec::compliance::KeyUse;
use crate::store::NodeRoot;

/// A report, and the cluster that it is for.
pub struct NodeReport {
    api: Api,
    kubeconfig: PathBuf,
    node: String,
    source: ReportSource,
}

/// What a report is made from. The files are read for each comparison, since the kubelet may replace its certificate at any
/// time.
struct ReportSource {
    root: NodeRoot,
    plan: NodeSpec,
    /// The keys that were compared with the key policy.
    keys: Vec<KeyUse>,
    /// When each certificate is renewed.
    due: Vec<(CertName, Option<OffsetDateTime>)>,
}

/// Writes the report on the present state of the node, if the configuration wants one.
///
/// # Errors
/// See [`NodeReport::of`] and [`NodeReport::write`]; nothing else depends on it.
pub async fn write(root: &NodeRoot, loaded: &Loaded, now: OffsetDateTime) -> Result<(), Failure> {
    if let Some(report) = NodeReport::of(root, loaded, now)? {
        report.write(now).await?;
    }
    Ok(())
}

impl NodeReport {
    /// Returns the report on the node; `None` if the configuration wants none.
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
            source: ReportSource::of(root, &loaded.setup, now),
        }))
    }

    /// Writes the annotation for the state of the node at `now`, unless it says the same. Returns false if there is no such
    /// Node.
    ///
    /// # Errors
    /// Errors of the API server.
    pub async fn write(&self, now: OffsetDateTime) -> Result<bool, Failure> {
        let summary = self.source.summary(now);
        let text = summary.to_text();
        let is_current = |present: &str| summary.is_in(present);
        node::annotate(&self.api, &self.node, ANNOTATION, &text, is_current)
            .await
            .map_err(|error| {
                let (node, kubeconfig) = (&self.node, self.kubeconfig.display());
                let doing = format!("getting and patching Node {node} with {kubeconfig}");
                Failure::of_cluster(doing, error)
            })
    }
}

impl ReportSource {
    fn of(root: &NodeRoot, setup: &RunSetup, now: OffsetDateTime) -> ReportSource {
        // Without it, neither a renewal nor a verdict is known.
        let survey = setup.survey(root, now).ok();
        let certs = survey.iter().flat_map(|survey| &survey.certs);
        ReportSource {
            root: root.clone(),
            plan: setup.plan.clone(),
            due: certs.map(|cert| (cert.spec.name(), cert.due)).collect(),
            keys: survey.map_or_else(Vec::new, |survey| survey.key_uses()),
        }
    }

    fn summary(&self, now: OffsetDateTime) -> NodeSummary {
        let plan = &self.plan;
        let state = NodeState::new(&self.root, plan.layout.clone());
        let mut status = status::collect(&state, Some(NodeRole::from(plan)), Some(plan), now);
        status.judge_keys(&self.keys);
        let due = |name| self.due.iter().find(|(one, _)| *one == name)?.1;
        NodeSummary::of(&status, due)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use time::macros::datetime;

    use super::*;
    use crate::kube::kubeconfig::{Credentials, Kubeconfig};
    use crate::spec::Choices;
    use crate::spec::tests::{JOIN, cluster, planned};
    use crate::x509::{
        CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Subject,
    };

    const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

    /// No step follows if the kubelet replaces a certificate that is not in the plan.
    #[test]
    fn reports_present_certificate_of_kubelet() {
        let at = datetime!(2026-11-20 0:00 UTC);
        let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let ca = CertificateAuthority::self_signed("kubernetes", key(), at, 100 * DAY).unwrap();
        let profile = Profile::of_tests(
            Subject::new("system:node:cp2", &["system:nodes"]),
            &[ExtendedUsage::ClientAuth],
            7 * DAY,
        );
        let dir = tempfile::tempdir().unwrap();
        let kubernetes = dir.path().join("etc/kubernetes");
        fs::create_dir_all(kubernetes.join("pki")).unwrap();
        fs::write(kubernetes.join("pki/ca.crt"), ca.bundle().to_pem()).unwrap();
        let rotate = |at| {
            let key = key();
            let leaf = ca.issue(key.public_key(), &profile, at).unwrap();
            let credentials = Credentials {
                server: "https://192.0.2.11:6443",
                authority: &ca.bundle().to_pem(),
                certificate: &leaf.to_pem(),
                key: &key.to_pem(),
            };
            let kubeconfig = Kubeconfig::new("kubernetes", "user", &credentials);
            let path = kubernetes.join("kubelet.conf");
            fs::write(&path, kubeconfig.to_yaml()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let choices = Choices {
            kubelet_bootstraps_itself: true,
            ..Choices::default()
        };
        let plan = planned(
            JOIN,
            &cluster("controlPlaneEndpoint: api.example\n"),
            &choices,
        );
        assert!(plan.cert(CertName::KubeletConf).is_none());
        let source = ReportSource {
            root: NodeRoot::open(dir.path()).unwrap(),
            plan,
            keys: Vec::new(),
            due: Vec::new(),
        };
        let end = |now| {
            let summary = source.summary(now);
            let mut rows = summary.certificates.iter();
            let row = rows.find(|row| row.name == "kubelet.conf").unwrap();
            assert_eq!(row.state_at(now), "ok");
            row.not_after.unwrap()
        };
        rotate(at);
        assert_eq!(end(at), at + 7 * DAY);
        let later = at + 5 * DAY;
        rotate(later);
        assert_eq!(end(at + 8 * DAY), later + 7 * DAY);
    }
}
