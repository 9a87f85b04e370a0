//! The journal: the decision of a commit, complete enough to finish the commit from this file alone.

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::dir::{Dir, single, temporary_name};
use super::error::{Damage, PathObstacle, StoreError};
use super::key_backup::KeyBackup;
use super::pending::Slot;
use super::state_file::{self, StateFile, Versioned};
use super::{NodeRoot, sha256};

pub(super) const JOURNAL: StateFile = StateFile::of_work("journal.json", VERSION_WITH_BACKUP);
/// An older nodepki would take an entry of an unknown kind for damage and continue without the journal, and would remove
/// CA keys without looking at their backup. A journal with a removal, one with a link and one with a backup therefore have
/// versions of their own; all others stay readable for it.
const VERSION_PLAIN: u64 = 1;
const VERSION_WITH_REMOVAL: u64 = 2;
const VERSION_WITH_LINK: u64 = 3;
const VERSION_WITH_BACKUP: u64 = 4;
/// Size limit in bytes: some hundred files of the size of a bundle, far above any commit.
pub(super) const MAX_JOURNAL_SIZE: u64 = 64 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
pub(super) struct Journal {
    /// In the order in which they are completed.
    pub(super) entries: Vec<JournalEntry>,
    /// Files that the commit found in the desired state. They decide together with the entries of their group.
    pub(super) kept: Vec<KeptFile>,
    /// Slots that are complete once all entries are.
    pub(super) slots: Vec<Slot>,
    /// Backup of the files that are removed. Without it, recovery keeps those that still exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) backup: Option<KeyBackup>,
}

/// One file or link to be replaced or removed.
#[derive(Serialize, Deserialize)]
pub(super) struct JournalEntry {
    /// On the node.
    pub(super) path: PathBuf,
    pub(super) group: usize,
    pub(super) mode: u32,
    /// Group of the new file; `None` for that of the former file, or of the process. Versions that do not know the field
    /// restore a file that only its owner can read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) owner_group: Option<u32>,
    /// SHA-256 of the former file, [`identity_of_link`] for a link, `None` for a missing file.
    pub(super) old: Option<String>,
    /// Likewise for the new file.
    pub(super) new: Option<String>,
    /// Contents of the new file. Those of a removed file are never recorded: they may be a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<SecretBytes>,
}

impl JournalEntry {
    /// Returns true if the file is removed, not replaced.
    pub(super) fn removes(&self) -> bool {
        self.new.is_none()
    }

    /// Returns the target of the new link.
    pub(super) fn link(&self) -> Option<&str> {
        self.new.as_deref()?.strip_prefix(LINK_PREFIX)
    }

    /// Returns true if the contents have the recorded digest, and a link stays in its directory.
    fn is_consistent(&self) -> bool {
        match self.link() {
            Some(target) => self.content.is_none() && single(OsStr::new(target)).is_ok(),
            None => self.content.as_ref().map(|content| sha256(&content.0)) == self.new,
        }
    }
}

/// Returns the text that identifies a link in the journal, in place of the digest of a file.
pub(super) fn identity_of_link(target: &str) -> String {
    format!("{LINK_PREFIX}{target}")
}

/// No hexadecimal digest begins with it.
const LINK_PREFIX: &str = "link:";

#[derive(Serialize, Deserialize)]
pub(super) struct KeptFile {
    /// On the node.
    pub(super) path: PathBuf,
    pub(super) group: usize,
    /// Or [`identity_of_link`].
    pub(super) sha256: String,
}

impl KeptFile {
    pub(super) fn is_link(&self) -> bool {
        self.sha256.starts_with(LINK_PREFIX)
    }
}

/// Contents of a file, base64 in JSON, zeroized in memory.
pub(super) struct SecretBytes(pub(super) Zeroizing<Vec<u8>>);

impl Journal {
    pub(super) fn new(
        entries: Vec<JournalEntry>,
        kept: Vec<KeptFile>,
        slots: Vec<Slot>,
        backup: Option<KeyBackup>,
    ) -> Journal {
        Journal {
            entries,
            kept,
            slots,
            backup,
        }
    }

    /// Returns the lowest version that can express the entries.
    fn version(&self) -> u64 {
        let links = self.entries.iter().any(|entry| entry.link().is_some())
            || self.kept.iter().any(KeptFile::is_link);
        match (links, self.entries.iter().any(JournalEntry::removes)) {
            _ if self.backup.is_some() => VERSION_WITH_BACKUP,
            (true, _) => VERSION_WITH_LINK,
            (false, true) => VERSION_WITH_REMOVAL,
            (false, false) => VERSION_PLAIN,
        }
    }

    /// Writes the journal under its temporary name. It takes effect once it is renamed.
    pub(super) fn write(&self, state: &Dir) -> Result<File, StoreError> {
        let json = self.to_json().map_err(|source| StoreError::Damaged {
            path: state.path().join(JOURNAL.name),
            source: Damage::Json(source.into()),
        })?;
        require_size(state, JOURNAL.name, &json, MAX_JOURNAL_SIZE)?;
        state.create(&temporary_name(OsStr::new(JOURNAL.name)), &json)
    }

    pub(super) fn to_json(&self) -> Result<Zeroizing<Vec<u8>>, serde_json::Error> {
        let contents = self
            .entries
            .iter()
            .filter_map(|entry| entry.content.as_ref());
        let contents: usize = contents.map(|content| content.0.len()).sum();
        // Allocated at once: a growing buffer would leave copies of keys in freed memory.
        let capacity = contents / 3 * 4 + (self.entries.len() + self.kept.len()) * 1024 + 4096;
        let mut json = Zeroizing::new(Vec::with_capacity(capacity));
        let versioned = Versioned {
            version: self.version(),
            record: self,
        };
        serde_json::to_writer(&mut *json, &versioned)?;
        Ok(json)
    }

    /// Reads the journal of an interrupted run, if there is one. A journal that cannot be used is left untouched.
    pub(super) fn load(root: &NodeRoot, state: &Dir) -> Result<Option<Journal>, StoreError> {
        let Some(found) = state.read(JOURNAL.name, MAX_JOURNAL_SIZE)? else {
            return Ok(None);
        };
        state_file::require_own(state, JOURNAL.name, &found)?;
        Journal::parse(root, &found.bytes, state.path().join(JOURNAL.name)).map(Some)
    }

    pub(super) fn parse(
        root: &NodeRoot,
        json: &[u8],
        path: PathBuf,
    ) -> Result<Journal, StoreError> {
        let journal: Journal = match JOURNAL.parse(json, path.clone()) {
            Err(StoreError::Damaged { path, source }) => {
                return Err(StoreError::JournalDamaged { path, source });
            }
            parsed => parsed?,
        };
        let mut entries = journal.entries.iter();
        match entries.find(|entry| !entry.is_consistent()) {
            None => Ok(journal),
            Some(entry) => Err(StoreError::JournalDamaged {
                path,
                source: Damage::WrongDigest(root.node_path(entry.path.clone())),
            }),
        }
    }
}

/// Refuses to write a state file that would be too large to be read.
pub(super) fn require_size(
    state: &Dir,
    name: &str,
    json: &[u8],
    limit: u64,
) -> Result<(), StoreError> {
    let size = json.len() as u64;
    if size <= limit {
        return Ok(());
    }
    let too_large = PathObstacle::TooLarge { size, limit };
    Err(StoreError::obstacle(state.path().join(name), too_large))
}

impl Serialize for SecretBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = Zeroizing::new(BASE64_STANDARD.encode(&*self.0));
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for SecretBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Base64 never needs an escape, so the text is borrowed and leaves no copy.
        let text = <&str>::deserialize(deserializer)?;
        BASE64_STANDARD
            .decode(text)
            .map(|bytes| SecretBytes(Zeroizing::new(bytes)))
            .map_err(serde::de::Error::custom)
    }
}
