//! A certificate authority with its private key, for the `local` and `embedded` signers.

use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose,
    SanType, SerialNumber,
};
use time::OffsetDateTime;

use super::certificate::Certificate;
use super::chain::{ChainError, TrustBundle, TrustError};
use super::csr::{CsrError, distinguished_name, key_usages, leaf_params};
use super::key::{KeyAlgorithm, KeyError, PrivateKey, PublicKey};
use super::profile::{Profile, Subject};
use super::strict::CertificateError;

/// kubeadm's `CertificateBackdate`, for clocks that are behind that of the issuer.
const BACKDATE: Duration = Duration::from_secs(5 * 60);

/// A CA certificate with its private key.
#[derive(Debug)]
pub struct CertificateAuthority {
    bundle: TrustBundle,
    key: PrivateKey,
}

/// The reason why an authority is unusable or could not issue a certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum AuthorityError {
    #[error("its certificate is unusable: {0}")]
    Certificate(#[from] TrustError),
    #[error("its private key is unusable: {0}")]
    Key(#[from] KeyError),
    #[error("its private key does not belong to its certificate ({0})")]
    Mismatch(String),
    #[error("the random generator failed")]
    Random,
    #[error("the certificate could not be created: {0}")]
    Issue(String),
}

impl From<CertificateError> for AuthorityError {
    fn from(error: CertificateError) -> Self {
        AuthorityError::Certificate(TrustError::Unreadable(ChainError::Damaged(error)))
    }
}

impl From<CsrError> for AuthorityError {
    fn from(error: CsrError) -> Self {
        AuthorityError::Issue(error.to_string())
    }
}

impl CertificateAuthority {
    /// Reads `ca.crt` and `ca.key`. As for kubeadm, the first certificate of a bundle is the authority.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, AuthorityError> {
        let bundle = TrustBundle::from_pem(certificate)?;
        let key = PrivateKey::from_pem(key)?;
        key.require_signer()?;
        if bundle.first().public_key() != key.public_key() {
            return Err(AuthorityError::Mismatch(
                bundle.first().subject().to_string(),
            ));
        }
        Ok(CertificateAuthority { bundle, key })
    }

    /// Creates a self-signed authority like kubeadm: CN also as a DNS name, no path length, no cRLSign.
    pub fn self_signed(
        common_name: &str,
        key: PrivateKey,
        now: OffsetDateTime,
        lifetime: Duration,
    ) -> Result<Self, AuthorityError> {
        Self::self_signed_for(
            common_name,
            key,
            now,
            lifetime,
            BasicConstraints::Unconstrained,
            Vec::new(),
        )
    }

    /// As [`CertificateAuthority::self_signed`], for client certificates only, and without authorities below it: path
    /// length 0, and the extended key usage that every verifier requires of the whole path.
    pub(crate) fn self_signed_for_clients(
        common_name: &str,
        key: PrivateKey,
        now: OffsetDateTime,
        lifetime: Duration,
    ) -> Result<Self, AuthorityError> {
        Self::self_signed_for(
            common_name,
            key,
            now,
            lifetime,
            BasicConstraints::Constrained(0),
            vec![ExtendedKeyUsagePurpose::ClientAuth],
        )
    }

    fn self_signed_for(
        common_name: &str,
        key: PrivateKey,
        now: OffsetDateTime,
        lifetime: Duration,
        constraints: BasicConstraints,
        usages: Vec<ExtendedKeyUsagePurpose>,
    ) -> Result<Self, AuthorityError> {
        let subject = Subject::new(common_name, &[]);
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(&subject)?;
        params.subject_alt_names = vec![SanType::DnsName(
            common_name
                .try_into()
                .map_err(|_| CsrError::DnsName(common_name.to_owned()))?,
        )];
        params.is_ca = IsCa::Ca(constraints);
        params.extended_key_usages = usages;
        params.key_usages = key_usages(key.key_type());
        params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        set_validity(&mut params, now, lifetime);
        params.serial_number = Some(random_serial()?);
        let made = params
            .self_signed(&key)
            .map_err(|error| AuthorityError::Issue(error.to_string()))?;
        let bundle = TrustBundle::from_response(made.der())?;
        Ok(CertificateAuthority { bundle, key })
    }

    /// Issues a leaf certificate for `public_key`: `not_before` is five minutes ago, `not_after` is in `lifetime`.
    pub fn issue(
        &self,
        public_key: &PublicKey,
        profile: &Profile,
        now: OffsetDateTime,
    ) -> Result<Certificate, AuthorityError> {
        let mut params = leaf_params(profile, public_key.key_type())?;
        set_validity(&mut params, now, profile.lifetime);
        self.issue_with(public_key, params)
    }

    /// As [`CertificateAuthority::issue`], for `lifetime` from `not_before` on.
    pub fn issue_from(
        &self,
        public_key: &PublicKey,
        profile: &Profile,
        not_before: OffsetDateTime,
    ) -> Result<Certificate, AuthorityError> {
        let mut params = leaf_params(profile, public_key.key_type())?;
        params.not_before = not_before;
        params.not_after = not_before + profile.lifetime;
        self.issue_with(public_key, params)
    }

    fn issue_with(
        &self,
        public_key: &PublicKey,
        mut params: CertificateParams,
    ) -> Result<Certificate, AuthorityError> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(random_serial()?);
        let failed = |error: rcgen::Error| AuthorityError::Issue(error.to_string());
        let issuer = Issuer::from_ca_cert_der(&self.bundle.first().der().into(), &self.key)
            .map_err(failed)?;
        let made = params.signed_by(public_key, &issuer).map_err(failed)?;
        Ok(Certificate::from_der(made.der())?)
    }

    /// Returns all certificates of the CA's file; the first is the CA's.
    pub fn bundle(&self) -> &TrustBundle {
        &self.bundle
    }

    /// Returns the CA's public key.
    pub fn public_key(&self) -> &PublicKey {
        self.key.public_key()
    }

    /// Generates the key for a new authority.
    pub(crate) fn new_key(algorithm: KeyAlgorithm) -> Result<PrivateKey, KeyError> {
        PrivateKey::generate(algorithm)
    }
}

fn set_validity(params: &mut CertificateParams, now: OffsetDateTime, lifetime: Duration) {
    params.not_before = now - BACKDATE;
    params.not_after = now + lifetime;
}

/// Returns a serial number uniform in [1, 2^63), like kubeadm.
fn random_serial() -> Result<SerialNumber, AuthorityError> {
    let mut bytes = [0u8; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| AuthorityError::Random)?;
    let serial = (u64::from_be_bytes(bytes) >> 1).max(1);
    Ok(SerialNumber::from(serial))
}

#[cfg(test)]
mod tests;
