//! One run at a time: flock(2) on a file in the state directory.
//!
//! The kernel lets go of the lock when its holder dies, so a lock is never stale. What the file says is only for
//! people.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::dir::{Dir, Metadata, errno_of};
use super::error::{Error, Note, Obstacle};
use super::{Root, STATE_DIR};

pub(super) const LOCK: &str = "lock";
/// Between two tries. A waiting run notices the end of the other within this time.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// The lock, before anything else was done: only [`Locked::recover`] leads on.
#[derive(Debug)]
pub struct Locked {
    pub(super) root: Root,
    pub(super) state: Dir,
    pub(super) lock: Held,
    pub(super) notes: Vec<Note>,
}

/// The lock itself, let go of when dropped.
///
/// Closing the file would not be enough: a child forked a moment ago shares it until its exec.
#[derive(Debug)]
pub(super) struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl Root {
    /// Takes the lock, making the state directory if it is missing; blocks for at most `wait`.
    ///
    /// `command` is what another run will be told is at work here, for example `nodepki renew`.
    ///
    /// # Errors
    /// [`Error::Busy`] after `wait`, naming the process that holds the lock.
    pub fn lock(&self, wait: Duration, command: &str) -> Result<Locked, Error> {
        let mut notes = Vec::new();
        let state = self.state_dir(&mut notes)?;
        if let Some(found) = state.metadata(LOCK)? {
            verify(&state, &found)?;
        }
        let flags = OFlag::O_RDWR
            | OFlag::O_CREAT
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC
            | OFlag::O_NONBLOCK;
        let lock = match openat(&state, LOCK, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
            Ok(fd) => File::from(fd),
            Err(errno) => {
                return Err(match state.metadata(LOCK)? {
                    Some(metadata) => state
                        .obstacle_of(OsStr::new(LOCK), &metadata)
                        .unwrap_or_else(|| state.error("open", OsStr::new(LOCK), errno)),
                    None => state.error("create", OsStr::new(LOCK), errno),
                });
            }
        };
        let give_up = Instant::now() + wait;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(fs::TryLockError::WouldBlock) if Instant::now() < give_up => {
                    std::thread::sleep(TRY_AGAIN)
                }
                Err(fs::TryLockError::WouldBlock) => {
                    return Err(Error::Busy {
                        path: state.path().join(LOCK),
                        holder: holder(&lock),
                    });
                }
                Err(fs::TryLockError::Error(source)) => {
                    return Err(state.error("lock", OsStr::new(LOCK), errno_of(&source)));
                }
            }
        }
        // A full disk must not keep a run from finishing an earlier one: the text is a courtesy.
        let _ = introduce(&lock, command);
        Ok(Locked {
            root: self.clone(),
            state,
            lock: Held(lock),
            notes,
        })
    }

    fn state_dir(&self, notes: &mut Vec<Note>) -> Result<Dir, Error> {
        // Its own owner and mode are judged below.
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
            return Err(Error::obstacle(
                state.path(),
                Obstacle::Owner {
                    owner: metadata.uid,
                    expected,
                },
            ));
        }
        if metadata.mode != 0o700 {
            state.set_mode(0o700)?;
            notes.push(Note::Tightened {
                path: state.path().to_owned(),
                from: metadata.mode,
                to: 0o700,
            });
        }
        Ok(state)
    }
}

/// Refuses a lock file that is anything but one of the running user under one name, since it is written in place: the
/// state directory may be that of another, untrusted system.
fn verify(state: &Dir, found: &Metadata) -> Result<(), Error> {
    if let Some(obstacle) = state.obstacle_of(OsStr::new(LOCK), found) {
        return Err(obstacle);
    }
    let expected = nix::unistd::geteuid().as_raw();
    let why = match found {
        found if found.uid != expected => format!("it belongs to user {}", found.uid),
        found if found.links > 1 => format!("it has {} hard links", found.links),
        _ => return Ok(()),
    };
    Err(Error::Implausible {
        path: state.path().join(LOCK),
        why,
    })
}

fn introduce(lock: &File, command: &str) -> io::Result<()> {
    let text = format!(
        "pid {}: {}\n",
        std::process::id(),
        command.replace('\n', " ")
    );
    lock.write_all_at(text.as_bytes(), 0)?;
    lock.set_len(text.len() as u64)
}

fn holder(lock: &File) -> String {
    let mut text = [0; 256];
    let length = lock.read_at(&mut text, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
    match text.lines().next() {
        Some(line) if !line.is_empty() => line.to_owned(),
        _ => "a process that has not said its name yet".to_owned(),
    }
}
