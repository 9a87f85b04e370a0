//! The format of a backup: text with one `ENCRYPTED PRIVATE KEY` block for each CA key, all under one passphrase.
//!
//! Pure. The text before each block names the authority and the OpenSSL command that decrypts the key. Only the blocks
//! are read back; a key is matched to its authority by the public key.

use std::fmt;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::kube::names::Authority;
use crate::signer::NodeIdentity;
use crate::text::{hex, rfc3339};
use crate::x509::{KeyError, PrivateKey};

/// Minimum number of characters. Shorter passphrases can be found by trial.
const MIN_CHARACTERS: usize = 16;
/// Maximum number of bytes, the limit of `openssl -passin`.
const MAX_BYTES: usize = 1000;

/// Passphrase that encrypts the keys.
#[derive(Clone)]
pub(in crate::commands) struct Passphrase(Zeroizing<Vec<u8>>);

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase(redacted)")
    }
}

/// Why a text is not a passphrase. Never contains the text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::commands) enum BadPassphrase {
    #[error("it contains more than one line")]
    Lines,
    #[error("it contains a NUL character")]
    Nul,
    #[error("it has {0} characters, but at least {MIN_CHARACTERS} are needed")]
    Short(usize),
    #[error("it has {0} bytes, but OpenSSL reads at most {MAX_BYTES}")]
    Long(usize),
}

impl Passphrase {
    /// Reads a passphrase as `openssl -passin file:` does: the first line without its end.
    pub(in crate::commands) fn from_file(contents: &[u8]) -> Result<Self, BadPassphrase> {
        let line = contents.strip_suffix(b"\n").unwrap_or(contents);
        if line.contains(&b'\n') || line.contains(&b'\r') {
            return Err(BadPassphrase::Lines);
        }
        if line.contains(&0) {
            return Err(BadPassphrase::Nul);
        }
        let characters = String::from_utf8_lossy(line).chars().count();
        match line.len() {
            _ if characters < MIN_CHARACTERS => Err(BadPassphrase::Short(characters)),
            bytes if bytes > MAX_BYTES => Err(BadPassphrase::Long(bytes)),
            _ => Ok(Passphrase(Zeroizing::new(line.to_vec()))),
        }
    }
}

/// Place from which the keys of a backup were removed.
pub(in crate::commands) enum BackupOrigin<'a> {
    /// A node's disk.
    Node(&'a NodeIdentity),
    /// The Secrets of a workload cluster in a management cluster.
    Secrets {
        cluster: &'a str,
        namespace: &'a str,
    },
}

impl BackupOrigin<'_> {
    const fn cluster(&self) -> &str {
        match self {
            BackupOrigin::Node(identity) => identity.cluster.as_str(),
            BackupOrigin::Secrets { cluster, .. } => cluster,
        }
    }

    /// Returns the place, and the command that restores the keys there.
    fn place_and_restore(&self) -> (String, String) {
        match self {
            BackupOrigin::Node(identity) => (
                format!("node {}", identity.node),
                "nodepki migrate to-internal".to_owned(),
            ),
            BackupOrigin::Secrets { cluster, namespace } => (
                format!("the Secrets in namespace {namespace} of the management cluster"),
                format!(
                    "nodepki capi migrate to-internal {cluster} --namespace {namespace} --kubeconfig FILE"
                ),
            ),
        }
    }
}

/// Returns the text of a backup.
pub(super) fn seal<'a>(
    keys: impl IntoIterator<Item = (Authority, &'a PrivateKey)>,
    origin: &BackupOrigin<'_>,
    now: OffsetDateTime,
    passphrase: &Passphrase,
) -> Result<String, KeyError> {
    let (place, restore) = origin.place_and_restore();
    let mut text = format!(
        "CA private keys of cluster {}, removed from {place} by nodepki at {}.\n\
         Each is PKCS#8, encrypted under one passphrase with PBES2: PBKDF2-HMAC-SHA256, AES-256-CBC.\n\
         To restore them:  {restore} --backup THIS --passphrase-file FILE --apply\n\
         Without nodepki:  sed -n '/^authority ca$/,/^--*END/p' THIS | openssl pkey -passin file:FILE -out ca.key\n",
        origin.cluster(),
        rfc3339(now)
    );
    for (authority, key) in keys {
        text.push_str(&format!(
            "\nauthority {authority}\npublic key sha256:{}\n{}",
            hex(&key.public_key().sha256()),
            key.to_encrypted_pem(&passphrase.0)?
        ));
    }
    Ok(text)
}

/// Returns the keys of a backup, or of any text with encrypted keys.
pub(super) fn open(text: &[u8], passphrase: &Passphrase) -> Result<Vec<PrivateKey>, KeyError> {
    let keys = PrivateKey::all_from_encrypted_pem(text, &passphrase.0)?;
    if keys.is_empty() {
        Err(KeyError::NoKey)
    } else {
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::KeyAlgorithm;
    use time::macros::datetime;

    #[test]
    fn restores_keys_from_sealed_text_only() {
        let keys = [KeyAlgorithm::EcdsaP256, KeyAlgorithm::EcdsaP384]
            .map(|algorithm| PrivateKey::generate(algorithm).unwrap());
        let origin = NodeIdentity {
            node: "cp1".to_owned(),
            cluster: "prod".to_owned(),
        };
        let passphrase = Passphrase::from_file(b"sixteen letters!\n").unwrap();
        let named = [Authority::Ca, Authority::EtcdCa].into_iter().zip(&keys);
        let text = seal(
            named,
            &BackupOrigin::Node(&origin),
            datetime!(2026-03-04 05:06:07 UTC),
            &passphrase,
        )
        .unwrap();
        assert!(text.starts_with(
            "CA private keys of cluster prod, removed from node cp1 by nodepki at 2026-03-04T05:06:07Z."
        ));
        assert!(text.contains("\nauthority etcd-ca\n"));
        let again = open(text.as_bytes(), &passphrase).unwrap();
        for (key, again) in keys.iter().zip(&again) {
            assert_eq!(key.to_pem(), again.to_pem());
        }
        assert_eq!(again.len(), 2);
        assert!(matches!(open(b"text", &passphrase), Err(KeyError::NoKey)));
        assert_eq!(format!("{passphrase:?}"), "Passphrase(redacted)");
    }

    #[test]
    fn reads_passphrase_as_openssl_does() {
        let read =
            |text: &[u8]| Passphrase::from_file(text).map(|passphrase| passphrase.0.to_vec());
        assert_eq!(read(b"sixteen letters!").unwrap(), b"sixteen letters!");
        assert_eq!(read(b" sixteen letter \n").unwrap(), b" sixteen letter ");
        assert_eq!(read(b""), Err(BadPassphrase::Short(0)));
        assert_eq!(
            read("ÄÖÜÄÖÜÄÖÜÄÖÜÄÖÜ".as_bytes()),
            Err(BadPassphrase::Short(15))
        );
        assert_eq!(
            read(b"sixteen letters!\nand more\n"),
            Err(BadPassphrase::Lines)
        );
        assert_eq!(read(b"sixteen letters!\r\n"), Err(BadPassphrase::Lines));
        assert_eq!(read(b"sixteen\0letters!"), Err(BadPassphrase::Nul));
        assert_eq!(read(&[b'x'; 1000]).unwrap().len(), 1000);
        assert_eq!(
            read(&[b'x'; 1001]).unwrap_err().to_string(),
            "it has 1001 bytes, but OpenSSL reads at most 1000"
        );
    }
}
