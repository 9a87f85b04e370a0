//! Judges the service-account pair. Pure.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::ServiceAccountStatus;
use super::fault::{FileFault, FileProblem, PairAdvice, RowFault};
use super::files::ServiceAccountFiles;
use super::findings::RowFindings;

/// Returns the row of the pair.
pub(super) fn judge(found: ServiceAccountFiles) -> ServiceAccountStatus {
    let ServiceAccountFiles {
        private, public, ..
    } = found;
    let mut findings = RowFindings::default();
    findings.key_form(found.key_form_is_ours);
    let key = match (&private, &public) {
        (Ok(private), _) => Some(private.public_key().clone()),
        (_, Ok(public)) => public.first().cloned(),
        _ => None,
    };
    match (private, public) {
        (Ok(private), Ok(public)) if !public.contains(private.public_key()) => {
            findings.fault(RowFault::PairMismatch);
        }
        (Ok(_), Err(fault)) => {
            let advice = fault.problem.is_absence().then_some(PairAdvice::Derive);
            findings.file(&FileFault { advice, ..fault });
        }
        (private, public) => {
            if let Err(fault) = private {
                let is_lost = !matches!(fault.problem, FileProblem::Denied(_));
                let advice = (found.has_served && is_lost).then_some(PairAdvice::Copy);
                findings.file(&FileFault { advice, ..fault });
            }
            if let Err(fault) = public {
                findings.file(&fault);
            }
        }
    }
    findings.exposure(&found.files);
    ServiceAccountStatus {
        state: findings.state(),
        findings,
        key: key.as_ref().map(|key| key.key_type().to_string()),
        key_id: key.map(|key| URL_SAFE_NO_PAD.encode(key.sha256())),
        key_policy: None,
        files: found.files.into_iter().map(|file| file.status).collect(),
    }
}
