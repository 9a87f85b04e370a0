//! The one composition: recover → survey → ask → verify → commit.
//!
//! Everything that a run of nodepki does to a node passes through [`bootstrap`]. It decides nothing itself: `plan`
//! says what is wanted, `assess` what follows from what is there, the signer signs, `x509::satisfies` judges the
//! answer and `store` writes. Offline signing takes the same road with a signer that answers from files.

mod clock;
mod event;
mod install;
mod keys;
mod kubelet;
mod offline;
mod proof;
mod provided;
mod renew;
pub mod report;
mod request;
mod revocation;
mod survey;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use time::OffsetDateTime;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use crate::assess::Action;
use crate::names::{Authority, CertName};
use crate::plan::{CertSpec, Plan};
use crate::schedule::Rotation;
use crate::signer::{Class, Identity, Kind, Renewal, Signer, SignerError, Wanted};
use crate::store::{self, Root, Slot, Store};
use crate::x509::{KeyAlgorithm, KeyError, PrivateKey, TrustBundle, TrustError, hex};
use crate::{discovery, http, kubeapi};

use clock::Settled;
pub use clock::{ClockPolicy, Floor, floor};
pub use event::{Event, Operation, Progress};
pub use offline::{export_requests, import_answers};
pub use proof::{Answered, ask, believable_now, offered, rehearse, unverified};
pub use provided::{Provided, ProvidedFile, ServiceAccount};
pub use renew::{Answer, Need, Renewed, Scope, look, needs_renewal, renew};
pub use report::{Report, Row};
pub use revocation::update_revocations;
pub use survey::{ServiceAccountAction, Survey, SurveyedBundle, SurveyedCert, TrustSource, survey};

use request::{Asked, Desk, Enquiry, Fresh, Job, Outcome, Resumed};

/// Where the time comes from.
pub type Clock = fn() -> OffsetDateTime;

/// How a run ended, as an exit status that unit files can act on.
///
/// Ordered by gravity, as declared: of everything that went wrong in a run, the gravest is its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// Everything is as wanted.
    Done = 0,
    /// Pending, or a passing fault: run again.
    Pending = 75,
    /// Signer or cluster unreachable.
    Unreachable = 69,
    /// Not permitted.
    NotPermitted = 77,
    /// The configuration is wrong.
    Configuration = 78,
    /// The command line is wrong.
    Usage = 64,
    /// What is on disk, or came back, is not safe to use.
    Refused = 65,
}

impl ExitCode {
    /// The numbers, set by sysexits(3), say nothing about gravity.
    const fn gravity(self) -> u8 {
        match self {
            ExitCode::Done => 0,
            ExitCode::Pending => 1,
            ExitCode::Unreachable => 2,
            ExitCode::NotPermitted => 3,
            ExitCode::Configuration => 4,
            ExitCode::Usage => 5,
            ExitCode::Refused => 6,
        }
    }
}

impl ExitCode {
    /// How a run ended.
    pub fn of(run: Result<&Report, &Failure>) -> ExitCode {
        match run {
            Ok(report) => report.code(),
            Err(failure) => failure.code,
        }
    }
}

impl PartialOrd for ExitCode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ExitCode {
    fn cmp(&self, other: &Self) -> Ordering {
        self.gravity().cmp(&other.gravity())
    }
}

/// A run that could not do its work; nothing was changed unless a message says so.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub code: ExitCode,
    /// Each a whole sentence: what, where, why, what to do now.
    pub messages: Vec<String>,
}

impl Failure {
    /// A failure with one message.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Failure {
            code,
            messages: vec![message.into()],
        }
    }
}

impl Failure {
    /// A failed call of a cluster's API, made in order to be `doing` something: `reading the Secret …`.
    pub fn of_cluster(doing: impl fmt::Display, error: &kubeapi::Error) -> Self {
        let (code, advice) = match error {
            kubeapi::Error::Http(error) => {
                let code = match error.kind() {
                    http::Kind::Unreachable | http::Kind::Lost => ExitCode::Unreachable,
                    http::Kind::Untrusted | http::Kind::TooLarge => ExitCode::Refused,
                    http::Kind::Refused => ExitCode::NotPermitted,
                    http::Kind::Redirected { .. } | http::Kind::Local => ExitCode::Configuration,
                };
                (code, error.advice())
            }
            kubeapi::Error::Refused(status) => match status.code {
                401 => (
                    ExitCode::NotPermitted,
                    "the credential is unknown or has expired: use one that is valid",
                ),
                403 => (
                    ExitCode::NotPermitted,
                    "use a credential that may do this, or have it permitted",
                ),
                429 | 500.. => (
                    ExitCode::Unreachable,
                    "run again once the API server is well",
                ),
                _ => (ExitCode::Refused, "see what the API server says"),
            },
            kubeapi::Error::Unusable { .. } => (
                ExitCode::Refused,
                "make sure that the address is that of a Kubernetes API server",
            ),
            kubeapi::Error::Local { advice, .. } => (ExitCode::Configuration, *advice),
        };
        Failure::new(code, format!("{doing}: {}; {advice}", sentence(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join("\n"))
    }
}

impl std::error::Error for Failure {}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        let code = match error.class() {
            store::Class::NoSpace | store::Class::Busy | store::Class::Io => ExitCode::Pending,
            store::Class::ReadOnly | store::Class::Denied => ExitCode::NotPermitted,
            store::Class::Unsafe => ExitCode::Refused,
            store::Class::Path => ExitCode::Configuration,
        };
        Failure::new(code, sentence(&error))
    }
}

impl From<discovery::Error> for Failure {
    fn from(error: discovery::Error) -> Self {
        use discovery::Error as E;
        let code = match &error {
            E::Call { doing, source } => return Failure::of_cluster(doing, source),
            E::Nothing | E::File { .. } | E::NoCredential { .. } => ExitCode::Configuration,
            E::Anonymous { .. } | E::NoSignature { .. } | E::WrongSecret { .. } => {
                ExitCode::NotPermitted
            }
            E::NoClusterInfo { .. } => ExitCode::Unreachable,
            E::Refused { .. } | E::Tampered { .. } | E::Impostor { .. } | E::Changed { .. } => {
                ExitCode::Refused
            }
        };
        Failure::new(code, sentence(&error))
    }
}

/// An error with its causes, in one line.
fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Everything that a run needs to know, all of it decided before.
pub struct Setup {
    /// The table.
    pub plan: Plan,
    /// Who asks.
    pub identity: Identity,
    /// Who signs for each authority, with its name in the configuration.
    pub signers: BTreeMap<Authority, (String, Rc<dyn Signer>)>,
    /// What is trusted for each authority.
    pub trust: BTreeMap<Authority, TrustSource>,
    /// What the cluster that this node joins has handed over.
    pub provided: Provided,
    /// When certificates are renewed.
    pub rotation: Rotation,
    /// How long to wait for signatures before the run ends pending.
    pub wait: Duration,
    /// How long to wait for another run to end.
    pub lock_wait: Duration,
    /// What to do about a doubtful clock.
    pub clock: ClockPolicy,
}

impl Setup {
    fn trust_source(&self, authority: Authority) -> TrustSource {
        self.trust.get(&authority).cloned().unwrap_or_default()
    }

    fn signer(&self, authority: Authority) -> Result<&(String, Rc<dyn Signer>), Failure> {
        self.signers.get(&authority).ok_or_else(|| {
            Failure::new(
                ExitCode::Configuration,
                format!("authority {authority} has no signer; name one under authorities.{authority}.signer or with --signer, or have the requests signed elsewhere (nodepki csr export DIR)"),
            )
        })
    }

    /// What is to be asked of whom for a certificate; with the one in place, where the signer takes it in exchange.
    fn job<'a>(
        &self,
        cert: &'a SurveyedCert,
        trust: &'a TrustBundle,
        now: OffsetDateTime,
    ) -> Result<Job<'a>, Failure> {
        let (signer_name, signer) = self.signer(cert.spec.authority)?;
        Ok(Job {
            asked: Asked {
                spec: &cert.spec,
                signer: Rc::clone(signer),
                signer_name: signer_name.clone(),
                current: match signer.caps().renewal {
                    Renewal::Rekey => cert.exchangeable(trust, now),
                    Renewal::SameKey if cert.keep_key => cert.exchangeable(trust, now),
                    Renewal::SameKey | Renewal::Submit => None,
                },
                outlives: cert
                    .found
                    .chain
                    .present()
                    .filter(|_| cert.for_age && cert.keep_key)
                    .map(|chain| chain.leaf().not_after()),
                replaces: cert
                    .found
                    .chain
                    .present()
                    .filter(|_| cert.keep_key)
                    .map(|chain| chain.leaf().fingerprint()),
            },
            trust,
        })
    }

    /// What an authority is to sign, as its signer sees it.
    pub fn wanted(&self, authority: Authority) -> Vec<Wanted> {
        let specs = self.plan.certs.iter();
        specs
            .filter(|spec| spec.authority == authority)
            .map(wanted)
            .collect()
    }

    /// What every signer says to every certificate of the table, asked without I/O.
    pub fn preflight(&self, spec: &CertSpec) -> Result<(), Failure> {
        let (_, signer) = self.signer(spec.authority)?;
        let rejection = signer.preflight(&wanted(spec)).err();
        rejection.map_or(Ok(()), |rejection| {
            Err(Failure::new(ExitCode::Configuration, rejection.to_string()))
        })
    }

    /// Judges what is on disk, reading only.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn survey(&self, root: &Root, now: OffsetDateTime) -> Result<Survey, Failure> {
        let mut survey = survey(
            root,
            &self.plan,
            |authority| self.trust_source(authority),
            &self.provided,
            now,
        )?;
        survey.tell_age(root, &self.rotation, &self.identity.node);
        for spec in survey.ca_keys().cloned().collect::<Vec<_>>() {
            // A CA key is the point of the local signer, and none of anybody else's business.
            let external = self
                .signers
                .get(&spec.authority)
                .is_none_or(|(_, signer)| !matches!(signer.kind(), Kind::Local | Kind::Embedded));
            if external {
                survey.notes.push(format!(
                    "{} is on this node although an external signer is configured for {}: nodepki migrate to-external proves that it is not needed, and removes it",
                    spec.key_path.display(),
                    spec.authority
                ));
            }
        }
        Ok(survey)
    }
}

/// Gives the node everything that its plan says, as far as the signers answer in time.
///
/// Idempotent: where nothing is missing nothing is written and nobody is asked.
///
/// # Errors
/// When nothing could be done at all. What became of single certificates is in the report.
pub async fn bootstrap(
    root: &Root,
    setup: &Setup,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Report, Failure> {
    // Where nothing is to be done nothing is touched, the lock included: this also serves a read-only root.
    if !root.has_unfinished()? {
        let survey = setup.survey(root, clock())?;
        if survey.refusals.is_empty() && survey.is_settled() {
            return Ok(report::settled(setup, survey));
        }
    }
    let (mut store, recovery) = open_store(root, setup, "bootstrap", clock)?;
    bootstrap_in(&mut store, recovery, setup, clock, progress).await
}

/// Takes the lock and finishes what an earlier run began; what that was is in the sentences.
pub(crate) fn open_store(
    root: &Root,
    setup: &Setup,
    command: &str,
    clock: Clock,
) -> Result<(Store, Vec<String>), Failure> {
    let locked = root.lock(setup.lock_wait, command)?;
    let (store, recovery) = locked.recover(clock())?;
    Ok((store, recovery_notes(&recovery)))
}

/// What is worth telling of an interrupted run that was completed.
pub(crate) fn recovery_notes(recovery: &store::Recovery) -> Vec<String> {
    let finished = recovery.finished.iter().map(|path| {
        format!(
            "{} was completed: an earlier run had been interrupted while writing it",
            path.display()
        )
    });
    let removed = recovery.removed.iter().map(|path| {
        format!(
            "{} was removed: an earlier run had been interrupted while removing it",
            path.display()
        )
    });
    let superseded = recovery.superseded.iter().map(|path| {
        format!(
            "{} was left as it is: somebody changed it after an earlier run had been interrupted",
            path.display()
        )
    });
    let notes = recovery.notes.iter().map(ToString::to_string);
    let all = finished.chain(removed).chain(superseded).chain(notes);
    all.collect()
}

async fn bootstrap_in(
    store: &mut Store,
    notes: Vec<String>,
    setup: &Setup,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Report, Failure> {
    let mut survey = setup.survey(store.root(), clock())?;
    survey.notes.extend(notes);
    if !survey.refusals.is_empty() {
        return Err(Failure {
            code: ExitCode::Refused,
            messages: survey.refusals,
        });
    }
    if survey.is_settled() {
        return Ok(report::settled(setup, survey));
    }
    preflight(setup, &survey)?;
    room(store, setup, &survey)?;

    let mut run = Run::new(setup, store, clock, progress, &mut survey)?;
    run.settle_clock(&mut survey).await?;
    run.establish_trust(&mut survey).await?;
    let mut outcomes = run.request_all(&survey).await?;
    let (now, enquiry) = (run.now(), run.enquiry());
    let trust = run.trust;
    revocation::strike_out(setup, store, &survey, &trust, &mut outcomes, &enquiry, now).await?;
    install::install(setup, store, &trust, survey, outcomes, now, progress).await
}

/// Before a key is made: can every signer carry what it would be asked for?
fn preflight(setup: &Setup, survey: &Survey) -> Result<(), Failure> {
    let mut rejections: Vec<String> = Vec::new();
    let failures = survey
        .to_issue()
        .filter_map(|cert| setup.preflight(&cert.spec).err());
    for message in failures.flat_map(|failure| failure.messages) {
        // A missing signer is missing for all its certificates.
        if !rejections.contains(&message) {
            rejections.push(message);
        }
    }
    match rejections.is_empty() {
        true => Ok(()),
        false => Err(Failure {
            code: ExitCode::Configuration,
            messages: rejections,
        }),
    }
}

/// Before a request is sent: is there room and permission for what would come back?
fn room(store: &Store, setup: &Setup, survey: &Survey) -> Result<(), Failure> {
    let certs = survey.certs.iter();
    let certs = certs.filter(|cert| !matches!(cert.action, Action::Keep { .. }));
    let bundles = survey.bundles.iter().filter(|bundle| !bundle.in_place);
    let service_account = setup.plan.service_account.as_ref().filter(|_| {
        !matches!(
            survey.service_account,
            None | Some(ServiceAccountAction::Keep)
        )
    });
    let paths = certs
        .flat_map(written)
        .chain(bundles.map(|bundle| bundle.spec.path.clone()))
        .chain(service_account.map(|spec| spec.public.clone()));
    room_for(store.root(), paths)
}

/// The files that hold a certificate once it is there.
fn written(cert: &SurveyedCert) -> impl Iterator<Item = PathBuf> {
    let paths = cert.spec.output.paths().into_iter().map(Path::to_owned);
    let kubelet = cert.found.store.as_ref();
    paths.chain(kubelet.map(|store| store.dir.join("kubelet-client.pem")))
}

fn room_for(root: &Root, paths: impl Iterator<Item = PathBuf>) -> Result<(), Failure> {
    // A chain with two intermediates, or a kubeconfig around one, in RSA-4096.
    const LARGEST: u64 = 24 * 1024;
    let paths: Vec<PathBuf> = paths.collect();
    let files = paths.iter().map(|path| (path.as_path(), LARGEST));
    root.preflight(files).map_err(|errors| {
        let failures: Vec<Failure> = errors.into_iter().map(Failure::from).collect();
        Failure {
            code: failures
                .iter()
                .map(|failure| failure.code)
                .max()
                .unwrap_or(ExitCode::NotPermitted),
            messages: failures
                .into_iter()
                .flat_map(|failure| failure.messages)
                .collect(),
        }
    })
}

/// One run at work.
struct Run<'a> {
    setup: &'a Setup,
    store: &'a Store,
    clock: Clock,
    progress: &'a dyn Progress,
    /// Keys that earlier runs left for the same wish.
    resumed: BTreeMap<CertName, Resumed>,
    /// Keys on their way.
    keys: UnboundedReceiver<keys::Made>,
    /// For whom keys are on their way.
    awaited: Vec<Slot>,
    /// Trusted for each authority, from disk or from the signer.
    trust: BTreeMap<Authority, TrustBundle>,
    /// Authorities whose signer cannot be reached, and why.
    unreachable: BTreeMap<Authority, Rc<SignerError>>,
    /// What rotation leaves out, and why; a bootstrap ends there.
    unasked: BTreeMap<CertName, Rc<Failure>>,
    /// The clock is behind this moment, and the run was told to go on.
    floor: Option<OffsetDateTime>,
    /// When this run stops waiting for signers.
    deadline: Instant,
}

/// What the requests of a run came to.
struct Outcomes {
    certs: BTreeMap<CertName, Outcome>,
    service_account: Option<PrivateKey>,
}

impl<'a> Run<'a> {
    /// Starts the key generation right away: primes do not depend on networks and clocks.
    fn new(
        setup: &'a Setup,
        store: &'a Store,
        clock: Clock,
        progress: &'a dyn Progress,
        survey: &mut Survey,
    ) -> Result<Self, Failure> {
        let resumable = store.pending(clock())?;
        survey
            .notes
            .extend(resumable.notes.iter().map(ToString::to_string));
        let mut resumed = BTreeMap::new();
        for pending in resumable.slots {
            let Slot::Certificate(name) = pending.slot else {
                continue;
            };
            let Some(cert) = survey.cert(name) else {
                continue;
            };
            let own = cert.found.key.present().filter(|_| cert.keep_key);
            let resumable = Resumed::from_pending(&pending, &cert.spec);
            let resumable = resumable.filter(|earlier| {
                own.is_none_or(|own| own.public_key() == earlier.key.public_key())
            });
            match resumable {
                Some(earlier) => {
                    resumed.insert(name, earlier);
                }
                None => {
                    let why = "it was for another wish, or its answer was refused";
                    let note = store.set_slot_aside(pending.slot, why, clock())?;
                    tracing::info!("{note}");
                }
            }
        }
        let mut jobs: Vec<(Slot, KeyAlgorithm)> = survey
            .to_issue()
            .filter(|cert| !resumed.contains_key(&cert.spec.name) && !cert.keep_key)
            .map(|cert| (Slot::Certificate(cert.spec.name), cert.spec.profile.key))
            .collect();
        let wanted = jobs.len();
        if survey.rotating.is_some() {
            // It is tried again and again while a signer is away: they are made once there is one.
            jobs.clear();
        }
        if let (Some(ServiceAccountAction::Make), Some(spec)) =
            (&survey.service_account, &setup.plan.service_account)
        {
            jobs.push((Slot::ServiceAccount, spec.key));
        }
        let awaited = jobs.iter().map(|(slot, _)| *slot).collect();
        progress.event(Event::Started {
            keys: jobs.len().max(wanted),
            certificates: survey.to_issue().count(),
        });
        let trust = survey
            .bundles
            .iter()
            .filter_map(|bundle| Some((bundle.spec.authority, bundle.found.present()?.clone())))
            .collect();
        Ok(Run {
            setup,
            store,
            clock,
            progress,
            resumed,
            keys: keys::start(jobs),
            awaited,
            trust,
            unreachable: BTreeMap::new(),
            unasked: BTreeMap::new(),
            floor: None,
            deadline: Instant::now() + setup.wait,
        })
    }

    /// Waits for a clock that cannot be right, then judges again what was judged by it.
    async fn settle_clock(&mut self, survey: &mut Survey) -> Result<(), Failure> {
        let floor = floor(self.trust.values());
        match clock::wait_for(&floor, &self.setup.clock, self.clock, self.progress).await? {
            Settled::AtOnce => return Ok(()),
            Settled::Caught => {}
            Settled::Behind(floor, note) => {
                self.floor = Some(floor);
                survey.notes.push(note);
            }
        }
        let trust = &self.trust;
        survey.reassess(|authority| trust.get(&authority).cloned(), self.now());
        Ok(())
    }

    /// The time by which certificates are judged.
    fn now(&self) -> OffsetDateTime {
        let shown = (self.clock)();
        self.floor.map_or(shown, |floor| shown.max(floor))
    }

    /// Learns the authorities that are not on disk, and makes sure that the signers sign for those that are.
    async fn establish_trust(&mut self, survey: &mut Survey) -> Result<(), Failure> {
        let mut needed: Vec<Authority> =
            survey.to_issue().map(|cert| cert.spec.authority).collect();
        let absent = survey
            .bundles
            .iter()
            .filter(|bundle| bundle.found.present().is_none() && bundle.refused.is_none());
        needed.extend(absent.map(|bundle| bundle.spec.authority));
        needed.sort_unstable();
        needed.dedup();
        // By name: two signers on one server may still differ in what they have to learn of it.
        let mut probed: BTreeMap<String, Option<Rc<SignerError>>> = BTreeMap::new();
        for authority in &needed {
            let established = self.establish(*authority, &mut probed).await;
            match established {
                Err(failure) if survey.rotating.is_some() => self.leave_out(
                    survey
                        .to_issue()
                        .filter(|cert| cert.spec.authority == *authority),
                    failure,
                ),
                other => other?,
            }
        }
        // Capabilities that were learned by probing.
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
        survey.reassess(|authority| trust.get(&authority).cloned(), now);
        // With nobody to ask and something missing the run has come to its end; otherwise it does what it can: a node
        // whose certificates still serve is not held up by a signer, and what the cluster hands over it may not have
        // for long.
        let missing = survey
            .to_issue()
            .any(|cert| !cert.still_serves(trust.get(&cert.spec.authority), now));
        if missing
            && survey.rotating.is_none()
            && !survey.has_to_take(&self.setup.provided)
            && needed
                .iter()
                .all(|authority| self.unreachable.contains_key(authority))
            && let Some((authority, error)) = self.unreachable.first_key_value()
        {
            return Err(signer_failure(error, *authority));
        }
        Ok(())
    }

    fn leave_out<'s>(
        &mut self,
        certs: impl IntoIterator<Item = &'s SurveyedCert>,
        failure: Failure,
    ) {
        let failure = Rc::new(failure);
        for cert in certs {
            let why = Rc::clone(&failure);
            self.unasked.entry(cert.spec.name).or_insert(why);
        }
    }

    /// Learns one authority, or makes sure of it.
    async fn establish(
        &mut self,
        authority: Authority,
        probed: &mut BTreeMap<String, Option<Rc<SignerError>>>,
    ) -> Result<(), Failure> {
        let (name, signer) = self.setup.signer(authority)?;
        let signer = Rc::clone(signer);
        let before = probed.get(name).cloned();
        let asked = match before {
            Some(Some(error)) => Err(error),
            Some(None) => self.offer(name, signer.as_ref(), authority).await,
            None => match self.ask(name, Operation::Probe, || signer.probe()).await {
                Ok(()) => self.offer(name, signer.as_ref(), authority).await,
                Err(error) => Err(error),
            },
        };
        probed.insert(name.clone(), asked.as_ref().err().cloned());
        let offered = match asked {
            Ok(Some(answer)) => Some(TrustBundle::from_answer(&answer).map_err(|error| {
                Failure::new(
                    ExitCode::Refused,
                    format!(
                        "the certificate of authority {authority} from {} is unusable: {error}",
                        signer.label()
                    ),
                )
            })?),
            Ok(None) => None,
            Err(error) if error.class.passes() && self.trust.contains_key(&authority) => {
                self.unreachable.insert(authority, error);
                return Ok(());
            }
            Err(error) => return Err(signer_failure(&error, authority)),
        };
        match (self.trust.get(&authority), offered) {
            (Some(trusted), Some(offered)) => {
                same_authority(authority, signer.as_ref(), trusted, &offered)?
            }
            (Some(_), None) => {}
            (None, Some(offered)) => {
                let bundle = self.admit(authority, signer.as_ref(), offered)?;
                self.trust.insert(authority, bundle);
            }
            (None, None) => return Err(no_authority(self.setup, authority)),
        }
        Ok(())
    }

    async fn offer(
        &self,
        name: &str,
        signer: &dyn Signer,
        authority: Authority,
    ) -> Result<Option<Vec<u8>>, Rc<SignerError>> {
        let asked = self.ask(name, Operation::Trust, || signer.trust(authority));
        match asked.await {
            // What lies on the node is trusted already; a signer that cannot say what it has is judged by its answers.
            Err(error) if self.trust.contains_key(&authority) && !error.class.passes() => {
                tracing::info!(authority = authority.as_str(), "{error}");
                Ok(None)
            }
            other => other,
        }
    }

    /// Asks again after a passing failure, as long as there is time.
    async fn ask<T>(
        &self,
        signer: &str,
        operation: Operation,
        ask: impl AsyncFn() -> Result<T, SignerError>,
    ) -> Result<T, Rc<SignerError>> {
        self.enquiry()
            .ask(signer, operation, ask)
            .await
            .map_err(Rc::new)
    }

    fn enquiry(&self) -> Enquiry<'a> {
        Enquiry {
            deadline: self.deadline,
            progress: self.progress,
        }
    }

    /// A CA certificate from a signer is believed when it is pinned, or when the signer is this process.
    fn admit(
        &self,
        authority: Authority,
        signer: &dyn Signer,
        offered: TrustBundle,
    ) -> Result<TrustBundle, Failure> {
        let pins = self.setup.trust_source(authority).pins;
        if pins.is_empty() && !matches!(signer.kind(), Kind::Embedded | Kind::Local) {
            return Err(Failure::new(
                ExitCode::Configuration,
                format!(
                    "{} offers a CA certificate for authority {authority} ({offered}), but nothing says that it is the right one; put the certificate on the node, or pin sha256:{} under authorities.{authority}.trust.sha256 after comparing it with the CA's owner",
                    signer.label(),
                    hex(&offered.first().public_key().sha256())
                ),
            ));
        }
        offered.require_pins(&pins).map_err(|error: TrustError| {
            Failure::new(
                ExitCode::Refused,
                format!("the CA certificate that {} offers for authority {authority} is refused: {error}", signer.label()),
            )
        })?;
        Ok(offered)
    }

    /// Sends every request as soon as its key is there, and waits for all of them together.
    async fn request_all(&mut self, survey: &Survey) -> Result<Outcomes, Failure> {
        let desk = Desk {
            store: self.store,
            identity: self.setup.identity.clone(),
            clock: self.clock,
            floor: self.floor,
            deadline: self.deadline,
            progress: self.progress,
        };
        let (unreachable, unasked) = (&self.unreachable, &self.unasked);
        let now = self.now();
        let jobs: BTreeMap<CertName, Job<'_>> = survey
            .to_issue()
            .filter(|cert| !unreachable.contains_key(&cert.spec.authority))
            .filter(|cert| !unasked.contains_key(&cert.spec.name))
            .map(|cert| {
                let authority = cert.spec.authority;
                let trust = self
                    .trust
                    .get(&authority)
                    .ok_or_else(|| no_authority(self.setup, authority))?;
                let job = self.setup.job(cert, trust, now)?;
                Ok((cert.spec.name, job))
            })
            .collect::<Result<_, Failure>>()?;

        let mut requests = FuturesUnordered::new();
        for cert in survey.to_issue().filter(|cert| cert.keep_key) {
            let name = cert.spec.name;
            let own = cert.found.key.present().map(PrivateKey::to_pem);
            let own = own.and_then(|pem| PrivateKey::from_pem(pem.as_bytes()).ok());
            if let (Some(job), Some(key), false) =
                (jobs.get(&name), own, self.resumed.contains_key(&name))
            {
                requests.push(named(name, request::obtain(&desk, job, Fresh::Key(key))));
                self.awaited.push(Slot::Certificate(name));
            }
        }
        let mut late = late_keys(&jobs, &self.resumed, &self.awaited);
        for (name, resumed) in std::mem::take(&mut self.resumed) {
            if let Some(job) = jobs.get(&name) {
                requests.push(named(
                    name,
                    request::obtain(&desk, job, Fresh::Resumed(Box::new(resumed))),
                ));
            }
        }
        let failed = survey.to_issue().filter_map(|cert| {
            let outcome = match unasked.get(&cert.spec.name) {
                Some(failure) => Outcome::Undone(Rc::clone(failure)),
                None => Outcome::Failed(Rc::clone(unreachable.get(&cert.spec.authority)?)),
            };
            Some((cert.spec.name, outcome))
        });
        let mut outcomes = Outcomes {
            certs: failed.collect(),
            service_account: None,
        };
        let mut keys_left = true;
        let mut late_left = true;
        loop {
            let made = tokio::select! {
                made = self.keys.recv(), if keys_left => {
                    keys_left = made.is_some();
                    made
                }
                made = late.recv(), if late_left => {
                    late_left = made.is_some();
                    made
                }
                Some((name, outcome)) = requests.next(), if !requests.is_empty() => {
                    outcomes.certs.insert(name, outcome?);
                    continue;
                }
                else => break,
            };
            let Some(keys::Made {
                slot,
                algorithm,
                took,
                key,
            }) = made
            else {
                continue;
            };
            let key = key.map_err(|error: KeyError| {
                Failure::new(
                    ExitCode::Pending,
                    format!("no key for {slot}: {error}; run again"),
                )
            })?;
            self.progress.event(Event::KeyMade {
                slot,
                algorithm,
                took,
            });
            match slot {
                Slot::ServiceAccount => outcomes.service_account = Some(key),
                Slot::Certificate(name) => {
                    if let Some(job) = jobs.get(&name) {
                        requests.push(named(name, request::obtain(&desk, job, Fresh::Key(key))));
                    }
                }
            }
        }
        Ok(outcomes)
    }
}

/// Keys that only became necessary after the first look: the clock was behind, or an authority appeared.
fn late_keys(
    jobs: &BTreeMap<CertName, Job<'_>>,
    resumed: &BTreeMap<CertName, Resumed>,
    awaited: &[Slot],
) -> UnboundedReceiver<keys::Made> {
    let missing = jobs
        .values()
        .map(|job| {
            (
                Slot::Certificate(job.asked.spec.name),
                job.asked.spec.profile.key,
            )
        })
        .filter(|(slot, _)| !awaited.contains(slot))
        .filter(|(slot, _)| !matches!(slot, Slot::Certificate(name) if resumed.contains_key(name)));
    keys::start(missing.collect())
}

async fn named<T>(name: CertName, request: impl Future<Output = T>) -> (CertName, T) {
    (name, request.await)
}

fn wanted(spec: &CertSpec) -> Wanted {
    Wanted {
        name: spec.name,
        authority: spec.authority,
        profile: spec.profile.clone(),
        tolerance: spec.tolerance,
    }
}

/// A signer whose authority is not the one on disk would only produce certificates that are refused.
fn same_authority(
    authority: Authority,
    signer: &dyn Signer,
    trusted: &TrustBundle,
    offered: &TrustBundle,
) -> Result<(), Failure> {
    if trusted.vouches_for(offered) {
        return Ok(());
    }
    let advice = match signer.kind() {
        Kind::Embedded => {
            "the embedded signer makes new authorities in every run and cannot sign for existing ones; use another signer, or start with an empty directory"
        }
        _ => {
            "point the authority at the signer that holds its key, or bring the new CA certificate to every node first"
        }
    };
    Err(Failure::new(
        ExitCode::Refused,
        format!(
            "{} signs with another {authority} than the one on this node: it has {offered}, the node trusts {trusted}; {advice}",
            signer.label()
        ),
    ))
}

fn no_authority(setup: &Setup, authority: Authority) -> Failure {
    let path = setup
        .plan
        .bundle(authority)
        .map_or_else(PathBuf::new, |spec| spec.path.clone());
    Failure::new(
        ExitCode::Configuration,
        format!(
            "the CA certificate of authority {authority} is not on this node and its signer does not hand it out; put it into {} (mode 0644) and run again",
            path.display()
        ),
    )
}

fn signer_failure(error: &SignerError, authority: Authority) -> Failure {
    Failure::new(
        class_code(error.class),
        format!("signer of {authority}: {}", sentence(error)),
    )
}

/// The exit status for a failed exchange.
pub(crate) fn class_code(class: Class) -> ExitCode {
    match class {
        Class::Transient | Class::Ambiguous => ExitCode::Unreachable,
        Class::Auth => ExitCode::NotPermitted,
        Class::Config => ExitCode::Configuration,
        Class::Permanent => ExitCode::Refused,
    }
}
