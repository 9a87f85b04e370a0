//! The block `metrics`.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::yaml::Field;
use crate::yaml::schema::{ValueForm, absolute};
use crate::yaml::settings::{Setting, settings};

settings! {
    /// Destinations of metrics. Without one, no metrics are collected.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct MetricsSettings {
        /// File for node_exporter's textfile collector, written after each run; its name must end with .prom.
        "textfile" => pub textfile: Option<PathBuf>, read textfile;
        /// Address at which the daemon serves /metrics and /healthz, for example 127.0.0.1:9465; read when it starts.
        "listen" => pub listen: Option<SocketAddr>;
    }
}

fn textfile(field: &Field<'_>) -> Option<Option<PathBuf>> {
    let path = absolute(field)?;
    if path.extension().is_none_or(|extension| extension != "prom") {
        field.error(
            format!("node_exporter does not read {}", path.display()),
            "use a name that ends with .prom",
        );
        return None;
    }
    Some(Some(path))
}

impl Setting for SocketAddr {
    const FORM: ValueForm = ValueForm::Text;

    fn read(field: &Field<'_>) -> Option<Self> {
        let text = field.string()?;
        let Ok(address) = text.parse::<SocketAddr>() else {
            field.error(
                format!("{text:?} is not a valid IP:port address"),
                "write 127.0.0.1:9465 or [::1]:9465",
            );
            return None;
        };
        if !address.ip().is_loopback() {
            field.warning(
                format!("metrics on {address} are served without TLS or authentication"),
                "listen on 127.0.0.1 behind a proxy that authenticates, or admit only Prometheus with a firewall",
            );
        }
        Some(address)
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self.to_string()))
    }
}
