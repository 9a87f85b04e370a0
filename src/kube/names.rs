//! The closed sets of names: certificates and authorities, spelled as kubeadm spells them; and [`NodePath`], the name
//! of a file on the node.
//!
//! Every other module speaks in these types; a string becomes one of them at the edge or is an error there.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// One of the three certificate authorities of a kubeadm cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Authority {
    /// Signs everything that talks to or is kube-apiserver.
    #[serde(rename = "ca")]
    Ca,
    /// Signs everything that talks to or is etcd.
    #[serde(rename = "etcd-ca")]
    EtcdCa,
    /// Signs the client certificate of the aggregation layer.
    #[serde(rename = "front-proxy-ca")]
    FrontProxyCa,
}

impl Authority {
    /// All three, in the order in which kubeadm creates them.
    pub const ALL: [Authority; 3] = [Authority::Ca, Authority::FrontProxyCa, Authority::EtcdCa];

    /// kubeadm's name of the authority.
    pub const fn as_str(self) -> &'static str {
        match self {
            Authority::Ca => "ca",
            Authority::EtcdCa => "etcd-ca",
            Authority::FrontProxyCa => "front-proxy-ca",
        }
    }

    /// Path below the certificates directory without `.crt` or `.key`.
    pub const fn base_name(self) -> &'static str {
        match self {
            Authority::Ca => "ca",
            Authority::EtcdCa => "etcd/ca",
            Authority::FrontProxyCa => "front-proxy-ca",
        }
    }

    /// The common name that kubeadm gives this authority when it makes it.
    pub const fn common_name(self) -> &'static str {
        match self {
            Authority::Ca => "kubernetes",
            Authority::EtcdCa => "etcd-ca",
            Authority::FrontProxyCa => "front-proxy-ca",
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Authority {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Authority::ALL
            .into_iter()
            .find(|authority| authority.as_str() == name)
            .ok_or_else(|| UnknownName::new("authority", name))
    }
}

/// A certificate that a node may hold: a pair below the certificates directory, or one inside a kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the serialized name is the documentation")]
pub enum CertName {
    #[serde(rename = "apiserver")]
    Apiserver,
    #[serde(rename = "apiserver-kubelet-client")]
    ApiserverKubeletClient,
    #[serde(rename = "front-proxy-client")]
    FrontProxyClient,
    #[serde(rename = "etcd-server")]
    EtcdServer,
    #[serde(rename = "etcd-peer")]
    EtcdPeer,
    #[serde(rename = "etcd-healthcheck-client")]
    EtcdHealthcheckClient,
    #[serde(rename = "apiserver-etcd-client")]
    ApiserverEtcdClient,
    #[serde(rename = "admin.conf")]
    AdminConf,
    #[serde(rename = "super-admin.conf")]
    SuperAdminConf,
    #[serde(rename = "kubelet.conf")]
    KubeletConf,
    #[serde(rename = "controller-manager.conf")]
    ControllerManagerConf,
    #[serde(rename = "scheduler.conf")]
    SchedulerConf,
    #[serde(rename = "kubelet-serving")]
    KubeletServing,
}

impl CertName {
    /// All names: those of kubeadm, and the kubelet's serving certificate, of which kubeadm knows nothing and which is
    /// called here as Kubernetes' own signer of it is.
    pub const ALL: [CertName; 13] = [
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
    ];

    /// Kubeadm's own names, in the order in which it creates them.
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

    /// The name; kubeadm's own where it has one, as in `kubeadm certs renew NAME`.
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
        }
    }

    /// Path without extension below the certificates directory, or the file name of the kubeconfig.
    pub const fn base_name(self) -> &'static str {
        match self {
            CertName::EtcdServer => "etcd/server",
            CertName::EtcdPeer => "etcd/peer",
            CertName::EtcdHealthcheckClient => "etcd/healthcheck-client",
            other => other.as_str(),
        }
    }

    /// The authority that signs this certificate.
    pub const fn authority(self) -> Authority {
        match self {
            CertName::EtcdServer
            | CertName::EtcdPeer
            | CertName::EtcdHealthcheckClient
            | CertName::ApiserverEtcdClient => Authority::EtcdCa,
            CertName::FrontProxyClient => Authority::FrontProxyCa,
            _ => Authority::Ca,
        }
    }

    /// True where the common name is nobody's identity by kubeadm's rules, so that it may be another one: TLS looks at
    /// the alternative names of a server, etcd has no users, and the front proxy's name is a list of kube-apiserver's.
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

    /// True for the kubelet's own two, which every kind of node has, and which do not lie below the certificates
    /// directory.
    pub const fn is_of_kubelet(self) -> bool {
        matches!(self, CertName::KubeletConf | CertName::KubeletServing)
    }

    /// The certificates of administrators: no component of a node reads them, and `certificates.omit` may name them.
    pub const OMITTABLE: [CertName; 2] = [CertName::SuperAdminConf, CertName::AdminConf];

    /// True for a certificate that lives inside a kubeconfig file.
    pub const fn is_kubeconfig(self) -> bool {
        matches!(
            self,
            CertName::AdminConf
                | CertName::SuperAdminConf
                | CertName::KubeletConf
                | CertName::ControllerManagerConf
                | CertName::SchedulerConf
        )
    }
}

impl fmt::Display for CertName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for CertName {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        CertName::ALL
            .into_iter()
            .find(|known| known.as_str() == name)
            .ok_or_else(|| UnknownName::new("certificate", name))
    }
}

/// A path on the node.
///
/// It is used and serialized as the path on the node, and displayed as the path on this machine: below the node's root
/// directory, which differs with `--root DIR`. So a message that names it is right wherever the message is made.
#[derive(Clone)]
pub struct NodePath {
    path: PathBuf,
    /// The root directory as it was given; `None` if the node is this machine.
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

    /// The path on this machine, for messages.
    pub fn shown(&self) -> PathBuf {
        match &self.root {
            Some(root) => root.join(self.path.strip_prefix("/").unwrap_or(&self.path)),
            None => self.path.clone(),
        }
    }

    /// The path on this machine, for messages; named as the method of [`Path`] that it replaces.
    pub fn display(&self) -> &Self {
        self
    }

    /// As [`Path::join`].
    #[must_use]
    pub fn join(&self, part: impl AsRef<Path>) -> NodePath {
        NodePath {
            path: self.path.join(part),
            root: self.root.clone(),
        }
    }

    /// As [`Path::with_extension`].
    #[must_use]
    pub fn with_extension(&self, extension: &str) -> NodePath {
        NodePath {
            path: self.path.with_extension(extension),
            root: self.root.clone(),
        }
    }

    /// The directory that contains the file; `/` for `/`.
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

/// What stands for names in a configured text; see [`fill`].
pub const PLACEHOLDERS: [&str; 4] = ["{certificate}", "{authority}", "{node}", "{cluster}"];

/// `text` with its placeholders filled in. `{certificate}` with dots as dashes (`admin-conf`), since few servers take
/// a dot in a role's name.
pub fn fill(text: &str, name: CertName, node: &str, cluster: &str) -> String {
    text.replace("{certificate}", &name.as_str().replace('.', "-"))
        .replace("{authority}", name.authority().as_str())
        .replace("{node}", node)
        .replace("{cluster}", cluster)
}

/// A placeholder in `text` that is none, which would end up in a request to somebody.
pub fn unknown_placeholder(text: &str) -> bool {
    let mut rest = text.to_owned();
    for known in PLACEHOLDERS {
        rest = rest.replace(known, "");
    }
    rest.contains(['{', '}'])
}

/// A name outside its closed set.
#[derive(Debug, thiserror::Error)]
#[error("unknown {what} name {name:?}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
}

impl UnknownName {
    pub(crate) fn new(what: &'static str, name: &str) -> Self {
        UnknownName {
            what,
            name: name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
