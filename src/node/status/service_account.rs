//! Judges the service-account pair. Pure.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::ServiceAccountStatus;
use super::fault::{FileProblem, RowFault};
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
        (Ok(_), Err(fault)) if fault.is_absence() => {
            findings.fault(RowFault::PublicKeyAbsent(fault));
        }
        (private, public) => {
            if let Err(fault) = private {
                let is_lost = !matches!(fault.problem, FileProblem::Denied(_));
                findings.fault(if found.has_served && is_lost {
                    RowFault::PrivateKeyLost(fault)
                } else {
                    RowFault::File(fault)
                });
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
