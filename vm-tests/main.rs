//! Boots machines with nodepki's package and asserts what must be true of them.
//!
//! ```text
//! cargo test --locked --test vm [-- WORD...]     the scenarios whose name contains a word, or whose tier is one
//! ```
//!
//! A scenario is a folder below `scenarios/`: `scenario.rs` contains the steps and assertions, `user-data.yaml` the user
//! data in addition to that of `cloud-init/`. It runs on one of
//! - a container ([`container`]): the same system under systemd, ready in two or three seconds, without its own clock or
//!   disk;
//! - an emulated machine ([`emulated`]): with its own kernel, disk and clock; a boot takes half a minute;
//! - a disk alone ([`writes`]), whose recorded writes are cut at each flush.
//!
//! `tests/run vm` builds the system, the package and the signer, and passes their paths: NODEPKI_VM_IMAGE (built by
//! `image/build`), NODEPKI_VM_PACKAGE (the .deb), NODEPKI_TEST_SERVERS (a folder with `multirootca`). A missing one is a
//! failure. NODEPKI_VM_CUTS is the number of power cuts of emulated machines (20). NODEPKI_VM_KEEP=1 keeps the folders of
//! machines.
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
#[path = "../tests/fixtures/time.rs"]
mod time;
mod writes;

use std::process::ExitCode;

use bench::Scenario;

fn main() -> ExitCode {
    // Options that cargo passes to every test program, such as --nocapture, are ignored.
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
            eprintln!("{word} is neither a tier nor part of a scenario's name");
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
