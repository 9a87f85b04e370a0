//! `puppet`: the certificate authority of a Puppet or OpenVox server, `/puppet-ca/v1`.
//!
//! A request is queued under a certname, and signed by an administrator (`puppetserver ca sign --certname NAME`) or
//! by the server's autosigning. Requests are not authenticated: every client that reaches the server may submit one,
//! and the request gives no rights until it is signed.
//!
//! # Differences from other signers
//! - **The certname is the common name**, and a Puppet CA has one certificate per certname, for all its nodes.
//!   kubeadm's common names are the same on every node, so they must be set with `commonNames`, each with `{node}` in
//!   it.
//! - The subject becomes CN=certname: organizations are dropped without notice. Without organizations and colons no
//!   client of kube-apiserver can be certified: a Puppet CA can serve `etcd-ca` and `front-proxy-ca`.
//! - Every certificate is valid for TLS servers and clients both (`authorities.X.allowExtraUsages`), and has its
//!   certname among the alternative names. The server determines lifetimes (`ca-ttl`, five years).
//! - A request with usage extensions is refused *and stays queued*, so the corrected one is refused as a
//!   duplicate: [`Signer::preflight`] refuses everything that can be wrong.
//! - 200 to a PUT means queued, 400 may mean that the request is queued already, 404 means "not yet" with Puppet's
//!   text and a wrong address with any other, and 500 is the response to an unreadable request.
//! - There is no denial: an administrator deletes a request. A queued request that disappears without a certificate
//!   counts as denied, unless `resubmitAfterDelete` is set.
//! - A certificate or request of another key under the certname is never adopted and never replaced.
//! - A revoked certificate is still served; only the revocation list shows the revocation.
//! - A renewal is for the same key, and needs Puppet Server 8.1 with `allow-auto-renewal`.
//! - The server's TLS chain lacks the intermediate that the CA bundle contains, so a root alone in `tls.caFile` is
//!   not enough.
//!
//! # Address
//! On a node with a Puppet agent, `url` may be left out: opening the signer reads the agent's `puppet.conf` (`agent.rs`).
//!
//! # Preparation of the server
//! `nodepki config signer-setup puppet` prints a script that does the following.
//!
//! In `ca.conf` (`/etc/puppetlabs/puppetserver/conf.d/`): `allow-subject-alt-names: true`, without which
//! `etcd-server` and `etcd-peer` are refused, and `allow-auto-renewal: true` for renewals. Autosigning must not match
//! these certnames: the first client to request one would get it. With `enable-infra-crl` the published list omits
//! these certificates, unless their certnames are in `infra_inventory.txt`.
//!
//! A component that trusts a CA accepts every certificate of it: every Puppet agent becomes a client of etcd. This is
//! refused until `acceptSharedCA` confirms that the CA is this cluster's own, or that the access is intended.

mod agent;
mod certname;
mod refusal;
mod server_address;
mod setup;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use sha2::{Digest, Sha256};

use super::server::{SignerServer, signing};
use super::{
    About, Answer, Caps, Carry, Configured, CurrentCertificate, FailureClass, NodeIdentity,
    OTHER_SIGNER, Part, Rejection, Renewal, Request, RequestLookup, RequestedCertificate, Resubmit,
    Signer, SignerError, SignerKind, SignerObstacle, Site, Ticket, certifies, endpoint,
};
use crate::http::{Call, Files, encode};
use crate::kube::names::Authority;
use crate::x509::{Chain, Csr, RevocationList, TrustBundle, TrustError, UsageExtensions};
use crate::yaml::Map;
use crate::yaml::settings::{SettingsBlock, settings, unless_empty};

use certname::certname;
use refusal::{answered, is_absent, is_unreadable_csr};
pub use server_address::CaServer;

const BASE_PATH: &str = "/puppet-ca/v1";

settings! {
    /// A Puppet CA.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Config {
        /// Address of the CA server, `https://HOST:8140`; by default that of the node's Puppet agent.
        "url" => pub server: CaServer, flat server_address;
        /// Settings of the node's Puppet agent, read if url is not set; by default `/etc/puppetlabs/puppet/puppet.conf`.
        "puppetConf" => pub puppet_conf: Option<PathBuf>;
        /// SHA-256 of the CA's root certificate, of its public key, or of the CA bundle as the server sends it (Puppet's
        /// `ca_fingerprint`), in place of tls.caFile.
        "caSHA256" => pub ca_sha256: Vec<[u8; 32]>, show unless_empty::<[u8; 32]>;
        /// Accept that every certificate of this Puppet CA gives access to all services that trust the CA; must be true.
        "acceptSharedCA" => pub accept_shared_ca: bool;
        /// Send a deleted request again; otherwise a deletion is a denial.
        "resubmitAfterDelete" => pub resubmit_after_delete: bool;
    }
}

const CAPS: Caps = Caps {
    organization: Carry::No,
    colon_common_name: Carry::No,
    ip_sans: Carry::AsConfigured,
    ml_dsa: Carry::No,
    own_name_san: true,
    usage_extensions: UsageExtensions::Omitted,
    pends: true,
    lookup: RequestLookup::ByName,
    resubmit: Resubmit::Adopts,
    renewal: Renewal::SameKey,
    crl: Carry::Yes,
    other_nodes: Carry::No,
    empty_csr: Carry::No,
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "puppet",
        signs_with: "a Puppet or OpenVox CA: a person (`puppetserver ca sign`) or autosigning",
        authentication: "none for requests; the certificate itself for renewals",
        caps: CAPS,
        keys: Config::KEYS,
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let config = Self::read_keys(map);
        if let Some(field) = map.get("url")
            && field
                .written()
                .is_some_and(|url| url.contains("/puppet-ca"))
        {
            field.error(
                "contains the path of the API",
                format!("leave out {BASE_PATH}"),
            );
        }
        if let (Some(_), Some(field)) = (map.get("url"), map.get("puppetConf")) {
            field.error("has no effect together with url", "remove one of them");
        }
        if let Some(Config {
            server,
            ca_sha256: pins,
            ..
        }) = &config
        {
            if !pins.is_empty() {
                endpoint::refuse_second_trust(server.tls(), map, "caSHA256");
            }
            // Without url, the agent's CA certificates are the default.
            if let CaServer::Configured(endpoint) = server {
                endpoint::require_trust(
                    endpoint,
                    map,
                    !pins.is_empty(),
                    "add tls: {caFile: /etc/puppetlabs/puppet/ssl/certs/ca.pem}, or caSHA256 with: openssl x509 -in ca.pem -noout -fingerprint -sha256",
                );
            }
        }
        config
    }

    fn setup(parts: &[Part<'_, Self>], identity: &NodeIdentity) -> Option<String> {
        Some(setup::print(parts, identity))
    }

    fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
        Some(SignerObstacle::new(
            "Puppet certifies neither an organization (O=system:nodes) nor a common name with a colon (CN=system:node:NAME)",
            OTHER_SIGNER,
        ))
    }

    fn resolved(&self, name: &str, files: &dyn Files) -> Result<Self, SignerError> {
        let endpoint = self.endpoint(name, files)?;
        if endpoint.service.is_some() {
            return Ok(Config {
                puppet_conf: self.agent_conf().map(Path::to_owned),
                ..self.clone()
            });
        }
        Ok(Config {
            server: CaServer::Configured(endpoint),
            puppet_conf: None,
            ..self.clone()
        })
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let endpoint = self.endpoint(site.name, site.files.as_ref())?;
        let label = match &endpoint.service {
            Some(service) => format!("puppet:{service}"),
            None => format!("puppet:{}", endpoint.url),
        };
        Ok(Box::new(Puppet {
            server: SignerServer::new(label.trim_end_matches('/').to_owned(), endpoint, site)?,
            config: self.clone(),
            name: site.name.to_owned(),
            identity: site.identity.clone(),
            bundle: RefCell::default(),
            lists: RefCell::default(),
        }))
    }
}

/// Requests certificates from a Puppet CA.
struct Puppet {
    /// As configured; see [`Puppet::server`].
    server: SignerServer,
    config: Config,
    name: String,
    identity: NodeIdentity,
    /// The CA's certificates as last fetched in this run, PEM.
    bundle: RefCell<Option<Vec<u8>>>,
    /// The revocation lists, and the server's time of the response.
    lists: RefCell<Option<(String, Vec<u8>)>>,
}

/// The object that the CA has under a certname.
enum HeldCertificate {
    /// A certificate for this request's key.
    Certificate(Vec<u8>),
    /// An unsigned request of this request's key.
    Request,
    /// A certificate or a request of another key; the text says which.
    Foreign(&'static str),
    Nothing,
}

impl Puppet {
    /// Returns the verified server: by the configured roots, or by the CA certificates that match the configured
    /// fingerprints.
    async fn server(&self, doing: &str) -> Result<SignerServer, SignerError> {
        if self.config.ca_sha256.is_empty() {
            return Ok(self.server.clone());
        }
        Ok(self.server.trusting(self.bundle(doing).await?))
    }

    /// Returns the CA's certificates, fetched once per run.
    async fn bundle(&self, doing: &str) -> Result<Vec<u8>, SignerError> {
        let known = self.bundle.borrow().clone();
        match known {
            Some(bundle) => Ok(bundle),
            None => self.fetch_bundle(doing).await,
        }
    }

    /// Fetches the CA's certificates, the issuing one first.
    async fn fetch_bundle(&self, doing: &str) -> Result<Vec<u8>, SignerError> {
        let pins = &self.config.ca_sha256;
        let server = if pins.is_empty() {
            self.server.clone()
        } else {
            self.server.provisional()
        };
        let response = server.exchange(doing, get("/certificate/ca")).await?;
        if response.status != 200 {
            return Err(self.refusal(doing, &response));
        }
        let bundle = TrustBundle::from_response(&response.body).map_err(|error| {
            self.server
                .invalid_response(doing, &response, "it is not a CA bundle")
                .caused_by(error)
        })?;
        if !pins.is_empty() {
            require(&response.body, &bundle, pins).map_err(|error| {
                self.server.failed(
                    FailureClass::Config,
                    doing,
                    format!("the server's CA certificates are not those of caSHA256: {error}"),
                    "correct caSHA256, or find out which server responds at this address",
                )
            })?;
        }
        let pem = bundle.to_pem().into_bytes();
        *self.bundle.borrow_mut() = Some(pem.clone());
        Ok(pem)
    }

    async fn held(
        &self,
        server: &SignerServer,
        request: &Request,
        doing: &str,
    ) -> Result<HeldCertificate, SignerError> {
        if let Some(held) = self.certificate(server, request, doing).await? {
            return Ok(held);
        }
        let certname = certname(&request.wanted);
        let path = format!("/certificate_request/{}", encode(certname));
        let response = server.exchange(doing, get(&path)).await?;
        if is_absent(&response) {
            return Ok(HeldCertificate::Nothing);
        }
        if response.status != 200 {
            return Err(self.refusal(doing, &response));
        }
        let queued = Csr::from_pem(&response.body).map_err(|error| {
            self.server.invalid_response(
                doing,
                &response,
                &format!("it is not a certificate request: {error}"),
            )
        })?;
        Ok(if queued.public_key() == request.csr.public_key() {
            HeldCertificate::Request
        } else {
            HeldCertificate::Foreign("request")
        })
    }

    /// As [`Puppet::held`], for a request that was queued. A certificate that is issued between the two queries
    /// removes the request, which must not count as a deletion.
    async fn held_after_queued(
        &self,
        server: &SignerServer,
        request: &Request,
        doing: &str,
    ) -> Result<HeldCertificate, SignerError> {
        match self.held(server, request, doing).await? {
            HeldCertificate::Nothing => {
                let made = self.certificate(server, request, doing).await?;
                Ok(made.unwrap_or(HeldCertificate::Nothing))
            }
            held => Ok(held),
        }
    }

    async fn certificate(
        &self,
        server: &SignerServer,
        request: &Request,
        doing: &str,
    ) -> Result<Option<HeldCertificate>, SignerError> {
        let path = format!("/certificate/{}", encode(certname(&request.wanted)));
        let response = server.exchange(doing, get(&path)).await?;
        if is_absent(&response) {
            return Ok(None);
        }
        if response.status != 200 {
            return Err(self.refusal(doing, &response));
        }
        if certifies(&response.body, request.csr.public_key()) {
            return Ok(Some(HeldCertificate::Certificate(response.body)));
        }
        match Chain::from_pem(&response.body) {
            Ok(_) => Ok(Some(HeldCertificate::Foreign("certificate"))),
            Err(error) => Err(self
                .server
                .invalid_response(doing, &response, "it is not a certificate")
                .caused_by(error)),
        }
    }

    /// Returns the answer to a request for what exists under its certname.
    async fn answer(
        &self,
        held: HeldCertificate,
        request: &Request,
        doing: &str,
    ) -> Result<Option<Answer>, SignerError> {
        match held {
            HeldCertificate::Certificate(leaf) => {
                Ok(Some(Answer::Issued(self.with_issuers(leaf, doing).await?)))
            }
            HeldCertificate::Request => self.queued(request).map(Some),
            HeldCertificate::Foreign(what) => Err(self.foreign(what, request, doing)),
            HeldCertificate::Nothing => Ok(None),
        }
    }

    /// Appends the issuers to the leaf, which is served alone; a verifier that trusts only the root needs the
    /// intermediate.
    async fn with_issuers(&self, mut leaf: Vec<u8>, doing: &str) -> Result<Vec<u8>, SignerError> {
        let bundle = self.bundle(doing).await?;
        leaf.push(b'\n');
        leaf.extend(bundle);
        Ok(leaf)
    }

    fn queued(&self, request: &Request) -> Result<Answer, SignerError> {
        let certname = certname(&request.wanted);
        Ok(Answer::Pending {
            ticket: ticket(request)?,
            after: None,
            note: format!(
                "Requesting: {certname} waits at the Puppet CA; sign it there with: puppetserver ca sign --certname {certname}"
            ),
            is_uniform: true,
        })
    }

    fn gone(&self, request: &Request) -> Answer {
        if self.config.resubmit_after_delete {
            return Answer::Gone;
        }
        let certname = certname(&request.wanted);
        Answer::Denied {
            reason: format!(
                "the request {certname} was deleted at {} instead of signed; if this was a mistake, remove {}/pending/{} and run again",
                self.label(),
                self.server.state_dir(),
                request.name()
            ),
        }
    }
}

#[async_trait(?Send)]
impl Signer for Puppet {
    fn kind(&self) -> SignerKind {
        SignerKind::Puppet
    }

    fn label(&self) -> String {
        self.server.label().to_owned()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    async fn probe(&self) -> Result<(), SignerError> {
        self.fetch_bundle("requesting its CA certificates")
            .await
            .map(drop)
    }

    fn preflight(&self, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        // An obstacle that no setting can change is sufficient.
        CAPS.carries(&self.label(), wanted)?;
        let obstacles = self.obstacles(wanted);
        if obstacles.is_empty() {
            return Ok(());
        }
        let (reasons, fixes): (Vec<_>, Vec<_>) = obstacles.into_iter().unzip();
        let (reason, advice) = (reasons.join("; "), fixes.join("; "));
        Err(Rejection::new(&self.label(), wanted, reason, advice))
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let doing = format!("requesting the certificates of authority {authority}");
        self.fetch_bundle(&doing).await.map(Some)
    }

    async fn crl(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let doing = format!("requesting the revocation lists of authority {authority}");
        let server = self.server(&doing).await?;
        let mut call = get("/certificate_revocation_list/ca");
        let known = self.lists.borrow().clone();
        if let Some((since, _)) = &known {
            call = call.header("If-Modified-Since", since.clone());
        }
        let response = server.exchange(&doing, call).await?;
        match (response.status, known) {
            (304, Some((_, lists))) => Ok(Some(lists)),
            (200, _) => {
                RevocationList::read_all(&response.body).map_err(|error| {
                    self.server
                        .invalid_response(&doing, &response, "it is not a revocation list")
                        .caused_by(error)
                })?;
                // The server sends no Last-Modified; its own clock dates the list.
                *self.lists.borrow_mut() = response
                    .header("Date")
                    .map(|date| (date.to_owned(), response.body.clone()));
                Ok(Some(response.body))
            }
            _ => Err(self.refusal(&doing, &response)),
        }
    }

    async fn recover(
        &self,
        request: &Request,
        ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        let doing = signing(request);
        let server = self.server(&doing).await?;
        let queued = ticket.is_some_and(|ticket| is_ticket_of(ticket, request));
        let held = if queued {
            self.held_after_queued(&server, request, &doing).await?
        } else {
            self.held(&server, request, &doing).await?
        };
        match held {
            HeldCertificate::Nothing if queued => Ok(Some(self.gone(request))),
            held => self.answer(held, request, &doing).await,
        }
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let doing = signing(request);
        if request.csr.has_usage_extensions() {
            // The server would refuse it and keep it in the queue, where it blocks the next one.
            return Err(self.server.failed(
                FailureClass::Permanent,
                &doing,
                "the request contains usages, which a Puppet CA refuses; it was not sent",
                format!(
                    "remove {}/pending/{} and run again",
                    self.server.state_dir(),
                    request.name()
                ),
            ));
        }
        let server = self.server(&doing).await?;
        let held = self.held(&server, request, &doing).await?;
        if let Some(answer) = self.answer(held, request, &doing).await? {
            return Ok(answer);
        }
        let path = format!(
            "{BASE_PATH}/certificate_request/{}",
            encode(certname(&request.wanted))
        );
        let call =
            in_english(Call::put(path)).body("text/plain", request.csr.to_pem().into_bytes());
        let response = server.exchange(&doing, call).await?;
        match response.status {
            200 if response.body.is_empty() => {}
            200 => {
                let why = "a Puppet CA accepts a request with an empty response";
                return Err(self.server.invalid_response(&doing, &response, why));
            }
            // Another process, most likely an earlier run, was faster.
            400 if response.text().contains(" already has a ") => {}
            400 => return Err(self.refused_put(&server, request, &doing, &response).await),
            500 if is_unreadable_csr(&response) => {
                return Err(self.refused_put(&server, request, &doing, &response).await);
            }
            _ => return Err(self.refusal(&doing, &response)),
        }
        // The request is either signed automatically or queued.
        match self.held(&server, request, &doing).await {
            Ok(held) => match self.answer(held, request, &doing).await? {
                Some(answer) => Ok(answer),
                None => Err(self.server.failed(
                    FailureClass::Transient,
                    &doing,
                    format!(
                        "the CA accepted the request for {} and does not list it: {}",
                        certname(&request.wanted),
                        answered(&response)
                    ),
                    "check the server's log if this persists",
                )),
            },
            // The request is queued; its state can be read later.
            Err(_) if response.status == 200 => self.queued(request),
            Err(error) => Err(error),
        }
    }

    async fn renew(
        &self,
        request: &Request,
        current: &CurrentCertificate,
    ) -> Result<Answer, SignerError> {
        let doing = format!(
            "renewing {} for authority {}",
            request.name(),
            request.wanted.authority
        );
        let certname = certname(&request.wanted);
        if !certifies(&current.chain_pem, request.csr.public_key()) {
            return Err(self.server.failed(
                FailureClass::Permanent,
                &doing,
                "a Puppet CA renews only for the same key, and this is another key",
                format!(
                    "remove the old certificate there (puppetserver ca clean --certname {certname}), then request a new one"
                ),
            ));
        }
        let server = self.server(&doing).await?.renewing(current);
        let call =
            in_english(Call::post(format!("{BASE_PATH}/certificate_renewal"))).accept("text/plain");
        let response = server.exchange(&doing, call).await?;
        match response.status {
            200 if certifies(&response.body, request.csr.public_key()) => Ok(Answer::Issued(
                self.with_issuers(response.body, &doing).await?,
            )),
            200 => Err(self.server.invalid_response(
                &doing,
                &response,
                "it is not a certificate of this key",
            )),
            404 => {
                let mut error = self.server.refusal(&doing, &response, &response.text());
                error.advice = format!(
                    "set allow-auto-renewal: true in the ca.conf of the Puppet CA (8.1 or later) and restart it; otherwise remove the old certificate there (puppetserver ca clean --certname {certname}) and request a new one"
                );
                Err(error)
            }
            400 | 403 => {
                let mut error = self.server.refusal(&doing, &response, &response.text());
                error.class = FailureClass::Auth;
                error.advice = "make sure that the certificate is of this Puppet CA and not revoked, that auth.conf allows its renewal, and that no proxy ends TLS before the server".to_owned();
                Err(error)
            }
            _ => Err(self.refusal(&doing, &response)),
        }
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        if !is_ticket_of(ticket, request) {
            return Ok(Answer::Gone);
        }
        let doing = signing(request);
        let server = self.server(&doing).await?;
        let held = self.held_after_queued(&server, request, &doing).await?;
        let answer = self.answer(held, request, &doing).await?;
        Ok(answer.unwrap_or_else(|| self.gone(request)))
    }
}

/// Succeeds if the bundle is the pinned one, or every certificate in it is pinned or issued by a pinned one.
fn require(body: &[u8], bundle: &TrustBundle, pins: &[[u8; 32]]) -> Result<(), TrustError> {
    let whole: [u8; 32] = Sha256::digest(body).into();
    if pins.contains(&whole) {
        return Ok(());
    }
    let named = bundle
        .certificates()
        .iter()
        .filter(|certificate| pins.contains(&certificate.fingerprint()))
        .map(|certificate| certificate.public_key().sha256());
    let keys: Vec<[u8; 32]> = pins.iter().copied().chain(named).collect();
    bundle.require_pins(&keys)
}

fn get(path: &str) -> Call<'static> {
    in_english(Call::get(format!("{BASE_PATH}{path}")))
}

/// Requests untranslated texts, because some of them are compared.
fn in_english(call: Call<'_>) -> Call<'_> {
    call.header("Accept-Language", "en")
}

/// Creates a ticket, which records that the request was in the queue.
fn ticket(request: &Request) -> Result<Ticket, SignerError> {
    Ticket::try_from(ticket_text(request)).map_err(|error| {
        SignerError::permanent(
            format!("a ticket cannot be created for {}: {error}", request.name()),
            "choose a shorter common name",
        )
    })
}

fn is_ticket_of(ticket: &Ticket, request: &Request) -> bool {
    ticket.as_str() == ticket_text(request)
}

fn ticket_text(request: &Request) -> String {
    format!("queued:{}", certname(&request.wanted))
}

#[cfg(feature = "fuzzing")]
pub(super) fn fuzz_conf(bytes: &[u8]) {
    if let Ok(conf) = agent::AgentConf::parse(Path::new("/etc/puppet.conf"), bytes) {
        let _ = (conf.url().is_ok(), conf.ca_file().is_ok());
    }
}
