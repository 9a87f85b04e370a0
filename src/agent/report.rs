//! The report of a run: one row for each certificate, bundle and key pair, with the same columns for `plan` and
//! `bootstrap`.

mod action;
mod reason;

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Serialize;
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::request::{NotInstalled, Unsigned};
use super::{
    ExitCode, Failure, ProvidedFile, RunSetup, ServiceAccountAction, ServiceAccountFault, Survey,
    SurveyedBundle, SurveyedCert, signer_code,
};
use crate::kube::names::{Authority, NodePath};
use crate::signer::Carry;
use crate::spec::assess::{Action, CertReason, CertRefusal, Observed};
use crate::spec::{BundleCopy, BundleSpec, CertFiles, CertSpec, ServiceAccountSpec};
use crate::x509::{Chain, TrustBundle};

pub use action::RowAction;
pub use reason::RowReason;
pub(crate) use reason::codes;

/// The result of a run, or of a dry run.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    /// Rows in the order of the plan: bundles, certificates, the service-account pair.
    pub rows: Vec<ReportRow>,
    /// Further notes, in sentences.
    pub notes: Vec<String>,
    /// Files that were written.
    pub written: Vec<PathBuf>,
    /// Preflight errors that the `kubeadm join` after this run has to ignore.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_preflight_errors: Vec<String>,
}

/// One object of the node.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportRow {
    /// kubeadm's name.
    pub name: String,
    /// The authority that signs the certificate; `None` for a bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// Purpose of a registered certificate, as configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Action that is planned, or was taken.
    pub action: RowAction,
    /// Reasons for the action, and notes.
    #[serde(flatten, serialize_with = "reason::serialize")]
    pub reasons: Vec<RowReason>,
    /// Subject of the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Subject alternative names, `DNS:…` and `IP:…`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sans: Vec<String>,
    /// Extended key usages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub usages: Vec<String>,
    /// Key algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When the certificate will be due for renewal (`plan` and `renew` only).
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub due: Option<OffsetDateTime>,
    /// End of validity of the certificate in place.
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub not_after: Option<OffsetDateTime>,
    /// Files of the object.
    pub paths: Vec<NodePath>,
    /// Name of the signer in the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// Kind and address of the signer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signer_address: Option<String>,
    /// Whether the signer, as configured, can issue the certificate (`plan` only). Determined without I/O.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carries: Option<Carry>,
    /// Contribution of this row to the exit status.
    #[serde(skip)]
    pub code: Option<ExitCode>,
}

impl RunReport {
    /// Returns the gravest code of all rows.
    pub fn code(&self) -> ExitCode {
        self.rows
            .iter()
            .filter_map(|row| row.code)
            .max()
            .unwrap_or(ExitCode::Done)
    }

    /// Returns how many rows have each action, in the order of [`RowAction::ALL`].
    pub fn counts(&self) -> Vec<(RowAction, usize)> {
        let count = |action| self.rows.iter().filter(|row| row.action == action).count();
        let counts = RowAction::ALL
            .into_iter()
            .map(|action| (action, count(action)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Adds the signer to the rows of certificates.
    pub(super) fn with_signers(mut self, setup: &RunSetup) -> RunReport {
        for (authority, (name, signer)) in &setup.signers {
            let is_signed = |row: &&mut ReportRow| {
                row.authority.as_deref() == Some(authority.as_str())
                    || row.action == RowAction::Fetch && row.name == authority.as_str()
            };
            for row in self.rows.iter_mut().filter(is_signed) {
                row.signer = Some(name.clone());
                row.signer_address = Some(signer.label());
            }
        }
        self
    }
}

impl ReportRow {
    /// Returns the row of a failed action that concerns no certificate.
    pub fn failed(name: &str, failure: Failure) -> ReportRow {
        ReportRow {
            name: name.to_owned(),
            action: RowAction::Failed,
            reasons: RowReason::of_failure(&failure),
            code: Some(failure.code),
            ..ReportRow::default()
        }
    }

    /// Returns whether this is the service-account pair, and it cannot be used.
    pub fn is_refused_pair(&self) -> bool {
        self.authority.is_none() && self.action == RowAction::Refused
    }

    /// Returns whether this run has issued and installed the certificate.
    pub fn is_new(&self) -> bool {
        matches!(
            self.action,
            RowAction::Issued | RowAction::Renewed | RowAction::Rekeyed
        )
    }

    /// Returns whether an action was due and could not be taken, while the certificate in place may still be valid.
    pub fn is_overdue(&self) -> bool {
        matches!(
            self.action,
            RowAction::Failed | RowAction::Pending | RowAction::HeldBack
        )
    }
}

/// Returns the report of a run that found everything in place.
pub(super) fn settled(setup: &RunSetup, survey: Survey) -> RunReport {
    let bundles = survey.bundles.iter();
    let mut rows: Vec<ReportRow> = bundles
        .filter_map(|bundle| {
            let found = bundle.found.present()?;
            Some(bundle_row(&bundle.spec, RowAction::Kept, found))
        })
        .collect();
    let rotating = survey.rotating.is_some();
    for cert in survey.certs {
        let remarks = remarks(&cert);
        let chain = cert.found.chain.present();
        let due = cert.due.filter(|_| rotating);
        rows.push(match cert.decision.action {
            Action::Keep { .. } if cert.decision.deferred => ReportRow {
                due,
                code: Some(ExitCode::Pending),
                ..cert_row(&cert.spec, RowAction::HeldBack, remarks, chain)
            },
            Action::Keep { .. } => ReportRow {
                due,
                ..cert_row(&cert.spec, RowAction::Kept, remarks, chain)
            },
            Action::Refuse { reason } => refused_row(&cert.spec, reason, chain),
            Action::Issue { .. } | Action::Rewrite { .. } => {
                cert_row(&cert.spec, RowAction::Kept, Vec::new(), chain)
            }
        });
    }
    let service_account = setup.plan.service_account.as_ref();
    rows.extend(
        service_account
            .filter(|_| survey.service_account.is_some())
            .map(|spec| service_account_row(spec, RowAction::Kept)),
    );
    rows.extend(refused_service_account(
        setup,
        survey.service_account_refused.as_ref(),
    ));
    RunReport {
        rows,
        notes: survey.notes,
        written: Vec::new(),
        ignore_preflight_errors: setup.ignore_preflight_errors(),
    }
    .with_signers(setup)
}

/// Returns the report of a dry run.
pub fn planned(setup: &RunSetup, survey: &Survey) -> RunReport {
    let bundles = survey.bundles.iter();
    let mut rows: Vec<ReportRow> = bundles.map(planned_bundle).collect();
    rows.extend(
        survey
            .certs
            .iter()
            .map(|cert| planned_cert(setup, survey, cert)),
    );
    if let (Some(spec), Some(action)) = (&setup.plan.service_account, &survey.service_account) {
        let action = match action {
            ServiceAccountAction::Keep => RowAction::Keep,
            ServiceAccountAction::Make => RowAction::Make,
            ServiceAccountAction::Install => RowAction::Write,
            ServiceAccountAction::DerivePublic => RowAction::DerivePublic,
            ServiceAccountAction::Tighten => RowAction::Tighten,
        };
        rows.push(service_account_row(spec, action));
    }
    let refused = survey.service_account_refused.as_ref();
    rows.extend(
        refused_service_account(setup, refused).map(|row| ReportRow {
            action: RowAction::Refuse,
            ..row
        }),
    );
    let files = survey.missing_files.iter();
    rows.extend(
        files
            .filter_map(|place| setup.provided.files.get(*place))
            .map(|file| provided_row(file, RowAction::Write)),
    );
    let mut notes = survey.notes.clone();
    notes.extend(missing_signers(setup, survey));
    RunReport {
        rows,
        notes,
        written: Vec::new(),
        ignore_preflight_errors: setup.ignore_preflight_errors(),
    }
    .with_signers(setup)
}

fn planned_bundle(bundle: &SurveyedBundle) -> ReportRow {
    let row = match &bundle.found {
        Observed::Present(found) if bundle.in_place && !bundle.is_settled() => ReportRow {
            reasons: copy_reasons(&bundle.outdated_copies),
            ..bundle_row(&bundle.spec, RowAction::Rewrite, found)
        },
        Observed::Present(found) => bundle_row(&bundle.spec, RowAction::Keep, found),
        other => ReportRow {
            reasons: match other {
                Observed::Absent => vec![RowReason::Certificate(CertReason::Absent)],
                other => other
                    .fault()
                    .map(RowReason::BundleUnusable)
                    .into_iter()
                    .collect(),
            },
            ..absent_bundle_row(&bundle.spec, RowAction::Fetch)
        },
    };
    if bundle.refused.is_empty() {
        return row;
    }
    let refusal = CertRefusal::AuthorityRefused(bundle.refused.clone());
    ReportRow {
        action: RowAction::Refuse,
        reasons: vec![RowReason::Refusal(refusal)],
        code: Some(ExitCode::Refused),
        ..row
    }
}

fn planned_cert(setup: &RunSetup, survey: &Survey, cert: &SurveyedCert) -> ReportRow {
    let chain = cert.found.chain.present();
    let rotating = survey.rotating.is_some();
    let bundle = survey.bundle(cert.spec.authority());
    let refused = bundle.filter(|bundle| !bundle.refused.is_empty());
    let (action, reasons) = match (&cert.decision.action, refused) {
        (Action::Issue { .. }, Some(bundle)) => {
            let refusal = CertRefusal::AuthorityRefused(bundle.refused.clone());
            (RowAction::Refuse, vec![RowReason::Refusal(refusal)])
        }
        (Action::Keep { .. }, _) if cert.decision.deferred => (RowAction::HoldBack, remarks(cert)),
        (Action::Keep { .. }, _) => (RowAction::Keep, remarks(cert)),
        (Action::Rewrite { reasons }, _) => (RowAction::Rewrite, planned_reasons(reasons)),
        (Action::Issue { reasons }, None) => {
            let action = match chain {
                Some(_) if rotating && cert.decision.keep_key => RowAction::Renew,
                Some(_) if rotating => RowAction::Rekey,
                _ => RowAction::Issue,
            };
            (action, planned_reasons(reasons))
        }
        (Action::Refuse { reason }, _) => {
            (RowAction::Refuse, vec![RowReason::Refusal(reason.clone())])
        }
    };
    let mut row = cert_row(&cert.spec, action, reasons, chain);
    row.due = cert.due;
    if let Some((_, signer)) = setup.signers.get(&cert.spec.authority()) {
        let wanted = &cert.spec.requested;
        row.carries = Some(match signer.preflight(wanted) {
            Ok(()) => signer.caps().carry(wanted),
            Err(rejection) => {
                row.reasons.push(RowReason::CannotSign(rejection));
                row.reasons.extend(omission(&cert.spec));
                // A certificate that is kept needs the signer only later.
                let needed = matches!(cert.decision.action, Action::Issue { .. });
                row.code = needed.then_some(ExitCode::Configuration);
                Carry::No
            }
        });
    }
    if action == RowAction::Refuse {
        row.code = Some(ExitCode::Refused);
    }
    if cert.decision.deferred {
        row.code = Some(ExitCode::Pending);
    }
    row
}

/// Returns a note if certificates are to be issued by authorities without a signer.
fn missing_signers(setup: &RunSetup, survey: &Survey) -> Option<String> {
    let unsigned: BTreeSet<Authority> = survey
        .to_issue()
        .map(|cert| cert.spec.authority())
        .filter(|authority| !setup.signers.contains_key(authority))
        .collect();
    let names: Vec<&str> = unsigned.iter().map(|one| one.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "no signer is configured for {} (configure one under authorities or with --signer, or have the requests signed offline: nodepki csr export DIR)",
            names.join(", ")
        )
    })
}

pub(super) fn planned_reasons(reasons: &[CertReason]) -> Vec<RowReason> {
    let reasons = reasons.iter().cloned();
    reasons.map(RowReason::Certificate).collect()
}

pub(super) fn remarks(cert: &SurveyedCert) -> Vec<RowReason> {
    cert.remarks().into_iter().map(RowReason::Note).collect()
}

/// Returns the reasons for an action that was taken.
pub(super) fn taken(reasons: Vec<CertReason>) -> Vec<RowReason> {
    let reasons = reasons.into_iter().map(|reason| match reason {
        CertReason::Absent => CertReason::WasAbsent,
        reason => reason,
    });
    reasons.map(RowReason::Certificate).collect()
}

pub(super) fn cert_row(
    spec: &CertSpec,
    action: RowAction,
    reasons: Vec<RowReason>,
    chain: Option<&Chain>,
) -> ReportRow {
    ReportRow {
        name: spec.name().to_string(),
        authority: Some(spec.authority().to_string()),
        description: spec.description.clone(),
        action,
        reasons,
        subject: Some(spec.requested.profile.subject.to_string()),
        sans: spec.requested.profile.sans.to_strings(),
        usages: spec
            .requested
            .profile
            .usages
            .iter()
            .map(ToString::to_string)
            .collect(),
        key: Some(spec.requested.profile.key.to_string()),
        not_after: chain.map(|chain| chain.leaf().not_after()),
        paths: match &spec.output {
            CertFiles::Pair {
                certificate, key, ..
            } => vec![certificate.clone(), key.clone()],
            CertFiles::Kubeconfig { path, .. } => {
                let pair = spec.output.named_pair().into_iter();
                let pair = pair.flat_map(|pair| [&pair.certificate, &pair.key]);
                [path].into_iter().chain(pair).cloned().collect()
            }
        },
        ..ReportRow::default()
    }
}

/// Returns the row of a certificate that needs manual action first. For rotation only: a bootstrap fails as a whole.
pub(super) fn refused_row(
    spec: &CertSpec,
    refusal: CertRefusal,
    chain: Option<&Chain>,
) -> ReportRow {
    let reasons = vec![RowReason::Refusal(refusal)];
    ReportRow {
        code: Some(ExitCode::Refused),
        ..cert_row(spec, RowAction::Refused, reasons, chain)
    }
}

/// Returns the row of a certificate that cannot be installed yet, since another one of its authority is missing.
pub(super) fn waiting_row(
    spec: &CertSpec,
    reasons: Vec<RowReason>,
    still_serves: bool,
    chain: Option<&Chain>,
) -> ReportRow {
    ReportRow {
        code: (!still_serves).then_some(ExitCode::Pending),
        ..cert_row(spec, RowAction::HeldBack, reasons, chain)
    }
}

/// Returns the row of a request that did not end with an installed certificate.
///
/// If the certificate in place is still valid, an unreachable or silent signer never fails the run: the node works, and a
/// boot must not wait for a renewal. A fault of this machine (disk, memory, descriptors) always fails the run.
pub(super) fn failed_row(
    spec: &CertSpec,
    why: NotInstalled,
    still_serves: bool,
    urgent: bool,
    chain: Option<&Chain>,
) -> ReportRow {
    let waits_for_signer = match &why {
        NotInstalled::Unsigned(Unsigned::Pending(_)) => true,
        NotInstalled::Unsigned(Unsigned::Failed(error)) => {
            signer_code(error) == ExitCode::Unreachable
        }
        NotInstalled::Unsigned(Unsigned::Denied(_) | Unsigned::Refused(_)) => false,
        NotInstalled::Undone(failure) => failure.code == ExitCode::Unreachable,
    };
    let (action, reasons, code) = match why {
        NotInstalled::Unsigned(Unsigned::Pending(reason)) => (
            RowAction::Pending,
            vec![RowReason::Pending(reason)],
            ExitCode::Pending,
        ),
        NotInstalled::Unsigned(Unsigned::Denied(reason)) => (
            RowAction::Denied,
            vec![RowReason::Denied(reason)],
            ExitCode::Refused,
        ),
        NotInstalled::Unsigned(Unsigned::Refused(differences)) => {
            let differences = differences.into_iter().map(RowReason::Answer);
            let reasons = differences.chain([RowReason::NotInstalled]).collect();
            (RowAction::Refused, reasons, ExitCode::Refused)
        }
        NotInstalled::Unsigned(Unsigned::Failed(error)) => {
            let code = signer_code(error.as_ref());
            (
                RowAction::Failed,
                vec![RowReason::SignerFailed(error)],
                code,
            )
        }
        NotInstalled::Undone(failure) => (
            RowAction::Failed,
            RowReason::of_failure(&failure),
            failure.code,
        ),
    };
    let mut row = cert_row(spec, action, reasons, chain);
    if matches!(
        code,
        ExitCode::Refused | ExitCode::NotPermitted | ExitCode::Configuration
    ) {
        row.reasons.extend(omission(spec));
    }
    let is_temporary = matches!(code, ExitCode::Unreachable | ExitCode::Pending);
    let is_harmless = still_serves && waits_for_signer && !urgent;
    if still_serves && is_temporary {
        row.reasons.push(RowReason::StillValid);
    }
    row.code = (!is_harmless).then_some(code);
    row
}

/// Returns the setting that omits a certificate which cannot be issued and which no component needs.
pub(super) fn omission(spec: &CertSpec) -> Option<RowReason> {
    spec.is_omittable.then(|| RowReason::Omittable(spec.name()))
}

pub(super) fn bundle_row(spec: &BundleSpec, action: RowAction, bundle: &TrustBundle) -> ReportRow {
    ReportRow {
        subject: Some(bundle.first().subject().to_string()),
        key: Some(bundle.first().public_key().key_type().to_string()),
        not_after: Some(bundle.first().not_after()),
        ..absent_bundle_row(spec, action)
    }
}

/// Returns the reasons for which copies of a bundle are written.
pub(super) fn copy_reasons(copies: &[BundleCopy]) -> Vec<RowReason> {
    copies.iter().cloned().map(RowReason::CopyDiffers).collect()
}

fn absent_bundle_row(spec: &BundleSpec, action: RowAction) -> ReportRow {
    ReportRow {
        name: spec.authority.to_string(),
        action,
        paths: [&spec.path]
            .into_iter()
            .chain(spec.copies.iter().map(|copy| &copy.path))
            .cloned()
            .collect(),
        ..ReportRow::default()
    }
}

pub(super) fn provided_row(file: &ProvidedFile, action: RowAction) -> ReportRow {
    ReportRow {
        name: file.what.clone(),
        action,
        reasons: vec![RowReason::Provided(file.from.clone())],
        paths: vec![file.path.clone()],
        ..ReportRow::default()
    }
}

/// Returns the row of a service-account pair that cannot be used. For rotation only: a bootstrap fails as a whole.
pub(super) fn refused_service_account(
    setup: &RunSetup,
    fault: Option<&ServiceAccountFault>,
) -> Option<ReportRow> {
    let spec = setup.plan.service_account.as_ref()?;
    Some(ReportRow {
        reasons: vec![RowReason::ServiceAccount(fault?.clone())],
        code: Some(ExitCode::Refused),
        ..service_account_row(spec, RowAction::Refused)
    })
}

pub(super) fn service_account_row(spec: &ServiceAccountSpec, action: RowAction) -> ReportRow {
    ReportRow {
        name: "sa".to_owned(),
        action,
        reasons: match action {
            RowAction::HeldBack => vec![RowReason::WaitsForCertificates(Authority::Ca)],
            _ => Vec::new(),
        },
        key: Some(spec.key.to_string()),
        paths: vec![spec.private.clone(), spec.public.clone()],
        ..ReportRow::default()
    }
}
