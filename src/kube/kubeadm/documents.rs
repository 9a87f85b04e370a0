//! The documents of a kubeadm configuration: which of them are read, which are ignored and which are refused.
//!
//! The fields are read by `cluster`, `node` and `join`; `resolve` applies the rules that involve several documents.

use std::path::Path;

use super::cluster::{ClusterConfig, read_cluster};
use super::fields::ApiVersion;
use super::join::JoinDiscovery;
use super::node::{KubeadmRole, NodeDocument, read_init, read_join};
use super::separators;
use crate::kube::kubeadm_certs::CertificateKey;
use crate::yaml::{self, Fault, FaultSeverity, Faults, Field, FieldPosition, Node, Walk};

/// The API group of kubeadm's configuration.
const KUBEADM_GROUP: &str = "kubeadm.k8s.io";

/// The content of the documents, each field checked.
#[derive(Debug, Default)]
pub struct Documents {
    /// Whether unknown and repeated fields are errors.
    is_strict: bool,
    pub(super) cluster: Option<ClusterDocument>,
    pub(super) init: Option<NodeDocument>,
    pub(super) join: Option<NodeDocument>,
    policies: Vec<Node>,
    /// The cluster's own ClusterConfiguration, until it is merged with that of a file.
    base: Option<Node>,
    /// The effective ClusterConfiguration, merged if there were two.
    cluster_document: Option<Node>,
    /// The JoinConfiguration as written.
    join_document: Option<Node>,
    /// The first file without any document.
    pub(super) empty_file: Option<String>,
    /// True if a document could not be read: anything that seems to be missing may be in that document.
    pub(super) incomplete: bool,
    pub(super) faults: Faults,
}

impl Documents {
    /// Returns the first file without any document.
    pub(crate) fn empty_file(&self) -> Option<&str> {
        self.empty_file.as_deref()
    }

    /// Returns the OpenShift `PKI` documents among the others; `spec::policy` reads them.
    pub fn policies(&self) -> &[Node] {
        &self.policies
    }

    /// Returns the settings of the ClusterConfiguration; `None` without one.
    pub fn cluster(&self) -> Option<&ClusterConfig> {
        self.cluster.as_ref().map(|input| &input.cluster)
    }

    /// Returns the effective ClusterConfiguration and its file. For an InitConfiguration without one, these are
    /// kubeadm's defaults.
    pub(crate) fn cluster_document(&self) -> Option<(String, serde_json::Value)> {
        if let (Some(document), Some(input)) = (&self.cluster_document, &self.cluster) {
            return Some((
                input.document.place.file.to_string(),
                yaml::to_json(document),
            ));
        }
        let init = self.init.as_ref().filter(|_| self.join.is_none())?;
        let defaults = serde_json::json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
        });
        Some((init.document.place.file.to_string(), defaults))
    }

    /// Returns true if there is an InitConfiguration or JoinConfiguration.
    pub(crate) fn describes_node(&self) -> bool {
        self.init.is_some() || self.join.is_some()
    }

    /// Returns the role that an InitConfiguration or JoinConfiguration gives the node. A JoinConfiguration precedes an
    /// InitConfiguration; without `controlPlane` it makes the node a worker.
    pub fn role(&self) -> Option<KubeadmRole> {
        match (&self.init, &self.join) {
            (_, Some(join)) if join.api_endpoint.is_some() => Some(KubeadmRole::Join),
            (_, Some(_)) => Some(KubeadmRole::Worker),
            (Some(_), None) => Some(KubeadmRole::Init),
            (None, None) => None,
        }
    }

    /// Returns true if an InitConfiguration or JoinConfiguration sets `nodeRegistration.name`.
    pub(crate) fn names_node(&self) -> bool {
        let input = self.join.as_ref().or(self.init.as_ref());
        input.is_some_and(|input| input.name.is_some())
    }

    /// Returns the kubelet's `cert-dir` in the documents.
    pub(crate) fn kubelet_cert_dir(&self) -> Option<&Path> {
        let input = self.join.as_ref().or(self.init.as_ref());
        input?.kubelet.cert_dir.as_deref()
    }

    /// Returns true if a JoinConfiguration makes the node a further control-plane node.
    pub(crate) fn joins_control_plane(&self) -> bool {
        self.role() == Some(KubeadmRole::Join)
    }

    /// Returns the JoinConfiguration as written, including its secrets.
    pub(crate) fn join_document(&self) -> Option<serde_json::Value> {
        self.join_document.as_ref().map(yaml::to_json)
    }

    /// Returns the discovery part of the JoinConfiguration, as far as it could be read; `None` without one. Check
    /// [`Documents::faults`] before using it.
    pub fn join(&self) -> Option<&JoinDiscovery> {
        self.join.as_ref()?.join.as_ref()
    }

    /// Returns the file that describes the node: that of the JoinConfiguration or InitConfiguration, or else of the
    /// ClusterConfiguration.
    pub fn node_file(&self) -> Option<&str> {
        let described = self.join.as_ref().or(self.init.as_ref());
        let position = described
            .map(|node| &node.document)
            .or(self.cluster.as_ref().map(|input| &input.document))?;
        Some(&position.place.file)
    }

    /// Returns `certificateKey` of the InitConfiguration, and its position.
    pub fn upload_key(&self) -> Option<(&CertificateKey, &FieldPosition)> {
        let (key, spot) = self.init.as_ref()?.upload_key.as_ref()?;
        Some((key, spot))
    }

    /// Returns the faults of all documents.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

/// A ClusterConfiguration.
#[derive(Debug)]
pub(super) struct ClusterDocument {
    pub(super) cluster: ClusterConfig,
    /// True if `controlPlaneEndpoint` is set. If its value was refused, its absence is not a second fault.
    pub(super) endpoint_written: bool,
    pub(super) document: FieldPosition,
}

words! {
    /// The kinds of kubeadm documents that are read.
    enum DocumentKind {
        Cluster = "ClusterConfiguration",
        Init = "InitConfiguration",
        Join = "JoinConfiguration",
    }
}

/// Reads all documents of the given `(file name, text)` pairs.
///
/// The result contains the faults; [`resolve`](super::resolve) returns them together with its own.
pub fn load<N: AsRef<str>, T: AsRef<str>>(sources: &[(N, T)]) -> Documents {
    let mut loaded = Documents::default();
    for (file, text) in sources {
        loaded.read_text(file.as_ref(), text.as_ref());
    }
    loaded
}

/// As [`load`], but unknown and repeated fields are errors, as for `kubeadm config validate`. `kubeadm init` and
/// `kubeadm join` only warn of them.
pub(crate) fn load_strictly<N: AsRef<str>, T: AsRef<str>>(sources: &[(N, T)]) -> Documents {
    let mut loaded = Documents {
        is_strict: true,
        ..Documents::default()
    };
    for (file, text) in sources {
        loaded.read_text(file.as_ref(), text.as_ref());
    }
    loaded
}

/// Reads all documents, with the cluster's own ClusterConfiguration as `base`, an `(origin, text)` pair.
///
/// A ClusterConfiguration in a file is merged over it: maps key by key, while lists and scalars replace those of the
/// cluster. A `PKI` document in `base` is used if no file contains one.
pub(crate) fn load_over<N: AsRef<str>, T: AsRef<str>>(
    base: (&str, &str),
    sources: &[(N, T)],
) -> Documents {
    let mut loaded = Documents::default();
    let mut policies = Vec::new();
    match yaml::parse(base.0, base.1) {
        Ok(documents) => {
            for document in documents {
                match kind_of(&document) {
                    Some("ClusterConfiguration") if loaded.base.is_none() => {
                        loaded.base = Some(document);
                    }
                    Some("PKI") => policies.push(document),
                    _ => {}
                }
            }
        }
        Err(faults) => {
            loaded.incomplete = true;
            loaded.faults.extend(faults);
        }
    }
    for (file, text) in sources {
        loaded.read_text(file.as_ref(), text.as_ref());
    }
    if let Some(base) = loaded.base.take() {
        loaded.read_document(&base);
    }
    if loaded.policies.is_empty() {
        loaded.policies = policies;
    }
    loaded
}

fn is_kubeadm_kind(kind: &str) -> bool {
    matches!(
        kind,
        "ClusterConfiguration" | "InitConfiguration" | "JoinConfiguration"
    )
}

fn kind_of(document: &Node) -> Option<&str> {
    let kind = document.get("kind").and_then(Node::text);
    kind.filter(|kind| !kind.is_empty())
}

fn api_version_of(document: &Node) -> Option<&str> {
    let api_version = document.get("apiVersion").and_then(Node::text);
    api_version.filter(|api_version| !api_version.is_empty())
}

/// Splits an apiVersion into group and version; the group of the core API is empty.
fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

fn group_of(document: &Node) -> Option<&str> {
    Some(split_api_version(api_version_of(document)?).0)
}

/// Returns true for a document that makes its file one that is given to kubeadm.
fn is_for_kubeadm(document: &Node) -> bool {
    group_of(document) == Some(KUBEADM_GROUP)
}

fn spot_of(document: &Node) -> FieldPosition {
    document.place.clone().into()
}

/// Returns what to do with a document that does not say what it is.
fn unidentified_fix(document: &Node) -> &'static str {
    match (&document.kind, api_version_of(document), kind_of(document)) {
        (yaml::NodeKind::Map(_), Some(_), None) => {
            "add kind: ClusterConfiguration, InitConfiguration or JoinConfiguration, or remove the document"
        }
        (yaml::NodeKind::Map(_), None, Some(_)) => {
            "add apiVersion: kubeadm.k8s.io/v1beta4, or remove the document"
        }
        (yaml::NodeKind::Map(_), ..) => {
            "begin it with apiVersion: kubeadm.k8s.io/v1beta4 and kind: ClusterConfiguration, InitConfiguration or JoinConfiguration, or move its \
             fields to the document to which they belong"
        }
        _ => "remove it: kubeadm refuses the file",
    }
}

impl Documents {
    fn read_text(&mut self, file: &str, text: &str) {
        match yaml::parse(file, text) {
            Ok(documents) => {
                if documents.is_empty() && self.empty_file.is_none() {
                    self.empty_file = Some(file.to_owned());
                }
                for document in &documents {
                    self.read_document(document);
                }
                if documents.iter().any(is_for_kubeadm) {
                    self.check_form(file, text, &documents);
                }
            }
            Err(faults) => {
                self.incomplete = true;
                self.faults.extend(faults);
            }
        }
    }

    /// Reports what kubeadm refuses or ignores in a file with documents for it, whatever their fields are.
    fn check_form(&mut self, file: &str, text: &str, documents: &[Node]) {
        for fault in separators::faults(file, text, documents) {
            self.faults.push(if self.is_strict {
                fault.spot.error(fault.message, fault.fix)
            } else {
                fault.spot.warning(fault.message, fault.fix)
            });
        }
        if !self.is_strict {
            return;
        }
        for document in documents {
            let message = match (group_of(document), kind_of(document)) {
                (Some("config.openshift.io"), Some("PKI")) => {
                    "kubeadm config validate refuses the file because of this document, which kubeadm init and join ignore with a warning"
                }
                (Some(""), Some("ConfigMap")) => {
                    "kubeadm refuses the file because of this document, which only nodepki reads"
                }
                _ => continue,
            };
            let fix = "move it to a file of its own, and name that file too";
            self.faults.push(spot_of(document).warning(message, fix));
        }
    }

    fn read_document(&mut self, document: &Node) {
        let spot = spot_of(document);
        let (Some(api_version), Some(kind)) = (api_version_of(document), kind_of(document)) else {
            self.refuse(spot.error(
                "the document does not contain apiVersion and kind",
                unidentified_fix(document),
            ));
            return;
        };
        let (group, version) = split_api_version(api_version);
        match (group, kind) {
            (KUBEADM_GROUP, _) => self.read_kubeadm(document, spot, version, kind),
            ("kubelet.config.k8s.io", "KubeletConfiguration")
            | ("kubeproxy.config.k8s.io", "KubeProxyConfiguration") => {}
            ("config.openshift.io", "PKI") => self.policies.push(document.clone()),
            ("", "ConfigMap") => self.read_config_map(document, spot),
            _ if is_kubeadm_kind(kind) => self.refuse(spot.error(
                format!("{kind} has the apiVersion {api_version}"),
                "write apiVersion: kubeadm.k8s.io/v1beta4",
            )),
            ("", _) => self.refuse(spot.error(
                format!("{api_version} {kind} is not a kubeadm configuration document"),
                "move it to another file; kubeadm refuses it as well",
            )),
            _ => self.take_foreign(&spot, api_version, kind),
        }
    }

    /// Reports a document of another API: `kubeadm config validate` refuses it, `kubeadm init` and `join` ignore it.
    fn take_foreign(&mut self, spot: &FieldPosition, api_version: &str, kind: &str) {
        let message = format!("{api_version} {kind} is not a kubeadm configuration document");
        if self.is_strict {
            self.refuse(spot.error(
            message,
            "move it to another file; kubeadm config validate refuses it, and kubeadm init and join ignore it with a warning",
        ))
        } else {
            self.faults.push(spot.warning(
                format!("{message} and is ignored, as kubeadm does"),
                "move it to another file",
            ))
        }
    }

    /// Reads the ConfigMap that `kubectl get cm kubeadm-config -o yaml` prints.
    fn read_config_map(&mut self, document: &Node, spot: FieldPosition) {
        let name = document
            .get("metadata")
            .and_then(|metadata| metadata.get("name"))
            .and_then(Node::text);
        let text = document
            .get("data")
            .and_then(|data| data.get("ClusterConfiguration"))
            .and_then(Node::text);
        match (name, text) {
            (Some("kubeadm-config"), Some(text)) => {
                let file = format!("{}#data.ClusterConfiguration", spot.place.file);
                self.read_text(&file, text);
            }
            _ => self.refuse(spot.error(
                "v1 ConfigMap is not a kubeadm configuration document",
                "only the ConfigMap kubeadm-config with data.ClusterConfiguration is read; move this one to another file",
            )),
        }
    }

    /// Reads a document of the API group `kubeadm.k8s.io`.
    fn read_kubeadm(&mut self, document: &Node, spot: FieldPosition, version: &str, kind: &str) {
        let api = match version {
            "v1beta4" => ApiVersion::V1beta4,
            "v1beta3" => ApiVersion::V1beta3,
            other => {
                self.refuse(unsupported_api(&spot, other, kind));
                return;
            }
        };
        let kind = match kind {
            "ClusterConfiguration" => DocumentKind::Cluster,
            "InitConfiguration" => DocumentKind::Init,
            "JoinConfiguration" => DocumentKind::Join,
            // These belong to other kubeadm commands.
            "ResetConfiguration" | "UpgradeConfiguration" => return,
            other => {
                self.take_unknown_kind(&spot, version, other);
                return;
            }
        };
        if api == ApiVersion::V1beta3 {
            self.faults.push(spot.warning(
                format!("kubeadm.k8s.io/v1beta3 (kind {kind}) is deprecated, and kubeadm 1.37 and later refuse it"),
                "run kubeadm config migrate --old-config OLD --new-config NEW with a kubeadm from 1.31 to 1.36",
            ));
        }
        if let Some(first) = self.spot_of(kind) {
            let message = format!("kind {kind} is given twice, first at {}", first.place);
            self.faults
                .push(spot.error(message, "keep one of the two documents"));
            return;
        }
        let severity = if self.is_strict {
            FaultSeverity::Error
        } else {
            FaultSeverity::Warning
        };
        document.duplicates(severity, &mut self.faults);
        if self.is_strict && Self::is_two_documents(document) {
            // Its other faults, such as fields of the other kind, follow from this one.
            self.incomplete = true;
            return;
        }
        let merged = match self.base.take_if(|_| kind == DocumentKind::Cluster) {
            Some(base) => self.merge(base, document, &spot),
            None => None,
        };
        self.read_fields(merged.as_ref().unwrap_or(document), spot, api, kind);
    }

    /// Reports a kind that kubeadm does not have; `kubeadm config validate` refuses it.
    fn take_unknown_kind(&mut self, spot: &FieldPosition, version: &str, kind: &str) {
        let kinds = DocumentKind::ALL.map(DocumentKind::as_str);
        let otherwise = "use ClusterConfiguration, InitConfiguration or JoinConfiguration";
        let fix = yaml::fix_for(kind, kinds, otherwise);
        let message =
            format!("kubeadm.k8s.io/{version} {kind} is not a kind of kubeadm and is ignored");
        if self.is_strict {
            self.refuse(spot.error(message, fix))
        } else {
            self.faults.push(spot.warning(message, fix))
        }
    }

    /// Returns whether the document contains `apiVersion` or `kind` twice: two documents without a separator.
    fn is_two_documents(document: &Node) -> bool {
        let yaml::NodeKind::Map(entries) = &document.kind else {
            return false;
        };
        ["apiVersion", "kind"]
            .iter()
            .any(|key| entries.iter().filter(|entry| entry.key == *key).count() > 1)
    }

    fn read_fields(
        &mut self,
        document: &Node,
        spot: FieldPosition,
        api: ApiVersion,
        kind: DocumentKind,
    ) {
        let walk = Walk::new(self.is_strict);
        if let Some(map) = Field::root(&walk, document).map() {
            map.ignore(&["apiVersion", "kind"]);
            match kind {
                DocumentKind::Cluster => {
                    self.cluster = Some(ClusterDocument {
                        cluster: read_cluster(&map, api),
                        endpoint_written: document
                            .get("controlPlaneEndpoint")
                            .and_then(Node::text)
                            .is_some_and(|text| !text.is_empty()),
                        document: spot,
                    });
                    self.cluster_document = Some(document.clone());
                }
                DocumentKind::Init => self.init = Some(read_init(&map, api, spot)),
                DocumentKind::Join => {
                    self.join = Some(read_join(&map, api, spot));
                    self.join_document = Some(document.clone());
                }
            }
            map.finish();
        }
        self.faults.extend(walk.into_faults());
    }

    /// Returns the place of the document of this kind that was read before.
    fn spot_of(&self, kind: DocumentKind) -> Option<&FieldPosition> {
        match kind {
            DocumentKind::Cluster => self.cluster.as_ref().map(|cluster| &cluster.document),
            DocumentKind::Init => self.init.as_ref().map(|init| &init.document),
            DocumentKind::Join => self.join.as_ref().map(|join| &join.document),
        }
    }

    /// Merges a document over the cluster's own, if both have one API version.
    fn merge(&mut self, mut base: Node, document: &Node, spot: &FieldPosition) -> Option<Node> {
        let version = |document: &Node| {
            document
                .get("apiVersion")
                .and_then(Node::text)
                .map(str::to_owned)
        };
        if version(&base) != version(document) {
            self.faults.push(spot.error(
                format!("is {}, but the cluster's own ClusterConfiguration is {}: the two cannot be merged", version(document).unwrap_or_default(), version(&base).unwrap_or_default()),
                "convert this document to the same version with kubeadm config migrate --old-config OLD --new-config NEW",
            ));
            return None;
        }
        base.overlay(document.clone());
        Some(base)
    }

    /// Adds the fault of a document that is not read.
    fn refuse(&mut self, fault: Fault) {
        self.incomplete = true;
        self.faults.push(fault);
    }
}

fn unsupported_api(spot: &FieldPosition, version: &str, kind: &str) -> Fault {
    let api = format!("kubeadm.k8s.io/{version} (kind {kind})");
    match (version, last_release_with(version)) {
        (_, Some(release)) => spot.error(
            format!("{api} is an old API that kubeadm 1.31 and later refuse"),
            format!(
                "run kubeadm config migrate --old-config OLD --new-config NEW with kubeadm {release}"
            ),
        ),
        ("v1", None) => spot.error(
            format!("{api} is experimental, and kubeadm init and join refuse it"),
            "use kubeadm.k8s.io/v1beta4",
        ),
        (_, None) => spot.error(
            format!("{api} is not supported by this release of nodepki"),
            "use kubeadm.k8s.io/v1beta4",
        ),
    }
}

/// Returns the last kubeadm release that reads and migrates an old API; kubeadm gives the same advice.
fn last_release_with(version: &str) -> Option<&'static str> {
    match version {
        "v1alpha1" => Some("v1.11"),
        "v1alpha2" => Some("v1.12"),
        "v1alpha3" => Some("v1.13"),
        "v1beta1" => Some("v1.15"),
        "v1beta2" => Some("v1.22"),
        _ => None,
    }
}
