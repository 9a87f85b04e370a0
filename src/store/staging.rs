//! Staged files: the new files of a commit, complete, but still under a temporary name next to their targets.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid};
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use serde::{Deserialize, Serialize};

use super::READ_LIMIT;
use super::calls::{fchmod, fchown, openat, uninterrupted};
use super::dir::{Dir, Metadata, READ, errno_from, stat_open, temporary_name};
use super::error::{StoreError, StoreNote};
use super::state_file::{self, StateFile};

pub(super) const STAGING: StateFile = StateFile::of_work("staging.json", 1);
/// Size of a buffer for the usual names and values of extended attributes.
const USUAL_XATTR_SIZE: usize = 512;
/// The largest size that Linux allows (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const MAX_XATTR_SIZE: usize = 65536;

/// The directories that contain staged files.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct StagingRecord {
    pub(super) directories: Vec<PathBuf>,
}

impl StagingRecord {
    /// Reads the record of an interrupted run.
    ///
    /// A record that a power cut truncated counts as empty: some staged files then stay until their targets change next.
    pub(super) fn load(state: &Dir) -> Result<Option<StagingRecord>, StoreError> {
        let Some(found) = state.read(STAGING.name, READ_LIMIT)? else {
            return Ok(None);
        };
        state_file::require_own(state, STAGING.name, &found)?;
        match StagingRecord::parse(&found.bytes, state.path().join(STAGING.name)) {
            Err(StoreError::Damaged { .. }) => Ok(Some(StagingRecord::default())),
            parsed => parsed.map(Some),
        }
    }

    pub(super) fn parse(json: &[u8], path: PathBuf) -> Result<StagingRecord, StoreError> {
        STAGING.parse(json, path)
    }

    /// Writes the record. The caller syncs the file.
    pub(super) fn write(&self, state: &Dir) -> Result<File, StoreError> {
        let json = STAGING.to_compact_json(self);
        let name = OsStr::new(STAGING.name);
        state.unlink(name)?;
        state.create(name, &json)
    }
}

/// Returns the staged file of an interrupted run if it is complete, else a new one. If the disk is full, it already has
/// room for the complete one.
pub(super) fn stage_again(dir: &Dir, name: &OsStr, bytes: &[u8]) -> Result<File, StoreError> {
    let temporary = temporary_name(name);
    let is_complete = dir
        .read(&temporary, bytes.len() as u64)
        .is_ok_and(|found| found.is_some_and(|found| found.bytes.as_slice() == bytes));
    if !is_complete {
        return dir.create(&temporary, bytes);
    }
    let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(dir, temporary.as_os_str(), flags, Mode::empty())
        .map(File::from)
        .map_err(|errno| dir.error("open", &temporary, errno))
}

/// Gives a staged file the mode, and the owner, group and extended attributes of the file `found` that it replaces. A
/// `group` takes precedence over that of `found`.
///
/// The mode is set last and explicitly: chown(2) clears bits, an ACL among the attributes sets some, and the umask must
/// not apply.
pub(super) fn inherit(
    dir: &Dir,
    name: &OsStr,
    file: &File,
    found: Option<&Metadata>,
    (mode, group): (u32, Option<u32>),
) -> Result<(), StoreError> {
    if let Some(found) = found {
        let staged = stat_open(file).map_err(|errno| dir.error("look at", name, errno))?;
        if (staged.uid, staged.gid) != (found.uid, found.gid) {
            let (owner, group) = (Uid::from_raw(found.uid), Gid::from_raw(found.gid));
            fchown(file, Some(owner), Some(group))
                .map_err(|errno| dir.error("keep the owner of", name, errno))?;
        }
        let old = openat(dir, name, READ | OFlag::O_NOFOLLOW, Mode::empty())
            .map_err(|errno| dir.error("read", name, errno))?;
        copy_attributes(&old, file).map_err(|errno| {
            dir.error(
                "keep the extended attributes (SELinux label) of",
                name,
                errno,
            )
        })?;
    }
    if let Some(group) = group {
        fchown(file, None, Some(Gid::from_raw(group)))
            .map_err(|errno| dir.error("set the group of", name, errno))?;
    }
    fchmod(file, Mode::from_bits_truncate(mode))
        .map_err(|errno| dir.error("set the mode of", name, errno))
}

fn copy_attributes(old: impl AsFd, new: impl AsFd) -> Result<(), Errno> {
    let names = match read_sized(|buffer| flistxattr(&old, buffer)) {
        Ok(names) => names,
        Err(Errno::EOPNOTSUPP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        // The first two are signatures of the old contents; the third gives a program more rights than its user has.
        if matches!(
            name,
            b"security.ima" | b"security.evm" | b"security.capability"
        ) {
            continue;
        }
        let value = match read_sized(|buffer| fgetxattr(&old, name, buffer)) {
            Ok(value) => value,
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => continue,
            Err(errno) => return Err(errno),
        };
        // A new file often inherits the right label from its directory, and setting a label needs a permission.
        if read_sized(|buffer| fgetxattr(&new, name, buffer)).is_ok_and(|found| found == value) {
            continue;
        }
        let set = || fsetxattr(&new, name, &value, XattrFlags::empty()).map_err(errno_from);
        match uninterrupted(set) {
            Ok(()) | Err(Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Calls `read` with a buffer of the usual size, then with the largest one.
fn read_sized(
    read: impl Fn(&mut [u8]) -> Result<usize, rustix::io::Errno>,
) -> Result<Vec<u8>, Errno> {
    for size in [USUAL_XATTR_SIZE, MAX_XATTR_SIZE] {
        let mut value = vec![0; size];
        match read(&mut value).map_err(errno_from) {
            Ok(length) => {
                value.truncate(length);
                return Ok(value);
            }
            Err(Errno::ERANGE) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::ERANGE)
}

/// Removes a file and returns true if none is left. On a read-only file system unlink(2) fails for a missing file too.
pub(super) fn is_gone(dir: &Dir, name: &OsStr) -> bool {
    matches!(dir.metadata(name), Ok(None)) || dir.unlink(name).is_ok()
}

/// Gives a file that is about to be replaced a second name in the same directory.
pub(super) fn keep_copy(
    dir: &Dir,
    name: &OsStr,
    path: &Path,
    now: time::OffsetDateTime,
) -> Result<StoreNote, StoreError> {
    let mut stem = name.to_owned();
    stem.push(".nodepki-");
    let to = super::free_name(dir, &stem, now)?;
    dir.link(name, &to)?;
    Ok(StoreNote::SetAside {
        path: path.to_owned(),
        to: dir.path().join(to),
        why: "it was changed while half of its pair had been replaced already".to_owned(),
    })
}
