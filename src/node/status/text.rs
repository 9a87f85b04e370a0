//! The table and the tree for terminals.

use std::collections::BTreeMap;

use time::OffsetDateTime;
use time::UtcOffset;
use time::macros::format_description;

use super::{
    AuthorityStatus, CertStatus, Facts, NodeStatus, PendingStatus, RowFault, RowRemark, RowState,
    StatusRow, human_duration,
};
use crate::kube::names::Authority;
use crate::spec::compliance::KeyVerdict;
use crate::store::RequestPhase;
use crate::table::{Cell, Emphasis, Table, TextStyle, fold, list, visible_line};

/// Blanks before a continuation line below a row.
const DETAIL_INDENT: usize = 6;

/// Returns a table with one row for each certificate, authority, key pair and pending request, followed by the problems
/// and remarks. `signers` has the names of the configured signers.
pub fn table(
    status: &NodeStatus,
    signers: &BTreeMap<Authority, String>,
    style: TextStyle,
) -> String {
    let mut sections = Vec::new();
    let key_policy = status.has_key_verdicts().then_some("KEY POLICY");
    if !status.certificates.is_empty() {
        let mut headings = vec![
            "NAME",
            "STATE",
            "PHASE",
            "EXPIRES (UTC)",
            "TIME LEFT",
            "USAGES",
            "SIGNER",
            "KEY",
            "AUTHORITY",
        ];
        headings.extend(key_policy);
        let mut table = Table::new(&headings);
        for row in &status.certificates {
            let signer = signers.get(&row.authority).map(String::as_str);
            let mut cells = cert_row(row, signer);
            cells.extend(key_policy.map(|_| verdict_cell(row.key_policy)));
            table.push(cells, names(row, style));
        }
        sections.push(table.render(style));
    }
    if !status.authorities.is_empty() {
        let mut headings = vec![
            "AUTHORITY",
            "STATE",
            "EXPIRES (UTC)",
            "TIME LEFT",
            "KEY",
            "CA KEY",
        ];
        headings.extend(key_policy);
        let mut table = Table::new(&headings);
        for row in &status.authorities {
            for (index, mut cells) in authority_rows(row).into_iter().enumerate() {
                // The policy is for the first certificate, under which new certificates are issued.
                let verdict = row.key_policy.filter(|_| index == 0);
                cells.extend(key_policy.map(|_| verdict_cell(verdict)));
                table.push(cells, Vec::new());
            }
        }
        sections.push(table.render(style));
    }
    if let Some(pair) = &status.service_account {
        let mut row = vec![
            Cell::new("sa"),
            state_cell(pair.state),
            Cell::optional(pair.key.as_deref()),
            Cell::optional(pair.key_id.as_deref()),
        ];
        row.extend(key_policy.map(|_| verdict_cell(pair.key_policy)));
        let mut headings = vec!["KEY PAIR", "STATE", "KEY", "KEY ID"];
        headings.extend(key_policy);
        let mut table = Table::new(&headings);
        table.push(row, Vec::new());
        sections.push(table.render(style));
    }
    if !status.pending.is_empty() {
        let headings = ["PENDING", "PHASE", "SIGNER", "SINCE (UTC)", "LAST ERROR"];
        let mut table = Table::new(&headings).wrapping_last();
        for row in &status.pending {
            table.push(pending_row(row), Vec::new());
        }
        sections.push(table.render(style));
    }
    sections.extend(remarks(status, style));
    sections.join("\n")
}

/// Returns the leaves under the authority that signs them.
pub fn tree(status: &NodeStatus, style: TextStyle) -> String {
    let mut table = Table::untitled();
    let mut is_empty = true;
    let mut push = |cells: Vec<Cell>| {
        is_empty = false;
        table.push(cells, Vec::new());
    };
    for name in Authority::ALL {
        let leaves: Vec<&CertStatus> = status
            .certificates
            .iter()
            .filter(|row| row.authority == name)
            .collect();
        match status.authority(name) {
            Some(authority) => push(authority_line(authority)),
            None if leaves.is_empty() => continue,
            None => push(vec![
                Cell::new(name.as_str()),
                Cell::new("(not on this node)"),
            ]),
        }
        for (index, leaf) in leaves.iter().enumerate() {
            let branch = if index + 1 == leaves.len() {
                "└── "
            } else {
                "├── "
            };
            let mut cells = vec![
                Cell::new(format!("{branch}{}", leaf.name)),
                state_cell(leaf.state),
            ];
            cells.extend(facts_cells(leaf.certificate.as_ref(), ""));
            push(cells);
        }
    }
    if let Some(pair) = &status.service_account {
        push(vec![
            Cell::new("sa"),
            state_cell(pair.state),
            Cell::new("-"),
            Cell::optional(pair.key.as_ref().map(|key| format!("{key}, never expires"))),
        ]);
    }
    let mut sections = Vec::new();
    if !is_empty {
        sections.push(table.render(style));
    }
    sections.extend(remarks(status, style));
    sections.join("\n")
}

/// Returns the subject alternative names, as lines below a row.
fn names(row: &CertStatus, style: TextStyle) -> Vec<String> {
    let below = TextStyle {
        width: style.width.map(|width| width.saturating_sub(DETAIL_INDENT)),
        ..style
    };
    let facts = row.certificate.iter();
    let facts = facts.filter(|facts| !facts.sans.is_empty());
    facts.map(|facts| list(&facts.sans, 0, below)).collect()
}

fn cert_row(row: &CertStatus, signer: Option<&str>) -> Vec<Cell> {
    let facts = row.certificate.as_ref();
    vec![
        Cell::new(row.name.as_str()),
        state_cell(row.state),
        Cell::new(row.phase.as_str()),
        Cell::optional(facts.map(|facts| minute_in_utc(facts.not_after))),
        Cell::optional(facts.map(residual)),
        Cell::optional(facts.map(|facts| facts.usages.join(", "))),
        Cell::optional(signer),
        Cell::optional(facts.map(|facts| facts.key.as_str())),
        Cell::new(row.authority.as_str()),
    ]
}

/// Returns one row for the first certificate of the bundle, which determines the state, and one for each further one.
fn authority_rows(row: &AuthorityStatus) -> Vec<Vec<Cell>> {
    let facts = row.certificates.first();
    let first = vec![
        Cell::new(row.name.as_str()),
        state_cell(row.state),
        Cell::optional(facts.map(|facts| minute_in_utc(facts.not_after))),
        Cell::optional(facts.map(residual)),
        Cell::optional(facts.map(|facts| facts.key.as_str())),
        Cell::new(if row.has_key {
            "on this node"
        } else {
            "not on this node"
        }),
    ];
    let others = row.certificates.iter().enumerate().skip(1);
    let others = others.map(|(index, facts)| {
        vec![
            Cell::new(format!("{} [{}]", row.name, index + 1)),
            Cell::new("also trusted"),
            Cell::new(minute_in_utc(facts.not_after)),
            Cell::new(residual(facts)),
            Cell::new(&facts.key),
            Cell::new("-"),
        ]
    });
    std::iter::once(first).chain(others).collect()
}

fn authority_line(row: &AuthorityStatus) -> Vec<Cell> {
    let place = if row.has_key {
        ", on this node"
    } else {
        ", not on this node"
    };
    let mut cells = vec![Cell::new(row.name.as_str()), state_cell(row.state)];
    cells.extend(facts_cells(row.certificates.first(), place));
    cells
}

/// Returns time left, key with its place, and end. The time of the end is what a narrow terminal cuts.
fn facts_cells(facts: Option<&Facts>, place: &str) -> [Cell; 3] {
    let cells = facts.map(|facts| {
        let left = match facts.residual_seconds {
            seconds @ ..0 => format!("{} ago", human_duration(-seconds)),
            seconds => format!("{} left", human_duration(seconds)),
        };
        let key = format!("{}{place}", facts.key);
        [left, key, minute(facts.not_after)]
    });
    match cells {
        Some(cells) => cells.map(Cell::new),
        None => [Cell::new("-"), Cell::new("-"), Cell::new("-")],
    }
}

/// Returns the phase of a request.
pub(super) fn request_phase(row: &PendingStatus) -> &'static str {
    row.phase.map_or("ticket unreadable", RequestPhase::as_str)
}

fn pending_row(row: &PendingStatus) -> Vec<Cell> {
    let error = row
        .last_error
        .as_ref()
        .map(|error| format!("{} ({})", error.detail, minute(error.at)));
    vec![
        Cell::new(&row.name),
        Cell::new(request_phase(row)),
        Cell::optional(row.signer.as_deref()),
        Cell::optional(row.since.map(minute_in_utc)),
        Cell::optional(error),
    ]
}

/// A fault or remark, as it is compared with those of other rows.
#[derive(PartialEq)]
enum RowFinding {
    /// None of the files exists.
    FilesAbsent,
    Fault(RowFault),
    Remark(RowRemark),
}

/// A line for all rows that have a finding.
struct FindingLine<'a> {
    finding: RowFinding,
    /// The state of the rows, for a fault.
    state: Option<RowState>,
    /// Text for the first row.
    text: String,
    /// The file that the text names.
    path: Option<&'a str>,
    names: Vec<&'a str>,
    /// The text is that of all rows.
    is_literal: bool,
}

impl<'a> FindingLine<'a> {
    /// Returns the lines of one row. If `names_files` is false, absent files are not named.
    fn of_row(row: &StatusRow<'a>, names_files: bool) -> Vec<FindingLine<'a>> {
        let line = |finding, state, text, path| FindingLine {
            finding,
            state,
            text,
            path,
            names: vec![row.subject.as_str()],
            is_literal: true,
        };
        let state = Some(row.state);
        let mut lines = Vec::new();
        if is_absent(row) && !names_files {
            let text = "the files do not exist".to_owned();
            lines.push(line(RowFinding::FilesAbsent, state, text, None));
        } else {
            lines.extend(row.findings.faults.iter().map(|fault| {
                let finding = RowFinding::Fault(fault.general());
                line(finding, state, fault.to_string(), fault.path())
            }));
        }
        lines.extend(row.findings.remarks.iter().map(|remark| {
            let finding = RowFinding::Remark(remark.general());
            line(finding, None, remark.to_string(), None)
        }));
        lines
    }

    /// Adds the rows of a line with the same finding.
    fn join(&mut self, other: &FindingLine<'a>) {
        self.is_literal &= self.path == other.path;
        if self.names.last() != other.names.last() {
            self.names.extend(&other.names);
        }
    }
}

/// Returns whether none of the files of a row exists.
fn is_absent(row: &StatusRow<'_>) -> bool {
    let faults = &row.findings.faults;
    !row.files.is_empty()
        && faults.len() == row.files.len()
        && faults.iter().all(RowFault::is_absence)
}

/// Returns `name: state: why` for each fault, `name: remark` for each remark, then the notes. A text of several rows is
/// followed by their names.
fn remarks(status: &NodeStatus, style: TextStyle) -> Option<String> {
    let rows = status.rows();
    // The names determine the paths, which are stated for a single absent object only.
    let names_files = rows.iter().filter(|row| is_absent(row)).count() < 2;
    let mut lines: Vec<FindingLine<'_>> = Vec::new();
    for line in rows
        .iter()
        .flat_map(|row| FindingLine::of_row(row, names_files))
    {
        let is_same = |known: &&mut FindingLine<'_>| {
            (&known.finding, known.state) == (&line.finding, line.state)
        };
        match lines.iter_mut().find(is_same) {
            Some(known) => known.join(&line),
            None => lines.push(line),
        }
    }
    let mut text = String::new();
    for line in &lines {
        let state = line.state.map(|state| format!("{state}: "));
        let state = state.unwrap_or_default();
        let words = visible_line(&line.text);
        match line.names.as_slice() {
            [name] => {
                let line = format!("{}: {state}{words}\n", visible_line(name));
                text.push_str(&fold(&line, 4, style));
            }
            names => {
                let likewise = if line.is_literal {
                    ""
                } else {
                    ", and likewise for the others"
                };
                let names = list(names, 4, style);
                let heading = fold(&format!("{state}{words}{likewise}"), 4, style);
                text.push_str(&format!("{heading}\n{names}\n"));
            }
        }
    }
    for note in &status.notes {
        text.push_str(&fold(&format!("{}\n", visible_line(note)), 4, style));
    }
    (!text.is_empty()).then_some(text)
}

/// Returns the remaining validity, negative after its end.
pub(super) fn residual(facts: &Facts) -> String {
    match facts.residual_seconds {
        seconds @ ..0 => format!("-{}", human_duration(-seconds)),
        seconds => human_duration(seconds),
    }
}

pub(super) fn minute(time: OffsetDateTime) -> String {
    format!("{} UTC", minute_in_utc(time))
}

/// Returns the time below a heading that names UTC.
fn minute_in_utc(time: OffsetDateTime) -> String {
    time.to_offset(UtcOffset::UTC)
        .format(format_description!("[year]-[month]-[day] [hour]:[minute]"))
        .unwrap_or_default()
}

fn verdict_cell(verdict: Option<KeyVerdict>) -> Cell {
    match verdict {
        Some(verdict @ (KeyVerdict::NotCompliant | KeyVerdict::Unknown)) => {
            Cell::state(verdict.as_str(), Emphasis::Warning)
        }
        other => Cell::optional(other.map(KeyVerdict::as_str)),
    }
}

/// Returns a state; others than ok are coloured.
pub(super) fn state_cell(state: RowState) -> Cell {
    let emphasis = match state {
        RowState::Ok => Emphasis::Plain,
        RowState::Expiring => Emphasis::Warning,
        _ => Emphasis::Error,
    };
    Cell::state(state.as_str(), emphasis)
}
