//! The rotation daemon: a loop around [`rotation::step`] that sleeps until a step is due or an event occurs.
//!
//! `wake` decides what to do next and when, and is pure; the loop here does it. Events (signals, files changed by other
//! processes, a clock that is set) and the service manager are behind the trait `Surroundings`, so tests can
//! simulate weeks in virtual time. Nothing is polled where inotify(7) works: while nothing is due, only the watchdog wakes
//! the process.
//!
//! A step may be dropped at any await point: everything that must survive is on disk before it is acted on, so the
//! next start continues with the same keys and the same tickets.

mod alarm;
mod authority_rotation;
mod cluster_policy;
mod kubelets;
pub mod metrics;
mod node_events;
mod node_report;
mod notify;
mod part;
mod system;
pub mod wake;
mod watch;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;

use crate::agent::authority::rotate::{self, Follower};
use crate::agent::load::{self, LoadInputs, Loaded};
use crate::agent::node_report::NodeReport;
use crate::agent::rotation;
use crate::agent::{self, Clock, ExitCode, Failure, Progress, Scope};
use crate::config::{Argument, FRAGMENT_DIRECTORIES, MAIN_FILE};
use crate::process::confine::Rights;
use crate::signer::Carry;
use crate::spec::assess::joined;
use crate::spec::{CertFiles, KubeconfigCredentials, credentials};
use crate::store::{self, CLUSTER_POLICY, NodeRoot};

use authority_rotation::RotationService;
use cluster_policy::PolicyService;
use kubelets::KubeletService;
use metrics::Metrics;
use node_events::NodeEvents;
use node_report::ReportService;
use system::System;
use wake::{Agenda, ListRefresh, NextAction, StepResult};

pub use watch::{FileRole, WatchedFiles};

/// Target of the log events that say what the daemon waits for.
pub const WAIT_EVENTS: &str = "nodepki::daemon::wait";
/// Maximum time that one step waits for a signer. The step holds the lock for that time; the next step polls again, and
/// another run can take the lock between the two.
const MAX_SIGNER_WAIT: Duration = Duration::from_secs(10);

/// The event that ends a sleep.
#[derive(Debug)]
pub enum Wake {
    /// The requested time was reached, or the clock was set.
    Time,
    /// The configuration must be read again (SIGHUP).
    Reload,
    /// Another process changed files.
    Files(FileRole),
    /// The cluster demands another phase of a CA change.
    Rotation,
    /// The daemon must stop (SIGTERM, SIGINT).
    Stop,
}

/// A notification to the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification<'a> {
    /// The daemon has started, or has read its configuration again.
    Ready,
    /// The state of the daemon, as a sentence.
    Status(&'a str),
    /// The configuration is being read again.
    Reloading,
    /// The daemon is about to end.
    Stopping,
    /// The daemon is alive.
    Watchdog,
}

/// The events around the loop. Tests replace them, so the loop runs in virtual time.
#[allow(
    async_fn_in_trait,
    reason = "the loop runs on one thread, so that no future has to be Send"
)]
pub trait Surroundings {
    /// Replaces the set of watched files. Changes from now on wake the loop, and those of files that were watched before,
    /// from their last accepted contents on.
    fn watch(&mut self, watched: WatchedFiles);

    /// Accepts the current contents of the watched files, which are read next.
    fn accept_contents(&mut self);

    /// Accepts the current contents of files that this process has written, so they do not wake the loop.
    fn accept_own_writes(&mut self, root: &NodeRoot, written: &[PathBuf]);

    /// Sleeps until that time, or until an event occurs.
    async fn sleep(&mut self, until: Option<OffsetDateTime>) -> Wake;

    /// Resolves when the daemon must stop. Other events are kept for the next sleep.
    async fn stopped(&mut self);

    /// Returns the time since boot, including suspend.
    fn uptime(&self) -> Duration;

    /// Notifies the service manager.
    fn notify(&self, what: Notification<'_>);

    /// Permanently restricts this process to `reach`.
    fn confine(&self, reach: &Rights);
}

/// Rotates until the process receives a signal to stop.
///
/// # Errors
/// A configuration that cannot be used at the start. A later faulty configuration is only reported.
pub async fn run(
    root: &NodeRoot,
    inputs: &LoadInputs,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    agent::require_self_test()?;
    let system = System::new().map_err(|error| {
        Failure::pending("cannot listen for signals and timers")
            .caused_by(error)
            .advise("run again")
    })?;
    let read = async || load::load_running(root, inputs, clock).await;
    run_in(system, root, inputs.config.as_ref(), clock, progress, read).await
}

/// As [`run`], in these surroundings, with the configuration that `read` returns. `config` is the configuration file of the
/// command line, if there is one.
///
/// # Errors
/// As of [`run`].
pub async fn run_in(
    surroundings: impl Surroundings,
    root: &NodeRoot,
    config: Option<&Argument>,
    clock: Clock,
    progress: &dyn Progress,
    read: impl AsyncFn() -> Result<Loaded, Failure>,
) -> Result<(), Failure> {
    let daemon = Daemon {
        root,
        config,
        clock,
        progress,
        surroundings,
        follower: Follower::default(),
    };
    daemon.run(read).await
}

struct Daemon<'a, S> {
    root: &'a NodeRoot,
    /// The configuration file of the command line, if there is one.
    config: Option<&'a Argument>,
    clock: Clock,
    progress: &'a dyn Progress,
    surroundings: S,
    /// Failures in CA changes of the cluster.
    follower: Follower,
}

/// What runs beside the loop.
struct Services<'a> {
    kubelets: &'a KubeletService,
    policy: &'a PolicyService,
    rotations: &'a RotationService,
    events: &'a NodeEvents,
    report: &'a ReportService,
}

impl<S: Surroundings> Daemon<'_, S> {
    async fn run(mut self, read: impl AsyncFn() -> Result<Loaded, Failure>) -> Result<(), Failure> {
        // The read takes time if it asks the cluster. Its errors include that of a path.
        let settings = self.watched_settings().unwrap_or_default();
        self.surroundings.watch(settings);
        let loaded = read().await?;
        let settings = &loaded.settings.metrics;
        let metrics = Metrics::new(self.root, settings, &loaded.setup, "daemon");
        let listener = match loaded.metrics_address(self.root) {
            Some(address) => Some(metrics::bind(address).await?),
            None => None,
        };
        let reach = loaded.reach(self.root)?;
        self.surroundings.confine(&reach);
        let clock = self.clock;
        let serve = async {
            match listener {
                Some(listener) => metrics::serve(listener, &metrics, clock).await,
                None => std::future::pending().await,
            }
        };
        let kubelets = KubeletService::default();
        kubelets.put_in_force(self.root, &loaded, &metrics, clock)?;
        let policy = PolicyService::default();
        policy.put_in_force(self.root, &loaded.settings.cluster_policy)?;
        let rotations = RotationService::default();
        rotations.put_in_force(self.root, &loaded, clock)?;
        let events = NodeEvents::default();
        let report = ReportService::default();
        let services = Services {
            kubelets: &kubelets,
            policy: &policy,
            rotations: &rotations,
            events: &events,
            report: &report,
        };
        let ended = tokio::select! {
            ended = self.rotate(loaded, &reach, read, &metrics, services) => ended,
            never = serve => match never {},
            never = kubelets.run() => match never {},
            never = policy.run() => match never {},
            never = rotations.run() => match never {},
            never = events.run() => match never {},
            never = report.run(clock) => match never {},
        };
        kubelets.release().await;
        rotations.release().await;
        ended
    }

    async fn rotate(
        &mut self,
        mut loaded: Loaded,
        reach: &Rights,
        read: impl AsyncFn() -> Result<Loaded, Failure>,
        metrics: &Metrics,
        services: Services<'_>,
    ) -> Result<(), Failure> {
        let watched = self.watched(&loaded)?;
        self.put_in_force(&mut loaded, watched);
        let mut agenda = Agenda::new(
            &loaded.setup.identity.node,
            lists_interval(&loaded),
            self.now(),
            self.surroundings.uptime(),
        );
        // Before the first step, which may wait for a signer: the start of the unit does not.
        self.surroundings.notify(Notification::Ready);
        let mut lock_is_held = false;
        loop {
            let next = agenda.next(self.now(), self.surroundings.uptime());
            match next {
                NextAction::Step(reason) => {
                    if let Some(holder) = self.lock_holder() {
                        agenda.stepped(StepResult::busy(holder), self.now());
                        continue;
                    }
                    if std::mem::take(&mut lock_is_held) {
                        tracing::info!("the lock is free again");
                    }
                    let why = reason.as_str();
                    tracing::info!(why, "rotation step: {why}");
                    let Some(ended) = self.step(&loaded, metrics, &services).await else {
                        break;
                    };
                    agenda.stepped(ended, self.now());
                }
                NextAction::Lists => {
                    let Some(refresh) = self.refresh_lists(&loaded).await else {
                        break;
                    };
                    agenda.lists_refreshed(refresh, self.now());
                }
                NextAction::Sleep(until) => {
                    self.report_status(&agenda, lock_is_held);
                    lock_is_held |= agenda.waits_for_lock();
                    let wake = tokio::select! {
                        // A signal to stop comes before the next step.
                        biased;
                        wake = self.surroundings.sleep(until) => wake,
                        () = services.rotations.demanded() => Wake::Rotation,
                    };
                    match wake {
                        Wake::Time => {}
                        Wake::Stop => break,
                        Wake::Files(FileRole::Pki) => {
                            agenda.files_changed(self.now(), self.surroundings.uptime());
                        }
                        Wake::Rotation => agenda.rotation_changed(self.now()),
                        Wake::Files(FileRole::Configuration) | Wake::Reload => {
                            let stops = self.reload(&mut loaded, reach, &mut agenda, &read);
                            if stops.await.is_break() {
                                break;
                            }
                            services.put_in_force(self.root, &loaded, metrics, self.clock);
                        }
                    }
                }
            }
        }
        self.surroundings.notify(Notification::Stopping);
        tracing::info!("stopping; pending requests are kept");
        Ok(())
    }

    /// Logs the status and passes it to the service manager.
    ///
    /// A held lock is tried every few seconds, and logged once: `lock_is_logged` says that it was.
    fn report_status(&self, agenda: &Agenda, lock_is_logged: bool) {
        let status = agenda.status();
        match agenda.distrusts_clock() {
            true => tracing::warn!("{status}"),
            false if lock_is_logged && agenda.waits_for_lock() => tracing::debug!("{status}"),
            false => tracing::info!(target: WAIT_EVENTS, "{status}"),
        }
        self.surroundings.notify(Notification::Status(status));
    }

    fn now(&self) -> OffsetDateTime {
        (self.clock)()
    }

    /// Returns the other process that holds the lock, if there is one.
    fn lock_holder(&self) -> Option<String> {
        match self.root.lock(Duration::ZERO, "nodepki daemon") {
            Err(store::StoreError::Busy { holder, .. }) => Some(holder),
            _ => None,
        }
    }

    /// Takes a rotation step; `None` if the daemon must stop.
    async fn step(
        &mut self,
        loaded: &Loaded,
        metrics: &Metrics,
        services: &Services<'_>,
    ) -> Option<StepResult> {
        let recorder = metrics.recorder(&loaded.setup, self.progress, self.now());
        let follower = &mut self.follower;
        let step = rotation::step(
            self.root,
            loaded,
            &Scope::Due,
            follower,
            self.clock,
            &recorder,
        );
        let step = tokio::select! {
            biased;
            () = self.surroundings.stopped() => return None,
            step = step => step,
        };
        let code = ExitCode::of(step.as_ref().map(|step| &step.report));
        let next = step.as_ref().ok().and_then(|step| step.next);
        for warning in metrics.ended(&loaded.setup, code, next, self.now()) {
            tracing::warn!("{warning}");
        }
        let report = NodeReport::of(self.root, loaded, self.now());
        services.report.publish(report);
        let rotations = services.rotations;
        if rotations.is_on() {
            match rotate::proofs(self.root, &loaded.setup, &self.follower, self.now()) {
                Ok(proofs) => rotations.publish(proofs),
                Err(failure) => {
                    tracing::warn!("the state of the CAs and keys is unknown: {failure}")
                }
            }
        }
        Some(match step {
            Ok(step) => {
                // Otherwise the watch would report the files of this step as changed by another process.
                self.surroundings
                    .accept_own_writes(self.root, &step.report.written);
                rotation::log(&step.report);
                let events = services.events;
                events.report(self.root, loaded, &step.report, self.now());
                StepResult::of(&step.report, step.next)
            }
            Err(failure) => {
                for message in &failure.messages {
                    tracing::warn!(exit = failure.code as u8, "{message}");
                }
                StepResult::failed(&failure)
            }
        })
    }

    /// Fetches the revocation lists of the signers; `None` if the daemon must stop.
    async fn refresh_lists(&mut self, loaded: &Loaded) -> Option<ListRefresh> {
        let update = agent::update_revocations(self.root, &loaded.setup, self.clock, self.progress);
        let report = tokio::select! {
            biased;
            () = self.surroundings.stopped() => return None,
            report = update => report,
        };
        Some(match report {
            Ok(report) => {
                self.surroundings
                    .accept_own_writes(self.root, &report.written);
                for row in report.rows.iter().filter(|row| row.code.is_some()) {
                    tracing::warn!(list = row.name, "{}: {}", row.name, joined(&row.reasons));
                }
                ListRefresh {
                    exist: !report.rows.is_empty(),
                    changed: !report.written.is_empty(),
                }
            }
            Err(failure) => {
                tracing::warn!(exit = failure.code as u8, "{failure}");
                ListRefresh {
                    exist: true,
                    changed: false,
                }
            }
        })
    }

    /// Reads the configuration again and puts it in force; a faulty one is reported, and the one before stays in force.
    /// Breaks if the daemon must stop.
    async fn reload(
        &mut self,
        loaded: &mut Loaded,
        reach: &Rights,
        agenda: &mut Agenda,
        read: &impl AsyncFn() -> Result<Loaded, Failure>,
    ) -> ControlFlow<()> {
        self.surroundings.notify(Notification::Reloading);
        // Before the files are read, so that a change during the reading is seen as another one.
        self.surroundings.accept_contents();
        let fresh = tokio::select! {
            biased;
            () = self.surroundings.stopped() => return ControlFlow::Break(()),
            fresh = read() => fresh,
        };
        let fresh = fresh.and_then(|fresh| {
            if let Some(what) = reach.lacks(&fresh.reach(self.root)?) {
                return Err(Failure::misconfigured(format!(
                    "the new configuration needs to {what}, which this process has given up the right to: run systemctl restart nodepki to put it in force"
                )));
            }
            Ok((self.watched(&fresh)?, fresh))
        });
        match fresh {
            Ok((watched, fresh)) => {
                if fresh.settings.metrics != loaded.settings.metrics {
                    tracing::warn!(
                        "the changed settings of metrics need a restart: run systemctl restart nodepki to put them in force"
                    );
                }
                *loaded = fresh;
                // The administrator may have removed the cause of a failure.
                self.follower = Follower::default();
                self.put_in_force(loaded, watched);
                let (now, uptime) = (self.now(), self.surroundings.uptime());
                let node = &loaded.setup.identity.node;
                agenda.reloaded(node, lists_interval(loaded), now, uptime);
                tracing::info!("the configuration was read again");
            }
            Err(failure) => {
                for message in &failure.messages {
                    tracing::error!(exit = failure.code as u8, "{message}");
                }
                agenda.kept_configuration(&failure.one_line());
            }
        }
        self.surroundings.notify(Notification::Ready);
        ControlFlow::Continue(())
    }

    /// Limits the waits of a step and watches the files of the configuration.
    ///
    /// A step is one attempt of many: it waits neither for another run nor for the clock, which both wake the loop, and
    /// only briefly for a signer.
    fn put_in_force(&mut self, loaded: &mut Loaded, watched: WatchedFiles) {
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        loaded.setup.lock_wait = Duration::ZERO;
        loaded.setup.wait = loaded.setup.wait.min(MAX_SIGNER_WAIT);
        loaded.setup.clock.max_wait = Duration::ZERO;
        // Each step reads the files anew.
        loaded.state.forget();
        self.surroundings.watch(watched);
    }

    /// Returns the files of the settings.
    fn watched_settings(&self) -> Result<WatchedFiles, Failure> {
        let mut watched = WatchedFiles::default();
        match self.config {
            Some(file) => self.watch_argument(&mut watched, file)?,
            None => {
                watched.file(FileRole::Configuration, self.root, MAIN_FILE.as_ref());
                for directory in FRAGMENT_DIRECTORIES {
                    watched.directory(FileRole::Configuration, self.root, directory.as_ref());
                }
            }
        }
        Ok(watched)
    }

    /// Returns the files of the configuration and of the PKI that it describes.
    fn watched(&self, loaded: &Loaded) -> Result<WatchedFiles, Failure> {
        let mut watched = self.watched_settings()?;
        let kubeadm = &loaded.settings.kubeadm;
        for file in &kubeadm.arguments {
            self.watch_argument(&mut watched, file)?;
        }
        for file in kubeadm.files.iter().chain(&kubeadm.cluster_configuration) {
            watched.file(FileRole::Configuration, self.root, file);
        }
        if loaded.settings.cluster_policy.enabled {
            watched.file(FileRole::Configuration, self.root, CLUSTER_POLICY.as_ref());
        }
        if loaded.settings.kubeconfig_credentials == KubeconfigCredentials::File {
            // They decide which kubeconfigs name files.
            let components = credentials::BY_FILE.into_iter();
            for manifest in components.filter_map(|(_, component)| component.manifest()) {
                watched.file(FileRole::Configuration, self.root, manifest.as_ref());
            }
        }
        let plan = &loaded.setup.plan;
        for spec in &plan.certs {
            match &spec.output {
                CertFiles::Pair { certificate, .. } => self.watch_pki(&mut watched, certificate),
                CertFiles::Kubeconfig { path, .. } => {
                    watched.file(FileRole::Pki, self.root, path);
                    if let Some(pair) = spec.output.named_pair() {
                        self.watch_pki(&mut watched, &pair.certificate);
                    }
                }
            }
        }
        for bundle in &plan.bundles {
            self.watch_pki(&mut watched, &bundle.path);
            for copy in &bundle.copies {
                watched.file(FileRole::Pki, self.root, &copy.path);
            }
        }
        if let Some(pair) = &plan.service_account {
            self.watch_pki(&mut watched, &pair.private);
        }
        Ok(watched)
    }

    fn watch_argument(&self, watched: &mut WatchedFiles, file: &Argument) -> Result<(), Failure> {
        let found = load::argument(self.root, file)?;
        watched.file(FileRole::Configuration, &found.root, &found.path);
        Ok(())
    }

    /// Watches the directory of a file, since other files in it matter too, for example a CA key.
    fn watch_pki(&self, watched: &mut WatchedFiles, file: &Path) {
        if let Some(directory) = file.parent() {
            watched.directory(FileRole::Pki, self.root, directory);
        }
    }
}

impl Services<'_> {
    /// Puts a new configuration in force; a part that cannot be used is reported, and the one before stays in force.
    fn put_in_force(&self, root: &NodeRoot, loaded: &Loaded, metrics: &Metrics, clock: Clock) {
        let results = [
            self.kubelets.put_in_force(root, loaded, metrics, clock),
            self.policy
                .put_in_force(root, &loaded.settings.cluster_policy),
            self.rotations.put_in_force(root, loaded, clock),
        ];
        for failure in results.into_iter().filter_map(Result::err) {
            tracing::error!(exit = failure.code as u8, "{failure}");
        }
    }
}

/// Returns the interval between two fetches of the revocation lists; `None` if no signer publishes any.
fn lists_interval(loaded: &Loaded) -> Option<Duration> {
    let mut signers = loaded.setup.signers.values();
    let publishes = signers.any(|(_, signer)| signer.caps().crl != Carry::No);
    publishes.then_some(loaded.settings.crl_refresh_interval)
}

#[cfg(test)]
mod tests;
