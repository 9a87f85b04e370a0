//! One request, from key to verified chain: submit, persist, wait, poll, recover, verify.
//!
//! Every step is recorded on disk before it is taken, so it survives a crash: key and CSR before the signer is
//! contacted, `submitting` before the request, the ticket before the first poll, the answer before the commit. A signer in
//! this process loses the request with the process: nothing is recorded unless a later run has something to continue.

mod entries;
pub(super) mod next;
mod outcome;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::{Clock, Event, Jitter, Progress, SignerOperation, event};
use crate::kube::names::CertName;
use crate::process::failpoint;
use crate::signer::{
    Answer, CurrentCertificate, NodeIdentity, Request, Signer, SignerError, SignerKind, Ticket,
};
use crate::spec::{AuthorityProgress, CertSpec};
use crate::store::{self, Durability, PendingRequest, RequestPhase, RequestRecord, Slot, Store};
use crate::text::hex;
use crate::x509::{
    CertDifference, Chain, Csr, KeyType, Lifetime, PrivateKey, TrustBundle, UsageExtensions,
    along_path, judge_lifetime, satisfies, verifies,
};

use entries::EarlierOutcome;
use next::{
    Attempts, Circumstances, JudgedAnswer, NextStep, SignerCall, next, record_submission,
    wait_before_submission,
};
pub use outcome::{AnswerFault, PendingReason};
pub(super) use outcome::{RequestOutcome, SignedCertificate, Unsigned};

/// Context of all requests of a run.
pub(super) struct Desk<'a> {
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
    /// Records of requests that were set aside in this run.
    pub(super) set_aside: &'a BTreeMap<CertName, RequestRecord>,
}

impl Desk<'_> {
    fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn now(&self) -> OffsetDateTime {
        let shown = (self.clock)();
        self.floor.map_or(shown, |floor| shown.max(floor))
    }
}

/// One certificate to be requested, and the bundle that verifies its chain.
pub(super) struct Job<'a> {
    pub(super) asked: Asked<'a>,
    pub(super) trust: &'a TrustBundle,
    /// The certificate in place is valid, and does not expire soon.
    pub(super) can_wait: bool,
}

/// A certificate to be requested, and its signer.
pub(super) struct Asked<'a> {
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

impl Asked<'_> {
    fn slot(&self) -> Slot {
        Slot::Certificate(self.spec.name())
    }

    pub(super) fn request(&self, desk: &Desk<'_>, csr: Csr) -> Request {
        let (wanted, identity) = (self.spec.requested.clone(), desk.identity.clone());
        Request::new(wanted, csr, identity, desk.now()).replacing(self.replaces.as_ref())
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

/// A pending request of an earlier run that still matches the plan.
pub(super) struct Resumed {
    pub(super) key: PrivateKey,
    pub(super) csr: Option<Csr>,
    pub(super) ticket: Option<RequestRecord>,
    pub(super) answer: Option<Vec<u8>>,
}

impl Resumed {
    /// Returns `None` if the pending request does not match the plan any more, or failed.
    pub(super) fn from_pending(pending: &PendingRequest, spec: &CertSpec) -> Option<Self> {
        let key = PrivateKey::from_pem(&pending.key_pem).ok()?;
        let csr = pending
            .csr_pem
            .as_deref()
            .and_then(|pem| Csr::from_pem(pem).ok());
        let csr = csr.filter(|csr| csr.public_key() == key.public_key());
        let same_wish = csr
            .as_ref()
            .is_none_or(|csr| csr.matches(&spec.requested.profile));
        let same_algorithm = *key.key_type() == KeyType::Known(spec.requested.profile.key);
        // After a wrong answer a new key makes a new request, so no signer can repeat the old answer. For a signer
        // of files the CSR stays usable: an administrator only has to sign it correctly.
        let failed = pending.ticket.as_ref().is_some_and(|ticket| {
            ticket.phase == RequestPhase::Failed
                && ticket.signer_kind != SignerKind::Directory.as_str()
        });
        (same_wish && same_algorithm && !failed).then(|| Resumed {
            key,
            csr,
            ticket: pending.ticket.clone(),
            answer: pending.issued_pem.clone(),
        })
    }
}

/// Drives one request as far as possible before the deadline.
///
/// # Errors
/// Errors of the store only: nothing is sent out of this process unless key and record are on disk.
pub(super) async fn obtain(
    desk: &Desk<'_>,
    job: &Job<'_>,
    fresh: Fresh,
) -> Result<RequestOutcome, store::StoreError> {
    let asked = &job.asked;
    let mut prepared = match prepare(desk, asked, fresh)? {
        Ok(prepared) => prepared,
        Err(error) => return Ok(Err(Unsigned::failed(error))),
    };
    if !asked.signer.kind().is_in_process() {
        prepared.keep(desk, asked)?;
    }
    let PreparedRequest { key, answer, .. } = prepared;
    let request = asked.request(desk, prepared.csr);
    if let Some(answer) = answer
        && let Ok(verified) = verified(&answer, desk, job, &key)
    {
        return Ok(verified.outcome(key, request));
    }
    let record = match prepared.record {
        record if asked.is_recorded(&record, &request) => record,
        // The spec or the signer has changed, and the signer does not know this request.
        _ => new_record(asked, request.id.as_str()),
    };
    let earlier = EarlierOutcome::of(&record);
    let exchangeable = asked.current.as_ref();
    let mut exchange = CertificateExchange {
        desk,
        asked,
        call: SignerCall::first(&record, exchangeable.is_some()),
        attempts: Attempts::default(),
        key,
        request,
        record,
        is_kept: prepared.is_kept,
        exchangeable,
        audited: None,
    };
    let end = loop {
        if let Some(wait) = exchange.wait_before_call() {
            if wait > desk.time_left() {
                break Err(Unsigned::Pending(exchange.postponed(wait)));
            }
            tokio::time::sleep(wait).await;
        }
        let answer = exchange.call_signer().await?;
        let (answer, accepted) = judge(desk, job, &exchange.key, answer);
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
    desk.progress.event(Event::Signed(asked.spec.name()));
    Ok(verified.outcome(exchange.key, exchange.request))
}

/// An answer that satisfies the spec.
pub(super) struct VerifiedAnswer {
    pub(super) chain: Chain,
    /// Why it is not installed yet. The answer and its key are kept, and a later run verifies the answer again.
    waits: Option<PendingReason>,
}

impl VerifiedAnswer {
    fn outcome(self, key: PrivateKey, request: Request) -> RequestOutcome {
        match self.waits {
            Some(why) => Err(Unsigned::Pending(why)),
            None => Ok(SignedCertificate {
                chain: self.chain,
                key,
                request: Box::new(request),
            }),
        }
    }
}

/// An exchange under way.
struct CertificateExchange<'a> {
    desk: &'a Desk<'a>,
    asked: &'a Asked<'a>,
    key: PrivateKey,
    request: Request,
    record: RequestRecord,
    /// Whether the slot exists.
    is_kept: bool,
    /// The call that is due.
    call: SignerCall,
    attempts: Attempts,
    /// The certificate to exchange; `None` once the request is submitted without it.
    exchangeable: Option<&'a CurrentCertificate>,
    /// The submission that is in the issuance log. It is repeated there only if the signer has lost the request.
    audited: Option<SignerOperation>,
}

impl CertificateExchange<'_> {
    /// Returns how long to wait before the call that is due; `None` if it may be made now.
    fn wait_before_call(&self) -> Option<Duration> {
        let is_limited = self.desk.is_rotation && self.call.is_submission();
        let wait = is_limited.then(|| wait_before_submission(&self.record, self.desk.now()))?;
        (!wait.is_zero()).then_some(wait)
    }

    /// Returns why the request is left to a later run.
    fn postponed(&self, wait: Duration) -> PendingReason {
        let last = self.record.last_error.as_ref();
        PendingReason::Postponed {
            submissions: self.record.submissions,
            next: self.desk.now() + wait,
            name: self.asked.spec.name(),
            last: last.map(|error| error.detail.clone()),
        }
    }

    /// Makes the call that is due. A submission out of this process is recorded before.
    async fn call_signer(&mut self) -> Result<Result<Answer, SignerError>, store::StoreError> {
        let (desk, asked) = (self.desk, self.asked);
        self.record.attempt += 1;
        self.request = self
            .request
            .again(self.record.attempt, desk.now(), deadline_at(desk));
        if self.call.is_submission() {
            record_submission(&mut self.record, desk.now());
            if self.is_kept {
                self.keep()?;
            }
            self.audit_submission();
            failpoint::reached("request:submitting");
            desk.progress.event(Event::Submitted(asked.spec.name()));
        }
        let call = perform(
            &*asked.signer,
            &self.call,
            self.exchangeable,
            &self.request,
            &self.record,
        );
        let operation = self.call.operation();
        let answer = event::asked(desk.progress, &asked.signer_name, operation, call).await;
        failpoint::reached("request:answered");
        Ok(answer)
    }

    /// Decides what follows the answer, and records and reports it. `accepted` is one that satisfies the spec, as received.
    fn follow(
        &mut self,
        answer: JudgedAnswer<VerifiedAnswer>,
        accepted: Option<&[u8]>,
    ) -> Result<NextStep<VerifiedAnswer>, store::StoreError> {
        let (desk, name) = (self.desk, self.asked.spec.name());
        let (mut waiting, mut failure) = (None, None);
        match &answer {
            Ok(Answer::Pending { note, .. }) => waiting = Some(note.clone()),
            Ok(Answer::Gone) => self.audited = None,
            Ok(Answer::Issued(_) | Answer::Denied { .. }) => {}
            Err(error) => failure = Some(error.to_string()),
        }
        let circumstances = Circumstances {
            now: desk.now(),
            time_left: desk.time_left(),
            resubmit: self.asked.signer.caps().resubmit,
            can_exchange: self.exchangeable.is_some(),
            random: (desk.jitter)(),
            signer: self.asked.signer.label(),
            certificate: name,
            way_out: format!(
                "remove {}/pending/{name}",
                desk.store.root().node_path(store::STATE_DIR)
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
        if self.is_kept || !is_installed_next(&step) {
            if !self.is_kept {
                self.keep()?;
            }
            if let Some(answer) = accepted {
                let (slot, durability) = (self.asked.slot(), self.asked.durability());
                desk.store.save_answer(slot, answer, durability)?;
            }
            if self.record != before {
                self.keep()?;
            }
        }
        if let Some(note) = waiting {
            failpoint::reached("request:pending");
            desk.progress.event(Event::Waiting {
                name,
                signer: self.asked.signer_name.clone(),
                note,
            });
        }
        if let NextStep::Call { call, wait } = &step {
            if let Some(failure) = failure {
                let operation = call.operation().as_str();
                tracing::info!(certificate = %name, "{failure}; next: {operation} in {wait:.0?}");
                desk.progress.event(Event::Retrying {
                    signer: self.asked.signer_name.clone(),
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
        if self.is_kept {
            let (slot, durability) = (self.asked.slot(), self.asked.durability());
            return self
                .desk
                .store
                .update_ticket(slot, &self.record, durability);
        }
        create_slot(
            self.desk,
            self.asked,
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

/// Verifies a signer's answer. Returns it too if it satisfies the spec.
fn judge(
    desk: &Desk<'_>,
    job: &Job<'_>,
    key: &PrivateKey,
    answer: Result<Answer, SignerError>,
) -> (JudgedAnswer<VerifiedAnswer>, Option<Vec<u8>>) {
    let mut accepted = None;
    let judged = answer.map(|answer| {
        answer.map(|certificate| {
            let verified = verified(&certificate, desk, job, key)?;
            accepted = Some(certificate);
            Ok(verified)
        })
    });
    (judged, accepted)
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

/// The key or request to start with.
pub(super) enum Fresh {
    /// A new key, or the current one.
    Key(PrivateKey),
    /// A pending request of an earlier run.
    Resumed(Box<Resumed>),
}

/// Key, CSR and ticket, and the answer that an earlier run received.
pub(super) struct PreparedRequest {
    pub(super) key: PrivateKey,
    pub(super) csr: Csr,
    pub(super) record: RequestRecord,
    pub(super) answer: Option<Vec<u8>>,
    /// Whether the slot exists.
    is_kept: bool,
}

impl PreparedRequest {
    /// Creates the slot, unless it exists.
    pub(super) fn keep(
        &mut self,
        desk: &Desk<'_>,
        asked: &Asked<'_>,
    ) -> Result<(), store::StoreError> {
        if !self.is_kept {
            create_slot(desk, asked, &self.key, &self.csr, &self.record)?;
            self.is_kept = true;
            failpoint::reached("request:key-kept");
        }
        Ok(())
    }
}

fn create_slot(
    desk: &Desk<'_>,
    asked: &Asked<'_>,
    key: &PrivateKey,
    csr: &Csr,
    record: &RequestRecord,
) -> Result<(), store::StoreError> {
    let (key, csr) = (key.to_pem(), csr.to_pem());
    desk.store.create_pending(
        asked.slot(),
        key.as_bytes(),
        csr.as_bytes(),
        record,
        asked.durability(),
    )
}

/// Returns a request that can be sent, from a key or from the slot of an earlier run. A slot is updated; a new one is
/// created by [`PreparedRequest::keep`].
pub(super) fn prepare(
    desk: &Desk<'_>,
    asked: &Asked<'_>,
    fresh: Fresh,
) -> Result<Result<PreparedRequest, SignerError>, store::StoreError> {
    let (earlier, is_new) = match fresh {
        Fresh::Resumed(resumed) => (*resumed, false),
        Fresh::Key(key) => {
            let resumed = Resumed {
                key,
                csr: None,
                ticket: None,
                answer: None,
            };
            (resumed, true)
        }
    };
    let (key, answer) = (earlier.key, earlier.answer);
    let usable = earlier.csr.filter(|csr| fits(csr, asked));
    let is_usable = usable.is_some();
    let csr = match usable.map_or_else(|| new_csr(asked, &key), Ok) {
        Ok(csr) => csr,
        Err(error) => return Ok(Err(error)),
    };
    let record = earlier.ticket.unwrap_or_else(|| {
        let request = asked.request(desk, csr.clone());
        let mut record = new_record(asked, request.id.as_str());
        if let Some(before) = desk.set_aside.get(&asked.spec.name())
            && before.signer_config == record.signer_config
        {
            record.submissions = before.submissions;
            record.last_submitted = before.last_submitted;
        }
        if !is_new {
            // Without the ticket the state of the request is unknown: recover before submitting again.
            record.phase = RequestPhase::Submitting;
            record.first_submitted = Some(desk.now());
        }
        record
    });
    if !is_new && !is_usable {
        let (slot, durability) = (asked.slot(), asked.durability());
        desk.store
            .save_csr(slot, csr.to_pem().as_bytes(), durability)?;
    }
    Ok(Ok(PreparedRequest {
        key,
        csr,
        record,
        answer,
        is_kept: !is_new,
    }))
}

fn new_csr(asked: &Asked<'_>, key: &PrivateKey) -> Result<Csr, SignerError> {
    let extensions = asked.signer.caps().usage_extensions;
    Csr::create(&asked.spec.requested.profile, key, extensions).map_err(|error| {
        SignerError::permanent(
            format!(
                "no request could be made for {}: {error}",
                asked.spec.name()
            ),
            "correct the configuration that this name comes from",
        )
    })
}

/// Returns whether this signer accepts the usage extensions of a CSR that was made for another signer.
fn fits(csr: &Csr, asked: &Asked<'_>) -> bool {
    let refused = asked.signer.caps().usage_extensions == UsageExtensions::Omitted;
    !(refused && csr.has_usage_extensions())
}

fn new_record(asked: &Asked<'_>, request_id: &str) -> RequestRecord {
    let signer = &asked.signer;
    RequestRecord::ready(
        request_id,
        &asked.signer_name,
        signer.kind().as_str(),
        &signer.configured(),
    )
}

/// Verifies a signer's answer against the spec. No unverified certificate reaches the disk.
fn verified(
    answer: &[u8],
    desk: &Desk<'_>,
    job: &Job<'_>,
    key: &PrivateKey,
) -> Result<VerifiedAnswer, Vec<AnswerFault>> {
    let chain = Chain::from_response(answer, key.public_key())
        .map_err(|error| vec![AnswerFault::Unusable(error.to_string())])?;
    let now = match desk.floor {
        // The node's clock is known to be behind that of the signer.
        Some(_) => desk.now().max(chain.leaf().not_before()),
        None => desk.now(),
    };
    // Only the verified path is written, whatever else the signer sent.
    let chain = along_path(chain, job.trust, now);
    chain
        .check_size()
        .map_err(|error| vec![AnswerFault::TooLarge(error.to_string())])?;
    let mut differences = satisfies(
        &chain,
        &job.asked.spec.requested.profile,
        job.asked.spec.requested.tolerance,
        key.public_key(),
        job.trust,
        now,
    );
    let is_under_first =
        |difference: &CertDifference| !matches!(difference, CertDifference::NotUnderFirst { .. });
    let staged = !differences.iter().all(is_under_first)
        && is_under_staged_authority(&chain, job.asked.spec, job.trust, now);
    if staged {
        differences.retain(is_under_first);
    }
    if let Lifetime::Refused(difference) = life_of(&chain, job.asked.spec, now) {
        differences.push(difference);
    }
    let mut faults: Vec<AnswerFault> = differences.into_iter().map(AnswerFault::Differs).collect();
    let not_after = chain.leaf().not_after();
    if job.asked.outlives.is_some_and(|old| not_after <= old) {
        faults.push(AnswerFault::NotLater { not_after });
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let authority = job.asked.spec.authority();
    let waits = (staged && job.can_wait).then_some(PendingReason::UnderStagedAuthority(authority));
    if staged && waits.is_none() {
        tracing::warn!(
            certificate = %job.asked.spec.name(),
            "the new certificate is under the staged CA, and the one in place is not valid for long enough to wait for `nodepki authority activate {authority}`"
        );
    }
    Ok(VerifiedAnswer { chain, waits })
}

/// Returns whether a chain verifies under the CA that this node has staged and not activated.
fn is_under_staged_authority(
    chain: &Chain,
    spec: &CertSpec,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> bool {
    let AuthorityProgress::Staged(new) = &spec.authority_change else {
        return false;
    };
    let mut trusted = trust.certificates().iter();
    let staged = trusted.find(|one| hex(&one.fingerprint()) == *new);
    let alone = staged.and_then(|new| TrustBundle::from_certificates(vec![new.clone()]).ok());
    alone.is_some_and(|alone| verifies(chain, &alone, now))
}

/// Compares the lifetime of a new certificate with the requested one.
pub(super) fn life_of(chain: &Chain, spec: &CertSpec, now: OffsetDateTime) -> Lifetime {
    let limit = spec.requested.tolerance.max_lifetime;
    judge_lifetime(chain.leaf(), spec.requested.profile.lifetime, limit, now)
}

fn deadline_at(desk: &Desk<'_>) -> Option<OffsetDateTime> {
    Some(desk.now() + desk.time_left())
}
