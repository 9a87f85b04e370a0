//! Replaced files that have not taken effect yet: `restarts.json` in the state directory.
//!
//! Written in the same commit as the files, so no crash loses a restart. The record contains the replaced contents,
//! which may be keys, until the new ones are proven to work: 0600 in a directory that is 0700.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::error::StoreError;
use super::journal::{MAX_JOURNAL_SIZE, SecretBytes};
use super::state_file::{StateFile, Versioned};
use super::{AuthorityChange, NodeRoot};
use crate::kube::components::{Component, ReplacedFile};
use crate::spec::authority_rotation::RotationSubject;

pub(super) const RESTARTS: StateFile = StateFile::of_work("restarts.json", 1);
/// Size limit in bytes: the former revocation lists and bundles of a step of a CA change. The journal has room for it, in
/// base64.
pub(super) const MAX_RESTARTS_SIZE: u64 = MAX_JOURNAL_SIZE / 2;
/// Size in bytes of everything in the record except file contents.
const METADATA_CAPACITY: usize = 64 * 1024;

/// A component that must be restarted, or did not become ready after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// The component.
    pub component: Component,
    /// When the newest of the files was replaced.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// The changes that require the restart.
    pub causes: Vec<ReplacedFile>,
    /// The files that the component still works with.
    pub previous: Vec<FormerContents>,
    /// Progress of the restart.
    pub state: RestartState,
}

/// A file as it was before it was replaced.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerContents {
    /// On the node.
    pub path: PathBuf,
    /// Empty if there was no file to go back to.
    #[serde(with = "secret")]
    pub contents: Zeroizing<Vec<u8>>,
    /// For a symbolic link, the name of the file in its directory with these contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

impl FormerContents {
    /// Returns the former contents of a file that is no link.
    pub(crate) fn new(path: impl Into<PathBuf>, contents: impl Into<Zeroizing<Vec<u8>>>) -> Self {
        FormerContents {
            path: path.into(),
            contents: contents.into(),
            target: None,
        }
    }
}

impl fmt::Debug for FormerContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Previous")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Progress of a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartState {
    /// The component must be restarted.
    #[serde(rename = "due")]
    Due,
    /// The restart failed and the old files are restored. The restart is not retried automatically.
    #[serde(rename = "rolled-back")]
    RolledBack {
        /// The failure, as a sentence.
        why: String,
    },
}

/// The trusted files of a node before a step of a CA change, or its service-account pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerTrust {
    /// The CA or key pair that changes.
    #[serde(rename = "authority")]
    pub subject: RotationSubject,
    /// The record of an authority's change; `None` if no change was under way.
    pub change: Option<AuthorityChange>,
    /// `ca.crt` and revocation lists, or `sa.key` and `sa.pub`.
    pub files: Vec<FormerContents>,
    /// The CA certificates in each kubeconfig, in PEM. Its client certificate may be renewed in the meantime.
    pub kubeconfigs: Vec<FormerContents>,
}

/// A step of a CA change that has not taken effect in every component. Its files are kept or rolled back together:
/// `ca.crt` and the kubeconfigs always contain the same CA certificates, whichever component does not become ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustStep {
    /// The files that a rollback restores.
    pub former: FormerTrust,
    /// When the newest of the files was replaced.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// The replaced files.
    pub changes: Vec<ReplacedFile>,
    /// The components that are restarted for it.
    pub components: Vec<Component>,
    /// Those of them that were due for a restart for another reason already.
    pub due_before: Vec<Component>,
}

/// A replaced file or pair whose effect has not been verified yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnverifiedChange {
    /// The file or pair.
    pub change: ReplacedFile,
    /// When it was replaced.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

/// The record as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsettled {
    /// In the order of [`Component::ALL`].
    pub restarts: Vec<Restart>,
    /// In the order in which they were replaced first.
    pub changed: Vec<UnverifiedChange>,
    /// At most one for each subject.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trust_steps: Vec<TrustStep>,
}

impl NodeRoot {
    /// Returns the replaced files that have not taken effect yet; empty if nothing is recorded.
    pub(crate) fn unsettled(&self) -> Result<Unsettled, StoreError> {
        self.record_at_most(&RESTARTS, MAX_RESTARTS_SIZE)
            .map(Option::unwrap_or_default)
    }

    /// Returns the components that must be restarted, or did not become ready after a restart.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::NewerFormat`] for a record that cannot be read, and errors of the system.
    pub fn restarts(&self) -> Result<Vec<Restart>, StoreError> {
        self.unsettled().map(|unsettled| unsettled.restarts)
    }
}

pub(super) fn is_due(restarts: &[Restart], component: Component) -> bool {
    restarts
        .iter()
        .any(|restart| restart.component == component && restart.state == RestartState::Due)
}

impl Unsettled {
    /// Adds a step of a CA change to the record as it was before the commit, which makes the changes `new` and requires
    /// the restarts `required`.
    pub(super) fn begin_trust_step(
        &mut self,
        former: FormerTrust,
        new: &[UnverifiedChange],
        required: &[Restart],
    ) {
        let Some(since) = new.iter().map(|changed| changed.at).max() else {
            return;
        };
        let mut components: Vec<Component> =
            required.iter().map(|restart| restart.component).collect();
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
        let is_same_subject = |known: &TrustStep| known.former.subject == step.former.subject;
        if let Some(index) = self.trust_steps.iter().position(is_same_subject) {
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
        let keep_oldest = |earlier: Vec<FormerContents>, later: &mut Vec<FormerContents>| {
            later.retain(|file| earlier.iter().all(|old| old.path != file.path));
            later.extend(earlier);
        };
        keep_oldest(earlier.former.files, &mut self.former.files);
        keep_oldest(earlier.former.kubeconfigs, &mut self.former.kubeconfigs);
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

impl Restart {
    /// Returns a restart that is due, without files to go back to.
    pub(crate) fn due(
        component: Component,
        since: OffsetDateTime,
        causes: Vec<ReplacedFile>,
    ) -> Self {
        Restart {
            component,
            since,
            causes,
            previous: Vec::new(),
            state: RestartState::Due,
        }
    }

    /// Extends a due restart by a newer one; otherwise the newer one replaces it.
    pub(super) fn merge(&mut self, newer: Restart) {
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

/// Returns the contents of the file; `None` if nothing is left to record.
pub(super) fn to_json(record: Unsettled) -> Option<Zeroizing<Vec<u8>>> {
    if record == Unsettled::default() {
        return None;
    }
    let contents = record.restarts.iter().flat_map(|restart| &restart.previous);
    let former = record.trust_steps.iter().map(|step| &step.former);
    let former = former.flat_map(|former| former.files.iter().chain(&former.kubeconfigs));
    let contents = contents.chain(former);
    let contents: usize = contents.map(|previous| previous.contents.len()).sum();
    // Allocated at once: a growing buffer would leave copies of keys in freed memory.
    let mut json = Zeroizing::new(Vec::with_capacity(contents / 3 * 4 + METADATA_CAPACITY));
    let versioned = Versioned {
        version: RESTARTS.version,
        record: &record,
    };
    // Timestamps are the only part that could fail, and RFC 3339 covers the years that certificates can contain.
    serde_json::to_writer(&mut *json, &versioned).ok()?;
    Some(json)
}

pub(super) mod secret {
    use super::SecretBytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use zeroize::Zeroizing;

    pub(in crate::store) fn serialize<S: Serializer>(
        contents: &Zeroizing<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        SecretBytes(contents.clone()).serialize(serializer)
    }

    pub(in crate::store) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Zeroizing<Vec<u8>>, D::Error> {
        SecretBytes::deserialize(deserializer).map(|secret| secret.0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Duration;

    use tempfile::TempDir;
    use time::macros::datetime;

    use super::*;
    use crate::kube::names::{Authority, CertName};
    use crate::store::{Commit, IssuedRecord, Mode, Store};

    const AT: OffsetDateTime = datetime!(2026-11-21 12:00 UTC);
    const CONF: &str = "/etc/kubernetes/scheduler.conf";
    const SCHEDULER: ReplacedFile = ReplacedFile::Certificate(CertName::SchedulerConf);

    fn node() -> (TempDir, NodeRoot) {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        (dir, root)
    }

    fn store(root: &NodeRoot) -> Store {
        let locked = root.lock(Duration::from_secs(1), "test").unwrap();
        locked.recover(AT).unwrap().0
    }

    fn put(root: &NodeRoot, contents: &str, at: OffsetDateTime) {
        let mut commit = Commit::new();
        commit.file(CONF, contents.as_bytes().to_vec(), Mode::Private);
        commit.change(SCHEDULER, CONF, at);
        store(root).commit(commit).unwrap();
    }

    #[test]
    fn requires_no_restart_for_new_file() {
        let (dir, root) = node();
        put(&root, "first", AT);
        assert_eq!(root.unsettled().unwrap(), Unsettled::default());
        // Identical contents are not a change either.
        put(&root, "first", AT);
        assert_eq!(root.unsettled().unwrap(), Unsettled::default());
        assert!(!dir.path().join("var/lib/nodepki/restarts.json").exists());
    }

    #[test]
    fn records_replaced_file_with_oldest_contents() {
        let (dir, root) = node();
        put(&root, "first", AT);
        put(&root, "second", AT);
        let later = AT + Duration::from_secs(60);
        put(&root, "third", later);
        let unsettled = root.unsettled().unwrap();
        let expected = Restart {
            previous: vec![FormerContents::new(CONF, b"first".to_vec())],
            ..Restart::due(Component::KubeScheduler, later, vec![SCHEDULER])
        };
        assert_eq!(unsettled.restarts, [expected]);
        let seen = UnverifiedChange {
            change: SCHEDULER,
            at: later,
        };
        assert_eq!(unsettled.changed, std::slice::from_ref(&seen));
        let record = dir.path().join("var/lib/nodepki/restarts.json");
        let mode = fs::metadata(&record).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{unsettled:?}").contains("first"));

        let mut commit = Commit::new();
        commit.restarted(Component::KubeScheduler).verified(seen);
        store(&root).commit(commit).unwrap();
        assert!(!record.exists());
    }

    #[test]
    fn counts_empty_file_and_missing_file_of_pod_as_replaced() {
        let (dir, root) = node();
        fs::create_dir_all(dir.path().join("etc/kubernetes/manifests")).unwrap();
        fs::write(dir.path().join(&CONF[1..]), "").unwrap();
        put(&root, "new", AT);
        let assert_no_contents = |root: &NodeRoot| {
            let restarts = root.restarts().unwrap();
            assert_eq!(restarts.len(), 1);
            assert!(restarts[0].previous[0].contents.is_empty());
        };
        assert_no_contents(&root);

        let (dir, root) = node();
        let manifests = dir.path().join("etc/kubernetes/manifests");
        fs::create_dir_all(&manifests).unwrap();
        fs::write(manifests.join("kube-scheduler.yaml"), "kind: Pod").unwrap();
        put(&root, "new", AT);
        assert_no_contents(&root);
    }

    #[test]
    fn makes_rolled_back_restart_due_after_new_change() {
        let (_dir, root) = node();
        put(&root, "good", AT);
        let mut commit = Commit::new();
        commit.restart(Restart {
            state: RestartState::RolledBack {
                why: "it did not become ready".to_owned(),
            },
            ..Restart::due(Component::KubeScheduler, AT, vec![SCHEDULER])
        });
        store(&root).commit(commit).unwrap();
        assert_ne!(root.restarts().unwrap()[0].state, RestartState::Due);
        put(&root, "better", AT);
        let restarts = root.restarts().unwrap();
        assert_eq!(restarts[0].state, RestartState::Due);
        assert_eq!(restarts[0].previous[0].contents.as_slice(), b"good");
    }

    #[test]
    fn commits_despite_damaged_record() {
        let (dir, root) = node();
        put(&root, "first", AT);
        let record = dir.path().join("var/lib/nodepki/restarts.json");
        fs::write(&record, "{").unwrap();
        let error = root.restarts().unwrap_err().to_string();
        assert!(error.contains("restarts.json is damaged"), "{error}");
        put(&root, "second", AT);
        assert_eq!(root.restarts().unwrap().len(), 1);
    }

    #[test]
    fn refuses_commit_over_record_of_newer_version() {
        let (dir, root) = node();
        put(&root, "first", AT);
        let issued = IssuedRecord {
            at: AT,
            serial: "1".to_owned(),
            not_after: AT,
            sha256: String::new(),
        };
        for name in ["restarts.json", "issued.json"] {
            let record = dir.path().join("var/lib/nodepki").join(name);
            let newer = "{\"version\": 2}";
            fs::write(&record, newer).unwrap();
            let mut commit = Commit::new();
            commit.file(CONF, b"second".to_vec(), Mode::Private);
            commit.change(SCHEDULER, CONF, AT);
            commit.issued(CertName::SchedulerConf, issued.clone());
            let error = store(&root).commit(commit).unwrap_err();
            let StoreError::NotCommitted(cause) = &error else {
                panic!("{error}");
            };
            assert!(matches!(
                **cause,
                StoreError::NewerFormat { version: 2, .. }
            ));
            assert_eq!(fs::read_to_string(&record).unwrap(), newer);
            assert_eq!(*root.read(CONF).unwrap().unwrap().bytes, b"first");
            fs::remove_file(record).unwrap();
        }
    }

    #[test]
    fn records_former_target_of_link() {
        const LINK: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
        const CLIENT: ReplacedFile = ReplacedFile::Certificate(CertName::KubeletConf);
        let (_dir, root) = node();
        let former = |name: &str| FormerContents {
            path: LINK.into(),
            contents: name.as_bytes().to_vec().into(),
            target: Some(name.to_owned()),
        };
        let link = |name: &str, former: Option<FormerContents>| {
            let mut commit = Commit::new();
            let path = Path::new(LINK).with_file_name(name);
            commit.file(path, name.as_bytes().to_vec(), Mode::Private);
            commit
                .link(LINK, name)
                .change_link(CLIENT, LINK, AT, former);
            store(&root).commit(commit).unwrap();
        };
        link("first", None);
        assert_eq!(root.restarts().unwrap(), []);
        link("second", Some(former("first")));
        link("third", Some(former("second")));
        assert_eq!(root.restarts().unwrap()[0].previous, [former("first")]);
    }

    const CA: &str = "/etc/kubernetes/pki/ca.crt";

    /// Commits a step that changes ca.crt and scheduler.conf, with their former contents.
    fn commit_trust_step(root: &NodeRoot, contents: &str, at: OffsetDateTime) {
        let former = |path: &str| {
            let found = root.read(path).unwrap();
            found.map(|content| FormerContents::new(path, content.bytes))
        };
        let mut commit = Commit::new();
        commit.trust_step(FormerTrust {
            subject: Authority::Ca.into(),
            change: None,
            files: former(CA).into_iter().collect(),
            kubeconfigs: former(CONF).into_iter().collect(),
        });
        commit.file(CA, contents.as_bytes().to_vec(), Mode::Public);
        commit.change(ReplacedFile::Bundle(Authority::Ca), CA, at);
        commit.file(CONF, contents.as_bytes().to_vec(), Mode::Private);
        commit.change(SCHEDULER, CONF, at);
        store(root).commit(commit).unwrap();
    }

    fn mark_restarted(root: &NodeRoot, component: Component) {
        let mut commit = Commit::new();
        commit.restarted(component);
        store(root).commit(commit).unwrap();
    }

    #[test]
    fn keeps_several_large_files_and_refuses_record_that_would_be_unreadable() {
        let (dir, root) = node();
        put(&root, "first", AT);
        let step = |path: &str, size: usize, contents: &str| {
            let mut commit = Commit::new();
            commit.trust_step(FormerTrust {
                subject: Authority::Ca.into(),
                change: None,
                files: vec![FormerContents::new(path, vec![b'x'; size])],
                kubeconfigs: Vec::new(),
            });
            commit.file(CONF, contents.as_bytes().to_vec(), Mode::Private);
            commit.change(SCHEDULER, CONF, AT);
            store(&root).commit(commit)
        };
        step(CA, 2 << 20, "second").unwrap();
        assert_eq!(only_step(&root).former.files[0].contents.len(), 2 << 20);
        let error = step("/etc/kubernetes/pki/ca.crl", 25 << 20, "third").unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, StoreError::NotCommitted(_)), "{text}");
        assert!(text.contains("more than the limit of 33554432"), "{text}");
        assert_eq!(*root.read(CONF).unwrap().unwrap().bytes, b"second");

        let mut commit = Commit::new();
        commit.restarted(Component::KubeScheduler);
        commit.verified(UnverifiedChange {
            change: SCHEDULER,
            at: AT,
        });
        store(&root).commit(commit).unwrap();
        assert!(!dir.path().join("var/lib/nodepki/restarts.json").exists());
    }

    fn only_step(root: &NodeRoot) -> TrustStep {
        let mut steps = root.unsettled().unwrap().trust_steps;
        assert_eq!(steps.len(), 1, "{steps:?}");
        steps.remove(0)
    }

    #[test]
    fn keeps_former_contents_until_all_components_are_restarted() {
        use Component as C;
        let (_dir, root) = node();
        commit_trust_step(&root, "first", AT);
        assert_eq!(root.unsettled().unwrap(), Unsettled::default());
        put(&root, "renewed", AT);
        let later = AT + Duration::from_secs(60);
        commit_trust_step(&root, "second", later);
        let recorded = only_step(&root);
        assert_eq!(
            recorded.components,
            [C::KubeControllerManager, C::KubeScheduler, C::Kubelet]
        );
        assert_eq!(recorded.due_before, [C::KubeScheduler]);
        assert_eq!(
            recorded.changes,
            [ReplacedFile::Bundle(Authority::Ca), SCHEDULER]
        );
        assert_eq!(recorded.since, later);
        assert_eq!(*recorded.former.files[0].contents, b"first");
        assert_eq!(*recorded.former.kubeconfigs[0].contents, b"renewed");

        // No component has read the second contents.
        commit_trust_step(&root, "third", later);
        let extended = only_step(&root);
        assert_eq!(extended.former, recorded.former);
        assert_eq!(extended.due_before, [C::KubeScheduler]);
        mark_restarted(&root, C::KubeControllerManager);
        assert_eq!(only_step(&root), extended);
        // One component works with the third contents.
        commit_trust_step(&root, "fourth", later);
        let replaced = only_step(&root);
        assert_eq!(*replaced.former.files[0].contents, b"third");
        assert_eq!(replaced.due_before, [C::KubeScheduler, C::Kubelet]);
        for component in replaced.components {
            mark_restarted(&root, component);
        }
        assert_eq!(root.unsettled().unwrap().trust_steps, []);

        commit_trust_step(&root, "fifth", later);
        let mut commit = Commit::new();
        commit.rolls_back(Authority::Ca.into());
        store(&root).commit(commit).unwrap();
        assert_eq!(root.unsettled().unwrap().trust_steps, []);
    }
}
