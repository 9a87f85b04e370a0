//! A CA is changed on a running cluster: both are trusted first, then the new one issues, then the old one goes.
//!
//! | step | `ca.crt` and the CA data of kubeconfigs | needs, here and on every other node |
//! | --- | --- | --- |
//! | [`stage`] | old, new | |
//! | [`activate`] | new, old; everything is issued anew | both are trusted, and what reads files only once was restarted |
//! | [`retire`] | new | nothing is under the old one any more |
//!
//! The first certificate is the CA for kubeadm, so kubeadm's checks hold in every phase. Each step is one commit, refuses
//! until the one before is proven on this node, may be repeated, and finishes what an interrupted one left: what is
//! missing is computed from the files ([`judge`]). What other nodes have done is in their reports ([`report`]). A commit
//! that changes what is trusted records the restarts that it takes, and [`settle`] carries them out as `renew` and the
//! daemon do; exit status 75 says that some are still due. Below a root other than `/` they stay due, since nothing can be
//! proven there: the node's own next run sees to them. If a component does not come back, all files of the step are rolled
//! back together, and a repeated step requests another restart. A step is taken back by [`undo`] as long as nothing uses
//! the new CA.
//!
//! A CA certificate that is renewed with its key takes the same steps, with less to prove: what the old one has signed
//! holds under the new one too, and so do the peers.
//!
//! Beyond the files of nodes are the ConfigMaps that the control plane publishes ([`cluster`]), copies of admin.conf on
//! people's machines, and whoever keeps a `caBundle` of its own: those are named, not changed.
//!
//! It writes through `store` and has certificates issued through `agent`. A new demand on a step belongs into
//! [`judge`].

pub mod cluster;
pub mod evidence;
pub mod judge;
pub mod report;
mod step;

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Serialize;
use time::OffsetDateTime;

use crate::agent::load::{self, KubeconfigFile, Loaded};
use crate::agent::rotation;
use crate::agent::{self, Clock, ExitCode, Failure, Progress, Setup};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::process::failpoint;
use crate::store::Root;
use crate::x509::{Certificate, TrustBundle, certificates_of, hex};

use cluster::Seen;
use judge::{Evidence, Kinship, Offer, Phase, Target, fingerprint, named};
use report::{AuthorityReport, Need, NodeReport, Peers};
use step::Step;

/// What is asked of a step.
pub struct Wish {
    /// Whose CA.
    pub authority: Authority,
    /// Only say what would be done.
    pub dry_run: bool,
    /// What is known of the other nodes.
    pub peers: Peers,
    /// Asks the cluster which nodes there are; `None` asks nobody.
    pub kubeconfig: Option<KubeconfigFile>,
}

/// Where it is written what a person does after a step, for messages.
const RUNBOOK: &str =
    "see docs/runbook.md, section 8 (installed as /usr/share/doc/nodepki/docs/runbook.md)";

/// What a step did, or would do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// `stage` and so on.
    pub step: &'static str,
    /// False for a look, and where nothing was to be done.
    pub applied: bool,
    /// What was done or would be, in words.
    pub done: Vec<String>,
    /// What proves that it may be done.
    pub proven: Vec<String>,
    /// Files that were written.
    pub written: Vec<PathBuf>,
    /// Files that were removed.
    pub removed: Vec<PathBuf>,
    /// What was issued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issued: Option<agent::Report>,
    /// What became of what had to take effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reloads: Vec<agent::Row>,
    /// What else deserves attention.
    pub notes: Vec<String>,
    /// The authority on this node afterwards.
    pub report: AuthorityReport,
    /// Certificates are left that the step should have replaced.
    #[serde(skip)]
    pub is_incomplete: bool,
}

impl Outcome {
    /// The gravest of all rows; pending at least while restarts are due or certificates are left under the old CA.
    pub fn code(&self) -> ExitCode {
        let restarts = match self.report.restarts.is_empty() && !self.is_incomplete {
            true => ExitCode::Done,
            false => ExitCode::Pending,
        };
        let issued = self.issued.as_ref().map(agent::Report::code);
        let reloads = self.reloads.iter().filter_map(|row| row.code);
        reloads.chain(issued).fold(restarts, ExitCode::max)
    }
}

/// Has what a step replaced take effect, and what an earlier one left.
///
/// # Errors
/// What cannot be read afterwards.
pub async fn settle(
    root: &Root,
    loaded: &Loaded,
    mut outcome: Outcome,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Outcome, Failure> {
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

/// The report of this node: what `--peer-report` of another one reads.
///
/// # Errors
/// What cannot be read.
pub fn status(
    root: &Root,
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

/// What the cluster says of the change of one authority.
///
/// # Errors
/// A kubeconfig that cannot be used.
pub async fn look(
    root: &Root,
    kubeconfig: &Argument,
    setup: &Setup,
    authority: Authority,
    now: OffsetDateTime,
) -> Result<Seen, Failure> {
    let state = setup.state(root);
    let survey = setup.survey_of(&state, now)?;
    let evidence = evidence::read(&state, setup, &survey, authority)?;
    let api = load::cluster(root, kubeconfig)?;
    Ok(cluster::look(&api, authority, evidence.incoming()).await)
}

/// Trusts a new CA beside the old one: the certificate in `file`, or what the authority's signer offers under pins.
///
/// # Errors
/// Why it is not done; nothing was changed then.
pub async fn stage(
    root: &Root,
    setup: &Setup,
    wish: &Wish,
    file: Option<&Argument>,
    clock: Clock,
) -> Result<Outcome, Failure> {
    let now = clock();
    let mut step = Step::begin(root, setup, wish, "stage", clock)?;
    let offered = match file {
        Some(path) => read_certificates(root, path)?,
        None => offered(setup, wish.authority).await?,
    };
    let new = match step.evidence.admit(&offered, now).map_err(refused)? {
        Offer::New(new) => *new,
        Offer::InPlace => {
            step.done(format!(
                "nothing to do: {} is the {} already, and no other is trusted",
                offered.first().map(named).unwrap_or_default(),
                wish.authority
            ));
            step.ask_again(clock)?;
            return step.end(now);
        }
    };
    let target = step.evidence.staged(&new, now).map_err(refused)?;
    step.notes.push(format!(
        "the new CA is {}, certificate sha256:{}, public key sha256:{}: compare them with the CA's owner",
        new.subject(),
        fingerprint(&new),
        hex(&new.public_key().sha256())
    ));
    step.notes.extend(kin(&step.evidence, &new));
    pinned(setup, wish.authority, &target)?;
    let trouble = step.evidence.signing_trouble();
    if !trouble.is_empty() {
        return Err(all_refused(trouble));
    }
    step.take(&target, true, clock)?;
    step.notes.extend(others_business(wish.authority));
    step.end(now)
}

/// Takes a new CA out again that nothing uses yet.
///
/// # Errors
/// Why it is not done; nothing was changed then.
pub async fn undo(
    root: &Root,
    setup: &Setup,
    wish: &Wish,
    clock: Clock,
) -> Result<Outcome, Failure> {
    let now = clock();
    let mut step = Step::begin(root, setup, wish, "stage --undo", clock)?;
    let (Some(target), Some(new)) = (step.evidence.undone(), step.evidence.unwanted().cloned())
    else {
        step.done("nothing to do: no new CA is staged".to_owned());
        step.ask_again(clock)?;
        return step.end(now);
    };
    let authority = wish.authority;
    if step.evidence.phase() == Phase::Activated {
        return Err(refused(format!(
            "{} is the {authority} since it was activated, and certificates under it are in use; go on with `nodepki authority retire {authority}`, or change back as it came: stage the old certificate as the new one",
            named(&new)
        )));
    }
    if step.evidence.kinship(&new) == Kinship::Other {
        if let Some(stranded) = step.evidence.stranded(&new, now) {
            return Err(refused(stranded));
        }
        step.peers(Need::DoesWithout(&new), now).await?;
    }
    step.take(&target, true, clock)?;
    step.end(now)
}

/// Makes the staged CA the one that issues, and has everything under the old one issued anew.
///
/// # Errors
/// Why it is not done. What became of single certificates is in the outcome.
pub async fn activate(
    root: &Root,
    setup: &Setup,
    wish: &Wish,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Outcome, Failure> {
    let now = clock();
    let mut step = Step::begin(root, setup, wish, "activate", clock)?;
    let authority = wish.authority;
    let (Some(target), Some(new)) = (
        step.evidence.activated(now),
        step.evidence.incoming().cloned(),
    ) else {
        return Err(refused(format!(
            "no new {authority} is staged on this node: nodepki authority stage {authority} --certificate FILE comes first, on every node"
        )));
    };
    if step.evidence.phase() == Phase::Staged {
        let missing = step.evidence.unstaged();
        if !missing.is_empty() {
            return Err(all_refused(missing));
        }
        step.proven(format!(
            "{} and {} kubeconfigs trust both, and no restart is due",
            step.evidence.file,
            step.evidence.kubeconfigs.len()
        ));
        if step.evidence.kinship(&new) == Kinship::Other {
            step.peers(Need::Trusts(&new), now).await?;
            if !wish.dry_run {
                step.rehearse(&new, clock, progress).await?;
            }
        }
        failpoint::reached("authority:proven");
    }
    // The same certificates in another order: nobody has to read them again.
    step.take(&target, false, clock)?;
    failpoint::reached("authority:ordered");
    if authority == Authority::Ca {
        step.notes.push(format!(
            "before the next step, update the CA certificates that the cluster publishes and other programs keep: {RUNBOOK}"
        ));
    }
    let left = step.left(&new, now);
    if left.is_empty() {
        return step.end(clock());
    }
    let names: Vec<&str> = left.iter().map(|name| name.as_str()).collect();
    if wish.dry_run {
        step.done(format!("issued by the new CA: {}", names.join(", ")));
        return step.end(clock());
    }
    let scope = agent::Scope::Anew(left.clone());
    let renewed = agent::renew(root, setup, &scope, clock, progress).await?;
    let rows = &renewed.report.rows;
    let is_issued = |name: &&str| rows.iter().any(|row| row.name == **name && row.is_new());
    let (issued, failed): (Vec<&str>, Vec<&str>) = names.into_iter().partition(is_issued);
    if !issued.is_empty() {
        step.done(format!("issued by the new CA: {}", issued.join(", ")));
        step.applied = true;
    }
    if !failed.is_empty() {
        step.done(format!(
            "not issued by the new CA yet: {}; run the same command again once the cause below is removed",
            failed.join(", ")
        ));
    }
    step.issued = Some(renewed.report);
    let mut outcome = step.end(clock())?;
    outcome.is_incomplete = !failed.is_empty();
    Ok(outcome)
}

/// Stops trusting the old CA.
///
/// # Errors
/// Why it is not done; nothing was changed then.
pub async fn retire(
    root: &Root,
    setup: &Setup,
    wish: &Wish,
    clock: Clock,
) -> Result<Outcome, Failure> {
    let now = clock();
    let mut step = Step::begin(root, setup, wish, "retire", clock)?;
    let authority = wish.authority;
    let (Some(target), Some(new)) = (step.evidence.retired(), step.evidence.incoming().cloned())
    else {
        step.done(format!(
            "nothing to do: no change of {authority} is under way"
        ));
        step.ask_again(clock)?;
        return step.end(now);
    };
    if step.evidence.phase() == Phase::Staged {
        return Err(refused(format!(
            "{} is not activated yet: nodepki authority activate {authority} comes first, on every node; to take the new one out again instead, nodepki authority stage {authority} --undo",
            named(&new)
        )));
    }
    let missing = step.evidence.unactivated(now);
    if !missing.is_empty() {
        return Err(all_refused(missing));
    }
    step.proven(format!(
        "all {} certificates on this node are under the new CA, and no restart is due",
        step.evidence.leaves.len()
    ));
    if step.evidence.kinship(&new) == Kinship::Other {
        step.peers(Need::Uses(&new), now).await?;
    }
    step.take(&target, true, clock)?;
    if authority == Authority::Ca {
        step.notes.push(format!(
            "the old CA is still in cluster-info, and in JoinConfigurations and kubeconfigs outside the nodes: {RUNBOOK}"
        ));
    }
    let pins = setup.trust.get(&authority).map(|source| &source.pins);
    let old = target.dropped.iter().map(|one| one.public_key().sha256());
    if pins.is_some_and(|pins| old.clone().any(|pin| pins.contains(&pin))) {
        step.notes.push(format!(
            "the pin of the old CA may leave authorities.{authority}.trust.sha256 once no node trusts it any more"
        ));
    }
    step.end(now)
}

fn refused(message: String) -> Failure {
    Failure::new(ExitCode::Refused, message)
}

fn all_refused(messages: Vec<String>) -> Failure {
    Failure {
        code: ExitCode::Refused,
        messages,
    }
}

/// A new CA that the pins do not know would have every later run refuse the bundle.
fn pinned(setup: &Setup, authority: Authority, target: &Target) -> Result<(), Failure> {
    let pins = setup.trust.get(&authority).map(|source| &source.pins);
    let bundle = TrustBundle::from_certificates(target.bundle.clone());
    let (Some(pins), Ok(bundle)) = (pins, bundle) else {
        return Ok(());
    };
    bundle.require_pins(pins).map_err(|error| {
        refused(format!(
            "{error}; authorities.{authority}.trust.sha256 must have the new CA beside the old one until that is retired: add it after comparing it with the CA's owner, and run again"
        ))
    })
}

/// What is worth knowing of the two.
fn kin(evidence: &Evidence, new: &Certificate) -> Option<String> {
    let old = evidence.bundle.first()?;
    match evidence.kinship(new) {
        Kinship::Renewal => Some(
            "it has name and key of the CA in place: its certificate is renewed, and everything that it has signed holds; no peer needs to be asked".to_owned(),
        ),
        Kinship::Other if old.subject() == new.subject() => Some(format!(
            "both CAs are called {}: they are told apart by their keys, and by key identifiers in certificates",
            new.subject()
        )),
        Kinship::Other => None,
    }
}

/// What trusts a CA and is no file of a node.
fn others_business(authority: Authority) -> Vec<String> {
    let cluster_info = format!(
        "cluster-info is the cluster's: it is updated once per cluster, so that new nodes learn both CAs; they then need the pins of both (--discovery-token-ca-cert-hash, twice); kubeadm-certs, where it is in use, is uploaded again by nodepki certs upload; {RUNBOOK}"
    );
    let notes: &[&str] = match authority {
        Authority::Ca => &[
            &cluster_info,
            "kube-root-ca.crt is published by kube-controller-manager after its restart; Pods that read it only when they start are to be restarted before the new CA is activated",
            "copies of admin.conf on people's machines, and whoever keeps a caBundle of its own, need the new CA too",
        ],
        Authority::FrontProxyCa => &[
            "extension-apiserver-authentication is published by kube-apiserver within a minute, and extension API servers follow it",
        ],
        Authority::EtcdCa => &[
            "whoever else asks etcd (backups, monitoring) needs the new CA too, and a certificate of it before the old one is retired",
        ],
    };
    notes.iter().map(ToString::to_string).collect()
}

fn read_certificates(root: &Root, path: &Argument) -> Result<Vec<Certificate>, Failure> {
    let Some(content) = load::argument(root, path)?.read()? else {
        return Err(Failure::new(
            ExitCode::Usage,
            format!(
                "--certificate {}: there is no such file; name one with the new CA's certificate",
                load::shown(root, path).display()
            ),
        ));
    };
    certificates_of(&content.bytes).map_err(|error| {
        refused(format!(
            "--certificate {}: {error}; give the new CA's certificate in PEM or DER",
            load::shown(root, path).display()
        ))
    })
}

/// What the signer says it has, which counts only under pins.
async fn offered(setup: &Setup, authority: Authority) -> Result<Vec<Certificate>, Failure> {
    let pins = setup.trust.get(&authority).map(|source| &source.pins);
    if pins.is_none_or(|pins| pins.is_empty()) {
        return Err(Failure::new(
            ExitCode::Configuration,
            format!(
                "nothing says which CA is to come: give its certificate with --certificate FILE, or pin old and new under authorities.{authority}.trust.sha256 to have it fetched from the signer"
            ),
        ));
    }
    agent::offered(setup, authority).await
}
