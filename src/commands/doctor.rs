//! `nodepki doctor`.

pub mod checks;

use std::path::PathBuf;

use clap::Args;

use super::{Global, Output, Run, Sources, print, runtime};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use checks::{CHECKS, Inputs};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Ask this kubeconfig's cluster what only it can tell: role bindings, service-account keys
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// Certificates directory, instead of the configured one or kubeadm's default
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
    /// Print everything that is looked for, and what it means
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    sources: Sources,
}

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        if self.list {
            return match global.output {
                Output::Table | Output::Tree => print(&checks::list()),
                _ => global.print_value(&CHECKS, global.output),
            };
        }
        let inputs = Inputs {
            sources: Run::of(self.sources).inputs(global)?,
            certificates_dir: self.cert_dir,
            kubeconfig: self.kubeconfig,
        };
        let root = global.open_root()?;
        let diagnosis = runtime()?.block_on(checks::diagnose(&root, &inputs, super::now()));
        match global.output {
            Output::Table | Output::Tree => print(&checks::table(&diagnosis))?,
            _ => global.print_value(&diagnosis, global.output)?,
        };
        let code = match diagnosis.is_ill() {
            true => ExitCode::Refused,
            false => ExitCode::Done,
        };
        Ok(super::judged_from(&root, code))
    }
}
