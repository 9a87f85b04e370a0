//! The progress of a run that waits for signers: one line on a terminal that is rewritten, single lines elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::agent::Event;
use crate::config::COMMAND_LINE_SIGNER;
use crate::kube::names::CertName;

/// Times after which a line is written if stderr is not a terminal; then every [`LINE_INTERVAL`].
const FIRST_LINES: [Duration; 3] = [
    Duration::from_secs(10),
    Duration::from_secs(30),
    LAST_FIRST_LINE,
];
const LAST_FIRST_LINE: Duration = Duration::from_secs(60);
const LINE_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// How to leave, and what follows.
const WAY_OUT: &str = "(Ctrl-C is safe, the next run continues)";

/// The events of a run, as far as they concern its progress.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgressState {
    keys: usize,
    keys_made: usize,
    certificates: usize,
    signed: usize,
    /// Signer and reason for the wait, by certificate.
    waiting: BTreeMap<CertName, (String, String)>,
    /// The signer that has just failed, and its error.
    failing: Option<(String, String)>,
    /// Why the clock is not trusted yet.
    clock: Option<String>,
    /// The component for which the run waits after the installation, and until when.
    component: Option<(String, String)>,
    /// Lines that were written on a stream that is not a terminal.
    lines: u32,
}

impl ProgressState {
    /// Takes an event into account. Returns whether the line has changed.
    pub(super) fn count(&mut self, event: &Event) -> bool {
        match event {
            Event::Started { keys, certificates } => {
                self.keys = *keys;
                self.certificates = *certificates;
                self.clock = None;
            }
            Event::KeyMade { .. } => self.keys_made += 1,
            Event::Waiting { name, signer, note } => {
                let wait = (signer.clone(), note.clone());
                self.waiting.insert(*name, wait);
                self.failing = None;
            }
            Event::Retrying { signer, why } => {
                self.failing = Some((signer.clone(), why.clone()));
            }
            Event::Asked {
                signer,
                result: Ok(()),
                ..
            } => match &self.failing {
                Some((failing, _)) if failing == signer => self.failing = None,
                _ => return false,
            },
            Event::Signed(name) => {
                self.waiting.remove(name);
                self.signed += 1;
                self.clock = None;
            }
            Event::ClockBehind(why) => self.clock = Some(why.clone()),
            Event::Awaiting { what, until, limit } => {
                let until = format!("until {until}, at most {}", short(*limit));
                self.component = Some((what.clone(), until));
            }
            Event::Restarted { .. } | Event::RolledBack { .. } => self.component = None,
            _ => return false,
        }
        true
    }

    /// Returns whether the run waits for something outside this process.
    pub(super) fn is_waiting(&self) -> bool {
        self.subject().is_some()
    }

    /// Returns the line on a terminal with this width. Its end, the reason for the wait, is cut.
    pub(super) fn line(&self, elapsed: Duration, width: usize) -> String {
        let elapsed = short(elapsed);
        let line = match self.subject() {
            Some(wait) => {
                let fits = |line: &String| line.chars().count() <= width;
                let start = |what: &str| format!("{elapsed} {what} {WAY_OUT}");
                let start = Some(start(&wait.what)).filter(fits);
                let start = start.unwrap_or_else(|| format!("{elapsed} {} {WAY_OUT}", wait.brief));
                format!("{start}: {}", wait.why)
            }
            None => format!(
                "{elapsed} {} of {} keys generated, {} of {} certificates signed",
                self.keys_made, self.keys, self.signed, self.certificates
            ),
        };
        line.chars().take(width).collect()
    }

    /// Returns the line for a stream that is not a terminal, if it is time for one.
    pub(super) fn due_line(&mut self, elapsed: Duration) -> Option<String> {
        let place = usize::try_from(self.lines).unwrap_or(usize::MAX);
        let due = FIRST_LINES.get(place).copied().unwrap_or_else(|| {
            let more = self.lines.saturating_sub(FIRST_LINES.len() as u32);
            LAST_FIRST_LINE + LINE_INTERVAL * (more + 1)
        });
        if elapsed < due {
            return None;
        }
        self.lines += 1;
        let Wait { what, why, .. } = self.subject()?;
        Some(format!(
            "{what} since {}: {why} (a run that is stopped keeps keys and requests, and the next one continues)",
            short(elapsed)
        ))
    }

    fn subject(&self) -> Option<Wait> {
        if let Some(why) = &self.clock {
            return Some(Wait {
                what: "waiting for time synchronization".to_owned(),
                brief: "waiting for the time".to_owned(),
                why: why.clone(),
            });
        }
        let shown = |signer: &str| match signer {
            COMMAND_LINE_SIGNER => "signer".to_owned(),
            name => name.to_owned(),
        };
        if let Some((signer, why)) = &self.failing {
            let signer = shown(signer);
            return Some(Wait {
                what: format!("{signer}: no answer, trying again"),
                brief: format!("{signer}: no answer"),
                why: why.clone(),
            });
        }
        if let Some((what, until)) = &self.component {
            let what = format!("waiting for {what}");
            return Some(Wait {
                brief: what.clone(),
                what,
                why: until.clone(),
            });
        }
        let (name, (signer, why)) = self.waiting.first_key_value()?;
        let signer = shown(signer);
        let others = match self.waiting.len() - 1 {
            0 => String::new(),
            others => format!(" +{others}"),
        };
        Some(Wait {
            what: format!("{signer}: waiting for {name}{others}"),
            brief: format!("{signer}: {} certificates", self.waiting.len()),
            why: why.clone(),
        })
    }
}

/// What the run waits for.
struct Wait {
    /// Signer and certificates.
    what: String,
    /// The same in fewer words, for a narrow terminal.
    brief: String,
    why: String,
}

/// Returns a duration as `1m20s`.
fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(name: CertName) -> Event {
        Event::Waiting {
            name,
            signer: "corp".to_owned(),
            note: "in the queue".to_owned(),
        }
    }

    #[test]
    fn names_signer_certificate_time_and_way_out() {
        let mut state = ProgressState::default();
        state.count(&Event::Started {
            keys: 2,
            certificates: 2,
        });
        assert!(!state.is_waiting());
        let line = state.line(Duration::from_secs(3), 80);
        assert_eq!(line, "3s 0 of 2 keys generated, 0 of 2 certificates signed");
        state.count(&waiting(CertName::Apiserver));
        state.count(&waiting(CertName::EtcdPeer));
        let line = state.line(Duration::from_secs(80), 200);
        let start = "1m20s corp: waiting for apiserver +1 (Ctrl-C is safe, the next run continues)";
        assert_eq!(line, format!("{start}: in the queue"));
        assert!(start.len() < 80);
        // The way out is never cut off.
        let line = state.line(Duration::from_secs(80), 70);
        assert!(
            line.starts_with("1m20s corp: 2 certificates (Ctrl-C is safe"),
            "{line}"
        );
        assert!(line.contains("next run continues)"), "{line}");
        state.count(&Event::Retrying {
            signer: "corp".to_owned(),
            why: "no route".to_owned(),
        });
        let line = state.line(Duration::from_secs(3700), 200);
        assert!(
            line.starts_with("1h01m corp: no answer, trying again ("),
            "{line}"
        );
        assert!(line.ends_with(": no route"), "{line}");
    }

    #[test]
    fn names_component_until_it_was_restarted() {
        let mut state = ProgressState::default();
        state.count(&Event::Awaiting {
            what: "kube-apiserver".to_owned(),
            until: "it serves the certificate on disk",
            limit: Duration::from_secs(300),
        });
        let start = "waiting for kube-apiserver";
        let end = "until it serves the certificate on disk, at most 5m00s";
        let line = state.line(Duration::from_secs(3), 200);
        assert_eq!(line, format!("3s {start} {WAY_OUT}: {end}"));
        let line = state.due_line(Duration::from_secs(10)).unwrap();
        assert!(
            line.starts_with(&format!("{start} since 10s: {end}")),
            "{line}"
        );
        state.count(&Event::Restarted {
            component: "kube-apiserver",
        });
        assert!(!state.is_waiting());
    }

    #[test]
    fn writes_lines_at_growing_intervals() {
        let mut state = ProgressState::default();
        state.count(&waiting(CertName::Apiserver));
        let seconds: Vec<u64> = (0..1000)
            .filter(|second| state.due_line(Duration::from_secs(*second)).is_some())
            .collect();
        assert_eq!(seconds, [10, 30, 60, 360, 660, 960]);
    }

    #[test]
    fn forgets_failure_once_signer_answers() {
        let mut state = ProgressState::default();
        state.count(&Event::Retrying {
            signer: "corp".to_owned(),
            why: "no route".to_owned(),
        });
        assert!(state.is_waiting());
        let answered = |signer: &str| Event::Asked {
            signer: signer.to_owned(),
            operation: crate::agent::SignerOperation::Probe,
            took: Duration::ZERO,
            result: Ok(()),
        };
        assert!(!state.count(&answered("other")));
        assert!(state.is_waiting());
        assert!(state.count(&answered("corp")));
        assert!(!state.is_waiting());
    }
}
