//! `nodepki bootstrap` and `nodepki plan`.

use super::options::{GlobalOptions, RunOptions, SourceOptions};
use super::output::terminal::Terminal;
use super::output::{print_message, print_remainder, print_unfinished, print_warnings};
use super::{now, runtime};
use crate::agent::load::{self, IdentityChange, LoadInputs, Loaded};
use crate::agent::{self, ExitCode, Failure, join, rotation};
use crate::daemon::metrics::Metrics;
use crate::kube::kubeadm::KubeadmRole;
use crate::kube::names::CertName;
use crate::process::confine::confine;
use crate::spec;

pub(super) fn bootstrap(options: &RunOptions, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let loaded = global.load_joining(&options.inputs(global)?)?;
    let terminal = Terminal::new(global.verbose);
    let root = global.open_root()?;
    confine(&loaded.reach(&root)?);
    let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "bootstrap");
    let recorder = metrics.recorder(&loaded.setup, &terminal, now());
    let report = runtime()?.block_on(agent::bootstrap(&root, &loaded.setup, now, &recorder));
    drop(terminal);
    print_warnings(&metrics.ended(&loaded.setup, ExitCode::of(report.as_ref()), None, now()));
    let report = report?;
    rotation::log(&report);
    let code = global.finish(&report)?.max(metrics.code());
    print_remainder(&report);
    if report.code() == ExitCode::Pending {
        print_message(
            "some signatures are pending; run the same command again to continue with the same keys",
        );
    }
    if loaded.node.role == KubeadmRole::Join && !report.written.is_empty() {
        // The node has a client certificate only now.
        compare_service_account(&loaded, global)?;
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
    let inputs = LoadInputs {
        identity_change: IdentityChange::Show,
        ..sources.inputs(global)?
    };
    let loaded = global.load_joining(&inputs)?;
    let root = global.open_root()?;
    print_unfinished(&root);
    let survey = loaded.setup.survey(&root, now())?;
    let code = global.finish(&agent::report::planned(&loaded.setup, &survey))?;
    let is_signed_by_none = loaded.setup.signers.is_empty() && survey.to_issue().next().is_some();
    match survey.refusals.is_empty() {
        // The report names the authorities.
        true if is_signed_by_none => Ok(code.max(ExitCode::Configuration)),
        true => Ok(code),
        false => Err(Failure::with_messages(ExitCode::Refused, survey.refusals)),
    }
}
