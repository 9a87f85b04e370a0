//! `nodepki authority stage`, `activate`, `retire` and `status`.

pub mod change;

use std::collections::BTreeSet;
use std::path::Path;

use clap::{Args, Subcommand};

use super::terminal::Terminal;
use super::{Global, Output, Run, Sources, now, print, runtime, screen, table};
use crate::agent::load::{self, KubeconfigFile, Loaded};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::store::Root;
use change::cluster::Seen;
use change::report::{AuthorityReport, NodeReport, Nodes, Peers};
use change::{Outcome, Wish};

/// The administrator's own, on a control-plane node.
const ADMIN: &str = "/etc/kubernetes/admin.conf";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Trust a new CA beside the old one, on this node; the first step, on every node
    ///
    /// The bundle and every kubeconfig with this CA get both certificates, the old one first, in one commit. What reads
    /// them only when it starts is restarted: exit status 75 until that is done (the same command again, nodepki renew, or
    /// the daemon goes on with it).
    Stage {
        #[command(flatten)]
        step: StepArgs,
        /// The new CA's certificate; without it what the signer offers, if authorities.X.trust.sha256 pins it
        #[arg(long, value_name = "FILE", conflicts_with = "undo")]
        certificate: Option<Argument>,
        /// Take the new CA out again, as long as nothing is under it
        #[arg(long)]
        undo: bool,
        /// With --undo: no node has activated the new CA
        #[arg(long, requires = "undo")]
        no_node_activated: bool,
    },
    /// Make the staged CA the one that issues, and have everything issued anew; once every node has staged it
    Activate {
        #[command(flatten)]
        step: StepArgs,
        /// Every other node has staged the new CA, and its restarts are done
        #[arg(long)]
        all_nodes_staged: bool,
    },
    /// Stop trusting the old CA, once nothing on any node is under it
    Retire {
        #[command(flatten)]
        step: StepArgs,
        /// Every other node has activated the new CA, and its restarts are done
        #[arg(long)]
        all_nodes_activated: bool,
    },
    /// Show how far a CA change is on this node, and what the next step lacks; with -o json the report for other nodes
    ///
    /// Reads this node's files only. Exit status: 0; 75 while a change is under way and restarts for it are due.
    Status {
        /// ca, front-proxy-ca or etcd-ca; all of them without
        #[arg(value_name = "AUTHORITY")]
        authorities: Vec<Authority>,
        /// Also ask this kubeconfig's cluster whether the ConfigMaps that publish the CA have the new one
        #[arg(long, value_name = "FILE")]
        kubeconfig: Option<Argument>,
        #[command(flatten)]
        sources: Sources,
    },
}

#[derive(Debug, Args)]
pub(super) struct StepArgs {
    /// ca, front-proxy-ca or etcd-ca
    authority: Authority,
    /// Say what would be done; nothing is written or asked of a signer
    #[arg(long)]
    dry_run: bool,
    /// What `nodepki authority status -o json` said on another node; may be repeated
    #[arg(long, value_name = "FILE")]
    peer_report: Vec<Argument>,
    /// Ask this kubeconfig's cluster which nodes there are, instead of that of /etc/kubernetes/admin.conf
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    #[command(flatten)]
    run: Run,
}

impl StepArgs {
    fn wish(self, root: &Root, stated: bool) -> Result<Wish, Failure> {
        let reports = self
            .peer_report
            .iter()
            .map(|path| read_report(root, path))
            .collect::<Result<_, _>>()?;
        let admin = root.metadata(ADMIN)?.is_some();
        let admin = admin.then(|| KubeconfigFile::from(Path::new(ADMIN)));
        let given = self.kubeconfig.as_ref().map(KubeconfigFile::from);
        Ok(Wish {
            authority: self.authority,
            dry_run: self.dry_run,
            // Who says it of all nodes asks nobody.
            kubeconfig: given.or(admin.filter(|_| !stated)),
            peers: Peers { reports, stated },
        })
    }
}

fn read_report(root: &Root, path: &Argument) -> Result<(String, NodeReport), Failure> {
    let shown = load::shown(root, path).display().to_string();
    let text = load::read_argument(root, path).map_err(|error| {
        Failure::caused(
            ExitCode::Usage,
            format!("--peer-report {shown}: {error}; name a file with what a node reported"),
            &error,
        )
    })?;
    let report = serde_json::from_str(&text).map_err(|error| {
        Failure::new(
            ExitCode::Refused,
            format!(
                "--peer-report {shown} is not what a node reports ({error}); have it written by nodepki authority status -o json on that node"
            ),
        )
    })?;
    Ok((shown, report))
}

impl Command {
    pub(super) fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let terminal = Terminal::new(global.verbose);
        let load = |step: &StepArgs| -> Result<Loaded, Failure> {
            global.load_running(&step.run.inputs(global)?)
        };
        let runtime = runtime()?;
        let (loaded, wish, outcome) = match self {
            Command::Status {
                authorities,
                kubeconfig,
                sources,
            } => {
                let loaded = global.load_running(&Run::of(sources).inputs(global)?)?;
                let authorities: BTreeSet<Authority> = authorities.into_iter().collect();
                return status(global, &root, &loaded, &authorities, kubeconfig.as_ref());
            }
            Command::Stage {
                step,
                certificate,
                undo,
                no_node_activated,
            } => {
                let loaded = load(&step)?;
                let wish = step.wish(&root, no_node_activated)?;
                let file = certificate.as_ref();
                let outcome = match undo {
                    true => runtime.block_on(change::undo(&root, &loaded.setup, &wish, now)),
                    false => {
                        runtime.block_on(change::stage(&root, &loaded.setup, &wish, file, now))
                    }
                };
                (loaded, wish, outcome)
            }
            Command::Activate {
                step,
                all_nodes_staged,
            } => {
                let loaded = load(&step)?;
                let wish = step.wish(&root, all_nodes_staged)?;
                let step = change::activate(&root, &loaded.setup, &wish, now, &terminal);
                let outcome = runtime.block_on(step);
                (loaded, wish, outcome)
            }
            Command::Retire {
                step,
                all_nodes_activated,
            } => {
                let loaded = load(&step)?;
                let wish = step.wish(&root, all_nodes_activated)?;
                let step = change::retire(&root, &loaded.setup, &wish, now);
                let outcome = runtime.block_on(step);
                (loaded, wish, outcome)
            }
        };
        let mut outcome = outcome?;
        if !wish.dry_run {
            let settle = change::settle(&root, &loaded, outcome, now, &terminal);
            outcome = runtime.block_on(settle)?;
        }
        drop(terminal);
        match global.output {
            Output::Table | Output::Tree => print(&text(global, &outcome))?,
            _ => global.print_value(&outcome, global.output)?,
        };
        Ok(outcome.code())
    }
}

fn status(
    global: &Global,
    root: &Root,
    loaded: &Loaded,
    authorities: &BTreeSet<Authority>,
    kubeconfig: Option<&Argument>,
) -> Result<ExitCode, Failure> {
    let report = change::status(root, loaded, authorities, now())?;
    let code = match report.authorities.iter().any(AuthorityReport::is_waiting) {
        true => ExitCode::Pending,
        false => ExitCode::Done,
    };
    match global.output {
        Output::Table | Output::Tree => print(&rows(&report))?,
        // As other nodes read it.
        _ => global.print_value(&report, global.output)?,
    };
    for row in &report.authorities {
        if let Some(kubeconfig) = kubeconfig {
            let setup = &loaded.setup;
            let look = change::look(root, kubeconfig, setup, row.authority, now());
            screen::print_aside(&seen(row.authority, &runtime()?.block_on(look)?));
        }
    }
    Ok(code)
}

fn seen(authority: Authority, seen: &Seen) -> String {
    let mut text = String::new();
    match &seen.nodes {
        Nodes::Unknown(why) => text.push_str(&format!("note: {authority}: {why}\n")),
        Nodes::Listed(nodes) => {
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            text.push_str(&format!(
                "note: {authority} matters to {}\n",
                nodes.join(", ")
            ));
        }
    }
    for words in seen.lacking.iter().chain(&seen.notes) {
        text.push_str(&format!("note: {words}\n"));
    }
    text
}

fn rows(report: &NodeReport) -> String {
    let mut text = String::new();
    for row in &report.authorities {
        text.push_str(&row_text(row));
    }
    text
}

fn row_text(row: &AuthorityReport) -> String {
    let since = match (row.staged, row.activated) {
        (Some(staged), None) => format!(", staged {}", crate::x509::rfc3339(staged)),
        (_, Some(activated)) => format!(", activated {}", crate::x509::rfc3339(activated)),
        _ => String::new(),
    };
    let mut text = format!("{:<15} {}{since}\n", row.authority, row.phase.as_str());
    for trusted in &row.bundle {
        text.push_str(&format!(
            "    {:<4} {}, certificate sha256:{}, until {}\n",
            trusted.role.as_deref().unwrap_or("ca"),
            trusted.subject,
            trusted.sha256,
            crate::x509::rfc3339(trusted.not_after)
        ));
    }
    for missing in &row.missing {
        text.push_str(&format!("    missing: {missing}\n"));
    }
    if let Some(next) = row.next.as_ref().filter(|_| row.missing.is_empty()) {
        text.push_str(&format!(
            "    next: {next}, once every other node is as far\n"
        ));
    }
    text
}

fn text(global: &Global, outcome: &Outcome) -> String {
    let mut text = String::new();
    for words in &outcome.proven {
        text.push_str(&format!("proven: {words}\n"));
    }
    for words in &outcome.done {
        text.push_str(&format!("{words}\n"));
    }
    if let Some(issued) = &outcome.issued {
        text.push_str(&table::render(issued, global.verbose > 0, &global.root));
    }
    for row in &outcome.reloads {
        let reasons = row.reasons.join("; ");
        text.push_str(&format!("{} {}: {reasons}\n", row.name, row.action));
    }
    for note in &outcome.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(&row_text(&outcome.report));
    let changes = !outcome
        .done
        .iter()
        .all(|words| words.starts_with("nothing to do"));
    if changes && !outcome.applied && outcome.issued.is_none() {
        text.push_str("nothing was changed; without --dry-run it is done\n");
    }
    text
}
