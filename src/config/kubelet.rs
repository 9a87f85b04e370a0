//! The block `kubelet`: which certificates of the kubelet's own are nodepki's business, and where they go.

use serde_json::{Value, json};

use crate::spec::KubeletLayout;
use crate::yaml::Map;
use crate::yaml::schema::choice;

/// What the kubelet gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletSettings {
    /// How it gets its client certificate.
    pub identity: KubeletIdentity,
    /// Where that goes.
    pub client_certificate: KubeletLayout,
    /// Whether its serving certificate is issued, too.
    pub serving: bool,
}

/// How the kubelet gets its client certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeletIdentity {
    /// Issued here, with kubelet.conf: for clusters where nothing signs the kubelet's own request.
    #[default]
    Issue,
    /// By TLS bootstrap; nothing is written on a joining node.
    Bootstrap,
}

impl KubeletIdentity {
    pub(super) const ALL: [KubeletIdentity; 2] =
        [KubeletIdentity::Issue, KubeletIdentity::Bootstrap];

    /// As written in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            KubeletIdentity::Issue => "issue",
            KubeletIdentity::Bootstrap => "bootstrap",
        }
    }
}

impl KubeletSettings {
    pub(super) fn read(&mut self, map: &Map<'_>) {
        if let Some(identity) = choice(
            map.get("identity"),
            KubeletIdentity::ALL,
            KubeletIdentity::as_str,
        ) {
            self.identity = identity;
        }
        if let Some(layout) = choice(
            map.get("clientCertificate"),
            KubeletLayout::ALL,
            KubeletLayout::as_str,
        ) {
            self.client_certificate = layout;
        }
        if let Some(serving) = map.get("serving").and_then(|field| field.boolean()) {
            self.serving = serving;
        }
    }

    pub(super) fn redacted(&self) -> Value {
        json!({
            "identity": self.identity.as_str(),
            "clientCertificate": self.client_certificate.as_str(),
            "serving": self.serving,
        })
    }
}
