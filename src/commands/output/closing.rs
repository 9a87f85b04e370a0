//! The last line of a command: counts by outcome, the one cause if there is only one, and what to run next.

use std::collections::BTreeMap;
use std::fmt;

use crate::agent::{ReportRow, RowAction, RunReport};
use crate::table::without_word;

/// The last line of a command, also part of its JSON document.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Closing {
    /// Number, key in JSON, and text for people, in the order of the line.
    counts: Vec<(usize, &'static str, String)>,
    /// Shown instead of the counts if there are none.
    nothing: Option<&'static str>,
    cause: Option<String>,
    next: Option<String>,
}

impl Closing {
    /// Returns the closing line of a report.
    pub(in super::super) fn of_run(report: &RunReport, next: Option<String>) -> Closing {
        let mut closing = Closing::default().then(next);
        for (action, count) in report.counts() {
            let shown = if action.is_planned() {
                format!("to {action}")
            } else {
                action.to_string()
            };
            closing = closing.count(count, action.as_str(), shown);
        }
        closing.cause = sole_cause(report);
        closing
    }

    /// Adds the number of objects with one outcome; zero is not shown.
    #[must_use]
    pub(in super::super) fn count(
        mut self,
        count: usize,
        key: &'static str,
        shown: impl Into<String>,
    ) -> Closing {
        if count > 0 {
            self.counts.push((count, key, shown.into()));
        }
        self
    }

    /// Sets what is shown if nothing was counted.
    #[must_use]
    pub(in super::super) fn or_nothing(mut self, nothing: &'static str) -> Closing {
        self.nothing = Some(nothing);
        self
    }

    /// Sets what to run next.
    #[must_use]
    pub(in super::super) fn then(mut self, next: Option<String>) -> Closing {
        self.next = next;
        self
    }

    /// Returns the counts by key.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, usize> {
        let counts = self.counts.iter();
        counts.map(|(count, key, _)| (*key, *count)).collect()
    }

    pub(super) fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    pub(super) fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts.iter();
        let counts: Vec<String> = counts
            .map(|(count, _, shown)| format!("{count} {shown}"))
            .collect();
        if counts.is_empty() {
            f.write_str(self.nothing.unwrap_or("nothing to do"))?
        } else {
            f.write_str(&counts.join(", "))?
        }
        if let Some(cause) = &self.cause {
            write!(f, ": {}", cause.replace('\n', " "))?;
        }
        if let Some(next) = &self.next {
            write!(f, "; next: {next}")?;
        }
        Ok(())
    }
}

/// Rows with the same action for the same reasons.
pub(super) struct RowGroup<'a> {
    pub(super) action: RowAction,
    /// The reasons, in the words of the first row.
    pub(super) reasons: Vec<String>,
    pub(super) rows: Vec<&'a ReportRow>,
}

/// What follows a reason that differs in the other rows only by their names.
const LIKEWISE: &str = ", and likewise for the others";

/// Groups the rows by their reasons. Reasons that differ only in the name of the row are the same; reasons of the same
/// rows are one group.
pub(super) fn groups(report: &RunReport) -> Vec<RowGroup<'_>> {
    let mut by_reason: Vec<(RowAction, String, Vec<&ReportRow>)> = Vec::new();
    for row in &report.rows {
        for reason in &row.reasons {
            let general = without_word(reason, &row.name);
            let known = by_reason
                .iter_mut()
                .find(|(action, known, _)| *action == row.action && *known == general);
            match known {
                Some((.., rows)) => rows.push(row),
                None => by_reason.push((row.action, general, vec![row])),
            }
        }
    }
    let mut groups: Vec<RowGroup<'_>> = Vec::new();
    for (action, general, rows) in by_reason {
        let Some(reason) = in_words_of_first(&general, &rows) else {
            continue;
        };
        let known = groups
            .iter_mut()
            .find(|group| group.action == action && has_same_rows(&group.rows, &rows));
        match known {
            Some(group) => group.reasons.push(reason),
            None => groups.push(RowGroup {
                action,
                reasons: vec![reason],
                rows,
            }),
        }
    }
    groups
}

fn in_words_of_first(general: &str, rows: &[&ReportRow]) -> Option<String> {
    let first = rows.first()?;
    let mut reasons = first.reasons.iter();
    let reason = reasons.find(|reason| without_word(reason, &first.name) == general)?;
    Some(if rows.iter().all(|row| row.reasons.contains(reason)) {
        reason.clone()
    } else {
        format!("{reason}{LIKEWISE}")
    })
}

fn has_same_rows(one: &[&ReportRow], other: &[&ReportRow]) -> bool {
    let mut pairs = one.iter().zip(other);
    one.len() == other.len() && pairs.all(|(one, other)| std::ptr::eq(*one, *other))
}

/// Returns whether a reason of a row is one of these common reasons.
pub(super) fn is_common(reason: &str, row: &ReportRow, group: &RowGroup<'_>) -> bool {
    is_common_general(&without_word(reason, &row.name), group)
}

fn is_common_general(general: &str, group: &RowGroup<'_>) -> bool {
    let Some(first) = group.rows.first() else {
        return false;
    };
    let mut common = group.reasons.iter();
    common.any(|text| {
        let text = text.strip_suffix(LIKEWISE).unwrap_or(text);
        without_word(text, &first.name) == general
    })
}

/// Returns the cause of all unfinished rows, if it is the same for all. A row that is held back waits for others: its
/// reason counts only if there is no other unfinished row.
pub(super) fn sole_cause(report: &RunReport) -> Option<String> {
    let group = sole_group(report)?;
    Some(group.reasons.join("; "))
}

/// Returns the rows with the cause of [`sole_cause`].
pub(super) fn sole_group(report: &RunReport) -> Option<RowGroup<'_>> {
    let is_problem = |action: RowAction| action.is_unfinished() && action != RowAction::HeldBack;
    let rows = || report.rows.iter();
    let has_problem = rows().any(|row| is_problem(row.action));
    let counts = |action: RowAction| {
        if has_problem {
            is_problem(action)
        } else {
            action == RowAction::HeldBack
        }
    };
    let all: Vec<&ReportRow> = rows().filter(|row| counts(row.action)).collect();
    let first = all.first()?;
    let first_reason = without_word(first.reasons.first()?, &first.name);
    groups(report)
        .into_iter()
        .find(|group| has_same_rows(&group.rows, &all) && is_common_general(&first_reason, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, action: RowAction, reason: &str) -> ReportRow {
        ReportRow {
            name: name.to_owned(),
            action,
            reasons: match reason {
                "" => Vec::new(),
                reason => vec![reason.to_owned()],
            },
            ..ReportRow::default()
        }
    }

    fn closing(rows: Vec<ReportRow>) -> String {
        let report = RunReport {
            rows,
            ..RunReport::default()
        };
        Closing::of_run(&report, Some("nodepki bootstrap".to_owned())).to_string()
    }

    #[test]
    fn names_sole_cause_once() {
        let pending = |name: &str| {
            row(
                name,
                RowAction::Pending,
                &format!("waits for /i/{name}.crt"),
            )
        };
        let mut rows = vec![
            pending("apiserver"),
            pending("etcd-peer"),
            row("sa", RowAction::HeldBack, "with the others"),
            row("ca", RowAction::Kept, ""),
        ];
        assert_eq!(
            closing(rows.clone()),
            "2 pending, 1 held back, 1 kept: waits for /i/apiserver.crt, and likewise for the others; next: nodepki bootstrap"
        );
        rows.push(row("admin.conf", RowAction::Denied, "no"));
        assert_eq!(
            closing(rows),
            "1 denied, 2 pending, 1 held back, 1 kept; next: nodepki bootstrap"
        );
    }

    #[test]
    fn counts_planned_actions() {
        let rows = vec![
            row("ca", RowAction::Fetch, "absent"),
            row("apiserver", RowAction::Issue, "absent"),
            row("etcd-peer", RowAction::Issue, "absent"),
        ];
        assert_eq!(
            closing(rows),
            "1 to fetch, 2 to issue; next: nodepki bootstrap"
        );
        assert_eq!(closing(vec![]), "nothing to do; next: nodepki bootstrap");
    }

    /// A note that all rows have is not the cause of their failures.
    #[test]
    fn names_no_cause_for_failures_with_different_causes() {
        let failed = |name: &str, reason: &str| ReportRow {
            reasons: vec![reason.to_owned(), "the old one is valid".to_owned()],
            ..row(name, RowAction::Failed, "")
        };
        let report = RunReport {
            rows: vec![failed("a", "no route"), failed("b", "bad request")],
            ..RunReport::default()
        };
        assert_eq!(sole_cause(&report), None);
        let shared = groups(&report)
            .into_iter()
            .find(|group| group.rows.len() == 2);
        assert_eq!(shared.unwrap().reasons, ["the old one is valid"]);
    }

    #[test]
    fn keeps_reasons_of_single_rows() {
        let mut first = row("a", RowAction::Failed, "signer is down");
        let second = row("b", RowAction::Failed, "signer is down");
        first.reasons.push("a can be omitted".to_owned());
        let report = RunReport {
            rows: vec![first.clone(), second],
            ..RunReport::default()
        };
        let groups = groups(&report);
        assert_eq!(groups[0].reasons, ["signer is down"]);
        assert_eq!(groups[0].rows.len(), 2);
        assert_eq!(groups[1].reasons, ["a can be omitted"]);
        assert_eq!(sole_cause(&report).as_deref(), Some("signer is down"));
        assert!(is_common("signer is down", &first, &groups[0]));
        assert!(!is_common("a can be omitted", &first, &groups[0]));
    }
}
