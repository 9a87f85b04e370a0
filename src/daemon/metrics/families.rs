//! The table of metrics: names, kinds, help texts.
//!
//! The first three follow OpenShift's enhancement for internal PKI. [`ALL`] contains every family, in the order of the
//! page; alert rules and dashboards may use no other names.

/// The type of a metric.
#[derive(Clone, Copy, Debug)]
pub(super) enum MetricType {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets, except for the last one, which has none.
    Histogram(&'static [f64]),
}

/// One metric with all its labels.
#[derive(Debug)]
pub(super) struct MetricFamily {
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    pub(super) help: &'static str,
}

macro_rules! families {
    ($($constant:ident: $name:literal, $kind:expr, $help:literal;)+) => {
        $(pub(super) static $constant: MetricFamily = MetricFamily {
            name: concat!("nodepki_", $name),
            kind: $kind,
            help: $help,
        };)+
        pub(super) static ALL: &[&MetricFamily] = &[$(&$constant),+];
    };
}

use MetricType::{Counter, Gauge, Histogram};

families! {
    CERTIFICATE_INFO: "certificate_info", Gauge,
        "A certificate on this node and its key. component is the program that presents or trusts it.";
    GENERATED: "certificate_generated_total", Counter,
        "Certificates that a run installed (success), or that were refused or not issued (failure).";
    GENERATION_DURATION: "certificate_generation_duration_seconds", Histogram(&[0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0]),
        "Time to generate the private key.";
    NOT_BEFORE: "certificate_not_before_timestamp_seconds", Gauge,
        "Start of validity.";
    NOT_AFTER: "certificate_not_after_timestamp_seconds", Gauge,
        "End of validity.";
    RENEWAL: "certificate_renewal_timestamp_seconds", Gauge,
        "When the certificate is due for renewal.";
    NODE_REPORTED: "node_reported", Gauge,
        "1 if the Node has a report on its certificates, else 0; in the output of cluster status, where all series have the node as a label.";
    STATE: "certificate_state", Gauge,
        "1 for the present state of the certificate, else 0.";
    PHASE: "certificate_phase", Gauge,
        "1 for the present phase of the certificate over its life, else 0.";
    COMPLIANT: "certificate_compliant", Gauge,
        "1 if everything that the key policy requires was compared and complies, 0 if something differs or is unknown. No series if no policy requires anything.";
    POLICY_VERDICT: "certificate_policy_verdict", Gauge,
        "1 for the verdict of the key policy on the certificate or key, else 0: compliant, not-compliant, unknown (the policy or the key was not read), no-policy, chosen-by-kubelet (and no policy requires another key).";
    PENDING: "certificate_pending_since_timestamp_seconds", Gauge,
        "When a pending request was sent to the signer.";
    CRL_THIS_UPDATE: "crl_this_update_timestamp_seconds", Gauge,
        "When the oldest installed revocation list was issued.";
    CRL_NEXT_UPDATE: "crl_next_update_timestamp_seconds", Gauge,
        "When a newer revocation list is due.";
    SIGNER_DURATION: "signer_request_duration_seconds", Histogram(&[0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]),
        "Duration of a request to a signer, failed ones included.";
    SIGNER_ERRORS: "signer_errors_total", Counter,
        "Failed requests to a signer.";
    KUBELET_REQUESTS: "kubelet_requests_total", Counter,
        "Certificate requests of kubelets: approved or denied by the rules, failed by a rule after another approval, refused by the signer or with a wrong answer, issued.";
    KUBELET_REFUSED: "kubelet_requests_refused_total", Counter,
        "Certificate requests of kubelets that a rule denied or failed, by rule.";
    KUBELET_DURATION: "kubelet_request_duration_seconds", Histogram(&[0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0]),
        "Time from the creation of a kubelet's request to its certificate.";
    KUBELET_PENDING: "kubelet_requests_pending", Gauge,
        "Unfinished certificate requests of kubelets. Only on the node that signs them.";
    RESTARTS_PENDING: "component_restart_pending_since_timestamp_seconds", Gauge,
        "Since when a component has not loaded the files on disk.";
    ROLLED_BACK: "component_rolled_back", Gauge,
        "1 for a component that did not become ready with the new files and runs with the previous ones.";
    RESTARTS: "component_restarts_total", Counter,
        "Restarts that loaded new files (success), or were rolled back (failure).";
    LAST_RUN: "last_run_timestamp_seconds", Gauge,
        "When a run ended.";
    LAST_RUN_DURATION: "last_run_duration_seconds", Gauge,
        "Duration of the last run.";
    LAST_RUN_EXIT_CODE: "last_run_exit_code", Gauge,
        "Exit status of the last run: 0 done, 65 refused, 69 unreachable, 75 pending, 77 not permitted, 78 configuration.";
    LAST_SUCCESS: "last_success_timestamp_seconds", Gauge,
        "When a run last ended with status 0.";
    NEXT_RUN: "next_run_timestamp_seconds", Gauge,
        "When the next renewal is due, or may be retried.";
    BUILD_INFO: "build_info", Gauge,
        "The version of nodepki.";
}
