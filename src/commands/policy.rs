//! `nodepki policy`: compares the keys of a node with its key policy, and prints that policy as an object of the cluster.

use clap::Subcommand;
use serde::Serialize;
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::now;
use super::options::{GlobalOptions, OutputFormat, SourceOptions};
use super::output::table::minute;
use super::output::{Closing, DocumentKind, print_message, text_style};
use crate::agent::{ExitCode, Failure};
use crate::kube::names::RegisteredName;
use crate::spec::compliance::{self, KeyUse, KeyVerdict};
use crate::spec::policy::definition;
use crate::table::{Cell, Emphasis, Table};
use crate::text::rfc3339;
use crate::yaml::format_duration;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Compare the key and the lifetime of each certificate, authority and the service-account pair with the policy
    ///
    /// The policy is that of the cluster (clusterPolicy), the pki block of the settings or an OpenShift PKI document; for
    /// certificates that nodepki issues otherwise kubeadm's encryptionAlgorithm. Keys of the kubelet, of an external etcd's
    /// client, of the etcd client CA and of kubelets for which this node has signed count too. Reads only.
    /// Exit status: 0 if everything was compared and complies; 65 if something does not comply; 75 if nothing is known to
    /// differ, but something is unknown: a file or the policy was not read.
    Check(SourceOptions),
    /// Print the definition of the resource PKI, for an API server that does not have OpenShift's
    ///
    /// The API server then refuses unknown algorithms, sizes, curves and names of certificates. Apply it with
    /// nodepki policy crd | kubectl apply -f -. Needs no configuration.
    Crd {
        /// A name of certificates.registered that overrides may have; may be given several times
        #[arg(long, value_name = "NAME")]
        registered: Vec<RegisteredName>,
    },
    /// Print this node's key policy as the object of the cluster
    ///
    /// Prints the rules that are in force: those of the cluster (clusterPolicy), of the pki block of the settings or of a PKI
    /// document. kubeadm's encryptionAlgorithm is not a rule and stays where it is. Reads only.
    Export(SourceOptions),
}

/// The body of the document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyBody {
    /// The verdict on all keys together.
    verdict: KeyVerdict,
    /// When the policy in force was written to the cluster, if it is the cluster's.
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    policy_since: Option<OffsetDateTime>,
    keys: Vec<PolicyRow>,
    warnings: Vec<String>,
}

/// One key.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyRow {
    name: String,
    /// As in a policy; the service-account pair has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    required: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    required_lifetime: Option<String>,
    /// Length of the certificate's validity.
    #[serde(skip_serializing_if = "Option::is_none")]
    lifetime: Option<String>,
    verdict: KeyVerdict,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<String>,
    /// What was not compared, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<String>,
    /// When a renewal replaces the certificate, if it waits for that.
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    replaced_at: Option<OffsetDateTime>,
}

impl PolicyCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        match self {
            PolicyCommand::Check(sources) => check(sources, global),
            PolicyCommand::Crd { registered } => {
                let registered: Vec<String> = registered.iter().map(ToString::to_string).collect();
                global.print_value(&definition(&registered), OutputFormat::Yaml)
            }
            PolicyCommand::Export(sources) => export(sources, global),
        }
    }
}

fn export(sources: SourceOptions, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let loaded = global.load_running(&sources.inputs(global)?)?;
    let policy = &loaded.setup.plan.policy;
    let rules = policy.rules();
    print_message(&format!(
        "note: keys that no rule names follow kubeadm's encryptionAlgorithm, here {}",
        policy.kubeadm()
    ));
    let registered: Vec<String> = rules.registered_names().collect();
    if !registered.is_empty() {
        print_message(&format!(
            "note: the definition must know the registered certificates: nodepki policy crd --registered {}",
            registered.join(" --registered ")
        ));
    }
    global.print_value(&rules.to_object(), OutputFormat::Yaml)
}

fn check(sources: SourceOptions, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let loaded = global.load_running(&sources.inputs(global)?)?;
    let survey = loaded.setup.survey_of(&loaded.state, now())?;
    let keys = survey.all_key_uses(loaded.state.root(), now());
    let rows: Vec<PolicyRow> = keys.iter().map(row).collect();
    let unmatched = survey.unmatched_overrides(&keys);
    let unmatched = (!unmatched.is_empty()).then(|| {
        format!(
            "the policy has overrides for keys that this node does not have: {}",
            unmatched.join(", ")
        )
    });
    let body = PolicyBody {
        verdict: KeyVerdict::of_all(rows.iter().map(|row| row.verdict)),
        policy_since: loaded.policy_since,
        keys: rows,
        warnings: compliance::warnings(&keys)
            .into_iter()
            .chain(unmatched)
            .collect(),
    };
    let count = |wanted: KeyVerdict| {
        let verdicts = body.keys.iter().map(|row| row.verdict);
        verdicts.filter(|verdict| *verdict == wanted).count()
    };
    let (code, next) = match body.verdict {
        KeyVerdict::NotCompliant => (
            ExitCode::Refused,
            Some(
                "nodepki plan shows what a renewal changes; a CA is replaced with nodepki authority",
            ),
        ),
        KeyVerdict::Unknown => (
            ExitCode::Pending,
            Some("the lines below the rows name what was not compared, and why"),
        ),
        _ => (ExitCode::Done, None),
    };
    let closing = Closing::default()
        .or_nothing("no keys")
        .count(
            count(KeyVerdict::NotCompliant),
            "notCompliant",
            "not compliant",
        )
        .count(count(KeyVerdict::Unknown), "unknown", "unknown")
        .count(count(KeyVerdict::Compliant), "compliant", "compliant")
        .count(
            count(KeyVerdict::ChosenByKubelet),
            "chosenByKubelet",
            "chosen by kubelet",
        )
        .count(
            count(KeyVerdict::NotRequired),
            "notRequired",
            "without a policy",
        )
        .then(next.map(str::to_owned));
    global.print_document(DocumentKind::Policy, code, &closing, &body, || text(&body))
}

fn row(key: &KeyUse) -> PolicyRow {
    let judgement = compliance::judge(key);
    let is_waiting = judgement.verdict == KeyVerdict::NotCompliant;
    PolicyRow {
        name: key.owner.to_string(),
        category: key.owner.category().map(|category| category.as_str()),
        required: key.required.map(|required| required.to_string()),
        found: key.found.key_type().map(ToString::to_string),
        required_lifetime: key.required_lifetime.map(format_duration),
        lifetime: key.valid_for().map(format_duration),
        verdict: judgement.verdict,
        differences: judgement
            .differences
            .iter()
            .map(ToString::to_string)
            .collect(),
        unknown: judgement.unknown,
        replaced_at: key.replaced_at.filter(|_| is_waiting),
    }
}

fn text(body: &PolicyBody) -> String {
    let headings = [
        "NAME",
        "CATEGORY",
        "REQUIRED KEY",
        "KEY",
        "VERDICT",
        "REPLACED AT (UTC)",
    ];
    let mut table = Table::new(&headings);
    for row in &body.keys {
        let emphasis = match row.verdict {
            KeyVerdict::NotCompliant | KeyVerdict::Unknown => Emphasis::Error,
            _ => Emphasis::Plain,
        };
        let cells = vec![
            Cell::new(&row.name),
            Cell::optional(row.category),
            Cell::optional(row.required.as_deref()),
            Cell::optional(row.found.as_deref()),
            Cell::state(row.verdict.as_str(), emphasis),
            Cell::optional(row.replaced_at.map(minute)),
        ];
        let unknown = row.unknown.iter().map(|why| format!("unknown: {why}"));
        table.push(
            cells,
            row.differences.iter().cloned().chain(unknown).collect(),
        );
    }
    let mut text = table.render(text_style());
    if let Some(since) = body.policy_since {
        text.push_str(&format!("policy of the cluster since {}\n", rfc3339(since)));
    }
    for warning in &body.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}
