//! Installs verified certificates: plans what is installed and what is held back, makes the commits, and writes the rows of
//! the report.

mod output;
mod plan;

use std::collections::BTreeMap;
use std::rc::Rc;

use time::OffsetDateTime;

use super::request::{AnswerFault, NotInstalled, Unsigned};
use super::{
    Event, Failure, Outcomes, Progress, ReportRow, RowAction, RowReason, RunReport, RunSetup,
    Survey, audit, report, sentence,
};
use crate::kube::names::{Authority, CertName};
use crate::process::failpoint;
use crate::signer::Request;
use crate::spec::CertSpec;
use crate::spec::assess::joined;
use crate::store::{AuditRecord, Commit, Committed, IssuedRecord, NodeRoot, Store};
use crate::x509::{Chain, TrustBundle};

/// Installs all requested certificates of an authority together, or none of them. During a rotation each certificate
/// whose trust bundle is installed gets a commit of its own.
///
/// # Errors
/// A failed commit; the store's message names the state of the files.
pub(super) async fn install(
    setup: &RunSetup,
    store: &mut Store,
    trust: &BTreeMap<Authority, TrustBundle>,
    survey: Survey,
    outcomes: Outcomes,
    now: OffsetDateTime,
    progress: &dyn Progress,
) -> Result<RunReport, Failure> {
    report_unsigned(setup, &outcomes, progress);
    let (notes, is_rotation) = (survey.notes.clone(), survey.rotating.is_some());
    let CommitPlan { mut steps, shared } =
        CommitPlan::of(setup, store.root(), trust, survey, outcomes, now)?;
    let mut committed = Committed::default();
    for step in &mut steps {
        step.commit(store, &mut committed);
    }
    if !(is_rotation && shared.is_empty()) {
        match commit(store, shared, &mut committed) {
            // Certificates with a commit of their own are already installed and are reported in any case.
            Err(failure) if is_rotation => steps.iter_mut().for_each(|step| step.fail(&failure)),
            other => other?,
        }
    }
    finish(setup, store.root(), steps, committed, notes, now, progress).await
}

/// Makes one commit.
fn commit(store: &mut Store, commit: Commit, all: &mut Committed) -> Result<(), Failure> {
    failpoint::reached("run:before-commit");
    let committed = store.commit(commit)?;
    failpoint::reached("run:committed");
    all.written.extend(committed.written);
    all.notes.extend(committed.notes);
    Ok(())
}

/// Sends the events of the commits, tells each signer that its certificate is installed, and returns the report.
async fn finish(
    setup: &RunSetup,
    root: &NodeRoot,
    steps: Vec<InstallStep>,
    committed: Committed,
    mut notes: Vec<String>,
    now: OffsetDateTime,
    progress: &dyn Progress,
) -> Result<RunReport, Failure> {
    notes.extend(committed.notes.iter().map(ToString::to_string));
    let mut rows = Vec::new();
    let mut installed = Vec::new();
    for step in steps {
        rows.extend(step.row);
        installed.extend(step.installed);
        if let Some(expiring) = step.expiring {
            progress.event(expiring);
        }
    }
    let audited: Vec<AuditRecord> = installed.iter().map(|one| one.audit.clone()).collect();
    audit::append(root, now, &audited);
    for installed in installed {
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
        rows,
        notes,
        written: committed.written,
        ignore_preflight_errors: setup.ignore_preflight_errors(),
    };
    Ok(report.with_signers(setup))
}

/// Reports each request that did not end with a signature. Signed certificates are reported once they are installed.
fn report_unsigned(setup: &RunSetup, outcomes: &Outcomes, progress: &dyn Progress) {
    for (name, outcome) in &outcomes.certs {
        let signer = setup.signers.get(&name.authority());
        let signer = signer.map_or("", |(signer, _)| signer.as_str());
        if let Err(why) = outcome {
            progress.event(not_installed_event(*name, signer, why));
        }
    }
}

/// Returns the event for a request that did not end with a signature.
fn not_installed_event(name: CertName, signer: &str, why: &NotInstalled) -> Event {
    let signer = signer.to_owned();
    let unsigned = match why {
        NotInstalled::Unsigned(unsigned) => unsigned,
        NotInstalled::Undone(failure) => {
            return Event::Failed {
                name,
                signer,
                why: failure.to_string(),
                code: "Failed",
            };
        }
    };
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
    }
}

/// What a run writes, in the order of its report.
struct CommitPlan {
    steps: Vec<InstallStep>,
    /// The commit of all steps that have none of their own.
    shared: Commit,
}

/// One row of the report, and what belongs to it.
#[derive(Default)]
struct InstallStep {
    row: Option<ReportRow>,
    installed: Option<Installed>,
    /// The event for a certificate that was due and is not replaced.
    expiring: Option<Event>,
    commit: StepCommit,
}

/// The commit that a step is part of.
#[derive(Default)]
enum StepCommit {
    /// That of the plan.
    #[default]
    Shared,
    /// One of its own, so a path that cannot be written fails this certificate only.
    Own(Box<(Commit, CertInPlace)>),
    /// One of its own, and it was made.
    Made,
}

/// A new certificate.
struct Installed {
    request: Box<Request>,
    audit: AuditRecord,
    record: IssuedRecord,
    /// It replaces another certificate.
    renewed: bool,
}

/// A certificate that stays if its commit fails.
struct CertInPlace {
    spec: CertSpec,
    chain: Option<Chain>,
    still_serves: bool,
    urgent: bool,
}

impl CertInPlace {
    /// Returns the step of a certificate that was not replaced. After the point of commit the files may be torn: old, new or
    /// mixed, and none is known to serve.
    fn failed(self, failure: Failure, is_torn: bool) -> InstallStep {
        let name = self.spec.name();
        let chain = self.chain.as_ref().filter(|_| !is_torn);
        let serves = self.still_serves && !is_torn;
        let why = NotInstalled::Undone(Rc::new(failure));
        let row = report::failed_row(&self.spec, why, serves, self.urgent, chain);
        InstallStep {
            row: Some(row),
            expiring: chain.map(|chain| Event::Expiring {
                name,
                not_after: chain.leaf().not_after(),
            }),
            installed: None,
            commit: StepCommit::Made,
        }
    }
}

impl InstallStep {
    fn of(row: ReportRow) -> InstallStep {
        InstallStep {
            row: Some(row),
            ..InstallStep::default()
        }
    }

    /// Makes the step's own commit, if it has one.
    fn commit(&mut self, store: &mut Store, committed: &mut Committed) {
        let (changes, in_place) = match std::mem::replace(&mut self.commit, StepCommit::Made) {
            StepCommit::Own(own) => *own,
            other => {
                self.commit = other;
                return;
            }
        };
        let was_unfinished = store.is_unfinished();
        if let Err(failure) = commit(store, changes, committed) {
            let is_torn = store.is_unfinished() && !was_unfinished;
            *self = in_place.failed(failure, is_torn);
        }
    }

    /// Reports that the shared commit has failed, if the step is part of it and would have changed something.
    fn fail(&mut self, failure: &Failure) {
        if !matches!(self.commit, StepCommit::Shared) {
            return;
        }
        self.installed = None;
        if let Some(row) = &mut self.row
            && row.code.is_none()
            && !matches!(row.action, RowAction::Kept | RowAction::HeldBack)
        {
            row.action = RowAction::Failed;
            row.reasons = RowReason::of_failure(failure);
            row.code = Some(failure.code);
        }
    }
}
