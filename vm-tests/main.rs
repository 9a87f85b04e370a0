//! Machines that boot with nodepki's package on them, and what must be true of them.
//!
//! ```text
//! cargo test --locked --test vm [-- WORD...]     those scenarios of which a word is part of the name, or the tier
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
mod cluster;
mod container;
mod dice;
mod emulated;
mod machine;
mod scenarios;
mod seed;
mod system;
mod writes;

use std::process::ExitCode;

use bench::Scenario;

fn main() -> ExitCode {
    // What cargo hands to every test program, such as --nocapture, has no meaning here.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    if let Some((first, words)) = words.split_first()
        && first == "cluster"
    {
        return cluster::run(words);
    }
    let is_meant = |scenario: &Scenario, word: &String| {
        scenario.name.contains(word) || scenario.tier.as_str() == word
    };
    for word in &words {
        if !scenarios::ALL.iter().any(|one| is_meant(one, word)) {
            eprintln!("{word} is no tier and in no scenario's name");
            return ExitCode::FAILURE;
        }
    }
    let (chosen, left_out): (Vec<_>, Vec<_>) = scenarios::ALL
        .iter()
        .partition(|one| words.is_empty() || words.iter().any(|word| is_meant(one, word)));
    if !left_out.is_empty() {
        let names: Vec<_> = left_out.iter().map(|scenario| scenario.name).collect();
        println!("LEFT OUT, tests/run vm has them: {}", names.join(", "));
    }
    bench::run(&chosen)
}
