//! The kubelet's store of client certificates as it was found: dated files, and a link to the newest.

use std::path::PathBuf;

use zeroize::Zeroizing;

use super::found::ObservedCert;
use super::reason::CertReason;
use crate::kube::names::NodePath;
use crate::kube::paths::KUBELET_CURRENT_LINK;
use crate::spec::KubeletStoreSpec;
use crate::x509::{Chain, PrivateKey};

/// The file at the path of the store's link.
#[derive(Clone)]
pub enum KubeletLink {
    /// No file.
    Nothing,
    /// A link, with its target as written.
    Link(PathBuf),
    /// A regular file. The kubelet reads it but does not replace it.
    File,
}

/// The content of the kubelet's store.
#[derive(Clone)]
pub struct KubeletStoreContent {
    /// The file at the path of the link.
    pub current: KubeletLink,
    /// Its content, following links.
    pub pem: Option<Zeroizing<Vec<u8>>>,
    /// Its mode, if it is world-readable.
    pub exposed: Option<u32>,
}

/// The kubelet's store, if the certificate belongs there.
#[derive(Clone)]
pub struct ObservedKubeletStore {
    /// The directory.
    pub dir: NodePath,
    /// Its content.
    pub on_disk: KubeletStoreContent,
    /// True if the certificate is in the store and the link points to it.
    pub in_place: bool,
    /// True if the kubelet itself requested the certificate from the cluster, rather than nodepki.
    pub requested_by_kubelet: bool,
    /// The problems of form.
    pub faults: Vec<KubeletStoreFault>,
    /// The pair in kubelet.conf, if the kubelet uses another one.
    pub superseded: Option<(Chain, PrivateKey)>,
}

impl ObservedKubeletStore {
    /// Returns the path of the link.
    pub fn link(&self) -> NodePath {
        self.dir.join(KUBELET_CURRENT_LINK)
    }

    /// Returns the file that the link points to, if it is in this directory.
    pub fn target(&self) -> Option<NodePath> {
        let KubeletLink::Link(target) = &self.on_disk.current else {
            return None;
        };
        let target = self.dir.join(target);
        (target.directory() == self.dir).then_some(target)
    }

    /// Returns the reason why there is no certificate.
    pub(super) fn absence(&self) -> CertReason {
        match self.on_disk.current {
            KubeletLink::Link(_) => CertReason::DanglingLink(self.link()),
            _ => CertReason::Absent,
        }
    }
}

/// The reason why kubelet.conf and the link of the store must be rewritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum KubeletStoreFault {
    #[error("kubelet.conf names {certificate}, while the kubelet uses {link}")]
    ConfNamesOther {
        certificate: NodePath,
        link: NodePath,
    },
    #[error("kubelet.conf contains a certificate, while the kubelet uses {link}")]
    ConfContainsOther { link: NodePath },
    #[error("kubelet.conf is absent")]
    ConfAbsent,
    #[error("kubelet.conf contains the certificate, but must name {link}")]
    ConfContains { link: NodePath },
    #[error(
        "{link} is not a link to a file in its directory, so the kubelet cannot replace its certificate"
    )]
    NotALink { link: NodePath },
}

codes!(KubeletStoreFault {
    ConfNamesOther,
    ConfContainsOther,
    ConfAbsent,
    ConfContains,
    NotALink
});

/// Returns the directory of the store, if kubelet.conf names its link for both certificate and key.
pub(super) fn named_store(found: &ObservedCert) -> Option<NodePath> {
    let [certificate, key] = found.named_pair()?;
    let is_link = certificate == key && certificate.file_name()? == KUBELET_CURRENT_LINK;
    is_link.then(|| NodePath::from(certificate.as_path()).directory())
}

/// Returns the directory of the store: that of kubelet.conf, or else that of the spec.
pub fn store_dir(found: &ObservedCert, store: &KubeletStoreSpec) -> NodePath {
    named_store(found).unwrap_or_else(|| store.dir.clone())
}
