//! Tables for people: aligned columns, with indented lines below a row.

use std::path::Path;

use time::OffsetDateTime;

use super::screen::visible_line;
use crate::agent::{ExitCode, ReportRow, RunReport, join};
use crate::kube::names::NodePath;

/// Returns a report as a table, for a node with this root directory; `verbose` adds subject, names, signer and files.
pub(in super::super) fn render(report: &RunReport, verbose: bool, root: &Path) -> String {
    let mut header = vec!["NAME", "ACTION", "KEY", "AUTHORITY", "NOT AFTER"];
    let mut cells: Vec<Vec<String>> = report.rows.iter().map(cells).collect();
    if report.rows.iter().any(|row| row.due.is_some()) {
        header.push("DUE");
        for (row, cells) in report.rows.iter().zip(&mut cells) {
            cells.push(or_dash(row.due.map(minute)));
        }
    }
    // Present in plans only.
    if report.rows.iter().any(|row| row.carries.is_some()) {
        header.push("SIGNER CARRIES IT");
        for (row, cells) in report.rows.iter().zip(&mut cells) {
            cells.push(or_dash(
                row.carries.map(|carries| carries.as_str().to_owned()),
            ));
        }
    }
    let details = report.rows.iter().map(|row| details(row, verbose));
    let mut text = aligned(&header, cells.into_iter().zip(details).collect());
    for note in &report.notes {
        text.push_str(&format!("note: {}\n", note.replace('\n', "\n      ")));
    }
    if report.code() == ExitCode::Done && !report.ignore_preflight_errors.is_empty() {
        text.push_str(&format!(
            "next: kubeadm join --config {}, or with --ignore-preflight-errors={}\n",
            NodePath::from(join::HANDOVER).below(root),
            report.ignore_preflight_errors.join(",")
        ));
    }
    text
}

/// Returns the indented lines below a row.
fn details(row: &ReportRow, verbose: bool) -> Vec<String> {
    let mut details = row.reasons.clone();
    if verbose {
        for (what, value) in [
            ("subject", &row.subject),
            ("SAN", &row.sans),
            ("signer", &row.signer),
        ] {
            details.extend(value.as_ref().map(|value| format!("{what} {value}")));
        }
        details.extend(row.paths.iter().map(ToString::to_string));
    }
    details
}

/// Returns aligned columns with their titles; each row has its cells, and the lines below it.
pub(in super::super) fn aligned(
    header: &[&str],
    mut rows: Vec<(Vec<String>, Vec<String>)>,
) -> String {
    for cell in rows.iter_mut().flat_map(|(cells, _)| cells) {
        *cell = visible_line(cell);
    }
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(column, title)| {
            let longest = rows
                .iter()
                .filter_map(|(cells, _)| cells.get(column))
                .map(|cell| cell.chars().count())
                .max();
            longest.unwrap_or(0).max(title.len())
        })
        .collect();
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    let mut text = line(&header, &widths);
    for (cells, details) in rows {
        text.push_str(&line(&cells, &widths));
        for detail in details {
            text.push_str(&format!("    {}\n", detail.replace('\n', "\n      ")));
        }
    }
    text
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn cells(row: &ReportRow) -> Vec<String> {
    vec![
        row.name.clone(),
        row.action.to_string(),
        or_dash(row.key.clone()),
        or_dash(row.authority.clone()),
        or_dash(row.not_after.map(minute)),
    ]
}

fn minute(time: OffsetDateTime) -> String {
    let (date, hour, minute) = (time.date(), time.hour(), time.minute());
    format!("{date} {hour:02}:{minute:02} UTC")
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let padded: Vec<String> = cells
        .iter()
        .zip(widths)
        .map(|(cell, width)| format!("{cell:<width$}"))
        .collect();
    format!("{}\n", padded.join("  ").trim_end())
}
