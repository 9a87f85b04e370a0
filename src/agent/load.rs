//! From files and flags to a [`Setup`]: settings, kubeadm configuration, host facts, signers.
//!
//! The one place where the edge's inputs come together. Which paths lead below the root and which to this machine is
//! decided in `places`.
//!
//! The configuration decides who signs and for which names, and programs in it run as root. A file of it that another
//! user can change is refused with exit status 65, which names owner and mode:
//!
//! | file | belongs to | written by group or others |
//! | --- | --- | --- |
//! | settings at their own paths, `kubeadm.files`, `kubeadm.clusterConfiguration` | root or the running user, and so do all directories above | no; only directories that are sticky |
//! | `--config` | root or the running user | no |
//! | `--kubeadm-config` | any user | not by others |
//!
//! An administrator who names a file vouches for its place, and kubeadm itself asks for no more. Below `--root` the
//! numbers in the image decide.

pub mod certs;
mod identity;
mod places;
mod reach;
mod running;
mod secrets;
mod signers;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;

use crate::agent::join::{self, JoinedCluster};
use crate::agent::{Clock, ClockPolicy, ExitCode, Failure, Provided, Record, Setup, TrustSource};
use crate::config::{
    self, Argument, FromCluster, JoinSettings, KubeadmFiles, KubeletIdentity, Origin, Settings,
    StandIns,
};
use crate::kube::kubeadm::{self, Cluster, HostFacts, Overrides, Resolved, Role};
use crate::kube::names::{Authority, CertName};
use crate::node::NodeState;
use crate::process::machine;
use crate::signer::Identity;
use crate::spec::policy::Policy;
use crate::spec::{self, Choices, Layout};
use crate::store::{self, Metadata, Root};
use crate::x509::{KeyAlgorithm, Tolerance};
use crate::yaml::Faults;

pub use identity::{IdentityChange, NameSource, computed_name, name_sources};
use identity::{Recorded, Wanted};
use places::DefinedFiles;
pub use places::KubeconfigFile;
pub(crate) use places::{Location, argument, defined, shown, shown_defined};
use running::Running;
pub use secrets::{LOCAL_CA_KEYS_ADVICE, exposed_secrets, local_ca_keys};
pub use signers::cluster;
use signers::credentials;
pub(crate) use signers::open_signers;

/// How long a run waits for another one to end, unless `--wait` says less.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(60);
/// For a check of everything else while the cluster's own configuration is not known.
const STAND_IN_CLUSTER: (&str, &str) = (
    "the cluster's ClusterConfiguration",
    "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: cluster.invalid:6443\n",
);
/// What a running node may ask for its ClusterConfiguration with, the lesser first.
const OWN_KUBECONFIGS: [&str; 2] = [KUBELET_CONF, "/etc/kubernetes/admin.conf"];
/// Its client, `system:nodes`, may read the ClusterConfiguration (kubeadm, Role `kubeadm:nodes-kubeadm-config`).
const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
/// A cluster that answers at all does so in less.
const CONFIGURATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of all kubeadm files together, in bytes.
const MAX_KUBEADM_BYTES: usize = 4 << 20;
/// For one exchange with a cluster's API.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(30);

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// `--config`.
    pub config: Option<Argument>,
    /// What stands in for a configuration file.
    pub stand_ins: StandIns,
    /// `--wait`.
    pub wait: Option<Duration>,
    /// `--clock-wait`.
    pub clock_wait: Option<Duration>,
    /// `--allow-unsynced`.
    pub allow_unsynced: bool,
    /// `--accept-name-change` and its siblings.
    pub identity_change: IdentityChange,
}

/// Everything that was loaded, and what deserves a warning.
pub struct Loaded {
    /// What the agent works with.
    pub setup: Setup,
    /// The files of the node as they were read for the setup.
    pub state: NodeState,
    /// The node as kubeadm's configuration has it.
    pub node: kubeadm::Node,
    /// The settings in force.
    pub settings: Settings,
    /// Whether a ClusterConfiguration names the cluster. A worker may have none, and its identity then has kubeadm's
    /// default for the cluster's name.
    pub knows_cluster: bool,
    /// Faults that are not errors.
    pub warnings: Vec<String>,
}

/// What the node itself says of its cluster and of itself.
struct Known {
    settings: Settings,
    warnings: Faults,
    /// The kubeadm files that there are.
    sources: Vec<(String, String)>,
    /// Those, over the kept ClusterConfiguration where they leave it to the cluster.
    documents: kubeadm::Loaded,
    /// A ClusterConfiguration is kept.
    kept: Option<(String, String)>,
    running: Option<Running>,
    /// What was read of the node so far.
    state: NodeState,
    recorded: Recorded,
    /// Why a worker's ClusterConfiguration is not known.
    unknown_cluster: Option<String>,
}

impl Known {
    fn read(root: &Root, inputs: &Inputs) -> Result<Known, Failure> {
        Self::with_settings(root, read_settings(root, inputs)?)
    }

    fn with_settings(
        root: &Root,
        (settings, warnings): (Settings, Faults),
    ) -> Result<Known, Failure> {
        root.forget_machine_fault();
        let sources = existing_sources(root, &settings)?;
        let kept = join::kept_configuration(root)?;
        let documents = kubeadm::load(&sources);
        let state = state_of(root, &documents);
        let running = Running::read(&state, !sources.is_empty(), documents.role());
        require_readable(root)?;
        let mut known = Known {
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
        if (known.wants_configuration() || known.leaves_it_open())
            && let Some(kept) = &known.kept
        {
            known.documents = known.over(kept);
            // By kubeadm's defaults a running node would be given the names and addresses of another cluster.
            if known.documents.cluster().is_none() && !known.documents.faults().has_errors() {
                return Err(Failure::new(
                    ExitCode::Configuration,
                    format!(
                        "{} has no ClusterConfiguration; put the cluster's there (kubectl -n kube-system get cm kubeadm-config -o jsonpath='{{.data.ClusterConfiguration}}'), or remove the file, and it is asked of the cluster",
                        root.node_path(join::KEPT)
                    ),
                ));
            }
        }
        Ok(known)
    }

    /// The files of a node that serves say what it is, and not what its cluster is.
    fn leaves_it_open(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.facts.settled)
            && self.documents.describes_node()
            && self.documents.cluster().is_none()
            && !self.documents.faults().has_errors()
    }

    /// No file has the ClusterConfiguration, or has it alone.
    fn wants_configuration(&self) -> bool {
        self.sources.is_empty() || takes_from_cluster(&self.settings, &self.documents)
    }

    /// The files over a ClusterConfiguration.
    fn over(&self, (name, text): &(String, String)) -> kubeadm::Loaded {
        kubeadm::load_over((name, text), &self.sources)
    }

    fn is_worker(&self) -> bool {
        match (self.documents.role(), &self.running) {
            (Some(role), _) => role == Role::Worker,
            (None, Some(running)) => running.facts.role == Role::Worker,
            (None, None) => self.recorded.is_worker(),
        }
    }

    /// Completes a worker's documents with what its cluster says. A worker does without a ClusterConfiguration, so that
    /// one that cannot be had or used is only reported.
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
                    failure.messages.join("; ")
                ));
                false
            }
        }
    }

    /// Without a kubeadm file a node is what it was set up as; a worker's own files say all that is wanted of it.
    fn require_configuration(&self, root: &Root) -> Result<(), Failure> {
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

    /// The setup, for a command that may write: it keeps the ClusterConfiguration, for when its file is gone.
    fn assemble_to_keep(
        self,
        root: &Root,
        inputs: &Inputs,
        fetched: bool,
        now: OffsetDateTime,
    ) -> Result<Loaded, Failure> {
        let keep = join::configuration_to_keep(root, &self.documents, fetched)?;
        let mut loaded = self.assemble(root, inputs, &inputs.identity_change, now)?;
        loaded.setup.provided.files.extend(keep);
        Ok(loaded)
    }
}

/// Loads everything for a run at `now` that this node has, asking nobody.
///
/// # Errors
/// All faults of all files at once.
pub fn load(root: &Root, inputs: &Inputs, now: OffsetDateTime) -> Result<Loaded, Failure> {
    let known = Known::read(root, inputs)?;
    known.require_configuration(root)?;
    known.assemble(root, inputs, &IdentityChange::Show, now)
}

/// As [`load`]; a node that joins and lacks something has it from its cluster, which is only read.
///
/// # Errors
/// All faults of all files at once; what the cluster does not give.
pub async fn load_joining(root: &Root, inputs: &Inputs, clock: Clock) -> Result<Loaded, Failure> {
    let mut known = Known::read(root, inputs)?;
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
    // What control-plane nodes share is none of a worker's business.
    let wanted = match loaded.node.role {
        Role::Worker => JoinSettings::default(),
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

/// Completes a joining worker's documents: with the kept ClusterConfiguration, with the cluster that the
/// JoinConfiguration leads to, or, since a bootstrap token expires, with the cluster of kubelet.conf. Returns whether the
/// documents are complete.
async fn learn_as_worker(
    root: &Root,
    inputs: &Inputs,
    known: &mut Known,
    cluster: &JoinedCluster,
) -> Result<bool, Failure> {
    // The documents are laid over a kept configuration already.
    if let Some(kept) = &known.kept
        && has_authority(root, &known.over(kept))?
    {
        return Ok(true);
    }
    let wait = inputs.wait.unwrap_or(known.settings.wait);
    // A node without the CA certificate needs its cluster in any case, and waits for it.
    let asked = match has_authority_of_worker(root, &known.settings, &known.documents)? {
        false => cluster.configuration(None).await,
        true => {
            let time = configuration_timeout(wait);
            let asked = tokio::time::timeout(time, cluster.configuration(None));
            asked.await.unwrap_or_else(|_| Err(no_answer(time)))
        }
    };
    let given = match asked {
        Err(failure) if root.metadata(KUBELET_CONF)?.is_some() => {
            let own = fetch_with(root, &[KUBELET_CONF], wait).await?;
            own.map_err(|refused| Failure {
                messages: [failure.messages, refused.messages].concat(),
                code: failure.code,
            })
        }
        asked => asked,
    };
    let is_away =
        |failure: &Failure| matches!(failure.code, ExitCode::Unreachable | ExitCode::NotPermitted);
    if known.kept.is_some() && given.as_ref().is_err_and(is_away) {
        return Ok(true);
    }
    Ok(known.complete_worker(given))
}

/// As [`load`], for a node that was set up before: its kubeadm file may be gone, since `/run` does not outlive a boot.
/// Nobody is asked for what the node keeps; its cluster is asked for a ClusterConfiguration that it does not, which is
/// then kept.
///
/// # Errors
/// All faults of all files at once; a ClusterConfiguration that nobody has; a configuration that says another name or
/// address than the node has.
pub async fn load_running(root: &Root, inputs: &Inputs, clock: Clock) -> Result<Loaded, Failure> {
    let mut known = Known::read(root, inputs)?;
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

/// What a running node has from its cluster with the credentials that are on it.
async fn fetch_configuration(
    root: &Root,
    settings: &Settings,
    wait: Duration,
) -> Result<(String, String), Failure> {
    let mut failure = no_configuration(root, settings, true);
    if settings.kubeadm.from_cluster == FromCluster::Never {
        failure
            .messages
            .push("kubeadm.fromCluster is never, so that the cluster was not asked".to_owned());
        return Err(failure);
    }
    let asked = fetch_with(root, &OWN_KUBECONFIGS, wait).await?;
    asked.map_err(|refused| {
        failure.messages.extend(refused.messages);
        if refused.code == ExitCode::Unreachable {
            failure.code = ExitCode::Unreachable;
        }
        failure
    })
}

/// The ClusterConfiguration that one of these kubeconfigs may read, or what each of them ended with.
///
/// # Errors
/// What cannot be read on the node.
async fn fetch_with(
    root: &Root,
    kubeconfigs: &[&str],
    wait: Duration,
) -> Result<Result<(String, String), Failure>, Failure> {
    let mut unreachable = false;
    let mut messages = Vec::new();
    let time = configuration_timeout(wait);
    for path in kubeconfigs.iter().copied() {
        let shown = root.node_path(path);
        if root.metadata(path)?.is_none() {
            messages.push(format!("{shown} is not there to ask the cluster with"));
            continue;
        }
        let asked = async {
            crate::agent::shared_certs::configuration(&cluster(root, Path::new(path))?).await
        };
        let asked = tokio::time::timeout(time, asked).await;
        match asked.unwrap_or_else(|_| Err(no_answer(time))) {
            Ok(given) => return Ok(Ok(given)),
            Err(refused) => {
                unreachable |= refused.code == ExitCode::Unreachable;
                let told = refused.messages.into_iter();
                messages.extend(told.map(|message| format!("{shown}: {message}")));
            }
        }
    }
    Ok(Err(Failure {
        code: match unreachable {
            true => ExitCode::Unreachable,
            false => ExitCode::Configuration,
        },
        messages,
    }))
}

fn configuration_timeout(wait: Duration) -> Duration {
    wait.clamp(Duration::from_secs(1), CONFIGURATION_TIMEOUT)
}

fn no_answer(time: Duration) -> Failure {
    Failure::new(
        ExitCode::Unreachable,
        format!("the cluster did not answer within {} s", time.as_secs()),
    )
}

/// Nothing says what the cluster is, with the ways out.
fn no_configuration(root: &Root, settings: &Settings, is_running: bool) -> Failure {
    let KubeadmFiles {
        arguments, files, ..
    } = &settings.kubeadm;
    let arguments = arguments.iter().map(|named| shown(root, named));
    let files = files.iter().map(|path| root.on_this_machine(path));
    let tried: Vec<String> = arguments
        .chain(files)
        .map(|path| path.display().to_string())
        .collect();
    let tried = tried.join(", ");
    let kept = root.node_path(join::KEPT);
    let message = match is_running {
        true => format!(
            "there is no kubeadm configuration: none of {tried} exists, and no earlier run kept one in {kept}; either name the file that kubeadm was given (--kubeadm-config FILE, or kubeadm.files), or put the cluster's ClusterConfiguration into {kept} (kubectl -n kube-system get cm kubeadm-config -o jsonpath='{{.data.ClusterConfiguration}}', wherever that reaches the cluster), or run again where the cluster answers and may be asked (kubeadm.fromCluster: ifMissing)"
        ),
        false => format!(
            "there is no kubeadm configuration: none of {tried} exists; name the file that kubeadm is given with --kubeadm-config FILE or under kubeadm.files"
        ),
    };
    Failure::new(ExitCode::Configuration, message)
}

/// Whether the node has the CA certificate of the cluster that the documents describe. One that was reset has not,
/// and the cluster that it joins now may be another one.
fn has_authority(root: &Root, documents: &kubeadm::Loaded) -> Result<bool, Failure> {
    let Some(cluster) = documents.cluster() else {
        return Ok(false);
    };
    let name = format!("{}.crt", Authority::Ca.base_name());
    let found = root.metadata(cluster.certificates_dir.join(name))?;
    Ok(found.is_some_and(|found| found.size > 0))
}

/// Whether a worker that joins knows a CA of its cluster: a certificate at `caCertPath`, or what the settings trust.
fn has_authority_of_worker(
    root: &Root,
    settings: &Settings,
    documents: &kubeadm::Loaded,
) -> Result<bool, Failure> {
    let trusted = settings.authorities.get(&Authority::Ca);
    if trusted.is_some_and(|ca| ca.trust_file.is_some() || !ca.trust_sha256.is_empty()) {
        return Ok(true);
    }
    let Some(join) = documents.join() else {
        return Ok(true);
    };
    let found = root.metadata(&join.ca_cert_path)?;
    Ok(found.is_some_and(|found| found.size > 0))
}

/// What the kubeadm configuration of a node says of it, for commands that work without one.
pub struct Described {
    /// The role in the kubeadm files, or in the JoinConfiguration that an earlier `bootstrap` left for `kubeadm join`.
    pub role: Option<Role>,
    /// The files of the node, where the configuration places them.
    pub state: NodeState,
}

/// Returns what the kubeadm configuration says of the node. A configuration that cannot be read says nothing.
/// `certificates_dir` is the one on the command line.
pub fn described(root: &Root, inputs: &Inputs, certificates_dir: Option<PathBuf>) -> Described {
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

/// The files of the node, where the documents place them.
fn state_of(root: &Root, documents: &kubeadm::Loaded) -> NodeState {
    let cluster = documents.cluster();
    NodeState::of_node(
        root,
        cluster.map(|cluster| cluster.certificates_dir.clone()),
        documents.kubelet_cert_dir().map(Path::to_owned),
    )
}

impl Loaded {
    /// Where the daemon serves metrics. Settings below `--root` do not make this machine listen.
    pub(crate) fn metrics_address(&self, root: &Root) -> Option<SocketAddr> {
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

/// Whether the ClusterConfiguration is for the cluster to give, and nothing can be done without it.
fn asks_cluster(settings: &Settings, documents: &kubeadm::Loaded) -> bool {
    documents.joins_control_plane() && takes_from_cluster(settings, documents)
}

/// Whether the node joins a cluster whose ClusterConfiguration completes the documents.
fn takes_from_cluster(settings: &Settings, documents: &kubeadm::Loaded) -> bool {
    documents.join().is_some()
        && !documents.faults().has_errors()
        && match settings.kubeadm.from_cluster {
            FromCluster::IfMissing => documents.cluster().is_none(),
            FromCluster::Merge => true,
            FromCluster::Never => false,
        }
}

impl Known {
    fn assemble(
        self,
        root: &Root,
        inputs: &Inputs,
        change: &IdentityChange,
        now: OffsetDateTime,
    ) -> Result<Loaded, Failure> {
        let Known {
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
        let wanted = Wanted {
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
        let identity = Identity {
            node: resolved.node.name.as_str().to_owned(),
            cluster: cluster.cluster_name.clone(),
        };
        let plan = spec::plan(&cluster, &resolved.node, &policy, &choices(&settings));
        let mut plan = plan.shown_below(root.path());
        plan.notes.extend(notes);
        // A damaged record is told by `authority`; rotation goes on without it.
        let changes = match root.authority_changes() {
            Err(error) if machine::is_fault(&error) => return Err(error.into()),
            changes => changes.unwrap_or_default(),
        };
        let activated = |authority| {
            let change = changes.get(&authority);
            change.is_some_and(|change| change.activated.is_some())
        };
        for spec in &mut plan.certs {
            spec.under_first = activated(spec.authority);
        }
        let is_settled = running
            .as_ref()
            .is_some_and(|running| running.facts.settled);
        let kubeadm_follows = !running.as_ref().is_some_and(Running::is_set_up);
        let needed = plan.omitted.iter().filter(|_| kubeadm_follows);
        let needed = needed.filter_map(|name| needed_by_kubeadm(*name, resolved.node.role));
        plan.notes.extend(needed);
        if is_settled && !documents.describes_node() {
            // No kubeadm follows, and a cluster that runs has its service-account keys.
            plan.ignore_preflight_errors.clear();
            if let Some(spec) = &mut plan.service_account {
                spec.may_make = false;
            }
        }
        let setup = Setup {
            plan,
            kubeadm_follows,
            signers: open_signers(
                root,
                &settings,
                &identity,
                policy.key_for_authority(Authority::Ca),
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
        warnings.extend(exposed_secrets(root, &settings));
        let local = local_ca_keys(root, &settings).into_iter();
        warnings.extend(local.map(|found| format!("{found}: {LOCAL_CA_KEYS_ADVICE}")));
        Ok(Loaded {
            setup,
            state,
            node: resolved.node,
            settings,
            knows_cluster,
            warnings,
        })
    }
}

/// As [`load`], but with the faults of the kubeadm configuration also when the settings are faulty. What a joining
/// node is to learn of its cluster may be missing: then the setup is that of kubeadm's defaults, and `None` for how
/// many certificates it has.
///
/// # Errors
/// All faults of all files at once.
pub fn check(
    root: &Root,
    inputs: &Inputs,
    now: OffsetDateTime,
) -> Result<(Loaded, Option<usize>), Failure> {
    let mut failure = match read_settings(root, inputs) {
        Ok(settings) => {
            let mut known = Known::with_settings(root, settings)?;
            known.require_configuration(root)?;
            let later = asks_cluster(&known.settings, &known.documents)
                && known.documents.cluster().is_none();
            if later {
                known.documents = kubeadm::load_over(STAND_IN_CLUSTER, &known.sources);
            }
            let loaded = known.assemble(root, inputs, &IdentityChange::Show, now)?;
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

/// Reads and validates the settings alone.
///
/// # Errors
/// All faults of all fragments at once.
pub fn read_settings(root: &Root, inputs: &Inputs) -> Result<(Settings, Faults), Failure> {
    let list = |directory: &Path| {
        let listed = root.trusted_dir(directory);
        match listed.and_then(|found| found.map(|directory| directory.list()).transpose()) {
            // A rescue system often binds its own /run into the root.
            Err(error) if error.is_this_machine() => Ok(Vec::new()),
            listed => listed.map(texts).map_err(io::Error::other),
        }
    };
    let read = |path: &Path| match &inputs.config {
        Some(named) if named.as_given() == path => {
            read_verified(root, named, Metadata::require_trust).map(Some)
        }
        _ => root
            .read_trusted(path)
            .map_err(io::Error::other)?
            .map(|content| text(&root.on_this_machine(path), &content.bytes))
            .transpose(),
    };
    let shown = |path: &Path| match &inputs.config {
        Some(named) => shown(root, named),
        None => root.on_this_machine(path),
    };
    let only = inputs.config.as_ref().map(Argument::as_given);
    let fragments = config::collect(only, list, read, shown)
        .map_err(|error| Failure::caused(unreadable_code(&error), error.to_string(), &error))?;
    let (settings, warnings) = Settings::from_fragments(&fragments).map_err(faulty)?;
    let origin = match &inputs.config {
        Some(named) => argument(root, named)?.origin(),
        None => Origin::Node,
    };
    let settings = settings.found_at(origin);
    Ok((settings.with(inputs.stand_ins.clone()), warnings))
}

/// The kubeadm documents that there are: `(file, text)`.
fn existing_sources(root: &Root, settings: &Settings) -> Result<Vec<(String, String)>, Failure> {
    let mut sources = Vec::new();
    for named in &settings.kubeadm.arguments {
        let shown = shown(root, named);
        let text = read_verified(root, named, Metadata::require_limited_writers)
            .map_err(|error| unreadable(&shown, &error))?;
        sources.push((shown.display().to_string(), text));
    }
    for path in &settings.kubeadm.files {
        let found = match root.read_trusted(path) {
            // As for the settings.
            Err(error) if error.is_this_machine() => None,
            found => found?,
        };
        if let Some(content) = found {
            let path = root.on_this_machine(path);
            let text = text(&path, &content.bytes).map_err(|error| unreadable(&path, &error))?;
            sources.push((path.display().to_string(), text));
        }
    }
    if let Some(path) = &settings.kubeadm.cluster_configuration {
        let shown = root.on_this_machine(path);
        let content = root.read_trusted(path)?.ok_or_else(|| {
            let message = "kubeadm.clusterConfiguration names it, but it does not exist; put the cluster's ClusterConfiguration there (kubectl -n kube-system get cm kubeadm-config -o jsonpath='{.data.ClusterConfiguration}')";
            unreadable(&shown, &io::Error::other(message))
        })?;
        let text = text(&shown, &content.bytes).map_err(|error| unreadable(&shown, &error))?;
        sources.push((shown.display().to_string(), text));
    }
    let bytes: usize = sources.iter().map(|(_, text)| text.len()).sum();
    if bytes > MAX_KUBEADM_BYTES {
        return Err(Failure::new(
            ExitCode::Configuration,
            format!(
                "kubeadm configuration: the {} files have {bytes} bytes, at most {MAX_KUBEADM_BYTES} are read (name only the files of this node)",
                sources.len()
            ),
        ));
    }
    Ok(sources)
}

/// Joins the documents with what the host knows, and with the key policy.
fn resolve(
    settings: &Settings,
    documents: &kubeadm::Loaded,
    host: &HostFacts,
) -> Result<(Resolved, Policy), Failure> {
    let overrides = Overrides {
        node_name: settings.node_name.clone(),
    };
    let mut resolved = kubeadm::resolve(documents, host, &overrides).map_err(faulty)?;
    let algorithm = resolved
        .cluster
        .as_ref()
        .map_or(KeyAlgorithm::Rsa2048, |cluster: &Cluster| {
            cluster.key_algorithm
        });
    let (policy, warnings) =
        Policy::assemble(settings.pki.as_ref(), documents.policies(), algorithm).map_err(faulty)?;
    resolved.warnings.extend(warnings);
    Ok((resolved, policy))
}

/// Returns an error once this machine failed to read a file below the root: what is concluded from the files that could be
/// read may be wrong.
fn require_readable(root: &Root) -> Result<(), Failure> {
    match root.machine_fault() {
        Some(fault) => Err(Failure::new(
            ExitCode::Pending,
            format!("{fault}; nothing is concluded from the other files: run again"),
        )),
        None => Ok(()),
    }
}

pub(crate) fn faulty(faults: Faults) -> Failure {
    Failure {
        code: ExitCode::Configuration,
        messages: faults.iter().map(ToString::to_string).collect(),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    match unreadable_code(error) {
        // Its message names the file.
        ExitCode::Refused => Failure::new(ExitCode::Refused, error.to_string()),
        code => Failure::caused(code, format!("{}: {error}", path.display()), error),
    }
}

/// The exit status for a configuration file that cannot be used: one that another user can change is not a mistake in the
/// configuration.
fn unreadable_code(error: &io::Error) -> ExitCode {
    match store::is_access_refusal(error) {
        true => ExitCode::Refused,
        false => ExitCode::Configuration,
    }
}

fn text(path: &Path, bytes: &[u8]) -> io::Result<String> {
    String::from_utf8(bytes.to_vec())
        .map_err(|_| io::Error::other(format!("{} is not UTF-8 text", path.display())))
}

/// Reads a file that the command line names.
pub(crate) fn read_argument(root: &Root, named: &Argument) -> io::Result<String> {
    read_verified(root, named, |_, _| Ok(()))
}

/// As [`read_argument`], for a file that `verify` accepts.
fn read_verified(
    root: &Root,
    named: &Argument,
    verify: impl Fn(&Metadata, &Path) -> Result<(), store::Error>,
) -> io::Result<String> {
    let found = argument(root, named).map_err(io::Error::other)?;
    match found.read().map_err(io::Error::other)? {
        Some(content) => {
            let path = found.on_this_machine();
            verify(&content.metadata, &path).map_err(io::Error::other)?;
            text(&shown(root, named), &content.bytes)
        }
        None if root.is_this_machine() => Err(nix::errno::Errno::ENOENT.into()),
        None => Err(io::Error::other(format!(
            "does not exist, neither below {} nor here",
            root.path().display()
        ))),
    }
}

/// The names that are text.
fn texts(names: Option<Vec<OsString>>) -> Vec<String> {
    let names = names.unwrap_or_default().into_iter();
    names.filter_map(|name| name.into_string().ok()).collect()
}

/// A path as the root wants it: relative ones mean the working directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn host_facts(root: &Root) -> Result<HostFacts, Failure> {
    let is_this_machine = root.is_this_machine();
    let hostname = if is_this_machine {
        nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .unwrap_or_default()
    } else {
        let content = root.read("/etc/hostname")?;
        let bytes = content
            .map(|content| content.bytes.to_vec())
            .unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    };
    Ok(HostFacts {
        hostname,
        default_route_address: is_this_machine.then(default_route_address).flatten(),
        running: None,
        kept: None,
    })
}

/// The addresses of this machine; none where it is not the node.
fn interfaces(root: &Root) -> Vec<IpAddr> {
    if !root.is_this_machine() {
        return Vec::new();
    }
    let found = nix::ifaddrs::getifaddrs().into_iter().flatten();
    found
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| Some(IpAddr::V6(address.as_sockaddr_in6()?.ip())))
        })
        .filter(|address| !address.is_loopback())
        .collect()
}

/// The address that this machine would speak from to the outside. Connecting a UDP socket sends nothing: it only
/// asks the routing table. IPv4 goes first, as in kubeadm.
fn default_route_address() -> Option<IpAddr> {
    let source = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from.parse::<SocketAddr>().ok()?).ok()?;
        socket.connect(to.parse::<SocketAddr>().ok()?).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    // Documentation addresses (RFC 5737, RFC 3849): routed by default, owned by nobody.
    source("0.0.0.0:0", "192.0.2.1:9").or_else(|| source("[::]:0", "[2001:db8::1]:9"))
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
    }
}

/// What kubeadm does with an omitted file while it sets up the node.
fn needed_by_kubeadm(name: CertName, role: Role) -> Option<String> {
    match (name, role) {
        (CertName::SuperAdminConf, Role::Init) => Some(
            "super-admin.conf is omitted (certificates.omit): kubeadm init refuses an external CA without that file (ValidateKubeconfigsForExternalCA) and creates the ClusterRoleBinding kubeadm:cluster-admins with it; put one there for kubeadm init, unless the cluster was initialized before".to_owned(),
        ),
        (CertName::AdminConf, Role::Join) => Some(
            "admin.conf is omitted (certificates.omit): kubeadm join talks to the cluster with that file; put the kubeconfig of an administrator there for kubeadm join, and remove it afterwards".to_owned(),
        ),
        _ => None,
    }
}

fn tolerance(settings: &Settings, authority: Authority) -> Tolerance {
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
        own_name: signer.is_some_and(|(_, signer)| signer.kind().about().caps.own_name_san),
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
