//! The step that follows a signer's answer: a pure decision over the record of the request.
//!
//! [`next`] changes the record and returns what to do. `request::obtain` and `kubelet_requests::exchange` call the signer,
//! write the record and wait.

use std::time::Duration;

use time::OffsetDateTime;

use super::{AnswerFault, PendingReason, Unsigned};
use crate::agent::SignerOperation;
use crate::kube::names::CertName;
use crate::signer::{Answer, FailureClass, Resubmit, SignerError, Ticket, retry};
use crate::spec::assess::joined;
use crate::store::{self, LastError, RequestPhase};

/// A shorter wait before the deadline is not worth another call.
const MIN_LAST_WAIT: Duration = Duration::from_secs(1);

/// The call to the signer that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum SignerCall {
    /// Sends the request.
    Submit,
    /// Sends the request in exchange for the certificate in place.
    Renew,
    /// Asks whether the signer has the request: its fate is unknown.
    Recover,
    /// Asks for the result.
    Poll(Ticket),
}

impl SignerCall {
    /// Returns the first call for a request with this record, with the exchange for a certificate in place preferred if
    /// `can_exchange`.
    pub(in crate::agent) fn first(record: &store::RequestRecord, can_exchange: bool) -> SignerCall {
        match (record.phase, record.handle.clone().map(Ticket::try_from)) {
            (RequestPhase::Ready, _) if can_exchange => SignerCall::Renew,
            (RequestPhase::Ready, _) => SignerCall::Submit,
            (RequestPhase::Requested, Some(Ok(ticket))) => SignerCall::Poll(ticket),
            _ => SignerCall::Recover,
        }
    }

    /// Returns whether the request is sent.
    pub(in crate::agent) fn is_submission(&self) -> bool {
        matches!(self, SignerCall::Submit | SignerCall::Renew)
    }

    /// Returns whether the request is sent to a signer that does not have it. A signer that keeps a pending exchange without
    /// a reference to poll receives the exchange again.
    pub(in crate::agent) fn is_new_submission(&self, phase: RequestPhase) -> bool {
        let is_repeated = *self == SignerCall::Renew && phase == RequestPhase::Requested;
        self.is_submission() && !is_repeated
    }

    /// Returns the operation in events and metrics.
    pub(in crate::agent) fn operation(&self) -> SignerOperation {
        match self {
            SignerCall::Submit => SignerOperation::Submit,
            SignerCall::Renew => SignerOperation::Renew,
            SignerCall::Recover => SignerOperation::Recover,
            SignerCall::Poll(_) => SignerOperation::Poll,
        }
    }
}

/// Returns how long the record requires to wait until the next submission, by the number of submissions and by the wish of
/// the signer.
pub(in crate::agent) fn wait_before_submission(
    record: &store::RequestRecord,
    now: OffsetDateTime,
) -> Duration {
    // A clock that was set back does not extend the wait.
    let since_last = record
        .last_submitted
        .and_then(|last| Duration::try_from(now - last).ok())
        .filter(|since| *since < retry::SUBMISSION_MEMORY);
    let own = since_last.map_or(Duration::ZERO, |since| {
        retry::submission_delay(record.submissions, since)
    });
    let requested = record
        .not_before
        .and_then(|at| Duration::try_from(at - now).ok())
        .filter(|wait| *wait <= retry::MAX_REQUESTED_DELAY);
    own.max(requested.unwrap_or_default())
}

/// Records that the request is about to be submitted.
pub(in crate::agent) fn record_submission(record: &mut store::RequestRecord, now: OffsetDateTime) {
    let is_forgotten = record
        .last_submitted
        .is_none_or(|last| now - last >= retry::SUBMISSION_MEMORY);
    record.submissions = if is_forgotten {
        1
    } else {
        record.submissions.saturating_add(1)
    };
    record.last_submitted = Some(now);
    record.phase = RequestPhase::Submitting;
    record.first_submitted.get_or_insert(now);
}

/// The signer's answer to a call, its certificate verified: `C` if it satisfies the spec, otherwise the differences.
pub(in crate::agent) type JudgedAnswer<C> =
    Result<Answer<Result<C, Vec<AnswerFault>>>, SignerError>;

/// Interprets an answer that is the certificate to be replaced: the signer has not issued another one. `refusal` is the
/// answer to an exchange of that certificate.
pub(in crate::agent) fn without_new_certificate(
    call: &SignerCall,
    answer: Answer,
    refusal: Option<&SignerError>,
) -> Result<Answer, SignerError> {
    match (call, refusal) {
        (SignerCall::Recover, _) => Ok(Answer::Gone),
        (SignerCall::Submit, Some(refusal)) => Err(refusal.without_cause()),
        _ => Ok(answer),
    }
}

/// The inputs of the decision besides record and answer.
pub(in crate::agent) struct Circumstances {
    pub(in crate::agent) now: OffsetDateTime,
    /// Until the deadline of the run.
    pub(in crate::agent) time_left: Duration,
    /// Whether the signer accepts a second submission for the same key.
    pub(in crate::agent) resubmit: Resubmit,
    /// A certificate in place can be exchanged; false once the signer refused that.
    pub(in crate::agent) can_exchange: bool,
    /// Uniform in [0, 1), to spread the retries of many nodes.
    pub(in crate::agent) random: f64,
    /// The signer in messages.
    pub(in crate::agent) signer: String,
    /// The requested certificate.
    pub(in crate::agent) certificate: CertName,
    /// How an administrator has the same request sent again.
    pub(in crate::agent) again: String,
    /// How an administrator permits another request after the signer has lost one.
    pub(in crate::agent) way_out: String,
}

/// How often calls failed and polls were answered, in this run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Attempts {
    pub(in crate::agent) failures: u32,
    pub(in crate::agent) polls: u32,
}

/// The next step of a request.
#[derive(Debug)]
pub(in crate::agent) enum NextStep<C> {
    /// Another call, after a wait.
    Call { call: SignerCall, wait: Duration },
    /// No further call in this run.
    End(Result<C, Unsigned>),
}

/// Decides what follows `answer` to `call`, and changes the record accordingly.
pub(in crate::agent) fn next<C>(
    record: &mut store::RequestRecord,
    attempts: &mut Attempts,
    call: SignerCall,
    answer: JudgedAnswer<C>,
    circumstances: &Circumstances,
) -> NextStep<C> {
    let submit_again = |call| NextStep::Call {
        call,
        wait: Duration::ZERO,
    };
    let requested = answer.as_ref().err().and_then(|error| error.retry_after);
    record.not_before =
        requested.map(|wait| circumstances.now + wait.min(retry::MAX_REQUESTED_DELAY));
    NextStep::End(match answer {
        Ok(Answer::Issued(Ok(chain))) => {
            record.phase = RequestPhase::Answered;
            Ok(chain)
        }
        Ok(Answer::Issued(Err(differences))) => {
            record.phase = RequestPhase::Failed;
            record.last_error = Some(LastError {
                class: "refused".to_owned(),
                code: "verification".to_owned(),
                detail: joined(&differences),
                at: circumstances.now,
            });
            Err(Unsigned::Refused(differences))
        }
        Ok(Answer::Pending {
            ticket,
            after,
            note,
            is_uniform,
        }) => {
            let wait = retry::poll_delay(attempts.polls, after);
            attempts.polls += 1;
            record_ticket(record, &ticket, circumstances.now + wait);
            let left = circumstances.time_left;
            if wait <= left || left >= MIN_LAST_WAIT {
                let call = SignerCall::Poll(ticket);
                let wait = wait.min(left);
                return NextStep::Call { call, wait };
            }
            let reason = PendingReason::Undecided { note, is_uniform };
            Err(Unsigned::Pending(reason))
        }
        Ok(Answer::Denied { reason }) => {
            record.phase = RequestPhase::Denied;
            Err(Unsigned::Denied(reason))
        }
        // Sending it again would never end.
        Ok(Answer::Gone) if call.is_submission() => Err(Unsigned::failed(forgotten(circumstances))),
        Ok(Answer::Gone)
            if record.first_submitted.is_some()
                && circumstances.resubmit == Resubmit::Forbidden =>
        {
            Err(Unsigned::failed(forbidden(circumstances)))
        }
        Ok(Answer::Gone) => {
            // A later run must not poll with a reference that the signer does not know.
            record.handle = None;
            return submit_again(if circumstances.can_exchange {
                SignerCall::Renew
            } else {
                SignerCall::Submit
            });
        }
        // The exchange was refused, not the certificate.
        Err(error) if call == SignerCall::Renew && !error.class.passes() => {
            return submit_again(SignerCall::Submit);
        }
        Err(error) => return after_failure(record, attempts, call, error, circumstances),
    })
}

/// The signer lost a request that it had just accepted.
fn forgotten(circumstances: &Circumstances) -> SignerError {
    SignerError::permanent(
        format!(
            "{} received the request for {} and now reports that it is unknown",
            circumstances.signer, circumstances.certificate
        ),
        format!(
            "examine the signer's log, correct the cause and {}",
            circumstances.again
        ),
    )
}

/// The signer lost the request and does not accept a second one for the same key.
fn forbidden(circumstances: &Circumstances) -> SignerError {
    SignerError::permanent(
        format!(
            "{} received a request for {} earlier and no longer has it, and a second request for the same key is not permitted",
            circumstances.signer, circumstances.certificate
        ),
        format!(
            "check the state of the request at the signer, then {}",
            circumstances.way_out
        ),
    )
}

/// Records that the signer has not decided, and when it is polled next.
fn record_ticket(record: &mut store::RequestRecord, ticket: &Ticket, next_poll: OffsetDateTime) {
    record.phase = RequestPhase::Requested;
    record.handle = Some(ticket.as_str().to_owned());
    record.next_poll = Some(next_poll);
}

/// Decides whether a failed call is repeated, and records the failure.
fn after_failure<C>(
    record: &mut store::RequestRecord,
    attempts: &mut Attempts,
    call: SignerCall,
    error: SignerError,
    circumstances: &Circumstances,
) -> NextStep<C> {
    attempts.failures += 1;
    record.last_error = Some(LastError {
        class: error.class.as_str().to_owned(),
        code: "exchange".to_owned(),
        detail: error.to_string(),
        at: circumstances.now,
    });
    // The signer does not have the request, and the next submission is the first.
    if circumstances.resubmit == Resubmit::Forbidden
        && call.is_submission()
        && error.class.excludes_processing()
    {
        record.phase = RequestPhase::Ready;
        record.first_submitted = None;
    }
    let wait = wait_before_retry(
        &error,
        attempts.failures,
        circumstances.time_left,
        circumstances.random,
    );
    match wait {
        None => NextStep::End(Err(Unsigned::failed(error))),
        Some(wait) => NextStep::Call {
            call: match error.class {
                // The request may have reached the signer.
                FailureClass::Ambiguous => SignerCall::Recover,
                _ => call,
            },
            wait,
        },
    }
}

/// Returns how long to wait after `failures` failures in a row; `None` if another call is pointless or the time does not
/// suffice. The last call is at the deadline, so a run lasts as long as it was told to.
pub(in crate::agent) fn wait_before_retry(
    error: &SignerError,
    failures: u32,
    time_left: Duration,
    random: f64,
) -> Option<Duration> {
    let wait = retry::delay(error.class, failures, error.retry_after, random)?;
    // An earlier call than the signer permits is pointless.
    let is_too_early = error.retry_after.is_some_and(|after| after > time_left);
    let is_over = wait >= time_left && (time_left < MIN_LAST_WAIT || is_too_early);
    (error.class.passes() && !is_over).then_some(wait.min(time_left))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

    fn ticket() -> Ticket {
        Ticket::try_from("t1".to_owned()).unwrap()
    }

    fn record(phase: RequestPhase) -> store::RequestRecord {
        store::RequestRecord {
            phase,
            first_submitted: (phase != RequestPhase::Ready).then_some(NOW),
            ..store::RequestRecord::ready("id", "signer", "exec", "config")
        }
    }

    fn failed(class: FailureClass) -> JudgedAnswer<()> {
        Err(SignerError::new(class, "no route", "look"))
    }

    fn pending(after: u64) -> JudgedAnswer<()> {
        Ok(Answer::Pending {
            ticket: ticket(),
            after: Some(Duration::from_secs(after)),
            note: "waits".to_owned(),
            is_uniform: false,
        })
    }

    fn circumstances(time_left: Duration) -> Circumstances {
        Circumstances {
            now: NOW,
            time_left,
            resubmit: Resubmit::Adopts,
            can_exchange: false,
            random: 1.0,
            signer: "the signer".to_owned(),
            certificate: CertName::Apiserver,
            again: "run again".to_owned(),
            way_out: "remove /pending/apiserver".to_owned(),
        }
    }

    fn show(next: &NextStep<()>) -> String {
        let end = match next {
            NextStep::Call { call, wait } => {
                return format!("{} in {}s", call.operation().as_str(), wait.as_secs());
            }
            NextStep::End(end) => end,
        };
        match end {
            Ok(()) => "install".to_owned(),
            Err(Unsigned::Pending(note)) => format!("leave: {note}"),
            Err(Unsigned::Denied(reason)) => format!("denied: {reason}"),
            Err(Unsigned::Refused(differences)) => format!("refused: {}", joined(differences)),
            Err(Unsigned::Failed(error)) => format!("{}: {}", error.class.as_str(), error.detail),
        }
    }

    #[test]
    fn decides_next_call_from_record_and_response() {
        use RequestPhase::{Answered, Denied, Failed, Requested, Submitting};
        use SignerCall::{Poll, Recover, Renew, Submit};
        let sent = Submitting;
        let lost = "permanent: the signer received the request for apiserver and now reports that it is unknown";
        let cases = [
            (
                sent,
                Submit,
                Ok(Answer::Issued(Ok(()))),
                "install",
                Answered,
            ),
            (
                sent,
                Submit,
                Ok(Answer::Issued(Err(vec![AnswerFault::Unusable(
                    "other name".to_owned(),
                )]))),
                "refused: other name",
                Failed,
            ),
            (sent, Submit, pending(20), "poll in 20s", Requested),
            (sent, Submit, pending(90), "poll in 60s", Requested),
            (
                Requested,
                Poll(ticket()),
                Ok(Answer::Denied {
                    reason: "no".to_owned(),
                }),
                "denied: no",
                Denied,
            ),
            (sent, Submit, Ok(Answer::Gone), lost, sent),
            (sent, Renew, Ok(Answer::Gone), lost, sent),
            (sent, Recover, Ok(Answer::Gone), "renew in 0s", sent),
            (
                Requested,
                Poll(ticket()),
                Ok(Answer::Gone),
                "renew in 0s",
                Requested,
            ),
            (
                sent,
                Renew,
                failed(FailureClass::Permanent),
                "submit in 0s",
                sent,
            ),
            (
                sent,
                Renew,
                failed(FailureClass::Transient),
                "renew in 1s",
                sent,
            ),
            (
                sent,
                Submit,
                failed(FailureClass::Permanent),
                "permanent: no route",
                sent,
            ),
            (
                sent,
                Submit,
                failed(FailureClass::Config),
                "config: no route",
                sent,
            ),
            (
                sent,
                Submit,
                failed(FailureClass::Transient),
                "submit in 1s",
                sent,
            ),
            (
                sent,
                Submit,
                failed(FailureClass::Ambiguous),
                "recover in 1s",
                sent,
            ),
        ];
        for (phase, call, answer, expected, phase_after) in cases {
            let (mut record, mut attempts) = (record(phase), Attempts::default());
            let shown = format!("{phase:?} {call:?} {answer:?}");
            let circumstances = Circumstances {
                can_exchange: true,
                ..circumstances(Duration::from_secs(60))
            };
            let next = next(&mut record, &mut attempts, call, answer, &circumstances);
            assert_eq!(show(&next), expected, "{shown}");
            assert_eq!(record.phase, phase_after, "{shown}");
        }
    }

    #[test]
    fn never_resubmits_if_signer_forbids_it() {
        let circumstances = Circumstances {
            resubmit: Resubmit::Forbidden,
            ..circumstances(Duration::from_secs(60))
        };
        for (phase, expected) in [
            (
                RequestPhase::Requested,
                "permanent: the signer received a request for apiserver earlier and no longer has it, and a second request for the same key is not permitted",
            ),
            (RequestPhase::Ready, "submit in 0s"),
        ] {
            let mut record = record(phase);
            let next = next(
                &mut record,
                &mut Attempts::default(),
                SignerCall::Recover,
                JudgedAnswer::<()>::Ok(Answer::Gone),
                &circumstances,
            );
            assert_eq!(show(&next), expected, "{phase:?}");
        }
    }

    #[test]
    fn repeated_pending_exchange_is_not_a_new_submission() {
        use RequestPhase::{Ready, Requested, Submitting};
        use SignerCall::{Poll, Recover, Renew, Submit};
        for (call, phase, expected) in [
            (Renew, Ready, true),
            (Renew, Submitting, true),
            (Renew, Requested, false),
            (Submit, Requested, true),
            (Recover, Submitting, false),
            (Poll(ticket()), Requested, false),
        ] {
            let shown = format!("{call:?} {phase:?}");
            assert_eq!(call.is_new_submission(phase), expected, "{shown}");
        }
        // The phase stays while the signer has not decided.
        let mut record = store::RequestRecord {
            handle: Some("t1".to_owned()),
            ..record(Requested)
        };
        let circumstances = Circumstances {
            can_exchange: true,
            ..circumstances(Duration::from_secs(60))
        };
        let mut attempts = Attempts::default();
        for (call, answer) in [
            (Poll(ticket()), Ok(Answer::Gone)),
            (Renew, pending(20)),
            (Poll(ticket()), Ok(Answer::Gone)),
            (Renew, failed(FailureClass::Transient)),
        ] {
            let _ = next(&mut record, &mut attempts, call, answer, &circumstances);
            assert!(!Renew.is_new_submission(record.phase));
        }
    }

    #[test]
    fn certificate_to_be_replaced_is_not_a_new_one() {
        let old = || Answer::Issued(b"old".to_vec());
        let refusal = || SignerError::config("404", "set allow-auto-renewal");
        let submit = SignerCall::Submit;
        for (call, refused, expected) in [
            (SignerCall::Recover, None, Ok(Answer::Gone)),
            (SignerCall::Recover, Some(refusal()), Ok(Answer::Gone)),
            (submit.clone(), Some(refusal()), Err(refusal())),
            (submit, None, Ok(old())),
            (SignerCall::Renew, None, Ok(old())),
        ] {
            let answer = without_new_certificate(&call, old(), refused.as_ref());
            assert_eq!(answer, expected, "{call:?}");
        }
    }

    #[test]
    fn sends_request_again_that_signer_certainly_lacks() {
        use FailureClass::{Ambiguous, Auth, Config, Permanent, Transient};
        for (resubmit, class, call) in [
            (Resubmit::Forbidden, Transient, "submit"),
            (Resubmit::Forbidden, Auth, "submit"),
            (Resubmit::Forbidden, Config, "submit"),
            (Resubmit::Forbidden, Ambiguous, "recover"),
            (Resubmit::Forbidden, Permanent, "recover"),
            (Resubmit::Adopts, Transient, "recover"),
        ] {
            let circumstances = Circumstances {
                resubmit,
                ..circumstances(Duration::ZERO)
            };
            let mut record = record(RequestPhase::Ready);
            record_submission(&mut record, NOW);
            let _ = next(
                &mut record,
                &mut Attempts::default(),
                SignerCall::Submit,
                failed(class),
                &circumstances,
            );
            let first = SignerCall::first(&record, false);
            assert_eq!(first.operation().as_str(), call, "{resubmit:?} {class:?}");
            let is_submitted = record.first_submitted.is_some();
            assert_eq!(is_submitted, call == "recover", "{resubmit:?} {class:?}");
        }
    }

    #[test]
    fn delays_submissions_after_many_without_success() {
        let minute = Duration::from_secs(60);
        let mut record = store::RequestRecord::ready("id", "signer", "exec", "config");
        for _ in 0..8 {
            assert_eq!(wait_before_submission(&record, NOW), Duration::ZERO);
            record_submission(&mut record, NOW);
        }
        assert_eq!(wait_before_submission(&record, NOW), 5 * minute);
        assert_eq!(wait_before_submission(&record, NOW + 4 * minute), minute);
        assert_eq!(
            wait_before_submission(&record, NOW + 5 * minute),
            Duration::ZERO
        );
        // The clock was ahead at the last submission.
        assert_eq!(
            wait_before_submission(&record, NOW - minute),
            Duration::ZERO
        );
        record_submission(&mut record, NOW + 60 * minute);
        assert_eq!(
            (record.submissions, record.phase),
            (1, RequestPhase::Submitting)
        );
        assert_eq!(record.first_submitted, Some(NOW));
    }

    #[test]
    fn delays_submission_as_signer_requests() {
        let second = Duration::from_secs;
        let failed = |retry_after| {
            let mut record = record(RequestPhase::Submitting);
            let error = SignerError {
                retry_after,
                ..SignerError::new(FailureClass::Transient, "busy", "wait")
            };
            let _ = next(
                &mut record,
                &mut Attempts::default(),
                SignerCall::Submit,
                JudgedAnswer::<()>::Err(error),
                &circumstances(Duration::ZERO),
            );
            record
        };
        let busy = failed(Some(second(600)));
        assert_eq!(wait_before_submission(&busy, NOW), second(600));
        assert_eq!(wait_before_submission(&busy, NOW + second(590)), second(10));
        for later in [600, 700] {
            let wait = wait_before_submission(&busy, NOW + second(later));
            assert_eq!(wait, Duration::ZERO);
        }
        // The clock was ahead at the answer.
        let wait = wait_before_submission(&busy, NOW - second(3600));
        assert_eq!(wait, Duration::ZERO);
        let longest = wait_before_submission(&failed(Some(Duration::MAX)), NOW);
        assert_eq!(longest, retry::MAX_REQUESTED_DELAY);
        assert_eq!(wait_before_submission(&failed(None), NOW), Duration::ZERO);
    }

    #[test]
    fn makes_last_call_at_deadline() {
        let error = SignerError::new(FailureClass::Transient, "no route", "look");
        let second = Duration::from_secs;
        let wait = |error, left| wait_before_retry(error, 4, left, 1.0);
        assert_eq!(wait(&error, second(9)), Some(second(8)));
        assert_eq!(wait(&error, second(3)), Some(second(3)));
        assert_eq!(wait(&error, Duration::from_millis(900)), None);
        let busy = SignerError {
            retry_after: Some(second(60)),
            ..SignerError::new(FailureClass::Transient, "busy", "wait")
        };
        assert_eq!(wait(&busy, second(59)), None);
        let polls = |left| {
            let mut record = record(RequestPhase::Submitting);
            let circumstances = circumstances(left);
            let mut attempts = Attempts::default();
            let call = SignerCall::Submit;
            let step = next(
                &mut record,
                &mut attempts,
                call,
                pending(90),
                &circumstances,
            );
            // The next run keeps the signer's time.
            assert_eq!(record.next_poll, Some(NOW + second(90)));
            show(&step)
        };
        assert_eq!(polls(second(30)), "poll in 30s");
        assert_eq!(polls(Duration::from_millis(900)), "leave: waits");
    }

    #[test]
    fn resumes_with_the_call_that_the_record_allows() {
        let polled = store::RequestRecord {
            handle: Some("t1".to_owned()),
            ..record(RequestPhase::Requested)
        };
        assert_eq!(SignerCall::first(&polled, true), SignerCall::Poll(ticket()));
        let ready = record(RequestPhase::Ready);
        assert_eq!(SignerCall::first(&ready, true), SignerCall::Renew);
        assert_eq!(SignerCall::first(&ready, false), SignerCall::Submit);
        let lost = record(RequestPhase::Submitting);
        assert_eq!(SignerCall::first(&lost, true), SignerCall::Recover);
    }
}
