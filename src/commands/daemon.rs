//! `nodepki daemon`.

use clap::Args;

use super::options::{GlobalOptions, SourceOptions};
use super::output::terminal::Terminal;
use super::{now, runtime};
use crate::agent::{ExitCode, Failure};
use crate::daemon;

#[derive(Debug, Args)]
pub(super) struct DaemonArgs {
    #[command(flatten)]
    sources: SourceOptions,
}

impl DaemonArgs {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let inputs = self.sources.inputs(global)?;
        let terminal = Terminal::log_only();
        runtime()?.block_on(daemon::run(&root, &inputs, now, &terminal))?;
        Ok(ExitCode::Done)
    }
}
