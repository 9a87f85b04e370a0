//! Rolls back a step of a CA change: `ca.crt`, revocation lists, the CA data of kubeconfigs and the record of the
//! change, in the commit that restores the old files of the component. Likewise the service-account pair.
//!
//! It also decides about the other components of the step: a component that has not read the new files needs no restart,
//! and a component that uses them needs another restart.

use super::Run;
use super::probe::Probe;
use super::restart::{DueRestart, RestartMethod};
use crate::agent::{Failure, RowAction};
use crate::kube::components::{self, Component, ReplacedFile};
use crate::kube::kubeconfig::Kubeconfig;
use crate::spec::authority_rotation::RotationSubject;
use crate::store::{Commit, FormerContents, Mode, Restart, TrustStep, UnverifiedChange};

impl Run<'_> {
    /// Returns the step of a CA change for which a component is restarted.
    pub(super) fn trust_step_of(&self, component: Component) -> Result<Option<TrustStep>, Failure> {
        let mut steps = self.probe.root.unsettled()?.trust_steps.into_iter();
        Ok(steps.find(|step| step.components.contains(&component)))
    }

    pub(super) fn report_spared(&mut self, component: Component) {
        let detail = "needs no restart: the new files are rolled back, and it has not read them";
        self.report(component, RowAction::InEffect, detail);
    }

    /// Returns the components that still need a restart, and reports the others.
    pub(super) fn without_spared(&mut self, due: Vec<DueRestart>) -> Vec<DueRestart> {
        let spared = |due: &DueRestart| self.spared.contains(&due.component());
        let (spared, due): (Vec<_>, Vec<_>) = due.into_iter().partition(spared);
        for due in spared {
            self.report_spared(due.component());
        }
        due
    }

    /// Returns whether a component runs on this node, as far as can be determined.
    fn may_run(&self, component: Component) -> bool {
        let pod = self.probe.pod(component);
        component == Component::Kubelet
            || !matches!(pod, Ok(None))
            || matches!(self.method(component, None), RestartMethod::Programs(_))
    }

    /// Adds the rollback of a step to a commit, since the component `failed` did not become ready. `old` are the former
    /// files of that component. Returns the components that use the files of the step.
    pub(super) fn roll_back_step(
        &mut self,
        step: &TrustStep,
        failed: Component,
        old: &[&FormerContents],
        commit: &mut Commit,
    ) -> Result<Vec<Component>, Failure> {
        let Probe { root, clock, .. } = self.probe;
        let (former, now) = (&step.former, clock());
        commit.rolls_back(former.subject);
        // An existing file keeps its own mode.
        let mode = match former.subject {
            RotationSubject::Authority(_) => Mode::Public,
            RotationSubject::ServiceAccount => Mode::Private,
        };
        for file in &former.files {
            commit.file(file.path.clone(), file.contents.clone(), mode);
        }
        for trusted in &former.kubeconfigs {
            // The same commit restores this file for the component, and one commit writes one text to a path.
            let found = match old.iter().find(|file| file.path == trusted.path) {
                Some(file) => Some(file.contents.clone()),
                None => root.read(&trusted.path)?.map(|content| content.bytes),
            };
            // Only the CA data: the client certificate in it may have been renewed since the step.
            let text = found.and_then(|found| with_authority(&found, &trusted.contents));
            if let Some(text) = text {
                commit.file(trusted.path.clone(), text, Mode::Private);
            }
        }
        if let RotationSubject::Authority(authority) = former.subject {
            let mut changes = root.authority_changes()?;
            let present = match former.change.clone() {
                Some(change) => changes.insert(authority, change),
                None => changes.remove(&authority),
            };
            if present != former.change {
                commit.authority_changes(changes);
            }
        }
        self.record_restored(&step.changes, commit);
        let restarts = root.unsettled()?.restarts;
        let mut again = Vec::new();
        for component in step.components.iter().filter(|one| **one != failed) {
            let recorded = restarts.iter().find(|one| one.component == *component);
            match recorded {
                None if !self.may_run(*component) => {}
                // It was restarted since the step, and uses files that are no longer in place.
                None => {
                    let causes = step.changes.iter().copied();
                    let causes = causes.filter(|cause| {
                        components::components_to_restart(*cause).contains(component)
                    });
                    commit.restart(Restart::due(*component, now, causes.collect()));
                    again.push(*component);
                }
                Some(restart)
                    if restart.since == step.since
                        && !step.due_before.contains(component)
                        && self.begun != Some(*component) =>
                {
                    // It was due for this step only, and still works with the files that are restored.
                    commit.restarted(*component);
                    self.spared.push(*component);
                }
                Some(_) => {}
            }
        }
        Ok(again)
    }

    /// Adds restored files to a commit: programs that were run for the new ones must run again, and pods that may have
    /// read them must restart. The next run does that.
    pub(super) fn record_restored(&mut self, changes: &[ReplacedFile], commit: &mut Commit) {
        let Probe { setup, clock, .. } = self.probe;
        let (reload, at) = (&setup.reload, clock());
        let hooks = reload.hooks.iter().map(|hook| &hook.on);
        let waiting = hooks
            .chain(reload.units.iter().map(|unit| &unit.on))
            .flatten();
        let pods = setup.pods.iter();
        let mounting = self.restarted_pods();
        for change in changes.iter().copied() {
            if waiting.clone().any(|on| on.concerns(change))
                || pods.clone().any(|pod| pod.on.contains(&change))
                || mounting.iter().any(|pod| self.is_mounted(pod, change))
            {
                commit.restored(UnverifiedChange { change, at });
                let detail = "is restored; run `nodepki renew`, which repeats the hooks, units and restarts of pods for it";
                self.report(change, RowAction::Waits, detail);
            }
        }
    }
}

/// Returns a kubeconfig with other CA certificates; `None` if it is not a kubeconfig with embedded CA data.
fn with_authority(text: &[u8], authority: &[u8]) -> Option<zeroize::Zeroizing<Vec<u8>>> {
    let found = std::str::from_utf8(text).ok()?;
    let mut document = Kubeconfig::parse(found).ok()?;
    let present = document.current().ok()?.authority?;
    if present == authority {
        return Some(text.to_vec().into());
    }
    document
        .set_authority(std::str::from_utf8(authority).ok()?)
        .ok()?;
    Some(document.to_yaml().as_bytes().to_vec().into())
}

#[cfg(test)]
mod tests {
    use super::super::ReloadSetup;
    use super::super::tests::NOW;
    use super::*;
    use crate::store::{FormerTrust, NodeRoot};

    #[tokio::test]
    async fn restarts_static_pods_that_mount_files_of_rolled_back_step() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let manifests = dir.path().join("etc/kubernetes/manifests");
        std::fs::create_dir_all(&manifests).unwrap();
        std::fs::create_dir_all(dir.path().join("etc/kubernetes/pki")).unwrap();
        let pod = serde_json::json!({"spec": {
            "containers": [{"volumeMounts": [{"name": "key", "mountPath": "/sa.key"}]}],
            "volumes": [{"name": "key", "hostPath": {"path": "/etc/kubernetes/pki/sa.key"}}],
        }});
        std::fs::write(manifests.join("signer.yaml"), pod.to_string()).unwrap();
        let setup = ReloadSetup::of_tests();
        let mut run = Run::of_tests(&root, &setup);
        let step = TrustStep {
            former: FormerTrust {
                subject: RotationSubject::ServiceAccount,
                change: None,
                files: Vec::new(),
                kubeconfigs: Vec::new(),
            },
            since: NOW,
            changes: vec![
                ReplacedFile::ServiceAccount,
                ReplacedFile::ServiceAccountPublic,
            ],
            components: vec![Component::KubeApiserver],
            due_before: Vec::new(),
        };
        let mut commit = Commit::new();
        run.roll_back_step(&step, Component::KubeApiserver, &[], &mut commit)
            .unwrap();
        run.commit(commit).await.unwrap();
        let expected = UnverifiedChange {
            change: ReplacedFile::ServiceAccount,
            at: NOW,
        };
        assert_eq!(root.unsettled().unwrap().changed, [expected]);
    }
}
