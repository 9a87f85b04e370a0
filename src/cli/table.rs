//! Reports as text for people: aligned columns, reasons beneath.

use crate::agent::{Report, Row};

/// A report as a table; `-v` adds subject, names and files.
pub(super) fn render(report: &Report, verbose: bool) -> String {
    let header = ["NAME", "ACTION", "KEY", "AUTHORITY", "NOT AFTER"];
    let cells: Vec<[String; 5]> = report.rows.iter().map(cells).collect();
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(column, title)| {
            let longest = cells
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max();
            longest.unwrap_or(0).max(title.len())
        })
        .collect();
    let mut text = line(&header.map(str::to_owned), &widths);
    for (row, cells) in report.rows.iter().zip(&cells) {
        text.push_str(&line(cells, &widths));
        for reason in &row.reasons {
            text.push_str(&format!("    {reason}\n"));
        }
        if verbose {
            for (what, value) in [
                ("subject", &row.subject),
                ("SAN", &row.sans),
                ("signer", &row.signer),
            ] {
                if let Some(value) = value {
                    text.push_str(&format!("    {what} {value}\n"));
                }
            }
            for path in &row.paths {
                text.push_str(&format!("    {}\n", path.display()));
            }
        }
    }
    for note in &report.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

fn cells(row: &Row) -> [String; 5] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        row.name.clone(),
        row.action.to_owned(),
        or_dash(row.key.clone()),
        or_dash(row.authority.clone()),
        or_dash(
            row.not_after
                .map(|end| format!("{} {:02}:{:02} UTC", end.date(), end.hour(), end.minute())),
        ),
    ]
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let padded: Vec<String> = cells
        .iter()
        .zip(widths)
        .map(|(cell, width)| format!("{cell:<width$}"))
        .collect();
    format!("{}\n", padded.join("  ").trim_end())
}
