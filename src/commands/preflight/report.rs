//! The report of `nodepki preflight`.

use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use crate::agent::ExitCode;
use crate::commands::output::table;
use crate::config::API_VERSION;
use crate::store::NodeRoot;

/// All checks of a run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PreflightReport {
    api_version: &'static str,
    kind: &'static str,
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
    /// The root on this machine.
    root: String,
    checks: Vec<PreflightCheck>,
    /// What to run next, if no check failed.
    #[serde(skip)]
    pub(super) next: Option<String>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum CheckResult {
    Ok,
    Warning,
    Error,
    /// Another check must pass first.
    Skipped,
}

impl CheckResult {
    const fn as_str(self) -> &'static str {
        match self {
            CheckResult::Ok => "ok",
            CheckResult::Warning => "warning",
            CheckResult::Error => "error",
            CheckResult::Skipped => "skipped",
        }
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
            api_version: API_VERSION,
            kind: "PreflightReport",
            at,
            root: root.path().display().to_string(),
            checks: Vec::new(),
            next: None,
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

    /// Returns one line for each check, with its fix below it, and a last line with the numbers and the next command.
    pub(super) fn table(&self) -> String {
        let rows = self.checks.iter().map(|check| {
            let cells = vec![
                check.result.as_str().to_owned(),
                check.id.to_owned(),
                match check.subject.as_str() {
                    "" => "-".to_owned(),
                    subject => subject.to_owned(),
                },
                check.detail.clone(),
            ];
            let fix = check.fix.iter().map(|fix| format!("fix: {fix}"));
            (cells, fix.collect())
        });
        let mut text = table::aligned(&["RESULT", "CHECK", "SUBJECT", "DETAIL"], rows.collect());
        text.push_str(&self.closing());
        text
    }

    fn closing(&self) -> String {
        let count = |result| {
            let checks = self.checks.iter();
            checks.filter(|check| check.result == result).count()
        };
        let plural = |count: usize, one: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {one}s"),
        };
        let sum = format!(
            "{}, {}, {} ok, {} skipped",
            plural(count(CheckResult::Error), "error"),
            plural(count(CheckResult::Warning), "warning"),
            count(CheckResult::Ok),
            count(CheckResult::Skipped)
        );
        match (&self.next, self.exit_code()) {
            (Some(next), ExitCode::Done) => format!("{sum}; next: {next}\n"),
            _ => format!("{sum}; next: correct the errors and run nodepki preflight again\n"),
        }
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
        assert!(
            report
                .table()
                .ends_with("0 errors, 1 warning, 1 ok, 0 skipped; next: nodepki bootstrap\n")
        );
        let fix = Some("unseal it".to_owned());
        report.extend([
            PreflightCheck::failed("authority", "ca", ExitCode::Refused, "another CA", None),
            PreflightCheck::failed("signer", "v", ExitCode::Unreachable, "it is sealed", fix),
            PreflightCheck::skipped("certificates", "ca", "signer v must work first"),
        ]);
        assert_eq!(report.exit_code(), ExitCode::Refused);
        let text = report.table();
        assert!(
            text.contains("it is sealed\n    fix: unseal it\n"),
            "{text}"
        );
        assert!(
            text.contains("2 errors, 1 warning, 1 ok, 1 skipped; next: correct"),
            "{text}"
        );
    }
}
