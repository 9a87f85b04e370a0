//! `daemon`.

use clap::Args;

use super::{Global, Run, Sources, now, runtime, terminal::Terminal};
use crate::agent::{ExitCode, Failure};
use crate::daemon;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    sources: Sources,
}

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let inputs = Run::of(self.sources).inputs(global)?;
        let terminal = Terminal::new(global.verbose);
        runtime()?.block_on(daemon::run(&root, &inputs, now, &terminal))?;
        Ok(ExitCode::Done)
    }
}
