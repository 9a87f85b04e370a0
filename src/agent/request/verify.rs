//! Verifies a signer's answer. No unverified certificate reaches the disk.

use time::OffsetDateTime;

use super::next::JudgedAnswer;
use super::outcome::{AnswerFault, PendingReason, RequestOutcome, SignedCertificate, Unsigned};
use super::{Issuance, RequestContext};
use crate::signer::{Answer, Request, SignerError};
use crate::spec::{AuthorityProgress, CertSpec};
use crate::text::hex;
use crate::x509::{
    CertDifference, Chain, Lifetime, PrivateKey, TrustBundle, along_path, judge_lifetime,
    satisfies, verifies,
};

/// An answer that satisfies the spec.
pub(super) struct VerifiedAnswer {
    pub(super) chain: Chain,
    /// Why it is not installed yet. The answer and its key are kept, and a later run verifies the answer again.
    pub(super) waits: Option<PendingReason>,
}

impl VerifiedAnswer {
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
pub(super) fn verified(
    answer: &[u8],
    context: &RequestContext<'_>,
    issuance: &Issuance<'_>,
    key: &PrivateKey,
) -> Result<VerifiedAnswer, Vec<AnswerFault>> {
    let chain = Chain::from_response(answer, key.public_key())
        .map_err(|error| vec![AnswerFault::Unusable(error.to_string())])?;
    let now = match context.floor {
        // The node's clock is known to be behind that of the signer.
        Some(_) => context.now().max(chain.leaf().not_before()),
        None => context.now(),
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
    let waits =
        (staged && issuance.can_wait).then_some(PendingReason::UnderStagedAuthority(authority));
    if staged && waits.is_none() {
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
