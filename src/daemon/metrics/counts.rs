//! The counters, which survive the process: `metrics.json` in the state directory.
//!
//! A process counts from zero and adds its counters to the file, under the lock of the node, so concurrent commands
//! lose nothing. The file is replaced atomically. A damaged file counts as empty, since Prometheus expects counters to be
//! reset.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::exposition::MetricsPage;
use super::families::{ALL, MetricFamily, MetricType};
use crate::store::{self, NodeRoot, STATE_DIR, StateFile};

const METRICS_FILE: StateFile = StateFile::of_knowledge("metrics.json", 1);

/// Values by family name and labels, in the form of the page.
type ByLabels<T> = BTreeMap<String, BTreeMap<String, T>>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    counters: ByLabels<u64>,
    histograms: ByLabels<Histogram>,
    /// By command.
    pub(super) runs: BTreeMap<String, LastRun>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Histogram {
    counts: Vec<u64>,
    sum: f64,
}

/// The last run of a command. Times are in seconds since the epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LastRun {
    pub(super) ended: i64,
    pub(super) seconds: f64,
    pub(super) code: u8,
    pub(super) succeeded: Option<i64>,
    pub(super) next: Option<i64>,
}

impl Counts {
    pub(super) fn count(&mut self, family: &MetricFamily, labels: String, by: u64) {
        let of_family = self.counters.entry(family.name.to_owned()).or_default();
        *of_family.entry(labels).or_default() += by;
    }

    pub(super) fn observe(&mut self, family: &MetricFamily, labels: String, took: Duration) {
        let MetricType::Histogram(bounds) = family.kind else {
            return;
        };
        let seconds = took.as_secs_f64();
        let of_family = self.histograms.entry(family.name.to_owned()).or_default();
        let histogram = of_family.entry(labels).or_insert_with(|| Histogram {
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        });
        let bucket = bounds.iter().take_while(|bound| seconds > **bound).count();
        if let Some(count) = histogram.counts.get_mut(bucket) {
            *count += 1;
        }
        histogram.sum += seconds;
    }

    pub(super) fn add(&mut self, other: Counts) {
        for (family, counters) in other.counters {
            let of_family = self.counters.entry(family).or_default();
            for (labels, by) in counters {
                *of_family.entry(labels).or_default() += by;
            }
        }
        for (family, histograms) in other.histograms {
            let of_family = self.histograms.entry(family).or_default();
            for (labels, more) in histograms {
                match of_family.get_mut(&labels) {
                    Some(histogram) if histogram.counts.len() == more.counts.len() => {
                        let counts = histogram.counts.iter_mut().zip(more.counts);
                        counts.for_each(|(count, more)| *count += more);
                        histogram.sum += more.sum;
                    }
                    _ => {
                        of_family.insert(labels, more);
                    }
                }
            }
        }
        for (command, mut run) in other.runs {
            let before = self.runs.get(&command).and_then(|run| run.succeeded);
            run.succeeded = run.succeeded.or(before);
            self.runs.insert(command, run);
        }
    }

    /// Returns the counters of earlier processes; none if the file is missing or unreadable.
    pub(super) fn read(root: &NodeRoot) -> Counts {
        Counts::load(root).unwrap_or_default()
    }

    /// Reads the file. Families that this release does not know are left out.
    fn load(root: &NodeRoot) -> Result<Counts, store::StoreError> {
        let mut counts: Counts = root.record(&METRICS_FILE)?.unwrap_or_default();
        let known = |name: &String| ALL.iter().any(|family| family.name == name);
        counts.counters.retain(|name, _| known(name));
        counts.histograms.retain(|name, _| known(name));
        Ok(counts)
    }

    /// Adds these counters to the file.
    ///
    /// # Errors
    /// If the file cannot be written, or a newer nodepki has written it; it is unchanged then.
    pub(super) fn save(self, root: &NodeRoot, wait: Duration) -> Result<(), store::StoreError> {
        let _lock = root.lock(wait, "metrics")?;
        let mut all = match Counts::load(root) {
            Err(error @ store::StoreError::NewerFormat { .. }) => return Err(error),
            counts => counts.unwrap_or_default(),
        };
        all.add(self);
        let json = METRICS_FILE.to_compact_json(&all);
        let directory = root.create_dir(STATE_DIR, 0o700)?;
        directory
            .write_atomic(METRICS_FILE.name, &json, 0o600)
            .map(drop)
    }

    pub(super) fn show(&self, page: &mut MetricsPage) {
        for family in ALL {
            for (labels, count) in self.counters.get(family.name).into_iter().flatten() {
                page.sample(family, labels, *count as f64);
            }
            for (labels, histogram) in self.histograms.get(family.name).into_iter().flatten() {
                page.histogram(family, labels, &histogram.counts, histogram.sum);
            }
        }
    }
}
