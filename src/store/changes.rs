//! CA changes that are under way: `authorities.json` in the state directory.
//!
//! What is trusted says the disk; this remembers which of the certificates there are on their way out, and since when.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::error::Error;
use super::{Mode, Root, STATE_DIR};
use crate::kube::names::Authority;
use crate::store::Commit;

const CHANGES: &str = "authorities.json";
const VERSION: u64 = 1;

/// One CA certificate is taking the place of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityChange {
    /// SHA-256 of the certificates that go, in hexadecimal: the old CA first, then intermediates below it.
    pub old: Vec<String>,
    /// SHA-256 of the certificate that comes.
    pub new: String,
    /// When it came to be trusted.
    #[serde(with = "time::serde::rfc3339")]
    pub staged: OffsetDateTime,
    /// When it came to be the CA; from then on what the old one has signed is to be issued anew.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub activated: Option<OffsetDateTime>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u64,
    changes: BTreeMap<Authority, AuthorityChange>,
}

fn path() -> PathBuf {
    Path::new(STATE_DIR).join(CHANGES)
}

impl Root {
    /// The CA changes that are under way; empty when nothing was recorded.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a record that cannot be read, and what the system says.
    pub fn authority_changes(&self) -> Result<BTreeMap<Authority, AuthorityChange>, Error> {
        let Some(found) = self.read(path())? else {
            return Ok(BTreeMap::new());
        };
        match serde_json::from_slice::<Record>(&found.bytes) {
            Ok(record) if record.version == VERSION => Ok(record.changes),
            Ok(record) => Err(Error::NewerFormat {
                path: self.on_this_machine(path()),
                version: record.version,
                known: VERSION,
            }),
            Err(source) => Err(Error::Damaged {
                path: self.on_this_machine(path()),
                why: source.to_string(),
            }),
        }
    }
}

impl Commit {
    /// All CA changes that are under way, once this commit is done.
    pub fn authority_changes(
        &mut self,
        changes: BTreeMap<Authority, AuthorityChange>,
    ) -> &mut Self {
        let record = Record {
            version: VERSION,
            changes,
        };
        // Times are the only part that could fail, and RFC 3339 covers the years that certificates can hold.
        let mut json = serde_json::to_vec_pretty(&record).unwrap_or_default();
        json.push(b'\n');
        self.file(path(), json, Mode::Other(0o600))
    }
}
