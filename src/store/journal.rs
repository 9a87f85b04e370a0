//! The journal: what a commit has decided, complete enough to finish it from this file alone.

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::dir::{Dir, single, unfinished};
use super::error::Error;
use super::pending::Slot;
use super::{Root, known, sha256};

pub(super) const JOURNAL: &str = "journal.json";
/// An older nodepki would take what it does not know for damage and go on without it, hence a version of its own for a
/// journal with a removal and for one with a link. All others stay readable for it.
const PLAIN: u64 = 1;
const WITH_REMOVAL: u64 = 2;
const WITH_LINK: u64 = 3;
const VERSION: u64 = WITH_LINK;
/// Some hundred files of the size of a bundle; far above any commit.
const LIMIT: u64 = 64 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
pub(super) struct Journal {
    version: u64,
    pub(super) entries: Vec<Entry>,
    /// Files that the commit found as wanted. They decide with the entries of their group.
    pub(super) kept: Vec<Kept>,
    /// Slots that are done once all entries are in place.
    pub(super) slots: Vec<Slot>,
}

/// One file or link to be replaced or removed, in the order in which that is done.
#[derive(Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) group: usize,
    pub(super) mode: u32,
    /// SHA-256 of what stood there, [`identity_of_link`] for a link, `None` for nothing.
    pub(super) old: Option<String>,
    /// Likewise for what shall stand there.
    pub(super) new: Option<String>,
    /// The bytes to `new`. Those of a file that goes are never here: they may be a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<Secret>,
}

impl Entry {
    pub(super) fn removes(&self) -> bool {
        self.new.is_none()
    }

    /// Where the link leads that shall stand there.
    pub(super) fn link(&self) -> Option<&str> {
        self.new.as_deref()?.strip_prefix(LINK)
    }

    fn is_whole(&self) -> bool {
        match self.link() {
            Some(target) => self.content.is_none() && single(OsStr::new(target)).is_ok(),
            None => self.content.as_ref().map(|content| sha256(&content.0)) == self.new,
        }
    }
}

/// What stands in the journal for a link where the digest of a file would stand.
pub(super) fn identity_of_link(target: &str) -> String {
    format!("{LINK}{target}")
}

/// No digest in hex begins with it.
const LINK: &str = "link:";

#[derive(Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) path: PathBuf,
    pub(super) group: usize,
    pub(super) sha256: String,
}

impl Kept {
    pub(super) fn is_link(&self) -> bool {
        self.sha256.starts_with(LINK)
    }
}

/// Contents of a file, base64 in JSON, zeroized in memory.
pub(super) struct Secret(pub(super) Zeroizing<Vec<u8>>);

impl Journal {
    pub(super) fn new(entries: Vec<Entry>, kept: Vec<Kept>, slots: Vec<Slot>) -> Journal {
        let links =
            entries.iter().any(|entry| entry.link().is_some()) || kept.iter().any(Kept::is_link);
        let version = match (links, entries.iter().any(Entry::removes)) {
            (true, _) => WITH_LINK,
            (false, true) => WITH_REMOVAL,
            (false, false) => PLAIN,
        };
        Journal {
            version,
            entries,
            kept,
            slots,
        }
    }

    /// Writes the journal under its unfinished name. It counts once it was renamed.
    pub(super) fn write(&self, state: &Dir) -> Result<File, Error> {
        let contents = self
            .entries
            .iter()
            .filter_map(|entry| entry.content.as_ref());
        let contents: usize = contents.map(|content| content.0.len()).sum();
        // Room enough: growing would leave copies of keys in freed memory.
        let room = contents / 3 * 4 + (self.entries.len() + self.kept.len()) * 1024 + 4096;
        let mut json = Zeroizing::new(Vec::with_capacity(room));
        serde_json::to_writer(&mut *json, self).map_err(|source| Error::Damaged {
            path: state.path().join(JOURNAL),
            why: source.to_string(),
        })?;
        state.create(&unfinished(OsStr::new(JOURNAL)), &json)
    }

    /// Reads the journal of an interrupted run, if there is one. A journal that cannot be used is left untouched.
    pub(super) fn load(root: &Root, state: &Dir) -> Result<Option<Journal>, Error> {
        let Some(found) = state.read(JOURNAL, LIMIT)? else {
            return Ok(None);
        };
        known::check_owner(state, JOURNAL, &found)?;
        let damaged = |why| {
            Err(Error::JournalDamaged {
                path: state.path().join(JOURNAL),
                why,
            })
        };
        match parse(&found.bytes) {
            Ok(journal) => Ok(Some(journal)),
            Err(Fault::Newer(version)) => Err(Error::NewerFormat {
                path: state.path().join(JOURNAL),
                version,
                known: VERSION,
            }),
            Err(Fault::Damaged(why)) => damaged(why),
            Err(Fault::Torn(path)) => damaged(format!(
                "the contents for {} do not fit their digest",
                root.node_path(path)
            )),
        }
    }
}

enum Fault {
    Newer(u64),
    Damaged(String),
    /// The contents for this path are not what was written.
    Torn(PathBuf),
}

fn parse(json: &[u8]) -> Result<Journal, Fault> {
    #[derive(Deserialize)]
    struct Header {
        version: u64,
    }
    let damaged = |error: serde_json::Error| Fault::Damaged(error.to_string());
    let header: Header = serde_json::from_slice(json).map_err(damaged)?;
    if !(PLAIN..=VERSION).contains(&header.version) {
        return Err(Fault::Newer(header.version));
    }
    let journal: Journal = serde_json::from_slice(json).map_err(damaged)?;
    match journal.entries.iter().find(|entry| !entry.is_whole()) {
        None => Ok(journal),
        Some(entry) => Err(Fault::Torn(entry.path.clone())),
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = Zeroizing::new(BASE64_STANDARD.encode(&*self.0));
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Base64 never needs an escape, so this borrows and leaves no copy.
        let text = <&str>::deserialize(deserializer)?;
        BASE64_STANDARD
            .decode(text)
            .map(|bytes| Secret(Zeroizing::new(bytes)))
            .map_err(serde::de::Error::custom)
    }
}
