//! From the files of a node to its status: select the rows, read the files of each, judge them.
//!
//! | file | task |
//! | --- | --- |
//! | `rows` | which rows the node has |
//! | `files` | reads the files of a row; the only part that touches the disk |
//! | `authority`, `leaf`, `service_account` | judge the files of a row; pure |
//! | `fault` | one fault or remark, with its text and code |
//! | `findings` | the faults and remarks of a row |
//!
//! A leaf is judged with the bundle of its authority, and an authority with the leaves that it should have issued, so all
//! files are read before any is judged. Nothing here fails: a fault becomes part of a row.

use std::collections::BTreeMap;
use std::path::Path;

use time::OffsetDateTime;

use super::fault::RowRemark;
use super::files::{LeafFiles, RowReader};
use super::phase::{CertProgress, Effect, PendingPhase};
use super::{
    CertStatus, NodeStatus, PendingStatus, UnregisteredCertificate, authority, leaf, rows,
    service_account,
};
use crate::kube::components::ReplacedFile;
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{ETCD_MANIFEST, KUBELET_CONFIGURATION, KUBERNETES_DIR};
use crate::node::NodeState;
use crate::node::role::{NodeRole, role_of};
use crate::node::static_pods::{mounted_files, other_static_pods};
use crate::spec::NodeSpec;
use crate::store::{RequestRecord, Slot};

/// Returns the status of every file of kubeadm's PKI. `described` is the node's role by its kubeadm configuration, and `plan`
/// its desired state, if that is known. Never fails.
pub fn collect(
    state: &NodeState,
    described: Option<NodeRole>,
    plan: Option<&NodeSpec>,
    now: OffsetDateTime,
) -> NodeStatus {
    let root = state.root();
    let mut notes = Vec::new();
    let pending = state.tickets().unwrap_or_else(|error| {
        notes.push(format!("pending requests are unknown: {error}"));
        &[]
    });
    let role = role_of(state, pending, described);
    // The files may show another role.
    let plan = plan.filter(|plan| NodeRole::from(*plan) == role);
    let local_etcd = match role {
        NodeRole::ControlPlane => rows::runs_etcd(state, plan),
        NodeRole::Etcd => true,
        NodeRole::Worker | NodeRole::Empty => false,
    };
    let reader = RowReader::new(state);
    match role {
        NodeRole::Empty => notes.push(format!(
            "there is no certificate, key or kubeconfig in {} or {}",
            reader.here(state.layout().certificates_dir()),
            reader.here(Path::new(KUBERNETES_DIR))
        )),
        NodeRole::Worker => notes.extend(rows::unused_on_worker(state)),
        NodeRole::ControlPlane | NodeRole::Etcd => {}
    }

    let unregistered = rows::unregistered(state, now);
    notes.extend(unregistered.iter().map(UnregisteredCertificate::sentence));

    let authorities: Vec<_> = rows::authorities(state, role, local_etcd, plan)
        .map(|name| reader.authority(name))
        .collect();
    let leaves: Vec<LeafFiles> = rows::leaves(state, role, local_etcd, plan)
        .map(|name| reader.leaf(name))
        .filter(|leaf| rows::has_row(leaf, &authorities, plan))
        .collect();
    // The run reports a record that cannot be read.
    let unsettled = root.unsettled().unwrap_or_default();
    let runs = match role {
        NodeRole::ControlPlane => state.has_apiserver_manifest(),
        NodeRole::Etcd => state.exists(ETCD_MANIFEST),
        NodeRole::Worker | NodeRole::Empty => state.exists(KUBELET_CONFIGURATION),
    };
    let requests: BTreeMap<CertName, PendingPhase> = pending
        .iter()
        .filter_map(|(slot, ticket)| match slot {
            Slot::Certificate(name) => Some((*name, ticket.as_ref().map(|ticket| ticket.phase))),
            Slot::ServiceAccount => None,
        })
        .collect();
    let bundle = |name: Authority| authorities.iter().find(|found| found.name == name);
    let server = leaf::local_server(&leaves);
    let mut replaced = authority::replaced(&authorities, &leaves);
    let mut status = NodeStatus {
        at: now,
        root: root.path().display().to_string(),
        certificates_dir: state.layout().certificates_dir().display().to_string(),
        role,
        local_etcd,
        certificates: leaves
            .iter()
            .map(|leaf| {
                let server = server.filter(|_| leaf.name == CertName::Apiserver);
                let progress = CertProgress {
                    request: requests.get(&leaf.name).copied(),
                    effect: Effect::of(leaf.name, &unsettled, runs),
                };
                let description = state.layout().description(leaf.name);
                CertStatus {
                    description: description.map(str::to_owned),
                    ..leaf::judge(leaf, bundle(leaf.name.authority()), server, progress, now)
                }
            })
            .collect(),
        authorities: authorities
            .iter()
            .map(|found| authority::judge(found, replaced.remove(&found.name), &leaves, now))
            .collect(),
        sign_of_service: state.sign_of_service(),
        service_account: (role == NodeRole::ControlPlane)
            .then(|| service_account::judge(reader.service_account(), &leaves)),
        pending: pending.iter().cloned().map(pending_status).collect(),
        unregistered,
        notes,
    };
    if matches!(role, NodeRole::ControlPlane | NodeRole::Etcd) {
        name_mounting_pods(&mut status, state);
    }
    status
}

/// Adds a remark to each row whose files a static pod mounts that kubeadm did not write.
fn name_mounting_pods(status: &mut NodeStatus, state: &NodeState) {
    for pod in other_static_pods(state) {
        for file in mounted_files(&pod, state.layout()) {
            let findings = match file {
                ReplacedFile::Certificate(name) => {
                    let mut rows = status.certificates.iter_mut();
                    rows.find(|row| row.name == name)
                        .map(|row| &mut row.findings)
                }
                ReplacedFile::Bundle(name) => {
                    let mut rows = status.authorities.iter_mut();
                    rows.find(|row| row.name == name)
                        .map(|row| &mut row.findings)
                }
                _ => None,
            };
            if let Some(findings) = findings {
                findings.remark(RowRemark::MountedBy {
                    pod: pod.name.clone(),
                    is_restarted: pod.is_restarted_for_files(),
                });
            }
        }
    }
}

fn pending_status((slot, ticket): (Slot, Option<RequestRecord>)) -> PendingStatus {
    let name = slot.to_string();
    match ticket {
        Some(ticket) => PendingStatus {
            name,
            signer_config: Some(ticket.signer_config),
            signer: Some(ticket.signer),
            phase: Some(ticket.phase),
            since: ticket.first_submitted,
            last_error: ticket.last_error,
        },
        None => PendingStatus {
            name,
            signer: None,
            signer_config: None,
            phase: None,
            since: None,
            last_error: None,
        },
    }
}
