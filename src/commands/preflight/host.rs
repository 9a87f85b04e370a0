//! Checks of the machine: host names, and kubeadm's own validation of its configuration.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::report::PreflightCheck;
use crate::agent::ExitCode;
use crate::agent::load::{self, LoadInputs};
use crate::http;
use crate::kube::kubeadm::{Host, NodeConfig};
use crate::process::interrupt;
use crate::spec::{CertFiles, NodeSpec};
use crate::store::NodeRoot;

/// Time limit for kubeadm.
const KUBEADM_TIMEOUT: Duration = Duration::from_secs(20);

/// Resolves the host names in the kubeconfigs, and of the cluster that the node joins.
pub(super) async fn names(plan: &NodeSpec, node: &NodeConfig) -> Vec<PreflightCheck> {
    let servers = plan.certs.iter().filter_map(|spec| match &spec.output {
        CertFiles::Kubeconfig { server, .. } => http::Url::parse(server).ok(),
        CertFiles::Pair { .. } => None,
    });
    let mut names: BTreeSet<String> = servers
        .filter_map(|server| Some(server.domain()?.to_owned()))
        .collect();
    if let Some(endpoint) = &node.join_endpoint
        && let Host::Dns(name) = &endpoint.host
    {
        names.insert(name.to_string());
    }
    if names.is_empty() {
        return vec![PreflightCheck::passed(
            "names",
            "",
            "all API servers have addresses",
        )];
    }
    let mut checks = Vec::new();
    for name in names {
        checks.push(match http::addresses(&name).await {
            Ok(found) => {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                PreflightCheck::passed("names", &name, found.join(", "))
            }
            Err(why) => PreflightCheck::warning(
                "names",
                &name,
                format!("the name of the API server cannot be resolved: {why}"),
                Some("add the name to DNS or to /etc/hosts before kubeadm runs".to_owned()),
            ),
        });
    }
    checks
}

/// Has the kubeadm of this machine validate each kubeadm file.
pub(super) async fn kubeadm(root: &NodeRoot, inputs: &LoadInputs) -> Vec<PreflightCheck> {
    // Faults of both are reported with the configuration.
    let settings = load::read_settings(root, inputs).map(|(settings, _)| settings);
    let sources = settings.and_then(|settings| load::existing_sources(root, &settings));
    let Ok(sources) = sources else {
        return Vec::new();
    };
    let Some(program) = in_path("kubeadm") else {
        let why = "kubeadm is not installed here";
        return vec![PreflightCheck::skipped("kubeadm", "", why)];
    };
    let mut checks = Vec::new();
    for (file, text) in sources {
        let why = "kubeadm did not answer in time".to_owned();
        let validated = tokio::time::timeout(KUBEADM_TIMEOUT, validate(&program, &text)).await;
        checks.push(match validated.unwrap_or(Err(why)) {
            Ok(None) => {
                PreflightCheck::passed("kubeadm", &file, "kubeadm config validate accepts it")
            }
            Ok(Some(said)) => PreflightCheck::failed(
                "kubeadm",
                &file,
                ExitCode::Configuration,
                format!("kubeadm config validate refuses it: {said}"),
                Some(format!("correct {file} as kubeadm states")),
            ),
            Err(why) => PreflightCheck::warning("kubeadm", &file, why, None),
        });
    }
    checks
}

/// Runs `kubeadm config validate`. Returns what kubeadm refuses, or `None`.
async fn validate(program: &PathBuf, text: &str) -> Result<Option<String>, String> {
    let unusable = |error: std::io::Error| format!("{} cannot be run: {error}", program.display());
    let mut command = Command::new(program);
    command
        .args(["config", "validate", "--config", "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = interrupt::spawning(|| command.spawn()).map_err(unusable)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input fails, and says why.
        let _ = stdin.write_all(text.as_bytes()).await;
    }
    let group = interrupt::group_of(&child);
    let output = child.wait_with_output().await.map_err(unusable);
    if let Some(group) = group {
        interrupt::group_ended(group);
    }
    let output = output?;
    if output.status.success() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    Ok(Some(crate::signer::printable(&lines.join("; "), 2000)))
}

/// Returns the path of an installed program.
fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(name));
    candidates.find(|candidate| candidate.is_file())
}
