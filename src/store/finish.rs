//! The steps after the point of commit, which a commit and recovery share.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use super::dir::{Dir, temporary_name};
use super::error::StoreError;
use super::journal::{JOURNAL, Journal};
use super::staging::STAGING;
use super::transaction::{FileOperation, Transaction};
use super::{Store, failpoint, pending, sync};

impl Store {
    /// Does the renames and removals, then removes the completed slots and the journal.
    pub(super) fn finish(
        &self,
        transaction: &Transaction,
        journal: &Journal,
    ) -> Result<(), StoreError> {
        if !journal.entries.is_empty() {
            failpoint("commit:journalled", self.state.path())?;
            self.state.sync()?;
        }
        failpoint("finish:decided", self.state.path())?;
        self.apply(transaction)?;
        failpoint("finish:durable", self.state.path())?;
        pending::remove(&self.state, &journal.slots)?;
        failpoint("finish:slots-removed", self.state.path())?;
        if !journal.entries.is_empty() {
            self.state.unlink(OsStr::new(JOURNAL.name))?;
            failpoint("finish:journal-removed", self.state.path())?;
        }
        Ok(())
    }

    /// Does the renames and removals, and syncs the directories.
    ///
    /// A failed operation ends its group, since a key without its certificate is worse than neither; other groups are
    /// completed.
    fn apply(&self, transaction: &Transaction) -> Result<(), StoreError> {
        let mut failed: Option<(usize, StoreError)> = None;
        let mut touched: Vec<&Dir> = Vec::new();
        for operation in &transaction.operations {
            let group_failed = |(group, _): &(usize, StoreError)| *group == operation.group;
            if failed.as_ref().is_some_and(group_failed) {
                continue;
            }
            let Some(dir) = transaction.dir(&operation.name) else {
                continue;
            };
            match perform(dir, operation) {
                Ok(()) if touched.iter().any(|known| std::ptr::eq(*known, dir)) => {}
                Ok(()) => touched.push(dir),
                Err(error) => {
                    let first = failed.map_or(error, |(_, first)| first);
                    failed = Some((operation.group, first));
                }
            }
        }
        failpoint("finish:renamed", self.state.path())?;
        let open: Vec<BorrowedFd<'_>> = touched.iter().map(|dir| dir.as_fd()).collect();
        sync::all(&open).map_err(|(index, errno)| {
            let path = touched
                .get(index)
                .map_or(self.state.path(), |dir| dir.path());
            StoreError::io("write", path, errno)
        })?;
        match failed {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Removes the record of staged files. Afterwards no temporary file of the commit is left.
    pub(super) fn close(&self) -> Result<(), StoreError> {
        if self.state.unlink(OsStr::new(STAGING.name))? {
            failpoint("finish:record-removed", self.state.path())?;
        }
        self.state.sync()
    }
}

fn perform(dir: &Dir, operation: &FileOperation) -> Result<(), StoreError> {
    let name = &operation.name.name;
    let path = dir.path().join(name);
    if operation.removes {
        failpoint("finish:remove-one", path)?;
        return dir.unlink(name).map(drop);
    }
    failpoint("finish:rename-one", path)?;
    dir.rename(&temporary_name(name), name)
}
