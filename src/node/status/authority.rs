//! Judges an authority, with the leaves that it should have issued. Pure.

use time::OffsetDateTime;

use super::files::{AuthorityFiles, LeafFiles};
use super::findings::RowFindings;
use super::text::minute;
use super::{AuthorityStatus, Facts, Trouble};
use crate::spec::assess::{self, CaEvidence, ReplacedCa, trusted_by};
use crate::x509::{Certificate, Chain};

/// Returns the row of an authority. `all` are the authorities of the node.
pub(super) fn judge(
    found: &AuthorityFiles,
    all: &[AuthorityFiles],
    leaves: &[LeafFiles],
    now: OffsetDateTime,
) -> AuthorityStatus {
    let mut findings = RowFindings::default();
    if let Some(chain) = &found.certificates {
        findings.validity(chain.leaf(), None, now);
        for other in chain.intermediates() {
            if now > other.not_after() {
                findings.remark(format!(
                    "its bundle also holds {}, which expired at {}; remove it when convenient",
                    other.subject(),
                    minute(other.not_after())
                ));
            }
        }
    }
    findings.faults(found.trust.as_ref().err().cloned());
    findings.exposure(&found.files);
    if let Some(note) = &found.key_note {
        findings.remark(note.clone());
    }
    let evidence = evidence(found, leaves);
    let valid_copy = valid_copy(found, &evidence, now);
    if let Some(copy) = &valid_copy {
        findings.remark(copy.clone());
    }

    let summary = findings.summary();
    let mut status = AuthorityStatus {
        name: found.name,
        state: summary.state,
        problems: summary.problems,
        troubles: summary.troubles,
        remarks: summary.remarks,
        certificates: found
            .certificates
            .as_ref()
            .map_or_else(Vec::new, |chain| facts(chain, now)),
        replaced: replaced(found, all, &evidence),
        valid_copy,
        has_key: found.has_key || found.key_note.is_some(),
        has_key_file: found.has_key,
        key_policy: None,
        files: found.files.iter().map(|file| file.status.clone()).collect(),
    };
    if let Some(replaced) = &status.replaced {
        status.problems.push(replaced.sentence(&found.here));
        status.troubles.push(Trouble::Replaced);
        status.state = status.state.max(Trouble::Replaced.state());
    }
    status
}

fn facts(chain: &Chain, now: OffsetDateTime) -> Vec<Facts> {
    let certificates = std::iter::once(chain.leaf()).chain(chain.intermediates());
    certificates
        .map(|certificate| Facts::of(certificate, 0, now))
        .collect()
}

/// Returns the CA that the certificates in place belong to, if it is not the one in the bundle.
fn replaced(
    found: &AuthorityFiles,
    all: &[AuthorityFiles],
    evidence: &[CaEvidence<'_>],
) -> Option<ReplacedCa> {
    let trust = found.trust.as_ref().ok()?;
    let others = all.iter().filter(|other| other.name != found.name);
    let elsewhere: Vec<(String, Certificate)> = others
        .flat_map(|other| {
            let certificates = other.anchors().iter().cloned();
            certificates.map(|certificate| (other.here.clone(), certificate))
        })
        .collect();
    assess::replaced(trust, evidence, &elsewhere)
}

/// Returns the location of a valid certificate of the same CA key, if the one in place has expired.
fn valid_copy(
    found: &AuthorityFiles,
    evidence: &[CaEvidence<'_>],
    now: OffsetDateTime,
) -> Option<String> {
    let trust = found.trust.as_ref().ok()?;
    assess::valid_copy(trust, evidence, &found.here, now)
}

/// Returns what each leaf of the authority shows about it.
fn evidence<'a>(found: &AuthorityFiles, leaves: &'a [LeafFiles]) -> Vec<CaEvidence<'a>> {
    leaves
        .iter()
        .filter(|leaf| leaf.name.authority() == found.name)
        .map(|leaf| {
            let kubeconfig = leaf.kubeconfig.as_ref();
            let file = leaf.files.first();
            CaEvidence {
                name: leaf.name,
                file: file.map_or_else(String::new, |file| file.here.clone()),
                chain: leaf.chain.as_ref().ok(),
                trusts: trusted_by(kubeconfig.and_then(|found| found.authority.as_deref())),
                installed: leaf.is_recorded(),
            }
        })
        .collect()
}
