//! The present object at a path that a commit writes to.

use std::ffi::OsStr;
use std::path::PathBuf;

use zeroize::Zeroizing;

use super::dir::{Dir, Metadata};
use super::error::{PathObstacle, StoreError, StoreNote};
use super::journal::identity_of_link;
use super::sha256;
use super::trust::keeps_owner;

/// An existing file or symbolic link.
pub(super) struct ExistingTarget {
    /// On this machine.
    pub(super) path: PathBuf,
    pub(super) metadata: Metadata,
    /// True if something is mounted over the name.
    pub(super) mounted: bool,
    /// Contents of a file; empty for a link.
    pub(super) bytes: Zeroizing<Vec<u8>>,
    /// Target of a link.
    pub(super) link: Option<String>,
}

impl ExistingTarget {
    /// Reads the file `name`. Refuses anything that is not a regular file of at most `limit` bytes.
    pub(super) fn read(
        dir: &Dir,
        name: &OsStr,
        limit: u64,
    ) -> Result<Option<ExistingTarget>, StoreError> {
        let Some(content) = dir.read(name, limit)? else {
            return Ok(None);
        };
        Ok(Some(ExistingTarget {
            path: dir.path().join(name),
            metadata: content.metadata,
            mounted: dir.is_mount_point(name)?,
            bytes: content.bytes,
            link: None,
        }))
    }

    /// Reads the symbolic link `name`, or a file as [`ExistingTarget::read`] does.
    pub(super) fn read_link(
        dir: &Dir,
        name: &OsStr,
        limit: u64,
    ) -> Result<Option<ExistingTarget>, StoreError> {
        let Some((metadata, link)) = dir.read_link(name)? else {
            return ExistingTarget::read(dir, name, limit);
        };
        Ok(Some(ExistingTarget {
            path: dir.path().join(name),
            metadata,
            mounted: dir.is_mount_point(name)?,
            bytes: Zeroizing::default(),
            link: Some(link),
        }))
    }

    /// Returns what the journal identifies it by: the SHA-256 of a file, the target of a link.
    pub(super) fn identity(&self) -> String {
        match &self.link {
            Some(target) => identity_of_link(target),
            None => sha256(&self.bytes),
        }
    }

    /// Returns the metadata that a replacement inherits; `None` if the replacement is created as for a missing file.
    ///
    /// `others_create` says whether other users can create files in the directory.
    pub(super) fn inherited_metadata(&self, others_create: bool) -> Option<&Metadata> {
        keeps_owner(others_create, &self.metadata).then_some(&self.metadata)
    }

    /// Refuses a target that cannot be renamed over or removed.
    pub(super) fn require_replaceable(&self) -> Result<(), StoreError> {
        if self.metadata.immutable {
            return Err(StoreError::obstacle(&self.path, PathObstacle::Immutable));
        }
        if self.mounted {
            let why = PathObstacle::MountPoint(self.path.clone());
            return Err(StoreError::obstacle(&self.path, why));
        }
        Ok(())
    }

    /// As [`ExistingTarget::require_replaceable`]; notes the hard links that keep the old contents.
    pub(super) fn prepare_replacement(&self, notes: &mut Vec<StoreNote>) -> Result<(), StoreError> {
        self.require_replaceable()?;
        if self.metadata.links > 1 {
            notes.push(StoreNote::HardLinked {
                path: self.path.clone(),
                links: self.metadata.links,
            });
        }
        Ok(())
    }
}
