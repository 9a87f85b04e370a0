//! `/metrics` and `/healthz` of the daemon, over plain HTTP/1.1.
//!
//! Reads only, and tells nothing that is secret; all the same it listens on loopback unless it is told otherwise, since
//! it says when a node is ill. Few connections at a time, small requests, and nobody is waited for long.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::{Metrics, exposition};
use crate::agent::{Clock, ExitCode, Failure};

/// Connections at a time; whoever comes later waits in the kernel's queue.
const CONNECTIONS: usize = 8;
/// From the first byte to the last one of the answer.
const LIMIT: Duration = Duration::from_secs(10);
/// For a request with its headers; a scrape has a few hundred bytes.
const REQUEST: usize = 8 * 1024;
/// After a failure to accept, as for want of file descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// Opens the socket.
///
/// # Errors
/// When the address is taken or is none of this machine's.
pub async fn bind(listen: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(listen).await.map_err(|error| {
        Failure::new(
            ExitCode::Configuration,
            format!("metrics.listen: nothing can listen on {listen}: {error}; stop whoever does (ss -ltnp), or name another address"),
        )
    })
}

/// Answers until it is dropped.
pub async fn serve(listener: TcpListener, metrics: &Metrics, clock: Clock) -> Infallible {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => connections.push(converse(stream, metrics, clock)),
                Err(error) => {
                    tracing::warn!("no connection for metrics could be accepted: {error}");
                    sleep(PAUSE).await;
                }
            },
            Some(()) = connections.next(), if !connections.is_empty() => {}
        }
    }
}

async fn converse(stream: TcpStream, metrics: &Metrics, clock: Clock) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(answer(
            request.method(),
            request.uri().path(),
            metrics,
            clock,
        ))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LIMIT)
        .max_buf_size(REQUEST)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(LIMIT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection for metrics ended early: {error}"),
        Err(_) => tracing::debug!("a connection for metrics was too slow"),
    }
}

fn answer(method: &Method, path: &str, metrics: &Metrics, clock: Clock) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, kind, body) = match path {
        "/metrics" | "/healthz" if !matches!(*method, Method::GET | Method::HEAD) => {
            let words = "only GET and HEAD\n".to_owned();
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, words)
        }
        "/metrics" => {
            let page = metrics.page(clock());
            (StatusCode::OK, exposition::CONTENT_TYPE, page)
        }
        "/healthz" => {
            let ailments = metrics.ailments(clock());
            match ailments.is_empty() {
                true => (StatusCode::OK, TEXT, "ok\n".to_owned()),
                false => {
                    let words = ailments.join("\n") + "\n";
                    (StatusCode::SERVICE_UNAVAILABLE, TEXT, words)
                }
            }
        }
        _ => {
            let words = "there are /metrics and /healthz\n".to_owned();
            (StatusCode::NOT_FOUND, TEXT, words)
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
