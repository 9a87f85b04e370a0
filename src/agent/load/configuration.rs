//! The ClusterConfiguration of a node: whether one is needed, and how it is fetched from the cluster.

use std::path::Path;
use std::time::Duration;

use super::{KnownConfiguration, LoadInputs, cluster, shown};
use crate::agent::join::{self, JoinedCluster};
use crate::agent::{ExitCode, Failure, FailureMessage, shared_certs};
use crate::config::{FromCluster, KubeadmFiles, RoleSetting, Settings};
use crate::kube::kubeadm;
use crate::kube::names::Authority;
use crate::kube::paths::{ADMIN_CONF, KUBELET_CONF};
use crate::store::NodeRoot;

/// Kubeconfigs of a running node that can read its ClusterConfiguration, the least privileged first. The kubelet's client,
/// in the group `system:nodes`, may do so (kubeadm, Role `kubeadm:nodes-kubeadm-config`).
const OWN_KUBECONFIGS: [&str; 2] = [KUBELET_CONF, ADMIN_CONF];
/// Time limit for one read of the ClusterConfiguration.
const CONFIGURATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns whether the ClusterConfiguration must come from the cluster: a joining control-plane node cannot be set up
/// without it.
pub(super) fn asks_cluster(settings: &Settings, documents: &kubeadm::Documents) -> bool {
    documents.joins_control_plane() && takes_from_cluster(settings, documents)
}

/// Returns whether the documents of a joining node are completed with the ClusterConfiguration of its cluster.
pub(super) fn takes_from_cluster(settings: &Settings, documents: &kubeadm::Documents) -> bool {
    documents.join().is_some()
        && settings.role == RoleSetting::Auto
        && !documents.faults().has_errors()
        && match settings.kubeadm.from_cluster {
            FromCluster::IfMissing => documents.cluster().is_none(),
            FromCluster::Merge => true,
            FromCluster::Never => false,
        }
}

/// Completes a joining worker's documents with the first ClusterConfiguration available: the kept one, that of the cluster
/// in the JoinConfiguration, or, because a bootstrap token expires, that of the cluster in kubelet.conf. Returns whether
/// the documents are complete.
pub(super) async fn learn_as_worker(
    root: &NodeRoot,
    inputs: &LoadInputs,
    known: &mut KnownConfiguration,
    cluster: &JoinedCluster,
) -> Result<bool, Failure> {
    // The documents already contain the kept configuration.
    if let Some(kept) = &known.kept
        && has_authority(root, &known.over(kept))?
    {
        return Ok(true);
    }
    let wait = inputs.wait.unwrap_or(known.settings.wait);
    // A node without the CA certificate cannot continue without its cluster, and waits for it.
    let fetched = if !has_authority_of_worker(root, &known.settings, &known.documents)? {
        cluster.configuration(None).await
    } else {
        let time = configuration_timeout(wait);
        let fetch = tokio::time::timeout(time, cluster.configuration(None));
        fetch.await.unwrap_or_else(|_| Err(no_answer(time)))
    };
    let given = match fetched {
        Err(failure) if root.metadata(KUBELET_CONF)?.is_some() => {
            let own = fetch_with(root, &[KUBELET_CONF], wait).await?;
            own.map_err(|refused| Failure {
                messages: [failure.messages, refused.messages].concat(),
                code: failure.code,
            })
        }
        fetched => fetched,
    };
    let is_unavailable =
        |failure: &Failure| matches!(failure.code, ExitCode::Unreachable | ExitCode::NotPermitted);
    if known.kept.is_some() && given.as_ref().is_err_and(is_unavailable) {
        return Ok(true);
    }
    Ok(known.complete_worker(given))
}

/// The absence of a kubeadm configuration: the files that were tried, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoConfiguration(pub(crate) String);

/// Fetches the ClusterConfiguration of a running node with the kubeconfigs on the node.
pub(super) async fn fetch_configuration(
    root: &NodeRoot,
    settings: &Settings,
    wait: Duration,
) -> Result<(String, String), Failure> {
    let mut failure = no_configuration(root, settings, true);
    if settings.kubeadm.from_cluster == FromCluster::Never {
        failure
            .messages
            .push("kubeadm.fromCluster is never, so that the cluster was not asked".into());
        return Err(failure);
    }
    let asked = fetch_with(root, &OWN_KUBECONFIGS, wait).await?;
    asked.map_err(|refused| {
        failure.messages.extend(refused.messages);
        if refused.code == ExitCode::Unreachable {
            failure.code = ExitCode::Unreachable;
        }
        failure
    })
}

/// Reads the ClusterConfiguration with the first of these kubeconfigs that is permitted to; otherwise returns the failure
/// of each.
pub(super) async fn fetch_with(
    root: &NodeRoot,
    kubeconfigs: &[&str],
    wait: Duration,
) -> Result<Result<(String, String), Failure>, Failure> {
    let mut unreachable = false;
    let mut messages: Vec<FailureMessage> = Vec::new();
    let time = configuration_timeout(wait);
    for path in kubeconfigs.iter().copied() {
        let shown = root.node_path(path);
        if root.metadata(path)?.is_none() {
            let missing = "does not exist and cannot be used to query the cluster";
            messages.push(format!("{shown} {missing}").into());
            continue;
        }
        let fetch = async { shared_certs::configuration(&cluster(root, Path::new(path))?).await };
        let fetched = tokio::time::timeout(time, fetch).await;
        match fetched.unwrap_or_else(|_| Err(no_answer(time))) {
            Ok(given) => return Ok(Ok(given)),
            Err(refused) => {
                unreachable |= refused.code == ExitCode::Unreachable;
                let refusals = refused.messages.into_iter();
                messages.extend(refusals.map(|message| message.at(&shown)));
            }
        }
    }
    Ok(Err(Failure {
        code: if unreachable {
            ExitCode::Unreachable
        } else {
            ExitCode::Configuration
        },
        messages,
    }))
}

pub(super) fn configuration_timeout(wait: Duration) -> Duration {
    wait.clamp(Duration::from_secs(1), CONFIGURATION_TIMEOUT)
}

pub(super) fn no_answer(time: Duration) -> Failure {
    Failure::new(
        ExitCode::Unreachable,
        format!("the cluster did not answer within {} s", time.as_secs()),
    )
}

/// Returns the failure without any kubeadm configuration, and the ways to provide one.
pub(super) fn no_configuration(root: &NodeRoot, settings: &Settings, is_running: bool) -> Failure {
    let KubeadmFiles {
        arguments, files, ..
    } = &settings.kubeadm;
    let arguments = arguments.iter().map(|named| shown(root, named));
    let files = files.iter().map(|path| root.on_this_machine(path));
    let tried: Vec<String> = arguments
        .chain(files)
        .map(|path| path.display().to_string())
        .collect();
    let tried = tried.join(", ");
    let kept = root.node_path(join::CLUSTER_CONFIGURATION_COPY);
    let message = if is_running {
        format!(
            "there is no kubeadm configuration: none of {tried} exists, and no earlier run kept one in {kept}; either name the file that kubeadm was given (--kubeadm-config FILE, or kubeadm.files), or put the cluster's ClusterConfiguration into {kept} (kubectl -n kube-system get cm kubeadm-config -o jsonpath='{{.data.ClusterConfiguration}}', wherever that reaches the cluster; docs/runbook.md says how to write it again), or run again where the cluster answers and may be asked (kubeadm.fromCluster: ifMissing)"
        )
    } else {
        format!(
            "there is no kubeadm configuration: none of {tried} exists; name the file that kubeadm is given with --kubeadm-config FILE or under kubeadm.files"
        )
    };
    Failure::misconfigured("").caused_by(NoConfiguration(message))
}

/// Returns whether the node has the CA certificate of the cluster in the documents. After `kubeadm reset` it does not,
/// and the node may join another cluster.
pub(super) fn has_authority(
    root: &NodeRoot,
    documents: &kubeadm::Documents,
) -> Result<bool, Failure> {
    let Some(cluster) = documents.cluster() else {
        return Ok(false);
    };
    let name = format!("{}.crt", Authority::Ca.base_name());
    let found = root.metadata(cluster.certificates_dir.join(name))?;
    Ok(found.is_some_and(|found| found.size > 0))
}

/// Returns whether a joining worker has a CA of its cluster: a certificate at `caCertPath`, or a trusted one in the
/// settings.
fn has_authority_of_worker(
    root: &NodeRoot,
    settings: &Settings,
    documents: &kubeadm::Documents,
) -> Result<bool, Failure> {
    let trusted = settings.authorities.get(&Authority::Ca);
    if trusted.is_some_and(|ca| ca.trust_file.is_some() || !ca.trust_sha256.is_empty()) {
        return Ok(true);
    }
    let Some(join) = documents.join() else {
        return Ok(true);
    };
    let found = root.metadata(&join.ca_cert_path)?;
    Ok(found.is_some_and(|found| found.size > 0))
}
