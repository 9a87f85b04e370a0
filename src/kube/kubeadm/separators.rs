//! The parts of a configuration file between lines with `---`, as kubeadm splits it before it reads any YAML.
//!
//! kubeadm (`SplitConfigDocuments`, with `YAMLReader` of k8s.io/apimachinery) requires apiVersion and kind in each part, and
//! reads the first document of a part. A YAML parser finds no document in a part of comments, and further ones after `...`.

use std::ops::RangeInclusive;

use crate::yaml::{FieldPosition, Node, Position};

/// A fault of the file that kubeadm sees: its place, and what to do.
pub(super) struct SplitFault {
    pub(super) spot: FieldPosition,
    pub(super) message: &'static str,
    pub(super) fix: String,
}

/// Lines of a text, from 1.
type Lines = RangeInclusive<usize>;

/// Returns the faults of a text whose documents are these.
pub(super) fn faults(file: &str, text: &str, documents: &[Node]) -> Vec<SplitFault> {
    let at = |line: usize| {
        FieldPosition::from(Position {
            line,
            column: 1,
            ..Position::whole(file)
        })
    };
    let parts = match split(text) {
        Ok(parts) => parts,
        Err(line) => {
            return vec![SplitFault {
                spot: at(line),
                message: "kubeadm refuses the file: only a comment may follow --- in its line",
                fix: "write the text into the next line".to_owned(),
            }];
        }
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut faults = Vec::new();
    // Both are in the order of the text, and a separator's line contains no document.
    let mut begins = documents.iter().map(|one| one.place.line).peekable();
    for (index, part) in parts.iter().enumerate() {
        let mut inside = Vec::new();
        while let Some(line) = begins.next_if(|line| line <= part.end()) {
            inside.push(line);
        }
        match inside.as_slice() {
            [] => faults.push(SplitFault {
                spot: at(*part.start()),
                message: "kubeadm refuses the file: each part between lines with --- must contain a document with apiVersion and kind",
                fix: empty_part_fix(&lines, part, index + 1 == parts.len()),
            }),
            [_, second, ..] => faults.push(SplitFault {
                spot: at(*second),
                message: "kubeadm ignores this document: it reads one document between lines with ---",
                fix: "write a line with --- before it".to_owned(),
            }),
            [_] => {}
        }
    }
    faults
}

/// Returns how to correct a part without a document.
fn empty_part_fix(lines: &[&str], part: &Lines, is_last: bool) -> String {
    let (first, last) = (*part.start(), *part.end());
    let is_comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let mut own = lines.get(first - 1..last).into_iter().flatten();
    let has_only_comments = own.all(|line| line.starts_with(SEPARATOR) || is_comment(line));
    match (is_last, has_only_comments) {
        // The line above is the separator.
        (true, _) => format!(
            "remove line {} and all lines after it",
            first.saturating_sub(1)
        ),
        (false, true) => format!("remove line {}, which contains ---", last + 1),
        (false, false) => format!("remove the lines {first} to {}", last + 1),
    }
}

const SEPARATOR: &str = "---";

/// Returns the parts, without the lines that separate them. A separator after another one, or at the beginning, belongs to
/// the next part.
///
/// # Errors
/// The line of a separator with text after it.
fn split(text: &str) -> Result<Vec<Lines>, usize> {
    let mut parts = Vec::new();
    let mut open: Option<Lines> = None;
    for (line, content) in (1..).zip(text.lines()) {
        if let Some(rest) = content.strip_prefix(SEPARATOR) {
            let rest = rest.trim();
            if !rest.is_empty() && !rest.starts_with('#') {
                return Err(line);
            }
            if let Some(part) = open.take() {
                parts.push(part);
                continue;
            }
        }
        let first = open.map_or(line, |part| *part.start());
        open = Some(first..=line);
    }
    parts.extend(open);
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::parse;
    use crate::yaml::tests::processor_seconds;

    #[test]
    fn examines_parts_in_time_that_grows_with_their_number() {
        // Comparing every part with every document, or finding its lines from the beginning of the text, takes minutes.
        const PARTS: usize = 100_000;
        let full = "a: 1\n---\n".repeat(PARTS);
        let empty = format!("a: 1\n---\n{}", "# b\n---\n".repeat(PARTS));
        let before = processor_seconds();
        for (text, expected) in [(&full, 0), (&empty, PARTS)] {
            let documents = parse("k.yaml", text).unwrap();
            assert_eq!(faults("k.yaml", text, &documents).len(), expected);
        }
        let taken = processor_seconds() - before;
        assert!(taken < 30.0, "{taken} s");
    }
}
