//! Output of the commands: results on stdout; messages, log events and progress on stderr or in the journal.

mod journal;
mod screen;
pub(super) mod table;
pub(super) mod terminal;

use serde::Serialize;

use super::options::{GlobalOptions, OutputFormat};
use crate::agent::{ExitCode, Failure, RunReport};
use crate::store::{NodeRoot, STATE_DIR};
use crate::yaml;

pub(super) use screen::{
    ColourChoice, has_colour, print, print_exact, print_json, print_message, print_to_stderr,
    set_colour,
};

pub(super) fn print_failure(failure: &Failure) {
    for message in &failure.messages {
        let message = message.to_string();
        print_message(&message);
        tracing::debug!(exit = failure.code as u8, "{message}");
    }
}

pub(super) fn print_warnings(warnings: &[String]) {
    for warning in warnings {
        print_message(warning);
    }
}

fn unprintable(error: impl std::error::Error + 'static) -> Failure {
    Failure::new(ExitCode::Pending, "the result cannot be printed").caused_by(error)
}

/// Reports a commit that an earlier run has not finished. A state directory that cannot be read is reported by the command
/// itself.
pub(super) fn print_unfinished(root: &NodeRoot) {
    if root.has_unfinished().unwrap_or(false) {
        print_message(&format!(
            "a run was interrupted while it installed files, or is in progress: {} contains its record (nodepki bootstrap completes it)",
            root.node_path(STATE_DIR)
        ));
    }
}

/// Prints what a run that failed in part has installed and what it has not.
pub(super) fn print_remainder(report: &RunReport) {
    if let Some(remainder) = report.remainder() {
        print_message(&remainder);
    }
}

impl GlobalOptions {
    /// Prints a report and returns the gravest code of its rows. A failure to print never hides a graver code.
    pub(super) fn finish(&self, report: &RunReport) -> Result<ExitCode, Failure> {
        let code = report.code();
        match self.print_report(report) {
            Err(failure) if failure.code > code => Err(failure),
            Err(failure) => {
                print_failure(&failure);
                Ok(code)
            }
            Ok(_) => Ok(code),
        }
    }

    fn print_report(&self, report: &RunReport) -> Result<ExitCode, Failure> {
        match self.output.is_text() {
            true => print(&table::render(report, self.verbose > 0, &self.root)),
            false => self.print_value(report, self.output),
        }
    }

    /// Prints a value in the format of `-o`, or in `default` if that is a text format.
    pub(super) fn print_value(
        &self,
        value: &impl Serialize,
        default: OutputFormat,
    ) -> Result<ExitCode, Failure> {
        let format = match self.output.is_text() {
            true => default,
            false => self.output,
        };
        match format {
            OutputFormat::Yaml => {
                let text = yaml::to_string(value).map_err(unprintable)?;
                print_exact(&text)
            }
            _ => {
                let text = serde_json::to_string_pretty(value).map_err(unprintable)?;
                print_json(&(text + "\n"))
            }
        }
    }

    /// Prints `text` for people, or the value itself for programs.
    pub(super) fn print_either(
        &self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<ExitCode, Failure> {
        match self.output.is_text() {
            true => print(&text()),
            false => self.print_value(value, self.output),
        }
    }
}
