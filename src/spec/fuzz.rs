//! Fuzz targets: key policies, and kubeconfigs of a node.
#![allow(clippy::type_complexity, reason = "a fuzz target ends at a fault")]

use std::path::Path;
use std::time::Duration;

use time::macros::datetime;

use super::assess::read_kubeconfig;
use super::policy::KeyRules;
use super::schedule::Window;
use crate::yaml;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("key-policy", key_policy),
    ("node-kubeconfig", node_kubeconfig),
    ("maintenance-window", maintenance_window),
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

/// A window that is accepted opens again.
fn maintenance_window(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let now = datetime!(2026-06-01 12:00 UTC);
    for window in [
        Window::weekly(text),
        Window::cron(text, Duration::from_secs(3600)),
    ] {
        match window {
            Ok(window) => {
                assert!(window.next(now).is_some(), "{text}");
                let _ = window.to_string();
            }
            Err(error) => assert!(!error.message.is_empty()),
        }
    }
}
