//! Bootstrap and renewal: recover → survey → request → verify → commit.
//!
//! [`bootstrap`] and [`renew`] only connect the other rooms: `spec` defines the desired state and compares it with the
//! observed one, the signer signs, `x509::satisfies` verifies the answer, and `store` writes. Offline signing is the same
//! process with a signer that answers from files.

pub(crate) mod audit;
pub mod authority;
mod clock;
pub(crate) mod cluster_policy;
mod event;
mod examine;
mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod install;
pub mod join;
mod keys;
mod kubelet;
pub mod kubelet_requests;
pub mod load;
pub mod node_report;
mod offline;
mod plan;
mod proof;
mod provided;
pub mod reload;
mod renew;
pub mod report;
mod request;
mod retries;
mod revocation;
pub mod rotation;
mod run;
pub mod shared_certs;
mod survey;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use time::OffsetDateTime;

use crate::kube::names::{Authority, NodePath};
use crate::node::NodeState;
use crate::process::failpoint;
use crate::signer::bundle::Candidate;
use crate::signer::{NodeIdentity, Rejection, Renewal, RequestedCertificate, Signer, SignerKind};
use crate::spec::assess::Action;
use crate::spec::schedule::Rotation;
use crate::spec::{CertFiles, CertSpec, NodeSpec};
use crate::store::{
    self, AuditEvent, AuditRecord, KeyRemoval, KnownDirectories, NodeRecord, NodeRoot, Store,
    StoreError, StoreNote,
};
use crate::x509::TrustBundle;

pub use clock::{ClockPolicy, Floor, floor};
pub use event::{Event, Progress, SignerOperation};
pub use examine::{
    AuthorityExamination, Examination, ExaminationVerdict, SignerExamination, WithoutSigner,
    examine_signers,
};
pub use failure::{ExitCode, Failure, FailureMessage};
pub(crate) use keys::require_self_test;
pub use offline::{export_requests, import_answers, outdated_exports};
pub use plan::{PlannedBootstrap, plan_bootstrap};
pub use proof::{
    SignerAnswer, offered_certificates, rehearse, unverified, verify_signer,
    wait_for_plausible_clock,
};
pub use provided::{Provided, ProvidedBundle, ProvidedFile, ServiceAccount};
pub use renew::{
    RenewalNeed, RenewalVerdict, Renewed, Scope, needs_renewal, planned_renewal, renew,
};
pub use report::{ReportRow, RowAction, RowReason, RunReport};
pub use request::{AnswerFault, PendingReason};
pub use revocation::update_revocations;
pub use survey::{
    ServiceAccountAction, ServiceAccountFault, Survey, SurveyRefusal, SurveyedBundle, SurveyedCert,
    TrustFile, TrustSource, survey,
};

pub(crate) use failure::signer_code;
use failure::{sentence, signer_failure};
use request::{Issuance, IssuanceOrder};
pub(crate) use run::require_policy;
use run::{Outcomes, RequestRun, same_authority};

/// Source of the current time.
pub type Clock = fn() -> OffsetDateTime;
/// Source of numbers that are uniform in [0, 1), which spread the retries of many nodes.
pub type Jitter = fn() -> f64;

/// The inputs of a run.
pub struct RunSetup {
    /// The desired state.
    pub plan: NodeSpec,
    /// Whether `kubeadm init` or `kubeadm join` is still to run on this node.
    pub kubeadm_follows: bool,
    /// The node's identity for signers.
    pub identity: NodeIdentity,
    /// The signer of each authority, with its name in the configuration.
    pub signers: BTreeMap<Authority, (String, Rc<dyn Signer>)>,
    /// Configured trust for each authority.
    pub trust: BTreeMap<Authority, TrustSource>,
    /// Data provided by the cluster that this node joins.
    pub provided: Provided,
    /// Differences between the wanted identity and the node's own, at which a run that changes files stops.
    pub identity_conflicts: Vec<String>,
    /// The node's identity, recorded before the first request; `None` for certificates that belong to no node.
    pub record: Option<Record>,
    /// When certificates are renewed.
    pub rotation: Rotation,
    /// Time limit for signatures; the run then ends as pending.
    pub wait: Duration,
    /// Time limit for the lock of another run.
    pub lock_wait: Duration,
    /// Handling of a clock that may be wrong.
    pub clock: ClockPolicy,
    /// Random part of the wait between two attempts at a signer.
    pub jitter: Jitter,
}

/// The node's identity for later runs, which may have no other description of the node.
pub struct Record {
    /// The record that this setup was compared with.
    pub before: Option<NodeRecord>,
    /// The record of this run.
    pub node: NodeRecord,
}

impl Record {
    /// Writes the record, and the kept files of the state directory. Called under the lock, before the first request.
    fn keep(&self, store: &Store, setup: &RunSetup) -> Result<(), Failure> {
        let found = store.root().saved_node()?;
        if let Some(other) = &found
            && found != self.before
            && other.node != self.node.node
        {
            return Err(Failure::pending(format!(
                "another run has begun requests for node {} while this one, for {}, waited for the lock; run again",
                other.node.name, self.node.node.name
            )));
        }
        let own = setup.provided.files.iter().filter(|file| file.ours);
        let files = own.map(|file| (file.path.as_ref(), file.bytes.as_slice()));
        store.save_node(&self.node, files)?;
        failpoint::reached("run:node-kept");
        Ok(())
    }
}

impl RunSetup {
    /// Records the node's identity if there is anything to request.
    fn keep_record(&self, store: &Store, survey: &Survey) -> Result<(), Failure> {
        match &self.record {
            Some(record) if survey.to_issue().next().is_some() => record.keep(store, self),
            _ => Ok(()),
        }
    }

    /// Preflight errors that the following `kubeadm join` has to ignore.
    fn ignore_preflight_errors(&self) -> Vec<String> {
        if self.kubeadm_follows {
            self.plan.ignore_preflight_errors.clone()
        } else {
            Vec::new()
        }
    }

    fn trust_source(&self, authority: Authority) -> TrustSource {
        self.trust.get(&authority).cloned().unwrap_or_default()
    }

    fn signer(&self, authority: Authority) -> Result<&(String, Rc<dyn Signer>), Failure> {
        self.signers.get(&authority).ok_or_else(|| {
            Failure::misconfigured(format!(
                "authority {authority} has no signer; name one under authorities.{authority}.signer or with --signer, or have the requests signed elsewhere (nodepki csr export DIR)"
            ))
        })
    }

    /// Returns what is needed to issue a certificate: its signer, and the current certificate if the signer accepts it in exchange.
    fn issuance<'a>(
        &self,
        cert: &'a SurveyedCert,
        trust: &'a TrustBundle,
        now: OffsetDateTime,
    ) -> Result<Issuance<'a>, Failure> {
        let (signer_name, signer) = self.signer(cert.spec.authority())?;
        Ok(Issuance {
            order: IssuanceOrder {
                spec: &cert.spec,
                signer: Rc::clone(signer),
                signer_name: signer_name.clone(),
                current: match signer.caps().renewal {
                    Renewal::Rekey => cert.exchangeable(trust, now),
                    Renewal::SameKey if cert.decision.keep_key => cert.exchangeable(trust, now),
                    Renewal::SameKey | Renewal::Submit => None,
                },
                outlives: cert
                    .found
                    .chain
                    .present()
                    .filter(|_| cert.decision.for_age && cert.decision.keep_key)
                    .map(|chain| chain.leaf().not_after()),
                replaces: cert
                    .found
                    .chain
                    .present()
                    .filter(|_| cert.decision.keep_key)
                    .map(|chain| chain.leaf().fingerprint()),
            },
            trust,
            can_wait: cert.still_serves(Some(trust), now)
                && cert.age.is_some_and(|age| !age.life.is_about_to_end(now)),
        })
    }

    /// Returns the certificates that are requested from the signer of an authority.
    pub fn requested(&self, authority: Authority) -> impl Iterator<Item = &RequestedCertificate> {
        let requested = self.plan.certs.iter().map(|spec| &spec.requested);
        requested.filter(move |requested| requested.authority == authority)
    }

    /// Verifies without I/O that the signer of a certificate can sign it.
    pub fn preflight(&self, spec: &CertSpec) -> Result<(), Failure> {
        let (_, signer) = self.signer(spec.authority())?;
        let rejection = signer.preflight(&spec.requested).err();
        rejection.map_or(Ok(()), |rejection| {
            let omission =
                report::omission(spec).map_or_else(String::new, |way| format!("; {way}"));
            let message = format!("{rejection}{omission}");
            Err(Failure::misconfigured(message))
        })
    }

    /// Compares the files of the node with the plan; reads only.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn survey(&self, root: &NodeRoot, now: OffsetDateTime) -> Result<Survey, Failure> {
        self.survey_of(&self.state(root), now)
    }

    /// Returns the files of the node at the paths of the plan, not read yet.
    pub fn state(&self, root: &NodeRoot) -> NodeState {
        NodeState::new(root, self.plan.layout.clone())
    }

    /// As [`RunSetup::survey`], for files that were already read.
    ///
    /// # Errors
    /// As of [`RunSetup::survey`].
    pub fn survey_of(&self, state: &NodeState, now: OffsetDateTime) -> Result<Survey, Failure> {
        let mut survey = survey(
            state,
            &self.plan,
            |authority| self.trust_source(authority),
            &self.provided,
            now,
        )?;
        let conflicts = self.identity_conflicts.iter().cloned();
        let conflicts = conflicts.map(SurveyRefusal::Identity);
        survey.refusals.splice(..0, conflicts);
        survey.assess_ages(state, &self.rotation, &self.identity.node, now)?;
        for spec in survey.ca_keys().cloned().collect::<Vec<_>>() {
            // The local and the embedded signer need the CA key on the node; no other signer does.
            let external = self.signers.get(&spec.authority).is_none_or(|(_, signer)| {
                !matches!(signer.kind(), SignerKind::Local | SignerKind::Embedded)
            });
            if external {
                survey.notes.push(format!(
                    "{} is on this node although an external signer is configured for {}: nodepki migrate to-external proves that it is not needed, and removes it",
                    spec.key_path,
                    spec.authority
                ));
            }
        }
        Ok(survey)
    }
}

impl RunSetup {
    /// Returns the directories in which an interrupted run can have left unfinished changes.
    pub(crate) fn known_directories(&self) -> KnownDirectories {
        let provided = self.provided.files.iter().map(|file| file.path.as_ref());
        known_directories(&self.plan).with_files(provided)
    }
}

fn known_directories(plan: &NodeSpec) -> KnownDirectories {
    let bundles = plan.bundles.iter().flat_map(|bundle| {
        let copies = bundle.copies.iter().map(|copy| &copy.path);
        copies.chain([&bundle.path])
    });
    let pair = plan.service_account.iter().map(|pair| &pair.private);
    let outputs = plan.certs.iter().map(|spec| &spec.output);
    // A join takes these from the cluster while they are missing.
    let external = plan.external_etcd.iter().flat_map(|files| {
        let files = [&files.authority, &files.certificate, &files.key];
        files.into_iter().flatten()
    });
    let files = bundles.chain(pair).chain(external);
    let files = files.chain(outputs.clone().flat_map(CertFiles::paths));
    let stores = outputs.filter_map(|output| match output {
        CertFiles::Kubeconfig { store, .. } => store.as_ref(),
        CertFiles::Pair { .. } => None,
    });
    let known = KnownDirectories::default().with_files(files.map(AsRef::as_ref));
    stores.fold(known, |known, store| known.with_directory(&store.dir))
}

/// Requests and installs the missing files of the plan, as far as the signers answer in time.
///
/// Idempotent: if nothing is missing, nothing is written and no signer is contacted.
///
/// # Errors
/// A failure of the whole run. The result of each certificate is in the report.
pub async fn bootstrap(
    root: &NodeRoot,
    setup: &RunSetup,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<RunReport, Failure> {
    // If nothing is due, not even the lock is taken: this also works with a read-only root.
    if !root.has_unfinished()? {
        let survey = setup.survey(root, clock())?;
        if survey.refusals.is_empty() && survey.is_settled() {
            return Ok(report::settled(setup, survey));
        }
    }
    let (mut store, recovery) = open_store(root, setup, "bootstrap", clock)?;
    bootstrap_in(&mut store, recovery, setup, clock, progress, Vec::new()).await
}

/// Takes the lock and finishes an interrupted run. Returns notes on what was finished.
pub(crate) fn open_store(
    root: &NodeRoot,
    setup: &RunSetup,
    command: &str,
    clock: Clock,
) -> Result<(Store, Vec<String>), Failure> {
    open_store_with(root, setup, command, KeyRemoval::IfBackedUp, clock)
}

/// As [`open_store`], for a command that may decide anew about the CA keys that an interrupted run had begun to remove.
pub(crate) fn open_store_with(
    root: &NodeRoot,
    setup: &RunSetup,
    command: &str,
    removal: KeyRemoval,
    clock: Clock,
) -> Result<(Store, Vec<String>), Failure> {
    let locked = root.lock(setup.lock_wait, command)?;
    let (store, recovery) = locked.recover_in(&setup.known_directories(), removal, clock())?;
    let is_removal = |note: &StoreNote| matches!(note, StoreNote::BackupUnchanged { .. });
    if recovery.notes.iter().any(is_removal) {
        let record = AuditRecord {
            action: Some(audit::KEYS_REMOVED.to_owned()),
            ..AuditRecord::of(AuditEvent::Migration)
        };
        audit::append(root, clock(), &[record]);
    }
    Ok((store, recovery_notes(root, &recovery)))
}

/// Notes on the recovery of an interrupted run.
pub(crate) fn recovery_notes(root: &NodeRoot, recovery: &store::Recovery) -> Vec<String> {
    let finished = recovery.finished.iter().map(|path| {
        format!(
            "{} was completed: an earlier run had been interrupted while writing it",
            root.on_this_machine(path).display()
        )
    });
    let removed = recovery.removed.iter().map(|path| {
        format!(
            "{} was removed: an earlier run had been interrupted while removing it",
            root.on_this_machine(path).display()
        )
    });
    let superseded = recovery.superseded.iter().map(|path| {
        format!(
            "{} was left as it is: another process changed it after an earlier run had been interrupted",
            root.on_this_machine(path).display()
        )
    });
    let notes = recovery.notes.iter().map(ToString::to_string);
    let all = finished.chain(removed).chain(superseded).chain(notes);
    all.collect()
}

/// As [`bootstrap`], with the lock. `imported` are certificates that come with their keys.
async fn bootstrap_in(
    store: &mut Store,
    notes: Vec<String>,
    setup: &RunSetup,
    clock: Clock,
    progress: &dyn Progress,
    imported: Vec<Candidate>,
) -> Result<RunReport, Failure> {
    let mut survey = setup.survey(store.root(), clock())?;
    survey.notes.extend(notes);
    if !survey.refusals.is_empty() {
        return Err(survey.refused());
    }
    if survey.is_settled() {
        return Ok(report::settled(setup, survey));
    }
    preflight(setup, &survey)?;
    require_room(store.root(), setup, &survey)?;

    let mut run = RequestRun::new(setup, store, clock, progress, &mut survey, imported)?;
    run.settle_clock(&mut survey).await?;
    run.establish_trust(&mut survey).await?;
    setup.keep_record(store, &survey)?;
    run.adopt_imported(&survey)?;
    let mut outcomes = run.request_all(&survey).await?;
    let (now, retries) = (run.now(), run.retries());
    let trust = run.trust;
    revocation::refuse_revoked(setup, store, &survey, &trust, &mut outcomes, &retries, now).await?;
    install::install(setup, store, &trust, survey, outcomes, now, progress).await
}

/// Verifies before any key is generated that every signer can sign what it would be sent.
fn preflight(setup: &RunSetup, survey: &Survey) -> Result<(), Failure> {
    let mut messages: Vec<FailureMessage> = Vec::new();
    let mut unsigned: BTreeSet<Authority> = BTreeSet::new();
    let mut rejections: Vec<Rejection> = Vec::new();
    for cert in survey.to_issue() {
        let spec = &cert.spec;
        let rejection = match setup.signer(spec.authority()) {
            Ok((_, signer)) => match signer.preflight(&spec.requested) {
                Ok(()) => continue,
                Err(rejection) => rejection,
            },
            Err(failure) => {
                // Reported once, not for every certificate of the authority.
                if unsigned.insert(spec.authority()) {
                    messages.extend(failure.messages);
                }
                continue;
            }
        };
        rejections.push(rejection);
    }
    let rejections = examine::by_reason(rejections).into_iter();
    messages.extend(rejections.map(|(names, rejection)| {
        format!(
            "{} cannot sign {}: {}; {}",
            rejection.signer,
            names.join(", "),
            rejection.reason,
            rejection.advice
        )
        .into()
    }));
    if messages.is_empty() {
        Ok(())
    } else {
        Err(Failure {
            code: ExitCode::Configuration,
            messages,
        })
    }
}

/// Verifies before any request is sent that there is space and permission for the results.
///
/// # Errors
/// All obstacles.
pub fn require_room(root: &NodeRoot, setup: &RunSetup, survey: &Survey) -> Result<(), Failure> {
    verify_room(root, setup, survey).map_err(no_room)
}

/// As [`require_room`], with the obstacles as values.
///
/// # Errors
/// All obstacles.
pub fn verify_room(
    root: &NodeRoot,
    setup: &RunSetup,
    survey: &Survey,
) -> Result<(), Vec<StoreError>> {
    let certs = survey.certs.iter();
    let certs = certs.filter(|cert| !matches!(cert.decision.action, Action::Keep { .. }));
    let bundles = survey.bundles.iter().filter(|bundle| !bundle.in_place);
    let service_account = setup.plan.service_account.as_ref().filter(|_| {
        !matches!(
            survey.service_account,
            None | Some(ServiceAccountAction::Keep)
        )
    });
    let paths = certs
        .flat_map(written)
        .chain(bundles.map(|bundle| bundle.spec.path.clone()))
        .chain(service_account.map(|spec| spec.public.clone()));
    verify_room_for(root, paths, survey.to_issue().count())
}

/// Returns the files that are written for a certificate.
fn written(cert: &SurveyedCert) -> impl Iterator<Item = NodePath> {
    let paths = cert.spec.output.paths().into_iter().cloned();
    let kubelet = cert.found.store.as_ref();
    paths.chain(kubelet.map(|store| store.dir.join("kubelet-client.pem")))
}

fn verify_room_for(
    root: &NodeRoot,
    paths: impl Iterator<Item = NodePath>,
    requests: usize,
) -> Result<(), Vec<StoreError>> {
    // RSA-4096 chain with two intermediates, in a kubeconfig.
    const MAX_FILE_BYTES: u64 = 24 * 1024;
    let paths: Vec<NodePath> = paths.collect();
    let files = paths.iter().map(|path| (path.as_ref(), MAX_FILE_BYTES));
    root.preflight(files, requests)
}

/// Returns the failure for all obstacles.
fn no_room(errors: Vec<StoreError>) -> Failure {
    let failures: Vec<Failure> = errors.into_iter().map(Failure::from).collect();
    Failure {
        code: failures
            .iter()
            .map(|failure| failure.code)
            .max()
            .unwrap_or(ExitCode::NotPermitted),
        messages: failures
            .into_iter()
            .flat_map(|failure| failure.messages)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::kube::kubeadm::{HostFacts, Overrides, load, resolve};
    use crate::spec::policy::{KeyPolicy, KeyRules};
    use crate::spec::{Choices, node_spec};

    const NODE: &str = "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration: {name: cp1}
localAPIEndpoint: {advertiseAddress: 192.0.2.11}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
certificatesDir: /etc/kubernetes/../ssl
etcd: {external: {endpoints: ['https://etcd:2379'], caFile: /etc/etcd-client/ca.crt, certFile: /srv/c.crt, keyFile: /opt/c.key}}
";

    #[test]
    fn knows_directories_of_external_etcd_without_provided_files() {
        let resolved = resolve(
            &load(&[("node.yaml", NODE)]),
            &HostFacts::default(),
            &Overrides::default(),
        )
        .unwrap();
        let cluster = resolved.cluster.unwrap();
        let policy = KeyPolicy::new(KeyRules::default(), cluster.key_algorithm);
        let plan = node_spec(&cluster, &resolved.node, &policy, &Choices::default());
        let known = known_directories(&plan);
        for directory in ["/etc/etcd-client", "/srv", "/opt", "/etc/ssl/etcd"] {
            assert!(known.has_directory(Path::new(directory)), "{directory}");
        }
        assert!(!known.has_directory(Path::new("/usr")));
    }
}
