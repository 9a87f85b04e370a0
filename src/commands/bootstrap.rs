//! `nodepki bootstrap` and `nodepki plan`.

use std::io::{IsTerminal, stderr, stdout};

use super::options::{GlobalOptions, RunOptions, SourceOptions};
use super::output::next::{self, NodeFacts};
use super::output::terminal::{Terminal, log_rows};
use super::output::{DocumentKind, print_unfinished, print_warnings};
use super::{now, runtime};
use crate::agent::load::{self, IdentityChange, LoadInputs, Loaded};
use crate::agent::{self, ExitCode, Failure, PlannedBootstrap, join};
use crate::daemon::metrics::Metrics;
use crate::kube::kubeadm::KubeadmRole;
use crate::kube::names::CertName;
use crate::process::confine::confine;
use crate::spec;
use crate::store::Slot;

pub(super) fn bootstrap(options: &RunOptions, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let command = options.command(global, "bootstrap");
    let loaded = options.inputs(global);
    let loaded = loaded.and_then(|inputs| global.load_joining(&inputs));
    let loaded = loaded.map_err(|failure| next::closed(failure, &command))?;
    run(&loaded, global, &command).map_err(|mut failure| {
        let root = global.open_root().ok();
        let root = root.filter(|_| failure.code == ExitCode::Configuration);
        let import = root.and_then(|root| {
            next::awaited_import(&root, &loaded, |verb| options.command(global, verb))
        });
        let Some(import) = import else {
            return next::closed(failure, &command);
        };
        failure.messages.push(format!("next: {import}").into());
        failure
    })
}

fn run(loaded: &Loaded, global: &GlobalOptions, command: &str) -> Result<ExitCode, Failure> {
    let terminal = Terminal::new(global.verbose);
    let root = global.open_root()?;
    loaded.keep_cluster_policy(&root)?;
    confine(&loaded.reach(&root)?);
    let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "bootstrap");
    let recorder = metrics.recorder(&loaded.setup, &terminal, now());
    let bootstrap = agent::bootstrap(&root, &loaded.setup, now, &recorder);
    let report = runtime()?.block_on(terminal.during(bootstrap));
    drop(terminal);
    print_warnings(&metrics.ended(&loaded.setup, ExitCode::of(report.as_ref()), None, now()));
    let report = report?;
    log_rows(&report);
    let code = report.code().max(metrics.code());
    let next = next::after_run(global, &NodeFacts::of(loaded), &report, code, command);
    let code = global.finish(DocumentKind::Bootstrap, &report, code, next)?;
    if loaded.node.role == KubeadmRole::Join && !report.written.is_empty() {
        // The node has a client certificate only now.
        compare_service_account(loaded, global)?;
    }
    Ok(code)
}

fn compare_service_account(loaded: &Loaded, global: &GlobalOptions) -> Result<(), Failure> {
    let root = global.open_root()?;
    let spec = loaded.setup.plan.cert(CertName::AdminConf);
    let Some(spec::CertFiles::Kubeconfig { path, .. }) = spec.map(|spec| &spec.output) else {
        return Ok(());
    };
    let api = load::cluster(&root, path.as_ref())?;
    runtime()?.block_on(join::compare_service_account(&root, &loaded.setup, &api))
}

pub(super) fn plan(sources: SourceOptions, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let command = sources.command(global, "plan");
    show_plan(sources, global).map_err(|failure| next::closed(failure, &command))
}

fn show_plan(sources: SourceOptions, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let inputs = LoadInputs {
        identity_change: IdentityChange::SHOW_ALL,
        ..sources.clone().inputs(global)?
    };
    let loaded = global.load_joining(&inputs)?;
    let root = global.open_root()?;
    print_unfinished(&root);
    let PlannedBootstrap {
        survey,
        report,
        code,
    } = runtime()?.block_on(agent::plan_bootstrap(&root, &loaded, now()))?;
    let bootstrap = sources.command(global, "bootstrap");
    let tickets = root.tickets()?;
    let records = survey.to_issue().map(|cert| {
        let slot = Slot::from(cert.spec.name());
        let mut tickets = tickets.iter();
        tickets.find(|(one, _)| *one == slot)?.1.as_ref()
    });
    let outdated = agent::outdated_exports(&root, &survey)?;
    let import = next::after_export(&root, records, !outdated.is_empty(), |command| {
        sources.command(global, command)
    });
    // A terminal shows the rows and the messages together.
    let refusals: Vec<String> = if stdout().is_terminal() && stderr().is_terminal() {
        let refusals = survey.refusals_without_row();
        refusals.map(ToString::to_string).collect()
    } else {
        survey.refusals.iter().map(ToString::to_string).collect()
    };
    let next = match code {
        ExitCode::Done if survey.is_settled() => next::after_success(
            global,
            &NodeFacts::of(&loaded),
            &report.ignore_preflight_errors,
        ),
        ExitCode::Done => Some(match import {
            Some(import) => format!("{bootstrap}; or {import}"),
            None => bootstrap,
        }),
        ExitCode::Configuration if report.code() == ExitCode::Done && import.is_some() => import,
        // The refusals follow, and a line of their own after them.
        _ if !refusals.is_empty() => None,
        _ => Some(format!("correct this, then run {bootstrap}")),
    };
    let code = global.finish(DocumentKind::Plan, &report, code, next)?;
    Failure::require_none(refusals)?;
    Ok(code)
}
