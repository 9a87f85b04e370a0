//! The report of `migrate to-external` and `migrate to-internal`.

use std::fmt;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::agent::{ExitCode, Failure};
use crate::kube::names::{Authority, NodePath};

/// Observations and actions of a migration, taken or planned.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MigrationReport {
    pub(super) direction: Direction,
    /// False without `--apply`, if nothing was due, and if something is unproven.
    pub(super) applied: bool,
    /// One row for each authority whose key is on the node, or in a backup.
    pub(super) authorities: Vec<AuthorityRow>,
    /// All reasons why nothing is applied.
    #[serde(serialize_with = "messages")]
    pub(super) unproven: Vec<Failure>,
    /// The backup with the keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backup: Option<PathBuf>,
    pub(super) written: Vec<PathBuf>,
    pub(super) removed: Vec<PathBuf>,
    /// Consequences for the cluster, and what to do about each.
    pub(super) changes: Vec<String>,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuthorityRow {
    pub(super) authority: Authority,
    /// Path of the private key on the node.
    pub(super) key: NodePath,
    pub(super) action: KeyAction,
    /// The proofs, in sentences.
    pub(super) proven: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Direction {
    /// CA keys are removed from the node.
    ToExternal,
    /// CA keys are restored from backups.
    ToInternal,
}

/// The action for the key of an authority, planned or taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    ToBeRemoved,
    Removed,
    ToBeWritten,
    Written,
    /// The key of the backup is already on the node.
    InPlace,
    /// Nothing is changed, since something is unproven or the file is not overwritten.
    Kept,
    /// The key would have been written if everything had been proven.
    LeftOut,
}

impl KeyAction {
    const fn as_str(self) -> &'static str {
        match self {
            KeyAction::ToBeRemoved => "to be removed",
            KeyAction::Removed => "removed",
            KeyAction::ToBeWritten => "to be written",
            KeyAction::Written => "written",
            KeyAction::InPlace => "in place",
            KeyAction::Kept => "kept",
            KeyAction::LeftOut => "left out",
        }
    }
}

impl fmt::Display for KeyAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for KeyAction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

fn messages<S: Serializer>(failures: &[Failure], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(failures.iter().flat_map(Failure::texts))
}

impl MigrationReport {
    pub(super) fn new(direction: Direction) -> Self {
        MigrationReport {
            direction,
            applied: false,
            authorities: Vec::new(),
            unproven: Vec::new(),
            backup: None,
            written: Vec::new(),
            removed: Vec::new(),
            changes: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the gravest code of what is unproven.
    pub(super) fn code(&self) -> ExitCode {
        let codes = self.unproven.iter().map(|failure| failure.code);
        codes.max().unwrap_or(ExitCode::Done)
    }

    /// Adds a reason why nothing is applied.
    pub(super) fn refuse(&mut self, message: impl Into<String>) {
        self.unproven.push(Failure::new(ExitCode::Refused, message));
    }

    /// Replaces the action of rows that have `planned`.
    pub(super) fn replace_action(&mut self, planned: KeyAction, action: KeyAction) {
        for row in &mut self.authorities {
            if row.action == planned {
                row.action = action;
            }
        }
    }
}
