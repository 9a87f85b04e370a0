//! Recovery: what an interrupted commit had decided is finished, what it had not is removed. The protocol is told in the
//! header of `store.rs`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode as Bits;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::commit::inherit;
use super::dir::{Dir, is_unfinished, unfinished};
use super::error::{Error, Note};
use super::journal::{Entry, JOURNAL, Journal};
use super::known::{self, KnownDirectories};
use super::pending;
use super::target::{Plan, Step, Target};
use super::{Locked, READ_LIMIT, Root, STATE_DIR, Store, failpoint, free_name, sync};

/// Which directories hold unfinished files, in the state directory.
pub(super) const STAGING: &str = "staging.json";

/// What was found and done at the start. Paths are those on the node.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Files of an interrupted commit that were put in place now.
    pub finished: Vec<PathBuf>,
    /// Files that an interrupted commit had decided to remove, and that were removed now.
    pub removed: Vec<PathBuf>,
    /// Files of an interrupted commit that somebody else has changed since; left as they are.
    pub superseded: Vec<PathBuf>,
    /// Unfinished files that were removed. Nothing had been decided about them.
    pub swept: Vec<PathBuf>,
    /// What else is worth telling.
    pub notes: Vec<Note>,
}

impl Root {
    /// True when an interrupted commit waits for [`Locked::recover`]. Reads only.
    ///
    /// # Errors
    /// What the system says.
    pub fn has_unfinished(&self) -> Result<bool, Error> {
        for name in [JOURNAL, STAGING] {
            if self.metadata(format!("{STATE_DIR}/{name}"))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The directories in which an interrupted run may have left something to be finished or removed.
    ///
    /// # Errors
    /// When its record cannot be read.
    pub fn unfinished_in(&self) -> Result<Vec<PathBuf>, Error> {
        let record = self.read(Path::new(STATE_DIR).join(STAGING))?;
        let staging = record.and_then(|record| serde_json::from_slice(&record.bytes).ok());
        Ok(staging.unwrap_or_else(Staging::default).directories)
    }
}

impl Locked {
    /// Finishes what an interrupted run had decided, removes what it had not, and gives the right to write.
    ///
    /// # Errors
    /// [`Error::Unfinished`] when something is in the way again; [`Error::JournalDamaged`] and [`Error::Implausible`]
    /// when the interrupted run cannot be finished, and then nothing was changed.
    pub fn recover(self, now: OffsetDateTime) -> Result<(Store, Recovery), Error> {
        self.recover_in(&KnownDirectories::default(), now)
    }

    /// As [`Locked::recover`], for a configuration with directories of its own.
    ///
    /// # Errors
    /// As for [`Locked::recover`].
    pub fn recover_in(
        self,
        known: &KnownDirectories,
        now: OffsetDateTime,
    ) -> Result<(Store, Recovery), Error> {
        let Locked {
            root,
            state,
            lock,
            notes,
        } = self;
        let store = Store {
            root,
            state,
            unfinished: false,
            _lock: lock,
        };
        let mut recovery = Recovery {
            notes,
            ..Recovery::default()
        };
        let journal = Journal::load(&store.root, &store.state)?;
        let staging = Staging::load(&store.state)?;
        if let Some(journal) = &journal {
            known.check_journal(&store.root, &store.state, journal)?;
        }
        if let Some(staging) = &staging {
            known.check_staging(&store.root, &store.state, &staging.directories)?;
        }
        if let Some(journal) = journal {
            failpoint("recover:journal-read", store.state.path())?;
            store
                .roll_forward(journal, now, &mut recovery)
                .map_err(|error| Error::Unfinished(Box::new(error)))?;
        }
        store.sweep(staging, &mut recovery)?;
        pending::limit_aside(&store.state, now, &mut recovery.notes)?;
        Ok((store, recovery))
    }
}

impl Store {
    fn roll_forward(
        &self,
        journal: Journal,
        now: OffsetDateTime,
        recovery: &mut Recovery,
    ) -> Result<(), Error> {
        let mut plan = Plan::default();
        let mut found = Vec::with_capacity(journal.entries.len());
        for entry in &journal.entries {
            let place = plan.place(&self.root, &entry.path)?;
            let target = match entry.link() {
                Some(_) => Target::look_at_link(plan.dirs.get(place.dir), &place.name)?,
                None => Target::look(plan.dirs.get(place.dir), &place.name)?,
            };
            found.push((place, State::of(entry, target.as_ref()), target));
        }
        let mut given_up = Vec::new();
        for kept in &journal.kept {
            let place = plan.place(&self.root, &kept.path)?;
            let target = match kept.is_link() {
                true => Target::look_at_link(plan.dirs.get(place.dir), &place.name)?,
                false => Target::look(plan.dirs.get(place.dir), &place.name)?,
            };
            if target.is_none_or(|target| target.identity() != kept.sha256) {
                given_up.push(kept.group);
            }
        }
        let group_has = |group: usize, state: State| {
            journal
                .entries
                .iter()
                .zip(&found)
                .any(|(entry, (_, is, _))| entry.group == group && *is == state)
        };
        for entry in &journal.entries {
            // Nothing of ours is there yet: whoever changed the group since has the last word.
            if group_has(entry.group, State::Foreign) && !group_has(entry.group, State::New) {
                given_up.push(entry.group);
            }
        }

        let mut made = Vec::new();
        let mut staged = Vec::new();
        for (entry, (place, state, target)) in journal.entries.iter().zip(found) {
            if given_up.contains(&entry.group) {
                recovery.superseded.push(entry.path.clone());
                continue;
            }
            if state == State::New {
                continue;
            }
            if let Some(to) = entry.link() {
                // Somebody's link is as whole as ours: whoever was last has the last word.
                if state == State::Foreign {
                    recovery.superseded.push(entry.path.clone());
                    continue;
                }
                if let Some(target) = &target {
                    target.may_go(&mut recovery.notes)?;
                }
                let dir = plan.make(&self.root, place.dir, &mut made)?;
                failpoint("recover:staged-one", dir.path().join(&place.name))?;
                dir.create_link(&unfinished(&place.name), to)?;
                recovery.finished.push(entry.path.clone());
                plan.steps.push(Step {
                    place,
                    group: entry.group,
                    removes: false,
                });
                continue;
            }
            let Some(content) = &entry.content else {
                if state == State::Foreign {
                    recovery.superseded.push(entry.path.clone());
                    continue;
                }
                if let Some(target) = &target {
                    target.may_go(&mut recovery.notes)?;
                }
                recovery.removed.push(entry.path.clone());
                plan.steps.push(Step {
                    place,
                    group: entry.group,
                    removes: true,
                });
                continue;
            };
            let known = plan.dirs.get(place.dir);
            let others_create = known.is_some_and(|known| known.others_create);
            let dir = plan.make(&self.root, place.dir, &mut made)?;
            if let Some(target) = &target {
                target.require_replaceable()?;
                if state == State::Foreign {
                    recovery
                        .notes
                        .push(keep_copy(dir, &place.name, &target.path, now)?);
                }
            }
            failpoint("recover:staged-one", dir.path().join(&place.name))?;
            let file = stage_again(dir, &place.name, &content.0)?;
            inherit(
                dir,
                &place.name,
                &file,
                target
                    .as_ref()
                    .and_then(|target| target.heritage(others_create)),
                entry.mode,
            )?;
            staged.push((dir.path().join(&place.name), file));
            recovery.finished.push(entry.path.clone());
            plan.steps.push(Step {
                place,
                group: entry.group,
                removes: false,
            });
        }
        let files: Vec<BorrowedFd<'_>> = staged.iter().map(|(_, file)| file.as_fd()).collect();
        sync::all(&files).map_err(|(index, errno)| {
            let path = staged
                .get(index)
                .map_or(self.state.path(), |(path, _)| path);
            Error::io("write", path, errno)
        })?;
        for path in &made {
            self.root.sync_parent(path)?;
        }
        failpoint("recover:staged", self.state.path())?;
        self.finish(&plan.dirs, &plan.steps, &journal)
    }

    /// Removes unfinished files where the record says that there may be some.
    fn sweep(&self, staging: Option<Staging>, recovery: &mut Recovery) -> Result<(), Error> {
        let mut sweep = |dir: &Dir, path: &Path| -> Result<(), Error> {
            for name in dir.names()?.iter().filter(|name| is_unfinished(name)) {
                failpoint("recover:swept-one", dir.path().join(name))?;
                if pending::is_slot_dir(dir, name)? {
                    dir.remove_dir(name)?;
                } else {
                    dir.unlink(name)?;
                }
                recovery.swept.push(path.join(name));
            }
            Ok(())
        };
        sweep(&self.state, Path::new(STATE_DIR))?;
        if let Some(pending) = self.state.open_dir(OsStr::new(pending::PENDING))? {
            sweep(&pending, &Path::new(STATE_DIR).join(pending::PENDING))?;
        }
        let Some(staging) = staging else {
            return Ok(());
        };
        for path in staging.directories {
            if let Some(dir) = self.root.dir(&path)? {
                sweep(&dir, &path)?;
            }
        }
        failpoint("recover:swept", self.state.path())?;
        self.close()
    }

    pub(super) fn aside(&self) -> Result<Dir, Error> {
        let (dir, made) = self.state.make_dir(OsStr::new(pending::ASIDE), 0o700)?;
        if made {
            self.state.sync()?;
        }
        Ok(dir)
    }
}

#[derive(Default, Serialize, Deserialize)]
pub(super) struct Staging {
    pub(super) directories: Vec<PathBuf>,
}

impl Staging {
    fn load(state: &Dir) -> Result<Option<Staging>, Error> {
        let Some(found) = state.read(STAGING, READ_LIMIT)? else {
            return Ok(None);
        };
        known::check_owner(state, STAGING, &found)?;
        // A record that a power cut tore only means that some unfinished files stay until their targets change next.
        Ok(Some(
            serde_json::from_slice(&found.bytes).unwrap_or_default(),
        ))
    }
}

/// What a target holds, compared with the journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Old,
    New,
    Foreign,
}

impl State {
    fn of(entry: &Entry, target: Option<&Target>) -> State {
        let is = target.map(Target::identity);
        if is == entry.new {
            State::New
        } else if is == entry.old {
            State::Old
        } else {
            State::Foreign
        }
    }
}

/// The unfinished file of an interrupted run if it is whole, else a new one: a disk that is full now has room for it.
fn stage_again(dir: &Dir, name: &OsStr, bytes: &[u8]) -> Result<File, Error> {
    let temp = unfinished(name);
    if dir
        .read(&temp, READ_LIMIT)
        .is_ok_and(|found| found.is_some_and(|found| found.bytes.as_slice() == bytes))
    {
        return openat(
            dir,
            temp.as_os_str(),
            OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Bits::empty(),
        )
        .map(File::from)
        .map_err(|errno| dir.error("open", &temp, errno));
    }
    dir.create(&temp, bytes)
}

/// Gives a file that is about to be replaced a second name beside its first.
fn keep_copy(dir: &Dir, name: &OsStr, path: &Path, now: OffsetDateTime) -> Result<Note, Error> {
    let mut stem = name.to_owned();
    stem.push(".nodepki-");
    let to = free_name(dir, &stem, now)?;
    dir.link(name, &to)?;
    Ok(Note::SetAside {
        path: path.to_owned(),
        to: dir.path().join(to),
        why: "it was changed while half of its pair had been replaced already".to_owned(),
    })
}
