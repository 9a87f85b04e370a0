//! The report on the certificates of this node, which is written beside the rotation loop: the loop never waits for the
//! cluster.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;

use super::part::DaemonPart;
use crate::agent::node_report::NodeReport;
use crate::agent::{Clock, Failure};

/// Interval at which the node and the Node are compared: the kubelet may have replaced its certificate, and the Node may have
/// been deleted and created again.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Wait after a failure, and for a Node that does not exist yet.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The report that is to be in the cluster.
#[derive(Default)]
pub(super) struct ReportService {
    report: DaemonPart<NodeReport>,
    /// The last failure, which is logged once however often it is repeated.
    failure: RefCell<Option<String>>,
}

impl ReportService {
    /// Replaces the report. A kubeconfig that cannot be used is reported; the next step tries again.
    pub(super) fn publish(&self, report: Result<Option<NodeReport>, Failure>) {
        match report {
            Ok(report) => {
                if report.is_none() {
                    self.failure.take();
                }
                self.report.replace(report);
            }
            Err(failure) => self.failed(&failure),
        }
    }

    /// Writes the report whenever it is replaced, until it is dropped. A failure is retried.
    pub(super) async fn run(&self, clock: Clock) -> Infallible {
        let write = async |report: &NodeReport| {
            loop {
                // On the heap: the daemon's future would have room for it otherwise, also without a report.
                let wait = match Box::pin(report.write(clock())).await {
                    Ok(is_written) => {
                        self.failure.take();
                        if is_written {
                            COMPARE_INTERVAL
                        } else {
                            RETRY_INTERVAL
                        }
                    }
                    Err(failure) => {
                        self.failed(&failure);
                        RETRY_INTERVAL
                    }
                };
                sleep(wait).await;
            }
        };
        self.report.run(write, async |_| ()).await
    }

    fn failed(&self, failure: &Failure) {
        let failure = failure.one_line();
        if self.failure.borrow().as_ref() != Some(&failure) {
            tracing::warn!("nodeReport: {failure}");
            self.failure.replace(Some(failure));
        }
    }
}
