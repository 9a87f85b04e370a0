//! Fuzz targets: the formats of Kubernetes.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use zeroize::Zeroizing;

use super::cluster_info::ClusterInfo;
use super::csr_object::{CsrObject, NodeObject};
use super::kubeadm;
use super::kubeadm_certs::{SharedCerts, SharedFile};
use super::kubeconfig::Kubeconfig;
use super::manifest::StaticPod;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("kubeadm-documents", kubeadm_documents),
    ("kubeconfig", kubeconfig),
    ("static-pod", static_pod),
    ("cluster-info", cluster_info),
    ("shared-certificates", shared_certificates),
    ("api-objects", api_objects),
];

fn kubeadm_documents(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let documents = kubeadm::load(&[("fuzz.yaml", text)]);
        let _ = documents.faults().to_string();
        let _ = (documents.role(), documents.cluster_document());
        let _ = (documents.kubelet_cert_dir(), documents.join_document());
    }
}

fn kubeconfig(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(mut config) = Kubeconfig::parse(text) {
        let current = config.current().is_ok();
        let again = Kubeconfig::parse(&config.to_yaml()).expect("a kubeconfig is read again");
        assert_eq!(again.current().is_ok(), current);
        let _ = config.to_join();
        if config.set_cluster("https://192.0.2.1:6443", "new").is_ok() {
            let again = Kubeconfig::parse(&config.to_yaml()).expect("a kubeconfig is read again");
            let current = again.current().map(|current| current.server);
            assert_eq!(
                current.ok().flatten().as_deref(),
                Some("https://192.0.2.1:6443")
            );
        }
    }
}

fn static_pod(bytes: &[u8]) {
    if let Ok(pod) = StaticPod::parse(PathBuf::from("pod.yaml"), bytes) {
        let _ = (pod.flag("advertise-address"), pod.removes_expired_tokens());
        let _ = (pod.advertised(), pod.endpoint(), pod.annotation("a"));
    }
}

fn cluster_info(bytes: &[u8]) {
    if let Ok(object) = serde_json::from_slice(bytes)
        && let Ok(info) = ClusterInfo::read(&object)
    {
        let _ = info.cluster().map_err(|error| error.to_string());
    }
}

/// The first byte selects the file.
fn shared_certificates(bytes: &[u8]) {
    if let Some((first, content)) = bytes.split_first() {
        let file = SharedFile::ALL[usize::from(*first) % SharedFile::ALL.len()];
        let content = Zeroizing::new(content.to_vec());
        let _ = SharedCerts::new(BTreeMap::from([(file, content)]));
    }
}

fn api_objects(bytes: &[u8]) {
    if let Ok(object) = serde_json::from_slice(bytes) {
        let _ = (
            CsrObject::from_json(&object),
            NodeObject::from_json(&object),
        );
    }
}
