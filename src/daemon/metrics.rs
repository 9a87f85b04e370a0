//! Metrics for Prometheus: a textfile for node_exporter after a run, the page and the health check of the daemon, and the
//! output of `status -o prometheus`.
//!
//! Owns the counters and the names of the metrics (`families`); reads the node through `status` and `agent`, and decides
//! nothing. Metrics never fail a run: a file that cannot be written is a warning. A page contains no secret, and no
//! label with an unbounded set of values.
//!
//! To add a metric: a row in `families`, and a line in `gauges` for a value read from disk, or in [`Recorder`] for an
//! event. A test compares alert rules and dashboard with the table.

mod counts;
mod exposition;
mod families;
mod gauges;
mod kubelets;
mod serve;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use time::OffsetDateTime;

use crate::agent::{Event, ExitCode, Progress, RunSetup};
use crate::config::MetricsSettings;
use crate::kube::names::CertName;
use crate::node::NodeState;
use crate::node::status::{self, NodeRole, NodeStatus, RowState};
use crate::node::summary::NodeSummary;
use crate::process::machine;
use crate::signer::FailureClass;
use crate::spec::NodeSpec;
use crate::store::{self, NodeRoot, Slot};
use crate::text::rfc3339;

use counts::{Counts, LastRun};
use exposition::{MetricsPage, labels};
use families::{
    GENERATED, GENERATION_DURATION, LAST_RUN, LAST_RUN_DURATION, LAST_RUN_EXIT_CODE, LAST_SUCCESS,
    NEXT_RUN, RESTARTS, SIGNER_DURATION, SIGNER_ERRORS,
};
use gauges::{CertificateLabels, key_labels};
use kubelets::KubeletGauges;

pub use kubelets::KubeletRecorder;
pub use serve::{bind, serve};

/// Maximum age of the values on a page that are read from disk.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(30);
/// Duration or delay of a step after which the daemon counts as stuck.
const MAX_STEP_DELAY: Duration = Duration::from_secs(15 * 60);
/// Maximum wait for another process on this node that saves its counters.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(10);

/// Returns the page that `status -o prometheus` prints.
pub(crate) fn of_status(root: &NodeRoot, status: &NodeStatus) -> String {
    let mut page = gauges::found(status);
    gauges::restarts(&mut page, root);
    page.text()
}

/// Returns the page that `cluster status -o prometheus` prints: for each node its name, and its report if there is one.
pub(crate) fn of_cluster<'a>(
    nodes: impl Iterator<Item = (&'a str, Option<&'a NodeSummary>)>,
) -> String {
    let mut page = MetricsPage::default();
    for (node, summary) in nodes {
        gauges::reported(&mut page, node, summary);
    }
    page.text()
}

/// The metrics of this process. Clones share them.
#[derive(Clone)]
pub struct Metrics(Rc<Shared>);

struct Shared {
    root: NodeRoot,
    command: &'static str,
    textfile: Option<PathBuf>,
    /// Whether the configuration exports the metrics.
    enabled: bool,
    state: RefCell<MetricsState>,
}

#[derive(Default)]
struct MetricsState {
    /// The counters in the file: those of earlier processes, and the saved ones of this process.
    saved: Counts,
    /// The counters of this process that are not in the file.
    unsaved: Counts,
    /// When the running step started.
    running: Option<OffsetDateTime>,
    /// When the next step is due.
    next: Option<OffsetDateTime>,
    /// The desired state of the node.
    plan: Option<NodeSpec>,
    /// The samples that depend on the configuration, after the last step.
    assessed: MetricsPage,
    snapshot: Option<Snapshot>,
    kubelets: KubeletGauges,
    /// Whether a fault of this machine prevented saving the counters.
    machine_fault: bool,
}

/// The samples that were read from disk.
struct Snapshot {
    at: OffsetDateTime,
    page: MetricsPage,
    expired: Vec<&'static str>,
}

impl Metrics {
    /// Continues the counters of earlier runs. `command` is a label: `bootstrap`, `renew`, `daemon`.
    pub fn new(
        root: &NodeRoot,
        settings: &MetricsSettings,
        setup: &RunSetup,
        command: &'static str,
    ) -> Metrics {
        let enabled = settings.textfile.is_some() || settings.listen.is_some();
        let saved = if enabled {
            Counts::read(root)
        } else {
            Counts::default()
        };
        Metrics(Rc::new(Shared {
            root: root.clone(),
            command,
            textfile: settings.textfile.clone(),
            enabled,
            state: RefCell::new(MetricsState {
                saved,
                plan: Some(setup.plan.clone()),
                ..MetricsState::default()
            }),
        }))
    }

    /// Returns a recorder that counts the events of one run and forwards them to `next`. The run starts now.
    pub fn recorder<'a>(
        &self,
        setup: &'a RunSetup,
        next: &'a dyn Progress,
        now: OffsetDateTime,
    ) -> Recorder<'a> {
        let mut state = self.0.state.borrow_mut();
        state.running = Some(now);
        state.plan = Some(setup.plan.clone());
        // A counter must exist with the value 0, so Prometheus sees the first increase.
        for spec in &setup.plan.certs {
            let key = spec.requested.profile.key.as_str();
            for result in RESULTS {
                let labels = generated_labels(spec.name(), key, result);
                state.unsaved.count(&GENERATED, labels, 0);
            }
        }
        for (signer, _) in setup.signers.values() {
            for class in FailureClass::ALL {
                state
                    .unsaved
                    .count(&SIGNER_ERRORS, error_labels(signer, class), 0);
            }
        }
        drop(state);
        Recorder {
            metrics: self.clone(),
            setup,
            next,
        }
    }

    /// Records the end of a run; `next` is when the next one is due. Saves the counters in the state directory and writes
    /// the textfile. Returns failures as warnings.
    pub fn ended(
        &self,
        setup: &RunSetup,
        code: ExitCode,
        next: Option<OffsetDateTime>,
        now: OffsetDateTime,
    ) -> Vec<String> {
        if !self.0.enabled {
            return Vec::new();
        }
        let mut state = self.0.state.borrow_mut();
        state.machine_fault = false;
        let began = state.running.take().unwrap_or(now);
        state.next = next;
        state.assessed = match setup.survey(&self.0.root, now) {
            Ok(survey) => gauges::assessed(&survey, &self.0.root, now),
            Err(_) => gauges::not_assessed(&setup.plan),
        };
        state.snapshot = None;
        let run = LastRun {
            ended: now.unix_timestamp(),
            seconds: (now - began).as_seconds_f64().max(0.0),
            code: code as u8,
            succeeded: (code == ExitCode::Done).then(|| now.unix_timestamp()),
            next: next.map(OffsetDateTime::unix_timestamp),
        };
        state.unsaved.runs.insert(self.0.command.to_owned(), run);
        let mut warnings = Vec::new();
        match state.unsaved.clone().save(&self.0.root, MAX_LOCK_WAIT) {
            Ok(()) => {
                state.saved = Counts::read(&self.0.root);
                state.unsaved = Counts::default();
            }
            Err(error) => {
                state.machine_fault = machine::is_fault(&error);
                warnings.push(format!("the counters of this run were not saved: {error}"));
            }
        }
        drop(state);
        if let Some(textfile) = &self.0.textfile
            && let Err((why, machine_fault)) = self.write_textfile(textfile, &self.page(now))
        {
            self.0.state.borrow_mut().machine_fault |= machine_fault;
            warnings.push(why);
        }
        warnings
    }

    /// Returns the exit code of the metrics of the last run: 75 if a fault of this machine prevented writing them.
    pub fn code(&self) -> ExitCode {
        if self.0.state.borrow().machine_fault {
            ExitCode::Pending
        } else {
            ExitCode::Done
        }
    }

    /// Writes the textfile. The error is a message, and whether this machine is at fault.
    fn write_textfile(&self, path: &Path, text: &str) -> Result<(), (String, bool)> {
        let root = &self.0.root;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(());
        };
        let failed = |error: &dyn std::fmt::Display| {
            format!(
                "cannot write the metrics to {}: {error}",
                root.on_this_machine(path).display()
            )
        };
        let of_store = |error: store::StoreError| (failed(&error), machine::is_fault(&error));
        let directory = root.dir(parent).map_err(of_store)?;
        let Some(directory) = directory else {
            let why = failed(&format_args!(
                "the directory {} does not exist; create it and pass it to node_exporter as --collector.textfile.directory, or correct metrics.textfile",
                root.on_this_machine(parent).display()
            ));
            return Err((why, false));
        };
        let written = directory.write_atomic(name, text.as_bytes(), 0o644);
        written.map(drop).map_err(of_store)
    }

    /// Returns the page.
    pub fn page(&self, now: OffsetDateTime) -> String {
        self.refresh_snapshot(now);
        let state = self.0.state.borrow();
        let mut counts = state.saved.clone();
        counts.add(state.unsaved.clone());
        let mut page = state
            .snapshot
            .as_ref()
            .map(|snapshot| snapshot.page.clone())
            .unwrap_or_default();
        page.append(&state.assessed);
        counts.show(&mut page);
        state.kubelets.show(&mut page);
        for (command, run) in &counts.runs {
            let labels = labels(&[("command", command)]);
            page.sample(&LAST_RUN, &labels, run.ended as f64);
            page.sample(&LAST_RUN_DURATION, &labels, run.seconds);
            page.sample(&LAST_RUN_EXIT_CODE, &labels, f64::from(run.code));
            for (family, at) in [(&LAST_SUCCESS, run.succeeded), (&NEXT_RUN, run.next)] {
                if let Some(at) = at {
                    page.sample(family, &labels, at as f64);
                }
            }
        }
        page.text()
    }

    /// Returns the reasons why the node is unhealthy; empty if it is healthy.
    pub fn health_problems(&self, now: OffsetDateTime) -> Vec<String> {
        self.refresh_snapshot(now);
        let state = self.0.state.borrow();
        let mut problems = Vec::new();
        match (state.running, state.next) {
            (Some(since), _) if now - since > MAX_STEP_DELAY => {
                problems.push(format!("a step has been running since {}", rfc3339(since)));
            }
            (None, Some(due)) if now - due > MAX_STEP_DELAY => problems.push(format!(
                "the step that was due at {} has not started",
                rfc3339(due)
            )),
            _ => {}
        }
        let expired = state.snapshot.iter().flat_map(|snapshot| &snapshot.expired);
        problems.extend(expired.map(|name| format!("{name} has expired")));
        problems
    }

    /// Reads the node, unless the last snapshot is recent.
    fn refresh_snapshot(&self, now: OffsetDateTime) {
        let mut state = self.0.state.borrow_mut();
        let is_recent =
            |snapshot: &Snapshot| now >= snapshot.at && now - snapshot.at < MAX_SNAPSHOT_AGE;
        if state.snapshot.as_ref().is_some_and(is_recent) {
            return;
        }
        let root = &self.0.root;
        let plan = state.plan.as_ref();
        let layout = plan.map(|plan| plan.layout.clone()).unwrap_or_default();
        let role = plan.map(NodeRole::from);
        let status = status::collect(&NodeState::new(root, layout), role, plan, now);
        let mut page = gauges::found(&status);
        gauges::restarts(&mut page, root);
        let is_expired = |state: RowState| state == RowState::Expired;
        // No component of this node needs a file that the settings omit.
        let is_omitted = |name| plan.is_some_and(|plan| plan.omitted.contains(&name));
        let leaves = status.certificates.iter();
        let leaves = leaves
            .filter(|one| is_expired(one.state) && !is_omitted(one.name))
            .map(|one| one.name.as_str());
        let authorities = status.authorities.iter();
        let authorities = authorities
            .filter(|one| is_expired(one.state))
            .map(|one| one.name.as_str());
        let expired = leaves.chain(authorities).collect();
        state.snapshot = Some(Snapshot {
            at: now,
            page,
            expired,
        });
    }
}

const RESULTS: [&str; 2] = ["success", "failure"];

fn generated_labels(name: CertName, key: &str, result: &str) -> String {
    let certificate = CertificateLabels::leaf(name).with_key(key);
    format!("{certificate},{}", labels(&[("result", result)]))
}

fn error_labels(signer: &str, class: FailureClass) -> String {
    labels(&[("signer", signer), ("class", class.as_str())])
}

/// Counts events and forwards them.
pub struct Recorder<'a> {
    metrics: Metrics,
    setup: &'a RunSetup,
    next: &'a dyn Progress,
}

impl Recorder<'_> {
    fn count_generated(&self, counts: &mut Counts, name: CertName, result: &str) {
        if let Some(spec) = self.setup.plan.cert(name) {
            let labels = generated_labels(name, spec.requested.profile.key.as_str(), result);
            counts.count(&GENERATED, labels, 1);
        }
    }
}

impl Progress for Recorder<'_> {
    fn event(&self, event: Event) {
        let mut state = self.metrics.0.state.borrow_mut();
        let counts = &mut state.unsaved;
        match &event {
            Event::KeyMade {
                slot,
                algorithm,
                took,
            } => {
                let key = algorithm.as_str();
                let labels = match slot {
                    Slot::Certificate(name) => CertificateLabels::leaf(*name).with_key(key),
                    Slot::ServiceAccount => {
                        let pair = [
                            ("certificate_name", slot.as_str()),
                            ("component", "kube-apiserver"),
                        ];
                        format!("{},{}", labels(&pair), key_labels(key))
                    }
                };
                counts.observe(&GENERATION_DURATION, labels, *took);
            }
            Event::Asked {
                signer,
                operation,
                took,
                result,
            } => {
                let labels = labels(&[("signer", signer), ("operation", operation.as_str())]);
                counts.observe(&SIGNER_DURATION, labels, *took);
                if let Err(class) = result {
                    counts.count(&SIGNER_ERRORS, error_labels(signer, *class), 1);
                }
            }
            Event::Installed { name, .. } => self.count_generated(counts, *name, "success"),
            Event::Refused { name, .. } | Event::Failed { name, .. } => {
                self.count_generated(counts, *name, "failure");
            }
            Event::Restarted { component } => {
                let labels = labels(&[("component", component), ("result", "success")]);
                counts.count(&RESTARTS, labels, 1);
            }
            Event::RolledBack { component, .. } => {
                let labels = labels(&[("component", component), ("result", "failure")]);
                counts.count(&RESTARTS, labels, 1);
            }
            Event::Started { .. }
            | Event::Submitted(_)
            | Event::Waiting { .. }
            | Event::Retrying { .. }
            | Event::Signed(_)
            | Event::Pending { .. }
            | Event::Expiring { .. }
            | Event::Awaiting { .. }
            | Event::ClockBehind(_) => {}
        }
        drop(state);
        self.next.event(event);
    }
}

#[cfg(test)]
mod tests;
