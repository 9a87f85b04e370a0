//! Interrupts every command that changes files: kills it before each of its system calls, fails each of them, and cuts
//! the power. The next run must complete the work.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `scenarios` | the commands, each on a prepared node |
//! | `api` | the commands that use an API server |
//! | `sweep` | the cases, and their run on every processor |
//! | `recording` | system calls that strace(1) recorded, as operations on files |
//! | `disk` | the model of a disk that loses its power |
//! | `judge` | what must hold after the interruption, and after the next run |
//! | `tree` | files in memory |
//!
//! `tests/run unit` runs a sample of all cases, `tests/run crash` all of them. `NODEPKI_TEST_CRASH` limits the scenarios
//! to those whose names contain it.

mod api;
mod disk;
mod judge;
mod recording;
mod scenarios;
mod sweep;
mod tree;

use std::collections::BTreeSet;
use std::time::Instant;

use crate::node::{Node, Ran};
use crate::sample::sampled;
use recording::Operation;
use scenarios::Scenario;
use sweep::{Outcome, Prepared, run_all};

/// Number of killed and failed runs in the sample of `tests/run unit`.
const SAMPLED_POINTS: usize = 500;
/// Number of states after a power cut in the sample of `tests/run unit`, and the share of commands that change no file.
const SAMPLED_STATES: usize = 310;
/// Number of states of each scenario in the long form.
const STATES: usize = 400;
/// Seed of the random states.
const SEED: u64 = 1;
/// Number of failures that a test prints.
const MAX_SHOWN_FAILURES: usize = 40;

/// Why a command on a rotation of the cluster is not interrupted.
const ROTATION: &str = "changes one object of the cluster, with one request, and no file";

/// Every command, with the scenario that interrupts it or the reason why none does.
const COMMANDS: &[(&str, Placement)] = &[
    ("audit-show", ReadsOnly),
    ("audit-verify", ReadsOnly),
    ("authority-activate", Interrupted("authority activate")),
    ("authority-pause", Elsewhere(ROTATION)),
    ("authority-resume", Elsewhere(ROTATION)),
    ("authority-retire", Interrupted("authority retire")),
    ("authority-rotate", Elsewhere(ROTATION)),
    ("authority-stage", Interrupted("authority stage")),
    ("authority-status", ReadsOnly),
    ("authority-undo", Elsewhere(ROTATION)),
    ("authority-watch", ReadsOnly),
    ("bootstrap", Interrupted("bootstrap, signer local")),
    ("capi-check", Interrupted("capi check --write")),
    (
        "capi-migrate-to-external",
        Interrupted("capi migrate to-external"),
    ),
    (
        "capi-migrate-to-internal",
        Interrupted("capi migrate to-internal"),
    ),
    ("capi-secrets", Interrupted("capi secrets")),
    ("capi-sync", Interrupted("capi sync")),
    ("certs-download", Interrupted("certs download")),
    ("certs-expire", Interrupted("certs expire")),
    ("certs-key", Interrupted("certs key")),
    ("certs-upload", Interrupted("certs upload")),
    ("cluster-status", ReadsOnly),
    ("completions", ReadsOnly),
    ("config-check", ReadsOnly),
    ("config-schema", ReadsOnly),
    ("config-show", ReadsOnly),
    ("config-signer-setup", ReadsOnly),
    ("crl", Interrupted("crl")),
    ("csr-export", Interrupted("csr export")),
    ("csr-import", Interrupted("csr import")),
    ("csr-show", ReadsOnly),
    ("daemon", Interrupted("daemon, signer local")),
    ("demo", Interrupted("demo")),
    ("doctor", ReadsOnly),
    ("init", Interrupted("init")),
    ("kubelets-approve", Interrupted("kubelets approve")),
    (
        "kubelets-deny",
        Elsewhere("sends the requests of kubelets approve"),
    ),
    ("kubelets-list", ReadsOnly),
    ("kubelets-revoke", Elsewhere("writes to an API server only")),
    ("man", Interrupted("man")),
    ("migrate-to-external", Interrupted("migrate to-external")),
    ("migrate-to-internal", Interrupted("migrate to-internal")),
    ("needs-renewal", ReadsOnly),
    ("plan", ReadsOnly),
    ("policy-check", ReadsOnly),
    ("policy-crd", ReadsOnly),
    ("policy-export", ReadsOnly),
    ("preflight", ReadsOnly),
    ("renew", Interrupted("renew, signer local")),
    ("status", ReadsOnly),
];

/// Where a command is interrupted.
enum Placement {
    /// By the scenario with this name.
    Interrupted(&'static str),
    /// Writes nothing but its output.
    ReadsOnly,
    /// For this reason by no scenario.
    Elsewhere(&'static str),
}
use Placement::{Elsewhere, Interrupted, ReadsOnly};

fn all_scenarios() -> impl Iterator<Item = &'static Scenario> {
    scenarios::SCENARIOS.iter().chain(&api::SCENARIOS)
}

/// Returns the scenarios that `NODEPKI_TEST_CRASH` selects.
#[track_caller]
fn selected(scenarios: impl Iterator<Item = &'static Scenario>) -> Vec<&'static Scenario> {
    let filter = std::env::var("NODEPKI_TEST_CRASH").unwrap_or_default();
    let is_meant = |scenario: &&Scenario| scenario.name.contains(&filter);
    assert!(
        all_scenarios().any(|scenario| is_meant(&scenario)),
        "no scenario has {filter} in its name"
    );
    scenarios.filter(is_meant).collect()
}

/// Returns at most `count` items, evenly chosen.
fn evenly<T>(cases: Vec<T>, count: usize) -> Vec<T> {
    let length = cases.len();
    let chosen: BTreeSet<usize> = (0..count.min(length))
        .map(|index| index * length / count.min(length))
        .collect();
    let cases = cases.into_iter().enumerate();
    cases
        .filter(|(index, _)| chosen.contains(index))
        .map(|(_, case)| case)
        .collect()
}

#[track_caller]
fn assert_no_failure(outcomes: &[Outcome]) {
    let failures: Vec<&String> = outcomes
        .iter()
        .flat_map(|outcome| &outcome.failures)
        .collect();
    for failure in failures.iter().take(MAX_SHOWN_FAILURES) {
        println!("---- {failure}\n");
    }
    assert!(failures.is_empty(), "{} cases failed", failures.len());
}

/// Runs a share of the cases of every scenario: more of those whose cases take less time.
///
/// One test for kills, errors and power cuts: to prepare a scenario takes longer than its share of any of them.
#[track_caller]
fn run_sample(scenarios: impl IntoIterator<Item = &'static Scenario>) {
    let weights: usize = all_scenarios().map(|scenario| scenario.weight).sum();
    let mut number = 0;
    let mut outcomes = Vec::new();
    for scenario in scenarios {
        let prepared = Prepared::new(scenario);
        let share = |count: usize| (count * scenario.weight).div_ceil(weights);
        let points = evenly(prepared.point_cases(), share(SAMPLED_POINTS));
        let states = prepared.power_cuts(SEED, share(SAMPLED_STATES));
        for cases in [points, states] {
            if cases.is_empty() {
                let changes_files = scenario.collections.is_empty();
                assert!(!changes_files, "{} has no case", scenario.name);
                continue;
            }
            let cases = sampled(0, cases);
            number += cases.len();
            outcomes.push(run_all(&prepared, &cases));
        }
    }
    println!("{number} cases");
    assert_no_failure(&outcomes);
}

#[test]
fn completes_after_sampled_kills_errors_and_power_cuts() {
    run_sample(selected(scenarios::SCENARIOS.iter()));
}

#[test]
fn finds_file_that_is_not_synced() {
    let is_sync = |operation: &Operation| matches!(operation, Operation::Sync { .. });
    let name = "migrate to-external";
    let scenario = all_scenarios().find(|scenario| scenario.name == name);
    let prepared = Prepared::new(scenario.unwrap());
    let cases = prepared.power_cuts_of(SEED, STATES, |operation| !is_sync(operation));
    let mut errors = cases
        .iter()
        .filter_map(|case| prepared.interrupt(case).err());
    assert!(errors.any(|error| error.contains("neither in its place nor in the backup")));
}

#[test]
fn places_every_command() {
    let node = Node::new();
    let pages = node.outside("man");
    std::fs::create_dir(&pages).unwrap();
    Ran::of(node.command(["man"]).arg(&pages)).done();
    let names: BTreeSet<String> = std::fs::read_dir(pages)
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .filter_map(|page| {
            Some(
                page.strip_prefix("nodepki-")?
                    .strip_suffix(".1")?
                    .to_owned(),
            )
        })
        .collect();
    // A command with commands of its own does nothing without one.
    let has_commands = |name: &String| {
        let prefix = format!("{name}-");
        names.iter().any(|other| other.starts_with(&prefix))
    };
    let commands: BTreeSet<&str> = names
        .iter()
        .filter(|name| !has_commands(name))
        .map(String::as_str)
        .collect();
    let placed: BTreeSet<&str> = COMMANDS.iter().map(|(name, _)| *name).collect();
    assert_eq!(commands, placed);
    for (command, placement) in COMMANDS {
        match placement {
            Interrupted(name) => {
                let is_there = all_scenarios().any(|scenario| scenario.name == *name);
                assert!(is_there, "{command}: there is no scenario {name}");
            }
            Elsewhere(reason) => assert!(!reason.is_empty(), "{command}"),
            ReadsOnly => {}
        }
    }
}

/// All cases; `tests/run crash` runs it.
mod all {
    use super::*;

    #[test]
    fn completes_after_every_kill_error_and_power_cut() {
        let mut outcomes = Vec::new();
        println!(
            "{:<40} {:>7} {:>7} {:>8}",
            "command", "points", "states", "time"
        );
        for scenario in selected(all_scenarios()) {
            let begin = Instant::now();
            let prepared = Prepared::new(scenario);
            let points = prepared.point_cases();
            let states = prepared.power_cuts(SEED, STATES);
            for cases in [&points, &states] {
                let outcome = run_all(&prepared, cases);
                for failure in &outcome.failures {
                    println!("---- {failure}\n");
                }
                outcomes.push(outcome);
            }
            println!(
                "{:<40} {:>7} {:>7} {:>6} s",
                scenario.name,
                points.len(),
                states.len(),
                begin.elapsed().as_secs()
            );
        }
        assert_no_failure(&outcomes);
    }
}
