//! `nodepki demo`: a bootstrap in a directory, with authorities that exist in memory only.
//!
//! Prepares the directory and the inputs; the rest is the ordinary path through [`load`] and [`agent`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use super::options::GlobalOptions;
use super::output::terminal::Terminal;
use super::output::{DocumentKind, print_warnings, text_style};
use super::status::StatusBody;
use super::{now, runtime};
use crate::agent::load::{self, LoadInputs};
use crate::agent::{self, ExitCode, Failure};
use crate::config::{Argument, CommandLineSettings};
use crate::kube::paths::KUBEADM_RUN_DIR;
use crate::node::status;
use crate::signer;
use crate::store::NodeRoot;

/// File in the directory of cloud-init and Cluster API, so the demo's root resembles that of a node.
const KUBEADM_FILE: &str = "kubeadm.yaml";

/// A first control-plane node with stacked etcd. The addresses are reserved for documentation (RFC 5737).
const EXAMPLE_CONFIG: &str = "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration:
  name: cp1
localAPIEndpoint:
  advertiseAddress: 192.0.2.11
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.2
controlPlaneEndpoint: api.demo.example:6443
apiServer:
  certSANs: [api.demo.example]
";

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Directory to use as the node's root
    dir: PathBuf,
    /// kubeadm configuration to use instead of the built-in example
    #[arg(long, value_name = "FILE")]
    kubeadm_config: Vec<Argument>,
}

impl DemoArgs {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        refuse_other_nodes(global)?;
        let (root, inputs) = prepare(&self.dir, self.kubeadm_config)?;
        let loaded = load::load(&root, &inputs, now())?;
        print_warnings(&loaded.warnings);
        let terminal = Terminal::new(global.verbose);
        let report = {
            let bootstrap = agent::bootstrap(&root, &loaded.setup, now, &terminal);
            runtime()?.block_on(terminal.during(bootstrap))
        };
        drop(terminal);
        let report = report?;
        let (state, plan) = (loaded.setup.state(&root), &loaded.setup.plan);
        let role = Some(loaded.node.role.into());
        let status = status::collect(&state, role, Some(plan), now());
        let pki = root.on_this_machine(plan.layout.certificates_dir());
        let text = || {
            format!(
                "{tree}\nNo CA private key was written. To verify:\n  openssl verify -CAfile {pki}/ca.crt {pki}/apiserver.crt\n  nodepki --root {dir} status\n",
                tree = status::tree(&status, text_style()),
                pki = pki.display(),
                dir = self.dir.display()
            )
        };
        let body = StatusBody {
            status: &status,
            signers: &BTreeMap::new(),
        };
        let (kind, code) = (DocumentKind::Status, report.code());
        global.print_body(kind, code, &body, text)
    }
}

/// Refuses options for another node than the one that the demo creates.
fn refuse_other_nodes(global: &GlobalOptions) -> Result<(), Failure> {
    let option = match (&global.config, global.root == Path::new("/")) {
        (Some(_), _) => "--config",
        (None, false) => "--root",
        (None, true) => return Ok(()),
    };
    Err(Failure::usage(format!(
        "demo has its own root and no settings; remove {option}"
    )))
}

/// Creates `dir` as a root that contains a kubeadm configuration: the example, unless `kubeadm_configs` names others.
fn prepare(dir: &Path, kubeadm_configs: Vec<Argument>) -> Result<(NodeRoot, LoadInputs), Failure> {
    std::fs::create_dir_all(dir).map_err(|error| {
        Failure::caused(
            ExitCode::NotPermitted,
            format!("{} cannot be created", dir.display()),
            error,
        )
        .advise("name another directory")
    })?;
    let root = NodeRoot::open(dir)?;
    load::verify_arguments(&root, &kubeadm_configs)?;
    // As every system has it.
    root.create_dir("/etc", 0o755)?;
    let example = Path::new(KUBEADM_RUN_DIR).join(KUBEADM_FILE);
    if kubeadm_configs.is_empty() && root.metadata(&example)?.is_none() {
        root.create_dir(KUBEADM_RUN_DIR, 0o755)?.write_atomic(
            KUBEADM_FILE,
            EXAMPLE_CONFIG.as_bytes(),
            0o644,
        )?;
    }
    let inputs = LoadInputs {
        stand_ins: CommandLineSettings {
            kubeadm_configs,
            signer: Some(signer::Config::Embedded(signer::embedded::Config)),
            node_name: None,
        },
        ..LoadInputs::default()
    };
    Ok((root, inputs))
}
