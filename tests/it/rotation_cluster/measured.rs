//! Measurements of the processes of a node, and of the files that nodepki writes, to find what grows with the number of
//! renewals.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::ISSUE_RECORD;
use crate::servers::cluster::ClusterNode;

/// Time from a renewal to a measurement. The daemon then uses no plug-in.
const QUIET_AFTER: Duration = Duration::from_millis(1200);
/// Allowed growth from the first tenth to the last tenth: medians of resident memory in KiB, and as a share.
const MEMORY_ALLOWANCE: (u64, f64) = (1024, 0.1);
/// Allowed growth of the number of descriptors of kube-apiserver and etcd, most of which are connections.
const CONNECTION_ALLOWANCE: u64 = 20;
/// Smallest number of samples that stand for a tenth.
const MIN_SAMPLES: usize = 5;
/// Entries that `/var/lib/nodepki/aside` may have.
const MAX_ASIDE: u64 = 50;
/// Size in bytes that the audit log may have.
const MAX_AUDIT_LOG: u64 = 8 * 16 * 1024 * 1024;
/// Programs that are measured.
const MEASURED: [&str; 3] = ["nodepki", "kube-apiserver", "etcd"];

/// What a process and the node have at one time.
#[derive(Default)]
pub(super) struct Measured {
    renewals: usize,
    /// Time of the next measurement.
    next: Option<Instant>,
    processes: BTreeMap<&'static str, Vec<Sample>>,
    /// Number and size of files that nodepki writes, except for logs and keys set aside.
    files: Vec<(u64, u64)>,
    aside: u64,
    audit_log: u64,
}

#[derive(Clone, Copy)]
struct Sample {
    pid: u32,
    /// Resident memory in KiB.
    memory: u64,
    descriptors: u64,
    /// Watches of inotify(7).
    watches: u64,
}

impl Measured {
    /// Measures once after each renewal, when the daemon has probably no more work.
    pub(super) fn measure(&mut self, renewals: usize, daemon: u32, node: &ClusterNode) {
        if renewals != self.renewals {
            self.renewals = renewals;
            self.next = Some(Instant::now() + QUIET_AFTER);
        }
        if self.next.is_none_or(|next| Instant::now() < next) {
            return;
        }
        self.next = None;
        for program in MEASURED {
            let pid = match program {
                "nodepki" => Some(daemon),
                other => process_on_node(other, daemon),
            };
            // A daemon that was just killed has no descriptors.
            if let Some(sample) = pid.and_then(Sample::of) {
                self.processes.entry(program).or_default().push(sample);
            }
        }
        let (mut number, mut bytes) = (0, 0);
        for directory in ["/etc/kubernetes", "/etc/nodepki"] {
            let (files, size) = size_of(&node.path(directory), &|_| true);
            number += files;
            bytes += size;
        }
        let state = node.path(ISSUE_RECORD);
        let state = state.parent().unwrap();
        let is_other = |name: &str| name != "aside" && !name.starts_with("audit");
        let (files, size) = size_of(state, &is_other);
        self.files.push((number + files, bytes + size));
        self.aside = self
            .aside
            .max(fs::read_dir(state.join("aside")).map_or(0, |found| found.count() as u64));
        let (_, size) = size_of(state, &|name| name.starts_with("audit"));
        self.audit_log = self.audit_log.max(size);
        if renewals.is_multiple_of(25) {
            println!("{renewals} renewals\n{}", self.table());
        }
    }

    /// Samples of the process that was measured most often.
    fn longest(&self, program: &str) -> Vec<Sample> {
        let samples = &self.processes[program];
        let count = |pid| samples.iter().filter(|sample| sample.pid == pid).count();
        let pid = samples
            .iter()
            .map(|sample| sample.pid)
            .max_by_key(|pid| count(*pid))
            .unwrap();
        samples
            .iter()
            .copied()
            .filter(|sample| sample.pid == pid)
            .collect()
    }

    /// Growth of each quantity from the first tenth to the last tenth.
    pub(super) fn table(&self) -> String {
        let mut table = String::new();
        for program in self.processes.keys() {
            let samples = self.longest(program);
            let of = |value: fn(&Sample) -> u64| Growth::of(samples.iter().map(value));
            table += &format!(
                "{program} ({} samples of one process): memory {} KiB, {} descriptors, {} watches\n",
                samples.len(),
                of(|sample| sample.memory),
                Growth::of_lowest(samples.iter().map(|sample| sample.descriptors)),
                of(|sample| sample.watches),
            );
        }
        table
            + &format!(
                "{} files with {} bytes, at most {} keys set aside, an audit log of {} bytes\n",
                Growth::of_lowest(self.files.iter().map(|(number, _)| *number)),
                Growth::of(self.files.iter().map(|(_, bytes)| *bytes)),
                self.aside,
                self.audit_log
            )
    }

    pub(super) fn assert_nothing_grew(&self) {
        let table = self.table();
        let grown = |program, value: fn(&Sample) -> u64| {
            Growth::of(self.longest(program).iter().map(value))
        };
        let memory = grown("nodepki", |sample| sample.memory);
        let (amount, share) = MEMORY_ALLOWANCE;
        let allowed = memory.first + amount + (memory.first as f64 * share) as u64;
        assert!(memory.last <= allowed, "{table}");
        for program in MEASURED {
            let samples = self.longest(program);
            let descriptors = Growth::of_lowest(samples.iter().map(|sample| sample.descriptors));
            let allowance = match program {
                "nodepki" => 0,
                _ => CONNECTION_ALLOWANCE,
            };
            assert!(descriptors.last <= descriptors.first + allowance, "{table}");
            let watches = grown(program, |sample| sample.watches);
            assert!(watches.last <= watches.first, "{table}");
        }
        let numbers = Growth::of_lowest(self.files.iter().map(|(number, _)| *number));
        assert!(numbers.last <= numbers.first, "{table}");
        let bytes = Growth::of(self.files.iter().map(|(_, bytes)| *bytes));
        assert!(bytes.last <= bytes.first + bytes.first / 10, "{table}");
        assert!(
            self.aside <= MAX_ASIDE && self.audit_log <= MAX_AUDIT_LOG,
            "{table}"
        );
    }
}

/// Values of the first tenth and of the last tenth of a series.
struct Growth {
    first: u64,
    last: u64,
}

impl Growth {
    /// Compares the medians.
    fn of(series: impl Iterator<Item = u64>) -> Self {
        Self::with(series, median)
    }

    /// Compares the smallest values, for a quantity that is larger while the process works.
    fn of_lowest(series: impl Iterator<Item = u64>) -> Self {
        Self::with(series, |values| values.iter().copied().min().unwrap())
    }

    fn with(series: impl Iterator<Item = u64>, value: fn(&[u64]) -> u64) -> Self {
        let series: Vec<u64> = series.collect();
        let count = series.len().div_ceil(10).max(MIN_SAMPLES).min(series.len());
        Growth {
            first: value(&series[..count]),
            last: value(&series[series.len() - count..]),
        }
    }
}

impl std::fmt::Display for Growth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} → {}", self.first, self.last)
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

impl Sample {
    fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let memory = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let memory = memory.split_whitespace().next()?.parse().ok()?;
        let (mut descriptors, mut watches) = (0, 0);
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()? {
            // The descriptor may be closed meanwhile.
            let text = fs::read_to_string(entry.ok()?.path()).unwrap_or_default();
            descriptors += 1;
            watches += text
                .lines()
                .filter(|line| line.starts_with("inotify "))
                .count() as u64;
        }
        Some(Sample {
            pid,
            memory,
            descriptors,
            watches,
        })
    }
}

/// Returns the process of a program that uses the network of another process.
fn process_on_node(program: &str, neighbour: u32) -> Option<u32> {
    let network = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let here = network(neighbour)?;
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == program)
            && network(*pid).as_ref() == Some(&here)
    })
}

/// Number and total size of the files below `directory` whose entry there is accepted.
fn size_of(directory: &Path, accepts: &dyn Fn(&str) -> bool) -> (u64, u64) {
    let (mut number, mut bytes) = (0, 0);
    // Files and directories may be removed meanwhile.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(accepts) {
            continue;
        }
        let Ok(found) = entry.metadata() else {
            continue;
        };
        let (files, size) = if found.is_dir() {
            size_of(&entry.path(), &|_| true)
        } else {
            (1, found.len())
        };
        number += files;
        bytes += size;
    }
    (number, bytes)
}
