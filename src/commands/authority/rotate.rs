//! `nodepki authority rotate`, `pause`, `resume`, `undo` and `watch`: one change of a CA or of the service-account key for all
//! nodes of a cluster.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use clap::Args;

use super::super::options::{GlobalOptions, SourceOptions};
use super::super::output::{DocumentKind, ListBody, print, print_message, text_style};
use super::super::{now, runtime};
use crate::agent::authority::command::{self, NewCa, NodeView, RotationView};
use crate::agent::load::{KubeconfigFile, Loaded};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::spec::authority_rotation::{
    AuthorityRotation, RotationCommand, RotationPhase, RotationSubject,
};
use crate::store::{NodeRoot, ServiceAccountKeys};
use crate::table::{Cell, Emphasis, Table};
use crate::text::rfc3339;
use crate::yaml::parse_duration;

/// Interval at which `watch` reads the cluster.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Longest accepted lifetime of tokens.
const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Debug, Args)]
pub(in crate::commands) struct RotateArgs {
    /// ca, front-proxy-ca or etcd-ca; sa for the service-account key
    #[arg(value_name = "AUTHORITY")]
    subject: RotationSubject,
    /// Certificate of the new CA; may be omitted with --exclude, to exclude nodes from the rotation in progress. Not with sa,
    /// whose new key is created on this node
    #[arg(long, value_name = "FILE")]
    certificate: Option<Argument>,
    /// State that every component and client of the cluster, and etcd, can verify signatures of the new CA, although
    /// components of this Kubernetes release cannot
    #[arg(long, requires = "certificate")]
    components_verify: bool,
    /// With sa: the longest lifetime of a token that the cluster issues; the old key is trusted for that long after no node
    /// signs with it. kube-apiserver extends the tokens of Pods to a year, unless
    /// --service-account-extend-token-expiration=false, and --service-account-max-token-expiration limits requested ones.
    /// Default: 8760h
    #[arg(long, value_name = "DURATION", value_parser = token_lifetime)]
    token_lifetime: Option<Duration>,
    /// Node for which the rotation does not wait, such as one that is down; may be repeated
    #[arg(long, value_name = "NODE")]
    exclude: Vec<String>,
    /// Do not begin this phase before `nodepki authority resume`: activate, to restart Pods that read the CA only at their start,
    /// or retire; may be repeated
    #[arg(long, value_name = "PHASE", value_parser = hold_phase)]
    hold_before: Vec<RotationPhase>,
    /// Verify that the rotation could start; writes nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    sources: SourceOptions,
}

#[derive(Debug, Args)]
pub(in crate::commands) struct ChangeArgs {
    /// ca, front-proxy-ca, etcd-ca or sa
    #[arg(value_name = "AUTHORITY")]
    subject: RotationSubject,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub(in crate::commands) struct WatchArgs {
    /// ca, front-proxy-ca, etcd-ca or sa; default: all
    #[arg(value_name = "AUTHORITY")]
    subjects: Vec<RotationSubject>,
    /// Print the present state and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Args)]
struct ClusterArgs {
    /// Kubeconfig of an administrator of the cluster, instead of /etc/kubernetes/admin.conf
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
}

impl ClusterArgs {
    fn kubeconfig(&self) -> KubeconfigFile {
        KubeconfigFile::of_admin(self.kubeconfig.as_ref())
    }
}

pub(super) fn rotate(
    global: &GlobalOptions,
    root: &NodeRoot,
    args: RotateArgs,
) -> Result<ExitCode, Failure> {
    let RotateArgs {
        subject,
        certificate,
        components_verify,
        token_lifetime,
        exclude,
        hold_before,
        dry_run,
        cluster,
        sources,
    } = args;
    let excluded: BTreeSet<String> = exclude.into_iter().collect();
    let held: BTreeSet<RotationPhase> = hold_before.into_iter().collect();
    let load = || -> Result<Loaded, Failure> {
        let loaded = global.load_running(&sources.inputs(global)?)?;
        if !loaded.settings.authority_rotation.enabled {
            print_message(
                "authorityRotation.enabled is not set on this node: its daemon takes no part until it is",
            );
        }
        Ok(loaded)
    };
    let is_in_progress = || -> Result<bool, Failure> {
        let record = root.cluster_rotations()?;
        Ok(record.in_progress(subject).is_some())
    };
    let usage = |message: &str| Err(Failure::usage(message));
    let (order, keys) = match (subject, certificate) {
        (RotationSubject::ServiceAccount, Some(_)) => {
            return usage(
                "--certificate: a service-account key has no certificate (omit it: the new key is created on this node)",
            );
        }
        (RotationSubject::Authority(_), _) if token_lifetime.is_some() => {
            return usage("--token-lifetime: only the rotation of sa waits for tokens (omit it)");
        }
        (RotationSubject::Authority(_), None) if excluded.is_empty() || !held.is_empty() => {
            return usage(
                "--certificate FILE is missing (name the certificate of the new CA, or only --exclude NODE during a rotation)",
            );
        }
        (RotationSubject::Authority(authority), Some(file)) => {
            let loaded = load()?;
            let new = NewCa {
                file: &file,
                components_verify,
            };
            let order = command::start(root, &loaded, authority, &new, excluded, held, now())?;
            (order, None)
        }
        // Alone, --exclude is for the rotation in progress, which then continues without these nodes.
        (RotationSubject::ServiceAccount, None)
            if excluded.is_empty()
                || token_lifetime.is_some()
                || !held.is_empty()
                || !is_in_progress()? =>
        {
            let loaded = load()?;
            let (order, keys) = command::start_service_account(
                root,
                &loaded,
                excluded,
                held,
                token_lifetime,
                now(),
            )?;
            (order, Some(keys))
        }
        (_, None) => (RotationCommand::Exclude(excluded), None),
    };
    let kubeconfig = cluster.kubeconfig();
    change(
        global,
        root,
        subject,
        &order,
        keys.as_ref(),
        dry_run,
        &kubeconfig,
    )
}

/// Reads the value of `--token-lifetime`.
fn token_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = parse_duration(text)?;
    if lifetime <= MAX_TOKEN_LIFETIME {
        Ok(lifetime)
    } else {
        Err("it is longer than a hundred years".to_owned())
    }
}

/// Reads the value of `--hold-before`.
fn hold_phase(text: &str) -> Result<RotationPhase, String> {
    let phases = [RotationPhase::Activate, RotationPhase::Retire];
    let named = phases.into_iter().find(|phase| phase.to_string() == text);
    named.ok_or_else(|| "activate or retire".to_owned())
}

/// Applies a command, and prints the rotation.
fn change(
    global: &GlobalOptions,
    root: &NodeRoot,
    subject: RotationSubject,
    order: &RotationCommand,
    keys: Option<&ServiceAccountKeys>,
    dry_run: bool,
    kubeconfig: &KubeconfigFile,
) -> Result<ExitCode, Failure> {
    let applied = command::apply(root, kubeconfig, subject, order, keys, dry_run, now());
    let (view, is_changed) = runtime()?.block_on(applied)?;
    let said = || {
        let outcome = match (is_changed, dry_run) {
            (true, _) => format!("nodepki authority watch {subject} shows its progress"),
            (false, true) => "nothing was changed (to apply the change, omit --dry-run)".to_owned(),
            (false, false) => "nothing to do".to_owned(),
        };
        format!("{}{outcome}\n", text(std::slice::from_ref(&view)))
    };
    let body = ListBody {
        items: std::slice::from_ref(&view),
    };
    let kind = DocumentKind::AuthorityRotation;
    global.print_body(kind, ExitCode::Done, &body, said)
}

pub(super) fn change_by(
    global: &GlobalOptions,
    root: &NodeRoot,
    args: &ChangeArgs,
    order: &RotationCommand,
) -> Result<ExitCode, Failure> {
    let kubeconfig = args.cluster.kubeconfig();
    change(global, root, args.subject, order, None, false, &kubeconfig)
}

pub(super) fn watch(
    global: &GlobalOptions,
    root: &NodeRoot,
    args: &WatchArgs,
) -> Result<ExitCode, Failure> {
    let subjects: BTreeSet<RotationSubject> = args.subjects.iter().copied().collect();
    let kubeconfig = args.cluster.kubeconfig();
    let runtime = runtime()?;
    let (mut shown, mut trouble) = (String::new(), String::new());
    loop {
        let views = runtime.block_on(command::view(
            root,
            &kubeconfig,
            &subjects,
            args.once,
            now(),
        ));
        let views = match views {
            Ok(views) => views,
            // The API server that is asked may be restarting for the rotation.
            Err(failure) if failure.code == ExitCode::Unreachable && !args.once => {
                let message = failure.one_line();
                if message != trouble {
                    print_message(&format!("{message}; trying again"));
                    trouble = message;
                }
                std::thread::sleep(WATCH_INTERVAL);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        trouble.clear();
        let is_over = views.iter().all(|view| view.rotation.phase.is_end());
        let is_last = is_over || args.once;
        let code = if is_over {
            ExitCode::Done
        } else {
            ExitCode::Pending
        };
        if is_last && !global.output.is_text() {
            let body = ListBody { items: &views };
            let kind = DocumentKind::AuthorityRotation;
            return global.print_body(kind, code, &body, String::new);
        }
        let text = text(&views);
        if global.output.is_text() && text != shown {
            show(&text, &shown)?;
            shown = text;
        }
        if is_last {
            return Ok(code);
        }
        std::thread::sleep(WATCH_INTERVAL);
    }
}

/// Prints a state in place of the one before.
fn show(text: &str, before: &str) -> Result<(), Failure> {
    if stdout().is_terminal() && !before.is_empty() {
        // Moves up over the former lines and clears them.
        let lines = before.lines().count();
        let up = format!("\u{1b}[{lines}A\u{1b}[J");
        super::super::output::print_control(&up)?;
    } else if !before.is_empty() {
        print("\n")?;
    }
    print(text).map(drop)
}

fn heading(rotation: &AuthorityRotation) -> String {
    let phases = match rotation.phase {
        RotationPhase::Revert | RotationPhase::Withdraw | RotationPhase::Undone => {
            "revert, withdraw, undone"
        }
        _ => "trust, activate, retire, done",
    };
    let paused = if rotation.paused { ", paused" } else { "" };
    let wait = rotation.token_wait.as_ref().map_or_else(String::new, |wait| {
        format!(
            "\n    both keys are trusted until {}, when the last token of the former one has expired",
            rfc3339(wait.until)
        )
    });
    let short = |sha256: &str| sha256.get(..16).unwrap_or(sha256).to_owned();
    format!(
        "{}: phase {}{paused} (of {phases}), rotation {}\n    from sha256:{}… to sha256:{}…{wait}\n",
        rotation.subject,
        rotation.phase,
        rotation.id,
        short(&rotation.old.sha256),
        short(&rotation.new.sha256)
    )
}

fn text(views: &[RotationView]) -> String {
    if views.is_empty() {
        return "no CA or key of this cluster was rotated (nodepki authority rotate AUTHORITY --certificate FILE starts a rotation)\n"
            .to_owned();
    }
    let mut text = String::new();
    for view in views {
        text.push_str(&heading(&view.rotation));
        let under = match view.rotation.subject {
            RotationSubject::Authority(_) => "CERTIFICATES",
            RotationSubject::ServiceAccount => "SIGNS",
        };
        let mut table =
            Table::new(&["NODE", "STATE", "PHASE", "TRUSTS", under, "NOTE"]).wrapping_last();
        for node in &view.nodes {
            table.push(row(&view.rotation, node), Vec::new());
        }
        text.push_str(&table.render(text_style()));
        for waits in &view.waits {
            text.push_str(&format!("waits: {waits}\n"));
        }
        for outside in &view.outside {
            text.push_str(&format!("outside of the nodes: {outside}\n"));
        }
    }
    text
}

fn row(rotation: &AuthorityRotation, node: &NodeView) -> Vec<Cell> {
    let state = match (node.excluded, node.proven) {
        (_, true) => Cell::new("proven"),
        (true, false) => Cell::state("excluded", Emphasis::Warning),
        (false, false) => Cell::state("waiting", Emphasis::Warning),
    };
    let proof = node.proof.as_ref();
    let both = |contains: &dyn Fn(&str) -> bool| {
        let named = [(&rotation.old, "old"), (&rotation.new, "new")];
        let found: Vec<&str> = named
            .into_iter()
            .filter(|(ca, _)| contains(&ca.sha256))
            .map(|(_, name)| name)
            .collect();
        (!found.is_empty()).then(|| found.join(", "))
    };
    let begun = proof.and_then(|proof| proof.begun.as_ref());
    let phase = begun.filter(|begun| begun.rotation == rotation.id);
    vec![
        Cell::new(&node.node),
        state,
        Cell::optional(phase.map(|begun| begun.phase.to_string())),
        Cell::optional(
            proof.and_then(|proof| both(&|sha256| proof.trusted_by_all.contains(sha256))),
        ),
        Cell::optional(
            proof.and_then(|proof| both(&|sha256| proof.certificates_under.contains(sha256))),
        ),
        Cell::optional(proof.and_then(|proof| proof.failure.as_ref())),
    ]
}
