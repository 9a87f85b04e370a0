//! Counts of a simulation.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Duration;

use crate::plan::HOUR;

const MINUTE: Duration = Duration::from_secs(60);

/// Counts of one seed.
#[derive(Default)]
pub(crate) struct Statistics {
    pub(crate) steps: Cell<u64>,
    pub(crate) requests: Cell<u64>,
    pub(crate) issued: Cell<u64>,
    pub(crate) installed: Cell<u64>,
    pub(crate) ca_changes: Cell<u64>,
    /// Largest number of submissions for one certificate of a node within an hour: while a certificate with at least a day
    /// of validity is in place, and in any case.
    pub(crate) most_requests: Cell<(usize, usize)>,
    /// The last hour with a submission, counted from the start, and the submissions of the fleet in that hour.
    hour: Cell<(u64, u64)>,
    /// Largest number of submissions of the fleet in an hour.
    peak_hour: Cell<u64>,
    /// The last minute with a submission, counted from the start, and the nodes that submitted in that minute.
    minute: RefCell<(u64, BTreeSet<usize>)>,
    /// Largest number of nodes that submitted in the same minute.
    pub(crate) most_nodes_at_once: Cell<usize>,
    faults: RefCell<BTreeMap<String, u64>>,
}

impl Statistics {
    /// Counts a submission of a node to its signer.
    pub(crate) fn submission(&self, node: usize, at: Duration) {
        Statistics::add(&self.requests, 1);
        let hour = at.as_secs() / HOUR.as_secs();
        let in_hour = match self.hour.get() {
            (current, count) if current == hour => count + 1,
            _ => 1,
        };
        self.hour.set((hour, in_hour));
        self.peak_hour.set(self.peak_hour.get().max(in_hour));
        let mut minute = self.minute.borrow_mut();
        let current = at.as_secs() / MINUTE.as_secs();
        if minute.0 != current {
            *minute = (current, BTreeSet::new());
        }
        minute.1.insert(node);
        let most = self.most_nodes_at_once.get().max(minute.1.len());
        self.most_nodes_at_once.set(most);
    }

    pub(crate) fn add(count: &Cell<u64>, more: u64) {
        count.set(count.get() + more);
    }

    /// Counts a fault of a kind.
    pub(crate) fn fault(&self, kind: impl Into<String>) {
        *self.faults.borrow_mut().entry(kind.into()).or_default() += 1;
    }

    pub(crate) fn total(&self) -> Totals {
        Totals {
            seeds: 1,
            node_years: 0.0,
            hours: 0.0,
            steps: self.steps.get(),
            requests: self.requests.get(),
            issued: self.issued.get(),
            installed: self.installed.get(),
            ca_changes: self.ca_changes.get(),
            most_requests: self.most_requests.get(),
            peak_hour: self.peak_hour.get(),
            most_nodes_at_once: self.most_nodes_at_once.get(),
            faults: self.faults.borrow().clone(),
        }
    }
}

/// Counts of many seeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) seeds: u64,
    pub(crate) node_years: f64,
    /// Simulated hours of all fleets.
    pub(crate) hours: f64,
    pub(crate) steps: u64,
    pub(crate) requests: u64,
    pub(crate) issued: u64,
    pub(crate) installed: u64,
    pub(crate) ca_changes: u64,
    pub(crate) most_requests: (usize, usize),
    pub(crate) peak_hour: u64,
    pub(crate) most_nodes_at_once: usize,
    pub(crate) faults: BTreeMap<String, u64>,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.seeds += other.seeds;
        self.node_years += other.node_years;
        self.hours += other.hours;
        self.steps += other.steps;
        self.requests += other.requests;
        self.issued += other.issued;
        self.installed += other.installed;
        self.ca_changes += other.ca_changes;
        let (ours, theirs) = (self.most_requests, other.most_requests);
        self.most_requests = (ours.0.max(theirs.0), ours.1.max(theirs.1));
        self.peak_hour = self.peak_hour.max(other.peak_hour);
        self.most_nodes_at_once = self.most_nodes_at_once.max(other.most_nodes_at_once);
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let faults: Vec<String> = self
            .faults
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        write!(
            f,
            "{} seeds, {:.0} node-years, {} steps, {} requests, {} certificates issued and {} installed, {} CA changes, at most {} requests for a certificate in an hour ({} while a valid one is in place), at most {} requests of a fleet in an hour at a mean of {:.2}, and {} nodes in the same minute; faults: {}",
            self.seeds,
            self.node_years,
            self.steps,
            self.requests,
            self.issued,
            self.installed,
            self.ca_changes,
            self.most_requests.1,
            self.most_requests.0,
            self.peak_hour,
            self.requests as f64 / self.hours,
            self.most_nodes_at_once,
            faults.join(", ")
        )
    }
}
