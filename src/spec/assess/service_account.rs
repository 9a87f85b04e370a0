//! Finds the private key of `sa.pub` in another file than `sa.key`. Pure.

use crate::text::quoted;
use crate::x509::PublicKey;

/// The private key of `sa.pub` in the key file of a certificate, with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} contains the private key that belongs to sa.pub")]
pub struct MisplacedKey {
    /// The key file of the certificate on this machine.
    pub path: String,
    /// `sa.key` on this machine.
    pub private: String,
    /// `sa.key` does not exist or is empty.
    pub is_alone: bool,
}

impl MisplacedKey {
    /// Returns the commands that move the key to `sa.key`; a key in `sa.key` takes its place.
    pub fn fix(&self) -> String {
        let (path, private) = (quoted(&self.path), quoted(&self.private));
        if self.is_alone {
            format!("move it (`mv {path} {private}`)")
        } else {
            format!(
                "exchange both files (`mv {private} {private}.old && mv {path} {private} && mv {private}.old {path}`)"
            )
        }
    }
}

/// The key file of a certificate.
pub struct KeyFile<'a, F> {
    /// The file, as the caller names it.
    pub file: F,
    /// Its key.
    pub key: &'a PublicKey,
    /// The key in the certificate, if it is readable.
    pub certified: Option<&'a PublicKey>,
}

/// Returns the files with a private key of `sa.pub`, if `sa.key` contains another key, `own`, or none. A key that a
/// certificate has is no such key: `sa.pub` may have been derived from the wrong file.
pub fn misplaced_service_account_keys<F: Copy>(
    public: &[PublicKey],
    own: Option<&PublicKey>,
    files: &[KeyFile<'_, F>],
) -> Vec<F> {
    if own.is_some_and(|own| public.contains(own)) {
        return Vec::new();
    }
    let is_certified = |key: &PublicKey| files.iter().any(|one| one.certified == Some(key));
    let misplaced = files
        .iter()
        .filter(|one| public.contains(one.key) && !is_certified(one.key));
    misplaced.map(|one| one.file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::{KeyAlgorithm, PrivateKey};

    #[test]
    fn finds_key_that_is_neither_in_its_file_nor_certified() {
        let keys: Vec<PrivateKey> = (0..3)
            .map(|_| PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap())
            .collect();
        let [sa, leaf, other] = [0, 1, 2].map(|number: usize| keys[number].public_key());
        let file = |key, certified| KeyFile {
            file: "apiserver.key",
            key,
            certified,
        };
        let public = [sa.clone(), other.clone()];
        for (own, key, certified, is_found) in [
            (Some(leaf), sa, Some(leaf), true),
            (None, sa, None, true),
            // The old key of a pair that is being replaced.
            (None, other, None, true),
            (Some(other), sa, Some(leaf), false),
            (None, sa, Some(sa), false),
            (None, leaf, None, false),
        ] {
            let found = misplaced_service_account_keys(&public, own, &[file(key, certified)]);
            assert_eq!(!found.is_empty(), is_found, "{own:?} {key:?} {certified:?}");
        }
        let several = [sa, leaf, other, sa].map(|key| file(key, None));
        let found = misplaced_service_account_keys(&public, None, &several);
        assert_eq!(found.len(), 3);
    }
}
