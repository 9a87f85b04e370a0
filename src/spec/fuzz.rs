//! Fuzz targets: key policies, and kubeconfigs of a node.
#![allow(clippy::type_complexity, reason = "a fuzz target ends at a fault")]

use std::path::Path;

use super::assess::read_kubeconfig;
use super::policy::KeyRules;
use crate::yaml;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("key-policy", key_policy),
    ("node-kubeconfig", node_kubeconfig),
];

fn key_policy(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(documents) = yaml::parse("fuzz.yaml", text)
    {
        for document in documents {
            match KeyRules::from_document(&document) {
                Ok((_, warnings)) => _ = warnings.to_string(),
                Err(faults) => _ = faults.to_string(),
            }
        }
    }
}

fn node_kubeconfig(bytes: &[u8]) {
    let _ = read_kubeconfig(Path::new("/etc/kubernetes/admin.conf"), Some(bytes));
}
