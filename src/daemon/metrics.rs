//! What a node exports for Prometheus: a textfile for node_exporter after a run, a page and a health check of the
//! daemon, and what `status -o prometheus` prints.
//!
//! Owns what is counted and its names (`families`); reads the node through `status` and `agent`, and decides nothing.
//! Nothing in here can fail a run: what cannot be written is a warning. A page has no secret and no label without
//! bounds.
//!
//! To add a metric: a row in `families`, and a line in `gauges` for what the disk says, or in [`Recorder`] for what
//! happens. A test holds alert rules and dashboard against the table.

mod counts;
mod exposition;
mod families;
mod gauges;
mod serve;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use time::OffsetDateTime;

use crate::agent::{Event, ExitCode, Progress, Setup};
use crate::config::MetricsSettings;
use crate::kube::names::CertName;
use crate::node::NodeState;
use crate::node::status::{self, State, Status};
use crate::process::machine;
use crate::signer::Class;
use crate::spec::Layout;
use crate::store::{self, Root, Slot};
use crate::x509::rfc3339;

use counts::{Counts, Run};
use exposition::{Page, labels};
use families::{
    GENERATED, GENERATION_DURATION, LAST_RUN, LAST_RUN_DURATION, LAST_RUN_EXIT_CODE, LAST_SUCCESS,
    NEXT_RUN, RESTARTS, SIGNER_DURATION, SIGNER_ERRORS,
};
use gauges::{Key, Who};

pub use serve::{bind, serve};

/// How long what was read from disk is good for a page.
const FRESH: Duration = Duration::from_secs(30);
/// How long a step may take, or be late, before the daemon counts as stuck.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How long to wait for another command of this node that writes what it counted.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// The gauges of a status, as `status -o prometheus` prints them.
pub fn of_status(root: &Root, status: &Status) -> String {
    let mut page = gauges::found(status);
    gauges::restarts(&mut page, root);
    page.text()
}

/// What a process counts and knows. Clones share it.
#[derive(Clone)]
pub struct Metrics(Rc<Shared>);

struct Shared {
    root: Root,
    command: &'static str,
    textfile: Option<PathBuf>,
    /// Somebody looks at what is counted.
    wanted: bool,
    state: RefCell<Counted>,
}

#[derive(Default)]
struct Counted {
    /// By earlier processes, and by this one as far as it is in the file.
    kept: Counts,
    /// By this process since.
    fresh: Counts,
    /// When the step that is under way began.
    running: Option<OffsetDateTime>,
    /// When the next one is due.
    next: Option<OffsetDateTime>,
    layout: Layout,
    /// Of the configuration.
    role: Option<status::Role>,
    /// What the configuration says of what is in place, after the last step.
    judged: Page,
    seen: Option<Seen>,
    /// This machine failed to write what was counted.
    machine_fault: bool,
}

/// What was read from disk for a page.
struct Seen {
    at: OffsetDateTime,
    page: Page,
    expired: Vec<&'static str>,
}

impl Metrics {
    /// Takes up what earlier runs counted. `command` is a label: `bootstrap`, `renew`, `daemon`.
    pub fn new(
        root: &Root,
        settings: &MetricsSettings,
        setup: &Setup,
        command: &'static str,
    ) -> Metrics {
        let wanted = settings.textfile.is_some() || settings.listen.is_some();
        let kept = match wanted {
            true => Counts::read(root),
            false => Counts::default(),
        };
        Metrics(Rc::new(Shared {
            root: root.clone(),
            command,
            textfile: settings.textfile.clone(),
            wanted,
            state: RefCell::new(Counted {
                kept,
                layout: setup.plan.layout.clone(),
                role: Some(role(setup)),
                ..Counted::default()
            }),
        }))
    }

    /// Counts the events of one run, and passes them on. The run begins now.
    pub fn recorder<'a>(
        &self,
        setup: &'a Setup,
        next: &'a dyn Progress,
        now: OffsetDateTime,
    ) -> Recorder<'a> {
        let mut state = self.0.state.borrow_mut();
        state.running = Some(now);
        state.layout = setup.plan.layout.clone();
        state.role = Some(role(setup));
        // A counter that is there before it counts has an increase when it does.
        for spec in &setup.plan.certs {
            let key = spec.profile.key.as_str();
            for result in RESULTS {
                let labels = generated(spec.name, key, result);
                state.fresh.count(&GENERATED, labels, 0);
            }
        }
        for (signer, _) in setup.signers.values() {
            for class in CLASSES {
                state.fresh.count(&SIGNER_ERRORS, failed(signer, class), 0);
            }
        }
        drop(state);
        Recorder {
            metrics: self.clone(),
            setup,
            next,
        }
    }

    /// The run is over; `next` is when there will be something to do. What was counted goes to the state directory and
    /// the textfile; what is in the way of that is a warning.
    pub fn ended(
        &self,
        setup: &Setup,
        code: ExitCode,
        next: Option<OffsetDateTime>,
        now: OffsetDateTime,
    ) -> Vec<String> {
        if !self.0.wanted {
            return Vec::new();
        }
        let mut state = self.0.state.borrow_mut();
        state.machine_fault = false;
        let began = state.running.take().unwrap_or(now);
        state.next = next;
        state.judged = match setup.survey(&self.0.root, now) {
            Ok(survey) => gauges::judged(&survey),
            Err(_) => Page::default(),
        };
        state.seen = None;
        let run = Run {
            ended: now.unix_timestamp(),
            seconds: (now - began).as_seconds_f64().max(0.0),
            code: code as u8,
            succeeded: (code == ExitCode::Done).then(|| now.unix_timestamp()),
            next: next.map(OffsetDateTime::unix_timestamp),
        };
        state.fresh.runs.insert(self.0.command.to_owned(), run);
        let mut warnings = Vec::new();
        match state.fresh.clone().save(&self.0.root, LOCK_WAIT) {
            Ok(()) => {
                state.kept = Counts::read(&self.0.root);
                state.fresh = Counts::default();
            }
            Err(error) => {
                state.machine_fault = machine::is_fault(&error);
                warnings.push(format!("what was counted is not kept: {error}"));
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

    /// Returns what the metrics of the run that ended last add to its exit code: 75 if this machine failed to write them.
    pub fn code(&self) -> ExitCode {
        match self.0.state.borrow().machine_fault {
            true => ExitCode::Pending,
            false => ExitCode::Done,
        }
    }

    /// The error says in words what failed, and whether this machine is at fault.
    fn write_textfile(&self, path: &Path, text: &str) -> Result<(), (String, bool)> {
        let root = &self.0.root;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(());
        };
        let failed = |error: &dyn std::fmt::Display| {
            format!(
                "the metrics are not in {}: {error}",
                root.on_this_machine(path).display()
            )
        };
        let of_store = |error: store::Error| (failed(&error), machine::is_fault(&error));
        let directory = root.dir(parent).map_err(of_store)?;
        let Some(directory) = directory else {
            let why = failed(&format_args!(
                "there is no directory {}; make it and point node_exporter's --collector.textfile.directory at it, or correct metrics.textfile",
                root.on_this_machine(parent).display()
            ));
            return Err((why, false));
        };
        let written = directory.write_atomic(name, text.as_bytes(), 0o644);
        written.map(drop).map_err(of_store)
    }

    /// The page as it is at `now`.
    pub fn page(&self, now: OffsetDateTime) -> String {
        self.look(now);
        let state = self.0.state.borrow();
        let mut counts = state.kept.clone();
        counts.add(state.fresh.clone());
        let mut page = state
            .seen
            .as_ref()
            .map(|seen| seen.page.clone())
            .unwrap_or_default();
        page.append(&state.judged);
        counts.show(&mut page);
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

    /// Why the node is not well, in words; nothing when it is.
    pub fn ailments(&self, now: OffsetDateTime) -> Vec<String> {
        self.look(now);
        let state = self.0.state.borrow();
        let mut ailments = Vec::new();
        match (state.running, state.next) {
            (Some(since), _) if now - since > PATIENCE => {
                ailments.push(format!(
                    "a step has been under way since {}",
                    rfc3339(since)
                ));
            }
            (None, Some(due)) if now - due > PATIENCE => ailments.push(format!(
                "the step that was due at {} has not begun",
                rfc3339(due)
            )),
            _ => {}
        }
        let expired = state.seen.iter().flat_map(|seen| &seen.expired);
        ailments.extend(expired.map(|name| format!("{name} has expired")));
        ailments
    }

    /// Reads the node, unless that was done a moment ago.
    fn look(&self, now: OffsetDateTime) {
        let mut state = self.0.state.borrow_mut();
        let fresh = |seen: &Seen| now >= seen.at && now - seen.at < FRESH;
        if state.seen.as_ref().is_some_and(fresh) {
            return;
        }
        let root = &self.0.root;
        let status = status::collect(&NodeState::new(root, state.layout.clone()), state.role, now);
        let mut page = gauges::found(&status);
        gauges::restarts(&mut page, root);
        let is_over = |state: State| state == State::Expired;
        let leaves = status.certificates.iter();
        let leaves = leaves
            .filter(|one| is_over(one.state))
            .map(|one| one.name.as_str());
        let authorities = status.authorities.iter();
        let authorities = authorities
            .filter(|one| is_over(one.state))
            .map(|one| one.name.as_str());
        state.seen = Some(Seen {
            at: now,
            page,
            expired: leaves.chain(authorities).collect(),
        });
    }
}

const RESULTS: [&str; 2] = ["success", "failure"];
const CLASSES: [Class; 5] = [
    Class::Transient,
    Class::Ambiguous,
    Class::Auth,
    Class::Config,
    Class::Permanent,
];

/// The role that the plan is for: every control-plane node has a service-account pair, and no worker has.
fn role(setup: &Setup) -> status::Role {
    match &setup.plan.service_account {
        Some(_) => status::Role::ControlPlane,
        None => status::Role::Worker,
    }
}

fn generated(name: CertName, key: &str, result: &str) -> String {
    let who = Who::leaf(name).labels_with_key(key);
    format!("{who},{}", labels(&[("result", result)]))
}

fn failed(signer: &str, class: Class) -> String {
    let class = class.as_str();
    labels(&[("signer", signer), ("class", class)])
}

/// Counts what happens, and passes it on.
pub struct Recorder<'a> {
    metrics: Metrics,
    setup: &'a Setup,
    next: &'a dyn Progress,
}

impl Recorder<'_> {
    fn generated(&self, fresh: &mut Counts, name: CertName, result: &str) {
        if let Some(spec) = self.setup.plan.cert(name) {
            let labels = generated(name, spec.profile.key.as_str(), result);
            fresh.count(&GENERATED, labels, 1);
        }
    }
}

impl Progress for Recorder<'_> {
    fn event(&self, event: Event) {
        let mut state = self.metrics.0.state.borrow_mut();
        let fresh = &mut state.fresh;
        match &event {
            Event::KeyMade {
                slot,
                algorithm,
                took,
            } => {
                let key = algorithm.as_str();
                let labels = match slot {
                    Slot::Certificate(name) => Who::leaf(*name).labels_with_key(key),
                    Slot::ServiceAccount => {
                        let key = Key::of(key);
                        labels(&[
                            ("certificate_name", slot.as_str()),
                            ("component", "kube-apiserver"),
                            ("algorithm", key.algorithm),
                            ("key_size", key.size),
                            ("curve", key.curve),
                        ])
                    }
                };
                fresh.observe(&GENERATION_DURATION, labels, *took);
            }
            Event::Asked {
                signer,
                operation,
                took,
                result,
            } => {
                let labels = labels(&[("signer", signer), ("operation", operation.as_str())]);
                fresh.observe(&SIGNER_DURATION, labels, *took);
                if let Err(class) = result {
                    fresh.count(&SIGNER_ERRORS, failed(signer, *class), 1);
                }
            }
            Event::Installed { name, .. } => self.generated(fresh, *name, "success"),
            Event::Refused { name, .. } | Event::Failed { name, .. } => {
                self.generated(fresh, *name, "failure");
            }
            Event::Restarted { component } => {
                let labels = labels(&[("component", component), ("result", "success")]);
                fresh.count(&RESTARTS, labels, 1);
            }
            Event::RolledBack { component, .. } => {
                let labels = labels(&[("component", component), ("result", "failure")]);
                fresh.count(&RESTARTS, labels, 1);
            }
            Event::Started { .. }
            | Event::Submitted(_)
            | Event::Waiting(..)
            | Event::Signed(_)
            | Event::Pending { .. }
            | Event::Expiring { .. }
            | Event::ClockBehind(_) => {}
        }
        drop(state);
        self.next.event(event);
    }
}

#[cfg(test)]
mod tests;
