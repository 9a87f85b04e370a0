//! Cases of an interrupted run: a kill or an error at a system call, or a power cut. Each case is run on a copy of the
//! prepared node, followed by the run that completes it.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::api::{self, Objects};
use super::disk::{Disk, Remainder, Survival};
use super::evenly;
use super::judge::{self, Reference};
use super::recording::{self, Operation, SystemCall};
use super::scenarios::{DISTURBED, Scenario, UNDISTURBED};
use super::tree::{Tree, directory};
use crate::node::{Node, Ran};

/// Errors of a system call.
const ERRORS: [&str; 6] = ["EIO", "ENOSPC", "EROFS", "EDQUOT", "EINTR", "EBUSY"];
/// Errors of a system call that connects or sends.
const NETWORK_ERRORS: [&str; 4] = ["ECONNRESET", "EPIPE", "ENETUNREACH", "ETIMEDOUT"];
/// States after each cut that are chosen at random, besides the systematic ones.
const RANDOM_STATES_PER_CUT: usize = 6;

/// A scenario with the files of its prepared node and what an undisturbed run does.
pub(super) struct Prepared {
    pub(super) scenario: &'static Scenario,
    /// The directory of the prepared node, which its settings name.
    prepared_in: PathBuf,
    reference: Reference,
    calls: Vec<SystemCall>,
    objects: ObjectStates,
    /// The directory in the paths of the calls.
    recorded_in: PathBuf,
}

/// Objects of the scenario in the API server.
struct ObjectStates {
    initial: Objects,
    /// After the recorded run, before the runs that complete it.
    written: Objects,
    completed: Objects,
}

/// A system call of the main thread.
#[derive(Clone)]
pub(super) struct Point {
    name: String,
    /// Number of the call among those with this name, from 1.
    number: usize,
    shown: String,
    /// Errors that this call can return.
    errors: &'static [&'static str],
}

/// A case of a sweep.
pub(super) enum Case {
    Kill(Point),
    Fail(Point, &'static str),
    PowerCut {
        tree: Tree,
        shown: String,
        /// Whether the run had sent its last request.
        has_sent_all: bool,
    },
}

impl Case {
    pub(super) fn shown(&self) -> String {
        match self {
            Case::Kill(point) => format!(
                "killed before {} {}: {}",
                point.name, point.number, point.shown
            ),
            Case::Fail(point, error) => format!(
                "{error} of {} {}: {}",
                point.name, point.number, point.shown
            ),
            Case::PowerCut { shown, .. } => shown.clone(),
        }
    }
}

impl Prepared {
    /// Prepares the node, and records an undisturbed run on a copy.
    pub(super) fn new(scenario: &'static Scenario) -> Self {
        let _turn = api::turn(scenario.collections);
        Objects::clear(scenario.collections);
        let node = (scenario.prepare)();
        let initial_objects = Objects::of(scenario.collections);
        let initial = Tree::of(&directory(&node));
        let copy = initial.to_node(&directory(&node));
        let logs = tempfile::tempdir_in("/dev/shm").unwrap();
        let log = logs.path().join("calls");
        let traced = recording::traced(&(scenario.command)(&copy), &recording::options(&log));
        let ran = scenario.run(&copy, traced, UNDISTURBED);
        assert!(
            ran.code.is_some_and(|code| scenario.ends.contains(&code)),
            "{}: {:?}\n{}",
            scenario.name,
            ran.code,
            ran.said()
        );
        let calls = recording::read(&log);
        let written = Objects::of(scenario.collections);
        verify_model(scenario, &copy, &initial_of(&copy, &initial), &calls);
        if let Err(error) = scenario.complete(&copy) {
            panic!("{}: {error}", scenario.name);
        }
        let reference = Reference {
            initial,
            completed: Tree::of(&directory(&copy)),
        };
        let prepared = Prepared {
            scenario,
            prepared_in: directory(&node),
            reference,
            calls,
            objects: ObjectStates {
                initial: initial_objects,
                written,
                completed: Objects::of(scenario.collections),
            },
            recorded_in: directory(&copy),
        };
        if let Err(error) = judge::completed(scenario, &prepared.reference, &copy) {
            panic!("{}, undisturbed: {error}", scenario.name);
        }
        prepared
    }

    /// Returns the system calls of the main thread that change something.
    pub(super) fn points(&self) -> Vec<Point> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut points = Vec::new();
        for call in self.calls.iter().filter(|call| call.is_main) {
            let count = counts.entry(&call.name).or_default();
            *count += 1;
            if call.mutates() {
                points.push(Point {
                    name: call.name.clone(),
                    number: *count,
                    shown: call.shown(),
                    errors: if call.writes_to_file() {
                        &ERRORS
                    } else if call.sends() {
                        &NETWORK_ERRORS
                    } else {
                        // The event loop's own descriptors and pipes to programs fail in other ways.
                        &[]
                    },
                });
            }
        }
        points
    }

    /// Returns every case of a killed run and of a failed call.
    pub(super) fn point_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for point in self.points() {
            cases.push(Case::Kill(point.clone()));
            let errors = point.errors.iter();
            cases.extend(errors.map(|error| Case::Fail(point.clone(), error)));
        }
        cases
    }

    /// Returns at most `count` different states that a power cut at any moment may leave.
    pub(super) fn power_cuts(&self, seed: u64, count: usize) -> Vec<Case> {
        evenly(self.power_cuts_of(seed, count, |_| true), count)
    }

    /// As [`Prepared::power_cuts`], on a disk that obeys only some of the operations.
    pub(super) fn power_cuts_of(
        &self,
        seed: u64,
        count: usize,
        obeys: impl Fn(&Operation) -> bool,
    ) -> Vec<Case> {
        let mut disk = Disk::new(&self.recorded_in, &self.reference.initial);
        let mut disks = Vec::new();
        for (number, call) in self.calls.iter().enumerate() {
            let operation = recording::operation(call).filter(&obeys);
            if operation.is_some_and(|operation| disk.apply(&operation)) {
                disks.push((number, call, disk.clone()));
            }
        }

        let mut seen = HashSet::new();
        let mut cases = Vec::new();
        let mut random = Random(seed);
        let last_sent = self.calls.iter().rposition(SystemCall::sends);
        // Most calls leave few states that another one has not left: four times as many calls as states are enough. The
        // states of all calls would take longer to compare than a sample takes to run.
        for (number, call, disk) in evenly(disks, count.saturating_mul(4)) {
            for choice in 0..SYSTEMATIC.len() + RANDOM_STATES_PER_CUT {
                let tree = match SYSTEMATIC.get(choice) {
                    Some(choice) => systematic(&disk, *choice),
                    None => random_state(&disk, &mut random),
                };
                let mut hasher = DefaultHasher::new();
                tree.hash(&mut hasher);
                if seen.insert(hasher.finish()) {
                    let shown = format!(
                        "power cut after call {number}, {}; state {choice}, seed {seed}, new: {:?}",
                        call.shown(),
                        judge::new_paths(&self.reference.initial, &tree)
                    );
                    cases.push(Case::PowerCut {
                        tree,
                        shown,
                        has_sent_all: last_sent.is_some_and(|last| last < number),
                    });
                }
            }
        }
        cases
    }

    /// Runs a case and the run that completes it, and judges both.
    pub(super) fn run(&self, case: &Case) -> Result<(), String> {
        let _turn = api::turn(self.scenario.collections);
        let node = self.interrupt(case)?;
        self.scenario.complete(&node)?;
        judge::completed(self.scenario, &self.reference, &node)?;
        self.judge_objects()
    }

    /// Runs a case, and judges the node before any further run.
    pub(super) fn interrupt(&self, case: &Case) -> Result<Node, String> {
        let before = &self.reference.initial;
        let collections = self.scenario.collections;
        let objects = match case {
            Case::PowerCut {
                has_sent_all: true, ..
            } => &self.objects.written,
            _ => &self.objects.initial,
        };
        objects.restore(collections);
        let node = match case {
            Case::PowerCut { tree, .. } => tree.to_node(&self.prepared_in),
            Case::Kill(_) | Case::Fail(..) => before.to_node(&self.prepared_in),
        };
        if let Case::Kill(point) | Case::Fail(point, _) = case {
            let effect = match case {
                Case::Fail(_, error) => format!("error={error}"),
                _ => "signal=KILL".to_owned(),
            };
            let logs = tempfile::tempdir_in("/dev/shm").unwrap();
            let log = logs.path().join("calls");
            let command = with_injection(&(self.scenario.command)(&node), point, &effect, &log);
            let ran = self.scenario.run(&node, command, DISTURBED);
            let tree = Tree::of(&directory(&node));
            match case {
                Case::Fail(_, error) => {
                    // The number of writes to a socket and to the event loop's own descriptors varies.
                    if let Some(call) = recording::injected(&log).filter(SystemCall::fails) {
                        self.judge_failed_call(&call, error, &ran, &tree)?;
                    }
                }
                _ if ran.signal == Some(9) || ran.code == Some(137) => {}
                // Another order of calls: the call was not reached.
                _ if ran
                    .code
                    .is_some_and(|code| self.scenario.ends.contains(&code)) => {}
                _ => return Err(format!("{:?}:\n{}", ran.code, ran.said())),
            }
            judge::interrupted(&self.reference, &tree)
                .map_err(|error| format!("{error}\n{}", ran.said()))?;
        } else {
            judge::interrupted(&self.reference, &Tree::of(&directory(&node)))?;
        }
        (self.scenario.at_once)(&node, &self.reference)?;
        Ok(node)
    }

    fn judge_failed_call(
        &self,
        call: &SystemCall,
        error: &str,
        ran: &Ran,
        tree: &Tree,
    ) -> Result<(), String> {
        let is_of_network = call.sends();
        judge::failed_call(
            self.scenario,
            &self.reference,
            error,
            is_of_network,
            ran,
            tree,
        )?;
        if ran.code == Some(0) && !self.scenario.is_daemon {
            self.judge_objects()
                .map_err(|what| format!("status 0, but {what}:\n{}", ran.said()))?;
        }
        Ok(())
    }

    fn judge_objects(&self) -> Result<(), String> {
        let found = Objects::of(self.scenario.collections);
        let completed = &self.objects.completed;
        completed.judge(&found, self.scenario.is_deterministic)
    }
}

/// Returns the initial tree with the settings of the copy.
fn initial_of(copy: &Node, initial: &Tree) -> Tree {
    let mut initial = initial.clone();
    let settings = PathBuf::from("config.yaml");
    if let Some(entry) = initial.0.get_mut(&settings) {
        let text = std::fs::read(copy.outside("config.yaml")).unwrap();
        entry.content = super::tree::Content::File(text);
    }
    initial
}

/// Asserts that the operations of the recording lead to the files that are there.
fn verify_model(scenario: &Scenario, copy: &Node, initial: &Tree, calls: &[SystemCall]) {
    let mut disk = Disk::new(&directory(copy), initial);
    for operation in calls.iter().filter_map(recording::operation) {
        disk.apply(&operation);
    }
    let (modelled, real) = (disk.present(), Tree::of(&directory(copy)));
    for (path, entry) in real.below("root") {
        assert!(
            modelled.0.get(path) == Some(entry),
            "{}: the model of the disk has {:?} as {}",
            scenario.name,
            modelled.0.get(path),
            path.display()
        );
    }
    for (path, _) in modelled.below("root") {
        assert!(
            real.0.contains_key(path),
            "{}: {} is in the model of the disk only",
            scenario.name,
            path.display()
        );
    }
}

/// Returns the command under strace(1), which applies `effect` to one call of the main thread and records it in `log`.
fn with_injection(command: &Command, point: &Point, effect: &str, log: &Path) -> Command {
    let options = [
        "-y".to_owned(),
        "-xx".to_owned(),
        "-o".to_owned(),
        log.display().to_string(),
        format!("--trace={}", point.name),
        format!("--inject={}:{effect}:when={}", point.name, point.number),
    ];
    let traced = recording::traced(command, &options);
    let mut timeout = Command::new("timeout");
    timeout
        .arg("60")
        .arg(traced.get_program())
        .args(traced.get_args());
    for (name, value) in traced.get_envs() {
        match value {
            Some(value) => timeout.env(name, value),
            None => timeout.env_remove(name),
        };
    }
    timeout
}

/// Systematic states: which names, what content, whether new modes are there.
#[derive(Clone, Copy)]
enum Names {
    All,
    None,
    OnlyLast,
    AllButLast,
    AllButFirst,
    Even,
}

const SYSTEMATIC: [(Names, Remainder, bool); 11] = [
    (Names::None, Remainder::Nothing, false),
    (Names::All, Remainder::All, true),
    (Names::All, Remainder::Nothing, false),
    (Names::All, Remainder::Zeros, true),
    (Names::All, Remainder::Half, false),
    (Names::None, Remainder::All, true),
    (Names::OnlyLast, Remainder::Nothing, true),
    (Names::OnlyLast, Remainder::All, false),
    (Names::AllButLast, Remainder::Nothing, true),
    (Names::AllButFirst, Remainder::All, true),
    (Names::Even, Remainder::Zeros, false),
];

fn systematic(disk: &Disk, (names, content, mode): (Names, Remainder, bool)) -> Tree {
    disk.after_power_cut(&mut Survival {
        name: &mut |index, count| match names {
            Names::All => true,
            Names::None => false,
            Names::OnlyLast => index + 1 == count,
            Names::AllButLast => index + 1 < count,
            Names::AllButFirst => index > 0,
            Names::Even => index % 2 == 0,
        },
        content: &mut || content,
        mode: &mut || mode,
    })
}

fn random_state(disk: &Disk, random: &mut Random) -> Tree {
    let random = std::cell::RefCell::new(random);
    disk.after_power_cut(&mut Survival {
        name: &mut |_, _| random.borrow_mut().below(2) == 1,
        content: &mut || match random.borrow_mut().below(4) {
            0 => Remainder::Nothing,
            1 => Remainder::Half,
            2 => Remainder::All,
            _ => Remainder::Zeros,
        },
        mode: &mut || random.borrow_mut().below(2) == 1,
    })
}

/// SplitMix64 (Steele, Lea, Flood, 2014): the same states for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The cases of one scenario that failed, and how long all took.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) failures: Vec<String>,
}

/// Runs the cases on every processor.
pub(super) fn run_all(prepared: &Prepared, cases: &[Case]) -> Outcome {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = catch_unwind(AssertUnwindSafe(|| prepared.run(case)))
                        .unwrap_or_else(|_| Err("the test panicked".to_owned()));
                    if let Err(error) = result {
                        let what =
                            format!("{}, {}:\n{error}", prepared.scenario.name, case.shown());
                        failures.lock().unwrap().push(what);
                    }
                }
            });
        }
    });
    Outcome {
        failures: failures.into_inner().unwrap(),
    }
}
