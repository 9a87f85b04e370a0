//! Output of the commands: results on stdout; messages, log events and progress on stderr or in the journal.

mod addressed;
mod closing;
mod document;
mod journal;
pub(super) mod next;
mod progress;
mod screen;
pub(super) mod table;
pub(super) mod terminal;

use serde::Serialize;

use super::now;
use super::options::{GlobalOptions, OutputFormat};
use crate::agent::{ExitCode, Failure, RunReport};
use crate::store::{NodeRoot, STATE_DIR, UnfinishedWork};
use crate::yaml;
use document::{Document, FailureBody, RunBody};
use table::RowDetail;

pub(super) use addressed::set_node_options;
use addressed::{addressed, addressed_document};
pub(super) use closing::Closing;
pub(super) use document::{DocumentKind, ListBody};
pub(super) use screen::{
    ColourChoice, print, print_control, print_exact, print_json, print_message, print_to_stderr,
    release_log, set_colour, text_style,
};

/// Returns a word for this number of objects.
pub(super) fn plural(count: usize, one: &str) -> String {
    match count {
        1 => one.to_owned(),
        _ => format!("{one}s"),
    }
}

pub(super) fn print_failure(failure: &Failure) {
    for message in &failure.messages {
        let message = message.to_string();
        let exit = failure.code as u8;
        if terminal::logs_json() {
            tracing::error!(exit, "{message}");
        } else {
            print_message(&message);
            tracing::debug!(exit, "{message}");
        }
    }
}

/// Prints the document of a failure that ended the whole command, unless the command has printed its own.
pub(super) fn print_failure_document(format: OutputFormat, failure: &Failure) {
    if !matches!(format, OutputFormat::Json | OutputFormat::Yaml) || screen::has_written() {
        return;
    }
    let closing = Closing::default();
    let body = FailureBody {
        messages: failure.texts(),
    };
    let document = Document::new(DocumentKind::Failure, failure.code.into(), &closing, &body);
    if let Err(unprinted) = print_formatted(&document, format, addressed_document) {
        print_failure(&unprinted);
    }
}

/// Prints a value, with its commands completed by `finish`.
fn print_formatted(
    value: &impl Serialize,
    format: OutputFormat,
    finish: impl Fn(String) -> String,
) -> Result<ExitCode, Failure> {
    match format {
        OutputFormat::Yaml => {
            let text = yaml::to_string(value).map_err(unprintable)?;
            print_exact(&finish(text))
        }
        _ => {
            let text = serde_json::to_string_pretty(value).map_err(unprintable)?;
            print_json(&finish(text + "\n"))
        }
    }
}

pub(super) fn print_warnings(warnings: &[String]) {
    for warning in warnings {
        print_message(&format!("warning: {warning}"));
    }
}

fn unprintable(error: impl std::error::Error + 'static) -> Failure {
    Failure::pending("the result cannot be printed").caused_by(error)
}

/// Reports a commit that an earlier run has not finished. A state directory that cannot be read is reported by the command
/// itself.
pub(super) fn print_unfinished(root: &NodeRoot) {
    let Ok(Some(work)) = root.unfinished_work() else {
        return;
    };
    let advice = match &work {
        UnfinishedWork::Files => "nodepki bootstrap completes it".to_owned(),
        UnfinishedWork::KeyRemoval { backup, .. } => format!(
            "nodepki bootstrap completes it if the backup {} is unchanged, and keeps the keys otherwise",
            backup.shown(root).display()
        ),
    };
    print_message(&format!(
        "a run was interrupted while it {}, or is in progress: {} contains its record ({advice})",
        work.doing(),
        root.node_path(STATE_DIR)
    ));
}

impl GlobalOptions {
    /// Prints a report with its closing line, and returns `code`, the exit status of the run. A failure to print never
    /// hides a graver code.
    pub(super) fn finish(
        &self,
        kind: DocumentKind,
        report: &RunReport,
        code: ExitCode,
        next: Option<String>,
    ) -> Result<ExitCode, Failure> {
        let closing = Closing::of_run(report, next);
        let detail = match kind {
            DocumentKind::Plan => self.row_detail().max(RowDetail::Requested),
            _ => self.row_detail(),
        };
        let body = RunBody {
            at: now(),
            root: self.root.display().to_string(),
            report,
        };
        let printed = self.print_document(kind, code, &closing, &body, || {
            table::rows_text(report, detail, &closing, text_style())
        });
        match printed {
            Err(failure) if failure.code > code => Err(failure),
            Err(failure) => {
                print_failure(&failure);
                Ok(code)
            }
            Ok(code) => Ok(code),
        }
    }

    /// Returns what a table shows of each row.
    pub(super) fn row_detail(&self) -> RowDetail {
        match self.verbose {
            0 => RowDetail::Brief,
            _ => RowDetail::Full,
        }
    }

    /// Prints `text` and the closing line for people, or the document for programs. Returns `code`.
    pub(super) fn print_document(
        &self,
        kind: DocumentKind,
        code: ExitCode,
        closing: &Closing,
        body: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<ExitCode, Failure> {
        let text = || format!("{}{}\n", text(), closing.text(text_style()));
        self.print_closed(kind, code, closing, body, text)
    }

    /// As [`GlobalOptions::print_document`], without the closing line in the text.
    pub(super) fn print_closed<C: Copy + Into<u8>>(
        &self,
        kind: DocumentKind,
        code: C,
        closing: &Closing,
        body: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<C, Failure> {
        self.print_either(&Document::new(kind, code.into(), closing, body), text)?;
        Ok(code)
    }

    /// As [`GlobalOptions::print_document`], without a closing line.
    pub(super) fn print_body<C: Copy + Into<u8>>(
        &self,
        kind: DocumentKind,
        code: C,
        body: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<C, Failure> {
        self.print_closed(kind, code, &Closing::default(), body, text)
    }

    /// Prints a value in the format of `-o`, or in `default` if that is a text format.
    pub(super) fn print_value(
        &self,
        value: &impl Serialize,
        default: OutputFormat,
    ) -> Result<ExitCode, Failure> {
        let format = if self.output.is_text() {
            default
        } else {
            self.output
        };
        print_formatted(value, format, |text| text)
    }

    /// Prints `text` for people, or the value itself for programs.
    pub(super) fn print_either(
        &self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<ExitCode, Failure> {
        if self.output.is_text() {
            print(&addressed(text()))
        } else {
            print_formatted(value, self.output, addressed_document)
        }
    }
}
