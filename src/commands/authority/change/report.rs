//! The report of one node, and what the reports of others prove.
//!
//! Pure. A node sees its own files only; whether its peers are as far is in their reports, or in the word of a person.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::judge::{Evidence, Phase, fingerprint, named};
use crate::kube::names::Authority;
use crate::x509::{Certificate, rfc3339};

/// What an older report says may have been taken back since.
const FRESH: time::Duration = time::Duration::DAY;

/// What `nodepki authority status -o json` prints, and `--peer-report` reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The node's name.
    pub node: String,
    /// The cluster's name; `None` from a worker that could not read its ClusterConfiguration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// When the node was looked at.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The authorities of the node.
    pub authorities: Vec<AuthorityReport>,
}

/// One authority on one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityReport {
    /// kubeadm's name.
    pub authority: Authority,
    /// How far a change is.
    pub phase: Phase,
    /// `ca.crt`, in order.
    pub bundle: Vec<TrustedCertificate>,
    /// SHA-256 of the certificates that the bundle and every kubeconfig of the node have.
    pub trusted: Vec<String>,
    /// What the authority has signed.
    pub leaves: Vec<LeafReport>,
    /// Components that still run with what was there before, in words.
    pub restarts: Vec<String>,
    /// When the new certificate came to be trusted.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub staged: Option<OffsetDateTime>,
    /// When it came to be the CA.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub activated: Option<OffsetDateTime>,
    /// What the next step still lacks on this node; empty where it may be taken.
    pub missing: Vec<String>,
    /// The next step, when a change is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One certificate of a bundle.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrustedCertificate {
    /// Its subject.
    pub subject: String,
    /// SHA-256 of the certificate.
    pub sha256: String,
    /// SHA-256 of its public key, as pins have it.
    pub public_key_sha256: String,
    /// The end of its validity.
    #[serde(with = "time::serde::rfc3339")]
    pub not_after: OffsetDateTime,
    /// `old` or `new` during a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// One certificate of the authority.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeafReport {
    /// kubeadm's name, or what it is.
    pub name: String,
    /// SHA-256 of the certificates of the bundle that it leads to.
    pub under: Vec<String>,
}

impl AuthorityReport {
    /// A change is under way, and restarts are due before it takes effect.
    pub fn is_waiting(&self) -> bool {
        self.phase != Phase::Settled && !self.restarts.is_empty()
    }

    /// What the evidence comes to.
    pub fn of(evidence: &Evidence, now: OffsetDateTime) -> Self {
        let phase = evidence.phase();
        let change = evidence.under_way();
        let prints = |certificates: Vec<&Certificate>| -> Vec<String> {
            certificates.into_iter().map(fingerprint).collect()
        };
        let next = match phase {
            Phase::Settled => None,
            Phase::Staged => Some("activate"),
            Phase::Activated => Some("retire"),
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
                    public_key_sha256: crate::x509::hex(&one.public_key().sha256()),
                    not_after: one.not_after(),
                    role: match one {
                        _ if evidence.incoming() == Some(one) => Some("new".to_owned()),
                        _ if evidence.outgoing().contains(&one) => Some("old".to_owned()),
                        _ => None,
                    },
                })
                .collect(),
            trusted: prints(evidence.trusted_everywhere()),
            leaves: evidence
                .leaves
                .iter()
                .map(|leaf| LeafReport {
                    name: leaf.name.clone(),
                    under: prints(leaf.under(&evidence.bundle, now)),
                })
                .collect(),
            restarts: [evidence.restarts.clone(), evidence.rollbacks()].concat(),
            staged: change.map(|change| change.staged),
            activated: change.and_then(|change| change.activated),
            missing: match phase {
                Phase::Settled => evidence.unsettled(),
                Phase::Staged => evidence.unstaged(),
                Phase::Activated => evidence.unactivated(now),
            },
            next: next.map(|step| format!("nodepki authority {step} {}", evidence.authority)),
        }
    }
}

/// What the peers must have before a step is taken here.
#[derive(Clone, Copy, Debug)]
pub enum Need<'a> {
    /// They trust the new CA.
    Trusts(&'a Certificate),
    /// Everything of theirs is under the new CA.
    Uses(&'a Certificate),
    /// Nothing of theirs needs the new CA.
    DoesWithout(&'a Certificate),
}

impl Need<'_> {
    /// The option by which a person says it of all nodes.
    pub const fn statement(self) -> &'static str {
        match self {
            Need::Trusts(_) => "--all-nodes-staged",
            Need::Uses(_) => "--all-nodes-activated",
            Need::DoesWithout(_) => "--no-node-activated",
        }
    }

    /// What a report of `authority` lacks.
    fn lacks(self, report: &AuthorityReport) -> Option<String> {
        let waiting = || {
            (!report.restarts.is_empty())
                .then(|| format!("restarts are due there: {}", report.restarts.join("; ")))
        };
        let without = |lacks: &dyn Fn(&[String]) -> bool| -> Vec<&str> {
            let leaves = report.leaves.iter().filter(|leaf| lacks(&leaf.under));
            leaves.map(|leaf| leaf.name.as_str()).collect()
        };
        match self {
            Need::Trusts(new) => match report.trusted.contains(&fingerprint(new)) {
                true => waiting(),
                false => Some(format!("it does not trust {} everywhere", named(new))),
            },
            Need::Uses(new) => {
                let print = fingerprint(new);
                let left = without(&|under| !under.contains(&print));
                match left.as_slice() {
                    [] => waiting(),
                    left => Some(format!("{} not under {}", are(left), named(new))),
                }
            }
            Need::DoesWithout(new) => {
                let print = fingerprint(new);
                let only = without(&|under| under.iter().all(|one| *one == print));
                (!only.is_empty()).then(|| format!("{} under {} alone", are(&only), named(new)))
            }
        }
    }
}

fn are(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

/// What is known of the other nodes.
#[derive(Debug, Default)]
pub struct Peers {
    /// Their reports, each with the file that it came in.
    pub reports: Vec<(String, NodeReport)>,
    /// A person says that it is so on all nodes.
    pub stated: bool,
}

/// The nodes of the cluster that an authority matters to.
#[derive(Debug)]
pub enum Nodes {
    /// As the API lists them.
    Listed(BTreeSet<String>),
    /// The API does not tell, and why.
    Unknown(String),
}

impl Peers {
    /// Whether all peers of the node `own` are as far.
    ///
    /// # Errors
    /// Everything that speaks against it or is unknown; the last sentence says what to do.
    pub fn prove(
        &self,
        (own, cluster): (&str, &str),
        authority: Authority,
        need: Need<'_>,
        nodes: &Nodes,
        now: OffsetDateTime,
    ) -> Result<Vec<String>, Vec<String>> {
        let mut proven = Vec::new();
        let mut refused = Vec::new();
        let mut reported = BTreeSet::from([own]);
        for (file, report) in &self.reports {
            match &report.cluster {
                Some(other) if other != cluster => {
                    refused.push(format!(
                        "{file} is the report of a node of the cluster {other:?}, this node is of {cluster:?}"
                    ));
                    continue;
                }
                Some(_) => {}
                None => {
                    refused.push(format!(
                        "{file} does not name the cluster of {}: that worker could not read the ConfigMap kube-system/kubeadm-config; run `nodepki renew` there while the cluster answers, then write the report again with nodepki authority status {authority} -o json",
                        report.node
                    ));
                    continue;
                }
            }
            reported.insert(&report.node);
            if report.node == own {
                continue;
            }
            if now - report.at > FRESH {
                refused.push(format!(
                    "{file} says how {} was at {}, which may have changed: have it written anew by nodepki authority status {authority} -o json on that node",
                    report.node,
                    rfc3339(report.at)
                ));
                continue;
            }
            let rows = &report.authorities;
            let row = rows.iter().find(|row| row.authority == authority);
            match row.map(|row| need.lacks(row)) {
                None => refused.push(format!(
                    "{file} says nothing of {authority} on {}",
                    report.node
                )),
                Some(Some(why)) => refused.push(format!(
                    "{} is not as far ({file}): {why}; run nodepki authority there first",
                    report.node
                )),
                Some(None) => proven.push(format!("{} is as far, by {file}", report.node)),
            }
        }
        if self.stated {
            proven.push(format!("all nodes are as far, says {}", need.statement()));
        } else {
            refused.extend(unreported(nodes, &reported, authority, need));
        }
        match refused.is_empty() {
            true => Ok(proven),
            false => Err(refused),
        }
    }
}

fn unreported(
    nodes: &Nodes,
    reported: &BTreeSet<&str>,
    authority: Authority,
    need: Need<'_>,
) -> Option<String> {
    let how = format!(
        "run `nodepki authority status {authority} -o json > NODE.json` there and give each file with --peer-report, or say {} if you know it",
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
                    "nothing is known of {}: of the other nodes this one sees nothing; {how}",
                    left.join(", ")
                )
            })
        }
        Nodes::Unknown(why) => Some(format!(
            "which other nodes there are is not known ({why}), and of them this one sees nothing; name a kubeconfig that works with --kubeconfig and {how}"
        )),
    }
}
