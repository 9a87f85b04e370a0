//! Restarts static pods that kubeadm did not write and that mount a replaced file, such as kube-vip with admin.conf.
//!
//! A container keeps the inode of a file that it mounts, so it never sees the file that a rename put in its place; a
//! program such as kube-vip also reads its kubeconfig only at its start. The pod is restarted like a component: by the
//! annotation in its manifest, while the node has the Lease and the control plane is healthy. Its own readiness is read from
//! its mirror Pod. Nothing is rolled back, since what the program needs is unknown.
//!
//! The changes stay recorded as unverified until the pod runs again. The annotation is the record of the restart itself: it
//! is written once for the newest change, whatever run continues.

use std::path::PathBuf;

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::lease::RestartLease;
use super::pod::{ANNOTATION, Pod};
use super::restart::NO_LEASE_OF_MEMBER;
use super::{Run, busy_message, names, poll};
use crate::agent::{Failure, RowAction};
use crate::cluster::api::POD;
use crate::kube::components::ReplacedFile;
use crate::kube::manifest::StaticPod;
use crate::node::NodeState;
use crate::node::static_pods::{mounts, other_static_pods};
use crate::store::{Commit, Mode, UnverifiedChange};

/// A static pod that mounts replaced files.
struct MountingPod {
    pod: StaticPod,
    changes: Vec<UnverifiedChange>,
    /// When the newest of the files was replaced.
    since: OffsetDateTime,
}

impl MountingPod {
    fn causes(&self) -> String {
        let files: Vec<ReplacedFile> = self.changes.iter().map(|one| one.change).collect();
        names(&files)
    }

    /// Returns whether the manifest was annotated for the newest change.
    fn is_annotated(&self) -> bool {
        let annotated = self.pod.annotation(ANNOTATION);
        let annotated = annotated.and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
        annotated.is_some_and(|at| at >= self.since)
    }
}

/// A change with the proof that the components of kubeadm use it.
type ProvenChange = (UnverifiedChange, Option<String>);

impl Run<'_> {
    /// Restarts the static pods that mount the replaced files. Returns the changes that no pod waits for any more. The lock
    /// is held neither before nor afterwards.
    pub(super) async fn restart_mounting_pods(
        &mut self,
        mut proven: Vec<ProvenChange>,
    ) -> Result<Vec<ProvenChange>, Failure> {
        let (mut due, mut waiting) = (Vec::new(), Vec::new());
        for found in self.mounting_pods(&proven) {
            if self.runs_since(&found).await.is_ok() {
                continue;
            }
            if found.is_annotated() {
                if !self.verify_pod(&found).await {
                    waiting.extend(found.changes);
                }
            } else if self.probe.setup.reload.static_pods {
                due.push(found);
            } else {
                let detail = format!(
                    "mounts {}, but reload.staticPods does not permit nodepki to restart it: restart it manually",
                    found.causes()
                );
                self.report(&found.pod.name, RowAction::Waits, detail);
                waiting.extend(found.changes);
            }
        }
        if !due.is_empty() {
            waiting.extend(self.restart_pods_with_lease(due).await?);
        }
        self.release_lock();
        proven.retain(|(changed, _)| !waiting.contains(changed));
        Ok(proven)
    }

    /// Returns the static pods that are restarted for a replaced file that they mount.
    pub(super) fn restarted_pods(&self) -> Vec<StaticPod> {
        let state = NodeState::new(self.probe.root, self.probe.setup.layout.clone());
        let mut pods = other_static_pods(&state);
        pods.retain(StaticPod::is_restarted_for_files);
        pods
    }

    /// Returns whether a static pod mounts a file of a change.
    pub(super) fn is_mounted(&self, pod: &StaticPod, change: ReplacedFile) -> bool {
        let setup = self.probe.setup;
        let paths = setup.paths_of(change);
        paths.iter().any(|path| mounts(pod, &setup.layout, path))
    }

    fn mounting_pods(&self, proven: &[ProvenChange]) -> Vec<MountingPod> {
        let pods = self.restarted_pods().into_iter();
        pods.filter_map(|pod| {
            let changes = proven.iter().map(|(changed, _)| changed);
            let changes = changes.filter(|changed| self.is_mounted(&pod, changed.change));
            let changes: Vec<_> = changes.cloned().collect();
            let since = changes.iter().map(|changed| changed.at).max()?;
            Some(MountingPod {
                pod,
                changes,
                since,
            })
        })
        .collect()
    }

    /// Restarts the pods in turn with the other nodes. Returns the changes for which a pod still has to be restarted.
    async fn restart_pods_with_lease(
        &mut self,
        due: Vec<MountingPod>,
    ) -> Result<Vec<UnverifiedChange>, Failure> {
        if let Err(why) = self.await_health(false).await {
            return Ok(self.pods_wait(due, &why));
        }
        let setup = self.probe.setup;
        if !setup.reload.coordinate {
            return self.restart_pods(due, None).await;
        }
        if setup.is_etcd_member() {
            return Ok(self.pods_wait(due, NO_LEASE_OF_MEMBER));
        }
        let lease = match self.restart_lease() {
            Ok(lease) => lease,
            Err(failure) => return Ok(self.pods_wait(due, &failure.to_string())),
        };
        if let Err(why) = lease.take(self.max_wait()).await {
            return Ok(self.pods_wait(due, &why.to_string()));
        }
        let work = self.restart_pods(due, Some(&lease));
        let done = lease.keep_during(work).await;
        lease.release().await;
        done
    }

    fn pods_wait(&mut self, due: Vec<MountingPod>, why: &str) -> Vec<UnverifiedChange> {
        for found in &due {
            let detail = format!(
                "waits to be restarted for {}: {why}; run `nodepki renew` again later",
                found.causes()
            );
            self.report(&found.pod.name, RowAction::Waits, detail);
        }
        due.into_iter().flat_map(|found| found.changes).collect()
    }

    async fn restart_pods(
        &mut self,
        due: Vec<MountingPod>,
        lease: Option<&RestartLease>,
    ) -> Result<Vec<UnverifiedChange>, Failure> {
        let mut waiting = Vec::new();
        let mut stopped: Option<String> = None;
        for found in due {
            if stopped.is_none()
                && let Some(lease) = lease.filter(|lease| lease.is_lost())
            {
                stopped = match lease.take_again(self.max_wait()).await {
                    Ok(()) => self.await_health(false).await.err(),
                    Err(why) => Some(why.to_string()),
                };
            }
            if let Some(why) = &stopped {
                waiting.extend(self.pods_wait(vec![found], why));
                continue;
            }
            if let Some(holder) = self.take_lock().await? {
                waiting.extend(self.pods_wait(vec![found], &busy_message(&holder)));
                continue;
            }
            let annotated = self.annotate_pod(&found.pod.path).await?;
            self.release_lock();
            let is_ready = match annotated {
                Ok(()) => self.verify_pod(&found).await,
                Err(why) => {
                    let detail = format!(
                        "must be restarted for {}, but {} cannot be annotated: {why}; restart it manually",
                        found.causes(),
                        found.pod.path.display()
                    );
                    self.report(&found.pod.name, RowAction::Waits, detail);
                    false
                }
            };
            if !is_ready {
                waiting.extend(found.changes);
            }
        }
        Ok(waiting)
    }

    /// Sets the annotation in the manifest, which makes the kubelet restart the pod.
    pub(super) async fn annotate_pod(
        &mut self,
        path: &PathBuf,
    ) -> Result<Result<(), String>, Failure> {
        let now = (self.probe.clock)();
        let Ok(now) = now.format(&Rfc3339) else {
            return Ok(Err("the time has no RFC 3339 form".to_owned()));
        };
        let Some(found) = self.probe.root.read(path)? else {
            return Ok(Err("the file does not exist any more".to_owned()));
        };
        let text = std::str::from_utf8(&found.bytes).map_err(|error| error.to_string());
        let annotated = text.and_then(|text| Pod::read(text)?.annotated(&now));
        match annotated {
            Ok(text) => {
                let mut commit = Commit::new();
                commit.file(path.clone(), text.into_bytes(), Mode::Private);
                self.commit(commit).await?;
                Ok(Ok(()))
            }
            Err(why) => Ok(Err(why)),
        }
    }

    /// Waits until a pod whose manifest was annotated runs again, and reports it. Returns whether it does.
    async fn verify_pod(&mut self, found: &MountingPod) -> bool {
        let timeout = self.probe.setup.reload.timeout;
        let give_up = Instant::now() + timeout;
        let ended = poll(give_up, async || self.runs_since(found).await).await;
        let causes = found.causes();
        let name = found.pod.name.as_str();
        match ended {
            Ok(proof) => {
                let detail = format!("was restarted for {causes}: {proof}");
                self.report(name, RowAction::InEffect, detail);
                true
            }
            Err(why) => {
                let detail = format!(
                    "was restarted for {causes}, but did not become ready within {} s: {why}; see its log (`crictl ps -a`), then run `nodepki renew`, which repeats this check",
                    timeout.as_secs()
                );
                self.report(name, RowAction::Failed, detail);
                false
            }
        }
    }

    /// Returns the proof that all containers of a pod were started after the change and are ready, by its mirror Pod.
    async fn runs_since(&self, found: &MountingPod) -> Result<String, String> {
        let setup = self.probe.setup;
        let api = self.probe.api(&setup.reload.lease.kubeconfig);
        let api = api.map_err(|error| error.to_string())?;
        let StaticPod {
            name, namespace, ..
        } = &found.pod;
        let mirror = format!("{name}-{}", setup.node);
        let read = api.read(&POD, Some(namespace), &mirror).await;
        let pod = read.map_err(|error| error.to_string())?;
        let pod = pod.ok_or_else(|| format!("the Pod {namespace}/{mirror} does not exist"))?;
        is_running_since(&pod, found.since)?;
        Ok(format!("the Pod {namespace}/{mirror} runs and is ready"))
    }
}

/// Verifies that all containers of a Pod were started after `since` and are ready.
fn is_running_since(pod: &Value, since: OffsetDateTime) -> Result<(), String> {
    let statuses = pod
        .pointer("/status/containerStatuses")
        .and_then(Value::as_array);
    let statuses = statuses.filter(|statuses| !statuses.is_empty());
    for status in statuses.ok_or("the status of its containers is not known")? {
        let name = status.get("name").and_then(Value::as_str);
        let name = name.unwrap_or_default();
        let started = status
            .pointer("/state/running/startedAt")
            .and_then(Value::as_str)
            .and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok())
            .ok_or_else(|| format!("container {name} does not run"))?;
        // The time has whole seconds: a container that was started in the same second may have read the former file.
        if started <= since {
            return Err(format!("container {name} is still the one from before"));
        }
        if status.get("ready") != Some(&Value::Bool(true)) {
            return Err(format!("container {name} is not ready"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn requires_that_all_containers_started_after_the_change() {
        let since = datetime!(2026-11-23 12:00:00.5 UTC);
        let pod = |containers: Value| json!({"status": {"containerStatuses": containers}});
        let container = |started: &str, ready: bool| json!({"name": "vip", "ready": ready, "state": {"running": {"startedAt": started}}});
        let (old, new) = ("2026-11-23T12:00:00Z", "2026-11-23T12:00:20Z");
        let cases = [
            (json!([container(new, true)]), None),
            (
                json!([container(new, true), container(old, true)]),
                Some("container vip is still the one from before"),
            ),
            (
                json!([container(new, false)]),
                Some("container vip is not ready"),
            ),
            (
                json!([{"name": "vip", "state": {"waiting": {}}}]),
                Some("container vip does not run"),
            ),
            (json!([]), Some("the status of its containers is not known")),
        ];
        for (containers, problem) in cases {
            let found = is_running_since(&pod(containers), since).err();
            assert_eq!(found.as_deref(), problem);
        }
    }
}
