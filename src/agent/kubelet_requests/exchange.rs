//! The exchange with the signer about one request of a kubelet: submit, recover, poll, verify.
//!
//! It follows the contract of the node's own requests (`agent::request`) with the same decisions (`next`), but never
//! waits for a signer: the queue continues a pending request later. The record of the exchange is on disk before the
//! signer is contacted. A node without a record, because it has just become the leader, first asks the signer whether it
//! has the request; every node derives the same id.

use std::rc::Rc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::Signing;
use super::queue::Work;
use crate::agent::event;
use crate::agent::request::next::{
    Attempts, Circumstances, NextStep, SignerCall, SignerResponse, next,
};
use crate::kube::names::Authority;
use crate::kubelets::{SigningOrder, certificate_differences};
use crate::process::failpoint;
use crate::process::jitter::random_fraction;
use crate::signer::{
    Answer, FailureClass, NodeIdentity, Request, RequestedCertificate, SignerError, SignerKind,
    Ticket, retry,
};
use crate::store::{self, KubeletRequestRecord, RequestPhase, RequestRecord};
use crate::x509::{Chain, TrustBundle, along_path};

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
    let signer = &signing.signer;
    if let Err(rejection) = signer.preflight(&request.wanted) {
        return Ok(Exchanged::Later {
            wait: retry::delay(FailureClass::Config, 1, None, random_fraction())
                .unwrap_or_default(),
            attempts: work.attempts,
            failure: Some(FailureClass::Config),
            why: rejection.to_string(),
        });
    }
    let mut record = recorded(signing, &request, work)?;
    if let Some(pem) = &record.chain
        && let Ok(chain) = verified(signing, order, trust, pem.as_bytes())
    {
        return Ok(Exchanged::Issued(chain.to_pem()));
    }
    let mut request = request;
    let mut attempts = work.attempts;
    let mut call = SignerCall::first(&record.exchange, false);
    loop {
        let exchanged = &mut record.exchange;
        exchanged.attempt += 1;
        let deadline = signing.now() + signing.signer_wait;
        request = request.again(exchanged.attempt, signing.now(), Some(deadline));
        if call.is_submission() {
            exchanged.phase = RequestPhase::Submitting;
            exchanged.first_submitted.get_or_insert(signing.now());
            keep(signing, &work.uid, &record)?;
            failpoint::reached("kubelets:submitting");
        }
        signing.pace.turn().await;
        let operation = call.operation();
        let asked = perform(signing, &call, &request, &record.exchange);
        let progress = &*signing.observer;
        let answer = event::asked(progress, &signing.signer_name, operation, asked).await;
        failpoint::reached("kubelets:answered");
        let response = respond(signing, order, trust, answer);
        let waits_for = match &response {
            SignerResponse::Failed(error) => Some((Some(error.class), error.to_string())),
            SignerResponse::Pending { note, .. } => Some((None, note.clone())),
            _ => None,
        };
        let circumstances = Circumstances {
            now: signing.now(),
            time_left: Duration::ZERO,
            resubmit: signer.caps().resubmit,
            can_exchange: false,
            random: random_fraction(),
        };
        let before = record.exchange.clone();
        let step = next(
            &mut record.exchange,
            &mut attempts,
            call,
            response,
            &circumstances,
        );
        if let NextStep::Install(chain) = &step {
            record.chain = Some(chain.to_pem());
        }
        if record.exchange != before {
            keep(signing, &work.uid, &record)?;
        }
        let (failure, why) = waits_for.unwrap_or_default();
        return Ok(match step {
            NextStep::Install(chain) => Exchanged::Issued(chain.to_pem()),
            NextStep::Call { call: next, .. } => {
                call = next;
                continue;
            }
            NextStep::Wait(_) => Exchanged::Later {
                wait: until_poll(&record.exchange, signing.now()),
                attempts,
                failure,
                why,
            },
            NextStep::Denied(reason) => Exchanged::Denied(reason),
            NextStep::Refused(differences) => Exchanged::Mismatch(differences),
            NextStep::Failed(error) => failed(&error, attempts),
            NextStep::Lost => Exchanged::Impossible(format!(
                "{} accepted the request and does not know it any more",
                signer.label()
            )),
            NextStep::MustNotResubmit => Exchanged::Impossible(format!(
                "{} lost the request and must not receive it twice",
                signer.label()
            )),
        });
    }
}

/// Returns what follows a failed call: every class but one may pass.
fn failed(error: &SignerError, attempts: Attempts) -> Exchanged {
    let random = random_fraction();
    let wait = retry::delay(error.class, attempts.failures, error.retry_after, random);
    match wait {
        Some(wait) => Exchanged::Later {
            wait,
            attempts,
            failure: Some(error.class),
            why: error.to_string(),
        },
        // Possibly this node can read its own files again later.
        None if error.machine_fault => Exchanged::Later {
            wait: Duration::from_secs(60),
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
        exchange,
        chain: None,
    })
}

/// Writes the record, unless the signer is this process: it forgets its requests when the process ends.
fn keep(
    signing: &Signing,
    uid: &str,
    record: &KubeletRequestRecord,
) -> Result<(), store::StoreError> {
    match signing.signer.kind() {
        SignerKind::Embedded | SignerKind::Local => Ok(()),
        _ => signing.root.keep_kubelet_request(uid, record),
    }
}

/// Calls the signer once.
async fn perform(
    signing: &Signing,
    call: &SignerCall,
    request: &Request,
    record: &RequestRecord,
) -> Result<Answer, SignerError> {
    let signer = Rc::clone(&signing.signer);
    match call {
        SignerCall::Submit | SignerCall::Renew => signer.submit(request).await,
        SignerCall::Recover => {
            let ticket = record.handle.clone();
            let ticket = ticket.and_then(|ticket| Ticket::try_from(ticket).ok());
            let answer = signer.recover(request, ticket.as_ref()).await?;
            Ok(answer.unwrap_or(Answer::Gone))
        }
        SignerCall::Poll(ticket) => signer.poll(request, ticket).await,
    }
}

fn respond(
    signing: &Signing,
    order: &SigningOrder,
    trust: &TrustBundle,
    answer: Result<Answer, SignerError>,
) -> SignerResponse<Chain> {
    match answer {
        Ok(Answer::Issued(answer)) => match verified(signing, order, trust, &answer) {
            Ok(chain) => SignerResponse::Accepted(chain),
            Err(differences) => SignerResponse::Mismatch(differences),
        },
        Ok(Answer::Pending {
            ticket,
            after,
            note,
        }) => SignerResponse::Pending {
            ticket,
            after,
            note,
        },
        Ok(Answer::Denied { reason }) => SignerResponse::Denied(reason),
        Ok(Answer::Gone) => SignerResponse::Unknown,
        Err(error) => SignerResponse::Failed(error),
    }
}

/// Verifies a signer's answer against the order. Only the verified path is kept, whatever else the signer sent.
fn verified(
    signing: &Signing,
    order: &SigningOrder,
    trust: &TrustBundle,
    answer: &[u8],
) -> Result<Chain, Vec<String>> {
    let now = signing.now();
    let chain = Chain::from_response(answer, order.csr.public_key())
        .map_err(|error| vec![error.to_string()])?;
    let chain = along_path(chain, trust, now);
    chain
        .check_size()
        .map_err(|error| vec![error.to_string()])?;
    let differences = certificate_differences(order, &chain, signing.tolerance, trust, now);
    match differences.is_empty() {
        true => Ok(chain),
        false => Err(differences.iter().map(ToString::to_string).collect()),
    }
}

/// Returns the time at which a wait ends.
pub(super) fn after(wait: Duration) -> Option<Instant> {
    Some(Instant::now() + wait)
}
