//! One request, from key to verified chain: submit, persist, wait, poll, recover, verify.
//!
//! Every step is recorded on disk before it is taken, so it survives a crash: key and CSR before the signer is
//! contacted, `submitting` before the request, the ticket before the first poll, the answer before the commit. A signer in
//! this process loses the request with the process: nothing is recorded unless a later run has something to continue.

mod entries;
pub(super) mod next;
mod outcome;
mod prepare;
mod verify;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::{Clock, Event, Jitter, Progress, SignerOperation, event};
use crate::kube::names::CertName;
use crate::process::failpoint;
use crate::signer::{
    Answer, CurrentCertificate, NodeIdentity, Request, Signer, SignerError, Ticket,
};
use crate::spec::CertSpec;
use crate::store::{self, Durability, OFFLINE_SIGNER, RequestRecord, Slot, Store};
use crate::x509::{Chain, Csr, PrivateKey, TrustBundle};

use entries::EarlierOutcome;
use next::{
    Attempts, Circumstances, JudgedAnswer, NextStep, SignerCall, next, record_submission,
    wait_before_submission, without_new_certificate,
};
pub use outcome::{AnswerFault, PendingReason};
pub(super) use outcome::{
    IssuanceOutcome, NotInstalled, RequestOutcome, SignedCertificate, Unsigned,
};
pub(super) use prepare::{PreparedRequest, RequestStart, Resumed, differences_of_request, prepare};
use prepare::{create_slot, new_record};
use verify::{VerifiedAnswer, judge};
pub(super) use verify::{life_of, time_of_use, until, verified};

/// Context of all requests of a run.
pub(super) struct RequestContext<'a> {
    pub(super) store: &'a Store,
    pub(super) identity: NodeIdentity,
    pub(super) clock: Clock,
    /// See `RequestRun::floor`.
    pub(super) floor: Option<OffsetDateTime>,
    pub(super) deadline: Instant,
    pub(super) jitter: Jitter,
    pub(super) progress: &'a dyn Progress,
    /// The requests belong to the rotation and not to a command for certain certificates: their number is limited.
    pub(super) is_rotation: bool,
    /// The certificate only proves that the signer signs, and is discarded.
    pub(super) is_proof: bool,
    /// Records of requests that were set aside in this run.
    pub(super) set_aside: &'a BTreeMap<CertName, RequestRecord>,
}

impl RequestContext<'_> {
    fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn now(&self) -> OffsetDateTime {
        let shown = (self.clock)();
        self.floor.map_or(shown, |floor| shown.max(floor))
    }
}

/// One certificate to be requested, and the bundle that verifies its chain.
pub(super) struct Issuance<'a> {
    pub(super) order: IssuanceOrder<'a>,
    pub(super) trust: &'a TrustBundle,
    /// The certificate in place is valid, and does not expire soon.
    pub(super) can_wait: bool,
}

/// A certificate to be requested, and its signer.
pub(super) struct IssuanceOrder<'a> {
    pub(super) spec: &'a CertSpec,
    pub(super) signer: Rc<dyn Signer>,
    /// Name of the signer in the configuration.
    pub(super) signer_name: String,
    /// The current certificate, if this signer issues a new one in exchange for it.
    pub(super) current: Option<CurrentCertificate>,
    /// `not_after` of the certificate to be renewed with the same key; the new one must expire later.
    pub(super) outlives: Option<OffsetDateTime>,
    /// SHA-256 of the certificate that it replaces with the same key.
    pub(super) replaces: Option<[u8; 32]>,
}

impl IssuanceOrder<'_> {
    fn slot(&self) -> Slot {
        Slot::Certificate(self.spec.name())
    }

    pub(super) fn request(&self, context: &RequestContext<'_>, csr: Csr) -> Request {
        let (wanted, identity) = (self.spec.requested.clone(), context.identity.clone());
        Request::new(wanted, csr, identity, context.now()).replacing(self.replaces.as_ref())
    }

    /// Returns whether the record is about this request to this signer.
    fn is_recorded(&self, record: &RequestRecord, request: &Request) -> bool {
        record.request_id == request.id.as_str() && record.signer_config == self.signer.configured()
    }

    /// Returns how durably a pending request is stored.
    fn durability(&self) -> Durability {
        if self.signer.kind().is_in_process() {
            Durability::Cached
        } else {
            Durability::Synced
        }
    }
}

/// Drives one request as far as possible before the deadline.
///
/// # Errors
/// Errors of the store only: nothing is sent out of this process unless key and record are on disk.
pub(super) async fn obtain(
    context: &RequestContext<'_>,
    issuance: &Issuance<'_>,
    start: RequestStart,
) -> Result<RequestOutcome, store::StoreError> {
    let order = &issuance.order;
    let mut prepared = match prepare(context, order, start)? {
        Ok(prepared) => prepared,
        Err(error) => return Ok(Err(Unsigned::failed(error))),
    };
    if !order.signer.kind().is_in_process() {
        prepared.keep(context, order)?;
    }
    let PreparedRequest { key, answer, .. } = prepared;
    let request = order.request(context, prepared.csr);
    // One that does not verify any more is requested again: the plan or the CA may have changed since it was kept.
    if let Some(answer) = answer
        && let Ok(verified) = verified(&answer, context, issuance, &key)
    {
        let verified = verified.in_time(context, order).await;
        return Ok(verified.outcome(key, request));
    }
    let is_import = order.signer.configured() == OFFLINE_SIGNER;
    let spares_ticket = is_import && prepared.record.signer_config != OFFLINE_SIGNER;
    let record = match prepared.record {
        record if order.is_recorded(&record, &request) => record,
        // The spec or the signer has changed, and the signer does not know this request.
        _ => new_record(context, order, request.id.as_str()),
    };
    let earlier = EarlierOutcome::of(&record);
    let exchangeable = order.current.as_ref();
    let mut exchange = CertificateExchange {
        context,
        order,
        call: SignerCall::first(&record, exchangeable.is_some()),
        attempts: Attempts::default(),
        key,
        request,
        record,
        is_kept: prepared.is_kept,
        spares_ticket,
        exchangeable,
        refusal: None,
        audited: None,
    };
    let end = loop {
        if let Some(wait) = exchange.wait_before_call() {
            if wait > context.time_left() {
                break Err(Unsigned::Pending(exchange.postponed(wait)));
            }
            tokio::time::sleep(wait).await;
        }
        let answer = exchange.call_signer().await?;
        let answer = exchange.interpreted(answer);
        let (answer, accepted) = judge(context, issuance, &exchange.key, answer);
        match exchange.follow(answer, accepted.as_deref())? {
            NextStep::Call { call, wait } => {
                exchange.call = call;
                tokio::time::sleep(wait).await;
            }
            NextStep::End(end) => break end,
        }
    };
    exchange.audit_end(&end, &earlier);
    let verified = match end {
        Ok(verified) => verified,
        Err(unsigned) => return Ok(Err(unsigned)),
    };
    failpoint::reached("request:verified");
    let verified = verified.in_time(context, order).await;
    context.progress.event(Event::Signed(order.spec.name()));
    Ok(verified.outcome(exchange.key, exchange.request))
}

/// An exchange under way.
struct CertificateExchange<'a> {
    context: &'a RequestContext<'a>,
    order: &'a IssuanceOrder<'a>,
    key: PrivateKey,
    request: Request,
    record: RequestRecord,
    /// Whether the slot exists.
    is_kept: bool,
    /// Its ticket is of a signer that still has the request: an import replaces it only with a certificate.
    spares_ticket: bool,
    /// The call that is due.
    call: SignerCall,
    attempts: Attempts,
    /// The certificate to exchange; `None` once the request is submitted without it.
    exchangeable: Option<&'a CurrentCertificate>,
    /// Why the signer did not exchange it.
    refusal: Option<SignerError>,
    /// The submission that is in the issuance log. It is repeated there only if the signer has lost the request.
    audited: Option<SignerOperation>,
}

impl CertificateExchange<'_> {
    /// Returns how long to wait before the call that is due; `None` if it may be made now.
    fn wait_before_call(&self) -> Option<Duration> {
        let is_limited = self.context.is_rotation && self.call.is_new_submission(self.record.phase);
        let wait = is_limited.then(|| wait_before_submission(&self.record, self.context.now()))?;
        (!wait.is_zero()).then_some(wait)
    }

    /// Returns why the request is left to a later run.
    fn postponed(&self, wait: Duration) -> PendingReason {
        let last = self.record.last_error.as_ref();
        PendingReason::Postponed {
            submissions: self.record.submissions,
            next: self.context.now() + wait,
            name: self.order.spec.name(),
            last: last.map(|error| error.detail.clone()),
        }
    }

    /// Makes the call that is due. A submission out of this process is recorded before.
    async fn call_signer(&mut self) -> Result<Result<Answer, SignerError>, store::StoreError> {
        let (context, order) = (self.context, self.order);
        self.record.attempt += 1;
        self.request = self
            .request
            .again(self.record.attempt, context.now(), deadline_at(context));
        if self.call.is_new_submission(self.record.phase) {
            record_submission(&mut self.record, context.now());
            if self.is_kept {
                self.keep()?;
            }
            self.audit_submission();
            failpoint::reached("request:submitting");
            context.progress.event(Event::Submitted(order.spec.name()));
        }
        let call = perform(
            &*order.signer,
            &self.call,
            self.exchangeable,
            &self.request,
            &self.record,
        );
        let operation = self.call.operation();
        let answer = event::asked(context.progress, &order.signer_name, operation, call).await;
        failpoint::reached("request:answered");
        Ok(answer)
    }

    /// Returns the answer; one that is the certificate to be replaced means that there is no other.
    fn interpreted(&mut self, answer: Result<Answer, SignerError>) -> Result<Answer, SignerError> {
        if self.call == SignerCall::Renew {
            self.refusal = answer.as_ref().err().map(SignerError::without_cause);
        }
        match answer? {
            answer if self.is_replaced(&answer) => {
                without_new_certificate(&self.call, answer, self.refusal.as_ref())
            }
            answer => Ok(answer),
        }
    }

    /// Returns whether the answer is the certificate that the request replaces.
    fn is_replaced(&self, answer: &Answer) -> bool {
        let (Answer::Issued(certificate), Some(replaced)) = (answer, self.order.replaces) else {
            return false;
        };
        Chain::from_response(certificate, self.key.public_key())
            .is_ok_and(|chain| chain.leaf().fingerprint() == replaced)
    }

    /// Decides what follows the answer, and records and reports it. `accepted` is one that satisfies the spec, as received.
    fn follow(
        &mut self,
        answer: JudgedAnswer<VerifiedAnswer>,
        accepted: Option<&[u8]>,
    ) -> Result<NextStep<VerifiedAnswer>, store::StoreError> {
        let (context, name) = (self.context, self.order.spec.name());
        let (mut waiting, mut failure) = (None, None);
        match &answer {
            Ok(Answer::Pending { note, .. }) => waiting = Some(note.clone()),
            Ok(Answer::Gone) => self.audited = None,
            Ok(Answer::Issued(_) | Answer::Denied { .. }) => {}
            Err(error) => failure = Some(error.to_string()),
        }
        let circumstances = Circumstances {
            now: context.now(),
            time_left: context.time_left(),
            resubmit: self.order.signer.caps().resubmit,
            can_exchange: self.exchangeable.is_some(),
            random: (context.jitter)(),
            signer: self.order.signer.label(),
            certificate: name,
            again: "run again; the key is kept".to_owned(),
            way_out: format!(
                "remove {}/pending/{name}",
                context.store.root().node_path(store::STATE_DIR)
            ),
        };
        let before = self.record.clone();
        let step = next(
            &mut self.record,
            &mut self.attempts,
            self.call.clone(),
            answer,
            &circumstances,
        );
        // With a certificate to install and no slot yet, a later run would have nothing to continue.
        if self.is_kept || !is_installed_next(&step) {
            if !self.is_kept {
                self.keep()?;
            }
            if let Some(answer) = accepted {
                self.spares_ticket = false;
                let (slot, durability) = (self.order.slot(), self.order.durability());
                context.store.save_answer(slot, answer, durability)?;
            }
            if self.record != before {
                self.keep()?;
            }
        }
        if let Some(note) = waiting {
            failpoint::reached("request:pending");
            context.progress.event(Event::Waiting {
                name,
                signer: self.order.signer_name.clone(),
                note,
            });
        }
        if let NextStep::Call { call, wait } = &step {
            if let Some(failure) = failure {
                let operation = call.operation().as_str();
                tracing::info!(certificate = %name, "{failure}; next: {operation} in {wait:.0?}");
                context.progress.event(Event::Retrying {
                    signer: self.order.signer_name.clone(),
                    why: failure,
                });
            }
            if *call == SignerCall::Submit {
                self.exchangeable = None;
            }
        }
        Ok(step)
    }

    /// Writes the record, and the rest of the slot if it does not exist.
    fn keep(&mut self) -> Result<(), store::StoreError> {
        if self.spares_ticket {
            return Ok(());
        }
        if self.is_kept {
            let (slot, durability) = (self.order.slot(), self.order.durability());
            return self
                .context
                .store
                .update_ticket(slot, &self.record, durability);
        }
        create_slot(
            self.context,
            self.order,
            &self.key,
            &self.request.csr,
            &self.record,
        )?;
        self.is_kept = true;
        Ok(())
    }
}

/// Returns whether nothing is left to do but to install a certificate.
fn is_installed_next(step: &NextStep<VerifiedAnswer>) -> bool {
    matches!(step, NextStep::End(Ok(verified)) if verified.waits.is_none())
}

/// Calls the signer once.
pub(super) async fn perform(
    signer: &dyn Signer,
    call: &SignerCall,
    exchangeable: Option<&CurrentCertificate>,
    request: &Request,
    record: &RequestRecord,
) -> Result<Answer, SignerError> {
    match (call, exchangeable) {
        (SignerCall::Renew, Some(current)) => signer.renew(request, current).await,
        (SignerCall::Submit | SignerCall::Renew, _) => signer.submit(request).await,
        (SignerCall::Recover, _) => {
            let handle = record.handle.clone();
            let ticket = handle.and_then(|handle| Ticket::try_from(handle).ok());
            let answer = signer.recover(request, ticket.as_ref()).await?;
            Ok(answer.unwrap_or(Answer::Gone))
        }
        (SignerCall::Poll(ticket), _) => signer.poll(request, ticket).await,
    }
}

fn deadline_at(context: &RequestContext<'_>) -> Option<OffsetDateTime> {
    Some(context.now() + context.time_left())
}
