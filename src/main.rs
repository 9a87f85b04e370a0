//! The program: hardens the process and runs a command.

use std::process::ExitCode;

fn main() -> ExitCode {
    nodepki::process::harden::harden();
    // Files that this process or a plug-in creates are not readable by other users unless a mode is set explicitly.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    ExitCode::from(nodepki::commands::run(std::env::args_os()))
}
