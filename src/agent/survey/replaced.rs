//! Refuses to issue under a CA that replaced the one to which the node belongs.

use time::OffsetDateTime;

use super::{Survey, SurveyedBundle, SurveyedCert, TrustSource};
use crate::agent::Provided;
use crate::assess::{self, Replaced, Witness, trusted_by};
use crate::names::Authority;
use crate::plan::Output;
use crate::store::Root;
use crate::x509::{Certificate, TrustBundle, hex};

impl SurveyedCert {
    fn witness(&self, root: &Root) -> Witness<'_> {
        let file = match &self.spec.output {
            Output::Kubeconfig { path, .. } => path,
            Output::Pair { certificate, .. } => certificate,
        };
        let kubeconfig = self.found.kubeconfig.as_ref();
        Witness {
            name: self.spec.name,
            file: root.on_this_machine(file).display().to_string(),
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
        root: &Root,
        trust: impl Fn(Authority) -> TrustSource,
        provided: &Provided,
        now: OffsetDateTime,
    ) {
        // A damaged record is reported elsewhere; without it only the finer points are missing.
        let issued = root.issued().unwrap_or_default();
        for cert in &mut self.certs {
            let (Some(chain), Some(record)) =
                (cert.found.chain.present(), issued.get(&cert.spec.name))
            else {
                continue;
            };
            cert.installed = Some(record.sha256 == hex(&chain.leaf().fingerprint()));
        }
        let changes = root.authority_changes().unwrap_or_default();
        let mut refused = Vec::new();
        let mut copies = Vec::new();
        for (place, bundle) in self.bundles.iter().enumerate() {
            let authority = bundle.spec.authority;
            let Some(present) = bundle.found.present() else {
                continue;
            };
            let path = root.on_this_machine(&bundle.spec.path);
            let witnesses = self.witnesses(root, authority);
            let path = path.display().to_string();
            copies.extend(assess::valid_copy(present, &witnesses, &path, now));
            let source = trust(authority);
            let is_activated = changes.get(&authority).is_some_and(|change| {
                change.activated.is_some() && change.new == hex(&present.first().fingerprint())
            });
            let is_pinned = !source.pins.is_empty() && present.require_pins(&source.pins).is_ok();
            // The cluster that the node joins has just said that this is its CA.
            let is_handed_over = !bundle.in_place && provided.bundles.contains_key(&authority);
            if is_activated || is_pinned || is_handed_over {
                continue;
            }
            let file = match (&source.file, bundle.in_place) {
                (Some(file), false) => file,
                _ => &bundle.spec.path,
            };
            let shown = root.on_this_machine(file).display().to_string();
            if let Some(replaced) = self.replaced_by(root, authority, present) {
                let sentence = replaced.sentence(&shown);
                let fix = replaced.fix(authority, &shown, present);
                refused.push((place, sentence, fix));
            }
        }
        self.refusals.extend(copies);
        for (place, sentence, fix) in refused {
            if let Some(bundle) = self.bundles.get_mut(place) {
                // What else is wrong with the new one does not matter: it goes.
                let before = bundle.refused.take().unwrap_or_default();
                self.refusals
                    .retain(|refusal| !before.contains(refusal.as_str()));
                self.refusals
                    .push(format!("{sentence}; nothing is issued under it: {fix}"));
                bundle.refused = Some(sentence);
            }
        }
    }

    fn witnesses(&self, root: &Root, authority: Authority) -> Vec<Witness<'_>> {
        self.certs
            .iter()
            .filter(|cert| cert.spec.authority == authority)
            .map(|cert| cert.witness(root))
            .collect()
    }

    /// Whether `present` is another CA than the one to which the certificates and kubeconfigs of this node belong.
    pub(in crate::agent) fn replaced_by(
        &self,
        root: &Root,
        authority: Authority,
        present: &TrustBundle,
    ) -> Option<Replaced> {
        let witnesses = self.witnesses(root, authority);
        let others = self.bundles.iter();
        let others = others.filter(|bundle| bundle.spec.authority != authority);
        let elsewhere: Vec<(String, Certificate)> = others
            .flat_map(|bundle: &SurveyedBundle| {
                let file = root.on_this_machine(&bundle.spec.path);
                let certificates = bundle.found.present().map(TrustBundle::certificates);
                certificates
                    .unwrap_or_default()
                    .iter()
                    .map(move |certificate| (file.display().to_string(), certificate.clone()))
            })
            .collect();
        assess::replaced(present, &witnesses, &elsewhere)
    }
}
