//! Fuzz targets: the manifests that are annotated, and the key policy of a cluster.
#![allow(clippy::type_complexity, reason = "a fuzz target ends at a fault")]

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("pod-annotation", super::reload::fuzz_annotation),
    ("cluster-policy", super::cluster_policy::fuzz_document),
];
