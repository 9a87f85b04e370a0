//! Rolls back a step of a CA change: `ca.crt`, revocation lists, the CA data of kubeconfigs and the record of the change,
//! in the commit that gives the component its old files.
//!
//! The other components of the step are decided on here too: one that has not seen the new files needs no restart, and
//! one that works with them needs another one.

use super::probe::Probe;
use super::restart::{Due, Means};
use super::{Run, State};
use crate::agent::Failure;
use crate::config::reload::On;
use crate::kube::components::{self, Component};
use crate::kube::kubeconfig::Kubeconfig;
use crate::store::{Changed, Commit, Mode, Previous, Restart, RestartState, TrustStep};

impl Run<'_> {
    /// The step of a CA change that a component is restarted for.
    pub(super) fn trust_step_of(&self, component: Component) -> Result<Option<TrustStep>, Failure> {
        let mut steps = self.probe.root.unsettled()?.trust_steps.into_iter();
        Ok(steps.find(|step| step.components.contains(&component)))
    }

    pub(super) fn tell_spared(&mut self, component: Component) {
        let detail = "needs no restart: the new files are rolled back, and it has not read them";
        self.tell(component, State::Done, detail);
    }

    /// The components that still need a restart; reports the others.
    pub(super) fn without_spared(&mut self, due: Vec<Due>) -> Vec<Due> {
        let spared = |(restart, ..): &Due| self.spared.contains(&restart.component);
        let (spared, due): (Vec<_>, Vec<_>) = due.into_iter().partition(spared);
        for (restart, ..) in spared {
            self.tell_spared(restart.component);
        }
        due
    }

    /// Whether a component runs on this node, as far as can be known.
    fn may_run(&self, component: Component) -> bool {
        let pod = self.probe.pod(component);
        component == Component::Kubelet
            || !matches!(pod, Ok(None))
            || matches!(self.means(component, None), Means::Programs(_))
    }

    /// Adds to a commit what rolls a step back, since the component `failed` did not come back with it. `old` are the
    /// files of that component. Returns the components that work with the files of the step.
    pub(super) fn roll_back_step(
        &mut self,
        step: &TrustStep,
        failed: Component,
        old: &[&Previous],
        commit: &mut Commit,
    ) -> Result<Vec<Component>, Failure> {
        let Probe { root, setup, clock } = &self.probe;
        let (former, now) = (&step.former, clock());
        commit.rolls_back(former.authority);
        for file in &former.files {
            commit.file(file.path.clone(), file.contents.clone(), Mode::Public);
        }
        for trusted in &former.kubeconfigs {
            let found = match old.iter().find(|file| file.path == trusted.path) {
                Some(file) => Some(file.contents.clone()),
                None => root.read(&trusted.path)?.map(|content| content.bytes),
            };
            let text = found.and_then(|found| with_authority(&found, &trusted.contents));
            if let Some(text) = text {
                commit.file(trusted.path.clone(), text, Mode::Private);
            }
        }
        let mut changes = root.authority_changes()?;
        let present = match former.change.clone() {
            Some(change) => changes.insert(former.authority, change),
            None => changes.remove(&former.authority),
        };
        if present != former.change {
            commit.authority_changes(changes);
        }
        // Programs were run for the new files.
        let reload = &setup.reload;
        let hooks = reload.hooks.iter().map(|hook| &hook.on);
        let waiting = hooks
            .chain(reload.units.iter().map(|unit| &unit.on))
            .flatten();
        for change in &step.changes {
            if waiting.clone().any(|on| *on == On::Change(*change)) {
                commit.restored(Changed {
                    change: *change,
                    at: now,
                });
            }
        }
        let restarts = root.unsettled()?.restarts;
        let mut again = Vec::new();
        for component in step.components.iter().filter(|one| **one != failed) {
            let recorded = restarts.iter().find(|one| one.component == *component);
            match recorded {
                None if !self.may_run(*component) => {}
                None => {
                    let causes = step.changes.iter().copied();
                    let causes =
                        causes.filter(|cause| components::restarts(*cause).contains(component));
                    commit.restart(Restart {
                        component: *component,
                        since: now,
                        causes: causes.collect(),
                        previous: Vec::new(),
                        state: RestartState::Due,
                    });
                    again.push(*component);
                }
                Some(restart)
                    if restart.since == step.since && !step.due_before.contains(component) =>
                {
                    commit.restarted(*component);
                    self.spared.push(*component);
                }
                Some(_) => {}
            }
        }
        Ok(again)
    }
}

/// The text of a kubeconfig with other CA certificates; `None` if it is not one with CA data.
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
