//! The table of what is exported: names, kinds, help.
//!
//! The first three have the shape of OpenShift's enhancement for internal PKI. A family that is added here must be in
//! [`ALL`], which is also the order of the page; alert rules and dashboards may name nothing else.

/// How a family's numbers are to be read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets, but for the last, which has none.
    Histogram(&'static [f64]),
}

/// One metric with all its labels.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

macro_rules! families {
    ($($constant:ident: $name:literal, $kind:expr, $help:literal;)+) => {
        $(pub(super) static $constant: Family = Family {
            name: concat!("nodepki_", $name),
            kind: $kind,
            help: $help,
        };)+
        pub(super) static ALL: &[&Family] = &[$(&$constant),+];
    };
}

use Kind::{Counter, Gauge, Histogram};

families! {
    CERTIFICATE_INFO: "certificate_info", Gauge,
        "A certificate on this node and its key. component is what shows or trusts it.";
    GENERATED: "certificate_generated_total", Counter,
        "Certificates that were installed (success), or refused or not to be had in a run (failure).";
    GENERATION_DURATION: "certificate_generation_duration_seconds", Histogram(&[0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0]),
        "Time that it took to make the private key.";
    NOT_BEFORE: "certificate_not_before_timestamp_seconds", Gauge,
        "Start of validity.";
    NOT_AFTER: "certificate_not_after_timestamp_seconds", Gauge,
        "End of validity.";
    RENEWAL: "certificate_renewal_timestamp_seconds", Gauge,
        "When the certificate is due by its age.";
    STATE: "certificate_state", Gauge,
        "1 for the state that the certificate is in.";
    PENDING: "certificate_pending_since_timestamp_seconds", Gauge,
        "When a request was sent that the signer has not decided.";
    CRL_THIS_UPDATE: "crl_this_update_timestamp_seconds", Gauge,
        "When the oldest revocation list in place was made.";
    CRL_NEXT_UPDATE: "crl_next_update_timestamp_seconds", Gauge,
        "When a newer revocation list is due.";
    SIGNER_DURATION: "signer_request_duration_seconds", Histogram(&[0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]),
        "Time until a signer answered or failed to.";
    SIGNER_ERRORS: "signer_errors_total", Counter,
        "Failed exchanges with a signer.";
    RESTARTS_PENDING: "component_restart_pending_since_timestamp_seconds", Gauge,
        "Since when a component runs with less than what is on disk.";
    ROLLED_BACK: "component_rolled_back", Gauge,
        "1 for a component that did not come back with what was new and runs with what it had before.";
    RESTARTS: "component_restarts_total", Counter,
        "Restarts that put something new into service (success), or were rolled back (failure).";
    LAST_RUN: "last_run_timestamp_seconds", Gauge,
        "When a run ended.";
    LAST_RUN_DURATION: "last_run_duration_seconds", Gauge,
        "How long it took.";
    LAST_RUN_EXIT_CODE: "last_run_exit_code", Gauge,
        "Its exit status: 0 done, 65 refused, 69 unreachable, 75 pending, 77 not permitted, 78 configuration.";
    LAST_SUCCESS: "last_success_timestamp_seconds", Gauge,
        "When a run ended with status 0.";
    NEXT_RUN: "next_run_timestamp_seconds", Gauge,
        "When there will be something to do, or to try again.";
    BUILD_INFO: "build_info", Gauge,
        "The version of nodepki.";
}
