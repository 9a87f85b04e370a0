//! The thin binary: argv to exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    nodepki::process::harden::harden();
    // Nothing that this process or a plug-in of it makes is readable by others unless it says so.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    ExitCode::from(nodepki::commands::run(std::env::args_os()))
}
