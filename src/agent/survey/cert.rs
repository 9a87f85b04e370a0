//! The certificates of the node as they were found.

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::Survey;
use crate::node::{NodeCert, NodeState};
use crate::signer::CurrentCertificate;
use crate::spec::assess::{self, Action, Age, CertDecision, CertNote, CertRefusal, ObservedCert};
use crate::spec::{CertFiles, CertSpec, ClientPairSpec};
use crate::store::{self, IssuedRecord};
use crate::text::hex;
use crate::x509::{TrustBundle, is_for_names};

/// One certificate, as found and judged.
pub struct SurveyedCert {
    /// Desired state.
    pub spec: CertSpec,
    /// Observed state.
    pub found: ObservedCert,
    /// What is done about it.
    pub decision: CertDecision,
    /// Age of the certificate; `None` if it is absent.
    pub age: Option<Age>,
    /// When its age makes it due, or its turn in the window for which it waits.
    pub due: Option<OffsetDateTime>,
    /// Whether nodepki installed this certificate; `None` if it never installed one in this place.
    pub(super) installed: Option<bool>,
    /// Why it cannot be repaired.
    pub(super) unrepairable: Option<CertRefusal>,
    /// Why it is not replaced as long as it serves.
    pub(in crate::agent) held: Option<CertRefusal>,
}

impl SurveyedCert {
    /// Returns whether the certificate on disk is valid and usable, so a failure does not make the node worse.
    pub fn still_serves(&self, trust: Option<&TrustBundle>, now: OffsetDateTime) -> bool {
        self.found.still_serves(trust, now)
    }

    /// Returns whether the next renewal replaces the key by one of another algorithm.
    pub(super) fn waits_for_renewal(&self) -> bool {
        matches!(&self.decision.action, Action::Keep { at_renewal, .. } if !at_renewal.is_empty())
    }

    /// Returns the remarks about a certificate that is kept: notes of the assessment, and changes of the policy that wait
    /// for the next renewal.
    pub(in crate::agent) fn remarks(&self) -> Vec<CertNote> {
        let Action::Keep { notes, at_renewal } = &self.decision.action else {
            return Vec::new();
        };
        let waiting = at_renewal
            .iter()
            .cloned()
            .map(|difference| CertNote::AtRenewal {
                difference,
                due: self.due,
            });
        notes.iter().cloned().chain(waiting).collect()
    }

    /// Returns the certificate on disk, if a signer may accept it in exchange: it is valid and has the desired subject
    /// and names.
    pub(in crate::agent) fn exchangeable(
        &self,
        trust: &TrustBundle,
        now: OffsetDateTime,
    ) -> Option<CurrentCertificate> {
        let (chain, key) = (self.found.chain.present()?, self.found.key.present()?);
        let same = || {
            is_for_names(
                chain,
                &self.spec.requested.profile,
                self.spec.requested.tolerance,
            )
        };
        (self.still_serves(Some(trust), now) && same()).then(|| CurrentCertificate {
            chain_pem: chain.to_pem().into_bytes(),
            key_pem: Zeroizing::new(key.to_pem().as_bytes().to_vec()),
        })
    }
}

impl Survey {
    pub(super) fn read_cert(
        &mut self,
        state: &NodeState,
        spec: &CertSpec,
        issued: Option<&IssuedRecord>,
        now: OffsetDateTime,
    ) -> Result<(), store::StoreError> {
        let (mut found, unrepairable) = read(state, &spec.output, now)?;
        let chain = found.chain.present();
        let installed = chain
            .zip(issued)
            .map(|(chain, issued)| issued.sha256 == hex(&chain.leaf().fingerprint()));
        if let Some(store) = &mut found.store {
            store.requested_by_kubelet = installed != Some(true);
        }
        self.certs.push(SurveyedCert {
            spec: spec.clone(),
            found,
            // The survey decides once everything is read.
            decision: CertDecision::now(Action::Keep {
                notes: Vec::new(),
                at_renewal: Vec::new(),
            }),
            age: None,
            due: None,
            installed,
            unrepairable,
            held: None,
        });
        Ok(())
    }
}

/// Returns the certificate in its files, and why they cannot be changed without losing data.
fn read(
    state: &NodeState,
    output: &CertFiles,
    now: OffsetDateTime,
) -> Result<(ObservedCert, Option<CertRefusal>), store::StoreError> {
    let (path, store, pair) = match output {
        CertFiles::Pair {
            certificate, key, ..
        } => return Ok((state.pair(certificate, key).readable()?.found, None)),
        CertFiles::Kubeconfig {
            path, store, pair, ..
        } => (path, store, pair),
    };
    let NodeCert {
        mut found,
        certificate,
        key,
        unrepairable,
        ..
    } = state.cert_in(path).readable()?;
    if let Some(error) = unrepairable {
        let path = path.clone();
        return Ok((found, Some(CertRefusal::Unrepairable { path, error })));
    }
    let is = |pair: &ClientPairSpec| pair.is(certificate.path(), key.path());
    if pair.as_ref().is_some_and(is) {
        found.key_form_is_ours = key.has_our_key_form();
        found.exposed = key.mode_if_exposed();
    }
    if let Some(store) = store {
        let on_disk = state.kubelet_store(&assess::store_dir(&found, store))?;
        found = assess::certificate_used_by_kubelet(found, store, on_disk, now);
    }
    Ok((found, None))
}
