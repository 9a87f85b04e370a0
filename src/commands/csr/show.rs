//! `nodepki csr show`.

use clap::Args;

use super::super::now;
use super::super::options::{GlobalOptions, SourceOptions};
use super::super::output::text_style;
use super::super::renew::planned_name;
use crate::agent::{ExitCode, Failure};
use crate::signer::wire::{SignRequest, profile_line};
use crate::signer::{Config, Request};
use crate::table::{Cell, Table};
use crate::x509::Csr;

#[derive(Debug, Args)]
pub(in super::super) struct ShowArgs {
    /// kubeadm's name of the certificate, for example apiserver
    #[arg(value_name = "CERTIFICATE")]
    certificate: String,
    #[command(flatten)]
    sources: SourceOptions,
}

impl ShowArgs {
    /// Prints the recorded request of a certificate.
    pub(in super::super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let loaded = global.load_running(&self.sources.inputs(global)?)?;
        let name = planned_name(&self.certificate, &loaded)?;
        let refused = |problem: &str| {
            Failure::refused(format!(
                "{name}: {problem} (nodepki csr export DIR records the requests of certificates that are due, and sends nothing)"
            ))
        };
        let Some(recorded) = root.recorded_request(name.into())? else {
            return Err(refused("no request is recorded"));
        };
        let setup = &loaded.setup;
        let wanted = setup.plan.cert(name).map(|spec| spec.requested.clone());
        let csr = Csr::from_pem(&recorded.csr_pem).ok();
        let matching = csr
            .zip(wanted)
            .filter(|(csr, wanted)| csr.matches(&wanted.profile));
        let Some((csr, wanted)) = matching else {
            return Err(refused(
                "the recorded request is damaged or differs from the configuration",
            ));
        };
        let profile = profile_line(&wanted.profile);
        let signer = loaded.settings.signer_of(wanted.authority);
        let request = Request::new(wanted, csr, setup.identity.clone(), now());
        let mut document = SignRequest::lasting(&request);
        if let Some((_, Config::Exec(config))) = signer {
            document.params.clone_from(&config.params);
        }
        // The id of a request with an unchanged key also depends on the certificate that it replaces.
        if let Some(ticket) = recorded.ticket {
            document.request_id = ticket.request_id;
        }
        global.print_either(&document, || {
            let mut table = Table::untitled().wrapping_last();
            for (label, value) in [
                ("certificate", name.as_str()),
                ("authority", document.ca.as_str()),
                ("request", &document.request_id),
                ("profile", &profile),
                ("CSR SHA-256", &document.csr_sha256),
                ("key SHA-256", &document.spki_sha256),
            ] {
                table.push(vec![Cell::new(label), Cell::new(value)], Vec::new());
            }
            format!("{}{}", table.render(text_style()), document.csr_pem)
        })
    }
}
