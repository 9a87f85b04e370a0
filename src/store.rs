//! The only writer below `--root`.
//!
//! [`Root`] reads: every path is the one on the node and is resolved inside the root. A mount of this machine that is
//! bound into the root (`/proc`, `/run`) is not part of it, for reading and for writing (`mounts`). [`Root::lock`] followed by
//! [`Locked::recover`] gives the [`Store`], which writes; nobody can write without holding the lock and without having
//! finished what an interrupted run began. The exception is [`Dir`], a directory of a file-drop signer: single files
//! that other programs read, each atomic on its own.
//!
//! # How a commit stays whole
//!
//! 1. Every target is looked at. A link where none is wanted, a directory, an immutable file, a mount point: refused,
//!    nothing was written.
//! 2. Every new file is written beside its target under an unfinished name, with the owner, mode and extended
//!    attributes of the file that it replaces. This proves room and permission.
//! 3. The journal is written: the digest of each old file and *the whole of each new one*. All of this is fsynced in
//!    one go; then the journal gets its name and the state directory is fsynced. **This is the point of commit.**
//! 4. Each file is renamed into place, those that shall go are unlinked, the directories are fsynced.
//! 5. Pending slots that are now done, then the journal, are removed.
//!
//! A crash before the point of commit leaves the old files and some unfinished ones, which the next run removes. A
//! crash after it is always rolled forward: since the journal holds the contents, nothing that happened to the
//! unfinished files matters, and rolling forward may itself be interrupted anywhere. No way back is needed, so no
//! backup is made. The price is that the bytes, some 100 KiB, are written twice.
//!
//! Files of one directory that differ only in their extension are one group: `apiserver.key` and `apiserver.crt`.
//! Rolling forward decides by group, so that a pair that somebody replaced after the crash is left alone as a whole.
//! Inside a group the private file is renamed first, as kubeadm writes it: who watches the certificate finds the key
//! already there. A file that goes is in the journal by its digest alone, never by its bytes, which may be a key; one
//! that somebody changed after the crash stays. A symbolic link is in the group of the file beside it that it leads to,
//! comes after that, and is in the journal by its target.
//!
//! # The state directory
//!
//! `/var/lib/nodepki`, 0700: `lock`, `journal.json` (0600), `staging.json` (which directories hold unfinished files),
//! `pending/SLOT/` (key, CSR, ticket, answer), `aside/` (what was moved out of the way, for 30 days and
//! at most 50 entries), `issued.json`,
//! `authorities.json` (CA changes under way), `restarts.json` (0600: what was replaced and has not taken effect yet),
//! `node.json` (0600: name, address and role of the node, recorded before the first request of a run and used while
//! requests are pending).
//!
//! What is found there is not trusted blindly, since it may be the state of another system (`--root`): a journal is
//! finished only if it belongs to the user who runs nodepki, and names files of the PKI with plain modes (`known`).
//! Any other one is left untouched and refused.
//!
//! To add a kind of change to a commit, extend the journal's entry, and its version if an older nodepki would do the
//! wrong thing with it.

mod changes;
mod commit;
mod dir;
mod error;
mod issued;
mod journal;
mod known;
mod lock;
mod mounts;
mod node;
mod pending;
mod recover;
mod restarts;
mod root;
mod sync;
mod target;
mod trust;

use std::path::Path;

use time::OffsetDateTime;
use time::macros::format_description;

pub use changes::AuthorityChange;
pub use commit::{Commit, Committed, Mode};
pub use dir::{Content, Dir, FileKind, Metadata};
pub use error::{Class, Error, Note, Obstacle, is_access_refusal};
pub use issued::Issued;
pub use known::KnownDirectories;
pub use lock::Locked;
pub(crate) use node::kept_node_path;
pub use node::{IdentityPart, KeptNode};
pub use pending::{Durability, LastError, Pending, Phase, Resumable, Slot, Ticket};
pub use recover::Recovery;
pub use restarts::{Changed, FormerTrust, Previous, Restart, RestartState, TrustStep, Unsettled};
pub use root::Root;
pub use trust::{Exposed, Exposure, Trust, is_personal};

/// Where nodepki keeps its state, on the node.
pub const STATE_DIR: &str = "/var/lib/nodepki";

/// No certificate, key, bundle or kubeconfig is larger than this many bytes.
pub const READ_LIMIT: u64 = 1024 * 1024;

/// The right to write, held until it is dropped.
#[derive(Debug)]
pub struct Store {
    root: Root,
    state: Dir,
    unfinished: bool,
    _lock: lock::Held,
}

impl Store {
    /// The root below which this store writes.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Returns true after a commit that ended with [`Error::Unfinished`].
    pub fn is_unfinished(&self) -> bool {
        self.unfinished
    }
}

/// A name that is free: the stem, the time, and a number if need be.
fn free_name(
    dir: &Dir,
    stem: &std::ffi::OsStr,
    now: OffsetDateTime,
) -> Result<std::ffi::OsString, Error> {
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

/// A place where a crash test may end or fail the run.
fn failpoint(name: &'static str, path: impl AsRef<Path>) -> Result<(), Error> {
    crate::process::failpoint::hit(name).map_err(|errno| Error::io("write", path, errno))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    hex(&Sha256::digest(bytes))
}
