//! kubeadm's rules, by which the table of certificates follows from the configuration.
//!
//! The sources are kubeadm's `GetDefaultCertList`, `GetAPIServerAltNames`, `getAltNames` and `getKubeConfigSpecs`. A
//! comment gives the reason for each deliberate difference.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::choices::{
    CLUSTER_ADMINS, Choices, KUBELET_SIGNERS_GROUP, KubeletClientSubject, SYSTEM_MASTERS,
};
use super::layout::Layout;
use super::policy::KeyPolicy;
use super::registered::{NODE_PLACEHOLDER, RegisteredCertificate, RegisteredSan};
use super::table::{
    AuthorityProgress, BundleCopy, BundleSpec, CertFiles, CertSpec, ClientPairSpec, ExternalEtcd,
    KubeletStoreSpec, NodeSpec, PolicyDoubts, RequestedCertificate, ServiceAccountSpec,
};
use crate::kube::kubeadm::{
    ClusterConfig, Etcd, Host, HostPort, KubeadmRole, KubernetesVersion, NodeConfig, San,
};
use crate::kube::names::{self, Authority, CertName, NodePath};
use crate::x509::{ExtendedUsage, Profile, Sans, Subject};

/// Computes the desired state of a node.
pub fn node_spec(
    cluster: &ClusterConfig,
    node: &NodeConfig,
    policy: &KeyPolicy,
    choices: &Choices,
) -> NodeSpec {
    let inputs = RuleInputs {
        cluster,
        node,
        policy,
        choices,
    };
    let (omitted, held): (Vec<CertName>, Vec<CertName>) = CertName::ALL
        .into_iter()
        .filter(|name| inputs.is_applicable(*name))
        .partition(|name| inputs.omits(*name));
    let registered = choices.registered.iter();
    let registered = registered.filter(|one| one.is_on(node.role));
    let certs: Vec<CertSpec> = held
        .into_iter()
        .map(|name| inputs.cert(name))
        .chain(registered.map(|one| inputs.registered(one)))
        .collect();
    let bundles = inputs.bundles();
    let mut notes = inputs.notes(&certs);
    notes.extend(inputs.notes_on_copies(&bundles));
    NodeSpec {
        layout: inputs.layout(),
        ignore_preflight_errors: inputs.ignore_preflight_errors(&certs),
        notes,
        certs,
        bundles,
        omitted,
        service_account: inputs.service_account(),
        external_etcd: inputs.external_etcd(),
        policy: policy.clone(),
        policy_doubts: PolicyDoubts::default(),
    }
}

/// The certificates of an etcd member without a control plane (kubeadm's guide "Set up a High Availability etcd Cluster").
const ETCD_MEMBER: [CertName; 3] = [
    CertName::EtcdServer,
    CertName::EtcdPeer,
    CertName::EtcdHealthcheckClient,
];

struct RuleInputs<'a> {
    cluster: &'a ClusterConfig,
    node: &'a NodeConfig,
    policy: &'a KeyPolicy,
    choices: &'a Choices,
}

impl RuleInputs<'_> {
    fn notes(&self, certs: &[CertSpec]) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(address) = self.missing_second_service_address() {
            notes.push(format!(
                "apiserver contains only the service address of the first IP family, as with kubeadm; add {address} to extraSANs.apiserver if clients use the second"
            ));
        }
        if self.choices.external_etcd_client
            && self.node.role.has_control_plane()
            && !self.issues_etcd_client()
        {
            notes.push("certificates.externalEtcdClient has no effect: the ClusterConfiguration has no etcd.external with caFile, certFile and keyFile".to_owned());
        }
        let cert = |name| certs.iter().find(|spec| spec.name() == name);
        if let Some(spec) = cert(CertName::FrontProxyClient)
            && self.common_name(spec.name()).is_some()
        {
            notes.push(format!(
                "commonNames changes front-proxy-client to {0}: --requestheader-allowed-names of kube-apiserver must contain {0} on every control-plane node (if the list is empty, every client of that authority can impersonate any user)",
                spec.requested.profile.subject.common_name
            ));
        }
        if let Some(spec) = cert(CertName::KubeletServing)
            && spec.requested.profile.sans.ips.is_empty()
        {
            notes.push("kubelet-serving contains no IP address, but kube-apiserver connects to kubelets by IP address: set node-ip in nodeRegistration.kubeletExtraArgs, or extraSANs.kubelet-serving".to_owned());
        }
        notes
    }

    /// Returns the API server's address in the second service network, if there is one and its certificate omits it.
    fn missing_second_service_address(&self) -> Option<IpAddr> {
        let [_, second] = self.cluster.service_subnets.as_slice() else {
            return None;
        };
        let address = second.nth(1)?;
        let san = San::Ip(address);
        let is_named = self.choices.apiserver_sans.contains(&san)
            || self.cluster.apiserver_cert_sans.contains(&san);
        (self.node.role.has_control_plane() && !is_named).then_some(address)
    }

    fn omits(&self, name: CertName) -> bool {
        self.choices.omit.contains(&name) && self.is_omittable(name)
    }

    /// No control-plane component uses these two. `kubeadm init` requires admin.conf (`initData.Client`).
    fn is_omittable(&self, name: CertName) -> bool {
        match name {
            CertName::SuperAdminConf => true,
            CertName::AdminConf => self.node.role == KubeadmRole::Join,
            _ => false,
        }
    }

    /// Returns true if the certificate belongs on this node, whether or not it is omitted.
    fn is_applicable(&self, name: CertName) -> bool {
        match (name, self.node.role) {
            // The kubelet of an etcd member runs its static pod without an API server.
            (name, KubeadmRole::Etcd) => ETCD_MEMBER.contains(&name),
            // `kubeadm init` requires it (`ValidateKubeconfigsForExternalCA`), and nothing can sign a kubelet's request
            // before the API server runs.
            (CertName::KubeletConf, role) => {
                !self.choices.kubelet_bootstraps_itself || role == KubeadmRole::Init
            }
            (CertName::KubeletServing, _) => self.choices.kubelet_serving,
            (CertName::NodepkiConf, role) => {
                role != KubeadmRole::Worker && self.choices.signs_for_kubelets
            }
            (_, KubeadmRole::Worker) => false,
            // kubeadm creates it since 1.29, and never in `kubeadm join`.
            (CertName::SuperAdminConf, role) => role == KubeadmRole::Init && !self.before(1, 29),
            (CertName::ApiserverEtcdClient, _) => {
                self.etcd_is_stacked() || self.issues_etcd_client()
            }
            (name, _) if name.authority() == Authority::EtcdCa => self.etcd_is_stacked(),
            _ => true,
        }
    }

    fn ignore_preflight_errors(&self, certs: &[CertSpec]) -> Vec<String> {
        let join = self.node.join.as_ref();
        if matches!(self.node.role, KubeadmRole::Init | KubeadmRole::Etcd)
            || join.is_some_and(|join| join.ignores_all_errors)
        {
            return Vec::new();
        }
        let kubelet = certs
            .iter()
            .filter(|spec| spec.name() == CertName::KubeletConf)
            .flat_map(|spec| spec.output.paths())
            .cloned();
        // Only the join of a worker checks the CA certificate.
        let bundles = self
            .bundles()
            .into_iter()
            .filter(|_| self.node.role == KubeadmRole::Worker)
            .map(|bundle| bundle.path)
            .filter(|path| join.is_some_and(|join| join.ca_cert_path == **path));
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

    fn cert(&self, name: CertName) -> CertSpec {
        let mut subjects = self.subjects(name).into_iter();
        // `subjects` is never empty.
        let subject = subjects
            .next()
            .unwrap_or_else(|| Subject::new(name.as_str(), &[]));
        CertSpec {
            output: self.output(name, &subject.common_name),
            requested: self.requested(name, subject, self.sans(name), usages(name)),
            other_subjects: subjects.collect(),
            authority_change: AuthorityProgress::Unchanged,
            on_policy_change: self.choices.on_policy_change,
            is_omittable: self.is_omittable(name),
            description: None,
        }
    }

    /// Returns the spec of a registered certificate.
    fn registered(&self, one: &RegisteredCertificate) -> CertSpec {
        let name = CertName::Registered(one.name);
        let subject = Subject {
            common_name: self.filled(&one.common_name, name),
            organizations: one.organizations.clone(),
        };
        let mut sans = SanList::default();
        for san in &one.sans {
            match san {
                RegisteredSan::Addresses => sans.ips(match self.node.advertise_address {
                    Some(address) => vec![address],
                    None => self.node.kubelet_addresses.clone(),
                }),
                RegisteredSan::OfNode(template) => {
                    sans.dns(&template.replace(NODE_PLACEHOLDER, self.node.name.as_str()));
                }
                RegisteredSan::Fixed(san) => sans.extend(std::slice::from_ref(san)),
            }
        }
        CertSpec {
            output: self.output(name, &subject.common_name),
            requested: self.requested(name, subject, sans.finish(), one.usages.clone()),
            other_subjects: Vec::new(),
            authority_change: AuthorityProgress::Unchanged,
            on_policy_change: self.choices.on_policy_change,
            is_omittable: false,
            description: one.description.clone(),
        }
    }

    fn requested(
        &self,
        name: CertName,
        subject: Subject,
        sans: Sans,
        usages: Vec<ExtendedUsage>,
    ) -> RequestedCertificate {
        let authority = name.authority();
        let tolerance = self.choices.tolerances.get(&authority);
        let mut tolerance = tolerance.copied().unwrap_or_default();
        if matches!(name, CertName::Registered(_)) {
            // Components other than those of Kubernetes may read any attribute.
            tolerance.unread_attributes = false;
        }
        RequestedCertificate {
            name,
            authority,
            profile: Profile {
                subject,
                sans,
                usages,
                key: self.policy.key_for(name),
                lifetime: self
                    .policy
                    .lifetime_of(name)
                    .unwrap_or(self.cluster.certificate_validity),
            },
            tolerance,
        }
    }

    /// Returns the desired subject, followed by those of other kubeadm versions.
    fn subjects(&self, name: CertName) -> Vec<Subject> {
        let one = |common_name: &str, organization: Option<&str>| {
            Subject::new(common_name, organization.as_slice())
        };
        if let Some(chosen) = self.common_name(name) {
            return vec![one(&chosen, None)];
        }
        let node_name = self.node.name.as_str();
        match name {
            CertName::Apiserver => vec![one("kube-apiserver", None)],
            CertName::ApiserverKubeletClient => {
                let desired = self.kubelet_client_organization();
                let others = [None, Some(CLUSTER_ADMINS), Some(SYSTEM_MASTERS)];
                let others = others.into_iter().filter(|other| *other != desired);
                [desired]
                    .into_iter()
                    .chain(others)
                    .map(|organization| one("kube-apiserver-kubelet-client", organization))
                    .collect()
            }
            CertName::FrontProxyClient => vec![one("front-proxy-client", None)],
            CertName::EtcdServer | CertName::EtcdPeer => vec![one(node_name, None)],
            // The etcd clients were in system:masters before 1.29.
            CertName::EtcdHealthcheckClient => {
                vec![
                    one("kube-etcd-healthcheck-client", None),
                    one("kube-etcd-healthcheck-client", Some(SYSTEM_MASTERS)),
                ]
            }
            CertName::ApiserverEtcdClient => {
                vec![
                    one("kube-apiserver-etcd-client", None),
                    one("kube-apiserver-etcd-client", Some(SYSTEM_MASTERS)),
                ]
            }
            // super-admin.conf, and the group kubeadm:cluster-admins for admin.conf, exist since 1.29.
            CertName::AdminConf if self.before(1, 29) => {
                vec![one("kubernetes-admin", Some(SYSTEM_MASTERS))]
            }
            CertName::AdminConf => {
                vec![
                    one("kubernetes-admin", Some(CLUSTER_ADMINS)),
                    one("kubernetes-admin", Some(SYSTEM_MASTERS)),
                ]
            }
            CertName::SuperAdminConf => vec![one("kubernetes-super-admin", Some(SYSTEM_MASTERS))],
            // The API server identifies a node by user name and group together (`pkg/auth/nodeidentifier/default.go`).
            CertName::KubeletConf | CertName::KubeletServing => vec![one(
                &format!("system:node:{node_name}"),
                Some("system:nodes"),
            )],
            CertName::ControllerManagerConf => vec![one("system:kube-controller-manager", None)],
            CertName::SchedulerConf => vec![one("system:kube-scheduler", None)],
            CertName::NodepkiConf => vec![one(
                &format!("nodepki:{node_name}"),
                Some(KUBELET_SIGNERS_GROUP),
            )],
            // No certificate of the node.
            CertName::PodClient => Vec::new(),
            CertName::Registered(name) => vec![one(name.as_str(), None)],
        }
    }

    /// Returns the configured common name, if kubeadm's may be replaced.
    fn common_name(&self, name: CertName) -> Option<String> {
        let chosen = self.choices.common_names.get(&name)?;
        name.has_free_common_name()
            .then(|| self.filled(chosen, name))
    }

    fn filled(&self, text: &str, name: CertName) -> String {
        let node = self.node.name.as_str();
        names::fill_placeholders(text, name, node, &self.cluster.cluster_name)
    }

    fn kubelet_client_organization(&self) -> Option<&'static str> {
        match self.choices.kubelet_client_subject {
            KubeletClientSubject::None => None,
            KubeletClientSubject::ClusterAdmins => Some(CLUSTER_ADMINS),
            KubeletClientSubject::Masters => Some(SYSTEM_MASTERS),
            KubeletClientSubject::Auto => match &self.cluster.kubernetes_version {
                Some(version) if creates_kubelet_client_binding(version) => None,
                _ if self.before(1, 29) => Some(SYSTEM_MASTERS),
                _ => Some(CLUSTER_ADMINS),
            },
        }
    }

    fn sans(&self, name: CertName) -> Sans {
        match name {
            CertName::Apiserver => self.apiserver_sans(),
            CertName::EtcdServer | CertName::EtcdPeer => self.etcd_sans(name),
            CertName::KubeletServing => self.kubelet_serving_sans(),
            _ => SanList::default(),
        }
        .finish()
    }

    /// kubeadm's `GetAPIServerAltNames`.
    fn apiserver_sans(&self) -> SanList {
        let mut sans = SanList::default();
        sans.dns(self.node.name.as_str());
        for service in ["kubernetes", "kubernetes.default", "kubernetes.default.svc"] {
            sans.dns(service);
        }
        if !self.cluster.dns_domain.is_empty() {
            sans.dns(&format!(
                "kubernetes.default.svc.{}",
                self.cluster.dns_domain
            ));
        }
        sans.ips(self.service_address());
        sans.ips(self.node.advertise_address);
        let endpoint = self.cluster.control_plane_endpoint.as_ref();
        match endpoint.map(|endpoint| &endpoint.host) {
            Some(Host::Dns(host)) => sans.dns(host),
            Some(Host::Ip(ip)) => sans.ip(*ip),
            None => {}
        }
        sans.extend(&self.cluster.apiserver_cert_sans);
        sans.extend(&self.choices.apiserver_sans);
        sans
    }

    /// kubeadm's `getAltNames`, for the server and the peer certificate.
    fn etcd_sans(&self, name: CertName) -> SanList {
        let mut sans = SanList::default();
        sans.dns(self.node.name.as_str());
        sans.dns("localhost");
        sans.ips(self.node.advertise_address);
        sans.ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        sans.ip(IpAddr::V6(Ipv6Addr::LOCALHOST));
        if let Etcd::Local {
            server_cert_sans,
            peer_cert_sans,
        } = &self.cluster.etcd
        {
            if name == CertName::EtcdServer {
                sans.extend(server_cert_sans);
                sans.extend(&self.choices.etcd_server_sans);
            } else {
                sans.extend(peer_cert_sans);
                sans.extend(&self.choices.etcd_peer_sans);
            }
        }
        sans
    }

    /// Returns the names and addresses of the Node object, which the kubelet would request itself.
    fn kubelet_serving_sans(&self) -> SanList {
        let mut sans = SanList::default();
        let host = self.node.hostname_override.as_deref();
        sans.dns(host.unwrap_or(self.node.name.as_str()));
        sans.dns(self.node.name.as_str());
        sans.ips(self.node.kubelet_addresses.iter().copied());
        sans.extend(&self.choices.kubelet_serving_sans);
        sans
    }

    /// Returns the first address of the first service network. Like kubeadm, it ignores the second network.
    fn service_address(&self) -> Option<IpAddr> {
        self.cluster.service_subnets.first()?.nth(1)
    }

    fn output(&self, name: CertName, user: &str) -> CertFiles {
        let layout = self.layout();
        let [certificate, key] = layout.pair(name).map(NodePath::from);
        if !name.is_kubeconfig() {
            let mut registered = self.choices.registered.iter();
            let registered = registered.find(|one| CertName::Registered(one.name) == name);
            return CertFiles::Pair {
                certificate,
                key,
                group: registered.and_then(|one| one.group),
            };
        }
        CertFiles::Kubeconfig {
            path: certificate,
            server: self.server(name),
            cluster: self.cluster.cluster_name.clone(),
            user: user.to_owned(),
            store: (name == CertName::KubeletConf).then(|| KubeletStoreSpec {
                dir: layout.kubelet_pki().into(),
                layout: self.choices.kubelet_layout,
            }),
            pair: layout.client_pair(name).map(|pair| {
                let [certificate, key] = pair.map(NodePath::from);
                ClientPairSpec {
                    certificate,
                    key,
                    is_named: self.choices.credentials_by_file.contains(&name),
                }
            }),
        }
    }

    fn layout(&self) -> Layout {
        let layout = Layout::new(
            Some(self.cluster.certificates_dir.clone()),
            self.node.kubelet_cert_dir.clone(),
        )
        .with_registered(&self.choices.registered);
        if self.choices.external_etcd_client && self.node.role.has_control_plane() {
            layout.with_external_etcd(&self.cluster.etcd)
        } else {
            layout
        }
    }

    /// Returns the URL of the API server for a kubeconfig.
    fn server(&self, name: CertName) -> String {
        let prefers_local = match name {
            CertName::ControllerManagerConf | CertName::SchedulerConf | CertName::NodepkiConf => {
                true
            }
            // `kubeadm certs generate-csr` still writes the shared endpoint; this follows `kubeadm init` and `kubeadm join`,
            // which write the local one.
            CertName::KubeletConf => {
                self.node.role.has_control_plane() && self.has_kubelet_local_mode()
            }
            _ => false,
        };
        let local_endpoint = self
            .node
            .advertise_address
            .map(|ip| url(&Host::Ip(ip), self.node.bind_port));
        let worker = Some(self.node).filter(|node| node.role == KubeadmRole::Worker);
        let shared = || {
            let joined = worker.and_then(|node| node.join_endpoint.as_ref());
            let HostPort { host, port } =
                joined.or(self.cluster.control_plane_endpoint.as_ref())?;
            Some(url(host, port.unwrap_or(self.node.bind_port)))
        };
        let shared = worker.and_then(|node| node.server.clone()).or_else(shared);
        let server = if prefers_local {
            local_endpoint.or(shared)
        } else {
            shared.or(local_endpoint)
        };
        server.unwrap_or_default()
    }

    /// Returns the value of kubeadm's gate ControlPlaneKubeletLocalMode: on by default since 1.33, and always since 1.35.
    fn has_kubelet_local_mode(&self) -> bool {
        let has_gate = self.cluster.kubernetes_version.is_none() || self.before(1, 35);
        let written = self.cluster.kubelet_local_mode.filter(|_| has_gate);
        written.unwrap_or(!self.before(1, 33))
    }

    fn bundles(&self) -> Vec<BundleSpec> {
        let layout = self.layout();
        Authority::ALL
            .into_iter()
            .filter(|authority| match authority {
                Authority::Ca => self.node.role != KubeadmRole::Etcd,
                Authority::FrontProxyCa => self.node.role.has_control_plane(),
                Authority::EtcdCa => {
                    self.node.role != KubeadmRole::Worker
                        && (self.etcd_is_stacked() || self.issues_etcd_client())
                }
            })
            .map(|authority| {
                let [path, key_path] = layout.authority(authority).map(NodePath::from);
                BundleSpec {
                    authority,
                    path,
                    key_path,
                    crl_path: layout.revocation_lists(authority).into(),
                    copies: self.bundle_copies(authority),
                    key: self.policy.key_for_authority(authority),
                }
            })
            .collect()
    }

    /// Returns the copies of a bundle that the registered certificates of this node require.
    fn bundle_copies(&self, authority: Authority) -> Vec<BundleCopy> {
        let registered = self.choices.registered.iter();
        registered
            .filter(|one| one.is_on(self.node.role))
            .filter_map(|one| {
                let path = one.ca_files.get(&authority)?.as_path().into();
                let of = CertName::Registered(one.name);
                Some(BundleCopy { of, path })
            })
            .collect()
    }

    /// Returns a note for each copy of a bundle that this node does not have.
    fn notes_on_copies(&self, bundles: &[BundleSpec]) -> Vec<String> {
        let registered = self.choices.registered.iter();
        let registered = registered.filter(|one| one.is_on(self.node.role));
        let copies = registered.flat_map(|one| one.ca_files.iter().map(move |copy| (one, copy)));
        copies
            .filter(|(_, (authority, _))| bundles.iter().all(|known| known.authority != **authority))
            .map(|(one, (authority, path))| {
                format!(
                    "certificates.registered.{}.caFiles.{authority}: this node has no CA certificate of {authority}, so that {} is not written (remove the entry, or write the file with the tool that provides that CA)",
                    one.name,
                    path.display()
                )
            })
            .collect()
    }

    fn service_account(&self) -> Option<ServiceAccountSpec> {
        let [private, public] = self.layout().service_account().map(NodePath::from);
        self.node
            .role
            .has_control_plane()
            .then(|| ServiceAccountSpec {
                private,
                public,
                key: self.policy.key_for_service_account(),
                may_make: self.node.role == KubeadmRole::Init,
            })
    }

    fn external_etcd(&self) -> Option<ExternalEtcd> {
        match &self.cluster.etcd {
            Etcd::External {
                ca_file,
                cert_file,
                key_file,
                ..
            } if self.node.role.has_control_plane() && !self.issues_etcd_client() => {
                Some(ExternalEtcd {
                    authority: ca_file.clone().map(NodePath::from),
                    certificate: cert_file.clone().map(NodePath::from),
                    key: key_file.clone().map(NodePath::from),
                })
            }
            _ => None,
        }
    }

    /// Returns whether the node issues its own client certificate for an external etcd.
    fn issues_etcd_client(&self) -> bool {
        self.layout().has_external_etcd()
    }

    fn etcd_is_stacked(&self) -> bool {
        matches!(self.cluster.etcd, Etcd::Local { .. })
    }

    /// Returns true if the version is known and older than `major.minor`.
    fn before(&self, major: u32, minor: u32) -> bool {
        self.cluster
            .kubernetes_version
            .as_ref()
            .is_some_and(|version| !version.at_least(major, minor))
    }
}

/// Returns true for the versions whose `kubeadm init` and `upgrade apply` bind the user `kube-apiserver-kubelet-client` to
/// `system:kubelet-api-admin`. One of the two commands has written the version into the cluster's configuration, so the
/// binding exists.
fn creates_kubelet_client_binding(version: &KubernetesVersion) -> bool {
    match (version.major, version.minor) {
        (1, 35) => version.patch >= 5,
        (1, 36) => version.patch >= 1,
        other => other > (1, 36),
    }
}

/// Returns the extended key usages of a certificate, by kubeadm's table. A registered certificate may have more.
pub fn usages(name: CertName) -> Vec<ExtendedUsage> {
    match name {
        CertName::Apiserver | CertName::KubeletServing => vec![ExtendedUsage::ServerAuth],
        // etcd's gRPC gateway connects to its own server with the server certificate (etcd#9785).
        CertName::EtcdServer | CertName::EtcdPeer => {
            vec![ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth]
        }
        CertName::Registered(name) if !name.is_client() => vec![ExtendedUsage::ServerAuth],
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

/// Subject alternative names in kubeadm's order: unique DNS names sorted bytewise, unique IP addresses in the order given.
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
