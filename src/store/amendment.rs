//! Changes of a commit to `restarts.json`.

use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::NodeRoot;
use super::error::StoreError;
use super::restarts::{
    FormerContents, FormerTrust, Restart, TrustStep, Unsettled, UnverifiedChange, is_due,
};
use crate::kube::components::Component;
use crate::spec::authority_rotation::RotationSubject;

/// A file whose replacement is a change.
#[derive(Clone)]
pub(super) struct WatchedFile {
    pub(super) path: PathBuf,
    pub(super) changed: UnverifiedChange,
    /// The components that must be restarted for it.
    pub(super) readers: &'static [Component],
    /// For a symbolic link, what a rollback restores; `None` if it leads to no usable file.
    pub(super) former: Option<FormerContents>,
}

/// Additions to the record and removals from it.
#[derive(Default)]
pub(super) struct Amendment {
    /// Files whose replacement is a change.
    pub(super) watched: Vec<WatchedFile>,
    pub(super) restarts: Vec<Restart>,
    /// Components that were restarted.
    pub(super) restarted: Vec<Component>,
    /// Changes whose effect was verified.
    pub(super) verified: Vec<UnverifiedChange>,
    /// Files that are restored, for hooks that ran for the new ones.
    pub(super) restored: Vec<UnverifiedChange>,
    pub(super) former_trust: Option<FormerTrust>,
    pub(super) rolled_back: Option<RotationSubject>,
}

impl Amendment {
    pub(super) fn is_empty(&self) -> bool {
        self.restarts.is_empty()
            && self.restarted.is_empty()
            && self.verified.is_empty()
            && self.restored.is_empty()
            && self.rolled_back.is_none()
    }

    /// Returns true if the replacement of the file is a change.
    pub(super) fn watches(&self, path: &Path) -> bool {
        self.watched.iter().any(|known| known.path == path)
    }

    /// Adds the restarts for a file that is about to be replaced, and returns its changes.
    pub(super) fn replace(
        &mut self,
        root: &NodeRoot,
        path: &Path,
        found: Option<Zeroizing<Vec<u8>>>,
    ) -> Result<Vec<UnverifiedChange>, StoreError> {
        let mut replaced = Vec::new();
        for watched in self.watched_at(path) {
            if found.is_none() && !any_has_manifest(root, watched.readers)? {
                continue;
            }
            let previous = FormerContents::new(path, found.clone().unwrap_or_default());
            self.require_restarts(&watched, &[previous]);
            replaced.push(watched.changed);
        }
        Ok(replaced)
    }

    /// Adds the restarts for a link that is about to get another target, and returns its changes.
    pub(super) fn retarget(&mut self, path: &Path) -> Vec<UnverifiedChange> {
        let watched = self.watched_at(path);
        for watched in &watched {
            self.require_restarts(watched, watched.former.as_slice());
        }
        watched.into_iter().map(|watched| watched.changed).collect()
    }

    fn watched_at(&self, path: &Path) -> Vec<WatchedFile> {
        let watched = self.watched.iter().filter(|known| known.path == path);
        watched.cloned().collect()
    }

    fn require_restarts(&mut self, watched: &WatchedFile, previous: &[FormerContents]) {
        let (readers, changed) = (watched.readers.iter(), &watched.changed);
        self.restarts.extend(readers.map(|component| Restart {
            previous: previous.to_vec(),
            ..Restart::due(*component, changed.at, vec![changed.change])
        }));
    }

    /// Returns the record after the commit, which makes the changes `new`.
    pub(super) fn apply(mut self, mut record: Unsettled, new: Vec<UnverifiedChange>) -> Unsettled {
        record
            .changed
            .retain(|changed| !self.verified.contains(changed));
        let is_rolled_back = |step: &TrustStep| self.rolled_back == Some(step.former.subject);
        record.trust_steps.retain(|step| !is_rolled_back(step));
        if let Some(former) = self.former_trust.take() {
            record.begin_trust_step(former, &new, &self.restarts);
        }
        for changed in new.into_iter().chain(self.restored) {
            record.changed.retain(|old| old.change != changed.change);
            record.changed.push(changed);
        }
        record
            .restarts
            .retain(|restart| !self.restarted.contains(&restart.component));
        for restart in self.restarts {
            let mut known = record.restarts.iter_mut();
            match known.find(|known| known.component == restart.component) {
                Some(known) => known.merge(restart),
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

fn any_has_manifest(root: &NodeRoot, components: &[Component]) -> Result<bool, StoreError> {
    let manifests = components
        .iter()
        .filter_map(|component| component.manifest());
    for manifest in manifests {
        if root.metadata(manifest)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
