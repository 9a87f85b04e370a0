//! Certificates that nodepki's configuration registers in addition to kubeadm's: those of a konnectivity server, an
//! admission webhook, an aggregated API server, an encryption provider.
//!
//! The configuration has verified each registration for itself ([`identity_fault`]). [`path_conflicts`] verifies the paths
//! of all of them, as soon as kubeadm's `certificatesDir` is known, and [`name_conflicts`] their alternative names, as soon
//! as node and cluster are. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

use super::layout::Layout;
use super::table::CertSpec;
use crate::kube::kubeadm::{IpNet, KubeadmRole, San};
use crate::kube::names::{Authority, CertName, RegisteredName};
use crate::kube::paths::{KUBERNETES_DIR, MANIFESTS_DIR};
use crate::x509::ExtendedUsage;

/// Placeholder for the name of the node.
pub(crate) const NODE_PLACEHOLDER: &str = "{node}";
/// Entry of the alternative names that stands for the addresses of the node.
pub(crate) const ADDRESS_PLACEHOLDER: &str = "{address}";

/// Prefixes of users and groups that Kubernetes, kubeadm and nodepki give rights to.
const RESERVED_PREFIXES: [&str; 3] = ["system:", "kubeadm:", "nodepki:"];
/// Common names of kubeadm's client certificates. Bindings, kube-apiserver's `--requestheader-allowed-names` and audit
/// rules identify the component by them.
const KUBEADM_USERS: [&str; 6] = [
    "front-proxy-client",
    "kube-apiserver-etcd-client",
    "kube-apiserver-kubelet-client",
    "kube-etcd-healthcheck-client",
    "kubernetes-admin",
    "kubernetes-super-admin",
];
/// Name by which all clients in the cluster verify kube-apiserver.
const APISERVER_SERVICE: &str = "kubernetes";

/// A registered certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredCertificate {
    /// Its name, which contains authority and category.
    pub name: RegisteredName,
    /// Purpose, for administrators.
    pub description: Option<String>,
    /// The nodes that hold it.
    pub nodes: RegisteredNodes,
    /// Common name, with placeholders.
    pub common_name: String,
    /// Organizations.
    pub organizations: Vec<String>,
    /// Alternative names.
    pub sans: Vec<RegisteredSan>,
    /// Extended key usages.
    pub usages: Vec<ExtendedUsage>,
    /// File of the certificate; by default in the certificates directory.
    pub certificate: Option<PathBuf>,
    /// File of the key; by default in the certificates directory.
    pub key: Option<PathBuf>,
    /// Numeric ID of a group that may read the key.
    pub group: Option<u32>,
    /// Copies of trust bundles that the component reads.
    pub ca_files: BTreeMap<Authority, PathBuf>,
}

words! {
    /// The nodes that hold a registered certificate.
    #[derive(Default)]
    pub enum RegisteredNodes {
        /// Control-plane nodes.
        #[default]
        ControlPlane = "controlPlane",
        /// Workers.
        Worker = "worker",
        /// All nodes.
        All = "all",
    }
}

impl RegisteredNodes {
    /// Returns true if nodes of this kind hold the certificate.
    pub fn contain(self, is_worker: bool) -> bool {
        match self {
            RegisteredNodes::ControlPlane => !is_worker,
            RegisteredNodes::Worker => is_worker,
            RegisteredNodes::All => true,
        }
    }
}

/// An alternative name of a registered certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisteredSan {
    /// The addresses of the node: that of its API server, or of a worker's kubelet.
    Addresses,
    /// A name with `{node}` in it.
    OfNode(String),
    /// The same on every node.
    Fixed(San),
}

impl RegisteredSan {
    /// Returns the text in the configuration.
    pub fn written(&self) -> String {
        match self {
            RegisteredSan::Addresses => ADDRESS_PLACEHOLDER.to_owned(),
            RegisteredSan::OfNode(template) => template.clone(),
            RegisteredSan::Fixed(san) => san.to_string(),
        }
    }
}

impl RegisteredCertificate {
    /// Returns true if a node of this role holds the certificate.
    pub fn is_on(&self, role: KubeadmRole) -> bool {
        self.nodes.contain(role == KubeadmRole::Worker)
    }

    /// Returns certificate and key below a certificates directory.
    pub(super) fn pair(&self, certificates_dir: &Path) -> [PathBuf; 2] {
        let by_default = |suffix: &str| certificates_dir.join(format!("{}.{suffix}", self.name));
        let certificate = self.certificate.clone();
        let key = self.key.clone();
        [
            certificate.unwrap_or_else(|| by_default("crt")),
            key.unwrap_or_else(|| by_default("key")),
        ]
    }
}

/// Returns why no registered certificate may have this common name or organization: a component with such a certificate
/// would have rights that its registration does not show.
pub fn identity_fault(value: &str) -> Option<&'static str> {
    if RESERVED_PREFIXES
        .iter()
        .any(|prefix| value.starts_with(prefix))
    {
        return Some("begins with system:, kubeadm: or nodepki:, which are identities with rights");
    }
    KUBEADM_USERS
        .contains(&value)
        .then_some("is the identity of one of kubeadm's certificates")
}

/// Returns true for a name of the API server's Service, or a wildcard for one. Pods trust any server with such a name under
/// `ca`.
pub fn is_apiserver_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = match name.strip_prefix('*') {
        Some(domain) => format!("{APISERVER_SERVICE}{domain}"),
        None => name,
    };
    name.trim_end_matches('.') == APISERVER_SERVICE || name.starts_with("kubernetes.default")
}

/// Returns the conflicts between the alternative names of the registered certificates and those of the API server's Service,
/// whose address is the first of its network. Pods trust any server with this address under `ca`.
pub fn name_conflicts(certs: &[CertSpec], services: &[IpNet]) -> Vec<String> {
    let service_addresses: Vec<IpAddr> = services.iter().filter_map(|net| net.nth(1)).collect();
    let mut conflicts = Vec::new();
    for cert in certs {
        let CertName::Registered(name) = cert.name() else {
            continue;
        };
        let sans = &cert.requested.profile.sans;
        let names = sans.dns.iter().filter(|name| is_apiserver_name(name));
        let addresses = sans.ips.iter().filter(|ip| service_addresses.contains(ip));
        let texts = names.cloned().chain(addresses.map(ToString::to_string));
        conflicts.extend(texts.map(|text| {
            format!(
                "certificates.registered.{name}.sans: {text} belongs to kube-apiserver's Service, which clients in the cluster trust under ca (remove it)"
            )
        }));
    }
    conflicts
}

/// Returns the conflicts between the files of the registered certificates, and those with other files of the node.
pub fn path_conflicts(registered: &[RegisteredCertificate], layout: &Layout) -> Vec<String> {
    let mut owners = owners_of_kubeadm(layout);
    let mut conflicts = Vec::new();
    for one in registered {
        let [certificate, key] = one.pair(layout.certificates_dir());
        let pair = [
            ("certificate".to_owned(), certificate),
            ("key".to_owned(), key),
        ];
        let copies = one.ca_files.iter();
        let copies = copies.map(|(authority, path)| (format!("caFiles.{authority}"), path.clone()));
        for (field, path) in pair.into_iter().chain(copies) {
            let at = format!("certificates.registered.{}.{field}", one.name);
            if let Some(owner) = owners.get(&path) {
                conflicts.push(format!(
                    "{at}: {} is a file of {owner} (name another file)",
                    path.display()
                ));
                continue;
            }
            if let Some(problem) = outside(&path, layout) {
                conflicts.push(format!("{at}: {} {problem}", path.display()));
            }
            owners.insert(path, one.name.to_string());
        }
    }
    conflicts
}

/// Returns why nodepki does not write a certificate to a path.
fn outside(path: &Path, layout: &Layout) -> Option<String> {
    let is_plain = path
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let dir = layout.certificates_dir();
    let is_inside = path.starts_with(KUBERNETES_DIR) || path.starts_with(dir);
    if !is_plain || !is_inside {
        return Some(format!(
            "is not below {KUBERNETES_DIR} or the certificates directory {} (put the file there; the daemon may write nowhere else)",
            dir.display()
        ));
    }
    path.starts_with(MANIFESTS_DIR).then(|| {
        format!("is below {MANIFESTS_DIR}, where the kubelet runs each file as a pod (name a file in another directory)")
    })
}

fn owners_of_kubeadm(layout: &Layout) -> BTreeMap<PathBuf, String> {
    let leaves = CertName::ALL.into_iter().flat_map(|name| {
        let pair = layout.client_pair(name).into_iter().flatten();
        let files = layout.files(name).into_iter().chain(pair);
        files.map(move |path| (path, name.to_string()))
    });
    let authorities = Authority::ALL.into_iter().flat_map(|name| {
        let lists = layout.revocation_lists(name);
        let files = layout.authority(name).into_iter();
        files
            .chain([lists.with_extension("der"), lists])
            .map(move |path| (path, name.to_string()))
    });
    let pair = layout.service_account().into_iter();
    leaves
        .chain(authorities)
        .chain(pair.map(|path| (path, "sa".to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(name: &str, files: [Option<&str>; 2]) -> RegisteredCertificate {
        let [certificate, key] = files.map(|file| file.map(PathBuf::from));
        RegisteredCertificate {
            name: name.parse().unwrap(),
            description: None,
            nodes: RegisteredNodes::ControlPlane,
            common_name: name.to_owned(),
            organizations: Vec::new(),
            sans: Vec::new(),
            usages: Vec::new(),
            certificate,
            key,
            group: None,
            ca_files: BTreeMap::new(),
        }
    }

    #[test]
    fn refuses_privileged_identities() {
        for privileged in [
            "system:masters",
            "system:node:cp1",
            "system:kube-scheduler",
            "kubeadm:cluster-admins",
            "nodepki:kubelet-signers",
            "kubernetes-admin",
            "front-proxy-client",
        ] {
            assert!(identity_fault(privileged).is_some(), "{privileged}");
        }
        for harmless in ["konnectivity-server", "kubernetes-administrators", "system"] {
            assert_eq!(identity_fault(harmless), None);
        }
    }

    #[test]
    fn reserves_names_of_the_api_servers_service() {
        for name in [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "Kubernetes.",
            "KUBERNETES.default.svc.",
            "*",
            "*.default",
            "*.default.svc",
            "*.Default.svc.cluster.local",
        ] {
            assert!(is_apiserver_name(name), "{name}");
        }
        for name in [
            "kubernetes.example",
            "my-kubernetes",
            "hook.default.svc",
            "*.example",
            "*.svc",
            "",
        ] {
            assert!(!is_apiserver_name(name), "{name}");
        }
    }

    #[test]
    fn writes_alternative_names_as_configured() {
        for (san, expected) in [
            (RegisteredSan::Addresses, ADDRESS_PLACEHOLDER),
            (
                RegisteredSan::OfNode("{node}.example".to_owned()),
                "{node}.example",
            ),
            (
                RegisteredSan::Fixed(San::Dns("hook.example".to_owned())),
                "hook.example",
            ),
            (
                RegisteredSan::Fixed(San::Ip("2001:db8::1".parse().unwrap())),
                "2001:db8::1",
            ),
        ] {
            assert_eq!(san.written(), expected);
        }
    }

    #[test]
    fn layout_describes_registered_certificates() {
        let described = RegisteredCertificate {
            description: Some("Backup of etcd.".to_owned()),
            ..registered("hook", [None, None])
        };
        let other = registered("other", [None, None]);
        let name = |one: &RegisteredCertificate| CertName::Registered(one.name);
        let layout = Layout::default().with_registered(&[other.clone(), described.clone()]);
        assert_eq!(
            layout.description(name(&described)),
            Some("Backup of etcd.")
        );
        assert_eq!(layout.description(name(&other)), None);
        assert_eq!(layout.description(CertName::Apiserver), None);
        let last: Vec<CertName> = layout.certificates().skip(CertName::ALL.len()).collect();
        assert_eq!(last, [name(&other), name(&described)]);
    }

    #[test]
    fn accepts_default_files() {
        let both =
            ["konnectivity-server", "etcd-metrics"].map(|name| registered(name, [None, None]));
        assert_eq!(
            path_conflicts(&both, &Layout::default()),
            Vec::<String>::new()
        );
        let layout = Layout::new(Some("/srv/pki".into()), None);
        assert_eq!(path_conflicts(&both, &layout), Vec::<String>::new());
    }

    #[test]
    fn reports_files_with_another_owner() {
        let layout = Layout::default();
        for (file, owner) in [
            ("/etc/kubernetes/pki/apiserver.crt", "apiserver"),
            ("/etc/kubernetes/pki/etcd/server.crt", "etcd-server"),
            ("/etc/kubernetes/pki/ca.key", "ca"),
            ("/etc/kubernetes/pki/etcd/crl.der", "etcd-ca"),
            ("/etc/kubernetes/pki/sa.pub", "sa"),
            ("/etc/kubernetes/admin.conf", "admin.conf"),
            ("/etc/kubernetes/pki/scheduler/client.key", "scheduler.conf"),
            ("/etc/kubernetes/pki/first.crt", "first"),
        ] {
            let both = [
                registered("first", [None, None]),
                registered("second", [Some(file), None]),
            ];
            assert_eq!(
                path_conflicts(&both, &layout),
                [format!(
                    "certificates.registered.second.certificate: {file} is a file of {owner} (name another file)"
                )]
            );
        }
        let same = Some("/etc/kubernetes/pki/both.pem");
        let conflicts = path_conflicts(&[registered("both", [same, same])], &layout);
        assert_eq!(conflicts.len(), 1);
    }

    #[test]
    fn reports_files_outside_of_allowed_directories() {
        let layout = Layout::new(Some("/srv/pki".into()), None);
        for (file, is_allowed) in [
            ("/etc/kubernetes/webhook/tls.key", true),
            ("/srv/pki/webhook/tls.key", true),
            ("/etc/ssl/tls.key", false),
            ("/etc/kubernetes/../ssl/tls.key", false),
            ("/etc/kubernetes/manifests/tls.key", false),
            ("/etc/kubernetes-other/tls.key", false),
        ] {
            let conflicts = path_conflicts(&[registered("webhook", [None, Some(file)])], &layout);
            assert_eq!(conflicts.is_empty(), is_allowed, "{file}: {conflicts:?}");
        }
    }
}
