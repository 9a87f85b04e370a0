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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::OffsetDateTime;

    use super::*;
    use crate::x509::{
        CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Subject,
    };

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn authority(name: &str) -> CertificateAuthority {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let now = OffsetDateTime::UNIX_EPOCH;
        CertificateAuthority::self_signed(name, key, now, DAY).unwrap()
    }

    #[test]
    fn signature_decides_between_authorities_of_one_name() {
        let (own, namesake) = (authority("kubernetes"), authority("kubernetes"));
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let profile =
            Profile::of_tests(Subject::new("leaf", &[]), &[ExtendedUsage::ClientAuth], DAY);
        let now = OffsetDateTime::UNIX_EPOCH;
        let leaf = own.issue(key.public_key(), &profile, now).unwrap();
        let chain = Chain::from_pem(leaf.to_pem().as_bytes()).unwrap();
        let [own, namesake] = [&own, &namesake].map(|one| one.bundle().first().clone());
        assert!(descends_from(&chain, std::slice::from_ref(&own)));
        assert!(!descends_from(&chain, std::slice::from_ref(&namesake)));
        assert!(descends_from(&chain, &[namesake, own]));
        assert!(!descends_from(&chain, &[]));
    }

    #[test]
    fn authority_is_the_same_by_name_and_key() {
        let same_key = |name: &str, key: &PrivateKey| {
            let key = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
            let now = OffsetDateTime::UNIX_EPOCH;
            let authority = CertificateAuthority::self_signed(name, key, now, DAY).unwrap();
            authority.bundle().first().clone()
        };
        let [one, other] = [(); 2].map(|()| PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap());
        let certificate = same_key("kubernetes", &one);
        assert!(is_same_authority(
            &certificate,
            &same_key("kubernetes", &one)
        ));
        assert!(!is_same_authority(&certificate, &same_key("etcd-ca", &one)));
        assert!(!is_same_authority(
            &certificate,
            &same_key("kubernetes", &other)
        ));
    }
}
