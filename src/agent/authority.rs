//! Changes a CA on a running cluster: both CAs are trusted first, then the new one issues, then the old one is removed.
//!
//! | step | `ca.crt` and the CA data of kubeconfigs | requires, on this node and on every other node |
//! | --- | --- | --- |
//! | [`stage`] | old, new | |
//! | [`activate`] | new, old; all certificates are reissued | both are trusted, and components that read the files only at start were restarted |
//! | [`retire`] | new | no certificate is under the old CA any more |
//!
//! kubeadm treats the first certificate as the CA, so its checks succeed in every phase. Each step is one commit,
//! requires that the step before is proven on this node, may be repeated, and completes an interrupted step: what is
//! missing is computed from the files ([`judge`]). The progress of other nodes is in their reports ([`report`]).
//!
//! A commit that changes the trusted CAs records the restarts that it requires. [`settle`] carries them out as `renew` and
//! the daemon do; exit status 75 means that some are still due. Below a root other than `/` they stay due, since nothing
//! can be proven there; the next run on the node itself carries them out. If a component does not become ready, all files
//! of the step are rolled back together, and a repeated step requests another restart. [`undo`] reverts `stage` as long as
//! no certificate is under the new CA.
//!
//! A CA certificate that is renewed with the same key takes the same steps, with less to prove: certificates under the
//! old one also verify under the new one, on this node and on the others.
//!
//! The CA is also in the ConfigMaps that the control plane publishes ([`cluster`]), in copies of admin.conf on
//! administrators' machines, and in every `caBundle` of other programs: these are named, not changed.
//!
//! Files are written through `store`, certificates issued through `agent`. To add a requirement for a step, extend
//! [`judge`].
//!
//! [`rotate`] takes these steps for a CA change of the whole cluster, whose protocol is in `spec::authority_rotation`, and
//! likewise changes the service-account key (`service_account`).

pub mod cluster;
pub mod command;
pub mod coordinate;
pub mod evidence;
mod exchange;
pub mod judge;
mod lead;
pub mod objects;
mod outside;
pub mod report;
pub mod rotate;
mod sealed;
mod service_account;
mod step;

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Serialize;
use time::OffsetDateTime;

use crate::agent::load::{self, KubeconfigFile, Loaded};
use crate::agent::rotation;
use crate::agent::{self, Clock, ExitCode, Failure, Progress, RunSetup};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::process::failpoint;
use crate::spec::authority_rotation::BegunPhase;
use crate::spec::policy::too_old_for;
use crate::store::NodeRoot;
use crate::text::hex;
use crate::x509::{Certificate, KeyType, TrustBundle, certificates_of};

use cluster::ClusterView;
use judge::{ChangePhase, ChangeTarget, Evidence, Kinship, Offer, fingerprint, named};
use report::{AuthorityReport, NodeReport, PeerRequirement, Peers};
use step::ChangeStep;

/// Parameters of a step.
pub struct StepOrder {
    /// Authority whose CA is changed.
    pub authority: Authority,
    /// Report only what would be done.
    pub dry_run: bool,
    /// The known facts about the other nodes.
    pub peers: Peers,
    /// Kubeconfig with which to list the cluster's nodes; `None` lists none.
    pub kubeconfig: Option<KubeconfigFile>,
    /// The phase of a cluster-wide rotation to which the step belongs. Its protocol has proven the requirement on the other
    /// nodes.
    pub rotation: Option<BegunPhase>,
    /// The administrator states that the cluster's components can verify signatures of the new CA, of whichever release they
    /// are.
    pub components_verify: bool,
}

/// Reference to the manual actions after a step, for messages.
const RUNBOOK: &str =
    "see docs/ca-change.md, On the cluster (installed as /usr/share/doc/nodepki/docs/ca-change.md)";

/// Result of a step, or of its dry run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepOutcome {
    /// The step: `stage`, `stage --undo`, `activate` or `retire`.
    pub step: &'static str,
    /// False for a dry run, and if nothing was due.
    pub applied: bool,
    /// The actions taken or planned, in sentences.
    pub done: Vec<String>,
    /// The proofs of the step's requirements, in sentences.
    pub proven: Vec<String>,
    /// Files that were written.
    pub written: Vec<PathBuf>,
    /// Files that were removed.
    pub removed: Vec<PathBuf>,
    /// Report of the certificates that were issued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issued: Option<agent::RunReport>,
    /// Results of the reloads and restarts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reloads: Vec<agent::ReportRow>,
    /// Further notes.
    pub notes: Vec<String>,
    /// The authority on this node after the step.
    pub report: AuthorityReport,
    /// Something was to be done, whether or not it was applied.
    #[serde(skip)]
    pub is_due: bool,
    /// The step failed to replace some certificates.
    #[serde(skip)]
    pub is_incomplete: bool,
}

impl StepOutcome {
    /// Returns the gravest code of all rows; at least pending while restarts are due or certificates are under the old CA.
    pub fn code(&self) -> ExitCode {
        let restarts = if self.report.restarts.is_empty() && !self.is_incomplete {
            ExitCode::Done
        } else {
            ExitCode::Pending
        };
        let issued = self.issued.as_ref().map(agent::RunReport::code);
        let reloads = self.reloads.iter().filter_map(|row| row.code);
        reloads.chain(issued).fold(restarts, ExitCode::max)
    }
}

/// Carries out the reloads and restarts of this step and of earlier ones.
///
/// # Errors
/// The node's files cannot be read afterwards.
pub async fn settle(
    root: &NodeRoot,
    loaded: &Loaded,
    mut outcome: StepOutcome,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<StepOutcome, Failure> {
    outcome.reloads = rotation::settle(root, loaded, None, clock, progress)
        .await
        .rows;
    let (setup, now) = (&loaded.setup, clock());
    let state = setup.state(root);
    let survey = setup.survey_of(&state, now)?;
    let evidence = evidence::read(&state, setup, &survey, outcome.report.authority)?;
    outcome.report = AuthorityReport::of(&evidence, now);
    Ok(outcome)
}

/// Returns the report of this node, which `--peer-report` of another node reads.
///
/// # Errors
/// The node's files cannot be read.
pub fn status(
    root: &NodeRoot,
    Loaded {
        setup,
        knows_cluster,
        ..
    }: &Loaded,
    authorities: &BTreeSet<Authority>,
    now: OffsetDateTime,
) -> Result<NodeReport, Failure> {
    let state = setup.state(root);
    let survey = setup.survey_of(&state, now)?;
    let bundles = setup.plan.bundles.iter();
    let wanted = bundles
        .map(|bundle| bundle.authority)
        .filter(|authority| authorities.is_empty() || authorities.contains(authority));
    let reports = wanted
        .map(|authority| {
            let evidence = evidence::read(&state, setup, &survey, authority)?;
            Ok(AuthorityReport::of(&evidence, now))
        })
        .collect::<Result<_, Failure>>()?;
    for authority in authorities {
        evidence::spec(setup, *authority)?;
    }
    Ok(NodeReport {
        node: setup.identity.node.clone(),
        cluster: knows_cluster.then(|| setup.identity.cluster.clone()),
        at: now,
        authorities: reports,
    })
}

/// Reads from the cluster what concerns the change of one authority.
///
/// # Errors
/// The kubeconfig cannot be used.
pub async fn view_cluster(
    root: &NodeRoot,
    kubeconfig: &Argument,
    setup: &RunSetup,
    authority: Authority,
    now: OffsetDateTime,
) -> Result<ClusterView, Failure> {
    let state = setup.state(root);
    let survey = setup.survey_of(&state, now)?;
    let evidence = evidence::read(&state, setup, &survey, authority)?;
    let api = load::cluster(root, kubeconfig)?;
    Ok(cluster::view(&api, authority, evidence.incoming()).await)
}

/// Trusts a new CA in addition to the old one: the certificate in `file`, or the pinned certificate that the authority's
/// signer returns.
///
/// # Errors
/// The step was refused, and nothing was changed.
pub async fn stage(
    root: &NodeRoot,
    loaded: &Loaded,
    order: &StepOrder,
    file: Option<&Argument>,
    clock: Clock,
) -> Result<StepOutcome, Failure> {
    let (setup, now) = (&loaded.setup, clock());
    let offered = match file {
        Some(path) => read_certificates(root, path)?,
        None => offered(setup, order.authority).await?,
    };
    let mut step = ChangeStep::begin(root, setup, order, "stage", clock)?;
    let new = match step
        .evidence
        .admit(&offered, now)
        .map_err(Failure::refused)?
    {
        Offer::New(new) => *new,
        Offer::InPlace => {
            let why = format!(
                "{} is already the {}, and no other CA is trusted",
                offered.first().map(named).unwrap_or_default(),
                order.authority
            );
            return step.nothing_to_do(why, clock, now);
        }
    };
    require_known_algorithm(loaded, &new, order.components_verify)?;
    let target = step.evidence.staged(&new, now).map_err(Failure::refused)?;
    step.notes.push(format!(
        "the new CA is {}, certificate sha256:{}, public key sha256:{} (verify both with the owner of the CA)",
        new.subject(),
        fingerprint(&new),
        hex(&new.public_key().sha256())
    ));
    step.notes.extend(kinship_note(&step.evidence, &new));
    require_pins(setup, order.authority, &target)?;
    let trouble = step.evidence.signing_trouble();
    Failure::require_none(trouble)?;
    step.put_in_place(&target, true, clock)?;
    step.notes.extend(manual_actions(order.authority));
    step.end(now)
}

/// Refuses a new CA whose signatures the cluster's components cannot verify. `is_stated`: the administrator states that they
/// can.
fn require_known_algorithm(
    loaded: &Loaded,
    new: &Certificate,
    is_stated: bool,
) -> Result<(), Failure> {
    let KeyType::Known(algorithm) = new.public_key().key_type() else {
        return Ok(());
    };
    match too_old_for(*algorithm, loaded.cluster.kubernetes_version.as_ref()) {
        Some(why) if !is_stated => Err(Failure::refused(format!(
            "{}: {why} (upgrade first, or state with --components-verify that every component and client of the cluster, and etcd, can verify its signatures)",
            named(new)
        ))),
        _ => Ok(()),
    }
}

/// Removes a staged CA that no certificate is under.
///
/// # Errors
/// The step was refused, and nothing was changed.
pub async fn undo(
    root: &NodeRoot,
    setup: &RunSetup,
    order: &StepOrder,
    clock: Clock,
) -> Result<StepOutcome, Failure> {
    let now = clock();
    let mut step = ChangeStep::begin(root, setup, order, "stage --undo", clock)?;
    let (Some(target), Some(new)) = (step.evidence.undone(), step.evidence.unwanted().cloned())
    else {
        return step.nothing_to_do("no new CA is staged", clock, now);
    };
    let authority = order.authority;
    if step.evidence.phase() == ChangePhase::Activated {
        return Err(Failure::refused(format!(
            "{} is already activated as the {authority}, and certificates under it are in use (continue with `nodepki authority retire {authority}`, or change back by staging the old certificate as a new one)",
            named(&new)
        )));
    }
    if step.evidence.kinship(&new) == Kinship::Other {
        if let Some(stranded) = step.evidence.stranded(&new, now) {
            return Err(Failure::refused(stranded));
        }
        step.require_peers(PeerRequirement::DoesWithout(&new), now)
            .await?;
    }
    step.put_in_place(&target, true, clock)?;
    step.end(now)
}

/// Makes the staged CA the issuing one, and has all certificates under the old one reissued.
///
/// # Errors
/// The step was refused. Failures of single certificates are in the outcome.
pub async fn activate(
    root: &NodeRoot,
    setup: &RunSetup,
    order: &StepOrder,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<StepOutcome, Failure> {
    let now = clock();
    let mut step = ChangeStep::begin(root, setup, order, "activate", clock)?;
    let authority = order.authority;
    let (Some(target), Some(new)) = (
        step.evidence.activated(now),
        step.evidence.incoming().cloned(),
    ) else {
        return Err(Failure::refused(format!(
            "no new {authority} is staged on this node (first run nodepki authority stage {authority} --certificate FILE on every node)"
        )));
    };
    if step.evidence.phase() == ChangePhase::Staged {
        let missing = step.evidence.unstaged();
        Failure::require_none(missing)?;
        step.proven(format!(
            "{} and {} kubeconfigs trust both, and no restart is due",
            step.evidence.file,
            step.evidence.kubeconfigs.len()
        ));
        if step.evidence.kinship(&new) == Kinship::Other {
            step.require_peers(PeerRequirement::Trusts(&new), now)
                .await?;
            if !order.dry_run {
                step.rehearse(&new, "new", clock, progress).await?;
            }
        }
        failpoint::reached("authority:proven");
    }
    // Only the order of the certificates changes, so no component has to read them again.
    step.put_in_place(&target, false, clock)?;
    failpoint::reached("authority:ordered");
    if authority == Authority::Ca {
        step.notes.push(format!(
            "before the next step, update the CA certificates that the cluster publishes and other programs keep: {RUNBOOK}"
        ));
    }
    step.reissue(&new, "new", clock, progress).await
}

/// Stops trusting the old CA.
///
/// # Errors
/// The step was refused, and nothing was changed.
pub async fn retire(
    root: &NodeRoot,
    setup: &RunSetup,
    order: &StepOrder,
    clock: Clock,
) -> Result<StepOutcome, Failure> {
    let now = clock();
    let mut step = ChangeStep::begin(root, setup, order, "retire", clock)?;
    let authority = order.authority;
    let (Some(target), Some(new)) = (step.evidence.retired(), step.evidence.incoming().cloned())
    else {
        let why = format!("no change of {authority} is in progress");
        return step.nothing_to_do(why, clock, now);
    };
    if step.evidence.phase() == ChangePhase::Staged {
        return Err(Failure::refused(format!(
            "{} is not activated yet (first run nodepki authority activate {authority} on every node; to remove the new CA instead, run nodepki authority stage {authority} --undo)",
            named(&new)
        )));
    }
    let missing = step.evidence.unactivated(now);
    Failure::require_none(missing)?;
    step.proven(format!(
        "all {} certificates on this node are under the new CA, and no restart is due",
        step.evidence.leaves.len()
    ));
    if step.evidence.kinship(&new) == Kinship::Other {
        step.require_peers(PeerRequirement::Uses(&new), now).await?;
    }
    // Only after the other nodes: a file without the old CA refuses those that are under it.
    let retained = step.evidence.retained(&target.dropped);
    Failure::require_none(retained)?;
    step.put_in_place(&target, true, clock)?;
    if authority == Authority::Ca {
        step.notes.push(format!(
            "the old CA is still in cluster-info, and in JoinConfigurations and kubeconfigs outside the nodes: {RUNBOOK}"
        ));
    }
    let pins = setup.trust.get(&authority).map(|source| &source.pins);
    let old = target.dropped.iter().map(|one| one.public_key().sha256());
    if pins.is_some_and(|pins| old.clone().any(|pin| pins.contains(&pin))) {
        step.notes.push(format!(
            "once no node trusts the old CA any more, its pin can be removed from authorities.{authority}.trust.sha256"
        ));
    }
    step.end(now)
}

/// Verifies that the pins cover the new bundle; otherwise every later run would refuse it.
fn require_pins(
    setup: &RunSetup,
    authority: Authority,
    target: &ChangeTarget,
) -> Result<(), Failure> {
    let pins = setup.trust.get(&authority).map(|source| &source.pins);
    let bundle = TrustBundle::from_certificates(target.bundle.clone());
    let (Some(pins), Ok(bundle)) = (pins, bundle) else {
        return Ok(());
    };
    bundle.require_pins(pins).map_err(|error| {
        Failure::refused(format!(
            "{error} (add the new CA to authorities.{authority}.trust.sha256 next to the old one, after verifying it with the owner of the CA, and run again)"
        ))
    })
}

/// Returns a note on how the new CA relates to the old one.
fn kinship_note(evidence: &Evidence, new: &Certificate) -> Option<String> {
    let old = evidence.bundle.first()?;
    match evidence.kinship(new) {
        Kinship::Renewal => Some(
            "the new certificate has name and key of the CA in place: all certificates under the old one stay valid, and no other node has to be checked".to_owned(),
        ),
        Kinship::Other if old.subject() == new.subject() => Some(format!(
            "both CAs have the name {}: they differ by their keys, and by the key identifiers in certificates",
            new.subject()
        )),
        Kinship::Other => None,
    }
}

/// Returns notes on what trusts a CA outside the files of nodes, and has to be updated by other means.
fn manual_actions(authority: Authority) -> Vec<String> {
    let cluster_info = format!(
        "update cluster-info once per cluster, so that new nodes receive both CAs; they then need the pins of both (--discovery-token-ca-cert-hash, twice); if kubeadm-certs is in use, upload it again with nodepki certs upload; {RUNBOOK}"
    );
    let notes: &[&str] = match authority {
        Authority::Ca => &[
            &cluster_info,
            "kube-controller-manager publishes kube-root-ca.crt after its restart; restart Pods that read it only at start before you activate the new CA",
            "copies of admin.conf on administrators' machines, and programs with their own caBundle, need the new CA too",
        ],
        Authority::FrontProxyCa => &[
            "kube-apiserver publishes extension-apiserver-authentication within a minute, and extension API servers follow it",
        ],
        Authority::EtcdCa => &[
            "other clients of etcd (backups, monitoring) need the new CA too, and a certificate under it before the old CA is retired",
        ],
    };
    notes.iter().map(ToString::to_string).collect()
}

fn read_certificates(root: &NodeRoot, path: &Argument) -> Result<Vec<Certificate>, Failure> {
    let Some(content) = load::argument(root, path)?.read()? else {
        return Err(Failure::usage(format!(
            "--certificate {}: the file does not exist (name a file with the new CA's certificate)",
            load::shown(root, path).display()
        )));
    };
    certificates_of(&content.bytes).map_err(|error| {
        Failure::refused(format!(
            "--certificate {}",
            load::shown(root, path).display()
        ))
        .caused_by(error)
        .advise("name a file with the new CA's certificate, PEM or DER")
    })
}

/// Returns the CA certificates of the authority's signer. They are accepted only with pins.
async fn offered(setup: &RunSetup, authority: Authority) -> Result<Vec<Certificate>, Failure> {
    let pins = setup.trust.get(&authority).map(|source| &source.pins);
    if pins.is_none_or(|pins| pins.is_empty()) {
        return Err(Failure::misconfigured(format!(
            "the new CA is not specified (name its certificate with --certificate FILE, or pin old and new under authorities.{authority}.trust.sha256 to fetch it from the signer)"
        )));
    }
    agent::offered_certificates(setup, authority).await
}
