//! What a process does to itself before anything else: it keeps its keys out of core dumps, survives a limit on file
//! sizes, and ends with exit code 75 and a sentence where it would panic.

use std::io::Write;
use std::panic;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};

/// Exit code of a run that met a fault of this machine.
const RUN_AGAIN: i32 = 75;

/// To be called once, before there are other threads.
pub fn harden() {
    // Pending keys are in memory. A core dump goes to a program such as systemd-coredump whatever RLIMIT_CORE says, unless
    // the process is not dumpable; the limit is for the programs that are started, which become dumpable again. Neither
    // call fails on Linux, and a run without them still does its work.
    let _ = prctl::set_dumpable(false);
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // Above RLIMIT_FSIZE the kernel sends SIGXFSZ, which ends a process silently. Blocked, write(2) returns EFBIG. Programs
    // that are started inherit this and get the same error.
    let mut size = SigSet::empty();
    size.add(Signal::SIGXFSZ);
    let _ = size.thread_block();
    panic::set_hook(Box::new(|info| {
        let _ = writeln!(
            std::io::stderr(),
            "nodepki: internal fault: {info}; run again, and report it if it happens again"
        );
        std::process::exit(RUN_AGAIN);
    }));
}
