//! The signer contract: how a certificate is asked for, whoever signs.
//!
//! Two phases. [`Signer::submit`] hands a [`Request`] over and gets an [`Answer`]: issued, pending with a
//! [`Ticket`], or denied; [`Signer::poll`] asks again with the ticket, in this process or in one after a reboot.
//! [`Signer::recover`] finds our own earlier request without making a new one, so that a crash or a lost answer
//! never ends in two requests where the signer can tell, and never pairs a key with another key's certificate.
//!
//! What a signer owes: at most one logical exchange a call; no sleeping, no retrying, no writing to the node. It
//! classifies its own failures ([`Class`]). It sees the CSR and never the private key. What it returns is a
//! candidate: the agent verifies it against the wish and the pinned authority, persists tickets before they are
//! used, owns retries ([`retry`]), deadlines and installation, and calls [`Signer::settled`] after the commit.
//!
//! To add a signer, follow `CONTRIBUTING.md`.

pub mod bundle;
pub mod cert_manager;
pub mod cfssl;
mod cluster;
pub mod directory;
pub mod embedded;
mod endpoint;
pub mod est;
pub mod exec;
mod flag;
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
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::http::Files;
use crate::kube::names::{Authority, CertName, NodePath};
use crate::process::machine;
use crate::store::{self, STATE_DIR};
use crate::x509::{
    Chain, ChainError, Csr, KeyAlgorithm, Profile, PublicKey, Tolerance, UsageExtensions, hex,
};
use crate::yaml::schema::Key;
use crate::yaml::{Field, Map};

pub use crate::http::printable;
pub use flag::BadFlag;

/// Somebody who turns requests into certificates.
#[async_trait(?Send)]
pub trait Signer {
    /// Which kind it is.
    fn kind(&self) -> Kind;

    /// Kind and place, for messages: `exec:/usr/libexec/corp-sign`.
    fn label(&self) -> String;

    /// Kind and place as the configuration has them, stable over runs. A persisted ticket belongs to the signer of which
    /// this is recorded; with another record it is worthless.
    fn configured(&self) -> String {
        self.label()
    }

    /// What it can carry and how it behaves when asked twice.
    fn caps(&self) -> &Caps;

    /// Looks whether the signer is usable at all, and may learn its capabilities. Creates no request. Called once
    /// a run, before [`Signer::preflight`].
    async fn probe(&self) -> Result<(), SignerError> {
        Ok(())
    }

    /// Says, before any key is made and without I/O, whether the signer as configured can carry this certificate.
    fn preflight(&self, wanted: &Wanted) -> Result<(), Rejection>;

    /// The authority's certificates as the signer knows them, in any form that a chain may have; `None` where it
    /// has no opinion. A candidate only: files and pins decide what is trusted.
    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError>;

    /// The authority's revocation lists as the signer publishes them, PEM or DER; `None` where it publishes none. Not
    /// verified yet.
    async fn crl(&self, _authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        Ok(None)
    }

    /// Finds our own earlier request. Creates nothing; `None` when the signer knows of no such request or cannot
    /// tell, and then [`Caps::resubmit`] decides whether to submit again.
    async fn recover(
        &self,
        request: &Request,
        ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError>;

    /// Hands the request over. Must give the certificate of this request's key or none, however often it is called.
    async fn submit(&self, request: &Request) -> Result<Answer, SignerError>;

    /// Hands over the request for a certificate that replaces one with the same subject and names, which is still
    /// valid. For signers with [`Renewal::SameKey`] the request's key is the current one.
    async fn renew(&self, request: &Request, _current: &Current) -> Result<Answer, SignerError> {
        self.submit(request).await
    }

    /// Asks what has become of a pending request. [`Answer::Gone`] when the signer does not know the ticket.
    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError>;

    /// The certificate is installed and the commit durable: what was laid out for this request may be removed.
    async fn settled(&self, _request: &Request) -> Result<(), SignerError> {
        Ok(())
    }
}

/// What a signer says to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The certificate with what else came along: PEM, DER or PKCS#7. Not verified yet.
    Issued(Vec<u8>),
    /// Taken, not decided. The ticket is persisted before it is used.
    Pending {
        /// What to ask again with. It may differ from the one before.
        ticket: Ticket,
        /// The signer's own wish for when to ask again.
        after: Option<Duration>,
        /// What is being waited for, for people.
        note: String,
    },
    /// A person or a policy said no. Final until somebody acts.
    Denied {
        /// The signer's reason, control characters escaped.
        reason: String,
    },
    /// The signer does not know this ticket any more: submit the same request again.
    Gone,
}

/// A kind of signer as the configuration has it: what its file gives besides a [`Signer`].
pub trait Configured: Clone + PartialEq + fmt::Debug + Sized {
    /// The kind's row in the table of signers.
    const ABOUT: About;

    /// Reads the map under the kind's name; `None` when a fault makes it unusable, and then the fault was reported.
    fn read(map: &Map<'_>) -> Option<Self>;

    /// The keys that are in force, secrets left out.
    fn redacted(&self) -> Value;

    /// What an administrator of the servers runs, as one script, so that these signers can give this node what it
    /// wants; `None` for a kind whose servers need nothing.
    fn setup(_parts: &[Part<'_, Self>], _identity: &Identity) -> Option<String> {
        None
    }

    /// Makes the signer, without network I/O.
    ///
    /// # Errors
    /// What the keys allow and this node does not.
    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError>;
}

/// A signer as configured, with what this node wants of it.
pub struct Part<'a, C> {
    /// Name of the signer in the configuration.
    pub name: &'a str,
    /// Its keys.
    pub config: &'a C,
    /// The certificates that it is to sign.
    pub wanted: Vec<Wanted>,
}

/// What people should know of a kind before they configure it. The tables in README.md and docs/signers are made of these.
pub struct About {
    /// The configuration's name of the kind.
    pub name: &'static str,
    /// Who signs, in a few words.
    pub signs_with: &'static str,
    /// How this node proves who it is, in a few words.
    pub authentication: &'static str,
    /// What it can carry and how it behaves when asked twice, before it was asked itself.
    pub caps: Caps,
    /// Its keys.
    pub keys: &'static [&'static [Key]],
}

macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident($module:ident),)+) => {
        /// The kinds of signer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[$doc])+ $kind,)+
        }

        impl Kind {
            /// All kinds.
            pub const ALL: [Kind; [$(Kind::$kind),+].len()] = [$(Kind::$kind),+];

            /// The kind's row in the table of signers.
            pub const fn about(self) -> &'static About {
                match self {
                    $(Kind::$kind => const { &<$module::Config as Configured>::ABOUT },)+
                }
            }

            /// What an administrator of the servers behind these signers runs; signers of other kinds are left out. `None`
            /// for a kind whose servers need nothing.
            pub fn setup(self, parts: &[Part<'_, Config>], identity: &Identity) -> Option<String> {
                match self {
                    $(Kind::$kind => {
                        let parts: Vec<_> = parts
                            .iter()
                            .filter_map(|part| match part.config {
                                Config::$kind(config) => Some(Part {
                                    name: part.name,
                                    config,
                                    wanted: part.wanted.clone(),
                                }),
                                _ => None,
                            })
                            .collect();
                        <$module::Config as Configured>::setup(&parts, identity)
                    })+
                }
            }

            /// Reads what stands under the kind's name; faults go to the field's walk.
            pub fn read(self, field: &Field<'_>) -> Option<Config> {
                let map = field.map()?;
                let config = match self {
                    $(Kind::$kind => $module::Config::read(&map).map(Config::$kind),)+
                };
                map.finish();
                config
            }
        }

        /// A signer as configured, before it is opened.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "a handful of them, made once a run")]
        pub enum Config {
            $($(#[$doc])+ $kind($module::Config),)+
        }

        impl Config {
            /// Which kind it is.
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Config::$kind(_) => Kind::$kind,)+
                }
            }

            /// The configuration in the shape of its file, secrets left out.
            pub fn redacted(&self) -> Value {
                let keys = match self {
                    $(Config::$kind(config) => config.redacted(),)+
                };
                json!({self.kind().as_str(): keys})
            }

            /// Makes the signer, without network I/O.
            ///
            /// # Errors
            /// What the configuration allows and this node does not.
            pub fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
                match self {
                    $(Config::$kind(config) => config.open(site),)+
                }
            }
        }
    };
}

kinds! {
    /// CertificateSigningRequests of a Kubernetes API server.
    Kubernetes(kubernetes),
    /// cert-manager's CertificateRequests.
    CertManager(cert_manager),
    /// HashiCorp Vault and OpenBao.
    Vault(vault),
    /// Enrollment over Secure Transport.
    Est(est),
    /// smallstep's step-ca.
    StepCa(step_ca),
    /// Cloudflare's CFSSL.
    Cfssl(cfssl),
    /// The certificate authority of a Puppet server.
    Puppet(puppet),
    /// A program that speaks the plug-in contract.
    Exec(exec),
    /// Files dropped in a directory, signed by whoever comes by.
    Directory(directory),
    /// CA keys in a directory.
    Local(local),
    /// Throw-away authorities in memory.
    Embedded(embedded),
}

impl Kind {
    /// The configuration's name of the kind.
    pub const fn as_str(self) -> &'static str {
        self.about().name
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What opening a signer needs from the edge: the clock, this node's names and its files.
pub struct Site<'a> {
    /// Name of the signer in the configuration.
    pub name: &'a str,
    /// Now.
    pub now: OffsetDateTime,
    /// Where later times come from.
    pub clock: fn() -> OffsetDateTime,
    /// Who asks.
    pub identity: Identity,
    /// Key algorithm of authorities that a signer makes for itself.
    pub authority_key: KeyAlgorithm,
    /// The node's files.
    pub files: Rc<dyn Files>,
    /// Where systemd put the unit's credentials.
    pub credentials: Option<PathBuf>,
    /// Whether programs that this signer names may be started.
    pub programs: Programs,
    /// What this signer may remember between runs.
    pub memory: Rc<dyn Memory>,
    /// Gives access to a directory for file drop, whose inbox and outbox the users with these ids may own.
    pub drop_dir: &'a directory::OpenDrop<'a>,
    /// User and group of a user name or number.
    pub user: &'a dyn Fn(&str) -> io::Result<Option<exec::RunAs>>,
}

/// Whether the programs of a definition may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Programs {
    /// They may.
    Run,
    /// They may not, since the definition is a file of another system.
    Refused {
        /// The root of that system.
        below: PathBuf,
    },
}

/// A signer's own small files in the state directory (0600, durable when the call returns). What is in them may be
/// secret: a token that was exchanged for a one-time one.
pub trait Memory {
    /// What was kept under `name`.
    fn recall(&self, name: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>>;

    /// Keeps `bytes` under `name`, in place of what was there.
    fn keep(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Forgets `name`; nothing to forget is no error.
    fn forget(&self, name: &str) -> io::Result<()>;

    /// The state directory, for messages.
    fn state_dir(&self) -> NodePath {
        STATE_DIR.into()
    }
}

/// The certificate that a renewal replaces, with its key: the credential of the renewal itself.
#[derive(Clone)]
pub struct Current {
    /// Leaf and intermediates.
    pub chain_pem: Vec<u8>,
    /// The leaf's key.
    pub key_pem: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current(a certificate and its key)")
    }
}

/// What a signer may know of a certificate before there is a key for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The slot.
    pub name: CertName,
    /// Who must have signed it.
    pub authority: Authority,
    /// Subject, names, usages, lifetime, key algorithm.
    pub profile: Profile,
    /// What the verification will let pass besides.
    pub tolerance: Tolerance,
}

/// Who is asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Node name.
    pub node: String,
    /// Cluster name.
    pub cluster: String,
}

/// One slot's request: everything that a signer may see.
#[derive(Clone, Debug)]
pub struct Request {
    /// Names this request for good; see [`RequestId`].
    pub id: RequestId,
    /// The wish.
    pub wanted: Wanted,
    /// The certificate signing request.
    pub csr: Csr,
    /// SHA-256 of the subject public key info.
    pub spki_sha256: [u8; 32],
    /// Who is asking.
    pub identity: Identity,
    /// Which exchange for this id this is, from 1.
    pub attempt: u32,
    /// When this exchange began.
    pub now: OffsetDateTime,
    /// When the agent stops waiting for the answer.
    pub deadline: Option<OffsetDateTime>,
}

impl Request {
    /// The first attempt of a request.
    pub fn new(wanted: Wanted, csr: Csr, identity: Identity, now: OffsetDateTime) -> Self {
        Request {
            id: RequestId::of(&wanted, &csr),
            spki_sha256: csr.public_key().sha256(),
            wanted,
            csr,
            identity,
            attempt: 1,
            now,
            deadline: None,
        }
    }

    /// For the key of the certificate with this SHA-256, which it is to replace. Where a signature over a CSR always comes
    /// out the same (RSA), the request would be that of the old certificate otherwise, and get that as its answer.
    #[must_use]
    pub fn replacing(mut self, replaced: Option<&[u8; 32]>) -> Self {
        if let Some(replaced) = replaced {
            let mut digest = Sha256::new_with_prefix(self.id.as_str());
            digest.update(replaced);
            self.id = RequestId(hex(&digest.finalize()));
        }
        self
    }

    /// The same request, asked once more.
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

    /// The slot.
    pub fn name(&self) -> CertName {
        self.wanted.name
    }
}

/// SHA-256 over slot, profile and CSR, in hexadecimal: the same for a repeated request, another one as soon as
/// the wish or the key changes. Signers use it as their idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(String);

impl RequestId {
    fn of(wanted: &Wanted, csr: &Csr) -> Self {
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

    /// The hexadecimal form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a pending request is asked after with. Opaque to everybody but its signer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ticket(String);

/// A ticket that is empty, or longer than [`Ticket::MAX`] bytes.
#[derive(Debug, thiserror::Error)]
#[error("a ticket has 1 to {max} bytes, this one has {0}", max = Ticket::MAX)]
pub struct BadTicket(usize);

impl Ticket {
    /// Bytes.
    pub const MAX: usize = 4096;

    /// The signer's text.
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

/// What a signer can carry, and how it behaves when asked twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Caps {
    /// Organizations in the subject.
    pub organization: Carry,
    /// Common names with a colon in them (`system:node:cp1`).
    pub colon_common_name: Carry,
    /// IP addresses among the subject alternative names.
    pub ip_sans: Carry,
    /// It adds the common name to the alternative names, as a DNS name, without being asked. The verification lets that
    /// one pass, since it says nothing that the subject does not.
    pub own_name_san: bool,
    /// What the CSR says about usages.
    #[serde(skip)]
    pub usage_extensions: UsageExtensions,
    /// An answer may take long: a person, a queue.
    pub pends: bool,
    /// How an earlier request is found again.
    pub lookup: Lookup,
    /// What happens when a request is sent twice.
    pub resubmit: Resubmit,
    /// Whether a certificate can be had in exchange for the one that it replaces.
    pub renewal: Renewal,
    /// Whether it publishes which certificates it revoked.
    pub crl: Carry,
}

/// Whether something that was asked for reaches the certificate. Ordered from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Carry {
    /// As asked.
    Yes,
    /// Only if the server's own configuration says so; the verification will tell.
    AsConfigured,
    /// Never.
    No,
}

/// How a signer finds our own earlier request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Lookup {
    /// By a name that follows from the request.
    ByName,
    /// By the ticket only: a request whose answer was lost is lost.
    ByTicket,
    /// Sending the request again is the look-up.
    ByResubmit,
    /// Not at all.
    None,
}

/// What a signer does with a request that it already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Resubmit {
    /// Takes it as the same request.
    Adopts,
    /// Issues a second certificate for the same key: harmless, but it counts.
    Duplicates,
    /// Needs a new credential first.
    FreshCredential,
    /// Must not be asked twice; a person has to look.
    Forbidden,
}

/// How a certificate is replaced by a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Renewal {
    /// Like a first one.
    Submit,
    /// In exchange for the current one, for the same key only.
    SameKey,
    /// In exchange for the current one, also for a new key.
    Rekey,
}

impl Carry {
    /// For people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Carry::Yes => "yes",
            Carry::AsConfigured => "as its server says",
            Carry::No => "no",
        }
    }
}

impl Caps {
    /// A signer that carries whatever it is asked for and answers at once.
    pub const fn everything() -> Self {
        Caps {
            organization: Carry::Yes,
            colon_common_name: Carry::Yes,
            ip_sans: Carry::Yes,
            own_name_san: false,
            usage_extensions: UsageExtensions::Requested,
            pends: false,
            lookup: Lookup::None,
            resubmit: Resubmit::Duplicates,
            renewal: Renewal::Submit,
            crl: Carry::No,
        }
    }

    /// Whether everything that a certificate needs reaches it, of what the capabilities speak of.
    pub fn carry(&self, wanted: &Wanted) -> Carry {
        let subject = &wanted.profile.subject;
        let needed = [
            (self.organization, !subject.organizations.is_empty()),
            (self.colon_common_name, subject.common_name.contains(':')),
            (self.ip_sans, !wanted.profile.sans.ips.is_empty()),
        ];
        let needed = needed.into_iter().filter(|(_, needed)| *needed);
        needed.map(|(carry, _)| carry).max().unwrap_or(Carry::Yes)
    }

    /// The part of [`Signer::preflight`] that follows from the capabilities alone. Gives every obstacle.
    pub fn carries(&self, label: &str, wanted: &Wanted) -> Result<(), Rejection> {
        let profile = &wanted.profile;
        let mut obstacles = Vec::new();
        if self.organization == Carry::No && !profile.subject.organizations.is_empty() {
            obstacles.push(format!(
                "it cannot put an organization (O={}) into a certificate",
                profile.subject.organizations.join(", O=")
            ));
        }
        if self.colon_common_name == Carry::No && profile.subject.common_name.contains(':') {
            obstacles.push(format!(
                "it cannot certify a common name with a colon (CN={})",
                profile.subject.common_name
            ));
        }
        if self.ip_sans == Carry::No && !profile.sans.ips.is_empty() {
            let ips: Vec<_> = profile.sans.ips.iter().map(ToString::to_string).collect();
            obstacles.push(format!(
                "it cannot certify IP addresses ({})",
                ips.join(", ")
            ));
        }
        if obstacles.is_empty() {
            return Ok(());
        }
        Err(Rejection {
            signer: label.to_owned(),
            name: wanted.name,
            reason: obstacles.join("; "),
            advice: format!(
                "give authority {} a signer that can, in `authorities`",
                wanted.authority
            ),
        })
    }
}

/// A certificate that a signer, as configured, cannot carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{signer} cannot sign {name}: {reason}; {advice}")]
pub struct Rejection {
    /// The signer's label.
    pub signer: String,
    /// The certificate.
    pub name: CertName,
    /// Why.
    pub reason: String,
    /// What to do now.
    pub advice: String,
}

/// How a failure behaves when tried again; see [`retry::delay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// Nothing happened; it may work in a moment.
    Transient,
    /// The request may have reached the signer and its answer is lost: [`Signer::recover`] comes first.
    Ambiguous,
    /// Credentials were refused. They get rotated in, so it is tried again slowly.
    Auth,
    /// Path, role, file or trust is set up wrongly. Loud, and tried again every few minutes.
    Config,
    /// This request will never succeed.
    Permanent,
}

impl Class {
    /// The name in records, events and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::Transient => "transient",
            Class::Ambiguous => "ambiguous",
            Class::Auth => "auth",
            Class::Config => "config",
            Class::Permanent => "permanent",
        }
    }

    /// True when the same request may work in a moment, without anybody doing anything.
    pub const fn passes(self) -> bool {
        matches!(self, Class::Transient | Class::Ambiguous)
    }
}

/// A failed exchange.
#[derive(Debug, thiserror::Error)]
#[error("{detail}; {advice}")]
pub struct SignerError {
    /// How it behaves when tried again.
    pub class: Class,
    /// The signer's own wish for when to try again.
    pub retry_after: Option<Duration>,
    /// What failed, and where.
    pub detail: String,
    /// What to do now.
    pub advice: String,
    /// This machine is at fault (see [`machine`]), whatever the class says.
    pub machine_fault: bool,
    /// The cause below.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl SignerError {
    /// An error of `class`.
    pub fn new(class: Class, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        SignerError {
            class,
            retry_after: None,
            detail: detail.into(),
            advice: advice.into(),
            machine_fault: false,
            source: None,
        }
    }

    /// Shorthand for [`Class::Config`].
    pub fn config(detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Class::Config, detail, advice)
    }

    /// Shorthand for [`Class::Permanent`].
    pub fn permanent(detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Class::Permanent, detail, advice)
    }

    /// With the cause below.
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

    /// With what follows from `cause`, which the detail tells already: the mark of a machine fault, and the class for a
    /// file that is refused because other users can get at it.
    #[must_use]
    pub fn marked_by(mut self, cause: &(dyn std::error::Error + 'static)) -> Self {
        self.machine_fault |= machine::is_fault(cause);
        if store::is_access_refusal(cause) {
            self.class = Class::Permanent;
        }
        self
    }

    /// With the signer's own wish for when to try again.
    #[must_use]
    pub fn retry_after(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }
}

/// Whether one of the certificates in an answer is for `key`. In the wrong order it still is, and the verification
/// refuses it.
pub(crate) fn certifies(answer: &[u8], key: &PublicKey) -> bool {
    matches!(
        Chain::from_answer(answer, key),
        Ok(_) | Err(ChainError::LeafNotFirst { .. })
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_kind_has_its_file() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/signer");
        for kind in Kind::ALL {
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
    fn tickets_are_bounded() {
        assert!(Ticket::try_from(String::new()).is_err());
        assert!(Ticket::try_from("x".repeat(4096)).is_ok());
        assert!(serde_json::from_str::<Ticket>(&format!("\"{}\"", "x".repeat(4097))).is_err());
    }

    #[test]
    fn every_obstacle_is_named() {
        let wanted = Wanted {
            name: CertName::KubeletConf,
            authority: Authority::Ca,
            profile: Profile {
                subject: crate::x509::Subject {
                    common_name: "system:node:cp1".to_owned(),
                    organizations: vec!["system:nodes".to_owned()],
                },
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
        for part in [
            "puppet cannot sign kubelet.conf",
            "O=system:nodes",
            "CN=system:node:cp1",
            "192.0.2.1",
            "authority ca",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}
