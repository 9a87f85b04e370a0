//! Text forms: PEM, hexadecimal, times, and escaping of text from outside.

use time::OffsetDateTime;

use super::content::wide_encoding;

/// Returns true for a character that is invisible or changes how a terminal displays others: controls, direction marks,
/// zero-width characters, annotations and tags.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Escapes hidden characters, so that text from outside is safe for a terminal and a log.
pub(super) fn printable(text: &str) -> String {
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

/// Returns the blocks of PEM text. The error quotes labels of the text.
pub(super) fn pem_blocks(text: &[u8]) -> Result<Vec<pem::Pem>, String> {
    if let Some(encoding) = wide_encoding(text) {
        return Err(format!(
            "it is in {encoding} (iconv -f {encoding} -t UTF-8 FILE > NEW converts it)"
        ));
    }
    pem::parse_many(text).map_err(|error| printable(&error.to_string()))
}

/// Encodes PEM like Go: with LF line ends and a final newline.
pub(super) fn encode_pem(label: &str, der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(label, der), config)
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
