//! Refuses to issue under a CA that replaced the one to which the node belongs.

use time::OffsetDateTime;

use super::{Survey, SurveyRefusal, SurveyedCert, TrustSource};
use crate::agent::Provided;
use crate::kube::names::Authority;
use crate::spec::CertFiles;
use crate::spec::assess::{
    self, BundleRefusal, CaEvidence, CaFile, OtherCaFile, ReplacedCa, restored_together,
    shared_authorities, trusted_by,
};
use crate::store::NodeRoot;
use crate::text::hex;
use crate::x509::TrustBundle;

impl SurveyedCert {
    fn witness(&self) -> CaEvidence<'_> {
        let file = match &self.spec.output {
            CertFiles::Kubeconfig { path, .. } => path,
            CertFiles::Pair { certificate, .. } => certificate,
        };
        let kubeconfig = self.found.kubeconfig.as_ref();
        CaEvidence {
            name: self.spec.name(),
            file: file.to_string(),
            chain: self.found.chain.present(),
            trusts: trusted_by(kubeconfig.and_then(|found| found.authority.as_deref())),
            installed: self.installed,
        }
    }
}

impl Survey {
    /// Refuses each authority whose CA certificate was replaced, unless the settings pin the new one or
    /// `authority activate` has put it in place.
    pub(super) fn judge_authorities(
        &mut self,
        root: &NodeRoot,
        trust: impl Fn(Authority) -> TrustSource,
        provided: &Provided,
        now: OffsetDateTime,
    ) {
        let changes = root.authority_changes().unwrap_or_default();
        let mut copies = Vec::new();
        let mut files = Vec::new();
        for bundle in &self.bundles {
            let authority = bundle.spec.authority;
            let Some(present) = bundle.found.present() else {
                continue;
            };
            let witnesses = self.witnesses(authority);
            let path = bundle.spec.path.to_string();
            copies.extend(assess::valid_copy(present, &witnesses, &path, now));
            let source = trust(authority);
            let is_activated = changes.get(&authority).is_some_and(|change| {
                change.activated.is_some() && change.new == hex(&present.first().fingerprint())
            });
            let is_pinned = !source.pins.is_empty() && present.require_pins(&source.pins).is_ok();
            // The cluster that the node joins has just said that this is its CA.
            let is_handed_over = !bundle.in_place && provided.bundles.contains_key(&authority);
            files.push(CaFile {
                authority,
                file: path,
                trust: present,
                witnesses,
                is_confirmed: is_activated || is_pinned || is_handed_over,
            });
        }
        // All files together, since the old CA of one may be in the file of another.
        let mut replaced_cas = assess::replaced_among(&files);
        let mut refused = Vec::new();
        for (place, bundle) in self.bundles.iter().enumerate() {
            let authority = bundle.spec.authority;
            let found = replaced_cas.remove(&authority);
            let (Some(replaced), Some(present)) = (found, bundle.found.present()) else {
                continue;
            };
            let shown = match (&trust(authority).file, bundle.in_place) {
                (Some(file), false) => file.shown().display().to_string(),
                _ => bundle.spec.path.to_string(),
            };
            let fix = replaced.fix(authority, &shown, present);
            refused.push((place, authority, shown, replaced, fix));
        }
        let all: Vec<(Authority, String, &ReplacedCa)> = refused
            .iter()
            .map(|(_, authority, path, replaced, _)| (*authority, path.clone(), replaced))
            .collect();
        let together = restored_together(&all);
        self.refusals
            .extend(copies.into_iter().map(SurveyRefusal::ValidCopy));
        for (place, authority, path, replaced, mut fix) in refused {
            if let Some((authorities, one_fix)) = &together
                && let Some(index) = authorities.iter().position(|one| *one == authority)
            {
                fix = match authorities.first().filter(|_| index > 0) {
                    Some(first) => format!("the fix of {first} restores it too"),
                    None => one_fix.clone(),
                };
            }
            let replaced = Box::new(replaced);
            let refusal = BundleRefusal::Replaced { replaced, path };
            if let Some(bundle) = self.bundles.get_mut(place) {
                // Further faults of the new CA certificate are irrelevant: it is removed.
                self.refusals.retain(
                    |refusal| !matches!(refusal, SurveyRefusal::Bundle(of, _) if *of == authority),
                );
                bundle.refused = vec![refusal.clone()];
                self.refusals
                    .push(SurveyRefusal::ReplacedCa { refusal, fix });
            }
        }
    }

    /// Adds a note for each authority that accepts certificates of others. `learned` are bundles that are not on disk.
    pub(in crate::agent) fn note_shared_authorities<'t>(
        &'t mut self,
        learned: impl Fn(Authority) -> Option<&'t TrustBundle>,
    ) {
        let bundles: Vec<(Authority, &TrustBundle)> = self
            .bundles
            .iter()
            .filter(|bundle| !bundle.is_replaced())
            .filter_map(|bundle| {
                let authority = bundle.spec.authority;
                let trust = bundle.found.present().or_else(|| learned(authority))?;
                Some((authority, trust))
            })
            .collect();
        let mut notes = Vec::new();
        for shared in shared_authorities(&bundles) {
            if let Some(found) = self.bundle(shared.authority) {
                let path = found.spec.path.to_string();
                let fix = shared.fix(&path, self.has_cluster);
                notes.push(format!("{}; {fix}", shared.sentence(&path)));
            }
        }
        notes.retain(|note| !self.notes.contains(note));
        self.notes.extend(notes);
    }

    fn witnesses(&self, authority: Authority) -> Vec<CaEvidence<'_>> {
        self.certs
            .iter()
            .filter(|cert| cert.spec.authority() == authority)
            .map(SurveyedCert::witness)
            .collect()
    }

    /// Returns whether `present` is another CA than the one to which the certificates and kubeconfigs of this node
    /// belong.
    pub(in crate::agent) fn replaced_by(
        &self,
        authority: Authority,
        present: &TrustBundle,
    ) -> Option<ReplacedCa> {
        let witnesses = self.witnesses(authority);
        let others = self.bundles.iter();
        let others = others.filter(|bundle| bundle.spec.authority != authority);
        let elsewhere: Vec<OtherCaFile<'_>> = others
            .filter_map(|bundle| {
                Some(OtherCaFile {
                    file: bundle.spec.path.to_string(),
                    trust: bundle.found.present()?,
                    is_replaced: false,
                })
            })
            .collect();
        assess::replaced(present, &witnesses, &elsewhere)
    }
}
