//! The rules about the name of a node, which a bootstrap token chooses freely.

use super::addresses::is_never_of_node;
use super::content::RequestContent;
use super::judge::Violation;
use super::names::{is_local_name, nodes_given};
use super::requester::{NodeRequester, quoted};
use super::{
    APPROVED_BY_ADMINISTRATOR, ApprovedRequest, KubeletPolicy, RequestContext, RequestReason,
};
use crate::kube::csr_object::{CsrObject, KubeletCertificate, NodeObject};
use crate::kube::kubeadm::{Host, parse_ip};
use crate::kube::names::NODE_USER_PREFIX;

/// Verifies that the name is one that a node may have, and that this requester may give to one.
pub(super) fn verify_node_name(
    request: &CsrObject,
    content: &RequestContent,
    requester: &NodeRequester,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
) -> Result<(), Violation> {
    let name = content.node.as_str();
    let node = context.nodes.get(name);
    let verified = verify_not_reserved(request, name, node, context);
    if *requester != NodeRequester::Token {
        return verified;
    }
    verify_group(request, name, policy)?;
    let unborn = || match node {
        Some(_) => Ok(()),
        None => verify_unborn(request, content, context, policy),
    };
    match verified.and_then(|()| unborn()) {
        Err(Violation::Doubt(_)) if is_confirmed(request) => Ok(()),
        verified => verified,
    }
}

/// Returns true if a person has approved the request with `nodepki kubelets approve`.
pub(super) fn is_confirmed(request: &CsrObject) -> bool {
    let approval = request.condition("Approved");
    approval.is_some_and(|approval| approval.reason == APPROVED_BY_ADMINISTRATOR)
}

/// Verifies that the name is not one of the cluster. The label of control-plane nodes, which a kubelet cannot set, shows
/// that a name of the control plane is the node's own.
fn verify_not_reserved(
    request: &CsrObject,
    name: &str,
    node: Option<&NodeObject>,
    context: RequestContext<'_>,
) -> Result<(), Violation> {
    let reserved = context.reserved;
    let host = match parse_ip(name) {
        Some((ip, _)) => Host::Ip(ip),
        None => Host::Dns(name.to_owned()),
    };
    let is_special = match &host {
        Host::Ip(ip) => is_never_of_node(*ip),
        Host::Dns(name) => is_local_name(name),
    };
    let reason = RequestReason::NodeNameReserved;
    if is_special || reserved.is_of_service(&host) {
        let message = format!(
            "{name} means every machine, a service or a pod, and is never the name of a node"
        );
        return Err(Violation::proven(reason, message));
    }
    // The rules about the names of a serving certificate include its own.
    let is_own = node.is_some_and(|node| node.is_control_plane)
        || request.certificate == KubeletCertificate::Serving;
    if is_own || !reserved.is_certified(&host) {
        return Ok(());
    }
    let message =
        format!("{name} is a name of the API server or another component of the control plane");
    Err(match node {
        // kubeadm labels a control-plane node after its kubelet has started.
        Some(_) => Violation::early(
            reason,
            format!("{message}, and Node {name} is not labelled as a control-plane node"),
        ),
        None if reserved.is_endpoint(&host) => Violation::proven(reason, message),
        // `apiServer.certSANs` may contain the names of control-plane nodes that are to join.
        None => Violation::doubt(
            reason,
            to_be_confirmed(&format!(
                "{message}, and only a control-plane node can renew its certificate"
            )),
        ),
    })
}

/// Verifies that a group of the token may join a node of this name. A group without patterns may join any.
fn verify_group(request: &CsrObject, name: &str, policy: &KubeletPolicy) -> Result<(), Violation> {
    let groups = policy.token_groups.iter();
    let mut groups = groups.filter(|group| request.requester.groups.contains(group));
    let may_join = |group: &String| match policy.node_names.get(group) {
        Some(patterns) => patterns.iter().any(|pattern| pattern.matches(name)),
        None => true,
    };
    if groups.any(may_join) {
        Ok(())
    } else {
        Err(Violation::proven(
            RequestReason::NodeNameNotAllowed,
            format!(
                "kubelets.nodeNames does not allow the groups of this token to join node {name}"
            ),
        ))
    }
}

/// Verifies that the name of a node that does not exist yet was not given to another requester or key, and that it is not a
/// name of another node.
fn verify_unborn(
    request: &CsrObject,
    content: &RequestContent,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
) -> Result<(), Violation> {
    let name = content.node.as_str();
    let given = nodes_given(name, policy).into_iter();
    let registered = context.reserved.node_of_pattern(name);
    let mut others = given.chain(registered).filter(|other| *other != name);
    if let Some(other) = others.next() {
        let message =
            format!("{name} is a name of node {other}, by a pattern of the configuration");
        return Err(Violation::doubt(
            RequestReason::NodeNameReserved,
            to_be_confirmed(&message),
        ));
    }
    let key = content.csr.public_key().sha256();
    // A leader has bound the name to this request, and not published its certificate.
    let is_for_key = context.bindings.is_for_key(name, &key);
    let is_other = |one: &&ApprovedRequest| {
        (one.user != request.requester.username || one.identity.key != key)
            && (one.is_issued() && !is_for_key
                || one.is_approved_before(request) && !one.is_abandoned_for(request))
            && !has_joined(one, context)
    };
    match context.issued.of_node(name).find(is_other) {
        Some(other) => Err(Violation::doubt(
            RequestReason::NodeNameTaken,
            to_be_confirmed(&format!(
                "{} asked earlier for a certificate for node {name} with another key, and the Node does not exist yet",
                quoted(&other.user)
            )),
        )),
        None => Ok(()),
    }
}

/// Returns true if the Node existed after the request: it was deleted, or its kubelet got a further certificate, which
/// requires the Node. The name is then free again. A leader that did not see the deletion knows the Node by its binding, which
/// a request that is only approved does not end.
fn has_joined(earlier: &ApprovedRequest, context: RequestContext<'_>) -> bool {
    let name = earlier.identity.node.as_str();
    let is_renewal = |later: &ApprovedRequest| {
        later.is_issued()
            && later.created >= earlier.created
            && later.user.strip_prefix(NODE_USER_PREFIX) == Some(name)
    };
    let was_deleted = match context.nodes.last_deleted(name) {
        Some(created) => created >= earlier.created,
        None => earlier.is_issued() && context.bindings.is_bound(name),
    };
    was_deleted || context.issued.of_node(name).any(is_renewal)
}

fn to_be_confirmed(problem: &str) -> String {
    format!(
        "{problem}: approve with `nodepki kubelets approve` if the machine is the right one, or deny"
    )
}
