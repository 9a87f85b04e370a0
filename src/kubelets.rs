//! The rules by which nodepki approves and signs the CertificateSigningRequests of kubelets, and signs the
//! PodCertificateRequests that kubelets send for their pods.
//!
//! Pure. [`judge`] decides about one request, from its object, the Nodes and the names that no kubelet may have. Approval
//! and signature are separate steps with the same rules: a request that another user approved is judged again before it
//! is sent to the signer. [`certificate_differences`] compares the signer's answer with the request.
//!
//! A decision that ends a request ([`KubeletDecision::Deny`], [`KubeletDecision::Fail`]) needs proof. If a rule is not
//! satisfied now but may be soon, or if two Nodes claim one address, the request stays pending with an explanation.
//!
//! A pod's request has no approval: [`order_for_pod`], [`verify_pod`] and [`answer_pod`].
//!
//! To add a rule, add a [`RequestReason`], verify the rule in `requester.rs`, `content.rs`, `node_names.rs`, `names.rs` or
//! `issuance.rs`, and add cases to `tests/fixtures/kubelet_requests.rs`, which the tests of this room and those against a
//! real kube-apiserver share.

mod addresses;
mod bindings;
mod content;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod issuance;
mod judge;
mod names;
mod node_names;
mod nodes;
mod pods;
mod policy;
pub mod rbac;
mod reason;
mod requester;

use std::time::Duration;

use time::OffsetDateTime;

use crate::kube::csr_object::KubeletCertificate;
use crate::x509::{Csr, Profile};

pub use bindings::NodeBindings;
pub use issuance::{
    ApprovedRequest, ISSUANCE_WINDOW, IssuanceIndex, IssuanceProgress, RequestedIdentity,
};
pub use judge::{certificate_differences, judge};
pub use nodes::{NodeIndex, ReservedNames};
pub use pods::{
    MIN_POD_LIFETIME, PodAnswer, PodContext, PodIssuance, SERVICE_ACCOUNTS_GROUP, answer_pod,
    is_in_time, order_for_pod, verify_pod,
};
pub use policy::{KubeletPolicy, NodeNamePattern, NodeNameRange};
pub use reason::{RequestReason, RuleFinding};

/// Reason of the condition `Approved` that nodepki sets by its rules.
pub const APPROVED_BY_RULES: &str = "ApprovedByRules";

/// Reason of the condition `Approved` that `nodepki kubelets approve` sets. It replaces the rule about the Node of a
/// bootstrap token's request, and no other rule. The approver of kube-controller-manager writes `AutoApproved`
/// (`pkg/controller/certificates/approver/sarapprove.go`), kubectl `KubectlApprove`.
pub const APPROVED_BY_ADMINISTRATOR: &str = "ApprovedByAdministrator";

/// How long a rule about the Node may be unsatisfied before the request is denied: a kubelet requests its certificate at
/// once, while the Node, its addresses or its labels may still change.
pub const NODE_GRACE: Duration = Duration::from_secs(120);

/// What the judgement of one request uses of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    /// All Nodes.
    pub nodes: &'a NodeIndex,
    /// Names and addresses that no kubelet may have.
    pub reserved: &'a ReservedNames,
    /// Which Node each name belongs to, and which names are revoked.
    pub bindings: &'a NodeBindings,
    /// Approved requests that the API server still has. kube-controller-manager removes them one hour after the signature
    /// (`pkg/controller/certificates/cleaner/cleaner.go`).
    pub issued: &'a IssuanceIndex,
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeletDecision {
    /// Nothing: issued, denied or failed.
    Ignore,
    /// Add the condition `Approved` with reason [`APPROVED_BY_RULES`] and this message. The request is judged again
    /// before it is signed.
    Approve {
        /// Name of the node.
        node: String,
        /// A sentence.
        message: String,
    },
    /// Approved and valid: have it signed.
    Sign(Box<SigningOrder>),
    /// Add the condition `Denied`.
    Deny(RuleFinding),
    /// Add the condition `Failed`: approved, but against a rule. The API server does not accept `Denied` in addition to
    /// `Approved` (`pkg/apis/certificates/validation/validation.go`, `validateConditions`).
    Fail(RuleFinding),
    /// Leave it pending and report why.
    Wait {
        /// What it waits for.
        finding: RuleFinding,
        /// When to judge it again, if the Node does not change before; `None` if only a change of the request or a Node
        /// can end the wait.
        until: Option<OffsetDateTime>,
    },
}

/// A request that may be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningOrder {
    /// Which of the kubelet's certificates.
    pub certificate: KubeletCertificate,
    /// Name of the node.
    pub node: String,
    /// The request of the kubelet.
    pub csr: Csr,
    /// The required content of the certificate.
    pub profile: Profile,
    /// Name of the CertificateSigningRequest whose certificate answers this one: same key, names and node.
    pub answer: Option<String>,
}

#[cfg(test)]
mod tests;
