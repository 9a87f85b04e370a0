//! One request for a pod: read, judge, have signed, and write the answer.
//!
//! A request has no approval, and is judged with the Pod, the ServiceAccount and the Node as the API server returns them now.

use std::time::Duration;

use serde_json::Value;

use super::election::Tenure;
use super::process::{RETRY_INTERVAL, SIGNING_FAILED, SignedOrder, WriteResult, later, written};
use super::queue::{Work, WorkResult};
use super::{KubeletResult, Signing, object};
use crate::cluster::api::{ApiError, Resource};
use crate::kube::csr_object::{KubeletCertificate, NodeObject};
use crate::kube::pod_request::{ObjectReference, PodObject, PodRequest};
use crate::kubelets::{
    PodContext, RequestReason, RuleFinding, SigningOrder, answer_pod, order_for_pod, verify_pod,
};
use crate::store::AuditRecord;
use crate::x509::Chain;

impl Signing {
    /// Advances a request as far as possible without waiting.
    pub(super) async fn advance_pod(
        &self,
        work: &Work,
        tenure: &Tenure,
    ) -> Result<WorkResult, ApiError> {
        let Some((namespace, name)) = work.name.split_once('/') else {
            return Ok(WorkResult::Finished);
        };
        let found = self.api.read(&object::POD_REQUEST, Some(namespace), name);
        let Some(object) = found.await? else {
            return Ok(self.vanished(work).await);
        };
        let Ok(Some(request)) = PodRequest::from_json(&object) else {
            return Ok(WorkResult::Finished);
        };
        if request.uid != work.uid || request.is_final {
            return Ok(self.vanished(work).await);
        }
        let order = match order_for_pod(&request, &self.policy) {
            Ok(order) => self.verify_pod(&request).await?.map(|()| order),
            Err(finding) => Err(finding),
        };
        if !tenure.lasts() {
            return Ok(later(work, RETRY_INTERVAL));
        }
        let written = match order {
            Ok(order) => {
                let now = self.now();
                let admitted = self.view.borrow_mut().pods.admit(&request, now);
                if let Err((finding, until)) = admitted {
                    self.report(work, finding.reason.as_str(), &finding.message)
                        .await;
                    let wait = Duration::try_from(until - now).unwrap_or_default();
                    return Ok(later(work, wait));
                }
                self.sign_pod(work, &object, &request, &order, tenure)
                    .await?
            }
            Err(finding) => Ok(self.deny_pod(&object, &request, &finding).await?),
        };
        match written {
            Ok(WriteResult::Stored(_)) => Ok(self.vanished(work).await),
            Ok(WriteResult::Conflict) => Ok(later(work, RETRY_INTERVAL)),
            Err(result) => Ok(result),
        }
    }

    async fn verify_pod(&self, request: &PodRequest) -> Result<Result<(), RuleFinding>, ApiError> {
        let namespace = Some(request.namespace.as_str());
        let node = self.named(&object::NODE, None, &request.node).await?;
        let pod = self.named(&object::POD, namespace, &request.pod).await?;
        let account = &request.service_account;
        let account = self
            .named(&object::SERVICE_ACCOUNT, namespace, account)
            .await?;
        let node = node
            .as_ref()
            .and_then(|node| NodeObject::from_json(node).ok());
        let pod = pod.as_ref().and_then(|pod| PodObject::from_json(pod).ok());
        let uid = account
            .as_ref()
            .and_then(|account| account.pointer("/metadata/uid"));
        let context = PodContext {
            pod: pod.as_ref(),
            service_account: uid.and_then(Value::as_str),
            node: node.as_ref(),
            bindings: &self.view.borrow().bindings,
        };
        Ok(verify_pod(request, context, &self.policy))
    }

    /// Reads the object that a request names.
    async fn named(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        reference: &ObjectReference,
    ) -> Result<Option<Value>, ApiError> {
        // A field over its limit is empty, and the path of an empty name is that of the list.
        if reference.name.is_empty() {
            return Ok(None);
        }
        self.api.read(resource, namespace, &reference.name).await
    }

    /// Has a request signed and writes the certificate. The inner error is the result if nothing was written.
    async fn sign_pod(
        &self,
        work: &Work,
        object: &Value,
        request: &PodRequest,
        order: &SigningOrder,
        tenure: &Tenure,
    ) -> Result<Result<WriteResult, WorkResult>, ApiError> {
        let trust = match self.trusted(work).await {
            Ok(trust) => trust,
            Err(result) => return Ok(Err(result)),
        };
        let requester = format!("pod {}/{}", request.namespace, request.pod.name);
        let signed = self.have_signed(work, order, &requester, tenure, &trust);
        let SignedOrder { facts, outcome } = match signed.await {
            Ok(signed) => signed,
            Err(result) => return Ok(Err(result)),
        };
        let answer = outcome.and_then(|chain| {
            let refused = |reason: &'static str, message: String| (reason, message);
            let chain = Chain::from_pem(chain.as_bytes());
            let chain = chain.map_err(|error| refused(SIGNING_FAILED, error.to_string()))?;
            answer_pod(request, &chain, self.now())
                .map_err(|finding| refused(finding.reason.as_str(), finding.message))
        });
        let refusal = match answer {
            Ok(answer) => {
                // The signer may have taken long, and the pod may have ended.
                if let Err(finding) = self.verify_pod(request).await? {
                    // Nobody receives the certificate; the issuance log keeps that it was issued.
                    let refusal = (finding.reason.as_str(), finding.message);
                    return Ok(Ok(self.fail_pod(object, request, facts, refusal).await?));
                }
                let message = format!(
                    "certificate for {} by signer {}",
                    order.profile.subject, self.signer_name
                );
                let update = object::with_pod_answer(object, &answer, &message, self.now());
                let written = match self.update_pod(request, &update).await {
                    // As its clock differs from this node's, for example.
                    Err(ApiError::Refused(status)) if status.code == 422 => {
                        let message = format!("the API server refuses the certificate: {status}");
                        let refusal = (RequestReason::CertificateNotAccepted.as_str(), message);
                        return Ok(Ok(self.fail_pod(object, request, facts, refusal).await?));
                    }
                    written => written?,
                };
                if let WriteResult::Stored(_) = &written {
                    self.audit(&request.into(), "issued", "Issued", &message);
                    self.append_issued(facts, &answer.chain);
                    self.observe_issued(KubeletCertificate::Pod, request.created);
                }
                return Ok(Ok(written));
            }
            Err(refusal) => refusal,
        };
        Ok(Ok(self.fail_pod(object, request, facts, refusal).await?))
    }

    async fn fail_pod(
        &self,
        object: &Value,
        request: &PodRequest,
        facts: AuditRecord,
        (reason, message): (&'static str, String),
    ) -> Result<WriteResult, ApiError> {
        let update = object::with_pod_condition(object, "Failed", reason, &message, self.now());
        let written = self.update_pod(request, &update).await?;
        if let WriteResult::Stored(_) = &written {
            self.audit(&request.into(), "failed", reason, &message);
            self.append_refusal(facts, &message);
            self.observer
                .decided(KubeletCertificate::Pod, KubeletResult::Refused);
        }
        Ok(written)
    }

    async fn deny_pod(
        &self,
        object: &Value,
        request: &PodRequest,
        finding: &RuleFinding,
    ) -> Result<WriteResult, ApiError> {
        let (reason, message) = (finding.reason.as_str(), &finding.message);
        let update = object::with_pod_condition(object, "Denied", reason, message, self.now());
        let written = self.update_pod(request, &update).await?;
        if let WriteResult::Stored(_) = &written {
            self.audit(&request.into(), "denied", reason, message);
            let result = KubeletResult::Denied(finding.reason);
            self.observer.decided(KubeletCertificate::Pod, result);
        }
        Ok(written)
    }

    async fn update_pod(
        &self,
        request: &PodRequest,
        update: &Value,
    ) -> Result<WriteResult, ApiError> {
        let (namespace, name) = (Some(request.namespace.as_str()), &request.name);
        let resource = &object::POD_REQUEST;
        let replaced = self
            .api
            .replace_subresource(resource, namespace, name, "status", update);
        written(name, replaced.await)
    }
}
