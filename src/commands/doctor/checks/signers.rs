//! Checks of the signers, by the same examination as `nodepki preflight`.

use time::OffsetDateTime;

use super::finding::{CheckNote, DiagnosisInputs, FindingSeverity};
use super::picture::Picture;
use crate::agent::{self, Examination, ExaminationVerdict, Failure, SignerExamination, load};
use crate::store::NodeRoot;

/// Fix of a failure whose evidence contains it.
const AS_STATED: &str = "correct what the message names, and verify it with `nodepki preflight`";

/// Examines the signers of the configuration.
///
/// # Errors
/// A configuration or a file that cannot be used, or data that a joining node takes from its cluster.
pub(super) async fn examine(
    root: &NodeRoot,
    inputs: &DiagnosisInputs,
    now: OffsetDateTime,
) -> Result<Examination, Failure> {
    let loaded = load::load(root, &inputs.sources, now)?;
    let survey = loaded.setup.survey_of(&loaded.state, now)?;
    Ok(agent::examine_signers(&loaded.setup, &survey).await)
}

pub(super) fn missing(picture: &Picture) -> Vec<CheckNote> {
    let missing = picture.signers.iter();
    missing
        .flat_map(|examined| &examined.without_signer)
        .map(|missing| {
            if missing.is_due {
                CheckNote::error(missing.failure.to_string(), AS_STATED)
            } else {
                CheckNote::warning(
                    missing.consequence(),
                    "name a signer, or do nothing if requests are signed offline",
                )
            }
        })
        .collect()
}

pub(super) fn login(picture: &Picture) -> Vec<CheckNote> {
    // The check `config-unusable` reports a faulty configuration.
    let unknown = picture.signers_unknown.iter();
    let unknown = unknown.filter(|_| picture.configuration.faults.is_empty());
    let unknown = unknown.map(|why| {
        CheckNote::error(
            format!("no signer was examined: {why}"),
            "run `nodepki preflight`, which reads what a joining node lacks from its cluster; otherwise correct what the message names",
        )
    });
    let examined = signers(picture)
        .filter_map(|signer| note(&signer.name, &signer.login, FindingSeverity::Warning));
    unknown.chain(examined).collect()
}

pub(super) fn authority(picture: &Picture) -> Vec<CheckNote> {
    signers(picture)
        .filter(|signer| !matches!(signer.login, ExaminationVerdict::Failed { .. }))
        .flat_map(|signer| &signer.authorities)
        .filter_map(|examined| {
            note(
                examined.authority.as_str(),
                &examined.ca,
                FindingSeverity::Info,
            )
        })
        .collect()
}

pub(super) fn profile(picture: &Picture) -> Vec<CheckNote> {
    signers(picture)
        .filter(|signer| !matches!(signer.login, ExaminationVerdict::Failed { .. }))
        .flat_map(|signer| &signer.authorities)
        .flat_map(|examined| {
            let name = examined.authority.as_str();
            let verdicts = examined.certificates.iter();
            verdicts.filter_map(move |verdict| note(name, verdict, FindingSeverity::Info))
        })
        .collect()
}

fn signers(picture: &Picture) -> impl Iterator<Item = &SignerExamination> {
    picture
        .signers
        .iter()
        .flat_map(|examined| &examined.signers)
}

/// Returns the note on a verdict; `open` is the severity of one that could not be reached.
fn note(subject: &str, verdict: &ExaminationVerdict, open: FindingSeverity) -> Option<CheckNote> {
    match verdict {
        ExaminationVerdict::Passed(_) => None,
        ExaminationVerdict::Open(why) => Some(CheckNote::new(
            open,
            format!("{subject}: {why}"),
            "nothing; the next run that requests a certificate verifies it",
        )),
        ExaminationVerdict::Failed { problem, fix, .. } => Some(CheckNote::error(
            format!("{subject}: {problem}"),
            fix.as_deref().unwrap_or(AS_STATED),
        )),
    }
}
