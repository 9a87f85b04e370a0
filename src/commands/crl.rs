//! `nodepki crl`.

use super::options::{GlobalOptions, RunOptions};
use super::output::print_warnings;
use super::output::terminal::Terminal;
use super::{now, runtime};
use crate::agent::{self, ExitCode, Failure};
use crate::daemon::metrics::Metrics;
use crate::process::confine::confine;

pub(super) fn run(options: &RunOptions, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let loaded = global.load_running(&options.inputs(global)?)?;
    let root = global.open_root()?;
    confine(&loaded.reach(&root)?);
    let terminal = Terminal::new(global.verbose);
    let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "crl");
    let recorder = metrics.recorder(&loaded.setup, &terminal, now());
    let update = agent::update_revocations(&root, &loaded.setup, now, &recorder);
    let report = runtime()?.block_on(update);
    print_warnings(&metrics.ended(&loaded.setup, ExitCode::of(report.as_ref()), None, now()));
    Ok(global.finish(&report?)?.max(metrics.code()))
}
