//! CA changes under way: `authorities.json` in the state directory.
//!
//! The files on disk decide which CA certificates are trusted; this record says which of them are being replaced, and
//! since when.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::error::StoreError;
use super::state_file::StateFile;
use super::{NodeRoot, STATE_DIR};
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
    #[serde(with = "time::serde::rfc3339")]
    pub staged: OffsetDateTime,
    /// When it became the CA; from then on, certificates signed by the old one are to be reissued.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub activated: Option<OffsetDateTime>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct AuthorityChangesFile {
    changes: BTreeMap<Authority, AuthorityChange>,
}

pub(super) fn path() -> PathBuf {
    Path::new(STATE_DIR).join(AUTHORITY_CHANGES.name)
}

impl NodeRoot {
    /// Returns the CA changes under way; empty if nothing is recorded.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::NewerFormat`] for a record that cannot be read, and errors of the system.
    pub(crate) fn authority_changes(
        &self,
    ) -> Result<BTreeMap<Authority, AuthorityChange>, StoreError> {
        let Some(found) = self.read(path())? else {
            return Ok(BTreeMap::new());
        };
        let file: AuthorityChangesFile =
            AUTHORITY_CHANGES.parse(&found.bytes, self.on_this_machine(path()))?;
        Ok(file.changes)
    }
}

pub(super) fn to_json(changes: BTreeMap<Authority, AuthorityChange>) -> Vec<u8> {
    AUTHORITY_CHANGES.to_json(&AuthorityChangesFile { changes })
}
