//! Judges the service-account pair. Pure.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::ServiceAccountStatus;
use super::fault::{FileProblem, RowFault};
use super::files::{LeafFiles, ServiceAccountFiles};
use super::findings::RowFindings;
use crate::spec::assess::{KeyFile, MisplacedKey, misplaced_service_account_keys};
use crate::x509::PrivateKey;

/// Returns the row of the pair.
pub(super) fn judge(found: ServiceAccountFiles, leaves: &[LeafFiles]) -> ServiceAccountStatus {
    let misplaced = misplaced_key(&found, leaves);
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
    match (misplaced, private, public) {
        (Some(misplaced), ..) => {
            findings.fault(RowFault::ServiceAccountKeyMisplaced(misplaced));
        }
        (None, Ok(private), Ok(public)) if !public.contains(private.public_key()) => {
            findings.fault(RowFault::PairMismatch);
        }
        (None, Ok(_), Err(fault)) if fault.is_absence() => {
            findings.fault(RowFault::PublicKeyAbsent(fault));
        }
        (None, private, public) => {
            if let Err(fault) = private {
                // A key that this user may not read can still be in use.
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

fn misplaced_key(found: &ServiceAccountFiles, leaves: &[LeafFiles]) -> Option<MisplacedKey> {
    let files: Vec<KeyFile<'_, &str>> = leaves
        .iter()
        .filter(|leaf| leaf.kubeconfig().is_none())
        .filter_map(|leaf| {
            let file = leaf.files.iter().find(|file| file.status.secret)?;
            Some(KeyFile {
                file: file.here.as_str(),
                key: leaf.cert.found.key.present()?.public_key(),
                certified: leaf.chain().map(|chain| chain.leaf().public_key()),
            })
        })
        .collect();
    let own = found.private.as_ref().ok().map(PrivateKey::public_key);
    let misplaced = misplaced_service_account_keys(found.public.as_deref().ok()?, own, &files);
    let path = *misplaced.first()?;
    let private = found.files.iter().find(|file| file.status.secret)?;
    let is_alone = found
        .private
        .as_ref()
        .is_err_and(|fault| fault.is_absence() || matches!(fault.problem, FileProblem::Empty));
    Some(MisplacedKey {
        path: path.to_owned(),
        private: private.here.clone(),
        is_alone,
    })
}
