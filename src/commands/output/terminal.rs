//! Log events, and the progress of a run on stderr.

use std::cell::RefCell;
use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use super::progress::ProgressState;
use super::screen::{self, LogLineFormat, LogWriter, has_colour};
use super::{journal, print_message};
use crate::agent::rotation;
use crate::agent::{Event, Progress, RunReport};
use crate::daemon::WAIT_EVENTS;
use crate::process::interrupt;
use crate::table::visible_line;
use crate::text::rfc3339;

/// Interval at which the progress line is rewritten.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Whether log events have a stream or a format of their own, or were requested with `-v`.
static HAS_OWN_LOG: AtomicBool = AtomicBool::new(false);

/// Whether log events are JSON lines on stderr, where nothing else may be written.
static LOGS_JSON: AtomicBool = AtomicBool::new(false);

/// Destination and format of log events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in super::super) enum LogFormat {
    /// The journal if stderr is connected to it, text otherwise
    Auto,
    /// Text lines on stderr
    Text,
    /// JSON lines on stderr
    Json,
    /// The journal's native protocol, with fields
    Journal,
}

/// Installs the subscriber of the process. `verbose` is the number of `-v` flags.
pub(in super::super) fn subscribe(format: LogFormat, verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let under_systemd = format == LogFormat::Auto && stderr_is_journal();
    let journal = (format == LogFormat::Journal || under_systemd).then(journal::layers);
    let is_text = format == LogFormat::Text || format == LogFormat::Auto;
    let has_own_log = !is_text || matches!(journal, Some(Ok(_))) || verbose > 0;
    HAS_OWN_LOG.store(has_own_log, Ordering::Relaxed);
    LOGS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    if let Some(Ok(journal)) = journal {
        // The journal always gets the events that are needed for a later analysis; -v is for terminals.
        tracing_subscriber::registry()
            .with(level.max(LevelFilter::INFO))
            .with(journal)
            .init();
        return;
    }
    let mut filter = Targets::new().with_default(level);
    // A person sees what a daemon waits for.
    if is_text && stderr().is_terminal() {
        filter = filter.with_target(WAIT_EVENTS, level.max(LevelFilter::INFO));
    }
    let registry = tracing_subscriber::registry().with(filter);
    if format == LogFormat::Json {
        registry
            .with(
                tracing_subscriber::fmt::layer()
                    .json()
                    .log_internal_errors(false)
                    .with_writer(|| LogWriter(LogLineFormat::Json)),
            )
            .init();
    } else {
        // Internal errors are logged with eprintln!, which panics if stderr cannot be written.
        let layer = tracing_subscriber::fmt::layer()
            .log_internal_errors(false)
            .with_writer(|| LogWriter(LogLineFormat::Text))
            .with_ansi(has_colour(&stderr()))
            .with_target(false)
            .without_time();
        registry.with(layer).init();
    }
}

pub(super) fn logs_json() -> bool {
    LOGS_JSON.load(Ordering::Relaxed)
}

fn has_own_log() -> bool {
    HAS_OWN_LOG.load(Ordering::Relaxed)
}

/// Logs the rows of a report, unless a person reads them in the table next to it.
pub(in super::super) fn log_rows(report: &RunReport) {
    if has_own_log() {
        rotation::log(report);
    }
}

/// Returns whether stderr is the stream that systemd connected to the journal: `JOURNAL_STREAM` contains its device and
/// inode (systemd.exec(5)). They differ if stderr was redirected.
fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(found) = nix::sys::stat::fstat(stderr()) else {
        return false;
    };
    stream == format!("{}:{}", found.st_dev, found.st_ino)
}

/// Logs the events of a run, and shows its progress.
pub(in super::super) struct Terminal {
    display: ProgressDisplay,
    began: Instant,
    state: RefCell<ProgressState>,
    /// The present line on the terminal.
    shown: RefCell<String>,
}

/// Where progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgressDisplay {
    /// One line on the terminal that is rewritten.
    Line,
    /// Messages on stderr.
    Messages,
    /// Log events only.
    Log,
}

impl Terminal {
    /// Shows the progress on stderr: a line that is rewritten on a terminal, messages elsewhere, and nothing if events are
    /// logged there.
    pub(in super::super) fn new(verbose: u8) -> Self {
        let display = match (has_own_log(), stderr().is_terminal()) {
            (true, _) => ProgressDisplay::Log,
            (false, true) if verbose == 0 => ProgressDisplay::Line,
            (false, true) => ProgressDisplay::Log,
            (false, false) => ProgressDisplay::Messages,
        };
        if display == ProgressDisplay::Line {
            screen::hold_log();
        }
        Self::with(display)
    }

    /// Logs events and shows no progress, for the daemon.
    pub(in super::super) fn log_only() -> Self {
        Self::with(ProgressDisplay::Log)
    }

    fn with(display: ProgressDisplay) -> Self {
        Terminal {
            display,
            began: Instant::now(),
            state: RefCell::default(),
            shown: RefCell::default(),
        }
    }

    /// Runs `run` and shows its progress every second. Once it waits, SIGINT ends it with an explanation.
    pub(in super::super) async fn during<T>(&self, run: impl Future<Output = T>) -> T {
        let mut run = std::pin::pin!(run);
        let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
        let mut interrupt: Option<Signal> = None;
        loop {
            let interrupted = async {
                match &mut interrupt {
                    Some(signal) => signal.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                result = &mut run => return result,
                Some(()) = interrupted => self.leave(),
                _ = ticks.tick() => {
                    self.tick();
                    // Not earlier: a run that waits for the lock of another one blocks this thread.
                    if interrupt.is_none() && self.shows_line() && self.state.borrow().is_waiting() {
                        interrupt = signal(SignalKind::interrupt()).ok();
                    }
                }
            }
        }
    }

    fn shows_line(&self) -> bool {
        self.display == ProgressDisplay::Line
    }

    /// Ends the process after SIGINT. For the store this is a crash: requests stay resumable.
    fn leave(&self) -> ! {
        self.clear();
        screen::release_log();
        print_message(
            "interrupted while waiting; keys and requests are kept, and the next run continues with them",
        );
        interrupt::exit_with_programs()
    }

    fn tick(&self) {
        match self.display {
            ProgressDisplay::Line => self.redraw(),
            ProgressDisplay::Messages => {
                let line = self.state.borrow_mut().due_line(self.began.elapsed());
                if let Some(line) = line {
                    print_message(&line);
                }
            }
            ProgressDisplay::Log => {}
        }
    }

    fn redraw(&self) {
        let width = screen::width(&stderr()).unwrap_or(80).saturating_sub(1);
        let line = self.state.borrow().line(self.began.elapsed(), width);
        let line: String = visible_line(&line).chars().take(width).collect();
        if *self.shown.borrow() != line {
            // A closed terminal does not stop the run.
            let _ = write!(stderr(), "\r\x1b[K{line}");
            self.shown.replace(line);
        }
    }

    fn clear(&self) {
        if self.shows_line() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }

    fn show(&self, event: &Event) {
        let is_changed = self.state.borrow_mut().count(event);
        if is_changed && self.shows_line() {
            self.redraw();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress for Terminal {
    fn event(&self, event: Event) {
        match &event {
            Event::Started { keys, certificates } => tracing::info!(
                keys,
                certificates,
                "{certificates} certificates to request, {keys} keys to generate"
            ),
            Event::KeyMade { slot, .. } => {
                tracing::debug!(certificate = slot.as_str(), "key generated");
            }
            Event::Asked {
                signer,
                operation,
                took,
                result,
            } => tracing::debug!(
                signer,
                operation = operation.as_str(),
                "answered in {took:.3?}: {result:?}"
            ),
            Event::Submitted(name) => {
                tracing::info!(certificate = name.as_str(), "{name}: request submitted");
            }
            Event::Waiting { name, signer, note } => {
                tracing::info!(
                    certificate = name.as_str(),
                    signer,
                    note,
                    "{name}: waiting for {signer}: {note}"
                )
            }
            Event::Retrying { signer, why } => {
                tracing::info!(signer, "{why}; trying again");
            }
            Event::Signed(name) => {
                tracing::info!(certificate = name.as_str(), "{name}: signed and verified")
            }
            Event::Installed {
                name,
                signer,
                serial,
                not_after,
                renewed,
            } => {
                let (certificate, authority) = (name.as_str(), name.authority().as_str());
                let not_after = rfc3339(*not_after);
                // tracing requires that the name of an event is a constant.
                match renewed {
                    true => {
                        tracing::info!(name: journal::RENEWED, certificate, authority, signer, serial, not_after, "{name}: renewed by {signer}, serial {serial}, valid until {not_after}")
                    }
                    false => {
                        tracing::info!(name: journal::ISSUED, certificate, authority, signer, serial, not_after, "{name}: issued by {signer}, serial {serial}, valid until {not_after}")
                    }
                }
            }
            Event::Pending {
                name,
                signer,
                why,
                code,
            } => {
                tracing::info!(name: journal::PENDING, certificate = name.as_str(), authority = name.authority().as_str(), signer, why, code, "{name}: pending at {signer}: {why}")
            }
            Event::Refused {
                name,
                signer,
                why,
                code,
            } => {
                tracing::info!(name: journal::REFUSED, certificate = name.as_str(), authority = name.authority().as_str(), signer, why, code, "{name}: refused by {signer}: {why}")
            }
            Event::Failed {
                name,
                signer,
                why,
                code,
            } => {
                tracing::info!(name: journal::FAILED, certificate = name.as_str(), authority = name.authority().as_str(), signer, why, code, "{name}: failed at {signer}: {why}")
            }
            Event::Expiring { name, not_after } => {
                let not_after = rfc3339(*not_after);
                tracing::info!(name: journal::EXPIRING, certificate = name.as_str(), authority = name.authority().as_str(), not_after, "{name}: due for renewal and not replaced, valid until {not_after}")
            }
            Event::Awaiting { what, until, .. } => {
                tracing::debug!("waiting for {what} until {until}")
            }
            Event::Restarted { component } => {
                tracing::info!(name: journal::RESTARTED, component, "{component}: restarted")
            }
            Event::RolledBack { component, why } => {
                tracing::warn!(name: journal::ROLLED_BACK, component, why, "{component}: rolled back: {why}")
            }
            Event::ClockBehind(why) => {
                tracing::warn!(name: journal::CLOCK_DOUBTED, "{why}; waiting for time synchronization")
            }
        }
        self.show(&event);
    }
}
