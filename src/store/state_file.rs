//! The format of state files: a JSON object with the field `version`.
//!
//! A file without the field has version 1. A file of a version newer than the known one is refused and left untouched,
//! since this nodepki would lose what it does not know. `tests/fixtures/state` contains the files of each release;
//! `store::tests` reads all of them.
//!
//! A stored value must not depend on the name of a Rust type or variant: variants have an explicit
//! `#[serde(rename = "…")]` or an `as_str`.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::dir::{Dir, FileContent};
use super::error::{Damage, StoreError};
use super::{NodeRoot, READ_LIMIT, STATE_DIR};

/// Version of a file without the field `version`.
const DEFAULT_VERSION: u64 = 1;
/// Advice for a file that its work removes: the journal, pending requests, restarts.
const FINISH_WITH_NEWER: &str =
    "run the newer nodepki once: it finishes the work that the file records and removes it";
/// Advice for a file that can be absent at any time.
const REPLACE_NEWER: &str = "use the newer nodepki, or move the file away and run again";

/// A kind of state file.
pub(crate) struct StateFile {
    pub(crate) name: &'static str,
    /// The newest version that can be read.
    pub(super) version: u64,
    newer: &'static str,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default = "default_version")]
    version: u64,
}

const fn default_version() -> u64 {
    DEFAULT_VERSION
}

/// A record together with its format version, as it is written.
#[derive(Serialize)]
pub(super) struct Versioned<'a, T> {
    pub(super) version: u64,
    #[serde(flatten)]
    pub(super) record: &'a T,
}

impl StateFile {
    /// Returns a file that records unfinished work: the run that finishes the work removes it.
    pub(super) const fn of_work(name: &'static str, version: u64) -> StateFile {
        let newer = FINISH_WITH_NEWER;
        StateFile {
            name,
            version,
            newer,
        }
    }

    /// Returns a file with permanent records. A run without it works, with less information.
    pub(crate) const fn of_knowledge(name: &'static str, version: u64) -> StateFile {
        let newer = REPLACE_NEWER;
        StateFile {
            name,
            version,
            newer,
        }
    }

    /// Returns the path on the node.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new(STATE_DIR).join(self.name)
    }

    /// Parses the contents of the file; `path` is for the message.
    ///
    /// # Errors
    /// [`StoreError::NewerFormat`] and [`StoreError::Damaged`].
    pub(crate) fn parse<T: DeserializeOwned>(
        &self,
        json: &[u8],
        path: PathBuf,
    ) -> Result<T, StoreError> {
        let damaged = |path, source: serde_json::Error| StoreError::Damaged {
            path,
            source: Damage::Json(source.into()),
        };
        let header: Header = match serde_json::from_slice(json) {
            Ok(header) => header,
            Err(source) => return Err(damaged(path, source)),
        };
        if !(1..=self.version).contains(&header.version) {
            return Err(StoreError::NewerFormat {
                path,
                version: header.version,
                known: self.version,
                fix: self.newer,
            });
        }
        serde_json::from_slice(json).map_err(|source| damaged(path, source))
    }

    /// Returns the contents for the file, indented and with a final newline.
    ///
    /// Timestamps are the only part that could fail, and RFC 3339 covers the years that certificates can contain.
    pub(super) fn to_json(&self, record: &impl Serialize) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(&self.versioned(record)).unwrap_or_default();
        json.push(b'\n');
        json
    }

    /// As [`StateFile::to_compact_json`], for private keys: a growing buffer would leave copies in freed memory.
    pub(super) fn to_secret_json(
        &self,
        record: &impl Serialize,
        capacity: usize,
    ) -> Zeroizing<Vec<u8>> {
        let mut json = Zeroizing::new(Vec::with_capacity(capacity));
        // As for `to_json`, nothing can fail.
        let _ = serde_json::to_writer(&mut *json, &self.versioned(record));
        json
    }

    /// As [`StateFile::to_json`], on one line without a newline.
    pub(crate) fn to_compact_json(&self, record: &impl Serialize) -> Vec<u8> {
        serde_json::to_vec(&self.versioned(record)).unwrap_or_default()
    }

    fn versioned<'a, T>(&self, record: &'a T) -> Versioned<'a, T> {
        Versioned {
            version: self.version,
            record,
        }
    }
}

impl NodeRoot {
    /// Returns the record in a state file; `None` if there is no file.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::NewerFormat`] for a record that cannot be read, and errors of the system.
    pub(crate) fn record<T: DeserializeOwned>(
        &self,
        file: &StateFile,
    ) -> Result<Option<T>, StoreError> {
        self.record_at_most(file, READ_LIMIT)
    }

    /// As [`NodeRoot::record`], for a file with another limit in bytes.
    pub(super) fn record_at_most<T: DeserializeOwned>(
        &self,
        file: &StateFile,
        limit: u64,
    ) -> Result<Option<T>, StoreError> {
        let path = file.path();
        let found = self.read_at_most(&path, limit)?;
        found
            .map(|found| file.parse(&found.bytes, self.on_this_machine(path)))
            .transpose()
    }

    /// Writes a state file durably, without the lock of a run.
    pub(super) fn keep_record(&self, file: &StateFile, json: &[u8]) -> Result<(), StoreError> {
        let dir = self.create_dir(STATE_DIR, 0o700)?;
        dir.write_unlocked(file.name, json, 0o600).map(drop)
    }
}

/// Refuses a state file that another user owns or can write to.
pub(super) fn require_own(state: &Dir, name: &str, found: &FileContent) -> Result<(), StoreError> {
    let expected = nix::unistd::geteuid().as_raw();
    let (owner, mode) = (found.metadata.uid, found.metadata.mode);
    if owner == expected && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(StoreError::Implausible {
        path: state.path().join(name),
        why: format!("it belongs to user {owner} and has mode {mode:04o}"),
    })
}
