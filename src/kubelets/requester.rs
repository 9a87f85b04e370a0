//! The rules about the user that created a request.

use std::collections::BTreeSet;

use super::judge::Violation;
use super::{KubeletPolicy, RequestReason};
use crate::kube::csr_object::{CsrObject, KubeletCertificate};
use crate::kube::names::{NODE_USER_PREFIX, TOKEN_USER_PREFIX};
use crate::text::is_hidden;

/// Group of all nodes, and the organization of kubelets.
pub(super) const NODES_GROUP: &str = "system:nodes";
const AUTHENTICATED: &str = "system:authenticated";

/// Group of all bootstrap tokens; their other groups have it as a prefix.
const BOOTSTRAPPERS: &str = "system:bootstrappers";

/// A requester that may request a kubelet's certificate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodeRequester {
    /// The node of this name.
    Node(String),
    /// A bootstrap token.
    Token,
}

/// Verifies user name and groups of the requester. The API server sets both.
pub(super) fn requester(
    request: &CsrObject,
    policy: &KubeletPolicy,
) -> Result<NodeRequester, Violation> {
    let user = request.requester.username.as_str();
    let groups: BTreeSet<&str> = request
        .requester
        .groups
        .iter()
        .map(String::as_str)
        .collect();
    let is_unique = groups.len() == request.requester.groups.len();
    if let Some(name) = user.strip_prefix(NODE_USER_PREFIX) {
        if !is_unique || groups != BTreeSet::from([NODES_GROUP, AUTHENTICATED]) {
            return Err(groups_not_allowed(
                user,
                &groups,
                "exactly system:nodes and system:authenticated",
            ));
        }
        return Ok(NodeRequester::Node(name.to_owned()));
    }
    let is_token = user
        .strip_prefix(TOKEN_USER_PREFIX)
        .is_some_and(is_token_id);
    let is_serving = request.certificate == KubeletCertificate::Serving;
    if !is_token || is_serving {
        let allowed = if is_serving {
            "only the node itself may request its serving certificate"
        } else {
            "only a node or a bootstrap token may request a kubelet's client certificate"
        };
        return Err(Violation::proven(
            RequestReason::RequesterNotAllowed,
            format!("the requester is {}, but {allowed}", quoted(user)),
        ));
    }
    // The groups of a bootstrap token begin with this one (`ValidateBootstrapGroupName`), and the API server adds the
    // other.
    let belongs = |group: &&str| match group.strip_prefix(BOOTSTRAPPERS) {
        Some(rest) => rest.is_empty() || rest.starts_with(':'),
        None => *group == AUTHENTICATED,
    };
    let may_join = policy
        .token_groups
        .iter()
        .any(|group| groups.contains(group.as_str()));
    let is_complete = groups.contains(BOOTSTRAPPERS) && groups.contains(AUTHENTICATED);
    if !is_unique || !is_complete || !may_join || !groups.iter().all(belongs) {
        return Err(groups_not_allowed(
            user,
            &groups,
            &format!(
                "those of a bootstrap token, with {}",
                policy.token_groups.join(" or ")
            ),
        ));
    }
    Ok(NodeRequester::Token)
}

fn groups_not_allowed(user: &str, groups: &BTreeSet<&str>, required: &str) -> Violation {
    let groups: Vec<String> = groups.iter().map(|group| quoted(group)).collect();
    Violation::proven(
        RequestReason::GroupsNotAllowed,
        format!(
            "the groups of {} are {}, but required are {required}",
            quoted(user),
            groups.join(", ")
        ),
    )
}

/// Returns true for a token ID (`cluster-bootstrap/token/api/types.go`, `BootstrapTokenIDPattern`).
fn is_token_id(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    id.len() == 6 && id.bytes().all(is_allowed)
}

/// Longest text from a request in a message, in characters.
const MAX_QUOTED_CHARS: usize = 100;

/// Returns text from a request, shortened and without characters that change how others are displayed.
pub(super) fn quoted(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(MAX_QUOTED_CHARS)
        .map(|c| if is_hidden(c) { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(MAX_QUOTED_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
