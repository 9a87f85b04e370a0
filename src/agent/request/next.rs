//! The step that follows a signer's response: a pure decision over the record of the request.
//!
//! [`next`] changes the record and returns what to do; `request::obtain` calls the signer, writes the record and waits.

use std::time::Duration;

use time::OffsetDateTime;

use crate::agent::Operation;
use crate::signer::{Class, Resubmit, SignerError, Ticket, retry};
use crate::store::{self, LastError, Phase};

/// The call to the signer that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignerCall {
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
    pub(super) fn first(record: &store::Ticket, can_exchange: bool) -> SignerCall {
        match (record.phase, record.handle.clone().map(Ticket::try_from)) {
            (Phase::Ready, _) if can_exchange => SignerCall::Renew,
            (Phase::Ready, _) => SignerCall::Submit,
            (Phase::Requested, Some(Ok(ticket))) => SignerCall::Poll(ticket),
            _ => SignerCall::Recover,
        }
    }

    /// True if the request is sent.
    pub(super) fn is_submission(&self) -> bool {
        matches!(self, SignerCall::Submit | SignerCall::Renew)
    }

    /// The operation in events and metrics.
    pub(super) fn operation(&self) -> Operation {
        match self {
            SignerCall::Submit => Operation::Submit,
            SignerCall::Renew => Operation::Renew,
            SignerCall::Recover => Operation::Recover,
            SignerCall::Poll(_) => Operation::Poll,
        }
    }
}

/// A signer's response, its certificate verified. `C` is the verified chain.
#[derive(Debug)]
pub(super) enum Response<C> {
    /// The certificate satisfies the spec.
    Accepted(C),
    /// The certificate does not satisfy the spec; the differences.
    Mismatch(Vec<String>),
    /// The signer has not decided.
    Pending {
        ticket: Ticket,
        after: Option<Duration>,
        note: String,
    },
    /// The signer denied the request.
    Denied(String),
    /// The signer does not know the request.
    Unknown,
    /// The call failed.
    Failed(SignerError),
}

/// What the decision depends on besides record and response.
pub(super) struct Circumstances {
    pub(super) now: OffsetDateTime,
    /// Until the deadline of the run.
    pub(super) time_left: Duration,
    /// Whether the signer accepts a second submission for the same key.
    pub(super) resubmit: Resubmit,
    /// A certificate in place can be exchanged; false once the signer refused that.
    pub(super) can_exchange: bool,
    /// Uniform in [0, 1), to spread the retries of many nodes.
    pub(super) random: f64,
}

/// How often calls failed and polls were answered, in this run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempts {
    pub(super) failures: u32,
    pub(super) polls: u32,
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Next<C> {
    /// The certificate can be installed.
    Install(C),
    /// Another call, after a wait.
    Call { call: SignerCall, wait: Duration },
    /// The signer's decision is left to a later run.
    Wait(String),
    /// The request was denied.
    Denied(String),
    /// The certificate was refused.
    Refused(Vec<String>),
    /// The signer lost a request that it had just accepted.
    Lost,
    /// The signer lost the request and does not accept a second one for the same key.
    MustNotResubmit,
    /// The call failed, and there is no point or no time in another one.
    Failed(SignerError),
}

/// Decides what follows `response` to `call`, and changes the record accordingly.
pub(super) fn next<C>(
    record: &mut store::Ticket,
    attempts: &mut Attempts,
    call: SignerCall,
    response: Response<C>,
    circumstances: &Circumstances,
) -> Next<C> {
    let now = circumstances.now;
    match response {
        Response::Accepted(chain) => {
            record.phase = Phase::Answered;
            Next::Install(chain)
        }
        Response::Mismatch(differences) => {
            record.phase = Phase::Failed;
            record.last_error = Some(LastError {
                class: "refused".to_owned(),
                code: "verification".to_owned(),
                detail: differences.join("; "),
                at: now,
            });
            Next::Refused(differences)
        }
        Response::Pending {
            ticket,
            after,
            note,
        } => {
            let wait = retry::poll_delay(attempts.polls, after);
            record.phase = Phase::Requested;
            record.handle = Some(ticket.as_str().to_owned());
            record.next_poll = Some(now + wait);
            attempts.polls += 1;
            match wait > circumstances.time_left {
                true => Next::Wait(note),
                false => Next::Call {
                    call: SignerCall::Poll(ticket),
                    wait,
                },
            }
        }
        Response::Denied(reason) => {
            record.phase = Phase::Denied;
            Next::Denied(reason)
        }
        // Sending it again would never end.
        Response::Unknown if call.is_submission() => Next::Lost,
        Response::Unknown
            if record.first_submitted.is_some()
                && circumstances.resubmit == Resubmit::Forbidden =>
        {
            Next::MustNotResubmit
        }
        Response::Unknown => {
            record.handle = None;
            Next::Call {
                call: match circumstances.can_exchange {
                    true => SignerCall::Renew,
                    false => SignerCall::Submit,
                },
                wait: Duration::ZERO,
            }
        }
        // The exchange was refused, not the certificate.
        Response::Failed(error) if call == SignerCall::Renew && !error.class.passes() => {
            Next::Call {
                call: SignerCall::Submit,
                wait: Duration::ZERO,
            }
        }
        Response::Failed(error) => {
            attempts.failures += 1;
            record.last_error = Some(LastError {
                class: error.class.as_str().to_owned(),
                code: "exchange".to_owned(),
                detail: error.to_string(),
                at: now,
            });
            let wait = wait_before_retry(
                &error,
                attempts.failures,
                circumstances.time_left,
                circumstances.random,
            );
            match wait {
                None => Next::Failed(error),
                Some(wait) => Next::Call {
                    call: match error.class {
                        // The request may have reached the signer.
                        Class::Ambiguous => SignerCall::Recover,
                        _ => call,
                    },
                    wait,
                },
            }
        }
    }
}

/// Returns how long to wait after `failures` failures in a row; `None` if another call is pointless or the time does not
/// suffice.
pub(super) fn wait_before_retry(
    error: &SignerError,
    failures: u32,
    time_left: Duration,
    random: f64,
) -> Option<Duration> {
    let wait = retry::delay(error.class, failures, error.retry_after, random)?;
    (error.class.passes() && wait < time_left).then_some(wait)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

    fn ticket() -> Ticket {
        Ticket::try_from("t1".to_owned()).unwrap()
    }

    fn record(phase: Phase) -> store::Ticket {
        store::Ticket {
            phase,
            first_submitted: (phase != Phase::Ready).then_some(NOW),
            ..store::Ticket::ready("id", "signer", "exec", "config")
        }
    }

    fn failed(class: Class) -> Response<()> {
        Response::Failed(SignerError::new(class, "no route", "look"))
    }

    fn pending(after: u64) -> Response<()> {
        Response::Pending {
            ticket: ticket(),
            after: Some(Duration::from_secs(after)),
            note: "waits".to_owned(),
        }
    }

    fn show(next: &Next<()>) -> String {
        match next {
            Next::Install(()) => "install".to_owned(),
            Next::Call { call, wait } => {
                format!("{} in {}s", call.operation().as_str(), wait.as_secs())
            }
            Next::Wait(note) => format!("leave: {note}"),
            Next::Denied(reason) => format!("denied: {reason}"),
            Next::Refused(differences) => format!("refused: {}", differences.join("; ")),
            Next::Lost => "lost".to_owned(),
            Next::MustNotResubmit => "must not resubmit".to_owned(),
            Next::Failed(error) => format!("failed: {}", error.class.as_str()),
        }
    }

    #[test]
    fn decides_next_call_from_record_and_response() {
        use Phase::{Answered, Denied, Failed, Requested, Submitting};
        use SignerCall::{Poll, Recover, Renew, Submit};
        let sent = Submitting;
        let cases = [
            (sent, Submit, Response::Accepted(()), "install", Answered),
            (
                sent,
                Submit,
                Response::Mismatch(vec!["other name".to_owned()]),
                "refused: other name",
                Failed,
            ),
            (sent, Submit, pending(20), "poll in 20s", Requested),
            (sent, Submit, pending(90), "leave: waits", Requested),
            (
                Requested,
                Poll(ticket()),
                Response::Denied("no".to_owned()),
                "denied: no",
                Denied,
            ),
            (sent, Submit, Response::Unknown, "lost", sent),
            (sent, Renew, Response::Unknown, "lost", sent),
            (sent, Recover, Response::Unknown, "renew in 0s", sent),
            (
                Requested,
                Poll(ticket()),
                Response::Unknown,
                "renew in 0s",
                Requested,
            ),
            (sent, Renew, failed(Class::Permanent), "submit in 0s", sent),
            (sent, Renew, failed(Class::Transient), "renew in 1s", sent),
            (
                sent,
                Submit,
                failed(Class::Permanent),
                "failed: permanent",
                sent,
            ),
            (sent, Submit, failed(Class::Config), "failed: config", sent),
            (sent, Submit, failed(Class::Transient), "submit in 1s", sent),
            (
                sent,
                Submit,
                failed(Class::Ambiguous),
                "recover in 1s",
                sent,
            ),
        ];
        for (phase, call, response, expected, phase_after) in cases {
            let (mut record, mut attempts) = (record(phase), Attempts::default());
            let shown = format!("{phase:?} {call:?} {response:?}");
            let circumstances = Circumstances {
                now: NOW,
                time_left: Duration::from_secs(60),
                resubmit: Resubmit::Adopts,
                can_exchange: true,
                random: 1.0,
            };
            let next = next(&mut record, &mut attempts, call, response, &circumstances);
            assert_eq!(show(&next), expected, "{shown}");
            assert_eq!(record.phase, phase_after, "{shown}");
        }
    }

    #[test]
    fn never_resubmits_if_signer_forbids_it() {
        let circumstances = Circumstances {
            now: NOW,
            time_left: Duration::from_secs(60),
            resubmit: Resubmit::Forbidden,
            can_exchange: false,
            random: 0.0,
        };
        for (phase, expected) in [
            (Phase::Requested, "must not resubmit"),
            (Phase::Ready, "submit in 0s"),
        ] {
            let mut record = record(phase);
            let response = Response::<()>::Unknown;
            let next = next(
                &mut record,
                &mut Attempts::default(),
                SignerCall::Recover,
                response,
                &circumstances,
            );
            assert_eq!(show(&next), expected, "{phase:?}");
        }
    }

    #[test]
    fn gives_up_when_time_does_not_suffice_for_another_call() {
        let error = SignerError::new(Class::Transient, "no route", "look");
        let wait = |left| wait_before_retry(&error, 4, Duration::from_secs(left), 1.0);
        assert_eq!(wait(8), None);
        assert_eq!(wait(9), Some(Duration::from_secs(8)));
    }

    #[test]
    fn resumes_with_the_call_that_the_record_allows() {
        let polled = store::Ticket {
            handle: Some("t1".to_owned()),
            ..record(Phase::Requested)
        };
        assert_eq!(SignerCall::first(&polled, true), SignerCall::Poll(ticket()));
        let ready = record(Phase::Ready);
        assert_eq!(SignerCall::first(&ready, true), SignerCall::Renew);
        assert_eq!(SignerCall::first(&ready, false), SignerCall::Submit);
        let lost = record(Phase::Submitting);
        assert_eq!(SignerCall::first(&lost, true), SignerCall::Recover);
    }
}
