//! The kubelet's client certificate: which one counts, and what is wrong with the form of its files.
//!
//! Pure. The rules are those of client-go (`certificate_store.go`, `certificate_manager.go`): a kubelet that rotates
//! uses what `kubelet-client-current.pem` leads to as long as that has not expired, whatever kubelet.conf holds. It
//! reads it at its start and never again; a certificate that it finds in kubelet.conf alone it copies to a file of its
//! own and asks for another one at once. One that does not rotate uses what kubelet.conf says, and reads files anew.

use std::path::PathBuf;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::{Found, FoundCert};
use crate::kube::names::NodePath;
use crate::spec::schedule::{Percent, RenewAt, Rotation};
use crate::spec::{KUBELET_CURRENT, KubeletLayout, KubeletStore};
use crate::x509::{Chain, PrivateKey};

/// How kubelet.conf holds its certificate.
pub enum Form {
    /// It is absent or empty.
    Nothing,
    /// As data.
    Embedded,
    /// By the names of two files, absolute.
    ByFile {
        /// `client-certificate`.
        certificate: NodePath,
        /// `client-key`.
        key: NodePath,
    },
}

impl Form {
    /// The directory of the kubelet's store, when kubelet.conf refers to one.
    fn store(&self) -> Option<NodePath> {
        match self {
            Form::ByFile { certificate, key }
                if certificate == key && certificate.file_name()? == KUBELET_CURRENT =>
            {
                Some(certificate.directory())
            }
            _ => None,
        }
    }
}

/// What stands at the place of the link.
pub enum Current {
    /// Nothing.
    Nothing,
    /// A link; where it leads, as it stands in the link.
    Link(PathBuf),
    /// A file, which the kubelet reads and will not replace.
    File,
}

/// What is in the kubelet's store.
pub struct OnDisk {
    /// At the place of the link.
    pub current: Current,
    /// What is read there, links followed.
    pub pem: Option<Zeroizing<Vec<u8>>>,
    /// Its mode, when everybody can read it.
    pub exposed: Option<u32>,
}

/// The kubelet's store beside its certificate, for one that belongs there.
pub struct FoundStore {
    /// The directory.
    pub dir: NodePath,
    /// What is there.
    pub on_disk: OnDisk,
    /// The certificate that was found lies there, and a link leads to it.
    pub in_place: bool,
    /// It is not one that nodepki issued: the kubelet itself requested it from the cluster.
    pub requested_by_kubelet: bool,
    /// What of the form is not as it should be, in words.
    pub faults: Vec<String>,
    /// The pair in kubelet.conf, where another one counts.
    pub superseded: Option<(Chain, PrivateKey)>,
}

impl FoundStore {
    /// The path of the link.
    pub fn link(&self) -> NodePath {
        self.dir.join(KUBELET_CURRENT)
    }

    /// The file in this directory that the link leads to.
    pub fn target(&self) -> Option<NodePath> {
        let Current::Link(target) = &self.on_disk.current else {
            return None;
        };
        let target = self.dir.join(target);
        (target.directory() == self.dir).then_some(target)
    }

    /// Why there is no certificate.
    pub(super) fn absence(&self) -> String {
        let link = self.link();
        match self.on_disk.current {
            Current::Link(_) => format!("{link} leads nowhere"),
            _ => "absent".to_owned(),
        }
    }
}

/// How one is rotated that the kubelet has asked the cluster for itself. It does so again when 70 to 90 % of its life are
/// over (`nextRotationDeadline`): only if that comes to nothing is it anybody else's business.
pub fn after_the_kubelet(rotation: &Rotation) -> Rotation {
    const LATE: Percent = match Percent::new(95) {
        Some(late) => late,
        None => Percent::ZERO,
    };
    Rotation {
        renew_at: RenewAt::Share(LATE),
        jitter: Percent::ZERO,
        ..rotation.clone()
    }
}

/// Where the store is: where kubelet.conf says, or else where the plan does.
pub fn store_dir(form: &Form, store: &KubeletStore) -> NodePath {
    form.store().unwrap_or_else(|| store.dir.clone())
}

/// `found` is what kubelet.conf holds or names. What comes back is what counts; with a store, if it belongs there.
pub fn weigh(
    found: FoundCert,
    form: &Form,
    store: &KubeletStore,
    on_disk: OnDisk,
    now: OffsetDateTime,
) -> FoundCert {
    let stands = !matches!(on_disk.current, Current::Nothing);
    let by_file = matches!(form, Form::ByFile { .. });
    if store.layout == KubeletLayout::Auto && !stands && !by_file {
        return found;
    }
    let mut store = FoundStore {
        dir: store_dir(form, store),
        on_disk,
        in_place: false,
        requested_by_kubelet: false,
        faults: Vec::new(),
        superseded: None,
    };
    let link = store.link();
    let is_link = store.target().is_some();
    let pem = store.on_disk.pem.as_deref().map(Vec::as_slice);
    let chain = Found::read(pem, Chain::from_pem);
    let key = Found::read(pem, PrivateKey::from_pem);
    let named = form.store().is_some();
    let counts = named
        || match (&chain, &key) {
            (Found::Present(chain), Found::Present(key)) => {
                chain.leaf().public_key() == key.public_key() && now < chain.leaf().not_after()
            }
            _ => false,
        }
        || (stands && found.chain.present().is_none());
    if counts {
        match form {
            _ if named => {}
            Form::ByFile { certificate, .. } => store.faults.push(format!(
                "kubelet.conf names {certificate}, while the kubelet uses {link}"
            )),
            Form::Embedded => store.faults.push(format!(
                "kubelet.conf holds a certificate, while the kubelet uses {link}"
            )),
            Form::Nothing => store.faults.push("kubelet.conf is absent".to_owned()),
        }
        if stands && !is_link {
            store.faults.push(format!(
                "{link} is no link to a file beside it, so that the kubelet cannot put a new one there"
            ));
        }
        store.in_place = is_link;
        if !named
            && let (Found::Present(own), Found::Present(own_key)) = (found.chain, found.key)
            && chain.present().map(Chain::leaf) != Some(own.leaf())
        {
            store.superseded = Some((own, own_key));
        }
        return FoundCert {
            chain,
            key,
            key_form_is_ours: true,
            exposed: store.on_disk.exposed,
            store: Some(store),
            revoked: None,
            kubeconfig: found.kubeconfig,
        };
    }
    if !by_file {
        store.faults.push(format!(
            "kubelet.conf holds the certificate, where it is to name {link}"
        ));
    }
    FoundCert {
        store: Some(store),
        ..found
    }
}

#[cfg(test)]
mod tests;
