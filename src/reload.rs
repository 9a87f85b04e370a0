//! What was replaced takes effect: what does not reload is restarted, and everything is proven by what is served.
//!
//! [`settle`] works off what `store` has recorded ([`Root::unsettled`]), in this order.
//!
//! 1. *What reloads by itself*: the certificate that is served must become the one on disk. Then hooks and units that
//!    wait for that certificate are run.
//! 2. *What must be restarted* (`components`): only while the API server and etcd are well, only in this node's turn
//!    ([`lease`]), one component after the other. A static pod gets an annotation in its manifest, anything else a unit
//!    or a hook. The record goes once the component has proven itself: another process serves, it is healthy, and it
//!    works with the new credential.
//! 3. A component that does not come back gets its old files and one more restart. Then nothing is tried again until
//!    somebody asks for it, and the record says why.
//!
//! A run that is killed anywhere leaves the record, and the next one goes on: at worst a component is restarted twice.
//! Below a root other than `/` nothing runs that could be restarted.
//!
//! This module restarts and asks; it makes and judges no certificate. A new way to restart something is one more case
//! of [`Means`].

mod lease;
mod manifest;
mod probe;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, sleep};

use crate::agent::{self, Clock, Event, ExitCode, Failure, Progress};
use crate::components::{Change, Component};
use crate::kubeconfig::Kubeconfig;
use crate::names::{Authority, CertName};
use crate::plan::Output;
use crate::settings::reload::{On, Reload, Unit, UnitAction};
use crate::signer::exec;
use crate::store::{
    Changed, Commit, Committed, Mode, Previous, Restart, RestartState, Root, Store, Unsettled,
};
use crate::x509::{Chain, rfc3339};

use lease::{NotNow, Turns};
use manifest::Manifest;
use probe::{Probe, makes_its_own};

/// Between two looks at a component that starts.
const LOOK: Duration = Duration::from_millis(100);
/// Less than this before its end, or a tenth of its life if that is shorter, a credential is about to expire.
const NEAR_THE_END: time::Duration = time::Duration::HOUR;
const KUBELET_UNIT: &str = "kubelet.service";
const SYSTEMCTL: &str = "/usr/bin/systemctl";
const UNIT_TIMEOUT: Duration = Duration::from_secs(90);

/// Everything that [`settle`] needs to know.
pub struct Setup {
    /// This node's name.
    pub node: String,
    /// How to go about it.
    pub reload: Reload,
    /// Where each certificate is.
    pub outputs: BTreeMap<CertName, Output>,
    /// Where the certificates of each authority are.
    pub bundles: BTreeMap<Authority, PathBuf>,
    /// How long to wait for another run to end.
    pub lock_wait: Duration,
}

impl Setup {
    /// For the node of `agent`.
    pub fn of(agent: &agent::Setup, reload: &Reload) -> Setup {
        let certs = agent.plan.certs.iter();
        let bundles = agent.plan.bundles.iter();
        Setup {
            node: agent.identity.node.clone(),
            reload: reload.clone(),
            outputs: certs.map(|spec| (spec.name, spec.output.clone())).collect(),
            bundles: bundles
                .map(|spec| (spec.authority, spec.path.clone()))
                .collect(),
            lock_wait: agent.lock_wait,
        }
    }
}

/// What became of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A component, a certificate, a unit or a program.
    pub what: String,
    /// How it ended.
    pub state: State,
    /// In words: what was proven, or what is wrong and what to do.
    pub detail: String,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// What is on disk is in effect, or there is nothing to do here.
    Done,
    /// Nothing was done yet, and a later run goes on.
    Waits,
    /// What is on disk is not in effect; a later run looks again.
    Failed,
    /// The old files are back, and nothing happens until somebody asks for it.
    RolledBack,
}

impl State {
    /// For tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Done => "done",
            State::Waits => "waits",
            State::Failed => "failed",
            State::RolledBack => "rolled back",
        }
    }

    /// As the end of a run.
    pub const fn code(self) -> ExitCode {
        match self {
            State::Done => ExitCode::Done,
            State::Waits | State::Failed => ExitCode::Pending,
            State::RolledBack => ExitCode::Refused,
        }
    }
}

/// Makes everything take effect that was replaced since the last time.
///
/// # Errors
/// When the record cannot be read or written. What became of each component is in the outcomes.
pub async fn settle(
    root: &Root,
    setup: &Setup,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Vec<Outcome>, Failure> {
    let unsettled = root.unsettled()?;
    if unsettled == Unsettled::default() {
        return Ok(Vec::new());
    }
    if root.path() != Path::new("/") {
        return Ok(elsewhere(&unsettled));
    }
    let locked = root.lock(setup.lock_wait, "reload")?;
    let (store, _) = locked.recover(clock())?;
    // Another run may have settled it meanwhile.
    let unsettled = root.unsettled()?;
    let probe = Probe { root, setup, clock };
    let mut run = Run {
        probe,
        store,
        progress,
        outcomes: Vec::new(),
    };
    run.changes(unsettled.changed).await?;
    run.restarts(unsettled.restarts).await?;
    Ok(run.outcomes)
}

/// What a root that nothing runs on will need.
fn elsewhere(unsettled: &Unsettled) -> Vec<Outcome> {
    let restarts = unsettled.restarts.iter();
    restarts
        .map(|restart| Outcome {
            what: restart.component.to_string(),
            state: State::Done,
            detail: format!(
                "was not restarted for {}: nothing runs below this root; it sees what is new when the node starts, and where it runs already, `nodepki renew` on the node restarts it",
                names(&restart.causes)
            ),
        })
        .collect()
}

struct Run<'a> {
    probe: Probe<'a>,
    store: Store,
    progress: &'a dyn Progress,
    outcomes: Vec<Outcome>,
}

/// How a component is started anew.
enum Means {
    /// By its manifest.
    Pod,
    /// By programs.
    Programs(Vec<Program>),
    /// By somebody else.
    Nobody,
}

/// One program to run.
struct Program {
    command: Vec<String>,
    limit: Duration,
}

/// What was seen before a restart.
struct Before {
    served: Option<[u8; 32]>,
    healthy: bool,
    at: OffsetDateTime,
}

impl Run<'_> {
    fn tell(&mut self, what: impl ToString, state: State, detail: impl Into<String>) {
        self.outcomes.push(Outcome {
            what: what.to_string(),
            state,
            detail: detail.into(),
        });
    }

    fn commit(&mut self, commit: Commit) -> Result<Committed, Failure> {
        Ok(self.store.commit(commit)?)
    }

    // ---- what reloads by itself ----

    async fn changes(&mut self, changed: Vec<Changed>) -> Result<(), Failure> {
        let mut seen = Vec::new();
        for changed in changed {
            match self.reloaded(changed.change).await {
                Ok(None) => seen.push(changed),
                Ok(Some(detail)) => {
                    self.tell(changed.change, State::Done, detail);
                    seen.push(changed);
                }
                Err(why) => self.tell(
                    changed.change,
                    State::Failed,
                    format!(
                        "{why}; see the log of that component, which still has the old certificate, and run `nodepki renew` again to have this looked at again"
                    ),
                ),
            }
        }
        let failed = self.programs_of(&seen).await;
        let mut commit = Commit::new();
        for changed in seen {
            if !failed.contains(&changed.change) {
                commit.seen(changed);
            }
        }
        if !commit.is_empty() {
            self.commit(commit)?;
        }
        Ok(())
    }

    /// Waits until a pair that is followed is the one that is served; what was proven.
    async fn reloaded(&self, change: Change) -> Result<Option<String>, String> {
        let Change::Certificate(name) = change else {
            return Ok(None);
        };
        let (component, pair_flag, urls) = match name {
            CertName::Apiserver => (Component::KubeApiserver, "tls-cert-file", None),
            CertName::EtcdServer => (Component::Etcd, "cert-file", Some("listen-client-urls")),
            CertName::EtcdPeer => (Component::Etcd, "peer-cert-file", Some("listen-peer-urls")),
            _ => return Ok(None),
        };
        let Some(Output::Pair { certificate, .. }) = self.probe.setup.outputs.get(&name) else {
            return Ok(None);
        };
        let Some(pod) = self.probe.pod(component)? else {
            return Ok(None);
        };
        if pod.flag(pair_flag) != certificate.to_str() {
            return Ok(None);
        }
        let addresses = match urls {
            Some(flag) => pod.urls(flag),
            None => pod.addresses(component),
        };
        let wanted = self.probe.on_disk(certificate)?;
        let give_up = Instant::now() + self.probe.setup.reload.timeout;
        for address in &addresses {
            self.serves(component, *address, &wanted.fingerprint(), give_up)
                .await?;
        }
        let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        Ok(Some(format!(
            "{component} serves serial {} at {}",
            wanted.serial(),
            addresses.join(" and ")
        )))
    }

    async fn serves(
        &self,
        component: Component,
        address: SocketAddr,
        wanted: &[u8; 32],
        give_up: Instant,
    ) -> Result<(), String> {
        loop {
            let found = self.probe.served(component, address).await;
            let why = match found {
                Ok(shown) if shown.fingerprint() == *wanted => return Ok(()),
                Ok(shown) => format!(
                    "{component} still serves serial {} at {address}",
                    shown.serial()
                ),
                Err(why) => format!("{component} could not be asked: {why}"),
            };
            if Instant::now() >= give_up {
                return Err(why);
            }
            sleep(LOOK).await;
        }
    }

    /// Runs the hooks and units that wait for one of these; what failed.
    async fn programs_of(&mut self, seen: &[Changed]) -> Vec<Change> {
        let mut failed = Vec::new();
        let reload = &self.probe.setup.reload;
        let causes = |on: &[On]| -> Vec<Change> {
            let changes = seen.iter().map(|changed| changed.change);
            changes
                .filter(|change| on.contains(&On::Change(*change)))
                .collect()
        };
        let hooks = reload.hooks.iter().map(|hook| {
            let program = Program {
                command: hook.command.clone(),
                limit: hook.timeout,
            };
            (causes(&hook.on), program)
        });
        let units = reload
            .units
            .iter()
            .map(|unit| (causes(&unit.on), of_unit(unit)));
        let due: Vec<_> = hooks
            .chain(units)
            .filter(|(causes, _)| !causes.is_empty())
            .collect();
        for (causes, program) in due {
            let shown = program.command.join(" ");
            match program.run(&causes).await {
                Ok(()) => self.tell(
                    shown,
                    State::Done,
                    format!("was run for {}", names(&causes)),
                ),
                Err(why) => {
                    let detail = format!(
                        "{why}; mend it, and run `nodepki renew` again to have it run again for {}",
                        names(&causes)
                    );
                    self.tell(shown, State::Failed, detail);
                    failed.extend(causes);
                }
            }
        }
        failed
    }

    // ---- what must be restarted ----

    async fn restarts(&mut self, restarts: Vec<Restart>) -> Result<(), Failure> {
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
                // Nothing of it runs here.
                Means::Nobody if pod.is_none() => {
                    over.restarted(component);
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
    async fn in_turn(
        &mut self,
        due: Vec<(Restart, Option<Manifest>, Means)>,
    ) -> Result<(), Failure> {
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
            Ok(turns) => turns.take(setup.reload.timeout).await,
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
    async fn alone(
        &mut self,
        due: Vec<(Restart, Option<Manifest>, Means)>,
        why: &str,
    ) -> Result<(), Failure> {
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

    fn all_wait(&mut self, due: &[(Restart, Option<Manifest>, Means)], why: &str) {
        for (restart, ..) in due {
            let detail = format!(
                "waits to be restarted for {}: {why}",
                names(&restart.causes)
            );
            self.tell(restart.component, State::Waits, detail);
        }
    }

    async fn in_order(
        &mut self,
        due: Vec<(Restart, Option<Manifest>, Means)>,
        lost: &Cell<bool>,
    ) -> Result<(), Failure> {
        let mut stopped: Option<String> = None;
        for (restart, pod, means) in due {
            if stopped.is_none() && lost.get() {
                stopped = Some("the Lease was lost meanwhile".to_owned());
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
        pod: Option<&Manifest>,
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
        pod: Option<&Manifest>,
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
        pod: Option<&Manifest>,
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

    fn means(&self, component: Component, pod: Option<&Manifest>) -> Means {
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
            (Component::Kubelet, _) => Means::Programs(vec![of_unit(&Unit {
                on: vec![on],
                unit: KUBELET_UNIT.to_owned(),
                action: UnitAction::Restart,
            })]),
            (_, Some(_)) if reload.static_pods => Means::Pod,
            _ => Means::Nobody,
        }
    }

    // ---- what is seen ----

    async fn well(&self, all_members: bool) -> Result<(), String> {
        self.probe.livez().await?;
        self.probe.etcd(all_members).await
    }

    async fn look(&self, component: Component, pod: Option<&Manifest>) -> Before {
        let at = (self.probe.clock)();
        let mut before = Before {
            served: None,
            healthy: true,
            at,
        };
        if component == Component::Kubelet {
            before.healthy = self.probe.kubelet().await.is_ok();
        } else if let Some(address) = pod.and_then(|pod| pod.addresses(component).first().copied())
        {
            let served = self.probe.served(component, address).await;
            before.served = served.ok().map(|shown| shown.fingerprint());
        }
        before
    }

    /// Waits until a component was started anew, is well and works; what was proven.
    async fn proof(
        &self,
        component: Component,
        pod: Option<&Manifest>,
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
        pod: Option<&Manifest>,
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
            self.probe.leads(component, pod, before.at).await?;
            self.well(false).await?;
        }
        Ok(format!("a new process serves at {address} and is healthy"))
    }
}

impl Program {
    async fn run(&self, causes: &[Change]) -> Result<(), String> {
        let changed: Vec<_> = causes.iter().map(|change| change.as_str()).collect();
        let env = [("NODEPKI_CHANGED", changed.join(","))];
        exec::run(&self.command, &env, self.limit).await
    }
}

fn of_unit(unit: &Unit) -> Program {
    let words = [SYSTEMCTL, unit.action.as_str(), "--", &unit.unit];
    Program {
        command: words.map(str::to_owned).to_vec(),
        limit: UNIT_TIMEOUT,
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

fn names(changes: &[Change]) -> String {
    let names: Vec<_> = changes.iter().map(|change| change.as_str()).collect();
    names.join(" and ")
}

fn chain_of(pem: &[u8]) -> Option<Chain> {
    Chain::from_pem(pem).ok()
}
