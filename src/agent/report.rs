//! What a run did, one row a certificate, bundle and key pair: the same rows for `plan` and `bootstrap`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Serialize;
use time::OffsetDateTime;

use super::request::Outcome;
use super::{
    ExitCode, Failure, ProvidedFile, ServiceAccountAction, Setup, Survey, sentence, signer_code,
};
use crate::kube::names::{Authority, NodePath};
use crate::signer::Carry;
use crate::spec::assess::{Action, Found};
use crate::spec::{BundleSpec, CertSpec, Output, ServiceAccountSpec};
use crate::store::STATE_DIR;
use crate::x509::{Chain, TrustBundle};

/// The result of a run or of a look.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// In the order of the plan: bundles, certificates, the service-account pair.
    pub rows: Vec<Row>,
    /// What deserves attention.
    pub notes: Vec<String>,
    /// Files that were written.
    pub written: Vec<PathBuf>,
    /// For the `kubeadm join` that follows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_preflight_errors: Vec<String>,
}

/// Actions that wrote a file.
const INSTALLED: [&str; 8] = [
    "issued",
    "renewed",
    "rekeyed",
    "rewritten",
    "written",
    "made",
    "tightened",
    "sa.pub derived",
];

/// One thing that the node holds.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// kubeadm's name.
    pub name: String,
    /// The authority that signs it; a bundle's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// One word, or two.
    pub action: &'static str,
    /// Why, and what deserves attention.
    pub reasons: Vec<String>,
    /// Subject, for a certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Subject alternative names, for a certificate that has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sans: Option<String>,
    /// Key algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When it will be due for renewal (`plan` and `renew` only).
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub due: Option<OffsetDateTime>,
    /// End of validity of what is in place now.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub not_after: Option<OffsetDateTime>,
    /// The files.
    pub paths: Vec<NodePath>,
    /// Kind and place of the signer (`plan` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// Whether the signer, as configured, can carry the certificate (`plan` only). Asked without I/O.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carries: Option<Carry>,
    /// How this row weighs on the exit status.
    #[serde(skip)]
    pub code: Option<ExitCode>,
}

impl Report {
    /// The gravest of all rows.
    pub fn code(&self) -> ExitCode {
        self.rows
            .iter()
            .filter_map(|row| row.code)
            .max()
            .unwrap_or(ExitCode::Done)
    }

    /// Says what was installed and what was not, for a run that failed in part; `None` if it is done or only waits.
    pub fn remainder(&self) -> Option<String> {
        if matches!(self.code(), ExitCode::Done | ExitCode::Pending) {
            return None;
        }
        // Restarts have no files of their own; files of the state directory are not part of the PKI.
        let is_file = |row: &&Row| row.paths.iter().any(|path| !path.starts_with(STATE_DIR));
        let rows = || self.rows.iter().filter(is_file);
        let installed: Vec<&str> = rows()
            .filter(|row| INSTALLED.contains(&row.action))
            .map(|row| row.name.as_str())
            .collect();
        let left: Vec<String> = rows()
            .filter(|row| row.code.is_some() || row.is_overdue())
            .map(|row| format!("{} ({})", row.name, row.action))
            .collect();
        let left = left.join(", ");
        match (installed.is_empty(), left.is_empty()) {
            (_, true) => None,
            (true, false) => Some(format!("nothing was installed; not installed: {left}")),
            (false, false) => Some(format!(
                "installed: {}; not installed: {left}",
                installed.join(", ")
            )),
        }
    }
}

impl Row {
    /// What is no certificate and could not be done.
    pub fn failed(name: &str, failure: Failure) -> Row {
        Row {
            name: name.to_owned(),
            action: "failed",
            reasons: failure.messages,
            code: Some(failure.code),
            ..Row::default()
        }
    }

    /// The service-account pair, which cannot be used.
    pub fn is_refused_pair(&self) -> bool {
        self.authority.is_none() && self.action == "refused"
    }

    /// A certificate that this run has issued and put in place.
    pub fn is_new(&self) -> bool {
        matches!(self.action, "issued" | "renewed" | "rekeyed")
    }

    /// Something should have been done about it and could not be, though nothing is the worse for it yet.
    pub fn is_overdue(&self) -> bool {
        matches!(self.action, "failed" | "pending" | "held back")
    }
}

/// Everything was in place.
pub(super) fn settled(setup: &Setup, survey: Survey) -> Report {
    let mut rows: Vec<Row> = survey
        .bundles
        .iter()
        .filter_map(|bundle| Some(bundle_row(&bundle.spec, "kept", bundle.found.present()?)))
        .collect();
    let rotating = survey.rotating.is_some();
    for cert in survey.certs {
        let chain = cert.found.chain.present();
        let due = cert.due.filter(|_| rotating);
        rows.push(match cert.action {
            Action::Keep { notes } if cert.deferred => Row {
                due,
                code: Some(ExitCode::Pending),
                ..cert_row(&cert.spec, "held back", notes, chain)
            },
            Action::Keep { notes } => Row {
                due,
                ..cert_row(&cert.spec, "kept", notes, chain)
            },
            Action::Refuse { reason } => refused_row(&cert.spec, reason, chain),
            Action::Issue { .. } | Action::Rewrite { .. } => {
                cert_row(&cert.spec, "kept", Vec::new(), chain)
            }
        });
    }
    let service_account = setup.plan.service_account.as_ref();
    rows.extend(
        service_account
            .filter(|_| survey.service_account.is_some())
            .map(|spec| service_account_row(spec, "kept")),
    );
    rows.extend(refused_service_account(
        setup,
        survey.service_account_refused.as_deref(),
    ));
    Report {
        rows,
        notes: survey.notes,
        written: Vec::new(),
        ignore_preflight_errors: setup.ignore_preflight_errors(),
    }
}

/// What a run would do: nothing is written or sent.
pub fn planned(setup: &Setup, survey: &Survey) -> Report {
    let mut rows = Vec::new();
    for bundle in &survey.bundles {
        let signer = setup.signers.get(&bundle.spec.authority);
        rows.push(match &bundle.found {
            Found::Present(found) => bundle_row(&bundle.spec, "keep", found),
            other => Row {
                action: "fetch",
                reasons: other.trouble().into_iter().collect(),
                signer: signer.map(|(_, signer)| signer.label()),
                ..empty_bundle_row(&bundle.spec)
            },
        });
    }
    for cert in &survey.certs {
        let (action, reasons) = match &cert.action {
            Action::Keep { notes } if cert.deferred => ("hold back", notes.clone()),
            Action::Keep { notes } => ("keep", notes.clone()),
            Action::Rewrite { reasons } => ("rewrite", reasons.clone()),
            Action::Issue { reasons } => (
                match (&survey.rotating, cert.found.chain.present()) {
                    (None, _) | (_, None) => "issue",
                    _ if cert.keep_key => "renew",
                    _ => "rekey",
                },
                reasons.clone(),
            ),
            Action::Refuse { reason } => ("refuse", vec![reason.clone()]),
        };
        let mut row = cert_row(&cert.spec, action, reasons, cert.found.chain.present());
        row.due = cert.due;
        row.signer = setup
            .signers
            .get(&cert.spec.authority)
            .map(|(_, signer)| signer.label());
        if let Some((_, signer)) = setup.signers.get(&cert.spec.authority) {
            let wanted = super::wanted(&cert.spec);
            row.carries = Some(match signer.preflight(&wanted) {
                Ok(()) => signer.caps().carry(&wanted),
                Err(rejection) => {
                    row.reasons.push(rejection.to_string());
                    row.reasons.extend(omission(&cert.spec));
                    // What is kept needs the signer later.
                    let needed = matches!(cert.action, Action::Issue { .. });
                    row.code = needed.then_some(ExitCode::Configuration);
                    Carry::No
                }
            });
        }
        if action == "refuse" {
            row.code = Some(ExitCode::Refused);
        }
        if cert.deferred {
            row.code = Some(ExitCode::Pending);
        }
        rows.push(row);
    }
    if let (Some(spec), Some(action)) = (&setup.plan.service_account, &survey.service_account) {
        let action = match action {
            ServiceAccountAction::Keep => "keep",
            ServiceAccountAction::Make => "make",
            ServiceAccountAction::Install => "write",
            ServiceAccountAction::DerivePublic => "derive sa.pub",
            ServiceAccountAction::Tighten => "tighten",
        };
        rows.push(service_account_row(spec, action));
    }
    if survey.rotating.is_some() {
        let refused = survey.service_account_refused.as_deref();
        rows.extend(refused_service_account(setup, refused));
    }
    let files = survey.missing_files.iter();
    rows.extend(
        files
            .filter_map(|place| setup.provided.files.get(*place))
            .map(|file| provided_row(file, "write")),
    );
    let mut notes = survey.notes.clone();
    let unsigned: BTreeSet<Authority> = survey
        .to_issue()
        .map(|cert| cert.spec.authority)
        .filter(|authority| !setup.signers.contains_key(authority))
        .collect();
    if !unsigned.is_empty() {
        let names: Vec<_> = unsigned
            .iter()
            .map(|authority| authority.as_str())
            .collect();
        notes.push(format!(
            "nobody is configured to sign for {}; name a signer under authorities or with --signer, or have the requests signed elsewhere (nodepki csr export DIR)",
            names.join(", ")
        ));
    }
    Report {
        rows,
        notes,
        written: Vec::new(),
        ignore_preflight_errors: setup.ignore_preflight_errors(),
    }
}

pub(super) fn cert_row(
    spec: &CertSpec,
    action: &'static str,
    reasons: Vec<String>,
    chain: Option<&Chain>,
) -> Row {
    Row {
        name: spec.name.to_string(),
        authority: Some(spec.authority.to_string()),
        action,
        reasons,
        subject: Some(spec.profile.subject.to_string()),
        sans: (!spec.profile.sans.is_empty()).then(|| spec.profile.sans.to_string()),
        key: Some(spec.profile.key.to_string()),
        due: None,
        not_after: chain.map(|chain| chain.leaf().not_after()),
        paths: match &spec.output {
            Output::Pair { certificate, key } => vec![certificate.clone(), key.clone()],
            Output::Kubeconfig { path, .. } => vec![path.clone()],
        },
        signer: None,
        carries: None,
        code: None,
    }
}

/// What a person has to look at first. For rotation only: a bootstrap ends there.
pub(super) fn refused_row(spec: &CertSpec, reason: String, chain: Option<&Chain>) -> Row {
    Row {
        code: Some(ExitCode::Refused),
        ..cert_row(spec, "refused", vec![reason], chain)
    }
}

/// What cannot be installed yet because something else of its family is missing.
pub(super) fn waiting_row(
    spec: &CertSpec,
    reason: String,
    still_serves: bool,
    chain: Option<&Chain>,
) -> Row {
    Row {
        code: (!still_serves).then_some(ExitCode::Pending),
        ..cert_row(spec, "held back", vec![reason], chain)
    }
}

/// Returns the row of a request that did not end with an installed certificate.
///
/// A certificate that is overdue and still valid never fails the run while its signer is unreachable or has not answered:
/// the node works, and a boot must not wait for a renewal. A fault of this machine (disk, memory, descriptors) always
/// fails the run.
pub(super) fn failed_row(
    spec: &CertSpec,
    outcome: Outcome,
    still_serves: bool,
    urgent: bool,
    chain: Option<&Chain>,
) -> Row {
    let waits_for_signer = match &outcome {
        Outcome::Pending(_) => true,
        Outcome::Failed(error) => signer_code(error) == ExitCode::Unreachable,
        Outcome::Undone(failure) => failure.code == ExitCode::Unreachable,
        Outcome::Denied(_) | Outcome::Refused(_) | Outcome::Signed { .. } => false,
    };
    let (action, reasons, code) = match outcome {
        Outcome::Pending(note) => ("pending", vec![note], ExitCode::Pending),
        Outcome::Denied(reason) => (
            "denied",
            vec![format!(
                "the signer denied it: {reason}; settle it with whoever decides there and run again"
            )],
            ExitCode::Refused,
        ),
        Outcome::Refused(differences) => {
            let advice = "this certificate was not installed; correct the signer's profile or the configuration and run again".to_owned();
            (
                "refused",
                differences.into_iter().chain([advice]).collect(),
                ExitCode::Refused,
            )
        }
        Outcome::Failed(error) => (
            "failed",
            vec![sentence(error.as_ref())],
            signer_code(error.as_ref()),
        ),
        Outcome::Undone(failure) => ("failed", failure.messages.clone(), failure.code),
        // Not reached: a signed certificate is installed or held back.
        Outcome::Signed { .. } => ("held back", Vec::new(), ExitCode::Pending),
    };
    let mut row = cert_row(spec, action, reasons, chain);
    if matches!(
        code,
        ExitCode::Refused | ExitCode::NotPermitted | ExitCode::Configuration
    ) {
        row.reasons.extend(omission(spec));
    }
    let passes = matches!(code, ExitCode::Unreachable | ExitCode::Pending);
    let harmless = still_serves && waits_for_signer && !urgent;
    if still_serves && passes {
        row.reasons
            .push("the certificate in place is kept and still valid".to_owned());
    }
    row.code = (!harmless).then_some(code);
    row
}

/// The setting that leaves out a certificate which cannot be had and which no component needs.
pub(super) fn omission(spec: &CertSpec) -> Option<String> {
    spec.is_omittable.then(|| {
        format!(
            "the control plane runs without {name}: `certificates: {{omit: [{name}]}}` in the settings leaves it out",
            name = spec.name
        )
    })
}

pub(super) fn bundle_row(spec: &BundleSpec, action: &'static str, bundle: &TrustBundle) -> Row {
    Row {
        action,
        subject: Some(bundle.first().subject().to_string()),
        key: Some(bundle.first().public_key().key_type().to_string()),
        not_after: Some(bundle.first().not_after()),
        ..empty_bundle_row(spec)
    }
}

fn empty_bundle_row(spec: &BundleSpec) -> Row {
    Row {
        name: spec.authority.to_string(),
        authority: None,
        action: "absent",
        reasons: Vec::new(),
        subject: None,
        sans: None,
        key: None,
        due: None,
        not_after: None,
        paths: vec![spec.path.clone()],
        signer: None,
        carries: None,
        code: None,
    }
}

pub(super) fn provided_row(file: &ProvidedFile, action: &'static str) -> Row {
    Row {
        name: file.what.clone(),
        authority: None,
        action,
        reasons: vec![format!("from {}", file.from)],
        subject: None,
        sans: None,
        key: None,
        due: None,
        not_after: None,
        paths: vec![file.path.clone()],
        signer: None,
        carries: None,
        code: None,
    }
}

/// Returns the row of a service-account pair that cannot be used. For rotation only: a bootstrap ends there.
pub(super) fn refused_service_account(setup: &Setup, reason: Option<&str>) -> Option<Row> {
    let spec = setup.plan.service_account.as_ref()?;
    Some(Row {
        reasons: vec![reason?.to_owned()],
        code: Some(ExitCode::Refused),
        ..service_account_row(spec, "refused")
    })
}

pub(super) fn service_account_row(spec: &ServiceAccountSpec, action: &'static str) -> Row {
    Row {
        name: "sa".to_owned(),
        authority: None,
        action,
        reasons: match action {
            "held back" => vec![format!(
                "it is installed together with what {} signs",
                Authority::Ca
            )],
            _ => Vec::new(),
        },
        subject: None,
        sans: None,
        key: Some(spec.key.to_string()),
        due: None,
        not_after: None,
        paths: vec![spec.private.clone(), spec.public.clone()],
        signer: None,
        carries: None,
        code: None,
    }
}
