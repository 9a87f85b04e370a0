//! What was replaced and has not taken effect yet: `restarts.json` in the state directory.
//!
//! Written in the same commit as the files, so that no crash loses a restart. It holds the contents that were replaced,
//! which may be keys, until the new ones have proven themselves: 0600 in a directory that is 0700.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::error::Error;
use super::journal::Secret;
use super::{AuthorityChange, Commit, Root, STATE_DIR};
use crate::kube::components::{self, Change, Component};
use crate::kube::names::Authority;

pub(super) const RESTARTS: &str = "restarts.json";
const VERSION: u64 = 1;

/// A component that must be started anew, or was and did not come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// Which one.
    pub component: Component,
    /// When the newest of the files was replaced.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// Why.
    pub causes: Vec<Change>,
    /// What the component still works with.
    pub previous: Vec<Previous>,
    /// What is to be done.
    pub state: RestartState,
}

/// A file as it was before.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Previous {
    /// On the node.
    pub path: PathBuf,
    /// Empty where there was nothing to go back to.
    #[serde(with = "secret")]
    pub contents: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Previous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Previous")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// How far a restart has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartState {
    /// It has to be done.
    Due,
    /// It was done and failed; the old files are back, and nothing is tried again by itself.
    RolledBack {
        /// What went wrong, in words.
        why: String,
    },
}

/// What a node trusted before a step of a CA change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerTrust {
    /// The CA that is changed.
    pub authority: Authority,
    /// The record of its change; `None` if no change was under way.
    pub change: Option<AuthorityChange>,
    /// `ca.crt` and revocation lists.
    pub files: Vec<Previous>,
    /// The CA certificates in each kubeconfig, in PEM. Its client certificate may be renewed meanwhile.
    pub kubeconfigs: Vec<Previous>,
}

/// A step of a CA change that is not in effect everywhere. Its files are kept or rolled back together: `ca.crt` and the
/// kubeconfigs trust the same, whichever component does not come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustStep {
    /// What a rollback restores.
    pub former: FormerTrust,
    /// When the newest of the files was replaced.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// What was replaced.
    pub changes: Vec<Change>,
    /// The components that are restarted for it.
    pub components: Vec<Component>,
    /// Those of them that had to be restarted for something else before.
    pub due_before: Vec<Component>,
}

/// A file or pair that was replaced, and whose effect nobody has looked at yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Which one.
    pub change: Change,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

/// The record as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsettled {
    /// In the order of [`Component::ALL`].
    pub restarts: Vec<Restart>,
    /// In the order in which they were replaced first.
    pub changed: Vec<Changed>,
    /// At most one for each authority.
    pub trust_steps: Vec<TrustStep>,
}

/// The part that every version has.
#[derive(Deserialize)]
struct Header {
    version: u64,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u64,
    restarts: Vec<Restart>,
    changed: Vec<Changed>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    trust_steps: Vec<TrustStep>,
}

impl Root {
    /// What was replaced and has not taken effect yet; empty when nothing is recorded.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a record that cannot be read, and what the system says.
    pub fn unsettled(&self) -> Result<Unsettled, Error> {
        let path = format!("{STATE_DIR}/{RESTARTS}");
        let Some(found) = self.read(&path)? else {
            return Ok(Unsettled::default());
        };
        let damaged = |source: serde_json::Error| Error::Damaged {
            path: self.on_this_machine(&path),
            why: source.to_string(),
        };
        let Header { version } = serde_json::from_slice(&found.bytes).map_err(damaged)?;
        if version != VERSION {
            return Err(Error::NewerFormat {
                path: self.on_this_machine(&path),
                version,
                known: VERSION,
            });
        }
        let record: Record = serde_json::from_slice(&found.bytes).map_err(damaged)?;
        Ok(Unsettled {
            restarts: record.restarts,
            changed: record.changed,
            trust_steps: record.trust_steps,
        })
    }

    /// The components that must be started anew, or were and did not come back.
    ///
    /// # Errors
    /// As [`Root::unsettled`].
    pub fn restarts(&self) -> Result<Vec<Restart>, Error> {
        self.unsettled().map(|unsettled| unsettled.restarts)
    }
}

/// What a commit does to the record.
#[derive(Default)]
pub(super) struct Amendment {
    /// Files whose replacement is a change, and which.
    watched: Vec<(PathBuf, Changed)>,
    restarts: Vec<Restart>,
    settled: Vec<Component>,
    seen: Vec<Changed>,
    /// Files that are restored, for hooks that were run for the new ones.
    restored: Vec<Changed>,
    former_trust: Option<FormerTrust>,
    rolled_back: Option<Authority>,
}

impl Commit {
    /// Says what it means that the file at `path` is replaced. If this commit does replace it, then who reads it only
    /// when starting is recorded as due for a restart, in the same commit and with the old contents.
    ///
    /// A file that is only now made is no change, for nobody has read it yet. An empty one is, since the kubelet makes
    /// it for a pod that runs already (hostPath type `FileOrCreate`); and so is one that was taken away from a pod.
    pub fn change(
        &mut self,
        change: Change,
        path: impl Into<PathBuf>,
        at: OffsetDateTime,
    ) -> &mut Self {
        let changed = Changed { change, at };
        self.amendment.watched.push((path.into(), changed));
        self
    }

    /// Records a restart. One that is due already is extended: its older contents are kept, for the component still
    /// works with those.
    pub fn restart(&mut self, restart: Restart) -> &mut Self {
        self.amendment.restarts.push(restart);
        self
    }

    /// The restart of a component is done and its record may go.
    pub fn restarted(&mut self, component: Component) -> &mut Self {
        self.amendment.settled.push(component);
        self
    }

    /// Makes the files of this commit one step of a CA change: if a component does not come back with them, all of them
    /// are rolled back to this.
    pub fn trust_step(&mut self, former: FormerTrust) -> &mut Self {
        self.amendment.former_trust = Some(former);
        self
    }

    /// Ends the step of this authority's change: this commit rolls it back.
    pub fn rolls_back(&mut self, authority: Authority) -> &mut Self {
        self.amendment.rolled_back = Some(authority);
        self
    }

    /// Records that a file is restored, for hooks. No component is restarted for it.
    pub fn restored(&mut self, changed: Changed) -> &mut Self {
        self.amendment.restored.push(changed);
        self
    }

    /// The effect of a change was looked at; one that has come since stays.
    pub fn seen(&mut self, changed: Changed) -> &mut Self {
        self.amendment.seen.push(changed);
        self
    }
}

impl Amendment {
    pub(super) fn is_empty(&self) -> bool {
        self.restarts.is_empty()
            && self.settled.is_empty()
            && self.seen.is_empty()
            && self.restored.is_empty()
            && self.rolled_back.is_none()
    }

    pub(super) fn watches(&self, path: &Path) -> bool {
        self.watched.iter().any(|(known, _)| known == path)
    }

    /// Takes note of a file that is about to be replaced.
    pub(super) fn replaces(
        &mut self,
        root: &Root,
        path: &Path,
        found: Option<Zeroizing<Vec<u8>>>,
    ) -> Result<Vec<Changed>, Error> {
        let mut replaced = Vec::new();
        for changed in self.changes_of(path) {
            let due = components::restarts(changed.change);
            if found.is_none() && !has_a_pod(root, due)? {
                continue;
            }
            let previous = Previous {
                path: path.to_owned(),
                contents: found.clone().unwrap_or_default(),
            };
            self.demand(&changed, &[previous]);
            replaced.push(changed);
        }
        Ok(replaced)
    }

    /// Takes note of a link that is about to lead elsewhere. What it led to stays where it is, so that there is nothing
    /// to be kept.
    pub(super) fn moves(&mut self, path: &Path) -> Vec<Changed> {
        let changes = self.changes_of(path);
        for changed in &changes {
            self.demand(changed, &[]);
        }
        changes
    }

    fn changes_of(&self, path: &Path) -> Vec<Changed> {
        let watched = self.watched.iter().filter(|(known, _)| known == path);
        watched.map(|(_, changed)| changed.clone()).collect()
    }

    fn demand(&mut self, changed: &Changed, previous: &[Previous]) {
        let due = components::restarts(changed.change).iter();
        self.restarts.extend(due.map(|component| Restart {
            component: *component,
            since: changed.at,
            causes: vec![changed.change],
            previous: previous.to_vec(),
            state: RestartState::Due,
        }));
    }

    /// The record as it is after the commit.
    pub(super) fn apply(mut self, mut record: Unsettled, new: Vec<Changed>) -> Unsettled {
        record
            .changed
            .retain(|changed| !self.seen.contains(changed));
        let is_rolled_back = |step: &TrustStep| self.rolled_back == Some(step.former.authority);
        record.trust_steps.retain(|step| !is_rolled_back(step));
        if let Some(former) = self.former_trust.take() {
            record.begin(former, &new, &self.restarts);
        }
        for changed in new.into_iter().chain(self.restored) {
            record.changed.retain(|old| old.change != changed.change);
            record.changed.push(changed);
        }
        record
            .restarts
            .retain(|restart| !self.settled.contains(&restart.component));
        for restart in self.restarts {
            let known = record.restarts.iter_mut();
            match known
                .into_iter()
                .find(|known| known.component == restart.component)
            {
                Some(known) => known.amend(restart),
                None => record.restarts.push(restart),
            }
        }
        record.restarts.sort_by_key(|restart| restart.component);
        let restarts = &record.restarts;
        record
            .trust_steps
            .retain(|step| step.components.iter().any(|one| is_due(restarts, *one)));
        record
    }
}

fn is_due(restarts: &[Restart], component: Component) -> bool {
    restarts
        .iter()
        .any(|restart| restart.component == component && restart.state == RestartState::Due)
}

impl Unsettled {
    /// Adds a step of a CA change to the record as it was before the commit. `demanded` are the restarts for it.
    fn begin(&mut self, former: FormerTrust, new: &[Changed], demanded: &[Restart]) {
        let Some(since) = new.iter().map(|changed| changed.at).max() else {
            return;
        };
        let mut components: Vec<Component> =
            demanded.iter().map(|restart| restart.component).collect();
        components.sort_unstable();
        components.dedup();
        let due = |component: &Component| is_due(&self.restarts, *component);
        let mut step = TrustStep {
            due_before: components.iter().copied().filter(due).collect(),
            components,
            changes: new.iter().map(|changed| changed.change).collect(),
            since,
            former,
        };
        let of_it = |known: &TrustStep| known.former.authority == step.former.authority;
        if let Some(index) = self.trust_steps.iter().position(of_it) {
            let known = self.trust_steps.remove(index);
            // If a component was restarted since, the node works with the files of the earlier step.
            if known.components.iter().all(due) {
                step.extend(known);
            }
        }
        self.trust_steps.push(step);
    }
}

impl TrustStep {
    /// Extends this step by an earlier one whose files no component has read: a rollback restores what that one replaced.
    fn extend(&mut self, earlier: TrustStep) {
        self.due_before
            .retain(|one| !earlier.components.contains(one));
        self.due_before.extend(earlier.due_before);
        self.former.change = earlier.former.change;
        let oldest = |earlier: Vec<Previous>, later: &mut Vec<Previous>| {
            later.retain(|file| earlier.iter().all(|old| old.path != file.path));
            later.extend(earlier);
        };
        oldest(earlier.former.files, &mut self.former.files);
        oldest(earlier.former.kubeconfigs, &mut self.former.kubeconfigs);
        for component in earlier.components {
            if !self.components.contains(&component) {
                self.components.push(component);
            }
        }
        for change in earlier.changes {
            if !self.changes.contains(&change) {
                self.changes.push(change);
            }
        }
    }
}

fn has_a_pod(root: &Root, components: &[Component]) -> Result<bool, Error> {
    for manifest in components
        .iter()
        .filter_map(|component| component.manifest())
    {
        if root.metadata(manifest)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Restart {
    fn amend(&mut self, newer: Restart) {
        if self.state != RestartState::Due || newer.state != RestartState::Due {
            *self = newer;
            return;
        }
        self.since = self.since.max(newer.since);
        for cause in newer.causes {
            if !self.causes.contains(&cause) {
                self.causes.push(cause);
            }
        }
        for previous in newer.previous {
            if !self.previous.iter().any(|old| old.path == previous.path) {
                self.previous.push(previous);
            }
        }
    }
}

/// `None` when nothing is left to record.
pub(super) fn to_json(record: Unsettled) -> Option<Zeroizing<Vec<u8>>> {
    if record == Unsettled::default() {
        return None;
    }
    let contents = record.restarts.iter().flat_map(|restart| &restart.previous);
    let former = record.trust_steps.iter().map(|step| &step.former);
    let former = former.flat_map(|former| former.files.iter().chain(&former.kubeconfigs));
    let contents = contents.chain(former);
    let contents: usize = contents.map(|previous| previous.contents.len()).sum();
    // Room enough: growing would leave copies of keys in freed memory.
    let room = contents / 3 * 4 + 64 * 1024;
    let mut json = Zeroizing::new(Vec::with_capacity(room));
    let record = Record {
        version: VERSION,
        restarts: record.restarts,
        changed: record.changed,
        trust_steps: record.trust_steps,
    };
    // Times are the only part that could fail, and RFC 3339 covers the years that certificates can hold.
    serde_json::to_writer(&mut *json, &record).ok()?;
    Some(json)
}

mod secret {
    use super::Secret;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(
        contents: &Zeroizing<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        Secret(contents.clone()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Zeroizing<Vec<u8>>, D::Error> {
        Secret::deserialize(deserializer).map(|secret| secret.0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use tempfile::TempDir;
    use time::macros::datetime;

    use super::*;
    use crate::kube::names::CertName;
    use crate::store::{Mode, Store};

    const AT: OffsetDateTime = datetime!(2026-11-21 12:00 UTC);
    const CONF: &str = "/etc/kubernetes/scheduler.conf";
    const SCHEDULER: Change = Change::Certificate(CertName::SchedulerConf);

    fn node() -> (TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        (dir, root)
    }

    fn store(root: &Root) -> Store {
        let locked = root.lock(Duration::from_secs(1), "test").unwrap();
        locked.recover(AT).unwrap().0
    }

    fn put(root: &Root, contents: &str, at: OffsetDateTime) {
        let mut commit = Commit::new();
        commit.file(CONF, contents.as_bytes().to_vec(), Mode::Private);
        commit.change(SCHEDULER, CONF, at);
        store(root).commit(commit).unwrap();
    }

    #[test]
    fn a_file_that_is_only_now_made_restarts_nothing() {
        let (dir, root) = node();
        put(&root, "first", AT);
        assert_eq!(root.unsettled().unwrap(), Unsettled::default());
        // The same again is no change either.
        put(&root, "first", AT);
        assert_eq!(root.unsettled().unwrap(), Unsettled::default());
        assert!(!dir.path().join("var/lib/nodepki/restarts.json").exists());
    }

    #[test]
    fn a_replaced_file_is_recorded_with_its_oldest_contents() {
        let (dir, root) = node();
        put(&root, "first", AT);
        put(&root, "second", AT);
        let later = AT + Duration::from_secs(60);
        put(&root, "third", later);
        let unsettled = root.unsettled().unwrap();
        let expected = Restart {
            component: Component::KubeScheduler,
            since: later,
            causes: vec![SCHEDULER],
            previous: vec![Previous {
                path: CONF.into(),
                contents: b"first".to_vec().into(),
            }],
            state: RestartState::Due,
        };
        assert_eq!(unsettled.restarts, [expected]);
        let seen = Changed {
            change: SCHEDULER,
            at: later,
        };
        assert_eq!(unsettled.changed, std::slice::from_ref(&seen));
        let record = dir.path().join("var/lib/nodepki/restarts.json");
        let mode = fs::metadata(&record).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{unsettled:?}").contains("first"));

        let mut commit = Commit::new();
        commit.restarted(Component::KubeScheduler).seen(seen);
        store(&root).commit(commit).unwrap();
        assert!(!record.exists());
    }

    #[test]
    fn an_empty_file_and_one_taken_from_a_pod_count_as_replaced() {
        let (dir, root) = node();
        fs::create_dir_all(dir.path().join("etc/kubernetes/manifests")).unwrap();
        fs::write(dir.path().join(&CONF[1..]), "").unwrap();
        put(&root, "new", AT);
        let nothing = |root: &Root| {
            let restarts = root.restarts().unwrap();
            assert_eq!(restarts.len(), 1);
            assert!(restarts[0].previous[0].contents.is_empty());
        };
        nothing(&root);

        let (dir, root) = node();
        let manifests = dir.path().join("etc/kubernetes/manifests");
        fs::create_dir_all(&manifests).unwrap();
        fs::write(manifests.join("kube-scheduler.yaml"), "kind: Pod").unwrap();
        put(&root, "new", AT);
        nothing(&root);
    }

    #[test]
    fn a_new_change_makes_a_rolled_back_restart_due_again() {
        let (_dir, root) = node();
        put(&root, "good", AT);
        let mut commit = Commit::new();
        commit.restart(Restart {
            component: Component::KubeScheduler,
            since: AT,
            causes: vec![SCHEDULER],
            previous: Vec::new(),
            state: RestartState::RolledBack {
                why: "it did not come back".to_owned(),
            },
        });
        store(&root).commit(commit).unwrap();
        assert_ne!(root.restarts().unwrap()[0].state, RestartState::Due);
        put(&root, "better", AT);
        let restarts = root.restarts().unwrap();
        assert_eq!(restarts[0].state, RestartState::Due);
        assert_eq!(restarts[0].previous[0].contents.as_slice(), b"good");
    }

    #[test]
    fn a_damaged_record_holds_nothing_up() {
        let (dir, root) = node();
        put(&root, "first", AT);
        let record = dir.path().join("var/lib/nodepki/restarts.json");
        fs::write(&record, "{").unwrap();
        let error = root.restarts().unwrap_err().to_string();
        assert!(error.contains("restarts.json is damaged"), "{error}");
        put(&root, "second", AT);
        assert_eq!(root.restarts().unwrap().len(), 1);
    }

    const CA: &str = "/etc/kubernetes/pki/ca.crt";

    /// A step that changes ca.crt and scheduler.conf, with what they held before.
    fn step(root: &Root, contents: &str, at: OffsetDateTime) {
        let former = |path: &str| {
            let found = root.read(path).unwrap();
            found.map(|content| Previous {
                path: path.into(),
                contents: content.bytes,
            })
        };
        let mut commit = Commit::new();
        commit.trust_step(FormerTrust {
            authority: Authority::Ca,
            change: None,
            files: former(CA).into_iter().collect(),
            kubeconfigs: former(CONF).into_iter().collect(),
        });
        commit.file(CA, contents.as_bytes().to_vec(), Mode::Public);
        commit.change(Change::Bundle(Authority::Ca), CA, at);
        commit.file(CONF, contents.as_bytes().to_vec(), Mode::Private);
        commit.change(SCHEDULER, CONF, at);
        store(root).commit(commit).unwrap();
    }

    fn done(root: &Root, component: Component) {
        let mut commit = Commit::new();
        commit.restarted(component);
        store(root).commit(commit).unwrap();
    }

    fn only_step(root: &Root) -> TrustStep {
        let mut steps = root.unsettled().unwrap().trust_steps;
        assert_eq!(steps.len(), 1, "{steps:?}");
        steps.remove(0)
    }

    #[test]
    fn keeps_contents_of_a_step_until_all_components_are_restarted() {
        use Component as C;
        let (_dir, root) = node();
        step(&root, "first", AT);
        assert_eq!(root.unsettled().unwrap(), Unsettled::default());
        put(&root, "renewed", AT);
        let later = AT + Duration::from_secs(60);
        step(&root, "second", later);
        let recorded = only_step(&root);
        assert_eq!(
            recorded.components,
            [C::KubeControllerManager, C::KubeScheduler, C::Kubelet]
        );
        assert_eq!(recorded.due_before, [C::KubeScheduler]);
        assert_eq!(recorded.changes, [Change::Bundle(Authority::Ca), SCHEDULER]);
        assert_eq!(recorded.since, later);
        assert_eq!(*recorded.former.files[0].contents, b"first");
        assert_eq!(*recorded.former.kubeconfigs[0].contents, b"renewed");

        // No component has read the second one.
        step(&root, "third", later);
        let extended = only_step(&root);
        assert_eq!(extended.former, recorded.former);
        assert_eq!(extended.due_before, [C::KubeScheduler]);
        done(&root, C::KubeControllerManager);
        assert_eq!(only_step(&root), extended);
        // One component works with the third one.
        step(&root, "fourth", later);
        let replaced = only_step(&root);
        assert_eq!(*replaced.former.files[0].contents, b"third");
        assert_eq!(replaced.due_before, [C::KubeScheduler, C::Kubelet]);
        for component in replaced.components {
            done(&root, component);
        }
        assert_eq!(root.unsettled().unwrap().trust_steps, []);

        step(&root, "fifth", later);
        let mut commit = Commit::new();
        commit.rolls_back(Authority::Ca);
        store(&root).commit(commit).unwrap();
        assert_eq!(root.unsettled().unwrap().trust_steps, []);
    }
}
