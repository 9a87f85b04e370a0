//! Ages of the certificates on disk, and the rotation's decision on each.

use time::OffsetDateTime;

use super::{Survey, SurveyedCert};
use crate::kube::names::Authority;
use crate::process::machine;
use crate::spec::assess::{
    self, Action, Age, RenewalCause, rotation_after_kubelet, schedule_action,
};
use crate::spec::schedule::{Rotation, due_at};
use crate::store::{self, NodeRoot};
use crate::text::hex;
use crate::x509::{KeyType, TrustBundle};

/// See [`Survey::rotating`].
pub(in crate::agent) struct Rotating {
    pub(in crate::agent) rotation: Rotation,
    pub(in crate::agent) node: String,
    pub(in crate::agent) demand: RenewalCause,
}

impl SurveyedCert {
    /// Returns whether the key may be kept for a new certificate: it has the desired type, belongs to the certificate, and
    /// is neither readable by other users nor revoked.
    pub(in crate::agent) fn has_good_key(&self) -> bool {
        let (Some(chain), Some(key)) = (self.found.chain.present(), self.found.key.present())
        else {
            return false;
        };
        chain.leaf().public_key() == key.public_key()
            && *key.key_type() == KeyType::Known(self.spec.requested.profile.key)
            && self.found.exposed.is_none()
            && self.found.revoked.is_none()
    }
}

impl Survey {
    /// Sets the age of each certificate from the records of its installation.
    ///
    /// # Errors
    /// A record that this machine cannot read. A damaged one is a note.
    pub(in crate::agent) fn assess_ages(
        &mut self,
        root: &NodeRoot,
        rotation: &Rotation,
        node: &str,
        now: OffsetDateTime,
    ) -> Result<(), store::StoreError> {
        let issued = match root.issued() {
            Err(error) if machine::is_fault(&error) => return Err(error),
            Err(error) => {
                self.notes.push(format!(
                    "the record of issue times is ignored, and ages are derived from the certificates: {error}"
                ));
                Default::default()
            }
            Ok(issued) => issued,
        };
        for cert in &mut self.certs {
            let Some(chain) = cert.found.chain.present() else {
                continue;
            };
            let fingerprint = hex(&chain.leaf().fingerprint());
            let recorded = issued
                .get(&cert.spec.name())
                .filter(|issued| issued.sha256 == fingerprint)
                .map(|issued| issued.at);
            let trust = self
                .bundles
                .iter()
                .find(|bundle| bundle.spec.authority == cert.spec.authority())
                .and_then(|bundle| bundle.found.present());
            let lifetime = cert.spec.requested.profile.lifetime;
            let age = Age::of(chain, recorded, trust, lifetime, now);
            cert.age = Some(age);
            let late = cert
                .found
                .is_of_kubelet()
                .then(|| rotation_after_kubelet(rotation));
            let rotation = late.as_ref().unwrap_or(rotation);
            cert.due = Some(due_at(&age.life, rotation, node).at);
        }
        Ok(())
    }

    /// Lets rotation have its say, if it has one.
    pub(in crate::agent) fn rotate(
        &mut self,
        trust: impl Fn(Authority) -> Option<TrustBundle>,
        now: OffsetDateTime,
    ) {
        let Some(rotating) = &self.rotating else {
            return;
        };
        for cert in &mut self.certs {
            let trust = trust(cert.spec.authority());
            let serving = cert.age.filter(|_| cert.still_serves(trust.as_ref(), now));
            let authorities = trust.iter().flat_map(TrustBundle::certificates);
            let late = cert
                .found
                .is_of_kubelet()
                .then(|| rotation_after_kubelet(&rotating.rotation));
            let rules = assess::RenewalRules {
                rotation: late.as_ref().unwrap_or(&rotating.rotation),
                node: &rotating.node,
                demand: rotating.demand,
                authority_ends: authorities.map(|authority| authority.not_after()).max(),
            };
            let action = std::mem::replace(
                &mut cert.action,
                Action::Keep {
                    notes: Vec::new(),
                    at_renewal: Vec::new(),
                },
            );
            let rotated = schedule_action(action, serving.as_ref(), rules, now);
            cert.action = rotated.action;
            cert.next = rotated.next;
            // A change of the CA waits for this certificate, however long the old one is valid.
            cert.urgent = rotated.urgent || rotating.demand == RenewalCause::AuthorityChanged;
            cert.deferred = rotated.deferred;
            cert.for_age = rotated.for_age;
        }
    }
}
