//! The ConfigMap `kube-public/cluster-info`: its signature by a bootstrap token, the cluster that it describes, and the
//! verification of its CA certificates by pins.
//!
//! The bytes are untrusted: no part of a [`ClusterInfo`] but certificates that are pinned may be used before
//! [`ClusterInfo::verify`] has accepted it. Pure; `cluster::discovery` fetches the ConfigMap and handles a refusal.

use std::collections::BTreeMap;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::Value;

use crate::kube::kubeadm::BootstrapToken;
use crate::kube::kubeconfig::{Kubeconfig, KubeconfigError};
use crate::text::hex;
use crate::x509::{Certificate, TrustBundle, TrustError};

const KUBECONFIG_KEY: &str = "kubeconfig";
const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";

/// The content of a ConfigMap `cluster-info`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterInfo {
    kubeconfig: String,
    /// Detached JWS signatures by token id.
    signatures: BTreeMap<String, String>,
}

/// The cluster in the kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredCluster {
    /// URL of an API server.
    pub server: String,
    /// All CA certificates, trusted or not.
    pub authority: TrustBundle,
}

/// The reason why a `cluster-info` is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum ClusterInfoError {
    #[error(
        "it does not contain a kubeconfig, so this cluster is not set up for joining by token; run on a control-plane node: \
         kubeadm init phase bootstrap-token"
    )]
    NoKubeconfig,
    #[error(
        "its signature for token {id} is damaged: {why}; delete the key {SIGNATURE_PREFIX}{id} from it, so that \
         kube-controller-manager signs it again"
    )]
    Damaged { id: String, why: &'static str },
    #[error(
        "its signature for token {id} has an unexpected header: {found} instead of {wanted}; determine its origin \
         before a node joins"
    )]
    Header {
        id: String,
        found: String,
        wanted: String,
    },
    #[error(
        "its signature does not match the secret of token {id}: either the secret is mistyped, or the content was changed \
         in transit; compare the token with what `kubeadm token list` prints on a control-plane node"
    )]
    Signature { id: String },
    #[error("it is signed, but its kubeconfig cannot be used: {0}; correct it in the cluster")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("it is signed, but its kubeconfig does not contain {0}; correct it in the cluster")]
    Missing(&'static str),
    #[error(
        "it is signed, but its CA certificates cannot be used: {0}; correct them in the cluster"
    )]
    Authority(#[from] TrustError),
    #[error(
        "none of its CA certificates is pinned: found {found}, pinned {pinned}; print the right pin on a control-plane \
         node with `kubeadm token create --print-join-command` and correct discovery.bootstrapToken.caCertHashes, and \
         if it is the one configured, another server has responded"
    )]
    NotPinned { found: String, pinned: String },
    #[error(
        "it also contains certificates that are neither pinned nor of a CA: {found}; remove them from the cluster's copy, or, \
         if they are not in it, delete the token on a control-plane node with `kubeadm token delete {id}`: a holder of it has \
         added them"
    )]
    Strangers { id: String, found: String },
}

impl ClusterInfo {
    /// Reads the ConfigMap.
    ///
    /// # Errors
    /// [`ClusterInfoError::NoKubeconfig`].
    pub fn read(config_map: &Value) -> Result<Self, ClusterInfoError> {
        let entries = || {
            let data = config_map.get("data").and_then(Value::as_object);
            let text =
                |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
            data.into_iter().flatten().filter_map(text)
        };
        let kubeconfig = entries()
            .find(|(key, text)| key == KUBECONFIG_KEY && !text.is_empty())
            .map(|(_, text)| text)
            .ok_or(ClusterInfoError::NoKubeconfig)?;
        let signatures = entries()
            .filter_map(|(key, text)| Some((key.strip_prefix(SIGNATURE_PREFIX)?.to_owned(), text)))
            .collect();
        Ok(ClusterInfo {
            kubeconfig,
            signatures,
        })
    }

    /// Returns true if there is a signature by this token, valid or not.
    pub(crate) fn is_signed_for(&self, token: &BootstrapToken) -> bool {
        self.signatures.contains_key(token.id())
    }

    /// Returns true if the kubeconfigs have the same bytes.
    pub(crate) fn says_the_same_as(&self, other: &ClusterInfo) -> bool {
        self.kubeconfig == other.kubeconfig
    }

    /// Verifies the token's signature over the bytes of the kubeconfig.
    ///
    /// # Errors
    /// See [`ClusterInfoError`].
    pub fn verify(&self, token: &BootstrapToken) -> Result<(), ClusterInfoError> {
        let jws = self.signatures.get(token.id()).map_or("", String::as_str);
        verify(jws, &self.kubeconfig, token.id(), token.secret())
    }

    /// Returns the cluster in the kubeconfig.
    ///
    /// # Errors
    /// See [`ClusterInfoError`].
    pub fn cluster(&self) -> Result<DiscoveredCluster, ClusterInfoError> {
        let current = Kubeconfig::parse(&self.kubeconfig)?.to_join()?;
        let authority = current
            .authority
            .ok_or(ClusterInfoError::Missing("certificate-authority-data"))?;
        Ok(DiscoveredCluster {
            server: current.server.ok_or(ClusterInfoError::Missing("server"))?,
            authority: TrustBundle::from_pem(&authority)?,
        })
    }
}

/// Verifies a JWS with detached content (RFC 7515, appendix F). Its header must be exactly that of Kubernetes.
fn verify(jws: &str, content: &str, id: &str, secret: &str) -> Result<(), ClusterInfoError> {
    let damaged = |why| ClusterInfoError::Damaged {
        id: id.to_owned(),
        why,
    };
    let parts: Vec<&str> = jws.split('.').collect();
    let &[header, "", signature] = parts.as_slice() else {
        return Err(damaged("it is not HEADER..SIGNATURE"));
    };
    let found = BASE64
        .decode(header)
        .map_err(|_| damaged("its header is not base64url"))?;
    let wanted = format!(r#"{{"alg":"HS256","kid":"{id}"}}"#);
    if found != wanted.as_bytes() {
        return Err(ClusterInfoError::Header {
            id: id.to_owned(),
            found: String::from_utf8_lossy(&found).escape_default().to_string(),
            wanted,
        });
    }
    let signature = BASE64
        .decode(signature)
        .map_err(|_| damaged("its signature part is not base64url"))?;
    if signature.len() != hmac::HMAC_SHA256.digest_algorithm().output_len {
        return Err(damaged(
            "its signature part does not have the length of an HMAC-SHA256",
        ));
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signed = format!("{header}.{}", BASE64.encode(content));
    hmac::verify(&key, signed.as_bytes(), &signature)
        .map_err(|_| ClusterInfoError::Signature { id: id.to_owned() })
}

/// Returns the certificates that are pinned, or CAs below a pinned one.
///
/// kubeadm requires only one pinned certificate and then trusts all of them, including those that a thief of the token may
/// have added. Here the others are trusted only once a server with a certificate of the returned ones has sent the same
/// object: a cluster contains two CAs while its CA is changed. No cluster publishes a certificate that is not of a CA.
pub(crate) fn pinned(
    authority: &TrustBundle,
    pins: &[[u8; 32]],
    token: &BootstrapToken,
) -> Result<TrustBundle, ClusterInfoError> {
    let strangers = authority.unpinned(pins);
    let leaves: Vec<_> = strangers
        .iter()
        .copied()
        .filter(|one| !one.is_ca())
        .collect();
    if !leaves.is_empty() && strangers.len() < authority.certificates().len() {
        return Err(ClusterInfoError::Strangers {
            id: token.id().to_owned(),
            found: named(leaves),
        });
    }
    let own = authority.certificates().iter();
    let own = own.filter(|one| !strangers.contains(one)).cloned();
    // Fails for the lack of a certificate only: these are part of a valid bundle.
    TrustBundle::from_certificates(own.collect()).map_err(|_| {
        let pinned: Vec<_> = pins
            .iter()
            .map(|pin| format!("sha256:{}", hex(pin)))
            .collect();
        ClusterInfoError::NotPinned {
            found: named(authority.certificates()),
            pinned: pinned.join(", "),
        }
    })
}

/// Returns the subjects and pins of certificates, for messages.
pub fn named<'a>(certificates: impl IntoIterator<Item = &'a Certificate>) -> String {
    let names: Vec<_> = certificates
        .into_iter()
        .map(|certificate| {
            let pin = hex(&certificate.public_key().sha256());
            format!("{} (public key sha256:{pin})", certificate.subject())
        })
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests;
