//! `nodepki cluster status`.

use clap::{Args, Subcommand};
use serde::Serialize;
use time::OffsetDateTime;

use super::options::{GlobalOptions, OutputFormat};
use super::output::{Closing, DocumentKind, print_exact, table};
use super::{now, runtime};
use crate::agent::load::{self, KubeconfigFile};
use crate::agent::{ExitCode, Failure};
use crate::cluster::node::{self, ListedNode};
use crate::config::{Argument, MAIN_FILE};
use crate::daemon::metrics;
use crate::node::status::{RowState, human_duration};
use crate::node::summary::{ANNOTATION, CertificateSummary, NodeSummary};
use crate::spec::compliance::KeyVerdict;
use crate::text::rfc3339;

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Show the certificates of all nodes, with the time that is left and the next renewal
    ///
    /// Reads what the nodes with nodeReport.enabled have written to their Nodes, in a list of all Nodes, and names the nodes
    /// that have not reported. overdue: the node has not renewed the certificate an hour after it was due.
    /// Exit status: 0, also if a certificate has expired.
    Status(ClusterStatusArgs),
}

#[derive(Debug, Args)]
pub(super) struct ClusterStatusArgs {
    /// Kubeconfig that may list Nodes [default: /etc/kubernetes/admin.conf]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
}

/// A node in the output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportedNode {
    node: String,
    control_plane: bool,
    #[serde(flatten)]
    report: Option<ReportedCertificates>,
    /// Why there is no report.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// What a node has reported.
#[derive(Debug, Serialize)]
struct ReportedCertificates {
    version: String,
    #[serde(with = "time::serde::rfc3339")]
    reported: OffsetDateTime,
    certificates: Vec<ReportedCertificate>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportedCertificate {
    /// With the state now, which follows from the report and the time.
    #[serde(flatten)]
    certificate: CertificateSummary,
    reported_state: String,
}

#[derive(Serialize)]
struct ClusterBody<'a> {
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
    nodes: &'a [ReportedNode],
}

impl ClusterCommand {
    pub(super) fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let ClusterCommand::Status(arguments) = self;
        let kubeconfig = KubeconfigFile::of_admin(arguments.kubeconfig.as_ref());
        let api = load::cluster(&global.open_root()?, kubeconfig)?;
        let nodes = runtime()?
            .block_on(node::list(&api))
            .map_err(|error| Failure::of_cluster("listing the Nodes".to_owned(), error))?;
        let mut nodes: Vec<_> = nodes.iter().map(|node| (node, read(node))).collect();
        nodes.sort_by_key(|(node, _)| (!node.is_control_plane(), node.name()));
        if global.output == OutputFormat::Prometheus {
            let reports = nodes
                .iter()
                .map(|(node, read)| (node.name(), read.as_ref().ok()));
            return print_exact(&metrics::of_cluster(reports));
        }
        let at = now();
        let nodes = nodes.into_iter();
        let nodes = nodes.map(|(node, read)| ReportedNode::of(node, read, at));
        let nodes: Vec<ReportedNode> = nodes.collect();
        let body = ClusterBody { at, nodes: &nodes };
        let (kind, code) = (DocumentKind::ClusterStatus, ExitCode::Done);
        let closing = closing(&nodes);
        global.print_document(kind, code, &closing, &body, || render(&nodes, at) + "\n")
    }
}

/// Reads the report of a node. The error says why there is none, and what to do.
fn read(node: &ListedNode) -> Result<NodeSummary, String> {
    let Some(text) = node.annotation(ANNOTATION) else {
        return Err(format!(
            "it has not reported; if it runs nodepki, add `nodeReport: {{enabled: true}}` to its {MAIN_FILE} and run \
             `nodepki renew` there"
        ));
    };
    NodeSummary::parse(text).map_err(|error| {
        format!(
            "its annotation {ANNOTATION} cannot be used: {error}; run `nodepki renew` on it to replace it"
        )
    })
}

impl ReportedNode {
    fn of(node: &ListedNode, read: Result<NodeSummary, String>, at: OffsetDateTime) -> Self {
        let (report, problem) = match read {
            Ok(summary) => (Some(ReportedCertificates::of(summary, at)), None),
            Err(problem) => (None, Some(problem)),
        };
        ReportedNode {
            node: node.name().to_owned(),
            control_plane: node.is_control_plane(),
            report,
            problem,
        }
    }

    fn certificates(&self) -> impl Iterator<Item = &CertificateSummary> {
        let certificates = self.report.iter().flat_map(|report| &report.certificates);
        certificates.map(|one| &one.certificate)
    }
}

impl ReportedCertificates {
    fn of(summary: NodeSummary, at: OffsetDateTime) -> Self {
        let certificates = summary.certificates.into_iter().map(|mut certificate| {
            let state = certificate.state_at(at).to_owned();
            let reported_state = std::mem::replace(&mut certificate.state, state);
            ReportedCertificate {
                certificate,
                reported_state,
            }
        });
        ReportedCertificates {
            version: summary.version,
            reported: summary.reported,
            certificates: certificates.collect(),
        }
    }
}

/// Returns the numbers of certificates, and of nodes without a report.
fn closing(nodes: &[ReportedNode]) -> Closing {
    let certificates = nodes.iter().flat_map(ReportedNode::certificates);
    let is_ok = certificates.map(|one| one.state == RowState::Ok.as_str());
    let (ok, others): (Vec<bool>, Vec<bool>) = is_ok.partition(|is_ok| *is_ok);
    let silent = nodes.iter().filter(|node| node.problem.is_some()).count();
    Closing::default()
        .or_nothing("no nodes")
        .count(others.len(), "notOk", "not ok")
        .count(ok.len(), "ok", "ok")
        .count(silent, "notReported", "without a report")
}

fn render(nodes: &[ReportedNode], at: OffsetDateTime) -> String {
    let rows = nodes.iter().flat_map(|node| {
        let certificates = node.certificates().map(|one| {
            let left = one.not_after.map(|end| (end - at).whole_seconds().max(0));
            let left = left.map(human_duration);
            let cells = vec![
                node.node.clone(),
                one.name.clone(),
                one.authority.clone().unwrap_or_else(|| "-".to_owned()),
                left.unwrap_or_else(|| "-".to_owned()),
                one.renewal.map_or_else(|| "-".to_owned(), rfc3339),
                one.state.clone(),
            ];
            let key = one.key_policy.as_ref();
            let key = key.filter(|verdict| *verdict == KeyVerdict::NotCompliant.as_str());
            let notes = key.map(|verdict| format!("key policy: {verdict}"));
            (cells, notes.into_iter().collect())
        });
        let problem = node.problem.iter().map(|problem| {
            let cells = [&node.node, "-", "-", "-", "-", "-"].map(str::to_owned);
            (cells.to_vec(), vec![problem.clone()])
        });
        certificates.chain(problem).collect::<Vec<_>>()
    });
    let titles = [
        "NODE",
        "CERTIFICATE",
        "AUTHORITY",
        "LEFT",
        "RENEWAL",
        "STATE",
    ];
    table::aligned(&titles, rows.collect())
}
