//! What a bootstrap would do, and with what it would end. Reads files of this machine only.

use time::OffsetDateTime;

use super::examine::foreign_local_signers;
use super::load::Loaded;
use super::{ExitCode, Failure, RunReport, Survey, SurveyedCert, report, require_policy};
use crate::node::static_pods;
use crate::store::NodeRoot;

/// A bootstrap that is not run.
pub struct PlannedBootstrap {
    /// The state of the node, compared with the plan.
    pub survey: Survey,
    /// What would be done.
    pub report: RunReport,
    /// With what the run would end, as far as it is known without asking a signer or the cluster.
    pub code: ExitCode,
}

/// Returns what a bootstrap would do now.
///
/// # Errors
/// A file of the node that the store cannot read.
pub async fn plan_bootstrap(
    root: &NodeRoot,
    loaded: &Loaded,
    now: OffsetDateTime,
) -> Result<PlannedBootstrap, Failure> {
    let setup = &loaded.setup;
    let mut survey = setup.survey(root, now)?;
    survey.notes.extend(static_pods::notes(&loaded.state));
    let obstacles = loaded.obstacles(root, &survey, now);
    let obstacle = obstacles.require_usable().err();
    // Warnings name what is exposed.
    survey.notes.extend(obstacles.unusable);
    let foreign = foreign_local_signers(setup, &survey).await;
    survey.notes.extend(foreign.iter().flat_map(Failure::texts));
    let unread_policy = require_policy(setup, &survey).err();
    let unread_policy = unread_policy.filter(|_| survey.refusals.is_empty());
    survey
        .notes
        .extend(unread_policy.iter().flat_map(Failure::texts));
    let report = report::planned(setup, &survey);
    let failures = obstacle.iter().chain(&foreign).chain(&unread_policy);
    let failures = failures.map(|failure| failure.code);
    let mut code = failures.fold(report.code(), ExitCode::max);
    let lacks_signer = |cert: &SurveyedCert| !setup.signers.contains_key(&cert.spec.authority());
    if !survey.refusals.is_empty() {
        code = code.max(ExitCode::Refused);
    } else if survey.to_issue().any(lacks_signer) {
        // The report names the authorities.
        code = code.max(ExitCode::Configuration);
    }
    Ok(PlannedBootstrap {
        survey,
        report,
        code,
    })
}
