//! The requests of other nodes' kubelets that were sent to the signer: `kubelets/UID.json` in the state directory.
//!
//! UID is that of the CertificateSigningRequest. The record is on disk before the signer receives the request, so a
//! restarted daemon asks the signer about it and does not send it again. It contains no key. Only the daemon writes here,
//! without the lock of a run: each file is replaced atomically, and no commit contains one.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::pending::RequestRecord;
use super::state_file::StateFile;
use super::{NodeRoot, READ_LIMIT, STATE_DIR};
use crate::kube::names::CertName;

/// The directory below the state directory.
const KUBELETS: &str = "kubelets";
pub(super) const RECORD: StateFile = StateFile::of_work("kubelets/UID.json", 1);
/// Longest UID that is accepted. Kubernetes' UIDs have 36 characters.
const MAX_UID_LENGTH: usize = 64;

/// A request that was sent to the signer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletRequestRecord {
    /// Name of the CertificateSigningRequest.
    pub object: String,
    /// The entry of the certificate table by which the signer received the request.
    pub name: CertName,
    /// State of the exchange with the signer.
    pub exchange: RequestRecord,
    /// The verified chain in PEM, until it is in the status of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
}

impl NodeRoot {
    /// Returns the record of the request with this UID, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::NewerFormat`] for a record that cannot be read, and errors of the system.
    pub fn kubelet_request(&self, uid: &str) -> Result<Option<KubeletRequestRecord>, StoreError> {
        let name = self.record_name(uid)?;
        let Some(dir) = self.dir(kubelets())? else {
            return Ok(None);
        };
        match dir.read(&name, READ_LIMIT)? {
            Some(found) => RECORD.parse(&found.bytes, dir.path().join(name)).map(Some),
            None => Ok(None),
        }
    }

    /// Writes the record durably.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn keep_kubelet_request(
        &self,
        uid: &str,
        record: &KubeletRequestRecord,
    ) -> Result<(), StoreError> {
        let name = self.record_name(uid)?;
        self.create_dir(STATE_DIR, 0o700)?;
        let dir = self.create_dir(kubelets(), 0o700)?;
        dir.write_atomic(name, &RECORD.to_json(record), 0o600)
            .map(drop)
    }

    /// Removes the record; a missing one is not an error.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn forget_kubelet_request(&self, uid: &str) -> Result<(), StoreError> {
        let name = self.record_name(uid)?;
        match self.dir(kubelets())? {
            Some(dir) => dir.remove(name).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the UIDs with a record.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn kubelet_requests(&self) -> Result<Vec<String>, StoreError> {
        let Some(dir) = self.dir(kubelets())? else {
            return Ok(Vec::new());
        };
        let names = dir.list()?.into_iter();
        let uids = names.filter_map(|name| {
            let uid = name.to_str()?.strip_suffix(".json")?;
            is_uid(uid).then(|| uid.to_owned())
        });
        Ok(uids.collect())
    }

    /// Returns the file name of a record. A UID comes from the API server and must not lead out of the directory.
    fn record_name(&self, uid: &str) -> Result<String, StoreError> {
        if is_uid(uid) {
            Ok(format!("{uid}.json"))
        } else {
            Err(StoreError::Implausible {
                path: self.on_this_machine(kubelets()),
                why: format!("{uid:?} is not the UID of an object"),
            })
        }
    }
}

fn kubelets() -> PathBuf {
    Path::new(STATE_DIR).join(KUBELETS)
}

fn is_uid(uid: &str) -> bool {
    (1..=MAX_UID_LENGTH).contains(&uid.len())
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(object: &str) -> KubeletRequestRecord {
        KubeletRequestRecord {
            object: object.to_owned(),
            name: CertName::KubeletServing,
            exchange: RequestRecord::ready("id", "corp", "directory", "directory:/drop"),
            chain: Some("PEM".to_owned()),
        }
    }

    #[test]
    fn keeps_and_forgets_requests_by_uid() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        assert_eq!(root.kubelet_requests().unwrap(), Vec::<String>::new());
        assert_eq!(root.kubelet_request("6f1c-1").unwrap(), None);
        root.forget_kubelet_request("6f1c-1").unwrap();
        root.keep_kubelet_request("6f1c-1", &record("csr-a"))
            .unwrap();
        root.keep_kubelet_request("6f1c-1", &record("csr-b"))
            .unwrap();
        assert_eq!(
            root.kubelet_request("6f1c-1").unwrap(),
            Some(record("csr-b"))
        );
        assert_eq!(root.kubelet_requests().unwrap(), ["6f1c-1"]);
        root.forget_kubelet_request("6f1c-1").unwrap();
        assert_eq!(root.kubelet_request("6f1c-1").unwrap(), None);
    }

    #[test]
    fn refuses_uid_that_leaves_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        for uid in ["", "../lock", "a/b", ".", "a.json", &"a".repeat(65)] {
            let kept = root.keep_kubelet_request(uid, &record("csr"));
            assert!(kept.is_err(), "{uid}");
        }
        assert!(root.dir(STATE_DIR).unwrap().is_none());
    }
}
