//! The settings of every signer with an HTTP server: address, TLS, proxy, timeout.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map as JsonMap, Value, json};

use crate::http::{Endpoint, Tls, Url};
use crate::yaml::schema::{MapKey, ValueForm};
use crate::yaml::settings::{Setting, SettingsBlock, if_set, insert, settings, unless_empty};
use crate::yaml::{Field, Map, format_duration, unrendered};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_TIMEOUT: Duration = Duration::from_secs(600);

settings! {
    for Tls {
        /// PEM file with the CA certificates to which the server's chain must lead.
        "caFile" => ca_file: Option<PathBuf>;
        /// SHA-256 of a certificate in the server's chain, or of its public key, in hex.
        "sha256" => sha256: Vec<[u8; 32]>, show unless_empty::<[u8; 32]>;
        /// Trust this machine's CA certificates for the server.
        "systemRoots" => system_roots: bool, show if_set;
        /// Name that the server's certificate must have; by default the host of the address.
        "serverName" => server_name: Option<String>;
        /// PEM file with the client certificate; read again for each exchange.
        "certificate" => certificate: Option<PathBuf>;
        /// PEM file with the private key of the client certificate.
        "key" => key: Option<PathBuf>, form ValueForm::SecretPath;
    }
}

settings! {
    /// The settings without the address.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Connection {
        /// TLS settings.
        "tls" => pub(super) tls: Tls, read read_tls, show show_tls;
        /// HTTP proxy; the proxy of the environment is never used.
        "proxy" => proxy: Option<Url>;
        /// Longest exchange with the server, up to 10m.
        "timeout" => timeout: Duration = DEFAULT_TIMEOUT, read read_timeout;
    }
}

impl Connection {
    /// Returns the endpoint with this address.
    pub(super) fn to(self, url: Url) -> Endpoint {
        Endpoint {
            url,
            tls: self.tls,
            proxy: self.proxy,
            timeout: self.timeout,
            also: Vec::new(),
            service: None,
        }
    }
}

/// Keys in addition to the address, which has a different name in each kind.
pub(super) const KEYS: &[MapKey] = Connection::KEYS;

/// Reads the settings; `url` is the field with the address.
pub(super) fn read(map: &Map<'_>, url: Option<Field<'_>>) -> Option<Endpoint> {
    let connection = Connection::read_keys(map)?;
    let field = url?;
    let url = Url::read(&field)?;
    // Such a host name is a valid one for the parser of URLs.
    if let Some(fix) = field.node().text().and_then(unrendered) {
        field.error("contains a placeholder that was not replaced", fix);
    }
    if url.scheme() == "http" && (connection.tls != Tls::default() || connection.proxy.is_some()) {
        field.error(
            "is http://, which uses neither tls nor proxy",
            "write https://, or remove tls and proxy",
        );
    }
    Some(connection.to(url))
}

/// Adds the settings to `keys`, with the address under `key`.
pub(super) fn show(endpoint: &Endpoint, key: &str, keys: &mut JsonMap<String, Value>) {
    insert(keys, key, endpoint.url.shown());
    let connection = Connection {
        tls: endpoint.tls.clone(),
        proxy: endpoint.proxy.clone(),
        timeout: endpoint.timeout,
    };
    connection.show_keys(keys);
}

/// Reads only the timeout, for a signer whose server is defined in a kubeconfig.
pub(super) fn timeout(map: &Map<'_>) -> Duration {
    map.get("timeout")
        .and_then(|field| read_timeout(&field))
        .unwrap_or(DEFAULT_TIMEOUT)
}

/// Reports an error if neither a pin nor `tls` says how an https server is verified.
pub(super) fn require_trust(endpoint: &Endpoint, map: &Map<'_>, is_pinned: bool, fix: &str) {
    if !is_pinned && endpoint.tls.trusts_nothing() && endpoint.url.scheme() == "https" {
        map.field()
            .error("does not say how the server is verified", fix);
    }
}

/// Refuses an address that ends with a path that nodepki adds.
pub(super) fn refuse_path(path: &str, map: &Map<'_>, key: &str) {
    if let Some(field) = map.get(key)
        && let Some(text) = field.node().text()
        && text.trim_end_matches('/').ends_with(path)
    {
        field.error(
            "contains the path of the API, which is added to it",
            format!("leave {path} out"),
        );
    }
}

/// Reports an error if the key `pin` is set together with other roots.
pub(super) fn refuse_second_trust(tls: &Tls, map: &Map<'_>, pin: &str) {
    if let Some(field) = map.get(pin)
        && (tls.ca_file.is_some() || tls.system_roots)
    {
        field.error(
            "has no effect together with tls.caFile or tls.systemRoots",
            "keep one of them",
        );
    }
}

fn read_timeout(field: &Field<'_>) -> Option<Duration> {
    let given = Duration::read(field)?;
    if given.is_zero() || given > MAX_TIMEOUT {
        field.error(
            format!("{} is not between 1ms and 10m", format_duration(given)),
            "use up to 10m",
        );
    }
    Some(given)
}

fn read_tls(field: &Field<'_>) -> Option<Tls> {
    let map = field.map()?;
    let tls = Tls::read_keys(&map)?;
    let alone = match (map.get("certificate"), map.get("key")) {
        (Some(_), None) => Some("certificate"),
        (None, Some(_)) => Some("key"),
        _ => None,
    };
    if let Some(alone) = alone {
        field.error(
            format!("has {alone} alone"),
            "name both certificate and key; they may be the same file",
        );
    }
    map.finish();
    Some(tls)
}

fn show_tls(tls: &Tls) -> Option<Value> {
    let keys = tls.shown_keys();
    (keys != json!({})).then_some(keys)
}

/// Returns the correction of a text that is not an `http` or `https` address. The text may contain a password.
fn intended(text: &str) -> String {
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    if !text.is_empty() && text.chars().all(is_host) && !text.ends_with(':') {
        format!("write https://{text}")
    } else if !text.is_ascii() {
        "write the name of the host in its ASCII form, which begins with xn--".to_owned()
    } else {
        "write it as https://HOST[:PORT][/PATH]".to_owned()
    }
}

/// An `http` or `https` address without user and password.
impl Setting for Url {
    const FORM: ValueForm = ValueForm::Url;

    fn read(field: &Field<'_>) -> Option<Self> {
        let text = field.string()?;
        match Url::parse(&text) {
            // `vault.test:8200` has the scheme `vault.test`.
            Ok(url) if !matches!(url.scheme(), "http" | "https") => {
                field.error("does not begin with https://", intended(&text));
                None
            }
            // Addresses are shown, in messages and by `config show`.
            Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                field.error(
                    "contains a user or a password",
                    "write the address without; secrets are given as files",
                );
                None
            }
            Ok(url) => Some(url),
            Err(why) => {
                field.error(why.to_string(), intended(&text));
                None
            }
        }
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self.as_str()))
    }
}
