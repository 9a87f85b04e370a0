//! `nodepki migrate to-external` and `nodepki migrate to-internal`: remove the CA keys from a node, and restore them.
//!
//! Neither changes a certificate or a manifest, and both only report without `--apply`. To add a requirement, add an entry
//! to [`MigrationReport::unproven`]; all entries are reported together.

pub(super) mod backup;
pub(super) mod report;
pub(super) mod to_external;
mod to_internal;

use std::fmt::Display;

use clap::{Args, Subcommand};

use super::options::{GlobalOptions, RunOptions, SourceOptions};
use super::output::terminal::Terminal;
use super::output::{Closing, DocumentKind, print_message};
use super::{now, runtime};
use crate::agent::load::{self, certs::KeySource};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::store::NodeRoot;
use backup::{Backup, Passphrase};
use report::{Direction, KeyAction, MigrationReport};
use to_external::ToExternal;
use to_internal::ToInternal;

#[derive(Debug, Subcommand)]
pub(super) enum MigrateCommand {
    /// Prove that the node does not need its CA keys any more; with --apply, back them up and remove them
    ///
    /// Everything in place must verify, and the external signer of each authority must have the same CA and sign a
    /// certificate, which is discarded. All missing proofs are reported together, and nothing is removed then (65).
    ToExternal {
        #[command(flatten)]
        run: RunOptions,
        #[command(flatten)]
        what: MigrationArgs,
        /// File for the encrypted keys; created, never overwritten
        #[arg(long, value_name = "FILE", requires = "passphrase")]
        backup: Option<Argument>,
        #[command(flatten)]
        passphrase: PassphraseArgs,
        /// Do not have the signers sign a certificate as proof
        #[arg(long)]
        skip_signing_proof: bool,
    },
    /// Check that CA keys from a backup belong to the certificates on the node; with --apply, restore them
    ToInternal {
        #[command(flatten)]
        sources: SourceOptions,
        #[command(flatten)]
        what: MigrationArgs,
        /// File with encrypted keys; may be repeated
        #[arg(long, value_name = "FILE", required = true, requires = "passphrase")]
        backup: Vec<Argument>,
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct MigrationArgs {
    /// Only this authority: ca, front-proxy-ca or etcd-ca; may be repeated
    #[arg(long, value_name = "NAME")]
    authority: Vec<Authority>,
    /// Apply the change; without this, only report
    #[arg(long)]
    apply: bool,
}

#[derive(Debug, Args)]
#[group(id = "passphrase", multiple = false)]
pub(super) struct PassphraseArgs {
    /// Read the passphrase of the backup from FILE, one line, or from credential:NAME of the systemd unit
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<String>,
    /// Read the passphrase from an open file descriptor
    #[arg(long, value_name = "N")]
    passphrase_fd: Option<u32>,
}

impl PassphraseArgs {
    pub(super) fn read(&self, root: &NodeRoot) -> Result<Option<Passphrase>, Failure> {
        let file = self.passphrase_file.clone().map(KeySource::File);
        let Some(source) = file.or(self.passphrase_fd.map(KeySource::Descriptor)) else {
            return Ok(None);
        };
        let (what, contents) = load::certs::secret(root, &source)?;
        Passphrase::from_file(&contents).map(Some).map_err(|error| {
            Failure::new(
                ExitCode::Configuration,
                format!("{what} is not a valid passphrase"),
            )
            .caused_by(error)
            .advise("write one line, for example with `openssl rand -base64 24`")
        })
    }
}

impl MigrateCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let report = match self {
            MigrateCommand::ToExternal {
                run,
                what,
                backup,
                passphrase,
                skip_signing_proof,
            } => {
                let backup = match (&backup, passphrase.read(&root)?) {
                    (Some(path), Some(passphrase)) => Some(Backup::new(&root, path, passphrase)?),
                    _ => None,
                };
                let loaded = global.load_running(&run.inputs(global)?)?;
                let wish = ToExternal {
                    authorities: what.authority.into_iter().collect(),
                    apply: what.apply,
                    backup,
                    skip_signing_proof,
                };
                let terminal = Terminal::new(global.verbose);
                let done = to_external::to_external(&root, &loaded.setup, &wish, now, &terminal);
                runtime()?.block_on(terminal.during(done))?
            }
            MigrateCommand::ToInternal {
                sources,
                what,
                backup,
                passphrase,
            } => {
                // Read once, since a pipe can be read only once. clap requires a passphrase.
                let passphrase = passphrase.read(&root)?;
                let backups = passphrase
                    .iter()
                    .flat_map(|passphrase| backup.iter().map(|path| (path, passphrase.clone())))
                    .map(|(path, passphrase)| Backup::new(&root, path, passphrase))
                    .collect::<Result<_, _>>()?;
                let loaded = global.load_running(&sources.inputs(global)?)?;
                let wish = ToInternal {
                    authorities: what.authority.into_iter().collect(),
                    apply: what.apply,
                    backups,
                };
                to_internal::to_internal(&root, &loaded.setup, &wish, now)?
            }
        };
        let closing = Closing::default();
        let kind = DocumentKind::Migration;
        global.print_body(kind, report.code(), &closing, &report, || {
            text(&report, "this node")
        })?;
        for message in report.unproven.iter().flat_map(Failure::texts) {
            print_message(&message);
        }
        Ok(report.code())
    }
}

/// Returns a report as text. `holder` is the place from which keys are removed.
pub(super) fn text<K: Display>(report: &MigrationReport<K>, holder: &str) -> String {
    let mut text = String::new();
    for row in &report.authorities {
        text.push_str(&format!(
            "{:<15} {:<15} {}\n",
            row.authority, row.action, row.key
        ));
        for proven in &row.proven {
            text.push_str(&format!("    {proven}\n"));
        }
    }
    let nothing = match report.direction {
        _ if !report.unproven.is_empty() => None,
        Direction::ToExternal => report
            .authorities
            .is_empty()
            .then(|| format!("nothing to do: {holder} has no CA private key to remove\n")),
        Direction::ToInternal => report
            .authorities
            .iter()
            .all(|row| row.action == KeyAction::InPlace)
            .then(|| "nothing to do: the keys are in place\n".to_owned()),
    };
    text.push_str(nothing.as_deref().unwrap_or_default());
    if let (true, Some(backup)) = (report.applied, &report.backup) {
        text.push_str(&format!("backup: {}\n", backup.display()));
    }
    if report.unproven.is_empty() && !report.changes.is_empty() {
        text.push_str(match report.applied {
            true => "consequences:\n",
            false => "consequences of --apply:\n",
        });
        for change in &report.changes {
            text.push_str(&format!("    {change}\n"));
        }
    }
    for note in &report.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(match (report.unproven.is_empty(), report.direction) {
        (false, _) => "not everything is proven; nothing was changed\n",
        _ if report.applied || nothing.is_some() => "",
        (_, Direction::ToExternal) => {
            "nothing was changed (to remove the keys, after each signer has signed a certificate as proof, add --apply --backup FILE --passphrase-file FILE)\n"
        }
        (_, Direction::ToInternal) => "nothing was changed (to restore the keys, add --apply)\n",
    });
    text
}
