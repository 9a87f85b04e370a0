//! The lines of the issuance log: their fields, and the digest that chains them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::serde::rfc3339;

use crate::store::sha256;

/// `previous` of the first line.
pub(super) const NO_PREVIOUS: &str =
    "0000000000000000000000000000000000000000000000000000000000000000";
/// Maximum length in bytes of a line. The longest record of [`AuditRecord::limited`] is below it.
pub(super) const MAX_LINE_BYTES: usize = 32 * 1024;
/// Maximum length in bytes of `reason`.
const MAX_REASON_BYTES: usize = 2048;
/// Maximum length in bytes of any other text.
const MAX_TEXT_BYTES: usize = 256;

words! {
    /// What a line records.
    pub enum AuditEvent: Serialize {
        /// A request is about to be sent to a signer.
        Requested = "requested",
        /// A signer returned a certificate, and nodepki has verified it.
        Issued = "issued",
        /// The signer denied the request.
        Denied = "denied",
        /// nodepki refused the certificate of the signer.
        Refused = "refused",
        /// The exchange with the signer failed.
        Failed = "failed",
        /// The certificate is on disk, in place of the former one.
        Installed = "installed",
        /// A component uses the new files.
        InUse = "in-use",
        /// A component did not become ready with the new files.
        RolledBack = "rolled-back",
        /// A kubelet's CertificateSigningRequest was approved, denied, failed or issued.
        KubeletRequest = "kubelet-request",
        /// A step of a CA change.
        AuthorityStep = "authority-step",
        /// CA keys were removed from the node, or restored.
        Migration = "migration",
        /// The end of the log was incomplete, because of a power failure or a killed process.
        Torn = "torn",
        /// The oldest file of the log was removed.
        Pruned = "pruned",
    }
}

/// Defines [`AuditRecord`] by its optional fields, which a line omits unless they are set.
macro_rules! audit_record {
    ($($(#[$meta:meta])* $field:ident: $type:ty,)+) => {
        /// One entry, without the fields that chain it. Contains no secret. Texts from outside are cut when they are written.
        #[derive(Clone, Debug, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub struct AuditRecord {
            /// What happened.
            pub event: AuditEvent,
            $($(#[$meta])* #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$type>,)+
        }

        impl AuditRecord {
            /// Returns a record of this event without further fields.
            pub fn of(event: AuditEvent) -> AuditRecord {
                AuditRecord { event, $($field: None,)+ }
            }
        }
    };
}

audit_record! {
    /// kubeadm's name of the certificate.
    certificate: String,
    /// The authority.
    authority: String,
    /// Name of the signer in the configuration.
    signer: String,
    /// Kind of the signer.
    signer_kind: String,
    /// The node that the certificate is for.
    node: String,
    /// Name of a kubelet's CertificateSigningRequest.
    object: String,
    /// UID of a kubelet's CertificateSigningRequest.
    uid: String,
    /// The user that created a kubelet's CertificateSigningRequest.
    requester: String,
    /// The id by which the signer knows the request.
    request_id: String,
    /// SHA-256 of the CSR in DER, in hexadecimal.
    csr_sha256: String,
    /// Serial number, in hexadecimal.
    serial: String,
    /// End of validity.
    #[serde(with = "rfc3339::option")]
    not_after: OffsetDateTime,
    /// SHA-256 of the certificate in DER, in hexadecimal.
    sha256: String,
    /// Authority key identifier of the certificate, in hexadecimal.
    issuer_key_id: String,
    /// Key algorithm of the certificate.
    key: String,
    /// A component, for example `kube-apiserver`.
    component: String,
    /// The step of a CA change, the decision about a kubelet's request, or the direction of a migration.
    action: String,
    /// The reason, the proof, or the differences.
    reason: String,
    /// Number of bytes of a torn end.
    torn_bytes: usize,
    /// SHA-256 of a torn end, in hexadecimal.
    torn_sha256: String,
    /// `seq` of the last entry that was removed.
    removed_through: u64,
    /// Digest of the last line that was removed.
    removed_head: String,
}

impl AuditRecord {
    /// Cuts the texts whose length a signer or an object decides.
    pub(super) fn limited(mut self) -> AuditRecord {
        let texts = [
            &mut self.signer,
            &mut self.node,
            &mut self.object,
            &mut self.uid,
            &mut self.requester,
            &mut self.serial,
            &mut self.issuer_key_id,
            &mut self.key,
        ];
        for text in texts.into_iter().flatten() {
            cut(text, MAX_TEXT_BYTES);
        }
        if let Some(reason) = &mut self.reason {
            cut(reason, MAX_REASON_BYTES);
        }
        self
    }
}

/// Shortens a text to at most `limit` bytes and an ellipsis.
fn cut(text: &mut String, limit: usize) {
    if text.len() > limit {
        let end = (0..=limit).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
}

/// Fields that identify the process that writes.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Writer {
    /// `_SYSTEMD_INVOCATION_ID` of the process's messages in the journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) invocation: Option<String>,
    /// The user that logged in, whatever user the process runs as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) login_uid: Option<u32>,
    pub(super) pid: u32,
}

/// A line as it is written.
#[derive(Serialize)]
pub(super) struct NewLine<'a> {
    pub(super) seq: u64,
    #[serde(with = "rfc3339")]
    pub(super) time: OffsetDateTime,
    pub(super) previous: &'a str,
    /// Number of entries before this one that the same process could not write.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) lost: u64,
    #[serde(flatten)]
    pub(super) writer: &'a Writer,
    #[serde(flatten)]
    pub(super) record: &'a AuditRecord,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A line as it is read. An entry of a newer nodepki has the same first fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Number of the entry, from 1.
    pub seq: u64,
    /// When it was written.
    #[serde(with = "rfc3339")]
    pub time: OffsetDateTime,
    /// Digest of the line before.
    pub previous: String,
    /// What happened, by the name in the log.
    pub event: String,
    /// The further fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl AuditEntry {
    /// Parses a line without its newline; `None` if it is not an entry.
    pub(super) fn parse(line: &[u8]) -> Option<AuditEntry> {
        serde_json::from_slice(line).ok()
    }

    /// Returns the text of a field.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field)?.as_str()
    }

    /// Returns the number in a field.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.fields.get(field)?.as_u64()
    }
}

/// The last entry of a log, which the next one continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditHead {
    /// Its number; 0 for an empty log.
    pub seq: u64,
    /// Digest of its line, in hexadecimal.
    pub sha256: String,
}

impl AuditHead {
    /// Returns the head of an empty log.
    pub(super) fn empty() -> AuditHead {
        AuditHead {
            seq: 0,
            sha256: NO_PREVIOUS.to_owned(),
        }
    }
}

/// Returns the digest of a line, by which the next line names it.
pub(super) fn digest(line: &[u8]) -> String {
    sha256(line)
}
