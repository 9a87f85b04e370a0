//! Events: messages about an object of the cluster, which `kubectl describe` and `kubectl get events` print. The API server
//! removes them after an hour by default.

use serde_json::{Value, json};
use time::OffsetDateTime;

use super::api::Resource;
use crate::http::printable;
pub(crate) use crate::kubelets::rbac::EVENT_NAMESPACE;
use crate::text::rfc3339;

/// Events of the core group.
pub(crate) const EVENT: Resource = Resource::new("", "v1", "events", "Event");
/// Largest length of an Event's message in bytes (`pkg/apis/core/validation/events.go`, `NoteLengthLimit`).
const MAX_MESSAGE_BYTES: usize = 1000;

/// Returns a warning about an object without a namespace. The name is that of the Event: there is one, however many nodes
/// create it.
pub(crate) fn warning(
    name: &str,
    about: &Resource,
    object: (&str, &str),
    reason: &str,
    message: &str,
    now: OffsetDateTime,
) -> Value {
    let (object, uid) = object;
    let time = rfc3339(now);
    json!({
        "apiVersion": EVENT.api_version(),
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": EVENT_NAMESPACE},
        "involvedObject": {
            "apiVersion": about.api_version(),
            "kind": about.kind,
            "name": object,
            "uid": uid,
        },
        "reason": reason,
        "message": limited(message),
        "type": "Warning",
        "source": {"component": "nodepki"},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    })
}

/// Returns the text without control characters, cut to the length of an Event's message.
pub(crate) fn limited(message: &str) -> String {
    printable(message, MAX_MESSAGE_BYTES)
}
