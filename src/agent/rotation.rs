//! The one step of rotation: what is due is renewed, and what has to be restarted for it is.
//!
//! `renew` takes it once, the daemon for ever. Nothing is decided here: `agent::renew` knows what is due.

use time::{Duration, OffsetDateTime};

use crate::agent::load::Loaded;
use crate::agent::reload;
use crate::agent::{self, Clock, Failure, Progress, Report, Row, Scope};
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
    let settled = settle(root, loaded, next, clock, progress).await;
    if settled.is_unfinished {
        let again = clock() + SETTLE_AGAIN;
        next = Some(next.map_or(again, |next| next.min(again)));
    }
    report.rows.extend(settled.rows);
    Ok(Step { report, next })
}

/// What became of everything that had to take effect.
#[derive(Debug)]
pub struct Settled {
    /// One row each.
    pub rows: Vec<Row>,
    /// A later run goes on with some of it.
    pub is_unfinished: bool,
}

/// Has what was replaced take effect. A failure is a row too, so that what was done before is told all the same. `next` is
/// when something else is due, which is not kept waiting.
pub async fn settle(
    root: &Root,
    loaded: &Loaded,
    next: Option<OffsetDateTime>,
    clock: Clock,
    progress: &dyn Progress,
) -> Settled {
    let setup = reload::Setup::of(&loaded.setup, &loaded.settings.reload, next);
    match reload::settle(root, &setup, clock, progress).await {
        Ok(reloads) => Settled {
            is_unfinished: reloads.iter().any(|outcome| outcome.state.is_unfinished()),
            rows: reloads.into_iter().map(Into::into).collect(),
        },
        Err(failure) => Settled {
            is_unfinished: true,
            rows: vec![Row::failed("restarts", failure)],
        },
    }
}

/// What became of everything, for the journal.
pub fn log(report: &Report) {
    for row in &report.rows {
        let mut message = format!("{}: {}", row.name, row.action);
        if !row.reasons.is_empty() {
            message = format!("{message}: {}", row.reasons.join("; "));
        }
        let (certificate, action) = (&row.name, row.action.as_str());
        match row.code {
            None if row.is_overdue() => tracing::warn!(certificate, action, "{message}"),
            None => tracing::info!(certificate, action, "{message}"),
            Some(code) => tracing::warn!(certificate, action, exit = code as u8, "{message}"),
        }
    }
}
