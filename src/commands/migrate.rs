//! `nodepki migrate to-external` and `nodepki migrate to-internal`: remove the CA keys from a node, and restore them.
//!
//! Neither changes a certificate or a manifest, and both only report without `--apply`. To add a requirement, add an entry
//! to [`MigrationReport::unproven`]; all entries are reported together.

pub(super) mod backup;
pub(super) mod report;
pub(super) mod to_external;
mod to_internal;

use clap::{Args, Subcommand};

use super::options::{GlobalOptions, RunOptions, SourceOptions};
use super::output::terminal::Terminal;
use super::{now, runtime};
use crate::agent::load::{self, certs::KeySource};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::store::NodeRoot;
use backup::{Backup, Passphrase};
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
    /// Returns the backups at these paths, which all have the same passphrase; none without a passphrase, which clap
    /// requires for a backup.
    pub(super) fn backups(
        &self,
        root: &NodeRoot,
        paths: &[Argument],
    ) -> Result<Vec<Backup>, Failure> {
        // Read once, since a pipe can be read only once.
        let passphrase = self.read(root)?;
        let passphrases = passphrase.iter().cycle().cloned();
        let backups = paths.iter().zip(passphrases);
        backups
            .map(|(path, passphrase)| Backup::new(root, path, passphrase))
            .collect()
    }

    fn read(&self, root: &NodeRoot) -> Result<Option<Passphrase>, Failure> {
        let file = self.passphrase_file.clone().map(KeySource::File);
        let Some(source) = file.or(self.passphrase_fd.map(KeySource::Descriptor)) else {
            return Ok(None);
        };
        let (what, contents) = load::certs::secret(root, &source)?;
        Passphrase::from_file(&contents).map(Some).map_err(|error| {
            Failure::misconfigured(format!("{what} is not a valid passphrase"))
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
                let backup = passphrase.backups(&root, backup.as_slice())?.pop();
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
                let backups = passphrase.backups(&root, &backup)?;
                let loaded = global.load_running(&sources.inputs(global)?)?;
                let wish = ToInternal {
                    authorities: what.authority.into_iter().collect(),
                    apply: what.apply,
                    backups,
                };
                to_internal::to_internal(&root, &loaded.setup, &wish, now)?
            }
        };
        report.print(global, "this node")
    }
}
