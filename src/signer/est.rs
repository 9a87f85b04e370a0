//! `est`: Enrollment over Secure Transport (RFC 7030, RFC 8951), which most commercial and industrial CAs speak.
//!
//! # Settings
//! `url`, without `/.well-known/est`, and for a server with several CAs or profiles the `label` between that path and
//! the operation: one for all certificates, one for each, or one with `{authority}` in it for each authority, so
//! one signer serves all three. The server is verified by `tls`, or by `rootSHA256`, the fingerprint of the root
//! certificate that it publishes. In the second case `/cacerts` is requested once without verification and only the
//! root with that fingerprint is taken from the response; everything after that, the credential included, is sent
//! over a new connection that this root verifies. This node authenticates with `auth.basic`, a client certificate
//! (`tls.certificate` and `tls.key`), or both.
//!
//! # Preparation of the server
//! `nodepki config signer-setup est` prints the names and usages of each certificate, and profiles for libest.
//!
//! - The profile must copy subject and alternative names from the request: organizations (`system:masters` and others
//!   determine the rights of a client), common names with colons, DNS names and IP addresses.
//! - The CA must issue the requested usages, or have a profile (and thus a label) for each of server, client, and
//!   both. A CA that always certifies both usages needs `allowExtraUsages` of the authority.
//! - This node's credential must be allowed these names and no others.
//! - Three CAs are needed: as three labels, or as three servers with a signer entry each.
//!
//! # Behaviour of these servers
//! - 202 means "not decided yet": the same bytes are sent again after `Retry-After`. Some servers always return an
//!   hour; at most `longestWait` of it is waited. If a request that was accepted with 202 is later refused, it was
//!   denied.
//! - The response contains only the certificate, in an unordered PKCS#7; intermediates come from `/cacerts`.
//! - `/csrattrs` lists the server's requirements. A key type other than the planned one, and channel binding, which
//!   TLS 1.3 removed, are reported before a key is generated.
//! - A renewal (`simplereenroll`) is authenticated with the certificate that it replaces, which excludes certificates
//!   for servers only. The names in the request must equal those of the certificate byte for byte, which excludes a
//!   CA that encodes them differently. Both are requested like a first certificate. A pending renewal is resumed by
//!   sending it again with the current certificate.
//! - 401 is returned with and without a challenge. libest also returns it for a request that is not bound to the
//!   connection.
//! - libest responds in HTTP/1.0 and reads base64 only in terminated lines; other servers need
//!   `Content-Transfer-Encoding`, which RFC 8951 removed.
//! - EST has no revocation lists.

mod csrattrs;
mod setup;
mod wire;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;

use super::per_certificate::{PerCertificate, names_with};
use super::server::{MAX_QUOTED, SignerServer, signing};
use super::{
    About, Answer, Caps, Carry, Configured, CurrentCertificate, FailureClass, NodeIdentity, Part,
    Rejection, Renewal, Request, RequestLookup, RequestedCertificate, Resubmit, Signer,
    SignerError, SignerKind, SignerObstacle, Site, Ticket, endpoint, printable,
};
use crate::http::{Call, Endpoint, HttpResponse, encode};
use crate::kube::names::{Authority, CertName};
use crate::text::hex;
use crate::x509::{Certificate, Chain, ExtendedUsage, UsageExtensions, certificates_of};
use crate::yaml::schema::SecretFile;
use crate::yaml::settings::{Setting, SettingsBlock, settings};
use crate::yaml::{Field, Map, format_duration};

use csrattrs::Attributes;

const BASE_PATH: &str = "/.well-known/est";
const SIMPLE_ENROLL: &str = "simpleenroll";
const SIMPLE_REENROLL: &str = "simplereenroll";
/// Operations of the protocol. RFC 7030, 3.2.2: a label must not be one of them.
const OPERATIONS: [&str; 6] = [
    "cacerts",
    "csrattrs",
    SIMPLE_ENROLL,
    SIMPLE_REENROLL,
    "fullcmc",
    "serverkeygen",
];
/// Default of `longestWait`. A 202 usually waits for an administrator, and hourly polls would delay the node by
/// hours.
const DEFAULT_LONGEST_WAIT: Duration = Duration::from_secs(10 * 60);

settings! {
    /// An EST server and the credential for it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Config {
        /// Address of the EST server, `https://HOST[:PORT]`, without /.well-known/est.
        "url" => pub endpoint: Endpoint, required "with https://HOST[:PORT]", flat endpoint;
        /// Label of the CA or profile, between /.well-known/est and the operation; by default none.
        "label" => pub label: Option<PerCertificate>, read read_label;
        /// Authentication besides tls.certificate.
        "auth" => pub auth: Option<EstAuth>;
        /// SHA-256 of the root certificate in /cacerts, or of its public key, in place of tls.caFile.
        "rootSHA256" => pub root_sha256: Option<[u8; 32]>;
        /// Longest wait before a pending request is sent again, if the server asks for a longer one.
        "longestWait" => pub longest_wait: Duration = DEFAULT_LONGEST_WAIT, read read_longest_wait;
    }
}

settings! {
    /// Authentication besides a client certificate.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct EstAuth {
        /// HTTP Basic authentication.
        "basic" => pub basic: Basic, required "with user and passwordFile";
    }
}

settings! {
    /// User and password.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Basic {
        /// User for HTTP Basic authentication.
        "user" => pub user: String, required "with a name", read read_user;
        /// File with the password.
        "passwordFile" => pub password_file: SecretFile, required "with the file of the password";
    }
}

fn read_user(field: &Field<'_>) -> Option<String> {
    let user = field.string()?;
    if user.contains(':') {
        field.error(
            "contains a colon",
            "HTTP Basic does not allow it in a user name",
        );
    }
    Some(user)
}

fn read_longest_wait(field: &Field<'_>) -> Option<Duration> {
    let given = Duration::read(field)?;
    if given < Duration::from_secs(1) {
        field.error("is less than 1s", "use 1s or more");
    }
    Some(given)
}

const CAPS: Caps = Caps {
    organization: Carry::AsConfigured,
    colon_common_name: Carry::AsConfigured,
    ip_sans: Carry::AsConfigured,
    ml_dsa: Carry::AsConfigured,
    own_name_san: false,
    usage_extensions: UsageExtensions::Requested,
    pends: true,
    lookup: RequestLookup::ByResubmit,
    resubmit: Resubmit::Duplicates,
    renewal: Renewal::Rekey,
    crl: Carry::No,
    other_nodes: Carry::AsConfigured,
    empty_csr: Carry::No,
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "est",
        signs_with: "a CA behind an EST server (RFC 7030)",
        authentication: "HTTP Basic, TLS certificate; the certificate itself for renewals",
        caps: CAPS,
        keys: Config::KEYS,
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let config = Self::read_keys(map);
        if let Some(field) = map.get("url")
            && field.written().is_some_and(|url| url.contains(BASE_PATH))
        {
            field.error(
                "contains the path of the protocol",
                format!("leave out {BASE_PATH} and what follows; a label has the key label"),
            );
        }
        if let Some(Config { endpoint, .. }) = &config {
            endpoint::refuse_second_trust(&endpoint.tls, map, "rootSHA256");
            endpoint::require_trust(
                endpoint,
                map,
                map.get("rootSHA256").is_some(),
                "add tls.caFile, tls.sha256, or rootSHA256 with the fingerprint of its root",
            );
        }
        config
    }

    fn setup(parts: &[Part<'_, Self>], identity: &NodeIdentity) -> Option<String> {
        Some(setup::print(parts, identity))
    }

    fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
        self.label
            .as_ref()?
            .for_this_node_only("label", &PerCertificate::OF_KUBELETS)
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        Ok(Box::new(Est::new(self, site)?))
    }
}

fn read_label(field: &Field<'_>) -> Option<Option<PerCertificate>> {
    let label = PerCertificate::read(field)?;
    for text in label.named.values().chain(&label.default) {
        if OPERATIONS.contains(&text.as_str()) {
            field.error(
                format!("{text:?} is an operation of the protocol"),
                "write the label that the server's owner gave to the CA",
            );
        }
        if text.split('/').any(|part| matches!(part, "" | "." | "..")) {
            field.error(
                format!("{text:?} is not a label"),
                "write it without / at its beginning and end",
            );
        }
    }
    Some(Some(label))
}

impl Config {
    fn basic(&self) -> Option<&Basic> {
        self.auth.as_ref().map(|auth| &auth.basic)
    }

    /// Returns the label for a certificate.
    fn label_of(&self, name: CertName, identity: &NodeIdentity) -> Option<String> {
        self.label.as_ref()?.of_name(name, identity)
    }
}

/// Requests certificates from an EST server.
pub struct Est {
    config: Config,
    identity: NodeIdentity,
    /// As configured; with `rootSHA256` it does not trust a server yet.
    server: SignerServer,
    /// With the pinned root.
    bootstrapped: RefCell<Option<SignerServer>>,
    learned: RefCell<BTreeMap<LabelPath, Rc<Learned>>>,
}

/// Path with or without a label: `/.well-known/est/etcd`.
type LabelPath = String;

/// Result of asking a label in this run.
struct Learned {
    certificates: Vec<Certificate>,
    attributes: Attributes,
}

/// Kind of submission.
#[derive(Clone, Copy)]
enum Submission<'a> {
    First,
    /// Repeated after a 202.
    Again,
    Replacement(&'a CurrentCertificate),
}

impl Est {
    fn new(config: &Config, site: &Site<'_>) -> Result<Self, SignerError> {
        let label = label(config);
        Ok(Est {
            server: SignerServer::new(label, config.endpoint.clone(), site)?,
            config: config.clone(),
            identity: site.identity.clone(),
            bootstrapped: RefCell::default(),
            learned: RefCell::default(),
        })
    }

    fn place(&self, name: CertName) -> LabelPath {
        match self.config.label_of(name, &self.identity) {
            Some(label) => {
                let parts: Vec<String> = label.split('/').map(encode).collect();
                format!("{BASE_PATH}/{}", parts.join("/"))
            }
            None => BASE_PATH.to_owned(),
        }
    }

    /// Returns the verified server: as configured, or by the pinned root, which is fetched without verification
    /// first.
    async fn verified(&self, place: &str) -> Result<SignerServer, SignerError> {
        let Some(wanted) = self.config.root_sha256 else {
            return Ok(self.server.clone());
        };
        if let Some(server) = self.bootstrapped.borrow().as_ref() {
            return Ok(server.clone());
        }
        let provisional = self.server.provisional();
        let offered = self.cacerts(&provisional, place).await?;
        let root = offered
            .iter()
            .find(|one| one.fingerprint() == wanted || one.public_key().sha256() == wanted);
        let Some(root) = root else {
            let offered: Vec<String> = offered
                .iter()
                .map(|one| {
                    format!(
                        "{} (certificate sha256:{})",
                        one.subject(),
                        hex(&one.fingerprint())
                    )
                })
                .collect();
            return Err(SignerError::config(
                format!(
                    "{}: none of its CA certificates has the pinned fingerprint sha256:{}; it offers {}",
                    self.server.label(),
                    hex(&wanted),
                    printable(&offered.join(", "), MAX_QUOTED)
                ),
                "compare rootSHA256 with the CA's owner; if it is right, another server responds at this address",
            ));
        };
        let root = root.to_pem().into_bytes();
        let server = self.server.trusting(root);
        *self.bootstrapped.borrow_mut() = Some(server.clone());
        Ok(server)
    }

    /// Returns what a label publishes, requested once per run.
    async fn published(&self, place: &str) -> Result<Rc<Learned>, SignerError> {
        if let Some(learned) = self.learned.borrow().get(place) {
            return Ok(Rc::clone(learned));
        }
        let server = self.verified(place).await?;
        let learned = Rc::new(Learned {
            certificates: self.cacerts(&server, place).await?,
            attributes: self.csrattrs(&server, place).await?,
        });
        let kept = Rc::clone(&learned);
        self.learned.borrow_mut().insert(place.to_owned(), kept);
        Ok(learned)
    }

    async fn cacerts(
        &self,
        server: &SignerServer,
        place: &str,
    ) -> Result<Vec<Certificate>, SignerError> {
        let doing = "requesting its CA certificates";
        let response = server
            .exchange(doing, Call::get(format!("{place}/cacerts")))
            .await?;
        if response.status != 200 {
            let mut error = self.refusal(doing, &response, place);
            // Every server has this path below each label (RFC 7030, section 4.1).
            error.precludes_signing = response.status == 404;
            return Err(error);
        }
        certificates(&response).map_err(|why| server.invalid_response(doing, &response, &why))
    }

    /// Returns the requirements of a label; empty if the server has none or does not support the request.
    async fn csrattrs(
        &self,
        server: &SignerServer,
        place: &str,
    ) -> Result<Attributes, SignerError> {
        let doing = "requesting its CSR attributes";
        let call = self.authenticated(server, Call::get(format!("{place}/csrattrs")))?;
        let response = server.exchange(doing, call).await?;
        match response.status {
            200 => {}
            401 | 408 | 425 | 429 | 500 | 502..=599 => {
                return Err(self.refusal(doing, &response, place));
            }
            status => {
                tracing::debug!(status, "{}: no /csrattrs", server.label());
                return Ok(Attributes::default());
            }
        }
        if response.body.trim_ascii().is_empty() {
            return Ok(Attributes::default());
        }
        let read = wire::decode(&response.body)
            .ok()
            .and_then(|der| Attributes::from_der(&der));
        if read.is_none() {
            tracing::warn!(
                "{}: its response to /csrattrs is unreadable and was ignored",
                server.label()
            );
        }
        Ok(read.unwrap_or_default())
    }

    /// Adds the password to a call. Only a verified server receives calls; see [`Est::verified`].
    fn authenticated<'a>(
        &self,
        server: &SignerServer,
        call: Call<'a>,
    ) -> Result<Call<'a>, SignerError> {
        match self.config.basic() {
            Some(basic) => Ok(call.basic(&basic.user, server.secret(&basic.password_file)?)),
            None => Ok(call),
        }
    }

    /// Sends the request, for the first time or again: the server does not distinguish them.
    async fn enroll(
        &self,
        request: &Request,
        as_what: Submission<'_>,
    ) -> Result<Answer, SignerError> {
        let place = self.place(request.name());
        let learned = self.published(&place).await?;
        let mut server = self.verified(&place).await?;
        let operation = match as_what {
            Submission::First | Submission::Again => SIMPLE_ENROLL,
            Submission::Replacement(current) => {
                server = server.renewing(current);
                SIMPLE_REENROLL
            }
        };
        let doing = signing(request);
        let call = Call::post(format!("{place}/{operation}"))
            .header("Content-Transfer-Encoding", "base64")
            .body("application/pkcs10", wire::encode(request.csr.der()));
        let response = server
            .exchange(&doing, self.authenticated(&server, call)?)
            .await?;
        match response.status {
            200 => match certificates(&response) {
                Ok(found) => Ok(Answer::Issued(answer(request, &found, &learned))),
                Err(why) => Err(server.invalid_response(&doing, &response, &why)),
            },
            202 => self.pending(&response, operation),
            201..=299 => Err(server.invalid_response(
                &doing,
                &response,
                "an EST server responds to a request with 200 or 202",
            )),
            _ => match self.refusal(&doing, &response, &place) {
                // The server accepted the same bytes with 202 before.
                error
                    if error.class == FailureClass::Permanent
                        && matches!(as_what, Submission::Again) =>
                {
                    Ok(Answer::Denied {
                        reason: error.detail,
                    })
                }
                error => Err(error),
            },
        }
    }

    fn pending(&self, response: &HttpResponse, operation: &str) -> Result<Answer, SignerError> {
        let wish = response.retry_after;
        let after = wish.map(|wish| wish.min(self.config.longest_wait));
        let note = match wish {
            Some(wish) if wish > self.config.longest_wait => format!(
                "{} has the request and has not decided; it requests a delay of {}, limited to {} by longestWait",
                self.server.label(),
                format_duration(wish),
                format_duration(self.config.longest_wait)
            ),
            _ => format!(
                "{} has the request and has not decided: approve it there",
                self.server.label()
            ),
        };
        let ticket = Ticket::try_from(operation.to_owned())
            .map_err(|error| SignerError::permanent(error.to_string(), "report this as a bug"))?;
        Ok(Answer::Pending {
            ticket,
            after,
            note,
            is_uniform: false,
        })
    }

    fn refusal(&self, doing: &str, response: &HttpResponse, place: &str) -> SignerError {
        let said = response.text();
        let error = self.server.refusal(doing, response, &said);
        let advice = match response.status {
            401 => self.unauthorized(response, &said),
            404 => format!(
                "check url and label with the server's owner: the server has no {}{place}",
                self.config.endpoint.url.path().trim_end_matches('/')
            ),
            _ => return error,
        };
        SignerError { advice, ..error }
    }

    /// Returns the required action for a 401.
    fn unauthorized(&self, response: &HttpResponse, said: &str) -> String {
        let challenge = response.header("WWW-Authenticate").unwrap_or_default();
        let scheme = challenge.split(' ').next().unwrap_or_default();
        let certificate = &self.config.endpoint.tls.certificate;
        if said.to_ascii_lowercase().contains("proof of possession") {
            return "disable the server's check that a request is bound to its TLS connection, which TLS 1.3 does not support"
                .to_owned();
        }
        match (self.config.basic(), certificate) {
            _ if scheme.eq_ignore_ascii_case("digest") => {
                "enable HTTP Basic or client certificates on the server: Digest is not supported"
                    .to_owned()
            }
            (Some(basic), certificate) => {
                let certificate = certificate.as_ref().map_or_else(String::new, |file| {
                    format!(
                        ", and the client certificate in {}",
                        self.server.shown(file).display()
                    )
                });
                format!(
                    "check user {} and the password in {}{certificate} with the server's owner",
                    basic.user,
                    self.server.shown_secret(&basic.password_file)
                )
            }
            (None, Some(certificate)) => format!(
                "make the server accept the certificate in {}, or set auth.basic as well",
                self.server.shown(certificate).display()
            ),
            (None, None) => {
                "set auth.basic, or tls.certificate and tls.key: the server requires authentication"
                    .to_owned()
            }
        }
    }
}

/// Returns kind, address and label as configured.
fn label(config: &Config) -> String {
    let url = config.endpoint.url.as_str().trim_end_matches('/');
    let label = config.label.iter();
    let named: Vec<String> = label
        .flat_map(|label| {
            let named = label.named.iter();
            let named = named.map(|(name, text)| format!("{name}={text}"));
            named.chain(label.default.clone())
        })
        .collect();
    if named.is_empty() {
        format!("est:{url}{BASE_PATH}")
    } else {
        format!("est:{url}{BASE_PATH}/{}", named.join(","))
    }
}

/// Returns the certificates in a response; at least one.
fn certificates(response: &HttpResponse) -> Result<Vec<Certificate>, String> {
    let found = certificates_of(&wire::decode(&response.body)?).map_err(|why| why.to_string())?;
    if found.is_empty() {
        Err("it does not contain a certificate".to_owned())
    } else {
        Ok(found)
    }
}

/// Returns the certificate for the request's key, followed by possible intermediates. Without a certificate for that
/// key the response is passed on, and the verification refuses it.
fn answer(request: &Request, found: &[Certificate], learned: &Learned) -> Vec<u8> {
    let ours = |one: &&Certificate| one.public_key() == request.csr.public_key();
    let leaf = found.iter().find(ours);
    let rest = found.iter().filter(|one| !ours(one));
    let intermediates = learned.certificates.iter();
    let all = leaf.into_iter().chain(rest).chain(intermediates);
    all.map(Certificate::to_pem).collect::<String>().into()
}

/// Returns why the current certificate cannot be exchanged for the requested one.
fn not_exchangeable(request: &Request, current: &CurrentCertificate) -> Option<String> {
    let chain = match Chain::from_pem(&current.chain_pem) {
        Ok(chain) => chain,
        Err(error) => return Some(format!("it is unreadable: {error}")),
    };
    let leaf = chain.leaf();
    if !leaf.allows(ExtendedUsage::ClientAuth) {
        return Some(
            "it is for servers only, and a server does not accept it from a client".to_owned(),
        );
    }
    let same = request.csr.has_names_of(leaf);
    (!same).then(|| {
        format!(
            "its CA encodes the names differently from the request (RFC 7030, 4.2.2): {}",
            leaf.subject()
        )
    })
}

#[async_trait(?Send)]
impl Signer for Est {
    fn kind(&self) -> SignerKind {
        SignerKind::Est
    }

    fn label(&self) -> String {
        self.server.label().to_owned()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    /// Asks a label that is common to all certificates; the others are asked when the authority that they serve is
    /// known.
    async fn probe(&self) -> Result<(), SignerError> {
        self.learned.borrow_mut().clear();
        *self.bootstrapped.borrow_mut() = None;
        let names = names_with([&self.config.label]).into_iter();
        let mut places: Vec<LabelPath> = names.map(|name| self.place(name)).collect();
        places.sort();
        places.dedup();
        match places.as_slice() {
            [only] => self.published(only).await.map(|_| ()),
            _ => Ok(()),
        }
    }

    fn preflight(&self, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        self.caps().carries(&self.label(), wanted)?;
        let learned = self.learned.borrow();
        let Some(learned) = learned.get(&self.place(wanted.name)) else {
            return Ok(());
        };
        let obstacles = learned.attributes.obstacles(wanted.profile.key);
        if obstacles.is_empty() {
            Ok(())
        } else {
            Err(Rejection::new(
                &self.label(),
                wanted,
                obstacles.join("; "),
                "configure a key type that it accepts, under `pki`, or have /csrattrs changed by the server's owner",
            ))
        }
    }

    /// Returns the roots, the pinned one first; without a root, the CA certificates.
    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let mut places: Vec<LabelPath> = names_with([&self.config.label])
            .into_iter()
            .filter(|name| name.authority() == authority)
            .map(|name| self.place(name))
            .collect();
        places.sort();
        places.dedup();
        let (mut learned, mut failed) = (None, None);
        for place in &places {
            // Each label is useful for `preflight`, and a failing one may belong to a certificate that is not
            // requested.
            match self.published(place).await {
                Ok(one) => learned = learned.or(Some(one)),
                Err(error) if error.class.passes() => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let learned = match (learned, failed) {
            (Some(learned), _) => learned,
            (None, Some(error)) => return Err(error),
            (None, None) => return Ok(None),
        };
        let all = &learned.certificates;
        let mut roots: Vec<&Certificate> = all.iter().filter(|one| one.is_self_signed()).collect();
        if roots.is_empty() {
            roots = all.iter().filter(|one| one.is_ca()).collect();
        }
        let pinned = self.config.root_sha256;
        roots.sort_by_key(|one| {
            pinned != Some(one.fingerprint()) && pinned != Some(one.public_key().sha256())
        });
        let pem: String = roots.into_iter().map(Certificate::to_pem).collect();
        Ok((!pem.is_empty()).then(|| pem.into_bytes()))
    }

    /// Sends the request again, since EST has no look-up. A request that was accepted with 202 is sent as such, so
    /// a denial is recognized.
    async fn recover(
        &self,
        request: &Request,
        ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        match ticket {
            Some(ticket) if ticket.as_str() == SIMPLE_ENROLL => {
                self.enroll(request, Submission::Again).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        self.enroll(request, Submission::First).await
    }

    async fn renew(
        &self,
        request: &Request,
        current: &CurrentCertificate,
    ) -> Result<Answer, SignerError> {
        if let Some(why) = not_exchangeable(request, current) {
            return Err(SignerError::permanent(
                format!(
                    "{}: {} cannot be exchanged: {why}",
                    self.label(),
                    request.name()
                ),
                "it is requested like a first certificate",
            ));
        }
        self.enroll(request, Submission::Replacement(current)).await
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        // A renewal continues with the certificate with which it began, which is not available here.
        if ticket.as_str() != SIMPLE_ENROLL {
            return Ok(Answer::Gone);
        }
        self.enroll(request, Submission::Again).await
    }
}

#[cfg(feature = "fuzzing")]
pub(super) fn fuzz_body(bytes: &[u8]) {
    if let Ok(der) = wire::decode(bytes) {
        let _ = Attributes::from_der(&der);
    }
}
