//! The facts of a node that was set up earlier: its name, the address of its API server, its role.
//!
//! Reads the node only, not the cluster, and never fails: an unreadable file is reported and counts as unknown. `identity`
//! compares these facts with the configuration.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::identity::etcd_name;
use crate::http::{self, Url};
use crate::kube::kubeadm::{self, ClusterConfig, Etcd, HostPort, KubeadmRole, NodeName, Resolved};
use crate::kube::manifest::StaticPod;
use crate::kube::names::CertName;
use crate::kube::names::NODE_USER_PREFIX;
use crate::kube::paths::{ETCD_MANIFEST, KUBELET_CONFIGURATION, MANIFESTS_DIR};
use crate::node::role::role_of;
use crate::node::{self, NodeState};
use crate::spec::assess::Observed;
use crate::spec::kubeconfig_path;
use crate::store::NodeRoot;

/// A node that was set up earlier.
pub(super) struct RunningNode {
    pub(super) facts: kubeadm::ExistingNode,
    /// Manifest of kube-apiserver.
    apiserver: Option<StaticPod>,
    /// Manifest of etcd.
    etcd: Option<StaticPod>,
    /// Whether kubeadm has run: a different configuration is then a change.
    is_set_up: bool,
    notes: Vec<String>,
}

impl RunningNode {
    /// Returns `None` for a node that was not set up. `is_described`: files other than the kept one describe the node, with
    /// `described` as its role.
    pub(super) fn read(
        state: &NodeState,
        is_described: bool,
        described: Option<KubeadmRole>,
    ) -> Option<RunningNode> {
        let mut notes = Vec::new();
        let mut manifest = |name: &str| match state.manifest(name) {
            Observed::Present(manifest) => Some(manifest),
            Observed::Absent => None,
            Observed::Empty => {
                notes.push(unparsable_manifest(state, name, "it is empty"));
                None
            }
            Observed::Unreadable(why) => {
                notes.push(unparsable_manifest(state, name, &why));
                None
            }
        };
        let apiserver = manifest("kube-apiserver.yaml");
        let etcd = manifest("etcd.yaml");
        let has_manifest = state.has_apiserver_manifest();
        let kubelet = state.cert(CertName::KubeletConf).found.kubeconfig;
        let controller_manager = state.cert(CertName::ControllerManagerConf).found.kubeconfig;
        let role = role_of(state, &[], described.map(node::role::NodeRole::from));
        let is_member = role == node::role::NodeRole::Etcd && state.exists(ETCD_MANIFEST);
        if !has_manifest && kubelet.is_none() && controller_manager.is_none() && !is_member {
            return None;
        }
        let role = match role {
            node::role::NodeRole::Worker | node::role::NodeRole::Empty => KubeadmRole::Worker,
            node::role::NodeRole::Etcd => KubeadmRole::Etcd,
            // kubeadm writes super-admin.conf on the first node only.
            node::role::NodeRole::ControlPlane
                if state.exists(kubeconfig_path(CertName::SuperAdminConf)) =>
            {
                KubeadmRole::Init
            }
            node::role::NodeRole::ControlPlane => KubeadmRole::Join,
        };
        // nodepki writes kubeconfigs before kubeadm runs. The manifests and the configuration of the kubelet are written by
        // kubeadm.
        let is_set_up = has_manifest || is_member || state.exists(KUBELET_CONFIGURATION);
        let [etcd_certificate, _] = state.layout().pair(CertName::EtcdServer);
        let name = kubelet_name(state)
            .or_else(|| Some(etcd.as_ref()?.flag("name")?.to_owned()))
            .or_else(|| etcd_name(state, &etcd_certificate))
            .and_then(|name| name.parse::<NodeName>().ok());
        // kubeadm and nodepki configure kube-controller-manager with the node's own API server.
        let endpoint = apiserver
            .as_ref()
            .and_then(StaticPod::endpoint)
            .or_else(|| own_endpoint(controller_manager.as_ref()?.server.as_deref()?))
            .or_else(|| etcd_endpoint(etcd.as_ref().filter(|_| is_member)?));
        Some(RunningNode {
            facts: kubeadm::ExistingNode {
                role,
                name,
                endpoint,
                server: kubelet
                    .filter(|_| is_set_up || !is_described)
                    .and_then(|kubelet| kubelet.server)
                    .filter(|url| is_https(url)),
                kubelet_cert_dir: state.kubelet_cert_dir(),
                settled: has_manifest || is_member || !is_described,
            },
            is_set_up,
            apiserver,
            etcd,
            notes,
        })
    }

    /// Returns whether kubeadm has run: a configuration that differs from the node then changes it.
    pub(super) fn is_set_up(&self) -> bool {
        self.is_set_up
    }

    /// Returns the files that could not be read, and the differences from the node's ClusterConfiguration.
    pub(super) fn notes(&self, root: &NodeRoot, resolved: &Resolved) -> Vec<String> {
        let cluster = resolved.cluster.as_ref();
        let elsewhere = cluster.and_then(|cluster| self.served_elsewhere(root, cluster));
        self.notes.iter().cloned().chain(elsewhere).collect()
    }

    /// Returns the message for an address that differs from the one in the manifest of kube-apiserver.
    pub(super) fn address_change(&self, root: &NodeRoot, resolved: &Resolved) -> Option<String> {
        let manifest = self.apiserver.as_ref()?;
        let own = manifest.endpoint()?;
        let node = &resolved.node;
        let wanted = SocketAddr::new(node.advertise_address?, node.bind_port);
        if wanted == own {
            return None;
        }
        let peers = self.etcd_urls();
        let etcd = match (peers.is_empty(), &resolved.cluster) {
            (false, _) => format!(
                " and etcd's own addresses (now {}; etcdctl member update ID --peer-urls=https://{} first, while the old address still works)",
                peers.join(", "),
                SocketAddr::new(wanted.ip(), 2380)
            ),
            (
                true,
                Some(ClusterConfig {
                    etcd: Etcd::Local { .. },
                    ..
                }),
            ) => " and the peer URL of its etcd member (etcdctl member update)".to_owned(),
            _ => String::new(),
        };
        Some(format!(
            "the configuration places this node's API server at {wanted}, but it runs at {own} (according to {}): correct localAPIEndpoint to keep that address; if the address of the node has changed, run again with --accept-address-change, which issues certificates and kubeconfigs for {}. nodepki does not correct the manifests (kubeadm init phase control-plane all){etcd}",
            root.on_this_machine(&manifest.path).display(),
            wanted.ip()
        ))
    }

    /// Returns the message for a local etcd in the ClusterConfiguration of a node whose API server uses another one. Such a
    /// node would get the certificates of an etcd that does not run on it.
    pub(super) fn foreign_etcd(&self, state: &NodeState, resolved: &Resolved) -> Option<String> {
        let manifest = self.apiserver.as_ref()?;
        let servers = manifest.flag("etcd-servers")?;
        let cluster = resolved.cluster.as_ref()?;
        let is_local = |url: &str| Url::parse(url).is_ok_and(|url| http::is_loopback(&url));
        let [certificate, _] = state.layout().pair(CertName::EtcdServer);
        let has_own = state.exists(ETCD_MANIFEST) || state.exists(certificate);
        if has_own
            || matches!(cluster.etcd, Etcd::External { .. })
            || servers.split(',').any(is_local)
        {
            return None;
        }
        let shown = |path: &Path| state.root().on_this_machine(path).display().to_string();
        Some(format!(
            "the ClusterConfiguration has no etcd.external, but this node's API server uses etcd at {servers} (according to {}), and {} does not exist: write etcd.external into the ClusterConfiguration, with --etcd-servers, --etcd-cafile, --etcd-certfile and --etcd-keyfile of that manifest as endpoints, caFile, certFile and keyFile",
            shown(&manifest.path),
            shown(Path::new(ETCD_MANIFEST))
        ))
    }

    /// Returns the flags with the addresses of this node's etcd member, from its manifest.
    fn etcd_urls(&self) -> Vec<String> {
        let flags = ["initial-advertise-peer-urls", "advertise-client-urls"];
        let manifest = self.etcd.iter();
        manifest
            .flat_map(|manifest| {
                flags
                    .iter()
                    .filter_map(|flag| Some(format!("--{flag}={}", manifest.flag(flag)?)))
            })
            .collect()
    }

    /// Returns a note if kube-apiserver reads its certificate from another file than the one that is written.
    fn served_elsewhere(&self, root: &NodeRoot, cluster: &ClusterConfig) -> Option<String> {
        let manifest = self.apiserver.as_ref()?;
        let served = Path::new(manifest.flag("tls-cert-file")?);
        let written = cluster
            .certificates_dir
            .join(format!("{}.crt", CertName::Apiserver.base_name()));
        (served != written).then(|| {
            format!(
                "kube-apiserver serves {} (according to {}), but by the ClusterConfiguration the certificate is written to {}: correct certificatesDir or the manifest",
                root.on_this_machine(served).display(),
                root.on_this_machine(&manifest.path).display(),
                root.on_this_machine(written).display()
            )
        })
    }
}

/// Returns a note if no interface of this machine has the address of its API server. `is_settled` is true for a node whose
/// API server has certificates for the address.
pub(super) fn unowned(address: IpAddr, interfaces: &[IpAddr], is_settled: bool) -> Option<String> {
    (!interfaces.is_empty() && !interfaces.contains(&address)).then(|| {
        let found: Vec<String> = interfaces.iter().map(ToString::to_string).collect();
        let fix = if is_settled {
            "if the address of the node has changed, set localAPIEndpoint.advertiseAddress to the new address and run with --accept-address-change"
        } else {
            "set localAPIEndpoint.advertiseAddress to the one at which other nodes reach it, unless this is the configuration of another machine"
        };
        format!(
            "no interface of this machine has {address}, the address of its API server: its addresses are {}; {fix}",
            found.join(", ")
        )
    })
}

fn unparsable_manifest(state: &NodeState, name: &str, why: &str) -> String {
    let path = state
        .root()
        .on_this_machine(Path::new(MANIFESTS_DIR).join(name));
    format!("{} cannot be parsed: {why}", path.display())
}

/// Returns the node's name in kubelet.conf. kubeadm's `getNodeNameFromKubeletConfig`: the common name of the client
/// certificate, embedded or in a file.
pub(super) fn kubelet_name(state: &NodeState) -> Option<String> {
    let chain = state.cert(CertName::KubeletConf).found.chain;
    let leaf = chain.present()?.leaf();
    let name = leaf.subject().values("CN").next()?;
    name.strip_prefix(NODE_USER_PREFIX).map(str::to_owned)
}

/// Returns the name of the etcd member in its manifest.
pub(super) fn manifest_name(state: &NodeState) -> Option<String> {
    let manifest = state.manifest("etcd.yaml");
    manifest.present()?.flag("name").map(str::to_owned)
}

fn is_https(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| url.scheme() == "https" && url.has_host())
}

fn own_endpoint(url: &str) -> Option<SocketAddr> {
    let authority = url.strip_prefix("https://")?.split('/').next()?;
    let (
        HostPort {
            host: kubeadm::Host::Ip(ip),
            port: Some(port),
        },
        _,
    ) = HostPort::parse(authority).ok()?
    else {
        return None;
    };
    Some(SocketAddr::new(ip, port))
}

/// Returns the address of an etcd member, which kubeadm takes from `localAPIEndpoint`. The port has no meaning here.
fn etcd_endpoint(manifest: &StaticPod) -> Option<SocketAddr> {
    let urls = manifest.flag("initial-advertise-peer-urls")?;
    own_endpoint(urls.split(',').next()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Layout;

    #[test]
    fn keeps_server_of_kubelet_that_was_set_up() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let root = NodeRoot::open(directory.path()).unwrap();
        let server = |is_described| {
            let state = NodeState::new(&root, Layout::default());
            RunningNode::read(&state, is_described, Some(KubeadmRole::Worker))
                .unwrap()
                .facts
                .server
        };
        let kubelet_conf = |server: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {{client-certificate: /p.pem, client-key: /p.pem}}}}]\n"
            );
            write("etc/kubernetes/kubelet.conf", &text);
        };
        let verbatim = ["https://lb.example", "https://lb.example/prod"];
        for url in verbatim {
            kubelet_conf(url);
            assert_eq!(server(false).as_deref(), Some(url));
            assert_eq!(server(true), None, "kubeadm has not run");
        }
        write(
            "var/lib/kubelet/config.yaml",
            "kind: KubeletConfiguration\n",
        );
        for url in verbatim {
            kubelet_conf(url);
            assert_eq!(server(true).as_deref(), Some(url));
        }
        for url in ["http://lb.example", "lb.example:6443", ""] {
            kubelet_conf(url);
            assert_eq!(server(true), None, "{url}");
        }
    }

    #[test]
    fn reports_address_that_no_interface_has() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let interfaces = [ip("192.0.2.11"), ip("fd00::11")];
        assert_eq!(unowned(ip("fd00::11"), &interfaces, false), None);
        assert_eq!(unowned(ip("192.0.2.99"), &[], false), None, "below --root");
        let words = unowned(ip("192.0.2.99"), &interfaces, false).unwrap();
        assert!(!words.contains("--accept-address-change"), "{words}");
        let words = unowned(ip("192.0.2.99"), &interfaces, true).unwrap();
        for part in [
            "192.0.2.99",
            "192.0.2.11, fd00::11",
            "--accept-address-change",
        ] {
            assert!(words.contains(part), "{words}");
        }
    }
}
