//! Shared certificates: the files that kubeadm copies between control-plane nodes in the Secret `kubeadm-certs`.
//!
//! [`download`] writes them from the cluster to the node, [`upload`] from the node to the cluster; [`kubeadm_certs`] has
//! the format. The objects in the cluster equal kubeadm's in every field (its `phases/copycerts`), so that each program
//! can read the upload of the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::agent::{Clock, ExitCode, Failure, ReportRow, RowAction, RunReport, recovery_notes};
use crate::cluster::api::{self, Api, Resource};
use crate::kube::kubeadm::{ClusterConfig, Etcd};
use crate::kube::kubeadm_certs::{
    self, CertificateKey, NAMESPACE, SECRET_NAME, SharedCerts, SharedFile, UPLOAD_COMMAND,
};
use crate::kube::names::{Authority, NodePath};
use crate::store::{Commit, KnownDirectories, Mode, NodeRoot};
use crate::x509::rfc3339;

/// Lifetime of the uploaded Secret: kubeadm's `DefaultCertTokenDuration`.
const SECRET_LIFETIME: Duration = Duration::from_secs(2 * 60 * 60);
/// Name of Role and RoleBinding: kubeadm's `KubeadmCertsClusterRoleName`.
const ROLE_NAME: &str = "kubeadm:kubeadm-certs";
/// The group of joining nodes: kubeadm's `NodeBootstrapTokenAuthGroup`.
const JOINING_NODES_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

const ROLES: Resource = Resource {
    group: RBAC_GROUP,
    version: "v1",
    plural: "roles",
    kind: "Role",
};
const ROLE_BINDINGS: Resource = Resource {
    group: RBAC_GROUP,
    version: "v1",
    plural: "rolebindings",
    kind: "RoleBinding",
};

/// Returns the files that a joining control-plane node of this cluster needs, with or without the CA private keys.
pub fn needed(cluster: &ClusterConfig, with_ca_keys: bool) -> BTreeSet<SharedFile> {
    let mut needed = BTreeSet::from([
        SharedFile::ServiceAccountKey,
        SharedFile::ServiceAccountPublic,
    ]);
    let mut authorities = vec![Authority::Ca, Authority::FrontProxyCa];
    match &cluster.etcd {
        Etcd::Local { .. } => authorities.push(Authority::EtcdCa),
        Etcd::External {
            ca_file,
            cert_file,
            key_file,
            ..
        } => {
            for (file, entry) in [
                (ca_file, SharedFile::ExternalEtcdAuthority),
                (cert_file, SharedFile::ExternalEtcdCertificate),
                (key_file, SharedFile::ExternalEtcdKey),
            ] {
                needed.extend(file.as_ref().map(|_| entry));
            }
        }
    }
    for authority in authorities {
        needed.insert(SharedFile::Authority(authority));
        if with_ca_keys {
            needed.insert(SharedFile::AuthorityKey(authority));
        }
    }
    needed
}

/// Reads the needed files from the Secret. Returns notes on its other entries.
///
/// # Errors
/// The Secret cannot be read, or does not contain a needed file.
pub async fn fetch(
    api: &Api,
    key: &CertificateKey,
    needed: &BTreeSet<SharedFile>,
) -> Result<(SharedCerts, Vec<String>), Failure> {
    let secret = api
        .read(&api::SECRET, Some(NAMESPACE), SECRET_NAME)
        .await
        .map_err(|error| {
            let doing = format!("reading the Secret {NAMESPACE}/{SECRET_NAME}");
            let is_forbidden = matches!(&error, api::ApiError::Refused(status) if status.code == 403);
            let mut failure = Failure::of_cluster(doing, error);
            if is_forbidden {
                failure.messages.push(format!(
                    "joining nodes may read the Secret {NAMESPACE}/{SECRET_NAME} from the first upload on; upload on a control-plane node, and use the certificate key that this command prints: {UPLOAD_COMMAND}"
                ).into());
            }
            failure
        })?
        .ok_or_else(|| {
            Failure::new(
                ExitCode::Refused,
                format!(
                    "the Secret {NAMESPACE}/{SECRET_NAME} does not exist: no upload was made, or it has expired two hours after the last upload; upload again on a control-plane node, and use the certificate key that this command prints: {UPLOAD_COMMAND}"
                ),
            )
        })?;
    kubeadm_certs::open(&data(&secret)?, key, needed)
        .map_err(|error| Failure::with_messages(ExitCode::Refused, error.messages()))
}

/// Decodes the values of a Secret. The API server encodes each in base64, and omits `data` of an empty Secret.
fn data(secret: &Value) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let entries = secret.get("data").and_then(Value::as_object);
    entries
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            let text = value.as_str().unwrap_or_default();
            match BASE64_STANDARD.decode(text) {
                Ok(bytes) => Ok((name.clone(), bytes)),
                Err(_) => Err(Failure::new(
                    ExitCode::Refused,
                    format!(
                        "{name:?} in the Secret {NAMESPACE}/{SECRET_NAME} is not valid base64; check that the address is that of a Kubernetes API server"
                    ),
                )),
            }
        })
        .collect()
}

/// Returns the ClusterConfiguration in kubeadm's ConfigMap: its source for messages, and its text.
///
/// # Errors
/// It does not exist, or cannot be read.
pub async fn configuration(api: &Api) -> Result<(String, String), Failure> {
    const DOING: &str =
        "reading the ClusterConfiguration in the ConfigMap kube-system/kubeadm-config";
    let object = api
        .read(&api::CONFIG_MAP, Some(NAMESPACE), "kubeadm-config")
        .await
        .map_err(|error| Failure::of_cluster(DOING, error))?;
    let text = object
        .as_ref()
        .and_then(|object| object.pointer("/data/ClusterConfiguration"))
        .and_then(Value::as_str);
    match text {
        Some(text) => Ok((
            "ConfigMap kube-system/kubeadm-config#data.ClusterConfiguration".to_owned(),
            text.to_owned(),
        )),
        None => Err(Failure::new(
            ExitCode::Refused,
            format!(
                "{DOING}: it does not exist; run `kubeadm init phase upload-config kubeadm --config FILE` on a control-plane node, or name a file that contains one: --kubeadm-config FILE"
            ),
        )),
    }
}

/// Returns the path of a shared file on a node of this cluster; `None` for a file that the cluster does not use.
pub fn path(cluster: &ClusterConfig, entry: SharedFile) -> Option<PathBuf> {
    let below = |name: String| Some(cluster.certificates_dir.join(name));
    match (entry, &cluster.etcd) {
        (SharedFile::Authority(authority), _) => below(format!("{}.crt", authority.base_name())),
        (SharedFile::AuthorityKey(authority), _) => below(format!("{}.key", authority.base_name())),
        (SharedFile::ServiceAccountKey | SharedFile::ServiceAccountPublic, _) => {
            below(entry.to_string())
        }
        (SharedFile::ExternalEtcdAuthority, Etcd::External { ca_file, .. }) => ca_file.clone(),
        (SharedFile::ExternalEtcdCertificate, Etcd::External { cert_file, .. }) => {
            cert_file.clone()
        }
        (SharedFile::ExternalEtcdKey, Etcd::External { key_file, .. }) => key_file.clone(),
        (_, Etcd::Local { .. }) => None,
    }
}

/// The parameters of a download.
#[derive(Clone, Copy, Debug)]
pub struct Download<'a> {
    /// Determines the needed files and their paths.
    pub cluster: &'a ClusterConfig,
    /// Whether to download the CA private keys as well.
    pub with_ca_keys: bool,
    /// Whether files with different content may be replaced.
    pub replace: bool,
    /// Longest wait for another run to end.
    pub lock_wait: Duration,
}

/// Installs the shared files of the cluster, all or none.
///
/// # Errors
/// As for [`fetch`]; all files whose content differs from the cluster's.
pub async fn download(
    root: &NodeRoot,
    api: &Api,
    key: &CertificateKey,
    what: Download<'_>,
    clock: Clock,
) -> Result<RunReport, Failure> {
    let needed = needed(what.cluster, what.with_ca_keys);
    let (certs, mut notes) = fetch(api, key, &needed).await?;
    let report = |rows: Vec<(ReportRow, SharedFile)>, notes, written| RunReport {
        rows: rows.into_iter().map(|(row, _)| row).collect(),
        notes,
        written,
        ..RunReport::default()
    };
    // If no file is to be written, the lock is not taken either.
    if !root.has_unfinished()? {
        let rows = compare(root, &certs, what)?;
        if rows.iter().all(|(row, _)| row.action == RowAction::Kept) {
            return Ok(report(rows, notes, Vec::new()));
        }
    }
    let locked = root.lock(what.lock_wait, "certs download")?;
    let paths: Vec<PathBuf> = shared(what.cluster)
        .into_iter()
        .filter_map(|entry| path(what.cluster, entry))
        .collect();
    let known = KnownDirectories::default().with_files(paths.iter().map(PathBuf::as_path));
    let (mut store, recovery) = locked.recover_in(&known, clock())?;
    notes.extend(recovery_notes(root, &recovery));
    let rows = compare(store.root(), &certs, what)?;
    let mut commit = Commit::new();
    for (row, entry) in &rows {
        let mode = match entry.is_private() {
            true => Mode::Private,
            false => Mode::Public,
        };
        if let (Some(path), Some(bytes)) = (row.paths.first(), certs.contents(*entry)) {
            match row.action {
                RowAction::Kept => &mut commit,
                RowAction::Replaced => commit.file(path.clone(), bytes.clone(), mode),
                _ => commit.file_if_absent(path.clone(), bytes.clone(), mode),
            };
        }
    }
    let committed = store.commit(commit)?;
    notes.extend(committed.notes.iter().map(ToString::to_string));
    Ok(report(rows, notes, committed.written))
}

/// Compares each file with the cluster's, and returns a row with its action.
fn compare(
    root: &NodeRoot,
    certs: &SharedCerts,
    what: Download<'_>,
) -> Result<Vec<(ReportRow, SharedFile)>, Failure> {
    let mut rows = Vec::new();
    let mut differences = Vec::new();
    for entry in certs.entries() {
        let (Some(path), Some(bytes)) = (path(what.cluster, entry), certs.contents(entry)) else {
            continue;
        };
        let found = root.read(&path)?.filter(|found| !found.bytes.is_empty());
        let action = match found {
            None => RowAction::Written,
            Some(found) if is_same(entry, &found.bytes, bytes) => RowAction::Kept,
            Some(_) if what.replace => RowAction::Replaced,
            Some(found) => {
                differences.push(format!(
                    "{} is not the {entry} that the cluster shares: it contains {}, the Secret {NAMESPACE}/{SECRET_NAME} contains {}; if this node is to join that cluster, run again with --replace, which installs the cluster's file",
                    root.on_this_machine(&path).display(),
                    in_words(entry, &found.bytes),
                    in_words(entry, bytes)
                ));
                continue;
            }
        };
        rows.push((row(entry, action, root.node_path(path), bytes), entry));
    }
    match differences.is_empty() {
        true => Ok(rows),
        false => Err(Failure::with_messages(ExitCode::Refused, differences)),
    }
}

/// Returns whether two files contain the same key or certificates, in any encoding.
fn is_same(entry: SharedFile, found: &[u8], wanted: &[u8]) -> bool {
    found == wanted || entry.holds(found) == entry.holds(wanted)
}

fn in_words(entry: SharedFile, bytes: &[u8]) -> String {
    entry.holds(bytes).map_or_else(
        || "neither a key nor a certificate".to_owned(),
        |held| held.to_string(),
    )
}

fn row(entry: SharedFile, action: RowAction, path: NodePath, bytes: &[u8]) -> ReportRow {
    let held = entry.holds(bytes);
    let certificate = held.as_ref().and_then(|held| held.certificate());
    ReportRow {
        name: entry.to_string(),
        action,
        subject: certificate.map(|certificate| certificate.subject().to_string()),
        not_after: certificate.map(|certificate| certificate.not_after()),
        key: held
            .as_ref()
            .and_then(|held| Some(held.key()?.key_type().to_string())),
        paths: vec![path],
        ..ReportRow::default()
    }
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
    cluster: &ClusterConfig,
    with_ca_keys: bool,
    clock: Clock,
) -> Result<RunReport, Failure> {
    let names = shared(cluster);
    let (certs, rows) = gather(root, cluster, &names, with_ca_keys)?;
    let data = kubeadm_certs::seal(&certs, &names, key).map_err(unsealed)?;

    let expires = clock() + SECRET_LIFETIME;
    let token = create_token(api, &rfc3339(expires)).await?;
    let sent = send(api, &data, &token).await;
    if sent.is_err() {
        // The token owns the Secret, so that both are removed. If this fails too, both expire after two hours.
        let removed = api.delete(&api::SECRET, Some(NAMESPACE), &token.name).await;
        tracing::debug!(
            token = token.name,
            removed = removed.is_ok(),
            "the upload failed"
        );
    }
    sent?;
    let mut notes = vec![format!(
        "the Secret {NAMESPACE}/{SECRET_NAME} is removed by the cluster after {}",
        rfc3339(expires)
    )];
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
    cluster: &ClusterConfig,
    names: &BTreeSet<SharedFile>,
    with_ca_keys: bool,
) -> Result<(SharedCerts, Vec<ReportRow>), Failure> {
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

/// Returns every name in kubeadm's Secret of this cluster.
fn shared(cluster: &ClusterConfig) -> BTreeSet<SharedFile> {
    let mut names = needed(cluster, true);
    if matches!(cluster.etcd, Etcd::External { .. }) {
        names.extend([
            SharedFile::ExternalEtcdAuthority,
            SharedFile::ExternalEtcdCertificate,
            SharedFile::ExternalEtcdKey,
        ]);
    }
    names
}

/// The bootstrap token that owns the Secret, so that both expire together. It permits neither signing nor authentication.
struct Token {
    name: String,
    uid: Value,
}

async fn create_token(api: &Api, expiration: &str) -> Result<Token, Failure> {
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
    Ok(Token {
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
        // 252 is the largest multiple of 36 in a byte, so that all characters are equally likely.
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
    Failure::new(ExitCode::Pending, "nothing was uploaded")
        .caused_by(error)
        .advise("run again")
}

/// Writes the Secret before the Role that permits reading it, as kubeadm does.
async fn send(api: &Api, data: &BTreeMap<String, Vec<u8>>, token: &Token) -> Result<(), Failure> {
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
    let role = json!({
        "apiVersion": ROLES.api_version(),
        "kind": "Role",
        "metadata": {"name": ROLE_NAME, "namespace": NAMESPACE},
        "rules": [{
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": [SECRET_NAME],
            "verbs": ["get"],
        }],
    });
    let binding = json!({
        "apiVersion": ROLE_BINDINGS.api_version(),
        "kind": "RoleBinding",
        "metadata": {"name": ROLE_NAME, "namespace": NAMESPACE},
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": ROLE_NAME},
        "subjects": [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": JOINING_NODES_GROUP}],
    });
    for (resource, name, object) in [
        (&api::SECRET, SECRET_NAME, secret),
        (&ROLES, ROLE_NAME, role),
        (&ROLE_BINDINGS, ROLE_NAME, binding),
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn names(cluster: &ClusterConfig, with_ca_keys: bool) -> String {
        let names: Vec<_> = needed(cluster, with_ca_keys)
            .into_iter()
            .map(SharedFile::as_str)
            .collect();
        names.join(" ")
    }

    #[test]
    fn needs_files_of_external_etcd() {
        let mut cluster = ClusterConfig::default();
        assert_eq!(
            names(&cluster, false),
            "ca.crt etcd-ca.crt front-proxy-ca.crt sa.key sa.pub"
        );
        assert_eq!(
            names(&cluster, true),
            "ca.crt etcd-ca.crt front-proxy-ca.crt ca.key etcd-ca.key front-proxy-ca.key sa.key sa.pub"
        );
        let external = |name: Option<&str>| Etcd::External {
            endpoints: vec!["http://192.0.2.21:2379".to_owned()],
            ca_file: name.map(PathBuf::from),
            cert_file: name.map(PathBuf::from),
            key_file: name.map(PathBuf::from),
        };
        cluster.etcd = external(Some("/etc/etcd/file"));
        assert_eq!(
            names(&cluster, false),
            "ca.crt front-proxy-ca.crt sa.key sa.pub external-etcd-ca.crt external-etcd.crt external-etcd.key"
        );
        cluster.etcd = external(None);
        assert_eq!(
            names(&cluster, true),
            "ca.crt front-proxy-ca.crt ca.key front-proxy-ca.key sa.key sa.pub"
        );
    }
}
