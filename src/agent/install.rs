//! Installs verified certificates: decides what is installed and what is held back, commits it, and writes the rows of
//! the report.

mod output;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use time::OffsetDateTime;

use super::request::{AnswerFault, RequestOutcome, SignedCertificate, Unsigned, life_of};
use super::survey::Rotating;
use super::{
    Event, ExitCode, Failure, Outcomes, Progress, ProvidedBundle, ProvidedFile, ReportRow,
    RowAction, RowReason, RunReport, RunSetup, ServiceAccountAction, Survey, SurveyedBundle,
    SurveyedCert, audit, report, sentence,
};
use crate::kube::components::ReplacedFile;
use crate::kube::names::{Authority, CertName};
use crate::process::failpoint;
use crate::signer::Request;
use crate::spec::assess::{
    Action, Age, CertNote, CertReason, Observed, ObservedCert, ObservedKubeconfig,
    beyond_authority, joined, with_unread_attributes,
};
use crate::spec::schedule::due_at;
use crate::spec::{BundleCopy, CertFiles, CertSpec, ServiceAccountSpec};
use crate::store::{
    AuditEvent, AuditRecord, Commit, Committed, IssuedRecord, Mode, NodeRoot, Slot, Store,
};
use crate::text::hex;
use crate::x509::{Chain, Lifetime, PrivateKey, PublicKey, TrustBundle};

use output::{CertMaterial, FoundFiles, accepted_until};

/// Installs all requested certificates of an authority together, or none of them. During a rotation each certificate
/// whose trust bundle is installed gets a commit of its own.
///
/// # Errors
/// A failed commit; the store's message names the state of the files.
pub(super) async fn install(
    setup: &RunSetup,
    store: &mut Store,
    trust: &BTreeMap<Authority, TrustBundle>,
    mut survey: Survey,
    mut outcomes: Outcomes,
    now: OffsetDateTime,
    progress: &dyn Progress,
) -> Result<RunReport, Failure> {
    let rotating = survey.rotating.take();
    let separate = match rotating {
        Some(_) => installed_bundles(&survey.bundles),
        None => BTreeSet::new(),
    };
    report_unsigned(setup, &outcomes, progress);
    let mut work = CommitWork {
        incomplete: incomplete_authorities(&outcomes, &separate),
        refused: outcomes
            .certs
            .values()
            .any(|outcome| matches!(outcome, Err(Unsigned::Refused(_) | Unsigned::Denied(_)))),
        rotating: rotating.as_ref(),
        ..CommitWork::new(trust, store.root().clone(), now)
    };
    for bundle in &survey.bundles {
        let provided = setup.provided.bundles.get(&bundle.spec.authority);
        work.bundle(bundle, provided);
    }
    for cert in survey.certs {
        let outcome = outcomes.certs.remove(&cert.spec.name());
        if separate.contains(&cert.spec.authority()) {
            work.cert_in_own_commit(store, cert, outcome)
        } else {
            work.cert(cert, outcome)?
        }
    }
    if let (Some(spec), Some(action)) = (&setup.plan.service_account, &survey.service_account) {
        let generated = outcomes.service_account.as_ref();
        work.service_account_change(setup, spec, action, generated)?;
    }
    if rotating.is_some() {
        let refused = survey.service_account_refused.as_ref();
        work.rows
            .extend(report::refused_service_account(setup, refused));
    }
    for place in survey.missing_files {
        if let Some(file) = setup.provided.files.get(place) {
            work.provided(file);
        }
    }
    match rotating {
        None => work.commit(store)?,
        // Certificates with a commit of their own are already installed and are reported in any case.
        Some(_) if !work.commit.is_empty() => {
            if let Err(failure) = work.commit(store) {
                work.fail_shared_commit(&failure);
            }
        }
        Some(_) => {}
    }
    work.finish(setup, survey.notes, progress).await
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

/// Reports each request that did not end with a signature. Signed certificates are reported once they are installed.
fn report_unsigned(setup: &RunSetup, outcomes: &Outcomes, progress: &dyn Progress) {
    for (name, outcome) in &outcomes.certs {
        let signer = setup.signers.get(&name.authority());
        let signer = signer.map_or("", |(signer, _)| signer.as_str());
        if let Err(unsigned) = outcome {
            progress.event(unsigned_event(*name, signer, unsigned));
        }
    }
}

/// Returns the event for a request that did not end with a signature.
fn unsigned_event(name: CertName, signer: &str, unsigned: &Unsigned) -> Event {
    let signer = signer.to_owned();
    match unsigned {
        Unsigned::Pending(why) => Event::Pending {
            name,
            signer,
            why: why.to_string(),
            code: why.code(),
        },
        Unsigned::Denied(why) => Event::Refused {
            name,
            signer,
            why: why.clone(),
            code: "Denied",
        },
        Unsigned::Refused(differences) => Event::Refused {
            name,
            signer,
            why: joined(differences),
            code: differences.first().map_or("Differs", AnswerFault::code),
        },
        Unsigned::Failed(error) => Event::Failed {
            name,
            signer,
            why: sentence(error.as_ref()),
            code: "SignerFailed",
        },
        Unsigned::Undone(failure) => Event::Failed {
            name,
            signer,
            why: failure.to_string(),
            code: "Failed",
        },
    }
}

/// The changes of one commit, and the report on them.
struct CommitWork<'a> {
    trust: &'a BTreeMap<Authority, TrustBundle>,
    /// The unsigned certificates of each authority of which nothing is installed.
    incomplete: BTreeMap<Authority, Vec<CertName>>,
    /// A signer denied a request, or its answer was refused: files from the cluster are held back too.
    refused: bool,
    now: OffsetDateTime,
    root: NodeRoot,
    /// The rules of the rotation; `None` for a bootstrap.
    rotating: Option<&'a Rotating>,
    commit: Commit,
    rows: Vec<ReportRow>,
    installed: Vec<Installed>,
    /// Events for certificates that were due and were not replaced.
    expiring: Vec<Event>,
    /// The result of all commits so far.
    committed: Committed,
    /// Certificates with a commit of their own.
    separate: BTreeSet<CertName>,
}

/// A new certificate of this commit.
struct Installed {
    request: Box<Request>,
    audit: AuditRecord,
    record: IssuedRecord,
    /// It replaces another certificate.
    renewed: bool,
}

impl<'a> CommitWork<'a> {
    /// Returns a commit without changes, for a bootstrap in which every request is signed.
    fn new(
        trust: &'a BTreeMap<Authority, TrustBundle>,
        root: NodeRoot,
        now: OffsetDateTime,
    ) -> CommitWork<'a> {
        CommitWork {
            trust,
            incomplete: BTreeMap::new(),
            refused: false,
            now,
            root,
            rotating: None,
            commit: Commit::new(),
            rows: Vec::new(),
            installed: Vec::new(),
            expiring: Vec::new(),
            committed: Committed::default(),
            separate: BTreeSet::new(),
        }
    }

    fn commit(&mut self, store: &mut Store) -> Result<(), Failure> {
        failpoint::reached("run:before-commit");
        let committed = store.commit(std::mem::take(&mut self.commit))?;
        failpoint::reached("run:committed");
        self.committed.written.extend(committed.written);
        self.committed.notes.extend(committed.notes);
        Ok(())
    }

    /// Sends the events of this commit, tells each signer that its certificate is installed, and returns the report.
    async fn finish(
        self,
        setup: &RunSetup,
        mut notes: Vec<String>,
        progress: &dyn Progress,
    ) -> Result<RunReport, Failure> {
        notes.extend(self.committed.notes.iter().map(ToString::to_string));
        for expiring in self.expiring {
            progress.event(expiring);
        }
        let audited: Vec<AuditRecord> = self
            .installed
            .iter()
            .map(|installed| installed.audit.clone())
            .collect();
        audit::append(&self.root, self.now, &audited);
        for installed in self.installed {
            let (signer_name, signer) = setup.signer(installed.request.wanted.authority)?;
            progress.event(Event::Installed {
                name: installed.request.wanted.name,
                signer: signer_name.clone(),
                serial: installed.record.serial,
                not_after: installed.record.not_after,
                renewed: installed.renewed,
            });
            if let Err(error) = signer.settled(&installed.request.key()).await {
                notes.push(error.to_string());
            }
        }
        let report = RunReport {
            rows: self.rows,
            notes,
            written: self.committed.written,
            ignore_preflight_errors: setup.ignore_preflight_errors(),
        };
        Ok(report.with_signers(setup))
    }

    /// Installs one certificate in a commit of its own, so a path that cannot be written fails this certificate only.
    fn cert_in_own_commit(
        &mut self,
        store: &mut Store,
        cert: SurveyedCert,
        outcome: Option<RequestOutcome>,
    ) {
        let serves = cert.still_serves(self.trust.get(&cert.spec.authority()), self.now);
        let (spec, urgent) = (cert.spec.clone(), cert.urgent);
        let chain = cert.found.chain.present().cloned();
        let (rows, installed) = (self.rows.len(), self.installed.len());
        self.separate.insert(spec.name());
        let shared = std::mem::take(&mut self.commit);
        let was_unfinished = store.is_unfinished();
        let tried = self.cert(cert, outcome).and_then(|()| {
            if self.commit.is_empty() {
                Ok(())
            } else {
                self.commit(store)
            }
        });
        self.commit = shared;
        if let Err(failure) = tried {
            self.rows.truncate(rows);
            self.installed.truncate(installed);
            // After the point of commit the files may be old, new or mixed: none is known to serve.
            let is_torn = store.is_unfinished() && !was_unfinished;
            let chain = chain.as_ref().filter(|_| !is_torn);
            if let Some(chain) = chain {
                self.expiring.push(Event::Expiring {
                    name: spec.name(),
                    not_after: chain.leaf().not_after(),
                });
            }
            let unsigned = Unsigned::Undone(Rc::new(failure));
            let row = report::failed_row(&spec, unsigned, serves && !is_torn, urgent, chain);
            self.rows.push(row);
        }
    }

    /// Marks every row of the shared commit as failed.
    fn fail_shared_commit(&mut self, failure: &Failure) {
        let is_separate = |name: &str| self.separate.iter().any(|one| one.as_str() == name);
        for row in &mut self.rows {
            if row.code.is_none()
                && !matches!(row.action, RowAction::Kept | RowAction::HeldBack)
                && !is_separate(&row.name)
            {
                row.action = RowAction::Failed;
                row.reasons = RowReason::of_failure(failure);
                row.code = Some(failure.code);
            }
        }
        self.installed
            .retain(|installed| self.separate.contains(&installed.request.wanted.name));
    }

    /// Writes a trust bundle. A bundle from the cluster is written even while signatures are pending, because the cluster
    /// may offer it for a limited time only.
    fn bundle(&mut self, bundle: &SurveyedBundle, provided: Option<&ProvidedBundle>) {
        let authority = bundle.spec.authority;
        let Some(trusted) = self.trust.get(&authority) else {
            return;
        };
        if bundle.in_place && bundle.refused.is_empty() && !bundle.is_settled() {
            self.copies(&bundle.outdated_copies, trusted);
            self.rows.push(ReportRow {
                reasons: report::copy_reasons(&bundle.outdated_copies),
                ..report::bundle_row(&bundle.spec, RowAction::Rewritten, trusted)
            });
        } else if bundle.in_place {
            self.rows
                .push(report::bundle_row(&bundle.spec, RowAction::Kept, trusted));
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
            self.rows.push(report::bundle_row(
                &bundle.spec,
                RowAction::Written,
                trusted,
            ));
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

    fn cert(&mut self, cert: SurveyedCert, outcome: Option<RequestOutcome>) -> Result<(), Failure> {
        let Some(trusted) = self.trust.get(&cert.spec.authority()) else {
            self.rows.extend(row_without_authority(cert, outcome));
            return Ok(());
        };
        let is_whole = !self.incomplete.contains_key(&cert.spec.authority());
        let still_serves = cert.still_serves(Some(trusted), self.now);
        let urgent = cert.urgent && self.rotating.is_some();
        let remarks = report::remarks(&cert);
        let SurveyedCert {
            spec,
            found,
            action,
            due,
            keep_key,
            ..
        } = cert;
        let chain = found.chain.present();
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
                self.install_signed(&spec, trusted, found, signed, keep_key, reasons)?
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
                    Some(Err(unsigned)) => {
                        report::failed_row(&spec, unsigned, still_serves, urgent, chain)
                    }
                    None => {
                        let reasons = report::planned_reasons(&reasons);
                        report::waiting_row(&spec, reasons, still_serves, chain)
                    }
                };
                let name = spec.name();
                let expiring = row.not_after;
                let expiring = expiring.map(|not_after| Event::Expiring { name, not_after });
                self.expiring.extend(expiring);
                row
            }
            (Action::Rewrite { reasons }, _) => {
                let reasons = report::planned_reasons(&reasons);
                report::waiting_row(&spec, reasons, still_serves, chain)
            }
        };
        self.rows.push(row);
        Ok(())
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
    ) -> Result<ReportRow, Failure> {
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
        self.installed.push(Installed {
            request,
            audit: audit::with_leaf(audit, chain.leaf()),
            record,
            renewed,
        });
        let lifetime = match life_of(&chain, spec, self.now) {
            Lifetime::Differs { lives, asked } => Some(CertNote::OtherLifetime { lives, asked }),
            _ => None,
        };
        let notes = lifetime
            .into_iter()
            .chain(beyond_authority(&chain, trusted))
            .chain(with_unread_attributes(&chain));
        reasons.extend(notes.map(RowReason::Note));
        Ok(ReportRow {
            due,
            ..report::cert_row(spec, action, reasons, Some(&chain))
        })
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
        material.add_to(&mut self.commit, &self.root, self.now, found)
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

    fn service_account_change(
        &mut self,
        setup: &RunSetup,
        spec: &ServiceAccountSpec,
        action: &ServiceAccountAction,
        generated: Option<&PrivateKey>,
    ) -> Result<(), Failure> {
        let provided = setup.provided.service_account.as_ref();
        let key = match action {
            ServiceAccountAction::Install => provided.map(|provided| &provided.key),
            _ => generated,
        };
        let public = provided.map_or(&[][..], |provided| &provided.public);
        self.service_account(spec, action, key, public)?;
        for path in [&spec.private, &spec.public] {
            self.commit
                .change(ReplacedFile::ServiceAccount, path.clone(), self.now);
        }
        Ok(())
    }

    fn service_account(
        &mut self,
        spec: &ServiceAccountSpec,
        action: &ServiceAccountAction,
        key: Option<&PrivateKey>,
        provided: &[PublicKey],
    ) -> Result<(), Failure> {
        // A generated pair is useless until the API server has its certificate, and a refused run changes nothing.
        let is_held = match action {
            ServiceAccountAction::Install => self.refused,
            _ => self.incomplete.contains_key(&Authority::Ca),
        };
        let done = match (action, key) {
            (ServiceAccountAction::Keep, _)
            | (ServiceAccountAction::Make | ServiceAccountAction::Install, None) => RowAction::Kept,
            _ if is_held => RowAction::HeldBack,
            (ServiceAccountAction::Make, Some(key)) => {
                let public = key.public_key().to_pem();
                self.service_account_private(spec, key);
                self.service_account_public(spec, public, Mode::Private);
                RowAction::Made
            }
            (ServiceAccountAction::Install, Some(key)) => {
                self.service_account_private(spec, key);
                // An existing sa.pub already contains the key; it may contain others.
                let found = self.root.read(&spec.public)?;
                if found.is_none_or(|found| found.bytes.is_empty()) {
                    // Mode of `kubeadm join`.
                    let public = provided.iter().map(PublicKey::to_pem).collect();
                    self.service_account_public(spec, public, Mode::Public);
                }
                RowAction::Written
            }
            (ServiceAccountAction::DerivePublic, _) => {
                self.derive_public(spec)?;
                RowAction::PublicDerived
            }
            (ServiceAccountAction::Tighten, _) => {
                if let Some(private) = self.root.read(&spec.private)? {
                    self.commit
                        .file(spec.private.clone(), private.bytes, Mode::Private);
                }
                RowAction::Tightened
            }
        };
        self.rows.push(report::service_account_row(spec, done));
        Ok(())
    }

    fn service_account_private(&mut self, spec: &ServiceAccountSpec, key: &PrivateKey) {
        let private = key.to_pem().as_bytes().to_vec();
        self.commit
            .file_if_absent(spec.private.clone(), private, Mode::Private);
    }

    fn service_account_public(&mut self, spec: &ServiceAccountSpec, public: String, mode: Mode) {
        self.commit
            .file_if_absent(spec.public.clone(), public.into_bytes(), mode);
    }

    /// Writes sa.pub again from sa.key, and closes sa.key to other users.
    fn derive_public(&mut self, spec: &ServiceAccountSpec) -> Result<(), Failure> {
        let Some(private) = self.root.read(&spec.private)? else {
            return Ok(());
        };
        let key = PrivateKey::from_pem(&private.bytes).map_err(|error| {
            Failure::new(ExitCode::Refused, spec.private.to_string()).caused_by(error)
        })?;
        let public = key.public_key().to_pem().into_bytes();
        self.commit.file(spec.public.clone(), public, Mode::Private);
        if private.metadata.mode & 0o007 != 0 {
            self.commit
                .file(spec.private.clone(), private.bytes, Mode::Private);
        }
        Ok(())
    }

    fn provided(&mut self, file: &ProvidedFile) {
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
        self.rows.push(report::provided_row(file, action));
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
fn row_without_authority(cert: SurveyedCert, outcome: Option<RequestOutcome>) -> Option<ReportRow> {
    let chain = cert.found.chain.present();
    match (cert.action, outcome) {
        (Action::Refuse { reason }, _) => Some(report::refused_row(&cert.spec, reason, chain)),
        (_, Some(Err(unsigned))) => {
            Some(report::failed_row(&cert.spec, unsigned, false, true, chain))
        }
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
