//! The upload: from the files of the node to the objects in the cluster.
//!
//! kubeadm limits the life of its Secret through a bootstrap token that owns it: kube-controller-manager's controller
//! `tokencleaner` removes the expired token, and the garbage collector the Secret.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{needed, path, row, shared};
use crate::agent::{Clock, ExitCode, Failure, ReportRow, RowAction, RunReport};
use crate::cluster::api::{self, Api, Resource};
use crate::kube::kubeadm::ClusterConfig;
use crate::kube::kubeadm_certs::{
    self, CertificateKey, NAMESPACE, SECRET_NAME, SharedCerts, SharedFile,
};
use crate::kube::manifest::StaticPod;
use crate::kube::names::JOINING_NODES_GROUP;
use crate::kube::paths::CONTROLLER_MANAGER_MANIFEST;
use crate::kube::rbac;
use crate::store::NodeRoot;
use crate::text::rfc3339;

/// Longest lifetime of the uploaded Secret.
pub const MAX_SECRET_LIFETIME: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Name of Role and RoleBinding: kubeadm's `KubeadmCertsClusterRoleName`.
const ROLE_NAME: &str = "kubeadm:kubeadm-certs";

/// What the removal of the Secret does not undo (kubeadm's proposal for `upload-certs`, risks).
const RESIDUAL_RISK: &str = "a copy of the Secret, as in a backup of etcd, can be decrypted with the certificate key at any time: keep the key secret after the Secret is removed too";

/// The parameters of an upload.
#[derive(Clone, Copy, Debug)]
pub struct Upload<'a> {
    /// Determines the shared files and their paths.
    pub cluster: &'a ClusterConfig,
    /// Whether to upload the CA private keys that are on the node.
    pub with_ca_keys: bool,
    /// Lifetime of the Secret.
    pub lifetime: Duration,
}

/// Uploads the node's files, as `kubeadm init phase upload-certs` does, but also without CA keys.
///
/// # Errors
/// All files that are missing or have unexpected content, before a request is sent. The token of a failed upload is
/// removed.
pub async fn upload(
    root: &NodeRoot,
    api: &Api,
    key: &CertificateKey,
    what: Upload<'_>,
    clock: Clock,
) -> Result<RunReport, Failure> {
    let names = shared(what.cluster);
    let (certs, rows) = gather(root, what, &names)?;
    let data = kubeadm_certs::seal(&certs, &names, key).map_err(unsealed)?;

    let expires = clock() + what.lifetime;
    let token = create_token(api, &rfc3339(expires)).await?;
    let sent = send(api, &data, &token).await;
    if sent.is_err() {
        // The token owns the Secret, so both are removed. If this fails too, both expire later.
        let removed = api.delete(&api::SECRET, Some(NAMESPACE), &token.name).await;
        tracing::debug!(
            token = token.name,
            removed = removed.is_ok(),
            "the upload failed"
        );
    }
    sent?;
    let mut notes = vec![
        match has_token_cleaner(root) {
            Some(false) => format!(
                "the Secret {NAMESPACE}/{SECRET_NAME} is not removed after {}: {}; run `nodepki certs expire` as soon as the nodes have joined",
                rfc3339(expires),
                no_token_cleaner(root)
            ),
            _ => format!(
                "the Secret {NAMESPACE}/{SECRET_NAME} is removed by the cluster after {}",
                rfc3339(expires)
            ),
        },
        RESIDUAL_RISK.to_owned(),
    ];
    let empty = rows.iter().filter(|row| row.action == RowAction::LeftEmpty);
    let empty: Vec<_> = empty.map(|row| row.name.as_str()).collect();
    if !empty.is_empty() {
        notes.push(format!(
            "uploaded without content, as kubeadm does for files that do not exist: {}",
            empty.join(", ")
        ));
    }
    Ok(RunReport {
        rows,
        notes,
        ..RunReport::default()
    })
}

/// Reads the files to be shared. Returns them with a row for each name.
fn gather(
    root: &NodeRoot,
    what: Upload<'_>,
    names: &BTreeSet<SharedFile>,
) -> Result<(SharedCerts, Vec<ReportRow>), Failure> {
    let Upload {
        cluster,
        with_ca_keys,
        ..
    } = what;
    let needed = needed(cluster, false);
    let mut rows = Vec::new();
    let mut contents = BTreeMap::new();
    let mut messages = Vec::new();
    for entry in names {
        let path = path(cluster, *entry);
        let found = match &path {
            Some(path) if with_ca_keys || !entry.is_authority_key() => root.read(path)?,
            _ => None,
        };
        match (path, found.filter(|found| !found.bytes.is_empty())) {
            (Some(path), Some(found)) => {
                let path = root.node_path(path);
                rows.push(row(*entry, RowAction::Uploaded, path, &found.bytes));
                contents.insert(*entry, found.bytes);
            }
            (Some(path), None) if needed.contains(entry) => messages.push(format!(
                "{} is missing or empty, and every control-plane node needs it; run this on a node that has the file, or copy it from such a node",
                root.on_this_machine(&path).display()
            )),
            (path, _) => rows.push(ReportRow {
                name: entry.to_string(),
                action: RowAction::LeftEmpty,
                paths: path.into_iter().map(|path| root.node_path(path)).collect(),
                ..ReportRow::default()
            }),
        }
    }
    match SharedCerts::new(contents) {
        Ok(certs) if messages.is_empty() => return Ok((certs, rows)),
        Ok(_) => {}
        Err(wrong) => messages.extend(wrong.into_iter().map(|(entry, why)| {
            format!(
                "{} does not match its name: {why}; correct the file, or run this on a node that has the correct one",
                root.on_this_machine(path(cluster, entry).unwrap_or_default()).display()
            )
        })),
    }
    Err(Failure::with_messages(ExitCode::Refused, messages))
}

/// Returns whether this node's kube-controller-manager removes expired bootstrap tokens; `None` without a manifest.
fn has_token_cleaner(root: &NodeRoot) -> Option<bool> {
    let found = root.read(Path::new(CONTROLLER_MANAGER_MANIFEST)).ok()??;
    let manifest = StaticPod::parse(CONTROLLER_MANAGER_MANIFEST.into(), &found.bytes).ok()?;
    Some(manifest.removes_expired_tokens())
}

/// Returns the reason why no controller removes the Secret, as a clause.
fn no_token_cleaner(root: &NodeRoot) -> String {
    format!(
        "--controllers in {} does not name tokencleaner",
        root.on_this_machine(Path::new(CONTROLLER_MANAGER_MANIFEST))
            .display()
    )
}

/// The bootstrap token that owns the Secret, so both expire together. It permits neither signing nor authentication.
struct OwnerToken {
    name: String,
    uid: Value,
}

async fn create_token(api: &Api, expiration: &str) -> Result<OwnerToken, Failure> {
    let (id, secret) = (random_text(6)?, random_text(16)?);
    let name = format!("bootstrap-token-{}", *id);
    let data: serde_json::Map<String, Value> = [
        ("token-id", id.as_str()),
        ("token-secret", secret.as_str()),
        (
            "description",
            "Proxy for managing TTL for the kubeadm-certs secret",
        ),
        ("expiration", expiration),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), json!(BASE64_STANDARD.encode(value))))
    .collect();
    let object = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "type": "bootstrap.kubernetes.io/token",
        "data": data,
    });
    let made = api
        .create(&api::SECRET, Some(NAMESPACE), &object)
        .await
        .map_err(|error| {
            Failure::of_cluster(format!("creating the Secret {NAMESPACE}/{name}"), error)
        })?;
    Ok(OwnerToken {
        uid: made.pointer("/metadata/uid").cloned().unwrap_or_default(),
        name,
    })
}

/// Returns random lower-case letters and digits.
fn random_text(length: usize) -> Result<Zeroizing<String>, Failure> {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = Zeroizing::new(String::with_capacity(length));
    let mut byte = [0];
    while text.len() < length {
        getrandom::fill(&mut byte)
            .map_err(|error| unsealed(kubeadm_certs::SealError::Random(error)))?;
        // 252 is the largest multiple of 36 in a byte, so all characters are equally likely.
        let letter = byte.first().filter(|byte| **byte < 252);
        text.extend(
            letter
                .and_then(|byte| LETTERS.get(usize::from(byte % 36)))
                .map(|letter| char::from(*letter)),
        );
    }
    Ok(text)
}

fn unsealed(error: kubeadm_certs::SealError) -> Failure {
    Failure::pending("nothing was uploaded")
        .caused_by(error)
        .advise("run again")
}

/// Writes the Secret before the Role that permits reading it, as kubeadm does.
async fn send(
    api: &Api,
    data: &BTreeMap<String, Vec<u8>>,
    token: &OwnerToken,
) -> Result<(), Failure> {
    let data: BTreeMap<_, _> = data
        .iter()
        .map(|(name, value)| (name, BASE64_STANDARD.encode(value)))
        .collect();
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": SECRET_NAME,
            "namespace": NAMESPACE,
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Secret",
                "name": token.name,
                "uid": token.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "type": "Opaque",
        "data": data,
    });
    let metadata = json!({"name": ROLE_NAME, "namespace": NAMESPACE});
    let rules = json!([{
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [SECRET_NAME],
        "verbs": ["get"],
    }]);
    let role = rbac::role(&metadata, rules);
    let binding = rbac::binding(&metadata, ROLE_NAME, &[rbac::group(JOINING_NODES_GROUP)]);
    for (resource, name, object) in [
        (&api::SECRET, SECRET_NAME, secret),
        (&api::ROLE, ROLE_NAME, role),
        (&api::ROLE_BINDING, ROLE_NAME, binding),
    ] {
        put(api, resource, name, &object).await.map_err(|error| {
            Failure::of_cluster(
                format!("writing the {} {NAMESPACE}/{name}", resource.kind),
                error,
            )
        })?;
    }
    Ok(())
}

/// Creates the object, or replaces an existing one of that name.
async fn put(
    api: &Api,
    resource: &Resource,
    name: &str,
    object: &Value,
) -> Result<(), api::ApiError> {
    match api.create(resource, Some(NAMESPACE), object).await {
        Err(api::ApiError::Refused(status)) if status.is_already_exists() => api
            .replace(resource, Some(NAMESPACE), name, object)
            .await
            .map(drop),
        other => other.map(drop),
    }
}
