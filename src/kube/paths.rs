//! The fixed paths of a node: files and directories that kubeadm, the kubelet and Cluster API choose themselves.
//!
//! `certificatesDir` and the kubelet's `--cert-dir` are configurable, so paths below them come from `spec::Layout`.

use std::path::{Component, Path, PathBuf};

/// Returns an absolute path without `.`, `..` and repeated separators, as Go's `filepath.Clean`, by which kubeadm and the
/// kubelet name the files in a configured directory: symbolic links are not considered.
pub fn cleaned(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => _ = cleaned.pop(),
            component => cleaned.push(component),
        }
    }
    cleaned
}

/// kubeadm's directory (`KubernetesDir`), with the kubeconfigs.
pub const KUBERNETES_DIR: &str = "/etc/kubernetes";
/// kubeadm's default `certificatesDir`.
pub const CERTIFICATES_DIR: &str = "/etc/kubernetes/pki";
/// kubeadm's default `caCertPath` of a JoinConfiguration.
pub const CA_CERTIFICATE: &str = "/etc/kubernetes/pki/ca.crt";
/// Kubeconfig of the cluster's administrators.
pub const ADMIN_CONF: &str = "/etc/kubernetes/admin.conf";
/// Kubeconfig that the API server's authorization does not restrict.
pub const SUPER_ADMIN_CONF: &str = "/etc/kubernetes/super-admin.conf";
/// The kubelet's kubeconfig.
pub const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
/// Kubeconfig with the bootstrap token of a joining kubelet.
pub const BOOTSTRAP_KUBELET_CONF: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

/// Directory of the static pods.
pub const MANIFESTS_DIR: &str = "/etc/kubernetes/manifests";
/// Manifest of etcd.
pub const ETCD_MANIFEST: &str = "/etc/kubernetes/manifests/etcd.yaml";
/// Manifest of kube-apiserver.
pub const APISERVER_MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
/// The data of an etcd member, below kubeadm's default `dataDir`; `kubeadm reset` removes it.
pub const ETCD_MEMBER: &str = "/var/lib/etcd/member";
/// Manifest of kube-controller-manager.
pub const CONTROLLER_MANAGER_MANIFEST: &str =
    "/etc/kubernetes/manifests/kube-controller-manager.yaml";
/// Manifest of kube-scheduler.
pub const SCHEDULER_MANIFEST: &str = "/etc/kubernetes/manifests/kube-scheduler.yaml";

/// The kubelet's directory (`--root-dir`).
pub const KUBELET_DIR: &str = "/var/lib/kubelet";
/// The kubelet's configuration, which `kubeadm init` and `kubeadm join` write.
pub const KUBELET_CONFIGURATION: &str = "/var/lib/kubelet/config.yaml";
/// Flags that kubeadm gives the kubelet (`writeKubeletFlags`), such as `--hostname-override` and `--cert-dir`.
pub const KUBELET_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";
/// Directory of the kubelet's certificates, unless it is started with `--cert-dir`.
pub const KUBELET_PKI_DIR: &str = "/var/lib/kubelet/pki";
/// File name of the link to the kubelet's newest client certificate, in that directory.
pub const KUBELET_CURRENT_LINK: &str = "kubelet-client-current.pem";
/// File name of the link to the serving certificate that the kubelet requested (`serverTLSBootstrap`), in that directory.
pub const KUBELET_SERVING_LINK: &str = "kubelet-server-current.pem";
/// File below kubeadm's certificatesDir with the authorities of etcd's clients, on nodes of Cluster API with an etcd client
/// CA.
pub const ETCD_CLIENTS_FILE: &str = "etcd/clients.crt";

/// Directory in which cloud-init and Cluster API write kubeadm's configuration.
pub const KUBEADM_RUN_DIR: &str = "/run/kubeadm";
/// Configuration for `kubeadm init` and `kubeadm join`, as cloud-init and Cluster API write it.
pub const KUBEADM_FILE: &str = "/run/kubeadm/kubeadm.yaml";
/// Configuration for `kubeadm join`, as Cluster API writes it.
pub const KUBEADM_JOIN_FILE: &str = "/run/kubeadm/kubeadm-join-config.yaml";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn files_are_in_their_directories() {
        for (dir, files) in [
            (
                KUBERNETES_DIR,
                &[
                    CERTIFICATES_DIR,
                    ADMIN_CONF,
                    SUPER_ADMIN_CONF,
                    KUBELET_CONF,
                    BOOTSTRAP_KUBELET_CONF,
                    MANIFESTS_DIR,
                ][..],
            ),
            (CERTIFICATES_DIR, &[CA_CERTIFICATE]),
            (
                MANIFESTS_DIR,
                &[
                    ETCD_MANIFEST,
                    APISERVER_MANIFEST,
                    CONTROLLER_MANAGER_MANIFEST,
                    SCHEDULER_MANIFEST,
                ],
            ),
            (
                KUBELET_DIR,
                &[KUBELET_CONFIGURATION, KUBELET_FLAGS, KUBELET_PKI_DIR],
            ),
            (KUBEADM_RUN_DIR, &[KUBEADM_FILE, KUBEADM_JOIN_FILE]),
        ] {
            for file in files {
                assert_eq!(Path::new(file).parent(), Some(Path::new(dir)), "{file}");
            }
        }
    }
}
