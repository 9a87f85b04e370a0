//! `nodepki authority stage`, `activate`, `retire` and `status`: change a CA on a running cluster, node by node; `rotate`
//! and its siblings change it on all nodes.

mod rotate;

use std::collections::BTreeSet;
use std::path::Path;

use clap::{Args, Subcommand};

use super::options::{GlobalOptions, RunOptions, SourceOptions};
use super::output::terminal::Terminal;
use super::output::{DocumentKind, print_to_stderr, table};
use super::{now, runtime};
use crate::agent::authority::cluster::ClusterView;
use crate::agent::authority::report::{AuthorityReport, NodeReport, Nodes, Peers};
use crate::agent::authority::{self, StepOrder, StepOutcome};
use crate::agent::load::{self, KubeconfigFile, Loaded};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::kube::paths::ADMIN_CONF;
use crate::spec::assess::joined;
use crate::spec::authority_rotation::RotationCommand;
use crate::store::NodeRoot;
use crate::text::rfc3339;

#[derive(Debug, Subcommand)]
pub(super) enum AuthorityCommand {
    /// Change a CA on all nodes of the cluster
    ///
    /// Writes the change to the ConfigMap kube-system/nodepki-authority-rotation. The daemon of every node, with
    /// authorityRotation.enabled, takes the steps: all nodes trust the new CA, then all certificates are reissued under it, then
    /// no node trusts the old CA any more. A phase begins when every node has proven the one before; a node that is down holds
    /// it. Switch the signer to the new CA in phase activate.
    Rotate(rotate::RotateArgs),
    /// Stop a rotation: no further phase begins, and no node begins a step
    Pause(rotate::ChangeArgs),
    /// Continue a rotation
    Resume(rotate::ChangeArgs),
    /// Return to the old CA on all nodes, until phase retire
    Undo(rotate::ChangeArgs),
    /// Show a rotation, node by node, until it has ended
    ///
    /// Exit status: 0 when every rotation has ended, or there is none; with --once 75 while one is in progress.
    Watch(rotate::WatchArgs),
    /// Trust a new CA in addition to the old one on this node; the first step, on every node
    ///
    /// Adds the new certificate after the old one to the bundle and to every kubeconfig with this CA, in one commit.
    /// Restarts the components that read these files only at start; exit status 75 until that is done (repeat the command,
    /// or run nodepki renew or the daemon).
    Stage {
        #[command(flatten)]
        step: StepArgs,
        /// Certificate of the new CA; default: the signer's CA certificate, if authorities.X.trust.sha256 pins it
        #[arg(long, value_name = "FILE", conflicts_with = "undo")]
        certificate: Option<Argument>,
        /// State that every component and client of the cluster, and etcd, can verify signatures of the new CA, although
        /// components of this Kubernetes release cannot
        #[arg(long, conflicts_with = "undo")]
        components_verify: bool,
        /// Remove the new CA again, if no certificate is under it
        #[arg(long)]
        undo: bool,
        /// With --undo: state that no node has activated the new CA
        #[arg(long, requires = "undo")]
        no_node_activated: bool,
    },
    /// Make the staged CA the issuing one, and have all certificates reissued, once every node has staged it
    Activate {
        #[command(flatten)]
        step: StepArgs,
        /// State that every other node has staged the new CA and completed its restarts
        #[arg(long)]
        all_nodes_staged: bool,
    },
    /// Stop trusting the old CA, once no certificate on any node is under it
    Retire {
        #[command(flatten)]
        step: StepArgs,
        /// State that every other node has activated the new CA and completed its restarts
        #[arg(long)]
        all_nodes_activated: bool,
    },
    /// Show the progress of a CA change on this node, and what the next step requires; -o json prints the report for other
    /// nodes
    ///
    /// Reads this node's files only. Exit status: 0; 75 if a change is in progress and its restarts are due.
    Status {
        /// ca, front-proxy-ca or etcd-ca; default: all
        #[arg(value_name = "AUTHORITY")]
        authorities: Vec<Authority>,
        /// Also check with this kubeconfig whether the ConfigMaps that publish the CA contain the new one
        #[arg(long, value_name = "FILE")]
        kubeconfig: Option<Argument>,
        #[command(flatten)]
        sources: SourceOptions,
    },
}

#[derive(Debug, Args)]
pub(super) struct StepArgs {
    /// ca, front-proxy-ca or etcd-ca
    authority: Authority,
    /// Show what would be done; writes nothing and requests no certificate
    #[arg(long)]
    dry_run: bool,
    /// Output of `nodepki authority status -o json` on another node; may be repeated
    #[arg(long, value_name = "FILE")]
    peer_report: Vec<Argument>,
    /// Kubeconfig with which to list the cluster's nodes, instead of /etc/kubernetes/admin.conf
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    #[command(flatten)]
    run: RunOptions,
}

impl StepArgs {
    /// Returns the parameters of the step. `stated`: the administrator states the condition for all nodes.
    fn order(self, root: &NodeRoot, stated: bool) -> Result<StepOrder, Failure> {
        let reports = self
            .peer_report
            .iter()
            .map(|path| read_report(root, path))
            .collect::<Result<_, _>>()?;
        let has_admin = root.metadata(ADMIN_CONF)?.is_some();
        let admin = has_admin.then(|| KubeconfigFile::from(Path::new(ADMIN_CONF)));
        let given = self.kubeconfig.as_ref().map(KubeconfigFile::from);
        Ok(StepOrder {
            authority: self.authority,
            dry_run: self.dry_run,
            // A statement for all nodes needs no list of nodes.
            kubeconfig: given.or(admin.filter(|_| !stated)),
            peers: Peers { reports, stated },
            rotation: None,
            components_verify: false,
        })
    }
}

fn read_report(root: &NodeRoot, path: &Argument) -> Result<(String, NodeReport), Failure> {
    let shown = load::shown(root, path).display().to_string();
    let text = load::read_argument(root, path).map_err(|error| {
        Failure::caused(ExitCode::Usage, format!("--peer-report {shown}"), error)
            .advise("name the report of another node")
    })?;
    let report = serde_json::from_str(&text).map_err(|error| {
        Failure::refused(format!("--peer-report {shown} is not a valid report"))
            .caused_by(error)
            .advise("write it with nodepki authority status -o json on that node")
    })?;
    Ok((shown, report))
}

impl AuthorityCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let terminal = Terminal::new(global.verbose);
        let load = |step: &StepArgs| -> Result<Loaded, Failure> {
            global.load_running(&step.run.inputs(global)?)
        };
        let runtime = runtime()?;
        let (loaded, order, outcome) = match self {
            AuthorityCommand::Rotate(args) => return rotate::rotate(global, &root, args),
            AuthorityCommand::Pause(args) => {
                return rotate::change_by(global, &root, &args, &RotationCommand::Pause);
            }
            AuthorityCommand::Resume(args) => {
                return rotate::change_by(global, &root, &args, &RotationCommand::Resume);
            }
            AuthorityCommand::Undo(args) => {
                return rotate::change_by(global, &root, &args, &RotationCommand::Undo);
            }
            AuthorityCommand::Watch(args) => return rotate::watch(global, &root, &args),
            AuthorityCommand::Status {
                authorities,
                kubeconfig,
                sources,
            } => {
                let loaded = global.load_running(&sources.inputs(global)?)?;
                let authorities: BTreeSet<Authority> = authorities.into_iter().collect();
                return status(global, &root, &loaded, &authorities, kubeconfig.as_ref());
            }
            AuthorityCommand::Stage {
                step,
                certificate,
                components_verify,
                undo,
                no_node_activated,
            } => {
                let loaded = load(&step)?;
                let order = StepOrder {
                    components_verify,
                    ..step.order(&root, no_node_activated)?
                };
                let file = certificate.as_ref();
                let outcome = if undo {
                    runtime.block_on(authority::undo(&root, &loaded.setup, &order, now))
                } else {
                    runtime.block_on(authority::stage(&root, &loaded, &order, file, now))
                };
                (loaded, order, outcome)
            }
            AuthorityCommand::Activate {
                step,
                all_nodes_staged,
            } => {
                let loaded = load(&step)?;
                let order = step.order(&root, all_nodes_staged)?;
                let step = authority::activate(&root, &loaded.setup, &order, now, &terminal);
                let outcome = runtime.block_on(terminal.during(step));
                (loaded, order, outcome)
            }
            AuthorityCommand::Retire {
                step,
                all_nodes_activated,
            } => {
                let loaded = load(&step)?;
                let order = step.order(&root, all_nodes_activated)?;
                let step = authority::retire(&root, &loaded.setup, &order, now);
                let outcome = runtime.block_on(step);
                (loaded, order, outcome)
            }
        };
        let mut outcome = outcome?;
        if !order.dry_run {
            // The next step requires that the components work with the files of this one.
            let settle = authority::settle(&root, &loaded, outcome, now, &terminal);
            outcome = runtime.block_on(terminal.during(settle))?;
        }
        drop(terminal);
        global.print_body(
            DocumentKind::AuthorityStep,
            outcome.code(),
            &outcome,
            || text(global, &outcome),
        )
    }
}

fn status(
    global: &GlobalOptions,
    root: &NodeRoot,
    loaded: &Loaded,
    authorities: &BTreeSet<Authority>,
    kubeconfig: Option<&Argument>,
) -> Result<ExitCode, Failure> {
    let report = authority::status(root, loaded, authorities, now())?;
    let code = if report.authorities.iter().any(AuthorityReport::is_waiting) {
        ExitCode::Pending
    } else {
        ExitCode::Done
    };
    global.print_body(DocumentKind::AuthorityStatus, code, &report, || {
        report.authorities.iter().map(row_text).collect()
    })?;
    for row in &report.authorities {
        if let Some(kubeconfig) = kubeconfig {
            let setup = &loaded.setup;
            let view = authority::view_cluster(root, kubeconfig, setup, row.authority, now());
            print_to_stderr(&view_text(row.authority, &runtime()?.block_on(view)?));
        }
    }
    Ok(code)
}

fn view_text(authority: Authority, view: &ClusterView) -> String {
    let mut text = String::new();
    match &view.nodes {
        Nodes::Unknown(why) => text.push_str(&format!("note: {authority}: {why}\n")),
        Nodes::Listed(nodes) => {
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            text.push_str(&format!(
                "note: {authority} is used by {}\n",
                nodes.join(", ")
            ));
        }
    }
    for message in view.lacking.iter().chain(&view.notes) {
        text.push_str(&format!("note: {message}\n"));
    }
    text
}

fn row_text(row: &AuthorityReport) -> String {
    let since = match (row.staged, row.activated) {
        (Some(staged), None) => format!(", staged {}", rfc3339(staged)),
        (_, Some(activated)) => format!(", activated {}", rfc3339(activated)),
        _ => String::new(),
    };
    let mut text = format!("{:<15} {}{since}\n", row.authority, row.phase);
    for trusted in &row.bundle {
        text.push_str(&format!(
            "    {:<4} {}, certificate sha256:{}, until {}\n",
            trusted.role.as_deref().unwrap_or("ca"),
            trusted.subject,
            trusted.sha256,
            rfc3339(trusted.not_after)
        ));
    }
    for missing in &row.missing {
        text.push_str(&format!("    missing: {missing}\n"));
    }
    if let Some(next) = row.next.as_ref().filter(|_| row.missing.is_empty()) {
        text.push_str(&format!(
            "    next: {next}, once every other node has completed this step\n"
        ));
    }
    text
}

fn text(global: &GlobalOptions, outcome: &StepOutcome) -> String {
    let mut text = String::new();
    for proof in &outcome.proven {
        text.push_str(&format!("proven: {proof}\n"));
    }
    for action in &outcome.done {
        text.push_str(&format!("{action}\n"));
    }
    if let Some(issued) = &outcome.issued {
        text.push_str(&table::render(issued, global.row_detail()));
    }
    for row in &outcome.reloads {
        let reasons = joined(&row.reasons);
        text.push_str(&format!("{} {}: {reasons}\n", row.name, row.action));
    }
    for note in &outcome.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(&row_text(&outcome.report));
    if outcome.is_due && !outcome.applied && outcome.issued.is_none() {
        text.push_str("nothing was changed (to apply the change, omit --dry-run)\n");
    }
    text
}
