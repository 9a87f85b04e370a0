//! The invariants, judged from the files of the nodes and the record of the signer, and not by the verdicts of nodepki.
//!
//! Certificates are identified by the SHA-256 of their DER in the record of what the signer has issued, so only PEM is
//! read here, with the `pem` crate; the public key of a private key is computed by nodepki. To add an invariant: a check in
//! [`World::examine`](crate::world::World::examine), and a sabotage in `main.rs` that violates it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::kube::names::Authority;
use nodepki::x509::PrivateKey;
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use crate::signer::{CaId, Digest};

/// Where a certificate is.
pub(crate) struct SlotPlace {
    /// kubeadm's name.
    pub(crate) name: &'static str,
    pub(crate) authority: Authority,
    pub(crate) files: SlotFiles,
}

#[derive(Clone, Copy)]
pub(crate) enum SlotFiles {
    Pair(&'static str, &'static str),
    Kubeconfig(&'static str),
}

const fn pair(
    name: &'static str,
    authority: Authority,
    certificate: &'static str,
    key: &'static str,
) -> SlotPlace {
    SlotPlace {
        name,
        authority,
        files: SlotFiles::Pair(certificate, key),
    }
}

const fn kubeconfig(name: &'static str, file: &'static str) -> SlotPlace {
    SlotPlace {
        name,
        authority: Authority::Ca,
        files: SlotFiles::Kubeconfig(file),
    }
}

pub(crate) const SLOTS: [SlotPlace; 12] = [
    pair(
        "apiserver",
        Authority::Ca,
        "etc/kubernetes/pki/apiserver.crt",
        "etc/kubernetes/pki/apiserver.key",
    ),
    pair(
        "apiserver-kubelet-client",
        Authority::Ca,
        "etc/kubernetes/pki/apiserver-kubelet-client.crt",
        "etc/kubernetes/pki/apiserver-kubelet-client.key",
    ),
    pair(
        "front-proxy-client",
        Authority::FrontProxyCa,
        "etc/kubernetes/pki/front-proxy-client.crt",
        "etc/kubernetes/pki/front-proxy-client.key",
    ),
    pair(
        "etcd-server",
        Authority::EtcdCa,
        "etc/kubernetes/pki/etcd/server.crt",
        "etc/kubernetes/pki/etcd/server.key",
    ),
    pair(
        "etcd-peer",
        Authority::EtcdCa,
        "etc/kubernetes/pki/etcd/peer.crt",
        "etc/kubernetes/pki/etcd/peer.key",
    ),
    pair(
        "etcd-healthcheck-client",
        Authority::EtcdCa,
        "etc/kubernetes/pki/etcd/healthcheck-client.crt",
        "etc/kubernetes/pki/etcd/healthcheck-client.key",
    ),
    pair(
        "apiserver-etcd-client",
        Authority::EtcdCa,
        "etc/kubernetes/pki/apiserver-etcd-client.crt",
        "etc/kubernetes/pki/apiserver-etcd-client.key",
    ),
    kubeconfig("admin.conf", "etc/kubernetes/admin.conf"),
    kubeconfig("super-admin.conf", "etc/kubernetes/super-admin.conf"),
    kubeconfig("kubelet.conf", "etc/kubernetes/kubelet.conf"),
    kubeconfig(
        "controller-manager.conf",
        "etc/kubernetes/controller-manager.conf",
    ),
    kubeconfig("scheduler.conf", "etc/kubernetes/scheduler.conf"),
];

/// The bundle of each authority.
pub(crate) const BUNDLES: [(Authority, &str); 3] = [
    (Authority::Ca, "etc/kubernetes/pki/ca.crt"),
    (
        Authority::FrontProxyCa,
        "etc/kubernetes/pki/front-proxy-ca.crt",
    ),
    (Authority::EtcdCa, "etc/kubernetes/pki/etcd/ca.crt"),
];

/// A certificate with its key as found on disk; `None` for a part that is absent or incomplete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundSlot {
    pub(crate) exists: bool,
    /// SHA-256 of the leaf.
    pub(crate) leaf: Option<Digest>,
    /// SHA-256 of the public key.
    pub(crate) key: Option<Digest>,
    /// SHA-256 of each CA certificate in a kubeconfig.
    pub(crate) trusts: Vec<Digest>,
}

/// What the judge knows about a node.
#[derive(Default)]
pub(crate) struct NodeView {
    memo: BTreeMap<&'static str, (Vec<u8>, FoundSlot)>,
    /// The leaf that was seen last in each slot.
    pub(crate) seen: BTreeMap<&'static str, Digest>,
    /// Slots that a person has damaged, and when.
    pub(crate) damaged: BTreeMap<&'static str, Duration>,
    /// What the components that read files only at start work with: authorities of their certificates, and what they trust.
    pub(crate) running: TrustPicture,
    /// The same for the files on disk.
    pub(crate) on_disk: TrustPicture,
    /// A replaced file requires restarts.
    pub(crate) restart_due: Rc<Notify>,
    pub(crate) restart_is_due: bool,
}

/// Which CAs the certificates of a node are from, and which it trusts where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrustPicture {
    pub(crate) issuers: BTreeMap<&'static str, CaId>,
    pub(crate) trusted: BTreeMap<&'static str, (Authority, BTreeSet<CaId>)>,
}

impl TrustPicture {
    /// Returns why a component with this picture distrusts one of `peer`.
    pub(crate) fn distrusts(&self, peer: &TrustPicture) -> Option<String> {
        for (name, ca) in &peer.issuers {
            for (file, (authority, trusted)) in &self.trusted {
                if *authority == ca.0 && !trusted.contains(ca) {
                    return Some(format!(
                        "{file} trusts {trusted:?}, but {name} of the peer is from {ca:?}"
                    ));
                }
            }
        }
        None
    }
}

impl NodeView {
    /// Reads the files of a slot.
    pub(crate) fn find(&mut self, root: &Path, place: &SlotPlace) -> FoundSlot {
        let text = match place.files {
            SlotFiles::Pair(certificate, key) => {
                let mut text = fs::read(root.join(certificate)).unwrap_or_default();
                text.extend(fs::read(root.join(key)).unwrap_or_default());
                text
            }
            SlotFiles::Kubeconfig(file) => fs::read(root.join(file)).unwrap_or_default(),
        };
        if let Some((known, found)) = self.memo.get(place.name)
            && *known == text
        {
            return found.clone();
        }
        let found = match place.files {
            SlotFiles::Pair(..) => parse_pair(&text),
            SlotFiles::Kubeconfig(_) => parse_kubeconfig(root, &text),
        };
        // A kubeconfig may refer to another file.
        if !text.windows(19).any(|part| part == b"client-certificate:") {
            self.memo.insert(place.name, (text, found.clone()));
        }
        found
    }
}

fn sha256(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

fn parse_pair(text: &[u8]) -> FoundSlot {
    let blocks = pem::parse_many(text).unwrap_or_default();
    let leaf = blocks.iter().find(|block| block.tag() == "CERTIFICATE");
    let key = blocks
        .iter()
        .find(|block| block.tag().ends_with("PRIVATE KEY"));
    let key = key.and_then(|key| PrivateKey::from_pem(pem::encode(key).as_bytes()).ok());
    FoundSlot {
        exists: !text.is_empty(),
        leaf: leaf.map(|leaf| sha256(leaf.contents())),
        key: key.map(|key| key.public_key().sha256()),
        trusts: Vec::new(),
    }
}

/// Returns the SHA-256 of every certificate in a PEM file.
pub(crate) fn certificates(text: &[u8]) -> Vec<Digest> {
    let blocks = pem::parse_many(text).unwrap_or_default();
    let all = blocks.iter().filter(|block| block.tag() == "CERTIFICATE");
    all.map(|block| sha256(block.contents())).collect()
}

/// Reads a kubeconfig with one cluster and one user, line by line.
fn parse_kubeconfig(root: &Path, text: &[u8]) -> FoundSlot {
    let text = String::from_utf8_lossy(text);
    let value = |field: &str| {
        text.lines()
            .find_map(|line| line.trim().trim_start_matches("- ").strip_prefix(field))
            .map(|value| value.trim().trim_matches('"').to_owned())
    };
    let data = |field: &str| {
        BASE64
            .decode(value(field).unwrap_or_default())
            .unwrap_or_default()
    };
    let mut pair = data("client-certificate-data:");
    pair.extend(data("client-key-data:"));
    if let Some(file) = value("client-certificate:") {
        pair = fs::read(root.join(file.trim_start_matches('/'))).unwrap_or_default();
    }
    FoundSlot {
        exists: !text.is_empty(),
        trusts: certificates(&data("certificate-authority-data:")),
        ..parse_pair(&pair)
    }
}
