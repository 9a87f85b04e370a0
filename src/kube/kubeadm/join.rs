//! How a joining node finds its cluster and proves itself: the discovery part of a JoinConfiguration.
//!
//! Owns [`Join`], the rules of kubeadm for its fields, and the two secrets in it, which are in no message and in no
//! `Debug`. What the fields lead to is found by the module `discovery`. Pure.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use zeroize::Zeroizing;

use super::documents::{absolute, endpoint, filled, section};
use super::{Api, Endpoint};
use crate::yaml::{Field, Map};

const TOKEN_FIX: &str = "write the token as `kubeadm token create` prints it, 6 characters, a dot and 16 characters of a-z and 0-9";
const PIN_FIX: &str = "write it as sha256:<64 hexadecimal digits>, as `kubeadm token create --print-join-command` prints it \
     on a control-plane node behind --discovery-token-ca-cert-hash";
const KEY_DIGITS: usize = 64;

/// The part of a JoinConfiguration that says where the cluster is and how the node proves itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Join {
    /// How the cluster is found. `None` when nothing is written: kubeadm will want it, but a node that has all its
    /// inputs on disk needs none.
    pub discovery: Option<Discovery>,
    /// What the node shows to the API server; the token of the discovery where no other is given.
    pub tls_bootstrap_token: Option<BootstrapToken>,
    /// `controlPlane.certificateKey`: 64 hexadecimal digits, as written.
    pub certificate_key: Option<Zeroizing<String>>,
    /// Where kubeadm puts the cluster's CA certificate.
    pub ca_cert_path: PathBuf,
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Join")
            .field("discovery", &self.discovery)
            .field("tls_bootstrap_token", &self.tls_bootstrap_token)
            .field(
                "certificate_key",
                &self.certificate_key.as_ref().map(|_| "…"),
            )
            .field("ca_cert_path", &self.ca_cert_path)
            .finish()
    }
}

/// How the cluster is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// The ConfigMap `kube-public/cluster-info`, believed for a token's signature.
    Token {
        /// Its secret is the key of the signature.
        token: BootstrapToken,
        /// The API server that is asked.
        endpoint: Endpoint,
        /// SHA-256 of the SubjectPublicKeyInfo of the CA certificates that are right.
        pins: Vec<[u8; 32]>,
        /// The token's signature alone is enough where there are no pins.
        unsafe_skip_ca_verification: bool,
    },
    /// A kubeconfig, believed for the place it comes from.
    File(DiscoveryFile),
}

/// Where the kubeconfig of a file discovery is.
#[derive(Clone, PartialEq, Eq)]
pub enum DiscoveryFile {
    /// On the node, absolute.
    Path(PathBuf),
    /// `https://…`, without a user or a password.
    Url(String),
}

/// Without the query of an address, which may hold a secret.
impl fmt::Display for DiscoveryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiscoveryFile::Path(path) => path.display().fmt(f),
            DiscoveryFile::Url(url) => f.write_str(url.split('?').next().unwrap_or_default()),
        }
    }
}

impl fmt::Debug for DiscoveryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A bootstrap token: `id.secret`.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    id: String,
    secret: Zeroizing<String>,
}

impl BootstrapToken {
    /// The public half, part of the names of the token's Secret and signature.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The secret half.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The whole token, as the API server takes it.
    pub fn to_bearer(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}.{}", self.id, *self.secret))
    }
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootstrapToken({}.…)", self.id)
    }
}

/// A text that is no bootstrap token. The text itself may be a mistyped one and is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a bootstrap token")]
pub struct NoToken;

impl FromStr for BootstrapToken {
    type Err = NoToken;

    /// Reads what kubeadm's `\A([a-z0-9]{6})\.([a-z0-9]{16})\z` matches.
    fn from_str(text: &str) -> Result<Self, NoToken> {
        let (id, secret) = text.split_once('.').ok_or(NoToken)?;
        let fits = |part: &str, length| {
            part.len() == length
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        if fits(id, 6) && fits(secret, 16) {
            Ok(BootstrapToken {
                id: id.to_owned(),
                secret: Zeroizing::new(secret.to_owned()),
            })
        } else {
            Err(NoToken)
        }
    }
}

/// Reads `discovery`, `caCertPath` and `controlPlane.certificateKey`; also the endpoint, which counts for a worker
/// even where the rest of the discovery is refused.
pub(super) fn read(
    map: &Map<'_>,
    control_plane: Option<&Map<'_>>,
    api: Api,
) -> (Join, Option<Endpoint>) {
    let mut join = Join {
        discovery: None,
        tls_bootstrap_token: None,
        certificate_key: control_plane.and_then(certificate_key),
        ca_cert_path: PathBuf::from("/etc/kubernetes/pki/ca.crt"),
    };
    if let Some((field, text)) = filled(map.get("caCertPath"))
        && let Some(path) = absolute(&field, &text)
    {
        if !text.ends_with(".crt") {
            field.error(
                format!("{text:?} does not end in .crt"),
                "name it as in /etc/kubernetes/pki/ca.crt; kubeadm refuses other endings",
            );
        }
        join.ca_cert_path = path;
    }
    let Some(discovery) = section(map, "discovery") else {
        return (join, None);
    };
    if api == Api::V1beta3 {
        discovery.ignore(&["timeout"]);
    }
    let tls_token = token(discovery.get("tlsBootstrapToken")).and_then(Result::ok);
    let file = discovery.get("file");
    let by_token = discovery.get("bootstrapToken");
    if let (Some(file), Some(_)) = (&file, &by_token) {
        file.error(
            "discovery.bootstrapToken and discovery.file exclude each other",
            "remove one of the two",
        );
    }
    let mut api_server = None;
    if let Some(file) = file.and_then(|field| field.map()) {
        join.discovery = discovery_file(&file).map(Discovery::File);
        file.finish();
    }
    if let Some(by_token) = by_token.and_then(|field| field.map()) {
        (join.discovery, api_server) = token_discovery(&by_token);
        by_token.finish();
    }
    discovery.finish();
    join.tls_bootstrap_token = tls_token.or_else(|| match &join.discovery {
        Some(Discovery::Token { token, .. }) => Some(token.clone()),
        _ => None,
    });
    (join, api_server)
}

fn token_discovery(map: &Map<'_>) -> (Option<Discovery>, Option<Endpoint>) {
    let token = token(map.get("token")).unwrap_or_else(|| {
        map.field().error("no token is given", TOKEN_FIX);
        Err(NoToken)
    });
    let api_server = match filled(map.get("apiServerEndpoint")) {
        Some((field, text)) => {
            let endpoint = endpoint(&field, &text);
            if endpoint.as_ref().is_some_and(|it| it.port.is_none()) {
                field.warning(
                    "has no port; kubeadm refuses that, 6443 is taken",
                    "write the port, as in api.example.com:6443",
                );
            }
            endpoint
        }
        None => {
            map.field().error(
                "no apiServerEndpoint is given",
                "set it to the host and port of an API server or of the load balancer before them, as in api.example.com:6443",
            );
            None
        }
    };
    let pins = map.get("caCertHashes").map(|field| field.list());
    let unsafe_skip_ca_verification = map
        .get("unsafeSkipCAVerification")
        .and_then(|field| field.boolean())
        .unwrap_or(false);
    let unpinned = match &pins {
        None => true,
        Some(items) => items.as_ref().is_some_and(Vec::is_empty),
    };
    if unpinned && !unsafe_skip_ca_verification {
        map.field().error(
            "no caCertHashes are given, so whoever knows the token could pass for the cluster",
            "add what `kubeadm token create --print-join-command` prints on a control-plane node behind \
             --discovery-token-ca-cert-hash, or set unsafeSkipCAVerification: true",
        );
    }
    let pins: Vec<_> = pins
        .flatten()
        .unwrap_or_default()
        .iter()
        .filter_map(pin)
        .collect();
    let discovery = match (token, &api_server) {
        (Ok(token), Some(endpoint)) => Some(Discovery::Token {
            token,
            endpoint: endpoint.clone(),
            pins,
            unsafe_skip_ca_verification,
        }),
        _ => None,
    };
    (discovery, api_server)
}

fn pin(field: &Field<'_>) -> Option<[u8; 32]> {
    let text = field.string()?;
    let pin = text.split_once(':').and_then(|(format, digits)| {
        let mut pin = [0; 32];
        (format.eq_ignore_ascii_case("sha256")
            && base16ct::mixed::decode(digits, &mut pin).ok()?.len() == 32)
            .then_some(pin)
    });
    if pin.is_none() {
        field.error(format!("{text:?} is not a pin of a public key"), PIN_FIX);
    }
    pin
}

fn discovery_file(map: &Map<'_>) -> Option<DiscoveryFile> {
    let Some((field, text)) = filled(map.get("kubeConfigPath")) else {
        map.field().error(
            "no kubeConfigPath is given",
            "set it to the absolute path of a kubeconfig, or to its https:// address",
        );
        return None;
    };
    let scheme = text
        .split_once("://")
        .map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
    match scheme {
        None => absolute(&field, &text).map(DiscoveryFile::Path),
        Some((scheme, path)) if scheme == "file" => absolute(&field, path).map(DiscoveryFile::Path),
        Some((scheme, rest)) if scheme == "https" => {
            if rest
                .split(['/', '?', '#'])
                .next()
                .unwrap_or_default()
                .contains('@')
            {
                field.error(
                    "an address with a user or a password is not followed",
                    "store the kubeconfig on the node and write its path",
                );
                return None;
            }
            Some(DiscoveryFile::Url(text))
        }
        // Without the text: an address may hold a password.
        Some((scheme, _)) => {
            field.error(
                format!("an address that begins with {scheme}:// is refused, by kubeadm too"),
                "use an https:// address or an absolute path",
            );
            None
        }
    }
}

fn token(field: Option<Field<'_>>) -> Option<Result<BootstrapToken, NoToken>> {
    let field = field?;
    let Some(text) = field.secret() else {
        return Some(Err(NoToken));
    };
    if text.is_empty() {
        return None;
    }
    let token = text.parse();
    if token.is_err() {
        field.error("is not a bootstrap token", TOKEN_FIX);
    }
    Some(token)
}

fn certificate_key(map: &Map<'_>) -> Option<Zeroizing<String>> {
    let field = map.get("certificateKey")?;
    let text = field.secret().filter(|text| !text.is_empty())?;
    if text.len() != KEY_DIGITS || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        field.error(
            "is not a certificate key",
            "write the 64 hexadecimal digits that `kubeadm init phase upload-certs --upload-certs` printed",
        );
        return None;
    }
    Some(text)
}
