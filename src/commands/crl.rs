//! `nodepki crl`.

use super::options::{GlobalOptions, RunOptions};
use super::output::next::{self, NodeFacts};
use super::output::terminal::Terminal;
use super::output::{DocumentKind, print_warnings};
use super::{now, runtime};
use crate::agent::{self, ExitCode, Failure};
use crate::daemon::metrics::Metrics;
use crate::process::confine::confine;

pub(super) fn run(options: &RunOptions, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let command = options.command(global, "crl");
    update(options, global, &command).map_err(|failure| next::closed(failure, &command))
}

fn update(
    options: &RunOptions,
    global: &GlobalOptions,
    command: &str,
) -> Result<ExitCode, Failure> {
    let loaded = global.load_running(&options.inputs(global)?)?;
    let root = global.open_root()?;
    confine(&loaded.reach(&root)?);
    let terminal = Terminal::new(global.verbose);
    let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "crl");
    let recorder = metrics.recorder(&loaded.setup, &terminal, now());
    let update = agent::update_revocations(&root, &loaded.setup, now, &recorder);
    let report = runtime()?.block_on(terminal.during(update));
    drop(terminal);
    print_warnings(&metrics.ended(&loaded.setup, ExitCode::of(report.as_ref()), None, now()));
    let report = report?;
    let code = report.code().max(metrics.code());
    let next = next::after_run(global, &NodeFacts::of(&loaded), &report, code, command);
    let next = next.filter(|_| code != ExitCode::Done);
    global.finish(DocumentKind::RevocationLists, &report, code, next)
}
