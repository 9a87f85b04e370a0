//! Restarting what must be restarted: when, in what order, how, and what happens when it does not come back.

use std::cell::Cell;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, sleep};

use super::lease::{self, NotNow, Turns};
use super::pod::Pod;
use super::probe::makes_its_own;
use super::{LOOK, Program, Run, State, chain_of, names, of_unit, systemctl};
use crate::agent::{Event, Failure};
use crate::components::{Change, Component};
use crate::kubeconfig::Kubeconfig;
use crate::names::CertName;
use crate::plan::Output;
use crate::settings::reload::On;
use crate::store::{Commit, Mode, Previous, Restart, RestartState};
use crate::x509::rfc3339;

/// Less than this before its end, or a tenth of its life if that is shorter, a credential is about to expire.
const NEAR_THE_END: time::Duration = time::Duration::HOUR;
const KUBELET_UNIT: &str = "kubelet.service";

/// How a component is started anew.
enum Means {
    /// By its manifest.
    Pod,
    /// By programs.
    Programs(Vec<Program>),
    /// By somebody else.
    Nobody,
}

/// What was seen before a restart.
struct Before {
    served: Option<[u8; 32]>,
    healthy: bool,
    /// What led, if a process of this host did.
    leader: Option<String>,
}

/// A component that is to be restarted.
type Due = (Restart, Option<Pod>, Means);

impl Run<'_> {
    pub(super) async fn restarts(&mut self, restarts: Vec<Restart>) -> Result<(), Failure> {
        let mut due = Vec::new();
        let mut over = Commit::new();
        for restart in restarts {
            let component = restart.component;
            if let RestartState::RolledBack { why } = &restart.state {
                self.tell(component, State::RolledBack, held(&restart, why));
                continue;
            }
            let pod = match self.probe.pod(component) {
                Ok(pod) => pod,
                Err(why) => {
                    let detail = format!(
                        "was not restarted: {why}; mend the manifest and run `nodepki renew` again"
                    );
                    self.tell(component, State::Failed, detail);
                    continue;
                }
            };
            match self.means(component, pod.as_ref()) {
                // Nothing of it runs here, as far as can be known.
                Means::Nobody if pod.is_none() => {
                    over.restarted(component);
                    if component == Component::Kubelet {
                        let detail = format!(
                            "is not run by systemd here: restart it for {}, if it runs",
                            names(&restart.causes)
                        );
                        self.tell(component, State::NotHere, detail);
                    }
                }
                means => {
                    if let Some(pod) = &pod
                        && self
                            .probe
                            .started_after(component, pod, restart.since)
                            .await
                    {
                        over.restarted(component);
                        self.tell(component, State::Done, "was restarted by somebody since");
                    } else if let Means::Nobody = means {
                        let detail = format!(
                            "has to be restarted for {}, and neither reload.staticPods nor a unit or hook on {component} lets nodepki do it: restart it",
                            names(&restart.causes)
                        );
                        self.tell(component, State::Waits, detail);
                    } else if let (Means::Pod, Some(pod)) = (&means, &pod)
                        && let Err(why) = pod.annotated("")
                    {
                        let detail = format!(
                            "has to be restarted for {}, and its manifest cannot be annotated: {why}; restart it, or name a unit or hook on {component} under reload",
                            names(&restart.causes)
                        );
                        self.tell(component, State::Waits, detail);
                    } else {
                        due.push((restart, pod, means));
                    }
                }
            }
        }
        if !over.is_empty() {
            self.commit(over)?;
        }
        // The kubelet's restart disturbs nobody, and it may be what the node lacks.
        let (kubelet, pods): (Vec<_>, Vec<_>) = due
            .into_iter()
            .partition(|(restart, ..)| restart.component == Component::Kubelet);
        self.in_order(kubelet, &Cell::new(false)).await?;
        if pods.is_empty() {
            return Ok(());
        }
        self.in_turn(pods).await
    }

    /// Restarts what may be restarted now: the control plane is well, and it is this node's turn.
    async fn in_turn(&mut self, due: Vec<Due>) -> Result<(), Failure> {
        let disturbs_etcd = due
            .iter()
            .any(|(restart, ..)| restart.component == Component::Etcd);
        if let Err(why) = self.well(disturbs_etcd).await {
            let told = format!(
                "nothing was restarted, since {why}; run `nodepki renew` again once it is well"
            );
            self.all_wait(&due, &told);
            return Ok(());
        }
        let setup = self.probe.setup;
        if !setup.reload.coordinate {
            return self.in_order(due, &Cell::new(false)).await;
        }
        let kubeconfig = &setup.reload.lease.kubeconfig;
        let turns = self.probe.api(kubeconfig).map(|api| Turns {
            api,
            node: setup.node.clone(),
            duration: setup.reload.lease.duration,
            clock: self.probe.clock,
        });
        let taken = match &turns {
            Ok(turns) => turns.take(self.patience()).await,
            Err(error) => {
                let told = Failure::of_cluster(kubeconfig.display(), error).to_string();
                return self.alone(due, &told).await;
            }
        };
        match (taken, &turns) {
            (Ok(()), Ok(turns)) => {
                let lost = Cell::new(false);
                let done = {
                    let work = self.in_order(due, &lost);
                    tokio::pin!(work);
                    tokio::select! {
                        done = &mut work => done,
                        () = turns.keep(&lost) => Ok(()),
                    }
                };
                turns.release().await;
                done
            }
            (Err(NotNow::Held(holder)), _) => {
                let told = format!(
                    "it is the turn of node {holder}, which holds the Lease {}/nodepki-reload; run `nodepki renew` again later",
                    lease::NAMESPACE
                );
                self.all_wait(&due, &told);
                Ok(())
            }
            (Err(NotNow::Unknown(error)), _) => {
                let told =
                    Failure::of_cluster("taking the Lease kube-system/nodepki-reload", &error);
                self.alone(due, &told.to_string()).await
            }
            (_, Err(_)) => Ok(()),
        }
    }

    /// Without a turn only what cannot wait is restarted.
    async fn alone(&mut self, due: Vec<Due>, why: &str) -> Result<(), Failure> {
        let now = (self.probe.clock)();
        let (urgent, rest): (Vec<_>, Vec<_>) = due
            .into_iter()
            .partition(|(restart, ..)| cannot_wait(restart, now).is_some());
        self.all_wait(&rest, &format!("it may be another node's turn: {why}"));
        for (restart, ..) in &urgent {
            if let Some(reason) = cannot_wait(restart, now) {
                tracing::warn!(component = %restart.component, "restarted without knowing whether it is another node's turn ({why}), since {reason}");
            }
        }
        self.in_order(urgent, &Cell::new(false)).await
    }

    fn all_wait(&mut self, due: &[Due], why: &str) {
        for (restart, ..) in due {
            let detail = format!(
                "waits to be restarted for {}: {why}",
                names(&restart.causes)
            );
            self.tell(restart.component, State::Waits, detail);
        }
    }

    async fn in_order(&mut self, due: Vec<Due>, lost: &Cell<bool>) -> Result<(), Failure> {
        let mut stopped: Option<String> = None;
        for (index, (restart, pod, means)) in due.into_iter().enumerate() {
            if stopped.is_none() && lost.get() {
                stopped = Some("the Lease was lost meanwhile".to_owned());
            }
            // The first one always has its turn: something may be due all the time.
            let is_over = index > 0 && self.until.is_some_and(|until| Instant::now() >= until);
            if stopped.is_none() && is_over {
                stopped = Some("certificates are due again".to_owned());
            }
            if let Some(why) = &stopped {
                let detail = format!("was not restarted, since {why}; run `nodepki renew` again");
                self.tell(restart.component, State::Waits, detail);
            } else if !self.restart(&restart, pod.as_ref(), &means).await? {
                stopped = Some(format!("{} did not come back", restart.component));
            }
        }
        Ok(())
    }

    /// Starts one component anew, and puts back what it had if it does not come back. False then.
    async fn restart(
        &mut self,
        restart: &Restart,
        pod: Option<&Pod>,
        means: &Means,
    ) -> Result<bool, Failure> {
        let component = restart.component;
        let before = self.look(component, pod).await;
        let unknown = match conf_of(component).and_then(|name| self.probe.setup.outputs.get(&name))
        {
            Some(Output::Kubeconfig { path, .. }) => self.probe.is_unknown(path).await,
            _ => None,
        };
        let ended = match unknown {
            Some(why) => Err(format!("the API server refuses its new credential ({why})")),
            None => match self
                .start_anew(component, pod, means, Commit::new(), restart)
                .await?
            {
                Ok(()) => self.proof(component, pod, &before).await,
                Err(why) => Err(why),
            },
        };
        match ended {
            Ok(proven) => {
                let mut commit = Commit::new();
                commit.restarted(component);
                self.commit(commit)?;
                let name = component.as_str();
                self.progress.event(Event::Restarted { component: name });
                let detail = format!("was restarted for {}: {proven}", names(&restart.causes));
                self.tell(component, State::Done, detail);
                Ok(true)
            }
            Err(why) => {
                self.roll_back(restart, pod, means, why).await?;
                Ok(false)
            }
        }
    }

    async fn roll_back(
        &mut self,
        restart: &Restart,
        pod: Option<&Pod>,
        means: &Means,
        why: String,
    ) -> Result<(), Failure> {
        let component = restart.component;
        let mut commit = Commit::new();
        let old = restart.previous.iter();
        let old: Vec<&Previous> = old.filter(|file| !file.contents.is_empty()).collect();
        for file in &old {
            // What stands there keeps its own mode.
            commit.file(file.path.clone(), file.contents.clone(), Mode::Other(0o600));
        }
        let mut recorded = Restart {
            previous: Vec::new(),
            state: RestartState::RolledBack { why: why.clone() },
            ..restart.clone()
        };
        commit.restart(recorded.clone());
        let back = if old.is_empty() {
            self.commit(commit)?;
            "there was nothing to go back to".to_owned()
        } else {
            let before = self.look(component, pod).await;
            // The pod as it is now has an annotation already.
            let fresh = self.probe.pod(component).ok().flatten();
            let ended = match self
                .start_anew(component, fresh.as_ref(), means, commit, restart)
                .await?
            {
                Ok(()) => self.proof(component, pod, &before).await,
                Err(why) => Err(why),
            };
            match ended {
                Ok(proven) => format!("with the old files it is back: {proven}"),
                Err(why) => format!("with the old files it is not back either: {why}"),
            }
        };
        let why = format!("{why}; {back}");
        recorded.state = RestartState::RolledBack { why: why.clone() };
        let mut commit = Commit::new();
        commit.restart(recorded);
        self.commit(commit)?;
        let detail = held(restart, &why);
        let component_name = component.as_str();
        self.progress.event(Event::RolledBack {
            component: component_name,
            why,
        });
        self.tell(component, State::RolledBack, detail);
        Ok(())
    }

    /// Commits, and in the same commit has the kubelet start the pod anew; or runs the programs afterwards.
    async fn start_anew(
        &mut self,
        component: Component,
        pod: Option<&Pod>,
        means: &Means,
        mut commit: Commit,
        restart: &Restart,
    ) -> Result<Result<(), String>, Failure> {
        if let (Means::Pod, Some(pod), Some(path)) = (means, pod, component.manifest()) {
            let now = (self.probe.clock)();
            let now = now
                .format(&Rfc3339)
                .unwrap_or_else(|_| now.unix_timestamp().to_string());
            match pod.annotated(&now) {
                Ok(text) => commit.file(path, text.into_bytes(), Mode::Private),
                Err(why) => return Ok(Err(format!("{path}: {why}"))),
            };
        }
        if !commit.is_empty() {
            self.commit(commit)?;
        }
        if let Means::Programs(programs) = means {
            for program in programs {
                if let Err(why) = program.run(&restart.causes).await {
                    return Ok(Err(why));
                }
            }
        }
        Ok(Ok(()))
    }

    fn means(&self, component: Component, pod: Option<&Pod>) -> Means {
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
            return Means::Programs(programs);
        }
        match (component, pod) {
            (Component::Kubelet, _) if self.has_systemd() => {
                // One that does not run has nothing to see.
                Means::Programs(vec![systemctl("try-restart", KUBELET_UNIT)])
            }
            (_, Some(_)) if reload.static_pods => Means::Pod,
            _ => Means::Nobody,
        }
    }

    // ---- what is seen ----

    /// sd_booted(3).
    fn has_systemd(&self) -> bool {
        let found = self.probe.root.metadata("/run/systemd/system");
        found.is_ok_and(|found| found.is_some())
    }

    async fn well(&self, all_members: bool) -> Result<(), String> {
        self.probe.livez().await?;
        self.probe.etcd(all_members).await
    }

    async fn look(&self, component: Component, pod: Option<&Pod>) -> Before {
        let mut before = Before {
            served: None,
            healthy: true,
            leader: None,
        };
        if component == Component::Kubelet {
            before.healthy = self.probe.kubelet().await.is_ok();
        } else if let Some(address) = pod.and_then(|pod| pod.addresses(component).first().copied())
        {
            let served = self.probe.served(component, address).await;
            before.served = served.ok().map(|shown| shown.fingerprint());
        }
        if let Some(pod) = pod {
            let host = nix::unistd::gethostname().unwrap_or_default();
            let ours = format!("{}_", host.to_string_lossy());
            let leader = self.probe.leader(component, pod).await;
            before.leader = leader.filter(|leader| leader.starts_with(&ours));
        }
        before
    }

    /// Waits until a component was started anew, is well and works; what was proven.
    async fn proof(
        &self,
        component: Component,
        pod: Option<&Pod>,
        before: &Before,
    ) -> Result<String, String> {
        let timeout = self.probe.setup.reload.timeout;
        let give_up = Instant::now() + timeout;
        let mut away = before.served.is_none();
        loop {
            let why = match self.stands(component, pod, before, &mut away).await {
                Ok(proven) => return Ok(proven),
                Err(why) => why,
            };
            if Instant::now() >= give_up {
                let seconds = timeout.as_secs_f32();
                return Err(format!("{seconds} s after its restart {why}"));
            }
            sleep(LOOK).await;
        }
    }

    async fn stands(
        &self,
        component: Component,
        pod: Option<&Pod>,
        before: &Before,
        away: &mut bool,
    ) -> Result<String, String> {
        if component == Component::Kubelet {
            return match self.probe.kubelet().await {
                Ok(()) => Ok("it is healthy".to_owned()),
                // It may be configured not to say so.
                Err(_) if !before.healthy => Ok("its health is unknown, as before".to_owned()),
                Err(why) => Err(format!("it is not well: {why}")),
            };
        }
        let Some(pod) = pod else {
            self.well(false).await?;
            return Ok("its programs ended well".to_owned());
        };
        let Some(address) = pod.addresses(component).first().copied() else {
            self.well(false).await?;
            return Ok("it serves nowhere, so that nothing could be looked at".to_owned());
        };
        let shown = match self.probe.served(component, address).await {
            Ok(shown) => shown,
            Err(why) => {
                *away = true;
                return Err(why);
            }
        };
        let renewed = makes_its_own(component, pod) && before.served != Some(shown.fingerprint());
        if !renewed && !*away {
            return Err(format!("{address} is still served by the old process"));
        }
        if matches!(component, Component::KubeApiserver | Component::Etcd) {
            self.well(component == Component::Etcd).await?;
        } else {
            self.probe.healthz(address).await?;
            // An old process leads until its Lease ends; only one that works takes it over.
            match self.probe.leader(component, pod).await {
                Some(leader) if leader.is_empty() || before.leader.as_ref() == Some(&leader) => {
                    return Err(
                        "no process of it has taken the lead that the old one had".to_owned()
                    );
                }
                _ => {}
            }
            self.well(false).await?;
        }
        Ok(format!("a new process serves at {address} and is healthy"))
    }
}

/// The kubeconfig that a component is who it is by.
fn conf_of(component: Component) -> Option<CertName> {
    match component {
        Component::KubeControllerManager => Some(CertName::ControllerManagerConf),
        Component::KubeScheduler => Some(CertName::SchedulerConf),
        _ => None,
    }
}

/// Why a restart cannot wait: the credential that is still in use is of no use, or soon will be.
fn cannot_wait(restart: &Restart, now: OffsetDateTime) -> Option<String> {
    restart.previous.iter().find_map(|file| {
        let path = file.path.display();
        if file.contents.is_empty() {
            return Some(format!("{path} was empty when it was started"));
        }
        let text = std::str::from_utf8(&file.contents).ok()?;
        let kubeconfig = Kubeconfig::parse(text).ok()?;
        let chain = chain_of(&kubeconfig.current().ok()?.certificate?)?;
        let leaf = chain.leaf();
        let life = leaf.not_after() - leaf.not_before();
        let near = (life / 10_i32).min(NEAR_THE_END);
        (leaf.not_after() - now <= near).then(|| {
            format!(
                "the certificate that it still uses from the former {path} ends {}",
                rfc3339(leaf.not_after())
            )
        })
    })
}

/// What a restart that was rolled back waits for.
fn held(restart: &Restart, why: &str) -> String {
    let certificates: Vec<_> = restart
        .causes
        .iter()
        .filter(|cause| matches!(cause, Change::Certificate(_)))
        .map(|cause| cause.as_str())
        .collect();
    let again = match certificates.as_slice() {
        [] => "change it again".to_owned(),
        names => format!("run `nodepki renew --name {}`", names.join(",")),
    };
    format!(
        "did not come back with the new {}: {why}; nothing is tried again by itself: find out why (its log, `crictl ps -a`), then {again}",
        names(&restart.causes)
    )
}
