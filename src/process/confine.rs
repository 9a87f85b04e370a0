//! The second wall: a run takes from itself, for good, what it will not need (landlock(7), no_new_privs).
//!
//! The first one is the sandbox of the units; this one also stands where a person or cloud-init runs nodepki. From
//! [`confine`] on this process
//! - writes, makes, moves and removes files only below the directories of its [`Reach`],
//! - runs programs only from where an operating system keeps its own, none that it has written,
//! - opens no TCP port to listen at; the one for metrics stands before,
//! - gains nothing by a program that is set-user-ID.
//!
//! Reading is left open: what is secret on a control-plane node is what a run reads anyway, and the files that a
//! configuration names change with it. So are connections: signers are wherever the configuration says.
//!
//! Programs of others (signers of kind exec, hooks) do what they do, which nobody here can know. They are started by a
//! thread that stays outside of the wall, and are not confined; without any in the configuration there is no such thread.
//!
//! A kernel that knows nothing of this (before 5.19), or has it switched off, is no reason not to run: that is logged.
//! To confine more, handle another right in `restrict` and grant it where it is needed.

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

/// What was tested; a newer kernel's rights are left alone.
const KNOWN: ABI = ABI::V5;
/// Where an operating system keeps programs, their libraries and loaders.
const PROGRAMS: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];
/// Opened to be written by whoever starts a program.
const NULL: &str = "/dev/null";

/// What a run needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Directories on this machine below which files are written; one that does not exist yet will be made.
    pub writes: BTreeSet<PathBuf>,
    /// Likewise, where they exist when the wall goes up; nobody makes them.
    pub writes_if_there: BTreeSet<PathBuf>,
    /// Programs that the configuration names are run.
    pub programs: bool,
}

impl Reach {
    /// What `wanted` needs beyond this, in words.
    pub fn lacks(&self, wanted: &Reach) -> Option<String> {
        let covered = |path: &&PathBuf| !self.writes.iter().any(|open| path.starts_with(open));
        match wanted.writes.iter().find(covered) {
            Some(path) => Some(format!("write below {}", path.display())),
            None if wanted.programs && !self.programs => Some("run programs".to_owned()),
            None => None,
        }
    }
}

/// Something to do outside of the wall.
type Work = Box<dyn FnOnce() + Send>;

static OUTSIDE: OnceLock<Sender<Work>> = OnceLock::new();

/// Confines this thread, and all that it will start, to `reach`. To be called once, before there are other threads.
pub fn confine(reach: &Reach) {
    if reach.programs
        && let Err(error) = stay_outside()
    {
        tracing::info!("not confined: the thread that starts programs could not be made: {error}");
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

fn restrict(reach: &Reach) -> Result<RestrictionStatus, RulesetError> {
    let write = AccessFs::from_write(KNOWN);
    let writes = reach.writes.iter().map(|path| existing(path));
    Ruleset::default()
        // Without this right, which 5.19 brought, nothing could be moved from one directory to another.
        .set_compatibility(CompatLevel::SoftRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(write | AccessFs::Execute)?
        .handle_access(AccessNet::BindTcp)?
        .create()?
        .add_rules(path_beneath_rules(writes, write))?
        .add_rules(path_beneath_rules(&reach.writes_if_there, write))?
        .add_rules(path_beneath_rules(PROGRAMS, AccessFs::Execute))?
        .add_rules(path_beneath_rules([NULL], AccessFs::WriteFile))?
        .restrict_self()
}

/// The directory itself, or the one that it will be made in.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(path)
}

fn stay_outside() -> io::Result<()> {
    let (sender, receiver) = channel::<Work>();
    thread::Builder::new()
        .name("programs".to_owned())
        .spawn(move || {
            for work in receiver {
                work();
            }
        })?;
    // Of a second call the first one's thread does the work.
    let _ = OUTSIDE.set(sender);
    Ok(())
}

/// Starts a program of others, outside of the wall if there is one.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn(mut command: Command) -> io::Result<Child> {
    let Some(outside) = OUTSIDE.get() else {
        return interrupt::spawning(|| command.spawn());
    };
    let runtime = Handle::current();
    let (sender, receiver) = channel();
    let work = move || {
        let _runtime = runtime.enter();
        let _ = sender.send(interrupt::spawning(|| command.spawn()));
    };
    let gone = || io::Error::other("the thread that starts programs has ended");
    outside.send(Box::new(work)).map_err(|_| gone())?;
    receiver.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(writes: &[&str], programs: bool) -> Reach {
        Reach {
            writes: writes.iter().map(PathBuf::from).collect(),
            programs,
            ..Reach::default()
        }
    }

    #[test]
    fn a_new_configuration_is_held_against_what_was_granted() {
        let granted = reach(&["/etc/kubernetes", "/var/lib/nodepki"], false);
        assert_eq!(granted.lacks(&granted), None);
        assert_eq!(granted.lacks(&reach(&["/etc/kubernetes/pki"], false)), None);
        let elsewhere = granted.lacks(&reach(&["/etc/kubernetes2"], false));
        assert_eq!(elsewhere.as_deref(), Some("write below /etc/kubernetes2"));
        let programs = granted.lacks(&reach(&[], true));
        assert_eq!(programs.as_deref(), Some("run programs"));
    }

    #[test]
    fn a_directory_that_is_to_be_made_needs_the_one_above() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(existing(&dir.path().join("a/b")), dir.path());
        assert_eq!(existing(dir.path()), dir.path());
    }
}
