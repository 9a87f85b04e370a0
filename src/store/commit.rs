//! Commit. The header of `store.rs` describes the protocol.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::amendment::{Amendment, WatchedFile};
use super::changes::{self, AuthorityChange};
use super::desired::{DesiredContents, DesiredFile, DesiredState, Mode};
use super::dir::temporary_name;
use super::error::{StoreError, StoreNote};
use super::issued::{self, ISSUED, IssuedRecord};
use super::journal::{JOURNAL, Journal, JournalEntry, SecretBytes, identity_of_link, require_size};
use super::key_backup::KeyBackup;
use super::pending::Slot;
use super::restarts::{
    self, FormerContents, FormerTrust, MAX_RESTARTS_SIZE, RESTARTS, Restart, Unsettled,
    UnverifiedChange,
};
use super::staging::{STAGING, StagingRecord, inherit, is_gone};
use super::target::ExistingTarget;
use super::transaction::{Committed, FileChange, Replacement, StagedFile, Transaction, inherited};
use super::{Store, failpoint, sha256};
use crate::kube::components::{Component, ReplacedFile, components_to_restart};
use crate::kube::names::{Authority, CertName};
use crate::process::machine;
use crate::spec::authority_rotation::RotationSubject;

/// Files that change together or not at all.
#[derive(Default)]
pub struct Commit {
    files: Vec<DesiredFile>,
    pairs: Vec<[PathBuf; 2]>,
    issued: BTreeMap<CertName, IssuedRecord>,
    slots: Vec<Slot>,
    amendment: Amendment,
    backup: Option<KeyBackup>,
}

impl Commit {
    /// Returns a commit that changes nothing yet.
    pub fn new() -> Commit {
        Commit::default()
    }

    /// Returns true if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.issued.is_empty()
            && self.slots.is_empty()
            && self.amendment.is_empty()
    }

    /// Writes these contents to `path`. Of two entries for the same path the last one counts.
    pub fn file(
        &mut self,
        path: impl Into<PathBuf>,
        bytes: impl Into<Zeroizing<Vec<u8>>>,
        mode: Mode,
    ) -> &mut Self {
        self.write(path.into(), bytes.into(), mode, true)
    }

    /// As [`Commit::file`]; the commit is refused if a file with other contents exists.
    pub fn file_if_absent(
        &mut self,
        path: impl Into<PathBuf>,
        bytes: impl Into<Zeroizing<Vec<u8>>>,
        mode: Mode,
    ) -> &mut Self {
        self.write(path.into(), bytes.into(), mode, false)
    }

    /// Puts the files `one` and `other` of this commit into one group: neither is put in place without the other. Files
    /// whose names differ only in the extension are a group already.
    pub fn together(&mut self, one: impl Into<PathBuf>, other: impl Into<PathBuf>) -> &mut Self {
        self.pairs.push([one.into(), other.into()]);
        self
    }

    /// Removes a file. The commit is refused if the file contains anything other than `contents` by then; a missing file
    /// is accepted.
    ///
    /// The name is removed, and with it, in time, the blocks. Overwriting them first would not be reliable: journalling
    /// and copy-on-write file systems and flash write elsewhere. Data that must not be recoverable needs an encrypted
    /// disk.
    pub fn remove(&mut self, path: impl Into<PathBuf>, contents: &[u8]) -> &mut Self {
        let sha256 = sha256(contents);
        self.want(path.into(), DesiredState::Absent { sha256 })
    }

    /// Names the backup of the removed files, which are CA keys. If this commit is interrupted, recovery removes them only
    /// if the backup is unchanged.
    pub(crate) fn backed_up_in(&mut self, backup: KeyBackup) -> &mut Self {
        self.backup = Some(backup);
        self
    }

    /// Creates a symbolic link to `target`, a name in the same directory. It replaces another link, whatever its target
    /// is; the commit is refused if anything else exists at `path`.
    ///
    /// Link and target are one group: neither is put in place without the other.
    pub fn link(&mut self, path: impl Into<PathBuf>, target: impl Into<String>) -> &mut Self {
        let (target, over) = (target.into(), None);
        self.want(path.into(), DesiredState::Link { target, over })
    }

    /// As [`Commit::link`], in place of a file. The commit is refused if the file contains anything other than
    /// `contents` by then.
    pub fn link_over(
        &mut self,
        path: impl Into<PathBuf>,
        target: impl Into<String>,
        contents: &[u8],
    ) -> &mut Self {
        let (target, over) = (target.into(), Some(sha256(contents)));
        self.want(path.into(), DesiredState::Link { target, over })
    }

    /// Records when a certificate of this commit was issued.
    pub fn issued(&mut self, name: CertName, issued: IssuedRecord) -> &mut Self {
        self.issued.insert(name, issued);
        self
    }

    /// Completes a pending request: its key, CSR and ticket are removed once all files are in place.
    pub fn completes(&mut self, slot: Slot) -> &mut Self {
        self.slots.push(slot);
        self
    }

    /// Declares what it means that the file at `path` is replaced. If this commit does replace it, the components that
    /// read it only at their start are recorded as due for a restart, in the same commit and with the old contents.
    ///
    /// A newly created file is not a change, since no component has read it yet. Two cases count as changes all the
    /// same: an empty file, which the kubelet creates for a running pod (hostPath type `FileOrCreate`), and a file that
    /// was removed while a pod uses it.
    pub fn change(
        &mut self,
        change: ReplacedFile,
        path: impl Into<PathBuf>,
        at: OffsetDateTime,
    ) -> &mut Self {
        self.change_read_by(change, path, at, components_to_restart(change))
    }

    /// As [`Commit::change`], with the components to restart: fewer than for other files of the same change.
    pub(crate) fn change_read_by(
        &mut self,
        change: ReplacedFile,
        path: impl Into<PathBuf>,
        at: OffsetDateTime,
        readers: &'static [Component],
    ) -> &mut Self {
        self.amendment.watched.push(WatchedFile {
            path: path.into(),
            changed: UnverifiedChange { change, at },
            readers,
            former: None,
        });
        self
    }

    /// As [`Commit::change`], for a symbolic link. `former` is what a rollback restores.
    pub(crate) fn change_link(
        &mut self,
        change: ReplacedFile,
        path: impl Into<PathBuf>,
        at: OffsetDateTime,
        former: Option<FormerContents>,
    ) -> &mut Self {
        self.amendment.watched.push(WatchedFile {
            path: path.into(),
            changed: UnverifiedChange { change, at },
            readers: components_to_restart(change),
            former,
        });
        self
    }

    /// Records a restart. A restart that is due already is extended: the older contents are kept, since the component
    /// still works with them.
    pub fn restart(&mut self, restart: Restart) -> &mut Self {
        self.amendment.restarts.push(restart);
        self
    }

    /// Removes the record of a restart that is done.
    pub fn restarted(&mut self, component: Component) -> &mut Self {
        self.amendment.restarted.push(component);
        self
    }

    /// Makes the files of this commit one step of a CA change, or of a change of the service-account key: if a component does not become ready with them, all of
    /// them are rolled back to `former`.
    pub(crate) fn trust_step(&mut self, former: FormerTrust) -> &mut Self {
        self.amendment.former_trust = Some(former);
        self
    }

    /// Ends the step of this subject's change: this commit rolls it back.
    pub(crate) fn rolls_back(&mut self, subject: RotationSubject) -> &mut Self {
        self.amendment.rolled_back = Some(subject);
        self
    }

    /// Records that a file is restored, for hooks and other static pods. No component is restarted for it.
    pub fn restored(&mut self, changed: UnverifiedChange) -> &mut Self {
        self.amendment.restored.push(changed);
        self
    }

    /// Records all CA changes that are under way once this commit is done.
    pub(crate) fn authority_changes(
        &mut self,
        changes: BTreeMap<Authority, AuthorityChange>,
    ) -> &mut Self {
        self.file(
            changes::AUTHORITY_CHANGES.path(),
            changes::to_json(changes),
            Mode::Other(0o600),
        )
    }

    /// Removes the record of a change whose effect was verified; a later change of the same file stays.
    pub fn verified(&mut self, changed: UnverifiedChange) -> &mut Self {
        self.amendment.verified.push(changed);
        self
    }

    fn write(
        &mut self,
        path: PathBuf,
        bytes: Zeroizing<Vec<u8>>,
        mode: Mode,
        overwrite: bool,
    ) -> &mut Self {
        let contents = DesiredContents {
            bytes,
            mode,
            overwrite,
        };
        self.want(path, DesiredState::File(contents))
    }

    fn want(&mut self, path: PathBuf, state: DesiredState) -> &mut Self {
        self.files.retain(|desired| desired.path != path);
        self.files.push(DesiredFile { path, state });
        self
    }
}

impl Store {
    /// Puts all files in place, or none.
    ///
    /// # Errors
    /// [`StoreError::NotCommitted`]: nothing was changed. [`StoreError::Unfinished`]: the next start finishes; this store commits
    /// nothing more, drop it and call [`Locked::recover`](super::Locked::recover) again.
    pub fn commit(&mut self, commit: Commit) -> Result<Committed, StoreError> {
        if self.unfinished {
            return Err(StoreError::RecoverFirst {
                path: self.state.path().join(JOURNAL.name),
            });
        }
        let mut transaction = Transaction::default();
        let journal = match self
            .examine(commit, &mut transaction)
            .and_then(|()| self.write_journal(&mut transaction))
        {
            Ok(journal) => journal,
            // A rename that reports an error may have taken place all the same (NFS): then the commit is decided.
            Err(error) if !matches!(self.state.metadata(JOURNAL.name), Ok(None)) => {
                self.unfinished = true;
                return Err(StoreError::Unfinished(Box::new(error)));
            }
            Err(error) => {
                self.withdraw(&transaction);
                return Err(StoreError::NotCommitted(Box::new(error)));
            }
        };
        // A second commit would replace this journal.
        self.unfinished = true;
        self.finish(&transaction, &journal)
            .and_then(|()| self.close())
            .map_err(|error| StoreError::Unfinished(Box::new(error)))?;
        self.unfinished = false;
        Ok(transaction.outcome)
    }

    /// Compares the desired files with the present ones; writes nothing.
    fn examine(&self, commit: Commit, transaction: &mut Transaction) -> Result<(), StoreError> {
        let Commit {
            mut files,
            pairs,
            issued,
            slots,
            amendment,
            backup,
        } = commit;
        if !issued.is_empty() {
            files.push(self.issued_file(issued, transaction)?);
        }
        if let Some(record) = self.restarts_file(amendment, &files, transaction)? {
            files.push(record);
        }
        transaction.slots = slots;
        transaction.backup = backup;
        transaction.pairs = pairs;
        for desired in files {
            transaction.add(&self.root, desired)?;
        }
        transaction.order();
        transaction.verify_directories(&self.root)
    }

    /// Stages every change and writes the journal. The last statement is the point of commit.
    fn write_journal(&self, transaction: &mut Transaction) -> Result<Journal, StoreError> {
        if transaction.changes.is_empty() {
            let slots = transaction.slots.clone();
            return Ok(Journal::new(Vec::new(), Vec::new(), slots, None));
        }
        transaction.recorded_staging = true;
        let record = staging_record(&transaction.changes).write(&self.state)?;
        let path = self.state.path().join(STAGING.name);
        transaction.staged.push((path, record));
        failpoint("commit:recorded", self.state.path())?;

        let mut entries = Vec::with_capacity(transaction.changes.len());
        for change in std::mem::take(&mut transaction.changes) {
            transaction.operations.push(change.operation());
            entries.push(self.stage(change, transaction)?);
        }
        failpoint("commit:staged", self.state.path())?;

        let kept = std::mem::take(&mut transaction.kept);
        let journal = Journal::new(
            entries,
            kept,
            transaction.slots.clone(),
            transaction.backup.take(),
        );
        let path = self.state.path().join(JOURNAL.name);
        transaction.staged.push((path, journal.write(&self.state)?));
        transaction.sync_staged(&self.root)?;
        failpoint("commit:synced", self.state.path())?;

        let name = OsStr::new(JOURNAL.name);
        self.state.rename(&temporary_name(name), name)?;
        Ok(journal)
    }

    /// Writes the staged file or link of a change and returns its entry for the journal.
    fn stage(
        &self,
        change: FileChange,
        transaction: &mut Transaction,
    ) -> Result<JournalEntry, StoreError> {
        let FileChange {
            path,
            name,
            group,
            new,
            found,
            ..
        } = change;
        let mut entry = JournalEntry {
            path: path.clone(),
            group,
            mode: 0,
            owner_group: None,
            old: found.as_ref().map(ExistingTarget::identity),
            new: None,
            content: None,
        };
        if let Replacement::Nothing = new {
            transaction.outcome.removed.push(path);
            return Ok(entry);
        }
        let others_create = transaction.others_create(&name);
        let dir = transaction.open_or_create(&self.root, &name)?;
        let target_path = dir.path().join(&name.name);
        failpoint("commit:staged-one", &target_path)?;
        let temporary = temporary_name(&name.name);
        match new {
            Replacement::File(StagedFile { bytes, mode, group }) => {
                let file = dir.create(&temporary, &bytes)?;
                let metadata = inherited(found.as_ref(), others_create);
                inherit(dir, &name.name, &file, metadata, (mode, group))?;
                transaction.staged.push((target_path, file));
                entry.mode = mode;
                entry.owner_group = group;
                entry.new = Some(sha256(&bytes));
                entry.content = Some(SecretBytes(bytes));
            }
            Replacement::Link(target) => {
                dir.create_link(&temporary, &target)?;
                entry.new = Some(identity_of_link(&target));
            }
            Replacement::Nothing => {}
        }
        transaction.outcome.written.push(path);
        Ok(entry)
    }

    /// Removes what [`Store::write_journal`] has written so far.
    fn withdraw(&self, transaction: &Transaction) {
        let mut swept = true;
        for operation in &transaction.operations {
            if let Some(dir) = transaction.dir(&operation.name) {
                swept &= is_gone(dir, &temporary_name(&operation.name.name));
            }
        }
        self.root.unmake_dirs(&transaction.created);
        swept &= is_gone(&self.state, &temporary_name(OsStr::new(JOURNAL.name)));
        // The record stays together with a file that could not be removed: recovery removes both.
        if transaction.recorded_staging && swept {
            let _ = self.state.unlink(OsStr::new(STAGING.name));
        }
    }

    /// Returns `issued.json` with the issue times of this commit added.
    fn issued_file(
        &self,
        new: BTreeMap<CertName, IssuedRecord>,
        transaction: &mut Transaction,
    ) -> Result<DesiredFile, StoreError> {
        let mut all = self.read_or_rebuild(self.root.issued(), ISSUED.name, transaction)?;
        all.extend(new);
        let contents = DesiredContents {
            bytes: issued::to_json(all).into(),
            mode: Mode::Other(0o600),
            overwrite: true,
        };
        Ok(DesiredFile {
            path: ISSUED.path(),
            state: DesiredState::File(contents),
        })
    }

    /// Returns `restarts.json` as this commit changes it; `None` if it does not.
    fn restarts_file(
        &self,
        mut amendment: Amendment,
        files: &[DesiredFile],
        transaction: &mut Transaction,
    ) -> Result<Option<DesiredFile>, StoreError> {
        let changed = self.watched_changes(&mut amendment, files)?;
        if changed.is_empty() && amendment.is_empty() {
            return Ok(None);
        }
        let path = RESTARTS.path();
        let record: Unsettled =
            self.read_or_rebuild(self.root.unsettled(), RESTARTS.name, transaction)?;
        let state = match restarts::to_json(amendment.apply(record, changed)) {
            Some(bytes) => {
                require_size(&self.state, RESTARTS.name, &bytes, MAX_RESTARTS_SIZE)?;
                DesiredState::File(DesiredContents {
                    bytes,
                    mode: Mode::Private,
                    overwrite: true,
                })
            }
            None => match self.root.read_at_most(&path, MAX_RESTARTS_SIZE)? {
                Some(found) => DesiredState::Absent {
                    sha256: sha256(&found.bytes),
                },
                None => return Ok(None),
            },
        };
        Ok(Some(DesiredFile { path, state }))
    }

    /// Returns the watched changes that this commit makes; the restarts for them are added to the amendment.
    fn watched_changes(
        &self,
        amendment: &mut Amendment,
        files: &[DesiredFile],
    ) -> Result<Vec<UnverifiedChange>, StoreError> {
        let mut changed = Vec::new();
        for DesiredFile { path, state } in files {
            if !amendment.watches(path) {
                continue;
            }
            match state {
                DesiredState::Link { target, .. } => {
                    let same = self.root.link(path)?.as_deref() == Some(Path::new(target));
                    if !same && self.root.metadata(path)?.is_some() {
                        changed.extend(amendment.retarget(path));
                    }
                }
                DesiredState::File(contents) => {
                    let found = self.root.read(path)?.map(|found| found.bytes);
                    if found.as_ref() != Some(&contents.bytes) {
                        changed.extend(amendment.replace(&self.root, path, found)?);
                    }
                }
                DesiredState::Absent { .. } => {}
            }
        }
        Ok(changed)
    }

    /// Returns the record that was read, or an empty one if the file is unreadable for any reason other than a fault of
    /// this machine or a newer format.
    fn read_or_rebuild<T: Default>(
        &self,
        record: Result<T, StoreError>,
        name: &str,
        transaction: &mut Transaction,
    ) -> Result<T, StoreError> {
        match record {
            Err(error @ StoreError::NewerFormat { .. }) => Err(error),
            Err(error) if !machine::is_fault(&error) => {
                transaction.outcome.notes.push(StoreNote::Rebuilt {
                    path: self.state.path().join(name),
                    why: error.to_string(),
                });
                Ok(T::default())
            }
            record => record,
        }
    }
}

/// Returns the record of the directories that the staged files of these changes are in.
fn staging_record(changes: &[FileChange]) -> StagingRecord {
    let mut directories: Vec<PathBuf> = Vec::new();
    for parent in changes.iter().filter_map(|change| change.path.parent()) {
        if !directories.iter().any(|known| known == parent) {
            directories.push(parent.to_owned());
        }
    }
    StagingRecord { directories }
}
