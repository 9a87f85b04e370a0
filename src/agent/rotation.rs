//! One step of the rotation: renews due certificates and restarts the components that use them.
//!
//! `nodepki renew` runs one step, the daemon repeats it. `agent::renew` decides what is due.

use time::{Duration, OffsetDateTime};

use crate::agent::load::Loaded;
use crate::agent::reload;
use crate::agent::{self, Clock, Failure, Progress, ReportRow, RunReport, Scope};
use crate::store::NodeRoot;

/// When to try an unfinished restart again.
const RESTART_RETRY_INTERVAL: Duration = Duration::minutes(1);

/// Result of a step.
#[derive(Debug)]
pub struct RotationStep {
    /// One row per certificate and per restart.
    pub report: RunReport,
    /// When the next certificate is due or a failure may be retried; `None` if never.
    pub next: Option<OffsetDateTime>,
}

/// Renews the certificates of `scope` and restarts the components that use them.
///
/// # Errors
/// A failure of the whole run. The result of each certificate is in the [`RotationStep`].
pub async fn step(
    root: &NodeRoot,
    loaded: &Loaded,
    scope: &Scope,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<RotationStep, Failure> {
    let renewed = agent::renew(root, &loaded.setup, scope, clock, progress).await?;
    let (mut report, mut next) = (renewed.report, renewed.next);
    let settled = settle(root, loaded, next, clock, progress).await;
    if settled.is_unfinished {
        let again = clock() + RESTART_RETRY_INTERVAL;
        next = Some(next.map_or(again, |next| next.min(again)));
    }
    report.rows.extend(settled.rows);
    Ok(RotationStep { report, next })
}

/// Result of the restarts.
#[derive(Debug)]
pub struct SettledRestarts {
    /// One row per restart.
    pub rows: Vec<ReportRow>,
    /// A later run has to continue.
    pub is_unfinished: bool,
}

/// Restarts the components that use replaced files. A failure becomes a row, so that the earlier results are reported too.
/// `next` is when a certificate is due, which limits the time for restarts.
pub async fn settle(
    root: &NodeRoot,
    loaded: &Loaded,
    next: Option<OffsetDateTime>,
    clock: Clock,
    progress: &dyn Progress,
) -> SettledRestarts {
    let setup = reload::ReloadSetup::of(&loaded.setup, &loaded.settings, next);
    match reload::settle(root, &setup, clock, progress).await {
        Ok(reloads) => SettledRestarts {
            is_unfinished: reloads.iter().any(|outcome| outcome.state.is_unfinished()),
            rows: reloads.into_iter().map(Into::into).collect(),
        },
        Err(failure) => SettledRestarts {
            is_unfinished: true,
            rows: vec![ReportRow::failed("restarts", failure)],
        },
    }
}

/// Logs the rows of a report.
pub fn log(report: &RunReport) {
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
