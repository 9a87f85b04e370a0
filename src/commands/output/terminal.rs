//! Log events, and the progress line on a terminal.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stderr};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::prelude::*;

use super::journal;
use super::screen::{LogLineFormat, LogWriter, has_colour, visible_line};
use crate::agent::{Event, Progress};
use crate::kube::names::CertName;
use crate::x509::rfc3339;

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
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let under_systemd = format == LogFormat::Auto && stderr_is_journal();
    let journal = (format == LogFormat::Journal || under_systemd).then(journal::layers);
    if let Some(Ok(journal)) = journal {
        // The journal always gets the events that are needed for a later analysis; -v is for terminals.
        let level = if verbose == 0 { "info" } else { level };
        tracing_subscriber::registry()
            .with(EnvFilter::new(level))
            .with(journal)
            .init();
        return;
    }
    let registry = tracing_subscriber::registry().with(EnvFilter::new(level));
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

/// Logs the events of a run, and shows a progress line on a terminal.
#[derive(Default)]
pub(in super::super) struct Terminal {
    line: Option<RefCell<ProgressLine>>,
}

#[derive(Default)]
struct ProgressLine {
    keys: usize,
    keys_made: usize,
    certificates: usize,
    signed: usize,
    /// The reason for the wait, by certificate.
    waiting: BTreeMap<CertName, String>,
}

impl Terminal {
    /// Shows a progress line if stderr is a terminal and no events are logged there.
    pub(in super::super) fn new(verbose: u8) -> Self {
        Terminal {
            line: (stderr().is_terminal() && verbose == 0).then(RefCell::default),
        }
    }

    fn redraw(&self) {
        let Some(line) = &self.line else { return };
        let line = line.borrow();
        let mut text = format!(
            "keys {}/{}  signed {}/{}",
            line.keys_made, line.keys, line.signed, line.certificates
        );
        if let Some((name, note)) = line.waiting.first_key_value() {
            text.push_str(&format!(
                "  waiting for {}: {name}: {note}",
                line.waiting.len()
            ));
        }
        let text: String = visible_line(&text).chars().take(100).collect();
        // A closed terminal does not stop the run.
        let _ = write!(stderr(), "\r\x1b[K{text}");
    }

    /// Counts an event in the progress line.
    fn show(&self, event: Event) {
        let Some(line) = &self.line else { return };
        let mut line = line.borrow_mut();
        match event {
            Event::Started { keys, certificates } => {
                line.keys = keys;
                line.certificates = certificates;
            }
            Event::KeyMade { .. } => line.keys_made += 1,
            Event::Waiting(name, note) => {
                line.waiting.insert(name, note);
            }
            Event::Signed(name) => {
                line.waiting.remove(&name);
                line.signed += 1;
            }
            _ => return,
        }
        drop(line);
        self.redraw();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.line.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
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
            Event::Waiting(name, note) => {
                tracing::info!(
                    certificate = name.as_str(),
                    note,
                    "{name}: waiting for the signer: {note}"
                )
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
            Event::Pending { name, signer, why } => {
                tracing::info!(name: journal::PENDING, certificate = name.as_str(), authority = name.authority().as_str(), signer, why, "{name}: pending at {signer}: {why}")
            }
            Event::Refused { name, signer, why } => {
                tracing::info!(name: journal::REFUSED, certificate = name.as_str(), authority = name.authority().as_str(), signer, why, "{name}: refused by {signer}: {why}")
            }
            Event::Failed { name, signer, why } => {
                tracing::info!(name: journal::FAILED, certificate = name.as_str(), authority = name.authority().as_str(), signer, why, "{name}: failed at {signer}: {why}")
            }
            Event::Expiring { name, not_after } => {
                let not_after = rfc3339(*not_after);
                tracing::info!(name: journal::EXPIRING, certificate = name.as_str(), authority = name.authority().as_str(), not_after, "{name}: due for renewal and not replaced, valid until {not_after}")
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
        self.show(event);
    }
}
