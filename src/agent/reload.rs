//! Makes components use replaced files: waits for those that reload, restarts the others, and verifies what they serve.
//!
//! [`settle`] processes the records of `store` (`NodeRoot::unsettled`), in this order.
//!
//! 1. *Components that reload files*: wait until the served certificate is the one on disk. Then restart the static pods
//!    that kubeadm did not write and that mount the file (`mounted`), and run the hooks and units that are configured for
//!    that certificate.
//! 2. *Components that must be restarted* (`components`): only while the API server and etcd are healthy, only while this
//!    node holds the Lease (`lease`), one component after the other. A static pod is restarted by an annotation in its
//!    manifest, any other component by a unit or a hook. If kube-apiserver is due too, etcd restarts while it is stopped.
//!    The kubelet is last, since it restarts no pod reliably while it starts itself. The record is removed once a new
//!    process serves, is healthy, and works with the new credential.
//! 3. A component that does not become ready gets its old files and one more restart, unless an old credential has expired
//!    or is rejected. It is not tried again until an administrator requests it, and the record contains the reason. If the
//!    new files belong to a step of a CA change, all files of the step are rolled back (`trust`).
//!
//! The lock is held while something is decided, written or restarted. It is released while this run only waits, for a
//! component to serve a new certificate or for the Lease. Another run may change the record meanwhile, so it is read
//! again once the lock is held.
//!
//! A killed run leaves the record, and the next run continues: at worst a component is restarted twice. Below a root other
//! than `/`, nothing runs that could be restarted.
//!
//! This module restarts and examines components; it neither issues nor judges certificates. To add a way to restart a
//! component, add a case to `RestartMethod` in `restart`.

mod lease;
mod mounted;
mod pod;
mod probe;
mod programs;
mod restart;
mod restarted;
mod rollback;
mod sockets;
mod trust;

#[cfg(feature = "fuzzing")]
pub(crate) use pod::fuzz_annotation;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use crate::agent::{
    self, Clock, Event, ExitCode, Failure, Progress, ReportRow, RowAction, RowReason, audit,
};
use crate::config::reload::Reload;
use crate::config::{PodRestart, Settings};
use crate::kube::components::{Component, ReplacedFile};
use crate::kube::names::{Authority, CertName, NodePath};
use crate::spec::{CertFiles, Layout};
use crate::store::{
    self, AuditEvent, AuditRecord, Commit, Committed, KeyRemoval, KnownDirectories, NodeRoot,
    Store, Unsettled, UnverifiedChange,
};
use crate::x509::Chain;

use probe::Probe;

/// Interval between two checks of a component that starts, and between two attempts to take the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Shortest wait for a component, even if certificates are due meanwhile.
const MIN_WAIT: Duration = Duration::from_secs(5);

/// Inputs of [`settle`].
pub struct ReloadSetup {
    /// This node's name.
    pub node: String,
    /// Settings, with the units of registered certificates.
    pub reload: Reload,
    /// Static pods of registered certificates.
    pub pods: Vec<PodRestart>,
    /// Paths of each certificate.
    pub outputs: BTreeMap<CertName, CertFiles>,
    /// Paths of each authority's bundle.
    pub bundles: BTreeMap<Authority, NodePath>,
    /// Directories of the PKI.
    pub layout: Layout,
    /// Directories in which an interrupted run can have left unfinished changes.
    pub known: KnownDirectories,
    /// Longest wait for another run to end.
    pub lock_wait: Duration,
    /// Time at which other work is due: from then on, no restart is begun and nothing is waited for. A restart that has
    /// begun by then is completed.
    pub until: Option<OffsetDateTime>,
}

impl ReloadSetup {
    /// Returns the inputs for the node of `agent`.
    pub fn of(
        agent: &agent::RunSetup,
        settings: &Settings,
        until: Option<OffsetDateTime>,
    ) -> ReloadSetup {
        let certs = agent.plan.certs.iter();
        let bundles = agent.plan.bundles.iter();
        ReloadSetup {
            node: agent.identity.node.clone(),
            reload: settings.effective_reload(),
            pods: settings.registered.pods(),
            outputs: certs
                .map(|spec| (spec.name(), spec.output.clone()))
                .collect(),
            bundles: bundles
                .map(|spec| (spec.authority, spec.path.clone()))
                .collect(),
            layout: agent.plan.layout.clone(),
            known: agent.known_directories(),
            lock_wait: agent.lock_wait,
            until,
        }
    }

    /// Returns the paths of the files that a change replaces, as far as nodepki writes them.
    fn paths_of(&self, change: ReplacedFile) -> Vec<PathBuf> {
        let paths = match change {
            ReplacedFile::Certificate(name) => self
                .outputs
                .get(&name)
                .map_or_else(Vec::new, CertFiles::paths),
            ReplacedFile::Bundle(authority) => self.bundles.get(&authority).into_iter().collect(),
            ReplacedFile::ServiceAccount => return self.layout.service_account().into(),
            ReplacedFile::ServiceAccountPublic => {
                let [_, public] = self.layout.service_account();
                return vec![public];
            }
            ReplacedFile::KubeletConfiguration => Vec::new(),
        };
        paths.into_iter().map(|path| path.to_path_buf()).collect()
    }

    /// Returns whether the node is an etcd member without a control plane.
    fn is_etcd_member(&self) -> bool {
        self.outputs.contains_key(&CertName::EtcdServer)
            && !self.outputs.contains_key(&CertName::Apiserver)
    }
}

/// Returns the row of a component, a certificate, a unit or a program. `detail` is the proof, or the problem and its remedy; a
/// sentence without its subject `what`.
fn row(what: impl ToString, action: RowAction, detail: impl Into<String>) -> ReportRow {
    ReportRow {
        name: what.to_string(),
        action,
        reasons: vec![RowReason::Restart(detail.into())],
        code: match action {
            RowAction::Waits | RowAction::Failed => Some(ExitCode::Pending),
            RowAction::RolledBack => Some(ExitCode::Refused),
            _ => None,
        },
        ..ReportRow::default()
    }
}

/// Makes all recorded changes take effect. The action of a row is [`RowAction::InEffect`], [`RowAction::NotHere`],
/// [`RowAction::RolledBack`], or, if a later run continues, [`RowAction::Waits`] or [`RowAction::Failed`].
///
/// # Errors
/// The record cannot be read or written. Failures of components are in the rows.
pub async fn settle(
    root: &NodeRoot,
    setup: &ReloadSetup,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Vec<ReportRow>, Failure> {
    let unsettled = root.unsettled()?;
    if unsettled == Unsettled::default() {
        return Ok(Vec::new());
    }
    if root.path() != Path::new("/") {
        return Ok(rows_below_root(&unsettled));
    }
    let probe = Probe { root, setup, clock };
    let left = |at: OffsetDateTime| Duration::try_from(at - clock()).unwrap_or_default();
    let mut run = Run {
        until: setup.until.map(|at| Instant::now() + left(at)),
        probe,
        store: None,
        progress,
        rows: Vec::new(),
        spared: Vec::new(),
        begun: None,
    };
    run.changes(unsettled.changed).await?;
    run.restarts().await?;
    Ok(run.rows)
}

/// Returns the rows below another root, where no component runs.
fn rows_below_root(unsettled: &Unsettled) -> Vec<ReportRow> {
    let restarts = unsettled.restarts.iter();
    restarts
        .map(|restart| {
            let detail = format!(
                "was not restarted for {}: no component runs below this root; it reads the new files when the node starts, and `nodepki renew` on the running node restarts it",
                names(&restart.causes)
            );
            row(restart.component, RowAction::NotHere, detail)
        })
        .collect()
}

struct Run<'a> {
    probe: Probe<'a>,
    /// The lock, while this run holds it.
    store: Option<Store>,
    progress: &'a dyn Progress,
    rows: Vec<ReportRow>,
    /// See [`ReloadSetup::until`].
    until: Option<Instant>,
    /// Components whose restart was due only because of files that this run has rolled back.
    spared: Vec<Component>,
    /// The component whose restart was begun and is completed after that of another one: it may have read the new files.
    begun: Option<Component>,
}

impl Run<'_> {
    fn report(&mut self, what: impl ToString, action: RowAction, detail: impl Into<String>) {
        self.rows.push(row(what, action, detail));
    }

    /// Returns the longest wait for a reload, or for other nodes.
    fn max_wait(&self) -> Duration {
        let timeout = self.probe.setup.reload.timeout;
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until
            .map_or(timeout, |until| left(until).max(MIN_WAIT).min(timeout))
    }

    /// Takes the lock and completes an interrupted run. Returns the process that holds the lock if it does not end in
    /// time.
    async fn take_lock(&mut self) -> Result<Option<String>, Failure> {
        if self.store.is_some() {
            return Ok(None);
        }
        let Probe { root, setup, clock } = &self.probe;
        let give_up = Instant::now() + setup.lock_wait.max(MIN_WAIT);
        let locked = loop {
            match root.lock(Duration::ZERO, "reload") {
                Err(store::StoreError::Busy { .. }) if Instant::now() < give_up => {
                    sleep(POLL_INTERVAL).await;
                }
                Err(store::StoreError::Busy { holder, .. }) => return Ok(Some(holder)),
                locked => break locked?,
            }
        };
        let (store, recovery) = locked.recover_in(&setup.known, KeyRemoval::IfBackedUp, clock())?;
        for note in agent::recovery_notes(root, &recovery) {
            tracing::warn!("{note}");
        }
        self.store = Some(store);
        Ok(None)
    }

    fn release_lock(&mut self) {
        self.store = None;
    }

    async fn commit(&mut self, commit: Commit) -> Result<Committed, Failure> {
        if let Some(holder) = self.take_lock().await? {
            return Err(Failure::pending(busy_message(&holder)));
        }
        let store = self.store.as_mut();
        let committed = store.map(|store| store.commit(commit)).transpose()?;
        // The lock is held here.
        Ok(committed.unwrap_or_default())
    }

    // ---- components that reload files ----

    async fn changes(&mut self, changed: Vec<UnverifiedChange>) -> Result<(), Failure> {
        let mut proven = Vec::new();
        // The components reload their files at the same time.
        let give_up = Instant::now() + self.max_wait();
        for changed in changed {
            match self.reloaded(changed.change, give_up).await {
                Ok(detail) => proven.push((changed, detail)),
                Err(why) => self.report(
                    changed.change,
                    RowAction::Failed,
                    format!(
                        "{why}; see the log of that component, which does not use the new certificate yet, then run `nodepki renew`, which repeats this check"
                    ),
                ),
            }
        }
        let proven = self.restart_mounting_pods(proven).await?;
        if proven.is_empty() {
            return Ok(());
        }
        if let Some(holder) = self.take_lock().await? {
            for (changed, _) in proven {
                self.report(changed.change, RowAction::Waits, busy_message(&holder));
            }
            return Ok(());
        }
        // Another run may have run their programs meanwhile.
        let recorded = self.probe.root.unsettled()?.changed;
        let (mut seen, mut in_use) = (Vec::new(), Vec::new());
        for (changed, detail) in proven {
            if !recorded.contains(&changed) {
                continue;
            }
            if let Some(detail) = detail {
                in_use.extend(self.in_use(changed.change, &detail));
                self.report(changed.change, RowAction::InEffect, detail);
            }
            seen.push(changed);
        }
        audit::append(self.probe.root, (self.probe.clock)(), &in_use);
        let failed = self.programs_of(&seen).await?;
        let mut commit = Commit::new();
        for changed in seen {
            if !failed.contains(&changed.change) {
                commit.verified(changed);
            }
        }
        if !commit.is_empty() {
            self.commit(commit).await?;
        }
        self.release_lock();
        Ok(())
    }

    /// Returns the record of the proof that a certificate is in use, for the issuance log.
    pub(super) fn in_use(&self, change: ReplacedFile, proof: &str) -> Option<AuditRecord> {
        let ReplacedFile::Certificate(name) = change else {
            return None;
        };
        let mut record = audit::of_certificate(AuditEvent::InUse, name, name.authority());
        if let Some(CertFiles::Pair { certificate, .. }) = self.probe.setup.outputs.get(&name)
            && let Ok(leaf) = self.probe.on_disk(certificate)
        {
            record = audit::with_leaf(record, &leaf);
        }
        record.reason = Some(proof.to_owned());
        Some(record)
    }

    /// Reports what the run waits for.
    fn await_until(&self, what: impl ToString, until: &'static str, limit: Duration) {
        self.progress.event(Event::Awaiting {
            what: what.to_string(),
            until,
            limit,
        });
    }

    /// Waits until a component serves the certificate on disk, and returns the proof.
    async fn reloaded(
        &self,
        change: ReplacedFile,
        give_up: Instant,
    ) -> Result<Option<String>, String> {
        let ReplacedFile::Certificate(name) = change else {
            return Ok(None);
        };
        let (component, pair_flag, urls) = match name {
            CertName::Apiserver => (Component::KubeApiserver, "tls-cert-file", None),
            CertName::EtcdServer => (Component::Etcd, "cert-file", Some("listen-client-urls")),
            CertName::EtcdPeer => (Component::Etcd, "peer-cert-file", Some("listen-peer-urls")),
            _ => return Ok(None),
        };
        let Some(CertFiles::Pair { certificate, .. }) = self.probe.setup.outputs.get(&name) else {
            return Ok(None);
        };
        let Some(pod) = self.probe.pod(component)? else {
            return Ok(None);
        };
        // The component uses another file, so that it never serves this certificate.
        if pod.flag(pair_flag) != certificate.to_str() {
            return Ok(None);
        }
        let addresses = match urls {
            Some(flag) => pod.urls(flag),
            None => pod.addresses(component),
        };
        let wanted = self.probe.on_disk(certificate)?;
        let limit = give_up.saturating_duration_since(Instant::now());
        self.await_until(component, "it serves the certificate on disk", limit);
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
        let verify = async || match self.probe.served(component, address).await {
            Ok(shown) if shown.fingerprint() == *wanted => Ok(()),
            Ok(shown) => Err(format!(
                "{component} still serves serial {} at {address}",
                shown.serial()
            )),
            Err(why) => Err(format!(
                "the certificate that {component} serves could not be read: {why}"
            )),
        };
        poll(give_up, verify).await
    }
}

/// Repeats a check until it succeeds, or until `give_up`. Returns the last result.
async fn poll<T>(
    give_up: Instant,
    mut check: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, String> {
    loop {
        match check().await {
            Err(_) if Instant::now() < give_up => sleep(POLL_INTERVAL).await,
            ended => return ended,
        }
    }
}

fn busy_message(holder: &str) -> String {
    format!("another run holds the lock ({holder}): run `nodepki renew` once it has ended")
}

fn names(changes: &[ReplacedFile]) -> String {
    let names: Vec<_> = changes.iter().map(|change| change.as_str()).collect();
    names.join(" and ")
}

fn chain_of(pem: &[u8]) -> Option<Chain> {
    Chain::from_pem(pem).ok()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    pub(super) const NOW: OffsetDateTime = datetime!(2026-11-29 12:00 UTC);

    struct Silent;

    impl Progress for Silent {
        fn event(&self, _: Event) {}
    }

    impl<'a> Run<'a> {
        /// Returns a run at [`NOW`].
        pub(super) fn of_tests(root: &'a NodeRoot, setup: &'a ReloadSetup) -> Self {
            Run {
                probe: Probe {
                    root,
                    setup,
                    clock: || NOW,
                },
                store: None,
                progress: &Silent,
                rows: Vec::new(),
                until: None,
                spared: Vec::new(),
                begun: None,
            }
        }
    }

    impl ReloadSetup {
        /// Returns the inputs for a node without certificates.
        pub(super) fn of_tests() -> Self {
            ReloadSetup {
                node: "cp1".to_owned(),
                reload: Reload::default(),
                pods: Vec::new(),
                outputs: BTreeMap::new(),
                bundles: BTreeMap::new(),
                layout: Layout::default(),
                known: KnownDirectories::default(),
                lock_wait: Duration::ZERO,
                until: None,
            }
        }
    }

    #[test]
    fn knows_paths_of_service_account_pair() {
        let setup = ReloadSetup::of_tests();
        let [private, public] =
            ["sa.key", "sa.pub"].map(|file| Path::new("/etc/kubernetes/pki").join(file));
        for (change, expected) in [
            (ReplacedFile::ServiceAccount, vec![private, public.clone()]),
            (ReplacedFile::ServiceAccountPublic, vec![public]),
            (ReplacedFile::KubeletConfiguration, Vec::new()),
        ] {
            assert_eq!(setup.paths_of(change), expected, "{}", change.as_str());
        }
    }
}
