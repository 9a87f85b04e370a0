//! Text that every room writes alike: hexadecimal, times, words of a shell, and characters from outside that a terminal must not see.

use time::OffsetDateTime;

/// Returns true for a character that is invisible or changes how a terminal displays others: controls, direction marks,
/// zero-width characters, annotations and tags.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Escapes hidden characters, so text from outside is safe for a terminal and a log.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if is_hidden(c) {
                c.escape_default().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

/// Quotes a text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Encodes lower-case hexadecimal without separators.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Formats a time for messages: RFC 3339, in whole seconds.
pub fn rfc3339(time: OffsetDateTime) -> String {
    let whole = time.replace_nanosecond(0).unwrap_or(time);
    whole
        .format(&time::format_description::well_known::Rfc3339)
        .unwrap_or_else(|_| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_characters_that_change_direction() {
        assert_eq!(printable("a\u{1b}[2J\u{202e}b"), "a\\u{1b}[2J\\u{202e}b");
    }
}
