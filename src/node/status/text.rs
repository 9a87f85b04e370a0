//! The table and the tree for terminals. [`safe`] escapes every text that comes from a file.

use time::OffsetDateTime;
use time::UtcOffset;
use time::macros::format_description;

use super::{
    AuthorityStatus, CertStatus, Facts, NodeStatus, PendingStatus, RowState, human_duration,
};
use crate::kube::names::Authority;
use crate::store::RequestPhase;
use crate::x509::is_hidden;

/// Returns a table with one row for each certificate, authority, key pair and pending request, followed by one line for
/// each problem and remark.
pub fn table(status: &NodeStatus, colour: bool) -> String {
    let mut sections = Vec::new();
    if !status.certificates.is_empty() {
        let head = ["NAME", "STATE", "EXPIRES", "RESIDUAL", "KEY", "AUTHORITY"];
        let rows = status.certificates.iter().map(cert_row);
        sections.push(columns(&with_head(&head, rows), colour));
    }
    if !status.authorities.is_empty() {
        let head = ["AUTHORITY", "STATE", "EXPIRES", "RESIDUAL", "KEY", "CA KEY"];
        let rows = status.authorities.iter().flat_map(authority_rows);
        sections.push(columns(&with_head(&head, rows), colour));
    }
    if let Some(pair) = &status.service_account {
        let row = vec![
            Cell::text("sa"),
            Cell::state(pair.state),
            Cell::optional(pair.key.as_deref()),
            Cell::optional(pair.key_id.as_deref()),
        ];
        let head = ["KEY PAIR", "STATE", "KEY", "KEY ID"];
        sections.push(columns(&with_head(&head, [row].into_iter()), colour));
    }
    if !status.pending.is_empty() {
        let head = ["PENDING", "SIGNER", "SINCE", "PHASE", "LAST ERROR"];
        let rows = status.pending.iter().map(pending_row);
        sections.push(columns(&with_head(&head, rows), colour));
    }
    sections.extend(remarks(status));
    sections.join("\n")
}

/// Returns the leaves under the authority that signs them.
pub fn tree(status: &NodeStatus, colour: bool) -> String {
    let mut lines = Vec::new();
    for name in Authority::ALL {
        let leaves: Vec<&CertStatus> = status
            .certificates
            .iter()
            .filter(|row| row.authority == name)
            .collect();
        match status.authority(name) {
            Some(authority) => lines.push(authority_line(authority)),
            None if leaves.is_empty() => continue,
            None => lines.push(vec![
                Cell::text(name.as_str()),
                Cell::text("(not on this node)"),
            ]),
        }
        for (index, leaf) in leaves.iter().enumerate() {
            let branch = if index + 1 == leaves.len() {
                "└── "
            } else {
                "├── "
            };
            let mut cells = vec![Cell::text(&format!("{branch}{}", leaf.name))];
            cells.extend(facts_cells(leaf.certificate.as_ref()));
            cells.push(Cell::state(leaf.state));
            lines.push(cells);
        }
    }
    if let Some(pair) = &status.service_account {
        lines.push(vec![
            Cell::text("sa"),
            Cell::optional(pair.key.as_deref()),
            Cell::text("never expires"),
            Cell::state(pair.state),
            Cell::text("key pair"),
        ]);
    }
    let mut sections = Vec::new();
    if !lines.is_empty() {
        sections.push(columns(&lines, colour));
    }
    sections.extend(remarks(status));
    sections.join("\n")
}

fn cert_row(row: &CertStatus) -> Vec<Cell> {
    let facts = row.certificate.as_ref();
    vec![
        Cell::text(row.name.as_str()),
        Cell::state(row.state),
        Cell::optional(facts.map(|facts| minute(facts.not_after)).as_deref()),
        Cell::optional(facts.map(residual).as_deref()),
        Cell::optional(facts.map(|facts| facts.key.as_str())),
        Cell::text(row.authority.as_str()),
    ]
}

/// Returns one row for the first certificate of the bundle, which determines the state, and one for each further one.
fn authority_rows(row: &AuthorityStatus) -> Vec<Vec<Cell>> {
    let facts = row.certificates.first();
    let first = vec![
        Cell::text(row.name.as_str()),
        Cell::state(row.state),
        Cell::optional(facts.map(|facts| minute(facts.not_after)).as_deref()),
        Cell::optional(facts.map(residual).as_deref()),
        Cell::optional(facts.map(|facts| facts.key.as_str())),
        Cell::text(if row.has_key { "on this node" } else { "-" }),
    ];
    let others = row.certificates.iter().enumerate().skip(1);
    let others = others.map(|(index, facts)| {
        vec![
            Cell::text(&format!("{} [{}]", row.name, index + 1)),
            Cell::text("also trusted"),
            Cell::text(&minute(facts.not_after)),
            Cell::text(&residual(facts)),
            Cell::text(&facts.key),
            Cell::text("-"),
        ]
    });
    std::iter::once(first).chain(others).collect()
}

fn authority_line(row: &AuthorityStatus) -> Vec<Cell> {
    let mut cells = vec![Cell::text(row.name.as_str())];
    cells.extend(facts_cells(row.certificates.first()));
    cells.push(Cell::state(row.state));
    let key = if row.has_key {
        "CA key on this node"
    } else {
        "CA key not on this node"
    };
    cells.push(Cell::text(key));
    cells
}

fn facts_cells(facts: Option<&Facts>) -> [Cell; 2] {
    match facts {
        Some(facts) => [
            Cell::text(&facts.key),
            Cell::text(&format!(
                "until {} ({})",
                minute(facts.not_after),
                residual(facts)
            )),
        ],
        None => [Cell::text("-"), Cell::text("-")],
    }
}

fn pending_row(row: &PendingStatus) -> Vec<Cell> {
    let phase = row.phase.map_or("ticket unreadable", |phase| match phase {
        RequestPhase::Ready => "ready",
        RequestPhase::Submitting => "submitting",
        RequestPhase::Requested => "requested",
        RequestPhase::Answered => "answered",
        RequestPhase::Denied => "denied",
        RequestPhase::Failed => "failed",
    });
    let error = row
        .last_error
        .as_ref()
        .map(|error| format!("{} ({})", error.detail, minute(error.at)));
    vec![
        Cell::text(&row.name),
        Cell::optional(row.signer.as_deref()),
        Cell::optional(row.since.map(minute).as_deref()),
        Cell::text(phase),
        Cell::optional(error.as_deref()),
    ]
}

/// Returns `name: state: why` for each problem, `name: remark` for each remark, then the notes.
fn remarks(status: &NodeStatus) -> Option<String> {
    let mut lines = Vec::new();
    let mut add = |name: &str, state: RowState, problems: &[String], remarks: &[String]| {
        lines.extend(problems.iter().map(|why| format!("{name}: {state}: {why}")));
        lines.extend(remarks.iter().map(|remark| format!("{name}: {remark}")));
    };
    for row in &status.certificates {
        add(row.name.as_str(), row.state, &row.problems, &row.remarks);
    }
    for row in &status.authorities {
        add(row.name.as_str(), row.state, &row.problems, &row.remarks);
    }
    if let Some(row) = &status.service_account {
        add("sa", row.state, &row.problems, &row.remarks);
    }
    lines.extend(status.notes.iter().cloned());
    let text: String = lines.iter().map(|line| safe(line) + "\n").collect();
    (!text.is_empty()).then_some(text)
}

/// Returns the remaining validity, negative after its end.
fn residual(facts: &Facts) -> String {
    match facts.residual_seconds {
        seconds @ ..0 => format!("-{}", human_duration(-seconds)),
        seconds => human_duration(seconds),
    }
}

pub(super) fn minute(time: OffsetDateTime) -> String {
    time.to_offset(UtcOffset::UTC)
        .format(format_description!(
            "[year]-[month]-[day] [hour]:[minute] UTC"
        ))
        .unwrap_or_default()
}

struct Cell {
    text: String,
    state: Option<RowState>,
}

impl Cell {
    fn text(text: &str) -> Cell {
        Cell {
            text: safe(text),
            state: None,
        }
    }

    fn optional(text: Option<&str>) -> Cell {
        Cell::text(text.unwrap_or("-"))
    }

    fn state(state: RowState) -> Cell {
        Cell {
            text: state.to_string(),
            state: Some(state),
        }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }

    /// Returns the text; states other than ok are coloured.
    fn painted(&self, colour: bool) -> String {
        match self.state {
            Some(RowState::Expiring) if colour => format!("\u{1b}[33m{}\u{1b}[0m", self.text),
            Some(state) if colour && state > RowState::Expiring => {
                format!("\u{1b}[31m{}\u{1b}[0m", self.text)
            }
            _ => self.text.clone(),
        }
    }
}

fn with_head(head: &[&str], rows: impl Iterator<Item = Vec<Cell>>) -> Vec<Vec<Cell>> {
    let head = head.iter().map(|text| Cell::text(text)).collect();
    std::iter::once(head).chain(rows).collect()
}

/// Returns aligned columns, separated by three blanks, without blanks at the end of a line.
fn columns(rows: &[Vec<Cell>], colour: bool) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.width().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut gap = 0;
        for (width, cell) in widths.iter().zip(row) {
            text.extend(std::iter::repeat_n(' ', gap));
            text.push_str(&cell.painted(colour));
            gap = width - cell.width() + 3;
        }
        text.push('\n');
    }
    text
}

/// Escapes control and invisible characters, so that a terminal does not interpret them and columns stay aligned.
fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hidden(c) {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    safe
}
