//! `nodepki status`.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;

use super::options::{GlobalOptions, OutputFormat, node_directory};
use super::output::{
    Closing, DocumentKind, next, print, print_exact, print_json, print_message, print_unfinished,
    text_style,
};
use super::{now, or_machine_fault};
use crate::agent::load::{self, LoadInputs};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::daemon::metrics;
use crate::kube::names::Authority;
use crate::node::status::{self, NodeRole, NodeStatus, RowState};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Print kubeadm's own expiry report: its table, or its CertificateExpirationInfo with -o json or yaml
    #[arg(long)]
    kubeadm: bool,
    /// Certificates directory [default: that of the configuration, or /etc/kubernetes/pki]
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<Argument>,
}

impl StatusArgs {
    pub(super) fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let inputs = LoadInputs {
            config: global.config.clone(),
            ..LoadInputs::default()
        };
        let certificates = node_directory(&root, "--cert-dir", self.cert_dir.as_ref())?;
        let described = load::described(&root, &inputs, certificates);
        let role = described.role.map(NodeRole::from);
        let (state, signers) = (described.state.clone(), described.signers.clone());
        let mut status = status::collect(&state, role, now());
        // Without a usable configuration no key policy is known, and an empty node has no keys.
        if status.role != NodeRole::Empty
            && let Ok(loaded) = described.load(&root, &inputs, now())
            && let Ok(survey) = loaded.setup.survey_of(&state, now())
        {
            status.judge_keys(&survey.key_uses());
        }
        print_unfinished(&root);
        let printed = match (global.output, self.kubeadm) {
            (OutputFormat::Prometheus, _) => print_exact(&metrics::of_status(&root, &status)),
            (format, true) => {
                for note in status::kubeadm_notes(&status) {
                    print_message(&note);
                }
                match format {
                    OutputFormat::Json => print_json(&status::kubeadm_json(&status)),
                    OutputFormat::Yaml => print_exact(&status::kubeadm_yaml(&status)),
                    _ => print(&status::kubeadm_table(&status)),
                }
            }
            (format, false) => {
                let code = match root.machine_fault() {
                    Some(_) => ExitCode::Pending,
                    None => ExitCode::Done,
                };
                let closing = closing(global, &status);
                let text = || match format {
                    OutputFormat::Tree => status::tree(&status, text_style()),
                    _ => status::table(&status, &signers, text_style()),
                };
                let body = StatusBody {
                    status: &status,
                    signers: &signers,
                };
                let text = || match text() {
                    text if text.is_empty() => text,
                    text => text + "\n",
                };
                global.print_document(DocumentKind::Status, code, &closing, &body, text)
            }
        };
        printed.map(|_| or_machine_fault(&root, ExitCode::Done))
    }
}

/// The body of the document.
#[derive(Serialize)]
struct StatusBody<'a> {
    #[serde(flatten)]
    status: &'a NodeStatus,
    /// The configured signer of each authority.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    signers: &'a BTreeMap<Authority, String>,
}

/// Returns the number of objects in each state, and the command that explains or repairs the gravest one.
fn closing(global: &GlobalOptions, status: &NodeStatus) -> Closing {
    let rows = status.rows();
    let mut closing = Closing::default().or_nothing("no certificates");
    for state in RowState::ALL.into_iter().rev() {
        let count = rows.iter().filter(|row| row.state == state).count();
        closing = closing.count(count, state.as_str(), state.as_str());
    }
    let command = match status.worst() {
        RowState::Ok => None,
        _ if status.role == NodeRole::Empty => Some("plan"),
        RowState::Missing if !status.pending.is_empty() => Some("bootstrap"),
        RowState::Missing if !status.has_served => Some("plan"),
        RowState::Expiring => Some("renew"),
        _ => Some("doctor"),
    };
    closing.then(command.map(|command| next::nodepki(global, command)))
}
