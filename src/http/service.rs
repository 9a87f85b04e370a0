//! Servers that DNS names for a service, in SRV records (RFC 2782).

use std::fmt;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::{CONNECT_TIMEOUT, Client, Url, resolve};

/// A service whose servers DNS names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Names of the service, such as `_x-puppet-ca._tcp`. The next one counts if the one before has no server.
    pub names: &'static [&'static str],
    /// Domain of the service; by default, the domains of resolv.conf are searched.
    pub domain: Option<String>,
}

/// The name that is queried first.
impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.names.first().copied().unwrap_or_default())?;
        self.domain
            .iter()
            .try_for_each(|domain| write!(f, ".{domain}"))
    }
}

impl Client {
    /// Returns the address of the server: that of the endpoint, or of a server of its service, if one is found by then.
    pub(super) async fn base(&self, deadline: Instant) -> Url {
        let endpoint = &self.endpoint;
        let Some(service) = &endpoint.service else {
            return endpoint.url.clone();
        };
        let known = self.located.borrow().clone();
        if let Some(url) = known {
            return url;
        }
        // On the heap: few exchanges do this, and the future of every exchange would have room for it otherwise.
        let locate = Box::pin(service.locate(&endpoint.url, endpoint.proxy.is_some()));
        let located = timeout_at(deadline, locate).await.ok().flatten();
        self.located.borrow_mut().clone_from(&located);
        located.unwrap_or_else(|| endpoint.url.clone())
    }
}

impl Service {
    /// Returns `url` with host and port of the first server that accepts connections; through a proxy, of the first server.
    async fn locate(&self, url: &Url, by_proxy: bool) -> Option<Url> {
        for name in self.names {
            let servers = match resolve::servers_of(name, self.domain.as_deref()).await {
                Ok(servers) => servers,
                Err(why) => {
                    tracing::warn!("the servers of {name} are unknown: {why}");
                    return None;
                }
            };
            for (host, port) in &servers {
                let mut url = url.clone();
                if url.set_host(Some(host)).is_err() || url.set_port(Some(*port)).is_err() {
                    tracing::warn!("a server of {name} has an invalid name: {host:?}");
                } else if by_proxy || accepts(host, *port).await {
                    return Some(url);
                } else {
                    tracing::warn!("{host}:{port}, a server of {name}, is not reachable");
                }
            }
            if !servers.is_empty() {
                return None;
            }
        }
        None
    }
}

/// Returns whether a server accepts TCP connections.
async fn accepts(host: &str, port: u16) -> bool {
    let connect = async {
        for address in resolve::addresses(host).await.unwrap_or_default() {
            if TcpStream::connect((address, port)).await.is_ok() {
                return true;
            }
        }
        false
    };
    timeout(CONNECT_TIMEOUT, connect).await.unwrap_or_default()
}
