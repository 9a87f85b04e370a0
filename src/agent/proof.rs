//! Proves that a node does not need its CA keys: the certificates in place verify, and the signers answer and sign.
//!
//! Installs nothing. [`verify_signer`] requests no certificate; [`rehearse`] has one certificate signed, on the ordinary
//! path, and discards it.

use std::collections::BTreeMap;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::clock::{self, SettledClock};
use super::examine::{self, OfferError};
use super::keys::RunKeys;
use super::request::{self, IssuanceOrder, RequestContext, RequestStart, Resumed, Unsigned};
use super::retries::Retries;
use super::survey::{Survey, SurveyedCert};
use super::{Clock, Failure, Progress, RunSetup, same_authority, signer_failure};
use crate::kube::names::Authority;
use crate::signer::SignerKind;
use crate::spec::assess::{Action, joined};
use crate::store::{Commit, Slot, Store};
use crate::x509::{CertDifference, Certificate, TrustBundle, path_differences};

/// A signer's report about its CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignerAnswer {
    /// The signer has the CA of this node.
    SameAuthority,
    /// The signer does not report its CA, so only a signature proves it.
    Silent,
}

/// Waits for a plausible clock, and reassesses the survey if the clock was behind. Returns the time by which to judge,
/// with a note if it is not the clock's.
///
/// # Errors
/// As for `bootstrap`: the clock shows an impossible time.
pub async fn wait_for_plausible_clock(
    setup: &RunSetup,
    survey: &mut Survey,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<(OffsetDateTime, Option<String>), Failure> {
    let bundles = survey.bundles.iter();
    let trust: BTreeMap<Authority, TrustBundle> = bundles
        .filter_map(|bundle| Some((bundle.spec.authority, bundle.found.present()?.clone())))
        .collect();
    let floor = clock::floor(trust.values());
    let (now, note) = match clock::wait_for(&floor, &setup.clock, clock, progress).await? {
        SettledClock::AtOnce => return Ok((clock(), None)),
        SettledClock::Caught => (clock(), None),
        SettledClock::Behind(floor, note) => (floor.max(clock()), Some(note)),
    };
    survey.decide(&trust, now);
    Ok((now, note))
}

/// Returns why a certificate in place would have to be replaced, and what to do: the reasons of the assessment, and
/// kubeadm's rule about the first certificate of `ca.crt`. Refused certificates are in the refusals of the survey.
pub fn unverified(
    cert: &SurveyedCert,
    trust: Option<&TrustBundle>,
    now: OffsetDateTime,
) -> Option<String> {
    match &cert.decision.action {
        Action::Issue { reasons } | Action::Rewrite { reasons } => Some(format!(
            "{}; run nodepki bootstrap, which corrects this, then run this command again",
            joined(reasons)
        )),
        Action::Refuse { .. } => None,
        Action::Keep { .. } => {
            let differences = path_differences(cert.found.chain.present()?, trust?, now);
            let first = |one: &&CertDifference| matches!(one, CertDifference::NotUnderFirst { .. });
            let found = differences.iter().find(first)?;
            Some(format!("{found}, then run this command again"))
        }
    }
}

/// Verifies that the signer of an authority is reachable, has the CA of this node and can issue all planned certificates.
/// Requests no certificate.
///
/// # Errors
/// All failed verifications.
pub async fn verify_signer(
    setup: &RunSetup,
    authority: Authority,
    trust: &TrustBundle,
) -> Result<SignerAnswer, Vec<Failure>> {
    let (name, signer) = setup.signer(authority).map_err(|failure| vec![failure])?;
    if matches!(signer.kind(), SignerKind::Local | SignerKind::Embedded) {
        return Err(vec![Failure::refused(format!(
            "authority {authority} has the signer {name} ({}), which reads the CA key itself and cannot sign after the key is removed; name an external signer under authorities.{authority}.signer",
            signer.label()
        ))]);
    }
    let retries = Retries::logged(setup);
    if let Err(error) = retries.probe(name, signer.as_ref()).await {
        return Err(vec![signer_failure(
            format!("signer of {authority}"),
            error,
        )]);
    }
    let offered = examine::offered(&retries, name, signer.as_ref(), authority).await;
    let specs = setup.plan.certs.iter();
    let mut failures: Vec<Failure> = specs
        .filter(|spec| spec.authority() == authority)
        .filter_map(|spec| setup.preflight(spec).err())
        .collect();
    let answered = match offered {
        Ok(None) | Err(OfferError::NotReported(_)) => SignerAnswer::Silent,
        Ok(Some(offered)) => {
            failures.extend(same_authority(authority, signer.as_ref(), trust, &offered).err());
            SignerAnswer::SameAuthority
        }
        Err(OfferError::Unanswered(error)) => {
            return Err(vec![signer_failure(
                format!("signer of {authority}"),
                error,
            )]);
        }
        Err(OfferError::Unusable(failure)) => {
            failures.push(failure);
            SignerAnswer::Silent
        }
    };
    if failures.is_empty() {
        Ok(answered)
    } else {
        Err(failures)
    }
}

/// Returns the unverified CA certificates that the signer of an authority reports.
///
/// # Errors
/// The signer is unreachable, or does not report its CA.
pub async fn offered_certificates(
    setup: &RunSetup,
    authority: Authority,
) -> Result<Vec<Certificate>, Failure> {
    let (name, signer) = setup.signer(authority)?;
    // Without a probe: it would log in for what is public, and could use up a credential of one use.
    let published = Retries::logged(setup)
        .ca(name, signer.as_ref(), authority)
        .await
        .map_err(|error| signer_failure(format!("signer of {authority}"), error))?;
    let Some(published) = published else {
        return Err(Failure::misconfigured(format!(
            "{} does not publish the certificate of its CA; provide it with --certificate FILE",
            signer.label()
        )));
    };
    published.certificates()
}

/// Has a certificate like `cert` signed for a separate key, verifies it, and discards both.
///
/// If the signer does not answer immediately, the request is kept in the ordinary slot, and the next run continues with it.
///
/// # Errors
/// Pending, or why the certificate was not issued.
pub async fn rehearse(
    store: &mut Store,
    setup: &RunSetup,
    cert: &SurveyedCert,
    trust: &TrustBundle,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let (name, authority) = (cert.spec.name(), cert.spec.authority());
    let (_, signer) = setup.signer(authority)?;
    let now = clock();
    let context = RequestContext {
        store,
        identity: setup.identity.clone(),
        clock,
        floor: None,
        deadline: Instant::now() + setup.wait,
        jitter: setup.jitter,
        progress,
        is_rotation: false,
        is_proof: true,
        set_aside: &BTreeMap::new(),
    };
    let issuance = setup.issuance(cert, trust, now)?;
    let start = match resumed(&context, &issuance.order)? {
        Some(resumed) => RequestStart::Resumed(Box::new(resumed)),
        None => {
            let algorithm = cert.spec.requested.profile.key;
            let mut keys = RunKeys::default();
            keys.start([(Slot::Certificate(name), algorithm)])?;
            let key = keys.next().await.and_then(|made| made.key.ok());
            RequestStart::Key(
                key.ok_or_else(|| Failure::pending(format!("no key for {name}; run again")))?,
            )
        }
    };
    let outcome = request::obtain(&context, &issuance, start).await?;
    let label = signer.label();
    let doing = format!(
        "requesting a certificate like {name} from {label}, as proof that it signs for {authority}"
    );
    let refused = |why: String, advice: &str| Failure::refused(format!("{doing}: {why}; {advice}"));
    // A wrong answer is discarded too: the next rehearsal must not get it again from a signer that keeps answers.
    if matches!(
        outcome,
        Ok(_) | Err(Unsigned::Refused(_) | Unsigned::Denied(_))
    ) {
        let mut commit = Commit::new();
        commit.completes(Slot::Certificate(name));
        store.commit(commit)?;
        if let Err(error) = signer.settled(name.as_str()).await {
            tracing::info!(certificate = %name, "{error}");
        }
    }
    match outcome {
        Ok(_) => Ok(()),
        Err(Unsigned::Pending(note)) => Err(Failure::pending(format!(
            "{doing}: the answer is pending: {note}; run the same command again to continue with the same request"
        ))),
        Err(Unsigned::Denied(reason)) => Err(refused(
            format!("the signer denied it: {reason}"),
            "ask the administrator of the signer which certificates it may sign",
        )),
        Err(Unsigned::Refused(differences)) => Err(refused(
            format!(
                "the certificate differs from the request: {}",
                joined(&differences)
            ),
            "switch the signer to that CA, or correct its profile, and run again",
        )),
        Err(Unsigned::Failed(error)) => Err(signer_failure(doing, error)),
    }
}

/// Returns an earlier rehearsal that is still pending. An answered one does not prove that the signer still signs.
fn resumed(
    context: &RequestContext<'_>,
    order: &IssuanceOrder<'_>,
) -> Result<Option<Resumed>, Failure> {
    let slot = Slot::Certificate(order.spec.name());
    let pending = context.store.pending((context.clock)())?.slots;
    let Some(pending) = pending.into_iter().find(|pending| pending.slot == slot) else {
        return Ok(None);
    };
    let unanswered = pending.issued_pem.is_none();
    let resumed = Resumed::from_pending(&pending, order.spec).filter(|_| unanswered);
    if resumed.is_none() {
        let why = "it was for another certificate, or is already answered";
        let note = context.store.set_slot_aside(slot, why, (context.clock)())?;
        tracing::info!("{note}");
    }
    Ok(resumed)
}
