//! Templates and quoting for the shell scripts that `nodepki config signer-setup` prints. An administrator of a server
//! runs them, and the names in them come from files that another user may have written.

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

/// Quotes a text as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
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
