//! `nodepki doctor`: finds what is wrong with a node, with evidence and a fix.
//!
//! [`diagnose`] reads a `Picture` of the node once: the state that `status` shows, the configuration if it is usable, the
//! manifests of the static pods, the kubelet's files, and, with a kubeconfig, some answers of the cluster. Checks are pure
//! functions of the picture. Nothing is written and no lock is taken. A diagnosis never fails: a file that cannot be read,
//! or a cluster that cannot be reached, is itself a finding. Of private keys only the public half is used, and no evidence
//! contains more.
//!
//! To add a check: one entry of [`CHECKS`], and a function from the picture to notes in the module of its area. A fact
//! that no check has needed before is a new field of the picture.

mod access;
mod answers;
mod authorities;
mod catalogue;
mod cluster;
mod configuration;
mod desired;
mod external;
mod finding;
mod kubeconfigs;
mod kubelet;
mod leaves;
mod picture;
mod reader;
mod signers;
mod static_pods;
mod text;
mod trees;

use time::OffsetDateTime;

use crate::store::NodeRoot;

use picture::Picture;

pub use catalogue::{CHECKS, Check};
pub use finding::{Diagnosis, DiagnosisInputs, Finding, FindingSeverity};
pub use text::{list, table};

/// Examines a node.
pub async fn diagnose(root: &NodeRoot, inputs: &DiagnosisInputs, now: OffsetDateTime) -> Diagnosis {
    let mut picture = Picture::read(root, inputs, now);
    if let Some(kubeconfig) = &inputs.kubeconfig {
        picture.answers = Some(cluster::ask(root, kubeconfig, &picture).await);
    }
    if inputs.online {
        match signers::examine(root, inputs, now).await {
            Ok(examined) => picture.signers = Some(examined),
            Err(failure) => picture.signers_unknown = Some(failure.one_line()),
        }
    }
    Diagnosis {
        at: now,
        root: root.path().display().to_string(),
        findings: findings(&picture),
    }
}

/// Makes only the checks with these ids, offline. Returns each check with its findings, in the order of the checks.
pub fn examine(
    root: &NodeRoot,
    inputs: &DiagnosisInputs,
    ids: &[&str],
    now: OffsetDateTime,
) -> Vec<(&'static Check, Vec<Finding>)> {
    let picture = Picture::read(root, inputs, now);
    let checks = CHECKS.iter().filter(|check| ids.contains(&check.id));
    checks
        .map(|check| (check, findings_of(check, &picture)))
        .collect()
}

fn findings(picture: &Picture) -> Vec<Finding> {
    let checks = CHECKS.iter();
    let mut findings: Vec<Finding> = checks
        .flat_map(|check| findings_of(check, picture))
        .collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Makes one check. Notes with the same severity and fix become one finding.
fn findings_of(check: &Check, picture: &Picture) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for note in (check.run)(picture) {
        let same = findings
            .iter_mut()
            .find(|finding| finding.severity == note.severity && finding.fix == note.fix);
        match same {
            Some(finding) => {
                finding.evidence.push(note.evidence);
                for code in note.codes {
                    if !finding.codes.contains(&code) {
                        finding.codes.push(code);
                    }
                }
            }
            None => findings.push(Finding {
                id: check.id,
                severity: note.severity,
                evidence: vec![note.evidence],
                codes: note.codes,
                fix: note.fix,
            }),
        }
    }
    findings
}

#[cfg(test)]
mod tests;
