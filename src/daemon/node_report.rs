//! The report on the certificates of this node, which is written beside the rotation loop: the loop never waits for the
//! cluster.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::agent::Failure;
use crate::agent::node_report::NodeReport;

/// Interval at which the Node is compared: it may have been deleted and created again.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Wait after a failure, and for a Node that does not exist yet.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The report that is to be in the cluster.
#[derive(Default)]
pub(super) struct ReportService {
    current: RefCell<Option<Rc<NodeReport>>>,
    replaced: Notify,
}

impl ReportService {
    /// Replaces the report. A kubeconfig that cannot be used is reported; the next step tries again.
    pub(super) fn publish(&self, report: Result<Option<NodeReport>, Failure>) {
        match report {
            Ok(report) => {
                self.current.replace(report.map(Rc::new));
                self.replaced.notify_one();
            }
            Err(failure) => tracing::warn!("nodeReport: {failure}"),
        }
    }

    /// Writes the report whenever it is replaced, until it is dropped. A failure is retried.
    pub(super) async fn run(&self) -> Infallible {
        loop {
            let Some(report) = self.current.borrow().clone() else {
                self.replaced.notified().await;
                continue;
            };
            // On the heap: the daemon's future would have room for it otherwise, also without a report.
            let wait = match Box::pin(report.write()).await {
                Ok(true) => COMPARE_INTERVAL,
                Ok(false) => RETRY_INTERVAL,
                Err(problem) => {
                    tracing::warn!("{problem}");
                    RETRY_INTERVAL
                }
            };
            tokio::select! {
                () = self.replaced.notified() => {}
                () = sleep(wait) => {}
            }
        }
    }
}
