//! The key policy of the cluster as it was last read: `cluster-policy.json` in the state directory.
//!
//! The daemon, `bootstrap` and `renew` write the file, without the lock of a run: it is replaced atomically, and no commit
//! contains it. Every command reads it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::NodeRoot;
use super::error::StoreError;
use super::state_file::StateFile;

/// The path of the file.
pub const CLUSTER_POLICY: &str = "/var/lib/nodepki/cluster-policy.json";
pub(super) const RECORD: StateFile = StateFile::of_knowledge("cluster-policy.json", 1);

/// The key policy of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPolicyRecord {
    /// The last valid `PKI` document; `None` if the cluster has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Value>,
    /// When its spec was written to the cluster.
    #[serde(default, with = "rfc3339::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<OffsetDateTime>,
    /// Why a newer document is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl NodeRoot {
    /// Returns the record; `None` if the policy was never read.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::NewerFormat`] for a record that cannot be read, and errors of the system.
    pub fn cluster_policy(&self) -> Result<Option<ClusterPolicyRecord>, StoreError> {
        self.record(&RECORD)
    }

    /// Writes the record durably.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn keep_cluster_policy(&self, record: &ClusterPolicyRecord) -> Result<(), StoreError> {
        self.keep_record(&RECORD, &RECORD.to_json(record))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keeps_record() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        assert_eq!(root.cluster_policy().unwrap(), None);
        let record = ClusterPolicyRecord {
            document: Some(json!({"kind": "PKI", "spec": {}})),
            since: Some(OffsetDateTime::UNIX_EPOCH),
            refused: Some("spec.defaults: has no key".to_owned()),
        };
        for record in [record, ClusterPolicyRecord::default()] {
            root.keep_cluster_policy(&record).unwrap();
            assert_eq!(root.cluster_policy().unwrap(), Some(record));
        }
        std::fs::write(dir.path().join(&CLUSTER_POLICY[1..]), "{").unwrap();
        assert!(root.cluster_policy().is_err());
    }
}
