//! The format of kubeadm's shared certificates: the data of the Secret `kubeadm-certs`.
//!
//! A value is `nonce (12 bytes) ‖ AES-256-GCM ciphertext ‖ tag (16 bytes)` without additional data, and the plain text is
//! the file, byte for byte. An absent file is an empty value (kubeadm's `copycerts` and `util/crypto`). The
//! certificate key is what `kubeadm init --upload-certs` prints: 32 bytes in 64 hexadecimal digits.
//!
//! Pure, except that nonces and new keys come from the kernel's random generator. `agent::shared_certs` accesses the
//! cluster. kubeadm accepts every entry that it can decrypt; here its content must also match its name
//! ([`SharedCerts::new`]).
//!
//! To share one more file, add an [`SharedFile`], and verify its content in `fault_of`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use aes_gcm::aead::{Aead, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce};
use zeroize::Zeroizing;

use crate::kube::names::Authority;
use crate::text::hex;
use crate::x509::{Certificate, Chain, PrivateKey, PublicKey, TrustBundle};

/// Namespace of the Secret.
pub const NAMESPACE: &str = "kube-system";
/// Name of the Secret.
pub const SECRET_NAME: &str = "kubeadm-certs";
/// The command that creates the Secret and prints the new certificate key.
pub(crate) const UPLOAD_COMMAND: &str = "kubeadm init phase upload-certs --upload-certs";

const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;

/// A file that control-plane nodes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedFile {
    /// The CA certificate of an authority, such as `ca.crt`.
    Authority(Authority),
    /// The CA key of an authority, such as `ca.key`.
    AuthorityKey(Authority),
    /// `sa.key`.
    ServiceAccountKey,
    /// `sa.pub`.
    ServiceAccountPublic,
    /// `etcd.external.caFile`.
    ExternalEtcdAuthority,
    /// `etcd.external.certFile`.
    ExternalEtcdCertificate,
    /// `etcd.external.keyFile`.
    ExternalEtcdKey,
}

impl SharedFile {
    /// All entries; the key of an authority follows its certificate.
    pub const ALL: [SharedFile; 11] = [
        SharedFile::Authority(Authority::Ca),
        SharedFile::AuthorityKey(Authority::Ca),
        SharedFile::Authority(Authority::FrontProxyCa),
        SharedFile::AuthorityKey(Authority::FrontProxyCa),
        SharedFile::Authority(Authority::EtcdCa),
        SharedFile::AuthorityKey(Authority::EtcdCa),
        SharedFile::ServiceAccountKey,
        SharedFile::ServiceAccountPublic,
        SharedFile::ExternalEtcdAuthority,
        SharedFile::ExternalEtcdCertificate,
        SharedFile::ExternalEtcdKey,
    ];

    /// Returns the key in the Secret's data: the file's path below the certificates directory, with `-` for `/`.
    pub const fn as_str(self) -> &'static str {
        match self {
            SharedFile::Authority(Authority::Ca) => "ca.crt",
            SharedFile::Authority(Authority::FrontProxyCa) => "front-proxy-ca.crt",
            SharedFile::Authority(Authority::EtcdCa) => "etcd-ca.crt",
            SharedFile::AuthorityKey(Authority::Ca) => "ca.key",
            SharedFile::AuthorityKey(Authority::FrontProxyCa) => "front-proxy-ca.key",
            SharedFile::AuthorityKey(Authority::EtcdCa) => "etcd-ca.key",
            SharedFile::ServiceAccountKey => "sa.key",
            SharedFile::ServiceAccountPublic => "sa.pub",
            SharedFile::ExternalEtcdAuthority => "external-etcd-ca.crt",
            SharedFile::ExternalEtcdCertificate => "external-etcd.crt",
            SharedFile::ExternalEtcdKey => "external-etcd.key",
        }
    }

    /// Returns the entry of this name; `None` if kubeadm has no such entry.
    pub fn parse(name: &str) -> Option<SharedFile> {
        SharedFile::ALL
            .into_iter()
            .find(|entry| entry.as_str() == name)
    }

    /// Returns true for the private key of an authority, which a node with an external signer must never contain.
    pub(crate) const fn is_authority_key(self) -> bool {
        matches!(self, SharedFile::AuthorityKey(_))
    }

    /// Returns true for any private key.
    pub(crate) const fn is_private(self) -> bool {
        matches!(
            self,
            SharedFile::AuthorityKey(_)
                | SharedFile::ServiceAccountKey
                | SharedFile::ExternalEtcdKey
        )
    }

    /// Parses a file of this name; `None` if its content is something else. Files with the same content in another form are
    /// equal.
    pub fn holds(self, bytes: &[u8]) -> Option<SharedContent> {
        match self {
            SharedFile::Authority(_) | SharedFile::ExternalEtcdAuthority => {
                let bundle = TrustBundle::from_pem(bytes).ok()?;
                Some(SharedContent::Certificates(bundle.certificates().to_vec()))
            }
            SharedFile::ExternalEtcdCertificate => {
                let chain = Chain::from_pem(bytes).ok()?;
                let leaf = std::iter::once(chain.leaf());
                Some(SharedContent::Certificates(
                    leaf.chain(chain.intermediates()).cloned().collect(),
                ))
            }
            SharedFile::AuthorityKey(_)
            | SharedFile::ServiceAccountKey
            | SharedFile::ExternalEtcdKey => {
                let key = PrivateKey::from_pem(bytes).ok()?;
                Some(SharedContent::Keys(vec![key.public_key().clone()]))
            }
            SharedFile::ServiceAccountPublic => {
                PublicKey::all_from_pem(bytes).ok().map(SharedContent::Keys)
            }
        }
    }
}

as_text!(SharedFile: Display);

/// The content of a shared file, for comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedContent {
    /// One or more certificates, in order.
    Certificates(Vec<Certificate>),
    /// One or more public keys, in order, or that of a private key.
    Keys(Vec<PublicKey>),
}

impl SharedContent {
    /// Returns the first certificate.
    pub fn certificate(&self) -> Option<&Certificate> {
        match self {
            SharedContent::Certificates(certificates) => certificates.first(),
            SharedContent::Keys(_) => None,
        }
    }

    /// Returns the first public key, or that of the first certificate.
    pub fn key(&self) -> Option<&PublicKey> {
        match self {
            SharedContent::Certificates(_) => self.certificate().map(Certificate::public_key),
            SharedContent::Keys(keys) => keys.first(),
        }
    }
}

/// Displays only digests.
impl fmt::Display for SharedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = match self {
            SharedContent::Certificates(certificates) => certificates
                .iter()
                .map(|one| {
                    let print = hex(&one.fingerprint());
                    format!("certificate sha256:{print} ({})", one.subject())
                })
                .collect(),
            SharedContent::Keys(keys) => keys
                .iter()
                .map(|key| format!("public key sha256:{}", hex(&key.sha256())))
                .collect(),
        };
        f.write_str(&words.join(", "))
    }
}

/// The key that encrypts the shared certificates.
#[derive(Clone)]
pub struct CertificateKey(Zeroizing<[u8; 32]>);

/// The reason why a text is not a certificate key. It never contains the text.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CertificateKeyError {
    #[error("a certificate key must have 64 hexadecimal digits; this one has {0} characters")]
    Length(usize),
    #[error(
        "a certificate key must have 64 hexadecimal digits; this one contains another character"
    )]
    Digit,
}

/// The reason why a key could not be created, or content not encrypted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum SealError {
    #[error("the kernel did not return random bytes: {0}")]
    Random(getrandom::Error),
    #[error("{0} cannot be encrypted")]
    TooLarge(SharedFile),
}

impl CertificateKey {
    /// Generates a key.
    ///
    /// # Errors
    /// [`SealError::Random`].
    pub fn generate() -> Result<Self, SealError> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(bytes.as_mut_slice()).map_err(SealError::Random)?;
        Ok(CertificateKey(bytes))
    }

    /// Returns the key in the form that `kubeadm certs certificate-key` prints.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex(self.0.as_slice()))
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new((&*self.0).into())
    }

    /// Decrypts a value; `None` if it was changed, truncated, or encrypted with another key.
    fn open(&self, value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, sealed) = value.split_at_checked(NONCE_BYTES)?;
        let nonce = Nonce::try_from(nonce).ok()?;
        let plain = self.cipher().decrypt(&nonce, sealed).ok()?;
        Some(Zeroizing::new(plain))
    }

    /// Encrypts a value; `None` if it exceeds GCM's limit of about 64 GiB.
    fn seal(&self, plain: &[u8], nonce: [u8; NONCE_BYTES]) -> Option<Vec<u8>> {
        let sealed = self.cipher().encrypt(&nonce.into(), plain).ok()?;
        Some([nonce.as_slice(), &sealed].concat())
    }
}

impl FromStr for CertificateKey {
    type Err = CertificateKeyError;

    fn from_str(text: &str) -> Result<Self, CertificateKeyError> {
        let mut bytes = Zeroizing::new([0; 32]);
        let count = text.chars().count();
        if count != 2 * bytes.len() {
            return Err(CertificateKeyError::Length(count));
        }
        let digit = |c: char| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut digits = text.chars().map(digit);
        for byte in bytes.iter_mut() {
            match (digits.next().flatten(), digits.next().flatten()) {
                (Some(high), Some(low)) => *byte = high << 4 | low,
                _ => return Err(CertificateKeyError::Digit),
            }
        }
        Ok(CertificateKey(bytes))
    }
}

impl fmt::Debug for CertificateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateKey(redacted)")
    }
}

/// Shared files in plain text. The content of each matches its name. Wiped on drop.
#[derive(Clone, Default)]
pub struct SharedCerts(BTreeMap<SharedFile, Zeroizing<Vec<u8>>>);

impl SharedCerts {
    /// Verifies that the content of each file matches its name and the other files.
    ///
    /// # Errors
    /// Each wrong file with the problem, in words that follow the file's name and a colon.
    pub fn new(
        contents: BTreeMap<SharedFile, Zeroizing<Vec<u8>>>,
    ) -> Result<Self, Vec<(SharedFile, String)>> {
        let certs = SharedCerts(contents);
        let faults: Vec<_> = certs
            .0
            .iter()
            .filter_map(|(entry, bytes)| Some((*entry, certs.fault_of(*entry, bytes)?)))
            .collect();
        if faults.is_empty() {
            Ok(certs)
        } else {
            Err(faults)
        }
    }

    /// Returns the bytes of a file, if it is present.
    pub fn contents(&self, entry: SharedFile) -> Option<&Zeroizing<Vec<u8>>> {
        self.0.get(&entry)
    }

    /// Returns the files that are present.
    pub fn entries(&self) -> impl Iterator<Item = SharedFile> {
        self.0.keys().copied()
    }

    fn fault_of(&self, entry: SharedFile, bytes: &[u8]) -> Option<String> {
        match entry {
            SharedFile::Authority(_) | SharedFile::ExternalEtcdAuthority => {
                TrustBundle::from_pem(bytes)
                    .err()
                    .map(|error| error.to_string())
            }
            SharedFile::AuthorityKey(authority) => {
                let certificate = SharedFile::Authority(authority);
                let bundle = self.parsed(certificate, TrustBundle::from_pem);
                let of = bundle.map(|bundle| (certificate, bundle.first().public_key().clone()));
                key_fault(bytes, of)
            }
            SharedFile::ServiceAccountKey => key_fault(bytes, None),
            SharedFile::ServiceAccountPublic => match PublicKey::all_from_pem(bytes) {
                Err(error) => Some(error.to_string()),
                Ok(public) => {
                    let key = self.parsed(SharedFile::ServiceAccountKey, PrivateKey::from_pem)?;
                    (!public.contains(key.public_key()))
                        .then(|| format!("it does not belong to {}", SharedFile::ServiceAccountKey))
                }
            },
            SharedFile::ExternalEtcdCertificate => {
                Chain::from_pem(bytes).err().map(|error| error.to_string())
            }
            SharedFile::ExternalEtcdKey => {
                let certificate = SharedFile::ExternalEtcdCertificate;
                let chain = self.parsed(certificate, Chain::from_pem);
                let of = chain.map(|chain| (certificate, chain.leaf().public_key().clone()));
                key_fault(bytes, of)
            }
        }
    }

    /// Parses another entry for comparison. Its own faults are reported for that entry.
    fn parsed<T, E>(&self, entry: SharedFile, parse: fn(&[u8]) -> Result<T, E>) -> Option<T> {
        parse(self.contents(entry)?).ok()
    }
}

/// Displays only the names.
impl fmt::Debug for SharedCerts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn key_fault(bytes: &[u8], certificate: Option<(SharedFile, PublicKey)>) -> Option<String> {
    match (PrivateKey::from_pem(bytes), certificate) {
        (Err(error), _) => Some(error.to_string()),
        (Ok(key), Some((name, public))) if *key.public_key() != public => {
            Some(format!("it does not belong to {name}"))
        }
        _ => None,
    }
}

/// The reasons why needed entries cannot be read from the Secret.
#[derive(Debug, Default, thiserror::Error)]
#[error("{}", self.messages().join("\n"))]
pub struct SharedCertsError {
    /// Entries that were decrypted, needed or not.
    opened: Vec<SharedFile>,
    /// Entries that are too short, with their length in bytes.
    short: Vec<(SharedFile, usize)>,
    /// Entries that could not be decrypted.
    closed: Vec<SharedFile>,
    /// Entries without a value.
    empty: Vec<SharedFile>,
    /// Entries that are absent.
    missing: Vec<SharedFile>,
    /// Entries with the wrong content, and the problem.
    wrong: Vec<(SharedFile, String)>,
}

impl SharedCertsError {
    /// Returns one message for each problem, with its fix.
    pub fn messages(&self) -> Vec<String> {
        let secret = format!("the Secret {NAMESPACE}/{SECRET_NAME}");
        let again = format!(
            "upload again on a control-plane node, and use the certificate key that this command prints: {UPLOAD_COMMAND}"
        );
        let mut messages = Vec::new();
        if !self.closed.is_empty() {
            let closed = listed(&self.closed);
            messages.push(match self.opened.as_slice() {
                [] => format!(
                    "the certificate key does not decrypt any entry of {secret} ({closed}); each upload has a different key, so use the one that the latest upload printed, or {again}"
                ),
                opened => format!(
                    "{secret} has entries that cannot be decrypted: {closed}, while the same certificate key decrypts {}; they were changed, or encrypted with another key; {again}",
                    listed(opened)
                ),
            });
        }
        for (entry, size) in &self.short {
            messages.push(format!(
                "{entry} in {secret} is truncated: it has {size} bytes, and an empty file would have {}; {again}",
                NONCE_BYTES + TAG_BYTES
            ));
        }
        for (entries, what) in [
            (&self.empty, "has no contents for"),
            (&self.missing, "has no"),
        ] {
            if entries.is_empty() {
                continue;
            }
            let consequence = if entries.iter().all(|entry| entry.is_authority_key()) {
                "with external authorities, CA private keys are unavailable"
            } else {
                "without them this node would create its own, which the other nodes do not accept"
            };
            messages.push(format!(
                "{secret} {what} {}, which the node that uploaded did not have; {consequence}; fix this on that node, then {again}",
                listed(entries)
            ));
        }
        for (entry, why) in &self.wrong {
            messages.push(format!(
                "{entry} in {secret} has the wrong content: {why}; fix the file on the node that uploaded it, then {again}"
            ));
        }
        messages
    }

    fn is_empty(&self) -> bool {
        let SharedCertsError {
            opened: _,
            short,
            closed,
            empty,
            missing,
            wrong,
        } = self;
        short.is_empty()
            && closed.is_empty()
            && empty.is_empty()
            && missing.is_empty()
            && wrong.is_empty()
    }
}

fn listed(entries: &[SharedFile]) -> String {
    let names: Vec<_> = entries.iter().map(|entry| entry.as_str()).collect();
    names.join(", ")
}

/// Decrypts the needed entries of the Secret. Other entries may be absent or damaged; they are wiped immediately, and the
/// notes name them.
///
/// # Errors
/// A needed entry that is absent, cannot be decrypted or has the wrong content.
pub fn open(
    data: &BTreeMap<String, Vec<u8>>,
    key: &CertificateKey,
    needed: &BTreeSet<SharedFile>,
) -> Result<(SharedCerts, Vec<String>), Box<SharedCertsError>> {
    let mut error = SharedCertsError::default();
    let mut contents = BTreeMap::new();
    let mut damaged = Vec::new();
    for entry in SharedFile::ALL {
        let is_needed = needed.contains(&entry);
        let value = match data.get(entry.as_str()) {
            Some(value) if !value.is_empty() => value,
            found => {
                match found {
                    _ if !is_needed => {}
                    Some(_) => error.empty.push(entry),
                    None => error.missing.push(entry),
                }
                continue;
            }
        };
        match key.open(value) {
            Some(plain) => {
                error.opened.push(entry);
                if is_needed {
                    contents.insert(entry, plain);
                }
            }
            None if !is_needed => damaged.push(entry),
            None if value.len() < NONCE_BYTES + TAG_BYTES => error.short.push((entry, value.len())),
            None => error.closed.push(entry),
        }
    }
    let skipped_keys: Vec<_> = error
        .opened
        .iter()
        .copied()
        .filter(|entry| entry.is_authority_key() && !needed.contains(entry))
        .collect();
    match SharedCerts::new(contents) {
        Ok(certs) if error.is_empty() => Ok((certs, notes(&skipped_keys, &damaged))),
        Ok(_) => Err(Box::new(error)),
        Err(wrong) => Err(Box::new(SharedCertsError { wrong, ..error })),
    }
}

fn notes(skipped_keys: &[SharedFile], damaged: &[SharedFile]) -> Vec<String> {
    let mut notes = Vec::new();
    if !skipped_keys.is_empty() {
        notes.push(format!(
            "the Secret {NAMESPACE}/{SECRET_NAME} contains CA private keys, which were not written to this node: {}",
            listed(skipped_keys)
        ));
    }
    if !damaged.is_empty() {
        notes.push(format!(
            "the Secret {NAMESPACE}/{SECRET_NAME} has entries that the certificate key does not decrypt, and that are not needed here: {}",
            listed(damaged)
        ));
    }
    notes
}

/// Returns the data of the Secret with the encrypted contents of `names`. Like kubeadm, it uses an empty value for an
/// absent file.
///
/// # Errors
/// See [`SealError`].
pub fn seal(
    certs: &SharedCerts,
    names: &BTreeSet<SharedFile>,
    key: &CertificateKey,
) -> Result<BTreeMap<String, Vec<u8>>, SealError> {
    let mut data = BTreeMap::new();
    for entry in names {
        let value = match certs.contents(*entry) {
            Some(plain) => {
                let mut nonce = [0; NONCE_BYTES];
                getrandom::fill(&mut nonce).map_err(SealError::Random)?;
                key.seal(plain, nonce).ok_or(SealError::TooLarge(*entry))?
            }
            None => Vec::new(),
        };
        data.insert(entry.as_str().to_owned(), value);
    }
    Ok(data)
}

#[cfg(test)]
mod tests;
