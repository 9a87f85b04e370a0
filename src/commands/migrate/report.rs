//! The report of `migrate` and `capi migrate`, in both directions.

use std::fmt::Display;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::agent::{ExitCode, Failure};
use crate::commands::options::GlobalOptions;
use crate::commands::output::{DocumentKind, print_message};
use crate::kube::names::{Authority, NodePath};

/// Observations and actions of a migration, taken or planned.
///
/// `K` is the location of a key: a path on a node, or an entry of a Secret.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) struct MigrationReport<K = NodePath> {
    pub(in crate::commands) direction: Direction,
    /// False without `--apply`, if nothing was due, and if something is unproven.
    pub(in crate::commands) applied: bool,
    /// Before keys are removed, each signer signs a certificate.
    #[serde(skip)]
    pub(in crate::commands) has_signing_proof: bool,
    /// One row for each authority whose key is on the node or in a Secret, or in a backup.
    pub(in crate::commands) authorities: Vec<AuthorityRow<K>>,
    /// All reasons why nothing is applied.
    #[serde(serialize_with = "messages")]
    pub(in crate::commands) unproven: Vec<Failure>,
    /// The backup with the keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands) backup: Option<PathBuf>,
    pub(in crate::commands) written: Vec<PathBuf>,
    pub(in crate::commands) removed: Vec<PathBuf>,
    /// Consequences for the cluster, and what to do about each.
    pub(in crate::commands) changes: Vec<String>,
    pub(in crate::commands) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) struct AuthorityRow<K = NodePath> {
    pub(in crate::commands) authority: Authority,
    /// Location of the private key.
    pub(in crate::commands) key: K,
    pub(in crate::commands) action: KeyAction,
    /// The proofs, in sentences.
    pub(in crate::commands) proven: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) enum Direction {
    /// CA keys are removed from the node.
    ToExternal,
    /// CA keys are restored from backups.
    ToInternal,
}

words! {
    /// The action for the key of an authority, planned or taken.
    pub(in crate::commands) enum KeyAction: Serialize {
        ToBeRemoved = "to be removed",
        Removed = "removed",
        ToBeWritten = "to be written",
        Written = "written",
        /// The key of the backup is already on the node.
        InPlace = "in place",
        /// Nothing is changed, since something is unproven or the file is not overwritten.
        Kept = "kept",
        /// The key would have been written if everything had been proven.
        LeftOut = "left out",
    }
}

fn messages<S: Serializer>(failures: &[Failure], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(failures.iter().flat_map(Failure::texts))
}

impl<K> MigrationReport<K> {
    pub(in crate::commands) fn new(direction: Direction) -> Self {
        MigrationReport {
            direction,
            applied: false,
            has_signing_proof: false,
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
    pub(in crate::commands) fn code(&self) -> ExitCode {
        let codes = self.unproven.iter().map(|failure| failure.code);
        codes.max().unwrap_or(ExitCode::Done)
    }

    /// Adds a reason why nothing is applied.
    pub(in crate::commands) fn refuse(&mut self, message: impl Into<String>) {
        self.unproven.push(Failure::refused(message));
    }

    /// Returns whether there is a row of an authority.
    pub(in crate::commands) fn contains(&self, authority: Authority) -> bool {
        let mut rows = self.authorities.iter();
        rows.any(|row| row.authority == authority)
    }

    /// Keeps the keys that were to be removed if something is unproven.
    pub(in crate::commands) fn keep_if_unproven(&mut self) {
        if !self.unproven.is_empty() {
            self.replace_action(KeyAction::ToBeRemoved, KeyAction::Kept);
        }
    }

    /// Replaces the action of rows that have `planned`.
    pub(in crate::commands) fn replace_action(&mut self, planned: KeyAction, action: KeyAction) {
        for row in &mut self.authorities {
            if row.action == planned {
                row.action = action;
            }
        }
    }

    /// Refuses for each of these authorities without a row. `describe` names the key that no backup contains.
    pub(in crate::commands) fn require_keys<'a>(
        &mut self,
        authorities: impl IntoIterator<Item = &'a Authority>,
        describe: impl Fn(Authority) -> String,
    ) {
        for authority in authorities {
            if !self.contains(*authority) {
                self.refuse(format!(
                    "no backup contains the key of {} (name the one that does with --backup)",
                    describe(*authority)
                ));
            }
        }
    }
}

impl<K: Display + Serialize> MigrationReport<K> {
    /// Prints the report, then what is unproven. `holder` is the place from which keys are removed.
    pub(in crate::commands) fn print(
        &self,
        global: &GlobalOptions,
        holder: &str,
    ) -> Result<ExitCode, Failure> {
        let (kind, code) = (DocumentKind::Migration, self.code());
        global.print_body(kind, code, self, || self.text(holder))?;
        for message in self.unproven.iter().flat_map(Failure::texts) {
            print_message(&message);
        }
        Ok(code)
    }

    fn text(&self, holder: &str) -> String {
        let mut text = String::new();
        for row in &self.authorities {
            text.push_str(&format!(
                "{:<15} {:<15} {}\n",
                row.authority, row.action, row.key
            ));
            for proven in &row.proven {
                text.push_str(&format!("    {proven}\n"));
            }
        }
        let nothing = match self.direction {
            _ if !self.unproven.is_empty() => None,
            Direction::ToExternal => self
                .authorities
                .is_empty()
                .then(|| format!("nothing to do: {holder} has no CA private key to remove\n")),
            Direction::ToInternal => self
                .authorities
                .iter()
                .all(|row| row.action == KeyAction::InPlace)
                .then(|| "nothing to do: the keys are in place\n".to_owned()),
        };
        text.push_str(nothing.as_deref().unwrap_or_default());
        if let (true, Some(backup)) = (self.applied, &self.backup) {
            text.push_str(&format!("backup: {}\n", backup.display()));
        }
        if self.unproven.is_empty() && !self.changes.is_empty() {
            text.push_str(if self.applied {
                "consequences:\n"
            } else {
                "consequences of --apply:\n"
            });
            for change in &self.changes {
                text.push_str(&format!("    {change}\n"));
            }
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text.push_str(match (self.unproven.is_empty(), self.direction) {
            (false, _) => "not everything is proven; nothing was changed\n",
            _ if self.applied || nothing.is_some() => "",
            (_, Direction::ToExternal) if self.has_signing_proof => {
                "nothing was changed (to remove the keys, after each signer has signed a certificate as proof, add --apply --backup FILE --passphrase-file FILE)\n"
            }
            (_, Direction::ToExternal) => {
                "nothing was changed (to remove the keys, add --apply --backup FILE --passphrase-file FILE)\n"
            }
            (_, Direction::ToInternal) => "nothing was changed (to restore the keys, add --apply)\n",
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announces_signing_proof_only_if_signers_sign() {
        let mut report = MigrationReport::new(Direction::ToExternal);
        report.authorities.push(AuthorityRow {
            authority: Authority::Ca,
            key: NodePath::from("/etc/kubernetes/pki/ca.key"),
            action: KeyAction::ToBeRemoved,
            proven: Vec::new(),
        });
        let advice = "add --apply --backup FILE --passphrase-file FILE)\n";
        for (has_signing_proof, words) in [
            (false, "(to remove the keys, "),
            (
                true,
                "(to remove the keys, after each signer has signed a certificate as proof, ",
            ),
        ] {
            report.has_signing_proof = has_signing_proof;
            let text = report.text("this node");
            assert!(text.ends_with(&format!("{words}{advice}")), "{text}");
        }
    }
}
