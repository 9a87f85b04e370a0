//! `nodepki status NAME`: one certificate in full, for a person.

use time::OffsetDateTime;

use super::text::{request_phase, residual, state_cell};
use super::{AuthorityStatus, CertStatus, Facts, PendingStatus};
use crate::kube::components::{ReplacedFile, component_using, components_to_restart};
use crate::kube::names::CertName;
use crate::store::AuditEntry;
use crate::table::{Cell, Table, TextStyle};
use crate::text::rfc3339;

/// Number of entries of the issuance log that are shown.
const MAX_ENTRIES: usize = 8;

/// What is known of one certificate.
pub struct CertificateDetail<'a> {
    /// Its row.
    pub row: &'a CertStatus,
    /// The authority on this node that should have signed it.
    pub authority: Option<&'a AuthorityStatus>,
    /// Name of the configured signer.
    pub signer: Option<&'a str>,
    /// The request that waits for the signer.
    pub pending: Option<&'a PendingStatus>,
    /// When its age makes it due; `None` without a certificate or a usable configuration.
    pub due: Option<OffsetDateTime>,
    /// Its entries of the issuance log, oldest first.
    pub entries: &'a [AuditEntry],
}

/// Rows of a label and its value.
struct Rows(Table);

impl Rows {
    fn push(&mut self, label: &str, value: impl AsRef<str>) {
        self.push_cell(label, Cell::new(value));
    }

    fn push_cell(&mut self, label: &str, value: Cell) {
        self.0.push(vec![Cell::new(label), value], Vec::new());
    }
}

impl CertificateDetail<'_> {
    /// Returns a line for each fact.
    pub fn text(&self, style: TextStyle) -> String {
        let row = self.row;
        let mut rows = Rows(Table::untitled().wrapping_last());
        rows.push("certificate", row.name.as_str());
        if let Some(description) = &row.description {
            rows.push("purpose", description);
        }
        rows.push_cell("state", state_cell(row.state));
        rows.push("phase", row.phase.as_str());
        for fault in &row.findings.faults {
            rows.push("problem", fault.to_string());
        }
        for remark in &row.findings.remarks {
            rows.push("remark", remark.to_string());
        }
        if let Some(facts) = &row.certificate {
            push_facts(&mut rows, facts);
            self.push_chain(&mut rows, facts);
        }
        if let Some(verdict) = row.key_policy {
            rows.push("key policy", verdict.as_str());
        }
        for file in &row.files {
            let mode = file.access.map(|access| format!("{:04o}", access.mode));
            let mode = mode.unwrap_or_else(|| "absent".to_owned());
            rows.push("file", format!("{} ({mode})", file.path));
        }
        if let Some(server) = row.kubeconfig.as_ref().and_then(|one| one.server.as_ref()) {
            rows.push("API server", server);
        }
        rows.push("used by", users(row.name));
        self.push_life(&mut rows);
        rows.0.render(style)
    }

    fn push_chain(&self, rows: &mut Rows, facts: &Facts) {
        rows.push("issuer", &facts.issuer);
        for intermediate in &facts.intermediates {
            rows.push("followed by", intermediate);
        }
        let Some(authority) = self.authority else {
            return;
        };
        let verdict = match self.row.verified {
            Some(true) => "verifies under",
            Some(false) => "does not verify under",
            None => "cannot be verified under",
        };
        let mut text = format!("{verdict} {}", authority.name);
        if let Some(ca) = authority.certificates.first() {
            let until = rfc3339(ca.not_after);
            text.push_str(&format!(" ({}, until {until}, {})", ca.subject, ca.pin));
        }
        rows.push("authority", text);
    }

    /// Adds the request, the renewal and the history.
    fn push_life(&self, rows: &mut Rows) {
        if let Some(signer) = self.signer {
            rows.push("signer", signer);
        }
        if let Some(pending) = self.pending {
            let mut text = request_phase(pending).to_owned();
            if let Some(signer) = &pending.signer {
                text.push_str(&format!(", signer {signer}"));
            }
            if let Some(since) = pending.since {
                text.push_str(&format!(", since {}", rfc3339(since)));
            }
            rows.push("request", text);
            if let Some(error) = &pending.last_error {
                let at = rfc3339(error.at);
                rows.push("last error", format!("{at} {}", error.detail));
            }
        }
        if let Some(issued) = self.row.issued {
            rows.push("installed", rfc3339(issued));
        }
        if let Some(due) = self.due {
            rows.push("renewal", format!("due at {}", rfc3339(due)));
        }
        let skipped = self.entries.len().saturating_sub(MAX_ENTRIES);
        for entry in self.entries.iter().skip(skipped) {
            rows.push("log", log_line(entry));
        }
        if skipped > 0 {
            let name = self.row.name;
            rows.push(
                "log",
                format!("{skipped} earlier entries: nodepki audit show --certificate {name}"),
            );
        }
    }
}

fn push_facts(rows: &mut Rows, facts: &Facts) {
    rows.push("subject", &facts.subject);
    if !facts.sans.is_empty() {
        rows.push("names", facts.sans.join(", "));
    }
    if !facts.usages.is_empty() {
        rows.push("usages", facts.usages.join(", "));
    }
    rows.push("key", format!("{}, {}", facts.key, facts.pin));
    rows.push("serial", &facts.serial);
    rows.push("fingerprint", format!("sha256:{}", facts.fingerprint));
    rows.push("not before", rfc3339(facts.not_before));
    let left = residual(facts);
    rows.push(
        "not after",
        format!("{} ({left})", rfc3339(facts.not_after)),
    );
}

/// Returns the programs that use a certificate, and whether a renewal restarts them.
fn users(name: CertName) -> String {
    let component = match (component_using(name), name) {
        (Some(component), _) => component,
        (None, CertName::NodepkiConf) => return "nodepki".to_owned(),
        (None, CertName::Registered(_)) => {
            return "programs that the configuration does not name".to_owned();
        }
        (None, _) => return "administrators, not by a component".to_owned(),
    };
    if components_to_restart(ReplacedFile::Certificate(name)).is_empty() {
        format!("{component}, which reads a new one without a restart")
    } else {
        format!("{component}, which a renewal restarts")
    }
}

/// Returns an entry of the issuance log in one line.
fn log_line(entry: &AuditEntry) -> String {
    let fields = ["action", "signer", "serial", "component", "reason"];
    let fields: Vec<String> = fields
        .into_iter()
        .filter_map(|name| Some(format!("{name} {}", entry.text(name)?)))
        .collect();
    let separator = if fields.is_empty() { "" } else { ": " };
    format!(
        "{} {}{separator}{}",
        rfc3339(entry.time),
        entry.event,
        fields.join(", ")
    )
}
