//! Counts of a simulation.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::AddAssign;

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
    faults: RefCell<BTreeMap<String, u64>>,
}

impl Statistics {
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
            steps: self.steps.get(),
            requests: self.requests.get(),
            issued: self.issued.get(),
            installed: self.installed.get(),
            ca_changes: self.ca_changes.get(),
            most_requests: self.most_requests.get(),
            faults: self.faults.borrow().clone(),
        }
    }
}

/// Counts of many seeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) seeds: u64,
    pub(crate) node_years: f64,
    pub(crate) steps: u64,
    pub(crate) requests: u64,
    pub(crate) issued: u64,
    pub(crate) installed: u64,
    pub(crate) ca_changes: u64,
    pub(crate) most_requests: (usize, usize),
    pub(crate) faults: BTreeMap<String, u64>,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.seeds += other.seeds;
        self.node_years += other.node_years;
        self.steps += other.steps;
        self.requests += other.requests;
        self.issued += other.issued;
        self.installed += other.installed;
        self.ca_changes += other.ca_changes;
        let (ours, theirs) = (self.most_requests, other.most_requests);
        self.most_requests = (ours.0.max(theirs.0), ours.1.max(theirs.1));
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
            "{} seeds, {:.0} node-years, {} steps, {} requests, {} certificates issued and {} installed, {} CA changes, at most {} requests for a certificate in an hour ({} while a valid one is in place); faults: {}",
            self.seeds,
            self.node_years,
            self.steps,
            self.requests,
            self.issued,
            self.installed,
            self.ca_changes,
            self.most_requests.1,
            self.most_requests.0,
            faults.join(", ")
        )
    }
}
