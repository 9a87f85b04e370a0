//! A change of a CA or of the service-account key in the whole cluster: `cluster-rotations.json`, what the cluster demands, and `rotation-steps.json`, which
//! steps this node has begun.
//!
//! Only the daemon writes the first file, without the lock of a run: it is replaced atomically, and no commit contains it.
//! The second one is written in the commits of the steps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::state_file::StateFile;
use super::{Commit, Mode, NodeRoot};
use crate::spec::authority_rotation::{AuthorityRotation, BegunPhase, RotationSubject};

pub(super) const ROTATIONS: StateFile = StateFile::of_knowledge("cluster-rotations.json", 1);
pub(super) const STEPS: StateFile = StateFile::of_knowledge("rotation-steps.json", 1);

/// The rotations in the cluster as they were last read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRotations {
    /// The last valid rotation of each subject, also after its end.
    #[serde(default)]
    pub rotations: BTreeMap<RotationSubject, AuthorityRotation>,
    /// Why a newer one is not used, by key of the ConfigMap.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, String>,
}

impl ClusterRotations {
    /// Returns the rotation of a subject unless it has ended.
    pub fn in_progress(&self, subject: RotationSubject) -> Option<&AuthorityRotation> {
        let rotation = self.rotations.get(&subject);
        rotation.filter(|rotation| !rotation.phase.is_end())
    }
}

/// The latest begun step of each subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationSteps {
    /// By subject.
    pub begun: BTreeMap<RotationSubject, BegunPhase>,
    /// Name of the last change of the key in `sa.key`; `None` if no rotation has changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switched: Option<String>,
}

impl NodeRoot {
    /// Returns the rotations in the cluster; none if they were never read.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::NewerFormat`] for a record that cannot be read, and errors of the system.
    pub fn cluster_rotations(&self) -> Result<ClusterRotations, StoreError> {
        self.record(&ROTATIONS).map(Option::unwrap_or_default)
    }

    /// Writes the rotations in the cluster durably.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn keep_cluster_rotations(&self, record: &ClusterRotations) -> Result<(), StoreError> {
        self.keep_record(&ROTATIONS, &ROTATIONS.to_json(record))
    }

    /// Returns the steps that this node has begun; none if nothing is recorded.
    ///
    /// # Errors
    /// As of [`NodeRoot::cluster_rotations`].
    pub fn rotation_steps(&self) -> Result<RotationSteps, StoreError> {
        self.record(&STEPS).map(Option::unwrap_or_default)
    }
}

impl Commit {
    /// Records the steps of cluster-wide CA changes that this node has begun once this commit is done.
    pub(crate) fn rotation_steps(&mut self, steps: &RotationSteps) -> &mut Self {
        self.file(STEPS.path(), STEPS.to_json(steps), Mode::Other(0o600))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::names::Authority;
    use crate::spec::authority_rotation::{RotatedCa, RotationPhase};

    #[test]
    fn keeps_rotations_of_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        assert_eq!(
            root.cluster_rotations().unwrap(),
            ClusterRotations::default()
        );
        let ca = |name: &str| RotatedCa {
            sha256: name.to_owned(),
            certificate: String::new(),
        };
        let mut record = ClusterRotations::default();
        record.refused.insert("x".to_owned(), "why".to_owned());
        record.rotations.insert(
            Authority::Ca.into(),
            AuthorityRotation {
                hold_before: [RotationPhase::Retire].into(),
                excluded: ["w1".to_owned()].into(),
                ..AuthorityRotation::new("1", Authority::Ca, ["a", "b"].map(ca))
            },
        );
        root.keep_cluster_rotations(&record).unwrap();
        assert_eq!(root.cluster_rotations().unwrap(), record);
        assert!(record.in_progress(Authority::Ca.into()).is_some());
        assert!(record.in_progress(Authority::EtcdCa.into()).is_none());
        std::fs::write(root.on_this_machine(ROTATIONS.path()), "{").unwrap();
        assert!(root.cluster_rotations().is_err());
    }
}
