//! The configuration of a node as far as its own files contain it, and the setup of a run made from it.
//!
//! [`KnownConfiguration::read`] collects settings, kubeadm documents, the files of a running node and the record of
//! earlier runs. The callers in `load` complete the documents with data of the cluster where they are allowed to ask it,
//! and [`KnownConfiguration::assemble`] then resolves everything into a plan and the signers.

use std::collections::BTreeMap;
use std::path::Path;

use time::OffsetDateTime;

use super::configuration::{no_configuration, takes_from_cluster};
use super::host::{host_facts, interfaces};
use super::identity::{IdentityChange, Recorded, WantedIdentity};
use super::running::{self, RunningNode};
use super::{
    LOCAL_CA_KEYS_ADVICE, LOCK_WAIT, LoadInputs, Loaded, choices, defined, existing_sources,
    exposed_secrets, faulty, local_ca_keys, open_signers, read_settings, resolve, state_of,
};
use crate::agent::cluster_policy::ClusterPolicy;
use crate::agent::{
    ClockPolicy, ExitCode, Failure, Provided, Record, RunSetup, TrustFile, TrustSource, join,
};
use crate::config::{RoleSetting, Settings};
use crate::kube::kubeadm::{self, ClusterConfig, Discovery, HostFacts, KubeadmRole};
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::APISERVER_MANIFEST;
use crate::node::NodeState;
use crate::process::jitter::random_fraction;
use crate::process::machine;
use crate::signer::NodeIdentity;
use crate::spec::compliance;
use crate::spec::credentials::{self, CredentialsByFile};
use crate::spec::policy::KeyPolicy;
use crate::spec::{
    self, AuthorityProgress, Choices, KubeconfigCredentials, Layout, NodeSpec, PolicyDoubts,
    registered,
};
use crate::store::{NodeRoot, STATE_DIR};
use crate::yaml::Faults;

/// The configuration of the node, as far as its own files contain it.
pub(super) struct KnownConfiguration {
    pub(super) settings: Settings,
    warnings: Faults,
    /// The existing kubeadm files: `(file, text)`.
    pub(super) sources: Vec<(String, String)>,
    /// The documents of `sources`, completed with the kept ClusterConfiguration if they contain none.
    pub(super) documents: kubeadm::Documents,
    /// The ClusterConfiguration that an earlier run kept: `(file, text)`.
    pub(super) kept: Option<(String, String)>,
    pub(super) running: Option<RunningNode>,
    /// The files of the node read so far.
    state: NodeState,
    recorded: Recorded,
    pub(super) cluster_policy: ClusterPolicy,
    /// URL of the API server for a worker's kubelet.conf, from the discovery of this run.
    pub(super) joined_server: Option<String>,
    /// Warning that a worker's ClusterConfiguration is unknown.
    unknown_cluster: Option<String>,
}

/// The configuration files of a node, each read once.
pub(super) struct ConfigurationFiles {
    pub(super) settings: Settings,
    warnings: Faults,
    /// The existing kubeadm files: `(file, text)`.
    sources: Vec<(String, String)>,
    /// The ClusterConfiguration that an earlier run kept: `(file, text)`.
    kept: Option<(String, String)>,
    /// The documents of `sources`.
    pub(super) documents: kubeadm::Documents,
    /// The files of the node, at the paths in the documents.
    pub(super) state: NodeState,
    /// Why the first of the files is unusable. The other fields then contain what is known without it.
    fault: Option<Failure>,
}

impl ConfigurationFiles {
    pub(super) fn read(root: &NodeRoot, inputs: &LoadInputs) -> ConfigurationFiles {
        let settings = read_settings(root, inputs);
        let default = || {
            let settings = Settings::default().with(inputs.stand_ins.clone());
            (settings, Faults::default())
        };
        Self::with_settings(root, settings, default)
    }

    /// As [`ConfigurationFiles::read`], with settings that were read before; `default` replaces unusable ones.
    fn with_settings(
        root: &NodeRoot,
        settings: Result<(Settings, Faults), Failure>,
        default: impl FnOnce() -> (Settings, Faults),
    ) -> ConfigurationFiles {
        root.forget_machine_fault();
        let mut fault = None;
        let (settings, warnings) = usable(settings, &mut fault).unwrap_or_else(default);
        let sources = usable(existing_sources(root, &settings), &mut fault).unwrap_or_default();
        let kept = usable(join::kept_configuration(root), &mut fault).flatten();
        let documents = kubeadm::load(&sources);
        let state = NodeState::new(root, Layout::default());
        ConfigurationFiles {
            state: state_of(&state, &documents, &settings, None),
            settings,
            warnings,
            documents,
            sources,
            kept,
            fault,
        }
    }

    /// Returns the documents completed with the kept ClusterConfiguration, if they contain none.
    pub(super) fn completed_documents(&self) -> Option<kubeadm::Documents> {
        let (name, text) = self.kept.as_ref()?;
        let lacks_cluster = self.documents.cluster().is_none();
        lacks_cluster.then(|| kubeadm::load_over((name, text), &self.sources))
    }
}

/// Returns the value of a result; keeps the first failure in `fault`.
fn usable<T>(result: Result<T, Failure>, fault: &mut Option<Failure>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(failure) => {
            fault.get_or_insert(failure);
            None
        }
    }
}

impl KnownConfiguration {
    pub(super) fn read(
        root: &NodeRoot,
        inputs: &LoadInputs,
    ) -> Result<KnownConfiguration, Failure> {
        Self::of(root, ConfigurationFiles::read(root, inputs))
    }

    pub(super) fn with_settings(
        root: &NodeRoot,
        settings: (Settings, Faults),
    ) -> Result<KnownConfiguration, Failure> {
        let files = ConfigurationFiles::with_settings(root, Ok(settings), Default::default);
        Self::of(root, files)
    }

    /// Completes the configuration files with the state of the node.
    ///
    /// # Errors
    /// The fault of the files, a file of the node that this machine cannot read, an unusable kept ClusterConfiguration.
    pub(super) fn of(
        root: &NodeRoot,
        files: ConfigurationFiles,
    ) -> Result<KnownConfiguration, Failure> {
        let ConfigurationFiles {
            settings,
            warnings,
            sources,
            kept,
            documents,
            state,
            fault,
        } = files;
        if let Some(fault) = fault {
            return Err(fault);
        }
        let role = settings.role.chosen().or_else(|| documents.role());
        let running = RunningNode::read(&state, !sources.is_empty(), role);
        let cluster_policy = ClusterPolicy::read(root, &settings.cluster_policy);
        require_readable(root)?;
        let mut known = KnownConfiguration {
            cluster_policy,
            settings,
            warnings,
            sources,
            documents,
            kept,
            running,
            recorded: Recorded::read(&state)?,
            state,
            joined_server: None,
            unknown_cluster: None,
        };
        if (known.wants_configuration() || known.leaves_cluster_open())
            && let Some(kept) = &known.kept
        {
            known.documents = known.over(kept);
            // kubeadm's defaults would give a running node the names and addresses of another cluster.
            if known.documents.cluster().is_none() && !known.documents.faults().has_errors() {
                return Err(Failure::misconfigured(format!(
                    "{} does not contain a ClusterConfiguration; put the cluster's there (kubectl -n kube-system get cm kubeadm-config -o jsonpath='{{.data.ClusterConfiguration}}'), or remove the file, and nodepki fetches it from the cluster",
                    root.node_path(join::CLUSTER_CONFIGURATION_COPY)
                )));
            }
        }
        Ok(known)
    }

    /// Returns whether the kubeadm files of a serving node do not describe its cluster.
    pub(super) fn leaves_cluster_open(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.facts.settled)
            && self.documents.cluster().is_none()
            && !self.documents.faults().has_errors()
    }

    /// Returns whether the kubeadm files of a serving node describe nothing, such as an empty file after a failed write.
    fn describes_nothing(&self) -> bool {
        self.leaves_cluster_open() && !self.documents.describes_node()
    }

    /// Returns whether a ClusterConfiguration from another source is needed: no kubeadm file exists, or the files leave it
    /// to the cluster.
    pub(super) fn wants_configuration(&self) -> bool {
        self.sources.is_empty()
            || self.describes_nothing()
            || takes_from_cluster(&self.settings, &self.documents)
    }

    /// Returns the documents of the kubeadm files, completed with a ClusterConfiguration.
    pub(super) fn over(&self, (name, text): &(String, String)) -> kubeadm::Documents {
        kubeadm::load_over((name, text), &self.sources)
    }

    pub(super) fn is_worker(&self) -> bool {
        let role = self.settings.role.chosen();
        match (role.or_else(|| self.documents.role()), &self.running) {
            (Some(role), _) => role == KubeadmRole::Worker,
            (None, Some(running)) => running.facts.role == KubeadmRole::Worker,
            (None, None) => self.recorded.is_worker(),
        }
    }

    /// Returns the API server of the cluster that a worker joins, from the discovery of this run, or else from the same
    /// discovery of an earlier run, whose bootstrap token may have expired.
    fn joined_server(&self) -> Option<String> {
        let found = self.joined_server.clone();
        found.or_else(|| self.recorded.server_of(self.documents.join()?))
    }

    /// Returns whether only the discovery file names the API server for a worker's kubelet.conf.
    pub(super) fn lacks_server(&self) -> bool {
        let join = self.documents.join();
        let is_by_file =
            join.is_some_and(|join| matches!(join.discovery, Some(Discovery::File(_))));
        let running = self.running.as_ref();
        let endpoint = |cluster: &ClusterConfig| cluster.control_plane_endpoint.clone();
        is_by_file
            && self.is_worker()
            && running.is_none_or(|running| running.facts.server.is_none())
            && self.joined_server().is_none()
            && self.documents.cluster().and_then(endpoint).is_none()
    }

    /// Completes a worker's documents with its cluster's ClusterConfiguration. A worker can run without one, so a missing or
    /// unusable one is only a warning. Returns whether the documents are complete.
    pub(super) fn complete_worker(&mut self, given: Result<(String, String), Failure>) -> bool {
        let completed = given.and_then(|(from, text)| {
            let text = join::configuration_of_worker(&from, &text)?;
            let documents = self.over(&(from, text));
            if documents.faults().has_errors() {
                Err(faulty(documents.faults().clone()))
            } else {
                Ok(documents)
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
    pub(super) fn require_configuration(&self, root: &NodeRoot) -> Result<(), Failure> {
        if !root.is_this_machine() && matches!(root.metadata("/etc"), Ok(None)) {
            return Err(Failure::misconfigured(format!(
                "there is no directory {} (mount the file system of the node there, or correct --root)",
                root.on_this_machine("/etc").display()
            )));
        }
        let is_described = !self.sources.is_empty() && !self.describes_nothing();
        let is_known = is_described || self.kept.is_some() || self.is_worker();
        if is_known {
            Ok(())
        } else {
            Err(no_configuration(
                root,
                &self.settings,
                self.running.is_some(),
            ))
        }
    }

    /// Assembles the setup for a command that may write. The ClusterConfiguration is kept for runs after its file is removed.
    pub(super) fn assemble_to_keep(
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

    /// Assembles the setup of a run from what is known.
    pub(super) fn assemble(
        self,
        root: &NodeRoot,
        inputs: &LoadInputs,
        change: &IdentityChange,
        now: OffsetDateTime,
    ) -> Result<Loaded, Failure> {
        let host = self.host(root, change)?;
        self.require_role_of_files(root)?;
        let (resolved, policy) = resolve(&self.settings, &self.documents, &host)?;
        let policy = policy.replaced_by(self.cluster_policy.rules.clone());
        let cluster = resolved.cluster.clone().unwrap_or_default();
        let layout = Layout::new(
            Some(cluster.certificates_dir.clone()),
            resolved.node.kubelet_cert_dir.clone(),
        );
        let layout = layout.with_registered(&self.settings.registered.certificates());
        let state = self.state.with_layout(layout);
        let wanted = WantedIdentity {
            resolved: &resolved,
            names_node: self.settings.node_name.is_some() || self.documents.names_node(),
            is_described: self.documents.describes_node(),
            hostname: &host.hostname,
        };
        let running = self.running.as_ref();
        let compared = self.recorded.compare(&state, running, &wanted, change)?;
        let mut notes = compared.notes;
        if let Some(running) = running {
            notes.extend(running.notes(root, &resolved));
        }
        let by_file = self.credentials_by_file(&state, &cluster, resolved.node.role);
        let mut choices = choices(&self.settings);
        choices.credentials_by_file = by_file.names;
        let mut plan = self.plan(root, &cluster, &resolved.node, (&policy, &choices), notes)?;
        plan.policy_doubts = PolicyDoubts {
            rules: self.cluster_policy.warning.clone(),
            blocks: self.settings.cluster_policy.required
                && !self.cluster_policy.is_known()
                // No cluster exists yet that could report a policy.
                && !self.is_first_of_cluster(),
            algorithm: self.unknown_cluster.clone(),
        };
        let identity = NodeIdentity {
            node: resolved.node.name.as_str().to_owned(),
            cluster: cluster.cluster_name.clone(),
        };
        let settings = &self.settings;
        let setup = RunSetup {
            plan,
            kubeadm_follows: self.kubeadm_follows(),
            signers: open_signers(
                root,
                (root, Path::new(STATE_DIR)),
                settings,
                &identity,
                policy.key_for_authority(Authority::Ca),
                inputs.signer_state,
                now,
            )?,
            identity,
            trust: trust_sources(root, settings)?,
            provided: Provided::default(),
            identity_conflicts: compared.conflicts,
            record: Some(Record {
                before: self.recorded.kept.clone(),
                node: compared.record,
            }),
            rotation: settings.rotation.clone(),
            wait: inputs.wait.unwrap_or(settings.wait),
            lock_wait: inputs.wait.map_or(LOCK_WAIT, |wait| wait.min(LOCK_WAIT)),
            clock: ClockPolicy {
                max_wait: inputs.clock_wait.unwrap_or(settings.clock_max_wait),
                allow_unsynced: inputs.allow_unsynced,
            },
            jitter: random_fraction,
        };
        require_readable(root)?;
        let version = cluster.kubernetes_version.as_ref();
        let mut warnings = self.warnings(root, resolved.warnings, policy.warnings(version));
        if let Some(address) = resolved.node.advertise_address {
            let is_settled = running.is_some_and(|running| running.facts.settled);
            warnings.extend(running::unowned(address, &interfaces(root), is_settled));
        }
        warnings.extend(by_file.warnings);
        warnings.extend(compliance::large_keys_of_short_lived(&setup.plan.certs));
        // The copy of the ClusterConfiguration does not describe the node.
        let kept = root.node_path(join::CLUSTER_CONFIGURATION_COPY).to_string();
        Ok(Loaded {
            state: state.with_layout(setup.plan.layout.clone()),
            setup,
            node: resolved.node,
            knows_cluster: self.documents.cluster_document().is_some(),
            kubeadm_file: self
                .documents
                .node_file()
                .filter(|file| *file != kept)
                .map(str::to_owned),
            settings: self.settings,
            cluster,
            warnings,
            policy_since: self.cluster_policy.since(),
            policy_to_keep: self.cluster_policy.to_keep().cloned(),
        })
    }

    /// Refuses to treat a control-plane node as an etcd member.
    fn require_role_of_files(&self, root: &NodeRoot) -> Result<(), Failure> {
        if self.settings.role != RoleSetting::Etcd || !self.state.has_apiserver_manifest() {
            return Ok(());
        }
        Err(Failure::refused(format!(
            "role is etcd, but {} runs kube-apiserver on this node (remove the setting: a control-plane node with its own etcd needs none)",
            root.node_path(APISERVER_MANIFEST)
        )))
    }

    /// Returns the facts of this machine, of the running node, and of an earlier run that this one continues.
    fn host(&self, root: &NodeRoot, change: &IdentityChange) -> Result<HostFacts, Failure> {
        let running = self.running.as_ref();
        if running.is_none()
            && !self.documents.describes_node()
            && matches!(change, IdentityChange::Accept(_))
        {
            self.recorded.require_record(root)?;
        }
        let is_blank = running.is_none() && self.sources.is_empty();
        let kept = self.recorded.continued(is_blank);
        Ok(HostFacts {
            running: running.map(|running| running.facts.clone()),
            joined_server: self.joined_server(),
            kept: kept.map(|kept| kept.node.clone()),
            ..host_facts(root)?
        })
    }

    /// Returns whether kubeadm has yet to set up the node.
    pub(super) fn kubeadm_follows(&self) -> bool {
        !self.running.as_ref().is_some_and(RunningNode::is_set_up)
    }

    /// Decides which kubeconfigs name the files of their certificate and key.
    fn credentials_by_file(
        &self,
        state: &NodeState,
        cluster: &ClusterConfig,
        role: KubeadmRole,
    ) -> CredentialsByFile {
        let is_wanted = self.settings.kubeconfig_credentials == KubeconfigCredentials::File;
        if !is_wanted || !role.has_control_plane() {
            return CredentialsByFile::default();
        }
        let is_known = self.documents.cluster_document().is_some();
        credentials::by_file(state.layout(), cluster, is_known, |component| {
            state.component_manifest(component)
        })
    }

    /// Returns the desired state. `notes` are those on the identity of the node.
    fn plan(
        &self,
        root: &NodeRoot,
        cluster: &ClusterConfig,
        node: &kubeadm::NodeConfig,
        (policy, choices): (&KeyPolicy, &Choices),
        notes: Vec<String>,
    ) -> Result<NodeSpec, Failure> {
        let plan = spec::node_spec(cluster, node, policy, choices);
        let mut conflicts = registered::path_conflicts(&choices.registered, &plan.layout);
        conflicts.extend(registered::name_conflicts(
            &plan.certs,
            &cluster.service_subnets,
        ));
        if !conflicts.is_empty() {
            return Err(Failure::with_messages(ExitCode::Configuration, conflicts));
        }
        let mut plan = plan.shown_below(root.path());
        plan.notes.extend(notes);
        mark_changing(root, &mut plan)?;
        if self.kubeadm_follows() {
            let needed = plan.omitted.iter();
            let needed = needed.filter_map(|name| needed_by_kubeadm(*name, node.role));
            plan.notes.extend(needed);
        }
        let running = self.running.as_ref();
        let is_settled = running.is_some_and(|running| running.facts.settled);
        if is_settled && !self.documents.describes_node() {
            // kubeadm does not run again, and a running cluster has its service-account keys.
            plan.ignore_preflight_errors.clear();
            if let Some(spec) = &mut plan.service_account {
                spec.may_make = false;
            }
        }
        Ok(plan)
    }

    /// Returns the warnings about the configuration, about secrets that other users can read, and about local CA keys.
    fn warnings(&self, root: &NodeRoot, resolved: Faults, policy: Faults) -> Vec<String> {
        let mut faults = self.warnings.clone();
        faults.extend(resolved);
        faults.extend(policy);
        let mut warnings: Vec<String> = faults.warnings().map(ToString::to_string).collect();
        warnings.extend(self.unknown_cluster.clone());
        let empty = self
            .documents
            .empty_file()
            .filter(|_| self.running.is_some());
        warnings.extend(empty.map(|file| {
            format!("{file} is empty and is ignored (remove it, or write the kubeadm configuration of this node there)")
        }));
        warnings.extend(self.cluster_policy.warning.clone());
        warnings.extend(self.cluster_policy.note.clone());
        warnings.extend(exposed_secrets(root, &self.settings));
        let local = local_ca_keys(root, &self.settings).into_iter();
        warnings.extend(local.map(|found| format!("{found}: {LOCAL_CA_KEYS_ADVICE}")));
        warnings
    }
}

/// Marks the certificates of authorities whose CA is being changed.
fn mark_changing(root: &NodeRoot, plan: &mut NodeSpec) -> Result<(), Failure> {
    let changes = match root.authority_changes() {
        Err(error) if machine::is_fault(&error) => return Err(error.into()),
        // `authority` reports a damaged record; rotation continues without it.
        changes => changes.unwrap_or_default(),
    };
    for spec in &mut plan.certs {
        spec.authority_change = match changes.get(&spec.authority()) {
            None => AuthorityProgress::Unchanged,
            Some(change) if change.activated.is_some() => AuthorityProgress::Activated,
            Some(change) => AuthorityProgress::Staged(change.new.clone()),
        };
    }
    Ok(())
}

/// Fails if this machine could not read a file below the root, because conclusions from the other files may be wrong.
fn require_readable(root: &NodeRoot) -> Result<(), Failure> {
    match root.machine_fault() {
        Some(fault) => Err(Failure::pending(format!(
            "{fault}; the other files alone do not show the state of the node: run again"
        ))),
        None => Ok(()),
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

fn trust_sources(
    root: &NodeRoot,
    settings: &Settings,
) -> Result<BTreeMap<Authority, TrustSource>, Failure> {
    let sources = settings.authorities.iter().map(|(authority, trust)| {
        let file = trust.trust_file.as_deref();
        let file = file.map(|path| defined(root, settings.origin, path));
        let file = file.transpose()?.map(|found| TrustFile {
            root: found.root,
            path: found.path,
            on_node: found.on_node,
        });
        let pins = trust.trust_sha256.clone();
        Ok((*authority, TrustSource { file, pins }))
    });
    sources.collect()
}
