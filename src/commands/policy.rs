//! `nodepki policy check`: the keys of a node against its key policy.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::now;
use super::options::{GlobalOptions, SourceOptions};
use super::output::{print_warnings, table};
use crate::agent::{ExitCode, Failure};
use crate::config::API_VERSION;
use crate::spec::compliance::{self, FoundKey, KeyUse, KeyVerdict};

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Compare the key algorithm of each certificate, authority and the service-account pair with the policy
    ///
    /// The policy is the pki block of the settings or an OpenShift PKI document; for certificates of this node otherwise
    /// kubeadm's encryptionAlgorithm. Reads only.
    /// Exit status: 0 if every key that exists complies; 65 otherwise.
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    sources: SourceOptions,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyReport {
    api_version: &'static str,
    kind: &'static str,
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
    verdict: KeyVerdict,
}

impl PolicyCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let PolicyCommand::Check(arguments) = self;
        let loaded = global.load_running(&arguments.sources.inputs(global)?)?;
        print_warnings(&loaded.warnings);
        let keys = loaded.setup.survey_of(&loaded.state, now())?.key_uses();
        let report = PolicyReport {
            api_version: API_VERSION,
            kind: "PolicyReport",
            keys: keys.iter().map(row).collect(),
            warnings: compliance::warnings(&keys),
        };
        global.print_either(&report, || text(&report))?;
        match report.keys.iter().any(|row| row.verdict.is_violation()) {
            true => Ok(ExitCode::Refused),
            false => Ok(ExitCode::Done),
        }
    }
}

fn row(key: &KeyUse) -> PolicyRow {
    PolicyRow {
        name: key.owner.to_string(),
        category: key.owner.category().map(|category| category.as_str()),
        required: key.required.map(|required| required.to_string()),
        found: match &key.found {
            FoundKey::Key(found) | FoundKey::OfKubelet(found) => Some(found.to_string()),
            FoundKey::Absent | FoundKey::Unreadable => None,
        },
        verdict: compliance::judge(key),
    }
}

fn text(report: &PolicyReport) -> String {
    let cells = report.keys.iter().map(|row| {
        let cells = vec![
            row.name.clone(),
            or_dash(row.category),
            or_dash(row.required.as_deref()),
            or_dash(row.found.as_deref()),
            row.verdict.to_string(),
        ];
        (cells, Vec::new())
    });
    let header = ["NAME", "CATEGORY", "REQUIRED KEY", "KEY", "VERDICT"];
    let mut text = table::aligned(&header, cells.collect());
    for warning in &report.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    let violations: Vec<&str> = report
        .keys
        .iter()
        .filter(|row| row.verdict.is_violation())
        .map(|row| row.name.as_str())
        .collect();
    text.push_str(&match violations.is_empty() {
        true => "every key complies with the policy\n".to_owned(),
        false => format!(
            "{} of {} keys do not comply: {}; next: nodepki plan (certificates are renewed with the required key, a CA is replaced with nodepki authority)\n",
            violations.len(),
            report.keys.len(),
            violations.join(", ")
        ),
    });
    text
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}
