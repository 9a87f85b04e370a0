//! Lists and maps in brackets whose lines are indented less than the parser requires.
//!
//! YAML requires that lines within brackets are indented further than the key before the bracket (1.2.2, section 7.4). Go's
//! library does not, so kubeadm reads `certSANs: [`, names, and `]` in any column. Spaces at the beginning of such a line
//! change no value: within brackets, scalars of several lines are folded too.

use std::collections::HashSet;

use saphyr_parser::{Event, Parser};
use zeroize::Zeroizing;

use super::leading_tab;
use super::syntax::{OpenBracket, follow_brackets};

/// Maximum number of spaces that are added to one text.
const MAX_ADDED_SPACES: usize = 1 << 20;

/// A text whose lines within brackets begin to the right of the outermost bracket.
pub(super) struct Indented {
    pub(super) text: Zeroizing<String>,
    /// Number of spaces added to each line.
    pub(super) added: Vec<usize>,
}

/// Indents the lines within brackets; `None` if there are none, or if one of the lines may not be within brackets.
pub(super) fn indent(text: &str) -> Option<Indented> {
    // The parser ends a line at each carriage return.
    let mut after_returns = text.split('\r').skip(1);
    if after_returns.any(|rest| !rest.starts_with('\n')) {
        return None;
    }
    let mut indented = Indented {
        text: Zeroizing::default(),
        added: Vec::new(),
    };
    let mut open: Vec<OpenBracket> = Vec::new();
    let mut outermost = HashSet::new();
    let mut left = MAX_ADDED_SPACES;
    let mut above = "";
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        // A marker ends the document within brackets too. Go's library refuses a tab after a plain scalar.
        let is_marker = line.starts_with("---") || line.starts_with("...");
        let may_move =
            !is_marker && (!leading_tab(line) || above.ends_with(['[', '{', ',', ':', '"', '\'']));
        let bracket = open.first().filter(|_| may_move);
        let spaces = bracket.map_or(0, |bracket| bracket.column);
        left = left.checked_sub(spaces)?;
        indented.text.extend(std::iter::repeat_n(' ', spaces));
        indented.text.push_str(line);
        indented.added.push(spaces);
        follow_brackets(&mut open, number, line);
        outermost.extend(open.first().map(|bracket| (bracket.line, bracket.column)));
        if !line.trim().is_empty() {
            above = line.trim_end();
        }
    }
    is_confirmed(&indented, &outermost).then_some(indented)
}

/// Returns whether the parser finds all moved lines within brackets. `outermost`: line and column of each opening bracket in
/// whose lines others were moved. It may be text, for example in a block scalar.
fn is_confirmed(indented: &Indented, outermost: &HashSet<(usize, usize)>) -> bool {
    let moved = (1..).zip(&indented.added);
    let moved = moved.filter(|(_, spaces)| **spaces > 0);
    let mut unconfirmed: HashSet<usize> = moved.map(|(line, _)| line).collect();
    if unconfirmed.is_empty() {
        return false;
    }
    // Number of open collections in the outermost brackets, and the first line of these.
    let (mut depth, mut first) = (0_usize, 0);
    for event in Parser::new_from_str(&indented.text) {
        let Ok((event, span)) = event else {
            return false;
        };
        let line = span.start.line();
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) if depth > 0 => depth += 1,
            Event::SequenceStart(..) | Event::MappingStart(..)
                if outermost.contains(&(line, span.start.col())) =>
            {
                (depth, first) = (1, line);
            }
            Event::SequenceEnd | Event::MappingEnd if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    for line in first + 1..=line {
                        unconfirmed.remove(&line);
                    }
                }
            }
            _ => {}
        }
    }
    unconfirmed.is_empty()
}
