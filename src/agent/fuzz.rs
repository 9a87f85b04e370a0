//! Fuzz targets: the manifests that are annotated, and the events of watches.
#![allow(clippy::type_complexity, reason = "a fuzz target ends at a fault")]

use crate::cluster::watch;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("pod-annotation", super::reload::fuzz_annotation),
    ("watch-event", watch::fuzz_event),
];
