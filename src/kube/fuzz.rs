//! Fuzz targets: the formats of Kubernetes.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use zeroize::Zeroizing;

use super::cluster_info::ClusterInfo;
use super::csr_object::{CsrObject, NodeObject};
use super::jwks;
use super::kubeadm::{self, HostPort, IpNet, KubernetesVersion, NodeName, San};
use super::kubeadm_certs::{self, CertificateKey, SharedCerts, SharedFile};
use super::kubeconfig::Kubeconfig;
use super::manifest::StaticPod;
use crate::x509::PublicKey;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("kubeadm-documents", kubeadm_documents),
    ("kubeconfig", kubeconfig),
    ("static-pod", static_pod),
    ("cluster-info", cluster_info),
    ("shared-certificates", shared_certificates),
    ("api-objects", api_objects),
    ("encrypted-certificate", encrypted_certificate),
    ("key-set", key_set),
    ("kubeadm-values", kubeadm_values),
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
        if config.set_cluster("https://192.0.2.1:6443", "new").is_ok() && current {
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

/// A sealed file opens as it was, and other bytes never open. The first byte selects the file.
fn encrypted_certificate(bytes: &[u8]) {
    let Some((first, content)) = bytes.split_first() else {
        return;
    };
    let file = SharedFile::ALL[usize::from(*first) % SharedFile::ALL.len()];
    let key: CertificateKey = "0123456789abcdef".repeat(4).parse().expect("a key");
    let needed = BTreeSet::from([file]);
    let received = BTreeMap::from([(file.as_str().to_owned(), content.to_vec())]);
    assert!(kubeadm_certs::open(&received, &key, &needed).is_err());
    let plain = BTreeMap::from([(file, Zeroizing::new(content.to_vec()))]);
    if let Ok(shared) = SharedCerts::new(plain) {
        let sealed = kubeadm_certs::seal(&shared, &needed, &key).expect("a file can be sealed");
        let (opened, _) = kubeadm_certs::open(&sealed, &key, &needed).expect("it opens again");
        assert_eq!(
            opened.contents(file).map(|bytes| bytes.as_slice()),
            Some(content)
        );
    }
}

fn key_set(bytes: &[u8]) {
    const KEY: &str = include_str!("../../tests/fuzz/material/leaf.pub");
    if let Ok(document) = serde_json::from_slice(bytes) {
        let key = PublicKey::from_pem(KEY.as_bytes()).expect("the key can be read");
        let (found, ids) = (
            jwks::contains_key(&document, &key),
            jwks::key_ids(&document),
        );
        assert!(ids.is_ok() || found.is_err());
    }
}

/// Values of kubeadm documents keep their meaning when they are written and read again.
fn kubeadm_values(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok((san, _)) = San::parse(text) {
        let (again, _) = San::parse(&san.to_string()).expect("a name is read again");
        assert_eq!(again, san);
    }
    if let Ok((endpoint, _)) = HostPort::parse(text) {
        let (again, _) =
            HostPort::parse(&endpoint.authority(6443)).expect("an endpoint is read again");
        assert_eq!(again.host, endpoint.host);
    }
    if let Ok((network, _)) = IpNet::parse(text) {
        let (again, _) = IpNet::parse(&network.to_string()).expect("a network is read again");
        assert_eq!(again, network);
        assert!(
            network
                .nth(1)
                .is_none_or(|address| network.contains(address))
        );
    }
    if let Ok(version) = text.parse::<KubernetesVersion>() {
        let again = version.to_string().parse::<KubernetesVersion>();
        assert_eq!(again.ok(), Some(version));
    }
    if let Ok(name) = text.parse::<NodeName>() {
        assert_eq!(name.as_str().parse::<NodeName>().ok(), Some(name));
    }
}
