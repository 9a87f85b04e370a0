//! Fetches the data that a joining node lacks from its cluster: the ClusterConfiguration, the CA certificates, the
//! service-account pair, and CA private keys if no signer is configured. A worker fetches the ClusterConfiguration and the
//! CA certificate only.
//!
//! Reads from the cluster, only what the node lacks, and writes nothing. The fetched data is added to the [`RunSetup`], and
//! the agent installs it like other inputs: missing files are created, existing files are never replaced, except by the CA
//! certificates of a change in the cluster until kubeadm has run (`spec::authority_rotation`). CA private keys stay in
//! memory unless `join.writeCAKeys` requires them on the node.

mod missing;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::agent::authority::{objects::RotationMap, rotate};
use crate::agent::shared_certs;
use crate::agent::{
    Clock, ExitCode, Failure, ProvidedBundle, ProvidedFile, RunSetup, ServiceAccount,
};
use crate::cluster::api::{Api, ApiError};
use crate::cluster::discovery::{self, Discovered};
use crate::http::Files;
use crate::kube::jwks;
use crate::kube::kubeadm::{self, JoinDiscovery};
use crate::kube::kubeadm_certs::{
    CertificateKey, CertificateKeyError, SharedCerts, SharedFile, UPLOAD_COMMAND,
};
use crate::kube::kubeconfig;
use crate::kube::names::Authority;
use crate::spec::authority_rotation::{AuthorityRotation, RotatedCa, RotationSubject};
use crate::store::{Mode, NodeRoot};
use crate::x509::{Certificate, PrivateKey, PublicKey, TrustBundle};
use crate::yaml;

use missing::MissingFiles;

/// File with the ClusterConfiguration of the last setup of this node.
pub const CLUSTER_CONFIGURATION_COPY: &str = "/var/lib/nodepki/cluster-configuration.yaml";
/// Time limit for the comparison of service-account keys, which the cluster often forbids.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(5);
/// Source of the shared certificates, for messages.
const SHARED_CERTS_SECRET: &str = "the Secret kube-system/kubeadm-certs";
/// The fields of a ClusterConfiguration that affect a worker. The other fields concern certificates that a worker does not
/// have, or paths that its JoinConfiguration sets.
const WORKER_FIELDS: [&str; 9] = [
    "apiVersion",
    "kind",
    "clusterName",
    "controlPlaneEndpoint",
    "kubernetesVersion",
    "encryptionAlgorithm",
    "featureGates",
    "certificateValidityPeriod",
    "caCertificateValidityPeriod",
];
/// File with the JoinConfiguration for `kubeadm join --config`.
pub const HANDOVER: &str = "/var/lib/nodepki/kubeadm-join.yaml";

/// The cluster that a node joins. Discovery runs at the first request.
pub struct JoinedCluster {
    join: JoinDiscovery,
    files: Rc<dyn Files>,
    credentials: Option<PathBuf>,
    clock: Clock,
    deadline: Instant,
    found: OnceCell<(Discovered, Api)>,
}

impl JoinedCluster {
    /// Sends no request. `wait` limits the time for discovery.
    pub fn new(
        join: JoinDiscovery,
        files: Rc<dyn Files>,
        credentials: Option<PathBuf>,
        clock: Clock,
        wait: Duration,
    ) -> Self {
        JoinedCluster {
            join,
            files,
            credentials,
            clock,
            deadline: Instant::now() + wait,
            found: OnceCell::new(),
        }
    }

    /// Returns the API of the cluster.
    ///
    /// # Errors
    /// A cluster that is not found, or is not the expected one.
    pub async fn api(&self) -> Result<&Api, Failure> {
        Ok(&self.found().await?.1)
    }

    /// Returns the URL of the API server for a worker's kubelet.conf; `None` if the cluster was not asked yet.
    pub fn kubelet_server(&self) -> Option<String> {
        let (discovered, _) = self.found.get()?;
        Some(discovered.kubelet_server.clone())
    }

    async fn found(&self) -> Result<&(Discovered, Api), Failure> {
        self.found
            .get_or_try_init(|| async {
                let discovered = discovery::discover(
                    &self.join,
                    Rc::clone(&self.files),
                    self.credentials.clone(),
                    self.clock,
                    self.deadline,
                )
                .await?;
                let files = Rc::clone(&self.files);
                let api = discovered.api(files, self.credentials.clone(), self.clock)?;
                Ok((discovered, api))
            })
            .await
    }

    /// Returns the ClusterConfiguration: its source and its text. `kept` is the one of an earlier run, which is returned if
    /// the cluster is unreachable or denies access.
    ///
    /// # Errors
    /// A cluster that is not found, is not the expected one, or has no ClusterConfiguration.
    pub async fn configuration(
        &self,
        kept: Option<(String, String)>,
    ) -> Result<(String, String), Failure> {
        let fetch = async {
            let (_, api) = self.found().await?;
            shared_certs::configuration(api).await
        };
        match (fetch.await, kept) {
            (Err(failure), Some(kept))
                if matches!(failure.code, ExitCode::Unreachable | ExitCode::NotPermitted) =>
            {
                Ok(kept)
            }
            (fetched, _) => fetched,
        }
    }

    /// Adds the data that the node lacks to the setup and returns notes for the report. `certificate_key` is called only if
    /// something has to be decrypted, because later runs do not have the key.
    ///
    /// # Errors
    /// A cluster that is not found, is not the expected one, or lacks the data too.
    pub async fn complete(
        &self,
        root: &NodeRoot,
        setup: &mut RunSetup,
        certificate_key: impl FnOnce() -> Result<Option<CertificateKey>, Failure>,
        write_ca_keys: bool,
    ) -> Result<Vec<String>, Failure> {
        let missing = MissingFiles::on_node(root, setup, write_ca_keys, (self.clock)())?;
        let certificate_key = if missing.entries.is_empty() {
            None
        } else {
            certificate_key()?.map_or_else(|| self.configured_key(), |key| Ok(Some(key)))?
        };
        let mut notes = Vec::new();
        if let Some(key) = certificate_key {
            let fetched = self.shared(&key, &missing.entries).await;
            let (shared, left_out) =
                fetched.map_err(|failure| missing.explain_unsigned(failure))?;
            notes.extend(left_out);
            notes.extend(missing.add_to_setup(&shared, setup)?);
        } else if !missing.ca_keys.is_empty() {
            return Err(Failure::misconfigured(format!(
                "join.writeCAKeys requires CA private keys on this node, but no certificate key decrypts those of {SHARED_CERTS_SECRET}: set join.certificateKey to a file with the key that `{UPLOAD_COMMAND}` prints, or remove join.writeCAKeys"
            )));
        } else if missing.authority && self.join.discovery.is_some() {
            self.found().await?;
        } else if setup.kubeadm_follows && missing.has_several_cas() {
            // The files suffice while the bootstrap token is not valid any more, or the cluster is unreachable.
            if let Err(failure) = self.found().await {
                notes.push(format!(
                    "a file with CA certificates is of a change in the cluster, whose phase is not known: {}",
                    failure.one_line()
                ));
            }
        }
        if let Some((discovered, api)) = self.found.get() {
            notes.extend(discovered.notes.iter().cloned());
            missing.verify_discovered(discovered, setup)?;
            if setup.kubeadm_follows {
                notes.extend(self.follow_rotations(api, &missing, setup).await?);
            }
            match &setup.provided.service_account {
                Some(ServiceAccount { from, key, .. })
                    if accepts_tokens_of(api, key.public_key()).await == Some(false) =>
                {
                    return Err(foreign_key(from));
                }
                Some(_) => {}
                None => compare_service_account(root, setup, api).await?,
            }
        }
        Ok(notes)
    }

    /// Adds the CA certificates that the other nodes trust while the cluster changes a CA, and after that. They replace the
    /// old and the new one, on the node or from another source. Returns notes for the report.
    async fn follow_rotations(
        &self,
        api: &Api,
        missing: &MissingFiles,
        setup: &mut RunSetup,
    ) -> Result<Vec<String>, Failure> {
        let map = match RotationMap::read(api).await {
            // A cluster in which no CA was changed by `authority rotate` does not let joining nodes read it.
            Err(ApiError::Refused(status)) if status.code == 403 => return Ok(Vec::new()),
            read => read.map_err(|error| {
                Failure::of_cluster("reading the changes of CAs in the cluster", error)
            })?,
        };
        let mut notes = Vec::new();
        for (subject, rotation) in map.rotations().rotations {
            let RotationSubject::Authority(authority) = subject else {
                continue;
            };
            if setup.plan.bundle(authority).is_none() {
                continue;
            }
            let rotated = rotated_bundle(authority, &rotation)?;
            let on_node = missing.found.get(&authority);
            let provided = setup.provided.bundles.get(&authority);
            let known = on_node.or(provided.map(|provided| &provided.bundle));
            // Another CA may have replaced that of a change which has ended.
            if !known.map_or(!rotation.phase.is_end(), |known| rotated.replaces(known)) {
                continue;
            }
            if on_node.is_some() && !self.join.is_verified_by_ca() {
                notes.push(format!(
                    "the change of {authority} in the cluster, phase {}, is not followed: without discovery.bootstrapToken.caCertHashes the cluster has not proven its identity; set them in the JoinConfiguration",
                    rotation.phase
                ));
                continue;
            }
            notes.push(format!(
                "{authority} is changed in the cluster, phase {}: this node trusts {}",
                rotation.phase, rotated.bundle
            ));
            setup.provided.bundles.insert(authority, rotated);
        }
        Ok(notes)
    }

    async fn shared(
        &self,
        key: &CertificateKey,
        entries: &BTreeSet<SharedFile>,
    ) -> Result<(SharedCerts, Vec<String>), Failure> {
        let (_, api) = self.found().await?;
        shared_certs::fetch(api, key, entries).await
    }

    /// Parses `controlPlane.certificateKey` of the JoinConfiguration.
    fn configured_key(&self) -> Result<Option<CertificateKey>, Failure> {
        let written = self.join.certificate_key.as_ref();
        let parsed = written.map(|written| written.parse()).transpose();
        parsed.map_err(|error: CertificateKeyError| {
            Failure::misconfigured("controlPlane.certificateKey of the JoinConfiguration")
                .caused_by(error)
        })
    }
}

/// Returns the CA certificates that nodes trust in the present phase of a change.
fn rotated_bundle(
    authority: Authority,
    rotation: &AuthorityRotation,
) -> Result<ProvidedBundle, Failure> {
    let from = format!("the change of {authority} in the cluster");
    let unusable = |why: String| Failure::refused(format!("{from}: {why}"));
    let certificates = |cas: Vec<&RotatedCa>| -> Result<Vec<Certificate>, Failure> {
        let read = cas.into_iter().map(rotate::certificate);
        read.collect::<Result<_, _>>().map_err(unusable)
    };
    let trusted = certificates(rotation.trusted())?;
    let bundle = TrustBundle::from_certificates(trusted);
    Ok(ProvidedBundle {
        bundle: bundle.map_err(|error| unusable(error.to_string()))?,
        supersedes: certificates(vec![&rotation.old, &rotation.new])?,
        from: from.clone(),
    })
}

/// Returns the path and text of the ClusterConfiguration that an earlier run kept, whether it came from a file or from the
/// cluster. It is kept because a bootstrap token expires after a day, while a signer may take longer, and because
/// `/run/kubeadm` does not survive a reboot.
///
/// # Errors
/// A file that cannot be read.
pub fn kept_configuration(root: &NodeRoot) -> Result<Option<(String, String)>, Failure> {
    let shown = root.node_path(CLUSTER_CONFIGURATION_COPY);
    let Some(content) = root.read(CLUSTER_CONFIGURATION_COPY)? else {
        return Ok(None);
    };
    // A failed write can leave an empty file.
    if content.bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    match String::from_utf8(content.bytes.to_vec()) {
        Ok(text) => Ok(Some((shown.to_string(), text))),
        Err(_) => Err(Failure::refused(format!(
            "{shown} is not UTF-8 text; remove it, and nodepki fetches it from the cluster again"
        ))),
    }
}

/// Returns the fields of a ClusterConfiguration that affect a worker, as YAML.
///
/// # Errors
/// A text that is not YAML.
pub fn configuration_of_worker(from: &str, text: &str) -> Result<String, Failure> {
    let unusable =
        |why: String| Failure::refused(format!("{from}: {why} (correct it in the cluster)"));
    let documents = yaml::parse(from, text).map_err(|faults| unusable(faults.to_string()))?;
    let texts = documents.iter().map(|document| {
        let mut document = yaml::to_json(document);
        if let Some(fields) = document.as_object_mut() {
            fields.retain(|name, _| WORKER_FIELDS.contains(&name.as_str()));
        }
        yaml::to_string(&document).map_err(|error| unusable(error.to_string()))
    });
    let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
    Ok(texts.join("---\n"))
}

/// Returns the file for [`kept_configuration`] of later runs: the ClusterConfiguration and the key policy, if any. The
/// other documents of a kubeadm file are secret or soon out of date. `fetched`: this run read it from the cluster. `None`
/// without a ClusterConfiguration.
///
/// # Errors
/// A document that cannot be written as YAML.
pub fn configuration_to_keep(
    root: &NodeRoot,
    documents: &kubeadm::Documents,
    fetched: bool,
) -> Result<Option<ProvidedFile>, Failure> {
    let Some((from, document)) = documents.cluster_document() else {
        return Ok(None);
    };
    let policies = documents.policies().iter().map(yaml::to_json);
    let texts: Result<Vec<String>, _> = std::iter::once(document)
        .chain(policies)
        .map(|document| yaml::to_string(&document))
        .collect();
    let text = texts.map(|texts| texts.join("---\n"));
    let text = text.map_err(|error| {
        Failure::misconfigured(format!(
            "the ClusterConfiguration of {from} cannot be rewritten as YAML"
        ))
        .caused_by(error)
        .advise("simplify it")
    })?;
    Ok(Some(ProvidedFile {
        what: "cluster-configuration.yaml".to_owned(),
        from,
        path: root.node_path(CLUSTER_CONFIGURATION_COPY),
        bytes: Zeroizing::new(text.into_bytes()),
        mode: Mode::Private,
        ours: true,
        may_vanish: fetched,
    }))
}

/// Returns the JoinConfiguration for the following `kubeadm join`: it ignores the preflight errors that the installed files
/// cause, and does not contain a certificate key, which kubeadm would use to fetch CA private keys to this node.
///
/// # Errors
/// A document that cannot be written as YAML.
pub fn handover(
    root: &NodeRoot,
    mut document: Value,
    ignore: &[String],
) -> Result<ProvidedFile, Failure> {
    if let Some(registration) = object_at(&mut document, "nodeRegistration") {
        let mut all: Vec<String> = registration
            .get("ignorePreflightErrors")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        all.extend(
            ignore
                .iter()
                .filter(|name| !all.contains(name))
                .cloned()
                .collect::<Vec<_>>(),
        );
        registration.insert("ignorePreflightErrors".to_owned(), json!(all));
    }
    if let Some(control_plane) = document
        .get_mut("controlPlane")
        .and_then(Value::as_object_mut)
    {
        control_plane.shift_remove("certificateKey");
    }
    let text = yaml::to_string(&document);
    kubeconfig::wipe(&mut document);
    let text = text.map_err(|error| {
        Failure::misconfigured("the JoinConfiguration cannot be rewritten as YAML")
            .caused_by(error)
            .advise("simplify it")
    })?;
    Ok(ProvidedFile {
        what: "kubeadm-join.yaml".to_owned(),
        from: "the JoinConfiguration".to_owned(),
        path: root.node_path(HANDOVER),
        // Contains the bootstrap token.
        bytes: Zeroizing::new(text.into_bytes()),
        mode: Mode::Private,
        ours: true,
        may_vanish: true,
    })
}

/// Returns the object under `key`, and creates it if it is absent.
fn object_at<'a>(document: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    let entry = document
        .as_object_mut()?
        .entry(key.to_owned())
        .or_insert(Value::Null);
    if entry.is_null() {
        *entry = json!({});
    }
    entry.as_object_mut()
}

/// Returns whether the cluster accepts tokens signed with this key; `None` if that is unknown. Administrators can read
/// the cluster's keys; bootstrap tokens usually cannot.
async fn accepts_tokens_of(api: &Api, key: &PublicKey) -> Option<bool> {
    let asked = api
        .document(jwks::JWKS_PATH)
        .await
        .map_err(|error| error.to_string());
    let known =
        asked.and_then(|set| jwks::contains_key(&set, key).map_err(|error| error.to_string()));
    known
        .inspect_err(|why| tracing::debug!("the cluster's service-account keys are unknown: {why}"))
        .ok()
}

/// Compares the node's service-account key with those of the cluster that it joined, if `api` may read them.
///
/// # Errors
/// The cluster does not publish the node's key.
pub async fn compare_service_account(
    root: &NodeRoot,
    setup: &RunSetup,
    api: &Api,
) -> Result<(), Failure> {
    let Some(spec) = &setup.plan.service_account else {
        return Ok(());
    };
    let Some(private) = root.read(&spec.private)? else {
        return Ok(());
    };
    let Ok(key) = PrivateKey::from_pem(&private.bytes) else {
        return Ok(());
    };
    let asked =
        tokio::time::timeout(COMPARE_TIMEOUT, accepts_tokens_of(api, key.public_key())).await;
    match asked {
        Ok(Some(false)) => Err(foreign_key(&spec.private.to_string())),
        _ => Ok(()),
    }
}

fn foreign_key(path: &str) -> Failure {
    Failure::refused(format!(
        "the service-account key in {path} is not among those that the cluster publishes ({}): other control-plane nodes would reject tokens signed on this node, and this node would reject theirs; copy sa.key and sa.pub from a running control-plane node",
        jwks::JWKS_PATH
    ))
}
