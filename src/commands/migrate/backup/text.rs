//! The backup of CA keys: text with one `ENCRYPTED PRIVATE KEY` for each, all under one passphrase.
//!
//! Pure. The text in front of each block says whose key it is and how a person with OpenSSL alone gets it out; what
//! counts is the block, and whose key it holds is seen by its public key.

use std::fmt;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::kube::names::Authority;
use crate::signer::Identity;
use crate::x509::{KeyError, PrivateKey, hex, rfc3339};

/// Shorter ones can be tried out by whoever finds the file.
const SHORTEST: usize = 16;
/// What `openssl -passin` takes.
const LONGEST: usize = 1000;

/// What the keys are encrypted under.
#[derive(Clone)]
pub struct Passphrase(Zeroizing<Vec<u8>>);

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase(redacted)")
    }
}

/// Why a text is no passphrase. Never carries it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum BadPassphrase {
    #[error("holds more than one line")]
    Lines,
    #[error("holds a NUL character")]
    Nul,
    #[error("holds {0} characters, which could be guessed; at least {SHORTEST} are needed")]
    Short(usize),
    #[error("holds {0} bytes, more than the {LONGEST} that OpenSSL reads")]
    Long(usize),
}

impl Passphrase {
    /// As `openssl -passin file:` reads it: the first line, without its end.
    pub fn from_file(contents: &[u8]) -> Result<Self, BadPassphrase> {
        let line = contents.strip_suffix(b"\n").unwrap_or(contents);
        if line.contains(&b'\n') || line.contains(&b'\r') {
            return Err(BadPassphrase::Lines);
        }
        if line.contains(&0) {
            return Err(BadPassphrase::Nul);
        }
        let characters = String::from_utf8_lossy(line).chars().count();
        match line.len() {
            _ if characters < SHORTEST => Err(BadPassphrase::Short(characters)),
            bytes if bytes > LONGEST => Err(BadPassphrase::Long(bytes)),
            _ => Ok(Passphrase(Zeroizing::new(line.to_vec()))),
        }
    }
}

/// The text of a backup.
///
/// # Errors
/// Random generator or encryption failed.
pub(super) fn seal<'a>(
    keys: impl IntoIterator<Item = (Authority, &'a PrivateKey)>,
    origin: &Identity,
    now: OffsetDateTime,
    passphrase: &Passphrase,
) -> Result<String, KeyError> {
    let mut text = format!(
        "CA private keys of cluster {}, taken off node {} by nodepki at {}.\n\
         Each is PKCS#8, encrypted under one passphrase with PBES2: PBKDF2-HMAC-SHA256, AES-256-CBC.\n\
         Back onto a node: nodepki migrate to-internal --backup THIS --passphrase-file FILE --apply\n\
         Without nodepki:  sed -n '/^authority ca$/,/^--*END/p' THIS | openssl pkey -passin file:FILE -out ca.key\n",
        origin.cluster,
        origin.node,
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

/// The keys of a backup, or of any text with encrypted keys.
///
/// # Errors
/// None there, another passphrase, or damage.
pub(super) fn open(text: &[u8], passphrase: &Passphrase) -> Result<Vec<PrivateKey>, KeyError> {
    let keys = PrivateKey::all_from_encrypted_pem(text, &passphrase.0)?;
    match keys.is_empty() {
        true => Err(KeyError::NoKey),
        false => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::KeyAlgorithm;
    use time::macros::datetime;

    #[test]
    fn a_backup_gives_its_keys_back_and_shows_none() {
        let keys = [KeyAlgorithm::EcdsaP256, KeyAlgorithm::EcdsaP384]
            .map(|algorithm| PrivateKey::generate(algorithm).unwrap());
        let origin = Identity {
            node: "cp1".to_owned(),
            cluster: "prod".to_owned(),
        };
        let passphrase = Passphrase::from_file(b"sixteen letters!\n").unwrap();
        let named = [Authority::Ca, Authority::EtcdCa].into_iter().zip(&keys);
        let text = seal(
            named,
            &origin,
            datetime!(2026-03-04 05:06:07 UTC),
            &passphrase,
        )
        .unwrap();
        assert!(text.starts_with(
            "CA private keys of cluster prod, taken off node cp1 by nodepki at 2026-03-04T05:06:07Z."
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
    fn a_passphrase_is_what_openssl_reads() {
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
        assert_eq!(read(&[b'x'; 1001]), Err(BadPassphrase::Long(1001)));
    }
}
