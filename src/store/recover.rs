//! Recovery: finishes a commit that an interrupted run had decided, and removes the files of one that it had not. The
//! header of `store.rs` describes the protocol.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;

use super::dir::{Dir, is_of_running_process, is_temporary_name, temporary_name};
use super::error::{StoreError, StoreNote};
use super::journal::{JOURNAL, Journal, JournalEntry};
use super::known::KnownDirectories;
use super::staging::{STAGING, StagingRecord, inherit, keep_copy, stage_again};
use super::target::ExistingTarget;
use super::transaction::{FileOperation, TargetName, Transaction, inherited};
use super::{Locked, NodeRoot, STATE_DIR, Store, failpoint, pending};

/// Result of a recovery. Paths are those on the node.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Files of an interrupted commit that were put in place now.
    pub finished: Vec<PathBuf>,
    /// Files that an interrupted commit had decided to remove, and that were removed now.
    pub removed: Vec<PathBuf>,
    /// Files of an interrupted commit that another process has changed since; left unchanged.
    pub superseded: Vec<PathBuf>,
    /// Temporary files of an undecided commit that were removed.
    pub swept: Vec<PathBuf>,
    /// Remarks for the report.
    pub notes: Vec<StoreNote>,
}

/// What recovery does with CA keys that an interrupted commit had decided to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRemoval {
    /// Removes those that still exist if their backup is unchanged.
    IfBackedUp,
    /// Keeps those that still exist: the command decides anew.
    Abandon,
}

impl NodeRoot {
    /// Returns true if [`Locked::recover`] has an interrupted commit to finish or to clean up. Reads only.
    pub(crate) fn has_unfinished(&self) -> Result<bool, StoreError> {
        for name in [JOURNAL.name, STAGING.name] {
            if self.metadata(format!("{STATE_DIR}/{name}"))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the directories in which an interrupted run may have left temporary files.
    pub(crate) fn staging_directories(&self) -> Result<Vec<PathBuf>, StoreError> {
        let path = STAGING.path();
        let Some(found) = self.read(&path)? else {
            return Ok(Vec::new());
        };
        let record = StagingRecord::parse(&found.bytes, self.on_this_machine(path));
        Ok(record.unwrap_or_default().directories)
    }
}

impl Locked {
    /// Finishes what an interrupted run had decided, removes what it had not, and returns the right to write.
    ///
    /// # Errors
    /// [`StoreError::Unfinished`] if something prevents it again; [`StoreError::JournalDamaged`], [`StoreError::Implausible`] and
    /// [`StoreError::NewerFormat`] if the interrupted run cannot be finished: then nothing was changed.
    pub fn recover(self, now: OffsetDateTime) -> Result<(Store, Recovery), StoreError> {
        self.recover_in(&KnownDirectories::default(), KeyRemoval::IfBackedUp, now)
    }

    /// As [`Locked::recover`], for a configuration that names further directories, and for a command that may decide anew
    /// about CA keys.
    pub(crate) fn recover_in(
        self,
        known: &KnownDirectories,
        removal: KeyRemoval,
        now: OffsetDateTime,
    ) -> Result<(Store, Recovery), StoreError> {
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
        let staging = StagingRecord::load(&store.state)?;
        // Both records are checked before either is followed: the state directory may be that of another system.
        if let Some(journal) = &journal {
            known.check_journal(&store.root, &store.state, journal)?;
        }
        if let Some(staging) = &staging {
            known.check_staging(&store.root, &store.state, &staging.directories)?;
        }
        if let Some(journal) = journal {
            failpoint("recover:journal-read", store.state.path())?;
            store
                .roll_forward(&journal, removal, now, &mut recovery)
                .map_err(|error| StoreError::Unfinished(Box::new(error)))?;
        }
        store.sweep(staging, &mut recovery)?;
        pending::limit_aside(&store.state, now, &mut recovery.notes)?;
        Ok((store, recovery))
    }
}

/// The present state of a journal entry's path.
struct FoundEntry {
    name: TargetName,
    state: EntryState,
    target: Option<ExistingTarget>,
}

/// The content of a path, compared with its journal entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryState {
    Old,
    New,
    /// Neither: another process has changed it.
    Foreign,
}

impl EntryState {
    fn of(entry: &JournalEntry, target: Option<&ExistingTarget>) -> EntryState {
        let found = target.map(ExistingTarget::identity);
        if found == entry.new {
            EntryState::New
        } else if found == entry.old {
            EntryState::Old
        } else {
            EntryState::Foreign
        }
    }
}

impl Store {
    /// Completes the commit of the journal, except for the groups that another process has changed since.
    fn roll_forward(
        &self,
        journal: &Journal,
        removal: KeyRemoval,
        now: OffsetDateTime,
        recovery: &mut Recovery,
    ) -> Result<(), StoreError> {
        let mut transaction = Transaction::default();
        let found = self.inspect_entries(journal, &mut transaction)?;
        let keeps_keys = self.keeps_keys(journal, removal, &found, &mut recovery.notes);
        let superseded = self.superseded_groups(journal, &found, &mut transaction)?;
        for (entry, found) in journal.entries.iter().zip(found) {
            // A removal or a link that is left out breaks no pair, so a foreign file in its place stays.
            let is_left_out = found.state == EntryState::Foreign && entry.content.is_none();
            if superseded.contains(&entry.group) || is_left_out {
                recovery.superseded.push(entry.path.clone());
                continue;
            }
            if found.state == EntryState::New || (keeps_keys && entry.removes()) {
                continue;
            }
            self.stage_entry(entry, &found, now, &mut transaction, &mut recovery.notes)?;
            if entry.removes() {
                recovery.removed.push(entry.path.clone())
            } else {
                recovery.finished.push(entry.path.clone())
            }
            transaction.operations.push(FileOperation {
                name: found.name,
                group: entry.group,
                removes: entry.removes(),
            });
        }
        transaction.sync_staged(&self.root)?;
        failpoint("recover:staged", self.state.path())?;
        self.finish(&transaction, journal)
    }

    /// Returns whether the CA keys of the journal that still exist stay, and notes what is known of their backup.
    fn keeps_keys(
        &self,
        journal: &Journal,
        removal: KeyRemoval,
        found: &[FoundEntry],
        notes: &mut Vec<StoreNote>,
    ) -> bool {
        let Some(backup) = &journal.backup else {
            return false;
        };
        let removals = journal.entries.iter().zip(found);
        let (gone, left): (Vec<_>, Vec<_>) = removals
            .filter(|(entry, _)| entry.removes())
            .partition(|(_, found)| found.state == EntryState::New);
        let shown = |of: Vec<(&JournalEntry, &FoundEntry)>| -> Vec<PathBuf> {
            of.into_iter()
                .map(|(entry, _)| self.root.on_this_machine(&entry.path))
                .collect()
        };
        let (gone, left) = (shown(gone), shown(left));
        let loss = backup.loss(&self.root);
        let keeps = loss.is_some() || removal == KeyRemoval::Abandon;
        let path = backup.shown(&self.root);
        if keeps && !gone.is_empty() {
            notes.push(StoreNote::RemovedBefore {
                keys: gone,
                backup: path.clone(),
            });
        }
        match loss {
            Some(why) => notes.push(StoreNote::BackupLost {
                backup: path,
                why,
                keys: left,
            }),
            None if keeps => {}
            None => notes.push(StoreNote::BackupUnchanged { backup: path }),
        }
        keeps
    }

    /// Compares every entry of the journal with what its path contains now.
    fn inspect_entries(
        &self,
        journal: &Journal,
        transaction: &mut Transaction,
    ) -> Result<Vec<FoundEntry>, StoreError> {
        let entries = journal.entries.iter().map(|entry| {
            let name = transaction.locate(&self.root, &entry.path)?;
            let target = match entry.link() {
                Some(_) => transaction.inspect_link(&name)?,
                None => transaction.inspect(&name)?,
            };
            Ok(FoundEntry {
                name,
                state: EntryState::of(entry, target.as_ref()),
                target,
            })
        });
        entries.collect()
    }

    /// Returns the groups that stay as another process left them: those in which a file that the commit kept has changed
    /// since, and those in which an entry is foreign and none is new yet.
    fn superseded_groups(
        &self,
        journal: &Journal,
        found: &[FoundEntry],
        transaction: &mut Transaction,
    ) -> Result<Vec<usize>, StoreError> {
        let mut superseded = Vec::new();
        for kept in &journal.kept {
            let name = transaction.locate(&self.root, &kept.path)?;
            let target = if kept.is_link() {
                transaction.inspect_link(&name)?
            } else {
                transaction.inspect(&name)?
            };
            if target.is_none_or(|target| target.identity() != kept.sha256) {
                superseded.push(kept.group);
            }
        }
        let group_has = |group: usize, state: EntryState| {
            let mut entries = journal.entries.iter().zip(found);
            entries.any(|(entry, found)| entry.group == group && found.state == state)
        };
        for group in journal.entries.iter().map(|entry| entry.group) {
            if group_has(group, EntryState::Foreign) && !group_has(group, EntryState::New) {
                superseded.push(group);
            }
        }
        Ok(superseded)
    }

    /// Writes the staged file or link of an entry again; a removal is only verified.
    fn stage_entry(
        &self,
        entry: &JournalEntry,
        found: &FoundEntry,
        now: OffsetDateTime,
        transaction: &mut Transaction,
        notes: &mut Vec<StoreNote>,
    ) -> Result<(), StoreError> {
        let FoundEntry {
            name,
            state,
            target,
        } = found;
        let Some(content) = &entry.content else {
            if let Some(target) = target {
                target.prepare_replacement(notes)?;
            }
            if let Some(link) = entry.link() {
                let dir = transaction.open_or_create(&self.root, name)?;
                failpoint("recover:staged-one", dir.path().join(&name.name))?;
                dir.create_link(&temporary_name(&name.name), link)?;
            }
            return Ok(());
        };
        let others_create = transaction.others_create(name);
        let dir = transaction.open_or_create(&self.root, name)?;
        if let Some(target) = target {
            target.require_replaceable()?;
            if *state == EntryState::Foreign {
                notes.push(keep_copy(dir, &name.name, &target.path, now)?);
            }
        }
        let path = dir.path().join(&name.name);
        failpoint("recover:staged-one", &path)?;
        let file = stage_again(dir, &name.name, &content.0)?;
        let metadata = inherited(target.as_ref(), others_create);
        let access = (entry.mode, entry.owner_group);
        inherit(dir, &name.name, &file, metadata, access)?;
        transaction.staged.push((path, file));
        Ok(())
    }

    /// Removes temporary files from the state directory and from the directories of the record.
    fn sweep(
        &self,
        staging: Option<StagingRecord>,
        recovery: &mut Recovery,
    ) -> Result<(), StoreError> {
        let mut sweep = |dir: &Dir, path: &Path| -> Result<(), StoreError> {
            let names = dir.names()?;
            let names = names.iter().filter(|name| is_temporary_name(name));
            for name in names.filter(|name| !is_of_running_process(name)) {
                failpoint("recover:swept-one", dir.path().join(name))?;
                if pending::is_directory(dir, name)? {
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
}
