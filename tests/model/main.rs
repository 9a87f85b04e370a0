//! The rotation of a cluster's CA, or of its service-account key, in every order of steps and faults, within bounds.
//!
//! The functions of `spec::authority_rotation` decide; the model contributes the ConfigMap with its compare-and-swap, the
//! Nodes, disks, restarts, leaders, administrators and faults. The checker visits every reachable state.
//!
//! | file | holds |
//! | --- | --- |
//! | `state` | the state of the cluster |
//! | `decisions` | the calls of the protocol's functions |
//! | `cluster` | the events, the properties, and the defects that the checker must find |
//! | `fair` | the schedule that ends a rotation |
//!
//! Some faults need no event. A node or an administrator that does not learn that a write was applied repeats it, which
//! changes nothing. A node that is down for long stays in that state while others go on, and a leader that stops has no
//! further events.
//!
//! `NODEPKI_TEST_MODEL=full` combines more faults with three nodes, and takes a quarter of an hour on two cores.
//!
//! # That every rotation ends
//!
//! stateright's `eventually` does not report a path that ends in a cycle, and not every path to a state with several
//! predecessors ([`stateright::Property::eventually`]); a node that reads again makes cycles. Instead, the property
//! [`cluster::END`] runs a fair schedule without further faults from *every* reachable state, and requires the end of the
//! rotation. The schedule consists of events of the model. Hence the end is reachable from every state, and a rotation
//! ends with certainty if every event that stays possible happens at some time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a failing unwrap is a failing test, in the functions around the tests too"
)]

mod cluster;
mod decisions;
mod fair;
mod state;

use std::fmt::Write;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};

use cluster::{ACCEPT, Cluster, Defect, END, Event, FORWARD, KEEP, TOKENS};
use state::{Budget, State};

/// Returns a cluster in which one rotation starts and nothing fails.
fn cluster(members: usize, joiners: usize) -> Cluster {
    Cluster {
        members,
        joiners,
        leaders: 1,
        has_outdated_lists: false,
        has_tokens: false,
        budget: Budget {
            starts: 1,
            ..Budget::default()
        },
        defect: None,
        ending: Default::default(),
    }
}

fn is_full() -> bool {
    match std::env::var("NODEPKI_TEST_MODEL").as_deref() {
        Ok("full") => true,
        Err(_) => false,
        Ok(other) => panic!("NODEPKI_TEST_MODEL={other} is not \"full\""),
    }
}

/// Returns the events and states of a path, one event a line.
fn listing(path: Path<State, Event>) -> String {
    let mut text = String::new();
    for (state, event) in path.into_vec() {
        let _ = writeln!(
            text,
            "{:?} {:?} {:?}",
            state.document, state.leaders, state.breach
        );
        for node in &state.nodes {
            let _ = writeln!(text, "    {node:?}");
        }
        let _ = writeln!(text, "{event:?}");
    }
    text
}

/// Visits every state and requires every property.
#[track_caller]
fn verify(name: &str, cluster: Cluster) {
    let began = Instant::now();
    let checker = cluster
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!(
        "{name}: {} states, {} transitions, depth {}, {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed()
    );
    let mut discoveries = checker.discoveries();
    for property in checker.model().properties() {
        let found = discoveries.remove(property.name);
        match (property.expectation.discovery_is_failure(), found) {
            (true, Some(path)) => panic!("{name}: not true: {}\n{}", property.name, listing(path)),
            (false, None) => panic!("{name}: never: {}", property.name),
            _ => {}
        }
    }
}

/// Requires that the checker finds a violation of a property.
#[track_caller]
fn finds(violated: &'static str, defect: Defect, cluster: Cluster) {
    let cluster = Cluster {
        defect: Some(defect),
        ..cluster
    };
    let checker = cluster
        .checker()
        .finish_when(HasDiscoveries::AnyOf([violated].into()))
        .spawn_bfs()
        .join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(violated) else {
        panic!("{defect:?} violates nothing in {states} states");
    };
    let events = path.into_actions().len();
    println!("{defect:?}: a path of {events} events violates the property, in {states} states");
}

#[test]
fn completes_and_undoes_a_rotation_among_crashes_and_commands() {
    let budget = Budget {
        starts: 1,
        pauses: 1,
        undos: 1,
        exclusions: 1,
        crashes: 1,
        ..Budget::default()
    };
    verify(
        "commands and a crash",
        Cluster {
            budget,
            ..cluster(2, 0)
        },
    );
    let budget = Budget {
        pauses: u8::from(is_full()),
        exclusions: u8::from(is_full()),
        crashes: u8::from(is_full()),
        ..budget
    };
    verify(
        "three members",
        Cluster {
            budget,
            ..cluster(3, 0)
        },
    );
}

#[test]
fn completes_a_rotation_after_failures_of_signers_and_components() {
    let budget = Budget {
        starts: 1,
        undos: 1,
        crashes: 1,
        partial_reissues: 1,
        rollbacks: 1,
        ..Budget::default()
    };
    verify(
        "failing signers and components",
        Cluster {
            budget,
            ..cluster(2, usize::from(is_full()))
        },
    );
}

#[test]
fn admits_a_node_that_joins_in_any_phase() {
    let budget = Budget {
        starts: 1,
        pauses: u8::from(is_full()),
        undos: 1,
        crashes: 1,
        ..Budget::default()
    };
    verify(
        "a joining node",
        Cluster {
            budget,
            ..cluster(2, 1)
        },
    );
}

#[test]
fn brings_a_node_restored_from_a_backup_up_to_date() {
    let budget = Budget {
        starts: 1,
        pauses: u8::from(is_full()),
        undos: 1,
        crashes: 1 + u8::from(is_full()),
        backups: 1,
        ..Budget::default()
    };
    verify(
        "a restored node",
        Cluster {
            budget,
            ..cluster(2, 0)
        },
    );
    let budget = Budget {
        pauses: 0,
        ..budget
    };
    verify(
        "a restored node that has just joined",
        Cluster {
            budget,
            ..cluster(1 + usize::from(is_full()), 1)
        },
    );
}

/// The state on the disk suffices if neither a join nor a backup is involved.
#[test]
fn accepts_a_node_that_serves_after_a_crash_without_reading() {
    let budget = Budget {
        starts: 1,
        pauses: 1,
        undos: 1,
        exclusions: u8::from(is_full()),
        crashes: 2,
        ..Budget::default()
    };
    verify(
        "crashes without the API",
        Cluster {
            budget,
            defect: Some(Defect::ServesWithoutReading),
            ..cluster(2, 0)
        },
    );
}

#[test]
fn survives_two_leaders_with_outdated_lists_and_lost_answers() {
    let budget = Budget {
        starts: 1,
        undos: 1,
        lost_answers: 1,
        crashes: u8::from(is_full()),
        backups: u8::from(is_full()),
        ..Budget::default()
    };
    verify(
        "two leaders",
        Cluster {
            leaders: 2,
            has_outdated_lists: true,
            budget,
            ..cluster(2, 0)
        },
    );
    let budget = Budget {
        lost_answers: 0,
        crashes: 1,
        backups: 1,
        ..budget
    };
    if is_full() {
        verify(
            "an outdated list and a restored node",
            Cluster {
                has_outdated_lists: true,
                budget,
                ..cluster(2, 0)
            },
        );
    }
    verify(
        "an outdated list and a joining node",
        Cluster {
            has_outdated_lists: true,
            budget: Budget {
                crashes: 0,
                backups: 0,
                ..budget
            },
            ..cluster(1 + usize::from(is_full()), 1)
        },
    );
}

#[test]
fn rotates_again_after_the_end_of_a_rotation() {
    let budget = Budget {
        starts: 2,
        undos: 1,
        exclusions: u8::from(is_full()),
        crashes: u8::from(is_full()),
        backups: u8::from(is_full()),
        ..Budget::default()
    };
    verify(
        "two rotations",
        Cluster {
            budget,
            ..cluster(2, 0)
        },
    );
}

#[test]
fn keeps_key_until_its_last_token_has_expired() {
    let budget = Budget {
        starts: 1,
        pauses: 1,
        undos: 1,
        crashes: 1,
        rollbacks: u8::from(is_full()),
        ..Budget::default()
    };
    verify(
        "tokens",
        Cluster {
            has_tokens: true,
            budget,
            ..cluster(2, 0)
        },
    );
    let budget = Budget {
        pauses: 0,
        crashes: 0,
        ..budget
    };
    verify(
        "tokens and a joining node",
        Cluster {
            has_tokens: true,
            budget,
            ..cluster(1 + usize::from(is_full()), 1)
        },
    );
}

#[test]
fn finds_leader_that_does_not_wait_for_tokens() {
    let budget = Budget {
        starts: 1,
        undos: 1,
        ..Budget::default()
    };
    let tokens = Cluster {
        has_tokens: true,
        budget,
        ..cluster(2, 0)
    };
    finds(TOKENS, Defect::RemovesKeyWithoutWaiting, tokens);
}

#[test]
fn finds_leader_that_advances_without_one_proof() {
    finds(ACCEPT, Defect::AdvancesWithoutOneProof, cluster(2, 0));
}

#[test]
fn finds_leader_that_counts_proofs_of_an_earlier_rotation() {
    let budget = Budget {
        starts: 2,
        undos: 1,
        exclusions: 1,
        ..Budget::default()
    };
    let twice = || Cluster {
        budget,
        ..cluster(2, 0)
    };
    finds(ACCEPT, Defect::CountsProofsOfEarlierRotation, twice());
    finds(ACCEPT, Defect::StartsWithoutProofs, twice());
}

#[test]
fn finds_leader_that_counts_proofs_of_other_phases() {
    let budget = Budget {
        starts: 1,
        undos: 1,
        ..Budget::default()
    };
    let undone = Cluster {
        budget,
        ..cluster(2, 0)
    };
    finds(ACCEPT, Defect::CountsProofsOfOtherPhases, undone);
}

#[test]
fn finds_leader_that_writes_without_comparing_the_resource_version() {
    let budget = Budget {
        starts: 1,
        undos: 1,
        ..Budget::default()
    };
    for violated in [FORWARD, KEEP, ACCEPT] {
        let undone = Cluster {
            budget,
            ..cluster(2, 0)
        };
        finds(violated, Defect::WritesWithoutComparing, undone);
    }
}

#[test]
fn finds_node_that_reports_files_instead_of_what_is_loaded() {
    finds(ACCEPT, Defect::ReportsFilesInsteadOfLoaded, cluster(2, 0));
}

#[test]
fn finds_joining_node_that_does_not_read_again() {
    finds(ACCEPT, Defect::JoinsWithoutReadingAgain, cluster(2, 1));
    finds(ACCEPT, Defect::ReadsOlderVersion, cluster(2, 1));
}

#[test]
fn finds_restored_node_that_does_not_catch_up() {
    let budget = Budget {
        starts: 1,
        crashes: 1,
        backups: 1,
        ..Budget::default()
    };
    let restored = |crashes| Cluster {
        budget: Budget { crashes, ..budget },
        ..cluster(2, 0)
    };
    finds(ACCEPT, Defect::ServesWithoutReading, restored(1));
    finds(ACCEPT, Defect::RecordsWhileCatchingUp, restored(1));
    finds(ACCEPT, Defect::ReportsBeforeServing, restored(2));
}

/// A rotation that never advances must be reported, too.
#[test]
fn finds_rotation_that_does_not_end() {
    let without_leader = Cluster {
        leaders: 0,
        ..cluster(2, 0)
    };
    finds(END, Defect::StartsWithoutProofs, without_leader);
}
