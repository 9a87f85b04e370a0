//! The main job end to end in a directory, on authorities that exist only in memory: what `nodepki demo` does.
//!
//! Prepares the directory and says with which inputs the ordinary way through [`load`](crate::agent::load) and
//! [`agent`](crate::agent) goes on; nothing about the job itself is special here.

use std::path::Path;

use crate::agent::load::Inputs;
use crate::agent::{ExitCode, Failure};
use crate::config::{Argument, StandIns};
use crate::signer;
use crate::store::Root;

/// Where cloud-init and Cluster API put the file, so that the demo's root looks like a node's.
const KUBEADM_DIR: &str = "/run/kubeadm";
const KUBEADM_FILE: &str = "kubeadm.yaml";

/// A first control-plane node with stacked etcd; the addresses are for documentation (RFC 5737).
const EXAMPLE: &str = "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration:
  name: cp1
localAPIEndpoint:
  advertiseAddress: 192.0.2.11
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.2
controlPlaneEndpoint: api.demo.example:6443
apiServer:
  certSANs: [api.demo.example]
";

/// Makes `dir` into a root with a kubeadm configuration in it, the example unless `kubeadm_configs` names others.
///
/// # Errors
/// When the directory cannot be made or written.
pub(super) fn prepare(
    dir: &Path,
    kubeadm_configs: Vec<Argument>,
) -> Result<(Root, Inputs), Failure> {
    std::fs::create_dir_all(dir).map_err(|error| {
        Failure::caused(
            ExitCode::NotPermitted,
            format!(
                "{} cannot be made: {error}; name another directory",
                dir.display()
            ),
            &error,
        )
    })?;
    let root = Root::open(dir)?;
    let example = Path::new(KUBEADM_DIR).join(KUBEADM_FILE);
    if kubeadm_configs.is_empty() && root.metadata(&example)?.is_none() {
        root.create_dir(KUBEADM_DIR, 0o755)?.write_atomic(
            KUBEADM_FILE,
            EXAMPLE.as_bytes(),
            0o644,
        )?;
    }
    let inputs = Inputs {
        stand_ins: StandIns {
            kubeadm_configs,
            signer: Some(signer::Config::Embedded(signer::embedded::Config)),
            node_name: None,
        },
        ..Inputs::default()
    };
    Ok((root, inputs))
}
