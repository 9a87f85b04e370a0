//! One request: read, judge, and carry out the decision.

use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::bindings::is_temporary;
use super::election::Tenure;
use super::exchange::{self, Exchanged};
use super::queue::{ObservedRequest, RequestWait, WakeTopic, Work, WorkResult};
use super::view::certificate_of;
use super::{KubeletResult, Signing, object};
use crate::agent::audit;
use crate::cluster::api::ApiError;
use crate::kube::csr_object::{CsrObject, KubeletCertificate, NodeObject};
use crate::kube::kubeadm::Host;
use crate::kube::names::{NODE_USER_PREFIX, TOKEN_USER_PREFIX};
use crate::kubelets::{
    APPROVED_BY_ADMINISTRATOR, APPROVED_BY_RULES, KubeletDecision, RequestContext, RequestReason,
    RequestedIdentity, RuleFinding, SigningOrder, judge,
};
use crate::process::jitter::random_fraction;
use crate::signer::Request;
use crate::spec::assess::joined;
use crate::store::{AuditEvent, AuditRecord, Durability};
use crate::x509::{Chain, TrustBundle};

/// How often a request is judged in a row if other clients change it at the same time.
const MAX_CONFLICTS: usize = 5;
/// Wait after a failed call of the API server, and after conflicts.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Wait if this node cannot use its own files.
const LOCAL_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Reason of the condition `Failed` after a denial by the signer.
const DENIED_BY_SIGNER: &str = "DeniedBySigner";
/// Reason of the condition `Failed` if the signer can never sign the request.
pub(super) const SIGNING_FAILED: &str = "SigningFailed";
/// Reasons of the condition `Failed` after an exchange with the signer.
pub(super) const SIGNER_REFUSALS: [&str; 3] = [
    DENIED_BY_SIGNER,
    SIGNING_FAILED,
    RequestReason::CertificateNotAccepted.as_str(),
];
/// Longest time until a request that waits for a Node is judged again.
const MAX_NODE_WAIT: Duration = Duration::from_secs(600);
/// Reason of an Event while the signer cannot be used.
const SIGNER_UNAVAILABLE: &str = "SignerUnavailable";
/// Reason of an Event while the API server refuses to read or to write what a request needs.
const API_REFUSAL: &str = "RefusedByAPIServer";
/// Number of refusals by the API server in a row that are reported.
const REPORTED_REFUSALS: u32 = 3;
/// Longest wait after them.
const MAX_REFUSAL_WAIT: Duration = Duration::from_secs(300);

/// Maximum length in bytes of a reason in the issuance log.
const MAX_AUDITED_REASON: usize = 2000;

/// The result of an order.
pub(super) struct SignedOrder {
    /// The entry of the issuance log, without the result.
    pub(super) facts: AuditRecord,
    /// The chain in PEM; or reason and message of a refusal that is final.
    pub(super) outcome: Result<String, (&'static str, String)>,
}

/// What follows a write.
pub(super) enum WriteResult {
    /// The object, as the API server stored it.
    Stored(Value),
    /// Another client has changed the object: read and judge again.
    Conflict,
}

impl Signing {
    /// Processes a request until it is finished or has to wait.
    pub(super) async fn process(&self, work: &Work, tenure: &Tenure) -> WorkResult {
        let advanced = match work.certificate {
            KubeletCertificate::Pod => self.advance_pod(work, tenure).await,
            KubeletCertificate::Client | KubeletCertificate::Serving => {
                self.advance(work, tenure).await
            }
        };
        let error = match advanced {
            Ok(result) => {
                self.view.borrow_mut().queue.accepted(work);
                return result;
            }
            Err(error) => error,
        };
        tracing::debug!(csr = work.name, "the request cannot be processed: {error}");
        let mut refusals = 0;
        if is_lasting(&error) {
            refusals = self.view.borrow_mut().queue.refused(work);
        }
        if refusals >= REPORTED_REFUSALS {
            let why = format!("the API server does not let nodepki process it: {error}");
            self.report(work, API_REFUSAL, &why).await;
        }
        let wait = requested_wait(&error).unwrap_or_else(|| wait_after_refusals(refusals));
        later(work, wait.mul_f64(1.0 + random_fraction() / 2.0))
    }

    async fn advance(&self, work: &Work, tenure: &Tenure) -> Result<WorkResult, ApiError> {
        let mut stored: Option<Value> = None;
        for _ in 0..MAX_CONFLICTS {
            let object = match stored.take() {
                Some(object) => object,
                None => match self.api.read(&object::CSR, None, &work.name).await? {
                    Some(object) => object,
                    None => return Ok(self.vanished(work).await),
                },
            };
            let Ok(Some(request)) = CsrObject::from_json(&object) else {
                return Ok(WorkResult::Finished);
            };
            if request.uid != work.uid {
                return Ok(self.vanished(work).await);
            }
            let decision = self.decide(&request).await?;
            // The reads take time, in which another node may have become the leader.
            if !tenure.lasts() {
                return Ok(later(work, RETRY_INTERVAL));
            }
            let written = match decision {
                KubeletDecision::Ignore => {
                    self.settle(&request).await;
                    return Ok(WorkResult::Finished);
                }
                KubeletDecision::Wait { finding, until } => {
                    return Ok(self.wait(work, &request, &finding, until).await);
                }
                KubeletDecision::Approve { message, .. } => {
                    let written = self
                        .add_condition(&object, &request, "Approved", APPROVED_BY_RULES, &message)
                        .await?;
                    if let WriteResult::Stored(_) = &written {
                        self.audit(&(&request).into(), "approved", APPROVED_BY_RULES, &message);
                        let result = KubeletResult::Approved;
                        self.observer.decided(request.certificate, result);
                    }
                    written
                }
                KubeletDecision::Deny(finding) => {
                    self.refuse(&object, &request, "Denied", &finding).await?
                }
                KubeletDecision::Fail(finding) => {
                    self.refuse(&object, &request, "Failed", &finding).await?
                }
                KubeletDecision::Sign(order) => {
                    match self.sign(work, &object, &request, &order, tenure).await? {
                        Ok(written) => written,
                        Err(result) => return Ok(result),
                    }
                }
            };
            if let WriteResult::Stored(object) = written {
                // The limits count it at once, not only when the watch shows it.
                if let Ok(Some(request)) = CsrObject::from_json(&object) {
                    let mut view = self.view.borrow_mut();
                    view.remember_issued(&request, &object);
                }
                let is_final = CsrObject::from_json(&object).is_ok_and(|request| {
                    request.is_none_or(|request| {
                        request.is_issued
                            || request.condition("Denied").is_some()
                            || request.condition("Failed").is_some()
                    })
                });
                if is_final {
                    return Ok(WorkResult::Finished);
                }
                stored = Some(object);
            }
        }
        Ok(later(work, RETRY_INTERVAL))
    }

    /// Judges a request with what the watches have shown, and before anything is written again with its Node as it is now:
    /// a serving certificate depends on the addresses of the Node, and that of a bootstrap token on its absence.
    async fn decide(&self, request: &CsrObject) -> Result<KubeletDecision, ApiError> {
        let decision = self.judge(request);
        match node_of_decision(request, &decision) {
            Some(node) => {
                self.refresh_node(&node).await?;
                Ok(self.judge(request))
            }
            None => Ok(decision),
        }
    }

    fn judge(&self, request: &CsrObject) -> KubeletDecision {
        let view = self.view.borrow();
        let context = RequestContext {
            nodes: &view.nodes,
            reserved: &self.reserved,
            bindings: &view.bindings,
            issued: &view.issued,
        };
        judge(request, context, &self.policy, self.now())
    }

    async fn refresh_node(&self, name: &str) -> Result<(), ApiError> {
        // Any other text is not the name of a Node, and the API server may not even accept it in a path.
        let is_name = (1..=253).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        if !is_name || name.split('.').any(str::is_empty) {
            return Ok(());
        }
        let found = self.api.read(&object::NODE, None, name).await?;
        let mut view = self.view.borrow_mut();
        match found.as_ref().map(NodeObject::from_json) {
            Some(Ok(node)) => view.put_node(node),
            Some(Err(_)) => {}
            None => view.remove_node(name, self.now()),
        }
        Ok(())
    }

    /// Reports why a request waits, once per reason.
    async fn wait(
        &self,
        work: &Work,
        request: &CsrObject,
        finding: &RuleFinding,
        until: Option<OffsetDateTime>,
    ) -> WorkResult {
        let reason = finding.reason.as_str();
        // Waiting for an administrator is the usual state and visible in the request itself, and a repetition is about to
        // be answered.
        let is_usual = matches!(
            finding.reason,
            RequestReason::ApprovalRequired | RequestReason::RequestRepeated
        );
        if !is_usual && !self.report(work, reason, &finding.message).await {
            return later(work, RETRY_INTERVAL);
        }
        let until = until.map(|at| at - self.now());
        let until = until.map(|wait| Duration::try_from(wait).unwrap_or_default());
        let wait = match finding.reason {
            RequestReason::ApprovalRequired => RequestWait {
                until: until.and_then(exchange::after),
                topics: Vec::new(),
            },
            _ => RequestWait {
                until: exchange::after(
                    until.unwrap_or(MAX_NODE_WAIT.mul_f64(1.0 - random_fraction() / 4.0)),
                ),
                topics: awaited(request, finding.reason),
            },
        };
        WorkResult::Wait {
            wait,
            attempts: work.attempts,
        }
    }

    /// Writes an Event and a line in the log, unless the last one for this request had the same reason. Returns false if the
    /// API server did not accept the Event yet: the next call reports again.
    pub(super) async fn report(&self, work: &Work, reason: &'static str, message: &str) -> bool {
        let user = {
            let queue = &mut self.view.borrow_mut().queue;
            if !queue.is_news(work, reason) {
                return true;
            }
            queue.user(&work.uid).to_owned()
        };
        // The reason is in `nodepki kubelets list` too.
        if !self.reports.allows(&user, Instant::now()) {
            tracing::debug!(csr = work.name, "the request waits: {message}");
            return true;
        }
        tracing::warn!(
            name: super::WAITS,
            csr = work.name,
            uid = work.uid,
            certificate = work.certificate.as_str(),
            reason,
            "kubelet request {} waits: {message}",
            work.name
        );
        // An Event of a namespace would need a right in every namespace.
        if work.certificate == KubeletCertificate::Pod {
            return true;
        }
        let event = object::event(&work.name, &work.uid, reason, message, self.now());
        let namespace = Some(object::EVENT_NAMESPACE);
        let created = self.api.create(&object::EVENT, namespace, &event).await;
        let is_final = match &created {
            Ok(_) => true,
            // Also if it exists: a former leader has created it.
            Err(ApiError::Refused(status)) => status.code < 500 && status.code != 429,
            Err(_) => false,
        };
        if let Err(error) = created {
            tracing::debug!(csr = work.name, "no Event was written: {error}");
        }
        if !is_final {
            self.view.borrow_mut().queue.forget_report(work);
        }
        is_final
    }

    /// Denies a request, or marks an approved one as failed.
    async fn refuse(
        &self,
        object: &Value,
        request: &CsrObject,
        kind: &'static str,
        finding: &RuleFinding,
    ) -> Result<WriteResult, ApiError> {
        let (reason, message) = (finding.reason.as_str(), &finding.message);
        let written = self
            .add_condition(object, request, kind, reason, message)
            .await?;
        if let WriteResult::Stored(_) = &written {
            let (decision, result) = match kind {
                "Denied" => ("denied", KubeletResult::Denied(finding.reason)),
                _ => ("failed", KubeletResult::Failed(finding.reason)),
            };
            self.audit(&request.into(), decision, reason, message);
            self.observer.decided(request.certificate, result);
            self.settle(request).await;
        }
        Ok(written)
    }

    /// Has a request signed and writes the certificate. The inner error is the result if nothing was written.
    async fn sign(
        &self,
        work: &Work,
        object: &Value,
        request: &CsrObject,
        order: &SigningOrder,
        tenure: &Tenure,
    ) -> Result<Result<WriteResult, WorkResult>, ApiError> {
        if let Some(answer) = &order.answer {
            return self
                .repeat(work, object, request, order, answer, tenure)
                .await;
        }
        let trust = match self.trusted(work).await {
            Ok(trust) => trust,
            Err(result) => return Ok(Err(result)),
        };
        let requester = &request.requester.username;
        let signed = self
            .have_signed(work, order, requester, tenure, &trust)
            .await;
        let SignedOrder { facts, outcome } = match signed {
            Ok(signed) => signed,
            Err(result) => return Ok(Err(result)),
        };
        let (reason, message) = match outcome {
            Ok(chain) => {
                // The signer may have taken days. A change of the request itself is a conflict.
                if !self.is_still_ordered(request, order).await? {
                    return Ok(Ok(WriteResult::Conflict));
                }
                let written = self
                    .write_certificate(object, request, order, &chain, Some(facts), tenure)
                    .await?;
                if let WriteResult::Stored(_) = &written {
                    self.settle(request).await;
                }
                return Ok(Ok(written));
            }
            Err(refusal) => refusal,
        };
        let written = self
            .add_condition(object, request, "Failed", reason, &message)
            .await?;
        if let WriteResult::Stored(_) = &written {
            self.audit(&request.into(), "failed", reason, &message);
            self.append_refusal(facts, &message);
            self.observer
                .decided(request.certificate, KubeletResult::Refused);
            self.settle(request).await;
        }
        Ok(Ok(written))
    }

    /// Returns the certificates that this node trusts, or what to do without them.
    pub(super) async fn trusted(&self, work: &Work) -> Result<TrustBundle, WorkResult> {
        match self.trust() {
            Ok(trust) => Ok(trust),
            Err(why) => {
                self.report(work, SIGNER_UNAVAILABLE, &why).await;
                Err(later(work, LOCAL_RETRY_INTERVAL))
            }
        }
    }

    /// Has an order signed. The error is what to do if that is not decided now.
    pub(super) async fn have_signed(
        &self,
        work: &Work,
        order: &SigningOrder,
        requester: &str,
        tenure: &Tenure,
        trust: &TrustBundle,
    ) -> Result<SignedOrder, WorkResult> {
        let sent = exchange::request_of(self, order, &work.uid);
        let facts = AuditRecord {
            object: Some(work.name.clone()),
            requester: Some(requester.to_owned()),
            ..exchange::audit_record(self, AuditEvent::KubeletRequest, &sent)
        };
        let exchanged = match exchange::exchange(self, order, sent, work, trust).await {
            Ok(exchanged) => exchanged,
            Err(error) => {
                let why = format!("the request cannot be recorded: {error}");
                self.report(work, SIGNER_UNAVAILABLE, &why).await;
                return Err(later(work, LOCAL_RETRY_INTERVAL));
            }
        };
        // Another node may lead by now, and asks the signer about the same request.
        if !tenure.lasts() {
            return Err(later(work, RETRY_INTERVAL));
        }
        let outcome = match exchanged {
            Exchanged::Issued(chain) => Ok(chain),
            Exchanged::Later {
                wait,
                attempts,
                failure,
                why,
            } => {
                if failure.is_some_and(|class| !class.passes()) || attempts.failures > 2 {
                    self.report(work, SIGNER_UNAVAILABLE, &why).await;
                }
                return Err(WorkResult::Wait {
                    wait: RequestWait {
                        until: exchange::after(wait),
                        topics: Vec::new(),
                    },
                    attempts,
                });
            }
            Exchanged::Denied(why) => Err((DENIED_BY_SIGNER, why)),
            Exchanged::Mismatch(differences) => Err((
                RequestReason::CertificateNotAccepted.as_str(),
                format!(
                    "the signer's certificate differs from the request: {}",
                    differences.join("; ")
                ),
            )),
            Exchanged::Impossible(why) => Err((SIGNING_FAILED, why)),
        };
        Ok(SignedOrder { facts, outcome })
    }

    /// Returns true if the request, judged with its Node as it is now, still leads to the same order.
    async fn is_still_ordered(
        &self,
        request: &CsrObject,
        order: &SigningOrder,
    ) -> Result<bool, ApiError> {
        self.refresh_node(&order.node).await?;
        Ok(match self.judge(request) {
            KubeletDecision::Sign(again) => again.profile == order.profile,
            // The limits are about exchanges with the signer, and this one has taken place.
            KubeletDecision::Wait { finding, .. } => finding.reason == RequestReason::LimitReached,
            _ => false,
        })
    }

    /// Answers a request with the certificate of an earlier one for the same key and names, so it costs no signature
    /// and no entry of the issuance log. If that certificate does not fit, for example because the lifetime differs, the
    /// request fails.
    async fn repeat(
        &self,
        work: &Work,
        object: &Value,
        request: &CsrObject,
        order: &SigningOrder,
        earlier: &str,
        tenure: &Tenure,
    ) -> Result<Result<WriteResult, WorkResult>, ApiError> {
        let trust = match self.trusted(work).await {
            Ok(trust) => trust,
            Err(result) => return Ok(Err(result)),
        };
        let found = self.api.read(&object::CSR, None, earlier).await?;
        let Some(pem) = found.as_ref().and_then(certificate_of) else {
            // It was just deleted, and the watch shows that soon.
            return Ok(Err(later(work, RETRY_INTERVAL)));
        };
        let written = match exchange::verified(self, order, &trust, &pem) {
            Ok(chain) => {
                self.write_certificate(object, request, order, &chain.to_pem(), None, tenure)
                    .await?
            }
            Err(differences) => {
                let finding = RuleFinding::new(
                    RequestReason::RequestRepeated,
                    format!(
                        "{earlier} has a certificate for the same key and names, which differs from this request: {}",
                        joined(&differences)
                    ),
                );
                self.refuse(object, request, "Failed", &finding).await?
            }
        };
        Ok(Ok(written))
    }

    /// Writes a certificate. `facts` are those of the issuance log, if it was issued for this request.
    async fn write_certificate(
        &self,
        object: &Value,
        request: &CsrObject,
        order: &SigningOrder,
        chain: &str,
        facts: Option<AuditRecord>,
        tenure: &Tenure,
    ) -> Result<WriteResult, ApiError> {
        self.bind(request, &order.node, tenure).await?;
        if !tenure.lasts() {
            // The next attempt ends before anything is written.
            return Ok(WriteResult::Conflict);
        }
        let update = object::with_certificate(object, chain);
        let written = self.update(request, "status", &update).await?;
        if let WriteResult::Stored(_) = &written {
            let message = format!(
                "certificate for node {} by signer {}",
                order.node, self.signer_name
            );
            self.audit(&request.into(), "issued", "Issued", &message);
            if let Some(facts) = facts {
                self.append_issued(facts, chain);
            }
            self.observe_issued(request.certificate, request.created);
        }
        Ok(written)
    }

    /// Reports an issued certificate, with the time since the request was created.
    pub(super) fn observe_issued(&self, certificate: KubeletCertificate, created: OffsetDateTime) {
        let waited = (self.now() - created).max(time::Duration::ZERO);
        let result = KubeletResult::Issued(waited.unsigned_abs());
        self.observer.decided(certificate, result);
    }

    /// Appends an issued certificate to the issuance log.
    pub(super) fn append_issued(&self, facts: AuditRecord, chain: &str) {
        let facts = AuditRecord {
            action: Some("issued".to_owned()),
            ..facts
        };
        self.append_audit(match Chain::from_pem(chain.as_bytes()) {
            Ok(chain) => audit::with_leaf(facts, chain.leaf()),
            Err(_) => facts,
        });
    }

    /// Appends an order that was not fulfilled to the issuance log.
    pub(super) fn append_refusal(&self, facts: AuditRecord, message: &str) {
        self.append_audit(AuditRecord {
            action: Some("failed".to_owned()),
            reason: Some(crate::http::printable(message, MAX_AUDITED_REASON)),
            ..facts
        });
    }

    /// Binds the name to its present Node, or to the next one, for the request of a bootstrap token, or one that an
    /// administrator has approved. A node's own request proves nothing about its Node.
    ///
    /// The binding is stored before the certificate is published: a leader that knows only the former Node would refuse every
    /// later request of the new one.
    async fn bind(&self, request: &CsrObject, name: &str, tenure: &Tenure) -> Result<(), ApiError> {
        let is_of_token = request.requester.username.starts_with(TOKEN_USER_PREFIX);
        let approval = request.condition("Approved");
        let is_confirmed =
            approval.is_some_and(|approval| approval.reason == APPROVED_BY_ADMINISTRATOR);
        if (is_of_token || is_confirmed)
            && let Some(identity) = RequestedIdentity::of(request)
        {
            {
                let view = &mut *self.view.borrow_mut();
                let node = view.nodes.get(name);
                view.bindings.renew(name, node, &identity.key);
            }
            self.store_binding(name, tenure).await?;
        }
        Ok(())
    }

    async fn add_condition(
        &self,
        object: &Value,
        request: &CsrObject,
        kind: &str,
        reason: &str,
        message: &str,
    ) -> Result<WriteResult, ApiError> {
        let update = object::with_condition(object, kind, reason, message, self.now());
        // `Failed` is a condition of the signer, the other two of the approver.
        let subresource = match kind {
            "Failed" => "status",
            _ => "approval",
        };
        self.update(request, subresource, &update).await
    }

    async fn update(
        &self,
        request: &CsrObject,
        subresource: &str,
        update: &Value,
    ) -> Result<WriteResult, ApiError> {
        let name = &request.name;
        let replaced = self
            .api
            .replace_subresource(&object::CSR, None, name, subresource, update);
        written(name, replaced.await)
    }

    /// Has the signer remove what it keeps about a finished request, and removes the record. A request that was never
    /// approved was never sent.
    async fn settle(&self, request: &CsrObject) {
        match request.condition("Approved") {
            Some(_) => self.settle_key(request.certificate, &request.uid).await,
            None => self.forget(&request.uid),
        }
    }

    pub(super) async fn settle_key(&self, certificate: KubeletCertificate, uid: &str) {
        let key = Request::key_for_object(certificate.cert_name(), uid);
        if let Err(error) = self.signer.settled(&key).await {
            tracing::debug!("{}: {error}", self.signer_name);
        }
        self.forget(uid);
    }

    /// Ends a request whose object was deleted, or replaced by another one of its name.
    pub(super) async fn vanished(&self, work: &Work) -> WorkResult {
        self.settle_key(work.certificate, &work.uid).await;
        WorkResult::Finished
    }

    pub(super) fn forget(&self, uid: &str) {
        if let Err(error) = self.root.forget_kubelet_request(uid) {
            tracing::warn!("{error}");
        }
    }

    /// Appends an entry to the issuance log. Denials are in the journal only: a user that may create requests could fill
    /// the log with them. The entry reaches the disk with the next one that is synced: the signer has its own record.
    pub(super) fn append_audit(&self, record: AuditRecord) {
        audit::append_with(&self.root, self.now(), &[record], Durability::Cached);
    }

    /// Writes one line for each decision.
    pub(super) fn audit(
        &self,
        request: &ObservedRequest<'_>,
        decision: &'static str,
        reason: &str,
        message: &str,
    ) {
        let name = &request.name;
        tracing::info!(
            name: super::DECIDED,
            csr = &**name,
            uid = request.uid,
            certificate = request.certificate.as_str(),
            requester = crate::http::printable(&request.user, 200),
            decision,
            reason,
            "kubelet request {name} {decision}: {message}"
        );
    }
}

/// Returns the name of the Node on which a decision depends that leads to a write.
fn node_of_decision(request: &CsrObject, decision: &KubeletDecision) -> Option<String> {
    let user = request.requester.username.as_str();
    match decision {
        KubeletDecision::Ignore | KubeletDecision::Wait { .. } => None,
        KubeletDecision::Approve { node, .. } => Some(node.clone()),
        KubeletDecision::Sign(order) => Some(order.node.clone()),
        KubeletDecision::Deny(_) | KubeletDecision::Fail(_) => {
            match user.strip_prefix(NODE_USER_PREFIX) {
                Some(own) => Some(own.to_owned()),
                None if user.starts_with(TOKEN_USER_PREFIX) => {
                    RequestedIdentity::of(request).map(|identity| identity.node)
                }
                None => None,
            }
        }
    }
}

/// Returns the events that may change the decision about a request.
fn awaited(request: &CsrObject, reason: RequestReason) -> Vec<WakeTopic> {
    let Some(identity) = RequestedIdentity::of(request) else {
        return Vec::new();
    };
    let user = &request.requester.username;
    match reason {
        RequestReason::LimitReached => vec![WakeTopic::Limit(user.clone())],
        RequestReason::RequestRepeated => vec![WakeTopic::Repeated(identity)],
        _ => {
            let mut hosts = identity.hosts;
            hosts.insert(Host::Dns(identity.node));
            let hosts = hosts.into_iter();
            hosts.map(WakeTopic::Node).collect()
        }
    }
}

/// Returns the result of a write.
pub(super) fn written(
    name: &str,
    result: Result<Value, ApiError>,
) -> Result<WriteResult, ApiError> {
    match result {
        Ok(object) => Ok(WriteResult::Stored(object)),
        Err(ApiError::Refused(status)) if status.is_conflict() || status.is_not_found(name) => {
            Ok(WriteResult::Conflict)
        }
        Err(error) => Err(error),
    }
}

pub(super) fn later(work: &Work, wait: Duration) -> WorkResult {
    WorkResult::Wait {
        wait: RequestWait {
            until: exchange::after(wait),
            topics: Vec::new(),
        },
        attempts: work.attempts,
    }
}

/// Returns true for a refusal that lasts until an administrator corrects its cause: a right, a webhook, the object itself.
fn is_lasting(error: &ApiError) -> bool {
    match error {
        ApiError::Refused(status) => !is_temporary(status),
        ApiError::Unusable { .. } => true,
        ApiError::Http(_) | ApiError::Unread { .. } | ApiError::Local { .. } => false,
    }
}

/// Returns the wait after a failed call, and after `refusals` of them in a row.
fn wait_after_refusals(refusals: u32) -> Duration {
    let doublings = refusals.saturating_sub(REPORTED_REFUSALS - 1).min(8);
    (RETRY_INTERVAL * 2u32.pow(doublings)).min(MAX_REFUSAL_WAIT)
}

fn requested_wait(error: &ApiError) -> Option<Duration> {
    match error {
        ApiError::Refused(status) => status.retry_after,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use serde_json::json;

    use super::*;
    use crate::cluster::api::ApiStatus;

    /// The CSR of `w1`.
    const CSR: &[u8] = include_bytes!("../../../tests/fixtures/kubelet-requests/rsa-2048.csr");

    #[test]
    fn waits_longer_after_refusals_that_last() {
        let waits =
            [0, 1, 2, 3, 4, 8, 1000].map(|refusals| wait_after_refusals(refusals).as_secs());
        assert_eq!(waits, [5, 5, 5, 10, 20, 300, 300]);
        let refused = |code, reason: &str| {
            let reason = reason.to_owned();
            let status = ApiStatus {
                code,
                reason,
                ..ApiStatus::default()
            };
            ApiError::from(Box::new(status))
        };
        let unread = ApiError::Unread {
            file: "admin.conf".to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        for (error, expected) in [
            (refused(403, "Forbidden"), true),
            (refused(422, "Invalid"), true),
            (refused(500, "InternalError"), true),
            (refused(409, "Conflict"), false),
            (refused(429, "TooManyRequests"), false),
            (unread, false),
        ] {
            assert_eq!(is_lasting(&error), expected, "{error}");
        }
    }

    #[test]
    fn reads_node_before_decision_that_ends_request() {
        let finding = || RuleFinding::new(RequestReason::NodeExists, "Node w1 is ready");
        let waits = KubeletDecision::Wait {
            finding: finding(),
            until: None,
        };
        for (user, expected) in [
            ("system:bootstrap:abcdef", Some("w1")),
            ("system:node:w2", Some("w2")),
            ("jane", None),
        ] {
            let object = json!({
                "metadata": {"name": "a", "uid": "b", "resourceVersion": "1", "creationTimestamp": "2026-11-23T04:00:00Z"},
                "spec": {
                    "signerName": KubeletCertificate::Client.signer_name(),
                    "request": BASE64_STANDARD.encode(CSR),
                    "username": user,
                },
            });
            let request = CsrObject::from_json(&object).unwrap().unwrap();
            for decision in [
                KubeletDecision::Deny(finding()),
                KubeletDecision::Fail(finding()),
            ] {
                let node = node_of_decision(&request, &decision);
                assert_eq!(node.as_deref(), expected, "{user}");
            }
            assert_eq!(node_of_decision(&request, &waits), None, "{user}");
        }
    }
}
