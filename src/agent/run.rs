//! The requests of one run: generates keys, learns authorities, sends requests and waits for answers, concurrently.
//!
//! The survey has decided what to request; `install` writes the results.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::clock::{self, SettledClock, floor};
use super::failure::signer_failure;
use super::keys::RunKeys;
use super::request::{
    self, AnswerFault, Issuance, IssuanceOutcome, NotInstalled, RequestContext, RequestStart,
    Resumed, Unsigned,
};
use super::retries::{PublishedCa, Retries};
use super::survey::{ServiceAccountAction, Survey, SurveyedCert};
use super::{Clock, Event, Failure, Progress, RunSetup, preflight};
use crate::kube::names::{Authority, CertName};
use crate::signer::bundle::Candidate;
use crate::signer::{Signer, SignerError, SignerKind};
use crate::spec::CertSpec;
use crate::spec::assess::RenewalCause;
use crate::store::{RequestRecord, Slot, Store};
use crate::text::hex;
use crate::x509::{KeyAlgorithm, PrivateKey, TrustBundle, TrustError};

/// The CA that a signer has for an authority; `None` if it does not publish it.
type Offer = Result<Option<PublishedCa>, Rc<SignerError>>;

/// The requests of one run.
pub(super) struct RequestRun<'a> {
    setup: &'a RunSetup,
    store: &'a Store,
    clock: Clock,
    progress: &'a dyn Progress,
    /// Pending requests of earlier runs that still match the plan.
    pub(super) resumed: BTreeMap<CertName, Resumed>,
    /// The others.
    outdated: Vec<Slot>,
    /// Records of the others.
    set_aside: BTreeMap<CertName, RequestRecord>,
    pub(super) keys: RunKeys,
    /// Trust bundle of each authority, from disk or from the signer.
    pub(super) trust: BTreeMap<Authority, TrustBundle>,
    /// Authorities whose signer cannot be reached, and why.
    unreachable: BTreeMap<Authority, Rc<SignerError>>,
    /// Certificates that a rotation, or an import with refused certificates, does not request, and why. A bootstrap fails
    /// instead.
    unasked: BTreeMap<CertName, Rc<Failure>>,
    /// Certificates that were imported with their keys, until they are verified.
    imported: Vec<Candidate>,
    /// Their keys, if all of them are accepted.
    adopted: BTreeMap<CertName, PrivateKey>,
    /// Those that are refused, and why.
    refused: BTreeMap<CertName, Vec<AnswerFault>>,
    /// Earliest possible time, if the clock shows an earlier one and `--allow-unsynced` is set.
    floor: Option<OffsetDateTime>,
    /// When this run stops waiting for signers.
    deadline: Instant,
}

/// Pending requests of earlier runs.
#[derive(Default)]
struct EarlierRequests {
    /// Those that still match the plan.
    resumed: BTreeMap<CertName, Resumed>,
    /// The others.
    outdated: Vec<Slot>,
    /// Records of the others.
    set_aside: BTreeMap<CertName, RequestRecord>,
}

/// Results of the requests of a run.
pub(super) struct Outcomes {
    pub(super) certs: BTreeMap<CertName, IssuanceOutcome>,
    pub(super) service_account: Option<PrivateKey>,
}

impl<'a> RequestRun<'a> {
    /// Starts a run, and sets the pending requests aside that do not match the plan any more. With imported keys,
    /// [`RequestRun::adopt_imported`] does that.
    pub(super) fn new(
        setup: &'a RunSetup,
        store: &'a Store,
        clock: Clock,
        progress: &'a dyn Progress,
        survey: &mut Survey,
        imported: Vec<Candidate>,
    ) -> Result<Self, Failure> {
        let run = RequestRun::unchanged(setup, store, clock, progress, survey, imported)?;
        if run.imported.is_empty() {
            run.set_outdated_aside()?;
        }
        Ok(run)
    }

    /// As [`RequestRun::new`], and leaves the pending requests unchanged.
    ///
    /// Starts the key generation immediately, because it depends on neither network nor clock.
    pub(super) fn unchanged(
        setup: &'a RunSetup,
        store: &'a Store,
        clock: Clock,
        progress: &'a dyn Progress,
        survey: &mut Survey,
        imported: Vec<Candidate>,
    ) -> Result<Self, Failure> {
        require_policy(setup, survey)?;
        let EarlierRequests {
            resumed,
            outdated,
            set_aside,
        } = resume(store, clock, survey)?;
        let is_imported = |name| imported.iter().any(|one| one.name == name);
        let mut keys_to_make: Vec<(Slot, KeyAlgorithm)> = survey
            .to_issue()
            .filter(|cert| !resumed.contains_key(&cert.spec.name()) && !cert.decision.keep_key)
            .filter(|cert| !is_imported(cert.spec.name()))
            .map(|cert| key_job(&cert.spec))
            .collect();
        let wanted = keys_to_make.len();
        if survey.rotating.is_some() {
            // A rotation retries while a signer is unreachable: keys are generated once the signer answers.
            keys_to_make.clear();
        }
        if let (Some(ServiceAccountAction::Make), Some(spec)) =
            (&survey.service_account, &setup.plan.service_account)
        {
            keys_to_make.push((Slot::ServiceAccount, spec.key));
        }
        progress.event(Event::Started {
            keys: keys_to_make.len().max(wanted),
            certificates: survey.to_issue().count(),
        });
        let mut keys = RunKeys::default();
        keys.start(keys_to_make)?;
        let trust = survey
            .bundles
            .iter()
            .filter_map(|bundle| Some((bundle.spec.authority, bundle.found.present()?.clone())))
            .collect();
        Ok(RequestRun {
            setup,
            store,
            clock,
            progress,
            resumed,
            outdated,
            set_aside,
            keys,
            trust,
            unreachable: BTreeMap::new(),
            unasked: BTreeMap::new(),
            imported,
            adopted: BTreeMap::new(),
            refused: BTreeMap::new(),
            floor: None,
            deadline: Instant::now() + setup.wait,
        })
    }

    /// Sets the pending requests aside that do not match the plan any more.
    pub(super) fn set_outdated_aside(&self) -> Result<(), Failure> {
        for slot in &self.outdated {
            let why = "it does not match the plan any more, or its answer was refused";
            let note = self.store.set_slot_aside(*slot, why, (self.clock)())?;
            tracing::info!("{note}");
        }
        Ok(())
    }

    /// Waits while the clock is certainly wrong, then assesses the certificates again.
    pub(super) async fn settle_clock(&mut self, survey: &mut Survey) -> Result<(), Failure> {
        let floor = floor(self.trust.values());
        match clock::wait_for(&floor, &self.setup.clock, self.clock, self.progress).await? {
            SettledClock::AtOnce => return Ok(()),
            SettledClock::Caught => {}
            SettledClock::Behind(floor, note) => {
                self.floor = Some(floor);
                survey.notes.push(note);
            }
        }
        let trust = &self.trust;
        survey.decide(trust, self.now());
        Ok(())
    }

    /// Returns the time for the assessment of certificates.
    pub(super) fn now(&self) -> OffsetDateTime {
        let shown = (self.clock)();
        self.floor.map_or(shown, |floor| shown.max(floor))
    }

    /// Learns the authorities that are not on disk, and verifies that the signers sign for those that are.
    pub(super) async fn establish_trust(&mut self, survey: &mut Survey) -> Result<(), Failure> {
        let mut needed: Vec<Authority> = survey
            .to_issue()
            .map(|cert| cert.spec.authority())
            .collect();
        let absent = survey
            .bundles
            .iter()
            .filter(|bundle| bundle.found.present().is_none() && bundle.refused.is_empty());
        needed.extend(absent.map(|bundle| bundle.spec.authority));
        needed.sort_unstable();
        needed.dedup();
        let mut offers = self.offers(&needed).await;
        let mut refused: Vec<Failure> = Vec::new();
        let mut are_precluded = true;
        for authority in &needed {
            let is_known = self.trust.contains_key(authority);
            let offer = offers.remove(authority).unwrap_or(Ok(None));
            let is_answered = offer.is_ok();
            let is_precluded = offer.as_ref().is_err_and(|error| error.precludes_signing);
            let mut established = self.establish(*authority, offer);
            if established.is_ok() && !is_known {
                established = match self.trust.get(authority) {
                    Some(learned) => belongs(self.setup, survey, *authority, learned),
                    None => Ok(()),
                };
            }
            match established {
                Err(failure) if survey.rotating.is_some() => self.leave_out(
                    survey
                        .to_issue()
                        .filter(|cert| cert.spec.authority() == *authority),
                    failure,
                ),
                Err(failure) => {
                    refused.push(failure);
                    are_precluded &= is_precluded;
                    // Each refused CA needs a correction of its own; one signer may be down for all of them.
                    if !is_answered && !is_precluded {
                        break;
                    }
                }
                Ok(()) => {}
            }
        }
        if are_precluded
            && !refused.is_empty()
            && let Err(found) = preflight(self.setup, survey)
        {
            // The cause, or a fault that the administrator of the signer can correct at the same time.
            refused.insert(0, found);
        }
        if let Some(code) = refused.iter().map(|failure| failure.code).max() {
            let messages = refused.into_iter().flat_map(|failure| failure.messages);
            return Err(Failure::with_messages(code, messages));
        }
        // Probing may have changed the known capabilities.
        match survey.rotating {
            None => preflight(self.setup, survey)?,
            Some(_) => {
                for cert in survey.to_issue() {
                    if let Err(failure) = self.setup.preflight(&cert.spec) {
                        self.leave_out([cert], failure);
                    }
                }
            }
        }
        let trust = &self.trust;
        let now = self.now();
        survey.note_shared_authorities(|authority| trust.get(&authority));
        survey.decide(trust, now);
        self.require_signer(survey, &needed, now)
    }

    /// Fails if a certificate is missing and no signer can be reached. Otherwise the run continues: a signer must not
    /// delay a node with valid certificates, and the cluster may offer its data for a limited time only.
    fn require_signer(
        &self,
        survey: &Survey,
        needed: &[Authority],
        now: OffsetDateTime,
    ) -> Result<(), Failure> {
        let missing = survey
            .to_issue()
            .any(|cert| !cert.still_serves(self.trust.get(&cert.spec.authority()), now));
        if missing
            && survey.rotating.is_none()
            && !survey.has_to_take(&self.setup.provided)
            && needed
                .iter()
                .all(|authority| self.unreachable.contains_key(authority))
            && let Some((authority, error)) = self.unreachable.first_key_value()
        {
            return Err(signer_failure(
                format!("signer of {authority}"),
                Rc::clone(error),
            ));
        }
        Ok(())
    }

    pub(super) fn leave_out<'s>(
        &mut self,
        certs: impl IntoIterator<Item = &'s SurveyedCert>,
        failure: Failure,
    ) {
        let failure = Rc::new(failure);
        for cert in certs {
            let why = Rc::clone(&failure);
            self.unasked.entry(cert.spec.name()).or_insert(why);
        }
    }

    /// Probes the signers of these authorities and asks for the CAs, all at the same time. There is no offer for an
    /// authority without a signer.
    async fn offers(&self, authorities: &[Authority]) -> BTreeMap<Authority, Offer> {
        // By name, because two signers on one server may still have to learn different things from it.
        let mut signers: BTreeMap<&str, (&dyn Signer, Vec<Authority>)> = BTreeMap::new();
        for authority in authorities {
            if let Ok((name, signer)) = self.setup.signer(*authority) {
                let (_, served) = signers
                    .entry(name)
                    .or_insert_with(|| (signer.as_ref(), Vec::new()));
                served.push(*authority);
            }
        }
        let answers = signers
            .into_iter()
            .map(|(name, (signer, served))| async move {
                let probed = self.retries().probe(name, signer).await.map_err(Rc::new);
                let probed = &probed;
                let offers = served.into_iter().map(|authority| async move {
                    let offer = match probed {
                        Ok(()) => self.offer(name, signer, authority).await,
                        Err(error) => Err(Rc::clone(error)),
                    };
                    (authority, offer)
                });
                join_all(offers).await
            });
        join_all(answers).await.into_iter().flatten().collect()
    }

    /// Learns one authority, or verifies the known one with the offer of its signer.
    fn establish(&mut self, authority: Authority, offer: Offer) -> Result<(), Failure> {
        let (_, signer) = self.setup.signer(authority)?;
        let offered = match offer {
            Ok(Some(published)) => Some(published.bundle()?),
            Ok(None) => None,
            Err(error) if error.class.passes() && self.trust.contains_key(&authority) => {
                self.unreachable.insert(authority, error);
                return Ok(());
            }
            Err(error) => return Err(signer_failure(format!("signer of {authority}"), error)),
        };
        match (self.trust.get(&authority), offered) {
            (Some(trusted), Some(offered)) => {
                same_authority(authority, signer.as_ref(), trusted, &offered)?
            }
            (Some(_), None) => {}
            (None, Some(offered)) => {
                let bundle = Self::admit(self.setup, authority, signer.as_ref(), offered)?;
                self.trust.insert(authority, bundle);
            }
            (None, None) => return Err(no_authority(self.setup, authority)),
        }
        Ok(())
    }

    async fn offer(&self, name: &str, signer: &dyn Signer, authority: Authority) -> Offer {
        match self.retries().ca(name, signer, authority).await {
            // The bundle on the node is already trusted; the answers of a signer that cannot report its CA are verified
            // with it.
            Err(error) if self.trust.contains_key(&authority) && error.may_still_sign() => {
                tracing::info!(authority = authority.as_str(), "{error}");
                Ok(None)
            }
            other => other.map_err(Rc::new),
        }
    }

    pub(super) fn retries(&self) -> Retries<'a> {
        Retries {
            deadline: self.deadline,
            jitter: self.setup.jitter,
            progress: self.progress,
        }
    }

    /// Accepts a CA certificate from a signer if it is pinned, or if the signer runs in this process.
    pub(super) fn admit(
        setup: &RunSetup,
        authority: Authority,
        signer: &dyn Signer,
        offered: TrustBundle,
    ) -> Result<TrustBundle, Failure> {
        let pins = setup.trust_source(authority).pins;
        if pins.is_empty() && !signer.kind().is_in_process() {
            return Err(Failure::misconfigured(format!(
                "{} offers a CA certificate for authority {authority} ({offered}), but no file or pin confirms that it is the right one; put the certificate on the node, or pin sha256:{} under authorities.{authority}.trust.sha256 after comparing it with the CA's owner",
                signer.label(),
                hex(&offered.first().public_key().sha256())
            )));
        }
        offered.require_pins(&pins).map_err(|error: TrustError| {
            Failure::refused(format!(
                "the CA certificate that {} offers for authority {authority} is refused",
                signer.label()
            ))
            .caused_by(error)
        })?;
        Ok(offered)
    }

    /// Requests with the imported keys instead of the pending ones, if all certificates that came with them satisfy the
    /// plan. Otherwise replaces and requests nothing, since the files may be those of another node.
    pub(super) fn adopt_imported(&mut self, survey: &Survey) -> Result<(), Failure> {
        if self.imported.is_empty() {
            return Ok(());
        }
        let imported = std::mem::take(&mut self.imported);
        let (mut adopted, mut refused) = (BTreeMap::new(), BTreeMap::new());
        let (context, issuances) = (self.context(survey), self.issuances(survey)?);
        for Candidate {
            name, answer, key, ..
        } in imported
        {
            let (Some(issuance), Some(key)) = (issuances.get(&name), key) else {
                continue;
            };
            match request::verified(&answer, &context, issuance, &key) {
                Ok(_) => {
                    adopted.insert(name, key);
                }
                Err(faults) => {
                    refused.insert(name, faults);
                }
            }
        }
        if refused.is_empty() {
            self.set_outdated_aside()?;
            for name in adopted.keys() {
                if self.resumed.remove(name).is_some() {
                    let why = "another key came with the imported certificates";
                    let slot = Slot::Certificate(*name);
                    self.store.set_slot_aside(slot, why, (self.clock)())?;
                }
            }
            self.adopted = adopted;
            return Ok(());
        }
        let names: Vec<&str> = refused.keys().map(|name| name.as_str()).collect();
        let failure = Failure::pending(format!(
            "nothing is requested, since certificates that were imported with their keys are refused: {}",
            names.join(", ")
        ))
        .advise("import the files of this node, or have these certificates signed again");
        let others = survey.to_issue();
        let others = others.filter(|cert| !refused.contains_key(&cert.spec.name()));
        self.leave_out(others, failure);
        self.refused = refused;
        Ok(())
    }

    fn context(&self, survey: &Survey) -> RequestContext<'_> {
        RequestContext {
            store: self.store,
            identity: self.setup.identity.clone(),
            clock: self.clock,
            floor: self.floor,
            deadline: self.deadline,
            jitter: self.setup.jitter,
            progress: self.progress,
            is_rotation: is_due_only(survey),
            is_proof: false,
            set_aside: &self.set_aside,
        }
    }

    /// Sends every request as soon as its key is generated, and waits for all answers concurrently.
    pub(super) async fn request_all(&mut self, survey: &Survey) -> Result<Outcomes, Failure> {
        let mut keys = std::mem::take(&mut self.keys);
        let resumed = std::mem::take(&mut self.resumed);
        let adopted = std::mem::take(&mut self.adopted);
        let run = &*self;
        let context = run.context(survey);
        let issuances = run.issuances(survey)?;
        let mut outcomes = Outcomes {
            certs: run.without_request(survey),
            service_account: None,
        };
        let mut requests = FuturesUnordered::new();
        for (name, start) in existing_keys(survey, resumed, adopted) {
            if let Some(issuance) = issuances.get(&name) {
                keys.keep(Slot::Certificate(name));
                requests.push(named(name, request::obtain(&context, issuance, start)));
            }
        }
        // The keys that became necessary only later: the clock was behind, or an authority became known.
        keys.start(
            issuances
                .values()
                .map(|issuance| key_job(issuance.order.spec)),
        )?;
        loop {
            let made = tokio::select! {
                // A finished key first, so that its request is sent before an answer to another one is processed.
                biased;
                Some(made) = keys.next() => made,
                Some((name, outcome)) = requests.next() => {
                    outcomes.certs.insert(name, outcome?.map_err(NotInstalled::Unsigned));
                    continue;
                }
                else => break,
            };
            let (slot, algorithm, took) = (made.slot, made.algorithm, made.took);
            let key = made.require()?;
            run.progress.event(Event::KeyMade {
                slot,
                algorithm,
                took,
            });
            match slot {
                Slot::ServiceAccount => outcomes.service_account = Some(key),
                Slot::Certificate(name) => {
                    if let Some(issuance) = issuances.get(&name) {
                        requests.push(named(
                            name,
                            request::obtain(&context, issuance, RequestStart::Key(key)),
                        ));
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// Returns the certificates to be requested.
    fn issuances<'s>(
        &'s self,
        survey: &'s Survey,
    ) -> Result<BTreeMap<CertName, Issuance<'s>>, Failure> {
        let now = self.now();
        survey
            .to_issue()
            .filter(|cert| !self.unreachable.contains_key(&cert.spec.authority()))
            .filter(|cert| !self.unasked.contains_key(&cert.spec.name()))
            .filter(|cert| !self.refused.contains_key(&cert.spec.name()))
            .map(|cert| {
                let authority = cert.spec.authority();
                let trust = self
                    .trust
                    .get(&authority)
                    .ok_or_else(|| no_authority(self.setup, authority))?;
                let issuance = self.setup.issuance(cert, trust, now)?;
                Ok((cert.spec.name(), issuance))
            })
            .collect()
    }

    /// Returns the outcomes of certificates that are due and not requested.
    fn without_request(&self, survey: &Survey) -> BTreeMap<CertName, IssuanceOutcome> {
        let failed = survey.to_issue().filter_map(|cert| {
            let name = cert.spec.name();
            let why = if let Some(faults) = self.refused.get(&name) {
                Unsigned::Refused(faults.clone()).into()
            } else if let Some(failure) = self.unasked.get(&name) {
                NotInstalled::Undone(Rc::clone(failure))
            } else {
                let error = self.unreachable.get(&cert.spec.authority())?;
                Unsigned::Failed(Rc::clone(error)).into()
            };
            Some((name, Err(why)))
        });
        failed.collect()
    }
}

/// Refuses to make a key while it is not known which keys the cluster permits, if the settings require that.
///
/// # Errors
/// Pending, since the cluster may answer later.
pub(crate) fn require_policy(setup: &RunSetup, survey: &Survey) -> Result<(), Failure> {
    let doubts = &setup.plan.policy_doubts;
    let makes_key = survey.to_issue().next().is_some()
        || survey.service_account == Some(ServiceAccountAction::Make);
    match &doubts.rules {
        Some(why) if doubts.blocks && makes_key => Err(Failure::pending(format!(
            "nothing is issued, since clusterPolicy.required is true: {why}"
        ))
        .advise("permit this node to read it (docs/configuration.md has the role), or correct the object, and run again")),
        _ => Ok(()),
    }
}

/// Returns whether the run is the rotation, and not ordered by a command.
fn is_due_only(survey: &Survey) -> bool {
    let rotating = survey.rotating.as_ref();
    rotating.is_some_and(|rotating| rotating.demand == RenewalCause::Due)
}

/// Returns the pending requests of earlier runs that still match the plan. Sets the others aside, and returns their records.
fn resume(store: &Store, clock: Clock, survey: &mut Survey) -> Result<EarlierRequests, Failure> {
    let resumable = store.pending(clock())?;
    survey
        .notes
        .extend(resumable.notes.iter().map(ToString::to_string));
    let mut earlier_requests = EarlierRequests::default();
    let rotating = survey.rotating.as_ref();
    let is_forced = rotating.is_some_and(|rotating| rotating.demand == RenewalCause::Forced);
    for pending in resumable.slots {
        let Slot::Certificate(name) = pending.slot else {
            continue;
        };
        let Some(cert) = survey.cert(name) else {
            continue;
        };
        let own = cert.found.key.present().filter(|_| cert.decision.keep_key);
        let known = cert.found.key.present().filter(|_| is_forced);
        let earlier = Resumed::from_pending(&pending, &cert.spec).filter(|earlier| {
            let key = earlier.key.public_key();
            own.is_none_or(|own| own.public_key() == key)
                && known.is_none_or(|known| known.public_key() != key)
        });
        match earlier {
            Some(earlier) => {
                earlier_requests.resumed.insert(name, earlier);
            }
            None => {
                earlier_requests.outdated.push(pending.slot);
                let record = pending.ticket.map(|record| (name, record));
                earlier_requests.set_aside.extend(record);
            }
        }
    }
    Ok(earlier_requests)
}

/// Returns what exists to start requests with: pending requests of earlier runs, imported keys, and keys that a renewal
/// keeps.
fn existing_keys(
    survey: &Survey,
    mut resumed: BTreeMap<CertName, Resumed>,
    mut adopted: BTreeMap<CertName, PrivateKey>,
) -> Vec<(CertName, RequestStart)> {
    let mut found = Vec::new();
    for cert in survey.to_issue() {
        let name = cert.spec.name();
        let own = cert.found.key.present().filter(|_| cert.decision.keep_key);
        let own = own.map(PrivateKey::to_pem);
        let own = own.and_then(|pem| PrivateKey::from_pem(pem.as_bytes()).ok());
        let start = match resumed.remove(&name) {
            Some(resumed) => Some(RequestStart::Resumed(Box::new(resumed))),
            None => adopted.remove(&name).or(own).map(RequestStart::Key),
        };
        found.extend(start.map(|start| (name, start)));
    }
    found
}

/// Returns the key that a new request needs.
fn key_job(spec: &CertSpec) -> (Slot, KeyAlgorithm) {
    (Slot::Certificate(spec.name()), spec.requested.profile.key)
}

async fn named<T>(name: CertName, request: impl Future<Output = T>) -> (CertName, T) {
    (name, request.await)
}

/// Verifies that an unpinned, newly learned CA is the one that issued the installed certificates.
pub(super) fn belongs(
    setup: &RunSetup,
    survey: &Survey,
    authority: Authority,
    learned: &TrustBundle,
) -> Result<(), Failure> {
    let Some(spec) = setup.plan.bundle(authority) else {
        return Ok(());
    };
    if !setup.trust_source(authority).pins.is_empty() {
        return Ok(());
    }
    let Some(replaced) = survey.replaced_by(authority, learned) else {
        return Ok(());
    };
    let path = spec.path.to_string();
    let bundle = survey.bundle(authority);
    let trouble = bundle
        .and_then(|bundle| bundle.found.trouble())
        .unwrap_or_default();
    Err(Failure::refused(format!(
        "{path} {trouble}, and the signer has another CA, {learned}: {}; nothing is issued under it: {}",
        replaced.sentence(&path),
        replaced.fix(authority, &path, learned)
    )))
}

/// Verifies that a signer has the authority on disk; certificates of another one would be refused.
pub(super) fn same_authority(
    authority: Authority,
    signer: &dyn Signer,
    trusted: &TrustBundle,
    offered: &TrustBundle,
) -> Result<(), Failure> {
    if trusted.accepts(offered) {
        return Ok(());
    }
    let advice = match signer.kind() {
        SignerKind::Embedded => {
            "the embedded signer makes new authorities in every run and cannot sign for existing ones; use another signer, or start with an empty directory"
        }
        _ => {
            "configure the signer that has the key of the authority, or install the new CA certificate on every node first"
        }
    };
    Err(Failure::refused(format!(
        "{} signs with another {authority} than the one on this node: it has {offered}, the node trusts {trusted}; {advice}",
        signer.label()
    )))
}

pub(super) fn no_authority(setup: &RunSetup, authority: Authority) -> Failure {
    let path = setup
        .plan
        .bundle(authority)
        .map(|spec| spec.path.to_string());
    Failure::misconfigured(format!(
        "the CA certificate of authority {authority} is not on this node and its signer does not publish it; put it into {} (mode 0644) and run again",
        path.unwrap_or_default()
    ))
}
