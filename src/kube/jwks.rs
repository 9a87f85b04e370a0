//! The key set in which a cluster publishes its service-account keys (RFC 7517, 5; `/openid/v1/jwks`).
//!
//! Pure: the caller fetches the document. This module determines whether the cluster accepts the tokens of a key.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::x509::PublicKey;

/// Path of the key set on an API server.
pub const JWKS_PATH: &str = "/openid/v1/jwks";

/// The reason why a document is not a key set.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum JwksError {
    #[error("it is not a key set: it has no list `keys`")]
    NotAKeySet,
    #[error("key {0} of the set is not a JSON object")]
    NotAKey(usize),
}

/// Returns the id under which kube-apiserver publishes a key: the SHA-256 of its `SubjectPublicKeyInfo` in unpadded base64url
/// (pkg/serviceaccount, `keyIDFromPublicKey`).
pub(crate) fn key_id(key: &PublicKey) -> String {
    URL_SAFE_NO_PAD.encode(key.sha256())
}

/// Returns true if the set contains this key, by its parameters. An id alone proves nothing, and a set that another server
/// publishes for the cluster (`--service-account-jwks-uri`) may use other ids than kube-apiserver.
///
/// # Errors
/// A document that is not a key set.
pub fn contains_key(jwks: &Value, key: &PublicKey) -> Result<bool, JwksError> {
    let members = key.jwk_members();
    let mut known = false;
    for (place, entry) in entries(jwks)?.iter().enumerate() {
        let entry = entry.as_object().ok_or(JwksError::NotAKey(place + 1))?;
        let has = |name: &str, value: &str| entry.get(name).and_then(Value::as_str) == Some(value);
        known |= members
            .as_ref()
            .is_some_and(|members| members.iter().all(|(name, value)| has(name, value)));
    }
    Ok(known)
}

/// Returns the ids in the set, for messages.
pub(crate) fn key_ids(jwks: &Value) -> Result<Vec<&str>, JwksError> {
    Ok(entries(jwks)?
        .iter()
        .filter_map(|entry| entry.get("kid")?.as_str())
        .collect())
}

fn entries(jwks: &Value) -> Result<&Vec<Value>, JwksError> {
    jwks.get("keys")
        .and_then(Value::as_array)
        .ok_or(JwksError::NotAKeySet)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RSA: &str = "\
-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAm7GpXhlpbCFAdm29z0cg
mTD7rU14L/CSjkhhnie2su5UB3ouujlfe1lBjeKiIMp/utAg++CTeNbfgjqjb4d3
qQtqK705wBbnwDS0ZEH6JafhlUXWdx4QDcqEyy03/EN9VVjuNlY5ex88EUb+rooH
OAVlsYVYI3ygxGzVIk9fsBivSMaI9cKVJR0ohJll8aVpqYOWTxBULhB9EFVYyfcp
DXig4SJqsmg1+HHYq2dic48VPltv1fC4ul91G+P+ZEabdjLEGjy4eY02/O7ff3dQ
s2wT26OT9MBKwZaFTsgGNUnE3GLPyryPS/IqJzHphFsk1OKfTCjXC4D70LwRutGF
IwIDAQAB
-----END PUBLIC KEY-----
";

    /// `openssl pkey -pubin -outform DER | openssl dgst -sha256 -binary | basenc --base64url`
    const RSA_ID: &str = "mNRbySKX8VrqcEAcupoRaJjtDaXuTx-Kc-Hmf3_PRpI";

    /// `openssl rsa -pubin -modulus`, in base64url.
    const RSA_MODULUS: &str = "m7GpXhlpbCFAdm29z0cgmTD7rU14L_CSjkhhnie2su5UB3ouujlfe1lBjeKiIMp_utAg--CTeNbfgjqjb4d3qQtqK705wBbnwDS0ZEH6JafhlUXWdx4QDcqEyy03_EN9VVjuNlY5ex88EUb-rooHOAVlsYVYI3ygxGzVIk9fsBivSMaI9cKVJR0ohJll8aVpqYOWTxBULhB9EFVYyfcpDXig4SJqsmg1-HHYq2dic48VPltv1fC4ul91G-P-ZEabdjLEGjy4eY02_O7ff3dQs2wT26OT9MBKwZaFTsgGNUnE3GLPyryPS_IqJzHphFsk1OKfTCjXC4D70LwRutGFIw";

    const EC: &str = "\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEBt9TX8SPbjF+sOdDzkfILRfxgxfl
TpMWFd9ksfgjo3aPcbrbYLdi1u4+CMnygh7fJwSFY2j0WeQaohtyLOxtUQ==
-----END PUBLIC KEY-----
";

    fn key(pem: &str) -> PublicKey {
        PublicKey::from_pem(pem.as_bytes()).unwrap()
    }

    #[test]
    fn finds_key_by_parameters_and_not_by_id() {
        let rsa = |id: &str, modulus: &str| json!({"use": "sig", "kty": "RSA", "kid": id, "alg": "RS256", "n": modulus, "e": "AQAB"});
        let (own, other) = (rsa(RSA_ID, RSA_MODULUS), rsa("other", "AQAB"));
        for (keys, known) in [
            (json!([own]), true),
            (json!([other, own]), true),
            (json!([own, other]), true),
            (json!([rsa(RSA_ID, "AQAB")]), false),
            (json!([{"kid": RSA_ID}]), false),
            (json!([{"kid": RSA_ID}, own]), true),
            (json!([rsa("of another server", RSA_MODULUS)]), true),
            (json!([{"kty": "RSA", "n": RSA_MODULUS, "e": "Aw"}]), false),
            (json!([other]), false),
            (json!([{}]), false),
            (json!([]), false),
        ] {
            let jwks = json!({ "keys": keys });
            assert_eq!(contains_key(&jwks, &key(RSA)), Ok(known), "{jwks}");
            assert_eq!(contains_key(&jwks, &key(EC)), Ok(false), "{jwks}");
        }
        let not_an_object = contains_key(&json!({"keys": [own, 1]}), &key(EC)).unwrap_err();
        assert_eq!(
            not_an_object.to_string(),
            "key 2 of the set is not a JSON object"
        );
        assert_eq!(key_id(&key(RSA)), RSA_ID);
        let jwks = json!({"keys": [other, {}, own]});
        assert_eq!(key_ids(&jwks), Ok(vec!["other", RSA_ID]));
    }

    #[test]
    fn reports_document_that_is_not_a_key_set() {
        let key = key(EC);
        for document in [json!({}), json!([]), json!({"keys": {}}), json!(null)] {
            assert_eq!(contains_key(&document, &key), Err(JwksError::NotAKeySet));
        }
        let odd = json!({"keys": [{}, "key"]});
        assert_eq!(contains_key(&odd, &key), Err(JwksError::NotAKey(2)));
    }
}
