//! What a joining node has from its cluster: the ClusterConfiguration, the authorities' certificates, the
//! service-account pair, and CA keys to sign with where no signer is configured. A worker has the ClusterConfiguration
//! and the CA certificate only.
//!
//! Reads the cluster, and only what the node lacks; writes nothing. What was fetched goes into the [`Setup`], and the
//! agent treats it like everything else: it fills what is missing and replaces nothing. CA private keys stay in memory
//! unless the settings want them on the node.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::agent::shared_certs;
use crate::agent::{Clock, ExitCode, Failure, Provided, ProvidedFile, ServiceAccount, Setup};
use crate::cluster::api::Api;
use crate::cluster::discovery::{self, Discovered};
use crate::http::Files;
use crate::kube::jwks;
use crate::kube::kubeadm::{self, Join};
use crate::kube::kubeadm_certs::{CertificateKey, CertificateKeyError, Entry, SharedCerts, UPLOAD};
use crate::kube::kubeconfig;
use crate::kube::names::{Authority, NodePath};
use crate::signer::Signer;
use crate::signer::local::Local;
use crate::store::{Mode, Root};
use crate::x509::{CertificateAuthority, PrivateKey, PublicKey, TrustBundle};
use crate::yaml;

/// The ClusterConfiguration that the node was last set up with.
pub const KEPT: &str = "/var/lib/nodepki/cluster-configuration.yaml";
/// A comparison that may well be forbidden is not waited for.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(5);
/// Where everything below comes from, for messages.
const SHARED: &str = "the Secret kube-system/kubeadm-certs";
/// The fields of a ClusterConfiguration that matter to a worker. It makes none of the other certificates, and its files
/// are where its JoinConfiguration has them.
const FIELDS_OF_WORKER: [&str; 9] = [
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
/// The JoinConfiguration to go on with, for `kubeadm join --config`.
pub const HANDOVER: &str = "/var/lib/nodepki/kubeadm-join.yaml";
/// Name and label of the signer that has its keys from there.
const SIGNER: &str = "kubeadm-certs";

/// The cluster that a node joins, found when something is first asked of it.
pub struct JoinedCluster {
    join: Join,
    files: Rc<dyn Files>,
    credentials: Option<PathBuf>,
    clock: Clock,
    deadline: Instant,
    found: OnceCell<(Discovered, Api)>,
}

impl JoinedCluster {
    /// Asks nothing yet. `wait` is how long the cluster may take to be found.
    pub fn new(
        join: Join,
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

    /// The ClusterConfiguration: where it comes from, and its text. `kept` is what an earlier run had, good enough where
    /// the cluster says nothing any more.
    ///
    /// # Errors
    /// A cluster that is not found or not the right one, or that has none.
    pub async fn configuration(
        &self,
        kept: Option<(String, String)>,
    ) -> Result<(String, String), Failure> {
        let asked = async {
            let (_, api) = self.found().await?;
            shared_certs::configuration(api).await
        };
        match (asked.await, kept) {
            (Err(failure), Some(kept))
                if matches!(failure.code, ExitCode::Unreachable | ExitCode::NotPermitted) =>
            {
                Ok(kept)
            }
            (asked, _) => asked,
        }
    }

    /// Adds to the setup what the node lacks and the cluster has, and returns what deserves to be known. The certificate
    /// key is asked for only when something is to be decrypted: later runs do without it.
    ///
    /// # Errors
    /// A cluster that is not found or not the right one, or that lacks it too.
    pub async fn complete(
        &self,
        root: &Root,
        setup: &mut Setup,
        certificate_key: impl FnOnce() -> Result<Option<CertificateKey>, Failure>,
        write_ca_keys: bool,
    ) -> Result<Vec<String>, Failure> {
        let lacking = Lacking::of(root, setup, write_ca_keys, (self.clock)())?;
        let certificate_key = match lacking.entries.is_empty() {
            true => None,
            false => certificate_key()?.map_or_else(|| self.written_key(), |key| Ok(Some(key)))?,
        };
        let mut notes = Vec::new();
        if let Some(key) = certificate_key {
            let fetched = self.shared(&key, &lacking.entries).await;
            let (shared, left_out) = fetched.map_err(|failure| lacking.explained(failure))?;
            notes.extend(left_out);
            notes.extend(lacking.take(&shared, setup)?);
        } else if !lacking.ca_keys.is_empty() {
            return Err(Failure::new(
                ExitCode::Configuration,
                format!(
                    "join.writeCAKeys wants CA private keys on this node, and nothing decrypts those of {SHARED}: set join.certificateKey to a file with what `{UPLOAD}` prints, or remove join.writeCAKeys"
                ),
            ));
        } else if lacking.authority && self.join.discovery.is_some() {
            self.found().await?;
        }
        if let Some((discovered, api)) = self.found.get() {
            notes.extend(discovered.notes.iter().cloned());
            lacking.recognize(discovered, setup)?;
            match &setup.provided.service_account {
                Some(ServiceAccount { from, key, .. })
                    if knows(api, key.public_key()).await == Some(false) =>
                {
                    return Err(foreign_key(from));
                }
                Some(_) => {}
                None => compare_service_account(root, setup, api).await?,
            }
        }
        Ok(notes)
    }

    async fn shared(
        &self,
        key: &CertificateKey,
        entries: &BTreeSet<Entry>,
    ) -> Result<(SharedCerts, Vec<String>), Failure> {
        let (_, api) = self.found().await?;
        shared_certs::fetch(api, key, entries).await
    }

    /// `controlPlane.certificateKey` of the JoinConfiguration.
    fn written_key(&self) -> Result<Option<CertificateKey>, Failure> {
        let written = self.join.certificate_key.as_ref();
        let parsed = written.map(|written| written.parse()).transpose();
        parsed.map_err(|error: CertificateKeyError| {
            Failure::new(
                ExitCode::Configuration,
                format!("controlPlane.certificateKey of the JoinConfiguration: {error}"),
            )
        })
    }
}

/// The ClusterConfiguration that an earlier run had, from a file or from the cluster. The cluster is not asked twice: a
/// bootstrap token is gone after a day, while a signer may take longer; and `/run/kubeadm` is gone with the next boot.
///
/// # Errors
/// A file that cannot be read.
pub fn kept_configuration(root: &Root) -> Result<Option<(String, String)>, Failure> {
    let shown = root.node_path(KEPT);
    let Some(content) = root.read(KEPT)? else {
        return Ok(None);
    };
    // What is left of a write that failed says nothing.
    if content.bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    match String::from_utf8(content.bytes.to_vec()) {
        Ok(text) => Ok(Some((shown.to_string(), text))),
        Err(_) => Err(Failure::new(
            ExitCode::Refused,
            format!("{shown} is not UTF-8 text; remove it, and it is asked of the cluster again"),
        )),
    }
}

/// Returns what of the cluster's ClusterConfiguration matters to a worker.
///
/// # Errors
/// A text that is not YAML.
pub fn configuration_of_worker(from: &str, text: &str) -> Result<String, Failure> {
    let unusable = |why: String| {
        Failure::new(
            ExitCode::Refused,
            format!("{from}: {why} (correct it in the cluster)"),
        )
    };
    let documents = yaml::parse(from, text).map_err(|faults| unusable(faults.to_string()))?;
    let texts = documents.iter().map(|document| {
        let mut document = yaml::to_json(document);
        if let Some(fields) = document.as_object_mut() {
            fields.retain(|name, _| FIELDS_OF_WORKER.contains(&name.as_str()));
        }
        yaml::to_string(&document).map_err(|error| unusable(error.to_string()))
    });
    let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
    Ok(texts.join("---\n"))
}

/// For [`kept_configuration`] of later runs: the ClusterConfiguration, and the key policy where there is one. What else
/// a kubeadm file holds is secret or soon out of date. `fetched`: this run had it from the cluster. `None` where nothing says anything of the
/// cluster.
///
/// # Errors
/// A document that cannot be written as YAML.
pub fn configuration_to_keep(
    root: &Root,
    documents: &kubeadm::Loaded,
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
        Failure::new(
            ExitCode::Configuration,
            format!(
                "the ClusterConfiguration of {from} cannot be written anew: {error}; simplify it"
            ),
        )
    })?;
    Ok(Some(ProvidedFile {
        what: "cluster-configuration.yaml".to_owned(),
        from,
        path: root.node_path(KEPT),
        bytes: Zeroizing::new(text.into_bytes()),
        mode: Mode::Private,
        ours: true,
        perishable: fetched,
    }))
}

/// The JoinConfiguration for the `kubeadm join` that follows: it ignores the preflight errors that the plan's files
/// cause, and has no certificate key, since kubeadm would use it to fetch CA private keys to this node.
///
/// # Errors
/// A document that cannot be written as YAML.
pub fn handover(
    root: &Root,
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
        Failure::new(
            ExitCode::Configuration,
            format!("the JoinConfiguration cannot be written anew: {error}; simplify it"),
        )
    })?;
    Ok(ProvidedFile {
        what: "kubeadm-join.yaml".to_owned(),
        from: "the JoinConfiguration".to_owned(),
        path: root.node_path(HANDOVER),
        // It holds the bootstrap token.
        bytes: Zeroizing::new(text.into_bytes()),
        mode: Mode::Private,
        ours: true,
        perishable: true,
    })
}

/// The object under `key`, made where there is none.
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

/// Whether the cluster takes tokens that this key signed; `None` where it does not say. Bootstrap tokens may usually
/// not ask, administrators may.
async fn knows(api: &Api, key: &PublicKey) -> Option<bool> {
    let asked = api
        .document(jwks::PATH)
        .await
        .map_err(|error| error.to_string());
    let known = asked.and_then(|set| jwks::knows(&set, key).map_err(|error| error.to_string()));
    known
        .inspect_err(|why| {
            tracing::debug!("the cluster's service-account keys are not known: {why}")
        })
        .ok()
}

/// Compares the node's service-account key with those of the cluster that it joined, as far as `api` may ask.
///
/// # Errors
/// Another key than the cluster's.
pub async fn compare_service_account(root: &Root, setup: &Setup, api: &Api) -> Result<(), Failure> {
    let Some(spec) = &setup.plan.service_account else {
        return Ok(());
    };
    let Some(private) = root.read(&spec.private)? else {
        return Ok(());
    };
    let Ok(key) = PrivateKey::from_pem(&private.bytes) else {
        return Ok(());
    };
    let asked = tokio::time::timeout(COMPARE_TIMEOUT, knows(api, key.public_key())).await;
    match asked {
        Ok(Some(false)) => Err(foreign_key(&spec.private.to_string())),
        _ => Ok(()),
    }
}

fn foreign_key(whose: &str) -> Failure {
    Failure::new(
        ExitCode::Refused,
        format!(
            "the service-account key in {whose} is not among those that the cluster publishes ({}): tokens signed on this node would be refused elsewhere, and the other way round; take sa.key and sa.pub from a running control-plane node",
            jwks::PATH
        ),
    )
}

/// What the node needs from `kubeadm-certs`.
struct Lacking {
    entries: BTreeSet<Entry>,
    /// Neither the node nor the settings say what is trusted for the authority `ca`.
    authority: bool,
    /// Only the pins of the settings do.
    pinned: bool,
    /// Authorities that nobody is configured to sign for, while something is to be signed.
    unsigned: Vec<Authority>,
    /// Where CA keys go, when they are to be written and are not there.
    ca_keys: Vec<(Authority, NodePath)>,
    /// Files of an external etcd that are not there, or belong to one that is not.
    external_etcd: Vec<(Entry, &'static str, NodePath)>,
}

impl Lacking {
    fn of(
        root: &Root,
        setup: &Setup,
        write_ca_keys: bool,
        now: time::OffsetDateTime,
    ) -> Result<Self, Failure> {
        let plan = &setup.plan;
        let survey = setup.survey(root, now)?;
        let is_missing = |path: &Path| -> Result<bool, Failure> {
            Ok(root.metadata(path)?.is_none_or(|found| found.size == 0))
        };
        let mut lacking = Lacking {
            entries: BTreeSet::new(),
            authority: false,
            pinned: false,
            unsigned: Vec::new(),
            ca_keys: Vec::new(),
            external_etcd: Vec::new(),
        };
        for bundle in &survey.bundles {
            let authority = bundle.spec.authority;
            if bundle.found.present().is_none() {
                lacking.entries.insert(Entry::Authority(authority));
                let pinned = setup
                    .trust
                    .get(&authority)
                    .is_some_and(|trust| !trust.pins.is_empty());
                lacking.authority |= authority == Authority::Ca && !pinned;
                lacking.pinned |= authority == Authority::Ca && pinned;
            }
            let to_sign = || {
                survey
                    .to_issue()
                    .any(|cert| cert.spec.authority == authority)
            };
            if !setup.signers.contains_key(&authority) && to_sign() {
                lacking.unsigned.push(authority);
            }
            if write_ca_keys && is_missing(&bundle.spec.key_path)? {
                lacking
                    .ca_keys
                    .push((authority, bundle.spec.key_path.clone()));
            }
        }
        if let Some(external) = &plan.external_etcd {
            let authority = (
                Entry::ExternalEtcdAuthority,
                "etcd.external.caFile",
                external.authority.clone(),
            );
            let certificate = (
                Entry::ExternalEtcdCertificate,
                "etcd.external.certFile",
                external.certificate.clone(),
            );
            let key = (
                Entry::ExternalEtcdKey,
                "etcd.external.keyFile",
                external.key.clone(),
            );
            // The key of one certificate is of no use beside another: a pair comes whole, to be compared with what is
            // here.
            for together in [vec![authority], vec![certificate, key]] {
                let mut missing = false;
                for (.., path) in &together {
                    missing |= path.as_deref().map_or(Ok(false), is_missing)?;
                }
                let named = together
                    .into_iter()
                    .filter_map(|(entry, what, path)| Some((entry, what, path?)));
                lacking.external_etcd.extend(named.filter(|_| missing));
            }
        }
        let keys = lacking
            .unsigned
            .iter()
            .chain(lacking.ca_keys.iter().map(|(authority, _)| authority));
        let pairs: Vec<Entry> = keys
            .flat_map(|authority| {
                [
                    Entry::Authority(*authority),
                    Entry::AuthorityKey(*authority),
                ]
            })
            .collect();
        lacking.entries.extend(pairs);
        lacking
            .entries
            .extend(lacking.external_etcd.iter().map(|(entry, ..)| *entry));
        if let Some(spec) = &plan.service_account
            && is_missing(&spec.private)?
        {
            lacking.entries.insert(Entry::ServiceAccountKey);
        }
        if !lacking.entries.is_empty() {
            // What else every upload has comes along, to be compared with what is here.
            let bundles = plan.bundles.iter();
            lacking
                .entries
                .extend(bundles.map(|bundle| Entry::Authority(bundle.authority)));
            if plan.service_account.is_some() {
                let pair = [Entry::ServiceAccountKey, Entry::ServiceAccountPublic];
                lacking.entries.extend(pair);
            }
        }
        Ok(lacking)
    }

    /// Why CA private keys were looked for at all.
    fn explained(&self, mut failure: Failure) -> Failure {
        if !self.unsigned.is_empty() {
            let names: Vec<&str> = self
                .unsigned
                .iter()
                .map(|authority| authority.as_str())
                .collect();
            failure.messages.push(format!(
                "no signer is configured for {}, so that the CA's private key was looked for in {SHARED}: name one under authorities or with --signer if the key is elsewhere",
                names.join(", ")
            ));
        }
        failure
    }

    /// Holds the CA certificates that discovery has made sure of against those of the Secret, and leaves them in the
    /// setup to be held against those on disk, or to be written.
    fn recognize(&self, discovered: &Discovered, setup: &mut Setup) -> Result<(), Failure> {
        let shown = &discovered.authority;
        match setup.provided.bundles.get(&Authority::Ca) {
            Some((from, shared)) if !shown.vouches_for(shared) && !shared.vouches_for(shown) => {
                Err(Failure::new(
                    ExitCode::Refused,
                    format!(
                        "{} in {from} is not the CA of the cluster at {}: it holds {shared}, the API server is vouched for by {shown}; find out who changed the one or the other, then run `{UPLOAD}` on a control-plane node",
                        Entry::Authority(Authority::Ca),
                        discovered.server
                    ),
                ))
            }
            None if !self.pinned => {
                let from = format!("the cluster at {}", discovered.server);
                let bundles = &mut setup.provided.bundles;
                bundles.insert(Authority::Ca, (from, shown.clone()));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// From decrypted entries into the setup; says what CA private keys are used for.
    fn take(&self, shared: &SharedCerts, setup: &mut Setup) -> Result<Vec<String>, Failure> {
        let provided: &mut Provided = &mut setup.provided;
        for authority in Authority::ALL {
            if let Some(pem) = shared.contents(Entry::Authority(authority)) {
                let bundle = TrustBundle::from_pem(pem)
                    .map_err(|error| unusable(Entry::Authority(authority), error))?;
                provided
                    .bundles
                    .insert(authority, (SHARED.to_owned(), bundle));
            }
        }
        if let Some(pem) = shared.contents(Entry::ServiceAccountKey) {
            let key = PrivateKey::from_pem(pem)
                .map_err(|error| unusable(Entry::ServiceAccountKey, error))?;
            let entry = Entry::ServiceAccountPublic;
            let public = shared
                .contents(entry)
                .map(|pem| PublicKey::all_from_pem(pem));
            let public = public.transpose().map_err(|error| unusable(entry, error))?;
            provided.service_account = Some(ServiceAccount {
                from: SHARED.to_owned(),
                public: public.unwrap_or_else(|| vec![key.public_key().clone()]),
                key,
            });
        }
        let ca_keys = self.ca_keys.iter().map(|(authority, path)| {
            (
                Entry::AuthorityKey(*authority),
                "CA private key",
                path,
                Mode::Private,
            )
        });
        let external = self.external_etcd.iter().map(|(entry, what, path)| {
            let mode = match entry {
                Entry::ExternalEtcdKey => Mode::Private,
                _ => Mode::Public,
            };
            (*entry, *what, path, mode)
        });
        for (entry, what, path, mode) in ca_keys.chain(external) {
            if let Some(pem) = shared.contents(entry) {
                provided.files.push(ProvidedFile {
                    what: what.to_owned(),
                    from: SHARED.to_owned(),
                    path: path.clone(),
                    bytes: pem.clone(),
                    mode,
                    ours: false,
                    perishable: true,
                });
            }
        }
        let mut authorities = Vec::new();
        for authority in &self.unsigned {
            let (Some(certificate), Some(key)) = (
                shared.contents(Entry::Authority(*authority)),
                shared.contents(Entry::AuthorityKey(*authority)),
            ) else {
                continue;
            };
            let signing = CertificateAuthority::from_pem(certificate, key)
                .map_err(|error| unusable(Entry::AuthorityKey(*authority), error))?;
            authorities.push((*authority, signing));
        }
        let mut notes = Vec::new();
        if !authorities.is_empty() {
            let keys: Vec<&str> = authorities
                .iter()
                .map(|(authority, _)| Entry::AuthorityKey(*authority).as_str())
                .collect();
            notes.push(format!(
                "no signer is configured: {} of {SHARED} sign in the memory of this run",
                keys.join(", ")
            ));
            let signer: Rc<dyn Signer> = Rc::new(Local::in_memory(SIGNER, authorities));
            for authority in &self.unsigned {
                let signer = (SIGNER.to_owned(), Rc::clone(&signer));
                setup.signers.insert(*authority, signer);
            }
        }
        Ok(notes)
    }
}

fn unusable(entry: Entry, error: impl std::fmt::Display) -> Failure {
    Failure::new(
        ExitCode::Refused,
        format!(
            "{} in {SHARED} is unusable: {error}; run `{UPLOAD}` on a control-plane node",
            entry.as_str()
        ),
    )
}
