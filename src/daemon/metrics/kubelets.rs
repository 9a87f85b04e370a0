//! The metrics of the signer of kubelets' requests.

use std::collections::BTreeMap;

use super::exposition::{MetricsPage, labels};
use super::families::{
    KUBELET_DURATION, KUBELET_PENDING, KUBELET_REFUSED, KUBELET_REQUESTS, SIGNER_DURATION,
    SIGNER_ERRORS,
};
use super::{Metrics, error_labels};
use crate::agent::kubelet_requests::{KubeletObserver, KubeletResult};
use crate::agent::{Event, Progress};
use crate::kube::csr_object::KubeletCertificate;
use crate::kubelets::RequestReason;
use crate::signer::FailureClass;

/// Values of the label `result`.
const RESULTS: [&str; 5] = ["approved", "denied", "failed", "refused", "issued"];

/// Number of unfinished requests, while this node signs.
#[derive(Clone, Debug, Default)]
pub(super) struct KubeletGauges(BTreeMap<KubeletCertificate, usize>);

impl KubeletGauges {
    pub(super) fn show(&self, page: &mut MetricsPage) {
        for (certificate, count) in &self.0 {
            let labels = labels(&[("certificate", certificate.as_str())]);
            page.sample(&KUBELET_PENDING, &labels, *count as f64);
        }
    }
}

/// Counts the results of the signer of kubelets' requests.
pub struct KubeletRecorder {
    metrics: Metrics,
    signer: String,
}

impl Metrics {
    /// Returns a recorder for requests that this signer signs; `signer` is its name in the configuration.
    pub fn kubelet_recorder(&self, signer: &str) -> KubeletRecorder {
        let recorder = KubeletRecorder {
            metrics: self.clone(),
            signer: signer.to_owned(),
        };
        let counts = &mut self.0.state.borrow_mut().unsaved;
        // A counter must exist with the value 0, so Prometheus sees the first increase.
        for certificate in KubeletCertificate::ALL {
            for result in RESULTS {
                counts.count(&KUBELET_REQUESTS, recorder.labels(certificate, result), 0);
            }
            for reason in RequestReason::ALL {
                counts.count(&KUBELET_REFUSED, refusal_labels(certificate, reason), 0);
            }
        }
        for class in FailureClass::ALL {
            counts.count(&SIGNER_ERRORS, error_labels(signer, class), 0);
        }
        recorder
    }
}

fn refusal_labels(certificate: KubeletCertificate, reason: RequestReason) -> String {
    labels(&[
        ("certificate", certificate.as_str()),
        ("reason", reason.as_str()),
    ])
}

impl KubeletRecorder {
    fn labels(&self, certificate: KubeletCertificate, result: &str) -> String {
        labels(&[
            ("certificate", certificate.as_str()),
            ("signer", &self.signer),
            ("result", result),
        ])
    }
}

impl Progress for KubeletRecorder {
    fn event(&self, event: Event) {
        let Event::Asked {
            signer,
            operation,
            took,
            result,
        } = event
        else {
            return;
        };
        let counts = &mut self.metrics.0.state.borrow_mut().unsaved;
        let of_operation = labels(&[("signer", &signer), ("operation", operation.as_str())]);
        counts.observe(&SIGNER_DURATION, of_operation, took);
        if let Err(class) = result {
            counts.count(&SIGNER_ERRORS, error_labels(&signer, class), 1);
        }
    }
}

impl KubeletObserver for KubeletRecorder {
    fn decided(&self, certificate: KubeletCertificate, result: KubeletResult) {
        let counts = &mut self.metrics.0.state.borrow_mut().unsaved;
        let (label, reason) = match result {
            KubeletResult::Approved => ("approved", None),
            KubeletResult::Denied(reason) => ("denied", Some(reason)),
            KubeletResult::Failed(reason) => ("failed", Some(reason)),
            KubeletResult::Refused => ("refused", None),
            KubeletResult::Issued(waited) => {
                let labels = labels(&[("certificate", certificate.as_str())]);
                counts.observe(&KUBELET_DURATION, labels, waited);
                ("issued", None)
            }
        };
        counts.count(&KUBELET_REQUESTS, self.labels(certificate, label), 1);
        if let Some(reason) = reason {
            counts.count(&KUBELET_REFUSED, refusal_labels(certificate, reason), 1);
        }
    }

    fn unfinished(&self, certificate: KubeletCertificate, count: Option<usize>) {
        let gauges = &mut self.metrics.0.state.borrow_mut().kubelets.0;
        match count {
            Some(count) => gauges.insert(certificate, count),
            None => gauges.remove(&certificate),
        };
    }
}
