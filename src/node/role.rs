//! Whether a node is a control-plane node, a worker or an etcd member.

use std::path::PathBuf;

use serde::Serialize;

use super::NodeState;
use crate::kube::kubeadm;
use crate::kube::names::{Authority, CertName};
use crate::spec::NodeSpec;
use crate::store::{RequestRecord, Slot};

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeRole {
    /// A control-plane node.
    ControlPlane,
    /// A node without a control plane.
    Worker,
    /// A member of an external etcd, without a control plane.
    Etcd,
    /// No file of kubeadm's PKI exists, and no request is pending.
    Empty,
}

impl From<kubeadm::KubeadmRole> for NodeRole {
    fn from(described: kubeadm::KubeadmRole) -> NodeRole {
        match described {
            kubeadm::KubeadmRole::Worker => NodeRole::Worker,
            kubeadm::KubeadmRole::Etcd => NodeRole::Etcd,
            kubeadm::KubeadmRole::Init | kubeadm::KubeadmRole::Join => NodeRole::ControlPlane,
        }
    }
}

/// The role that a plan is for: only a control-plane node has a service-account pair, and of the others only an etcd member
/// has etcd's certificates.
impl From<&NodeSpec> for NodeRole {
    fn from(plan: &NodeSpec) -> NodeRole {
        match &plan.service_account {
            Some(_) => NodeRole::ControlPlane,
            None if plan.cert(CertName::EtcdServer).is_some() => NodeRole::Etcd,
            None => NodeRole::Worker,
        }
    }
}

/// Returns the role of a node. The first of these rules that applies gives it:
///
/// 1. No file of kubeadm's and no pending request: empty.
/// 2. A manifest of kube-apiserver: a control-plane node.
/// 3. The configuration of the node, as `described`: the setting `role`, or else a JoinConfiguration without `controlPlane`
///    makes it a worker, one with it and an InitConfiguration a control-plane node. Without one, the role that the last run
///    of nodepki recorded.
/// 4. The certificates of an etcd member, and no other file of a control plane: an etcd member.
/// 5. A file that only a control-plane node has, or a pending request for one: a control-plane node. Otherwise a worker.
pub fn role_of(
    state: &NodeState,
    pending: &[(Slot, Option<RequestRecord>)],
    described: Option<NodeRole>,
) -> NodeRole {
    if state.has_apiserver_manifest() {
        return NodeRole::ControlPlane;
    }
    let waits_for_control_plane = pending
        .iter()
        .any(|(slot, _)| !matches!(slot, Slot::Certificate(name) if name.is_of_every_node()));
    let of_control_plane = waits_for_control_plane || !files_of_control_plane(state).is_empty();
    let [ca, _] = state.layout().authority(Authority::Ca);
    let is_empty = !of_control_plane
        && pending.is_empty()
        && !state.has_files_of(CertName::KubeletConf)
        && !state.exists(ca)
        && !state.exists(state.layout().kubelet_link());
    let recorded = || {
        let kept = state.saved_node().ok().flatten()?;
        Some(kept.node.role.into())
    };
    match (is_empty, described.or_else(recorded)) {
        (true, _) => NodeRole::Empty,
        (false, Some(described)) => described,
        (false, None) if is_etcd_member(state, pending) => NodeRole::Etcd,
        (false, None) if of_control_plane => NodeRole::ControlPlane,
        (false, None) => NodeRole::Worker,
    }
}

/// Returns whether the node has certificates of an etcd member, and neither another certificate of a control plane nor a
/// kubeconfig of the kubelet. In kubeadm's guide to an external etcd, the first member also has the client certificate for
/// kube-apiserver and the CA key, to hand them over.
fn is_etcd_member(state: &NodeState, pending: &[(Slot, Option<RequestRecord>)]) -> bool {
    let is_etcd = |name: CertName| name.authority() == Authority::EtcdCa;
    let mut others = CertName::KUBEADM.into_iter().filter(|name| !is_etcd(*name));
    let requests_others = pending
        .iter()
        .any(|(slot, _)| !matches!(slot, Slot::Certificate(name) if is_etcd(*name)));
    state.has_files_of(CertName::EtcdServer)
        && state.has_files_of(CertName::EtcdPeer)
        && !requests_others
        && !others.any(|name| state.has_files_of(name))
}

/// Returns the existing files that only a control-plane node has. CA certificates are not among them: a network plug-in
/// may read etcd with its CA, and user data may put the certificates of all authorities on every node.
pub fn files_of_control_plane(state: &NodeState) -> Vec<PathBuf> {
    let layout = state.layout();
    let leaves = CertName::KUBEADM
        .into_iter()
        .filter(|name| !name.is_of_kubelet())
        .flat_map(|name| layout.files(name));
    let ca_keys = Authority::ALL.map(|name| {
        let [_, key] = layout.authority(name);
        key
    });
    let files = leaves.chain(ca_keys).chain(layout.service_account());
    files.filter(|path| state.exists(path)).collect()
}
