//! The discovery part of a JoinConfiguration: how a joining node finds and verifies its cluster and authenticates itself.
//!
//! Owns [`JoinDiscovery`], kubeadm's rules for its fields, and its two secrets, which no message and no `Debug` output contains.
//! `cluster::discovery` performs the discovery.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use zeroize::Zeroizing;

use super::address::HostPort;
use super::fields::{ApiVersion, absolute, endpoint, filled};
use super::shapes::{self, Shape, unused};
use crate::kube::paths::CA_CERTIFICATE;
use crate::yaml::schema::section;
use crate::yaml::{Field, Map};

const TOKEN_FIX: &str = "write the token as `kubeadm token create` prints it, 6 characters, a dot and 16 characters of a-z and 0-9";
const PIN_FIX: &str = "write it as sha256:<64 hexadecimal digits>, as `kubeadm token create --print-join-command` prints it \
     on a control-plane node after --discovery-token-ca-cert-hash";
const TOKEN_GROUP_PREFIX: &str = "system:bootstrappers:";
const CERTIFICATE_KEY_DIGITS: usize = 64;

/// The discovery part of a JoinConfiguration.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinDiscovery {
    /// How the cluster is found. `None` if absent: kubeadm requires it, but a node with all inputs on disk does not.
    pub discovery: Option<Discovery>,
    /// The token that authenticates the node to the API server; by default the token of the discovery.
    pub tls_bootstrap_token: Option<BootstrapToken>,
    /// `controlPlane.certificateKey`: 64 hexadecimal digits, as written.
    pub certificate_key: Option<Zeroizing<String>>,
    /// Path to which kubeadm writes the cluster's CA certificate.
    pub ca_cert_path: PathBuf,
    /// Whether `nodeRegistration.ignorePreflightErrors` contains `all`: kubeadm refuses further names then.
    pub ignores_all_errors: bool,
}

impl JoinDiscovery {
    /// Returns whether a CA certificate, or the pin of one, identifies the cluster; otherwise only the token does.
    pub fn is_verified_by_ca(&self) -> bool {
        match &self.discovery {
            Some(Discovery::Token { pins, .. }) => !pins.is_empty(),
            Some(Discovery::File(_)) => true,
            None => false,
        }
    }
}

impl fmt::Debug for JoinDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Join")
            .field("discovery", &self.discovery)
            .field("tls_bootstrap_token", &self.tls_bootstrap_token)
            .field(
                "certificate_key",
                &self.certificate_key.as_ref().map(|_| "…"),
            )
            .field("ca_cert_path", &self.ca_cert_path)
            .field("ignores_all_errors", &self.ignores_all_errors)
            .finish()
    }
}

/// How the cluster is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// From the ConfigMap `kube-public/cluster-info`, which a bootstrap token signs.
    Token {
        /// The token whose secret is the key of the signature.
        token: BootstrapToken,
        /// The API server that serves the ConfigMap.
        endpoint: HostPort,
        /// SHA-256 of the SubjectPublicKeyInfo of each trusted CA certificate.
        pins: Vec<[u8; 32]>,
        /// True if the token's signature suffices without pins.
        unsafe_skip_ca_verification: bool,
    },
    /// From a kubeconfig, which is trusted because of its origin.
    File(DiscoveryFile),
}

/// Location of the kubeconfig of a file discovery.
#[derive(Clone, PartialEq, Eq)]
pub enum DiscoveryFile {
    /// An absolute path on the node.
    Path(PathBuf),
    /// An `https://` URL without a user name or password.
    Url(String),
}

/// Omits the query of a URL, which may contain a secret.
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
    /// Returns the public half; it is part of the names of the token's Secret and signature.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the secret half.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Returns the token in the form that the API server accepts.
    pub(crate) fn to_bearer(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}.{}", self.id, *self.secret))
    }
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootstrapToken({}.…)", self.id)
    }
}

/// The text is not a bootstrap token. The error omits the text, which may be a mistyped token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a bootstrap token")]
pub struct InvalidToken;

impl FromStr for BootstrapToken {
    type Err = InvalidToken;

    /// Parses a text that kubeadm's `\A([a-z0-9]{6})\.([a-z0-9]{16})\z` matches.
    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let (id, secret) = text.split_once('.').ok_or(InvalidToken)?;
        let is_valid = |part: &str, length| {
            let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            part.len() == length && part.bytes().all(is_allowed)
        };
        if is_valid(id, 6) && is_valid(secret, 16) {
            Ok(BootstrapToken {
                id: id.to_owned(),
                secret: Zeroizing::new(secret.to_owned()),
            })
        } else {
            Err(InvalidToken)
        }
    }
}

/// Reads `discovery`, `caCertPath` and `controlPlane.certificateKey`.
///
/// Also returns `apiServerEndpoint`, which a worker uses even if the rest of the discovery is refused.
pub(super) fn read(
    map: &Map<'_>,
    control_plane: Option<&Map<'_>>,
    api: ApiVersion,
) -> (JoinDiscovery, Option<HostPort>) {
    let mut join = JoinDiscovery {
        discovery: None,
        tls_bootstrap_token: None,
        certificate_key: control_plane.and_then(read_certificate_key),
        ca_cert_path: PathBuf::from(CA_CERTIFICATE),
        ignores_all_errors: false,
    };
    if let Some((field, text)) = filled(map.get("caCertPath"))
        && let Some(path) = absolute(&field, &text)
    {
        if !text.ends_with(".crt") {
            field.error(
                format!("{text:?} does not end in .crt"),
                "use a path such as /etc/kubernetes/pki/ca.crt; kubeadm refuses other endings",
            );
        }
        join.ca_cert_path = path;
    }
    let Some(discovery) = section(map, "discovery") else {
        if map.get("discovery").is_none() {
            map.field().refused_by_validation(
                "has no discovery, with which kubeadm finds the cluster",
                "add discovery.bootstrapToken or discovery.file, as `kubeadm config print join-defaults` shows",
            );
        }
        return (join, None);
    };
    if api == ApiVersion::V1beta3 {
        discovery.ignore(&["timeout"]);
    }
    let tls_token = read_token(discovery.get("tlsBootstrapToken")).and_then(Result::ok);
    let file = discovery.get("file");
    let bootstrap_token = discovery.get("bootstrapToken");
    if let (Some(file), Some(_)) = (&file, &bootstrap_token) {
        file.error(
            "discovery.bootstrapToken and discovery.file exclude each other",
            "remove one of the two",
        );
    }
    let mut api_server_endpoint = None;
    if let Some(file) = file.and_then(|field| field.map()) {
        join.discovery = read_file_discovery(&file).map(Discovery::File);
        file.finish();
    }
    if let Some(map) = bootstrap_token.and_then(|field| field.map()) {
        (join.discovery, api_server_endpoint) = read_token_discovery(&map);
        map.finish();
    }
    discovery.finish();
    // The default of kubeadm (`SetDefaults_Discovery`).
    join.tls_bootstrap_token = tls_token.or_else(|| match &join.discovery {
        Some(Discovery::Token { token, .. }) => Some(token.clone()),
        _ => None,
    });
    (join, api_server_endpoint)
}

fn read_token_discovery(map: &Map<'_>) -> (Option<Discovery>, Option<HostPort>) {
    let token = read_token(map.get("token")).unwrap_or_else(|| {
        map.field().error("no token is set", TOKEN_FIX);
        Err(InvalidToken)
    });
    let api_server_endpoint = read_api_server_endpoint(map);
    let unsafe_skip_ca_verification = map
        .get("unsafeSkipCAVerification")
        .and_then(|field| field.boolean())
        .unwrap_or(false);
    let pins = read_pins(map, unsafe_skip_ca_verification);
    let discovery = match (token, &api_server_endpoint) {
        (Ok(token), Some(endpoint)) => Some(Discovery::Token {
            token,
            endpoint: endpoint.clone(),
            pins,
            unsafe_skip_ca_verification,
        }),
        _ => None,
    };
    (discovery, api_server_endpoint)
}

fn read_api_server_endpoint(map: &Map<'_>) -> Option<HostPort> {
    let Some((field, text)) = filled(map.get("apiServerEndpoint")) else {
        map.field().error(
            "no apiServerEndpoint is set",
            "set it to the host and port of an API server or of its load balancer, as in api.example.com:6443",
        );
        return None;
    };
    let endpoint = endpoint(&field, &text);
    if let Some(endpoint) = endpoint.as_ref().filter(|it| it.port.is_none()) {
        field.refused_by_validation(
            "has no port; nodepki uses 6443, but kubeadm refuses the file",
            format!("write {}, or the port in use", endpoint.authority(6443)),
        );
    }
    endpoint
}

/// Reads `caCertHashes`; it may be empty only with `unsafeSkipCAVerification`.
fn read_pins(map: &Map<'_>, may_be_empty: bool) -> Vec<[u8; 32]> {
    let pins = map.get("caCertHashes").map(|field| field.list());
    let is_empty = match &pins {
        None => true,
        Some(items) => items.as_ref().is_some_and(Vec::is_empty),
    };
    if is_empty && !may_be_empty {
        map.field().error(
            "no caCertHashes are set, so a holder of the token could impersonate the cluster",
            "set caCertHashes to the value of --discovery-token-ca-cert-hash that `kubeadm token create --print-join-command` prints on a \
             control-plane node, or set unsafeSkipCAVerification: true",
        );
    }
    let pins = pins.flatten().unwrap_or_default();
    pins.iter().filter_map(read_pin).collect()
}

fn read_pin(field: &Field<'_>) -> Option<[u8; 32]> {
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

fn read_file_discovery(map: &Map<'_>) -> Option<DiscoveryFile> {
    let Some((field, text)) = filled(map.get("kubeConfigPath")) else {
        map.field().error(
            "no kubeConfigPath is set",
            "set it to the absolute path of a kubeconfig, or to its https:// URL",
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
                    "a URL with a user name or password is refused",
                    "store the kubeconfig on the node and write its path",
                );
                return None;
            }
            Some(DiscoveryFile::Url(text))
        }
        // The message omits the text, as a URL may contain a password.
        Some((scheme, _)) => {
            field.error(
                format!(
                    "a URL that begins with {scheme}:// is refused; kubeadm refuses it as well"
                ),
                "use an https:// URL or an absolute path",
            );
            None
        }
    }
}

/// Reads a token; `None` if the field is absent or empty.
fn read_token(field: Option<Field<'_>>) -> Option<Result<BootstrapToken, InvalidToken>> {
    let field = field?;
    let Some(text) = field.secret() else {
        return Some(Err(InvalidToken));
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

/// Reports `bootstrapTokens` of an InitConfiguration that kubeadm refuses. nodepki does not use them, so only a strict
/// walk reports them: a node with such a file works.
pub(super) fn check_bootstrap_tokens(map: &Map<'_>) {
    if !map.field().walk().is_strict() {
        map.ignore(&["bootstrapTokens"]);
        return;
    }
    for item in map
        .get("bootstrapTokens")
        .and_then(|field| field.list())
        .unwrap_or_default()
    {
        if let Some(token) = item.map() {
            unused(
                &token,
                &[
                    ("description", Shape::Text),
                    ("ttl", Shape::Duration),
                    ("expires", Shape::Text),
                    ("usages", shapes::TOKEN_USAGES),
                ],
            );
            check_groups(token.get("groups"));
            read_token(token.get("token"));
            token.finish();
        }
    }
}

/// Reports groups that a bootstrap token must not give (`ValidateBootstrapGroupName`).
fn check_groups(field: Option<Field<'_>>) {
    let groups = field.and_then(|field| field.list()).unwrap_or_default();
    for group in groups {
        let Some(text) = group.string() else { continue };
        let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b":-".contains(&b);
        let suffix = text.strip_prefix(TOKEN_GROUP_PREFIX).unwrap_or_default();
        let ends_well = suffix.ends_with(|c: char| c.is_ascii_alphanumeric());
        if !(suffix.bytes().all(is_allowed) && ends_well) {
            group.error(
                format!("{text:?} is not a group of bootstrap tokens"),
                "write system:bootstrappers:NAME, as in system:bootstrappers:kubeadm:default-node-token",
            );
        }
    }
}

fn read_certificate_key(map: &Map<'_>) -> Option<Zeroizing<String>> {
    let field = map.get("certificateKey")?;
    let text = field.secret().filter(|text| !text.is_empty())?;
    if text.len() != CERTIFICATE_KEY_DIGITS || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        field.error(
            "is not a certificate key",
            "write the 64 hexadecimal digits that `kubeadm init phase upload-certs --upload-certs` printed",
        );
        return None;
    }
    Some(text)
}
