//! The one step of rotation: what is due is renewed, and what has to be restarted for it is.
//!
//! `renew` takes it once, the daemon for ever. Nothing is decided here: `agent::renew` knows what is due.

use time::OffsetDateTime;

use crate::agent::{self, Clock, Failure, Progress, Report, Scope};
use crate::load::Loaded;
use crate::store::Root;

/// What a step did.
#[derive(Debug)]
pub struct Step {
    /// One row a certificate.
    pub report: Report,
    /// When something will be due, or may be tried again; `None` when nothing ever will.
    pub next: Option<OffsetDateTime>,
}

/// Renews what `scope` says.
///
/// # Errors
/// When nothing could be done at all. What became of single certificates is in the [`Step`].
pub async fn step(
    root: &Root,
    loaded: &Loaded,
    scope: &Scope,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Step, Failure> {
    let renewed = agent::renew(root, &loaded.setup, scope, clock, progress).await?;
    Ok(Step {
        report: renewed.report,
        next: renewed.next,
    })
}

/// What became of everything, for the journal.
pub fn log(report: &Report) {
    for row in &report.rows {
        let reasons = row.reasons.join("; ");
        match row.code {
            None if row.is_overdue() => {
                tracing::warn!(certificate = row.name, action = row.action, "{reasons}");
            }
            None => tracing::info!(certificate = row.name, action = row.action, "{reasons}"),
            Some(code) => {
                tracing::warn!(
                    certificate = row.name,
                    action = row.action,
                    exit = code as u8,
                    "{reasons}"
                );
            }
        }
    }
}
