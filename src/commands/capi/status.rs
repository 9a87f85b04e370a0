//! The object ControlPlanePKI in the management cluster, whose status contains the conditions of `capi check`.
//!
//! The status of the KubeadmControlPlane belongs to its controller, which replaces the list of conditions. A ConfigMap would
//! need no definition, but `kubectl wait --for=condition=…` and alerts on `status.conditions` cannot read it.
//!
//! The object has the name and the namespace of the Cluster, which owns it, so both are deleted together. It has no
//! `spec`, so its generation never changes and the conditions have no `observedGeneration`. The status is replaced
//! with the `resourceVersion` with which it was read, and only if it differs. [`merge`] decides without I/O.

use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use super::conditions::Findings;
use super::rights;
use super::secrets::{CLUSTER_LABEL, ClusterTarget, MANAGED_BY_LABEL, MANAGED_BY_NODEPKI};
use super::{apply, cluster_api};
use crate::agent::Failure;
use crate::cluster::api::{Api, ApiError, Resource};
use crate::text::rfc3339;

/// The object with the conditions.
pub(super) const CONTROL_PLANE_PKI: Resource = Resource {
    group: "nodepki.io",
    version: "v1alpha1",
    plural: "controlplanepkis",
    kind: "ControlPlanePKI",
};

/// The owner of the object.
pub(super) static CLUSTER: Resource = cluster_api("clusters", "Cluster");

/// Number of attempts to write if other clients change the object at the same time.
const MAX_ATTEMPTS: usize = 5;

/// Result of [`write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusChange {
    Unchanged,
    Written,
}

/// Writes the conditions to the object, and sets their `lastTransitionTime`. Creates the object if it does not exist.
///
/// # Errors
/// The API server does not serve the object (78), the Cluster does not exist or is being deleted (75), and errors of the
/// API server.
pub(super) async fn write(
    api: &Api,
    target: &ClusterTarget,
    findings: &mut Findings,
    now: OffsetDateTime,
) -> Result<StatusChange, Failure> {
    let (namespace, name) = (Some(target.namespace()), target.cluster());
    let failed = |doing: &str, error| failed(doing, target, error);
    for _ in 0..MAX_ATTEMPTS {
        let read = api.read(&CONTROL_PLANE_PKI, namespace, name).await;
        let read = read.map_err(|error| failed("reading", error))?;
        let owner = owner(api, target).await?;
        let object = match read {
            Some(object) => object,
            None => {
                let object = new_object(target, &owner);
                match api.create(&CONTROL_PLANE_PKI, namespace, &object).await {
                    Ok(object) => object,
                    Err(ApiError::Refused(status)) if status.is_already_exists() => continue,
                    Err(error) => return Err(failed("creating", error)),
                }
            }
        };
        require_owner(target, &object, &owner)?;
        let former = object.get("status").unwrap_or(&Value::Null);
        let status = merge(former, findings, now);
        if status == *former {
            return Ok(StatusChange::Unchanged);
        }
        let mut changed = object.clone();
        if let Some(fields) = changed.as_object_mut() {
            fields.insert("status".to_owned(), status);
        }
        let replaced =
            api.replace_subresource(&CONTROL_PLANE_PKI, namespace, name, "status", &changed);
        match replaced.await {
            Ok(_) => return Ok(StatusChange::Written),
            Err(ApiError::Refused(status)) if status.is_conflict() || status.is_not_found(name) => {
            }
            Err(error) => return Err(failed("writing the status of", error)),
        }
    }
    Err(pending(
        target,
        "other clients changed it at the same time; run again",
    ))
}

/// Returns the `ownerReference` of the Cluster.
async fn owner(api: &Api, target: &ClusterTarget) -> Result<Value, Failure> {
    let (namespace, name) = (target.namespace(), target.cluster());
    let found = api.read(&CLUSTER, Some(namespace), name).await;
    let found = found.map_err(|error| {
        let doing = format!("reading the Cluster {name} in {namespace}");
        match &error {
            ApiError::Refused(status) if status.is_unknown_kind() => Failure::misconfigured(format!(
                "{doing}: the API server does not serve {} (name the management cluster with --kubeconfig; Cluster API v1.11 or newer is required)",
                CLUSTER.api_version()
            )),
            _ => Failure::of_cluster(doing, error),
        }
    })?;
    let missing = |problem: &str| {
        Failure::pending(format!(
            "the Cluster {name} in {namespace} {problem}, and the conditions are stored only as long as it exists (correct the name or --namespace, or run again)"
        ))
    };
    let metadata = found.as_ref().and_then(|cluster| cluster.get("metadata"));
    let Some(metadata) = metadata else {
        return Err(missing("does not exist"));
    };
    if metadata.get("deletionTimestamp").is_some() {
        return Err(missing("is being deleted"));
    }
    // Without `blockOwnerDeletion`, which requires the right to change the finalizers of the Cluster.
    Ok(
        json!({"apiVersion": CLUSTER.api_version(), "kind": CLUSTER.kind, "name": name,
        "uid": metadata.get("uid")}),
    )
}

/// Refuses the object of a former Cluster of the same name, which the garbage collector is about to delete.
fn require_owner(target: &ClusterTarget, object: &Value, owner: &Value) -> Result<(), Failure> {
    let owners = object.pointer("/metadata/ownerReferences");
    let mut owners = owners.and_then(Value::as_array).into_iter().flatten();
    let is_former = owners.any(|found| {
        let field = |name| found.get(name) == owner.get(name);
        field("kind") && field("name") && !field("uid")
    });
    if is_former {
        Err(pending(
            target,
            "it belongs to a former Cluster of this name, with which it is deleted; run again",
        ))
    } else {
        Ok(())
    }
}

fn new_object(target: &ClusterTarget, owner: &Value) -> Value {
    json!({
        "apiVersion": CONTROL_PLANE_PKI.api_version(),
        "kind": CONTROL_PLANE_PKI.kind,
        "metadata": {
            "name": target.cluster(),
            "namespace": target.namespace(),
            "labels": {CLUSTER_LABEL: target.cluster(), MANAGED_BY_LABEL: MANAGED_BY_NODEPKI},
            "ownerReferences": [owner],
        },
    })
}

/// Returns the new status, and sets the `lastTransitionTime` of the findings: the former one, unless the condition is new
/// or its status has changed. Conditions of other types are kept.
fn merge(former: &Value, findings: &mut Findings, now: OffsetDateTime) -> Value {
    let conditions = former.get("conditions").and_then(Value::as_array);
    let mut conditions = conditions.cloned().unwrap_or_default();
    for condition in &mut findings.conditions {
        let is_same = |one: &&mut Value| text(one, "type") == Some(condition.kind);
        let stored = conditions.iter_mut().find(is_same);
        let former_time = stored
            .as_deref()
            .filter(|stored| text(stored, "status") == Some(condition.status))
            .and_then(|stored| text(stored, "lastTransitionTime"));
        condition.last_transition_time =
            Some(former_time.map_or_else(|| rfc3339(now), str::to_owned));
        let new = json!(condition);
        match stored {
            Some(stored) => *stored = new,
            None => conditions.push(new),
        }
    }
    let mut status = former.as_object().cloned().unwrap_or_else(Map::new);
    status.insert("conditions".to_owned(), Value::Array(conditions));
    status.insert("secrets".to_owned(), json!(findings.evidence));
    Value::Object(status)
}

fn text<'a>(condition: &'a Value, field: &str) -> Option<&'a str> {
    condition.get(field)?.as_str()
}

fn pending(target: &ClusterTarget, problem: &str) -> Failure {
    let message = format!(
        "{} {} in {}: {problem}",
        CONTROL_PLANE_PKI.kind,
        target.cluster(),
        target.namespace()
    );
    Failure::pending(message)
}

fn failed(doing: &str, target: &ClusterTarget, error: ApiError) -> Failure {
    let (kind, name, namespace) = (CONTROL_PLANE_PKI.kind, target.cluster(), target.namespace());
    let doing = format!("{doing} the {kind} {name} in {namespace}");
    match &error {
        ApiError::Refused(status) if status.is_unknown_kind() => Failure::misconfigured(format!(
            "{doing}: the API server does not have its definition (as an administrator: nodepki capi check {name} --crd | kubectl apply -f -)"
        )),
        _ => apply::namespace_missing(&doing, namespace, &error)
            .unwrap_or_else(|| Failure::of_cluster(doing, error)),
    }
}

/// Returns the definition of the object, as input of `kubectl apply -f -`.
pub(super) fn definition(target: &ClusterTarget) -> String {
    let column = |name: &str, condition: &str| {
        json!({"name": name, "type": "string",
            "jsonPath": format!(".status.conditions[?(@.type==\"{condition}\")].status")})
    };
    let Resource {
        group,
        version,
        plural,
        kind,
    } = CONTROL_PLANE_PKI;
    let object = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                "singular": kind.to_lowercase(), "categories": ["cluster-api"]},
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("CAs ready", "ExternalCAsReady"),
                    column("Clients ready", "ExternalClientCertificatesReady"),
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {"openAPIV3Schema": schema()},
            }],
        },
    });
    let arguments = format!("check {} --crd", target.cluster());
    rights::documents(&format!("The definition of {kind}"), &arguments, &[object])
}

/// Returns the schema of the object. The status has the fields of `-o json`.
fn schema() -> Value {
    let string = json!({"type": "string"});
    let strings = json!({"type": "array", "items": string});
    let time = json!({"type": "string", "format": "date-time"});
    let condition = json!({
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": string,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": time,
            "reason": {"type": "string", "minLength": 1},
            "message": string,
        },
    });
    let secret = json!({
        "type": "object",
        "required": ["secret", "state"],
        "properties": {
            "secret": {"type": "string", "description": "Name of the Secret."},
            "state": {"type": "string", "description": "ready, missing or invalid."},
            "notAfter": {"type": "string", "format": "date-time", "description": "End of validity of the certificate in the Secret."},
            "faults": strings,
            "notes": strings,
        },
    });
    json!({
        "type": "object",
        "description": "The PKI of the Cluster of the same name, as nodepki capi check --write judges it.",
        "properties": {"status": {"type": "object", "properties": {
            "conditions": {"type": "array", "items": condition, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            "secrets": {"type": "array", "items": secret, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["secret"]},
        }}},
    })
}

/// Returns the rights that [`write`] needs. `verbs` are those for the Cluster.
pub(super) fn rules(target: &ClusterTarget, verbs: &[&str]) -> [Value; 4] {
    let name = [target.cluster().to_owned()];
    [
        rights::rule(&CLUSTER, "", &name, verbs),
        rights::rule(&CONTROL_PLANE_PKI, "", &name, &["get"]),
        // RBAC does not know the name of an object that is created.
        rights::rule(&CONTROL_PLANE_PKI, "", &[], &["create"]),
        rights::rule(&CONTROL_PLANE_PKI, "/status", &name, &["update"]),
    ]
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::super::conditions::SecretCondition;
    use super::*;

    fn findings(statuses: [&'static str; 2]) -> Findings {
        let kinds = ["ExternalCAsReady", "ExternalClientCertificatesReady"];
        let mut statuses = statuses.into_iter();
        Findings {
            conditions: kinds.map(|kind| SecretCondition {
                kind,
                status: statuses.next().unwrap(),
                reason: "Ready",
                message: String::new(),
                last_transition_time: None,
            }),
            evidence: Vec::new(),
        }
    }

    fn times(status: &Value) -> Vec<&str> {
        let conditions = status["conditions"].as_array().unwrap().iter();
        conditions
            .map(|condition| text(condition, "lastTransitionTime").unwrap())
            .collect()
    }

    #[test]
    fn changes_transition_time_only_with_the_status() {
        let [first, second] = [
            datetime!(2026-11-01 10:00:00 UTC),
            datetime!(2026-11-02 10:00:00 UTC),
        ];
        let [early, late] = ["2026-11-01T10:00:00Z", "2026-11-02T10:00:00Z"];
        let old = merge(&Value::Null, &mut findings(["True", "False"]), first);
        assert_eq!(times(&old), [early, early]);
        let mut same = findings(["True", "False"]);
        assert_eq!(merge(&old, &mut same, second), old);
        assert_eq!(
            same.conditions[0].last_transition_time.as_deref(),
            Some(early)
        );
        let mut reworded = findings(["True", "False"]);
        reworded.conditions[1].reason = "MissingSecret";
        let new = merge(&old, &mut reworded, second);
        assert_ne!(new, old);
        assert_eq!(times(&new), [early, early]);
        let new = merge(&old, &mut findings(["True", "True"]), second);
        assert_eq!(times(&new), [early, late]);
    }

    #[test]
    fn keeps_conditions_and_fields_of_others() {
        let other = json!({"type": "Paused", "status": "False"});
        let former = json!({"conditions": [other], "other": 1});
        let now = datetime!(2026-11-01 10:00:00 UTC);
        let new = merge(&former, &mut findings(["True", "True"]), now);
        assert_eq!(new["conditions"][0], other);
        assert_eq!(new["conditions"].as_array().unwrap().len(), 3);
        assert_eq!(new["other"], 1);
    }
}
