//! nodepki's configuration: `NodePKIConfiguration` fragments as validated [`Settings`].
//!
//! Owns the schema of `nodepki.io/v1alpha1`: the keys, their defaults, and the checks between them. Unknown keys are errors,
//! and all faults of all fragments are reported together. It reads no files; [`collect`] defines the order in which a
//! caller's reader must supply them.
//!
//! To add a setting, add one row to [`Settings`] or to the block that it belongs to; see [`crate::yaml::settings`]. Then
//! run the tests with `NODEPKI_BLESS=1`, which writes `docs/configuration.md`, and explain the setting in
//! `packaging/config.yaml`; a test fails if it is missing there. The settings of a signer are declared in its own file.

mod argument;
mod certificates;
mod cluster;
mod fragments;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod keys;
mod kubelet;
mod kubelets;
mod metrics;
mod names;
pub mod reload;
mod rotation;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kube::kubeadm::{KubeadmRole, NodeName, San};
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{KUBEADM_FILE, KUBEADM_JOIN_FILE};
use crate::kubelets::{KubeletPolicy, MIN_POD_LIFETIME};
use crate::signer;
use crate::spec::policy::KeyRules;
use crate::spec::schedule::Rotation;
use crate::spec::{KubeconfigCredentials, KubeletClientSubject};
use crate::yaml::schema::{SecretFile, section};
use crate::yaml::settings::{
    Setting, SettingsBlock, choice_setting, insert, settings, unless_empty,
};
use crate::yaml::{self, Faults, Field, FieldPosition, Map, Walk};

pub use argument::{Argument, Origin};
pub use certificates::{PodRestart, Registrations};
pub use cluster::{ClusterPolicySettings, NodeEventSettings, NodeReportSettings, RotationSettings};
pub use fragments::{API_VERSION, FRAGMENT_DIRECTORIES, KIND, MAIN_FILE, collect, merge};
pub use kubelet::{KubeletIdentity, KubeletSettings};
pub use metrics::MetricsSettings;
use reload::Reload;

/// Maximum number of files in `kubeadm.files`.
const MAX_KUBEADM_FILES: usize = 64;

/// Paths at which cloud-init and Cluster API write the kubeadm configuration.
const KUBEADM_FILES: [&str; 2] = [KUBEADM_FILE, KUBEADM_JOIN_FILE];
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
const DEFAULT_CLOCK_WAIT: Duration = Duration::from_secs(120);
const DEFAULT_CRL_REFRESH: Duration = Duration::from_secs(5 * 60);
const MIN_CRL_REFRESH: Duration = Duration::from_secs(60);
/// A revocation takes effect at the next fetch, so a longer interval would leave the lists without purpose.
const MAX_CRL_REFRESH: Duration = Duration::from_secs(24 * 60 * 60);
/// Name of the signer given on the command line.
pub const COMMAND_LINE_SIGNER: &str = "command-line";

settings! {
    /// The effective configuration.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Settings: Default {
        /// Sources of the kubeadm configuration.
        "kubeadm" => pub kubeadm: KubeadmFiles;
        /// Data that a joining node takes from the cluster.
        "join" => pub join: JoinSettings;
        /// Node name; by default kubeadm's nodeRegistration.name, or else the host name.
        "nodeName" => pub node_name: Option<NodeName>;
        /// Role of the node: `auto`, by the kubeadm configuration and the files of the node, or `etcd`, a member of an
        /// external etcd.
        "role" => pub role: RoleSetting;
        /// Organization of apiserver-kubelet-client.
        "subjects.apiserver-kubelet-client" => pub kubelet_client_subject: KubeletClientSubject;
        /// Common names in place of kubeadm's; {node}, {cluster} and {certificate} are replaced.
        "commonNames" => pub common_names: BTreeMap<CertName, String>;
        /// Names and addresses in addition to kubeadm's.
        "extraSANs" => pub extra_sans: ExtraSans;
        /// Certificate that is not requested: super-admin.conf, or admin.conf on a joining node.
        "certificates.omit" => pub omit: BTreeSet<CertName>;
        /// Issue the client certificate of an external etcd, apiserver-etcd-client, to `etcd.external.certFile` and
        /// `keyFile`.
        "certificates.externalEtcdClient" => pub external_etcd_client: bool;
        /// Certificates in addition to kubeadm's, by name.
        "certificates.registered" => pub registered: Registrations;
        /// Attributes of a subject beside the required ones: `standard` accepts those that no component of Kubernetes
        /// reads (C, ST, L, OU, street, postalCode, DC, serialNumber), `strict` refuses all.
        "verification" => pub verification: Verification;
        /// Where controller-manager.conf and scheduler.conf have their certificate and key: `embedded`, in the kubeconfig,
        /// or `file`, in files that the component reads again, without a restart.
        "kubeconfig.credentials" => pub kubeconfig_credentials: KubeconfigCredentials;
        /// Certificates of the kubelet.
        "kubelet" => pub kubelet: KubeletSettings;
        /// Signing of the kubelets' own requests, for control-plane nodes.
        "kubelets" => pub kubelets: KubeletPolicy;
        /// The key policy in the cluster.
        "clusterPolicy" => pub cluster_policy: ClusterPolicySettings;
        /// Events about the Node.
        "nodeEvents" => pub node_events: NodeEventSettings;
        /// Report on the certificates of this node, in the cluster.
        "nodeReport" => pub node_report: NodeReportSettings;
        /// CA changes of the whole cluster.
        "authorityRotation" => pub authority_rotation: RotationSettings;
        /// How long a run waits for pending signatures before it ends with exit status 75.
        "wait" => pub wait: Duration = DEFAULT_WAIT;
        /// How long a run waits for a plausible clock.
        "clock.maxWait" => pub clock_max_wait: Duration = DEFAULT_CLOCK_WAIT;
        /// How often the daemon fetches the revocation lists of the signers, from 1m to 24h.
        "crlRefreshInterval" => pub crl_refresh_interval: Duration = DEFAULT_CRL_REFRESH, read crl_refresh_interval;
        /// When certificates are renewed.
        "rotation" => pub rotation: Rotation;
        /// How new certificates take effect.
        "reload" => pub reload: Reload;
        /// Destinations of metrics.
        "metrics" => pub metrics: MetricsSettings;
        also {
            /// Signer and trust of each authority; all three are present.
            pub authorities: BTreeMap<Authority, AuthoritySettings> =
                Authority::ALL.into_iter().map(|one| (one, AuthoritySettings::default())).collect(),
            /// Signers by name.
            pub signers: BTreeMap<String, signer::Config> = BTreeMap::new(),
            /// Origin of the signers' definitions.
            pub signer_origin: Origin = Origin::default(),
            /// Origin of all other settings.
            pub origin: Origin = Origin::default(),
            /// Key parameters; `None` leaves them to kubeadm's configuration.
            pub pki: Option<KeyRules> = None,
            /// The `pki` block as written, for [`Settings::redacted`].
            pki_source: Option<Value> = None,
        }
    }
}

settings! {
    /// Sources of the kubeadm configuration.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KubeadmFiles: Default {
        /// kubeadm configuration files; those that exist are merged.
        "files" => pub files: Vec<PathBuf> = KUBEADM_FILES.iter().map(PathBuf::from).collect(), read kubeadm_files;
        /// File with the ClusterConfiguration of a joining node, which must exist; by default the cluster is asked.
        "clusterConfiguration" => pub cluster_configuration: Option<PathBuf>;
        /// When a joining node reads its ClusterConfiguration from the cluster: `ifMissing`, if no file has one, `merge`,
        /// always, with precedence for files, or `never`.
        "fromCluster" => pub from_cluster: FromCluster;
        also {
            /// Files named on the command line in place of `files`; all of them must exist.
            pub arguments: Vec<Argument> = Vec::new(),
        }
    }
}

fn crl_refresh_interval(field: &Field<'_>) -> Option<Duration> {
    reload::within(field, MIN_CRL_REFRESH, MAX_CRL_REFRESH)
}

fn kubeadm_files(field: &Field<'_>) -> Option<Vec<PathBuf>> {
    let count = field.list()?.len();
    if count == 0 {
        field.error("names no file", "list at least one, or remove the key");
    }
    if count > MAX_KUBEADM_FILES {
        field.error(
            format!("names {count} files, at most {MAX_KUBEADM_FILES} are read"),
            "name only the files of this node",
        );
        return None;
    }
    Setting::read(field)
}

impl KubeadmFiles {
    /// Returns the effective files, for messages.
    pub fn shown(&self) -> Vec<String> {
        let arguments = self.arguments.iter().map(Argument::as_given);
        let files = self.files.iter().map(PathBuf::as_path);
        let paths = arguments.chain(files);
        paths.map(|path| path.display().to_string()).collect()
    }
}

words! {
    /// When a joining node reads its ClusterConfiguration from the cluster (ConfigMap `kube-system/kubeadm-config`).
    #[derive(Default)]
    pub enum FromCluster {
        /// If no file contains one.
        #[default]
        IfMissing = "ifMissing",
        /// Always; files take precedence over the cluster.
        Merge = "merge",
        /// Never.
        Never = "never",
    }
}

words! {
    /// Role of the node, as far as no document of kubeadm states it.
    #[derive(Default)]
    pub enum RoleSetting {
        /// By the kubeadm configuration and the files of the node.
        #[default]
        Auto = "auto",
        /// A member of an external etcd: the InitConfiguration is that of `kubeadm init phase etcd local`.
        Etcd = "etcd",
    }
}

impl RoleSetting {
    /// Returns the role that replaces that of the documents.
    pub const fn chosen(self) -> Option<KubeadmRole> {
        match self {
            RoleSetting::Auto => None,
            RoleSetting::Etcd => Some(KubeadmRole::Etcd),
        }
    }
}

settings! {
    /// Data that a joining control-plane node takes from the Secret `kube-system/kubeadm-certs`.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct JoinSettings {
        /// File with the key that decrypts kubeadm-certs, in place of the JoinConfiguration's
        /// controlPlane.certificateKey.
        "certificateKey" => pub certificate_key: Option<SecretFile>;
        /// Write the CA private keys in kubeadm-certs to the node; otherwise they are used in memory only.
        "writeCAKeys" => pub write_ca_keys: bool;
    }
}

settings! {
    /// Signer and trust of one authority.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct AuthoritySettings {
        /// Name of the signer; by default the only one that is defined.
        "signer" => pub signer: Option<String>;
        /// Accept certificates that are valid for both TLS servers and clients.
        "allowExtraUsages" => pub allow_extra_usages: bool;
        /// Longest lifetime of a certificate that is accepted from the signer, as in 43800h; by default six times the
        /// requested one.
        "maxLifetime" => pub max_lifetime: Option<Duration>;
        /// PEM file with the trusted certificates; by default kubeadm's own path.
        "trust.file" => pub trust_file: Option<PathBuf>;
        /// SHA-256 of the public key (SPKI) of a trusted certificate, in hex; by default any in the file.
        "trust.sha256" => pub trust_sha256: Vec<[u8; 32]>, show unless_empty::<[u8; 32]>;
    }
}

settings! {
    /// Names and addresses in addition to kubeadm's.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ExtraSans {
        /// Further DNS name or IP address in apiserver.
        "apiserver" => pub apiserver: Vec<San>;
        /// Further DNS name or IP address in etcd-server.
        "etcd-server" => pub etcd_server: Vec<San>;
        /// Further DNS name or IP address in etcd-peer.
        "etcd-peer" => pub etcd_peer: Vec<San>;
        /// Further DNS name or IP address in kubelet-serving.
        "kubelet-serving" => pub kubelet_serving: Vec<San>;
    }
}

words! {
    /// How strictly subjects of certificates are compared with the required ones.
    #[derive(Default)]
    pub enum Verification {
        /// Attributes that no component of Kubernetes reads are accepted.
        #[default]
        Standard = "standard",
        /// Every further attribute is refused.
        Strict = "strict",
    }
}

choice_setting!(
    FromCluster,
    KubeconfigCredentials,
    KubeletClientSubject,
    RoleSetting,
    Verification
);

/// Command-line options that replace settings.
#[derive(Clone, Debug, Default)]
pub struct CommandLineSettings {
    /// `--kubeadm-config`, repeatable.
    pub kubeadm_configs: Vec<Argument>,
    /// `--signer`.
    pub signer: Option<signer::Config>,
    /// `--node-name`.
    pub node_name: Option<NodeName>,
}

impl Settings {
    /// Merges and validates `(name, text)` fragments, in order. Without fragments the result is the defaults.
    ///
    /// # Errors
    /// Every fault of every fragment.
    pub fn from_fragments<N: AsRef<str>, T: AsRef<str>>(
        fragments: &[(N, T)],
    ) -> Result<(Settings, Faults), Faults> {
        let (merged, mut faults) = merge(fragments);
        let mut settings = Settings::default();
        if let Some(root) = &merged {
            let walk = Walk::new(true);
            if let Some(map) = Field::root(&walk, root).map() {
                settings = Settings::read(&map, &mut faults);
            }
            faults.extend(walk.into_faults());
        }
        let files: Vec<&str> = fragments.iter().map(|(file, _)| file.as_ref()).collect();
        faults.outcome_of(&files, settings)
    }

    /// Applies command-line options: their signer signs for all three authorities and replaces the configured ones, their
    /// files replace `kubeadm.files`. Trust stays as configured.
    #[must_use]
    pub fn with(mut self, stand_ins: CommandLineSettings) -> Self {
        if !stand_ins.kubeadm_configs.is_empty() {
            self.kubeadm.files = Vec::new();
            self.kubeadm.arguments = stand_ins.kubeadm_configs;
        }
        if let Some(name) = stand_ins.node_name {
            self.node_name = Some(name);
        }
        if let Some(signer) = stand_ins.signer {
            self.signers = BTreeMap::from([(COMMAND_LINE_SIGNER.to_owned(), signer)]);
            self.signer_origin = Origin::CommandLine;
            for authority in self.authorities.values_mut() {
                authority.signer = Some(COMMAND_LINE_SIGNER.to_owned());
            }
        }
        self
    }

    /// Records the source of all settings.
    #[must_use]
    pub fn found_at(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self.signer_origin = origin;
        self
    }

    /// Returns name and settings of an authority's signer, if one is configured.
    pub fn signer_of(&self, authority: Authority) -> Option<(&str, &signer::Config)> {
        let name = self.authorities.get(&authority)?.signer.as_ref()?;
        let (name, signer) = self.signers.get_key_value(name)?;
        Some((name, signer))
    }

    /// Returns the table of all settings as Markdown, those of signers excepted.
    pub fn documentation() -> String {
        keys::markdown()
    }

    /// Returns the JSON Schema of a fragment (draft 2020-12).
    pub fn schema() -> Value {
        keys::document()
    }

    /// Returns the effective settings in the shape of a fragment, without secrets.
    pub fn redacted(&self) -> Value {
        let mut root = serde_json::Map::new();
        root.insert("apiVersion".to_owned(), json!(API_VERSION));
        root.insert("kind".to_owned(), json!(KIND));
        self.show_keys(&mut root);
        insert(
            &mut root,
            "kubeadm.files",
            Some(json!(self.kubeadm.shown())),
        );
        let authorities: BTreeMap<_, _> = self
            .authorities
            .iter()
            .map(|(authority, settings)| (authority.as_str(), settings.shown_keys()))
            .collect();
        root.insert("authorities".to_owned(), json!(authorities));
        let signers: BTreeMap<_, _> = self
            .signers
            .iter()
            .map(|(name, signer)| (name, signer.redacted()))
            .collect();
        root.insert("signers".to_owned(), json!(signers));
        insert(&mut root, "pki", self.pki_source.clone());
        Value::Object(root)
    }

    fn read(map: &Map<'_>, faults: &mut Faults) -> Settings {
        // Both were checked for each fragment.
        map.ignore(&["apiVersion", "kind"]);
        let mut settings = Settings::read_keys(map).unwrap_or_default();
        if let Some(field) = map.get("pki") {
            settings.pki_source = Some(yaml::to_json(field.node()));
            settings.pki = Some(KeyRules::read(&field, faults));
        }
        let signers = settings.read_signers(map);
        settings.read_authorities(map, &signers, faults);
        settings.check_kubelets(map);
        map.finish();
        settings
    }

    /// Reads the signers. Returns the positions of all of them, so a reference to a faulty signer is not a second
    /// fault.
    fn read_signers(&mut self, map: &Map<'_>) -> BTreeMap<String, FieldPosition> {
        let mut spots = BTreeMap::new();
        let Some(signers) = section(map, "signers") else {
            return spots;
        };
        for (name, field) in signers.named() {
            spots.insert(name.clone(), field.spot());
            if !is_signer_name(&name) {
                field.error(
                    "is not a valid signer name: it becomes part of a path in the state directory",
                    "use up to 63 letters, digits, -, _ and .",
                );
            }
            let Some(kinds) = field.map() else { continue };
            let mut found = Vec::new();
            for kind in signer::SignerKind::ALL {
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
                        signer::SignerKind::ALL
                            .map(signer::SignerKind::as_str)
                            .join(", ")
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

    /// Reports settings of `kubelets` that the signer of authority `ca` cannot implement, or that have no effect.
    fn check_kubelets(&self, map: &Map<'_>) {
        // The keys were read before; `finish` is not called again.
        let Some(block) = map.get("kubelets").and_then(|field| field.map()) else {
            return;
        };
        let signer = self.signer_of(Authority::Ca);
        if let Some(field) = block.get("sign")
            && self.kubelets.sign
            && let Some((name, signer)) = signer
            && let Some(obstacle) = signer.kubelet_obstacle()
        {
            field.error(
                format!(
                    "signer {name} of authority ca cannot sign for kubelets: {}",
                    obstacle.reason
                ),
                obstacle.advice,
            );
        }
        if let Some(field) = block.get("signPods").filter(|_| self.kubelets.sign_pods) {
            if let Some((name, signer)) = signer
                && let Some(obstacle) = signer.pod_obstacle()
            {
                let problem = format!(
                    "signer {name} of authority ca cannot sign for pods: {}",
                    obstacle.reason
                );
                field.error(problem, obstacle.advice);
            }
            if self.kubelets.lifetime < MIN_POD_LIFETIME {
                field.error(
                    "kubelets.lifetime is shorter than 1h, the shortest lifetime for pods",
                    "make kubelets.lifetime longer, or remove it",
                );
            }
        }
        let joining = block.get("nodeNames").and_then(|field| field.map());
        for (group, field) in joining.iter().flat_map(Map::named) {
            if !self.kubelets.token_groups.contains(&group) {
                field.error(
                    format!("{group:?} is not in kubelets.tokenGroups, so its tokens join no node"),
                    "add the group to kubelets.tokenGroups, or remove it here",
                );
            }
        }
        let dependent = [
            ("approveServing", self.kubelets.approve_serving),
            ("approveClient", self.kubelets.approve_client),
            ("signPods", self.kubelets.sign_pods),
        ];
        for (key, is_set) in dependent {
            if let Some(field) = block.get(key)
                && is_set
                && !self.kubelets.sign
            {
                field.warning(
                    "has no effect, because kubelets.sign is not set",
                    "add kubelets: {sign: true}, or remove it",
                );
            }
        }
    }

    fn read_authorities(
        &mut self,
        map: &Map<'_>,
        signers: &BTreeMap<String, FieldPosition>,
        faults: &mut Faults,
    ) {
        let only = match signers.len() {
            1 => signers.keys().next(),
            _ => None,
        };
        let mut used: BTreeSet<&String> = only.into_iter().collect();
        let block = section(map, "authorities");
        for (authority, settings) in &mut self.authorities {
            let entry = block
                .as_ref()
                .and_then(|block| section(block, authority.as_str()));
            if let Some(entry) = &entry {
                *settings = AuthoritySettings::read_keys(entry).unwrap_or_default();
                if let Some(field) = entry.get("signer")
                    && let Some(name) = &settings.signer
                {
                    match signers.get_key_value(name) {
                        Some((name, _)) => _ = used.insert(name),
                        None => refuse_undefined_signer(&field, name, signers),
                    }
                }
                entry.finish();
            }
            if settings.signer.is_none() {
                settings.signer = only.cloned();
            }
        }
        if let Some(block) = &block {
            block.finish();
        }
        for (name, spot) in signers {
            if !used.contains(name) {
                faults.push(spot.warning(
                    "is defined, but no authority uses it",
                    format!("add authorities: {{ca: {{signer: {name}}}}}, or remove it"),
                ));
            }
        }
    }
}

fn refuse_undefined_signer(
    field: &Field<'_>,
    name: &str,
    signers: &BTreeMap<String, FieldPosition>,
) {
    let known: Vec<&str> = signers.keys().map(String::as_str).collect();
    let otherwise = if known.is_empty() {
        format!("define it: signers: {{{name}: {{local: {{directory: DIR}}}}}}")
    } else {
        format!("defined are {}", known.join(", "))
    };
    let fix = yaml::fix_for(name, known, otherwise);
    field.error(format!("signer {name:?} is not defined"), fix);
}

fn is_signer_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=63).contains(&name.len()) && !name.starts_with('.') && name.chars().all(fits)
}

#[cfg(test)]
mod tests;
