//! One loop around [`rotation::step`]: it sleeps until something is due, or happens.
//!
//! `wake` decides what is next and when, and is pure. The loop here does it. What happens around it (signals, files that
//! others change, a clock that is set, a service manager that listens) is behind `Surroundings`, so that the tests have
//! weeks pass in no time. Nothing is polled: while nothing is due the process is not woken, but for the watchdog's sake.
//!
//! A step may be dropped at any await: what must survive is on disk before it is acted on, so the next start goes on with
//! the same keys and the same tickets.

mod alarm;
pub mod metrics;
mod notify;
mod system;
pub mod wake;
mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;

use crate::agent::load::{self, Inputs, Loaded};
use crate::agent::rotation;
use crate::agent::{self, Clock, ExitCode, Failure, Progress, Scope};
use crate::config::{Argument, FRAGMENT_DIRECTORIES, MAIN_FILE};
use crate::process::confine::Reach;
use crate::signer::Carry;
use crate::spec::Output;
use crate::store::{self, Root};

use metrics::Metrics;
use system::System;
use wake::{Agenda, Ended, Next};
use watch::{Matter, Watched};

/// Longest wait for a signer in one step, during which the step holds the lock: the next step asks again, and another run
/// has its chance between the two.
const MAX_SIGNER_WAIT: Duration = Duration::from_secs(10);

/// What ends a sleep.
#[derive(Debug)]
enum Wake {
    /// Its time has come, or the clock was set.
    Time,
    /// The configuration is to be read again.
    Reload,
    /// Somebody changed files.
    Files(Matter),
    /// The daemon is to end.
    Stop,
}

/// What the service manager is told.
enum Tell<'a> {
    Ready,
    Status(&'a str),
    Reloading,
    Stopping,
    Alive,
}

/// What is around the loop.
trait Surroundings {
    /// Takes these files as they are now; from here on changes count.
    fn watch(&mut self, watched: Watched);

    /// These changes were our own.
    fn own(&mut self, root: &Root, written: &[PathBuf]);

    /// Until that moment, or until something happens.
    async fn sleep(&mut self, until: Option<OffsetDateTime>) -> Wake;

    /// Resolves when the daemon is to end; everything else that happens is kept for the next sleep.
    async fn stopped(&mut self);

    /// How long the machine has run, asleep or not.
    fn ran(&self) -> Duration;

    fn tell(&self, what: Tell<'_>);

    /// Takes everything else from this process, for good.
    fn confine(&self, reach: &Reach);
}

/// Rotates until it is told to stop.
///
/// # Errors
/// A configuration that cannot be used at the start; later ones are only reported.
pub async fn run(
    root: &Root,
    inputs: &Inputs,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let system = System::new().map_err(|error| {
        Failure::new(
            ExitCode::Pending,
            format!("signals and timers of this machine cannot be listened to: {error}; run again"),
        )
    })?;
    let read = async || load::load_running(root, inputs, clock).await;
    let daemon = Daemon {
        root,
        config: inputs.config.as_ref(),
        clock,
        progress,
        surroundings: system,
    };
    daemon.run(read).await
}

struct Daemon<'a, S> {
    root: &'a Root,
    /// The one file that is the configuration, if a person named one.
    config: Option<&'a Argument>,
    clock: Clock,
    progress: &'a dyn Progress,
    surroundings: S,
}

impl<S: Surroundings> Daemon<'_, S> {
    async fn run(mut self, read: impl AsyncFn() -> Result<Loaded, Failure>) -> Result<(), Failure> {
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
        tokio::select! {
            ended = self.rotate(loaded, &reach, read, &metrics) => ended,
            never = serve => match never {},
        }
    }

    async fn rotate(
        &mut self,
        mut loaded: Loaded,
        reach: &Reach,
        read: impl AsyncFn() -> Result<Loaded, Failure>,
        metrics: &Metrics,
    ) -> Result<(), Failure> {
        let watched = self.watched(&loaded)?;
        self.stand_by(&mut loaded, watched);
        let mut agenda = Agenda::new(
            &loaded.setup.identity.node,
            publishes_lists(&loaded),
            self.now(),
            self.surroundings.ran(),
        );
        self.surroundings.tell(Tell::Ready);
        let mut lock_is_held = false;
        loop {
            let next = agenda.next(self.now(), self.surroundings.ran());
            match next {
                Next::Step(why) => {
                    if let Some(holder) = self.other_run() {
                        agenda.stepped(Ended::busy(holder), self.now());
                        continue;
                    }
                    if std::mem::take(&mut lock_is_held) {
                        tracing::info!("the lock is free again");
                    }
                    let why = why.as_str();
                    tracing::info!(why, "rotation step: {why}");
                    let Some(ended) = self.step(&loaded, metrics).await else {
                        break;
                    };
                    agenda.stepped(ended, self.now());
                }
                Next::Lists => {
                    let Some((again, new)) = self.lists(&loaded).await else {
                        break;
                    };
                    agenda.listed(again, new, self.now());
                }
                Next::Sleep(until) => {
                    let status = agenda.status();
                    // The lock is tried every few seconds, and reported once.
                    let is_reported = lock_is_held && agenda.waits_for_lock();
                    lock_is_held |= agenda.waits_for_lock();
                    match agenda.is_held() {
                        true => tracing::warn!("{status}"),
                        false if is_reported => tracing::debug!("{status}"),
                        false => tracing::info!("{status}"),
                    }
                    self.surroundings.tell(Tell::Status(status));
                    match self.surroundings.sleep(until).await {
                        Wake::Time => {}
                        Wake::Stop => break,
                        Wake::Files(Matter::Pki) => {
                            agenda.files_changed(self.now(), self.surroundings.ran());
                        }
                        Wake::Files(Matter::Configuration) | Wake::Reload => {
                            let goes_on = self.reload(&mut loaded, reach, &mut agenda, &read).await;
                            if goes_on.is_none() {
                                break;
                            }
                        }
                    }
                }
            }
        }
        self.surroundings.tell(Tell::Stopping);
        tracing::info!("stopping; what waits for a signer is kept");
        Ok(())
    }

    fn now(&self) -> OffsetDateTime {
        (self.clock)()
    }

    /// The process that holds the lock, if another one does.
    fn other_run(&self) -> Option<String> {
        match self.root.lock(Duration::ZERO, "nodepki daemon") {
            Err(store::Error::Busy { holder, .. }) => Some(holder),
            _ => None,
        }
    }

    /// `None` when the daemon is to end.
    async fn step(&mut self, loaded: &Loaded, metrics: &Metrics) -> Option<Ended> {
        let recorder = metrics.recorder(&loaded.setup, self.progress, self.now());
        let step = rotation::step(self.root, loaded, &Scope::Due, self.clock, &recorder);
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
        Some(match step {
            Ok(step) => {
                self.surroundings.own(self.root, &step.report.written);
                rotation::log(&step.report);
                Ended::of(&step.report, step.next)
            }
            Err(failure) => {
                for message in &failure.messages {
                    tracing::warn!(exit = failure.code as u8, "{message}");
                }
                Ended::failed(&failure)
            }
        })
    }

    /// Whether there are lists to look at again, and whether one is new; `None` when the daemon is to end.
    async fn lists(&mut self, loaded: &Loaded) -> Option<(bool, bool)> {
        let update = agent::update_revocations(self.root, &loaded.setup, self.clock, self.progress);
        let report = tokio::select! {
            biased;
            () = self.surroundings.stopped() => return None,
            report = update => report,
        };
        Some(match report {
            Ok(report) => {
                self.surroundings.own(self.root, &report.written);
                for row in report.rows.iter().filter(|row| row.code.is_some()) {
                    tracing::warn!(list = row.name, "{}: {}", row.name, row.reasons.join("; "));
                }
                (!report.rows.is_empty(), !report.written.is_empty())
            }
            Err(failure) => {
                tracing::warn!(exit = failure.code as u8, "{failure}");
                (true, false)
            }
        })
    }

    /// Puts a configuration that is sound in force, and keeps the one before otherwise. `None` when the daemon is to end.
    async fn reload(
        &mut self,
        loaded: &mut Loaded,
        reach: &Reach,
        agenda: &mut Agenda,
        read: &impl AsyncFn() -> Result<Loaded, Failure>,
    ) -> Option<()> {
        self.surroundings.tell(Tell::Reloading);
        let fresh = tokio::select! {
            biased;
            () = self.surroundings.stopped() => return None,
            fresh = read() => fresh,
        };
        let fresh = fresh.and_then(|fresh| {
            if let Some(what) = reach.lacks(&fresh.reach(self.root)?) {
                return Err(Failure::new(
                    ExitCode::Configuration,
                    format!(
                        "the new configuration needs to {what}, which this process has given up the right to: systemctl restart nodepki puts it in force"
                    ),
                ));
            }
            Ok((self.watched(&fresh)?, fresh))
        });
        match fresh {
            Ok((watched, fresh)) => {
                if fresh.settings.metrics != loaded.settings.metrics {
                    tracing::warn!(
                        "metrics is as it was at the start: systemctl restart nodepki puts the new block in force"
                    );
                }
                *loaded = fresh;
                self.stand_by(loaded, watched);
                let (now, ran) = (self.now(), self.surroundings.ran());
                let node = &loaded.setup.identity.node;
                agenda.reloaded(node, publishes_lists(loaded), now, ran);
                tracing::info!("the configuration was read again");
            }
            Err(failure) => {
                for message in &failure.messages {
                    tracing::error!(exit = failure.code as u8, "{message}");
                }
                agenda.kept_configuration(&failure.messages.join("; "));
            }
        }
        self.surroundings.tell(Tell::Ready);
        Some(())
    }

    /// A step is one attempt among many: it waits neither for another run nor for the clock, which both wake the loop, and
    /// only briefly for a signer.
    fn stand_by(&mut self, loaded: &mut Loaded, watched: Watched) {
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        loaded.setup.lock_wait = Duration::ZERO;
        loaded.setup.wait = loaded.setup.wait.min(MAX_SIGNER_WAIT);
        loaded.setup.clock.max_wait = Duration::ZERO;
        self.surroundings.watch(watched);
    }

    /// The files that the configuration consists of, and those that it makes.
    fn watched(&self, loaded: &Loaded) -> Result<Watched, Failure> {
        let mut watched = Watched::default();
        match self.config {
            Some(file) => self.argument(&mut watched, file)?,
            None => {
                watched.file(Matter::Configuration, self.root, MAIN_FILE.as_ref());
                for directory in FRAGMENT_DIRECTORIES {
                    watched.directory(Matter::Configuration, self.root, directory.as_ref());
                }
            }
        }
        let kubeadm = &loaded.settings.kubeadm;
        for file in &kubeadm.arguments {
            self.argument(&mut watched, file)?;
        }
        for file in kubeadm.files.iter().chain(&kubeadm.cluster_configuration) {
            watched.file(Matter::Configuration, self.root, file);
        }
        let plan = &loaded.setup.plan;
        for spec in &plan.certs {
            match &spec.output {
                Output::Pair { certificate, .. } => self.pki(&mut watched, certificate),
                Output::Kubeconfig { path, .. } => watched.file(Matter::Pki, self.root, path),
            }
        }
        for bundle in &plan.bundles {
            self.pki(&mut watched, &bundle.path);
        }
        if let Some(pair) = &plan.service_account {
            self.pki(&mut watched, &pair.private);
        }
        Ok(watched)
    }

    fn argument(&self, watched: &mut Watched, file: &Argument) -> Result<(), Failure> {
        let found = load::argument(self.root, file)?;
        watched.file(Matter::Configuration, &found.root, &found.path);
        Ok(())
    }

    /// What else appears beside a certificate matters too: a CA key, for one.
    fn pki(&self, watched: &mut Watched, file: &Path) {
        if let Some(directory) = file.parent() {
            watched.directory(Matter::Pki, self.root, directory);
        }
    }
}

fn publishes_lists(loaded: &Loaded) -> bool {
    let mut signers = loaded.setup.signers.values();
    signers.any(|(_, signer)| signer.caps().crl != Carry::No)
}

#[cfg(test)]
mod tests;
