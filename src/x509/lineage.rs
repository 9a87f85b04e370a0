//! Determines the CA of a chain by names and signatures alone.
//!
//! Validity, usages, constraints and path lengths are ignored: an expired certificate still belongs to the CA that signed
//! it. [`path_differences`](super::path_differences) decides whether a chain may be used.

use super::certificate::Certificate;
use super::chain::Chain;

/// Largest number of intermediates that are followed; no Kubernetes component accepts a longer path.
const MAX_INTERMEDIATES: usize = 8;

/// Returns true if signatures lead from the leaf of `chain` to one of `anchors`.
///
/// The cryptography library does not verify signatures with MD5 or SHA-1; for these, the issuer's name decides.
pub fn descends_from(chain: &Chain, anchors: &[Certificate]) -> bool {
    let mut rest: Vec<&Certificate> = chain
        .intermediates()
        .iter()
        .take(MAX_INTERMEDIATES)
        .collect();
    let mut current = chain.leaf();
    for _ in 0..=MAX_INTERMEDIATES {
        if anchors.iter().any(|anchor| issued(anchor, current)) {
            return true;
        }
        let next = rest.iter().position(|issuer| issued(issuer, current));
        match next {
            Some(position) => current = rest.remove(position),
            None => return false,
        }
    }
    false
}

fn issued(issuer: &Certificate, certificate: &Certificate) -> bool {
    match certificate.weak_signature() {
        Some(_) => certificate.names_issuer(issuer),
        None => certificate.is_signed_by(issuer),
    }
}

/// Returns true if both are certificates of one CA: the same name and the same key.
pub fn is_same_authority(one: &Certificate, other: &Certificate) -> bool {
    one.subject() == other.subject() && one.public_key() == other.public_key()
}
