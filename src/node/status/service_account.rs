//! Judges the service-account pair. Pure.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::files::ServiceAccountFiles;
use super::findings::RowFindings;
use super::{ServiceAccountStatus, Trouble};
use crate::spec::assess::COPY_SERVICE_ACCOUNT;

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
            findings.fault(
                Trouble::Torn,
                format!("sa.key and sa.pub are not a pair: tokens signed with the one are refused by the other; {COPY_SERVICE_ACCOUNT}"),
            );
        }
        (Ok(_), Err(mut fault)) => {
            if fault.trouble == Trouble::Absent {
                fault.words.push_str("; it can be derived from sa.key");
            }
            findings.faults([fault]);
        }
        (private, public) => {
            let unusable = private.err().map(|mut fault| {
                if found.has_served && fault.trouble != Trouble::Denied {
                    fault.words.push_str(&format!("; {COPY_SERVICE_ACCOUNT}"));
                }
                fault
            });
            findings.faults(unusable);
            findings.faults(public.err());
        }
    }
    findings.exposure(&found.files);
    let summary = findings.summary();
    ServiceAccountStatus {
        state: summary.state,
        problems: summary.problems,
        troubles: summary.troubles,
        remarks: summary.remarks,
        key: key.as_ref().map(|key| key.key_type().to_string()),
        key_id: key.map(|key| URL_SAFE_NO_PAD.encode(key.sha256())),
        key_policy: None,
        files: found.files.into_iter().map(|file| file.status).collect(),
    }
}
