//! Text output of a diagnosis.

use super::catalogue::CHECKS;
use super::finding::{Diagnosis, FindingSeverity};
use crate::x509::is_hidden;

/// Returns the findings by descending severity, and a last line with their number.
pub fn table(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        text.push_str(&format!(
            "{:<8} {}\n",
            finding.severity.as_str(),
            finding.id
        ));
        for evidence in &finding.evidence {
            text.push_str(&format!("    {}\n", visible(evidence)));
        }
        text.push_str(&format!("    fix: {}\n", indented(&finding.fix)));
    }
    let count = |severity| {
        let findings = diagnosis.findings.iter();
        findings
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let sum: Vec<String> = [
        FindingSeverity::Error,
        FindingSeverity::Warning,
        FindingSeverity::Info,
    ]
    .into_iter()
    .map(|severity| {
        let name = severity.as_str();
        match (count(severity), severity) {
            (count, FindingSeverity::Info) => format!("{count} {name}"),
            (1, _) => format!("1 {name}"),
            (count, _) => format!("{count} {name}s"),
        }
    })
    .collect();
    text.push_str(&format!("{}\n", sum.join(", ")));
    text
}

/// Returns all checks with their meaning.
pub fn list() -> String {
    let width = CHECKS.iter().map(|check| check.id.len()).max().unwrap_or(0);
    CHECKS
        .iter()
        .map(|check| {
            let severities: Vec<&str> = check.severities.iter().map(|one| one.as_str()).collect();
            format!(
                "{:width$}  {:20}  {}\n",
                check.id,
                severities.join(", "),
                check.meaning
            )
        })
        .collect()
}

/// Escapes hidden characters, which a file may contain.
fn visible(text: &str) -> String {
    text.chars()
        .flat_map(|c| match is_hidden(c) {
            true => c.escape_default().collect(),
            false => vec![c],
        })
        .collect()
}

/// Indents all lines equally, so that a manifest can be copied.
fn indented(text: &str) -> String {
    text.replace('\n', "\n    ")
}
