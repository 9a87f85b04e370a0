//! The document of `-o json` and `-o yaml`: one envelope for every command, described by `docs/output.schema.json`.
//!
//! To add a document: a variant of [`DocumentKind`], its part of the schema, and an example in `tests/golden/output`. A
//! field is never removed and never changes its type within one `apiVersion`.

use std::collections::BTreeMap;

use serde::Serialize;
use time::OffsetDateTime;

use super::closing::Closing;
use crate::agent::RunReport;
use crate::config::API_VERSION;

/// What a document describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(in super::super) enum DocumentKind {
    /// `plan`, and `renew --dry-run`.
    Plan,
    /// `bootstrap`.
    Bootstrap,
    /// `renew`.
    Renewal,
    /// `needs-renewal`.
    RenewalNeed,
    /// `status`.
    Status,
    /// `doctor`.
    Doctor,
    /// `doctor --list`.
    DoctorChecks,
    /// `preflight`.
    Preflight,
    /// `policy check`.
    Policy,
    /// `audit verify`.
    AuditVerification,
    /// `audit show`.
    AuditEntries,
    /// `crl`.
    RevocationLists,
    /// `csr export`.
    CsrExport,
    /// `csr import`.
    CsrImport,
    /// `certs download`.
    CertsDownload,
    /// `certs upload`.
    CertsUpload,
    /// `certs expire`.
    CertsExpiry,
    /// `cluster status`.
    ClusterStatus,
    /// `kubelets list`, `approve` and `deny`.
    KubeletRequests,
    /// `authority stage`, `activate` and `retire`.
    AuthorityStep,
    /// `authority status`.
    AuthorityStatus,
    /// `authority rotate`, `pause`, `resume`, `undo` and `watch`.
    AuthorityRotation,
    /// `init`.
    Init,
    /// `init --list`.
    InitValues,
    /// `migrate` and `capi migrate`.
    Migration,
    /// `capi secrets --apply`.
    CapiSecrets,
    /// `capi check`.
    CapiConditions,
    /// `capi sync`.
    CapiSync,
    /// Every command that fails as a whole.
    Failure,
}

/// The envelope, followed by the fields of the body.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document<'a, T> {
    api_version: &'static str,
    kind: DocumentKind,
    exit_code: u8,
    counts: BTreeMap<&'static str, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
    #[serde(flatten)]
    body: &'a T,
}

impl<'a, T: Serialize> Document<'a, T> {
    pub(super) fn new(
        kind: DocumentKind,
        exit_code: u8,
        closing: &'a Closing,
        body: &'a T,
    ) -> Document<'a, T> {
        Document {
            api_version: API_VERSION,
            kind,
            exit_code,
            counts: closing.counts(),
            cause: closing.cause(),
            next: closing.next(),
            body,
        }
    }
}

/// The body of a run's document.
#[derive(Serialize)]
pub(super) struct RunBody<'a> {
    #[serde(with = "time::serde::rfc3339")]
    pub(super) at: OffsetDateTime,
    /// The root on this machine.
    pub(super) root: String,
    #[serde(flatten)]
    pub(super) report: &'a RunReport,
}

/// The body of the document of a failure.
#[derive(Serialize)]
pub(super) struct FailureBody {
    pub(super) messages: Vec<String>,
}

/// The body of a document that is a list.
#[derive(Serialize)]
pub(in super::super) struct ListBody<'a, T> {
    pub(in super::super) items: &'a [T],
}
