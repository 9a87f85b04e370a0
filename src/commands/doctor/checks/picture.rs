//! Reads the state of the node once, for all checks. Never fails: an unreadable file is part of the state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;

use super::DiagnosisInputs;
use super::cluster::Answers;
use super::desired::Configuration;
use super::finding::CheckNote;
use super::reader::{FoundAuthority, Kubelet, Reader, SignerFiles};
use super::trees::{MAX_SEARCH_DEPTH, Trees};
use crate::agent::load::{self, NameSource};
use crate::agent::{Examination, ExaminationVerdict};
use crate::kube::components::ReplacedFile;
use crate::kube::manifest::StaticPod;
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{KUBERNETES_DIR, MANIFESTS_DIR};
use crate::node::static_pods::{mounted_files, other_static_pods};
use crate::node::status::{self, NodeRole, NodeStatus, PendingStatus, RowFault, RowSubject};
use crate::node::{NodeCert, NodeState};
use crate::spec::Layout;
use crate::spec::assess::{Observed, ObservedKubeconfig};
use crate::spec::authority_rotation::{AuthorityRotation, RotationSubject};
use crate::store::{Exposed, NodeRoot, STATE_DIR, UnfinishedWork};
use crate::x509::{Certificate, Chain, PublicKey, TrustBundle};

/// How to end requests that were exported.
const IMPORT: &str =
    "have the exported requests signed, then import the directory: `nodepki csr import DIR`";

/// The copy of `admin.conf` that kubeadm tells root to make.
pub(super) const OWN_COPY: &str = "/root/.kube/config";

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
    pub(super) leaves: BTreeMap<CertName, NodeCert>,
    /// The files of `kubeconfig.credentials: file`, each pair with the reason why its component cannot read it.
    pub(super) own_pairs: Vec<([PathBuf; 2], Option<String>)>,
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
    /// Why they were not asked, although they should have been.
    pub(super) signers_unknown: Option<String>,
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
        let role = described.role.map(NodeRole::from);
        let status = status::collect(&state, role, configuration.plan.as_ref(), now);
        let own_copy = state.cert_in(OWN_COPY).found.chain;
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
                .map(|name| (name, state.cert(name)))
                .collect(),
            own_pairs: reader.own_pairs(),
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
            signers_unknown: None,
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

    /// Returns what to do about a certificate that the plan does not contain, so that no run issues it; `None` for another
    /// one, and if no plan is known.
    pub(super) fn not_issued(&self, name: CertName) -> Option<&'static str> {
        let plan = self.configuration.plan.as_ref()?;
        if plan.cert(name).is_some() {
            return None;
        }
        Some(match name {
            CertName::ApiserverEtcdClient if plan.external_etcd.is_some() => {
                "install the file that the administrators of etcd provide, and restart kube-apiserver; nodepki issues it only with certificates.externalEtcdClient"
            }
            CertName::KubeletConf => {
                "write bootstrap-kubelet.conf with a new bootstrap token and restart the kubelet, or move kubelet.conf away and run `kubeadm join` again; nodepki issues it only with kubelet.identity: issue"
            }
            _ => {
                "remove its files if no component uses them; by the configuration this node does not have it, so that no run issues it"
            }
        })
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
        self.kubeconfig(name).is_some()
    }

    /// Returns whether a kubeconfig can be parsed and names no files for certificate and key.
    pub(super) fn is_embedded(&self, name: CertName) -> bool {
        self.kubeconfig(name)
            .is_some_and(|kubeconfig| kubeconfig.pair.is_none())
    }

    /// Returns the path on this machine of a path of the node, for messages.
    pub(super) fn here(&self, path: &Path) -> String {
        let below = path.strip_prefix("/").unwrap_or(path);
        self.root.join(below).display().to_string()
    }

    pub(super) fn leaf(&self, name: CertName) -> Option<&NodeCert> {
        self.leaves.get(&name)
    }

    /// Returns a certificate, if it can be parsed.
    pub(super) fn chain(&self, name: CertName) -> Option<&Chain> {
        self.leaf(name)?.found.chain.present()
    }

    fn kubeconfig(&self, name: CertName) -> Option<&ObservedKubeconfig> {
        self.leaf(name)?.found.kubeconfig.as_ref()
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
