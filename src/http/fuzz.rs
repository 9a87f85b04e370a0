//! Responses from a script in place of a server, for fuzz targets.
//!
//! While a script is running, [`super::Client`] sends nothing and receives the responses of the script, one for each
//! exchange; after the last one the server is unreachable. The rest of the client is the real one: redirects, limits,
//! headers, and the division of the body into chunks.
//!
//! The responses in a script are separated by lines with `%%`. Each is the form of a recorded response: a line with the
//! status, headers, an empty line, the body.
#![allow(
    clippy::expect_used,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use reqwest::header::{HeaderName, HeaderValue};

use super::stream::take_line;
use super::{Call, Client, HttpError, HttpErrorKind, Line, Url, retry_after};

const SEPARATOR: &[u8] = b"\n%%\n";
/// Size of the pieces in which a body arrives.
const CHUNK_BYTES: usize = 61;
/// Replaced by the field `spec` of the last request with one: a Kubernetes API server returns it.
const SPEC: &str = "@SPEC@";

/// The remaining responses, and texts to be replaced in their bodies.
struct Script {
    responses: VecDeque<Vec<u8>>,
    replacements: &'static [(&'static str, String)],
    spec: String,
}

thread_local! {
    static SCRIPT: RefCell<Option<Script>> = const { RefCell::new(None) };
}

/// Runs `exchanges`, whose requests receive the responses in `script`.
pub(crate) fn with_responses<T>(
    script: &[u8],
    replacements: &'static [(&'static str, String)],
    exchanges: impl AsyncFnOnce() -> T,
) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be created");
    }
    let mut responses = VecDeque::new();
    let mut rest = script;
    while let Some(at) = rest
        .windows(SEPARATOR.len())
        .position(|part| part == SEPARATOR)
    {
        let (response, following) = rest.split_at(at);
        responses.push_back(response.to_vec());
        rest = following.strip_prefix(SEPARATOR).unwrap_or_default();
    }
    responses.push_back(rest.to_vec());
    let script = Script {
        responses,
        replacements,
        spec: "{}".to_owned(),
    };
    SCRIPT.set(Some(script));
    let result = RUNTIME.with(|runtime| runtime.block_on(exchanges()));
    SCRIPT.set(None);
    result
}

/// Returns the next response of the script; `None` if no script is running.
pub(super) fn response(
    client: &Client,
    call: &Call<'_>,
    url: &Url,
) -> Option<Result<reqwest::Response, HttpError>> {
    SCRIPT.with_borrow_mut(|script| {
        let script = script.as_mut()?;
        let endpoint = client.endpoint();
        let mut known = std::iter::once(&endpoint.url).chain(&endpoint.also);
        assert!(
            known.any(|known| known.origin() == url.origin()),
            "{url} is not a configured server"
        );
        if let Some(object) = call.object()
            && let Some(spec) = object.get("spec")
        {
            script.spec = spec.to_string();
        }
        let Some(bytes) = script.responses.pop_front() else {
            return Some(Err(HttpError::new(
                HttpErrorKind::Unreachable,
                "the script has ended",
                "run it again",
            )));
        };
        Some(Ok(script.response(&bytes)))
    })
}

impl Script {
    fn response(&self, bytes: &[u8]) -> reqwest::Response {
        let end = bytes.windows(2).position(|pair| pair == b"\n\n");
        let (head, body) = bytes.split_at(end.unwrap_or(bytes.len()));
        let body = body.strip_prefix(b"\n\n").unwrap_or_default();
        let head = String::from_utf8_lossy(head);
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.trim().parse().ok());
        let mut response = hyper::Response::builder().status(
            status
                .filter(|status| (200..=599).contains(status))
                .unwrap_or(200u16),
        );
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if let (Ok(name), Ok(value)) = (
                HeaderName::from_bytes(name.as_bytes()),
                HeaderValue::from_bytes(value.trim().as_bytes()),
            ) {
                response = response.header(name, value);
            }
        }
        let body = Chunks(self.replaced(body));
        let response = response.body(reqwest::Body::wrap(body));
        reqwest::Response::from(response.expect("status and headers are valid"))
    }

    fn replaced(&self, body: &[u8]) -> Vec<u8> {
        let Ok(text) = std::str::from_utf8(body) else {
            return body.to_vec();
        };
        if !text.contains('@') {
            return body.to_vec();
        }
        let mut text = text.replace(SPEC, &self.spec);
        for (name, value) in self.replacements {
            text = text.replace(name, value);
        }
        text.into_bytes()
    }
}

/// A body that arrives in small pieces.
struct Chunks(Vec<u8>);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.0.len().min(CHUNK_BYTES);
        if length == 0 {
            return Poll::Ready(None);
        }
        let chunk = self.0.drain(..length).collect();
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }
}

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("retry-after", read_retry_after),
    ("hosts-file", hosts_file),
    ("stream-lines", stream_lines),
];

fn read_retry_after(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let now = time::macros::datetime!(2026-06-01 12:00 UTC);
        let _ = retry_after(text, super::http_date(text).unwrap_or(now));
        if let Some(after) = retry_after(text, now) {
            assert!(after <= super::MAX_RETRY_AFTER);
        }
    }
}

/// The first line is the name that is looked up.
fn hosts_file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some((name, hosts)) = text.split_once('\n') {
        let _ = super::resolve::in_hosts(hosts, name);
    }
}

/// The first two bytes are the limit of a line and the size of the pieces in which the rest arrives.
fn stream_lines(bytes: &[u8]) {
    let [limit, size, content @ ..] = bytes else {
        return;
    };
    let (limit, size) = (usize::from(*limit), usize::from(*size).max(1));
    let (mut buffer, mut skips, mut found) = (Vec::new(), false, Vec::new());
    for piece in content.chunks(size) {
        buffer.extend_from_slice(piece);
        while let Some(line) = take_line(&mut buffer, &mut skips, limit) {
            found.push(line);
        }
        assert!(buffer.len() <= limit);
    }
    let mut lines: Vec<&[u8]> = content.split(|byte| *byte == b'\n').collect();
    lines.pop();
    let expected = lines.into_iter().map(|line| {
        if line.len() > limit {
            Line::TooLong
        } else {
            Line::Text(line.to_vec())
        }
    });
    assert!(expected.eq(found));
}
