//! Faults that stop a bootstrap.

use crate::kube::names::{Authority, CertName, NodePath};
use crate::spec::assess::{BundleRefusal, CertRefusal};

use super::ServiceAccountFault;

/// A fault that stops a bootstrap before any request is sent. A renewal stops only for what it concerns.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SurveyRefusal {
    /// The wanted identity differs from the node's own.
    #[error("{0}")]
    Identity(String),
    /// Nothing is issued under an authority.
    #[error("{1}")]
    Bundle(Authority, BundleRefusal),
    /// The CA of an authority was replaced; with the fix.
    #[error("{refusal}; nothing is issued under it: {fix}")]
    ReplacedCa {
        /// The finding.
        refusal: BundleRefusal,
        /// The fix.
        fix: String,
    },
    /// The CA certificate has expired, and a kubeconfig contains a valid one.
    #[error("{0}")]
    ValidCopy(String),
    /// Nothing is done for a certificate.
    #[error("{1}")]
    Certificate(CertName, CertRefusal),
    /// The service-account pair is unusable.
    #[error("{0}")]
    ServiceAccount(ServiceAccountFault),
    /// A file of the cluster exists with other content.
    #[error(
        "{path} ({what}) differs from the one in {from}; find out which one is right; if it is the cluster's, move the file away and run again"
    )]
    ProvidedFile {
        /// The file.
        path: NodePath,
        /// Its purpose.
        what: String,
        /// Where the cluster provides it.
        from: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_each_refusal_with_its_fix() {
        let provided = SurveyRefusal::ProvidedFile {
            path: "/pki/ca.crt".into(),
            what: "CA certificate".to_owned(),
            from: "cluster-info".to_owned(),
        };
        assert_eq!(
            provided.to_string(),
            "/pki/ca.crt (CA certificate) differs from the one in cluster-info; find out which one is right; if it is the cluster's, move the file away and run again"
        );
        let replaced = SurveyRefusal::ReplacedCa {
            refusal: BundleRefusal::TrustFileAbsent {
                file: "/ca.pem".into(),
                authority: Authority::Ca,
            },
            fix: "restore it".to_owned(),
        };
        assert_eq!(
            replaced.to_string(),
            "/ca.pem is absent, but authorities.ca.trust.file names it as the CA certificate: put the certificate there or correct the setting; nothing is issued under it: restore it"
        );
    }
}
