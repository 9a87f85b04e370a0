//! Which CA a chain belongs to, by names and signatures alone.
//!
//! Validity, usages, constraints and path lengths do not count here: an expired certificate still belongs to the CA that
//! signed it. Whether a chain may be used is decided by [`path_differences`](super::path_differences).

use super::certificate::Certificate;
use super::chain::Chain;
use super::verify::signed_by;

/// Longest path that is followed; longer ones are not served by any Kubernetes component.
const MAX_PATH: usize = 8;

/// Returns true if signatures lead from the leaf of `chain` to one of `anchors`.
///
/// A signature with MD5 or SHA-1 is not verified by the crypto library: there the issuer's name decides.
pub fn descends_from(chain: &Chain, anchors: &[Certificate]) -> bool {
    let mut rest: Vec<&Certificate> = chain.intermediates().iter().take(MAX_PATH).collect();
    let mut current = chain.leaf();
    for _ in 0..=MAX_PATH {
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
        None => signed_by(certificate, issuer),
    }
}

/// Returns true if both are certificates of one CA: the same name and the same key.
pub fn is_same_authority(one: &Certificate, other: &Certificate) -> bool {
    one.subject() == other.subject() && one.public_key() == other.public_key()
}
