//! PodCertificateRequests (`certificates.k8s.io/v1`), and what a signer compares with them of Pods and ServiceAccounts, from
//! JSON.
//!
//! The kubelet creates a request for each pod with a volume `podCertificate`, and the admission plug-in NodeRestriction lets it
//! name pods of its own node only (`plugin/pkg/admission/noderestriction/admission.go`, `admitPodCertificateRequest`). Other
//! users need a right that no default role contains, and nothing attests what they write.

use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;

use super::csr_object::{InvalidObject, Limits, ObjectMetadata, required_text};

/// Signer name of client certificates of pods for kube-apiserver. Kubernetes reserves it, and implements no signer.
pub const POD_CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-pod";
/// Lifetime that the API server writes if the pod names none, and the longest for signers of Kubernetes
/// (`pkg/apis/certificates/types.go`, `KubernetesMaxMaxExpirationSeconds`).
pub const MAX_POD_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// A PodCertificateRequest for a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    /// Namespace of the request, the pod and its ServiceAccount.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Unique over all times, unlike the name.
    pub uid: String,
    /// Version of this state.
    pub resource_version: String,
    /// Creation, by the clock of the API server.
    pub created: OffsetDateTime,
    /// `spec.podName` and `spec.podUID`.
    pub pod: ObjectReference,
    /// `spec.serviceAccountName` and `spec.serviceAccountUID`.
    pub service_account: ObjectReference,
    /// `spec.nodeName` and `spec.nodeUID`.
    pub node: ObjectReference,
    /// `spec.maxExpirationSeconds`.
    pub longest: Duration,
    /// `spec.stubPKCS10Request`, in DER; empty if only the deprecated fields of v1beta1 are set.
    pub request: Vec<u8>,
    /// Keys of `spec.unverifiedUserAnnotations`, which the author of the pod writes.
    pub annotations: Vec<String>,
    /// True if it was issued, denied or failed: nothing can change any more.
    pub is_final: bool,
    /// The first field that exceeds its limit or is not valid; such a request is never signed.
    pub excess: Option<&'static str>,
}

/// One object, whatever objects had its name before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectReference {
    /// Name of the object.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// Conditions that end a request; at most one of them is ever set.
const FINAL_CONDITIONS: [&str; 3] = ["Issued", "Denied", "Failed"];

impl PodRequest {
    /// Reads an object. Returns `None` if its signer name is not [`POD_CLIENT_SIGNER`].
    ///
    /// # Errors
    /// An object without namespace, name, UID, version or creation time.
    pub fn from_json(object: &Value) -> Result<Option<PodRequest>, InvalidObject> {
        let (spec, meta, status) = (&object["spec"], &object["metadata"], &object["status"]);
        if spec["signerName"] != POD_CLIENT_SIGNER {
            return Ok(None);
        }
        let metadata = ObjectMetadata::read("PodCertificateRequest", object)?;
        let namespace = required_text(
            "PodCertificateRequest",
            "metadata.namespace",
            &meta["namespace"],
        )?;
        let mut limits = Limits::default();
        let mut reference =
            |name: (&'static str, &str), uid: (&'static str, &str)| ObjectReference {
                name: limits.text(name.0, &spec[name.1]),
                uid: limits.text(uid.0, &spec[uid.1]),
            };
        let pod = reference(("spec.podName", "podName"), ("spec.podUID", "podUID"));
        let service_account = reference(
            ("spec.serviceAccountName", "serviceAccountName"),
            ("spec.serviceAccountUID", "serviceAccountUID"),
        );
        let node = reference(("spec.nodeName", "nodeName"), ("spec.nodeUID", "nodeUID"));
        let longest = limits.seconds("spec.maxExpirationSeconds", &spec["maxExpirationSeconds"]);
        let annotations = spec["unverifiedUserAnnotations"].as_object();
        let conditions = status["conditions"].as_array();
        Ok(Some(PodRequest {
            namespace,
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            created: metadata.created,
            pod,
            service_account,
            node,
            longest: longest.unwrap_or(MAX_POD_LIFETIME),
            request: limits.base64("spec.stubPKCS10Request", &spec["stubPKCS10Request"]),
            annotations: annotations
                .into_iter()
                .flatten()
                .map(|(key, _)| key.clone())
                .collect(),
            is_final: conditions.into_iter().flatten().any(|condition| {
                let kind = condition["type"].as_str();
                kind.is_some_and(|kind| FINAL_CONDITIONS.contains(&kind))
            }),
            excess: limits.excess,
        }))
    }
}

/// The parts of a Pod that a request states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodObject {
    /// Unique over all times, unlike the name.
    pub uid: String,
    /// `spec.nodeName`; empty before the pod is scheduled.
    pub node: String,
    /// `spec.serviceAccountName`.
    pub service_account: String,
    /// True in the phases `Succeeded` and `Failed`, which are final.
    pub has_ended: bool,
}

impl PodObject {
    /// Reads an object.
    ///
    /// # Errors
    /// An object without name, UID, version or creation time.
    pub fn from_json(object: &Value) -> Result<PodObject, InvalidObject> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let phase = status["phase"].as_str();
        let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
        Ok(PodObject {
            uid: ObjectMetadata::read("Pod", object)?.uid,
            node: text("nodeName"),
            service_account: text("serviceAccountName"),
            has_ended: matches!(phase, Some("Succeeded" | "Failed")),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({
            "metadata": {
                "namespace": "shop", "name": "req-1", "uid": "u1", "resourceVersion": "7",
                "creationTimestamp": "2026-06-01T12:00:00Z",
            },
            "spec": {
                "signerName": POD_CLIENT_SIGNER,
                "podName": "web", "podUID": "p1",
                "serviceAccountName": "default", "serviceAccountUID": "s1",
                "nodeName": "w1", "nodeUID": "n1",
                "maxExpirationSeconds": 7200,
                "stubPKCS10Request": "AQID",
                "unverifiedUserAnnotations": {"example.com/a": "b"},
            },
        })
    }

    #[test]
    fn reads_request() {
        let read = PodRequest::from_json(&object()).unwrap().unwrap();
        let reference = |name: &str, uid: &str| ObjectReference {
            name: name.to_owned(),
            uid: uid.to_owned(),
        };
        assert_eq!(
            (read.namespace.as_str(), read.name.as_str()),
            ("shop", "req-1")
        );
        assert_eq!(read.pod, reference("web", "p1"));
        assert_eq!(read.service_account, reference("default", "s1"));
        assert_eq!(read.node, reference("w1", "n1"));
        assert_eq!(read.longest, Duration::from_secs(7200));
        assert_eq!(read.request, [1, 2, 3]);
        assert_eq!(read.annotations, ["example.com/a"]);
        assert!(!read.is_final && read.excess.is_none());
    }

    #[test]
    fn ignores_requests_to_other_signers() {
        let mut object = object();
        object["spec"]["signerName"] = json!("example.com/mesh");
        assert_eq!(PodRequest::from_json(&object), Ok(None));
    }

    #[test]
    fn finds_end_of_request() {
        for (kind, is_final) in [
            ("Issued", true),
            ("Denied", true),
            ("Failed", true),
            ("Other", false),
        ] {
            let mut object = object();
            object["status"] = json!({"conditions": [{"type": kind, "status": "True"}]});
            let read = PodRequest::from_json(&object).unwrap().unwrap();
            assert_eq!(read.is_final, is_final, "{kind}");
        }
    }

    #[test]
    fn names_field_over_limit_and_missing_namespace() {
        let mut large = object();
        large["spec"]["podName"] = json!("x".repeat(2000));
        let read = PodRequest::from_json(&large).unwrap().unwrap();
        assert_eq!(read.excess, Some("spec.podName"));
        let mut without = object();
        without["metadata"]["namespace"] = Value::Null;
        let error = PodRequest::from_json(&without).unwrap_err();
        assert!(error.to_string().contains("metadata.namespace"), "{error}");
    }

    #[test]
    fn reads_pod() {
        let mut pod = json!({
            "metadata": object()["metadata"],
            "spec": {"nodeName": "w1", "serviceAccountName": "default"},
            "status": {"phase": "Pending"},
        });
        let read = PodObject::from_json(&pod).unwrap();
        assert_eq!(
            (read.node.as_str(), read.service_account.as_str()),
            ("w1", "default")
        );
        assert!(!read.has_ended);
        pod["status"]["phase"] = json!("Succeeded");
        assert!(PodObject::from_json(&pod).unwrap().has_ended);
    }
}
