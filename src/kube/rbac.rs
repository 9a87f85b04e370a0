//! Roles of Kubernetes' RBAC and their bindings, as objects of its API.

use serde_json::{Value, json};

/// API group of RBAC.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
/// API version of its objects.
pub(crate) const API_VERSION: &str = "rbac.authorization.k8s.io/v1";

/// Returns a Role, or a ClusterRole if the metadata does not name a namespace.
pub(crate) fn role(metadata: &Value, rules: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": kind(metadata), "metadata": metadata, "rules": rules})
}

/// Returns a RoleBinding of a Role, or a ClusterRoleBinding of a ClusterRole.
pub(crate) fn binding(metadata: &Value, role: &str, subjects: &[Value]) -> Value {
    let kind = kind(metadata);
    json!({
        "apiVersion": API_VERSION,
        "kind": format!("{kind}Binding"),
        "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
        "subjects": subjects,
    })
}

/// Returns a group as a subject of a binding.
pub(crate) fn group(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "Group", "name": name})
}

fn kind(metadata: &Value) -> &'static str {
    match metadata.get("namespace") {
        Some(_) => "Role",
        None => "ClusterRole",
    }
}
