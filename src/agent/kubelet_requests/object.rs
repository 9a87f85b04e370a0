//! The objects that are written: conditions and certificates of both kinds of request, and Events.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::cluster::api::Resource;
pub(super) use crate::cluster::api::{CSR, NODE, POD};
use crate::cluster::event::{self, limited};
pub(super) use crate::cluster::event::{EVENT, EVENT_NAMESPACE};
use crate::kubelets::PodAnswer;
use crate::text::rfc3339;

/// PodCertificateRequests.
pub(super) const POD_REQUEST: Resource = Resource {
    group: "certificates.k8s.io",
    version: "v1",
    plural: "podcertificaterequests",
    kind: "PodCertificateRequest",
};

/// ServiceAccounts.
pub(super) const SERVICE_ACCOUNT: Resource =
    Resource::new("", "v1", "serviceaccounts", "ServiceAccount");

/// Returns the CertificateSigningRequest with one more condition. The API server refuses it if the object has changed since.
pub(super) fn with_condition(
    object: &Value,
    kind: &str,
    reason: &str,
    message: &str,
    now: OffsetDateTime,
) -> Value {
    let mut object = object.clone();
    let condition = condition(kind, reason, message, ("lastUpdateTime", now));
    match object.pointer_mut("/status/conditions") {
        Some(Value::Array(conditions)) => conditions.push(condition),
        _ => set_status(&mut object, "conditions", json!([condition])),
    }
    object
}

/// Returns the object with the certificate in its status.
pub(super) fn with_certificate(object: &Value, chain_pem: &str) -> Value {
    let mut object = object.clone();
    set_status(&mut object, "certificate", json!(BASE64.encode(chain_pem)));
    object
}

/// Returns the PodCertificateRequest with the only condition that it ever gets.
pub(super) fn with_pod_condition(
    object: &Value,
    kind: &str,
    reason: &str,
    message: &str,
    now: OffsetDateTime,
) -> Value {
    let mut object = object.clone();
    let condition = condition(kind, reason, message, ("lastTransitionTime", now));
    set_status(&mut object, "conditions", json!([condition]));
    object
}

/// Returns the PodCertificateRequest with the certificate in its status.
pub(super) fn with_pod_answer(
    object: &Value,
    answer: &PodAnswer,
    message: &str,
    now: OffsetDateTime,
) -> Value {
    let mut object = with_pod_condition(object, "Issued", "Issued", message, now);
    for (field, value) in [
        ("certificateChain", answer.chain.clone()),
        ("notBefore", rfc3339(answer.not_before)),
        ("notAfter", rfc3339(answer.not_after)),
        ("beginRefreshAt", rfc3339(answer.refresh)),
    ] {
        set_status(&mut object, field, json!(value));
    }
    object
}

fn condition(
    kind: &str,
    reason: &str,
    message: &str,
    (field, now): (&str, OffsetDateTime),
) -> Value {
    json!({
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": limited(message),
        field: rfc3339(now),
    })
}

fn set_status(object: &mut Value, field: &str, value: Value) {
    let Some(object) = object.as_object_mut() else {
        return;
    };
    let status = object
        .entry("status")
        .and_modify(|status| {
            if !status.is_object() {
                *status = json!({});
            }
        })
        .or_insert_with(|| json!({}));
    if let Some(status) = status.as_object_mut() {
        status.insert(field.to_owned(), value);
    }
}

/// Returns a warning Event about a request. Every leader derives the same name.
pub(super) fn event(
    name: &str,
    uid: &str,
    reason: &str,
    message: &str,
    now: OffsetDateTime,
) -> Value {
    let event_name = format!("nodepki-kubelets-{uid}-{}", reason.to_ascii_lowercase());
    event::warning(&event_name, &CSR, (name, uid), reason, message, now)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-06-01 12:00:00.25 UTC);

    #[test]
    fn adds_condition_and_keeps_the_others() {
        let object = json!({"metadata": {"name": "a", "resourceVersion": "7"}, "status": {}});
        let first = with_condition(&object, "Approved", "ByRules", "yes", NOW);
        let both = with_condition(&first, "Failed", "Wrong", &"x".repeat(2000), NOW);
        assert_eq!(both["metadata"], object["metadata"]);
        let conditions = both["status"]["conditions"].as_array().unwrap();
        let kinds: Vec<_> = conditions.iter().map(|one| &one["type"]).collect();
        assert_eq!(kinds, ["Approved", "Failed"]);
        assert_eq!(conditions[0]["status"], "True");
        assert!(conditions[1]["message"].as_str().unwrap().len() < 1100);
    }

    #[test]
    fn answers_pod_with_one_condition_and_the_certificates_times() {
        let answer = PodAnswer {
            chain: "PEM".to_owned(),
            not_before: NOW,
            not_after: NOW + time::Duration::hours(24),
            refresh: NOW + time::Duration::hours(16),
        };
        let object = json!({"metadata": {"resourceVersion": "7"}, "status": {}});
        let answered = with_pod_answer(&object, &answer, "for the pod", NOW);
        let status = &answered["status"];
        assert_eq!(answered["metadata"], object["metadata"]);
        assert_eq!(status["conditions"].as_array().unwrap().len(), 1);
        assert_eq!(status["conditions"][0]["type"], "Issued");
        assert_eq!(status["certificateChain"], "PEM");
        assert_eq!(status["notAfter"], "2026-06-02T12:00:00Z");
        assert_eq!(status["beginRefreshAt"], "2026-06-02T04:00:00Z");
    }

    #[test]
    fn sets_certificate_without_changing_conditions() {
        for status in [json!(null), json!({}), json!({"conditions": [1]})] {
            let object = with_certificate(&json!({"status": status}), "PEM");
            assert_eq!(object["status"]["certificate"], "UEVN");
            assert_eq!(object["status"].get("conditions"), status.get("conditions"));
        }
    }
}
