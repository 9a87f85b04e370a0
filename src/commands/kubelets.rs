//! `nodepki kubelets`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde::Serialize;
use time::OffsetDateTime;

use super::options::{GlobalOptions, SourceOptions};
use super::output::{Closing, DocumentKind, ListBody, table};
use super::{now, runtime};
use crate::agent::kubelet_requests::{HandDecision, ListedRequest, RequestDesk};
use crate::agent::load::{self, KubeconfigFile};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::text::rfc3339;

#[derive(Debug, Subcommand)]
pub(super) enum KubeletsCommand {
    /// List the CertificateSigningRequests of kubelets, with the rule that each does not satisfy
    List(AccessOptions),
    /// Approve a request that waits for an administrator
    ///
    /// The approval of an administrator replaces the rule that a bootstrap token must not take over the identity of a
    /// Node. A node with a name of the control plane can renew its certificate only if its Node has the label of
    /// control-plane nodes. Exit status: 65 for a request that another rule refuses.
    Approve {
        /// Name of the CertificateSigningRequest
        name: String,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Deny a request
    Deny {
        /// Name of the CertificateSigningRequest
        name: String,
        /// Sentence for the requester
        #[arg(
            long,
            value_name = "TEXT",
            default_value = "denied with nodepki kubelets deny"
        )]
        reason: String,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Revoke the name of a node: no certificate is signed for it any more
    ///
    /// The name is recorded in the cluster, for all control-plane nodes. Certificates that the node already has stay valid
    /// until they expire, as kube-apiserver checks no revocation list: delete the Node too.
    Revoke {
        /// Name of the node
        name: String,
        /// End the revocation
        #[arg(long)]
        undo: bool,
        #[command(flatten)]
        access: AccessOptions,
    },
}

#[derive(Debug, Args)]
pub(super) struct AccessOptions {
    #[command(flatten)]
    sources: SourceOptions,
    /// Access the cluster with this kubeconfig, instead of the node's /etc/kubernetes/admin.conf
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
}

/// A request in JSON and YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownRequest<'a> {
    name: &'a str,
    uid: &'a str,
    certificate: &'static str,
    requester: &'a str,
    created: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

impl<'a> From<&'a ListedRequest> for ShownRequest<'a> {
    fn from(request: &'a ListedRequest) -> Self {
        ShownRequest {
            name: &request.name,
            uid: &request.uid,
            certificate: request.certificate.as_str(),
            requester: &request.requester,
            created: rfc3339(request.created),
            state: request.state,
            reason: request.finding.as_ref().map(|(reason, _)| reason.as_str()),
            message: request
                .finding
                .as_ref()
                .map(|(_, message)| message.as_str()),
        }
    }
}

impl KubeletsCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        match self {
            KubeletsCommand::List(access) => {
                let requests = runtime()?.block_on(async {
                    let desk = access.desk(global)?;
                    desk.list().await
                })?;
                print_requests(global, &requests, || as_table(&requests, now()))
            }
            KubeletsCommand::Approve { name, access } => {
                access.decide(global, &name, HandDecision::Approve)
            }
            KubeletsCommand::Deny {
                name,
                reason,
                access,
            } => access.decide(global, &name, HandDecision::Deny(&reason)),
            KubeletsCommand::Revoke { name, undo, access } => access.revoke(global, &name, !undo),
        }
    }
}

impl AccessOptions {
    fn desk(self, global: &GlobalOptions) -> Result<RequestDesk, Failure> {
        let root = global.open_root()?;
        let loaded = load::load(&root, &self.sources.inputs(global)?, now())?;
        let kubeconfig = KubeconfigFile::of_admin(self.kubeconfig.as_ref());
        let api = load::cluster(&root, kubeconfig)?;
        RequestDesk::new(api, &loaded, now)
    }

    fn decide(
        self,
        global: &GlobalOptions,
        name: &str,
        decision: HandDecision<'_>,
    ) -> Result<ExitCode, Failure> {
        let decided = runtime()?.block_on(async {
            let desk = self.desk(global)?;
            desk.decide(name, decision).await
        })?;
        let done = match decision {
            HandDecision::Approve => "approved",
            HandDecision::Deny(_) => "denied",
        };
        let text = format!("{name}: {done} ({})\n", decided.requester);
        let after = ListedRequest {
            state: done,
            finding: None,
            ..decided
        };
        print_requests(global, &[after], || text)
    }
}

impl AccessOptions {
    fn revoke(
        self,
        global: &GlobalOptions,
        name: &str,
        revokes: bool,
    ) -> Result<ExitCode, Failure> {
        let has_changed = runtime()?.block_on(async {
            let desk = self.desk(global)?;
            desk.revoke(name, revokes).await
        })?;
        let already = if has_changed { "" } else { "already " };
        let text = if revokes {
            format!(
                "{name}: {already}revoked; certificates that it has stay valid until they expire (next: kubectl delete node {name})\n"
            )
        } else {
            format!("{name}: {already}not revoked\n")
        };
        let nothing: [ShownRequest<'_>; 0] = [];
        let (kind, body) = (DocumentKind::KubeletRequests, ListBody { items: &nothing });
        global.print_body(kind, ExitCode::Done, &body, || text)
    }
}

/// Prints `text` and the number of requests in each state, or the document.
fn print_requests(
    global: &GlobalOptions,
    requests: &[ListedRequest],
    text: impl FnOnce() -> String,
) -> Result<ExitCode, Failure> {
    let mut states: BTreeMap<&'static str, usize> = BTreeMap::new();
    for request in requests {
        *states.entry(request.state).or_default() += 1;
    }
    let closing = states.into_iter().fold(
        Closing::default().or_nothing("no kubelet has requested a certificate"),
        |closing, (state, count)| closing.count(count, state, state),
    );
    let shown: Vec<ShownRequest<'_>> = requests.iter().map(Into::into).collect();
    let (kind, body) = (DocumentKind::KubeletRequests, ListBody { items: &shown });
    global.print_document(kind, ExitCode::Done, &closing, &body, text)
}

/// Returns the requests as a table, with the finding below its row.
fn as_table(requests: &[ListedRequest], now: OffsetDateTime) -> String {
    if requests.is_empty() {
        return String::new();
    }
    let rows = requests.iter().map(|request| {
        let cells = vec![
            request.name.clone(),
            age(now - request.created),
            request.certificate.to_string(),
            request.requester.clone(),
            request.state.to_owned(),
        ];
        let finding = request.finding.iter();
        let details = finding.map(|(reason, message)| format!("{reason}: {message}"));
        (cells, details.collect())
    });
    let header = ["NAME", "AGE", "CERTIFICATE", "REQUESTER", "STATE"];
    table::aligned(&header, rows.collect())
}

/// Returns the largest unit of an age, as kubectl does: `45s`, `3m`, `2h`, `5d`.
fn age(age: time::Duration) -> String {
    let seconds = age.whole_seconds().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::kube::csr_object::KubeletCertificate;

    #[test]
    fn lists_requests_with_the_rule_below() {
        let now = datetime!(2026-06-01 12:00 UTC);
        let request = ListedRequest {
            name: "csr-a".to_owned(),
            uid: "1".to_owned(),
            certificate: KubeletCertificate::Serving,
            requester: "system:node:w1\u{1b}[2J".to_owned(),
            created: now - time::Duration::minutes(5),
            state: "pending",
            finding: Some(("SanRequired".to_owned(), "no name".to_owned())),
        };
        let text = as_table(&[request], now);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].starts_with("csr-a  5m   serving"), "{text}");
        assert_eq!(lines[2], "    SanRequired: no name");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn shows_age_in_its_largest_unit() {
        let ages = [-5, 119, 120, 7200, 200_000].map(|s| age(time::Duration::seconds(s)));
        assert_eq!(ages, ["0s", "119s", "2m", "2h", "2d"]);
    }
}
