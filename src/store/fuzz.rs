//! Fuzz targets: the files below `/var/lib/nodepki`.
#![allow(
    clippy::expect_used,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::audit_log;
use super::authority_rotation::{self, ClusterRotations, RotationSteps};
use super::changes::{AUTHORITY_CHANGES, AuthorityChangesFile};
use super::cluster_policy::{self, ClusterPolicyRecord};
use super::issued::{ISSUED, IssuedFile};
use super::journal::{JOURNAL, Journal};
use super::kubelet_requests::{self, KubeletRequestRecord};
use super::node::{NODE, NodeFile};
use super::pending::{RequestRecord, TICKET};
use super::restarts::{RESTARTS, Unsettled};
use super::service_account_rotation::{self, SealingKeyRecord, ServiceAccountKeys};
use super::staging::StagingRecord;
use super::state_file::StateFile;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("journal", journal),
    ("staging-record", staging_record),
    ("audit-entry", audit_entry),
    ("audit-log", audit_log::fuzz_log),
    ("state-file", state_file),
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

/// The first byte selects the file.
fn state_file(bytes: &[u8]) {
    let Some((first, json)) = bytes.split_first() else {
        return;
    };
    match first % 11 {
        0 => read_again::<RequestRecord>(&TICKET, json),
        1 => read_again::<Unsettled>(&RESTARTS, json),
        2 => read_again::<AuthorityChangesFile>(&AUTHORITY_CHANGES, json),
        3 => read_again::<NodeFile>(&NODE, json),
        4 => read_again::<IssuedFile>(&ISSUED, json),
        5 => read_again::<ClusterPolicyRecord>(&cluster_policy::RECORD, json),
        6 => read_again::<KubeletRequestRecord>(&kubelet_requests::RECORD, json),
        7 => read_again::<ClusterRotations>(&authority_rotation::ROTATIONS, json),
        8 => read_again::<RotationSteps>(&authority_rotation::STEPS, json),
        9 => read_again::<SealingKeyRecord>(&service_account_rotation::SEALING_KEY, json),
        _ => {
            read_again::<ServiceAccountKeys>(&service_account_rotation::SERVICE_ACCOUNT_KEYS, json)
        }
    }
}

/// A record that is read is written and read again as the same one.
fn read_again<T: Serialize + DeserializeOwned>(file: &StateFile, json: &[u8]) {
    let read = |json: &[u8]| file.parse::<T>(json, PathBuf::from(file.name));
    match read(json) {
        Ok(record) => {
            let written = file.to_json(&record);
            let again = read(&written).expect("a record is read again");
            assert!(file.to_json(&again) == written);
        }
        Err(error) => _ = error.to_string(),
    }
}
