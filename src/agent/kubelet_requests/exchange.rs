//! The exchange with the signer about one request of a kubelet: submit, recover, poll, verify.
//!
//! It follows the contract of the node's own requests (`agent::request`) with the same decisions (`next`), but never
//! waits for a signer: the queue continues a pending request later. The record of the exchange is on disk before the
//! signer is contacted. A node without a record, because it has just become the leader, first asks the signer whether it
//! has the request; every node derives the same id.
//!
//! A run of the node's own requests probes the signer at its start. Here a tenure has no end: the first request probes it,
//! then one in each [`PROBE_INTERVAL`], and one whose certificate is wrong.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::queue::Work;
use super::{Signing, object};
use crate::agent::request::next::{
    Attempts, Circumstances, JudgedAnswer, NextStep, SignerCall, next,
};
use crate::agent::request::{AnswerFault, Unsigned, perform, time_of_use, until};
use crate::agent::{SignerOperation, audit, event};
use crate::kube::names::{Authority, CertName};
use crate::kubelets::{SigningOrder, certificate_differences, is_in_time};
use crate::process::failpoint;
use crate::process::jitter::random_fraction;
use crate::signer::{
    Answer, FailureClass, NodeIdentity, Request, RequestedCertificate, Resubmit, SignerError, retry,
};
use crate::store::{
    self, AuditEvent, AuditRecord, KubeletRequestRecord, RequestPhase, RequestRecord,
};
use crate::text::rfc3339;
use crate::x509::{Chain, ChainError, TrustBundle, along_path};

/// Age at which what the signer has learned, such as the intermediates of its CA, is learned again.
const PROBE_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Age at which a wrong certificate is attributed to it. The request is then sent again.
const MIN_PROBE_AGE: Duration = Duration::from_secs(60);

/// The state of a request after an exchange.
pub(super) enum Exchanged {
    /// A certificate that satisfies the rules, as a chain in PEM.
    Issued(String),
    /// Undecided: continue then. The text says what it waits for.
    Later {
        wait: Duration,
        attempts: Attempts,
        /// The failure, if this is not merely the signer's queue.
        failure: Option<FailureClass>,
        why: String,
    },
    /// The signer denied the request.
    Denied(String),
    /// The certificate is not the ordered one; the differences.
    Mismatch(Vec<String>),
    /// The request can never succeed.
    Impossible(String),
}

/// The request of an order, as the signer receives it. Every node derives the same.
pub(super) fn request_of(signing: &Signing, order: &SigningOrder, uid: &str) -> Request {
    let wanted = RequestedCertificate {
        name: order.certificate.cert_name(),
        authority: Authority::Ca,
        profile: order.profile.clone(),
        tolerance: signing.tolerance,
    };
    let identity = NodeIdentity {
        node: order.node.clone(),
        cluster: signing.cluster.clone(),
    };
    Request::new(wanted, order.csr.clone(), identity, signing.now()).for_object(uid)
}

/// Returns the record of an event of a request, for the issuance log.
pub(super) fn audit_record(signing: &Signing, event: AuditEvent, request: &Request) -> AuditRecord {
    AuditRecord {
        signer: Some(signing.signer_name.clone()),
        signer_kind: Some(signing.signer.kind().as_str().to_owned()),
        ..audit::of_request(event, request)
    }
}

/// Drives one request as far as possible without waiting.
///
/// # Errors
/// Errors of the store: nothing is sent unless the record is on disk.
pub(super) async fn exchange(
    signing: &Signing,
    order: &SigningOrder,
    request: Request,
    work: &Work,
    trust: &TrustBundle,
) -> Result<Exchanged, store::StoreError> {
    let record = recorded(signing, &request, work)?;
    if let Some(pem) = &record.chain
        && let Ok(chain) = verified(signing, order, trust, pem.as_bytes())
        // Otherwise the signer can issue another one.
        && is_in_time(order.certificate, &chain, signing.now())
    {
        return Ok(issued(&chain, signing.now(), work.attempts));
    }
    if let Err(error) = probe(signing, PROBE_INTERVAL).await {
        return Ok(unprobed(&error, work.attempts));
    }
    if let Err(rejection) = signing.signer.preflight(&request.wanted) {
        return Ok(Exchanged::Later {
            wait: retry::delay(FailureClass::Config, 1, None, random_fraction())
                .unwrap_or_default(),
            attempts: work.attempts,
            failure: Some(FailureClass::Config),
            why: rejection.to_string(),
        });
    }
    let mut exchange = KubeletExchange {
        signing,
        uid: &work.uid,
        call: SignerCall::first(&record.exchange, false),
        attempts: work.attempts,
        request,
        record,
    };
    loop {
        let verify = |certificate: Vec<u8>| verified(signing, order, trust, &certificate);
        let answer = exchange.call_signer().await?;
        let answer = answer.map(|answer| answer.map(verify));
        if may_be_outdated(&answer, signing.signer.caps().resubmit) {
            match probe(signing, MIN_PROBE_AGE).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => return Ok(unprobed(&error, exchange.attempts)),
            }
        }
        match exchange.follow(answer)? {
            NextStep::Call { call, .. } => exchange.call = call,
            NextStep::End(end) => return Ok(exchange.exchanged(end)),
        }
    }
}

/// Probes the signer unless that was done within this time. Returns true if it was probed.
async fn probe(signing: &Signing, age: Duration) -> Result<bool, SignerError> {
    let (progress, operation) = (&*signing.observer, SignerOperation::Probe);
    let probe = event::asked(
        progress,
        &signing.signer_name,
        operation,
        signing.signer.probe(),
    );
    signing.probed.renew(age, probe).await
}

/// Returns true if a wrong certificate may be due to what the signer has learned, and the request can be sent again.
fn may_be_outdated(answer: &JudgedAnswer<Chain>, resubmit: Resubmit) -> bool {
    matches!(answer, Ok(Answer::Issued(Err(_))))
        && matches!(resubmit, Resubmit::Adopts | Resubmit::Duplicates)
}

/// Returns what follows a failed probe. It is not about this request, which may succeed later.
fn unprobed(error: &SignerError, attempts: Attempts) -> Exchanged {
    let attempts = Attempts {
        failures: attempts.failures + 1,
        ..attempts
    };
    let class = match error.class {
        FailureClass::Permanent => FailureClass::Config,
        class => class,
    };
    let random = random_fraction();
    let wait = retry::delay(class, attempts.failures, error.retry_after, random);
    Exchanged::Later {
        wait: wait.unwrap_or_default(),
        attempts,
        failure: Some(class),
        why: error.to_string(),
    }
}

/// An exchange under way.
struct KubeletExchange<'a> {
    signing: &'a Signing,
    uid: &'a str,
    request: Request,
    record: KubeletRequestRecord,
    /// The call that is due.
    call: SignerCall,
    attempts: Attempts,
}

impl KubeletExchange<'_> {
    /// Makes the call that is due. A submission is recorded before.
    async fn call_signer(&mut self) -> Result<Result<Answer, SignerError>, store::StoreError> {
        let (signing, exchange) = (self.signing, &mut self.record.exchange);
        exchange.attempt += 1;
        let deadline = signing.now() + signing.signer_wait;
        self.request = self
            .request
            .again(exchange.attempt, signing.now(), Some(deadline));
        if self.call.is_submission() {
            exchange.phase = RequestPhase::Submitting;
            exchange.first_submitted.get_or_insert(signing.now());
            if exchange.last_submitted.replace(signing.now()).is_none() {
                let record = audit_record(signing, AuditEvent::Requested, &self.request);
                signing.append_audit(record);
            }
            keep(signing, self.uid, &self.record)?;
            failpoint::reached("kubelets:submitting");
        }
        signing.pace.turn().await;
        let exchange = &self.record.exchange;
        let call = perform(&*signing.signer, &self.call, None, &self.request, exchange);
        let (progress, operation) = (&*signing.observer, self.call.operation());
        let answer = event::asked(progress, &signing.signer_name, operation, call).await;
        failpoint::reached("kubelets:answered");
        Ok(answer)
    }

    /// Decides what follows the answer, and records it.
    fn follow(
        &mut self,
        answer: JudgedAnswer<Chain>,
    ) -> Result<NextStep<Chain>, store::StoreError> {
        // The kubelet makes another one.
        let kind = if self.record.name == CertName::PodClient {
            object::POD_REQUEST.kind
        } else {
            object::CSR.kind
        };
        let way_out = format!("delete the {kind} {}", self.record.object);
        let circumstances = Circumstances {
            now: self.signing.now(),
            // The queue repeats the call later.
            time_left: Duration::ZERO,
            resubmit: self.signing.signer.caps().resubmit,
            can_exchange: false,
            random: random_fraction(),
            signer: self.signing.signer.label(),
            certificate: self.record.name,
            again: way_out.clone(),
            way_out,
        };
        let before = self.record.exchange.clone();
        let step = next(
            &mut self.record.exchange,
            &mut self.attempts,
            self.call.clone(),
            answer,
            &circumstances,
        );
        if let NextStep::End(Ok(chain)) = &step {
            self.record.chain = Some(chain.to_pem());
        }
        if self.record.exchange != before {
            keep(self.signing, self.uid, &self.record)?;
        }
        Ok(step)
    }

    fn exchanged(&self, end: Result<Chain, Unsigned>) -> Exchanged {
        match end {
            Ok(chain) => issued(&chain, self.signing.now(), self.attempts),
            Err(Unsigned::Pending(reason)) => Exchanged::Later {
                wait: until_poll(&self.record.exchange, self.signing.now()),
                attempts: self.attempts,
                failure: None,
                why: reason.to_string(),
            },
            Err(Unsigned::Denied(reason)) => Exchanged::Denied(reason),
            Err(Unsigned::Refused(differences)) => {
                Exchanged::Mismatch(differences.iter().map(ToString::to_string).collect())
            }
            Err(Unsigned::Failed(error)) => failed(&error, self.attempts),
        }
    }
}

/// Returns what follows a certificate that satisfies the rules. The clock of the signer may be ahead.
fn issued(chain: &Chain, now: OffsetDateTime, attempts: Attempts) -> Exchanged {
    let start = chain.leaf().not_before();
    match until(start, now) {
        None => Exchanged::Issued(chain.to_pem()),
        Some(wait) => Exchanged::Later {
            wait,
            attempts,
            failure: None,
            why: format!(
                "the certificate is not valid before {}: the clock of the signer is ahead, or that of this node is behind; it is kept until then",
                rfc3339(start)
            ),
        },
    }
}

/// Returns what follows a failed call: every class but one may pass.
fn failed(error: &SignerError, attempts: Attempts) -> Exchanged {
    let random = random_fraction();
    let wait = retry::delay(error.class, attempts.failures, error.retry_after, random);
    // Possibly this node can read its own files again later.
    let later = error.machine_fault.then_some(Duration::from_secs(60));
    match wait.or(later) {
        Some(wait) => Exchanged::Later {
            wait,
            attempts,
            failure: Some(error.class),
            why: error.to_string(),
        },
        None => Exchanged::Impossible(error.to_string()),
    }
}

fn until_poll(record: &RequestRecord, now: OffsetDateTime) -> Duration {
    let wait = record.next_poll.map(|at| at - now);
    let wait = wait.and_then(|wait| Duration::try_from(wait).ok());
    wait.unwrap_or(Duration::from_secs(1))
}

/// Returns the record of the request, if it is the same request to the same signer; otherwise a new one, whose first call
/// asks the signer: another leader may have sent the request.
fn recorded(
    signing: &Signing,
    request: &Request,
    work: &Work,
) -> Result<KubeletRequestRecord, store::StoreError> {
    let signer = &signing.signer;
    let found = match signing.root.kubelet_request(&work.uid) {
        Err(error @ store::StoreError::NewerFormat { .. }) => return Err(error),
        Err(error) if error.class() == store::ErrorClass::Unsafe => {
            tracing::warn!("{error}; the signer is asked about the request again");
            None
        }
        found => found?,
    };
    let matches = |found: &KubeletRequestRecord| {
        found.exchange.request_id == request.id.as_str()
            && found.exchange.signer_config == signer.configured()
    };
    if let Some(found) = found.filter(matches) {
        return Ok(found);
    }
    let mut exchange = RequestRecord::ready(
        request.id.as_str(),
        &signing.signer_name,
        signer.kind().as_str(),
        &signer.configured(),
    );
    exchange.phase = RequestPhase::Submitting;
    Ok(KubeletRequestRecord {
        object: work.name.clone(),
        name: work.certificate.cert_name(),
        exchange,
        chain: None,
    })
}

/// Writes the record, if the signer remembers the request after this process.
fn keep(
    signing: &Signing,
    uid: &str,
    record: &KubeletRequestRecord,
) -> Result<(), store::StoreError> {
    if signing.signer.kind().is_in_process() {
        Ok(())
    } else {
        signing.root.keep_kubelet_request(uid, record)
    }
}

/// Verifies a signer's answer against the order. Only the verified path is kept, whatever else the signer sent.
pub(super) fn verified(
    signing: &Signing,
    order: &SigningOrder,
    trust: &TrustBundle,
    answer: &[u8],
) -> Result<Chain, Vec<AnswerFault>> {
    let unusable = |error: ChainError| vec![AnswerFault::Unusable(error.to_string())];
    let chain = Chain::from_response(answer, order.csr.public_key()).map_err(unusable)?;
    let now = time_of_use(chain.leaf(), signing.now());
    let chain = along_path(chain, trust, now);
    chain.check_size().map_err(unusable)?;
    let differences = certificate_differences(order, &chain, signing.tolerance, trust, now);
    if differences.is_empty() {
        Ok(chain)
    } else {
        Err(differences.into_iter().map(AnswerFault::Differs).collect())
    }
}

/// Returns the time at which a wait ends.
pub(super) fn after(wait: Duration) -> Option<Instant> {
    Some(Instant::now() + wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};

    #[test]
    fn keeps_certificate_of_signer_whose_clock_is_ahead() {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let now = OffsetDateTime::now_utc();
        let made = CertificateAuthority::self_signed("a", key, now, Duration::from_secs(3600));
        let pem = made.unwrap().bundle().first().to_pem();
        let chain = Chain::from_pem(pem.as_bytes()).unwrap();
        let start = chain.leaf().not_before();
        let minute = Duration::from_secs(60);
        let Exchanged::Later { wait, why, .. } =
            issued(&chain, start - minute, Attempts::default())
        else {
            panic!("the certificate is used before it is valid");
        };
        let kept = format!(
            "the certificate is not valid before {}: the clock of the signer is ahead, or that of this node is behind; it is kept until then",
            rfc3339(start)
        );
        assert_eq!((wait, why), (minute, kept));
        let exchanged = issued(&chain, start, Attempts::default());
        assert!(matches!(exchanged, Exchanged::Issued(given) if given == pem));
    }

    #[test]
    fn failed_probe_ends_no_request() {
        let attempts = Attempts {
            failures: 2,
            polls: 1,
        };
        for class in [
            FailureClass::Transient,
            FailureClass::Ambiguous,
            FailureClass::Auth,
            FailureClass::Config,
            FailureClass::Permanent,
        ] {
            let error = SignerError::new(class, "the role is missing", "create it");
            let Exchanged::Later {
                attempts,
                failure: Some(failure),
                why,
                ..
            } = unprobed(&error, attempts)
            else {
                panic!("{class:?}");
            };
            assert_eq!((attempts.failures, attempts.polls), (3, 1));
            assert_eq!(failure.passes(), class.passes());
            assert_eq!(why, "the role is missing; create it");
        }
    }

    #[test]
    fn sends_again_only_what_signer_accepts_twice() {
        let wrong = || {
            let fault = AnswerFault::Unusable("no path to the CA".to_owned());
            Ok(Answer::Issued(Err(vec![fault])))
        };
        let denied = || {
            let reason = "no".to_owned();
            Ok(Answer::Denied { reason })
        };
        for (answer, resubmit, expected) in [
            (wrong(), Resubmit::Adopts, true),
            (wrong(), Resubmit::Duplicates, true),
            (wrong(), Resubmit::FreshCredential, false),
            (wrong(), Resubmit::Forbidden, false),
            (denied(), Resubmit::Adopts, false),
        ] {
            assert_eq!(may_be_outdated(&answer, resubmit), expected, "{resubmit:?}");
        }
    }
}
