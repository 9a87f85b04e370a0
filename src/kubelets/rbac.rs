//! The rights of the daemon that approves and signs requests of kubelets, as objects for `kubectl apply`.
//!
//! The group of nodepki.conf may decide about exactly two signer names, or three with `signPods`, and read what the rules need.
//! It cannot read a Secret or another ConfigMap than its own, create a request, or change a Node. Kubernetes verifies the verbs
//! `approve` and `sign` in the admission plug-ins CertificateApproval and CertificateSigning
//! (`plugin/pkg/admission/certificates`), and for pods in `pkg/registry/certificates/podcertificaterequest/strategy.go`.

use serde_json::{Value, json};

use super::KubeletPolicy;
use crate::kube::csr_object::{CSR_GROUP, KubeletCertificate};
use crate::kube::names::SYSTEM_NAMESPACE;
use crate::kube::pod_request::POD_CLIENT_SIGNER;
use crate::kube::rbac;
use crate::yaml;

/// Name of each role and binding.
const ROLE: &str = "nodepki:kubelet-signer";
/// Namespace of events about objects without a namespace (`client-go/tools/record/event.go`, `makeEvent`).
pub const EVENT_NAMESPACE: &str = "default";

const INTRODUCTION: &str = "\
# The rights of nodepki as the signer of kubelets. As an administrator of the cluster:
#   nodepki config signer-setup kubelets | kubectl apply -f -
# They belong to the group of nodepki.conf, which nodepki issues on each control-plane node with kubelets.sign.
";

/// Returns the name of the ConfigMap in `kube-system` that binds names to Nodes ([`super::NodeBindings`]).
pub fn bindings_name(policy: &KubeletPolicy) -> String {
    policy.lease.clone()
}

/// Returns the roles for a group and their bindings, as input of `kubectl apply -f -`.
///
/// The Lease and the ConfigMap are among them, so nodepki needs no right to create others. A PUT creates it again if it is deleted
/// (`pkg/registry/coordination/lease/strategy.go`, `AllowCreateOnUpdate`), which RBAC restricts to its name, unlike a POST.
/// The ConfigMap is applied without data, so `kubectl apply` never removes any.
pub fn manifest(policy: &KubeletPolicy, group: &str) -> String {
    let mut text = INTRODUCTION.to_owned();
    yaml::push_documents(&mut text, &objects(policy, group));
    text
}

/// Returns every single right that [`manifest`] grants: a phrase, and the `resourceAttributes` of an access review.
pub fn rights(policy: &KubeletPolicy) -> Vec<(String, Value)> {
    let mut rights = Vec::new();
    for object in objects(policy, "") {
        let namespace = object.pointer("/metadata/namespace");
        let namespace = namespace.and_then(Value::as_str).unwrap_or_default();
        let rules = object.get("rules").and_then(Value::as_array);
        for rule in rules.into_iter().flatten() {
            rights.extend(rights_of(rule, namespace));
        }
    }
    rights
}

fn rights_of(rule: &Value, namespace: &str) -> Vec<(String, Value)> {
    let of = |field| rule.get(field).map(texts).unwrap_or_default();
    let mut names = of("resourceNames");
    if names.is_empty() {
        names.push("");
    }
    let mut rights = Vec::new();
    for group in of("apiGroups") {
        for resource in of("resources") {
            let (kind, part) = resource.split_once('/').unwrap_or((resource, ""));
            for verb in of("verbs") {
                for name in &names {
                    let attributes = json!({
                        "verb": verb,
                        "group": group,
                        "resource": kind,
                        "subresource": part,
                        "name": name,
                        "namespace": namespace,
                    });
                    let phrase = format!("{verb} {resource} {name}");
                    rights.push((phrase.trim_end().to_owned(), attributes));
                }
            }
        }
    }
    rights
}

fn texts(list: &Value) -> Vec<&str> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).collect()
}

fn objects(policy: &KubeletPolicy, group: &str) -> Vec<Value> {
    let requests = "certificatesigningrequests";
    let signers = KubeletCertificate::OWN.map(KubeletCertificate::signer_name);
    let mut cluster_rules = json!([
        {"apiGroups": [CSR_GROUP], "resources": [requests], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": [CSR_GROUP],
            "resources": [format!("{requests}/approval"), format!("{requests}/status")],
            "verbs": ["update"],
        },
        {
            "apiGroups": [CSR_GROUP],
            // The admission plug-ins CertificateApproval and CertificateSigning require these verbs.
            "resources": ["signers"],
            "resourceNames": signers,
            "verbs": ["approve", "sign"],
        },
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    ]);
    if let Some(rules) = cluster_rules.as_array_mut().filter(|_| policy.sign_pods) {
        rules.extend(pod_rules());
    }
    let lease_rules = json!([{
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [policy.lease],
        "verbs": ["get", "create", "update"],
    }, {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [bindings_name(policy)],
        "verbs": ["get", "list", "watch", "update"],
    }]);
    let event_rules = json!([
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]);
    let mut objects = Vec::new();
    for (namespace, rules) in [
        (None, cluster_rules),
        (Some(SYSTEM_NAMESPACE), lease_rules),
        (Some(EVENT_NAMESPACE), event_rules),
    ] {
        let metadata = match namespace {
            Some(namespace) => json!({"name": ROLE, "namespace": namespace}),
            None => json!({"name": ROLE}),
        };
        objects.push(rbac::role(&metadata, rules));
        objects.push(rbac::binding(&metadata, ROLE, &[rbac::group(group)]));
    }
    // RBAC cannot limit `create` to a name, so that the administrator creates these two.
    objects.push(json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": policy.lease, "namespace": SYSTEM_NAMESPACE},
    }));
    objects.push(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": bindings_name(policy), "namespace": SYSTEM_NAMESPACE},
    }));
    objects
}

/// Returns the rules for requests of pods, which have no approval step.
fn pod_rules() -> [Value; 5] {
    let requests = "podcertificaterequests";
    [
        json!({"apiGroups": [CSR_GROUP], "resources": [requests], "verbs": ["get", "list", "watch"]}),
        json!({
            "apiGroups": [CSR_GROUP],
            "resources": [format!("{requests}/status")],
            "verbs": ["update"],
        }),
        json!({
            "apiGroups": [CSR_GROUP],
            "resources": ["signers"],
            "resourceNames": [POD_CLIENT_SIGNER],
            "verbs": ["sign"],
        }),
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}),
        json!({"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get"]}),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns each rule as `namespace: group/resource[names] verbs`.
    fn rules(policy: &KubeletPolicy) -> Vec<String> {
        let words = |value: &Value| texts(value).join(",");
        objects(policy, "g")
            .iter()
            .flat_map(|object| {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or("*");
                let rules = object["rules"].as_array().cloned().unwrap_or_default();
                rules.into_iter().map(move |rule| {
                    format!(
                        "{namespace}: {}/{}[{}] {}",
                        words(&rule["apiGroups"]),
                        words(&rule["resources"]),
                        words(&rule["resourceNames"]),
                        words(&rule["verbs"])
                    )
                })
            })
            .collect()
    }

    #[test]
    fn grants_exactly_what_the_daemon_needs() {
        assert_eq!(
            rules(&KubeletPolicy::default()),
            [
                "*: certificates.k8s.io/certificatesigningrequests[] get,list,watch",
                "*: certificates.k8s.io/certificatesigningrequests/approval,certificatesigningrequests/status[] update",
                "*: certificates.k8s.io/signers[kubernetes.io/kube-apiserver-client-kubelet,kubernetes.io/kubelet-serving] approve,sign",
                "*: /nodes[] get,list,watch",
                "kube-system: coordination.k8s.io/leases[nodepki-kubelets] get,create,update",
                "kube-system: /configmaps[nodepki-kubelets] get,list,watch,update",
                "default: /events[] create",
            ]
        );
    }

    #[test]
    fn grants_five_rules_more_for_pods() {
        let policy = KubeletPolicy {
            sign_pods: true,
            ..KubeletPolicy::default()
        };
        let without = rules(&KubeletPolicy::default());
        let mut more = rules(&policy);
        more.retain(|rule| !without.contains(rule));
        assert_eq!(
            more,
            [
                "*: certificates.k8s.io/podcertificaterequests[] get,list,watch",
                "*: certificates.k8s.io/podcertificaterequests/status[] update",
                "*: certificates.k8s.io/signers[kubernetes.io/kube-apiserver-client-pod] sign",
                "*: /pods[] get",
                "*: /serviceaccounts[] get",
            ]
        );
    }

    #[test]
    fn names_every_right_of_the_rules() {
        let rights = rights(&KubeletPolicy::default());
        let phrases: Vec<&str> = rights.iter().map(|(phrase, _)| phrase.as_str()).collect();
        assert_eq!(phrases.len(), 20, "{phrases:#?}");
        for phrase in [
            "update certificatesigningrequests/status",
            "sign signers kubernetes.io/kubelet-serving",
            "update leases nodepki-kubelets",
        ] {
            assert!(phrases.contains(&phrase), "{phrases:#?}");
        }
        let lease = rights
            .iter()
            .find(|(phrase, _)| phrase.starts_with("get leases"));
        assert_eq!(
            lease.map(|(_, attributes)| attributes.clone()),
            Some(json!({
                "verb": "get", "group": "coordination.k8s.io", "resource": "leases", "subresource": "",
                "name": "nodepki-kubelets", "namespace": "kube-system",
            }))
        );
    }

    #[test]
    fn binds_every_role_to_the_group() {
        let text = manifest(&KubeletPolicy::default(), "nodepki:kubelet-signers");
        let documents = yaml::parse("manifest", &text).unwrap();
        assert_eq!(documents.len(), 8);
        assert_eq!(
            text.matches("name: nodepki:kubelet-signers").count(),
            3,
            "{text}"
        );
        assert!(!text.contains("system:"), "{text}");
    }
}
