//! Corrections for syntax errors: the parser says where it stopped, which is often a line below the mistake.

/// Returns the correction for a syntax error at this line (from 1), if the text shows what is wrong.
pub(super) fn correction(text: &str, line: usize, problem: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let at = |number: usize| {
        number
            .checked_sub(1)
            .and_then(|index| lines.get(index))
            .copied()
    };
    let here = at(line)?;
    if problem.contains("unprintable") {
        return Some("remove the control character".to_owned());
    }
    let is_indentation = problem.contains("indentation");
    if problem.contains("quoted scalar") {
        return Some(if is_indentation {
            "close the quotation mark that begins here, and indent the lines of the text further than its key".to_owned()
        } else {
            "close the quotation mark that begins here".to_owned()
        });
    }
    if problem.contains("unexpected character") {
        return Some("put the text into quotation marks".to_owned());
    }
    let is_in_brackets =
        is_indentation || problem.contains("flow") || problem.contains("':' indicator");
    // The line that is not indented may close the bracket.
    let last = if is_indentation { line - 1 } else { line };
    if let Some(bracket) = is_in_brackets.then(|| open_bracket(&lines, last)).flatten() {
        let (opener, opened) = (bracket.mark, bracket.line);
        return Some(if is_indentation {
            format!(
                "close the {opener} in line {opened}, and indent the lines in it further than its key"
            )
        } else if opened == line {
            format!(
                "close the {opener} in this line, and put text that contains brackets or commas into quotation marks"
            )
        } else {
            format!("close the {opener} in line {opened}")
        });
    }
    let (above, previous) = (1..line)
        .rev()
        .filter_map(|number| Some((number, at(number)?)))
        .find(|(_, text)| is_content(text))?;
    let is_bare = !previous.contains(':') && previous.split_whitespace().count() == 1;
    if is_bare && !previous.trim_start().starts_with('-') {
        let word = previous.trim();
        return Some(format!("write {word}: with a colon in line {above}"));
    }
    let widths = (indentation(previous), indentation(here));
    (widths.0 != widths.1).then(|| {
        format!(
            "line {above} is indented with {} and line {line} with {} spaces: indent the keys of one map alike",
            widths.0, widths.1
        )
    })
}

fn is_content(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#')
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// A bracket that is not closed.
#[derive(Clone, Copy)]
pub(super) struct OpenBracket {
    mark: char,
    pub(super) line: usize,
    /// Number of characters before it.
    pub(super) column: usize,
}

/// Returns the last bracket up to this line that is not closed.
fn open_bracket(lines: &[&str], last: usize) -> Option<OpenBracket> {
    let mut open = Vec::new();
    for (number, line) in (1..=last).zip(lines) {
        follow_brackets(&mut open, number, line);
    }
    open.last().copied()
}

/// Adds the brackets that a line opens, and removes those that it closes. Text in quotation marks and comments do not count.
pub(super) fn follow_brackets(open: &mut Vec<OpenBracket>, line: usize, text: &str) {
    let mut quote = None;
    let mut before = ' ';
    for (column, c) in text.chars().enumerate() {
        match (quote, c) {
            (Some(mark), _) if mark == c => quote = None,
            (Some(_), _) => {}
            (None, '#') if before == ' ' => break,
            // A mark within a word, as in `it's`, is text.
            (None, '"' | '\'') if !before.is_alphanumeric() => quote = Some(c),
            // `{` within a word, as in `pki/{authority}`, is text outside of a flow collection.
            (None, '{' | '[') if !open.is_empty() || matches!(before, ' ' | '-') => {
                open.push(OpenBracket {
                    mark: c,
                    line,
                    column,
                });
            }
            (None, '}' | ']') => _ = open.pop(),
            _ => {}
        }
        before = c;
    }
}

#[cfg(test)]
mod tests {
    use crate::yaml::parse;

    #[test]
    fn corrects_the_line_with_the_mistake() {
        for (text, expected) in [
            ("a:\n  b\n    c: d\n", "write b: with a colon in line 2"),
            ("a: {b: c\nd: e\n", "close the { in line 1"),
            ("a: [b\nc: d\n", "close the [ in line 1"),
            ("a: {b: ${C}}\n", "environment variables"),
            ("a: @b\n", "quotation marks"),
            ("a: \"b\nc: d\n", "close the quotation mark"),
            ("a: [b/{c}\n", "close the ["),
            (
                "a: [\n\"b\n[c\"\n]\nd: e\n",
                "close the [ in line 1, and indent the lines in it further than its key",
            ),
            (
                "a: \"b\nc\"\n",
                "close the quotation mark that begins here, and indent the lines of the text",
            ),
            (
                "a:\n  b: c\n    d: e\n",
                "line 2 is indented with 2 and line 3 with 4 spaces",
            ),
            ("a:\n    b: c\n  d: e\n", "line 2 is indented with 4"),
        ] {
            let faults = parse("f", text).unwrap_err().to_string();
            assert!(faults.contains(expected), "{text}: {faults}");
        }
    }
}
