//! Verifies a signer's answer. No unverified certificate reaches the disk.

use std::time::Duration;

use time::OffsetDateTime;

use super::next::JudgedAnswer;
use super::outcome::{AnswerFault, PendingReason, RequestOutcome, SignedCertificate, Unsigned};
use super::{Issuance, IssuanceOrder, RequestContext};
use crate::agent::Event;
use crate::signer::{Answer, Request, SignerError};
use crate::spec::{AuthorityProgress, CertSpec};
use crate::text::hex;
use crate::x509::{
    CertDifference, Certificate, Chain, Lifetime, MAX_CLOCK_LEAD, PrivateKey, TrustBundle,
    along_path, judge_lifetime, satisfies, verifies,
};

/// An answer that satisfies the spec.
pub(in crate::agent) struct VerifiedAnswer {
    pub(super) chain: Chain,
    /// Why it is not installed yet. The answer and its key are kept, and a later run verifies the answer again.
    pub(super) waits: Option<PendingReason>,
}

impl VerifiedAnswer {
    /// Waits until the certificate is valid, unless that is after the deadline.
    pub(super) async fn in_time(
        mut self,
        context: &RequestContext<'_>,
        order: &IssuanceOrder<'_>,
    ) -> VerifiedAnswer {
        if let Some(why @ PendingReason::WaitsForValidity { at }) = &self.waits
            && becomes_valid(context, order, *at, why).await
        {
            self.waits = None;
        }
        self
    }

    pub(super) fn outcome(self, key: PrivateKey, request: Request) -> RequestOutcome {
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

/// Waits for the start of a validity. Returns false if that is after the deadline.
async fn becomes_valid(
    context: &RequestContext<'_>,
    order: &IssuanceOrder<'_>,
    start: OffsetDateTime,
    why: &PendingReason,
) -> bool {
    // The clock may be set during the wait.
    while let Some(wait) = until(start, context.now()) {
        if wait > context.time_left() {
            return false;
        }
        context.progress.event(Event::Waiting {
            name: order.spec.name(),
            signer: order.signer_name.clone(),
            note: why.to_string(),
        });
        tokio::time::sleep(wait).await;
    }
    true
}

/// Returns the time until `start`; `None` if it has passed.
pub(in crate::agent) fn until(start: OffsetDateTime, now: OffsetDateTime) -> Option<Duration> {
    let wait = Duration::try_from(start - now).ok()?;
    (!wait.is_zero()).then_some(wait)
}

/// Returns the time at which a new certificate is verified: the start of its validity, if the clock of the signer is ahead by
/// no more than [`MAX_CLOCK_LEAD`].
pub(in crate::agent) fn time_of_use(leaf: &Certificate, now: OffsetDateTime) -> OffsetDateTime {
    let start = leaf.not_before();
    if start - now <= MAX_CLOCK_LEAD {
        now.max(start)
    } else {
        now
    }
}

/// Verifies a signer's answer. Returns it too if it satisfies the spec.
pub(super) fn judge(
    context: &RequestContext<'_>,
    issuance: &Issuance<'_>,
    key: &PrivateKey,
    answer: Result<Answer, SignerError>,
) -> (JudgedAnswer<VerifiedAnswer>, Option<Vec<u8>>) {
    let mut accepted = None;
    let judged = answer.map(|answer| {
        answer.map(|certificate| {
            let verified = verified(&certificate, context, issuance, key)?;
            accepted = Some(certificate);
            Ok(verified)
        })
    });
    (judged, accepted)
}

/// Verifies a signer's answer against the spec.
pub(in crate::agent) fn verified(
    answer: &[u8],
    context: &RequestContext<'_>,
    issuance: &Issuance<'_>,
    key: &PrivateKey,
) -> Result<VerifiedAnswer, Vec<AnswerFault>> {
    let chain = Chain::from_response(answer, key.public_key())
        .map_err(|error| vec![AnswerFault::Unusable(error.to_string())])?;
    let shown = context.now();
    let now = match context.floor {
        // The node's clock is known to be behind that of the signer.
        Some(_) => shown.max(chain.leaf().not_before()),
        None => time_of_use(chain.leaf(), shown),
    };
    // Only the verified path is written, whatever else the signer sent.
    let chain = along_path(chain, issuance.trust, now);
    chain
        .check_size()
        .map_err(|error| vec![AnswerFault::TooLarge(error.to_string())])?;
    let mut differences = satisfies(
        &chain,
        &issuance.order.spec.requested.profile,
        issuance.order.spec.requested.tolerance,
        key.public_key(),
        issuance.trust,
        now,
    );
    let is_under_first =
        |difference: &CertDifference| !matches!(difference, CertDifference::NotUnderFirst { .. });
    let staged = !differences.iter().all(is_under_first)
        && is_under_staged_authority(&chain, issuance.order.spec, issuance.trust, now);
    if staged {
        differences.retain(is_under_first);
    }
    if let Lifetime::Refused(difference) = life_of(&chain, issuance.order.spec, now) {
        differences.push(difference);
    }
    let mut faults: Vec<AnswerFault> = differences.into_iter().map(AnswerFault::Differs).collect();
    let not_after = chain.leaf().not_after();
    if issuance.order.outlives.is_some_and(|old| not_after <= old) {
        faults.push(AnswerFault::NotLater { not_after });
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let authority = issuance.order.spec.authority();
    let waits = if staged && issuance.can_wait {
        Some(PendingReason::UnderStagedAuthority(authority))
    } else {
        let is_early = context.floor.is_none() && now > shown;
        is_early.then_some(PendingReason::WaitsForValidity { at: now })
    };
    if staged && !issuance.can_wait {
        tracing::warn!(
            certificate = %issuance.order.spec.name(),
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
pub(in crate::agent) fn life_of(chain: &Chain, spec: &CertSpec, now: OffsetDateTime) -> Lifetime {
    let limit = spec.requested.tolerance.max_lifetime;
    judge_lifetime(chain.leaf(), spec.requested.profile.lifetime, limit, now)
}
