//! A simulated fleet: clusters of control-plane nodes over years of virtual time, from one seed.
//!
//! Each node is a directory in memory with the real daemon on it (`daemon::run_in`): its loop, schedule, survey, requests,
//! verification and commits, with a clock of its own. Simulated are the time, the signing services, the network, the
//! administrators, and the restarts of components, since no component runs below another root. The judge verifies the
//! invariants after every step of every node, from the files alone.
//!
//! | file | holds |
//! | --- | --- |
//! | `plan` | what happens, from the seed |
//! | `world` | the run of a seed, the invariants, the administrators |
//! | `node` | a node, its daemon and its surroundings |
//! | `signer` | the signing service of a cluster, and what it has issued |
//! | `judge` | what the judge reads on a node |
//! | `sabotage` | a violation of each invariant, which the judge must report |
//!
//! `tests/run fleet [SEEDS [FIRST]]` simulates many seeds. `NODEPKI_FLEET_SEEDS=1 NODEPKI_FLEET_FIRST=N` runs seed N alone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a failing unwrap is a failing test, in the functions around the tests too"
)]

mod chance;
mod judge;
mod node;
mod plan;
mod sabotage;
mod signer;
mod statistics;
mod world;

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plan::{DAY, Plan, Scale};
use sabotage::Sabotage;
use statistics::Totals;
use world::simulate;

/// Seeds in the ordinary tests.
const FEW_SEEDS: u64 = 2;
/// Interval of the lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Simulates seeds on all cores. Panics with every violation.
fn run_seeds(first: u64, count: u64) -> Totals {
    let (next, began) = (AtomicU64::new(first), Instant::now());
    let results = Mutex::new((Totals::default(), Vec::new(), Instant::now()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            let simulated = simulate(seed, Scale::of(seed), None);
            let mut results = results.lock().unwrap();
            match simulated {
                Ok(simulated) => results.0 += simulated.totals,
                Err(violation) => {
                    println!("{violation}");
                    results.1.push(violation);
                }
            }
            if results.2.elapsed() >= PROGRESS_INTERVAL {
                results.2 = Instant::now();
                println!("{:.0?}: {}", began.elapsed(), results.0);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let (totals, violations, _) = results.into_inner().unwrap();
    println!("{totals}; {:.0?}", began.elapsed());
    assert!(
        violations.is_empty(),
        "{} of {count} seeds violate an invariant:\n{}",
        violations.len(),
        violations.join("\n")
    );
    totals
}

#[test]
fn seeds_violate_no_invariant() {
    let count = variable("NODEPKI_FLEET_SEEDS").unwrap_or(FEW_SEEDS);
    let first = variable("NODEPKI_FLEET_FIRST").unwrap_or(1);
    let totals = run_seeds(first, count);
    assert!(totals.installed > 0, "no certificate was installed");
}

#[test]
fn repeats_a_seed_exactly() {
    let scale = Scale {
        nodes: 3,
        length: DAY * 200,
    };
    let [first, second] =
        [(); 2].map(|()| simulate(7, scale, None).unwrap_or_else(|why| panic!("{why}")));
    assert_eq!(first.totals, second.totals);
    assert_eq!(first.digest, second.digest);
}

#[test]
fn judge_notices_every_sabotage() {
    let scale = Scale {
        nodes: 3,
        length: DAY * 3 * 365,
    };
    // The first seed whose first cluster has several nodes and a CA change. Renewals after 60 days keep it short.
    let is_suitable = |seed: &u64| {
        let cluster = &Plan::of(*seed, scale).clusters[0];
        cluster.nodes.len() == 3 && cluster.change.is_some() && cluster.lifetime == DAY * 90
    };
    let seed = (1..1000).find(is_suitable).unwrap();
    for (sabotage, words) in Sabotage::ALL {
        let scale = match sabotage {
            // Only in a large fleet are requests in the same minute a violation.
            Sabotage::CoincidingRequests => Scale { nodes: 20, ..scale },
            _ => scale,
        };
        match simulate(seed, scale, Some(sabotage)) {
            Ok(_) => panic!("{sabotage:?} was not noticed with seed {seed}"),
            Err(violation) => {
                let (problem, _) = violation.split_once('\n').unwrap();
                assert!(problem.contains(words), "{sabotage:?}: {violation}");
            }
        }
    }
}
