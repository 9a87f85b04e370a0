//! The etcd client CA: an authority whose only purpose is to sign the etcd client certificates of Cluster API's controllers.
//!
//! With stacked etcd, KubeadmConfig joins a control-plane node only if CLUSTER-etcd contains a `tls.key`
//! (`Certificates.EnsureAllExist` in `util/secret/certificates.go`), and KubeadmControlPlane signs its client certificate
//! with any such key, under the first certificate of `tls.crt` (`GetWorkloadCluster` in
//! `controlplane/kubeadm/pkg/cluster.go`). The key of the etcd CA must not be there, so this authority comes first in
//! `tls.crt` and its key is `tls.key`; the etcd CA follows, under which the controllers verify etcd. On a node, only etcd's
//! `trusted-ca-file` contains it.
//!
//! The authority signs clients only (extended key usage, path length 0), has the key of the key policy, and lives for a year.
//! It is kept in the state directory of the cluster and is used as long as the file exists. After half of its life a
//! successor is created and added to `tls.crt`, so new nodes trust both; after [`PUBLISHED_FOR`], or once the authority
//! has expired, the controllers sign with the successor. Each step is an entry of the issuance log in the state directory.

use std::path::Path;
use std::time::Duration;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::secrets::{Purpose, SecretSpec};
use crate::agent::Failure;
use crate::agent::audit;
use crate::kube::names::Authority;
use crate::spec::policy::{KeyOwner, KeyPolicy};
use crate::store::{AuditEvent, AuditRecord, NodeRoot, StoreError};
use crate::text::rfc3339;
use crate::x509::{
    Certificate, CertificateAuthority, ExtendedUsage, KeyAlgorithm, KeyType, PrivateKey, PublicKey,
    TrustBundle,
};

/// File below the state directory with certificate and private key; the certificate of the predecessor may follow.
const AUTHORITY_FILE: &str = "etcd-client-ca.pem";
/// The same for the successor.
const NEXT_FILE: &str = "etcd-client-ca-next.pem";
/// Common name of the authority, by which it is recognized in CLUSTER-etcd.
const COMMON_NAME: &str = "nodepki-etcd-client-ca";
/// Line in `tls.crt` after the last etcd client CA, at which nodes divide the file.
const ETCD_CA_FOLLOWS: &str = "# etcd CA\n";
/// Lifetime of an authority.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Time in which nodes get the certificate of a successor before the controllers sign with it. Kubernetes has three minor
/// versions a year, and each upgrade replaces all machines.
const PUBLISHED_FOR: Duration = Duration::from_secs(130 * 24 * 60 * 60);
/// Key of an authority for which the key policy has no rule.
const DEFAULT_KEY: KeyAlgorithm = KeyAlgorithm::EcdsaP256;

/// The authority with its private key.
pub(super) struct EtcdClientAuthority {
    /// The signing authority, and its predecessor if there is one.
    bundle: TrustBundle,
    key: Zeroizing<Vec<u8>>,
    /// The successor.
    next: Option<TrustBundle>,
    /// What the administrator has to do.
    pub(super) notes: Vec<String>,
}

/// One file with an authority.
struct StoredAuthority {
    bundle: TrustBundle,
    key: Zeroizing<Vec<u8>>,
    key_type: KeyType,
}

impl StoredAuthority {
    fn parse(pem: &[u8]) -> Result<Self, String> {
        let authority = CertificateAuthority::from_pem(pem, pem).map_err(|e| e.to_string())?;
        let key = PrivateKey::from_pem(pem).map_err(|error| error.to_string())?;
        Ok(StoredAuthority {
            key: Zeroizing::new(key.to_pem().as_bytes().to_vec()),
            key_type: key.public_key().key_type().clone(),
            bundle: authority.bundle().clone(),
        })
    }

    fn certificate(&self) -> &Certificate {
        self.bundle.first()
    }

    /// Returns the content of a file: certificate, key, and the predecessor. An expired predecessor stays, since CLUSTER-etcd
    /// may still contain its key, by which the key is recognized.
    fn to_pem(&self, predecessor: Option<&Certificate>) -> Zeroizing<Vec<u8>> {
        let parts = [
            Zeroizing::new(self.certificate().to_pem().into_bytes()),
            self.key.clone(),
            Zeroizing::new(predecessor.map_or_else(Vec::new, |one| one.to_pem().into_bytes())),
        ];
        let mut pem = Zeroizing::new(Vec::with_capacity(
            parts.iter().map(|part| part.len()).sum(),
        ));
        for part in parts {
            pem.extend_from_slice(&part);
        }
        pem
    }

    fn is_expired(&self, now: OffsetDateTime) -> bool {
        self.certificate().not_after() <= now
    }

    /// Returns whether nodes had enough time to get the certificate.
    fn is_published(&self, now: OffsetDateTime) -> bool {
        now - self.certificate().not_before() >= PUBLISHED_FOR
    }

    /// Returns whether a successor is due: half of its life is over, or it is not what this release would create.
    fn is_due(&self, required: Option<KeyAlgorithm>, now: OffsetDateTime) -> bool {
        let certificate = self.certificate();
        let fits = !certificate.allows(ExtendedUsage::ServerAuth)
            && certificate.not_after() - certificate.not_before() < LIFETIME * 2
            && required.is_none_or(|key| self.key_type == KeyType::Known(key));
        !fits || certificate.not_after() - now < LIFETIME / 2
    }
}

/// The state directory of a cluster.
struct AuthorityStore<'a> {
    state: &'a NodeRoot,
    now: OffsetDateTime,
}

impl AuthorityStore<'_> {
    fn read(&self, name: &str) -> Result<Option<StoredAuthority>, Failure> {
        let path = Path::new("/").join(name);
        let Some(found) = self.state.read(&path)? else {
            return Ok(None);
        };
        StoredAuthority::parse(&found.bytes).map(Some).map_err(|problem| {
            let file = self.state.on_this_machine(&path);
            Failure::misconfigured(format!(
                "{}: {problem} (restore the file, or remove it to stop managing CLUSTER-etcd with an etcd client CA)",
                file.display()
            ))
        })
    }

    fn write(&self, name: &str, pem: &[u8]) -> Result<(), Failure> {
        let directory = self.state.create_dir("/", 0o700)?;
        directory.write_atomic(name, pem, 0o600)?;
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), Failure> {
        self.state.create_dir("/", 0o700)?.remove(name)?;
        Ok(())
    }

    /// Creates an authority in a file, or returns the one that another run has created meanwhile.
    fn create(&self, name: &str, algorithm: KeyAlgorithm) -> Result<StoredAuthority, Failure> {
        let failed = |error: String| Failure::refused(format!("etcd client CA: {error}"));
        let key = PrivateKey::generate(algorithm).map_err(|error| failed(error.to_string()))?;
        let key_pem = Zeroizing::new(key.to_pem().as_bytes().to_vec());
        let key_type = key.public_key().key_type().clone();
        let made =
            CertificateAuthority::self_signed_for_clients(COMMON_NAME, key, self.now, LIFETIME);
        let made = made.map_err(|error| failed(error.to_string()))?;
        let created = StoredAuthority {
            bundle: made.bundle().clone(),
            key: key_pem,
            key_type,
        };
        let pem = created.to_pem(None);
        match self.state.create_dir("/", 0o700)?.write_new(name, &pem) {
            Ok(()) => {}
            Err(error @ StoreError::Unsafe { .. }) => {
                return self.read(name)?.ok_or_else(|| error.into());
            }
            Err(error) => return Err(error.into()),
        }
        self.log(AuditEvent::Issued, "create", created.certificate());
        Ok(created)
    }

    /// Removes a successor with which the controllers never signed.
    fn discard(&self, next: &StoredAuthority) -> Result<(), Failure> {
        self.remove(NEXT_FILE)?;
        self.log(AuditEvent::AuthorityStep, "discard", next.certificate());
        Ok(())
    }

    /// Lets the controllers sign with the successor.
    fn activate(
        &self,
        next: StoredAuthority,
        former: &StoredAuthority,
    ) -> Result<StoredAuthority, Failure> {
        let pem = next.to_pem(Some(former.certificate()));
        self.write(AUTHORITY_FILE, &pem)?;
        self.remove(NEXT_FILE)?;
        self.log(AuditEvent::AuthorityStep, "activate", next.certificate());
        self.read(AUTHORITY_FILE).map(|read| read.unwrap_or(next))
    }

    fn log(&self, event: AuditEvent, action: &str, certificate: &Certificate) {
        let record = AuditRecord {
            certificate: Some(KeyOwner::EtcdClientAuthority.to_string()),
            authority: Some(Authority::EtcdCa.to_string()),
            action: Some(action.to_owned()),
            reason: Some(
                "self-signed; its key is in the Secret CLUSTER-etcd and in user data".to_owned(),
            ),
            ..AuditRecord::of(event)
        };
        let record = audit::with_leaf(record, certificate);
        audit::append(self.state, self.now, &[record]);
    }
}

/// Returns whether a state directory has an authority.
pub(super) fn exists(state: &NodeRoot) -> Result<bool, Failure> {
    let path = Path::new("/").join(AUTHORITY_FILE);
    Ok(state.metadata(&path)?.is_some())
}

/// Returns the authority of a state directory, and creates it if it does not exist and `create` is set. Takes the step of
/// its replacement that is due.
///
/// # Errors
/// A file exists and is unusable; errors of the file system.
pub(super) fn load(
    state: &NodeRoot,
    create: bool,
    policy: &KeyPolicy,
    now: OffsetDateTime,
) -> Result<Option<EtcdClientAuthority>, Failure> {
    let store = AuthorityStore { state, now };
    let required = policy.required_of(KeyOwner::EtcdClientAuthority);
    let algorithm = required.unwrap_or(DEFAULT_KEY);
    let mut current = match store.read(AUTHORITY_FILE)? {
        Some(current) => current,
        None if create => store.create(AUTHORITY_FILE, algorithm)?,
        None => return Ok(None),
    };
    let mut next = store.read(NEXT_FILE)?;
    if next.as_ref().map(StoredAuthority::certificate) == Some(current.certificate()) {
        // An earlier run was interrupted.
        store.remove(NEXT_FILE)?;
        next = None;
    }
    // Runs may have been missed for years.
    if let Some(expired) = next.take_if(|next| next.is_expired(now)) {
        store.discard(&expired)?;
    }
    loop {
        let is_expired = current.is_expired(now);
        if let Some(one) = next.take_if(|next| is_expired || next.is_published(now)) {
            current = store.activate(one, &current)?;
        } else if next.is_none() && current.is_due(required, now) {
            next = Some(store.create(NEXT_FILE, algorithm)?);
        } else {
            break;
        }
    }
    let is_early = !current.is_published(now) && current.bundle.certificates().len() > 1;
    let notes = is_early.then(|| unpublished_note(state)).into_iter();
    let notes = notes.chain(next.iter().map(|next| replacement_note(state, next)));
    Ok(Some(EtcdClientAuthority {
        notes: notes.collect(),
        next: next.map(|next| next.bundle),
        bundle: current.bundle,
        key: current.key,
    }))
}

fn unpublished_note(state: &NodeRoot) -> String {
    let file = state.on_this_machine(Path::new("/").join(AUTHORITY_FILE));
    format!(
        "the etcd client CA expired before nodes had its successor: append the first certificate in {} to etcd/clients.crt on each older control-plane node and restart etcd; until then the controllers have no access to etcd",
        file.display()
    )
}

fn replacement_note(state: &NodeRoot, next: &StoredAuthority) -> String {
    let since = next.certificate().not_before();
    format!(
        "the etcd client CA is replaced at {}: until then roll out the control plane, or append the certificate in {} to etcd/clients.crt on each control-plane node and restart etcd; otherwise the controllers lose access to etcd",
        rfc3339(since + PUBLISHED_FOR),
        state
            .on_this_machine(Path::new("/").join(NEXT_FILE))
            .display()
    )
}

impl EtcdClientAuthority {
    /// Adds the authority to CLUSTER-etcd.
    pub(super) fn add_to(&self, secrets: &mut [SecretSpec]) {
        let of_etcd = |secret: &&mut SecretSpec| secret.purpose == Purpose::Etcd;
        for secret in secrets.iter_mut().filter(of_etcd) {
            if let Some(trusted) = secret.data.get_mut("tls.crt") {
                let next = self.next.as_ref().map(TrustBundle::to_pem);
                let mut certificates = self.bundle.to_pem().into_bytes();
                certificates.extend(next.unwrap_or_default().into_bytes());
                certificates.extend(ETCD_CA_FOLLOWS.as_bytes());
                certificates.extend_from_slice(trusted);
                *trusted = Zeroizing::new(certificates);
                secret.data.insert("tls.key", self.key.clone());
            }
        }
    }
}

/// Returns whether a certificate is that of an etcd client CA.
fn is_client_authority(certificate: &Certificate) -> bool {
    let mut names = certificate.subject().values("CN");
    certificate.is_self_issued() && names.any(|name| name == COMMON_NAME)
}

/// Returns the certificate of the etcd client CA if it is the first of CLUSTER-etcd and not the only one.
pub(super) fn client_authority(bundle: &TrustBundle) -> Option<&Certificate> {
    let [first, _, ..] = bundle.certificates() else {
        return None;
    };
    is_client_authority(first).then_some(first)
}

/// Returns the authorities of CLUSTER-etcd without the etcd client CA, its predecessor and its successor.
pub(super) fn without_client_authority(bundle: TrustBundle) -> TrustBundle {
    let certificates = bundle.certificates().iter();
    let others = certificates.filter(|one| !is_client_authority(one));
    // A bundle of nothing else, or with a certificate that is not a CA, is judged as it is.
    TrustBundle::from_certificates(others.cloned().collect()).unwrap_or(bundle)
}

/// Returns whether a key is that of the etcd client CA at the head of the bundle.
pub(super) fn is_client_authority_key(bundle: &TrustBundle, key: &PublicKey) -> bool {
    client_authority(bundle).is_some_and(|authority| authority.public_key() == key)
}

/// Returns whether a key is that of another etcd client CA than the one at the head of the bundle, usually its predecessor.
pub(super) fn is_predecessor_key(bundle: &TrustBundle, key: &PublicKey) -> bool {
    let Some(authority) = client_authority(bundle) else {
        return false;
    };
    let mut others = bundle.certificates().iter();
    authority.public_key() != key
        && others.any(|one| is_client_authority(one) && one.public_key() == key)
}

#[cfg(test)]
mod tests;
