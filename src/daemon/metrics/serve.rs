//! `/metrics` and `/healthz` of the daemon, over plain HTTP/1.1.
//!
//! Read-only, and without secrets. By default it listens on loopback all the same, since it shows when a node is
//! unhealthy. The number of connections, the size of a request and its duration are limited. A new connection above the
//! limit closes the oldest one: clients that send nothing must not keep others waiting.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable};
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
use crate::agent::{Clock, Failure};

/// Maximum number of simultaneous connections. A response takes milliseconds, so the oldest of so many has no request.
const MAX_CONNECTIONS: usize = 32;
/// Time limit for the request with its headers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a connection, from the first byte of the request to the last byte of the response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size in bytes of a request with its headers; a scrape has a few hundred.
const MAX_REQUEST_SIZE: usize = 8 * 1024;
/// Wait after a failed accept(2), for example if no file descriptor is left.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Opens the socket.
///
/// # Errors
/// If the address is in use or is not an address of this machine.
pub async fn bind(listen: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(listen).await.map_err(|error| {
        Failure::misconfigured(format!("metrics.listen: cannot listen on {listen}"))
            .caused_by(error)
            .advise("stop the process that does (ss -ltnp), or configure another address")
    })
}

/// Serves requests until it is dropped.
pub async fn serve(listener: TcpListener, metrics: &Metrics, clock: Clock) -> Infallible {
    let mut connections = FuturesUnordered::new();
    // Those that are open, oldest first.
    let mut open: VecDeque<(u64, AbortHandle)> = VecDeque::new();
    let mut number = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if open.len() >= MAX_CONNECTIONS
                        && let Some((_, oldest)) = open.pop_front()
                    {
                        oldest.abort();
                    }
                    number += 1;
                    let (handle, registration) = AbortHandle::new_pair();
                    open.push_back((number, handle));
                    let served = Abortable::new(serve_connection(stream, metrics, clock), registration);
                    connections.push(async move {
                        let _ = served.await;
                        number
                    });
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection for metrics: {error}");
                    sleep(ACCEPT_RETRY_INTERVAL).await;
                }
            },
            Some(ended) = connections.next(), if !connections.is_empty() => {
                open.retain(|(number, _)| *number != ended);
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, metrics: &Metrics, clock: Clock) {
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
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_REQUEST_SIZE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection for metrics ended early: {error}"),
        Err(_) => tracing::debug!("a connection for metrics was too slow"),
    }
}

fn answer(method: &Method, path: &str, metrics: &Metrics, clock: Clock) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, kind, body) = match path {
        "/metrics" | "/healthz" if !matches!(*method, Method::GET | Method::HEAD) => {
            let text = "only GET and HEAD\n".to_owned();
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, text)
        }
        "/metrics" => {
            let page = metrics.page(clock());
            (StatusCode::OK, exposition::CONTENT_TYPE, page)
        }
        "/healthz" => {
            let problems = metrics.health_problems(clock());
            if problems.is_empty() {
                (StatusCode::OK, TEXT, "ok\n".to_owned())
            } else {
                let text = problems.join("\n") + "\n";
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
            }
        }
        _ => {
            let text = "not found; the paths are /metrics and /healthz\n".to_owned();
            (StatusCode::NOT_FOUND, TEXT, text)
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
