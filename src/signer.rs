//! The signer contract: how nodepki requests a certificate, for every kind of signer.
//!
//! An exchange has two phases. [`Signer::submit`] sends a [`Request`] and returns an [`Answer`]: issued, pending with a
//! [`Ticket`], or denied. [`Signer::poll`] asks for the result with the ticket, in the same process or after a reboot.
//! [`Signer::recover`] finds an earlier request of this node without creating one. After a crash or a lost response it
//! prevents a second request where the signer supports a look-up, and a key is never paired with a certificate for
//! another key.
//!
//! A signer performs at most one logical exchange per call. It does not sleep, retry or write to the node, and it
//! classifies its own failures ([`FailureClass`]). It receives the CSR and never the private key. Its result is a candidate:
//! the agent verifies it against the spec and the pinned authority, persists tickets before they are used, is
//! responsible for retries ([`retry`]), deadlines and installation, and calls [`Signer::settled`] after the commit.
//!
//! To add a signer, follow `CONTRIBUTING.md`.

pub mod bundle;
mod caps;
pub mod cert_manager;
pub mod cfssl;
mod cluster;
pub mod directory;
pub mod embedded;
mod endpoint;
pub mod est;
pub mod exec;
mod flag;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod kinds;
pub mod kubernetes;
pub mod local;
pub mod per_certificate;
pub mod puppet;
pub mod retry;
mod server;
mod shell;
pub mod step_ca;
pub mod vault;
pub mod wire;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::http::Files;
use crate::kube::names::{Authority, CertName, NodePath};
use crate::process::machine;
use crate::store::{self, STATE_DIR};
use crate::text::hex;
use crate::x509::{Chain, ChainError, Csr, KeyAlgorithm, ListScope, PublicKey};

pub use crate::http::printable;
pub use crate::spec::RequestedCertificate;
pub use caps::{Caps, Carry, Rejection, Renewal, RequestLookup, Resubmit};
pub use cluster::MetadataTexts;
pub use flag::BadFlag;
use kinds::OTHER_SIGNER;
pub use kinds::{About, Config, Configured, Part, SignerKind, SignerObstacle};
pub(crate) use shell::quoted;

/// A source of certificates.
#[async_trait(?Send)]
pub trait Signer {
    /// Returns the kind.
    fn kind(&self) -> SignerKind;

    /// Returns kind and location, for messages: `exec:/usr/libexec/corp-sign`.
    fn label(&self) -> String;

    /// Returns kind and location as configured, stable over runs. A persisted ticket is recorded with this text and
    /// is usable only with the signer that returns the same text.
    fn configured(&self) -> String {
        self.label()
    }

    /// Returns what the signer can certify and how it handles a repeated request.
    fn caps(&self) -> &Caps;

    /// Checks whether the signer is usable, and may update its capabilities. Creates no request. Called once per run,
    /// before [`Signer::preflight`].
    async fn probe(&self) -> Result<(), SignerError> {
        Ok(())
    }

    /// Returns why [`Signer::probe`] would use up a one-time credential of this node; `None` if it can be repeated.
    fn probe_uses_up(&self) -> Option<String> {
        None
    }

    /// Verifies the credential that [`Signer::probe_uses_up`] is about, without using it up.
    async fn inspect_credential(&self) -> Result<(), SignerError> {
        Ok(())
    }

    /// Ends what [`Signer::probe`] began at the server, such as a session. Called instead of [`Signer::settled`] if no
    /// request follows. Does not affect what earlier runs have left for later ones.
    async fn leave(&self) -> Result<(), SignerError> {
        Ok(())
    }

    /// Reports, before a key is generated and without I/O, whether the signer as configured can issue this certificate.
    fn preflight(&self, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        self.caps().carries(&self.label(), wanted)
    }

    /// Returns the authority's certificates as the signer publishes them, in any form that a chain may have; `None` if
    /// the signer does not publish them. The result is only a candidate: files and pins determine what is trusted. An error
    /// states whether the signer may still sign: [`SignerError::precludes_signing`]. [`Signer::probe`] need not precede it,
    /// since CA certificates are public.
    async fn trust(&self, _authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        Ok(None)
    }

    /// Returns the authority's revocation lists as the signer publishes them, PEM or DER; `None` if there are none. The
    /// result is not verified. [`Signer::probe`] need not precede it, since lists are public: no session begins.
    async fn crl(&self, _authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        Ok(None)
    }

    /// Returns what is known of the lists that [`Signer::crl`] returns, besides their content.
    fn crl_scope(&self) -> ListScope {
        ListScope::AsStated
    }

    /// Finds an earlier request of this node. Creates nothing. Returns `None` if the signer has no such request or
    /// cannot tell; [`Caps::resubmit`] then determines whether to submit again.
    async fn recover(
        &self,
        _request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        Ok(None)
    }

    /// Submits the request. However often it is called, it must return a certificate for this request's key or none.
    async fn submit(&self, request: &Request) -> Result<Answer, SignerError>;

    /// Submits a request for a certificate that replaces a still valid one with the same subject and names. For signers
    /// with [`Renewal::SameKey`] the request's key is the current one.
    async fn renew(
        &self,
        request: &Request,
        _current: &CurrentCertificate,
    ) -> Result<Answer, SignerError> {
        self.submit(request).await
    }

    /// Returns the state of a pending request; [`Answer::Gone`] if the signer does not know the ticket.
    async fn poll(&self, _request: &Request, _ticket: &Ticket) -> Result<Answer, SignerError> {
        Ok(Answer::Gone)
    }

    /// Removes what was created for the request with this [`Request::key`]. Called when the certificate is installed and
    /// the commit is durable, and when a kubelet's request is finished or was deleted; possibly more than once.
    async fn settled(&self, _key: &str) -> Result<(), SignerError> {
        Ok(())
    }
}

/// A signer's response to a request. `C` is the certificate and any further certificates sent with it: PEM, DER or PKCS#7,
/// not verified; or what a verification made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<C = Vec<u8>> {
    /// The certificate was issued.
    Issued(C),
    /// Accepted, but not decided. The ticket is persisted before it is used.
    Pending {
        /// Reference for the next poll. It may differ from the previous one.
        ticket: Ticket,
        /// When the signer asks to be polled again.
        after: Option<Duration>,
        /// The reason for the wait, for the log and `status`.
        note: String,
        /// Whether all requests wait for the same: the note differs only in the name of the request.
        is_uniform: bool,
    },
    /// Refused by an administrator or a policy. Final until an administrator intervenes.
    Denied {
        /// The signer's reason, control characters escaped.
        reason: String,
    },
    /// The ticket is unknown to the signer: the same request must be submitted again.
    Gone,
}

impl<C> Answer<C> {
    /// Returns the answer with what `verify` makes of an issued certificate.
    pub fn map<V>(self, verify: impl FnOnce(C) -> V) -> Answer<V> {
        match self {
            Answer::Issued(certificate) => Answer::Issued(verify(certificate)),
            Answer::Pending {
                ticket,
                after,
                note,
                is_uniform,
            } => Answer::Pending {
                ticket,
                after,
                note,
                is_uniform,
            },
            Answer::Denied { reason } => Answer::Denied { reason },
            Answer::Gone => Answer::Gone,
        }
    }
}

/// Context for opening a signer: the clock, this node's names and its files.
pub struct Site<'a> {
    /// Name of the signer in the configuration.
    pub name: &'a str,
    /// Current time.
    pub now: OffsetDateTime,
    /// Source of later times.
    pub clock: fn() -> OffsetDateTime,
    /// The requesting node.
    pub identity: NodeIdentity,
    /// Key algorithm of authorities that a signer generates.
    pub authority_key: KeyAlgorithm,
    /// The node's files.
    pub files: Rc<dyn Files>,
    /// Directory of the unit's systemd credentials.
    pub credentials: Option<PathBuf>,
    /// Whether programs named by this signer may be started.
    pub programs: Programs,
    /// Storage of this signer between runs, in the state directory of the node or of the cluster that requests.
    pub memory: Rc<dyn Memory>,
    /// Storage for its login, on this machine: all clusters use the same credential, which may be of one use.
    pub login_memory: Rc<dyn Memory>,
    /// Opens a drop directory whose inbox and outbox may belong to the users with these ids.
    pub drop_dir: &'a directory::OpenDrop<'a>,
    /// Looks up user and group of a user name or number.
    pub user: &'a dyn Fn(&str) -> io::Result<Option<exec::RunAs>>,
}

/// Whether programs named in a definition may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Programs {
    /// Programs may be started.
    Run,
    /// Programs may not be started, because the definition is a file of another system.
    Refused {
        /// Root of that system.
        below: PathBuf,
    },
}

/// A signer's small files in the state directory (0600, durable when the call returns). The content may be secret,
/// such as a token that replaced a one-time token.
pub trait Memory {
    /// Returns the content stored under `name`.
    fn recall(&self, name: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>>;

    /// Stores `bytes` under `name`, replacing earlier content.
    fn keep(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Removes `name`; a missing file is not an error.
    fn forget(&self, name: &str) -> io::Result<()>;

    /// Returns the state directory, for messages.
    fn state_dir(&self) -> NodePath {
        STATE_DIR.into()
    }
}

/// The certificate that a renewal replaces, with its key: the credential of the renewal request.
#[derive(Clone)]
pub struct CurrentCertificate {
    /// Leaf and intermediates.
    pub chain_pem: Vec<u8>,
    /// The leaf's key.
    pub key_pem: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for CurrentCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current(a certificate and its key)")
    }
}

/// The requesting node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// Node name.
    pub node: String,
    /// Cluster name.
    pub cluster: String,
}

/// The request for one slot: everything that a signer may see.
#[derive(Clone, Debug)]
pub struct Request {
    /// Identifies this request permanently; see [`RequestId`].
    pub id: RequestId,
    /// The certificate that is requested.
    pub wanted: RequestedCertificate,
    /// The certificate signing request.
    pub csr: Csr,
    /// UID of the CertificateSigningRequest of another node's kubelet; `None` for a certificate of this node. It
    /// distinguishes requests for the same slot.
    pub object: Option<String>,
    /// SHA-256 of the certificate that is replaced with the same key; see [`Request::replacing`].
    pub replaced: Option<[u8; 32]>,
    /// SHA-256 of the subject public key info.
    pub spki_sha256: [u8; 32],
    /// The requesting node.
    pub identity: NodeIdentity,
    /// Number of this exchange for this id, from 1.
    pub attempt: u32,
    /// Start of this exchange.
    pub now: OffsetDateTime,
    /// Time until which the agent waits for the response.
    pub deadline: Option<OffsetDateTime>,
}

impl Request {
    /// Creates the first attempt of a request.
    pub fn new(
        wanted: RequestedCertificate,
        csr: Csr,
        identity: NodeIdentity,
        now: OffsetDateTime,
    ) -> Self {
        Request {
            id: RequestId::of(&wanted, &csr),
            spki_sha256: csr.public_key().sha256(),
            wanted,
            csr,
            object: None,
            replaced: None,
            identity,
            attempt: 1,
            now,
            deadline: None,
        }
    }

    /// Derives the id for a request that replaces, with the same key, the certificate with this SHA-256. Without this, a
    /// deterministic CSR signature (RSA) would give the new request the id of the old certificate's request, and thus
    /// its response.
    #[must_use]
    pub fn replacing(mut self, replaced: Option<&[u8; 32]>) -> Self {
        if let Some(replaced) = replaced {
            self.id = self.id.extended(replaced);
            self.replaced = Some(*replaced);
        }
        self
    }

    /// Returns the request of a kubelet for the CertificateSigningRequest with this UID. The id depends on it: a kubelet
    /// that repeats a CSR gets a certificate of its own. Every node derives the same id.
    #[must_use]
    pub fn for_object(mut self, uid: &str) -> Self {
        self.id = self.id.extended(uid.as_bytes());
        self.object = Some(uid.to_owned());
        self
    }

    /// Returns the same request as a further attempt.
    #[must_use]
    pub fn again(
        &self,
        attempt: u32,
        now: OffsetDateTime,
        deadline: Option<OffsetDateTime>,
    ) -> Self {
        Request {
            attempt,
            now,
            deadline,
            ..self.clone()
        }
    }

    /// Returns the slot.
    pub fn name(&self) -> CertName {
        self.wanted.name
    }

    /// Returns the name that distinguishes simultaneous requests: the slot, with the UID of a kubelet's object.
    pub fn key(&self) -> String {
        match &self.object {
            Some(uid) => Request::key_for_object(self.wanted.name, uid),
            None => self.wanted.name.to_string(),
        }
    }

    /// Returns the key of a kubelet's request, [`Request::for_object`].
    pub fn key_for_object(name: CertName, uid: &str) -> String {
        format!("{name}.{uid}")
    }
}

/// SHA-256 over slot, profile and CSR, in hexadecimal. It is stable for a repeated request and changes with the
/// profile or the key. Signers use it as their idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(String);

impl RequestId {
    fn of(wanted: &RequestedCertificate, csr: &Csr) -> Self {
        let mut digest = Sha256::new();
        for part in [
            wanted.name.as_str().as_bytes(),
            wanted.authority.as_str().as_bytes(),
            wire::profile_line(&wanted.profile).as_bytes(),
            csr.der(),
        ] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        RequestId(hex(&digest.finalize()))
    }

    fn extended(&self, part: &[u8]) -> Self {
        let mut digest = Sha256::new_with_prefix(self.as_str());
        digest.update(part);
        RequestId(hex(&digest.finalize()))
    }

    /// Returns the hexadecimal form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

as_text!(RequestId: Display);

/// A signer's reference to a pending request. Opaque to every other component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ticket(String);

/// Error for a ticket that is empty or longer than [`Ticket::MAX`] bytes.
#[derive(Debug, thiserror::Error)]
#[error("a ticket has 1 to {max} bytes, this one has {0}", max = Ticket::MAX)]
pub struct BadTicket(usize);

impl Ticket {
    /// Largest length in bytes.
    pub const MAX: usize = 4096;

    /// Returns the signer's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Ticket {
    type Error = BadTicket;

    fn try_from(text: String) -> Result<Self, BadTicket> {
        match text.len() {
            1..=Ticket::MAX => Ok(Ticket(text)),
            length => Err(BadTicket(length)),
        }
    }
}

impl From<Ticket> for String {
    fn from(ticket: Ticket) -> String {
        ticket.0
    }
}

words! {
    /// How a failure is retried; see [`retry::delay`].
    pub enum FailureClass: Serialize, Deserialize {
        /// Nothing happened; an immediate retry may succeed.
        Transient = "transient",
        /// The request may have reached the signer and the response is lost: [`Signer::recover`] is called first.
        Ambiguous = "ambiguous",
        /// Credentials were refused. They may be rotated, so retries continue at a slow rate.
        Auth = "auth",
        /// A path, role, file or trust setting is wrong. Logged, and retried every few minutes.
        Config = "config",
        /// This request never succeeds.
        Permanent = "permanent",
    }
}

impl FailureClass {
    /// Returns true if the signer certainly has not processed the request.
    pub const fn excludes_processing(self) -> bool {
        matches!(
            self,
            FailureClass::Transient | FailureClass::Auth | FailureClass::Config
        )
    }

    /// Returns true if the same request may soon succeed without intervention.
    pub const fn passes(self) -> bool {
        matches!(self, FailureClass::Transient | FailureClass::Ambiguous)
    }
}

/// Error of an exchange.
#[derive(Debug, thiserror::Error)]
#[error("{detail}; {advice}")]
pub struct SignerError {
    /// How it is retried.
    pub class: FailureClass,
    /// When the signer asks to be contacted again.
    pub retry_after: Option<Duration>,
    /// The failure, with the server or file.
    pub detail: String,
    /// Required action.
    pub advice: String,
    /// The part of the detail that says what was being done, as "signing apiserver for authority ca".
    pub doing: Option<String>,
    /// The signer has answered, and the answer is unusable, independent of the class.
    pub bad_answer: bool,
    /// A request for the same authority would fail as well: the answer to [`Signer::trust`] shows that a setting is wrong,
    /// or that the signer lacks what it needs.
    pub precludes_signing: bool,
    /// The failure was caused by this machine (see [`machine`]), independent of the class.
    pub machine_fault: bool,
    /// Cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The sources are not compared.
impl PartialEq for SignerError {
    fn eq(&self, other: &Self) -> bool {
        let parts = |error: &Self| (error.class, error.machine_fault);
        parts(self) == parts(other)
            && (&self.detail, &self.advice) == (&other.detail, &other.advice)
    }
}

impl SignerError {
    /// Creates an error of `class`.
    pub fn new(class: FailureClass, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        SignerError {
            class,
            retry_after: None,
            detail: detail.into(),
            advice: advice.into(),
            doing: None,
            bad_answer: false,
            precludes_signing: false,
            machine_fault: false,
            source: None,
        }
    }

    /// Creates an error of [`FailureClass::Config`].
    pub fn config(detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(FailureClass::Config, detail, advice)
    }

    /// Creates an error of [`FailureClass::Permanent`].
    pub fn permanent(detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(FailureClass::Permanent, detail, advice)
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let source = source.into();
        self = self.marked_by(source.as_ref());
        self.source = Some(source);
        self
    }

    /// Applies what follows from `cause` when the detail already contains its text: the machine-fault flag, and the
    /// class for a file that is refused because other users can access it.
    #[must_use]
    pub fn marked_by(mut self, cause: &(dyn std::error::Error + 'static)) -> Self {
        self.machine_fault |= machine::is_fault(cause);
        if store::is_access_refusal(cause) {
            self.class = FailureClass::Permanent;
        }
        self
    }

    /// Sets what was being done, as the detail contains it.
    #[must_use]
    pub fn during(mut self, doing: &str) -> Self {
        self.doing = Some(doing.to_owned());
        self
    }

    /// Returns whether a signer that answered [`Signer::trust`] with this error may issue certificates.
    pub(crate) fn may_still_sign(&self) -> bool {
        !self.class.passes() && !self.precludes_signing
    }

    /// Returns whether two errors differ at most in what was being done.
    pub(crate) fn has_same_cause(&self, other: &SignerError) -> bool {
        let cause = |error: &Self| match &error.doing {
            Some(doing) => error.detail.replacen(doing, "", 1),
            None => error.detail.clone(),
        };
        let parts = |error: &Self| (error.class, error.machine_fault);
        parts(self) == parts(other) && self.advice == other.advice && cause(self) == cause(other)
    }

    /// Returns a copy without the cause.
    pub(crate) fn without_cause(&self) -> SignerError {
        SignerError {
            detail: self.detail.clone(),
            advice: self.advice.clone(),
            doing: self.doing.clone(),
            source: None,
            ..*self
        }
    }

    /// Sets when the signer asks to be contacted again.
    #[must_use]
    pub fn retry_after(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }
}

/// Returns whether one of the certificates in a response is for `key`. The order is not checked here; the
/// verification refuses a wrong one.
pub(crate) fn certifies(answer: &[u8], key: &PublicKey) -> bool {
    matches!(
        Chain::from_response(answer, key),
        Ok(_) | Err(ChainError::LeafNotFirst { .. })
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::x509::{Profile, Tolerance};

    #[test]
    fn every_kind_has_a_source_file() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/signer");
        for kind in SignerKind::ALL {
            let file: String = kind
                .as_str()
                .chars()
                .enumerate()
                .flat_map(|(at, c)| {
                    (at > 0 && c.is_uppercase())
                        .then_some('_')
                        .into_iter()
                        .chain([c])
                })
                .collect();
            let file = file.to_lowercase().replace("_c_a", "_ca");
            assert!(dir.join(format!("{file}.rs")).is_file(), "{kind}");
        }
    }

    #[test]
    fn rejects_ticket_over_size_limit() {
        assert_eq!(
            Ticket::try_from(String::new()).unwrap_err().to_string(),
            "a ticket has 1 to 4096 bytes, this one has 0"
        );
        assert!(Ticket::try_from("x".repeat(4096)).is_ok());
        assert!(serde_json::from_str::<Ticket>(&format!("\"{}\"", "x".repeat(4097))).is_err());
    }

    #[test]
    fn preflight_reports_every_obstacle() {
        let wanted = RequestedCertificate {
            name: CertName::KubeletConf,
            authority: Authority::Ca,
            profile: Profile {
                subject: crate::x509::Subject::new("system:node:cp1", &["system:nodes"]),
                sans: crate::x509::Sans {
                    dns: Vec::new(),
                    ips: vec!["192.0.2.1".parse().unwrap()],
                },
                usages: vec![crate::x509::ExtendedUsage::ClientAuth],
                key: KeyAlgorithm::EcdsaP256,
                lifetime: Duration::from_secs(3600),
            },
            tolerance: Tolerance::default(),
        };
        assert!(Caps::everything().carries("x", &wanted).is_ok());
        let nothing = Caps {
            organization: Carry::No,
            colon_common_name: Carry::No,
            ip_sans: Carry::No,
            ..Caps::everything()
        };
        let message = nothing.carries("puppet", &wanted).unwrap_err().to_string();
        for part in ["O=system:nodes", "CN=system:node:cp1", "192.0.2.1"] {
            assert!(message.contains(part), "{message}");
        }
        let no_addresses = Caps {
            ip_sans: Carry::No,
            ..Caps::everything()
        };
        assert_eq!(
            no_addresses
                .carries("puppet", &wanted)
                .unwrap_err()
                .to_string(),
            "puppet cannot sign kubelet.conf: it cannot certify IP addresses (192.0.2.1); configure a signer that can for \
             authority ca, in `authorities`"
        );
    }
}
