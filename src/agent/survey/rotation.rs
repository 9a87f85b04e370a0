//! The rules of a renewal, and the ages of the certificates on disk.

use std::collections::BTreeSet;

use time::OffsetDateTime;

use super::{Survey, bundle_of};
use crate::kube::names::Authority;
use crate::node::NodeState;
use crate::process::machine;
use crate::spec::assess::{Age, DecisionMode, RenewalCause, rotation_after_kubelet};
use crate::spec::schedule::{self, DueState, Rotation};
use crate::store;
use crate::text::hex;

/// See [`Survey::rotating`].
pub(in crate::agent) struct Rotating {
    pub(in crate::agent) rotation: Rotation,
    pub(in crate::agent) node: String,
    pub(in crate::agent) demand: RenewalCause,
    /// Authorities whose signer refuses a request with another key.
    pub(in crate::agent) same_key_only: BTreeSet<Authority>,
}

impl Rotating {
    /// Returns the mode of the decision about a certificate of an authority.
    pub(super) fn mode(&self, authority: Authority) -> DecisionMode<'_> {
        DecisionMode::Renewal {
            rotation: &self.rotation,
            node: &self.node,
            demand: self.demand,
            same_key_only: self.same_key_only.contains(&authority),
        }
    }
}

impl Survey {
    /// Sets the age of each certificate from the records of its installation.
    ///
    /// # Errors
    /// A record that this machine cannot read. A damaged one is a note.
    pub(in crate::agent) fn assess_ages(
        &mut self,
        state: &NodeState,
        rotation: &Rotation,
        node: &str,
        now: OffsetDateTime,
    ) -> Result<(), store::StoreError> {
        let issued = match state.issued() {
            Err(error) if machine::is_fault(&error) => return Err(error),
            Err(error) => {
                self.notes.push(format!(
                    "the record of issue times is ignored, and ages are derived from the certificates: {error}"
                ));
                None
            }
            Ok(issued) => Some(issued),
        };
        for cert in &mut self.certs {
            let Some(chain) = cert.found.chain.present() else {
                continue;
            };
            let fingerprint = hex(&chain.leaf().fingerprint());
            let recorded = issued
                .and_then(|issued| issued.get(&cert.spec.name()))
                // Another program may have replaced the certificate since.
                .filter(|issued| issued.sha256 == fingerprint)
                .map(|issued| issued.at);
            let authority = cert.spec.authority();
            let trust =
                bundle_of(&self.bundles, authority).and_then(|bundle| bundle.found.present());
            let lifetime = cert.spec.requested.profile.lifetime;
            let age = Age::of(chain, recorded, trust, lifetime, now);
            cert.age = Some(age);
            let late = cert
                .found
                .is_of_kubelet()
                .then(|| rotation_after_kubelet(rotation));
            let rotation = late.as_ref().unwrap_or(rotation);
            cert.due = Some(match schedule::due(&age.life, rotation, node, now) {
                DueState::Later { at } | DueState::Waits { at, .. } => at,
                DueState::Now { due, .. } => due.at,
            });
        }
        Ok(())
    }
}
