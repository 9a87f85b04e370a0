//! A response without an end, read line by line: the watch of an API server.

use std::sync::Arc;
use std::time::Duration;

use super::trust::ConnectionLog;
use super::{HttpError, HttpResponse, error};

/// The response to [`Client::open`](super::Client::open).
pub enum Opened {
    /// A success, with its body unread.
    Stream(HttpStream),
    /// Any other status.
    Response(HttpResponse),
}

/// The body of a response that is still being sent.
pub struct HttpStream {
    answer: reqwest::Response,
    log: Arc<ConnectionLog>,
    route: String,
    /// Received bytes that are not returned yet.
    buffer: Vec<u8>,
    /// The rest of the present line is discarded: it is longer than the limit.
    skips: bool,
}

/// A line of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// The line without its newline.
    Text(Vec<u8>),
    /// A line longer than the limit, which was discarded.
    TooLong,
}

impl HttpStream {
    pub(super) fn new(answer: reqwest::Response, log: Arc<ConnectionLog>, route: String) -> Self {
        HttpStream {
            answer,
            log,
            route,
            buffer: Vec::new(),
            skips: false,
        }
    }

    /// Returns the next line; `None` if the server has ended the stream. Lines of more than `limit` bytes are never held
    /// in memory. A call may be dropped at any time, and the next one continues.
    ///
    /// # Errors
    /// [`HttpErrorKind::Lost`](super::HttpErrorKind::Lost) if the connection fails, or if nothing arrives for `idle`.
    pub async fn line(&mut self, limit: usize, idle: Duration) -> Result<Option<Line>, HttpError> {
        loop {
            if let Some(line) = take_line(&mut self.buffer, &mut self.skips, limit) {
                return Ok(Some(line));
            }
            let chunk = match tokio::time::timeout(idle, self.answer.chunk()).await {
                Ok(chunk) => chunk,
                Err(_) => return Err(error::timed_out(&self.log, &self.route)),
            };
            match chunk
                .map_err(|cause| error::classify(&self.log, &self.route, cause.without_url()))?
            {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}

/// Removes the first complete line from `buffer`; `None` if it has none.
pub(super) fn take_line(buffer: &mut Vec<u8>, skips: &mut bool, limit: usize) -> Option<Line> {
    let Some(end) = buffer.iter().position(|byte| *byte == b'\n') else {
        if buffer.len() > limit {
            *skips = true;
            *buffer = Vec::new();
        }
        return None;
    };
    let mut line: Vec<u8> = buffer.drain(..=end).collect();
    line.pop();
    if buffer.is_empty() {
        buffer.shrink_to(KEPT_CAPACITY);
    }
    Some(if std::mem::take(skips) || line.len() > limit {
        Line::TooLong
    } else {
        Line::Text(line)
    })
}

/// Capacity in bytes that the buffer keeps between two lines: more than a usual object.
const KEPT_CAPACITY: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&str], limit: usize) -> Vec<Line> {
        let (mut buffer, mut skips, mut found) = (Vec::new(), false, Vec::new());
        for chunk in chunks {
            buffer.extend_from_slice(chunk.as_bytes());
            while let Some(line) = take_line(&mut buffer, &mut skips, limit) {
                found.push(line);
            }
            assert!(buffer.len() <= limit, "{} bytes are held", buffer.len());
        }
        found
    }

    fn text(line: &str) -> Line {
        Line::Text(line.as_bytes().to_vec())
    }

    #[test]
    fn joins_chunks_to_lines() {
        let found = lines(&["ab", "c\nd", "\n\nef\ngh"], 10);
        assert_eq!(found, [text("abc"), text("d"), text(""), text("ef")]);
    }

    #[test]
    fn discards_line_over_limit_and_continues() {
        let found = lines(&["a\nbbb", "bbb", "bbb", "\nc\n", "dddddd\ne\n"], 5);
        assert_eq!(
            found,
            [
                text("a"),
                Line::TooLong,
                text("c"),
                Line::TooLong,
                text("e")
            ]
        );
    }
}
