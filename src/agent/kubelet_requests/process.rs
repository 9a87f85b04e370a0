//! One request: read, judge, and carry out the decision.

use std::time::Duration;

use serde_json::Value;

use super::election::Tenure;
use super::exchange::{self, Exchanged};
use super::queue::{RequestWait, Work, WorkResult};
use super::{KubeletResult, Signing, object};
use crate::agent::audit;
use crate::cluster::api::ApiError;
use crate::kube::csr_object::{CsrObject, KubeletCertificate, NodeObject};
use crate::kube::names::NODE_USER_PREFIX;
use crate::kubelets::{
    APPROVED_BY_RULES, KubeletDecision, RequestContext, RequestReason, RuleFinding, SigningOrder,
    judge,
};
use crate::process::jitter::random_fraction;
use crate::signer::Request;
use crate::store::{AuditEvent, AuditRecord, Durability};
use crate::x509::Chain;

/// How often a request is judged in a row if other clients change it at the same time.
const MAX_CONFLICTS: usize = 5;
/// Wait after a failed call of the API server, and after conflicts.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Wait if this node cannot use its own files.
const LOCAL_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Reason of the condition `Failed` after a denial by the signer.
const DENIED_BY_SIGNER: &str = "DeniedBySigner";
/// Reason of the condition `Failed` if the signer can never sign the request.
const SIGNING_FAILED: &str = "SigningFailed";
/// Reason of an Event while the signer cannot be used.
const SIGNER_UNAVAILABLE: &str = "SignerUnavailable";

/// Maximum length in bytes of a reason in the issuance log.
const MAX_AUDITED_REASON: usize = 2000;

/// What follows a write.
enum WriteResult {
    /// The object, as the API server stored it.
    Stored(Value),
    /// Another client has changed the object: read and judge again.
    Conflict,
}

impl Signing {
    /// Processes a request until it is finished or has to wait.
    pub(super) async fn process(&self, work: &Work, tenure: &Tenure) -> WorkResult {
        match self.advance(work, tenure).await {
            Ok(result) => result,
            Err(error) => {
                tracing::debug!(csr = work.name, "the request cannot be processed: {error}");
                let wait = requested_wait(&error).unwrap_or(RETRY_INTERVAL);
                later(work, wait.mul_f64(1.0 + random_fraction() / 2.0))
            }
        }
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
            if !tenure.lasts() {
                return Ok(later(work, RETRY_INTERVAL));
            }
            let written = match decision {
                KubeletDecision::Ignore => {
                    self.settle(&request).await;
                    return Ok(WorkResult::Finished);
                }
                KubeletDecision::Wait { finding, until } => {
                    return Ok(self.wait(work, &finding, until).await);
                }
                KubeletDecision::Approve { message } => {
                    let written = self
                        .add_condition(&object, &request, "Approved", APPROVED_BY_RULES, &message)
                        .await?;
                    if let WriteResult::Stored(_) = &written {
                        self.audit(&request, "approved", APPROVED_BY_RULES, &message);
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
                    self.view.borrow_mut().begin_issue(&request, &order);
                    match self.sign(work, &object, &request, &order, tenure).await? {
                        Ok(written) => written,
                        Err(result) => return Ok(result),
                    }
                }
            };
            if let WriteResult::Stored(object) = written {
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

    /// Judges a request with its Node as it is now. A serving certificate depends on the addresses of the Node, and that
    /// of a bootstrap token on its absence.
    async fn decide(&self, request: &CsrObject) -> Result<KubeletDecision, ApiError> {
        let own = request.requester.username.strip_prefix(NODE_USER_PREFIX);
        if let Some(node) = own {
            self.refresh_node(node).await?;
        }
        let decision = self.judge(request);
        match &decision {
            KubeletDecision::Sign(order) if own != Some(&order.node) => {
                self.refresh_node(&order.node).await?;
                Ok(self.judge(request))
            }
            _ => Ok(decision),
        }
    }

    fn judge(&self, request: &CsrObject) -> KubeletDecision {
        let view = self.view.borrow();
        let context = RequestContext {
            nodes: &view.nodes,
            reserved: &self.reserved,
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
            None => view.remove_node(name),
        }
        Ok(())
    }

    /// Reports why a request waits, once per reason.
    async fn wait(
        &self,
        work: &Work,
        finding: &RuleFinding,
        until: Option<time::OffsetDateTime>,
    ) -> WorkResult {
        let reason = finding.reason.as_str();
        // Waiting for an administrator is the usual state and visible in the request itself.
        if finding.reason != RequestReason::ApprovalRequired
            && !self.report(work, reason, &finding.message).await
        {
            return later(work, RETRY_INTERVAL);
        }
        let until = until.map(|at| at - self.now());
        let until = until.map(|wait| Duration::try_from(wait).unwrap_or_default());
        WorkResult::Wait {
            wait: RequestWait {
                until: until.and_then(exchange::after),
                for_nodes: finding.reason != RequestReason::ApprovalRequired,
            },
            attempts: work.attempts,
        }
    }

    /// Writes an Event and a line in the log, unless the last one for this request had the same reason. Returns false if the
    /// API server did not accept the Event yet: the next call reports again.
    async fn report(&self, work: &Work, reason: &'static str, message: &str) -> bool {
        if !self.view.borrow_mut().queue.is_news(work, reason) {
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
            self.audit(request, decision, reason, message);
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
        let trust = match self.trust() {
            Ok(trust) => trust,
            Err(why) => {
                self.report(work, SIGNER_UNAVAILABLE, &why).await;
                return Ok(Err(later(work, LOCAL_RETRY_INTERVAL)));
            }
        };
        let sent = exchange::request_of(self, order, &work.uid);
        let facts = AuditRecord {
            object: Some(work.name.clone()),
            requester: Some(request.requester.username.clone()),
            ..exchange::audit_record(self, AuditEvent::KubeletRequest, &sent)
        };
        let exchanged = exchange::exchange(self, order, sent, work, &trust).await;
        let exchanged = match exchanged {
            Ok(exchanged) => exchanged,
            Err(error) => {
                let why = format!("the request cannot be recorded: {error}");
                self.report(work, SIGNER_UNAVAILABLE, &why).await;
                return Ok(Err(later(work, LOCAL_RETRY_INTERVAL)));
            }
        };
        if !tenure.lasts() {
            return Ok(Err(later(work, RETRY_INTERVAL)));
        }
        let fail = |reason: &'static str, message: String| (reason, message);
        let (reason, message) = match exchanged {
            Exchanged::Issued(chain) => {
                let written = self
                    .write_certificate(object, request, order, &chain, facts)
                    .await?;
                if let WriteResult::Stored(_) = &written {
                    self.view.borrow_mut().issue_written(&request.uid);
                    self.settle(request).await;
                }
                return Ok(Ok(written));
            }
            Exchanged::Later {
                wait,
                attempts,
                failure,
                why,
            } => {
                if failure.is_some_and(|class| !class.passes()) || attempts.failures > 2 {
                    self.report(work, SIGNER_UNAVAILABLE, &why).await;
                }
                return Ok(Err(WorkResult::Wait {
                    wait: RequestWait {
                        until: exchange::after(wait),
                        for_nodes: false,
                    },
                    attempts,
                }));
            }
            Exchanged::Denied(why) => fail(DENIED_BY_SIGNER, why),
            Exchanged::Mismatch(differences) => fail(
                RequestReason::CertificateNotAccepted.as_str(),
                format!(
                    "the signer's certificate differs from the request: {}",
                    differences.join("; ")
                ),
            ),
            Exchanged::Impossible(why) => fail(SIGNING_FAILED, why),
        };
        let written = self
            .add_condition(object, request, "Failed", reason, &message)
            .await?;
        if let WriteResult::Stored(_) = &written {
            self.audit(request, "failed", reason, &message);
            self.append_audit(AuditRecord {
                action: Some("failed".to_owned()),
                reason: Some(crate::http::printable(&message, MAX_AUDITED_REASON)),
                ..facts
            });
            self.observer
                .decided(request.certificate, KubeletResult::Refused);
            self.settle(request).await;
        }
        Ok(Ok(written))
    }

    async fn write_certificate(
        &self,
        object: &Value,
        request: &CsrObject,
        order: &SigningOrder,
        chain: &str,
        facts: AuditRecord,
    ) -> Result<WriteResult, ApiError> {
        let update = object::with_certificate(object, chain);
        let written = self.update(request, "status", &update).await?;
        if let WriteResult::Stored(_) = &written {
            let message = format!(
                "certificate for node {} by signer {}",
                order.node, self.signer_name
            );
            self.audit(request, "issued", "Issued", &message);
            let facts = AuditRecord {
                action: Some("issued".to_owned()),
                ..facts
            };
            self.append_audit(match Chain::from_pem(chain.as_bytes()) {
                Ok(chain) => audit::with_leaf(facts, chain.leaf()),
                Err(_) => facts,
            });
            let waited = (self.now() - request.created).max(time::Duration::ZERO);
            let result = KubeletResult::Issued(waited.unsigned_abs());
            self.observer.decided(request.certificate, result);
        }
        Ok(written)
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
        let replaced =
            self.api
                .replace_subresource(&object::CSR, None, &request.name, subresource, update);
        match replaced.await {
            Ok(object) => Ok(WriteResult::Stored(object)),
            Err(ApiError::Refused(status))
                if status.is_conflict() || status.is_not_found(&request.name) =>
            {
                Ok(WriteResult::Conflict)
            }
            Err(error) => Err(error),
        }
    }

    /// Has the signer remove what it keeps about a finished request, and removes the record. A request that was never
    /// approved was never sent.
    async fn settle(&self, request: &CsrObject) {
        match request.condition("Approved") {
            Some(_) => self.settle_key(request.certificate, &request.uid).await,
            None => self.forget(&request.uid),
        }
    }

    async fn settle_key(&self, certificate: KubeletCertificate, uid: &str) {
        self.view.borrow_mut().end_issue(uid);
        let key = Request::key_for_object(certificate.cert_name(), uid);
        if let Err(error) = self.signer.settled(&key).await {
            tracing::debug!("{}: {error}", self.signer_name);
        }
        self.forget(uid);
    }

    /// Ends a request whose object was deleted, or replaced by another one of its name.
    async fn vanished(&self, work: &Work) -> WorkResult {
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
    fn audit(&self, request: &CsrObject, decision: &'static str, reason: &str, message: &str) {
        let name = &request.name;
        tracing::info!(
            name: super::DECIDED,
            csr = name,
            uid = request.uid,
            certificate = request.certificate.as_str(),
            requester = crate::http::printable(&request.requester.username, 200),
            decision,
            reason,
            "kubelet request {name} {decision}: {message}"
        );
    }
}

fn later(work: &Work, wait: Duration) -> WorkResult {
    WorkResult::Wait {
        wait: RequestWait {
            until: exchange::after(wait),
            for_nodes: false,
        },
        attempts: work.attempts,
    }
}

fn requested_wait(error: &ApiError) -> Option<Duration> {
    match error {
        ApiError::Refused(status) => status.retry_after,
        _ => None,
    }
}
