//! The one step of rotation: what is due is renewed, and what has to be restarted for it is.
//!
//! `renew` takes it once, the daemon for ever. Nothing is decided here: `agent::renew` knows what is due.

use time::{Duration, OffsetDateTime};

use crate::agent::{self, Clock, Failure, Progress, Report, Row, Scope};
use crate::load::Loaded;
use crate::reload;
use crate::store::Root;

/// After what could not take effect yet.
const SETTLE_AGAIN: Duration = Duration::minutes(1);

/// What a step did.
#[derive(Debug)]
pub struct Step {
    /// One row a certificate, and one for what takes effect.
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
    let (mut report, mut next) = (renewed.report, renewed.next);
    let setup = reload::Setup::of(&loaded.setup, &loaded.settings.reload, next);
    let settled = reload::settle(root, &setup, clock, progress).await;
    let unfinished = match &settled {
        Ok(outcomes) => outcomes.iter().any(|one| one.state.is_unfinished()),
        Err(_) => true,
    };
    if unfinished {
        let again = clock() + SETTLE_AGAIN;
        next = Some(next.map_or(again, |next| next.min(again)));
    }
    match settled {
        Ok(outcomes) => report.rows.extend(outcomes.into_iter().map(Into::into)),
        // What was renewed is told all the same.
        Err(failure) => report.rows.push(Row::failed("restarts", failure)),
    }
    Ok(Step { report, next })
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
