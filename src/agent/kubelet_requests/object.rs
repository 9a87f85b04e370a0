//! The objects that are written: conditions and certificate of a CertificateSigningRequest, and Events.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use time::OffsetDateTime;

pub(super) use crate::cluster::api::NODE;
use crate::cluster::api::Resource;
use crate::cluster::event::{self, limited};
pub(super) use crate::cluster::event::{EVENT, EVENT_NAMESPACE};
use crate::text::rfc3339;

/// CertificateSigningRequests.
pub(super) const CSR: Resource = Resource {
    group: "certificates.k8s.io",
    version: "v1",
    plural: "certificatesigningrequests",
    kind: "CertificateSigningRequest",
};

/// Returns the object with one more condition. The API server refuses it if the object has changed since.
pub(super) fn with_condition(
    object: &Value,
    kind: &str,
    reason: &str,
    message: &str,
    now: OffsetDateTime,
) -> Value {
    let mut object = object.clone();
    let condition = json!({
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": limited(message),
        "lastUpdateTime": rfc3339(now),
    });
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
    fn sets_certificate_without_changing_conditions() {
        for status in [json!(null), json!({}), json!({"conditions": [1]})] {
            let object = with_certificate(&json!({"status": status}), "PEM");
            assert_eq!(object["status"]["certificate"], "UEVN");
            assert_eq!(object["status"].get("conditions"), status.get("conditions"));
        }
    }
}
