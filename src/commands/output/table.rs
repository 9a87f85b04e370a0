//! The table of a run: one row for each object, the reasons that several rows share once below it, and the closing line.

use time::{OffsetDateTime, UtcOffset};

use super::closing::{Closing, RowGroup, groups, sole_group};
use super::screen::text_style;
use crate::agent::{ReportRow, RowAction, RowReason, RunReport};
use crate::config::COMMAND_LINE_SIGNER;
use crate::table::{Cell, Emphasis, Table, TextStyle, fold, list, visible_line};

/// Blanks before a continuation line below a row.
const DETAIL_INDENT: usize = 6;

/// What a table shows of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum RowDetail {
    /// Name, action, validity, signer and key.
    Brief,
    /// Also names and usages, which a reader compares with the desired state.
    Requested,
    /// Also subject and files.
    Full,
}

/// Returns a report as a table that fits the terminal.
pub(in super::super) fn render(report: &RunReport, detail: RowDetail) -> String {
    // Without a closing line, every cause is part of its row.
    rows_text(report, detail, &Closing::default(), text_style())
}

/// Returns the rows and notes of a report. A cause that the closing line names is left out.
pub(super) fn rows_text(
    report: &RunReport,
    detail: RowDetail,
    closing: &Closing,
    style: TextStyle,
) -> String {
    let sole = sole_group(report).filter(|_| closing.cause().is_some());
    let shared: Vec<RowGroup<'_>> = groups(report)
        .into_iter()
        .filter(|group| group.rows.len() > 1)
        .collect();
    let is_said_elsewhere = |row: &ReportRow, reason: &RowReason| {
        let mut groups = shared.iter().chain(&sole);
        groups.any(|group| group.contains(row, reason))
    };
    let signers = signers(report);
    let mut table = Table::new(&[
        "NAME",
        "ACTION",
        "VALID UNTIL (UTC)",
        "RENEWAL DUE (UTC)",
        "SIGNER",
        "USAGES",
        "KEY",
        "AUTHORITY",
    ]);
    for row in &report.rows {
        let mut reasons = row.reasons.iter().collect::<Vec<_>>();
        reasons.retain(|reason| !is_said_elsewhere(row, reason));
        let mut details: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        details.extend(more(row, detail, style));
        // The line below the table is sufficient for a single signer.
        let signer = row.signer.as_deref().filter(|_| signers.len() > 1);
        table.push(cells(row, detail, signer), details);
    }
    let mut text = if report.rows.is_empty() {
        String::new()
    } else {
        table.render(style)
    };
    for group in &shared {
        let is_sole = sole.as_ref().is_some_and(|sole| sole.has_rows(&group.rows));
        if !is_sole {
            let names = group.rows.iter().map(|row| &row.name);
            let words = group.words().replace('\n', "\n    ");
            let heading = fold(&format!("{}: {words}", group.action), 4, style);
            text.push_str(&format!("{heading}\n{}\n", list(names, 4, style)));
        }
    }
    text.push_str(&fold(&signer_lines(&signers), 4, style));
    for note in &report.notes {
        let note = format!("note: {}\n", note.replace('\n', "\n      "));
        text.push_str(&fold(&note, 4, style));
    }
    text
}

/// Returns the indented lines below a row, apart from its reasons.
fn more(row: &ReportRow, detail: RowDetail, style: TextStyle) -> Vec<String> {
    let mut lines = Vec::new();
    if detail != RowDetail::Brief && !row.sans.is_empty() {
        let below = TextStyle {
            width: style.width.map(|width| width.saturating_sub(DETAIL_INDENT)),
            ..style
        };
        lines.push(list(&row.sans, 0, below));
    }
    if detail == RowDetail::Full {
        let subject = row.subject.as_ref();
        lines.extend(subject.map(|subject| format!("subject {subject}")));
        lines.extend(row.paths.iter().map(ToString::to_string));
    }
    lines
}

/// A signer of a report, and the authorities that it signs for.
struct ReportSigner<'a> {
    name: &'a str,
    address: &'a str,
    authorities: Vec<&'a str>,
}

fn signers(report: &RunReport) -> Vec<ReportSigner<'_>> {
    let mut signers: Vec<ReportSigner<'_>> = Vec::new();
    for row in &report.rows {
        let (Some(name), Some(address)) = (&row.signer, &row.signer_address) else {
            continue;
        };
        let authority = row.authority.as_deref().unwrap_or(&row.name);
        match signers.iter_mut().find(|known| known.name == name) {
            Some(known) if !known.authorities.contains(&authority) => {
                known.authorities.push(authority);
            }
            Some(_) => {}
            None => signers.push(ReportSigner {
                name,
                address,
                authorities: vec![authority],
            }),
        }
    }
    signers
}

/// Returns one line for each signer with its kind and address.
fn signer_lines(signers: &[ReportSigner<'_>]) -> String {
    let lines = signers.iter().map(|signer| {
        let name = match signer.name {
            COMMAND_LINE_SIGNER => String::new(),
            name => format!(" {}", visible_line(name)),
        };
        let authorities = signer.authorities.join(", ");
        format!(
            "signer{name} of {authorities}: {}\n",
            visible_line(signer.address)
        )
    });
    lines.collect()
}

/// Returns aligned columns with their titles; each row has its cells, and the lines below it.
pub(in super::super) fn aligned(header: &[&str], rows: Vec<(Vec<String>, Vec<String>)>) -> String {
    let mut table = Table::new(header);
    for (cells, details) in rows {
        table.push(cells.iter().map(Cell::new).collect(), details);
    }
    table.render(text_style())
}

fn cells(row: &ReportRow, detail: RowDetail, signer: Option<&str>) -> Vec<Cell> {
    let usages = match detail {
        RowDetail::Brief => String::new(),
        RowDetail::Requested | RowDetail::Full => row.usages.join(", "),
    };
    vec![
        Cell::new(&row.name),
        Cell::state(row.action.as_str(), emphasis(row)),
        Cell::optional(row.not_after.map(minute)),
        Cell::optional(row.due.map(minute)),
        Cell::optional(signer),
        Cell::optional(Some(usages)),
        Cell::optional(row.key.as_deref()),
        Cell::optional(row.authority.as_deref()),
    ]
}

fn emphasis(row: &ReportRow) -> Emphasis {
    match row.action {
        RowAction::Refused
        | RowAction::Refuse
        | RowAction::Denied
        | RowAction::Failed
        | RowAction::RolledBack => Emphasis::Error,
        action if action.is_unfinished() => Emphasis::Warning,
        _ => Emphasis::Plain,
    }
}

/// Returns a time in UTC, to the minute.
pub(in super::super) fn minute(time: OffsetDateTime) -> String {
    let time = time.to_offset(UtcOffset::UTC);
    let (date, hour, minute) = (time.date(), time.hour(), time.minute());
    format!("{date} {hour:02}:{minute:02}")
}
