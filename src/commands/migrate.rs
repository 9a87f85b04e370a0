//! `migrate to-external` and `migrate to-internal`: the CA keys off a node, and back.

pub mod migration;

use clap::{Args, Subcommand};

use super::terminal::Terminal;
use super::{Global, Output, Run, Sources, now, print, runtime, say};
use crate::agent::load::{self, certs::KeySource};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::store::Root;
use migration::{Backup, Direction, Passphrase, Report, ToExternal, ToInternal};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Prove that the node does not need its CA keys any more; back them up and remove them with --apply
    ///
    /// Everything in place must verify, and the external signer of each authority must answer for the same CA and sign a
    /// certificate, which is thrown away. All that is missing is told at once, and then nothing is removed (65).
    ToExternal {
        #[command(flatten)]
        run: Run,
        #[command(flatten)]
        what: What,
        /// File for the encrypted keys; made, never overwritten
        #[arg(long, value_name = "FILE", requires = "passphrase")]
        backup: Option<Argument>,
        #[command(flatten)]
        passphrase: PassphraseArgs,
        /// Believe the signers without having anything signed
        #[arg(long)]
        skip_signing_proof: bool,
    },
    /// Put CA keys from a backup in place, with --apply, where each belongs to its certificate
    ToInternal {
        #[command(flatten)]
        sources: Sources,
        #[command(flatten)]
        what: What,
        /// File with encrypted keys; may be repeated
        #[arg(long, value_name = "FILE", required = true, requires = "passphrase")]
        backup: Vec<Argument>,
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct What {
    /// Only this authority: ca, front-proxy-ca or etcd-ca; may be repeated
    #[arg(long, value_name = "NAME")]
    authority: Vec<Authority>,
    /// Do it; without this the node is only looked at
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
    fn read(&self, root: &Root) -> Result<Option<Passphrase>, Failure> {
        let file = self.passphrase_file.clone().map(KeySource::File);
        let Some(source) = file.or(self.passphrase_fd.map(KeySource::Descriptor)) else {
            return Ok(None);
        };
        let (what, contents) = load::certs::secret(root, &source)?;
        Passphrase::from_file(&contents).map(Some).map_err(|error| {
            Failure::new(
                ExitCode::Configuration,
                format!(
                    "{what} is no passphrase, it {error}; write one line into it, for example what `openssl rand -base64 24` prints"
                ),
            )
        })
    }
}

impl Command {
    pub(super) fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let report = match self {
            Command::ToExternal {
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
                let done = migration::to_external(&root, &loaded.setup, &wish, now, &terminal);
                runtime()?.block_on(done)?
            }
            Command::ToInternal {
                sources,
                what,
                backup,
                passphrase,
            } => {
                // Once, since a pipe gives it once; that there is one is seen to by the command line.
                let passphrase = passphrase.read(&root)?;
                let backups = passphrase
                    .iter()
                    .flat_map(|passphrase| backup.iter().map(|path| (path, passphrase.clone())))
                    .map(|(path, passphrase)| Backup::new(&root, path, passphrase))
                    .collect::<Result<_, _>>()?;
                let loaded = global.load_running(&Run::of(sources).inputs(global)?)?;
                let wish = ToInternal {
                    authorities: what.authority.into_iter().collect(),
                    apply: what.apply,
                    backups,
                };
                migration::to_internal(&root, &loaded.setup, &wish, now)?
            }
        };
        match global.output {
            Output::Table | Output::Tree => print(&text(&report))?,
            _ => global.print_value(&report, global.output)?,
        };
        for message in report.unproven.iter().flat_map(|failure| &failure.messages) {
            say(message);
        }
        Ok(report.code())
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for row in &report.authorities {
        text.push_str(&format!(
            "{:<15} {:<15} {}\n",
            row.authority,
            row.action,
            row.key.display()
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
            .then_some("nothing to do: there is no CA private key to be removed on this node\n"),
        Direction::ToInternal => report
            .authorities
            .iter()
            .all(|row| row.action == "in place")
            .then_some("nothing to do: the keys are in place\n"),
    };
    text.push_str(nothing.unwrap_or_default());
    if let (true, Some(backup)) = (report.applied, &report.backup) {
        text.push_str(&format!("backup: {}\n", backup.display()));
    }
    if report.unproven.is_empty() && !report.changes.is_empty() {
        let when = if report.applied { "" } else { " then" };
        text.push_str(&format!("what changes{when}:\n"));
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
            "nothing was changed; --apply --backup FILE --passphrase-file FILE does it, after each signer has signed a certificate for proof\n"
        }
        (_, Direction::ToInternal) => "nothing was changed; --apply does it\n",
    });
    text
}
