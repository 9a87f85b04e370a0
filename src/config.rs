//! The agent's own configuration: `NodePKIConfiguration` fragments as validated [`Settings`].
//!
//! Owns the schema of `nodepki.io/v1alpha1`: what keys there are, their defaults, and the checks between them. It
//! reads no files itself; [`collect`] says in which order a caller's reader must supply them.
//!
//! Fragments are merged in order: a later scalar wins, maps merge key by key, a list replaces the earlier list, and
//! `null` takes a value back. Unknown keys are errors, and every fault of all fragments is reported at once.
//!
//! To add a key: a row in `keys::KEYS`, a field in [`Settings`], its reading in `read`, its line in
//! [`Settings::redacted`]. A test fails when one of them is missing. The keys of a signer are its own file's.

mod keys;
mod kubelet;
mod metrics;
pub mod reload;
mod rotation;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::kube::kubeadm::{NodeName, San};
use crate::kube::names::{self, Authority, CertName};
use crate::signer;
use crate::spec::KubeletClientSubject;
use crate::spec::policy::Rules;
use crate::spec::schedule::Rotation;
use crate::yaml::schema::{self, SecretFile, absolute, choice, duration, section};
use crate::yaml::{self, Faults, Field, Map, Node, Severity, Spot, Walk, format_duration};

pub use kubelet::{KubeletIdentity, KubeletSettings};
pub use metrics::MetricsSettings;
use reload::Reload;

/// The configuration file.
pub const MAIN_FILE: &str = "/etc/nodepki/config.yaml";
/// Directories of further fragments, later ones win; within one the file names sort.
pub const FRAGMENT_DIRECTORIES: [&str; 2] = ["/etc/nodepki/config.d", "/run/nodepki"];
/// Number of fragments in one directory.
const MAX_FRAGMENTS: usize = 100;
/// Size of all fragments together, in bytes.
const MAX_SETTINGS_BYTES: usize = 4 << 20;
/// Number of files in `kubeadm.files`.
const MAX_KUBEADM_FILES: usize = 64;
/// `apiVersion` of every fragment.
pub const API_VERSION: &str = "nodepki.io/v1alpha1";
/// `kind` of every fragment.
pub const KIND: &str = "NodePKIConfiguration";

/// Where cloud-init and Cluster API put the kubeadm configuration.
const KUBEADM_FILES: [&str; 2] = [
    "/run/kubeadm/kubeadm.yaml",
    "/run/kubeadm/kubeadm-join-config.yaml",
];
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
const DEFAULT_CLOCK_WAIT: Duration = Duration::from_secs(120);
/// Name of the signer given on the command line.
const STAND_IN: &str = "command-line";

/// The effective configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where the kubeadm configuration is.
    pub kubeadm: KubeadmFiles,
    /// What a joining node takes from the cluster.
    pub join: JoinSettings,
    /// Node name that wins over kubeadm's.
    pub node_name: Option<NodeName>,
    /// Who signs for each authority and what is trusted; all three are there.
    pub authorities: BTreeMap<Authority, AuthoritySettings>,
    /// Signers by name.
    pub signers: BTreeMap<String, signer::Config>,
    /// Where the signers are defined.
    pub signer_origin: Origin,
    /// Where everything else is defined.
    pub origin: Origin,
    /// Key parameters; `None` leaves them to kubeadm's configuration.
    pub pki: Option<Rules>,
    /// Organization of `apiserver-kubelet-client`.
    pub kubelet_client_subject: KubeletClientSubject,
    /// Common names in place of kubeadm's, with placeholders.
    pub common_names: BTreeMap<CertName, String>,
    /// Names beyond kubeadm's rules.
    pub extra_sans: ExtraSans,
    /// Certificates that are not requested.
    pub omit: BTreeSet<CertName>,
    /// What the kubelet gets.
    pub kubelet: KubeletSettings,
    /// How long a run waits for pending signatures before it ends with "pending".
    pub wait: Duration,
    /// How long a run waits for a believable clock.
    pub clock_max_wait: Duration,
    /// When certificates are renewed.
    pub rotation: Rotation,
    /// How what is new takes effect.
    pub reload: Reload,
    /// Where metrics go.
    pub metrics: MetricsSettings,
    /// The `pki` block as written, for [`Settings::redacted`].
    pki_source: Option<Value>,
}

/// A path given on the command line: the only kind of path that is also looked up on this machine when `--root` names
/// another system.
///
/// Deliberately not convertible to a plain path by `Deref` or `AsRef`, so that no function for paths on the node
/// accepts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument(PathBuf);

impl Argument {
    /// The path as given, possibly relative to the working directory.
    pub fn as_given(&self) -> &Path {
        &self.0
    }

    /// The path as given, for messages.
    pub fn display(&self) -> std::path::Display<'_> {
        self.0.display()
    }
}

impl From<PathBuf> for Argument {
    fn from(path: PathBuf) -> Self {
        Argument(path)
    }
}

impl From<OsString> for Argument {
    fn from(path: OsString) -> Self {
        Argument(path.into())
    }
}

impl From<&str> for Argument {
    fn from(path: &str) -> Self {
        Argument(path.into())
    }
}

/// The place where a definition was found. It decides where the paths in the definition are resolved and whether its
/// programs may run when `--root` names another system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A file below the root: its paths are resolved below the root, and its programs do not run.
    #[default]
    Node,
    /// A file of this machine, named with `--config`: its paths are resolved on this machine first.
    Machine,
    /// The command line: its paths are resolved below the root first.
    CommandLine,
}

/// Where the kubeadm configuration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeadmFiles {
    /// Files on the node that are merged as far as they exist.
    pub files: Vec<PathBuf>,
    /// Files that the command line names in place of `files`; all of them must exist.
    pub arguments: Vec<Argument>,
    /// A joiner's ClusterConfiguration; must exist when set.
    pub cluster_configuration: Option<PathBuf>,
    /// When a joining node asks the cluster for its ClusterConfiguration.
    pub from_cluster: FromCluster,
}

impl KubeadmFiles {
    /// The files in force, for people.
    pub fn shown(&self) -> Vec<String> {
        let arguments = self.arguments.iter().map(Argument::as_given);
        let files = self.files.iter().map(PathBuf::as_path);
        let paths = arguments.chain(files);
        paths.map(|path| path.display().to_string()).collect()
    }
}

/// When a joining node asks the cluster for its ClusterConfiguration (ConfigMap `kube-system/kubeadm-config`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FromCluster {
    /// When no file has one.
    #[default]
    IfMissing,
    /// Always; what a file says goes before what the cluster says.
    Merge,
    /// Never.
    Never,
}

impl FromCluster {
    const ALL: [FromCluster; 3] = [
        FromCluster::IfMissing,
        FromCluster::Merge,
        FromCluster::Never,
    ];

    /// As written in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            FromCluster::IfMissing => "ifMissing",
            FromCluster::Merge => "merge",
            FromCluster::Never => "never",
        }
    }
}

/// What a joining control-plane node takes out of the Secret `kube-system/kubeadm-certs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinSettings {
    /// The key that decrypts it, in place of `controlPlane.certificateKey` of the JoinConfiguration.
    pub certificate_key: Option<SecretFile>,
    /// CA private keys in it are written to the node too; otherwise they are used in memory at most.
    pub write_ca_keys: bool,
}

/// One of the three authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthoritySettings {
    /// Name of its signer. `None` when nothing says which one: an error once something must be signed.
    pub signer: Option<String>,
    /// File with the trusted certificates, in place of kubeadm's own path.
    pub trust_file: Option<PathBuf>,
    /// SHA-256 of the DER SubjectPublicKeyInfo of certificates that may be trusted; empty allows any.
    pub trust_sha256: Vec<[u8; 32]>,
    /// Its certificates may be good for TLS servers and clients both, whatever was wanted.
    pub allow_extra_usages: bool,
    /// Longest life of a certificate that is taken from it; `None` for a multiple of what is asked for.
    pub max_lifetime: Option<Duration>,
}

/// Names beyond kubeadm's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraSans {
    /// For `apiserver`.
    pub apiserver: Vec<San>,
    /// For `etcd-server`.
    pub etcd_server: Vec<San>,
    /// For `etcd-peer`.
    pub etcd_peer: Vec<San>,
    /// For `kubelet-serving`.
    pub kubelet_serving: Vec<San>,
}

/// What the command line says in place of a configuration file.
#[derive(Clone, Debug, Default)]
pub struct StandIns {
    /// `--kubeadm-config`, repeatable.
    pub kubeadm_configs: Vec<Argument>,
    /// `--signer`.
    pub signer: Option<signer::Config>,
    /// `--node-name`.
    pub node_name: Option<NodeName>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            kubeadm: KubeadmFiles {
                files: KUBEADM_FILES.iter().map(PathBuf::from).collect(),
                arguments: Vec::new(),
                cluster_configuration: None,
                from_cluster: FromCluster::default(),
            },
            join: JoinSettings::default(),
            node_name: None,
            authorities: Authority::ALL
                .into_iter()
                .map(|authority| (authority, AuthoritySettings::default()))
                .collect(),
            signers: BTreeMap::new(),
            signer_origin: Origin::default(),
            origin: Origin::default(),
            pki: None,
            kubelet_client_subject: KubeletClientSubject::default(),
            common_names: BTreeMap::new(),
            extra_sans: ExtraSans::default(),
            omit: BTreeSet::new(),
            kubelet: KubeletSettings::default(),
            wait: DEFAULT_WAIT,
            clock_max_wait: DEFAULT_CLOCK_WAIT,
            rotation: Rotation::default(),
            reload: Reload::default(),
            metrics: MetricsSettings::default(),
            pki_source: None,
        }
    }
}

impl Settings {
    /// Merges and validates `(name, text)` fragments, in order; none at all gives the defaults.
    ///
    /// # Errors
    /// Every fault of every fragment.
    pub fn from_fragments<N: AsRef<str>, T: AsRef<str>>(
        fragments: &[(N, T)],
    ) -> Result<(Settings, Faults), Faults> {
        let mut faults = Faults::default();
        let mut merged: Option<Node> = None;
        for (file, text) in fragments {
            let documents = match yaml::parse(file.as_ref(), text.as_ref()) {
                Ok(documents) => documents,
                Err(errors) => {
                    faults.extend(errors);
                    continue;
                }
            };
            for document in documents {
                document.duplicates(Severity::Error, &mut faults);
                if !is_fragment(&document, &mut faults) {
                    continue;
                }
                match &mut merged {
                    Some(base) => base.overlay(document),
                    None => merged = Some(document),
                }
            }
        }
        let mut settings = Settings::default();
        if let Some(root) = &merged {
            let walk = Walk::new(true);
            if let Some(map) = Field::root(&walk, root).map() {
                settings.read(&map, &mut faults);
            }
            faults.extend(walk.into_faults());
        }
        let files: Vec<&str> = fragments.iter().map(|(file, _)| file.as_ref()).collect();
        faults.outcome_of(&files, settings)
    }

    /// The settings with the command line's values in place: its signer signs for all three authorities and replaces
    /// the configured ones, its files replace `kubeadm.files`. What is trusted stays as configured.
    #[must_use]
    pub fn with(mut self, stand_ins: StandIns) -> Self {
        if !stand_ins.kubeadm_configs.is_empty() {
            self.kubeadm.files = Vec::new();
            self.kubeadm.arguments = stand_ins.kubeadm_configs;
        }
        if let Some(name) = stand_ins.node_name {
            self.node_name = Some(name);
        }
        if let Some(signer) = stand_ins.signer {
            self.signers = BTreeMap::from([(STAND_IN.to_owned(), signer)]);
            self.signer_origin = Origin::CommandLine;
            for authority in self.authorities.values_mut() {
                authority.signer = Some(STAND_IN.to_owned());
            }
        }
        self
    }

    /// Records where all of these settings were found.
    #[must_use]
    pub fn found_at(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self.signer_origin = origin;
        self
    }

    /// The default settings with one signer for everything, as `--signer` without a configuration file gives them.
    pub fn stand_in(signer: signer::Config) -> Self {
        Settings::default().with(StandIns {
            signer: Some(signer),
            ..StandIns::default()
        })
    }

    /// Name and settings of the signer of an authority, when one is configured.
    pub fn signer_of(&self, authority: Authority) -> Option<(&str, &signer::Config)> {
        let name = self.authorities.get(&authority)?.signer.as_ref()?;
        let (name, signer) = self.signers.get_key_value(name)?;
        Some((name, signer))
    }

    /// The JSON Schema of a fragment (draft 2020-12).
    pub fn schema() -> Value {
        keys::document()
    }

    /// The effective settings in the shape of a fragment, secrets left out, defaults filled in.
    pub fn redacted(&self) -> Value {
        let mut root = json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "kubeadm": {
                "files": self.kubeadm.shown(),
                "fromCluster": self.kubeadm.from_cluster.as_str(),
            },
            "join": {"writeCAKeys": self.join.write_ca_keys},
        });
        let authorities: serde_json::Map<String, Value> = Authority::ALL
            .into_iter()
            .filter_map(|authority| {
                let settings = self.authorities.get(&authority)?;
                let mut entry = serde_json::Map::new();
                if let Some(signer) = &settings.signer {
                    entry.insert("signer".to_owned(), json!(signer));
                }
                let mut trust = serde_json::Map::new();
                if let Some(file) = &settings.trust_file {
                    trust.insert("file".to_owned(), json!(file));
                }
                if !settings.trust_sha256.is_empty() {
                    let pins: Vec<String> = settings.trust_sha256.iter().map(hex).collect();
                    trust.insert("sha256".to_owned(), json!(pins));
                }
                entry.insert(
                    "allowExtraUsages".to_owned(),
                    json!(settings.allow_extra_usages),
                );
                if let Some(longest) = settings.max_lifetime {
                    entry.insert("maxLifetime".to_owned(), json!(format_duration(longest)));
                }
                if !trust.is_empty() {
                    entry.insert("trust".to_owned(), Value::Object(trust));
                }
                Some((authority.to_string(), Value::Object(entry)))
            })
            .collect();
        let signers: serde_json::Map<String, Value> = self
            .signers
            .iter()
            .map(|(name, signer)| (name.clone(), signer.redacted()))
            .collect();
        let names = |sans: &[San]| -> Vec<String> { sans.iter().map(San::to_string).collect() };
        if let Some(map) = root.as_object_mut() {
            if let (Some(file), Some(kubeadm)) = (
                &self.kubeadm.cluster_configuration,
                map.get_mut("kubeadm").and_then(Value::as_object_mut),
            ) {
                kubeadm.insert("clusterConfiguration".to_owned(), json!(file));
            }
            if let (Some(file), Some(join)) = (
                &self.join.certificate_key,
                map.get_mut("join").and_then(Value::as_object_mut),
            ) {
                join.insert("certificateKey".to_owned(), json!(file.to_string()));
            }
            if let Some(name) = &self.node_name {
                map.insert("nodeName".to_owned(), json!(name));
            }
            map.insert("authorities".to_owned(), Value::Object(authorities));
            map.insert("signers".to_owned(), Value::Object(signers));
            if let Some(pki) = &self.pki_source {
                map.insert("pki".to_owned(), pki.clone());
            }
            map.insert(
                "subjects".to_owned(),
                json!({"apiserver-kubelet-client": self.kubelet_client_subject.as_str()}),
            );
            map.insert("commonNames".to_owned(), json!(self.common_names));
            map.insert(
                "extraSANs".to_owned(),
                json!({
                    "apiserver": names(&self.extra_sans.apiserver),
                    "etcd-server": names(&self.extra_sans.etcd_server),
                    "etcd-peer": names(&self.extra_sans.etcd_peer),
                    "kubelet-serving": names(&self.extra_sans.kubelet_serving),
                }),
            );
            map.insert("certificates".to_owned(), json!({"omit": self.omit}));
            map.insert("kubelet".to_owned(), self.kubelet.redacted());
            map.insert("wait".to_owned(), json!(format_duration(self.wait)));
            map.insert(
                "clock".to_owned(),
                json!({"maxWait": format_duration(self.clock_max_wait)}),
            );
            map.insert("rotation".to_owned(), rotation::redacted(&self.rotation));
            map.insert("reload".to_owned(), reload::redacted(&self.reload));
            map.insert("metrics".to_owned(), self.metrics.redacted());
        }
        root
    }

    fn read(&mut self, map: &Map<'_>, faults: &mut Faults) {
        // Both were checked fragment by fragment.
        map.get("apiVersion");
        map.get("kind");
        if let Some(kubeadm) = section(map, "kubeadm") {
            if let Some(field) = kubeadm.get("files")
                && let Some(items) = field.list()
            {
                if items.is_empty() {
                    field.error("names no file", "list at least one, or remove the key");
                }
                if items.len() > MAX_KUBEADM_FILES {
                    field.error(
                        format!(
                            "names {} files, at most {MAX_KUBEADM_FILES} are read",
                            items.len()
                        ),
                        "name only the files of this node",
                    );
                }
                let items = items.iter().take(MAX_KUBEADM_FILES);
                self.kubeadm.files = items.filter_map(absolute).collect();
            }
            self.kubeadm.cluster_configuration = kubeadm
                .get("clusterConfiguration")
                .as_ref()
                .and_then(absolute);
            if let Some(from_cluster) = choice(
                kubeadm.get("fromCluster"),
                FromCluster::ALL,
                FromCluster::as_str,
            ) {
                self.kubeadm.from_cluster = from_cluster;
            }
            kubeadm.finish();
        }
        if let Some(join) = section(map, "join") {
            self.join = JoinSettings {
                certificate_key: join
                    .get("certificateKey")
                    .as_ref()
                    .and_then(SecretFile::read),
                write_ca_keys: join
                    .get("writeCAKeys")
                    .and_then(|field| field.boolean())
                    .unwrap_or_default(),
            };
            join.finish();
        }
        if let Some(field) = map.get("nodeName")
            && let Some(text) = field.string()
        {
            match text.parse() {
                Ok(name) => self.node_name = Some(name),
                Err(refusal) => field.error(
                    refusal.message,
                    "use a DNS name, or remove nodeName to take kubeadm's",
                ),
            }
        }
        if let Some(field) = map.get("pki") {
            self.pki_source = Some(yaml::to_json(field.node()));
            self.pki = Some(Rules::read(&field, faults));
        }
        if let Some(subjects) = section(map, "subjects") {
            if let Some(subject) = choice(
                subjects.get("apiserver-kubelet-client"),
                KubeletClientSubject::ALL,
                KubeletClientSubject::as_str,
            ) {
                self.kubelet_client_subject = subject;
            }
            subjects.finish();
        }
        if let Some(field) = map.get("commonNames") {
            self.common_names = common_names(&field);
        }
        if let Some(extra) = section(map, "extraSANs") {
            self.extra_sans = ExtraSans {
                apiserver: sans(extra.get("apiserver")),
                etcd_server: sans(extra.get("etcd-server")),
                etcd_peer: sans(extra.get("etcd-peer")),
                kubelet_serving: sans(extra.get("kubelet-serving")),
            };
            extra.finish();
        }
        if let Some(certificates) = section(map, "certificates") {
            self.omit = omitted(certificates.get("omit"));
            certificates.finish();
        }
        if let Some(kubelet) = section(map, "kubelet") {
            self.kubelet.read(&kubelet);
            kubelet.finish();
        }
        if let Some((_, wait)) = duration(map.get("wait")) {
            self.wait = wait;
        }
        if let Some(clock) = section(map, "clock") {
            if let Some((_, wait)) = duration(clock.get("maxWait")) {
                self.clock_max_wait = wait;
            }
            clock.finish();
        }
        if let Some(block) = section(map, "rotation") {
            rotation::read(&block, &mut self.rotation);
            block.finish();
        }
        if let Some(block) = section(map, "reload") {
            reload::read(&block, &mut self.reload);
            block.finish();
        }
        if let Some(block) = section(map, "metrics") {
            self.metrics = MetricsSettings::read(&block);
            block.finish();
        }
        let signers = self.read_signers(map);
        self.read_authorities(map, &signers, faults);
        map.finish();
    }

    /// Where each signer stands, those with faults included, so that naming one is no second fault.
    fn read_signers(&mut self, map: &Map<'_>) -> BTreeMap<String, Spot> {
        let mut spots = BTreeMap::new();
        let Some(signers) = section(map, "signers") else {
            return spots;
        };
        for (name, field) in signers.named() {
            spots.insert(name.clone(), field.spot());
            if !is_signer_name(&name) {
                field.error(
                    "has a name that cannot be a signer's: it becomes part of a path in the state directory",
                    "use up to 63 letters, digits, -, _ and .",
                );
            }
            let Some(kinds) = field.map() else { continue };
            let mut found = Vec::new();
            for kind in signer::Kind::ALL {
                if let Some(field) = kinds.get(kind.as_str()) {
                    found.push((kind, kind.read(&field)));
                }
            }
            kinds.finish();
            match found.as_slice() {
                [(_, signer)] => {
                    if let Some(signer) = signer {
                        self.signers.insert(name, signer.clone());
                    }
                }
                [] => field.error(
                    "has no kind",
                    format!(
                        "add one of {}, as in local: {{directory: DIR}}",
                        signer::Kind::ALL.map(signer::Kind::as_str).join(", ")
                    ),
                ),
                several => {
                    let names: Vec<&str> = several.iter().map(|(kind, _)| kind.as_str()).collect();
                    field.error(
                        format!("has several kinds: {}", names.join(", ")),
                        "keep one, or make a signer of each; a later fragment adds to the map of an earlier one",
                    );
                }
            }
        }
        spots
    }

    fn read_authorities(
        &mut self,
        map: &Map<'_>,
        signers: &BTreeMap<String, Spot>,
        faults: &mut Faults,
    ) {
        let only = match signers.len() {
            1 => signers.keys().next(),
            _ => None,
        };
        let mut used: Vec<&String> = only.into_iter().collect();
        let block = section(map, "authorities");
        for (authority, settings) in &mut self.authorities {
            settings.signer = only.cloned();
            let Some(entry) = block
                .as_ref()
                .and_then(|block| section(block, authority.as_str()))
            else {
                continue;
            };
            if let Some(field) = entry.get("signer")
                && let Some(name) = field.string()
            {
                match signers.get_key_value(&name) {
                    Some((name, _)) => {
                        used.push(name);
                        settings.signer = Some(name.clone());
                    }
                    None => {
                        let known: Vec<&str> = signers.keys().map(String::as_str).collect();
                        field.error(
                            format!("signer {name:?} is not defined"),
                            match (
                                yaml::did_you_mean(&name, known.iter().copied()),
                                known.is_empty(),
                            ) {
                                (Some(near), _) => format!("did you mean {near}?"),
                                (None, true) => format!(
                                    "define it: signers: {{{name}: {{local: {{directory: DIR}}}}}}"
                                ),
                                (None, false) => format!("defined are {}", known.join(", ")),
                            },
                        );
                    }
                }
            }
            settings.allow_extra_usages = entry
                .get("allowExtraUsages")
                .and_then(|field| field.boolean())
                .unwrap_or_default();
            settings.max_lifetime = duration(entry.get("maxLifetime")).map(|(_, longest)| longest);
            if let Some(trust) = section(&entry, "trust") {
                settings.trust_file = trust.get("file").as_ref().and_then(absolute);
                settings.trust_sha256 = schema::pins(trust.get("sha256"));
                trust.finish();
            }
            entry.finish();
        }
        if let Some(block) = &block {
            block.finish();
        }
        for (name, spot) in signers {
            if !used.contains(&name) {
                faults.push(spot.warning(
                    "is defined, but no authority uses it",
                    format!("add authorities: {{ca: {{signer: {name}}}}}, or remove it"),
                ));
            }
        }
    }
}

fn is_fragment(document: &Node, faults: &mut Faults) -> bool {
    let spot = |key: &str| Spot {
        place: document
            .get(key)
            .map_or(&document.place, |node| &node.place)
            .clone(),
        field: key.to_owned(),
    };
    let mut fine = true;
    for (key, want) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = document.get(key).and_then(Node::text);
        if found != Some(want) {
            let message = match found {
                Some(found) => format!("is {found:?}, this program reads {want}"),
                None => "is missing".to_owned(),
            };
            faults.push(spot(key).error(message, format!("write {key}: {want}")));
            fine = false;
        }
    }
    fine
}

fn is_signer_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=63).contains(&name.len()) && !name.starts_with('.') && name.chars().all(fits)
}

fn common_names(field: &Field<'_>) -> BTreeMap<CertName, String> {
    let mut read = BTreeMap::new();
    let Some(map) = field.map() else { return read };
    for name in CertName::ALL {
        if !name.has_free_common_name() {
            refuse_common_name(&map, name);
            continue;
        }
        let Some(field) = map.get(name.as_str()) else {
            continue;
        };
        let Some(text) = field.string() else { continue };
        let printable = text.chars().all(|c| c.is_ascii_graphic() || c == ' ');
        if names::unknown_placeholder(&text) {
            field.error(
                format!("{text:?} has an unknown placeholder"),
                format!("use {}", names::PLACEHOLDERS.join(", ")),
            );
        } else if text.is_empty() || !printable || text.trim() != text {
            field.error(
                format!("{text:?} cannot be a common name"),
                "write printable ASCII, for instance etcd-peer.{node}",
            );
        } else if text.starts_with("system:") {
            field.error(
                format!("{text:?} is a name of Kubernetes' own"),
                "use one that does not begin with system:",
            );
        } else {
            read.insert(name, text);
        }
    }
    map.finish();
    read
}

/// Says why, where a plain unknown key would not.
fn refuse_common_name(map: &Map<'_>, name: CertName) {
    let Some(entry) = map.field().node().get(name.as_str()) else {
        return;
    };
    map.ignore(&[name.as_str()]);
    let free: Vec<_> = CertName::ALL
        .into_iter()
        .filter(|name| name.has_free_common_name())
        .map(CertName::as_str)
        .collect();
    let spot = Spot {
        place: entry.place.clone(),
        field: format!("commonNames.{name}"),
    };
    map.field().walk().push(spot.error(
        format!("the common name of {name} is who it is to Kubernetes"),
        format!("remove it; free are those of {}", free.join(", ")),
    ));
}

fn sans(field: Option<Field<'_>>) -> Vec<San> {
    let mut sans = Vec::new();
    for item in field.and_then(|field| field.list()).unwrap_or_default() {
        let Some(text) = item.string() else { continue };
        match San::parse(&text) {
            Ok((san, notes)) => {
                for note in notes {
                    item.warning(note.message, note.fix);
                }
                sans.push(san);
            }
            Err(refusal) => item.error(refusal.message, refusal.fix),
        }
    }
    sans
}

fn omitted(field: Option<Field<'_>>) -> BTreeSet<CertName> {
    let mut omitted = BTreeSet::new();
    let names = || CertName::OMITTABLE.into_iter().map(CertName::as_str);
    for item in field.and_then(|field| field.list()).unwrap_or_default() {
        let Some(text) = item.string() else { continue };
        let Ok(name) = text.parse::<CertName>() else {
            let fix = match yaml::did_you_mean(&text, names()) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("use {}", names().collect::<Vec<_>>().join(" or ")),
            };
            item.error(format!("{text:?} is not the name of a certificate"), fix);
            continue;
        };
        if CertName::OMITTABLE.contains(&name) {
            omitted.insert(name);
        } else {
            item.error(
                format!("{name} cannot be omitted: the node does not work without it"),
                format!(
                    "remove it; {} can be omitted",
                    names().collect::<Vec<_>>().join(" and ")
                ),
            );
        }
    }
    omitted
}

fn hex(pin: &[u8; 32]) -> String {
    pin.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads all fragments in their order with the caller's functions, each given an absolute path: `list` returns
/// the file names in a directory (none when it does not exist), `read` the text of a file or `None` when it does not
/// exist, `shown` the path for messages. With `only`, that one file is read and must exist.
///
/// # Errors
/// Whatever `list` and `read` return, and not found for `only`.
pub fn collect(
    only: Option<&Path>,
    mut list: impl FnMut(&Path) -> io::Result<Vec<String>>,
    mut read: impl FnMut(&Path) -> io::Result<Option<String>>,
    shown: impl Fn(&Path) -> PathBuf,
) -> io::Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    match only {
        Some(path) => paths.push(path.to_owned()),
        None => {
            paths.push(PathBuf::from(MAIN_FILE));
            for directory in FRAGMENT_DIRECTORIES {
                let directory = Path::new(directory);
                let mut names = list(directory)?;
                names.retain(|name| name.ends_with(".yaml") && !name.starts_with('.'));
                names.sort();
                if names.len() > MAX_FRAGMENTS {
                    return Err(io::Error::other(format!(
                        "{}: contains {} settings files, at most {MAX_FRAGMENTS} are read (merge them)",
                        shown(directory).display(),
                        names.len()
                    )));
                }
                paths.extend(names.iter().map(|name| directory.join(name)));
            }
        }
    }
    let mut fragments = Vec::new();
    let mut bytes = 0;
    for path in paths {
        match read(&path)? {
            Some(text) => {
                bytes += text.len();
                if bytes > MAX_SETTINGS_BYTES {
                    return Err(io::Error::other(format!(
                        "{}: all settings files up to this one have more than {MAX_SETTINGS_BYTES} bytes together (remove what is not a setting)",
                        shown(&path).display()
                    )));
                }
                fragments.push((shown(&path).display().to_string(), text));
            }
            None if only.is_some() => {
                let message = format!(
                    "configuration file {} does not exist",
                    shown(&path).display()
                );
                return Err(io::Error::new(io::ErrorKind::NotFound, message));
            }
            None => {}
        }
    }
    Ok(fragments)
}

#[cfg(test)]
mod tests;
