//! Ends child programs when a signal ends this process.
//!
//! Plug-ins and hooks run in separate process groups, so a SIGTERM to nodepki, or Ctrl-C, does not reach them. After
//! `end_programs_too`, the first program that is started also starts a thread that waits for SIGTERM, SIGINT and SIGHUP.
//! On one of them it ends the groups (SIGTERM, then SIGKILL) and the process, with exit code 75. For the store this is a
//! crash: pending requests stay resumable. A run without programs is ended by the signal directly. The daemon has handlers
//! of its own and does not call `end_programs_too`.
//!
//! SIGKILL cannot be handled: a program then runs on, up to its timeout.

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

/// Exit code of a run that a signal has ended: try again.
const EXIT_TRY_AGAIN: i32 = 75;
/// Time between SIGTERM and SIGKILL for the programs.
const KILL_DELAY: Duration = Duration::from_secs(2);
/// Interval at which the groups are polled during [`KILL_DELAY`].
const POLL_INTERVAL: Duration = Duration::from_millis(20);

static ENABLED: AtomicBool = AtomicBool::new(false);
static STARTED: OnceLock<()> = OnceLock::new();
/// The process groups of running programs.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Makes programs that are started from now on end when a signal ends this process.
pub(crate) fn end_programs_too() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Starts a program that leads a process group, and records the group.
pub(crate) fn spawning(spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
    if ENABLED.load(Ordering::Relaxed) {
        STARTED.get_or_init(|| {
            if let Err(error) = watch() {
                tracing::info!("programs will not be ended by a signal to this process: {error}");
            }
        });
    }
    // Locked until the group is recorded: otherwise a signal in between would miss it.
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let child = spawn()?;
    groups.extend(group_of(&child));
    Ok(child)
}

/// Returns the process group that a program leads.
pub(crate) fn group_of(child: &Child) -> Option<Pid> {
    let id = i32::try_from(child.id()?).ok()?;
    Some(Pid::from_raw(id))
}

/// Removes the record of a group that has ended.
pub(crate) fn group_ended(group: Pid) {
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    groups.retain(|known| *known != group);
}

/// Starts the thread, and returns when its handlers are installed.
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
                "nodepki: ended by {name}, together with the programs that it had started; run the same command again to continue"
            );
            std::process::exit(EXIT_TRY_AGAIN);
        })?;
    is_ready
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("the signal thread has ended")))
}

/// Waits for a signal that this process does not ignore (under nohup(1) it ignores SIGHUP).
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

/// Returns the mask of ignored signals (proc(5), `SigIgn`); empty if it cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// Ends the programs that this process has started, and then this process, with exit code 75.
pub(crate) fn exit_with_programs() -> ! {
    end_programs();
    std::process::exit(EXIT_TRY_AGAIN)
}

fn end_programs() {
    // Never unlocked: no further program is started.
    let groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_running = |group: &&Pid| killpg(**group, None) != Err(Errno::ESRCH);
    for group in groups.iter() {
        let _ = killpg(*group, Signal::SIGTERM);
    }
    let began = Instant::now();
    while began.elapsed() < KILL_DELAY && groups.iter().any(|group| is_running(&group)) {
        thread::sleep(POLL_INTERVAL);
    }
    for group in groups.iter().filter(is_running) {
        let _ = killpg(*group, Signal::SIGKILL);
    }
    std::mem::forget(groups);
}
