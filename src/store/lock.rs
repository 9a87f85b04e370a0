//! The lock: flock(2) on a file in the state directory, so one process writes at a time.
//!
//! The kernel releases the lock when its holder ends, so a lock is never stale. The contents of the file are for error
//! messages only.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::calls::openat;
use super::dir::{Dir, Metadata, errno_of};
use super::error::{PathObstacle, StoreError, StoreNote};
use super::{NodeRoot, STATE_DIR};

pub(super) const LOCK_FILE: &str = "lock";
/// Interval between two attempts of a waiting process.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum length in bytes of the line in the lock file that is read.
const MAX_HOLDER_LENGTH: usize = 256;

/// The held lock. [`Locked::recover`] turns it into the right to write.
#[derive(Debug)]
pub struct Locked {
    pub(super) root: NodeRoot,
    pub(super) state: Dir,
    pub(super) lock: HeldLock,
    pub(super) notes: Vec<StoreNote>,
}

/// The lock itself, released when dropped.
///
/// Closing the file would not be enough: a child that was just forked shares the file until its exec.
#[derive(Debug)]
pub(super) struct HeldLock(File);

impl Drop for HeldLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl NodeRoot {
    /// Takes the lock, waiting at most `wait`. A missing state directory is created.
    ///
    /// `command` names this run in the errors of other processes, for example `nodepki renew`.
    ///
    /// # Errors
    /// [`StoreError::Busy`] after `wait`, with the process that holds the lock.
    pub fn lock(&self, wait: Duration, command: &str) -> Result<Locked, StoreError> {
        let mut notes = Vec::new();
        let state = self.state_dir(&mut notes)?;
        let lock = open_lock_file(&state)?;
        let deadline = Instant::now() + wait;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_RETRY_INTERVAL)
                }
                Err(fs::TryLockError::WouldBlock) => {
                    return Err(StoreError::Busy {
                        path: state.path().join(LOCK_FILE),
                        holder: read_holder(&lock),
                    });
                }
                Err(fs::TryLockError::Error(source)) if is_interruption(&source) => {}
                Err(fs::TryLockError::Error(source)) => {
                    return Err(state.error("lock", OsStr::new(LOCK_FILE), errno_of(&source)));
                }
            }
        }
        // The text is optional: on a full disk too, a run must be able to finish an interrupted one.
        let _ = write_holder(&lock, command);
        Ok(Locked {
            root: self.clone(),
            state,
            lock: HeldLock(lock),
            notes,
        })
    }

    fn state_dir(&self, notes: &mut Vec<StoreNote>) -> Result<Dir, StoreError> {
        // Owner and mode of the directory itself are verified below.
        if let Some(parent) = Path::new(STATE_DIR).parent() {
            self.require_guarded(parent)?;
        }
        let mut made = Vec::new();
        let state = self.make_dirs(STATE_DIR.as_ref(), 0o700, &mut made)?;
        // A journal is only as durable as the directory that it is in.
        for path in &made {
            self.sync_parent(path)?;
        }
        if !made.is_empty() {
            return Ok(state);
        }
        let metadata = state.own_metadata()?;
        let expected = nix::unistd::geteuid().as_raw();
        if metadata.uid != expected {
            return Err(StoreError::obstacle(
                state.path(),
                PathObstacle::Owner {
                    owner: metadata.uid,
                    expected,
                },
            ));
        }
        if metadata.mode != 0o700 {
            state.set_mode(0o700)?;
            notes.push(StoreNote::Tightened {
                path: state.path().to_owned(),
                from: metadata.mode,
                to: 0o700,
            });
        }
        Ok(state)
    }
}

/// Returns true if a signal interrupted the call, as flock(2) on NFS allows: it is repeated.
pub(super) fn is_interruption(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

fn open_lock_file(state: &Dir) -> Result<File, StoreError> {
    if let Some(found) = state.metadata(LOCK_FILE)? {
        verify_lock_file(state, &found)?;
    }
    let flags =
        OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let name = OsStr::new(LOCK_FILE);
    match openat(state, LOCK_FILE, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(fd) => Ok(File::from(fd)),
        Err(errno) => Err(match state.metadata(name)? {
            Some(metadata) => state
                .obstacle_of(name, &metadata)
                .unwrap_or_else(|| state.error("open", name, errno)),
            None => state.error("create", name, errno),
        }),
    }
}

/// Refuses a lock file that belongs to another user or has several names. The file is written in place, and the state
/// directory may be that of another, untrusted system.
fn verify_lock_file(state: &Dir, found: &Metadata) -> Result<(), StoreError> {
    if let Some(obstacle) = state.obstacle_of(OsStr::new(LOCK_FILE), found) {
        return Err(obstacle);
    }
    let expected = nix::unistd::geteuid().as_raw();
    let why = match found {
        found if found.uid != expected => format!("it belongs to user {}", found.uid),
        found if found.links > 1 => format!("it has {} hard links", found.links),
        _ => return Ok(()),
    };
    Err(StoreError::Implausible {
        path: state.path().join(LOCK_FILE),
        why,
    })
}

fn write_holder(lock: &File, command: &str) -> io::Result<()> {
    let text = format!(
        "pid {}: {}\n",
        std::process::id(),
        command.replace('\n', " ")
    );
    lock.write_all_at(text.as_bytes(), 0)?;
    lock.set_len(text.len() as u64)
}

fn read_holder(lock: &File) -> String {
    let mut text = [0; MAX_HOLDER_LENGTH];
    let length = lock.read_at(&mut text, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
    match text.lines().next() {
        Some(line) if !line.is_empty() => line.to_owned(),
        _ => "unknown process".to_owned(),
    }
}
