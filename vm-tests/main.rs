//! Machines that boot with nodepki's package on them, and what must be true of them.
//!
//! ```text
//! cargo test --locked --test vm [-- NAME...]     those scenarios whose names have one of these words in them
//! ```
//!
//! A scenario is a folder below `scenarios/`: `scenario.rs` says what is done and what must hold, `user-data.yaml` what
//! the machine is told besides the user data of `cloud-init/`. It runs on one of
//! - a container ([`container`]): the same system under systemd, in two or three seconds, without a clock or a disk of
//!   its own;
//! - an emulated machine ([`emulated`]): a kernel, a disk, a clock; half a minute a boot;
//! - a disk alone ([`writes`]) whose writes are cut short at each point where it was told to keep them.
//!
//! `tests/run vm` builds the system, the package and the signer, and names them: NODEPKI_VM_IMAGE (what `image/build`
//! made), NODEPKI_VM_PACKAGE (the .deb), NODEPKI_TEST_SERVERS (a folder with `multirootca`). Everything that is missing
//! is a failure. NODEPKI_VM_CUTS is how often an emulated machine loses its power (20). NODEPKI_VM_KEEP=1 leaves the folders
//! of machines behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a failing unwrap is a failing test, and the table of scenarios is this program's output"
)]

mod bench;
mod container;
mod dice;
mod emulated;
mod machine;
mod scenarios;
mod seed;
mod system;
mod writes;

use std::process::ExitCode;

fn main() -> ExitCode {
    // What cargo hands to every test program, such as --nocapture, has no meaning here.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let chosen: Vec<_> = scenarios::ALL
        .iter()
        .filter(|scenario| {
            words.is_empty() || words.iter().any(|word| scenario.name.contains(word))
        })
        .collect();
    if chosen.is_empty() {
        eprintln!("no scenario has {} in its name", words.join(" or "));
        return ExitCode::FAILURE;
    }
    bench::run(&chosen)
}
