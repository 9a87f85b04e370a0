//! Resolves names without NSS, which a static binary lacks: `/etc/hosts`, then DNS according to `/etc/resolv.conf`.
//!
//! A name in `/etc/hosts` is not queried in DNS: early in a boot the name servers are often unreachable, and the query
//! for the other address family would hang. Both files are read for each exchange.
//!
//! The A and AAAA records are requested at the same time, and the addresses of one family are used if the other is not
//! answered (RFC 8305, section 3). Name servers and search list have the order and the meaning of resolv.conf(5): the
//! next server is asked if one fails or is slow, the next name if there is no record of either family.

mod zone;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hickory_resolver::Resolver as DnsResolver;
use hickory_resolver::config::{ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{IntoName, Name as DnsName, RData, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::time::{Instant, sleep, sleep_until};

use self::zone::{ZoneProvider, without_zones};
use super::trust::ConnectionLog;
use crate::process::jitter::random_fraction;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Time limit for all queries of one name; the rest of the connect timeout is for TCP and TLS.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval after which a query is sent to the same server again.
const RETRANSMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without an answer after which the next server is queried as well.
const NEXT_SERVER_DELAY: Duration = Duration::from_millis(500);
/// Minimum wait for the second family once the first has an address ("Resolution Delay" of RFC 8305).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
/// Maximum of that wait, on a slow network.
const MAX_RESOLUTION_DELAY: Duration = Duration::from_secs(1);

/// A name without an address.
#[derive(Debug, thiserror::Error)]
#[error("the name {name} cannot be resolved: {why}")]
pub(super) struct ResolveError {
    name: String,
    why: String,
}

/// Resolves one fixed name, or the requested one.
pub(super) struct Resolver {
    host: Option<String>,
    log: Arc<ConnectionLog>,
}

impl Resolver {
    /// Always resolves `host`, whatever name the TLS layer uses for it.
    pub(super) fn for_host(host: &str, log: &Arc<ConnectionLog>) -> Self {
        Resolver {
            host: Some(host.to_owned()),
            log: Arc::clone(log),
        }
    }

    /// Resolves the requested name: that of a proxy.
    pub(super) fn as_asked(log: &Arc<ConnectionLog>) -> Self {
        Resolver {
            host: None,
            log: Arc::clone(log),
        }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let name = self
            .host
            .clone()
            .unwrap_or_else(|| name.as_str().to_owned());
        let log = Arc::clone(&self.log);
        Box::pin(async move {
            let found = lookup(&name, &log)
                .await
                .map_err(|why| Box::new(ResolveError { name, why }) as BoxError)?;
            // The library replaces port 0 by the port of the URL.
            let addresses = found.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

/// Returns the addresses of a host name.
///
/// # Errors
/// Why the name has none.
pub async fn addresses(name: &str) -> Result<Vec<IpAddr>, String> {
    lookup(name, &ConnectionLog::new(name.to_owned())).await
}

async fn lookup(name: &str, log: &ConnectionLog) -> Result<Vec<IpAddr>, String> {
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
    let (config, ndots, servers) = system_conf()?;
    let names = candidates(name, &config, ndots)?;
    let asked: Vec<&str> = servers.iter().map(|server| server.label.as_str()).collect();
    let asked = format!("name servers asked: {}", asked.join(", "));
    log.set_resolving(Some(format!(
        "the name {name} cannot be resolved: {asked}; no answer"
    )));
    let found = in_dns(names, &servers).await;
    log.set_resolving(None);
    match found {
        Ok((addresses, None)) => Ok(addresses),
        Ok((addresses, Some(incomplete))) => {
            let note = format!("{asked}; {incomplete}");
            tracing::debug!("{name} is resolved in part: {note}");
            log.set_unresolved(note);
            Ok(addresses)
        }
        Err(None) => Err("DNS has no address for it".to_owned()),
        Err(Some(why)) => Err(format!("{asked}; {why}")),
    }
}

/// One name server.
struct NameServer {
    label: String,
    resolver: DnsResolver<ZoneProvider>,
}

/// Reads /etc/resolv.conf. Returns the search list, the number of dots of a name that is queried first as it is, and the name
/// servers.
fn system_conf() -> Result<(ResolverConfig, usize, Vec<NameServer>), String> {
    let unusable = |error: NetError| format!("/etc/resolv.conf: {error}");
    let text = std::fs::read("/etc/resolv.conf").map_err(|error| unusable(error.into()))?;
    let (text, zones) = without_zones(&String::from_utf8_lossy(&text));
    let (config, options) = parse_resolv_conf(text).map_err(unusable)?;
    let servers = servers(&config, &zones, &options)?;
    Ok((config, options.ndots, servers))
}

/// Returns a resolver for each server, since the order of the queries is decided here.
fn servers(
    config: &ResolverConfig,
    zones: &[Option<String>],
    options: &ResolverOpts,
) -> Result<Vec<NameServer>, String> {
    let mut options = options.clone();
    options.use_hosts_file = ResolveHosts::Never;
    options.timeout = options.timeout.min(RETRANSMIT_INTERVAL);
    options.attempts = options.attempts.max(2);
    let zones = zones.iter().map(Option::as_deref);
    let servers = config.name_servers().iter().zip(zones);
    let resolvers = servers.map(|(server, zone)| {
        let label = match zone {
            Some(zone) => format!("{}%{zone}", server.ip),
            None => server.ip.to_string(),
        };
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server.clone()]);
        let builder = DnsResolver::builder_with_config(config, ZoneProvider::new(zone));
        let resolver = builder.with_options(options.clone()).build();
        let resolver = resolver.map_err(|error| format!("name server {label}: {error}"))?;
        Ok(NameServer { label, resolver })
    });
    resolvers.collect()
}

/// Returns the names to query, according to the search list of resolv.conf(5).
fn candidates(name: &str, config: &ResolverConfig, ndots: usize) -> Result<Vec<DnsName>, String> {
    let parsed = name.into_name().map_err(|error| error.to_string())?;
    let mut whole = parsed.clone();
    whole.set_fqdn(true);
    if parsed.is_fqdn() {
        return Ok(vec![whole]);
    }
    let search = match config.search() {
        [] => config.domain().into_iter().collect::<Vec<_>>(),
        search => search.iter().collect(),
    };
    let searched = search.into_iter().filter_map(|domain| {
        let mut name = parsed.clone().append_domain(domain).ok()?;
        name.set_fqdn(true);
        Some(name)
    });
    let mut names: Vec<DnsName> = searched.collect();
    let dots = usize::from(parsed.num_labels()).saturating_sub(1);
    if dots >= ndots {
        names.insert(0, whole)
    } else {
        names.push(whole)
    }
    Ok(names)
}

/// Returns the addresses of the first name that has any, and what is unknown about the other family. The error is `None`
/// if no name has an address.
async fn in_dns(
    names: Vec<DnsName>,
    servers: &[NameServer],
) -> Result<(Vec<IpAddr>, Option<String>), Option<String>> {
    let deadline = Instant::now() + RESOLVE_TIMEOUT;
    let mut failed = None;
    for name in names {
        let families = both_families(&name, servers, deadline).await;
        let incomplete = families.incomplete();
        let is_late = Instant::now() >= deadline;
        let addresses = families.addresses();
        match (addresses.is_empty(), incomplete) {
            (false, incomplete) => return Ok((addresses, incomplete)),
            (true, None) => {}
            (true, Some(why)) if is_late => return Err(Some(why)),
            // As in resolv.conf(5), the next name is tried; the failure is reported unless that name has an address.
            (true, Some(why)) => failed = failed.or(Some(why)),
        }
    }
    Err(failed)
}

/// A record type to query, and what is read from such a record.
struct Question<T> {
    record_type: RecordType,
    read: fn(&RData) -> Option<T>,
}

impl Question<IpAddr> {
    fn addresses(record_type: RecordType) -> Self {
        Question {
            record_type,
            read: |data| match data {
                RData::A(address) => Some(IpAddr::V4(address.0)),
                RData::AAAA(address) => Some(IpAddr::V6(address.0)),
                _ => None,
            },
        }
    }
}

/// Returns host and port of the servers of a service (RFC 2782), in the order in which to try them; none if DNS names none.
/// `domain` is the domain of the service; by default, those of resolv.conf are searched.
pub(super) async fn servers_of(
    service: &str,
    domain: Option<&str>,
) -> Result<Vec<(String, u16)>, String> {
    let (config, _, name_servers) = system_conf()?;
    let names = match domain {
        Some(domain) => candidates(&format!("{service}.{domain}."), &config, 0)?,
        // The service alone is not a name.
        None => candidates(service, &config, usize::MAX)?,
    };
    let deadline = Instant::now() + RESOLVE_TIMEOUT;
    let question = Question {
        record_type: RecordType::SRV,
        read: |data| match data {
            RData::SRV(record) => Some(record.clone()),
            _ => None,
        },
    };
    for name in names {
        let found = query_servers(&question, &name, &name_servers, deadline).await;
        let records = found.map_err(|failures| format!("{name}: {}", failures.join(", ")))?;
        if !records.is_empty() {
            return Ok(in_turn(records));
        }
    }
    Ok(Vec::new())
}

/// Orders the records of a service: by priority, then randomly by weight. A target `.` is no server.
fn in_turn(records: Vec<SRV>) -> Vec<(String, u16)> {
    let records = records
        .into_iter()
        .filter(|record| !record.target.is_root());
    let keyed = records.map(|record| {
        // The greatest of such numbers is that of a record with a probability in proportion to its weight.
        let weight = f64::from(record.weight).max(0.01);
        (random_fraction().powf(1.0 / weight), record)
    });
    let mut keyed: Vec<(f64, SRV)> = keyed.collect();
    keyed.sort_by(|(a, first), (b, second)| {
        first.priority.cmp(&second.priority).then(b.total_cmp(a))
    });
    let targets = keyed.into_iter().map(|(_, record)| {
        let host = record.target.to_ascii();
        (host.trim_end_matches('.').to_owned(), record.port)
    });
    targets.collect()
}

/// The answers for A and AAAA: addresses, or the failure of each server; `None` for a family that was not waited for.
struct Families([Option<Result<Vec<IpAddr>, Vec<String>>>; 2]);

impl Families {
    fn addresses(self) -> Vec<IpAddr> {
        self.0.into_iter().flatten().flatten().flatten().collect()
    }

    /// Returns what is unknown, for messages; `None` if both queries have an answer.
    fn incomplete(&self) -> Option<String> {
        let [a, aaaa] = &self.0;
        let is_known = |answer: &Option<Result<_, _>>| matches!(answer, Some(Ok(_)));
        (!is_known(a) || !is_known(aaaa))
            .then(|| format!("A: {}; AAAA: {}", DnsAnswer(a), DnsAnswer(aaaa)))
    }
}

struct DnsAnswer<'a>(&'a Option<Result<Vec<IpAddr>, Vec<String>>>);

impl fmt::Display for DnsAnswer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("no answer"),
            Some(Err(failures)) => f.write_str(&failures.join(", ")),
            Some(Ok(addresses)) if addresses.is_empty() => f.write_str("no record"),
            Some(Ok(addresses)) => {
                let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
                f.write_str(&addresses.join(", "))
            }
        }
    }
}

/// Queries both families. Once one has an address, the other one gets the same time again, within limits.
async fn both_families(name: &DnsName, servers: &[NameServer], deadline: Instant) -> Families {
    let started = Instant::now();
    let [of_v4, of_v6] = [RecordType::A, RecordType::AAAA].map(Question::addresses);
    let mut v4 = pin!(query_servers(&of_v4, name, servers, deadline));
    let mut v6 = pin!(query_servers(&of_v6, name, servers, deadline));
    let (mut a, mut aaaa) = (None, None);
    let mut until = deadline;
    while a.is_none() || aaaa.is_none() {
        let answer = tokio::select! {
            answer = &mut v4, if a.is_none() => a.insert(answer),
            answer = &mut v6, if aaaa.is_none() => aaaa.insert(answer),
            () = sleep_until(until), if until < deadline => break,
        };
        if answer.as_ref().is_ok_and(|addresses| !addresses.is_empty()) {
            let delay = started
                .elapsed()
                .clamp(RESOLUTION_DELAY, MAX_RESOLUTION_DELAY);
            until = until.min(Instant::now() + delay);
        }
    }
    Families([a, aaaa])
}

/// Queries the servers in their order, the next one after a failure or a delay. An answer may contain no record; the
/// error contains the failure of each server.
async fn query_servers<T>(
    question: &Question<T>,
    name: &DnsName,
    servers: &[NameServer],
    deadline: Instant,
) -> Result<Vec<T>, Vec<String>> {
    let mut waiting = servers.iter();
    let mut asked = FuturesUnordered::new();
    let mut silent: Vec<&str> = servers.iter().map(|server| server.label.as_str()).collect();
    let mut failures = Vec::new();
    loop {
        if let Some(server) = waiting.next() {
            asked.push(query(question, name, server));
        }
        tokio::select! {
            answer = asked.next() => match answer {
                Some((_, Ok(records))) => return Ok(records),
                Some((server, Err(why))) => {
                    silent.retain(|label| *label != server);
                    failures.push(format!("{why} from {server}"));
                }
                None => return Err(failures),
            },
            () = sleep(NEXT_SERVER_DELAY), if waiting.len() > 0 => {}
            () = sleep_until(deadline) => {
                failures.extend(silent.iter().map(|label| format!("no answer from {label}")));
                return Err(failures);
            }
        }
    }
}

async fn query<'a, T>(
    question: &Question<T>,
    name: &DnsName,
    server: &'a NameServer,
) -> (&'a str, Result<Vec<T>, String>) {
    let found = server.resolver.lookup(name.clone(), question.record_type);
    let why = match found.await {
        Ok(found) => {
            let answers = found.answers().iter();
            let records = answers.filter_map(|record| (question.read)(&record.data));
            return (&server.label, Ok(records.collect()));
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => match none.response_code {
            ResponseCode::NoError | ResponseCode::NXDomain => {
                return (&server.label, Ok(Vec::new()));
            }
            code => code.to_string(),
        },
        Err(NetError::Dns(DnsError::ResponseCode(code))) => code.to_string(),
        Err(NetError::Timeout) => "no answer".to_owned(),
        Err(error) => error.to_string(),
    };
    (&server.label, Err(why))
}

/// Finds a name in the format of hosts(5): an address, then names, up to a `#`.
pub(super) fn in_hosts(hosts: &str, name: &str) -> Vec<IpAddr> {
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
    fn reads_hosts_file() {
        let hosts = "127.0.0.1 localhost\n# 1.1.1.1 vault\n192.0.2.1\tVault.Example.com vault # old: vault2\n\
                     fd00::1 vault\nnonsense vault\n";
        assert_eq!(
            in_hosts(hosts, "vault"),
            ["192.0.2.1", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        assert_eq!(in_hosts(hosts, "vault.example.com.").len(), 1);
        assert!(in_hosts(hosts, "vault2").is_empty());
    }

    #[test]
    fn orders_servers_of_service_by_priority_and_weight() {
        let record = |priority, weight, target: &str| {
            SRV::new(priority, weight, 8140, target.into_name().unwrap())
        };
        let firsts = (0..200).map(|_| {
            let turns = in_turn(vec![
                record(20, 100, "last.test."),
                record(10, 0, "rare.test."),
                record(10, 60, "often.test."),
                record(5, 1, "."),
            ]);
            let hosts: Vec<&str> = turns.iter().map(|(host, _)| host.as_str()).collect();
            assert_eq!(hosts.len(), 3);
            assert_eq!((hosts[2], turns[2].1), ("last.test", 8140));
            hosts[0].to_owned()
        });
        let often = firsts.filter(|first| first == "often.test").count();
        assert!(often > 180, "{often}");
    }
}
