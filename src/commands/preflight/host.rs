//! Checks of the machine: host names, and kubeadm's own validation of its configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::report::PreflightCheck;
use crate::agent::ExitCode;
use crate::agent::load::{self, LoadInputs};
use crate::http;
use crate::kube::kubeadm::{Host, NodeConfig};
use crate::signer::exec;
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
    if let Some(why) = below_root(root, &program) {
        return vec![PreflightCheck::skipped("kubeadm", "", why)];
    }
    let words = ["config", "validate", "--config", "/dev/stdin"].map(str::to_owned);
    let command = [&[program.display().to_string()], words.as_slice()].concat();
    let mut checks = Vec::new();
    for (file, text) in sources {
        let judged = exec::judge(&command, text.as_bytes(), KUBEADM_TIMEOUT).await;
        checks.push(match judged {
            Ok(None) => {
                PreflightCheck::passed("kubeadm", &file, "kubeadm config validate accepts it")
            }
            Ok(Some(said)) => PreflightCheck::failed(
                "kubeadm",
                &file,
                ExitCode::Configuration,
                format!("kubeadm config validate refuses it: {}", one_line(&said)),
                Some(format!("correct {file} as kubeadm states")),
            ),
            Err(why) => PreflightCheck::warning("kubeadm", &file, why, None),
        });
    }
    checks
}

/// Returns why a program is not run, if it belongs to the system below the root: `$PATH` may lead there.
fn below_root(root: &NodeRoot, program: &Path) -> Option<String> {
    let real = program.canonicalize().ok()?;
    let is_inside = |path: &Path| !root.is_this_machine() && root.inside(path).is_some();
    (is_inside(program) || is_inside(&real)).then(|| {
        format!(
            "the kubeadm in $PATH, {}, belongs to the system below {}, whose programs are not run",
            program.display(),
            root.path().display()
        )
    })
}

/// Returns the lines of a message joined by semicolons.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

/// Returns the path of an installed program.
fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(name));
    candidates.find(|candidate| candidate.is_file())
}
