//! One step at work: the look at the node, what has to be proven, and the one commit in which everything changes.
//!
//! Decides nothing about phases, that is [`judge`](super::judge)'s; writes through `store` only.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::cluster::{self, Seen};
use super::evidence;
use super::judge::{Evidence, Target, named};
use super::report::{AuthorityReport, Need};
use super::{Outcome, Wish, all_refused, refused};
use crate::agent::load;
use crate::agent::{self, Clock, ExitCode, Failure, Progress, Setup, Survey};
use crate::kube::components::{Change, Component};
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::{Authority, CertName};
use crate::process::failpoint;
use crate::spec::BundleSpec;
use crate::store::{
    AuthorityChange, Commit, FormerTrust, Mode, Previous, Restart, RestartState, Root,
};
use crate::x509::{Certificate, Chain, RevocationList, Revocations, TrustBundle};

/// One step at work.
pub(super) struct Step<'a> {
    root: &'a Root,
    setup: &'a Setup,
    wish: &'a Wish,
    name: &'static str,
    spec: &'a BundleSpec,
    survey: Survey,
    pub(super) evidence: Evidence,
    pub(super) applied: bool,
    done: Vec<String>,
    proofs: Vec<String>,
    written: Vec<PathBuf>,
    removed: Vec<PathBuf>,
    pub(super) issued: Option<agent::Report>,
    pub(super) notes: Vec<String>,
}

/// A kubeconfig with other CA certificates.
struct Rewritten {
    /// The CA certificates that it has now, in PEM.
    former: Previous,
    /// Its new text.
    text: Zeroizing<Vec<u8>>,
}

impl<'a> Step<'a> {
    /// Looks; what an earlier run left unfinished is finished first.
    pub(super) fn begin(
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
        let state = setup.state(root);
        let survey = setup.survey_of(&state, clock())?;
        let evidence = evidence::read(&state, setup, &survey, wish.authority)?;
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

    pub(super) fn done(&mut self, words: String) {
        self.done.push(words);
    }

    pub(super) fn proven(&mut self, words: String) {
        self.proofs.push(words);
    }

    /// Whether every other node is as far.
    pub(super) async fn peers(
        &mut self,
        need: Need<'_>,
        now: OffsetDateTime,
    ) -> Result<(), Failure> {
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
        let nodes = &seen.nodes;
        let own = (identity.node.as_str(), identity.cluster.as_str());
        let mut missing = seen.lacking;
        match peers.prove(own, *authority, need, nodes, now) {
            Ok(proven) => self.proofs.extend(proven),
            Err(why) => missing.extend(why),
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(all_refused(missing)),
        }
    }

    /// The signer signs with the new CA: one certificate, verified and thrown away.
    pub(super) async fn rehearse(
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
    pub(super) fn left(&self, new: &Certificate, now: OffsetDateTime) -> BTreeSet<CertName> {
        let left = self
            .evidence
            .leaves
            .iter()
            .filter(|leaf| leaf.foreign.is_none() && leaf.under([new], now).is_empty());
        left.filter_map(|leaf| leaf.name.parse().ok()).collect()
    }

    /// Puts a target in place, in one commit. `trust_changes`: what is trusted changes, and not only the order.
    pub(super) fn take(
        &mut self,
        target: &Target,
        trust_changes: bool,
        clock: Clock,
    ) -> Result<(), Failure> {
        let now = clock();
        let (_, words) = self.commit(target, trust_changes, now)?;
        if words.is_empty() && target.change == self.evidence.change {
            return self.ask_again(clock);
        }
        self.done.extend(words);
        if self.wish.dry_run {
            return Ok(());
        }
        let (mut store, notes) = agent::open_store(self.root, self.setup, "authority", clock)?;
        self.notes.extend(notes);
        // Nobody may have come between the look and the lock.
        let state = self.setup.state(self.root);
        self.survey = self.setup.survey_of(&state, now)?;
        let there = evidence::read(&state, self.setup, &self.survey, self.wish.authority)?;
        if there.bundle != self.evidence.bundle || there.change != self.evidence.change {
            return Err(Failure::new(
                ExitCode::Pending,
                format!(
                    "{} was changed by somebody else in this moment; run the same command again",
                    self.evidence.file
                ),
            ));
        }
        // Of the kubeconfigs as they are now: the daemon may have renewed one.
        let (commit, _) = self.commit(target, trust_changes, now)?;
        let committed = store.commit(commit)?;
        failpoint::reached("authority:committed");
        self.applied = true;
        self.written.extend(committed.written);
        self.removed.extend(committed.removed);
        self.notes
            .extend(committed.notes.iter().map(ToString::to_string));
        drop(store);
        self.reread(now)?;
        self.ask_again(clock)
    }

    /// Requests another restart of the components that were rolled back in a step of this authority. Only a repeated step
    /// does so.
    pub(super) fn ask_again(&mut self, clock: Clock) -> Result<(), Failure> {
        let now = clock();
        let components = self.evidence.rolled_back.iter();
        let components: Vec<Component> = components.map(|one| one.component).collect();
        if components.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = components.iter().map(|one| one.as_str()).collect();
        self.done(format!(
            "restarted again, with the files in place: {}",
            names.join(", ")
        ));
        if self.wish.dry_run {
            return Ok(());
        }
        let mut commit = Commit::new();
        for component in components {
            commit.restart(Restart {
                component,
                since: now,
                causes: vec![Change::Bundle(self.wish.authority)],
                previous: Vec::new(),
                state: RestartState::Due,
            });
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
        self.evidence = evidence::read(&state, self.setup, &self.survey, self.wish.authority)?;
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
        let mut former = FormerTrust {
            authority: self.wish.authority,
            change: self.evidence.change.clone(),
            files: Vec::new(),
            kubeconfigs: Vec::new(),
        };
        if target.bundle != self.evidence.bundle {
            former.files.extend(self.former_file(&self.spec.path)?);
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
                let Some(rewritten) = self.kubeconfig(&path, target)? else {
                    continue;
                };
                former.kubeconfigs.push(rewritten.former);
                commit.file(path.clone(), rewritten.text, Mode::Private);
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
            let dropped = self.drop_lists(target, &mut commit)?;
            if !dropped.is_empty() {
                let path = &self.spec.crl_path;
                former.files.extend(self.former_file(path)?);
                former
                    .files
                    .extend(self.former_file(&path.with_extension("der"))?);
            }
            words.extend(dropped);
        }
        if trust_changes {
            commit.trust_step(former);
        }
        self.remember(target.change.clone(), &mut commit)?;
        Ok((commit, words))
    }

    fn former_file(&self, path: &Path) -> Result<Option<Previous>, Failure> {
        let found = self.root.read(path)?;
        Ok(found.map(|content| Previous {
            path: path.to_owned(),
            contents: content.bytes,
        }))
    }

    /// A kubeconfig for a target; `None` if it trusts the same already.
    fn kubeconfig(&self, path: &Path, target: &Target) -> Result<Option<Rewritten>, Failure> {
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
        Ok(Some(Rewritten {
            former: Previous {
                path: path.to_owned(),
                contents: Zeroizing::new(data.clone()),
            },
            text: Zeroizing::new(text.as_bytes().to_vec()),
        }))
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
                "{path} is unreadable and stays; nodepki crl fetches it anew"
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
            "{path} loses the revocation lists of the old CA"
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
                "{} names {}, in which only the old CA's revocation lists are, and etcd does not start without the file; have the new CA's list put there with `nodepki crl`, or take the flag out of the manifest, and run again",
                self.root.node_path(ETCD),
                self.root.node_path(list)
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

    pub(super) fn end(mut self, now: OffsetDateTime) -> Result<Outcome, Failure> {
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
            reloads: Vec::new(),
            notes: self.notes,
            report: AuthorityReport::of(&self.evidence, now),
            is_incomplete: false,
        })
    }
}
