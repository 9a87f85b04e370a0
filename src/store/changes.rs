//! CA changes under way: `authorities.json` in the state directory.
//!
//! The files on disk decide which CA certificates are trusted; this record says which of them are being replaced, and
//! since when.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::NodeRoot;
use super::error::StoreError;
use super::state_file::StateFile;
use crate::kube::names::Authority;

pub(super) const AUTHORITY_CHANGES: StateFile = StateFile::of_knowledge("authorities.json", 1);

/// A CA certificate that replaces another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityChange {
    /// SHA-256 of the replaced certificates, in hexadecimal: the old CA first, then intermediates below it.
    pub old: Vec<String>,
    /// SHA-256 of the new certificate, in hexadecimal.
    pub new: String,
    /// When the new certificate was added to the trusted ones.
    #[serde(with = "rfc3339")]
    pub staged: OffsetDateTime,
    /// When it became the CA; from then on, certificates signed by the old one are to be reissued.
    #[serde(default, with = "rfc3339::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activated: Option<OffsetDateTime>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct AuthorityChangesFile {
    changes: BTreeMap<Authority, AuthorityChange>,
}

impl NodeRoot {
    /// Returns the CA changes under way; empty if nothing is recorded.
    pub(crate) fn authority_changes(
        &self,
    ) -> Result<BTreeMap<Authority, AuthorityChange>, StoreError> {
        let file: Option<AuthorityChangesFile> = self.record(&AUTHORITY_CHANGES)?;
        Ok(file.map(|file| file.changes).unwrap_or_default())
    }
}

pub(super) fn to_json(changes: BTreeMap<Authority, AuthorityChange>) -> Vec<u8> {
    AUTHORITY_CHANGES.to_json(&AuthorityChangesFile { changes })
}
