//! The execution of one step: examines the node, proves the requirements, and changes everything in one commit.
//!
//! [`judge`](super::judge) decides about phases. Files are written through `store` only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::cluster::{self, ClusterView};
use super::evidence;
use super::judge::{ChangeTarget, Evidence, named};
use super::report::{AuthorityReport, PeerRequirement};
use super::{StepOrder, StepOutcome};
use crate::agent::load;
use crate::agent::{self, Clock, Failure, Progress, RunSetup, Survey, SurveyedCert, audit};
use crate::kube::components::{Component, ReplacedFile};
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::ETCD_MANIFEST;
use crate::process::failpoint;
use crate::spec::{BundleCopy, BundleSpec};
use crate::store::{
    AuditEvent, AuditRecord, AuthorityChange, Commit, FormerContents, FormerTrust, Mode, NodeRoot,
    RequestPhase, RequestRecord, Restart, RotationSteps, Slot,
};
use crate::x509::{
    AuthorityCrls, Certificate, Chain, RevocationList, TrustBundle, certificates_of,
};

/// A step in execution.
pub(super) struct ChangeStep<'a> {
    root: &'a NodeRoot,
    setup: &'a RunSetup,
    order: &'a StepOrder,
    name: &'static str,
    spec: &'a BundleSpec,
    survey: Survey,
    pub(super) evidence: Evidence,
    /// See [`StepOutcome::is_due`].
    is_due: bool,
    applied: bool,
    done: Vec<String>,
    proofs: Vec<String>,
    written: Vec<PathBuf>,
    removed: Vec<PathBuf>,
    issued: Option<agent::RunReport>,
    pub(super) notes: Vec<String>,
}

/// A kubeconfig with changed CA certificates.
struct RewrittenKubeconfig {
    /// CA certificates before the change, in PEM.
    former: FormerContents,
    /// Text after the change.
    text: Zeroizing<Vec<u8>>,
}

/// Returns the rank of a certificate for a rehearsal, which uses and discards its pending request: the first of the lowest
/// rank is requested. `ticket` is that of the pending request.
fn rehearsal_rank(ticket: Option<Option<&RequestRecord>>) -> u8 {
    match ticket {
        // An earlier rehearsal continues.
        Some(Some(ticket)) if ticket.is_proof && ticket.phase != RequestPhase::Answered => 0,
        None => 1,
        // An answer that is kept until the activation.
        Some(Some(ticket)) if ticket.phase == RequestPhase::Answered => 3,
        // A renewal, for which a person may have to decide again.
        Some(_) => 2,
    }
}

/// Refuses a single step during a rotation of the whole cluster, whose daemons would revert it.
fn require_no_rotation(root: &NodeRoot, authority: Authority) -> Result<(), Failure> {
    let record = root.cluster_rotations()?;
    match record.in_progress(authority.into()) {
        None => Ok(()),
        Some(rotation) => Err(Failure::refused(format!(
            "rotation {} of {authority} is in phase {} on the whole cluster, and nodepki.service takes its steps on every node (see nodepki authority watch {authority}; nodepki authority undo {authority} reverts it)",
            rotation.id, rotation.phase
        ))),
    }
}

impl<'a> ChangeStep<'a> {
    /// Examines the node. An interrupted run is completed first.
    pub(super) fn begin(
        root: &'a NodeRoot,
        setup: &'a RunSetup,
        order: &'a StepOrder,
        name: &'static str,
        clock: Clock,
    ) -> Result<Self, Failure> {
        if order.rotation.is_none() && !order.dry_run {
            require_no_rotation(root, order.authority)?;
        }
        let mut notes = Vec::new();
        if root.has_unfinished()? {
            if order.dry_run {
                notes.push(
                    "an earlier run was interrupted; the next run that writes completes it first"
                        .to_owned(),
                )
            } else {
                notes = agent::open_store(root, setup, "authority", clock)?.1
            }
        }
        let state = setup.state(root);
        let survey = setup.survey_of(&state, clock())?;
        let evidence = evidence::read(&state, setup, &survey, order.authority)?;
        Ok(ChangeStep {
            root,
            setup,
            order,
            name,
            spec: evidence::spec(setup, order.authority)?,
            survey,
            evidence,
            is_due: false,
            applied: false,
            done: Vec::new(),
            proofs: Vec::new(),
            written: Vec::new(),
            removed: Vec::new(),
            issued: None,
            notes,
        })
    }

    /// Records what was or would be done.
    pub(super) fn done(&mut self, message: String) {
        self.is_due = true;
        self.done.push(message);
    }

    /// Ends a step of which nothing is due, except that a rolled-back component may be restarted again.
    pub(super) fn nothing_to_do(
        mut self,
        why: impl fmt::Display,
        clock: Clock,
        now: OffsetDateTime,
    ) -> Result<StepOutcome, Failure> {
        self.done.push(format!("nothing to do: {why}"));
        self.repeat_restarts(clock)?;
        self.end(now)
    }

    /// Records a proof of a requirement.
    pub(super) fn proven(&mut self, message: String) {
        self.proofs.push(message);
    }

    /// Verifies that every other node meets the requirement.
    pub(super) async fn require_peers(
        &mut self,
        need: PeerRequirement<'_>,
        now: OffsetDateTime,
    ) -> Result<(), Failure> {
        let StepOrder {
            authority, peers, ..
        } = self.order;
        let view = match &self.order.kubeconfig {
            Some(kubeconfig) => {
                let api = load::cluster(self.root, kubeconfig)?;
                let new =
                    matches!(need, PeerRequirement::Trusts(_)).then(|| self.evidence.incoming());
                cluster::view(&api, *authority, new.flatten()).await
            }
            None => ClusterView::unknown("no kubeconfig was given"),
        };
        self.notes.extend(view.notes);
        let identity = &self.setup.identity;
        let nodes = &view.nodes;
        let own = (identity.node.as_str(), identity.cluster.as_str());
        let mut missing = view.lacking;
        match peers.prove(own, *authority, need, nodes, now) {
            Ok(proven) => self.proofs.extend(proven),
            Err(why) => missing.extend(why),
        }
        Failure::require_none(missing)
    }

    /// Proves that the signer signs with this CA, the `which` one: has one certificate signed, verifies it and discards it.
    pub(super) async fn rehearse(
        &mut self,
        ca: &Certificate,
        which: &str,
        clock: Clock,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let authority = self.order.authority;
        let tickets: BTreeMap<Slot, Option<RequestRecord>> =
            self.root.tickets()?.into_iter().collect();
        let certs = self.survey.certs.iter();
        let certs = certs.filter(|cert| cert.spec.authority() == authority);
        let rank = |cert: &&SurveyedCert| {
            let ticket = tickets.get(&Slot::Certificate(cert.spec.name()));
            rehearsal_rank(ticket.map(Option::as_ref))
        };
        let Some(cert) = certs.min_by_key(rank) else {
            return Ok(());
        };
        let trust = TrustBundle::from_certificates(vec![ca.clone()])
            .map_err(|error| Failure::refused(error.to_string()))?;
        let (mut store, notes) = agent::open_store(self.root, self.setup, "authority", clock)?;
        self.notes.extend(notes);
        agent::rehearse(&mut store, self.setup, cert, &trust, clock, progress).await?;
        let proven = format!(
            "the signer of {authority} has signed a certificate like {} with the {which} CA",
            cert.spec.name()
        );
        self.proven(proven);
        Ok(())
    }

    /// Returns the certificates that nodepki issues and that are not under this CA.
    fn left(&self, ca: &Certificate, now: OffsetDateTime) -> BTreeSet<CertName> {
        let left = self
            .evidence
            .leaves
            .iter()
            .filter(|leaf| leaf.foreign.is_none() && leaf.under([ca], now).is_empty());
        left.filter_map(|leaf| leaf.name.parse().ok()).collect()
    }

    /// Has the certificates that are not under this CA, the `which` one, reissued, and ends the step.
    pub(super) async fn reissue(
        mut self,
        ca: &Certificate,
        which: &str,
        clock: Clock,
        progress: &dyn Progress,
    ) -> Result<StepOutcome, Failure> {
        let left = self.left(ca, clock());
        if left.is_empty() {
            return self.end(clock());
        }
        let names: Vec<&str> = left.iter().map(|name| name.as_str()).collect();
        if self.order.dry_run {
            self.done(format!("issued by the {which} CA: {}", names.join(", ")));
            return self.end(clock());
        }
        let scope = agent::Scope::AuthorityChanged(left.clone());
        let renewed = agent::renew(self.root, self.setup, &scope, clock, progress).await?;
        let rows = &renewed.report.rows;
        let is_issued = |name: &&str| rows.iter().any(|row| row.name == **name && row.is_new());
        let (issued, failed): (Vec<&str>, Vec<&str>) = names.into_iter().partition(is_issued);
        if !issued.is_empty() {
            self.done(format!("issued by the {which} CA: {}", issued.join(", ")));
            self.applied = true;
        }
        if !failed.is_empty() {
            self.done(format!(
                "not issued by the {which} CA yet: {} (run the same command again once the cause below is removed)",
                failed.join(", ")
            ));
        }
        self.issued = Some(renewed.report);
        let mut outcome = self.end(clock())?;
        outcome.is_incomplete = !failed.is_empty();
        Ok(outcome)
    }

    /// Puts a target in place, in one commit. `trust_changes` is false if only the order of the certificates changes.
    pub(super) fn put_in_place(
        &mut self,
        target: &ChangeTarget,
        trust_changes: bool,
        clock: Clock,
    ) -> Result<(), Failure> {
        let now = clock();
        let (_, actions) = self.commit(target, trust_changes, now)?;
        let is_begun = self.steps_to_begin()?.is_none();
        if actions.is_empty() && target.change == self.evidence.change && is_begun {
            return self.repeat_restarts(clock);
        }
        self.is_due |= !actions.is_empty();
        self.done.extend(actions);
        if self.order.dry_run {
            return Ok(());
        }
        let (mut store, notes) = agent::open_store(self.root, self.setup, "authority", clock)?;
        self.notes.extend(notes);
        // Another process may have changed the files before the lock was taken.
        let state = self.setup.state(self.root);
        self.survey = self.setup.survey_of(&state, now)?;
        let found = evidence::read(&state, self.setup, &self.survey, self.order.authority)?;
        if found.bundle != self.evidence.bundle || found.change != self.evidence.change {
            return Err(Failure::pending(format!(
                "{} was just changed by another process; run the same command again",
                self.evidence.file
            )));
        }
        // With the kubeconfigs as they are now, since the daemon may have renewed one.
        let (commit, _) = self.commit(target, trust_changes, now)?;
        let committed = store.commit(commit)?;
        failpoint::reached("authority:committed");
        let authority = self.order.authority;
        let audited = AuditRecord {
            authority: Some(authority.to_string()),
            action: Some(self.name.to_owned()),
            reason: Some(self.done.join("; ")),
            ..AuditRecord::of(AuditEvent::AuthorityStep)
        };
        audit::append(self.root, now, &[audited]);
        self.applied = true;
        self.written.extend(committed.written);
        self.removed.extend(committed.removed);
        self.notes
            .extend(committed.notes.iter().map(ToString::to_string));
        drop(store);
        self.reread(now)?;
        self.repeat_restarts(clock)
    }

    /// Requests another restart of the components that were rolled back in a step of this authority. Only a repeated step
    /// requests it.
    fn repeat_restarts(&mut self, clock: Clock) -> Result<(), Failure> {
        let now = clock();
        let components = self.evidence.rolled_back.iter();
        let components: Vec<Component> = components.map(|one| one.component).collect();
        if components.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = components.iter().map(|one| one.as_str()).collect();
        self.done(format!(
            "restarted again with the files in place: {}",
            names.join(", ")
        ));
        if self.order.dry_run {
            return Ok(());
        }
        let mut commit = Commit::new();
        for component in components {
            let causes = vec![ReplacedFile::Bundle(self.order.authority)];
            commit.restart(Restart::due(component, now, causes));
        }
        let (mut store, notes) = agent::open_store(self.root, self.setup, "authority", clock)?;
        self.notes.extend(notes);
        store.commit(commit)?;
        self.applied = true;
        drop(store);
        self.reread(now)
    }

    fn reread(&mut self, now: OffsetDateTime) -> Result<(), Failure> {
        let state = self.setup.state(self.root);
        self.survey = self.setup.survey_of(&state, now)?;
        self.evidence = evidence::read(&state, self.setup, &self.survey, self.order.authority)?;
        Ok(())
    }

    /// Returns the commit that puts a target in place, with a sentence for each change.
    fn commit(
        &self,
        target: &ChangeTarget,
        trust_changes: bool,
        now: OffsetDateTime,
    ) -> Result<(Commit, Vec<String>), Failure> {
        let mut commit = Commit::new();
        let authority = self.order.authority;
        let mut actions = Vec::new();
        let mut former = FormerTrust {
            subject: authority.into(),
            change: self.evidence.change.clone(),
            files: Vec::new(),
            kubeconfigs: Vec::new(),
        };
        if target.bundle != self.evidence.bundle {
            former.files.extend(self.former_file(&self.spec.path)?);
            let pem: String = target.bundle.iter().map(Certificate::to_pem).collect();
            commit.file(self.spec.path.clone(), pem.into_bytes(), Mode::Public);
            // Only kubeadm and nodepki read the order, of which the first certificate is the CA: no component is restarted
            // for it.
            if trust_changes {
                commit.change(ReplacedFile::Bundle(authority), self.spec.path.clone(), now);
            }
            let names: Vec<String> = target.bundle.iter().map(named).collect();
            actions.push(format!(
                "{} contains {}",
                self.evidence.file,
                names.join(", then ")
            ));
        }
        for BundleCopy { of, path } in &self.spec.copies {
            let found = self.former_file(path)?;
            let contained = found.as_ref().map(|file| certificates_of(&file.contents));
            if matches!(contained, Some(Ok(found)) if found == target.bundle) {
                continue;
            }
            former.files.extend(found);
            let pem: String = target.bundle.iter().map(Certificate::to_pem).collect();
            commit.file(path.clone(), pem.into_bytes(), Mode::Public);
            if trust_changes {
                commit.change(ReplacedFile::Certificate(*of), path.clone(), now);
            }
            actions.push(format!("{path} contains the same certificates"));
        }
        // Kubeconfigs contain only the CA of kube-apiserver.
        if authority == Authority::Ca {
            for (name, path) in evidence::kubeconfigs() {
                let Some(rewritten) = self.kubeconfig(&path, target)? else {
                    continue;
                };
                former.kubeconfigs.push(rewritten.former);
                commit.file(path.clone(), rewritten.text, Mode::Private);
                if trust_changes {
                    commit.change(ReplacedFile::Certificate(name), path.clone(), now);
                }
                actions.push(format!(
                    "{} trusts the same certificates",
                    self.root.on_this_machine(&path).display()
                ));
            }
        }
        if !target.dropped.is_empty() {
            let dropped = self.drop_revocation_lists(target, &mut commit)?;
            if !dropped.is_empty() {
                // A rollback trusts the former CA again, and needs its lists.
                let path = &self.spec.crl_path;
                former.files.extend(self.former_file(path)?);
                former
                    .files
                    .extend(self.former_file(&path.with_extension("der"))?);
            }
            actions.extend(dropped);
        }
        if trust_changes {
            commit.trust_step(former);
        }
        self.record(target.change.clone(), &mut commit)?;
        if let Some(steps) = self.steps_to_begin()? {
            commit.rotation_steps(&steps);
        }
        Ok((commit, actions))
    }

    fn former_file(&self, path: &Path) -> Result<Option<FormerContents>, Failure> {
        let found = self.root.read(path)?;
        Ok(found.map(|content| FormerContents::new(path, content.bytes)))
    }

    /// Returns a kubeconfig with the CA certificates of a target; `None` if it has them already.
    fn kubeconfig(
        &self,
        path: &Path,
        target: &ChangeTarget,
    ) -> Result<Option<RewrittenKubeconfig>, Failure> {
        let Some(content) = self.root.read(path)? else {
            return Ok(None);
        };
        let unusable = |why: String| {
            Failure::refused(format!(
                "{}: {why} (correct the file, or move it away and run nodepki bootstrap, which writes a new one; then run again)",
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
        Ok(Some(RewrittenKubeconfig {
            former: FormerContents::new(path, data.clone()),
            text: Zeroizing::new(text.as_bytes().to_vec()),
        }))
    }

    /// Removes the revocation lists of a CA that is no longer trusted; etcd cannot use them.
    fn drop_revocation_lists(
        &self,
        target: &ChangeTarget,
        commit: &mut Commit,
    ) -> Result<Vec<String>, Failure> {
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
                "{path} is unreadable and is kept (nodepki crl fetches a new one)"
            )]);
        };
        let chains: Vec<&Chain> = self
            .evidence
            .leaves
            .iter()
            .filter_map(|leaf| leaf.chain.present())
            .collect();
        let is_trusted = |list: &RevocationList| {
            AuthorityCrls::verified(vec![list.clone()], &trust, &chains).is_ok()
        };
        let (kept, dropped): (Vec<_>, Vec<_>) = lists.into_iter().partition(is_trusted);
        if dropped.is_empty() {
            return Ok(Vec::new());
        }
        if kept.is_empty() {
            self.require_unused_by_etcd(path)?;
            self.require_unused_by_etcd(&der)?;
            commit.remove(path.clone(), &content.bytes);
            if let Some(content) = self.root.read(&der)? {
                commit.remove(der, &content.bytes);
            }
        } else if let Ok(lists) = AuthorityCrls::verified(kept, &trust, &chains) {
            commit.file(path.clone(), lists.to_pem().into_bytes(), Mode::Public);
            commit.file(der, lists.first_der().to_vec(), Mode::Public);
        }
        Ok(vec![format!(
            "the revocation lists of the old CA are removed from {path}"
        )])
    }

    /// Verifies that etcd's manifest does not name a revocation list, since etcd does not start without the file.
    fn require_unused_by_etcd(&self, list: &Path) -> Result<(), Failure> {
        let Some(manifest) = self.root.read(ETCD_MANIFEST)? else {
            return Ok(());
        };
        let text = String::from_utf8_lossy(&manifest.bytes);
        if !text.contains(&*list.to_string_lossy()) {
            Ok(())
        } else {
            Err(Failure::refused(format!(
                "{} names {}, which contains only revocation lists of the old CA, and etcd does not start without the file (install the new CA's list with `nodepki crl`, or remove the flag from the manifest, and run again)",
                self.root.node_path(ETCD_MANIFEST),
                self.root.node_path(list)
            )))
        }
    }

    /// Returns the record of begun steps with that of the rotation; `None` if it is recorded already, or there is none.
    fn steps_to_begin(&self) -> Result<Option<RotationSteps>, Failure> {
        let Some(begun) = &self.order.rotation else {
            return Ok(None);
        };
        let mut steps = self.root.rotation_steps()?;
        let former = steps
            .begun
            .insert(self.order.authority.into(), begun.clone());
        Ok((former.as_ref() != Some(begun)).then_some(steps))
    }

    /// Adds the record of the change to a commit.
    fn record(&self, change: Option<AuthorityChange>, commit: &mut Commit) -> Result<(), Failure> {
        let mut changes = self.root.authority_changes()?;
        let authority = self.order.authority;
        if changes.get(&authority) == change.as_ref() {
            return Ok(());
        }
        match change {
            Some(change) => changes.insert(authority, change),
            None => changes.remove(&authority),
        };
        commit.authority_changes(changes);
        Ok(())
    }

    pub(super) fn end(mut self, now: OffsetDateTime) -> Result<StepOutcome, Failure> {
        if self.issued.is_some() {
            self.reread(now)?;
        }
        if self.done.is_empty() {
            self.done
                .push("nothing to do: the step is already complete".to_owned());
        }
        Ok(StepOutcome {
            step: self.name,
            is_due: self.is_due,
            applied: self.applied,
            done: self.done,
            proven: self.proofs,
            written: self.written,
            removed: self.removed,
            issued: self.issued,
            reloads: Vec::new(),
            notes: self.notes,
            report: AuthorityReport::of(&self.evidence, now),
            is_incomplete: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rehearses_with_earlier_rehearsal_or_certificate_without_request() {
        let ticket = |is_proof, phase| RequestRecord {
            is_proof,
            phase,
            ..RequestRecord::ready("id", "signer", "exec", "config")
        };
        let [waits, answered] = [RequestPhase::Requested, RequestPhase::Answered];
        let (rehearsal, renewal) = (ticket(true, waits), ticket(false, waits));
        let kept = ticket(false, answered);
        let ranks = [
            Some(Some(&rehearsal)),
            None,
            Some(Some(&renewal)),
            Some(None),
            Some(Some(&kept)),
        ];
        assert_eq!(ranks.map(rehearsal_rank), [0, 1, 2, 2, 3]);
    }
}
