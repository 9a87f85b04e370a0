//! Text output of a diagnosis.

use super::catalogue::CHECKS;
use super::finding::Diagnosis;
use crate::text::printable;

/// Returns the findings by descending severity.
pub fn table(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        text.push_str(&format!(
            "{:<8} {}\n",
            finding.severity.as_str(),
            finding.id
        ));
        for evidence in &finding.evidence {
            text.push_str(&format!("    {}\n", printable(evidence)));
        }
        text.push_str(&format!("    fix: {}\n", indented(&finding.fix)));
    }
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

/// Indents all lines equally, so a manifest can be copied.
fn indented(text: &str) -> String {
    text.replace('\n', "\n    ")
}
