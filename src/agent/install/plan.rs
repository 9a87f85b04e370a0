//! Decides what is installed and what is held back, and what the report says of it.

mod service_account;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use time::OffsetDateTime;

use super::output::{self, CertMaterial, FoundFiles, accepted_until};
use super::{CertInPlace, CommitPlan, InstallStep, Installed, StepCommit};
use crate::agent::request::{IssuanceOutcome, NotInstalled, SignedCertificate, life_of};
use crate::agent::survey::Rotating;
use crate::agent::{
    Event, Failure, Outcomes, ProvidedBundle, ProvidedFile, ReportRow, RowAction, RowReason,
    RunSetup, Survey, SurveyedBundle, SurveyedCert, audit, report,
};
use crate::kube::components::ReplacedFile;
use crate::kube::names::{Authority, CertName};
use crate::spec::assess::{
    Action, Age, CertDecision, CertNote, CertReason, Observed, ObservedCert, ObservedKubeconfig,
    beyond_authority, with_unread_attributes,
};
use crate::spec::schedule::due_at;
use crate::spec::{BundleCopy, CertFiles, CertSpec};
use crate::store::{AuditEvent, Commit, IssuedRecord, Mode, NodeRoot, Slot};
use crate::text::hex;
use crate::x509::{Chain, Lifetime, PrivateKey, TrustBundle};

impl CommitPlan {
    /// Plans what is installed of these results.
    pub(super) fn of(
        setup: &RunSetup,
        root: &NodeRoot,
        trust: &BTreeMap<Authority, TrustBundle>,
        survey: Survey,
        mut outcomes: Outcomes,
        now: OffsetDateTime,
    ) -> Result<CommitPlan, Failure> {
        let separate = match survey.rotating {
            Some(_) => installed_bundles(&survey.bundles),
            None => BTreeSet::new(),
        };
        let mut work = CommitWork {
            trust,
            incomplete: incomplete_authorities(&outcomes, &separate),
            refused: outcomes
                .certs
                .values()
                .any(|outcome| outcome.as_ref().is_err_and(NotInstalled::is_refusal)),
            now,
            root,
            rotating: survey.rotating.as_ref(),
            commit: Commit::new(),
        };
        let mut steps = Vec::new();
        for bundle in &survey.bundles {
            let provided = setup.provided.bundles.get(&bundle.spec.authority);
            steps.extend(work.bundle(bundle, provided).map(InstallStep::of));
        }
        for cert in survey.certs {
            let outcome = outcomes.certs.remove(&cert.spec.name());
            steps.push(if separate.contains(&cert.spec.authority()) {
                work.alone(cert, outcome)
            } else {
                work.cert(cert, outcome)?
            });
        }
        if let (Some(spec), Some(action)) = (&setup.plan.service_account, &survey.service_account) {
            let generated = outcomes.service_account.as_ref();
            let row = work.service_account_change(setup, spec, action, generated)?;
            steps.push(InstallStep::of(row));
        }
        if survey.rotating.is_some() {
            let refused = survey.service_account_refused.as_ref();
            let row = report::refused_service_account(setup, refused);
            steps.extend(row.map(InstallStep::of));
        }
        for place in survey.missing_files {
            if let Some(file) = setup.provided.files.get(place) {
                steps.push(InstallStep::of(work.provided(file)));
            }
        }
        Ok(CommitPlan {
            steps,
            shared: work.commit,
        })
    }
}

/// Authorities whose trust bundle is installed.
fn installed_bundles(bundles: &[SurveyedBundle]) -> BTreeSet<Authority> {
    let installed = bundles.iter().filter(|bundle| bundle.in_place);
    installed.map(|bundle| bundle.spec.authority).collect()
}

/// Returns the unsigned certificates of each authority whose certificates are installed together.
fn incomplete_authorities(
    outcomes: &Outcomes,
    separate: &BTreeSet<Authority>,
) -> BTreeMap<Authority, Vec<CertName>> {
    let mut incomplete: BTreeMap<Authority, Vec<CertName>> = BTreeMap::new();
    for (name, outcome) in &outcomes.certs {
        let authority = name.authority();
        if outcome.is_err() && !separate.contains(&authority) {
            incomplete.entry(authority).or_default().push(*name);
        }
    }
    incomplete
}

/// A commit in the making. Each part adds its files and returns its step or row.
struct CommitWork<'a> {
    trust: &'a BTreeMap<Authority, TrustBundle>,
    /// The unsigned certificates of each authority of which nothing is installed.
    incomplete: BTreeMap<Authority, Vec<CertName>>,
    /// A signer denied a request, or its answer was refused: files from the cluster are held back too.
    refused: bool,
    now: OffsetDateTime,
    root: &'a NodeRoot,
    /// The rules of the rotation; `None` for a bootstrap.
    rotating: Option<&'a Rotating>,
    commit: Commit,
}

impl CommitWork<'_> {
    /// Plans a certificate in a commit of its own.
    fn alone(&self, cert: SurveyedCert, outcome: Option<IssuanceOutcome>) -> InstallStep {
        let in_place = CertInPlace {
            spec: cert.spec.clone(),
            chain: cert.found.chain.present().cloned(),
            still_serves: cert.still_serves(self.trust.get(&cert.spec.authority()), self.now),
            urgent: cert.decision.urgent,
        };
        let mut own = CommitWork {
            incomplete: self.incomplete.clone(),
            commit: Commit::new(),
            ..*self
        };
        match own.cert(cert, outcome) {
            Ok(step) if own.commit.is_empty() => InstallStep {
                commit: StepCommit::Made,
                ..step
            },
            Ok(step) => InstallStep {
                commit: StepCommit::Own(Box::new((own.commit, in_place))),
                ..step
            },
            Err(failure) => in_place.failed(failure, false),
        }
    }

    /// Writes a trust bundle. A bundle from the cluster is written even while signatures are pending, because the cluster
    /// may offer it for a limited time only.
    fn bundle(
        &mut self,
        bundle: &SurveyedBundle,
        provided: Option<&ProvidedBundle>,
    ) -> Option<ReportRow> {
        let authority = bundle.spec.authority;
        let trusted = self.trust.get(&authority)?;
        if bundle.in_place && bundle.refused.is_empty() && !bundle.is_settled() {
            self.copies(&bundle.outdated_copies, trusted);
            Some(ReportRow {
                reasons: report::copy_reasons(&bundle.outdated_copies),
                ..report::bundle_row(&bundle.spec, RowAction::Rewritten, trusted)
            })
        } else if bundle.in_place {
            Some(report::bundle_row(&bundle.spec, RowAction::Kept, trusted))
        } else if !self.incomplete.contains_key(&authority) || (provided.is_some() && !self.refused)
        {
            let (path, pem) = (bundle.spec.path.clone(), trusted.to_pem().into_bytes());
            if provided.is_some_and(|provided| !provided.supersedes.is_empty()) {
                self.commit.file(path, pem, Mode::Public)
            } else {
                self.commit.file_if_absent(path, pem, Mode::Public)
            };
            let change = ReplacedFile::Bundle(authority);
            self.commit
                .change(change, bundle.spec.path.clone(), self.now);
            self.copies(&bundle.spec.copies, trusted);
            Some(report::bundle_row(
                &bundle.spec,
                RowAction::Written,
                trusted,
            ))
        } else {
            None
        }
    }

    /// Writes copies of a trust bundle. A replaced copy counts as a change of the registered certificate whose component
    /// reads it.
    fn copies(&mut self, copies: &[BundleCopy], trusted: &TrustBundle) {
        for BundleCopy { of, path } in copies {
            let pem = trusted.to_pem().into_bytes();
            self.commit.file(path.clone(), pem, Mode::Public);
            let change = ReplacedFile::Certificate(*of);
            self.commit.change(change, path.clone(), self.now);
        }
    }

    fn cert(
        &mut self,
        cert: SurveyedCert,
        outcome: Option<IssuanceOutcome>,
    ) -> Result<InstallStep, Failure> {
        let Some(trusted) = self.trust.get(&cert.spec.authority()) else {
            return Ok(InstallStep {
                row: row_without_authority(cert, outcome),
                ..InstallStep::default()
            });
        };
        let is_whole = !self.incomplete.contains_key(&cert.spec.authority());
        let still_serves = cert.still_serves(Some(trusted), self.now);
        let urgent = cert.decision.urgent && self.rotating.is_some();
        let remarks = report::remarks(&cert);
        let SurveyedCert {
            spec,
            found,
            decision,
            due,
            ..
        } = cert;
        let CertDecision {
            action, keep_key, ..
        } = decision;
        let chain = found.chain.present();
        let (mut installed, mut expiring) = (None, None);
        let row = match (action, outcome) {
            (Action::Keep { .. }, _) => ReportRow {
                due: due.filter(|_| self.rotating.is_some()),
                ..report::cert_row(&spec, RowAction::Kept, remarks, chain)
            },
            (Action::Refuse { reason }, _) => report::refused_row(&spec, reason, chain),
            (Action::Issue { mut reasons }, Some(Ok(signed))) if is_whole => {
                if still_serves && let Some(old) = found.chain.present() {
                    let note = self.rotating.and(copies_note(&spec, old));
                    reasons.extend(note.map(CertReason::Note));
                }
                let (row, new) =
                    self.install_signed(&spec, trusted, found, signed, keep_key, reasons)?;
                installed = Some(new);
                row
            }
            (Action::Rewrite { reasons }, _) if is_whole => {
                let reasons = report::planned_reasons(&reasons);
                let row = report::cert_row(&spec, RowAction::Rewritten, reasons, chain);
                self.rewrite(&spec, trusted, found)?;
                row
            }
            (Action::Issue { reasons }, outcome) => {
                let row = match outcome {
                    Some(Ok(_)) => {
                        let reason = self.held_back_reason(spec.authority());
                        report::waiting_row(&spec, vec![reason], still_serves, chain)
                    }
                    Some(Err(why)) => report::failed_row(&spec, why, still_serves, urgent, chain),
                    None => {
                        let reasons = report::planned_reasons(&reasons);
                        report::waiting_row(&spec, reasons, still_serves, chain)
                    }
                };
                let name = spec.name();
                expiring = row
                    .not_after
                    .map(|not_after| Event::Expiring { name, not_after });
                row
            }
            (Action::Rewrite { reasons }, _) => {
                let reasons = report::planned_reasons(&reasons);
                report::waiting_row(&spec, reasons, still_serves, chain)
            }
        };
        Ok(InstallStep {
            row: Some(row),
            installed,
            expiring,
            commit: StepCommit::Shared,
        })
    }

    /// Adds a new certificate to the commit and returns its row.
    fn install_signed(
        &mut self,
        spec: &CertSpec,
        trusted: &TrustBundle,
        found: ObservedCert,
        signed: SignedCertificate,
        keep_key: bool,
        reasons: Vec<CertReason>,
    ) -> Result<(ReportRow, Installed), Failure> {
        let SignedCertificate {
            chain,
            key,
            request,
        } = signed;
        let old = found.chain.present();
        let renewed = old.is_some();
        let (action, due) = self.action_and_due(spec, &chain, old, keep_key);
        let mut reasons = report::taken(reasons);
        let found = FoundFiles {
            accepted_until: old.and_then(|old| accepted_until(old, trusted, self.now)),
            kubeconfig: found.kubeconfig,
            store: found.store,
        };
        self.add_files(spec, trusted, (&chain, &key), true, found)?;
        let record = record(&chain, self.now);
        self.commit.issued(spec.name(), record.clone());
        self.commit.completes(Slot::Certificate(spec.name()));
        let audit = audit::of_request(AuditEvent::Installed, &request);
        let installed = Installed {
            request,
            audit: audit::with_leaf(audit, chain.leaf()),
            record,
            renewed,
        };
        let lifetime = match life_of(&chain, spec, self.now) {
            Lifetime::Differs { lives, asked } => Some(CertNote::OtherLifetime { lives, asked }),
            _ => None,
        };
        let notes = lifetime
            .into_iter()
            .chain(beyond_authority(&chain, trusted))
            .chain(with_unread_attributes(&chain));
        reasons.extend(notes.map(RowReason::Note));
        let row = ReportRow {
            due,
            ..report::cert_row(spec, action, reasons, Some(&chain))
        };
        Ok((row, installed))
    }

    /// Adds a certificate to the commit that stays and whose files are written again.
    fn rewrite(
        &mut self,
        spec: &CertSpec,
        trusted: &TrustBundle,
        found: ObservedCert,
    ) -> Result<(), Failure> {
        match (found.chain, found.key, found.kubeconfig) {
            (_, _, Some(kubeconfig))
                if kubeconfig.by_file
                    && found.store.is_none()
                    && !is_own_pair(spec, &kubeconfig) =>
            {
                let document = kubeconfig.document;
                output::add_cluster(spec, trusted, document, &mut self.commit, self.now)
            }
            (Observed::Present(chain), Observed::Present(key), kubeconfig) => {
                let found = FoundFiles {
                    accepted_until: accepted_until(&chain, trusted, self.now),
                    kubeconfig,
                    store: found.store,
                };
                self.add_files(spec, trusted, (&chain, &key), false, found)
            }
            // Only a complete certificate is ever rewritten.
            _ => Ok(()),
        }
    }

    /// Adds the files of a certificate to the commit: `is_new` if it was just issued.
    fn add_files(
        &mut self,
        spec: &CertSpec,
        trusted: &TrustBundle,
        (chain, key): (&Chain, &PrivateKey),
        is_new: bool,
        found: FoundFiles,
    ) -> Result<(), Failure> {
        let material = CertMaterial {
            spec,
            trusted,
            chain,
            key,
            is_new,
        };
        material.add_to(&mut self.commit, self.root, self.now, found)
    }

    /// Returns why a signed certificate of an incomplete authority is not installed.
    fn held_back_reason(&self, authority: Authority) -> RowReason {
        RowReason::WaitsForOthers {
            authority,
            missing: self.incomplete.get(&authority).cloned().unwrap_or_default(),
        }
    }

    /// Returns the report's word for a new certificate, and the time when it is due for renewal.
    fn action_and_due(
        &self,
        spec: &CertSpec,
        new: &Chain,
        old: Option<&Chain>,
        keep_key: bool,
    ) -> (RowAction, Option<OffsetDateTime>) {
        let Some(Rotating { rotation, node, .. }) = self.rotating else {
            return (RowAction::Issued, None);
        };
        let trust = self.trust.get(&spec.authority());
        let lifetime = spec.requested.profile.lifetime;
        let age = Age::of(new, Some(self.now), trust, lifetime, self.now);
        let word = match old {
            None => RowAction::Issued,
            Some(_) if keep_key => RowAction::Renewed,
            Some(_) => RowAction::Rekeyed,
        };
        (word, Some(due_at(&age.life, rotation, node).at))
    }

    fn provided(&mut self, file: &ProvidedFile) -> ReportRow {
        // Files of the state directory were already written, before the first request.
        let is_held = self.refused && !file.ours;
        if !is_held {
            let (path, bytes) = (file.path.clone(), file.bytes.clone());
            if file.ours {
                self.commit.file(path, bytes, file.mode)
            } else {
                self.commit.file_if_absent(path, bytes, file.mode)
            };
        }
        let action = if is_held {
            RowAction::HeldBack
        } else {
            RowAction::Written
        };
        report::provided_row(file, action)
    }
}

/// Returns whether nodepki writes the files of the certificate and key that a kubeconfig names, or is to write them.
fn is_own_pair(spec: &CertSpec, kubeconfig: &ObservedKubeconfig) -> bool {
    let CertFiles::Kubeconfig {
        pair: Some(pair), ..
    } = &spec.output
    else {
        return false;
    };
    let names_pair = |[certificate, key]: &[PathBuf; 2]| pair.is(certificate, key);
    pair.is_named || kubeconfig.pair.as_deref().is_some_and(names_pair)
}

/// Returns the row of a certificate whose authority is not known.
fn row_without_authority(
    cert: SurveyedCert,
    outcome: Option<IssuanceOutcome>,
) -> Option<ReportRow> {
    let chain = cert.found.chain.present();
    match (cert.decision.action, outcome) {
        (Action::Refuse { reason }, _) => Some(report::refused_row(&cert.spec, reason, chain)),
        (_, Some(Err(why))) => Some(report::failed_row(&cert.spec, why, false, true, chain)),
        // Nothing is signed without the authority that verifies it.
        (_, Some(Ok(_)) | None) => None,
    }
}

/// Returns a note on a replaced administrator kubeconfig: administrators keep copies, and the old certificate is not
/// revoked.
fn copies_note(spec: &CertSpec, old: &Chain) -> Option<CertNote> {
    let (name, until) = (spec.name(), old.leaf().not_after());
    let is_copied = matches!(name, CertName::AdminConf | CertName::SuperAdminConf);
    is_copied.then_some(CertNote::OldCopies { name, until })
}

fn record(chain: &Chain, now: OffsetDateTime) -> IssuedRecord {
    let leaf = chain.leaf();
    IssuedRecord {
        at: now,
        serial: leaf.serial().to_owned(),
        not_after: leaf.not_after(),
        sha256: hex(&leaf.fingerprint()),
    }
}
