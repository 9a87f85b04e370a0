//! Runs scenarios in parallel and prints the table of results.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::container::Container;
use crate::emulated::{self, Emulated};
use crate::seed::{Seed, Signer};
use crate::system::System;

/// The kind of machine on which a scenario runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// A recorded disk without a machine.
    Disk,
    Container,
    /// An emulated machine with its own kernel, disk and clock.
    Emulated,
}

impl Tier {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Tier::Disk => "disk",
            Tier::Container => "container",
            Tier::Emulated => "emulated",
        }
    }
}

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) tier: Tier,
    /// Description in the table.
    pub(crate) shows: &'static str,
    pub(crate) run: fn(&Bench),
}

/// Number of boots and power cuts of a scenario.
#[derive(Default)]
pub(crate) struct Tally {
    boots: AtomicU32,
    cuts: AtomicU32,
}

impl Tally {
    pub(crate) fn count_boot(&self) {
        self.boots.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_cut(&self) {
        self.cuts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn boots(&self) -> u32 {
        self.boots.load(Ordering::Relaxed)
    }

    pub(crate) fn cuts(&self) -> u32 {
        self.cuts.load(Ordering::Relaxed)
    }
}

/// Creates the machines of a scenario and counts their boots.
pub(crate) struct Bench {
    name: &'static str,
    tally: Arc<Tally>,
}

/// Installed once, by the first scenario that needs it.
static SYSTEM: LazyLock<System> = LazyLock::new(System::install);

impl Bench {
    fn of(scenario: &Scenario) -> Self {
        Bench {
            name: scenario.name,
            tally: Arc::default(),
        }
    }

    pub(crate) fn system(&self) -> &'static System {
        &SYSTEM
    }

    /// Creates a container of a first node without starting it.
    pub(crate) fn container(&self, signer: Signer, user_data: &str) -> Container {
        self.container_with(&Seed::of(self.system(), signer, user_data))
    }

    /// Creates a container that is not a node.
    pub(crate) fn container_other(&self, user_data: &str) -> Container {
        self.container_with(&Seed::bare(user_data))
    }

    fn container_with(&self, seed: &Seed) -> Container {
        let key = self.system().credential();
        Container::new(self.name, self.tally.clone(), self.system().lower(), seed)
            .option("--private-network".to_owned())
            .option(format!("--load-credential=cfssl-key:{}", key.display()))
    }

    /// Creates an emulated machine of a first node without starting it.
    pub(crate) fn emulated(&self, signer: Signer, user_data: &str) -> Emulated<'_> {
        let seed = Seed::of(self.system(), signer, user_data);
        Emulated::new(self, &seed)
    }

    /// Creates an emulated machine that is not a node.
    pub(crate) fn emulated_other(&self, user_data: &str) -> Emulated<'_> {
        Emulated::new(self, &Seed::bare(user_data))
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Prints a line of progress.
    pub(crate) fn say(&self, what: &str) {
        println!("    {}: {what}", self.name);
    }
}

struct Row<'a> {
    scenario: &'a Scenario,
    boots: u32,
    cuts: u32,
    took: Duration,
    good: bool,
}

/// Runs the chosen scenarios; the status is a failure if one of them failed.
pub(crate) fn run(chosen: &[&Scenario]) -> ExitCode {
    let begin = Instant::now();
    // Installing the system does not count for a scenario's duration.
    LazyLock::force(&SYSTEM);
    println!(
        "the system is ready after {:.1} s",
        begin.elapsed().as_secs_f32()
    );
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let of = |emulated: bool| -> Vec<&Scenario> {
        let mut some = chosen.to_vec();
        some.retain(|scenario| (scenario.tier == Tier::Emulated) == emulated);
        some
    };
    let mut rows = side_by_side(&of(false), cores);
    // Emulated machines run separately: in parallel they would delay a scenario that waits for a moment in another one.
    let machines = of(true);
    if !machines.is_empty() {
        println!("emulated machines: {}", emulated::acceleration().describe());
        rows.extend(side_by_side(&machines, emulated::at_once(cores)));
    }
    rows.sort_by_key(|row| chosen.iter().position(|one| one.name == row.scenario.name));
    print(&rows, begin.elapsed());
    if rows.iter().all(|row| row.good) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn side_by_side<'a>(scenarios: &[&'a Scenario], at_once: usize) -> Vec<Row<'a>> {
    let (waiting, done) = (Mutex::new(scenarios.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, scenarios.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let Some(next) = waiting.lock().unwrap().next() else {
                        break;
                    };
                    let row = one(next);
                    done.lock().unwrap().push(row);
                }
            });
        }
    });
    done.into_inner().unwrap()
}

fn one(scenario: &Scenario) -> Row<'_> {
    let bench = Bench::of(scenario);
    let begin = Instant::now();
    // A thread per scenario: a panic carries its name, and ends the machines that it started.
    let good = thread::scope(|scope| {
        let run = || catch_unwind(AssertUnwindSafe(|| (scenario.run)(&bench))).is_ok();
        let named = thread::Builder::new().name(scenario.name.to_owned());
        named.spawn_scoped(scope, run).unwrap().join().unwrap()
    });
    let row = Row {
        scenario,
        boots: bench.tally.boots(),
        cuts: bench.tally.cuts(),
        took: begin.elapsed(),
        good,
    };
    println!("{}", row.line());
    row
}

impl Row<'_> {
    fn line(&self) -> String {
        format!(
            "{:4}  {:22} {:9} {:5} {:4} {:6.1} s  {}",
            if self.good { "ok" } else { "FAIL" },
            self.scenario.name,
            self.scenario.tier.as_str(),
            self.boots,
            self.cuts,
            self.took.as_secs_f32(),
            self.scenario.shows,
        )
    }
}

fn print(rows: &[Row<'_>], took: Duration) {
    println!("\n      scenario               on        boots cuts     time  shows");
    for row in rows {
        println!("{}", row.line());
    }
    let sum = |count: fn(&Row<'_>) -> u32| rows.iter().map(count).sum::<u32>();
    println!(
        "      {:22} {:9} {:5} {:4} {:6.1} s",
        format!("{} scenarios", rows.len()),
        "",
        sum(|row| row.boots),
        sum(|row| row.cuts),
        took.as_secs_f32()
    );
}
