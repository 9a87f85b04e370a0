//! Text output of a diagnosis.

use super::catalogue::CHECKS;
use super::finding::{Diagnosis, FindingSeverity};
use crate::table::{Cell, Emphasis, TextStyle, fold};
use crate::text::printable;

/// Blanks before the continuation of evidence or a fix.
const HANGING: usize = 2;

/// Returns the findings by descending severity.
pub fn table(diagnosis: &Diagnosis, style: TextStyle) -> String {
    let mut text = String::new();
    for (index, finding) in diagnosis.findings.iter().enumerate() {
        let severity = format!("{:<8}", finding.severity.as_str());
        let emphasis = match finding.severity {
            FindingSeverity::Error => Emphasis::Error,
            FindingSeverity::Warning => Emphasis::Warning,
            FindingSeverity::Info => Emphasis::Plain,
        };
        let severity = Cell::state(severity, emphasis).coloured(style);
        text.push_str(&format!("{severity} {}\n", finding.id));
        for evidence in &finding.evidence {
            let evidence = format!("    {}\n", printable(evidence));
            text.push_str(&fold(&evidence, HANGING, style));
        }
        let mut earlier = diagnosis.findings.iter().take(index);
        if let Some(same) = earlier.find(|other| other.fix == finding.fix) {
            text.push_str(&format!("    fix: that of {}, above\n", same.id));
            continue;
        }
        let (fix, manifest) = match finding.fix.split_once('\n') {
            Some((fix, manifest)) => (fix, format!("\n{manifest}")),
            None => (finding.fix.as_str(), String::new()),
        };
        text.push_str(&fold(&format!("    fix: {fix}"), HANGING, style));
        text.push_str(&format!("{}\n", indented(&manifest)));
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
