//! Signals to a run that has started programs: the programs end with it.
//!
//! Plug-ins and hooks run in process groups of their own, so a SIGTERM to nodepki, or a Ctrl-C, does not reach them. Once
//! [`end_programs_too`] was called, the first program that is started brings a thread that waits for SIGTERM, SIGINT and
//! SIGHUP. On one of them it ends the groups (SIGTERM, then SIGKILL) and the process, with exit code 75. To the store this
//! is a crash like any other: what was pending stays resumable. A run without programs dies of the signal, and the daemon,
//! which has its own handlers, does not call [`end_programs_too`].
//!
//! SIGKILL reaches no handler: a program outlives it, up to its timeout.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a run that a signal has ended: run again.
const RUN_AGAIN: i32 = 75;
/// Time between SIGTERM and SIGKILL for the programs.
const GRACE: Duration = Duration::from_secs(2);
/// Interval at which the programs are looked at during [`GRACE`].
const POLL_INTERVAL: Duration = Duration::from_millis(20);

static ENABLED: AtomicBool = AtomicBool::new(false);
static STARTED: OnceLock<()> = OnceLock::new();
/// The process groups of running programs.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Has programs that are started from now on end with this process when a signal ends it.
pub fn end_programs_too() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Starts a program that leads a process group, and remembers the group.
///
/// # Errors
/// As `spawn`.
pub(crate) fn spawning(spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
    if ENABLED.load(Ordering::Relaxed) {
        STARTED.get_or_init(|| {
            if let Err(error) = watch() {
                tracing::info!("programs outlive a signal to this process: {error}");
            }
        });
    }
    // Held until the group is known: a signal in between would miss it.
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let child = spawn()?;
    groups.extend(group_of(&child));
    Ok(child)
}

/// The process group that a program leads.
pub(crate) fn group_of(child: &Child) -> Option<Pid> {
    let id = i32::try_from(child.id()?).ok()?;
    Some(Pid::from_raw(id))
}

/// Forgets a group that has ended or was ended.
pub(crate) fn forget(group: Pid) {
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    groups.retain(|known| *known != group);
}

/// Starts the thread, and returns once it would notice a signal.
fn watch() -> io::Result<()> {
    crate::process::machine::require_descriptors()?;
    let (ready, is_ready) = channel();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let name = match wait(&ready) {
                Ok(name) => name,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            end_programs();
            let _ = writeln!(
                io::stderr(),
                "nodepki: ended by {name}, and the programs that it had started with it; run the same command again to go on"
            );
            std::process::exit(RUN_AGAIN);
        })?;
    is_ready
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("its thread has ended")))
}

/// Waits for a signal that this process does not ignore (nohup(1) has it ignore SIGHUP).
fn wait(ready: &Sender<io::Result<()>>) -> io::Result<&'static str> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let ignored = ignored();
        let listen = |kind: SignalKind| {
            let bit = 1_u64 << (kind.as_raw_value() - 1);
            match ignored & bit {
                0 => signal(kind).map(Some),
                _ => Ok(None),
            }
        };
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut hangup = listen(SignalKind::hangup())?;
        let _ = ready.send(Ok(()));
        Ok(tokio::select! {
            Some(()) = next(&mut terminate) => "SIGTERM",
            Some(()) = next(&mut interrupt) => "SIGINT",
            Some(()) = next(&mut hangup) => "SIGHUP",
            else => std::future::pending().await,
        })
    })
}

async fn next(signal: &mut Option<tokio::signal::unix::Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => None,
    }
}

/// The mask of ignored signals (proc(5), `SigIgn`); none where it cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

fn end_programs() {
    // Never let go of: nothing is started any more.
    let groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_left = |group: &&Pid| killpg(**group, None) != Err(Errno::ESRCH);
    for group in groups.iter() {
        let _ = killpg(*group, Signal::SIGTERM);
    }
    let began = Instant::now();
    while began.elapsed() < GRACE && groups.iter().any(|group| is_left(&group)) {
        thread::sleep(POLL_INTERVAL);
    }
    for group in groups.iter().filter(is_left) {
        let _ = killpg(*group, Signal::SIGKILL);
    }
    std::mem::forget(groups);
}
