//! Fuzz targets: the files below `/var/lib/nodepki`.
#![allow(
    clippy::expect_used,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::path::PathBuf;

use super::audit_log;
use super::journal::{JOURNAL, Journal};
use super::staging::StagingRecord;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("journal", journal),
    ("staging-record", staging_record),
    ("audit-entry", audit_entry),
];

fn journal(bytes: &[u8]) {
    let read = |json: &[u8]| JOURNAL.parse::<Journal>(json, PathBuf::from("journal.json"));
    if let Ok(journal) = read(bytes) {
        let json = journal.to_json().expect("a journal can be written");
        assert!(read(&json).is_ok());
    }
}

fn staging_record(bytes: &[u8]) {
    let _ = StagingRecord::parse(bytes, PathBuf::from("staging.json"));
}

fn audit_entry(bytes: &[u8]) {
    audit_log::fuzz_entry(bytes);
}
