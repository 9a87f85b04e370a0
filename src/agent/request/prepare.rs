//! What a request starts with: a key, or the pending request of an earlier run.

use super::{IssuanceOrder, RequestContext};
use crate::process::failpoint;
use crate::signer::{SignerError, SignerKind};
use crate::spec::CertSpec;
use crate::store::{self, PendingRequest, RequestPhase, RequestRecord};
use crate::x509::{
    CertDifference, Csr, PrivateKey, PublicKey, UsageExtensions, algorithm_difference,
};

/// A pending request of an earlier run that still matches the plan.
pub(in crate::agent) struct Resumed {
    pub(in crate::agent) key: PrivateKey,
    pub(in crate::agent) csr: Option<Csr>,
    pub(in crate::agent) ticket: Option<RequestRecord>,
    pub(in crate::agent) answer: Option<Vec<u8>>,
}

impl Resumed {
    /// Returns `None` if the pending request does not match the plan any more, or failed.
    pub(in crate::agent) fn from_pending(
        pending: &PendingRequest,
        spec: &CertSpec,
    ) -> Option<Self> {
        let key = PrivateKey::from_pem(&pending.key_pem).ok()?;
        let csr = pending
            .csr_pem
            .as_deref()
            .and_then(|pem| Csr::from_pem(pem).ok());
        let csr = csr.filter(|csr| csr.public_key() == key.public_key());
        let is_current = differences_of_request(csr.as_ref(), key.public_key(), spec).is_empty();
        // After a wrong answer a new key makes a new request, so no signer can repeat the old answer. For a signer
        // of files the CSR stays usable: an administrator only has to sign it correctly.
        let failed = pending.ticket.as_ref().is_some_and(|ticket| {
            ticket.phase == RequestPhase::Failed
                && ticket.signer_kind != SignerKind::Directory.as_str()
        });
        (is_current && !failed).then(|| Resumed {
            key,
            csr,
            ticket: pending.ticket.clone(),
            answer: pending.issued_pem.clone(),
        })
    }
}

/// Returns how a recorded request differs from what the plan asks for.
pub(in crate::agent) fn differences_of_request(
    csr: Option<&Csr>,
    key: &PublicKey,
    spec: &CertSpec,
) -> Vec<CertDifference> {
    let wanted = &spec.requested.profile;
    let mut found = csr.map_or_else(Vec::new, |csr| csr.differences(wanted));
    found.extend(algorithm_difference(key, wanted.key));
    found
}

/// The key or request to start with.
pub(in crate::agent) enum RequestStart {
    /// A new key, or the current one.
    Key(PrivateKey),
    /// A pending request of an earlier run.
    Resumed(Box<Resumed>),
}

/// Key, CSR and ticket, and the answer that an earlier run received.
pub(in crate::agent) struct PreparedRequest {
    pub(in crate::agent) key: PrivateKey,
    pub(in crate::agent) csr: Csr,
    pub(in crate::agent) record: RequestRecord,
    pub(in crate::agent) answer: Option<Vec<u8>>,
    /// Whether the slot exists.
    pub(super) is_kept: bool,
}

impl PreparedRequest {
    /// Creates the slot, unless it exists.
    pub(in crate::agent) fn keep(
        &mut self,
        context: &RequestContext<'_>,
        order: &IssuanceOrder<'_>,
    ) -> Result<(), store::StoreError> {
        if !self.is_kept {
            create_slot(context, order, &self.key, &self.csr, &self.record)?;
            self.is_kept = true;
            failpoint::reached("request:key-kept");
        }
        Ok(())
    }
}

pub(super) fn create_slot(
    context: &RequestContext<'_>,
    order: &IssuanceOrder<'_>,
    key: &PrivateKey,
    csr: &Csr,
    record: &RequestRecord,
) -> Result<(), store::StoreError> {
    let (key, csr) = (key.to_pem(), csr.to_pem());
    context.store.create_pending(
        order.slot(),
        key.as_bytes(),
        csr.as_bytes(),
        record,
        order.durability(),
    )
}

/// Returns a request that can be sent, from a key or from the slot of an earlier run. A slot is updated; a new one is
/// created by [`PreparedRequest::keep`].
pub(in crate::agent) fn prepare(
    context: &RequestContext<'_>,
    order: &IssuanceOrder<'_>,
    start: RequestStart,
) -> Result<Result<PreparedRequest, SignerError>, store::StoreError> {
    let (earlier, is_new) = match start {
        RequestStart::Resumed(resumed) => (*resumed, false),
        RequestStart::Key(key) => {
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
    let usable = earlier.csr.filter(|csr| fits(csr, order));
    let is_usable = usable.is_some();
    let csr = match usable.map_or_else(|| new_csr(order, &key), Ok) {
        Ok(csr) => csr,
        Err(error) => return Ok(Err(error)),
    };
    let mut record = earlier.ticket.unwrap_or_else(|| {
        let request = order.request(context, csr.clone());
        let mut record = new_record(context, order, request.id.as_str());
        if let Some(before) = context.set_aside.get(&order.spec.name())
            && before.signer_config == record.signer_config
        {
            record.submissions = before.submissions;
            record.last_submitted = before.last_submitted;
            record.not_before = before.not_before;
        }
        if !is_new {
            // Without the ticket the state of the request is unknown: recover before submitting again.
            record.phase = RequestPhase::Submitting;
            record.first_submitted = Some(context.now());
        }
        record
    });
    // A renewal continues with the request of a proof, and installs the certificate.
    record.is_proof = context.is_proof;
    if !is_new && !is_usable {
        let (slot, durability) = (order.slot(), order.durability());
        context
            .store
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

fn new_csr(order: &IssuanceOrder<'_>, key: &PrivateKey) -> Result<Csr, SignerError> {
    let extensions = order.signer.caps().usage_extensions;
    Csr::create(&order.spec.requested.profile, key, extensions).map_err(|error| {
        SignerError::permanent(
            format!(
                "no request could be made for {}: {error}",
                order.spec.name()
            ),
            "correct the configuration that this name comes from",
        )
    })
}

/// Returns whether this signer accepts the usage extensions of a CSR that was made for another signer.
fn fits(csr: &Csr, order: &IssuanceOrder<'_>) -> bool {
    let refused = order.signer.caps().usage_extensions == UsageExtensions::Omitted;
    !(refused && csr.has_usage_extensions())
}

pub(super) fn new_record(
    context: &RequestContext<'_>,
    order: &IssuanceOrder<'_>,
    request_id: &str,
) -> RequestRecord {
    let signer = &order.signer;
    RequestRecord {
        is_proof: context.is_proof,
        ..RequestRecord::ready(
            request_id,
            &order.signer_name,
            signer.kind().as_str(),
            &signer.configured(),
        )
    }
}
