//! The manifests that `--rights` prints: a ServiceAccount with a Role, for one command on one cluster.

use serde_json::{Value, json};

use super::secrets::ClusterTarget;
use crate::cluster::api::{Resource, SECRET};
use crate::kube::rbac;
use crate::yaml;

/// Returns a rule of a Role. Without `names` it applies to all objects of the kind. `subresource` is empty or `/status`.
pub(super) fn rule(
    resource: &Resource,
    subresource: &str,
    names: &[String],
    verbs: &[&str],
) -> Value {
    let resources = [format!("{}{subresource}", resource.plural)];
    match names {
        [] => json!({"apiGroups": [resource.group], "resources": resources, "verbs": verbs}),
        _ => {
            json!({"apiGroups": [resource.group], "resources": resources, "resourceNames": names, "verbs": verbs})
        }
    }
}

/// Returns a rule for Secrets.
pub(super) fn secrets(names: &[String], verbs: &[&str]) -> Value {
    rule(&SECRET, "", names, verbs)
}

/// Returns a ServiceAccount, a Role and a RoleBinding of the name `nodepki-capi-COMMAND-CLUSTER`, with `-` for the space in
/// `migrate to-external`, as input of `kubectl apply -f -`. `options` are the options of the command line that select the rights.
pub(super) fn manifest(
    target: &ClusterTarget,
    command: &str,
    options: &str,
    rules: &[Value],
) -> String {
    // A namespace can contain several Clusters.
    let command_name = command.replace(' ', "-");
    let role = format!("nodepki-capi-{command_name}-{}", target.cluster());
    let metadata = json!({"name": role, "namespace": target.namespace()});
    let objects = [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        rbac::role(&metadata, json!(rules)),
        json!({"apiVersion": rbac::API_VERSION, "kind": "RoleBinding", "metadata": metadata,
            "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": target.namespace()}],
            "roleRef": {"apiGroup": rbac::GROUP, "kind": "Role", "name": role}}),
    ];
    let purpose = format!("The rights of nodepki capi {command}");
    let arguments = format!(
        "{command} {} --namespace {}{options} --rights",
        target.cluster(),
        target.namespace()
    );
    documents(&purpose, &arguments, &objects)
}

/// Returns objects as YAML, with a comment that says how an administrator installs them.
pub(super) fn documents(purpose: &str, arguments: &str, objects: &[Value]) -> String {
    let mut text = format!(
        "# {purpose}. As an administrator of the management cluster:\n#   nodepki capi {arguments} | kubectl apply -f -\n"
    );
    yaml::push_documents(&mut text, objects);
    text
}
