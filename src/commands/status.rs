//! `nodepki status`.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;

use super::options::{GlobalOptions, OutputFormat, node_directory};
use super::output::{
    Closing, DocumentKind, next, print, print_exact, print_json, print_message, print_unfinished,
    text_style,
};
use super::renew::unknown_name;
use super::{now, or_machine_fault};
use crate::agent::load::{self, LoadInputs};
use crate::agent::{ExitCode, Failure, Survey};
use crate::config::Argument;
use crate::daemon::metrics;
use crate::kube::names::{Authority, CertName};
use crate::node::NodeState;
use crate::node::status::{
    self, CertificateDetail, NodeRole, NodeStatus, RowState, RowSubject, StatusRow,
};
use crate::spec::NodeSpec;
use crate::store::{NodeRoot, Slot};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Only this certificate, in full: content, authority, files, renewal, and its entries of the issuance log
    #[arg(value_name = "CERTIFICATE", conflicts_with = "kubeadm")]
    certificate: Option<String>,
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
        let (state, mut signers) = (described.state.clone(), described.signers.clone());
        // Without a usable configuration neither the plan nor a key policy is known.
        let loaded = described.load(&root, &inputs, now()).ok();
        let plan = loaded.as_ref().map(|loaded| &loaded.setup.plan);
        let mut status = status::collect(&state, role, plan, now());
        let mut found = None;
        // An empty node has no keys.
        if status.role != NodeRole::Empty
            && let Some(loaded) = &loaded
            && let Ok(survey) = loaded.setup.survey_of(&state, now())
        {
            status.judge_keys(&survey.key_uses());
            found = Some(survey);
        }
        if let Some(name) = &self.certificate {
            let name = require_row(&status, name)?;
            status.retain_certificate(name);
            signers.retain(|authority, _| *authority == name.authority());
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
                let closing = closing(&state, &status, plan, self.certificate.is_some());
                let text = || match format {
                    OutputFormat::Tree => status::tree(&status, text_style()),
                    OutputFormat::Table if self.certificate.is_some() => {
                        detail(&root, &status, &signers, found.as_ref())
                    }
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

/// Returns the certificate of this name, which must have a row.
fn require_row(status: &NodeStatus, name: &str) -> Result<CertName, Failure> {
    let mut rows = status.certificates.iter().map(|row| row.name);
    if let Some(found) = rows.find(|one| one.as_str() == name) {
        return Ok(found);
    }
    let is_always_defined = |name: &str| CertName::ALL.iter().any(|one| one.as_str() == name);
    let rows = status.certificates.iter().map(|row| row.name.as_str());
    let mut known: Vec<&str> = rows.collect();
    if !is_always_defined(name) {
        known.retain(|one| !is_always_defined(one));
        return Err(unknown_name(name, &known));
    }
    let fix = match known.as_slice() {
        [] => "nodepki status shows what it has".to_owned(),
        known => format!("use one of {}", known.join(", ")),
    };
    let message = format!("{name}: this node does not have such a certificate ({fix})");
    Err(Failure::usage(message))
}

/// Returns the text for the only certificate of the status.
fn detail(
    root: &NodeRoot,
    status: &NodeStatus,
    signers: &BTreeMap<Authority, String>,
    survey: Option<&Survey>,
) -> String {
    let Some(row) = status.certificates.first() else {
        return String::new();
    };
    let mut entries = Vec::new();
    // `audit verify` reports a log that cannot be read.
    let _ = root.verify_audit(None, |entry, _| {
        if entry.text("certificate") == Some(row.name.as_str()) {
            entries.push(entry);
        }
    });
    let surveyed = survey.and_then(|survey| {
        let mut certs = survey.certs.iter();
        certs.find(|cert| cert.spec.name() == row.name)
    });
    let detail = CertificateDetail {
        row,
        authority: status.authority(row.authority),
        signer: signers.get(&row.authority).map(String::as_str),
        pending: status.pending.first(),
        due: surveyed.and_then(|cert| cert.due),
        entries: &entries,
    };
    detail.text(text_style())
}

/// The body of the document.
#[derive(Serialize)]
pub(super) struct StatusBody<'a> {
    #[serde(flatten)]
    pub(super) status: &'a NodeStatus,
    /// The configured signer of each authority.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) signers: &'a BTreeMap<Authority, String>,
}

/// Returns the number of objects in each state, and the command that explains or repairs the gravest one.
fn closing(
    state: &NodeState,
    status: &NodeStatus,
    plan: Option<&NodeSpec>,
    is_one: bool,
) -> Closing {
    let mut rows = status.rows();
    // The authority of one certificate is part of its description.
    rows.retain(|row| !is_one || matches!(row.subject, RowSubject::Certificate(_)));
    let mut closing = Closing::default().or_nothing("no certificates");
    for state in RowState::ALL.into_iter().rev() {
        let count = rows.iter().filter(|row| row.state == state).count();
        closing = closing.count(count, state.as_str(), state.as_str());
    }
    // An unreadable record is reported in the notes.
    let tickets = state.tickets().unwrap_or_default();
    let is_shown = |slot: &Slot| status.pending.iter().any(|row| row.name == slot.as_str());
    let shown = tickets.iter().filter(|(slot, _)| is_shown(slot));
    let import = next::after_export(
        state.root(),
        shown.map(|(_, record)| record.as_ref()),
        false,
        |command| format!("nodepki {command}"),
    );
    let is_renewed = |row: &StatusRow<'_>| match row.subject {
        RowSubject::Certificate(name) => {
            row.state == RowState::Expiring
                && plan.is_none_or(|plan| plan.cert(name).is_some())
                && !status.ends_with_authority(name)
        }
        RowSubject::Authority(_) | RowSubject::ServiceAccount => false,
    };
    let command = match status.worst() {
        RowState::Ok => None,
        RowState::Missing | RowState::Expiring | RowState::Expired if import.is_some() => {
            return closing.then(import);
        }
        _ if status.role == NodeRole::Empty => Some("plan"),
        RowState::Missing if !status.pending.is_empty() => Some("bootstrap"),
        RowState::Missing if status.sign_of_service.is_none() => Some("plan"),
        RowState::Expiring if rows.iter().any(is_renewed) => Some("renew"),
        _ => Some("doctor"),
    };
    closing.then(command.map(|command| format!("nodepki {command}")))
}
