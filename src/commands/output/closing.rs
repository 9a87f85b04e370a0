//! The last line of a command: counts by outcome, the one cause if there is only one, and what to run next.

use std::collections::BTreeMap;
use std::fmt;

use crate::agent::{ReportRow, RowAction, RowReason, RunReport};
use crate::table::{TextStyle, fold};

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
        closing.cause = sole_group(report).map(|group| group.words());
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

    /// Returns the line for a stream. One that does not fit continues with the next command on a line of its own.
    pub(super) fn text(&self, style: TextStyle) -> String {
        let line = self.to_string();
        match (style.width, &self.next) {
            (Some(width), Some(next)) if line.chars().count() > width => {
                let closing = Closing {
                    next: None,
                    ..self.clone()
                };
                let text = format!("{closing}\nnext: {next}");
                fold(&text, 4, style)
            }
            _ => fold(&line, 4, style),
        }
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
    /// The reasons of the first row.
    reasons: Vec<&'a RowReason>,
    pub(super) rows: Vec<&'a ReportRow>,
}

impl RowGroup<'_> {
    /// Returns the reasons in the words of the first row.
    pub(super) fn words(&self) -> String {
        let words: Vec<String> = self
            .reasons
            .iter()
            .map(|reason| self.word(reason))
            .collect();
        words.join("; ")
    }

    fn word(&self, reason: &RowReason) -> String {
        let has_all = |row: &&ReportRow| row.reasons.contains(reason);
        if self.rows.iter().all(has_all) {
            reason.to_string()
        } else {
            format!("{reason}, and likewise for the others")
        }
    }

    /// Returns whether this is the group of a row for this reason.
    pub(super) fn contains(&self, row: &ReportRow, reason: &RowReason) -> bool {
        self.rows.iter().any(|one| std::ptr::eq(*one, row)) && self.has(reason)
    }

    fn has(&self, reason: &RowReason) -> bool {
        self.reasons.iter().any(|one| one.has_same_cause(reason))
    }

    /// Returns whether both are groups of the same rows.
    pub(super) fn has_rows(&self, rows: &[&ReportRow]) -> bool {
        let mut pairs = self.rows.iter().zip(rows);
        self.rows.len() == rows.len() && pairs.all(|(one, other)| std::ptr::eq(*one, *other))
    }
}

/// Groups the rows by the causes of their reasons. Reasons of the same rows are one group.
pub(super) fn groups(report: &RunReport) -> Vec<RowGroup<'_>> {
    let mut by_reason: Vec<RowGroup<'_>> = Vec::new();
    for row in &report.rows {
        for reason in &row.reasons {
            let known = by_reason
                .iter_mut()
                .find(|group| group.action == row.action && group.has(reason));
            match known {
                Some(group) => group.rows.push(row),
                None => by_reason.push(RowGroup {
                    action: row.action,
                    reasons: vec![reason],
                    rows: vec![row],
                }),
            }
        }
    }
    let mut groups: Vec<RowGroup<'_>> = Vec::new();
    for one in by_reason {
        let known = groups
            .iter_mut()
            .find(|group| group.action == one.action && group.has_rows(&one.rows));
        match known {
            Some(group) => group.reasons.extend(one.reasons),
            None => groups.push(one),
        }
    }
    groups
}

/// Returns the rows with the cause of all unfinished rows, if it is the same for all. A row that is held back waits for
/// others: its reason counts only if there is no other unfinished row.
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
    let first_reason = all.first()?.reasons.first()?;
    groups(report)
        .into_iter()
        .find(|group| group.has_rows(&all) && group.has(first_reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::PendingReason;

    fn failed(why: &str) -> RowReason {
        RowReason::Restart(why.to_owned())
    }

    fn row(name: &str, action: RowAction, reason: &str) -> ReportRow {
        ReportRow {
            name: name.to_owned(),
            action,
            reasons: match reason {
                "" => Vec::new(),
                reason => vec![failed(reason)],
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
        let pending = |name: &str| ReportRow {
            reasons: vec![RowReason::Pending(PendingReason::Undecided {
                note: format!("waits for /i/{name}.crt"),
                is_uniform: true,
            })],
            ..row(name, RowAction::Pending, "")
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
        let failed_row = |name: &str, reason: &str| ReportRow {
            reasons: vec![failed(reason), RowReason::StillValid],
            ..row(name, RowAction::Failed, "")
        };
        let report = RunReport {
            rows: vec![failed_row("a", "no route"), failed_row("b", "bad request")],
            ..RunReport::default()
        };
        assert!(sole_group(&report).is_none());
        let shared = groups(&report)
            .into_iter()
            .find(|group| group.rows.len() == 2);
        assert_eq!(shared.unwrap().reasons, [&RowReason::StillValid]);
    }

    #[test]
    fn keeps_reasons_of_single_rows() {
        let mut first = row("a", RowAction::Failed, "signer is down");
        let second = row("b", RowAction::Failed, "signer is down");
        first.reasons.push(RowReason::StillValid);
        let report = RunReport {
            rows: vec![first, second],
            ..RunReport::default()
        };
        let groups = groups(&report);
        assert_eq!(groups[0].words(), "signer is down");
        assert_eq!(groups[0].rows.len(), 2);
        assert_eq!(groups[1].reasons, [&RowReason::StillValid]);
        assert_eq!(sole_group(&report).unwrap().words(), "signer is down");
        let first = &report.rows[0];
        assert!(groups[0].contains(first, &first.reasons[0]));
        assert!(!groups[0].contains(first, &first.reasons[1]));
    }
}
