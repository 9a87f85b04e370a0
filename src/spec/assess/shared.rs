//! Detects authorities that are not separate.
//!
//! Pure. Kubernetes distinguishes clients by their CA. etcd grants all rights to each client of its CA, and kube-apiserver
//! trusts the front proxy's headers, which name any user, from each client of the front proxy's CA
//! (`--requestheader-client-ca-file`). A bundle also accepts certificates of subordinate CAs, so a root in two bundles is
//! shared too.

use crate::kube::names::Authority;
use crate::x509::TrustBundle;

/// An authority whose file accepts the certificates of other authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedAuthority {
    /// The authority of the file.
    pub authority: Authority,
    /// The other authorities whose certificates it accepts.
    pub accepts: Vec<Authority>,
}

/// Returns the authorities among `bundles` that accept certificates of others. If `ca` and another authority accept each
/// other, only the other is returned, as it is the one to change.
pub fn shared_authorities(bundles: &[(Authority, &TrustBundle)]) -> Vec<SharedAuthority> {
    let accepts = |one: &(Authority, &TrustBundle), other: &(Authority, &TrustBundle)| {
        one.0 != other.0 && one.1.accepts(other.1)
    };
    let mut shared = Vec::new();
    for bundle in bundles {
        let others = bundles.iter().filter(|other| accepts(bundle, other));
        let others = others.filter(|other| bundle.0 != Authority::Ca || !accepts(other, bundle));
        let accepted: Vec<Authority> = others.map(|(authority, _)| *authority).collect();
        if !accepted.is_empty() {
            shared.push(SharedAuthority {
                authority: bundle.0,
                accepts: accepted,
            });
        }
    }
    shared
}

impl SharedAuthority {
    /// States the problem. `path` is the file of the authority, as messages display it.
    pub(crate) fn sentence(&self, path: &str) -> String {
        let names: Vec<&str> = self.accepts.iter().map(|name| name.as_str()).collect();
        let risk = match self.authority {
            Authority::Ca => "their client certificates authenticate to kube-apiserver",
            Authority::EtcdCa => "their client certificates can read and change everything in etcd",
            Authority::FrontProxyCa => {
                "a client certificate of theirs with the common name front-proxy-client can act as any user"
            }
        };
        format!(
            "{path} also accepts certificates of {}: {risk}",
            names.join(" and ")
        )
    }

    /// Returns the fix. `path` is the file of the authority, and `has_cluster` whether the node has an API server.
    pub fn fix(&self, path: &str, has_cluster: bool) -> String {
        let authority = self.authority;
        let change = if has_cluster {
            format!(
                "`nodepki authority stage {authority} --certificate FILE`, then activate and retire"
            )
        } else {
            // The commands that change a CA need a cluster, and certificates of the wrong one would be kept.
            format!(
                "replace {path} by its certificate, remove the certificates under {authority} from the node, and run `nodepki bootstrap`"
            )
        };
        format!("create a separate CA for {authority}: {change}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::OffsetDateTime;

    use super::*;
    use crate::x509::{CertificateAuthority, KeyAlgorithm};

    const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    fn bundle(name: &str) -> TrustBundle {
        let key = CertificateAuthority::new_key(KeyAlgorithm::EcdsaP256).unwrap();
        let authority =
            CertificateAuthority::self_signed(name, key, NOW, Duration::from_secs(86_400));
        authority.unwrap().bundle().clone()
    }

    #[test]
    fn accepts_separate_authorities() {
        let [ca, etcd, front_proxy] = Authority::ALL.map(|name| bundle(name.common_name()));
        let bundles = [
            (Authority::Ca, &ca),
            (Authority::EtcdCa, &etcd),
            (Authority::FrontProxyCa, &front_proxy),
        ];
        assert_eq!(shared_authorities(&bundles), []);
    }

    #[test]
    fn states_risk_and_fix() {
        let shared = |authority, accepts: &[Authority]| SharedAuthority {
            authority,
            accepts: accepts.to_vec(),
        };
        let etcd = shared(Authority::EtcdCa, &[Authority::Ca, Authority::FrontProxyCa]);
        assert_eq!(
            etcd.sentence("/pki/etcd/ca.crt"),
            "/pki/etcd/ca.crt also accepts certificates of ca and front-proxy-ca: their client certificates can read and change everything in etcd"
        );
        assert_eq!(
            etcd.fix("/ca.crt", true),
            "create a separate CA for etcd-ca: `nodepki authority stage etcd-ca --certificate FILE`, then activate and retire"
        );
        assert_eq!(
            etcd.fix("/ca.crt", false),
            "create a separate CA for etcd-ca: replace /ca.crt by its certificate, remove the certificates under etcd-ca from the node, and run `nodepki bootstrap`"
        );
        for (authority, risk) in [
            (Authority::Ca, "authenticate to kube-apiserver"),
            (Authority::FrontProxyCa, "can act as any user"),
        ] {
            let sentence = shared(authority, &[Authority::EtcdCa]).sentence("/ca.crt");
            assert!(sentence.ends_with(risk), "{sentence}");
        }
    }

    #[test]
    fn reports_one_authority_in_all_bundles() {
        let one = bundle("corp");
        let bundles = Authority::ALL.map(|name| (name, &one));
        let shared = shared_authorities(&bundles);
        let found: Vec<_> = shared
            .iter()
            .map(|shared| (shared.authority, shared.accepts.as_slice()))
            .collect();
        let others_of_front_proxy = [Authority::Ca, Authority::EtcdCa];
        let others_of_etcd = [Authority::Ca, Authority::FrontProxyCa];
        assert_eq!(
            found,
            [
                (Authority::FrontProxyCa, others_of_front_proxy.as_slice()),
                (Authority::EtcdCa, others_of_etcd.as_slice()),
            ]
        );
    }

    #[test]
    fn reports_bundle_that_also_contains_another_authority() {
        let (ca, etcd) = (bundle("kubernetes"), bundle("etcd-ca"));
        let both = [&ca, &etcd].map(|bundle| bundle.first().clone());
        let both = TrustBundle::from_certificates(both.to_vec()).unwrap();
        let shared = shared_authorities(&[(Authority::Ca, &both), (Authority::EtcdCa, &etcd)]);
        let authorities: Vec<_> = shared.iter().map(|shared| shared.authority).collect();
        assert_eq!(authorities, [Authority::EtcdCa]);
    }
}
