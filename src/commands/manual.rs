//! `nodepki man` and `nodepki completions`.

use std::io::{Error, Write, stdout};
use std::path::Path;

use clap_complete::Shell;

use super::output::print_exact;
use crate::agent::{ExitCode, Failure};

/// Prints the manual page of `program`, or writes a page for each command into `dir`.
pub(super) fn print_pages(program: clap::Command, dir: Option<&Path>) -> Result<ExitCode, Failure> {
    let failed = |error: Error| {
        Failure::caused(
            ExitCode::NotPermitted,
            "the manual pages could not be written",
            error,
        )
    };
    match dir {
        Some(dir) => clap_mangen::generate_to(program, dir).map_err(failed)?,
        None => clap_mangen::Man::new(program)
            .render(&mut stdout())
            .and_then(|()| stdout().flush())
            .map_err(failed)?,
    }
    Ok(ExitCode::Done)
}

pub(super) fn print_completions(
    mut program: clap::Command,
    shell: Shell,
) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, "nodepki", &mut script);
    print_exact(&String::from_utf8_lossy(&script))
}
