//! The PEM blocks that Go's `encoding/pem` finds in a file.
//!
//! Go ignores what it cannot decode, without an error. For example, it does not find a block whose `BEGIN` is not at the
//! start of a line, or that follows a byte order mark.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// One PEM block.
pub(super) struct PemBlock {
    pub(super) label: String,
    /// True if it has header lines, such as `Proc-Type`.
    pub(super) has_headers: bool,
    pub(super) content: Vec<u8>,
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"\n-----END ";
const DASHES: &[u8] = b"-----";

/// Returns all blocks that Go's `pem.Decode` returns when it is called until the end of `text`.
pub(super) fn decode_all(text: &[u8]) -> Vec<PemBlock> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some((block, after)) = decode(rest) {
        blocks.push(block);
        rest = after;
    }
    blocks
}

/// Go: `pem.Decode`.
fn decode(text: &[u8]) -> Option<(PemBlock, &[u8])> {
    let mut rest = text;
    loop {
        let end = find(rest, END)?;
        let after_end = rest.get(end + END.len()..)?;
        let block = rest
            .get(..end)
            .and_then(|before| begin(before))
            .and_then(|(label, body)| {
                // The END line must repeat the label; only white space may follow.
                let trailer = after_end.strip_prefix(label.as_bytes())?;
                let trailer = trailer.strip_prefix(DASHES)?;
                let (line, after) = line(trailer);
                let (has_headers, data) = headers(body)?;
                line.is_empty()
                    .then(|| contents(data))
                    .flatten()
                    .map(|content| {
                        let block = PemBlock {
                            label,
                            has_headers,
                            content,
                        };
                        (block, after)
                    })
            });
        match block {
            Some(found) => return Some(found),
            None => rest = after_end,
        }
    }
}

/// Returns the label of the last `BEGIN` before an `END`, and the text after its line.
fn begin(before: &[u8]) -> Option<(String, &[u8])> {
    let at = before
        .windows(BEGIN.len())
        .rposition(|window| window == BEGIN)?;
    if at > 0 && before.get(at - 1) != Some(&b'\n') {
        return None;
    }
    // The line end before END is part of END, so an empty body has none.
    let (first, body) = line(before.get(at + BEGIN.len()..)?);
    let label = first.strip_suffix(DASHES)?;
    Some((String::from_utf8_lossy(label).into_owned(), body))
}

/// Skips header lines, which contain a colon; returns true if there were any.
fn headers(body: &[u8]) -> Option<(bool, &[u8])> {
    let mut rest = body;
    let mut found = false;
    loop {
        let (first, next) = line(rest);
        if !first.contains(&b':') {
            return Some((found, rest));
        }
        found = true;
        if next.is_empty() && !rest.ends_with(b"\n") {
            // No line remains for the data.
            return None;
        }
        rest = next;
    }
}

fn contents(data: &[u8]) -> Option<Vec<u8>> {
    let packed: Vec<u8> = data
        .iter()
        .copied()
        .filter(|byte| !b" \t\r\n".contains(byte))
        .collect();
    BASE64_STANDARD.decode(packed).ok()
}

/// Splits off a line without white space at its end. Go: `getLine`.
fn line(text: &[u8]) -> (&[u8], &[u8]) {
    let (line, rest) = match text.iter().position(|byte| *byte == b'\n') {
        Some(at) => (
            text.get(..at).unwrap_or_default(),
            text.get(at + 1..).unwrap_or_default(),
        ),
        None => (text, &[][..]),
    };
    let line = if rest.is_empty() && line.len() == text.len() {
        line
    } else {
        line.strip_suffix(b"\r").unwrap_or(line)
    };
    let kept = line
        .iter()
        .rposition(|byte| !b" \t".contains(byte))
        .map_or(0, |last| last + 1);
    (line.get(..kept).unwrap_or_default(), rest)
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Vec<String> {
        let blocks = decode_all(text.as_bytes());
        blocks.into_iter().map(|block| block.label).collect()
    }

    #[test]
    fn finds_blocks_that_go_finds() {
        let block = "-----BEGIN A-----\nAAAA\nAAAA\n-----END A-----\n";
        assert_eq!(labels(block), ["A"]);
        assert_eq!(labels(&format!("text\n{block}more\n{block}")), ["A", "A"]);
        assert_eq!(labels(&block.replace('\n', "\r\n")), ["A"]);
        assert_eq!(labels(block.trim_end()), ["A"]);
        assert_eq!(
            labels("-----BEGIN A-----\nAAAA\n-----END A-----  \n"),
            ["A"]
        );
        // A BEGIN without an END is ignored.
        assert_eq!(labels(&format!("-----BEGIN B-----\nAAAA\n{block}")), ["A"]);
        let headers = decode_all(b"-----BEGIN A-----\nk: v\n\nAAAA\n-----END A-----\n");
        assert!(headers[0].has_headers);
        assert_eq!(headers[0].content, [0, 0, 0]);
    }

    #[test]
    fn ignores_blocks_that_go_ignores() {
        for text in [
            "\u{feff}-----BEGIN A-----\nAAAA\n-----END A-----\n",
            "  -----BEGIN A-----\n  AAAA\n  -----END A-----\n",
            "-----BEGIN A-----\nAAAA\n-----END B-----\n",
            "-----BEGIN A-----\nAAA\n-----END A-----\n",
            "-----BEGIN A-----\nAAAA\n-----END A----- x\n",
            "-----BEGIN A-----\nAAAA",
        ] {
            assert_eq!(labels(text), [""; 0], "{text:?}");
        }
    }
}
