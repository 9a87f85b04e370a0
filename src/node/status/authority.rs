//! Judges an authority, with the leaves that it should have issued. Pure.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use super::fault::{RowFault, RowRemark};
use super::files::{AuthorityFiles, LeafFiles};
use super::findings::RowFindings;
use super::{AuthorityStatus, Facts};
use crate::kube::names::Authority;
use crate::spec::assess::{self, CaEvidence, CaFile, ReplacedCa, trusted_by};
use crate::x509::Chain;

/// Returns the CAs that were replaced.
pub(super) fn replaced(
    all: &[AuthorityFiles],
    leaves: &[LeafFiles],
) -> BTreeMap<Authority, ReplacedCa> {
    let files: Vec<CaFile<'_>> = all
        .iter()
        .filter_map(|found| {
            Some(CaFile {
                authority: found.name,
                file: found.here.clone(),
                trust: found.trust.as_ref().ok()?,
                witnesses: evidence(found, leaves),
                is_confirmed: false,
            })
        })
        .collect();
    assess::replaced_among(&files)
}

/// Returns the row of an authority. `replaced` says whether its CA was replaced.
pub(super) fn judge(
    found: &AuthorityFiles,
    replaced: Option<ReplacedCa>,
    leaves: &[LeafFiles],
    now: OffsetDateTime,
) -> AuthorityStatus {
    let mut findings = RowFindings::default();
    if let Some(chain) = &found.certificates {
        findings.validity(chain.leaf(), None, now);
        for other in chain.intermediates() {
            if now > other.not_after() {
                findings.remark(RowRemark::ExpiredInBundle {
                    subject: other.subject().to_string(),
                    at: other.not_after(),
                });
            }
        }
    }
    if let Err(fault) = &found.trust {
        findings.file(fault);
    }
    findings.exposure(&found.files);
    if let Some(note) = &found.key_note {
        findings.remark(RowRemark::KeyAmongCertificates(note.clone()));
    }
    if let Ok(trust) = &found.trust {
        let copy = assess::valid_copy(trust, &evidence(found, leaves), &found.here, now);
        findings.remarks.extend(copy.map(RowRemark::ValidCopy));
    }
    if let Some(replaced) = replaced {
        findings.fault(RowFault::AuthorityReplaced {
            path: found.here.clone(),
            replaced: Box::new(replaced),
        });
    }
    AuthorityStatus {
        name: found.name,
        state: findings.state(),
        findings,
        certificates: found
            .certificates
            .as_ref()
            .map_or_else(Vec::new, |chain| facts(chain, now)),
        has_key: found.has_key || found.key_note.is_some(),
        has_key_file: found.has_key,
        key_policy: None,
        files: found.files.iter().map(|file| file.status.clone()).collect(),
    }
}

fn facts(chain: &Chain, now: OffsetDateTime) -> Vec<Facts> {
    let certificates = std::iter::once(chain.leaf()).chain(chain.intermediates());
    certificates
        .map(|certificate| Facts::of(certificate, &[], now))
        .collect()
}

/// Returns what each leaf of the authority shows about it.
fn evidence<'a>(found: &AuthorityFiles, leaves: &'a [LeafFiles]) -> Vec<CaEvidence<'a>> {
    leaves
        .iter()
        .filter(|leaf| leaf.name.authority() == found.name)
        .map(|leaf| {
            let kubeconfig = leaf.kubeconfig();
            let file = leaf.files.first();
            CaEvidence {
                name: leaf.name,
                file: file.map_or_else(String::new, |file| file.here.clone()),
                chain: leaf.chain(),
                trusts: trusted_by(kubeconfig.and_then(|found| found.authority.as_deref())),
                installed: leaf.is_recorded(),
            }
        })
        .collect()
}
