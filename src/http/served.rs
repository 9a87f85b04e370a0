//! Which certificate a server shows, whoever it is: a handshake and nothing else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::trust::{Trust, Witness, certified_key, server_name};
use super::{Error, Identity, Kind};
use crate::x509::Certificate;

/// The leaf that the server at `address` shows. Nobody is asked whether it is to be trusted, but the server has proven
/// to have its key. With `identity` a server that wants a client certificate has no reason to complain in its log.
///
/// # Errors
/// [`Kind::Unreachable`] when no handshake was finished within `limit`.
pub async fn served(
    address: SocketAddr,
    identity: Option<&Identity>,
    clock: fn() -> OffsetDateTime,
    limit: Duration,
) -> Result<Certificate, Error> {
    let failed = |why: String| {
        Error::new(
            Kind::Unreachable,
            format!("{address} does not serve: {why}"),
            "see whether the component runs there",
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
    let witness = Arc::new(Witness::new(address.to_string()));
    let config = Trust::Anybody.config(identity, clock, &witness)?;
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
    let shown = stream.get_ref().1.peer_certificates();
    let leaf = shown
        .and_then(|chain| chain.first())
        .ok_or_else(|| failed("it showed no certificate".to_owned()))?;
    Certificate::from_der(leaf).map_err(|error| failed(error.to_string()))
}
