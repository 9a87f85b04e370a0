//! Which kubeconfigs name the files of their certificate and key, so their components read a renewed pair without a
//! restart.
//!
//! Pure: decides from the setting, the manifests and the ClusterConfiguration. Only the kubeconfigs of [`BY_FILE`] are
//! concerned: admin.conf and super-admin.conf are copied by administrators and must be complete in themselves, and
//! kubelet.conf has rules of its own ([`KubeletLayout`](super::KubeletLayout)).
//!
//! A component reads the files in its container, so it must mount their directory at the same path. A mounted file
//! does not help, since the container keeps its inode. kubeadm mounts `certificatesDir` in kube-controller-manager, and
//! nothing but the kubeconfig in kube-scheduler (`getHostPathVolumesForTheControlPlane`).

use std::collections::BTreeSet;
use std::path::Path;

use super::assess::Observed;
use super::layout::Layout;
use crate::kube::components::Component;
use crate::kube::kubeadm::ClusterConfig;
use crate::kube::manifest::StaticPod;
use crate::kube::names::CertName;

/// The kubeconfigs that may name files, and their components.
pub const BY_FILE: [(CertName, Component); 2] = [
    (
        CertName::ControllerManagerConf,
        Component::KubeControllerManager,
    ),
    (CertName::SchedulerConf, Component::KubeScheduler),
];

/// The decision for the kubeconfigs of a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CredentialsByFile {
    /// The kubeconfigs that name files.
    pub names: BTreeSet<CertName>,
    /// For each kubeconfig that contains its certificate and key in spite of the setting, the reason and what to do; and
    /// manifests that the next `kubeadm upgrade` would write without the directory.
    pub warnings: Vec<String>,
}

/// Returns the component that reads a kubeconfig of [`BY_FILE`].
pub fn reader(name: CertName) -> Option<Component> {
    let mut known = BY_FILE.into_iter();
    known
        .find(|(known, _)| *known == name)
        .map(|(_, component)| component)
}

/// Decides which kubeconfigs of a control-plane node name files. `manifest` returns the manifest of a component; without one,
/// kubeadm has yet to write it from the ClusterConfiguration. `is_known` is false if `cluster` contains only defaults.
pub fn by_file(
    layout: &Layout,
    cluster: &ClusterConfig,
    is_known: bool,
    manifest: impl Fn(Component) -> Observed<StaticPod>,
) -> CredentialsByFile {
    let mut decided = CredentialsByFile::default();
    for (name, component) in BY_FILE {
        let Some([certificate, _]) = layout.client_pair(name) else {
            continue;
        };
        let directory = certificate.parent().unwrap_or(&certificate);
        let will_mount = cluster.mounts_directory(component, directory);
        let obstacle = match manifest(component) {
            Observed::Absent | Observed::Empty => {
                (!will_mount).then(|| unmounted(component, directory))
            }
            Observed::Unreadable(why) => Some(format!(
                "the manifest of {component} is unreadable: {why} (correct it)"
            )),
            Observed::Present(pod) => obstacle(&pod, component, directory),
        };
        if let Some(why) = obstacle {
            decided.warnings.push(format!(
                "kubeconfig.credentials is file, but {why}; until then {name} contains its certificate and key"
            ));
            continue;
        }
        decided.names.insert(name);
        if is_known && !will_mount {
            decided.warnings.push(format!(
                "{component} mounts {}, but the ClusterConfiguration does not contain the volume: {component} does not start with the next manifest that kubeadm writes (add it to the ConfigMap kube-system/kubeadm-config: {})",
                directory.display(),
                extra_volumes(component, directory)
            ));
        }
    }
    decided
}

/// Returns why a component cannot read files in a directory of the node.
pub fn obstacle(pod: &StaticPod, component: Component, directory: &Path) -> Option<String> {
    if !pod.mounts_directory(directory) {
        return Some(unmounted(component, directory));
    }
    pod.user().map(|user| {
        format!("{component} runs as user {user}, who cannot read the key (run it as root, or set kubeconfig.credentials: embedded)")
    })
}

fn unmounted(component: Component, directory: &Path) -> String {
    let phase = component.as_str().trim_start_matches("kube-");
    format!(
        "{component} does not mount the directory {} (add it to the ClusterConfiguration, {}, then write the manifest: kubeadm init phase control-plane {phase} --config FILE)",
        directory.display(),
        extra_volumes(component, directory)
    )
}

/// Returns the part of a ClusterConfiguration that mounts a directory in a component.
fn extra_volumes(component: Component, directory: &Path) -> String {
    let field = match component {
        Component::KubeControllerManager => "controllerManager",
        _ => "scheduler",
    };
    format!(
        "{field}: {{extraVolumes: [{{name: client-credentials, hostPath: {0}, mountPath: {0}, readOnly: true, pathType: DirectoryOrCreate}}]}}",
        directory.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::manifest::HostMount;

    const DIRECTORY: &str = "/etc/kubernetes/pki/scheduler";

    fn pod(mount: &str, user: i64) -> Observed<StaticPod> {
        let text = format!(
            "spec: {{containers: [{{volumeMounts: [{{name: a, mountPath: {mount}}}]}}], volumes: [{{name: a, hostPath: {{path: {mount}}}}}], securityContext: {{runAsUser: {user}}}}}"
        );
        Observed::Present(StaticPod::parse("/m.yaml".into(), text.as_bytes()).unwrap())
    }

    fn cluster(has_volume: bool) -> ClusterConfig {
        let mount = HostMount {
            host: DIRECTORY.into(),
            container: DIRECTORY.into(),
        };
        ClusterConfig {
            scheduler_volumes: has_volume.then_some(mount).into_iter().collect(),
            ..ClusterConfig::default()
        }
    }

    /// The controller manager's manifest mounts the certificates directory; returns the decision about scheduler.conf.
    fn decide(has_volume: bool, is_known: bool, manifest: Observed<StaticPod>) -> (bool, String) {
        let manifest = std::cell::RefCell::new(Some(manifest));
        let decided = by_file(
            &Layout::default(),
            &cluster(has_volume),
            is_known,
            |component| match component {
                Component::KubeScheduler => manifest.take().unwrap(),
                _ => pod("/etc/kubernetes/pki", 0),
            },
        );
        assert!(decided.names.contains(&CertName::ControllerManagerConf));
        let is_named = decided.names.contains(&CertName::SchedulerConf);
        (is_named, decided.warnings.join("\n"))
    }

    #[test]
    fn requires_that_component_mounts_directory() {
        let named = (true, String::new());
        // Before kubeadm writes the manifest, the ClusterConfiguration decides; afterwards the manifest.
        assert_eq!(decide(true, true, Observed::Absent), named);
        assert_eq!(decide(true, true, pod(DIRECTORY, 0)), named);
        assert_eq!(decide(false, false, pod(DIRECTORY, 0)), named);
        let refused = (
            false,
            "kubeconfig.credentials is file, but kube-scheduler does not mount the directory /etc/kubernetes/pki/scheduler (add it to the ClusterConfiguration, scheduler: {extraVolumes: [{name: client-credentials, hostPath: /etc/kubernetes/pki/scheduler, mountPath: /etc/kubernetes/pki/scheduler, readOnly: true, pathType: DirectoryOrCreate}]}, then write the manifest: kubeadm init phase control-plane scheduler --config FILE); until then scheduler.conf contains its certificate and key".to_owned(),
        );
        for manifest in [Observed::Absent, Observed::Empty] {
            assert_eq!(decide(false, true, manifest), refused);
        }
        assert_eq!(decide(true, true, pod("/elsewhere", 0)), refused);
    }

    #[test]
    fn warns_of_volume_that_next_manifest_lacks() {
        let (is_named, warning) = decide(false, true, pod(DIRECTORY, 0));
        assert!(is_named);
        assert!(warning.contains("does not contain the volume"), "{warning}");
    }

    #[test]
    fn keeps_credentials_that_component_could_not_read() {
        for (manifest, why) in [
            (pod(DIRECTORY, 65534), "runs as user 65534"),
            (
                Observed::Unreadable("it is not a Pod".to_owned()),
                "is unreadable: it is not a Pod",
            ),
        ] {
            let (is_named, warning) = decide(true, true, manifest);
            assert!(!is_named && warning.contains(why), "{warning}");
        }
    }
}
