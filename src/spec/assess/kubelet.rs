//! The kubelet's client certificate: which of several the kubelet uses, and what is wrong with the form of its files.
//!
//! Pure. The rules are those of client-go (`certificate_store.go`, `certificate_manager.go`):
//! - A kubelet that rotates uses the target of `kubelet-client-current.pem` until that certificate expires, whatever
//!   kubelet.conf contains. It reads the target only when it starts. A certificate that exists in kubelet.conf alone is
//!   copied to a file, and the kubelet immediately requests another one.
//! - A kubelet that does not rotate uses the certificate of kubelet.conf, and reads its files again when they change.

use time::OffsetDateTime;

use super::found::{Observed, ObservedCert};
use super::kubelet_store::{
    KubeletLink, KubeletStoreContent, KubeletStoreFault, ObservedKubeletStore, named_store,
    store_dir,
};
use crate::spec::schedule::{Percent, RenewAt, Rotation};
use crate::spec::{KubeletLayout, KubeletStoreSpec};
use crate::x509::{Chain, PrivateKey};

/// Returns the rotation of a certificate that the kubelet itself requested from the cluster.
///
/// The kubelet requests the next one after 70 to 90 % of the lifetime (`nextRotationDeadline`). nodepki renews only if
/// this has failed.
pub fn rotation_after_kubelet(rotation: &Rotation) -> Rotation {
    const AFTER_KUBELET_DEADLINE: Percent = match Percent::new(95) {
        Some(percent) => percent,
        None => Percent::ZERO,
    };
    Rotation {
        renew_at: RenewAt::Share(AFTER_KUBELET_DEADLINE),
        jitter: Percent::ZERO,
        ..rotation.clone()
    }
}

/// Returns the certificate that the kubelet uses, with the store if it belongs there.
///
/// `found` is the certificate that kubelet.conf contains or names.
pub fn certificate_used_by_kubelet(
    found: ObservedCert,
    store: &KubeletStoreSpec,
    on_disk: KubeletStoreContent,
    now: OffsetDateTime,
) -> ObservedCert {
    if is_kubeadm_layout(&found, store.layout, &on_disk) {
        return found;
    }
    let stored = StoredPair::read(&on_disk);
    let uses_store = uses_store(&found, &on_disk, &stored, now);
    let store = ObservedKubeletStore {
        dir: store_dir(&found, store),
        on_disk,
        in_place: false,
        requested_by_kubelet: false,
        faults: Vec::new(),
        superseded: None,
    };
    if uses_store {
        from_store(found, store, stored)
    } else {
        from_kubelet_conf(found, store)
    }
}

/// The pair that the store's link leads to.
struct StoredPair {
    chain: Observed<Chain>,
    key: Observed<PrivateKey>,
}

impl StoredPair {
    fn read(on_disk: &KubeletStoreContent) -> Self {
        let pem = on_disk.pem.as_deref().map(Vec::as_slice);
        StoredPair {
            chain: Observed::read(pem, Chain::from_pem),
            key: Observed::read(pem, PrivateKey::from_pem),
        }
    }

    /// Returns true if certificate and key belong together and the certificate has not expired.
    fn is_usable(&self, now: OffsetDateTime) -> bool {
        let (Observed::Present(chain), Observed::Present(key)) = (&self.chain, &self.key) else {
            return false;
        };
        chain.leaf().public_key() == key.public_key() && now < chain.leaf().not_after()
    }
}

/// Returns true if the certificate is in kubelet.conf, as `kubeadm init` writes it, and may stay there.
fn is_kubeadm_layout(
    found: &ObservedCert,
    layout: KubeletLayout,
    on_disk: &KubeletStoreContent,
) -> bool {
    let is_stored = !matches!(on_disk.current, KubeletLink::Nothing);
    layout == KubeletLayout::Auto && !is_stored && found.named_pair().is_none()
}

/// Returns true if the kubelet uses the pair of its store rather than that of kubelet.conf.
fn uses_store(
    found: &ObservedCert,
    on_disk: &KubeletStoreContent,
    stored: &StoredPair,
    now: OffsetDateTime,
) -> bool {
    let is_stored = !matches!(on_disk.current, KubeletLink::Nothing);
    named_store(found).is_some()
        || stored.is_usable(now)
        || (is_stored && found.chain.present().is_none())
}

fn from_store(
    found: ObservedCert,
    mut store: ObservedKubeletStore,
    stored: StoredPair,
) -> ObservedCert {
    store.faults = store_faults(&found, &store);
    store.in_place = store.target().is_some();
    if named_store(&found).is_none()
        && let (Observed::Present(chain), Observed::Present(key)) = (found.chain, found.key)
        && stored.chain.present().map(Chain::leaf) != Some(chain.leaf())
    {
        store.superseded = Some((chain, key));
    }
    ObservedCert {
        exposed: store.on_disk.exposed,
        store: Some(store),
        kubeconfig: found.kubeconfig,
        ..ObservedCert::new(stored.chain, stored.key)
    }
}

/// Returns the reasons why kubelet.conf and the link must be rewritten, if the kubelet uses its store.
fn store_faults(found: &ObservedCert, store: &ObservedKubeletStore) -> Vec<KubeletStoreFault> {
    let link = store.link();
    let mut faults = Vec::new();
    match (&found.kubeconfig, found.named_pair()) {
        _ if named_store(found).is_some() => {}
        (_, Some([certificate, _])) => {
            faults.push(KubeletStoreFault::ConfNamesOther {
                certificate: certificate.as_path().into(),
                link: link.clone(),
            });
        }
        (Some(_), None) => {
            let link = link.clone();
            faults.push(KubeletStoreFault::ConfContainsOther { link });
        }
        (None, None) => faults.push(KubeletStoreFault::ConfAbsent),
    }
    if !matches!(store.on_disk.current, KubeletLink::Nothing) && store.target().is_none() {
        faults.push(KubeletStoreFault::NotALink { link });
    }
    faults
}

fn from_kubelet_conf(found: ObservedCert, mut store: ObservedKubeletStore) -> ObservedCert {
    if found.named_pair().is_none() {
        let link = store.link();
        store.faults.push(KubeletStoreFault::ConfContains { link });
    }
    ObservedCert {
        store: Some(store),
        ..found
    }
}

#[cfg(test)]
mod tests;
