//! `est`: Enrollment over Secure Transport (RFC 7030, RFC 8951), which most commercial and industrial CAs speak.
//!
//! # What it must be given
//! `url`, without `/.well-known/est`, and where the server has several CAs or profiles the `label` that stands between
//! that and the operation: one for all certificates, one each, or with `{authority}` in it one for each authority, so
//! that one signer serves all three. The server is believed by `tls`, or by `rootSHA256`, the fingerprint of the root
//! certificate that it publishes: then `/cacerts` is asked once of whoever answers, the root with that fingerprint is
//! taken from it and nothing else, and everything from there on, the credential first, goes over a new connection that
//! this root vouches for. This node proves itself with `auth.basic`, a client certificate (`tls.certificate` and
//! `tls.key`), or both.
//!
//! # What the server's owner must set up
//! - The profile must copy subject and alternative names from the request: an organization (`system:masters` and the like
//!   decide what a client may do), common names with colons, DNS names and IP addresses.
//! - The usages of the request, or a profile (and so a label) for each of server, client, and both. A CA that certifies
//!   both for everybody needs `allowExtraUsages` of the authority.
//! - This node's credential must be allowed these names and no others.
//! - Three CAs: as three labels, or as three servers with a signer entry each.
//!
//! # Habits of these servers
//! - 202 is "not decided yet": the way to ask again is to send the same bytes again, when `Retry-After` says. Some name an
//!   hour whatever happens; no more than `longestWait` of it is waited. A refusal of what was once taken with 202 is
//!   somebody's decision.
//! - The answer is the certificate alone, in a PKCS#7 without order; intermediates come from `/cacerts`.
//! - `/csrattrs` is a wish list. A key type that is not the planned one, and channel binding, which TLS 1.3 ended, are
//!   told before a key is made.
//! - A renewal (`simplereenroll`) is authenticated with the certificate that it replaces, so that one for servers only
//!   cannot have one, and the names of the request must be those of the certificate byte for byte: a CA that writes them
//!   differently cannot be asked either. Both are asked for as a first certificate then. A renewal that has to wait is
//!   resumed by sending it again with the certificate in place.
//! - 401 comes with and without a challenge, and libest also means by it that the request is not bound to the connection.
//! - libest answers in HTTP/1.0 and reads base64 only in ended lines; others need `Content-Transfer-Encoding`, which RFC
//!   8951 abolished.
//! - There are no revocation lists in EST.

mod csrattrs;
mod wire;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map as JsonMap, Value, json};

use super::per_certificate::PerCertificate;
use super::server::{Server, signing};
use super::{
    About, Answer, Caps, Carry, Class, Configured, Current, Identity, Kind, Lookup, Rejection,
    Renewal, Request, Resubmit, Signer, SignerError, Site, Ticket, Wanted, endpoint, printable,
};
use crate::http::{Call, Endpoint, Response, encode};
use crate::kube::names::{Authority, CertName};
use crate::x509::{Certificate, Chain, UsageExtensions, certificates_of, hex};
use crate::yaml::schema::{Form, Key, SecretFile, duration, key, pin, required, section};
use crate::yaml::{Field, Map, format_duration};

use csrattrs::Attributes;

const BASE: &str = "/.well-known/est";
const SIMPLE_ENROLL: &str = "simpleenroll";
const SIMPLE_REENROLL: &str = "simplereenroll";
/// RFC 7030, 3.2.2: no label may be one of them.
const OPERATIONS: [&str; 6] = [
    "cacerts",
    "csrattrs",
    SIMPLE_ENROLL,
    SIMPLE_REENROLL,
    "fullcmc",
    "serverkeygen",
];
/// People are behind a 202, and hourly looks would make a node wait for hours.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 60);
/// Bytes of a server's own words in a message.
const SAID_LIMIT: usize = 512;

/// An EST server and how to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where it is and how it is believed, without the well-known path.
    pub endpoint: Endpoint,
    /// Between the well-known path and the operation; nothing where none is said.
    pub label: PerCertificate,
    /// HTTP Basic.
    pub basic: Option<Basic>,
    /// SHA-256 of the root certificate in `/cacerts`, or of its public key: believes the server before anything is known.
    pub root_sha256: Option<[u8; 32]>,
    /// The most of a server's `Retry-After` that a pending request waits.
    pub longest_wait: Duration,
}

/// User and password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basic {
    /// User.
    pub user: String,
    /// File with the password.
    pub password_file: SecretFile,
}

const CAPS: Caps = Caps {
    organization: Carry::AsConfigured,
    colon_common_name: Carry::AsConfigured,
    ip_sans: Carry::AsConfigured,
    own_name_san: false,
    usage_extensions: UsageExtensions::Requested,
    pends: true,
    lookup: Lookup::ByResubmit,
    resubmit: Resubmit::Duplicates,
    renewal: Renewal::Rekey,
    crl: Carry::No,
};

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("url", Form::Url, "Address of the EST server, https://HOST[:PORT], without /.well-known/est."),
    key("label", Form::PerCertificate, "Label of the CA or profile, between /.well-known/est and the operation; default none."),
    key("auth.basic.user", Form::Text, "User for HTTP Basic authentication."),
    key("auth.basic.passwordFile", Form::Secret, "File with the password."),
    key("rootSHA256", Form::Pin, "SHA-256 of the root certificate in /cacerts, or of its public key; in place of tls.caFile."),
    key("longestWait", Form::Duration, "The most that is waited of what the server asks for while a request is pending; default 10m."),
];

impl Configured for Config {
    const ABOUT: About = About {
        name: "est",
        signs_with: "a CA behind an EST server (RFC 7030)",
        authentication: "HTTP Basic, TLS certificate; renewals by the certificate itself",
        caps: CAPS,
        keys: &[KEYS, endpoint::KEYS],
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let url = required(map, "url", "with https://HOST[:PORT]");
        if let Some(field) = &url
            && field.written().is_some_and(|url| url.contains(BASE))
        {
            field.error(
                "goes into the protocol",
                format!("leave out {BASE} and what follows; a label has the key label"),
            );
        }
        let label = map.get("label").and_then(|field| read_label(&field));
        let basic = section(map, "auth").and_then(|keys| {
            let basic = required(&keys, "basic", "with user and passwordFile")
                .and_then(|field| Basic::read(&field));
            keys.finish();
            basic
        });
        let root_field = map.get("rootSHA256");
        let root_sha256 = root_field.as_ref().and_then(pin);
        let mut longest_wait = LONGEST_WAIT;
        if let Some((field, given)) = duration(map.get("longestWait")) {
            if given < Duration::from_secs(1) {
                field.error("is less than 1s", "use 1s or more");
            }
            longest_wait = given;
        }
        let endpoint = endpoint::read(map, url)?;
        let tls = &endpoint.tls;
        match &root_field {
            Some(field) if tls.ca_file.is_some() || tls.system_roots => field.error(
                "is of no use where tls says who is believed",
                "keep rootSHA256, or tls.caFile or tls.systemRoots",
            ),
            None if tls.trusts_nothing() && endpoint.url.scheme() == "https" => map.field().error(
                "does not say by what the server is believed",
                "add tls.caFile, tls.sha256, or rootSHA256 with the fingerprint of its root",
            ),
            _ => {}
        }
        Some(Config {
            endpoint,
            label: label.unwrap_or_default(),
            basic,
            root_sha256,
            longest_wait,
        })
    }

    fn redacted(&self) -> Value {
        let mut keys = JsonMap::new();
        keys.insert("url".to_owned(), json!(self.endpoint.url.as_str()));
        if self.label != PerCertificate::default() {
            keys.insert("label".to_owned(), self.label.redacted());
        }
        if let Some(basic) = &self.basic {
            let file = basic.password_file.to_string();
            keys.insert(
                "auth".to_owned(),
                json!({"basic": {"user": basic.user, "passwordFile": file}}),
            );
        }
        if let Some(root) = &self.root_sha256 {
            keys.insert("rootSHA256".to_owned(), json!(hex(root)));
        }
        keys.insert(
            "longestWait".to_owned(),
            json!(format_duration(self.longest_wait)),
        );
        endpoint::redacted(&self.endpoint, &mut keys);
        Value::Object(keys)
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        Ok(Box::new(Est::new(self, site)?))
    }
}

fn read_label(field: &Field<'_>) -> Option<PerCertificate> {
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
                "write it without / before and after it",
            );
        }
    }
    Some(label)
}

impl Basic {
    fn read(field: &Field<'_>) -> Option<Self> {
        let map = field.map()?;
        let user = required(&map, "user", "with a name").and_then(|field| {
            let user = field.string()?;
            if user.contains(':') {
                field.error("has a colon in it", "HTTP Basic knows no such user");
            }
            Some(user)
        });
        let password_file = required(&map, "passwordFile", "with the file of the password")
            .and_then(|field| SecretFile::read(&field));
        map.finish();
        Some(Basic {
            user: user?,
            password_file: password_file?,
        })
    }
}

/// Asks an EST server.
pub struct Est {
    config: Config,
    identity: Identity,
    /// As configured; with `rootSHA256` nobody is believed yet.
    server: Server,
    /// With the root that has the fingerprint.
    bootstrapped: RefCell<Option<Server>>,
    learned: RefCell<BTreeMap<Place, Rc<Learned>>>,
}

/// Path of a label, or of none: `/.well-known/est/etcd`.
type Place = String;

/// What a label told about itself in this run.
struct Learned {
    certificates: Vec<Certificate>,
    attributes: Attributes,
}

/// What a request is sent as.
#[derive(Clone, Copy)]
enum As<'a> {
    First,
    /// After a 202.
    Again,
    Replacement(&'a Current),
}

impl Est {
    fn new(config: &Config, site: &Site<'_>) -> Result<Self, SignerError> {
        let label = label(config);
        Ok(Est {
            server: Server::new(label, config.endpoint.clone(), site)?,
            config: config.clone(),
            identity: site.identity.clone(),
            bootstrapped: RefCell::default(),
            learned: RefCell::default(),
        })
    }

    fn place(&self, name: CertName) -> Place {
        match self.config.label.of_name(name, &self.identity) {
            Some(label) => {
                let parts: Vec<String> = label.split('/').map(encode).collect();
                format!("{BASE}/{}", parts.join("/"))
            }
            None => BASE.to_owned(),
        }
    }

    /// The server as it is believed: as configured, or by the root with the configured fingerprint, which is fetched
    /// from whoever answers.
    async fn believed(&self, place: &str) -> Result<Server, SignerError> {
        let Some(wanted) = self.config.root_sha256 else {
            return Ok(self.server.clone());
        };
        if let Some(server) = self.bootstrapped.borrow().as_ref() {
            return Ok(server.clone());
        }
        let provisional = self.server.through(self.server.client().provisional());
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
                    printable(&offered.join(", "), SAID_LIMIT)
                ),
                "compare rootSHA256 with the CA's owner; if it is right, somebody else answers at this address",
            ));
        };
        let root = root.to_pem().into_bytes();
        let server = self.server.through(self.server.client().trusting(root));
        *self.bootstrapped.borrow_mut() = Some(server.clone());
        Ok(server)
    }

    /// What a label tells about itself, asked once a run.
    async fn look(&self, place: &str) -> Result<Rc<Learned>, SignerError> {
        if let Some(learned) = self.learned.borrow().get(place) {
            return Ok(Rc::clone(learned));
        }
        let server = self.believed(place).await?;
        let learned = Rc::new(Learned {
            certificates: self.cacerts(&server, place).await?,
            attributes: self.csrattrs(&server, place).await?,
        });
        let kept = Rc::clone(&learned);
        self.learned.borrow_mut().insert(place.to_owned(), kept);
        Ok(learned)
    }

    async fn cacerts(&self, server: &Server, place: &str) -> Result<Vec<Certificate>, SignerError> {
        let doing = "asking for its CA certificates";
        let response = server
            .exchange(doing, Call::get(format!("{place}/cacerts")))
            .await?;
        if response.status != 200 {
            return Err(self.refusal(doing, &response, place));
        }
        certificates(&response).map_err(|why| server.garbage(doing, &response, &why))
    }

    /// Empty for a server that has no such wishes, or cannot say so.
    async fn csrattrs(&self, server: &Server, place: &str) -> Result<Attributes, SignerError> {
        let doing = "asking for its wishes";
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
                "{}: what it answers to /csrattrs is unreadable and was ignored",
                server.label()
            );
        }
        Ok(read.unwrap_or_default())
    }

    /// The call with the password. Only a server that is believed gets calls at all; see [`Est::believed`].
    fn authenticated<'a>(&self, server: &Server, call: Call<'a>) -> Result<Call<'a>, SignerError> {
        match &self.config.basic {
            Some(basic) => Ok(call.basic(&basic.user, server.secret(&basic.password_file)?)),
            None => Ok(call),
        }
    }

    /// Hands the request over, for the first time or again: that is the same to the server.
    async fn enroll(&self, request: &Request, as_what: As<'_>) -> Result<Answer, SignerError> {
        let place = self.place(request.name());
        let learned = self.look(&place).await?;
        let mut server = self.believed(&place).await?;
        let operation = match as_what {
            As::First | As::Again => SIMPLE_ENROLL,
            As::Replacement(current) => {
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
                Err(why) => Err(server.garbage(&doing, &response, &why)),
            },
            202 => self.pending(&response, operation),
            201..=299 => Err(server.garbage(
                &doing,
                &response,
                "an EST server answers 200 or 202 to a request",
            )),
            _ => match self.refusal(&doing, &response, &place) {
                // The same bytes were good enough to wait.
                error if error.class == Class::Permanent && matches!(as_what, As::Again) => {
                    Ok(Answer::Denied {
                        reason: error.detail,
                    })
                }
                error => Err(error),
            },
        }
    }

    fn pending(&self, response: &Response, operation: &str) -> Result<Answer, SignerError> {
        let wish = response.retry_after;
        let after = wish.map(|wish| wish.min(self.config.longest_wait));
        let note = match wish {
            Some(wish) if wish > self.config.longest_wait => format!(
                "{} has the request and has not decided; it asks for {} of patience, of which {} are given (longestWait)",
                self.server.label(),
                format_duration(wish),
                format_duration(self.config.longest_wait)
            ),
            _ => format!(
                "{} has the request and has not decided: have it approved there",
                self.server.label()
            ),
        };
        let ticket = Ticket::try_from(operation.to_owned()).map_err(|error| {
            SignerError::permanent(error.to_string(), "report this as a fault of nodepki")
        })?;
        Ok(Answer::Pending {
            ticket,
            after,
            note,
        })
    }

    fn refusal(&self, doing: &str, response: &Response, place: &str) -> SignerError {
        let said = response.text();
        let error = self.server.refusal(doing, response, &said);
        let advice = match response.status {
            401 => self.unauthorized(response, &said),
            404 => format!(
                "check url and label with the server's owner: it knows no {}{place}",
                self.config.endpoint.url.path().trim_end_matches('/')
            ),
            _ => return error,
        };
        SignerError { advice, ..error }
    }

    /// What to do about a 401.
    fn unauthorized(&self, response: &Response, said: &str) -> String {
        let challenge = response.header("WWW-Authenticate").unwrap_or_default();
        let scheme = challenge.split(' ').next().unwrap_or_default();
        let certificate = &self.config.endpoint.tls.certificate;
        if said.to_ascii_lowercase().contains("proof of possession") {
            return "have the server not insist on requests bound to their TLS connection, which TLS 1.3 has ended"
                .to_owned();
        }
        match (&self.config.basic, certificate) {
            _ if scheme.eq_ignore_ascii_case("digest") => {
                "have the server take HTTP Basic or a client certificate: Digest is not supported"
                    .to_owned()
            }
            (Some(basic), _) => format!(
                "check user {} and the password in {} with the server's owner",
                basic.user,
                self.server.shown_secret(&basic.password_file)
            ),
            (None, Some(certificate)) => format!(
                "have the certificate in {} accepted there, or set auth.basic as well",
                self.server.shown(certificate).display()
            ),
            (None, None) => {
                "set auth.basic, or tls.certificate and tls.key: the server wants to know who asks"
                    .to_owned()
            }
        }
    }
}

/// Kind, address and label as written.
fn label(config: &Config) -> String {
    let url = config.endpoint.url.as_str().trim_end_matches('/');
    let label = &config.label;
    let named: Vec<String> = label
        .named
        .iter()
        .map(|(name, text)| format!("{name}={text}"))
        .chain(label.default.clone())
        .collect();
    match named.is_empty() {
        true => format!("est:{url}{BASE}"),
        false => format!("est:{url}{BASE}/{}", named.join(",")),
    }
}

/// The certificates in the body of an answer; at least one.
fn certificates(response: &Response) -> Result<Vec<Certificate>, String> {
    let found = certificates_of(&wire::decode(&response.body)?).map_err(|why| why.to_string())?;
    match found.is_empty() {
        true => Err("there is no certificate in it".to_owned()),
        false => Ok(found),
    }
}

/// The certificate for the request's key first, then whatever may lie between it and its authority. Without one for
/// that key, what came is handed on, for the verification to refuse.
fn answer(request: &Request, found: &[Certificate], learned: &Learned) -> Vec<u8> {
    let ours = |one: &&Certificate| one.public_key() == request.csr.public_key();
    let leaf = found.iter().find(ours);
    let rest = found.iter().filter(|one| !ours(one));
    let intermediates = learned.certificates.iter();
    let all = leaf.into_iter().chain(rest).chain(intermediates);
    all.map(Certificate::to_pem).collect::<String>().into()
}

/// Why a certificate cannot be given in exchange for the one that a request is for.
fn not_exchangeable(request: &Request, current: &Current) -> Option<String> {
    let chain = match Chain::from_pem(&current.chain_pem) {
        Ok(chain) => chain,
        Err(error) => return Some(format!("it is unreadable: {error}")),
    };
    let leaf = chain.leaf();
    let for_clients = leaf.extended_usages().is_none_or(|usages| {
        usages
            .iter()
            .any(|one| one == "client auth" || one == "any")
    });
    if !for_clients {
        return Some("it is for servers only, and no server takes it from a client".to_owned());
    }
    let same = request.csr.is_named_as(leaf);
    (!same).then(|| {
        format!(
            "its CA writes the names differently than the request does (RFC 7030, 4.2.2): {}",
            leaf.subject()
        )
    })
}

#[async_trait(?Send)]
impl Signer for Est {
    fn kind(&self) -> Kind {
        Kind::Est
    }

    fn label(&self) -> String {
        self.server.label().to_owned()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    /// Asks a label that is the same for everything; the others are asked when it is known which authority they serve.
    async fn probe(&self) -> Result<(), SignerError> {
        self.learned.borrow_mut().clear();
        *self.bootstrapped.borrow_mut() = None;
        let mut places: Vec<Place> = CertName::ALL.map(|name| self.place(name)).into();
        places.sort();
        places.dedup();
        match places.as_slice() {
            [only] => self.look(only).await.map(|_| ()),
            _ => Ok(()),
        }
    }

    fn preflight(&self, wanted: &Wanted) -> Result<(), Rejection> {
        self.caps().carries(&self.label(), wanted)?;
        let learned = self.learned.borrow();
        let Some(learned) = learned.get(&self.place(wanted.name)) else {
            return Ok(());
        };
        let obstacles = learned.attributes.obstacles(wanted.profile.key);
        match obstacles.is_empty() {
            true => Ok(()),
            false => Err(Rejection {
                signer: self.label(),
                name: wanted.name,
                reason: obstacles.join("; "),
                advice: "plan the keys that it wants, under `pki`, or have /csrattrs changed by the server's owner"
                    .to_owned(),
            }),
        }
    }

    /// The roots, the pinned one first. What is no root and the only thing there is an authority too.
    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let mut places: Vec<Place> = CertName::ALL
            .into_iter()
            .filter(|name| name.authority() == authority)
            .map(|name| self.place(name))
            .collect();
        places.sort();
        places.dedup();
        let (mut learned, mut failed) = (None, None);
        for place in &places {
            // Each is of use to `preflight`, and one that fails may be of a certificate that nobody wants.
            match self.look(place).await {
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

    /// Sending it again is the only way to find it. What the server once took with 202 is sent as that, so that a denial
    /// stays one.
    async fn recover(
        &self,
        request: &Request,
        ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        match ticket {
            Some(ticket) if ticket.as_str() == SIMPLE_ENROLL => {
                self.enroll(request, As::Again).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        self.enroll(request, As::First).await
    }

    async fn renew(&self, request: &Request, current: &Current) -> Result<Answer, SignerError> {
        if let Some(why) = not_exchangeable(request, current) {
            return Err(SignerError::permanent(
                format!(
                    "{}: {} cannot be given in exchange: {why}",
                    self.label(),
                    request.name()
                ),
                "let it be asked for as a first certificate",
            ));
        }
        self.enroll(request, As::Replacement(current)).await
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        // A renewal goes on with the certificate that it began with, which is not kept here.
        if ticket.as_str() != SIMPLE_ENROLL {
            return Ok(Answer::Gone);
        }
        self.enroll(request, As::Again).await
    }
}
