//! The phase of a certificate over its life: one word, derived from the files, the pending request and the record of
//! changes that have not taken effect. Pure.
//!
//! [`RowState`] judges the files that are in place; the phase tells how far the certificate is. A renewal that waits for
//! its signer has the phase of its request, while the state of the certificate in place is `ok` or `expiring`.

use super::RowState;
use crate::kube::components::ReplacedFile;
use crate::kube::names::CertName;
use crate::store::{RequestPhase, RestartState, Unsettled};

words! {
    /// The phase of a certificate, in the order of its life.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum CertPhase: Serialize {
        /// There is neither a certificate nor a request.
        Missing = "missing",
        /// A request exists; the signer has not confirmed that it received it.
        Requested = "requested",
        /// The signer has the request and has not decided, for example until it is approved.
        WaitingForSigner = "waiting-for-signer",
        /// The certificate is verified and kept with the request; it is not installed.
        Issued = "issued",
        /// The certificate is in place, and a component still uses the former one or does not run yet.
        Installed = "installed",
        /// The certificate is in place, and nodepki knows of no component that uses a former one.
        InUse = "in-use",
        /// As `in-use`, with little time left.
        Expiring = "expiring",
        /// The certificate has expired, and no request is pending.
        Expired = "expired",
        /// The request was denied or its certificate refused, a component did not become ready with the new files, or the
        /// files in place are unusable.
        Failed = "failed",
    }
}

/// A pending request; `None` as its phase if its ticket is unreadable.
pub(super) type PendingPhase = Option<RequestPhase>;

/// The recorded progress of a certificate: its request, and whether its files have taken effect.
#[derive(Clone, Copy)]
pub(super) struct CertProgress {
    pub(super) request: Option<PendingPhase>,
    pub(super) effect: Effect,
}

/// How far the files in place have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// No component is known to use former files.
    InUse,
    /// A component must read the new files, or the components of the node do not run yet.
    Due,
    /// A component did not become ready with the new files, and has the former ones.
    RolledBack,
}

impl Effect {
    /// Returns the effect of a certificate by the record of changes. `runs` is whether the components of the node have
    /// been started.
    pub(super) fn of(name: CertName, record: &Unsettled, runs: bool) -> Effect {
        let change = ReplacedFile::Certificate(name);
        let restarts = || {
            let all = record.restarts.iter();
            all.filter(|restart| restart.causes.contains(&change))
        };
        let is_rolled_back =
            |state: &RestartState| matches!(state, RestartState::RolledBack { .. });
        let is_changed = record
            .changed
            .iter()
            .any(|changed| changed.change == change);
        if restarts().any(|restart| is_rolled_back(&restart.state)) {
            Effect::RolledBack
        } else if !runs || is_changed || restarts().next().is_some() {
            Effect::Due
        } else {
            Effect::InUse
        }
    }
}

/// Returns the phase of a certificate.
pub(super) fn phase(state: RowState, request: Option<PendingPhase>, effect: Effect) -> CertPhase {
    if let Some(request) = request {
        return match request {
            None | Some(RequestPhase::Ready | RequestPhase::Submitting) => CertPhase::Requested,
            Some(RequestPhase::Requested) => CertPhase::WaitingForSigner,
            Some(RequestPhase::Answered) => CertPhase::Issued,
            Some(RequestPhase::Denied | RequestPhase::Failed) => CertPhase::Failed,
        };
    }
    match (state, effect) {
        (RowState::Missing, _) => CertPhase::Missing,
        (RowState::Expired, _) => CertPhase::Expired,
        (
            RowState::Unreadable | RowState::Untrusted | RowState::NotYetValid | RowState::Torn,
            _,
        ) => CertPhase::Failed,
        (RowState::Ok | RowState::Expiring | RowState::Unsafe, Effect::RolledBack) => {
            CertPhase::Failed
        }
        (RowState::Ok | RowState::Expiring | RowState::Unsafe, Effect::Due) => CertPhase::Installed,
        (RowState::Expiring, Effect::InUse) => CertPhase::Expiring,
        (RowState::Ok | RowState::Unsafe, Effect::InUse) => CertPhase::InUse,
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::kube::components::Component;
    use crate::store::{Restart, UnverifiedChange};

    #[test]
    fn derives_one_phase_from_files_request_and_effect() {
        use Effect::{Due, InUse, RolledBack};
        let ready = Some(Some(RequestPhase::Ready));
        let cases = [
            (RowState::Missing, None, InUse, "missing"),
            (RowState::Missing, ready, Due, "requested"),
            (
                RowState::Ok,
                Some(Some(RequestPhase::Submitting)),
                InUse,
                "requested",
            ),
            (RowState::Ok, Some(None), InUse, "requested"),
            (
                RowState::Expiring,
                Some(Some(RequestPhase::Requested)),
                InUse,
                "waiting-for-signer",
            ),
            (
                RowState::Expired,
                Some(Some(RequestPhase::Answered)),
                InUse,
                "issued",
            ),
            (
                RowState::Ok,
                Some(Some(RequestPhase::Denied)),
                InUse,
                "failed",
            ),
            (
                RowState::Ok,
                Some(Some(RequestPhase::Failed)),
                InUse,
                "failed",
            ),
            (RowState::Ok, None, Due, "installed"),
            (RowState::Expiring, None, Due, "installed"),
            (RowState::Ok, None, InUse, "in-use"),
            (RowState::Unsafe, None, InUse, "in-use"),
            (RowState::Expiring, None, InUse, "expiring"),
            (RowState::Expired, None, InUse, "expired"),
            (RowState::Ok, None, RolledBack, "failed"),
            (RowState::Torn, None, InUse, "failed"),
            (RowState::Untrusted, None, InUse, "failed"),
            (RowState::Unreadable, None, Due, "failed"),
            (RowState::NotYetValid, None, InUse, "failed"),
        ];
        for (state, request, effect, expected) in cases {
            let found = phase(state, request, effect).as_str();
            assert_eq!(found, expected, "{state:?} {request:?} {effect:?}");
        }
    }

    #[test]
    fn derives_effect_from_record_of_changes() {
        let name = CertName::SchedulerConf;
        let restart = |state| Restart {
            component: Component::KubeScheduler,
            since: datetime!(2026-06-01 12:00 UTC),
            causes: vec![ReplacedFile::Certificate(name)],
            previous: Vec::new(),
            state,
        };
        let mut record = Unsettled::default();
        assert_eq!(Effect::of(name, &record, true), Effect::InUse);
        assert_eq!(Effect::of(name, &record, false), Effect::Due);
        record.changed.push(UnverifiedChange {
            change: ReplacedFile::Certificate(CertName::Apiserver),
            at: datetime!(2026-06-01 12:00 UTC),
        });
        assert_eq!(Effect::of(name, &record, true), Effect::InUse);
        assert_eq!(Effect::of(CertName::Apiserver, &record, true), Effect::Due);
        record.restarts.push(restart(RestartState::Due));
        assert_eq!(Effect::of(name, &record, true), Effect::Due);
        let why = "exit 1".to_owned();
        record.restarts = vec![restart(RestartState::RolledBack { why })];
        assert_eq!(Effect::of(name, &record, false), Effect::RolledBack);
    }

    #[test]
    fn has_same_name_in_tables_and_documents() {
        for one in CertPhase::ALL {
            assert_eq!(serde_json::json!(one), one.as_str());
        }
    }
}
