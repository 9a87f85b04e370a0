//! What a commit is about to do: in which directories, to which names, and what stands there now.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::commit::Committed;
use super::dir::{Dir, Metadata, single};
use super::error::{Error, Note, Obstacle};
use super::journal::{Kept, identity_of_link};
use super::pending::Slot;
use super::trust::{keeps_owner, lets_others_create};
use super::{READ_LIMIT, Root, sha256};

/// What a commit will do, and what was done of it.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) dirs: Vec<Place>,
    pub(super) seen: Vec<Named>,
    pub(super) groups: Vec<PathBuf>,
    pub(super) changes: Vec<Change>,
    pub(super) kept: Vec<Kept>,
    pub(super) slots: Vec<Slot>,
    pub(super) staging: bool,
    pub(super) steps: Vec<Step>,
    pub(super) outcome: Committed,
}

/// A directory in which something is to be written; `None` while it is missing.
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) dir: Option<Dir>,
    /// Device and inode: two paths may lead to one directory.
    pub(super) id: Option<(u64, u64)>,
    pub(super) immutable: bool,
    /// Whether users other than root and the running one can create files in it.
    pub(super) others_create: bool,
}

/// A name in one of the plan's directories.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) dir: usize,
    pub(super) name: OsString,
}

pub(super) struct Change {
    pub(super) path: PathBuf,
    pub(super) place: Named,
    pub(super) group: usize,
    pub(super) private: bool,
    pub(super) new: New,
    pub(super) found: Option<Target>,
}

/// What shall stand at a path.
pub(super) enum New {
    /// Contents and mode.
    File(Zeroizing<Vec<u8>>, u32),
    /// Where it leads.
    Link(String),
    Nothing,
}

impl New {
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, New::Nothing)
    }
}

/// A rename or removal that is left to be done.
pub(super) struct Step {
    pub(super) place: Named,
    pub(super) group: usize,
    pub(super) removes: bool,
}

/// What stands where something is to be written.
pub(super) struct Target {
    pub(super) path: PathBuf,
    pub(super) metadata: Metadata,
    /// Something is mounted over the name.
    pub(super) mounted: bool,
    /// Nothing for a link.
    pub(super) bytes: Zeroizing<Vec<u8>>,
    /// Where a link leads.
    pub(super) link: Option<String>,
}

impl Plan {
    pub(super) fn place(&mut self, root: &Root, path: &Path) -> Result<Named, Error> {
        let bad = || Error::BadPath {
            path: path.to_owned(),
            what: "the absolute path of a file",
        };
        let parent = path.parent().ok_or_else(bad)?;
        let name = path.file_name().ok_or_else(bad)?.to_owned();
        if let Some(dir) = self.dirs.iter().position(|place| place.path == parent) {
            return Ok(Named { dir, name });
        }
        let (dir, name) = root.parent(path)?;
        let metadata = dir.as_ref().map(Dir::own_metadata).transpose()?;
        let id = metadata.as_ref().map(|found| (found.device, found.inode));
        if let Some(dir) = self
            .dirs
            .iter()
            .position(|place| place.id.is_some() && place.id == id)
        {
            return Ok(Named { dir, name });
        }
        self.dirs.push(Place {
            path: parent.to_owned(),
            dir,
            id,
            immutable: metadata.as_ref().is_some_and(|found| found.immutable),
            others_create: metadata.as_ref().is_some_and(lets_others_create),
        });
        Ok(Named {
            dir: self.dirs.len() - 1,
            name,
        })
    }

    /// The directory, made if it is missing.
    pub(super) fn make(
        &mut self,
        root: &Root,
        index: usize,
        made: &mut Vec<PathBuf>,
    ) -> Result<&Dir, Error> {
        let place = self.dirs.get_mut(index).ok_or_else(|| Error::BadPath {
            path: PathBuf::new(),
            what: "a directory",
        })?;
        if place.dir.is_none() {
            place.dir = Some(root.make_dirs(&place.path, 0o755, made)?);
        }
        place.dir.as_ref().ok_or_else(|| Error::BadPath {
            path: place.path.clone(),
            what: "a directory",
        })
    }

    pub(super) fn examine_removal(
        &mut self,
        path: PathBuf,
        place: Named,
        group: usize,
        wanted: &str,
        target: Option<Target>,
    ) -> Result<(), Error> {
        let Some(target) = target else {
            return Ok(());
        };
        if sha256(&target.bytes) != wanted {
            return Err(Error::obstacle(target.path, Obstacle::Changed));
        }
        target.may_go(&mut self.outcome.notes)?;
        self.changes.push(Change {
            path,
            place,
            group,
            private: true,
            new: New::Nothing,
            found: Some(target),
        });
        Ok(())
    }

    pub(super) fn examine_link(
        &mut self,
        path: PathBuf,
        place: Named,
        to: String,
        over: Option<&str>,
    ) -> Result<(), Error> {
        let beside = path.with_file_name(single(OsStr::new(&to))?);
        let group = self.group(&beside);
        let found = Target::look_at_link(self.dirs.get(place.dir), &place.name)?;
        if let Some(found) = &found {
            let is = found.identity();
            if is == identity_of_link(&to) {
                self.kept.push(Kept {
                    path,
                    group,
                    sha256: is,
                });
                return Ok(());
            }
            if found.link.is_none() && over != Some(is.as_str()) {
                let why = over.map_or(Obstacle::Differs, |_| Obstacle::Changed);
                return Err(Error::obstacle(&found.path, why));
            }
            found.may_go(&mut self.outcome.notes)?;
        }
        self.changes.push(Change {
            path,
            place,
            group,
            private: false,
            new: New::Link(to),
            found,
        });
        Ok(())
    }

    pub(super) fn group(&mut self, path: &Path) -> usize {
        let stem = path.with_extension("");
        if let Some(known) = self.groups.iter().position(|group| *group == stem) {
            return known;
        }
        self.groups.push(stem);
        self.groups.len() - 1
    }
}

impl Target {
    /// Reads what stands at a name, and refuses what no file may replace.
    pub(super) fn look(place: Option<&Place>, name: &OsStr) -> Result<Option<Target>, Error> {
        let Some(dir) = place.and_then(|place| place.dir.as_ref()) else {
            return Ok(None);
        };
        let Some(content) = dir.read(name, READ_LIMIT)? else {
            return Ok(None);
        };
        Ok(Some(Target {
            path: dir.path().join(name),
            metadata: content.metadata,
            mounted: dir.is_mount_point(name)?,
            bytes: content.bytes,
            link: None,
        }))
    }

    /// Reads what stands where a link goes: a link, or a file as [`Target::look`] does.
    pub(super) fn look_at_link(
        place: Option<&Place>,
        name: &OsStr,
    ) -> Result<Option<Target>, Error> {
        let Some(dir) = place.and_then(|place| place.dir.as_ref()) else {
            return Ok(None);
        };
        let Some((metadata, link)) = dir.read_link(name)? else {
            return Target::look(place, name);
        };
        Ok(Some(Target {
            path: dir.path().join(name),
            metadata,
            mounted: dir.is_mount_point(name)?,
            bytes: Zeroizing::default(),
            link: Some(link),
        }))
    }

    /// What the journal knows it by.
    pub(super) fn identity(&self) -> String {
        match &self.link {
            Some(target) => identity_of_link(target),
            None => sha256(&self.bytes),
        }
    }

    /// The metadata that a file inherits that replaces this one, in a directory with the given property; `None` when
    /// the new file is like one in an empty place.
    pub(super) fn heritage(&self, others_create: bool) -> Option<&Metadata> {
        keeps_owner(others_create, &self.metadata).then_some(&self.metadata)
    }

    /// Returns an error if it cannot be renamed over or removed.
    pub(super) fn require_replaceable(&self) -> Result<(), Error> {
        if self.metadata.immutable {
            return Err(Error::obstacle(&self.path, Obstacle::Immutable));
        }
        if self.mounted {
            let why = Obstacle::MountPoint(self.path.clone());
            return Err(Error::obstacle(&self.path, why));
        }
        Ok(())
    }

    /// Refuses to let it be replaced or removed, or tells what is left of it then.
    pub(super) fn may_go(&self, notes: &mut Vec<Note>) -> Result<(), Error> {
        self.require_replaceable()?;
        if self.metadata.links > 1 {
            notes.push(Note::HardLinked {
                path: self.path.clone(),
                links: self.metadata.links,
            });
        }
        Ok(())
    }
}
