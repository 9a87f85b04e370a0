//! What a node that was set up before says of itself: its name, the address of its API server, its role.
//!
//! Reads the node only, no cluster, and never fails: what cannot be read is said, and counts as unknown. Its identity is
//! compared with the configuration in `identity`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::identity::etcd_name;
use crate::kube::kubeadm::{self, Cluster, Endpoint, Etcd, NodeName, Resolved, Role};
use crate::kube::kubeconfig::{Current, Kubeconfig};
use crate::kube::manifest::{MANIFESTS, Manifest};
use crate::kube::names::CertName;
use crate::spec::KUBECONFIG_DIR;
use crate::store::Root;
use crate::x509::Chain;

/// Before the node's name in the common name of kubelet.conf's certificate.
const NODE_USER: &str = "system:node:";
/// kubeadm's manifest of etcd.
pub(super) const ETCD_MANIFEST: &str = "/etc/kubernetes/manifests/etcd.yaml";
/// kubeadm's place for etcd's certificate.
const ETCD_CERTIFICATE: &str = "/etc/kubernetes/pki/etcd/server.crt";
/// Where `kubeadm init` and `join` put the kubelet's configuration.
const KUBELET_CONFIGURATION: &str = "/var/lib/kubelet/config.yaml";

/// A node that was set up before.
pub(super) struct Running {
    pub(super) facts: kubeadm::Running,
    /// Of kube-apiserver.
    apiserver: Option<Manifest>,
    etcd: Option<Manifest>,
    /// kubeadm has run here: what the configuration says otherwise is a change.
    is_set_up: bool,
    notes: Vec<String>,
}

impl Running {
    /// `None` on a node that nobody has set up. `is_described`: files other than the kept one describe the node.
    pub(super) fn read(root: &Root, is_described: bool) -> Option<Running> {
        let mut notes = Vec::new();
        let mut manifest = |name: &str| {
            let path = Path::new(MANIFESTS).join(name);
            let content = root.read(&path).map_err(|error| error.to_string());
            let parsed = content.and_then(|content| {
                let parse =
                    |content: crate::store::Content| Manifest::parse(path.clone(), &content.bytes);
                content.map(parse).transpose()
            });
            parsed.unwrap_or_else(|why| {
                let path = root.on_this_machine(&path);
                notes.push(format!("{} is not understood: {why}", path.display()));
                None
            })
        };
        let apiserver = manifest("kube-apiserver.yaml");
        let etcd = manifest("etcd.yaml");
        let stands = |path: &Path| matches!(root.metadata(path), Ok(Some(_)));
        let has_manifest = stands(&Path::new(MANIFESTS).join("kube-apiserver.yaml"));
        let kubelet = kubeconfig(root, CertName::KubeletConf);
        let controller_manager = kubeconfig(root, CertName::ControllerManagerConf);
        let super_admin = Path::new(KUBECONFIG_DIR).join(CertName::SuperAdminConf.base_name());
        let role = match (has_manifest || controller_manager.is_some(), &kubelet) {
            // What only the first node of a cluster is given.
            (true, _) if stands(&super_admin) => Role::Init,
            (true, _) => Role::Join,
            (false, Some(_)) => Role::Worker,
            (false, None) => return None,
        };
        let name = kubelet_name(root)
            .map(|(name, _)| name)
            .or_else(|| Some(etcd.as_ref()?.flag("name")?.to_owned()))
            .or_else(|| etcd_name(root, Path::new(ETCD_CERTIFICATE)))
            .and_then(|name| name.parse::<NodeName>().ok());
        // kubeadm, like this program, has kube-controller-manager talk to the node's own API server.
        let endpoint = apiserver
            .as_ref()
            .and_then(Manifest::endpoint)
            .or_else(|| controller_manager.as_ref().and_then(own_endpoint));
        Some(Running {
            facts: kubeadm::Running {
                role,
                name,
                endpoint,
                server: kubelet.as_ref().and_then(server),
                settled: has_manifest || !is_described,
            },
            is_set_up: has_manifest || stands(Path::new(KUBELET_CONFIGURATION)),
            apiserver,
            etcd,
            notes,
        })
    }

    /// True once kubeadm has run: a configuration that differs from the node changes it.
    pub(super) fn is_set_up(&self) -> bool {
        self.is_set_up
    }

    /// What could not be read, and where the node differs from its ClusterConfiguration.
    pub(super) fn notes(&self, root: &Root, resolved: &Resolved) -> Vec<String> {
        let cluster = resolved.cluster.as_ref();
        let elsewhere = cluster.and_then(|cluster| self.served_elsewhere(root, cluster));
        self.notes.iter().cloned().chain(elsewhere).collect()
    }

    /// The address of the configuration, if it is not the one in the manifest of kube-apiserver, in words.
    pub(super) fn address_change(&self, root: &Root, resolved: &Resolved) -> Option<String> {
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
                Some(Cluster {
                    etcd: Etcd::Local { .. },
                    ..
                }),
            ) => " and the peer URL of its etcd member (etcdctl member update)".to_owned(),
            _ => String::new(),
        };
        Some(format!(
            "the configuration has this node's API server at {wanted}, and it runs at {own} (so says {}): correct localAPIEndpoint to keep it there; if the node has really moved, run again with --accept-address-change, which has certificates and kubeconfigs made for {}. Certificates do not repair the manifests (kubeadm init phase control-plane all){etcd}",
            root.on_this_machine(&manifest.path).display(),
            wanted.ip()
        ))
    }

    /// Where the member of this node is reached, by its manifest.
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

    /// The API server reads its certificate from another place than the one that is written.
    fn served_elsewhere(&self, root: &Root, cluster: &Cluster) -> Option<String> {
        let manifest = self.apiserver.as_ref()?;
        let served = Path::new(manifest.flag("tls-cert-file")?);
        let written = cluster
            .certificates_dir
            .join(format!("{}.crt", CertName::Apiserver.base_name()));
        (served != written).then(|| {
            format!(
                "kube-apiserver serves {} (so says {}), and the ClusterConfiguration has the certificate written to {}: correct certificatesDir, or the manifest",
                root.on_this_machine(served).display(),
                root.on_this_machine(&manifest.path).display(),
                root.on_this_machine(written).display()
            )
        })
    }
}

/// The address that no interface of this machine has, in words.
pub(super) fn unowned(address: IpAddr, interfaces: &[IpAddr]) -> Option<String> {
    (!interfaces.is_empty() && !interfaces.contains(&address)).then(|| {
        let found: Vec<String> = interfaces.iter().map(ToString::to_string).collect();
        format!(
            "no interface of this machine has {address}, the address of its API server: it has {}; if the node has moved, set localAPIEndpoint.advertiseAddress to the new address and run with --accept-address-change",
            found.join(", ")
        )
    })
}

fn kubeconfig(root: &Root, name: CertName) -> Option<Current> {
    let path = Path::new(KUBECONFIG_DIR).join(name.base_name());
    let content = root.read(path).ok().flatten()?;
    let text = std::str::from_utf8(&content.bytes).ok()?;
    Kubeconfig::parse(text).ok()?.current().ok()
}

/// Returns the node's name in kubelet.conf, and the file. kubeadm's `getNodeNameFromKubeletConfig`: the common name of
/// the client certificate, embedded or in a file.
pub(super) fn kubelet_name(root: &Root) -> Option<(String, PathBuf)> {
    let current = kubeconfig(root, CertName::KubeletConf)?;
    let path = Path::new(KUBECONFIG_DIR).join(CertName::KubeletConf.base_name());
    let pem = match (&current.certificate, &current.certificate_file) {
        (Some(pem), _) => pem.clone(),
        (None, Some(file)) => {
            // A relative path is relative to the kubeconfig (client-go, `ResolveLocalPaths`).
            let file = Path::new(KUBECONFIG_DIR).join(file);
            root.read(file).ok().flatten()?.bytes.to_vec()
        }
        (None, None) => return None,
    };
    let name = common_name(&pem)?;
    Some((name.strip_prefix(NODE_USER)?.to_owned(), path))
}

/// Returns the name of the etcd member in its manifest.
pub(super) fn manifest_name(root: &Root) -> Option<String> {
    let content = root.read(ETCD_MANIFEST).ok().flatten()?;
    let manifest = Manifest::parse(ETCD_MANIFEST.into(), &content.bytes).ok()?;
    manifest.flag("name").map(str::to_owned)
}

fn common_name(pem: &[u8]) -> Option<String> {
    let chain = Chain::from_pem(pem).ok()?;
    let name = chain.leaf().subject().values("CN").next();
    name.map(str::to_owned)
}

fn server(current: &Current) -> Option<Endpoint> {
    let rest = current.server.as_ref()?.strip_prefix("https://")?;
    let authority = rest.split('/').next()?;
    Endpoint::parse(authority)
        .ok()
        .map(|(endpoint, _)| endpoint)
}

fn own_endpoint(current: &Current) -> Option<SocketAddr> {
    let Endpoint {
        host: kubeadm::Host::Ip(ip),
        port: Some(port),
    } = server(current)?
    else {
        return None;
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_no_interface_has_is_told_and_nothing_where_none_is_known() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let interfaces = [ip("192.0.2.11"), ip("fd00::11")];
        assert_eq!(unowned(ip("fd00::11"), &interfaces), None);
        assert_eq!(unowned(ip("192.0.2.99"), &[]), None, "below --root");
        let words = unowned(ip("192.0.2.99"), &interfaces).unwrap();
        for part in [
            "192.0.2.99",
            "192.0.2.11, fd00::11",
            "--accept-address-change",
        ] {
            assert!(words.contains(part), "{words}");
        }
    }
}
