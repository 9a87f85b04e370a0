//! Entries of the issuance log: which facts they have, and what happens if they cannot be written.
//!
//! The log must not stop a renewal. An entry that cannot be written is logged as a warning with all its fields, and the
//! next entry in the log has the number of those that are missing. The digest of each last entry is logged too: a user who
//! rewrites the whole log cannot change what the journal has already forwarded.

use time::OffsetDateTime;

use super::request::IssuanceOrder;
use crate::kube::names::{Authority, CertName};
use crate::signer::Request;
use crate::store::{AuditEvent, AuditRecord, Durability, NodeRoot};
use crate::text::hex;
use crate::x509::Certificate;

/// Name of the log event for the last of the entries that were appended together.
pub(crate) const RECORDED: &str = "audit-recorded";
/// Name of the log event for an entry that could not be written.
pub(crate) const NOT_RECORDED: &str = "audit-not-recorded";

/// `action` of the entry of a migration that removed CA keys.
pub(crate) const KEYS_REMOVED: &str = "keys removed";

/// Appends entries to the issuance log.
pub(crate) fn append(root: &NodeRoot, now: OffsetDateTime, records: &[AuditRecord]) {
    append_with(root, now, records, Durability::Synced);
}

/// As [`append`], with the durability of the request.
pub(super) fn append_with(
    root: &NodeRoot,
    now: OffsetDateTime,
    records: &[AuditRecord],
    durability: Durability,
) {
    if records.is_empty() {
        return;
    }
    match root.append_audit(records, now, durability) {
        Ok(head) => tracing::info!(
            name: RECORDED,
            seq = head.seq,
            sha256 = head.sha256,
            "the issuance log ends with entry {}, sha256 {}",
            head.seq,
            head.sha256
        ),
        Err(error) => {
            let path = root.audit_path();
            for record in records {
                let entry = serde_json::to_string(record).unwrap_or_default();
                tracing::warn!(
                    name: NOT_RECORDED,
                    entry,
                    why = %error,
                    "{}: an entry could not be written: {error}; the entry is {entry}",
                    path.display()
                );
            }
        }
    }
}

impl IssuanceOrder<'_> {
    /// Returns the record of an event of a request to this signer.
    pub(super) fn audit_record(&self, event: AuditEvent, request: &Request) -> AuditRecord {
        AuditRecord {
            signer: Some(self.signer_name.clone()),
            signer_kind: Some(self.signer.kind().as_str().to_owned()),
            ..of_request(event, request)
        }
    }
}

/// Returns the record of an event of a request, without its signer.
pub(super) fn of_request(event: AuditEvent, request: &Request) -> AuditRecord {
    AuditRecord {
        node: Some(request.identity.node.clone()),
        uid: request.object.clone(),
        request_id: Some(request.id.to_string()),
        csr_sha256: Some(hex(&request.csr.sha256())),
        ..of_certificate(event, request.wanted.name, request.wanted.authority)
    }
}

/// Returns the record of an event of a certificate.
pub(super) fn of_certificate(
    event: AuditEvent,
    name: CertName,
    authority: Authority,
) -> AuditRecord {
    AuditRecord {
        certificate: Some(name.to_string()),
        authority: Some(authority.to_string()),
        ..AuditRecord::of(event)
    }
}

/// Adds the facts of a certificate to a record.
pub(crate) fn with_leaf(record: AuditRecord, leaf: &Certificate) -> AuditRecord {
    let issuer = leaf.authority_key_id();
    AuditRecord {
        serial: Some(leaf.serial().to_owned()),
        not_after: Some(leaf.not_after()),
        sha256: Some(hex(&leaf.fingerprint())),
        issuer_key_id: (!issuer.is_empty()).then(|| hex(issuer)),
        key: Some(leaf.public_key().key_type().to_string()),
        ..record
    }
}
