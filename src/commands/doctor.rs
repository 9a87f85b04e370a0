//! `nodepki doctor`.

pub mod checks;

use std::path::PathBuf;

use clap::Args;

use super::options::{GlobalOptions, SourceOptions};
use super::{now, or_machine_fault, runtime};
use crate::agent::load::{LoadInputs, SignerState};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use checks::{CHECKS, DiagnosisInputs};

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Kubeconfig of the cluster, for checks that need it: role bindings, service-account keys
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// Certificates directory, instead of the configured one or kubeadm's default
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
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
            return global.print_either(&CHECKS, checks::list);
        }
        let inputs = DiagnosisInputs {
            online: self.online,
            sources: LoadInputs {
                signer_state: SignerState::Discarded,
                ..self.sources.inputs(global)?
            },
            certificates_dir: self.cert_dir,
            kubeconfig: self.kubeconfig,
        };
        let root = global.open_root()?;
        let diagnosis = runtime()?.block_on(checks::diagnose(&root, &inputs, now()));
        global.print_either(&diagnosis, || checks::table(&diagnosis))?;
        let code = match diagnosis.has_errors() {
            true => ExitCode::Refused,
            false => ExitCode::Done,
        };
        Ok(or_machine_fault(&root, code))
    }
}
