//! The declared certificate table: what a node must hold, computed from its configuration alone.
//!
//! Pure. `plan` knows nothing of what is on disk; `assess` compares the two. The rules are kubeadm's
//! (`GetDefaultCertList`, `GetAPIServerAltNames`, `getAltNames`, `getKubeConfigSpecs`), and where this table
//! differs on purpose the reason stands at the place.

pub mod assess;
mod layout;
pub mod policy;
pub mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::kube::kubeadm::{Cluster, Endpoint, Etcd, Host, Node, Role, San, Version};
use crate::kube::names::{self, Authority, CertName, NodePath};
use crate::spec::policy::Policy;
use crate::x509::{ExtendedUsage, KeyAlgorithm, Profile, Sans, Subject, Tolerance};

pub use layout::{CERTIFICATES_DIR, Layout, crl_name, kubeconfig_path};

/// Where the kubeconfigs are.
pub const KUBECONFIG_DIR: &str = "/etc/kubernetes";

/// Where the kubelet keeps its own certificates, unless it is started with `--cert-dir`.
pub const KUBELET_PKI: &str = "/var/lib/kubelet/pki";

/// The link to the kubelet's newest client certificate, in that directory.
pub const KUBELET_CURRENT: &str = "kubelet-client-current.pem";

/// Everything that one node must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where its files are.
    pub layout: Layout,
    /// Leaf certificates, in the order in which kubeadm makes them.
    pub certs: Vec<CertSpec>,
    /// Trust bundles, in the order in which kubeadm makes them.
    pub bundles: Vec<BundleSpec>,
    /// The service-account key pair; a worker has none.
    pub service_account: Option<ServiceAccountSpec>,
    /// etcd client files that somebody else provides: checked, never written.
    pub external_etcd: Option<ExternalEtcd>,
    /// What `kubeadm join` must be told to ignore, as it refuses files of this plan that it would make itself
    /// (`JoinNodeChecks`); empty for a first node.
    pub ignore_preflight_errors: Vec<String>,
    /// Certificates that the node would hold but for [`Choices::omit`].
    pub omitted: Vec<CertName>,
    /// Things a person should know that are no errors.
    pub notes: Vec<String>,
}

impl Plan {
    /// The spec of one certificate, when this node holds it.
    pub fn cert(&self, name: CertName) -> Option<&CertSpec> {
        self.certs.iter().find(|spec| spec.name == name)
    }

    /// The bundle of one authority, when this node holds it.
    pub fn bundle(&self, authority: Authority) -> Option<&BundleSpec> {
        self.bundles.iter().find(|spec| spec.authority == authority)
    }

    /// Returns the same table, with paths that are displayed for a node with this root directory.
    #[must_use]
    pub fn shown_below(mut self, root: &Path) -> Plan {
        let certs = self.certs.iter_mut();
        let outputs = certs.flat_map(|spec| match &mut spec.output {
            Output::Pair { certificate, key } => vec![certificate, key],
            Output::Kubeconfig { path, store, .. } => {
                let store = store.iter_mut().map(|store| &mut store.dir);
                store.chain([path]).collect()
            }
        });
        let bundles = self.bundles.iter_mut();
        let bundles =
            bundles.flat_map(|spec| [&mut spec.path, &mut spec.key_path, &mut spec.crl_path]);
        let pair = self.service_account.iter_mut();
        let pair = pair.flat_map(|spec| [&mut spec.private, &mut spec.public]);
        let external = self.external_etcd.iter_mut();
        let external = external.flat_map(|files| {
            let ExternalEtcd {
                authority,
                certificate,
                key,
            } = files;
            [authority, certificate, key].into_iter().flatten()
        });
        for path in outputs.chain(bundles).chain(pair).chain(external) {
            *path = std::mem::replace(path, NodePath::from("")).below(root);
        }
        self
    }
}

/// One wanted leaf certificate and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertSpec {
    /// kubeadm's name.
    pub name: CertName,
    /// The authority that must have signed it.
    pub authority: Authority,
    /// What must be in it.
    pub profile: Profile,
    /// Subjects that other kubeadm versions give this certificate. One found on disk is kept, since the cluster
    /// may depend on it; one that comes from a signer is refused.
    pub other_subjects: Vec<Subject>,
    /// What may be in it besides.
    pub tolerance: Tolerance,
    /// One under another certificate of the bundle than the first is issued anew, not kept with a note: the authority
    /// was changed.
    pub under_first: bool,
    /// True if [`Choices::omit`] may leave it out on this node.
    pub is_omittable: bool,
    /// Where it goes.
    pub output: Output,
}

/// The files that hold a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// `.crt` (0644) and `.key` (0600).
    Pair {
        /// PEM, leaf first.
        certificate: NodePath,
        /// PEM, PKCS#1 or SEC1.
        key: NodePath,
    },
    /// Both embedded in a kubeconfig (0600).
    Kubeconfig {
        /// The file.
        path: NodePath,
        /// URL of the API server.
        server: String,
        /// Name of the cluster entry.
        cluster: String,
        /// Name of the user entry.
        user: String,
        /// For kubelet.conf: where the kubelet keeps its client certificates.
        store: Option<KubeletStore>,
    },
}

/// Where the kubelet keeps its client certificates: dated files with certificate and key, and a link to the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletStore {
    /// The directory.
    pub dir: NodePath,
    /// When the certificate goes there.
    pub layout: KubeletLayout,
}

/// Where the kubelet's client certificate goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeletLayout {
    /// Into kubelet.conf, as `kubeadm init` writes it, until the kubelet has taken it from there into a file of its own;
    /// then by file, as `kubeadm init phase kubelet-finalize` has it.
    #[default]
    Auto,
    /// Into a file of its own from the beginning. A kubelet that rotates asks for another certificate at once when it
    /// finds one in kubelet.conf, which stays pending in a cluster where nothing signs.
    File,
}

impl KubeletLayout {
    /// All choices.
    pub const ALL: [KubeletLayout; 2] = [KubeletLayout::Auto, KubeletLayout::File];

    /// As written in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            KubeletLayout::Auto => "auto",
            KubeletLayout::File => "file",
        }
    }
}

impl Output {
    /// Every file this output writes; a pair's key first.
    pub fn paths(&self) -> Vec<&NodePath> {
        match self {
            Output::Pair { certificate, key } => vec![key, certificate],
            Output::Kubeconfig { path, .. } => vec![path],
        }
    }
}

/// The trust bundle of one authority: its `ca.crt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleSpec {
    /// Whose.
    pub authority: Authority,
    /// `ca.crt`, 0644.
    pub path: NodePath,
    /// Where kubeadm would look for the private key, which should not be there.
    pub key_path: NodePath,
    /// `crl.pem`, 0644: the revocation lists, where the signer publishes any. `crl.der` beside it holds the list about
    /// the authority's leaves alone, which is what etcd 3.6 reads; etcd 3.5 reads either.
    pub crl_path: NodePath,
    /// Algorithm and lifetime for the demonstration authorities, which make their own.
    pub key: KeyAlgorithm,
    /// See `key`.
    pub lifetime: Duration,
}

/// The key pair that signs service-account tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccountSpec {
    /// `sa.key`, 0600.
    pub private: NodePath,
    /// `sa.pub`, 0600 as `kubeadm init` writes it.
    pub public: NodePath,
    /// Algorithm for a new pair.
    pub key: KeyAlgorithm,
    /// Only the first node may make one: with two different pairs half of all tokens fail.
    pub may_make: bool,
}

/// Files of an external etcd, as `etcd.external` names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalEtcd {
    /// `caFile`.
    pub authority: Option<NodePath>,
    /// `certFile`.
    pub certificate: Option<NodePath>,
    /// `keyFile`.
    pub key: Option<NodePath>,
}

/// The organization of `apiserver-kubelet-client`, which kubeadm has changed twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeletClientSubject {
    /// By `kubernetesVersion`: none from 1.36.1 and 1.35.5 on, where kubeadm also makes the binding that this
    /// needs; `kubeadm:cluster-admins` from 1.29; `system:masters` before. An unknown version keeps the group,
    /// since it works with every kubeadm from 1.29 on.
    #[default]
    Auto,
    /// No organization.
    None,
    /// `kubeadm:cluster-admins`.
    ClusterAdmins,
    /// `system:masters`.
    Masters,
}

impl KubeletClientSubject {
    /// All choices.
    pub const ALL: [KubeletClientSubject; 4] = [
        KubeletClientSubject::Auto,
        KubeletClientSubject::None,
        KubeletClientSubject::ClusterAdmins,
        KubeletClientSubject::Masters,
    ];

    /// As written in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            KubeletClientSubject::Auto => "auto",
            KubeletClientSubject::None => "none",
            KubeletClientSubject::ClusterAdmins => CLUSTER_ADMINS,
            KubeletClientSubject::Masters => MASTERS,
        }
    }
}

/// Choices that are nodepki's own, not kubeadm's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// See the type.
    pub kubelet_client_subject: KubeletClientSubject,
    /// Common names in place of kubeadm's, with placeholders, for [`CertName::has_free_common_name`] only.
    pub common_names: BTreeMap<CertName, String>,
    /// What each authority's certificates may say besides what is wanted; nothing where it is not named.
    pub tolerances: BTreeMap<Authority, Tolerance>,
    /// Names added to the API server's certificate.
    pub apiserver_sans: Vec<San>,
    /// Names added to the etcd server's certificate.
    pub etcd_server_sans: Vec<San>,
    /// Names added to the etcd peer's certificate.
    pub etcd_peer_sans: Vec<San>,
    /// Certificates that are not requested, where kubeadm's rules allow it.
    pub omit: BTreeSet<CertName>,
    /// Leave kubelet.conf to the kubelet's own TLS bootstrap.
    pub kubelet_bootstraps_itself: bool,
    /// Where the kubelet's client certificate goes.
    pub kubelet_layout: KubeletLayout,
    /// Issue the kubelet's serving certificate.
    pub kubelet_serving: bool,
    /// Names added to it.
    pub kubelet_serving_sans: Vec<San>,
}

/// Computes the table.
pub fn plan(cluster: &Cluster, node: &Node, policy: &Policy, choices: &Choices) -> Plan {
    let table = Table {
        cluster,
        node,
        policy,
        choices,
    };
    let mut notes = Vec::new();
    if node.role != Role::Worker
        && let [_, second] = cluster.service_subnets.as_slice()
        && let Some(address) = second.nth(1)
        && !choices.apiserver_sans.contains(&San::Ip(address))
        && !cluster.apiserver_cert_sans.contains(&San::Ip(address))
    {
        notes.push(format!(
            "apiserver names only the service address of the first family, as kubeadm does; add {address} to extraSANs.apiserver if clients use the second"
        ));
    }
    let certs: Vec<CertSpec> = table
        .names()
        .into_iter()
        .map(|name| table.spec(name))
        .collect();
    if let Some(spec) = certs
        .iter()
        .find(|spec| spec.name == CertName::FrontProxyClient)
        && table.common_name(spec.name).is_some()
    {
        notes.push(format!(
            "front-proxy-client is called {0} by commonNames: kube-apiserver must have {0} among its --requestheader-allowed-names on every control-plane node (an empty list would let every client of that authority speak for anybody)",
            spec.profile.subject.common_name
        ));
    }
    if let Some(spec) = certs
        .iter()
        .find(|spec| spec.name == CertName::KubeletServing)
        && spec.profile.sans.ips.is_empty()
    {
        notes.push("kubelet-serving names no IP address, and kube-apiserver reaches kubelets by theirs: set node-ip in nodeRegistration.kubeletExtraArgs, or extraSANs.kubelet-serving".to_owned());
    }
    Plan {
        layout: table.layout(),
        ignore_preflight_errors: table.ignore_preflight_errors(&certs),
        certs,
        bundles: table.bundles(),
        omitted: table.omitted(),
        service_account: table.service_account(),
        external_etcd: table.external_etcd(),
        notes,
    }
}

struct Table<'a> {
    cluster: &'a Cluster,
    node: &'a Node,
    policy: &'a Policy,
    choices: &'a Choices,
}

impl Table<'_> {
    fn names(&self) -> Vec<CertName> {
        CertName::ALL
            .into_iter()
            .filter(|name| self.holds(*name))
            .collect()
    }

    fn omitted(&self) -> Vec<CertName> {
        let all = CertName::ALL.into_iter();
        all.filter(|name| self.is_of_kubeadm(*name) && self.omits(*name))
            .collect()
    }

    fn omits(&self, name: CertName) -> bool {
        self.choices.omit.contains(&name) && self.is_omittable(name)
    }

    /// Control-plane components use neither. `kubeadm init` cannot proceed without admin.conf (`initData.Client`).
    fn is_omittable(&self, name: CertName) -> bool {
        match name {
            CertName::SuperAdminConf => true,
            CertName::AdminConf => self.node.role == Role::Join,
            _ => false,
        }
    }

    fn holds(&self, name: CertName) -> bool {
        self.is_of_kubeadm(name) && !self.omits(name)
    }

    fn is_of_kubeadm(&self, name: CertName) -> bool {
        match (name, self.node.role) {
            (CertName::KubeletConf, _) => !self.choices.kubelet_bootstraps_itself,
            (CertName::KubeletServing, _) => self.choices.kubelet_serving,
            (_, Role::Worker) => false,
            // kubeadm join never makes it; it exists from 1.29 on.
            (CertName::SuperAdminConf, role) => role == Role::Init && !self.before(1, 29),
            (name, _) if name.authority() == Authority::EtcdCa => self.etcd_is_stacked(),
            _ => true,
        }
    }

    fn ignore_preflight_errors(&self, certs: &[CertSpec]) -> Vec<String> {
        if self.node.role == Role::Init {
            return Vec::new();
        }
        let kubelet = certs
            .iter()
            .filter(|spec| spec.name == CertName::KubeletConf)
            .flat_map(|spec| spec.output.paths())
            .cloned();
        // Only a worker's join minds the CA certificate.
        let bundles = self
            .bundles()
            .into_iter()
            .filter(|_| self.node.role == Role::Worker)
            .map(|bundle| bundle.path)
            .filter(|path| {
                let join = self.node.join.as_ref();
                join.is_some_and(|join| join.ca_cert_path == **path)
            });
        kubelet
            .chain(bundles)
            .map(|path| {
                format!(
                    "FileAvailable-{}",
                    path.display().to_string().replace('/', "-")
                )
            })
            .collect()
    }

    fn spec(&self, name: CertName) -> CertSpec {
        let generations = self.subjects(name);
        let mut subjects = generations.into_iter();
        // `subjects` always yields at least the wanted one.
        let subject = subjects.next().unwrap_or(Subject {
            common_name: name.as_str().to_owned(),
            organizations: Vec::new(),
        });
        CertSpec {
            name,
            authority: name.authority(),
            output: self.output(name, &subject.common_name),
            profile: Profile {
                subject,
                sans: self.sans(name),
                usages: usages(name),
                key: self.policy.key_for(name),
                lifetime: self.cluster.certificate_validity,
            },
            other_subjects: subjects.collect(),
            tolerance: self
                .choices
                .tolerances
                .get(&name.authority())
                .copied()
                .unwrap_or_default(),
            under_first: false,
            is_omittable: self.is_omittable(name),
        }
    }

    /// The wanted subject, then those of other kubeadm versions.
    fn subjects(&self, name: CertName) -> Vec<Subject> {
        let one = |common_name: &str, organization: Option<&str>| Subject {
            common_name: common_name.to_owned(),
            organizations: organization.map(str::to_owned).into_iter().collect(),
        };
        if let Some(chosen) = self.common_name(name) {
            return vec![one(&chosen, None)];
        }
        let node_name = self.node.name.as_str();
        match name {
            CertName::Apiserver => vec![one("kube-apiserver", None)],
            CertName::ApiserverKubeletClient => {
                let wanted = self.kubelet_client_organization();
                let mut all = vec![wanted];
                all.extend(
                    [None, Some(CLUSTER_ADMINS), Some(MASTERS)]
                        .into_iter()
                        .filter(|o| *o != wanted),
                );
                all.into_iter()
                    .map(|organization| one("kube-apiserver-kubelet-client", organization))
                    .collect()
            }
            CertName::FrontProxyClient => vec![one("front-proxy-client", None)],
            CertName::EtcdServer | CertName::EtcdPeer => vec![one(node_name, None)],
            // These two were in system:masters before 1.29.
            CertName::EtcdHealthcheckClient => {
                vec![
                    one("kube-etcd-healthcheck-client", None),
                    one("kube-etcd-healthcheck-client", Some(MASTERS)),
                ]
            }
            CertName::ApiserverEtcdClient => {
                vec![
                    one("kube-apiserver-etcd-client", None),
                    one("kube-apiserver-etcd-client", Some(MASTERS)),
                ]
            }
            CertName::AdminConf if self.before(1, 29) => {
                vec![one("kubernetes-admin", Some(MASTERS))]
            }
            CertName::AdminConf => {
                vec![
                    one("kubernetes-admin", Some(CLUSTER_ADMINS)),
                    one("kubernetes-admin", Some(MASTERS)),
                ]
            }
            CertName::SuperAdminConf => vec![one("kubernetes-super-admin", Some(MASTERS))],
            CertName::KubeletConf | CertName::KubeletServing => vec![one(
                &format!("system:node:{node_name}"),
                Some("system:nodes"),
            )],
            CertName::ControllerManagerConf => vec![one("system:kube-controller-manager", None)],
            CertName::SchedulerConf => vec![one("system:kube-scheduler", None)],
        }
    }

    fn common_name(&self, name: CertName) -> Option<String> {
        let chosen = self.choices.common_names.get(&name)?;
        name.has_free_common_name().then(|| {
            names::fill(
                chosen,
                name,
                self.node.name.as_str(),
                &self.cluster.cluster_name,
            )
        })
    }

    fn kubelet_client_organization(&self) -> Option<&'static str> {
        match self.choices.kubelet_client_subject {
            KubeletClientSubject::None => None,
            KubeletClientSubject::ClusterAdmins => Some(CLUSTER_ADMINS),
            KubeletClientSubject::Masters => Some(MASTERS),
            KubeletClientSubject::Auto => match &self.cluster.kubernetes_version {
                Some(version) if makes_kubelet_client_binding(version) => None,
                _ if self.before(1, 29) => Some(MASTERS),
                _ => Some(CLUSTER_ADMINS),
            },
        }
    }

    fn sans(&self, name: CertName) -> Sans {
        let mut names = SanList::default();
        match name {
            CertName::Apiserver => {
                names.dns(self.node.name.as_str());
                for service in ["kubernetes", "kubernetes.default", "kubernetes.default.svc"] {
                    names.dns(service);
                }
                if !self.cluster.dns_domain.is_empty() {
                    names.dns(&format!(
                        "kubernetes.default.svc.{}",
                        self.cluster.dns_domain
                    ));
                }
                names.ips(self.service_address());
                names.ips(self.node.advertise_address);
                match self
                    .cluster
                    .control_plane_endpoint
                    .as_ref()
                    .map(|endpoint| &endpoint.host)
                {
                    Some(Host::Dns(host)) => names.dns(host),
                    Some(Host::Ip(ip)) => names.ip(*ip),
                    None => {}
                }
                names.extend(&self.cluster.apiserver_cert_sans);
                names.extend(&self.choices.apiserver_sans);
            }
            CertName::EtcdServer | CertName::EtcdPeer => {
                names.dns(self.node.name.as_str());
                names.dns("localhost");
                names.ips(self.node.advertise_address);
                names.ip(IpAddr::from([127, 0, 0, 1]));
                names.ip(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]));
                if let Etcd::Local {
                    server_cert_sans,
                    peer_cert_sans,
                } = &self.cluster.etcd
                {
                    if name == CertName::EtcdServer {
                        names.extend(server_cert_sans);
                        names.extend(&self.choices.etcd_server_sans);
                    } else {
                        names.extend(peer_cert_sans);
                        names.extend(&self.choices.etcd_peer_sans);
                    }
                }
            }
            // What the kubelet itself would ask for: the addresses of its Node object.
            CertName::KubeletServing => {
                let host = self.node.hostname_override.as_deref();
                names.dns(host.unwrap_or(self.node.name.as_str()));
                names.dns(self.node.name.as_str());
                names.ips(self.node.kubelet_addresses.iter().copied());
                names.extend(&self.choices.kubelet_serving_sans);
            }
            _ => {}
        }
        names.finish()
    }

    /// The first address of the first service CIDR: only that one, also with two families.
    fn service_address(&self) -> Option<IpAddr> {
        self.cluster.service_subnets.first()?.nth(1)
    }

    fn output(&self, name: CertName, user: &str) -> Output {
        let layout = self.layout();
        let [certificate, key] = layout.pair(name).map(NodePath::from);
        if !name.is_kubeconfig() {
            return Output::Pair { certificate, key };
        }
        Output::Kubeconfig {
            path: certificate,
            server: self.server(name),
            cluster: self.cluster.cluster_name.clone(),
            user: user.to_owned(),
            store: (name == CertName::KubeletConf).then(|| KubeletStore {
                dir: layout.kubelet_pki().into(),
                layout: self.choices.kubelet_layout,
            }),
        }
    }

    fn layout(&self) -> Layout {
        Layout::new(
            Some(self.cluster.certificates_dir.clone()),
            self.node.kubelet_cert_dir.clone(),
        )
    }

    fn server(&self, name: CertName) -> String {
        let local = match name {
            CertName::ControllerManagerConf | CertName::SchedulerConf => true,
            // ControlPlaneKubeletLocalMode: on by default from 1.33. `kubeadm certs generate-csr` still writes
            // the shared endpoint here; `kubeadm init` and `join` do not, and this follows them.
            CertName::KubeletConf => self.node.role != Role::Worker && !self.before(1, 33),
            _ => false,
        };
        let local_endpoint = self
            .node
            .advertise_address
            .map(|ip| url(&Host::Ip(ip), self.node.bind_port));
        let shared = self
            .node
            .join_endpoint
            .as_ref()
            .filter(|_| self.node.role == Role::Worker)
            .or(self.cluster.control_plane_endpoint.as_ref())
            .map(|Endpoint { host, port }| url(host, port.unwrap_or(self.node.bind_port)));
        let server = if local {
            local_endpoint.or(shared)
        } else {
            shared.or(local_endpoint)
        };
        server.unwrap_or_default()
    }

    fn bundles(&self) -> Vec<BundleSpec> {
        let layout = self.layout();
        Authority::ALL
            .into_iter()
            .filter(|authority| match authority {
                Authority::Ca => true,
                Authority::FrontProxyCa => self.node.role != Role::Worker,
                Authority::EtcdCa => self.node.role != Role::Worker && self.etcd_is_stacked(),
            })
            .map(|authority| {
                let [path, key_path] = layout.authority(authority).map(NodePath::from);
                BundleSpec {
                    authority,
                    path,
                    key_path,
                    crl_path: layout.revocation_lists(authority).into(),
                    key: self.policy.key_for_authority(authority),
                    lifetime: self.cluster.ca_validity,
                }
            })
            .collect()
    }

    fn service_account(&self) -> Option<ServiceAccountSpec> {
        let [private, public] = self.layout().service_account().map(NodePath::from);
        (self.node.role != Role::Worker).then(|| ServiceAccountSpec {
            private,
            public,
            key: self.policy.key_for_service_account(),
            may_make: self.node.role == Role::Init,
        })
    }

    fn external_etcd(&self) -> Option<ExternalEtcd> {
        match &self.cluster.etcd {
            Etcd::External {
                ca_file,
                cert_file,
                key_file,
                ..
            } if self.node.role != Role::Worker => Some(ExternalEtcd {
                authority: ca_file.clone().map(NodePath::from),
                certificate: cert_file.clone().map(NodePath::from),
                key: key_file.clone().map(NodePath::from),
            }),
            _ => None,
        }
    }

    fn etcd_is_stacked(&self) -> bool {
        matches!(self.cluster.etcd, Etcd::Local { .. })
    }

    /// True when the version is known and older than `major.minor`.
    fn before(&self, major: u32, minor: u32) -> bool {
        self.cluster
            .kubernetes_version
            .as_ref()
            .is_some_and(|version| !version.at_least(major, minor))
    }
}

/// The group that kubeadm makes administrators.
pub const CLUSTER_ADMINS: &str = "kubeadm:cluster-admins";
/// The group that no RBAC rule binds.
pub const MASTERS: &str = "system:masters";

/// From these versions on `kubeadm init` and `upgrade apply` bind the user `kube-apiserver-kubelet-client` to
/// `system:kubelet-api-admin`. A cluster whose configuration says so has been through one of the two.
fn makes_kubelet_client_binding(version: &Version) -> bool {
    match (version.major, version.minor) {
        (1, 35) => version.patch >= 5,
        (1, 36) => version.patch >= 1,
        other => other > (1, 36),
    }
}

/// The extended key usages of a certificate, by kubeadm's table.
pub fn usages(name: CertName) -> Vec<ExtendedUsage> {
    match name {
        CertName::Apiserver | CertName::KubeletServing => vec![ExtendedUsage::ServerAuth],
        // etcd's gRPC gateway dials its own server with the server certificate (etcd#9785).
        CertName::EtcdServer | CertName::EtcdPeer => {
            vec![ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth]
        }
        _ => vec![ExtendedUsage::ClientAuth],
    }
}

fn url(host: &Host, port: u16) -> String {
    match host {
        Host::Dns(name) => format!("https://{name}:{port}"),
        Host::Ip(IpAddr::V4(ip)) => format!("https://{ip}:{port}"),
        Host::Ip(IpAddr::V6(ip)) => format!("https://[{ip}]:{port}"),
    }
}

/// DNS names sorted bytewise and unique, IP addresses unique in the order given, as kubeadm.
#[derive(Default)]
struct SanList {
    dns: BTreeSet<String>,
    ips: Vec<IpAddr>,
}

impl SanList {
    fn dns(&mut self, name: &str) {
        self.dns.insert(name.to_owned());
    }

    fn ip(&mut self, ip: IpAddr) {
        let ip = ip.to_canonical();
        if !self.ips.contains(&ip) {
            self.ips.push(ip);
        }
    }

    fn ips(&mut self, ips: impl IntoIterator<Item = IpAddr>) {
        ips.into_iter().for_each(|ip| self.ip(ip));
    }

    fn extend(&mut self, sans: &[San]) {
        for san in sans {
            match san {
                San::Dns(name) => self.dns(name),
                San::Ip(ip) => self.ip(*ip),
            }
        }
    }

    fn finish(self) -> Sans {
        Sans {
            dns: self.dns.into_iter().collect(),
            ips: self.ips,
        }
    }
}

#[cfg(test)]
mod tests;
