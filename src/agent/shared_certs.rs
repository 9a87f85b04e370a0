//! Shared certificates: the files that kubeadm copies between control-plane nodes in the Secret `kubeadm-certs`.
//!
//! [`download`] writes them from the cluster to the node, [`upload()`] from the node to the cluster, and [`expire()`]
//! removes them from the cluster; [`kubeadm_certs`] has the format. The objects in the cluster equal kubeadm's in every field (its `phases/copycerts`), so each program
//! can read the upload of the other.

mod expire;
mod upload;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

pub use expire::{Expiry, expire};
pub use upload::{MAX_SECRET_LIFETIME, Upload, upload};

use crate::agent::{Clock, ExitCode, Failure, ReportRow, RowAction, RunReport, recovery_notes};
use crate::cluster::api::{self, Api};
use crate::kube::kubeadm::{ClusterConfig, Etcd};
use crate::kube::kubeadm_certs::{
    self, CertificateKey, NAMESPACE, SECRET_NAME, SharedCerts, SharedFile, UPLOAD_COMMAND,
};
use crate::kube::names::{Authority, NodePath};
use crate::store::{Commit, KeyRemoval, KnownDirectories, Mode, NodeRoot};

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
/// The Secret cannot be read, or does not contain a needed file. One that an upload may still create is
/// [`ExitCode::Unreachable`].
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
                failure.code = ExitCode::Unreachable;
                failure.messages.push(format!(
                    "joining nodes may read the Secret {NAMESPACE}/{SECRET_NAME} from the first upload on; upload on a control-plane node, and use the certificate key that this command prints: {UPLOAD_COMMAND}"
                ).into());
            }
            failure
        })?
        .ok_or_else(|| {
            Failure::new(
                ExitCode::Unreachable,
                format!(
                    "the Secret {NAMESPACE}/{SECRET_NAME} does not exist: no upload was made, or it has expired, by default two hours after the last upload; upload again on a control-plane node, and use the certificate key that this command prints: {UPLOAD_COMMAND}"
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
                Err(_) => Err(Failure::refused(format!(
                    "{name:?} in the Secret {NAMESPACE}/{SECRET_NAME} is not valid base64; check that the address is that of a Kubernetes API server"
                ))),
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
        None => Err(Failure::refused(format!(
            "{DOING}: it does not exist; run `kubeadm init phase upload-config kubeadm --config FILE` on a control-plane node, or name a file that contains one: --kubeadm-config FILE"
        ))),
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
    let (mut store, recovery) = locked.recover_in(&known, KeyRemoval::IfBackedUp, clock())?;
    notes.extend(recovery_notes(root, &recovery));
    let rows = compare(store.root(), &certs, what)?;
    let mut commit = Commit::new();
    for (row, entry) in &rows {
        let mode = if entry.is_private() {
            Mode::Private
        } else {
            Mode::Public
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
    Failure::require_none(differences)?;
    Ok(rows)
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
