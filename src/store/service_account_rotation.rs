//! The private keys of a change of the service-account key in the whole cluster: `sealing-key.json`, with which other nodes
//! encrypt for this one, and `service-account-keys.json`, the keys of the rotation until its end.
//!
//! Only the daemon and `nodepki authority rotate sa` write them, without the lock of a run: each file is replaced
//! atomically, and no commit contains it.

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::error::StoreError;
use super::restarts::secret;
use super::state_file::StateFile;
use super::{NodeRoot, STATE_DIR};

/// Upper bound for the size in bytes of a file: two RSA keys of 16384 bits, twice in base64.
const CAPACITY: usize = 64 * 1024;

pub(super) const SEALING_KEY: StateFile = StateFile::of_knowledge("sealing-key.json", 1);
pub(super) const SERVICE_ACCOUNT_KEYS: StateFile =
    StateFile::of_work("service-account-keys.json", 1);

/// The key pair with which other nodes encrypt for this one.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealingKeyRecord {
    /// Public key in base64, as other nodes read it.
    pub public: String,
    /// Private key.
    #[serde(with = "secret")]
    pub private: Zeroizing<Vec<u8>>,
}

/// The private keys of a rotation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccountKeys {
    /// Id of the rotation.
    pub rotation: String,
    /// The old and the new key, in PEM.
    #[serde(with = "secret")]
    pub keys: Zeroizing<Vec<u8>>,
}

impl NodeRoot {
    /// Returns the key pair with which other nodes encrypt for this one; `None` if there is none yet.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::NewerFormat`] for a record that cannot be read, and errors of the system.
    pub fn sealing_key(&self) -> Result<Option<SealingKeyRecord>, StoreError> {
        self.record(&SEALING_KEY)
    }

    /// Writes the key pair durably.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn keep_sealing_key(&self, record: &SealingKeyRecord) -> Result<(), StoreError> {
        self.keep_secret(&SEALING_KEY, record)
    }

    /// Returns the private keys of the last rotation; `None` if it has ended here.
    ///
    /// # Errors
    /// As of [`NodeRoot::sealing_key`].
    pub fn service_account_keys(&self) -> Result<Option<ServiceAccountKeys>, StoreError> {
        self.record(&SERVICE_ACCOUNT_KEYS)
    }

    /// Writes the private keys of a rotation durably.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn keep_service_account_keys(&self, record: &ServiceAccountKeys) -> Result<(), StoreError> {
        self.keep_secret(&SERVICE_ACCOUNT_KEYS, record)
    }

    /// Removes the private keys of a rotation; a missing file is not an error.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn forget_service_account_keys(&self) -> Result<(), StoreError> {
        match self.dir(STATE_DIR)? {
            Some(dir) => dir.remove(SERVICE_ACCOUNT_KEYS.name).map(drop),
            None => Ok(()),
        }
    }

    fn keep_secret<T: Serialize>(&self, file: &StateFile, record: &T) -> Result<(), StoreError> {
        self.keep_record(file, &file.to_secret_json(record, CAPACITY))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keeps_private_keys_of_rotation_unreadable_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        assert!(root.service_account_keys().unwrap().is_none());
        root.forget_service_account_keys().unwrap();
        let record = ServiceAccountKeys {
            rotation: "1".to_owned(),
            keys: b"secret".to_vec().into(),
        };
        root.keep_service_account_keys(&record).unwrap();
        assert!(root.service_account_keys().unwrap() == Some(record));
        let file = dir
            .path()
            .join(&STATE_DIR[1..])
            .join(SERVICE_ACCOUNT_KEYS.name);
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        root.forget_service_account_keys().unwrap();
        assert!(!file.exists());

        let pair = SealingKeyRecord {
            public: "public".to_owned(),
            private: b"secret".to_vec().into(),
        };
        assert!(root.sealing_key().unwrap().is_none());
        root.keep_sealing_key(&pair).unwrap();
        assert!(root.sealing_key().unwrap() == Some(pair));
    }
}
