//! Confines the process: it permanently gives up the rights that it does not need (landlock(7), no_new_privs).
//!
//! This is the second layer after the sandbox of the systemd units, and also applies if an administrator or cloud-init
//! runs nodepki. After [`confine`] this process
//! - writes, creates, moves and removes files only below the directories of its [`Rights`],
//! - runs programs only from directories of the operating system, and none that it has written,
//! - cannot listen on further TCP ports; the port for metrics is opened before,
//! - gains no rights from a set-user-ID program.
//!
//! Reading is not restricted: a run has to read the secrets of a control-plane node anyway, and the set of files changes
//! with the configuration. Connections are not restricted either: the addresses of signers are configured.
//!
//! The needs of external programs (signers of kind exec, hooks) are unknown. A thread that is not confined starts them,
//! so that they are not confined either. Without such programs in the configuration, that thread does not exist.
//!
//! If the kernel does not support this (before 5.19), or it is disabled, the run continues and logs that. To confine
//! more, handle another right in `restrict` and grant it where it is needed.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use landlock::{
    ABI, AccessFs, AccessNet, CompatLevel, Compatible, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, path_beneath_rules,
};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use crate::process::interrupt;

/// The tested version; rights of newer kernels are not restricted.
const LANDLOCK_ABI: ABI = ABI::V5;
/// Directories of the operating system with programs, libraries and loaders.
const PROGRAM_DIRECTORIES: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];
/// Opened for writing whenever a program is started.
const DEV_NULL: &str = "/dev/null";

/// The rights that a run needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Directories on this machine below which files are written. Missing ones will be created.
    pub writes: BTreeSet<PathBuf>,
    /// Likewise, but only those that exist when the process is confined. They are not created.
    pub writes_if_there: BTreeSet<PathBuf>,
    /// Whether the configuration contains programs to run.
    pub programs: bool,
}

impl Rights {
    /// Returns what `wanted` needs in addition to this, as a verb phrase.
    pub fn lacks(&self, wanted: &Rights) -> Option<String> {
        let covered = |path: &&PathBuf| !self.writes.iter().any(|open| path.starts_with(open));
        match wanted.writes.iter().find(covered) {
            Some(path) => Some(format!("write below {}", path.display())),
            None if wanted.programs && !self.programs => Some("run programs".to_owned()),
            None => None,
        }
    }
}

/// A task for the thread that is not confined.
type UnconfinedTask = Box<dyn FnOnce() + Send>;

static UNCONFINED_THREAD: OnceLock<Sender<UnconfinedTask>> = OnceLock::new();

/// Confines this thread and its future child threads to `reach`. Must be called once, before other threads exist.
pub fn confine(reach: &Rights) {
    if reach.programs
        && let Err(error) = start_unconfined_thread()
    {
        tracing::info!("not confined: cannot create the thread that starts programs: {error}");
        return;
    }
    match restrict(reach) {
        Ok(status) => {
            let files = match status.ruleset {
                RulesetStatus::FullyEnforced => "in full",
                RulesetStatus::PartiallyEnforced => "as far as this kernel can",
                RulesetStatus::NotEnforced => {
                    "not at all: this kernel has no Landlock, or an old one"
                }
            };
            let writes: Vec<_> = reach
                .writes
                .iter()
                .map(|path| path.to_string_lossy())
                .collect();
            let no_new_privs = status.no_new_privs;
            if status.ruleset == RulesetStatus::FullyEnforced {
                tracing::debug!(writes = writes.join(" "), no_new_privs, "confined {files}");
            } else {
                tracing::info!(writes = writes.join(" "), no_new_privs, "confined {files}");
            }
        }
        Err(error) => tracing::info!("not confined: {error}"),
    }
}

fn restrict(reach: &Rights) -> Result<RestrictionStatus, RulesetError> {
    let write = AccessFs::from_write(LANDLOCK_ABI);
    let writes = reach.writes.iter().map(|path| nearest_existing(path));
    Ruleset::default()
        // Without this right, which Linux 5.19 introduced, no file could be moved between directories.
        .set_compatibility(CompatLevel::SoftRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(write | AccessFs::Execute)?
        .handle_access(AccessNet::BindTcp)?
        .create()?
        .add_rules(path_beneath_rules(writes, write))?
        .add_rules(path_beneath_rules(&reach.writes_if_there, write))?
        .add_rules(path_beneath_rules(PROGRAM_DIRECTORIES, AccessFs::Execute))?
        .add_rules(path_beneath_rules([DEV_NULL], AccessFs::WriteFile))?
        .restrict_self()
}

/// Returns the directory, or its nearest existing parent.
fn nearest_existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(path)
}

fn start_unconfined_thread() -> io::Result<()> {
    let (sender, receiver) = channel::<UnconfinedTask>();
    thread::Builder::new()
        .name("programs".to_owned())
        .spawn(move || {
            for task in receiver {
                task();
            }
        })?;
    // After a second call, the thread of the first one does the work.
    let _ = UNCONFINED_THREAD.set(sender);
    Ok(())
}

/// Starts an external program, unconfined if this process is confined.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn(mut command: Command) -> io::Result<Child> {
    let Some(thread) = UNCONFINED_THREAD.get() else {
        return interrupt::spawning(|| command.spawn());
    };
    let runtime = Handle::current();
    let (sender, receiver) = channel();
    let task = move || {
        let _runtime = runtime.enter();
        let _ = sender.send(interrupt::spawning(|| command.spawn()));
    };
    let ended = || io::Error::other("the thread that starts programs has ended");
    thread.send(Box::new(task)).map_err(|_| ended())?;
    receiver.recv().map_err(|_| ended())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(writes: &[&str], programs: bool) -> Rights {
        Rights {
            writes: writes.iter().map(PathBuf::from).collect(),
            programs,
            ..Rights::default()
        }
    }

    #[test]
    fn reports_rights_missing_for_new_configuration() {
        let granted = reach(&["/etc/kubernetes", "/var/lib/nodepki"], false);
        assert_eq!(granted.lacks(&granted), None);
        assert_eq!(granted.lacks(&reach(&["/etc/kubernetes/pki"], false)), None);
        let elsewhere = granted.lacks(&reach(&["/etc/kubernetes2"], false));
        assert_eq!(elsewhere.as_deref(), Some("write below /etc/kubernetes2"));
        let programs = granted.lacks(&reach(&[], true));
        assert_eq!(programs.as_deref(), Some("run programs"));
    }

    #[test]
    fn grants_nearest_parent_of_missing_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(nearest_existing(&dir.path().join("a/b")), dir.path());
        assert_eq!(nearest_existing(dir.path()), dir.path());
    }
}
