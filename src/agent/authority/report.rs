//! The report of one node, and what the reports of other nodes prove.
//!
//! Pure. A node can read its own files only. The progress of the other nodes is in their reports, or stated by the
//! administrator.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::judge::{ChangePhase, Evidence, fingerprint, named};
use crate::kube::names::Authority;
use crate::text::{hex, rfc3339};
use crate::x509::Certificate;

/// Maximum age of a report. The node may have been changed since an older one.
const MAX_REPORT_AGE: time::Duration = time::Duration::DAY;

/// The output of `nodepki authority status -o json`, which `--peer-report` reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The node's name.
    pub node: String,
    /// The cluster's name; `None` from a worker that could not read its ClusterConfiguration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Time of the report.
    #[serde(with = "rfc3339")]
    pub at: OffsetDateTime,
    /// The authorities of the node.
    pub authorities: Vec<AuthorityReport>,
}

/// The state of one authority on one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityReport {
    /// kubeadm's name of the authority.
    pub authority: Authority,
    /// Progress of a change.
    pub phase: ChangePhase,
    /// Certificates in `ca.crt`, in order.
    pub bundle: Vec<TrustedCertificate>,
    /// SHA-256 of the certificates that the bundle and every kubeconfig of the node contain.
    pub trusted: Vec<String>,
    /// Certificates that the authority has signed.
    pub leaves: Vec<LeafReport>,
    /// Components that still use former files, in sentences.
    pub restarts: Vec<String>,
    /// When the new certificate was staged.
    #[serde(default, with = "rfc3339::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<OffsetDateTime>,
    /// When the new certificate was activated.
    #[serde(default, with = "rfc3339::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activated: Option<OffsetDateTime>,
    /// Unmet requirements of the next step on this node, in sentences.
    pub missing: Vec<String>,
    /// Command of the next step, if a change is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One certificate of a bundle.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrustedCertificate {
    /// Subject of the certificate.
    pub subject: String,
    /// SHA-256 of the certificate.
    pub sha256: String,
    /// SHA-256 of the public key, in the form of a pin.
    pub public_key_sha256: String,
    /// End of validity.
    #[serde(with = "rfc3339")]
    pub not_after: OffsetDateTime,
    /// `old` or `new` during a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// One certificate that the authority has signed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeafReport {
    /// kubeadm's name, or a description.
    pub name: String,
    /// SHA-256 of the certificates of the bundle under which the certificate verifies.
    pub under: Vec<String>,
}

impl AuthorityReport {
    /// Returns whether a change is in progress whose restarts are due.
    pub fn is_waiting(&self) -> bool {
        self.phase != ChangePhase::Settled && !self.restarts.is_empty()
    }

    /// Returns the report of this evidence.
    pub fn of(evidence: &Evidence, now: OffsetDateTime) -> Self {
        let phase = evidence.phase();
        let change = evidence.in_progress();
        let fingerprints = |certificates: Vec<&Certificate>| -> Vec<String> {
            certificates.into_iter().map(fingerprint).collect()
        };
        let next = match phase {
            ChangePhase::Settled => None,
            ChangePhase::Staged => Some("activate"),
            ChangePhase::Activated => Some("retire"),
        };
        AuthorityReport {
            authority: evidence.authority,
            phase,
            bundle: evidence
                .bundle
                .iter()
                .map(|one| TrustedCertificate {
                    subject: one.subject().to_string(),
                    sha256: fingerprint(one),
                    public_key_sha256: hex(&one.public_key().sha256()),
                    not_after: one.not_after(),
                    role: match one {
                        _ if evidence.incoming() == Some(one) => Some("new".to_owned()),
                        _ if evidence.outgoing().contains(&one) => Some("old".to_owned()),
                        _ => None,
                    },
                })
                .collect(),
            trusted: fingerprints(evidence.trusted_everywhere()),
            leaves: evidence
                .leaves
                .iter()
                .map(|leaf| LeafReport {
                    name: leaf.name.clone(),
                    under: fingerprints(leaf.under(&evidence.bundle, now)),
                })
                .collect(),
            restarts: [evidence.restarts.clone(), evidence.rollbacks()].concat(),
            staged: change.map(|change| change.staged),
            activated: change.and_then(|change| change.activated),
            missing: match phase {
                ChangePhase::Settled => evidence.unsettled(),
                ChangePhase::Staged => evidence.unstaged(),
                ChangePhase::Activated => evidence.unactivated(now),
            },
            next: next.map(|step| format!("nodepki authority {step} {}", evidence.authority)),
        }
    }
}

/// Requirement of a step on every other node.
#[derive(Clone, Copy, Debug)]
pub enum PeerRequirement<'a> {
    /// The node trusts the new CA.
    Trusts(&'a Certificate),
    /// All certificates of the node are under the new CA.
    Uses(&'a Certificate),
    /// No certificate of the node needs the new CA.
    DoesWithout(&'a Certificate),
}

impl PeerRequirement<'_> {
    /// Returns the option with which the administrator states the requirement for all nodes.
    pub const fn statement(self) -> &'static str {
        match self {
            PeerRequirement::Trusts(_) => "--all-nodes-staged",
            PeerRequirement::Uses(_) => "--all-nodes-activated",
            PeerRequirement::DoesWithout(_) => "--no-node-activated",
        }
    }

    /// Returns why the node of a report does not meet the requirement.
    fn unmet(self, report: &AuthorityReport) -> Option<String> {
        let restarts_due = || {
            (!report.restarts.is_empty())
                .then(|| format!("restarts are due there: {}", report.restarts.join("; ")))
        };
        let leaves = |is_meant: &dyn Fn(&[String]) -> bool| -> Vec<&str> {
            let leaves = report.leaves.iter().filter(|leaf| is_meant(&leaf.under));
            leaves.map(|leaf| leaf.name.as_str()).collect()
        };
        match self {
            PeerRequirement::Trusts(new) => {
                if report.trusted.contains(&fingerprint(new)) {
                    restarts_due()
                } else {
                    Some(format!("not all files there trust {}", named(new)))
                }
            }
            PeerRequirement::Uses(new) => {
                let sha256 = fingerprint(new);
                let left = leaves(&|under| !under.contains(&sha256));
                match left.as_slice() {
                    [] => restarts_due(),
                    left => Some(format!("{} not under {}", are(left), named(new))),
                }
            }
            PeerRequirement::DoesWithout(new) => {
                let sha256 = fingerprint(new);
                let only = leaves(&|under| under.iter().all(|one| *one == sha256));
                (!only.is_empty()).then(|| format!("{} under {} only", are(&only), named(new)))
            }
        }
    }
}

fn are(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

/// The known facts about the other nodes.
#[derive(Debug, Default)]
pub struct Peers {
    /// Reports of other nodes, each with the name of its file.
    pub reports: Vec<(String, NodeReport)>,
    /// The administrator states that all nodes meet the requirement.
    pub stated: bool,
}

/// The nodes of the cluster that use an authority.
#[derive(Debug)]
pub enum Nodes {
    /// Nodes as listed by the API.
    Listed(BTreeSet<String>),
    /// The nodes could not be listed, for this reason.
    Unknown(String),
}

impl Peers {
    /// Proves that all other nodes meet a requirement. `own` and `cluster` are the names of this node and its cluster.
    ///
    /// # Errors
    /// All unmet and unknown requirements, in sentences; the last one tells what to do.
    pub fn prove(
        &self,
        (own, cluster): (&str, &str),
        authority: Authority,
        need: PeerRequirement<'_>,
        nodes: &Nodes,
        now: OffsetDateTime,
    ) -> Result<Vec<String>, Vec<String>> {
        let mut proven = Vec::new();
        let mut refused = Vec::new();
        let mut reported = BTreeSet::from([own]);
        for (file, report) in &self.reports {
            if let Err(why) = require_cluster(file, report, cluster, authority) {
                refused.push(why);
                continue;
            }
            reported.insert(&report.node);
            if report.node == own {
                continue;
            }
            match judge_report(file, report, authority, need, now) {
                Ok(proof) => proven.push(proof),
                Err(why) => refused.push(why),
            }
        }
        if self.stated {
            proven.push(format!(
                "all nodes meet the requirement of this step, according to {}",
                need.statement()
            ));
        } else {
            refused.extend(unreported(nodes, &reported, authority, need));
        }
        if refused.is_empty() {
            Ok(proven)
        } else {
            Err(refused)
        }
    }
}

fn require_cluster(
    file: &str,
    report: &NodeReport,
    cluster: &str,
    authority: Authority,
) -> Result<(), String> {
    match &report.cluster {
        Some(other) if other != cluster => Err(format!(
            "{file} is the report of a node of cluster {other:?}, but this node belongs to {cluster:?}"
        )),
        Some(_) => Ok(()),
        None => Err(format!(
            "{file} does not name the cluster of {}: that worker could not read the ConfigMap kube-system/kubeadm-config (run `nodepki renew` there while the cluster is reachable, then write the report again with nodepki authority status {authority} -o json)",
            report.node
        )),
    }
}

/// Returns the proof that the node of a report meets a requirement, or why it does not.
fn judge_report(
    file: &str,
    report: &NodeReport,
    authority: Authority,
    need: PeerRequirement<'_>,
    now: OffsetDateTime,
) -> Result<String, String> {
    let node = &report.node;
    if now - report.at > MAX_REPORT_AGE {
        return Err(format!(
            "{file} is too old: {node} may have changed since {} (write the report again with nodepki authority status {authority} -o json on that node)",
            rfc3339(report.at)
        ));
    }
    let mut rows = report.authorities.iter();
    let Some(row) = rows.find(|row| row.authority == authority) else {
        return Err(format!("{file} does not report {authority} on {node}"));
    };
    match need.unmet(row) {
        Some(why) => Err(format!(
            "{node} does not meet the requirement of this step, according to {file}: {why} (run nodepki authority there first)"
        )),
        None => Ok(format!(
            "{node} meets the requirement of this step, according to {file}"
        )),
    }
}

fn unreported(
    nodes: &Nodes,
    reported: &BTreeSet<&str>,
    authority: Authority,
    need: PeerRequirement<'_>,
) -> Option<String> {
    let how = format!(
        "run `nodepki authority status {authority} -o json > NODE.json` there and name each file with --peer-report, or add {} if you are certain",
        need.statement()
    );
    match nodes {
        Nodes::Listed(nodes) => {
            let left: Vec<&str> = nodes
                .iter()
                .map(String::as_str)
                .filter(|node| !reported.contains(node))
                .collect();
            (!left.is_empty()).then(|| {
                format!(
                    "the progress of {} is unknown, since a node can read its own files only ({how})",
                    left.join(", ")
                )
            })
        }
        Nodes::Unknown(why) => Some(format!(
            "the other nodes are unknown: {why} (name a working kubeconfig with --kubeconfig, and {how})"
        )),
    }
}
