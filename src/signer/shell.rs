//! Templates and quoting for the shell scripts that `nodepki config signer-setup` prints. An administrator of a server
//! runs them, and the names in them come from files that another user may have written.

pub(crate) use crate::text::quoted;

/// Replaces `@NAME@` in a template by the value of `NAME`. Values are not searched for further names.
pub(super) fn filled(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('@') {
        text.push_str(before);
        let value = values.iter().find_map(|(name, value)| {
            let rest = after.strip_prefix(name)?.strip_prefix('@')?;
            Some((value, rest))
        });
        match value {
            Some((value, behind)) => {
                text.push_str(value);
                rest = behind;
            }
            None => {
                text.push('@');
                rest = after;
            }
        }
    }
    text + rest
}

/// Fills in a template of a script. For each value `@NAME@` is a word of the shell, `@NAME_WORD@` the same on one line, for
/// a comment, and `@NAME_TEXT@` the text on one line. A value cannot end a word or a comment.
pub(super) fn script(template: &str, values: &[(&str, &str)]) -> String {
    let forms: Vec<(String, String)> = values
        .iter()
        .flat_map(|(name, value)| {
            let word = quoted(value);
            let line = one_line(&word);
            [
                ((*name).to_owned(), word),
                (format!("{name}_WORD"), line),
                (format!("{name}_TEXT"), one_line(value)),
            ]
        })
        .collect();
    let values: Vec<(&str, &str)> = forms
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    filled(template, &values)
}

/// Returns the command that prints a text, on one line.
pub(super) fn echo(text: &str) -> String {
    format!("printf '%s\\n' {}\n", quoted(&one_line(text)))
}

/// Replaces control characters in a text for a comment or a line of a file, which a line break would end.
pub(super) fn one_line(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_names_in_template_once() {
        let text = filled("@A@ @B@ a@b @A", &[("A", "@B@"), ("B", "1")]);
        assert_eq!(text, "@B@ 1 a@b @A");
    }

    #[test]
    fn values_of_script_end_neither_word_nor_comment() {
        let text = script("x @A@\n# @A_WORD@ @A_TEXT@\n", &[("A", "a\nid")]);
        assert_eq!(text, "x 'a\nid'\n# 'a?id' a?id\n");
    }

    #[test]
    fn quotes_words_for_the_shell() {
        for (text, word) in [
            ("pki/ca", "pki/ca"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(id)", "'$(id)'"),
            ("it's", r"'it'\''s'"),
            ("~", "'~'"),
        ] {
            assert_eq!(quoted(text), word);
        }
        assert_eq!(one_line("a\nb\r\u{85}c"), "a?b??c");
    }
}
