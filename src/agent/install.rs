//! From verified answers to one commit: what is installed, what is held back, and what each row of the report says.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use time::OffsetDateTime;

use super::kubelet::Identity;
use super::request::{Outcome, life_of};
use super::survey::Rotating;
use super::{
    Event, ExitCode, Failure, Outcomes, Progress, ProvidedFile, Report, Row, RowAction,
    ServiceAccountAction, Setup, Survey, SurveyedBundle, SurveyedCert, report, sentence,
};
use crate::kube::components::Change;
use crate::kube::kubeconfig::{Credentials, Kubeconfig, KubeconfigError};
use crate::kube::names::{Authority, CertName, NodePath};
use crate::process::failpoint;
use crate::signer::Request;
use crate::spec::assess::{Action, Age, Found, FoundStore, beyond_authority};
use crate::spec::schedule::due_at;
use crate::spec::{CertSpec, Output, ServiceAccountSpec};
use crate::store::{Commit, Committed, Issued, Mode, Root, Slot, Store};
use crate::x509::{Chain, Lifetime, PrivateKey, PublicKey, TrustBundle, hex, rfc3339};

/// Installs whole families: all that one authority was asked for, or nothing of it. In a rotation every certificate is
/// installed on its own, where its bundle is in place.
///
/// # Errors
/// When the commit fails; the store's message says what is on disk then.
pub(super) async fn install(
    setup: &Setup,
    store: &mut Store,
    trust: &BTreeMap<Authority, TrustBundle>,
    mut survey: Survey,
    mut outcomes: Outcomes,
    now: OffsetDateTime,
    progress: &dyn Progress,
) -> Result<Report, Failure> {
    let rotating = survey.rotating.take();
    let on_its_own = |authority: &Authority| {
        let in_place =
            |bundle: &SurveyedBundle| bundle.in_place && bundle.spec.authority == *authority;
        rotating.is_some() && survey.bundles.iter().any(in_place)
    };
    for (name, outcome) in &outcomes.certs {
        let signer = setup.signers.get(&name.authority());
        let signer = signer.map_or("", |(signer, _)| signer.as_str());
        if let Some(event) = ending(*name, signer, outcome) {
            progress.event(event);
        }
    }
    let mut incomplete: BTreeMap<Authority, Vec<CertName>> = BTreeMap::new();
    for (name, outcome) in &outcomes.certs {
        let authority = name.authority();
        if !matches!(outcome, Outcome::Signed { .. }) && !on_its_own(&authority) {
            incomplete.entry(authority).or_default().push(*name);
        }
    }
    let refused = outcomes
        .certs
        .values()
        .any(|outcome| matches!(outcome, Outcome::Refused(_) | Outcome::Denied(_)));
    let mut work = Work {
        trust,
        incomplete,
        refused,
        now,
        root: store.root().clone(),
        rotating: rotating.as_ref(),
        commit: Commit::new(),
        rows: Vec::new(),
        installed: Vec::new(),
        committed: Committed::default(),
        expiring: Vec::new(),
        alone: BTreeSet::new(),
    };
    for bundle in &survey.bundles {
        let provided = setup.provided.bundles.contains_key(&bundle.spec.authority);
        work.bundle(bundle, provided);
    }
    for cert in survey.certs {
        let outcome = outcomes.certs.remove(&cert.spec.name);
        match on_its_own(&cert.spec.authority) {
            true => work.cert_alone(store, cert, outcome),
            false => work.cert(cert, outcome)?,
        }
    }
    if let (Some(spec), Some(action)) = (&setup.plan.service_account, &survey.service_account) {
        let handed = setup.provided.service_account.as_ref();
        let key = match action {
            ServiceAccountAction::Install => handed.map(|handed| &handed.key),
            _ => outcomes.service_account.as_ref(),
        };
        let public = handed.map_or(&[][..], |handed| &handed.public);
        work.service_account(spec, action, key, public, store.root())?;
        for path in [&spec.private, &spec.public] {
            work.commit
                .change(Change::ServiceAccount, path.clone(), now);
        }
    }
    if rotating.is_some() {
        let refused = survey.service_account_refused.as_deref();
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
        // What was installed before is reported all the same.
        Some(_) if !work.commit.is_empty() => {
            if let Err(failure) = work.commit(store) {
                work.fail_together(&failure);
            }
        }
        Some(_) => {}
    }
    let mut notes = survey.notes;
    notes.extend(work.committed.notes.iter().map(ToString::to_string));
    for expiring in work.expiring {
        progress.event(expiring);
    }
    for installed in work.installed {
        let (signer_name, signer) = setup.signer(installed.request.wanted.authority)?;
        progress.event(Event::Installed {
            name: installed.request.wanted.name,
            signer: signer_name.clone(),
            serial: installed.record.serial,
            not_after: installed.record.not_after,
            renewed: installed.renewed,
        });
        if let Err(error) = signer.settled(&installed.request).await {
            notes.push(error.to_string());
        }
    }
    Ok(Report {
        rows: work.rows,
        notes,
        written: work.committed.written,
        ignore_preflight_errors: setup.ignore_preflight_errors(),
    })
}

/// How a request ended, unless well: that is told once the certificate is in place.
fn ending(name: CertName, signer: &str, outcome: &Outcome) -> Option<Event> {
    let signer = signer.to_owned();
    Some(match outcome {
        Outcome::Signed { .. } => return None,
        Outcome::Pending(why) => Event::Pending {
            name,
            signer,
            why: why.clone(),
        },
        Outcome::Denied(why) => Event::Refused {
            name,
            signer,
            why: why.clone(),
        },
        Outcome::Refused(differences) => Event::Refused {
            name,
            signer,
            why: differences.join("; "),
        },
        Outcome::Failed(error) => Event::Failed {
            name,
            signer,
            why: sentence(error.as_ref()),
        },
        Outcome::Undone(failure) => Event::Failed {
            name,
            signer,
            why: failure.to_string(),
        },
    })
}

/// A commit in the making, and the report that goes with it.
struct Work<'a> {
    trust: &'a BTreeMap<Authority, TrustBundle>,
    /// Authorities that have not signed everything, and what is missing: nothing of theirs is installed.
    incomplete: BTreeMap<Authority, Vec<CertName>>,
    /// An answer was refused, or there will be none: nothing else is put in place either.
    refused: bool,
    now: OffsetDateTime,
    root: Root,
    /// The rules of a rotation, where it is one.
    rotating: Option<&'a Rotating>,
    commit: Commit,
    rows: Vec<Row>,
    installed: Vec<Installed>,
    /// What was wanted anew and stays as it is.
    expiring: Vec<Event>,
    /// What is on disk already.
    committed: Committed,
    /// Certificates that had a commit of their own.
    alone: BTreeSet<CertName>,
}

/// A new certificate of this commit.
struct Installed {
    request: Box<Request>,
    record: Issued,
    /// There was one before.
    renewed: bool,
}

impl Work<'_> {
    fn commit(&mut self, store: &mut Store) -> Result<(), Failure> {
        failpoint::reached("run:before-commit");
        let committed = store.commit(std::mem::take(&mut self.commit))?;
        failpoint::reached("run:committed");
        self.committed.written.extend(committed.written);
        self.committed.notes.extend(committed.notes);
        Ok(())
    }

    /// A place that cannot be written to is the trouble of one certificate.
    fn cert_alone(&mut self, store: &mut Store, cert: SurveyedCert, outcome: Option<Outcome>) {
        let serves = cert.still_serves(self.trust.get(&cert.spec.authority), self.now);
        let (spec, urgent) = (cert.spec.clone(), cert.urgent);
        let chain = cert.found.chain.present().cloned();
        let (rows, installed) = (self.rows.len(), self.installed.len());
        self.alone.insert(spec.name);
        let rest = std::mem::take(&mut self.commit);
        let was_unfinished = store.is_unfinished();
        let tried = self
            .cert(cert, outcome)
            .and_then(|()| match self.commit.is_empty() {
                true => Ok(()),
                false => self.commit(store),
            });
        if let Err(failure) = tried {
            self.rows.truncate(rows);
            self.installed.truncate(installed);
            // After the point of commit the files may be old, new or a pair of both: nothing is known to serve.
            let torn = store.is_unfinished() && !was_unfinished;
            let chain = chain.as_ref().filter(|_| !torn);
            if let Some(chain) = chain {
                self.expiring.push(Event::Expiring {
                    name: spec.name,
                    not_after: chain.leaf().not_after(),
                });
            }
            let outcome = Outcome::Undone(Rc::new(failure));
            let row = report::failed_row(&spec, outcome, serves && !torn, urgent, chain);
            self.rows.push(row);
        }
        self.commit = rest;
    }

    /// Marks everything as failed that the last commit would have put in place.
    fn fail_together(&mut self, failure: &Failure) {
        let alone = |name: &str| self.alone.iter().any(|one| one.as_str() == name);
        for row in &mut self.rows {
            if row.code.is_none()
                && !matches!(row.action, RowAction::Kept | RowAction::HeldBack)
                && !alone(&row.name)
            {
                row.action = RowAction::Failed;
                row.reasons.clone_from(&failure.messages);
                row.code = Some(failure.code);
            }
        }
        self.installed
            .retain(|installed| self.alone.contains(&installed.request.wanted.name));
    }

    /// What the cluster has handed over is put in place while signatures are pending: it may not have it for long.
    fn bundle(&mut self, bundle: &SurveyedBundle, provided: bool) {
        let authority = bundle.spec.authority;
        let Some(trusted) = self.trust.get(&authority) else {
            return;
        };
        if bundle.in_place {
            self.rows
                .push(report::bundle_row(&bundle.spec, RowAction::Kept, trusted));
        } else if !self.incomplete.contains_key(&authority) || (provided && !self.refused) {
            let pem = trusted.to_pem().into_bytes();
            self.commit
                .file_if_absent(bundle.spec.path.clone(), pem, Mode::Public);
            let change = Change::Bundle(authority);
            self.commit
                .change(change, bundle.spec.path.clone(), self.now);
            self.rows.push(report::bundle_row(
                &bundle.spec,
                RowAction::Written,
                trusted,
            ));
        }
    }

    fn cert(&mut self, cert: SurveyedCert, outcome: Option<Outcome>) -> Result<(), Failure> {
        let Some(trusted) = self.trust.get(&cert.spec.authority) else {
            let chain = cert.found.chain.present();
            self.rows.extend(match (cert.action, outcome) {
                (Action::Refuse { reason }, _) => {
                    Some(report::refused_row(&cert.spec, reason, chain))
                }
                (_, Some(outcome)) => {
                    Some(report::failed_row(&cert.spec, outcome, false, true, chain))
                }
                _ => None,
            });
            return Ok(());
        };
        let whole = !self.incomplete.contains_key(&cert.spec.authority);
        let still_serves = cert.still_serves(Some(trusted), self.now);
        let urgent = cert.urgent && self.rotating.is_some();
        let SurveyedCert {
            spec,
            found,
            action,
            due,
            keep_key,
            ..
        } = cert;
        let due = due.filter(|_| self.rotating.is_some());
        let chain = found.chain.present();
        let renewed = chain.is_some();
        let installed_before = self.installed.len();
        let issue = matches!(action, Action::Issue { .. });
        let row = match (action, outcome) {
            (Action::Keep { notes }, _) => Row {
                due,
                ..report::cert_row(&spec, RowAction::Kept, notes, chain)
            },
            (Action::Refuse { reason }, _) => report::refused_row(&spec, reason, chain),
            (
                Action::Issue { mut reasons },
                Some(Outcome::Signed {
                    chain,
                    key,
                    request,
                }),
            ) if whole => {
                let (done, due) = self.said(&spec, &chain, found.chain.present(), keep_key);
                if still_serves && let Some(old) = found.chain.present() {
                    reasons.extend(self.rotating.and(copies(&spec, old)));
                }
                let document = found.kubeconfig.map(|kubeconfig| kubeconfig.document);
                self.add(&spec, (&chain, &key), true, trusted, document, found.store)?;
                let record = record(&chain, self.now);
                self.commit.issued(spec.name, record.clone());
                self.commit.completes(Slot::Certificate(spec.name));
                self.installed.push(Installed {
                    request,
                    record,
                    renewed,
                });
                if let Lifetime::Differs(note) = life_of(&chain, &spec, self.now) {
                    reasons.push(note);
                }
                reasons.extend(beyond_authority(&chain, trusted));
                Row {
                    due,
                    ..report::cert_row(&spec, done, reasons, Some(&chain))
                }
            }
            (Action::Rewrite { reasons }, _) if whole => {
                let row = report::cert_row(&spec, RowAction::Rewritten, reasons, chain);
                match (found.chain, found.key, found.kubeconfig) {
                    (_, _, Some(kubeconfig)) if kubeconfig.by_file && found.store.is_none() => {
                        self.add_cluster(&spec, trusted, kubeconfig.document)?;
                    }
                    (Found::Present(chain), Found::Present(key), kubeconfig) => {
                        let document = kubeconfig.map(|kubeconfig| kubeconfig.document);
                        let pair = (&chain, &key);
                        self.add(&spec, pair, false, trusted, document, found.store)?;
                    }
                    // Only what is present and whole is ever rewritten.
                    _ => {}
                }
                row
            }
            (Action::Issue { .. }, Some(Outcome::Signed { .. })) => {
                let missing = self.incomplete.get(&spec.authority).into_iter().flatten();
                let missing: Vec<&str> = missing.map(|name| name.as_str()).collect();
                let reason = format!(
                    "signed; it is installed together with the rest of what {} signs (missing: {})",
                    spec.authority,
                    missing.join(", ")
                );
                report::waiting_row(&spec, reason, still_serves, chain)
            }
            (Action::Issue { .. }, Some(outcome)) => {
                report::failed_row(&spec, outcome, still_serves, urgent, chain)
            }
            (Action::Issue { reasons } | Action::Rewrite { reasons }, _) => {
                report::waiting_row(&spec, reasons.join("; "), still_serves, chain)
            }
        };
        if issue
            && self.installed.len() == installed_before
            && let Some(not_after) = row.not_after
        {
            self.expiring.push(Event::Expiring {
                name: spec.name,
                not_after,
            });
        }
        self.rows.push(row);
        Ok(())
    }

    /// What is said of a new certificate: the word for it, and when it will be due.
    fn said(
        &self,
        spec: &CertSpec,
        new: &Chain,
        old: Option<&Chain>,
        keep_key: bool,
    ) -> (RowAction, Option<OffsetDateTime>) {
        let Some(Rotating { rotation, node, .. }) = self.rotating else {
            return (RowAction::Issued, None);
        };
        let trust = self.trust.get(&spec.authority);
        let age = Age::of(new, Some(self.now), trust, spec.profile.lifetime);
        let word = match old {
            None => RowAction::Issued,
            Some(_) if keep_key => RowAction::Renewed,
            Some(_) => RowAction::Rekeyed,
        };
        (word, Some(due_at(&age.life, rotation, node).0))
    }

    fn service_account(
        &mut self,
        spec: &ServiceAccountSpec,
        action: &ServiceAccountAction,
        made: Option<&PrivateKey>,
        handed: &[PublicKey],
        root: &Root,
    ) -> Result<(), Failure> {
        // A pair of our own is of no use before the API server has its certificate, and a run that is refused changes
        // nothing.
        let held = match action {
            ServiceAccountAction::Install => self.refused,
            _ => self.incomplete.contains_key(&Authority::Ca),
        };
        let done = match (action, made) {
            (ServiceAccountAction::Keep, _)
            | (ServiceAccountAction::Make | ServiceAccountAction::Install, None) => RowAction::Kept,
            _ if held => RowAction::HeldBack,
            (ServiceAccountAction::Make, Some(key)) => {
                let public = key.public_key().to_pem().into_bytes();
                self.commit.file_if_absent(
                    spec.private.clone(),
                    key.to_pem().as_bytes().to_vec(),
                    Mode::Private,
                );
                self.commit
                    .file_if_absent(spec.public.clone(), public, Mode::Private);
                RowAction::Made
            }
            (ServiceAccountAction::Install, Some(key)) => {
                let public: String = handed.iter().map(PublicKey::to_pem).collect();
                let private = key.to_pem().as_bytes().to_vec();
                self.commit
                    .file_if_absent(spec.private.clone(), private, Mode::Private);
                // In the mode of `kubeadm join`. One that is there has the key, and others perhaps.
                let found = root.read(&spec.public)?;
                if found.is_none_or(|found| found.bytes.is_empty()) {
                    self.commit.file_if_absent(
                        spec.public.clone(),
                        public.into_bytes(),
                        Mode::Public,
                    );
                }
                RowAction::Written
            }
            (ServiceAccountAction::DerivePublic, _) => {
                if let Some(private) = root.read(&spec.private)? {
                    let key = PrivateKey::from_pem(&private.bytes).map_err(|error| {
                        Failure::new(ExitCode::Refused, format!("{}: {error}", spec.private))
                    })?;
                    let public = key.public_key().to_pem().into_bytes();
                    self.commit.file(spec.public.clone(), public, Mode::Private);
                    if private.metadata.mode & 0o007 != 0 {
                        self.commit
                            .file(spec.private.clone(), private.bytes, Mode::Private);
                    }
                }
                RowAction::PublicDerived
            }
            (ServiceAccountAction::Tighten, _) => {
                if let Some(private) = root.read(&spec.private)? {
                    self.commit
                        .file(spec.private.clone(), private.bytes, Mode::Private);
                }
                RowAction::Tightened
            }
        };
        self.rows.push(report::service_account_row(spec, done));
        Ok(())
    }

    fn provided(&mut self, file: &ProvidedFile) {
        // A file of the state directory was written before the first request.
        let is_held = self.refused && !file.ours;
        if !is_held {
            let (path, bytes) = (file.path.clone(), file.bytes.clone());
            match file.ours {
                true => self.commit.file(path, bytes, file.mode),
                false => self.commit.file_if_absent(path, bytes, file.mode),
            };
        }
        let action = match is_held {
            true => RowAction::HeldBack,
            false => RowAction::Written,
        };
        self.rows.push(report::provided_row(file, action));
    }

    /// `document` and `store` are what was found around the certificate; `issued` when the pair is new.
    fn add(
        &mut self,
        spec: &CertSpec,
        (chain, key): (&Chain, &PrivateKey),
        issued: bool,
        trusted: &TrustBundle,
        document: Option<Kubeconfig>,
        store: Option<FoundStore>,
    ) -> Result<(), Failure> {
        if let Some(store) = store {
            let identity = Identity {
                spec,
                trusted,
                chain,
                key,
                issued,
                store,
                document,
            };
            return identity.add_to(&mut self.commit, &self.root, self.now);
        }
        let (certificate_pem, key_pem) = (chain.to_pem(), key.to_pem());
        match &spec.output {
            Output::Pair { certificate, key } => {
                self.commit
                    .file(key.clone(), key_pem.as_bytes().to_vec(), Mode::Private);
                self.commit.file(
                    certificate.clone(),
                    certificate_pem.into_bytes(),
                    Mode::Public,
                );
                let change = Change::Certificate(spec.name);
                self.commit.change(change, certificate.clone(), self.now);
            }
            Output::Kubeconfig {
                path,
                server,
                cluster,
                user,
                ..
            } => {
                let authority = trusted.roots_to_pem();
                let credentials = Credentials {
                    server,
                    authority: &authority,
                    certificate: &certificate_pem,
                    key: &key_pem,
                };
                let document = match document {
                    Some(mut document) => {
                        document
                            .set_credentials(&credentials)
                            .map_err(|error| unrepairable(path, &error))?;
                        document
                    }
                    None => Kubeconfig::new(cluster, user, &credentials),
                };
                self.commit.file(
                    path.clone(),
                    document.to_yaml().as_bytes().to_vec(),
                    Mode::Private,
                );
                let change = Change::Certificate(spec.name);
                self.commit.change(change, path.clone(), self.now);
            }
        }
        Ok(())
    }

    /// For a kubeconfig that names its certificate by file: those files are somebody else's.
    fn add_cluster(
        &mut self,
        spec: &CertSpec,
        trusted: &TrustBundle,
        mut document: Kubeconfig,
    ) -> Result<(), Failure> {
        if let Output::Kubeconfig { path, server, .. } = &spec.output {
            let authority = trusted.roots_to_pem();
            document
                .set_cluster(server, &authority)
                .map_err(|error| unrepairable(path, &error))?;
            self.commit.file(
                path.clone(),
                document.to_yaml().as_bytes().to_vec(),
                Mode::Private,
            );
            let change = Change::Certificate(spec.name);
            self.commit.change(change, path.clone(), self.now);
        }
        Ok(())
    }
}

/// People carry copies of these; the old certificate in them is not revoked.
fn copies(spec: &CertSpec, old: &Chain) -> Option<String> {
    matches!(spec.name, CertName::AdminConf | CertName::SuperAdminConf).then(|| {
        format!(
            "copies of the old {} work until {}; hand out new ones by then",
            spec.name,
            rfc3339(old.leaf().not_after())
        )
    })
}

fn record(chain: &Chain, now: OffsetDateTime) -> Issued {
    let leaf = chain.leaf();
    Issued {
        at: now,
        serial: leaf.serial().to_owned(),
        not_after: leaf.not_after(),
        sha256: hex(&leaf.fingerprint()),
    }
}

pub(super) fn unrepairable(path: &NodePath, error: &KubeconfigError) -> Failure {
    Failure::new(
        ExitCode::Refused,
        format!("{path}: {error}; move it away and run again"),
    )
}
