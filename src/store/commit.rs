//! Commit. The protocol is told in the header of `store.rs`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode as Bits, fchmod};
use nix::unistd::{Gid, Uid, fchown};
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use zeroize::Zeroizing;

use super::dir::{Dir, Metadata, READ, errno_from, unfinished};
use super::error::{Error, Note, Obstacle};
use super::issued::{self, ISSUED, Issued};
use super::journal::{Entry, JOURNAL, Journal, Kept, Secret, identity_of_link};
use super::known::PLAIN_BITS;
use super::pending::{self, Slot};
use super::recover::{STAGING, Staging};
use super::restarts::{self, Amendment, RESTARTS, Unsettled};
use super::target::{Change, New, Place, Plan, Step, Target};
use super::{STATE_DIR, Store, failpoint, sha256, sync};
use crate::kube::names::CertName;
use crate::process::machine;

/// Permission bits of a file that is written.
///
/// They are for a new file; a file that is replaced keeps its own, and its owner, group and extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 0600: keys and kubeconfigs. One that everybody could read is tightened.
    Private,
    /// 0644: certificates.
    Public,
    /// Something else.
    Other(u32),
}

impl Mode {
    const fn bits(self) -> u32 {
        match self {
            Mode::Private => 0o600,
            Mode::Public => 0o644,
            Mode::Other(bits) => bits,
        }
    }

    /// The bits for a file that replaces `found`. No certificate or key is executable or set-user-ID.
    fn replacing(self, found: &Metadata) -> u32 {
        self.kept_bits(found) & PLAIN_BITS
    }

    fn kept_bits(self, found: &Metadata) -> u32 {
        if found.size == 0 {
            // Made by the kubelet for a hostPath of type FileOrCreate: nobody chose its mode.
            return self.bits();
        }
        match (self, found.mode & 0o007, found.gid) {
            (Mode::Private, 1.., 0) => found.mode & 0o700,
            // A group of its own is how RootlessControlPlane lets a static pod read the key.
            (Mode::Private, 1.., _) => found.mode & 0o770,
            _ => found.mode,
        }
    }
}

/// Files that change together or not at all.
#[derive(Default)]
pub struct Commit {
    files: Vec<Wanted>,
    issued: BTreeMap<CertName, Issued>,
    slots: Vec<Slot>,
    pub(super) amendment: Amendment,
}

struct Wanted {
    path: PathBuf,
    end: End,
}

/// What shall become of a file.
enum End {
    Written {
        bytes: Zeroizing<Vec<u8>>,
        mode: Mode,
        overwrite: bool,
    },
    /// Gone, if it has this SHA-256.
    Removed { sha256: String },
    /// A symbolic link to a name beside it; in place of a file only if that has this SHA-256.
    Linked {
        target: String,
        over: Option<String>,
    },
}

impl Commit {
    /// A commit that changes nothing yet.
    pub fn new() -> Commit {
        Commit::default()
    }

    /// True when it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.issued.is_empty()
            && self.slots.is_empty()
            && self.amendment.is_empty()
    }

    /// A file that shall have these contents. Of two for the same path the last one counts.
    pub fn file(
        &mut self,
        path: impl Into<PathBuf>,
        bytes: impl Into<Zeroizing<Vec<u8>>>,
        mode: Mode,
    ) -> &mut Self {
        self.add(path.into(), bytes.into(), mode, true)
    }

    /// A file that may be made but not changed: the commit is refused if one with other contents exists.
    pub fn file_if_absent(
        &mut self,
        path: impl Into<PathBuf>,
        bytes: impl Into<Zeroizing<Vec<u8>>>,
        mode: Mode,
    ) -> &mut Self {
        self.add(path.into(), bytes.into(), mode, false)
    }

    /// A file that shall be gone. The commit is refused if it holds anything but `contents` by then; where there is none,
    /// nothing is to be done.
    ///
    /// The name goes and with it, in time, the blocks. Writing over them first would only look thorough: journalling and
    /// copy-on-write file systems and flash write elsewhere. What must not be found again needs an encrypted disk.
    pub fn remove(&mut self, path: impl Into<PathBuf>, contents: &[u8]) -> &mut Self {
        let sha256 = sha256(contents);
        self.want(path.into(), End::Removed { sha256 })
    }

    /// A symbolic link that shall lead to `target`, a name in its own directory. It takes the place of another link,
    /// wherever that leads; the commit is refused where anything else stands.
    ///
    /// Link and target are one group: neither is put in place without the other.
    pub fn link(&mut self, path: impl Into<PathBuf>, target: impl Into<String>) -> &mut Self {
        let (target, over) = (target.into(), None);
        self.want(path.into(), End::Linked { target, over })
    }

    /// As [`Commit::link`], in place of a file. The commit is refused if that holds anything but `contents` by then.
    pub fn link_over(
        &mut self,
        path: impl Into<PathBuf>,
        target: impl Into<String>,
        contents: &[u8],
    ) -> &mut Self {
        let (target, over) = (target.into(), Some(sha256(contents)));
        self.want(path.into(), End::Linked { target, over })
    }

    /// When a certificate of this commit was issued.
    pub fn issued(&mut self, name: CertName, issued: Issued) -> &mut Self {
        self.issued.insert(name, issued);
        self
    }

    /// A pending request that this commit answers; its key, CSR and ticket are removed once all files are in place.
    pub fn completes(&mut self, slot: Slot) -> &mut Self {
        self.slots.push(slot);
        self
    }

    fn add(
        &mut self,
        path: PathBuf,
        bytes: Zeroizing<Vec<u8>>,
        mode: Mode,
        overwrite: bool,
    ) -> &mut Self {
        let end = End::Written {
            bytes,
            mode,
            overwrite,
        };
        self.want(path, end)
    }

    fn want(&mut self, path: PathBuf, end: End) -> &mut Self {
        self.files.retain(|wanted| wanted.path != path);
        self.files.push(Wanted { path, end });
        self
    }
}

/// What a commit did. Paths are those on the node.
#[derive(Debug, Default)]
pub struct Committed {
    /// Files that were made or replaced.
    pub written: Vec<PathBuf>,
    /// Files that were removed.
    pub removed: Vec<PathBuf>,
    /// Files that were as wanted already and were not touched.
    pub unchanged: Vec<PathBuf>,
    /// What is worth telling.
    pub notes: Vec<Note>,
}

impl Store {
    /// Puts all files in place, or none.
    ///
    /// # Errors
    /// [`Error::NotCommitted`]: everything is as it was. [`Error::Unfinished`]: the next start finishes; this store
    /// commits nothing more, drop it and call [`Locked::recover`](super::Locked::recover) again.
    pub fn commit(&mut self, commit: Commit) -> Result<Committed, Error> {
        if self.unfinished {
            return Err(Error::RecoverFirst {
                path: self.state.path().join(JOURNAL),
            });
        }
        let mut made = Vec::new();
        let mut plan = Plan::default();
        let journal = match self
            .examine(commit, &mut plan)
            .and_then(|()| self.decide(&mut plan, &mut made))
        {
            Ok(journal) => journal,
            // A rename that reports an error may have taken place all the same (NFS): then the commit is decided.
            Err(error) if !matches!(self.state.metadata(JOURNAL), Ok(None)) => {
                self.unfinished = true;
                return Err(Error::Unfinished(Box::new(error)));
            }
            Err(error) => {
                self.withdraw(&plan, &made);
                return Err(Error::NotCommitted(Box::new(error)));
            }
        };
        // A new journal would take the place of this one.
        self.unfinished = true;
        self.finish(&plan.dirs, &plan.steps, &journal)
            .and_then(|()| self.close())
            .map_err(|error| Error::Unfinished(Box::new(error)))?;
        self.unfinished = false;
        Ok(plan.outcome)
    }

    /// Looks at every target; writes nothing.
    fn examine(&self, commit: Commit, plan: &mut Plan) -> Result<(), Error> {
        let Commit {
            mut files,
            issued,
            slots,
            amendment,
        } = commit;
        if !issued.is_empty() {
            files.push(self.issue_times(issued, plan)?);
        }
        if let Some(record) = self.amended(amendment, &files, plan)? {
            files.push(record);
        }
        plan.slots = slots;
        for wanted in files {
            if wanted.path.to_str().is_none() {
                return Err(Error::BadPath {
                    path: wanted.path,
                    what: "a path in UTF-8",
                });
            }
            let place = plan.place(&self.root, &wanted.path)?;
            if plan.seen.contains(&place) {
                return Err(Error::BadPath {
                    path: wanted.path,
                    what: "a second path to a file of the same commit",
                });
            }
            plan.seen.push(place.clone());
            if let End::Linked { target, over } = wanted.end {
                plan.examine_link(wanted.path, place, target, over.as_deref())?;
                continue;
            }
            let group = plan.group(&wanted.path);
            let target = Target::look(plan.dirs.get(place.dir), &place.name)?;
            let (bytes, wanted_mode, overwrite) = match wanted.end {
                End::Written {
                    bytes,
                    mode,
                    overwrite,
                } => (bytes, mode, overwrite),
                End::Removed { sha256 } => {
                    plan.examine_removal(wanted.path, place, group, &sha256, target)?;
                    continue;
                }
                // Looked at above.
                End::Linked { .. } => continue,
            };
            let private = wanted_mode == Mode::Private;
            let Some(target) = target else {
                plan.changes.push(Change {
                    path: wanted.path,
                    place,
                    group,
                    private,
                    new: New::File(bytes, wanted_mode.bits()),
                    found: None,
                });
                continue;
            };
            let path = target.path.clone();
            let mode = wanted_mode.replacing(&target.metadata);
            let same = target.bytes == bytes;
            if !same && !overwrite && !target.bytes.is_empty() {
                return Err(Error::obstacle(path, Obstacle::Differs));
            }
            if mode != target.metadata.mode && target.metadata.size > 0 {
                plan.outcome.notes.push(Note::Tightened {
                    path: path.clone(),
                    from: target.metadata.mode,
                    to: mode,
                });
            }
            if same && mode == target.metadata.mode {
                plan.kept.push(Kept {
                    sha256: sha256(&target.bytes),
                    path: wanted.path,
                    group,
                });
                continue;
            }
            target.may_go(&mut plan.outcome.notes)?;
            plan.changes.push(Change {
                path: wanted.path,
                place,
                group,
                private,
                new: New::File(bytes, mode),
                found: Some(target),
            });
        }
        // What is new is there before what is old goes.
        plan.changes
            .sort_by_key(|change| (change.group, change.new.is_nothing(), !change.private));
        plan.outcome.unchanged = plan.kept.iter().map(|kept| kept.path.clone()).collect();
        for change in &plan.changes {
            if let Some(place) = plan.dirs.get(change.place.dir)
                && place.immutable
            {
                return Err(Error::obstacle(
                    self.root.on_this_machine(&place.path),
                    Obstacle::Immutable,
                ));
            }
        }
        self.verify_directories(plan)
    }

    /// Refuses to write where anyone could have put the file, or could replace it later.
    fn verify_directories(&self, plan: &mut Plan) -> Result<(), Error> {
        let changes = plan.changes.iter();
        let mut written: Vec<usize> = changes
            .filter(|change| !change.new.is_nothing())
            .map(|change| change.place.dir)
            .collect();
        written.sort_unstable();
        written.dedup();
        for place in written.into_iter().filter_map(|dir| plan.dirs.get(dir)) {
            for message in self.root.require_guarded(&place.path)? {
                let note = Note::Exposed { message };
                if !plan.outcome.notes.contains(&note) {
                    plan.outcome.notes.push(note);
                }
            }
        }
        for change in &plan.changes {
            let Some(found) = change.found.as_ref().filter(|_| !change.new.is_nothing()) else {
                continue;
            };
            let place = plan.dirs.get(change.place.dir);
            let others_create = place.is_some_and(|place| place.others_create);
            if found.metadata.size > 0 && found.heritage(others_create).is_none() {
                plan.outcome.notes.push(Note::OwnerReset {
                    path: found.path.clone(),
                    owner: found.metadata.uid,
                });
            }
        }
        Ok(())
    }

    /// Stages every change and writes the journal: the point of commit is the last line.
    fn decide(&self, plan: &mut Plan, made: &mut Vec<PathBuf>) -> Result<Journal, Error> {
        if plan.changes.is_empty() {
            return Ok(Journal::new(Vec::new(), Vec::new(), plan.slots.clone()));
        }
        plan.staging = true;
        let record = self.record_staging(plan)?;
        failpoint("commit:recorded", self.state.path())?;

        let mut staged: Vec<(PathBuf, File)> = vec![(self.state.path().join(STAGING), record)];
        let mut entries = Vec::with_capacity(plan.changes.len());
        for change in std::mem::take(&mut plan.changes) {
            let Change {
                path,
                place,
                group,
                new,
                found,
                ..
            } = change;
            plan.steps.push(Step {
                place: place.clone(),
                group,
                removes: new.is_nothing(),
            });
            let mut entry = Entry {
                path: path.clone(),
                group,
                mode: 0,
                old: found.as_ref().map(Target::identity),
                new: None,
                content: None,
            };
            let (bytes, mode) = match new {
                New::File(bytes, mode) => (bytes, mode),
                New::Link(target) => {
                    let dir = plan.make(&self.root, place.dir, made)?;
                    failpoint("commit:staged-one", dir.path().join(&place.name))?;
                    dir.create_link(&unfinished(&place.name), &target)?;
                    plan.outcome.written.push(path);
                    entry.new = Some(identity_of_link(&target));
                    entries.push(entry);
                    continue;
                }
                New::Nothing => {
                    plan.outcome.removed.push(path);
                    entries.push(entry);
                    continue;
                }
            };
            let known = plan.dirs.get(place.dir);
            let others_create = known.is_some_and(|known| known.others_create);
            let dir = plan.make(&self.root, place.dir, made)?;
            let temp = unfinished(&place.name);
            failpoint("commit:staged-one", dir.path().join(&place.name))?;
            let file = dir.create(&temp, &bytes)?;
            inherit(
                dir,
                &place.name,
                &file,
                found
                    .as_ref()
                    .and_then(|found| found.heritage(others_create)),
                mode,
            )?;
            staged.push((dir.path().join(&place.name), file));
            plan.outcome.written.push(path);
            entry.mode = mode;
            entry.new = Some(sha256(&bytes));
            entry.content = Some(Secret(bytes));
            entries.push(entry);
        }
        failpoint("commit:staged", self.state.path())?;

        let journal = Journal::new(entries, std::mem::take(&mut plan.kept), plan.slots.clone());
        staged.push((self.state.path().join(JOURNAL), journal.write(&self.state)?));
        let files: Vec<BorrowedFd<'_>> = staged.iter().map(|(_, file)| file.as_fd()).collect();
        sync::all(&files).map_err(|(index, errno)| {
            let path = staged
                .get(index)
                .map_or(self.state.path(), |(path, _)| path);
            Error::io("write", path, errno)
        })?;
        for path in made.iter() {
            self.root.sync_parent(path)?;
        }
        failpoint("commit:synced", self.state.path())?;

        let name = OsStr::new(JOURNAL);
        self.state.rename(&unfinished(name), name)?;
        Ok(journal)
    }

    /// From the point of commit on: the renames and removals, and the end of the slots and of the journal.
    pub(super) fn finish(
        &self,
        dirs: &[Place],
        steps: &[Step],
        journal: &Journal,
    ) -> Result<(), Error> {
        if !journal.entries.is_empty() {
            failpoint("commit:journalled", self.state.path())?;
            self.state.sync()?;
        }
        failpoint("finish:decided", self.state.path())?;
        let mut failed: Option<(usize, Error)> = None;
        let mut touched: Vec<&Dir> = Vec::new();
        for step in steps {
            // A key without its certificate is worse than neither; other groups need not suffer for it.
            if failed
                .as_ref()
                .is_some_and(|(group, _)| *group == step.group)
            {
                continue;
            }
            let Some(dir) = dirs
                .get(step.place.dir)
                .and_then(|place| place.dir.as_ref())
            else {
                continue;
            };
            let path = dir.path().join(&step.place.name);
            let done = match step.removes {
                true => failpoint("finish:remove-one", path)
                    .and_then(|()| dir.unlink(&step.place.name).map(drop)),
                false => failpoint("finish:rename-one", path)
                    .and_then(|()| dir.rename(&unfinished(&step.place.name), &step.place.name)),
            };
            match done {
                Ok(()) if touched.iter().any(|known| std::ptr::eq(*known, dir)) => {}
                Ok(()) => touched.push(dir),
                Err(error) => failed = Some((step.group, failed.map_or(error, |(_, first)| first))),
            }
        }
        failpoint("finish:renamed", self.state.path())?;
        let open: Vec<BorrowedFd<'_>> = touched.iter().map(|dir| dir.as_fd()).collect();
        sync::all(&open).map_err(|(index, errno)| {
            let path = touched
                .get(index)
                .map_or(self.state.path(), |dir| dir.path());
            Error::io("write", path, errno)
        })?;
        if let Some((_, error)) = failed {
            return Err(error);
        }
        failpoint("finish:durable", self.state.path())?;
        pending::remove(&self.state, &journal.slots)?;
        failpoint("finish:slots-removed", self.state.path())?;
        if !journal.entries.is_empty() {
            self.state.unlink(OsStr::new(JOURNAL))?;
            failpoint("finish:journal-removed", self.state.path())?;
        }
        Ok(())
    }

    /// The last step: nothing unfinished is left anywhere.
    pub(super) fn close(&self) -> Result<(), Error> {
        if self.state.unlink(OsStr::new(STAGING))? {
            failpoint("finish:record-removed", self.state.path())?;
        }
        self.state.sync()
    }

    /// Undoes [`Store::decide`] as far as it came.
    fn withdraw(&self, plan: &Plan, made: &[PathBuf]) {
        let mut swept = true;
        for step in &plan.steps {
            if let Some(dir) = plan
                .dirs
                .get(step.place.dir)
                .and_then(|place| place.dir.as_ref())
            {
                swept &= is_gone(dir, &unfinished(&step.place.name));
            }
        }
        self.root.unmake_dirs(made);
        swept &= is_gone(&self.state, &unfinished(OsStr::new(JOURNAL)));
        // The record stays with a file that could not be removed: recovery removes both.
        if plan.staging && swept {
            let _ = self.state.unlink(OsStr::new(STAGING));
        }
    }

    fn issue_times(
        &self,
        new: BTreeMap<CertName, Issued>,
        plan: &mut Plan,
    ) -> Result<Wanted, Error> {
        let mut all = match self.root.issued() {
            Err(error) if machine::is_fault(&error) => return Err(error),
            Err(error) => {
                plan.outcome.notes.push(Note::Rebuilt {
                    path: self.state.path().join(ISSUED),
                    why: error.to_string(),
                });
                BTreeMap::new()
            }
            Ok(all) => all,
        };
        all.extend(new);
        Ok(Wanted {
            path: Path::new(STATE_DIR).join(ISSUED),
            end: End::Written {
                bytes: issued::to_json(all).into(),
                mode: Mode::Other(0o600),
                overwrite: true,
            },
        })
    }

    /// The record of what has not taken effect, with what this commit adds to it or takes away.
    fn amended(
        &self,
        mut amendment: Amendment,
        files: &[Wanted],
        plan: &mut Plan,
    ) -> Result<Option<Wanted>, Error> {
        let mut new = Vec::new();
        for wanted in files {
            if !amendment.watches(&wanted.path) {
                continue;
            }
            if let End::Linked { target, .. } = &wanted.end {
                let is_same = self.root.link(&wanted.path)?.as_deref() == Some(Path::new(target));
                if !is_same && self.root.metadata(&wanted.path)?.is_some() {
                    new.extend(amendment.moves(&wanted.path));
                }
            }
            let End::Written { bytes, .. } = &wanted.end else {
                continue;
            };
            let found = self.root.read(&wanted.path)?.map(|found| found.bytes);
            if found.as_ref() != Some(bytes) {
                new.extend(amendment.replaces(&self.root, &wanted.path, found)?);
            }
        }
        if new.is_empty() && amendment.is_empty() {
            return Ok(None);
        }
        let path = Path::new(STATE_DIR).join(RESTARTS);
        let record = match self.root.unsettled() {
            Err(error) if machine::is_fault(&error) => return Err(error),
            Err(error) => {
                plan.outcome.notes.push(Note::Rebuilt {
                    path: self.state.path().join(RESTARTS),
                    why: error.to_string(),
                });
                Unsettled::default()
            }
            Ok(record) => record,
        };
        let end = match restarts::to_json(amendment.apply(record, new)) {
            Some(bytes) => End::Written {
                bytes,
                mode: Mode::Private,
                overwrite: true,
            },
            None => match self.root.read(&path)? {
                Some(found) => End::Removed {
                    sha256: sha256(&found.bytes),
                },
                None => return Ok(None),
            },
        };
        Ok(Some(Wanted { path, end }))
    }

    fn record_staging(&self, plan: &Plan) -> Result<File, Error> {
        let mut directories: Vec<&Path> = Vec::new();
        for change in &plan.changes {
            if let Some(parent) = change.path.parent()
                && !directories.contains(&parent)
            {
                directories.push(parent);
            }
        }
        let record = serde_json::json!(Staging {
            directories: directories.into_iter().map(Path::to_owned).collect()
        });
        self.state.unlink(OsStr::new(STAGING))?;
        self.state
            .create(OsStr::new(STAGING), record.to_string().as_bytes())
    }
}

/// Removes a file and returns true if none is left. On a read-only file system unlink(2) fails for a missing file too.
fn is_gone(dir: &Dir, name: &OsStr) -> bool {
    matches!(dir.metadata(name), Ok(None)) || dir.unlink(name).is_ok()
}

/// Gives a staged file the owner, group, extended attributes and mode that its target shall have.
///
/// The mode comes last and explicitly: chown(2) clears bits, an ACL among the attributes sets some, and the umask has
/// no say.
pub(super) fn inherit(
    dir: &Dir,
    name: &OsStr,
    file: &File,
    found: Option<&Metadata>,
    mode: u32,
) -> Result<(), Error> {
    if let Some(found) = found {
        let is = super::dir::stat_open(file).map_err(|errno| dir.error("look at", name, errno))?;
        if (is.uid, is.gid) != (found.uid, found.gid) {
            fchown(
                file,
                Some(Uid::from_raw(found.uid)),
                Some(Gid::from_raw(found.gid)),
            )
            .map_err(|errno| dir.error("keep the owner of", name, errno))?;
        }
        let old = openat(dir, name, READ | OFlag::O_NOFOLLOW, Bits::empty())
            .map_err(|errno| dir.error("read", name, errno))?;
        copy_attributes(&old, file).map_err(|errno| {
            dir.error(
                "keep the extended attributes (SELinux label) of",
                name,
                errno,
            )
        })?;
    }
    fchmod(file, Bits::from_bits_truncate(mode))
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
        // The first two are signatures over the old contents; the third lets a program do more than its user may.
        if matches!(
            name,
            b"security.ima" | b"security.evm" | b"security.capability"
        ) {
            continue;
        }
        let wanted = match read_sized(|buffer| fgetxattr(&old, name, buffer)) {
            Ok(value) => value,
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => continue,
            Err(errno) => return Err(errno),
        };
        // A new file often has the right label by inheritance, and setting one takes a permission of its own.
        if read_sized(|buffer| fgetxattr(&new, name, buffer)).is_ok_and(|is| is == wanted) {
            continue;
        }
        match fsetxattr(&new, name, &wanted, XattrFlags::empty()).map_err(errno_from) {
            Ok(()) | Err(Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Tries with room for every usual value, then with room for the largest that Linux allows.
fn read_sized(
    read: impl Fn(&mut [u8]) -> Result<usize, rustix::io::Errno>,
) -> Result<Vec<u8>, Errno> {
    for size in [512, 65536] {
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
