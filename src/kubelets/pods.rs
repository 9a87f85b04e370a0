//! The rules for client certificates of pods (PodCertificateRequest): who the pod is, and what the API server accepts as an
//! answer.
//!
//! The certificate makes its owner the pod's ServiceAccount, as a token of the pod does. It is valid until it expires, even if
//! the pod or the ServiceAccount is deleted before, so its lifetime is that of the request, 24 hours at most. Nothing that the
//! author of the pod writes is in it: the kubelet's CSR is empty, and annotations are refused.

use std::collections::HashMap;
use std::time::Duration;

use time::OffsetDateTime;

use super::requester::quoted;
use super::{
    ISSUANCE_WINDOW, KubeletPolicy, NodeBindings, RequestReason, RuleFinding, SigningOrder,
};
use crate::kube::csr_object::{KubeletCertificate, NodeObject};
use crate::kube::names::SERVICE_ACCOUNT_USER_PREFIX;
use crate::kube::pod_request::{MAX_POD_LIFETIME, PodObject, PodRequest};
use crate::x509::{
    Chain, CsrContent, CsrContentError, KeyAlgorithm, KeyType, Profile, Sans, Subject,
};
use crate::yaml::format_duration;

/// Group of all ServiceAccounts, and the organization of their certificates. The group of the namespace is not among them:
/// signers with a role for all pods cannot certify it.
pub const SERVICE_ACCOUNTS_GROUP: &str = "system:serviceaccounts";
/// Shortest lifetime that the API server accepts (`pkg/apis/certificates/types.go`, `MinMaxExpirationSeconds`).
pub const MIN_POD_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Largest difference between `notBefore` and the time of the API server when the certificate is written
/// (`pkg/apis/certificates/validation/validation.go`, `ValidatePodCertificateRequestStatusUpdate`).
const MAX_AGE: Duration = Duration::from_secs(5 * 60);
/// Least time between the start of the renewal and each end of the validity (ibid.).
const MIN_REFRESH_MARGIN: Duration = Duration::from_secs(10 * 60);

/// Largest number of requests of one pod that are sent to the signer within [`ISSUANCE_WINDOW`]. For each volume `podCertificate`
/// a kubelet makes at most two, one more after its restart, and four while the signer is down.
const MAX_POD_REQUESTS: usize = 30;

/// The requests of pods that were sent to the signer within [`ISSUANCE_WINDOW`]. kube-controller-manager removes the objects
/// earlier (`pkg/controller/certificates/cleaner/pcrcleaner.go`).
#[derive(Clone, Debug, Default)]
pub struct PodIssuance {
    /// The requests by their UID, with the time, of each pod by its UID.
    by_pod: HashMap<String, HashMap<String, OffsetDateTime>>,
    /// The last removal of those that do not count any more.
    cleaned: Option<OffsetDateTime>,
}

impl PodIssuance {
    /// Counts a request, which [`verify_pod`] accepted, before it is sent to the signer.
    ///
    /// # Errors
    /// The limit, and when it has room again.
    pub fn admit(
        &mut self,
        request: &PodRequest,
        now: OffsetDateTime,
    ) -> Result<(), (RuleFinding, OffsetDateTime)> {
        let counts = |since: &OffsetDateTime| now < *since + ISSUANCE_WINDOW;
        if !self.cleaned.as_ref().is_some_and(counts) {
            self.by_pod.retain(|_, sent| sent.values().any(counts));
            self.cleaned = Some(now);
        }
        let sent = self.by_pod.entry(request.pod.uid.clone()).or_default();
        sent.retain(|_, since| counts(since));
        let first = sent.values().min().copied().unwrap_or(now);
        if sent.len() >= MAX_POD_REQUESTS && !sent.contains_key(&request.uid) {
            let message = format!(
                "pod {} has requested as many certificates within an hour as are allowed (the request waits; see docs/kubelets.md)",
                request.pod.name
            );
            let finding = RuleFinding::new(RequestReason::LimitReached, message);
            return Err((finding, first + ISSUANCE_WINDOW));
        }
        sent.entry(request.uid.clone()).or_insert(now);
        Ok(())
    }
}

/// What a request is compared with, as the API server returns it.
#[derive(Clone, Copy, Debug)]
pub struct PodContext<'a> {
    /// The Pod of the name in the request.
    pub pod: Option<&'a PodObject>,
    /// UID of the ServiceAccount of the name in the request.
    pub service_account: Option<&'a str>,
    /// The Node of the name in the request.
    pub node: Option<&'a NodeObject>,
    /// Which names of nodes are revoked.
    pub bindings: &'a NodeBindings,
}

/// Returns the order for the signer, from what the request itself says. [`verify_pod`] decides whether it may be signed.
///
/// # Errors
/// The rule that the request can never satisfy.
pub fn order_for_pod(
    request: &PodRequest,
    policy: &KubeletPolicy,
) -> Result<SigningOrder, RuleFinding> {
    let refuse = |reason, message: String| Err(RuleFinding::new(reason, message));
    if let Some(field) = request.excess {
        let message = format!("{field} is too large or not valid");
        return refuse(RequestReason::FieldOverLimit, message);
    }
    if let Some(key) = request.annotations.first() {
        let message = format!(
            "{} is set, and the certificate depends on no annotation: remove userAnnotations from the volume",
            quoted(key)
        );
        return refuse(RequestReason::InvalidUnverifiedUserAnnotations, message);
    }
    let (content, key) = content(request, policy)?;
    let csr = content
        .into_csr()
        .map_err(|error| RuleFinding::new(RequestReason::RequestUnreadable, error.to_string()))?;
    Ok(SigningOrder {
        certificate: KubeletCertificate::Pod,
        node: request.node.name.clone(),
        csr,
        profile: Profile {
            subject: Subject::new(
                format!(
                    "{SERVICE_ACCOUNT_USER_PREFIX}{}:{}",
                    request.namespace, request.service_account.name
                ),
                &[SERVICE_ACCOUNTS_GROUP],
            ),
            sans: Sans::default(),
            usages: vec![KubeletCertificate::Pod.usage()],
            key,
            lifetime: lifetime(request, policy),
        },
        answer: None,
    })
}

/// Reads the CSR. The kubelet's contains nothing but a key; anything else could reach the certificate by a signer that copies
/// it.
fn content(
    request: &PodRequest,
    policy: &KubeletPolicy,
) -> Result<(CsrContent, KeyAlgorithm), RuleFinding> {
    let unsupported = |found: String| {
        let allowed: Vec<&str> = policy.keys.iter().map(|key| key.as_str()).collect();
        RuleFinding::new(
            RequestReason::UnsupportedKeyType,
            format!("the key is {found}, but allowed are {}", allowed.join(", ")),
        )
    };
    let content = CsrContent::from_der(&request.request).map_err(|error| match error {
        CsrContentError::Key(_) => unsupported(quoted(&error.to_string())),
        _ => RuleFinding::new(RequestReason::RequestUnreadable, quoted(&error.to_string())),
    })?;
    if content.subject().attributes().next().is_some() || content.sans().is_some() {
        return Err(RuleFinding::new(
            RequestReason::SubjectNotAllowed,
            "spec.stubPKCS10Request contains a subject or names, but that of a kubelet is empty",
        ));
    }
    if let Some(problem) = content.unusable_key() {
        return Err(unsupported(format!("not usable: {problem}")));
    }
    let key = match content.public_key().key_type() {
        KeyType::Known(key) if policy.keys.contains(key) => *key,
        other => return Err(unsupported(quoted(&other.to_string()))),
    };
    Ok((content, key))
}

/// Verifies that the pod exists, runs on this node and is this ServiceAccount. NodeRestriction has verified it for a kubelet;
/// any other user that may create requests wrote what it wanted.
///
/// # Errors
/// The rule that the request can never satisfy.
pub fn verify_pod(
    request: &PodRequest,
    context: PodContext<'_>,
    policy: &KubeletPolicy,
) -> Result<(), RuleFinding> {
    let refuse = |reason, message: String| Err(RuleFinding::new(reason, message));
    let (pod, node, account) = (&request.pod, &request.node, &request.service_account);
    if policy.revoked.contains(&node.name) || context.bindings.is_revoked(&node.name) {
        let message = format!(
            "the name {} is revoked (kubelets.revoked, or nodepki kubelets revoke)",
            node.name
        );
        return refuse(RequestReason::NodeRevoked, message);
    }
    if context.node.is_none_or(|found| found.uid != node.uid) {
        let message = format!(
            "Node {} does not exist, or is not the one of the request",
            node.name
        );
        return refuse(RequestReason::NodeNotFound, message);
    }
    let Some(found) = context
        .pod
        .filter(|found| found.uid == pod.uid && !found.has_ended)
    else {
        let message = format!(
            "pod {} has ended, or is not the one of the request",
            pod.name
        );
        return refuse(RequestReason::PodNotFound, message);
    };
    if found.node != node.name {
        let message = format!("pod {} does not run on node {}", pod.name, node.name);
        return refuse(RequestReason::PodOfOtherNode, message);
    }
    if found.service_account != account.name
        || context.service_account != Some(account.uid.as_str())
    {
        let message = format!(
            "pod {} is not ServiceAccount {}, or that was created again",
            pod.name, account.name
        );
        return refuse(RequestReason::ServiceAccountDiffers, message);
    }
    Ok(())
}

/// Returns the lifetime to request. The certificate may be [`MAX_AGE`] older than now, and must not exceed the request.
fn lifetime(request: &PodRequest, policy: &KubeletPolicy) -> Duration {
    let longest = request.longest.min(MAX_POD_LIFETIME).min(policy.lifetime);
    longest.saturating_sub(MAX_AGE).max(MIN_POD_LIFETIME)
}

/// The certificate of a request, as it is written into its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAnswer {
    /// Leaf and intermediates, in PEM.
    pub chain: String,
    /// `notBefore` of the leaf.
    pub not_before: OffsetDateTime,
    /// `notAfter` of the leaf.
    pub not_after: OffsetDateTime,
    /// When the kubelet requests the next one: after two thirds of the lifetime.
    pub refresh: OffsetDateTime,
}

/// Returns true if the API server accepts the certificate now. It limits the age of a pod's only.
pub fn is_in_time(certificate: KubeletCertificate, chain: &Chain, now: OffsetDateTime) -> bool {
    let age = (now - chain.leaf().not_before()).unsigned_abs();
    certificate != KubeletCertificate::Pod || age <= MAX_AGE
}

/// Returns the answer to a request.
///
/// # Errors
/// A validity that the API server refuses: another certificate would be needed.
pub fn answer_pod(
    request: &PodRequest,
    chain: &Chain,
    now: OffsetDateTime,
) -> Result<PodAnswer, RuleFinding> {
    let refuse = |message: String| {
        let reason = RequestReason::CertificateNotAccepted;
        Err(RuleFinding::new(reason, message))
    };
    let (not_before, not_after) = (chain.leaf().not_before(), chain.leaf().not_after());
    if !is_in_time(KubeletCertificate::Pod, chain, now) {
        return refuse(format!(
            "the certificate begins {} from now, and the API server accepts 5m: the signer is too slow or too far in the past",
            format_duration((now - not_before).unsigned_abs())
        ));
    }
    let lifetime = Duration::try_from(not_after - not_before).unwrap_or_default();
    if !(MIN_POD_LIFETIME..=request.longest).contains(&lifetime) {
        return refuse(format!(
            "the certificate is valid for {}, and the API server accepts {} to {}: request at least 1h5m (maxExpirationSeconds), and let the signer issue it",
            format_duration(lifetime),
            format_duration(MIN_POD_LIFETIME),
            format_duration(request.longest)
        ));
    }
    let refresh = (lifetime * 2 / 3).clamp(MIN_REFRESH_MARGIN, lifetime - MIN_REFRESH_MARGIN);
    Ok(PodAnswer {
        chain: chain.to_pem(),
        not_before,
        not_after,
        refresh: not_before + refresh,
    })
}
