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
    if problem.contains("quoted scalar") {
        return Some("close the quotation mark that begins here".to_owned());
    }
    if problem.contains("unexpected character") {
        return Some("put the text into quotation marks".to_owned());
    }
    let is_in_brackets = problem.contains("flow") || problem.contains("':' indicator");
    if let Some((opener, opened)) = is_in_brackets.then(|| open_bracket(&lines, line)).flatten() {
        return Some(if opened == line {
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

/// Returns the last bracket up to this line that is not closed, and its line. Text in quotation marks and comments do not
/// count.
fn open_bracket(lines: &[&str], last: usize) -> Option<(char, usize)> {
    let mut open = Vec::new();
    for (number, line) in (1..=last).zip(lines) {
        let mut quote = None;
        let mut before = ' ';
        for c in line.chars() {
            match (quote, c) {
                (Some(mark), _) if mark == c => quote = None,
                (Some(_), _) => {}
                (None, '#') if before == ' ' => break,
                // A mark within a word, as in `it's`, is text.
                (None, '"' | '\'') if !before.is_alphanumeric() => quote = Some(c),
                // `{` within a word, as in `pki/{authority}`, is text outside of a flow collection.
                (None, '{' | '[') if !open.is_empty() || matches!(before, ' ' | '-') => {
                    open.push((c, number));
                }
                (None, '}' | ']') => _ = open.pop(),
                _ => {}
            }
            before = c;
        }
    }
    open.last().copied()
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
