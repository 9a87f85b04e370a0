//! The etcd client CA: an authority whose only purpose is to sign the etcd client certificates of Cluster API's controllers.
//!
//! With stacked etcd, KubeadmConfig joins a control-plane node only if CLUSTER-etcd contains a `tls.key`
//! (`Certificates.EnsureAllExist` in `util/secret/certificates.go`), and KubeadmControlPlane signs its client certificate
//! with any such key, under the first certificate of `tls.crt` (`GetWorkloadCluster` in
//! `controlplane/kubeadm/pkg/cluster.go`). The key of the etcd CA must not be there, so this authority comes first in
//! `tls.crt` and its key is `tls.key`; the etcd CA follows, under which the controllers verify etcd. On a node, only etcd's
//! `trusted-ca-file` contains it.
//!
//! The authority is kept in the state directory of the cluster and is used as long as the file exists.

use std::path::Path;
use std::time::Duration;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::secrets::{Purpose, SecretSpec};
use crate::agent::{ExitCode, Failure};
use crate::store::NodeRoot;
use crate::x509::{
    Certificate, CertificateAuthority, KeyAlgorithm, PrivateKey, PublicKey, TrustBundle,
};

/// File below the state directory with certificate and private key.
const AUTHORITY_FILE: &str = "etcd-client-ca.pem";
/// Common name of the authority, by which it is recognized in CLUSTER-etcd.
const COMMON_NAME: &str = "nodepki-etcd-client-ca";
/// Lifetime of Cluster API's own authorities (`DefaultCACertificatesExpiryDays`): replacing this one takes a change on
/// every node.
const LIFETIME: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

/// The authority with its private key.
pub(super) struct EtcdClientAuthority {
    certificate: String,
    key: Zeroizing<Vec<u8>>,
}

/// Returns the authority of a state directory, and creates it if it does not exist and `create` is set.
///
/// # Errors
/// The file exists and is unusable; errors of the file system.
pub(super) fn load(
    state: &NodeRoot,
    create: bool,
    now: OffsetDateTime,
) -> Result<Option<EtcdClientAuthority>, Failure> {
    let path = Path::new("/").join(AUTHORITY_FILE);
    if let Some(found) = state.read(&path)? {
        return parse(&found.bytes).map(Some).map_err(|problem| {
            let file = state.on_this_machine(&path);
            Failure::new(
                ExitCode::Configuration,
                format!(
                    "{}: {problem} (restore the file, or remove it to stop managing CLUSTER-etcd with an etcd client CA)",
                    file.display()
                ),
            )
        });
    }
    if !create {
        return Ok(None);
    }
    let failed =
        |error: String| Failure::new(ExitCode::Refused, format!("etcd client CA: {error}"));
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).map_err(|e| failed(e.to_string()))?;
    let key_pem = key.to_pem();
    let authority = CertificateAuthority::self_signed(COMMON_NAME, key, now, LIFETIME)
        .map_err(|error| failed(error.to_string()))?;
    let certificate = authority.bundle().to_pem();
    let mut file = Zeroizing::new(Vec::with_capacity(certificate.len() + key_pem.len()));
    file.extend_from_slice(certificate.as_bytes());
    file.extend_from_slice(key_pem.as_bytes());
    let directory = state.create_dir("/", 0o700)?;
    directory.write_atomic(AUTHORITY_FILE, &file, 0o600)?;
    Ok(Some(EtcdClientAuthority {
        certificate,
        key: Zeroizing::new(key_pem.as_bytes().to_vec()),
    }))
}

fn parse(pem: &[u8]) -> Result<EtcdClientAuthority, String> {
    let authority = CertificateAuthority::from_pem(pem, pem).map_err(|error| error.to_string())?;
    let key = PrivateKey::from_pem(pem).map_err(|error| error.to_string())?;
    Ok(EtcdClientAuthority {
        certificate: authority.bundle().to_pem(),
        key: Zeroizing::new(key.to_pem().as_bytes().to_vec()),
    })
}

impl EtcdClientAuthority {
    /// Adds the authority to CLUSTER-etcd.
    pub(super) fn add_to(&self, secrets: &mut [SecretSpec]) {
        let of_etcd = |secret: &&mut SecretSpec| secret.purpose == Purpose::Etcd;
        for secret in secrets.iter_mut().filter(of_etcd) {
            if let Some(trusted) = secret.data.get_mut("tls.crt") {
                let mut certificates = self.certificate.clone().into_bytes();
                certificates.extend_from_slice(trusted);
                *trusted = Zeroizing::new(certificates);
                secret.data.insert("tls.key", self.key.clone());
            }
        }
    }
}

/// Returns the certificate of the etcd client CA if it is the first of CLUSTER-etcd and not the only one.
pub(super) fn client_authority(bundle: &TrustBundle) -> Option<&Certificate> {
    let [first, _, ..] = bundle.certificates() else {
        return None;
    };
    let mut names = first.subject().values("CN");
    (first.is_self_issued() && names.any(|name| name == COMMON_NAME)).then_some(first)
}

/// Returns the authorities of CLUSTER-etcd without the etcd client CA.
pub(super) fn without_client_authority(bundle: TrustBundle) -> TrustBundle {
    if client_authority(&bundle).is_none() {
        return bundle;
    }
    let others: Vec<Certificate> = bundle.certificates().iter().skip(1).cloned().collect();
    // Not empty, by `client_authority`. A further certificate that is not a CA is judged with the first.
    TrustBundle::from_certificates(others).unwrap_or(bundle)
}

/// Returns whether a key is that of the etcd client CA at the head of the bundle.
pub(super) fn is_client_authority_key(bundle: &TrustBundle, key: &PublicKey) -> bool {
    client_authority(bundle).is_some_and(|authority| authority.public_key() == key)
}
