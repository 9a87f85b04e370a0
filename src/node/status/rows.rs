//! The rows that a node has, by its role and its files. The header of `status` has the rules.

use time::OffsetDateTime;

use super::UnregisteredCertificate;
use super::files::{AuthorityFiles, LeafFiles};
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::ETCD_MANIFEST;
use crate::node::NodeState;
use crate::node::role::{NodeRole, files_of_control_plane};
use crate::spec::NodeSpec;

/// Returns the authorities with a row.
pub(super) fn authorities(
    state: &NodeState,
    role: NodeRole,
    local_etcd: bool,
    plan: Option<&NodeSpec>,
) -> impl Iterator<Item = Authority> {
    Authority::ALL
        .into_iter()
        .filter(move |name| match (role, name) {
            (NodeRole::Empty, _) => false,
            (NodeRole::Etcd, name) => *name == Authority::EtcdCa,
            (_, Authority::Ca) => true,
            (NodeRole::Worker, _) => false,
            (NodeRole::ControlPlane, Authority::FrontProxyCa) => true,
            (NodeRole::ControlPlane, Authority::EtcdCa) => {
                local_etcd
                    || plan.is_some_and(|plan| plan.bundle(*name).is_some())
                    || state.exists(&state.layout().authority(*name)[0])
            }
        })
}

/// Returns the certificates that may have a row; [`has_row`] decides by their files.
pub(super) fn leaves(
    state: &NodeState,
    role: NodeRole,
    local_etcd: bool,
    plan: Option<&NodeSpec>,
) -> impl Iterator<Item = CertName> {
    let registered = state.layout().registered_on(role == NodeRole::Worker);
    let registered = registered.filter(move |_| role != NodeRole::Empty);
    CertName::ALL
        .into_iter()
        .filter(move |name| match (role, name) {
            (NodeRole::Empty, _) => false,
            // kubeadm init alone needs it.
            (_, name) if *name != CertName::SuperAdminConf && is_planned(plan, *name) => true,
            (_, name) if plan.is_some_and(|plan| plan.omitted.contains(name)) => {
                state.has_files_of(*name)
            }
            (NodeRole::Etcd, CertName::ApiserverEtcdClient) => state.has_files_of(*name),
            (NodeRole::Etcd, name) => name.authority() == Authority::EtcdCa,
            (_, CertName::KubeletConf | CertName::KubeletServing) => true,
            (NodeRole::Worker, _) => false,
            (NodeRole::ControlPlane, CertName::SuperAdminConf | CertName::NodepkiConf) => {
                state.has_files_of(*name)
            }
            (NodeRole::ControlPlane, name) => {
                name.authority() != Authority::EtcdCa || local_etcd || state.has_files_of(*name)
            }
        })
        .chain(registered)
}

/// Returns whether a certificate has a row. The kubelet's serving certificate has one if the plan contains it, or if the
/// cluster's CA issued it: a self-signed one that the kubelet generated is not part of the status.
pub(super) fn has_row(
    leaf: &LeafFiles,
    authorities: &[AuthorityFiles],
    plan: Option<&NodeSpec>,
) -> bool {
    if leaf.name != CertName::KubeletServing || leaf.record.is_some() || is_planned(plan, leaf.name)
    {
        return true;
    }
    let mut bundles = authorities.iter();
    let bundle = bundles.find(|bundle| bundle.name == leaf.name.authority());
    let (Some(bundle), Some(chain)) = (bundle, leaf.chain()) else {
        return false;
    };
    let mut certificates = bundle.anchors().iter();
    certificates.any(|anchor| anchor.subject() == chain.leaf().issuer())
}

fn is_planned(plan: Option<&NodeSpec>, name: CertName) -> bool {
    plan.is_some_and(|plan| plan.cert(name).is_some())
}

/// Returns whether etcd of a control-plane node runs on it, by the plan, or without one by the files.
pub(super) fn runs_etcd(state: &NodeState, plan: Option<&NodeSpec>) -> bool {
    if plan.is_some() {
        return is_planned(plan, CertName::EtcdServer);
    }
    if state.layout().has_external_etcd() {
        return false;
    }
    let [ca, ca_key] = state.layout().authority(Authority::EtcdCa);
    if !ca.parent().is_some_and(|etcd| state.exists(etcd)) {
        return false;
    }
    // Cluster API puts the CA of an external etcd at etcd/ca.crt.
    let only_ca = !state.exists(ca_key)
        && ![
            CertName::EtcdServer,
            CertName::EtcdPeer,
            CertName::EtcdHealthcheckClient,
        ]
        .into_iter()
        .any(|name| state.has_files_of(name));
    let has_etcd_manifest = || state.exists(ETCD_MANIFEST);
    let external = only_ca && state.has_apiserver_manifest() && !has_etcd_manifest();
    !external
}

/// Returns the certificates that nodepki has issued and that the configuration no longer registers, until they expire.
pub(super) fn unregistered(state: &NodeState, now: OffsetDateTime) -> Vec<UnregisteredCertificate> {
    let known: Vec<CertName> = state.layout().certificates().collect();
    // The survey reports a damaged record.
    let issued = state.issued().into_iter().flatten();
    issued
        .filter(|(name, record)| !known.contains(name) && now <= record.not_after)
        .map(|(&name, record)| {
            let files = state.layout().pair(name).into_iter();
            let files = files.filter(|path| state.exists(path));
            UnregisteredCertificate {
                name,
                not_after: record.not_after,
                files: files
                    .map(|path| state.root().on_this_machine(path).display().to_string())
                    .collect(),
            }
        })
        .collect()
}

/// Returns a note on the files of a control plane on a worker.
pub(super) fn unused_on_worker(state: &NodeState) -> Option<String> {
    let found = files_of_control_plane(state);
    (!found.is_empty()).then(|| {
        let here = |path| state.root().on_this_machine(path).display().to_string();
        let found: Vec<String> = found.iter().map(here).collect();
        format!(
            "files of a control plane on a worker: {} (it joined without controlPlane; remove the files if no other program uses them)",
            found.join(", ")
        )
    })
}
