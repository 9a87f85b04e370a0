//! This node's steps of a change of a CA or of the service-account key in the whole cluster.
//!
//! The daemon keeps in the state directory what the cluster demands. [`Follower::follow`] compares it with the files and
//! takes the part of a step that [`decide_node`] selects; [`proofs`] returns what the daemon publishes. Each part is one
//! commit, and is computed from the files, whichever phase the node has missed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use time::{Duration, OffsetDateTime};

use super::evidence;
use super::judge::{Evidence, TrustPart, fingerprint};
use super::report::Peers;
use super::service_account;
use super::step::ChangeStep;
use super::{StepOrder, StepOutcome, require_pins};
use crate::agent::load::Loaded;
use crate::agent::report::{ReportRow, RowAction, RowReason};
use crate::agent::{Clock, ExitCode, Failure, Progress, RunSetup};
use crate::spec::assess::joined;
use crate::spec::authority_rotation::{
    AuthorityRotation, BegunPhase, NodeAction, NodeProof, NodeSituation, NodeStep, RotatedCa,
    RotationSubject, decide_node,
};
use crate::store::NodeRoot;
use crate::x509::{Certificate, certificates_of};

/// Wait after the first failure of a part; it doubles.
const FIRST_DELAY: Duration = Duration::seconds(30);
/// Longest wait after a failure. An administrator who has removed the cause reloads the daemon, or runs `nodepki renew`.
const MAX_DELAY: Duration = Duration::minutes(30);

/// Begin of the names of rows in reports. No certificate and no component has such a name.
const ROW_PREFIX: &str = "rotation of ";

/// The failures of this process's attempts, by subject.
#[derive(Default)]
pub struct Follower {
    failed: BTreeMap<RotationSubject, FailedPart>,
}

/// A part that failed.
struct FailedPart {
    phase: BegunPhase,
    attempts: u32,
    again: OffsetDateTime,
    why: String,
}

/// What was done for the cluster's rotations.
#[derive(Default)]
pub struct Followed {
    /// Rows for the report.
    pub rows: Vec<ReportRow>,
    /// Files that were written.
    pub written: Vec<PathBuf>,
    /// When a failed part may be tried again.
    pub next: Option<OffsetDateTime>,
    /// Files were changed, and another part may be due once the components use them.
    pub acted: bool,
}

impl Followed {
    /// Returns the result of an attempt that failed as a whole.
    pub(crate) fn failed(failure: Failure, now: OffsetDateTime) -> Self {
        Followed {
            rows: vec![ReportRow::failed(
                &format!("{ROW_PREFIX}the cluster"),
                failure,
            )],
            next: Some(now + FIRST_DELAY),
            ..Followed::default()
        }
    }

    /// Takes into account that a failed part may be tried again at this time.
    fn wake_at(&mut self, again: OffsetDateTime) {
        self.next = Some(self.next.map_or(again, |next| next.min(again)));
    }

    /// Adds the row of a part that was taken.
    fn report(&mut self, rotation: &AuthorityRotation, done: Vec<String>) {
        self.rows.push(ReportRow {
            name: row_name(rotation),
            action: RowAction::Written,
            reasons: done.into_iter().map(RowReason::AuthorityChange).collect(),
            ..ReportRow::default()
        });
    }
}

/// The certificates of a rotation.
struct RotatedCertificates {
    old: Certificate,
    new: Certificate,
}

impl RotatedCertificates {
    fn of(rotation: &AuthorityRotation) -> Result<Self, Failure> {
        Ok(RotatedCertificates {
            old: certificate(&rotation.old).map_err(Failure::refused)?,
            new: certificate(&rotation.new).map_err(Failure::refused)?,
        })
    }

    /// Returns the one with this SHA-256, with its role in words.
    fn named(&self, sha256: &str) -> Option<(&Certificate, &'static str)> {
        [(&self.old, "old"), (&self.new, "new")]
            .into_iter()
            .find(|(certificate, _)| fingerprint(certificate) == sha256)
    }
}

/// Returns the certificate of a rotation.
///
/// # Errors
/// It is not one certificate with the SHA-256 that the rotation names.
pub fn certificate(ca: &RotatedCa) -> Result<Certificate, String> {
    only(ca, "certificate", certificates_of, fingerprint)
}

/// Returns the only object in the text of a rotation, which must have the SHA-256 that the rotation names.
pub(super) fn only<T, E: fmt::Display>(
    ca: &RotatedCa,
    what: &str,
    read: impl Fn(&[u8]) -> Result<Vec<T>, E>,
    digest: impl Fn(&T) -> String,
) -> Result<T, String> {
    let sha256 = &ca.sha256;
    let found = read(ca.certificate.as_bytes())
        .map_err(|error| format!("the {what} sha256:{sha256} is unreadable: {error}"))?;
    match <[T; 1]>::try_from(found) {
        Ok([one]) if digest(&one) == *sha256 => Ok(one),
        Ok([one]) => Err(format!(
            "its {what} has the SHA-256 {}, but is recorded with {sha256}",
            digest(&one)
        )),
        Err(several) => Err(format!(
            "sha256:{sha256} must be one {what}, and there are {}",
            several.len()
        )),
    }
}

/// The state of a subject on this node.
struct OwnState {
    proof: NodeProof,
    /// Components that were rolled back, in sentences.
    rollbacks: Vec<String>,
    /// The files of an authority, as far as they are readable.
    evidence: Option<Evidence>,
}

impl OwnState {
    /// Reads the state of a subject.
    fn read(
        root: &NodeRoot,
        setup: &RunSetup,
        subject: RotationSubject,
        now: OffsetDateTime,
    ) -> Result<Self, Failure> {
        let RotationSubject::Authority(authority) = subject else {
            let (proof, rollbacks) = service_account::proof(root, setup)?;
            return Ok(OwnState {
                proof,
                rollbacks,
                evidence: None,
            });
        };
        let state = setup.state(root);
        let survey = setup.survey_of(&state, now)?;
        let evidence = evidence::read(&state, setup, &survey, authority)?;
        let begun = root.rotation_steps()?.begun.remove(&subject);
        Ok(OwnState {
            proof: proof(&evidence, begun, now),
            rollbacks: evidence.rollbacks(),
            evidence: Some(evidence),
        })
    }

    /// Returns the state of a node whose files are unreadable: it trusts nothing.
    fn unknown(begun: Option<BegunPhase>, failure: &Failure) -> Self {
        OwnState {
            proof: NodeProof {
                begun,
                failure: Some(failure.one_line()),
                ..NodeProof::default()
            },
            rollbacks: Vec::new(),
            evidence: None,
        }
    }
}

/// Returns what this node takes part in changing.
fn subjects(setup: &RunSetup) -> impl Iterator<Item = RotationSubject> + '_ {
    let bundles = setup.plan.bundles.iter();
    let pair = setup.plan.service_account.iter();
    bundles
        .map(|bundle| bundle.authority.into())
        .chain(pair.map(|_| RotationSubject::ServiceAccount))
}

/// Returns the state of each authority and of the service-account key of this node, as its Node shall contain it.
///
/// # Errors
/// The node's files cannot be read.
pub fn proofs(
    root: &NodeRoot,
    setup: &RunSetup,
    follower: &Follower,
    now: OffsetDateTime,
) -> Result<BTreeMap<RotationSubject, NodeProof>, Failure> {
    let rotations = root.cluster_rotations()?.rotations;
    let begun = root.rotation_steps()?.begun;
    let mut proofs = BTreeMap::new();
    for subject in subjects(setup) {
        let rotation = rotations.get(&subject);
        let own = match OwnState::read(root, setup, subject, now) {
            Ok(own) => own,
            Err(failure) => OwnState::unknown(begun.get(&subject).cloned(), &failure),
        };
        let mut proof = own.proof;
        let failed = follower.failed.get(&subject);
        let foreign = own.evidence.as_ref().zip(rotation);
        let foreign =
            foreign.and_then(|(evidence, rotation)| foreign_leaves(evidence, rotation, now));
        let failed = failed.map(|failed| failed.why.clone()).or(foreign);
        proof.failure = failed.or(proof.failure);
        if subject == RotationSubject::ServiceAccount {
            proof = service_account::with_sealing_key(root, proof)?;
            if let Some(rotation) = rotation.filter(|one| !one.is_proven(Some(&proof))) {
                let lacks = service_account::lacks_keys(root, rotation, &proof)?;
                proof.failure = proof.failure.or(lacks);
            }
        }
        proofs.insert(subject, proof);
    }
    Ok(proofs)
}

/// Returns the proof of a node with this evidence.
fn proof(evidence: &Evidence, begun: Option<BegunPhase>, now: OffsetDateTime) -> NodeProof {
    let fingerprints = |certificates: Vec<&Certificate>| -> BTreeSet<String> {
        certificates.into_iter().map(fingerprint).collect()
    };
    let bundle = evidence.bundle.iter();
    let is_issuer = |ca: &&Certificate| {
        let mut leaves = evidence.leaves.iter();
        leaves.all(|leaf| !leaf.under([*ca], now).is_empty())
    };
    NodeProof {
        begun,
        trusted_by_all: fingerprints(evidence.trusted_everywhere()),
        trusted_by_any: fingerprints(evidence.trusted_anywhere()),
        certificates_under: fingerprints(bundle.filter(is_issuer).collect()),
        restarts: evidence.restarts.clone(),
        ..NodeProof::default()
    }
}

/// Returns a sentence on certificates that only other programs can have reissued.
fn foreign_leaves(
    evidence: &Evidence,
    rotation: &AuthorityRotation,
    now: OffsetDateTime,
) -> Option<String> {
    let issuing = rotation.issuing();
    let certificate = evidence
        .bundle
        .iter()
        .find(|one| fingerprint(one) == issuing.sha256)?;
    let leaves = evidence.leaves.iter();
    let sentences: Vec<String> = leaves
        .filter(|leaf| leaf.foreign.is_some())
        .filter_map(|leaf| leaf.not_under(certificate, evidence.authority, now))
        .collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// Returns why a part changes nothing although it is demanded, in sentences: what only an administrator or another program
/// can change.
fn beyond(
    evidence: &Evidence,
    rotation: &AuthorityRotation,
    part: &NodeStep,
    now: OffsetDateTime,
) -> Result<Vec<String>, Failure> {
    let both = RotatedCertificates::of(rotation)?;
    let trusting = evidence.kubeconfigs.iter();
    let leaves = evidence.leaves.iter();
    let of = |sha256: &str| both.named(sha256).map(|(certificate, _)| certificate);
    Ok(match part {
        NodeStep::Trust(sha256) => trusting
            .filter_map(|file| file.lacks(of(sha256), evidence.authority))
            .collect(),
        NodeStep::Reissue(sha256) => of(sha256).map_or_else(Vec::new, |ca| {
            leaves
                .filter_map(|leaf| leaf.not_under(ca, evidence.authority, now))
                .collect()
        }),
        NodeStep::Remove(sha256) => of(sha256).map_or_else(Vec::new, |ca| {
            trusting
                .filter_map(|file| file.retains(ca, evidence.authority))
                .collect()
        }),
        NodeStep::Restart => Vec::new(),
    })
}

impl Follower {
    /// Takes the next part of each subject's step, if one is due.
    ///
    /// # Errors
    /// The node's files cannot be read. The failure of a part is a row.
    pub async fn follow(
        &mut self,
        root: &NodeRoot,
        loaded: &Loaded,
        clock: Clock,
        progress: &dyn Progress,
    ) -> Result<Followed, Failure> {
        let mut followed = Followed::default();
        if !loaded.settings.authority_rotation.enabled {
            return Ok(followed);
        }
        let record = root.cluster_rotations()?;
        self.failed
            .retain(|subject, _| record.rotations.contains_key(subject));
        for (subject, rotation) in &record.rotations {
            if subjects(&loaded.setup).any(|own| own == *subject) {
                let part = self.part(
                    root,
                    &loaded.setup,
                    rotation,
                    clock,
                    progress,
                    &mut followed,
                );
                if let Err(failure) = part.await {
                    self.fail(rotation, failure, clock(), &mut followed);
                }
            }
        }
        Ok(followed)
    }

    async fn part(
        &mut self,
        root: &NodeRoot,
        setup: &RunSetup,
        rotation: &AuthorityRotation,
        clock: Clock,
        progress: &dyn Progress,
        followed: &mut Followed,
    ) -> Result<(), Failure> {
        let (subject, now) = (rotation.subject, clock());
        let own = OwnState::read(root, setup, subject, now)?;
        let situation = NodeSituation {
            own: &own.proof,
            published: None,
            is_serving: true,
        };
        let step = match decide_node(Some(rotation), situation).action {
            NodeAction::Step(step) | NodeAction::CatchUp(step) => Some(step),
            NodeAction::Record => None,
            NodeAction::Idle | NodeAction::Serve => {
                self.failed.remove(&subject);
                return Ok(());
            }
            // A component restarts in its turn, after this.
            NodeAction::Paused | NodeAction::ReadAgain => return Ok(()),
        };
        if step == Some(NodeStep::Restart) {
            return Ok(());
        }
        // The daemon continues when it has received them.
        if subject == RotationSubject::ServiceAccount
            && !matches!(step, Some(NodeStep::Remove(_)))
            && service_account::lacks_keys(root, rotation, &own.proof)?.is_some()
        {
            return Ok(());
        }
        let phase = rotation.begun();
        if let Some(failed) = self.failed.get(&subject)
            && failed.phase == phase
            && now < failed.again
        {
            followed.wake_at(failed.again);
            return Ok(());
        }
        let rollbacks = own.rollbacks;
        // A component that was just rolled back would fail again: like a failed part, it gets its next attempt later.
        if !rollbacks.is_empty() && !self.failed.contains_key(&subject) {
            let failure = Failure::with_messages(ExitCode::Pending, rollbacks);
            self.fail(rotation, failure, now, followed);
            return Ok(());
        }
        if !rollbacks.is_empty() {
            // The components may be rolled back again.
            self.delay(rotation, rollbacks.join("; "), now);
        }
        let RotationSubject::Authority(authority) = subject else {
            match service_account::take(root, setup, rotation, step.as_ref(), clock) {
                Ok(change) => {
                    followed.acted = true;
                    followed.written.extend(change.written);
                    followed.report(rotation, change.done);
                }
                Err(failure) => self.fail(rotation, failure, now, followed),
            }
            return Ok(());
        };
        let order = StepOrder {
            authority,
            dry_run: false,
            // The leader has compared the proofs of the other nodes before it wrote this phase.
            peers: Peers::default(),
            kubeconfig: None,
            rotation: Some(phase),
            // `authority rotate` has required the statement, for the whole cluster.
            components_verify: true,
        };
        match take(
            root,
            setup,
            rotation,
            &order,
            step.as_ref(),
            clock,
            progress,
        )
        .await
        {
            Ok(outcome) if !outcome.applied && outcome.issued.is_none() => {
                let part = own.evidence.as_ref().zip(step.as_ref());
                let why = part.map(|(evidence, part)| beyond(evidence, rotation, part, now));
                let why = why.transpose()?.unwrap_or(outcome.done);
                // Another program may complete it at any time, so that it is repeated.
                let failure = Failure::with_messages(ExitCode::Pending, why);
                self.fail(rotation, failure, now, followed);
            }
            Ok(outcome) => self.taken(rotation, outcome, now, followed),
            Err(failure) => self.fail(rotation, failure, now, followed),
        }
        Ok(())
    }

    /// Reports a part that was taken.
    fn taken(
        &mut self,
        rotation: &AuthorityRotation,
        outcome: StepOutcome,
        now: OffsetDateTime,
        followed: &mut Followed,
    ) {
        followed.acted |= outcome.applied;
        followed.written.extend(outcome.written);
        followed.report(rotation, [outcome.proven, outcome.done].concat());
        let Some(issued) = outcome.issued else { return };
        followed.written.extend(issued.written);
        if outcome.is_incomplete {
            let failed = issued.rows.iter().filter(|row| row.is_overdue());
            let why: Vec<String> = failed
                .map(|row| format!("{} {}: {}", row.name, row.action, joined(&row.reasons)))
                .collect();
            let failure = Failure::with_messages(ExitCode::Pending, why);
            self.fail(rotation, failure, now, followed);
        }
        followed.rows.extend(issued.rows);
    }

    fn fail(
        &mut self,
        rotation: &AuthorityRotation,
        failure: Failure,
        now: OffsetDateTime,
        followed: &mut Followed,
    ) {
        let again = self.delay(rotation, failure.one_line(), now);
        followed.wake_at(again);
        followed
            .rows
            .push(ReportRow::failed(&row_name(rotation), failure));
    }

    /// Records a failure, and returns when the next attempt may begin.
    fn delay(
        &mut self,
        rotation: &AuthorityRotation,
        why: String,
        now: OffsetDateTime,
    ) -> OffsetDateTime {
        let phase = rotation.begun();
        let former = self.failed.get(&rotation.subject);
        let former = former.filter(|failed| failed.phase == phase);
        let attempts = former.map_or(0, |failed| failed.attempts);
        let again = now + delay(attempts);
        let failed = FailedPart {
            phase,
            attempts: attempts.saturating_add(1),
            again,
            why,
        };
        self.failed.insert(rotation.subject, failed);
        again
    }
}

/// Returns the wait after a failure that followed `attempts` earlier ones.
fn delay(attempts: u32) -> Duration {
    let doubled = FIRST_DELAY.checked_mul(1 << attempts.min(10));
    doubled.map_or(MAX_DELAY, |doubled| doubled.min(MAX_DELAY))
}

fn row_name(rotation: &AuthorityRotation) -> String {
    let (subject, phase) = (rotation.subject, rotation.phase);
    format!("{ROW_PREFIX}{subject}, phase {phase}")
}

/// Returns whether a row is of a rotation.
pub(crate) fn is_row(row: &ReportRow) -> bool {
    row.name.starts_with(ROW_PREFIX)
}

/// Takes one part; `None` only records that the phase has begun, since its requirements are met.
async fn take(
    root: &NodeRoot,
    setup: &RunSetup,
    rotation: &AuthorityRotation,
    order: &StepOrder,
    part: Option<&NodeStep>,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<StepOutcome, Failure> {
    let now = clock();
    let both = RotatedCertificates::of(rotation)?;
    let mut step = ChangeStep::begin(root, setup, order, "rotate", clock)?;
    let named = |sha256: &str| {
        both.named(sha256).ok_or_else(|| {
            Failure::refused(format!("sha256:{sha256} is neither the old nor the new CA"))
        })
    };
    let target =
        |step: &ChangeStep<'_>, part| step.evidence.rotated((&both.old, &both.new), part, now);
    match part {
        Some(NodeStep::Trust(sha256)) => {
            let (ca, which) = named(sha256)?;
            // An undo trusts the old CA again, which was in use on every node.
            if which == "new" {
                let offer = step.evidence.admit(std::slice::from_ref(ca), now);
                offer.map_err(Failure::refused)?;
            }
            let trouble = step.evidence.signing_trouble();
            Failure::require_none(trouble)?;
            let target = target(&step, TrustPart::Add(ca));
            require_pins(setup, order.authority, &target)?;
            step.put_in_place(&target, true, clock)?;
            step.end(now)
        }
        Some(NodeStep::Reissue(sha256)) => {
            let (ca, which) = named(sha256)?;
            let target = target(&step, TrustPart::Lead(ca));
            // A CA certificate that was renewed with its key and subject verifies the same signatures, so that a rehearsal would
            // prove nothing.
            let is_renewal = both.old.public_key() == both.new.public_key()
                && both.old.subject() == both.new.subject();
            if step.evidence.bundle.first() != Some(ca) && !is_renewal {
                // Before the order changes: from then on, certificates of a signer that still has the other CA are refused.
                step.rehearse(ca, which, clock, progress).await?;
            }
            step.put_in_place(&target, false, clock)?;
            step.reissue(ca, which, clock, progress).await
        }
        Some(NodeStep::Remove(sha256)) => {
            let (ca, _) = named(sha256)?;
            if let Some(stranded) = step.evidence.stranded(ca, now) {
                return Err(Failure::refused(stranded));
            }
            let target = target(&step, TrustPart::Remove(ca));
            step.put_in_place(&target, true, clock)?;
            step.end(now)
        }
        Some(NodeStep::Restart) | None => {
            let mut target = target(&step, TrustPart::Add(&both.new));
            // Only the record changes: the files meet the requirements of the phase already.
            target.bundle.clone_from(&step.evidence.bundle);
            if !rotation.phase.trusts_both() {
                target.change = None;
            }
            step.done(format!(
                "recorded that this node meets the requirements of phase {}",
                rotation.phase
            ));
            step.put_in_place(&target, false, clock)?;
            step.end(now)
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::super::command::rotated;
    use super::super::judge::tests::{authority, certificate as of_ca, evidence};
    use super::super::judge::{TrustingFile, named};
    use super::super::lead::tests::rotation as between;
    use super::*;
    use crate::kube::names::Authority;

    const NOW: OffsetDateTime = datetime!(2026-11-21 15:00 UTC);

    #[test]
    fn part_that_others_complete_is_tried_again_with_the_reason() {
        let (old, new) = (authority("old"), authority("new"));
        let [old_ca, new_ca] = [&old, &new].map(of_ca);
        let rotation = AuthorityRotation {
            old: rotated(&old_ca),
            new: rotated(&new_ca),
            ..between(Authority::Ca)
        };
        let mut own = evidence(&[&old, &new], &old);
        own.leaves[0].foreign = Some("the kubelet renews it");
        let elsewhere = |trusted: &Certificate| TrustingFile {
            file: "admin.conf".to_owned(),
            certificates: Ok(vec![trusted.clone()]),
            elsewhere: Some("other.crt".to_owned()),
        };
        own.kubeconfigs = vec![elsewhere(&old_ca)];
        let mut follower = Follower::default();
        let old_name = named(&old_ca);
        let new_name = named(&new_ca);
        for (attempts, part, expected) in [
            (
                0,
                NodeStep::Trust(rotation.new.sha256.clone()),
                format!(
                    "admin.conf reads its CA from other.crt, which lacks {new_name} (add it there)"
                ),
            ),
            (
                1,
                NodeStep::Reissue(rotation.new.sha256.clone()),
                "apiserver (apiserver.crt) is not under the new CA yet; the kubelet renews it"
                    .to_owned(),
            ),
            (
                2,
                NodeStep::Remove(rotation.old.sha256.clone()),
                format!(
                    "admin.conf reads its CA from other.crt, which contains {old_name} (remove it there)"
                ),
            ),
        ] {
            let why = beyond(&own, &rotation, &part, NOW).unwrap();
            assert_eq!(why, std::slice::from_ref(&expected));
            let mut followed = Followed::default();
            let failure = Failure::with_messages(ExitCode::Pending, why);
            follower.fail(&rotation, failure, NOW, &mut followed);
            assert_eq!(followed.next, Some(NOW + delay(attempts)));
            assert!(!followed.acted);
            let failed = follower.failed.get(&rotation.subject);
            assert_eq!(failed.map(|failed| failed.why.clone()), Some(expected));
        }
    }

    #[test]
    fn delay_doubles_to_maximum() {
        let delays = [0, 1, 2, 6, 40].map(|attempts| delay(attempts).whole_seconds());
        assert_eq!(delays, [30, 60, 120, 1800, 1800]);
    }
}
