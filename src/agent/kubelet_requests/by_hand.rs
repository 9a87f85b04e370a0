//! The decisions of an administrator: list the requests, approve one, deny one.

use serde_json::Value;
use time::OffsetDateTime;

use super::bindings;
use super::object;
use super::reserved_names;
use super::view::NodeParts;
use crate::agent::load::Loaded;
use crate::agent::{Clock, Failure};
use crate::cluster::api::{Api, ApiError};
use crate::cluster::watch::{Watch, WatchChange};
use crate::kube::csr_object::{CsrObject, KubeletCertificate};
use crate::kube::kubeadm::is_dns_subdomain;
use crate::kubelets::{
    APPROVED_BY_ADMINISTRATOR, KubeletDecision, KubeletPolicy, NodeBindings, RequestContext,
    RequestReason, RequestedIdentity, ReservedNames, RuleFinding, judge,
};

use super::view::View;

/// Reason of the condition `Denied` that an administrator sets.
const DENIED_BY_ADMINISTRATOR: &str = "DeniedByAdministrator";
/// How often an object is read again after a conflict.
const MAX_CONFLICTS: usize = 5;

/// The requests of a cluster, for an administrator.
pub struct RequestDesk {
    api: Api,
    policy: KubeletPolicy,
    reserved: ReservedNames,
    clock: Clock,
}

/// A request in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRequest {
    /// Name of the object.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Which certificate.
    pub certificate: KubeletCertificate,
    /// User that created it.
    pub requester: String,
    /// Creation, by the clock of the API server.
    pub created: OffsetDateTime,
    /// `pending`, `approved`, `issued`, `denied` or `failed`.
    pub state: &'static str,
    /// Reason code and sentence: of the condition, or of the rule that is not satisfied.
    pub finding: Option<(String, String)>,
}

/// What an administrator decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandDecision<'a> {
    /// Approve, if every rule is satisfied that an administrator cannot replace.
    Approve,
    /// Deny, with the reason for the requester.
    Deny(&'a str),
}

impl RequestDesk {
    /// Returns a desk, which judges with the configured policy as if signing and both approvals were on. Sends nothing.
    ///
    /// # Errors
    /// A node that is not a control-plane node: the names of the API server are unknown.
    pub fn new(api: Api, loaded: &Loaded, clock: Clock) -> Result<Self, Failure> {
        let Some(reserved) = reserved_names(loaded) else {
            return Err(Failure::misconfigured(
                "this node is not a control-plane node: the names of the API server are not known here (run this on a control-plane node)",
            ));
        };
        let policy = KubeletPolicy {
            sign: true,
            approve_client: true,
            approve_serving: true,
            ..loaded.settings.kubelets.clone()
        };
        Ok(RequestDesk {
            api,
            policy,
            reserved,
            clock,
        })
    }

    /// Returns the requests of kubelets, oldest first.
    ///
    /// # Errors
    /// If the API server cannot be read.
    pub async fn list(&self) -> Result<Vec<ListedRequest>, Failure> {
        let mut view = View::default();
        let mut requests = Vec::new();
        let of_cluster =
            |doing: &'static str| move |error: ApiError| Failure::of_cluster(doing, error);
        self.read_nodes(&mut view)
            .await
            .map_err(of_cluster("listing the Nodes"))?;
        for certificate in KubeletCertificate::OWN {
            let watch = Watch::of_signer(&object::CSR, certificate.signer_name());
            let first = requests.len();
            let mut sink = |change: WatchChange<Value>| match change {
                WatchChange::Listing => requests.truncate(first),
                WatchChange::Present(value) => {
                    if let Ok(Some(request)) = CsrObject::from_json(&value) {
                        view.remember_issued(&request, &value);
                        requests.push(request);
                    }
                }
                WatchChange::Listed | WatchChange::Deleted(_) => {}
            };
            self.api
                .list(&watch, &mut sink)
                .await
                .map_err(of_cluster("listing the CertificateSigningRequests"))?;
        }
        requests.sort_by(|one, other| (one.created, &one.name).cmp(&(other.created, &other.name)));
        let requests = requests.iter();
        Ok(requests
            .map(|request| self.listed(request, &view))
            .collect())
    }

    /// Approves or denies a request; returns its state before the decision.
    ///
    /// # Errors
    /// A request that does not exist, that is decided, or that an administrator must not approve; and failures of the
    /// API server.
    pub async fn decide(
        &self,
        name: &str,
        decision: HandDecision<'_>,
    ) -> Result<ListedRequest, Failure> {
        let doing = format!("reading the CertificateSigningRequest {name}");
        for _ in 0..MAX_CONFLICTS {
            let found = self.api.read(&object::CSR, None, name).await;
            let found = found.map_err(|error| Failure::of_cluster(&doing, error))?;
            let request = match &found {
                Some(object) => CsrObject::from_json(object).ok().flatten(),
                None => None,
            };
            let (Some(found), Some(request)) = (found, request) else {
                return Err(Failure::refused(format!(
                    "{name}: no request of a kubelet has this name (see nodepki kubelets list)"
                )));
            };
            let mut view = View::default();
            let nodes = self.read_nodes(&mut view).await;
            nodes.map_err(|error| Failure::of_cluster("listing the Nodes", error))?;
            let listed = self.listed(&request, &view);
            let is_replaced = listed
                .finding
                .as_ref()
                .is_some_and(|(reason, _)| reason == RequestReason::NodeReplaced.as_str());
            // An approval by another component cannot be changed, and it does not confirm the Node.
            if listed.state == "approved" && is_replaced && decision == HandDecision::Approve {
                self.accept_node(&request, &view).await?;
                return Ok(listed);
            }
            let update = self.decided(&found, &request, &listed, &view, decision)?;
            let written = self
                .api
                .replace_subresource(&object::CSR, None, name, "approval", &update)
                .await;
            match written {
                Ok(_) => return Ok(listed),
                // The decision was about another version of the request, which is read and judged again.
                Err(ApiError::Refused(status)) if status.is_conflict() => {}
                Err(error) => {
                    let doing = format!("deciding about the CertificateSigningRequest {name}");
                    return Err(Failure::of_cluster(doing, error));
                }
            }
        }
        Err(Failure::pending(format!(
            "{name}: other clients change the request at the same time (run again)"
        )))
    }

    /// Returns the object with the decision.
    fn decided(
        &self,
        object: &Value,
        request: &CsrObject,
        listed: &ListedRequest,
        view: &View,
        decision: HandDecision<'_>,
    ) -> Result<Value, Failure> {
        let name = &request.name;
        if listed.state != "pending" {
            return Err(Failure::refused(format!(
                "{name}: the request is already {} (a decision cannot be changed; the kubelet makes a new request)",
                listed.state
            )));
        }
        let now = (self.clock)();
        let HandDecision::Deny(why) = decision else {
            let message = "approved with nodepki kubelets approve";
            let reason = APPROVED_BY_ADMINISTRATOR;
            let approved = object::with_condition(object, "Approved", reason, message, now);
            let judged = CsrObject::from_json(&approved).ok().flatten();
            let judged = judged.map(|judged| self.judge(&judged, view));
            return match judged {
                Some(KubeletDecision::Sign(_)) => Ok(approved),
                Some(
                    KubeletDecision::Fail(finding)
                    | KubeletDecision::Deny(finding)
                    | KubeletDecision::Wait { finding, .. },
                ) => Err(Failure::refused(format!(
                    "{name}: nodepki would not sign it: {finding} (an approval cannot replace this rule)"
                ))),
                _ => Err(Failure::refused(format!(
                    "{name}: the request cannot be read"
                ))),
            };
        };
        let reason = DENIED_BY_ADMINISTRATOR;
        Ok(object::with_condition(object, "Denied", reason, why, now))
    }

    /// Revokes the name of a node, or ends its revocation; returns false if nothing changed. The node that signs sees the change in its watch.
    ///
    /// # Errors
    /// A name that is not valid, and failures of the API server.
    pub async fn revoke(&self, name: &str, revokes: bool) -> Result<bool, Failure> {
        if !is_dns_subdomain(name) {
            return Err(Failure::refused(format!(
                "{name:?} is not a valid node name (write the name of the Node, as kubectl get nodes prints it)"
            )));
        }
        let now = (self.clock)();
        self.change_bindings(name, |known| {
            let changes = known.is_revoked(name) != revokes;
            if changes {
                known.revoke(name, revokes.then_some(now));
            }
            changes
        })
        .await
    }

    /// Changes the bindings as they are stored; returns false if `change` does.
    async fn change_bindings(
        &self,
        name: &str,
        change: impl Fn(&mut NodeBindings) -> bool,
    ) -> Result<bool, Failure> {
        for _ in 0..MAX_CONFLICTS {
            let found = bindings::read(&self.api, &self.policy).await;
            let found =
                found.map_err(|error| Failure::of_cluster("reading the known Nodes", error))?;
            let mut known = NodeBindings::default();
            known.store(found.as_ref());
            if !change(&mut known) {
                return Ok(false);
            }
            let data = known.data(self.policy.lifetime, (self.clock)());
            match bindings::write(&self.api, &self.policy, found, data).await {
                Ok(_) => return Ok(true),
                Err(ApiError::Refused(status))
                    if status.is_conflict() || status.is_already_exists() => {}
                Err(error) => return Err(Failure::of_cluster("writing the known Nodes", error)),
            }
        }
        Err(Failure::pending(format!(
            "{name}: other clients change the known Nodes at the same time (run again)"
        )))
    }

    /// Binds the name of a request that waits for this to the present Node.
    async fn accept_node(&self, request: &CsrObject, view: &View) -> Result<bool, Failure> {
        let Some(identity) = RequestedIdentity::of(request) else {
            return Ok(false);
        };
        let Some(node) = view.nodes.get(&identity.node) else {
            return Ok(false);
        };
        let accept = |known: &mut NodeBindings| {
            known.renew(&node.name, Some(node), &identity.key);
            known.has_changes()
        };
        self.change_bindings(&node.name, accept).await
    }

    async fn read_nodes(&self, view: &mut View) -> Result<(), ApiError> {
        let watch = Watch::of_kind(&object::NODE);
        match bindings::read(&self.api, &self.policy).await {
            Ok(found) => drop(view.bindings.store(found.as_ref())),
            // The other rules can be verified all the same.
            Err(ApiError::Refused(status)) if status.is_unauthorized_user() => {}
            Err(error) => return Err(error),
        }
        let mut sink = |change: WatchChange<NodeParts>| view.node(change, (self.clock)());
        self.api.list(&watch, &mut sink).await.map(drop)
    }

    fn judge(&self, request: &CsrObject, view: &View) -> KubeletDecision {
        let context = RequestContext {
            nodes: &view.nodes,
            reserved: &self.reserved,
            bindings: &view.bindings,
            issued: &view.issued,
        };
        judge(request, context, &self.policy, (self.clock)())
    }

    fn listed(&self, request: &CsrObject, view: &View) -> ListedRequest {
        let of_condition = |kind: &str| {
            let condition = request.condition(kind)?;
            Some((condition.reason.clone(), condition.message.clone()))
        };
        let of_rule = || match self.judge(request, view) {
            KubeletDecision::Deny(finding)
            | KubeletDecision::Fail(finding)
            | KubeletDecision::Wait { finding, .. } => Some(of_finding(&finding)),
            _ => None,
        };
        let (state, finding) = if request.is_issued {
            ("issued", None)
        } else if let Some(denied) = of_condition("Denied") {
            ("denied", Some(denied))
        } else if let Some(failed) = of_condition("Failed") {
            ("failed", Some(failed))
        } else if request.condition("Approved").is_some() {
            ("approved", of_rule())
        } else {
            ("pending", of_rule())
        };
        ListedRequest {
            name: request.name.clone(),
            uid: request.uid.clone(),
            certificate: request.certificate,
            requester: request.requester.username.clone(),
            created: request.created,
            state,
            finding,
        }
    }
}

fn of_finding(finding: &RuleFinding) -> (String, String) {
    (finding.reason.as_str().to_owned(), finding.message.clone())
}
