//! The entries of a request in the issuance log.

use super::verify::VerifiedAnswer;
use super::{CertificateExchange, Unsigned};
use crate::agent::audit;
use crate::http::printable;
use crate::spec::assess::joined;
use crate::store::{AuditEvent, AuditRecord, RequestPhase, RequestRecord};

/// Maximum length in bytes of a reason in the issuance log.
const MAX_AUDITED_REASON: usize = 2000;

/// The outcome of a request in an earlier run. A daemon that repeats a request every few minutes does not repeat the entry
/// in the issuance log.
pub(super) struct EarlierOutcome {
    was_denied: bool,
    error: Option<String>,
}

impl EarlierOutcome {
    pub(super) fn of(record: &RequestRecord) -> EarlierOutcome {
        EarlierOutcome {
            was_denied: record.phase == RequestPhase::Denied,
            error: record.last_error.as_ref().map(|error| error.detail.clone()),
        }
    }
}

impl CertificateExchange<'_> {
    /// Records in the issuance log that the request is about to be sent.
    pub(super) fn audit_submission(&mut self) {
        let operation = self.call.operation();
        if self.audited == Some(operation) {
            return;
        }
        self.audited = Some(operation);
        let mut record = self
            .order
            .audit_record(AuditEvent::Requested, &self.request);
        record.action = Some(operation.to_string());
        self.audit(record);
    }

    /// Records the end of the exchange in the issuance log, unless an earlier run has recorded the same.
    pub(super) fn audit_end(
        &self,
        end: &Result<VerifiedAnswer, Unsigned>,
        earlier: &EarlierOutcome,
    ) {
        let (event, reason) = match end {
            Ok(verified) => {
                let record = self.order.audit_record(AuditEvent::Issued, &self.request);
                self.audit(audit::with_leaf(record, verified.chain.leaf()));
                return;
            }
            Err(Unsigned::Pending(_)) => return,
            Err(Unsigned::Denied(_)) if earlier.was_denied => return,
            Err(Unsigned::Denied(reason)) => (AuditEvent::Denied, reason.clone()),
            Err(Unsigned::Refused(differences)) => (AuditEvent::Refused, joined(differences)),
            Err(Unsigned::Failed(error)) => (AuditEvent::Failed, error.to_string()),
        };
        if earlier.error.as_ref() == Some(&reason) {
            return;
        }
        let mut record = self.order.audit_record(event, &self.request);
        record.reason = Some(printable(&reason, MAX_AUDITED_REASON));
        self.audit(record);
    }

    fn audit(&self, record: AuditRecord) {
        let (root, durability) = (self.context.store.root(), self.order.durability());
        audit::append_with(root, self.context.now(), &[record], durability);
    }
}
