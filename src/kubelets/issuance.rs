//! What was signed for kubelets within the last hour, as the API server shows it, and the limits that follow from it.
//!
//! A request counts from its approval, so requests that are approved at the same time do not exceed a limit together.
//! Of those that are not issued yet, only earlier ones count: every leader decides the same.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use time::OffsetDateTime;

use super::content::RequestContent;
use super::judge::Violation;
use super::requester::NodeRequester;
use super::{KubeletPolicy, RequestContext, RequestReason};
use crate::kube::csr_object::{CsrObject, KubeletCertificate};
use crate::kube::kubeadm::Host;
use crate::kube::names::NODE_USER_PREFIX;
use crate::x509::{CsrContent, Sans};

/// Time within which issuances are counted. kube-controller-manager keeps issued, denied and failed requests as long
/// (`pkg/controller/certificates/cleaner/cleaner.go`).
pub const ISSUANCE_WINDOW: Duration = Duration::from_secs(3600);
/// How long a kubelet waits for the answer to a request. It then discards the key and sends another request
/// (`k8s.io/client-go/util/certificate/certificate_manager.go`, `certificateWaitTimeout`).
const KUBELET_PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Largest number of certificates of one kind for one node name, requested by one user within [`ISSUANCE_WINDOW`], that
/// have not expired. A kubelet requests one at its start and one whenever its addresses change.
const MAX_LIVE_CERTIFICATES: usize = 5;
/// Largest number of exchanges with the signer about them: a signer may refuse what the rules allow.
const MAX_EXCHANGES: usize = 30;
/// Largest number of nodes for which one bootstrap token has certificates, or approved requests, without a Node. A kubelet
/// creates its Node within seconds.
const MAX_UNREGISTERED_NODES: usize = 300;

/// What a request asks for, without a judgement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestedIdentity {
    /// The node in its subject.
    pub node: String,
    /// SHA-256 of its public key.
    pub key: [u8; 32],
    /// Names and addresses, each once.
    pub hosts: BTreeSet<Host>,
}

impl RequestedIdentity {
    /// Reads the CSR of a request; `None` if it is not one of a kubelet.
    pub fn of(request: &CsrObject) -> Option<RequestedIdentity> {
        let csr = CsrContent::from_pem(&request.request).ok()?;
        let node = csr.subject().values("CN").next()?;
        Some(RequestedIdentity {
            node: node.strip_prefix(NODE_USER_PREFIX)?.to_owned(),
            key: csr.public_key().sha256(),
            hosts: csr.sans().map(hosts_of).unwrap_or_default(),
        })
    }

    fn of_content(content: &RequestContent) -> RequestedIdentity {
        RequestedIdentity {
            node: content.node.clone(),
            key: content.csr.public_key().sha256(),
            hosts: hosts_of(&content.sans),
        }
    }
}

fn hosts_of(sans: &Sans) -> BTreeSet<Host> {
    let dns = sans.dns.iter();
    let dns = dns.map(|name| Host::Dns(name.to_ascii_lowercase()));
    dns.chain(sans.ips.iter().map(|ip| Host::Ip(*ip))).collect()
}

/// A request that was approved and not refused by a rule since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovedRequest {
    /// UID of the object.
    pub uid: String,
    /// Name of the object.
    pub name: String,
    /// Creation, by the clock of the API server.
    pub created: OffsetDateTime,
    /// Which certificate.
    pub certificate: KubeletCertificate,
    /// The user that created it.
    pub user: String,
    /// What it asks for.
    pub identity: RequestedIdentity,
    /// What has followed.
    pub progress: IssuanceProgress,
}

/// What has followed the approval of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuanceProgress {
    /// Nothing yet.
    Approved,
    /// The certificate is in the object.
    Issued {
        /// When it was signed. A request may have waited before.
        since: OffsetDateTime,
        /// End of its validity.
        until: OffsetDateTime,
    },
    /// The signer refused it, or its answer was not accepted.
    Refused,
}

impl ApprovedRequest {
    /// Returns true if the object has a certificate.
    pub fn is_issued(&self) -> bool {
        matches!(self.progress, IssuanceProgress::Issued { .. })
    }

    /// Returns the time at which it no longer counts, if that is known.
    fn ends(&self) -> Option<OffsetDateTime> {
        match self.progress {
            IssuanceProgress::Issued { since, until } => Some(until.min(since + ISSUANCE_WINDOW)),
            IssuanceProgress::Approved | IssuanceProgress::Refused => None,
        }
    }

    /// Returns true if it has no certificate yet and precedes `request`. Of two requests that were approved at the same
    /// time, one proceeds.
    pub(super) fn is_approved_before(&self, request: &CsrObject) -> bool {
        self.progress == IssuanceProgress::Approved
            && (self.created, &self.uid) < (request.created, &request.uid)
    }

    /// Returns true if it has no certificate yet, and its kubelet sent `request` for the same node because it does not wait
    /// for this one any more.
    pub(super) fn is_abandoned_for(&self, request: &CsrObject) -> bool {
        self.progress == IssuanceProgress::Approved
            && self.is_of_same_kind(request)
            && request.created - self.created >= KUBELET_PATIENCE
    }

    /// Returns true if its kubelet sent it because it does not wait for `request`, for the same node, any more.
    fn succeeds(&self, request: &CsrObject) -> bool {
        self.is_of_same_kind(request) && self.created - request.created >= KUBELET_PATIENCE
    }

    fn is_of_same_kind(&self, request: &CsrObject) -> bool {
        self.certificate == request.certificate && self.user == request.requester.username
    }

    /// Returns true if it counts when `request` is judged.
    fn counts_for(&self, request: &CsrObject, now: OffsetDateTime) -> bool {
        let counts = match self.progress {
            IssuanceProgress::Approved => self.is_approved_before(request),
            _ => self.ends().is_none_or(|end| now < end),
        };
        counts && self.uid != request.uid
    }
}

/// The approved requests that the API server has, by node and by user.
#[derive(Clone, Debug, Default)]
pub struct IssuanceIndex {
    by_uid: HashMap<String, ApprovedRequest>,
    by_node: HashMap<String, BTreeSet<String>>,
    by_user: HashMap<String, BTreeSet<String>>,
}

impl IssuanceIndex {
    /// Adds or replaces a request.
    pub fn insert(&mut self, request: ApprovedRequest) {
        self.remove(&request.uid);
        for (index, key) in [
            (&mut self.by_node, &request.identity.node),
            (&mut self.by_user, &request.user),
        ] {
            let uids = index.entry(key.clone()).or_default();
            uids.insert(request.uid.clone());
        }
        self.by_uid.insert(request.uid.clone(), request);
    }

    /// Removes a request, and returns it.
    pub fn remove(&mut self, uid: &str) -> Option<ApprovedRequest> {
        let request = self.by_uid.remove(uid)?;
        for (index, key) in [
            (&mut self.by_node, &request.identity.node),
            (&mut self.by_user, &request.user),
        ] {
            if let Some(uids) = index.get_mut(key) {
                uids.remove(uid);
                if uids.is_empty() {
                    index.remove(key);
                }
            }
        }
        Some(request)
    }

    /// Returns the request with this UID.
    pub fn get(&self, uid: &str) -> Option<&ApprovedRequest> {
        self.by_uid.get(uid)
    }

    /// Removes the requests for `certificate` that are not among `uids`.
    pub fn retain(&mut self, certificate: KubeletCertificate, uids: &BTreeSet<String>) {
        let all = self.by_uid.values();
        let gone = all.filter(|one| one.certificate == certificate && !uids.contains(&one.uid));
        let gone: Vec<String> = gone.map(|one| one.uid.clone()).collect();
        for uid in gone {
            self.remove(&uid);
        }
    }

    /// Returns the UIDs of the requests for a node for which their kubelet does not wait after `later`.
    pub fn abandoned_for(&self, later: &CsrObject, node: &str) -> Vec<String> {
        let abandoned = self.of_node(node).filter(|one| one.is_abandoned_for(later));
        abandoned.map(|one| one.uid.clone()).collect()
    }

    /// Returns the requests for a node.
    pub fn of_node(&self, node: &str) -> impl Iterator<Item = &ApprovedRequest> {
        self.find(self.by_node.get(node))
    }

    /// Returns the requests of a user.
    fn of_user(&self, user: &str) -> impl Iterator<Item = &ApprovedRequest> {
        self.find(self.by_user.get(user))
    }

    fn find<'a>(
        &'a self,
        uids: Option<&'a BTreeSet<String>>,
    ) -> impl Iterator<Item = &'a ApprovedRequest> {
        let uids = uids.into_iter().flatten();
        uids.filter_map(|uid| self.by_uid.get(uid))
    }
}

/// Verifies that a kubelet waits for a request.
///
/// An approved request that was abandoned ([`ApprovedRequest::is_abandoned_for`]) does not count for a later one. Two requests
/// that exclude each other are still never both issued: the abandoned one fails once the later one is approved, and the later
/// one is signed only after that. Every write is conditional on the resourceVersion, so no certificate is written into a
/// request that has failed. If the abandoned one is issued before, it counts as every other.
pub(super) fn verify_patience(
    request: &CsrObject,
    node: &str,
    context: RequestContext<'_>,
    now: OffsetDateTime,
) -> Result<(), Violation> {
    let of_node = || context.issued.of_node(node);
    if let Some(later) = of_node().find(|one| one.succeeds(request)) {
        return Err(Violation::proven(
            RequestReason::RequestAbandoned,
            format!(
                "the requester sent {} at least 15 minutes later, and does not wait for this request any more",
                later.name
            ),
        ));
    }
    let is_approved = request.condition("Approved").is_some();
    match of_node().find(|one| is_approved && one.is_abandoned_for(request)) {
        Some(earlier) => Err(Violation::limited(
            RequestReason::RequestRepeated,
            format!(
                "{}, for which the requester does not wait any more, has not failed yet",
                earlier.name
            ),
            now + UNKNOWN_WAIT,
        )),
        None => Ok(()),
    }
}

/// Verifies that a request does not repeat one that is under way and does not exceed a limit. Returns the name of the
/// object that already has the certificate for the same key, names and node: it answers this request too, without
/// another signature. The rule about repetitions has no regard to the user, because every bootstrap token can read the
/// requests of others and send them again.
pub(super) fn verify_limits(
    request: &CsrObject,
    content: &RequestContent,
    requester: &NodeRequester,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
    now: OffsetDateTime,
) -> Result<Option<String>, Violation> {
    let identity = RequestedIdentity::of_content(content);
    let of_node: Vec<&ApprovedRequest> = context
        .issued
        .of_node(&identity.node)
        .filter(|one| one.certificate == request.certificate && one.counts_for(request, now))
        .filter(|one| !one.is_abandoned_for(request))
        .collect();
    let repeated = || of_node.iter().filter(|one| one.identity == identity);
    let issued = repeated().filter(|one| one.is_issued());
    if let Some(issued) = issued.min_by_key(|one| (one.created, &one.uid)) {
        return Ok(Some(issued.name.clone()));
    }
    if let Some(earlier) = repeated().find(|one| one.progress == IssuanceProgress::Approved) {
        return Err(Violation::doubt(
            RequestReason::RequestRepeated,
            format!(
                "repeats {} with the same key and names, and will get the same certificate",
                earlier.name
            ),
        ));
    }
    let own = || {
        let of_node = of_node.iter().copied();
        of_node.filter(|one| one.user == request.requester.username)
    };
    let (refused, live): (Vec<&ApprovedRequest>, Vec<&ApprovedRequest>) =
        own().partition(|one| one.progress == IssuanceProgress::Refused);
    let live: BTreeSet<&RequestedIdentity> = live.iter().map(|one| &one.identity).collect();
    if live.len() >= MAX_LIVE_CERTIFICATES || live.len() + refused.len() >= MAX_EXCHANGES {
        let what = format!(
            "{} has requested as many {} certificates for node {} within an hour as are allowed",
            request.requester.username, request.certificate, identity.node
        );
        return Err(limited(&what, own(), now));
    }
    match requester {
        NodeRequester::Node(_) => Ok(None),
        NodeRequester::Token => verify_token(request, &identity.node, context, policy, now),
    }
}

/// Verifies that a bootstrap token does not name more new nodes than are allowed.
fn verify_token(
    request: &CsrObject,
    node: &str,
    context: RequestContext<'_>,
    policy: &KubeletPolicy,
    now: OffsetDateTime,
) -> Result<Option<String>, Violation> {
    let own: Vec<&ApprovedRequest> = context
        .issued
        .of_user(&request.requester.username)
        .filter(|one| one.progress != IssuanceProgress::Refused && one.counts_for(request, now))
        .collect();
    let named: BTreeSet<&str> = own.iter().map(|one| one.identity.node.as_str()).collect();
    if named.contains(node) {
        return Ok(None);
    }
    let is_registered = |name: &str| context.nodes.get(name).is_some();
    if named.len() >= policy.nodes_per_token as usize {
        let what = format!(
            "{} has joined {} nodes within an hour, the limit kubelets.nodesPerToken",
            request.requester.username,
            named.len()
        );
        return Err(limited(&what, own.into_iter(), now));
    }
    let missing = named.iter().filter(|name| !is_registered(name)).count();
    if missing >= MAX_UNREGISTERED_NODES {
        let what = format!(
            "{} has certificates for {missing} nodes that do not exist",
            request.requester.username
        );
        let missing = own
            .into_iter()
            .filter(|one| !is_registered(&one.identity.node));
        return Err(limited(&what, missing, now));
    }
    Ok(None)
}

/// How long a request waits for approved ones whose end is not known.
const UNKNOWN_WAIT: Duration = Duration::from_secs(60);

fn limited<'a>(
    what: &str,
    counted: impl Iterator<Item = &'a ApprovedRequest>,
    now: OffsetDateTime,
) -> Violation {
    let first = counted.filter_map(ApprovedRequest::ends).min();
    Violation::limited(
        RequestReason::LimitReached,
        format!("{what} (the request waits; see docs/kubelets.md)"),
        first.unwrap_or(now + UNKNOWN_WAIT),
    )
}
