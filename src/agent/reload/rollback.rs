//! Rolls back a restart after which a component did not become ready: restores the former files, and restarts it again.

use std::time::Duration;

use super::restart::{DueRestart, conf_of};
use super::{ReloadState, Run, names};
use crate::agent::{Event, Failure, audit};
use crate::kube::components::ReplacedFile;
use crate::spec::authority_rotation::RotationSubject;
use crate::store::{AuditEvent, AuditRecord, Commit, FormerContents, Mode, Restart, RestartState};

impl Run<'_> {
    /// Restores the former files of a component that did not become ready, unless they are unusable by now.
    pub(super) async fn roll_back(&mut self, due: &DueRestart, why: String) -> Result<(), Failure> {
        let (restart, component) = (&due.restart, due.component());
        let step = self.trust_step_of(component)?;
        let old = restart.previous.iter();
        let old: Vec<&FormerContents> = old.filter(|file| !file.contents.is_empty()).collect();
        for file in &old {
            if let Some(unusable) = self.probe.is_unusable(file).await {
                let detail = format!(
                    "did not become ready with the new {}: {why}; the new files are kept, since {unusable}; find the cause (log of the component, `crictl ps -a`), then run `nodepki renew` again",
                    names(&restart.causes)
                );
                self.report(component, ReloadState::Failed, detail);
                return Ok(());
            }
        }
        let mut commit = Commit::new();
        for file in &old {
            // An existing file keeps its own mode.
            commit.file(file.path.clone(), file.contents.clone(), Mode::Other(0o600));
        }
        if let Some(name) = conf_of(component) {
            for file in &old {
                if let Some(failed) = self.probe.root.read(&file.path)? {
                    self.remove_unnamed_pair(name, &failed.bytes, &file.contents, &mut commit)?;
                }
            }
        }
        let mut recorded = Restart {
            previous: Vec::new(),
            state: RestartState::RolledBack { why: why.clone() },
            ..restart.clone()
        };
        let mut again = Vec::new();
        if let Some(step) = &step {
            let cause = cause_of(step.former.subject);
            if !recorded.causes.contains(&cause) {
                recorded.causes.push(cause);
            }
            again = self.roll_back_step(step, component, &old, &mut commit)?;
        }
        commit.restart(recorded.clone());
        let restored = if old.is_empty() && step.is_none() {
            self.commit(commit).await?;
            "there are no former files to restore".to_owned()
        } else {
            self.restore(due, commit).await?
        };
        self.report_rollback(recorded, format!("{why}; {restored}"))
            .await?;
        for component in again {
            let detail = format!(
                "uses files that were rolled back, since {} did not become ready; run `nodepki renew`, which restarts it",
                restart.component
            );
            self.report(component, ReloadState::Waits, detail);
        }
        Ok(())
    }

    /// Commits the former files and restarts the component. Returns the result, for the report.
    async fn restore(&mut self, due: &DueRestart, commit: Commit) -> Result<String, Failure> {
        let (component, pod) = (due.component(), due.pod.as_ref());
        // A late answer would delay the rollback.
        let before = self.observe(due, Duration::ZERO).await;
        // The manifest already has an annotation, so it is read again.
        let fresh = self.probe.pod(component).ok().flatten();
        let ended = match self.commit_and_restart(due, fresh.as_ref(), commit).await? {
            Ok(()) => self.proof(component, pod, &before).await,
            Err(why) => Err(why),
        };
        Ok(match ended {
            Ok(proven) => format!("with the old files it is ready: {proven}"),
            Err(why) => format!("with the old files it is not ready either: {why}"),
        })
    }

    /// Records and reports the result of a rollback.
    async fn report_rollback(&mut self, mut recorded: Restart, why: String) -> Result<(), Failure> {
        recorded.state = RestartState::RolledBack { why: why.clone() };
        let mut commit = Commit::new();
        commit.restart(recorded.clone());
        self.commit(commit).await?;
        let detail = rollback_detail(&recorded, &why);
        let component = recorded.component.as_str();
        let names = recorded.causes.iter().map(|cause| cause.as_str());
        let rolled_back = AuditRecord {
            component: Some(component.to_owned()),
            certificate: Some(names.collect::<Vec<_>>().join(",")),
            reason: Some(why.clone()),
            ..AuditRecord::of(AuditEvent::RolledBack)
        };
        audit::append(self.probe.root, (self.probe.clock)(), &[rolled_back]);
        self.progress.event(Event::RolledBack { component, why });
        self.report(recorded.component, ReloadState::RolledBack, detail);
        Ok(())
    }
}

/// Returns the change that a step of this subject always contains.
fn cause_of(subject: RotationSubject) -> ReplacedFile {
    match subject {
        RotationSubject::Authority(authority) => ReplacedFile::Bundle(authority),
        RotationSubject::ServiceAccount => ReplacedFile::ServiceAccount,
    }
}

/// Returns the detail of a rolled-back restart, with the command that requests another attempt.
pub(super) fn rollback_detail(restart: &Restart, why: &str) -> String {
    let certificates: Vec<_> = restart
        .causes
        .iter()
        .filter(|cause| matches!(cause, ReplacedFile::Certificate(_)))
        .map(|cause| cause.as_str())
        .collect();
    let authority = restart.causes.iter().find_map(|cause| match cause {
        ReplacedFile::Bundle(authority) => Some(authority),
        _ => None,
    });
    let is_of_service_account = restart
        .causes
        .iter()
        .any(|cause| cause.is_service_account());
    let again = match (authority, certificates.as_slice()) {
        (Some(authority), _) => {
            format!("repeat the step that `nodepki authority status {authority}` names")
        }
        (None, []) if is_of_service_account => {
            "nodepki.service repeats the step of `nodepki authority watch sa`, or change it again"
                .to_owned()
        }
        (None, []) => "change it again".to_owned(),
        (None, names) => format!("run `nodepki renew --name {}`", names.join(",")),
    };
    format!(
        "did not become ready with the new {}: {why}; it is not retried automatically: find the cause (log of the component, `crictl ps -a`), then {again}",
        names(&restart.causes)
    )
}
