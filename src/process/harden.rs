//! Hardens the process at its start: no keys in core dumps, an error instead of SIGXFSZ, and exit code 75 with a message
//! in place of a panic or of an end by the kernel for lack of memory.

use std::io::Write;
use std::panic;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};

use super::limits;

/// Exit code of a run that failed because of a fault of this machine.
const EXIT_TRY_AGAIN: i32 = 75;

/// Hardens the process. Must be called once, before other threads exist.
pub fn harden() {
    // Pending keys are in memory. The kernel pipes a core dump to a program such as systemd-coredump regardless of
    // RLIMIT_CORE, unless the process is not dumpable. The limit is for child processes, which become dumpable again at
    // exec. Neither call fails on Linux, and nodepki works without them.
    let _ = prctl::set_dumpable(false);
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // Above RLIMIT_FSIZE the kernel sends SIGXFSZ, which ends a process silently. If the signal is blocked, write(2)
    // returns EFBIG. Child processes inherit the mask and get the same error.
    let mut size = SigSet::empty();
    size.add(Signal::SIGXFSZ);
    let _ = size.thread_block();
    panic::set_hook(Box::new(|info| {
        let _ = writeln!(
            std::io::stderr(),
            "nodepki: internal fault: {info}; run again, and report it if it happens again"
        );
        std::process::exit(EXIT_TRY_AGAIN);
    }));
    if let Some(problem) = limits::too_low() {
        let _ = writeln!(std::io::stderr(), "nodepki: {problem}");
        std::process::exit(EXIT_TRY_AGAIN);
    }
}
