//! The judgement of one request, from the state of its object to the decision.

use std::time::Duration;

use time::OffsetDateTime;

use super::content::{RequestContent, content};
use super::issuance::{verify_limits, verify_patience};
use super::names::verify_names;
use super::node_names::{is_confirmed, verify_node_name};
use super::requester::{NodeRequester, requester};
use super::{
    ISSUANCE_WINDOW, KubeletDecision, KubeletPolicy, NODE_GRACE, RequestContext, RequestReason,
    RuleFinding, SigningOrder,
};
use crate::kube::csr_object::{CsrObject, KubeletCertificate, MAX_NODE_ADDRESSES, NodeObject};
use crate::x509::{
    CertDifference, Chain, Lifetime, Profile, Sans, Subject, Tolerance, TrustBundle,
    judge_lifetime, satisfies,
};

/// Shortest lifetime that the API server lets a requester ask for (`pkg/apis/certificates/validation/validation.go`).
const MIN_LIFETIME: Duration = Duration::from_secs(600);

/// Reason of the condition `Ready` that kube-controller-manager sets if the kubelet never reported a status
/// (`pkg/controller/nodelifecycle/node_lifecycle_controller.go`).
const NEVER_UPDATED: &str = "NodeStatusNeverUpdated";
/// The kubelet creates its Node with the condition `Ready`, whose time is the kubelet's
/// (`pkg/kubelet/nodestatus/setters.go`, `ReadyCondition`). A change at a later time is the loss of readiness.
const REGISTRATION_TIME: Duration = Duration::from_secs(10);

/// A rule that a request does not satisfy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// The request can never satisfy it.
    Proven(RuleFinding),
    /// The rule depends on the Node, which may change; proven after [`NODE_GRACE`].
    Early(RuleFinding),
    /// An administrator must decide.
    Doubt(RuleFinding),
    /// A limit is reached until then; proven after [`ISSUANCE_WINDOW`]: the kubelet does not wait for the request any more.
    Limited(RuleFinding, OffsetDateTime),
}

impl Violation {
    pub(super) fn proven(reason: RequestReason, message: impl Into<String>) -> Violation {
        Violation::Proven(RuleFinding::new(reason, message))
    }

    pub(super) fn early(reason: RequestReason, message: impl Into<String>) -> Violation {
        Violation::Early(RuleFinding::new(reason, message))
    }

    pub(super) fn doubt(reason: RequestReason, message: impl Into<String>) -> Violation {
        Violation::Doubt(RuleFinding::new(reason, message))
    }

    pub(super) fn limited(
        reason: RequestReason,
        message: impl Into<String>,
        until: OffsetDateTime,
    ) -> Violation {
        Violation::Limited(RuleFinding::new(reason, message), until)
    }
}

/// Decides about a request.
pub fn judge(
    request: &CsrObject,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
    now: OffsetDateTime,
) -> KubeletDecision {
    let is_final = request.is_issued
        || request.condition("Denied").is_some()
        || request.condition("Failed").is_some();
    if is_final || !policy.sign {
        return KubeletDecision::Ignore;
    }
    let is_approved = request.condition("Approved").is_some();
    // The API server refuses `Denied` for a request that has `Approved`: the two exclude each other.
    let refuse = |finding| {
        if is_approved {
            KubeletDecision::Fail(finding)
        } else {
            KubeletDecision::Deny(finding)
        }
    };
    let refuse_after = |last: OffsetDateTime, until: OffsetDateTime, finding| {
        if now < last {
            KubeletDecision::Wait {
                finding,
                until: Some(until.min(last)),
            }
        } else {
            refuse(finding)
        }
    };
    match verify(request, context, policy, now) {
        Ok((content, answer)) if is_approved => {
            KubeletDecision::Sign(Box::new(order(request, content, answer, policy)))
        }
        Ok((content, _)) => approval(request, &content, policy),
        Err(Violation::Proven(finding)) => refuse(finding),
        Err(Violation::Early(finding)) => {
            let last = request.created + NODE_GRACE;
            refuse_after(last, last, finding)
        }
        Err(Violation::Limited(finding, until)) => {
            refuse_after(request.created + ISSUANCE_WINDOW, until, finding)
        }
        Err(Violation::Doubt(finding)) => KubeletDecision::Wait {
            finding,
            until: None,
        },
    }
}

/// Verifies every rule. The rules about the object and the CSR come first, as they need no Node. Returns the content, and
/// the name of the object whose certificate answers the request, if there is one.
fn verify(
    request: &CsrObject,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
    now: OffsetDateTime,
) -> Result<(RequestContent, Option<String>), Violation> {
    if let Some(field) = request.excess {
        return Err(Violation::proven(
            RequestReason::FieldOverLimit,
            format!("{field} is too large or not valid"),
        ));
    }
    let requester = requester(request, policy)?;
    let content = content(request, policy)?;
    let name = &content.node;
    if policy.revoked.contains(name) || context.bindings.is_revoked(name) {
        return Err(Violation::proven(
            RequestReason::NodeRevoked,
            format!("the name {name} is revoked (kubelets.revoked, or nodepki kubelets revoke)"),
        ));
    }
    verify_patience(request, name, context, now)?;
    let verified = verify_node_name(request, &content, &requester, context, policy);
    match &requester {
        NodeRequester::Node(name) => {
            if *name != content.node {
                return Err(Violation::proven(
                    RequestReason::NameOfOtherNode,
                    format!(
                        "node {name} requests a certificate for node {}",
                        content.node
                    ),
                ));
            }
            let node = context.nodes.get(&content.node).ok_or_else(|| {
                Violation::early(
                    RequestReason::NodeNotFound,
                    format!("Node {} does not exist", content.node),
                )
            })?;
            verified?;
            verify_binding(request, node, context)?;
            if request.certificate == KubeletCertificate::Serving {
                verify_all_read(node)?;
                verify_names(&content.sans, node, context, policy)?;
            }
        }
        NodeRequester::Token => {
            verified?;
            verify_new_node(request, &content.node, context, now)?;
        }
    }
    let answer = if is_confirmed(request) {
        None
    } else {
        verify_limits(request, &content, &requester, context, policy, now)?
    };
    Ok((content, answer))
}

/// Verifies that the Node is not being deleted, and that it is the one to which the name belongs.
fn verify_binding(
    request: &CsrObject,
    node: &NodeObject,
    context: RequestContext<'_>,
) -> Result<(), Violation> {
    let name = &node.name;
    if node.is_deleting {
        return Err(Violation::proven(
            RequestReason::NodeDeleting,
            format!("Node {name} is being deleted"),
        ));
    }
    if context.bindings.is_replaced(node) && !is_confirmed(request) {
        return Err(Violation::doubt(
            RequestReason::NodeReplaced,
            format!(
                "Node {name} was deleted and created again, perhaps with a certificate from before: join the node again with a bootstrap token, or approve with `nodepki kubelets approve {}`",
                request.name
            ),
        ));
    }
    Ok(())
}

/// Verifies that every address of the Node was read.
fn verify_all_read(node: &NodeObject) -> Result<(), Violation> {
    if node.has_unread_addresses {
        return Err(Violation::doubt(
            RequestReason::FieldOverLimit,
            format!(
                "Node {} has more than {MAX_NODE_ADDRESSES} addresses, and the other ones are not read",
                node.name
            ),
        ));
    }
    Ok(())
}

/// Verifies that a bootstrap token does not take over the identity of an existing node.
///
/// Kubernetes lets every token of the group request a certificate for every node name.
fn verify_new_node(
    request: &CsrObject,
    name: &str,
    context: RequestContext<'_>,
    now: OffsetDateTime,
) -> Result<(), Violation> {
    let Some(node) = context.nodes.get(name) else {
        return Ok(());
    };
    let is_ready = node.ready.as_ref().is_some_and(|ready| ready.is_true);
    if is_ready {
        return Err(Violation::proven(
            RequestReason::NodeExists,
            format!("Node {name} is ready, and a bootstrap token must not take over its identity"),
        ));
    }
    if node.is_deleting {
        return Err(Violation::early(
            RequestReason::NodeDeleting,
            format!("Node {name} is being deleted: its name is free once it does not exist"),
        ));
    }
    let token = &request.requester.username;
    let is_of_token = context.issued.of_node(name).any(|issued| {
        issued.user == *token && issued.is_issued() && now - issued.created < ISSUANCE_WINDOW
    });
    // A join that is repeated: the machine has lost the certificate before its kubelet was ever ready.
    let is_own = was_never_ready(node) && is_of_token && !node.is_control_plane;
    if is_own || is_confirmed(request) {
        return Ok(());
    }
    Err(Violation::doubt(
        RequestReason::NodeExists,
        format!(
            "Node {name} exists and this token did not create it in the last hour, it was ready before, or it is a control-plane node: delete the Node, or approve with `nodepki kubelets approve {}`",
            request.name
        ),
    ))
}

/// Returns true if the condition `Ready` of a Node shows that it was never true.
///
/// Kubernetes keeps no history of a condition, only the time of its last change. A Node that was ready and no longer is
/// has a change long after its creation.
fn was_never_ready(node: &NodeObject) -> bool {
    let Some(ready) = &node.ready else {
        return true;
    };
    let changed_at_registration = ready
        .since
        .is_some_and(|since| (since - node.created).unsigned_abs() <= REGISTRATION_TIME);
    !ready.is_true && (ready.reason == NEVER_UPDATED || changed_at_registration)
}

fn approval(
    request: &CsrObject,
    content: &RequestContent,
    policy: &KubeletPolicy,
) -> KubeletDecision {
    let approves = match request.certificate {
        KubeletCertificate::Client => policy.approve_client,
        KubeletCertificate::Serving => policy.approve_serving,
        // Its request has no approval.
        KubeletCertificate::Pod => false,
    };
    if !approves {
        let finding = RuleFinding::new(
            RequestReason::ApprovalRequired,
            format!(
                "waits for approval: kubectl certificate approve {}",
                request.name
            ),
        );
        return KubeletDecision::Wait {
            finding,
            until: None,
        };
    }
    let names = if content.sans.is_empty() {
        String::new()
    } else {
        format!(" with {}", content.sans)
    };
    KubeletDecision::Approve {
        node: content.node.clone(),
        message: format!(
            "nodepki approves the {} certificate of node {}{names}",
            request.certificate, content.node
        ),
    }
}

fn order(
    request: &CsrObject,
    content: RequestContent,
    answer: Option<String>,
    policy: &KubeletPolicy,
) -> SigningOrder {
    let longest = policy.longest_lifetime(&request.requester);
    let requested = request.expiration.unwrap_or(longest);
    let lifetime = requested.max(MIN_LIFETIME).min(longest);
    SigningOrder {
        certificate: request.certificate,
        profile: Profile {
            subject: Subject::new(format!("system:node:{}", content.node), &["system:nodes"]),
            sans: Sans {
                dns: content.sans.dns,
                ips: content.sans.ips,
            },
            usages: vec![request.certificate.usage()],
            key: content.key,
            lifetime,
        },
        node: content.node,
        csr: content.csr,
        answer,
    }
}

/// Returns every difference between the signer's answer and what was ordered: subject, names, usages, validity, key, not
/// a CA, a path to the cluster's authority. These are the rules of Kubernetes for the two signer names
/// (`pkg/apis/certificates/helpers.go`), as far as a certificate shows them.
///
/// `tolerance` is that of authority `ca` in the configuration.
pub fn certificate_differences(
    order: &SigningOrder,
    chain: &Chain,
    tolerance: Tolerance,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> Vec<CertDifference> {
    let key = order.csr.public_key();
    let mut found = satisfies(chain, &order.profile, tolerance, key, trust, now);
    let lifetime = judge_lifetime(
        chain.leaf(),
        order.profile.lifetime,
        tolerance.max_lifetime,
        now,
    );
    if let Lifetime::Refused(difference) = lifetime {
        found.push(difference);
    }
    found
}
