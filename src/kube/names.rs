//! Names of certificates and authorities, and [`NodePath`], the path of a file on the node.
//!
//! kubeadm's names are closed sets; [`RegisteredName`] names a certificate that nodepki's configuration adds. All other
//! modules use these types. A string from outside is parsed into one of them where it is read.

mod registered;

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::yaml::fix_for;

pub use registered::{InvalidName, RegisteredName};

/// Namespace of the components of the control plane, and of the Leases and ConfigMaps of nodepki.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";
/// Group of the bootstrap tokens with which kubeadm joins nodes (`cmd/kubeadm/app/constants/constants.go`,
/// `NodeBootstrapTokenAuthGroup`).
pub(crate) const JOINING_NODES_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
/// Label of control-plane nodes. The admission plug-in NodeRestriction does not let a kubelet set it
/// (`plugin/pkg/admission/noderestriction/admission.go`, `isKubernetesLabel`).
pub(crate) const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";
/// Prefix of the user names of nodes (`pkg/auth/nodeidentifier/default.go`) and of the common names of kubelets.
pub(crate) const NODE_USER_PREFIX: &str = "system:node:";
/// Prefix of the user names of bootstrap tokens, followed by the token's ID
/// (`plugin/pkg/auth/authenticator/token/bootstrap/bootstrap.go`).
pub(crate) const TOKEN_USER_PREFIX: &str = "system:bootstrap:";
/// Prefix of the user name of a ServiceAccount, followed by `NAMESPACE:NAME`.
pub(crate) const SERVICE_ACCOUNT_USER_PREFIX: &str = "system:serviceaccount:";

/// ConfigMap in kube-system by which aggregated API servers verify clients and the front proxy. Its entries have the names of
/// kube-apiserver's flags.
pub(crate) const AUTHENTICATION_CONFIG_MAP: &str = "extension-apiserver-authentication";
/// Flag of kube-apiserver with the CA certificates of clients.
pub(crate) const CLIENT_CA_FILE: &str = "client-ca-file";
/// Flag of kube-apiserver with the CA certificates of the front proxy.
pub(crate) const FRONT_PROXY_CA_FILE: &str = "requestheader-client-ca-file";

/// One of the three certificate authorities of a kubeadm cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Authority {
    /// Signs the certificates of kube-apiserver, of its clients and of the kubelets.
    #[serde(rename = "ca")]
    Ca,
    /// Signs the certificates of etcd and of its clients.
    #[serde(rename = "etcd-ca")]
    EtcdCa,
    /// Signs the client certificate of the aggregation layer.
    #[serde(rename = "front-proxy-ca")]
    FrontProxyCa,
}

impl Authority {
    /// All three, in the order in which kubeadm creates them.
    pub const ALL: [Authority; 3] = [Authority::Ca, Authority::FrontProxyCa, Authority::EtcdCa];

    /// Returns the flag by which kube-apiserver verifies certificates of this authority, if it does.
    pub(crate) const fn client_ca_flag(self) -> Option<&'static str> {
        match self {
            Authority::Ca => Some(CLIENT_CA_FILE),
            Authority::FrontProxyCa => Some(FRONT_PROXY_CA_FILE),
            Authority::EtcdCa => None,
        }
    }

    /// Returns kubeadm's name of the authority.
    pub const fn as_str(self) -> &'static str {
        match self {
            Authority::Ca => "ca",
            Authority::EtcdCa => "etcd-ca",
            Authority::FrontProxyCa => "front-proxy-ca",
        }
    }

    /// Returns the path below the certificates directory, without `.crt` or `.key`.
    pub const fn base_name(self) -> &'static str {
        match self {
            Authority::Ca => "ca",
            Authority::EtcdCa => "etcd/ca",
            Authority::FrontProxyCa => "front-proxy-ca",
        }
    }

    /// Returns the common name that kubeadm gives a new CA certificate of this authority.
    pub const fn common_name(self) -> &'static str {
        match self {
            Authority::Ca => "kubernetes",
            Authority::EtcdCa => "etcd-ca",
            Authority::FrontProxyCa => "front-proxy-ca",
        }
    }
}

as_text!(Authority: Display, FromStr "an authority");

/// A certificate of a node: a pair of files, or embedded in a kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the name is the documentation")]
pub enum CertName {
    Apiserver,
    ApiserverKubeletClient,
    FrontProxyClient,
    EtcdServer,
    EtcdPeer,
    EtcdHealthcheckClient,
    ApiserverEtcdClient,
    AdminConf,
    SuperAdminConf,
    KubeletConf,
    ControllerManagerConf,
    SchedulerConf,
    KubeletServing,
    NodepkiConf,
    /// The client certificate of a pod, which its kubelet requests. It is no certificate of the node, and not in
    /// [`CertName::ALL`]; signers select role, profile or issuer by this name.
    PodClient,
    /// A certificate that the configuration registers.
    Registered(RegisteredName),
}

impl CertName {
    /// All names that are always defined: those of kubeadm, the kubelet's serving certificate, and nodepki's own kubeconfig.
    /// kubeadm has no name for the last two; that of the serving certificate is the name of Kubernetes' signer for it.
    pub const ALL: [CertName; 14] = [
        CertName::Apiserver,
        CertName::ApiserverKubeletClient,
        CertName::FrontProxyClient,
        CertName::EtcdServer,
        CertName::EtcdPeer,
        CertName::EtcdHealthcheckClient,
        CertName::ApiserverEtcdClient,
        CertName::AdminConf,
        CertName::SuperAdminConf,
        CertName::KubeletConf,
        CertName::ControllerManagerConf,
        CertName::SchedulerConf,
        CertName::KubeletServing,
        CertName::NodepkiConf,
    ];

    /// kubeadm's names, in the order in which it creates the certificates.
    pub const KUBEADM: [CertName; 12] = [
        CertName::Apiserver,
        CertName::ApiserverKubeletClient,
        CertName::FrontProxyClient,
        CertName::EtcdServer,
        CertName::EtcdPeer,
        CertName::EtcdHealthcheckClient,
        CertName::ApiserverEtcdClient,
        CertName::AdminConf,
        CertName::SuperAdminConf,
        CertName::KubeletConf,
        CertName::ControllerManagerConf,
        CertName::SchedulerConf,
    ];

    /// Returns the name, as in `kubeadm certs renew NAME`.
    pub const fn as_str(self) -> &'static str {
        match self {
            CertName::Apiserver => "apiserver",
            CertName::ApiserverKubeletClient => "apiserver-kubelet-client",
            CertName::FrontProxyClient => "front-proxy-client",
            CertName::EtcdServer => "etcd-server",
            CertName::EtcdPeer => "etcd-peer",
            CertName::EtcdHealthcheckClient => "etcd-healthcheck-client",
            CertName::ApiserverEtcdClient => "apiserver-etcd-client",
            CertName::AdminConf => "admin.conf",
            CertName::SuperAdminConf => "super-admin.conf",
            CertName::KubeletConf => "kubelet.conf",
            CertName::ControllerManagerConf => "controller-manager.conf",
            CertName::SchedulerConf => "scheduler.conf",
            CertName::KubeletServing => "kubelet-serving",
            CertName::NodepkiConf => "nodepki.conf",
            CertName::PodClient => "pod-client",
            CertName::Registered(name) => name.as_str(),
        }
    }

    /// Returns the path below the certificates directory without extension, or the file name of the kubeconfig.
    pub const fn base_name(self) -> &'static str {
        match self {
            CertName::EtcdServer => "etcd/server",
            CertName::EtcdPeer => "etcd/peer",
            CertName::EtcdHealthcheckClient => "etcd/healthcheck-client",
            other => other.as_str(),
        }
    }

    /// Returns the authority that signs this certificate.
    pub fn authority(self) -> Authority {
        match self {
            CertName::EtcdServer
            | CertName::EtcdPeer
            | CertName::EtcdHealthcheckClient
            | CertName::ApiserverEtcdClient => Authority::EtcdCa,
            CertName::FrontProxyClient => Authority::FrontProxyCa,
            CertName::Registered(name) => name.authority(),
            _ => Authority::Ca,
        }
    }

    /// Returns true if the common name is not an identity in a kubeadm cluster, so it may be changed: TLS clients verify a
    /// server's alternative names, etcd has no users, and kube-apiserver has a list of the front proxy's names.
    pub const fn has_free_common_name(self) -> bool {
        matches!(
            self,
            CertName::Apiserver
                | CertName::FrontProxyClient
                | CertName::EtcdServer
                | CertName::EtcdPeer
                | CertName::EtcdHealthcheckClient
                | CertName::ApiserverEtcdClient
        )
    }

    /// Returns true for the kubelet's two certificates, which exist on every node, outside of the certificates directory.
    pub(crate) const fn is_of_kubelet(self) -> bool {
        matches!(self, CertName::KubeletConf | CertName::KubeletServing)
    }

    /// Returns true for certificates that a worker may have as well.
    pub(crate) const fn is_of_every_node(self) -> bool {
        self.is_of_kubelet() || matches!(self, CertName::Registered(_))
    }

    /// The certificates of administrators, which `certificates.omit` may name. No component of a node reads them.
    pub const OMITTABLE: [CertName; 2] = [CertName::SuperAdminConf, CertName::AdminConf];

    /// Returns true for a certificate that is embedded in a kubeconfig.
    pub const fn is_kubeconfig(self) -> bool {
        matches!(
            self,
            CertName::AdminConf
                | CertName::SuperAdminConf
                | CertName::KubeletConf
                | CertName::ControllerManagerConf
                | CertName::SchedulerConf
                | CertName::NodepkiConf
        )
    }
}

as_text!(CertName: Display, Serialize, Deserialize);

/// Accepts a name that is always defined, and any [`RegisteredName`], whether or not the configuration registers it: state
/// files outlive a registration.
impl FromStr for CertName {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = CertName::ALL.into_iter();
        known
            .chain([CertName::PodClient])
            .find(|known| known.as_str() == name)
            .or_else(|| name.parse().ok().map(CertName::Registered))
            .ok_or_else(|| {
                UnknownName::new("a certificate", name, &CertName::ALL.map(CertName::as_str))
            })
    }
}

/// A path on the node.
///
/// It is used and serialized as the path on the node, but displayed as the path on this machine: below the node's root
/// directory, which `--root DIR` changes. Therefore each message names the path on this machine.
#[derive(Clone)]
pub struct NodePath {
    path: PathBuf,
    /// The root directory, as configured; `None` if the node is this machine.
    root: Option<Arc<Path>>,
}

impl NodePath {
    /// Returns the path as it is displayed for a node with this root directory.
    #[must_use]
    pub fn below(self, root: &Path) -> NodePath {
        NodePath {
            root: (root != Path::new("/")).then(|| root.into()),
            ..self
        }
    }

    /// Returns the path on this machine, for messages.
    pub fn shown(&self) -> PathBuf {
        match &self.root {
            Some(root) => root.join(self.path.strip_prefix("/").unwrap_or(&self.path)),
            None => self.path.clone(),
        }
    }

    /// Displays the path on this machine, in place of [`Path::display`].
    pub fn display(&self) -> &Self {
        self
    }

    /// Like [`Path::join`].
    #[must_use]
    pub fn join(&self, part: impl AsRef<Path>) -> NodePath {
        NodePath {
            path: self.path.join(part),
            root: self.root.clone(),
        }
    }

    /// Like [`Path::with_extension`].
    #[must_use]
    pub fn with_extension(&self, extension: &str) -> NodePath {
        NodePath {
            path: self.path.with_extension(extension),
            root: self.root.clone(),
        }
    }

    /// Returns the directory that contains the file; `/` for `/`.
    #[must_use]
    pub fn directory(&self) -> NodePath {
        NodePath {
            path: self.path.parent().unwrap_or(&self.path).to_owned(),
            root: self.root.clone(),
        }
    }
}

impl PartialEq for NodePath {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for NodePath {}

impl Deref for NodePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for NodePath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl From<PathBuf> for NodePath {
    fn from(path: PathBuf) -> Self {
        NodePath { path, root: None }
    }
}

impl From<&Path> for NodePath {
    fn from(path: &Path) -> Self {
        path.to_owned().into()
    }
}

impl From<&str> for NodePath {
    fn from(path: &str) -> Self {
        Path::new(path).into()
    }
}

impl From<NodePath> for PathBuf {
    fn from(path: NodePath) -> Self {
        path.path
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().display().fmt(f)
    }
}

impl fmt::Debug for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().fmt(f)
    }
}

impl Serialize for NodePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.path.serialize(serializer)
    }
}

/// The placeholders in a configured text; see [`fill_placeholders`].
pub(crate) const PLACEHOLDERS: [&str; 4] = ["{certificate}", "{authority}", "{node}", "{cluster}"];

/// Replaces the placeholders in a text. In `{certificate}`, a dash replaces each dot (`admin-conf`), since few servers accept
/// a dot in the name of a role.
pub fn fill_placeholders(text: &str, name: CertName, node: &str, cluster: &str) -> String {
    text.replace("{certificate}", &name.as_str().replace('.', "-"))
        .replace("{authority}", name.authority().as_str())
        .replace("{node}", node)
        .replace("{cluster}", cluster)
}

/// Returns true if the text contains an unknown placeholder, which would become part of a request.
pub(crate) fn unknown_placeholder(text: &str) -> bool {
    let mut rest = text.to_owned();
    for known in PLACEHOLDERS {
        rest = rest.replace(known, "");
    }
    rest.contains(['{', '}'])
}

/// Replaces the placeholders of a text by a letter, to examine the rest of it.
pub(crate) fn without_placeholders(text: &str) -> String {
    let known = PLACEHOLDERS.into_iter();
    known.fold(text.to_owned(), |text, one| text.replace(one, "x"))
}

/// Returns the first word in braces that is not a placeholder, in a text that may contain braces, such as JSON.
pub(crate) fn misspelt_placeholder(text: &str) -> Option<&str> {
    let starts = text.match_indices('{').map(|(at, _)| at);
    let words = starts.filter_map(|at| {
        let rest = text.get(at..)?;
        rest.get(..=rest.find('}')?)
    });
    let mut words = words.filter(|word| !PLACEHOLDERS.contains(word));
    words.find(|word| {
        let inner = word.trim_matches(['{', '}']);
        !inner.is_empty() && inner.bytes().all(|byte| byte.is_ascii_alphabetic())
    })
}

/// An unknown name.
#[derive(Debug, thiserror::Error)]
#[error("{name:?} is not the name of {what} ({fix})")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    fix: String,
}

impl UnknownName {
    /// `what` has an article; `known` are the possible names.
    pub(crate) fn new(what: &'static str, name: &str, known: &[&'static str]) -> Self {
        UnknownName {
            fix: fix_for(
                name,
                known.iter().copied(),
                format!("use one of {}", known.join(", ")),
            ),
            what,
            name: name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_misspelt_placeholder_but_no_json() {
        for (text, word) in [
            ("{certificate}.{node}", None),
            ("{Node}.example", Some("{Node}")),
            ("{node}.{cluter}", Some("{cluter}")),
            ("{\"node\": 1}", None),
            ("{}", None),
            ("{a b} {host}", Some("{host}")),
            ("{node", None),
        ] {
            assert_eq!(misspelt_placeholder(text), word, "{text}");
        }
    }

    #[test]
    fn displays_certificate_name_with_padding() {
        for name in CertName::ALL {
            assert_eq!(name.to_string(), name.as_str());
            assert_eq!(format!("{name:<30}|").len(), 31, "{name}");
        }
    }

    #[test]
    fn displays_node_path_below_root() {
        let path = NodePath::from("/etc/kubernetes/pki");
        for (root, shown) in [
            ("/", "/etc/kubernetes/pki/ca.crt"),
            ("/mnt", "/mnt/etc/kubernetes/pki/ca.crt"),
            ("mnt", "mnt/etc/kubernetes/pki/ca.crt"),
        ] {
            let below = path.clone().below(Path::new(root)).join("ca.crt");
            assert_eq!(below.to_string(), shown);
            assert_eq!(below.display().to_string(), shown);
            assert_eq!(format!("{below:>40}|").len(), 41);
            assert_eq!(below, path.join("ca.crt"), "the same file of the node");
            assert_eq!(below.directory().to_string(), shown.replace("/ca.crt", ""));
            let der = below.with_extension("der");
            assert_eq!(der.to_string(), shown.replace("crt", "der"));
            let json = serde_json::to_string(&below).unwrap();
            assert_eq!(json, "\"/etc/kubernetes/pki/ca.crt\"");
            assert_eq!(
                PathBuf::from(below),
                Path::new("/etc/kubernetes/pki/ca.crt")
            );
        }
    }
}
