//! One step of the rotation: renews due certificates, restarts the components that use them, and takes part in CA changes
//! of the cluster.
//!
//! `nodepki renew` runs one step, the daemon repeats it. `agent::renew` decides what is due.

use time::{Duration, OffsetDateTime};

use crate::agent::authority::rotate::{Followed, Follower};
use crate::agent::load::Loaded;
use crate::agent::reload;
use crate::agent::report::codes;
use crate::agent::{self, Clock, ExitCode, Failure, Progress, ReportRow, RunReport, Scope};
use crate::spec::assess::joined;
use crate::spec::authority_rotation::RotationSubject;
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

/// Maximum number of parts of cluster-wide changes in one step, each with its restarts: for each subject one that trusts, one
/// that reissues, and one that is recorded.
const MAX_PARTS: usize = 3 * RotationSubject::ALL.len();

/// Renews the certificates of `scope` and restarts the components that use them. `follower` knows the failures of earlier
/// steps.
///
/// # Errors
/// A failure of the whole run. The result of each certificate is in the [`RotationStep`].
pub async fn step(
    root: &NodeRoot,
    loaded: &Loaded,
    scope: &Scope,
    follower: &mut Follower,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<RotationStep, Failure> {
    let renewed = agent::renew(root, &loaded.setup, scope, clock, progress).await?;
    let (mut report, mut next) = (renewed.report, renewed.next);
    let mut again = None;
    for _ in 0..MAX_PARTS {
        let settled = settle(root, loaded, next, clock, progress).await;
        report.rows.extend(settled.rows);
        // Every part requires that the components use the present files.
        if settled.is_unfinished {
            again = Some(clock() + RESTART_RETRY_INTERVAL);
            break;
        }
        let followed = match follower.follow(root, loaded, clock, progress).await {
            Ok(followed) => followed,
            Err(failure) => Followed::failed(failure, clock()),
        };
        report.rows.extend(followed.rows);
        report.written.extend(followed.written);
        again = followed.next;
        if !followed.acted {
            break;
        }
    }
    next = next.into_iter().chain(again).min();
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

/// Restarts the components that use replaced files. A failure becomes a row, so the earlier results are reported too.
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
        Ok(rows) => SettledRestarts {
            is_unfinished: rows.iter().any(|row| row.code == Some(ExitCode::Pending)),
            rows,
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
            message = format!("{message}: {}", joined(&row.reasons));
        }
        let (certificate, action) = (&row.name, row.action.as_str());
        let codes = codes(&row.reasons).join(" ");
        match row.code {
            None if row.is_overdue() => tracing::warn!(certificate, action, codes, "{message}"),
            None => tracing::info!(certificate, action, codes, "{message}"),
            Some(code) => {
                tracing::warn!(certificate, action, codes, exit = code as u8, "{message}");
            }
        }
    }
}
