//! Brings the private keys of a service-account rotation to every control-plane node, through the Secret
//! `kube-system/nodepki-service-account-rotation`.
//!
//! The Secret has one entry for each node, encrypted for it ([`sealed`]). `nodepki authority rotate sa` leaves the keys in
//! the state directory of its node. Every node that has them encrypts them for the nodes without an entry, so a node
//! that joins later receives them although the first one is down. The Secret is removed at the end of the rotation.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::sealed::{self, SealedKeys};
use super::{objects, service_account};
use crate::agent::Failure;
use crate::cluster::api::{Api, ApiError, SECRET};
use crate::kube::names::SYSTEM_NAMESPACE as NAMESPACE;
use crate::spec::authority_rotation::{AuthorityRotation, NodeProofs, RotationSubject};
use crate::store::{NodeRoot, ServiceAccountKeys};

/// Name of the Secret.
const SECRET_NAME: &str = "nodepki-service-account-rotation";
/// Key of the annotation with the rotation's id.
const ROTATION_ANNOTATION: &str = "nodepki.io/rotation";

/// What remains to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    /// Nothing: no rotation is in progress.
    Over,
    /// This node has received the keys now.
    Received,
    /// This node has the keys, and every other one has its entry.
    Complete,
    /// Keys are awaited: by this node, for this reason, or by others.
    Awaited(Option<String>),
}

fn failed(doing: &str) -> impl Fn(ApiError) -> Failure {
    move |error| {
        Failure::of_cluster(
            format!("{doing} the Secret {NAMESPACE}/{SECRET_NAME}"),
            error,
        )
    }
}

/// Takes the next action of this node.
pub(super) async fn exchange(root: &NodeRoot, api: &Api, node: &str) -> Result<Exchange, Failure> {
    let record = root.cluster_rotations()?;
    let Some(rotation) = record.rotations.get(&RotationSubject::ServiceAccount) else {
        return Ok(Exchange::Over);
    };
    let kept = service_account::kept(root, rotation)?;
    if rotation.phase.is_end() {
        if kept.is_some() {
            remove(api, rotation).await?;
            root.forget_service_account_keys()?;
        }
        return Ok(Exchange::Over);
    }
    let found = api.read(&SECRET, Some(NAMESPACE), SECRET_NAME).await;
    let found = found.map_err(failed("reading"))?;
    match kept {
        None => receive(root, rotation, node, found.as_ref()),
        Some(kept) => hand_out(api, rotation, node, &kept, found.as_ref()).await,
    }
}

/// Removes the Secret of a rotation that has ended.
async fn remove(api: &Api, rotation: &AuthorityRotation) -> Result<(), Failure> {
    let found = api.read(&SECRET, Some(NAMESPACE), SECRET_NAME).await;
    let found = found.map_err(failed("reading"))?;
    if found.is_some_and(|secret| is_of(&secret, rotation)) {
        let removed = api.delete(&SECRET, Some(NAMESPACE), SECRET_NAME).await;
        removed.map_err(failed("removing"))?;
    }
    Ok(())
}

fn is_of(secret: &Value, rotation: &AuthorityRotation) -> bool {
    let annotations = secret.pointer("/metadata/annotations");
    annotations.and_then(|all| all.get(ROTATION_ANNOTATION)?.as_str()) == Some(&rotation.id)
}

/// Returns the readable entries of a Secret.
fn entries(secret: &Value) -> BTreeMap<String, SealedKeys> {
    let data = secret.get("data").and_then(Value::as_object);
    let entries = data.into_iter().flatten();
    entries
        .filter_map(|(node, value)| {
            let text = BASE64_STANDARD.decode(value.as_str()?).ok()?;
            Some((node.clone(), serde_json::from_slice(&text).ok()?))
        })
        .collect()
}

fn receive(
    root: &NodeRoot,
    rotation: &AuthorityRotation,
    node: &str,
    found: Option<&Value>,
) -> Result<Exchange, Failure> {
    let secret = found.filter(|secret| is_of(secret, rotation));
    let own = root.sealing_key()?;
    let entry = secret.and_then(|secret| entries(secret).remove(node));
    let (Some(own), Some(entry)) = (own, entry) else {
        return Ok(Exchange::Awaited(None));
    };
    // Another node replaces it once this node has published its key.
    if entry.recipient != own.public {
        return Ok(Exchange::Awaited(None));
    }
    let opened = sealed::open(&own, rotation, node, &entry);
    match opened.and_then(|keys| service_account::verified_keys(rotation, keys)) {
        Ok(keys) => {
            root.keep_service_account_keys(&keys)?;
            Ok(Exchange::Received)
        }
        Err(why) => Ok(Exchange::Awaited(Some(format!(
            "the entry {node} of the Secret {NAMESPACE}/{SECRET_NAME} is not usable: {why} (remove the entry, and it is written again)"
        )))),
    }
}

async fn hand_out(
    api: &Api,
    rotation: &AuthorityRotation,
    node: &str,
    kept: &ServiceAccountKeys,
    found: Option<&Value>,
) -> Result<Exchange, Failure> {
    let proofs = objects::list_proofs(api, RotationSubject::ServiceAccount).await;
    let proofs = proofs.map_err(|error| Failure::of_cluster("listing the nodes", error))?;
    let present = found
        .filter(|secret| is_of(secret, rotation))
        .map(entries)
        .unwrap_or_default();
    let Some(wanted) = missing(rotation, node, kept, &proofs, &present) else {
        let others = proofs.keys().filter(|other| *other != node);
        let is_complete = others.clone().all(|other| present.contains_key(other));
        return Ok(if is_complete {
            Exchange::Complete
        } else {
            Exchange::Awaited(None)
        });
    };
    let data = wanted.iter().map(|(node, keys)| {
        let text = serde_json::to_vec(keys).unwrap_or_default();
        (node.clone(), Value::String(BASE64_STANDARD.encode(text)))
    });
    let mut secret = json!({
        "apiVersion": SECRET.api_version(),
        "kind": SECRET.kind,
        "metadata": {
            "name": SECRET_NAME,
            "namespace": NAMESPACE,
            "annotations": {ROTATION_ANNOTATION: rotation.id},
        },
        "type": "Opaque",
        "data": data.collect::<serde_json::Map<_, _>>(),
    });
    let written = match found {
        Some(found) => {
            // The API server refuses to replace another version.
            if let (Some(metadata), Some(version)) = (
                secret.get_mut("metadata").and_then(Value::as_object_mut),
                found.pointer("/metadata/resourceVersion"),
            ) {
                metadata.insert("resourceVersion".to_owned(), version.clone());
            }
            let replaced = api.replace(&SECRET, Some(NAMESPACE), SECRET_NAME, &secret);
            replaced.await
        }
        None => api.create(&SECRET, Some(NAMESPACE), &secret).await,
    };
    match written {
        // The next attempt sees what another node has written.
        Err(ApiError::Refused(status)) if status.is_conflict() || status.is_already_exists() => {}
        written => written.map(drop).map_err(failed("writing"))?,
    }
    Ok(Exchange::Awaited(None))
}

/// Returns the entries of the Secret as they shall be; `None` if they are.
fn missing(
    rotation: &AuthorityRotation,
    own: &str,
    kept: &ServiceAccountKeys,
    proofs: &NodeProofs,
    present: &BTreeMap<String, SealedKeys>,
) -> Option<BTreeMap<String, SealedKeys>> {
    let mut wanted = present.clone();
    wanted.retain(|node, _| proofs.contains_key(node));
    for (node, proof) in proofs.iter().filter(|(node, _)| *node != own) {
        let recipient = proof.as_ref().and_then(|proof| proof.sealing_key.as_ref());
        let Some(recipient) = recipient else { continue };
        if wanted
            .get(node)
            .is_some_and(|entry| entry.recipient == *recipient)
        {
            continue;
        }
        match sealed::seal(recipient, rotation, node, &kept.keys) {
            Ok(sealed) => drop(wanted.insert(node.clone(), sealed)),
            Err(why) => {
                tracing::warn!("the new service-account key cannot be encrypted for {node}: {why}")
            }
        }
    }
    (wanted != *present).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::authority::service_account::tests::{proof_with, rotation};

    fn secret(rotation: &AuthorityRotation, entries: &BTreeMap<String, SealedKeys>) -> Value {
        let data = entries.iter().map(|(node, keys)| {
            let text = serde_json::to_vec(keys).unwrap();
            (node.clone(), json!(BASE64_STANDARD.encode(text)))
        });
        json!({
            "metadata": {"annotations": {ROTATION_ANNOTATION: rotation.id}},
            "data": data.collect::<serde_json::Map<_, _>>(),
        })
    }

    #[test]
    fn passes_keys_from_node_to_node() {
        let (rotation, keys) = rotation();
        let kept = service_account::verified_keys(&rotation, keys.clone()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let recipient = sealed::sealing_key(&root).unwrap();
        let proofs = NodeProofs::from([
            ("cp1".to_owned(), Some(proof_with("other"))),
            ("cp2".to_owned(), Some(proof_with(&recipient))),
            ("cp3".to_owned(), None),
            ("cp4".to_owned(), Some(proof_with("%"))),
        ]);
        let entries = missing(&rotation, "cp1", &kept, &proofs, &BTreeMap::new()).unwrap();
        assert_eq!(entries.keys().collect::<Vec<_>>(), ["cp2"]);
        assert_eq!(missing(&rotation, "cp1", &kept, &proofs, &entries), None);

        let found = secret(&rotation, &entries);
        let awaited = receive(&root, &rotation, "cp3", Some(&found)).unwrap();
        assert_eq!(awaited, Exchange::Awaited(None));
        let received = receive(&root, &rotation, "cp2", Some(&found)).unwrap();
        assert_eq!(received, Exchange::Received);
        assert!(root.service_account_keys().unwrap() == Some(kept.clone()));

        // A node that was installed again has another sealing key, and one that has left has no entry.
        let proofs = NodeProofs::from([("cp3".to_owned(), Some(proof_with(&recipient)))]);
        let changed = missing(&rotation, "cp1", &kept, &proofs, &entries).unwrap();
        assert_eq!(changed.keys().collect::<Vec<_>>(), ["cp3"]);
    }

    #[test]
    fn rejects_keys_that_are_not_those_of_the_rotation() {
        let (rotation, keys) = rotation();
        let (other, _) = service_account::tests::rotation();
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let recipient = sealed::sealing_key(&root).unwrap();
        let sealed = sealed::seal(&recipient, &other, "cp2", &keys).unwrap();
        let found = secret(&other, &BTreeMap::from([("cp2".to_owned(), sealed)]));
        let refused = receive(&root, &other, "cp2", Some(&found)).unwrap();
        let Exchange::Awaited(Some(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(
            why.contains("it does not contain the private key of sha256:"),
            "{why}"
        );
        assert!(root.service_account_keys().unwrap().is_none());
        // The Secret of another rotation.
        let outdated = AuthorityRotation {
            id: "2".to_owned(),
            ..rotation
        };
        let awaited = receive(&root, &outdated, "cp2", Some(&found)).unwrap();
        assert_eq!(awaited, Exchange::Awaited(None));
    }
}
