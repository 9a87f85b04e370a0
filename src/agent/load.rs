//! Loads the inputs of a run into a [`RunSetup`]: settings, kubeadm configuration, host facts, signers.
//!
//! `places` decides which paths are below the root and which are on this machine; `configuration` where the
//! ClusterConfiguration comes from; `known` assembles the setup.
//!
//! The configuration selects the signers and the names, and programs in it run as root. A configuration file that another
//! user can change is refused with exit status 65 and a message with its owner and mode:
//!
//! | file | belongs to | written by group or others |
//! | --- | --- | --- |
//! | settings at their own paths, `kubeadm.files`, `kubeadm.clusterConfiguration` | root or the running user, and so do all directories above | no; only directories that are sticky |
//! | `--config` | root or the running user | no |
//! | `--kubeadm-config` | any user | not by others |
//!
//! For a file on the command line the directories above are not verified: the administrator is responsible for them, and
//! kubeadm does not verify them either. Below `--root` the numeric owners in the image count.

mod audit;
pub mod certs;
mod configuration;
mod contents;
mod files;
mod host;
mod identity;
mod known;
mod places;
mod policy;
mod reach;
mod running;
mod scratch;
mod secrets;
mod signers;
mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;

use crate::agent::join::{self, JoinedCluster};
use crate::agent::{Clock, ExitCode, Failure, RunSetup};
use crate::config::{
    Argument, CommandLineSettings, FromCluster, JoinSettings, KubeletIdentity, Origin, Settings,
    Verification,
};
use crate::kube::kubeadm::{self, ClusterConfig, HostFacts, KubeadmRole, Overrides, Resolved};
use crate::kube::names::Authority;
use crate::kube::paths::KUBELET_CONF;
use crate::node::NodeState;
use crate::spec::Choices;
use crate::spec::policy::KeyPolicy;
use crate::store::NodeRoot;
use crate::x509::{KeyAlgorithm, Tolerance};
use crate::yaml::Faults;

pub use audit::ConfigurationAudit;
pub(crate) use configuration::NoConfiguration;
use configuration::{
    asks_cluster, fetch_configuration, fetch_with, has_authority, learn_as_worker,
    takes_from_cluster,
};
pub use files::{existing_sources, read_settings, written_settings};
pub(crate) use files::{read_argument, settings_fragments};
use host::host_facts;
pub use identity::{IdentityChange, NameSource, computed_name, name_sources};
use known::{ConfigurationFiles, KnownConfiguration};
use places::DefinedFiles;
pub use places::KubeconfigFile;
pub(crate) use places::{
    Location, argument, defined, is_trusted, shown, shown_defined, verify_arguments,
};
pub use scratch::SignerState;
pub use secrets::{LOCAL_CA_KEYS_ADVICE, exposed_secrets, local_ca_keys};
use signers::credentials;
pub(crate) use signers::open_signers;
pub use signers::{cluster, with_resolved_signers};
pub(crate) use units::{drop_in_for_writes, is_writable_by_units};

/// How long a run waits for another one to end, unless `--wait` is shorter.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(60);
/// Placeholder ClusterConfiguration: `check` verifies the other files before the cluster's own configuration is known.
const PLACEHOLDER_CLUSTER: (&str, &str) = (
    "the cluster's ClusterConfiguration",
    "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: cluster.invalid:6443\n",
);
/// Placeholder for the API server in a discovery file, which `check` does not read.
const PLACEHOLDER_SERVER: &str = "https://cluster.invalid:6443";
/// Time limit for one request to a cluster's API.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct LoadInputs {
    /// `--config`.
    pub config: Option<Argument>,
    /// Options that replace settings of the configuration file.
    pub stand_ins: CommandLineSettings,
    /// `--wait`.
    pub wait: Option<Duration>,
    /// `--clock-wait`.
    pub clock_wait: Option<Duration>,
    /// `--allow-unsynced`.
    pub allow_unsynced: bool,
    /// `--accept-name-change` and its siblings.
    pub identity_change: IdentityChange,
    /// Where signers store what they keep between runs.
    pub signer_state: SignerState,
}

/// The loaded inputs, and warnings about them.
pub struct Loaded {
    /// The setup for the agent.
    pub setup: RunSetup,
    /// The files of the node, as read for the setup.
    pub state: NodeState,
    /// The node according to the kubeadm configuration.
    pub node: kubeadm::NodeConfig,
    /// The settings in force.
    pub settings: Settings,
    /// The cluster according to its ClusterConfiguration, or kubeadm's defaults.
    pub cluster: ClusterConfig,
    /// Whether a ClusterConfiguration names the cluster. Without one, a worker's identity has kubeadm's default cluster name.
    pub knows_cluster: bool,
    /// The kubeadm configuration file that describes the node, on this machine.
    pub kubeadm_file: Option<String>,
    /// Problems that do not stop a run.
    pub warnings: Vec<String>,
    /// When the key policy of the cluster, if it has one, was written there.
    pub policy_since: Option<OffsetDateTime>,
    /// The key policy of the cluster, if it was read and differs from the kept one.
    pub(super) policy_to_keep: Option<crate::store::ClusterPolicyRecord>,
}

/// Loads the inputs of a run at `now` from this node, without any request to the cluster.
///
/// # Errors
/// All faults of all files together.
pub fn load(root: &NodeRoot, inputs: &LoadInputs, now: OffsetDateTime) -> Result<Loaded, Failure> {
    load_known(root, KnownConfiguration::read(root, inputs)?, inputs, now)
}

fn load_known(
    root: &NodeRoot,
    known: KnownConfiguration,
    inputs: &LoadInputs,
    now: OffsetDateTime,
) -> Result<Loaded, Failure> {
    known.require_configuration(root)?;
    known.assemble(root, inputs, &IdentityChange::SHOW_ALL, now)
}

/// As [`load`], with these settings instead of the files'.
///
/// # Errors
/// As of [`load`].
pub fn load_with(
    root: &NodeRoot,
    settings: Settings,
    inputs: &LoadInputs,
    now: OffsetDateTime,
) -> Result<Loaded, Failure> {
    let known = KnownConfiguration::with_settings(root, (settings, Faults::default()))?;
    load_known(root, known, inputs, now)
}

/// As [`load`], but fetches the data that a joining node lacks from its cluster. The cluster is only read.
///
/// # Errors
/// All faults of all files together; data that the cluster does not provide.
pub async fn load_joining(
    root: &NodeRoot,
    inputs: &LoadInputs,
    clock: Clock,
) -> Result<Loaded, Failure> {
    let mut known = KnownConfiguration::read(root, inputs)?;
    if known.sources.is_empty() && known.running.is_some() {
        return load_running(root, inputs, clock).await;
    }
    known.require_configuration(root)?;
    let Some(join) = known.documents.join().cloned() else {
        known.learn_policy(root, inputs, None).await;
        return known.assemble_to_keep(root, inputs, false, clock());
    };
    let files = DefinedFiles::new(root, Origin::Node);
    let wait = inputs.wait.unwrap_or(known.settings.wait);
    let credentials = credentials(root, Origin::Node);
    let cluster = JoinedCluster::new(join, files, credentials, clock, wait);
    let documents = kubeadm::load(&known.sources);
    let mut fetched = false;
    if asks_cluster(&known.settings, &documents) {
        // A later run may have no valid bootstrap token any more: with the CA on the node, the kept copy suffices.
        let given = match known.kept.take() {
            Some(kept) if has_authority(root, &known.over(&kept))? => kept,
            kept => cluster.configuration(kept).await?,
        };
        fetched = true;
        known.documents = known.over(&given);
    } else if takes_from_cluster(&known.settings, &documents) {
        fetched = learn_as_worker(root, inputs, &mut known, &cluster).await?;
    }
    // Before the first key is generated, since a key in place is replaced only at its renewal.
    known.learn_policy(root, inputs, Some(&cluster)).await;
    if known.lacks_server() {
        cluster.api().await?;
    }
    known.joined_server = cluster.kubelet_server();
    let handover = known.documents.join_document();
    let mut loaded = known.assemble_to_keep(root, inputs, fetched, clock())?;
    // A worker does not get the keys that control-plane nodes share.
    let wanted = match loaded.node.role {
        KubeadmRole::Worker | KubeadmRole::Etcd => JoinSettings::default(),
        _ => loaded.settings.join.clone(),
    };
    let origin = loaded.settings.origin;
    let certificate_key = || {
        let file = wanted.certificate_key.as_ref();
        file.map(|file| certs::configured_key(root, origin, file))
            .transpose()
    };
    let setup = &mut loaded.setup;
    let taken = cluster
        .complete(root, setup, certificate_key, wanted.write_ca_keys)
        .await?;
    loaded.warnings.extend(taken);
    if let Some(document) = handover {
        let ignore = &loaded.setup.plan.ignore_preflight_errors;
        let handed = join::handover(root, document, ignore)?;
        loaded.setup.provided.files.push(handed);
    }
    Ok(loaded)
}

/// As [`load`], for a node that was set up before. Its kubeadm file may be absent, because `/run` does not survive a reboot.
/// If no earlier run kept the ClusterConfiguration, it is fetched from the cluster and kept.
///
/// # Errors
/// All faults of all files together; a missing ClusterConfiguration; a configuration with another name or address than that
/// of the node.
pub async fn load_running(
    root: &NodeRoot,
    inputs: &LoadInputs,
    clock: Clock,
) -> Result<Loaded, Failure> {
    let mut known = KnownConfiguration::read(root, inputs)?;
    let wait = inputs.wait.unwrap_or(known.settings.wait);
    let lacks = known.kept.is_none() && known.wants_configuration() && known.running.is_some();
    let fetches = if known.is_worker() {
        let may_ask = known.settings.kubeadm.from_cluster != FromCluster::Never;
        lacks && may_ask && {
            let given = fetch_with(root, &[KUBELET_CONF], wait).await?;
            known.complete_worker(given)
        }
    } else {
        lacks
    };
    if fetches && !known.is_worker() {
        let given = fetch_configuration(root, &known.settings, wait).await?;
        known.documents = known.over(&given);
        known.kept = Some(given);
    }
    known.require_configuration(root)?;
    known.learn_policy(root, inputs, None).await;
    known.assemble_to_keep(root, inputs, fetches, clock())
}

/// The node according to its kubeadm configuration, for commands that do not require one.
pub struct Described {
    /// The role in the settings, in the kubeadm files, or in the JoinConfiguration that an earlier `bootstrap` left for `kubeadm join`.
    pub role: Option<KubeadmRole>,
    /// The files of the node, at the paths in the configuration.
    pub state: NodeState,
    /// Names of the configured signers.
    pub signers: BTreeMap<Authority, String>,
    files: ConfigurationFiles,
}

impl Described {
    /// As [`load`], from the configuration files that the description was read from.
    ///
    /// # Errors
    /// As of [`load`].
    pub fn load(
        self,
        root: &NodeRoot,
        inputs: &LoadInputs,
        now: OffsetDateTime,
    ) -> Result<Loaded, Failure> {
        load_known(root, KnownConfiguration::of(root, self.files)?, inputs, now)
    }
}

/// Describes the node by its kubeadm configuration; an unreadable configuration is ignored. `certificates_dir` is the option
/// of the command line.
pub fn described(
    root: &NodeRoot,
    inputs: &LoadInputs,
    certificates_dir: Option<PathBuf>,
) -> Described {
    let files = ConfigurationFiles::read(root, inputs);
    let completed = files.completed_documents();
    let documents = completed.as_ref().unwrap_or(&files.documents);
    let role = files.settings.role.chosen().or_else(|| documents.role());
    let role = role.or_else(|| {
        let content = root.read(join::HANDOVER).ok().flatten()?;
        let text = std::str::from_utf8(&content.bytes).ok()?;
        kubeadm::load(&[(join::HANDOVER, text)]).role()
    });
    let state = state_of(&files.state, documents, &files.settings, certificates_dir);
    let state = match documents.cluster() {
        Some(cluster) if files.settings.external_etcd_client => {
            state.with_layout(state.layout().clone().with_external_etcd(&cluster.etcd))
        }
        _ => state,
    };
    let authorities = files.settings.authorities.iter();
    let signers = authorities
        .filter_map(|(authority, of)| Some((*authority, of.signer.as_ref()?.to_string())))
        .collect();
    Described {
        role,
        state,
        signers,
        files,
    }
}

/// Returns the same files of the node, at the paths in the documents and in the settings. `certificates_dir` replaces the
/// directory in the documents.
fn state_of(
    state: &NodeState,
    documents: &kubeadm::Documents,
    settings: &Settings,
    certificates_dir: Option<PathBuf>,
) -> NodeState {
    let cluster = documents.cluster();
    let state = state.with_directories(
        certificates_dir.or_else(|| cluster.map(|cluster| cluster.certificates_dir.clone())),
        documents.kubelet_cert_dir().map(Path::to_owned),
    );
    let layout = state.layout().clone();
    state.with_layout(layout.with_registered(&settings.registered.certificates()))
}

impl Loaded {
    /// Keeps the key policy of the cluster for runs that cannot read it.
    ///
    /// # Errors
    /// A state directory that cannot be written.
    pub fn keep_cluster_policy(&self, root: &NodeRoot) -> Result<(), Failure> {
        match &self.policy_to_keep {
            Some(record) => Ok(root.keep_cluster_policy(record)?),
            None => Ok(()),
        }
    }

    /// Address for the daemon's metrics. Settings below `--root` do not open a port of this machine.
    pub(crate) fn metrics_address(&self, root: &NodeRoot) -> Option<SocketAddr> {
        let address = self.settings.metrics.listen?;
        if is_trusted(root, self.settings.origin) {
            return Some(address);
        }
        tracing::warn!(
            "metrics are not served on {address}: metrics.listen is set by the settings below {}, and those do not open a port of this machine",
            root.path().display()
        );
        None
    }
}

/// As [`load`], but also reports the faults of the kubeadm configuration if the settings are faulty. Returns the number of
/// certificates too; `None` if a joining node does not have its cluster's configuration yet, and the setup has kubeadm's
/// defaults, or does not know its API server.
///
/// # Errors
/// All faults of all files together.
pub fn check(
    root: &NodeRoot,
    inputs: &LoadInputs,
    now: OffsetDateTime,
) -> Result<(Loaded, Option<usize>), Failure> {
    let mut failure = match read_settings(root, inputs) {
        Ok(settings) => {
            let mut known = KnownConfiguration::with_settings(root, settings)?;
            known.require_configuration(root)?;
            let lacks_cluster = asks_cluster(&known.settings, &known.documents)
                && known.documents.cluster().is_none();
            let lacks_server = known.lacks_server();
            let later = lacks_cluster || lacks_server;
            if lacks_cluster {
                known.documents = kubeadm::load_over(PLACEHOLDER_CLUSTER, &known.sources);
            }
            if lacks_server {
                known.joined_server = Some(PLACEHOLDER_SERVER.to_owned());
            }
            let strict = kubeadm::load_strictly(&known.sources);
            if strict.faults().has_errors() {
                // The faults of the files, and with all documents also those between them.
                let resolved = if later {
                    Ok(())
                } else {
                    resolve(&known.settings, &strict, &host_facts(root)?).map(drop)
                };
                return Err(resolved
                    .err()
                    .unwrap_or_else(|| faulty(strict.faults().clone())));
            }
            let mut loaded = known.assemble(root, inputs, &IdentityChange::SHOW_ALL, now)?;
            for warning in strict.faults().warnings().map(ToString::to_string) {
                if !loaded.warnings.contains(&warning) {
                    loaded.warnings.push(warning);
                }
            }
            let certificates = loaded.setup.plan.certs.len();
            return Ok((loaded, (!later).then_some(certificates)));
        }
        Err(failure) => failure,
    };
    if !inputs.stand_ins.kubeadm_configs.is_empty() {
        let settings = Settings::default().with(inputs.stand_ins.clone());
        let documents = existing_sources(root, &settings).map(|sources| kubeadm::load(&sources));
        let kubeadm = documents
            .and_then(|documents| resolve(&settings, &documents, &host_facts(root)?))
            .err();
        failure
            .messages
            .extend(kubeadm.into_iter().flat_map(|failure| failure.messages));
    }
    Err(failure)
}

/// Resolves the documents with the facts of the host, and assembles the key policy.
fn resolve(
    settings: &Settings,
    documents: &kubeadm::Documents,
    host: &HostFacts,
) -> Result<(Resolved, KeyPolicy), Failure> {
    let overrides = Overrides {
        node_name: settings.node_name.clone(),
        role: settings.role.chosen(),
    };
    let mut resolved = kubeadm::resolve(documents, host, &overrides).map_err(faulty)?;
    let algorithm = resolved
        .cluster
        .as_ref()
        .map_or(KeyAlgorithm::Rsa2048, |cluster: &ClusterConfig| {
            cluster.key_algorithm
        });
    let (policy, warnings) =
        KeyPolicy::assemble(settings.pki.as_ref(), documents.policies(), algorithm)
            .map_err(faulty)?;
    resolved.warnings.extend(warnings);
    Ok((resolved, policy))
}

pub(crate) fn faulty(faults: Faults) -> Failure {
    let messages = faults.iter().map(ToString::to_string);
    Failure::with_messages(ExitCode::Configuration, messages)
}

/// Makes a path absolute; relative paths start at the working directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

pub(crate) fn choices(settings: &Settings) -> Choices {
    Choices {
        kubelet_client_subject: settings.kubelet_client_subject,
        common_names: settings.common_names.clone(),
        tolerances: Authority::ALL
            .into_iter()
            .map(|authority| (authority, tolerance(settings, authority)))
            .collect(),
        apiserver_sans: settings.extra_sans.apiserver.clone(),
        etcd_server_sans: settings.extra_sans.etcd_server.clone(),
        etcd_peer_sans: settings.extra_sans.etcd_peer.clone(),
        omit: settings.omit.clone(),
        external_etcd_client: settings.external_etcd_client,
        // It depends on the manifests: see `KnownConfiguration::assemble`.
        credentials_by_file: BTreeSet::new(),
        kubelet_bootstraps_itself: settings.kubelet.identity == KubeletIdentity::Bootstrap,
        kubelet_layout: settings.kubelet.client_certificate,
        kubelet_serving: settings.kubelet.serving,
        kubelet_serving_sans: settings.extra_sans.kubelet_serving.clone(),
        signs_for_kubelets: settings.kubelets.sign,
        on_policy_change: settings.rotation.on_policy_change,
        registered: settings.registered.certificates(),
    }
}

pub(crate) fn tolerance(settings: &Settings, authority: Authority) -> Tolerance {
    let signer = settings.signer_of(authority);
    Tolerance {
        extra_usages: settings
            .authorities
            .get(&authority)
            .is_some_and(|settings| settings.allow_extra_usages),
        max_lifetime: settings
            .authorities
            .get(&authority)
            .and_then(|settings| settings.max_lifetime),
        common_name_as_dns: signer
            .is_some_and(|(_, signer)| signer.kind().about().caps.own_name_san),
        unread_attributes: settings.verification == Verification::Standard,
    }
}
