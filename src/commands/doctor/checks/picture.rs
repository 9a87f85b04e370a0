//! Reads the state of the node once, for all checks. Never fails: an unreadable file is part of the state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use time::OffsetDateTime;

use super::DiagnosisInputs;
use super::cluster::Answers;
use super::finding::CheckNote;
use crate::agent::load::{self, NameSource};
use crate::agent::{self, Examination, ExaminationVerdict, ExitCode, RunSetup, Survey, join};
use crate::config::{FRAGMENT_DIRECTORIES, MAIN_FILE};
use crate::kube::components::{Component, ReplacedFile};
use crate::kube::kubeadm;
use crate::kube::manifest::StaticPod;
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{
    BOOTSTRAP_KUBELET_CONF, KUBELET_CONFIGURATION, KUBERNETES_DIR, MANIFESTS_DIR,
};
use crate::kubelets::KubeletPolicy;
use crate::node::static_pods::{mounted_files, other_static_pods};
use crate::node::status::{self, NodeRole, NodeStatus, PendingStatus, RowFault, RowSubject};
use crate::node::{NodeFile, NodeState};
use crate::signer::SignerKind;
use crate::spec::assess::{FoundKubeconfig, Observed};
use crate::spec::authority_rotation::{AuthorityRotation, RotationSubject};
use crate::spec::compliance::KeyUse;
use crate::spec::{Layout, NodeSpec, credentials, kubeconfig_path};
use crate::store::{
    ErrorClass, Exposed, FileKind, NodeRoot, STATE_DIR, StoreError, UnfinishedWork,
};
use crate::x509::{Certificate, Chain, KeyError, PrivateKey, PublicKey, TrustBundle};
use crate::yaml;

/// How to end requests that were exported.
const IMPORT: &str =
    "have the exported requests signed, then import the directory: `nodepki csr import DIR`";

/// The copy of `admin.conf` that kubeadm tells root to make.
pub(super) const OWN_COPY: &str = "/root/.kube/config";
/// Largest file that is searched for a private key, in bytes. Longer files, such as backups, are not keys.
const MAX_KEY_FILE_BYTES: u64 = 64 * 1024;
/// Largest directory depth that is searched; more than that of `/etc/kubernetes/tmp/kubeadm-backup-…/pki/etcd`.
const MAX_SEARCH_DEPTH: usize = 6;
/// Number of directory entries that are examined below the directories of Kubernetes, and again for backups in them.
const MAX_EXAMINED_ENTRIES: usize = 10_000;

/// The state of a node, as read once for all checks.
pub(super) struct Picture {
    pub(super) at: OffsetDateTime,
    root: PathBuf,
    /// Whether the root has `/etc`, as every system does.
    pub(super) is_system: bool,
    layout: Layout,
    pub(super) status: NodeStatus,
    pub(super) configuration: Configuration,
    pub(super) authorities: BTreeMap<Authority, FoundAuthority>,
    pub(super) leaves: BTreeMap<CertName, FoundLeaf>,
    /// SHA-256 of the CA certificates that `authority activate` installed.
    pub(super) activated: BTreeMap<Authority, String>,
    /// CA changes of the whole cluster, as the daemon has last read them.
    pub(super) rotations: BTreeMap<RotationSubject, AuthorityRotation>,
    /// The public half of `sa.key`.
    pub(super) service_account: Observed<PublicKey>,
    pub(super) trees: Trees,
    pub(super) unfinished: Option<UnfinishedWork>,
    /// Directories that other users can change, of those that nodepki writes to and those above them.
    pub(super) exposed: Vec<Exposed>,
    pub(super) apiserver: Option<StaticPod>,
    pub(super) controller_manager: Option<StaticPod>,
    pub(super) etcd: Option<StaticPod>,
    /// Manifests that cannot be parsed, each with the reason.
    pub(super) broken_manifests: Vec<String>,
    /// Static pods that kubeadm did not write, with the files of the PKI that they mount.
    pub(super) mounting_pods: Vec<(StaticPod, Vec<ReplacedFile>)>,
    pub(super) kubelet: Kubelet,
    /// The node's name in each file that contains it.
    pub(super) names: Vec<NameSource>,
    /// The certificate in [`OWN_COPY`].
    pub(super) own_copy: Option<Certificate>,
    /// Certificates of other files below `/etc/kubernetes`, such as backups and files of administrators.
    pub(super) copies: Vec<(PathBuf, Certificate)>,
    /// Files of the certificates directory that the manifests name.
    pub(super) signer: Option<SignerFiles>,
    pub(super) answers: Option<Answers>,
    /// State of the signers, if they were asked.
    pub(super) signers: Option<Examination>,
}

/// Desired state, as far as it can be determined offline.
#[derive(Default)]
pub(super) struct Configuration {
    /// Whether a configuration file exists, or was named on the command line.
    pub(super) exists: bool,
    pub(super) faults: Vec<String>,
    /// Whether the faults are in other files than the configuration, such as those of the state directory.
    pub(super) is_refused: bool,
    pub(super) node: Option<kubeadm::NodeConfig>,
    pub(super) plan: Option<NodeSpec>,
    pub(super) survey: Option<Survey>,
    /// The keys to which the key policy applies.
    pub(super) keys: Vec<KeyUse>,
    /// The files that the survey describes.
    state: Option<NodeState>,
    /// The configured signers that keep the CA key outside this node, by authority.
    pub(super) external: BTreeMap<Authority, String>,
    /// Why the files of the next run cannot be written: too little space, or a read-only file system.
    pub(super) no_room: Vec<String>,
    /// The program of a signer is named below a root directory, where it is not started.
    pub(super) has_refused_program: bool,
    /// Secrets of the settings that other users can read or change.
    pub(super) exposed_secrets: Vec<String>,
    /// Signers of the settings whose CA keys are on the node.
    pub(super) local_ca_keys: Vec<String>,
    /// SHA-256 of the public keys that an authority may have; an empty list permits any.
    pub(super) pins: BTreeMap<Authority, Vec<[u8; 32]>>,
    /// The policy for requests of kubelets, if nodepki signs them.
    pub(super) kubelets: Option<KubeletPolicy>,
}

pub(super) struct FoundAuthority {
    pub(super) path: PathBuf,
    pub(super) bundle: Observed<TrustBundle>,
    pub(super) key_path: PathBuf,
    pub(super) key: AuthorityKey,
}

/// State of the path of an authority's private key.
pub(super) enum AuthorityKey {
    Absent,
    /// A file exists, but this user cannot read it.
    Closed,
    /// This user cannot determine whether a file exists.
    Unknown,
    Unusable(String),
    Usable(PublicKey),
}

pub(super) struct FoundLeaf {
    pub(super) chain: Observed<Chain>,
    pub(super) key: Observed<PublicKey>,
    /// The kubeconfig; `None` for a pair.
    pub(super) kubeconfig: Option<Observed<KubeconfigPicture>>,
}

pub(super) struct KubeconfigPicture {
    pub(super) server: Option<String>,
    /// CA certificates, embedded or in the file that the kubeconfig names.
    pub(super) authority: Observed<Chain>,
    /// The files `client-certificate` and `client-key`.
    pub(super) files: Vec<PathBuf>,
    /// True if these are the files of `kubeconfig.credentials: file`.
    pub(super) are_own: bool,
    /// Why the component cannot read these files.
    pub(super) obstacle: Option<String>,
}

/// Unexpected files below `/etc/kubernetes` and the state directory.
#[derive(Default)]
pub(super) struct Trees {
    pub(super) keys: Vec<(PathBuf, PublicKey)>,
    pub(super) unfinished: Vec<PathBuf>,
    pub(super) requests: Vec<PathBuf>,
    pub(super) denied: Vec<PathBuf>,
    /// Number of entries that were examined.
    examined: usize,
}

impl Trees {
    /// Returns the limit of examined entries, if the search stopped there.
    pub(super) fn limit(&self) -> Option<usize> {
        (self.examined > MAX_EXAMINED_ENTRIES).then_some(MAX_EXAMINED_ENTRIES)
    }
}

/// The CA files of kube-controller-manager.
pub(super) struct SignerFiles {
    pub(super) certificate: PathBuf,
    pub(super) chain: Observed<Chain>,
    pub(super) key_path: PathBuf,
    pub(super) key: AuthorityKey,
}

/// One fault of `status`.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a> {
    pub(super) subject: RowSubject,
    pub(super) fault: &'a RowFault,
}

impl Problem<'_> {
    pub(super) fn sentence(&self) -> String {
        format!("{}: {}", self.subject.as_str(), self.fault)
    }

    /// Returns the error whose evidence is this fault of its row.
    pub(super) fn error(&self, fix: impl Into<String>) -> CheckNote {
        CheckNote::error(self.sentence(), fix).with_code(self.fault.code())
    }

    /// Returns the error whose evidence is this fault, which names its file.
    pub(super) fn error_of_file(&self, fix: impl Into<String>) -> CheckNote {
        CheckNote::error(self.fault.to_string(), fix).with_code(self.fault.code())
    }

    /// Returns the authority that has the fault.
    pub(super) fn authority(&self) -> Option<Authority> {
        match self.subject {
            RowSubject::Authority(name) => Some(name),
            _ => None,
        }
    }

    /// Returns the kubeconfig that has the fault.
    pub(super) fn kubeconfig(&self) -> Option<CertName> {
        match self.subject {
            RowSubject::Certificate(name) => Some(name).filter(|name| name.is_kubeconfig()),
            _ => None,
        }
    }
}

pub(super) struct Kubelet {
    pub(super) link_path: PathBuf,
    /// State of the path of the link to the newest certificate.
    pub(super) link: Option<FileKind>,
    /// Whether `bootstrap-kubelet.conf` exists.
    pub(super) may_bootstrap: bool,
    /// Whether kubeadm or another tool has set up the kubelet.
    pub(super) is_set_up: bool,
    /// The configuration file, if it can be read.
    pub(super) configuration: Option<Value>,
}

impl Picture {
    pub(super) fn read(root: &NodeRoot, inputs: &DiagnosisInputs, now: OffsetDateTime) -> Picture {
        let configuration = Configuration::read(root, &inputs.sources, now);
        let described = load::described(root, &inputs.sources, inputs.certificates_dir.clone());
        let state = match (&configuration.state, &inputs.certificates_dir) {
            (Some(state), None) => state.clone(),
            _ => described.state,
        };
        let reader = Reader { state: &state };
        let mut broken_manifests = Vec::new();
        let mut manifest = |name| match reader.manifest(name) {
            Observed::Present(manifest) => Some(manifest),
            Observed::Absent => None,
            other => {
                let path = root.on_this_machine(Path::new(MANIFESTS_DIR).join(name));
                let trouble = other.trouble().unwrap_or_default();
                broken_manifests.push(format!("{} {trouble}", path.display()));
                None
            }
        };
        let apiserver = manifest("kube-apiserver.yaml");
        let controller_manager = manifest("kube-controller-manager.yaml");
        let etcd = manifest("etcd.yaml");
        // Only whether it can be parsed.
        manifest("kube-scheduler.yaml");
        let authorities: BTreeMap<Authority, FoundAuthority> = Authority::ALL
            .into_iter()
            .map(|name| (name, reader.authority(name)))
            .collect();
        let status = status::collect(&state, described.role.map(NodeRole::from), now);
        let own_copy = reader.kubeconfig(Path::new(OWN_COPY)).chain;
        let [service_account, _] = state.layout().service_account();
        let changes = root.authority_changes().unwrap_or_default().into_iter();
        let activated = changes.filter(|(_, change)| change.activated.is_some());
        Picture {
            at: now,
            root: root.path().to_owned(),
            is_system: state.exists("/etc"),
            leaves: state
                .layout()
                .certificates()
                // The kubelet manages its self-signed certificate.
                .filter(|name| {
                    *name != CertName::KubeletServing || status.certificate(*name).is_some()
                })
                .map(|name| (name, reader.leaf(name)))
                .collect(),
            status,
            service_account: reader.key(&service_account),
            trees: reader.trees(&authorities),
            copies: reader.copies(Path::new(KUBERNETES_DIR), MAX_SEARCH_DEPTH),
            activated: activated.map(|(name, change)| (name, change.new)).collect(),
            rotations: root.cluster_rotations().unwrap_or_default().rotations,
            authorities,
            unfinished: root.unfinished_work().ok().flatten(),
            exposed: exposed(&state),
            apiserver,
            signer: controller_manager
                .as_ref()
                .and_then(|manifest| reader.signer(manifest)),
            controller_manager,
            etcd,
            broken_manifests,
            mounting_pods: mounting_pods(&state),
            kubelet: reader.kubelet(),
            names: load::name_sources(&state),
            own_copy: own_copy.present().map(|chain| chain.leaf().clone()),
            answers: None,
            signers: None,
            configuration,
            layout: state.layout().clone(),
        }
    }

    /// Returns whether a signer was asked and is not reachable, or does not accept this node.
    pub(super) fn has_failing_signer(&self) -> bool {
        let signers = self.signers.iter().flat_map(|examined| &examined.signers);
        let mut logins = signers.map(|signer| &signer.login);
        logins.any(|login| !matches!(login, ExaminationVerdict::Passed(_)))
    }

    /// Returns the name that most files of the node have, if they disagree; `None` in it if no name has most of them.
    pub(super) fn disputed_name(&self) -> Option<Option<&str>> {
        let count = |name: &str| {
            let names = self.names.iter();
            names.filter(|one| one.name.as_str() == name).count()
        };
        let mut names = self.names.iter().map(|one| one.name.as_str());
        let most = names
            .clone()
            .find(|name| 2 * count(name) > self.names.len());
        names
            .any(|name| count(name) < self.names.len())
            .then_some(most)
    }

    /// Returns how to get what is missing: `fix`, or the certificates of the requests that were exported.
    pub(super) fn unless_exported(&self, fix: &'static str) -> &'static str {
        let mut pending = self.status.pending.iter();
        if pending.any(PendingStatus::is_exported) {
            IMPORT
        } else {
            fix
        }
    }

    /// Returns all faults of `status`, those of authorities first.
    pub(super) fn problems(&self) -> Vec<Problem<'_>> {
        let mut rows = self.status.rows();
        rows.sort_by_key(|row| !matches!(row.subject, RowSubject::Authority(_)));
        rows.into_iter()
            .flat_map(|row| {
                let faults = row.findings.faults.iter();
                faults.map(move |fault| Problem {
                    subject: row.subject,
                    fault,
                })
            })
            .collect()
    }

    /// Returns whether a kubeconfig can be parsed, so its faults are in its content or in the files that it names.
    pub(super) fn has_kubeconfig(&self, name: CertName) -> bool {
        let found = self.leaf(name).and_then(|leaf| leaf.kubeconfig.as_ref());
        found.is_some_and(|found| found.present().is_some())
    }

    /// Returns whether a kubeconfig can be parsed and names no files for certificate and key.
    pub(super) fn is_embedded(&self, name: CertName) -> bool {
        let found = self
            .leaf(name)
            .and_then(|leaf| leaf.kubeconfig.as_ref()?.present());
        found.is_some_and(|found| found.files.is_empty())
    }

    /// Returns the path on this machine of a path of the node, for messages.
    pub(super) fn here(&self, path: &Path) -> String {
        let below = path.strip_prefix("/").unwrap_or(path);
        self.root.join(below).display().to_string()
    }

    pub(super) fn leaf(&self, name: CertName) -> Option<&FoundLeaf> {
        self.leaves.get(&name)
    }

    pub(super) fn authority(&self, name: Authority) -> Option<&FoundAuthority> {
        self.authorities.get(&name)
    }

    pub(super) fn bundle(&self, name: Authority) -> Option<&TrustBundle> {
        self.authority(name)?.bundle.present()
    }

    /// Returns whether this is a control-plane node, by the rule of `status`, or on an empty node by the configuration.
    pub(super) fn is_control_plane(&self) -> bool {
        match (self.status.role, &self.configuration.node) {
            (NodeRole::Empty, Some(node)) => node.role.has_control_plane(),
            (role, _) => role == NodeRole::ControlPlane,
        }
    }

    /// Returns whether the node has etcd, by the plan, or without one by the files.
    pub(super) fn has_etcd(&self) -> bool {
        match &self.configuration.plan {
            Some(plan) => plan.cert(CertName::EtcdServer).is_some(),
            None => self.status.local_etcd,
        }
    }

    /// Returns `sa.key` and `sa.pub` on this machine.
    pub(super) fn service_account_files(&self) -> [String; 2] {
        self.layout.service_account().map(|path| self.here(&path))
    }

    /// Returns the files of a leaf, certificate first.
    pub(super) fn files(&self, name: CertName) -> Vec<PathBuf> {
        self.layout.files(name)
    }
}

/// Returns the static pods that kubeadm did not write, with the files of the PKI that they mount.
fn mounting_pods(state: &NodeState) -> Vec<(StaticPod, Vec<ReplacedFile>)> {
    let pods = other_static_pods(state).into_iter();
    pods.map(|pod| {
        let files = mounted_files(&pod, state.layout());
        (pod, files)
    })
    .filter(|(_, files)| !files.is_empty())
    .collect()
}

/// Returns every exposed directory once. Other checks report a directory that cannot be examined.
fn exposed(state: &NodeState) -> Vec<Exposed> {
    let mut found: Vec<Exposed> = Vec::new();
    let layout = state.layout();
    let etcd = layout.certificates_dir().join("etcd");
    let written = [Path::new(KUBERNETES_DIR), Path::new(STATE_DIR)];
    let varying = [layout.kubelet_pki(), layout.certificates_dir(), &etcd];
    for path in written.into_iter().chain(varying) {
        for exposed in state.root().exposed(path).unwrap_or_default() {
            if !found.contains(&exposed) {
                found.push(exposed);
            }
        }
    }
    found
}

/// Returns the first document of a YAML file.
fn document(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let documents = yaml::parse("config.yaml", text).map_err(|faults| faults.to_string())?;
    Ok(documents.first().map(yaml::to_json).unwrap_or_default())
}

impl Configuration {
    fn read(root: &NodeRoot, sources: &load::LoadInputs, now: OffsetDateTime) -> Configuration {
        let mut read = Configuration {
            exists: sources.config.is_some()
                || !sources.stand_ins.kubeadm_configs.is_empty()
                || sources.stand_ins.signer.is_some(),
            ..Configuration::default()
        };
        let exists = |path: &Path| !matches!(root.metadata(path), Ok(None));
        let has_entries =
            |path: &&str| matches!(root.list(path), Ok(Some(names)) if !names.is_empty());
        read.exists |= exists(Path::new(MAIN_FILE)) || FRAGMENT_DIRECTORIES.iter().any(has_entries);
        let settings = match load::read_settings(root, sources) {
            Ok((settings, _)) => settings,
            Err(failure) => {
                read.faults = failure.texts();
                return read;
            }
        };
        let starts_programs = load::is_trusted(root, settings.signer_origin);
        read.exposed_secrets = load::exposed_secrets(root, &settings);
        read.local_ca_keys = load::local_ca_keys(root, &settings);
        read.kubelets = settings.kubelets.sign.then(|| settings.kubelets.clone());
        for authority in Authority::ALL {
            if let Some((name, signer)) = settings.signer_of(authority)
                && !matches!(signer.kind(), SignerKind::Local | SignerKind::Embedded)
            {
                read.external.insert(authority, name.to_owned());
                read.has_refused_program |= signer.kind() == SignerKind::Exec && !starts_programs;
            }
        }
        let named = settings.kubeadm.cluster_configuration.iter();
        let has_copy = exists(Path::new(join::CLUSTER_CONFIGURATION_COPY));
        let mut files = settings.kubeadm.files.iter().chain(named);
        let has_kubeadm = !settings.kubeadm.arguments.is_empty() || files.any(|path| exists(path));
        if !has_kubeadm && !has_copy {
            return read;
        }
        read.exists = true;
        match load::load(root, sources, now) {
            Ok(loaded) => {
                // If the survey fails, the check of the file that caused it reports the fault.
                read.survey = loaded.setup.survey_of(&loaded.state, now).ok();
                if let Some(survey) = &read.survey {
                    if !survey.is_settled() {
                        read.no_room = lack_of_room(root, &loaded.setup, survey);
                    }
                    read.keys = survey.all_key_uses(loaded.state.root(), now);
                }
                read.state = Some(loaded.state);
                read.plan = Some(loaded.setup.plan);
                let trust = loaded.setup.trust.into_iter();
                read.pins = trust.map(|(name, source)| (name, source.pins)).collect();
                read.node = Some(loaded.node);
            }
            // Before its first run, the cluster of a joining node may be unknown while everything else is in order.
            Err(failure) => match load::check(root, sources, now) {
                Ok((loaded, None)) => read.node = Some(loaded.node),
                _ => {
                    read.is_refused = failure.code == ExitCode::Refused;
                    read.faults = failure.texts();
                }
            },
        }
        read
    }
}

/// Returns why the files of the next run cannot be written. Other checks report files and directories that it refuses.
fn lack_of_room(root: &NodeRoot, setup: &RunSetup, survey: &Survey) -> Vec<String> {
    let is_lack =
        |error: &StoreError| matches!(error.class(), ErrorClass::NoSpace | ErrorClass::ReadOnly);
    match agent::verify_room(root, setup, survey) {
        Ok(()) => Vec::new(),
        Err(errors) => errors
            .iter()
            .filter(|error| is_lack(error))
            .map(ToString::to_string)
            .collect(),
    }
}

struct Reader<'a> {
    state: &'a NodeState,
}

impl Reader<'_> {
    fn found<T, E: std::fmt::Display>(
        &self,
        path: &Path,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Observed<T> {
        self.state.file(path).found(parse)
    }

    fn chain(&self, path: &Path) -> Observed<Chain> {
        self.state.file(path).chain()
    }

    fn key(&self, path: &Path) -> Observed<PublicKey> {
        public_half(&self.state.file(path))
    }

    fn authority(&self, name: Authority) -> FoundAuthority {
        let [path, key_path] = self.state.layout().authority(name);
        FoundAuthority {
            bundle: self.found(&path, TrustBundle::from_pem),
            path,
            key: self.authority_key(&key_path),
            key_path,
        }
    }

    fn authority_key(&self, path: &Path) -> AuthorityKey {
        let file = self.state.file(path);
        match file.bytes() {
            Ok(None) => AuthorityKey::Absent,
            Ok(Some(_)) => match public_half(&file) {
                Observed::Present(key) => AuthorityKey::Usable(key),
                Observed::Unreadable(why) => AuthorityKey::Unusable(why),
                _ => AuthorityKey::Unusable(KeyError::NoKey.to_string()),
            },
            Err(error) if error.class() == ErrorClass::Denied => match file.metadata() {
                Some(_) => AuthorityKey::Closed,
                None => AuthorityKey::Unknown,
            },
            Err(error) => AuthorityKey::Unusable(error.to_string()),
        }
    }

    fn leaf(&self, name: CertName) -> FoundLeaf {
        if name.is_kubeconfig() {
            return self.kubeconfig(&kubeconfig_path(name));
        }
        let [certificate, key] = self.state.layout().pair(name);
        FoundLeaf {
            chain: self.chain(&certificate),
            key: self.key(&key),
            kubeconfig: None,
        }
    }

    fn kubeconfig(&self, path: &Path) -> FoundLeaf {
        let unreadable = |why: String| {
            no_kubeconfig(Observed::Unreadable(why.clone()), Observed::Unreadable(why))
        };
        let (chain, key, kubeconfig, files) = match self.state.kubeconfig(path) {
            Err(error) => return unreadable(error.to_string()),
            Ok(FoundKubeconfig::Unusable(error)) => return unreadable(error.to_string()),
            Ok(FoundKubeconfig::Embedded(found)) => match (found.kubeconfig, found.chain) {
                (None, Observed::Empty) => return no_kubeconfig(Observed::Empty, Observed::Empty),
                (None, _) => return no_kubeconfig(Observed::Absent, Observed::Absent),
                (Some(kubeconfig), chain) => {
                    let key = found.key.map(|key| key.public_key().clone());
                    (chain, key, kubeconfig, Vec::new())
                }
            },
            Ok(FoundKubeconfig::ByFile {
                certificate,
                key,
                kubeconfig,
            }) => (
                certificate.chain(),
                public_half(&key),
                kubeconfig,
                vec![certificate.path().to_owned(), key.path().to_owned()],
            ),
        };
        let authority = match (&kubeconfig.authority, &kubeconfig.authority_file) {
            (None, Some(file)) => self.chain(file),
            (data, _) => Observed::read(data.as_deref(), Chain::from_pem),
        };
        let own = self.reader_of_own(&files);
        let obstacle = own.and_then(|(component, directory)| {
            let manifest = self.state.component_manifest(component);
            credentials::obstacle(manifest.present()?, component, directory)
        });
        FoundLeaf {
            chain,
            key,
            kubeconfig: Some(Observed::Present(KubeconfigPicture {
                server: kubeconfig.server,
                authority,
                are_own: own.is_some(),
                obstacle,
                files,
            })),
        }
    }

    /// Returns the component that reads these files of `kubeconfig.credentials: file`, and their directory.
    fn reader_of_own<'a>(&self, files: &'a [PathBuf]) -> Option<(Component, &'a Path)> {
        let layout = self.state.layout();
        let mut known = credentials::BY_FILE.into_iter();
        let (_, component) = known.find(|(name, _)| {
            let pair = layout.client_pair(*name);
            pair.is_some_and(|pair| pair == files)
        })?;
        Some((component, files.first()?.parent()?))
    }

    fn manifest(&self, name: &str) -> Observed<StaticPod> {
        let file = self.state.file(Path::new(MANIFESTS_DIR).join(name));
        match file.bytes() {
            // `not-permitted` reports this for every file.
            Err(error) if error.class() == ErrorClass::Denied => Observed::Absent,
            _ => self.state.manifest(name),
        }
    }

    fn signer(&self, manifest: &StaticPod) -> Option<SignerFiles> {
        let [certificate, key_path] = ["cluster-signing-cert-file", "cluster-signing-key-file"]
            .map(|flag| PathBuf::from(manifest.flag(flag).unwrap_or_default()));
        // The path in the pod equals the path on the node only in the certificates directory.
        let is_known = |path: &PathBuf| path.starts_with(self.dir());
        (is_known(&certificate) && is_known(&key_path)).then(|| SignerFiles {
            chain: self.chain(&certificate),
            certificate,
            key: self.authority_key(&key_path),
            key_path,
        })
    }

    fn kubelet(&self) -> Kubelet {
        let configuration = Path::new(KUBELET_CONFIGURATION);
        let link_path = self.state.layout().kubelet_link();
        let link = self.state.root().metadata(&link_path).ok().flatten();
        Kubelet {
            link: link.map(|found| found.kind),
            link_path,
            may_bootstrap: self.state.exists(BOOTSTRAP_KUBELET_CONF),
            is_set_up: self.state.exists(configuration),
            configuration: self.found(configuration, document).present().cloned(),
        }
    }

    fn dir(&self) -> &Path {
        self.state.layout().certificates_dir()
    }

    /// Returns the certificates of files that are not in use: neither manifests, nor files of the certificates directory
    /// itself.
    fn copies(&self, path: &Path, depth: usize) -> Vec<(PathBuf, Certificate)> {
        self.copies_below(path, depth, &mut 0)
    }

    fn copies_below(
        &self,
        path: &Path,
        depth: usize,
        examined: &mut usize,
    ) -> Vec<(PathBuf, Certificate)> {
        let etcd = self.dir().join("etcd");
        let in_use = [Path::new(MANIFESTS_DIR), self.dir(), &etcd].contains(&path);
        let layout = self.state.layout();
        let in_place: Vec<PathBuf> = layout
            .certificates()
            .flat_map(|name| self.state.layout().files(name))
            .collect();
        let names = self
            .state
            .root()
            .list(path)
            .ok()
            .flatten()
            .unwrap_or_default();
        let mut copies = Vec::new();
        for path in names.into_iter().map(|name| path.join(name)) {
            *examined += 1;
            if *examined > MAX_EXAMINED_ENTRIES {
                break;
            }
            let Ok(Some(found)) = self.state.root().metadata(&path) else {
                continue;
            };
            match found.kind {
                FileKind::Directory if depth > 0 => {
                    copies.extend(self.copies_below(&path, depth - 1, examined));
                }
                FileKind::File
                    if !in_use && found.size <= MAX_KEY_FILE_BYTES && !in_place.contains(&path) =>
                {
                    let chain = self.chain(&path);
                    let held = match chain {
                        Observed::Present(_) => chain,
                        _ => self.kubeconfig(&path).chain,
                    };
                    let leaf = held.present().map(|chain| chain.leaf().clone());
                    copies.extend(leaf.map(|leaf| (path, leaf)));
                }
                _ => {}
            }
        }
        copies
    }

    /// Returns the public halves of all keys of a file that can be read.
    fn public_halves(&self, path: &Path, pem: &[u8]) -> Vec<PublicKey> {
        let first = public_half(&self.state.file(path)).present().cloned();
        if first.is_some() && key_markers(pem) <= 2 {
            return first.into_iter().collect();
        }
        match PrivateKey::all_from_pem(pem) {
            Ok(keys) => keys.iter().map(|key| key.public_key().clone()).collect(),
            Err(_) => first.into_iter().collect(),
        }
    }

    fn trees(&self, authorities: &BTreeMap<Authority, FoundAuthority>) -> Trees {
        let places: Vec<&Path> = authorities
            .values()
            .map(|authority| authority.key_path.as_path())
            .collect();
        let mut trees = Trees::default();
        let mut roots = vec![PathBuf::from(KUBERNETES_DIR), PathBuf::from(STATE_DIR)];
        if !self.dir().starts_with(KUBERNETES_DIR) {
            roots.push(self.dir().to_owned());
        }
        for path in roots {
            self.search_below(&path, MAX_SEARCH_DEPTH, &places, &mut trees);
        }
        trees
    }

    fn search_below(&self, path: &Path, depth: usize, places: &[&Path], trees: &mut Trees) {
        let denied = |error: &StoreError| error.class() == ErrorClass::Denied;
        let dir = match self.state.root().dir(path) {
            Ok(Some(dir)) => dir,
            Ok(None) => return,
            Err(error) => {
                if denied(&error) {
                    trees.denied.push(path.to_owned());
                }
                return;
            }
        };
        let unfinished = dir.temporary_files().unwrap_or_default();
        trees
            .unfinished
            .extend(unfinished.into_iter().map(|name| path.join(name)));
        for name in dir.list().unwrap_or_default() {
            trees.examined += 1;
            if trees.examined > MAX_EXAMINED_ENTRIES {
                return;
            }
            let path = path.join(&name);
            let Ok(Some(found)) = dir.metadata(&name) else {
                continue;
            };
            match found.kind {
                FileKind::Directory if depth > 0 => {
                    self.search_below(&path, depth - 1, places, trees);
                }
                // The requests below the state directory are nodepki's own, which `pending-request` reports.
                FileKind::File if is_request(&path) && path.starts_with(STATE_DIR) => {}
                FileKind::File if is_request(&path) => trees.requests.push(path),
                FileKind::File
                    if found.size <= MAX_KEY_FILE_BYTES && !places.contains(&path.as_path()) =>
                {
                    match dir.read(&name, MAX_KEY_FILE_BYTES) {
                        Ok(Some(content)) => {
                            let keys = is_key(&content.bytes)
                                .then(|| self.public_halves(&path, &content.bytes));
                            let keys = keys.into_iter().flatten();
                            trees.keys.extend(keys.map(|key| (path.clone(), key)));
                        }
                        Err(error) if denied(&error) => trees.denied.push(path),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_request(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "csr")
}

fn no_kubeconfig(chain: Observed<Chain>, kubeconfig: Observed<KubeconfigPicture>) -> FoundLeaf {
    FoundLeaf {
        chain,
        key: Observed::Absent,
        kubeconfig: Some(kubeconfig),
    }
}

fn public_half(file: &NodeFile) -> Observed<PublicKey> {
    file.key().map(|key| key.public_key().clone())
}

fn is_key(bytes: &[u8]) -> bool {
    key_markers(bytes) > 0
}

/// Returns the number of lines that begin or end a private key.
fn key_markers(bytes: &[u8]) -> usize {
    const KEY_MARKER: &[u8] = b"PRIVATE KEY-----";
    let windows = bytes.windows(KEY_MARKER.len());
    windows.filter(|window| *window == KEY_MARKER).count()
}
