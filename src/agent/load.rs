//! Loads the inputs of a run into a [`RunSetup`]: settings, kubeadm configuration, host facts, signers.
//!
//! `places` decides which paths are below the root and which are on this machine; `configuration` where the
//! ClusterConfiguration comes from.
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
mod files;
mod host;
mod identity;
mod places;
mod reach;
mod running;
mod scratch;
mod secrets;
mod signers;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;

use crate::agent::join::{self, JoinedCluster};
use crate::agent::{
    Clock, ClockPolicy, ExitCode, Failure, Provided, Record, RunSetup, TrustSource,
};
use crate::config::{
    Argument, CommandLineSettings, FromCluster, JoinSettings, KubeletIdentity, Origin, Settings,
};
use crate::kube::kubeadm::{self, ClusterConfig, HostFacts, KubeadmRole, Overrides, Resolved};
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::KUBELET_CONF;
use crate::node::NodeState;
use crate::process::machine;
use crate::signer::NodeIdentity;
use crate::spec::policy::KeyPolicy;
use crate::spec::{self, Choices, Layout, NodeSpec};
use crate::store::NodeRoot;
use crate::x509::{KeyAlgorithm, Tolerance};
use crate::yaml::Faults;

pub use audit::ConfigurationAudit;
use configuration::{
    asks_cluster, fetch_configuration, fetch_with, has_authority, learn_as_worker,
    no_configuration, takes_from_cluster,
};
pub(crate) use files::read_argument;
pub use files::{existing_sources, read_settings};
use host::{host_facts, interfaces};
pub use identity::{IdentityChange, NameSource, computed_name, name_sources};
use identity::{Recorded, WantedIdentity};
use places::DefinedFiles;
pub use places::KubeconfigFile;
pub(crate) use places::{Location, argument, defined, shown, shown_defined};
use running::RunningNode;
pub use scratch::SignerState;
pub use secrets::{LOCAL_CA_KEYS_ADVICE, exposed_secrets, local_ca_keys};
pub use signers::cluster;
use signers::credentials;
pub(crate) use signers::open_signers;

/// How long a run waits for another one to end, unless `--wait` is shorter.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(60);
/// Placeholder ClusterConfiguration: `check` verifies the other files before the cluster's own configuration is known.
const PLACEHOLDER_CLUSTER: (&str, &str) = (
    "the cluster's ClusterConfiguration",
    "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: cluster.invalid:6443\n",
);
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
    /// Problems that do not stop a run.
    pub warnings: Vec<String>,
}

/// The configuration of the node, as far as its own files contain it.
struct KnownConfiguration {
    settings: Settings,
    warnings: Faults,
    /// The existing kubeadm files: `(file, text)`.
    sources: Vec<(String, String)>,
    /// The documents of `sources`, completed with the kept ClusterConfiguration if they contain none.
    documents: kubeadm::Documents,
    /// The ClusterConfiguration that an earlier run kept: `(file, text)`.
    kept: Option<(String, String)>,
    running: Option<RunningNode>,
    /// The files of the node read so far.
    state: NodeState,
    recorded: Recorded,
    /// Warning that a worker's ClusterConfiguration is unknown.
    unknown_cluster: Option<String>,
}

impl KnownConfiguration {
    fn read(root: &NodeRoot, inputs: &LoadInputs) -> Result<KnownConfiguration, Failure> {
        Self::with_settings(root, read_settings(root, inputs)?)
    }

    fn with_settings(
        root: &NodeRoot,
        (settings, warnings): (Settings, Faults),
    ) -> Result<KnownConfiguration, Failure> {
        root.forget_machine_fault();
        let sources = existing_sources(root, &settings)?;
        let kept = join::kept_configuration(root)?;
        let documents = kubeadm::load(&sources);
        let state = state_of(root, &documents);
        let running = RunningNode::read(&state, !sources.is_empty(), documents.role());
        require_readable(root)?;
        let mut known = KnownConfiguration {
            settings,
            warnings,
            sources,
            documents,
            kept,
            running,
            state,
            recorded: Recorded::read(root)?,
            unknown_cluster: None,
        };
        if (known.wants_configuration() || known.leaves_cluster_open())
            && let Some(kept) = &known.kept
        {
            known.documents = known.over(kept);
            // kubeadm's defaults would give a running node the names and addresses of another cluster.
            if known.documents.cluster().is_none() && !known.documents.faults().has_errors() {
                return Err(Failure::new(
                    ExitCode::Configuration,
                    format!(
                        "{} does not contain a ClusterConfiguration; put the cluster's there (kubectl -n kube-system get cm kubeadm-config -o jsonpath='{{.data.ClusterConfiguration}}'), or remove the file, and nodepki fetches it from the cluster",
                        root.node_path(join::CLUSTER_CONFIGURATION_COPY)
                    ),
                ));
            }
        }
        Ok(known)
    }

    /// Returns whether the kubeadm files of a serving node describe the node but not its cluster.
    fn leaves_cluster_open(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.facts.settled)
            && self.documents.describes_node()
            && self.documents.cluster().is_none()
            && !self.documents.faults().has_errors()
    }

    /// Returns whether a ClusterConfiguration from another source is needed: no kubeadm file exists, or the files leave it
    /// to the cluster.
    fn wants_configuration(&self) -> bool {
        self.sources.is_empty() || takes_from_cluster(&self.settings, &self.documents)
    }

    /// Returns the documents of the kubeadm files, completed with a ClusterConfiguration.
    fn over(&self, (name, text): &(String, String)) -> kubeadm::Documents {
        kubeadm::load_over((name, text), &self.sources)
    }

    fn is_worker(&self) -> bool {
        match (self.documents.role(), &self.running) {
            (Some(role), _) => role == KubeadmRole::Worker,
            (None, Some(running)) => running.facts.role == KubeadmRole::Worker,
            (None, None) => self.recorded.is_worker(),
        }
    }

    /// Completes a worker's documents with its cluster's ClusterConfiguration. A worker can run without one, so a missing or
    /// unusable one is only a warning. Returns whether the documents are complete.
    fn complete_worker(&mut self, given: Result<(String, String), Failure>) -> bool {
        let completed = given.and_then(|(from, text)| {
            let text = join::configuration_of_worker(&from, &text)?;
            let documents = self.over(&(from, text));
            match documents.faults().has_errors() {
                true => Err(faulty(documents.faults().clone())),
                false => Ok(documents),
            }
        });
        match completed {
            Ok(documents) => {
                self.documents = documents;
                true
            }
            Err(failure) => {
                self.documents = kubeadm::load(&self.sources);
                self.unknown_cluster = Some(format!(
                    "the ClusterConfiguration is not known: this worker assumes clusterName kubernetes and encryptionAlgorithm RSA-2048 until a run can read the ConfigMap kube-system/kubeadm-config, or kubeadm.clusterConfiguration names a file with it: {}",
                    failure.one_line()
                ));
                false
            }
        }
    }

    /// Fails without any kubeadm configuration. A worker needs none: its own files are sufficient.
    fn require_configuration(&self, root: &NodeRoot) -> Result<(), Failure> {
        let is_known = !self.sources.is_empty() || self.kept.is_some() || self.is_worker();
        match is_known {
            true => Ok(()),
            false => Err(no_configuration(
                root,
                &self.settings,
                self.running.is_some(),
            )),
        }
    }

    /// Assembles the setup for a command that may write. The ClusterConfiguration is kept for runs after its file is removed.
    fn assemble_to_keep(
        self,
        root: &NodeRoot,
        inputs: &LoadInputs,
        fetched: bool,
        now: OffsetDateTime,
    ) -> Result<Loaded, Failure> {
        let keep = join::configuration_to_keep(root, &self.documents, fetched)?;
        let mut loaded = self.assemble(root, inputs, &inputs.identity_change, now)?;
        loaded.setup.provided.files.extend(keep);
        Ok(loaded)
    }
}

/// Loads the inputs of a run at `now` from this node, without any request to the cluster.
///
/// # Errors
/// All faults of all files together.
pub fn load(root: &NodeRoot, inputs: &LoadInputs, now: OffsetDateTime) -> Result<Loaded, Failure> {
    let known = KnownConfiguration::read(root, inputs)?;
    known.require_configuration(root)?;
    known.assemble(root, inputs, &IdentityChange::Show, now)
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
    known.require_configuration(root)?;
    known.assemble(root, inputs, &IdentityChange::Show, now)
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
        return known.assemble_to_keep(root, inputs, false, clock());
    };
    let files = DefinedFiles::new(root, Origin::Node);
    let wait = inputs.wait.unwrap_or(known.settings.wait);
    let credentials = credentials(root, Origin::Node);
    let cluster = JoinedCluster::new(join, files, credentials, clock, wait);
    let documents = kubeadm::load(&known.sources);
    let mut fetched = false;
    if asks_cluster(&known.settings, &documents) {
        let given = match known.kept.take() {
            Some(kept) if has_authority(root, &known.over(&kept))? => kept,
            kept => cluster.configuration(kept).await?,
        };
        fetched = true;
        known.documents = known.over(&given);
    } else if takes_from_cluster(&known.settings, &documents) {
        fetched = learn_as_worker(root, inputs, &mut known, &cluster).await?;
    }
    let handover = known.documents.join_document();
    let mut loaded = known.assemble_to_keep(root, inputs, fetched, clock())?;
    // A worker does not get the keys that control-plane nodes share.
    let wanted = match loaded.node.role {
        KubeadmRole::Worker => JoinSettings::default(),
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
    let fetches = match known.is_worker() {
        true => {
            let may_ask = known.settings.kubeadm.from_cluster != FromCluster::Never;
            lacks && may_ask && {
                let given = fetch_with(root, &[KUBELET_CONF], wait).await?;
                known.complete_worker(given)
            }
        }
        false => lacks,
    };
    if fetches && !known.is_worker() {
        let given = fetch_configuration(root, &known.settings, wait).await?;
        known.documents = known.over(&given);
        known.kept = Some(given);
    }
    known.require_configuration(root)?;
    let mut loaded = known.assemble_to_keep(root, inputs, fetches, clock())?;
    if let Some(address) = loaded.node.advertise_address {
        loaded
            .warnings
            .extend(running::unowned(address, &interfaces(root)));
    }
    Ok(loaded)
}

/// The node according to its kubeadm configuration, for commands that do not require one.
pub struct Described {
    /// The role in the kubeadm files, or in the JoinConfiguration that an earlier `bootstrap` left for `kubeadm join`.
    pub role: Option<KubeadmRole>,
    /// The files of the node, at the paths in the configuration.
    pub state: NodeState,
}

/// Describes the node by its kubeadm configuration; an unreadable configuration is ignored. `certificates_dir` is the option
/// of the command line.
pub fn described(
    root: &NodeRoot,
    inputs: &LoadInputs,
    certificates_dir: Option<PathBuf>,
) -> Described {
    let settings = read_settings(root, inputs).map(|(settings, _)| settings);
    let settings = settings.unwrap_or_else(|_| Settings::default().with(inputs.stand_ins.clone()));
    let sources = existing_sources(root, &settings).unwrap_or_default();
    let mut documents = kubeadm::load(&sources);
    if documents.cluster().is_none()
        && let Ok(Some((name, text))) = join::kept_configuration(root)
    {
        documents = kubeadm::load_over((&name, &text), &sources);
    }
    let role = documents.role().or_else(|| {
        let content = root.read(join::HANDOVER).ok().flatten()?;
        let text = std::str::from_utf8(&content.bytes).ok()?;
        kubeadm::load(&[(join::HANDOVER, text)]).role()
    });
    let state = state_of(root, &documents);
    let state = match certificates_dir {
        Some(dir) => {
            let kubelet_pki = state.layout().kubelet_pki().to_owned();
            state.with_layout(Layout::new(Some(dir), Some(kubelet_pki)))
        }
        None => state,
    };
    Described { role, state }
}

/// Returns the files of the node, at the paths in the documents.
fn state_of(root: &NodeRoot, documents: &kubeadm::Documents) -> NodeState {
    let cluster = documents.cluster();
    NodeState::of_node(
        root,
        cluster.map(|cluster| cluster.certificates_dir.clone()),
        documents.kubelet_cert_dir().map(Path::to_owned),
    )
}

impl Loaded {
    /// Address for the daemon's metrics. Settings below `--root` do not open a port of this machine.
    pub(crate) fn metrics_address(&self, root: &NodeRoot) -> Option<SocketAddr> {
        let address = self.settings.metrics.listen?;
        if places::is_trusted(root, self.settings.origin) {
            return Some(address);
        }
        tracing::warn!(
            "metrics are not served on {address}: metrics.listen is set by the settings below {}, and those do not open a port of this machine",
            root.path().display()
        );
        None
    }
}

impl KnownConfiguration {
    fn assemble(
        self,
        root: &NodeRoot,
        inputs: &LoadInputs,
        change: &IdentityChange,
        now: OffsetDateTime,
    ) -> Result<Loaded, Failure> {
        let KnownConfiguration {
            settings,
            mut warnings,
            documents,
            running,
            state,
            recorded,
            sources,
            unknown_cluster,
            ..
        } = self;
        let knows_cluster = documents.cluster_document().is_some();
        let is_blank = running.is_none() && sources.is_empty();
        if running.is_none() && !documents.describes_node() && *change != IdentityChange::Show {
            recorded.require_record(root)?;
        }
        let host = HostFacts {
            running: running.as_ref().map(|running| running.facts.clone()),
            kept: recorded.continued(is_blank).map(|kept| kept.node.clone()),
            ..host_facts(root)?
        };
        let (resolved, policy) = resolve(&settings, &documents, &host)?;
        let wanted = WantedIdentity {
            resolved: &resolved,
            names_node: settings.node_name.is_some() || documents.names_node(),
            is_described: documents.describes_node(),
            hostname: &host.hostname,
        };
        let cluster = resolved.cluster.clone().unwrap_or_default();
        let state = state.with_layout(Layout::new(
            Some(cluster.certificates_dir.clone()),
            resolved.node.kubelet_cert_dir.clone(),
        ));
        let (mut notes, kept) = recorded.compare(&state, running.as_ref(), &wanted, change)?;
        if let Some(running) = &running {
            notes.extend(running.notes(root, &resolved));
        }
        warnings.extend(resolved.warnings);
        warnings.extend(policy.warnings(cluster.kubernetes_version.as_ref()));
        let identity = NodeIdentity {
            node: resolved.node.name.as_str().to_owned(),
            cluster: cluster.cluster_name.clone(),
        };
        let plan = spec::node_spec(&cluster, &resolved.node, &policy, &choices(&settings));
        let mut plan = plan.shown_below(root.path());
        plan.notes.extend(notes);
        mark_activated(root, &mut plan)?;
        let is_settled = running
            .as_ref()
            .is_some_and(|running| running.facts.settled);
        let kubeadm_follows = !running.as_ref().is_some_and(RunningNode::is_set_up);
        let needed = plan.omitted.iter().filter(|_| kubeadm_follows);
        let needed = needed.filter_map(|name| needed_by_kubeadm(*name, resolved.node.role));
        plan.notes.extend(needed);
        if is_settled && !documents.describes_node() {
            // kubeadm does not run again, and a running cluster has its service-account keys.
            plan.ignore_preflight_errors.clear();
            if let Some(spec) = &mut plan.service_account {
                spec.may_make = false;
            }
        }
        let setup = RunSetup {
            plan,
            kubeadm_follows,
            signers: open_signers(
                root,
                &settings,
                &identity,
                policy.key_for_authority(Authority::Ca),
                inputs.signer_state,
                now,
            )?,
            identity,
            trust: trust_sources(&settings),
            provided: Provided::default(),
            record: Some(Record {
                before: recorded.kept,
                node: kept,
            }),
            rotation: settings.rotation.clone(),
            wait: inputs.wait.unwrap_or(settings.wait),
            lock_wait: inputs.wait.map_or(LOCK_WAIT, |wait| wait.min(LOCK_WAIT)),
            clock: ClockPolicy {
                max_wait: inputs.clock_wait.unwrap_or(settings.clock_max_wait),
                allow_unsynced: inputs.allow_unsynced,
            },
        };
        require_readable(root)?;
        let mut warnings: Vec<String> = warnings.warnings().map(ToString::to_string).collect();
        warnings.extend(unknown_cluster);
        warnings.extend(secret_warnings(root, &settings));
        Ok(Loaded {
            setup,
            state,
            node: resolved.node,
            settings,
            cluster,
            knows_cluster,
            warnings,
        })
    }
}

/// Marks the certificates of authorities whose new CA is already activated.
fn mark_activated(root: &NodeRoot, plan: &mut NodeSpec) -> Result<(), Failure> {
    let changes = match root.authority_changes() {
        Err(error) if machine::is_fault(&error) => return Err(error.into()),
        // `authority` reports a damaged record; rotation continues without it.
        changes => changes.unwrap_or_default(),
    };
    for spec in &mut plan.certs {
        let change = changes.get(&spec.authority());
        spec.under_first = change.is_some_and(|change| change.activated.is_some());
    }
    Ok(())
}

/// Warnings on secrets that other users can read and on local CA keys.
fn secret_warnings(root: &NodeRoot, settings: &Settings) -> Vec<String> {
    let mut warnings: Vec<String> = exposed_secrets(root, settings).into_iter().collect();
    let local = local_ca_keys(root, settings).into_iter();
    warnings.extend(local.map(|found| format!("{found}: {LOCAL_CA_KEYS_ADVICE}")));
    warnings
}

/// As [`load`], but also reports the faults of the kubeadm configuration if the settings are faulty. Returns the number of
/// certificates too; `None` if a joining node does not have its cluster's configuration yet, and the setup has kubeadm's
/// defaults.
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
            let later = asks_cluster(&known.settings, &known.documents)
                && known.documents.cluster().is_none();
            if later {
                known.documents = kubeadm::load_over(PLACEHOLDER_CLUSTER, &known.sources);
            }
            let strict = kubeadm::load_strictly(&known.sources);
            let loaded = known.assemble(root, inputs, &IdentityChange::Show, now)?;
            if strict.faults().has_errors() {
                return Err(faulty(strict.faults().clone()));
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

/// Fails if this machine could not read a file below the root, because conclusions from the other files may be wrong.
fn require_readable(root: &NodeRoot) -> Result<(), Failure> {
    match root.machine_fault() {
        Some(fault) => Err(Failure::new(
            ExitCode::Pending,
            format!("{fault}; the other files alone do not show the state of the node: run again"),
        )),
        None => Ok(()),
    }
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
        kubelet_bootstraps_itself: settings.kubelet.identity == KubeletIdentity::Bootstrap,
        kubelet_layout: settings.kubelet.client_certificate,
        kubelet_serving: settings.kubelet.serving,
        kubelet_serving_sans: settings.extra_sans.kubelet_serving.clone(),
        signs_for_kubelets: settings.kubelets.sign,
    }
}

/// Returns why kubeadm needs an omitted file during the setup of the node.
fn needed_by_kubeadm(name: CertName, role: KubeadmRole) -> Option<String> {
    match (name, role) {
        (CertName::SuperAdminConf, KubeadmRole::Init) => Some(
            "super-admin.conf is omitted (certificates.omit): kubeadm init refuses an external CA without that file (ValidateKubeconfigsForExternalCA) and creates the ClusterRoleBinding kubeadm:cluster-admins with it; put one there for kubeadm init, unless the cluster was initialized before".to_owned(),
        ),
        (CertName::AdminConf, KubeadmRole::Join) => Some(
            "admin.conf is omitted (certificates.omit): kubeadm join talks to the cluster with that file; put the kubeconfig of an administrator there for kubeadm join, and remove it afterwards".to_owned(),
        ),
        _ => None,
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
    }
}

fn trust_sources(settings: &Settings) -> BTreeMap<Authority, TrustSource> {
    settings
        .authorities
        .iter()
        .map(|(authority, settings)| {
            let source = TrustSource {
                file: settings.trust_file.clone(),
                pins: settings.trust_sha256.clone(),
            };
            (*authority, source)
        })
        .collect()
}
