//! Runs hooks, units and restarts of static pods that are configured for replaced files.

use std::path::PathBuf;
use std::time::Duration;

use super::{Run, names};
use crate::agent::{Failure, RowAction};
use crate::config::reload::{On, Unit};
use crate::kube::components::ReplacedFile;
use crate::kube::paths::MANIFESTS_DIR;
use crate::signer::exec;
use crate::store::UnverifiedChange;

/// Starts and reloads units.
const SYSTEMCTL: &str = "/usr/bin/systemctl";
/// Timeout of one systemctl command.
const UNIT_TIMEOUT: Duration = Duration::from_secs(90);

/// One program to run.
pub(super) struct Program {
    pub(super) command: Vec<String>,
    pub(super) limit: Duration,
}

impl Run<'_> {
    /// Runs the hooks and units that are configured for these changes, and restarts the static pods of registered
    /// certificates. Returns the changes for which one of them failed.
    pub(super) async fn programs_of(
        &mut self,
        seen: &[UnverifiedChange],
    ) -> Result<Vec<ReplacedFile>, Failure> {
        let mut failed = Vec::new();
        let setup = self.probe.setup;
        let causes = |is_trigger: &dyn Fn(ReplacedFile) -> bool| -> Vec<ReplacedFile> {
            let changes = seen.iter().map(|changed| changed.change);
            changes.filter(|change| is_trigger(*change)).collect()
        };
        let of = |on: &[On]| causes(&|change| on.iter().any(|on| on.concerns(change)));
        let hooks = setup.reload.hooks.iter().map(|hook| {
            let program = Program {
                command: hook.command.clone(),
                limit: hook.timeout,
            };
            (of(&hook.on), program)
        });
        let units = setup.reload.units.iter();
        let units = units.map(|unit| (of(&unit.on), of_unit(unit)));
        let due = |causes: &[ReplacedFile]| !causes.is_empty();
        for (causes, program) in hooks.chain(units).filter(|(causes, _)| due(causes)) {
            let shown = program.command.join(" ");
            match program.run(&causes).await {
                Ok(()) => self.report(
                    shown,
                    RowAction::InEffect,
                    format!("was run for {}", names(&causes)),
                ),
                Err(why) => {
                    let detail = format!(
                        "{why}; correct the cause, then run `nodepki renew`, which runs it again for {}",
                        names(&causes)
                    );
                    self.report(shown, RowAction::Failed, detail);
                    failed.extend(causes);
                }
            }
        }
        let pods = setup.pods.iter();
        let pods = pods.map(|one| (causes(&|change| one.on.contains(&change)), &one.pod));
        for (causes, pod) in pods.filter(|(causes, _)| due(causes)) {
            let (action, detail) = match self.restart_pod(pod, &causes).await? {
                Ok(outcome) => outcome,
                Err(why) => {
                    failed.extend(causes.iter().copied());
                    let detail = format!(
                        "was not restarted for {}: {why}; correct the cause, then run `nodepki renew`, which tries again",
                        names(&causes)
                    );
                    (RowAction::Failed, detail)
                }
            };
            self.report(format!("static pod {pod}"), action, detail);
        }
        Ok(failed)
    }

    /// Restarts a static pod by the annotation in its manifest. The kubelet then stops and starts it; whether its component
    /// becomes ready is not verified.
    async fn restart_pod(
        &mut self,
        name: &str,
        causes: &[ReplacedFile],
    ) -> Result<Result<(RowAction, String), String>, Failure> {
        let path = PathBuf::from(format!("{MANIFESTS_DIR}/{name}.yaml"));
        match self.probe.root.read(&path) {
            Ok(Some(_)) => {}
            Ok(None) => {
                let detail = format!("does not run here: {} does not exist", path.display());
                return Ok(Ok((RowAction::NotHere, detail)));
            }
            Err(error) => return Ok(Err(error.to_string())),
        }
        if let Err(why) = self.settle_kubelet().await {
            return Ok(Err(why));
        }
        // Another process may have replaced the manifest during the wait.
        if let Err(why) = self.annotate_pod(&path).await? {
            return Ok(Err(format!("{}: {why}", path.display())));
        }
        let detail = format!("is restarted by the kubelet for {}", names(causes));
        Ok(Ok((RowAction::InEffect, detail)))
    }
}

impl Program {
    pub(super) async fn run(&self, causes: &[ReplacedFile]) -> Result<(), String> {
        let changed: Vec<_> = causes.iter().map(|change| change.as_str()).collect();
        let env = [("NODEPKI_CHANGED", changed.join(","))];
        exec::run(&self.command, &env, self.limit).await
    }
}

pub(super) fn of_unit(unit: &Unit) -> Program {
    systemctl(unit.action.as_str(), &unit.unit)
}

pub(super) fn systemctl(verb: &str, unit: &str) -> Program {
    let words = [SYSTEMCTL, verb, "--", unit];
    Program {
        command: words.map(str::to_owned).to_vec(),
        limit: UNIT_TIMEOUT,
    }
}
