//! The objects of a change of a CA or of the service-account key in the whole cluster, in the cluster's API.
//!
//! | object | contains | written by |
//! | --- | --- | --- |
//! | ConfigMap `kube-system/nodepki-authority-rotation` | an [`AuthorityRotation`] for each subject, in JSON | commands, the leader; only in the version that was read |
//! | annotation `nodepki.io/authority-proofs` of a Node | a [`NodeProof`] for each subject, in JSON | the daemon of that node |
//! | Lease `kube-system/nodepki-authority-rotation` | the leader | the daemons of control-plane nodes |
//! | Secret `kube-system/nodepki-service-account-rotation` | an entry for each node: the keys of a service-account rotation, encrypted for it | the daemons of control-plane nodes |

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::rotate::certificate;
use super::service_account;
use crate::cluster::api::{Api, ApiError, CONFIG_MAP, ROLE, ROLE_BINDING};
use crate::cluster::node::{self, ListedNode};
use crate::cluster::watch::Watch;
use crate::kube::names::{Authority, JOINING_NODES_GROUP, SYSTEM_NAMESPACE as NAMESPACE};
use crate::kube::rbac;
use crate::spec::authority_rotation::{AuthorityRotation, NodeProof, NodeProofs, RotationSubject};
use crate::store::ClusterRotations;

/// Name of the ConfigMap, of the Lease, and of the Role and RoleBinding for workers.
pub const NAME: &str = "nodepki-authority-rotation";
/// Groups that may read the ConfigMap.
const READERS: [&str; 2] = ["system:nodes", JOINING_NODES_GROUP];
/// Key of the annotation.
const ANNOTATION: &str = "nodepki.io/authority-proofs";

/// The ConfigMap as it was read; `None` if there is none.
pub struct RotationMap(Option<Value>);

/// Returns the watch of the ConfigMap.
pub fn watch() -> Watch {
    Watch::of_object(&CONFIG_MAP, Some(NAMESPACE), NAME)
}

/// Returns the rotations in a ConfigMap. A faulty entry is reported, and does not replace the last valid one in `former`.
pub fn rotations_in(map: Option<&Value>, former: &ClusterRotations) -> ClusterRotations {
    let mut record = ClusterRotations::default();
    let data = map.and_then(|map| map.get("data")?.as_object());
    for (key, value) in data.into_iter().flatten() {
        match rotation_in(key, value.as_str().unwrap_or_default()) {
            Ok(rotation) => {
                record.rotations.insert(rotation.subject, rotation);
            }
            Err(why) => {
                record.refused.insert(key.clone(), why);
                let subject = key.parse().ok();
                let kept = subject.and_then(|key: RotationSubject| former.rotations.get(&key));
                record
                    .rotations
                    .extend(kept.map(|kept| (kept.subject, kept.clone())));
            }
        }
    }
    record
}

fn rotation_in(key: &str, text: &str) -> Result<AuthorityRotation, String> {
    let subject: RotationSubject = key
        .parse()
        .map_err(|_| "it is not the name of an authority, nor sa".to_owned())?;
    let rotation: AuthorityRotation =
        serde_json::from_str(text).map_err(|error| format!("it is not a rotation: {error}"))?;
    if rotation.subject != subject {
        return Err(format!("it is a rotation of {}", rotation.subject));
    }
    for rotated in [&rotation.old, &rotation.new] {
        match subject {
            RotationSubject::Authority(_) => drop(certificate(rotated)?),
            RotationSubject::ServiceAccount => drop(service_account::public_key(rotated)?),
        }
    }
    Ok(rotation)
}

impl RotationMap {
    /// Reads the ConfigMap.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn read(api: &Api) -> Result<Self, ApiError> {
        let found = api.read(&CONFIG_MAP, Some(NAMESPACE), NAME).await?;
        Ok(RotationMap(found))
    }

    /// Returns the rotations in it.
    pub fn rotations(&self) -> ClusterRotations {
        rotations_in(self.0.as_ref(), &ClusterRotations::default())
    }

    /// Writes a rotation, unless the ConfigMap has changed since it was read: then it returns false.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn write(&self, api: &Api, rotation: &AuthorityRotation) -> Result<bool, ApiError> {
        let text = serde_json::to_string_pretty(rotation).unwrap_or_default();
        let data = json!({(rotation.subject.as_str()): text});
        let written = match &self.0 {
            Some(map) => {
                // The API server refuses a patch of another version.
                let version = map.pointer("/metadata/resourceVersion");
                let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
                api.merge(&CONFIG_MAP, Some(NAMESPACE), NAME, &patch).await
            }
            None => {
                let map = json!({
                    "apiVersion": CONFIG_MAP.api_version(),
                    "kind": CONFIG_MAP.kind,
                    "metadata": {"name": NAME, "namespace": NAMESPACE},
                    "data": data,
                });
                api.create(&CONFIG_MAP, Some(NAMESPACE), &map).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(ApiError::Refused(status))
                if status.is_conflict() || status.is_already_exists() =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Lists the nodes that use what is changed, each with its proof: all nodes for the cluster CA, control-plane nodes for the
/// others.
///
/// # Errors
/// See [`ApiError`].
pub async fn list_proofs(api: &Api, subject: RotationSubject) -> Result<NodeProofs, ApiError> {
    let nodes = node::list(api).await?;
    Ok(users(nodes, subject))
}

fn users(nodes: Vec<ListedNode>, subject: RotationSubject) -> NodeProofs {
    let any_is_labelled = nodes.iter().any(ListedNode::is_control_plane);
    let uses = |node: &ListedNode| match subject {
        RotationSubject::Authority(Authority::Ca) => true,
        RotationSubject::Authority(Authority::EtcdCa | Authority::FrontProxyCa) => {
            !any_is_labelled || node.is_control_plane()
        }
        // Workers must not receive the key.
        RotationSubject::ServiceAccount => node.is_control_plane(),
    };
    let nodes = nodes.into_iter().filter(uses);
    nodes
        .map(|node| {
            let text = node.annotation(ANNOTATION);
            let proof = text.and_then(|text| proofs_in(text).remove(&subject));
            (node.name().to_owned(), proof)
        })
        .collect()
}

/// Returns the readable proofs of an annotation. One that cannot be read counts as missing.
fn proofs_in(text: &str) -> BTreeMap<RotationSubject, NodeProof> {
    let entries: BTreeMap<String, Value> = serde_json::from_str(text).unwrap_or_default();
    let entries = entries.into_iter();
    entries
        .filter_map(|(key, value)| Some((key.parse().ok()?, serde_json::from_value(value).ok()?)))
        .collect()
}

/// Writes the proofs of a node to its Node, unless it contains them. Returns false if there is no such Node.
///
/// # Errors
/// See [`ApiError`].
pub async fn publish(
    api: &Api,
    node: &str,
    proofs: &BTreeMap<RotationSubject, NodeProof>,
) -> Result<bool, ApiError> {
    let entries: BTreeMap<&str, &NodeProof> = proofs
        .iter()
        .map(|(subject, proof)| (subject.as_str(), proof))
        .collect();
    let text = serde_json::to_string(&entries).unwrap_or_default();
    node::annotate(api, node, ANNOTATION, &text, |present| {
        proofs_in(present) == *proofs
    })
    .await
}

/// Permits all nodes to read the ConfigMap, and joining ones with a bootstrap token (as kubeadm's own ConfigMaps). Other
/// subjects of an existing RoleBinding are kept.
///
/// # Errors
/// See [`ApiError`].
pub async fn permit_nodes(api: &Api) -> Result<(), ApiError> {
    let metadata = json!({"name": NAME, "namespace": NAMESPACE});
    let rules = json!([{
        "apiGroups": [""],
        "resources": [CONFIG_MAP.plural],
        "resourceNames": [NAME],
        "verbs": ["get", "list", "watch"],
    }]);
    let role = rbac::role(&metadata, rules);
    let binding = rbac::binding(&metadata, NAME, &with_readers(&[]));
    for (resource, object) in [(&ROLE, role), (&ROLE_BINDING, binding)] {
        match api.create(resource, Some(NAMESPACE), &object).await {
            Ok(_) => {}
            Err(ApiError::Refused(status)) if status.is_already_exists() => {}
            Err(error) => return Err(error),
        }
    }
    complete_binding(api).await
}

/// Adds the missing readers to the RoleBinding: an earlier version did not permit joining nodes.
async fn complete_binding(api: &Api) -> Result<(), ApiError> {
    let found = api.read(&ROLE_BINDING, Some(NAMESPACE), NAME).await?;
    let Some(found) = found else {
        return Ok(());
    };
    let subjects = found.get("subjects").and_then(Value::as_array);
    let subjects = subjects.map_or(&[][..], Vec::as_slice);
    let complete = with_readers(subjects);
    if complete == subjects {
        return Ok(());
    }
    // The API server refuses a patch of another version.
    let version = found.pointer("/metadata/resourceVersion");
    let patch = json!({"metadata": {"resourceVersion": version}, "subjects": complete});
    api.merge(&ROLE_BINDING, Some(NAMESPACE), NAME, &patch)
        .await?;
    Ok(())
}

/// Returns the subjects of a RoleBinding, completed with the readers of the ConfigMap.
fn with_readers(subjects: &[Value]) -> Vec<Value> {
    let readers = READERS.map(rbac::group);
    let missing = readers.into_iter().filter(|one| !subjects.contains(one));
    subjects.iter().cloned().chain(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::names::CONTROL_PLANE_LABEL;

    fn node(name: &str, labels: &[&str], annotation: Option<&str>) -> ListedNode {
        ListedNode::new(name, labels, annotation.map(|text| (ANNOTATION, text)))
    }

    #[test]
    fn lists_all_nodes_for_ca_and_control_plane_for_others() {
        let names = |subject: RotationSubject| {
            let nodes = vec![
                node("cp1", &[CONTROL_PLANE_LABEL], None),
                node("w1", &["zone"], None),
            ];
            users(nodes, subject).into_keys().collect::<Vec<_>>()
        };
        assert_eq!(names(Authority::Ca.into()), ["cp1", "w1"]);
        assert_eq!(names(Authority::EtcdCa.into()), ["cp1"]);
        assert_eq!(names(Authority::FrontProxyCa.into()), ["cp1"]);
        assert_eq!(names(RotationSubject::ServiceAccount), ["cp1"]);
        let unlabelled = |subject| users(vec![node("cp1", &[], None)], subject).len();
        assert_eq!(unlabelled(Authority::EtcdCa.into()), 1);
        assert_eq!(unlabelled(RotationSubject::ServiceAccount), 0);
    }

    #[test]
    fn adds_missing_readers_and_keeps_other_subjects() {
        let group = |name: &str| json!({"apiGroup": ROLE.group, "kind": "Group", "name": name});
        let [nodes, joining] = READERS.map(group);
        let other = group("auditors");
        assert_eq!(with_readers(&[]), [nodes.clone(), joining.clone()]);
        let former = [nodes.clone(), other.clone()];
        let complete = [nodes, other, joining];
        assert_eq!(with_readers(&former), complete);
        assert_eq!(with_readers(&complete), complete);
    }

    #[test]
    fn unreadable_proof_counts_as_missing() {
        let valid = r#""ca": {"version": 1, "trustedByAll": ["a"], "trustedByAny": ["a"], "certificatesUnder": ["a"]}"#;
        let text = format!(r#"{{{valid}, "etcd-ca": {{"version": 2}}, "other": 1}}"#);
        let proofs = proofs_in(&text);
        assert_eq!(
            proofs.keys().copied().collect::<Vec<_>>(),
            [Authority::Ca.into()]
        );
        assert!(proofs_in("[").is_empty());
        let listed = users(vec![node("w1", &[], Some(&text))], Authority::Ca.into());
        assert!(listed["w1"].is_some());
    }

    #[test]
    fn faulty_rotation_does_not_replace_last_valid_one() {
        let map = json!({"data": {"ca": "{", "x": "{}"}});
        let record = rotations_in(Some(&map), &ClusterRotations::default());
        assert!(record.rotations.is_empty());
        assert_eq!(
            record.refused["x"],
            "it is not the name of an authority, nor sa"
        );
        assert!(record.refused["ca"].starts_with("it is not a rotation: "));
        assert_eq!(rotations_in(None, &record), ClusterRotations::default());
    }
}
