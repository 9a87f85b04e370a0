//! Reports as text for people: aligned columns, reasons beneath.

use std::path::Path;

use time::OffsetDateTime;

use super::screen::visible_line;
use crate::agent::join;
use crate::agent::{ExitCode, Report, Row};
use crate::kube::names::NodePath;

/// A report as a table, for a node with this root directory; `-v` adds subject, names and files.
pub(super) fn render(report: &Report, verbose: bool, root: &Path) -> String {
    let mut header = vec!["NAME", "ACTION", "KEY", "AUTHORITY", "NOT AFTER"];
    let mut cells: Vec<Vec<String>> = report.rows.iter().map(cells).collect();
    if report.rows.iter().any(|row| row.due.is_some()) {
        header.push("DUE");
        for (row, cells) in report.rows.iter().zip(&mut cells) {
            cells.push(or_dash(row.due.map(minute)));
        }
    }
    // Only a plan has been told.
    if report.rows.iter().any(|row| row.carries.is_some()) {
        header.push("SIGNER CARRIES IT");
        for (row, cells) in report.rows.iter().zip(&mut cells) {
            cells.push(or_dash(
                row.carries.map(|carries| carries.as_str().to_owned()),
            ));
        }
    }
    let beneath = report.rows.iter().map(|row| {
        let mut beneath = row.reasons.clone();
        if verbose {
            for (what, value) in [
                ("subject", &row.subject),
                ("SAN", &row.sans),
                ("signer", &row.signer),
            ] {
                beneath.extend(value.as_ref().map(|value| format!("{what} {value}")));
            }
            beneath.extend(row.paths.iter().map(ToString::to_string));
        }
        beneath
    });
    let mut text = aligned(&header, cells.into_iter().zip(beneath).collect());
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

/// Columns under their titles; each row with the lines that stand beneath it.
pub(super) fn aligned(header: &[&str], mut rows: Vec<(Vec<String>, Vec<String>)>) -> String {
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
    for (cells, beneath) in rows {
        text.push_str(&line(&cells, &widths));
        for reason in beneath {
            text.push_str(&format!("    {}\n", reason.replace('\n', "\n      ")));
        }
    }
    text
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.name.clone(),
        row.action.to_owned(),
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
