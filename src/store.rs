//! The only writer below `--root`.
//!
//! [`NodeRoot`] reads. Every path is a path on the node and is resolved inside the root. A mount of this machine that is bound
//! into the root (`/proc`, `/run`) is not part of it, for reading and for writing (`mounts`). [`NodeRoot::lock`] followed by
//! [`Locked::recover`] returns the [`Store`], which writes: writing requires the lock, and that the commit of an
//! interrupted run is finished. The exceptions are [`Dir`], a directory of a file-drop signer: single files that other
//! programs read, each of them written atomically; the records of kubelets' requests, which no commit contains; and the
//! issuance log, to which lines are appended.
//!
//! # The commit protocol
//!
//! 1. Examine every target. A symbolic link in place of a file, a directory, an immutable file or a mount point is
//!    refused before anything is written.
//! 2. Write every new file next to its target under a temporary name, with the owner, mode and extended attributes of
//!    the file that it replaces. This proves that space and permissions suffice.
//! 3. Write the journal: the digest of each old file and *the complete contents of each new one*. Fsync all of these
//!    files together, then rename the journal to its name and fsync the state directory. **This is the point of commit.**
//! 4. Rename each new file into place, unlink the files to be removed, then fsync every directory touched.
//! 5. Remove the completed pending slots, then the journal.
//!
//! A crash before the point of commit leaves the old files and some temporary files, which the next run removes. A crash
//! after it is always rolled forward: since the journal contains the contents, the state of the temporary files does not
//! matter, and rolling forward may be interrupted at any point as well. No rollback is needed, so no backup is made.
//! The price is that the bytes, some 100 KiB, are written twice.
//!
//! Files of one directory that differ only in their extension are one group: `apiserver.key` and `apiserver.crt`.
//! Rolling forward decides by group, so a pair that another process has replaced after the crash is left unchanged
//! as a whole. Within a group the private key is renamed first, in kubeadm's order, so a process watching the
//! certificate always finds the matching key. The journal contains a removed file by its digest only, never by its bytes,
//! which may be a key; a file to be removed that has changed after the crash stays. If the removed files are CA keys, the
//! journal names their backup with its digest, and those that still exist stay unless the backup is unchanged. A symbolic link belongs to the group
//! of its target in the same directory, is renamed after the target, and is in the journal by the name of the target.
//!
//! # The state directory
//!
//! `/var/lib/nodepki`, 0700, contains:
//!
//! - `lock`;
//! - `journal.json` (0600): the commit that is not finished;
//! - `staging.json`: the directories with temporary files;
//! - `pending/SLOT/`: key, CSR, ticket and answer of a request;
//! - `kubelets/UID.json` (0600): a kubelet's request that was sent to the signer (`kubelet_requests`);
//! - `audit.jsonl`, `audit-SEQ.jsonl` (0600): the issuance log (`audit_log`);
//! - `aside/`: what was set aside, for 30 days and at most 50 entries;
//! - `cluster-policy.json` (0600): the key policy of the cluster (`cluster_policy`);
//! - `issued.json`: when each certificate was issued;
//! - `authorities.json`: CA changes under way;
//! - `cluster-rotations.json` (0600), `rotation-steps.json` (0600): CA changes of the whole cluster (`authority_rotation`);
//! - `sealing-key.json` (0600), `service-account-keys.json` (0600): keys of a change of the service-account key
//!   (`service_account_rotation`);
//! - `restarts.json` (0600): replaced files that have not taken effect yet;
//! - `node.json` (0600): name, address and role of the node, recorded before the first request of a run and used while
//!   requests are pending.
//!
//! The state directory may be that of another system (`--root`) and is not trusted: a journal is finished only if it
//! belongs to the user who runs nodepki, and names only files of the PKI with plain modes (`known`). Any other journal is
//! refused and left untouched. `state_file` has the rules of format versions.
//!
//! To add a kind of change to a commit, extend `desired::DesiredState` and `journal::JournalEntry`, and raise the
//! journal's version if an older nodepki would do the wrong thing with the entry.

mod amendment;
mod audit_log;
mod authority_rotation;
mod calls;
mod changes;
mod cluster_policy;
mod commit;
mod desired;
mod dir;
mod error;
mod finish;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod issued;
mod journal;
mod key_backup;
mod known;
mod kubelet_requests;
mod lock;
mod mounts;
mod node;
mod pending;
mod preflight;
mod recover;
mod restarts;
mod root;
mod service_account_rotation;
mod staging;
mod state_file;
mod sync;
mod target;
mod transaction;
mod trust;

#[cfg(test)]
mod tests;

use std::path::Path;

use time::OffsetDateTime;
use time::macros::format_description;

pub use audit_log::{
    AuditDifference, AuditEntry, AuditEvent, AuditHead, AuditRecord, AuditVerification,
};
pub use authority_rotation::{ClusterRotations, RotationSteps};
pub use changes::AuthorityChange;
pub use cluster_policy::{CLUSTER_POLICY, ClusterPolicyRecord};
pub use commit::Commit;
pub use desired::Mode;
pub use dir::{Dir, FileContent, FileKind, Metadata};
pub use error::{Damage, ErrorClass, PathObstacle, StoreError, StoreNote};
pub(crate) use error::{is_access_refusal, is_not_permitted, not_a_directory};
pub use issued::IssuedRecord;
pub(crate) use key_backup::{KeyBackup, UnfinishedWork};
pub use known::KnownDirectories;
pub use kubelet_requests::KubeletRequestRecord;
pub use lock::Locked;
pub(crate) use node::node_record_path;
pub use node::{IdentityPart, NodeRecord};
pub use pending::{
    Durability, LastError, OFFLINE_SIGNER, PendingRequest, PendingRequests, RecordedRequest,
    RequestPhase, RequestRecord, Slot,
};
pub(crate) use recover::KeyRemoval;
pub use recover::Recovery;
pub use restarts::{
    FormerContents, FormerTrust, Restart, RestartState, TrustStep, Unsettled, UnverifiedChange,
};
pub use root::NodeRoot;
pub use service_account_rotation::{SealingKeyRecord, ServiceAccountKeys};
pub(crate) use state_file::StateFile;
pub use transaction::Committed;
pub(crate) use trust::is_personal;
pub use trust::{DirectoryTrust, Exposed, Exposure};

/// The state directory, on the node.
pub const STATE_DIR: &str = "/var/lib/nodepki";

/// Maximum size in bytes of a certificate, key, bundle or kubeconfig.
pub const READ_LIMIT: u64 = 1024 * 1024;

/// The right to write, held until it is dropped.
#[derive(Debug)]
pub struct Store {
    root: NodeRoot,
    state: Dir,
    unfinished: bool,
    _lock: lock::HeldLock,
}

impl Store {
    /// Returns the root that this store writes below.
    pub fn root(&self) -> &NodeRoot {
        &self.root
    }

    /// Returns true after a commit that ended with [`StoreError::Unfinished`].
    pub fn is_unfinished(&self) -> bool {
        self.unfinished
    }
}

/// Returns an unused name: the stem, the time, and a number if that name exists.
fn free_name(
    dir: &Dir,
    stem: &std::ffi::OsStr,
    now: OffsetDateTime,
) -> Result<std::ffi::OsString, StoreError> {
    let time = now
        .to_offset(time::UtcOffset::UTC)
        .format(format_description!(
            "[year][month][day]T[hour][minute][second]Z"
        ))
        .unwrap_or_else(|_| now.unix_timestamp().to_string());
    let mut number = 1;
    loop {
        let mut name = stem.to_owned();
        name.push(&time);
        if number > 1 {
            name.push(format!("-{number}"));
        }
        if dir.metadata(&name)?.is_none() {
            return Ok(name);
        }
        number += 1;
    }
}

/// Marks a step at which a crash test can end the process or make the run fail.
fn failpoint(name: &'static str, path: impl AsRef<Path>) -> Result<(), StoreError> {
    crate::process::failpoint::hit(name).map_err(|errno| StoreError::io("write", path, errno))
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    crate::text::hex(&Sha256::digest(bytes))
}
