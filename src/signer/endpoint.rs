//! The keys that every signer with a server has: where the server is and how it is to be believed.

use std::time::Duration;

use serde_json::{Map as JsonMap, Value, json};

use crate::http::{Endpoint, Tls, Url};
use crate::x509::hex;
use crate::yaml::schema::{Form, Key, absolute, duration, key, pins, section};
use crate::yaml::{Field, Map, format_duration};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Read by [`read`], beside the address under a name of the signer's own.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("tls.caFile", Form::Path, "PEM file with the CA certificates that the server's own chain must lead to."),
    key("tls.sha256[]", Form::Pin, "SHA-256 of a certificate in the server's chain, or of its public key, in hex."),
    key("tls.systemRoots", Form::Flag, "Trust this machine's CA certificates for the server; default false."),
    key("tls.serverName", Form::Text, "Name that the server's certificate must have, in place of the address's."),
    key("tls.certificate", Form::Path, "PEM file with the client certificate; read anew for each exchange."),
    key("tls.key", Form::SecretPath, "PEM file with its key."),
    key("proxy", Form::Url, "HTTP proxy; the environment's is never used."),
    key("timeout", Form::Duration, "Longest exchange with the server; default 30s."),
];

/// Reads the address `url` and the keys above from a signer's map.
pub(super) fn read(map: &Map<'_>, url: Option<Field<'_>>) -> Option<Endpoint> {
    let mut tls = Tls::default();
    if let Some(keys) = section(map, "tls") {
        tls.ca_file = keys.get("caFile").as_ref().and_then(absolute);
        tls.sha256 = pins(keys.get("sha256"));
        tls.system_roots = keys
            .get("systemRoots")
            .and_then(|field| field.boolean())
            .unwrap_or_default();
        tls.server_name = keys.get("serverName").and_then(|field| field.string());
        let certificate = keys.get("certificate");
        let key = keys.get("key");
        for (there, missing) in [("certificate", &key), ("key", &certificate)] {
            let other = if there == "key" { &key } else { &certificate };
            if other.is_some() && missing.is_none() {
                keys.field().error(
                    format!("has {there} alone"),
                    "name both certificate and key; they may be the same file",
                );
            }
        }
        tls.certificate = certificate.as_ref().and_then(absolute);
        tls.key = key.as_ref().and_then(absolute);
        keys.finish();
    }
    let proxy = map.get("proxy").as_ref().and_then(address);
    let timeout = timeout(map);
    let url = url?;
    let read = address(&url)?;
    if read.scheme() == "http" && (tls != Tls::default() || proxy.is_some()) {
        url.error(
            "is http://, which uses neither tls nor proxy",
            "write https://, or remove tls and proxy",
        );
    }
    Some(Endpoint {
        url: read,
        tls,
        proxy,
        timeout,
        also: Vec::new(),
    })
}

/// Reads the longest exchange alone, for a signer whose server stands in a file of another format.
pub(super) fn timeout(map: &Map<'_>) -> Duration {
    let Some((field, given)) = duration(map.get("timeout")) else {
        return DEFAULT_TIMEOUT;
    };
    if given.is_zero() || given > Duration::from_secs(600) {
        field.error(
            format!("{} is not between 1ms and 10m", format_duration(given)),
            "use up to 10m",
        );
    }
    given
}

/// An `http` or `https` address without a user or password in it.
pub(super) fn address(field: &Field<'_>) -> Option<Url> {
    let text = field.string()?;
    match Url::parse(&text) {
        // Addresses are shown, in messages and by `config show`.
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            field.error(
                "has a user or a password in it",
                "write the address without; secrets are given as files",
            );
            None
        }
        Ok(url) => Some(url),
        Err(why) => {
            field.error(why.to_string(), "write it as https://HOST[:PORT][/PATH]");
            None
        }
    }
}

/// Adds the keys above to what a signer shows of itself.
pub(super) fn redacted(endpoint: &Endpoint, keys: &mut JsonMap<String, Value>) {
    let mut tls = JsonMap::new();
    if let Some(file) = &endpoint.tls.ca_file {
        tls.insert("caFile".to_owned(), json!(file));
    }
    if !endpoint.tls.sha256.is_empty() {
        let pins: Vec<String> = endpoint.tls.sha256.iter().map(|pin| hex(pin)).collect();
        tls.insert("sha256".to_owned(), json!(pins));
    }
    if endpoint.tls.system_roots {
        tls.insert("systemRoots".to_owned(), json!(true));
    }
    if let Some(name) = &endpoint.tls.server_name {
        tls.insert("serverName".to_owned(), json!(name));
    }
    if let Some(file) = &endpoint.tls.certificate {
        tls.insert("certificate".to_owned(), json!(file));
    }
    if let Some(file) = &endpoint.tls.key {
        tls.insert("key".to_owned(), json!(file));
    }
    if !tls.is_empty() {
        keys.insert("tls".to_owned(), Value::Object(tls));
    }
    if let Some(proxy) = &endpoint.proxy {
        keys.insert("proxy".to_owned(), json!(proxy.as_str()));
    }
    keys.insert(
        "timeout".to_owned(),
        json!(format_duration(endpoint.timeout)),
    );
}
