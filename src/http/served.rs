//! Reads the certificate that a server presents: a TLS handshake without a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::trust::{ConnectionLog, ServerTrust, certified_key, server_name};
use super::{ClientIdentity, HttpError, HttpErrorKind};
use crate::x509::Certificate;

/// Returns the leaf that the server at `address` presents. The certificate is not verified, but the server has proven
/// possession of its key. With `identity`, a server that requires a client certificate logs no error.
///
/// # Errors
/// [`HttpErrorKind::Unreachable`] if no handshake is completed within `limit`.
pub async fn presented_certificate(
    address: SocketAddr,
    identity: Option<&ClientIdentity>,
    clock: fn() -> OffsetDateTime,
    limit: Duration,
) -> Result<Certificate, HttpError> {
    let failed = |why: String| {
        HttpError::new(
            HttpErrorKind::Unreachable,
            format!("{address} does not serve: {why}"),
            "check that the component runs there",
        )
    };
    let identity = identity
        .map(|own| {
            certified_key(
                &own.chain_pem,
                &own.key_pem,
                "the client certificate",
                "its key",
            )
        })
        .transpose()?;
    let log = Arc::new(ConnectionLog::new(address.to_string()));
    let config = ServerTrust::Any.config(identity, clock, &log)?;
    let name = server_name(&address.ip().to_string())?;
    let handshake = async {
        let stream = TcpStream::connect(address).await?;
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    };
    let stream = match timeout(limit, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => {
            return Err(failed(format!(
                "no answer within {} s",
                limit.as_secs_f32()
            )));
        }
    };
    let presented = stream.get_ref().1.peer_certificates();
    let leaf = presented
        .and_then(|chain| chain.first())
        .ok_or_else(|| failed("the server presented no certificate".to_owned()))?;
    Certificate::from_der(leaf).map_err(|error| failed(error.to_string()))
}
