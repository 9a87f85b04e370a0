//! Formats of Kubernetes and kubeadm: names, configuration documents, kubeconfigs, static-pod manifests, cluster-info,
//! the Secret `kubeadm-certs`, JWKS. Pure: the modules parse bytes into types.

pub mod cluster_info;
pub mod components;
pub mod csr_object;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod jwks;
pub mod kubeadm;
pub mod kubeadm_certs;
pub mod kubeconfig;
pub mod manifest;
pub mod names;
pub mod paths;
pub mod pod_request;
pub(crate) mod rbac;
