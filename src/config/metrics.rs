//! The `metrics` block: how it is read and shown.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Map as JsonMap, Value, json};

use crate::yaml::schema::absolute;
use crate::yaml::{Field, Map};

/// Where metrics go. Without any of these nothing is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsSettings {
    /// A file for node_exporter's textfile collector, written after each run.
    pub textfile: Option<PathBuf>,
    /// Where the daemon serves `/metrics` and `/healthz`.
    pub listen: Option<SocketAddr>,
}

impl MetricsSettings {
    pub(super) fn read(map: &Map<'_>) -> MetricsSettings {
        MetricsSettings {
            textfile: map.get("textfile").as_ref().and_then(textfile),
            listen: map.get("listen").as_ref().and_then(listen),
        }
    }

    pub(super) fn redacted(&self) -> Value {
        let mut map = JsonMap::new();
        if let Some(textfile) = &self.textfile {
            map.insert("textfile".to_owned(), json!(textfile));
        }
        if let Some(listen) = &self.listen {
            map.insert("listen".to_owned(), json!(listen.to_string()));
        }
        Value::Object(map)
    }
}

fn textfile(field: &Field<'_>) -> Option<PathBuf> {
    let path = absolute(field)?;
    if path.extension().is_none_or(|extension| extension != "prom") {
        field.error(
            format!("node_exporter does not read {}", path.display()),
            "use a name that ends with .prom",
        );
        return None;
    }
    Some(path)
}

fn listen(field: &Field<'_>) -> Option<SocketAddr> {
    let text = field.string()?;
    let Ok(address) = text.parse::<SocketAddr>() else {
        field.error(
            format!("{text:?} is no IP address with a port"),
            "write 127.0.0.1:9465 or [::1]:9465",
        );
        return None;
    };
    if !address.ip().is_loopback() {
        field.warning(
            format!("whoever reaches {address} can read the metrics, without TLS and without a password"),
            "listen on 127.0.0.1 and let a proxy that authenticates stand before it, or have a firewall admit Prometheus only",
        );
    }
    Some(address)
}
