//! Encrypts the private keys of a service-account rotation for one node: HPKE (RFC 9180), base mode, single shot.
//!
//! Every node has a key pair, and publishes the public half in its proof. The ciphertext is bound to the node's name, the
//! rotation and its two public keys, so it cannot be used in another place. It proves nothing about its sender: the
//! reader compares the keys with the public ones of the rotation.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256;
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke, HpkePrivateKey, HpkePublicKey};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::agent::Failure;
use crate::spec::authority_rotation::AuthorityRotation;
use crate::store::{NodeRoot, SealingKeyRecord};

/// Purpose of the key exchange, RFC 9180 section 8.1.
const INFO: &[u8] = b"nodepki service-account rotation 1";

fn suite() -> &'static dyn Hpke {
    DH_KEM_X25519_HKDF_SHA256_AES_256
}

/// The private keys of a rotation, encrypted for one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SealedKeys {
    /// Public key of the node, as in its proof.
    pub(super) recipient: String,
    /// Public key of the exchange, in base64 (`enc` of RFC 9180).
    encapsulated: String,
    /// In base64.
    ciphertext: String,
}

/// Returns the public key with which others encrypt for this node. It is created when it is needed first.
pub(super) fn sealing_key(root: &NodeRoot) -> Result<String, Failure> {
    if let Some(record) = root.sealing_key()? {
        return Ok(record.public);
    }
    let record = generate()?;
    root.keep_sealing_key(&record)?;
    Ok(record.public)
}

fn generate() -> Result<SealingKeyRecord, Failure> {
    let (public, private) = suite().generate_key_pair().map_err(|error| {
        Failure::pending("the key pair with which others encrypt for this node cannot be generated")
            .caused_by(error)
            .advise("run the same command again")
    })?;
    Ok(SealingKeyRecord {
        public: BASE64_STANDARD.encode(public.0),
        private: Zeroizing::new(private.secret_bytes().to_vec()),
    })
}

/// Returns what a ciphertext is bound to.
fn binding(rotation: &AuthorityRotation, node: &str) -> Vec<u8> {
    let parts = [
        node,
        &rotation.id,
        &rotation.old.sha256,
        &rotation.new.sha256,
    ];
    serde_json::to_vec(&parts).unwrap_or_default()
}

/// Encrypts for a node with this public key.
///
/// # Errors
/// The public key is not valid, in a clause.
pub(super) fn seal(
    recipient: &str,
    rotation: &AuthorityRotation,
    node: &str,
    keys: &[u8],
) -> Result<SealedKeys, String> {
    let public = BASE64_STANDARD
        .decode(recipient)
        .map_err(|_| "its sealing key is not base64".to_owned())?;
    let sealed = suite().seal(INFO, &binding(rotation, node), keys, &HpkePublicKey(public));
    let (encapsulated, ciphertext) =
        sealed.map_err(|error| format!("its sealing key is not valid ({error})"))?;
    Ok(SealedKeys {
        recipient: recipient.to_owned(),
        encapsulated: BASE64_STANDARD.encode(encapsulated.0),
        ciphertext: BASE64_STANDARD.encode(ciphertext),
    })
}

/// Decrypts what was encrypted for this node.
///
/// # Errors
/// It was encrypted for another node, key or rotation, or was changed, in a clause.
pub(super) fn open(
    own: &SealingKeyRecord,
    rotation: &AuthorityRotation,
    node: &str,
    sealed: &SealedKeys,
) -> Result<Zeroizing<Vec<u8>>, String> {
    let decode = |text: &str| BASE64_STANDARD.decode(text).ok();
    let parts = decode(&sealed.encapsulated).zip(decode(&sealed.ciphertext));
    let (encapsulated, ciphertext) = parts.ok_or("it is not base64")?;
    let private = HpkePrivateKey::from(own.private.to_vec());
    let opened = suite().open(
        &EncapsulatedSecret(encapsulated),
        INFO,
        &binding(rotation, node),
        &ciphertext,
        &private,
    );
    opened.map(Zeroizing::new).map_err(|error| {
        format!("it was not encrypted for this node and rotation, or was changed ({error})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::authority::service_account::tests::rotation;

    #[test]
    fn opens_only_what_was_sealed_for_this_node_key_and_rotation() {
        let own = generate().unwrap();
        let (rotation, _) = rotation();
        let sealed = seal(&own.public, &rotation, "cp1", b"secret").unwrap();
        assert!(!format!("{sealed:?}").contains("secret"));
        let json = serde_json::to_string(&sealed).unwrap();
        let sealed: SealedKeys = serde_json::from_str(&json).unwrap();
        let opened = open(&own, &rotation, "cp1", &sealed).unwrap();
        assert_eq!(opened.as_slice(), b"secret");

        let refused = open(&own, &rotation, "cp2", &sealed).unwrap_err();
        assert!(refused.starts_with("it was not encrypted for this node and rotation"));
        assert!(open(&generate().unwrap(), &rotation, "cp1", &sealed).is_err());
        let other = AuthorityRotation {
            id: "2".to_owned(),
            ..rotation.clone()
        };
        assert!(open(&own, &other, "cp1", &sealed).is_err());
        let changed = SealedKeys {
            ciphertext: BASE64_STANDARD.encode([0; 32]),
            ..sealed.clone()
        };
        assert!(open(&own, &rotation, "cp1", &changed).is_err());
        let damaged = SealedKeys {
            ciphertext: "%".to_owned(),
            ..sealed
        };
        let refused = open(&own, &rotation, "cp1", &damaged).unwrap_err();
        assert_eq!(refused, "it is not base64");
    }

    #[test]
    fn refuses_public_key_that_is_not_valid() {
        let (rotation, _) = rotation();
        let refused = |key: &str| seal(key, &rotation, "cp1", b"secret").unwrap_err();
        assert_eq!(refused("%"), "its sealing key is not base64");
        assert!(refused("YQ==").starts_with("its sealing key is not valid"));
    }

    #[test]
    fn creates_sealing_key_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let first = sealing_key(&root).unwrap();
        assert_eq!(sealing_key(&root).unwrap(), first);
    }
}
