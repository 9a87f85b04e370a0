//! The node's identity in its sources: the configuration, the files of a running node, and the record of pending
//! requests.
//!
//! Certificates with another node's name or address are unusable here and dangerous elsewhere. A run therefore fails if
//! the sources disagree, and each part of the identity is changed only with its own option. Reads the node only.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::running::{RunningNode, kubelet_name, manifest_name};
use crate::agent::Failure;
use crate::kube::kubeadm::{Discovery, JoinDiscovery, KubeadmRole, NodeName, Resolved};
use crate::kube::names::CertName;
use crate::kube::paths::ETCD_MANIFEST;
use crate::node::NodeState;
use crate::spec::kubeconfig_path;
use crate::store::{IdentityPart, NodeRecord, NodeRoot, Slot, node_record_path};

/// How a run treats a difference between the wanted identity and the node's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityChange {
    /// Refuse every difference outside this set.
    Accept(BTreeSet<IdentityPart>),
    /// Refuse none, in a command that changes nothing: the survey has those outside this set among its refusals.
    Show(BTreeSet<IdentityPart>),
}

impl IdentityChange {
    /// Reports every difference.
    pub const SHOW_ALL: IdentityChange = IdentityChange::Show(BTreeSet::new());

    /// Refuses none that it would refuse.
    #[must_use]
    pub fn shown(self) -> IdentityChange {
        let (IdentityChange::Accept(options) | IdentityChange::Show(options)) = self;
        IdentityChange::Show(options)
    }
}

impl Default for IdentityChange {
    fn default() -> Self {
        IdentityChange::Accept(BTreeSet::new())
    }
}

/// One source of the node's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameSource {
    /// The name.
    pub name: NodeName,
    /// The file on this machine.
    pub file: String,
    /// Whether the file belongs to etcd.
    of_etcd: bool,
}

impl NameSource {
    /// Returns `FILE says cp2`.
    fn said(&self) -> String {
        format!("{} says {}", self.file, self.name)
    }
}

/// Returns the node's name in each file of the node that contains it: kubelet.conf, etcd's manifest and etcd's
/// certificates. Files that cannot be read are left out.
pub fn name_sources(state: &NodeState) -> Vec<NameSource> {
    let source = |name: String, path: PathBuf, of_etcd| {
        Some(NameSource {
            name: name.parse().ok()?,
            file: state.root().on_this_machine(path).display().to_string(),
            of_etcd,
        })
    };
    let kubelet = kubelet_name(state)
        .and_then(|name| source(name, kubeconfig_path(CertName::KubeletConf), false));
    let manifest = manifest_name(state).and_then(|name| source(name, ETCD_MANIFEST.into(), true));
    let certificates = [CertName::EtcdServer, CertName::EtcdPeer].map(|name| {
        let [path, _] = state.layout().pair(name);
        source(etcd_name(state, &path)?, path, true)
    });
    let all = [kubelet, manifest].into_iter().chain(certificates);
    all.flatten().collect()
}

/// Returns the common name of an etcd certificate if it is also one of its DNS names, as in kubeadm's certificates. A setting
/// (`commonNames`) or another tool may put a name there that is not the node's.
pub(super) fn etcd_name(state: &NodeState, path: &Path) -> Option<String> {
    let chain = state.file(path).chain();
    let leaf = chain.present()?.leaf();
    let name = leaf.subject().values("CN").next()?.to_owned();
    let names = leaf.dns_names();
    names.contains(&name).then_some(name)
}

/// Returns the name that the kubelet registers under by kubeadm's rule: `--hostname-override`, or the host name.
pub fn computed_name(state: &NodeState, hostname: &str) -> Option<NodeName> {
    let flag = state.kubelet_flag("hostname-override");
    flag.as_deref().unwrap_or(hostname).parse().ok()
}

/// The record of an earlier run, with its pending requests.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) kept: Option<NodeRecord>,
    pending: Vec<CertName>,
}

/// The wanted identity, compared with the node's own.
pub(super) struct ComparedIdentity {
    pub(super) notes: Vec<String>,
    /// Differences at which a run stops.
    pub(super) conflicts: Vec<String>,
    /// The record for this run.
    pub(super) record: NodeRecord,
}

/// The wanted identity, which is compared with the node's own.
pub(super) struct WantedIdentity<'a> {
    pub(super) resolved: &'a Resolved,
    /// `nodeRegistration.name`, `nodeName` or `--node-name` is set.
    pub(super) names_node: bool,
    /// An InitConfiguration or JoinConfiguration describes the node.
    pub(super) is_described: bool,
    pub(super) hostname: &'a str,
}

/// A difference between the wanted identity and a source of the node's own.
struct IdentityDifference {
    part: IdentityPart,
    what: String,
    /// How to resolve it, after its separator; a run that accepts the difference does not say it.
    advice: String,
    /// An option accepts it.
    is_acceptable: bool,
}

impl Recorded {
    pub(super) fn read(state: &NodeState) -> Result<Recorded, Failure> {
        let pending = state.tickets()?.iter();
        Ok(Recorded {
            kept: state.saved_node()?.cloned(),
            pending: pending
                .filter_map(|(slot, _)| match slot {
                    Slot::Certificate(name) => Some(*name),
                    Slot::ServiceAccount => None,
                })
                .collect(),
        })
    }

    /// Returns the recorded node, while requests are pending.
    fn pending(&self) -> Option<&NodeRecord> {
        self.kept.as_ref().filter(|_| !self.pending.is_empty())
    }

    /// Returns the recorded node if a run without a description of the node continues with it: while requests are
    /// pending, and on a node without any other source of its identity.
    pub(super) fn continued(&self, is_blank: bool) -> Option<&NodeRecord> {
        self.kept
            .as_ref()
            .filter(|_| !self.pending.is_empty() || is_blank)
    }

    /// Returns whether requests of a worker are pending.
    pub(super) fn is_worker(&self) -> bool {
        self.pending()
            .is_some_and(|kept| kept.node.role == KubeadmRole::Worker)
    }

    /// Returns the API server for a worker's kubelet.conf if the recorded node joined through the same endpoint.
    pub(super) fn server_of(&self, join: &JoinDiscovery) -> Option<String> {
        let node = &self.kept.as_ref()?.node;
        let is_same = match &join.discovery {
            Some(Discovery::Token { endpoint, .. }) => {
                node.join_endpoint.as_ref() == Some(endpoint)
            }
            Some(Discovery::File(_)) | None => true,
        };
        node.server.clone().filter(|_| is_same)
    }

    /// Refuses to continue requests of an older release, which recorded no identity.
    ///
    /// # Errors
    /// 65 if requests are pending without a record.
    pub(super) fn require_record(&self, root: &NodeRoot) -> Result<(), Failure> {
        if self.kept.is_some() || self.pending.is_empty() {
            return Ok(());
        }
        let pending: Vec<&str> = self.pending.iter().map(|name| name.as_str()).collect();
        Err(Failure::refused(format!(
            "requests are pending ({}), and {} does not say for which node: run again with the kubeadm file that they were made with (--kubeadm-config FILE)",
            pending.join(", "),
            root.on_this_machine(node_record_path()).display()
        )))
    }

    /// Compares the wanted identity with every source of the node's own.
    ///
    /// # Errors
    /// A difference that `change` does not accept: 65, with every source named.
    pub(super) fn compare(
        &self,
        state: &NodeState,
        running: Option<&RunningNode>,
        wanted: &WantedIdentity<'_>,
        change: &IdentityChange,
    ) -> Result<ComparedIdentity, Failure> {
        let node = &wanted.resolved.node;
        let mut notes = Vec::new();
        let mut conflicts = Vec::new();
        let mut accepted = BTreeSet::new();
        let (named, note) = self.name_differences(state, running, wanted);
        notes.extend(note);
        let differences = named
            .into_iter()
            .chain(self.address_differences(state.root(), running, wanted.resolved))
            .chain(self.role_difference(state.root(), node.role));
        for difference in differences {
            let part = difference.part;
            let (IdentityChange::Accept(options) | IdentityChange::Show(options)) = change;
            let by_option = options.contains(&part);
            if difference.is_acceptable && (by_option || self.was_accepted(part, wanted.resolved)) {
                accepted.insert(part);
                notes.push(difference.what);
            } else {
                conflicts.push(difference.what + &difference.advice);
            }
        }
        conflicts.extend(running.and_then(|running| running.foreign_etcd(state, wanted.resolved)));
        if matches!(change, IdentityChange::Accept(_)) {
            Failure::require_none(std::mem::take(&mut conflicts))?;
        }
        let mut node = node.clone();
        node.join = None;
        Ok(ComparedIdentity {
            notes,
            conflicts,
            record: NodeRecord { node, accepted },
        })
    }

    /// Returns whether the pending requests result from the same change, accepted earlier.
    fn was_accepted(&self, part: IdentityPart, resolved: &Resolved) -> bool {
        let Some(kept) = self.pending().filter(|kept| kept.accepted.contains(&part)) else {
            return false;
        };
        let (own, wanted) = (&kept.node, &resolved.node);
        match part {
            IdentityPart::Name => own.name == wanted.name,
            IdentityPart::Address => {
                (own.advertise_address, own.bind_port)
                    == (wanted.advertise_address, wanted.bind_port)
            }
            IdentityPart::Role => own.role == wanted.role,
        }
    }

    /// Returns `the pending requests of this node (apiserver, etcd-server) were made for cp1 (recorded in FILE)`.
    fn requests_for(&self, root: &NodeRoot, what: &str) -> String {
        let pending: Vec<&str> = self.pending.iter().map(|name| name.as_str()).collect();
        format!(
            "the pending requests of this node ({}) were made for {what} (recorded in {})",
            pending.join(", "),
            root.on_this_machine(node_record_path()).display()
        )
    }

    fn name_differences(
        &self,
        state: &NodeState,
        running: Option<&RunningNode>,
        wanted: &WantedIdentity<'_>,
    ) -> (Vec<IdentityDifference>, Option<String>) {
        let root = state.root();
        let part = IdentityPart::Name;
        let name = &wanted.resolved.node.name;
        let mut differences = Vec::new();
        if let Some(kept) = self.pending().filter(|kept| kept.node.name != *name) {
            differences.push(IdentityDifference {
                part,
                what: format!(
                    "{}, and this run is for {name}",
                    self.requests_for(root, own_name(kept))
                ),
                advice: format!(
                    ": run again with the configuration that names {own}, or without one; --accept-name-change sets these requests aside and makes new ones for {name}",
                    own = own_name(kept),
                ),
                is_acceptable: true,
            });
        }
        let sources = name_sources(state);
        let computed = computed_name(state, wanted.hostname);
        // Before kubeadm has run, its configuration may still be corrected.
        let is_binding = running.is_some_and(RunningNode::is_set_up) || !wanted.is_described;
        let (own_sources, others): (Vec<&NameSource>, Vec<&NameSource>) =
            sources.iter().partition(|one| one.name == *name);
        let recorded = self.kept.as_ref().map(|kept| &kept.node.name);
        let is_recorded = recorded == Some(name);
        let is_computed = computed.as_ref() == Some(name);
        let own_count = own_sources.len() + usize::from(is_recorded) + usize::from(is_computed);
        // One file with the name of another node, such as a copied certificate, must not make a named node doubt its own.
        let is_majority = own_count > others.len();
        let mut note = None;
        if is_binding && wanted.names_node && is_majority && !others.is_empty() {
            note = Some(format!(
                "{}: this node is {name} according to the configuration and to {}",
                others
                    .iter()
                    .map(|other| other.said())
                    .collect::<Vec<_>>()
                    .join(", "),
                if own_sources.is_empty() {
                    root.on_this_machine(node_record_path())
                        .display()
                        .to_string()
                } else {
                    files(&own_sources)
                }
            ));
        } else if is_binding && let Some(first) = others.first() {
            let own = &first.name;
            let agree = sources.iter().all(|source| source.name == *own);
            let is_known = agree || is_recorded || is_computed || !own_sources.is_empty();
            let (what, advice) = if wanted.names_node && agree {
                (
                    format!(
                        "the configuration names this node {name}, but it runs as {own} (according to {})",
                        files(&others)
                    ),
                    format!(
                        ": its Node object, its kubelet's permissions and its etcd member have that name, and certificates alone do not rename it; set nodeName: {own} (or nodeRegistration.name) to keep it, or take the node out of the cluster (kubectl delete node {own}, kubeadm reset) and have it join again as {name}; --accept-name-change issues the certificates for {name} regardless"
                    ),
                )
            } else {
                self.disagreement(root, wanted, &sources, computed.as_ref())
            };
            differences.push(IdentityDifference {
                part,
                what,
                advice,
                // A name that no source has is a mistake while they disagree.
                is_acceptable: wanted.names_node && is_known
                    || self.was_accepted(part, wanted.resolved),
            });
        }
        let disagreement = |computed: Option<&NodeName>| {
            let (what, advice) = self.disagreement(root, wanted, &sources, computed);
            IdentityDifference {
                part,
                what,
                advice,
                is_acceptable: false,
            }
        };
        // One file may have been copied from another node, and the record is as good a source.
        let is_doubtful = own_sources.len() == 1 && others.is_empty() && !wanted.names_node;
        if is_doubtful
            && recorded.is_some_and(|recorded| recorded != name)
            && differences.is_empty()
        {
            differences.push(disagreement(computed.as_ref()));
        }
        let has_etcd = sources.iter().any(|source| source.of_etcd);
        if let Some(computed) = computed.filter(|computed| computed != name && !wanted.names_node)
            && differences.is_empty()
            && (!sources.is_empty() || self.pending().is_some())
        {
            // kubeadm wrote the flags for this kubelet, while the host name may change with DHCP and cloud metadata.
            let by_flags = !has_etcd
                && is_binding
                && computed_name(state, "").is_some_and(|flagged| flagged == computed);
            if by_flags {
                differences.push(disagreement(Some(&computed)))
            } else {
                note = Some(format!(
                    "the host name is {computed}, and this node is {name} (according to {}); the host name is not used",
                    match sources.first() {
                        Some(source) => source.file.clone(),
                        None => root.node_path(node_record_path()).to_string(),
                    }
                ));
            }
        }
        (differences, note)
    }

    fn address_differences(
        &self,
        root: &NodeRoot,
        running: Option<&RunningNode>,
        resolved: &Resolved,
    ) -> Vec<IdentityDifference> {
        let part = IdentityPart::Address;
        let address = |node: &crate::kube::kubeadm::NodeConfig| {
            Some(SocketAddr::new(node.advertise_address?, node.bind_port))
        };
        let mut differences = Vec::new();
        if let Some(kept) = self.pending()
            && let (Some(own), Some(wanted)) = (address(&kept.node), address(&resolved.node))
            && own != wanted
        {
            differences.push(IdentityDifference {
                part,
                what: format!(
                    "{}, and this run is for {wanted}",
                    self.requests_for(root, &format!("an API server at {own}")),
                ),
                advice: format!(
                    ": run again with the configuration that has localAPIEndpoint {own}, or without one; --accept-address-change sets these requests aside and makes new ones for {wanted}"
                ),
                is_acceptable: true,
            });
        }
        let of_manifest = running.and_then(|running| running.address_change(root, resolved));
        differences.extend(of_manifest.map(|what| IdentityDifference {
            part,
            what,
            advice: String::new(),
            is_acceptable: true,
        }));
        differences
    }

    fn role_difference(&self, root: &NodeRoot, wanted: KubeadmRole) -> Option<IdentityDifference> {
        let is_etcd = |role: KubeadmRole| role == KubeadmRole::Etcd;
        let recorded = self.kept.as_ref()?.node.role;
        // Without pending requests, the role of an etcd member is the only one that no file of kubeadm's states.
        if self.pending.is_empty() && is_etcd(recorded) && !is_etcd(wanted) {
            return Some(IdentityDifference {
                part: IdentityPart::Role,
                what: format!(
                    "this node is an etcd member (recorded in {}), and this run is for {}",
                    root.on_this_machine(node_record_path()).display(),
                    role_in_words(wanted),
                ),
                advice: ": set role: etcd, or run again with --accept-role-change".to_owned(),
                is_acceptable: true,
            });
        }
        let own = self.pending()?.node.role;
        (own != wanted).then(|| IdentityDifference {
            part: IdentityPart::Role,
            what: format!(
                "{}, and this run is for {}",
                self.requests_for(root, role_in_words(own)),
                role_in_words(wanted),
            ),
            advice: ": run again with the same kind of configuration, or without one; --accept-role-change sets these requests aside and makes new ones".to_owned(),
            is_acceptable: true,
        })
    }

    /// Returns what contradictory sources say, and how to resolve it.
    fn disagreement(
        &self,
        root: &NodeRoot,
        wanted: &WantedIdentity<'_>,
        sources: &[NameSource],
        computed: Option<&NodeName>,
    ) -> (String, String) {
        let configured = Some(&wanted.resolved.node.name).filter(|_| wanted.names_node);
        let recorded = self.kept.as_ref().map(|kept| &kept.node.name);
        let record = root.on_this_machine(node_record_path());
        let said = [
            configured.map(|name| (name, format!("the configuration says {name}"))),
            recorded.map(|name| (name, format!("{} says {name}", record.display()))),
            computed.map(|name| (name, format!("the host name is {name}"))),
        ];
        let files = sources.iter().map(|source| (&source.name, source.said()));
        let said: Vec<(&NodeName, String)> = files.chain(said.into_iter().flatten()).collect();
        let count = |name: &NodeName| said.iter().filter(|(one, _)| *one == name).count();
        let most = said.iter().find(|(name, _)| 2 * count(name) > said.len());
        let likely = most.map_or_else(String::new, |(name, _)| {
            format!("most of them say {name}; ")
        });
        let said: Vec<&str> = said.iter().map(|(_, words)| words.as_str()).collect();
        (
            format!(
                "the sources of this node's name disagree: {}",
                said.join(", ")
            ),
            format!(
                "; {likely}find out which name the Node object has (kubectl get nodes), then run again with --node-name NAME, which replaces the certificates with another name; a name that most files contradict needs --accept-name-change too"
            ),
        )
    }
}

fn files(sources: &[&NameSource]) -> String {
    let files: Vec<&str> = sources.iter().map(|source| source.file.as_str()).collect();
    files.join(", ")
}

fn own_name(kept: &NodeRecord) -> &str {
    kept.node.name.as_str()
}

fn role_in_words(role: KubeadmRole) -> &'static str {
    match role {
        KubeadmRole::Init => "the first control-plane node",
        KubeadmRole::Join => "a joining control-plane node",
        KubeadmRole::Worker => "a worker",
        KubeadmRole::Etcd => "an etcd member",
    }
}
