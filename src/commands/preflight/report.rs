//! The report of `nodepki preflight`.

use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use crate::agent::ExitCode;
use crate::commands::output::{Closing, plural};
use crate::store::NodeRoot;
use crate::table::{Cell, Emphasis, Table, TextStyle};

/// All checks of a run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PreflightReport {
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
    /// The root on this machine.
    root: String,
    checks: Vec<PreflightCheck>,
    /// What to run next, if no check failed.
    #[serde(skip)]
    pub(super) next: Option<String>,
    /// What to do about exported requests, on a node without signers.
    #[serde(skip)]
    pub(super) import: Option<String>,
}

/// One check.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PreflightCheck {
    /// Stable id.
    id: &'static str,
    /// Signer, authority or name that was checked; empty for the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    subject: String,
    result: CheckResult,
    /// What was found.
    detail: String,
    /// What to do, if `detail` does not state it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
    /// Exit status that a run would end with.
    #[serde(serialize_with = "number")]
    exit_code: ExitCode,
}

words! {
    enum CheckResult: Serialize {
        Ok = "ok",
        Warning = "warning",
        Error = "error",
        /// Another check must pass first.
        Skipped = "skipped",
    }
}

fn number<S: Serializer>(code: &ExitCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(*code as u8)
}

impl PreflightCheck {
    fn new(id: &'static str, subject: &str, result: CheckResult, detail: String) -> Self {
        PreflightCheck {
            id,
            subject: subject.to_owned(),
            result,
            detail,
            fix: None,
            exit_code: ExitCode::Done,
        }
    }

    pub(super) fn passed(id: &'static str, subject: &str, found: impl Into<String>) -> Self {
        Self::new(id, subject, CheckResult::Ok, found.into())
    }

    pub(super) fn skipped(id: &'static str, subject: &str, why: impl Into<String>) -> Self {
        Self::new(id, subject, CheckResult::Skipped, why.into())
    }

    pub(super) fn warning(
        id: &'static str,
        subject: &str,
        problem: impl Into<String>,
        fix: Option<String>,
    ) -> Self {
        PreflightCheck {
            fix,
            ..Self::new(id, subject, CheckResult::Warning, problem.into())
        }
    }

    pub(super) fn failed(
        id: &'static str,
        subject: &str,
        exit_code: ExitCode,
        problem: impl Into<String>,
        fix: Option<String>,
    ) -> Self {
        PreflightCheck {
            fix,
            exit_code,
            ..Self::new(id, subject, CheckResult::Error, problem.into())
        }
    }
}

impl PreflightReport {
    pub(super) fn new(root: &NodeRoot, at: OffsetDateTime) -> Self {
        PreflightReport {
            at,
            root: root.path().display().to_string(),
            checks: Vec::new(),
            next: None,
            import: None,
        }
    }

    pub(super) fn extend(&mut self, checks: impl IntoIterator<Item = PreflightCheck>) {
        self.checks.extend(checks);
    }

    /// Returns the gravest exit status of the checks.
    pub(super) fn exit_code(&self) -> ExitCode {
        let codes = self.checks.iter().map(|check| check.exit_code);
        codes.max().unwrap_or(ExitCode::Done)
    }

    /// Returns one line for each check, with its fix below it.
    pub(super) fn table(&self, style: TextStyle) -> String {
        let headings = ["RESULT", "CHECK", "SUBJECT", "DETAIL"];
        let mut table = Table::new(&headings).wrapping_last();
        for check in &self.checks {
            let emphasis = match check.result {
                CheckResult::Error => Emphasis::Error,
                CheckResult::Warning => Emphasis::Warning,
                CheckResult::Ok | CheckResult::Skipped => Emphasis::Plain,
            };
            let cells = vec![
                Cell::state(check.result.as_str(), emphasis),
                Cell::new(check.id),
                Cell::optional(Some(&check.subject)),
                Cell::new(&check.detail),
            ];
            let fix = check.fix.iter().map(|fix| format!("fix: {fix}"));
            table.push(cells, fix.collect());
        }
        table.render(style)
    }

    /// Returns the number of checks with each result, and the next command; `again` is this one.
    pub(super) fn closing(&self, again: &str) -> Closing {
        let count = |result| {
            let checks = self.checks.iter();
            checks.filter(|check| check.result == result).count()
        };
        let (errors, warnings) = (count(CheckResult::Error), count(CheckResult::Warning));
        let next = match self.exit_code() {
            ExitCode::Done => self.next.clone(),
            ExitCode::Configuration if self.import.is_some() => self.import.clone(),
            _ => Some(format!("correct the errors, then run {again}")),
        };
        Closing::default()
            .count(errors, "error", plural(errors, "error"))
            .count(warnings, "warning", plural(warnings, "warning"))
            .count(count(CheckResult::Ok), "ok", "ok")
            .count(count(CheckResult::Skipped), "skipped", "skipped")
            .then(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_with_gravest_code_and_counts_results() {
        let root = NodeRoot::open("/").unwrap();
        let mut report = PreflightReport::new(&root, OffsetDateTime::UNIX_EPOCH);
        report.next = Some("nodepki bootstrap".to_owned());
        report.extend([
            PreflightCheck::passed("space", "", "every file can be written"),
            PreflightCheck::warning("names", "api.example.com", "no address", None),
        ]);
        assert_eq!(report.exit_code(), ExitCode::Done);
        let closing = report.closing("nodepki preflight").to_string();
        assert_eq!(closing, "1 warning, 1 ok; next: nodepki bootstrap");
        let fix = Some("unseal it".to_owned());
        report.extend([
            PreflightCheck::failed("authority", "ca", ExitCode::Refused, "another CA", None),
            PreflightCheck::failed("signer", "v", ExitCode::Unreachable, "it is sealed", fix),
            PreflightCheck::skipped("certificates", "ca", "signer v must work first"),
        ]);
        assert_eq!(report.exit_code(), ExitCode::Refused);
        let text = report.table(TextStyle::default());
        assert!(
            text.contains("it is sealed\n    fix: unseal it\n"),
            "{text}"
        );
        assert_eq!(
            report.closing("nodepki preflight").to_string(),
            "2 errors, 1 warning, 1 ok, 1 skipped; next: correct the errors, then run nodepki preflight"
        );
    }
}
