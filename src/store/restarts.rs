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
use super::{Commit, Root, STATE_DIR};
use crate::components::{self, Change, Component};

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
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u64,
    restarts: Vec<Restart>,
    changed: Vec<Changed>,
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
        match serde_json::from_slice::<Record>(&found.bytes) {
            Ok(record) if record.version == VERSION => Ok(Unsettled {
                restarts: record.restarts,
                changed: record.changed,
            }),
            Ok(record) => Err(Error::NewerFormat {
                path: self.on_this_machine(path),
                version: record.version,
                known: VERSION,
            }),
            Err(source) => Err(Error::Damaged {
                path: self.on_this_machine(path),
                why: source.to_string(),
            }),
        }
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

    /// The effect of a change was looked at; one that has come since stays.
    pub fn seen(&mut self, changed: Changed) -> &mut Self {
        self.amendment.seen.push(changed);
        self
    }
}

impl Amendment {
    pub(super) fn is_empty(&self) -> bool {
        self.restarts.is_empty() && self.settled.is_empty() && self.seen.is_empty()
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
    pub(super) fn apply(self, mut record: Unsettled, new: Vec<Changed>) -> Unsettled {
        record
            .changed
            .retain(|changed| !self.seen.contains(changed));
        for changed in new {
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
        record
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
    let contents: usize = contents.map(|previous| previous.contents.len()).sum();
    // Room enough: growing would leave copies of keys in freed memory.
    let room = contents / 3 * 4 + 64 * 1024;
    let mut json = Zeroizing::new(Vec::with_capacity(room));
    let record = Record {
        version: VERSION,
        restarts: record.restarts,
        changed: record.changed,
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
    use crate::names::CertName;
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
}
