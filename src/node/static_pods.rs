//! Static pods that kubeadm did not write, and the files of the PKI that they mount.
//!
//! kube-vip, for example, mounts admin.conf and reads it only at its start.

use std::path::Path;

use super::NodeState;
use crate::kube::components::{Component, ReplacedFile};
use crate::kube::manifest::{RESTART_ANNOTATION, StaticPod};
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{KUBERNETES_DIR, MANIFESTS_DIR};
use crate::spec::Layout;
use crate::spec::assess::Observed;

/// Returns the static pods that are not components of kubeadm. A manifest that cannot be read is left out: the kubelet does
/// not run it either.
pub fn other_static_pods(state: &NodeState) -> Vec<StaticPod> {
    let is_component = |path: &Path| {
        let mut components = Component::ALL.into_iter();
        components.any(|component| {
            component
                .manifest()
                .is_some_and(|known| path == Path::new(known))
        })
    };
    let listed = state.root().list(MANIFESTS_DIR).ok().flatten();
    let mut names: Vec<_> = listed.unwrap_or_default().into_iter().collect();
    names.sort();
    names
        .iter()
        .filter_map(|name| name.to_str())
        // As in the kubelet (`listConfig` in `pkg/kubelet/config/file.go`).
        .filter(|name| !name.starts_with('.'))
        .filter(|name| !is_component(&Path::new(MANIFESTS_DIR).join(name)))
        .filter_map(|name| match state.manifest(name) {
            Observed::Present(pod) => Some(pod),
            _ => None,
        })
        .collect()
}

/// Returns whether a static pod mounts a file of the PKI, or a directory of the PKI with the file.
pub fn mounts(pod: &StaticPod, layout: &Layout, file: &Path) -> bool {
    let directories = [
        Path::new(KUBERNETES_DIR),
        layout.certificates_dir(),
        layout.kubelet_pki(),
    ];
    pod.mounts(file, &directories)
}

/// Returns a sentence for each static pod that mounts files of the PKI: which files, and what happens after a renewal.
pub fn notes(state: &NodeState) -> Vec<String> {
    let pods = other_static_pods(state).into_iter();
    pods.filter_map(|pod| {
        let files = mounted_files(&pod, state.layout());
        let files: Vec<&str> = files.iter().map(|file| file.as_str()).collect();
        (!files.is_empty()).then(|| {
            let consequence = if pod.is_restarted_for_files() {
                "it is restarted after they are replaced".to_owned()
            } else {
                format!("it is not restarted ({RESTART_ANNOTATION}: never)")
            };
            format!(
                "static pod {} mounts {}: {consequence}",
                pod.name,
                files.join(", ")
            )
        })
    })
    .collect()
}

/// Returns the files of the PKI that a static pod mounts.
pub fn mounted_files(pod: &StaticPod, layout: &Layout) -> Vec<ReplacedFile> {
    let certificates = CertName::ALL
        .into_iter()
        .map(|name| (ReplacedFile::Certificate(name), layout.files(name)));
    let authorities = Authority::ALL.into_iter().map(|name| {
        let [certificate, _] = layout.authority(name);
        (ReplacedFile::Bundle(name), vec![certificate])
    });
    let pair = layout.service_account().to_vec();
    let public = pair.last().cloned().into_iter().collect();
    certificates
        .chain(authorities)
        .chain([
            (ReplacedFile::ServiceAccount, pair),
            (ReplacedFile::ServiceAccountPublic, public),
        ])
        .filter(|(_, paths)| paths.iter().any(|path| mounts(pod, layout, path)))
        .map(|(file, _)| file)
        .collect()
}
