//! Restarts components: when, in which order and by which method.

use std::collections::VecDeque;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, sleep};

use super::lease::{LeaseUnavailable, RestartLease};
use super::pod::Pod;
use super::probe::HostPathVolumes;
use super::programs::{Program, of_unit, systemctl};
use super::restarted::StateBefore;
use super::rollback::rollback_detail;
use super::{Run, busy_message, names};
use crate::agent::{Event, Failure, RowAction, audit};
use crate::config::reload::On;
use crate::kube::components::Component;
use crate::kube::names::CertName;
use crate::process::failpoint;
use crate::spec::assess::read_kubeconfig;
use crate::spec::{CertFiles, kubeconfig_path};
use crate::store::{AuditRecord, Commit, Mode, Restart, RestartState};
use crate::text::rfc3339;

/// A credential is about to expire if less than this, or less than a tenth of its lifetime, is left.
const EXPIRY_MARGIN: time::Duration = time::Duration::HOUR;
/// Why an etcd member restarts nothing while restarts are coordinated.
pub(super) const NO_LEASE_OF_MEMBER: &str = "an etcd member has no API server whose Lease the members could take in turn; set reload.coordinateWithLease: false, then run `nodepki renew` on one member after the other";
const KUBELET_UNIT: &str = "kubelet.service";
/// How long the kubelet waits for the volumes of a pod (`podAttachAndMountTimeout` in
/// `pkg/kubelet/volumemanager/volume_manager.go`).
const VOLUME_TIMEOUT: Duration = Duration::from_secs(123);
/// How long the kubelet's number of volumes must be unchanged until it is considered complete.
const SETTLED_FOR: Duration = Duration::from_secs(2);
const KUBELET_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How a component is restarted.
pub(super) enum RestartMethod {
    /// By an annotation in the manifest.
    Pod,
    /// By programs.
    Programs(Vec<Program>),
    /// By an administrator: nodepki cannot restart it.
    Manual,
}

/// A component to be restarted.
pub(super) struct DueRestart {
    pub(super) restart: Restart,
    /// Its static pod, if it runs as one.
    pub(super) pod: Option<Pod>,
    pub(super) method: RestartMethod,
}

impl DueRestart {
    pub(super) fn component(&self) -> Component {
        self.restart.component
    }
}

/// Why a restart was not begun.
pub(super) enum NotBegun {
    /// The component cannot use the new files, or a program failed: they are rolled back.
    Failed(String),
    /// The manifest cannot be annotated any more: a later run tries again.
    Postponed(String),
}

/// What a recorded restart needs.
enum RestartVerdict {
    Due(Box<DueRestart>),
    /// The restart is not needed any more; the report, if one is needed.
    Over(Box<Restart>, Option<(RowAction, String)>),
    /// It stays recorded, and is not done now.
    Remains(RowAction, String),
}

impl Run<'_> {
    /// Restarts the components whose restart is recorded.
    pub(super) async fn restarts(&mut self) -> Result<(), Failure> {
        if self.probe.root.unsettled()?.restarts.is_empty() {
            return Ok(());
        }
        let holder = self.take_lock().await?;
        let restarts = self.probe.root.unsettled()?.restarts;
        if let Some(holder) = holder {
            for restart in restarts {
                self.report(restart.component, RowAction::Waits, busy_message(&holder));
            }
            return Ok(());
        }
        let mut due = Vec::new();
        let mut over = Commit::new();
        for restart in restarts {
            let component = restart.component;
            let report = match self.verdict(restart).await {
                RestartVerdict::Due(restart) => {
                    due.push(*restart);
                    continue;
                }
                RestartVerdict::Over(former, report) => {
                    over.restarted(component);
                    self.remove_former_pair(&former, &mut over)?;
                    report
                }
                RestartVerdict::Remains(action, detail) => Some((action, detail)),
            };
            if let Some((action, detail)) = report {
                self.report(component, action, detail);
            }
        }
        if !over.is_empty() {
            self.commit(over).await?;
        }
        self.restart_all(due).await
    }

    /// Decides about a recorded restart.
    async fn verdict(&self, restart: Restart) -> RestartVerdict {
        let component = restart.component;
        let causes = names(&restart.causes);
        if let RestartState::RolledBack { why } = &restart.state {
            let detail = rollback_detail(&restart, why);
            return RestartVerdict::Remains(RowAction::RolledBack, detail);
        }
        let pod = match self.probe.pod(component) {
            Ok(pod) => pod,
            Err(why) => return RestartVerdict::Remains(RowAction::Failed, unreadable(&why)),
        };
        let method = self.method(component, pod.as_ref());
        if let (RestartMethod::Manual, None) = (&method, &pod) {
            // The component does not run here, as far as can be determined.
            let report = (component == Component::Kubelet).then(|| {
                let detail =
                    format!("is not run by systemd here: restart it for {causes}, if it runs");
                (RowAction::NotHere, detail)
            });
            return RestartVerdict::Over(Box::new(restart), report);
        }
        if let Some(pod) = &pod
            && self
                .probe
                .started_after(component, pod, restart.since)
                .await
        {
            let detail = "was already restarted by another process".to_owned();
            let report = Some((RowAction::InEffect, detail));
            return RestartVerdict::Over(Box::new(restart), report);
        }
        if let RestartMethod::Manual = method {
            let detail = format!(
                "must be restarted for {causes}, but neither reload.staticPods nor a unit or hook on {component} permits nodepki to do so: restart it manually"
            );
            return RestartVerdict::Remains(RowAction::Waits, detail);
        }
        if let (RestartMethod::Pod, Some(pod)) = (&method, &pod)
            && let Err(why) = pod.annotated("")
        {
            let detail = format!(
                "must be restarted for {causes}, but its manifest cannot be annotated: {why}; restart it manually, or name a unit or hook on {component} under reload"
            );
            return RestartVerdict::Remains(RowAction::Waits, detail);
        }
        RestartVerdict::Due(Box::new(DueRestart {
            restart,
            pod,
            method,
        }))
    }

    /// Restarts the components in their order, the static pods with the Lease. The lock is held at the start.
    async fn restart_all(&mut self, due: Vec<DueRestart>) -> Result<(), Failure> {
        let (mut kubelet, pods): (Vec<_>, Vec<_>) = due
            .into_iter()
            .partition(|due| due.component() == Component::Kubelet);
        // The kubelet is last, since it restarts no pod reliably while it starts itself: see `settle_kubelet`. One that is
        // unhealthy restarts no pod at all.
        if self.probe.kubelet().await.is_err() {
            self.in_order(std::mem::take(&mut kubelet), None).await?;
        }
        self.release_lock();
        let pods = self.without_spared(pods);
        if !pods.is_empty() {
            let done = self.restart_with_lease(pods).await;
            self.release_lock();
            done?;
        }
        let kubelet = if kubelet.is_empty() {
            kubelet
        } else {
            self.still_due(kubelet).await?
        };
        let done = self.in_order(kubelet, None).await;
        self.release_lock();
        done
    }

    /// Waits until the kubelet has mounted the volumes of all static pods. Returns the reason if they are not mounted in
    /// time.
    ///
    /// A kubelet that has just started runs one worker for each pod, which waits for the pod's volumes. If the manifest
    /// changes before they are mounted, they are never mounted, since the old pod is no longer desired, and its container
    /// continues to run until the worker times out after [`VOLUME_TIMEOUT`]. `/healthz` does not show this state, the
    /// kubelet's metrics do.
    pub(super) async fn settle_kubelet(&self) -> Result<(), String> {
        let limit = VOLUME_TIMEOUT + SETTLED_FOR;
        self.await_until(
            Component::Kubelet,
            "it has mounted the volumes of the static pods",
            limit,
        );
        let give_up = Instant::now() + limit;
        let mut since: Option<(HostPathVolumes, Instant)> = None;
        loop {
            let volumes = match self.probe.host_path_volumes().await {
                Ok(volumes) => volumes,
                Err(error) => {
                    tracing::debug!("the kubelet's metrics cannot be read: {error}");
                    return Ok(());
                }
            };
            since = match since {
                Some((before, at)) if before == volumes => Some((before, at)),
                _ => Some((volumes, Instant::now())),
            };
            let stable = since.is_some_and(|(_, at)| at.elapsed() >= SETTLED_FOR);
            if stable && volumes.are_mounted() {
                return Ok(());
            }
            if Instant::now() >= give_up {
                let seconds = (VOLUME_TIMEOUT + SETTLED_FOR).as_secs();
                return Err(format!(
                    "the kubelet has not mounted the volumes of its pods within {seconds} s ({volumes})"
                ));
            }
            sleep(KUBELET_POLL_INTERVAL).await;
        }
    }

    /// Takes the lock after a wait without it. Returns the components that no other run has restarted meanwhile; none if
    /// another run holds the lock.
    async fn still_due(&mut self, due: Vec<DueRestart>) -> Result<Vec<DueRestart>, Failure> {
        if let Some(holder) = self.take_lock().await? {
            self.all_wait(&due, &busy_message(&holder));
            return Ok(Vec::new());
        }
        let recorded = self.probe.root.unsettled()?.restarts;
        let mut left = Vec::new();
        for due in due {
            let component = due.component();
            let mut found = recorded.iter();
            match found.find(|found| found.component == component) {
                None if self.spared.contains(&component) => self.report_spared(component),
                None => self.report(
                    component,
                    RowAction::InEffect,
                    "was restarted by another run",
                ),
                Some(found) => match (&found.state, &due.pod) {
                    (RestartState::RolledBack { why }, _) => {
                        self.report(
                            component,
                            RowAction::RolledBack,
                            rollback_detail(found, why),
                        );
                    }
                    (RestartState::Due, None) => left.push(DueRestart {
                        restart: found.clone(),
                        ..due
                    }),
                    // The other run may have annotated it.
                    (RestartState::Due, Some(_)) => match self.probe.pod(component) {
                        Ok(pod) => left.push(DueRestart {
                            restart: found.clone(),
                            pod,
                            ..due
                        }),
                        Err(why) => self.report(component, RowAction::Failed, unreadable(&why)),
                    },
                },
            }
        }
        Ok(left)
    }

    /// Restarts the components if the control plane is healthy and this node gets the Lease.
    async fn restart_with_lease(&mut self, due: Vec<DueRestart>) -> Result<(), Failure> {
        if let Err(why) = self.await_health(disturbs_etcd(&due)).await {
            let reason = format!(
                "nothing was restarted, since {why}; run `nodepki renew` again once the control plane is healthy"
            );
            self.all_wait(&due, &reason);
            return Ok(());
        }
        let setup = self.probe.setup;
        if !setup.reload.coordinate {
            let due = self.still_due(due).await?;
            return self.in_order(due, None).await;
        }
        if setup.is_etcd_member() {
            self.all_wait(&due, NO_LEASE_OF_MEMBER);
            return Ok(());
        }
        let lease = match self.restart_lease() {
            Ok(lease) => lease,
            Err(failure) => return self.restart_without_lease(due, &failure.to_string()).await,
        };
        let limit = self.max_wait();
        self.await_until("the Lease of restarts", "no other node holds it", limit);
        match lease.take(limit).await {
            Ok(()) => {
                let work = async {
                    let due = self.still_due(due).await?;
                    self.in_order(due, Some(&lease)).await
                };
                let done = lease.keep_during(work).await;
                // A run of this node that holds the lock may rely on the Lease, which is the node's.
                if self.store.is_some() {
                    lease.release().await;
                }
                done
            }
            Err(held @ LeaseUnavailable::Held(_)) => {
                self.all_wait(&due, &format!("{held}; run `nodepki renew` again later"));
                Ok(())
            }
            Err(LeaseUnavailable::Unknown(failure)) => {
                self.restart_without_lease(due, &failure.to_string()).await
            }
        }
    }

    /// Restarts, without the Lease, only the components that cannot wait.
    async fn restart_without_lease(
        &mut self,
        due: Vec<DueRestart>,
        why: &str,
    ) -> Result<(), Failure> {
        let now = (self.probe.clock)();
        let (urgent, rest): (Vec<_>, Vec<_>) = due
            .into_iter()
            .partition(|due| self.cannot_wait(&due.restart, now).is_some());
        self.all_wait(&rest, &format!("another node may hold the Lease: {why}"));
        for DueRestart { restart, .. } in &urgent {
            if let Some(reason) = self.cannot_wait(restart, now) {
                tracing::warn!(component = %restart.component, "restarted without the Lease ({why}), since {reason}");
            }
        }
        let urgent = self.still_due(urgent).await?;
        self.in_order(urgent, None).await
    }

    fn all_wait(&mut self, due: &[DueRestart], why: &str) {
        for DueRestart { restart, .. } in due {
            let detail = format!(
                "waits to be restarted for {}: {why}",
                names(&restart.causes)
            );
            self.report(restart.component, RowAction::Waits, detail);
        }
    }

    /// Restarts the components in their order. The lock is held at the start, and the Lease if there is one; a Lease that is
    /// lost meanwhile is taken again.
    async fn in_order(
        &mut self,
        due: Vec<DueRestart>,
        lease: Option<&RestartLease>,
    ) -> Result<(), Failure> {
        let mut stopped: Option<String> = None;
        if due
            .iter()
            .any(|due| matches!(due.method, RestartMethod::Pod))
        {
            stopped = self.settle_kubelet().await.err();
        }
        let mut left = VecDeque::from(due);
        let mut is_first = true;
        loop {
            // The first one is always restarted, since certificates may be due permanently.
            let is_over = !is_first && self.until.is_some_and(|until| Instant::now() >= until);
            is_first = false;
            if stopped.is_none() && is_over {
                stopped = Some("certificates are due again".to_owned());
            }
            if stopped.is_none()
                && !left.is_empty()
                && let Some(lease) = lease.filter(|lease| lease.is_lost())
            {
                // The wait for the Lease may take as long as the restarts of another node, and other runs need the lock.
                self.release_lock();
                match lease.take_again(self.max_wait()).await {
                    Ok(()) => {
                        // Without the lock, another run may have restarted some of them.
                        left = self.still_due(left.into()).await?.into();
                        // Another node may have restarted components meanwhile.
                        stopped = self.await_health(disturbs_etcd(&left)).await.err();
                    }
                    Err(why) => stopped = Some(why.to_string()),
                }
            }
            let Some(due) = left.pop_front() else {
                return Ok(());
            };
            let component = due.component();
            if self.spared.contains(&component) {
                self.report_spared(component);
            } else if let Some(why) = &stopped {
                let detail = format!("was not restarted, since {why}; run `nodepki renew` again");
                self.report(component, RowAction::Waits, detail);
            } else {
                let next = left.front();
                let server = next.is_some_and(|next| self.stops_for(next, &due));
                let server = server.then(|| left.pop_front()).flatten();
                let failed = match server {
                    Some(server) => {
                        let (failed, remaining) = self.restart_below(due, server).await?;
                        if let Some(remaining) = remaining {
                            left.push_front(remaining);
                        }
                        failed
                    }
                    None => self.restart(&due).await?,
                };
                stopped = failed.map(|component| format!("{component} did not become ready"));
            }
        }
    }

    /// Restarts one component, and rolls it back if it does not become ready. Returns it then.
    async fn restart(&mut self, due: &DueRestart) -> Result<Option<Component>, Failure> {
        let begun = self.begin(due).await?;
        self.complete(due, begun).await
    }

    /// Returns whether a kube-apiserver is to be stopped while etcd restarts.
    fn stops_for(&self, server: &DueRestart, etcd: &DueRestart) -> bool {
        etcd.component() == Component::Etcd
            && server.component() == Component::KubeApiserver
            && !self.spared.contains(&server.component())
            && [server, etcd].map(|due| matches!(due.method, RestartMethod::Pod)) == [true; 2]
    }

    /// Restarts etcd while the kube-apiserver that is due too has stopped. An API server whose etcd is away accepts
    /// requests, answers them after a minute with an error, and so delays the kubelet, which removes the mirror pod
    /// through it before it starts etcd again. Once it has stopped, clients turn to another one, and so does the kubelet.
    /// Returns the component that did not become ready, with etcd if its restart was not begun.
    async fn restart_below(
        &mut self,
        etcd: DueRestart,
        server: DueRestart,
    ) -> Result<(Option<Component>, Option<DueRestart>), Failure> {
        let begun = match self.begin(&server).await? {
            Ok(before) => {
                let stopped = self.stopped(&server, &before).await;
                stopped.map(|()| before).map_err(NotBegun::Failed)
            }
            Err(why) => Err(why),
        };
        if begun.is_err() {
            return Ok((self.complete(&server, begun).await?, Some(etcd)));
        }
        failpoint::reached("reload:server-stopped");
        self.begun = Some(server.component());
        let failed = self.restart(&etcd).await?;
        self.begun = None;
        if let Some(failed) = failed {
            let detail = format!(
                "was stopped while {failed} restarted and has started again; whether it is ready is unknown, since {failed} did not become ready: run `nodepki renew`, which restarts it"
            );
            self.report(server.component(), RowAction::Waits, detail);
            return Ok((Some(failed), None));
        }
        Ok((self.complete(&server, begun).await?, None))
    }

    /// Begins a restart. Returns the state before it, or why it was not begun.
    async fn begin(&mut self, due: &DueRestart) -> Result<Result<StateBefore, NotBegun>, Failure> {
        let component = due.component();
        let limit = self.max_wait();
        let before = self.observe(due, limit).await;
        let rejected = match conf_of(component).and_then(|name| self.probe.setup.outputs.get(&name))
        {
            Some(CertFiles::Kubeconfig { path, .. }) => self.probe.rejection(path).await,
            _ => None,
        };
        if let Some(why) = rejected {
            return Ok(Err(NotBegun::Failed(format!(
                "the API server rejects its new credential ({why})"
            ))));
        }
        let manifest = match self.annotated_manifest(due) {
            Ok(manifest) => manifest,
            Err(why) => return Ok(Err(NotBegun::Postponed(why))),
        };
        let begun = self
            .commit_and_restart(due, manifest, Commit::new())
            .await?;
        Ok(begun.map(|()| before).map_err(NotBegun::Failed))
    }

    /// Waits for the proof of a restart, and rolls the component back without it. Returns the component then.
    async fn complete(
        &mut self,
        due: &DueRestart,
        begun: Result<StateBefore, NotBegun>,
    ) -> Result<Option<Component>, Failure> {
        let (restart, component) = (&due.restart, due.component());
        let ended = match begun {
            Ok(before) => self.proof(component, due.pod.as_ref(), &before).await,
            Err(NotBegun::Failed(why)) => Err(why),
            Err(NotBegun::Postponed(why)) => {
                self.report(component, RowAction::Failed, unreadable(&why));
                return Ok(None);
            }
        };
        match ended {
            Ok(proven) => {
                let mut commit = Commit::new();
                commit.restarted(component);
                self.remove_former_pair(restart, &mut commit)?;
                self.commit(commit).await?;
                let name = component.as_str();
                let causes = restart.causes.iter();
                let in_use: Vec<_> = causes
                    .filter_map(|cause| self.in_use(*cause, &proven))
                    .map(|record| AuditRecord {
                        component: Some(name.to_owned()),
                        ..record
                    })
                    .collect();
                audit::append(self.probe.root, (self.probe.clock)(), &in_use);
                self.progress.event(Event::Restarted { component: name });
                let detail = format!("was restarted for {}: {proven}", names(&restart.causes));
                self.report(component, RowAction::InEffect, detail);
                Ok(None)
            }
            Err(why) => {
                self.roll_back(due, why).await?;
                Ok(Some(component))
            }
        }
    }

    /// Removes the files of certificate and key that the former kubeconfig of a component named, if the present one contains
    /// both: no process reads them any more.
    fn remove_former_pair(&self, restart: &Restart, commit: &mut Commit) -> Result<(), Failure> {
        let Some(name) = conf_of(restart.component) else {
            return Ok(());
        };
        for former in &restart.previous {
            if let Some(present) = self.probe.root.read(&former.path)? {
                let named_by = &former.contents;
                self.remove_unnamed_pair(name, named_by, &present.bytes, commit)?;
            }
        }
        Ok(())
    }

    /// Removes nodepki's files of certificate and key that one text of a kubeconfig names and the other one does not.
    pub(super) fn remove_unnamed_pair(
        &self,
        name: CertName,
        named_by: &[u8],
        kept: &[u8],
        commit: &mut Commit,
    ) -> Result<(), Failure> {
        let Some(pair) = self.probe.setup.layout.client_pair(name) else {
            return Ok(());
        };
        let conf = kubeconfig_path(name);
        let names_pair = |text: &[u8]| {
            let found = read_kubeconfig(&conf, Some(text)).ok()?;
            Some(found.named_pair() == Some(&pair))
        };
        if names_pair(named_by) != Some(true) || names_pair(kept) != Some(false) {
            return Ok(());
        }
        for path in &pair {
            if let Some(found) = self.probe.root.read(path)? {
                commit.remove(path.clone(), &found.bytes);
            }
        }
        Ok(())
    }

    /// Returns the path of a static pod's manifest, and its present text with the annotation that restarts the pod; `None`
    /// if programs restart the component. Another process may have replaced the manifest since it was read first.
    pub(super) fn annotated_manifest(
        &self,
        due: &DueRestart,
    ) -> Result<Option<(&'static str, String)>, String> {
        let component = due.component();
        let (RestartMethod::Pod, Some(path)) = (&due.method, component.manifest()) else {
            return Ok(None);
        };
        let pod = self.probe.pod(component)?;
        let pod = pod.ok_or_else(|| format!("{path} does not exist any more"))?;
        let now = (self.probe.clock)();
        let now = now
            .format(&Rfc3339)
            .unwrap_or_else(|_| now.unix_timestamp().to_string());
        let annotated = pod.annotated(&now);
        let text = annotated.map_err(|why| format!("{path}: {why}"))?;
        Ok(Some((path, text)))
    }

    /// Commits, and restarts the component: by the annotated manifest in the same commit, or by programs afterwards.
    pub(super) async fn commit_and_restart(
        &mut self,
        due: &DueRestart,
        manifest: Option<(&str, String)>,
        mut commit: Commit,
    ) -> Result<Result<(), String>, Failure> {
        if let Some((path, text)) = manifest {
            commit.file(path, text.into_bytes(), Mode::Private);
        }
        if !commit.is_empty() {
            self.commit(commit).await?;
        }
        if let RestartMethod::Programs(programs) = &due.method {
            for program in programs {
                if let Err(why) = program.run(&due.restart.causes).await {
                    return Ok(Err(why));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Returns why a restart cannot wait: the credential still in use has expired, or is about to.
    fn cannot_wait(&self, restart: &Restart, now: OffsetDateTime) -> Option<String> {
        restart.previous.iter().find_map(|file| {
            let path = file.path.display();
            if file.contents.is_empty() {
                return Some(format!("{path} was empty when the component was started"));
            }
            let chain = self.probe.certificate_of(file, &restart.previous)?;
            let leaf = chain.leaf();
            let life = leaf.not_after() - leaf.not_before();
            let near = (life / 10_i32).min(EXPIRY_MARGIN);
            (leaf.not_after() - now <= near).then(|| {
                format!(
                    "the certificate that it still uses from the former {path} expires at {}",
                    rfc3339(leaf.not_after())
                )
            })
        })
    }

    pub(super) fn method(&self, component: Component, pod: Option<&Pod>) -> RestartMethod {
        let reload = &self.probe.setup.reload;
        let on = On::Restart(component);
        let units = reload.units.iter().filter(|unit| unit.on.contains(&on));
        let hooks = reload.hooks.iter().filter(|hook| hook.on.contains(&on));
        let hooks = hooks.map(|hook| Program {
            command: hook.command.clone(),
            limit: hook.timeout,
        });
        let programs: Vec<Program> = units.map(of_unit).chain(hooks).collect();
        if !programs.is_empty() {
            return RestartMethod::Programs(programs);
        }
        match (component, pod) {
            (Component::Kubelet, _) if self.has_systemd() => {
                // A stopped kubelet reads the new files when it starts.
                RestartMethod::Programs(vec![systemctl("try-restart", KUBELET_UNIT)])
            }
            (_, Some(_)) if reload.static_pods => RestartMethod::Pod,
            _ => RestartMethod::Manual,
        }
    }

    /// Returns whether systemd manages this machine (sd_booted(3)).
    fn has_systemd(&self) -> bool {
        let found = self.probe.root.metadata("/run/systemd/system");
        found.is_ok_and(|found| found.is_some())
    }
}

/// Returns whether etcd is one of the components.
fn disturbs_etcd<'a>(due: impl IntoIterator<Item = &'a DueRestart>) -> bool {
    let mut due = due.into_iter();
    due.any(|due| due.component() == Component::Etcd)
}

fn unreadable(why: &str) -> String {
    format!("was not restarted: {why}; correct the manifest and run `nodepki renew` again")
}

/// Kubeconfig that holds the component's client identity.
pub(super) fn conf_of(component: Component) -> Option<CertName> {
    match component {
        Component::KubeControllerManager => Some(CertName::ControllerManagerConf),
        Component::KubeScheduler => Some(CertName::SchedulerConf),
        Component::Kubelet => Some(CertName::KubeletConf),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::ReloadSetup;
    use super::super::tests::NOW;
    use super::*;
    use crate::kube::components::ReplacedFile;
    use crate::store::NodeRoot;

    #[tokio::test]
    async fn annotates_manifest_that_another_process_has_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let manifests = dir.path().join("etc/kubernetes/manifests");
        fs::create_dir_all(&manifests).unwrap();
        let path = manifests.join("kube-scheduler.yaml");
        let manifest = |version: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: kube-scheduler\nspec:\n  containers:\n  - name: kube-scheduler\n    image: kube-scheduler:{version}\n    command: [kube-scheduler, --secure-port=0]\n"
            )
        };
        fs::write(&path, manifest("v1.34.0")).unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let setup = ReloadSetup::of_tests();
        let mut run = Run::of_tests(&root, &setup);
        let due = DueRestart {
            restart: Restart::due(
                Component::KubeScheduler,
                NOW,
                vec![ReplacedFile::Certificate(CertName::SchedulerConf)],
            ),
            pod: run.probe.pod(Component::KubeScheduler).unwrap(),
            method: RestartMethod::Pod,
        };
        let upgraded = manifest("v1.35.0");
        fs::write(&path, &upgraded).unwrap();
        assert!(run.begin(&due).await.unwrap().is_ok());
        let annotated = Pod::read(&upgraded)
            .unwrap()
            .annotated("2026-11-29T12:00:00Z");
        assert_eq!(fs::read_to_string(&path).unwrap(), annotated.unwrap());

        // It is not rolled back for a manifest that does not exist at the moment.
        fs::remove_file(&path).unwrap();
        let failed = run.restart(&due).await.unwrap();
        assert_eq!(failed, None);
        assert!(!path.exists());
        let row = &run.rows[0];
        assert_eq!(row.action, RowAction::Failed);
        let problem = "kube-scheduler.yaml does not exist any more";
        assert!(row.reasons[0].to_string().contains(problem), "{row:?}");
    }
}
