//! What was replaced takes effect: what does not reload is restarted, and everything is proven by what is served.
//!
//! [`settle`] works off what `store` has recorded ([`Root::unsettled`]), in this order.
//!
//! 1. *What reloads by itself*: the certificate that is served must become the one on disk. Then hooks and units that
//!    wait for that certificate are run.
//! 2. *What must be restarted* (`components`): only while the API server and etcd are well, only in this node's turn
//!    (`lease`), one component after the other. A static pod gets an annotation in its manifest, anything else a unit
//!    or a hook. The kubelet is last, since it restarts no pod reliably while it starts itself. The record goes once the
//!    component has proven itself: another process serves, it is healthy, and it works with the new credential.
//! 3. A component that does not come back gets its old files and one more restart, unless an old credential has expired
//!    or is rejected. Then nothing is tried again until somebody asks for it, and the record says why. If the new files
//!    are those of a step of a CA change, all files of the step are rolled back (`trust`).
//!
//! The lock is held while something is decided, written or restarted. It is released while this run only waits, for a
//! component to serve a new certificate or for this node's turn. Another run may change the record meanwhile, so that it
//! is read again once the lock is held.
//!
//! A run that is killed anywhere leaves the record, and the next one goes on: at worst a component is restarted twice.
//! Below a root other than `/` nothing runs that could be restarted.
//!
//! This module restarts and asks; it makes and judges no certificate. A new way to restart something is one more case
//! of `Means` in `restart`.

mod lease;
mod pod;
mod probe;
mod restart;
mod trust;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use crate::agent::{self, Clock, ExitCode, Failure, Progress, Row};
use crate::config::reload::{On, Reload, Unit};
use crate::kube::components::{Change, Component};
use crate::kube::names::{Authority, CertName, NodePath};
use crate::signer::exec;
use crate::spec::Output;
use crate::store::{self, Changed, Commit, Committed, Root, Store, Unsettled};
use crate::x509::Chain;

use probe::Probe;

/// Between two looks at a component that starts.
const LOOK: Duration = Duration::from_millis(100);
const SYSTEMCTL: &str = "/usr/bin/systemctl";
const UNIT_TIMEOUT: Duration = Duration::from_secs(90);
/// What is waited for is given so long even where certificates are due meanwhile.
const BRIEF: Duration = Duration::from_secs(5);

/// Everything that [`settle`] needs to know.
pub struct Setup {
    /// This node's name.
    pub node: String,
    /// How to go about it.
    pub reload: Reload,
    /// Where each certificate is.
    pub outputs: BTreeMap<CertName, Output>,
    /// Where the certificates of each authority are.
    pub bundles: BTreeMap<Authority, NodePath>,
    /// How long to wait for another run to end.
    pub lock_wait: Duration,
    /// When something else is due: from then on nothing more is begun or waited for. A component that was restarted by
    /// then is still seen through.
    pub until: Option<OffsetDateTime>,
}

impl Setup {
    /// For the node of `agent`.
    pub fn of(agent: &agent::Setup, reload: &Reload, until: Option<OffsetDateTime>) -> Setup {
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
            until,
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

impl From<Outcome> for Row {
    fn from(outcome: Outcome) -> Row {
        Row {
            name: outcome.what,
            action: outcome.state.as_str(),
            reasons: vec![outcome.detail],
            code: Some(outcome.state.code()).filter(|code| *code != ExitCode::Done),
            ..Row::default()
        }
    }
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// What is on disk is in effect.
    Done,
    /// Nothing was to be done here; somebody may have to do it elsewhere.
    NotHere,
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
            State::Done => "in effect",
            State::NotHere => "not here",
            State::Waits => "waits",
            State::Failed => "failed",
            State::RolledBack => "rolled back",
        }
    }

    /// A later run goes on with it.
    pub const fn is_unfinished(self) -> bool {
        matches!(self, State::Waits | State::Failed)
    }

    /// As the end of a run.
    pub const fn code(self) -> ExitCode {
        match self {
            State::Done | State::NotHere => ExitCode::Done,
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
    let probe = Probe { root, setup, clock };
    let left = |at: OffsetDateTime| Duration::try_from(at - clock()).unwrap_or_default();
    let mut run = Run {
        until: setup.until.map(|at| Instant::now() + left(at)),
        probe,
        store: None,
        progress,
        outcomes: Vec::new(),
        spared: Vec::new(),
    };
    run.changes(unsettled.changed).await?;
    run.restarts().await?;
    Ok(run.outcomes)
}

/// What a root that nothing runs on will need.
fn elsewhere(unsettled: &Unsettled) -> Vec<Outcome> {
    let restarts = unsettled.restarts.iter();
    restarts
        .map(|restart| Outcome {
            what: restart.component.to_string(),
            state: State::NotHere,
            detail: format!(
                "was not restarted for {}: nothing runs below this root; it sees what is new when the node starts, and where it runs already, `nodepki renew` on the node restarts it",
                names(&restart.causes)
            ),
        })
        .collect()
}

struct Run<'a> {
    probe: Probe<'a>,
    /// The lock, while this run holds it.
    store: Option<Store>,
    progress: &'a dyn Progress,
    outcomes: Vec<Outcome>,
    /// See [`Setup::until`].
    until: Option<Instant>,
    /// Components whose restart was due only for files that this run has rolled back.
    spared: Vec<Component>,
}

/// One program to run.
struct Program {
    command: Vec<String>,
    limit: Duration,
}

impl Run<'_> {
    fn tell(&mut self, what: impl ToString, state: State, detail: impl Into<String>) {
        self.outcomes.push(Outcome {
            what: what.to_string(),
            state,
            detail: detail.into(),
        });
    }

    /// How long to wait for what comes by itself, or from other nodes.
    fn patience(&self) -> Duration {
        let timeout = self.probe.setup.reload.timeout;
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until
            .map_or(timeout, |until| left(until).max(BRIEF).min(timeout))
    }

    /// Takes the lock and finishes what an earlier run began. Returns the process that holds the lock if that does not
    /// end in time.
    async fn take_lock(&mut self) -> Result<Option<String>, Failure> {
        if self.store.is_some() {
            return Ok(None);
        }
        let Probe { root, setup, clock } = &self.probe;
        let give_up = Instant::now() + setup.lock_wait.max(BRIEF);
        let locked = loop {
            match root.lock(Duration::ZERO, "reload") {
                Err(store::Error::Busy { .. }) if Instant::now() < give_up => sleep(LOOK).await,
                Err(store::Error::Busy { holder, .. }) => return Ok(Some(holder)),
                locked => break locked?,
            }
        };
        let known = agent::known_directories(
            setup.outputs.values(),
            setup.bundles.values().map(AsRef::as_ref),
        );
        let (store, _) = locked.recover_in(&known, clock())?;
        self.store = Some(store);
        Ok(None)
    }

    fn release_lock(&mut self) {
        self.store = None;
    }

    async fn commit(&mut self, commit: Commit) -> Result<Committed, Failure> {
        if let Some(holder) = self.take_lock().await? {
            return Err(Failure::new(ExitCode::Pending, busy_message(&holder)));
        }
        let store = self.store.as_mut();
        let committed = store.map(|store| store.commit(commit)).transpose()?;
        // The lock is held here.
        Ok(committed.unwrap_or_default())
    }

    // ---- what reloads by itself ----

    async fn changes(&mut self, changed: Vec<Changed>) -> Result<(), Failure> {
        let mut proven = Vec::new();
        for changed in changed {
            match self.reloaded(changed.change).await {
                Ok(detail) => proven.push((changed, detail)),
                Err(why) => self.tell(
                    changed.change,
                    State::Failed,
                    format!(
                        "{why}; see the log of that component, which still has the old certificate, and run `nodepki renew` again to have this looked at again"
                    ),
                ),
            }
        }
        if proven.is_empty() {
            return Ok(());
        }
        if let Some(holder) = self.take_lock().await? {
            for (changed, _) in proven {
                self.tell(changed.change, State::Waits, busy_message(&holder));
            }
            return Ok(());
        }
        // Another run may have run their programs meanwhile.
        let recorded = self.probe.root.unsettled()?.changed;
        let mut seen = Vec::new();
        for (changed, detail) in proven {
            if !recorded.contains(&changed) {
                continue;
            }
            if let Some(detail) = detail {
                self.tell(changed.change, State::Done, detail);
            }
            seen.push(changed);
        }
        let failed = self.programs_of(&seen).await;
        let mut commit = Commit::new();
        for changed in seen {
            if !failed.contains(&changed.change) {
                commit.seen(changed);
            }
        }
        if !commit.is_empty() {
            self.commit(commit).await?;
        }
        self.release_lock();
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
        let give_up = Instant::now() + self.patience();
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
}

impl Program {
    async fn run(&self, causes: &[Change]) -> Result<(), String> {
        let changed: Vec<_> = causes.iter().map(|change| change.as_str()).collect();
        let env = [("NODEPKI_CHANGED", changed.join(","))];
        exec::run(&self.command, &env, self.limit).await
    }
}

fn of_unit(unit: &Unit) -> Program {
    systemctl(unit.action.as_str(), &unit.unit)
}

fn systemctl(verb: &str, unit: &str) -> Program {
    let words = [SYSTEMCTL, verb, "--", unit];
    Program {
        command: words.map(str::to_owned).to_vec(),
        limit: UNIT_TIMEOUT,
    }
}

fn busy_message(holder: &str) -> String {
    format!("another run holds the lock ({holder}): run `nodepki renew` once it has ended")
}

fn names(changes: &[Change]) -> String {
    let names: Vec<_> = changes.iter().map(|change| change.as_str()).collect();
    names.join(" and ")
}

fn chain_of(pem: &[u8]) -> Option<Chain> {
    Chain::from_pem(pem).ok()
}
