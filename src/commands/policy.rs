//! `nodepki policy check`: the keys of a node against its key policy.

use clap::{Args, Subcommand};
use serde::Serialize;
use time::OffsetDateTime;

use super::now;
use super::options::{GlobalOptions, SourceOptions};
use super::output::table::minute;
use super::output::{Closing, DocumentKind, print_warnings, text_style};
use crate::agent::{ExitCode, Failure};
use crate::spec::compliance::{self, FoundKey, KeyUse, KeyVerdict};
use crate::table::{Cell, Emphasis, Table};

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Compare the key algorithm of each certificate, authority and the service-account pair with the policy
    ///
    /// The policy is that of the cluster (clusterPolicy), the pki block of the settings or an OpenShift PKI document; for
    /// certificates of this node otherwise kubeadm's encryptionAlgorithm. Reads only.
    /// Exit status: 0 if every key that exists complies; 65 otherwise.
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    sources: SourceOptions,
}

/// The body of the document.
#[derive(Serialize)]
struct PolicyBody {
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
    /// When a renewal replaces the key, if it waits for that.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    replaced_at: Option<OffsetDateTime>,
}

impl PolicyCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let PolicyCommand::Check(arguments) = self;
        let loaded = global.load_running(&arguments.sources.inputs(global)?)?;
        print_warnings(&loaded.warnings);
        let keys = loaded.setup.survey_of(&loaded.state, now())?.key_uses();
        let body = PolicyBody {
            keys: keys.iter().map(row).collect(),
            warnings: compliance::warnings(&keys),
        };
        let count = |wanted: fn(KeyVerdict) -> bool| {
            let verdicts = body.keys.iter().map(|row| row.verdict);
            verdicts.filter(|verdict| wanted(*verdict)).count()
        };
        let violations = count(KeyVerdict::is_violation);
        let complying = count(|verdict| verdict == KeyVerdict::Compliant);
        let next =
            "nodepki plan shows what a renewal changes; a CA is replaced with nodepki authority";
        let closing = Closing::default()
            .or_nothing("no keys")
            .count(violations, "notCompliant", "not compliant")
            .count(complying, "compliant", "compliant")
            .then((violations > 0).then(|| next.to_owned()));
        let code = match violations {
            0 => ExitCode::Done,
            _ => ExitCode::Refused,
        };
        global.print_document(DocumentKind::Policy, code, &closing, &body, || text(&body))?;
        Ok(code)
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
        replaced_at: key.replaced_at,
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
        let emphasis = match row.verdict.is_violation() {
            true => Emphasis::Error,
            false => Emphasis::Plain,
        };
        let cells = vec![
            Cell::new(&row.name),
            Cell::optional(row.category),
            Cell::optional(row.required.as_deref()),
            Cell::optional(row.found.as_deref()),
            Cell::state(row.verdict.as_str(), emphasis),
            Cell::optional(row.replaced_at.map(minute)),
        ];
        table.push(cells, Vec::new());
    }
    let mut text = table.render(text_style());
    for warning in &body.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}
