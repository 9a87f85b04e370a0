//! Names in the shell scripts that `nodepki config signer-setup` prints. An administrator of a server runs those, and
//! the names in them come from files that somebody else may have written.

/// A word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What stands in a comment or between the lines of a file: a line break would end it.
pub(super) fn one_line(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_a_word() {
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
