//! The signing service of a cluster, with the faults of the plan, and the record of everything that it has issued.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{
    Answer, Caps, FailureClass, Request, RequestLookup, Resubmit, Signer, SignerError, SignerKind,
    Ticket,
};
use nodepki::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer};
use time::OffsetDateTime;

use crate::chance::Chance;
use crate::node::{SimulatedNode, elapsed, true_time};
use crate::plan::{ClusterPlan, HOUR, Lie, SignerFault};
use crate::statistics::Statistics;

/// A CA of a cluster: the authority, and how often it was changed before.
pub(crate) type CaId = (Authority, usize);
/// SHA-256 of a certificate or of a key.
pub(crate) type Digest = [u8; 32];

/// A CA with its key.
pub(crate) struct Ca {
    pub(crate) certificate_pem: String,
    signing: CertificateAuthority,
    key_pem: String,
}

impl Ca {
    fn new(authority: Authority, name: &str, now: OffsetDateTime) -> Ca {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let key_pem = key.to_pem().to_string();
        let lifetime = Duration::from_secs(20 * 365 * 86_400);
        let common_name = format!("{}{name}", authority.common_name());
        let signing = CertificateAuthority::self_signed(&common_name, key, now, lifetime).unwrap();
        Ca {
            certificate_pem: signing.bundle().to_pem(),
            signing,
            key_pem,
        }
    }

    pub(crate) fn fingerprint(&self) -> Digest {
        self.signing.bundle().first().fingerprint()
    }
}

/// A certificate that the signer has issued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IssuedLeaf {
    pub(crate) node: usize,
    pub(crate) name: CertName,
    pub(crate) ca: CaId,
    /// SHA-256 of the public key.
    pub(crate) key: Digest,
    pub(crate) not_after: OffsetDateTime,
    pub(crate) lifetime: Duration,
    pub(crate) is_honest: bool,
}

/// A request that waits for an approval.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) node: usize,
    pub(crate) name: CertName,
    pub(crate) key: Digest,
    id: String,
    ready_at: Duration,
    /// The node may discard the request: its configuration was changed, or a person renews.
    pub(crate) may_be_discarded: bool,
}

/// The signing service of one cluster.
pub(crate) struct SigningService {
    pub(crate) plan: ClusterPlan,
    chance: Chance,
    caps: Caps,
    authorities: BTreeMap<CaId, Ca>,
    /// Generation of the CA that signs.
    generation: RefCell<BTreeMap<Authority, usize>>,
    rogue: BTreeMap<Authority, Ca>,
    pub(crate) issued: RefCell<BTreeMap<Digest, IssuedLeaf>>,
    pub(crate) queue: RefCell<BTreeMap<String, Queued>>,
    /// Answers by request id, of a signer that recognizes a repeated request.
    answers: RefCell<BTreeMap<String, Vec<u8>>>,
    /// The last answer for each certificate of each node.
    last: RefCell<BTreeMap<(usize, CertName), Vec<u8>>>,
    /// Times of the submissions of the last hour.
    recent: RefCell<BTreeMap<(usize, CertName), VecDeque<Duration>>>,
    tickets: Cell<u64>,
    pub(crate) statistics: Rc<Statistics>,
}

impl SigningService {
    pub(crate) fn new(
        plan: ClusterPlan,
        chance: Chance,
        now: OffsetDateTime,
        statistics: Rc<Statistics>,
    ) -> Self {
        let mut authorities = BTreeMap::new();
        let mut rogue = BTreeMap::new();
        for authority in Authority::ALL {
            authorities.insert((authority, 0), Ca::new(authority, "", now));
            if plan.change.is_some_and(|(changed, _)| changed == authority) {
                authorities.insert((authority, 1), Ca::new(authority, "-2", now));
            }
            rogue.insert(authority, Ca::new(authority, "", now));
        }
        let caps = Caps {
            lookup: if plan.adopts {
                RequestLookup::ByName
            } else {
                RequestLookup::None
            },
            resubmit: if plan.adopts {
                Resubmit::Adopts
            } else {
                Resubmit::Duplicates
            },
            ..Caps::everything()
        };
        SigningService {
            plan,
            chance,
            caps,
            authorities,
            generation: RefCell::default(),
            rogue,
            issued: RefCell::default(),
            queue: RefCell::default(),
            answers: RefCell::default(),
            last: RefCell::default(),
            recent: RefCell::default(),
            tickets: Cell::new(0),
            statistics,
        }
    }

    pub(crate) fn authority(&self, id: CaId) -> &Ca {
        &self.authorities[&id]
    }

    /// Returns the CA with this certificate.
    pub(crate) fn ca_with(&self, fingerprint: &Digest) -> Option<CaId> {
        let mut all = self.authorities.iter();
        all.find_map(|(id, ca)| (ca.fingerprint() == *fingerprint).then_some(*id))
    }

    /// Signs with the next CA of this authority from now on.
    pub(crate) fn switch(&self, authority: Authority) {
        self.generation.borrow_mut().insert(authority, 1);
    }

    /// Permits a node to discard its requests and to create new ones.
    pub(crate) fn release_queued(&self, node: usize) {
        let mut queue = self.queue.borrow_mut();
        for queued in queue.values_mut().filter(|queued| queued.node == node) {
            queued.may_be_discarded = true;
        }
    }

    /// Returns the submissions of the last hour.
    pub(crate) fn submissions(&self, node: usize, name: CertName) -> usize {
        let recent = self.recent.borrow();
        let Some(times) = recent.get(&(node, name)) else {
            return 0;
        };
        times.iter().filter(|at| **at + HOUR > elapsed()).count()
    }

    fn fault(&self, authority: Authority) -> Option<SignerFault> {
        let now = elapsed();
        let mut faults = self.plan.faults.iter();
        faults.find_map(|(period, fault, only)| {
            let applies = period.contains(&now) && only.is_none_or(|only| only == authority);
            applies.then_some(*fault)
        })
    }

    fn issue(&self, node: usize, request: &Request, lie: Option<Lie>) -> Vec<u8> {
        let (name, authority) = (request.name(), request.wanted.authority);
        let generation = self.generation.borrow().get(&authority).copied();
        let id = (authority, generation.unwrap_or(0));
        let ca = &self.authorities[&id];
        let mut profile = request.wanted.profile.clone();
        let mut key = request.csr.public_key().clone();
        let now = true_time();
        let mut issued_at = now;
        let mut signing = &ca.signing;
        let mut intermediate = None;
        match lie {
            Some(Lie::OtherKey) => {
                let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
                key = other.public_key().clone();
            }
            Some(Lie::OtherAuthority) => signing = &self.rogue[&authority].signing,
            Some(Lie::OtherName) => {
                profile.subject.common_name = "kubernetes-admin2".to_owned();
                profile.sans.dns.clear();
            }
            Some(Lie::ShortLife) => profile.lifetime /= 20,
            Some(Lie::MomentaryLife) => profile.lifetime = Duration::from_secs(60),
            Some(Lie::Expired) => issued_at -= profile.lifetime + HOUR,
            Some(Lie::Repeated) => {
                if let Some(last) = self.last.borrow().get(&(node, name)) {
                    return last.clone();
                }
            }
            Some(Lie::CaBit) => return self.ca_certificate(ca, request),
            Some(Lie::WithoutIntermediate) => {
                intermediate = Some(Ca::new(authority, "-intermediate", now));
            }
            Some(Lie::Damaged) | None => {}
        }
        if let Some(intermediate) = &intermediate {
            signing = &intermediate.signing;
        }
        let leaf = signing.issue(&key, &profile, issued_at).unwrap();
        self.issued.borrow_mut().insert(
            leaf.fingerprint(),
            IssuedLeaf {
                node,
                name,
                ca: id,
                key: key.sha256(),
                not_after: leaf.not_after(),
                lifetime: profile.lifetime,
                is_honest: matches!(
                    lie,
                    None | Some(Lie::Damaged | Lie::ShortLife | Lie::Repeated)
                ),
            },
        );
        let pem = leaf.to_pem().into_bytes();
        Statistics::add(&self.statistics.issued, 1);
        if lie.is_none() {
            self.last.borrow_mut().insert((node, name), pem.clone());
        }
        match lie {
            Some(Lie::Damaged) => pem[..pem.len() / 2].to_vec(),
            _ => pem,
        }
    }

    /// Returns a CA certificate for the key of the request.
    fn ca_certificate(&self, ca: &Ca, request: &Request) -> Vec<u8> {
        let mut params = CertificateParams::default();
        let subject = &request.wanted.profile.subject;
        params
            .distinguished_name
            .push(DnType::CommonName, subject.common_name.as_str());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = true_time() - HOUR;
        params.not_after = true_time() + request.wanted.profile.lifetime;
        let key = PrivateKey::from_pem(ca.key_pem.as_bytes()).unwrap();
        let der = ca.signing.bundle().first().der().to_vec();
        let issuer = Issuer::from_ca_cert_der(&der.into(), &key).unwrap();
        let made = params.signed_by(request.csr.public_key(), &issuer).unwrap();
        pem::encode(&pem::Pem::new("CERTIFICATE", made.der().to_vec())).into_bytes()
    }

    pub(crate) fn record_submission(&self, node: usize, name: CertName) {
        let now = elapsed();
        self.statistics.submission(node, now);
        let mut recent = self.recent.borrow_mut();
        let times = recent.entry((node, name)).or_default();
        times.push_back(now);
        while times.front().is_some_and(|at| *at + HOUR < now) {
            times.pop_front();
        }
    }
}

fn down(what: &str) -> SignerError {
    SignerError::new(FailureClass::Transient, what, "wait")
}

/// The signing service as one node reaches it.
pub(crate) struct SimulatedSigner {
    pub(crate) service: Rc<SigningService>,
    pub(crate) node: Rc<SimulatedNode>,
}

impl SimulatedSigner {
    /// Waits for the network, and fails if it does not reach the signer.
    async fn connect(&self, request: &Request) -> Result<Option<SignerFault>, SignerError> {
        let label = (self.node.index, request.name().as_str(), elapsed());
        let mut chance = self.service.chance.of(label);
        tokio::time::sleep(Duration::from_millis(5 + chance.below(900))).await;
        if self.node.is_partitioned.get() {
            return Err(down("the network is partitioned"));
        }
        match self.service.fault(request.wanted.authority) {
            Some(SignerFault::Down) => Err(down("the server does not answer")),
            Some(SignerFault::Slow) => {
                tokio::time::sleep(Duration::from_secs(30 + chance.below(30))).await;
                Ok(Some(SignerFault::Slow))
            }
            fault => Ok(fault),
        }
    }

    fn queued(&self, ticket: &Ticket, queued: &Queued) -> Answer {
        let left = queued.ready_at.saturating_sub(elapsed());
        Answer::Pending {
            ticket: ticket.clone(),
            // Half of the signers name a time.
            after: self.service.plan.adopts.then(|| left / 2),
            note: "an officer must approve".to_owned(),
            is_uniform: true,
        }
    }
}

#[async_trait(?Send)]
impl Signer for SimulatedSigner {
    fn kind(&self) -> SignerKind {
        SignerKind::Exec
    }

    fn label(&self) -> String {
        "simulated".to_owned()
    }

    fn caps(&self) -> &Caps {
        &self.service.caps
    }

    async fn recover(
        &self,
        request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        self.connect(request).await?;
        if !self.service.plan.adopts {
            return Ok(None);
        }
        let queue = self.service.queue.borrow();
        let mut queued = queue.iter();
        if let Some((ticket, queued)) = queued.find(|(_, queued)| queued.id == request.id.as_str())
            && queued.ready_at > elapsed()
        {
            let ticket = Ticket::try_from(ticket.clone()).unwrap();
            return Ok(Some(self.queued(&ticket, queued)));
        }
        let answers = self.service.answers.borrow();
        Ok(answers
            .get(request.id.as_str())
            .cloned()
            .map(Answer::Issued))
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let (service, node) = (&self.service, self.node.index);
        service.record_submission(node, request.name());
        let fault = self.connect(request).await?;
        let lie = match fault {
            Some(SignerFault::Lies(lie)) => Some(lie),
            Some(SignerFault::Denies) => {
                return Ok(Answer::Denied {
                    reason: "not on a Friday".to_owned(),
                });
            }
            Some(SignerFault::Queues(hours)) => {
                let number = service.tickets.get() + 1;
                service.tickets.set(number);
                let ticket = Ticket::try_from(format!("ticket-{number}")).unwrap();
                let queued = Queued {
                    node,
                    name: request.name(),
                    key: request.spki_sha256,
                    id: request.id.as_str().to_owned(),
                    ready_at: elapsed() + HOUR * hours as u32,
                    may_be_discarded: false,
                };
                let answer = self.queued(&ticket, &queued);
                let mut queue = service.queue.borrow_mut();
                queue.insert(ticket.as_str().to_owned(), queued);
                return Ok(answer);
            }
            _ => None,
        };
        let answer = service.issue(node, request, lie);
        if service.plan.adopts && lie.is_none() {
            let id = request.id.as_str().to_owned();
            service.answers.borrow_mut().insert(id, answer.clone());
        }
        if fault == Some(SignerFault::LosesAnswers) {
            return Err(SignerError::new(
                FailureClass::Ambiguous,
                "the connection was lost",
                "wait",
            ));
        }
        Ok(Answer::Issued(answer))
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        self.connect(request).await?;
        let queued = {
            let queue = self.service.queue.borrow();
            queue.get(ticket.as_str()).cloned()
        };
        let Some(queued) = queued else {
            return Ok(Answer::Gone);
        };
        if queued.ready_at > elapsed() {
            return Ok(self.queued(ticket, &queued));
        }
        if self.node.clock_error.get() != 0
            && let Some(queued) = self.service.queue.borrow_mut().get_mut(ticket.as_str())
        {
            // By a wrong clock the certificate is expired or not valid yet, and the node refuses it.
            queued.may_be_discarded = true;
        }
        // Polled again after a lost answer, the signer repeats the same certificate.
        let mut answers = self.service.answers.borrow_mut();
        let answer = answers
            .entry(ticket.as_str().to_owned())
            .or_insert_with(|| self.service.issue(self.node.index, request, None));
        Ok(Answer::Issued(answer.clone()))
    }

    async fn settled(&self, key: &str) -> Result<(), SignerError> {
        let node = self.node.index;
        let mut queue = self.service.queue.borrow_mut();
        queue.retain(|_, queued| queued.node != node || queued.name.as_str() != key);
        Ok(())
    }
}
