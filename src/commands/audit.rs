//! `nodepki audit verify` and `audit show`: the issuance log of a node.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::options::GlobalOptions;
use super::output::{Closing, DocumentKind, plural, text_style};
use super::renew::unknown_name;
use crate::agent::{ExitCode, Failure};
use crate::kube::names::CertName;
use crate::store::{AuditEntry, AuditVerification};
use crate::table::{Cell, Emphasis, Table};
use crate::text::rfc3339;

/// Length of a SHA-256 in hexadecimal.
const DIGEST_LENGTH: usize = 64;

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Verify that no entry of the issuance log was changed, removed or inserted
    ///
    /// A user with the rights of root can write the whole log again. Compare it with a digest that the journal forwarded
    /// to another machine: --head HASH, the field NODEPKI_SHA256 of the messages audit-recorded.
    ///
    /// Exit status: 0 if the chain is intact, also for an empty log; 65 with file, line and what differs.
    Verify(VerifyArgs),
    /// Show the entries of the issuance log: who requested which certificate from which signer, and what came of it
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// SHA-256 that an entry must have, in hexadecimal
    #[arg(long, value_name = "HASH", value_parser = parse_digest)]
    head: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Only entries of this certificate, for example apiserver
    #[arg(long, value_name = "NAME")]
    certificate: Option<String>,
    /// Only entries of the certificate with this serial number, in hexadecimal, with the request that led to it
    #[arg(long, value_name = "SERIAL")]
    serial: Option<String>,
}

fn parse_digest(text: &str) -> Result<String, String> {
    if text.len() == DIGEST_LENGTH && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("a SHA-256 has 64 hexadecimal digits".to_owned())
    }
}

/// The body of `audit verify`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VerificationBody<'a> {
    /// The log on this machine.
    log: String,
    entries: u64,
    /// Number of the first entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    /// The last entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<EntryName<'a>>,
    /// The entry with the digest of `--head`.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<u64>,
    differences: Vec<DifferenceRow<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct EntryName<'a> {
    seq: u64,
    sha256: &'a str,
}

#[derive(Serialize)]
struct DifferenceRow<'a> {
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    what: &'a str,
}

/// The body of `audit show`.
#[derive(Serialize)]
struct EntriesBody {
    items: Vec<EntryRow>,
}

/// An entry with the digest of its line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EntryRow {
    line_sha256: String,
    #[serde(flatten)]
    entry: AuditEntry,
}

impl AuditCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        match self {
            AuditCommand::Verify(arguments) => arguments.run(global),
            AuditCommand::Show(arguments) => arguments.run(global),
        }
    }
}

impl VerifyArgs {
    fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let verified = root.verify_audit(self.head.as_deref(), |_, _| {})?;
        let body = VerificationBody {
            log: root.audit_path().display().to_string(),
            entries: verified.entries,
            first: verified.first,
            head: verified.head.as_ref().map(|head| EntryName {
                seq: head.seq,
                sha256: &head.sha256,
            }),
            found: verified.found.map(|(seq, _)| seq),
            differences: verified
                .differences
                .iter()
                .map(|one| DifferenceRow {
                    file: &one.file,
                    line: one.line,
                    what: &one.what,
                })
                .collect(),
            notes: &verified.notes,
        };
        let differences = verified.differences.len();
        let code = match differences {
            0 => ExitCode::Done,
            _ => ExitCode::Refused,
        };
        let noun = plural(differences, "difference");
        let entries = usize::try_from(verified.entries).unwrap_or(usize::MAX);
        let next = "compare the log with the journal (journalctl -t nodepki) and with the log of the CA, by serial number";
        let closing = Closing::default()
            .or_nothing("no entries")
            .count(differences, "differences", &noun)
            .count(entries, "entries", plural_entries(entries))
            .then((differences > 0).then(|| next.to_owned()));
        global.print_document(
            DocumentKind::AuditVerification,
            code,
            &closing,
            &body,
            || verification_text(&verified),
        )
    }
}

fn plural_entries(count: usize) -> String {
    match count {
        1 => "entry".to_owned(),
        _ => "entries".to_owned(),
    }
}

fn verification_text(verified: &AuditVerification) -> String {
    let mut text = String::new();
    for one in &verified.differences {
        let line = one.line.map(|line| format!(", line {line}"));
        text.push_str(&format!(
            "{}{}: {}\n",
            one.file,
            line.unwrap_or_default(),
            one.what
        ));
    }
    for note in &verified.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    if let Some((seq, time)) = verified.found {
        text.push_str(&format!(
            "entry {seq} of {} has the digest: the log is unchanged up to this entry\n",
            rfc3339(time)
        ));
    }
    if verified.differences.is_empty() && verified.entries > 0 {
        text.push_str("the log is intact: each entry continues the chain of the entries before\n");
    }
    if let Some(head) = &verified.head {
        text.push_str(&format!(
            "head: entry {}, sha256 {}\n",
            head.seq, head.sha256
        ));
    }
    text
}

impl ShowArgs {
    fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let mut items: Vec<EntryRow> = Vec::new();
        let verified = root.verify_audit(None, |entry, sha256| {
            items.push(EntryRow {
                line_sha256: sha256.to_owned(),
                entry,
            });
        })?;
        let known: BTreeSet<String> = items
            .iter()
            .filter_map(|row| row.entry.text("certificate").map(str::to_owned))
            .collect();
        if let Some(name) = self
            .certificate
            .as_ref()
            .filter(|name| !known.contains(*name))
        {
            Self::require_known(name, &known)?;
        }
        self.filter(&mut items);
        let body = EntriesBody { items };
        let count = body.items.len();
        let command = "nodepki audit verify";
        let closing = Closing::default()
            .or_nothing("no entries")
            .count(count, "entries", plural_entries(count))
            .then((!verified.differences.is_empty()).then(|| command.to_owned()));
        global.print_document(
            DocumentKind::AuditEntries,
            ExitCode::Done,
            &closing,
            &body,
            || entries_text(&body),
        )
    }

    /// Fails for a name that no entry has, unless it is the name of a certificate and the log is empty.
    fn require_known(name: &str, known: &BTreeSet<String>) -> Result<(), Failure> {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let is_always_defined = |name: &str| CertName::ALL.iter().any(|one| one.as_str() == name);
        if !is_always_defined(name) {
            let mut registered = known;
            registered.retain(|one| !is_always_defined(one));
            return Err(unknown_name(name, &registered));
        }
        if known.is_empty() {
            return Ok(());
        }
        let names = known.join(", ");
        let message = format!("{name}: the log has no entry of it (use one of {names})");
        Err(Failure::usage(message))
    }

    fn filter(&self, items: &mut Vec<EntryRow>) {
        if let Some(name) = &self.certificate {
            let named = |row: &EntryRow| row.entry.text("certificate") == Some(name.as_str());
            items.retain(named);
        }
        let Some(serial) = &self.serial else { return };
        // As OpenSSL and browsers print it.
        let plain = |text: &str| text.replace(':', "").to_ascii_lowercase();
        let serial = plain(serial);
        let is_of_serial = |row: &EntryRow| {
            let found = row.entry.text("serial").map(plain);
            found.as_ref() == Some(&serial)
        };
        let ids: Vec<String> = items
            .iter()
            .filter(|row| is_of_serial(row))
            .filter_map(|row| row.entry.text("requestId").map(str::to_owned))
            .collect();
        items.retain(|row| {
            let id = row.entry.text("requestId");
            is_of_serial(row) || id.is_some_and(|id| ids.iter().any(|one| one == id))
        });
    }
}

fn entries_text(body: &EntriesBody) -> String {
    let headings = [
        "SEQ",
        "TIME (UTC)",
        "EVENT",
        "CERTIFICATE",
        "SIGNER",
        "SERIAL",
    ];
    let mut table = Table::new(&headings);
    for EntryRow { entry, .. } in &body.items {
        let emphasis = match entry.event.as_str() {
            "denied" | "refused" | "failed" | "rolled-back" => Emphasis::Error,
            "torn" | "pruned" => Emphasis::Warning,
            _ => Emphasis::Plain,
        };
        let cells = vec![
            Cell::new(entry.seq.to_string()),
            Cell::new(rfc3339(entry.time)),
            Cell::state(&entry.event, emphasis),
            Cell::optional(entry.text("certificate").or(entry.text("authority"))),
            Cell::optional(entry.text("signer").or(entry.text("component"))),
            Cell::optional(entry.text("serial")),
        ];
        table.push(cells, details(entry));
    }
    if body.items.is_empty() {
        String::new()
    } else {
        table.render(text_style())
    }
}

/// Returns the indented lines below an entry.
fn details(entry: &AuditEntry) -> Vec<String> {
    let fields = ["action", "object", "requester", "notAfter", "csrSha256"];
    let shown = |name: &str| {
        let value = entry.fields.get(name)?;
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        Some(format!("{name} {text}"))
    };
    let mut lines: Vec<String> = Vec::new();
    let facts: Vec<String> = fields.iter().filter_map(|name| shown(name)).collect();
    if !facts.is_empty() {
        lines.push(facts.join(", "));
    }
    lines.extend(
        entry
            .fields
            .get("reason")
            .and_then(Value::as_str)
            .map(str::to_owned),
    );
    lines
}
