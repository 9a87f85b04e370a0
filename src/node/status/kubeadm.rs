//! The report of `kubeadm certs check-expiration`, byte for byte, for programs that parse it.
//!
//! kubeadm fails if a file is damaged, if a leaf of a CA without a key has expired, or if a CA certificate is absent.
//! This report includes such a certificate: with its expiry if that can be read, otherwise as missing.
//! [`kubeadm_notes`] returns the facts that the format cannot express.

use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::UtcOffset;
use time::macros::format_description;

use super::tabwriter::align;
use super::{NodeRole, NodeStatus, RowState, RowSubject, human_duration};
use crate::kube::names::{Authority, CertName};

/// Returns the table.
pub fn kubeadm_table(status: &NodeStatus) -> String {
    let info = ExpirationReport::of(status);
    let mut lines = vec![cells([
        "CERTIFICATE",
        "EXPIRES",
        "RESIDUAL TIME",
        "CERTIFICATE AUTHORITY",
        "EXTERNALLY MANAGED",
    ])];
    for row in &info.certificates {
        lines.push(match row.not_after {
            Some(not_after) => cells([
                &row.name,
                &date(not_after),
                &human_duration(row.residual),
                row.authority.map_or("", Authority::as_str),
                yes_no(row.externally_managed),
            ]),
            None => cells([&format!("!MISSING! {}", row.name), "", "", "", ""]),
        });
    }
    lines.push(cells([""]));
    lines.push(cells([
        "CERTIFICATE AUTHORITY",
        "EXPIRES",
        "RESIDUAL TIME",
        "EXTERNALLY MANAGED",
    ]));
    for row in &info.authorities {
        lines.push(match row.not_after {
            Some(not_after) => cells([
                &row.name,
                &date(not_after),
                &human_duration(row.residual),
                yes_no(row.externally_managed),
            ]),
            None => cells([&format!("!MISSING! {}", row.name), "", "", ""]),
        });
    }
    align(&lines, 10, 3)
}

/// Returns `CertificateExpirationInfo` as JSON: indented by four blanks, fields in Go's order.
pub fn kubeadm_json(status: &NodeStatus) -> String {
    let info = ExpirationReport::of(status);
    let rows = |rows: &[Row]| -> Value { rows.iter().map(Row::json).collect() };
    let document = json!({
        "kind": KIND,
        "apiVersion": API_VERSION,
        "certificates": rows(&info.certificates),
        "certificateAuthorities": rows(&info.authorities),
    });
    let mut text = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, format);
    // Serializing a `Value` with string keys into memory cannot fail.
    let _ = serde::Serialize::serialize(&document, &mut serializer);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    text.push('\n');
    text
}

/// Returns `CertificateExpirationInfo` as YAML: fields in alphabetical order.
pub fn kubeadm_yaml(status: &NodeStatus) -> String {
    let info = ExpirationReport::of(status);
    format!(
        "apiVersion: {API_VERSION}\ncertificateAuthorities:\n{}certificates:\n{}kind: {KIND}\n",
        info.authorities.iter().map(Row::yaml).collect::<String>(),
        info.certificates.iter().map(Row::yaml).collect::<String>(),
    )
}

/// Returns the facts that kubeadm's format cannot express, for standard error.
pub fn kubeadm_notes(status: &NodeStatus) -> Vec<String> {
    let is_hidden =
        |state: RowState| !matches!(state, RowState::Ok | RowState::Expiring | RowState::Expired);
    let rows = status.rows().into_iter();
    let mut notes: Vec<String> = rows
        .filter(|row| row.subject != RowSubject::ServiceAccount && is_hidden(row.state))
        .map(|row| {
            let problems = row.findings.problems().join("; ");
            format!("{} is {}: {problems}", row.subject.as_str(), row.state)
        })
        .collect();
    match status.role {
        NodeRole::ControlPlane => {}
        NodeRole::Worker => {
            notes.push("this is a worker: kubeadm manages no certificate on it".to_owned())
        }
        NodeRole::Etcd => notes.push(
            "this is an etcd member: kubeadm reports the certificates of a control plane as missing"
                .to_owned(),
        ),
        NodeRole::Empty => notes.extend(status.notes.iter().cloned()),
    }
    notes
}

const KIND: &str = "CertificateExpirationInfo";
const API_VERSION: &str = "output.kubeadm.k8s.io/v1alpha3";

/// The content of kubeadm's report, sorted by name.
struct ExpirationReport {
    certificates: Vec<Row>,
    authorities: Vec<Row>,
}

struct Row {
    name: String,
    /// `None` if the certificate is missing.
    not_after: Option<OffsetDateTime>,
    residual: i64,
    externally_managed: bool,
    authority: Option<Authority>,
}

impl ExpirationReport {
    fn of(status: &NodeStatus) -> ExpirationReport {
        let keyless = |authority| {
            status
                .authority(authority)
                .is_some_and(|found| !found.has_key_file)
        };
        let certificates = CertName::KUBEADM
            .into_iter()
            // kubeadm does not report kubelet.conf, which the kubelet renews, nor the certificates of an external etcd.
            .filter(|name| *name != CertName::KubeletConf)
            .filter(|name| status.local_etcd || name.authority() != Authority::EtcdCa)
            .map(|name| {
                let facts = status
                    .certificate(name)
                    .and_then(|row| row.certificate.as_ref());
                Row {
                    name: name.to_string(),
                    not_after: facts.map(|facts| facts.not_after),
                    residual: facts.map_or(0, |facts| facts.residual_seconds),
                    externally_managed: facts.is_some() && keyless(name.authority()),
                    authority: facts.map(|_| name.authority()),
                }
            });
        let authorities = Authority::ALL
            .into_iter()
            .filter(|name| status.local_etcd || *name != Authority::EtcdCa)
            .map(|name| {
                let facts = status
                    .authority(name)
                    .and_then(|row| row.certificates.first());
                Row {
                    name: name.to_string(),
                    not_after: facts.map(|facts| facts.not_after),
                    residual: facts.map_or(0, |facts| facts.residual_seconds),
                    externally_managed: facts.is_some() && keyless(name),
                    authority: None,
                }
            });
        let mut info = ExpirationReport {
            certificates: certificates.collect(),
            authorities: authorities.collect(),
        };
        info.certificates.sort_by(|a, b| a.name.cmp(&b.name));
        info.authorities.sort_by(|a, b| a.name.cmp(&b.name));
        info
    }
}

impl Row {
    fn json(&self) -> Value {
        let mut row = Map::new();
        row.insert("name".to_owned(), json!(self.name));
        row.insert(
            "expirationDate".to_owned(),
            json!(self.not_after.map(rfc3339)),
        );
        row.insert("residualTime".to_owned(), json!(self.residual));
        row.insert(
            "externallyManaged".to_owned(),
            json!(self.externally_managed),
        );
        if let Some(authority) = self.authority {
            row.insert("caName".to_owned(), json!(authority));
        }
        row.insert("missing".to_owned(), json!(self.not_after.is_none()));
        Value::Object(row)
    }

    fn yaml(&self) -> String {
        let authority = self.authority.map(|name| format!("caName: {name}"));
        let date = self.not_after.map_or_else(
            || "null".to_owned(),
            |date| format!("\"{}\"", rfc3339(date)),
        );
        let fields = authority.into_iter().chain([
            format!("expirationDate: {date}"),
            format!("externallyManaged: {}", self.externally_managed),
            format!("missing: {}", self.not_after.is_none()),
            format!("name: {}", self.name),
            format!("residualTime: {}", self.residual),
        ]);
        let fields: Vec<String> = fields.collect();
        format!("- {}\n", fields.join("\n  "))
    }
}

fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Go's `%-8v`.
fn yes_no(yes: bool) -> &'static str {
    if yes { "yes     " } else { "no      " }
}

/// Go's `Jan 02, 2006 15:04 MST`, in UTC.
fn date(time: OffsetDateTime) -> String {
    time.to_offset(UtcOffset::UTC)
        .format(format_description!(
            "[month repr:short] [day], [year] [hour]:[minute] UTC"
        ))
        .unwrap_or_default()
}

fn rfc3339(time: OffsetDateTime) -> String {
    time.to_offset(UtcOffset::UTC)
        .format(format_description!(
            "[year]-[month]-[day]T[hour]:[minute]:[second]Z"
        ))
        .unwrap_or_default()
}
