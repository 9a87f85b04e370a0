//! `nodepki status`.

use std::io::stdout;
use std::path::PathBuf;

use clap::Args;

use super::options::{GlobalOptions, OutputFormat};
use super::output::{has_colour, print, print_exact, print_json, print_message, print_unfinished};
use super::{now, or_machine_fault};
use crate::agent::load::{self, LoadInputs};
use crate::agent::{ExitCode, Failure};
use crate::daemon::metrics;
use crate::node::status;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Print kubeadm's own expiry report: its table, or its CertificateExpirationInfo with -o json or yaml
    #[arg(long)]
    kubeadm: bool,
    /// Certificates directory [default: that of the configuration, or /etc/kubernetes/pki]
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
}

impl StatusArgs {
    pub(super) fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let inputs = LoadInputs {
            config: global.config.clone(),
            ..LoadInputs::default()
        };
        let described = load::described(&root, &inputs, self.cert_dir.clone());
        let role = described.role.map(status::NodeRole::from);
        let status = status::collect(&described.state, role, now());
        let colour = has_colour(&stdout());
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
            (OutputFormat::Tree, false) => print(&status::tree(&status, colour)),
            (OutputFormat::Json, false) => print_json(&status::json(&status)),
            (OutputFormat::Yaml, false) => print_exact(&status::yaml(&status)),
            (OutputFormat::Table, false) => print(&status::table(&status, colour)),
        };
        printed.map(|_| or_machine_fault(&root, ExitCode::Done))
    }
}
