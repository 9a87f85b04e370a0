//! What a node that was set up before says of itself: its name, the address of its API server, its role.
//!
//! Reads the node only, no cluster, and never fails: what cannot be read is said, and counts as unknown. It is held
//! against the configuration here too; what the two are at odds over is put in words, and is for a person to settle.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::agent::{ExitCode, Failure};
use crate::kubeadm::{self, Cluster, Endpoint, Etcd, NodeName, Resolved, Role};
use crate::kubeconfig::{Current, Kubeconfig};
use crate::manifest::{MANIFESTS, Manifest};
use crate::names::CertName;
use crate::plan::KUBECONFIG_DIR;
use crate::store::Root;
use crate::x509::Chain;

/// Before the node's name in the common name of kubelet.conf's certificate.
const NODE_USER: &str = "system:node:";
/// kubeadm's place for etcd's certificate.
const ETCD_CERTIFICATE: &str = "/etc/kubernetes/pki/etcd/server.crt";
/// Where `kubeadm init` and `join` put the kubelet's configuration.
const KUBELET_CONFIGURATION: &str = "/var/lib/kubelet/config.yaml";

/// What is done when the configuration says another address than the node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressChange {
    /// Nothing: the run is refused.
    #[default]
    Refuse,
    /// What the configuration says, since a person has confirmed it.
    Accept,
    /// It is told, in a command that changes nothing.
    Show,
}

/// A node that was set up before.
pub(super) struct Running {
    pub(super) facts: kubeadm::Running,
    /// Of kube-apiserver.
    apiserver: Option<Manifest>,
    etcd: Option<Manifest>,
    name_from: String,
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
        let named = |(name, from): (String, PathBuf)| {
            let name: NodeName = name.parse().ok()?;
            Some((name, root.on_this_machine(from).display().to_string()))
        };
        let name = kubelet_name(root, kubelet.as_ref())
            .and_then(named)
            .or_else(|| {
                let manifest = etcd.as_ref()?;
                named((manifest.flag("name")?.to_owned(), manifest.path.clone()))
            })
            .or_else(|| etcd_name(root).and_then(named));
        // kubeadm, like this program, has kube-controller-manager talk to the node's own API server.
        let endpoint = apiserver
            .as_ref()
            .and_then(Manifest::endpoint)
            .or_else(|| controller_manager.as_ref().and_then(own_endpoint));
        let (name, name_from) = name.unzip();
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
            name_from: name_from.unwrap_or_default(),
            notes,
        })
    }

    /// Holds what was resolved against the node as it runs. What comes back deserves to be known.
    ///
    /// # Errors
    /// Another name or, unless that is to be accepted or only shown, another address: 65.
    pub(super) fn compare(
        &self,
        root: &Root,
        resolved: &Resolved,
        change: AddressChange,
    ) -> Result<Vec<String>, Failure> {
        let mut notes = self.notes.clone();
        let mut refusals = Vec::new();
        for (words, may_be_accepted) in self
            .name_change(resolved)
            .map(|words| (words, false))
            .into_iter()
            .chain(
                self.address_change(root, resolved)
                    .map(|words| (words, true)),
            )
        {
            match change {
                AddressChange::Show => notes.push(words),
                AddressChange::Accept if may_be_accepted => notes.push(words),
                _ => refusals.push(words),
            }
        }
        if !refusals.is_empty() {
            return Err(Failure {
                code: ExitCode::Refused,
                messages: refusals,
            });
        }
        if let Some(cluster) = &resolved.cluster {
            notes.extend(self.served_elsewhere(root, cluster));
        }
        Ok(notes)
    }

    fn name_change(&self, resolved: &Resolved) -> Option<String> {
        let (own, wanted) = (self.facts.name.as_ref()?, &resolved.node.name);
        (self.is_set_up && own != wanted).then(|| {
            format!(
                "the configuration calls this node {wanted}, and it runs as {own} (so says {}): its Node object, its kubelet's permissions and its etcd member go by that name, and certificates alone do not rename it; set nodeName: {own} (or nodeRegistration.name) to keep it, or take the node out of the cluster (kubectl delete node {own}, kubeadm reset) and have it join again as {wanted}",
                self.name_from
            )
        })
    }

    fn address_change(&self, root: &Root, resolved: &Resolved) -> Option<String> {
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
                served.display(),
                root.on_this_machine(&manifest.path).display(),
                written.display()
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

/// kubeadm's `getNodeNameFromKubeletConfig`: the common name of the client certificate, embedded or in a file.
fn kubelet_name(root: &Root, current: Option<&Current>) -> Option<(String, PathBuf)> {
    let current = current?;
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

fn etcd_name(root: &Root) -> Option<(String, PathBuf)> {
    let content = root.read(ETCD_CERTIFICATE).ok().flatten()?;
    Some((
        common_name(&content.bytes)?,
        PathBuf::from(ETCD_CERTIFICATE),
    ))
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
