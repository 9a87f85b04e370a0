//! Renewal: issues certificates again that are due or differ from the plan, with the same steps as `bootstrap`.
//!
//! Unlike in a bootstrap, every certificate has a commit of its own, so a failed one does not delay the others. A
//! valid certificate survives every failure, and the failure is reported. `spec::assess` decides what is due and when.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use time::serde::rfc3339;
use time::{Duration, OffsetDateTime};

use super::survey::{Rotating, ServiceAccountFault, SurveyRefusal};
use super::{
    Clock, Failure, Progress, RequestRun, RunReport, RunSetup, ServiceAccountAction, Survey,
    install, no_room, open_store, report, revocation, verify_room_for, written,
};
use crate::kube::components::ReplacedFile;
use crate::kube::names::{Authority, CertName};
use crate::node::NodeState;
use crate::signer::Renewal;
use crate::spec::assess::{Action, CertRefusal, Observed, RenewalCause, joined};
use crate::spec::schedule;
use crate::store::{NodeRoot, RestartState, Slot, Unsettled};
use crate::text::rfc3339;

/// A clock that is behind a recorded issue time by more than this was set back.
const MAX_CLOCK_ROLLBACK: Duration = Duration::minutes(5);
/// Delay until a certificate that needs manual action is assessed again.
const REFUSED_RETRY_INTERVAL: Duration = Duration::hours(1);
/// Delay until a commit that stopped after its point of commit is finished.
const RECOVERY_RETRY_INTERVAL: Duration = Duration::minutes(1);

/// Which certificates a renewal replaces, and with which keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All certificates that are due or differ from the plan.
    Due,
    /// All certificates, due or not.
    All,
    /// The named certificates, due or not.
    Names(BTreeSet<CertName>),
    /// The named certificates, of any age, with new keys, because their keys may be compromised.
    Forced(BTreeSet<CertName>),
    /// The named certificates, of any age, because their authority was changed. Answers of the old authority are refused,
    /// so that a certificate is renewed only once.
    AuthorityChanged(BTreeSet<CertName>),
}

impl Scope {
    fn has(&self, name: CertName) -> bool {
        match self {
            Scope::Due | Scope::All => true,
            Scope::Names(names) | Scope::Forced(names) | Scope::AuthorityChanged(names) => {
                names.contains(&name)
            }
        }
    }

    /// Returns whether the whole node is renewed, not named certificates.
    fn is_of_node(&self) -> bool {
        matches!(self, Scope::Due | Scope::All)
    }

    fn demand(&self) -> RenewalCause {
        match self {
            Scope::Due => RenewalCause::Due,
            Scope::All | Scope::Names(_) => RenewalCause::Requested,
            Scope::Forced(_) => RenewalCause::Forced,
            Scope::AuthorityChanged(_) => RenewalCause::AuthorityChanged,
        }
    }
}

/// Result of a run.
#[derive(Debug)]
pub struct Renewed {
    /// The changes and failures.
    pub report: RunReport,
    /// When the next renewal is due, or a failed one is retried.
    pub next: Option<OffsetDateTime>,
}

/// Renews the certificates of `scope`, as far as the signers answer in time.
///
/// If nothing is due, nothing is written, no lock is taken and no signer is contacted. Otherwise the files are read once
/// more under the lock, and only the written ones after that.
///
/// # Errors
/// A failure of the whole run. The result of each certificate is in the report.
pub async fn renew(
    root: &NodeRoot,
    setup: &RunSetup,
    scope: &Scope,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Renewed, Failure> {
    // Even if nothing is due, the next run has to finish what an interrupted one has decided.
    if !root.has_unfinished()? {
        let survey = planned_renewal(root, setup, scope, clock())?;
        if !has_work(&survey) {
            let next = next(root, &survey, setup, clock())?;
            let report = report::settled(setup, survey);
            return Ok(Renewed { report, next });
        }
    }
    let (mut store, recovered) = open_store(root, setup, "renew", clock)?;
    let state = setup.state(root);
    require_bootstrapped(&state, setup)?;
    let mut survey = survey_for(&state, setup, scope, scope.demand(), clock())?;
    survey.notes.extend(recovered);
    if !has_work(&survey) {
        let next = next(root, &survey, setup, clock())?;
        let report = report::settled(setup, survey);
        return Ok(Renewed { report, next });
    }
    let mut run = RequestRun::new(setup, &store, clock, progress, &mut survey, Vec::new())?;
    for (earlier, cert) in survey.to_issue().enumerate() {
        let room = verify_room_for(store.root(), written(cert), earlier + 1);
        if let Err(failure) = room.map_err(no_room) {
            run.leave_out([cert], failure);
        }
    }
    run.settle_clock(&mut survey).await?;
    run.establish_trust(&mut survey).await?;
    setup.keep_record(&store, &survey)?;
    let attempted: BTreeSet<CertName> = to_write(&survey).collect();
    let mut outcomes = run.request_all(&survey).await?;
    let (now, retries) = (run.now(), run.retries());
    let trust = run.trust;
    revocation::refuse_revoked(setup, &store, &survey, &trust, &mut outcomes, &retries, now)
        .await?;
    let report =
        install::install(setup, &mut store, &trust, survey, outcomes, now, progress).await?;
    let is_unfinished = store.is_unfinished();
    drop(store);
    let next = if is_unfinished {
        Some(now + RECOVERY_RETRY_INTERVAL)
    } else {
        let state = state.after_commit(&report.written);
        let after = survey_for(&state, setup, &Scope::Due, RenewalCause::Due, now)?;
        // No attempt has failed for a certificate that became due while the signers answered.
        let is_new = |name| !attempted.contains(&name);
        if *scope == Scope::Due && to_write(&after).any(is_new) {
            Some(now)
        } else {
            next(root, &after, setup, now)?
        }
    };
    Ok(Renewed { report, next })
}

/// Returns what [`renew`] would do now; reads only.
///
/// # Errors
/// A file that cannot be read, and a clock that was set back.
pub fn planned_renewal(
    root: &NodeRoot,
    setup: &RunSetup,
    scope: &Scope,
    now: OffsetDateTime,
) -> Result<Survey, Failure> {
    let state = setup.state(root);
    require_bootstrapped(&state, setup)?;
    survey_for(&state, setup, scope, scope.demand(), now)
}

/// As [`planned_renewal`], with the reason for a renewal, for files of which some may have been read.
fn survey_for(
    state: &NodeState,
    setup: &RunSetup,
    scope: &Scope,
    demand: RenewalCause,
    now: OffsetDateTime,
) -> Result<Survey, Failure> {
    let mut survey = setup.survey_of(state, now)?;
    refuse_set_back_clock(&survey, setup, now)?;
    restrict(&mut survey, scope);
    report_service_account(setup, scope, &mut survey);
    note_refusals(&mut survey);
    let signers = setup.signers.iter();
    let same_key_only = signers
        .filter(|(_, (_, signer))| signer.caps().renewal == Renewal::SameKey)
        .map(|(authority, _)| *authority)
        .collect();
    survey.rotating = Some(Rotating {
        rotation: setup.rotation.clone(),
        node: setup.identity.node.clone(),
        demand,
        same_key_only,
    });
    if demand == RenewalCause::Due {
        hold(state.root(), &mut survey)?;
    }
    survey.decide(&BTreeMap::new(), now);
    // A run that repeats an interrupted one finishes it. A run without any work must report the deferral.
    if has_work(&survey) {
        for cert in &mut survey.certs {
            cert.decision.deferred = false;
        }
    }
    Ok(survey)
}

/// Refuses a node whose PKI has never been made: only a bootstrap generates its service-account pair, and would refuse to
/// do so beside certificates.
fn require_bootstrapped(state: &NodeState, setup: &RunSetup) -> Result<(), Failure> {
    let Some(pair) = &setup.plan.service_account else {
        return Ok(());
    };
    let certs = &setup.plan.certs;
    let is_made = [&pair.private, &pair.public]
        .into_iter()
        .any(|path| state.exists(path))
        || certs.iter().any(|spec| state.has_files_of(spec.name()));
    if is_made {
        return Ok(());
    }
    let dir = state.layout().certificates_dir();
    Err(Failure::refused(format!(
        "{}: there are no certificates to renew; run nodepki bootstrap, which issues the first ones",
        state.root().on_this_machine(dir).display()
    )))
}

/// Removes what `scope` does not name: certificates, and then the authorities of no certificate.
fn restrict(survey: &mut Survey, scope: &Scope) {
    survey.certs.retain(|cert| scope.has(cert.spec.name()));
    if scope.is_of_node() {
        return;
    }
    let certs = survey.certs.iter();
    let wanted: BTreeSet<Authority> = certs.map(|cert| cert.spec.authority()).collect();
    survey
        .bundles
        .retain(|bundle| wanted.contains(&bundle.spec.authority));
}

/// Reports a fault of the service-account pair: it fails a renewal of the whole node, and is a note in one of single
/// certificates.
fn report_service_account(setup: &RunSetup, scope: &Scope, survey: &mut Survey) {
    let fault = service_account_fault(setup, survey);
    survey
        .refusals
        .retain(|refusal| !matches!(refusal, SurveyRefusal::ServiceAccount(_)));
    if scope.is_of_node() {
        survey.service_account_refused = fault
    } else {
        survey.notes.extend(fault.map(|fault| fault.to_string()));
    }
}

/// Turns the refusals into notes, each reported once, except those that the row of a certificate reports: a bootstrap stops
/// at any refusal, a renewal does not.
fn note_refusals(survey: &mut Survey) {
    let notes = survey.refusals_without_row();
    let notes: Vec<String> = notes.map(ToString::to_string).collect();
    survey.refusals.clear();
    survey.notes.extend(notes);
}

/// Returns the fault of the service-account pair. A renewal never replaces the pair: a new one would differ from the
/// cluster's.
fn service_account_fault(setup: &RunSetup, survey: &mut Survey) -> Option<ServiceAccountFault> {
    let spec = setup.plan.service_account.as_ref()?;
    let directory = spec.private.directory();
    let action = survey.service_account.take();
    if let Some(refused) = survey.service_account_refused.take() {
        return Some(refused);
    }
    match action? {
        ServiceAccountAction::Keep => None,
        ServiceAccountAction::Tighten => {
            survey.notes.push(format!(
                "{} is readable by every user; run nodepki bootstrap, which sets mode 0600",
                spec.private
            ));
            None
        }
        ServiceAccountAction::DerivePublic => Some(ServiceAccountFault::PublicAbsent {
            public: spec.public.clone(),
        }),
        ServiceAccountAction::Install => Some(ServiceAccountFault::NotInstalled { directory }),
        ServiceAccountAction::Make => Some(ServiceAccountFault::PairLost { directory }),
    }
}

/// Returns whether the certificate or the key exists.
fn exists(cert: &super::SurveyedCert) -> bool {
    let is_absent =
        matches!(cert.found.chain, Observed::Absent) && matches!(cert.found.key, Observed::Absent);
    !is_absent
}

/// Refuses the next files of a component that did not become ready with the last ones, as long as its old certificate is
/// valid: an administrator must find the cause first.
fn hold(root: &NodeRoot, survey: &mut Survey) -> Result<(), Failure> {
    for restart in root.restarts()? {
        let RestartState::RolledBack { why } = &restart.state else {
            continue;
        };
        for cert in &mut survey.certs {
            let name = cert.spec.name();
            if restart.causes.contains(&ReplacedFile::Certificate(name)) {
                cert.held = Some(CertRefusal::ComponentNotReady {
                    component: restart.component,
                    why: why.clone(),
                    name,
                });
            }
        }
    }
    Ok(())
}

/// Fails if the clock was set back since a certificate was issued, unless the certificate shows that the clock was ahead
/// then ([`Age::of`](crate::spec::assess::Age::of)): every certificate would look younger than it is, and a new one might not be valid yet
/// once the clock is corrected.
fn refuse_set_back_clock(
    survey: &Survey,
    setup: &RunSetup,
    now: OffsetDateTime,
) -> Result<(), Failure> {
    if setup.clock.allow_unsynced {
        return Ok(());
    }
    let recorded = survey.certs.iter().filter_map(|cert| {
        let age = cert.age.filter(|age| age.recorded)?;
        Some((cert.spec.name(), age.life.issued_at))
    });
    match recorded.max_by_key(|(_, issued)| *issued) {
        Some((name, issued)) if issued - now > MAX_CLOCK_ROLLBACK => {
            Err(Failure::pending(format!(
                "the clock shows {}, but {name} was issued on this node at {}: the clock was set back by {}, and nothing is renewed; correct the time (timedatectl, chronyc tracking) and run again, or use --allow-unsynced if the recorded time of issue was wrong",
                rfc3339(now),
                rfc3339(issued),
                schedule::length_in_words(issued - now)
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the certificates whose files are to be written.
fn to_write(survey: &Survey) -> impl Iterator<Item = CertName> {
    let certs = survey.certs.iter();
    certs
        .filter(|cert| cert.decision.writes())
        .map(|cert| cert.spec.name())
}

fn has_work(survey: &Survey) -> bool {
    let certs = to_write(survey).next().is_some();
    let bundles = survey
        .bundles
        .iter()
        .any(|bundle| !bundle.is_settled() && bundle.refused.is_empty());
    certs || bundles || !survey.missing_files.is_empty()
}

/// Returns the earliest time at which a renewal may be due.
fn next(
    root: &NodeRoot,
    survey: &Survey,
    setup: &RunSetup,
    now: OffsetDateTime,
) -> Result<Option<OffsetDateTime>, Failure> {
    let polls: BTreeMap<Slot, OffsetDateTime> = root
        .tickets()?
        .into_iter()
        .filter_map(|(slot, ticket)| {
            let ticket = ticket?;
            Some((slot, ticket.next_poll.max(ticket.not_before)?))
        })
        .collect();
    let node = &setup.identity.node;
    let of = |cert: &super::SurveyedCert| match cert.decision.action {
        Action::Keep { .. } => cert.decision.next,
        Action::Refuse { .. } => Some(now + REFUSED_RETRY_INTERVAL),
        Action::Issue { .. } | Action::Rewrite { .. } => {
            let retry = schedule::retry_at(cert.age.as_ref().map(|age| &age.life), node, now);
            let poll = polls.get(&Slot::Certificate(cert.spec.name())).copied();
            // A poll time in the past is replaced by the retry time of a failure.
            Some(poll.filter(|poll| *poll > now).unwrap_or(retry))
        }
    };
    Ok(survey.certs.iter().filter_map(of).min())
}

/// Whether a renewal is needed, for conditions of systemd units.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewalNeed {
    /// Whether a renewal is needed.
    pub answer: RenewalVerdict,
    /// Reason for the answer, in one line.
    pub reason: String,
    /// When the next renewal is due, if known.
    #[serde(rename = "due", with = "rfc3339::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<OffsetDateTime>,
}

/// The answer of [`RenewalNeed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RenewalVerdict {
    /// A renewal has work to do now.
    Yes,
    /// No renewal is due.
    No,
    /// The node has no certificate to renew.
    Nothing,
    /// The files need manual action first.
    Unknown,
}

/// Returns the first replaced file that has not taken effect everywhere. `None` below another root, where no component
/// runs.
fn not_in_effect(root: &NodeRoot) -> Result<Option<&'static str>, Failure> {
    if root.path() != Path::new("/") {
        return Ok(None);
    }
    let Unsettled {
        restarts, changed, ..
    } = root.unsettled()?;
    let mut due = restarts
        .iter()
        .filter(|restart| matches!(restart.state, RestartState::Due));
    let of_restart = due.find_map(|restart| restart.causes.first());
    let change = of_restart.or(changed.first().map(|changed| &changed.change));
    Ok(change.map(|change| change.as_str()))
}

/// Returns whether [`renew`] has work to do. Reads only.
///
/// # Errors
/// As for [`planned_renewal`].
pub fn needs_renewal(
    root: &NodeRoot,
    setup: &RunSetup,
    scope: &Scope,
    now: OffsetDateTime,
) -> Result<RenewalNeed, Failure> {
    // Certificates requested by name are assessed by their age as well.
    let survey = survey_for(&setup.state(root), setup, scope, RenewalCause::Due, now)?;
    let next = next(root, &survey, setup, now)?;
    let need = |answer, reason| RenewalNeed {
        answer,
        reason,
        next,
    };
    // Also while nothing exists: the run completes an interrupted first bootstrap.
    if root.has_unfinished()? {
        let reason = "an earlier run was interrupted while writing".to_owned();
        return Ok(need(RenewalVerdict::Yes, reason));
    }
    if !survey.certs.iter().any(exists) {
        let reason = "this node has no certificate yet; run nodepki bootstrap".to_owned();
        return Ok(need(RenewalVerdict::Nothing, reason));
    }
    let wants = survey
        .certs
        .iter()
        .find_map(|cert| match &cert.decision.action {
            Action::Issue { reasons } | Action::Rewrite { reasons } => {
                Some(format!("{}: {}", cert.spec.name(), joined(reasons)))
            }
            _ => None,
        });
    if let Some(reason) = wants {
        return Ok(need(RenewalVerdict::Yes, reason));
    }
    if has_work(&survey) {
        let reason = "a CA certificate or a file of the cluster is not in place".to_owned();
        return Ok(need(RenewalVerdict::Yes, reason));
    }
    if let Some(what) = not_in_effect(root)? {
        let reason = format!("{what} was replaced and has not taken effect everywhere");
        return Ok(need(RenewalVerdict::Yes, reason));
    }
    let refused = survey
        .certs
        .iter()
        .find_map(|cert| match &cert.decision.action {
            Action::Refuse { reason } => Some(format!("{}: {reason}", cert.spec.name())),
            _ => None,
        });
    let service_account = survey.service_account_refused.as_ref();
    if let Some(reason) = refused.or(service_account.map(|reason| format!("sa: {reason}"))) {
        return Ok(need(RenewalVerdict::Unknown, reason));
    }
    let reason = match next {
        Some(at) => format!("nothing is due before {}", rfc3339(at)),
        None => "nothing is due".to_owned(),
    };
    Ok(need(RenewalVerdict::No, reason))
}
