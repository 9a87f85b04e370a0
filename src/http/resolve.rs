//! Names to addresses without NSS, which a static binary does not have: `/etc/hosts`, then DNS by `/etc/resolv.conf`.
//!
//! A name that stands in `/etc/hosts` is not asked for elsewhere: early in a boot the name servers are often out of
//! reach, and asking for the other address family would hang. Both files are read for each exchange.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a name has no address.
#[derive(Debug, thiserror::Error)]
#[error("the name {name} cannot be resolved: {why}")]
pub(super) struct ResolveError {
    name: String,
    why: String,
}

/// Resolves one name, or whatever it is asked for.
pub(super) struct Resolver {
    host: Option<String>,
}

impl Resolver {
    /// Goes for `host`, whatever name the TLS layer uses for it.
    pub(super) fn for_host(host: &str) -> Self {
        Resolver {
            host: Some(host.to_owned()),
        }
    }

    /// For a proxy, whose name it is asked for.
    pub(super) fn as_asked() -> Self {
        Resolver { host: None }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let name = self
            .host
            .clone()
            .unwrap_or_else(|| name.as_str().to_owned());
        Box::pin(async move {
            let found = lookup(&name)
                .await
                .map_err(|why| Box::new(ResolveError { name, why }) as BoxError)?;
            // Port 0 is replaced by the one in the URL.
            let addresses = found.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

async fn lookup(name: &str) -> Result<Vec<IpAddr>, String> {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse() {
        return Ok(vec![address]);
    }
    let hosts = std::fs::read("/etc/hosts").unwrap_or_default();
    let listed = in_hosts(&String::from_utf8_lossy(&hosts), name);
    if !listed.is_empty() {
        return Ok(listed);
    }
    if name.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let mut builder =
        TokioResolver::builder_tokio().map_err(|error| format!("/etc/resolv.conf: {error}"))?;
    let options = builder.options_mut();
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    let resolver = builder.build().map_err(|error| error.to_string())?;
    let answer = resolver.lookup_ip(name).await.map_err(|error| {
        if error.is_no_records_found() {
            "DNS has no address for it".to_owned()
        } else {
            error.to_string()
        }
    })?;
    Ok(answer.iter().collect())
}

/// hosts(5): an address, then names, up to a `#`.
fn in_hosts(hosts: &str, name: &str) -> Vec<IpAddr> {
    let wanted = name.trim_end_matches('.');
    hosts
        .lines()
        .filter_map(|line| {
            let mut words = line.split('#').next()?.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words
                .any(|word| word.trim_end_matches('.').eq_ignore_ascii_case(wanted))
                .then_some(address)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_the_manual_says() {
        let hosts = "127.0.0.1 localhost\n# 1.1.1.1 vault\n192.0.2.1\tVault.Example.com vault # old: vault2\n\
                     fd00::1 vault\nnonsense vault\n";
        assert_eq!(
            in_hosts(hosts, "vault"),
            ["192.0.2.1", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        assert_eq!(in_hosts(hosts, "vault.example.com.").len(), 1);
        assert!(in_hosts(hosts, "vault2").is_empty());
    }
}
