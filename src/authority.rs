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
//! that changes what is trusted records the restarts that it takes; exit status 75 says that some are due, and
//! `nodepki renew` or the daemon carries them out. A step is taken back by [`undo`] as long as nothing uses the new CA.
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

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::agent::{self, Clock, ExitCode, Failure, Progress, Setup, Survey};
use crate::components::Change;
use crate::failpoint;
use crate::kubeconfig::Kubeconfig;
use crate::load;
use crate::names::{Authority, CertName};
use crate::plan::BundleSpec;
use crate::store::{AuthorityChange, Commit, Mode, Root};
use crate::x509::{
    Certificate, Chain, RevocationList, Revocations, TrustBundle, certificates_of, hex,
};

use cluster::Seen;
use judge::{Evidence, Kinship, Offer, Phase, Target, fingerprint, named};
use report::{AuthorityReport, Need, NodeReport, Nodes, Peers};

/// What is asked of a step.
pub struct Wish {
    /// Whose CA.
    pub authority: Authority,
    /// Only say what would be done.
    pub dry_run: bool,
    /// What is known of the other nodes.
    pub peers: Peers,
    /// Asks the cluster which nodes there are; `None` asks nobody.
    pub kubeconfig: Option<PathBuf>,
}

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
    /// What else deserves attention.
    pub notes: Vec<String>,
    /// The authority on this node afterwards.
    pub report: AuthorityReport,
}

impl Outcome {
    /// Pending as long as restarts are due; what became of certificates otherwise.
    pub fn code(&self) -> ExitCode {
        let restarts = match self.report.restarts.is_empty() {
            true => ExitCode::Done,
            false => ExitCode::Pending,
        };
        let issued = self.issued.as_ref().map(agent::Report::code);
        restarts.max(issued.unwrap_or(ExitCode::Done))
    }
}

/// The report of this node: what `--peer-report` of another one reads.
///
/// # Errors
/// What cannot be read.
pub fn status(
    root: &Root,
    setup: &Setup,
    authorities: &BTreeSet<Authority>,
    now: OffsetDateTime,
) -> Result<NodeReport, Failure> {
    let survey = setup.survey(root, now)?;
    let bundles = setup.plan.bundles.iter();
    let wanted = bundles
        .map(|bundle| bundle.authority)
        .filter(|authority| authorities.is_empty() || authorities.contains(authority));
    let reports = wanted
        .map(|authority| {
            let evidence = evidence::read(root, setup, &survey, authority)?;
            Ok(AuthorityReport::of(&evidence, now))
        })
        .collect::<Result<_, Failure>>()?;
    for authority in authorities {
        evidence::spec(setup, *authority)?;
    }
    Ok(NodeReport {
        node: setup.identity.node.clone(),
        cluster: setup.identity.cluster.clone(),
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
    kubeconfig: &Path,
    setup: &Setup,
    authority: Authority,
    now: OffsetDateTime,
) -> Result<Seen, Failure> {
    let survey = setup.survey(root, now)?;
    let evidence = evidence::read(root, setup, &survey, authority)?;
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
    file: Option<&Path>,
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
    let (Some(target), Some(new)) = (step.evidence.undone(), step.evidence.incoming().cloned())
    else {
        step.done("nothing to do: no new CA is staged".to_owned());
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
        step.peers(Need::DoesWithout(&new)).await?;
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
            step.peers(Need::Trusts(&new)).await?;
            if !wish.dry_run {
                step.rehearse(&new, clock, progress).await?;
            }
        }
        failpoint::reached("authority:proven");
    }
    // The same certificates in another order: nobody has to read them again.
    step.take(&target, false, clock)?;
    failpoint::reached("authority:ordered");
    let left = step.left(&new, now);
    if left.is_empty() {
        return step.end(clock());
    }
    let names: Vec<&str> = left.iter().map(|name| name.as_str()).collect();
    step.done(format!("issued by the new CA: {}", names.join(", ")));
    if !wish.dry_run {
        let scope = agent::Scope::Anew(left);
        let renewed = agent::renew(root, setup, &scope, clock, progress).await?;
        step.issued = Some(renewed.report);
        step.applied = true;
    }
    step.end(clock())
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
        step.peers(Need::Uses(&new)).await?;
    }
    step.take(&target, true, clock)?;
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
    let notes: &[&str] = match authority {
        Authority::Ca => &[
            "cluster-info is the cluster's: once per cluster, kubeadm init phase bootstrap-token --kubeconfig /etc/kubernetes/admin.conf lets new nodes learn both CAs, which then need the pins of both (--discovery-token-ca-cert-hash, twice); kubeadm-certs, where it is in use, is uploaded again by nodepki certs upload",
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

fn read_certificates(root: &Root, path: &Path) -> Result<Vec<Certificate>, Failure> {
    let (there, inside) = load::root_of(root, path)?;
    let Some(content) = there.read(&inside)? else {
        return Err(Failure::new(
            ExitCode::Usage,
            format!(
                "--certificate {}: there is no such file; name one with the new CA's certificate",
                path.display()
            ),
        ));
    };
    certificates_of(&content.bytes).map_err(|error| {
        refused(format!(
            "--certificate {}: {error}; give the new CA's certificate in PEM or DER",
            path.display()
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

/// One step at work.
struct Step<'a> {
    root: &'a Root,
    setup: &'a Setup,
    wish: &'a Wish,
    name: &'static str,
    spec: &'a BundleSpec,
    survey: Survey,
    evidence: Evidence,
    applied: bool,
    done: Vec<String>,
    proofs: Vec<String>,
    written: Vec<PathBuf>,
    removed: Vec<PathBuf>,
    issued: Option<agent::Report>,
    notes: Vec<String>,
}

impl<'a> Step<'a> {
    /// Looks; what an earlier run left unfinished is finished first.
    fn begin(
        root: &'a Root,
        setup: &'a Setup,
        wish: &'a Wish,
        name: &'static str,
        clock: Clock,
    ) -> Result<Self, Failure> {
        let mut notes = Vec::new();
        if root.has_unfinished()? {
            match wish.dry_run {
                true => notes.push(
                    "an earlier run was interrupted; the next one that may write finishes it first"
                        .to_owned(),
                ),
                false => notes = agent::open_store(root, setup, "authority", clock)?.1,
            }
        }
        let survey = setup.survey(root, clock())?;
        let evidence = evidence::read(root, setup, &survey, wish.authority)?;
        Ok(Step {
            root,
            setup,
            wish,
            name,
            spec: evidence::spec(setup, wish.authority)?,
            survey,
            evidence,
            applied: false,
            done: Vec::new(),
            proofs: Vec::new(),
            written: Vec::new(),
            removed: Vec::new(),
            issued: None,
            notes,
        })
    }

    fn done(&mut self, words: String) {
        self.done.push(words);
    }

    fn proven(&mut self, words: String) {
        self.proofs.push(words);
    }

    /// Whether every other node is as far.
    async fn peers(&mut self, need: Need<'_>) -> Result<(), Failure> {
        let Wish {
            authority, peers, ..
        } = self.wish;
        let seen = match &self.wish.kubeconfig {
            Some(kubeconfig) => {
                let api = load::cluster(self.root, kubeconfig)?;
                let new = matches!(need, Need::Trusts(_)).then(|| self.evidence.incoming());
                cluster::look(&api, *authority, new.flatten()).await
            }
            None => Seen::nothing("no kubeconfig was given"),
        };
        self.notes.extend(seen.notes);
        let identity = &self.setup.identity;
        let nodes: &Nodes = &seen.nodes;
        let own = (identity.node.as_str(), identity.cluster.as_str());
        let mut missing = seen.lacking;
        match peers.prove(own, *authority, need, nodes) {
            Ok(proven) => self.proofs.extend(proven),
            Err(why) => missing.extend(why),
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(all_refused(missing)),
        }
    }

    /// The signer signs with the new CA: one certificate, verified and thrown away.
    async fn rehearse(
        &mut self,
        new: &Certificate,
        clock: Clock,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let authority = self.wish.authority;
        let certs = self.survey.certs.iter();
        let Some(cert) = certs
            .into_iter()
            .find(|cert| cert.spec.authority == authority)
        else {
            return Ok(());
        };
        let trust = TrustBundle::from_certificates(vec![new.clone()])
            .map_err(|error| refused(error.to_string()))?;
        let (mut store, notes) = agent::open_store(self.root, self.setup, "authority", clock)?;
        self.notes.extend(notes);
        agent::rehearse(&mut store, self.setup, cert, &trust, clock, progress).await?;
        let proven = format!(
            "the signer of {authority} has signed a certificate like {} with the new CA",
            cert.spec.name
        );
        self.proven(proven);
        Ok(())
    }

    /// What is still under the old CA and is ours to issue.
    fn left(&self, new: &Certificate, now: OffsetDateTime) -> BTreeSet<CertName> {
        let left = self
            .evidence
            .leaves
            .iter()
            .filter(|leaf| leaf.foreign.is_none() && leaf.under([new], now).is_empty());
        left.filter_map(|leaf| leaf.name.parse().ok()).collect()
    }

    /// Puts a target in place, in one commit. `trust_changes`: what is trusted changes, and not only the order.
    fn take(&mut self, target: &Target, trust_changes: bool, clock: Clock) -> Result<(), Failure> {
        let now = clock();
        let (commit, words) = self.commit(target, trust_changes, now)?;
        if words.is_empty() && target.change == self.evidence.change {
            return Ok(());
        }
        self.done.extend(words);
        if self.wish.dry_run {
            return Ok(());
        }
        let (mut store, notes) = agent::open_store(self.root, self.setup, "authority", clock)?;
        self.notes.extend(notes);
        // Nobody may have come between the look and the lock.
        self.survey = self.setup.survey(self.root, now)?;
        let there = evidence::read(self.root, self.setup, &self.survey, self.wish.authority)?;
        if there.bundle != self.evidence.bundle || there.change != self.evidence.change {
            return Err(Failure::new(
                ExitCode::Pending,
                format!(
                    "{} was changed by somebody else in this moment; run the same command again",
                    self.evidence.file
                ),
            ));
        }
        let committed = store.commit(commit)?;
        failpoint::reached("authority:committed");
        self.applied = true;
        self.written.extend(committed.written);
        self.removed.extend(committed.removed);
        self.notes
            .extend(committed.notes.iter().map(ToString::to_string));
        drop(store);
        self.reread(now)
    }

    fn reread(&mut self, now: OffsetDateTime) -> Result<(), Failure> {
        self.survey = self.setup.survey(self.root, now)?;
        self.evidence = evidence::read(self.root, self.setup, &self.survey, self.wish.authority)?;
        Ok(())
    }

    fn commit(
        &self,
        target: &Target,
        trust_changes: bool,
        now: OffsetDateTime,
    ) -> Result<(Commit, Vec<String>), Failure> {
        let mut commit = Commit::new();
        let mut words = Vec::new();
        if target.bundle != self.evidence.bundle {
            let pem: String = target.bundle.iter().map(Certificate::to_pem).collect();
            commit.file(self.spec.path.clone(), pem.into_bytes(), Mode::Public);
            if trust_changes {
                commit.change(
                    Change::Bundle(self.wish.authority),
                    self.spec.path.clone(),
                    now,
                );
            }
            let names: Vec<String> = target.bundle.iter().map(named).collect();
            words.push(format!(
                "{} holds {}",
                self.evidence.file,
                names.join(", then ")
            ));
        }
        if self.wish.authority == Authority::Ca {
            for (name, path) in evidence::kubeconfigs() {
                let Some(text) = self.kubeconfig(&path, target)? else {
                    continue;
                };
                commit.file(path.clone(), text, Mode::Private);
                if trust_changes {
                    commit.change(Change::Certificate(name), path.clone(), now);
                }
                words.push(format!(
                    "{} trusts the same",
                    self.root.on_this_machine(&path).display()
                ));
            }
        }
        if !target.dropped.is_empty() {
            words.extend(self.drop_lists(target, &mut commit)?);
        }
        self.remember(target.change.clone(), &mut commit)?;
        Ok((commit, words))
    }

    /// The text of a kubeconfig for a target, where it is another one.
    fn kubeconfig(
        &self,
        path: &Path,
        target: &Target,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Failure> {
        let Some(content) = self.root.read(path)? else {
            return Ok(None);
        };
        let unusable = |why: String| {
            refused(format!(
                "{}: {why}; mend it, or move it away and have nodepki bootstrap write it anew, and run again",
                self.root.on_this_machine(path).display()
            ))
        };
        if content.bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let text = std::str::from_utf8(&content.bytes)
            .map_err(|_| unusable("it is not UTF-8 text".to_owned()))?;
        let mut document = Kubeconfig::parse(text).map_err(|error| unusable(error.to_string()))?;
        let current = document
            .current()
            .map_err(|error| unusable(error.to_string()))?;
        let Some(data) = &current.authority else {
            return Ok(None);
        };
        let found = evidence::certificates(data).map_err(unusable)?;
        let wanted = target.kubeconfig(&found);
        if wanted == found {
            return Ok(None);
        }
        let pem: String = wanted.iter().map(Certificate::to_pem).collect();
        document
            .set_authority(&pem)
            .map_err(|error| unusable(error.to_string()))?;
        let text = document.to_yaml();
        Ok(Some(Zeroizing::new(text.as_bytes().to_vec())))
    }

    /// Revocation lists of a CA that is trusted no more, of which etcd would make nothing.
    fn drop_lists(&self, target: &Target, commit: &mut Commit) -> Result<Vec<String>, Failure> {
        let path = &self.spec.crl_path;
        let der = path.with_extension("der");
        let Some(content) = self.root.read(path)? else {
            return Ok(Vec::new());
        };
        let (Ok(lists), Ok(trust)) = (
            RevocationList::read_all(&content.bytes),
            TrustBundle::from_certificates(target.bundle.clone()),
        ) else {
            return Ok(vec![format!(
                "{} is unreadable and stays; nodepki crl fetches it anew",
                path.display()
            )]);
        };
        let chains: Vec<&Chain> = self
            .evidence
            .leaves
            .iter()
            .filter_map(|leaf| leaf.chain.as_ref().ok())
            .collect();
        let of_ours = |list: &RevocationList| {
            Revocations::verified(vec![list.clone()], &trust, &chains).is_ok()
        };
        let (kept, gone): (Vec<_>, Vec<_>) = lists.into_iter().partition(of_ours);
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        if kept.is_empty() {
            self.unread(path)?;
            self.unread(&der)?;
            commit.remove(path.clone(), &content.bytes);
            if let Some(content) = self.root.read(&der)? {
                commit.remove(der, &content.bytes);
            }
        } else if let Ok(lists) = Revocations::verified(kept, &trust, &chains) {
            commit.file(path.clone(), lists.to_pem().into_bytes(), Mode::Public);
            commit.file(der, lists.first_der().to_vec(), Mode::Public);
        }
        Ok(vec![format!(
            "{} loses the revocation lists of the old CA",
            self.root.on_this_machine(path).display()
        )])
    }

    /// etcd does not start without a list that its flags name.
    fn unread(&self, list: &Path) -> Result<(), Failure> {
        const ETCD: &str = "/etc/kubernetes/manifests/etcd.yaml";
        let Some(manifest) = self.root.read(ETCD)? else {
            return Ok(());
        };
        let text = String::from_utf8_lossy(&manifest.bytes);
        match text.contains(&*list.to_string_lossy()) {
            false => Ok(()),
            true => Err(refused(format!(
                "{ETCD} names {}, in which only the old CA's revocation lists are, and etcd does not start without the file; have the new CA's list put there with `nodepki crl`, or take the flag out of the manifest, and run again",
                list.display()
            ))),
        }
    }

    fn remember(
        &self,
        change: Option<AuthorityChange>,
        commit: &mut Commit,
    ) -> Result<(), Failure> {
        let mut changes = self.root.authority_changes()?;
        let known = changes.get(&self.wish.authority).cloned();
        if known == change {
            return Ok(());
        }
        match change {
            Some(change) => changes.insert(self.wish.authority, change),
            None => changes.remove(&self.wish.authority),
        };
        commit.authority_changes(changes);
        Ok(())
    }

    fn end(mut self, now: OffsetDateTime) -> Result<Outcome, Failure> {
        if self.issued.is_some() {
            self.reread(now)?;
        }
        if self.done.is_empty() {
            self.done("nothing to do: it is so already".to_owned());
        }
        Ok(Outcome {
            step: self.name,
            applied: self.applied,
            done: self.done,
            proven: self.proofs,
            written: self.written,
            removed: self.removed,
            issued: self.issued,
            notes: self.notes,
            report: AuthorityReport::of(&self.evidence, now),
        })
    }
}
