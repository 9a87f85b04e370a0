//! When each certificate was issued: `issued.json` in the state directory.
//!
//! `not_before` does not tell, since signers date back and kubeadm copies it from the CA. Rotation falls back on it
//! where this record is missing, so a damaged record costs nothing but a note.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::error::Error;
use super::{Root, STATE_DIR};
use crate::kube::names::CertName;

pub(super) const ISSUED: &str = "issued.json";
const VERSION: u64 = 1;

/// What is remembered of one certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// When the answer of the signer was installed.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The serial number, in hexadecimal.
    pub serial: String,
    /// The end of its validity.
    #[serde(with = "time::serde::rfc3339")]
    pub not_after: OffsetDateTime,
    /// SHA-256 of the leaf in DER, in hexadecimal: whether this record is about the certificate on disk.
    pub sha256: String,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u64,
    certificates: BTreeMap<CertName, Issued>,
}

impl Root {
    /// The issue times that are known; empty when nothing was recorded.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a record that cannot be read, and what the system says.
    pub fn issued(&self) -> Result<BTreeMap<CertName, Issued>, Error> {
        let path = format!("{STATE_DIR}/{ISSUED}");
        let Some(found) = self.read(&path)? else {
            return Ok(BTreeMap::new());
        };
        match serde_json::from_slice::<Record>(&found.bytes) {
            Ok(record) if record.version == VERSION => Ok(record.certificates),
            Ok(record) => Err(Error::NewerFormat {
                path: self.on_this_machine(path),
                version: record.version,
                known: VERSION,
            }),
            Err(source) => Err(Error::Damaged {
                path: self.on_this_machine(path),
                why: source.to_string(),
            }),
        }
    }
}

pub(super) fn to_json(certificates: BTreeMap<CertName, Issued>) -> Vec<u8> {
    let record = Record {
        version: VERSION,
        certificates,
    };
    // Times are the only part that could fail, and RFC 3339 covers the years that certificates can hold.
    let mut json = serde_json::to_vec_pretty(&record).unwrap_or_default();
    json.push(b'\n');
    json
}
