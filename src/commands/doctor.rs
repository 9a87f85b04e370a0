//! `nodepki doctor`.

pub mod checks;

use clap::Args;

use super::options::{GlobalOptions, SourceOptions, node_directory};
use super::output::{Closing, DocumentKind, ListBody, plural, text_style};
use super::{now, or_machine_fault, runtime};
use crate::agent::load::{LoadInputs, SignerState};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use checks::{CHECKS, Diagnosis, DiagnosisInputs, FindingSeverity};

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Kubeconfig of the cluster, for checks that need it: role bindings, service-account keys
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// Certificates directory, instead of the configured one or kubeadm's default
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<Argument>,
    /// Log in to every signer, and check its CA and what it may sign for this node; requests no certificate
    #[arg(long)]
    online: bool,
    /// Print all checks and their meaning
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    sources: SourceOptions,
}

impl DoctorArgs {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        if self.list {
            let list = ListBody { items: CHECKS };
            let (kind, code) = (DocumentKind::DoctorChecks, ExitCode::Done);
            return global.print_body(kind, code, &list, checks::list);
        }
        let command = self.sources.command(global, "doctor");
        let root = global.open_root()?;
        let inputs = DiagnosisInputs {
            online: self.online,
            sources: LoadInputs {
                signer_state: SignerState::Discarded,
                ..self.sources.inputs(global)?
            },
            certificates_dir: node_directory(&root, "--cert-dir", self.cert_dir.as_ref())?,
            kubeconfig: self.kubeconfig,
        };
        let diagnosis = runtime()?.block_on(checks::diagnose(&root, &inputs, now()));
        let code = match (diagnosis.has_errors(), root.machine_fault()) {
            (_, Some(_)) => ExitCode::Pending,
            (true, None) => ExitCode::Refused,
            (false, None) => ExitCode::Done,
        };
        let closing = closing(&diagnosis, &command);
        global.print_document(DocumentKind::Doctor, code, &closing, &diagnosis, || {
            checks::table(&diagnosis, text_style())
        })?;
        Ok(or_machine_fault(&root, code))
    }
}

/// Returns the number of findings of each severity, and what to do.
fn closing(diagnosis: &Diagnosis, command: &str) -> Closing {
    let count = |severity| {
        let findings = diagnosis.findings.iter();
        findings
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let (errors, warnings) = (
        count(FindingSeverity::Error),
        count(FindingSeverity::Warning),
    );
    let next = match (errors, warnings) {
        (0, 0) => None,
        (0, _) => Some("read the warnings".to_owned()),
        _ => Some(format!("apply the fixes from the top, then run {command}")),
    };
    Closing::default()
        .or_nothing("no findings")
        .count(errors, "error", plural(errors, "error"))
        .count(warnings, "warning", plural(warnings, "warning"))
        .count(count(FindingSeverity::Info), "info", "info")
        .then(next)
}
