//! When each certificate was issued: `issued.json` in the state directory.
//!
//! `not_before` is not reliable, since signers backdate it and kubeadm copies it from the CA. Rotation falls back on it
//! if this record is missing, so a damaged record costs nothing but a note.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::NodeRoot;
use super::error::StoreError;
use super::state_file::StateFile;
use crate::kube::names::CertName;

pub(super) const ISSUED: StateFile = StateFile::of_knowledge("issued.json", 1);

/// The record of one certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedRecord {
    /// When the certificate was installed.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The serial number, in hexadecimal.
    pub serial: String,
    /// The end of its validity.
    #[serde(with = "time::serde::rfc3339")]
    pub not_after: OffsetDateTime,
    /// SHA-256 of the leaf in DER, in hexadecimal: shows whether this record is about the certificate on disk.
    pub sha256: String,
}

#[derive(Serialize, Deserialize)]
pub(super) struct IssuedFile {
    certificates: BTreeMap<CertName, IssuedRecord>,
}

impl NodeRoot {
    /// Returns the known issue times; empty if nothing is recorded.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::NewerFormat`] for a record that cannot be read, and errors of the system.
    pub fn issued(&self) -> Result<BTreeMap<CertName, IssuedRecord>, StoreError> {
        let file: Option<IssuedFile> = self.record(&ISSUED)?;
        Ok(file.map(|file| file.certificates).unwrap_or_default())
    }
}

pub(super) fn to_json(certificates: BTreeMap<CertName, IssuedRecord>) -> Vec<u8> {
    ISSUED.to_json(&IssuedFile { certificates })
}
