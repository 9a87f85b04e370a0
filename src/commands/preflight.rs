//! `nodepki preflight`: checks everything that a run needs, and requests and writes nothing.
//!
//! Each check exists once: the configuration is loaded as by `bootstrap`, the files of the node are judged by checks of
//! `doctor`, the signers by [`agent::examine_signers`]. This module only collects the results.

mod host;
mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;

use super::doctor::checks::{self, DiagnosisInputs, FindingSeverity};
use super::options::{GlobalOptions, SourceOptions, duration};
use super::output::{DocumentKind, text_style};
use super::{now, or_machine_fault, runtime};
use crate::agent::load::{self, IdentityChange, LoadInputs, Loaded, SignerState};
use crate::agent::{
    self, Examination, ExaminationVerdict, ExitCode, Failure, SignerExamination, Survey,
};
use crate::kube::names::Authority;
use crate::spec::assess::shared_authorities;
use crate::store::NodeRoot;
use crate::x509::TrustBundle;
use report::{PreflightCheck, PreflightReport};

/// How long a signer that is temporarily unavailable is asked again, unless `--wait` is given.
const DEFAULT_WAIT: Duration = Duration::from_secs(5);
/// Checks of `doctor` that decide whether a run can begin. Others judge files that a run replaces, or are part of the
/// survey.
const NODE_CHECKS: &[&str] = &[
    CLOCK_CHECK,
    "unfinished-commit",
    "pending-request",
    "ca-key-on-disk",
    "ca-key-copy",
    "local-signer",
    "secret-exposed",
    "directory-exposed",
    "foreign-owner",
];
const CLOCK_CHECK: &str = "clock-behind";

#[derive(Debug, Args)]
pub(super) struct PreflightArgs {
    #[command(flatten)]
    sources: SourceOptions,
    /// How long to ask a signer again that is temporarily unavailable, for example 90s [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
}

impl PreflightArgs {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let inputs = LoadInputs {
            identity_change: IdentityChange::SHOW_ALL,
            signer_state: SignerState::Discarded,
            wait: Some(self.wait.unwrap_or(DEFAULT_WAIT)),
            ..self.sources.clone().inputs(global)?
        };
        let again = self.sources.command(global, "preflight");
        let command = |verb: &str| self.sources.command(global, verb);
        let report = runtime()?.block_on(examine(&root, inputs, &command));
        let code = match root.machine_fault() {
            Some(_) => ExitCode::Pending,
            None => report.exit_code(),
        };
        let closing = report.closing(&again);
        global.print_document(DocumentKind::Preflight, code, &closing, &report, || {
            report.table(text_style())
        })?;
        Ok(or_machine_fault(&root, code))
    }
}

async fn examine(
    root: &NodeRoot,
    inputs: LoadInputs,
    command: &impl Fn(&str) -> String,
) -> PreflightReport {
    let mut report = PreflightReport::new(root, now());
    let kubeadm = host::kubeadm(root, &inputs).await;
    match load::load_joining(root, &inputs, now).await {
        Ok(loaded) => {
            report.extend(configuration(root, &loaded));
            report.extend(kubeadm);
            report.extend(node_files(root, inputs));
            report.extend(configured(root, &loaded).await);
            report.next = next(root, &loaded, &command("bootstrap"));
            report.import = super::output::next::awaited_import(root, &loaded, command);
        }
        Err(failure) => {
            // A full validation also reports the faults of the second file.
            let failure = load::check(root, &inputs, now()).err().unwrap_or(failure);
            let faults = failure.texts().into_iter();
            report.extend(faults.map(|fault| {
                PreflightCheck::failed("configuration", "", failure.code, fault, None)
            }));
            report.extend(kubeadm);
            report.extend(node_files(root, inputs));
            let skipped = ["signer", "authority", "certificates", "names", "space"];
            report.extend(skipped.map(|id| {
                PreflightCheck::skipped(id, "", "the configuration must be usable first")
            }));
        }
    }
    report
}

/// The checks that need a usable configuration.
async fn configured(root: &NodeRoot, loaded: &Loaded) -> Vec<PreflightCheck> {
    let mut checks = Vec::new();
    let survey = match loaded.setup.survey_of(&loaded.state, now()) {
        Ok(survey) => survey,
        Err(failure) => {
            let message = failure.to_string();
            return vec![PreflightCheck::failed(
                "files",
                "",
                failure.code,
                message,
                None,
            )];
        }
    };
    checks.extend(refusals(&survey));
    if let Err(failure) = agent::require_policy(&loaded.setup, &survey) {
        let message = failure.one_line();
        checks.push(PreflightCheck::failed(
            "configuration",
            "",
            failure.code,
            message,
            None,
        ));
    }
    let examined = agent::examine_signers(&loaded.setup, &survey).await;
    checks.extend(signers(&examined));
    checks.extend(separate_authorities(&survey, &examined));
    checks.extend(host::names(&loaded.setup.plan, &loaded.node).await);
    checks.push(match agent::require_room(root, &loaded.setup, &survey) {
        Ok(()) => PreflightCheck::passed("space", "", "every file can be written"),
        Err(failure) => {
            let message = failure.texts().join("; ");
            PreflightCheck::failed("space", "", failure.code, message, None)
        }
    });
    checks
}

/// Returns what to do after successful checks.
fn next(root: &NodeRoot, loaded: &Loaded, bootstrap: &str) -> Option<String> {
    let survey = loaded.setup.survey(root, now()).ok()?;
    (!survey.is_settled()).then(|| bootstrap.to_owned())
}

fn configuration(root: &NodeRoot, loaded: &Loaded) -> Vec<PreflightCheck> {
    // Reported by the checks `secret-exposed` and `local-signer`.
    let mut elsewhere: BTreeSet<String> = load::exposed_secrets(root, &loaded.settings)
        .into_iter()
        .collect();
    let local = load::local_ca_keys(root, &loaded.settings).into_iter();
    elsewhere.extend(local.map(|found| format!("{found}: {}", load::LOCAL_CA_KEYS_ADVICE)));
    let warnings = loaded
        .warnings
        .iter()
        .filter(|warning| !elsewhere.contains(*warning));
    let warnings: Vec<PreflightCheck> = warnings
        .map(|warning| PreflightCheck::warning("configuration", "", warning.clone(), None))
        .collect();
    let mut warnings = warnings;
    // A pin that does not match is reported with the files of the node.
    let audit = loaded.audit(root, now()).unwrap_or_default();
    let more = audit.warnings.into_iter();
    warnings.extend(more.map(|one| PreflightCheck::warning("configuration", "", one, None)));
    if !warnings.is_empty() {
        return warnings;
    }
    let identity = &loaded.setup.identity;
    let found = format!(
        "node {}, cluster {}, {} certificates",
        identity.node,
        identity.cluster,
        loaded.setup.plan.certs.len()
    );
    vec![PreflightCheck::passed("configuration", "", found)]
}

/// The checks of `doctor` on the files of the node and on the clock.
fn node_files(root: &NodeRoot, sources: LoadInputs) -> Vec<PreflightCheck> {
    let inputs = DiagnosisInputs {
        sources,
        ..DiagnosisInputs::default()
    };
    let mut results = Vec::new();
    for (check, findings) in checks::examine(root, &inputs, NODE_CHECKS, now()) {
        let mut problems = findings
            .into_iter()
            .filter(|finding| finding.severity != FindingSeverity::Info)
            .peekable();
        if problems.peek().is_none() {
            results.push(PreflightCheck::passed(check.id, "", "no finding"));
        }
        results.extend(problems.map(|finding| {
            let evidence = finding.evidence.join("; ");
            let fix = Some(finding.fix);
            // A run waits for time synchronization, and refuses everything else.
            let code = match check.id {
                CLOCK_CHECK => ExitCode::Pending,
                _ => ExitCode::Refused,
            };
            match finding.severity {
                FindingSeverity::Error => PreflightCheck::failed(check.id, "", code, evidence, fix),
                _ => PreflightCheck::warning(check.id, "", evidence, fix),
            }
        }));
    }
    results
}

/// Why a run would be refused because of the files on the node.
fn refusals(survey: &Survey) -> Vec<PreflightCheck> {
    if survey.refusals.is_empty() {
        return vec![PreflightCheck::passed(
            "files",
            "",
            "no file stands against a run",
        )];
    }
    let refusals = survey.refusals.iter();
    refusals
        .map(|why| PreflightCheck::failed("files", "", ExitCode::Refused, why.to_string(), None))
        .collect()
}

fn signers(examined: &Examination) -> Vec<PreflightCheck> {
    let missing = examined.without_signer.iter().map(|missing| {
        let authority = missing.authority.as_str();
        if !missing.is_due {
            return PreflightCheck::warning("signer", authority, missing.consequence(), None);
        }
        let message = missing.failure.texts().join("; ");
        PreflightCheck::failed("signer", authority, missing.failure.code, message, None)
    });
    let examined = examined.signers.iter().flat_map(signer);
    missing.chain(examined).collect()
}

fn signer(signer: &SignerExamination) -> Vec<PreflightCheck> {
    let mut checks = vec![verdict("signer", &signer.name, &signer.login)];
    let is_down = matches!(signer.login, ExaminationVerdict::Failed { .. });
    for examined in &signer.authorities {
        let name = examined.authority.as_str();
        match (is_down, &examined.ca) {
            (true, ExaminationVerdict::Open(why)) => {
                checks.push(PreflightCheck::skipped("authority", name, why.clone()));
                checks.push(PreflightCheck::skipped("certificates", name, why.clone()));
            }
            (_, ca) => {
                checks.push(verdict("authority", name, ca));
                let certificates = examined.certificates.iter();
                checks.extend(certificates.map(|one| verdict("certificates", name, one)));
            }
        }
    }
    checks
}

fn verdict(id: &'static str, subject: &str, verdict: &ExaminationVerdict) -> PreflightCheck {
    match verdict {
        ExaminationVerdict::Passed(found) => PreflightCheck::passed(id, subject, found.clone()),
        ExaminationVerdict::Open(why) => PreflightCheck::warning(id, subject, why.clone(), None),
        ExaminationVerdict::Failed { code, problem, fix } => {
            PreflightCheck::failed(id, subject, *code, problem.clone(), fix.clone())
        }
    }
}

/// Verifies that no authority accepts the certificates of another one, by the CAs on the node or else of the signers.
fn separate_authorities(survey: &Survey, examined: &Examination) -> Vec<PreflightCheck> {
    let offered = |authority: Authority| {
        let signers = examined.signers.iter();
        let mut authorities = signers.flat_map(|signer| &signer.authorities);
        let found = authorities.find(|examined| examined.authority == authority);
        found.and_then(|examined| examined.offered.as_ref())
    };
    let bundles: Vec<(Authority, &TrustBundle, String)> = survey
        .bundles
        .iter()
        // A replaced CA is refused by a check of its own.
        .filter(|bundle| !bundle.is_replaced())
        .filter_map(|bundle| {
            let authority = bundle.spec.authority;
            match bundle.found.present() {
                Some(found) => Some((authority, found, bundle.spec.path.to_string())),
                None => Some((
                    authority,
                    offered(authority)?,
                    format!("the CA of the signer of {authority}"),
                )),
            }
        })
        .collect();
    let known: Vec<_> = bundles
        .iter()
        .map(|(authority, bundle, _)| (*authority, *bundle))
        .collect();
    let shared = shared_authorities(&known);
    if shared.is_empty() {
        let found = match known.len() {
            0 => {
                return vec![PreflightCheck::skipped(
                    "shared-authority",
                    "",
                    "no CA is known",
                )];
            }
            count => format!("{count} separate CAs"),
        };
        return vec![PreflightCheck::passed("shared-authority", "", found)];
    }
    let path = |authority| {
        let mut bundles = bundles.iter();
        bundles
            .find(|(one, ..)| *one == authority)
            .map_or("", |(.., path)| path)
    };
    let shared = shared.into_iter();
    shared
        .map(|one| {
            // A run reports it and continues.
            let evidence = one.sentence(path(one.authority));
            let file = survey.bundles.iter();
            let mut file = file.filter(|bundle| bundle.spec.authority == one.authority);
            let file = file.next().map(|bundle| bundle.spec.path.to_string());
            let file = file.unwrap_or_default();
            PreflightCheck::warning(
                "shared-authority",
                one.authority.as_str(),
                evidence,
                Some(one.fix(&file, survey.has_cluster)),
            )
        })
        .collect()
}
