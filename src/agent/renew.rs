//! Rotation: what is due or has drifted is issued anew, on the road of `bootstrap`.
//!
//! What differs: every certificate is installed on its own, so that a failed one holds up no other; one that serves
//! survives whatever happens here, and is reported. Nothing is decided here: `assess` says what to do and when.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use time::{Duration, OffsetDateTime};

use super::survey::Rotating;
use super::{
    Clock, ExitCode, Failure, Progress, Report, Run, ServiceAccountAction, Setup, Survey, install,
    open_store, report, revocation, room_for, written,
};
use crate::kube::components::Change;
use crate::kube::names::{Authority, CertName};
use crate::process::machine;
use crate::signer::Renewal;
use crate::spec::assess::{Action, COPY_SERVICE_ACCOUNT, Demand, Found};
use crate::spec::schedule;
use crate::store::{RestartState, Root, Slot, Unsettled};
use crate::x509::{TrustBundle, rfc3339};

/// A clock that shows so much less than a recorded issue time was set back.
const LARGEST_JUMP: Duration = Duration::minutes(5);
/// When to look again at what a person has to mend.
const REFUSED_AGAIN: Duration = Duration::hours(1);

/// When to finish a commit that stopped after its point of commit.
const FINISH_AGAIN: Duration = Duration::minutes(1);

/// What a run is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything that is due or has drifted.
    Due,
    /// Everything, due or not.
    All,
    /// These, due or not.
    Names(BTreeSet<CertName>),
    /// These, however young, and with new keys: theirs may be known to others.
    Forced(BTreeSet<CertName>),
    /// These, however young: their authority was changed, and no answer of the old one is taken, so that they cannot come
    /// round again.
    Anew(BTreeSet<CertName>),
}

impl Scope {
    fn has(&self, name: CertName) -> bool {
        match self {
            Scope::Due | Scope::All => true,
            Scope::Names(names) | Scope::Forced(names) | Scope::Anew(names) => {
                names.contains(&name)
            }
        }
    }

    /// True for a renewal of the whole node, false for one of named certificates.
    fn is_of_node(&self) -> bool {
        matches!(self, Scope::Due | Scope::All)
    }

    fn demand(&self) -> Demand {
        match self {
            Scope::Due => Demand::Due,
            Scope::All | Scope::Names(_) => Demand::Asked,
            Scope::Forced(_) => Demand::Forced,
            Scope::Anew(_) => Demand::Anew,
        }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Renewed {
    /// What was done.
    pub report: Report,
    /// When something will be due, or may be tried again.
    pub next: Option<OffsetDateTime>,
}

/// Renews what `scope` says, as far as the signers answer in time.
///
/// Where nothing is to be done nothing is written, no lock taken and nobody asked.
///
/// # Errors
/// When nothing could be done at all. What became of single certificates is in the report.
pub async fn renew(
    root: &Root,
    setup: &Setup,
    scope: &Scope,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Renewed, Failure> {
    if !root.has_unfinished()? {
        let survey = look(root, setup, scope, clock())?;
        if !has_work(&survey) {
            let next = next(root, &survey, setup, clock())?;
            let report = report::settled(setup, survey);
            return Ok(Renewed { report, next });
        }
    }
    let (mut store, recovered) = open_store(root, setup, "renew", clock)?;
    let mut survey = look(root, setup, scope, clock())?;
    survey.notes.extend(recovered);
    if !has_work(&survey) {
        let next = next(root, &survey, setup, clock())?;
        let report = report::settled(setup, survey);
        return Ok(Renewed { report, next });
    }
    let mut run = Run::new(setup, &store, clock, progress, &mut survey)?;
    for cert in survey.to_issue() {
        if let Err(failure) = room_for(store.root(), written(cert)) {
            run.leave_out([cert], failure);
        }
    }
    run.settle_clock(&mut survey).await?;
    run.establish_trust(&mut survey).await?;
    setup.keep_record(&store, &survey)?;
    let mut outcomes = run.request_all(&survey).await?;
    let (now, enquiry) = (run.now(), run.enquiry());
    let trust = run.trust;
    revocation::strike_out(setup, &store, &survey, &trust, &mut outcomes, &enquiry, now).await?;
    let report =
        install::install(setup, &mut store, &trust, survey, outcomes, now, progress).await?;
    let is_unfinished = store.is_unfinished();
    drop(store);
    let after = look(root, setup, &Scope::Due, now)?;
    let next = match is_unfinished {
        true => Some(now + FINISH_AGAIN),
        false => next(root, &after, setup, now)?,
    };
    Ok(Renewed { report, next })
}

/// What [`renew`] would do now, reading only.
///
/// # Errors
/// What cannot be read, and a clock that was set back.
pub fn look(
    root: &Root,
    setup: &Setup,
    scope: &Scope,
    now: OffsetDateTime,
) -> Result<Survey, Failure> {
    look_for(root, setup, scope, scope.demand(), now)
}

fn look_for(
    root: &Root,
    setup: &Setup,
    scope: &Scope,
    demand: Demand,
    now: OffsetDateTime,
) -> Result<Survey, Failure> {
    steady(root, setup, now)?;
    let mut survey = setup.survey(root, now)?;
    restrict(&mut survey, scope);
    report_service_account(setup, scope, &mut survey);
    refuse_per_authority(&mut survey);
    choose_keys(setup, demand, &mut survey);
    let trust: BTreeMap<_, _> = survey
        .bundles
        .iter()
        .filter_map(|bundle| Some((bundle.spec.authority, bundle.found.present()?.clone())))
        .collect();
    survey.rotating = Some(Rotating {
        rotation: setup.rotation.clone(),
        node: setup.identity.node.clone(),
        demand,
    });
    survey.rotate(|authority| trust.get(&authority).cloned(), now);
    if demand == Demand::Due {
        hold(root, &mut survey, &trust, now)?;
    }
    // A run that repeats an interrupted one finishes it; one that would do nothing at all must not end as if it had.
    if has_work(&survey) {
        for cert in &mut survey.certs {
            cert.deferred = false;
        }
    }
    Ok(survey)
}

/// Removes what `scope` does not name: certificates, and then the authorities of no certificate.
fn restrict(survey: &mut Survey, scope: &Scope) {
    survey.certs.retain(|cert| scope.has(cert.spec.name));
    if scope.is_of_node() {
        return;
    }
    let certs = survey.certs.iter();
    let wanted: BTreeSet<Authority> = certs.map(|cert| cert.spec.authority).collect();
    survey
        .bundles
        .retain(|bundle| wanted.contains(&bundle.spec.authority));
}

/// Reports a fault of the service-account pair: it fails a renewal of the whole node, and is a note in one of single
/// certificates.
fn report_service_account(setup: &Setup, scope: &Scope, survey: &mut Survey) {
    let fault = service_account_fault(setup, survey);
    survey
        .refusals
        .retain(|refusal| fault.as_ref() != Some(refusal));
    match scope.is_of_node() {
        true => survey.service_account_refused = fault,
        false => {
            survey.service_account_refused = None;
            survey.notes.extend(fault);
        }
    }
}

/// Refuses the certificates of an authority that was refused, and no others. A bootstrap stops at any refusal; here the
/// remaining refusals become notes, each said once.
fn refuse_per_authority(survey: &mut Survey) {
    survey.notes.append(&mut survey.refusals);
    let bundles = survey.bundles.iter();
    let refused: BTreeMap<Authority, String> = bundles
        .filter_map(|bundle| Some((bundle.spec.authority, bundle.refused.clone()?)))
        .collect();
    let certs = &survey.certs;
    survey.notes.retain(|note| {
        let is_of_cert =
            |action: &Action| matches!(action, Action::Refuse { reason } if reason == note);
        !certs.iter().any(|cert| is_of_cert(&cert.action))
            && !refused
                .values()
                .any(|reason| reason.contains(note.as_str()))
    });
    for cert in &mut survey.certs {
        if let Some(reason) = refused.get(&cert.spec.authority) {
            cert.action = Action::Refuse {
                reason: reason.clone(),
            };
        }
    }
}

/// Decides which certificates are renewed with the key in place.
fn choose_keys(setup: &Setup, demand: Demand, survey: &mut Survey) {
    for cert in &mut survey.certs {
        // A signer that wants the same key refuses another one, rather than certify a known key again.
        let same_key_only = setup
            .signers
            .get(&cert.spec.authority)
            .is_some_and(|(_, signer)| signer.caps().renewal == Renewal::SameKey);
        cert.keep_key = demand != Demand::Forced
            && (!setup.rotation.rekey || same_key_only)
            && cert.has_good_key();
    }
}

/// What is wrong with the service-account pair, which a renewal never touches: a new pair would differ from the cluster's.
fn service_account_fault(setup: &Setup, survey: &mut Survey) -> Option<String> {
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
                "{} is readable by everybody; run nodepki bootstrap, which sets mode 0600",
                spec.private
            ));
            None
        }
        ServiceAccountAction::DerivePublic => Some(format!(
            "{} is absent and kube-apiserver does not start without it; run nodepki bootstrap, which derives it from sa.key",
            spec.public
        )),
        ServiceAccountAction::Install => Some(format!(
            "sa.key and sa.pub of the cluster are not in {} yet; run nodepki bootstrap, which puts them in place",
            directory
        )),
        ServiceAccountAction::Make if survey.certs.iter().any(is_there) => Some(format!(
            "sa.key and sa.pub are absent from {}, and a new pair would differ from the cluster's; {COPY_SERVICE_ACCOUNT}",
            directory
        )),
        ServiceAccountAction::Make => Some(format!(
            "sa.key and sa.pub are absent from {}; run nodepki bootstrap, which makes them on a new node",
            directory
        )),
    }
}

/// Certificate or key exists.
fn is_there(cert: &super::SurveyedCert) -> bool {
    let gone = matches!(cert.found.chain, Found::Absent) && matches!(cert.found.key, Found::Absent);
    !gone
}

/// A component that did not come back with a new certificate is not given the next one before somebody has looked,
/// as long as it works with the old one.
fn hold(
    root: &Root,
    survey: &mut Survey,
    trust: &BTreeMap<Authority, TrustBundle>,
    now: OffsetDateTime,
) -> Result<(), Failure> {
    for restart in root.restarts()? {
        let RestartState::RolledBack { why } = &restart.state else {
            continue;
        };
        for cert in &mut survey.certs {
            let name = cert.spec.name;
            let held = restart.causes.contains(&Change::Certificate(name))
                && matches!(cert.action, Action::Issue { .. })
                && cert.still_serves(trust.get(&cert.spec.authority), now);
            if held {
                cert.action = Action::Refuse {
                    reason: format!(
                        "{} did not come back with the last one: {why}; find out why, then run `nodepki renew --name {name}`",
                        restart.component
                    ),
                };
            }
        }
    }
    Ok(())
}

/// By a clock that was set back everything looks younger than it is, and what is issued now may not be valid yet when
/// the clock is right again.
fn steady(root: &Root, setup: &Setup, now: OffsetDateTime) -> Result<(), Failure> {
    if setup.clock.allow_unsynced {
        return Ok(());
    }
    // A damaged record is told by the survey.
    let issued = match root.issued() {
        Err(error) if machine::is_fault(&error) => return Err(error.into()),
        issued => issued.unwrap_or_default(),
    };
    let newest = issued.iter().max_by_key(|(_, issued)| issued.at);
    match newest {
        Some((name, issued)) if issued.at - now > LARGEST_JUMP => Err(Failure::new(
            ExitCode::Pending,
            format!(
                "the clock shows {}, but {name} was issued on this node at {}: the clock was set back by {}, and nothing is renewed by it; see that the time is right (timedatectl, chronyc tracking) and run again; if the time of issue was the wrong one, --allow-unsynced goes on regardless",
                rfc3339(now),
                rfc3339(issued.at),
                schedule::length_in_words(issued.at - now)
            ),
        )),
        _ => Ok(()),
    }
}

fn has_work(survey: &Survey) -> bool {
    let certs = survey
        .certs
        .iter()
        .any(|cert| matches!(cert.action, Action::Issue { .. } | Action::Rewrite { .. }));
    let bundles = survey
        .bundles
        .iter()
        .any(|bundle| !bundle.in_place && bundle.refused.is_none());
    certs || bundles || !survey.missing_files.is_empty()
}

/// The earliest moment at which there may be something to do.
fn next(
    root: &Root,
    survey: &Survey,
    setup: &Setup,
    now: OffsetDateTime,
) -> Result<Option<OffsetDateTime>, Failure> {
    let polls: BTreeMap<Slot, OffsetDateTime> = root
        .tickets()?
        .into_iter()
        .filter_map(|(slot, ticket)| Some((slot, ticket?.next_poll?)))
        .collect();
    let node = &setup.identity.node;
    let of = |cert: &super::SurveyedCert| match cert.action {
        Action::Keep { .. } => cert.next,
        Action::Refuse { .. } => Some(now + REFUSED_AGAIN),
        Action::Issue { .. } | Action::Rewrite { .. } => {
            let retry = schedule::retry_at(cert.age.as_ref().map(|age| &age.life), node, now);
            let poll = polls.get(&Slot::Certificate(cert.spec.name)).copied();
            // A signer that forgets its own appointment is asked as after a failure.
            Some(poll.filter(|poll| *poll > now).unwrap_or(retry))
        }
    };
    Ok(survey.certs.iter().filter_map(of).min())
}

/// Whether there is something to renew, for conditions of units.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Need {
    /// The answer.
    pub answer: Answer,
    /// Why, in one line.
    pub reason: String,
    /// When there will be something, as far as that is known.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub next: Option<OffsetDateTime>,
}

/// See [`Need`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Something is to be done now.
    Yes,
    /// Nothing is.
    No,
    /// None of the certificates is there.
    Nothing,
    /// What is there has to be looked at by a person.
    Unknown,
}

/// What a run has still to see to after its renewals; below a root that nothing runs on, nothing is.
fn not_in_effect(root: &Root) -> Result<Option<&'static str>, Failure> {
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

/// Whether [`renew`] would have anything to do, reading only.
///
/// # Errors
/// As for [`look`].
pub fn needs_renewal(
    root: &Root,
    setup: &Setup,
    scope: &Scope,
    now: OffsetDateTime,
) -> Result<Need, Failure> {
    // Also for those that were asked for by name.
    let survey = look_for(root, setup, scope, Demand::Due, now)?;
    let next = next(root, &survey, setup, now)?;
    let need = |answer, reason| Need {
        answer,
        reason,
        next,
    };
    if !survey.certs.iter().any(is_there) {
        let reason = "there is no certificate yet; nodepki bootstrap makes them".to_owned();
        return Ok(need(Answer::Nothing, reason));
    }
    if root.has_unfinished()? {
        let reason = "an earlier run was interrupted while writing".to_owned();
        return Ok(need(Answer::Yes, reason));
    }
    let wants = survey.certs.iter().find_map(|cert| match &cert.action {
        Action::Issue { reasons } | Action::Rewrite { reasons } => {
            Some(format!("{}: {}", cert.spec.name, reasons.join("; ")))
        }
        _ => None,
    });
    if let Some(reason) = wants {
        return Ok(need(Answer::Yes, reason));
    }
    if has_work(&survey) {
        let reason = "a CA certificate or a file of the cluster is not in place".to_owned();
        return Ok(need(Answer::Yes, reason));
    }
    if let Some(what) = not_in_effect(root)? {
        let reason = format!("{what} was replaced and has not taken effect everywhere");
        return Ok(need(Answer::Yes, reason));
    }
    let refused = survey.certs.iter().find_map(|cert| match &cert.action {
        Action::Refuse { reason } => Some(format!("{}: {reason}", cert.spec.name)),
        _ => None,
    });
    let service_account = survey.service_account_refused.as_ref();
    if let Some(reason) = refused.or(service_account.map(|reason| format!("sa: {reason}"))) {
        return Ok(need(Answer::Unknown, reason));
    }
    let reason = match next {
        Some(at) => format!("nothing is due before {}", rfc3339(at)),
        None => "nothing is due".to_owned(),
    };
    Ok(need(Answer::No, reason))
}
